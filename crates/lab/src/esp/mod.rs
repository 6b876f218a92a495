//! The cost of ESP for a voice packet: bytes, processing time, and the layers that it can do without.

pub(crate) mod border_tunnel;
pub(crate) mod callers_gateway;
mod computed;
mod cost;
mod handshake;
pub(crate) mod line;
mod memory;
mod openssl;
mod packets;
mod receive;
mod second;
mod wire;

pub use computed::{EspCarriage, EspCase, clear_packet_bytes, packet_bytes, tunnel_format};
pub(crate) use cost::packet_cost;
pub(crate) use handshake::{HandshakeCost, handshake_cost};
pub(crate) use memory::AccessMeter;
pub(crate) use receive::{direct, without_udp};
pub(crate) use wire::{WireMedium, bandwidth};

use crate::error::LabError;
use crate::experiment::{EspLoad, EspModeName};
use engine::{Entropy, Time};
use protect::esp::{EspKeys, InboundSa, OutboundSa, SaSpec, UdpEncapsulation};
use std::net::{IpAddr, Ipv4Addr};
use zeroize::Zeroizing;

/// Figures that the experiments measure, in the order of the report, with a description for its tables. A name is
/// `esp.FIGURE`, or `esp.FIGURE.SUITE.MODE`, with `clear` instead of both for packets without ESP.
pub(crate) const FIGURES: [(&str, &str); 31] = [
    ("out_us", "Sealing, microseconds a packet"),
    ("in_us", "Opening, microseconds a packet"),
    (
        "in_over_out_percent",
        "Opening above sealing, percent of sealing",
    ),
    (
        "out_over_clear_percent",
        "Sealing, percent of the processing of IP and UDP headers alone",
    ),
    (
        "in_over_clear_percent",
        "Opening, percent of the processing of IP and UDP headers alone",
    ),
    (
        "tunnel_minus_transport_out_us",
        "Sealing in tunnel mode less that in transport mode, microseconds",
    ),
    (
        "tunnel_minus_transport_in_us",
        "Opening in tunnel mode less that in transport mode, microseconds",
    ),
    (
        "awslc_out_us",
        "The same bytes by the primitives of AWS-LC, out, microseconds",
    ),
    (
        "awslc_in_us",
        "The same bytes by the primitives of AWS-LC, in, microseconds",
    ),
    (
        "openssl_out_us",
        "The same bytes by the primitives of OpenSSL (openssl speed), out, microseconds",
    ),
    (
        "openssl_in_us",
        "The same bytes by the primitives of OpenSSL (openssl speed), in, microseconds",
    ),
    ("packet_bytes", "IP packet by the RFCs, bytes"),
    ("computed_kbit", "Bandwidth by the RFCs, kbit/s each way"),
    ("measured_kbit", "Bandwidth on the wire, kbit/s each way"),
    ("difference_bytes", "Measured less computed, bytes a packet"),
    (
        "overhead_percent",
        "Bandwidth on the wire above that in the clear, percent",
    ),
    ("packets_per_second", "Packets per second each way"),
    ("with_udp_us", "Reception with UDP, microseconds a packet"),
    (
        "without_udp_us",
        "Reception of RTP directly in ESP, microseconds a packet",
    ),
    (
        "layered_us",
        "Reception through IP, UDP and a socket queue, microseconds a packet",
    ),
    (
        "direct_us",
        "Reception from ESP to the media receiver, microseconds a packet",
    ),
    (
        "kernel_us",
        "Reception with the kernel's UDP socket between ESP and the media receiver, microseconds a packet",
    ),
    ("gain_percent", "Gain of incoming throughput, percent"),
    (
        "kernel_gain_percent",
        "Gain of incoming throughput over the kernel's UDP socket, percent",
    ),
    (
        "call_kbit",
        "Bandwidth of a call on the access side, signalling included, kbit/s each way",
    ),
    (
        "gateway_us",
        "Gateway of the border, microseconds of CPU a packet",
    ),
    ("refused_packets", "Packets that ESP refused"),
    (
        "clear_packets",
        "Packets on the wire that are none of the border's gateway",
    ),
    (
        "direct_packets",
        "Packets of media that passed straight between ESP and the border's forwarder",
    ),
    ("lost_packets", "Packets that were sent and not received"),
    (
        "wrong_packets",
        "Packets that did not come out as they went in",
    ),
];

/// The name of a figure of a case.
pub(crate) fn figure_name(figure: &str, case: &str, mode: Option<EspCarriage>) -> String {
    match mode {
        Some(mode) => format!("esp.{figure}.{case}.{}", mode.name()),
        None => format!("esp.{figure}.{case}"),
    }
}

/// Whether the name is that of a figure that the experiments can measure.
pub(crate) fn is_figure(name: &str) -> bool {
    let mut parts = name.split('.');
    if parts.next() != Some("esp") {
        return false;
    }
    let known = |figure: &str| FIGURES.iter().any(|(name, _)| *name == figure);
    let case = |name: &str| name == "clear" || EspCase::of(name).is_some();
    let mode = |name: &str| EspCarriage::ALL.iter().any(|mode| mode.name() == name);
    parts.next().is_some_and(known)
        && parts.next().is_none_or(case)
        && parts.next().is_none_or(mode)
        && parts.next().is_none()
}

/// Description and unit of a figure; `None` for another name.
pub(crate) fn describe(name: &str) -> Option<(String, &'static str)> {
    if !is_figure(name) {
        return None;
    }
    let mut parts = name.split('.').skip(1);
    let figure = parts.next()?;
    let (_, description) = FIGURES.iter().find(|(known, _)| *known == figure)?;
    let unit = [
        ("_us", "us"),
        ("_percent", "%"),
        ("_kbit", "kbit/s"),
        ("_bytes", "bytes"),
        ("_packets", "packets"),
        ("packets_per_second", "packets/s"),
    ];
    let unit = unit.iter().find(|(end, _)| figure.ends_with(end))?.1;
    // The unit of the table's description; "percent of ..." names its base.
    let words = match description.rsplit_once(", ") {
        Some((words, last)) if !last.starts_with("percent of") => words,
        _ => description,
    };
    let mut words = words.to_owned();
    if let Some(first) = words.get(..1) {
        let first = first.to_ascii_lowercase();
        words.replace_range(..1, &first);
    }
    match parts.next() {
        Some("clear") => words.push_str(", without ESP"),
        Some(case) => {
            words.push_str(", ");
            words.push_str(&case.to_ascii_uppercase());
        }
        None => {}
    }
    if let Some(mode) = parts.next() {
        words.push_str(&format!(" in {mode} mode"));
    }
    Some((words, unit))
}

/// Addresses of the outer header.
const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];
/// Port of UDP encapsulation.
const NAT_PORT: u16 = 4_500;
const SPI: u32 = 0x1000_0001;

/// The two ends of a security association.
pub(crate) struct EspEnds {
    /// Seals.
    pub(crate) outbound: OutboundSa,
    /// Opens.
    pub(crate) inbound: InboundSa,
}

impl EspEnds {
    /// An association with random keys.
    pub(crate) fn new(
        case: &EspCase,
        carriage: EspCarriage,
        entropy: &mut Entropy,
    ) -> Result<EspEnds, LabError> {
        EspEnds::between(case, carriage, OUTER, entropy)
    }

    /// An association with random keys, in tunnel mode between these addresses.
    pub(crate) fn between(
        case: &EspCase,
        carriage: EspCarriage,
        outer: [Ipv4Addr; 2],
        entropy: &mut Entropy,
    ) -> Result<EspEnds, LabError> {
        let spec = random_spec(case, carriage, (SPI, outer), entropy);
        let bad = |error| LabError::bad_input(format!("esp.suites: {}: {error}", case.name));
        Ok(EspEnds {
            outbound: OutboundSa::new(spec.clone(), entropy, Time::ZERO).map_err(bad)?,
            inbound: InboundSa::new(spec, Time::ZERO).map_err(bad)?,
        })
    }
}

/// An association with this SPI and random keys, in tunnel mode between these addresses.
fn random_spec(
    case: &EspCase,
    carriage: EspCarriage,
    (spi, [source, destination]): (u32, [Ipv4Addr; 2]),
    entropy: &mut Entropy,
) -> SaSpec {
    let mut encryption = Zeroizing::new(vec![0u8; case.key_bytes]);
    let mut integrity = Zeroizing::new(vec![0u8; case.suite.integrity.key_length()]);
    entropy.fill(&mut encryption);
    entropy.fill(&mut integrity);
    let keys = EspKeys::new(&encryption, &integrity);
    let mut spec = SaSpec::new(spi, case.suite, keys);
    // The study's suites are weak by now.
    spec.allow_weak = true;
    if carriage.is_tunnel() {
        spec = spec.tunnel(IpAddr::V4(source), IpAddr::V4(destination));
    }
    if carriage.is_encapsulated() {
        spec.encapsulation = Some(UdpEncapsulation {
            source_port: NAT_PORT,
            destination_port: NAT_PORT,
        });
    }
    spec
}

/// The cases of a plan; their names were checked with the file.
fn cases(plan: &EspLoad) -> Vec<&'static EspCase> {
    let names = plan.suites.iter();
    names.filter_map(|name| EspCase::of(name)).collect()
}

/// The modes of a plan, without UDP encapsulation.
fn carriages(plan: &EspLoad) -> Vec<EspCarriage> {
    let of = |mode: &EspModeName| match mode {
        EspModeName::Transport => EspCarriage::Transport,
        EspModeName::Tunnel => EspCarriage::Tunnel,
    };
    plan.modes.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_words_and_a_unit() {
        for (figure, _) in FIGURES {
            let (words, unit) = describe(&format!("esp.{figure}")).unwrap();
            assert!(!words.is_empty() && !unit.is_empty() && !words.contains('_'));
        }
        let described = describe("esp.in_us.aes-cbc-sha1.tunnel").unwrap();
        assert_eq!(
            described,
            ("opening, AES-CBC-SHA1 in tunnel mode".to_owned(), "us")
        );
        let described = describe("esp.in_us.clear").unwrap();
        assert_eq!(described.0, "opening, without ESP");
        assert_eq!(describe("response_p50_ms"), None);
    }

    #[test]
    fn names_of_figures() {
        for name in [
            "esp.in_us.aes-cbc-sha1.tunnel",
            "esp.measured_kbit.aes-gcm.transport-udp",
            "esp.in_us.clear",
            "esp.wrong_packets",
        ] {
            assert!(is_figure(name), "{name}");
        }
        for name in [
            "in_us",
            "esp",
            "esp.in_ms.aes-gcm.tunnel",
            "esp.in_us.rot13.tunnel",
            "esp.in_us.aes-gcm.bridge",
            "esp.in_us.aes-gcm.tunnel.more",
        ] {
            assert!(!is_figure(name), "{name}");
        }
    }
}
