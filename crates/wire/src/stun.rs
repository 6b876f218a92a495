//! Which protocol a datagram on a media port belongs to (RFC 7983), and the STUN header (RFC 8489).

use crate::ethernet::{array, be16, be32};

/// The protocols that share a media port, told apart by the first byte (RFC 7983 section 7).
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
    /// First byte 128 to 191; see [`crate::rtcp::is_rtcp`] for the step below.
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

    /// The header of `datagram`; `None` where it is no STUN message with a magic cookie whose length fits.
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

/// Whether `datagram` begins like a DTLS record of a handshake (content type 22, version 254.x; RFC 6347 section 4.1).
pub fn is_dtls_handshake(datagram: &[u8]) -> bool {
    datagram.len() >= 13 && datagram.starts_with(&[22, 254])
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
