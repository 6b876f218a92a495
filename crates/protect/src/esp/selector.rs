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
