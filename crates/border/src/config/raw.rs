//! The configuration as it is written: one type per table, each key with its text, unit, bounds and default. The JSON
//! Schema and the reference page are made from these.

use super::nodes::NodeFailure;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Configuration of a Hornwork border.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Hornwork configuration")]
pub(super) struct Raw {
    /// Listening points; at least one, but for a file with `[node]` alone.
    #[serde(default)]
    pub interface: Vec<RawInterface>,
    /// Media for others.
    pub node: Option<super::media_node::RawNode>,
    /// Programs that relay media for this border, where `anchor` of `[media]` says so.
    #[serde(default)]
    pub media_node: Vec<super::nodes::RawRemoteNode>,
    /// Systems that calls are sent to and come from: PBXs, softswitches, carriers.
    #[serde(default)]
    pub trunk: Vec<RawTrunk>,
    /// Where calls go, tried in order; the first whose conditions hold decides. A call that none of them takes goes to the
    /// contacts of the called user where it is registered: those whose registration was passed to a trunk are reached from that
    /// trunk, those that are kept here from trunks and authenticated sources. Else a call from an interface that passes
    /// registrations goes to the trunk of these; another one, where there is no route at all, to any trunk but the one it came
    /// from; else it is refused with 404. MESSAGE, SUBSCRIBE and REFER outside of calls go the same ways.
    #[serde(default)]
    pub route: Vec<RawRoute>,
    /// Conferences: a call to one's number is answered by us. They are looked at before routes.
    #[serde(default)]
    pub room: Vec<super::rooms::RawRoom>,
    /// Header rules, tried in order.
    #[serde(default)]
    pub rules: Vec<super::rules::RawRule>,
    /// Identities where trust begins and ends (RFC 3325, RFC 3323).
    #[serde(default)]
    pub identity: super::rules::RawIdentityPolicy,
    /// Users of the embedded registrar, which authenticate by digest.
    #[serde(default)]
    pub user: Vec<RawUser>,
    /// Digest authentication of others by us.
    #[serde(default)]
    pub realm: RawRealm,
    /// The embedded registrar.
    #[serde(default)]
    pub registrar: RawRegistrar,
    /// Media that is anchored.
    #[serde(default)]
    pub media: RawMedia,
    /// SIP behaviour that is the same everywhere.
    #[serde(default)]
    pub sip: RawSip,
    /// How the threads that move signalling and media run; counts from the next start.
    #[serde(default)]
    pub threads: super::threads::Threads,
    /// Session timers (RFC 4028).
    #[serde(default)]
    pub session_timer: RawSessionTimer,
    /// Capacities; what is above is refused and counted.
    #[serde(default)]
    pub limits: RawLimits,
    /// Name servers.
    #[serde(default)]
    pub dns: RawDns,
    /// Conferences commanded over HTTP; without it they are not.
    pub control: Option<super::control::RawControl>,
    /// Stopping in order.
    #[serde(default)]
    pub drain: RawDrain,
    /// What is logged.
    #[serde(default)]
    pub log: RawLog,
}

/// One value, or several.
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

    /// Where the value at `index` stands in the document, below `path`.
    pub(super) fn path(&self, path: &str, index: usize) -> String {
        match self {
            OneOrMany::One(_) => path.to_owned(),
            OneOrMany::Many(_) => format!("{path}[{index}]"),
        }
    }
}

/// What stands behind an interface.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawKind {
    /// Anyone: identities that they assert are not believed.
    #[default]
    Access,
    /// Our own network: believed.
    Core,
}

/// Authentication of requests.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawAuthenticate {
    /// None.
    #[default]
    None,
    /// Digest of a configured user; requests of trunks are exempt.
    Digest,
    /// The trunk of `register` authenticates.
    Trunk,
}

/// Where registered contacts are reached.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawContacts {
    /// On the flow on which they were registered.
    #[default]
    Flow,
    /// At the address that they name.
    Address,
}

/// Whose identity is asserted.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawAssert {
    /// Of users that have authenticated by digest.
    #[default]
    Proven,
    /// Also of users who are registered from just where the request comes from.
    Registered,
}

/// What becomes of early media.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawEarlyMedia {
    /// It passes.
    #[default]
    Pass,
    /// It passes where P-Early-Media authorises it (RFC 5009).
    Gate,
}

/// Where P-Charging-Vector comes from.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawCharging {
    /// Nobody here makes one.
    #[default]
    Pass,
    /// We make one for each call from here.
    Generate,
}

/// What is done with requests outside of calls.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawPassing {
    /// They are sent where a call would be.
    #[default]
    Pass,
    /// They are refused.
    Refuse,
}

/// What its peers see of other networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawHeaders {
    /// Other networks are hidden.
    Known,
    /// Headers and lines pass as they came.
    All,
}

fn refused() -> RawPassing {
    RawPassing::Refuse
}

/// A named listening point.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawInterface {
    /// Its name, unique among interfaces.
    #[schemars(length(min = 1))]
    pub name: String,
    /// `access` towards phones and foreign networks: asserted identities are taken out of what comes from there. `core`
    /// towards our own systems: believed.
    #[serde(default)]
    pub kind: RawKind,
    /// Whether identities that its peers assert are believed, and may be told to them (RFC 3325). Default: `true` for `core`,
    /// `false` for `access`. A trunk has a setting of its own.
    pub trusted: Option<bool>,
    /// What of other networks its peers see in messages that pass to them: `known` hides them: unknown headers (`X-...`) go, hosts in
    /// Alert-Info, Call-Info, Error-Info, Reason, Referred-By and Reply-To go or become ours, and so do the lines `s=`, `i=`, `u=`, `e=`,
    /// `p=` and `a=tool` of session descriptions; `all`: these pass as they came. Default: `known` where it is not `trusted`, else `all`.
    /// The whole list: docs/topology-hiding.md.
    pub headers: Option<RawHeaders>,
    /// Names of headers that pass to its peers as they came, where `headers` is `known`.
    #[serde(default)]
    pub pass_headers: OneOrMany<String>,
    /// Where it listens: `udp:ADDRESS:PORT`, `tcp:`, `tls:`, `ws:` (WebSocket) or `wss:` (WebSocket over TLS). Where no port is
    /// given it is 5060, 5060, 5061, 80 or 443.
    pub listen: OneOrMany<String>,
    /// Host, or host:port, that Via and Contact say instead of the listening address: for a border behind NAT. Demanded
    /// where it listens on 0.0.0.0 or [::].
    pub advertise: Option<String>,
    /// Networks (`ADDRESS/BITS`) whose requests are taken; others are dropped without an answer. Empty: all.
    #[serde(default)]
    pub allow: OneOrMany<String>,
    /// `digest`: calls and registrations must authenticate as a configured `[[user]]`. `trunk`: the trunk of `register =
    /// "pass:TRUNK"` authenticates, its challenges pass; a source reaches that trunk alone until it is registered, but for routes
    /// with `unauthenticated`. `none`: no authentication; `hornwork check` warns of each trunk and phone that is reached so.
    #[serde(default)]
    pub authenticate: RawAuthenticate,
    /// What is done with REGISTER: `local` (kept here), `pass:TRUNK` (passed to that trunk, our Contact in the place of
    /// the phone's) or `refuse` (403). Default: `local` where there are users, else `refuse`.
    pub register: Option<String>,
    /// Where requests to a phone that is registered through here go: `flow` (to the address and port, or the connection, from which
    /// it registered, whatever host its Contact names) or `address` (over UDP to the address in its Contact, which may be any).
    #[serde(default)]
    pub contacts: RawContacts,
    /// How many calls and registrations a second are let in; beyond that they are refused at once.
    #[serde(default)]
    pub rates: super::Rates,
    /// What is done with SUBSCRIBE, and with NOTIFY outside of a subscription: `pass` (sent where a call would be) or
    /// `refuse` (489).
    #[serde(default)]
    pub subscribe: RawPassing,
    /// The same for REFER outside of calls, by which others make a phone call somebody: `pass` or `refuse` (403).
    #[serde(default = "refused")]
    pub refer: RawPassing,
    /// Whose identity is asserted towards trusted sides (RFC 3325): `proven`, of users that have authenticated by digest;
    /// `registered`, also of users who are registered from just where the request comes from, which is proof where nobody
    /// can forge addresses.
    #[serde(default)]
    pub assert: RawAssert,
    /// What becomes of media before the answer in calls from and to here, where media is anchored: `pass`, or `gate`: it
    /// passes as far as P-Early-Media of a trusted called side authorises it (RFC 5009), else not before the answer.
    #[serde(default)]
    pub early_media: RawEarlyMedia,
    /// P-Charging-Vector (RFC 7315 section 4.6) in calls from and to here: `generate` makes one for each call from here
    /// towards trusted sides, and answers calls of trusted sides with theirs; `pass` does neither.
    #[serde(default)]
    pub charging_vector: RawCharging,
    /// Where media is anchored; one table, or one per address family. Default: the first listening address, ports
    /// 20000-26999.
    #[serde(default)]
    pub media: OneOrMany<RawMediaAddress>,
    /// What the media nodes call this side (`direction` of the "ng" protocol): a name of `[[node.interface]]`, or an interface of
    /// rtpengine. Named for every interface or for none.
    pub node_interface: Option<String>,
    /// What is done about SRTP in calls from and to here where media is anchored: `pass`, `refuse`, `prefer` or `require`. Default: `pass`.
    /// `pass`: where both sides of a call say so, keys and packets pass from end to end; else SRTP is taken where it is offered and
    /// not offered by us. `prefer` offers it beside media in the clear (RFC 8643).
    pub srtp: Option<super::security::SrtpPolicy>,
    /// How keys are agreed on, the best first: `sdes` (in session descriptions, RFC 4568), `dtls` (DTLS-SRTP, RFC 5764). Default: `sdes`.
    #[serde(default)]
    pub srtp_keying: OneOrMany<super::security::Keying>,
    /// Crypto suites, the best first, by their names in RFC 4568, 6188 and 7714. DTLS takes those among them that it can agree on:
    /// AEAD_AES_256_GCM, AEAD_AES_128_GCM and AES_CM_128_HMAC_SHA1_80. Default: AEAD_AES_256_GCM,
    /// AEAD_AES_128_GCM, AES_256_CM_HMAC_SHA1_80, AES_CM_128_HMAC_SHA1_80, AES_CM_128_HMAC_SHA1_32.
    #[serde(default)]
    pub srtp_suites: OneOrMany<String>,
    /// `lite`: we are an ICE-lite agent (RFC 8445) with one candidate, our media address; browsers demand ICE. `full`: a full agent
    /// with that candidate, which sends checks of its own: for peers that are lite themselves, or of which we are the client. `off`:
    /// candidates are taken out of descriptions. Default: `off`.
    pub ice: Option<super::security::Ice>,
    /// Codecs that the border speaks towards here on its own account, the best first: `PCMA`, `PCMU`, `G722`, `G729`, `opus`. They
    /// are offered here, and what comes or goes in them is transcoded where the other side of the call has none of them; media must be
    /// anchored. Default: none.
    #[serde(default)]
    pub transcode: OneOrMany<String>,
    /// `needed`: they are offered behind those of the other side of the call, so that a common codec goes first. `always`: only they are
    /// offered. Default: `needed`.
    pub transcode_when: Option<super::codecs::TranscodeWhen>,
    /// Certificates; demanded where it listens with `tls:` or `wss:`.
    pub tls: Option<super::tls::RawListenTls>,
    /// What is asked of WebSockets.
    pub websocket: Option<super::tls::RawWebSocket>,
}

/// An address at which media is anchored.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMediaAddress {
    /// IP address to which media sockets are bound. Default: the first listening address of the interface.
    pub address: Option<String>,
    /// IP address that SDP says instead: for a border behind NAT.
    pub advertise: Option<String>,
    /// Range of ports, both ends included. A call takes one pair (even and odd) per media line and side. Ports that the kernel lends to
    /// other programs (net.ipv4.ip_local_port_range, usually 32768-60999) are refused, unless they are reserved
    /// (net.ipv4.ip_local_reserved_ports) or `[media] sockets` is `per-port`. Two programs on one host cannot have the same ports of an
    /// address. Default: 20000-26999, of a media node 27000-32767.
    pub ports: Option<String>,
}

/// A place where a trunk is, in full.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTargetTable {
    /// `[udp:|tcp:|tls:]HOST[:PORT]`. A name without port is located by NAPTR and SRV records (RFC 3263).
    pub address: String,
    /// Lower is tried first.
    #[serde(default)]
    pub priority: u16,
    /// Share of calls among targets of the same priority; 0: only where no other is left.
    #[serde(default = "one")]
    pub weight: u16,
}

fn one() -> u16 {
    1
}

/// A place where a trunk is.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RawTarget {
    /// `[udp:|tcp:|tls:]HOST[:PORT]`.
    Short(String),
    /// With priority and weight.
    Full(RawTargetTable),
}

/// Whether asserted identities go to a trunk.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawIdentity {
    /// They pass, where they come from a side that is believed.
    #[default]
    Pass,
    /// They are taken out.
    Remove,
}

/// What is done with REFER.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawRefer {
    /// It goes to the other side.
    #[default]
    Pass,
    /// The border transfers the call itself.
    Act,
}

/// What is done with a redirection.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawRedirect {
    /// It goes to the caller.
    #[default]
    Pass,
    /// The border calls the contacts of the redirection.
    Follow,
}

/// A system that calls are sent to and come from.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTrunk {
    /// Its name, unique among trunks.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Name of the interface through which it is reached. Default: the only interface there is.
    pub interface: Option<String>,
    /// Where it is: `[udp:|tcp:|tls:]HOST[:PORT]`, or a table with `address`, `priority` and `weight`, or a list of these.
    pub target: OneOrMany<RawTarget>,
    /// Networks from which its requests come, beside its targets.
    #[serde(default)]
    pub sources: OneOrMany<String>,
    /// Domain in Request-URI, From and To of what we send there. Default: the host of the target.
    pub domain: Option<String>,
    /// User name that answers its digest challenges.
    pub username: Option<String>,
    /// Password that answers its digest challenges.
    pub password: Option<String>,
    /// Keeps an account of ours registered there.
    pub register: Option<RawCarrier>,
    /// Seconds between two OPTIONS to each target; 0: none, the trunk always counts as up.
    #[serde(default)]
    #[schemars(range(max = 86400))]
    pub ping: u32,
    /// How many pings must fail in a row before a target counts as down.
    #[serde(default = "default_ping_failures")]
    #[schemars(range(min = 1, max = 100))]
    pub ping_failures: u32,
    /// Calls at a time, both directions; further ones go to the next trunk of the route. Default: no limit of its own.
    #[schemars(range(min = 1))]
    pub max_calls: Option<u32>,
    /// Ask the trunk in every new request how much it can take, and send no more new ones than it says: overload control by
    /// loss (RFC 7339) or by rate (RFC 7415). What may not be sent goes to the next trunk, or is answered 503.
    #[serde(default)]
    pub feedback: bool,
    /// How many calls and registrations a second are taken from it; beyond that they are refused at once.
    #[serde(default)]
    pub rates: super::Rates,
    /// Seconds that a target may take to answer an INVITE with anything before the next one is tried.
    #[serde(default = "default_answer_timeout")]
    #[schemars(range(min = 1, max = 32))]
    pub answer_timeout: u32,
    /// Whether it belongs to those whose asserted identities are believed, and who honour the privacy of ours (RFC 3325).
    #[serde(default = "yes")]
    pub trusted: bool,
    /// Whether P-Asserted-Identity, Remote-Party-ID and the like go there: `pass` or `remove`.
    #[serde(default)]
    pub identity: RawIdentity,
    /// User part of From in calls that we send there. Default: the caller's own.
    pub from_user: Option<String>,
    /// REFER that comes from there: `pass` to the other side, or `act` on it here.
    #[serde(default)]
    pub refer: RawRefer,
    /// 3xx that comes from there: `pass` to the caller, or `follow` it here.
    #[serde(default)]
    pub redirect: RawRedirect,
    /// What is done about SRTP in calls from and to there: `pass`, `refuse`, `prefer` or `require`. Default for this and the
    /// three keys below: what the interface says.
    pub srtp: Option<super::security::SrtpPolicy>,
    /// How keys are agreed on, the best first: `sdes` (in session descriptions, RFC 4568), `dtls` (DTLS-SRTP, RFC 5764).
    #[serde(default)]
    pub srtp_keying: OneOrMany<super::security::Keying>,
    /// Crypto suites, the best first, by their names in RFC 4568, 6188 and 7714. DTLS takes those among them that it can agree on:
    /// AEAD_AES_256_GCM, AEAD_AES_128_GCM and AES_CM_128_HMAC_SHA1_80.
    #[serde(default)]
    pub srtp_suites: OneOrMany<String>,
    /// `lite`: we are an ICE-lite agent (RFC 8445) with one candidate, our media address; browsers demand ICE. `full`: a full agent
    /// with that candidate, which sends checks of its own: for peers that are lite themselves, or of which we are the client. `off`:
    /// candidates are taken out of descriptions.
    pub ice: Option<super::security::Ice>,
    /// Codecs that the border speaks towards there on its own account, the best first: `PCMA`, `PCMU`, `G722`, `G729`, `opus`. They
    /// are offered there, and what comes or goes in them is transcoded where the other side of the call has none of them; media must be
    /// anchored. Default: what the interface says.
    #[serde(default)]
    pub transcode: OneOrMany<String>,
    /// `needed`: they are offered behind those of the other side of the call, so that a common codec goes first. `always`: only they are
    /// offered. Default: what the interface says.
    pub transcode_when: Option<super::codecs::TranscodeWhen>,
    /// How TLS is spoken there. Default: whoever the system's authorities vouch for is believed.
    pub tls: Option<super::tls::RawTrunkTls>,
}

fn yes() -> bool {
    true
}

fn default_ping_failures() -> u32 {
    2
}

fn default_answer_timeout() -> u32 {
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
    /// User part of our Contact, to which the carrier's calls come. Default: `user`.
    pub contact_user: Option<String>,
    /// Seconds asked for.
    #[serde(default = "default_carrier_expires")]
    #[schemars(range(min = 30, max = 86400))]
    pub expires: u32,
    /// Keeps the flow on which we are registered alive (RFC 5626): line breaks on a stream, STUN over UDP; one that does not
    /// answer is registered anew. `auto`: where the carrier says that it answers (Flow-Timer, or outbound among Supported
    /// or Require). `always`, `never`.
    #[serde(default)]
    pub keep_alive: RawKeepAlive,
}

/// When the flow of a registration of ours is kept alive.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawKeepAlive {
    /// Where the carrier says that it answers.
    #[default]
    Auto,
    /// In any case.
    Always,
    /// Never.
    Never,
}

fn default_carrier_expires() -> u32 {
    600
}

/// A condition on an address; all that is said must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMatch {
    /// The user part begins with this, or with one of these.
    #[serde(default)]
    pub prefix: OneOrMany<String>,
    /// The whole user part is matched by this regular expression.
    pub regex: Option<String>,
    /// The host is this, or one of these.
    #[serde(default)]
    pub domain: OneOrMany<String>,
    /// The user part is this, or one of these.
    #[serde(default)]
    pub user: OneOrMany<String>,
    /// In `to`: a service is called (RFC 5031), this one or one below it, or one of these: `urn:service:sos` takes in
    /// `urn:service:sos.fire`. Such calls have no user part and no host.
    #[serde(default)]
    pub urn: OneOrMany<String>,
}

/// A trunk of a route, with priority and weight.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRouteTrunkTable {
    /// Name of the trunk.
    pub name: String,
    /// Lower is tried first.
    #[serde(default)]
    pub priority: u16,
    /// Share of calls among trunks of the same priority; 0: only where no other is left.
    #[serde(default = "one")]
    pub weight: u16,
}

/// A trunk of a route.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RawRouteTrunk {
    /// Its name; in a list, earlier ones are tried first.
    Short(String),
    /// With priority and weight.
    Full(RawRouteTrunkTable),
}

/// A refusal with words of its own.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRejectTable {
    /// SIP status.
    #[schemars(range(min = 400, max = 699))]
    pub status: u16,
    /// Reason phrase. Default: the usual one of the status.
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

/// What is done with media.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawMediaMode {
    /// It goes through us.
    #[default]
    Anchor,
    /// SDP stays untouched, media goes from end to end.
    Bypass,
}

/// A rule for calls: conditions, changes of the number, and one of `trunk`, `registered` and `reject`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRoute {
    /// Its name for logs. Default: `route N`.
    pub name: Option<String>,
    /// Condition: interfaces on which the call came.
    #[serde(default)]
    pub interface: OneOrMany<String>,
    /// Condition: trunks from which the call came.
    #[serde(default)]
    pub from_trunk: OneOrMany<String>,
    /// Condition on the caller.
    #[serde(default)]
    pub from: RawMatch,
    /// Condition on the called address.
    #[serde(default)]
    pub to: RawMatch,
    /// Leading characters taken off the called number (first of the changes).
    #[serde(default)]
    #[schemars(range(max = 64))]
    pub strip: u32,
    /// What `to.regex` matched becomes this; `$1` is its first group (in the place of `strip`). With `to.urn`: the number that
    /// is called in the place of the service, such as 112; without it the URN is sent on as it came.
    pub replace: Option<String>,
    /// Put in front of the called number (last of the changes).
    #[serde(default)]
    pub prefix: String,
    /// Action: to this trunk, or to the first of these that takes the call.
    pub trunk: Option<OneOrMany<RawRouteTrunk>>,
    /// Action: to the contacts of the called user, registered here.
    #[serde(default)]
    pub registered: bool,
    /// Action: refuse with this status.
    pub reject: Option<RawReject>,
    /// Sources that have not authenticated take this route, too: emergency calls, for example.
    #[serde(default)]
    pub unauthenticated: bool,
    /// `anchor`: media goes through us. `bypass`: SDP stays untouched.
    #[serde(default)]
    pub media: RawMediaMode,
}

/// A user of the embedded registrar.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawUser {
    /// Name, as in `sip:NAME@...` and in digest; unique.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Password.
    pub password: Option<String>,
    /// MD5 of `name:realm:password`, 32 hexadecimal digits, instead of the password: only MD5 is then offered to anyone.
    pub ha1: Option<String>,
    /// Numbers that are the user's beside its name: the user part of From, and of the address of record in REGISTER, may be one of
    /// these, and calls to one lead to the user's contacts. A number such as `+43123450`, or with a star behind its beginning all
    /// that begin so: `+4312345*`.
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

/// Digest authentication of others by us.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRealm {
    /// The realm in our challenges. Default: `hornwork`.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Algorithms offered, the preferred one first (RFC 8760). MD5 alone is what every phone takes: many in the field, baresip
    /// 1.0 among them, give up where anything else is offered beside it. Where yours do not, say `["SHA-256", "MD5"]`.
    #[schemars(length(min = 1))]
    pub algorithms: Vec<RawAlgorithm>,
    /// Seconds for which a nonce is good.
    #[schemars(range(min = 10, max = 86400))]
    pub nonce_lifetime: u32,
    /// Failed authentications of one source (of IPv6, its /64) in a row that are judged; then credentials from there get 503 with
    /// Retry-After until a delay is over, which doubles with each further failure. 0: all are judged.
    pub source_failures: u32,
    /// The same for one user, whatever the source. A flow on which the user is registered is never delayed, and a source from which
    /// the user has authenticated is counted for itself. 0: all are judged.
    pub user_failures: u32,
    /// The first delay, seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub failure_delay_s: u32,
    /// The longest delay, seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub failure_delay_max_s: u32,
}

impl Default for RawRealm {
    fn default() -> Self {
        RawRealm {
            name: "hornwork".to_owned(),
            algorithms: vec![RawAlgorithm::Md5],
            nonce_lifetime: 300,
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
    /// Shorter wishes are answered with 423; seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub min_expires: u32,
    /// Longer wishes are cut to this; seconds.
    #[schemars(range(min = 1, max = 604800))]
    pub max_expires: u32,
    /// What is given where nothing is wished for; seconds.
    #[schemars(range(min = 1, max = 604800))]
    pub default_expires: u32,
    /// Contacts of one user at a time.
    #[schemars(range(min = 1, max = 100))]
    pub max_contacts: u32,
    /// What a phone behind NAT is given at most on UDP, so that its pinhole stays open; seconds. 0: no such limit. Where it
    /// is left out: 30, or `min_expires` where that is more.
    #[schemars(range(max = 86400))]
    pub nat_expires: Option<u32>,
    /// Flow-Timer given to phones that use outbound (RFC 5626): they send keep-alives this often; seconds.
    #[schemars(range(min = 10, max = 900))]
    pub flow_timer: u32,
    /// How often a registration that is passed on and does not change goes to the core; seconds. REGISTERs between are
    /// answered here. The core is asked for twice as long; a phone that the core had taken stays registered while the core
    /// is away. 0: each REGISTER is passed on.
    #[schemars(range(max = 86400))]
    pub pass_every: u32,
    /// Registrations let in a second, with and without credentials each; phones beyond it get 503 with a Retry-After at
    /// which there is room for them. Whoever is registered already, from where it was, is not counted. 0: no limit.
    #[schemars(range(max = 1000000))]
    pub rate: u32,
    /// File that keeps registrations over a restart (SQLite), or `none`: they are in memory only. Its folder has to exist, and one
    /// program uses it at a time. Where this is left out: `registrations.db` in the folder that systemd gives the program
    /// (`StateDirectory=`, as the packaged unit has it), `none` where it gives none. Counts from the next start.
    pub store: Option<String>,
}

impl Default for RawRegistrar {
    fn default() -> Self {
        RawRegistrar {
            min_expires: 30,
            max_expires: 7200,
            default_expires: 3600,
            max_contacts: 10,
            nat_expires: None,
            flow_timer: 120,
            pass_every: 1800,
            rate: 0,
            store: None,
        }
    }
}

/// Media that is anchored.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawMedia {
    /// Where media is anchored: `here`, or at `nodes`: each call at one of `[[media_node]]`. Conferences are always here.
    pub anchor: RawMediaAnchor,
    /// Milliseconds between two `ping`s to a media node.
    #[schemars(range(min = 50, max = 3_600_000))]
    pub node_check_ms: u32,
    /// The same in seconds, by its former name: accepted in this release, with a warning. Takes the place of `node_check_ms`.
    #[schemars(range(min = 1, max = 3600))]
    pub node_check: Option<u32>,
    /// A media node that leaves a `ping` unanswered for so many milliseconds is down; the `ping` is sent three times in that time. So a
    /// dead node is noticed within `node_check_ms` + `node_timeout_ms`, and at once where its host answers by ICMP port unreachable.
    #[schemars(range(min = 100, max = 60_000))]
    pub node_timeout_ms: u32,
    /// Calls whose media node is down, or has lost them: `reanchor` moves each to another media node by re-INVITE to both sides; `end`
    /// ends them by BYE with Reason.
    pub node_failure: NodeFailure,
    /// Calls of this border that are re-anchored, or ended, in a second at most after a media node has failed; of several workers each
    /// has its part. 5,000 calls of one node take 2 s by default.
    #[schemars(range(min = 1, max = 100_000))]
    pub node_failure_rate: u32,
    /// Seconds for which a call waits for a media node where none is up or has room; then it is ended. 0: it waits until it ends by
    /// itself.
    #[schemars(range(max = 86400))]
    pub node_keep: u32,
    /// A call whose media stops this long is ended; seconds. 0: never. Media nodes have limits of their own.
    #[schemars(range(max = 86400))]
    pub timeout: u32,
    /// The same while the call is on hold; seconds. 0: never.
    #[schemars(range(max = 86400))]
    pub hold_timeout: u32,
    /// Differentiated services code point of media packets (46 is expedited forwarding).
    #[schemars(range(max = 63))]
    pub dscp: u8,
    /// Milliseconds for which media may wait for more of it under load, so that packets of many streams are dealt with together at
    /// less cost for each. The wait grows with the rate, up to all of this from 8 packets in that time on; a few streams do not
    /// wait. The price: a relayed packet is delayed by up to this, and its jitter grows; measured with 1, the median delay grows by
    /// 0.6 ms. 0: never.
    #[schemars(range(max = 10))]
    pub gather: u32,
    /// Whether all media ports of a thread share one socket. `auto`: where the kernel and our rights allow it, and a socket for
    /// each port otherwise, which the log says once. `per-port`: a socket for each port, also in ranges that the kernel lends to
    /// other programs.
    pub sockets: RawMediaSockets,
    /// Whether the kernel relays streams of plain RTP to which nothing is to be done but to send them on, before any socket sees
    /// them. `auto`: where kernel (6.3), rights (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN) and the drivers of the interfaces (XDP) allow it, which the log
    /// says once; a firewall on this host does not see such packets. `require`: for every address of media, with interfaces that send
    /// what is redirected to them, or no start. Putting the program at an interface may
    /// interrupt its traffic for a moment.
    pub kernel: RawWanted,
    /// Whether media comes and leaves by AF_XDP, past the kernel's network, where it is plain datagrams with a known way; all else goes by
    /// sockets as ever. `auto`: where kernel (5.11), rights (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW) and locked memory (8 MiB for each queue of
    /// an interface, or CAP_IPC_LOCK) allow it, which the log says once. `require`: for every address of media, or no start. Whether
    /// the network card does it without copies, by how many of its queues (64 at most), and whether its driver has XDP at all (else the kernel
    /// does it, in generic mode, as right and slower) is in the log, too. The loopback is never served; a firewall on this host does not
    /// see such packets. Not together with `kernel`, and not with several `workers` of `[sip]`.
    pub af_xdp: RawWanted,
}

/// Where media is anchored.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawMediaAnchor {
    /// By us.
    #[default]
    Here,
    /// By media nodes.
    Nodes,
}

/// Whether a way for media is taken that machine or rights may not allow.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawWanted {
    /// It is left alone.
    #[default]
    Never,
    /// Where it can be.
    Auto,
    /// For every address of media, or no start.
    Require,
}

/// How media ports are served.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawMediaSockets {
    /// One for all where that can be.
    #[default]
    Auto,
    /// One for all, or no start.
    One,
    /// One for each.
    PerPort,
}

impl Default for RawMedia {
    fn default() -> Self {
        RawMedia {
            anchor: RawMediaAnchor::Here,
            node_check_ms: 250,
            node_check: None,
            node_timeout_ms: 600,
            node_failure: NodeFailure::Reanchor,
            node_failure_rate: 2500,
            node_keep: 60,
            timeout: 60,
            hold_timeout: 1800,
            dscp: 46,
            gather: 0,
            sockets: RawMediaSockets::Auto,
            kernel: RawWanted::Never,
            af_xdp: RawWanted::Never,
        }
    }
}

/// SIP behaviour that is the same everywhere.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawSip {
    /// What Server and User-Agent say.
    pub agent: String,
    /// Differentiated services code point of signalling (24 is class selector 3).
    #[schemars(range(max = 63))]
    pub dscp: u8,
    /// Seconds that a call may ring before it is given up.
    #[schemars(range(min = 5, max = 3600))]
    pub ring_timeout: u32,
    /// Longest batching delay of signalling in milliseconds: messages that arrive within it are processed together, at less cost for
    /// each. The delay is nothing while signalling keeps a thread busy for less than a fifth of the time, and grows to all of
    /// this at two fifths. The price: a message waits up to this on each pass through the border; more than 1 also makes bursts that the
    /// receive buffers of peers may lose. 0: never.
    #[schemars(range(max = 50))]
    pub coalesce: u32,
    /// Whether messages of one length to one peer may leave as one train (UDP segmentation offload), which costs less than
    /// half. The peer sees single datagrams; a capture on the loopback interface sees the train.
    pub trains: bool,
    /// Bytes of signalling that leave at once to one peer (address and port) over UDP. What exceeds them follows at twice the average
    /// rate of that peer, at least at 12 MB/s, so that a backlog does not overflow a receive buffer of 64 KiB. The price of more: peers with
    /// small receive buffers lose messages and retransmit. 0: no bound.
    #[schemars(range(max = 1_048_576))]
    pub burst_bytes: u32,
    /// Milliseconds that a datagram may lie in the socket before the border counts as overloaded: then new calls and
    /// registrations that have lain for nine tenths of it are refused at once with 503, and calls that stand keep their turn. It has
    /// to be well above `coalesce`. 0: never. Where it is left out: 25, or three times `coalesce` where that is more.
    #[schemars(range(max = 10_000))]
    pub queue: Option<u32>,
    /// Threads that signalling and its media are divided among, each pinned to a processor where there is one for each. A call
    /// belongs to one of them, whichever way its messages come; registrations, rates, trunk states and the limit of calls
    /// are in common; media ports, the limits of connections and transactions, memory and processor time are divided evenly. A conference
    /// is wholly one worker's, that of SipHash-1-3 of the called number under a key of zeros, modulo `workers`. 1: one thread, as without this.
    #[schemars(range(min = 1, max = 64))]
    pub workers: u8,
    /// New calls that are refused for 100 that are taken, in a flood of datagrams that lasts: refusals cost processor time,
    /// too. In the first moments, and wherever there is time for them, there may be more. What comes beyond is dropped unread (requests inside of calls, calls for help and all but INVITE never
    /// are), and refused when it is sent again later. 0: every refusal is said.
    #[schemars(range(max = 10_000))]
    pub refusals: u32,
    /// Whether neighbours who ask for it (`oc` in the Via, RFC 7339) are told which share of new requests to hold back.
    pub feedback: bool,
}

impl Default for RawSip {
    fn default() -> Self {
        RawSip {
            agent: "Hornwork".to_owned(),
            dscp: 24,
            ring_timeout: 180,
            coalesce: 1,
            trains: true,
            burst_bytes: 16_384,
            queue: None,
            workers: 1,
            refusals: 5,
            feedback: true,
        }
    }
}

/// Session timers (RFC 4028).
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawSessionTimer {
    /// Session-Expires that we ask for where a side asks for none; seconds. 0: we ask for none; what others ask for is
    /// kept in any case.
    #[schemars(range(max = 86400))]
    pub expires: u32,
    /// Min-SE where `expires` is set: shorter wishes are answered with 422; seconds.
    #[schemars(range(min = 90, max = 86400))]
    pub min: u32,
}

impl Default for RawSessionTimer {
    fn default() -> Self {
        RawSessionTimer {
            expires: 0,
            min: 90,
        }
    }
}

/// Capacities.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLimits {
    /// Calls at a time.
    #[schemars(range(min = 1))]
    pub calls: u32,
    /// SIP transactions at a time, those that linger included.
    #[schemars(range(min = 1))]
    pub transactions: u32,
    /// Registered contacts.
    #[schemars(range(min = 1))]
    pub registrations: u32,
    /// Stream connections.
    #[schemars(range(min = 1))]
    pub connections: u32,
    /// Stream connections from one source address.
    #[schemars(range(min = 1))]
    pub connections_per_source: u32,
    /// Seconds that a stream connection stands without a whole message or a keep-alive.
    #[schemars(range(min = 60, max = 86400))]
    pub connection_idle: u32,
    /// Seconds that the handshakes of a connection (TLS, WebSocket) may take together.
    #[schemars(range(min = 1, max = 60))]
    pub handshake: u32,
    /// Bytes that may wait for a peer that reads slowly; with more its connection is closed.
    #[schemars(range(min = 65536, max = 67108864))]
    pub connection_queue: u32,
    /// Bytes of one SIP message.
    #[schemars(range(min = 2048, max = 65535))]
    pub message_bytes: u32,
    /// Memory for calls and registrations, MiB: a call takes 8 KiB, 40 more where its media is anchored, 16 for each side with TLS, 4 with WebSocket,
    /// 4 with SRTP (AES-GCM 6, DTLS 20 more), 64 where it is transcoded, 160 to 200 in a conference, a registration 1. Calls beyond are refused. 0: 60 % of the machine's, or of its control group's.
    #[schemars(range(max = 16_777_216))]
    pub memory: u32,
    /// Processor time for calls that stand, percent of one core: anchored media takes 0.05 for each call (0.009 where the kernel relays it, 0.03 by AF_XDP), each side with SRTP 0.01 (AES-GCM 0.006), transcoding 0.02 (G.711) to 1.2 (Opus) for each
    /// side, a conference 0.15 to 0.55, a TLS handshake 0.09 and a DTLS handshake 0.11 for a second. Calls beyond are refused, and `admission_refused` tells what is taken by what. 0: 70 % of what the border can use.
    #[schemars(range(max = 100_000))]
    pub processor: u32,
    /// What calls are answered that fit into the machine no more: 503 (with Retry-After), 486 and the like. Calls for help
    /// (urn:service:sos) always fit.
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
            connection_idle: number(limits.connection_idle.as_secs() as usize),
            handshake: number(limits.handshake.as_secs() as usize),
            connection_queue: number(limits.connection_queue),
            message_bytes: number(limits.message_bytes),
            memory: 0,
            processor: 0,
            status: 503,
        }
    }
}

/// Name servers.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDns {
    /// `ADDRESS[:PORT]` of name servers, in order. Empty: those of /etc/resolv.conf.
    pub servers: Vec<String>,
}

/// Stopping in order.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDrain {
    /// After SIGTERM no new calls are taken; those that are still up after this many seconds are ended,
    /// and their peers have two more to answer that. A second SIGTERM does the same at once.
    #[schemars(range(max = 86400))]
    pub timeout: u32,
}

impl Default for RawDrain {
    fn default() -> Self {
        RawDrain { timeout: 300 }
    }
}

/// Levels of logging.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawLevel {
    /// What does not work.
    Error,
    /// What may not work.
    Warn,
    /// Calls, registrations, trunks.
    #[default]
    Info,
    /// Each refused request too.
    Debug,
    /// Everything.
    Trace,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// What is logged.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLog {
    /// How much.
    pub level: RawLevel,
    /// `text` or `json`.
    pub format: RawFormat,
}
