//! Descriptions with and without `c=` lines (RFC 8866 section 5.7): no media line in use passes without an address.

use crate::neighbourhood;

use neighbourhood::*;
use sip::{Content, Ending, Failure, LegId, Prack};
use std::time::Duration;
use wire::sip::Method;

const OUT: &str = "192.0.2.1:5060";
const WHY: &str = "399 hornwork \"no connection line (c=) for a media line\"";

/// A description of two lines: where it has `c=` lines decides.
fn described(session: bool, audio: bool, video: bool) -> String {
    let connection = |present: bool| if present { "c=IN IP4 10.1.0.1\r\n" } else { "" };
    format!(
        "v=0\r\no=- 1 1 IN IP4 10.1.0.1\r\ns=-\r\n{}t=0 0\r\nm=audio 4000 RTP/AVP 0\r\n{}m=video 4002 RTP/AVP 31\r\n{}",
        connection(session),
        connection(audio),
        connection(video),
    )
}

fn sound() -> [String; 3] {
    [
        described(true, false, false),
        described(false, true, true),
        described(true, true, false),
    ]
}

fn bad() -> [String; 3] {
    [
        described(false, false, false),
        described(false, true, false),
        described(false, false, true),
    ]
}

fn pair() -> (Neighbourhood, usize, usize) {
    let mut net = Neighbourhood::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    (net, alice, bob)
}

fn second(net: &mut Neighbourhood) {
    net.run(Duration::from_secs(1));
}

fn standing() -> (Neighbourhood, [usize; 2], LegId) {
    let (mut net, alice, bob) = pair();
    let leg = net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &Content::sdp(SDP_A.as_bytes()),
    );
    second(&mut net);
    assert!(net.has(bob, |told| *told == Told::Acked));
    (net, [alice, bob], leg)
}

fn assert_no_session_without_address(net: &Neighbourhood, phone: usize) {
    for seen in net.seen(phone) {
        let text = seen.text();
        assert!(
            !text.contains("\r\nm=") || text.contains("\r\nc="),
            "{text}"
        );
    }
}

fn hang_up(net: &mut Neighbourhood, phone: usize, leg: LegId) {
    net.tell(phone, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    second(net);
    net.assert_quiet();
}

/// Asks inside the call with this offer; the last response.
fn ask(
    net: &mut Neighbourhood,
    phone: usize,
    leg: LegId,
    method: Method<'static>,
    sdp: &str,
) -> Seen {
    net.tell(phone, |endpoint, now| {
        endpoint
            .request(leg, method, &Content::sdp(sdp.as_bytes()), now)
            .unwrap();
    });
    second(net);
    net.last(phone, |told| matches!(told, Told::Response(..)))
        .clone()
}

#[test]
fn an_offer_needs_an_address_for_each_line_in_use() {
    for offer in sound() {
        let (mut net, alice, bob) = pair();
        let leg = net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &Content::sdp(offer.as_bytes()),
        );
        second(&mut net);
        let passed = net.find(bob, |told| *told == Told::Offered).body();
        assert!(passed.contains("c=IN IP4 198.51.100.1"), "{passed}");
        hang_up(&mut net, alice, leg);
    }
    for offer in bad() {
        let (mut net, alice, bob) = pair();
        net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &Content::sdp(offer.as_bytes()),
        );
        second(&mut net);
        let refused = net.find(alice, |told| *told == Told::Failed(Failure::Response, 488));
        assert_eq!(refused.header("Warning"), WHY);
        assert!(!net.has(bob, |told| *told == Told::Offered), "{offer}");
        net.assert_quiet();
    }
}

#[test]
fn a_later_offer_without_address_leaves_the_call_as_it_was() {
    let (mut net, [alice, bob], leg) = standing();
    for method in [Method::Invite, Method::Update] {
        for offer in bad() {
            let before = net.seen(bob).len();
            let seen = ask(&mut net, alice, leg, method, &offer);
            assert!(
                matches!(seen.told, Told::Response(488, _)),
                "{:?}",
                seen.told
            );
            assert_eq!(seen.header("Warning"), WHY);
            assert_eq!(net.seen(bob).len(), before, "bob is told nothing");
            assert_eq!(net.border.census().ports, 2);
        }
        for offer in sound() {
            let seen = ask(&mut net, alice, leg, method, &offer);
            assert!(
                matches!(seen.told, Told::Response(200, _)),
                "{:?}",
                seen.told
            );
        }
    }
    assert_no_session_without_address(&net, bob);
    hang_up(&mut net, alice, leg);
}

#[test]
fn an_answer_without_address_ends_the_call_with_a_reason() {
    for answer in bad() {
        let (mut net, alice, bob) = pair();
        net.phones[bob].ears.manners.sdp = answer;
        net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &Content::sdp(described(true, false, false).as_bytes()),
        );
        second(&mut net);
        let refused = net.find(alice, |told| *told == Told::Failed(Failure::Response, 488));
        assert_eq!(refused.header("Warning"), WHY);
        let bye = net.find(bob, |told| *told == Told::Ended(Ending::Peer));
        assert!(bye.header("Reason").contains("cause=488"), "{}", bye.text());
        net.assert_quiet();
    }
}

#[test]
fn an_answer_without_address_to_a_later_offer_leaves_the_call_as_it_was() {
    for method in [Method::Invite, Method::Update] {
        let (mut net, [alice, bob], leg) = standing();
        net.phones[bob].ears.manners.sdp = described(false, false, false);
        let seen = ask(&mut net, alice, leg, method, SDP_A);
        assert!(
            matches!(seen.told, Told::Response(488, _)),
            "{:?}",
            seen.told
        );
        assert_eq!(net.border.calls().len(), 1);
        assert_eq!(net.border.census().ports, 2);
        // The exchange is over: the next one is taken.
        net.phones[bob].ears.manners.sdp = SDP_B.to_owned();
        let seen = ask(&mut net, alice, leg, method, SDP_A);
        assert!(
            matches!(seen.told, Told::Response(200, _)),
            "{:?}",
            seen.told
        );
        assert_no_session_without_address(&net, alice);
        hang_up(&mut net, alice, leg);
    }
}

#[test]
fn an_early_answer_without_address_does_not_pass() {
    for reliable in [false, true] {
        let (mut net, alice, bob) = pair();
        net.phones[bob].ears.manners.progress = vec![(183, reliable)];
        net.phones[bob].ears.manners.answer = None;
        net.phones[bob].ears.manners.sdp = described(false, false, false);
        let leg = net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &Content::sdp(SDP_A.as_bytes()),
        );
        second(&mut net);
        assert_no_session_without_address(&net, alice);
        if reliable {
            // For bob it is settled; no other answer will come.
            let refused = net.find(alice, |told| *told == Told::Failed(Failure::Response, 488));
            assert_eq!(refused.header("Warning"), WHY);
            let cancel = net.find(bob, |told| *told == Told::Cancelled);
            assert!(cancel.header("Reason").contains("cause=488"));
        } else {
            let called = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
            net.tell(bob, |endpoint, now| {
                let answer = Content::sdp(SDP_B.as_bytes());
                endpoint.answer(called, 200, &answer, now).unwrap();
            });
            second(&mut net);
            assert!(net.has(alice, |told| *told == Told::Answered));
            hang_up(&mut net, alice, leg);
        }
        net.assert_quiet();
    }
}

#[test]
fn a_late_answer_without_address_ends_a_new_call() {
    let (mut net, alice, bob) = pair();
    net.phones[alice].ears.manners.acks = false;
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &Content::default());
    second(&mut net);
    assert!(net.has(alice, |told| *told == Told::Answered));
    let answer = described(false, false, false);
    net.tell(alice, |endpoint, now| {
        let answer = Content::sdp(answer.as_bytes());
        endpoint.ack(leg, &answer, now).unwrap();
    });
    second(&mut net);
    assert_no_session_without_address(&net, bob);
    for phone in [alice, bob] {
        let bye = net.find(phone, |told| *told == Told::Ended(Ending::Peer));
        assert!(bye.header("Reason").contains("cause=488"), "{}", bye.text());
    }
    net.assert_quiet();
}

#[test]
fn a_late_answer_without_address_leaves_a_standing_call_as_it_was() {
    let (mut net, [alice, bob], leg) = standing();
    net.phones[alice].ears.manners.acks = false;
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &Content::default(), now)
            .unwrap();
    });
    second(&mut net);
    assert!(net.has(alice, |told| matches!(told, Told::Response(200, _))));
    let answer = described(false, false, false);
    net.tell(alice, |endpoint, now| {
        let answer = Content::sdp(answer.as_bytes());
        endpoint.ack(leg, &answer, now).unwrap();
    });
    second(&mut net);
    assert_no_session_without_address(&net, bob);
    assert_eq!(net.border.calls().len(), 1);
    assert_eq!(net.border.census().ports, 2);
    net.phones[alice].ears.manners.acks = true;
    let seen = ask(&mut net, alice, leg, Method::Invite, SDP_A);
    assert!(
        matches!(seen.told, Told::Response(200, _)),
        "{:?}",
        seen.told
    );
    hang_up(&mut net, alice, leg);
}

/// A call whose 183 alice has to acknowledge; its leg and the 183's fork.
fn to_prack(
    net: &mut Neighbourhood,
    alice: usize,
    bob: usize,
    offer: &Content<'_>,
) -> (LegId, sip::Fork) {
    net.phones[bob].ears.manners.progress = vec![(183, true)];
    net.phones[bob].ears.manners.answer = None;
    let leg = net.call_with(alice, "sip:bob@192.0.2.1", OUT, offer, |invite| {
        invite.prack = Prack::User;
    });
    second(net);
    let fork = net.told(alice).into_iter().find_map(|told| match told {
        Told::Progressed(183, true, fork) => fork,
        _ => None,
    });
    (leg, fork.unwrap())
}

fn prack(net: &mut Neighbourhood, phone: usize, (leg, fork): (LegId, sip::Fork), sdp: &str) {
    net.tell(phone, |endpoint, now| {
        let content = Content::sdp(sdp.as_bytes());
        endpoint.prack(leg, fork, &content, now).unwrap();
    });
    second(net);
}

#[test]
fn an_offer_without_address_in_prack_is_refused_and_the_call_goes_on() {
    let (mut net, alice, bob) = pair();
    let early = to_prack(&mut net, alice, bob, &Content::sdp(SDP_A.as_bytes()));
    prack(&mut net, alice, early, &described(false, false, false));
    let refused = net.find(alice, |told| matches!(told, Told::Response(488, _)));
    assert_eq!(refused.header("Warning"), WHY);
    assert!(
        net.has(bob, |told| matches!(told, Told::Pracked(_))),
        "the 183 is acknowledged"
    );
    assert_no_session_without_address(&net, bob);
    let called = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
    net.tell(bob, |endpoint, now| {
        endpoint
            .answer(called, 200, &Content::default(), now)
            .unwrap()
    });
    second(&mut net);
    assert!(net.has(alice, |told| *told == Told::Answered));
    hang_up(&mut net, alice, early.0);
}

#[test]
fn an_answer_without_address_in_prack_ends_the_call() {
    let (mut net, alice, bob) = pair();
    let early = to_prack(&mut net, alice, bob, &Content::default());
    prack(&mut net, alice, early, &described(false, false, false));
    assert!(net.has(alice, |told| matches!(told, Told::Response(488, _))));
    let refused = net.find(alice, |told| *told == Told::Failed(Failure::Response, 488));
    assert_eq!(refused.header("Warning"), WHY);
    let cancel = net.find(bob, |told| *told == Told::Cancelled);
    assert!(cancel.header("Reason").contains("cause=488"));
    assert_no_session_without_address(&net, bob);
    net.assert_quiet();
}

#[test]
fn a_conference_refuses_an_offer_without_address() {
    let room = format!("{PLAIN}[[room]]\nname='staff'\nnumber=['600']\n");
    let mut net = Neighbourhood::new(&room, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    net.call(
        alice,
        "sip:600@192.0.2.1",
        OUT,
        &Content::sdp(described(false, false, false).as_bytes()),
    );
    second(&mut net);
    let refused = net.find(alice, |told| *told == Told::Failed(Failure::Response, 488));
    assert_eq!(refused.header("Warning"), WHY);
    net.assert_quiet();
}
