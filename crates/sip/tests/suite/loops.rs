//! Elements that forward requests: Max-Forwards, loops and spirals, merged requests.

use crate::common::*;

use engine::Time;
use sip::*;
use wire::sip::{Message, Method};

const PEER: &str = "192.0.2.9:5060";

fn host(forwards: bool) -> Host {
    let config = EndpointConfig {
        forwards,
        ..EndpointConfig::default()
    };
    Host::new("192.0.2.1:5060", config, 21)
}

fn request(method: &str, user: &str, branch: &str) -> String {
    format!(
        "{method} sip:{user}@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP {PEER};branch=z9hG4bK{branch}\r\n\
         Max-Forwards: 70\r\nFrom: <sip:b@x>;tag=1\r\nTo: <sip:{user}@x>\r\nCall-ID: o\r\n\
         CSeq: 1 {method}\r\nContact: <sip:b@{PEER}>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// The only message that was sent.
fn only(host: &mut Host) -> String {
    let mut sent = host.datagrams();
    assert_eq!(sent.len(), 1, "{sent:?}");
    sent.remove(0)
}

#[test]
fn max_forwards_of_zero_is_refused() {
    let mut host = host(true);
    let none = request("MESSAGE", "a", "a").replace("Max-Forwards: 70", "Max-Forwards: 0");
    host.datagram(none.as_bytes(), PEER, Time::ZERO);
    assert!(only(&mut host).starts_with("SIP/2.0 483 "));
    assert!(host.log.indications.is_empty());
}

/// RFC 3261 section 16.3 item 4: it may be a spiral, which the handler distinguishes from a loop.
#[test]
fn returned_request_is_recognised_and_indicated() {
    let mut host = host(true);
    let target = Target::new(b"sip:x@192.0.2.9", host.flow(PEER));
    let ours = OutOfDialogRequest {
        user: 7,
        ..OutOfDialogRequest::new(Method::Message, target)
    };
    host.endpoint.send(&ours, Time::ZERO).unwrap();
    let ours = only(&mut host);
    // A proxy adds its Via, and parameters to ours.
    let back = ours
        .replace(";branch=", ";received=192.0.2.1;branch=")
        .replacen(
            "Via: ",
            "Via: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bKproxy\r\nVia: ",
            1,
        );
    let earlier = |host: &Host, text: &str| {
        let message = Message::parse(text.as_bytes()).unwrap();
        host.endpoint.earlier_request(&message)
    };
    assert_eq!(
        earlier(&host, &back),
        Some(EarlierRequest::OutOfDialog(7)),
        "{back}"
    );
    let guessed = back.replace("192.0.2.1;branch=z9hG4bK", "192.0.2.1;branch=z9hG4bK0");
    assert_ne!(guessed, back);
    assert_eq!(earlier(&host, &guessed), None);
    host.datagram(back.as_bytes(), PEER, Time::ZERO);
    assert!(only(&mut host).starts_with("SIP/2.0 200 "));
    assert_eq!(host.log.indications.len(), 1);
}

/// RFC 3261 section 8.2.2.2. Behind an element that forwards requests are several user agents, to which a proxy in
/// front of it may fork.
#[test]
fn merged_invite_gets_482_while_the_first_is_pending() {
    for forwards in [false, true] {
        let mut host = host(forwards);
        host.log.behaviour.answer = None;
        host.log.behaviour.ring = false;
        for branch in ["a", "b"] {
            let invite = request("INVITE", "a", branch);
            host.datagram(invite.as_bytes(), PEER, Time::ZERO);
        }
        assert!(only(&mut host).starts_with("SIP/2.0 482 "));
        assert_eq!(host.log.indications.len(), 1);
        // CANCEL with another branch, which some clients send, is for the INVITE of the same Request-URI.
        let other = request("INVITE", "c", "c");
        host.datagram(other.as_bytes(), PEER, Time::ZERO);
        let refused = host.datagrams();
        assert_eq!(refused.len(), usize::from(!forwards), "{refused:?}");
        assert_eq!(host.log.indications.len(), 1 + usize::from(forwards));
        let cancel = request("CANCEL", "a", "d");
        host.datagram(cancel.as_bytes(), PEER, Time::ZERO);
        assert!(matches!(host.log.last(), RecordedIndication::Cancelled(_)));
        assert_eq!(host.log.indications.len(), 2 + usize::from(forwards));
    }
}
