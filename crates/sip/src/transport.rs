//! The transport layer (RFC 3261 section 18): listening points, connections, where responses go.

use crate::api::{Flow, Local, LocalId, Refused};
use crate::config::EndpointConfig;
use crate::outbox::{Item, Outbox, PeerName};
use crate::timer::Timer;
use core::fmt::Write as _;
use engine::timers::{TimerKey, Wheel};
use engine::{BoundedMap, ConnectionId, Entropy, HashKey, SocketId, Time, Transport};
use slab::Slab;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use wire::sip::{FrameLimits, HostPort, StreamFramer, Via};

/// Set in the numbers that stand for a named peer instead of a connection, see [`crate::Endpoint::peer`]. Numbers of
/// connections are counted from 1 by us, and have the highest bit where drivers give them.
const PEER: u64 = 1 << 61;
/// Named peers at most, where no more connections than these are allowed.
const MAX_PEERS: usize = 10_000;

/// The number of a named peer in [`Outbox::peers`].
fn peer_of(id: ConnectionId) -> Option<u32> {
    let named = id.0 & (ConnectionId::ACCEPTED | 1 << 62 | PEER) == PEER;
    u32::try_from(id.0 & !PEER).ok().filter(|_| named)
}

/// The largest UDP payload.
const MAX_DATAGRAM: usize = 65_507;

/// A listening point with what is written from it.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) name: String,
    pub(crate) socket: SocketId,
    pub(crate) transport: Transport,
    pub(crate) address: SocketAddr,
    pub(crate) advertised: String,
    /// `SIP/2.0/UDP host:port;branch=`
    pub(crate) via: Vec<u8>,
    /// `sip:host:port;transport=tcp`
    pub(crate) contact: Vec<u8>,
    /// The same of the sips scheme, where the transport is secure.
    contact_sips: Vec<u8>,
    /// host[:port] as in Via.
    sent_by: String,
    /// Nothing new is taken in here.
    closed: bool,
}

impl Point {
    fn new(local: Local) -> Point {
        let mut point = Point {
            name: local.name,
            socket: local.socket,
            transport: local.transport,
            address: local.address,
            advertised: local.advertised,
            via: Vec::new(),
            contact: Vec::new(),
            contact_sips: Vec::new(),
            sent_by: String::new(),
            closed: false,
        };
        point.render();
        point
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
            // The parameter is the same for both (RFC 7118 section 5.2.3).
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

    /// The Contact URI; where sips was asked for it is one too (RFC 3261 sections 8.1.1.8 and 12.1.1).
    pub(crate) fn contact_for(&self, sips: bool) -> &[u8] {
        match sips {
            true => &self.contact_sips,
            false => &self.contact,
        }
    }

    /// Whether a response's topmost Via is this point's (RFC 3261 section 18.1.2).
    pub(crate) fn wrote(&self, via: &Via<'_>) -> bool {
        via.raw.starts_with(&self.via)
            || HostPort::parse(self.sent_by.as_bytes()).is_some_and(|ours| {
                ours.host.same(&via.host)
                    && ours.port.unwrap_or(default_port(self.transport))
                        == via.port.unwrap_or(default_port(self.transport))
            })
    }
}

/// The port of a transport where none is written (RFC 3261 section 18.2.2, RFC 7118 section 5.2.4).
pub(crate) fn default_port(transport: Transport) -> u16 {
    match transport {
        Transport::Udp | Transport::Tcp => 5060,
        Transport::Tls => 5061,
        Transport::Ws => 80,
        Transport::Wss => 443,
    }
}

/// A stream connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) local: LocalId,
    pub(crate) remote: SocketAddr,
    /// The named peer for which we opened it.
    peer: Option<u32>,
    /// The domains for which the peer's certificate was verified.
    names: Box<[String]>,
    /// Where the peer listens too, and said that this connection may be used for it (RFC 5923).
    alias: Option<SocketAddr>,
    /// Since when a message is not whole.
    pub(crate) partial: Option<Time>,
    /// Taken out while its frames are read.
    pub(crate) framer: Option<Box<StreamFramer>>,
    pub(crate) used: Time,
    /// When we asked whether it stands, while there is no answer.
    pub(crate) pinged: Option<Time>,
    pub(crate) timer: Option<TimerKey>,
    /// Client transactions that fail with the connection.
    pub(crate) waiting: BTreeSet<u32>,
    /// Other workers that use it, a bit each.
    pub(crate) lent: u64,
}

/// Listening points, connections and the outbox.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) points: Vec<Point>,
    pub(crate) connections: Slab<Connection>,
    by_id: BoundedMap<ConnectionId, u32>,
    /// Connections to an address: those that we opened, by the peer that they were opened for, and plain TCP ones.
    by_remote: BoundedMap<(SocketAddr, LocalId, Option<u32>), u32>,
    /// Connections that a peer said may be used for an address of its own (RFC 5923 section 5).
    by_alias: BoundedMap<(SocketAddr, LocalId), u32>,
    /// Numbers of named peers.
    peers: BoundedMap<(String, String), u32>,
    per_source: BoundedMap<IpAddr, u32>,
    per_source_limit: u32,
    opened: u64,
    message_bytes: usize,
    /// Whether we are a client of WebSockets, see [`crate::EndpointConfig::opens_websockets`].
    opens_websockets: bool,
    pub(crate) out: Outbox,
}

impl Net {
    pub(crate) fn new(config: &EndpointConfig, entropy: &mut Entropy) -> Net {
        let (limits, worker) = (&config.limits, config.worker);
        let key = HashKey::new(entropy);
        let connections = worker.share(limits.connections);
        Net {
            points: Vec::new(),
            connections: Slab::new(),
            // Those of other workers, too.
            by_id: BoundedMap::new(limits.connections, key),
            by_remote: BoundedMap::new(connections, key),
            by_alias: BoundedMap::new(connections, key),
            peers: BoundedMap::new(MAX_PEERS.max(connections), key),
            per_source: BoundedMap::new(connections, key),
            per_source_limit: u32::try_from(worker.share(limits.connections_per_source))
                .unwrap_or(u32::MAX),
            opened: ConnectionId::of_worker(worker.number),
            message_bytes: limits.message_bytes,
            opens_websockets: config.opens_websockets,
            out: Outbox::of(worker),
        }
    }

    pub(crate) fn add(&mut self, local: Local) -> LocalId {
        self.points.push(Point::new(local));
        LocalId((self.points.len() - 1) as u16)
    }

    pub(crate) fn point(&self, local: LocalId) -> Option<&Point> {
        self.points.get(usize::from(local.0))
    }

    pub(crate) fn is_closed(&self, local: LocalId) -> bool {
        self.point(local).is_some_and(|point| point.closed)
    }

    pub(crate) fn set_closed(&mut self, local: LocalId, closed: bool) {
        if let Some(point) = self.points.get_mut(usize::from(local.0)) {
            point.closed = closed;
        }
    }

    pub(crate) fn local_of(
        &self,
        socket: SocketId,
        transport: Option<Transport>,
    ) -> Option<LocalId> {
        self.points
            .iter()
            .position(|point| {
                point.socket == socket && transport.is_none_or(|t| t == point.transport)
            })
            .map(|at| LocalId(at as u16))
    }

    /// The socket's address is known now.
    pub(crate) fn opened(&mut self, socket: SocketId, address: SocketAddr) {
        for point in self.points.iter_mut().filter(|p| p.socket == socket) {
            point.address.set_port(address.port());
            point.render();
        }
    }

    /// The listening point of the same name with another transport and the same family.
    pub(crate) fn sibling(&self, local: LocalId, transport: Transport) -> Option<LocalId> {
        let from = self.point(local)?;
        if from.transport == transport {
            return Some(local);
        }
        self.points
            .iter()
            .position(|point| {
                point.transport == transport
                    && point.name == from.name
                    && point.address.is_ipv4() == from.address.is_ipv4()
            })
            .map(|at| LocalId(at as u16))
    }

    /// Whether a request can leave by this flow.
    pub(crate) fn check(&self, flow: &Flow) -> Result<(), Refused> {
        let point = self.point(flow.local).ok_or(Refused::Transport)?;
        let fits = point.transport == flow.transport
            && point.address.is_ipv4() == flow.remote.is_ipv4()
            && flow.remote.port() != 0;
        if fits {
            Ok(())
        } else {
            Err(Refused::Transport)
        }
    }

    pub(crate) fn connection(&self, id: ConnectionId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The connection that `flow` would use as things stand. One that was opened for a peer is used for that peer alone:
    /// its certificate was held against that name (RFC 5922 section 7.3).
    pub(crate) fn connection_for(&self, flow: &Flow) -> Option<u32> {
        if let Some(slot) = flow.connection.and_then(|id| self.connection(id)) {
            return Some(slot);
        }
        // Whether another worker still has it, that worker knows.
        if flow.connection.is_some_and(|id| self.is_elsewhere(id)) {
            return None;
        }
        let peer = flow.connection.and_then(peer_of);
        self.by_remote
            .get(&(flow.remote, flow.local, peer))
            .copied()
            .or_else(|| self.alias_for(flow, peer?))
    }

    /// Whether another worker holds this connection.
    pub(crate) fn is_elsewhere(&self, id: ConnectionId) -> bool {
        peer_of(id).is_none() && self.out.is_elsewhere(id)
    }

    /// A connection that the peer opened, where it said that it may be used, and showed a certificate of that name
    /// (RFC 5923 section 8).
    fn alias_for(&self, flow: &Flow, peer: u32) -> Option<u32> {
        let slot = *self.by_alias.get(&(flow.remote, flow.local))?;
        let name = &self.out.peers.get(peer as usize)?.name;
        let connection = self.connections.get(slot as usize)?;
        connection
            .names
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
            .then_some(slot)
    }

    /// The peer of this name, reached by these settings, as flows have it; `None` where there are too many.
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

    /// The peer that a flow names.
    pub(crate) fn peer_name(&self, flow: &Flow) -> Option<PeerName> {
        let peer = flow.connection.and_then(peer_of)?;
        self.out.peers.get(peer as usize).cloned()
    }

    /// TLS stands on a connection, and the peer showed a certificate for these domains.
    pub(crate) fn secured(&mut self, id: ConnectionId, names: &[String]) {
        if let Some(slot) = self.connection(id)
            && let Some(connection) = self.connections.get_mut(slot as usize)
        {
            connection.names = names.into();
        }
    }

    /// The domains for which the certificate of a connection's peer was verified.
    pub(crate) fn names(&self, id: ConnectionId) -> &[String] {
        self.connection(id)
            .and_then(|slot| self.connections.get(slot as usize))
            .map_or(&[], |connection| &connection.names)
    }

    /// A request came with `alias` in its topmost Via: its connection may be used for requests of ours to where the peer
    /// listens (RFC 5923 section 5), where the peer has proven who it is.
    pub(crate) fn alias(&mut self, id: ConnectionId, via: &Via<'_>) {
        let Some(slot) = self.connection(id) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(slot as usize) else {
            return;
        };
        if connection.names.is_empty() || connection.peer.is_some() || connection.alias.is_some() {
            return;
        }
        let port = via.port.unwrap_or(default_port(Transport::Tls));
        let listens = SocketAddr::new(connection.remote.ip(), port);
        let key = (listens, connection.local);
        // The newest one counts: the peer may have lost an older one without our knowing.
        if self.by_alias.insert(key, slot).is_ok() {
            connection.alias = Some(listens);
        }
    }

    /// Sends what was composed since `start`; a missing connection is opened. Gives the connection's slot for streams.
    pub(crate) fn send(
        &mut self,
        flow: &Flow,
        start: usize,
        now: Time,
        wheel: &mut Wheel<Timer>,
        idle: core::time::Duration,
    ) -> Result<Option<u32>, Refused> {
        let length = self.out.composed(start).len();
        self.check(flow)?;
        if length > self.message_bytes {
            return Err(Refused::TooLarge);
        }
        let socket = self.point(flow.local).ok_or(Refused::Transport)?.socket;
        if flow.transport == Transport::Udp {
            if length > MAX_DATAGRAM {
                return Err(Refused::TooLarge);
            }
            let destination = flow.remote;
            self.out.push(
                Item::Datagram {
                    socket,
                    destination,
                },
                start,
            );
            return Ok(None);
        }
        let slot = match self.connection_for(flow) {
            Some(slot) => slot,
            None => self.open(flow, start, now, wheel, idle)?,
        };
        let connection = self
            .connections
            .get_mut(slot as usize)
            .ok_or(Refused::Transport)?;
        connection.used = now;
        let connection = connection.id;
        self.out.push(Item::Stream { connection }, start);
        Ok(Some(slot))
    }

    fn open(
        &mut self,
        flow: &Flow,
        start: usize,
        now: Time,
        wheel: &mut Wheel<Timer>,
        idle: core::time::Duration,
    ) -> Result<u32, Refused> {
        if let Some(id) = flow.connection.filter(|id| self.is_elsewhere(*id)) {
            let (local, remote) = (flow.local, flow.remote);
            return self
                .borrow(id, local, remote, now, wheel, idle)
                .ok_or(Refused::Full);
        }
        let local = self
            .point(flow.local)
            .ok_or(Refused::Transport)?
            .address
            .ip();
        let peer = flow.connection.and_then(peer_of);
        let secure = match flow.transport {
            Transport::Tls => Some(peer),
            Transport::Tcp => None,
            Transport::Ws if self.opens_websockets => None,
            Transport::Wss if self.opens_websockets => Some(peer),
            // Browsers connect to us; nobody waits for us to (RFC 7118 section 5.3).
            Transport::Udp | Transport::Ws | Transport::Wss => return Err(Refused::Transport),
        };
        let websocket = matches!(flow.transport, Transport::Ws | Transport::Wss);
        self.opened += 1;
        let id = ConnectionId(self.opened);
        let slot = self
            .keep(id, flow.local, flow.remote, peer, now, wheel, idle)
            .ok_or(Refused::Full)?;
        self.out.push_before(
            Item::Connect {
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

    /// Takes a connection into the tables; `None` where they are full, or the source has too many. `peer`: whom we opened
    /// it for.
    #[allow(clippy::too_many_arguments)] // what a connection is
    pub(crate) fn keep(
        &mut self,
        id: ConnectionId,
        local: LocalId,
        remote: SocketAddr,
        peer: Option<u32>,
        now: Time,
        wheel: &mut Wheel<Timer>,
        idle: core::time::Duration,
    ) -> Option<u32> {
        let held = self.per_source.get(&remote.ip()).copied().unwrap_or(0);
        if held >= self.per_source_limit {
            return None;
        }
        // Who opened a TLS connection has not said who it is by that, and WebSockets lead to no address: they are used by
        // their own numbers only.
        let plain = |point: &Point| point.transport == Transport::Tcp;
        let ours = id.0 & ConnectionId::ACCEPTED == 0;
        let reachable = ours || self.point(local).is_some_and(plain);
        let slot = self.insert(id, (local, remote, peer), now, wheel, idle)?;
        let stored = self.per_source.insert(remote.ip(), held + 1).is_ok()
            && (!reachable || self.by_remote.insert((remote, local, peer), slot).is_ok());
        if !stored {
            self.forget(slot, wheel);
            return None;
        }
        Some(slot)
    }

    fn insert(
        &mut self,
        id: ConnectionId,
        (local, remote, peer): (LocalId, SocketAddr, Option<u32>),
        now: Time,
        wheel: &mut Wheel<Timer>,
        idle: core::time::Duration,
    ) -> Option<u32> {
        if self.by_id.is_full() || self.by_id.get(&id).is_some() {
            return None;
        }
        let limits = FrameLimits {
            headers: self.message_bytes,
            body: self.message_bytes,
        };
        let framer = || Box::new(StreamFramer::new(limits));
        let slot = self.connections.insert(Connection {
            id,
            local,
            remote,
            peer,
            names: Box::default(),
            alias: None,
            partial: None,
            framer: (!self.is_elsewhere(id)).then(framer),
            used: now,
            pinged: None,
            timer: None,
            waiting: BTreeSet::new(),
            lent: 0,
        }) as u32;
        let timer = wheel.schedule(now + idle, Timer::Connection(slot));
        if let Some(connection) = self.connections.get_mut(slot as usize) {
            connection.timer = Some(timer);
        }
        // There is room: that was looked at above.
        let _ = self.by_id.insert(id, slot);
        Some(slot)
    }

    /// Takes a connection that another worker holds into the tables, where it is not there yet; `None` where they are full.
    /// It counts with its holder, and is used by its number only.
    pub(crate) fn borrow(
        &mut self,
        id: ConnectionId,
        local: LocalId,
        remote: SocketAddr,
        now: Time,
        wheel: &mut Wheel<Timer>,
        idle: core::time::Duration,
    ) -> Option<u32> {
        match self.connection(id) {
            Some(slot) => Some(slot),
            None => self.insert(id, (local, remote, None), now, wheel, idle),
        }
    }

    /// Takes a connection out of the tables.
    pub(crate) fn forget(&mut self, slot: u32, wheel: &mut Wheel<Timer>) -> Option<Connection> {
        let connection = self.connections.try_remove(slot as usize)?;
        if let Some(timer) = connection.timer {
            wheel.cancel(timer);
        }
        self.by_id.remove(&connection.id);
        let key = (connection.remote, connection.local, connection.peer);
        if self.by_remote.get(&key) == Some(&slot) {
            self.by_remote.remove(&key);
        }
        if let Some(key) = connection.alias.map(|alias| (alias, connection.local))
            && self.by_alias.get(&key) == Some(&slot)
        {
            self.by_alias.remove(&key);
        }
        if self.is_elsewhere(connection.id) {
            return Some(connection);
        }
        match self.per_source.get_mut(&connection.remote.ip()) {
            Some(held) if *held > 1 => *held -= 1,
            _ => {
                self.per_source.remove(&connection.remote.ip());
            }
        }
        Some(connection)
    }
}

/// Whether a URI is of the sips scheme.
pub(crate) fn is_sips(uri: &[u8]) -> bool {
    uri.get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"sips:"))
}

/// Where the response to a request goes: RFC 3261 section 18.2.2 and RFC 3581 section 4.
pub(crate) fn reply_flow(via: &Via<'_>, from: &Flow, symmetric: bool) -> Flow {
    let mut flow = *from;
    if from.transport.is_reliable() {
        // The connection while it stands; a new one to sent-by's port after it has failed.
        let port = via.port.unwrap_or(default_port(from.transport));
        flow.remote.set_port(port);
        return flow;
    }
    if symmetric || via.rport().is_some() {
        return flow;
    }
    let port = via.port.unwrap_or(default_port(from.transport));
    let multicast = via
        .maddr()
        .and_then(|host| host.ip())
        // A unicast maddr would let anyone aim our responses at anyone: only multicast, for which it was made.
        .filter(|ip| ip.is_multicast() && ip.is_ipv4() == from.remote.is_ipv4());
    flow.remote = SocketAddr::new(multicast.unwrap_or(from.remote.ip()), port);
    flow
}
