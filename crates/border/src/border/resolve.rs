//! Names to addresses (RFC 3263), for whatever leads to a host's name: hops of calls, pings, registrations.

use super::core::{Core, Query};
use super::outside::Located;
use super::sockets::SocketWork;
use crate::call::{CallKey, Place, Step};
use crate::config::{Config, HostName};
use crate::operate::Renaming;
use engine::{ConnectionId, DropReason, Entropy, Output, SocketId, SocketKind, Time, Transport};
use sip::locate::{
    Ignored, LocateError, LookupId, Resolver, ResolverConfig, Started, StreamWork, Target, Wanted,
    WantedHost,
};
use sip::{Endpoint, Flow, Fork, LegId, NamedHop};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Addresses of one name that are tried, at most.
const MOST_ADDRESSES: usize = 8;

/// Who waits for a lookup.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// A hop of a call.
    Hop(CallKey, usize),
    /// A dialog whose next hop is a name.
    Dialog(LegId, NamedHop),
    /// Something outside of calls.
    Outside(Located),
}

/// Lookups and their sockets.
#[derive(Debug)]
pub(crate) struct Names {
    resolver: Resolver,
    waiting: BTreeMap<LookupId, Waiting>,
    /// Sockets for queries, opened when the first one is asked: IPv4, IPv6.
    sockets: [Option<SocketId>; 2],
    /// A connection that was asked for, and the query that goes over it.
    opening: Option<(ConnectionId, Vec<u8>)>,
    /// That query while it is lent to the driver.
    query: Vec<u8>,
}

/// Set in the numbers of connections to name servers: the endpoint counts its own from 1, drivers set the bit above.
const NAME_SERVER: u64 = 1 << 62;

impl Names {
    pub(crate) fn new(config: &Config, entropy: Entropy) -> Names {
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
        Names {
            resolver: Resolver::new(settings, entropy),
            waiting: BTreeMap::new(),
            sockets: [None; 2],
            opening: None,
            query: Vec::new(),
        }
    }

    /// Whether [`Names::next_output`] has something.
    pub(crate) fn has_output(&self) -> bool {
        self.resolver.has_stream_work() || self.opening.as_ref().is_some_and(|(_, b)| !b.is_empty())
    }

    /// What the driver has to do for queries over TCP.
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
                    secure: None,
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

    /// A reload gave interfaces and trunks other indices; what nobody waits for any more is forgotten.
    pub(crate) fn rename(&mut self, renamed: &Renaming) {
        self.waiting.retain(|_, waiting| match waiting {
            Waiting::Hop(..) | Waiting::Dialog(..) => true,
            Waiting::Outside(located) => located.rename(renamed),
        });
    }

    /// Takes over another configuration's servers; lookups under way come to nothing.
    pub(crate) fn replaced(&mut self, with: Names) -> Vec<Waiting> {
        let sockets = self.sockets;
        let before = std::mem::replace(self, with);
        self.sockets = sockets;
        self.resolver.succeed(&before.resolver);
        before.waiting.into_values().collect()
    }
}

/// Transports that names are located for, the preferred first: UDP and TCP, and TLS where an interface has it.
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

/// The resolver's number of a connection to a name server.
pub(crate) fn resolver_stream_of(connection: ConnectionId) -> Option<u32> {
    let ours = connection.0 & (ConnectionId::ACCEPTED | NAME_SERVER) == NAME_SERVER;
    u32::try_from(connection.0 & !NAME_SERVER)
        .ok()
        .filter(|_| ours)
}

/// What is to be located for a target.
fn wanted(host: &HostName, transport: Option<Transport>) -> Result<Wanted, LocateError> {
    let parsed = wire::sip::Host::parse(host.text().as_bytes()).ok_or(LocateError::BadName)?;
    Ok(Wanted {
        host: WantedHost::from_host(&parsed)?,
        port: host.port,
        transport,
        secure: false,
    })
}

impl Core {
    /// Whether a socket is one for queries.
    pub(crate) fn is_resolver(&self, socket: SocketId) -> bool {
        self.names.sockets.contains(&Some(socket))
    }

    /// A datagram on a socket for queries.
    pub(crate) fn resolver_answer(&mut self, source: SocketAddr, bytes: &[u8], now: Time) {
        match self.names.resolver.answer(source, bytes, now) {
            Ok(()) => {}
            Err(Ignored::Malformed) => self.drops.count(DropReason::DnsMalformed),
            Err(Ignored::Unasked | Ignored::Question) => {
                self.drops.count(DropReason::DnsUnexpected);
            }
        }
    }

    /// Bytes on a connection to a name server.
    pub(crate) fn resolver_stream(&mut self, stream: u32, bytes: &[u8], now: Time) {
        match self.names.resolver.stream_bytes(stream, bytes, now) {
            Ok(()) => {}
            Err(Ignored::Malformed) => self.drops.count(DropReason::DnsMalformed),
            Err(Ignored::Unasked | Ignored::Question) => {
                self.drops.count(DropReason::DnsUnexpected);
            }
        }
    }

    /// A connection to a name server has ended.
    pub(crate) fn resolver_ended(&mut self, stream: u32, now: Time) {
        self.names.resolver.stream_ended(stream, now);
    }

    /// Looks a name up for someone; what comes of it is told by [`Core::pump_names`].
    pub(crate) fn locate(
        &mut self,
        endpoint: &mut Endpoint,
        host: &HostName,
        transport: Option<Transport>,
        waiting: Waiting,
        now: Time,
    ) {
        let started = match wanted(host, transport) {
            Ok(wanted) => self.names.resolver.locate(wanted, now),
            Err(error) => Started::Done(Err(error)),
        };
        match started {
            Started::Pending(lookup) => {
                self.names.waiting.insert(lookup, waiting);
            }
            Started::Done(result) => {
                let targets = result.map(|targets| targets.take(MOST_ADDRESSES).collect());
                self.located(endpoint, waiting, targets, now);
            }
        }
    }

    /// A hop's name has to be looked up before it can be called.
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
        let Some(Place::Name(host, transport)) =
            set_up.hops.get(index).map(|hop| hop.place.clone())
        else {
            return;
        };
        set_up.locating += 1;
        let started = match wanted(&host, transport) {
            Ok(wanted) => self.names.resolver.locate(wanted, now),
            Err(error) => Started::Done(Err(error)),
        };
        match started {
            Started::Pending(lookup) => {
                self.names.waiting.insert(lookup, Waiting::Hop(key, index));
            }
            Started::Done(result) => {
                let targets = result.map(|targets| targets.take(MOST_ADDRESSES).collect());
                // The caller's loop goes on with what was put in.
                self.hop_located(key, index, targets);
            }
        }
        let _ = endpoint;
    }

    /// Sends queries, and hands on the lookups that have ended.
    pub(crate) fn pump_names(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some(outcome) = self.names.resolver.next_outcome() {
            let Some(waiting) = self.names.waiting.remove(&outcome.lookup) else {
                continue;
            };
            let targets = outcome
                .targets
                .map(|targets| targets.take(MOST_ADDRESSES).collect());
            self.located(endpoint, waiting, targets, now);
        }
        while let Some(query) = self.names.resolver.next_query() {
            let socket = self.query_socket(query.server.is_ipv4());
            self.queries.push_back(Query {
                socket,
                server: query.server,
                bytes: query.bytes,
            });
        }
    }

    /// Has the name looked up to which the requests of a dialog go, where it is one (RFC 3261 section 12.2.1.1).
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
        let waited = self.names.waiting.values().any(
            |waiting| matches!(waiting, Waiting::Dialog(other, same) if *other == leg && *same == hop),
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
        self.locate(endpoint, &host, transport, Waiting::Dialog(leg, hop), now);
    }

    /// Whether the name is being looked up to which a leg's requests go.
    pub(crate) fn is_locating(&self, leg: LegId) -> bool {
        let mut waiting = self.names.waiting.values();
        waiting.any(|waiting| matches!(waiting, Waiting::Dialog(other, _) if *other == leg))
    }

    /// The dialog's requests go to the first place of its name that can be reached from where it stands; they stay where
    /// they go already, where that is one of the places.
    fn lead_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        hop: &NamedHop,
        targets: &[Target],
    ) {
        let Some(flow) = endpoint.flow_of(leg) else {
            return;
        };
        let here =
            |target: &Target| (target.address, target.transport) == (flow.remote, flow.transport);
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
            // The leg may be gone by now.
            let _ = endpoint.lead(leg, hop, flow);
        }
    }

    /// The time for queries in flight.
    pub(crate) fn names_timeout(&mut self, now: Time) {
        self.names.resolver.timeout(now);
    }

    /// The configuration's servers have changed.
    pub(crate) fn reload_names(&mut self, endpoint: &mut Endpoint, now: Time) {
        let config = self.config.clone();
        let entropy = self.entropy.fork();
        for waiting in self.names.replaced(Names::new(&config, entropy)) {
            self.located(endpoint, waiting, Err(LocateError::NoAnswer), now);
        }
    }

    fn query_socket(&mut self, v4: bool) -> SocketId {
        let index = usize::from(!v4);
        if let Some(Some(socket)) = self.names.sockets.get(index) {
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
        if let Some(slot) = self.names.sockets.get_mut(index) {
            *slot = Some(socket);
        }
        socket
    }

    fn located(
        &mut self,
        endpoint: &mut Endpoint,
        waiting: Waiting,
        targets: Result<Vec<Target>, LocateError>,
        now: Time,
    ) {
        // A name that a peer has written makes nobody welcome.
        let ours = !matches!(waiting, Waiting::Dialog(..));
        for target in targets.iter().flatten().filter(|_| ours) {
            // Whoever we call by name may send us requests. A full table takes no more; their requests are then dropped
            // where a list of sources is configured.
            let ip = target.address.ip();
            let _ = self.located_peers.hold().insert(ip, ());
        }
        match waiting {
            Waiting::Hop(key, index) => {
                self.hop_located(key, index, targets);
                if let Some(slot) = self.slot_of(key) {
                    self.try_next(endpoint, slot, now);
                }
            }
            Waiting::Dialog(leg, hop) => {
                self.lead_dialog(endpoint, leg, &hop, &targets.unwrap_or_default());
            }
            Waiting::Outside(located) => {
                self.outside_located(endpoint, located, targets.unwrap_or_default(), now);
            }
        }
    }

    /// Puts the addresses of a hop's name behind it.
    fn hop_located(
        &mut self,
        key: CallKey,
        index: usize,
        targets: Result<Vec<Target>, LocateError>,
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
            Err(_) => set_up.best.offer(503, None, "name cannot be located"),
        }
    }
}

/// The step at each of the addresses; they are tried one after the other.
pub(crate) fn placed(hop: &Step, targets: &[Target]) -> Vec<Step> {
    targets
        .iter()
        .enumerate()
        .map(|(number, target)| Step {
            place: Place::Address(target.address, target.transport),
            group: 0x8000 | (hop.group << 4) | number as u16,
            ..hop.clone()
        })
        .collect()
}
