//! Name resolution (RFC 3263) for hops of calls, out-of-dialog requests, pings and registrations.

use super::core::{Core, DnsQuery};
use super::out_of_dialog::DeferredRequest;
use crate::call::{CallKey, HopStep, StepTarget};
use crate::operate::IndexRemap;
use anchor::sockets::SocketWork;
use config::{Config, HostName};
use engine::{ConnectionId, DropReason, Entropy, Output, SocketId, SocketKind, Time, Transport};
use sip::locate::{
    IgnoredAnswer, LocateError, LocateHost, LocateRequest, LookupId, LookupStart, ResolvedTarget,
    Resolver, ResolverConfig, StreamWork,
};
use sip::{Endpoint, Flow, Fork, LegId, NamedHop};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Maximum number of addresses tried per name.
const MOST_ADDRESSES: usize = 8;

/// The request that waits for a lookup.
#[derive(Debug)]
pub(crate) enum LookupWaiter {
    /// A hop of a call.
    Hop(CallKey, usize),
    /// A dialog whose remote target or route is a name.
    Dialog(LegId, NamedHop),
    /// An out-of-dialog request.
    OutOfDialog(DeferredRequest),
}

/// The resolver with its sockets.
#[derive(Debug)]
pub(crate) struct DnsClient {
    resolver: Resolver,
    waiting: BTreeMap<LookupId, LookupWaiter>,
    /// UDP sockets for queries over IPv4 and IPv6, opened by the first query.
    sockets: [Option<SocketId>; 2],
    /// A requested connection, and the query to send over it.
    opening: Option<(ConnectionId, Vec<u8>)>,
    /// That query while the driver sends it.
    query: Vec<u8>,
}

/// Marks connections to DNS servers: the endpoint counts its own from 1, drivers set the bit above.
const NAME_SERVER: u64 = 1 << 62;

impl DnsClient {
    pub(crate) fn new(config: &Config, entropy: Entropy) -> DnsClient {
        let family = |v4: bool| {
            config
                .interfaces
                .iter()
                .flat_map(|interface| &interface.listen)
                .any(|listen| listen.address.is_ipv4() == v4)
        };
        let settings = ResolverConfig {
            servers: config.dns.servers.clone(),
            transports: transports(config),
            ipv4: family(true),
            ipv6: family(false),
            lookups: config.limits.dns_queries,
            cache: config.limits.dns_cache,
            ..ResolverConfig::default()
        };
        DnsClient {
            resolver: Resolver::new(settings, entropy),
            waiting: BTreeMap::new(),
            sockets: [None; 2],
            opening: None,
            query: Vec::new(),
        }
    }

    /// Whether [`DnsClient::next_output`] returns an output.
    pub(crate) fn has_output(&self) -> bool {
        self.resolver.has_stream_work() || self.opening.as_ref().is_some_and(|(_, b)| !b.is_empty())
    }

    /// The next output for queries over TCP.
    pub(crate) fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some((connection, bytes)) = self.opening.as_mut().filter(|(_, b)| !b.is_empty()) {
            self.query = std::mem::take(bytes);
            return Some(Output::Stream {
                connection: *connection,
                bytes: &self.query,
            });
        }
        Some(match self.resolver.next_stream_work()? {
            StreamWork::Open {
                stream,
                server,
                bytes,
            } => {
                let connection = ConnectionId(NAME_SERVER | u64::from(stream));
                self.opening = Some((connection, bytes));
                Output::Connect {
                    connection,
                    local: None,
                    remote: server,
                    tls: None,
                    websocket: false,
                }
            }
            StreamWork::Close { stream } => Output::Close {
                connection: ConnectionId(NAME_SERVER | u64::from(stream)),
            },
        })
    }

    pub(crate) fn next_deadline(&self) -> Option<engine::Deadline> {
        self.resolver.next_deadline()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Applies the new interface and trunk indices after a reload, and drops obsolete lookups.
    pub(crate) fn rename(&mut self, renamed: &IndexRemap) {
        self.waiting.retain(|_, waiting| match waiting {
            LookupWaiter::Hop(..) | LookupWaiter::Dialog(..) => true,
            LookupWaiter::OutOfDialog(located) => located.rename(renamed),
        });
    }

    /// Replaces the configured servers. Returns the requests of lookups that were aborted.
    pub(crate) fn replaced(&mut self, with: DnsClient) -> Vec<LookupWaiter> {
        let sockets = self.sockets;
        let before = std::mem::replace(self, with);
        self.sockets = sockets;
        self.resolver.take_over(&before.resolver);
        before.waiting.into_values().collect()
    }
}

/// Transports for resolution, the preferred one first: UDP and TCP, and TLS if an interface has it.
fn transports(config: &Config) -> Vec<Transport> {
    let tls = config
        .interfaces
        .iter()
        .flat_map(|interface| &interface.listen)
        .any(|listen| listen.transport == Transport::Tls);
    let plain = [Transport::Udp, Transport::Tcp];
    plain
        .into_iter()
        .chain(tls.then_some(Transport::Tls))
        .collect()
}

/// The resolver's number of a connection to a DNS server.
pub(crate) fn resolver_stream_of(connection: ConnectionId) -> Option<u32> {
    let ours = connection.0 & (ConnectionId::ACCEPTED | NAME_SERVER) == NAME_SERVER;
    u32::try_from(connection.0 & !NAME_SERVER)
        .ok()
        .filter(|_| ours)
}

/// The lookup for a target.
fn wanted(host: &HostName, transport: Option<Transport>) -> Result<LocateRequest, LocateError> {
    let parsed = wire::sip::Host::parse(host.text().as_bytes()).ok_or(LocateError::BadName)?;
    Ok(LocateRequest {
        host: LocateHost::from_host(&parsed)?,
        port: host.port,
        transport,
        secure: false,
    })
}

impl Core {
    /// Whether a socket is used for DNS queries.
    pub(crate) fn is_resolver(&self, socket: SocketId) -> bool {
        self.resolver.sockets.contains(&Some(socket))
    }

    /// A datagram on a socket for DNS queries.
    pub(crate) fn resolver_answer(&mut self, source: SocketAddr, bytes: &[u8], now: Time) {
        match self.resolver.resolver.answer(source, bytes, now) {
            Ok(()) => {}
            Err(IgnoredAnswer::Malformed) => self.drops.count(DropReason::DnsMalformed),
            Err(IgnoredAnswer::Unasked | IgnoredAnswer::Question) => {
                self.drops.count(DropReason::DnsUnexpected);
            }
        }
    }

    /// Bytes on a connection to a DNS server.
    pub(crate) fn resolver_stream(&mut self, stream: u32, bytes: &[u8], now: Time) {
        match self.resolver.resolver.stream_bytes(stream, bytes, now) {
            Ok(()) => {}
            Err(IgnoredAnswer::Malformed) => self.drops.count(DropReason::DnsMalformed),
            Err(IgnoredAnswer::Unasked | IgnoredAnswer::Question) => {
                self.drops.count(DropReason::DnsUnexpected);
            }
        }
    }

    /// A connection to a DNS server was closed.
    pub(crate) fn resolver_ended(&mut self, stream: u32, now: Time) {
        self.resolver.resolver.stream_ended(stream, now);
    }

    /// Starts a lookup. [`Core::deliver_lookups`] delivers the result.
    pub(crate) fn locate(
        &mut self,
        endpoint: &mut Endpoint,
        host: &HostName,
        transport: Option<Transport>,
        waiting: LookupWaiter,
        now: Time,
    ) {
        let started = match wanted(host, transport) {
            Ok(wanted) => self.resolver.resolver.locate(wanted, now),
            Err(error) => LookupStart::Done(Err(error)),
        };
        match started {
            LookupStart::Pending(lookup) => {
                self.resolver.waiting.insert(lookup, waiting);
            }
            LookupStart::Done(result) => {
                let targets = result.map(|targets| targets.take(MOST_ADDRESSES).collect());
                self.located(endpoint, waiting, targets, now);
            }
        }
    }

    /// Starts the lookup for a hop of a call.
    pub(crate) fn locate_hop(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        index: usize,
        now: Time,
    ) {
        let key = self.key_of(slot);
        let Some(set_up) = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.set_up.as_deref_mut())
        else {
            return;
        };
        let Some(StepTarget::Name(host, transport)) =
            set_up.hops.get(index).map(|hop| hop.place.clone())
        else {
            return;
        };
        set_up.locating += 1;
        let started = match wanted(&host, transport) {
            Ok(wanted) => self.resolver.resolver.locate(wanted, now),
            Err(error) => LookupStart::Done(Err(error)),
        };
        match started {
            LookupStart::Pending(lookup) => {
                self.resolver
                    .waiting
                    .insert(lookup, LookupWaiter::Hop(key, index));
            }
            LookupStart::Done(result) => {
                let targets = result.map(|targets| targets.take(MOST_ADDRESSES).collect());
                // The loop of the caller continues with the inserted steps.
                self.hop_located(key, index, targets);
            }
        }
        let _ = endpoint;
    }

    /// Sends queries, and delivers the results of finished lookups.
    pub(crate) fn deliver_lookups(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some(outcome) = self.resolver.resolver.next_outcome() {
            let Some(waiting) = self.resolver.waiting.remove(&outcome.lookup) else {
                continue;
            };
            let targets = outcome
                .targets
                .map(|targets| targets.take(MOST_ADDRESSES).collect());
            self.located(endpoint, waiting, targets, now);
        }
        while let Some(query) = self.resolver.resolver.next_query() {
            let socket = self.query_socket(query.server.is_ipv4());
            self.queries.push_back(DnsQuery {
                socket,
                server: query.server,
                bytes: query.bytes,
            });
        }
    }

    /// Resolves the host that requests of a dialog are sent to, if it is a name (RFC 3261 section 12.2.1.1).
    pub(crate) fn locate_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        fork: Option<Fork>,
        now: Time,
    ) {
        let Some(hop) = endpoint.named_hop_of(leg, fork) else {
            return;
        };
        let waited = self.resolver.waiting.values().any(
            |waiting| matches!(waiting, LookupWaiter::Dialog(other, same) if *other == leg && *same == hop),
        );
        if waited {
            return;
        }
        let Some(mut host) = HostName::parse(&hop.host) else {
            return;
        };
        host.port = hop.port;
        let transport = match hop.secure {
            true => Some(Transport::Tls),
            false => hop.transport,
        };
        self.locate(
            endpoint,
            &host,
            transport,
            LookupWaiter::Dialog(leg, hop),
            now,
        );
    }

    /// Whether the destination of a leg is being resolved.
    pub(crate) fn is_locating(&self, leg: LegId) -> bool {
        let mut waiting = self.resolver.waiting.values();
        waiting.any(|waiting| matches!(waiting, LookupWaiter::Dialog(other, _) if *other == leg))
    }

    /// Sends further requests of the dialog to the first address of its name that is reachable from its interface,
    /// unless the current address is one of them.
    fn redirect_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        hop: &NamedHop,
        targets: &[ResolvedTarget],
    ) {
        let Some(flow) = endpoint.flow_of(leg) else {
            return;
        };
        let here = |target: &ResolvedTarget| {
            (target.address, target.transport) == (flow.remote, flow.transport)
        };
        if targets.iter().any(here) {
            return;
        }
        let Some(interface) = self.interface_of(flow.local) else {
            return;
        };
        let place = targets.iter().find_map(|target| {
            let local = self.local_for(interface, target.transport, target.address)?;
            Some(Flow {
                local,
                transport: target.transport,
                remote: target.address,
                connection: None,
            })
        });
        if let Some(flow) = place {
            // The leg may have ended in the meantime.
            let _ = endpoint.set_hop_flow(leg, hop, flow);
        }
    }

    /// Processes timeouts of queries.
    pub(crate) fn dns_timeout(&mut self, now: Time) {
        self.resolver.resolver.timeout(now);
    }

    /// Applies changed DNS servers.
    pub(crate) fn reload_dns(&mut self, endpoint: &mut Endpoint, now: Time) {
        let config = self.config.clone();
        let entropy = self.entropy.fork();
        for waiting in self.resolver.replaced(DnsClient::new(&config, entropy)) {
            self.located(endpoint, waiting, Err(LocateError::NoAnswer), now);
        }
    }

    fn query_socket(&mut self, v4: bool) -> SocketId {
        let index = usize::from(!v4);
        if let Some(Some(socket)) = self.resolver.sockets.get(index) {
            return *socket;
        }
        let socket = self.next_socket();
        let any: std::net::IpAddr = match v4 {
            true => std::net::Ipv4Addr::UNSPECIFIED.into(),
            false => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        self.plane.work.push_back(SocketWork::Open {
            socket,
            kind: SocketKind::UdpSignalling,
            local: SocketAddr::new(any, 0),
        });
        if let Some(slot) = self.resolver.sockets.get_mut(index) {
            *slot = Some(socket);
        }
        socket
    }

    fn located(
        &mut self,
        endpoint: &mut Endpoint,
        waiting: LookupWaiter,
        targets: Result<Vec<ResolvedTarget>, LocateError>,
        now: Time,
    ) {
        // Names written by a peer do not admit sources.
        let ours = !matches!(waiting, LookupWaiter::Dialog(..));
        for target in targets.iter().flatten().filter(|_| ours) {
            // Systems that we call by name may send requests to us. If the table is full, their requests are dropped on
            // interfaces with a list of sources.
            let ip = target.address.ip();
            let _ = self.located_peers.lock().insert(ip, ());
        }
        match waiting {
            LookupWaiter::Hop(key, index) => {
                self.hop_located(key, index, targets);
                if let Some(slot) = self.slot_of(key) {
                    self.call_next_hops(endpoint, slot, now);
                }
            }
            LookupWaiter::Dialog(leg, hop) => {
                self.redirect_dialog(endpoint, leg, &hop, &targets.unwrap_or_default());
            }
            LookupWaiter::OutOfDialog(located) => {
                self.out_of_dialog_located(endpoint, located, targets.unwrap_or_default(), now);
            }
        }
    }

    /// Inserts the addresses of a hop's name after it.
    fn hop_located(
        &mut self,
        key: CallKey,
        index: usize,
        targets: Result<Vec<ResolvedTarget>, LocateError>,
    ) {
        let Some(slot) = self.slot_of(key) else {
            return;
        };
        let Some(set_up) = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.set_up.as_deref_mut())
        else {
            return;
        };
        set_up.locating = set_up.locating.saturating_sub(1);
        match targets {
            Ok(targets) => {
                let Some(hop) = set_up.hops.get(index).cloned() else {
                    return;
                };
                let at = set_up.next.min(set_up.hops.len());
                set_up.hops.splice(at..at, placed(&hop, &targets));
            }
            Err(_) => set_up.best.offer(503, None, "name cannot be resolved"),
        }
    }
}

/// A step for each of the addresses, tried in order.
pub(crate) fn placed(hop: &HopStep, targets: &[ResolvedTarget]) -> Vec<HopStep> {
    targets
        .iter()
        .enumerate()
        .map(|(number, target)| HopStep {
            place: StepTarget::Address(target.address, target.transport),
            group: 0x8000 | (hop.group << 4) | number as u16,
            ..hop.clone()
        })
        .collect()
}
