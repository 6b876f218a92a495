//! Calls in generated captures: undeclared ports, outcomes, compact forms, SIP over TCP, fragments.

use crate::captures::*;
use analyse::{AnalyseLimits, Analysis, CaptureAnalyser, analyse_bytes};
use std::net::SocketAddr;
use wire::capture::PcapWriter;
use wire::ethernet::LinkType;

fn analyse(file: Vec<u8>) -> Analysis {
    analyse_bytes(&file).expect("a capture")
}

#[test]
fn call_on_unusual_ports_with_its_media() {
    let maps = "a=rtpmap:97 iLBC/8000\r\na=rtpmap:99 telephone-event/8000\r\n";
    let offer = sdp(addr("192.0.2.1:40000"), "97 99", maps);
    let answer = sdp(addr("198.51.100.2:50000"), "97 99", maps);
    let mut packets = sip_frames(&[
        (
            0,
            UA,
            UB,
            sip(
                "INVITE sip:bob@example.net SIP/2.0",
                "c1",
                "1 INVITE",
                "",
                &offer,
            ),
        ),
        (
            500,
            UA,
            UB,
            sip(
                "INVITE sip:bob@example.net SIP/2.0",
                "c1",
                "1 INVITE",
                "",
                &offer,
            ),
        ),
        (
            510,
            UB,
            UA,
            sip("SIP/2.0 100 Trying", "c1", "1 INVITE", "", ""),
        ),
        (
            700,
            UB,
            UA,
            sip("SIP/2.0 180 Ringing", "c1", "1 INVITE", ";tag=b", ""),
        ),
        (
            2000,
            UB,
            UA,
            sip("SIP/2.0 200 OK", "c1", "1 INVITE", ";tag=b", &answer),
        ),
        (
            2010,
            UA,
            UB,
            sip(
                "ACK sip:bob@198.51.100.2 SIP/2.0",
                "c1",
                "1 ACK",
                ";tag=b",
                "",
            ),
        ),
        (
            9000,
            UB,
            UA,
            sip(
                "BYE sip:alice@192.0.2.1 SIP/2.0",
                "c1",
                "7 BYE",
                ";tag=b",
                "",
            ),
        ),
        (
            9010,
            UA,
            UB,
            sip("SIP/2.0 200 OK", "c1", "7 BYE", ";tag=b", ""),
        ),
    ]);
    let talk = Talk {
        payload_type: 97,
        bytes: 38,
        ..Talk::default()
    };
    // One packet is enough if SDP contains the address.
    for (time, packet) in talk.packets(1) {
        packets.push((
            time + 3000 * MS,
            udp(addr("192.0.2.1:40000"), addr("198.51.100.2:50000"), &packet),
        ));
    }
    packets.sort_by_key(|(time, _)| *time);
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    assert_eq!(analysis.calls.len(), 1);
    let call = &analysis.calls[0];
    assert_eq!(
        (
            call.call_id.as_str(),
            call.outcome,
            call.messages,
            call.retransmissions
        ),
        ("c1", "completed", 8, 1)
    );
    assert_eq!(
        (call.from.as_str(), call.to.as_str()),
        ("sip:alice@example.org", "sip:bob@example.net")
    );
    let start = EPOCH as f64 / 1e9;
    let near = |time: Option<f64>, offset: f64| (time.unwrap() - start - offset).abs() < 1e-6;
    assert!(near(call.invite_at, 0.0) && near(call.answered_at, 2.0) && near(call.ended_at, 9.0));
    assert_eq!(
        (call.status, call.post_dial_delay_ms),
        (Some(200), Some(700.0))
    );
    let stream = &analysis.streams[0];
    assert_eq!(
        (stream.codec.as_deref(), stream.call_id.as_deref()),
        (Some("iLBC"), Some("c1"))
    );
    assert_eq!(stream.jitter_ms.map(|j| j.max), None);
}

#[test]
fn outcomes() {
    let invite = |id: &str, cseq: &str| sip("INVITE sip:bob@example.net SIP/2.0", id, cseq, "", "");
    let status = |line: &str, id: &str, cseq: &str| sip(line, id, cseq, ";tag=b", "");
    let request = |method: &str, id: &str, number: u32| {
        sip(
            &format!("{method} sip:bob@example.net SIP/2.0"),
            id,
            &format!("{number} {method}"),
            "",
            "",
        )
    };
    let cases: Vec<(&str, Vec<String>)> = vec![
        (
            "busy",
            vec![
                invite("1", "1 INVITE"),
                status("SIP/2.0 486 Busy Here", "1", "1 INVITE"),
            ],
        ),
        (
            "cancelled",
            vec![
                invite("2", "1 INVITE"),
                status("SIP/2.0 180 Ringing", "2", "1 INVITE"),
                request("CANCEL", "2", 1),
                status("SIP/2.0 200 OK", "2", "1 CANCEL"),
                status("SIP/2.0 487 Request Terminated", "2", "1 INVITE"),
            ],
        ),
        (
            "established",
            vec![
                invite("3", "1 INVITE"),
                status("SIP/2.0 407 Proxy Authentication Required", "3", "1 INVITE"),
                request("ACK", "3", 1),
                invite("3", "2 INVITE"),
                status("SIP/2.0 200 OK", "3", "2 INVITE"),
                invite("3", "3 INVITE"),
                status("SIP/2.0 491 Request Pending", "3", "3 INVITE"),
            ],
        ),
        (
            "unauthorized",
            vec![
                invite("4", "1 INVITE"),
                status("SIP/2.0 401 Unauthorized", "4", "1 INVITE"),
            ],
        ),
        ("no_response", vec![invite("5", "1 INVITE")]),
        (
            "ringing",
            vec![
                invite("6", "1 INVITE"),
                status("SIP/2.0 183 Progress", "6", "1 INVITE"),
            ],
        ),
        (
            "redirected",
            vec![
                invite("7", "1 INVITE"),
                status("SIP/2.0 302 Moved", "7", "1 INVITE"),
            ],
        ),
        (
            "failed",
            vec![
                invite("8", "1 INVITE"),
                status("SIP/2.0 503 Unavailable", "8", "1 INVITE"),
            ],
        ),
        (
            "rejected",
            vec![
                invite("9", "1 INVITE"),
                status("SIP/2.0 404 Not Found", "9", "1 INVITE"),
            ],
        ),
        (
            "completed",
            vec![
                request("BYE", "10", 5),
                status("SIP/2.0 200 OK", "10", "5 BYE"),
            ],
        ),
    ];
    for (outcome, messages) in cases {
        let list: Vec<_> = messages
            .into_iter()
            .enumerate()
            .map(|(at, text)| {
                let (from, to) = if text.starts_with("SIP/") {
                    (UB, UA)
                } else {
                    (UA, UB)
                };
                (at as u64 * 10, from, to, text)
            })
            .collect();
        let analysis = analyse(file_of(LinkType::Raw, &sip_frames(&list), <[u8]>::to_vec));
        assert_eq!(analysis.calls.len(), 1, "{outcome}");
        assert_eq!(analysis.calls[0].outcome, outcome);
        assert_eq!(analysis.calls[0].messages, list.len() as u64);
    }
}

#[test]
fn compact_forms_and_odd_spelling() {
    let text = "INVITE sip:bob@example.net SIP/2.0\r\nv: SIP/2.0/UDP 192.0.2.1\r\nf: Alice <sip:alice@example.org>;tag=1\r\n\
        t: sip:bob@example.net;x=y\r\ni : compact@1\r\nCSEQ:  1\r\n INVITE\r\nc: application/SDP\r\nl: 0\r\n\r\n";
    let analysis = analyse(file_of(
        LinkType::Raw,
        &sip_frames(&[(0, UA, UB, text.to_owned())]),
        <[u8]>::to_vec,
    ));
    let call = &analysis.calls[0];
    assert_eq!(
        (call.call_id.as_str(), call.from.as_str(), call.to.as_str()),
        ("compact@1", "sip:alice@example.org", "sip:bob@example.net")
    );
    assert_eq!(call.outcome, "no_response");
}

fn segments(
    from: SocketAddr,
    to: SocketAddr,
    bytes: &[u8],
    cuts: &[usize],
    start: u64,
) -> Vec<(u64, Vec<u8>)> {
    let mut out = vec![(start, tcp(from, to, 999, 2, &[]))];
    let mut at = 0;
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        let time = start + (out.len() as u64) * MS;
        out.push((time, tcp(from, to, 1000 + at as u32, 0x18, &bytes[at..cut])));
        at = cut;
    }
    out
}

#[test]
fn sip_over_tcp_split_joined_reordered_and_with_gaps() {
    let offer = sdp(addr("192.0.2.1:40000"), "0", "");
    let all = [
        "\r\n\r\n".to_owned(),
        sip(
            "INVITE sip:bob@example.net SIP/2.0",
            "t1",
            "1 INVITE",
            "",
            &offer,
        ),
        sip("ACK sip:bob@example.net SIP/2.0", "t1", "1 ACK", "", ""),
        "\r\n\r\n".to_owned(),
        sip(
            "INVITE sip:bob@example.net SIP/2.0",
            "t2",
            "1 INVITE",
            "",
            &offer,
        ),
        sip("BYE sip:bob@example.net SIP/2.0", "t1", "2 BYE", "", ""),
    ]
    .concat();
    let bytes = all.as_bytes();
    let (from, to) = (addr("192.0.2.1:33333"), addr("198.51.100.2:4444"));
    let check = |packets: &[(u64, Vec<u8>)], calls: usize, messages: u64, context: &str| {
        let analysis = analyse(file_of(LinkType::Raw, packets, <[u8]>::to_vec));
        let got: Vec<_> = analysis
            .calls
            .iter()
            .map(|call| (call.call_id.as_str(), call.transport))
            .collect();
        assert_eq!(got.len(), calls, "{context} {got:?}");
        assert!(got.iter().all(|(_, transport)| *transport == "tcp"));
        assert_eq!(analysis.sip_messages, messages, "{context}");
    };
    check(&segments(from, to, bytes, &[], EPOCH), 2, 4, "all in one");
    for step in [700, 333, 101] {
        let cuts: Vec<usize> = (step..bytes.len()).step_by(step).collect();
        let ordered = segments(from, to, bytes, &cuts, EPOCH);
        check(&ordered, 2, 4, "split");
        let mut shuffled = ordered.clone();
        for pair in 2..shuffled.len() / 2 {
            shuffled.swap(pair * 2 - 1, pair * 2);
        }
        shuffled.push(shuffled[2].clone());
        check(&shuffled, 2, 4, "reordered and repeated");
        let mut first_late = ordered.clone();
        first_late.swap(1, 2);
        check(&first_late, 2, 4, "the first segment late");
    }
    // The segment that ends the first message is not in the capture: the next message is still found.
    let second = all.find("ACK sip:").unwrap();
    let third = all.rfind("INVITE sip:").unwrap();
    let mut gap = segments(from, to, bytes, &[300, third], EPOCH);
    gap.remove(2);
    check(&gap, 2, 3, "gap");
    assert!(second < third);
    // Other protocols in other connections, some of them with words of SIP.
    let mut mixed = segments(from, to, bytes, &[500], EPOCH);
    for (port, text) in [
        (1u16, "GET / HTTP/1.1\r\n\r\n"),
        (2, "\x16\x03\x01\x02"),
        (3, "x\nINVITE sip:a SIP/2.0\r\n\r\n"),
    ] {
        mixed.extend(segments(
            SocketAddr::new(from.ip(), port),
            to,
            text.repeat(50).as_bytes(),
            &[52],
            EPOCH,
        ));
    }
    check(&mixed, 2, 4, "beside other protocols");
    // Mid-stream, without the handshake.
    let mut late = segments(from, to, bytes, &[second], EPOCH);
    late.drain(..2);
    check(&late, 2, 3, "begun late");
}

#[test]
fn sip_fragmented_over_udp() {
    let long = format!("a=x:{}\r\n", "y".repeat(3000));
    let offer = sdp(addr("192.0.2.1:40000"), "0", &long);
    let text = sip(
        "INVITE sip:bob@example.net SIP/2.0",
        "f1",
        "1 INVITE",
        "",
        &offer,
    );
    let segment = udp_segment(addr(UA), addr(UB), text.as_bytes());
    let mut writer = PcapWriter::new(LinkType::Raw);
    let parts: Vec<_> = segment.chunks(1480).collect();
    for (at, part) in parts.iter().enumerate().rev() {
        let more = if at + 1 < parts.len() { 0x2000 } else { 0 };
        let field = more | (at * 1480 / 8) as u16;
        writer.frame(
            EPOCH,
            &ipv4(addr(UA).ip(), addr(UB).ip(), 17, 7, field, part),
        );
    }
    let analysis = analyse(writer.finish());
    assert_eq!(analysis.calls.len(), 1);
    assert_eq!(
        analysis.calls[0].media[0].address.as_deref(),
        Some("192.0.2.1:40000")
    );
}

#[test]
fn ports_reused_by_a_later_call() {
    let (near, far) = ("192.0.2.1:40000", "198.51.100.2:50000");
    let mut packets = Vec::new();
    for (at, call, rate) in [(0u64, "first", 8000u32), (60_000, "second", 16_000)] {
        let maps = format!("a=rtpmap:96 speex/{rate}\r\n");
        let offer = sdp(addr(near), "96", &maps);
        let invite = sip(
            "INVITE sip:bob@example.net SIP/2.0",
            call,
            "1 INVITE",
            "",
            &offer,
        );
        packets.extend(sip_frames(&[(at, UA, UB, invite)]));
        let talk = Talk {
            payload_type: 96,
            clock: rate,
            ssrc: rate,
            ..Talk::default()
        };
        for (time, packet) in talk.packets(20) {
            packets.push((time + (at + 100) * MS, udp(addr(far), addr(near), &packet)));
        }
    }
    packets.sort_by_key(|(time, _)| *time);
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    let got: Vec<_> = analysis
        .streams
        .iter()
        .map(|stream| (stream.call_id.as_deref(), stream.clock_rate))
        .collect();
    assert_eq!(
        got,
        [(Some("first"), Some(8000)), (Some("second"), Some(16_000))]
    );
    assert!(
        analysis
            .streams
            .iter()
            .all(|stream| stream.jitter_ms.unwrap().max < 1e-6)
    );
}

/// A segment that the receiver has acknowledged, but the capture does not contain, changes neither times nor outcomes.
#[test]
fn segment_missing_in_the_capture_is_skipped_at_its_acknowledgement() {
    let (from, to) = (addr("192.0.2.1:33333"), addr("198.51.100.2:4444"));
    let invite = |id: &str| sip("INVITE sip:bob@example.net SIP/2.0", id, "1 INVITE", "", "");
    let status = |line: &str, id: &str| sip(line, id, "1 INVITE", ";tag=b", "");
    let ack = |id: &str| sip("ACK sip:bob@example.net SIP/2.0", id, "1 ACK", ";tag=b", "");
    let messages = [
        (0u64, true, invite("lost")),
        (500, true, invite("kept")),
        (700, false, status("SIP/2.0 180 Ringing", "kept")),
        (1_500, false, status("SIP/2.0 486 Busy Here", "kept")),
        (1_510, true, ack("kept")),
        (3_000, true, ack("lost")),
    ];
    let mut packets = Vec::new();
    let mut next = [1_000u32, 9_000];
    for (forward, (source, destination)) in [(from, to), (to, from)].into_iter().enumerate() {
        packets.push((EPOCH, tcp(source, destination, next[forward] - 1, 2, &[])));
    }
    for (ms, forward, text) in messages {
        let own = usize::from(!forward);
        let (source, destination) = if forward { (from, to) } else { (to, from) };
        let mut segment = tcp(source, destination, next[own], 0x18, text.as_bytes());
        segment[28..32].copy_from_slice(&next[1 - own].to_be_bytes());
        next[own] += text.len() as u32;
        if !text.starts_with("INVITE") || text.contains("kept") {
            packets.push((EPOCH + ms * MS, segment));
        }
    }
    let analysis = analyse(file_of(LinkType::Raw, &packets, <[u8]>::to_vec));
    let call = analysis.calls.iter().find(|call| call.call_id == "kept");
    let call = call.expect("the call after the gap");
    let start = EPOCH as f64 / 1e9;
    assert_eq!((call.outcome, call.status), ("busy", Some(486)));
    assert!((call.invite_at.unwrap() - start - 0.5).abs() < 1e-6);
    assert_eq!(call.post_dial_delay_ms, Some(200.0));
    assert!(
        analysis
            .notes
            .iter()
            .any(|note| note.contains("gaps in SIP over TCP")),
        "{:?}",
        analysis.notes
    );
}

/// The answer to a challenge is another attempt: the delay ends with the ringing, not with 407.
#[test]
fn challenge_is_no_end_of_the_post_dial_delay() {
    let invite = |cseq: &str| sip("INVITE sip:bob@example.net SIP/2.0", "c", cseq, "", "");
    let status = |line: &str, cseq: &str| sip(line, "c", cseq, ";tag=b", "");
    let delay = |frames: &[(u64, &str, &str, String)]| {
        let file = file_of(LinkType::Raw, &sip_frames(frames), <[u8]>::to_vec);
        let call = analyse(file).calls.remove(0);
        (call.status, call.post_dial_delay_ms)
    };
    let mut frames = vec![
        (0, UA, UB, invite("1 INVITE")),
        (
            4,
            UB,
            UA,
            status("SIP/2.0 407 Proxy Authentication Required", "1 INVITE"),
        ),
    ];
    assert_eq!(delay(&frames), (Some(407), Some(4.0)));
    frames.extend([
        (10, UA, UB, invite("2 INVITE")),
        (
            12,
            UB,
            UA,
            status("SIP/2.0 407 Proxy Authentication Required", "1 INVITE"),
        ),
        (2004, UB, UA, status("SIP/2.0 180 Ringing", "2 INVITE")),
        (5000, UB, UA, status("SIP/2.0 200 OK", "2 INVITE")),
    ]);
    assert_eq!(delay(&frames), (Some(200), Some(2004.0)));
    // Refused without ringing.
    frames.truncate(4);
    frames.push((900, UB, UA, status("SIP/2.0 486 Busy Here", "2 INVITE")));
    assert_eq!(delay(&frames), (Some(486), Some(900.0)));
}

#[test]
fn everything_beyond_a_limit_is_noted() {
    let limits = AnalyseLimits {
        streams: 1,
        endpoints: 1,
        associations: 1,
        ..AnalyseLimits::default()
    };
    let mut analyser = CaptureAnalyser::new(limits);
    let mut packets = Vec::new();
    for (call, port) in [("first", 40_000), ("second", 40_002), ("third", 40_004)] {
        let offer = sdp(addr(&format!("192.0.2.1:{port}")), "0", "");
        let invite = sip(
            "INVITE sip:bob@example.net SIP/2.0",
            call,
            "1 INVITE",
            "",
            &offer,
        );
        packets.push(udp(addr(UA), addr(UB), invite.as_bytes()));
    }
    for source in 1..=3 {
        let report = wire::rtcp::CompoundBuilder::new()
            .receiver_report(source, &[])
            .cname(source, "alice");
        let (from, to) = (addr("192.0.2.1:4001"), addr("198.51.100.2:6001"));
        packets.push(udp(from, to, &report.finish()));
        let mut esp = source.to_be_bytes().to_vec();
        esp.extend([0, 0, 0, 1]);
        esp.extend([0xa5; 60]);
        packets.push(ip(from.ip(), to.ip(), 50, &esp));
        let from = SocketAddr::new(from.ip(), 5_000 + source as u16);
        packets.push(udp(from, to, &[22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }
    for packet in &packets {
        analyser.packet(EPOCH, packet);
    }
    let notes = analyser.finish().notes;
    // Of the first handshake, one direction has a place.
    for note in [
        "2 media lines of session descriptions beyond the limit",
        "2 RTCP reports of sources beyond the limit",
        "2 ESP packets of associations beyond the limit",
        "3 packets of DTLS handshakes beyond the limit",
    ] {
        assert!(notes.iter().any(|known| known == note), "{note}: {notes:?}");
    }
}
