//! UDP datagrams in IP packets (RFC 768), read and written whole.

use super::{IpPacket, internet_checksum, protocol};
use core::net::{IpAddr, SocketAddr};

/// Length of a UDP header, bytes.
const HEADER: usize = 8;

/// A UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPacket<'a> {
    /// Source.
    pub source: SocketAddr,
    /// Destination.
    pub destination: SocketAddr,
    /// Payload.
    pub payload: &'a [u8],
}

impl<'a> UdpPacket<'a> {
    /// Reads an IP packet; `None` if it is no whole UDP datagram: another protocol, a fragment, or truncated. The
    /// checksum is not verified.
    pub fn parse(packet: &'a [u8]) -> Option<UdpPacket<'a>> {
        let ip = IpPacket::parse(packet)?;
        if ip.protocol != protocol::UDP || ip.fragment.is_some() || ip.is_truncated() {
            return None;
        }
        let (header, rest) = ip.payload.split_first_chunk::<HEADER>()?;
        let word = |at: usize| {
            let bytes = header.get(at..at + 2)?;
            Some(u16::from_be_bytes(bytes.try_into().ok()?))
        };
        let length = usize::from(word(4)?).checked_sub(HEADER)?;
        Some(UdpPacket {
            source: SocketAddr::new(ip.source, word(0)?),
            destination: SocketAddr::new(ip.destination, word(2)?),
            payload: rest.get(..length)?,
        })
    }

    /// Writes the datagram as an IP packet, with checksums; `None` if the addresses are of two families, or the payload
    /// is longer than a packet.
    pub fn to_packet(&self) -> Option<Vec<u8>> {
        let udp_length = u16::try_from(HEADER + self.payload.len()).ok()?;
        let mut packet = Vec::with_capacity(40 + usize::from(udp_length));
        // Of the pseudo header behind the addresses (RFC 768, RFC 8200 section 8.1).
        let [high, low] = udp_length.to_be_bytes();
        let pseudo = [0, protocol::UDP, high, low];
        let addresses = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let total = udp_length.checked_add(20)?.to_be_bytes();
                packet.extend_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0x40, 0]);
                packet.extend_from_slice(&[64, protocol::UDP, 0, 0]);
                packet.extend_from_slice(&source.octets());
                packet.extend_from_slice(&destination.octets());
                let checksum = internet_checksum(&[&packet]).to_be_bytes();
                packet.get_mut(10..12)?.copy_from_slice(&checksum);
                12..20
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                packet.extend_from_slice(&[0x60, 0, 0, 0, high, low, protocol::UDP, 64]);
                packet.extend_from_slice(&source.octets());
                packet.extend_from_slice(&destination.octets());
                8..40
            }
            _ => return None,
        };
        let start = packet.len();
        packet.extend_from_slice(&self.source.port().to_be_bytes());
        packet.extend_from_slice(&self.destination.port().to_be_bytes());
        packet.extend_from_slice(&[high, low, 0, 0]);
        packet.extend_from_slice(self.payload);
        let parts = [packet.get(addresses)?, &pseudo, packet.get(start..)?];
        let checksum = match internet_checksum(&parts) {
            // Zero stands for none.
            0 => 0xffff,
            checksum => checksum,
        };
        let field = packet.get_mut(start + 6..start + 8)?;
        field.copy_from_slice(&checksum.to_be_bytes());
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_datagram_is_read_again() {
        for (source, destination, header) in [
            ("192.0.2.1:500", "192.0.2.2:4500", 20),
            ("[2001:db8::1]:500", "[2001:db8::2]:4500", 40),
        ] {
            let datagram = UdpPacket {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                payload: b"odd",
            };
            let packet = datagram.to_packet().unwrap();
            assert_eq!(packet.len(), header + 8 + 3);
            assert_eq!(UdpPacket::parse(&packet), Some(datagram));
            for length in 0..packet.len() {
                assert_eq!(UdpPacket::parse(&packet[..length]), None, "{length}");
            }
        }
        let two = UdpPacket {
            source: "192.0.2.1:1".parse().unwrap(),
            destination: "[::1]:1".parse().unwrap(),
            payload: &[],
        };
        assert_eq!(two.to_packet(), None);
        let long = vec![0; 65_530];
        let long = UdpPacket {
            destination: two.source,
            payload: &long,
            ..two
        };
        assert_eq!(long.to_packet(), None);
    }
}
