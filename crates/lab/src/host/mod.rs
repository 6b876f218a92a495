//! Hosts of the test lab: one SIP endpoint with its media, which calls, answers, registers and streams by its plan.
//!
//! A host is an [`engine::Engine`]: `net` runs it on sockets, `sim` in virtual time. Its [`HostPlan`] alone makes it a
//! caller, a called side, a set of phones or a small PBX.

mod calls;
mod description_cache;
mod live;
mod loss_by_second;
mod media;
mod names;
mod outbox;
mod packet_times;
mod phone;
mod phone_commands;
#[cfg(test)]
mod phone_tests;
mod plan;
mod record;
mod register;
mod rtcp;
mod sdp;
mod send_times;
mod sounds;
mod stream;

pub use live::LiveFigures;
pub use media::{DueMedia, ReceivedSpeech, SentStream, StreamResult, VoiceSide};
pub(crate) use packet_times::media_ns;
pub use packet_times::{PacketTimes, Transit};
pub use phone::{PhoneAudio, PhoneOccurrence, PhonePlan, PhoneRefusal, SrtpUse};
pub use plan::{
    AnswerPlan, CallFlow, HostPlan, LoginTemplates, MediaKind, OutgoingCallPlan, RegistrationPlan,
    StreamPeer, StreamPlan,
};
pub use send_times::SendTimes;

use crate::pace::AttemptSchedule;
use crate::record::{Attempt, SocketShortage};
use calls::{HostCall, HostCallKey};
use description_cache::DescriptionCache;
use engine::PagedSlab;
use engine::timers::TimerHeap;
use engine::{
    ConnectionId, Datagram, Deadline, Drops, Engine, Entropy, Event, EventKind, Input, Limits,
    Output, SocketId, SocketKind, Time, Transport,
};
use media::HostMedia;
use names::UriBuffers;
use outbox::HostOutbox;
use protect::digest::DigestServer;
use protect::esp::VoiceReceiver;
use record::AttemptRecords;
use register::UserRegistration;
use sip::{
    Endpoint, EndpointConfig, Flow, Handler, Indication, ListenerConfig, ListenerId, RequestOwner,
    ResponseMismatch,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const UDP_SOCKET: SocketId = SocketId(0);
const STREAM_SOCKET: SocketId = SocketId(1);

/// Counters of a host, for progress and for the end of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostProgress {
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
    /// Stream connections now.
    pub connections: u64,
    /// REGISTERs accepted so far, as registrar.
    pub accepted_registrations: u64,
    /// Time from which the CPU time of the SUT counts; `None`: from the start.
    pub counts_from: Option<Time>,
    /// Media packets received.
    pub packets_in: u64,
    /// Media packets sent.
    pub packets_out: u64,
    /// Response times and streams so far.
    pub live: LiveFigures,
}

impl HostProgress {
    /// The sum of the counters of two hosts.
    pub fn and(&self, other: &HostProgress) -> HostProgress {
        HostProgress {
            due: self.due + other.due,
            established: self.established + other.established,
            up: self.up + other.up,
            good: self.good + other.good,
            failed: self.failed + other.failed,
            registered: self.registered + other.registered,
            connections: self.connections + other.connections,
            accepted_registrations: self.accepted_registrations + other.accepted_registrations,
            counts_from: self.counts_from.max(other.counts_from),
            packets_in: self.packets_in + other.packets_in,
            packets_out: self.packets_out + other.packets_out,
            live: self.live.and(&other.live),
        }
    }
}

/// Objects that a host holds: zero at the end.
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
    /// One per attempt, in the order of their ends.
    pub attempts: Vec<Attempt>,
    /// One per received stream.
    pub streams: Vec<StreamResult>,
    /// Lateness of the sent packets, if it was recorded.
    pub send_times: SendTimes,
    /// Calls and streams for which there was no socket.
    pub shortage: Option<SocketShortage>,
    /// Responses with another Call-ID, CSeq or From tag than the request whose branch they had.
    pub mismatched: u64,
}

/// Timers of calls and streams.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostTimer {
    Ring(HostCallKey),
    Answer(HostCallKey),
    HangUp(HostCallKey),
    Cancel(HostCallKey),
    Hold(HostCallKey),
    Resume(HostCallKey),
    Reinvite(HostCallKey),
    Volte(HostCallKey),
    Refresh(u32),
    StreamEnd(u32),
}

/// A workload of calls with its arrivals.
#[derive(Debug)]
pub(crate) struct CallWorkload {
    pub(crate) plan: Arc<OutgoingCallPlan>,
    pub(crate) schedule: Option<AttemptSchedule>,
    /// Calls that may be unanswered, with their ringing deadlines; in order of time, as all have the same limit.
    pub(crate) ringing: VecDeque<(Time, HostCallKey)>,
}

/// A host of the test lab.
#[derive(Debug)]
pub struct LabHost {
    endpoint: Endpoint,
    inner: HostState,
}

/// The state except the endpoint, which passes itself to its handler.
#[derive(Debug)]
pub(crate) struct HostState {
    pub(crate) plan: HostPlan,
    pub(crate) entropy: Entropy,
    /// Random values of this run, from `plan.identity_seed`.
    pub(crate) identities: Option<Entropy>,
    pub(crate) udp: ListenerId,
    /// The listener of streams; for WebSockets it is not opened, as they are outgoing only.
    pub(crate) stream: Option<(ListenerId, Transport)>,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) stream_address: Option<SocketAddr>,
    /// Host part of Via and Contact over WebSocket (RFC 7118 section 5.1); it is not reachable.
    pub(crate) unreachable_host: String,
    /// Connections that are used in turn; empty if any open connection will do.
    pub(crate) shared_connections: Vec<ConnectionId>,
    pub(crate) target: Option<SocketAddr>,
    pub(crate) agenda: TimerHeap<HostTimer>,
    pub(crate) calls: PagedSlab<HostCall>,
    pub(crate) generation: u32,
    pub(crate) waiting_calls: VecDeque<HostCallKey>,
    pub(crate) media: HostMedia,
    pub(crate) call_workloads: Vec<CallWorkload>,
    pub(crate) registrations: Vec<UserRegistration>,
    /// Challenges registrations, if the plan has passwords for them.
    pub(crate) authority: Option<DigestServer>,
    pub(crate) registration_schedule: Option<AttemptSchedule>,
    /// Receive time of the current input.
    pub(crate) received_at: Time,
    /// Whether an event is emitted for each attempt.
    pub(crate) emits_events: bool,
    /// Registrations without an answer.
    pub(crate) unanswered_registrations: u64,
    /// Refreshes at a rate.
    pub(crate) refresh_schedule: Option<AttemptSchedule>,
    /// Whether bindings are being removed at the end of the trial.
    pub(crate) removing_bindings: bool,
    pub(crate) stream_schedule: Option<AttemptSchedule>,
    pub(crate) streams_open: Vec<(u32, Attempt)>,
    pub(crate) out: HostOutbox,
    pub(crate) attempts: AttemptRecords,
    pub(crate) received_streams: Vec<StreamResult>,
    /// Descriptions of calls without media.
    pub(crate) descriptions: DescriptionCache,
    pub(crate) names: UriBuffers,
    pub(crate) progress: HostProgress,
    pub(crate) answered: u64,
    /// Occurrences of a phone that were not read yet; a phone has one call at a time.
    pub(crate) phone_events: VecDeque<PhoneOccurrence>,
    pub(crate) fatal: Option<String>,
    /// Calls and streams for which there was no socket.
    pub(crate) shortage: Option<SocketShortage>,
    /// Responses whose fields were not those of their requests.
    mismatched: u64,
}

impl LabHost {
    /// A host; it opens its sockets with the first [`Engine::handle`] and is idle until [`LabHost::begin`].
    pub fn new(plan: HostPlan, mut entropy: Entropy) -> LabHost {
        let product = if plan.phone.is_some() { "phone" } else { "lab" };
        let mut config = EndpointConfig {
            user_agent: format!("Hornwork-{product}/{}", env!("CARGO_PKG_VERSION")),
            // In a flood nearly every call stays for half a minute.
            limits: Limits {
                calls: 2_000_000,
                transactions: 8_000_000,
                ..Limits::default()
            },
            ..EndpointConfig::default()
        };
        if plan.is_volte() {
            config.supported.push("precondition".to_owned());
            // The called side answers late: send 100 at once.
            config.timers.trying = Duration::ZERO;
        }
        if plan.phone.is_some() {
            // A phone has one call, and takes over no other.
            config.supported.retain(|tag| tag != "replaces");
        }
        config.opens_websockets = plan.stream.is_some_and(is_websocket);
        let connections = plan.stream_connections();
        config.limits.connections = config.limits.connections.max(connections);
        config.limits.connections_per_source = config.limits.connections;
        // The fork is taken in any case, so that the plan stays that of the seed.
        let planned = entropy.fork();
        let mut identities = plan.identity_seed.map(Entropy::from_number);
        let tags_and_branches = identities.as_mut().map(Entropy::fork);
        let mut endpoint = Endpoint::new(config, tags_and_branches.unwrap_or(planned));
        let unreachable_host = format!("{:012x}.invalid", entropy.u64() >> 16);
        let mut local = |socket, transport| {
            endpoint.add_listener(ListenerConfig {
                name: plan.name.clone(),
                socket,
                transport,
                address: plan.address,
                advertised: match is_websocket(transport) {
                    true => unreachable_host.clone(),
                    false => String::new(),
                },
            })
        };
        let udp = local(UDP_SOCKET, Transport::Udp);
        let stream = plan
            .stream
            .map(|transport| (local(STREAM_SOCKET, transport), transport));
        let mut out = HostOutbox::default();
        out.open(UDP_SOCKET, SocketKind::UdpSignalling, plan.address);
        let media = HostMedia::new(&plan, entropy.fork(), &mut out);
        let authority = (plan.registrar && !plan.registrar_password.is_empty())
            .then(|| register::authority(&mut entropy));
        let call_workloads = plan
            .calls
            .iter()
            .map(|call| CallWorkload {
                plan: Arc::new(call.clone()),
                schedule: None,
                ringing: VecDeque::new(),
            })
            .collect();
        LabHost {
            endpoint,
            inner: HostState {
                udp,
                stream,
                address: None,
                stream_address: None,
                unreachable_host,
                shared_connections: Vec::new(),
                target: None,
                agenda: TimerHeap::new(),
                calls: PagedSlab::new(),
                generation: 0,
                waiting_calls: VecDeque::new(),
                media,
                call_workloads,
                registrations: Vec::new(),
                authority,
                registration_schedule: None,
                received_at: Time(0),
                emits_events: true,
                unanswered_registrations: 0,
                refresh_schedule: None,
                removing_bindings: false,
                stream_schedule: None,
                streams_open: Vec::new(),
                out,
                attempts: AttemptRecords::default(),
                received_streams: Vec::new(),
                descriptions: DescriptionCache::default(),
                names: UriBuffers::default(),
                progress: HostProgress::default(),
                answered: 0,
                phone_events: VecDeque::new(),
                fatal: None,
                shortage: None,
                mismatched: 0,
                plan,
                entropy,
                identities,
            },
        }
    }

    /// Sets whether the end of each attempt is emitted as an event, beside its record (default: yes).
    pub fn set_emits_events(&mut self, wanted: bool) {
        self.inner.emits_events = wanted;
    }

    /// Records the lateness of sent RTP packets from now on, and leaves their clock to the driver
    /// ([`Engine::send_media`]): for drivers of sockets.
    pub fn record_send_times(&mut self) {
        self.inner.media.record_send_times();
    }

    /// Starts the planned work at `start`, towards `target` (the SUT).
    pub fn begin(&mut self, target: SocketAddr, start: Time) {
        self.inner.draw_connections(&mut self.endpoint);
        self.inner.begin(target, start);
    }

    /// Whether its SIP sockets and all media sockets requested in advance are open.
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

    /// The address of its listener for streams, once it is open.
    pub fn stream_address(&self) -> Option<SocketAddr> {
        self.inner.stream_address
    }

    /// The error that prevents the host from working, if any.
    pub fn fatal(&self) -> Option<&str> {
        self.inner.fatal.as_deref()
    }

    /// Whether the planned work is complete. A called side never ends by itself; it is idle.
    pub fn is_done(&self) -> bool {
        let inner = &self.inner;
        let done =
            |plan: &Option<AttemptSchedule>| plan.as_ref().is_none_or(AttemptSchedule::is_done);
        inner.calls.is_empty()
            && inner
                .call_workloads
                .iter()
                .all(|workload| done(&workload.schedule))
            && done(&inner.registration_schedule)
            && done(&inner.refresh_schedule)
            && done(&inner.stream_schedule)
    }

    /// Starts nothing new from now on.
    pub fn stop(&mut self) {
        self.inner.stop();
    }

    /// Removes existing bindings, from `now` on; each removal is an attempt.
    pub fn deregister(&mut self, now: Time) {
        self.inner.deregister_all(&mut self.endpoint, now);
    }

    /// Ends open attempts as unfinished, and returns the raw results.
    pub fn finish(&mut self, now: Time) -> Results {
        self.inner.abandon(now);
        Results {
            attempts: self.inner.attempts.take(),
            streams: std::mem::take(&mut self.inner.received_streams),
            send_times: std::mem::take(&mut self.inner.media.send_times),
            shortage: self.inner.shortage.take(),
            mismatched: self.inner.mismatched,
        }
    }

    /// Figures so far.
    pub fn progress(&self) -> HostProgress {
        let mut progress = self.inner.progress;
        (progress.packets_in, progress.packets_out) = self.inner.media.packets();
        progress.connections = self.endpoint.connections() as u64;
        progress
    }

    /// Objects that are still held.
    pub fn holdings(&self) -> Holdings {
        let census = self.endpoint.census();
        Holdings {
            calls: self.inner.calls.len(),
            legs: census.legs,
            transactions: census.clients + census.servers,
            sessions: self.inner.media.sessions(),
        }
    }

    /// Drop counters of the endpoint.
    pub fn drops(&self) -> &Drops {
        self.endpoint.drops()
    }

    /// The highest number of concurrent calls of one workload.
    pub fn peak_open(&self) -> u64 {
        let peaks = self
            .inner
            .call_workloads
            .iter()
            .filter_map(|workload| workload.schedule.as_ref());
        peaks.map(AttemptSchedule::peak).max().unwrap_or(0)
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
                    // Certificates are selected by the requested address, so it has to be the planned one.
                    Transport::Tls => self.inner.plan.address,
                    // The listener uses the port of the datagram socket.
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
            self.inner
                .media_failed(&mut self.endpoint, socket, error, now);
            return;
        }
        self.inner.fatal = Some(format!("{}: {error}", self.inner.plan.address));
        let input = Input::OpenFailed { socket, error };
        self.endpoint.feed(input, now, &mut self.inner);
    }
}

/// Whether the transport uses WebSocket.
pub(crate) fn is_websocket(transport: Transport) -> bool {
    matches!(transport, Transport::Ws | Transport::Wss)
}

impl VoiceReceiver for LabHost {
    /// Without the layers between: no other part of the host is called.
    fn receive_voice(&mut self, packet: Datagram<'_>, _now: Time) {
        self.inner.out.recycle();
        if self.inner.media.owns(packet.socket) {
            self.inner.media.receive(packet, &mut self.inner.out);
        }
    }
}

impl Engine for LabHost {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.inner.out.recycle();
        // Waiting time in the socket, while other datagrams were processed, is not response time of the SUT.
        self.inner.received_at = match &input {
            Input::Datagram(datagram) => datagram.arrived.min(now),
            _ => now,
        };
        match input {
            Input::Opened { socket, local } => self.opened(socket, local, now),
            Input::OpenFailed { socket, error } => self.open_failed(socket, error, now),
            Input::Datagram(datagram) if self.inner.media.owns(datagram.socket) => {
                self.inner.media.receive(datagram, &mut self.inner.out);
            }
            // RTCP goes to the port above that of RTP (RFC 3550 section 11). A load caller opens no socket there, and
            // the kernel may have chosen this port for SIP.
            Input::Datagram(datagram) if wire::rtcp::is_rtcp(datagram.bytes) => {}
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

    fn media_deadline(&self) -> Option<Time> {
        self.inner.media.packet_deadline()
    }

    fn send_media(&mut self, now: Time) {
        self.inner.out.recycle();
        self.inner.media.send_batch(now, &mut self.inner.out);
    }

    fn flushed(&mut self, now: Time) {
        self.inner.media.send_times.flushed(now);
    }
}

impl Handler for HostState {
    fn needs_connection(&self, connection: ConnectionId) -> bool {
        self.is_reached_by(connection)
    }

    fn compares_responses(&self) -> bool {
        // A phone takes them as other phones do.
        self.plan.phone.is_none()
    }

    fn on_mismatch(&mut self, owner: RequestOwner, field: ResponseMismatch) {
        self.mismatched += 1;
        match owner {
            RequestOwner::Leg(user) => self.note_call_mismatch(user, field),
            RequestOwner::OutOfDialog(user) => self.note_registration_mismatch(user, field),
            RequestOwner::Endpoint => {}
        }
    }

    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        match indication {
            Indication::OutOfDialog {
                transaction,
                request,
                ..
            } => self.answer_outside(endpoint, transaction, request, now),
            Indication::OutOfDialogResponse {
                user,
                response,
                flow,
                ..
            } => self.registration_answered(endpoint, user, (response, flow), now),
            Indication::OutOfDialogTimedOut { user, reason, .. } => {
                self.registration_failed(endpoint, user, reason, now);
            }
            Indication::FlowFailed { flow } => self.flow_failed(flow, now),
            other => self.call_indication(endpoint, other, now),
        }
    }
}

/// The random part of a Call-ID: the planned one, mixed with a value of this run if there are such.
pub(crate) fn identity(planned: u64, identities: &mut Option<Entropy>) -> u64 {
    planned ^ identities.as_mut().map_or(0, Entropy::u64)
}

impl HostState {
    fn begin(&mut self, target: SocketAddr, start: Time) {
        self.target = Some(target);
        self.media.begin(start, self.plan.window);
        let share = self.plan.share;
        let mut common = self.plan.plan_seed.map(Entropy::from_number);
        let drawn = common.as_mut().unwrap_or(&mut self.entropy);
        for workload in &mut self.call_workloads {
            workload.schedule = Some(workload.plan.schedule(start, drawn.fork(), share));
        }
        if let Some(plan) = &self.plan.registrations {
            let entropy = drawn.fork();
            self.registration_schedule = Some(plan.schedule(start, entropy.clone(), share));
            let cycles = plan.cycles(start, entropy, share);
            self.progress.counts_from = cycles.as_ref().map(|(begin, _)| *begin);
            self.refresh_schedule = cycles.map(|(_, plan)| plan);
        }
        if let Some(plan) = &self.plan.streams {
            self.stream_schedule = Some(plan.schedule(start, self.entropy.fork()));
        }
    }

    fn stop(&mut self) {
        let schedules = self
            .call_workloads
            .iter_mut()
            .filter_map(|workload| workload.schedule.as_mut());
        for plan in schedules
            .chain(&mut self.registration_schedule)
            .chain(&mut self.refresh_schedule)
            .chain(&mut self.stream_schedule)
        {
            plan.stop();
        }
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let arrivals = self
            .call_workloads
            .iter()
            .filter_map(|workload| workload.schedule.as_ref())
            .chain(&self.registration_schedule)
            .chain(&self.refresh_schedule)
            .chain(&self.stream_schedule)
            .filter_map(AttemptSchedule::next_at)
            .min()
            .map(|at| Deadline::new(self.batch_end(at), "attempt due"));
        let given_up = self
            .call_workloads
            .iter()
            .filter_map(|workload| workload.ringing.front());
        let given_up = given_up.map(|(at, _)| *at).min();
        let timer = self
            .agenda
            .next_at()
            .into_iter()
            .chain(given_up)
            .min()
            .map(|at| Deadline::new(self.batch_end(at), "call timer"));
        Deadline::earlier(
            Deadline::earlier(arrivals, timer),
            self.media.next_deadline(),
        )
    }

    /// The end of the batch that contains the time: actions due within one batch start together.
    fn batch_end(&self, at: Time) -> Time {
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
        for index in 0..self.call_workloads.len() {
            while let Some(due) = self.call_workloads[index]
                .schedule
                .as_mut()
                .and_then(|schedule| schedule.pop_due(now))
            {
                self.progress.due += 1;
                self.start_call(endpoint, index, due, now);
            }
        }
        while let Some(due) = self
            .registration_schedule
            .as_mut()
            .and_then(|plan| plan.pop_due(now))
        {
            self.progress.due += 1;
            self.start_registration(endpoint, due, now);
        }
        while let Some(due) = self
            .refresh_schedule
            .as_mut()
            .and_then(|plan| plan.pop_due(now))
        {
            self.start_cycle(endpoint, due, now);
        }
        while let Some(due) = self
            .stream_schedule
            .as_mut()
            .and_then(|plan| plan.pop_due(now))
        {
            self.progress.due += 1;
            self.start_stream(due, now);
        }
    }

    fn timer(&mut self, endpoint: &mut Endpoint, timer: HostTimer, now: Time) {
        match timer {
            HostTimer::Refresh(index) => self.refresh(endpoint, index, now),
            HostTimer::StreamEnd(session) => self.end_stream(session, now),
            HostTimer::Ring(key) => self.ring(endpoint, key, now),
            HostTimer::Answer(key) => self.answer(endpoint, key, now),
            HostTimer::HangUp(key) => self.hang_up(endpoint, key, now),
            HostTimer::Cancel(key) => self.cancel(endpoint, key, false, now),
            HostTimer::Hold(key) => self.put_on_hold(endpoint, key, true, now),
            HostTimer::Resume(key) => self.put_on_hold(endpoint, key, false, now),
            HostTimer::Reinvite(key) => self.reinvite(endpoint, key, now),
            HostTimer::Volte(key) => self.volte_due(endpoint, key, now),
        }
    }

    /// The transport of the stream listener.
    fn listening_stream(&self) -> Option<Transport> {
        let (_, transport) = self.stream?;
        (!is_websocket(transport) && self.plan.listens).then_some(transport)
    }

    /// Draws the connections that are used in turn. Each is a named peer: the endpoint opens one connection to each of
    /// them.
    fn draw_connections(&mut self, endpoint: &mut Endpoint) {
        let Some((_, transport)) = self.stream else {
            return;
        };
        let calls = self
            .call_workloads
            .iter()
            .map(|workload| workload.plan.connections);
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
                Ok(line) => self.shared_connections.push(line),
                Err(refused) => self.fatal = Some(format!("{most} connections: {refused}")),
            }
        }
    }

    /// The flow of a request of the attempt or user `number`, with `connections` used in turn.
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
                _ => self.shared_connections.get(turn as usize).copied(),
            },
        })
    }

    /// The own address in a Contact over `transport`; none over WebSocket.
    pub(crate) fn own_address(&self, transport: Transport) -> Option<SocketAddr> {
        match transport {
            Transport::Udp => self.address,
            // Without a listener requests arrive on the own connections.
            _ => self.stream_address.or(self.address),
        }
    }

    /// Records the outcome of an attempt.
    pub(crate) fn record(&mut self, attempt: Attempt, now: Time) {
        if attempt.outcome.is_good() {
            self.progress.good += 1;
        } else {
            self.progress.failed += 1;
        }
        self.progress.live.attempt(&attempt);
        if self.emits_events {
            self.out.event(Event::new(
                now,
                EventKind::AttemptEnded {
                    attempt: attempt.number,
                    kind: format!("{:?}", attempt.kind).to_lowercase(),
                    outcome: attempt.outcome.name().to_owned(),
                },
            ));
        }
        self.attempts.push(attempt);
    }
}
