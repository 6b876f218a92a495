//! HEP version 3, the encapsulation protocol of HOMER: a message with its addresses and time, in one UDP datagram of
//! chunks (HEP/EEP specification, revision 36).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The beginning of every packet.
const MAGIC: &[u8] = b"HEP3";
/// Bytes of the header: magic and total length.
const HEADER: usize = 6;
/// Bytes of a chunk's header: vendor, type, length including the header.
const CHUNK: usize = 6;
/// Maximum number of chunks; senders use about 15.
const MAX_CHUNKS: usize = 64;

/// IP protocol numbers used in packets.
pub mod ip_protocol {
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
}

/// Protocol types of payloads.
pub mod payload_type {
    /// SIP.
    pub const SIP: u8 = 1;
    /// RTCP as JSON.
    pub const RTCP_JSON: u8 = 5;
}

/// A message in HEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HepPacket<'a> {
    /// Sender of the message.
    pub source: SocketAddr,
    /// Destination of the message.
    pub destination: SocketAddr,
    /// IP protocol that carried it, see [`ip_protocol`].
    pub protocol: u8,
    /// Nanoseconds since the Unix epoch; HEP has microseconds.
    pub time: u64,
    /// See [`payload_type`].
    pub kind: u8,
    /// Number of the capture agent.
    pub agent: u32,
    /// Authentication key of the agent; empty: none.
    pub key: &'a [u8],
    /// Correlation id, which both legs of a call have in common; empty: none.
    pub correlation: &'a [u8],
    /// The message.
    pub payload: &'a [u8],
}

/// The reason why a packet is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HepError {
    /// It does not begin with `HEP3`.
    NotHep3,
    /// A length field exceeds the packet, or is shorter than its own header.
    BadLength,
    /// More than 64 chunks.
    TooManyChunks,
    /// An address, a port or the payload is absent, or has a wrong length.
    Incomplete,
    /// The payload is compressed, which is not supported.
    Compressed,
}

/// Chunks of vendor 0 that are used here.
mod chunk {
    pub(super) const FAMILY: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const SOURCE_V4: u16 = 3;
    pub(super) const DESTINATION_V4: u16 = 4;
    pub(super) const SOURCE_V6: u16 = 5;
    pub(super) const DESTINATION_V6: u16 = 6;
    pub(super) const SOURCE_PORT: u16 = 7;
    pub(super) const DESTINATION_PORT: u16 = 8;
    pub(super) const SECONDS: u16 = 9;
    pub(super) const MICROSECONDS: u16 = 10;
    pub(super) const KIND: u16 = 11;
    pub(super) const AGENT: u16 = 12;
    pub(super) const KEY: u16 = 14;
    pub(super) const PAYLOAD: u16 = 15;
    pub(super) const COMPRESSED_PAYLOAD: u16 = 16;
    pub(super) const CORRELATION: u16 = 17;
}

fn number(value: &[u8]) -> Option<u32> {
    match *value {
        [one] => Some(one.into()),
        [high, low] => Some(u16::from_be_bytes([high, low]).into()),
        [a, b, c, d] => Some(u32::from_be_bytes([a, b, c, d])),
        _ => None,
    }
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(value).ok()?;
    Some(Ipv6Addr::from(octets).into())
}

impl<'a> HepPacket<'a> {
    /// Parses a datagram. Chunks of other vendors and of unknown types are ignored.
    ///
    /// # Errors
    /// The reason why it is malformed.
    pub fn parse(datagram: &'a [u8]) -> Result<HepPacket<'a>, HepError> {
        let rest = datagram.strip_prefix(MAGIC).ok_or(HepError::NotHep3)?;
        let (length, _) = rest.split_first_chunk::<2>().ok_or(HepError::BadLength)?;
        let total = usize::from(u16::from_be_bytes(*length));
        let mut rest = datagram.get(HEADER..total).ok_or(HepError::BadLength)?;
        let (mut addresses, mut ports) = ([None; 2], [None; 2]);
        let (mut seconds, mut micros) = (0, 0);
        let mut payload = None;
        let mut packet = HepPacket {
            source: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            destination: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            protocol: ip_protocol::UDP,
            time: 0,
            kind: payload_type::SIP,
            agent: 0,
            key: &[],
            correlation: &[],
            payload: &[],
        };
        for count in 0.. {
            if rest.is_empty() {
                break;
            }
            if count == MAX_CHUNKS {
                return Err(HepError::TooManyChunks);
            }
            let (head, _) = rest
                .split_first_chunk::<CHUNK>()
                .ok_or(HepError::BadLength)?;
            let [v0, v1, t0, t1, l0, l1] = *head;
            let length = usize::from(u16::from_be_bytes([l0, l1]));
            let value = rest.get(CHUNK..length).ok_or(HepError::BadLength)?;
            rest = rest.get(length..).unwrap_or_default();
            if [v0, v1] != [0, 0] {
                continue;
            }
            let bad = HepError::Incomplete;
            match u16::from_be_bytes([t0, t1]) {
                chunk::PROTOCOL => packet.protocol = *value.first().ok_or(bad)?,
                chunk::SOURCE_V4 | chunk::SOURCE_V6 => addresses[0] = ip(value),
                chunk::DESTINATION_V4 | chunk::DESTINATION_V6 => addresses[1] = ip(value),
                chunk::SOURCE_PORT => ports[0] = number(value),
                chunk::DESTINATION_PORT => ports[1] = number(value),
                chunk::SECONDS => seconds = number(value).ok_or(bad)?,
                chunk::MICROSECONDS => micros = number(value).ok_or(bad)?,
                chunk::KIND => packet.kind = *value.first().ok_or(bad)?,
                chunk::AGENT => packet.agent = number(value).ok_or(bad)?,
                chunk::KEY => packet.key = value,
                chunk::PAYLOAD => payload = Some(value),
                chunk::COMPRESSED_PAYLOAD => return Err(HepError::Compressed),
                chunk::CORRELATION => packet.correlation = value,
                _ => {}
            }
        }
        let address = |side: usize| {
            let port = u16::try_from(ports[side]?).ok()?;
            Some(SocketAddr::new(addresses[side]?, port))
        };
        packet.source = address(0).ok_or(HepError::Incomplete)?;
        packet.destination = address(1).ok_or(HepError::Incomplete)?;
        packet.payload = payload.ok_or(HepError::Incomplete)?;
        let micros = u64::from(micros.min(999_999));
        packet.time = (u64::from(seconds) * 1_000_000 + micros) * 1_000;
        Ok(packet)
    }

    /// Writes the packet into `out`, which is cleared before. `false`, with an empty `out`: it is too long for a
    /// datagram.
    pub fn write(&self, out: &mut Vec<u8>) -> bool {
        out.clear();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[0, 0]);
        let v6 = self.source.is_ipv6() || self.destination.is_ipv6();
        // AF_INET and AF_INET6 of Linux, as all agents send them.
        put(out, chunk::FAMILY, &[if v6 { 10 } else { 2 }]);
        put(out, chunk::PROTOCOL, &[self.protocol]);
        for (address, types) in [
            (self.source, [chunk::SOURCE_V4, chunk::SOURCE_V6]),
            (
                self.destination,
                [chunk::DESTINATION_V4, chunk::DESTINATION_V6],
            ),
        ] {
            match address.ip() {
                IpAddr::V4(ip) if !v6 => put(out, types[0], &ip.octets()),
                IpAddr::V4(ip) => put(out, types[1], &ip.to_ipv6_mapped().octets()),
                IpAddr::V6(ip) => put(out, types[1], &ip.octets()),
            }
        }
        put(out, chunk::SOURCE_PORT, &self.source.port().to_be_bytes());
        let port = self.destination.port();
        put(out, chunk::DESTINATION_PORT, &port.to_be_bytes());
        let micros = self.time / 1_000;
        let seconds = (micros / 1_000_000) as u32;
        put(out, chunk::SECONDS, &seconds.to_be_bytes());
        let micros = (micros % 1_000_000) as u32;
        put(out, chunk::MICROSECONDS, &micros.to_be_bytes());
        put(out, chunk::KIND, &[self.kind]);
        put(out, chunk::AGENT, &self.agent.to_be_bytes());
        if !self.key.is_empty() {
            put(out, chunk::KEY, self.key);
        }
        if !self.correlation.is_empty() {
            put(out, chunk::CORRELATION, self.correlation);
        }
        put(out, chunk::PAYLOAD, self.payload);
        let Ok(total) = u16::try_from(out.len()) else {
            out.clear();
            return false;
        };
        if let Some(length) = out.get_mut(4..HEADER) {
            length.copy_from_slice(&total.to_be_bytes());
        }
        true
    }
}

fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&kind.to_be_bytes());
    // A packet with a value that is too long is refused as a whole.
    let length = (value.len() + CHUNK) as u16;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: &[u8]) -> HepPacket<'_> {
        HepPacket {
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5080".parse().unwrap(),
            protocol: ip_protocol::TCP,
            time: 1_700_000_000_123_456_000,
            kind: payload_type::SIP,
            agent: 2_001,
            key: b"secret",
            correlation: b"call 7",
            payload,
        }
    }

    #[test]
    fn a_packet_is_written_and_parsed() {
        let mut bytes = Vec::new();
        let written = packet(b"OPTIONS sip:x SIP/2.0\r\n\r\n");
        assert!(written.write(&mut bytes));
        assert_eq!(HepPacket::parse(&bytes), Ok(written));
        // Fixed by the specification: magic, total length, the family chunk.
        assert_eq!(bytes[..13], *b"HEP3\0\x94\0\0\0\x01\0\x07\x02");
        let v6 = HepPacket {
            destination: "[2001:db8::1]:1".parse().unwrap(),
            ..written
        };
        assert!(v6.write(&mut bytes));
        let parsed = HepPacket::parse(&bytes).unwrap();
        assert_eq!(parsed.source, "[::ffff:192.0.2.1]:5060".parse().unwrap());
        assert_eq!(parsed.destination, v6.destination);
        let long = vec![0; 65_500];
        assert!(!packet(&long).write(&mut bytes) && bytes.is_empty());
    }

    #[test]
    fn malformed_packets_are_rejected() {
        let mut bytes = Vec::new();
        assert!(packet(b"x").write(&mut bytes));
        assert_eq!(HepPacket::parse(b"HEP2"), Err(HepError::NotHep3));
        assert_eq!(HepPacket::parse(b""), Err(HepError::NotHep3));
        for end in 4..bytes.len() {
            assert_eq!(HepPacket::parse(&bytes[..end]), Err(HepError::BadLength));
        }
        let with = |chunks: &[u8]| {
            let mut packet = b"HEP3\0\0".to_vec();
            packet.extend_from_slice(chunks);
            let length = (packet.len() as u16).to_be_bytes();
            packet[4..6].copy_from_slice(&length);
            packet
        };
        // A chunk shorter than its header would never end.
        let short = with(&[0, 0, 0, 1, 0, 0]);
        assert_eq!(HepPacket::parse(&short), Err(HepError::BadLength));
        assert_eq!(HepPacket::parse(&with(&[])), Err(HepError::Incomplete));
        let many = with(&[0, 0, 0, 1, 0, 6].repeat(65));
        assert_eq!(HepPacket::parse(&many), Err(HepError::TooManyChunks));
        let zipped = with(&[0, 0, 0, 16, 0, 7, 1]);
        assert_eq!(HepPacket::parse(&zipped), Err(HepError::Compressed));
    }

    #[test]
    fn any_bytes_are_parsed_without_panic() {
        let mut bytes = Vec::new();
        assert!(packet(b"payload").write(&mut bytes));
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let _ = HepPacket::parse(&damaged);
            }
        }
    }
}
