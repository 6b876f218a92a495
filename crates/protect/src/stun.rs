//! STUN messages with integrity (RFC 8489) for ICE: parsing, verification, writing.

use crate::cipher::{HmacSha1, PacketMac};
use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use subtle::ConstantTimeEq;
use wire::stun::{MAGIC_COOKIE, StunHeader};

/// Message types (RFC 8489 section 5): the Binding method in its classes.
pub mod message_type {
    /// Request.
    pub const BINDING_REQUEST: u16 = 0x0001;
    /// Indication, which gets no response.
    pub const BINDING_INDICATION: u16 = 0x0011;
    /// Success response.
    pub const BINDING_SUCCESS: u16 = 0x0101;
    /// Error response.
    pub const BINDING_ERROR: u16 = 0x0111;
}

/// Attribute types (RFC 8489 section 18.3, RFC 8445 section 20.2).
pub mod attribute {
    /// User name.
    pub const USERNAME: u16 = 0x0006;
    /// HMAC-SHA1 over the preceding bytes.
    pub const MESSAGE_INTEGRITY: u16 = 0x0008;
    /// Status code and reason.
    pub const ERROR_CODE: u16 = 0x0009;
    /// Unknown mandatory attributes.
    pub const UNKNOWN_ATTRIBUTES: u16 = 0x000a;
    /// The requester's address, XOR-masked.
    pub const XOR_MAPPED_ADDRESS: u16 = 0x0020;
    /// Priority of the peer-reflexive candidate.
    pub const PRIORITY: u16 = 0x0024;
    /// The controlling agent nominates this pair.
    pub const USE_CANDIDATE: u16 = 0x0025;
    /// Software name.
    pub const SOFTWARE: u16 = 0x8022;
    /// CRC-32 over the preceding bytes.
    pub const FINGERPRINT: u16 = 0x8028;
    /// The sender is controlled; value: its tie-breaker.
    pub const ICE_CONTROLLED: u16 = 0x8029;
    /// The sender is controlling; value: its tie-breaker.
    pub const ICE_CONTROLLING: u16 = 0x802a;
}

/// Attributes without this bit are mandatory (RFC 8489 section 14).
const OPTIONAL: u16 = 0x8000;
const FINGERPRINT_MASK: u32 = 0x5354_554e;
/// Length of a MESSAGE-INTEGRITY attribute, header included.
const INTEGRITY: usize = 24;

/// A STUN message with valid lengths and, if present, a valid FINGERPRINT.
#[derive(Clone, Copy)]
pub struct StunMessage<'m> {
    header: StunHeader,
    bytes: &'m [u8],
}

impl<'m> StunMessage<'m> {
    /// Parses a datagram; `None` if it is not a STUN message.
    pub fn parse(datagram: &'m [u8]) -> Option<StunMessage<'m>> {
        let header = StunHeader::parse(datagram)?;
        if usize::from(header.length) != datagram.len() - StunHeader::LENGTH {
            return None;
        }
        let message = StunMessage {
            header,
            bytes: datagram,
        };
        let mut end = StunHeader::LENGTH;
        for (kind, at, value) in message.walk() {
            end = at + 4 + value.len().next_multiple_of(4);
            if kind == attribute::FINGERPRINT {
                let before = datagram.get(..at)?;
                let right = crc32(before) ^ FINGERPRINT_MASK;
                if value != right.to_be_bytes() || end != datagram.len() {
                    return None;
                }
            }
        }
        (end == datagram.len()).then_some(message)
    }

    /// Message type.
    pub fn message_type(&self) -> u16 {
        self.header.message_type
    }

    /// Transaction identifier.
    pub fn transaction(&self) -> [u8; 12] {
        self.header.transaction
    }

    /// The first attribute of a type; with MESSAGE-INTEGRITY only among the covered ones.
    pub fn attribute(&self, kind: u16) -> Option<&'m [u8]> {
        self.covered()
            .find(|(attribute, ..)| *attribute == kind)
            .map(|(_, _, value)| value)
    }

    /// The value of a 32-bit attribute.
    pub fn number(&self, kind: u16) -> Option<u32> {
        let bytes: [u8; 4] = self.attribute(kind)?.try_into().ok()?;
        Some(u32::from_be_bytes(bytes))
    }

    /// XOR-MAPPED-ADDRESS.
    pub fn mapped_address(&self) -> Option<SocketAddr> {
        let value = self.attribute(attribute::XOR_MAPPED_ADDRESS)?;
        let (&[_, family, p1, p0], address) = value.split_first_chunk::<4>()?;
        let port = u16::from_be_bytes([p1, p0]) ^ (MAGIC_COOKIE >> 16) as u16;
        let mask = address_mask(self.transaction());
        let ip = match (family, address.len()) {
            (1, 4) => {
                let mut bytes: [u8; 4] = address.try_into().ok()?;
                mask_with(&mut bytes, &mask);
                IpAddr::V4(Ipv4Addr::from(bytes))
            }
            (2, 16) => {
                let mut bytes: [u8; 16] = address.try_into().ok()?;
                mask_with(&mut bytes, &mask);
                IpAddr::V6(Ipv6Addr::from(bytes))
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }

    /// The status code of an error response.
    pub fn error_code(&self) -> Option<u16> {
        match self.attribute(attribute::ERROR_CODE)? {
            &[_, _, class, number, ..] if number < 100 => {
                Some(u16::from(class & 7) * 100 + u16::from(number))
            }
            _ => None,
        }
    }

    /// Mandatory attributes that are not supported.
    pub fn unknown_attributes(&self) -> impl Iterator<Item = u16> + use<'m> {
        self.covered().map(|(kind, ..)| kind).filter(|kind| {
            let understood = [
                attribute::USERNAME,
                attribute::MESSAGE_INTEGRITY,
                attribute::ERROR_CODE,
                attribute::UNKNOWN_ATTRIBUTES,
                attribute::XOR_MAPPED_ADDRESS,
                attribute::PRIORITY,
                attribute::USE_CANDIDATE,
            ];
            kind & OPTIONAL == 0 && !understood.contains(kind)
        })
    }

    /// Whether the message has MESSAGE-INTEGRITY.
    pub fn has_integrity(&self) -> bool {
        self.walk()
            .any(|(kind, ..)| kind == attribute::MESSAGE_INTEGRITY)
    }

    /// Whether the message has a valid MESSAGE-INTEGRITY.
    pub fn is_authentic(&self, key: &HmacSha1) -> bool {
        let Some((_, at, value)) = self
            .walk()
            .find(|(kind, ..)| *kind == attribute::MESSAGE_INTEGRITY)
        else {
            return false;
        };
        let Some(before) = self.bytes.get(..at) else {
            return false;
        };
        bool::from(value.ct_eq(&integrity(before, key)))
    }

    /// Attributes up to and including MESSAGE-INTEGRITY; later ones must be ignored (RFC 8489 section 14.5), except
    /// FINGERPRINT, which is verified when parsing.
    fn covered(&self) -> impl Iterator<Item = (u16, usize, &'m [u8])> + use<'m> {
        let mut over = false;
        self.walk().take_while(move |(kind, ..)| {
            let take = !over;
            over |= *kind == attribute::MESSAGE_INTEGRITY;
            take
        })
    }

    /// Type, offset and value of each attribute; ends at the first invalid one.
    fn walk(&self) -> impl Iterator<Item = (u16, usize, &'m [u8])> + use<'m> {
        let bytes = self.bytes;
        let mut at = StunHeader::LENGTH;
        core::iter::from_fn(move || {
            let &[k1, k0, l1, l0] = bytes.get(at..)?.first_chunk::<4>()?;
            let length = usize::from(u16::from_be_bytes([l1, l0]));
            let value = bytes.get(at + 4..at + 4 + length)?;
            let here = at;
            at += 4 + length.next_multiple_of(4);
            Some((u16::from_be_bytes([k1, k0]), here, value))
        })
    }
}

impl fmt::Debug for StunMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.header.fmt(f)
    }
}

/// A message being written.
pub struct Builder {
    bytes: Vec<u8>,
    transaction: [u8; 12],
}

impl Builder {
    /// A message without attributes.
    pub fn new(message_type: u16, transaction: [u8; 12]) -> Builder {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&message_type.to_be_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&MAGIC_COOKIE.to_be_bytes());
        bytes.extend_from_slice(&transaction);
        Builder { bytes, transaction }
    }

    /// Appends an attribute; a value of more than 65,535 bytes is truncated.
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Builder {
        let value = value.get(..0xffff).unwrap_or(value);
        self.bytes.extend_from_slice(&kind.to_be_bytes());
        self.bytes
            .extend_from_slice(&(value.len() as u16).to_be_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// Appends XOR-MAPPED-ADDRESS. An IPv4-mapped IPv6 address is written as IPv4.
    pub fn mapped_address(self, address: SocketAddr) -> Builder {
        let mask = address_mask(self.transaction);
        let port = address.port() ^ (MAGIC_COOKIE >> 16) as u16;
        let [p1, p0] = port.to_be_bytes();
        let mut value = vec![0, 0, p1, p0];
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => value.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => value.extend_from_slice(&ip.octets()),
        }
        let family = if value.len() == 8 { 1 } else { 2 };
        if let Some((head, ip)) = value.split_first_chunk_mut::<4>() {
            head[1] = family;
            mask_with(ip, &mask);
        }
        self.attribute(attribute::XOR_MAPPED_ADDRESS, &value)
    }

    /// Appends ERROR-CODE.
    pub fn error(self, code: u16, reason: &str) -> Builder {
        let mut value = vec![0, 0, (code / 100) as u8, (code % 100) as u8];
        value.extend_from_slice(reason.as_bytes());
        self.attribute(attribute::ERROR_CODE, &value)
    }

    /// The datagram, with MESSAGE-INTEGRITY if there is a `key`, and FINGERPRINT.
    pub fn finish(mut self, key: Option<&HmacSha1>) -> Vec<u8> {
        if let Some(key) = key {
            let tag = integrity(&self.bytes, key);
            self = self.attribute(attribute::MESSAGE_INTEGRITY, &tag);
        }
        let length = self.bytes.len() + 8;
        set_length(&mut self.bytes, length);
        let crc = crc32(&self.bytes) ^ FINGERPRINT_MASK;
        self.attribute(attribute::FINGERPRINT, &crc.to_be_bytes())
            .bytes
    }
}

/// The HMAC of the bytes before MESSAGE-INTEGRITY, with the length field as if the message ended after it (RFC 8489
/// section 14.5).
fn integrity(before: &[u8], key: &HmacSha1) -> [u8; 20] {
    let mut covered = before.to_vec();
    set_length(&mut covered, before.len() + INTEGRITY);
    key.tag(&covered, &[])
}

fn set_length(bytes: &mut [u8], whole: usize) {
    let length = (whole.saturating_sub(StunHeader::LENGTH) as u16).to_be_bytes();
    if let Some(field) = bytes.get_mut(2..4) {
        field.copy_from_slice(&length);
    }
}

/// Magic cookie and transaction ID: the mask of addresses.
fn address_mask(transaction: [u8; 12]) -> [u8; 16] {
    let mut mask = [0; 16];
    let (cookie, rest) = mask.split_at_mut(4);
    cookie.copy_from_slice(&MAGIC_COOKIE.to_be_bytes());
    rest.copy_from_slice(&transaction);
    mask
}

fn mask_with(bytes: &mut [u8], mask: &[u8; 16]) {
    for (byte, mask) in bytes.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

/// CRC-32 of ISO 3309, calculated bit by bit: STUN messages are short and rare.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let mask = (crc & 1).wrapping_neg();
            crc = crc >> 1 ^ (0xedb8_8320 & mask);
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_bytes::hex;

    const PASSWORD: &[u8] = b"VOkJxbRl1RmTxUk/WvJxBt";

    #[test]
    fn rfc_5769_sample_request() {
        let bytes = hex(
            "000100582112a442b7e7a701bc34d686fa87dfae80220010 5354554e207465737420636c69656e74
             002400046e0001ff 80290008932ff9b151263b36 00060009 6576746a3a68367659202020
             000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a2 80280004e57a3bcf",
        );
        let message = StunMessage::parse(&bytes).unwrap();
        assert_eq!(message.message_type(), message_type::BINDING_REQUEST);
        assert_eq!(
            message.attribute(attribute::USERNAME),
            Some(&b"evtj:h6vY"[..])
        );
        assert_eq!(message.number(attribute::PRIORITY), Some(0x6e00_01ff));
        assert!(message.is_authentic(&HmacSha1::new(PASSWORD)));
        assert!(!message.is_authentic(&HmacSha1::new(b"another")));
        assert_eq!(message.unknown_attributes().count(), 0);
        // Without its FINGERPRINT (the last eight bytes) it would still be a message protected by MESSAGE-INTEGRITY.
        for at in 0..bytes.len() - 8 {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            let read = StunMessage::parse(&altered);
            assert!(
                read.is_none_or(|read| !read.is_authentic(&HmacSha1::new(PASSWORD))),
                "byte {at}"
            );
        }
        for cut in 0..bytes.len() {
            assert!(StunMessage::parse(&bytes[..cut]).is_none());
        }
    }

    #[test]
    fn rfc_5769_sample_responses() {
        let four = hex(
            "0101003c2112a442b7e7a701bc34d686fa87dfae 8022000b7465737420766563746f7220
             002000080001a147e112a643 000800142b91f599fd9e90c38c7489f92af9ba53f06be7d7 80280004c07d4c96",
        );
        let six = hex(
            "010100482112a442b7e7a701bc34d686fa87dfae 8022000b7465737420766563746f7220
             002000140002a1470113a9faa5d3f179bc25f4b5bed2b9d9
             00080014a382954e4be67bf11784c97c8292c275bfe3ed41 80280004c8fb0b4c",
        );
        let key = HmacSha1::new(PASSWORD);
        for (bytes, address) in [
            (four, "192.0.2.1:32853"),
            (six, "[2001:db8:1234:5678:11:2233:4455:6677]:32853"),
        ] {
            let message = StunMessage::parse(&bytes).unwrap();
            assert!(message.is_authentic(&key));
            let address = address.parse().unwrap();
            assert_eq!(message.mapped_address(), Some(address));
            let written = Builder::new(message_type::BINDING_SUCCESS, message.transaction())
                .mapped_address(address)
                .finish(Some(&key));
            let again = StunMessage::parse(&written).unwrap();
            assert!(again.is_authentic(&key));
            assert_eq!(again.mapped_address(), Some(address));
        }
    }

    #[test]
    fn error_code_and_attributes_behind_integrity() {
        let key = HmacSha1::new(b"secret");
        let bytes = Builder::new(message_type::BINDING_ERROR, [7; 12])
            .error(487, "Role Conflict")
            .finish(Some(&key));
        assert_eq!(StunMessage::parse(&bytes).unwrap().error_code(), Some(487));
        let tag = [0; 20];
        let late = Builder::new(message_type::BINDING_REQUEST, [7; 12])
            .attribute(0x7777, b"mandatory")
            .attribute(attribute::MESSAGE_INTEGRITY, &tag)
            .attribute(attribute::USE_CANDIDATE, &[])
            .finish(None);
        let message = StunMessage::parse(&late).unwrap();
        assert_eq!(message.attribute(attribute::USE_CANDIDATE), None);
        assert_eq!(message.unknown_attributes().collect::<Vec<_>>(), [0x7777]);
        assert!(message.has_integrity() && !message.is_authentic(&key));
    }
}
