//! Demultiplexing of datagrams on a media port (RFC 7983), and the STUN header (RFC 8489).

use crate::ethernet::{array, be16, be32};
use std::net::{IpAddr, SocketAddr};

/// The protocols that share a media port, by the first byte (RFC 7983 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaProtocol {
    /// First byte 0 to 3.
    Stun,
    /// First byte 16 to 19.
    Zrtp,
    /// First byte 20 to 63.
    Dtls,
    /// First byte 64 to 79.
    TurnChannel,
    /// First byte 128 to 191; see [`crate::rtcp::is_rtcp`] for the distinction of RTP and RTCP.
    RtpOrRtcp,
    /// Anything else, and the empty datagram.
    Unknown,
}

/// The protocol of `datagram` by its first byte.
pub fn media_protocol(datagram: &[u8]) -> MediaProtocol {
    match datagram.first() {
        Some(0..=3) => MediaProtocol::Stun,
        Some(16..=19) => MediaProtocol::Zrtp,
        Some(20..=63) => MediaProtocol::Dtls,
        Some(64..=79) => MediaProtocol::TurnChannel,
        Some(128..=191) => MediaProtocol::RtpOrRtcp,
        _ => MediaProtocol::Unknown,
    }
}

/// The magic cookie of RFC 8489 section 5.
pub const MAGIC_COOKIE: u32 = 0x2112_a442;

/// A STUN header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StunHeader {
    /// Message type with its class bits, for example 0x0001 a Binding request.
    pub message_type: u16,
    /// Length of the attributes in bytes.
    pub length: u16,
    /// Transaction identifier.
    pub transaction: [u8; 12],
}

impl StunHeader {
    /// The header's length.
    pub const LENGTH: usize = 20;

    /// The header of `datagram`; `None` unless it is a STUN message with a magic cookie and a valid length.
    pub fn parse(datagram: &[u8]) -> Option<StunHeader> {
        let header = datagram.get(..Self::LENGTH)?;
        let message_type = be16(header, 0);
        let length = be16(header, 2);
        let fits = message_type & 0xc000 == 0
            && be32(header, 4) == MAGIC_COOKIE
            && length.is_multiple_of(4)
            && usize::from(length) <= datagram.len() - Self::LENGTH;
        fits.then(|| StunHeader {
            message_type,
            length,
            transaction: array(header, 8),
        })
    }
}

/// A Binding request.
pub const BINDING_REQUEST: u16 = 0x0001;
const BINDING_SUCCESS: u16 = 0x0101;
const BINDING_ERROR: u16 = 0x0111;
const ERROR_CODE: u16 = 0x0009;
const UNKNOWN_ATTRIBUTES: u16 = 0x000a;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;

/// Appends the response to the Binding request `request` from `source`, for a keep-alive of RFC 5626 section 4.4.2:
/// XOR-MAPPED-ADDRESS without authentication, or error 420 for unknown comprehension-required attributes (RFC 8489
/// section
/// 6.3.1). Returns `false` and appends nothing if it is no Binding request.
pub fn write_binding_response(request: &[u8], source: SocketAddr, out: &mut Vec<u8>) -> bool {
    let Some(header) =
        StunHeader::parse(request).filter(|header| header.message_type == BINDING_REQUEST)
    else {
        return false;
    };
    let mut attributes = Vec::with_capacity(24);
    let unknown = unknown_attributes(request, header.length);
    let message_type = match unknown.is_empty() {
        true => {
            xor_mapped(source, &header.transaction, &mut attributes);
            BINDING_SUCCESS
        }
        false => {
            let code = [&[0, 0, 4, 20][..], b"Unknown Attribute"].concat();
            attribute(ERROR_CODE, &code, &mut attributes);
            let list: Vec<u8> = unknown.iter().flat_map(|kind| kind.to_be_bytes()).collect();
            attribute(UNKNOWN_ATTRIBUTES, &list, &mut attributes);
            BINDING_ERROR
        }
    };
    out.extend_from_slice(&message_type.to_be_bytes());
    out.extend_from_slice(&(attributes.len() as u16).to_be_bytes());
    out.extend_from_slice(&MAGIC_COOKIE.to_be_bytes());
    out.extend_from_slice(&header.transaction);
    out.extend_from_slice(&attributes);
    true
}

/// Appends a Binding request without attributes: a keep-alive of RFC 5626 section 4.4.2.
pub fn binding_request(transaction: &[u8; 12], out: &mut Vec<u8>) {
    out.extend_from_slice(&BINDING_REQUEST.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&MAGIC_COOKIE.to_be_bytes());
    out.extend_from_slice(transaction);
}

/// The transaction of a response to a Binding request, and the mapped address that it contains, if any; `None` for
/// other datagrams.
pub fn parse_binding_response(datagram: &[u8]) -> Option<([u8; 12], Option<SocketAddr>)> {
    let header = StunHeader::parse(datagram)?;
    match header.message_type {
        BINDING_SUCCESS => {}
        BINDING_ERROR => return Some((header.transaction, None)),
        _ => return None,
    }
    let end = StunHeader::LENGTH + usize::from(header.length);
    let mut rest = datagram.get(StunHeader::LENGTH..end)?;
    while let Some((head, tail)) = rest.split_at_checked(4) {
        let (kind, size) = (be16(head, 0), usize::from(be16(head, 2)));
        if kind == XOR_MAPPED_ADDRESS {
            let mapped = tail
                .get(..size)
                .and_then(|value| unmapped(value, &header.transaction));
            return Some((header.transaction, mapped));
        }
        rest = tail.get(size.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((header.transaction, None))
}

/// The address in an XOR-MAPPED-ADDRESS (RFC 8489 section 14.2).
fn unmapped(value: &[u8], transaction: &[u8; 12]) -> Option<SocketAddr> {
    let port = be16(value.get(..4)?, 2) ^ (MAGIC_COOKIE >> 16) as u16;
    let address = value.get(4..)?;
    let mut key = [0; 16];
    key[..4].copy_from_slice(&MAGIC_COOKIE.to_be_bytes());
    key[4..].copy_from_slice(transaction);
    let ip: IpAddr = match (value.get(1)?, address.len()) {
        (1, 4) => {
            let mut octets: [u8; 4] = address.try_into().ok()?;
            octets
                .iter_mut()
                .zip(key)
                .for_each(|(octet, key)| *octet ^= key);
            octets.into()
        }
        (2, 16) => {
            let mut octets: [u8; 16] = address.try_into().ok()?;
            octets
                .iter_mut()
                .zip(key)
                .for_each(|(octet, key)| *octet ^= key);
            octets.into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Comprehension-required attribute types (below 0x8000), eight at most; a keep-alive requires none of them.
fn unknown_attributes(request: &[u8], length: u16) -> Vec<u16> {
    let end = StunHeader::LENGTH + usize::from(length);
    let mut rest = request.get(StunHeader::LENGTH..end).unwrap_or_default();
    let mut unknown = Vec::new();
    while let Some((head, tail)) = rest.split_at_checked(4) {
        let (kind, size) = (be16(head, 0), usize::from(be16(head, 2)));
        if kind < 0x8000 && unknown.len() < 8 {
            unknown.push(kind);
        }
        rest = tail.get(size.next_multiple_of(4)..).unwrap_or_default();
    }
    unknown
}

fn attribute(kind: u16, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn xor_mapped(source: SocketAddr, transaction: &[u8; 12], out: &mut Vec<u8>) {
    let cookie = MAGIC_COOKIE.to_be_bytes();
    let mut value = vec![0, if source.is_ipv4() { 1 } else { 2 }];
    let port = source.port() ^ (MAGIC_COOKIE >> 16) as u16;
    value.extend_from_slice(&port.to_be_bytes());
    let mask = cookie.iter().chain(transaction);
    match source.ip() {
        IpAddr::V4(ip) => value.extend(ip.octets().iter().zip(mask).map(|(a, b)| a ^ b)),
        IpAddr::V6(ip) => value.extend(ip.octets().iter().zip(mask).map(|(a, b)| a ^ b)),
    }
    attribute(XOR_MAPPED_ADDRESS, &value, out);
}

/// Whether `datagram` begins like a DTLS handshake record (content type 22, version 254.x; RFC 6347 section 4.1).
pub fn is_dtls_handshake(datagram: &[u8]) -> bool {
    datagram.len() >= 13 && datagram.starts_with(&[22, 254])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_response_contains_the_mapped_address() {
        let transaction = [7; 12];
        for source in ["192.0.2.7:40000", "[2001:db8::7]:5060"] {
            let source: SocketAddr = source.parse().unwrap();
            let (mut request, mut answer) = (Vec::new(), Vec::new());
            binding_request(&transaction, &mut request);
            assert!(write_binding_response(&request, source, &mut answer));
            assert_eq!(
                parse_binding_response(&answer),
                Some((transaction, Some(source)))
            );
            assert_eq!(parse_binding_response(&request), None);
            for end in 0..answer.len() {
                assert_eq!(
                    parse_binding_response(&answer[..end]),
                    None,
                    "truncated at {end}"
                );
            }
        }
    }

    #[test]
    fn first_byte_and_header() {
        assert_eq!(media_protocol(&[0x80]), MediaProtocol::RtpOrRtcp);
        assert_eq!(media_protocol(&[22]), MediaProtocol::Dtls);
        assert_eq!(media_protocol(&[0x40]), MediaProtocol::TurnChannel);
        assert_eq!(media_protocol(&[17]), MediaProtocol::Zrtp);
        assert_eq!(media_protocol(&[]), MediaProtocol::Unknown);
        let mut binding = [0u8; 20];
        binding[1] = 1;
        binding[4..8].copy_from_slice(&MAGIC_COOKIE.to_be_bytes());
        binding[8] = 9;
        assert_eq!(media_protocol(&binding), MediaProtocol::Stun);
        let header = StunHeader::parse(&binding).unwrap();
        assert_eq!((header.message_type, header.transaction[0]), (1, 9));
        binding[3] = 4;
        assert!(
            StunHeader::parse(&binding).is_none(),
            "longer than the datagram"
        );
    }

    /// The responses of RFC 5769 sections 2.2 and 2.3 without attributes that a keep-alive does not have (SOFTWARE,
    /// integrity).
    #[test]
    fn binding_requests_are_answered() {
        let transaction = [
            0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa, 0x87, 0xdf, 0xae,
        ];
        let mut request = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
        request.extend(transaction);
        let mut out = Vec::new();
        assert!(write_binding_response(
            &request,
            "192.0.2.1:32853".parse().unwrap(),
            &mut out
        ));
        assert_eq!(out[..4], [1, 1, 0, 12]);
        assert_eq!(out[4..20], request[4..20]);
        assert_eq!(
            out[20..],
            [0, 0x20, 0, 8, 0, 1, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43]
        );
        out.clear();
        let v6 = "[2001:db8:1234:5678:11:2233:4455:6677]:32853";
        assert!(write_binding_response(
            &request,
            v6.parse().unwrap(),
            &mut out
        ));
        assert_eq!(
            out[20..],
            [
                0, 0x20, 0, 0x14, 0, 2, 0xa1, 0x47, 0x01, 0x13, 0xa9, 0xfa, 0xa5, 0xd3, 0xf1, 0x79,
                0xbc, 0x25, 0xf4, 0xb5, 0xbe, 0xd2, 0xb9, 0xd9
            ]
        );
        // SOFTWARE is allowed; CHANGE-REQUEST is comprehension-required.
        let with = |attribute: &[u8]| {
            let mut request = request.clone();
            request[3] = attribute.len() as u8;
            request.extend(attribute);
            let mut out = Vec::new();
            assert!(write_binding_response(
                &request,
                "192.0.2.1:1".parse().unwrap(),
                &mut out
            ));
            assert_eq!(usize::from(out[3]), out.len() - 20);
            out
        };
        assert_eq!(with(&[0x80, 0x22, 0, 1, b'x', 0, 0, 0])[..2], [1, 1]);
        let refused = with(&[0, 3, 0, 4, 0, 0, 0, 6]);
        assert_eq!(refused[..2], [1, 0x11]);
        assert_eq!(refused[20..28], [0, 9, 0, 21, 0, 0, 4, 20]);
        assert_eq!(refused[48..], [0, 10, 0, 2, 0, 3, 0, 0]);
        // Neither responses nor requests of other methods are answered.
        for kind in [[1, 1], [0, 3], [0, 0x11]] {
            let mut other = request.clone();
            other[..2].copy_from_slice(&kind);
            assert!(!write_binding_response(
                &other,
                "192.0.2.1:1".parse().unwrap(),
                &mut out
            ));
        }
        assert!(!write_binding_response(
            b"",
            "192.0.2.1:1".parse().unwrap(),
            &mut out
        ));
    }
}
