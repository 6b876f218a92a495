//! ACKs of 2xx: at once, whatever becomes of the other side's; unless that one brings an answer.

use crate::neighbourhood;

use neighbourhood::*;
use sip::{Content, Ending, LegId};
use std::time::Duration;
use wire::sip::{Message, Method};

const OUT: &str = "192.0.2.1:5060";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

struct Pair {
    net: Neighbourhood,
    phones: [usize; 2],
    legs: [LegId; 2],
}

impl Pair {
    /// A call that stands; from now on neither phone acknowledges anything by itself.
    fn new(config: &str) -> Pair {
        let mut net = Neighbourhood::new(config, 1);
        let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
        let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
        let offer = Content::sdp(SDP_A.as_bytes());
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
        let other = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
        for phone in [alice, bob] {
            net.phones[phone].ears.manners.acks = false;
        }
        Pair {
            net,
            phones: [alice, bob],
            legs: [leg, other],
        }
    }

    fn invites_again(&mut self, side: usize, content: &Content<'_>) {
        let (phone, leg) = (self.phones[side], self.legs[side]);
        self.net.tell(phone, |endpoint, now| {
            endpoint.request(leg, Method::Invite, content, now).unwrap();
        });
    }

    /// 2xx to INVITEs that a phone has sent, repetitions included.
    fn answers(&self, side: usize) -> usize {
        answers(&self.net, self.phones[side])
    }

    fn acks(&self, side: usize) -> usize {
        let told = self.net.told(self.phones[side]);
        told.iter().filter(|told| **told == Told::Acked).count()
    }
}

fn answers(net: &Neighbourhood, phone: usize) -> usize {
    let sent = net.phones[phone].sent.iter();
    let answers = sent.filter(|bytes| {
        let message = Message::parse(bytes).unwrap();
        !message.is_request() && message.status() == 200 && message.method() == Method::Invite
    });
    answers.count()
}

#[test]
fn a_callee_is_acknowledged_although_the_caller_never_acknowledges() {
    let mut net = Neighbourhood::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    net.phones[alice].ears.manners.acks = false;
    let offer = Content::sdp(SDP_A.as_bytes());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(20));
    assert!(net.has(bob, |told| *told == Told::Acked));
    assert_eq!(answers(&net, bob), 1, "not repeated");
    // A caller that never acknowledges has no call (RFC 3261 section 13.3.1.4).
    net.run(seconds(20));
    assert!(net.has(bob, |told| *told == Told::Ended(Ending::Peer)));
    net.assert_quiet();
}

#[test]
fn who_answers_a_re_invite_is_acknowledged_at_once() {
    for asker in [0, 1] {
        let mut pair = Pair::new(PLAIN);
        let other = 1 - asker;
        let sdp = [SDP_A, SDP_B][asker].replace("m=audio", "a=sendonly\r\nm=audio");
        let (before, acks) = (pair.answers(other), pair.acks(other));
        pair.invites_again(asker, &Content::sdp(sdp.as_bytes()));
        pair.net.run(seconds(10));
        assert_eq!(pair.answers(other), before + 1, "{asker}: not repeated");
        assert_eq!(pair.acks(other), acks + 1, "{asker}");
        // The other side cannot know that the asker has not acknowledged: its own change waits (RFC 3261 section 14.2).
        pair.net.phones[pair.phones[other]].ears.manners.acks = true;
        pair.invites_again(other, &Content::sdp([SDP_B, SDP_A][asker].as_bytes()));
        pair.net.run(seconds(1));
        let refused = |told: &Told| matches!(told, Told::Response(491, _));
        assert!(!pair.net.has(pair.phones[other], refused), "{asker}");
        assert_eq!(pair.acks(asker), usize::from(asker == 1), "{asker}");
        // Its ACK comes late, and is not passed on a second time.
        let (phone, leg) = (pair.phones[asker], pair.legs[asker]);
        pair.net.tell(phone, |endpoint, now| {
            endpoint.ack(leg, &Content::default(), now).unwrap();
        });
        pair.net.run(seconds(1));
        assert_eq!(pair.acks(other), acks + 1, "{asker}");
        assert_eq!(pair.acks(asker), usize::from(asker == 1) + 1, "{asker}");
        pair.net.tell(phone, |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap();
        });
        pair.net.assert_quiet();
    }
}

#[test]
fn a_change_that_waits_for_an_ack_ends_with_its_call() {
    let mut pair = Pair::new(PLAIN);
    pair.invites_again(0, &Content::sdp(SDP_A.as_bytes()));
    pair.net.run(seconds(1));
    pair.invites_again(1, &Content::sdp(SDP_B.as_bytes()));
    // The asker never acknowledges, and its call ends for that.
    pair.net.run(seconds(40));
    let refused = |told: &Told| matches!(told, Told::Response(487, _));
    assert!(pair.net.has(pair.phones[1], refused));
    pair.net.assert_quiet();
}

#[test]
fn a_late_offer_waits_for_its_answer() {
    for asker in [0, 1] {
        let mut pair = Pair::new(PLAIN);
        let other = 1 - asker;
        let acks = pair.acks(other);
        pair.invites_again(asker, &Content::default());
        pair.net.run(seconds(1));
        assert_eq!(pair.acks(other), acks, "{asker}: the answer is not there");
        let (phone, leg) = (pair.phones[asker], pair.legs[asker]);
        let answer = Content::sdp([SDP_A, SDP_B][asker].as_bytes());
        pair.net.tell(phone, |endpoint, now| {
            endpoint.ack(leg, &answer, now).unwrap();
        });
        pair.net.run(seconds(1));
        let ack = pair
            .net
            .last(pair.phones[other], |told| *told == Told::Acked);
        let ours = ["198.51.100.1", "192.0.2.1"][asker];
        assert!(
            ack.body().contains(&format!("c=IN IP4 {ours}")),
            "{}",
            ack.text()
        );
        pair.net.tell(phone, |endpoint, now| {
            endpoint.bye(leg, &Content::default(), now).unwrap();
        });
        pair.net.assert_quiet();
    }
}

#[test]
fn header_rules_see_the_ack_that_is_ours() {
    let config = format!(
        "{PLAIN}[[rules]]\ndirection='out'\nmethod='ACK'\ndo=[{{add='X-Mark',value='seen'}}]\n"
    );
    let mut net = Neighbourhood::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    net.phones[alice].ears.manners.acks = false;
    let offer = Content::sdp(SDP_A.as_bytes());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    let ack = net.find(bob, |told| *told == Told::Acked);
    assert_eq!(ack.header("X-Mark"), "seen");
}
