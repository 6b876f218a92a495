//! Media through the border: anchored, passed by, exhausted, silent.

mod neighbourhood;

use neighbourhood::*;
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
    assert!(net.has(bob, |told| matches!(told, Told::Cancelled | Told::Ended(_))));
    assert!(net.names().contains(&"socket_failed"));
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
fn sockets_are_kept_for_the_next_call() {
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
        net.run(seconds(1));
        most = most.max(net.border.census().sockets_open);
    }
    assert!(most <= 16, "{most}");
    assert_eq!(net.border.counters().completed, 30);
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
