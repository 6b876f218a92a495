//! Media through the border: anchored, bypassed, without free ports, silent.

use crate::virtual_network;

use protect::sdes::CryptoAttribute;
use protect::srtp::{ContextLimits, Inbound, Outbound};
use sip::{Ending, Failure, MessageContent};
use std::time::Duration;
use virtual_network::*;

pub fn port_of(body: &str) -> u16 {
    body.split("m=audio ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

pub(crate) fn rtp(sequence: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 0, 0, 0, 0, 0, 0, 160, 1, 2, 3, 4];
    packet[2..4].copy_from_slice(&sequence.to_be_bytes());
    packet.extend([0x55; 160]);
    packet
}

#[test]
fn packets_are_relayed_and_third_parties_are_dropped() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let towards_alice = port_of(
        &net.find(alice, |event| *event == PhoneEvent::Answered)
            .body(),
    );
    let towards_bob = port_of(&net.find(bob, |event| *event == PhoneEvent::Offered).body());
    for sequence in 0..10 {
        net.send_raw(
            "10.1.0.1:4000",
            &format!("192.0.2.1:{towards_alice}"),
            &rtp(sequence),
        );
        net.send_raw(
            "10.2.0.1:5000",
            &format!("198.51.100.1:{towards_bob}"),
            &rtp(sequence),
        );
        net.send_raw(
            "203.0.113.66:6666",
            &format!("192.0.2.1:{towards_alice}"),
            &rtp(sequence),
        );
    }
    net.run(seconds(1));
    let came = |to: &str, from: &str| {
        net.media
            .iter()
            .filter(|(t, f, _)| *t == to.parse().unwrap() && *f == from.parse().unwrap())
            .count()
    };
    assert_eq!(
        came("10.2.0.1:5000", &format!("198.51.100.1:{towards_bob}")),
        10
    );
    assert_eq!(
        came("10.1.0.1:4000", &format!("192.0.2.1:{towards_alice}")),
        10
    );
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert_eq!(net.border.census().ports, 0, "released with the call");
    net.assert_quiet();
}

#[test]
fn bypassed_media_is_unchanged() {
    let config = format!("{PLAIN}[[route]]\ntrunk='pbx'\nmedia='bypass'\n");
    let (mut net, alice, bob) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!(
        net.find(bob, |event| *event == PhoneEvent::Offered).body(),
        SDP_A
    );
    assert_eq!(
        net.find(alice, |event| *event == PhoneEvent::Answered)
            .body(),
        SDP_B
    );
    let census = net.border.census();
    assert_eq!(
        (census.ports, census.sessions, census.sockets_open),
        (0, 0, 0)
    );
}

#[test]
fn no_free_port_is_503_and_logged() {
    let config = PLAIN.replace(
        "media={address='198.51.100.1'}",
        "media={address='198.51.100.1',ports='30000-30003'}",
    );
    let (mut net, alice, bob) = pair(&config);
    let mut legs = Vec::new();
    for _ in 0..3 {
        legs.push(net.call(alice, "sip:bob@192.0.2.1", OUT, &offer()));
        net.run(seconds(1));
    }
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 503)));
    assert!(net.names().contains(&"media_ports_exhausted"));
    assert_eq!(net.border.counters().ports_exhausted, 1);
    assert_eq!(
        net.phone_events(bob)
            .iter()
            .filter(|event| **event == PhoneEvent::Acked)
            .count(),
        2
    );
    assert_eq!(net.border.census().ports, 4);
    net.command(alice, |endpoint, now| {
        endpoint
            .bye(legs[0], &MessageContent::default(), now)
            .unwrap()
    });
    net.run(seconds(1));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!(
        net.phone_events(bob)
            .iter()
            .filter(|event| **event == PhoneEvent::Acked)
            .count(),
        3
    );
}

#[test]
fn socket_that_cannot_be_opened_ends_the_call() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.refuse_media_sockets = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(
        net.has(alice, |event| *event
            == PhoneEvent::Failed(Failure::Response, 503)),
        "{:?}",
        net.phone_events(alice)
    );
    assert_eq!(net.phone_events(bob), [], "no port, no call");
    let logged = ["socket_failed", "media_port_in_use"];
    let failed = net.names();
    let failed = failed.iter().filter(|name| logged.contains(name));
    assert_eq!(failed.count(), 1, "{:?}", net.names());
    net.assert_quiet();
}

/// Four pairs for each side.
fn four_pairs() -> String {
    PLAIN
        .replace(
            "media={address='192.0.2.1'}",
            "media={address='192.0.2.1',ports='20000-20007'}",
        )
        .replace(
            "media={address='198.51.100.1'}",
            "media={address='198.51.100.1',ports='30000-30007'}",
        )
}

fn addr(address: &str) -> std::net::SocketAddr {
    address.parse().unwrap()
}

#[test]
fn port_in_use_is_skipped_with_its_pair() {
    let (mut net, alice, bob) = pair(&four_pairs());
    // Of three pairs of each side, another program uses one port of each.
    net.occupied = [20_001, 20_002, 20_005]
        .map(|port| addr(&format!("192.0.2.1:{port}")))
        .into_iter()
        .chain([30_000, 30_003, 30_006].map(|port| addr(&format!("198.51.100.1:{port}"))))
        .collect();
    for call in 0..5 {
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        let to_alice = port_of(
            &net.last(alice, |event| *event == PhoneEvent::Answered)
                .body(),
        );
        let to_bob = port_of(&net.last(bob, |event| *event == PhoneEvent::Offered).body());
        assert_eq!((to_alice, to_bob), (20_006, 30_004), "call {call}");
        for port in [20_006, 20_007] {
            assert!(net.is_open(addr(&format!("192.0.2.1:{port}"))));
        }
        for port in (20_000..20_006).map(|port| format!("192.0.2.1:{port}")) {
            assert!(!net.is_open(addr(&port)), "{port} is left over");
        }
        net.send_raw("10.1.0.1:4000", "192.0.2.1:20006", &rtp(1));
        net.run(seconds(1));
        assert_eq!(net.media.len(), call + 1, "media is relayed");
        assert_eq!(net.border.census().ports, 2);
        net.command(alice, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap()
        });
        net.run(seconds(1));
        assert_eq!(net.border.census().ports, 0);
    }
    let taken = net.border.counters().ports_taken;
    assert!((1..=6).contains(&taken), "{taken}");
    let reported = net.names();
    let count = |event| reported.iter().filter(|name| **name == event).count() as u64;
    assert!((1..=taken.min(5)).contains(&count("media_port_in_use")));
    assert_eq!(count("socket_failed"), 0);
    net.assert_quiet();
}

/// Three of four pairs of a side, of which the calls need two.
#[test]
fn ports_in_use_are_tried_once_a_minute_and_logged_once() {
    let shared = PLAIN.replace(
        "media={address='198.51.100.1'}",
        "media={address='192.0.2.1',ports='20000-20007'}",
    );
    let shared = shared.replace(
        "media={address='192.0.2.1'}",
        "media={address='192.0.2.1',ports='20000-20007'}",
    );
    let (mut net, alice, _) = pair(&shared);
    net.occupied = [20_000, 20_003, 20_006]
        .map(|port| addr(&format!("192.0.2.1:{port}")))
        .to_vec();
    let lines = |net: &VirtualNetwork| {
        let logged = ["socket_failed", "media_port_in_use"];
        net.names()
            .iter()
            .filter(|name| logged.contains(name))
            .count()
    };
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 503)));
    assert_eq!(lines(&net), 1);
    let taken = net.border.counters().ports_taken;
    assert!(taken <= 3, "each pair is tried once: {taken}");
    // The next call does not try them again.
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!((lines(&net), net.border.counters().ports_taken), (1, taken));
    // The other programs have ended.
    net.occupied.clear();
    net.run(seconds(60));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

#[test]
fn ports_in_use_are_retried_when_no_other_is_left() {
    let (mut net, alice, bob) = pair(&four_pairs());
    net.occupied = (20_000..20_008)
        .map(|port| addr(&format!("192.0.2.1:{port}")))
        .collect();
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 503)));
    assert_eq!(net.phone_events(bob), []);
    assert_eq!(net.border.census().ports, 0, "all pairs are free again");
    net.occupied.clear();
    net.run(seconds(60));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.assert_quiet();
}

#[test]
fn late_offer_has_ports_of_the_border() {
    let (mut net, alice, bob) = pair(&four_pairs());
    net.phones[alice].log.behaviour.sdp = "late".into();
    net.occupied = [20_000, 20_003, 20_004]
        .map(|port| addr(&format!("192.0.2.1:{port}")))
        .into_iter()
        .chain([30_000, 30_003, 30_006].map(|port| addr(&format!("198.51.100.1:{port}"))))
        .collect();
    // Audio; a line of another type; first a rejected line.
    let others = [
        SDP_B.to_owned(),
        SDP_B.replace("m=audio 5000 RTP/AVP 0", "m=image 5000 udptl t38"),
        SDP_B.replace("m=audio", "m=video 0 RTP/AVP 31\r\nm=audio"),
    ];
    for (call, offers) in others.iter().enumerate() {
        net.phones[bob].log.behaviour.sdp = offers.clone();
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &MessageContent::default());
        net.run(seconds(1));
        let answered = net.last(alice, |event| *event == PhoneEvent::Answered);
        let body = answered.body();
        let line = body
            .lines()
            .find(|line| line.starts_with("m=") && !line.contains(" 0 RTP"));
        let port = line.and_then(|line| line.split(' ').nth(1)).unwrap();
        assert_eq!(port, "20006", "call {call}: {body}");
        assert!(net.is_open(addr("192.0.2.1:20006")));
        // Alice's answer has one line and omits the second one, which is thereby removed.
        let kept = if call == 2 { 0 } else { 2 };
        assert_eq!(net.border.census().ports, kept, "call {call}");
        net.command(alice, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap()
        });
        net.run(seconds(1));
        assert_eq!(net.border.census().ports, 0, "call {call}");
    }
    // A failed call releases its ports, too.
    net.phones[bob].log.behaviour.answer = Some(486);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &MessageContent::default());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 486)));
    net.assert_quiet();
}

#[test]
fn line_added_by_reinvite_skips_ports_in_use() {
    let (mut net, alice, bob) = pair(&four_pairs());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let used = port_of(&net.last(bob, |event| *event == PhoneEvent::Offered).body());
    // All but one of the other pairs are in use by another program.
    let free = if used == 30_006 { 30_000 } else { 30_006 };
    net.occupied = (30_000..30_008)
        .filter(|port| port & !1 != used && port & !1 != free && port % 2 == 1)
        .map(|port| addr(&format!("198.51.100.1:{port}")))
        .collect();
    let two = format!("{SDP_A}m=video 4002 RTP/AVP 31\r\n");
    net.command(alice, |endpoint, now| {
        let content = MessageContent::sdp(two.as_bytes());
        let invite = wire::sip::Method::Invite;
        endpoint.request(leg, invite, &content, now).unwrap();
    });
    net.run(seconds(1));
    let offered = net
        .last(bob, |event| matches!(event, PhoneEvent::Request(_)))
        .body();
    assert!(
        offered.contains(&format!("m=audio {used} "))
            && offered.contains(&format!("m=video {free} ")),
        "{offered}"
    );
    assert!(net.has(alice, |event| matches!(event, PhoneEvent::Response(200, _))));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.assert_quiet();
}

#[test]
fn media_timeout_ends_the_call_on_both_sides() {
    let config = format!("{PLAIN}[media]\ntimeout_s=30\n");
    let (mut net, alice, bob) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(25));
    assert_eq!(net.border.calls().len(), 1);
    net.run(seconds(10));
    for phone in [alice, bob] {
        let bye = net.find(phone, |event| *event == PhoneEvent::Ended(Ending::Peer));
        assert!(bye.header("Reason").contains("No media"));
    }
    assert!(net.names().contains(&"media_timeout"));
    net.assert_quiet();
}

#[test]
fn sockets_are_kept_for_a_second_and_then_closed() {
    let config = PLAIN
        .replace(
            "media={address='192.0.2.1'}",
            "media={address='192.0.2.1',ports='20000-20007'}",
        )
        .replace(
            "media={address='198.51.100.1'}",
            "media={address='198.51.100.1',ports='30000-30007'}",
        );
    let (mut net, alice, _) = pair(&config);
    let mut most = 0;
    for _ in 0..30 {
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        net.command(alice, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap()
        });
        net.run(Duration::from_millis(200));
        let open = net.border.census().sockets_open;
        assert!(open >= 4, "kept for the next call");
        most = most.max(open);
    }
    assert!(most <= 16, "{most}");
    assert_eq!(net.border.counters().completed, 30);
    let with_media = net.open_sockets;
    net.run(Duration::from_millis(1_100));
    assert_eq!(
        net.border.census().sockets_open,
        0,
        "available to other programs"
    );
    assert_eq!(net.open_sockets, with_media - most);
    net.assert_quiet();
}

#[test]
fn ipv4_to_ipv6() {
    let config = PLAIN
        .replace("198.51.100.1:5060", "[2001:db8::1]:5060")
        .replace("198.51.100.1", "2001:db8::1")
        .replace("10.2.0.1:5060", "[2001:db8::b]:5060");
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let sdp = SDP_B.replace("IP4 10.2.0.1", "IP6 2001:db8::b");
    let bob = net.phone("[2001:db8::b]:5060", PhoneBehaviour::answering(&sdp));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered).body();
    assert!(offered.contains("c=IN IP6 2001:db8::1"), "{offered}");
    let answered = net
        .find(alice, |event| *event == PhoneEvent::Answered)
        .body();
    assert!(answered.contains("c=IN IP4 192.0.2.1"), "{answered}");
    let port = port_of(&answered);
    for sequence in 0..5 {
        net.send_raw(
            "10.1.0.1:4000",
            &format!("192.0.2.1:{port}"),
            &rtp(sequence),
        );
    }
    net.run(seconds(1));
    let far = "[2001:db8::b]:5000".parse().unwrap();
    assert_eq!(net.media.iter().filter(|(to, _, _)| *to == far).count(), 5);
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.assert_quiet();
}

#[test]
fn lines_that_cannot_be_anchored() {
    let (mut net, alice, bob) = pair(PLAIN);
    let both = format!("{SDP_A}m=message 2855 TCP/MSRP *\r\n");
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(both.as_bytes()),
    );
    net.run(seconds(1));
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered).body();
    assert!(offered.contains("m=message 0 TCP/MSRP *"), "{offered}");
    let alone = "v=0\r\no=- 1 1 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=message 2855 TCP/MSRP *\r\n";
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(alone.as_bytes()),
    );
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 488)));
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(b"v=0\r\nm=rubbish\r\n"),
    );
    net.run(seconds(1));
    assert_eq!(
        net.phone_events(alice)
            .iter()
            .filter(|event| **event == PhoneEvent::Failed(Failure::Response, 488))
            .count(),
        2
    );
}

/// Everything that arrived at an address.
pub fn arrivals(net: &VirtualNetwork, to: &str) -> Vec<Vec<u8>> {
    let to = to.parse().unwrap();
    let came = net.media.iter().filter(|(at, ..)| *at == to);
    came.map(|(_, _, bytes)| bytes.clone()).collect()
}

fn sender_report() -> Vec<u8> {
    let mut packet = vec![0x80, 200, 0, 6, 1, 2, 3, 4];
    packet.extend([0; 20]);
    packet
}

fn line_port(body: &str, media: &str) -> u16 {
    let line = body.split(&format!("m={media} ")).nth(1).unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn rtcp_uses_its_signalled_port_without_mux() {
    let (mut net, alice, bob) = pair(PLAIN);
    // Bob has a separate port for RTCP (RFC 3605), and does not multiplex.
    net.phones[bob].log.behaviour.sdp = format!("{SDP_B}a=rtcp:5777\r\n");
    let offered = format!("{SDP_A}a=rtcp-mux\r\n");
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(offered.as_bytes()),
    );
    net.run(seconds(1));
    let answer = net
        .find(alice, |event| *event == PhoneEvent::Answered)
        .body();
    assert!(!answer.contains("rtcp-mux"), "{answer}");
    let port = port_of(&answer);
    net.send_raw(
        "10.1.0.1:4001",
        &format!("192.0.2.1:{}", port + 1),
        &sender_report(),
    );
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5777"), [sender_report()]);
    // On the RTP port it is rejected.
    net.send_raw(
        "10.1.0.1:4000",
        &format!("192.0.2.1:{port}"),
        &sender_report(),
    );
    net.run(seconds(1));
    assert!(arrivals(&net, "10.2.0.1:5000").is_empty());
    assert_eq!(
        net.forwarder
            .drops()
            .get(engine::DropReason::MediaUnexpectedRtcp),
        1
    );
}

#[test]
fn rtcp_mux_is_used_by_agreement() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.sdp = format!("{SDP_B}a=rtcp-mux\r\n");
    let offered = format!("{SDP_A}a=rtcp-mux\r\n");
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(offered.as_bytes()),
    );
    net.run(seconds(1));
    let answer = net
        .find(alice, |event| *event == PhoneEvent::Answered)
        .body();
    assert!(answer.contains("a=rtcp-mux"), "{answer}");
    let port = port_of(&answer);
    net.send_raw(
        "10.1.0.1:4000",
        &format!("192.0.2.1:{port}"),
        &sender_report(),
    );
    net.send_raw("10.1.0.1:4000", &format!("192.0.2.1:{port}"), &rtp(1));
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000"), [sender_report(), rtp(1)]);
}

#[test]
fn description_in_a_multipart_body_is_rewritten() {
    let parts = |sdp: &str, isup: &str| {
        format!(
            "--x\r\nContent-Type: application/pidf+xml\r\nContent-ID: <a@b>\r\n\r\n<presence> 10.1.0.1 </presence>\r\n\
             --x\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}\r\n\
             --x\r\nContent-Type: application/ISUP;version=itu-t92+\r\n\r\n{isup}\r\n--x--\r\n",
            sdp.len()
        )
    };
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.answer = None;
    let kind = b"multipart/mixed;boundary=x";
    let body = parts(SDP_A, "\u{1}\u{0}\r\n\u{7f}");
    let content = MessageContent::body(kind, body.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered).clone();
    assert_eq!(offered.header("Content-Type"), "multipart/mixed;boundary=x");
    let port = port_of(&offered.body());
    let sdp = SDP_A
        .replace("m=audio 4000", &format!("m=audio {port}"))
        .replace("o=alice", "o=-")
        .replace("10.1.0.1", "198.51.100.1");
    assert_eq!(offered.body(), parts(&sdp, "\u{1}\u{0}\r\n\u{7f}"));
    assert_eq!(
        offered.header("Content-Length"),
        offered.body().len().to_string()
    );
    // The same for the answer, and media flows.
    let body = parts(SDP_B, "ANM");
    let content = MessageContent::body(kind, body.as_bytes());
    let theirs = offered.leg.unwrap();
    net.command(bob, |endpoint, now| {
        endpoint.answer(theirs, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let answered = net
        .find(alice, |event| *event == PhoneEvent::Answered)
        .body();
    let back = port_of(&answered);
    let sdp = SDP_B
        .replace("m=audio 5000", &format!("m=audio {back}"))
        .replace("o=bob", "o=-")
        .replace("10.2.0.1", "192.0.2.1");
    assert_eq!(answered, parts(&sdp, "ANM"));
    net.send_raw("10.1.0.1:4000", &format!("192.0.2.1:{back}"), &rtp(1));
    net.run(seconds(1));
    assert_eq!(net.media[0].0, addr("10.2.0.1:5000"));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.assert_quiet();
    // A part that cannot be parsed is not relayed with unreachable addresses.
    let encoded =
        parts(SDP_A, "x").replace("Content-Length", "Content-Transfer-Encoding: base64\r\nX");
    let content = MessageContent::body(kind, encoded.as_bytes());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    let end = net.last(alice, |event| matches!(event, PhoneEvent::Failed(..)));
    assert_eq!(end.event, PhoneEvent::Failed(Failure::Response, 415));
    net.assert_quiet();
}

#[test]
fn one_of_several_lines_may_be_rejected() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.sdp =
        format!("{SDP_B}m=video 0 RTP/AVP 97\r\nm=text 5010 RTP/AVP 98\r\n");
    let offered =
        format!("{SDP_A}m=video 4002 RTP/AVP 97\r\na=label:kept\r\nm=text 4004 RTP/AVP 98\r\n");
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(offered.as_bytes()),
    );
    net.run(seconds(1));
    let offer = net.find(bob, |event| *event == PhoneEvent::Offered).body();
    let order: Vec<&str> = offer
        .lines()
        .filter_map(|line| line.strip_prefix("m=")?.split(' ').next())
        .collect();
    assert_eq!(order, ["audio", "video", "text"]);
    assert!(offer.contains("a=label:kept\r\n"), "{offer}");
    let answer = net
        .find(alice, |event| *event == PhoneEvent::Answered)
        .body();
    assert!(answer.contains("m=video 0 RTP/AVP 97"), "{answer}");
    // Two lines, two sides: the rejected line has released its ports.
    assert_eq!(net.border.census().ports, 4);
    net.send_raw(
        "10.1.0.1:4004",
        &format!("192.0.2.1:{}", line_port(&answer, "text")),
        &rtp(7),
    );
    net.send_raw(
        "10.2.0.1:5000",
        &format!("198.51.100.1:{}", line_port(&offer, "audio")),
        &rtp(8),
    );
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5010"), [rtp(7)]);
    assert_eq!(arrivals(&net, "10.1.0.1:4000"), [rtp(8)]);
}

/// A caller continues to send after its call has ended, to a port that another call uses now.
#[test]
fn media_of_an_ended_call_does_not_reach_the_next() {
    let config = PLAIN.replace(
        "media={address='192.0.2.1'}",
        "media={address='192.0.2.1',ports='20000-20003'}",
    );
    let (mut net, alice, _) = pair(&config);
    let carol = net.phone(
        "10.1.0.3:5060",
        PhoneBehaviour::answering(&SDP_A.replace("10.1.0.1", "10.1.0.3")),
    );
    let dave = net.phone("10.1.0.4:5060", PhoneBehaviour::answering(SDP_A));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let port = port_of(
        &net.find(alice, |event| *event == PhoneEvent::Answered)
            .body(),
    );
    let old = format!("192.0.2.1:{port}");
    // The other pair of the range is in use.
    net.call(dave, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.send_raw("10.1.0.1:4000", &old, &rtp(1));
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000").len(), 1);
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    let theirs = SDP_A.replace("10.1.0.1", "10.1.0.3");
    net.call(
        carol,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(theirs.as_bytes()),
    );
    net.run(seconds(1));
    let next = port_of(
        &net.find(carol, |event| *event == PhoneEvent::Answered)
            .body(),
    );
    assert_eq!(next, port, "the same port again");
    for sequence in 2..20 {
        net.send_raw("10.1.0.1:4000", &old, &rtp(sequence));
        // Injected by a third party that knows the new call's port, from the same address with another port.
        net.send_raw("10.1.0.66:4000", &old, &rtp(sequence));
    }
    net.run(seconds(1));
    assert_eq!(
        arrivals(&net, "10.2.0.1:5000").len(),
        1,
        "no packet of the ended call or of third parties"
    );
    net.send_raw("10.1.0.3:4000", &old, &rtp(99));
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000").last(), Some(&rtp(99)));
    // Once the caller's address is latched, other ports of its host are rejected, too.
    for sequence in 0..10 {
        net.send_raw("10.1.0.3:4000", &old, &rtp(100 + sequence));
        net.send_raw("10.1.0.3:4999", &old, &rtp(200 + sequence));
    }
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000").len(), 12);
    assert!(
        net.forwarder
            .drops()
            .get(engine::DropReason::MediaUnexpectedSource)
            >= 10
    );
}

/// Events and tones of RFC 4733 are relayed like other packets, with payload, marker and timestamp unchanged.
#[test]
fn telephone_events_are_relayed_unchanged() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.sdp =
        format!("{SDP_B}a=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\n")
            .replace("RTP/AVP 0", "RTP/AVP 0 101");
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let answer = net
        .find(alice, |event| *event == PhoneEvent::Answered)
        .body();
    assert!(
        answer.contains("a=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\n"),
        "{answer}"
    );
    let port = port_of(&answer);
    let event = |sequence: u8, marker: u8, end: u8, duration: u16| {
        let [high, low] = duration.to_be_bytes();
        vec![
            0x80,
            101 | marker,
            0,
            sequence,
            0,
            0,
            1,
            0,
            1,
            2,
            3,
            4,
            5,
            end | 10,
            high,
            low,
        ]
    };
    let sent = [
        event(1, 0x80, 0, 160),
        event(2, 0, 0, 320),
        event(3, 0, 0x80, 480),
        event(4, 0, 0x80, 480),
    ];
    for packet in &sent {
        net.send_raw("10.1.0.1:4000", &format!("192.0.2.1:{port}"), packet);
    }
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000"), sent);
}

#[test]
fn end_to_end_srtp_is_relayed_unchanged() {
    let (mut net, alice, bob) = pair(PLAIN);
    let secure = |sdp: &str, key: &str| {
        let sdp = sdp.replace("RTP/AVP", "RTP/SAVP");
        format!("{sdp}a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{key}\r\n")
    };
    let keys = [
        "WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz|2^20|1:32",
        "d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj",
    ];
    net.phones[bob].log.behaviour.sdp = secure(SDP_B, keys[1]);
    let offered = secure(SDP_A, keys[0]);
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(offered.as_bytes()),
    );
    net.run(seconds(1));
    let offer = net.find(bob, |event| *event == PhoneEvent::Offered).body();
    let answer = net
        .find(alice, |event| *event == PhoneEvent::Answered)
        .body();
    for (body, key) in [(&offer, keys[0]), (&answer, keys[1])] {
        assert!(
            body.contains("RTP/SAVP ") && body.contains(&format!("inline:{key}\r\n")),
            "{body}"
        );
    }
    // Encrypted: the padding bit is in the clear, the padding count is not; an authentication tag follows.
    let port = port_of(&answer);
    let mut sealed = rtp(1);
    sealed[0] |= 0x20;
    sealed.extend([0xee; 10]);
    // SRTCP: the first eight octets in the clear, then encrypted lengths, the index with its E flag, a tag.
    let mut report = sender_report();
    report[8..].fill(0x9c);
    report.extend([0x80, 0, 0, 1]);
    report.extend([0xee; 10]);
    for (source, at, packet) in [
        ("10.1.0.1:4000", port, &sealed),
        ("10.1.0.1:4001", port + 1, &report),
    ] {
        net.send_raw(source, &format!("192.0.2.1:{at}"), packet);
    }
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000"), [sealed]);
    assert_eq!(arrivals(&net, "10.2.0.1:5001"), [report]);
}

/// A key of 30 bytes and its line.
const CRYPTO: &str =
    "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n";

fn sealed_with(context: &mut Outbound, packet: &[u8]) -> Vec<u8> {
    let mut buffer = packet.to_vec();
    buffer.resize(packet.len() + 16, 0);
    let length = context.protect_rtp(&mut buffer, packet.len()).unwrap();
    buffer.truncate(length);
    buffer
}

#[test]
fn call_with_srtp_on_both_sides() {
    let config = PLAIN.replace("kind='access'", "kind='access'\nsrtp='require'");
    let (mut net, alice, bob) = pair(&config);
    let secret = SDP_A.replace("RTP/AVP", "RTP/SAVP") + CRYPTO;
    let leg = net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(secret.as_bytes()),
    );
    net.run(seconds(1));
    let inside = net.find(bob, |event| *event == PhoneEvent::Offered).body();
    assert!(
        inside.contains(" RTP/AVP 0 101") && !inside.contains("crypto"),
        "{inside}"
    );
    let answer = net
        .find(alice, |event| *event == PhoneEvent::Answered)
        .body();
    assert!(answer.contains(" RTP/SAVP 0\r\n"), "{answer}");
    let ours = answer.split("a=crypto:").nth(1).unwrap().trim_end();
    let limits = ContextLimits::default();
    let ours = CryptoAttribute::parse(ours.as_bytes()).unwrap();
    let theirs = CryptoAttribute::parse(CRYPTO["a=crypto:".len()..].trim_end().as_bytes()).unwrap();
    let mut outbound = Outbound::new(&theirs.keys[0], limits).unwrap();
    let mut inbound = Inbound::new(&ours.keys[0], limits).unwrap();
    let (towards_alice, towards_bob) = (port_of(&answer), port_of(&inside));
    for sequence in 0..10 {
        let secret = sealed_with(&mut outbound, &rtp(sequence));
        net.send_raw(
            "10.1.0.1:4000",
            &format!("192.0.2.1:{towards_alice}"),
            &secret,
        );
        net.send_raw(
            "10.2.0.1:5000",
            &format!("198.51.100.1:{towards_bob}"),
            &rtp(sequence),
        );
        net.send_raw(
            "10.1.0.1:4000",
            &format!("192.0.2.1:{towards_alice}"),
            &rtp(sequence),
        );
    }
    net.run(seconds(1));
    let came = |to: &str| -> Vec<Vec<u8>> {
        let to = to.parse().unwrap();
        let to_there = net.media.iter().filter(|(t, _, _)| *t == to);
        to_there.map(|(_, _, bytes)| bytes.clone()).collect()
    };
    let plain: Vec<Vec<u8>> = (0..10).map(rtp).collect();
    assert_eq!(
        came("10.2.0.1:5000"),
        plain,
        "only protected packets are relayed"
    );
    for (mut secret, plain) in came("10.1.0.1:4000").into_iter().zip(&plain) {
        let length = inbound.unprotect_rtp(&mut secret).unwrap();
        assert_eq!(&secret[..length], plain.as_slice());
    }
    assert!(
        net.names().contains(&"media_security_agreed"),
        "{:?}",
        net.names()
    );
    assert!(
        !format!("{:?}", net.events).contains("AAAAAAAA"),
        "no key in events"
    );
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    net.assert_quiet();
}

#[test]
fn offer_without_required_srtp_is_refused() {
    let config = PLAIN.replace("kind='access'", "kind='access'\nsrtp='require'");
    let (mut net, alice, bob) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 488)));
    assert!(!net.has(bob, |event| *event == PhoneEvent::Offered));
    assert!(
        net.names().contains(&"media_security_failed"),
        "{:?}",
        net.names()
    );
    net.assert_quiet();
}

#[test]
fn answer_without_required_srtp_ends_the_call() {
    let config = PLAIN.replace("kind='core'", "kind='core'\nsrtp='require'");
    let (mut net, alice, bob) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered).body();
    assert!(
        offered.contains(" RTP/SAVP 0") && offered.contains("a=crypto:1 "),
        "{offered}"
    );
    assert!(net.has(bob, |event| *event == PhoneEvent::Ended(Ending::Peer)));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 488)));
    assert!(
        net.names().contains(&"media_security_failed"),
        "{:?}",
        net.names()
    );
    net.assert_quiet();
}
