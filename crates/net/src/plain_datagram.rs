//! Complete IP packets with one UDP datagram, for paths that bypass the kernel's network stack.

use crate::raw::{self, IpMarks, Sum};
use std::net::{IpAddr, SocketAddr};

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;

/// A UDP datagram in an IP packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainDatagram<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) payload: &'a [u8],
    /// The header of an IPv4 packet.
    header: Option<&'a [u8; V4_HEADER]>,
    /// Source and destination, as in the header.
    addresses: &'a [u8],
    datagram: &'a [u8],
}

impl<'a> PlainDatagram<'a> {
    /// Reads a packet with one complete UDP datagram, without options, extension headers or fragmentation; `None` for
    /// any other. Checksums are not verified.
    pub(crate) fn read(packet: &'a [u8]) -> Option<PlainDatagram<'a>> {
        let (from, to, addresses, header, datagram): (IpAddr, IpAddr, _, _, &[u8]) =
            match packet.first()? >> 4 {
                4 => {
                    let header: &[u8; V4_HEADER] = packet.first_chunk()?;
                    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
                    let is_fragment = (header[6] & 0x3f, header[7]) != (0, 0);
                    if header[0] != 0x45 || header[9] != UDP || is_fragment {
                        return None;
                    }
                    let end =
                        |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
                    let datagram = packet.get(V4_HEADER..total)?;
                    let addresses = &header[12..];
                    let (from, to) = (end(12).into(), end(16).into());
                    (from, to, addresses, Some(header), datagram)
                }
                6 => {
                    let header: &[u8; V6_HEADER] = packet.first_chunk()?;
                    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
                    if header[6] != UDP {
                        return None;
                    }
                    let from: [u8; 16] = header[8..24].try_into().ok()?;
                    let to: [u8; 16] = header[24..40].try_into().ok()?;
                    let datagram = packet.get(V6_HEADER..V6_HEADER + length)?;
                    (from.into(), to.into(), &header[8..], None, datagram)
                }
                _ => return None,
            };
        let udp: &[u8; UDP_HEADER] = datagram.first_chunk()?;
        let field = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
        if usize::from(field(4)) != datagram.len() {
            return None;
        }
        Some(PlainDatagram {
            source: SocketAddr::new(from, field(0)),
            local: SocketAddr::new(to, field(2)),
            payload: datagram.get(UDP_HEADER..)?,
            header,
            addresses,
            datagram,
        })
    }

    /// Whether the IPv4 header has the right checksum, which IPv6 has not.
    pub(crate) fn is_header_intact(&self) -> bool {
        self.header.is_none_or(|header| {
            let mut sum = Sum::default();
            sum.add(header);
            sum.is_all_ones()
        })
    }

    /// Whether the UDP checksum is right, or absent in IPv4 (RFC 768; in IPv6 it is required, RFC 8200 section 8.1).
    pub(crate) fn is_datagram_intact(&self) -> bool {
        if self.datagram.get(6..8) == Some(&[0, 0]) {
            return self.header.is_some();
        }
        let mut sum = Sum::default();
        sum.add(self.addresses);
        sum.add(&[0, UDP]);
        sum.add(&(self.datagram.len() as u16).to_be_bytes());
        sum.add(self.datagram);
        sum.is_all_ones()
    }

    /// Whether the kernel would take the source for that of another host on the path: not this host, a group or a
    /// loopback address, for which further rules exist.
    pub(crate) fn has_plain_source(&self) -> bool {
        let source = self.source.ip();
        let is_special = source.is_loopback() || source.is_multicast() || source.is_unspecified();
        let is_broadcast = source == IpAddr::from([255; 4]);
        !is_special && !is_broadcast && source != self.local.ip()
    }
}

/// Writes a packet into `room` and returns its length; `None` if it has more than `most` bytes, does not fit, or the
/// addresses are of different families. `identification`: for an IPv4 packet that may be fragmented.
pub(crate) fn write(
    room: &mut [u8],
    (source, destination): (SocketAddr, SocketAddr),
    marks: IpMarks,
    most: usize,
    identification: u16,
    payload: &[u8],
) -> Option<usize> {
    let mut headers = [0; raw::HEADERS];
    // The 16-bit length fields of the headers bound the payload.
    if payload.len() + raw::HEADERS > usize::from(u16::MAX)
        || source.is_ipv6() != destination.is_ipv6()
    {
        return None;
    }
    let length = raw::write_headers(source, destination, marks, payload, &mut headers);
    let end = length + payload.len();
    if end > most.min(room.len()) {
        return None;
    }
    if source.is_ipv4() {
        if headers[6..8] == [0, 0] {
            headers[4..6].copy_from_slice(&identification.to_be_bytes());
        }
        let mut sum = Sum::default();
        sum.add(&headers[..V4_HEADER]);
        headers[10..12].copy_from_slice(&sum.checksum().to_ne_bytes());
    }
    room.get_mut(..length)?.copy_from_slice(&headers[..length]);
    room.get_mut(length..end)?.copy_from_slice(payload);
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: IpMarks = IpMarks {
        class: 46 << 2,
        hops: 64,
    };
    const ENDS: [(&str, &str); 2] = [
        ("192.0.2.1:4000", "198.51.100.2:5002"),
        ("[2001:db8::1]:4000", "[2001:db8::2]:5002"),
    ];

    fn packet((source, destination): (&str, &str), payload: &[u8]) -> Vec<u8> {
        let mut room = [0; 2_048];
        let ends = (source.parse().unwrap(), destination.parse().unwrap());
        let length = write(&mut room, ends, MARKS, 1_500, 77, payload).unwrap();
        room[..length].to_vec()
    }

    #[test]
    fn written_packets_are_intact() {
        for ends in ENDS {
            for length in [0, 1, 2, 3, 172, 1_400] {
                let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
                let packet = packet(ends, &payload);
                let read = PlainDatagram::read(&packet).unwrap();
                assert_eq!(read.source, ends.0.parse().unwrap());
                assert_eq!(read.local, ends.1.parse().unwrap());
                assert_eq!(read.payload, payload);
                assert!(read.is_header_intact() && read.is_datagram_intact());
                assert!(read.has_plain_source());
            }
        }
    }

    #[test]
    fn each_changed_byte_is_noticed() {
        for ends in ENDS {
            let packet = packet(ends, b"voice");
            for at in 0..packet.len() {
                let mut changed = packet.clone();
                changed[at] ^= 0x01;
                let intact = PlainDatagram::read(&changed)
                    .is_some_and(|read| read.is_header_intact() && read.is_datagram_intact());
                // Traffic class, flow label and hop limit of IPv6 are under no checksum.
                let is_free = packet[0] >> 4 == 6 && matches!(at, 0..4 | 7);
                assert_eq!(intact, is_free, "{at}");
            }
        }
    }

    #[test]
    fn a_missing_udp_checksum_is_right_in_ipv4_only() {
        for (ends, offset, right) in [(ENDS[0], 26, true), (ENDS[1], 46, false)] {
            let mut packet = packet(ends, b"voice");
            packet[offset..offset + 2].fill(0);
            let read = PlainDatagram::read(&packet).unwrap();
            assert_eq!(read.is_datagram_intact(), right);
        }
    }

    #[test]
    fn sources_with_rules_of_their_own_are_left_to_the_kernel() {
        for source in ["127.0.0.2", "224.0.0.1", "255.255.255.255", "198.51.100.2"] {
            let packet = packet((&format!("{source}:4000"), ENDS[0].1), b"voice");
            assert!(
                !PlainDatagram::read(&packet).unwrap().has_plain_source(),
                "{source}"
            );
        }
    }

    #[test]
    fn fragments_and_options_are_not_read() {
        let whole = packet(ENDS[0], b"voice");
        for (at, value) in [(6, 0x20), (7, 1), (0, 0x46), (9, 6), (3, 200)] {
            let mut other = whole.clone();
            other[at] = value;
            assert!(PlainDatagram::read(&other).is_none(), "{at}");
        }
        let mut other = packet(ENDS[1], b"voice");
        other[6] = 44;
        assert!(PlainDatagram::read(&other).is_none());
    }
}
