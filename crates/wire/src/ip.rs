//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers, extension headers, fragments and their bounded reassembly.

mod reassembly;
mod udp;

pub use reassembly::{Reassembler, ReassemblyLimits};
pub use udp::UdpPacket;

use crate::ethernet::{array, be16, be32};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol numbers in use here.
pub mod protocol {
    /// ICMP (RFC 792).
    pub const ICMP: u8 = 1;
    /// IPv4 in IP (RFC 2003).
    pub const IPIP: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 in IPv4 (RFC 4213).
    pub const IPV6: u8 = 41;
    /// GRE (RFC 2784).
    pub const GRE: u8 = 47;
    /// ESP (RFC 4303).
    pub const ESP: u8 = 50;
}

/// Maximum number of extension headers that are followed.
const MAX_EXTENSIONS: usize = 16;

/// An IPv4 header; the lengths were checked once at [`Ipv4View::parse`].
#[derive(Clone, Copy, Debug)]
pub struct Ipv4View<'a> {
    packet: &'a [u8],
}

impl<'a> Ipv4View<'a> {
    /// A view; `None` for another version or a truncated header (options included).
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let first = *packet.first()?;
        let header = usize::from(first & 0x0f) * 4;
        (first >> 4 == 4 && header >= 20 && packet.len() >= header).then_some(Ipv4View { packet })
    }

    /// Header length with options.
    pub fn header_length(&self) -> usize {
        usize::from(self.packet.first().copied().unwrap_or(0) & 0x0f) * 4
    }

    /// The total length field.
    pub fn total_length(&self) -> usize {
        usize::from(be16(self.packet, 2))
    }

    /// Identification, equal in all fragments of a packet.
    pub fn identification(&self) -> u16 {
        be16(self.packet, 4)
    }

    /// Whether more fragments follow.
    pub fn more_fragments(&self) -> bool {
        be16(self.packet, 6) & 0x2000 != 0
    }

    /// Offset of this fragment in bytes.
    pub fn fragment_offset(&self) -> usize {
        usize::from(be16(self.packet, 6) & 0x1fff) * 8
    }

    /// Time to live.
    pub fn ttl(&self) -> u8 {
        array::<1>(self.packet, 8)[0]
    }

    /// Differentiated services field.
    pub fn traffic_class(&self) -> u8 {
        array::<1>(self.packet, 1)[0]
    }

    /// Protocol of the payload.
    pub fn protocol(&self) -> u8 {
        array::<1>(self.packet, 9)[0]
    }

    /// Source address.
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.packet, 12))
    }

    /// Destination address.
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.packet, 16))
    }

    /// Whether the header checksum is right.
    pub fn has_valid_checksum(&self) -> bool {
        let header = self.packet.get(..self.header_length()).unwrap_or_default();
        let sum = header
            .chunks_exact(2)
            .fold(0u32, |sum, pair| sum + u32::from(be16(pair, 0)));
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    /// Length of the payload as sent. A total length of zero (segmentation offload) means "to the end of the frame".
    pub fn payload_length(&self) -> usize {
        match self.total_length() {
            0 => self.packet.len() - self.header_length(),
            total => total.saturating_sub(self.header_length()),
        }
    }

    /// The payload, without padding of the link layer.
    pub fn payload(&self) -> &'a [u8] {
        clip(self.packet, self.header_length(), self.payload_length())
    }
}

/// An IPv6 header without its extension headers; the length was checked once at [`Ipv6View::parse`].
#[derive(Clone, Copy, Debug)]
pub struct Ipv6View<'a> {
    packet: &'a [u8],
}

impl<'a> Ipv6View<'a> {
    /// The fixed header's length.
    pub const HEADER: usize = 40;

    /// A view; `None` for another version or a truncated header.
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        (packet.len() >= Self::HEADER && packet.first()? >> 4 == 6).then_some(Ipv6View { packet })
    }

    /// The payload length field: extension headers and upper layer.
    pub fn payload_length(&self) -> usize {
        match usize::from(be16(self.packet, 4)) {
            0 => self.packet.len() - Self::HEADER,
            length => length,
        }
    }

    /// Traffic class.
    pub fn traffic_class(&self) -> u8 {
        (be16(self.packet, 0) >> 4) as u8
    }

    /// Type of the header after this one.
    pub fn next_header(&self) -> u8 {
        array::<1>(self.packet, 6)[0]
    }

    /// Source address.
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.packet, 8))
    }

    /// Destination address.
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.packet, 24))
    }

    /// The bytes after the fixed header, without padding of the link layer.
    pub fn payload(&self) -> &'a [u8] {
        clip(self.packet, Self::HEADER, self.payload_length())
    }
}

fn clip(packet: &[u8], from: usize, length: usize) -> &[u8] {
    let rest = packet.get(from..).unwrap_or_default();
    rest.get(..length).unwrap_or(rest)
}

/// Position of a fragment in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identification (16 bits in IPv4, 32 in IPv6).
    pub identification: u32,
    /// Offset in bytes.
    pub offset: usize,
    /// Whether more follow.
    pub more: bool,
}

/// An IP packet of either version, after its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket<'a> {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// The payload, as far as it was captured.
    pub payload: &'a [u8],
    /// Length of the payload as sent.
    pub payload_length: usize,
    /// Set for a fragment.
    pub fragment: Option<Fragment>,
}

impl<'a> IpPacket<'a> {
    /// The packet in `bytes`, by its version; `None` if a header is truncated or malformed.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            _ => None,
        }
    }

    /// Whether the capture contains less than was sent.
    pub fn is_truncated(&self) -> bool {
        self.payload.len() < self.payload_length
    }

    fn parse_v4(bytes: &'a [u8]) -> Option<Self> {
        let view = Ipv4View::parse(bytes)?;
        let fragment = Fragment {
            identification: u32::from(view.identification()),
            offset: view.fragment_offset(),
            more: view.more_fragments(),
        };
        Some(IpPacket {
            source: view.source().into(),
            destination: view.destination().into(),
            protocol: view.protocol(),
            payload: view.payload(),
            payload_length: view.payload_length(),
            fragment: (fragment.more || fragment.offset != 0).then_some(fragment),
        })
    }

    fn parse_v6(bytes: &'a [u8]) -> Option<Self> {
        let view = Ipv6View::parse(bytes)?;
        let mut packet = IpPacket {
            source: view.source().into(),
            destination: view.destination().into(),
            protocol: view.next_header(),
            payload: view.payload(),
            payload_length: view.payload_length(),
            fragment: None,
        };
        for _ in 0..MAX_EXTENSIONS {
            let length = match packet.protocol {
                // Hop-by-hop, routing, destination options, mobility, HIP, shim6: length in units of 8 after the first
                // 8.
                0 | 43 | 60 | 135 | 139 | 140 => {
                    (usize::from(*packet.payload.get(1)?) + 1).checked_mul(8)?
                }
                // Authentication header (RFC 4302): length in units of 4, less two.
                51 => (usize::from(*packet.payload.get(1)?) + 2).checked_mul(4)?,
                44 => 8,
                _ => return Some(packet),
            };
            let header = packet.payload.get(..length)?;
            if packet.protocol == 44 {
                let field = be16(header, 2);
                let fragment = Fragment {
                    identification: be32(header, 4),
                    offset: usize::from(field & 0xfff8),
                    more: field & 1 != 0,
                };
                // An atomic fragment (RFC 6946) is a complete packet.
                packet.fragment = (fragment.more || fragment.offset != 0).then_some(fragment);
            }
            packet.protocol = *header.first()?;
            packet.payload = packet.payload.get(length..)?;
            packet.payload_length = packet.payload_length.checked_sub(length)?;
            // After the header of the first fragment the chain continues in the reassembled packet only.
            if packet.fragment.is_some() {
                return Some(packet);
            }
        }
        None
    }
}

/// Skips the extension headers at the start of a reassembled IPv6 payload; returns protocol and bytes of the upper
/// layer.
pub fn skip_extensions(mut protocol: u8, mut payload: &[u8]) -> Option<(u8, &[u8])> {
    for _ in 0..MAX_EXTENSIONS {
        let length = match protocol {
            0 | 43 | 60 | 135 | 139 | 140 => (usize::from(*payload.get(1)?) + 1) * 8,
            51 => (usize::from(*payload.get(1)?) + 2) * 4,
            _ => return Some((protocol, payload)),
        };
        protocol = *payload.first()?;
        payload = payload.get(length..)?;
    }
    None
}

/// The Internet checksum (RFC 1071) over `parts`, one after the other; parts other than the last have even lengths.
pub fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        let (words, rest) = part.as_chunks::<2>();
        for word in words {
            sum += u64::from(u16::from_be_bytes(*word));
        }
        if let [last] = rest {
            sum += u64::from(*last) << 8;
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The packet inside a GRE header (RFC 2784, RFC 2890): EtherType and payload. 0x6558 is bridged Ethernet.
pub fn gre_inner(payload: &[u8]) -> Option<(u16, &[u8])> {
    let flags = be16(payload.get(..4)?, 0);
    if flags & 0x4007 != 0 {
        return None;
    }
    let optional = [0x8000, 0x2000, 0x1000]
        .iter()
        .filter(|bit| flags & **bit != 0)
        .count();
    Some((be16(payload, 2), payload.get(4 + 4 * optional..)?))
}

#[cfg(test)]
mod tests;
