//! Laboratory hosts: one SIP endpoint with its media, that calls, answers, registers and streams as planned.
//!
//! A host is an [`engine::Engine`]: `net` runs it on sockets, `sim` in virtual time. Whether it is a caller, a called side,
//! a set of phones or a small PBX is only its [`HostPlan`].

mod calls;
mod described;
mod live;
mod media;
mod names;
mod outbox;
mod plan;
mod ready;
mod record;
mod register;
mod sdp;
mod stream;
mod times;

pub use live::Live;
pub use media::{Heard, SentStream, StreamResult, Transit, Voice};
pub use plan::{
    AnswerPlan, CallFlow, CallPlan, HostPlan, Login, RegistrationPlan, Say, StreamPeer, StreamPlan,
};
pub use times::PacketTimes;

use crate::pace::Plan;
use crate::record::Attempt;
use calls::{Call, CallKey};
use described::Descriptions;
use engine::timers::Agenda;
use engine::{
    ConnectionId, Deadline, Drops, Engine, Entropy, Event, Input, Limits, Note, Output, SocketId,
    SocketKind, Time, Transport,
};
use media::MediaPlane;
use names::Names;
use outbox::Outbox;
use protect::digest::Server;
use record::Records;
use register::Registration;
use sip::{Endpoint, EndpointConfig, Flow, Indication, Local, LocalId, User};
use slab::Slab;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const UDP_SOCKET: SocketId = SocketId(0);
const STREAM_SOCKET: SocketId = SocketId(1);

/// What a host has done so far, for progress and for the end of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Attempts that were due.
    pub due: u64,
    /// Calls established so far, as caller or called side.
    pub established: u64,
    /// Calls up now, as caller or called side.
    pub up: u64,
    /// Attempts with a good outcome.
    pub good: u64,
    /// Attempts with any other outcome.
    pub failed: u64,
    /// Users registered now.
    pub registered: u64,
    /// From when on the subject's processor time counts; `None`: from the start.
    pub counts_from: Option<Time>,
    /// Media packets received.
    pub packets_in: u64,
    /// Media packets sent.
    pub packets_out: u64,
    /// Response times and streams so far.
    pub live: Live,
}

impl Progress {
    /// What two hosts have done together.
    pub fn and(&self, other: &Progress) -> Progress {
        Progress {
            due: self.due + other.due,
            established: self.established + other.established,
            up: self.up + other.up,
            good: self.good + other.good,
            failed: self.failed + other.failed,
            registered: self.registered + other.registered,
            counts_from: self.counts_from.max(other.counts_from),
            packets_in: self.packets_in + other.packets_in,
            packets_out: self.packets_out + other.packets_out,
            live: self.live.and(&other.live),
        }
    }
}

/// What a host still holds: zero when all is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Calls.
    pub calls: usize,
    /// Legs of the endpoint.
    pub legs: usize,
    /// Transactions of the endpoint; they outlive calls by 32 s.
    pub transactions: usize,
    /// Media sessions.
    pub sessions: usize,
}

/// Raw results of a host.
#[derive(Debug, Default)]
pub struct Results {
    /// One per attempt, in the order in which they ended.
    pub attempts: Vec<Attempt>,
    /// One per received stream.
    pub streams: Vec<StreamResult>,
}

/// What becomes due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    Ring(CallKey),
    Answer(CallKey),
    HangUp(CallKey),
    Cancel(CallKey),
    Hold(CallKey),
    Resume(CallKey),
    Reinvite(CallKey),
    Volte(CallKey),
    Refresh(u32),
    StreamEnd(u32),
}

/// A planned workload of calls with its arrivals.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) plan: Arc<CallPlan>,
    pub(crate) schedule: Option<Plan>,
    /// Calls that may not have an answer yet, and when they are given up: in that order, as all are given the same time.
    pub(crate) ringing: VecDeque<(Time, CallKey)>,
}

/// A laboratory host.
#[derive(Debug)]
pub struct Host {
    endpoint: Endpoint,
    inner: Inner,
}

/// Everything but the endpoint, which lends itself to its user.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) plan: HostPlan,
    pub(crate) entropy: Entropy,
    pub(crate) udp: LocalId,
    /// The listening point of streams; nobody listens there where they are WebSockets.
    pub(crate) stream: Option<(LocalId, Transport)>,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) stream_address: Option<SocketAddr>,
    /// Our host in Via and Contact over WebSocket (RFC 7118 section 5.1): nobody can connect to it.
    pub(crate) nowhere: String,
    /// Connections that take turns; empty where whatever connection stands will do.
    pub(crate) lines: Vec<ConnectionId>,
    pub(crate) target: Option<SocketAddr>,
    pub(crate) agenda: Agenda<Timer>,
    pub(crate) calls: Slab<Call>,
    pub(crate) generation: u32,
    pub(crate) waiting: VecDeque<CallKey>,
    pub(crate) media: MediaPlane,
    pub(crate) works: Vec<Work>,
    pub(crate) registrations: Vec<Registration>,
    /// Challenges registrations where the plan has passwords for them.
    pub(crate) authority: Option<Server>,
    pub(crate) registering: Option<Plan>,
    /// When what is dealt with now came.
    pub(crate) heard: Time,
    /// Whether anybody reads what is told of each attempt.
    pub(crate) events_wanted: bool,
    /// Registrations that wait for an answer.
    pub(crate) registering_waits: u64,
    /// Refreshes at a rate.
    pub(crate) cycling: Option<Plan>,
    /// Registrations are being taken back at the end of the trial.
    pub(crate) removing: bool,
    pub(crate) streaming: Option<Plan>,
    pub(crate) streams_open: Vec<(u32, Attempt)>,
    pub(crate) out: Outbox,
    pub(crate) attempts: Records,
    pub(crate) heard_streams: Vec<StreamResult>,
    /// Descriptions of calls without media.
    pub(crate) descriptions: Descriptions,
    pub(crate) names: Names,
    pub(crate) progress: Progress,
    pub(crate) answered: u64,
    pub(crate) fatal: Option<String>,
}

impl Host {
    /// A host; it opens its sockets with the first [`Engine::handle`], and does nothing else until [`Host::begin`].
    pub fn new(plan: HostPlan, mut entropy: Entropy) -> Host {
        let mut config = EndpointConfig {
            user_agent: format!("Hornwork-lab/{}", env!("CARGO_PKG_VERSION")),
            // Of a flood nearly every call waits for half a minute.
            limits: Limits {
                calls: 2_000_000,
                transactions: 8_000_000,
                ..Limits::default()
            },
            ..EndpointConfig::default()
        };
        if plan.is_volte() {
            config.supported.push("precondition".to_owned());
            // Nobody is alerted for a while: 100 goes out at once.
            config.timers.trying = Duration::ZERO;
        }
        config.opens_websockets = plan.stream.is_some_and(is_websocket);
        let calls = plan.calls.iter().map(|calls| calls.connections);
        let users = plan.registrations.iter().map(|users| users.connections);
        let lines = calls.chain(users).max().unwrap_or(0) as usize;
        config.limits.connections = config.limits.connections.max(lines + lines / 10 + 100);
        config.limits.connections_per_source = config.limits.connections;
        let mut endpoint = Endpoint::new(config, entropy.fork());
        let nowhere = format!("{:012x}.invalid", entropy.u64() >> 16);
        // INVITE and BYE, or a request and its repetition with credentials.
        let requests = plan.attempts_remembered * 2;
        let begins = !plan.calls.is_empty() || plan.registrations.is_some();
        match (begins, plan.answers.is_some() || plan.registrar) {
            (true, _) => endpoint.reserve(requests, 0),
            (false, true) => endpoint.reserve(0, requests),
            (false, false) => {}
        }
        let mut local = |socket, transport| {
            endpoint.add_local(Local {
                name: plan.name.clone(),
                socket,
                transport,
                address: plan.address,
                advertised: match is_websocket(transport) {
                    true => nowhere.clone(),
                    false => String::new(),
                },
            })
        };
        let udp = local(UDP_SOCKET, Transport::Udp);
        let stream = plan
            .stream
            .map(|transport| (local(STREAM_SOCKET, transport), transport));
        let mut out = Outbox::default();
        out.open(UDP_SOCKET, SocketKind::UdpSignalling, plan.address);
        let media = MediaPlane::new(&plan, entropy.fork(), &mut out);
        let authority = (plan.registrar && !plan.registrar_password.is_empty())
            .then(|| register::authority(&mut entropy));
        let works = plan
            .calls
            .iter()
            .map(|call| Work {
                plan: Arc::new(call.clone()),
                schedule: None,
                ringing: VecDeque::new(),
            })
            .collect();
        Host {
            endpoint,
            inner: Inner {
                udp,
                stream,
                address: None,
                stream_address: None,
                nowhere,
                lines: Vec::new(),
                target: None,
                agenda: Agenda::new(),
                calls: Slab::new(),
                generation: 0,
                waiting: VecDeque::new(),
                media,
                works,
                registrations: Vec::new(),
                authority,
                registering: None,
                heard: Time(0),
                events_wanted: true,
                registering_waits: 0,
                cycling: None,
                removing: false,
                streaming: None,
                streams_open: Vec::new(),
                out,
                attempts: Records::default(),
                heard_streams: Vec::new(),
                descriptions: Descriptions::default(),
                names: Names::default(),
                progress: Progress::default(),
                answered: 0,
                fatal: None,
                plan,
                entropy,
            },
        }
    }

    /// Whether the end of each attempt is told as an event, beside its record; it is unless this says otherwise.
    pub fn set_events_wanted(&mut self, wanted: bool) {
        self.inner.events_wanted = wanted;
    }

    /// Begins the planned work at `start`, towards `target` (the subject).
    pub fn begin(&mut self, target: SocketAddr, start: Time) {
        self.inner.draw_lines(&mut self.endpoint);
        self.inner.begin(target, start);
    }

    /// Whether its SIP sockets, and every media socket asked for beforehand, are open.
    pub fn is_ready(&self) -> bool {
        let inner = &self.inner;
        let listens = inner.listening_stream().is_some();
        let streams = !listens || inner.stream_address.is_some();
        inner.address.is_some() && streams && inner.media.is_ready()
    }

    /// The address of its SIP socket for datagrams, once it is open.
    pub fn address(&self) -> Option<SocketAddr> {
        self.inner.address
    }

    /// Where it takes streams, once it does.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        self.inner.stream_address
    }

    /// Why the host cannot work, where it cannot.
    pub fn fatal(&self) -> Option<&str> {
        self.inner.fatal.as_deref()
    }

    /// Whether all that was planned is over. A called side is never done by itself; it is idle.
    pub fn is_done(&self) -> bool {
        let inner = &self.inner;
        let done = |plan: &Option<Plan>| plan.as_ref().is_none_or(Plan::is_done);
        inner.calls.is_empty()
            && inner.works.iter().all(|work| done(&work.schedule))
            && done(&inner.registering)
            && done(&inner.cycling)
            && done(&inner.streaming)
    }

    /// Nothing new is started from now on.
    pub fn stop(&mut self) {
        self.inner.stop();
    }

    /// Takes registrations back that stand, at `now`; they are attempts of their own.
    pub fn deregister(&mut self, now: Time) {
        self.inner.deregister_all(&mut self.endpoint, now);
    }

    /// Ends what is still open as unfinished, and gives the raw results.
    pub fn finish(&mut self, now: Time) -> Results {
        self.inner.abandon(now);
        Results {
            attempts: self.inner.attempts.take(),
            streams: std::mem::take(&mut self.inner.heard_streams),
        }
    }

    /// Figures so far.
    pub fn progress(&self) -> Progress {
        let mut progress = self.inner.progress;
        (progress.packets_in, progress.packets_out) = self.inner.media.packets();
        progress
    }

    /// What is still held.
    pub fn holdings(&self) -> Holdings {
        let census = self.endpoint.census();
        Holdings {
            calls: self.inner.calls.len(),
            legs: census.legs,
            transactions: census.clients + census.servers,
            sessions: self.inner.media.sessions(),
        }
    }

    /// What the endpoint dropped.
    pub fn drops(&self) -> &Drops {
        self.endpoint.drops()
    }

    /// The most calls of one workload that were open at a time.
    pub fn peak_open(&self) -> u64 {
        let peaks = self
            .inner
            .works
            .iter()
            .filter_map(|work| work.schedule.as_ref());
        peaks.map(Plan::peak).max().unwrap_or(0)
    }

    fn opened(&mut self, socket: SocketId, local: SocketAddr, now: Time) {
        if self.inner.media.owns(socket) {
            self.inner
                .media_opened(&mut self.endpoint, socket, local, now);
            return;
        }
        if socket == UDP_SOCKET {
            self.inner.address = Some(local);
            if let Some(transport) = self.inner.listening_stream() {
                let asked = match transport {
                    // Certificates are found by the address that is asked for, so it is one that was known beforehand.
                    Transport::Tls => self.inner.plan.address,
                    // The listener takes the port that the datagram socket got.
                    _ => local,
                };
                let kind = SocketKind::signalling(transport);
                self.inner.out.open(STREAM_SOCKET, kind, asked);
            }
        } else {
            self.inner.stream_address = Some(local);
        }
        let input = Input::Opened { socket, local };
        self.endpoint.feed(input, now, &mut self.inner);
    }

    fn open_failed(&mut self, socket: SocketId, error: &str, now: Time) {
        if self.inner.media.owns(socket) {
            self.inner.media_failed(socket, error, now);
            return;
        }
        self.inner.fatal = Some(format!("{}: {error}", self.inner.plan.address));
        let input = Input::OpenFailed { socket, error };
        self.endpoint.feed(input, now, &mut self.inner);
    }
}

/// Whether there is a WebSocket in a transport.
pub(crate) fn is_websocket(transport: Transport) -> bool {
    matches!(transport, Transport::Ws | Transport::Wss)
}

impl Engine for Host {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.inner.out.recycle();
        // What lay in the socket while others were dealt with is not the subject's time.
        self.inner.heard = match &input {
            Input::Datagram(datagram) => datagram.arrived.min(now),
            _ => now,
        };
        match input {
            Input::Opened { socket, local } => self.opened(socket, local, now),
            Input::OpenFailed { socket, error } => self.open_failed(socket, error, now),
            Input::Datagram(datagram) if self.inner.media.owns(datagram.socket) => {
                self.inner.media.receive(datagram, &mut self.inner.out);
            }
            Input::Datagram(datagram) => {
                self.inner.note_trying(datagram.bytes);
                self.endpoint
                    .feed(Input::Datagram(datagram), now, &mut self.inner);
            }
            input => self.endpoint.feed(input, now, &mut self.inner),
        }
        self.inner.run_due(&mut self.endpoint, now);
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if self.inner.out.is_empty() {
            return self.endpoint.next_output();
        }
        self.inner.out.next()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        Deadline::earlier(self.endpoint.next_deadline(), self.inner.next_deadline())
    }
}

impl User for Inner {
    fn indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        match indication {
            Indication::OutOfDialog {
                transaction,
                request,
                ..
            } => self.answer_outside(endpoint, transaction, request, now),
            Indication::OutOfDialogResponse { user, response, .. } => {
                self.registration_answered(user, response, now);
            }
            Indication::OutOfDialogTimedOut { user, .. } => {
                self.registration_timed_out(user, now);
            }
            Indication::FlowFailed { .. } => {}
            other => self.call_indication(endpoint, other, now),
        }
    }
}

impl Inner {
    fn begin(&mut self, target: SocketAddr, start: Time) {
        self.target = Some(target);
        self.media.begin(start, self.plan.window);
        let share = self.plan.share;
        let mut common = self.plan.plan_seed.map(Entropy::from_number);
        let drawn = common.as_mut().unwrap_or(&mut self.entropy);
        for work in &mut self.works {
            work.schedule = Some(work.plan.schedule(start, drawn.fork(), share));
        }
        if let Some(plan) = &self.plan.registrations {
            let entropy = drawn.fork();
            self.registering = Some(plan.schedule(start, entropy.clone(), share));
            let cycles = plan.cycles(start, entropy, share);
            self.progress.counts_from = cycles.as_ref().map(|(begin, _)| *begin);
            self.cycling = cycles.map(|(_, plan)| plan);
        }
        if let Some(plan) = &self.plan.streams {
            self.streaming = Some(plan.schedule(start, self.entropy.fork()));
        }
    }

    fn stop(&mut self) {
        let schedules = self
            .works
            .iter_mut()
            .filter_map(|work| work.schedule.as_mut());
        for plan in schedules
            .chain(&mut self.registering)
            .chain(&mut self.cycling)
            .chain(&mut self.streaming)
        {
            plan.stop();
        }
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let arrivals = self
            .works
            .iter()
            .filter_map(|work| work.schedule.as_ref())
            .chain(&self.registering)
            .chain(&self.cycling)
            .chain(&self.streaming)
            .filter_map(Plan::next_at)
            .min()
            .map(|at| Deadline::new(self.together(at), "attempt due"));
        let given_up = self.works.iter().filter_map(|work| work.ringing.front());
        let given_up = given_up.map(|(at, _)| *at).min();
        let timer = self
            .agenda
            .next_at()
            .into_iter()
            .chain(given_up)
            .min()
            .map(|at| Deadline::new(self.together(at), "call timer"));
        Deadline::earlier(
            Deadline::earlier(arrivals, timer),
            self.media.next_deadline(),
        )
    }

    /// The end of the batch in which a time lies: what is due within one is begun together.
    fn together(&self, at: Time) -> Time {
        match self.plan.batch.as_nanos() as u64 {
            0 => at,
            batch => Time(at.0.div_ceil(batch).saturating_mul(batch)),
        }
    }

    fn run_due(&mut self, endpoint: &mut Endpoint, now: Time) {
        self.media.run_due(now, &mut self.out);
        while let Some((_, timer)) = self.agenda.pop_due(now) {
            self.timer(endpoint, timer, now);
        }
        self.end_ringing(endpoint, now);
        for index in 0..self.works.len() {
            while let Some(due) = self.works[index]
                .schedule
                .as_mut()
                .and_then(|schedule| schedule.pop_due(now))
            {
                self.progress.due += 1;
                self.start_call(endpoint, index, due, now);
            }
        }
        while let Some(due) = self.registering.as_mut().and_then(|plan| plan.pop_due(now)) {
            self.progress.due += 1;
            self.start_registration(endpoint, due, now);
        }
        while let Some(due) = self.cycling.as_mut().and_then(|plan| plan.pop_due(now)) {
            self.start_cycle(endpoint, due, now);
        }
        while let Some(due) = self.streaming.as_mut().and_then(|plan| plan.pop_due(now)) {
            self.progress.due += 1;
            self.start_stream(due, now);
        }
    }

    fn timer(&mut self, endpoint: &mut Endpoint, timer: Timer, now: Time) {
        match timer {
            Timer::Refresh(index) => self.refresh(endpoint, index, now),
            Timer::StreamEnd(session) => self.end_stream(session, now),
            Timer::Ring(key) => self.ring(endpoint, key, now),
            Timer::Answer(key) => self.answer(endpoint, key, now),
            Timer::HangUp(key) => self.hang_up(endpoint, key, now),
            Timer::Cancel(key) => self.cancel(endpoint, key, false, now),
            Timer::Hold(key) => self.put_on_hold(endpoint, key, true, now),
            Timer::Resume(key) => self.put_on_hold(endpoint, key, false, now),
            Timer::Reinvite(key) => self.reinvite(endpoint, key, now),
            Timer::Volte(key) => self.volte_due(endpoint, key, now),
        }
    }

    /// Over what streams are taken in.
    fn listening_stream(&self) -> Option<Transport> {
        let (_, transport) = self.stream?;
        (!is_websocket(transport)).then_some(transport)
    }

    /// The connections that take turns. A named peer stands for each: the endpoint opens one connection to each of them.
    fn draw_lines(&mut self, endpoint: &mut Endpoint) {
        let Some((_, transport)) = self.stream else {
            return;
        };
        let calls = self.works.iter().map(|work| work.plan.connections);
        let users = self.plan.registrations.iter().map(|plan| plan.connections);
        let most = calls.chain(users).max().unwrap_or(0);
        let name = match (transport, &self.plan.stream_peer) {
            (Transport::Tls | Transport::Wss, Some(peer)) => peer.name.clone(),
            (Transport::Tls | Transport::Wss, None) => return,
            // One connection to an address needs no name.
            _ if most <= 1 => return,
            _ => String::new(),
        };
        for number in 0..most.max(1) {
            match endpoint.peer(&name, &number.to_string()) {
                Ok(line) => self.lines.push(line),
                Err(refused) => self.fatal = Some(format!("{most} connections: {refused}")),
            }
        }
    }

    /// Where a request of the attempt or user `number` goes, where as many as `connections` take turns.
    pub(crate) fn flow(&self, transport: Transport, number: u64, connections: u32) -> Option<Flow> {
        let turn = number % u64::from(connections.max(1));
        let (local, remote) = match transport {
            Transport::Udp => (self.udp, self.target?),
            stream => {
                let (local, known) = self.stream?;
                let remote = match stream {
                    Transport::Tls | Transport::Ws | Transport::Wss => {
                        self.plan.stream_peer.as_ref()?.address
                    }
                    _ => self.target?,
                };
                (known == stream).then_some((local, remote))?
            }
        };
        Some(Flow {
            local,
            transport,
            remote,
            connection: match transport {
                Transport::Udp => None,
                _ => self.lines.get(turn as usize).copied(),
            },
        })
    }

    /// Our address as a Contact over `transport` has it; none over WebSocket.
    pub(crate) fn own_address(&self, transport: Transport) -> Option<SocketAddr> {
        match transport {
            Transport::Udp => self.address,
            _ => self.stream_address,
        }
    }

    /// The outcome of an attempt is known.
    pub(crate) fn record(&mut self, attempt: Attempt, now: Time) {
        if attempt.outcome.is_good() {
            self.progress.good += 1;
        } else {
            self.progress.failed += 1;
        }
        self.progress.live.attempt(&attempt);
        if self.events_wanted {
            self.out.event(Event::new(
                now,
                Note::AttemptEnded {
                    attempt: attempt.number,
                    kind: format!("{:?}", attempt.kind).to_lowercase(),
                    outcome: attempt.outcome.name().to_owned(),
                },
            ));
        }
        self.attempts.push(attempt);
    }
}
