//! `[[trunk]]`: targets, credentials and registration of a trunk.

use super::address::{self, Cidr, HostName, ListenAddress};
use super::codecs::{self, TranscodeWhen, Transcoding};
use super::interfaces::InterfaceSpec;
use super::names::InterfaceId;
use super::one_or_many::OneOrMany;
use super::rate_limits::RateLimits;
use super::security::{Ice, Keying, MediaSecurity, SrtpPolicy, Written, media_security};
use super::sink::{Sink, cidrs, host, optional_seconds, seconds};
use super::tls::{self, ClientAuthentication, RawTrunkTls, TrunkTls};
use core::time::Duration;
use engine::Transport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;

/// A target of a trunk, with priority and weight.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTargetTable {
    /// `[udp:|tcp:|tls:]HOST[:PORT]`. A name without port is resolved by NAPTR and SRV records (RFC 3263), for the
    /// transports that the interface of the trunk listens on.
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
    /// Networks from which requests of the trunk come, in addition to its targets. These requests need no
    /// authentication; `hornwork check` warns of networks shorter than /8 (IPv4) or /16 (IPv6, except fc00::/7). Of
    /// several trunks the one with a target at the address counts, otherwise the one with the longest prefix. The
    /// addresses of a target with a name belong to the trunk for a day after each lookup, the first of which is at the
    /// first ping, registration or call: where the trunk may call before, write its networks here. On interfaces of
    /// phones (`kind = "access"`) requests over UDP must come from the port of the target too.
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
    /// Failed pings in a row after which a target counts as down. Calls without any response count as failed pings,
    /// until a call gets one, even if it is a refusal.
    #[serde(default = "default_ping_failures")]
    #[schemars(range(min = 1, max = 100))]
    pub ping_failures: u32,
    /// Maximum number of simultaneous calls in both directions. Further calls to the trunk go to the next trunk of the
    /// route; calls from it, except emergency calls, are refused with 503. Default: unlimited.
    #[schemars(range(min = 1))]
    pub max_calls: Option<u32>,
    /// Maximum number of new calls to the trunk in any second, as agreed with a carrier. Further ones go to the next
    /// trunk of the route, or are refused with 503. Emergency calls are not limited. INVITEs of transfers, and those
    /// to further targets of the trunk, count. Default: unlimited.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_calls_per_s: Option<u32>,
    /// Overload control towards the targets of the trunk by loss (RFC 7339) or rate (RFC 7415): new requests ask for
    /// the capacity of the target, and the border sends no more than reported. Requests that may not be sent go to the
    /// next target or trunk, or are refused with 503.
    #[serde(default)]
    pub overload_control: bool,
    /// Maximum rates of new calls and registrations from the trunk. Requests above them are refused.
    #[serde(default)]
    pub rate_limits: RateLimits,
    /// Seconds to wait for the first response to an INVITE, or to a MESSAGE, SUBSCRIBE or other request that is
    /// forwarded outside of calls, before the next target is tried.
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
    pub identity: IdentityPassing,
    /// User part of From in calls to the trunk. Default: that of the caller. Calls with the number withheld (From with
    /// the host `anonymous.invalid` or the user `anonymous`, RFC 3323) stay anonymous.
    pub from_user: Option<String>,
    /// Treatment of REFER from the trunk: `pass` to the other side, or `act`: the border transfers the call itself. A
    /// target at the domain or a target host of the trunk is called there with the URI of Refer-To, without routes.
    #[serde(default)]
    pub refer: Refer,
    /// Treatment of 3xx responses from the trunk: `pass` to the caller, or `follow` the contacts. They are called one
    /// after the other in the order of their preference, until one answers or refuses with 600 or above. Contacts at
    /// other hosts than the targets and the domain of the trunk get neither its credentials nor asserted identities.
    /// Contacts at an address of the border are routed like calls from the trunk. Headers in the URI of a contact are
    /// ignored.
    #[serde(default)]
    pub redirect: Redirect,
    /// SRTP policy for calls from and to the trunk: `pass`, `refuse`, `prefer` or `require`. Default for this key and
    /// the next three: the setting of the interface.
    pub srtp: Option<SrtpPolicy>,
    /// Keying methods, best first: `sdes` (keys in SDP, RFC 4568), `dtls` (DTLS-SRTP, RFC 5764).
    #[serde(default)]
    pub srtp_keying: OneOrMany<Keying>,
    /// Crypto suites, best first, by their names in RFC 4568, 6188 and 7714. With DTLS: AEAD_AES_256_GCM,
    /// AEAD_AES_128_GCM and AES_CM_128_HMAC_SHA1_80, or the first one or two of these, because DTLS agrees on the first
    /// that the peer supports.
    #[serde(default)]
    pub srtp_suites: OneOrMany<String>,
    /// ICE (RFC 8445). `lite`: an ICE-lite agent with one candidate, our media address; browsers require ICE. `full`: a
    /// full agent with that candidate, which sends connectivity checks; for peers that are lite themselves, or to which
    /// the border is a client. `off`: candidates are removed from SDP.
    pub ice: Option<Ice>,
    /// Codecs that the border offers to the trunk by transcoding, best first: `PCMA`, `PCMU`, `G722`, `G729`, `opus`.
    /// Audio in these codecs is transcoded if the other side of the call supports none of them. Requires anchored
    /// media. Default: the setting of the interface.
    #[serde(default)]
    pub transcode: OneOrMany<String>,
    /// `needed`: the codecs of `transcode` are offered after those of the other side of the call, so that a common
    /// codec is preferred. `always`: only the codecs of `transcode` are offered. Default: the setting of the interface.
    pub transcode_when: Option<TranscodeWhen>,
    /// TLS towards the trunk. Default: certificates of the system's certificate authorities are accepted.
    pub tls: Option<RawTrunkTls>,
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

/// An account of ours at a carrier. Its Service-Route (RFC 3608) becomes the Route of requests to the target that gave
/// it.
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
    pub keep_alive: KeepAlive,
}

fn default_carrier_expires() -> u32 {
    600
}

/// Treatment of asserted identities in messages to a trunk.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum IdentityPassing {
    /// They are passed if they come from a trusted side.
    #[default]
    Pass,
    /// They are removed.
    Remove,
}

/// Treatment of REFER.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Refer {
    /// It is passed to the other side.
    #[default]
    Pass,
    /// The border transfers the call itself.
    Act,
}

/// Treatment of redirects.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Redirect {
    /// They are passed to the caller.
    #[default]
    Pass,
    /// The border calls the contacts of the redirect.
    Follow,
}

/// Use of keep-alives on the flow of a registration.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum KeepAlive {
    /// If the carrier supports them.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
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
    /// Maximum number of calls to it in any second.
    pub max_calls_per_s: Option<u32>,
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

    /// How exactly a source is one of this trunk; `None`: it is not. The certificate and the address of a target are
    /// closer than each network.
    pub(super) fn closeness(
        &self,
        source: SocketAddr,
        transport: Transport,
        proven: Option<&[String]>,
    ) -> Option<u8> {
        if let (Some(proven), names @ [_, ..]) = (proven, self.client_names()) {
            let is_named = proven.iter().any(|name| names.contains(name));
            return is_named.then_some(u8::MAX);
        }
        let is_target = self.targets.iter().any(|target| {
            target.address(transport).is_some_and(|address| {
                address.ip() == source.ip()
                    && (transport.is_reliable() || address.port() == source.port())
            })
        });
        if is_target {
            return Some(u8::MAX);
        }
        let networks = self.sources.iter();
        let networks = networks.filter(|network| network.contains(source.ip()));
        networks.map(Cidr::bits).max()
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
        let port = self.host.port.unwrap_or(transport.default_port());
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

pub(super) fn trunk_of(
    trunk: &RawTrunk,
    index: usize,
    interfaces: &[InterfaceSpec],
    sink: &mut Sink<'_>,
) -> Trunk {
    let path = format!("trunk[{index}]");
    let interface = match (&trunk.interface, sink.names.interfaces.len()) {
        (Some(name), _) => sink.interface_id(name, &format!("{path}.interface")),
        (None, 0 | 1) => InterfaceId(0),
        (None, _) => {
            let last = sink.names.interfaces.last().cloned().unwrap_or_default();
            sink.report(
                &path,
                format!(
                    "trunk \"{}\" has no `interface`, and there are several interfaces",
                    trunk.name
                ),
                format!("add interface = \"{last}\""),
            );
            InterfaceId(0)
        }
    };
    let listen = interfaces
        .get(usize::from(interface.0))
        .map_or(&[][..], |interface| interface.listen.as_slice());
    let targets = targets(trunk, &path, listen, sink);
    let secure = |target: &TargetSpec| match target.transport {
        Some(transport) => transport == Transport::Tls,
        // A resolved target may use TLS if the interface supports it.
        None => {
            target.host.ip().is_none()
                && listen
                    .iter()
                    .any(|listen| listen.transport == Transport::Tls)
        }
    };
    let secure = targets.iter().any(secure);
    let tls = tls::trunk_tls(trunk.tls.as_ref(), secure, &path, sink);
    let domain = trunk
        .domain
        .as_ref()
        .and_then(|text| host(text, &format!("{path}.domain"), sink));
    if let Some(user) = &trunk.from_user
        && (user.is_empty()
            || user
                .bytes()
                .any(|b| b <= b' ' || b >= 0x7f || b"<>@\"".contains(&b)))
    {
        sink.report(
            &format!("{path}.from_user"),
            format!("\"{user}\" cannot be the user part of a SIP address"),
            "write a number or a name in ASCII",
        );
    }
    let register = trunk
        .register
        .as_ref()
        .and_then(|account| carrier(trunk, account, &domain, &targets, &path, sink));
    let inherited = interfaces
        .get(usize::from(interface.0))
        .map(|interface| interface.security.clone())
        .unwrap_or_default();
    let inherited_codecs = interfaces
        .get(usize::from(interface.0))
        .map(|interface| interface.transcoding.clone())
        .unwrap_or_default();
    let written = Written {
        srtp: trunk.srtp,
        keying: &trunk.srtp_keying,
        suites: &trunk.srtp_suites,
        ice: trunk.ice,
    };
    Trunk {
        security: media_security(&written, &inherited, &path, sink),
        transcoding: codecs::transcoding(
            &trunk.transcode,
            trunk.transcode_when,
            &inherited_codecs,
            &path,
            sink,
        ),
        name: trunk.name.clone(),
        interface,
        sources: cidrs(&trunk.sources, &format!("{path}.sources"), sink),
        credentials: credentials(trunk, &path, sink),
        register,
        targets,
        domain,
        ping_interval: optional_seconds(trunk.ping_interval_s),
        ping_failures: trunk.ping_failures,
        max_calls: trunk.max_calls,
        max_calls_per_s: trunk.max_calls_per_s,
        overload_control: trunk.overload_control,
        rate_limits: trunk.rate_limits,
        answer_timeout: seconds(trunk.answer_timeout_s),
        trusted: trunk.trusted,
        identity: trunk.identity,
        from_user: trunk.from_user.clone(),
        refer: trunk.refer,
        redirect: trunk.redirect,
        tls,
    }
}

fn targets(
    trunk: &RawTrunk,
    path: &str,
    listen: &[ListenAddress],
    sink: &mut Sink<'_>,
) -> Vec<TargetSpec> {
    let base = format!("{path}.target");
    let mut targets = Vec::new();
    if trunk.target.as_slice().is_empty() {
        sink.report(
            &base,
            "`target` is empty",
            "add for example \"udp:192.0.2.1:5060\"",
        );
    }
    for (index, target) in trunk.target.as_slice().iter().enumerate() {
        let mut at = trunk.target.path(&base, index);
        let (text, priority, weight) = match target {
            RawTarget::Short(text) => (text, 0, 1),
            RawTarget::Full(table) => {
                at.push_str(".address");
                (&table.address, table.priority, table.weight)
            }
        };
        let (transport, rest) = match address::split_transport(text) {
            Ok(parts) => parts,
            Err(why) => {
                sink.report(&at, why, "write udp:, tcp: or tls:");
                continue;
            }
        };
        if matches!(transport, Some(Transport::Ws | Transport::Wss)) {
            sink.report(
                &at,
                "a border does not open WebSocket connections",
                "write udp:, tcp: or tls:",
            );
            continue;
        }
        let Some(host) = host(rest, &at, sink) else {
            continue;
        };
        check_target(&host, transport, listen, &at, sink);
        targets.push(TargetSpec {
            host,
            transport,
            priority,
            weight,
        });
    }
    targets
}

/// A target must be reachable from its interface, and must not be the border itself.
fn check_target(
    host: &HostName,
    transport: Option<Transport>,
    listen: &[ListenAddress],
    at: &str,
    sink: &mut Sink<'_>,
) {
    let wanted = transport.unwrap_or(Transport::Udp);
    let usable: Vec<&ListenAddress> = listen
        .iter()
        .filter(|listen| listen.transport == wanted)
        .collect();
    if !listen.is_empty() && usable.is_empty() && (transport.is_some() || host.ip().is_some()) {
        sink.report(
            at,
            format!("the trunk's interface has no {wanted} listener"),
            format!("add \"{wanted}:ADDRESS:PORT\" to `listen` of the interface, or change the transport"),
        );
        return;
    }
    let Some(ip) = host.ip() else {
        return;
    };
    if !usable.is_empty()
        && !usable
            .iter()
            .any(|listen| listen.address.is_ipv4() == ip.is_ipv4())
    {
        sink.report(
            at,
            format!("{ip} and the addresses of its interface are of different address families"),
            "add an address of that family to `listen` of the interface",
        );
    }
    let own = SocketAddr::new(ip, host.port.unwrap_or(wanted.default_port()));
    if usable.iter().any(|listen| listen.address == own) {
        sink.report(
            at,
            format!("{own} is an address of this border, so that calls would loop"),
            "write the address of the other system",
        );
    }
}

fn credentials(trunk: &RawTrunk, path: &str, sink: &mut Sink<'_>) -> Option<TrunkCredentials> {
    match (&trunk.username, &trunk.password) {
        (Some(username), Some(password)) => Some(TrunkCredentials {
            username: username.clone(),
            password: password.clone(),
        }),
        (None, None) => None,
        (Some(_), None) => {
            sink.report(
                &format!("{path}.username"),
                "`username` without `password`",
                "add `password`",
            );
            None
        }
        (None, Some(_)) => {
            sink.report(
                &format!("{path}.password"),
                "`password` without `username`",
                "add `username`",
            );
            None
        }
    }
}

fn carrier(
    trunk: &RawTrunk,
    account: &RawCarrier,
    domain: &Option<HostName>,
    targets: &[TargetSpec],
    path: &str,
    sink: &mut Sink<'_>,
) -> Option<CarrierAccount> {
    let at = format!("{path}.register");
    let Some(user) = account.user.clone().or_else(|| trunk.username.clone()) else {
        sink.report(
            &at,
            "the user to register is unknown",
            "add `user` here, or `username` and `password` to the trunk",
        );
        return None;
    };
    let domain = match &account.domain {
        Some(text) => host(text, &format!("{at}.domain"), sink)?,
        None => match domain {
            Some(domain) => domain.clone(),
            None => targets.first()?.host.clone(),
        },
    };
    Some(CarrierAccount {
        contact_user: account.contact_user.clone().unwrap_or_else(|| user.clone()),
        user,
        domain,
        expires: seconds(account.expires_s),
        keep_alive: account.keep_alive,
    })
}

/// Trunks that are identified by certificates: their interfaces must request certificates, and each name must belong to
/// one trunk.
pub(super) fn known_by_certificate(
    interfaces: &[InterfaceSpec],
    trunks: &[Trunk],
    sink: &mut Sink<'_>,
) {
    for (index, trunk) in trunks.iter().enumerate() {
        let names = trunk.tls.as_ref().map_or(&[][..], |tls| &tls.client_names);
        if names.is_empty() {
            continue;
        }
        let at = format!("trunk[{index}].tls.client_names");
        let interface = interfaces.get(usize::from(trunk.interface.0));
        let asks = interface
            .and_then(|interface| interface.tls.as_ref())
            .is_some_and(|tls| tls.clients != ClientAuthentication::None);
        let listens = interface.is_some_and(|interface| {
            let mut listen = interface.listen.iter();
            listen.any(|listen| listen.transport == Transport::Tls)
        });
        if !(asks && listens) {
            let name = interface.map_or("", |interface| interface.name.as_str());
            sink.report(
                &at,
                format!("interface \"{name}\" does not request client certificates"),
                "add a tls: listener, and clients = \"request\" and client_ca in its `tls`",
            );
        }
        let same = |other: &&Trunk| {
            let others = other.tls.as_ref().map_or(&[][..], |tls| &tls.client_names);
            other.interface == trunk.interface && others.iter().any(|name| names.contains(name))
        };
        if let Some(other) = trunks.iter().take(index).find(same) {
            sink.report(
                &at,
                format!("trunk \"{}\" has the same client name", other.name),
                "give each trunk its own client names",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn user_of_from_has_characters_of_a_sip_address() {
        let with = |user: &str| {
            let text = format!(
                "[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1\"\n[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\nfrom_user=\"{user}\"\n"
            );
            parse(&text, "f").map_err(|mistakes| mistakes[0].to_string())
        };
        assert!(with("+4312345").is_ok() && with("office").is_ok());
        for user in ["", "a b", "a@b", "M\u{fc}ller"] {
            let why = with(user).unwrap_err();
            assert!(
                why.starts_with("f:7:") && why.contains("cannot be the user part"),
                "{why}"
            );
        }
    }
}
