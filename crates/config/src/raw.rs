//! The configuration as written in the file: one type per table; each key has a description, unit, bounds and default.
//! The JSON Schema and docs/configuration.md are generated from these types.

use super::ng_client::NodeFailure;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Configuration of a Hornwork border.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Hornwork configuration")]
pub(super) struct Raw {
    /// Listeners with one policy each. At least one, except in a file with `[ng_server]` alone.
    #[serde(default)]
    pub interface: Vec<RawInterface>,
    /// Media for other systems, controlled by the ng protocol.
    pub ng_server: Option<super::ng_server::RawNgServer>,
    /// Media nodes that relay media for this border. Used with `anchor = "nodes"` in `[media]`.
    #[serde(default)]
    pub media_node: Vec<super::ng_client::RawMediaNode>,
    /// Systems that calls are sent to and come from: PBXs, softswitches, carriers.
    #[serde(default)]
    pub trunk: Vec<RawTrunk>,
    /// Routes of calls, tried in order; the first whose conditions hold is used. A call that matches no route goes to
    /// the contacts of the called user if the user is registered: a registration forwarded to a trunk is reachable from
    /// that trunk, a registration kept here is reachable from trunks and authenticated sources. Otherwise a call from
    /// an interface that forwards registrations goes to the trunk of those registrations. Otherwise, if the file has no
    /// route, it goes to any trunk except the one it came from. Otherwise it is refused with 404. MESSAGE, SUBSCRIBE
    /// and out-of-dialog REFER are routed in the same way.
    #[serde(default)]
    pub route: Vec<RawRoute>,
    /// Conferences. A call to the number of a conference is answered by the border. Conferences are matched before
    /// routes.
    #[serde(default)]
    pub conference: Vec<super::conferences::RawConference>,
    /// Header rules, tried in order.
    #[serde(default)]
    pub rules: Vec<super::rules::RawRule>,
    /// Identities at the boundary of the trust domain (RFC 3325, RFC 3323).
    #[serde(default)]
    pub identity: super::rules::RawIdentityPolicy,
    /// Users of the embedded registrar. They authenticate by digest.
    #[serde(default)]
    pub user: Vec<RawUser>,
    /// Digest authentication of requests.
    #[serde(default)]
    pub realm: RawRealm,
    /// The embedded registrar.
    #[serde(default)]
    pub registrar: RawRegistrar,
    /// Anchored media.
    #[serde(default)]
    pub media: RawMedia,
    /// SIP behaviour that is common to all interfaces.
    #[serde(default)]
    pub sip: RawSip,
    /// Scheduling of the threads that process signalling and media. Takes effect at the next start.
    #[serde(default)]
    pub threads: super::threads::Threads,
    /// Session timers (RFC 4028).
    #[serde(default)]
    pub session_timer: RawSessionTimer,
    /// Capacities. Requests above them are refused and counted.
    #[serde(default)]
    pub limits: RawLimits,
    /// DNS servers.
    #[serde(default)]
    pub dns: RawDns,
    /// Operator commands and control of conferences, over HTTP and a Unix socket. Off if the table is absent.
    pub control: Option<super::control::RawControl>,
    /// The history of calls, messages and events. Off if the table is absent.
    pub store: Option<super::store::RawStore>,
    /// Call records. Off if the table is absent.
    pub records: Option<super::records::RawRecords>,
    /// Metrics for Prometheus, statistics as CSV. Off if the table is absent.
    pub metrics: Option<super::metrics::RawMetrics>,
    /// Graceful shutdown.
    #[serde(default)]
    pub drain: RawDrain,
    /// Logging.
    #[serde(default)]
    pub log: RawLog,
}

/// One value or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum OneOrMany<T> {
    /// One.
    One(T),
    /// Several.
    Many(Vec<T>),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        OneOrMany::Many(Vec::new())
    }
}

impl<T> OneOrMany<T> {
    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(value) => std::slice::from_ref(value),
            OneOrMany::Many(values) => values,
        }
    }

    /// The path of the value at `index` in the document, below `path`.
    pub(super) fn path(&self, path: &str, index: usize) -> String {
        match self {
            OneOrMany::One(_) => path.to_owned(),
            OneOrMany::Many(_) => format!("{path}[{index}]"),
        }
    }
}

/// The network behind an interface.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawKind {
    /// Phones and foreign networks: asserted identities are not believed.
    #[default]
    Access,
    /// Our own systems: asserted identities are believed.
    Core,
}

/// Authentication of requests.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawAuthenticate {
    /// None.
    #[default]
    None,
    /// Digest with a configured user; requests of trunks are exempt.
    Digest,
    /// The trunk of `register` authenticates.
    Trunk,
}

/// The address at which registered contacts are reached.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawContacts {
    /// The flow on which the contact was registered.
    #[default]
    Flow,
    /// The address in the Contact header, over UDP.
    Address,
}

/// Callers whose identity the border asserts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawAssert {
    /// Users that authenticated by digest.
    #[default]
    Authenticated,
    /// Also users that are registered from the address and port of the request.
    Registered,
}

/// Treatment of early media.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawEarlyMedia {
    /// It is relayed.
    #[default]
    Pass,
    /// It is relayed if P-Early-Media authorises it (RFC 5009).
    Gate,
}

/// Treatment of P-Charging-Vector.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawCharging {
    /// None is generated.
    #[default]
    Pass,
    /// One is generated for each call from the interface.
    Generate,
}

/// Treatment of out-of-dialog requests.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawPassing {
    /// They are routed like calls.
    #[default]
    Pass,
    /// They are refused.
    Refuse,
}

/// Information about other networks in messages to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawHeaders {
    /// Other networks are hidden.
    Known,
    /// Headers and SDP lines are passed unchanged.
    All,
}

fn refused() -> RawPassing {
    RawPassing::Refuse
}

/// A named set of listeners with one policy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawInterface {
    /// Name, unique among interfaces.
    #[schemars(length(min = 1))]
    pub name: String,
    /// `access`: phones and foreign networks; asserted identities in their messages are removed. `core`: our own
    /// systems; asserted identities are believed.
    #[serde(default)]
    pub kind: RawKind,
    /// Whether asserted identities from this interface are believed, and asserted identities are sent to it (RFC 3325).
    /// Trunks have their own setting. Default: `true` for `core`, `false` for `access`.
    pub trusted: Option<bool>,
    /// Topology hiding in messages to this interface. `known`: unknown headers (`X-...`) are removed; hosts in
    /// Alert-Info, Call-Info, Error-Info, Reason, Referred-By and Reply-To are removed or replaced by ours; the SDP
    /// lines `s=`, `i=`, `u=`, `e=`, `p=` and `a=tool` are replaced or removed. `all`: these headers and lines are
    /// passed unchanged. Default: `all` if `trusted`, otherwise `known`. The complete list is in
    /// docs/topology-hiding.md.
    pub headers: Option<RawHeaders>,
    /// Names of headers that are passed unchanged although `headers` is `known`.
    #[serde(default)]
    pub pass_headers: OneOrMany<String>,
    /// Addresses to listen on: `udp:ADDRESS:PORT`, `tcp:`, `tls:`, `ws:` (WebSocket) or `wss:` (WebSocket over TLS).
    /// Default ports: 5060 for UDP and TCP, 5061 for TLS, 80 for WebSocket, 443 for WebSocket over TLS.
    pub listen: OneOrMany<String>,
    /// Host or host:port in Via and Contact instead of the listening address, for a border behind NAT. Required with
    /// 0.0.0.0 or [::].
    pub advertise: Option<String>,
    /// Networks (`ADDRESS/BITS`) whose requests are accepted. Requests from other sources are dropped without a
    /// response. Empty: all sources.
    #[serde(default)]
    pub allow: OneOrMany<String>,
    /// `digest`: calls and registrations must authenticate as a configured `[[user]]`. `trunk`: the trunk of `register
    /// = "pass:TRUNK"` authenticates, and its challenges are forwarded; until a source is registered it reaches that
    /// trunk alone, except by routes with `unauthenticated`. `none`: no authentication; `hornwork check` warns of each
    /// trunk and phone that is reachable without it.
    #[serde(default)]
    pub authenticate: RawAuthenticate,
    /// Treatment of REGISTER: `local` (the embedded registrar), `pass:TRUNK` (forwarded to that trunk, with our Contact
    /// in place of the phone's) or `refuse` (403). Default: `local` if there are users, otherwise `refuse`.
    pub register: Option<String>,
    /// Destination of requests to a phone that is registered through this interface. `flow`: the address and port, or
    /// the connection, from which the phone registered, regardless of the host in its Contact. `address`: the address
    /// in its Contact, over UDP; this may be any address.
    #[serde(default)]
    pub contacts: RawContacts,
    /// Maximum rates of new calls and registrations. Requests above them are refused.
    #[serde(default)]
    pub rate_limits: super::RateLimits,
    /// Treatment of SUBSCRIBE, and of NOTIFY outside of a subscription: `pass` (routed like a call) or `refuse` (489).
    #[serde(default)]
    pub subscribe: RawPassing,
    /// Treatment of out-of-dialog REFER, which makes a phone start a call: `pass` or `refuse` (403).
    #[serde(default = "refused")]
    pub refer: RawPassing,
    /// Callers whose identity is asserted to trusted peers (RFC 3325). `authenticated`: users that authenticated by
    /// digest. `registered`: also users that are registered from the address and port of the request; use it only where
    /// source addresses cannot be forged.
    #[serde(default)]
    pub assert: RawAssert,
    /// Treatment of early media in calls from and to this interface, if media is anchored. `pass`: it is relayed.
    /// `gate`: before the answer, media is relayed only as far as P-Early-Media of a trusted callee authorises it (RFC
    /// 5009).
    #[serde(default)]
    pub early_media: RawEarlyMedia,
    /// P-Charging-Vector (RFC 7315 section 4.6) in calls from and to this interface. `generate`: each call from this
    /// interface gets one towards trusted peers, and calls of trusted peers are answered with theirs. `pass`: neither.
    #[serde(default)]
    pub charging_vector: RawCharging,
    /// Media addresses and ports: one table, or one per address family. Default: the first listening address, ports
    /// 20000-26999.
    #[serde(default)]
    pub media: OneOrMany<RawMediaAddress>,
    /// Name of this interface at the media nodes (`direction` of the ng protocol): a `[[ng_server.interface]]`, or an
    /// interface of rtpengine. Set it for all interfaces or for none.
    pub node_interface: Option<String>,
    /// SRTP policy for calls from and to this interface, if media is anchored: `pass`, `refuse`, `prefer` or `require`.
    /// `pass`: if both sides of a call have this policy, keys and packets are passed from end to end; otherwise SRTP is
    /// accepted when offered, but not offered by us. `prefer`: SRTP is offered beside plain RTP (RFC 8643). Default:
    /// `pass`.
    pub srtp: Option<super::security::SrtpPolicy>,
    /// Keying methods, best first: `sdes` (keys in SDP, RFC 4568), `dtls` (DTLS-SRTP, RFC 5764). Default: `sdes`.
    #[serde(default)]
    pub srtp_keying: OneOrMany<super::security::Keying>,
    /// Crypto suites, best first, by their names in RFC 4568, 6188 and 7714. DTLS uses those of them that it supports:
    /// AEAD_AES_256_GCM, AEAD_AES_128_GCM and AES_CM_128_HMAC_SHA1_80. Default: AEAD_AES_256_GCM, AEAD_AES_128_GCM,
    /// AES_256_CM_HMAC_SHA1_80, AES_CM_128_HMAC_SHA1_80, AES_CM_128_HMAC_SHA1_32.
    #[serde(default)]
    pub srtp_suites: OneOrMany<String>,
    /// ICE (RFC 8445). `lite`: an ICE-lite agent with one candidate, our media address; browsers require ICE. `full`: a
    /// full agent with that candidate, which sends connectivity checks; for peers that are lite themselves, or to which
    /// the border is a client. `off`: candidates are removed from SDP. Default: `off`.
    pub ice: Option<super::security::Ice>,
    /// Codecs that the border offers to this interface by transcoding, best first: `PCMA`, `PCMU`, `G722`, `G729`,
    /// `opus`. Audio in these codecs is transcoded if the other side of the call supports none of them. Requires
    /// anchored media. Default: none.
    #[serde(default)]
    pub transcode: OneOrMany<String>,
    /// `needed`: the codecs of `transcode` are offered after those of the other side of the call, so that a common
    /// codec is preferred. `always`: only the codecs of `transcode` are offered. Default: `needed`.
    pub transcode_when: Option<super::codecs::TranscodeWhen>,
    /// Certificates. Required with `tls:` or `wss:`.
    pub tls: Option<super::tls::RawListenTls>,
    /// Checks of WebSocket handshakes.
    pub websocket: Option<super::tls::RawWebSocket>,
}

/// An address and port range for media.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMediaAddress {
    /// IP address that media sockets are bound to. Default: the first listening address of the interface.
    pub address: Option<String>,
    /// IP address in SDP instead of `address`, for a border behind NAT.
    pub advertise: Option<String>,
    /// Port range, both ends included. A call uses one pair (even and odd) per media line and side. Ports in the
    /// ephemeral range of the kernel (net.ipv4.ip_local_port_range, usually 32768-60999) are refused, unless they are
    /// reserved (net.ipv4.ip_local_reserved_ports) or `[media] sockets` is `per-port`. Two programs on one host cannot
    /// use the same ports of an address. Default: 20000-26999; of an ng server 27000-32767.
    pub ports: Option<String>,
}

/// A target of a trunk, with priority and weight.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTargetTable {
    /// `[udp:|tcp:|tls:]HOST[:PORT]`. A name without port is resolved by NAPTR and SRV records (RFC 3263).
    pub address: String,
    /// Targets of lower priority values are tried first.
    #[serde(default)]
    pub priority: u16,
    /// Share of calls among targets of the same priority. 0: used only if no other target is left.
    #[serde(default = "one")]
    pub weight: u16,
}

fn one() -> u16 {
    1
}

/// A target of a trunk.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RawTarget {
    /// `[udp:|tcp:|tls:]HOST[:PORT]`.
    Short(String),
    /// With priority and weight.
    Full(RawTargetTable),
}

/// Treatment of asserted identities in messages to a trunk.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawIdentity {
    /// They are passed if they come from a trusted side.
    #[default]
    Pass,
    /// They are removed.
    Remove,
}

/// Treatment of REFER.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawRefer {
    /// It is passed to the other side.
    #[default]
    Pass,
    /// The border transfers the call itself.
    Act,
}

/// Treatment of redirects.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawRedirect {
    /// They are passed to the caller.
    #[default]
    Pass,
    /// The border calls the contacts of the redirect.
    Follow,
}

/// A system that calls are sent to and come from.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTrunk {
    /// Name, unique among trunks.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Name of the interface through which the trunk is reached. Default: the only interface in the file.
    pub interface: Option<String>,
    /// Addresses: `[udp:|tcp:|tls:]HOST[:PORT]`, a table with `address`, `priority` and `weight`, or a list of these.
    pub target: OneOrMany<RawTarget>,
    /// Networks from which requests of the trunk come, in addition to its targets.
    #[serde(default)]
    pub sources: OneOrMany<String>,
    /// Domain in Request-URI, From and To of requests to the trunk. Default: the host of the target.
    pub domain: Option<String>,
    /// User name for digest challenges of the trunk.
    pub username: Option<String>,
    /// Password for digest challenges of the trunk.
    pub password: Option<String>,
    /// Registration of an account at the trunk. Off if absent.
    pub register: Option<RawCarrier>,
    /// Seconds between two OPTIONS to each target. 0: none; the trunk always counts as up.
    #[serde(default)]
    #[schemars(range(max = 86400))]
    pub ping_interval_s: u32,
    /// Failed pings in a row after which a target counts as down.
    #[serde(default = "default_ping_failures")]
    #[schemars(range(min = 1, max = 100))]
    pub ping_failures: u32,
    /// Maximum number of simultaneous calls in both directions. Further calls go to the next trunk of the route.
    /// Default: unlimited.
    #[schemars(range(min = 1))]
    pub max_calls: Option<u32>,
    /// Overload control towards the trunk by loss (RFC 7339) or rate (RFC 7415): new requests ask for the capacity of
    /// the trunk, and the border sends no more than reported. Requests that may not be sent go to the next trunk, or
    /// are refused with 503.
    #[serde(default)]
    pub overload_control: bool,
    /// Maximum rates of new calls and registrations from the trunk. Requests above them are refused.
    #[serde(default)]
    pub rate_limits: super::RateLimits,
    /// Seconds to wait for the first response to an INVITE before the next target is tried.
    #[serde(default = "default_answer_timeout_s")]
    #[schemars(range(min = 1, max = 32))]
    pub answer_timeout_s: u32,
    /// Whether the trunk is in the trust domain: its asserted identities are believed, and it honours the privacy of
    /// ours (RFC 3325).
    #[serde(default = "yes")]
    pub trusted: bool,
    /// Treatment of P-Asserted-Identity, Remote-Party-ID and similar headers in messages to the trunk: `pass` or
    /// `remove`.
    #[serde(default)]
    pub identity: RawIdentity,
    /// User part of From in calls to the trunk. Default: that of the caller.
    pub from_user: Option<String>,
    /// Treatment of REFER from the trunk: `pass` to the other side, or `act`: the border transfers the call itself.
    #[serde(default)]
    pub refer: RawRefer,
    /// Treatment of 3xx responses from the trunk: `pass` to the caller, or `follow` the contacts.
    #[serde(default)]
    pub redirect: RawRedirect,
    /// SRTP policy for calls from and to the trunk: `pass`, `refuse`, `prefer` or `require`. Default for this key and
    /// the next three: the setting of the interface.
    pub srtp: Option<super::security::SrtpPolicy>,
    /// Keying methods, best first: `sdes` (keys in SDP, RFC 4568), `dtls` (DTLS-SRTP, RFC 5764).
    #[serde(default)]
    pub srtp_keying: OneOrMany<super::security::Keying>,
    /// Crypto suites, best first, by their names in RFC 4568, 6188 and 7714. DTLS uses those of them that it supports:
    /// AEAD_AES_256_GCM, AEAD_AES_128_GCM and AES_CM_128_HMAC_SHA1_80.
    #[serde(default)]
    pub srtp_suites: OneOrMany<String>,
    /// ICE (RFC 8445). `lite`: an ICE-lite agent with one candidate, our media address; browsers require ICE. `full`: a
    /// full agent with that candidate, which sends connectivity checks; for peers that are lite themselves, or to which
    /// the border is a client. `off`: candidates are removed from SDP.
    pub ice: Option<super::security::Ice>,
    /// Codecs that the border offers to the trunk by transcoding, best first: `PCMA`, `PCMU`, `G722`, `G729`, `opus`.
    /// Audio in these codecs is transcoded if the other side of the call supports none of them. Requires anchored
    /// media. Default: the setting of the interface.
    #[serde(default)]
    pub transcode: OneOrMany<String>,
    /// `needed`: the codecs of `transcode` are offered after those of the other side of the call, so that a common
    /// codec is preferred. `always`: only the codecs of `transcode` are offered. Default: the setting of the interface.
    pub transcode_when: Option<super::codecs::TranscodeWhen>,
    /// TLS towards the trunk. Default: certificates of the system's certificate authorities are accepted.
    pub tls: Option<super::tls::RawTrunkTls>,
}

fn yes() -> bool {
    true
}

fn default_ping_failures() -> u32 {
    2
}

fn default_answer_timeout_s() -> u32 {
    4
}

/// An account of ours at a carrier.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCarrier {
    /// User part of the address of record. Default: `username` of the trunk.
    pub user: Option<String>,
    /// Domain of the address of record. Default: `domain` of the trunk, else the host of its first target.
    pub domain: Option<String>,
    /// User part of our Contact; calls from the carrier arrive with it in the Request-URI. Default: `user`.
    pub contact_user: Option<String>,
    /// Requested lifetime of the registration in seconds.
    #[serde(default = "default_carrier_expires")]
    #[schemars(range(min = 30, max = 86400))]
    pub expires_s: u32,
    /// Keep-alives on the flow of the registration (RFC 5626): line breaks on a stream, STUN over UDP. If they are not
    /// answered, the account is registered again. `auto`: if the carrier supports them (Flow-Timer, or outbound in
    /// Supported or Require). `always`, `never`.
    #[serde(default)]
    pub keep_alive: RawKeepAlive,
}

/// Use of keep-alives on the flow of a registration.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawKeepAlive {
    /// If the carrier supports them.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

fn default_carrier_expires() -> u32 {
    600
}

/// Conditions on an address. All of them must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMatch {
    /// Prefixes of the user part.
    #[serde(default)]
    pub prefix: OneOrMany<String>,
    /// Regular expression for the whole user part.
    pub regex: Option<String>,
    /// Hosts.
    #[serde(default)]
    pub domain: OneOrMany<String>,
    /// User parts.
    #[serde(default)]
    pub user: OneOrMany<String>,
    /// In `to` only: service URNs (RFC 5031), each including the services below it: `urn:service:sos` includes
    /// `urn:service:sos.fire`. A service URN has neither user part nor host.
    #[serde(default)]
    pub urn: OneOrMany<String>,
}

/// A trunk of a route, with priority and weight.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRouteTrunkTable {
    /// Name of the trunk.
    pub name: String,
    /// Trunks of lower priority values are tried first.
    #[serde(default)]
    pub priority: u16,
    /// Share of calls among trunks of the same priority. 0: used only if no other trunk is left.
    #[serde(default = "one")]
    pub weight: u16,
}

/// A trunk of a route.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RawRouteTrunk {
    /// Name; in a list, trunks are tried in order.
    Short(String),
    /// With priority and weight.
    Full(RawRouteTrunkTable),
}

/// A refusal with a reason phrase.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRejectTable {
    /// SIP status.
    #[schemars(range(min = 400, max = 699))]
    pub status: u16,
    /// Reason phrase. Default: that of the status.
    pub reason: Option<String>,
}

/// A refusal.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RawReject {
    /// SIP status.
    Short(#[schemars(range(min = 400, max = 699))] u16),
    /// With a reason phrase.
    Full(RawRejectTable),
}

/// Treatment of media.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawMediaMode {
    /// Media is relayed by the border or a media node.
    #[default]
    Anchor,
    /// Media bypass: SDP is passed unchanged, and the sides send media to each other.
    Bypass,
}

/// A route: conditions, changes of the called number, and one of `trunk`, `registered` and `reject`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRoute {
    /// Name in logs. Default: `route N`.
    pub name: Option<String>,
    /// Condition: interfaces from which the call comes.
    #[serde(default)]
    pub interface: OneOrMany<String>,
    /// Condition: trunks from which the call comes.
    #[serde(default)]
    pub from_trunk: OneOrMany<String>,
    /// Conditions on the caller.
    #[serde(default)]
    pub from: RawMatch,
    /// Conditions on the called address.
    #[serde(default)]
    pub to: RawMatch,
    /// Number of leading characters removed from the called number. Applied first.
    #[serde(default)]
    #[schemars(range(max = 64))]
    pub strip: u32,
    /// Replacement for the match of `to.regex`, used instead of `strip`; `$1` is the first group. With `to.urn`: the
    /// number to call instead of the service, such as 112; without it the URN is passed unchanged.
    pub replace: Option<String>,
    /// Prefix added to the called number. Applied last.
    #[serde(default)]
    pub prefix: String,
    /// Action: send the call to this trunk, or to the first of several that accepts it.
    pub trunk: Option<OneOrMany<RawRouteTrunk>>,
    /// Action: send the call to the contacts of the called user, registered here.
    #[serde(default)]
    pub registered: bool,
    /// Action: refuse the call with this status.
    pub reject: Option<RawReject>,
    /// Whether sources that have not authenticated may use this route, for example for emergency calls.
    #[serde(default)]
    pub unauthenticated: bool,
    /// `anchor`: media is relayed by the border or a media node. `bypass`: SDP is passed unchanged, and the sides send
    /// media to each other.
    #[serde(default)]
    pub media: RawMediaMode,
}

/// A user of the embedded registrar.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawUser {
    /// Name, as in `sip:NAME@...` and in digest credentials; unique.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Password.
    pub password: Option<String>,
    /// MD5 of `name:realm:password`, 32 hexadecimal digits, instead of the password. If any user has `ha1`, only MD5 is
    /// offered in challenges.
    pub ha1: Option<String>,
    /// Telephone numbers of the user in addition to its name. The user part of From, and of the address of record in
    /// REGISTER, may be one of these, and calls to one of them go to the contacts of the user. A number such as
    /// `+43123450`, or a prefix with a star: `+4312345*`.
    #[serde(default)]
    pub numbers: OneOrMany<String>,
}

/// Digest algorithms.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
pub(super) enum RawAlgorithm {
    /// MD5 (RFC 2617).
    #[serde(rename = "MD5")]
    Md5,
    /// SHA-256 (RFC 7616, RFC 8760).
    #[serde(rename = "SHA-256")]
    Sha256,
    /// SHA-512/256 (RFC 7616, RFC 8760).
    #[serde(rename = "SHA-512-256")]
    Sha512T256,
    /// MD5-sess (RFC 2617).
    #[serde(rename = "MD5-sess")]
    Md5Sess,
    /// SHA-256-sess (RFC 7616).
    #[serde(rename = "SHA-256-sess")]
    Sha256Sess,
    /// SHA-512/256-sess (RFC 7616).
    #[serde(rename = "SHA-512-256-sess")]
    Sha512T256Sess,
}

/// Digest authentication of requests.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRealm {
    /// Realm in our challenges. Default: `hornwork`.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Offered algorithms, best first (RFC 8760). All phones support MD5 alone; many, baresip 1.0 among them, fail if
    /// another algorithm is offered beside it. If your phones do not, use `["SHA-256", "MD5"]`.
    #[schemars(length(min = 1))]
    pub algorithms: Vec<RawAlgorithm>,
    /// Lifetime of a nonce in seconds.
    #[schemars(range(min = 10, max = 86400))]
    pub nonce_lifetime_s: u32,
    /// Failed authentications in a row from one source (of IPv6, its /64) after which its credentials are no longer
    /// checked but answered with 503 and Retry-After until a delay is over. The delay doubles with each further
    /// failure. 0: no limit.
    pub source_failures: u32,
    /// The same for one user, from all sources. A flow on which the user is registered is never delayed, and a source
    /// from which the user has authenticated is counted separately. 0: no limit.
    pub user_failures: u32,
    /// First delay in seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub failure_delay_s: u32,
    /// Longest delay in seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub failure_delay_max_s: u32,
}

impl Default for RawRealm {
    fn default() -> Self {
        RawRealm {
            name: "hornwork".to_owned(),
            algorithms: vec![RawAlgorithm::Md5],
            nonce_lifetime_s: 300,
            source_failures: 20,
            user_failures: 10,
            failure_delay_s: 30,
            failure_delay_max_s: 3600,
        }
    }
}

/// The embedded registrar.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRegistrar {
    /// Shortest accepted registration lifetime in seconds. Shorter requests are refused with 423.
    #[schemars(range(min = 1, max = 86400))]
    pub min_expires_s: u32,
    /// Longest granted registration lifetime in seconds. Longer requests are shortened to this.
    #[schemars(range(min = 1, max = 604800))]
    pub max_expires_s: u32,
    /// Registration lifetime in seconds if the request states none.
    #[schemars(range(min = 1, max = 604800))]
    pub default_expires_s: u32,
    /// Maximum number of contacts of one user.
    #[schemars(range(min = 1, max = 100))]
    pub max_contacts: u32,
    /// Longest registration lifetime in seconds for a phone behind NAT over UDP, so that its NAT binding stays open. 0:
    /// no such limit. Default: 30, or `min_expires_s` if that is more.
    #[schemars(range(max = 86400))]
    pub nat_expires_s: Option<u32>,
    /// Seconds between keep-alives of phones that use outbound (RFC 5626), sent to them in Flow-Timer.
    #[schemars(range(min = 10, max = 900))]
    pub flow_timer_s: u32,
    /// Seconds between two REGISTERs to the core for a forwarded registration that does not change; REGISTERs in
    /// between are answered here. The core is asked for twice this lifetime; a registration that the core has accepted
    /// stays valid while the core is unreachable. 0: each REGISTER is forwarded.
    #[schemars(range(max = 86400))]
    pub refresh_interval_s: u32,
    /// Maximum number of accepted registrations per second, with and without credentials each. Phones above it are
    /// refused with 503 and a Retry-After for which a place is reserved. Phones that are registered from the same
    /// address are not counted. 0: no limit.
    #[schemars(range(max = 1000000))]
    pub registrations_per_s: u32,
    /// File that keeps registrations over a restart (SQLite), or `none`: in memory only. Its directory must exist, and
    /// one program uses it at a time. Default: `registrations.db` in the state directory that systemd provides
    /// (`StateDirectory=`, as in the packaged unit), otherwise `none`. Takes effect at the next start.
    pub store: Option<String>,
}

impl Default for RawRegistrar {
    fn default() -> Self {
        RawRegistrar {
            min_expires_s: 30,
            max_expires_s: 7200,
            default_expires_s: 3600,
            max_contacts: 10,
            nat_expires_s: None,
            flow_timer_s: 120,
            refresh_interval_s: 1800,
            registrations_per_s: 0,
            store: None,
        }
    }
}

/// Anchored media.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawMedia {
    /// Place of anchored media: `here`, or `nodes`: each call at one `[[media_node]]`. Conferences are always here.
    pub anchor: RawMediaAnchor,
    /// Milliseconds between two `ping` commands to a media node.
    #[schemars(range(min = 50, max = 3_600_000))]
    pub node_check_ms: u32,
    /// Milliseconds after which an unanswered `ping` marks a media node as down; the `ping` is sent three times in that time. A dead
    /// node is detected within `node_check_ms` + `node_timeout_ms`, and at once if its host sends ICMP port unreachable.
    #[schemars(range(min = 100, max = 60_000))]
    pub node_timeout_ms: u32,
    /// Treatment of calls whose media node is down or has lost them. `reanchor`: each call moves to another media node
    /// by re-INVITE to both sides. `end`: calls are ended by BYE with Reason.
    pub node_failure: NodeFailure,
    /// Maximum number of calls of this border per second that are moved or ended after a failure of a media node;
    /// several workers share it evenly. With the default, 5,000 calls of a node take 2 s.
    #[schemars(range(min = 1, max = 100_000))]
    pub node_failure_calls_per_s: u32,
    /// Seconds that a call waits for a media node if none is up or has capacity; then it is ended. 0: it waits until it
    /// ends.
    #[schemars(range(max = 86400))]
    pub node_failure_wait_s: u32,
    /// Seconds without media after which a call is ended. 0: never. Media nodes have their own limits.
    #[schemars(range(max = 86400))]
    pub timeout_s: u32,
    /// Seconds without media after which a call on hold is ended. 0: never.
    #[schemars(range(max = 86400))]
    pub hold_timeout_s: u32,
    /// Differentiated services code point of media packets (46 is expedited forwarding).
    #[schemars(range(max = 63))]
    pub dscp: u8,
    /// Longest batching delay of media in milliseconds: under load, packets of many streams are processed together at
    /// less cost for each. The delay grows with the packet rate and reaches this value at 8 packets per delay; a few
    /// streams are not delayed. A relayed packet is delayed by up to this time, and its jitter grows; measured with 1,
    /// the median delay grows by 0.6 ms. 0: no batching.
    #[schemars(range(max = 10))]
    pub batching_delay_ms: u32,
    /// Sockets of media ports. `auto`: all media ports of a thread share one socket if kernel and privileges allow it,
    /// otherwise each port has its own; the log states which. `shared`: a shared socket, or the program does not start.
    /// `per-port`: a socket for each port, also for ports in the ephemeral range of the kernel.
    pub sockets: RawMediaSockets,
    /// Relaying of plain RTP in the kernel, before packets reach a socket, for streams that are only relayed. `never`;
    /// `auto`: if kernel (6.3), privileges (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN) and drivers (XDP) allow it; the log
    /// states the result. `require`: for all media addresses, with network interfaces that support redirection, or the
    /// program does not start. A firewall on this host does not see these packets. Loading the XDP program may
    /// interrupt traffic of a network interface for a moment.
    pub kernel_relay: RawOffloadMode,
    /// Media over AF_XDP sockets, bypassing the network stack of the kernel; other traffic uses sockets. `never`;
    /// `auto`: if kernel (5.11), privileges (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW) and locked memory (8 MiB
    /// per queue of a network interface, or CAP_IPC_LOCK) allow it; the log states the result. `require`: for all media
    /// addresses, or the program does not start. The log also states whether the network interface works without
    /// copies, its number of queues (64 at most), and whether its driver supports XDP; otherwise the kernel uses the
    /// slower generic mode. The loopback interface is not served; a firewall on this host does not see these packets.
    /// Cannot be combined with `kernel_relay`, or with several `workers` of `[sip]`.
    pub af_xdp: RawOffloadMode,
}

/// Place of anchored media.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawMediaAnchor {
    /// At the border.
    #[default]
    Here,
    /// At media nodes.
    Nodes,
}

/// Use of an optional path for media packets that kernel or privileges may not allow.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawOffloadMode {
    /// Not used.
    #[default]
    Never,
    /// Used if possible.
    Auto,
    /// Used for all media addresses, or the program does not start.
    Require,
}

/// Sockets of media ports.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawMediaSockets {
    /// A shared socket if possible.
    #[default]
    Auto,
    /// A shared socket, or the program does not start.
    Shared,
    /// A socket per port.
    PerPort,
}

impl Default for RawMedia {
    fn default() -> Self {
        RawMedia {
            anchor: RawMediaAnchor::Here,
            node_check_ms: 250,
            node_timeout_ms: 600,
            node_failure: NodeFailure::Reanchor,
            node_failure_calls_per_s: 2500,
            node_failure_wait_s: 60,
            timeout_s: 60,
            hold_timeout_s: 1800,
            dscp: 46,
            batching_delay_ms: 0,
            sockets: RawMediaSockets::Auto,
            kernel_relay: RawOffloadMode::Never,
            af_xdp: RawOffloadMode::Never,
        }
    }
}

/// SIP behaviour that is common to all interfaces.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawSip {
    /// Value of the Server and User-Agent headers.
    pub agent: String,
    /// Differentiated services code point of signalling (24 is class selector 3).
    #[schemars(range(max = 63))]
    pub dscp: u8,
    /// Seconds after which a ringing call is cancelled.
    #[schemars(range(min = 5, max = 3600))]
    pub ring_timeout_s: u32,
    /// Longest batching delay of signalling in milliseconds: messages that arrive within it are processed together, at
    /// less cost for each. The delay is 0 while signalling uses less than a fifth of a CPU, and grows to this value at
    /// two fifths. A message waits up to this time on each pass through the border; more than 1 also creates bursts
    /// that the receive buffers of peers may lose. 0: no batching.
    #[schemars(range(max = 50))]
    pub batching_delay_ms: u32,
    /// Whether messages of equal length to one peer are sent by UDP segmentation offload (GSO), at less than half the
    /// cost. The peer receives single datagrams; a capture on the loopback interface shows the unsegmented buffer.
    pub gso: bool,
    /// Largest burst of signalling in bytes to one peer (address and port) over UDP. Further messages follow at twice
    /// the average rate of that peer, at least at 12 MB/s, so that a backlog does not overflow a receive buffer of 64
    /// KiB. With a larger value, peers with small receive buffers lose messages and retransmit. 0: no limit.
    #[schemars(range(max = 1_048_576))]
    pub burst_bytes: u32,
    /// Queueing delay in the socket, in milliseconds, above which the border counts as overloaded: new calls and
    /// registrations that waited 90 % of it (70 % with several workers) are refused with 503; established calls are
    /// served. It must be well above `batching_delay_ms`. 0: never. Default: 25, or three times `batching_delay_ms` if that is more.
    #[schemars(range(max = 10_000))]
    pub queueing_delay_ms: Option<u32>,
    /// Worker threads for signalling and its media, each pinned to a CPU if there is one for each. A call belongs to
    /// one worker regardless of the listener of its messages. Registrations, rate limits, trunk states and the limit of
    /// calls are shared; media ports, limits of connections and transactions, memory and CPU time are divided evenly. A
    /// conference belongs to one worker: SipHash-1-3 of the called number under a zero key, modulo `workers`.
    #[schemars(range(min = 1, max = 64))]
    pub workers: u8,
    /// Maximum number of refused new calls per 100 accepted ones in a lasting flood over UDP, because refusals cost CPU
    /// time too. In the first moments, and whenever there is CPU time left, there may be more. Further INVITEs are
    /// dropped unread and refused when retransmitted later; in-dialog requests, emergency calls and other methods are
    /// never dropped. 0: all are refused, none is dropped.
    #[schemars(range(max = 10_000))]
    pub refusals_percent: u32,
    /// Whether neighbours that ask for overload control (`oc` in Via, RFC 7339) get the share of new requests to hold
    /// back.
    pub overload_feedback: bool,
}

impl Default for RawSip {
    fn default() -> Self {
        RawSip {
            agent: "Hornwork".to_owned(),
            dscp: 24,
            ring_timeout_s: 180,
            batching_delay_ms: 1,
            gso: true,
            burst_bytes: 16_384,
            queueing_delay_ms: None,
            workers: 1,
            refusals_percent: 5,
            overload_feedback: true,
        }
    }
}

/// Session timers (RFC 4028).
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawSessionTimer {
    /// Session-Expires in seconds that the border requests if a side requests none. 0: none; session timers requested
    /// by the sides are kept.
    #[schemars(range(max = 86400))]
    pub expires_s: u32,
    /// Min-SE in seconds, used with `expires_s`. Requests for less are refused with 422.
    #[schemars(range(min = 90, max = 86400))]
    pub min_se_s: u32,
}

impl Default for RawSessionTimer {
    fn default() -> Self {
        RawSessionTimer {
            expires_s: 0,
            min_se_s: 90,
        }
    }
}

/// Capacities.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLimits {
    /// Maximum number of simultaneous calls.
    #[schemars(range(min = 1))]
    pub calls: u32,
    /// Maximum number of SIP transactions, including completed ones that absorb retransmissions.
    #[schemars(range(min = 1))]
    pub transactions: u32,
    /// Maximum number of registered contacts.
    #[schemars(range(min = 1))]
    pub registrations: u32,
    /// Maximum number of stream connections.
    #[schemars(range(min = 1))]
    pub connections: u32,
    /// Maximum number of stream connections from one source address.
    #[schemars(range(min = 1))]
    pub connections_per_source: u32,
    /// Seconds without a complete message or keep-alive after which a stream connection is closed.
    #[schemars(range(min = 60, max = 86400))]
    pub connection_idle_s: u32,
    /// Seconds for all handshakes of a connection (TLS, WebSocket) together.
    #[schemars(range(min = 1, max = 60))]
    pub handshake_timeout_s: u32,
    /// Maximum number of bytes queued for a slow peer; its connection is closed above that.
    #[schemars(range(min = 65536, max = 67108864))]
    pub connection_queue_bytes: u32,
    /// Maximum size of a SIP message in bytes.
    #[schemars(range(min = 2048, max = 65535))]
    pub message_bytes: u32,
    /// Memory for calls and registrations in MiB. A call takes 8 KiB, 40 more if its media is anchored, 16 for each
    /// side with TLS, 4 with WebSocket, 4 with SRTP (AES-GCM 6, DTLS 20 more), 64 if it is transcoded, 160 to 200 in a
    /// conference; a registration takes 1 KiB. Further calls are refused. 0: 60 % of the memory of the machine or its
    /// control group.
    #[schemars(range(max = 16_777_216))]
    pub memory_mib: u32,
    /// CPU time for calls in percent of one CPU. A call with anchored media takes 0.05 (0.009 if relayed by the kernel,
    /// 0.03 over AF_XDP), each side with SRTP 0.01 (AES-GCM 0.006), each transcoded side 0.02 (G.711) to 1.2 (Opus), a
    /// conference participant 0.15 to 0.55; a TLS handshake takes 0.09 and a DTLS handshake 0.11 for one second.
    /// Further calls are refused, and the event `admission_refused` lists the use. 0: 70 % of the CPUs that the border
    /// can use.
    #[schemars(range(max = 100_000))]
    pub cpu_percent: u32,
    /// Status for calls that are refused for lack of memory or CPU time: 503 (with Retry-After), 486 and similar.
    /// Emergency calls (urn:service:sos) are always accepted.
    #[schemars(range(min = 400, max = 699))]
    pub status: u16,
}

impl Default for RawLimits {
    fn default() -> Self {
        let limits = engine::Limits::default();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        RawLimits {
            calls: number(limits.calls),
            transactions: number(limits.transactions),
            registrations: number(limits.registrations),
            connections: number(limits.connections),
            connections_per_source: number(limits.connections_per_source),
            connection_idle_s: number(limits.connection_idle.as_secs() as usize),
            handshake_timeout_s: number(limits.handshake.as_secs() as usize),
            connection_queue_bytes: number(limits.connection_queue),
            message_bytes: number(limits.message_bytes),
            memory_mib: 0,
            cpu_percent: 0,
            status: 503,
        }
    }
}

/// DNS servers.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDns {
    /// DNS servers as `ADDRESS[:PORT]`, in order. Empty: those of /etc/resolv.conf.
    pub servers: Vec<String>,
}

/// Graceful shutdown.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDrain {
    /// Seconds after SIGTERM for calls in progress; new calls are refused. Calls that remain are then ended, with two
    /// more seconds for the responses of their peers. A second SIGTERM ends them at once.
    #[schemars(range(max = 86400))]
    pub timeout_s: u32,
}

impl Default for RawDrain {
    fn default() -> Self {
        RawDrain { timeout_s: 300 }
    }
}

/// Log levels.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawLevel {
    /// Failures.
    Error,
    /// Possible failures.
    Warn,
    /// Calls, registrations, trunks.
    #[default]
    Info,
    /// Also each refused request.
    Debug,
    /// Everything.
    Trace,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawFormat {
    /// Text lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Logging.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLog {
    /// Lowest level that is written.
    pub level: RawLevel,
    /// `text` or `json`.
    pub format: RawFormat,
}
