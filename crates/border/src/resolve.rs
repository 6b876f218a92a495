//! Name resolution (RFC 3263) for hops of calls, out-of-dialog requests, pings and registrations.

mod lookups;

use crate::calls::key::CallKey;
use crate::index_remap::IndexRemap;
use crate::listeners::Listeners;
use crate::out_of_dialog::state::DeferredRequest;
use crate::policy::HopStep;
use crate::shared::Ctx;
use anchor::MediaPlane;
use anchor::sockets::SocketWork;
use config::{Config, HostName, InterfaceId};
use core::time::Duration;
use engine::{ConnectionId, DropReason, Entropy, Output, SocketId, SocketKind, Time, Transport};
use sip::locate::{
    IgnoredAnswer, LocateError, LocateHost, LocateRequest, LookupId, LookupStart, ResolvedTarget,
    Resolver, ResolverConfig, StreamWork,
};
use sip::{LegId, NamedHop};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// Maximum number of addresses tried per name.
const MOST_ADDRESSES: usize = 8;
/// Time after which a query socket that could not be opened is tried again: less than the interval at which the
/// resolver repeats a query.
const SOCKET_RETRY: Duration = Duration::from_millis(500);

/// The request that waits for a lookup.
#[derive(Debug)]
pub(crate) enum LookupWaiter {
    /// A hop of a call.
    Hop(CallKey, usize),
    /// A hop of a transfer that the border carries out.
    Transfer(CallKey, usize),
    /// A dialog whose remote target or route is a name.
    Dialog(LegId, NamedHop),
    /// An out-of-dialog request.
    OutOfDialog(DeferredRequest),
}

/// The result of a lookup, and the request that waited for it.
pub(crate) type LookupResult = (LookupWaiter, Result<Vec<ResolvedTarget>, LocateError>);

/// The choices that a request leaves to a lookup.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookupChoices {
    /// The transport, if it is given.
    pub(crate) transport: Option<Transport>,
    /// See [`LocateRequest::usable`].
    usable: Vec<Transport>,
    /// See [`LocateRequest::seed`].
    seed: Option<u64>,
}

impl LookupChoices {
    /// Those of a request that is sent from this interface. Another interface may have more transports, and the target
    /// must not be located at an address that cannot be reached from here.
    pub(crate) fn from(
        config: &Config,
        interface: InterfaceId,
        transport: Option<Transport>,
    ) -> LookupChoices {
        let listen = config.interface(interface).into_iter();
        let usable = listen.flat_map(|interface| &interface.listen);
        LookupChoices {
            transport,
            usable: usable.map(|listen| listen.transport).collect(),
            seed: None,
        }
    }

    /// The same with the order of an earlier lookup.
    pub(crate) fn with_seed(self, seed: Option<u64>) -> LookupChoices {
        LookupChoices { seed, ..self }
    }
}

/// A DNS query to send.
#[derive(Debug)]
pub(crate) struct DnsQuery {
    pub(crate) socket: SocketId,
    pub(crate) server: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum QuerySocketState {
    #[default]
    Closed,
    Opening,
    Open,
}

/// The socket for queries over an address family.
#[derive(Clone, Copy, Debug, Default)]
struct QuerySocket {
    /// Present from the first query on. It keeps its number, because the numbers of signalling sockets are limited.
    id: Option<SocketId>,
    state: QuerySocketState,
    /// When it may be opened, after a failure.
    retry_at: Time,
    /// Whether a failure was logged, since it was open last.
    failure_logged: bool,
}

/// The resolver with its sockets.
#[derive(Debug)]
pub(crate) struct DnsClient {
    resolver: Resolver,
    waiting: BTreeMap<LookupId, LookupWaiter>,
    /// Results that were known at the start of their lookup.
    known: VecDeque<LookupResult>,
    /// UDP sockets for queries over IPv4 and IPv6, opened by the first query.
    sockets: [QuerySocket; 2],
    /// A requested connection, and the query to send over it.
    opening: Option<(ConnectionId, Vec<u8>)>,
    /// That query while the driver sends it.
    query: Vec<u8>,
    /// Queries over UDP, and the one that the driver sends.
    queries: VecDeque<DnsQuery>,
    pub(crate) current_query: Option<DnsQuery>,
}

/// Marks connections to DNS servers: the endpoint counts its own from 1, drivers set the bit above.
const NAME_SERVER: u64 = 1 << 62;

impl DnsClient {
    /// Starts a lookup. A result that is known already is returned; otherwise it is one of [`DnsClient::next_result`].
    pub(crate) fn start(
        &mut self,
        host: &HostName,
        choices: LookupChoices,
        waiting: LookupWaiter,
        now: Time,
    ) -> Option<LookupResult> {
        let started = match wanted(host, choices) {
            Ok(wanted) => self.resolver.locate(wanted, now),
            Err(error) => LookupStart::Done(Err(error)),
        };
        match started {
            LookupStart::Pending(lookup) => {
                self.waiting.insert(lookup, waiting);
                None
            }
            LookupStart::Done(result) => {
                let targets = result.map(|targets| targets.take(MOST_ADDRESSES).collect());
                Some((waiting, targets))
            }
        }
    }

    /// Starts a lookup whose result is one of [`DnsClient::next_result`] in any case.
    pub(crate) fn request(
        &mut self,
        host: &HostName,
        choices: LookupChoices,
        waiting: LookupWaiter,
        now: Time,
    ) {
        if let Some(result) = self.start(host, choices, waiting, now) {
            self.known.push_back(result);
        }
    }

    /// The next finished lookup.
    pub(crate) fn next_result(&mut self) -> Option<LookupResult> {
        if let Some(known) = self.known.pop_front() {
            return Some(known);
        }
        while let Some(outcome) = self.resolver.next_outcome() {
            let Some(waiting) = self.waiting.remove(&outcome.lookup) else {
                continue;
            };
            let targets = outcome.targets;
            let targets = targets.map(|targets| targets.take(MOST_ADDRESSES).collect());
            return Some((waiting, targets));
        }
        None
    }

    /// Whether a lookup of this host for a dialog is pending.
    pub(crate) fn awaits_dialog(&self, leg: LegId, hop: &NamedHop) -> bool {
        self.waiting.values().any(
            |waiting| matches!(waiting, LookupWaiter::Dialog(other, same) if *other == leg && same == hop),
        )
    }

    pub(crate) fn new(config: &Config, entropy: Entropy) -> DnsClient {
        let settings = ResolverConfig {
            servers: config.dns.servers.clone(),
            hosts: config.dns.hosts.clone(),
            transports: transports(config),
            ipv4: has_family(config, true),
            ipv6: has_family(config, false),
            lookups: config.limits.dns_queries,
            cache: config.limits.dns_cache,
            ..ResolverConfig::default()
        };
        DnsClient {
            resolver: Resolver::new(settings, entropy),
            waiting: BTreeMap::new(),
            known: VecDeque::new(),
            sockets: Default::default(),
            opening: None,
            query: Vec::new(),
            queries: VecDeque::new(),
            current_query: None,
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
        let rename = |waiting: &mut LookupWaiter| match waiting {
            LookupWaiter::Hop(..) | LookupWaiter::Transfer(..) | LookupWaiter::Dialog(..) => true,
            LookupWaiter::OutOfDialog(located) => located.rename(renamed),
        };
        self.waiting.retain(|_, waiting| rename(waiting));
        self.known.retain_mut(|(waiting, _)| rename(waiting));
    }

    /// Applies the transports and address families of the listeners after a reload. Pending lookups continue.
    pub(crate) fn reload_listeners(&mut self, config: &Config) {
        let (ipv4, ipv6) = (has_family(config, true), has_family(config, false));
        self.resolver.set_supported(transports(config), ipv4, ipv6);
    }

    /// Replaces the configured servers. Returns the requests of lookups that were aborted.
    pub(crate) fn replaced(&mut self, with: DnsClient) -> Vec<LookupWaiter> {
        let sockets = self.sockets;
        let mut before = std::mem::replace(self, with);
        self.sockets = sockets;
        self.queries = std::mem::take(&mut before.queries);
        self.known = std::mem::take(&mut before.known);
        self.current_query = before.current_query.take();
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

/// Whether an interface listens on an IPv4 or IPv6 address.
fn has_family(config: &Config, v4: bool) -> bool {
    let mut listens = config
        .interfaces
        .iter()
        .flat_map(|interface| &interface.listen);
    listens.any(|listen| listen.address.is_ipv4() == v4)
}

/// The resolver's number of a connection to a DNS server.
pub(crate) fn resolver_stream_of(connection: ConnectionId) -> Option<u32> {
    let ours = connection.0 & (ConnectionId::ACCEPTED | NAME_SERVER) == NAME_SERVER;
    u32::try_from(connection.0 & !NAME_SERVER)
        .ok()
        .filter(|_| ours)
}

/// The lookup for a target.
fn wanted(host: &HostName, choices: LookupChoices) -> Result<LocateRequest, LocateError> {
    let parsed = wire::sip::Host::parse(host.text().as_bytes()).ok_or(LocateError::BadName)?;
    Ok(LocateRequest {
        host: LocateHost::from_host(&parsed)?,
        port: host.port,
        transport: choices.transport,
        secure: false,
        usable: choices.usable,
        seed: choices.seed,
    })
}

impl DnsClient {
    /// Whether a socket is used for DNS queries.
    pub(crate) fn is_resolver(&self, socket: SocketId) -> bool {
        self.sockets.iter().any(|own| own.id == Some(socket))
    }

    /// A socket is open.
    pub(crate) fn socket_opened(&mut self, socket: SocketId) {
        let mut sockets = self.sockets.iter_mut();
        if let Some(own) = sockets.find(|own| own.id == Some(socket)) {
            own.state = QuerySocketState::Open;
            own.failure_logged = false;
        }
    }

    /// A socket could not be opened. If it is one for queries, a later query opens it: returns whether the failure is
    /// to be logged, which is so for the first of several.
    pub(crate) fn socket_failed(&mut self, socket: SocketId, now: Time) -> Option<bool> {
        let mut sockets = self.sockets.iter_mut();
        let own = sockets.find(|own| own.id == Some(socket))?;
        own.state = QuerySocketState::Closed;
        own.retry_at = now + SOCKET_RETRY;
        let is_logged = !core::mem::replace(&mut own.failure_logged, true);
        // The resolver repeats them.
        self.queries.retain(|query| query.socket != socket);
        Some(is_logged)
    }

    /// Whether a query can be sent. Queries wait while their socket is being opened.
    pub(crate) fn has_query(&self) -> bool {
        self.sendable().is_some()
    }

    /// The next query over UDP.
    pub(crate) fn next_query(&mut self) -> Option<&DnsQuery> {
        let at = self.sendable()?;
        let query = self.queries.remove(at)?;
        Some(self.current_query.insert(query))
    }

    /// Index of the first query whose socket is open.
    fn sendable(&self) -> Option<usize> {
        let is_open = |query: &DnsQuery| {
            let mut sockets = self.sockets.iter();
            let open = sockets.find(|own| own.id == Some(query.socket));
            open.is_some_and(|own| own.state == QuerySocketState::Open)
        };
        self.queries.iter().position(is_open)
    }

    /// A datagram on a socket for DNS queries.
    pub(crate) fn resolver_answer(&mut self, ctx: &mut Ctx, source: SocketAddr, bytes: &[u8]) {
        let now = ctx.now;
        match self.resolver.answer(source, bytes, now) {
            Ok(()) => {}
            Err(IgnoredAnswer::Malformed) => ctx.drops.count(DropReason::DnsMalformed),
            Err(IgnoredAnswer::Unasked | IgnoredAnswer::Question) => {
                ctx.drops.count(DropReason::DnsUnexpected);
            }
        }
    }

    /// Bytes on a connection to a DNS server.
    pub(crate) fn resolver_stream(&mut self, ctx: &mut Ctx, stream: u32, bytes: &[u8]) {
        let now = ctx.now;
        match self.resolver.stream_bytes(stream, bytes, now) {
            Ok(()) => {}
            Err(IgnoredAnswer::Malformed) => ctx.drops.count(DropReason::DnsMalformed),
            Err(IgnoredAnswer::Unasked | IgnoredAnswer::Question) => {
                ctx.drops.count(DropReason::DnsUnexpected);
            }
        }
    }

    /// A connection to a DNS server was closed.
    pub(crate) fn resolver_ended(&mut self, ctx: &Ctx, stream: u32) {
        let now = ctx.now;
        self.resolver.stream_ended(stream, now);
    }

    /// Whether the destination of a leg is being resolved.
    pub(crate) fn is_locating(&self, leg: LegId) -> bool {
        let mut waiting = self.waiting.values();
        waiting.any(|waiting| matches!(waiting, LookupWaiter::Dialog(other, _) if *other == leg))
    }

    /// Processes timeouts of queries.
    pub(crate) fn dns_timeout(&mut self, ctx: &Ctx) {
        let now = ctx.now;
        self.resolver.timeout(now);
    }

    /// The socket for queries over IPv4 or IPv6; the first query opens it. `None` for a while after a failure: the
    /// query is lost, and the resolver repeats it.
    fn query_socket(
        &mut self,
        listeners: &mut Listeners,
        plane: &mut MediaPlane,
        v4: bool,
        now: Time,
    ) -> Option<SocketId> {
        let own = self.sockets.get_mut(usize::from(!v4))?;
        if own.state != QuerySocketState::Closed {
            return own.id;
        }
        if now < own.retry_at {
            return None;
        }
        let socket = *own.id.get_or_insert_with(|| listeners.next_socket());
        let any: std::net::IpAddr = match v4 {
            true => std::net::Ipv4Addr::UNSPECIFIED.into(),
            false => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        plane.work.push_back(SocketWork::Open {
            socket,
            kind: SocketKind::UdpSignalling,
            local: SocketAddr::new(any, 0),
        });
        own.state = QuerySocketState::Opening;
        own.id
    }
}

/// A step for each of the addresses, tried in order.
pub(crate) fn placed(hop: &HopStep, targets: &[ResolvedTarget]) -> Vec<HopStep> {
    targets
        .iter()
        .zip(0..)
        .map(|(target, number)| hop.at_address(number, target.address, target.transport))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_fixed_addresses_need_no_name_server() {
        let text =
            "[[interface]]\nname='a'\nlisten='udp:192.0.2.1'\n[dns]\nservers=['192.0.2.53']\n";
        let mut config = config::parse(text, "t").unwrap();
        config.dns.hosts = vec![("pbx".to_owned(), [10, 0, 0, 20].into())];
        let mut client = DnsClient::new(&config, Entropy::from_number(1));
        for (name, address) in [("PBX", "10.0.0.20:5060"), ("pbx:5080", "10.0.0.20:5080")] {
            let host = HostName::parse(name).unwrap();
            let request = wanted(&host, LookupChoices::default()).unwrap();
            let LookupStart::Done(Ok(targets)) = client.resolver.locate(request, Time::ZERO) else {
                panic!("{name} is not known");
            };
            let found: Vec<String> = targets.map(|target| target.address.to_string()).collect();
            assert_eq!(found, [address]);
        }
    }
}
