//! The transport layer (RFC 3261 section 18): listeners, connections, destinations of responses.

use crate::api::{Flow, KnownPeer, ListenerConfig, ListenerId, Refused};
use crate::config::{EndpointConfig, TimerConfig};
use crate::outbox::{Outbox, OutboxItem, PeerName};
use crate::timer::Timer;
use core::fmt::Write as _;
use engine::PagedSlab;
use engine::timers::{TimerKey, TimerWheel};
use engine::{
    BoundedMap, ConnectionId, Entropy, HashKey, RecordedMessage, SocketId, Time, Transport,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use wire::sip::{FrameLimits, HostPort, StreamFramer, Via};

/// Marks identifiers that select a named peer instead of a connection, see [`crate::Endpoint::peer`]. We number
/// connections from 1; identifiers from drivers have the highest bit set.
const PEER: u64 = 1 << 61;
/// Named peers, at most, if the limit of connections is lower.
const MAX_PEERS: usize = 10_000;

/// The index of a named peer in [`Outbox::peers`].
fn peer_of(id: ConnectionId) -> Option<u32> {
    let named = id.0 & (ConnectionId::ACCEPTED | 1 << 62 | PEER) == PEER;
    u32::try_from(id.0 & !PEER).ok().filter(|_| named)
}

/// Earlier names of a listener whose requests may still be in progress.
const MAX_FORMER_NAMES: usize = 4;

/// Largest UDP payload, in bytes.
const MAX_DATAGRAM: usize = 65_507;

/// A listener with the text that is written from it.
#[derive(Debug)]
pub(crate) struct SipListener {
    pub(crate) name: String,
    pub(crate) socket: SocketId,
    pub(crate) transport: Transport,
    pub(crate) address: SocketAddr,
    pub(crate) advertised: String,
    /// `SIP/2.0/UDP host:port;branch=`
    pub(crate) via: Vec<u8>,
    /// `sip:host:port;transport=tcp`
    pub(crate) contact: Vec<u8>,
    /// The Contact with the sips scheme, if the transport is secure.
    contact_sips: Vec<u8>,
    /// `host[:port]` as in Via.
    sent_by: String,
    /// Earlier values of `sent_by`, the latest first: requests in progress were sent with them.
    former_sent_by: Vec<String>,
    /// Only messages of existing dialogs and transactions are processed.
    closed: bool,
    /// Peers may be behind NAT.
    expects_nat: bool,
}

impl SipListener {
    fn new(local: ListenerConfig) -> SipListener {
        let mut listener = SipListener {
            name: local.name,
            socket: local.socket,
            transport: local.transport,
            address: local.address,
            advertised: local.advertised,
            via: Vec::new(),
            contact: Vec::new(),
            contact_sips: Vec::new(),
            sent_by: String::new(),
            former_sent_by: Vec::new(),
            closed: false,
            expects_nat: true,
        };
        listener.render();
        listener
    }

    fn render(&mut self) {
        let mut sent_by = String::new();
        // Writing into a String cannot fail.
        let _ = match self.advertised.as_str() {
            "" => write!(sent_by, "{}", self.address),
            advertised => write!(sent_by, "{advertised}"),
        };
        self.via = format!("SIP/2.0/{} {sent_by};branch=", self.transport.via_name()).into_bytes();
        self.contact = match self.transport {
            Transport::Udp => format!("sip:{sent_by}"),
            // WS and WSS have the same parameter (RFC 7118 section 5.2.3).
            Transport::Ws | Transport::Wss => format!("sip:{sent_by};transport=ws"),
            other => format!("sip:{sent_by};transport={}", other.uri_name()),
        }
        .into_bytes();
        self.contact_sips = match self.transport {
            Transport::Tls => format!("sips:{sent_by}").into_bytes(),
            Transport::Wss => format!("sips:{sent_by};transport=ws").into_bytes(),
            _ => self.contact.clone(),
        };
        self.sent_by = sent_by;
    }

    /// Writes this name from now on; responses to requests with earlier names are still accepted.
    fn rename(&mut self, name: String, advertised: String) {
        self.name = name;
        if self.advertised == advertised {
            return;
        }
        self.advertised = advertised;
        let former = self.sent_by.clone();
        self.render();
        self.former_sent_by.retain(|known| *known != former);
        self.former_sent_by.insert(0, former);
        self.former_sent_by.truncate(MAX_FORMER_NAMES);
    }

    /// The Contact URI; a sips URI if the request had one (RFC 3261 sections 8.1.1.8 and 12.1.1).
    pub(crate) fn contact_for(&self, sips: bool) -> &[u8] {
        match sips {
            true => &self.contact_sips,
            false => &self.contact,
        }
    }

    /// Whether the topmost Via of a response is this listener's (RFC 3261 section 18.1.2).
    pub(crate) fn matches_via(&self, via: &Via<'_>) -> bool {
        let usual = self.transport.default_port();
        let is_ours = |sent_by: &String| {
            HostPort::parse(sent_by.as_bytes()).is_some_and(|ours| {
                ours.host.same(&via.host) && ours.port.unwrap_or(usual) == via.port.unwrap_or(usual)
            })
        };
        via.raw.starts_with(&self.via)
            || is_ours(&self.sent_by)
            || self.former_sent_by.iter().any(is_ours)
    }
}

/// A stream connection.
#[derive(Debug)]
pub(crate) struct StreamConnection {
    pub(crate) id: ConnectionId,
    pub(crate) local: ListenerId,
    pub(crate) remote: SocketAddr,
    /// The named peer that we opened it for.
    peer: Option<u32>,
    /// The domains in the peer's verified certificate.
    verified_names: Box<[String]>,
    /// The peer's listening address for which it allows the use of this connection (RFC 5923).
    alias: Option<SocketAddr>,
    /// Since when a message is incomplete.
    pub(crate) incomplete_since: Option<Time>,
    /// Moved out while its frames are read.
    pub(crate) framer: Option<Box<StreamFramer>>,
    pub(crate) last_used: Time,
    /// The peer has sent a SIP message, or we opened the connection. Keep-alives alone do not keep others open.
    pub(crate) spoken: bool,
    /// When we sent the first message after the last received byte.
    pub(crate) unanswered_since: Option<Time>,
    /// Not used for new requests, see [`Net::detach`].
    pub(crate) detached: bool,
    /// The last search for connections of dialogs that found it, see [`crate::Endpoint::finds_dialog`].
    pub(crate) in_dialog: Option<Time>,
    /// Time of our unanswered ping.
    pub(crate) pinged_at: Option<Time>,
    pub(crate) timer: Option<TimerKey>,
    /// Client transactions that fail with the connection.
    pub(crate) waiting_clients: BTreeSet<u32>,
    /// Other workers that use it, one bit each.
    pub(crate) borrowers: u64,
}

/// A connection when it is added to the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewConnection {
    pub(crate) id: ConnectionId,
    pub(crate) local: ListenerId,
    pub(crate) remote: SocketAddr,
    /// The named peer that we open it for.
    pub(crate) peer: Option<u32>,
}

/// Starts the idle timers of connections.
#[derive(Debug)]
pub(crate) struct IdleTimers<'w> {
    pub(crate) now: Time,
    pub(crate) wheel: &'w mut TimerWheel<Timer>,
    /// Connections without traffic for this long are closed.
    pub(crate) idle: core::time::Duration,
    /// The same for accepted connections without a SIP message.
    pub(crate) unspoken: core::time::Duration,
}

impl<'w> IdleTimers<'w> {
    pub(crate) fn new(
        now: Time,
        wheel: &'w mut TimerWheel<Timer>,
        timers: &TimerConfig,
    ) -> IdleTimers<'w> {
        IdleTimers {
            now,
            wheel,
            idle: timers.idle,
            unspoken: timers.unspoken(),
        }
    }
}

/// Listeners, connections and the outbox.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) listeners: Vec<SipListener>,
    pub(crate) connections: PagedSlab<StreamConnection>,
    by_id: BoundedMap<ConnectionId, u32>,
    /// Connections by remote address: those that we opened, with the named peer, and accepted plain TCP connections.
    by_remote: BoundedMap<(SocketAddr, ListenerId, Option<u32>), u32>,
    /// Connections that the peer allows for an address of its own (RFC 5923 section 5).
    by_alias: BoundedMap<(SocketAddr, ListenerId), u32>,
    /// Indices of named peers.
    peers: BoundedMap<(String, String), u32>,
    /// Names of TLS peers by address, for flows without a named peer.
    known_peers: BTreeMap<(ListenerId, SocketAddr), PeerName>,
    /// Accepted connections by source.
    per_source: BoundedMap<IpAddr, u32>,
    per_source_limit: u32,
    /// Accepted connections, and their limit. Those that we open have as much room of their own.
    accepted: usize,
    accepted_limit: usize,
    /// Accepted connections, the oldest first; also some that have spoken or ended since.
    unspoken: VecDeque<ConnectionId>,
    last_id: u64,
    message_bytes: usize,
    /// Whether we open WebSockets, see [`crate::EndpointConfig::opens_websockets`].
    opens_websockets: bool,
    pub(crate) out: Outbox,
}

impl Net {
    pub(crate) fn new(config: &EndpointConfig, entropy: &mut Entropy) -> Net {
        let (limits, worker) = (&config.limits, config.worker);
        let key = HashKey::new(entropy);
        let connections = worker.share(limits.connections);
        Net {
            listeners: Vec::new(),
            connections: PagedSlab::new(),
            // Opened connections have as much room as accepted ones, which include those of other workers.
            by_id: BoundedMap::new(limits.connections.saturating_mul(2), key),
            by_remote: BoundedMap::new(connections.saturating_mul(2), key),
            by_alias: BoundedMap::new(connections, key),
            peers: BoundedMap::new(MAX_PEERS.max(connections), key),
            known_peers: BTreeMap::new(),
            per_source: BoundedMap::new(connections, key),
            per_source_limit: u32::try_from(worker.share(limits.connections_per_source))
                .unwrap_or(u32::MAX),
            accepted: 0,
            accepted_limit: connections,
            unspoken: VecDeque::new(),
            last_id: ConnectionId::of_worker(worker.number),
            message_bytes: limits.message_bytes,
            opens_websockets: config.opens_websockets,
            out: Outbox::of(worker),
        }
    }

    pub(crate) fn add(&mut self, local: ListenerConfig) -> ListenerId {
        self.listeners.push(SipListener::new(local));
        ListenerId((self.listeners.len() - 1) as u16)
    }

    pub(crate) fn listener(&self, local: ListenerId) -> Option<&SipListener> {
        self.listeners.get(usize::from(local.0))
    }

    pub(crate) fn is_closed(&self, local: ListenerId) -> bool {
        self.listener(local).is_some_and(|listener| listener.closed)
    }

    pub(crate) fn set_closed(&mut self, local: ListenerId, closed: bool) {
        if let Some(listener) = self.listeners.get_mut(usize::from(local.0)) {
            listener.closed = closed;
        }
    }

    pub(crate) fn set_nat_expected(&mut self, local: ListenerId, expected: bool) {
        if let Some(listener) = self.listeners.get_mut(usize::from(local.0)) {
            listener.expects_nat = expected;
        }
    }

    pub(crate) fn expects_nat(&self, local: ListenerId) -> bool {
        self.listener(local)
            .is_some_and(|listener| listener.expects_nat)
    }

    /// Changes the names of a listener, see [`crate::Endpoint::rename_listener`].
    pub(crate) fn rename(&mut self, local: ListenerId, name: String, advertised: String) {
        if let Some(listener) = self.listeners.get_mut(usize::from(local.0)) {
            listener.rename(name, advertised);
        }
    }

    pub(crate) fn local_of(
        &self,
        socket: SocketId,
        transport: Option<Transport>,
    ) -> Option<ListenerId> {
        self.listeners
            .iter()
            .position(|listener| {
                listener.socket == socket && transport.is_none_or(|t| t == listener.transport)
            })
            .map(|at| ListenerId(at as u16))
    }

    /// Sets the port of a listener whose socket was opened.
    pub(crate) fn opened(&mut self, socket: SocketId, address: SocketAddr) {
        for listener in self.listeners.iter_mut().filter(|p| p.socket == socket) {
            listener.address.set_port(address.port());
            listener.render();
        }
    }

    /// The listener of the same name and address family with another transport.
    pub(crate) fn sibling(&self, local: ListenerId, transport: Transport) -> Option<ListenerId> {
        let from = self.listener(local)?;
        if from.transport == transport {
            return Some(local);
        }
        self.listeners
            .iter()
            .position(|listener| {
                listener.transport == transport
                    && listener.name == from.name
                    && listener.address.is_ipv4() == from.address.is_ipv4()
            })
            .map(|at| ListenerId(at as u16))
    }

    /// Checks that a request can be sent on this flow.
    pub(crate) fn check_flow(&self, flow: &Flow) -> Result<(), Refused> {
        let listener = self.listener(flow.local).ok_or(Refused::Transport)?;
        let fits = listener.transport == flow.transport
            && listener.address.is_ipv4() == flow.remote.is_ipv4()
            && flow.remote.port() != 0;
        if fits {
            Ok(())
        } else {
            Err(Refused::Transport)
        }
    }

    /// The next output if it is a message that this worker sends, with its bytes. A message on a connection of another
    /// worker is recorded by that one.
    pub(crate) fn next_message(&self, now: Time) -> Option<(RecordedMessage, &[u8])> {
        let (item, bytes) = self.out.front()?;
        // Keep-alives and DNS queries are no messages.
        if !bytes.first()?.is_ascii_alphabetic() {
            return None;
        }
        let (listener, remote) = match item {
            OutboxItem::Datagram {
                socket,
                destination,
            } => {
                let is_sender =
                    |one: &&SipListener| one.socket == socket && one.transport == Transport::Udp;
                (self.listeners.iter().find(is_sender)?, destination)
            }
            OutboxItem::Stream { connection } if !self.out.is_foreign(connection) => {
                let slot = self.connection(connection)?;
                let connection = self.connections.get(slot as usize)?;
                (self.listener(connection.local)?, connection.remote)
            }
            _ => return None,
        };
        let message = RecordedMessage {
            at: now,
            sent: true,
            transport: listener.transport,
            local: listener.address,
            remote,
        };
        Some((message, bytes))
    }

    pub(crate) fn connection(&self, id: ConnectionId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The open connection for `flow`. A connection opened for a named peer serves only that peer, because its
    /// certificate was verified for that name (RFC 5922 section 7.3).
    pub(crate) fn connection_for(&self, flow: &Flow) -> Option<u32> {
        if let Some(slot) = flow.connection.and_then(|id| self.connection(id)) {
            return Some(slot);
        }
        // Only the holding worker has the state of its connection.
        if flow.connection.is_some_and(|id| self.is_foreign(id)) {
            return None;
        }
        let peer = self.named_peer(flow);
        self.by_remote
            .get(&(flow.remote, flow.local, peer))
            .copied()
            .or_else(|| self.alias_for(flow, peer?))
    }

    /// The named peer of a flow: the one that it selects, or the one known at its address.
    fn named_peer(&self, flow: &Flow) -> Option<u32> {
        flow.connection.and_then(peer_of).or_else(|| {
            let PeerName { name, profile } = self.known_peer(flow)?.clone();
            self.peers.get(&(name, profile)).copied()
        })
    }

    /// The name of the TLS peer at the address of a flow: with this port, otherwise with another one.
    fn known_peer(&self, flow: &Flow) -> Option<&PeerName> {
        if flow.transport != Transport::Tls {
            return None;
        }
        let at = |port| (flow.local, SocketAddr::new(flow.remote.ip(), port));
        let mut others = self.known_peers.range(at(0)..=at(u16::MAX));
        let exact = self.known_peers.get(&(flow.local, flow.remote));
        exact.or_else(|| others.next().map(|(_, name)| name))
    }

    /// Whether the name of the TLS peer at the address of a flow is known.
    pub(crate) fn knows_peer(&self, flow: &Flow) -> bool {
        self.known_peer(flow).is_some()
    }

    /// Stores the name of a TLS peer at an address, unless the address has one.
    pub(crate) fn learn_peer(&mut self, known: &KnownPeer<'_>) {
        let key = (known.local, known.address);
        if self.known_peers.contains_key(&key) || self.known_peers.len() >= MAX_PEERS {
            return;
        }
        let name = PeerName {
            name: known.name.to_owned(),
            profile: known.profile.to_owned(),
        };
        self.known_peers.insert(key, name);
    }

    /// Removes the names of TLS peers at addresses.
    pub(crate) fn forget_peers(&mut self) {
        self.known_peers.clear();
    }

    /// Whether another worker holds this connection.
    pub(crate) fn is_foreign(&self, id: ConnectionId) -> bool {
        peer_of(id).is_none() && self.out.is_foreign(id)
    }

    /// The idle time of a connection. It is half of it where another worker holds the connection: a keep-alive for our
    /// dialogs has to arrive before that worker closes it.
    pub(crate) fn idle_time(
        &self,
        id: ConnectionId,
        idle: core::time::Duration,
    ) -> core::time::Duration {
        match self.is_foreign(id) {
            true => idle / 2,
            false => idle,
        }
    }

    /// A connection that the peer opened and allowed for its address, with a certificate for the named peer (RFC 5923
    /// section 8).
    fn alias_for(&self, flow: &Flow, peer: u32) -> Option<u32> {
        let slot = *self.by_alias.get(&(flow.remote, flow.local))?;
        let name = &self.out.peers.get(peer as usize)?.name;
        let connection = self.connections.get(slot as usize)?;
        connection
            .verified_names
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
            .then_some(slot)
    }

    /// The identifier of a named peer and its TLS settings, for flows; `None` if the table is full.
    pub(crate) fn peer(&mut self, name: &str, profile: &str) -> Option<ConnectionId> {
        let key = (name.to_owned(), profile.to_owned());
        if let Some(&peer) = self.peers.get(&key) {
            return Some(ConnectionId(PEER | u64::from(peer)));
        }
        let peer = u32::try_from(self.out.peers.len()).ok()?;
        self.peers.insert(key, peer).ok()?;
        self.out.peers.push(PeerName {
            name: name.to_owned(),
            profile: profile.to_owned(),
        });
        Some(ConnectionId(PEER | u64::from(peer)))
    }

    /// The named peer of a flow.
    pub(crate) fn peer_name(&self, flow: &Flow) -> Option<PeerName> {
        let peer = flow.connection.and_then(peer_of)?;
        self.out.peers.get(peer as usize).cloned()
    }

    /// Stores the domains of the peer's verified certificate after the TLS handshake.
    pub(crate) fn set_verified_names(&mut self, id: ConnectionId, names: &[String]) {
        if let Some(slot) = self.connection(id)
            && let Some(connection) = self.connections.get_mut(slot as usize)
        {
            connection.verified_names = names.into();
        }
    }

    /// The domains in the verified certificate of a connection's peer.
    pub(crate) fn names(&self, id: ConnectionId) -> &[String] {
        self.connection(id)
            .and_then(|slot| self.connections.get(slot as usize))
            .map_or(&[], |connection| &connection.verified_names)
    }

    /// Processes `alias` in the topmost Via of a request: if the peer has a verified certificate, its connection may
    /// carry our requests to its listening address (RFC 5923 section 5).
    pub(crate) fn allow_alias(&mut self, id: ConnectionId, via: &Via<'_>) {
        let Some(slot) = self.connection(id) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(slot as usize) else {
            return;
        };
        if connection.verified_names.is_empty()
            || connection.peer.is_some()
            || connection.alias.is_some()
        {
            return;
        }
        let port = via.port.unwrap_or(Transport::Tls.default_port());
        let listens = SocketAddr::new(connection.remote.ip(), port);
        let key = (listens, connection.local);
        // The newest connection replaces an older one, which the peer may have lost without our notice.
        if self.by_alias.insert(key, slot).is_ok() {
            connection.alias = Some(listens);
        }
    }

    /// Sends the message composed since `start`, over a new connection if there is none. Returns the connection's slot
    /// for streams.
    pub(crate) fn send(
        &mut self,
        flow: &Flow,
        start: usize,
        mut timers: IdleTimers<'_>,
    ) -> Result<Option<u32>, Refused> {
        let length = self.out.composed(start).len();
        self.check_flow(flow)?;
        if length > self.message_bytes {
            return Err(Refused::TooLarge);
        }
        let socket = self.listener(flow.local).ok_or(Refused::Transport)?.socket;
        if flow.transport == Transport::Udp {
            if length > MAX_DATAGRAM {
                return Err(Refused::TooLarge);
            }
            let destination = flow.remote;
            self.out.push(
                OutboxItem::Datagram {
                    socket,
                    destination,
                },
                start,
            );
            return Ok(None);
        }
        let slot = match self.connection_for(flow) {
            Some(slot) => slot,
            None => self.open(flow, start, &mut timers)?,
        };
        let connection = self
            .connections
            .get_mut(slot as usize)
            .ok_or(Refused::Transport)?;
        connection.last_used = timers.now;
        connection.unanswered_since.get_or_insert(timers.now);
        let connection = connection.id;
        self.out.push(OutboxItem::Stream { connection }, start);
        Ok(Some(slot))
    }

    fn open(
        &mut self,
        flow: &Flow,
        start: usize,
        timers: &mut IdleTimers<'_>,
    ) -> Result<u32, Refused> {
        if let Some(id) = flow.connection.filter(|id| self.is_foreign(*id)) {
            let (local, remote) = (flow.local, flow.remote);
            return self
                .add_foreign_connection(id, local, remote, timers)
                .ok_or(Refused::Full);
        }
        let local = self
            .listener(flow.local)
            .ok_or(Refused::Transport)?
            .address
            .ip();
        let peer = flow.connection.and_then(peer_of).or_else(|| {
            let PeerName { name, profile } = self.known_peer(flow)?.clone();
            peer_of(self.peer(&name, &profile)?)
        });
        let secure = match flow.transport {
            Transport::Tls => Some(peer),
            Transport::Tcp => None,
            Transport::Ws if self.opens_websockets => None,
            Transport::Wss if self.opens_websockets => Some(peer),
            // Browsers connect to us and accept no connections (RFC 7118 section 5.3).
            Transport::Udp | Transport::Ws | Transport::Wss => return Err(Refused::Transport),
        };
        let websocket = matches!(flow.transport, Transport::Ws | Transport::Wss);
        self.last_id += 1;
        let id = ConnectionId(self.last_id);
        let slot = self
            .add_connection(
                NewConnection {
                    id,
                    local: flow.local,
                    remote: flow.remote,
                    peer,
                },
                timers,
            )
            .ok_or(Refused::Full)?;
        self.out.push_before(
            OutboxItem::Connect {
                connection: id,
                local: Some(SocketAddr::new(local, 0)),
                remote: flow.remote,
                secure,
                websocket,
            },
            start,
        );
        Ok(slot)
    }

    /// Adds a connection to the tables. `None`: they are full, or the source has too many.
    pub(crate) fn add_connection(
        &mut self,
        new: NewConnection,
        timers: &mut IdleTimers<'_>,
    ) -> Option<u32> {
        let NewConnection {
            id,
            local,
            remote,
            peer,
        } = new;
        let counted = self.is_counted(id);
        let count = self.per_source.get(&remote.ip()).copied().unwrap_or(0);
        if counted && (count >= self.per_source_limit || self.accepted >= self.accepted_limit) {
            return None;
        }
        // An accepted TLS connection does not prove the peer's address, and a WebSocket client has no listening
        // address: both are used by their identifiers only.
        let plain = |listener: &SipListener| listener.transport == Transport::Tcp;
        let ours = id.0 & ConnectionId::ACCEPTED == 0;
        let reachable = ours || self.listener(local).is_some_and(plain);
        let slot = self.insert_connection(new, timers)?;
        let stored = (!counted || self.per_source.insert(remote.ip(), count + 1).is_ok())
            && (!reachable || self.by_remote.insert((remote, local, peer), slot).is_ok());
        if !stored {
            self.remove_connection(slot, timers.wheel);
            return None;
        }
        Some(slot)
    }

    /// Whether a connection counts towards the limits: we have accepted it.
    fn is_counted(&self, id: ConnectionId) -> bool {
        id.0 & ConnectionId::ACCEPTED != 0 && !self.is_foreign(id)
    }

    /// The oldest accepted connection without a SIP message, if a new one of this source would be refused only because
    /// all places are taken.
    pub(crate) fn displaced_by(&mut self, source: IpAddr) -> Option<ConnectionId> {
        let count = self.per_source.get(&source).copied().unwrap_or(0);
        if self.accepted < self.accepted_limit || count >= self.per_source_limit {
            return None;
        }
        self.skip_spoken();
        self.unspoken.pop_front()
    }

    /// Removes connections that have spoken or ended from the front of the unspoken ones.
    fn skip_spoken(&mut self) {
        while let Some(&id) = self.unspoken.front()
            && !self.is_unspoken(id)
        {
            self.unspoken.pop_front();
        }
    }

    fn is_unspoken(&self, id: ConnectionId) -> bool {
        let connection = self.connection(id);
        connection
            .and_then(|slot| self.connections.get(slot as usize))
            .is_some_and(|connection| !connection.spoken)
    }

    fn push_unspoken(&mut self, id: ConnectionId) {
        self.skip_spoken();
        if self.unspoken.len() >= self.accepted_limit.saturating_mul(2) {
            let mut all = core::mem::take(&mut self.unspoken);
            all.retain(|id| self.is_unspoken(*id));
            self.unspoken = all;
        }
        self.unspoken.push_back(id);
    }

    /// Uses a connection no longer for new requests to its peer's address, because the peer seems to be dead.
    pub(crate) fn detach(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot as usize) else {
            return;
        };
        connection.detached = true;
        let alias = connection.alias.take();
        let (remote, local, peer) = (connection.remote, connection.local, connection.peer);
        self.forget_addresses(slot, (remote, local, peer), alias);
    }

    /// Uses a detached connection again, unless another one has replaced it: its peer is alive.
    pub(crate) fn reattach(&mut self, slot: u32) {
        let Some(connection) = self.connections.get_mut(slot as usize) else {
            return;
        };
        connection.detached = false;
        let ours = connection.id.0 & ConnectionId::ACCEPTED == 0;
        let key = (connection.remote, connection.local, connection.peer);
        let plain = self
            .listener(key.1)
            .is_some_and(|listener| listener.transport == Transport::Tcp);
        if (ours || plain) && self.by_remote.get(&key).is_none() {
            // Cannot be full: the entry of this connection is free.
            let _ = self.by_remote.insert(key, slot);
        }
    }

    fn forget_addresses(
        &mut self,
        slot: u32,
        key: (SocketAddr, ListenerId, Option<u32>),
        alias: Option<SocketAddr>,
    ) {
        if self.by_remote.get(&key) == Some(&slot) {
            self.by_remote.remove(&key);
        }
        if let Some(alias) = alias.map(|alias| (alias, key.1))
            && self.by_alias.get(&alias) == Some(&slot)
        {
            self.by_alias.remove(&alias);
        }
    }

    fn insert_connection(
        &mut self,
        new: NewConnection,
        timers: &mut IdleTimers<'_>,
    ) -> Option<u32> {
        let NewConnection {
            id,
            local,
            remote,
            peer,
        } = new;
        if self.by_id.is_full() || self.by_id.get(&id).is_some() {
            return None;
        }
        let limits = FrameLimits {
            headers: self.message_bytes,
            body: self.message_bytes,
        };
        let framer = || Box::new(StreamFramer::new(limits));
        let counted = self.is_counted(id);
        let slot = self.connections.insert(StreamConnection {
            id,
            local,
            remote,
            peer,
            verified_names: Box::default(),
            alias: None,
            incomplete_since: None,
            framer: (!self.is_foreign(id)).then(framer),
            last_used: timers.now,
            spoken: !counted,
            unanswered_since: None,
            detached: false,
            in_dialog: None,
            pinged_at: None,
            timer: None,
            waiting_clients: BTreeSet::new(),
            borrowers: 0,
        }) as u32;
        let idle = match counted {
            true => timers.unspoken,
            false => timers.idle,
        };
        let at = timers.now + self.idle_time(id, idle);
        let timer = timers.wheel.schedule(at, Timer::Connection(slot));
        if let Some(connection) = self.connections.get_mut(slot as usize) {
            connection.timer = Some(timer);
        }
        // Cannot fail: capacity was checked above.
        let _ = self.by_id.insert(id, slot);
        if counted {
            self.accepted += 1;
            self.push_unspoken(id);
        }
        Some(slot)
    }

    /// Adds a connection of another worker to the tables, if it is not there. `None`: they are full. Only its holder
    /// counts it towards the limits, and it is used by its identifier only.
    pub(crate) fn add_foreign_connection(
        &mut self,
        id: ConnectionId,
        local: ListenerId,
        remote: SocketAddr,
        timers: &mut IdleTimers<'_>,
    ) -> Option<u32> {
        let new = NewConnection {
            id,
            local,
            remote,
            peer: None,
        };
        match self.connection(id) {
            Some(slot) => Some(slot),
            None => self.insert_connection(new, timers),
        }
    }

    /// Removes a connection from the tables.
    pub(crate) fn remove_connection(
        &mut self,
        slot: u32,
        wheel: &mut TimerWheel<Timer>,
    ) -> Option<StreamConnection> {
        let connection = self.connections.try_remove(slot as usize)?;
        if let Some(timer) = connection.timer {
            wheel.cancel(timer);
        }
        self.by_id.remove(&connection.id);
        let key = (connection.remote, connection.local, connection.peer);
        self.forget_addresses(slot, key, connection.alias);
        if !self.is_counted(connection.id) {
            return Some(connection);
        }
        self.accepted -= 1;
        match self.per_source.get_mut(&connection.remote.ip()) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                self.per_source.remove(&connection.remote.ip());
            }
        }
        Some(connection)
    }
}

/// Whether a URI has the sips scheme.
pub(crate) fn is_sips(uri: &[u8]) -> bool {
    uri.get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"sips:"))
}

/// UDP requests without rport whose peer counts as behind NAT, so that the response goes to their source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NatDetection {
    /// None.
    Off,
    /// Those from another address than that in sent-by. With the same address there is no NAT, and a peer may listen at
    /// another port than the one that it sends from.
    Address,
    /// Also those with a name in sent-by, which may stand for any address.
    AddressOrName,
}

impl NatDetection {
    fn detects(self, via: &Via<'_>, source: IpAddr) -> bool {
        match via.host.ip() {
            Some(ip) => self != NatDetection::Off && ip != source,
            None => self == NatDetection::AddressOrName,
        }
    }
}

/// Destination of the response to a request: RFC 3261 section 18.2.2 and RFC 3581 section 4.
pub(crate) fn reply_flow(via: &Via<'_>, from: &Flow, detection: NatDetection) -> Flow {
    let mut flow = *from;
    if from.transport.is_reliable() {
        // The connection while it is open; after its failure a new one to the port in sent-by.
        let port = via.port.unwrap_or(from.transport.default_port());
        flow.remote.set_port(port);
        return flow;
    }
    if via.rport().is_some() || detection.detects(via, from.remote.ip()) {
        return flow;
    }
    let port = via.port.unwrap_or(from.transport.default_port());
    let multicast = via
        .maddr()
        .and_then(|host| host.ip())
        // With a unicast maddr a client could direct our responses to any host, so only multicast is accepted.
        .filter(|ip| ip.is_multicast() && ip.is_ipv4() == from.remote.is_ipv4());
    flow.remote = SocketAddr::new(multicast.unwrap_or(from.remote.ip()), port);
    flow
}
