//! Listeners: their sockets, and access control by source address and client certificate.

use crate::located_peers::{LocatedPeers, RequestPeer};
use crate::shared::{Alarm, Ctx};
use anchor::MediaPlane;
use anchor::sockets::SocketWork;
use config::{InterfaceId, InterfaceKind, InterfaceSpec, Trunk, TrunkId};
use core::time::Duration;
use engine::{
    BoundedMap, ConnectionId, EventKind, HashKey, MaybeShared, SocketId, SocketKind, Transport,
};
use sip::locate::ResolvedTarget;
use sip::{Endpoint, Flow, ListenerConfig, ListenerId};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Time for which a socket stays open after its removal from the configuration, for remaining messages of its last call
/// and transactions: 64*T1 (RFC 3261 section 17.1.1.2).
const LINGER: Duration = Duration::from_secs(33);

/// Interval of attempts to open a listener; longer than [`LINGER`], after which the socket of a removed listener with
/// the same port is closed.
const OPEN_INTERVAL: Duration = Duration::from_secs(40);

/// Earlier names of a listener that dialogs may still have in their URIs.
const MAX_FORMER_NAMES: usize = 4;

/// Maximum number of TLS connections from addresses that are not allowed, pending the client certificate.
const MAX_PENDING_CERTIFICATES: usize = 1_024;

/// The SIP domains in verified certificates of peers, by connection (RFC 5922 section 7.4).
pub(crate) type CertificateDomains = BoundedMap<ConnectionId, Box<[String]>>;

/// A listener.
#[derive(Clone, Debug)]
pub(crate) struct BorderListener {
    /// Its interface; `None` after removal from the configuration.
    pub(crate) interface: Option<InterfaceId>,
    /// Whether its socket is open or being opened.
    open: bool,
    /// Whether a timer for another attempt to open the socket runs.
    retrying: bool,
    pub(crate) local: ListenerId,
    pub(crate) socket: SocketId,
    pub(crate) transport: Transport,
    pub(crate) address: SocketAddr,
    /// The address of the configuration, which may have port 0.
    configured: SocketAddr,
    /// `host:port` as seen by peers.
    pub(crate) advertised: Vec<u8>,
    /// Earlier values of `advertised`, the latest first: dialogs may still have them in their URIs.
    former: Vec<Vec<u8>>,
}

impl BorderListener {
    fn add(
        interface: InterfaceId,
        settings: ListenerConfig,
        endpoint: &mut Endpoint,
    ) -> BorderListener {
        BorderListener {
            interface: Some(interface),
            open: true,
            retrying: false,
            socket: settings.socket,
            transport: settings.transport,
            address: settings.address,
            configured: settings.address,
            advertised: settings.advertised.clone().into_bytes(),
            former: Vec::new(),
            local: endpoint.add_listener(settings),
        }
    }

    /// Changes its names without closing its socket.
    fn rename(&mut self, name: &str, advertised: String, endpoint: &mut Endpoint) {
        if self.advertised != advertised.as_bytes() {
            let former = std::mem::replace(&mut self.advertised, advertised.clone().into_bytes());
            self.former.retain(|known| *known != former);
            self.former.insert(0, former);
            self.former.truncate(MAX_FORMER_NAMES);
        }
        endpoint.rename_listener(self.local, name.to_owned(), advertised);
    }

    /// Whether requests can be sent from it. Connections are opened without the listening socket.
    fn sends(&self) -> bool {
        self.open || self.transport != Transport::Udp
    }

    /// Whether `host` is one of its names, now or before.
    fn is_named(&self, host: &[u8]) -> bool {
        let port = format!(":{}", self.address.port());
        let is_same = |name: &Vec<u8>| {
            let bare = name.strip_suffix(port.as_bytes());
            name.eq_ignore_ascii_case(host)
                || bare.is_some_and(|bare| bare.eq_ignore_ascii_case(host))
        };
        is_same(&self.advertised) || self.former.iter().any(is_same)
    }

    fn opening(&self) -> SocketWork {
        SocketWork::Open {
            socket: self.socket,
            kind: SocketKind::signalling(self.transport),
            local: self.address,
        }
    }
}

/// The listeners, and the sources that they admit.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) list: Vec<BorderListener>,
    next_socket: u32,
    /// Connections that are refused before the endpoint sees them.
    pub(crate) rejected_connections: VecDeque<ConnectionId>,
    /// Domains of the client certificates of accepted connections.
    certificate_domains: MaybeShared<CertificateDomains>,
    /// TLS connections that are allowed only if their client certificate is accepted.
    pending_certificates: BoundedMap<ConnectionId, (SocketId, SocketAddr)>,
    /// Addresses of the named targets of trunks.
    pub(crate) located_peers: MaybeShared<LocatedPeers>,
}

impl Listeners {
    pub(crate) fn new(
        certificate_domains: MaybeShared<CertificateDomains>,
        located_peers: MaybeShared<LocatedPeers>,
        hash_key: HashKey,
    ) -> Listeners {
        Listeners {
            list: Vec::new(),
            next_socket: 0,
            rejected_connections: VecDeque::new(),
            certificate_domains,
            pending_certificates: BoundedMap::new(MAX_PENDING_CERTIFICATES, hash_key),
            located_peers,
        }
    }
}

impl Listeners {
    /// Opens the new listeners of the configuration and closes those that were removed: stream listeners at once
    /// (their connections stay), the others when no call uses them any more. A listener with the same transport and
    /// address keeps its socket when its names change. One that could not be opened before is tried again.
    pub(crate) fn open(&mut self, ctx: &mut Ctx, plane: &mut MediaPlane, endpoint: &mut Endpoint) {
        let config = ctx.config.clone();
        let mut kept = vec![false; self.list.len()];
        let mut opening = Vec::new();
        for (index, interface) in config.interfaces.iter().enumerate() {
            let id = InterfaceId(u16::try_from(index).unwrap_or(u16::MAX));
            let expects_nat = interface.kind == InterfaceKind::Access;
            for listen in &interface.listen {
                let known = self.list.iter().position(|point| {
                    point.transport == listen.transport && point.configured == listen.address
                });
                if let Some(at) = known
                    && let (Some(point), Some(kept)) = (self.list.get_mut(at), kept.get_mut(at))
                {
                    *kept = true;
                    point.interface = Some(id);
                    let advertised = advertised(interface, point.address);
                    point.rename(&interface.name, advertised, endpoint);
                    endpoint.set_closed(point.local, false);
                    endpoint.set_nat_expected(point.local, expects_nat);
                    if !point.open {
                        point.open = true;
                        opening.push(point.opening());
                    }
                    continue;
                }
                let settings = ListenerConfig {
                    name: interface.name.clone(),
                    socket: self.next_socket(),
                    transport: listen.transport,
                    address: listen.address,
                    advertised: advertised(interface, listen.address),
                };
                let point = BorderListener::add(id, settings, endpoint);
                endpoint.set_nat_expected(point.local, expects_nat);
                opening.push(point.opening());
                self.list.push(point);
                kept.push(true);
            }
        }
        for (point, kept) in self.list.iter_mut().zip(kept) {
            if kept || point.interface.take().is_none() {
                continue;
            }
            endpoint.set_closed(point.local, true);
            match point.transport {
                Transport::Udp => {
                    let alarm = Alarm::CloseListener(point.local, true);
                    ctx.timers.schedule(ctx.now + LINGER, alarm);
                }
                _ => {
                    point.open = false;
                    plane.work.push_back(SocketWork::Shut(point.socket));
                }
            }
        }
        // A new listener may have the port of a removed one.
        plane.work.extend(opening);
    }

    /// Closes a removed listener, unless calls use it now or used it at the previous check.
    pub(crate) fn close(
        &mut self,
        ctx: &mut Ctx,
        plane: &mut MediaPlane,
        local: ListenerId,
        (is_used, was_used): (bool, bool),
    ) {
        let Some(point) = self.list.iter_mut().find(|point| point.local == local) else {
            return;
        };
        if point.interface.is_some() || !point.open {
            return;
        }
        if is_used || was_used {
            ctx.timers
                .schedule(ctx.now + LINGER, Alarm::CloseListener(local, is_used));
            return;
        }
        point.open = false;
        plane.work.push_back(SocketWork::Shut(point.socket));
    }

    /// A socket could not be opened; returns its address. It is tried again after some time, and at the next reload:
    /// the address may be added later, or belong to a removed listener.
    pub(crate) fn open_failed(&mut self, ctx: &mut Ctx, socket: SocketId) -> Option<SocketAddr> {
        let point = self.list.iter_mut().find(|point| point.socket == socket)?;
        point.open = false;
        if point.interface.is_some() && !point.retrying {
            point.retrying = true;
            let alarm = Alarm::OpenListener(point.local);
            ctx.timers.schedule(ctx.now + OPEN_INTERVAL, alarm);
        }
        Some(point.address)
    }

    /// Tries again to open a listener, unless it was opened or removed in the meantime.
    pub(crate) fn retry(&mut self, plane: &mut MediaPlane, local: ListenerId) {
        let Some(point) = self.list.iter_mut().find(|point| point.local == local) else {
            return;
        };
        point.retrying = false;
        if point.interface.is_some() && !point.open {
            point.open = true;
            plane.work.push_back(point.opening());
        }
    }

    /// A socket is open. The first worker reports it: one event for all workers is enough.
    pub(crate) fn opened(
        &mut self,
        ctx: &mut Ctx,
        socket: SocketId,
        local: SocketAddr,
        is_first_worker: bool,
    ) {
        let Some(point) = self.list.iter_mut().find(|point| point.socket == socket) else {
            return;
        };
        if point.address.port() == 0 && point.advertised == point.address.to_string().as_bytes() {
            point.advertised = local.to_string().into_bytes();
        }
        point.address = local;
        let transport = point.transport;
        if is_first_worker {
            ctx.events.tell(ctx.now, || EventKind::SocketOpened {
                purpose: format!("sip {transport}"),
                address: local.to_string(),
            });
        }
    }

    /// Whether requests from `source` are accepted on this socket.
    pub(crate) fn is_source_allowed(
        &self,
        ctx: &Ctx,
        socket: SocketId,
        source: SocketAddr,
    ) -> bool {
        let Some(point) = self.list.iter().find(|point| point.socket == socket) else {
            return true;
        };
        let Some(id) = point.interface else {
            return true;
        };
        let Some(interface) = ctx.config.interface(id) else {
            return true;
        };
        // Trunks identified by certificates are not accepted by address.
        let proven = (point.transport == Transport::Tls).then_some(&[][..]);
        interface.allows(source.ip())
            || ctx
                .config
                .trunk_of(id, source, point.transport, proven)
                .is_some()
            || {
                let peer = RequestPeer {
                    address: source,
                    transport: point.transport,
                    by_certificate: point.transport == Transport::Tls,
                };
                self.located_trunk(ctx, id, peer, None).is_some()
            }
    }

    /// The trunk of a peer with an address to which one of its targets resolved: `known` if it is one of them.
    fn located_trunk(
        &self,
        ctx: &Ctx,
        interface: InterfaceId,
        peer: RequestPeer,
        known: Option<TrunkId>,
    ) -> Option<TrunkId> {
        let (config, now) = (&ctx.config, ctx.now);
        // Most configurations have no such trunk, and need no lock.
        let is_named = |trunk: &Trunk| {
            let mut targets = trunk.targets.iter();
            trunk.interface == interface && targets.any(|target| target.host.ip().is_none())
        };
        if !config.trunks.iter().any(is_named) {
            return None;
        }
        self.located_peers
            .read(|peers| peers.trunk_of(config, interface, peer, known, now))
    }

    /// Stores the addresses of a target of a trunk.
    pub(crate) fn store_located(
        &mut self,
        ctx: &Ctx,
        (trunk, target): (TrunkId, usize),
        located: &[ResolvedTarget],
    ) {
        let Some(trunk) = ctx.config.trunk(trunk) else {
            return;
        };
        let Some(target) = trunk.targets.get(target) else {
            return;
        };
        for address in located.iter().map(|located| located.address) {
            let (name, host) = (trunk.name.as_str(), &target.host);
            let is_recent = |peers: &LocatedPeers| peers.is_recent(address, name, host, ctx.now);
            if !self.located_peers.read(is_recent) {
                self.located_peers
                    .lock()
                    .store(address, name, host, ctx.now);
            }
        }
    }

    /// The interface of a socket on which a client certificate may admit a source that is not allowed by address.
    pub(crate) fn interface_with_client_certificates(
        &self,
        ctx: &Ctx,
        socket: SocketId,
    ) -> Option<InterfaceId> {
        let point = self.list.iter().find(|point| point.socket == socket)?;
        let id = point
            .interface
            .filter(|_| point.transport == Transport::Tls)?;
        let mut trunks = ctx.config.trunks.iter();
        trunks
            .any(|trunk| trunk.interface == id && !trunk.client_names().is_empty())
            .then_some(id)
    }

    /// Requires a valid client certificate on a connection from a source that is not allowed. Returns `false` if too
    /// many connections are pending.
    pub(crate) fn await_client_certificate(
        &mut self,
        connection: ConnectionId,
        socket: SocketId,
        remote: SocketAddr,
    ) -> bool {
        self.pending_certificates
            .insert(connection, (socket, remote))
            .is_ok()
    }

    /// Processes the domains of the client certificate of an accepted connection. Returns `false` if the connection is
    /// not allowed.
    pub(crate) fn accept_client_certificate(
        &mut self,
        ctx: &Ctx,
        connection: ConnectionId,
        names: &[String],
    ) -> bool {
        if !names.is_empty() && connection.0 & ConnectionId::ACCEPTED != 0 {
            // If the table is full, the certificate is ignored.
            let _ = self
                .certificate_domains
                .lock()
                .insert(connection, names.into());
        }
        let Some((socket, remote)) = self.pending_certificates.remove(&connection) else {
            return true;
        };
        self.interface_with_client_certificates(ctx, socket)
            .is_some_and(|interface| {
                ctx.config
                    .trunk_of(interface, remote, Transport::Tls, Some(names))
                    .is_some()
            })
    }

    /// A connection was closed: forgets its certificate.
    pub(crate) fn connection_ended(&mut self, connection: ConnectionId) {
        if connection.0 & ConnectionId::ACCEPTED != 0 {
            self.pending_certificates.remove(&connection);
            self.certificate_domains.lock().remove(&connection);
        }
    }

    /// The trunk of a flow.
    pub(crate) fn trunk_at(
        &self,
        ctx: &Ctx,
        interface: InterfaceId,
        flow: &Flow,
    ) -> Option<TrunkId> {
        let (remote, transport) = (flow.remote, flow.transport);
        let accepted = |id: &ConnectionId| id.0 & ConnectionId::ACCEPTED != 0;
        // On connections opened by us, the certificate was verified for the name of the target.
        let by_certificate = flow
            .connection
            .filter(|id| transport == Transport::Tls && accepted(id));
        let trunk = match by_certificate {
            None => ctx.config.trunk_of(interface, remote, transport, None),
            Some(id) => self.certificate_domains.read(|proven| {
                let names = proven.get(&id).map_or(&[][..], |names| names);
                let names = Some(names);
                ctx.config.trunk_of(interface, remote, transport, names)
            }),
        };
        let is_settled = trunk.is_some_and(|id| {
            by_certificate.is_some() || !ctx.config.is_by_network(id, remote, transport)
        });
        if is_settled {
            return trunk;
        }
        let peer = RequestPeer {
            address: remote,
            transport,
            by_certificate: by_certificate.is_some(),
        };
        self.located_trunk(ctx, interface, peer, trunk).or(trunk)
    }

    /// The interface of a listener.
    pub(crate) fn interface_of(&self, local: ListenerId) -> Option<InterfaceId> {
        self.point(local)?.interface
    }

    pub(crate) fn point(&self, local: ListenerId) -> Option<&BorderListener> {
        self.list.iter().find(|point| point.local == local)
    }

    /// The listener of an interface from which `remote` is reached.
    pub(crate) fn local_for(
        &self,
        interface: InterfaceId,
        transport: Transport,
        remote: SocketAddr,
    ) -> Option<ListenerId> {
        find_listener(&self.list, interface, transport, remote).map(|point| point.local)
    }

    /// Host and port of a listener as seen by peers.
    pub(crate) fn advertised_host(&self, local: ListenerId) -> Vec<u8> {
        self.point(local)
            .map(|point| point.advertised.clone())
            .unwrap_or_default()
    }

    /// Whether `host:port` (or the host alone) is one of our addresses.
    pub(crate) fn is_ours(&self, host: &[u8]) -> bool {
        self.list.iter().any(|point| point.is_named(host))
    }

    pub(crate) fn next_socket(&mut self) -> SocketId {
        let socket = SocketId(self.next_socket);
        self.next_socket += 1;
        socket
    }
}

/// `host:port` of a listener at `address` as seen by peers of the interface.
fn advertised(interface: &InterfaceSpec, address: SocketAddr) -> String {
    match &interface.advertise {
        Some(host) if host.port.is_some() => host.to_string(),
        Some(host) => format!("{}:{}", host.uri_host(), address.port()),
        None => address.to_string(),
    }
}

/// The listener of an interface from which `remote` is reached.
pub(crate) fn find_listener(
    locals: &[BorderListener],
    interface: InterfaceId,
    transport: Transport,
    remote: SocketAddr,
) -> Option<&BorderListener> {
    locals.iter().find(|point| {
        point.interface == Some(interface)
            && point.sends()
            && point.address.is_ipv4() == remote.is_ipv4()
            && point.transport == transport
    })
}
