//! The analyser on generated captures: every link type, tunnels, fragments, IPv6, truncated packets, SIP over TCP, odd
//! streams.

use crate::captures::*;
use analyse::{Analysis, CaptureAnalyser, analyse_bytes};
use proptest::prelude::*;
use std::net::{IpAddr, SocketAddr};
use wire::capture::{PcapWriter, PcapngWriter};
use wire::ethernet::LinkType;
use wire::rtp::{RtpHeader, TelephoneEvent};

const A: &str = "192.0.2.1:4000";
const B: &str = "198.51.100.2:6000";

fn analyse(file: Vec<u8>) -> Analysis {
    analyse_bytes(&file).expect("a capture")
}

/// IP packets of one clean stream of 50.
fn clean(from: &str, to: &str) -> Vec<(u64, Vec<u8>)> {
    Talk::default()
        .packets(50)
        .into_iter()
        .map(|(time, packet)| (time, udp(addr(from), addr(to), &packet)))
        .collect()
}

fn assert_clean(analysis: &Analysis, from: &str, to: &str, context: &str) {
    assert_eq!(analysis.errors, Vec::<String>::new(), "{context}");
    assert_eq!(analysis.streams.len(), 1, "{context}: {:?}", analysis.notes);
    let stream = &analysis.streams[0];
    assert_eq!(
        (stream.src.as_str(), stream.dst.as_str()),
        (from, to),
        "{context}"
    );
    assert_eq!(
        (stream.packets_received, stream.expected, stream.lost_unique),
        (50, 50, 0),
        "{context}"
    );
    assert_eq!(
        (stream.codec.as_deref(), stream.clock_rate),
        (Some("PCMU"), Some(8000)),
        "{context}"
    );
    assert_eq!(stream.payload_types.get(&0), Some(&50));
    let (jitter, delta) = (stream.jitter_ms.unwrap(), stream.delta_ms.unwrap());
    assert!(
        jitter.max < 1e-6 && (delta.mean - 20.0).abs() < 1e-6,
        "{context}"
    );
    assert!((stream.r.unwrap() - 93.2).abs() < 0.1 && (stream.mos.unwrap() - 4.41).abs() < 0.01);
}

#[test]
fn every_link_type() {
    let sll =
        |protocol: [u8; 2]| [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0][..], &protocol].concat();
    let sll2 = |protocol: [u8; 2]| {
        [
            &protocol[..],
            &[0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0],
        ]
        .concat()
    };
    for (from, to, protocol, family) in [
        (A, B, [8, 0], 2u32),
        ("[2001:db8::1]:4000", "[2001:db8::2]:6000", [0x86, 0xdd], 30),
    ] {
        let packets = clean(from, to);
        let check = |link, name: &str, wrap: &dyn Fn(&[u8]) -> Vec<u8>| {
            assert_clean(&analyse(file_of(link, &packets, wrap)), from, to, name);
        };
        check(LinkType::Ethernet, "ethernet", &|ip| ethernet(&[], ip));
        check(LinkType::Ethernet, "padded", &|ip| {
            [ethernet(&[], ip), vec![0; 9]].concat()
        });
        check(LinkType::Ethernet, "vlan", &|ip| {
            ethernet(&[(0x8100, 7)], ip)
        });
        check(LinkType::Ethernet, "qinq", &|ip| {
            ethernet(&[(0x88a8, 7), (0x8100, 9)], ip)
        });
        check(LinkType::LinuxSll, "cooked", &|ip| {
            [&sll(protocol), ip].concat()
        });
        check(LinkType::LinuxSll, "cooked vlan", &|ip| {
            [&sll([0x81, 0]), &[0, 5][..], &protocol, ip].concat()
        });
        check(LinkType::LinuxSll2, "cooked 2", &|ip| {
            [&sll2(protocol), ip].concat()
        });
        check(LinkType::Null, "null", &|ip| {
            [&family.to_le_bytes()[..], ip].concat()
        });
        check(LinkType::Loop, "loop", &|ip| {
            [&family.to_be_bytes()[..], ip].concat()
        });
        check(LinkType::Raw, "raw", &|ip| ip.to_vec());
    }
}

/// One source without loss whose timestamps restart midway: no jitter, and no loss of quality.
#[test]
fn restarted_timestamps_cost_no_quality() {
    let first = Talk::default();
    let behind = Talk {
        first_sequence: first.first_sequence.wrapping_add(50),
        first_timestamp: first.first_timestamp.wrapping_add(0x7654_3210),
        ..first.clone()
    };
    let mut packets = first.packets(50);
    let later = behind.packets(50).into_iter();
    packets.extend(later.map(|(time, packet)| (time + 50 * 20 * MS, packet)));
    let packets: Vec<(u64, Vec<u8>)> = packets
        .into_iter()
        .map(|(time, packet)| (time, udp(addr(A), addr(B), &packet)))
        .collect();
    let analysis = analyse(file_of(LinkType::Raw, &packets, |ip| ip.to_vec()));
    assert_eq!(analysis.streams.len(), 1);
    let stream = &analysis.streams[0];
    assert_eq!((stream.packets_received, stream.lost_unique), (100, 0));
    let (jitter, mos) = (stream.jitter_ms.unwrap(), stream.mos.unwrap());
    assert!(jitter.max < 1e-6, "{jitter:?}");
    assert!((mos - 4.41).abs() < 0.01, "{mos}");
}

#[test]
fn tunnels() {
    let outer: (IpAddr, IpAddr) = (
        "203.0.113.1".parse().unwrap(),
        "203.0.113.2".parse().unwrap(),
    );
    let outer6: (IpAddr, IpAddr) = (
        "2001:db8::9".parse().unwrap(),
        "2001:db8::a".parse().unwrap(),
    );
    let (six_a, six_b) = ("[2001:db8::1]:4000", "[2001:db8::2]:6000");
    let wrap = |packets: &[(u64, Vec<u8>)], f: &dyn Fn(&[u8]) -> Vec<u8>| {
        analyse(file_of(LinkType::Raw, packets, f))
    };
    let four = clean(A, B);
    assert_clean(
        &wrap(&four, &|p| ip(outer.0, outer.1, 4, p)),
        A,
        B,
        "4 in 4",
    );
    assert_clean(
        &wrap(&four, &|p| ip(outer6.0, outer6.1, 4, p)),
        A,
        B,
        "4 in 6",
    );
    assert_clean(
        &wrap(&four, &|p| {
            ip(outer.0, outer.1, 47, &[&[0, 0, 8, 0], p].concat())
        }),
        A,
        B,
        "gre",
    );
    let double = wrap(&four, &|p| {
        ip(outer.0, outer.1, 4, &ip(outer.1, outer.0, 4, p))
    });
    assert_clean(&double, A, B, "4 in 4 in 4");
    let six = clean(six_a, six_b);
    assert_clean(
        &wrap(&six, &|p| ip(outer.0, outer.1, 41, p)),
        six_a,
        six_b,
        "6 in 4",
    );
    // Ethernet behind a control word, which tshark does not follow by itself.
    let pseudowire = |p: &[u8]| {
        let label = [0x88, 0x47, 0, 7, 0x41, 64, 0, 0, 0, 0];
        [&[0; 12][..], &label, &ethernet(&[], p)].concat()
    };
    let bridged = analyse(file_of(LinkType::Ethernet, &four, pseudowire));
    assert_clean(&bridged, A, B, "Ethernet in MPLS");
    // Ethernet in MPLS in Ethernet, without end.
    let labelled = wrap(&four, &|p| {
        let label = [&[0; 12][..], &[0x88, 0x47, 0, 7, 0x41, 64, 0, 0, 0, 0]].concat();
        let frame = [label.repeat(2_000), ethernet(&[], p)].concat();
        let header = [0, 0, 0x65, 0x58];
        ip(outer.0, outer.1, 47, &[&header[..], &frame].concat())
    });
    assert!(labelled.streams.is_empty());
    // Endless nesting: an IP packet beyond the limit is omitted.
    let deep = wrap(&four, &|p| {
        (0..20).fold(p.to_vec(), |p, _| ip(outer.0, outer.1, 4, &p))
    });
    assert!(deep.streams.is_empty());
}

#[test]
fn capture_without_ip_packets_names_its_protocols() {
    let profinet = |ip: &[u8]| [&[0; 12][..], &[0x88, 0x92], ip].concat();
    let other = analyse(file_of(LinkType::Ethernet, &clean(A, B), profinet));
    assert!(other.streams.is_empty());
    assert_eq!(
        other.notes,
        ["no frame contains an IP packet; frames by EtherType: 0x8892 (50)"]
    );
    // Other protocols beside IP are in every capture.
    let mut frames = clean(A, B);
    frames.push((frames[49].0, Vec::new()));
    let mixed = analyse(file_of(LinkType::Ethernet, &frames, |ip: &[u8]| {
        match ip.is_empty() {
            true => profinet(&[0; 46]),
            false => ethernet(&[], ip),
        }
    }));
    assert_clean(&mixed, A, B, "mixed");
    assert!(mixed.notes.is_empty(), "{:?}", mixed.notes);
}

#[test]
fn fragments_of_both_versions() {
    let mut four = PcapWriter::new(LinkType::Raw);
    let mut six = PcapWriter::new(LinkType::Raw);
    let (a6, b6) = ("[2001:db8::1]:4000", "[2001:db8::2]:6000");
    for (at, (time, packet)) in Talk::default().packets(50).into_iter().enumerate() {
        let segment = udp_segment(addr(A), addr(B), &packet);
        let (first, second) = segment.split_at(64);
        let (from, to) = (addr(A).ip(), addr(B).ip());
        let mut parts = [
            ipv4(from, to, 17, at as u16, 0x2000, first),
            ipv4(from, to, 17, at as u16, 8, second),
        ];
        if at % 2 == 1 {
            parts.swap(0, 1);
        }
        parts.iter().for_each(|part| four.frame(time, part));

        let segment = udp_segment(addr(a6), addr(b6), &packet);
        let (first, second) = segment.split_at(64);
        for (offset, more, data) in [(0u16, 1u16, first), (64, 0, second)] {
            // A destination option in front of the fragment header.
            let mut payload = vec![44, 0, 1, 4, 0, 0, 0, 0, 17, 0];
            payload.extend((offset | more).to_be_bytes());
            payload.extend((at as u32).to_be_bytes());
            payload.extend_from_slice(data);
            six.frame(time, &ipv6(addr(a6).ip(), addr(b6).ip(), 60, &payload));
        }
    }
    assert_clean(&analyse(four.finish()), A, B, "IPv4 fragments");
    assert_clean(&analyse(six.finish()), a6, b6, "IPv6 fragments");
}

#[test]
fn pcapng_with_several_interfaces_and_resolutions() {
    for big_endian in [false, true] {
        let mut writer = PcapngWriter::new(big_endian);
        let raw = writer.interface(LinkType::Raw, 9);
        let wired = writer.interface(LinkType::Ethernet, 6);
        for (time, packet) in clean(A, B) {
            writer.frame(raw, time + 1, &packet);
        }
        for (time, packet) in clean(B, A) {
            writer.frame(wired, time, &ethernet(&[], &packet));
        }
        let analysis = analyse(writer.finish());
        assert_eq!(analysis.streams.len(), 2);
        for stream in &analysis.streams {
            assert_eq!((stream.packets_received, stream.lost_unique), (50, 0));
            assert!(stream.jitter_ms.unwrap().max < 1e-6);
        }
        assert_eq!(analysis.streams[0].start, EPOCH as f64 / 1e9);
    }
}

#[test]
fn packets_without_a_time_are_named() {
    let mut writer = PcapngWriter::new(false);
    writer.interface(LinkType::Raw, 9);
    for (_, packet) in clean(A, B) {
        let length = packet.len() as u32;
        let mut body = [&length.to_le_bytes()[..], &packet].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        writer.block(3, &body);
    }
    let analysis = analyse(writer.finish());
    assert_eq!(analysis.streams[0].packets_received, 50);
    assert_eq!(
        analysis.notes,
        [
            "50 frames without a time of reception: their jitter, delta, rate and duration have no meaning"
        ]
    );
}

#[test]
fn cut_by_the_snap_length() {
    for keep in [54, 60, 96] {
        let mut writer = PcapWriter::new(LinkType::Ethernet);
        for (time, packet) in clean(A, B) {
            let frame = ethernet(&[], &packet);
            writer.truncated_frame(time, &frame[..keep], frame.len());
        }
        let analysis = analyse(writer.finish());
        assert_clean(&analysis, A, B, "cut");
        assert_eq!(analysis.streams[0].payload_bytes, 50 * 160);
        assert_eq!(analysis.notes, ["50 frames truncated by the capture"]);
    }
}

#[test]
fn wraps_source_changes_and_both_directions() {
    let mut writer = PcapWriter::new(LinkType::Raw);
    let first = Talk {
        first_sequence: 65_510,
        first_timestamp: u32::MAX - 3000,
        ..Talk::default()
    };
    let second = Talk {
        ssrc: 0,
        payload_type: 18,
        bytes: 20,
        ..Talk::default()
    };
    let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
    for (time, packet) in first.packets(50) {
        all.push((time, udp(addr(A), addr(B), &packet)));
        // The same SSRC in the other direction.
        all.push((time + MS, udp(addr(B), addr(A), &packet)));
    }
    for (time, packet) in second.packets(30) {
        all.push((time + 1000 * MS, udp(addr(A), addr(B), &packet)));
    }
    all.iter()
        .for_each(|(time, packet)| writer.frame(*time, packet));
    let analysis = analyse(writer.finish());
    let got: Vec<_> = analysis
        .streams
        .iter()
        .map(|s| {
            (
                s.src.as_str(),
                s.ssrc.as_str(),
                s.packets_received,
                s.lost_unique,
                s.seq_cycles,
            )
        })
        .collect();
    assert_eq!(
        got,
        [
            (A, "0x12345678", 50, 0, 1),
            (B, "0x12345678", 50, 0, 1),
            (A, "0x00000000", 30, 0, 0),
        ]
    );
    assert_eq!(analysis.streams[0].highest_ext_seq, 65_559);
    assert!(analysis.streams[0].jitter_ms.unwrap().max < 1e-6);
    assert_eq!(analysis.streams[2].codec.as_deref(), Some("G729"));
}

#[test]
fn short_source_change_is_found_beside_its_stream() {
    let mut packets = clean(A, B);
    let short = Talk {
        ssrc: 99,
        ..Talk::default()
    };
    for (time, packet) in short.packets(2) {
        packets.push((time + 1000 * MS, udp(addr(A), addr(B), &packet)));
    }
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    assert_eq!(analysis.streams.len(), 2);
    assert_eq!(analysis.streams[1].packets_received, 2);
}

#[test]
fn loss_duplicates_and_reordering_exactly() {
    let mut kept = Vec::new();
    for (at, (time, packet)) in Talk::default().packets(200).into_iter().enumerate() {
        match at {
            50..60 | 100 => {}
            120 => kept.push((time + 45 * MS, packet)),
            150 => {
                kept.push((time, packet.clone()));
                kept.push((time + MS, packet.clone()));
                kept.push((time + 200 * MS, packet));
            }
            _ => kept.push((time, packet)),
        }
    }
    kept.sort_by_key(|(time, _)| *time);
    let packets: Vec<_> = kept
        .into_iter()
        .map(|(time, packet)| (time, udp(addr(A), addr(B), &packet)))
        .collect();
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    let stream = &analysis.streams[0];
    assert_eq!(
        (stream.packets_received, stream.unique, stream.duplicates),
        (191, 189, 2)
    );
    assert_eq!(
        (stream.out_of_order, stream.expected, stream.lost_unique),
        (1, 200, 11)
    );
    assert_eq!(
        (stream.lost_percent, stream.rfc3550_cumulative_lost),
        (5.5, 9)
    );
    assert!(stream.burst_ratio > 3.0 && stream.r.unwrap() < 90.0);
}

#[test]
fn telephone_events_comfort_noise_and_payload_type_change() {
    let mut packets = Vec::new();
    let mut sequence = 0u16;
    let mut send = |at: u64, timestamp: u32, payload_type: u8, payload: &[u8]| {
        let header = RtpHeader {
            payload_type,
            sequence,
            timestamp,
            ssrc: 5,
            ..RtpHeader::default()
        };
        sequence = sequence.wrapping_add(1);
        packets.push((
            EPOCH + at * 20 * MS,
            udp(addr(A), addr(B), &header.packet(payload)),
        ));
    };
    for at in 0..60 {
        send(at, at as u32 * 160, 8, &[0xd5; 160]);
    }
    for (digit, start) in [('5', 60u64), ('5', 70), ('#', 80)] {
        for at in 0..8u64 {
            let event = TelephoneEvent {
                event: TelephoneEvent::code(digit).unwrap(),
                end: at >= 5,
                volume: 10,
                duration: (at.min(5) as u16 + 1) * 160,
            };
            send(start + at, start as u32 * 160, 101, &event.to_bytes());
        }
    }
    for at in 90..100 {
        send(at, at as u32 * 160, 13, &[0x40]);
    }
    for at in 100..130 {
        send(at, at as u32 * 160, 0, &[0xff; 160]);
    }
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    let stream = &analysis.streams[0];
    assert_eq!(stream.dtmf, ["5", "5", "#"]);
    assert_eq!(stream.dtmf_events[0].duration_ms, 120.0);
    assert!(stream.dtmf_events.iter().all(|event| event.ended));
    assert_eq!(stream.codec.as_deref(), Some("PCMA"));
    assert_eq!(
        stream
            .payload_types
            .iter()
            .map(|(a, b)| (*a, *b))
            .collect::<Vec<_>>(),
        [(0, 30), (8, 60), (13, 10), (101, 24)]
    );
    assert!(stream.jitter_ms.unwrap().max < 1e-6 && stream.lost_unique == 0);
}

/// The bytes of a stream in TCP segments at the given cuts.
#[test]
fn encryption_by_sdp_and_late_sdp() {
    let offer = sdp(
        addr(B),
        "0 96",
        "a=rtpmap:96 speex/16000\r\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:x\r\n",
    )
    .replace("RTP/AVP", "RTP/SAVP");
    let talk = Talk {
        payload_type: 96,
        clock: 16_000,
        ..Talk::default()
    };
    let mut packets: Vec<_> = talk
        .packets(60)
        .into_iter()
        .map(|(time, packet)| (time, udp(addr(A), addr(B), &packet)))
        .collect();
    packets.extend(sip_frames(&[(
        1100,
        UB,
        UA,
        sip("SIP/2.0 200 OK", "s", "1 INVITE", ";tag=b", &offer),
    )]));
    packets.sort_by_key(|(time, _)| *time);
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    let stream = &analysis.streams[0];
    assert!(stream.srtp);
    assert_eq!(
        (stream.codec.as_deref(), stream.clock_rate),
        (Some("speex"), Some(16_000))
    );
    assert!(stream.jitter_ms.unwrap().max < 1e-6);
}

#[test]
fn unknown_dynamic_types_are_measured() {
    for (clock, step) in [
        (8000, 20),
        (16_000, 20),
        (48_000, 20),
        (90_000, 40),
        (32_000, 20),
        (44_100, 20),
        (24_000, 30),
    ] {
        let talk = Talk {
            payload_type: 98,
            clock,
            ptime_ms: step,
            ..Talk::default()
        };
        let packets: Vec<_> = talk
            .packets(300)
            .into_iter()
            .map(|(time, packet)| (time, udp(addr(A), addr(B), &packet)))
            .collect();
        let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
        let stream = &analysis.streams[0];
        assert_eq!(
            (stream.packets_received, stream.clock_rate),
            (300, Some(clock))
        );
        assert!(stream.jitter_ms.unwrap().max < 1e-6);
        assert_eq!(stream.codec.as_deref(), (clock == 48_000).then_some("opus"));
    }
}

#[test]
fn other_protocols_are_not_taken_for_rtp() {
    let mut analyser = CaptureAnalyser::default();
    let mut dice = Dice(42);
    let mut send = |at: u64, from: &str, to: &str, payload: &[u8]| {
        analyser.datagram(EPOCH + at * MS, addr(from), addr(to), payload);
    };
    for at in 0..2000u64 {
        // DNS with every identifier, from one port: questions, answers, with AD set now and then.
        let id = (0x8000 + dice.roll(0x4000)) as u16;
        let mut dns = id.to_be_bytes().to_vec();
        dns.extend([[1, 0], [1, 0x20], [0x81, 0x80]][dice.roll(3) as usize]);
        dns.extend([0, 1, 0, dice.roll(4) as u8, 0, 0, 0, dice.roll(2) as u8]);
        dns.extend(b"\x07example\x03org\x00\x00\x01\x00\x01");
        send(at * 20, "192.0.2.9:53535", "192.0.2.53:53", &dns);
        // RTCP, STUN, DTLS, QUIC-like, IAX2 full frames, ESP in UDP with a counting sequence, random bytes.
        let rtcp = wire::rtcp::CompoundBuilder::new()
            .receiver_report(at as u32, &[])
            .cname(at as u32, "a")
            .finish();
        send(at * 20, "192.0.2.1:4001", "192.0.2.2:6001", &rtcp);
        let iax = [
            0x80,
            1,
            0,
            2,
            0,
            0,
            (at >> 8) as u8,
            at as u8,
            at as u8,
            1,
            6,
            11,
        ];
        send(at * 20, "192.0.2.1:4569", "192.0.2.2:4569", &iax);
        let mut esp = vec![0x80, 0, 0x12, 0x34];
        esp.extend((at as u32).to_be_bytes());
        esp.extend((0..40).map(|_| dice.roll(256) as u8));
        send(at * 20, "192.0.2.1:4500", "192.0.2.2:4500", &esp);
        let mut noise: Vec<u8> = (0..60).map(|_| dice.roll(256) as u8).collect();
        send(at * 20, "192.0.2.1:9999", "192.0.2.2:9999", &noise);
        noise[0] = 0x80;
        noise[8..12].copy_from_slice(&[1, 2, 3, 4]);
        send(at * 20, "192.0.2.1:9998", "192.0.2.2:9998", &noise);
    }
    let analysis = analyser.finish();
    assert!(analysis.streams.is_empty(), "{:#?}", analysis.streams);
    assert_eq!(analysis.rtcp_packets, 2000);
}

#[test]
fn rtcp_beside_its_stream() {
    use wire::rtcp::{CompoundBuilder, ReportBlock, SenderInfo};
    let mut packets = clean(A, B);
    let (control_a, control_b) = (addr("192.0.2.1:4001"), addr("198.51.100.2:6001"));
    let info = SenderInfo {
        ntp: 0x0000_1234_5678_0000,
        rtp_timestamp: 1,
        packets: 25,
        octets: 4000,
    };
    let report = CompoundBuilder::new()
        .sender_report(0x1234_5678, &info, &[])
        .cname(0x1234_5678, "alice")
        .finish();
    packets.push((EPOCH + 500 * MS, udp(control_a, control_b, &report)));
    let block = ReportBlock {
        ssrc: 0x1234_5678,
        fraction_lost: 64,
        cumulative_lost: 3,
        jitter: 80,
        last_sr: 0x1234_5678,
        delay_since_last_sr: 65_536 / 10,
        ..ReportBlock::default()
    };
    let report = CompoundBuilder::new()
        .receiver_report(7, &[block])
        .cname(7, "bob")
        .finish();
    packets.push((EPOCH + 640 * MS, udp(control_b, control_a, &report)));
    packets.sort_by_key(|(time, _)| *time);
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    assert_clean(&analysis, A, B, "with RTCP");
    let rtcp = analysis.streams[0].rtcp.as_ref().expect("RTCP");
    assert_eq!(
        (
            rtcp.sender_packets,
            rtcp.sender_octets,
            rtcp.receiver_reports
        ),
        (Some(25), Some(4000), 1)
    );
    assert_eq!(
        (
            rtcp.fraction_lost_percent,
            rtcp.cumulative_lost,
            rtcp.jitter_ms
        ),
        (Some(25.0), Some(3), Some(10.0))
    );
    assert!((rtcp.round_trip_ms.unwrap() - 40.0).abs() < 0.1);
    assert_eq!(rtcp.cname.as_deref(), Some("alice"));
}

/// Of SRTCP (RFC 3711 section 3.4) only the first eight bytes are in the clear.
#[test]
fn encrypted_rtcp_gives_no_figures() {
    use wire::rtcp::{CompoundBuilder, ReportBlock, SenderInfo};
    let mut packets = clean(A, B);
    let mut dice = Dice(7);
    for at in 0..40 {
        let block = ReportBlock::default();
        let mut report = CompoundBuilder::new()
            .sender_report(0x1234_5678, &SenderInfo::default(), &[block])
            .cname(0x1234_5678, "alice")
            .finish();
        for byte in report.iter_mut().skip(8) {
            *byte = dice.roll(256) as u8;
        }
        report.extend((0x8000_0000 + at as u32).to_be_bytes());
        report.extend((0..10).map(|_| dice.roll(256) as u8));
        let (from, to) = (addr("192.0.2.1:4001"), addr("198.51.100.2:6001"));
        packets.push((EPOCH + (300 + at) * MS, udp(from, to, &report)));
    }
    packets.sort_by_key(|(time, _)| *time);
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    assert_clean(&analysis, A, B, "with SRTCP");
    assert_eq!(analysis.rtcp_packets, 40);
    let rtcp = analysis.streams[0].rtcp.as_ref().expect("RTCP");
    assert_eq!(rtcp.sender_reports, 40);
    assert_eq!((rtcp.sender_packets, rtcp.sender_octets), (None, None));
    assert_eq!((rtcp.receiver_reports, rtcp.cname.as_deref()), (0, None));
}

#[test]
fn voip_metrics_of_the_receiver_are_reported() {
    let mut packets = clean(A, B);
    // Of the receiver 7 about the stream: the fields of RFC 3611 section 4.7 in their order.
    let mut block = vec![7, 0, 0, 8];
    block.extend(0x1234_5678u32.to_be_bytes());
    block.extend([64, 32, 128, 16]);
    for span in [1_200u16, 8_000, 90, 45] {
        block.extend(span.to_be_bytes());
    }
    block.extend([(-18i8) as u8, 127, 40, 16, 82, 127, 41, 38, 0xb0, 0]);
    for span in [60u16, 100, 200] {
        block.extend(span.to_be_bytes());
    }
    let receiver_report = [0x80, 201, 0, 1, 0, 0, 0, 7];
    let mut extended = vec![0x80, 207, 0, 1 + block.len() as u8 / 4, 0, 0, 0, 7];
    extended.extend(&block);
    let whole = [&receiver_report[..], &extended].concat();
    let (control_a, control_b) = (addr("192.0.2.1:4001"), addr("198.51.100.2:6001"));
    packets.push((EPOCH + 640 * MS, udp(control_b, control_a, &whole)));
    // Cut inside the block: it is ignored.
    extended[3] = 4;
    let cut = [&receiver_report[..], &extended[..20]].concat();
    packets.push((EPOCH + 700 * MS, udp(control_b, control_a, &cut)));
    packets.sort_by_key(|(time, _)| *time);
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    assert_clean(&analysis, A, B, "with XR");
    let rtcp = analysis.streams[0].rtcp.as_ref().expect("RTCP");
    let expected = analyse::VoipMetricsReport {
        lost_percent: 25.0,
        discarded_percent: 12.5,
        burst_density_percent: 50.0,
        gap_density_percent: 6.25,
        burst_ms: 1_200,
        gap_ms: 8_000,
        round_trip_ms: 90,
        end_system_delay_ms: 45,
        signal_dbm0: Some(-18),
        noise_dbm0: None,
        residual_echo_return_loss_db: Some(40),
        r: Some(82),
        external_r: None,
        mos_lq: Some(4.1),
        mos_cq: Some(3.8),
        jitter_buffer_ms: 60,
        jitter_buffer_max_ms: 100,
    };
    assert_eq!(rtcp.voip_metrics, Some(expected));
}

#[test]
fn hostile_captures_stay_small() {
    let limits = analyse::AnalyseLimits {
        streams: 50,
        candidates: 100,
        calls: 20,
        endpoints: 20,
        connections: 10,
        associations: 5,
    };
    let mut analyser = CaptureAnalyser::new(limits);
    let talk = Talk::default();
    for at in 0..3000u32 {
        for (time, packet) in (Talk {
            ssrc: at,
            ..talk.clone()
        })
        .packets(5)
        {
            analyser.packet(time + u64::from(at) * MS, &udp(addr(A), addr(B), &packet));
        }
        let text = sip(
            "INVITE sip:bob@example.net SIP/2.0",
            &at.to_string(),
            "1 INVITE",
            "",
            &sdp(addr(A), "0", ""),
        );
        analyser.packet(EPOCH, &udp(addr(UA), addr(UB), text.as_bytes()));
        let from = SocketAddr::new(addr(UA).ip(), at as u16);
        analyser.packet(
            EPOCH,
            &tcp(from, addr(UB), 1, 0x18, &text.as_bytes()[..100]),
        );
        analyser.packet(
            EPOCH,
            &ip(
                addr(A).ip(),
                addr(B).ip(),
                50,
                &[&at.to_be_bytes()[..], &[9; 40]].concat(),
            ),
        );
        analyser.packet(
            EPOCH,
            &ipv4(addr(A).ip(), addr(B).ip(), 17, at as u16, 0x2000, &[0; 64]),
        );
    }
    let analysis = analyser.finish();
    assert_eq!(
        (
            analysis.streams.len(),
            analysis.calls.len(),
            analysis.esp.len()
        ),
        (50, 20, 5)
    );
    assert!(analysis.notes.len() >= 3, "{:?}", analysis.notes);
}

#[test]
fn non_capture_is_an_error_and_damage_is_reported() {
    for bytes in [
        &b""[..],
        b"plain text that is long enough to be a header",
        &[0x1f, 0x8b, 8, 0],
    ] {
        assert!(analyse_bytes(bytes).is_err());
    }
    let path = std::path::Path::new("/nonexistent/capture.pcap");
    let error = analyse::analyse_file(path)
        .expect_err("there is no such file")
        .to_string();
    assert!(error.contains("/nonexistent/capture.pcap") && error.contains("cannot be read"));
    let mut file = file_of(LinkType::Raw, &clean(A, B), <[u8]>::to_vec);
    file.truncate(file.len() - 3);
    let length = file.len() as u64;
    let analysis = analyse(file);
    assert_eq!(analysis.streams[0].packets_received, 49);
    assert_eq!(analysis.errors, ["the capture ends inside a record"]);
    let damage = analysis.damage.expect("the capture is cut");
    assert_eq!(
        (damage.frames_before, damage.file_ends_at),
        (49, Some(length))
    );
    assert!(damage.at_byte < length);
    let other = analyse(file_of(LinkType::Other(147), &clean(A, B), <[u8]>::to_vec));
    assert_eq!(
        other.errors,
        ["frames of unsupported link type 147 (50 times)"]
    );
}

proptest! {
    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        analyse::fuzz_capture(&data);
    }

    #[test]
    fn damaged_generated_captures(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut packets = clean(A, B);
        packets.truncate(10);
        let offer = sdp(addr(B), "0 101", "a=rtpmap:101 telephone-event/8000\r\n");
        let text = sip("INVITE sip:bob@example.net SIP/2.0", "d", "1 INVITE", "", &offer);
        packets.push((EPOCH, udp(addr(UA), addr(UB), text.as_bytes())));
        packets.push((EPOCH, tcp(addr(UA), addr(UB), 1, 0x18, text.as_bytes())));
        let mut file = file_of(LinkType::Ethernet, &packets, |packet| ethernet(&[(0x8100, 1)], packet));
        for (at, byte) in damage {
            // The file header stays, so that the damage is in the packets.
            let at = 24 + at.index(file.len() - 24);
            file[at] = byte;
        }
        analyse::fuzz_capture(&file);
        file.truncate(cut.index(file.len()));
        analyse::fuzz_capture(&file);
    }
}
