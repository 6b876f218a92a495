//! ACK for 2xx: sent at once, independent of the other side's ACK, unless that one carries an answer.

use crate::virtual_network;

use sip::{Ending, LegId, MessageContent};
use virtual_network::*;
use wire::sip::{Message, Method};

struct Pair {
    net: VirtualNetwork,
    phones: [usize; 2],
    legs: [LegId; 2],
}

impl Pair {
    /// An established call; from now on neither phone acknowledges automatically.
    fn new(config: &str) -> Pair {
        let mut net = VirtualNetwork::new(config, 1);
        let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
        let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
        let offer = MessageContent::sdp(SDP_A.as_bytes());
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
        let other = net
            .find(bob, |event| *event == PhoneEvent::Offered)
            .leg
            .unwrap();
        for phone in [alice, bob] {
            net.phones[phone].log.behaviour.acks = false;
        }
        Pair {
            net,
            phones: [alice, bob],
            legs: [leg, other],
        }
    }

    fn invites_again(&mut self, side: usize, content: &MessageContent<'_>) {
        let (phone, leg) = (self.phones[side], self.legs[side]);
        self.net.command(phone, |endpoint, now| {
            endpoint.request(leg, Method::Invite, content, now).unwrap();
        });
    }

    /// Number of 2xx responses that a phone received for its INVITEs, retransmissions included.
    fn answers(&self, side: usize) -> usize {
        answers(&self.net, self.phones[side])
    }

    fn acks(&self, side: usize) -> usize {
        let reported = self.net.phone_events(self.phones[side]);
        reported
            .iter()
            .filter(|event| **event == PhoneEvent::Acked)
            .count()
    }
}

fn answers(net: &VirtualNetwork, phone: usize) -> usize {
    let sent = net.phones[phone].sent.iter();
    let answers = sent.filter(|bytes| {
        let message = Message::parse(bytes).unwrap();
        !message.is_request() && message.status() == 200 && message.method() == Method::Invite
    });
    answers.count()
}

#[test]
fn callee_gets_ack_without_ack_of_the_caller() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[alice].log.behaviour.acks = false;
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(20));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    assert_eq!(answers(&net, bob), 1, "not retransmitted");
    // A caller that never acknowledges has no call (RFC 3261 section 13.3.1.4).
    net.run(seconds(20));
    assert!(net.has(bob, |event| *event == PhoneEvent::Ended(Ending::Peer)));
    net.assert_quiet();
}

#[test]
fn re_invite_answer_is_acknowledged_at_once() {
    for asker in [0, 1] {
        let mut pair = Pair::new(PLAIN);
        let other = 1 - asker;
        let sdp = [SDP_A, SDP_B][asker].replace("m=audio", "a=sendonly\r\nm=audio");
        let (before, acks) = (pair.answers(other), pair.acks(other));
        pair.invites_again(asker, &MessageContent::sdp(sdp.as_bytes()));
        pair.net.run(seconds(10));
        assert_eq!(pair.answers(other), before + 1, "{asker}: not repeated");
        assert_eq!(pair.acks(other), acks + 1, "{asker}");
        // The other side cannot know about the missing ACK: its re-INVITE waits (RFC 3261 section 14.2).
        pair.net.phones[pair.phones[other]].log.behaviour.acks = true;
        pair.invites_again(
            other,
            &MessageContent::sdp([SDP_B, SDP_A][asker].as_bytes()),
        );
        pair.net.run(seconds(1));
        let refused = |event: &PhoneEvent| matches!(event, PhoneEvent::Response(491, _));
        assert!(!pair.net.has(pair.phones[other], refused), "{asker}");
        assert_eq!(pair.acks(asker), usize::from(asker == 1), "{asker}");
        // The late ACK is not relayed a second time.
        let (phone, leg) = (pair.phones[asker], pair.legs[asker]);
        pair.net.command(phone, |endpoint, now| {
            endpoint.ack(leg, &MessageContent::default(), now).unwrap();
        });
        pair.net.run(seconds(1));
        assert_eq!(pair.acks(other), acks + 1, "{asker}");
        assert_eq!(pair.acks(asker), usize::from(asker == 1) + 1, "{asker}");
        pair.net.command(phone, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap();
        });
        pair.net.assert_quiet();
    }
}

#[test]
fn re_invite_waiting_for_an_ack_ends_with_its_call() {
    let mut pair = Pair::new(PLAIN);
    pair.invites_again(0, &MessageContent::sdp(SDP_A.as_bytes()));
    pair.net.run(seconds(1));
    pair.invites_again(1, &MessageContent::sdp(SDP_B.as_bytes()));
    // The sender of the re-INVITE never acknowledges, so its call ends.
    pair.net.run(seconds(40));
    let refused = |event: &PhoneEvent| matches!(event, PhoneEvent::Response(487, _));
    assert!(pair.net.has(pair.phones[1], refused));
    pair.net.assert_quiet();
}

#[test]
fn late_offer_waits_for_its_answer() {
    for asker in [0, 1] {
        let mut pair = Pair::new(PLAIN);
        let other = 1 - asker;
        let acks = pair.acks(other);
        pair.invites_again(asker, &MessageContent::default());
        pair.net.run(seconds(1));
        assert_eq!(pair.acks(other), acks, "{asker}: the answer is not there");
        let (phone, leg) = (pair.phones[asker], pair.legs[asker]);
        let answer = MessageContent::sdp([SDP_A, SDP_B][asker].as_bytes());
        pair.net.command(phone, |endpoint, now| {
            endpoint.ack(leg, &answer, now).unwrap();
        });
        pair.net.run(seconds(1));
        let ack = pair
            .net
            .last(pair.phones[other], |event| *event == PhoneEvent::Acked);
        let ours = ["198.51.100.1", "192.0.2.1"][asker];
        assert!(
            ack.body().contains(&format!("c=IN IP4 {ours}")),
            "{}",
            ack.text()
        );
        pair.net.command(phone, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap();
        });
        pair.net.assert_quiet();
    }
}

#[test]
fn header_rules_apply_to_our_ack() {
    let config = format!(
        "{PLAIN}[[rules]]\ndirection='out'\nmethod='ACK'\ndo=[{{add='X-Mark',value='seen'}}]\n"
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[alice].log.behaviour.acks = false;
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    let ack = net.find(bob, |event| *event == PhoneEvent::Acked);
    assert_eq!(ack.header("X-Mark"), "seen");
}
