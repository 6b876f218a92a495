//! Arbitrary bytes in every packet parser: no panic, bounded work.

use proptest::prelude::*;
use wire::capture::{PcapWriter, PcapngWriter};
use wire::ethernet::LinkType;

/// A small capture of each format, for corruption.
fn seeds() -> Vec<Vec<u8>> {
    let rtp = wire::rtp::RtpHeader {
        csrcs: &[1],
        extension: Some((0xbede, &[0x10, 1])),
        ..Default::default()
    }
    .packet(&[7; 20]);
    let mut udp = vec![0x13, 0xc4, 0x13, 0xc4, 0, 8 + rtp.len() as u8, 0, 0];
    udp.extend(&rtp);
    let mut ip = vec![
        0x45,
        0,
        0,
        20 + udp.len() as u8,
        0,
        1,
        0,
        0,
        64,
        17,
        0,
        0,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
    ];
    ip.extend(&udp);
    let mut frame = vec![0; 12];
    frame.extend([0x81, 0, 0, 5, 8, 0]);
    frame.extend(&ip);
    let mut pcap = PcapWriter::new(LinkType::Ethernet);
    let mut ng = PcapngWriter::new(true);
    let wired = ng.interface(LinkType::Ethernet, 6);
    let raw = ng.interface(LinkType::Raw, 9);
    for time in 0..4 {
        pcap.frame(time, &frame);
        ng.frame(wired, time, &frame);
        ng.frame(raw, time, &ip);
    }
    let rtcp = wire::rtcp::CompoundBuilder::new()
        .sender_report(1, &Default::default(), &[Default::default()])
        .cname(1, "x")
        .goodbye(&[1], "y")
        .finish();
    vec![pcap.finish(), ng.finish(), ip, rtp, rtcp]
}

#[test]
fn fuzz_seeds_are_parsed() {
    seeds().iter().for_each(|seed| wire::fuzz_packets(seed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        wire::fuzz_packets(&data);
    }

    #[test]
    fn any_ip(version in prop_oneof![Just(0x45u8), Just(0x46), Just(0x60)], data in proptest::collection::vec(any::<u8>(), 0..200)) {
        wire::fuzz_packets(&[&[version][..], &data].concat());
    }

    #[test]
    fn damaged_captures(seed in 0usize..5, damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12), cut in any::<prop::sample::Index>()) {
        let mut bytes = seeds().swap_remove(seed);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        wire::fuzz_packets(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        wire::fuzz_packets(&bytes);
    }
}
