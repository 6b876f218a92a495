//! Frames as they are on the wire. The kernel hands packet sockets frames whose checksum the device would complete,
//! frames that it would segment, and keeps VLAN tags beside them; behind virtual interfaces there is no device that
//! does it.

use crate::raw::Sum;

/// Length of the header before each frame (`struct virtio_net_hdr`, virtio 1.2 section 5.1.6), without merged buffers.
pub(crate) const VNET_HEADER: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
const GSO_UDP: u8 = 5;
/// Explicit congestion notification: not a type, but a flag beside it.
const GSO_ECN: u8 = 0x80;
const MAC_ADDRESSES: usize = 12;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN_AND_PUSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Header of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VnetHeader {
    flags: u8,
    gso_type: u8,
    /// Bytes of payload in each segment.
    gso_size: usize,
    checksum_start: usize,
    checksum_offset: usize,
}

impl VnetHeader {
    pub(crate) fn read(bytes: &[u8]) -> Option<VnetHeader> {
        let header: &[u8; VNET_HEADER] = bytes.first_chunk()?;
        let word = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        Some(VnetHeader {
            flags: header[0],
            gso_type: header[1] & !GSO_ECN,
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        })
    }
}

/// Passes the frames on the wire that make up `frame` to `sink`. `tag`: a VLAN tag (protocol and control information)
/// that the kernel has removed. `scratch` is used for frames that differ from the given one. Returns false if the frame
/// has a form that cannot be reproduced; nothing is passed then.
pub(crate) fn wire_frames(
    frame: &mut [u8],
    header: VnetHeader,
    tag: Option<[u8; 4]>,
    scratch: &mut Vec<u8>,
    sink: &mut dyn FnMut(&[u8]),
) -> bool {
    if header.gso_type != GSO_NONE {
        return segment(frame, header, tag, scratch, sink).is_some();
    }
    if header.flags & NEEDS_CHECKSUM != 0 && complete_checksum(frame, header).is_none() {
        return false;
    }
    pass(frame, tag, scratch, sink);
    true
}

fn pass(frame: &[u8], tag: Option<[u8; 4]>, scratch: &mut Vec<u8>, sink: &mut dyn FnMut(&[u8])) {
    match tag {
        Some(tag) if frame.len() >= MAC_ADDRESSES => {
            let (addresses, rest) = frame.split_at(MAC_ADDRESSES);
            scratch.clear();
            scratch.extend_from_slice(addresses);
            scratch.extend_from_slice(&tag);
            scratch.extend_from_slice(rest);
            sink(scratch);
        }
        _ => sink(frame),
    }
}

/// The field contains the sum of the pseudo header; the sum of the packet is added.
fn complete_checksum(frame: &mut [u8], header: VnetHeader) -> Option<()> {
    let mut sum = Sum::default();
    sum.add(frame.get(header.checksum_start..)?);
    let at = header.checksum_start + header.checksum_offset;
    let field = frame.get_mut(at..at + 2)?;
    field.copy_from_slice(&sum.checksum().to_ne_bytes());
    Some(())
}

/// Offset of the IP header of an Ethernet frame, and whether it is IPv6.
fn ip_header(frame: &[u8]) -> Option<(usize, bool)> {
    let mut at = MAC_ADDRESSES;
    loop {
        match frame.get(at..at + 2)? {
            [0x08, 0x00] => return Some((at + 2, false)),
            [0x86, 0xdd] => return Some((at + 2, true)),
            [0x81, 0x00] | [0x88, 0xa8] => at += 4,
            _ => return None,
        }
    }
}

/// Divides a frame with several segments of TCP or UDP into frames.
fn segment(
    frame: &[u8],
    header: VnetHeader,
    tag: Option<[u8; 4]>,
    scratch: &mut Vec<u8>,
    sink: &mut dyn FnMut(&[u8]),
) -> Option<()> {
    let (ip, is_v6) = ip_header(frame)?;
    let (protocol, transport_header) = match (header.gso_type, is_v6) {
        (GSO_TCP_V4, false) | (GSO_TCP_V6, true) => {
            let offset = frame.get(header.checksum_start + 12)? >> 4;
            (TCP, usize::from(offset) * 4)
        }
        (GSO_UDP, _) => (UDP, 8),
        _ => return None,
    };
    let transport = match is_v6 {
        // Extension headers are before the transport header.
        true => header.checksum_start,
        false => ip + usize::from(frame.get(ip)? & 0xf) * 4,
    };
    let ip_header_length = if is_v6 { 40 } else { 20 };
    // Another position is that of the headers of a packet in a tunnel.
    if transport != header.checksum_start
        || transport < ip + ip_header_length
        || header.gso_size == 0
    {
        return None;
    }
    let shortest = if protocol == TCP { 20 } else { 8 };
    let payload_at = transport + transport_header;
    let payload = frame.get(payload_at..)?;
    if transport_header < shortest || payload.is_empty() {
        return None;
    }
    let count = payload.len().div_ceil(header.gso_size);
    let mut made = Vec::with_capacity(payload_at + header.gso_size);
    for (number, part) in payload.chunks(header.gso_size).enumerate() {
        made.clear();
        made.extend_from_slice(frame.get(..payload_at)?);
        made.extend_from_slice(part);
        let (first, last) = (number == 0, number + 1 == count);
        set_ip(&mut made, ip, is_v6, number);
        if protocol == TCP {
            let sequence: [u8; 4] = made.get(transport + 4..transport + 8)?.try_into().ok()?;
            let shift = (number * header.gso_size) as u32;
            let sequence = u32::from_be_bytes(sequence).wrapping_add(shift);
            made[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
            let flags = &mut made[transport + 13];
            *flags &= !match (first, last) {
                (true, true) => 0,
                (true, false) => FIN_AND_PUSH,
                (false, true) => CWR,
                (false, false) => FIN_AND_PUSH | CWR,
            };
        } else {
            let length = (made.len() - transport) as u16;
            made[transport + 4..transport + 6].copy_from_slice(&length.to_be_bytes());
        }
        let field = transport + if protocol == TCP { 16 } else { 6 };
        made[field..field + 2].fill(0);
        let sum = transport_checksum(&made, (ip, transport), is_v6, protocol);
        made[field..field + 2].copy_from_slice(&sum.to_ne_bytes());
        pass(&made, tag, scratch, sink);
    }
    Some(())
}

/// Sets the length, and for IPv4 identification and checksum, of segment `number`.
fn set_ip(frame: &mut [u8], ip: usize, is_v6: bool, number: usize) {
    let length = (frame.len() - ip) as u16;
    if is_v6 {
        frame[ip + 4..ip + 6].copy_from_slice(&length.saturating_sub(40).to_be_bytes());
        return;
    }
    frame[ip + 2..ip + 4].copy_from_slice(&length.to_be_bytes());
    let identification = u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]);
    let identification = identification.wrapping_add(number as u16);
    frame[ip + 4..ip + 6].copy_from_slice(&identification.to_be_bytes());
    frame[ip + 10..ip + 12].fill(0);
    let end = ip + usize::from(frame[ip] & 0xf) * 4;
    let mut sum = Sum::default();
    sum.add(&frame[ip..end]);
    let checksum = sum.checksum().to_ne_bytes();
    frame[ip + 10..ip + 12].copy_from_slice(&checksum);
}

fn transport_checksum(
    frame: &[u8],
    (ip, transport): (usize, usize),
    is_v6: bool,
    protocol: u8,
) -> u16 {
    let mut sum = Sum::default();
    let addresses = match is_v6 {
        true => ip + 8..ip + 40,
        false => ip + 12..ip + 20,
    };
    sum.add(&frame[addresses]);
    sum.add(&[0, protocol]);
    sum.add(&((frame.len() - transport) as u16).to_be_bytes());
    sum.add(&frame[transport..]);
    sum.checksum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of RFC 1071 word by word; 0xffff for a correct checksum.
    fn plain_sum(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|pair| {
            let low = pair.get(1).copied().unwrap_or(0);
            u32::from(pair[0]) << 8 | u32::from(low)
        });
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn sum_of_transport(frame: &[u8], protocol: u8) -> u16 {
        let length = (frame.len() - 34) as u16;
        let mut all = frame[26..34].to_vec();
        all.extend([0, protocol]);
        all.extend(length.to_be_bytes());
        all.extend(&frame[34..]);
        plain_sum(&all)
    }

    fn frame(protocol: u8, transport: &[u8], payload: usize) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let total = (20 + transport.len() + payload) as u16;
        frame.extend([0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0xff, 0xff, 0x40, 0, 64, protocol, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(transport);
        frame.extend((0..payload).map(|n| n as u8));
        frame
    }

    fn frames(frame: &[u8], header: VnetHeader, tag: Option<[u8; 4]>) -> Option<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        let mut frame = frame.to_vec();
        let mut sink = |bytes: &[u8]| all.push(bytes.to_vec());
        let whole = wire_frames(&mut frame, header, tag, &mut Vec::new(), &mut sink);
        whole.then_some(all)
    }

    fn header(gso_type: u8, gso_size: usize, checksum_offset: usize) -> VnetHeader {
        VnetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type,
            gso_size,
            checksum_start: 34,
            checksum_offset,
        }
    }

    #[test]
    fn partial_checksum_is_completed() {
        let mut udp = frame(UDP, &[0x13, 0x88, 0x13, 0x88, 0, 41, 0, 0], 33);
        // The field holds the sum of the pseudo header, as a sender with offload writes it.
        let mut pseudo = udp[26..34].to_vec();
        pseudo.extend([0, UDP, 0, 41]);
        let sum = plain_sum(&pseudo);
        udp[40..42].copy_from_slice(&sum.to_be_bytes());
        let made = frames(&udp, header(GSO_NONE, 0, 6), None).unwrap();
        assert_eq!(made.len(), 1);
        assert_eq!(sum_of_transport(&made[0], UDP), 0xffff);
    }

    #[test]
    fn tcp_segments_have_lengths_sequence_flags_and_checksums() {
        let mut tcp = vec![0x13, 0x88, 0x13, 0x88];
        tcp.extend(0xffff_ff00u32.to_be_bytes());
        tcp.extend([0, 0, 0, 1, 0x50, 0x99, 1, 0, 0, 0, 0, 0]);
        let large = frame(TCP, &tcp, 1_000);
        let made = frames(&large, header(GSO_TCP_V4, 400, 16), None).unwrap();
        let lengths: Vec<usize> = made.iter().map(Vec::len).collect();
        assert_eq!(lengths, [454, 454, 254]);
        let mut payload: Vec<u8> = Vec::new();
        for (number, made) in made.iter().enumerate() {
            assert_eq!(plain_sum(&made[14..34]), 0xffff);
            assert_eq!(sum_of_transport(made, TCP), 0xffff);
            let total = u16::from_be_bytes([made[16], made[17]]);
            assert_eq!(usize::from(total), made.len() - 14);
            let sequence = u32::from_be_bytes(made[38..42].try_into().unwrap());
            assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(number as u32 * 400));
            payload.extend(&made[54..]);
        }
        assert_eq!(payload, large[54..]);
        // Flags CWR, ACK, PSH, FIN: CWR on the first, PSH and FIN on the last.
        let flags: Vec<u8> = made.iter().map(|made| made[47]).collect();
        assert_eq!(flags, [0x90, 0x10, 0x19]);
    }

    #[test]
    fn udp_segments_have_their_lengths() {
        let large = frame(UDP, &[0x13, 0x88, 0x13, 0x88, 0, 0, 0, 0], 25);
        let made = frames(&large, header(GSO_UDP, 10, 6), None).unwrap();
        let lengths: Vec<u16> = made
            .iter()
            .map(|made| u16::from_be_bytes([made[38], made[39]]))
            .collect();
        assert_eq!(lengths, [18, 18, 13]);
        assert!(
            made.iter()
                .all(|made| sum_of_transport(made, UDP) == 0xffff)
        );
    }

    #[test]
    fn removed_tag_is_inserted_again() {
        let plain = frame(UDP, &[0, 1, 0, 2, 0, 8, 0, 0], 0);
        let none = VnetHeader {
            flags: 0,
            ..header(GSO_NONE, 0, 0)
        };
        let made = frames(&plain, none, Some([0x81, 0, 0, 7])).unwrap();
        assert_eq!(made[0][..18], {
            let mut start = plain[..12].to_vec();
            start.extend([0x81, 0, 0, 7, 8, 0]);
            start
        });
        assert_eq!(made[0].len(), plain.len() + 4);
    }

    #[test]
    fn unknown_forms_are_refused_and_arbitrary_bytes_are_harmless() {
        let tcp = frame(TCP, &[0; 20], 100);
        assert_eq!(frames(&tcp, header(3, 10, 16), None), None);
        let inner = VnetHeader {
            checksum_start: 84,
            ..header(GSO_TCP_V4, 10, 16)
        };
        assert_eq!(frames(&tcp, inner, None), None);
        let mut seed = 1u32;
        for _ in 0..20_000 {
            let mut next = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            };
            let length = usize::from(next()) / 2;
            let mut bytes: Vec<u8> = (0..length).map(|_| next()).collect();
            if next() > 40 && bytes.len() > 20 {
                bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
            }
            let start = usize::from(next()) / 2;
            let random = VnetHeader {
                flags: next() & 1,
                gso_type: next() % 6,
                gso_size: usize::from(next()),
                checksum_start: if next() > 99 { 34 } else { start },
                checksum_offset: usize::from(next() % 32),
            };
            let _ = frames(&bytes, random, None);
        }
    }
}
