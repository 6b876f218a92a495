//! The generator: an engine that plays a scenario for many calls.

use super::call::{Call, Phase, Route};
use super::inject::Injection;
use super::media::{Packing, Recording};
use super::program::{Kind, Program};
use super::render::{Context, ip};
use super::schedule::{Due, Schedule};
use super::settings::Settings;
use super::stats::{Failure, Statistics};
use super::template::{Constant, Piece};
use engine::timers::{Agenda, Wheel};
use engine::{
    BoundedMap, CloseWhy, ConnectionId, Deadline, Engine, Entropy, HashKey, Input, Output, Secure,
    SocketId, SocketKind, Time, Transport,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wire::sip::{Frame, FrameLimits, StreamFramer};

/// The socket for signalling.
pub(super) const MAIN: SocketId = SocketId(0);
/// The socket for audio.
pub(super) const AUDIO: SocketId = SocketId(1);
/// The socket for video.
pub(super) const VIDEO: SocketId = SocketId(2);
/// Sockets of calls begin here.
const OWN: u32 = 16;
/// The one connection of a client.
pub(super) const SHARED: ConnectionId = ConnectionId(1);
/// Calls begun in one go before the network has its turn.
const STARTS: usize = 256;
/// Effects kept until the program takes them.
const EFFECTS: usize = 100_000;

/// Something for the program to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A line of `<log>`.
    Log(Vec<u8>),
    /// A line of `<warning>`, or of what went wrong.
    Warning(String),
    /// A command of `<exec command=...>`.
    Command(Vec<u8>),
    /// A message, sent or received.
    Message {
        /// When.
        at: Time,
        /// Whether we sent it.
        sent: bool,
        /// The peer, where it is known.
        peer: Option<SocketAddr>,
        /// The message.
        bytes: Vec<u8>,
    },
}

#[derive(Debug)]
enum Item {
    Open(SocketId, SocketKind, SocketAddr),
    Shut(SocketId),
    Datagram(SocketId, SocketAddr, Range<usize>),
    Connect(ConnectionId, SocketAddr, SocketAddr),
    Stream(ConnectionId, Range<usize>),
    Close(ConnectionId),
}

/// Outputs in order; bytes lie in one buffer that is used again.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    items: VecDeque<Item>,
    pub(super) bytes: Vec<u8>,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Alarm {
    /// A pause is over, or a message did not come.
    Wait(u32, u32),
    /// A message is sent again.
    Retransmit(u32, u32),
}

#[derive(Debug)]
pub(super) struct Connection {
    framer: StreamFramer,
    remote: SocketAddr,
    /// The call whose own it is, with the generation of its place.
    call: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    New,
    /// So many sockets are not open yet.
    Opening(usize),
    Ready,
}

/// Plays a scenario.
#[derive(Debug)]
pub struct Generator {
    pub(super) program: Arc<Program>,
    pub(super) context: Context,
    pub(super) calls: Vec<Call>,
    pub(super) free: Vec<u32>,
    by_id: BoundedMap<Box<[u8]>, u32>,
    /// Calls that are over, with the time until which they are remembered.
    over: VecDeque<(Time, Box<[u8]>)>,
    pub(super) wheel: Wheel<Alarm>,
    pub(super) agenda: Agenda<(u32, u32)>,
    pub(super) schedule: Schedule,
    pub(super) outbox: Outbox,
    pub(super) statistics: Statistics,
    effects: Vec<Effect>,
    pub(super) recordings: Vec<Arc<Recording>>,
    pub(super) sounds: BTreeMap<(u16, Packing), Arc<Recording>>,
    pub(super) connections: BTreeMap<ConnectionId, Connection>,
    pub(super) next_connection: u64,
    pub(super) state: State,
    /// `<init>` was gone through.
    pub(super) initialised: bool,
    pub(super) fatal: Option<String>,
    /// Due times of the calls begun since they were last asked for.
    started: Vec<Due>,
    idle_users: Vec<u64>,
    /// Number of the next call.
    next_number: u64,
    /// Calls that linger.
    pub(super) lingering: u64,
    pub(super) stopping: bool,
    pub(super) stopped: bool,
    pub(super) echoing: bool,
    /// Where calls echo what comes from.
    pub(super) echoes: BTreeMap<SocketAddr, u32>,
}

/// What a generator is made of.
#[derive(Debug)]
pub struct Parts {
    /// The scenario.
    pub program: Program,
    /// Settings.
    pub settings: Settings,
    /// Injection files, in the order of the names that the program was compiled with.
    pub files: Vec<Injection>,
    /// Captures, in the order of [`Program::captures`].
    pub recordings: Vec<Arc<Recording>>,
    /// Sounds by their number in [`Program::sounds`] and packing.
    pub sounds: BTreeMap<(u16, Packing), Arc<Recording>>,
}

impl Generator {
    /// A generator that opens its sockets at the first call of [`Engine::handle`].
    pub fn new(parts: Parts, mut entropy: Entropy) -> Generator {
        let Parts {
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
                Schedule::none(super::schedule::Limits {
                    total: limits.total.map(part),
                    ..limits
                })
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
        Generator {
            by_id: BoundedMap::new(settings.room * 2, HashKey::new(&mut entropy)),
            calls: Vec::new(),
            free: Vec::new(),
            over: VecDeque::new(),
            wheel: Wheel::new(),
            agenda: Agenda::new(),
            schedule,
            outbox: Outbox::default(),
            statistics,
            effects: Vec::new(),
            recordings,
            sounds,
            connections: BTreeMap::new(),
            next_connection: SHARED.0 + 1,
            state: State::New,
            initialised: false,
            fatal: None,
            started: Vec::new(),
            idle_users: (0..users).rev().collect(),
            next_number: index + 1,
            lingering: 0,
            stopping: false,
            stopped: false,
            echoing: settings.echo,
            echoes: BTreeMap::new(),
            context: Context::new(settings, files, &program.variables, entropy),
            program: Arc::new(program),
        }
    }

    /// Its sockets are open.
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// Why it cannot work.
    pub fn fatal(&self) -> Option<&str> {
        self.fatal.as_deref()
    }

    /// Our address, once the sockets are open.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.context.settings.local.ip(), self.context.local_port)
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.context.settings
    }

    /// The scenario that it plays.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Figures so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// What the program has to do, since it was last asked.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The calls begun since the last time, seen as done at `now`: their lateness is noted.
    pub fn settle(&mut self, now: Time) {
        for due in self.started.drain(..) {
            self.statistics.late_by(now.since(due.at), due.held_back);
        }
    }

    /// Whether all that was planned is over. A server without a number of calls never is.
    pub fn is_done(&self) -> bool {
        if self.fatal.is_some() || self.stopped {
            return true;
        }
        let idle = self.statistics.open == 0 && self.lingering == 0;
        let from_outside = self.program.server || self.context.settings.users > 0;
        let over = match from_outside {
            true => !self.schedule.may_make(),
            false => self.schedule.is_over(),
        };
        self.state == State::Ready && idle && (over || self.stopping)
    }

    /// No further calls are made or taken; those that are open go on.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.schedule.stop();
    }

    /// Ends what is open as unfinished.
    pub fn end(&mut self, now: Time) {
        self.stop();
        for slot in 0..self.calls.len() {
            match self.calls.get(slot).map(|call| call.phase) {
                None | Some(Phase::Free) => {}
                Some(Phase::Lingering) => self.release(slot, now),
                Some(_) => self.fail(slot, Failure::Stopped, now),
            }
        }
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        if self.effects.len() < EFFECTS {
            self.effects.push(effect);
        }
    }

    fn open(&mut self) {
        let settings = &self.context.settings;
        let mut wanted = 0;
        let mut open = |kind, socket, local| {
            self.outbox.items.push_back(Item::Open(socket, kind, local));
            wanted += 1;
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
            wanted += 1;
        }
        self.state = State::Opening(wanted);
        self.one_open(0);
    }

    fn connect_shared(&mut self) {
        let settings = &self.context.settings;
        if let Some(remote) = settings.remote {
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
            Connection {
                framer: StreamFramer::new(FrameLimits::default()),
                remote,
                call,
            },
        );
        self.outbox
            .items
            .push_back(Item::Connect(connection, local, remote));
    }

    fn one_open(&mut self, count: usize) {
        if let State::Opening(wanted) = self.state {
            let left = wanted.saturating_sub(count);
            self.state = State::Opening(left);
            if left == 0 {
                self.state = State::Ready;
                self.bind();
            }
        }
    }

    /// Puts what is the same in all calls into the texts.
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
        let value = |piece: &Piece| match piece {
            Piece::Constant(constant, offset) => Some(match constant {
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
            Piece::RemoteIp => fixed.map(|remote| address(remote.ip())),
            Piece::RemotePort(offset) => {
                fixed.map(|remote| number(i64::from(remote.port()) + offset))
            }
            Piece::LocalPort(offset) => port.map(|port| number(i64::from(port) + offset)),
            _ => None,
        };
        let mut program = Program::clone(&self.program);
        for step in program.steps.iter_mut().chain(&mut program.init) {
            if let Kind::Send(send) = &mut step.kind {
                send.text.bind(&value);
            }
            for action in &mut step.actions {
                action.each_text_mut(&mut |text| text.bind(&value));
            }
        }
        self.program = Arc::new(program);
    }

    /// Begins the calls that are due.
    fn start_due(&mut self, now: Time) {
        if self.state != State::Ready || now < self.context.settings.start {
            return;
        }
        if self.context.settings.users > 0 {
            self.start_users(now);
            return;
        }
        for _ in 0..STARTS {
            let Some(due) = self.schedule.pop(now, self.statistics.open) else {
                return;
            };
            self.start(due, None, now);
        }
    }

    fn start_users(&mut self, now: Time) {
        for _ in 0..STARTS {
            if self.stopping || !self.schedule.may_make() {
                return;
            }
            let Some(user) = self.idle_users.pop() else {
                return;
            };
            self.schedule.count();
            let due = Due {
                at: now,
                held_back: false,
            };
            self.start(due, Some(user), now);
        }
    }

    /// A place for a call, with its number and its lines.
    fn place(&mut self, due: Due, user: Option<u64>, now: Time) -> Option<usize> {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None if self.calls.len() < self.context.settings.room => {
                self.calls.push(Call::new());
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
        call.begun = now;
        call.user = user;
        call.phase = Phase::Receiving;
        call.cseq = context.settings.base_cseq.saturating_sub(1);
        call.timers
            .resize(self.program.timers.len(), due.at.min(now));
        call.branches
            .resize(self.program.transactions.len(), Vec::new());
        let number = call.number - 1;
        for file in &context.files {
            call.lines
                .push(file.choose(number, user, &mut context.entropy));
        }
        if let Some(remote) = context.settings.remote {
            call.remote = remote;
        }
        self.statistics.begun();
        Some(slot)
    }

    /// Begins a call of ours.
    fn start(&mut self, due: Due, user: Option<u64>, now: Time) {
        let Some(slot) = self.place(due, user, now) else {
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
            self.fail(slot, Failure::Connection, now);
            return;
        }
        let remote = call.remote;
        let local = settings.local;
        match (settings.transport, settings.per_call) {
            (Transport::Udp, false) => call.route = Route::Udp(MAIN, remote),
            (Transport::Udp, true) => {
                let socket = SocketId(OWN + slot as u32);
                call.route = Route::Udp(socket, remote);
                call.phase = Phase::Opening;
                let local = SocketAddr::new(local.ip(), 0);
                self.outbox
                    .items
                    .push_back(Item::Open(socket, SocketKind::UdpSignalling, local));
                return;
            }
            (_, false) => {
                call.route = Route::Stream(SHARED);
                if !self.connections.contains_key(&SHARED) {
                    self.connect_shared();
                }
            }
            (_, true) => {
                let connection = ConnectionId(self.next_connection);
                self.next_connection += 1;
                call.route = Route::Stream(connection);
                call.phase = Phase::Opening;
                let owner = Some((slot as u32, call.generation));
                if let Some(Kind::Send(send)) = self.program.steps.first().map(|step| &step.kind)
                    && let Some(limit) = send.timeout
                {
                    let alarm = Alarm::Wait(slot as u32, call.generation);
                    call.wait = Some(self.wheel.schedule(now + limit, alarm));
                }
                self.connect(connection, SocketAddr::new(local.ip(), 0), remote, owner);
                return;
            }
        }
        self.run(slot, now);
    }

    /// A call that the peer begins.
    pub(super) fn take(&mut self, id: &[u8], now: Time) -> Option<usize> {
        if self.stopping || !self.schedule.may_make() {
            return None;
        }
        let due = Due {
            at: now,
            held_back: false,
        };
        let Some(slot) = self.place(due, None, now) else {
            self.statistics.no_room += 1;
            return None;
        };
        self.schedule.count();
        self.calls[slot].id.extend_from_slice(id);
        if self.by_id.insert(id.into(), slot as u32).is_err() {
            self.statistics.no_room += 1;
            self.fail(slot, Failure::Connection, now);
            return None;
        }
        Some(slot)
    }

    /// The call with this Call-ID; `Err` for one that is over.
    pub(super) fn find(&self, id: &[u8]) -> Option<Result<usize, ()>> {
        match *self.by_id.get(id)? {
            u32::MAX => Some(Err(())),
            slot => Some(Ok(slot as usize)),
        }
    }

    /// Gives a call's place free. It must have been counted as ended before.
    pub(super) fn release(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.phase == Phase::Lingering {
            self.lingering -= 1;
        }
        for timer in [call.wait.take(), call.sent.timer.take()]
            .into_iter()
            .flatten()
        {
            self.wheel.cancel(timer);
        }
        self.by_id.remove(call.id.as_slice());
        let remember = self.context.settings.remember;
        if self.program.server && !remember.is_zero() {
            let id: Box<[u8]> = call.id.as_slice().into();
            if self.by_id.insert(id.clone(), u32::MAX).is_ok() {
                self.over.push_back((now + remember, id));
            }
        }
        for video in [false, true] {
            if let Some(address) = call.media.of(video)
                && call.media.echo[usize::from(video)]
            {
                self.echoes.remove(&address);
            }
        }
        match call.route {
            Route::Udp(socket, _) if socket.0 >= OWN => {
                self.outbox.items.push_back(Item::Shut(socket));
            }
            Route::Stream(connection)
                if connection != SHARED && connection.0 & ConnectionId::ACCEPTED == 0 =>
            {
                self.connections.remove(&connection);
                self.outbox.items.push_back(Item::Close(connection));
            }
            _ => {}
        }
        self.idle_users.extend(call.user);
        call.reset();
        self.free.push(slot as u32);
    }

    fn forget(&mut self, now: Time) {
        while self.over.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, id)) = self.over.pop_front()
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
                Alarm::Wait(slot, generation) => {
                    if let Some(call) = self.calls.get_mut(slot as usize)
                        && call.generation == generation
                    {
                        call.wait = None;
                        self.waited(slot as usize, now);
                    }
                }
                Alarm::Retransmit(slot, generation) => {
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
        self.forget(now);
        // A call that ended made room for one that was held back.
        self.start_due(now);
    }

    fn opened(&mut self, socket: SocketId, local: SocketAddr, now: Time) {
        if socket.0 >= OWN {
            let slot = (socket.0 - OWN) as usize;
            if let Some(call) = self.calls.get_mut(slot)
                && call.phase == Phase::Opening
            {
                call.phase = Phase::Receiving;
                call.local_port = Some(local.port());
                self.run(slot, now);
            }
            return;
        }
        if socket == MAIN {
            self.context.local_port = local.port();
        }
        self.one_open(1);
    }

    fn open_failed(&mut self, socket: SocketId, error: &str, now: Time) {
        if socket.0 >= OWN {
            let slot = (socket.0 - OWN) as usize;
            if self
                .calls
                .get(slot)
                .is_some_and(|call| call.phase == Phase::Opening)
            {
                self.fail(slot, Failure::Connection, now);
            }
            return;
        }
        let what = match socket {
            MAIN => "signalling".to_owned(),
            _ => "media".to_owned(),
        };
        self.fatal = Some(format!("the socket for {what} cannot be opened: {error}"));
    }

    fn connected(&mut self, id: ConnectionId, local: SocketAddr, now: Time) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if id == SHARED {
            if self.state != State::Ready {
                self.context.local_port = local.port();
                self.one_open(1);
            }
            return;
        }
        if let Some((slot, generation)) = connection.call
            && let Some(call) = self.calls.get_mut(slot as usize)
            && call.generation == generation
            && call.phase == Phase::Opening
        {
            call.phase = Phase::Receiving;
            call.local_port = Some(local.port());
            if let Some(timer) = call.wait.take() {
                self.wheel.cancel(timer);
            }
            self.run(slot as usize, now);
        }
    }

    fn closed(&mut self, id: ConnectionId, why: CloseWhy, now: Time) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        if id == SHARED && self.state != State::Ready {
            let why = match why {
                CloseWhy::Untrusted => ": TLS came to nothing",
                _ => "",
            };
            self.fatal = Some(format!("no connection to {}{why}", connection.remote));
            return;
        }
        if why == CloseWhy::Engine {
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
            // A call that the peer began may come by another connection yet; one of ours has lost its way.
            let lost = call.route == Route::Stream(id)
                && !matches!(call.phase, Phase::Free | Phase::Lingering)
                && !self.program.server;
            if lost {
                self.fail(slot, Failure::Connection, now);
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
                Frame::Message(message) => {
                    self.message(message, Route::Stream(id), remote, now, now);
                }
                Frame::Ping => self.outbox.stream(id, StreamFramer::PONG),
                Frame::Pong => {}
                Frame::Unframed(..) | Frame::Error(_) => {
                    self.statistics.garbage += 1;
                    broken = true;
                    break;
                }
            }
        }
        if broken {
            self.outbox.items.push_back(Item::Close(id));
        }
        // A call of its own may have ended with this message, and its connection with it.
        let needed = connection.call.is_none_or(|(slot, generation)| {
            let call = self.calls.get(slot as usize);
            call.is_some_and(|call| call.generation == generation)
        });
        if needed {
            self.connections.insert(id, connection);
        }
    }

    /// Where a connection leads.
    pub(super) fn peer_of(&self, route: Route) -> Option<SocketAddr> {
        match route {
            Route::Udp(_, peer) => Some(peer),
            Route::Stream(id) => self
                .connections
                .get(&id)
                .map(|connection| connection.remote),
        }
    }

    /// Sends a call to another address from now on.
    pub(super) fn redirect(&mut self, slot: usize, to: SocketAddr) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        call.remote = to;
        if let Route::Udp(_, peer) = &mut call.route {
            *peer = to;
        }
    }
}

/// What protects a connection that we open.
fn secure(settings: &Settings) -> Option<Secure<'_>> {
    (settings.transport == Transport::Tls).then_some(Secure {
        name: &settings.peer_name,
        profile: "",
    })
}

/// The Call-ID of a call of ours.
fn call_id(settings: &Settings, number: u64, out: &mut Vec<u8>) {
    let mut characters = settings.call_id.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        match characters.next() {
            Some('u') => super::render::decimal(number, out),
            Some('p') => super::render::decimal(u64::from(settings.pid), out),
            Some('s') => match settings.local.ip() {
                std::net::IpAddr::V4(_) => ip(settings.local.ip(), out),
                std::net::IpAddr::V6(v6) => out.extend_from_slice(v6.to_string().as_bytes()),
            },
            Some('%') | None => out.push(b'%'),
            Some(other) => {
                out.push(b'%');
                out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
}

impl Outbox {
    /// Sends what was appended to `bytes` from `start` on.
    pub(super) fn send_from(&mut self, route: Route, start: usize) {
        let range = start..self.bytes.len();
        self.items.push_back(match route {
            Route::Udp(socket, to) => Item::Datagram(socket, to, range),
            Route::Stream(connection) => Item::Stream(connection, range),
        });
    }

    pub(super) fn send(&mut self, route: Route, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.send_from(route, start);
    }

    fn stream(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.send(Route::Stream(connection), bytes);
    }

    pub(super) fn close(&mut self, connection: ConnectionId) {
        self.items.push_back(Item::Close(connection));
    }
}

impl Engine for Generator {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        if self.outbox.items.is_empty() {
            self.outbox.bytes.clear();
        }
        if self.state == State::New {
            self.open();
        }
        self.initialise(now);
        match input {
            Input::Timeout => self.timeout(now),
            Input::Datagram(datagram) => match datagram.socket {
                AUDIO | VIDEO => self.heard(&datagram),
                socket => self.message(
                    datagram.bytes,
                    Route::Udp(socket, datagram.source),
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
                    Connection {
                        framer: StreamFramer::new(FrameLimits::default()),
                        remote,
                        call: None,
                    },
                );
            }
            Input::Connected { connection, local } => self.connected(connection, local, now),
            Input::Stream { connection, bytes } => self.stream(connection, bytes, now),
            Input::Closed { connection, why } => self.closed(connection, why, now),
            // Neither whom a certificate stands for nor a sieve nor the network's word of what it could not deliver is asked for.
            Input::Secured { .. }
            | Input::Unreachable { .. }
            | Input::Sifted { .. }
            | Input::Handed(_) => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        Some(match self.outbox.items.pop_front()? {
            Item::Open(socket, kind, local) => Output::Open {
                socket,
                kind,
                local,
            },
            Item::Shut(socket) => Output::Shut { socket },
            Item::Datagram(socket, destination, range) => Output::Datagram {
                socket,
                destination,
                bytes: self.outbox.bytes.get(range).unwrap_or_default(),
            },
            Item::Connect(connection, local, remote) => Output::Connect {
                connection,
                local: Some(local),
                remote,
                secure: secure(&self.context.settings),
                websocket: false,
            },
            Item::Stream(connection, range) => Output::Stream {
                connection,
                bytes: self.outbox.bytes.get(range).unwrap_or_default(),
            },
            Item::Close(connection) => Output::Close { connection },
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        if self.state == State::New {
            return Some(Deadline::new(Time::ZERO, "open"));
        }
        let mut next = None;
        let mut earlier = |at: Option<Time>, why| {
            next = Deadline::earlier(next, at.map(|at| Deadline::new(at, why)));
        };
        if self.state == State::Ready {
            let start = self.context.settings.start;
            let due = self.schedule.next_at(self.statistics.open);
            earlier(due.map(|due| due.max(start)), "call");
            let users = self.context.settings.users > 0
                && !self.idle_users.is_empty()
                && !self.stopping
                && self.schedule.may_make();
            earlier(users.then_some(start), "user");
        }
        earlier(self.wheel.next_at(), "scenario");
        earlier(self.agenda.next_at(), "media");
        earlier(
            self.over
                .front()
                .map(|(until, _)| *until + Duration::from_secs(1)),
            "forget",
        );
        next
    }
}
