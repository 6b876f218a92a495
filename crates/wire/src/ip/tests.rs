use super::*;

fn v4(id: u16, flags_offset: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend(u16::to_be_bytes(20 + payload.len() as u16));
    packet.extend(id.to_be_bytes());
    packet.extend(flags_offset.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    packet.extend_from_slice(payload);
    packet
}

fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::to_be_bytes(payload.len() as u16));
    packet.extend([next, 64]);
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    packet.extend(Ipv6Addr::UNSPECIFIED.octets());
    packet.extend_from_slice(payload);
    packet
}

#[test]
fn v4_fields_options_padding_checksum() {
    let mut bytes = v4(7, 0x4000, 17, &[1, 2, 3]);
    bytes.extend([0; 5]);
    let packet = IpPacket::parse(&bytes).unwrap();
    assert_eq!((packet.payload, packet.protocol), (&[1, 2, 3][..], 17));
    assert!(packet.fragment.is_none() && !packet.is_truncated());
    assert!(!Ipv4View::parse(&bytes).unwrap().has_valid_checksum());
    // The header of RFC 1071's textbook example, with its checksum.
    let header = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];
    assert!(Ipv4View::parse(&header).unwrap().has_valid_checksum());
    let mut options = vec![
        0x46, 0, 0, 26, 0, 0, 0, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2,
    ];
    options.extend([1, 1, 1, 0, 8, 9]);
    assert_eq!(IpPacket::parse(&options).unwrap().payload, [8, 9]);
    assert!(IpPacket::parse(&options[..23]).is_none());
    let cut = IpPacket::parse(&bytes[..21]).unwrap();
    assert!(cut.is_truncated());
}

#[test]
fn v6_extension_chain() {
    let mut payload = vec![60, 0, 0, 0, 0, 0, 0, 0];
    payload.extend([44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    payload.extend([17, 0, 0, 0, 0, 0, 0, 9]);
    payload.extend([5, 6]);
    let bytes = v6(0, &payload);
    let packet = IpPacket::parse(&bytes).unwrap();
    assert_eq!((packet.protocol, packet.payload), (17, &[5, 6][..]));
    assert!(packet.fragment.is_none(), "an atomic fragment is whole");
    for cut in 40..bytes.len() - 2 {
        assert!(IpPacket::parse(&bytes[..cut]).is_none());
    }
}

fn push(reassembler: &mut Reassembler, bytes: &[u8], now: u64) -> Option<(u8, Vec<u8>)> {
    let packet = IpPacket::parse(bytes).unwrap();
    reassembler.push(&packet, packet.fragment.unwrap(), now)
}

#[test]
fn fragments_in_any_order() {
    let data: Vec<u8> = (0..40).collect();
    let parts = [
        v4(1, 0x2000, 17, &data[..16]),
        v4(1, 0x2002, 17, &data[16..32]),
        v4(1, 0x0004, 17, &data[32..]),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let mut reassembler = Reassembler::default();
        assert!(push(&mut reassembler, &parts[order[0]], 0).is_none());
        assert!(
            push(&mut reassembler, &parts[order[0]], 0).is_none(),
            "a repeat"
        );
        assert!(push(&mut reassembler, &parts[order[1]], 0).is_none());
        assert_eq!(
            push(&mut reassembler, &parts[order[2]], 0).unwrap(),
            (17, data.clone())
        );
        assert_eq!((reassembler.waiting(), reassembler.abandoned()), (0, 0));
    }
}

#[test]
fn v6_fragments_take_the_protocol_of_the_first() {
    let fragment = |offset_more: u16, next: u8, data: &[u8]| {
        let mut payload = vec![next, 0];
        payload.extend(offset_more.to_be_bytes());
        payload.extend([0, 0, 0, 5]);
        payload.extend_from_slice(data);
        v6(44, &payload)
    };
    let mut reassembler = Reassembler::default();
    assert!(push(&mut reassembler, &fragment(8, 59, &[9; 4]), 0).is_none());
    let (protocol, whole) = push(&mut reassembler, &fragment(1, 17, &[1; 8]), 0).unwrap();
    assert_eq!((protocol, whole.len()), (17, 12));
}

#[test]
fn overlaps_time_and_numbers_are_bounded() {
    let mut reassembler = Reassembler::new(ReassemblyLimits {
        packets: 4,
        fragments: 3,
        timeout: 10,
    });
    assert!(push(&mut reassembler, &v4(1, 0x2000, 17, &[0; 16]), 0).is_none());
    assert!(push(&mut reassembler, &v4(1, 0x2001, 17, &[0; 16]), 0).is_none());
    assert_eq!(reassembler.abandoned(), 1, "an overlap voids the packet");
    for id in 10..30 {
        assert!(push(&mut reassembler, &v4(id, 0x2000, 17, &[0; 16]), 0).is_none());
        assert!(reassembler.waiting() <= 4);
    }
    // Too late for the first part: the second starts a new packet, which never completes.
    assert!(push(&mut reassembler, &v4(29, 0x0002, 17, &[0; 3]), 11).is_none());
    for part in 0..6u16 {
        push(
            &mut reassembler,
            &v4(99, 0x2000 + part * 4, 17, &[0; 8]),
            12,
        );
    }
    assert!(reassembler.abandoned() >= 18);
}

#[test]
fn gre() {
    assert_eq!(gre_inner(&[0, 0, 8, 0, 0x45]), Some((0x0800, &[0x45][..])));
    assert_eq!(
        gre_inner(&[0x20, 0, 8, 0, 1, 2, 3, 4, 0x45]),
        Some((0x0800, &[0x45][..]))
    );
    assert_eq!(gre_inner(&[0, 1, 8, 0]), None);
    assert_eq!(gre_inner(&[0x80, 0, 8]), None);
}
