//! The transport layer (RFC 3261 section 18): listening points, connections, where responses go.

use crate::api::{Flow, Local, LocalId, Refused};
use crate::outbox::{Item, Outbox};
use crate::timer::Timer;
use core::fmt::Write as _;
use engine::timers::{TimerKey, Wheel};
use engine::{BoundedMap, ConnectionId, Entropy, HashKey, Limits, SocketId, Time, Transport};
use slab::Slab;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use wire::sip::{FrameLimits, HostPort, StreamFramer, Via};

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
    /// host[:port] as in Via.
    sent_by: String,
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
            sent_by: String::new(),
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
            other => format!("sip:{sent_by};transport={}", other.uri_name()),
        }
        .into_bytes();
        self.sent_by = sent_by;
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

/// The port of a transport where none is written (RFC 3261 section 18.2.2).
pub(crate) fn default_port(transport: Transport) -> u16 {
    match transport {
        Transport::Tls | Transport::Wss => 5061,
        _ => 5060,
    }
}

/// A stream connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) local: LocalId,
    pub(crate) remote: SocketAddr,
    /// Taken out while its frames are read.
    pub(crate) framer: Option<Box<StreamFramer>>,
    pub(crate) used: Time,
    pub(crate) timer: Option<TimerKey>,
    /// Client transactions that fail with the connection.
    pub(crate) waiting: BTreeSet<u32>,
}

/// Listening points, connections and the outbox.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) points: Vec<Point>,
    pub(crate) connections: Slab<Connection>,
    by_id: BoundedMap<ConnectionId, u32>,
    by_remote: BoundedMap<(SocketAddr, LocalId), u32>,
    per_source: BoundedMap<IpAddr, u32>,
    per_source_limit: u32,
    opened: u64,
    message_bytes: usize,
    pub(crate) out: Outbox,
}

impl Net {
    pub(crate) fn new(limits: &Limits, entropy: &mut Entropy) -> Net {
        let key = HashKey::new(entropy);
        Net {
            points: Vec::new(),
            connections: Slab::new(),
            by_id: BoundedMap::new(limits.connections, key),
            by_remote: BoundedMap::new(limits.connections, key),
            per_source: BoundedMap::new(limits.connections, key),
            per_source_limit: u32::try_from(limits.connections_per_source).unwrap_or(u32::MAX),
            opened: 0,
            message_bytes: limits.message_bytes,
            out: Outbox::default(),
        }
    }

    pub(crate) fn add(&mut self, local: Local) -> LocalId {
        self.points.push(Point::new(local));
        LocalId((self.points.len() - 1) as u16)
    }

    pub(crate) fn point(&self, local: LocalId) -> Option<&Point> {
        self.points.get(usize::from(local.0))
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
            && flow.remote.port() != 0
            && matches!(
                flow.transport,
                Transport::Udp | Transport::Tcp | Transport::Tls
            );
        if fits {
            Ok(())
        } else {
            Err(Refused::Transport)
        }
    }

    pub(crate) fn connection(&self, id: ConnectionId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The connection that `flow` would use as things stand.
    pub(crate) fn connection_for(&self, flow: &Flow) -> Option<u32> {
        flow.connection
            .and_then(|id| self.connection(id))
            .or_else(|| self.by_remote.get(&(flow.remote, flow.local)).copied())
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
        let local = self
            .point(flow.local)
            .ok_or(Refused::Transport)?
            .address
            .ip();
        self.opened += 1;
        let id = ConnectionId(self.opened);
        let slot = self
            .keep(id, flow.local, flow.remote, now, wheel, idle)
            .ok_or(Refused::Full)?;
        self.out.push_before(
            Item::Connect {
                connection: id,
                local: Some(SocketAddr::new(local, 0)),
                remote: flow.remote,
            },
            start,
        );
        Ok(slot)
    }

    /// Takes a connection into the tables; `None` where they are full, or the source has too many.
    pub(crate) fn keep(
        &mut self,
        id: ConnectionId,
        local: LocalId,
        remote: SocketAddr,
        now: Time,
        wheel: &mut Wheel<Timer>,
        idle: core::time::Duration,
    ) -> Option<u32> {
        let held = self.per_source.get(&remote.ip()).copied().unwrap_or(0);
        if held >= self.per_source_limit || self.by_id.is_full() || self.by_id.get(&id).is_some() {
            return None;
        }
        let limits = FrameLimits {
            headers: self.message_bytes,
            body: self.message_bytes,
        };
        let slot = self.connections.insert(Connection {
            id,
            local,
            remote,
            framer: Some(Box::new(StreamFramer::new(limits))),
            used: now,
            timer: None,
            waiting: BTreeSet::new(),
        }) as u32;
        let timer = wheel.schedule(now + idle, Timer::Connection(slot));
        if let Some(connection) = self.connections.get_mut(slot as usize) {
            connection.timer = Some(timer);
        }
        let stored = self.by_id.insert(id, slot).is_ok()
            && self.per_source.insert(remote.ip(), held + 1).is_ok()
            && self.by_remote.insert((remote, local), slot).is_ok();
        if !stored {
            self.forget(slot, wheel);
            return None;
        }
        Some(slot)
    }

    /// Takes a connection out of the tables.
    pub(crate) fn forget(&mut self, slot: u32, wheel: &mut Wheel<Timer>) -> Option<Connection> {
        let connection = self.connections.try_remove(slot as usize)?;
        if let Some(timer) = connection.timer {
            wheel.cancel(timer);
        }
        self.by_id.remove(&connection.id);
        let key = (connection.remote, connection.local);
        if self.by_remote.get(&key) == Some(&slot) {
            self.by_remote.remove(&key);
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
