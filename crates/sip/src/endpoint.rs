//! The endpoint: its state, its inputs and outputs.

use crate::api::*;
use crate::config::EndpointConfig;
use crate::keep::PONG_WAIT;
use crate::leg::Leg;
use crate::names::{MAGIC, NAME_LEN};
use crate::outbox::Item;
use crate::timer::Timer;
use crate::transaction::{Client, ClientActive, ClientState, PrintKey, Server, ServerActive};
use crate::transport::Net;
use crate::usage::Usage;
use core::hash::BuildHasher as _;
use engine::timers::Wheel;
use engine::{
    BoundedMap, CloseWhy, ConnectionId, Deadline, DropReason, Drops, Entropy, HashKey, Input,
    Output, SocketId, Time, Transport,
};
use slab::Slab;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use wire::sip::{Frame, FrameError, Message, StreamFramer};

/// A SIP element without IO. See the crate's page.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) config: EndpointConfig,
    /// Values of Supported in requests and responses.
    pub(crate) supported: Vec<u8>,
    pub(crate) entropy: Entropy,
    pub(crate) net: Net,
    pub(crate) wheel: Wheel<Timer>,
    pub(crate) clients: Slab<Client>,
    pub(crate) servers: Slab<Server>,
    /// Server transactions by print.
    pub(crate) index: BoundedMap<u128, u32>,
    /// INVITEs by print without branch, for merged requests.
    pub(crate) merged: BoundedMap<u128, u32>,
    pub(crate) legs: Slab<Leg>,
    /// Dialogs that are no calls.
    pub(crate) usages: Slab<Usage>,
    /// Flows over UDP that are kept alive.
    pub(crate) kept: Slab<crate::keep::Kept>,
    pub(crate) late: crate::reliable::Late,
    /// Legs whose dialogs other workers began, by slot and cookie of their tags.
    pub(crate) adopted: BTreeMap<(u32, u64), LegId>,
    pub(crate) prints: PrintKey,
    /// Of tags of refusals of which nothing is kept: those who share our addresses know each other's.
    pub(crate) refusals: PrintKey,
    pub(crate) drops: Drops,
    /// What neighbours are told who ask for it, as parameters of Via; empty: nothing.
    pub(crate) feedback: Vec<u8>,
    /// Buffer for the last lines of refusals.
    pub(crate) tail: Vec<u8>,
    /// Boxes to be used again: a transaction's box moves in and out without being copied.
    #[allow(clippy::vec_box)]
    pub(crate) spare_clients: Vec<Box<ClientActive>>,
    #[allow(clippy::vec_box)]
    pub(crate) spare_servers: Vec<Box<ServerActive>>,
    /// Legs that ended inside a command; told when the next input comes.
    pub(crate) doomed: Vec<(LegId, Ending)>,
    /// Other workers that had the message that is being dealt with before us.
    pub(crate) passed: u8,
    pub(crate) now: Time,
}

impl Endpoint {
    /// An endpoint without listening points.
    pub fn new(config: EndpointConfig, mut entropy: Entropy) -> Endpoint {
        let key = HashKey::new(&mut entropy);
        let prints = PrintKey(entropy.u64(), entropy.u64());
        let worker = &config.worker;
        let refusals = match worker.is_alone() {
            true => prints,
            false => PrintKey(
                worker.key.hash_one("refusals"),
                worker.key.hash_one("refusals again"),
            ),
        };
        Endpoint {
            supported: config.supported.join(", ").into_bytes(),
            net: Net::new(&config, &mut entropy),
            wheel: Wheel::new(),
            clients: Slab::new(),
            servers: Slab::new(),
            index: BoundedMap::new(config.limits.transactions, key),
            merged: BoundedMap::new(config.limits.transactions, key),
            legs: Slab::new(),
            usages: Slab::new(),
            kept: Slab::new(),
            late: crate::reliable::Late::default(),
            adopted: BTreeMap::new(),
            prints,
            refusals,
            drops: Drops::new(),
            feedback: Vec::new(),
            tail: Vec::new(),
            spare_clients: Vec::new(),
            spare_servers: Vec::new(),
            doomed: Vec::new(),
            passed: 0,
            now: Time::ZERO,
            config,
            entropy,
        }
    }

    /// Makes room for so many transactions at a time, requests sent and requests taken, besides those that are open, so that
    /// tables do not grow while they are filled.
    pub fn reserve(&mut self, clients: usize, servers: usize) {
        let most = self.config.limits.transactions;
        let (clients, servers) = (clients.min(most), servers.min(most));
        self.clients.reserve(clients);
        self.servers.reserve(servers);
        self.index.reserve(servers);
        self.wheel.reserve(clients + servers);
    }

    /// Adds a listening point; the host opens its socket.
    pub fn add_local(&mut self, local: Local) -> LocalId {
        self.net.add(local)
    }

    /// Closes a listening point, or opens it again: a closed one answers nothing but what belongs to the dialogs and
    /// transactions that live on it. Its socket is the host's.
    pub fn set_closed(&mut self, local: LocalId, closed: bool) {
        self.net.set_closed(local, closed);
    }

    /// Takes one input. Drain [`Endpoint::next_output`] afterwards, then ask for [`Endpoint::next_deadline`]. What
    /// belongs to sockets and connections that are not this endpoint's is left alone.
    pub fn feed(&mut self, input: Input<'_>, now: Time, user: &mut dyn User) {
        self.now = now;
        self.run_timers(now, user);
        match input {
            Input::Timeout | Input::OpenFailed { .. } | Input::Sifted { .. } => {}
            Input::Secured { connection, names } => self.net.secured(connection, names),
            Input::Datagram(datagram) => {
                let socket = datagram.socket;
                if let Some(local) = self.net.local_of(socket, Some(Transport::Udp)) {
                    let flow = Flow {
                        local,
                        transport: Transport::Udp,
                        remote: datagram.source,
                        connection: None,
                    };
                    self.datagram(datagram.bytes, &flow, now, user);
                }
            }
            Input::Accepted {
                connection,
                socket,
                remote,
                ..
            } => self.accepted(connection, socket, remote, now),
            Input::Connected { connection, .. } => {
                if let Some(slot) = self.net.connection(connection)
                    && let Some(connection) = self.net.connections.get_mut(slot as usize)
                {
                    connection.used = now;
                }
            }
            Input::Stream { connection, bytes } => self.stream(connection, bytes, now, user),
            Input::Closed { connection, why } => self.closed(connection, why, now, user),
            Input::Opened { socket, local } => self.net.opened(socket, local),
            Input::Unreachable {
                socket,
                destination,
                bytes,
            } => {
                let local = self.net.local_of(socket, Some(Transport::Udp));
                match local {
                    Some(local) if self.hand_unreachable(local, destination, bytes) => {}
                    Some(local) => self.unreachable(local, destination, bytes, now, user),
                    None => self.drops.count(DropReason::SipStrayUnreachable),
                }
            }
            Input::Handed(parcel) => self.handed(parcel, now, user),
        }
        self.bury(now, user);
    }

    /// Tells of legs that ended inside commands.
    fn bury(&mut self, now: Time, user: &mut dyn User) {
        while let Some((leg, why)) = self.doomed.pop() {
            self.end(leg, why, None, now, user);
        }
    }

    /// The next output, in order. Slices live until the next call.
    pub fn next_output(&mut self) -> Option<Output<'_>> {
        self.net.out.next()
    }

    /// When [`Input::Timeout`] is next wanted.
    pub fn next_deadline(&self) -> Option<Deadline> {
        if !self.doomed.is_empty() {
            return Some(Deadline::new(self.now, Timer::WHY));
        }
        self.wheel.next_at().map(|at| Deadline::new(at, Timer::WHY))
    }

    fn run_timers(&mut self, now: Time, user: &mut dyn User) {
        while let Some(timer) = self.wheel.pop_due(now) {
            match timer {
                Timer::Client(slot) => self.client_timer(slot, now, user),
                Timer::Server(slot) => match self.servers.get(slot as usize).map(|s| s.method) {
                    Some(method) if Endpoint::is_invite(method) => {
                        self.server_invite_timer(slot, now);
                    }
                    Some(_) => self.server_other_timer(slot, now),
                    None => {}
                },
                Timer::Unacked(slot) => self.unacked_timer(slot, now, user),
                Timer::Session(slot) => self.session_timer(slot, now, user),
                Timer::Connection(slot) => self.connection_timer(slot, now, user),
                Timer::Kept(slot) => self.kept_timer(slot, now, user),
            }
        }
    }

    fn client_timer(&mut self, slot: u32, now: Time, user: &mut dyn User) {
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        client.timer = None;
        match Endpoint::is_invite(client.method) {
            true => self.client_invite_timer(slot, now, user),
            false => self.client_other_timer(slot, now, user),
        }
    }

    pub(crate) fn datagram(&mut self, bytes: &[u8], flow: &Flow, now: Time, user: &mut dyn User) {
        if bytes.len() > self.config.limits.message_bytes {
            self.drops.count(DropReason::SipTooLarge);
            return;
        }
        if bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            // Keep-alives over UDP are not answered by CRLF (RFC 5626 section 3.5.1 has them on streams only).
            self.drops.count(DropReason::SipKeepAlive);
            return;
        }
        // No SIP message begins with a byte below 4: this is STUN (RFC 5626 section 8).
        if bytes.first().is_some_and(|byte| *byte < 4) {
            if !self.binding_answered(bytes, flow, now, user) {
                self.stun(bytes, flow);
            }
            return;
        }
        match &Message::parse_datagram(bytes) {
            Ok(message) => self.message(message, flow, now, user),
            Err(_) => self.drops.count(DropReason::SipUnparsable),
        }
    }

    /// A keep-alive over UDP is a STUN Binding request (RFC 5626 section 4.4.2).
    fn stun(&mut self, bytes: &[u8], flow: &Flow) {
        let Some(socket) = self.net.point(flow.local).map(|point| point.socket) else {
            return;
        };
        if self.net.is_closed(flow.local) {
            self.drops.count(DropReason::SipPointClosed);
            return;
        }
        let start = self.net.out.begin();
        if !wire::stun::answer_binding(bytes, flow.remote, &mut self.net.out.arena) {
            self.drops.count(DropReason::SipUnparsable);
            return;
        }
        self.drops.count(DropReason::SipKeepAlive);
        self.net.out.push(
            Item::Datagram {
                socket,
                destination: flow.remote,
            },
            start,
        );
    }

    fn accepted(
        &mut self,
        connection: ConnectionId,
        socket: SocketId,
        remote: SocketAddr,
        now: Time,
    ) {
        let Some(local) = self
            .net
            .points
            .iter()
            .position(|point| point.socket == socket && point.transport.is_reliable())
        else {
            return;
        };
        let idle = self.config.timers.idle;
        let kept = self.net.keep(
            connection,
            LocalId(local as u16),
            remote,
            None,
            now,
            &mut self.wheel,
            idle,
        );
        if kept.is_none() {
            self.drops.count(DropReason::SipTableFull);
            self.net.out.push_bare(Item::Close { connection });
        }
    }

    /// Bytes of a connection. The framer is taken out while its frames are read, so that the user may do as it likes.
    fn stream(&mut self, id: ConnectionId, bytes: &[u8], now: Time, user: &mut dyn User) {
        let Some(slot) = self.net.connection(id) else {
            return;
        };
        let Some(connection) = self.net.connections.get_mut(slot as usize) else {
            return;
        };
        let flow = Flow {
            local: connection.local,
            transport: Transport::Tcp,
            remote: connection.remote,
            connection: Some(id),
        };
        let flow = match self.net.point(flow.local) {
            Some(point) => Flow {
                transport: point.transport,
                ..flow
            },
            None => flow,
        };
        if matches!(flow.transport, Transport::Ws | Transport::Wss) {
            self.whole_message(bytes, &flow, now, user);
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
        let broken = self.frames(&mut framer, &flow, now, user);
        if broken {
            self.drops.count(DropReason::SipStreamBroken);
            self.shut(id, now, user);
        } else if let Some(connection) = self.net.connections.get_mut(slot as usize)
            && connection.id == id
        {
            let partial = framer.pending() > 0;
            connection.framer = Some(framer);
            self.watch_partial(slot, partial, now);
        }
    }

    /// Notes since when a message is not whole: bytes that trickle in are no traffic.
    fn watch_partial(&mut self, slot: u32, partial: bool, now: Time) {
        let Some(connection) = self.net.connections.get_mut(slot as usize) else {
            return;
        };
        // A message that became whole just now gives the next one its own time.
        let began = match (partial, connection.partial) {
            (false, _) => None,
            (true, Some(began)) if connection.used < now => Some(began),
            (true, _) => Some(now),
        };
        if began.is_some() && connection.partial.is_none() {
            if let Some(timer) = connection.timer.take() {
                self.wheel.cancel(timer);
            }
            let at =
                (now + self.config.timers.message).min(connection.used + self.config.timers.idle);
            connection.timer = Some(self.wheel.schedule(at, Timer::Connection(slot)));
        }
        connection.partial = began;
    }

    /// One message of a WebSocket (RFC 7118 section 4: a message each, neither more nor less). CRLF keep-alives are
    /// answered there too (RFC 5626 section 3.5.1).
    fn whole_message(&mut self, bytes: &[u8], flow: &Flow, now: Time, user: &mut dyn User) {
        if let Some(slot) = flow.connection.and_then(|id| self.net.connection(id))
            && let Some(connection) = self.net.connections.get_mut(slot as usize)
        {
            connection.used = now;
        }
        if bytes.len() > self.config.limits.message_bytes {
            self.drops.count(DropReason::SipTooLarge);
            return;
        }
        match bytes {
            StreamFramer::PING => {
                self.drops.count(DropReason::SipKeepAlive);
                self.pong(flow);
            }
            b"" | StreamFramer::PONG => {
                self.pong_came(flow);
                self.drops.count(DropReason::SipKeepAlive);
            }
            _ if self.hand_message(bytes, flow, user) => {}
            _ => match &Message::parse_datagram(bytes) {
                Ok(message) => self.message(message, flow, now, user),
                Err(_) => self.drops.count(DropReason::SipUnparsable),
            },
        }
    }

    /// The peer that a certificate must name, for flows that lead to it over TLS: as [`Flow::connection`] of a flow to an
    /// address it means the connection that stands with that peer there, or a new one. `profile`: by which settings of
    /// the driver's it is opened. Give the same names again as often as you like.
    ///
    /// # Errors
    /// [`Refused::Full`] where too many are known.
    pub fn peer(&mut self, name: &str, profile: &str) -> Result<ConnectionId, Refused> {
        self.net.peer(name, profile).ok_or(Refused::Full)
    }

    /// The SIP domains for which the certificate of a connection's peer was verified.
    pub fn names_of(&self, connection: ConnectionId) -> &[String] {
        self.net.names(connection)
    }

    /// Reads all whole frames; `true` where the stream is beyond repair.
    fn frames(
        &mut self,
        framer: &mut StreamFramer,
        flow: &Flow,
        now: Time,
        user: &mut dyn User,
    ) -> bool {
        let used = |endpoint: &mut Endpoint| {
            if let Some(slot) = endpoint.net.connection_for(flow)
                && let Some(connection) = endpoint.net.connections.get_mut(slot as usize)
            {
                connection.used = now;
            }
        };
        loop {
            match framer.next() {
                None => break,
                Some(Frame::Error(_)) => return true,
                Some(Frame::Unframed(head, error)) => self.unframed(head, error, flow, now),
                Some(Frame::Ping) => {
                    used(self);
                    self.drops.count(DropReason::SipKeepAlive);
                    self.pong(flow);
                }
                Some(Frame::Pong) => {
                    used(self);
                    self.pong_came(flow);
                    self.drops.count(DropReason::SipKeepAlive);
                }
                Some(Frame::Message(bytes)) => {
                    used(self);
                    if !self.hand_message(bytes, flow, user) {
                        match &Message::parse_framed(bytes) {
                            Ok(message) => self.message(message, flow, now, user),
                            Err(_) => self.drops.count(DropReason::SipUnparsable),
                        }
                    }
                }
            }
            let stands = flow
                .connection
                .is_some_and(|id| self.net.connection(id).is_some());
            if !stands {
                return false;
            }
        }
        if framer.flush_pong().is_some() {
            used(self);
            self.pong_came(flow);
            self.drops.count(DropReason::SipKeepAlive);
        }
        false
    }

    /// A request whose end cannot be found is refused before its connection is closed (RFC 4475 section 3.1.2.3, RFC
    /// 3261 section 18.3 for what is too long).
    fn unframed(&mut self, head: &[u8], error: FrameError, flow: &Flow, now: Time) {
        match Message::parse_framed(head) {
            Ok(request) if request.is_request() => {
                let (status, reason): (u16, &[u8]) = match error {
                    FrameError::BodyTooLong => (413, b"Request Entity Too Large"),
                    _ => (400, b"Bad Content-Length"),
                };
                self.refuse_stateless(&request, status, reason, &[], flow, now);
            }
            _ => self.drops.count(DropReason::SipUnparsable),
        }
    }

    /// A ping of ours is answered.
    fn pong_came(&mut self, flow: &Flow) {
        if let Some(slot) = self.net.connection_for(flow)
            && let Some(connection) = self.net.connections.get_mut(slot as usize)
        {
            connection.pinged = None;
        }
    }

    /// Answers a ping (RFC 5626 section 4.4.1).
    fn pong(&mut self, flow: &Flow) {
        if let Some(connection) = flow.connection {
            self.net
                .out
                .push_copy(Item::Stream { connection }, StreamFramer::PONG);
        }
    }

    /// Closes a connection on our account.
    pub(crate) fn shut(&mut self, connection: ConnectionId, now: Time, user: &mut dyn User) {
        self.net.out.push_bare(Item::Close { connection });
        self.closed(connection, CloseWhy::Engine, now, user);
    }

    /// A connection has ended: requests that wait for an answer on it fail (RFC 3261 section 8.1.3.1, 17.1.4).
    pub(crate) fn closed(
        &mut self,
        id: ConnectionId,
        _why: CloseWhy,
        now: Time,
        user: &mut dyn User,
    ) {
        let Some(slot) = self.net.connection(id) else {
            return;
        };
        let Some(connection) = self.net.forget(slot, &mut self.wheel) else {
            return;
        };
        let transport = self
            .net
            .point(connection.local)
            .map_or(Transport::Tcp, |point| point.transport);
        self.tell_closed(id, connection.lent);
        for slot in connection.waiting {
            self.client_lost(slot, now, user);
        }
        // Its holder tells of the flow.
        if self.net.is_elsewhere(id) {
            return;
        }
        let flow = Flow {
            local: connection.local,
            transport,
            remote: connection.remote,
            connection: Some(id),
        };
        user.indication(self, Indication::FlowFailed { flow }, now);
    }

    /// The network says that a datagram of ours could not be delivered (RFC 3261 sections 8.1.3.1, 17.1.4, 18.4). Anybody can
    /// forge that, so only a transaction whose branch, which is secret, stands in the quoted bytes fails by it, and only
    /// while nothing has been heard.
    pub(crate) fn unreachable(
        &mut self,
        local: LocalId,
        destination: SocketAddr,
        quoted: &[u8],
        now: Time,
        user: &mut dyn User,
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
            self.drops.count(DropReason::SipStrayUnreachable);
            return;
        };
        self.client_lost(slot, now, user);
    }

    fn connection_timer(&mut self, slot: u32, now: Time, user: &mut dyn User) {
        let idle = self.config.timers.idle;
        let Some(connection) = self.net.connections.get_mut(slot as usize) else {
            return;
        };
        connection.timer = None;
        let id = connection.id;
        let unanswered = connection.pinged.map(|at| at + PONG_WAIT);
        if unanswered.is_some_and(|at| now >= at) {
            self.shut(id, now, user);
            return;
        }
        let late = connection
            .partial
            .map(|began| began + self.config.timers.message);
        if late.is_some_and(|late| now >= late) {
            self.drops.count(DropReason::StreamTooSlow);
            self.shut(id, now, user);
            return;
        }
        let due = late.map_or(connection.used + idle, |late| {
            late.min(connection.used + idle)
        });
        if now >= due && connection.waiting.is_empty() {
            match self.net.is_elsewhere(id) {
                // It stands as long as its holder likes.
                true => drop(self.net.forget(slot, &mut self.wheel)),
                false => self.shut(id, now, user),
            }
            return;
        }
        let at = if now >= due { now + idle } else { due };
        let at = unanswered.map_or(at, |unanswered| unanswered.min(at));
        let timer = self.wheel.schedule(at, Timer::Connection(slot));
        if let Some(connection) = self.net.connections.get_mut(slot as usize) {
            connection.timer = Some(timer);
        }
    }

    /// Whether a connection is in the tables.
    pub fn holds(&self, connection: ConnectionId) -> bool {
        self.net.connection(connection).is_some()
    }

    /// Closes an idle or unwanted connection.
    pub fn close_connection(&mut self, connection: ConnectionId, now: Time, user: &mut dyn User) {
        if self.net.connection(connection).is_some() {
            self.shut(connection, now, user);
        }
    }

    /// The user's number of a leg.
    pub fn user_of(&self, leg: LegId) -> Option<u64> {
        Some(self.leg(leg)?.user)
    }

    /// Gives a leg the user's number (an offered one has 0).
    pub fn set_user(&mut self, leg: LegId, user: u64) {
        if let Some(leg) = self.leg_mut(leg) {
            leg.user = user;
        }
    }

    /// The state of a leg.
    pub fn state_of(&self, leg: LegId) -> Option<LegState> {
        Some(self.leg(leg)?.state)
    }

    /// Whether a 2xx to an INVITE of ours in this leg waits for our ACK ([`Endpoint::ack`]).
    pub fn owes_ack(&self, leg: LegId) -> bool {
        self.leg(leg)
            .is_some_and(|leg| leg.owed_ack != crate::transaction::NONE)
    }

    /// Whether it was the user's turn to refresh a leg's session ([`crate::Indication::RefreshDue`]), and is still.
    pub fn refresh_is_due(&self, leg: LegId) -> bool {
        self.leg(leg)
            .is_some_and(|leg| leg.session.refreshing && !leg.peer_update)
    }

    /// Whether any response, be it a 100, has come to the INVITE with which we opened a leg that is not answered yet.
    pub fn heard(&self, leg: LegId) -> bool {
        self.leg(leg)
            .and_then(|leg| leg.setup.as_ref())
            .and_then(|setup| self.clients.get(setup.invite as usize))
            .is_some_and(|client| client.state != ClientState::Calling)
    }

    /// Where a leg's next request goes.
    pub fn flow_of(&self, leg: LegId) -> Option<Flow> {
        Some(self.leg(leg)?.peer.flow)
    }

    /// Sends a leg's further requests to `flow`, whatever host its route set or remote target names (after the user has
    /// located it, or behind NAT).
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::Transport`].
    pub fn pin(&mut self, leg: LegId, flow: Flow) -> Result<(), Refused> {
        self.net.check(&flow)?;
        let leg = self.leg_mut(leg).ok_or(Refused::Gone)?;
        leg.pinned = true;
        leg.peer.flow = flow;
        for early in leg.setup.iter_mut().flat_map(|setup| &mut setup.forks) {
            early.peer.flow = flow;
        }
        Ok(())
    }

    /// The name that decides where a leg's requests go, of its dialog or of an early one (RFC 3261 section 12.2.1.1): `None`
    /// where that is an address, or the leg is pinned. Until [`Endpoint::lead`] says where the name leads, requests go
    /// where the dialog went before.
    pub fn named_hop_of(&self, leg: LegId, fork: Option<Fork>) -> Option<NamedHop> {
        let leg = self.leg(leg).filter(|leg| !leg.pinned)?;
        let early = fork.and_then(|fork| leg.setup.as_ref()?.forks.get(usize::from(fork.0)));
        crate::dialog::named_hop(early.map_or(&leg.peer, |early| &early.peer))
    }

    /// Where a name leads: requests of the leg's dialogs whose next hop it is go to `flow` from now on.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::Transport`].
    pub fn lead(&mut self, leg: LegId, hop: &NamedHop, flow: Flow) -> Result<(), Refused> {
        self.net.check(&flow)?;
        let leg = self.leg_mut(leg).ok_or(Refused::Gone)?;
        if leg.pinned {
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

    /// Our tag and the peer's: for Replaces (RFC 3891). The peer's is empty where there is no dialog yet.
    pub fn tags_of(&self, leg: LegId) -> Option<(Vec<u8>, &[u8])> {
        let tag = self.tag_of(leg)?;
        Some((tag.as_bytes().to_vec(), self.leg(leg)?.peer.tag()))
    }

    /// The leg that a Replaces header means (RFC 3891 section 3): its `to-tag` is our tag.
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

    /// Whether the peer takes UPDATE, as far as it has said (RFC 3311 section 4).
    pub fn peer_takes_update(&self, leg: LegId) -> Option<bool> {
        Some(self.leg(leg)?.peer_update)
    }

    /// Whether the caller of an offered leg takes reliable provisional responses (RFC 3262).
    pub fn peer_takes_reliable(&self, leg: LegId) -> Option<bool> {
        Some(self.leg(leg)?.peer_reliable)
    }

    /// How much is held. Costs a walk over everything: for tests and for a look now and then.
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
            timers: self.wheel.len() - self.net.connections.len() - self.kept_timers(),
            connections: self.net.connections.len(),
            kept_bytes: clients + servers + legs + dialogs,
        }
    }

    /// What was dropped, by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// The configuration in force.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }
}

/// The branch of ours in the beginning of a message that may have been cut off.
pub(crate) fn branch_in(quoted: &[u8]) -> Option<&[u8]> {
    let length = MAGIC.len() + NAME_LEN;
    let at = quoted
        .windows(MAGIC.len())
        .position(|window| window == MAGIC)?;
    quoted.get(at..at + length)
}
