//! Descriptions with and without `c=` lines (RFC 8866 section 5.7): a media line in use without an address is not
//! relayed.

use crate::virtual_network;

use sip::{Ending, Failure, LegId, MessageContent, Prack};
use std::time::Duration;
use virtual_network::*;
use wire::sip::Method;

const WHY: &str = "399 hornwork \"no usable connection line (c=) for a media line\"";

/// A description of two lines with `c=` lines as selected.
fn description(session: bool, audio: bool, video: bool) -> String {
    let connection = |present: bool| if present { "c=IN IP4 10.1.0.1\r\n" } else { "" };
    format!(
        "v=0\r\no=- 1 1 IN IP4 10.1.0.1\r\ns=-\r\n{}t=0 0\r\nm=audio 4000 RTP/AVP 0\r\n{}m=video 4002 RTP/AVP 31\r\n{}",
        connection(session),
        connection(audio),
        connection(video),
    )
}

fn valid_offers() -> [String; 4] {
    let named = |host: &str| description(true, false, false).replace("c=IN IP4 10.1.0.1", host);
    [
        description(true, false, false),
        description(false, true, true),
        description(true, true, false),
        named("c=IN IP4 media_1.example.com."),
    ]
}

fn invalid_offers() -> Vec<String> {
    let mut offers = vec![
        description(false, false, false),
        description(false, true, false),
        description(false, false, true),
    ];
    // Addresses that cannot be one: malformed, multicast, of another family.
    for address in [
        "IP4 999.1.1.1",
        "IP4 224.2.1.1/127/3",
        "IP4 ::1",
        "IP6 10.1.0.1",
        "IP4 a..b",
    ] {
        let valid = description(true, true, true);
        let (first, rest) = valid.split_at(valid.find("m=audio").expect("line"));
        offers.push(first.to_owned() + &rest.replacen("IP4 10.1.0.1", address, 1));
        offers.push(
            description(true, false, false)
                .replace("c=IN IP4 10.1.0.1", &format!("c=IN {address}")),
        );
    }
    offers
}

fn pair() -> (VirtualNetwork, usize, usize) {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    (net, alice, bob)
}

fn second(net: &mut VirtualNetwork) {
    net.run(Duration::from_secs(1));
}

fn established() -> (VirtualNetwork, [usize; 2], LegId) {
    let (mut net, alice, bob) = pair();
    let leg = net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()),
    );
    second(&mut net);
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    (net, [alice, bob], leg)
}

fn assert_no_session_without_address(net: &VirtualNetwork, phone: usize) {
    for entry in net.log(phone) {
        let text = entry.text();
        assert!(
            !text.contains("\r\nm=") || text.contains("\r\nc="),
            "{text}"
        );
    }
}

fn hang_up(net: &mut VirtualNetwork, phone: usize, leg: LegId) {
    net.command(phone, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    second(net);
    net.assert_quiet();
}

/// Sends this offer in the dialog. Returns the last response.
fn ask(
    net: &mut VirtualNetwork,
    phone: usize,
    leg: LegId,
    method: Method<'static>,
    sdp: &str,
) -> LogEntry {
    net.command(phone, |endpoint, now| {
        endpoint
            .request(leg, method, &MessageContent::sdp(sdp.as_bytes()), now)
            .unwrap();
    });
    second(net);
    net.last(phone, |event| matches!(event, PhoneEvent::Response(..)))
        .clone()
}

#[test]
fn offer_needs_an_address_for_each_line_in_use() {
    for offer in valid_offers() {
        let (mut net, alice, bob) = pair();
        let leg = net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &MessageContent::sdp(offer.as_bytes()),
        );
        second(&mut net);
        let passed = net.find(bob, |event| *event == PhoneEvent::Offered).body();
        assert!(passed.contains("c=IN IP4 198.51.100.1"), "{passed}");
        hang_up(&mut net, alice, leg);
    }
    for offer in invalid_offers() {
        let (mut net, alice, bob) = pair();
        net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &MessageContent::sdp(offer.as_bytes()),
        );
        second(&mut net);
        let refused = net.find(alice, |event| {
            *event == PhoneEvent::Failed(Failure::Response, 488)
        });
        assert_eq!(refused.header("Warning"), WHY);
        assert!(
            !net.has(bob, |event| *event == PhoneEvent::Offered),
            "{offer}"
        );
        net.assert_quiet();
    }
}

#[test]
fn re_offer_without_address_leaves_the_call_unchanged() {
    let (mut net, [alice, bob], leg) = established();
    for method in [Method::Invite, Method::Update] {
        for offer in invalid_offers() {
            let before = net.log(bob).len();
            let entry = ask(&mut net, alice, leg, method, &offer);
            assert!(
                matches!(entry.event, PhoneEvent::Response(488, _)),
                "{:?}",
                entry.event
            );
            assert_eq!(entry.header("Warning"), WHY);
            assert_eq!(net.log(bob).len(), before, "Bob receives nothing");
            assert_eq!(net.border.census().ports, 2);
        }
        for offer in valid_offers() {
            let entry = ask(&mut net, alice, leg, method, &offer);
            assert!(
                matches!(entry.event, PhoneEvent::Response(200, _)),
                "{:?}",
                entry.event
            );
        }
    }
    assert_no_session_without_address(&net, bob);
    hang_up(&mut net, alice, leg);
}

#[test]
fn answer_without_address_ends_the_call_with_a_reason() {
    for answer in invalid_offers() {
        let (mut net, alice, bob) = pair();
        net.phones[bob].log.behaviour.sdp = answer;
        net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &MessageContent::sdp(description(true, false, false).as_bytes()),
        );
        second(&mut net);
        let refused = net.find(alice, |event| {
            *event == PhoneEvent::Failed(Failure::Response, 488)
        });
        assert_eq!(refused.header("Warning"), WHY);
        let bye = net.find(bob, |event| *event == PhoneEvent::Ended(Ending::Peer));
        assert!(bye.header("Reason").contains("cause=488"), "{}", bye.text());
        net.assert_quiet();
    }
}

#[test]
fn answer_without_address_to_a_re_offer_leaves_the_call_unchanged() {
    for method in [Method::Invite, Method::Update] {
        let (mut net, [alice, bob], leg) = established();
        net.phones[bob].log.behaviour.sdp = description(false, false, false);
        let entry = ask(&mut net, alice, leg, method, SDP_A);
        assert!(
            matches!(entry.event, PhoneEvent::Response(488, _)),
            "{:?}",
            entry.event
        );
        assert_eq!(net.border.calls().len(), 1);
        assert_eq!(net.border.census().ports, 2);
        // The exchange is complete: the next offer succeeds.
        net.phones[bob].log.behaviour.sdp = SDP_B.to_owned();
        let entry = ask(&mut net, alice, leg, method, SDP_A);
        assert!(
            matches!(entry.event, PhoneEvent::Response(200, _)),
            "{:?}",
            entry.event
        );
        assert_no_session_without_address(&net, alice);
        hang_up(&mut net, alice, leg);
    }
}

#[test]
fn early_answer_without_address_is_not_relayed() {
    for reliable in [false, true] {
        let (mut net, alice, bob) = pair();
        net.phones[bob].log.behaviour.progress = vec![(183, reliable)];
        net.phones[bob].log.behaviour.answer = None;
        net.phones[bob].log.behaviour.sdp = description(false, false, false);
        let leg = net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &MessageContent::sdp(SDP_A.as_bytes()),
        );
        second(&mut net);
        assert_no_session_without_address(&net, alice);
        if reliable {
            // The answer is final for Bob; no other will follow.
            let refused = net.find(alice, |event| {
                *event == PhoneEvent::Failed(Failure::Response, 488)
            });
            assert_eq!(refused.header("Warning"), WHY);
            let cancel = net.find(bob, |event| *event == PhoneEvent::Cancelled);
            assert!(cancel.header("Reason").contains("cause=488"));
        } else {
            let called = net
                .find(bob, |event| *event == PhoneEvent::Offered)
                .leg
                .unwrap();
            net.command(bob, |endpoint, now| {
                let answer = MessageContent::sdp(SDP_B.as_bytes());
                endpoint.answer(called, 200, &answer, now).unwrap();
            });
            second(&mut net);
            assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
            hang_up(&mut net, alice, leg);
        }
        net.assert_quiet();
    }
}

#[test]
fn late_answer_without_address_ends_a_new_call() {
    let (mut net, alice, bob) = pair();
    net.phones[alice].log.behaviour.acks = false;
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &MessageContent::default());
    second(&mut net);
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    let answer = description(false, false, false);
    net.command(alice, |endpoint, now| {
        let answer = MessageContent::sdp(answer.as_bytes());
        endpoint.ack(leg, &answer, now).unwrap();
    });
    second(&mut net);
    assert_no_session_without_address(&net, bob);
    for phone in [alice, bob] {
        let bye = net.find(phone, |event| *event == PhoneEvent::Ended(Ending::Peer));
        assert!(bye.header("Reason").contains("cause=488"), "{}", bye.text());
    }
    net.assert_quiet();
}

#[test]
fn late_answer_without_address_leaves_an_established_call_unchanged() {
    let (mut net, [alice, bob], leg) = established();
    net.phones[alice].log.behaviour.acks = false;
    net.command(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &MessageContent::default(), now)
            .unwrap();
    });
    second(&mut net);
    assert!(net.has(alice, |event| matches!(event, PhoneEvent::Response(200, _))));
    let answer = description(false, false, false);
    net.command(alice, |endpoint, now| {
        let answer = MessageContent::sdp(answer.as_bytes());
        endpoint.ack(leg, &answer, now).unwrap();
    });
    second(&mut net);
    assert_no_session_without_address(&net, bob);
    assert_eq!(net.border.calls().len(), 1);
    assert_eq!(net.border.census().ports, 2);
    net.phones[alice].log.behaviour.acks = true;
    let entry = ask(&mut net, alice, leg, Method::Invite, SDP_A);
    assert!(
        matches!(entry.event, PhoneEvent::Response(200, _)),
        "{:?}",
        entry.event
    );
    hang_up(&mut net, alice, leg);
}

/// A call whose 183 Alice has to acknowledge: its leg and the fork of the 183.
fn to_prack(
    net: &mut VirtualNetwork,
    alice: usize,
    bob: usize,
    offer: &MessageContent<'_>,
) -> (LegId, sip::Fork) {
    net.phones[bob].log.behaviour.progress = vec![(183, true)];
    net.phones[bob].log.behaviour.answer = None;
    let leg = net.call_with(alice, "sip:bob@192.0.2.1", OUT, offer, |invite| {
        invite.prack = Prack::Handler;
    });
    second(net);
    let fork = net
        .phone_events(alice)
        .into_iter()
        .find_map(|event| match event {
            PhoneEvent::Progressed(183, true, fork) => fork,
            _ => None,
        });
    (leg, fork.unwrap())
}

fn prack(net: &mut VirtualNetwork, phone: usize, (leg, fork): (LegId, sip::Fork), sdp: &str) {
    net.command(phone, |endpoint, now| {
        let content = MessageContent::sdp(sdp.as_bytes());
        endpoint.prack(leg, fork, &content, now).unwrap();
    });
    second(net);
}

#[test]
fn offer_without_address_in_prack_is_refused_and_the_call_continues() {
    let (mut net, alice, bob) = pair();
    let early = to_prack(&mut net, alice, bob, &MessageContent::sdp(SDP_A.as_bytes()));
    prack(&mut net, alice, early, &description(false, false, false));
    let refused = net.find(alice, |event| matches!(event, PhoneEvent::Response(488, _)));
    assert_eq!(refused.header("Warning"), WHY);
    assert!(
        net.has(bob, |event| matches!(event, PhoneEvent::Pracked(_))),
        "the 183 is acknowledged"
    );
    assert_no_session_without_address(&net, bob);
    let called = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    net.command(bob, |endpoint, now| {
        endpoint
            .answer(called, 200, &MessageContent::default(), now)
            .unwrap()
    });
    second(&mut net);
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    hang_up(&mut net, alice, early.0);
}

#[test]
fn answer_without_address_in_prack_ends_the_call() {
    let (mut net, alice, bob) = pair();
    let early = to_prack(&mut net, alice, bob, &MessageContent::default());
    prack(&mut net, alice, early, &description(false, false, false));
    assert!(net.has(alice, |event| matches!(event, PhoneEvent::Response(488, _))));
    let refused = net.find(alice, |event| {
        *event == PhoneEvent::Failed(Failure::Response, 488)
    });
    assert_eq!(refused.header("Warning"), WHY);
    let cancel = net.find(bob, |event| *event == PhoneEvent::Cancelled);
    assert!(cancel.header("Reason").contains("cause=488"));
    assert_no_session_without_address(&net, bob);
    net.assert_quiet();
}

#[test]
fn conference_refuses_an_offer_without_address() {
    let conference = format!("{PLAIN}[[conference]]\nname='staff'\nnumber=['600']\n");
    let mut net = VirtualNetwork::new(&conference, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.call(
        alice,
        "sip:600@192.0.2.1",
        OUT,
        &MessageContent::sdp(description(false, false, false).as_bytes()),
    );
    second(&mut net);
    let refused = net.find(alice, |event| {
        *event == PhoneEvent::Failed(Failure::Response, 488)
    });
    assert_eq!(refused.header("Warning"), WHY);
    net.assert_quiet();
}
