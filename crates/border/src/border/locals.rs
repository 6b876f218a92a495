//! Listening points: sockets, and who may come through them.

use super::Core;
use super::sockets::SocketWork;
use crate::config::{Config, InterfaceId};
use engine::{Note, SocketId, SocketKind, Time, Transport};
use sip::{Endpoint, Local, LocalId};
use std::net::SocketAddr;

/// A listening point.
#[derive(Clone, Debug)]
pub(crate) struct LocalPoint {
    /// Of this interface; `None` where the configuration no longer has it.
    pub(crate) interface: Option<InterfaceId>,
    pub(crate) local: LocalId,
    pub(crate) socket: SocketId,
    pub(crate) transport: Transport,
    pub(crate) address: SocketAddr,
    /// `host:port` as peers see it.
    pub(crate) advertised: Vec<u8>,
}

impl Core {
    /// Opens what `config` has and we have not; what is no longer wanted is closed.
    pub(crate) fn open_locals(&mut self, endpoint: &mut Endpoint, config: &Config) {
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
                            *kept = true;
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
            if !kept && point.interface.take().is_some() {
                self.plane.work.push_back(SocketWork::Shut(point.socket));
            }
        }
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
        let kind = match listen.transport {
            Transport::Udp => SocketKind::UdpSignalling,
            _ => SocketKind::TcpListener,
        };
        self.plane.work.push_back(SocketWork::Open {
            socket,
            kind,
            local: listen.address,
        });
        let local = endpoint.add_local(Local {
            name: name.to_owned(),
            socket,
            transport: listen.transport,
            address: listen.address,
            advertised: advertised.clone(),
        });
        self.locals.push(LocalPoint {
            interface: Some(interface),
            local,
            socket,
            transport: listen.transport,
            address: listen.address,
            advertised: advertised.into_bytes(),
        });
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
        interface.allows(source.ip())
            || self.config.trunk_of(id, source, point.transport).is_some()
            || self.located_peers.get(&source.ip()).is_some()
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
