//! Media ports, nearly all of which another program uses.

use crate::media::port_of;
use crate::virtual_network::*;
use engine::EventKind;
use sip::{Failure, LegId, MessageContent};
use std::net::SocketAddr;
use wire::sip::Method;

/// Twenty pairs for the caller's side.
fn twenty_pairs() -> String {
    PLAIN.replace(
        "media={address='192.0.2.1'}",
        "media={address='192.0.2.1',ports='20000-20039'}",
    )
}

/// The first port of all pairs but these.
fn occupied_except(free: &[u16]) -> Vec<SocketAddr> {
    (20_000..20_040)
        .step_by(2)
        .filter(|port| !free.contains(port))
        .map(|port| SocketAddr::new("192.0.2.1".parse().unwrap(), port))
        .collect()
}

#[test]
fn the_only_free_pair_of_many_is_found() {
    for free in [20_000, 20_018, 20_038] {
        let (mut net, alice, _) = pair(&twenty_pairs());
        net.occupied = occupied_except(&[free]);
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        let answer = net.last(alice, |event| *event == PhoneEvent::Answered);
        assert_eq!(port_of(&answer.body()), free);
        let reported = net.names();
        let count = |event| reported.iter().filter(|name| **name == event).count();
        assert!(count("media_port_in_use") <= 1, "{reported:?}");
        assert_eq!(count("media_ports_exhausted"), 0, "{reported:?}");
    }
}

#[test]
fn call_without_a_free_pair_names_the_interface() {
    let (mut net, alice, _) = pair(&twenty_pairs());
    net.occupied = occupied_except(&[]);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 503)));
    let reported = net.names();
    assert!(reported.contains(&"media_ports_exhausted"), "{reported:?}");
    let exhausted = net.events.iter().find_map(|event| match &event.kind {
        EventKind::MediaPortsExhausted {
            interface,
            address,
            ports,
        } => Some([interface.as_str(), address, ports]),
        _ => None,
    });
    assert_eq!(exhausted, Some(["out", "192.0.2.1", "20000-20039"]));
    assert_eq!(net.border.counters().ports_exhausted, 1);
    assert_eq!(net.border.census().ports, 0);
}

/// A call in which the callee adds video by the offer in its answer to a re-INVITE without one. Of the three pairs that
/// are left for it, only the one with this number can be opened: the description with the port is on its way when
/// another program is found to use it. Returns the leg of the caller, and the port that can be opened.
fn video_added_by_an_answer(number: usize) -> ((VirtualNetwork, usize, usize), LegId, u16) {
    let four = PLAIN.replace(
        "media={address='192.0.2.1'}",
        "media={address='192.0.2.1',ports='20000-20007'}",
    );
    let (mut net, alice, bob) = pair(&four);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let used = port_of(
        &net.last(alice, |event| *event == PhoneEvent::Answered)
            .body(),
    );
    let left: Vec<u16> = (20_000..20_008)
        .step_by(2)
        .filter(|port| *port != used)
        .collect();
    let free = left[number];
    net.occupied = left
        .iter()
        .filter(|port| **port != free)
        .map(|port| SocketAddr::new("192.0.2.1".parse().unwrap(), *port))
        .collect();
    let with_video = |sdp: &str, port: u16| format!("{sdp}m=video {port} RTP/AVP 31\r\n");
    let own = with_video(SDP_A, 4_002);
    net.phones[alice].log.behaviour.sdp = own.clone();
    net.phones[bob].log.behaviour.sdp = with_video(SDP_B, 5_002);
    net.phones[alice].log.behaviour.acks = false;
    net.command(alice, |endpoint, now| {
        let content = MessageContent::default();
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    net.run(seconds(1) / 5);
    net.command(alice, |endpoint, now| {
        let answer = MessageContent::sdp(own.as_bytes());
        endpoint.ack(leg, &answer, now).unwrap();
    });
    net.phones[alice].log.behaviour.acks = true;
    ((net, alice, bob), leg, free)
}

/// The port of the video line in the last description that a phone got.
fn video_port(net: &VirtualNetwork, phone: usize) -> u16 {
    let mut entries = net.log(phone).iter().rev();
    let lines = entries.find_map(|entry| {
        let text = entry.text();
        let line = text.split("m=video ").nth(1)?;
        line.split(' ').next().map(str::to_owned)
    });
    lines.unwrap().parse().unwrap()
}

/// The version in `o=` of the last description with video that a phone got.
fn version(net: &VirtualNetwork, phone: usize) -> u64 {
    let mut entries = net.log(phone).iter().rev();
    let version = entries.find_map(|entry| {
        let text = entry.text();
        let origin = text.split("\r\no=- ").nth(1)?;
        let word = origin.split(' ').nth(1)?;
        text.contains("m=video ").then(|| word.to_owned())
    });
    version.unwrap().parse().unwrap()
}

#[test]
fn port_that_was_announced_is_replaced_by_another_offer_and_answer() {
    let mut replaced = 0;
    for number in 0..3 {
        let ((mut net, alice, bob), leg, free) = video_added_by_an_answer(number);
        let announced = video_port(&net, alice);
        let before = version(&net, alice);
        net.run(seconds(5));
        assert_eq!(net.border.calls().len(), 1, "port {announced} of {free}");
        assert_eq!(video_port(&net, alice), free);
        // RFC 3264 section 8: peers may ignore another port in a description of the same version.
        let is_raised = version(&net, alice) > before;
        assert_eq!(is_raised, announced != free);
        assert!(net.is_open(SocketAddr::new("192.0.2.1".parse().unwrap(), free)));
        let asked = |event: &PhoneEvent| matches!(event, PhoneEvent::Request(_));
        let asked = net
            .phone_events(bob)
            .iter()
            .filter(|event| asked(event))
            .count();
        // The re-INVITE of the caller; another one only where it is necessary.
        assert_eq!(asked, 1 + usize::from(announced != free));
        replaced += usize::from(announced != free);
        net.command(alice, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap()
        });
        net.assert_quiet();
    }
    assert!(replaced > 0, "no port had to be replaced");
}

#[test]
fn call_ends_if_no_side_accepts_the_replaced_port() {
    let mut ended = 0;
    for number in 0..3 {
        let ((mut net, alice, bob), leg, free) = video_added_by_an_answer(number);
        let was_replaced = video_port(&net, alice) != free;
        for phone in [alice, bob] {
            net.phones[phone].log.behaviour.inside = Some(488);
        }
        net.run(seconds(5));
        assert_eq!(net.border.calls().is_empty(), was_replaced);
        ended += usize::from(was_replaced);
        if !was_replaced {
            net.command(alice, |endpoint, now| {
                endpoint.bye(leg, &MessageContent::default(), now).unwrap()
            });
        }
        net.assert_quiet();
    }
    assert!(ended > 0, "no port had to be replaced");
}
