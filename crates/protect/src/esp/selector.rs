//! Traffic selectors (RFC 4301 section 4.4.1.1), checked on sealed and on opened packets.

use super::AddressPrefix;
use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use wire::ip::IpPacket;

/// A range of ports, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectorPorts {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl SelectorPorts {
    /// All ports; also of packets without a port.
    pub const ANY: SelectorPorts = SelectorPorts {
        first: 0,
        last: u16::MAX,
    };

    /// One port.
    pub const fn one(port: u16) -> SelectorPorts {
        SelectorPorts {
            first: port,
            last: port,
        }
    }

    #[inline]
    fn contains(self, port: Option<u16>) -> bool {
        self == SelectorPorts::ANY
            || port.is_some_and(|port| self.first <= port && port <= self.last)
    }
}

impl core::fmt::Display for SelectorPorts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// Bounds of a tunnel beside its networks: packets with another protocol or port are not for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectorLimits {
    /// Protocol of the transport layer; all if absent.
    pub protocol: Option<u8>,
    /// Ports on this side; all if empty.
    pub local_ports: Vec<SelectorPorts>,
    /// Ports behind the peer; all if empty.
    pub remote_ports: Vec<SelectorPorts>,
}

impl SelectorLimits {
    /// The selectors of sent packets: from each local to each remote network of the same family.
    pub fn between(
        &self,
        local: &[AddressPrefix],
        remote: &[AddressPrefix],
    ) -> Vec<TrafficSelector> {
        let ports = |ports: &[SelectorPorts]| match ports.is_empty() {
            true => vec![SelectorPorts::ANY],
            false => ports.to_vec(),
        };
        let (local_ports, remote_ports) = (ports(&self.local_ports), ports(&self.remote_ports));
        let mut selectors = Vec::new();
        for source in local {
            let of_family =
                |one: &&AddressPrefix| one.address().is_ipv4() == source.address().is_ipv4();
            for destination in remote.iter().filter(of_family) {
                for source_ports in &local_ports {
                    for destination_ports in &remote_ports {
                        selectors.push(TrafficSelector {
                            source: Some(*source),
                            destination: Some(*destination),
                            protocol: self.protocol,
                            source_ports: *source_ports,
                            destination_ports: *destination_ports,
                        });
                    }
                }
            }
        }
        selectors
    }
}

/// The packets of an association, as it sends or receives them: the source is the sender of this direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficSelector {
    /// Source addresses; all if absent.
    pub source: Option<AddressPrefix>,
    /// Destination addresses; all if absent.
    pub destination: Option<AddressPrefix>,
    /// Protocol of the transport layer; all if absent.
    pub protocol: Option<u8>,
    /// Source ports. For ICMP the type and code as 256 times type plus code (RFC 4301 section 4.4.1.1).
    pub source_ports: SelectorPorts,
    /// Destination ports.
    pub destination_ports: SelectorPorts,
}

impl TrafficSelector {
    /// All packets.
    pub const ANY: TrafficSelector = TrafficSelector {
        source: None,
        destination: None,
        protocol: None,
        source_ports: SelectorPorts::ANY,
        destination_ports: SelectorPorts::ANY,
    };

    /// The selector of the other direction.
    pub const fn reversed(&self) -> TrafficSelector {
        TrafficSelector {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_ports: self.destination_ports,
            destination_ports: self.source_ports,
        }
    }

    /// Whether a packet is selected.
    #[inline]
    pub fn matches(&self, packet: &PacketFacts) -> bool {
        self.source
            .is_none_or(|prefix| prefix.contains(packet.source))
            && self
                .destination
                .is_none_or(|prefix| prefix.contains(packet.destination))
            && self
                .protocol
                .is_none_or(|protocol| packet.protocol == Some(protocol))
            && self.source_ports.contains(packet.source_port)
            && self.destination_ports.contains(packet.destination_port)
    }
}

/// The fields of a packet that selectors look at. A field is absent where it is opaque: in fragments after the first
/// one (RFC 4301 section 7.1), and in protocols without ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFacts {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol of the transport layer.
    pub protocol: Option<u8>,
    /// Source port, or ICMP type and code.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
}

impl PacketFacts {
    /// The facts of an IP packet.
    #[inline]
    pub fn of(packet: &IpPacket<'_>) -> PacketFacts {
        let first = packet.fragment.is_none_or(|fragment| fragment.offset == 0);
        // In IPv6 the protocol of a later fragment may be hidden behind further extension headers.
        let protocol = (first || packet.source.is_ipv4()).then_some(packet.protocol);
        let payload = if first { packet.payload } else { &[] };
        PacketFacts::of_payload(packet.source, packet.destination, protocol, payload)
    }

    /// The facts of the payload of an IP packet.
    #[inline]
    pub fn of_payload(
        source: IpAddr,
        destination: IpAddr,
        protocol: Option<u8>,
        payload: &[u8],
    ) -> PacketFacts {
        let pair = |at: usize| {
            let bytes = payload.get(at..at + 2)?;
            Some(u16::from_be_bytes(bytes.try_into().ok()?))
        };
        let (source_port, destination_port) = match protocol {
            // TCP, UDP, DCCP, SCTP, UDP-Lite.
            Some(6 | 17 | 33 | 132 | 136) => (pair(0), pair(2)),
            // ICMP: type and code in the place of the source port; the destination port is any.
            Some(1 | 58) => (pair(0), None),
            _ => (None, None),
        };
        PacketFacts {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_both_directions() {
        let limits = SelectorLimits {
            protocol: Some(17),
            local_ports: vec![SelectorPorts::one(5_060)],
            remote_ports: vec![
                SelectorPorts::one(5_060),
                SelectorPorts {
                    first: 10_000,
                    last: 10_010,
                },
            ],
        };
        let networks = |texts: &[&str]| -> Vec<AddressPrefix> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let (local, remote) = (
            networks(&["10.1.0.0/24", "fd01::/64"]),
            networks(&["10.2.0.0/24"]),
        );
        let selectors = limits.between(&local, &remote);
        assert_eq!(selectors.len(), 2, "one family, two ranges of ports");
        assert_eq!(limits.remote_ports[1].to_string(), "10000-10010");
        let is_sent = |protocol: u8, source: u16, destination: u16| {
            let mut payload = source.to_be_bytes().to_vec();
            payload.extend(destination.to_be_bytes());
            let (a, b) = ("10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap());
            let there = PacketFacts::of_payload(a, b, Some(protocol), &payload);
            payload.rotate_left(2);
            let back = PacketFacts::of_payload(b, a, Some(protocol), &payload);
            let is_sent = selectors.iter().any(|one| one.matches(&there));
            let is_received = selectors.iter().any(|one| one.reversed().matches(&back));
            assert_eq!(is_sent, is_received);
            is_sent
        };
        assert!(is_sent(17, 5_060, 5_060) && is_sent(17, 5_060, 10_007));
        for (protocol, source, destination) in [
            (6, 5_060, 5_060),
            (17, 5_061, 5_060),
            (17, 5_060, 10_011),
            (1, 5_060, 5_060),
        ] {
            assert!(!is_sent(protocol, source, destination));
        }
        // The ports of a later fragment are opaque.
        let fragment = PacketFacts::of_payload(
            "10.1.0.1".parse().unwrap(),
            "10.2.0.1".parse().unwrap(),
            Some(17),
            &[],
        );
        assert!(!selectors.iter().any(|one| one.matches(&fragment)));
        let all = SelectorLimits::default().between(&local, &local);
        assert_eq!(all.len(), 2);
        assert!(all[0].protocol.is_none() && all[0].source_ports == SelectorPorts::ANY);
    }
}
