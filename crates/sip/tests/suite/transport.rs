//! Transport: where responses go, streams and their framing, limits, malformed messages, keep-alives.

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
fn responses_over_udp_go_where_rfc_3261_18_2_2_and_rfc_3581_say() {
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
    // Our own requests ask for it.
    let target = Target::new(b"sip:x@192.0.2.9", host.flow(source));
    host.endpoint
        .send(&Outside::new(Method::Options, target), Time::ZERO)
        .unwrap();
    let via = header(&only(&mut host).1, HeaderId::Via).unwrap();
    assert!(via.ends_with(";rport"), "{via}");
}

#[test]
fn what_the_network_cannot_deliver_fails_at_once_and_nothing_else_does() {
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
    // Forged: another destination, another socket, no branch, half a branch, a branch of somebody else's.
    let other = invite.replace("branch=z9hG4bK0", "branch=z9hG4bK1");
    quote(&mut host, invite.as_bytes(), "192.0.2.8:5060", socket, 1);
    quote(&mut host, invite.as_bytes(), peer, SocketId(77), 1);
    quote(&mut host, &invite.as_bytes()[..20], peer, socket, 1);
    quote(&mut host, &invite.as_bytes()[..via - 20], peer, socket, 1);
    quote(&mut host, other.as_bytes(), peer, socket, 1);
    assert_eq!(host.endpoint.state_of(leg), Some(LegState::Calling));
    let stray = |host: &Host| host.endpoint.drops().get(DropReason::SipStrayUnreachable);
    assert_eq!(stray(&host), 5);
    // True, and cut off behind the branch.
    quote(&mut host, &invite.as_bytes()[..via], peer, socket, 1);
    assert_eq!(host.endpoint.state_of(leg), None);
    assert!(matches!(
        host.log.last(),
        Said::Failed(_, Failure::Transport, _)
    ));
    // Who has answered is there, whatever is said of him.
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
    // A request outside of dialogs fails likewise.
    let target = Target::new(b"sip:x@192.0.2.9", host.flow(peer));
    host.endpoint
        .send(
            &Outside::new(Method::Options, target),
            Time::from_millis(20),
        )
        .unwrap();
    let (_, options) = only(&mut host);
    quote(&mut host, options.as_bytes(), peer, socket, 21);
    assert!(matches!(host.log.last(), Said::OutsideTimedOut(..)));
}

#[test]
fn a_stream_that_does_not_answer_a_ping_is_given_up_and_one_that_does_stays() {
    for answers in [true, false] {
        let mut host = host(EndpointConfig::default());
        let local = host.endpoint.add_local(Local {
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
        let options = Outside::new(Method::Options, target);
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
        let closed = host.log.count(|said| matches!(said, Said::FlowFailed));
        assert_eq!(closed, usize::from(!answers));
        assert_eq!(host.endpoint.census().connections, usize::from(answers));
    }
}

#[test]
fn a_flow_over_udp_fails_without_answer_and_with_another_address() {
    let peer = "192.0.2.9:5060";
    let mut host = host(EndpointConfig::default());
    let flow = host.flow(peer);
    let failed = |host: &Host| host.log.count(|said| matches!(said, Said::FlowFailed));
    let answer = |host: &mut Host, from: &str, seen: &str, at: u64| {
        let request = match &host.drain()[..] {
            [Sent::Datagram(_, bytes)] => bytes.clone(),
            other => panic!("{other:?}"),
        };
        let mut answer = Vec::new();
        assert!(wire::stun::answer_binding(
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
    // Somebody else's answer is none.
    let now = Time::from_secs(60);
    host.endpoint.keep_alive(flow, now).unwrap();
    answer(&mut host, "192.0.2.8:5060", "203.0.113.9:4000", 60_010);
    assert_eq!(failed(&host), 0);
    let sent = host.run(Time::from_secs(99));
    assert_eq!(sent.len(), 6, "seven in all");
    assert_eq!(failed(&host), 0);
    host.run(Time::from_secs(100));
    assert_eq!(failed(&host), 1, "no answer");
    // Another address than before.
    for (seen, at, count) in [("203.0.113.1:4000", 101, 1), ("203.0.113.1:4001", 102, 2)] {
        let now = Time::from_secs(at);
        host.endpoint.keep_alive(flow, now).unwrap();
        answer(&mut host, peer, seen, at * 1_000 + 5);
        assert_eq!(failed(&host), count);
    }
    host.endpoint
        .keep_alive(flow, Time::from_secs(103))
        .unwrap();
    host.endpoint.stop_keeping(flow);
    host.drain();
    assert!(host.run(Time::from_secs(200)).is_empty());
    assert!(host.endpoint.census().is_quiet());
}

#[test]
fn a_closed_point_answers_nothing_but_what_lives_on_it() {
    let mut host = host(EndpointConfig::default());
    let peer = "192.0.2.9:5060";
    let local = host.flow(peer).local;
    host.log.habits.answer = None;
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
    assert_eq!(host.endpoint.drops().get(DropReason::SipPointClosed), 6);
    // The call that is under way can be cancelled.
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
fn malformed_requests_are_answered_without_state_and_ack_never() {
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

#[test]
fn max_forwards_and_loops() {
    let mut host = host(EndpointConfig {
        check_max_forwards: true,
        ..EndpointConfig::default()
    });
    let message = String::from_utf8(options("SIP/2.0/UDP 192.0.2.9;branch=z9hG4bKa", "")).unwrap();
    let none = message
        .replace("OPTIONS", "MESSAGE")
        .replace("Max-Forwards: 70", "Max-Forwards: 0");
    host.datagram(none.as_bytes(), "192.0.2.9:5060", Time::ZERO);
    assert!(only(&mut host).1.starts_with("SIP/2.0 483 "));
    // A request of ours comes back with our Via below another's.
    let target = Target::new(b"sip:x@192.0.2.9", host.flow("192.0.2.9:5060"));
    host.endpoint
        .send(&Outside::new(Method::Message, target), Time::ZERO)
        .unwrap();
    let (_, ours) = only(&mut host);
    let looped = ours.replacen(
        "Via: ",
        "Via: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bKloop\r\nVia: ",
        1,
    );
    host.datagram(looped.as_bytes(), "192.0.2.9:5060", Time::ZERO);
    assert!(only(&mut host).1.starts_with("SIP/2.0 482 "));
    assert!(host.log.said.is_empty());
}

#[test]
fn a_merged_invite_gets_482_while_the_first_is_open() {
    let mut host = host(EndpointConfig::default());
    host.log.habits.answer = None;
    host.log.habits.ring = false;
    let invite = |branch: &str| {
        String::from_utf8(options(
            &format!("SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK{branch}"),
            "Contact: <sip:b@192.0.2.9>\r\n",
        ))
        .unwrap()
        .replace("OPTIONS", "INVITE")
    };
    host.datagram(invite("a").as_bytes(), "192.0.2.9:5060", Time::ZERO);
    host.datagram(invite("b").as_bytes(), "192.0.2.9:5060", Time::ZERO);
    assert!(only(&mut host).1.starts_with("SIP/2.0 482 "));
    assert_eq!(host.log.said.len(), 1);
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
fn streams_in_any_pieces_give_the_same_answers() {
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
                2,
                "pongs (RFC 5626)"
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
fn a_broken_stream_is_closed_and_what_waits_on_it_fails() {
    let mut host = host(EndpointConfig::default());
    let flow = Flow {
        local: host.tcp,
        transport: Transport::Tcp,
        remote: "192.0.2.9:5060".parse().unwrap(),
        connection: None,
    };
    let target = Target::new(b"sip:b@192.0.2.9;transport=tcp", flow);
    let outside = Outside {
        user: 3,
        ..Outside::new(Method::Options, target)
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
        host.log.said,
        [
            Said::OutsideTimedOut(3),
            Said::Failed(leg, Failure::Transport, 0),
            Said::FlowFailed
        ]
    );
    let census = host.endpoint.census();
    assert!(census.is_quiet() && census.connections == 0, "{census:?}");
}

/// Where the end of a request cannot be found its sender is told, then the connection ends (RFC 4475 section 3.1.2.3).
#[test]
fn a_stream_whose_framing_is_lost_is_answered_and_closed() {
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
        assert!(host.log.said.iter().all(|said| *said == Said::FlowFailed));
        assert_eq!(host.endpoint.census().connections, 0);
    }
}

#[test]
fn another_version_is_answered_505_over_every_transport() {
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
    // A Via of another version in a request of ours is a fault of its sender.
    let mixed = request("UDP").replace(" SIP/7.0\r\n", " SIP/2.0\r\n");
    host.datagram(mixed.as_bytes(), "192.0.2.9:5060", Time::ZERO);
    assert!(only(&mut host).1.starts_with("SIP/2.0 400 "));
}

/// Octets behind Content-Length 0 belong to the next message of a stream, and to nothing in a datagram (RFC 4475 section
/// 3.1.1.8).
#[test]
fn octets_behind_a_message_are_the_next_one_on_a_stream() {
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
fn connections_are_limited_in_all_and_per_source() {
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
    }
    assert_eq!(host.endpoint.census().connections, 3);
    host.run(Time::from_secs(2_000));
    assert_eq!(
        host.endpoint.census().connections,
        0,
        "idle ones are closed"
    );
}

#[test]
fn a_full_table_answers_503_without_state() {
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
fn a_leg_ends_where_there_is_no_room_for_its_bye() {
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
    let Said::Offered(callee) = pair.hosts[1].log.said[0] else {
        panic!("no call");
    };
    // The only place is taken by a request that has no answer yet.
    let now = pair.now + Duration::from_secs(60);
    pair.run(Duration::from_secs(60));
    let endpoint = &mut pair.hosts[0].endpoint;
    let info = Method::Other(b"INFO");
    endpoint
        .request(caller, info, &Content::default(), now)
        .unwrap();
    let content = Content::default();
    assert_eq!(endpoint.bye(caller, &content, now), Err(Refused::Full));
    assert_eq!(endpoint.hang_up(caller, &content, now), Ok(()));
    pair.run(Duration::from_millis(1));
    let ended = Said::Ended(caller, Ending::Unanswered);
    assert!(pair.hosts[0].log.said.contains(&ended));
    assert_eq!(pair.hosts[0].endpoint.state_of(caller), None);
    // The peer has not heard of it, and ends its own.
    let now = pair.now;
    let other = &mut pair.hosts[1].endpoint;
    other.bye(callee, &content, now).unwrap();
    pair.settle();
}

#[test]
fn large_requests_go_over_tcp_where_the_peer_takes_it() {
    let mut host = host(EndpointConfig::default());
    let body = vec![b'x'; 1_300];
    for (takes, tcp) in [(true, true), (false, false)] {
        let target = Target {
            tcp_when_large: takes,
            ..Target::new(b"sip:b@192.0.2.9", host.flow("192.0.2.9:5060"))
        };
        let outside = Outside {
            content: Content::body(b"text/plain", &body),
            ..Outside::new(Method::Message, target)
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

/// RFC 3261 section 18.1.1: what went over TCP for its size alone goes over UDP where TCP is refused.
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
            content: Content::body(b"text/plain", &body),
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
                why: engine::CloseWhy::Refused,
            },
            Time::from_millis(10),
        );
        if heard {
            // The peer has it: it must not come twice.
            assert!(host.drain().is_empty());
            assert!(
                host.log
                    .said
                    .contains(&Said::Failed(leg, Failure::Transport, 0))
            );
            continue;
        }
        let (to, text) = only(&mut host);
        assert_eq!(to, "192.0.2.9:5060".parse().unwrap());
        assert_eq!(
            text,
            invite.replacen("SIP/2.0/TCP", "SIP/2.0/UDP", 1),
            "the same but for its Via"
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
    // What only looks like one is dropped.
    for bytes in [&request[..19], &[0, 1, 0, 0][..], &[2, 1, 0, 0][..]] {
        host.datagram(bytes, "192.0.2.9:4000", Time::ZERO);
    }
    assert!(host.drain().is_empty());
    assert_eq!(host.endpoint.drops().get(DropReason::SipUnparsable), 3);
}

#[test]
fn a_response_goes_over_a_new_connection_where_the_old_one_is_gone() {
    let mut host = host(EndpointConfig::default());
    host.log.habits.respond = None;
    let connection = accept(&mut host, 1, "192.0.2.9:41000");
    stream(
        &mut host,
        connection,
        &options(
            "SIP/2.0/TCP 192.0.2.9:5070;branch=z9hG4bKa",
            "Content-Length: 0\r\n",
        ),
    );
    let Said::Outside(transaction, _) = host.log.said[0] else {
        panic!()
    };
    host.feed(
        Input::Closed {
            connection,
            why: engine::CloseWhy::Peer,
        },
        Time::ZERO,
    );
    host.endpoint
        .respond(transaction, 200, &Content::default(), Time::ZERO)
        .unwrap();
    let sent = host.drain();
    assert!(
        matches!(sent[0], Sent::Connect(_, to) if to == "192.0.2.9:5070".parse().unwrap()),
        "{sent:?}"
    );
}

#[test]
fn a_call_over_tcp_survives_the_loss_of_its_connection() {
    let mut pair = Pair::plain();
    let leg = pair.call(0, Transport::Tcp);
    pair.run(Duration::from_millis(100));
    pair.break_connections();
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.hosts[0].endpoint.census().connections, 0);
    let now = pair.now;
    pair.hosts[0]
        .endpoint
        .bye(leg, &Content::default(), now)
        .unwrap();
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.hosts[0].log.last(), &Said::Ended(leg, Ending::Us));
    pair.settle();
}
