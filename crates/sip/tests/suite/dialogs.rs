//! In-dialog requests: re-INVITE, UPDATE, PRACK, session timers, order of requests, ends.

use crate::common;

use common::*;
use engine::{Time, Transport};
use sip::*;
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

const PEER: &str = "192.0.2.9:5060";

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// An established call: (pair, caller's leg, callee's leg).
fn established_call(config: [EndpointConfig; 2]) -> (Pair, LegId, LegId) {
    let mut pair = Pair::new(config, 5);
    let caller = pair.call(0, Transport::Udp);
    pair.run(Duration::from_millis(100));
    let RecordedIndication::Offered(callee) = pair.hosts[1].log.indications[0] else {
        panic!()
    };
    assert_eq!(
        pair.hosts[1].endpoint.state_of(callee),
        Some(LegState::Confirmed)
    );
    (pair, caller, callee)
}

fn plain() -> (Pair, LegId, LegId) {
    established_call([EndpointConfig::default(), EndpointConfig::default()])
}

fn finish(mut pair: Pair, leg: LegId) {
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .bye(leg, &MessageContent::default(), now)
        .unwrap();
    pair.settle();
}

#[test]
fn reinvite_is_answered_and_acknowledged() {
    let (mut pair, caller, _) = plain();
    let now = pair.now;
    let transaction = pair.hosts[0]
        .endpoint
        .request(caller, Method::Invite, &MessageContent::sdp(SDP), now)
        .unwrap();
    assert_eq!(
        pair.hosts[0]
            .endpoint
            .request(caller, Method::Invite, &MessageContent::sdp(SDP), now),
        Err(Refused::InvitePending)
    );
    pair.run(Duration::from_millis(100));
    assert_eq!(
        pair.hosts[0].log.last(),
        &RecordedIndication::Response(caller, transaction, 200, String::from("INVITE"))
    );
    assert_eq!(pair.steps()[4..], ["0 INVITE", "1 200 INVITE", "0 ACK"]);
    assert!(matches!(
        pair.hosts[1].log.last(),
        RecordedIndication::Acked(..)
    ));
    finish(pair, caller);
}

/// A re-INVITE offers no reliable provisional responses; one that requires them gets only its final response (RFC 3262
/// sections 3 and 4).
#[test]
fn reinvite_has_no_reliable_provisional_responses() {
    let (mut pair, caller, _) = plain();
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .request(caller, Method::Invite, &MessageContent::sdp(SDP), now)
        .unwrap();
    pair.run(Duration::from_millis(100));
    let invites = pair
        .ladder
        .iter()
        .filter(|(_, from, text)| *from == 0 && text.starts_with("INVITE"));
    let supported: Vec<String> = invites
        .map(|(_, _, text)| header(text, HeaderId::Supported).unwrap())
        .collect();
    assert_eq!(supported, ["100rel, timer, replaces", "timer, replaces"]);
    finish(pair, caller);

    let mut called = IncomingCall::with("Supported: 100rel\r\n", EndpointConfig::default());
    called.host.log.behaviour.respond = None;
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    called.receive("ACK", "a", 10, "", 2);
    for (cseq, require, provisional) in [
        (11, "Supported: 100rel\r\n", 1),
        (12, "Require: 100rel\r\n", 0),
    ] {
        let at = u64::from(cseq) * 1_000;
        let branch = format!("r{cseq}");
        called.receive("INVITE", &branch, cseq, require, at);
        let RecordedIndication::Request(_, transaction, _) = called.host.log.last().clone() else {
            panic!("{:?}", called.host.log.indications)
        };
        let endpoint = &mut called.host.endpoint;
        let nothing = MessageContent::default();
        assert_eq!(
            endpoint.respond(transaction, 183, &nothing, ms(at + 1)),
            Ok(())
        );
        assert_eq!(called.host.datagrams().len(), provisional, "{require}");
        let sdp = MessageContent::sdp(SDP);
        let endpoint = &mut called.host.endpoint;
        assert_eq!(endpoint.respond(transaction, 200, &sdp, ms(at + 2)), Ok(()));
        assert_eq!(status(&called.host.datagrams()[0]), 200);
        called.receive("ACK", &format!("a{cseq}"), cseq, "", at + 10);
    }
    called.receive("BYE", "b", 13, "", 20_000);
    called.end();
}

#[test]
fn crossing_reinvites_both_get_491_and_can_be_retried() {
    let (mut pair, caller, callee) = plain();
    let now = pair.now;
    for (host, leg) in [(0, caller), (1, callee)] {
        pair.hosts[host]
            .endpoint
            .request(leg, Method::Invite, &MessageContent::sdp(SDP), now)
            .unwrap();
    }
    pair.run(Duration::from_millis(200));
    for host in &pair.hosts {
        assert!(
            matches!(host.log.last(), RecordedIndication::Response(_, _, 491, _)),
            "{:?}",
            host.log.indications
        );
        assert_eq!(
            host.log
                .count(|s| matches!(s, RecordedIndication::Request(..))),
            0
        );
    }
    // The owner of the Call-ID waits 2.1 to 4 s, the other 0 to 2 s (RFC 3261 section 14.1).
    for _ in 0..200 {
        let owner = pair.hosts[0].endpoint.glare_wait(caller).unwrap();
        let other = pair.hosts[1].endpoint.glare_wait(callee).unwrap();
        assert!((Duration::from_millis(2_100)..=Duration::from_secs(4)).contains(&owner));
        assert!(other <= Duration::from_secs(2));
    }
    let now = pair.now;
    pair.hosts[1]
        .endpoint
        .request(callee, Method::Invite, &MessageContent::sdp(SDP), now)
        .unwrap();
    pair.run(Duration::from_millis(200));
    assert!(matches!(
        pair.hosts[1].log.last(),
        RecordedIndication::Response(_, _, 200, _)
    ));
    finish(pair, caller);
}

#[test]
fn second_reinvite_before_the_answer_gets_500_with_retry_after() {
    let (mut pair, caller, callee) = plain();
    pair.hosts[1].log.behaviour.respond = None;
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .request(caller, Method::Invite, &MessageContent::sdp(SDP), now)
        .unwrap();
    pair.run(Duration::from_millis(50));
    let reinvite = pair
        .ladder
        .iter()
        .rev()
        .find(|(_, from, text)| *from == 0 && text.starts_with("INVITE"))
        .unwrap()
        .2
        .clone();
    let second = reinvite
        .replace("CSeq: 2 INVITE", "CSeq: 3 INVITE")
        .replace("branch=z9hG4bK", "branch=z9hG4bKother");
    let now = pair.now;
    pair.hosts[1].datagram(second.as_bytes(), "192.0.2.1:5060", now);
    let sent = pair.hosts[1].datagrams();
    assert!(sent[0].starts_with("SIP/2.0 500 "), "{sent:?}");
    let later: u32 = header(&sent[0], HeaderId::RetryAfter)
        .unwrap()
        .parse()
        .unwrap();
    assert!(later <= 10);
    // Uses the CSeq that was used by hand above.
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .request(caller, Method::Info, &MessageContent::default(), now)
        .unwrap();
    pair.run(Duration::from_millis(50));
    // The first one is ended by BYE of its sender.
    assert_eq!(
        pair.hosts[1].endpoint.state_of(callee),
        Some(LegState::Confirmed)
    );
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .bye(caller, &MessageContent::default(), now)
        .unwrap();
    pair.run(Duration::from_millis(50));
    assert!(
        pair.steps().contains(&String::from("1 487 INVITE")),
        "{:?}",
        pair.steps()
    );
    assert!(matches!(
        pair.hosts[1].log.last(),
        RecordedIndication::Ended(_, Ending::Peer)
    ));
    pair.settle();
}

#[test]
fn update_carries_one_offer_at_a_time() {
    let (mut pair, caller, _) = plain();
    pair.hosts[1].log.behaviour.respond = None;
    let now = pair.now;
    let endpoint = &mut pair.hosts[0].endpoint;
    endpoint
        .request(caller, Method::Update, &MessageContent::sdp(SDP), now)
        .unwrap();
    for method in [Method::Update, Method::Invite] {
        assert_eq!(
            endpoint.request(caller, method, &MessageContent::sdp(SDP), now),
            Err(Refused::OfferPending)
        );
    }
    // Even without an offer: the peer would answer 500 (RFC 3311 section 5.2).
    assert_eq!(
        endpoint.request(caller, Method::Update, &MessageContent::default(), now),
        Err(Refused::OfferPending)
    );
    pair.run(Duration::from_millis(50));
    let requests: Vec<ServerTransaction> = pair.hosts[1]
        .log
        .indications
        .iter()
        .filter_map(|recorded| match recorded {
            RecordedIndication::Request(_, transaction, _) => Some(*transaction),
            _ => None,
        })
        .collect();
    assert_eq!(requests.len(), 1);
    let now = pair.now;
    for transaction in requests {
        pair.hosts[1]
            .endpoint
            .respond(transaction, 200, &MessageContent::sdp(SDP), now)
            .unwrap();
    }
    pair.run(Duration::from_millis(50));
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .request(caller, Method::Update, &MessageContent::sdp(SDP), now)
        .expect("the first offer is answered");
    pair.run(Duration::from_millis(50));
    finish(pair, caller);
}

/// RFC 3261 section 12.2, RFC 3311: re-INVITE and UPDATE change the remote target in both directions; INFO does not.
#[test]
fn target_refresh_updates_the_remote_target() {
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    called.receive("ACK", "a", 10, "", 5);
    let mut cseq = 11;
    let mut at = 10;
    let mut moved = |called: &mut IncomingCall, method: &str, place: u8| {
        let text = request(method, &format!("m{cseq}"), cseq, &called.tag.clone(), "").replace(
            "sip:bob@192.0.2.9:5060",
            &format!("sip:bob@192.0.2.{place}:5060"),
        );
        called.host.datagram(text.as_bytes(), PEER, ms(at));
        called.host.drain();
        if method == "INVITE" {
            called.receive("ACK", &format!("a{cseq}"), cseq, "", at + 1);
        }
        called
            .host
            .endpoint
            .request(
                called.leg,
                Method::Info,
                &MessageContent::default(),
                ms(at + 2),
            )
            .unwrap();
        let mut sent = called.host.drain();
        let Sent::Datagram(to, bytes) = sent.remove(0) else {
            panic!("{sent:?}")
        };
        cseq += 1;
        at += 10;
        let line = String::from_utf8_lossy(&bytes)
            .lines()
            .next()
            .unwrap()
            .to_owned();
        (to.to_string(), line)
    };
    let expected = |place: u8| {
        (
            format!("192.0.2.{place}:5060"),
            format!("INFO sip:bob@192.0.2.{place}:5060 SIP/2.0"),
        )
    };
    assert_eq!(moved(&mut called, "INVITE", 31), expected(31));
    assert_eq!(moved(&mut called, "UPDATE", 32), expected(32));
    assert_eq!(moved(&mut called, "INFO", 33), expected(32));
    // The 2xx to our refresh updates the peer's target too.
    called
        .host
        .endpoint
        .request(
            called.leg,
            Method::Update,
            &MessageContent::default(),
            ms(100),
        )
        .unwrap();
    let update = called.host.datagrams().remove(0);
    let answer = format!(
        "SIP/2.0 200 OK\r\nVia: {}\r\nFrom: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {}\r\n\
         Contact: <sip:bob@192.0.2.34:5060>\r\nContent-Length: 0\r\n\r\n",
        header(&update, HeaderId::Via).unwrap(),
        header(&update, HeaderId::From).unwrap(),
        header(&update, HeaderId::To).unwrap(),
        header(&update, HeaderId::CallId).unwrap(),
        header(&update, HeaderId::CSeq).unwrap(),
    );
    called.host.datagram(answer.as_bytes(), PEER, ms(110));
    assert_eq!(
        called.host.endpoint.remote_target_of(called.leg),
        Some(&b"sip:bob@192.0.2.34:5060"[..])
    );
}

#[test]
fn second_update_before_the_answer_gets_500_with_retry_after() {
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    called.receive("ACK", "a", 10, "", 5);
    called.host.log.behaviour.respond = None;
    let update = "Content-Type: application/sdp\r\n";
    assert!(called.receive("UPDATE", "u1", 11, "", 10).is_empty());
    for (branch, cseq, extra) in [("u2", 12, ""), ("u3", 13, update)] {
        let sent = called.receive("UPDATE", branch, cseq, extra, 20);
        assert_eq!(status(&sent[0]), 500);
        let later: u32 = header(&sent[0], HeaderId::RetryAfter)
            .unwrap()
            .parse()
            .unwrap();
        assert!(later <= 10);
    }
    let RecordedIndication::Request(_, first, _) = called.host.log.last().clone() else {
        panic!()
    };
    called
        .host
        .endpoint
        .respond(first, 200, &MessageContent::default(), ms(30))
        .unwrap();
    called.host.drain();
    // The next one is unanswered. After 64*T1 its state and its offer are removed, so that it does not block others.
    assert!(called.receive("UPDATE", "u4", 14, update, 100).is_empty());
    called.host.run(ms(33_000));
    called.host.log.behaviour.respond = Some(200);
    let sent = called.receive("UPDATE", "u5", 15, update, 33_000);
    assert_eq!(status(&sent[0]), 200);
    called.receive("BYE", "b", 16, "", 33_100);
    called.end();
}

/// A host with one handwritten incoming call.
struct IncomingCall {
    host: Host,
    leg: LegId,
    tag: String,
}

fn request(method: &str, branch: &str, cseq: u32, to_tag: &str, extra: &str) -> String {
    let body = if extra.contains("application/sdp") {
        "v=0\r\n"
    } else {
        ""
    };
    format!(
        "{method} sip:alice@192.0.2.1 SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.9:5060;branch=z9hG4bK{branch}\r\n\
         Max-Forwards: 70\r\n\
         From: Bob <sip:bob@example.com>;tag=bobs\r\n\
         To: <sip:alice@example.com>{to_tag}\r\n\
         Call-ID: c1\r\nCSeq: {cseq} {method}\r\n\
         Contact: <sip:bob@192.0.2.9:5060>\r\n{extra}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

impl IncomingCall {
    fn with(extra: &str, config: EndpointConfig) -> IncomingCall {
        let mut host = Host::new("192.0.2.1:5060", config, 13);
        host.log.behaviour.answer = None;
        host.log.behaviour.ring = false;
        host.datagram(
            request("INVITE", "i", 10, "", extra).as_bytes(),
            PEER,
            Time::ZERO,
        );
        host.drain();
        let RecordedIndication::Offered(leg) = host.log.indications[0] else {
            panic!("{:?}", host.log.indications)
        };
        let tag = host.endpoint.tags_of(leg).unwrap().0;
        let tag = format!(";tag={}", String::from_utf8(tag).unwrap());
        IncomingCall { host, leg, tag }
    }

    fn receive(
        &mut self,
        method: &str,
        branch: &str,
        cseq: u32,
        extra: &str,
        at: u64,
    ) -> Vec<String> {
        let text = request(method, branch, cseq, &self.tag.clone(), extra);
        self.host.datagram(text.as_bytes(), PEER, ms(at));
        self.host.datagrams()
    }

    fn end(mut self) {
        self.host.run(Time::from_secs(300));
        let census = self.host.endpoint.census();
        assert!(census.is_quiet(), "{census:?}");
    }
}

fn status(text: &str) -> u16 {
    wire::sip::Message::parse(text.as_bytes()).unwrap().status()
}

#[test]
fn requests_out_of_order_get_500() {
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    called.receive("ACK", "a", 10, "", 2);
    assert_eq!(status(&called.receive("INFO", "b", 12, "", 3)[0]), 200);
    assert_eq!(status(&called.receive("INFO", "c", 11, "", 4)[0]), 500);
    assert_eq!(status(&called.receive("INFO", "d", 12, "", 5)[0]), 500);
    assert_eq!(status(&called.receive("BYE", "e", 13, "", 6)[0]), 200);
    called.end();
}

#[test]
fn unknown_tag_or_call_id_gets_481() {
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    called.receive("ACK", "a", 10, "", 2);
    let good = request("BYE", "b", 11, &called.tag, "");
    for (branch, bad) in [
        ("1", good.replace("tag=bobs", "tag=else")),
        ("2", good.replace("Call-ID: c1", "Call-ID: c2")),
        ("3", good.replace(&called.tag, ";tag=nobody")),
    ] {
        let bad = bad.replace("z9hG4bKb", &format!("z9hG4bK{branch}"));
        called.host.datagram(bad.as_bytes(), PEER, ms(3));
        assert_eq!(status(&called.host.datagrams()[0]), 481, "{bad}");
    }
    assert_eq!(
        called.host.endpoint.state_of(called.leg),
        Some(LegState::Confirmed)
    );
    called.receive("BYE", "b", 11, "", 4);
    called.end();
}

#[test]
fn cancel_ends_only_an_unanswered_call() {
    let mut called = IncomingCall::with("", EndpointConfig::default());
    // CANCEL has the INVITE's branch and no To tag.
    let cancel = request("CANCEL", "i", 10, "", "");
    called.host.datagram(cancel.as_bytes(), PEER, ms(50));
    let sent = called.host.datagrams();
    assert_eq!([status(&sent[0]), status(&sent[1])], [200, 487]);
    assert_eq!(
        header(&sent[0], HeaderId::To),
        header(&sent[1], HeaderId::To)
    );
    assert_eq!(
        called.host.log.last(),
        &RecordedIndication::Cancelled(called.leg)
    );
    called.receive("ACK", "i", 10, "", 60);
    called.end();

    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    called.host.datagram(cancel.as_bytes(), PEER, ms(50));
    assert_eq!(
        called
            .host
            .datagrams()
            .iter()
            .map(|t| status(t))
            .collect::<Vec<_>>(),
        [200]
    );
    called.receive("ACK", "a", 10, "", 60);
    assert_eq!(
        called.host.endpoint.state_of(called.leg),
        Some(LegState::Confirmed)
    );
    called.receive("BYE", "b", 11, "", 70);
    called.end();
    // A client that creates a branch for every request, as some do: the INVITE is found nevertheless, from the same
    // address only.
    let mut called = IncomingCall::with("", EndpointConfig::default());
    let own_branch = request("CANCEL", "another", 10, "", "");
    called
        .host
        .datagram(own_branch.as_bytes(), "192.0.2.77:5060", ms(40));
    assert_eq!(status(&called.host.datagrams()[0]), 481);
    let own_branch = request("CANCEL", "third", 10, "", "");
    called.host.datagram(own_branch.as_bytes(), PEER, ms(50));
    let sent = called.host.datagrams();
    assert_eq!([status(&sent[0]), status(&sent[1])], [200, 487]);
    called.receive("ACK", "i", 10, "", 60);
    let own_branch = request("CANCEL", "fourth", 10, "", "");
    called.host.datagram(own_branch.as_bytes(), PEER, ms(70));
    assert_eq!(status(&called.host.datagrams()[0]), 481, "it is over");
    called.end();
    // A CANCEL without INVITE.
    let mut host = Host::new("192.0.2.1:5060", EndpointConfig::default(), 1);
    host.datagram(cancel.as_bytes(), PEER, ms(1));
    assert_eq!(status(&host.datagrams()[0]), 481);
}

#[test]
fn cancelled_reinvite_leaves_the_call_unchanged() {
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    called.receive("ACK", "a", 10, "", 2);
    called.host.log.behaviour.respond = None;
    let offer = "Content-Type: application/sdp\r\n";
    assert!(called.receive("INVITE", "r", 11, offer, 3).is_empty());
    let sent = called.receive("CANCEL", "r", 11, "", 4);
    assert_eq!(
        sent.iter().map(|t| status(t)).collect::<Vec<_>>(),
        [200, 487]
    );
    assert_eq!(
        called.host.log.last(),
        &RecordedIndication::RequestCancelled(called.leg)
    );
    called.receive("ACK", "r", 11, "", 5);
    // Nothing is pending any more: the next re-INVITE is indicated.
    called.host.log.behaviour.respond = Some(200);
    let sent = called.receive("INVITE", "s", 12, offer, 6);
    assert_eq!(status(&sent[0]), 200);
    called.receive("ACK", "t", 12, "", 7);
    called.receive("BYE", "b", 13, "", 8);
    called.end();
}

#[test]
fn bye_in_an_early_dialog_and_before_ack() {
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .progress(called.leg, 180, &MessageContent::default(), false, ms(1))
        .unwrap();
    called.host.drain();
    let sent = called.receive("BYE", "b", 11, "", 2);
    assert_eq!(
        sent.iter().map(|t| status(t)).collect::<Vec<_>>(),
        [200, 487]
    );
    assert_eq!(
        called.host.log.last(),
        &RecordedIndication::Cancelled(called.leg)
    );
    called.receive("ACK", "i", 10, "", 3);
    called.end();
    // The ACK is lost and BYE arrives: the 2xx is not retransmitted any more.
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    let sent = called.receive("BYE", "b", 11, "", 2);
    assert_eq!(sent.iter().map(|t| status(t)).collect::<Vec<_>>(), [200]);
    assert_eq!(
        called.host.log.last(),
        &RecordedIndication::Ended(called.leg, Ending::Peer)
    );
    assert!(called.host.run(ms(30_000)).is_empty());
    called.end();
}

#[test]
fn our_bye_waits_for_the_ack_of_our_2xx() {
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    let edits = [Edit::AddNamed {
        name: b"Reason",
        value: b"Q.850;cause=16",
    }];
    called
        .host
        .endpoint
        .bye(called.leg, &MessageContent::default().with(&edits), ms(2))
        .unwrap();
    assert!(called.host.datagrams().is_empty(), "RFC 3261 section 15");
    let sent = called.receive("ACK", "a", 10, "", 5);
    assert!(sent[0].starts_with("BYE "), "{sent:?}");
    assert_eq!(
        header(&sent[0], HeaderId::Reason).unwrap(),
        "Q.850;cause=16"
    );
    called.end();
}

#[test]
fn late_prack_of_a_refused_invite_is_answered_once() {
    // By a refusal, by CANCEL, and by us because no PRACK arrived.
    for how in ["refused", "cancelled", "given up"] {
        let mut called = IncomingCall::with("Supported: 100rel\r\n", EndpointConfig::default());
        let leg = called.leg;
        let content = MessageContent::sdp(SDP);
        let endpoint = &mut called.host.endpoint;
        endpoint.progress(leg, 183, &content, true, ms(0)).unwrap();
        let (end, late) = match how {
            "refused" => {
                let none = MessageContent::default();
                endpoint.reject(leg, 486, &none, ms(100)).unwrap();
                called.host.datagrams();
                (ms(100), 500)
            }
            "cancelled" => {
                let sent = called.receive("CANCEL", "i", 10, "", 100);
                assert!(sent.iter().any(|text| status(text) == 487), "{sent:?}");
                (ms(100), 500)
            }
            _ => {
                called.host.run(Time::from_secs(33));
                (Time::from_secs(33), 33_100)
            }
        };
        let give = |called: &mut IncomingCall, branch: &str, rack: &str, at: u64| {
            let sent = called.receive("PRACK", branch, 11, &format!("RAck: {rack}\r\n"), at);
            let prack = sent.iter().find(|text| text.contains("CSeq: 11 PRACK"));
            status(prack.expect("an answer"))
        };
        assert_eq!(give(&mut called, "p0", "2 10 INVITE", late), 481, "{how}");
        assert_eq!(give(&mut called, "p1", "1 9 INVITE", late), 481, "{how}");
        assert_eq!(give(&mut called, "p2", "1 10 INVITE", late), 200, "{how}");
        assert_eq!(give(&mut called, "p3", "1 10 INVITE", late), 481, "{how}");
        // After the time limit it is as unknown as a PRACK without response.
        let much = end.as_millis() + 40_000;
        assert_eq!(give(&mut called, "p4", "1 10 INVITE", much), 481, "{how}");
        called.end();
    }
}

#[test]
fn reliable_responses_are_retransmitted_until_prack_and_delay_the_2xx() {
    let mut called = IncomingCall::with("Supported: 100rel\r\n", EndpointConfig::default());
    let leg = called.leg;
    called
        .host
        .endpoint
        .progress(leg, 183, &MessageContent::sdp(SDP), true, ms(0))
        .unwrap();
    let first = called.host.datagrams().remove(0);
    assert_eq!(header(&first, HeaderId::Require).unwrap(), "100rel");
    let rseq: u32 = header(&first, HeaderId::RSeq).unwrap().parse().unwrap();
    assert_eq!(rseq, 1);
    called
        .host
        .endpoint
        .progress(leg, 180, &MessageContent::default(), true, ms(10))
        .unwrap();
    called
        .host
        .endpoint
        .answer(leg, 200, &MessageContent::default(), ms(20))
        .unwrap();
    assert!(called.host.datagrams().is_empty(), "held back");
    let repeated: Vec<u64> = called
        .host
        .run(ms(4_000))
        .iter()
        .map(|(at, _)| at.as_millis())
        .collect();
    assert_eq!(repeated.len(), 3, "{repeated:?}");
    for (time, expected) in repeated.iter().zip([500, 1_500, 3_500]) {
        assert!((expected..=expected + 2).contains(time), "{repeated:?}");
    }
    let wrong = called.receive(
        "PRACK",
        "p0",
        11,
        &format!("RAck: {} 10 INVITE\r\n", rseq + 1),
        4_000,
    );
    assert_eq!(status(&wrong[0]), 481);
    let sent = called.receive(
        "PRACK",
        "p1",
        12,
        &format!("RAck: {rseq} 10 INVITE\r\n"),
        4_010,
    );
    assert_eq!(
        sent.iter().map(|t| status(t)).collect::<Vec<_>>(),
        [200, 180]
    );
    assert_eq!(
        header(&sent[1], HeaderId::RSeq).unwrap(),
        (rseq + 1).to_string()
    );
    let sent = called.receive(
        "PRACK",
        "p2",
        13,
        // The method twice, as from a client that copies the whole CSeq.
        &format!("RAck: {} 10 INVITE INVITE\r\n", rseq + 1),
        4_020,
    );
    assert_eq!(
        sent.iter().map(|t| status(t)).collect::<Vec<_>>(),
        [200, 200]
    );
    called.receive("ACK", "a", 10, "", 4_030);
    assert_eq!(
        called.host.endpoint.state_of(leg),
        Some(LegState::Confirmed)
    );
    called.receive("BYE", "b", 14, "", 4_040);
    called.end();
}

#[test]
fn reliable_response_without_prack_ends_the_call() {
    let mut called = IncomingCall::with("Require: 100rel\r\n", EndpointConfig::default());
    let leg = called.leg;
    // Required by the caller, so reliable without a request of the handler.
    called
        .host
        .endpoint
        .progress(leg, 180, &MessageContent::default(), false, ms(0))
        .unwrap();
    assert!(header(&called.host.datagrams()[0], HeaderId::RSeq).is_some());
    let sent = called.host.run(ms(32_003));
    let Sent::Datagram(_, last) = &sent.last().unwrap().1 else {
        panic!()
    };
    assert!(last.starts_with(b"SIP/2.0 500 "));
    assert_eq!(
        called.host.log.last(),
        &RecordedIndication::Ended(leg, Ending::NoPrack)
    );
    called.end();
    let mut called = IncomingCall::with("", EndpointConfig::default());
    assert_eq!(
        called
            .host
            .endpoint
            .progress(called.leg, 180, &MessageContent::default(), true, ms(0)),
        Err(Refused::NotSupported)
    );
    called
        .host
        .endpoint
        .reject(called.leg, 486, &MessageContent::default(), ms(1))
        .unwrap();
    called.end();
}

#[test]
fn unknown_extensions_get_420_and_small_intervals_422() {
    let mut host = Host::new("192.0.2.1:5060", EndpointConfig::default(), 1);
    let invite = request("INVITE", "1", 1, "", "Require: timer, nothing, else\r\n");
    host.datagram(invite.as_bytes(), PEER, ms(0));
    let sent = host.datagrams();
    assert_eq!(status(&sent[0]), 420);
    assert_eq!(
        header(&sent[0], HeaderId::Unsupported).unwrap(),
        "nothing, else"
    );
    // We replace the proxies in the path.
    let invite = request("INVITE", "3", 3, "", "Proxy-Require: timer, more\r\n");
    host.datagram(invite.as_bytes(), PEER, ms(0));
    let sent = host.datagrams();
    assert_eq!(status(&sent[0]), 420);
    assert_eq!(header(&sent[0], HeaderId::Unsupported).unwrap(), "more");
    let invite = request(
        "INVITE",
        "2",
        2,
        "",
        "Supported: timer\r\nSession-Expires: 60\r\n",
    );
    host.datagram(invite.as_bytes(), PEER, ms(1));
    let sent = host.datagrams();
    assert_eq!(status(&sent[0]), 422);
    assert_eq!(header(&sent[0], HeaderId::MinSe).unwrap(), "90");
    assert!(host.log.indications.is_empty());
    host.run(Time::from_secs(60));
    assert!(host.endpoint.census().is_quiet());
    // A 405 lists the allowed methods (section 8.2.1).
    host.log.behaviour.respond = Some(405);
    host.datagram(
        request("DANCE", "9", 9, "", "").as_bytes(),
        PEER,
        Time::from_secs(60),
    );
    let sent = host.datagrams();
    assert_eq!(status(&sent[0]), 405);
    assert!(
        header(&sent[0], HeaderId::Allow)
            .unwrap()
            .contains("INVITE")
    );
    // A 415 lists the accepted types (RFC 3261 section 8.2.3).
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .reject(called.leg, 415, &MessageContent::default(), ms(1))
        .unwrap();
    let sent = called.host.datagrams();
    assert_eq!(
        header(&sent[0], HeaderId::Accept).unwrap(),
        "application/sdp"
    );
    called.end();
}

fn timed() -> EndpointConfig {
    EndpointConfig {
        session: Some(SessionConfig {
            expires: 200,
            min_se: 90,
        }),
        ..EndpointConfig::default()
    }
}

#[test]
fn sessions_are_refreshed_by_update_at_half_the_interval() {
    let (mut pair, caller, _) = established_call([timed(), timed()]);
    let ok = pair
        .ladder
        .iter()
        .find(|(_, from, text)| *from == 1 && text.starts_with("SIP/2.0 200"))
        .unwrap();
    assert_eq!(
        header(&ok.2, HeaderId::SessionExpires).unwrap(),
        "200;refresher=uac"
    );
    assert_eq!(header(&ok.2, HeaderId::Require).unwrap(), "timer");
    pair.ladder.clear();
    pair.run(Duration::from_secs(1_000));
    let updates: Vec<u64> = pair
        .ladder
        .iter()
        .filter(|(_, from, text)| *from == 0 && text.starts_with("UPDATE"))
        .map(|(at, _, _)| at.as_millis() / 1_000)
        .collect();
    assert_eq!(
        updates,
        [100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000][..updates.len()]
    );
    assert!(updates.len() >= 9, "{updates:?}");
    assert_eq!(
        pair.hosts[0].endpoint.state_of(caller),
        Some(LegState::Confirmed)
    );
    finish(pair, caller);
}

#[test]
fn session_without_refresh_expires_at_both_ends() {
    let (mut pair, caller, callee) = established_call([timed(), timed()]);
    pair.faults.lost = 1_000;
    pair.run(Duration::from_secs(260));
    assert_eq!(
        pair.hosts[0].log.last(),
        &RecordedIndication::Ended(caller, Ending::UnknownDialog),
        "its UPDATE is not answered"
    );
    assert!(
        pair.hosts[1]
            .log
            .indications
            .contains(&RecordedIndication::SessionExpired(callee))
    );
    assert_eq!(
        pair.hosts[1].log.last(),
        &RecordedIndication::Ended(callee, Ending::SessionExpired)
    );
    pair.settle();
}

#[test]
fn handler_refreshes_a_peer_without_update() {
    let mut peer = timed();
    peer.allow = String::from("INVITE, ACK, BYE, CANCEL");
    let (mut pair, caller, _) = established_call([timed(), peer]);
    pair.run(Duration::from_secs(101));
    assert_eq!(
        pair.hosts[0].log.last(),
        &RecordedIndication::RefreshDue(caller)
    );
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .request(caller, Method::Invite, &MessageContent::sdp(SDP), now)
        .unwrap();
    pair.run(Duration::from_secs(90));
    assert_eq!(
        pair.hosts[0].endpoint.state_of(caller),
        Some(LegState::Confirmed)
    );
    finish(pair, caller);
}

/// The handler could not send its refresh, then the peer refuses it for a time (RFC 3261 section 14.2).
#[test]
fn refresh_by_the_handler_is_repeated() {
    let mut peer = timed();
    peer.allow = String::from("INVITE, ACK, BYE, CANCEL");
    let (mut pair, caller, _) = established_call([timed(), peer]);
    let due = |pair: &Pair| {
        let due = RecordedIndication::RefreshDue(caller);
        pair.hosts[0].log.count(|recorded| *recorded == due)
    };
    pair.run(Duration::from_secs(101));
    assert_eq!(due(&pair), 1);
    let now = pair.now;
    pair.hosts[0].endpoint.refresh_later(caller, now);
    pair.run(Duration::from_secs(3));
    assert_eq!(due(&pair), 2);
    for (status, wait) in [(500, 11), (491, 5)] {
        pair.hosts[1].log.behaviour.respond = Some(status);
        let before = due(&pair);
        let now = pair.now;
        pair.hosts[0]
            .endpoint
            .request(caller, Method::Invite, &MessageContent::sdp(SDP), now)
            .unwrap();
        pair.run(Duration::from_millis(100));
        let refusal = pair.hosts[0].log.texts.last().unwrap().clone();
        let refusal = wire::sip::Message::parse(&refusal).unwrap();
        assert_eq!(refusal.status(), status);
        let now = pair.now;
        pair.hosts[0]
            .endpoint
            .refresh_refused(caller, &refusal, now);
        pair.run(Duration::from_secs(wait));
        assert_eq!(due(&pair), before + 1, "{status}");
    }
    // After other refusals it is not, and the session expires.
    let text = "SIP/2.0 488 No\r\nVia: SIP/2.0/UDP x\r\n\r\n";
    let refusal = wire::sip::Message::parse(text.as_bytes()).unwrap();
    let (before, now) = (due(&pair), pair.now);
    pair.hosts[0]
        .endpoint
        .refresh_refused(caller, &refusal, now);
    pair.run(Duration::from_secs(60));
    assert_eq!(due(&pair), before);
    assert_eq!(pair.hosts[0].endpoint.state_of(caller), None);
    pair.settle();
}

/// RFC 4028 section 7.2: a response without Session-Expires would switch off the timer at the peer only.
#[test]
fn session_timer_continues_after_a_request_without_interval() {
    for (refresher, expected) in [
        ("", "90;refresher=uac"),
        (";refresher=uas", "90;refresher=uas"),
    ] {
        let timer = format!("Supported: timer\r\nSession-Expires: 90{refresher}\r\n");
        let mut called = IncomingCall::with(&timer, EndpointConfig::default());
        called
            .host
            .endpoint
            .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
            .unwrap();
        called.host.drain();
        called.receive("ACK", "a", 10, "", 2);
        for (method, cseq) in [("INVITE", 11), ("UPDATE", 12)] {
            let at = u64::from(cseq) * 1_000;
            let sent = called.receive(
                method,
                &format!("r{cseq}"),
                cseq,
                "Supported: timer\r\n",
                at,
            );
            let ok = sent.iter().find(|text| status(text) == 200);
            let ok = ok.unwrap_or_else(|| panic!("{sent:?}"));
            let agreed = header(ok, HeaderId::SessionExpires);
            assert_eq!(agreed.as_deref(), Some(expected), "{method}");
            if method == "INVITE" {
                called.receive("ACK", "a11", 11, "", at + 10);
            }
        }
        called.receive("BYE", "b", 13, "", 20_000);
        called.end();
    }
    // Without a timer there is none afterwards.
    let mut called = IncomingCall::with("", EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    called.host.drain();
    called.receive("ACK", "a", 10, "", 2);
    let sent = called.receive("UPDATE", "u", 11, "Supported: timer\r\n", 1_000);
    assert_eq!(status(&sent[0]), 200);
    assert_eq!(header(&sent[0], HeaderId::SessionExpires), None);
    called.receive("BYE", "b", 12, "", 2_000);
    called.end();
}

/// A response to `request`.
fn response_to(request: &str, status: u16, extra: &str) -> String {
    let get = |id| header(request, id).unwrap();
    format!(
        "SIP/2.0 {status} X\r\nVia: {}\r\nFrom: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {}\r\n{extra}Content-Length: 0\r\n\r\n",
        get(HeaderId::Via),
        get(HeaderId::From),
        get(HeaderId::To),
        get(HeaderId::CallId),
        get(HeaderId::CSeq),
    )
}

/// Neither refusals nor intervals below the smallest valid one (RFC 4028 section 4) make us refresh all the time.
#[test]
fn refreshes_are_not_repeated_at_once() {
    let updates = |sent: Vec<(Time, Sent)>| -> Vec<String> {
        let texts = sent.into_iter().filter_map(|(_, sent)| match sent {
            Sent::Datagram(_, bytes) => String::from_utf8(bytes).ok(),
            _ => None,
        });
        texts.filter(|text| text.starts_with("UPDATE")).collect()
    };
    // The caller supports no timer, so that it gets no 422 and we refresh.
    let offer = "Session-Expires: 1\r\nAllow: UPDATE\r\n";
    let mut called = IncomingCall::with(offer, EndpointConfig::default());
    called
        .host
        .endpoint
        .answer(called.leg, 200, &MessageContent::sdp(SDP), ms(1))
        .unwrap();
    let answer = called.host.datagrams().remove(0);
    let agreed = header(&answer, HeaderId::SessionExpires);
    assert_eq!(agreed.as_deref(), Some("90;refresher=uas"));
    called.receive("ACK", "a", 10, "", 2);
    // Sent at half of the interval, and again ten seconds after a refusal without a larger Min-SE.
    let mut at = 45_000;
    for (status, extra, wait) in [
        (422, "", 10_000),
        (200, "Session-Expires: 1;refresher=uac\r\n", 45_000),
        (422, "Min-SE: 90\r\n", 10_000),
        (500, "Retry-After: 0\r\n", 1_000),
    ] {
        at += 50;
        let sent = updates(called.host.run(ms(at)));
        assert_eq!(sent.len(), 1, "{at}: {sent:?}");
        let reply = response_to(&sent[0], status, extra);
        called.host.datagram(reply.as_bytes(), PEER, ms(at));
        at += wait;
        let sent = updates(called.host.run(ms(at - 50)));
        assert!(sent.is_empty(), "{status} {extra}: {sent:?}");
    }
    called.receive("BYE", "b", 13, "", at - 50);
    called.end();
}

#[test]
fn response_481_ends_the_dialog() {
    let (mut pair, caller, callee) = plain();
    pair.faults.lost = 1_000;
    let now = pair.now;
    pair.hosts[1]
        .endpoint
        .bye(callee, &MessageContent::default(), now)
        .unwrap();
    pair.run(Duration::from_secs(40));
    assert_eq!(
        pair.hosts[1].log.last(),
        &RecordedIndication::Ended(callee, Ending::Unanswered)
    );
    pair.faults.lost = 0;
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .request(caller, Method::Info, &MessageContent::default(), now)
        .unwrap();
    pair.run(Duration::from_secs(1));
    assert_eq!(
        pair.hosts[0].log.last(),
        &RecordedIndication::Ended(caller, Ending::UnknownDialog)
    );
    pair.settle();
}

#[test]
fn refer_is_followed_by_notify() {
    let (mut pair, caller, callee) = plain();
    pair.hosts[1].log.behaviour.respond = Some(202);
    let edits = [Edit::Add {
        id: HeaderId::ReferTo,
        value: b"<sip:carol@example.com>",
    }];
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .request(
            caller,
            Method::Refer,
            &MessageContent::default().with(&edits),
            now,
        )
        .unwrap();
    pair.run(Duration::from_millis(50));
    let now = pair.now;
    pair.hosts[1]
        .endpoint
        .notify_refer(callee, 200, b"OK", now)
        .unwrap();
    pair.run(Duration::from_millis(50));
    assert!(
        matches!(pair.hosts[0].log.last(), RecordedIndication::Request(_, _, name) if name == "NOTIFY")
    );
    let notify = String::from_utf8(pair.hosts[0].log.texts.last().unwrap().clone()).unwrap();
    assert_eq!(header(&notify, HeaderId::Event).unwrap(), "refer");
    assert_eq!(
        header(&notify, HeaderId::SubscriptionState).unwrap(),
        "terminated;reason=noresource"
    );
    assert!(notify.ends_with("\r\n\r\nSIP/2.0 200 OK\r\n"));
    finish(pair, caller);
}

#[test]
fn edits_of_endpoint_headers_are_refused() {
    let (mut pair, caller, _) = plain();
    let now = pair.now;
    for id in [
        HeaderId::Via,
        HeaderId::CSeq,
        HeaderId::SessionExpires,
        HeaderId::ContentLength,
    ] {
        let edits = [Edit::Replace { id, value: b"x" }];
        assert_eq!(
            pair.hosts[0].endpoint.request(
                caller,
                Method::Info,
                &MessageContent::default().with(&edits),
                now
            ),
            Err(Refused::Edit(id))
        );
    }
    let edits = [Edit::AddNamed {
        name: b"i",
        value: b"x",
    }];
    assert_eq!(
        pair.hosts[0].endpoint.request(
            caller,
            Method::Info,
            &MessageContent::default().with(&edits),
            now
        ),
        Err(Refused::Edit(HeaderId::CallId))
    );
    finish(pair, caller);
}
