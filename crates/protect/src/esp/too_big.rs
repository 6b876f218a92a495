//! The ICMP error for a packet that is longer than the path through a tunnel (RFC 4301 section 8.2): "fragmentation
//! needed" (RFC 1191) and "packet too big" (RFC 8201).

use super::packet::InnerHeader;
use core::net::IpAddr;
use wire::ip::{IpPacket, internet_checksum};

/// Longest ICMP error of IPv4 (RFC 1812 section 4.3.2.3), bytes.
const LONGEST_V4: usize = 576;
/// Longest ICMP error of IPv6 (RFC 4443 section 3.2), and its smallest MTU, bytes.
const LONGEST_V6: usize = 1_280;
const ICMP_HEADER: usize = 8;
const HOP_LIMIT: u8 = 64;

/// Room that suffices for every error, bytes.
pub const TOO_BIG_ROOM: usize = LONGEST_V6;

/// Writes the error for the sender of `original` to `out`, and returns its length. Its source is the destination of the
/// original: a host that filters by reverse path accepts it from the tunnel. There is none for ICMP errors, for later
/// fragments, and for packets to or from groups (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
pub fn write_too_big(original: &[u8], mtu: usize, out: &mut [u8; TOO_BIG_ROOM]) -> Option<usize> {
    let inner = InnerHeader::read(original)?;
    let packet = IpPacket::parse(original)?;
    let first = packet.fragment.is_none_or(|fragment| fragment.offset == 0);
    let single = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified(),
    };
    if !first || !single(packet.source) || !single(packet.destination) {
        return None;
    }
    let kind = packet.payload.first().copied().unwrap_or(0);
    // Errors of IPv4 among the types of ICMP; in ICMPv6 those below 128.
    let of_error = match packet.protocol {
        1 => matches!(kind, 3 | 4 | 5 | 11 | 12),
        58 => kind < 128,
        _ => false,
    };
    if of_error {
        return None;
    }
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            let quoted = inner.length.min(LONGEST_V4 - 20 - ICMP_HEADER);
            let length = 20 + ICMP_HEADER + quoted;
            let error = out.get_mut(..length)?;
            error[..28].fill(0);
            error[0] = 0x45;
            error[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            error[8] = HOP_LIMIT;
            error[9] = 1;
            error[12..16].copy_from_slice(&destination.octets());
            error[16..20].copy_from_slice(&source.octets());
            let sum = internet_checksum(&[&error[..20]]).to_be_bytes();
            error[10..12].copy_from_slice(&sum);
            // Destination unreachable, fragmentation needed.
            error[20] = 3;
            error[21] = 4;
            error[26..28].copy_from_slice(&mtu.to_be_bytes());
            error[28..].copy_from_slice(original.get(..quoted)?);
            let sum = internet_checksum(&[&error[20..]]).to_be_bytes();
            error[22..24].copy_from_slice(&sum);
            Some(length)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            // A smaller value would be ignored (RFC 8201 section 4).
            let mtu = u32::try_from(mtu.max(LONGEST_V6)).unwrap_or(u32::MAX);
            let quoted = inner.length.min(LONGEST_V6 - 40 - ICMP_HEADER);
            let length = 40 + ICMP_HEADER + quoted;
            let payload = (ICMP_HEADER + quoted) as u16;
            let error = out.get_mut(..length)?;
            error[..48].fill(0);
            error[0] = 0x60;
            error[4..6].copy_from_slice(&payload.to_be_bytes());
            error[6] = 58;
            error[7] = HOP_LIMIT;
            error[8..24].copy_from_slice(&destination.octets());
            error[24..40].copy_from_slice(&source.octets());
            // Packet too big.
            error[40] = 2;
            error[44..48].copy_from_slice(&mtu.to_be_bytes());
            error[48..].copy_from_slice(original.get(..quoted)?);
            let pseudo = [0, 0, (payload >> 8) as u8, payload as u8, 0, 0, 0, 58];
            let sum = internet_checksum(&[&error[8..40], &pseudo, &error[40..]]).to_be_bytes();
            error[42..44].copy_from_slice(&sum);
            Some(length)
        }
        _ => None,
    }
}
