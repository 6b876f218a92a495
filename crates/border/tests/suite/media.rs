//! Media through the border: anchored, passed by, exhausted, silent.

use crate::neighbourhood;

use neighbourhood::*;
use protect::sdes::CryptoAttribute;
use protect::srtp::{ContextLimits, Inbound, Outbound};
use sip::{Content, Ending, Failure};
use std::time::Duration;

const OUT: &str = "192.0.2.1:5060";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn offer() -> Content<'static> {
    Content::sdp(SDP_A.as_bytes())
}

fn pair(config: &str) -> (Neighbourhood, usize, usize) {
    let mut net = Neighbourhood::new(config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    (net, alice, bob)
}

fn port_of(body: &str) -> u16 {
    body.split("m=audio ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn rtp(sequence: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 0, 0, 0, 0, 0, 0, 160, 1, 2, 3, 4];
    packet[2..4].copy_from_slice(&sequence.to_be_bytes());
    packet.extend([0x55; 160]);
    packet
}

#[test]
fn packets_go_through_both_ways_and_strangers_do_not() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let towards_alice = port_of(&net.find(alice, |told| *told == Told::Answered).body());
    let towards_bob = port_of(&net.find(bob, |told| *told == Told::Offered).body());
    for sequence in 0..10 {
        net.throw(
            "10.1.0.1:4000",
            &format!("192.0.2.1:{towards_alice}"),
            &rtp(sequence),
        );
        net.throw(
            "10.2.0.1:5000",
            &format!("198.51.100.1:{towards_bob}"),
            &rtp(sequence),
        );
        net.throw(
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
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert_eq!(net.border.census().ports, 0, "given back with the call");
    net.assert_quiet();
}

#[test]
fn media_that_is_passed_by_is_not_touched() {
    let config = format!("{PLAIN}[[route]]\ntrunk='pbx'\nmedia='bypass'\n");
    let (mut net, alice, bob) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!(net.find(bob, |told| *told == Told::Offered).body(), SDP_A);
    assert_eq!(
        net.find(alice, |told| *told == Told::Answered).body(),
        SDP_B
    );
    let census = net.border.census();
    assert_eq!(
        (census.ports, census.sessions, census.sockets_open),
        (0, 0, 0)
    );
}

#[test]
fn no_port_left_is_a_503_and_told() {
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
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 503)));
    assert!(net.names().contains(&"media_ports_exhausted"));
    assert_eq!(net.border.counters().ports_exhausted, 1);
    assert_eq!(
        net.told(bob)
            .iter()
            .filter(|told| **told == Told::Acked)
            .count(),
        2
    );
    assert_eq!(net.border.census().ports, 4);
    net.tell(alice, |endpoint, now| {
        endpoint.bye(legs[0], &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!(
        net.told(bob)
            .iter()
            .filter(|told| **told == Told::Acked)
            .count(),
        3
    );
}

#[test]
fn a_socket_that_cannot_be_opened_ends_the_call() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.refuse_media_sockets = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(
        net.has(alice, |told| *told == Told::Failed(Failure::Response, 503)),
        "{:?}",
        net.told(alice)
    );
    assert_eq!(net.told(bob), [], "no port, no call");
    let failed = net.names();
    let failed = failed.iter().filter(|name| **name == "socket_failed");
    assert!((2..=40).contains(&failed.count()), "{:?}", net.names());
    net.assert_quiet();
}

/// Four pairs for each side.
fn narrow() -> String {
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

fn place(address: &str) -> std::net::SocketAddr {
    address.parse().unwrap()
}

#[test]
fn a_port_that_another_program_has_is_passed_over_with_its_pair() {
    let (mut net, alice, bob) = pair(&narrow());
    // Of three pairs of each side one half is somebody else's.
    net.taken = [20_001, 20_002, 20_005]
        .map(|port| place(&format!("192.0.2.1:{port}")))
        .into_iter()
        .chain([30_000, 30_003, 30_006].map(|port| place(&format!("198.51.100.1:{port}"))))
        .collect();
    for call in 0..5 {
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        let to_alice = port_of(&net.last(alice, |told| *told == Told::Answered).body());
        let to_bob = port_of(&net.last(bob, |told| *told == Told::Offered).body());
        assert_eq!((to_alice, to_bob), (20_006, 30_004), "call {call}");
        for port in [20_006, 20_007] {
            assert!(net.is_open(place(&format!("192.0.2.1:{port}"))));
        }
        for port in (20_000..20_006).map(|port| format!("192.0.2.1:{port}")) {
            assert!(!net.is_open(place(&port)), "{port} is left over");
        }
        net.throw("10.1.0.1:4000", "192.0.2.1:20006", &rtp(1));
        net.run(seconds(1));
        assert_eq!(net.media.len(), call + 1, "media goes through");
        assert_eq!(net.border.census().ports, 2);
        net.tell(alice, |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap()
        });
        net.run(seconds(1));
        assert_eq!(net.border.census().ports, 0);
    }
    // What was found taken once is tried again only when nothing else is left.
    let taken = net.border.counters().ports_taken;
    assert!((1..=6).contains(&taken), "{taken}");
    let told = net.names();
    let told = told.iter().filter(|name| **name == "media_port_taken");
    assert_eq!(told.count() as u64, taken);
    net.assert_quiet();
}

#[test]
fn ports_that_others_have_are_asked_for_a_few_times_and_again_when_nothing_else_is_left() {
    let (mut net, alice, bob) = pair(&narrow());
    net.taken = (20_000..20_008)
        .map(|port| place(&format!("192.0.2.1:{port}")))
        .collect();
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 503)));
    assert_eq!(net.told(bob), []);
    assert_eq!(net.border.census().ports, 0, "nothing is lost to the range");
    net.taken.clear();
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Answered));
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.assert_quiet();
}

#[test]
fn an_offer_that_comes_with_the_answer_names_ports_that_are_ours() {
    let (mut net, alice, bob) = pair(&narrow());
    net.phones[alice].ears.manners.sdp = "late".into();
    net.taken = [20_000, 20_003, 20_004]
        .map(|port| place(&format!("192.0.2.1:{port}")))
        .into_iter()
        .chain([30_000, 30_003, 30_006].map(|port| place(&format!("198.51.100.1:{port}"))))
        .collect();
    // Audio; a line of another kind; first a line that is turned down.
    let others = [
        SDP_B.to_owned(),
        SDP_B.replace("m=audio 5000 RTP/AVP 0", "m=image 5000 udptl t38"),
        SDP_B.replace("m=audio", "m=video 0 RTP/AVP 31\r\nm=audio"),
    ];
    for (call, offers) in others.iter().enumerate() {
        net.phones[bob].ears.manners.sdp = offers.clone();
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &Content::default());
        net.run(seconds(1));
        let answered = net.last(alice, |told| *told == Told::Answered);
        let body = answered.body();
        let line = body
            .lines()
            .find(|line| line.starts_with("m=") && !line.contains(" 0 RTP"));
        let port = line.and_then(|line| line.split(' ').nth(1)).unwrap();
        assert_eq!(port, "20006", "call {call}: {body}");
        assert!(net.is_open(place("192.0.2.1:20006")));
        // Alice's answer has one line and is silent about a second one, which ends with that.
        let kept = if call == 2 { 0 } else { 2 };
        assert_eq!(net.border.census().ports, kept, "call {call}");
        net.tell(alice, |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap()
        });
        net.run(seconds(1));
        assert_eq!(net.border.census().ports, 0, "call {call}");
    }
    // One that comes to nothing gives its ports back too.
    net.phones[bob].ears.manners.answer = Some(486);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &Content::default());
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 486)));
    net.assert_quiet();
}

#[test]
fn a_line_added_by_reinvite_passes_over_taken_ports_too() {
    let (mut net, alice, bob) = pair(&narrow());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let used = port_of(&net.last(bob, |told| *told == Told::Offered).body());
    // All but one of the other pairs are somebody else's.
    let free = if used == 30_006 { 30_000 } else { 30_006 };
    net.taken = (30_000..30_008)
        .filter(|port| port & !1 != used && port & !1 != free && port % 2 == 1)
        .map(|port| place(&format!("198.51.100.1:{port}")))
        .collect();
    let two = format!("{SDP_A}m=video 4002 RTP/AVP 31\r\n");
    net.tell(alice, |endpoint, now| {
        let content = Content::sdp(two.as_bytes());
        let invite = wire::sip::Method::Invite;
        endpoint.request(leg, invite, &content, now).unwrap();
    });
    net.run(seconds(1));
    let offered = net
        .last(bob, |told| matches!(told, Told::Request(_)))
        .body();
    assert!(
        offered.contains(&format!("m=audio {used} "))
            && offered.contains(&format!("m=video {free} ")),
        "{offered}"
    );
    assert!(net.has(alice, |told| matches!(told, Told::Response(200, _))));
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.assert_quiet();
}

#[test]
fn silence_ends_the_call_on_both_sides() {
    let config = format!("{PLAIN}[media]\ntimeout=30\n");
    let (mut net, alice, bob) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(25));
    assert_eq!(net.border.calls().len(), 1);
    net.run(seconds(10));
    for phone in [alice, bob] {
        let bye = net.find(phone, |told| *told == Told::Ended(Ending::Peer));
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
        net.tell(alice, |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap()
        });
        net.run(Duration::from_millis(200));
        let open = net.border.census().sockets_open;
        assert!(open >= 4, "for the next call");
        most = most.max(open);
    }
    assert!(most <= 16, "{most}");
    assert_eq!(net.border.counters().completed, 30);
    let with_media = net.open_sockets;
    net.run(Duration::from_millis(1_100));
    assert_eq!(
        net.border.census().sockets_open,
        0,
        "other programs can have them"
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
    let mut net = Neighbourhood::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let sdp = SDP_B.replace("IP4 10.2.0.1", "IP6 2001:db8::b");
    let bob = net.phone("[2001:db8::b]:5060", Manners::answering(&sdp));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let offered = net.find(bob, |told| *told == Told::Offered).body();
    assert!(offered.contains("c=IN IP6 2001:db8::1"), "{offered}");
    let answered = net.find(alice, |told| *told == Told::Answered).body();
    assert!(answered.contains("c=IN IP4 192.0.2.1"), "{answered}");
    let port = port_of(&answered);
    for sequence in 0..5 {
        net.throw(
            "10.1.0.1:4000",
            &format!("192.0.2.1:{port}"),
            &rtp(sequence),
        );
    }
    net.run(seconds(1));
    let far = "[2001:db8::b]:5000".parse().unwrap();
    assert_eq!(net.media.iter().filter(|(to, _, _)| *to == far).count(), 5);
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
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
        &Content::sdp(both.as_bytes()),
    );
    net.run(seconds(1));
    let offered = net.find(bob, |told| *told == Told::Offered).body();
    assert!(offered.contains("m=message 0 TCP/MSRP *"), "{offered}");
    let alone = "v=0\r\no=- 1 1 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=message 2855 TCP/MSRP *\r\n";
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &Content::sdp(alone.as_bytes()),
    );
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 488)));
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &Content::sdp(b"v=0\r\nm=rubbish\r\n"),
    );
    net.run(seconds(1));
    assert_eq!(
        net.told(alice)
            .iter()
            .filter(|told| **told == Told::Failed(Failure::Response, 488))
            .count(),
        2
    );
}

/// Everything that came to an address.
fn arrivals(net: &Neighbourhood, to: &str) -> Vec<Vec<u8>> {
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
fn rtcp_goes_its_own_way_without_mux_wherever_it_is_signalled() {
    let (mut net, alice, bob) = pair(PLAIN);
    // Bob takes RTCP on a port of its own (RFC 3605), and will not multiplex.
    net.phones[bob].ears.manners.sdp = format!("{SDP_B}a=rtcp:5777\r\n");
    let offered = format!("{SDP_A}a=rtcp-mux\r\n");
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &Content::sdp(offered.as_bytes()),
    );
    net.run(seconds(1));
    let answer = net.find(alice, |told| *told == Told::Answered).body();
    assert!(!answer.contains("rtcp-mux"), "{answer}");
    let port = port_of(&answer);
    net.throw(
        "10.1.0.1:4001",
        &format!("192.0.2.1:{}", port + 1),
        &sender_report(),
    );
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5777"), [sender_report()]);
    // On the port for RTP it is not taken.
    net.throw(
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
fn rtcp_shares_the_port_where_both_sides_agree() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.sdp = format!("{SDP_B}a=rtcp-mux\r\n");
    let offered = format!("{SDP_A}a=rtcp-mux\r\n");
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &Content::sdp(offered.as_bytes()),
    );
    net.run(seconds(1));
    let answer = net.find(alice, |told| *told == Told::Answered).body();
    assert!(answer.contains("a=rtcp-mux"), "{answer}");
    let port = port_of(&answer);
    net.throw(
        "10.1.0.1:4000",
        &format!("192.0.2.1:{port}"),
        &sender_report(),
    );
    net.throw("10.1.0.1:4000", &format!("192.0.2.1:{port}"), &rtp(1));
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000"), [sender_report(), rtp(1)]);
}

#[test]
fn a_description_among_other_parts_is_rewritten_alone() {
    let parts = |sdp: &str, isup: &str| {
        format!(
            "--x\r\nContent-Type: application/pidf+xml\r\nContent-ID: <a@b>\r\n\r\n<presence> 10.1.0.1 </presence>\r\n\
             --x\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}\r\n\
             --x\r\nContent-Type: application/ISUP;version=itu-t92+\r\n\r\n{isup}\r\n--x--\r\n",
            sdp.len()
        )
    };
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.answer = None;
    let kind = b"multipart/mixed;boundary=x";
    let body = parts(SDP_A, "\u{1}\u{0}\r\n\u{7f}");
    let content = Content::body(kind, body.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    let offered = net.find(bob, |told| *told == Told::Offered).clone();
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
    // The answer likewise, and media flows.
    let body = parts(SDP_B, "ANM");
    let content = Content::body(kind, body.as_bytes());
    let theirs = offered.leg.unwrap();
    net.tell(bob, |endpoint, now| {
        endpoint.answer(theirs, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let answered = net.find(alice, |told| *told == Told::Answered).body();
    let back = port_of(&answered);
    let sdp = SDP_B
        .replace("m=audio 5000", &format!("m=audio {back}"))
        .replace("o=bob", "o=-")
        .replace("10.2.0.1", "192.0.2.1");
    assert_eq!(answered, parts(&sdp, "ANM"));
    net.throw("10.1.0.1:4000", &format!("192.0.2.1:{back}"), &rtp(1));
    net.run(seconds(1));
    assert_eq!(net.media[0].0, place("10.2.0.1:5000"));
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.assert_quiet();
    // What cannot be read in place is not passed with addresses that nobody reaches.
    let encoded =
        parts(SDP_A, "x").replace("Content-Length", "Content-Transfer-Encoding: base64\r\nX");
    let content = Content::body(kind, encoded.as_bytes());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    let end = net.last(alice, |told| matches!(told, Told::Failed(..)));
    assert_eq!(end.told, Told::Failed(Failure::Response, 415));
    net.assert_quiet();
}

#[test]
fn of_several_lines_one_may_be_rejected() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.sdp =
        format!("{SDP_B}m=video 0 RTP/AVP 97\r\nm=text 5010 RTP/AVP 98\r\n");
    let offered =
        format!("{SDP_A}m=video 4002 RTP/AVP 97\r\na=label:kept\r\nm=text 4004 RTP/AVP 98\r\n");
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &Content::sdp(offered.as_bytes()),
    );
    net.run(seconds(1));
    let offer = net.find(bob, |told| *told == Told::Offered).body();
    let order: Vec<&str> = offer
        .lines()
        .filter_map(|line| line.strip_prefix("m=")?.split(' ').next())
        .collect();
    assert_eq!(order, ["audio", "video", "text"]);
    assert!(offer.contains("a=label:kept\r\n"), "{offer}");
    let answer = net.find(alice, |told| *told == Told::Answered).body();
    assert!(answer.contains("m=video 0 RTP/AVP 97"), "{answer}");
    // Two lines, two sides: the rejected one has given its ports back.
    assert_eq!(net.border.census().ports, 4);
    net.throw(
        "10.1.0.1:4004",
        &format!("192.0.2.1:{}", line_port(&answer, "text")),
        &rtp(7),
    );
    net.throw(
        "10.2.0.1:5000",
        &format!("198.51.100.1:{}", line_port(&offer, "audio")),
        &rtp(8),
    );
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5010"), [rtp(7)]);
    assert_eq!(arrivals(&net, "10.1.0.1:4000"), [rtp(8)]);
}

/// A caller that goes on sending after its call has ended, to a port that another call has by now.
#[test]
fn media_of_an_old_call_does_not_reach_the_next() {
    let config = PLAIN.replace(
        "media={address='192.0.2.1'}",
        "media={address='192.0.2.1',ports='20000-20003'}",
    );
    let (mut net, alice, _) = pair(&config);
    let carol = net.phone(
        "10.1.0.3:5060",
        Manners::answering(&SDP_A.replace("10.1.0.1", "10.1.0.3")),
    );
    let dave = net.phone("10.1.0.4:5060", Manners::answering(SDP_A));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let port = port_of(&net.find(alice, |told| *told == Told::Answered).body());
    let old = format!("192.0.2.1:{port}");
    // The other pair of the range is taken.
    net.call(dave, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.throw("10.1.0.1:4000", &old, &rtp(1));
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000").len(), 1);
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    let theirs = SDP_A.replace("10.1.0.1", "10.1.0.3");
    net.call(
        carol,
        "sip:bob@192.0.2.1",
        OUT,
        &Content::sdp(theirs.as_bytes()),
    );
    net.run(seconds(1));
    let next = port_of(&net.find(carol, |told| *told == Told::Answered).body());
    assert_eq!(next, port, "the same port again");
    for sequence in 2..20 {
        net.throw("10.1.0.1:4000", &old, &rtp(sequence));
        // Injected by someone who has seen the port of the new call, from its very address but another port.
        net.throw("10.1.0.66:4000", &old, &rtp(sequence));
    }
    net.run(seconds(1));
    assert_eq!(
        arrivals(&net, "10.2.0.1:5000").len(),
        1,
        "nothing of the old call, nothing of strangers"
    );
    net.throw("10.1.0.3:4000", &old, &rtp(99));
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000").last(), Some(&rtp(99)));
    // Once it has been heard, another port of the same host is a stranger, too.
    for sequence in 0..10 {
        net.throw("10.1.0.3:4000", &old, &rtp(100 + sequence));
        net.throw("10.1.0.3:4999", &old, &rtp(200 + sequence));
    }
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000").len(), 12);
    assert!(net.forwarder.drops().get(engine::DropReason::MediaStranger) >= 10);
}

/// Events and tones of RFC 4733 are packets like others: payload, marker and timestamp arrive as they were sent.
#[test]
fn telephone_events_arrive_as_they_were_sent() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.sdp =
        format!("{SDP_B}a=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\n")
            .replace("RTP/AVP 0", "RTP/AVP 0 101");
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let answer = net.find(alice, |told| *told == Told::Answered).body();
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
        net.throw("10.1.0.1:4000", &format!("192.0.2.1:{port}"), packet);
    }
    net.run(seconds(1));
    assert_eq!(arrivals(&net, "10.2.0.1:5000"), sent);
}

#[test]
fn srtp_with_keys_in_sdp_passes_as_it_is() {
    let (mut net, alice, bob) = pair(PLAIN);
    let secure = |sdp: &str, key: &str| {
        let sdp = sdp.replace("RTP/AVP", "RTP/SAVP");
        format!("{sdp}a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{key}\r\n")
    };
    let keys = [
        "WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz|2^20|1:32",
        "d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj",
    ];
    net.phones[bob].ears.manners.sdp = secure(SDP_B, keys[1]);
    let offered = secure(SDP_A, keys[0]);
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &Content::sdp(offered.as_bytes()),
    );
    net.run(seconds(1));
    let offer = net.find(bob, |told| *told == Told::Offered).body();
    let answer = net.find(alice, |told| *told == Told::Answered).body();
    for (body, key) in [(&offer, keys[0]), (&answer, keys[1])] {
        assert!(
            body.contains("RTP/SAVP ") && body.contains(&format!("inline:{key}\r\n")),
            "{body}"
        );
    }
    // Encrypted: the padding bit is in the clear, the count of padding is not; behind it stands a tag.
    let port = port_of(&answer);
    let mut sealed = rtp(1);
    sealed[0] |= 0x20;
    sealed.extend([0xee; 10]);
    // SRTCP: the first eight octets in the clear, then lengths that mean nothing, the index with its E flag, a tag.
    let mut report = sender_report();
    report[8..].fill(0x9c);
    report.extend([0x80, 0, 0, 1]);
    report.extend([0xee; 10]);
    for (source, at, packet) in [
        ("10.1.0.1:4000", port, &sealed),
        ("10.1.0.1:4001", port + 1, &report),
    ] {
        net.throw(source, &format!("192.0.2.1:{at}"), packet);
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
fn a_call_with_keys_from_end_to_end() {
    let config = PLAIN.replace("kind='access'", "kind='access'\nsrtp='require'");
    let (mut net, alice, bob) = pair(&config);
    let secret = SDP_A.replace("RTP/AVP", "RTP/SAVP") + CRYPTO;
    let leg = net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &Content::sdp(secret.as_bytes()),
    );
    net.run(seconds(1));
    let inside = net.find(bob, |told| *told == Told::Offered).body();
    assert!(
        inside.contains(" RTP/AVP 0 101") && !inside.contains("crypto"),
        "{inside}"
    );
    let answer = net.find(alice, |told| *told == Told::Answered).body();
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
        net.throw(
            "10.1.0.1:4000",
            &format!("192.0.2.1:{towards_alice}"),
            &secret,
        );
        net.throw(
            "10.2.0.1:5000",
            &format!("198.51.100.1:{towards_bob}"),
            &rtp(sequence),
        );
        net.throw(
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
        "opened, and what was in the clear left out"
    );
    for (mut secret, plain) in came("10.1.0.1:4000").into_iter().zip(&plain) {
        let length = inbound.unprotect_rtp(&mut secret).unwrap();
        assert_eq!(&secret[..length], plain.as_slice());
    }
    assert!(net.names().contains(&"media_keyed"), "{:?}", net.names());
    assert!(
        !format!("{:?}", net.events).contains("AAAAAAAA"),
        "no key in events"
    );
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    net.assert_quiet();
}

#[test]
fn who_offers_no_srtp_where_it_is_demanded_is_refused() {
    let config = PLAIN.replace("kind='access'", "kind='access'\nsrtp='require'");
    let (mut net, alice, bob) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 488)));
    assert!(!net.has(bob, |told| *told == Told::Offered));
    assert!(
        net.names().contains(&"media_not_keyed"),
        "{:?}",
        net.names()
    );
    net.assert_quiet();
}

#[test]
fn who_answers_in_the_clear_where_srtp_is_demanded_is_hung_up_on() {
    let config = PLAIN.replace("kind='core'", "kind='core'\nsrtp='require'");
    let (mut net, alice, bob) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let offered = net.find(bob, |told| *told == Told::Offered).body();
    assert!(
        offered.contains(" RTP/SAVP 0") && offered.contains("a=crypto:1 "),
        "{offered}"
    );
    assert!(net.has(bob, |told| *told == Told::Ended(Ending::Peer)));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 488)));
    assert!(
        net.names().contains(&"media_not_keyed"),
        "{:?}",
        net.names()
    );
    net.assert_quiet();
}
