//! ESP packets (RFC 4303) and their encapsulation in UDP (RFC 3948), without keys.

use crate::ethernet::be32;
use crate::ip::{IpPacket, protocol};
use core::net::IpAddr;

/// UDP port of IKE and ESP behind a NAT (RFC 3948 section 2).
pub const NAT_TRAVERSAL_PORT: u16 = 4500;
/// Four bytes of zeros in the place of an SPI precede IKE messages on that port (RFC 3948 section 2.2).
pub const NON_ESP_MARKER: [u8; 4] = [0; 4];
/// The payload of a keep-alive for the NAT's binding (RFC 3948 section 2.3).
pub const NAT_KEEP_ALIVE: [u8; 1] = [0xff];
/// Next header of a dummy packet, which the receiver discards (RFC 4303 section 2.6).
pub const DUMMY: u8 = 59;
/// SPIs up to this one are reserved (RFC 4303 section 2.1).
pub const LAST_RESERVED_SPI: u32 = 255;

/// An ESP packet; the length of its header was checked once at [`EspView::parse`].
#[derive(Clone, Copy, Debug)]
pub struct EspView<'a> {
    packet: &'a [u8],
}

impl<'a> EspView<'a> {
    /// The header's length: SPI and sequence number.
    pub const HEADER: usize = 8;

    /// A view of the bytes from the SPI on; `None` if the header is truncated.
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        (packet.len() >= Self::HEADER).then_some(EspView { packet })
    }

    /// Security parameter index.
    pub fn spi(&self) -> u32 {
        be32(self.packet, 0)
    }

    /// Sequence number; with extended sequence numbers its lower half.
    pub fn sequence(&self) -> u32 {
        be32(self.packet, 4)
    }

    /// The bytes after the header: initialisation vector, payload, trailer and ICV.
    pub fn body(&self) -> &'a [u8] {
        self.packet.get(Self::HEADER..).unwrap_or_default()
    }
}

/// A datagram on the port of NAT traversal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatTraversalDatagram<'a> {
    /// A keep-alive; ignored by the receiver.
    KeepAlive,
    /// An IKE message, without its marker.
    Ike(&'a [u8]),
    /// An ESP packet from the SPI on.
    Esp(&'a [u8]),
    /// Too short for any of them.
    Malformed,
}

impl<'a> NatTraversalDatagram<'a> {
    /// Classifies the payload of a UDP datagram (RFC 3948 sections 2.1 to 2.3).
    pub fn parse(payload: &'a [u8]) -> NatTraversalDatagram<'a> {
        if payload == NAT_KEEP_ALIVE {
            return NatTraversalDatagram::KeepAlive;
        }
        match payload.strip_prefix(&NON_ESP_MARKER) {
            Some(message) => NatTraversalDatagram::Ike(message),
            None if payload.len() >= EspView::HEADER => NatTraversalDatagram::Esp(payload),
            None => NatTraversalDatagram::Malformed,
        }
    }
}

/// Whether a message without its marker has the header of IKEv2 (RFC 7296 section 3.1): a cheap check before anything
/// is copied.
pub fn is_ike_v2(message: &[u8]) -> bool {
    const HEADER: usize = 28;
    let Some(header) = message.first_chunk::<HEADER>() else {
        return false;
    };
    let major_version = header[17] >> 4;
    let [.., a, b, c, d] = *header;
    let length = u32::from_be_bytes([a, b, c, d]);
    major_version == 2
        && !header.starts_with(&[0; 8])
        && usize::try_from(length) == Ok(message.len())
}

/// Whether a message without its marker, with a header of IKEv2, is the request that begins a key exchange
/// (IKE_SA_INIT, RFC 7296 sections 3.1 and 1.2).
pub fn is_ike_init_request(message: &[u8]) -> bool {
    const IKE_SA_INIT: u8 = 34;
    const RESPONSE: u8 = 0x20;
    is_ike_v2(message)
        && message.get(18) == Some(&IKE_SA_INIT)
        && message.get(19).is_some_and(|flags| flags & RESPONSE == 0)
}

/// The trailer of a decrypted ESP packet (RFC 4303 sections 2.4 to 2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspTrailer {
    /// Length of the payload before padding and trailer.
    pub payload_length: usize,
    /// Protocol of the payload.
    pub next_header: u8,
}

impl EspTrailer {
    /// Length of the fields after the padding.
    pub const FIELDS: usize = 2;

    /// Reads the trailer of a payload without initialisation vector and ICV; `None` if the padding is longer than the
    /// payload or does not count 1, 2, 3 ... (RFC 4303 section 2.4).
    #[inline]
    pub fn parse(plain: &[u8]) -> Option<EspTrailer> {
        let [rest @ .., length, next_header] = plain else {
            return None;
        };
        let payload_length = rest.len().checked_sub(usize::from(*length))?;
        let padding = rest.get(payload_length..)?;
        let counts = padding.iter().zip(1..=u8::MAX).all(|(byte, n)| *byte == n);
        counts.then_some(EspTrailer {
            payload_length,
            next_header: *next_header,
        })
    }
}

/// Protocol and payload of an unencrypted ESP packet with an ICV of `icv_length` (RFC 2410): `None` unless the padding
/// is valid and a UDP length, a TCP checksum or the header of an inner IP packet fits. `packet` is the IP packet around
/// it.
pub fn unencrypted_payload<'a>(
    packet: &IpPacket<'_>,
    esp: &EspView<'a>,
    icv_length: usize,
) -> Option<(u8, &'a [u8])> {
    let body = esp.body();
    let body = body.get(..body.len().checked_sub(icv_length)?)?;
    if !body.len().is_multiple_of(4) {
        return None;
    }
    let trailer = EspTrailer::parse(body)?;
    let payload = body.get(..trailer.payload_length)?;
    let fits = match trailer.next_header {
        protocol::UDP => crate::udp::UdpView::parse(payload)?.length() == payload.len(),
        protocol::TCP => {
            // The other fields of a TCP header fit by chance too often.
            crate::tcp::TcpView::parse(payload)?;
            tcp_checksum_is_right(packet, payload)
        }
        protocol::IPIP | protocol::IPV6 => {
            let inner = IpPacket::parse(payload)?;
            !inner.is_truncated()
                && matches!(
                    (trailer.next_header, inner.source.is_ipv4()),
                    (protocol::IPIP, true) | (protocol::IPV6, false)
                )
        }
        _ => false,
    };
    fits.then_some((trailer.next_header, payload))
}

/// RFC 9293 section 3.1: the sum over pseudo header and segment is all ones.
fn tcp_checksum_is_right(packet: &IpPacket<'_>, segment: &[u8]) -> bool {
    let sum_of = |bytes: &[u8]| -> u64 {
        bytes
            .chunks(2)
            .map(|pair| match pair {
                [high, low] => u64::from(*high) << 8 | u64::from(*low),
                [high] => u64::from(*high) << 8,
                _ => 0,
            })
            .sum()
    };
    let addresses = |address: IpAddr| match address {
        IpAddr::V4(v4) => sum_of(&v4.octets()),
        IpAddr::V6(v6) => sum_of(&v6.octets()),
    };
    let mut sum = addresses(packet.source)
        + addresses(packet.destination)
        + u64::from(protocol::TCP)
        + segment.len() as u64
        + sum_of(segment);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_on_port_4500_are_classified() {
        use NatTraversalDatagram as D;
        assert_eq!(D::parse(&[0xff]), D::KeepAlive);
        assert_eq!(D::parse(&[0, 0, 0, 0, 1, 2]), D::Ike(&[1, 2]));
        assert_eq!(D::parse(&[0, 0, 0, 0]), D::Ike(&[]));
        let esp = [0, 0, 1, 0, 0, 0, 0, 1];
        assert_eq!(D::parse(&esp), D::Esp(&esp));
        assert_eq!(D::parse(&esp[..7]), D::Malformed);
        assert_eq!(D::parse(&[]), D::Malformed);
        assert_eq!(D::parse(&[0xff, 0xff]), D::Malformed);
    }

    #[test]
    fn messages_of_a_key_exchange_are_told_from_others() {
        let mut message = vec![0; 40];
        message[0] = 1;
        message[17] = 0x20;
        message[27] = 40;
        assert!(is_ike_v2(&message));
        for (at, value) in [(0, 0), (17, 0x10), (27, 39), (24, 1)] {
            let mut other = message.clone();
            other[at] = value;
            assert!(!is_ike_v2(&other), "byte {at}");
        }
        assert!(!is_ike_v2(&message[..27]));
        assert!(!is_ike_v2(&message[..39]));
        // IKE_SA_INIT of the initiator, its response, IKE_AUTH.
        for (exchange, flags, is_first) in [(34, 0x08, true), (34, 0x20, false), (35, 0x08, false)]
        {
            message[18..20].copy_from_slice(&[exchange, flags]);
            assert_eq!(is_ike_init_request(&message), is_first, "{exchange}");
        }
        assert!(!is_ike_init_request(&message[..39]));
    }

    #[test]
    fn padding_is_checked() {
        let read = |plain: &[u8]| {
            EspTrailer::parse(plain).map(|trailer| (trailer.payload_length, trailer.next_header))
        };
        assert_eq!(read(&[9, 9, 1, 2, 2, 17]), Some((2, 17)));
        assert_eq!(read(&[0, 59]), Some((0, 59)));
        assert_eq!(
            read(&[9, 9, 1, 3, 2, 17]),
            None,
            "padding that does not count"
        );
        assert_eq!(read(&[9, 9, 2, 2, 3, 17]), None);
        assert_eq!(read(&[1, 2, 3, 17]), None, "more padding than bytes");
        // The longest padding, whose last byte is the largest number.
        let mut longest: Vec<u8> = (1..=u8::MAX).collect();
        longest.extend([u8::MAX, 4]);
        assert_eq!(read(&longest), Some((0, 4)));
        assert_eq!(read(&[17]), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn header_fields() {
        let view = EspView::parse(&[0, 0, 0x11, 0x22, 0, 1, 0, 2, 7]).unwrap();
        assert_eq!((view.spi(), view.sequence()), (0x1122, 0x1_0002));
        assert_eq!(view.body(), [7]);
        assert!(EspView::parse(&[0; 7]).is_none());
    }
}
