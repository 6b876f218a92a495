//! `[gateway]`: the IPsec gateway for the traffic of this machine and of the networks behind it.

use super::address::Cidr;
use super::data_path::{DataPath, GatewayMedia, check_data_path};
use super::ike::{IkeSpec, IkeTunnelSpec, RawTunnelIke};
use super::one_or_many::OneOrMany;
use super::sink::{Sink, one_line, optional_seconds, seconds};
use super::tls::{CertificateFiles, FilePath};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use protect::esp::{
    AddressPrefix, EspCarrier, SaLifetime, SelectorLimits, SelectorPorts, TrafficSelector,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use wire::esp::NAT_TRAVERSAL_PORT;

/// Default of `rekey_delay_s`.
const REKEY_DELAY_S: u32 = 30;
/// Longest name of a network interface (IFNAMSIZ without the final zero), bytes.
const LONGEST_DEVICE: usize = 15;

/// The IPsec gateway: ESP tunnels for traffic that this machine routes to a TUN device. Off if the table is absent.
/// Keys are read again at SIGHUP, everything else takes effect at the next start. docs/how-to/ipsec-gateway.md has the
/// set-up.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawGateway {
    /// Name of the TUN device, of up to 15 bytes. It is created if it does not exist, which needs CAP_NET_ADMIN.
    #[serde(default = "device")]
    pub device: String,
    /// Outer address of this machine: `ADDRESS`, or `ADDRESS:PORT` if the UDP port is not 4500.
    pub local: String,
    /// Carrier of ESP packets; both ends need the same.
    #[serde(default)]
    pub encapsulation: Encapsulation,
    /// Place where packets are sealed and opened.
    #[serde(default)]
    pub data_path: DataPath,
    /// Path of this border's own media of calls in tunnels.
    #[serde(default)]
    pub media: GatewayMedia,
    /// Key file: lines of Wireshark's `esp_sa` table (docs/esp.md), one for each direction of each tunnel. Only its
    /// owner may have access to it. Of several lines that send to a peer the last one is used; all that receive are.
    /// Required without `[gateway.ike]`.
    pub key_file: Option<String>,
    /// File with the used sequence numbers, which must outlast the keys. Default: `gateway.numbers` in the state
    /// directory of the service (STATE_DIRECTORY), otherwise `KEY_FILE.numbers`.
    pub numbers_file: Option<String>,
    /// Key exchange by IKEv2, in the place of a key file.
    pub ike: Option<super::ike::RawIke>,
    /// Allows algorithms that must not be used any more (RFC 8221), and NULL encryption.
    #[serde(default)]
    pub allow_weak: bool,
    /// MTU of the TUN device, bytes.
    #[serde(default = "mtu")]
    #[schemars(range(min = 1_280, max = 9_000))]
    pub mtu: u32,
    /// Adds routes through the TUN device to the remote networks of all tunnels, which needs CAP_NET_ADMIN. They
    /// disappear with the device.
    #[serde(default = "yes")]
    pub routes: bool,
    /// Source address of this machine's own packets on these routes: one of this machine in a local network. One for
    /// each address family.
    #[serde(default)]
    pub route_source: OneOrMany<String>,
    /// The bit Don't Fragment of outer headers.
    #[serde(default)]
    pub dont_fragment: DontFragment,
    /// DSCP of outer headers; copied from the inner header if absent (RFC 6040).
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
    /// Replay window, packets.
    #[serde(default = "window")]
    #[schemars(range(min = 64, max = 4_096))]
    pub replay_window: u16,
    /// Seconds after which an association refuses packets; at nine tenths `gateway_rekey_due` is logged. 0: no limit.
    #[serde(default)]
    pub lifetime_s: u32,
    /// Payload bytes after which an association refuses packets; at nine tenths `gateway_rekey_due` is logged. 0: no
    /// limit.
    #[serde(default)]
    pub lifetime_bytes: u64,
    /// Seconds after a reload until new keys seal, if the peer does not use its new ones before. Both ends must reload
    /// within this time. Default: 30.
    #[schemars(range(max = 3_600))]
    pub rekey_delay_s: Option<u32>,
    /// Seconds for which keys that are no longer in the file open packets.
    #[serde(default = "rekey_grace")]
    #[schemars(range(max = 86_400))]
    pub rekey_grace_s: u32,
    /// Seconds without a packet to a peer after which a NAT keep-alive is sent, with encapsulation in UDP (RFC 3948).
    /// 0: none.
    #[serde(default = "keep_alive")]
    #[schemars(range(max = 3_600))]
    pub keep_alive_s: u32,
    /// Seconds between two `gateway_statistics` in the log. 0: only at the end.
    #[serde(default = "statistics")]
    #[schemars(range(max = 86_400))]
    pub statistics_s: u32,
    /// Tunnels.
    #[serde(default)]
    pub tunnel: Vec<RawTunnel>,
}

/// A tunnel to a peer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTunnel {
    /// Name, for the log.
    pub name: String,
    /// Outer address of the peer: `ADDRESS`, or `ADDRESS:PORT` if its UDP port is not 4500. `any` with `[gateway.ike]`:
    /// the peer sets the tunnel up. With a key file, each peer has one tunnel.
    pub peer: String,
    /// The peer's address and port follow its newest authenticated packet, because a NAT may change them. UDP and
    /// algorithms with integrity only.
    #[serde(default)]
    pub peer_behind_nat: bool,
    /// Networks on this side. Packets with other inner addresses are dropped in both directions.
    pub local_networks: OneOrMany<String>,
    /// Networks behind the peer; the longest prefix that contains a destination selects the tunnel.
    pub remote_networks: OneOrMany<String>,
    /// Protocol of the packets in the tunnel (RFC 4301 section 4.4.1.1): `tcp`, `udp`, `sctp`, `dccp`, `udp-lite`,
    /// `icmp`, `icmpv6`, or a number. Other packets are dropped in both directions. Default: all.
    pub protocol: Option<String>,
    /// Ports on this side, for a protocol with ports: `"5060"`, `"10000-19999"`, or a list of these. Later fragments
    /// have no ports, and are dropped. Default: all.
    #[serde(default)]
    pub local_ports: OneOrMany<String>,
    /// Ports behind the peer, in the same form.
    #[serde(default)]
    pub remote_ports: OneOrMany<String>,
    /// Identity of the peer, with `[gateway.ike]`. Default: its address.
    pub remote_id: Option<String>,
    /// File with the secret that both ends share, one line, with `[gateway.ike]`. Only its owner may have access to it.
    /// Without it both ends have certificates.
    pub secret_file: Option<String>,
    /// This end sets the tunnel up, and again when it is lost, with `[gateway.ike]`. Default: true, unless the peer is
    /// `any`.
    pub initiate: Option<bool>,
}

/// Peer of any address.
pub(super) const ANY_PEER: &str = "any";

/// Carrier of ESP packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Encapsulation {
    /// UDP (RFC 3948), which passes NATs.
    #[default]
    Udp,
    /// IP protocol 50; needs CAP_NET_RAW.
    Ip,
}

/// The bit Don't Fragment of outer headers (RFC 4301 section 8.1).
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DontFragment {
    /// As in the inner header; senders learn the path MTU by ICMP.
    #[default]
    Copy,
    /// Never set: long packets are fragmented outside.
    Clear,
}

fn device() -> String {
    "esp0".to_owned()
}

fn yes() -> bool {
    true
}

fn mtu() -> u32 {
    1_400
}

fn window() -> u16 {
    1_024
}

fn rekey_grace() -> u32 {
    120
}

fn keep_alive() -> u32 {
    20
}

fn statistics() -> u32 {
    300
}

/// The IPsec gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewaySpec {
    /// Name of the TUN device.
    pub device: String,
    /// Outer address; the port only counts in UDP.
    pub local: SocketAddr,
    /// Carrier of ESP packets.
    pub carrier: EspCarrier,
    /// Place where packets are sealed and opened.
    pub data_path: DataPath,
    /// Path of media of calls in tunnels.
    pub media: GatewayMedia,
    /// Where the keys come from.
    pub keys: GatewayKeySource,
    /// File with the used sequence numbers.
    pub numbers_file: Option<PathBuf>,
    /// Allows weak algorithms.
    pub allow_weak: bool,
    /// MTU of the device, bytes.
    pub mtu: usize,
    /// Adds routes to the remote networks.
    pub routes: bool,
    /// Source addresses of those routes.
    pub route_sources: Vec<IpAddr>,
    /// The outer bit Don't Fragment is that of the inner header; otherwise it is not set.
    pub copies_dont_fragment: bool,
    /// DSCP of outer headers.
    pub dscp: Option<u8>,
    /// Replay window, packets.
    pub replay_window: usize,
    /// Bounds of each association.
    pub lifetime: SaLifetime,
    /// Longest delay until new keys seal.
    pub rekey_delay: Duration,
    /// Time for which removed keys open.
    pub rekey_grace: Duration,
    /// Interval of NAT keep-alives.
    pub keep_alive: Option<Duration>,
    /// Interval of statistics in the log.
    pub statistics: Option<Duration>,
    /// Tunnels, in the order of the file.
    pub tunnels: Vec<TunnelSpec>,
}

/// Where the keys of a gateway come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayKeySource {
    /// A file.
    File(FilePath),
    /// A key exchange.
    Ike(Box<IkeSpec>),
}

impl GatewaySpec {
    /// The place of the keys in the configuration, for mistakes in their files: that of the key file, or of the table
    /// of the key exchange.
    pub fn key_place(&self) -> &FilePath {
        match &self.keys {
            GatewayKeySource::File(file) => file,
            GatewayKeySource::Ike(ike) => &ike.place,
        }
    }

    /// The certificate of this end, where the key exchange has one.
    pub fn certificate(&self) -> Option<&CertificateFiles> {
        match &self.keys {
            GatewayKeySource::File(_) => None,
            GatewayKeySource::Ike(ike) => ike.certificate.as_ref().map(|(files, _)| files),
        }
    }
}

/// A tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSpec {
    /// Name.
    pub name: String,
    /// Outer address of the peer; any if absent.
    pub peer: Option<SocketAddr>,
    /// The address follows authenticated packets.
    pub peer_behind_nat: bool,
    /// Networks on this side.
    pub local_networks: Vec<AddressPrefix>,
    /// Networks behind the peer.
    pub remote_networks: Vec<AddressPrefix>,
    /// Key exchange; present if the gateway has one.
    pub ike: Option<IkeTunnelSpec>,
    /// Protocol and ports.
    pub limits: SelectorLimits,
    /// Packets that are sent into the tunnel; those of the other direction are reversed.
    pub selectors: Vec<TrafficSelector>,
}

/// `ADDRESS` or `ADDRESS:PORT`, a concrete address.
pub(super) fn outer_address(text: &str, path: &str, sink: &mut Sink<'_>) -> SocketAddr {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let parsed = match (bare.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
        (Ok(ip), _) => Some(SocketAddr::new(ip, NAT_TRAVERSAL_PORT)),
        (_, Ok(address)) => Some(address),
        _ => None,
    };
    let concrete = parsed.filter(|address| {
        !address.ip().is_unspecified() && !address.ip().is_multicast() && address.port() != 0
    });
    concrete.unwrap_or_else(|| {
        sink.report(
            path,
            format!("\"{text}\" is no address of a host"),
            "write ADDRESS or ADDRESS:PORT, for example \"192.0.2.1\" or \"[2001:db8::1]:4500\"",
        );
        SocketAddr::from(([0, 0, 0, 0], NAT_TRAVERSAL_PORT))
    })
}

fn networks(texts: &OneOrMany<String>, path: &str, sink: &mut Sink<'_>) -> Vec<AddressPrefix> {
    if texts.as_slice().is_empty() {
        sink.report(
            path,
            "there is no network",
            "write a network such as \"10.1.0.0/16\", or \"0.0.0.0/0\" for all addresses",
        );
    }
    optional_networks(texts, path, sink)
}

pub(super) fn optional_networks(
    texts: &OneOrMany<String>,
    path: &str,
    sink: &mut Sink<'_>,
) -> Vec<AddressPrefix> {
    let mut networks = Vec::new();
    for (index, text) in texts.as_slice().iter().enumerate() {
        match (Cidr::parse(text), text.parse::<AddressPrefix>()) {
            (Ok(_), Ok(network)) => networks.push(network),
            (Err(why), _) | (_, Err(why)) => sink.report(
                &texts.path(path, index),
                why,
                "write a network such as \"10.1.0.0/16\" or \"2001:db8::/32\"",
            ),
        }
    }
    networks
}

/// Protocols with ports, by name.
const PORT_PROTOCOLS: [(&str, u8); 5] = [
    ("tcp", 6),
    ("udp", 17),
    ("sctp", 132),
    ("dccp", 33),
    ("udp-lite", 136),
];
/// Other protocols with a name.
const OTHER_PROTOCOLS: [(&str, u8); 2] = [("icmp", 1), ("icmpv6", 58)];
/// Networks with ports on one side, at most: traffic selectors of a key exchange have a number of one byte (RFC 7296
/// section 3.13).
const MAX_SIDE: usize = 255;
/// Pairs of these, at most: each packet is compared with them.
const MAX_SELECTORS: usize = 1_024;

fn protocol(text: &str, path: &str, sink: &mut Sink<'_>) -> Option<u8> {
    let mut named = PORT_PROTOCOLS.iter().chain(&OTHER_PROTOCOLS);
    let number = match named.find(|(name, _)| *name == text) {
        Some((_, number)) => Some(*number),
        None => text.parse::<u8>().ok().filter(|number| *number != 0),
    };
    if number.is_none() {
        sink.report(
            path,
            format!("\"{text}\" is no protocol"),
            "write tcp, udp, sctp, dccp, udp-lite, icmp, icmpv6, or a number from 1 to 255",
        );
    }
    number
}

fn ports(texts: &OneOrMany<String>, path: &str, sink: &mut Sink<'_>) -> Vec<SelectorPorts> {
    let mut found = Vec::new();
    for (index, text) in texts.as_slice().iter().enumerate() {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let parsed = first
            .trim()
            .parse::<u16>()
            .ok()
            .zip(last.trim().parse::<u16>().ok());
        match parsed.filter(|(first, last)| *first != 0 && first <= last) {
            Some((first, last)) => found.push(SelectorPorts { first, last }),
            None => sink.report(
                &texts.path(path, index),
                format!("\"{text}\" is neither a port nor a range of ports"),
                "write a port such as \"5060\" or a range such as \"10000-19999\"",
            ),
        }
    }
    found
}

/// Protocol and ports of a tunnel.
fn limits(raw: &RawTunnel, at: usize, sink: &mut Sink<'_>) -> SelectorLimits {
    let path = |key: &str| format!("gateway.tunnel[{at}].{key}");
    let limits = SelectorLimits {
        protocol: raw
            .protocol
            .as_ref()
            .and_then(|text| protocol(text, &path("protocol"), sink)),
        local_ports: ports(&raw.local_ports, &path("local_ports"), sink),
        remote_ports: ports(&raw.remote_ports, &path("remote_ports"), sink),
    };
    let has_ports = |number: u8| PORT_PROTOCOLS.iter().any(|(_, known)| *known == number);
    for (key, texts) in [
        ("local_ports", &raw.local_ports),
        ("remote_ports", &raw.remote_ports),
    ] {
        let fits = match raw.protocol {
            // A mistake of the protocol itself was reported.
            Some(_) => limits.protocol.is_none_or(has_ports),
            None => false,
        };
        if !texts.as_slice().is_empty() && !fits {
            sink.report(
                &path(key),
                "ports need a protocol that has them",
                "set protocol = \"udp\", \"tcp\", \"sctp\", \"dccp\" or \"udp-lite\", or remove the ports",
            );
        }
    }
    limits
}

/// Few enough selectors for the key exchange, and for the comparison of each packet.
fn count_selectors(tunnel: &TunnelSpec, at: usize, sink: &mut Sink<'_>) {
    let side =
        |networks: &[AddressPrefix], ports: &[SelectorPorts]| networks.len() * ports.len().max(1);
    let sides = [
        side(&tunnel.local_networks, &tunnel.limits.local_ports),
        side(&tunnel.remote_networks, &tunnel.limits.remote_ports),
    ];
    let has_many = sides.iter().any(|count| *count > MAX_SIDE) && tunnel.ike.is_some();
    if has_many || tunnel.selectors.len() > MAX_SELECTORS {
        let message = format!(
            "networks and ports give {} and {} selectors, more than {MAX_SIDE} on a side or {MAX_SELECTORS} pairs",
            sides[0], sides[1]
        );
        let path = format!("gateway.tunnel[{at}]");
        sink.report(
            &path,
            message,
            "write fewer networks and ports, as larger networks and ranges",
        );
    }
}

fn tunnel(
    raw: &RawTunnel,
    at: usize,
    (gateway, ike): (&RawGateway, Option<&IkeSpec>),
    sink: &mut Sink<'_>,
) -> TunnelSpec {
    let path = |key: &str| format!("gateway.tunnel[{at}].{key}");
    if raw.name.is_empty() || !one_line(&raw.name) {
        let message = "the name is empty, or has control characters";
        sink.report(&path("name"), message, "write a short name");
    }
    if raw.peer_behind_nat && gateway.encapsulation == Encapsulation::Ip {
        sink.report(
            &path("peer_behind_nat"),
            "IP protocol 50 does not pass a NAT that changes ports",
            "set encapsulation = \"udp\" in [gateway] at both ends",
        );
    }
    let local = networks(&raw.local_networks, &path("local_networks"), sink);
    let remote = networks(&raw.remote_networks, &path("remote_networks"), sink);
    for network in &remote {
        let family =
            |other: &AddressPrefix| other.address().is_ipv4() == network.address().is_ipv4();
        if !local.is_empty() && !local.iter().any(family) {
            sink.report(
                &path("remote_networks"),
                format!("no local network is of the address family of {network}"),
                "add a network to local_networks",
            );
        }
    }
    let peer = match (raw.peer.as_str(), ike) {
        (ANY_PEER, Some(_)) => None,
        (text, _) => Some(outer_address(text, &path("peer"), sink)),
    };
    let limits = limits(raw, at, sink);
    let spec = TunnelSpec {
        name: raw.name.clone(),
        peer,
        peer_behind_nat: raw.peer_behind_nat || peer.is_none(),
        selectors: limits.between(&local, &remote),
        limits,
        ike: super::ike::tunnel(
            RawTunnelIke {
                remote_id: raw.remote_id.as_ref(),
                secret_file: raw.secret_file.as_ref(),
                initiate: raw.initiate,
            },
            &path(""),
            (ike, peer.is_some()),
            sink,
        ),
        local_networks: local,
        remote_networks: remote,
    };
    count_selectors(&spec, at, sink);
    spec
}

/// Who the peer is: its identity in a key exchange, otherwise its address.
fn peer_name(tunnel: &TunnelSpec) -> Option<String> {
    let identity = tunnel.ike.as_ref().and_then(|ike| ike.remote_id.clone());
    identity.or_else(|| Some(tunnel.peer?.ip().to_string()))
}

/// Each name, peer and remote network belongs to one tunnel.
fn unique(tunnels: &[TunnelSpec], local: SocketAddr, sink: &mut Sink<'_>) {
    let (mut names, mut peers) = (BTreeMap::new(), BTreeMap::new());
    let mut networks = BTreeMap::new();
    for (at, tunnel) in tunnels.iter().enumerate() {
        let path = |key: &str| format!("gateway.tunnel[{at}].{key}");
        let mut refuse = |key: &str, message: String, remedy: &str| {
            sink.report(&path(key), message, remedy.to_owned());
        };
        if names.insert(tunnel.name.clone(), at).is_some() {
            let message = format!("tunnel \"{}\" exists already", tunnel.name);
            refuse("name", message, "choose another name");
        }
        if let Some(peer) = peer_name(tunnel)
            && let Some(other) = peers.insert(peer.clone(), &tunnel.name)
        {
            let message = format!("{peer} is the peer of tunnel \"{other}\" too");
            let remedy = match tunnel.ike {
                Some(_) => {
                    "give that tunnel several networks, or each tunnel a remote_id of its own"
                }
                None => {
                    "write all networks behind that peer into one tunnel: remote_networks takes a list"
                }
            };
            refuse("peer", message, remedy);
        }
        if let Some(peer) = tunnel.peer
            && peer.is_ipv4() != local.is_ipv4()
        {
            let message = format!("{peer} and {local} are of two address families");
            refuse("peer", message, "use outer addresses of one family");
        }
        for network in &tunnel.remote_networks {
            if let Some(other) = networks.insert(network.to_string(), at)
                && other != at
            {
                let message = format!("another tunnel has the remote network {network}");
                refuse("remote_networks", message, "give a network to one tunnel");
            }
        }
    }
}

/// No tunnel takes the packets to a peer itself: ESP packets would be sealed again. A larger network that contains a
/// peer is possible if there is a longer route to the peer, which is seen at the start.
fn loops(tunnels: &[TunnelSpec], sink: &mut Sink<'_>) {
    let mut peers: BTreeMap<IpAddr, &str> = BTreeMap::new();
    for tunnel in tunnels {
        peers.extend(tunnel.peer.map(|peer| (peer.ip(), tunnel.name.as_str())));
    }
    for (at, tunnel) in tunnels.iter().enumerate() {
        for network in &tunnel.remote_networks {
            let of_peer = peers.get(&network.address());
            let Some(peer) = of_peer.filter(|_| *network == AddressPrefix::from(network.address()))
            else {
                continue;
            };
            sink.report(
                &format!("gateway.tunnel[{at}].remote_networks"),
                format!(
                    "{network} is the outer address of `peer` of tunnel \"{peer}\": its ESP packets would be routed into the tunnel themselves"
                ),
                "leave the address of the peer out of remote_networks, or set routes = false and add routes yourself",
            );
        }
    }
}

fn key_source(raw: &RawGateway, ike: Option<IkeSpec>, sink: &mut Sink<'_>) -> GatewayKeySource {
    if let Some(ike) = ike {
        return GatewayKeySource::Ike(Box::new(ike));
    }
    if raw.key_file.is_none() {
        sink.report(
            "gateway",
            "there are no keys",
            "write key_file, or [gateway.ike] for a key exchange; docs/how-to/ipsec-gateway.md has both",
        );
    }
    if raw.key_file.as_deref() == Some("") {
        let remedy = "write the name of a file; docs/esp.md has its format";
        sink.report("gateway.key_file", "the file name is empty", remedy);
    }
    let file = raw.key_file.as_deref().unwrap_or_default();
    GatewayKeySource::File(FilePath::new(file, "gateway.key_file", sink))
}

/// The gateway of a file.
pub(super) fn gateway(raw: Option<&RawGateway>, sink: &mut Sink<'_>) -> Option<GatewaySpec> {
    let raw = raw?;
    let named = raw.device.len() <= LONGEST_DEVICE
        && !raw.device.is_empty()
        && raw.device.bytes().all(|byte| byte.is_ascii_graphic())
        && !raw.device.contains(['/', ':', '%'])
        && !matches!(raw.device.as_str(), "." | "..");
    if !named {
        let message = format!("\"{}\" is no name of a network interface", raw.device);
        sink.report(
            "gateway.device",
            message,
            "write up to 15 letters and digits, for example \"esp0\"",
        );
    }
    if raw.tunnel.is_empty() {
        sink.report(
            "gateway",
            "there is no tunnel",
            "add a [[gateway.tunnel]] with name, peer, local_networks and remote_networks",
        );
    }
    let most = protect::esp::MAX_GATEWAY_TUNNELS;
    if raw.tunnel.len() > most {
        let message = format!("more than {most} tunnels");
        sink.report("gateway", message, "divide them among several gateways");
    }
    let local = outer_address(&raw.local, "gateway.local", sink);
    let ike = super::ike::ike(raw, sink);
    let tunnels: Vec<TunnelSpec> = raw
        .tunnel
        .iter()
        .enumerate()
        .map(|(at, one)| tunnel(one, at, (raw, ike.as_ref()), sink))
        .collect();
    unique(&tunnels, local, sink);
    if raw.routes {
        loops(&tunnels, sink);
    }
    let mut route_sources: Vec<IpAddr> = Vec::new();
    for (index, text) in raw.route_source.as_slice().iter().enumerate() {
        let parsed = text.parse::<IpAddr>().ok();
        let second = |ip: &IpAddr| {
            route_sources
                .iter()
                .any(|other| other.is_ipv4() == ip.is_ipv4())
        };
        match parsed.filter(|ip| !ip.is_unspecified() && !second(ip)) {
            Some(ip) => route_sources.push(ip),
            None => sink.report(
                &raw.route_source.path("gateway.route_source", index),
                format!("\"{text}\" is no address, or a second one of its family"),
                "write an address of this machine in a local network",
            ),
        }
    }
    if !raw.routes && !route_sources.is_empty() {
        let message = "`route_source` has no effect with routes = false";
        sink.report("gateway.route_source", message, "remove one of them");
    }
    let soft = |bound: u64| bound - bound / 10;
    let bytes = Some(raw.lifetime_bytes).filter(|bytes| *bytes > 0);
    let time = optional_seconds(raw.lifetime_s);
    let spec = GatewaySpec {
        device: raw.device.clone(),
        local,
        carrier: match raw.encapsulation {
            Encapsulation::Udp => EspCarrier::Udp,
            Encapsulation::Ip => EspCarrier::Ip,
        },
        data_path: raw.data_path,
        media: raw.media,
        keys: key_source(raw, ike, sink),
        numbers_file: raw.numbers_file.as_deref().map(|text| sink.path(text)),
        allow_weak: raw.allow_weak,
        mtu: raw.mtu as usize,
        routes: raw.routes,
        route_sources,
        copies_dont_fragment: raw.dont_fragment == DontFragment::Copy,
        dscp: raw.dscp,
        replay_window: usize::from(raw.replay_window),
        lifetime: SaLifetime {
            soft_bytes: bytes.map(soft),
            hard_bytes: bytes,
            soft_time: time.map(|time| time * 9 / 10),
            hard_time: time,
        },
        rekey_delay: seconds(raw.rekey_delay_s.unwrap_or(REKEY_DELAY_S)),
        rekey_grace: seconds(raw.rekey_grace_s),
        keep_alive: optional_seconds(raw.keep_alive_s),
        statistics: optional_seconds(raw.statistics_s),
        tunnels,
    };
    check_data_path(&spec, sink);
    Some(spec)
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    const TUNNEL: &str = "[[gateway.tunnel]]\nname=\"b\"\npeer=\"192.0.2.2\"\nlocal_networks=\"10.1.0.0/16\"\nremote_networks=[\"10.2.0.0/16\",\"10.3.0.0/16\"]\n";

    fn with(keys: &str, tunnels: &str) -> Result<super::GatewaySpec, String> {
        let source = match keys.contains("ike") {
            true => "",
            false => "key_file=\"/k\"",
        };
        let text = format!("[gateway]\nlocal=\"192.0.2.1\"\n{source}\n{keys}\n{tunnels}");
        parse(&text, "f")
            .map(|config| config.gateway.expect("gateway"))
            .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<String>())
    }

    #[test]
    fn a_file_may_have_a_gateway_alone() {
        let spec = with("lifetime_bytes=1000\nlifetime_s=100", TUNNEL).unwrap();
        assert_eq!(spec.local, "192.0.2.1:4500".parse().unwrap());
        let peer = "192.0.2.2:4500".parse().unwrap();
        assert_eq!(spec.tunnels[0].peer, Some(peer));
        assert_eq!(spec.tunnels[0].selectors.len(), 2);
        assert_eq!(spec.lifetime.soft_bytes, Some(900));
        assert_eq!(
            spec.lifetime.soft_time,
            Some(core::time::Duration::from_secs(90))
        );
    }

    #[test]
    fn a_tunnel_may_have_a_protocol_and_ports() {
        let limited = |more: &str| with("", &format!("{TUNNEL}{more}"));
        let spec = limited(
            "protocol=\"udp\"\nlocal_ports=\"5060\"\nremote_ports=[\"5060\",\"10000-10010\"]\n",
        );
        let tunnel = &spec.unwrap().tunnels[0];
        assert_eq!(tunnel.selectors.len(), 4, "two remote networks, two ranges");
        assert!(
            tunnel
                .selectors
                .iter()
                .all(|one| one.protocol == Some(17) && one.source_ports.to_string() == "5060")
        );
        assert_eq!(
            tunnel.selectors[1].destination_ports.to_string(),
            "10000-10010"
        );
        let spec = limited("protocol=\"112\"\n").unwrap();
        assert_eq!(spec.tunnels[0].limits.protocol, Some(112));
        for (more, expected) in [
            ("protocol=\"sip\"\n", "is no protocol"),
            ("protocol=\"0\"\n", "is no protocol"),
            ("local_ports=\"5060\"\n", "ports need a protocol"),
            (
                "protocol=\"icmp\"\nremote_ports=\"8\"\n",
                "ports need a protocol",
            ),
            (
                "protocol=\"udp\"\nlocal_ports=\"0\"\n",
                "neither a port nor a range",
            ),
            (
                "protocol=\"udp\"\nlocal_ports=\"9-8\"\n",
                "neither a port nor a range",
            ),
            (
                "protocol=\"udp\"\nlocal_ports=[\"1\",\"x\"]\n",
                "neither a port nor a range",
            ),
        ] {
            let said = limited(more).unwrap_err();
            assert!(said.contains(expected), "{more}: {said}");
        }
        let many: Vec<String> = (1..600).map(|port| format!("\"{port}\"")).collect();
        let many = format!("protocol=\"tcp\"\nlocal_ports=[{}]\n", many.join(","));
        let said = limited(&many).unwrap_err();
        assert!(
            said.contains("more than 255 on a side or 1024 pairs"),
            "{said}"
        );
    }

    #[test]
    fn a_tunnel_may_have_all_addresses() {
        let all = TUNNEL.replace("[\"10.2.0.0/16\",\"10.3.0.0/16\"]", "\"0.0.0.0/0\"");
        assert!(with("", &all).is_ok());
        let own = TUNNEL.replace("10.2.0.0/16", "192.0.2.2/32");
        assert!(with("routes=false", &own).is_ok());
    }

    #[test]
    fn a_key_exchange_takes_the_place_of_a_key_file() {
        let tunnel = TUNNEL.replace("192.0.2.2", "any");
        let ids = "remote_id=\"office.example\"\nsecret_file=\"/s\"\n";
        let spec = with("[gateway.ike]", &format!("{tunnel}{ids}")).unwrap();
        let super::GatewayKeySource::Ike(ike) = &spec.keys else {
            panic!("{:?}", spec.keys);
        };
        assert_eq!(ike.rekey, core::time::Duration::from_secs(3_600));
        let one = &spec.tunnels[0];
        assert!(one.peer.is_none() && one.peer_behind_nat);
        assert!(!one.ike.as_ref().unwrap().initiates);
        let secret = format!("{TUNNEL}secret_file=\"/s\"\n");
        let spec = with("[gateway.ike]", &secret).unwrap();
        assert!(spec.tunnels[0].ike.as_ref().unwrap().initiates);
        let unnamed = format!("{TUNNEL}secret_file=\"\"\n");
        let numbers = "numbers_file=\"/n\"\nrekey_delay_s=3\nlifetime_s=9\n[gateway.ike]";
        for (keys, tunnels, expected) in [
            (
                "key_file=\"/k\"\n[gateway.ike]",
                &secret,
                "`key_file` is for manual keys",
            ),
            (numbers, &secret, "`rekey_delay_s` is for manual keys"),
            (
                "encapsulation=\"ip\"\n[gateway.ike]",
                &secret,
                "ESP is in UDP",
            ),
            (
                "[gateway.ike]",
                &TUNNEL.to_owned(),
                "neither a shared secret",
            ),
            ("[gateway.ike]", &unnamed, "the file name is empty"),
            ("[gateway.ike]", &tunnel, "needs an identity"),
            ("[gateway.ike]\nlocal_id=\"%any\"", &secret, "no identity"),
            (
                "[gateway.ike]\ncertificate=\"/c\"",
                &secret,
                "belong together",
            ),
            (
                "[gateway.ike]\nesp_proposals=\"aes128\"",
                &secret,
                "needs an integrity",
            ),
            (
                "[gateway.ike]\nesp_proposals=\"3des-sha1\"",
                &secret,
                "weak",
            ),
            (
                "[gateway.ike]\nike_proposals=\"AES\"",
                &secret,
                "no proposal",
            ),
            ("", &secret, "there is no [gateway.ike]"),
            ("", &tunnel, "no address of a host"),
        ] {
            let said = with(keys, tunnels).unwrap_err();
            assert!(said.contains(expected), "{keys} {tunnels}: {said}");
        }
        let any = format!("{tunnel}{ids}initiate=true\n");
        let said = with("[gateway.ike]", &any).unwrap_err();
        assert!(said.contains("sets the tunnel up itself"), "{said}");
        let twice = format!("{secret}{}", secret.replace("\"b\"", "\"c\""));
        let said = with("[gateway.ike]", &twice).unwrap_err();
        assert!(said.contains("is the peer of tunnel"), "{said}");
    }

    #[test]
    fn mistakes_are_named() {
        let other = TUNNEL.replace("\"b\"", "\"c\"");
        for (keys, tunnels, expected) in [
            ("", String::new(), "there is no tunnel"),
            ("ike=true", TUNNEL.to_owned(), "must be a table"),
            ("[gateway.ike]\nrekey_s=1", TUNNEL.to_owned(), "rekey_s"),
            (
                "device=\"a/b\"",
                TUNNEL.to_owned(),
                "no name of a network interface",
            ),
            (
                "device=\"sixteen-letters-\"",
                TUNNEL.to_owned(),
                "no name of a network",
            ),
            ("mtu=100", TUNNEL.to_owned(), "mtu"),
            ("replay_window=5000", TUNNEL.to_owned(), "replay_window"),
            ("encapsulation=\"tcp\"", TUNNEL.to_owned(), "encapsulation"),
            (
                "routes=false\nroute_source=\"10.1.0.1\"",
                TUNNEL.to_owned(),
                "no effect",
            ),
            (
                "",
                TUNNEL.replace("192.0.2.2", "0.0.0.0"),
                "no address of a host",
            ),
            (
                "",
                TUNNEL.replace("192.0.2.2", "2001:db8::1"),
                "two address families",
            ),
            (
                "",
                TUNNEL.replace("10.2.0.0/16", "10.2.0.1/16"),
                "bits set behind",
            ),
            (
                "",
                TUNNEL.replace("10.2.0.0/16", "fd00::/8"),
                "no local network is of",
            ),
            ("", format!("{TUNNEL}{TUNNEL}"), "exists already"),
            ("", format!("{TUNNEL}{other}"), "is the peer of tunnel"),
            (
                "",
                format!("{TUNNEL}{}", other.replace("192.0.2.2", "192.0.2.3")),
                "another tunnel has the remote network",
            ),
            (
                "",
                TUNNEL.replace("10.2.0.0/16", "192.0.2.2/32"),
                "192.0.2.2/32 is the outer address of `peer` of tunnel \"b\"",
            ),
            (
                "encapsulation=\"ip\"",
                TUNNEL.replace("peer=", "peer_behind_nat=true\npeer="),
                "does not pass a NAT",
            ),
        ] {
            let said = with(keys, &tunnels).unwrap_err();
            assert!(said.contains(expected), "{keys} {tunnels}: {said}");
        }
    }
}
