//! The configuration: TOML text to a checked [`Config`], or all mistakes with file, line, column and remedy.
//!
//! Three steps. The text is parsed into a document with positions, in which former names of keys are replaced. The
//! document is validated against the JSON Schema of the raw types (unknown keys, wrong types, values out of range).
//! Then the raw types are converted to the checked types below: names become indices, texts become addresses, and
//! contradictions are refused.
//!
//! No key is ignored: it has an effect, or it is refused.
#![forbid(unsafe_code)]

mod address;
mod check;
mod codecs;
mod conferences;
mod control;
mod document;
pub mod headers;
mod interfaces;
mod limits;
mod metrics;
mod mistake;
mod ng_client;
mod ng_server;
mod rate_limits;
mod raw;
mod records;
mod renamed;
mod routes;
mod rules;
mod schema;
mod security;
mod store;
#[cfg(test)]
mod tests;
mod threads;
mod tls;
mod trunks;
mod warnings;
mod workers;

pub use address::{Cidr, HostName, ListenAddress};
pub use codecs::{TranscodeWhen, Transcoding};
pub use conferences::{ConferenceSpec, MAX_PIN, Pin};
pub use control::ControlSpec;
pub use limits::{AdmissionLimits, FailureLimits, MachineCapacity};
pub use metrics::MetricsSpec;
pub use mistake::{Mistake, did_you_mean};
pub use ng_client::{MediaNodePolicy, MediaNodeSpec, NodeFailure, NodeLoad};
pub use ng_server::{NgServerInterface, NgServerSpec};
pub use rate_limits::RateLimits;
pub use records::{RecordFormat, RecordsSpec};
pub use rules::{History, IdentityPolicy};
pub use schema::{json_schema, markdown};
pub use security::{Ice, Keying, MediaSecurity, Mux, SrtpPolicy};
pub use store::{HepSpec, StoreSpec};
pub use threads::{PrivilegedMode, Threads};
pub use tls::{
    CertificateFiles, ClientProof, FilePath, ListenTls, TlsVersion, TrunkTls, Trust, WebSocket,
};

use core::time::Duration;
use engine::{Limits, Transport, Worker};
use regex::Regex;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

/// Index of an interface in [`Config::interfaces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u16);

/// Index of a trunk in [`Config::trunks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrunkId(pub u16);

/// A checked configuration. Every index in it is valid.
#[derive(Clone, Debug)]
pub struct Config {
    /// Interfaces, in the order of the file; at least one, unless there is an ng server.
    pub interfaces: Vec<InterfaceSpec>,
    /// Media for other systems.
    pub ng_server: Option<NgServerSpec>,
    /// Media nodes that relay media for this border; empty if media is anchored here.
    pub media_nodes: Vec<MediaNodeSpec>,
    /// Settings common to all media nodes.
    pub media_node_policy: MediaNodePolicy,
    /// Systems that calls are sent to.
    pub trunks: Vec<Trunk>,
    /// Routes, tried in order.
    pub routes: Vec<RouteSpec>,
    /// Conferences, matched before routes.
    pub conferences: Vec<Arc<ConferenceSpec>>,
    /// Header rules, compiled.
    pub rules: ::rules::RuleSet,
    /// Identities at the boundary of the trust domain.
    pub identity: IdentityPolicy,
    /// Users by name: they may register, and call with digest.
    pub users: BTreeMap<String, UserSpec>,
    /// Names of the users that have numbers.
    pub numbered: Vec<String>,
    /// Digest authentication of requests.
    pub realm: Realm,
    /// The embedded registrar.
    pub registrar: Registrar,
    /// Storage of registrations over a restart.
    pub registrar_store: RegistrarStore,
    /// Media that interfaces anchor.
    pub media: MediaSpec,
    /// Distinct ranges of media ports, referred to by index.
    pub media_ranges: Vec<MediaRange>,
    /// For each of them, the bytes of the text that define it, or the interface that has it by default.
    pub media_places: Vec<core::ops::Range<usize>>,
    /// SIP behaviour that is common to all interfaces.
    pub sip: Sip,
    /// Scheduling of worker threads.
    pub threads: Threads,
    /// Session timers (RFC 4028).
    pub session_timer: SessionTimer,
    /// Capacities.
    pub limits: Limits,
    /// Limits of memory and CPU time.
    pub admission: AdmissionLimits,
    /// DNS servers.
    pub dns: Dns,
    /// Operator commands and control of conferences.
    pub control: Option<ControlSpec>,
    /// The history of calls, messages and events.
    pub store: Option<StoreSpec>,
    /// Call records.
    pub records: Option<RecordsSpec>,
    /// Metrics.
    pub metrics: Option<MetricsSpec>,
    /// Graceful shutdown.
    pub drain: Drain,
    /// Logging.
    pub log: LogSpec,
    /// Warnings about keys and values under their former names.
    pub renamed_keys: Vec<String>,
}

impl Config {
    /// The interface of an index.
    pub fn interface(&self, id: InterfaceId) -> Option<&InterfaceSpec> {
        self.interfaces.get(usize::from(id.0))
    }

    /// The name of a trunk; `None` without one.
    pub fn name_of_trunk(&self, id: Option<TrunkId>) -> Option<String> {
        self.trunk(id?).map(|trunk| trunk.name.clone())
    }

    /// The name of an interface; empty for one that was removed.
    pub fn interface_name(&self, id: InterfaceId) -> String {
        self.interface(id)
            .map_or_else(String::new, |interface| interface.name.clone())
    }

    /// The trunk of an index.
    pub fn trunk(&self, id: TrunkId) -> Option<&Trunk> {
        self.trunks.get(usize::from(id.0))
    }

    /// Whether a peer is trusted with asserted identities (RFC 3325 section 2.3): by the setting of the trunk,
    /// otherwise that of the interface.
    pub fn trusts(&self, interface: InterfaceId, trunk: Option<TrunkId>) -> bool {
        match trunk.and_then(|trunk| self.trunk(trunk)) {
            Some(trunk) => trunk.trusted,
            None => self
                .interface(interface)
                .is_some_and(|interface| interface.trusted),
        }
    }

    /// Headers that topology hiding passes unchanged to an interface; `None` if nothing is hidden from it.
    pub fn hiding(&self, interface: InterfaceId) -> Option<&[Box<str>]> {
        let interface = self.interface(interface).filter(|known| known.hides)?;
        Some(&interface.pass_headers)
    }

    /// The peer of a message, as seen by header rules.
    pub fn peer_ref(&self, interface: InterfaceId, trunk: Option<TrunkId>) -> ::rules::PeerRef {
        let core = self
            .interface(interface)
            .is_some_and(|interface| interface.kind == InterfaceKind::Core);
        ::rules::PeerRef {
            interface: interface.0,
            kind: match (trunk, core) {
                (Some(_), _) => ::rules::PeerKind::Trunk,
                (None, true) => ::rules::PeerKind::Core,
                (None, false) => ::rules::PeerKind::Access,
            },
            trunk: trunk.map(|trunk| trunk.0),
        }
    }

    /// The index of the interface of this name.
    pub fn interface_named(&self, name: &str) -> Option<InterfaceId> {
        let at = self.interfaces.iter().position(|i| i.name == name)?;
        u16::try_from(at).ok().map(InterfaceId)
    }

    /// The index of the trunk of this name.
    pub fn trunk_named(&self, name: &str) -> Option<TrunkId> {
        let at = self.trunks.iter().position(|t| t.name == name)?;
        u16::try_from(at).ok().map(TrunkId)
    }

    /// Media security towards a side of a call.
    pub fn security(
        &self,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
    ) -> Option<&Arc<MediaSecurity>> {
        match trunk.and_then(|trunk| self.trunk(trunk)) {
            Some(trunk) => Some(&trunk.security),
            None => Some(&self.interface(interface)?.security),
        }
    }

    /// Transcoding towards a side of a call.
    pub fn transcoding(
        &self,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
    ) -> Option<&Arc<Transcoding>> {
        match trunk.and_then(|trunk| self.trunk(trunk)) {
            Some(trunk) => Some(&trunk.transcoding),
            None => Some(&self.interface(interface)?.transcoding),
        }
    }

    /// Whether any side may use DTLS, for which the border needs a certificate.
    pub fn may_use_dtls(&self) -> bool {
        let interfaces = self.interfaces.iter().map(|interface| &interface.security);
        let trunks = self.trunks.iter().map(|trunk| &trunk.security);
        interfaces
            .chain(trunks)
            .any(|security| security.may_use_dtls())
    }

    /// Hints about SRTP keys in session descriptions over unencrypted signalling.
    fn srtp_key_hints(&self, hints: &mut Vec<String>) {
        let open = |transport: Transport| {
            matches!(transport, Transport::Udp | Transport::Tcp | Transport::Ws)
        };
        let remedy = "an eavesdropper on the signalling can decrypt the media; use tls: or wss:, or srtp_keying = \"dtls\"";
        for interface in self
            .interfaces
            .iter()
            .filter(|interface| interface.security.tells_keys())
        {
            if let Some(listen) = interface
                .listen
                .iter()
                .find(|listen| open(listen.transport))
            {
                hints.push(format!(
                    "interface {}: SRTP keys are sent in session descriptions, and {listen} is not encrypted: {remedy}",
                    interface.name
                ));
            }
        }
        for trunk in self
            .trunks
            .iter()
            .filter(|trunk| trunk.security.tells_keys())
        {
            if trunk
                .targets
                .iter()
                .any(|target| target.transport.is_none_or(open))
            {
                hints.push(format!(
                    "trunk {}: SRTP keys are sent in session descriptions, and signalling to it may be unencrypted: {remedy}",
                    trunk.name
                ));
            }
        }
    }

    /// The user of a name or number.
    pub fn user_called(&self, called: &str) -> Option<&UserSpec> {
        self.users.get(called).or_else(|| {
            // Few users have numbers; the others are not searched.
            let mut with = self.numbered.iter().filter_map(|name| self.users.get(name));
            with.find(|user| user.is_called(called))
        })
    }

    /// Hints about settings that are valid but may be unintended.
    pub fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        self.srtp_key_hints(&mut hints);
        for interface in &self.interfaces {
            let name = &interface.name;
            for listen in &interface.listen {
                let port = listen.address.port();
                if port < 1024 {
                    hints.push(format!(
                        "interface {name}: port {port} is below 1024: an unprivileged user needs CAP_NET_BIND_SERVICE to open it"
                    ));
                }
            }
        }
        hints
    }

    /// The trunk of a request that arrived on `interface` from `source`: by its `sources`, or by the exact address and
    /// port of a target. On stream transports the port is ignored. On a TLS connection opened by the peer, `proven` are
    /// the domains of its verified certificate: a trunk with client names is identified by them alone.
    pub fn trunk_of(
        &self,
        interface: InterfaceId,
        source: SocketAddr,
        transport: Transport,
        proven: Option<&[String]>,
    ) -> Option<TrunkId> {
        let at = self.trunks.iter().position(|trunk| {
            if trunk.interface != interface {
                return false;
            }
            if let (Some(proven), names @ [_, ..]) = (proven, trunk.client_names()) {
                return proven.iter().any(|name| names.contains(name));
            }
            trunk.sources.iter().any(|net| net.contains(source.ip()))
                || trunk.targets.iter().any(|target| {
                    target.address(transport).is_some_and(|address| {
                        address.ip() == source.ip()
                            && (transport.is_reliable() || address.port() == source.port())
                    })
                })
        })?;
        u16::try_from(at).ok().map(TrunkId)
    }
}

/// The network behind an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// Phones and foreign networks: their asserted identities are removed (RFC 3325 section 5).
    Access,
    /// Our own systems: asserted identities are believed.
    Core,
}

/// Authentication of requests on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authenticate {
    /// None.
    None,
    /// Digest (RFC 7616) of a configured user; requests of trunks are exempt.
    Digest,
    /// The trunk to which registrations are forwarded authenticates; unregistered sources reach that trunk alone.
    Trunk,
}

/// Treatment of REGISTER on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Kept by the embedded registrar.
    Local,
    /// Forwarded to this trunk, with our Contact in place of the phone's.
    Pass(TrunkId),
    /// Refused with 403.
    Refuse,
}

/// A named set of listeners with one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceSpec {
    /// Name.
    pub name: String,
    /// Network behind the interface.
    pub kind: InterfaceKind,
    /// Whether peers other than trunks are trusted with asserted identities.
    pub trusted: bool,
    /// Whether other networks are hidden from its peers: unknown headers, and hosts in known ones.
    pub hides: bool,
    /// Headers that are passed unchanged nevertheless.
    pub pass_headers: Vec<Box<str>>,
    /// Listening addresses; at least one.
    pub listen: Vec<ListenAddress>,
    /// Host in Via and Contact instead of the listening address (behind NAT); its port defaults to the listening port.
    pub advertise: Option<HostName>,
    /// Sources whose requests are accepted; others are dropped without a response. Empty: all.
    pub allow: Vec<Cidr>,
    /// Required authentication.
    pub authenticate: Authenticate,
    /// Rate limits.
    pub rate_limits: RateLimits,
    /// Treatment of REGISTER.
    pub register: Register,
    /// Whether registered contacts are reached at the address in their Contact instead of the flow of the registration.
    pub contacts_by_address: bool,
    /// Whether SUBSCRIBE, and NOTIFY outside of a subscription, are forwarded.
    pub subscribe: bool,
    /// Whether out-of-dialog REFER is forwarded.
    pub refer: bool,
    /// Whether the identity of users that are registered from the source of a request is asserted without
    /// authentication.
    pub assert_registered: bool,
    /// Media security in calls from and to this interface, except trunks with their own settings.
    pub security: Arc<MediaSecurity>,
    /// Transcoding in calls from and to this interface.
    pub transcoding: Arc<Transcoding>,
    /// Whether early media is relayed only if P-Early-Media authorises it.
    pub gate_early_media: bool,
    /// Whether calls from this interface get a P-Charging-Vector, and calls to it are answered with one.
    pub charging_vector: bool,
    /// Media addresses: at least one, at most one per address family.
    pub media: Vec<MediaAddress>,
    /// Name of this interface at media nodes.
    pub node_interface: Option<String>,
    /// Certificates, if it has TLS listeners.
    pub tls: Option<ListenTls>,
    /// Checks of WebSocket handshakes.
    pub websocket: WebSocket,
}

impl InterfaceSpec {
    /// Whether requests from `source` are accepted.
    pub fn allows(&self, source: IpAddr) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|net| net.contains(source))
    }
}

/// A media address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaAddress {
    /// Index into [`Config::media_ranges`].
    pub range: usize,
    /// Address that sockets are bound to.
    pub address: IpAddr,
    /// Address in SDP instead (behind NAT).
    pub advertise: Option<IpAddr>,
}

impl MediaAddress {
    /// The address in SDP.
    pub fn signalled(&self) -> IpAddr {
        self.advertise.unwrap_or(self.address)
    }
}

/// A range of media ports on one address. Interfaces with the same range share its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaRange {
    /// The address.
    pub address: IpAddr,
    /// First port.
    pub first: u16,
    /// Last port, included.
    pub last: u16,
}

impl MediaRange {
    /// First and last port of the part of a worker. Parts begin at even ports.
    pub fn part(&self, worker: &Worker) -> (u16, u16) {
        if worker.is_alone() {
            return (self.first, self.last);
        }
        let first = u32::from(self.first) + u32::from(self.first & 1);
        let ports = (u32::from(self.last) + 1).saturating_sub(first);
        let size = (ports / u32::from(worker.count)) & !1;
        let at = first + size * u32::from(worker.number);
        let port = |port: u32| u16::try_from(port).unwrap_or(u16::MAX);
        (port(at), port((at + size).saturating_sub(1)))
    }
}

/// A system that calls are sent to and come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trunk {
    /// Name.
    pub name: String,
    /// The interface through which it is reached.
    pub interface: InterfaceId,
    /// Targets; at least one. Lower priority values are tried first; among equal ones the choice is random by weight.
    pub targets: Vec<TargetSpec>,
    /// Networks of its requests, in addition to its targets.
    pub sources: Vec<Cidr>,
    /// Domain in Request-URI, From and To of requests to the trunk; `None`: the host of the target.
    pub domain: Option<HostName>,
    /// Credentials for its challenges.
    pub credentials: Option<TrunkCredentials>,
    /// Registration of an account at the trunk.
    pub register: Option<CarrierAccount>,
    /// Time between two OPTIONS; `None`: it is not pinged and counts as up.
    pub ping_interval: Option<Duration>,
    /// Failed pings in a row after which a target counts as down.
    pub ping_failures: u32,
    /// Maximum number of calls in both directions.
    pub max_calls: Option<u32>,
    /// Whether overload control is used towards it (RFC 7339).
    pub overload_control: bool,
    /// Rate limits.
    pub rate_limits: RateLimits,
    /// Time to wait for the first response to an INVITE before the next target is tried.
    pub answer_timeout: Duration,
    /// Whether it is trusted with asserted identities.
    pub trusted: bool,
    /// Treatment of asserted identities in messages to the trunk.
    pub identity: IdentityPassing,
    /// User part of From in calls to the trunk; `None`: that of the caller.
    pub from_user: Option<String>,
    /// Treatment of REFER from the trunk.
    pub refer: Refer,
    /// Treatment of 3xx from the trunk.
    pub redirect: Redirect,
    /// Media security in calls from and to the trunk.
    pub security: Arc<MediaSecurity>,
    /// Transcoding in calls from and to the trunk.
    pub transcoding: Arc<Transcoding>,
    /// TLS, if a target uses it or may use it.
    pub tls: Option<TrunkTls>,
}

impl Trunk {
    /// Domains of the certificates that identify the trunk; empty: it is identified by its address.
    pub fn client_names(&self) -> &[String] {
        self.tls.as_ref().map_or(&[], |tls| &tls.client_names)
    }
}

/// A target of a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    /// Address or name. A name without port and transport is resolved by RFC 3263.
    pub host: HostName,
    /// Transport, if one is written.
    pub transport: Option<Transport>,
    /// Lower values are tried first.
    pub priority: u16,
    /// Share among targets of the same priority. 0: only if no other is left.
    pub weight: u16,
}

impl TargetSpec {
    /// The socket address, if the target is an IP address.
    pub fn address(&self, transport: Transport) -> Option<SocketAddr> {
        let ip = self.host.ip()?;
        let port = self.host.port.unwrap_or(address::default_port(transport));
        Some(SocketAddr::new(ip, port))
    }

    /// The socket address and transport, if no name has to be resolved.
    pub fn direct(&self) -> Option<(SocketAddr, Transport)> {
        let transport = self.transport.unwrap_or(Transport::Udp);
        Some((self.address(transport)?, transport))
    }
}

/// User name and password for digest challenges of a trunk.
#[derive(Clone, PartialEq, Eq)]
pub struct TrunkCredentials {
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
}

impl core::fmt::Debug for TrunkCredentials {
    /// Omits the password, because logs must not contain secrets.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Credentials({})", self.username)
    }
}

/// An account at a carrier that is kept registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarrierAccount {
    /// User part of the address of record.
    pub user: String,
    /// Domain of the address of record and of the Request-URI.
    pub domain: HostName,
    /// User part of our Contact, to which calls from the carrier are addressed.
    pub contact_user: String,
    /// Requested lifetime.
    pub expires: Duration,
    /// Use of keep-alives on the flow of the registration (RFC 5626 section 4.4).
    pub keep_alive: KeepAlive,
}

/// Use of keep-alives on the flow of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// If the carrier supports them.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Treatment of P-Asserted-Identity, Remote-Party-ID and similar headers in messages to a trunk (RFC 3325).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityPassing {
    /// They are passed if they come from a trusted side.
    Pass,
    /// They are removed.
    Remove,
}

/// Treatment of REFER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refer {
    /// Passed to the other leg.
    Pass,
    /// The border transfers the call itself.
    Act,
}

/// Treatment of 3xx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// Passed to the caller.
    Pass,
    /// The border calls the contacts.
    Follow,
}

/// A route of calls.
#[derive(Clone, Debug)]
pub struct RouteSpec {
    /// Name for logs; `route N`, counted from 1, if none is configured.
    pub name: String,
    /// Interfaces from which the call may come. Empty: any.
    pub interfaces: Vec<InterfaceId>,
    /// Trunks from which the call may come. Empty: any, and calls that come from no trunk.
    pub from_trunks: Vec<TrunkId>,
    /// Conditions on the caller.
    pub from: Match,
    /// Conditions on the called address.
    pub to: Match,
    /// Changes of the called number.
    pub rewrite: NumberRewrite,
    /// Destination.
    pub action: RouteAction,
    /// Whether sources that have not authenticated may use the route although a trunk authenticates.
    pub unauthenticated: bool,
    /// Treatment of media.
    pub media: MediaMode,
}

/// Conditions on an address. All of them must hold.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Prefixes of the user part. Empty: any.
    pub prefixes: Vec<String>,
    /// Expression for the whole user part (anchored at both ends).
    pub regex: Option<Regex>,
    /// Hosts, compared without regard to case. Empty: any.
    pub domains: Vec<String>,
    /// User parts. Empty: any.
    pub users: Vec<String>,
    /// Service URNs in lower case (`urn:service:sos`), each including the services below it. Empty: any.
    pub services: Vec<String>,
}

/// Changes of the called number: strip, then replace, then prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumberRewrite {
    /// Number of leading characters removed.
    pub strip: usize,
    /// Replacement for the match of `to.regex`; `$1` is the first group.
    pub replace: Option<String>,
    /// Prefix added.
    pub prefix: String,
}

/// Destination of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// The first of these trunks that accepts it.
    Trunks(Vec<RouteTrunk>),
    /// The contacts of a registered user.
    Registered,
    /// Refused.
    Reject {
        /// Status, 400 to 699.
        status: u16,
        /// Reason phrase, unless it is that of the status.
        reason: Option<String>,
    },
}

/// A trunk of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTrunk {
    /// The trunk.
    pub trunk: TrunkId,
    /// Lower values are tried first.
    pub priority: u16,
    /// Share among trunks of the same priority. 0: only if no other is left.
    pub weight: u16,
}

/// Treatment of the media of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaMode {
    /// Anchored at the border.
    Anchor,
    /// Anchored at a media node.
    Node,
    /// Media bypass: SDP is passed unchanged.
    Bypass,
}

/// A user: may register, and call with digest.
#[derive(Clone, PartialEq, Eq)]
pub struct UserSpec {
    /// Name, as in `sip:NAME@...` and in digest credentials.
    pub name: String,
    /// Secret for authentication.
    pub secret: UserSecret,
    /// Telephone numbers in addition to the name.
    pub numbers: Vec<Number>,
}

impl UserSpec {
    /// Whether the user part of an address is the name or a number of this user.
    pub fn is_called(&self, user: &str) -> bool {
        self.name == user || self.numbers.iter().any(|number| number.takes(user))
    }
}

/// Numbers of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Number {
    /// One number.
    One(String),
    /// All numbers with this prefix.
    Prefix(String),
}

impl Number {
    /// Whether the number is included.
    pub fn takes(&self, user: &str) -> bool {
        match self {
            Number::One(number) => number == user,
            Number::Prefix(prefix) => user.starts_with(prefix.as_str()),
        }
    }

    /// Whether a number is included in both.
    fn meets(&self, other: &Number) -> bool {
        match (self, other) {
            (Number::One(number), other) | (other, Number::One(number)) => other.takes(number),
            (Number::Prefix(a), Number::Prefix(b)) => {
                a.starts_with(b.as_str()) || b.starts_with(a.as_str())
            }
        }
    }
}

impl core::fmt::Debug for UserSpec {
    /// Omits the secret, because logs must not contain secrets.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "User({})", self.name)
    }
}

/// Secret of a user.
#[derive(Clone, PartialEq, Eq)]
pub enum UserSecret {
    /// The password.
    Password(String),
    /// MD5 of `name:realm:password` in hexadecimal; requires MD5.
    Ha1(String),
}

impl core::fmt::Debug for UserSecret {
    /// Omits the secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            UserSecret::Password(_) => "Password",
            UserSecret::Ha1(_) => "Ha1",
        })
    }
}

/// Digest algorithms (RFC 7616, RFC 8760).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestAlgorithm {
    /// `MD5`
    Md5,
    /// `SHA-256`
    Sha256,
    /// `SHA-512-256`
    Sha512T256,
    /// `MD5-sess`
    Md5Sess,
    /// `SHA-256-sess`
    Sha256Sess,
    /// `SHA-512-256-sess`
    Sha512T256Sess,
}

impl DigestAlgorithm {
    /// The name in a challenge.
    pub const fn name(self) -> &'static str {
        match self {
            DigestAlgorithm::Md5 => "MD5",
            DigestAlgorithm::Sha256 => "SHA-256",
            DigestAlgorithm::Sha512T256 => "SHA-512-256",
            DigestAlgorithm::Md5Sess => "MD5-sess",
            DigestAlgorithm::Sha256Sess => "SHA-256-sess",
            DigestAlgorithm::Sha512T256Sess => "SHA-512-256-sess",
        }
    }
}

/// Digest authentication of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Realm {
    /// The realm in our challenges.
    pub name: String,
    /// Offered algorithms, best first; at least one.
    pub algorithms: Vec<DigestAlgorithm>,
    /// Lifetime of a nonce.
    pub nonce_lifetime: Duration,
    /// Limits of failed authentications.
    pub failures: FailureLimits,
}

/// The embedded registrar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrar {
    /// Shortest accepted lifetime in seconds. Shorter requests are refused with 423.
    pub min_expires_s: u32,
    /// Longest granted lifetime in seconds.
    pub max_expires_s: u32,
    /// Lifetime in seconds if the request states none.
    pub default_expires_s: u32,
    /// Maximum number of contacts per address of record.
    pub max_contacts: usize,
    /// Longest lifetime in seconds for a phone behind NAT over UDP. 0: no such limit.
    pub nat_expires_s: u32,
    /// Flow-Timer of RFC 5626 in seconds.
    pub flow_timer_s: u32,
    /// Seconds between two REGISTERs to the core for a registration that does not change. 0: each one is forwarded.
    pub refresh_interval_s: u32,
    /// Maximum number of accepted registrations per second. 0: no limit.
    pub registrations_per_s: u32,
}

/// Storage of registrations over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrarStore {
    /// A file in the state directory, if the program has one.
    #[default]
    Usual,
    /// In memory only.
    None,
    /// This file.
    File(PathBuf),
}

/// Anchored media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaSpec {
    /// Whether calls are anchored at media nodes instead of the border.
    pub at_nodes: bool,
    /// Time without media after which a call is ended; `None`: never.
    pub timeout: Option<Duration>,
    /// The same for a call on hold.
    pub hold_timeout: Option<Duration>,
    /// Differentiated services code point of media packets.
    pub dscp: u8,
    /// Longest batching delay of media.
    pub batching_delay: Duration,
    /// Sockets of media ports.
    pub sockets: MediaSocketMode,
    /// Use of the kernel relay.
    pub kernel_relay: OffloadMode,
    /// Use of AF_XDP.
    pub af_xdp: OffloadMode,
}

/// Use of an optional path for media packets that kernel or privileges may not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadMode {
    /// Not used.
    Never,
    /// Used if possible.
    Auto,
    /// Used for all media addresses, or the program does not start.
    Require,
}

/// Sockets of media ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaSocketMode {
    /// A shared socket if possible.
    Auto,
    /// A shared socket, or the program does not start.
    Shared,
    /// A socket per port.
    PerPort,
}

/// SIP behaviour that is common to all interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sip {
    /// Value of the Server and User-Agent headers.
    pub agent: String,
    /// Differentiated services code point of signalling.
    pub dscp: u8,
    /// Time after which a ringing call is cancelled.
    pub ring_timeout: Duration,
    /// Longest batching delay of signalling.
    pub batching_delay: Duration,
    /// Whether messages of equal length to one peer are sent by GSO.
    pub gso: bool,
    /// Largest burst to one peer over UDP, in bytes; 0: no limit.
    pub burst_bytes: usize,
    /// Queueing delay above which new calls and registrations are refused; `None`: never.
    pub queueing_delay: Option<Duration>,
    /// Number of workers.
    pub workers: u8,
    /// Maximum number of refused new calls per 100 accepted ones in a flood; further INVITEs are dropped unread.
    /// `None`: no limit.
    pub refusals_percent: Option<u32>,
    /// Whether overload control is offered to neighbours that ask for it (RFC 7339).
    pub overload_feedback: bool,
}

/// Session timers (RFC 4028).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimer {
    /// Session-Expires that the border requests if a side requests none; `None`: none.
    pub expires: Option<Duration>,
    /// Min-SE: requests for less are refused with 422.
    pub min_se: Duration,
}

/// DNS servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Servers in order. Empty: those of the machine.
    pub servers: Vec<SocketAddr>,
}

/// Graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Time after which remaining calls are ended.
    pub timeout: Duration,
}

/// Logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSpec {
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// One JSON object per line instead of text.
    pub json: bool,
}

/// Parses and checks a configuration. Mistakes carry `file` as file name.
///
/// # Errors
/// All mistakes, in the order of the file.
pub fn parse(text: &str, file: &str) -> Result<Config, Vec<Mistake>> {
    check::parse(text, file)
}

/// Result of [`judge`].
#[derive(Clone, Debug)]
pub struct CheckedConfig {
    /// The configuration, if the text can be interpreted; with mistakes it is usable only for the names of files in it.
    pub config: Option<Config>,
    /// All mistakes that are independent of each other, in the order of the text.
    pub mistakes: Vec<Mistake>,
}

/// Parses and checks a configuration, and reports mistakes of all steps: syntax, structure, meaning.
pub fn judge(text: &str, file: &str) -> CheckedConfig {
    check::judge(text, file)
}
