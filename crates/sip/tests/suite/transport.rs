//! Transport: destinations of responses, stream framing, limits, malformed messages, keep-alives.

use crate::common;

use common::*;
use engine::{ConnectionId, DropReason, Input, Limits, SocketId, Time, Transport};
use sip::*;
use std::time::Duration;
use wire::sip::{HeaderId, Method};

fn host(config: EndpointConfig) -> Host {
    Host::new("192.0.2.1:5060", config, 21)
}

fn options(via: &str, extra: &str) -> Vec<u8> {
    format!(
        "OPTIONS sip:a@192.0.2.1 SIP/2.0\r\nVia: {via}\r\nMax-Forwards: 70\r\nFrom: <sip:b@x>;tag=1\r\nTo: <sip:a@x>\r\n\
         Call-ID: o\r\nCSeq: 1 OPTIONS\r\n{extra}\r\n"
    )
    .into_bytes()
}

fn only(host: &mut Host) -> (std::net::SocketAddr, String) {
    let mut sent = host.drain();
    assert_eq!(sent.len(), 1, "{sent:?}");
    match sent.remove(0) {
        Sent::Datagram(to, bytes) => (to, String::from_utf8(bytes).unwrap()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn udp_response_destination_follows_rfc_3261_and_rfc_3581() {
    let source = "192.0.2.9:6000";
    for (via, expected) in [
        (
            "SIP/2.0/UDP 10.1.1.1:5070;branch=z9hG4bKa",
            "192.0.2.9:5070",
        ),
        ("SIP/2.0/UDP 10.1.1.1;branch=z9hG4bKb", "192.0.2.9:5060"),
        (
            "SIP/2.0/UDP 10.1.1.1:5070;branch=z9hG4bKc;rport",
            "192.0.2.9:6000",
        ),
        (
            "SIP/2.0/UDP 10.1.1.1:5070;branch=z9hG4bKd;maddr=224.2.0.1",
            "224.2.0.1:5070",
        ),
        (
            "SIP/2.0/UDP 10.1.1.1:5070;branch=z9hG4bKe;maddr=198.51.100.1",
            "192.0.2.9:5070",
        ),
    ] {
        let mut host = host(EndpointConfig::default());
        host.datagram(&options(via, ""), source, Time::ZERO);
        let (to, text) = only(&mut host);
        assert_eq!(to, expected.parse().unwrap(), "{via}");
        assert!(
            header(&text, HeaderId::Via)
                .unwrap()
                .contains(";received=192.0.2.9")
        );
    }
    let mut host = host(EndpointConfig {
        symmetric_responses: true,
        ..EndpointConfig::default()
    });
    host.datagram(
        &options("SIP/2.0/UDP 10.1.1.1:5070;branch=z9hG4bKf", ""),
        source,
        Time::ZERO,
    );
    assert_eq!(only(&mut host).0, source.parse().unwrap());
    // Our own requests have rport.
    let target = Target::new(b"sip:x@192.0.2.9", host.flow(source));
    host.endpoint
        .send(
            &OutOfDialogRequest::new(Method::Options, target),
            Time::ZERO,
        )
        .unwrap();
    let via = header(&only(&mut host).1, HeaderId::Via).unwrap();
    assert!(via.ends_with(";rport"), "{via}");
}

/// With symmetric responses only a peer behind NAT is reached at its source port: a gateway without NAT may send from
/// another port than the one that it listens at.
#[test]
fn symmetric_responses_go_to_sources_behind_nat_only() {
    let source = "192.0.2.50:51234";
    let (by_rfc, symmetric) = ("192.0.2.50:5060", source);
    for (sent_by, nat_expected, expected) in [
        ("192.0.2.50:5060", true, by_rfc),
        ("192.0.2.50", false, by_rfc),
        ("192.0.2.50:5060;rport", true, symmetric),
        ("10.0.0.9:5060", true, symmetric),
        ("10.0.0.9:5060", false, symmetric),
        ("phone.example:5060", true, symmetric),
        ("gateway.example:5060", false, by_rfc),
    ] {
        let mut host = host(EndpointConfig {
            symmetric_responses: true,
            ..EndpointConfig::default()
        });
        let local = host.flow(source).local;
        host.endpoint.set_nat_expected(local, nat_expected);
        let (sent_by, rport) = match sent_by.split_once(';') {
            Some((sent_by, _)) => (sent_by, ";rport"),
            None => (sent_by, ""),
        };
        let via = format!("SIP/2.0/UDP {sent_by};branch=z9hG4bKg{rport}");
        host.datagram(&options(&via, ""), source, Time::ZERO);
        assert_eq!(only(&mut host).0, expected.parse().unwrap(), "{via}");
    }
}

#[test]
fn icmp_error_fails_only_the_matching_transaction() {
    let mut host = host(EndpointConfig::default());
    let peer = "192.0.2.9:5060";
    let target = Target::new(b"sip:x@192.0.2.9", host.flow(peer));
    let leg = host
        .endpoint
        .invite(&Invite::new(target), Time::ZERO)
        .unwrap();
    let (_, invite) = only(&mut host);
    let quote = |host: &mut Host, bytes: &[u8], to: &str, socket: SocketId, at: u64| {
        let input = Input::Unreachable {
            socket,
            destination: to.parse().unwrap(),
            bytes,
        };
        host.feed(input, Time::from_millis(at));
    };
    let socket = SocketId(1);
    let via = invite.find("branch=").unwrap() + 40;
    // Forged: another destination, another socket, no branch, half a branch, the branch of another transaction.
    let other = invite.replace("branch=z9hG4bK0", "branch=z9hG4bK1");
    quote(&mut host, invite.as_bytes(), "192.0.2.8:5060", socket, 1);
    quote(&mut host, invite.as_bytes(), peer, SocketId(77), 1);
    quote(&mut host, &invite.as_bytes()[..20], peer, socket, 1);
    quote(&mut host, &invite.as_bytes()[..via - 20], peer, socket, 1);
    quote(&mut host, other.as_bytes(), peer, socket, 1);
    assert_eq!(host.endpoint.state_of(leg), Some(LegState::Calling));
    let stray = |host: &Host| host.endpoint.drops().get(DropReason::SipUnmatchedIcmp);
    assert_eq!(stray(&host), 5);
    // Genuine, and truncated after the branch.
    quote(&mut host, &invite.as_bytes()[..via], peer, socket, 1);
    assert_eq!(host.endpoint.state_of(leg), None);
    assert!(matches!(
        host.log.last(),
        RecordedIndication::Failed(_, Failure::Transport, _)
    ));
    // A peer that has answered is reachable, so an ICMP error is ignored.
    let target = Target::new(b"sip:x@192.0.2.9", host.flow(peer));
    let leg = host
        .endpoint
        .invite(&Invite::new(target), Time::from_millis(10))
        .unwrap();
    let (_, invite) = only(&mut host);
    let trying = invite.replace("INVITE sip:x@192.0.2.9 SIP/2.0", "SIP/2.0 100 Trying");
    host.datagram(trying.as_bytes(), peer, Time::from_millis(11));
    quote(&mut host, invite.as_bytes(), peer, socket, 12);
    assert_eq!(host.endpoint.state_of(leg), Some(LegState::Calling));
    // An out-of-dialog request fails in the same way.
    let target = Target::new(b"sip:x@192.0.2.9", host.flow(peer));
    host.endpoint
        .send(
            &OutOfDialogRequest::new(Method::Options, target),
            Time::from_millis(20),
        )
        .unwrap();
    let (_, options) = only(&mut host);
    quote(&mut host, options.as_bytes(), peer, socket, 21);
    assert!(matches!(
        host.log.last(),
        RecordedIndication::OutOfDialogTimedOut(..)
    ));
}

#[test]
fn stream_without_pong_is_closed() {
    for answers in [true, false] {
        let mut host = host(EndpointConfig::default());
        let local = host.endpoint.add_listener(ListenerConfig {
            name: String::from("x"),
            socket: SocketId(2),
            transport: Transport::Tcp,
            address: "192.0.2.1:5060".parse().unwrap(),
            advertised: String::new(),
        });
        let flow = Flow {
            local,
            transport: Transport::Tcp,
            remote: "192.0.2.9:5060".parse().unwrap(),
            connection: None,
        };
        let gone = host.endpoint.keep_alive(flow, Time::ZERO);
        assert_eq!(gone, Err(Refused::Gone), "no connection is opened for it");
        let target = Target::new(b"sip:x@192.0.2.9", flow);
        let options = OutOfDialogRequest::new(Method::Options, target);
        host.endpoint.send(&options, Time::ZERO).unwrap();
        host.drain();
        let connection = ConnectionId(1);
        host.endpoint
            .keep_alive(flow, Time::from_millis(10))
            .unwrap();
        let sent = host.drain();
        assert!(
            matches!(&sent[..], [Sent::Stream(id, bytes)] if *id == connection && bytes == b"\r\n\r\n"),
            "{sent:?}"
        );
        if answers {
            let bytes = b"\r\n";
            host.feed(Input::Stream { connection, bytes }, Time::from_millis(500));
        }
        host.run(Time::from_secs(20));
        let closed = host
            .log
            .count(|recorded| matches!(recorded, RecordedIndication::FlowFailed));
        assert_eq!(closed, usize::from(!answers));
        assert_eq!(host.endpoint.census().connections, usize::from(answers));
    }
}

#[test]
fn udp_flow_fails_without_answer_or_with_changed_address() {
    let peer = "192.0.2.9:5060";
    let mut host = host(EndpointConfig::default());
    let flow = host.flow(peer);
    let failed = |host: &Host| {
        host.log
            .count(|recorded| matches!(recorded, RecordedIndication::FlowFailed))
    };
    let answer = |host: &mut Host, from: &str, seen: &str, at: u64| {
        let request = match &host.drain()[..] {
            [Sent::Datagram(_, bytes)] => bytes.clone(),
            other => panic!("{other:?}"),
        };
        let mut answer = Vec::new();
        assert!(wire::stun::write_binding_response(
            &request,
            seen.parse().unwrap(),
            &mut answer
        ));
        host.datagram(&answer, from, Time::from_millis(at));
    };
    host.endpoint.keep_alive(flow, Time::ZERO).unwrap();
    host.endpoint.keep_alive(flow, Time::ZERO).unwrap();
    answer(&mut host, peer, "203.0.113.1:4000", 10);
    assert!(host.run(Time::from_secs(60)).is_empty(), "it is answered");
    // The answer to another request is ignored.
    let now = Time::from_secs(60);
    host.endpoint.keep_alive(flow, now).unwrap();
    answer(&mut host, "192.0.2.8:5060", "203.0.113.9:4000", 60_010);
    assert_eq!(failed(&host), 0);
    let sent = host.run(Time::from_secs(99));
    assert_eq!(sent.len(), 6, "seven in total");
    assert_eq!(failed(&host), 0);
    host.run(Time::from_secs(100));
    assert_eq!(failed(&host), 1, "no answer");
    // Another mapped address than before.
    for (seen, at, count) in [("203.0.113.1:4000", 101, 1), ("203.0.113.1:4001", 102, 2)] {
        let now = Time::from_secs(at);
        host.endpoint.keep_alive(flow, now).unwrap();
        answer(&mut host, peer, seen, at * 1_000 + 5);
        assert_eq!(failed(&host), count);
    }
    host.endpoint
        .keep_alive(flow, Time::from_secs(103))
        .unwrap();
    host.endpoint.stop_keep_alive(flow);
    host.drain();
    assert!(host.run(Time::from_secs(200)).is_empty());
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn closed_listener_serves_only_existing_dialogs() {
    let mut host = host(EndpointConfig::default());
    let peer = "192.0.2.9:5060";
    let local = host.flow(peer).local;
    host.log.behaviour.answer = None;
    let invite = |branch: &str, tag: &str, method: &str| {
        format!(
            "{method} sip:a@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK{branch}\r\nMax-Forwards: 70\r\n\
             From: <sip:b@x>;tag=1\r\nTo: <sip:a@x>{tag}\r\nCall-ID: {branch}\r\nCSeq: 1 {method}\r\n\
             Contact: <sip:b@192.0.2.9>\r\nContent-Length: 0\r\n\r\n"
        )
    };
    host.datagram(invite("a", "", "INVITE").as_bytes(), peer, Time::ZERO);
    assert!(!host.drain().is_empty());
    host.endpoint.set_closed(local, true);
    let via = "SIP/2.0/UDP 192.0.2.9;branch=z9hG4bKo";
    let malformed = String::from_utf8(options(via, "")).unwrap();
    let malformed = malformed.replace("Call-ID: o\r\n", "");
    let stun = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[7; 12]].concat();
    for stranger in [
        options(via, ""),
        malformed.into_bytes(),
        invite("b", "", "INVITE").into_bytes(),
        invite("b", ";tag=zz", "BYE").into_bytes(),
        invite("b", "", "CANCEL").into_bytes(),
        stun.clone(),
    ] {
        host.datagram(&stranger, peer, Time::from_millis(1));
        let text = String::from_utf8_lossy(&stranger);
        assert!(host.drain().is_empty(), "answered: {text}");
    }
    assert_eq!(host.endpoint.drops().get(DropReason::SipListenerClosed), 6);
    // The pending call can be cancelled.
    host.datagram(
        invite("a", "", "CANCEL").as_bytes(),
        peer,
        Time::from_millis(2),
    );
    assert_eq!(host.drain().len(), 2, "200 and 487");
    host.endpoint.set_closed(local, false);
    host.datagram(&options(via, ""), peer, Time::from_millis(3));
    host.datagram(&stun, peer, Time::from_millis(3));
    assert_eq!(host.drain().len(), 2);
}

#[test]
fn malformed_requests_are_answered_statelessly_except_ack() {
    let mut host = host(EndpointConfig::default());
    let good = String::from_utf8(options("SIP/2.0/UDP 192.0.2.9;branch=z9hG4bKa", "")).unwrap();
    for (bad, status) in [
        (good.replace("Call-ID: o\r\n", ""), 400),
        (good.replace("1 OPTIONS", "1 INFO"), 400),
        (good.replace("SIP/2.0\r\nVia", "SIP/3.0\r\nVia"), 505),
        (
            good.replace("OPTIONS sip:a@192.0.2.1", "OPTIONS http:x"),
            416,
        ),
        (
            good.replace("\r\n\r\n", "\r\nContent-Length: 99\r\n\r\nshort"),
            400,
        ),
    ] {
        host.datagram(bad.as_bytes(), "192.0.2.9:5060", Time::ZERO);
        let (_, text) = only(&mut host);
        assert!(
            text.starts_with(&format!("SIP/2.0 {status} ")),
            "{bad} {text}"
        );
        host.datagram(bad.as_bytes(), "192.0.2.9:5060", Time::ZERO);
        assert_eq!(
            only(&mut host).1,
            text,
            "the same answer to the same request"
        );
    }
    let ack = good.replace("OPTIONS", "ACK").replace("Call-ID: o\r\n", "");
    host.datagram(ack.as_bytes(), "192.0.2.9:5060", Time::ZERO);
    assert!(host.drain().is_empty());
    assert_eq!(host.endpoint.drops().get(DropReason::SipMalformedAck), 1);
    let response = good
        .replace("OPTIONS sip:a@192.0.2.1 SIP/2.0", "SIP/2.0 200 OK")
        .replace("Call-ID: o\r\n", "");
    host.datagram(response.as_bytes(), "192.0.2.9:5060", Time::ZERO);
    assert_eq!(
        host.endpoint.drops().get(DropReason::SipMalformedResponse),
        1
    );
    for bytes in [&b"\r\n\r\n"[..], b"", b"\0\0\0\0"] {
        host.datagram(bytes, "192.0.2.9:5060", Time::ZERO);
    }
    assert_eq!(host.endpoint.drops().get(DropReason::SipKeepAlive), 3);
    host.datagram(b"hello", "192.0.2.9:5060", Time::ZERO);
    assert_eq!(host.endpoint.drops().get(DropReason::SipUnparsable), 1);
    assert!(host.drain().is_empty() && host.endpoint.census().is_quiet());
}

fn accept(host: &mut Host, number: u64, remote: &str) -> ConnectionId {
    let connection = ConnectionId(ConnectionId::ACCEPTED | number);
    let local = host.address;
    host.feed(
        Input::Accepted {
            connection,
            socket: SocketId(2),
            local,
            remote: remote.parse().unwrap(),
        },
        Time::ZERO,
    );
    connection
}

fn stream(host: &mut Host, connection: ConnectionId, bytes: &[u8]) -> Vec<Sent> {
    host.feed(Input::Stream { connection, bytes }, Time::ZERO);
    host.drain()
}

#[test]
fn stream_segmentation_does_not_change_responses() {
    let request = options(
        "SIP/2.0/TCP 192.0.2.9;branch=z9hG4bKa",
        "Content-Length: 0\r\n",
    );
    let second = options(
        "SIP/2.0/TCP 192.0.2.9;branch=z9hG4bKb",
        "Content-Length: 0\r\n",
    );
    let all = [&b"\r\n\r\n"[..], &request, b"\r\n", &second, b"\r\n\r\n"].concat();
    for piece in [1, 7, 100, all.len()] {
        let mut host = host(EndpointConfig::default());
        let connection = accept(&mut host, 1, "192.0.2.9:41000");
        let mut sent = Vec::new();
        for bytes in all.chunks(piece) {
            sent.extend(stream(&mut host, connection, bytes));
        }
        let texts: Vec<String> = sent
            .into_iter()
            .map(|sent| match sent {
                Sent::Stream(id, bytes) if id == connection => String::from_utf8(bytes).unwrap(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(
            texts
                .iter()
                .filter(|t| t.starts_with("SIP/2.0 200 "))
                .count()
                == 2,
            "{piece}: {texts:?}"
        );
        if piece == all.len() {
            assert_eq!(
                texts.iter().filter(|t| *t == "\r\n").count(),
                1,
                "pings of one read get one pong (RFC 5626)"
            );
        }
        assert_eq!(
            host.endpoint.census().servers,
            0,
            "Timer J is zero on streams"
        );
    }
}

#[test]
fn broken_stream_is_closed_and_its_transactions_fail() {
    let mut host = host(EndpointConfig::default());
    let flow = Flow {
        local: host.tcp,
        transport: Transport::Tcp,
        remote: "192.0.2.9:5060".parse().unwrap(),
        connection: None,
    };
    let target = Target::new(b"sip:b@192.0.2.9;transport=tcp", flow);
    let outside = OutOfDialogRequest {
        user: 3,
        ..OutOfDialogRequest::new(Method::Options, target)
    };
    host.endpoint.send(&outside, Time::ZERO).unwrap();
    let leg = host
        .endpoint
        .invite(&Invite::new(target), Time::ZERO)
        .unwrap();
    let sent = host.drain();
    let Sent::Connect(connection, _) = sent[0] else {
        panic!("{sent:?}")
    };
    assert_eq!(sent.len(), 3, "one connection for both");
    let sent = stream(
        &mut host,
        connection,
        b"\x16\x03\x01 this is no SIP\r\n\r\n",
    );
    assert_eq!(sent, [Sent::Close(connection)]);
    assert_eq!(host.endpoint.drops().get(DropReason::SipStreamBroken), 1);
    assert_eq!(
        host.log.indications,
        [
            RecordedIndication::OutOfDialogTimedOut(3),
            RecordedIndication::Failed(leg, Failure::Transport, 0),
            RecordedIndication::FlowFailed
        ]
    );
    let census = host.endpoint.census();
    assert!(census.is_quiet() && census.connections == 0, "{census:?}");
}

/// If the end of a request cannot be found, it is answered and the connection closed (RFC 4475 section 3.1.2.3).
#[test]
fn unframeable_request_is_answered_and_its_stream_closed() {
    for (length, status) in [("-999", 400), ("1\r\nl: 2", 400), ("99999999", 413)] {
        let mut host = host(EndpointConfig::default());
        let connection = accept(&mut host, 1, "192.0.2.9:41000");
        let request = options(
            "SIP/2.0/TCP 192.0.2.9;branch=z9hG4bKa",
            &format!("Content-Length: {length}\r\n"),
        );
        let sent = stream(&mut host, connection, &[&request[..], b"more"].concat());
        let [Sent::Stream(to, bytes), Sent::Close(closed)] = sent.as_slice() else {
            panic!("{length}: {sent:?}")
        };
        assert_eq!((*to, *closed), (connection, connection));
        let expected = format!("SIP/2.0 {status} ");
        assert!(bytes.starts_with(expected.as_bytes()), "{length}");
        assert!(
            host.log
                .indications
                .iter()
                .all(|recorded| *recorded == RecordedIndication::FlowFailed)
        );
        assert_eq!(host.endpoint.census().connections, 0);
    }
}

#[test]
fn other_sip_version_gets_505_over_every_transport() {
    let request = |transport: &str| {
        String::from_utf8(options(
            &format!("SIP/7.0/{transport} 192.0.2.9;branch=z9hG4bKa"),
            "Content-Length: 0\r\n",
        ))
        .unwrap()
        .replace(" SIP/2.0\r\n", " SIP/7.0\r\n")
    };
    let mut host = host(EndpointConfig::default());
    host.datagram(request("UDP").as_bytes(), "192.0.2.9:5060", Time::ZERO);
    assert!(only(&mut host).1.starts_with("SIP/2.0 505 "));
    let connection = accept(&mut host, 1, "192.0.2.9:41000");
    let sent = stream(&mut host, connection, request("TCP").as_bytes());
    let [Sent::Stream(_, bytes)] = sent.as_slice() else {
        panic!("{sent:?}")
    };
    assert!(bytes.starts_with(b"SIP/2.0 505 "));
    // A Via of another version in our own request is an error of the sender.
    let mixed = request("UDP").replace(" SIP/7.0\r\n", " SIP/2.0\r\n");
    host.datagram(mixed.as_bytes(), "192.0.2.9:5060", Time::ZERO);
    assert!(only(&mut host).1.starts_with("SIP/2.0 400 "));
}

/// Octets after Content-Length 0 begin the next message of a stream, and are ignored in a datagram (RFC 4475 section
/// 3.1.1.8).
#[test]
fn trailing_octets_begin_the_next_message_on_a_stream() {
    let one = |transport: &str, branch: &str| {
        options(
            &format!("SIP/2.0/{transport} 192.0.2.9;branch=z9hG4bK{branch}"),
            "Content-Length: 0\r\n",
        )
    };
    let both = [one("TCP", "a"), one("TCP", "b")].concat();
    let mut host = host(EndpointConfig::default());
    let connection = accept(&mut host, 1, "192.0.2.9:41000");
    assert_eq!(stream(&mut host, connection, &both).len(), 2);
    let both = [one("UDP", "c"), one("UDP", "d")].concat();
    host.datagram(&both, "192.0.2.9:5060", Time::ZERO);
    let (_, text) = only(&mut host);
    assert!(header(&text, HeaderId::Via).unwrap().contains("bKc"));
}

#[test]
fn connections_are_limited_in_total_and_per_source() {
    let mut host = host(EndpointConfig {
        limits: Limits {
            connections: 3,
            connections_per_source: 2,
            ..Limits::default()
        },
        ..EndpointConfig::default()
    });
    for (number, remote, taken) in [
        (1, "192.0.2.9:1001", true),
        (2, "192.0.2.9:1002", true),
        (3, "192.0.2.9:1003", false),
        (4, "192.0.2.8:1001", true),
        (5, "192.0.2.7:1001", false),
    ] {
        let connection = accept(&mut host, number, remote);
        let expected = if taken {
            vec![]
        } else {
            vec![Sent::Close(connection)]
        };
        assert_eq!(host.drain(), expected, "{number}");
        let request = options(&format!("SIP/2.0/TCP x;branch=z9hG4bK{number}"), "");
        stream(&mut host, connection, &request);
    }
    assert_eq!(host.endpoint.census().connections, 3);
    // Connections that we open have room of their own.
    for (port, refused) in [(1, false), (2, false), (3, false), (4, true)] {
        let flow = tcp_flow(&host, &format!("192.0.2.9:{port}"));
        let request = OutOfDialogRequest::new(Method::Options, Target::new(b"sip:x@x", flow));
        let sent = host.endpoint.send(&request, Time::ZERO);
        assert_eq!(sent.err(), refused.then_some(Refused::Full), "{port}");
    }
    host.drain();
    assert_eq!(host.endpoint.census().connections, 6);
    host.run(Time::from_secs(2_000));
    assert_eq!(
        host.endpoint.census().connections,
        0,
        "idle ones are closed"
    );
}

fn tcp_flow(host: &Host, remote: &str) -> Flow {
    Flow {
        local: host.tcp,
        transport: Transport::Tcp,
        remote: remote.parse().unwrap(),
        connection: None,
    }
}

#[test]
fn accepted_connection_without_a_message_is_closed_after_30_seconds() {
    let mut host = host(EndpointConfig::default());
    let silent = accept(&mut host, 1, "192.0.2.9:1001");
    let pinging = accept(&mut host, 2, "192.0.2.9:1002");
    let speaking = accept(&mut host, 3, "192.0.2.9:1003");
    stream(
        &mut host,
        speaking,
        &options("SIP/2.0/TCP x;branch=z9hG4bKa", ""),
    );
    for second in [10, 20, 25, 29] {
        for connection in [pinging, speaking] {
            let bytes = b"\r\n\r\n";
            host.feed(Input::Stream { connection, bytes }, Time::from_secs(second));
        }
    }
    host.drain();
    let closed: Vec<Sent> = host
        .run(Time::from_secs(31))
        .into_iter()
        .map(|(_, sent)| sent)
        .filter(|sent| matches!(sent, Sent::Close(_)))
        .collect();
    assert_eq!(closed.len(), 2, "{closed:?}");
    assert!(
        [silent, pinging]
            .iter()
            .all(|id| closed.contains(&Sent::Close(*id)))
    );
    assert!(host.endpoint.has_connection(speaking));
    host.run(Time::from_secs(920));
    assert!(host.endpoint.has_connection(speaking), "pinged at 29 s");
    host.run(Time::from_secs(940));
    assert!(!host.endpoint.has_connection(speaking));
}

#[test]
fn new_connection_displaces_the_oldest_silent_one_of_a_full_table() {
    let mut host = host(EndpointConfig {
        limits: Limits {
            connections: 3,
            connections_per_source: 3,
            ..Limits::default()
        },
        ..EndpointConfig::default()
    });
    let speaking = accept(&mut host, 1, "192.0.2.1:1");
    stream(
        &mut host,
        speaking,
        &options("SIP/2.0/TCP x;branch=z9hG4bKa", ""),
    );
    let silent = accept(&mut host, 2, "192.0.2.2:1");
    accept(&mut host, 3, "192.0.2.3:1");
    assert_eq!(host.drain(), []);
    accept(&mut host, 4, "192.0.2.4:1");
    assert_eq!(host.drain(), [Sent::Close(silent)]);
    assert_eq!(host.endpoint.census().connections, 3);
    assert_eq!(host.endpoint.drops().get(DropReason::SipTableFull), 1);
    for number in [3, 4] {
        let id = ConnectionId(ConnectionId::ACCEPTED | number);
        stream(
            &mut host,
            id,
            &options(&format!("SIP/2.0/TCP x;branch=z9hG4bK{number}"), ""),
        );
    }
    let refused = accept(&mut host, 5, "192.0.2.5:1");
    assert_eq!(host.drain(), [Sent::Close(refused)], "all have spoken");
}

#[test]
fn many_pings_of_one_read_get_one_pong() {
    let mut host = host(EndpointConfig::default());
    let connection = accept(&mut host, 1, "192.0.2.9:1001");
    let request = options("SIP/2.0/TCP x;branch=z9hG4bKa", "");
    let bytes = [b"\r\n\r\n".repeat(4_000), request, b"\r\n\r\n".repeat(2)].concat();
    let sent = stream(&mut host, connection, &bytes);
    let pongs = sent
        .iter()
        .filter(
            |sent| matches!(sent, Sent::Stream(id, bytes) if *id == connection && bytes == b"\r\n"),
        )
        .count();
    assert_eq!(pongs, 1);
    assert_eq!(host.endpoint.drops().get(DropReason::SipKeepAlive), 4_002);
}

#[test]
fn connection_without_any_answer_is_replaced_after_a_transaction_timeout() {
    let mut host = host(EndpointConfig::default());
    let flow = tcp_flow(&host, "192.0.2.9:5060");
    let send = |host: &mut Host, at: u64| {
        let request = OutOfDialogRequest::new(Method::Options, Target::new(b"sip:x@x", flow));
        host.endpoint.send(&request, Time::from_secs(at)).unwrap();
        host.drain()
    };
    let connected = |host: &mut Host, connection: ConnectionId, at: u64| {
        let local = host.address;
        host.feed(Input::Connected { connection, local }, Time::from_secs(at));
    };
    let sent = send(&mut host, 0);
    assert!(
        matches!(sent[0], Sent::Connect(ConnectionId(1), _)),
        "{sent:?}"
    );
    connected(&mut host, ConnectionId(1), 0);
    // Timer F: the connection is pinged, and is not used for the next request.
    let sent = host.run(Time::from_secs(33));
    assert!(
        matches!(&sent[..], [(_, Sent::Stream(ConnectionId(1), bytes))] if bytes == b"\r\n\r\n"),
        "{sent:?}"
    );
    let sent = send(&mut host, 34);
    assert!(
        matches!(sent[0], Sent::Connect(ConnectionId(2), _)),
        "{sent:?}"
    );
    connected(&mut host, ConnectionId(2), 34);
    let sent = host.run(Time::from_secs(43));
    assert_eq!(
        sent.last().map(|(_, sent)| sent),
        Some(&Sent::Close(ConnectionId(1)))
    );
    // The second one is alive, although it answers no request.
    host.run(Time::from_secs(67));
    let bytes = b"\r\n";
    let connection = ConnectionId(2);
    host.feed(Input::Stream { connection, bytes }, Time::from_secs(70));
    host.run(Time::from_secs(90));
    assert!(host.endpoint.has_connection(connection));
    let sent = send(&mut host, 91);
    assert!(
        matches!(sent[..], [Sent::Stream(ConnectionId(2), _)]),
        "{sent:?}"
    );
}

#[test]
fn full_table_gets_stateless_503() {
    let mut host = host(EndpointConfig {
        limits: Limits {
            transactions: 1,
            ..Limits::default()
        },
        ..EndpointConfig::default()
    });
    for branch in ["a", "b"] {
        host.datagram(
            &options(&format!("SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK{branch}"), ""),
            "192.0.2.9:5060",
            Time::ZERO,
        );
    }
    let sent = host.datagrams();
    assert!(sent[0].starts_with("SIP/2.0 200 "));
    assert!(sent[1].starts_with("SIP/2.0 503 "));
    assert!(header(&sent[1], HeaderId::RetryAfter).is_some());
    assert_eq!(host.endpoint.drops().get(DropReason::SipTableFull), 1);
    let target = Target::new(b"sip:b@192.0.2.9", host.flow("192.0.2.9:5060"));
    assert_eq!(
        host.endpoint.invite(&Invite::new(target), Time::ZERO),
        Err(Refused::Full)
    );
    host.run(Time::from_secs(40));
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn leg_ends_without_room_for_its_bye() {
    let config = EndpointConfig {
        limits: Limits {
            transactions: 1,
            ..Limits::default()
        },
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new([config, EndpointConfig::default()], 5);
    let caller = pair.call(0, Transport::Udp);
    pair.run(Duration::from_millis(100));
    let RecordedIndication::Offered(callee) = pair.hosts[1].log.indications[0] else {
        panic!("no call");
    };
    // The only entry is used by a request without answer.
    let now = pair.now + Duration::from_secs(60);
    pair.run(Duration::from_secs(60));
    let endpoint = &mut pair.hosts[0].endpoint;
    let info = Method::Other(b"INFO");
    endpoint
        .request(caller, info, &MessageContent::default(), now)
        .unwrap();
    let content = MessageContent::default();
    assert_eq!(endpoint.bye(caller, &content, now), Err(Refused::Full));
    assert_eq!(endpoint.hang_up(caller, &content, now), Ok(()));
    pair.run(Duration::from_millis(1));
    let ended = RecordedIndication::Ended(caller, Ending::Unanswered);
    assert!(pair.hosts[0].log.indications.contains(&ended));
    assert_eq!(pair.hosts[0].endpoint.state_of(caller), None);
    // The peer does not get the BYE, and ends its own leg.
    let now = pair.now;
    let other = &mut pair.hosts[1].endpoint;
    other.bye(callee, &content, now).unwrap();
    pair.settle();
}

/// The transaction table is full when a call is cancelled: the peer rings on, and is cancelled with its next
/// provisional response. Its answer before that crosses the CANCEL.
#[test]
fn cancel_without_room_is_not_forgotten() {
    for answered in [false, true] {
        let mut host = host(EndpointConfig {
            limits: Limits {
                transactions: 2,
                ..Limits::default()
            },
            ..EndpointConfig::default()
        });
        let peer = "192.0.2.9:5060";
        let target = Target::new(b"sip:x@192.0.2.9", host.flow(peer));
        // Its entry is free again after 32 s without a response.
        let options = OutOfDialogRequest::new(Method::Options, target);
        host.endpoint.send(&options, Time::ZERO).unwrap();
        host.run(Time::from_secs(20));
        host.drain();
        let invite = Invite::new(Target::new(b"sip:x@192.0.2.9", host.flow(peer)));
        let leg = host.endpoint.invite(&invite, Time::from_secs(20)).unwrap();
        let (_, invite) = only(&mut host);
        let response = |status: &str| {
            let to = header(&invite, HeaderId::To).unwrap();
            invite
                .replace("INVITE sip:x@192.0.2.9 SIP/2.0", status)
                .replace(&format!("To: {to}"), &format!("To: {to};tag=t"))
        };
        let ringing = response("SIP/2.0 180 Ringing");
        let soon = Time::from_millis(20_100);
        host.datagram(ringing.as_bytes(), peer, soon);
        let content = MessageContent::default();
        let cancelled = host.endpoint.cancel(leg, &content, soon);
        assert_eq!(cancelled, Ok(()));
        assert!(host.datagrams().is_empty(), "no room");
        host.run(Time::from_secs(40));
        host.drain();
        if answered {
            let ok = response("SIP/2.0 200 OK");
            host.datagram(ok.as_bytes(), peer, Time::from_secs(40));
            let sent = host.datagrams();
            assert!(sent[0].starts_with("ACK "), "{sent:?}");
            assert!(sent[1].starts_with("BYE "), "{sent:?}");
        } else {
            host.datagram(ringing.as_bytes(), peer, Time::from_secs(40));
            let sent = host.datagrams();
            assert!(sent[0].starts_with("CANCEL "), "{sent:?}");
        }
    }
}

#[test]
fn large_requests_use_tcp_if_the_peer_accepts_it() {
    let mut host = host(EndpointConfig::default());
    let body = vec![b'x'; 1_300];
    for (takes, tcp) in [(true, true), (false, false)] {
        let target = Target {
            tcp_when_large: takes,
            ..Target::new(b"sip:b@192.0.2.9", host.flow("192.0.2.9:5060"))
        };
        let outside = OutOfDialogRequest {
            content: MessageContent::body(b"text/plain", &body),
            ..OutOfDialogRequest::new(Method::Message, target)
        };
        host.endpoint.send(&outside, Time::ZERO).unwrap();
        let sent = host.drain();
        match (tcp, sent.as_slice()) {
            (true, [Sent::Connect(..), Sent::Stream(_, bytes)]) => {
                let text = String::from_utf8_lossy(bytes).into_owned();
                assert!(
                    header(&text, HeaderId::Via)
                        .unwrap()
                        .starts_with("SIP/2.0/TCP 192.0.2.1:5060;")
                );
            }
            (false, [Sent::Datagram(..)]) => {}
            (_, other) => panic!("{other:?}"),
        }
    }
}

/// RFC 3261 section 18.1.1: a request moved to TCP because of its size falls back to UDP if TCP is refused.
#[test]
fn large_requests_fall_back_to_udp() {
    let body = vec![b'x'; 1_300];
    for heard in [false, true] {
        let mut host = host(EndpointConfig::default());
        let target = Target {
            tcp_when_large: true,
            ..Target::new(b"sip:b@192.0.2.9", host.flow("192.0.2.9:5060"))
        };
        let invite = Invite {
            content: MessageContent::body(b"text/plain", &body),
            ..Invite::new(target)
        };
        let leg = host.endpoint.invite(&invite, Time::ZERO).unwrap();
        let sent = host.drain();
        let [Sent::Connect(connection, _), Sent::Stream(_, bytes)] = sent.as_slice() else {
            panic!("{sent:?}")
        };
        let (connection, invite) = (*connection, String::from_utf8_lossy(bytes).into_owned());
        if heard {
            let trying = format!(
                "SIP/2.0 100 Trying\r\nVia: {}\r\nFrom: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: 1 INVITE\r\n\
                 Content-Length: 0\r\n\r\n",
                header(&invite, HeaderId::Via).unwrap(),
                header(&invite, HeaderId::From).unwrap(),
                header(&invite, HeaderId::To).unwrap(),
                header(&invite, HeaderId::CallId).unwrap(),
            );
            stream(&mut host, connection, trying.as_bytes());
        }
        host.feed(
            Input::Closed {
                connection,
                reason: engine::CloseReason::ConnectFailed,
            },
            Time::from_millis(10),
        );
        if heard {
            // The peer has received it: it must not arrive twice.
            assert!(host.drain().is_empty());
            assert!(host.log.indications.contains(&RecordedIndication::Failed(
                leg,
                Failure::Transport,
                0
            )));
            continue;
        }
        let (to, text) = only(&mut host);
        assert_eq!(to, "192.0.2.9:5060".parse().unwrap());
        assert_eq!(
            text,
            invite.replacen("SIP/2.0/TCP", "SIP/2.0/UDP", 1),
            "equal except for its Via"
        );
        // Timer A runs now.
        assert_eq!(host.run(Time::from_millis(600)).len(), 1);
        assert_eq!(host.endpoint.state_of(leg), Some(LegState::Calling));
    }
}

/// A keep-alive over UDP is a STUN Binding request (RFC 5626 section 4.4.2).
#[test]
fn stun_keep_alives_are_answered() {
    let mut host = host(EndpointConfig::default());
    let mut request = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
    request.extend(*b"transaction!");
    host.datagram(&request, "192.0.2.9:4000", Time::ZERO);
    let sent = host.drain();
    let [Sent::Datagram(to, bytes)] = sent.as_slice() else {
        panic!("{sent:?}")
    };
    assert_eq!(*to, "192.0.2.9:4000".parse().unwrap());
    assert_eq!(
        (&bytes[..2], &bytes[8..20]),
        (&[1, 1][..], &b"transaction!"[..])
    );
    assert_eq!(host.endpoint.drops().get(DropReason::SipKeepAlive), 1);
    // Other bytes of that form are dropped.
    for bytes in [&request[..19], &[0, 1, 0, 0][..], &[2, 1, 0, 0][..]] {
        host.datagram(bytes, "192.0.2.9:4000", Time::ZERO);
    }
    assert!(host.drain().is_empty());
    assert_eq!(host.endpoint.drops().get(DropReason::SipUnparsable), 3);
}

#[test]
fn response_uses_a_new_connection_after_failure() {
    let mut host = host(EndpointConfig::default());
    host.log.behaviour.respond = None;
    let connection = accept(&mut host, 1, "192.0.2.9:41000");
    stream(
        &mut host,
        connection,
        &options(
            "SIP/2.0/TCP 192.0.2.9:5070;branch=z9hG4bKa",
            "Content-Length: 0\r\n",
        ),
    );
    let RecordedIndication::OutOfDialog(transaction, _) = host.log.indications[0] else {
        panic!()
    };
    host.feed(
        Input::Closed {
            connection,
            reason: engine::CloseReason::Peer,
        },
        Time::ZERO,
    );
    host.endpoint
        .respond(transaction, 200, &MessageContent::default(), Time::ZERO)
        .unwrap();
    let sent = host.drain();
    assert!(
        matches!(sent[0], Sent::Connect(_, to) if to == "192.0.2.9:5070".parse().unwrap()),
        "{sent:?}"
    );
}

#[test]
fn call_over_tcp_survives_connection_loss() {
    let mut pair = Pair::plain();
    let leg = pair.call(0, Transport::Tcp);
    pair.run(Duration::from_millis(100));
    pair.break_connections();
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.hosts[0].endpoint.census().connections, 0);
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .bye(leg, &MessageContent::default(), now)
        .unwrap();
    pair.run(Duration::from_millis(100));
    assert_eq!(
        pair.hosts[0].log.last(),
        &RecordedIndication::Ended(leg, Ending::Local)
    );
    pair.settle();
}

/// A request with a To tag, if it is not empty, over `transport`.
fn tagged(
    method: &str,
    (branch, cseq): (&str, u32),
    transport: &str,
    contact: &str,
    tag: &str,
) -> Vec<u8> {
    let tag = if tag.is_empty() {
        String::new()
    } else {
        format!(";tag={tag}")
    };
    format!(
        "{method} sip:a@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/{transport} 192.0.2.9:5060;branch=z9hG4bK{branch};rport\r\n\
         Max-Forwards: 70\r\nFrom: <sip:b@x>;tag=1\r\nTo: <sip:a@x>{tag}\r\nCall-ID: c\r\nCSeq: {cseq} {method}\r\n\
         Contact: <{contact}>\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

/// Section 8.2.7: requests that a stranger can invent cost no transaction.
#[test]
fn requests_of_unknown_dialogs_keep_no_state() {
    let mut host = host(EndpointConfig {
        limits: Limits {
            transactions: 1,
            ..Limits::default()
        },
        ..EndpointConfig::default()
    });
    let contact = "sip:b@192.0.2.9";
    for (method, tag) in [
        ("INVITE", "x"),
        ("BYE", "x"),
        ("PRACK", "x"),
        ("CANCEL", ""),
    ] {
        for number in 0..100 {
            let branch = format!("{method}{number}");
            let text = tagged(method, (&branch, 1), "UDP", contact, tag);
            host.datagram(&text, "192.0.2.9:5060", Time::ZERO);
            host.datagram(&text, "192.0.2.9:5060", Time::ZERO);
            let sent = host.datagrams();
            assert_eq!(sent.len(), 2, "{method}");
            assert!(sent[0].starts_with("SIP/2.0 481 "), "{}", sent[0]);
            assert_eq!(sent[0], sent[1], "copies get the same response");
        }
    }
    assert_eq!(host.endpoint.drops().get(DropReason::SipTableFull), 0);
    assert!(host.endpoint.census().is_quiet());
    assert!(host.log.indications.is_empty());
}

/// A confirmed call whose caller has sent the INVITE on `flow` and is reached there, with our tag.
fn pinned_call(
    host: &mut Host,
    flow: Flow,
    contact: &str,
    send: impl Fn(&mut Host, &[u8]),
) -> (LegId, String) {
    let transport = flow.transport.via_name();
    send(host, &tagged("INVITE", ("i", 1), transport, contact, ""));
    let RecordedIndication::Offered(leg) = host.log.indications[0] else {
        panic!("{:?}", host.log.indications)
    };
    host.endpoint.pin(leg, flow).unwrap();
    let tag = String::from_utf8(host.endpoint.tags_of(leg).unwrap().0).unwrap();
    send(host, &tagged("ACK", ("a", 1), transport, contact, &tag));
    assert_eq!(host.endpoint.state_of(leg), Some(LegState::Confirmed));
    host.drain();
    (leg, tag)
}

fn stream_flow(host: &Host, connection: ConnectionId, remote: &str) -> Flow {
    Flow {
        local: host.tcp,
        transport: Transport::Tcp,
        remote: remote.parse().unwrap(),
        connection: Some(connection),
    }
}

/// RFC 5626 section 5.3.
#[test]
fn pinned_call_follows_its_client_to_a_new_connection() {
    let contact = "sip:b@client.invalid;transport=tcp";
    let mut host = host(EndpointConfig::default());
    let old = accept(&mut host, 1, "192.0.2.9:41000");
    let flow = stream_flow(&host, old, "192.0.2.9:41000");
    let (leg, tag) = pinned_call(&mut host, flow, contact, |host, bytes| {
        host.feed(
            Input::Stream {
                connection: old,
                bytes,
            },
            Time::ZERO,
        );
    });
    host.feed(
        Input::Closed {
            connection: old,
            reason: engine::CloseReason::Peer,
        },
        Time::ZERO,
    );
    let new = accept(&mut host, 2, "198.51.100.9:42000");
    // A request that does not refresh the target changes nothing.
    stream(
        &mut host,
        new,
        &tagged("INFO", ("n", 2), "TCP", contact, &tag),
    );
    assert_eq!(host.endpoint.flow_of(leg), Some(flow));
    stream(
        &mut host,
        new,
        &tagged("UPDATE", ("u", 3), "TCP", contact, &tag),
    );
    let moved = stream_flow(&host, new, "198.51.100.9:42000");
    assert_eq!(host.endpoint.flow_of(leg), Some(moved));
    let none = MessageContent::default();
    host.endpoint.bye(leg, &none, Time::ZERO).unwrap();
    let sent = host.drain();
    assert!(
        matches!(&sent[..], [Sent::Stream(id, bytes)] if *id == new && bytes.starts_with(b"BYE ")),
        "{sent:?}"
    );
}

#[test]
fn pinned_call_follows_the_port_of_a_nat() {
    // Behind NAT; and a client that listens at the known port, but sends its requests from another one.
    for (contact, expected) in [
        ("sip:b@192.168.7.7:5060", "192.0.2.9:42000"),
        ("sip:b@192.0.2.9:41000", "192.0.2.9:41000"),
    ] {
        let mut host = host(EndpointConfig::default());
        let flow = host.flow("192.0.2.9:41000");
        let (leg, tag) = pinned_call(&mut host, flow, contact, |host, bytes| {
            host.datagram(bytes, "192.0.2.9:41000", Time::ZERO);
        });
        // Another host cannot take over the call.
        for (branch, cseq, source) in [("u", 2, "192.0.2.10:42000"), ("v", 3, "192.0.2.9:42000")] {
            let update = tagged("UPDATE", (branch, cseq), "UDP", contact, &tag);
            host.datagram(&update, source, Time::ZERO);
            host.drain();
            if cseq == 2 {
                assert_eq!(host.endpoint.flow_of(leg), Some(flow));
            }
        }
        let none = MessageContent::default();
        host.endpoint.bye(leg, &none, Time::ZERO).unwrap();
        assert_eq!(only(&mut host).0, expected.parse().unwrap(), "{contact}");
    }
}

#[test]
fn connection_of_a_quiet_call_stays_open() {
    let contact = "sip:b@client.invalid;transport=tcp";
    let mut host = host(EndpointConfig::default());
    let used = accept(&mut host, 1, "192.0.2.9:41000");
    let unused = accept(&mut host, 2, "192.0.2.9:42000");
    let flow = stream_flow(&host, used, "192.0.2.9:41000");
    let (leg, _) = pinned_call(&mut host, flow, contact, |host, bytes| {
        host.feed(
            Input::Stream {
                connection: used,
                bytes,
            },
            Time::ZERO,
        );
    });
    let at = Time::from_secs(2_000);
    let sent: Vec<Sent> = host.run(at).into_iter().map(|(_, sent)| sent).collect();
    let kept = Sent::Stream(used, b"\r\n".to_vec());
    assert_eq!(
        sent.iter().filter(|sent| **sent == kept).count(),
        2,
        "{sent:?}"
    );
    assert!(sent.contains(&Sent::Close(unused)), "{sent:?}");
    assert_eq!(sent.len(), 3, "{sent:?}");
    let none = MessageContent::default();
    host.endpoint.bye(leg, &none, at).unwrap();
    let sent = host.drain();
    assert!(
        matches!(&sent[..], [Sent::Stream(id, bytes)] if *id == used && bytes.starts_with(b"BYE ")),
        "{sent:?}"
    );
    // Without a dialog it is closed.
    host.run(Time::from_secs(4_000));
    assert_eq!(host.endpoint.census().connections, 0);
}
