//! The endpoint: its state, inputs and outputs.

use crate::api::*;
use crate::config::{EndpointConfig, TimerConfig};
use crate::kept_flow::PONG_WAIT;
use crate::leg::Leg;
use crate::outbox::OutboxItem;
use crate::received::Received;
use crate::timer::Timer;
use crate::tokens::{MAGIC, TOKEN_LEN};
use crate::transaction::{Client, ClientActive, ClientState, FingerprintKey, Server, ServerActive};
use crate::transport::{
    IdleTimers, NatDetection, Net, NewConnection, StreamConnection, reply_flow,
};
use crate::usage::Usage;
use core::hash::BuildHasher as _;
use core::time::Duration;
use engine::PagedSlab;
use engine::timers::TimerWheel;
use engine::{
    BoundedMap, CloseReason, ConnectionId, Deadline, DropReason, Drops, Entropy, HashKey, Input,
    MessageBatch, Output, RecordedMessage, SocketId, Time, Transport,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use wire::sip::{FrameError, Message, StreamFrame, StreamFramer, Via};

/// Least time between two searches for the connections of all dialogs.
const SEARCH_INTERVAL: Duration = Duration::from_secs(60);

/// A SIP element without IO, see the crate's documentation.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) config: EndpointConfig,
    /// Values of Supported in requests and responses.
    pub(crate) supported: Vec<u8>,
    pub(crate) entropy: Entropy,
    pub(crate) net: Net,
    pub(crate) wheel: TimerWheel<Timer>,
    pub(crate) clients: PagedSlab<Client>,
    pub(crate) servers: PagedSlab<Server>,
    /// Server transactions by fingerprint.
    pub(crate) index: BoundedMap<u128, u32>,
    /// INVITEs by fingerprint without branch, to detect merged requests.
    pub(crate) merged: BoundedMap<u128, u32>,
    pub(crate) legs: PagedSlab<Leg>,
    /// Dialogs that are not calls.
    pub(crate) usages: PagedSlab<Usage>,
    /// UDP flows with keep-alive.
    pub(crate) kept_flows: PagedSlab<crate::kept_flow::KeepAliveFlow>,
    pub(crate) late_pracks: crate::reliable::LatePracks,
    /// Legs with a tag of another worker, or of the challenged INVITE that they repeat, by its slot and cookie.
    pub(crate) adopted: BTreeMap<(u32, u64), LegId>,
    /// Dialogs that are not calls with the tag of the challenged request that they repeat, likewise.
    pub(crate) adopted_usages: BTreeMap<(u32, u64), DialogId>,
    pub(crate) fingerprints: FingerprintKey,
    /// Key for tags of stateless refusals. Workers that share our addresses have the same key.
    pub(crate) refusals: FingerprintKey,
    pub(crate) drops: Drops,
    /// Overload feedback for neighbours that request it, as Via parameters; empty: none.
    pub(crate) feedback: Vec<u8>,
    /// Wall-clock time of [`Time::ZERO`] since 1970, for the sequence of that feedback.
    pub(crate) wall_clock: Duration,
    /// Buffer for the last header lines of refusals.
    pub(crate) tail: Vec<u8>,
    /// Boxes for reuse: a transaction's box moves in and out without a copy.
    #[allow(clippy::vec_box)]
    pub(crate) spare_clients: Vec<Box<ClientActive>>,
    #[allow(clippy::vec_box)]
    pub(crate) spare_servers: Vec<Box<ServerActive>>,
    /// Legs that ended within a command. They are indicated with the next input.
    pub(crate) pending_ends: Vec<(LegId, Ending)>,
    /// Workers that have handed off the current message before us.
    pub(crate) hops: u8,
    /// When the connections of all dialogs were searched, see [`Endpoint::finds_dialog`].
    connections_searched: Option<Time>,
    /// Copies of the messages that were processed and sent, if the host records them.
    pub(crate) recorded: Option<Box<MessageBatch>>,
    pub(crate) now: Time,
}

impl Endpoint {
    /// An endpoint without listeners.
    pub fn new(config: EndpointConfig, mut entropy: Entropy) -> Endpoint {
        let key = HashKey::new(&mut entropy);
        let fingerprints = FingerprintKey(entropy.u64(), entropy.u64());
        let worker = &config.worker;
        let refusals = match worker.is_alone() {
            true => fingerprints,
            false => FingerprintKey(
                worker.key.hash_one("refusals"),
                worker.key.hash_one("refusals again"),
            ),
        };
        Endpoint {
            supported: config.supported.join(", ").into_bytes(),
            net: Net::new(&config, &mut entropy),
            wheel: TimerWheel::new(),
            clients: PagedSlab::new(),
            servers: PagedSlab::new(),
            index: BoundedMap::new(config.limits.transactions, key),
            merged: BoundedMap::new(config.limits.transactions, key),
            legs: PagedSlab::new(),
            usages: PagedSlab::new(),
            kept_flows: PagedSlab::new(),
            late_pracks: crate::reliable::LatePracks::default(),
            adopted: BTreeMap::new(),
            adopted_usages: BTreeMap::new(),
            fingerprints,
            refusals,
            drops: Drops::new(),
            feedback: Vec::new(),
            wall_clock: Duration::ZERO,
            tail: Vec::new(),
            spare_clients: Vec::new(),
            spare_servers: Vec::new(),
            pending_ends: Vec::new(),
            hops: 0,
            connections_searched: None,
            recorded: None,
            now: Time::ZERO,
            config,
            entropy,
        }
    }

    /// Records messages into `batch` from now on; `None`: no recording.
    pub fn record_messages(&mut self, batch: Option<MessageBatch>) {
        self.recorded = batch.map(Box::new);
    }

    /// The recorded messages. The host exchanges the batch for an empty one.
    pub fn recorded_messages(&mut self) -> Option<&mut MessageBatch> {
        self.recorded.as_deref_mut()
    }

    /// Records a received datagram that [`Endpoint::feed`] does not get.
    pub fn record_datagram(
        &mut self,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
        now: Time,
    ) {
        self.now = now;
        if self.recorded.is_none() {
            return;
        }
        if let Some(local) = self.net.local_of(socket, Some(Transport::Udp)) {
            let flow = Flow {
                local,
                transport: Transport::Udp,
                remote: source,
                connection: None,
            };
            self.record_received(&flow, bytes);
        }
    }

    /// Records a received message.
    pub(crate) fn record_received(&mut self, flow: &Flow, bytes: &[u8]) {
        let now = self.now;
        let Some(batch) = self.recorded.as_deref_mut() else {
            return;
        };
        if let Some(listener) = self.net.listener(flow.local) {
            let message = RecordedMessage {
                at: now,
                sent: false,
                transport: flow.transport,
                local: listener.address,
                remote: flow.remote,
            };
            batch.push(message, bytes);
        }
    }

    /// Adds a listener; the host opens its socket.
    pub fn add_listener(&mut self, local: ListenerConfig) -> ListenerId {
        self.net.add(local)
    }

    /// Closes a listener or opens it again. A closed listener processes only messages of existing dialogs and
    /// transactions. Its socket belongs to the host.
    pub fn set_closed(&mut self, local: ListenerId, closed: bool) {
        self.net.set_closed(local, closed);
    }

    /// Whether peers of a listener may be behind NAT; true at first. If not, a UDP request with a name in sent-by and
    /// without rport gets its response at the port in sent-by, also with [`EndpointConfig::symmetric_responses`].
    pub fn set_nat_expected(&mut self, local: ListenerId, expected: bool) {
        self.net.set_nat_expected(local, expected);
    }

    /// Changes the interface name of a listener and the `host[:port]` that is written for peers, from the next message
    /// on. Its socket, connections, dialogs and transactions stay.
    pub fn rename_listener(&mut self, local: ListenerId, name: String, advertised: String) {
        self.net.rename(local, name, advertised);
    }

    /// Changes the limit of calls ([`engine::Limits::calls`]); those beyond a lower limit continue.
    pub fn set_call_limit(&mut self, calls: usize) {
        self.config.limits.calls = calls;
        if let Some(moved) = &self.config.moved_dialogs {
            // A call has two dialogs.
            moved.set_limit(calls.saturating_mul(2));
        }
    }

    /// Destination of the response to a request.
    pub(crate) fn reply_flow(&self, via: &Via<'_>, from: &Flow) -> Flow {
        let detection = match self.config.symmetric_responses {
            false => NatDetection::Off,
            true if self.net.expects_nat(from.local) => NatDetection::AddressOrName,
            true => NatDetection::Address,
        };
        reply_flow(via, from, detection)
    }

    /// Processes one input. Drain [`Endpoint::next_output`] afterwards, then read [`Endpoint::next_deadline`]. Inputs
    /// of sockets and connections that do not belong to this endpoint are ignored.
    pub fn feed(&mut self, input: Input<'_>, now: Time, handler: &mut dyn Handler) {
        self.now = now;
        self.run_timers(handler);
        match input {
            Input::Timeout
            | Input::OpenFailed { .. }
            | Input::Shed { .. }
            | Input::RecordingFailed { .. } => {}
            Input::Secured { connection, names } => self.net.set_verified_names(connection, names),
            Input::Datagram(datagram) => {
                let socket = datagram.socket;
                if let Some(local) = self.net.local_of(socket, Some(Transport::Udp)) {
                    let flow = Flow {
                        local,
                        transport: Transport::Udp,
                        remote: datagram.source,
                        connection: None,
                    };
                    self.on_datagram(datagram.bytes, &flow, handler);
                }
            }
            Input::Accepted {
                connection,
                socket,
                remote,
                ..
            } => self.on_accepted(connection, socket, remote, handler),
            Input::Connected { connection, .. } => {
                if let Some(slot) = self.net.connection(connection)
                    && let Some(connection) = self.net.connections.get_mut(slot as usize)
                {
                    connection.last_used = now;
                }
            }
            Input::Stream { connection, bytes } => self.on_stream(connection, bytes, handler),
            Input::Closed { connection, reason } => self.on_closed(connection, reason, handler),
            Input::Opened { socket, local } => self.net.opened(socket, local),
            Input::Unreachable {
                socket,
                destination,
                bytes,
            } => {
                let local = self.net.local_of(socket, Some(Transport::Udp));
                match local {
                    Some(local) if self.hand_off_unreachable(local, destination, bytes) => {}
                    Some(local) => self.on_unreachable(local, destination, bytes, handler),
                    None => self.drops.count(DropReason::SipUnmatchedIcmp),
                }
            }
            Input::Handoff(message) => self.on_handoff(message, handler),
        }
        self.report_pending_ends(handler);
    }

    /// Indicates the ends of legs that ended within commands.
    fn report_pending_ends(&mut self, handler: &mut dyn Handler) {
        while let Some((leg, reason)) = self.pending_ends.pop() {
            self.end_leg(leg, reason, None, handler);
        }
    }

    /// The next output, in order. Slices are valid until the next call.
    pub fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some(batch) = self.recorded.as_deref_mut()
            && let Some((message, bytes)) = self.net.next_message(self.now)
        {
            batch.push(message, bytes);
        }
        self.net.out.next()
    }

    /// Deadline for the next [`Input::Timeout`].
    pub fn next_deadline(&self) -> Option<Deadline> {
        if !self.pending_ends.is_empty() {
            return Some(Deadline::new(self.now, Timer::DEADLINE_REASON));
        }
        self.wheel
            .next_at()
            .map(|at| Deadline::new(at, Timer::DEADLINE_REASON))
    }

    fn run_timers(&mut self, handler: &mut dyn Handler) {
        let now = self.now;
        while let Some(timer) = self.wheel.pop_due(now) {
            match timer {
                Timer::Client(slot) => self.client_timer(slot, handler),
                Timer::Server(slot) => match self.servers.get(slot as usize).map(|s| s.method) {
                    Some(method) if Endpoint::is_invite(method) => {
                        self.server_invite_timer(slot);
                    }
                    Some(_) => self.server_other_timer(slot),
                    None => {}
                },
                Timer::Unacked(slot) => self.unacked_timer(slot, handler),
                Timer::Session(slot) => self.session_timer(slot, handler),
                Timer::Connection(slot) => self.connection_timer(slot, handler),
                Timer::KeepAlive(slot) => self.keep_alive_timer(slot, handler),
            }
        }
    }

    fn client_timer(&mut self, slot: u32, handler: &mut dyn Handler) {
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        client.timer = None;
        match Endpoint::is_invite(client.method) {
            true => self.client_invite_timer(slot, handler),
            false => self.client_other_timer(slot, handler),
        }
    }

    pub(crate) fn on_datagram(&mut self, bytes: &[u8], flow: &Flow, handler: &mut dyn Handler) {
        if bytes.len() > self.config.limits.message_bytes {
            self.drops.count(DropReason::SipTooLarge);
            return;
        }
        if bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            // Keep-alives over UDP are not answered with CRLF (RFC 5626 section 3.5.1 has this on streams only).
            self.drops.count(DropReason::SipKeepAlive);
            return;
        }
        // No SIP message begins with a byte below 4: this is STUN (RFC 5626 section 8).
        if bytes.first().is_some_and(|byte| *byte < 4) {
            if !self.on_binding_response(bytes, flow, handler) {
                self.answer_stun(bytes, flow);
            }
            return;
        }
        match &Message::parse_datagram(bytes) {
            Ok(message) => self.on_message(message, flow, handler),
            Err(_) => self.drops.count(DropReason::SipUnparsable),
        }
    }

    /// Answers a STUN Binding request, which is a keep-alive over UDP (RFC 5626 section 4.4.2).
    fn answer_stun(&mut self, bytes: &[u8], flow: &Flow) {
        let Some(socket) = self
            .net
            .listener(flow.local)
            .map(|listener| listener.socket)
        else {
            return;
        };
        if self.net.is_closed(flow.local) {
            self.drops.count(DropReason::SipListenerClosed);
            return;
        }
        let start = self.net.out.begin();
        if !wire::stun::write_binding_response(bytes, flow.remote, &mut self.net.out.arena) {
            self.drops.count(DropReason::SipUnparsable);
            return;
        }
        self.drops.count(DropReason::SipKeepAlive);
        self.net.out.push(
            OutboxItem::Datagram {
                socket,
                destination: flow.remote,
            },
            start,
        );
    }

    fn on_accepted(
        &mut self,
        connection: ConnectionId,
        socket: SocketId,
        remote: SocketAddr,
        handler: &mut dyn Handler,
    ) {
        let Some(local) = self
            .net
            .listeners
            .iter()
            .position(|listener| listener.socket == socket && listener.transport.is_reliable())
        else {
            return;
        };
        let new = NewConnection {
            id: connection,
            local: ListenerId(local as u16),
            remote,
            peer: None,
        };
        if let Some(displaced) = self.net.displaced_by(remote.ip()) {
            self.drops.count(DropReason::SipTableFull);
            self.close_locally(displaced, handler);
        }
        let timers = &mut IdleTimers::new(self.now, &mut self.wheel, &self.config.timers);
        let kept = self.net.add_connection(new, timers);
        if kept.is_none() {
            self.drops.count(DropReason::SipTableFull);
            self.net.out.push_bare(OutboxItem::Close { connection });
        }
    }

    /// Processes bytes of a connection. The framer is moved out while its frames are read, because the handler may
    /// change the connection.
    fn on_stream(&mut self, id: ConnectionId, bytes: &[u8], handler: &mut dyn Handler) {
        let Some(slot) = self.net.connection(id) else {
            return;
        };
        let Some(connection) = self.net.connections.get_mut(slot as usize) else {
            return;
        };
        connection.unanswered_since = None;
        if connection.detached {
            connection.pinged_at = None;
            self.net.reattach(slot);
        }
        let Some(connection) = self.net.connections.get(slot as usize) else {
            return;
        };
        let flow = Flow {
            local: connection.local,
            transport: Transport::Tcp,
            remote: connection.remote,
            connection: Some(id),
        };
        let flow = match self.net.listener(flow.local) {
            Some(listener) => Flow {
                transport: listener.transport,
                ..flow
            },
            None => flow,
        };
        if matches!(flow.transport, Transport::Ws | Transport::Wss) {
            self.on_websocket_message(bytes, &flow, handler);
            return;
        }
        let Some(mut framer) = self
            .net
            .connections
            .get_mut(slot as usize)
            .and_then(|connection| connection.framer.take())
        else {
            return;
        };
        framer.push(bytes);
        let broken = self.process_frames(&mut framer, &flow, handler);
        if broken {
            self.drops.count(DropReason::SipStreamBroken);
            self.close_locally(id, handler);
        } else if let Some(connection) = self.net.connections.get_mut(slot as usize)
            && connection.id == id
        {
            let partial = framer.pending() > 0;
            connection.framer = Some(framer);
            self.track_partial(slot, partial);
        }
    }

    /// Records since when a message is incomplete: slowly arriving bytes do not count as traffic.
    fn track_partial(&mut self, slot: u32, partial: bool) {
        let now = self.now;
        let Some(connection) = self.net.connections.get_mut(slot as usize) else {
            return;
        };
        // A message that was completed just now starts the time of the next one.
        let began = match (partial, connection.incomplete_since) {
            (false, _) => None,
            (true, Some(began)) if connection.last_used < now => Some(began),
            (true, _) => Some(now),
        };
        if began.is_some() && connection.incomplete_since.is_none() {
            if let Some(timer) = connection.timer.take() {
                self.wheel.cancel(timer);
            }
            let idle = idle_time(connection, &self.config.timers);
            let at = (now + self.config.timers.message).min(connection.last_used + idle);
            connection.timer = Some(self.wheel.schedule(at, Timer::Connection(slot)));
        }
        connection.incomplete_since = began;
    }

    /// Processes one WebSocket message, which is exactly one SIP message (RFC 7118 section 4). CRLF keep-alives are
    /// answered there too (RFC 5626 section 3.5.1).
    fn on_websocket_message(&mut self, bytes: &[u8], flow: &Flow, handler: &mut dyn Handler) {
        let keep_alive = matches!(bytes, b"" | StreamFramer::PING | StreamFramer::PONG);
        self.touch(flow, !keep_alive);
        if bytes.len() > self.config.limits.message_bytes {
            self.drops.count(DropReason::SipTooLarge);
            return;
        }
        match bytes {
            StreamFramer::PING => {
                self.drops.count(DropReason::SipKeepAlive);
                self.send_pong(flow);
            }
            b"" | StreamFramer::PONG => {
                self.on_pong(flow);
                self.drops.count(DropReason::SipKeepAlive);
            }
            _ if self.hand_off_message(bytes, flow, handler) => {}
            _ => match &Message::parse_datagram(bytes) {
                Ok(message) => self.on_message(message, flow, handler),
                Err(_) => self.drops.count(DropReason::SipUnparsable),
            },
        }
    }

    /// An identifier for TLS flows to a peer whose certificate must contain `name`. As [`Flow::connection`] of a flow
    /// to an address it selects the open connection with that peer there, or a new one. `profile` names the driver's
    /// TLS settings for opening it. The same arguments give the same identifier.
    ///
    /// # Errors
    /// [`Refused::Full`] if the table of peers is full.
    pub fn peer(&mut self, name: &str, profile: &str) -> Result<ConnectionId, Refused> {
        self.net.peer(name, profile).ok_or(Refused::Full)
    }

    /// Stores the name of a TLS peer at an address that has none yet. Connections for dialogs whose next hop is this
    /// address, also with another port, then require a certificate for the name, because peers write addresses without
    /// names in Contact and Record-Route.
    pub fn learn_peer(&mut self, known: &KnownPeer<'_>) {
        self.net.learn_peer(known);
    }

    /// Removes all names stored by [`Endpoint::learn_peer`].
    pub fn forget_peers(&mut self) {
        self.net.forget_peers();
    }

    /// Whether [`Endpoint::learn_peer`] has stored a name for the address of this flow.
    pub fn knows_peer(&self, flow: &Flow) -> bool {
        self.net.knows_peer(flow)
    }

    /// The SIP domains that the verified certificate of a connection's peer contains.
    pub fn names_of(&self, connection: ConnectionId) -> &[String] {
        self.net.names(connection)
    }

    /// Processes all complete frames. `true`: the stream cannot be parsed any further.
    fn process_frames(
        &mut self,
        framer: &mut StreamFramer,
        flow: &Flow,
        handler: &mut dyn Handler,
    ) -> bool {
        let mut pinged = false;
        loop {
            match framer.next() {
                None => break,
                Some(StreamFrame::Error(_)) => return true,
                Some(StreamFrame::Unframed(head, error)) => self.refuse_unframed(head, error, flow),
                Some(StreamFrame::Ping) => {
                    self.drops.count(DropReason::SipKeepAlive);
                    pinged = true;
                    continue;
                }
                Some(StreamFrame::Pong) => {
                    self.touch(flow, false);
                    self.on_pong(flow);
                    self.drops.count(DropReason::SipKeepAlive);
                }
                Some(StreamFrame::Message(bytes)) => {
                    self.touch(flow, true);
                    if !self.hand_off_message(bytes, flow, handler) {
                        match &Message::parse_framed(bytes) {
                            Ok(message) => self.on_message(message, flow, handler),
                            Err(_) => self.drops.count(DropReason::SipUnparsable),
                        }
                    }
                }
            }
            let is_open = flow
                .connection
                .is_some_and(|id| self.net.connection(id).is_some());
            if !is_open {
                return false;
            }
        }
        if pinged {
            self.touch(flow, false);
            self.send_pong(flow);
        }
        if framer.flush_pong().is_some() {
            self.touch(flow, false);
            self.on_pong(flow);
            self.drops.count(DropReason::SipKeepAlive);
        }
        false
    }

    /// Notes traffic on a connection: a message or a keep-alive. The latter counts only after a message.
    fn touch(&mut self, flow: &Flow, is_message: bool) {
        let now = self.now;
        if let Some(slot) = self.net.connection_for(flow)
            && let Some(connection) = self.net.connections.get_mut(slot as usize)
        {
            connection.spoken |= is_message;
            if connection.spoken {
                connection.last_used = now;
            }
        }
    }

    /// A request has timed out: a connection on which the peer has sent nothing since then may be dead, and TCP would
    /// need minutes to notice. New requests are sent over a new one. One that we opened is closed if a ping is not
    /// answered either (RFC 5626 section 4.4.1).
    pub(crate) fn suspect_connection(&mut self, client: u32) {
        let timeout = self.transaction_timeout();
        let Some(active) = self
            .clients
            .get(client as usize)
            .and_then(|client| client.active.as_ref())
        else {
            return;
        };
        let (slot, deadline) = (active.connection, active.deadline);
        let Some(connection) = self.net.connections.get(slot as usize) else {
            return;
        };
        let silent = connection.waiting_clients.contains(&client)
            && connection
                .unanswered_since
                .is_some_and(|since| since + timeout <= deadline);
        let id = connection.id;
        if !silent || connection.detached || self.net.is_foreign(id) {
            return;
        }
        self.net.detach(slot);
        if id.0 & ConnectionId::ACCEPTED == 0 {
            self.ping_connection(slot);
        }
    }

    /// Refuses a request whose end cannot be found, before its connection is closed (RFC 4475 section 3.1.2.3; RFC 3261
    /// section 18.3 for a body that is too long).
    fn refuse_unframed(&mut self, head: &[u8], error: FrameError, flow: &Flow) {
        match Message::parse_framed(head) {
            Ok(request) if request.is_request() => {
                let (status, reason): (u16, &[u8]) = match error {
                    FrameError::BodyTooLong => (413, b"Request Entity Too Large"),
                    _ => (400, b"Bad Content-Length"),
                };
                let received = Received {
                    message: &request,
                    flow,
                };
                self.refuse_stateless(received, status, reason, &[]);
            }
            _ => self.drops.count(DropReason::SipUnparsable),
        }
    }

    /// Processes the response to our ping.
    fn on_pong(&mut self, flow: &Flow) {
        if let Some(slot) = self.net.connection_for(flow)
            && let Some(connection) = self.net.connections.get_mut(slot as usize)
        {
            connection.pinged_at = None;
        }
    }

    /// Answers a ping (RFC 5626 section 4.4.1).
    fn send_pong(&mut self, flow: &Flow) {
        if let Some(connection) = flow.connection {
            self.net
                .out
                .push_copy(OutboxItem::Stream { connection }, StreamFramer::PONG);
        }
    }

    /// Closes a connection from our side.
    pub(crate) fn close_locally(&mut self, connection: ConnectionId, handler: &mut dyn Handler) {
        self.net.out.push_bare(OutboxItem::Close { connection });
        self.on_closed(connection, CloseReason::Engine, handler);
    }

    /// A connection has ended: requests that wait for a response on it fail (RFC 3261 sections 8.1.3.1 and 17.1.4).
    pub(crate) fn on_closed(
        &mut self,
        id: ConnectionId,
        _why: CloseReason,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        let Some(slot) = self.net.connection(id) else {
            return;
        };
        let Some(connection) = self.net.remove_connection(slot, &mut self.wheel) else {
            return;
        };
        let transport = self
            .net
            .listener(connection.local)
            .map_or(Transport::Tcp, |listener| listener.transport);
        self.notify_borrowers(id, connection.borrowers);
        for slot in connection.waiting_clients {
            self.client_transport_failed(slot, handler);
        }
        // The worker that holds the connection indicates the end of the flow.
        if self.net.is_foreign(id) {
            return;
        }
        let flow = Flow {
            local: connection.local,
            transport,
            remote: connection.remote,
            connection: Some(id),
        };
        handler.on_indication(self, Indication::FlowFailed { flow }, now);
    }

    /// Processes an ICMP error for a datagram of ours (RFC 3261 sections 8.1.3.1, 17.1.4, 18.4). ICMP can be forged, so
    /// a transaction fails only if its branch, which is secret, is in the quoted bytes, and only before its first
    /// response.
    pub(crate) fn on_unreachable(
        &mut self,
        local: ListenerId,
        destination: SocketAddr,
        quoted: &[u8],
        handler: &mut dyn Handler,
    ) {
        let slot = branch_in(quoted).and_then(|branch| self.client_of_branch(branch));
        let Some(slot) = slot.filter(|&slot| {
            self.clients.get(slot as usize).is_some_and(|client| {
                client.state == ClientState::Calling
                    && client.active.as_ref().is_some_and(|active| {
                        active.flow.remote == destination
                            && active.flow.transport == Transport::Udp
                            && active.flow.local == local
                    })
            })
        }) else {
            self.drops.count(DropReason::SipUnmatchedIcmp);
            return;
        };
        self.client_transport_failed(slot, handler);
    }

    fn connection_timer(&mut self, slot: u32, handler: &mut dyn Handler) {
        let now = self.now;
        let Some(connection) = self.net.connections.get_mut(slot as usize) else {
            return;
        };
        connection.timer = None;
        let id = connection.id;
        let (last_used, waits) = (connection.last_used, !connection.waiting_clients.is_empty());
        let pong_deadline = connection.pinged_at.map(|at| at + PONG_WAIT);
        if pong_deadline.is_some_and(|at| now >= at) {
            self.close_locally(id, handler);
            return;
        }
        let message_deadline = connection
            .incomplete_since
            .map(|began| began + self.config.timers.message);
        if message_deadline.is_some_and(|message_deadline| now >= message_deadline) {
            self.drops.count(DropReason::StreamTimeout);
            self.close_locally(id, handler);
            return;
        }
        let idle = idle_time(connection, &self.config.timers);
        let idle = self.net.idle_time(id, idle);
        let mut due = last_used + idle;
        if now >= due {
            due = now + idle;
            if !waits && !self.keep_idle_connection(slot, id, handler) {
                match self.net.is_foreign(id) {
                    // The connection itself is closed only by the worker that holds it.
                    true => drop(self.net.remove_connection(slot, &mut self.wheel)),
                    false => self.close_locally(id, handler),
                }
                return;
            }
        }
        let at = message_deadline.map_or(due, |message_deadline| message_deadline.min(due));
        let at = pong_deadline.map_or(at, |pong_deadline| pong_deadline.min(at));
        let timer = self.wheel.schedule(at, Timer::Connection(slot));
        if let Some(connection) = self.net.connections.get_mut(slot as usize) {
            connection.timer = Some(timer);
        }
    }

    /// Keeps an idle connection that is still needed: by a dialog, or by the handler for a registered client. An empty
    /// line, which SIP elements ignore (RFC 3261 section 7.5), shows by TCP whether the peer is still there.
    fn keep_idle_connection(&mut self, slot: u32, id: ConnectionId, handler: &dyn Handler) -> bool {
        let now = self.now;
        // The worker that holds it asks its handler itself.
        let needed =
            self.finds_dialog(slot) || (!self.net.is_foreign(id) && handler.needs_connection(id));
        if needed && let Some(connection) = self.net.connections.get_mut(slot as usize) {
            connection.last_used = now;
            let item = OutboxItem::Stream { connection: id };
            self.net.out.push_copy(item, StreamFramer::PONG);
        }
        needed
    }

    /// Whether a dialog has sent its requests over a connection that is idle now. All dialogs are searched at most once
    /// in [`SEARCH_INTERVAL`]; later changes of a dialog are traffic, after which its connection is not idle.
    fn finds_dialog(&mut self, slot: u32) -> bool {
        let now = self.now;
        let searched = self.connections_searched;
        if searched.is_none_or(|searched| now >= searched + SEARCH_INTERVAL) {
            self.connections_searched = Some(now);
            let legs = self.legs.iter().map(|(_, leg)| leg.peer.flow);
            let usages = self.usages.iter().map(|(_, usage)| usage.flow());
            for id in legs.chain(usages).filter_map(|flow| flow.connection) {
                if let Some(slot) = self.net.connection(id)
                    && let Some(connection) = self.net.connections.get_mut(slot as usize)
                {
                    connection.in_dialog = Some(now);
                }
            }
        }
        self.net
            .connections
            .get(slot as usize)
            .is_some_and(|connection| {
                connection.in_dialog.is_some() && connection.in_dialog == self.connections_searched
            })
    }

    /// Whether the connection exists in this endpoint's tables.
    pub fn has_connection(&self, connection: ConnectionId) -> bool {
        self.net.connection(connection).is_some()
    }

    /// Number of stream connections, those that are being opened included.
    pub fn connections(&self) -> usize {
        self.net.connections.len()
    }

    /// Closes an idle or unwanted connection.
    pub fn close_connection(
        &mut self,
        connection: ConnectionId,
        now: Time,
        handler: &mut dyn Handler,
    ) {
        self.now = now;
        if self.net.connection(connection).is_some() {
            self.close_locally(connection, handler);
        }
    }

    /// The handler's number of a leg.
    pub fn user_of(&self, leg: LegId) -> Option<u64> {
        Some(self.leg(leg)?.user)
    }

    /// Sets the handler's number of a leg (0 for a new incoming leg).
    pub fn set_user(&mut self, leg: LegId, user: u64) {
        if let Some(leg) = self.leg_mut(leg) {
            leg.user = user;
        }
    }

    /// The state of a leg.
    pub fn state_of(&self, leg: LegId) -> Option<LegState> {
        Some(self.leg(leg)?.state)
    }

    /// Whether a 2xx to our INVITE in this leg waits for our ACK ([`Endpoint::ack`]).
    pub fn owes_ack(&self, leg: LegId) -> bool {
        self.leg(leg)
            .is_some_and(|leg| leg.pending.owed_ack != crate::transaction::NONE)
    }

    /// Whether the handler still has to refresh a leg's session ([`crate::Indication::RefreshDue`]).
    pub fn refresh_is_due(&self, leg: LegId) -> bool {
        self.leg(leg)
            .is_some_and(|leg| leg.session.refreshing && !leg.features.update)
    }

    /// Whether we refresh the session of a leg, by re-INVITE: [`Indication::RefreshDue`] will ask for one.
    pub fn refreshes_by_reinvite(&self, leg: LegId) -> bool {
        self.leg(leg).is_some_and(|leg| {
            leg.session.seconds != 0 && leg.session.we_refresh && !leg.features.update
        })
    }

    /// Whether our INVITE in progress on a leg, the one that opens it or a re-INVITE, has got any response, including
    /// 100.
    pub fn has_response(&self, leg: LegId) -> bool {
        let Some(leg) = self.leg(leg) else {
            return false;
        };
        let invite = match &leg.setup {
            Some(setup) => setup.invite,
            None => leg.pending.our_invite,
        };
        self.clients
            .get(invite as usize)
            .is_some_and(|client| client.state != ClientState::Calling)
    }

    /// Destination of a leg's next request.
    pub fn flow_of(&self, leg: LegId) -> Option<Flow> {
        Some(self.leg(leg)?.peer.flow)
    }

    /// Sends a leg's further requests to `flow`, not to the host in its route set or remote target (resolved by the
    /// handler, or behind NAT).
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::Transport`].
    pub fn pin(&mut self, leg: LegId, flow: Flow) -> Result<(), Refused> {
        self.net.check_flow(&flow)?;
        let leg = self.leg_mut(leg).ok_or(Refused::Gone)?;
        leg.sending.pinned = true;
        leg.peer.flow = flow;
        for early in leg.setup.iter_mut().flat_map(|setup| &mut setup.forks) {
            early.peer.flow = flow;
        }
        Ok(())
    }

    /// The name that determines the destination of a leg's requests, of its dialog or of an early one (RFC 3261 section
    /// 12.2.1.1). `None` if it is an address, or the leg is pinned. Until [`Endpoint::set_hop_flow`] is called,
    /// requests are sent to the dialog's previous destination.
    pub fn named_hop_of(&self, leg: LegId, fork: Option<Fork>) -> Option<NamedHop> {
        let leg = self.leg(leg).filter(|leg| !leg.sending.pinned)?;
        let early = fork.and_then(|fork| leg.setup.as_ref()?.forks.get(usize::from(fork.0)));
        crate::dialog::named_hop(early.map_or(&leg.peer, |early| &early.peer))
    }

    /// Sets the flow of a resolved name: requests of the leg's dialogs with this next hop are sent to `flow` from now
    /// on.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::Transport`].
    pub fn set_hop_flow(&mut self, leg: LegId, hop: &NamedHop, flow: Flow) -> Result<(), Refused> {
        self.net.check_flow(&flow)?;
        let leg = self.leg_mut(leg).ok_or(Refused::Gone)?;
        if leg.sending.pinned {
            return Ok(());
        }
        let forks = leg.setup.iter_mut().flat_map(|setup| &mut setup.forks);
        let peers = forks.map(|early| &mut early.peer);
        for peer in peers.chain(core::iter::once(&mut leg.peer)) {
            if crate::dialog::named_hop(peer).as_ref() == Some(hop) {
                peer.flow = flow;
            }
        }
        Ok(())
    }

    /// The Call-ID of a leg.
    pub fn call_id_of(&self, leg: LegId) -> Option<&[u8]> {
        Some(self.leg(leg)?.own.call_id())
    }

    /// Our address and the peer's, as in From and To; the peer's has its tag.
    pub fn addresses_of(&self, leg: LegId) -> Option<(&[u8], &[u8])> {
        let leg = self.leg(leg)?;
        Some((leg.own.local(), leg.peer.remote()))
    }

    /// Our tag and the peer's, for Replaces (RFC 3891). The peer's is empty before there is a dialog.
    pub fn tags_of(&self, leg: LegId) -> Option<(Vec<u8>, &[u8])> {
        let tag = self.tag_of(leg)?;
        Some((tag.as_bytes().to_vec(), self.leg(leg)?.peer.tag()))
    }

    /// The leg that a Replaces header identifies (RFC 3891 section 3): its `to-tag` is our tag.
    pub fn find_leg(&self, call_id: &[u8], local_tag: &[u8], remote_tag: &[u8]) -> Option<LegId> {
        let id = self.leg_of_tag(local_tag)?;
        let leg = self.leg(id)?;
        let early = leg
            .setup
            .iter()
            .flat_map(|setup| &setup.forks)
            .any(|early| early.peer.tag() == remote_tag);
        (leg.own.call_id() == call_id && (early || leg.peer.tag() == remote_tag)).then_some(id)
    }

    /// The peer's Contact URI: the remote target (RFC 3261 section 12).
    pub fn remote_target_of(&self, leg: LegId) -> Option<&[u8]> {
        Some(self.leg(leg)?.peer.target())
    }

    /// Whether the peer has listed UPDATE in Allow (RFC 3311 section 4).
    pub fn peer_allows_update(&self, leg: LegId) -> Option<bool> {
        Some(self.leg(leg)?.features.update)
    }

    /// Whether the caller of an incoming leg supports reliable provisional responses (RFC 3262).
    pub fn peer_supports_100rel(&self, leg: LegId) -> Option<bool> {
        Some(self.leg(leg)?.features.reliable)
    }

    /// Numbers of objects. It iterates over all of them: for tests and infrequent reports.
    pub fn census(&self) -> Census {
        let clients: usize = self
            .clients
            .iter()
            .map(|(_, client)| {
                client.active.as_ref().map_or(0, |a| a.bytes.len())
                    + client
                        .accepted
                        .as_ref()
                        .and_then(|a| a.ack.as_ref())
                        .map_or(0, |(ack, _)| ack.len())
            })
            .sum();
        let servers: usize = self
            .servers
            .iter()
            .map(|(_, server)| {
                server.last.as_ref().map_or(0, |last| last.len())
                    + server
                        .active
                        .as_ref()
                        .map_or(0, |a| a.last.len() + a.skeleton.len())
            })
            .sum();
        let legs: usize = self.legs.iter().map(|(_, leg)| leg.kept_bytes()).sum();
        let dialogs: usize = self.usages.iter().map(|(_, usage)| usage.len()).sum();
        Census {
            clients: self.clients.len(),
            servers: self.servers.len(),
            index: self.index.len() + self.merged.len(),
            legs: self.legs.len(),
            dialogs: self.usages.len(),
            timers: self.wheel.len() - self.net.connections.len() - self.keep_alive_timers(),
            connections: self.net.connections.len(),
            kept_bytes: clients + servers + legs + dialogs,
        }
    }

    /// Drops by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// The current configuration.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }
}

/// Time without traffic after which a connection is closed.
fn idle_time(connection: &StreamConnection, timers: &TimerConfig) -> Duration {
    match connection.spoken {
        true => timers.idle,
        false => timers.unspoken(),
    }
}

/// Our branch in the beginning of a message that may be truncated.
pub(crate) fn branch_in(quoted: &[u8]) -> Option<&[u8]> {
    let length = MAGIC.len() + TOKEN_LEN;
    let at = quoted
        .windows(MAGIC.len())
        .position(|window| window == MAGIC)?;
    quoted.get(at..at + length)
}
