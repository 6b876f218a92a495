//! Calls that fork behind the border, while the caller has one early dialog: its requests go to the matching early
//! dialog.

use crate::ng_client::{self, World};
use crate::ng_server_rig::port_of;
use crate::virtual_network;

use sip::{LegId, MessageContent};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Message, Method};

/// A proxy behind the border, driven by the test.
const PROXY: &str = "10.2.0.77:5060";

/// A call to the proxy: network, caller, its leg.
fn called() -> (VirtualNetwork, usize, LegId) {
    called_with("", &MessageContent::sdp(SDP_A.as_bytes()))
}

/// The same with these keys of the configuration, and this content of the INVITE.
fn called_with(keys: &str, content: &MessageContent<'_>) -> (VirtualNetwork, usize, LegId) {
    let config = PLAIN.replace("10.2.0.1", "10.2.0.77") + keys;
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, content);
    net.run(Duration::from_millis(100));
    (net, alice, leg)
}

/// The last request with this method at the proxy.
fn asked(net: &VirtualNetwork, method: &str) -> String {
    let requests = net.media.iter().rev().map(|(_, _, bytes)| bytes);
    requests
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .find(|text| text.starts_with(&format!("{method} ")))
        .unwrap_or_else(|| panic!("no {method} came"))
}

/// Sends the proxy's response.
fn reply(net: &mut VirtualNetwork, request: &str, status: &str, tag: &str, more: &str, sdp: &str) {
    let response = response_to(request, status, tag, more, sdp);
    net.send_raw(PROXY, "198.51.100.1:5060", response.as_bytes());
    net.run(Duration::from_millis(200));
}

/// The proxy's response, with a To tag if the request has none.
fn response_to(request: &str, status: &str, tag: &str, more: &str, sdp: &str) -> String {
    let message = Message::parse(request.as_bytes()).unwrap();
    let mut out = format!("SIP/2.0 {status}\r\n");
    for header in message.headers() {
        let to = header.id == HeaderId::To && !request_has_tag(&message);
        match header.id {
            _ if to => {
                let to = String::from_utf8_lossy(header.value);
                out += &format!("To: {to};tag={tag}\r\n");
            }
            HeaderId::Via | HeaderId::From | HeaderId::To | HeaderId::CallId | HeaderId::CSeq => {
                out += &String::from_utf8_lossy(header.raw);
            }
            _ => {}
        }
    }
    out += &format!(
        "Contact: <sip:{tag}@{PROXY}>\r\nAllow: INVITE, ACK, BYE, CANCEL, UPDATE, PRACK\r\n{more}"
    );
    if !sdp.is_empty() {
        out += "Content-Type: application/sdp\r\n";
    }
    out += &format!("Content-Length: {}\r\n\r\n{sdp}", sdp.len());
    out
}

/// A request of the callee in the dialog of our INVITE.
fn request_in(invite: &str, method: &str, tag: &str) -> String {
    let invite = Message::parse(invite.as_bytes()).unwrap();
    let get = |id| String::from_utf8_lossy(invite.header(id).unwrap()).into_owned();
    let (from, to) = (get(HeaderId::To), get(HeaderId::From));
    let call_id = get(HeaderId::CallId);
    format!(
        "{method} sip:198.51.100.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP {PROXY};branch=z9hG4bK{method}\r\n\
         Max-Forwards: 70\r\nFrom: {from};tag={tag}\r\nTo: {to}\r\nCall-ID: {call_id}\r\n\
         CSeq: 1 {method}\r\nContent-Length: 0\r\n\r\n"
    )
}

fn request_has_tag(message: &Message<'_>) -> bool {
    message.to().is_ok_and(|to| to.tag().is_some())
}

const RELIABLE: &str = "Require: 100rel\r\nRSeq: 1\r\n";

#[test]
fn update_goes_to_the_early_dialog_of_the_answer() {
    let (mut net, alice, leg) = called();
    let invite = asked(&net, "INVITE");
    // The first phone only rings, the second one answers the offer reliably, the third one rings, too.
    reply(&mut net, &invite, "180 Ringing", "one", "", "");
    reply(
        &mut net,
        &invite,
        "183 Session Progress",
        "two",
        RELIABLE,
        SDP_B,
    );
    let prack = asked(&net, "PRACK");
    assert!(prack.contains("tag=two\r\n"), "{prack}");
    reply(&mut net, &prack, "200 OK", "two", "", "");
    reply(&mut net, &invite, "180 Ringing", "three", "", "");
    let second = SDP_A.replace("4000", "4444");
    net.command(alice, |endpoint, now| {
        endpoint
            .request(
                leg,
                Method::Update,
                &MessageContent::sdp(second.as_bytes()),
                now,
            )
            .unwrap();
    });
    net.run(Duration::from_millis(100));
    let update = asked(&net, "UPDATE");
    assert!(
        update.starts_with("UPDATE sip:two@10.2.0.77:5060 "),
        "{update}"
    );
    assert!(update.contains("tag=two\r\n"), "{update}");
    reply(&mut net, &update, "200 OK", "two", "", SDP_B);
    let answer = net.last(alice, |event| matches!(event, PhoneEvent::Response(200, _)));
    assert!(
        answer.body().contains("c=IN IP4 192.0.2.1"),
        "{}",
        answer.text()
    );
    // The second phone answers, and the call continues normally.
    reply(&mut net, &invite, "200 OK", "two", "", "");
    assert!(
        net.has(alice, |event| *event == PhoneEvent::Answered),
        "{:?}",
        net.phone_events(alice)
    );
    let info = [Edit::Add {
        id: HeaderId::Subject,
        value: b"after the answer",
    }];
    net.command(alice, |endpoint, now| {
        let content = MessageContent::default().with(&info);
        endpoint.request(leg, Method::Info, &content, now).unwrap();
    });
    net.run(Duration::from_millis(100));
    assert!(asked(&net, "INFO").contains("tag=two\r\n"));
    net.command(alice, |endpoint, now| {
        endpoint
            .hang_up(leg, &MessageContent::default(), now)
            .unwrap()
    });
    net.run(Duration::from_millis(100));
    let bye = asked(&net, "BYE");
    reply(&mut net, &bye, "200 OK", "two", "", "");
    net.assert_quiet();
}

/// Without an answer, the caller's dialog is the early dialog of the last response (which refreshes its target and
/// session).
#[test]
fn update_without_answer_goes_to_the_last_early_dialog() {
    let (mut net, alice, leg) = called();
    let invite = asked(&net, "INVITE");
    for (received, tag) in [("one", "one"), ("two", "two"), ("one", "one")] {
        reply(&mut net, &invite, "180 Ringing", tag, "", "");
        net.command(alice, |endpoint, now| {
            endpoint
                .request(leg, Method::Update, &MessageContent::default(), now)
                .unwrap();
        });
        net.run(Duration::from_millis(100));
        let update = asked(&net, "UPDATE");
        assert!(update.contains(&format!("tag={received}\r\n")), "{update}");
        reply(&mut net, &update, "200 OK", tag, "", "");
        assert!(net.has(alice, |event| matches!(event, PhoneEvent::Response(200, _))));
    }
    net.command(alice, |endpoint, now| {
        endpoint
            .hang_up(leg, &MessageContent::default(), now)
            .unwrap()
    });
    net.run(Duration::from_millis(100));
    let cancel = asked(&net, "CANCEL");
    reply(&mut net, &cancel, "200 OK", "two", "", "");
    reply(&mut net, &invite, "487 Request Terminated", "two", "", "");
    net.run(seconds(1));
    net.assert_quiet();
}

/// A call whose fork `two` has answered reliably: network, caller, its leg, the INVITE at the proxy, and our port for
/// the caller.
fn answered_by_two() -> (VirtualNetwork, usize, LegId, String, String) {
    let (mut net, alice, leg) = called();
    let invite = asked(&net, "INVITE");
    reply(
        &mut net,
        &invite,
        "183 Session Progress",
        "two",
        RELIABLE,
        SDP_B,
    );
    let prack = asked(&net, "PRACK");
    reply(&mut net, &prack, "200 OK", "two", "", "");
    let early = net.find(alice, |event| {
        matches!(event, PhoneEvent::Progressed(183, true, _))
    });
    let body = early.body();
    let port = body.split("m=audio ").nth(1).unwrap();
    let port = format!("192.0.2.1:{}", port.split(' ').next().unwrap());
    (net, alice, leg, invite, port)
}

/// Whether a packet of the caller reaches this address.
fn reaches(net: &mut VirtualNetwork, port: &str, to: &str) -> bool {
    let mut packet = vec![0x80, 0, 0, 0, 0, 0, 0, 160, 1, 2, 3, 4];
    packet.extend([0x55; 160]);
    for sequence in 0..5 {
        packet[3] = sequence;
        net.send_raw("10.1.0.1:4000", port, &packet);
    }
    net.run(Duration::from_millis(100));
    let to = to.parse().unwrap();
    net.media.iter().any(|(there, _, _)| *there == to)
}

fn end(net: &mut VirtualNetwork, alice: usize, leg: LegId, tag: &str) {
    net.command(alice, |endpoint, now| {
        endpoint
            .hang_up(leg, &MessageContent::default(), now)
            .unwrap()
    });
    net.run(Duration::from_millis(100));
    let bye = asked(net, "BYE");
    assert!(bye.contains(&format!("tag={tag}\r\n")), "{bye}");
    reply(net, &bye, "200 OK", tag, "", "");
    net.assert_quiet();
}

/// RFC 3261 section 13.2.2.4: the session is that of the dialog that the 2xx confirms.
#[test]
fn fork_that_is_connected_gets_the_media_although_another_one_answered_before() {
    let (mut net, alice, leg, invite, port) = answered_by_two();
    assert!(reaches(&mut net, &port, "10.2.0.1:5000"));
    let second = SDP_B
        .replace("10.2.0.1", "10.2.0.3")
        .replace("5000", "5003");
    reply(&mut net, &invite, "200 OK", "one", "", &second);
    let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
    assert!(answered.body().is_empty(), "the 183 had the answer");
    assert!(reaches(&mut net, &port, "10.2.0.3:5003"));
    // Both answers have the same formats: no new offer is needed.
    let is_request = |event: &PhoneEvent| matches!(event, PhoneEvent::Request(_));
    assert!(!net.has(alice, is_request));
    end(&mut net, alice, leg, "one");
}

/// The caller has the formats of the first answer.
#[test]
fn connected_fork_with_other_formats_gets_a_new_offer_and_answer() {
    let (mut net, alice, leg, invite, _) = answered_by_two();
    let second = SDP_B
        .replace("10.2.0.1", "10.2.0.3")
        .replace("AVP 0", "AVP 8")
        .replace("rtpmap:0 PCMU", "rtpmap:8 PCMA");
    reply(&mut net, &invite, "200 OK", "one", "", &second);
    let asking = asked(&net, "INVITE");
    assert!(asking.contains("tag=one\r\n"), "{asking}");
    assert!(
        asking.ends_with("\r\n\r\n"),
        "it asks for an offer: {asking}"
    );
    reply(&mut net, &asking, "200 OK", "one", "", &second);
    let offer = net.find(alice, |event| matches!(event, PhoneEvent::Request(_)));
    assert_eq!(offer.method(), "INVITE");
    assert!(offer.body().contains("AVP 8"), "{}", offer.text());
    let ack = asked(&net, "ACK");
    assert!(ack.contains("m=audio "), "the answer is in the ACK: {ack}");
    end(&mut net, alice, leg, "one");
}

#[test]
fn later_answers_of_other_forks_do_not_move_the_media() {
    for reliable in [RELIABLE, ""] {
        let (mut net, alice, leg, invite, port) = answered_by_two();
        let other = SDP_B.replace("10.2.0.1", "10.2.0.3");
        reply(
            &mut net,
            &invite,
            "183 Session Progress",
            "one",
            reliable,
            &other,
        );
        if !reliable.is_empty() {
            let prack = asked(&net, "PRACK");
            assert!(prack.contains("tag=one\r\n"), "{prack}");
            reply(&mut net, &prack, "200 OK", "one", "", "");
        }
        let last = net.last(alice, |event| {
            matches!(event, PhoneEvent::Progressed(183, ..))
        });
        assert!(last.body().is_empty(), "{}", last.text());
        reply(&mut net, &invite, "200 OK", "two", "", SDP_B);
        net.media.clear();
        assert!(reaches(&mut net, &port, "10.2.0.1:5000"));
        let to_other = "10.2.0.3:5000".parse().unwrap();
        assert!(!net.media.iter().any(|(to, _, _)| *to == to_other));
        end(&mut net, alice, leg, "two");
    }
}

/// RFC 3262 section 5: for the callee the answer in a reliable response is final, and its 2xx has none. A caller
/// without `100rel` has an unreliable copy, which is no answer (RFC 3261 section 13.2.1).
#[test]
fn caller_without_100rel_gets_a_reliable_answer_in_the_2xx() {
    for keys in ["", "[[route]]\ntrunk='pbx'\nmedia='bypass'\n"] {
        let plain = [Edit::Remove(HeaderId::Supported)];
        let content = MessageContent::sdp(SDP_A.as_bytes());
        let (mut net, alice, leg) = called_with(keys, &content.with(&plain));
        let invite = asked(&net, "INVITE");
        let other = SDP_B
            .replace("10.2.0.1", "10.2.0.3")
            .replace("5000", "5003");
        // The second fork is not the one that is connected.
        for (tag, sdp) in [("two", SDP_B), ("one", other.as_str())] {
            reply(
                &mut net,
                &invite,
                "183 Session Progress",
                tag,
                RELIABLE,
                sdp,
            );
            let prack = asked(&net, "PRACK");
            assert!(prack.contains(&format!("tag={tag}\r\n")), "{prack}");
            reply(&mut net, &prack, "200 OK", tag, "", "");
        }
        let early = net.find(alice, |event| {
            matches!(event, PhoneEvent::Progressed(183, false, _))
        });
        let early = early.body();
        reply(&mut net, &invite, "200 OK", "two", "", "");
        let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
        assert_eq!(answered.body(), early, "{}", answered.text());
        assert_eq!(answered.header("Content-Type"), "application/sdp");
        if keys.is_empty() {
            let port = early.split("m=audio ").nth(1).unwrap();
            let port = format!("192.0.2.1:{}", port.split(' ').next().unwrap());
            net.media.clear();
            assert!(reaches(&mut net, &port, "10.2.0.1:5000"));
        }
        end(&mut net, alice, leg, "two");
    }
}

/// The same with media nodes: the node has the answer of the other fork when the 2xx comes.
#[test]
fn node_gets_the_reliable_answer_that_the_2xx_confirms() {
    let config = ng_client::config("").replace("10.2.0.1:", "10.2.0.77:");
    let mut world = World::new(&config);
    let alice = world.alice;
    let plain = [Edit::Remove(HeaderId::Supported)];
    let content = MessageContent::sdp(SDP_A.as_bytes());
    let net = &mut world.net;
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &content.with(&plain));
    net.run(Duration::from_millis(200));
    let invite = asked(net, "INVITE");
    let other = SDP_B
        .replace("10.2.0.1", "10.2.0.3")
        .replace("5000", "5003");
    for (tag, sdp) in [("two", SDP_B), ("one", other.as_str())] {
        reply(net, &invite, "183 Session Progress", tag, RELIABLE, sdp);
        let prack = asked(net, "PRACK");
        assert!(prack.contains(&format!("tag={tag}\r\n")), "{prack}");
        reply(net, &prack, "200 OK", tag, "", "");
    }
    reply(net, &invite, "200 OK", "two", "", "");
    let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
    let body = answered.body();
    assert!(body.contains("192.0.2.101"), "{}", answered.text());
    let port = format!("192.0.2.101:{}", port_of(&body));
    net.media.clear();
    assert!(reaches(net, &port, "10.2.0.1:5000"));
    end(net, alice, leg, "two");
    world.assert_quiet();
}

/// RFC 3262 section 3: without a description in its reliable response, the callee need not wait for the PRACK. The
/// caller gets the 2xx after its PRACK; until then its early dialog takes requests of the callee.
#[test]
fn answer_may_precede_the_prack() {
    let (mut net, alice, leg) = called();
    let invite = asked(&net, "INVITE");
    for message in [
        response_to(&invite, "180 Ringing", "two", RELIABLE, ""),
        response_to(&invite, "200 OK", "two", "", SDP_B),
        request_in(&invite, "INFO", "two"),
    ] {
        net.send_raw(PROXY, "198.51.100.1:5060", message.as_bytes());
    }
    net.run(seconds(1));
    let events = net.phone_events(alice);
    let has = |which: &dyn Fn(&PhoneEvent) -> bool| events.iter().any(which);
    assert!(
        has(&|event| matches!(event, PhoneEvent::Response(200, _))),
        "{events:?}"
    );
    assert!(
        !has(&|event| matches!(event, PhoneEvent::Response(300.., _))),
        "{events:?}"
    );
    assert!(has(&|event| *event == PhoneEvent::Answered), "{events:?}");
    assert!(
        has(&|event| matches!(event, PhoneEvent::Request(_))),
        "{events:?}"
    );
    let is_accepted = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.starts_with("SIP/2.0 200 ") && text.contains("CSeq: 1 INFO\r\n")
    };
    assert!(net.media.iter().any(|(_, _, bytes)| is_accepted(bytes)));
    end(&mut net, alice, leg, "two");
}
