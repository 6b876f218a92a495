//! The configuration: TOML text to a checked [`Config`], or every mistake in it with file, line, column and remedy.
//!
//! Three steps. The text is read into a document with positions; the document is held against the JSON Schema of the raw
//! types (unknown keys, wrong types, values out of range: all of them at once); what passes is turned into the checked
//! types below, where names have become indices, texts have become addresses, and contradictions are refused.
//! Nothing that is written in a file is ignored: a key is used by the border, or it does not exist.

mod address;
mod check;
mod codecs;
mod control;
mod interfaces;
mod media_node;
mod mistake;
mod node;
mod nodes;
mod rates;
mod raw;
mod rooms;
mod routes;
mod rules;
mod schema;
mod security;
#[cfg(test)]
mod tests;
mod threads;
pub(crate) mod tls;
mod trunks;
mod warnings;
mod workers;

pub use address::{Cidr, HostName, ListenAddress};
pub use codecs::{TranscodeWhen, Transcoding};
pub use control::ControlSpec;
pub use media_node::{Node as MediaNode, NodeInterface};
pub use mistake::{Mistake, did_you_mean};
pub use nodes::{NodeCare, NodeFailure, NodeLoad, RemoteNode};
pub use rates::Rates;
pub use rooms::{MAX_PIN, Pin, Room};
pub use rules::{History, IdentityPolicy};
pub use schema::{json_schema, markdown};
pub use security::{Ice, Keying, MediaSecurity, Mux, SrtpPolicy};
pub use threads::{Threads, Wish};
pub use tls::{
    CertificateFiles, ClientProof, FilePath, ListenTls, TlsVersion, TrunkTls, Trust, WebSocket,
};

pub use crate::admission::Admission;
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

/// A configuration that makes sense. Every index in it is valid.
#[derive(Clone, Debug)]
pub struct Config {
    /// Listening points, in the order of the file; at least one, or a node.
    pub interfaces: Vec<Interface>,
    /// Media for others.
    pub node: Option<MediaNode>,
    /// Programs that relay media for us; none where media is anchored here.
    pub media_nodes: Vec<RemoteNode>,
    /// How they are looked after.
    pub node_care: NodeCare,
    /// Systems that calls are sent to.
    pub trunks: Vec<Trunk>,
    /// Routes, tried in order.
    pub routes: Vec<Route>,
    /// Conferences, looked at before routes.
    pub rooms: Vec<Arc<Room>>,
    /// Header rules, compiled.
    pub rules: ::rules::RuleSet,
    /// Identities where trust begins and ends.
    pub identity: IdentityPolicy,
    /// Users of the embedded registrar, and who may call with digest; by name.
    pub users: BTreeMap<String, User>,
    /// Names of the users that have numbers.
    pub numbered: Vec<String>,
    /// Digest authentication of others by us.
    pub realm: Realm,
    /// The embedded registrar.
    pub registrar: Registrar,
    /// Where registrations are kept over a restart.
    pub registrar_store: RegistrarStore,
    /// Media that interfaces anchor.
    pub media: Media,
    /// Distinct ranges of media ports; interfaces refer to them.
    pub media_ranges: Vec<MediaRange>,
    /// The bytes of the text in which each of them is written, or the interface that has it by default.
    pub media_places: Vec<core::ops::Range<usize>>,
    /// SIP behaviour that is the same everywhere.
    pub sip: Sip,
    /// How the threads that move signalling and media run.
    pub threads: Threads,
    /// Session timers (RFC 4028).
    pub session_timer: SessionTimer,
    /// Capacities.
    pub limits: Limits,
    /// How many calls fit into the machine.
    pub admission: Admission,
    /// Name servers.
    pub dns: Dns,
    /// Conferences commanded over HTTP.
    pub control: Option<ControlSpec>,
    /// Stopping in order.
    pub drain: Drain,
    /// What is logged.
    pub log: Log,
}

impl Config {
    /// The interface.
    pub fn interface(&self, id: InterfaceId) -> Option<&Interface> {
        self.interfaces.get(usize::from(id.0))
    }

    /// The trunk.
    pub fn trunk(&self, id: TrunkId) -> Option<&Trunk> {
        self.trunks.get(usize::from(id.0))
    }

    /// Whether the other end is trusted with asserted identities (RFC 3325 section 2.3): the trunk where it is one, else what
    /// stands behind the interface.
    pub fn trusts(&self, interface: InterfaceId, trunk: Option<TrunkId>) -> bool {
        match trunk.and_then(|trunk| self.trunk(trunk)) {
            Some(trunk) => trunk.trusted,
            None => self
                .interface(interface)
                .is_some_and(|interface| interface.trusted),
        }
    }

    /// The headers that pass as they came to an interface from which other networks are hidden; `None` where nothing is hidden.
    pub(crate) fn hiding(&self, interface: InterfaceId) -> Option<&[Box<str>]> {
        let interface = self.interface(interface).filter(|known| known.hides)?;
        Some(&interface.pass_headers)
    }

    /// The place at which a message comes or leaves, as header rules see it.
    pub fn place(&self, interface: InterfaceId, trunk: Option<TrunkId>) -> ::rules::Place {
        let core = self
            .interface(interface)
            .is_some_and(|interface| interface.kind == InterfaceKind::Core);
        ::rules::Place {
            interface: interface.0,
            kind: match (trunk, core) {
                (Some(_), _) => ::rules::Kind::Trunk,
                (None, true) => ::rules::Kind::Core,
                (None, false) => ::rules::Kind::Access,
            },
            trunk: trunk.map(|trunk| trunk.0),
        }
    }

    /// The interface of this name.
    pub fn interface_named(&self, name: &str) -> Option<InterfaceId> {
        let at = self.interfaces.iter().position(|i| i.name == name)?;
        u16::try_from(at).ok().map(InterfaceId)
    }

    /// The trunk of this name.
    pub fn trunk_named(&self, name: &str) -> Option<TrunkId> {
        let at = self.trunks.iter().position(|t| t.name == name)?;
        u16::try_from(at).ok().map(TrunkId)
    }

    /// How media towards a side of a call is protected.
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

    /// Which codecs of ours a side of a call gets.
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

    /// Whether some side may speak DTLS in its media path, for which the border needs a certificate.
    pub fn may_use_dtls(&self) -> bool {
        let interfaces = self.interfaces.iter().map(|interface| &interface.security);
        let trunks = self.trunks.iter().map(|trunk| &trunk.security);
        interfaces
            .chain(trunks)
            .any(|security| security.may_use_dtls())
    }

    /// Keys in session descriptions are as safe as the signalling that carries them.
    fn readable_keys(&self, hints: &mut Vec<String>) {
        let open = |transport: Transport| {
            matches!(transport, Transport::Udp | Transport::Tcp | Transport::Ws)
        };
        let remedy = "whoever reads that signalling can listen to the calls; tls: or wss: would hide them, or srtp_keying = \"dtls\" do without them";
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
                    "interface {}: SRTP keys stand in session descriptions, and {listen} is not protected: {remedy}",
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
                    "trunk {}: SRTP keys stand in session descriptions, and signalling may go there unprotected: {remedy}",
                    trunk.name
                ));
            }
        }
    }

    /// The user whose name or number this is.
    pub fn user_called(&self, called: &str) -> Option<&User> {
        self.users.get(called).or_else(|| {
            // Few users have numbers; they are not looked through where none has.
            let mut with = self.numbered.iter().filter_map(|name| self.users.get(name));
            with.find(|user| user.is_called(called))
        })
    }

    /// What is allowed, and yet worth a second look; one sentence each.
    pub fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        self.readable_keys(&mut hints);
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

    /// The trunk to which a request that came on `interface` from `source` belongs: its `sources` say so, or it comes
    /// from exactly the address and port of a target. On a stream transport the peer's port is any, so that there the
    /// address alone decides. On a TLS connection that the peer opened, `proven` are the domains of its verified
    /// certificate: a trunk that is known by certificates is who has one of its names, and no address counts.
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

/// What stands behind an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// Anyone: identities that they assert are not believed, and do not pass (RFC 3325 section 5).
    Access,
    /// Our own network: believed.
    Core,
}

/// Whether requests on an interface must prove who they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authenticate {
    /// No proof.
    None,
    /// Digest (RFC 7616) of a configured user; requests of trunks are exempt.
    Digest,
    /// The trunk to which registrations are passed authenticates; sources that are not registered reach that trunk alone.
    Trunk,
}

/// What is done with REGISTER on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// The embedded registrar keeps it.
    Local,
    /// It is passed to this trunk, with our Contact in the place of the phone's.
    Pass(TrunkId),
    /// 403.
    Refuse,
}

/// A named listening point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Who is there.
    pub kind: InterfaceKind,
    /// Whether those who are there, trunks aside, are trusted with asserted identities.
    pub trusted: bool,
    /// Whether the networks of others are hidden from those who are there: unknown headers, and what names hosts in known ones.
    pub hides: bool,
    /// Headers that pass all the same.
    pub pass_headers: Vec<Box<str>>,
    /// Where it listens; at least one.
    pub listen: Vec<ListenAddress>,
    /// What Via and Contact say instead of the listening address (behind NAT); the port, where none is given, is the
    /// listening one.
    pub advertise: Option<HostName>,
    /// Sources whose requests are taken; others are dropped without an answer. Empty: all.
    pub allow: Vec<Cidr>,
    /// Proof that is asked for.
    pub authenticate: Authenticate,
    /// How many calls and registrations it lets in.
    pub rates: Rates,
    /// What is done with REGISTER.
    pub register: Register,
    /// Whether the contacts that are registered here are reached at the address that they name, and not on the flow on which
    /// they were registered.
    pub contacts_by_address: bool,
    /// Whether SUBSCRIBE, and NOTIFY outside of a subscription, are passed on.
    pub subscribe: bool,
    /// Whether REFER outside of calls is passed on.
    pub refer: bool,
    /// Whether users who are registered from just where a request comes from need no other proof to be asserted.
    pub assert_registered: bool,
    /// How media is protected in calls from and to here, trunks with settings of their own aside.
    pub security: Arc<MediaSecurity>,
    /// Codecs of our own in calls from and to here.
    pub transcoding: Arc<Transcoding>,
    /// Whether early media passes only where P-Early-Media authorises it.
    pub gate_early_media: bool,
    /// Whether calls from here get a P-Charging-Vector, and those to here are answered with theirs.
    pub charging_vector: bool,
    /// Where media is anchored: at most one address per address family; at least one.
    pub media: Vec<MediaAddress>,
    /// What media nodes call this side.
    pub node_interface: Option<String>,
    /// Certificates, where it listens with TLS.
    pub tls: Option<ListenTls>,
    /// What is asked of WebSockets.
    pub websocket: WebSocket,
}

impl Interface {
    /// Whether a request from `source` is taken.
    pub fn allows(&self, source: IpAddr) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|net| net.contains(source))
    }
}

/// An address at which an interface anchors media.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaAddress {
    /// Index into [`Config::media_ranges`].
    pub range: usize,
    /// Where sockets are bound.
    pub address: IpAddr,
    /// What SDP says instead (behind NAT).
    pub advertise: Option<IpAddr>,
}

impl MediaAddress {
    /// The address that SDP says.
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
    /// First and last port of a worker's part; parts begin at even ports.
    pub(crate) fn part(&self, worker: &Worker) -> (u16, u16) {
        if worker.is_alone() {
            return (self.first, self.last);
        }
        let first = u32::from(self.first) + u32::from(self.first & 1);
        let ports = (u32::from(self.last) + 1).saturating_sub(first);
        let size = (ports / u32::from(worker.of)) & !1;
        let at = first + size * u32::from(worker.number);
        let port = |port: u32| u16::try_from(port).unwrap_or(u16::MAX);
        (port(at), port((at + size).saturating_sub(1)))
    }
}

/// A system that calls are sent to and come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trunk {
    /// Its name.
    pub name: String,
    /// The interface through which it is reached.
    pub interface: InterfaceId,
    /// Where it is; at least one. Tried by priority (lower first), among equals chosen by weight.
    pub targets: Vec<Target>,
    /// Further sources of its requests, beside its targets.
    pub sources: Vec<Cidr>,
    /// The domain in Request-URI, From and To of what we send there; else the target's host.
    pub domain: Option<HostName>,
    /// What answers its challenges.
    pub credentials: Option<Credentials>,
    /// Our registration there.
    pub register: Option<CarrierAccount>,
    /// How long between two OPTIONS; `None`: it is not pinged and counts as up.
    pub ping: Option<Duration>,
    /// How many pings must fail in a row before a target counts as down.
    pub ping_failures: u32,
    /// Calls at a time, both directions.
    pub max_calls: Option<u32>,
    /// Whether it is asked how much it can take, and obeyed (RFC 7339).
    pub feedback: bool,
    /// How many calls and registrations from it are let in.
    pub rates: Rates,
    /// How long a target may take to answer an INVITE with anything before the next one is tried.
    pub answer_timeout: Duration,
    /// Whether it is trusted with asserted identities.
    pub trusted: bool,
    /// Whether asserted identities go there.
    pub identity: Identity,
    /// The user part of From in calls that we send there; else the caller's own.
    pub from_user: Option<String>,
    /// What is done with REFER from there.
    pub refer: Refer,
    /// What is done with 3xx from there.
    pub redirect: Redirect,
    /// How media is protected in calls from and to there.
    pub security: Arc<MediaSecurity>,
    /// Codecs of our own in calls from and to there.
    pub transcoding: Arc<Transcoding>,
    /// TLS, where a target is reached by it or may be.
    pub tls: Option<TrunkTls>,
}

impl Trunk {
    /// The domains of the certificates by which it is known; none: by its address.
    pub fn client_names(&self) -> &[String] {
        self.tls.as_ref().map_or(&[], |tls| &tls.client_names)
    }
}

/// One place where a trunk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its address or name. A name without port and transport is located by RFC 3263.
    pub host: HostName,
    /// Transport, where it is said.
    pub transport: Option<Transport>,
    /// Lower is tried first.
    pub priority: u16,
    /// Share among targets of the same priority; 0 only when no other is left.
    pub weight: u16,
}

impl Target {
    /// The socket address where the target is an address and takes `transport`.
    pub fn address(&self, transport: Transport) -> Option<SocketAddr> {
        let ip = self.host.ip()?;
        let port = self.host.port.unwrap_or(address::default_port(transport));
        Some(SocketAddr::new(ip, port))
    }

    /// The socket address and transport, where no name has to be looked up.
    pub fn direct(&self) -> Option<(SocketAddr, Transport)> {
        let transport = self.transport.unwrap_or(Transport::Udp);
        Some((self.address(transport)?, transport))
    }
}

/// User name and password for challenges of others.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
}

impl core::fmt::Debug for Credentials {
    /// Without the password: logs never hold secrets.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Credentials({})", self.username)
    }
}

/// An account of ours at a carrier, to be kept registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarrierAccount {
    /// User part of the address of record.
    pub user: String,
    /// Domain of the address of record and of the Request-URI.
    pub domain: HostName,
    /// User part of our Contact: calls of the carrier come to it.
    pub contact_user: String,
    /// What we ask for.
    pub expires: Duration,
    /// Whether the flow on which we are registered is kept alive (RFC 5626 section 4.4).
    pub keep_alive: KeepAlive,
}

/// When the flow of a registration of ours is kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// Where the carrier says that it answers.
    Auto,
    /// In any case.
    Always,
    /// Never.
    Never,
}

/// Whether P-Asserted-Identity, Remote-Party-ID and the like go to a trunk (RFC 3325).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// They pass, where they came from a side that is believed.
    Pass,
    /// They are taken out.
    Remove,
}

/// What is done with REFER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refer {
    /// It goes to the other leg.
    Pass,
    /// The border transfers the call itself.
    Act,
}

/// What is done with 3xx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// It goes to the caller.
    Pass,
    /// The border calls the contacts.
    Follow,
}

/// A rule for calls.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its name for logs: its own, or `route N` as counted from 1.
    pub name: String,
    /// Interfaces on which the call may have come. Empty: any.
    pub interfaces: Vec<InterfaceId>,
    /// Trunks from which the call may have come. Empty: any, and none.
    pub from_trunks: Vec<TrunkId>,
    /// The caller.
    pub from: Match,
    /// The called number or address.
    pub to: Match,
    /// What to change in the called number, before it is sent on.
    pub rewrite: Rewrite,
    /// Where it goes.
    pub action: Action,
    /// Whether sources that have not authenticated take it where a trunk authenticates.
    pub unauthenticated: bool,
    /// What is done with media.
    pub media: MediaMode,
}

/// A condition on an address; all that is said must hold.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// The user part begins with one of these. Empty: whatever.
    pub prefixes: Vec<String>,
    /// The user part is matched by this (anchored at both ends).
    pub regex: Option<Regex>,
    /// The host is one of these, without regard to case. Empty: whatever.
    pub domains: Vec<String>,
    /// The user part is one of these. Empty: whatever.
    pub users: Vec<String>,
    /// A service is called, one of these or one below, in lower case (`urn:service:sos`). Empty: whatever.
    pub services: Vec<String>,
}

/// What is changed in the called number: strip, then replace, then prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Leading letters taken off.
    pub strip: usize,
    /// What `to.regex` matched becomes this, `$1` being its first group.
    pub replace: Option<String>,
    /// Put in front.
    pub prefix: String,
}

/// Where a call goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// To the first of these trunks that takes it.
    Trunks(Vec<RouteTrunk>),
    /// To the contacts of a registered user.
    Registered,
    /// Nowhere.
    Reject {
        /// Status, 400 to 699.
        status: u16,
        /// Reason phrase, where another than the usual.
        reason: Option<String>,
    },
}

/// A trunk in a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTrunk {
    /// The trunk.
    pub trunk: TrunkId,
    /// Lower is tried first.
    pub priority: u16,
    /// Share among those of the same priority; 0 only when no other is left.
    pub weight: u16,
}

/// What is done with the media of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaMode {
    /// It goes through us.
    Anchor,
    /// It goes through a media node.
    Node,
    /// SDP stays untouched, media goes from end to end.
    Bypass,
}

/// A user: can register and call with digest.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// Name, as in `sip:NAME@...` and in digest.
    pub name: String,
    /// How the proof is checked.
    pub secret: Secret,
    /// Numbers that are the user's beside its name.
    pub numbers: Vec<Number>,
}

impl User {
    /// Whether the user part of an address is this user's: its name, or one of its numbers.
    pub fn is_called(&self, user: &str) -> bool {
        self.name == user || self.numbers.iter().any(|number| number.takes(user))
    }
}

/// Numbers of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Number {
    /// This one.
    One(String),
    /// All that begin with this.
    Prefix(String),
}

impl Number {
    /// Whether this number is among them.
    pub fn takes(&self, user: &str) -> bool {
        match self {
            Number::One(number) => number == user,
            Number::Prefix(prefix) => user.starts_with(prefix.as_str()),
        }
    }

    /// Whether a number is in both.
    fn meets(&self, other: &Number) -> bool {
        match (self, other) {
            (Number::One(number), other) | (other, Number::One(number)) => other.takes(number),
            (Number::Prefix(a), Number::Prefix(b)) => {
                a.starts_with(b.as_str()) || b.starts_with(a.as_str())
            }
        }
    }
}

impl core::fmt::Debug for User {
    /// Without the secret: logs never hold one.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "User({})", self.name)
    }
}

/// What a user's proof is checked with.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The password.
    Password(String),
    /// MD5 of `name:realm:password` in hexadecimal: only MD5 is offered.
    Ha1(String),
}

impl core::fmt::Debug for Secret {
    /// Only which kind it is.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Secret::Password(_) => "Password",
            Secret::Ha1(_) => "Ha1",
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
    /// As written in a challenge.
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

/// Digest authentication of others by us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Realm {
    /// The realm in our challenges.
    pub name: String,
    /// Algorithms offered, the preferred one first; at least one.
    pub algorithms: Vec<DigestAlgorithm>,
    /// How long a nonce is good for.
    pub nonce_lifetime: Duration,
    /// How failed authentication is limited.
    pub failures: crate::registrar::FailureLimits,
}

/// The embedded registrar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrar {
    /// Shorter wishes are answered with 423; seconds.
    pub min_expires: u32,
    /// Longer wishes are cut; seconds.
    pub max_expires: u32,
    /// Where nothing is wished for; seconds.
    pub default_expires: u32,
    /// Contacts per address of record.
    pub max_contacts: usize,
    /// What a phone behind NAT is given at most, so that its flow stays open; seconds.
    pub nat_expires: u32,
    /// Flow-Timer of RFC 5626; seconds.
    pub flow_timer: u32,
    /// How often a registration that does not change is passed to the core; seconds. 0: each time.
    pub pass_every: u32,
    /// Registrations let in a second; 0: as many as come.
    pub rate: u32,
}

/// Where registrations are kept over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrarStore {
    /// The file does not say: below the state directory, where the program has one.
    #[default]
    Usual,
    /// In memory only.
    None,
    /// In this file.
    File(PathBuf),
}

/// Media that is anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    /// Calls are anchored at media nodes, not by us.
    pub at_nodes: bool,
    /// A call whose media stops this long is ended; `None`: never.
    pub timeout: Option<Duration>,
    /// The same while a call is on hold.
    pub hold_timeout: Option<Duration>,
    /// Differentiated services code point of media packets.
    pub dscp: u8,
    /// Longest time for which media gathers where there is much of it.
    pub gather: Duration,
    /// Whether media ports share a socket.
    pub sockets: MediaSockets,
    /// Whether the kernel relays.
    pub kernel: Wanted,
    /// Whether AF_XDP carries media.
    pub af_xdp: Wanted,
}

/// Whether a way for media is taken that machine or rights may not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It is left alone.
    Never,
    /// Where it can be.
    Auto,
    /// For every address of media, or no start.
    Require,
}

/// How media ports are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaSockets {
    /// One socket for all where that can be.
    Auto,
    /// One for all, or no start.
    One,
    /// One for each.
    PerPort,
}

/// SIP behaviour that is the same everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sip {
    /// Server and User-Agent header.
    pub agent: String,
    /// Differentiated services code point of signalling.
    pub dscp: u8,
    /// How long a call may ring before it is given up.
    pub ring_timeout: Duration,
    /// Longest time for which signalling gathers where the border is busy.
    pub coalesce: Duration,
    /// Whether equal messages to one peer leave as trains.
    pub trains: bool,
    /// Bytes that leave at once to one peer over UDP; 0: no bound.
    pub burst_bytes: usize,
    /// What has waited longer in the socket is refused where it begins something new; `None`: never.
    pub queue: Option<Duration>,
    /// Control threads; each call is one's.
    pub workers: u8,
    /// New calls refused for 100 taken, at most, under overload; what comes beyond is dropped unread. `None`: any number.
    pub refusals: Option<u32>,
    /// Whether neighbours who ask are told how much less to send (RFC 7339).
    pub feedback: bool,
}

/// Session timers (RFC 4028).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimer {
    /// What we ask for where a side does not; `None`: we ask for none, and keep what others ask for.
    pub expires: Option<Duration>,
    /// Min-SE: shorter wishes are answered with 422.
    pub min: Duration,
}

/// Name servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Servers in order. Empty: those of the machine.
    pub servers: Vec<SocketAddr>,
}

/// Stopping in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Calls that are still up after this are ended.
    pub timeout: Duration,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// One JSON object per line instead of text.
    pub json: bool,
}

/// Reads and checks a configuration. `file` is the name that mistakes carry.
///
/// # Errors
/// Every mistake that was found, in the order of the file.
pub fn parse(text: &str, file: &str) -> Result<Config, Vec<Mistake>> {
    check::parse(text, file)
}

/// A text judged as far as it goes.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The configuration, where the text has a meaning at all; with mistakes it only tells which files are named.
    pub config: Option<Config>,
    /// All mistakes that can be judged independently of each other, in the order of the text.
    pub mistakes: Vec<Mistake>,
}

/// Reads a configuration and tells the mistakes of all stages at once: syntax, structure, meaning.
pub fn judge(text: &str, file: &str) -> Judged {
    check::judge(text, file)
}
