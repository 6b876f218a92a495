//! `[[interface]]`: listeners, access and media addresses.

use super::address::{self, Cidr, HostName, ListenAddress};
use super::codecs::{self, TranscodeWhen, Transcoding};
use super::headers;
use super::media_addresses::{MediaAddress, MediaRange, RawMediaAddress, media_addresses};
use super::names::TrunkId;
use super::one_or_many::OneOrMany;
use super::rate_limits::RateLimits;
use super::security::{Ice, Keying, MediaSecurity, SrtpPolicy, Written, media_security};
use super::sink::{Sink, cidrs, host};
use super::tls::{self, ListenTls, RawListenTls, RawWebSocket, WebSocket};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The network behind an interface.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceKind {
    /// Phones and foreign networks: asserted identities are not believed.
    #[default]
    Access,
    /// Our own systems: asserted identities are believed.
    Core,
}

/// Authentication of requests.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Authenticate {
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
    pub kind: InterfaceKind,
    /// Whether asserted identities from this interface are believed, and asserted identities are sent to it (RFC 3325).
    /// Trunks have their own setting. Default: `true` for `core`, `false` for `access`.
    pub trusted: Option<bool>,
    /// Topology hiding in messages to this interface. `known`: unknown headers (`X-...`) are removed; hosts in
    /// Alert-Info, Call-Info, Error-Info, Reason, Referred-By, Reply-To, Refer-To and contacts of redirects are removed
    /// or replaced by ours; the SDP lines `s=`, `i=`, `u=`, `e=`, `p=` and `a=tool` are replaced or removed, and
    /// unknown SDP attributes are removed; texts in Warning and reason phrases of responses become the standard ones.
    /// `all`: these headers and lines are passed unchanged. Default: `all` if `trusted`, otherwise `known`. The
    /// complete list is in docs/topology-hiding.md.
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
    /// response. Empty: all sources. Networks shorter than /8 (IPv4) or /16 (IPv6, except fc00::/7) do not restrict
    /// sources: `hornwork check` warns as if all were allowed.
    #[serde(default)]
    pub allow: OneOrMany<String>,
    /// `digest`: calls and registrations must authenticate as a configured `[[user]]`. `trunk`: the trunk of `register
    /// = "pass:TRUNK"` authenticates, and its challenges are forwarded; until a source is registered it reaches that
    /// trunk alone, except by routes with `unauthenticated`. `none`: no authentication; `hornwork check` warns of each
    /// trunk, phone and conference that is reachable without it.
    #[serde(default)]
    pub authenticate: Authenticate,
    /// Treatment of REGISTER: `local` (the embedded registrar), `pass:TRUNK` (forwarded to that trunk, with our Contact
    /// in place of the phone's) or `refuse` (403). Default: `local` with `authenticate = "digest"`, otherwise `refuse`.
    pub register: Option<String>,
    /// Destination of requests to a phone that is registered through this interface. `flow`: the address and port, or
    /// the connection, from which the phone registered, regardless of the host in its Contact. `address`: the address
    /// in its Contact, over UDP; this may be any address.
    #[serde(default)]
    pub contacts: RawContacts,
    /// Maximum rates of new calls and registrations. Requests above them are refused.
    #[serde(default)]
    pub rate_limits: RateLimits,
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
    pub srtp: Option<SrtpPolicy>,
    /// Keying methods, best first: `sdes` (keys in SDP, RFC 4568), `dtls` (DTLS-SRTP, RFC 5764). Default: `sdes`.
    #[serde(default)]
    pub srtp_keying: OneOrMany<Keying>,
    /// Crypto suites, best first, by their names in RFC 4568, 6188 and 7714. With DTLS: AEAD_AES_256_GCM,
    /// AEAD_AES_128_GCM and AES_CM_128_HMAC_SHA1_80, or the first one or two of these, because DTLS agrees on the first
    /// that the peer supports. Default: AEAD_AES_256_GCM, AEAD_AES_128_GCM, AES_256_CM_HMAC_SHA1_80,
    /// AES_CM_128_HMAC_SHA1_80, AES_CM_128_HMAC_SHA1_32.
    #[serde(default)]
    pub srtp_suites: OneOrMany<String>,
    /// ICE (RFC 8445). `lite`: an ICE-lite agent with one candidate, our media address; browsers require ICE. `full`: a
    /// full agent with that candidate, which sends connectivity checks; for peers that are lite themselves, or to which
    /// the border is a client. `off`: candidates are removed from SDP. Default: `off`.
    pub ice: Option<Ice>,
    /// Codecs that the border offers to this interface by transcoding, best first: `PCMA`, `PCMU`, `G722`, `G729`,
    /// `opus`. Audio in these codecs is transcoded if the other side of the call supports none of them. Requires
    /// anchored media. Default: none.
    #[serde(default)]
    pub transcode: OneOrMany<String>,
    /// `needed`: the codecs of `transcode` are offered after those of the other side of the call, so that a common
    /// codec is preferred. `always`: only the codecs of `transcode` are offered. Default: `needed`.
    pub transcode_when: Option<TranscodeWhen>,
    /// Certificates. Required with `tls:` or `wss:`.
    pub tls: Option<RawListenTls>,
    /// Checks of WebSocket handshakes.
    pub websocket: Option<RawWebSocket>,
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
    /// The hint about a border behind NAT whose public address is in Via and Contact, but not in session descriptions,
    /// or the other way round.
    pub(super) fn half_advertised(&self) -> Option<String> {
        let name = &self.name;
        let public = |ip: &IpAddr| !is_private(*ip);
        let host = self.advertise.as_ref();
        let signalling = host.and_then(HostName::ip).filter(public);
        let mut media = self.media.iter();
        if let Some(signalling) = signalling {
            let hidden = media.find(|media| {
                is_private(media.signalled()) && media.address.is_ipv4() == signalling.is_ipv4()
            })?;
            let address = hidden.signalled();
            return Some(format!(
                "interface {name}: Contact has {signalling}, but session descriptions have {address}, to which phones in other networks cannot send media; set `advertise` in `media` as well"
            ));
        }
        let media = media.filter_map(|media| media.advertise).find(public)?;
        let mut listens = self.listen.iter().map(|listen| listen.address.ip());
        let hidden = listens.find(|ip| is_private(*ip))?;
        host.is_none().then(|| {
            format!(
                "interface {name}: session descriptions have {media}, but Contact has {hidden}, to which phones in other networks cannot send requests; set `advertise` of the interface as well"
            )
        })
    }

    /// Whether requests from `source` are accepted.
    pub fn allows(&self, source: IpAddr) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|net| net.contains(source))
    }
}

pub(super) fn interface_of(
    interface: &RawInterface,
    index: usize,
    has_users: bool,
    ranges: &mut Vec<MediaRange>,
    placed: &mut Vec<String>,
    sink: &mut Sink<'_>,
) -> InterfaceSpec {
    let path = format!("interface[{index}]");
    let listen = listen(interface, &format!("{path}.listen"), sink);
    let advertise = interface
        .advertise
        .as_ref()
        .and_then(|text| host(text, &format!("{path}.advertise"), sink));
    if interface.advertise.is_none() && listen.iter().any(|l| l.address.ip().is_unspecified()) {
        sink.report(
            &format!("{path}.listen"),
            "the interface listens on all addresses, so that the address for Via and Contact is unknown",
            "add `advertise` with the address that peers reach, or listen on that address",
        );
    }
    let authenticate = interface.authenticate;
    if authenticate == Authenticate::Digest && !has_users {
        sink.report(
            &format!("{path}.authenticate"),
            "`authenticate` is \"digest\", but there is no user",
            "add a [[user]] with name and password, or set authenticate = \"none\"",
        );
    }
    let register = register(interface, &path, sink);
    let trusted = interface
        .trusted
        .unwrap_or(interface.kind == InterfaceKind::Core);
    if authenticate == Authenticate::Trunk && !matches!(register, Register::Pass(_)) {
        sink.report(
            &format!("{path}.authenticate"),
            "`authenticate` is \"trunk\", but registrations are not forwarded to a trunk",
            "set register = \"pass:TRUNK\", or authenticate = \"digest\"",
        );
    }
    InterfaceSpec {
        name: interface.name.clone(),
        kind: interface.kind,
        trusted,
        hides: match interface.headers {
            None => !trusted,
            Some(RawHeaders::Known) => true,
            Some(RawHeaders::All) => false,
        },
        pass_headers: pass_headers(interface, trusted, &path, sink),
        allow: cidrs(&interface.allow, &format!("{path}.allow"), sink),
        authenticate,
        rate_limits: interface.rate_limits,
        register,
        contacts_by_address: interface.contacts == RawContacts::Address,
        subscribe: interface.subscribe == RawPassing::Pass,
        refer: interface.refer == RawPassing::Pass,
        assert_registered: interface.assert == RawAssert::Registered,
        gate_early_media: interface.early_media == RawEarlyMedia::Gate,
        charging_vector: interface.charging_vector == RawCharging::Generate,
        media: media_addresses(&interface.media, &listen, &path, ranges, placed, sink),
        node_interface: interface.node_interface.clone(),
        tls: tls::listen_tls(interface.tls.as_ref(), &listen, &path, sink),
        security: media_security(
            &Written {
                srtp: interface.srtp,
                keying: &interface.srtp_keying,
                suites: &interface.srtp_suites,
                ice: interface.ice,
            },
            &Arc::default(),
            &path,
            sink,
        ),
        transcoding: codecs::transcoding(
            &interface.transcode,
            interface.transcode_when,
            &Arc::default(),
            &path,
            sink,
        ),
        websocket: tls::websocket(interface.websocket.as_ref(), &listen, &path, sink),
        listen,
        advertise,
    }
}

/// Names of headers that topology hiding passes unchanged.
fn pass_headers(
    interface: &RawInterface,
    trusted: bool,
    path: &str,
    sink: &mut Sink<'_>,
) -> Vec<Box<str>> {
    let known = match interface.headers {
        None => !trusted,
        Some(headers) => headers == RawHeaders::Known,
    };
    let names = &interface.pass_headers;
    if !known && !names.as_slice().is_empty() {
        sink.report(
            &format!("{path}.pass_headers"),
            "`pass_headers` has no effect: `headers` is \"all\"",
            "set headers = \"known\", or remove `pass_headers`",
        );
    }
    for (index, name) in names.as_slice().iter().enumerate() {
        let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(byte);
        let problem = match name.as_bytes() {
            [] => Some("is not a header name"),
            name if !name.iter().all(token) => Some("is not a header name"),
            name if !headers::may_be_listed(name) => {
                Some("is written by the border itself, or subject to the trust domain")
            }
            _ => None,
        };
        if let Some(problem) = problem {
            sink.report(
                &names.path(&format!("{path}.pass_headers"), index),
                format!("\"{name}\" {problem}"),
                "write names such as \"X-Account\"; docs/topology-hiding.md lists the other headers",
            );
        }
    }
    names
        .as_slice()
        .iter()
        .map(|name| name.as_str().into())
        .collect()
}

fn listen(interface: &RawInterface, path: &str, sink: &mut Sink<'_>) -> Vec<ListenAddress> {
    let mut listen = Vec::new();
    if interface.listen.as_slice().is_empty() {
        sink.report(
            path,
            "`listen` is empty",
            "add for example \"udp:192.0.2.1:5060\"",
        );
    }
    for (index, text) in interface.listen.as_slice().iter().enumerate() {
        let at = interface.listen.path(path, index);
        let (transport, rest) = match address::split_transport(text) {
            Ok((Some(transport), rest)) => (transport, rest),
            Ok((None, _)) => {
                sink.report(
                    &at,
                    format!("\"{text}\" has no transport"),
                    format!("write \"udp:{text}\" or \"tcp:{text}\""),
                );
                continue;
            }
            Err(why) => {
                sink.report(&at, why, "write udp:, tcp:, tls:, ws: or wss:");
                continue;
            }
        };
        let parsed = HostName::parse(rest);
        match parsed
            .as_ref()
            .and_then(|host| Some((host.ip()?, host.port)))
        {
            Some((ip, port)) => {
                let port = port.unwrap_or(transport.default_port());
                let address = SocketAddr::new(ip, port);
                listen.push(ListenAddress { transport, address });
            }
            None if parsed.is_some() => sink.report(
                &at,
                format!("\"{rest}\" is a name; interfaces listen on IP addresses"),
                "write the address in `listen` and the name in `advertise`",
            ),
            None => sink.report(
                &at,
                format!("\"{rest}\" is not an address and port"),
                "write udp:ADDRESS:PORT with a port from 1 to 65535, IPv6 as udp:[ADDRESS]:PORT",
            ),
        }
    }
    listen
}

fn register(interface: &RawInterface, path: &str, sink: &mut Sink<'_>) -> Register {
    let at = format!("{path}.register");
    match interface.register.as_deref() {
        // A registrar without authentication has to be configured explicitly.
        None if interface.authenticate == Authenticate::Digest => Register::Local,
        None => Register::Refuse,
        Some("local") => Register::Local,
        Some("refuse") => Register::Refuse,
        Some(text) => match text.strip_prefix("pass:") {
            Some(name) => Register::Pass(sink.trunk_id(name, &at)),
            None => {
                let remedy = "write \"local\", \"pass:TRUNK\" or \"refuse\"";
                sink.report(
                    &at,
                    format!("\"{text}\" is not a value of `register`"),
                    remedy,
                );
                Register::Refuse
            }
        },
    }
}

/// Whether other networks cannot reach an address (RFC 1918, RFC 3927, RFC 4193, RFC 4291).
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}
