//! The generator: an engine that executes a scenario for many calls.

use super::call::{PeerRoute, ScenarioCall, ScenarioCallPhase};
use super::inject::Injection;
use super::media::{Packetization, Recording};
use super::program::{ScenarioProgram, StepKind};
use super::render::{Context, ip};
use super::schedule::{DueCall, Schedule};
use super::settings::{ScenarioSettings, call_id, secure};
use super::stats::{CallFailure, Statistics};
use super::template::{Constant, TextPiece};
use engine::timers::{TimerHeap, TimerWheel};
use engine::{
    BoundedMap, CloseReason, ConnectionId, Deadline, Engine, Entropy, HashKey, Input, Output,
    SocketId, SocketKind, Time, Transport,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wire::sip::{FrameLimits, StreamFrame, StreamFramer};

/// The socket for signalling.
pub(super) const MAIN: SocketId = SocketId(0);
/// The socket for audio.
pub(super) const AUDIO: SocketId = SocketId(1);
/// The socket for video.
pub(super) const VIDEO: SocketId = SocketId(2);
/// The first number of sockets of single calls.
const FIRST_CALL_SOCKET: u32 = 16;
/// The shared connection of a client.
pub(super) const SHARED: ConnectionId = ConnectionId(1);
/// Most calls started in a row before network input is processed.
const MAX_STARTS: usize = 256;
/// Most effects kept until the runner collects them.
const MAX_EFFECTS: usize = 100_000;

/// An effect outside of the engine, executed by the runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A line of `<log>`.
    Log(Vec<u8>),
    /// A line of `<warning>`, or an error.
    Warning(String),
    /// A command of `<exec command=...>`.
    Command(Vec<u8>),
    /// A sent or received message.
    Message {
        /// Time.
        at: Time,
        /// Whether the generator sent it.
        sent: bool,
        /// The peer, if available.
        peer: Option<SocketAddr>,
        /// The message.
        bytes: Vec<u8>,
    },
}

#[derive(Debug)]
enum ScenarioOutput {
    Open(SocketId, SocketKind, SocketAddr),
    Shut(SocketId),
    Datagram(SocketId, SocketAddr, Range<usize>),
    Connect(ConnectionId, SocketAddr, SocketAddr),
    Stream(ConnectionId, Range<usize>),
    Close(ConnectionId),
}

/// Outputs in order; bytes are in one reused buffer.
#[derive(Debug, Default)]
pub(super) struct ScenarioOutbox {
    items: VecDeque<ScenarioOutput>,
    pub(super) bytes: Vec<u8>,
}

/// Purpose of a timer: index and generation of the call.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallTimer {
    /// End of a pause, or timeout of a receive step.
    Wait(u32, u32),
    /// Retransmission.
    Retransmit(u32, u32),
}

#[derive(Debug)]
pub(super) struct ScenarioConnection {
    framer: StreamFramer,
    remote: SocketAddr,
    /// The call that owns it, with the generation of its slot.
    call: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GeneratorState {
    New,
    /// Number of sockets that are not open yet.
    Opening(usize),
    Ready,
}

/// Executes a scenario.
#[derive(Debug)]
pub struct ScenarioGenerator {
    pub(super) program: Arc<ScenarioProgram>,
    pub(super) context: Context,
    pub(super) calls: Vec<ScenarioCall>,
    pub(super) free: Vec<u32>,
    by_id: BoundedMap<Box<[u8]>, u32>,
    /// Ended calls, with the time until which their Call-IDs are remembered.
    ended: VecDeque<(Time, Box<[u8]>)>,
    pub(super) wheel: TimerWheel<CallTimer>,
    pub(super) agenda: TimerHeap<(u32, u32)>,
    pub(super) schedule: Schedule,
    pub(super) outbox: ScenarioOutbox,
    pub(super) statistics: Statistics,
    effects: Vec<Effect>,
    pub(super) recordings: Vec<Arc<Recording>>,
    pub(super) sounds: BTreeMap<(u16, Packetization), Arc<Recording>>,
    pub(super) connections: BTreeMap<ConnectionId, ScenarioConnection>,
    pub(super) next_connection: u64,
    pub(super) state: GeneratorState,
    /// Whether `<init>` was executed.
    pub(super) initialised: bool,
    pub(super) fatal: Option<String>,
    /// Whether a message was received.
    pub(super) heard: bool,
    /// The peer whose port is closed, if it never sent a message.
    pub(super) absent: Option<SocketAddr>,
    /// Due times of the calls started since the last [`ScenarioGenerator::settle`].
    started: Vec<DueCall>,
    idle_users: Vec<u64>,
    /// Number of the next call.
    next_number: u64,
    /// Calls that linger for retransmissions.
    pub(super) lingering: u64,
    pub(super) stopping: bool,
    pub(super) stopped: bool,
    pub(super) echoing: bool,
    /// Peers whose media is sent back, with the number of calls.
    pub(super) echoes: BTreeMap<SocketAddr, u32>,
    /// Calls that send a pattern, and whether it is video, by the peer's address and their own source.
    pub(super) patterns: BTreeMap<(SocketAddr, u32), (u32, bool)>,
}

/// Inputs of a generator.
#[derive(Debug)]
pub struct GeneratorParts {
    /// The scenario.
    pub program: ScenarioProgram,
    /// Settings.
    pub settings: ScenarioSettings,
    /// Injection files, in the order of their names at compilation.
    pub files: Vec<Injection>,
    /// Captures, in the order of [`ScenarioProgram::captures`].
    pub recordings: Vec<Arc<Recording>>,
    /// Sounds by their number in [`ScenarioProgram::sounds`] and packing.
    pub sounds: BTreeMap<(u16, Packetization), Arc<Recording>>,
}

impl ScenarioGenerator {
    /// A generator that opens its sockets at the first [`Engine::handle`].
    pub fn new(parts: GeneratorParts, mut entropy: Entropy) -> ScenarioGenerator {
        let GeneratorParts {
            program,
            settings,
            files,
            recordings,
            sounds,
        } = parts;
        let statistics = Statistics::new(
            program.steps.len(),
            program.timers.len(),
            program.counters.len(),
            &program.response_classes,
            &program.length_classes,
        );
        let schedule = match program.server || settings.users > 0 {
            true => {
                let limits = settings.limits;
                let (index, threads) = settings.share;
                let part = |total: u64| total / threads + u64::from(index < total % threads);
                let limits = super::schedule::CallLimits {
                    total: limits.total.map(part),
                    ..limits
                };
                Schedule::none(limits, settings.start)
            }
            false => Schedule::share(
                settings.pace,
                settings.limits,
                settings.start,
                settings.share,
                settings.batch,
                entropy.fork(),
            ),
        };
        let (index, threads) = settings.share;
        let users = settings.users / threads + u64::from(index < settings.users % threads);
        ScenarioGenerator {
            by_id: BoundedMap::new(settings.room * 2, HashKey::new(&mut entropy)),
            calls: Vec::new(),
            free: Vec::new(),
            ended: VecDeque::new(),
            wheel: TimerWheel::new(),
            agenda: TimerHeap::new(),
            schedule,
            outbox: ScenarioOutbox::default(),
            statistics,
            effects: Vec::new(),
            recordings,
            sounds,
            connections: BTreeMap::new(),
            next_connection: SHARED.0 + 1,
            state: GeneratorState::New,
            initialised: false,
            fatal: None,
            heard: false,
            absent: None,
            started: Vec::new(),
            // The users of the threads are others, with lines and variables of their own.
            idle_users: (0..users)
                .rev()
                .map(|user| user * threads + index)
                .collect(),
            next_number: index + 1,
            lingering: 0,
            stopping: false,
            stopped: false,
            echoing: settings.echo,
            echoes: BTreeMap::new(),
            patterns: BTreeMap::new(),
            context: Context::new(settings, files, &program.variables, entropy),
            program: Arc::new(program),
        }
    }

    /// Whether its sockets are open.
    pub fn is_ready(&self) -> bool {
        self.state == GeneratorState::Ready
    }

    /// The error that prevents it from working, if any.
    pub fn fatal(&self) -> Option<&str> {
        self.fatal.as_deref()
    }

    /// The peer whose port is closed, if it never sent a message: the plan cannot succeed.
    pub fn absent(&self) -> Option<SocketAddr> {
        self.absent
    }

    /// The local address, once the sockets are open.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.context.settings.local.ip(), self.context.local_port)
    }

    /// Its settings.
    pub fn settings(&self) -> &ScenarioSettings {
        &self.context.settings
    }

    /// The scenario.
    pub fn program(&self) -> &ScenarioProgram {
        &self.program
    }

    /// Figures so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Effects since the last call of this method.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Records the lateness of the calls started since the last time, as completed at `now`.
    pub fn settle(&mut self, now: Time) {
        for due in self.started.drain(..) {
            self.statistics.late_by(now.since(due.at), due.held_back);
        }
    }

    /// Whether the plan is complete. That of a server without a number of calls and a duration never is.
    pub fn is_done(&self) -> bool {
        if self.fatal.is_some() || self.stopped {
            return true;
        }
        let idle = self.statistics.open == 0 && self.lingering == 0;
        let from_outside = self.program.server || self.context.settings.users > 0;
        let ended = match from_outside {
            true => !self.schedule.may_make(),
            false => self.schedule.is_over(),
        };
        self.state == GeneratorState::Ready && idle && (ended || self.stopping)
    }

    /// Starts and accepts no further calls; open calls continue.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.schedule.stop();
    }

    /// Ends open calls as unfinished, with BYE or CANCEL: the peer would keep them.
    pub fn end(&mut self, now: Time) {
        self.stop();
        for slot in 0..self.calls.len() {
            match self.calls.get(slot).map(|call| call.phase) {
                None | Some(ScenarioCallPhase::Free) => {}
                Some(ScenarioCallPhase::Lingering) => self.release(slot, now),
                Some(_) => self.abort(slot, CallFailure::Stopped, now),
            }
        }
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        if self.effects.len() < MAX_EFFECTS {
            self.effects.push(effect);
        }
    }

    fn open(&mut self) {
        let settings = &self.context.settings;
        let mut opening = 0;
        let mut open = |kind, socket, local| {
            self.outbox
                .items
                .push_back(ScenarioOutput::Open(socket, kind, local));
            opening += 1;
        };
        let shared = self.program.server || !settings.per_call;
        match settings.transport {
            Transport::Udp if shared => open(SocketKind::UdpSignalling, MAIN, settings.local),
            Transport::Udp => {}
            stream if self.program.server => {
                open(SocketKind::signalling(stream), MAIN, settings.local);
            }
            _ => {}
        }
        if self.program.media || settings.echo {
            for (socket, offset) in [(AUDIO, 0), (VIDEO, 2)] {
                let port = settings.media_port.saturating_add(offset);
                open(
                    SocketKind::UdpMedia,
                    socket,
                    SocketAddr::new(settings.media_ip, port),
                );
            }
        }
        if settings.transport.is_reliable() && shared && !self.program.server {
            self.connect_shared();
            opening += 1;
        }
        self.state = GeneratorState::Opening(opening);
        self.socket_opened(0);
    }

    fn connect_shared(&mut self) {
        let settings = &self.context.settings;
        if let Some(remote) = settings.send_to.or(settings.remote) {
            let local = settings.local;
            self.connect(SHARED, local, remote, None);
        }
    }

    pub(super) fn connect(
        &mut self,
        connection: ConnectionId,
        local: SocketAddr,
        remote: SocketAddr,
        call: Option<(u32, u32)>,
    ) {
        self.connections.insert(
            connection,
            ScenarioConnection {
                framer: StreamFramer::new(FrameLimits::default()),
                remote,
                call,
            },
        );
        self.outbox
            .items
            .push_back(ScenarioOutput::Connect(connection, local, remote));
    }

    fn socket_opened(&mut self, count: usize) {
        if let GeneratorState::Opening(opening) = self.state {
            let left = opening.saturating_sub(count);
            self.state = GeneratorState::Opening(left);
            if left == 0 {
                self.state = GeneratorState::Ready;
                self.bind();
            }
        }
    }

    /// Resolves constants of the texts.
    fn bind(&mut self) {
        let settings = &self.context.settings;
        let fixed = settings
            .remote
            .filter(|_| !self.program.server && !self.program.redirects);
        let port = (!settings.per_call || self.program.server).then_some(self.context.local_port);
        let address = |address| {
            let mut out = Vec::new();
            ip(address, &mut out);
            out
        };
        let number = |number: i64| number.to_string().into_bytes();
        let kind = |v6: bool| if v6 { b"6".to_vec() } else { b"4".to_vec() };
        let value = |piece: &TextPiece| match piece {
            TextPiece::Constant(constant, offset) => Some(match constant {
                Constant::Service => settings.service.clone().into_bytes(),
                Constant::RemoteHost => settings.remote_host.clone().into_bytes(),
                Constant::Transport => settings.transport.via_name().as_bytes().to_vec(),
                Constant::LocalIp => address(settings.local.ip()),
                Constant::LocalIpType => kind(settings.local.is_ipv6()),
                // In a session description an IPv6 address has no brackets.
                Constant::MediaIp => settings.media_ip.to_string().into_bytes(),
                Constant::MediaIpType => kind(settings.media_ip.is_ipv6()),
                Constant::MediaPort => number(i64::from(settings.media_port) + offset),
                Constant::Pid => number(i64::from(settings.pid)),
                Constant::Version => concat!("Hornwork-", env!("CARGO_PKG_VERSION")).into(),
                Constant::Users => number(settings.users as i64),
            }),
            TextPiece::RemoteIp => fixed.map(|remote| address(remote.ip())),
            TextPiece::RemotePort(offset) => {
                fixed.map(|remote| number(i64::from(remote.port()) + offset))
            }
            TextPiece::LocalPort(offset) => port.map(|port| number(i64::from(port) + offset)),
            _ => None,
        };
        let mut program = ScenarioProgram::clone(&self.program);
        for step in program.steps.iter_mut().chain(&mut program.init) {
            if let StepKind::Send(send) = &mut step.kind {
                send.text.bind(&value);
            }
            for action in &mut step.actions {
                action.each_text_mut(&mut |text| text.bind(&value));
            }
        }
        self.program = Arc::new(program);
    }

    /// Starts the calls that are due.
    fn start_due(&mut self, now: Time) {
        if self.state != GeneratorState::Ready || now < self.context.settings.start {
            return;
        }
        if self.context.settings.users > 0 {
            self.start_users(now);
            return;
        }
        for _ in 0..MAX_STARTS {
            let Some(due) = self.schedule.pop(now, self.statistics.open) else {
                return;
            };
            self.start(due, None, now);
        }
    }

    fn start_users(&mut self, now: Time) {
        for _ in 0..MAX_STARTS {
            if self.stopping || !self.schedule.may_make() {
                return;
            }
            let Some(user) = self.idle_users.pop() else {
                return;
            };
            self.schedule.count();
            let due = DueCall {
                at: now,
                held_back: false,
            };
            self.start(due, Some(user), now);
        }
    }

    /// Allocates a slot for a call, with its number and its injection lines.
    fn allocate(&mut self, due: DueCall, user: Option<u64>, now: Time) -> Option<usize> {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None if self.calls.len() < self.context.settings.room => {
                self.calls.push(ScenarioCall::new());
                self.calls.len() - 1
            }
            None => return None,
        };
        let context = &mut self.context;
        let call = self.calls.get_mut(slot)?;
        let (_, threads) = context.settings.share;
        call.number = self.next_number;
        self.next_number += threads;
        call.due = due;
        call.started = now;
        call.user = user;
        call.phase = ScenarioCallPhase::Receiving;
        call.cseq = context.settings.base_cseq.saturating_sub(1);
        // A late generator is part of the response times; the limit that the user has set is not.
        let begin = match due.held_back {
            true => now,
            false => due.at.min(now),
        };
        call.timers.resize(self.program.timers.len(), begin);
        call.branches
            .resize(self.program.transactions.len(), Vec::new());
        // Calls count from 1, injection lines from 0.
        let number = call.number - 1;
        for file in &context.files {
            call.lines
                .push(file.choose(number, user, &mut context.entropy));
        }
        if let Some(remote) = context.settings.remote {
            call.remote = remote;
        }
        self.statistics.call_started();
        Some(slot)
    }

    /// Starts an outgoing call.
    fn start(&mut self, due: DueCall, user: Option<u64>, now: Time) {
        let Some(slot) = self.allocate(due, user, now) else {
            self.statistics.no_room += 1;
            self.idle_users.extend(user);
            return;
        };
        match self.context.settings.at_once {
            true => self.statistics.late_by(now.since(due.at), due.held_back),
            false => self.started.push(due),
        }
        let call = &mut self.calls[slot];
        let settings = &self.context.settings;
        let number = call.number;
        call_id(settings, number, &mut call.id);
        let id: Box<[u8]> = call.id.as_slice().into();
        if self.by_id.insert(id, slot as u32).is_err() {
            self.statistics.no_room += 1;
            self.fail(slot, CallFailure::Connection, now);
            return;
        }
        let remote = settings.send_to.unwrap_or(call.remote);
        let local = settings.local;
        match (settings.transport, settings.per_call) {
            (Transport::Udp, false) => call.route = PeerRoute::Udp(MAIN, remote),
            (Transport::Udp, true) => {
                let socket = SocketId(FIRST_CALL_SOCKET + slot as u32);
                call.route = PeerRoute::Udp(socket, remote);
                call.phase = ScenarioCallPhase::Opening;
                let local = SocketAddr::new(local.ip(), 0);
                self.outbox.items.push_back(ScenarioOutput::Open(
                    socket,
                    SocketKind::UdpSignalling,
                    local,
                ));
                return;
            }
            (_, false) => {
                call.route = PeerRoute::Stream(SHARED);
                if !self.connections.contains_key(&SHARED) {
                    self.connect_shared();
                }
            }
            (_, true) => {
                let connection = ConnectionId(self.next_connection);
                self.next_connection += 1;
                call.route = PeerRoute::Stream(connection);
                call.phase = ScenarioCallPhase::Opening;
                let owner = Some((slot as u32, call.generation));
                if let Some(StepKind::Send(send)) =
                    self.program.steps.first().map(|step| &step.kind)
                    && let Some(limit) = send.timeout
                {
                    let alarm = CallTimer::Wait(slot as u32, call.generation);
                    call.wait = Some(self.wheel.schedule(now + limit, alarm));
                }
                self.connect(connection, SocketAddr::new(local.ip(), 0), remote, owner);
                return;
            }
        }
        self.run(slot, now);
    }

    /// Accepts a call that the peer starts.
    pub(super) fn accept(&mut self, id: &[u8], now: Time) -> Option<usize> {
        if self.stopping || !self.schedule.may_make() {
            return None;
        }
        let due = DueCall {
            at: now,
            held_back: false,
        };
        let Some(slot) = self.allocate(due, None, now) else {
            self.statistics.no_room += 1;
            return None;
        };
        self.schedule.count();
        self.calls[slot].id.extend_from_slice(id);
        if self.by_id.insert(id.into(), slot as u32).is_err() {
            self.statistics.no_room += 1;
            self.fail(slot, CallFailure::Connection, now);
            return None;
        }
        Some(slot)
    }

    /// The call with this Call-ID; `Err` for one that has ended.
    pub(super) fn find(&self, id: &[u8]) -> Option<Result<usize, ()>> {
        match *self.by_id.get(id)? {
            u32::MAX => Some(Err(())),
            slot => Some(Ok(slot as usize)),
        }
    }

    /// Frees a call's slot. The call must have been counted as ended before.
    pub(super) fn release(&mut self, slot: usize, now: Time) {
        self.release_media(slot);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.phase == ScenarioCallPhase::Lingering {
            self.lingering -= 1;
        }
        for timer in [call.wait.take(), call.sent.timer.take()]
            .into_iter()
            .flatten()
        {
            self.wheel.cancel(timer);
        }
        self.by_id.remove(call.id.as_slice());
        // A late message of an ended call must not start another one.
        let remember = self.context.settings.remember;
        if self.program.server && !remember.is_zero() {
            let id: Box<[u8]> = call.id.as_slice().into();
            if self.by_id.insert(id.clone(), u32::MAX).is_ok() {
                self.ended.push_back((now + remember, id));
            }
        }
        // Shared and accepted connections outlive the call.
        match call.route {
            PeerRoute::Udp(socket, _) if socket.0 >= FIRST_CALL_SOCKET => {
                self.outbox.items.push_back(ScenarioOutput::Shut(socket));
            }
            PeerRoute::Stream(connection)
                if connection != SHARED && connection.0 & ConnectionId::ACCEPTED == 0 =>
            {
                self.connections.remove(&connection);
                self.outbox
                    .items
                    .push_back(ScenarioOutput::Close(connection));
            }
            _ => {}
        }
        self.idle_users.extend(call.user);
        call.reset();
        self.free.push(slot as u32);
    }

    fn expire_ended(&mut self, now: Time) {
        while self.ended.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, id)) = self.ended.pop_front()
                && self.by_id.get(&*id) == Some(&u32::MAX)
            {
                self.by_id.remove(&*id);
            }
        }
    }

    fn timeout(&mut self, now: Time) {
        self.start_due(now);
        while let Some(alarm) = self.wheel.pop_due(now) {
            match alarm {
                CallTimer::Wait(slot, generation) => {
                    if let Some(call) = self.calls.get_mut(slot as usize)
                        && call.generation == generation
                    {
                        call.wait = None;
                        self.wait_expired(slot as usize, now);
                    }
                }
                CallTimer::Retransmit(slot, generation) => {
                    if let Some(call) = self.calls.get_mut(slot as usize)
                        && call.generation == generation
                    {
                        call.sent.timer = None;
                        self.retransmit(slot as usize, now);
                    }
                }
            }
        }
        while let Some((_, (slot, generation))) = self.agenda.pop_due(now) {
            self.play(slot as usize, generation, now);
        }
        self.expire_ended(now);
        // An ended call may admit one that the limit delayed.
        self.start_due(now);
    }

    fn opened(&mut self, socket: SocketId, local: SocketAddr, now: Time) {
        if socket.0 >= FIRST_CALL_SOCKET {
            let slot = (socket.0 - FIRST_CALL_SOCKET) as usize;
            if let Some(call) = self.calls.get_mut(slot)
                && call.phase == ScenarioCallPhase::Opening
            {
                call.phase = ScenarioCallPhase::Receiving;
                call.local_port = Some(local.port());
                self.run(slot, now);
            }
            return;
        }
        if socket == MAIN {
            self.context.local_port = local.port();
        }
        self.socket_opened(1);
    }

    fn open_failed(&mut self, socket: SocketId, error: &str, now: Time) {
        if socket.0 >= FIRST_CALL_SOCKET {
            let slot = (socket.0 - FIRST_CALL_SOCKET) as usize;
            if self
                .calls
                .get(slot)
                .is_some_and(|call| call.phase == ScenarioCallPhase::Opening)
            {
                self.fail(slot, CallFailure::Connection, now);
            }
            return;
        }
        let purpose = match socket {
            MAIN => "signalling".to_owned(),
            _ => "media".to_owned(),
        };
        self.fatal = Some(format!(
            "the socket for {purpose} cannot be opened: {error}"
        ));
    }

    fn connected(&mut self, id: ConnectionId, local: SocketAddr, now: Time) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if id == SHARED {
            if self.state != GeneratorState::Ready {
                self.context.local_port = local.port();
                self.socket_opened(1);
            }
            return;
        }
        if let Some((slot, generation)) = connection.call
            && let Some(call) = self.calls.get_mut(slot as usize)
            && call.generation == generation
            && call.phase == ScenarioCallPhase::Opening
        {
            call.phase = ScenarioCallPhase::Receiving;
            call.local_port = Some(local.port());
            if let Some(timer) = call.wait.take() {
                self.wheel.cancel(timer);
            }
            self.run(slot as usize, now);
        }
    }

    fn closed(&mut self, id: ConnectionId, why: CloseReason, now: Time) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        if id == SHARED && self.state != GeneratorState::Ready {
            let why = match why {
                CloseReason::TlsFailed => ": TLS handshake failed",
                _ => "",
            };
            self.fatal = Some(format!("no connection to {}{why}", connection.remote));
            return;
        }
        if why == CloseReason::Engine {
            return;
        }
        let slots = match connection.call {
            Some((slot, _)) => slot as usize..slot as usize + 1,
            None => 0..self.calls.len(),
        };
        for slot in slots {
            let Some(call) = self.calls.get(slot) else {
                continue;
            };
            // For an incoming call the peer may open another connection; an outgoing one has lost its route.
            let lost = call.route == PeerRoute::Stream(id)
                && !matches!(
                    call.phase,
                    ScenarioCallPhase::Free | ScenarioCallPhase::Lingering
                )
                && !self.program.server;
            if lost {
                self.fail(slot, CallFailure::Connection, now);
            }
        }
    }

    fn stream(&mut self, id: ConnectionId, bytes: &[u8], now: Time) {
        let Some(mut connection) = self.connections.remove(&id) else {
            return;
        };
        connection.framer.push(bytes);
        let remote = connection.remote;
        let mut broken = false;
        while let Some(frame) = connection.framer.next() {
            match frame {
                StreamFrame::Message(message) => {
                    self.message(message, PeerRoute::Stream(id), remote, now, now);
                }
                StreamFrame::Ping => self.outbox.stream(id, StreamFramer::PONG),
                StreamFrame::Pong => {}
                StreamFrame::Unframed(..) | StreamFrame::Error(_) => {
                    self.statistics.garbage += 1;
                    broken = true;
                    break;
                }
            }
        }
        if broken {
            self.outbox.items.push_back(ScenarioOutput::Close(id));
        }
        // The message may have ended the call that owns the connection, and thus the connection.
        let needed = connection.call.is_none_or(|(slot, generation)| {
            let call = self.calls.get(slot as usize);
            call.is_some_and(|call| call.generation == generation)
        });
        if needed {
            self.connections.insert(id, connection);
        }
    }

    /// The remote address of a route.
    pub(super) fn peer_of(&self, route: PeerRoute) -> Option<SocketAddr> {
        match route {
            PeerRoute::Udp(_, peer) => Some(peer),
            PeerRoute::Stream(id) => self
                .connections
                .get(&id)
                .map(|connection| connection.remote),
        }
    }

    /// Redirects a call to another address.
    pub(super) fn redirect(&mut self, slot: usize, to: SocketAddr) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        call.remote = to;
        if let PeerRoute::Udp(_, peer) = &mut call.route {
            *peer = to;
        }
    }
}

impl ScenarioOutbox {
    /// Sends the bytes that were appended from `start` on.
    pub(super) fn send_from(&mut self, route: PeerRoute, start: usize) {
        let range = start..self.bytes.len();
        self.items.push_back(match route {
            PeerRoute::Udp(socket, to) => ScenarioOutput::Datagram(socket, to, range),
            PeerRoute::Stream(connection) => ScenarioOutput::Stream(connection, range),
        });
    }

    pub(super) fn send(&mut self, route: PeerRoute, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.send_from(route, start);
    }

    fn stream(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.send(PeerRoute::Stream(connection), bytes);
    }

    pub(super) fn close(&mut self, connection: ConnectionId) {
        self.items.push_back(ScenarioOutput::Close(connection));
    }
}

impl Engine for ScenarioGenerator {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        if self.outbox.items.is_empty() {
            self.outbox.bytes.clear();
        }
        if self.state == GeneratorState::New {
            self.open();
        }
        self.initialise(now);
        self.schedule.expire(now);
        match input {
            Input::Timeout => self.timeout(now),
            Input::Datagram(datagram) => match datagram.socket {
                AUDIO | VIDEO => self.media_received(&datagram),
                socket => self.message(
                    datagram.bytes,
                    PeerRoute::Udp(socket, datagram.source),
                    datagram.source,
                    datagram.arrived,
                    now,
                ),
            },
            Input::Opened { socket, local } => self.opened(socket, local, now),
            Input::OpenFailed { socket, error } => self.open_failed(socket, error, now),
            Input::Accepted {
                connection, remote, ..
            } => {
                self.connections.insert(
                    connection,
                    ScenarioConnection {
                        framer: StreamFramer::new(FrameLimits::default()),
                        remote,
                        call: None,
                    },
                );
            }
            Input::Connected { connection, local } => self.connected(connection, local, now),
            Input::Stream { connection, bytes } => self.stream(connection, bytes, now),
            Input::Closed {
                connection,
                reason: why,
            } => self.closed(connection, why, now),
            Input::Unreachable {
                destination, bytes, ..
            } => self.undelivered(destination, bytes, now),
            // The generator requests neither certificates nor socket filters, and records nothing.
            Input::Secured { .. }
            | Input::Shed { .. }
            | Input::RecordingFailed { .. }
            | Input::Handoff(_) => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        Some(match self.outbox.items.pop_front()? {
            ScenarioOutput::Open(socket, kind, local) => Output::OpenSocket {
                socket,
                kind,
                local,
            },
            ScenarioOutput::Shut(socket) => Output::CloseSocket { socket },
            ScenarioOutput::Datagram(socket, destination, range) => Output::Datagram {
                socket,
                destination,
                bytes: self.outbox.bytes.get(range).unwrap_or_default(),
            },
            ScenarioOutput::Connect(connection, local, remote) => Output::Connect {
                connection,
                local: Some(local),
                remote,
                tls: secure(&self.context.settings),
                websocket: false,
            },
            ScenarioOutput::Stream(connection, range) => Output::Stream {
                connection,
                bytes: self.outbox.bytes.get(range).unwrap_or_default(),
            },
            ScenarioOutput::Close(connection) => Output::Close { connection },
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        if self.state == GeneratorState::New {
            return Some(Deadline::new(Time::ZERO, "open"));
        }
        let mut next = None;
        let mut earlier = |at: Option<Time>, why| {
            next = Deadline::earlier(next, at.map(|at| Deadline::new(at, why)));
        };
        if self.state == GeneratorState::Ready {
            let start = self.context.settings.start;
            let due = self.schedule.next_at(self.statistics.open);
            earlier(due.map(|due| due.max(start)), "call");
            let users = self.context.settings.users > 0
                && !self.idle_users.is_empty()
                && !self.stopping
                && self.schedule.may_make();
            earlier(users.then_some(start), "user");
            earlier(self.schedule.expires_at(), "duration");
        }
        earlier(self.wheel.next_at(), "scenario");
        earlier(self.agenda.next_at(), "media");
        earlier(
            self.ended
                .front()
                .map(|(until, _)| *until + Duration::from_secs(1)),
            "forget",
        );
        next
    }
}
