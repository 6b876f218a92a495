//! ESP of a phone: its key file, its rights, and its figures.

use super::exchange::{PhoneKeyExchange, StartedExchange};
use super::sequence_file::SequenceFile;
use super::tunnel::{self, TunnelNetworks};
use super::{PhoneOptions, PhoneTask};
use crate::error::LabError;
use engine::{Time, Transport};
use protect::esp::{
    AddressPrefix, EndpointKeys, EspCarrier, EspEndRole, EspEndpoint, EspEndpointPlan, EspSuite,
    InboundSa, InboundState, OutboundState, RTP_WITHOUT_UDP, SaError, SaSpec, TrafficSelector,
    VoiceReceiver, VoiceShortcut, esp_sa_pair, parse_esp_sa_file,
};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::esp::NAT_TRAVERSAL_PORT;
use wire::ip::protocol;
use zeroize::Zeroizing;

/// The keys of a phone's ESP.
#[derive(Clone, Debug)]
pub enum PhoneEspKeys {
    /// A file in the format of Wireshark's `esp_sa` table.
    File(PathBuf),
    /// A key exchange, in tunnel mode over UDP.
    Exchange(Arc<dyn PhoneKeyExchange>),
}

/// Options of a phone's ESP.
#[derive(Clone, Debug)]
pub struct PhoneEspOptions {
    /// Keys.
    pub keys: PhoneEspKeys,
    /// Tunnel mode instead of transport mode.
    pub tunnel: bool,
    /// Carrier; `None`: IP protocol 50 where the right exists, else UDP.
    pub carrier: Option<EspCarrier>,
    /// Local address of ESP packets: `address[:port]`.
    pub local: Option<String>,
    /// Address of the peer: `address[:port]`.
    pub peer: Option<String>,
    /// Weak algorithms are allowed.
    pub allow_weak: bool,
    /// Shortcut of voice; a call needs the consent of the peer.
    pub shortcut: Option<VoiceShortcut>,
    /// Addresses behind the tunnel, for SIP over TCP and TLS.
    pub remote: Vec<AddressPrefix>,
}

/// Checks ESP of a phone whose SIP has this transport: over TCP and TLS it needs the kernel, and so a tunnel.
///
/// # Errors
/// The options exclude each other.
pub(super) fn check_transport(
    options: &PhoneEspOptions,
    transport: Transport,
) -> Result<(), LabError> {
    if transport == Transport::Udp {
        return match options.remote.is_empty() {
            true => Ok(()),
            false => Err(LabError::bad_input(
                "--esp-remote has no effect over UDP: add --transport tcp or tls",
            )),
        };
    }
    if !options.tunnel {
        return Err(LabError::bad_input(format!(
            "ESP packets in transport mode protect UDP only: SIP over {transport} would pass in the clear beside them (use --transport udp, --esp-mode tunnel, --ike, or a tunnel of `hornwork run --role gateway`)"
        )));
    }
    match options.shortcut {
        Some(_) => Err(LabError::bad_input(format!(
            "--esp-shortcut needs SIP over UDP: with {transport} the kernel carries all packets"
        ))),
        None => Ok(()),
    }
}

impl PhoneEspOptions {
    /// Networks behind a tunnel below the kernel between these outer addresses: those of options or of the file of the
    /// key exchange, or the called host.
    ///
    /// # Errors
    /// See [`tunnel::networks`].
    fn networks(
        &self,
        called: Option<SocketAddr>,
        outer: [SocketAddr; 2],
    ) -> Result<Vec<AddressPrefix>, LabError> {
        let named = match &self.keys {
            PhoneEspKeys::File(_) => TunnelNetworks {
                named: &self.remote,
                setting: "--esp-remote NETWORK",
            },
            PhoneEspKeys::Exchange(exchange) => TunnelNetworks {
                named: exchange.remote_networks(),
                setting: "remote_networks in the file of --ike",
            },
        };
        // Without networks in its file the association of a key exchange has the outer addresses inside.
        let has_default = matches!(self.keys, PhoneEspKeys::File(_));
        let called = called.filter(|_| has_default || !named.named.is_empty());
        let called = called.map(|address| address.ip());
        tunnel::networks(named, called, outer.map(|address| address.ip()))
    }
}

/// ESP of a phone, ready for its thread.
pub(super) struct PreparedEsp {
    pub(super) plan: EspEndpointPlan,
    /// Stores the sequence numbers of manual keys.
    pub(super) numbers: Option<SequenceFile>,
    pub(super) exchange: Option<StartedExchange>,
    /// Networks behind a tunnel below the kernel.
    pub(super) networks: Option<Vec<AddressPrefix>>,
    pub(super) report: EspReport,
    /// Printed once.
    pub(super) warnings: Vec<String>,
}

/// The end of a phone's ESP.
#[derive(Debug)]
pub(super) struct EspEnd {
    /// States of manual keys.
    pub(super) states: Option<(OutboundState, InboundState)>,
    pub(super) figures: EspFigures,
}

/// Figures of a phone's ESP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EspFigures {
    /// Address of the peer at the end.
    pub peer: Option<SocketAddr>,
    /// Packets sealed.
    pub sealed: u64,
    /// Packets opened.
    pub opened: u64,
    /// NAT keep-alives sent and received.
    pub keep_alives: [u64; 2],
    /// IKE messages received; without a key exchange they are not answered.
    pub ike_messages: u64,
    /// IKE messages that the key exchange had no room for.
    pub ike_overruns: u64,
    /// Associations that were negotiated.
    pub installed: u64,
    /// Changes to an association with new keys.
    pub rekeyed: u64,
    /// ICMP errors.
    pub unreachable: u64,
    /// Changes of the peer's address.
    pub peer_changes: u64,
    /// The shortcut of voice that both ends agreed on.
    pub shortcut: Option<VoiceShortcut>,
    /// RTP packets sent and received by the shortcut.
    pub shortcut_packets: [u64; 2],
    /// Packets that were not sealed or opened, by the name of the reason.
    pub drops: Vec<(&'static str, u64)>,
}

impl EspEnd {
    pub(super) fn of<E: VoiceReceiver>(endpoint: &EspEndpoint<E>, now: Time) -> EspEnd {
        let counters = endpoint.counters();
        let drops = endpoint.drops().iter().filter(|(_, count)| *count > 0);
        EspEnd {
            states: endpoint.states(now),
            figures: EspFigures {
                peer: Some(endpoint.peer()),
                sealed: counters.sealed,
                opened: counters.opened,
                keep_alives: [counters.keep_alives_sent, counters.keep_alives_received],
                ike_messages: counters.ike_messages,
                ike_overruns: 0,
                installed: counters.installed,
                rekeyed: counters.rekeyed,
                unreachable: counters.unreachable,
                peer_changes: counters.peer_changes,
                shortcut: endpoint.shortcut(),
                shortcut_packets: [counters.shortcut_sent, counters.shortcut_received],
                drops: drops
                    .map(|(reason, count)| (reason.name(), count))
                    .collect(),
            },
        }
    }
}

/// ESP in the statistics of a phone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EspReport {
    /// Tunnel mode.
    pub tunnel: bool,
    /// Carrier.
    pub carrier: EspCarrier,
    /// Keys of a key exchange (IKEv2).
    pub exchanges: bool,
    /// This end begins the key exchange.
    pub initiates: bool,
    /// Algorithms; `None` before the first association of a key exchange.
    pub suite: Option<EspSuite>,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer at the start.
    pub peer: SocketAddr,
    /// Figures at the end.
    pub figures: EspFigures,
}

impl EspReport {
    /// `transport` or `tunnel`.
    pub fn mode(&self) -> &'static str {
        if self.tunnel { "tunnel" } else { "transport" }
    }

    fn suite_text(&self) -> String {
        self.suite
            .map_or_else(|| "not negotiated".to_owned(), |suite| suite.to_string())
    }

    /// The protection: `esp-transport` or `esp-tunnel`. [`EspReport::keys`] has the origin of the keys.
    pub fn protection(&self) -> String {
        format!("esp-{}", self.mode())
    }

    /// Origin of the keys.
    pub fn keys(&self) -> &'static str {
        if self.exchanges { "IKEv2" } else { "manual" }
    }

    /// A cause of a call without an answer: keys that differ let the peer drop each packet in silence.
    pub(super) fn unanswered_hint(&self) -> Option<&'static str> {
        let unanswered = !self.exchanges && self.figures.sealed > 0 && self.figures.opened == 0;
        unanswered.then_some(
            "; no ESP packet of the peer was opened: compare keys, SPIs and addresses of both ends",
        )
    }

    /// Packets that were not sealed or opened.
    pub fn dropped(&self) -> u64 {
        self.figures.drops.iter().map(|(_, count)| count).sum()
    }

    pub(super) fn to_json(&self) -> Value {
        let figures = &self.figures;
        let mut drops = serde_json::Map::new();
        for (name, count) in &figures.drops {
            drops.insert((*name).to_owned(), json!(count));
        }
        json!({
            "mode": self.mode(),
            "carrier": self.carrier.name(),
            "keys": self.keys(),
            "suite": self.suite.map(|suite| suite.to_string()),
            "local": self.local.to_string(),
            "peer": figures.peer.unwrap_or(self.peer).to_string(),
            "sealed": figures.sealed,
            "opened": figures.opened,
            "keep_alives_sent": figures.keep_alives[0],
            "keep_alives_received": figures.keep_alives[1],
            "ike_messages": figures.ike_messages,
            "ike_overruns": figures.ike_overruns,
            "associations": figures.installed,
            "rekeyed": figures.rekeyed,
            "unreachable": figures.unreachable,
            "peer_changes": figures.peer_changes,
            "shortcut": figures.shortcut.map(VoiceShortcut::name),
            "shortcut_sent": figures.shortcut_packets[0],
            "shortcut_received": figures.shortcut_packets[1],
            "dropped": self.dropped(),
            "drops": drops,
        })
    }

    /// Lines of the text, each with its name.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let over = match self.carrier {
            EspCarrier::Ip => "IP protocol 50",
            EspCarrier::Udp => "UDP",
        };
        let figures = &self.figures;
        let mut lines = vec![
            ("ESP", format!("{} mode, {over}", self.mode())),
            ("algorithms", self.suite_text()),
            (
                "ESP packets",
                format!(
                    "{} sealed, {} opened, {} dropped",
                    figures.sealed,
                    figures.opened,
                    self.dropped()
                ),
            ),
        ];
        if let Some(shortcut) = figures.shortcut {
            let [sent, received] = figures.shortcut_packets;
            lines.push((
                "ESP shortcut",
                format!("{}: {sent} sent, {received} received", shortcut.name()),
            ));
        }
        if self.exchanges {
            lines.push((
                "IKEv2",
                format!(
                    "{} associations, {} times new keys",
                    figures.installed, figures.rekeyed
                ),
            ));
        }
        for (name, count) in &figures.drops {
            lines.push(("dropped", format!("{count} {name}")));
        }
        lines
    }
}

/// `address[:port]`, IPv6 addresses in brackets if there is a port.
fn address(option: &str, text: &str, default: u16) -> Result<SocketAddr, LabError> {
    let ip = text.trim_start_matches('[').trim_end_matches(']');
    let parsed = match (ip.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
        (Ok(ip), _) => SocketAddr::new(ip, default),
        (_, Ok(address)) => address,
        _ => {
            return Err(LabError::bad_input(format!(
                "{option} {text:?}: ADDRESS[:PORT] is needed"
            )));
        }
    };
    if parsed.ip().is_unspecified() || parsed.port() == 0 {
        return Err(LabError::bad_input(format!(
            "{option} {text:?}: a concrete address is needed"
        )));
    }
    Ok(parsed)
}

/// Whether the address is one of this machine.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// Reads a key file. Its text is wiped afterwards.
fn read_keys(path: &Path) -> Result<(Zeroizing<String>, Option<String>), LabError> {
    let bad =
        |error: std::io::Error| LabError::bad_input(format!("--esp {}: {error}", path.display()));
    let mut file = File::open(path).map_err(bad)?;
    let metadata = file.metadata().map_err(bad)?;
    // Read into its final size: a growing buffer would leave copies of keys behind.
    let size = usize::try_from(metadata.len()).unwrap_or(0).min(64 << 20);
    let mut text = Zeroizing::new(String::with_capacity(size + 1));
    file.read_to_string(&mut text).map_err(bad)?;
    let mode = metadata.permissions().mode() & 0o777;
    let warning = (mode & 0o077 != 0).then(|| {
        format!(
            "warning: {0} has keys, and other users of this machine may access it (mode {mode:o}): chmod 600 {0}",
            path.display()
        )
    });
    Ok((text, warning))
}

fn carrier(options: &PhoneEspOptions, local: IpAddr) -> Result<EspCarrier, LabError> {
    match (options.carrier, net::may_carry_esp(local)) {
        (Some(EspCarrier::Udp), _) => Ok(EspCarrier::Udp),
        (_, Ok(())) => Ok(EspCarrier::Ip),
        (None, Err(_)) => Ok(EspCarrier::Udp),
        (Some(EspCarrier::Ip), Err(error)) => Err(LabError::cannot_run(
            format!(
                "--esp-over ip: a raw socket for IP protocol 50 was denied ({error}): CAP_NET_RAW"
            ),
            "run it as root or with CAP_NET_RAW; or --esp-over udp at both ends, which needs no right",
        )),
    }
}

/// Both ends of ESP packets, as far as options and addresses of the phone name them.
fn outer_local(
    options: &PhoneEspOptions,
    lines: &[protect::esp::EspSaLine],
    phone: SocketAddr,
) -> Result<SocketAddr, LabError> {
    let named = options
        .local
        .as_deref()
        .map(|text| address("--esp-local", text, NAT_TRAVERSAL_PORT))
        .transpose()?;
    if !options.tunnel {
        let local = named.unwrap_or(SocketAddr::new(phone.ip(), NAT_TRAVERSAL_PORT));
        if local.ip() != phone.ip() {
            return Err(LabError::bad_input(format!(
                "--esp-local {}: in transport mode it is the address of --local, {}",
                local.ip(),
                phone.ip()
            )));
        }
        return Ok(local);
    }
    if let Some(local) = named {
        return Ok(local);
    }
    let mut ours: Vec<IpAddr> = lines
        .iter()
        .filter_map(protect::esp::EspSaLine::source)
        .filter(|ip| is_local(*ip))
        .collect();
    ours.sort_unstable();
    ours.dedup();
    match ours[..] {
        [ip] => Ok(SocketAddr::new(ip, NAT_TRAVERSAL_PORT)),
        [] => Err(LabError::bad_input(
            "no source address of the key file is one of this machine: name the outer address with --esp-local",
        )),
        _ => Err(LabError::bad_input(
            "several source addresses of the key file are of this machine: name the outer address with --esp-local",
        )),
    }
}

/// An error of an association, with the option that helps.
pub(super) fn sa_error(error: SaError, path: &Path) -> LabError {
    let text = match error {
        SaError::Weak(suite) => format!(
            "{suite} is weak (RFC 8221); choose AES-GCM-16 or AES-CBC with HMAC-SHA2-256-128, or allow it with --esp-allow-weak"
        ),
        error => error.to_string(),
    };
    LabError::bad_input(format!("--esp {}: {text}", path.display()))
}

/// Selectors of packets that the phone sends: UDP, voice without it if that may be agreed, and TCP if its SIP needs it.
/// Those of received packets are reversed.
fn selectors(
    options: &PhoneEspOptions,
    phone: SocketAddr,
    has_streams: bool,
) -> Vec<TrafficSelector> {
    let without_udp = options.shortcut == Some(VoiceShortcut::WithoutUdp);
    [protocol::UDP]
        .into_iter()
        .chain(without_udp.then_some(RTP_WITHOUT_UDP))
        .chain(has_streams.then_some(protocol::TCP))
        .map(|protocol| TrafficSelector {
            protocol: Some(protocol),
            source: options.tunnel.then(|| AddressPrefix::from(phone.ip())),
            ..TrafficSelector::ANY
        })
        .collect()
}

/// Starts the key exchange of a phone at `phone`.
fn prepare_exchange(
    options: &PhoneOptions,
    exchange: &dyn PhoneKeyExchange,
    phone: SocketAddr,
    networks: impl FnOnce([SocketAddr; 2]) -> Result<Option<Vec<AddressPrefix>>, LabError>,
) -> Result<PreparedEsp, LabError> {
    let local = exchange.local();
    // Until the peer has begun, packets have no destination.
    let anywhere = || match local.ip() {
        IpAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), NAT_TRAVERSAL_PORT),
        IpAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), NAT_TRAVERSAL_PORT),
    };
    let peer = exchange.peer().unwrap_or_else(anywhere);
    // A phone that only waits for a call waits for the peer's key exchange, too.
    let calls = match (&options.task, &options.account) {
        (PhoneTask::Answer, Some(account)) => account.expires_s.is_some(),
        (PhoneTask::Answer, None) => false,
        (PhoneTask::Call(_) | PhoneTask::Register, _) => true,
    };
    let networks = networks([local, peer])?;
    let started = exchange.start(phone.ip(), calls)?;
    let initiates = started.initiates;
    Ok(PreparedEsp {
        plan: EspEndpointPlan {
            carrier: EspCarrier::Udp,
            local,
            peer,
            keys: EndpointKeys::Negotiated,
            shortcut: None,
            offers: false,
        },
        numbers: None,
        exchange: Some(started),
        networks,
        report: EspReport {
            tunnel: true,
            carrier: EspCarrier::Udp,
            exchanges: true,
            initiates,
            suite: None,
            local,
            peer,
            figures: EspFigures::default(),
        },
        warnings: Vec::new(),
    })
}

/// Prepares the ESP of a phone at `phone`, that calls `callee` if it calls.
///
/// # Errors
/// An option, the key file or the file of sequence numbers is invalid, or a right is missing; the key exchange does not
/// start.
pub(super) fn prepare(
    options: &PhoneOptions,
    esp: &PhoneEspOptions,
    (phone, has_streams): (SocketAddr, bool),
    callee: Option<SocketAddr>,
) -> Result<PreparedEsp, LabError> {
    let networks = |outer: [SocketAddr; 2]| {
        let below_kernel = has_streams.then(|| esp.networks(callee, outer));
        below_kernel.transpose()
    };
    let path = match &esp.keys {
        PhoneEspKeys::File(path) => path,
        PhoneEspKeys::Exchange(exchange) => {
            return prepare_exchange(options, exchange.as_ref(), phone, networks);
        }
    };
    let bad = |why: String| LabError::bad_input(format!("--esp {}: {why}", path.display()));
    let (text, warning) = read_keys(path)?;
    let mut warnings: Vec<String> = warning.into_iter().collect();
    let lines = parse_esp_sa_file(&text).map_err(|error| bad(error.to_string()))?;
    drop(text);
    let local = outer_local(esp, &lines, phone)?;
    let named = esp
        .peer
        .as_deref()
        .map(|text| address("--esp-peer", text, NAT_TRAVERSAL_PORT))
        .transpose()?;
    let default = callee.filter(|_| !esp.tunnel);
    let towards = named.or(default).map(|address| address.ip());
    let role = match options.task {
        PhoneTask::Answer => EspEndRole::Second,
        PhoneTask::Call(_) | PhoneTask::Register => EspEndRole::First,
    };
    let pair = esp_sa_pair(&lines, local.ip(), towards, role).map_err(bad)?;
    let peer = match (named, pair.outbound.destination().or(towards)) {
        (Some(peer), _) => peer,
        (None, Some(ip)) => SocketAddr::new(ip, NAT_TRAVERSAL_PORT),
        (None, None) => {
            return Err(LabError::bad_input(
                "the key file does not state the address of the peer: name it with --esp-peer",
            ));
        }
    };
    if peer.is_ipv4() != local.is_ipv4() {
        return Err(LabError::bad_input(format!(
            "ESP from {} to {}: addresses of two families",
            local.ip(),
            peer.ip()
        )));
    }
    let networks = networks([local, peer])?;
    let mut outbound = pair.outbound.to_spec().map_err(bad)?;
    let mut inbound = pair.inbound.to_spec().map_err(bad)?;
    outbound.selectors = selectors(esp, phone, has_streams);
    inbound.selectors = outbound
        .selectors
        .iter()
        .map(TrafficSelector::reversed)
        .collect();
    let suite = outbound.suite;
    if esp.allow_weak && (suite.is_weak() || inbound.suite.is_weak()) {
        warnings.push(format!(
            "warning: {suite} is weak (RFC 8221), and allowed by --esp-allow-weak"
        ));
    }
    let finish = |spec: SaSpec, from: IpAddr, to: IpAddr| SaSpec {
        allow_weak: esp.allow_weak,
        // Below the kernel there are IP packets only.
        accepts_direct: !has_streams,
        ..match esp.tunnel {
            true => spec.tunnel(from, to),
            false => spec,
        }
    };
    let outbound = finish(outbound, local.ip(), peer.ip());
    let inbound = finish(inbound, peer.ip(), local.ip());
    let carrier = carrier(esp, local.ip())?;
    // Descriptions are checked before a file is written.
    for spec in [&outbound, &inbound] {
        InboundSa::new(spec.clone(), Time::ZERO).map_err(|error| sa_error(error, path))?;
    }
    let (numbers, outbound, inbound) = SequenceFile::open(path, outbound, inbound)?;
    Ok(PreparedEsp {
        plan: EspEndpointPlan {
            carrier,
            local,
            peer,
            keys: EndpointKeys::manual(outbound, inbound),
            shortcut: esp.shortcut,
            offers: matches!(options.task, PhoneTask::Call(_)),
        },
        numbers: Some(numbers),
        exchange: None,
        networks,
        report: EspReport {
            tunnel: esp.tunnel,
            carrier,
            exchanges: false,
            initiates: false,
            suite: Some(suite),
            local,
            peer,
            figures: EspFigures::default(),
        },
        warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unanswered_packets_name_the_keys() {
        let end = "192.0.2.1:4500".parse().unwrap();
        let mut report = EspReport {
            tunnel: false,
            carrier: EspCarrier::Udp,
            exchanges: false,
            initiates: false,
            suite: None,
            local: end,
            peer: end,
            figures: EspFigures::default(),
        };
        assert_eq!(report.unanswered_hint(), None, "nothing was sent");
        report.figures.sealed = 3;
        let hint = report.unanswered_hint().unwrap();
        assert!(hint.contains("compare keys"), "{hint}");
        report.figures.opened = 1;
        assert_eq!(report.unanswered_hint(), None);
        // A key exchange names its failures.
        (report.figures.opened, report.exchanges) = (0, true);
        assert_eq!(report.unanswered_hint(), None);
    }
}
