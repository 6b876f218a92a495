//! Complete exchanges with handwritten messages: the dialog of RFC 3261 section 24.2 with its names and addresses.

use crate::common;

use common::*;
use engine::{Time, Transport};
use sip::*;
use wire::sip::{Edit, HeaderId};

fn bob() -> Host {
    let mut host = Host::new(
        "192.0.2.4:5060",
        EndpointConfig {
            user_agent: String::new(),
            ..EndpointConfig::default()
        },
        3,
    );
    host.log.behaviour = Behaviour {
        ring: true,
        answer: None,
        ..Behaviour::default()
    };
    host
}

/// F4 of section 24.2 as Bob receives it: two Record-Routes and three Vias.
const F4: &str = "INVITE sip:bob@192.0.2.4 SIP/2.0\r\n\
Via: SIP/2.0/UDP server10.biloxi.com;branch=z9hG4bK4b43c2ff8.1\r\n\
Via: SIP/2.0/UDP bigbox3.site3.atlanta.com;branch=z9hG4bK77ef4c2312983.1;received=192.0.2.2\r\n\
Via: SIP/2.0/UDP pc33.atlanta.com;branch=z9hG4bKnashds8;received=192.0.2.1\r\n\
Record-Route: <sip:server10.biloxi.com;lr>\r\n\
Record-Route: <sip:bigbox3.site3.atlanta.com;lr>\r\n\
Max-Forwards: 68\r\n\
To: Bob <sip:bob@biloxi.com>\r\n\
From: Alice <sip:alice@atlanta.com>;tag=1928301774\r\n\
Call-ID: a84b4c76e66710\r\n\
CSeq: 314159 INVITE\r\n\
Contact: <sip:alice@pc33.atlanta.com>\r\n\
Content-Type: application/sdp\r\n\
Content-Length: 0\r\n\r\n";

#[test]
fn callee_of_section_24_2() {
    let mut bob = bob();
    bob.datagram(F4.as_bytes(), "192.0.2.3:5060", Time::ZERO);
    let RecordedIndication::Offered(leg) = bob.log.indications[0] else {
        panic!()
    };
    let tag = String::from_utf8(bob.endpoint.tags_of(leg).unwrap().0).unwrap();
    let f5 = bob.datagrams().remove(0);
    let head = |status: &str| {
        format!(
            "SIP/2.0 {status}\r\n\
Via: SIP/2.0/UDP server10.biloxi.com;branch=z9hG4bK4b43c2ff8.1;received=192.0.2.3\r\n\
Via: SIP/2.0/UDP bigbox3.site3.atlanta.com;branch=z9hG4bK77ef4c2312983.1;received=192.0.2.2\r\n\
Via: SIP/2.0/UDP pc33.atlanta.com;branch=z9hG4bKnashds8;received=192.0.2.1\r\n\
Record-Route: <sip:server10.biloxi.com;lr>\r\n\
Record-Route: <sip:bigbox3.site3.atlanta.com;lr>\r\n\
From: Alice <sip:alice@atlanta.com>;tag=1928301774\r\n\
Call-ID: a84b4c76e66710\r\n\
CSeq: 314159 INVITE\r\n\
To: Bob <sip:bob@biloxi.com>;tag={tag}\r\n\
Contact: <sip:192.0.2.4:5060>\r\n"
        )
    };
    assert_eq!(f5, head("180 Ringing") + "Content-Length: 0\r\n\r\n");

    bob.endpoint
        .answer(
            leg,
            200,
            &MessageContent::body(b"application/sdp", b"v=0\r\n"),
            Time::from_millis(1),
        )
        .unwrap();
    let f9 = bob.datagrams().remove(0);
    assert_eq!(
        f9,
        head("200 OK")
            + "Allow: INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK, REFER, NOTIFY, MESSAGE\r\n\
Supported: 100rel, timer, replaces\r\n\
Content-Type: application/sdp\r\nContent-Length: 5\r\n\r\nv=0\r\n"
    );

    let ack = format!(
        "ACK sip:bob@192.0.2.4 SIP/2.0\r\n\
Via: SIP/2.0/UDP pc33.atlanta.com;branch=z9hG4bKnashds9\r\n\
Max-Forwards: 70\r\n\
To: Bob <sip:bob@biloxi.com>;tag={tag}\r\n\
From: Alice <sip:alice@atlanta.com>;tag=1928301774\r\n\
Call-ID: a84b4c76e66710\r\nCSeq: 314159 ACK\r\nContent-Length: 0\r\n\r\n"
    );
    bob.datagram(ack.as_bytes(), "192.0.2.1:5060", Time::from_millis(2));
    assert_eq!(bob.log.last(), &RecordedIndication::Acked(leg, Vec::new()));

    bob.endpoint
        .bye(leg, &MessageContent::default(), Time::from_millis(3))
        .unwrap();
    let f13 = bob.drain().remove(0);
    let Sent::Datagram(to, f13) = f13 else {
        panic!()
    };
    // The handler resolves host names in the route set; until then requests are sent to the source of the INVITE.
    assert_eq!(to, "192.0.2.3:5060".parse().unwrap());
    let f13 = String::from_utf8(f13).unwrap();
    let via = header(&f13, HeaderId::Via).unwrap();
    assert_eq!(
        f13,
        format!(
            "BYE sip:alice@pc33.atlanta.com SIP/2.0\r\n\
Via: {via}\r\n\
Route: <sip:server10.biloxi.com;lr>, <sip:bigbox3.site3.atlanta.com;lr>\r\n\
From: Bob <sip:bob@biloxi.com>;tag={tag}\r\n\
To: Alice <sip:alice@atlanta.com>;tag=1928301774\r\n\
Call-ID: a84b4c76e66710\r\n\
CSeq: 1 BYE\r\n\
Max-Forwards: 70\r\n\
Content-Length: 0\r\n\r\n"
        )
    );
    let f14 = format!(
        "SIP/2.0 200 OK\r\nVia: {via}\r\nFrom: Bob <sip:bob@biloxi.com>;tag={tag}\r\n\
To: Alice <sip:alice@atlanta.com>;tag=1928301774\r\nCall-ID: a84b4c76e66710\r\nCSeq: 1 BYE\r\nContent-Length: 0\r\n\r\n"
    );
    bob.datagram(f14.as_bytes(), "192.0.2.3:5060", Time::from_millis(4));
    assert_eq!(
        bob.log.last(),
        &RecordedIndication::Ended(leg, Ending::Local)
    );
}

#[test]
fn caller_of_section_24_2() {
    let mut alice = Host::new(
        "192.0.2.1:5060",
        EndpointConfig {
            user_agent: String::new(),
            ..EndpointConfig::default()
        },
        4,
    );
    let target = Target {
        uri: b"sip:bob@biloxi.com",
        ..Target::new(b"", alice.flow("192.0.2.2:5060"))
    };
    let leg = alice
        .endpoint
        .invite(
            &Invite {
                from: Some(b"Alice <sip:alice@atlanta.com>"),
                to: Some(b"Bob <sip:bob@biloxi.com>"),
                call_id: Some(b"a84b4c76e66710"),
                content: MessageContent::sdp(SDP),
                ..Invite::new(target)
            },
            Time::ZERO,
        )
        .unwrap();
    let f1 = alice.datagrams().remove(0);
    let tag = String::from_utf8(alice.endpoint.tags_of(leg).unwrap().0).unwrap();
    let via = header(&f1, HeaderId::Via).unwrap();
    assert!(
        via.starts_with("SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK"),
        "{via}"
    );
    assert_eq!(
        f1,
        format!(
            "INVITE sip:bob@biloxi.com SIP/2.0\r\n\
Via: {via}\r\n\
From: Alice <sip:alice@atlanta.com>;tag={tag}\r\n\
To: Bob <sip:bob@biloxi.com>\r\n\
Call-ID: a84b4c76e66710\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\n\
Contact: <sip:192.0.2.1:5060>\r\n\
Allow: INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK, REFER, NOTIFY, MESSAGE\r\n\
Supported: 100rel, timer, replaces\r\n\
Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{}",
            SDP.len(),
            String::from_utf8_lossy(SDP)
        )
    );
    let f11 = format!(
        "SIP/2.0 200 OK\r\nVia: {via};received=192.0.2.1\r\n\
Record-Route: <sip:server10.biloxi.com;lr>\r\n\
Record-Route: <sip:bigbox3.site3.atlanta.com;lr>\r\n\
To: Bob <sip:bob@biloxi.com>;tag=a6c85cf\r\n\
From: Alice <sip:alice@atlanta.com>;tag={tag}\r\n\
Call-ID: a84b4c76e66710\r\nCSeq: 1 INVITE\r\n\
Contact: <sip:bob@192.0.2.4>\r\nContent-Type: application/sdp\r\nContent-Length: 0\r\n\r\n"
    );
    alice.datagram(f11.as_bytes(), "192.0.2.2:5060", Time::from_millis(5));
    let f12 = alice.datagrams().remove(0);
    let ack_via = header(&f12, HeaderId::Via).unwrap();
    assert_ne!(ack_via, via);
    assert_eq!(
        f12,
        format!(
            "ACK sip:bob@192.0.2.4 SIP/2.0\r\n\
Via: {ack_via}\r\n\
Route: <sip:bigbox3.site3.atlanta.com;lr>, <sip:server10.biloxi.com;lr>\r\n\
From: Alice <sip:alice@atlanta.com>;tag={tag}\r\n\
To: Bob <sip:bob@biloxi.com>;tag=a6c85cf\r\n\
Call-ID: a84b4c76e66710\r\nCSeq: 1 ACK\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
        )
    );
    // A retransmitted 2xx gets an ACK with the same branch, target and tags.
    alice.datagram(f11.as_bytes(), "192.0.2.2:5060", Time::from_millis(505));
    let again = alice.datagrams().remove(0);
    for id in [
        HeaderId::Via,
        HeaderId::From,
        HeaderId::To,
        HeaderId::CallId,
        HeaderId::CSeq,
    ] {
        assert_eq!(header(&again, id), header(&f12, id));
    }
    assert!(again.starts_with("ACK sip:bob@192.0.2.4 SIP/2.0\r\n"));
    // F13: BYE of Bob.
    let f13 = format!(
        "BYE sip:alice@pc33.atlanta.com SIP/2.0\r\n\
Via: SIP/2.0/UDP 192.0.2.4;branch=z9hG4bKnashds10\r\nMax-Forwards: 70\r\n\
From: Bob <sip:bob@biloxi.com>;tag=a6c85cf\r\nTo: Alice <sip:alice@atlanta.com>;tag={tag}\r\n\
Call-ID: a84b4c76e66710\r\nCSeq: 231 BYE\r\nContent-Length: 0\r\n\r\n"
    );
    alice.datagram(f13.as_bytes(), "192.0.2.4:5060", Time::from_secs(1));
    let f14 = alice.datagrams().remove(0);
    assert_eq!(
        f14,
        format!(
            "SIP/2.0 200 OK\r\n\
Via: SIP/2.0/UDP 192.0.2.4;branch=z9hG4bKnashds10\r\n\
From: Bob <sip:bob@biloxi.com>;tag=a6c85cf\r\n\
Call-ID: a84b4c76e66710\r\nCSeq: 231 BYE\r\nTo: Alice <sip:alice@atlanta.com>;tag={tag}\r\nContent-Length: 0\r\n\r\n"
        )
    );
    assert_eq!(
        alice.log.last(),
        &RecordedIndication::Ended(leg, Ending::Peer)
    );
    assert_eq!(alice.endpoint.census().legs, 0);
    // A retransmitted 2xx after the end of the call is still acknowledged.
    alice.datagram(f11.as_bytes(), "192.0.2.2:5060", Time::from_secs(2));
    assert!(alice.datagrams()[0].starts_with("ACK sip:bob@192.0.2.4 SIP/2.0\r\n"));
}

/// A peer behind NAT gets a repeated ACK at the same destination too, also after the end of the call: its Contact has a
/// private address.
#[test]
fn repeated_ack_is_sent_to_the_same_destination() {
    for pinned in [true, false] {
        let mut alice = Host::new("192.0.2.1:5060", EndpointConfig::default(), 5);
        let nat = "203.0.113.7:40000";
        let target = Target {
            pinned,
            ..Target::new(b"sip:bob@192.168.1.5", alice.flow(nat))
        };
        let invite = Invite {
            content: MessageContent::sdp(SDP),
            ..Invite::new(target)
        };
        let leg = alice.endpoint.invite(&invite, Time::ZERO).unwrap();
        let sent = alice.datagrams().remove(0);
        let named = |id| header(&sent, id).unwrap();
        let answer = format!(
            "SIP/2.0 200 OK\r\nVia: {}\r\nFrom: {}\r\nTo: {};tag=b\r\nCall-ID: {}\r\nCSeq: 1 INVITE\r\n\
Contact: <sip:bob@192.168.1.5:5060>\r\nContent-Length: 0\r\n\r\n",
            named(HeaderId::Via),
            named(HeaderId::From),
            named(HeaderId::To),
            named(HeaderId::CallId),
        );
        let wanted = if pinned { nat } else { "192.168.1.5:5060" };
        let acked = |alice: &mut Host, millis: u64| {
            alice.datagram(answer.as_bytes(), nat, Time::from_millis(millis));
            let sent = alice.drain();
            let ack = sent.iter().find_map(|sent| match sent {
                Sent::Datagram(to, text) if text.starts_with(b"ACK ") => Some(*to),
                _ => None,
            });
            assert_eq!(ack, Some(wanted.parse().unwrap()), "{pinned} {millis}");
        };
        acked(&mut alice, 5);
        acked(&mut alice, 505);
        let now = Time::from_secs(1);
        alice.endpoint.abandon(leg, now);
        alice.drain();
        acked(&mut alice, 1_505);
    }
}

#[test]
fn template_is_copied_except_endpoint_headers() {
    let mut pair = Pair::plain();
    let template = b"INVITE sip:x@y SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bKq\r\nMax-Forwards: 17\r\n\
From: \"A\" <sip:a@x>;tag=old;p=1\r\nTo: <sip:b@x>\r\nCall-ID: old\r\nCSeq: 9 INVITE\r\nContact: <sip:a@10.0.0.1>\r\n\
X-Odd:  spaced ; out\r\nP-Asserted-Identity: <sip:one@x>, <sip:two@x>\r\nSubject: gone\r\n\
Record-Route: <sip:10.0.0.2;lr>\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nabc";
    let template = wire::sip::Message::parse(template).unwrap();
    let edits = [
        Edit::RemoveFirst(HeaderId::PAssertedIdentity),
        Edit::Remove(HeaderId::Subject),
        Edit::Replace {
            id: HeaderId::UserAgent,
            value: b"Other",
        },
        Edit::Replace {
            id: HeaderId::Contact,
            value: b"<sip:token@192.0.2.1:5060>",
        },
    ];
    let target = pair.target(0, Transport::Udp);
    let invite = Invite {
        content: MessageContent::from_template(&template).with(&edits),
        ..Invite::new(target)
    };
    let leg = pair.hosts[0].endpoint.invite(&invite, Time::ZERO).unwrap();
    let text = pair.hosts[0].datagrams().remove(0);
    let tag = String::from_utf8(pair.hosts[0].endpoint.tags_of(leg).unwrap().0).unwrap();
    let via = header(&text, HeaderId::Via).unwrap();
    let call_id = header(&text, HeaderId::CallId).unwrap();
    assert_eq!(
        text,
        format!(
            "INVITE sip:bob@192.0.2.2:5060 SIP/2.0\r\nVia: {via}\r\n\
From: \"A\" <sip:a@x>;p=1;tag={tag}\r\nTo: <sip:b@x>\r\nCall-ID: {call_id}\r\nCSeq: 1 INVITE\r\nMax-Forwards: 16\r\n\
Allow: INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK, REFER, NOTIFY, MESSAGE\r\n\
Supported: 100rel, timer, replaces\r\n\
X-Odd:  spaced ; out\r\nP-Asserted-Identity: <sip:two@x>\r\n\
User-Agent: Other\r\nContact: <sip:token@192.0.2.1:5060>\r\n\
Content-Type: text/plain\r\nContent-Length: 3\r\n\r\nabc"
        )
    );
}
