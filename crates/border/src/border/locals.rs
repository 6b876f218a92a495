//! Listening points: sockets, and who may come through them.

use super::sockets::SocketWork;
use super::{Alarm, Core};
use crate::call::Side;
use crate::config::{Config, InterfaceId, TrunkId};
use core::time::Duration;
use engine::{ConnectionId, Note, SocketId, SocketKind, Time, Transport};
use sip::{Endpoint, Flow, Local, LocalId};
use std::net::SocketAddr;

/// How long a socket that the configuration no longer has stays for what its last call and transactions still send: 64*T1
/// (RFC 3261 section 17.1.1.2).
const LINGER: Duration = Duration::from_secs(33);

/// A listening point.
#[derive(Clone, Debug)]
pub(crate) struct LocalPoint {
    /// Of this interface; `None` where the configuration no longer has it.
    pub(crate) interface: Option<InterfaceId>,
    /// Its socket is open, or asked for.
    open: bool,
    pub(crate) local: LocalId,
    pub(crate) socket: SocketId,
    pub(crate) transport: Transport,
    pub(crate) address: SocketAddr,
    /// `host:port` as peers see it.
    pub(crate) advertised: Vec<u8>,
}

impl LocalPoint {
    fn opening(&self) -> SocketWork {
        SocketWork::Open {
            socket: self.socket,
            kind: SocketKind::signalling(self.transport),
            local: self.address,
        }
    }
}

impl Core {
    /// Opens what `config` has and we have not; what is no longer wanted is closed: listeners at once (their connections
    /// stay), the others when no call needs them any more.
    pub(crate) fn open_locals(&mut self, endpoint: &mut Endpoint, config: &Config) {
        let now = self.now;
        let mut kept = vec![false; self.locals.len()];
        for (index, interface) in config.interfaces.iter().enumerate() {
            let id = InterfaceId(u16::try_from(index).unwrap_or(u16::MAX));
            for listen in &interface.listen {
                let advertised = match &interface.advertise {
                    Some(host) if host.port.is_some() => host.to_string(),
                    Some(host) => format!("{}:{}", host.uri_host(), listen.address.port()),
                    None => listen.address.to_string(),
                };
                let known = self.locals.iter().position(|point| {
                    point.transport == listen.transport
                        && point.address == listen.address
                        && point.advertised == advertised.as_bytes()
                });
                match known {
                    Some(at) => {
                        if let (Some(point), Some(kept)) =
                            (self.locals.get_mut(at), kept.get_mut(at))
                        {
                            point.interface = Some(id);
                            endpoint.set_closed(point.local, false);
                            *kept = true;
                            if !point.open {
                                point.open = true;
                                self.plane.work.push_back(point.opening());
                            }
                        }
                    }
                    None => {
                        self.open_local(endpoint, id, &interface.name, listen, advertised);
                        kept.push(true);
                    }
                }
            }
        }
        for (point, kept) in self.locals.iter_mut().zip(kept) {
            if kept || point.interface.take().is_none() {
                continue;
            }
            endpoint.set_closed(point.local, true);
            match point.transport {
                Transport::Udp => {
                    let alarm = Alarm::ShutLocal(point.local, true);
                    self.timers.schedule(now + LINGER, alarm);
                }
                _ => {
                    point.open = false;
                    self.plane.work.push_back(SocketWork::Shut(point.socket));
                }
            }
        }
    }

    /// The time of a socket that the configuration no longer has is over, unless calls use it, or did when this was last
    /// asked.
    pub(crate) fn shut_local(
        &mut self,
        endpoint: &Endpoint,
        local: LocalId,
        was_used: bool,
        now: Time,
    ) {
        let used = self.calls.iter().any(|(_, call)| {
            let early = call.set_up.iter().flat_map(|set_up| &set_up.branches);
            let legs = Side::BOTH.iter().filter_map(|&side| call.leg(side));
            legs.chain(early.map(|branch| branch.leg)).any(|leg| {
                endpoint
                    .flow_of(leg)
                    .is_some_and(|flow| flow.local == local)
            })
        });
        let Some(point) = self.locals.iter_mut().find(|point| point.local == local) else {
            return;
        };
        if point.interface.is_some() || !point.open {
            return;
        }
        if used || was_used {
            self.timers
                .schedule(now + LINGER, Alarm::ShutLocal(local, used));
            return;
        }
        point.open = false;
        self.plane.work.push_back(SocketWork::Shut(point.socket));
    }

    fn open_local(
        &mut self,
        endpoint: &mut Endpoint,
        interface: InterfaceId,
        name: &str,
        listen: &crate::config::ListenAddress,
        advertised: String,
    ) {
        let socket = self.next_socket();
        let local = endpoint.add_local(Local {
            name: name.to_owned(),
            socket,
            transport: listen.transport,
            address: listen.address,
            advertised: advertised.clone(),
        });
        let point = LocalPoint {
            interface: Some(interface),
            open: true,
            local,
            socket,
            transport: listen.transport,
            address: listen.address,
            advertised: advertised.into_bytes(),
        };
        self.plane.work.push_back(point.opening());
        self.locals.push(point);
    }

    /// Whether somebody at `source` may send requests to this socket.
    pub(crate) fn is_welcome(&self, socket: SocketId, source: SocketAddr) -> bool {
        let Some(point) = self.locals.iter().find(|point| point.socket == socket) else {
            return true;
        };
        let Some(id) = point.interface else {
            return true;
        };
        let Some(interface) = self.config.interface(id) else {
            return true;
        };
        // Whom a certificate has to name is nobody by his address.
        let proven = (point.transport == Transport::Tls).then_some(&[][..]);
        interface.allows(source.ip())
            || self
                .config
                .trunk_of(id, source, point.transport, proven)
                .is_some()
            || self
                .located_peers
                .look(|peers| peers.get(&source.ip()).is_some())
    }

    /// Whether a certificate may say more of whoever has connected to this socket than the address does.
    pub(crate) fn may_prove(&self, socket: SocketId) -> Option<InterfaceId> {
        let point = self.locals.iter().find(|point| point.socket == socket)?;
        let id = point
            .interface
            .filter(|_| point.transport == Transport::Tls)?;
        let mut trunks = self.config.trunks.iter();
        trunks
            .any(|trunk| trunk.interface == id && !trunk.client_names().is_empty())
            .then_some(id)
    }

    /// The peer of a connection from an address that is not welcome has to prove who it is; `false`: there are too many.
    pub(crate) fn has_to_prove(
        &mut self,
        connection: ConnectionId,
        socket: SocketId,
        remote: SocketAddr,
    ) -> bool {
        self.to_prove.insert(connection, (socket, remote)).is_ok()
    }

    /// TLS stands on a connection that the peer opened, and it has shown a certificate of these domains; `false`: it is
    /// nobody's.
    pub(crate) fn has_proven(&mut self, connection: ConnectionId, names: &[String]) -> bool {
        if !names.is_empty() && connection.0 & ConnectionId::ACCEPTED != 0 {
            // Where there is no room for it, it has proven nothing.
            let _ = self.proven.hold().insert(connection, names.into());
        }
        let Some((socket, remote)) = self.to_prove.remove(&connection) else {
            return true;
        };
        self.may_prove(socket).is_some_and(|interface| {
            self.config
                .trunk_of(interface, remote, Transport::Tls, Some(names))
                .is_some()
        })
    }

    /// A connection has ended: what its peer has proven ends with it.
    pub(crate) fn has_ended(&mut self, connection: ConnectionId) {
        if connection.0 & ConnectionId::ACCEPTED != 0 {
            self.to_prove.remove(&connection);
            self.proven.hold().remove(&connection);
        }
    }

    /// The trunk to which what comes on a flow belongs.
    pub(crate) fn trunk_at(&self, interface: InterfaceId, flow: &Flow) -> Option<TrunkId> {
        let (remote, transport) = (flow.remote, flow.transport);
        let accepted = |id: &ConnectionId| id.0 & ConnectionId::ACCEPTED != 0;
        // On connections of ours the certificate was held against the name that we wanted.
        let by_certificate = flow
            .connection
            .filter(|id| transport == Transport::Tls && accepted(id));
        let Some(id) = by_certificate else {
            return self.config.trunk_of(interface, remote, transport, None);
        };
        self.proven.look(|proven| {
            let names = proven.get(&id).map_or(&[][..], |names| names);
            let names = Some(names);
            self.config.trunk_of(interface, remote, transport, names)
        })
    }

    /// The interface of a listening point.
    pub(crate) fn interface_of(&self, local: LocalId) -> Option<InterfaceId> {
        self.point(local)?.interface
    }

    pub(crate) fn point(&self, local: LocalId) -> Option<&LocalPoint> {
        self.locals.iter().find(|point| point.local == local)
    }

    /// The listening point of an interface from which `remote` is reached.
    pub(crate) fn local_for(
        &self,
        interface: InterfaceId,
        transport: Transport,
        remote: SocketAddr,
    ) -> Option<LocalId> {
        point_for(&self.locals, interface, transport, remote).map(|point| point.local)
    }

    /// Host and port of a listening point as peers see it.
    pub(crate) fn advertised_host(&self, local: LocalId) -> Vec<u8> {
        self.point(local)
            .map(|point| point.advertised.clone())
            .unwrap_or_default()
    }

    /// Whether `host:port` (or the host alone) is one of ours.
    pub(crate) fn is_ours(&self, host: &[u8]) -> bool {
        self.locals.iter().any(|point| {
            point.advertised.eq_ignore_ascii_case(host)
                || point
                    .advertised
                    .strip_suffix(format!(":{}", point.address.port()).as_bytes())
                    .is_some_and(|bare| bare.eq_ignore_ascii_case(host))
        })
    }

    pub(crate) fn next_socket(&mut self) -> SocketId {
        let socket = SocketId(self.next_socket);
        self.next_socket += 1;
        socket
    }

    /// A socket is open.
    pub(crate) fn opened(&mut self, socket: SocketId, local: SocketAddr, now: Time) {
        let Some(point) = self.locals.iter_mut().find(|point| point.socket == socket) else {
            return;
        };
        if point.address.port() == 0 && point.advertised == point.address.to_string().as_bytes() {
            point.advertised = local.to_string().into_bytes();
        }
        point.address = local;
        let what = format!("sip {}", point.transport);
        // That all workers have opened it needs no saying.
        if self.crew.as_ref().is_some_and(|crew| !crew.is_first()) {
            return;
        }
        self.events.tell(now, || Note::SocketOpened {
            what,
            address: local.to_string(),
        });
    }
}

/// The listening point of an interface from which `remote` is reached.
pub(crate) fn point_for(
    locals: &[LocalPoint],
    interface: InterfaceId,
    transport: Transport,
    remote: SocketAddr,
) -> Option<&LocalPoint> {
    locals.iter().find(|point| {
        point.interface == Some(interface)
            && point.address.is_ipv4() == remote.is_ipv4()
            && point.transport == transport
    })
}
