//! Requests within dialogs that cannot be sent: the transport has failed (RFC 3261 section 8.1.3.1), and the peer may
//! be reached again a moment later.

use crate::common::*;

use engine::{Input, SocketId, Time, Transport};
use sip::*;
use std::time::Duration;
use wire::sip::{HeaderId, Method};

const PEER: &str = "192.0.2.9:5060";

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// A request of the peer in its dialog with `to`.
fn request(method: &str, cseq: u32, to: &str) -> String {
    format!(
        "{method} sip:a@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP {PEER};branch=z9hG4bK{method}{cseq}\r\n\
         Max-Forwards: 70\r\nFrom: <sip:b@x>;tag=1\r\nTo: {to}\r\nCall-ID: c\r\nCSeq: {cseq} {method}\r\n\
         Contact: <sip:b@{PEER}>\r\nAllow: UPDATE\r\nSession-Expires: 90\r\nContent-Length: 0\r\n\r\n"
    )
}

/// An incoming call that we refresh by UPDATE after 45 s, and the peer's To.
fn called() -> (Host, LegId, String) {
    let mut host = Host::new("192.0.2.1:5060", EndpointConfig::default(), 23);
    let invite = request("INVITE", 1, "<sip:a@x>");
    host.datagram(invite.as_bytes(), PEER, ms(0));
    let ok = host.datagrams().pop().unwrap();
    assert!(ok.starts_with("SIP/2.0 200 "), "{ok}");
    let to = header(&ok, HeaderId::To).unwrap();
    let ack = request("ACK", 1, &to);
    host.datagram(ack.as_bytes(), PEER, ms(10));
    let RecordedIndication::Offered(leg) = host.log.indications[0] else {
        panic!("{:?}", host.log.indications)
    };
    (host, leg, to)
}

/// An ICMP error for this datagram of ours.
fn unreachable(host: &mut Host, quoted: &str, now: Time) {
    let input = Input::Unreachable {
        socket: SocketId(1),
        destination: PEER.parse().unwrap(),
        bytes: quoted.as_bytes(),
    };
    host.feed(input, now);
}

/// The datagrams of this method that are sent up to `until`.
fn sent(host: &mut Host, method: &str, until: Time) -> Vec<String> {
    let texts = host
        .run(until)
        .into_iter()
        .filter_map(|(_, sent)| match sent {
            Sent::Datagram(_, bytes) => String::from_utf8(bytes).ok(),
            _ => None,
        });
    texts.filter(|text| text.starts_with(method)).collect()
}

#[test]
fn unreachable_peer_does_not_end_a_dialog_but_a_silent_one_does() {
    let (mut host, leg, to) = called();
    for (at, method) in [
        (100, Method::Info),
        (200, Method::Update),
        (300, Method::Invite),
    ] {
        let content = MessageContent::sdp(SDP);
        let request = host.endpoint.request(leg, method, &content, ms(at));
        let text = host.datagrams().remove(0);
        unreachable(&mut host, &text, ms(at + 5));
        assert_eq!(
            host.log.last(),
            &RecordedIndication::TimedOut(leg, request.unwrap())
        );
        assert_eq!(host.endpoint.state_of(leg), Some(LegState::Confirmed));
        assert!(host.datagrams().is_empty(), "no BYE after {method}");
    }
    // The dialog can be used in both directions.
    host.datagram(request("INFO", 2, &to).as_bytes(), PEER, ms(400));
    assert!(host.datagrams()[0].starts_with("SIP/2.0 200 "));
    let info = host
        .endpoint
        .request(leg, Method::Info, &MessageContent::default(), ms(500));
    info.unwrap();
    host.run(ms(33_000));
    assert_eq!(
        host.log.last(),
        &RecordedIndication::Ended(leg, Ending::UnknownDialog)
    );
    host.run(ms(100_000));
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn refresh_that_could_not_be_sent_is_repeated() {
    let (mut host, leg, to) = called();
    let first = sent(&mut host, "UPDATE", ms(45_050));
    assert_eq!(first.len(), 1, "{first:?}");
    unreachable(&mut host, &first[0], ms(45_060));
    assert!(sent(&mut host, "", ms(55_000)).is_empty());
    let second = sent(&mut host, "UPDATE", ms(55_100));
    assert_eq!(second.len(), 1, "{second:?}");
    let get = |id| header(&second[0], id).unwrap();
    let ok = format!(
        "SIP/2.0 200 OK\r\nVia: {}\r\nFrom: {}\r\nTo: {}\r\nCall-ID: c\r\nCSeq: {}\r\n\
         Session-Expires: 90;refresher=uac\r\nContent-Length: 0\r\n\r\n",
        get(HeaderId::Via),
        get(HeaderId::From),
        get(HeaderId::To),
        get(HeaderId::CSeq),
    );
    host.datagram(ok.as_bytes(), PEER, ms(55_110));
    let third = sent(&mut host, "UPDATE", ms(100_200));
    assert_eq!(third.len(), 1, "the next refresh: {third:?}");
    assert_eq!(host.endpoint.state_of(leg), Some(LegState::Confirmed));
    host.datagram(request("BYE", 2, &to).as_bytes(), PEER, ms(100_300));
    host.run(ms(250_000));
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn dialog_outlives_its_connection() {
    let mut pair = Pair::plain();
    let caller = pair.call(0, Transport::Tcp);
    pair.run(Duration::from_millis(200));
    let info = |pair: &mut Pair| {
        let now = pair.now;
        let content = MessageContent::default();
        let sent = pair.hosts[0]
            .endpoint
            .request(caller, Method::Info, &content, now);
        sent.unwrap()
    };
    let lost = info(&mut pair);
    pair.break_connections();
    pair.run(Duration::from_secs(1));
    let log = &pair.hosts[0].log.indications;
    assert!(
        log.contains(&RecordedIndication::TimedOut(caller, lost)),
        "{log:?}"
    );
    let answered = info(&mut pair);
    pair.run(Duration::from_secs(1));
    assert_eq!(
        pair.hosts[0].log.last(),
        &RecordedIndication::Response(caller, answered, 200, "INFO".to_owned()),
        "over a new connection"
    );
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .bye(caller, &MessageContent::default(), now)
        .unwrap();
    pair.settle();
}

/// Without the repetition the peer would stay in a call that has ended here.
#[test]
fn bye_is_repeated_once_over_a_new_connection() {
    for (breaks, ending) in [(1, Ending::Local), (2, Ending::Unanswered)] {
        let mut pair = Pair::plain();
        let caller = pair.call(0, Transport::Tcp);
        pair.run(Duration::from_millis(200));
        let now = pair.now;
        pair.hosts[0]
            .endpoint
            .bye(caller, &MessageContent::default(), now)
            .unwrap();
        for _ in 0..breaks {
            pair.break_connections();
            let delay = pair.delay;
            pair.run(delay);
        }
        pair.run(Duration::from_secs(1));
        let log = &pair.hosts[0].log.indications;
        let ended = RecordedIndication::Ended(caller, ending);
        assert!(log.contains(&ended), "{breaks}: {log:?}");
        let peer = pair.hosts[1].log.indications.iter();
        let ended =
            |seen: &&RecordedIndication| matches!(seen, RecordedIndication::Ended(_, Ending::Peer));
        assert_eq!(peer.filter(ended).count(), 1, "{breaks}");
        pair.settle();
    }
}
