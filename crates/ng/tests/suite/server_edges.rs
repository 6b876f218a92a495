//! Further tests of the media node: recording, streams, unauthorised commanders, invalid input, drain, reload.

use crate::rig::*;

use engine::{ConnectionId, DropReason, Input};
use std::time::Duration;
use wire::ng::NgMessage;

const A: &str = "10.0.0.1:4000";
const B: &str = "10.0.0.2:5000";

fn plain_a() -> String {
    sdp("10.0.0.1", 4000, "RTP/AVP", "")
}

fn plain_b() -> String {
    sdp("10.0.0.2", 5000, "RTP/AVP", "")
}

/// A call without SRTP; the node's ports towards A and towards B.
fn call(rig: &mut Rig) -> (String, String) {
    let offered = rig.offer(&plain_a(), &[("direction", "[outside,inside]")]);
    let answered = rig.answer(&plain_b(), &[]);
    (
        format!("192.0.2.1:{}", port_of(&answered)),
        format!("198.51.100.1:{}", port_of(&offered)),
    )
}

/// A phone that rings for longer than `[media] timeout_s`, without early media, has media when it answers.
#[test]
fn call_that_rings_for_long_has_media() {
    let mut rig = Rig::new(CONFIG);
    rig.offer(&plain_a(), &[]);
    rig.pass(Duration::from_secs(90));
    let towards_a = rig.answer(&plain_b(), &[]);
    let port = format!("192.0.2.1:{}", port_of(&towards_a));
    assert!(rig.send(A, &port, &rtp(7, 1)).is_some());
    // From the answer on the call needs media.
    rig.pass(Duration::from_secs(61));
    rig.assert_quiet();
}

/// A party on hold by a zero address (RFC 2543) may send music.
#[test]
fn music_of_a_party_on_hold_by_zero_address_is_relayed() {
    for flags in ["[symmetric]", "[strict-source]", "[asymmetric]"] {
        let mut rig = Rig::new(CONFIG);
        let flags = ("flags", flags);
        rig.offer(&plain_a(), &[flags, ("direction", "[outside,inside]")]);
        let answered = rig.answer(&plain_b(), &[flags]);
        let towards_a = format!("192.0.2.1:{}", port_of(&answered));
        assert!(rig.send(A, &towards_a, &rtp(7, 1)).is_some());
        let held = plain_a().replace("c=IN IP4 10.0.0.1", "c=IN IP4 0.0.0.0");
        let offered = rig.offer(&held, &[flags, ("to-tag", "b")]);
        let towards_b = format!("198.51.100.1:{}", port_of(&offered));
        rig.answer(&plain_b(), &[flags]);
        assert!(rig.send(A, &towards_a, &rtp(7, 2)).is_some(), "{}", flags.1);
        // The party on hold receives nothing.
        assert_eq!(rig.send(B, &towards_b, &rtp(9, 1)), None);
        rig.offer(&plain_a(), &[flags, ("to-tag", "b")]);
        rig.answer(&plain_b(), &[flags]);
        let relayed = rig.send(B, &towards_b, &rtp(9, 2));
        assert_eq!(relayed.map(|(to, _)| to), Some(addr(A)));
    }
}

/// A phone behind a NAT moves to another network, where it has the same private address; a phone of another household,
/// which has it as well, answers in the place of the first one.
#[test]
fn media_from_another_nat_is_latched_after_another_source_or_tag() {
    let mut rig = Rig::new(CONFIG);
    let talks = |rig: &mut Rig, to: &str, from: &str, first: u16| {
        let relayed = (first..first + 4).filter(|n| rig.send(from, to, &rtp(7, *n)).is_some());
        relayed.count() > 0
    };
    let from = |host: &'static str| ("received-from", host);
    let source = |host| [from(host), ("to-tag", "b")];
    let offered = rig.offer(
        &plain_a(),
        &[from("203.0.113.1"), ("direction", "[outside,inside]")],
    );
    let towards_b = format!("198.51.100.1:{}", port_of(&offered));
    let answered = rig.answer(&plain_b(), &[from("203.0.113.2")]);
    let towards_a = format!("192.0.2.1:{}", port_of(&answered));
    assert!(talks(&mut rig, &towards_a, "203.0.113.1:30000", 1));
    assert!(talks(&mut rig, &towards_b, "203.0.113.2:30000", 1));
    // A further offer from the same host changes nothing.
    rig.offer(&plain_a(), &source("203.0.113.1"));
    rig.answer(&plain_b(), &[from("203.0.113.2")]);
    assert!(!talks(&mut rig, &towards_a, "203.0.113.9:40000", 10));
    // From another one it does.
    rig.offer(&plain_a(), &source("203.0.113.9"));
    rig.answer(&plain_b(), &[from("203.0.113.2")]);
    assert!(talks(&mut rig, &towards_a, "203.0.113.9:40000", 20));
    assert!(!talks(&mut rig, &towards_a, "203.0.113.1:30000", 30));
    let to_a = rig.send("203.0.113.2:30000", &towards_b, &rtp(9, 9));
    assert_eq!(to_a.map(|(to, _)| to), Some(addr("203.0.113.9:40000")));
    // Two phones answer an offer one after the other, behind different NATs and one proxy.
    let other = [("call-id", "forked"), ("direction", "[outside,inside]")];
    let offered = rig.offer(&plain_a(), &other);
    let towards_b = format!("198.51.100.1:{}", port_of(&offered));
    for (tag, phone) in [("b1", "203.0.113.21:5000"), ("b2", "203.0.113.22:5000")] {
        rig.answer(&plain_b(), &[("call-id", "forked"), ("to-tag", tag)]);
        assert!(talks(&mut rig, &towards_b, phone, 1), "{tag}");
    }
}

/// A re-INVITE over other interfaces: media has its ports until the answer, and keeps them after a refusal.
#[test]
fn offer_over_other_interfaces_changes_ports_with_its_answer() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, towards_b) = call(&mut rig);
    let talk = |rig: &mut Rig, towards_a: &str, towards_b: &str, sequence| {
        let to_b = rig.send(A, towards_a, &rtp(7, sequence));
        assert_eq!(to_b.map(|(to, _)| to), Some(addr(B)));
        let to_a = rig.send(B, towards_b, &rtp(9, sequence));
        assert_eq!(to_a.map(|(to, _)| to), Some(addr(A)));
    };
    let moved = [("to-tag", "b"), ("direction", "[inside,outside]")];
    let offered = rig.offer(&plain_a(), &moved);
    assert_eq!(rig.offer(&plain_a(), &moved), offered);
    rig.pass(Duration::from_secs(5));
    talk(&mut rig, &towards_a, &towards_b, 1);
    // B has refused, and offers later.
    let tags = [("from-tag", "b"), ("to-tag", "a")];
    let back = rig.offer(&plain_b(), &tags);
    assert_eq!(format!("192.0.2.1:{}", port_of(&back)), towards_a);
    rig.answer(&plain_a(), &tags);
    rig.pass(Duration::from_secs(5));
    talk(&mut rig, &towards_a, &towards_b, 2);
    let offered = rig.offer(&plain_a(), &moved);
    let answered = rig.answer(&plain_b(), &[]);
    let new_a = format!("198.51.100.1:{}", port_of(&answered));
    let new_b = format!("192.0.2.1:{}", port_of(&offered));
    rig.pass(Duration::from_secs(5));
    talk(&mut rig, &new_a, &new_b, 3);
    for old in [&towards_a, &towards_b] {
        let mut open = rig.sockets.values().map(|(_, local)| *local);
        assert!(!open.any(|local| local == addr(old)), "{old} is open");
    }
    let delete = [
        ("command", "delete"),
        ("call-id", "call"),
        ("from-tag", "a"),
        ("delete-delay", "0"),
    ];
    assert_eq!(text(&rig.ask(&command(&delete)), "result"), "ok");
    rig.assert_quiet();
}

/// The ports of a further offer are in use by another program: the offer is refused, and the call keeps its ports.
#[test]
fn further_offer_whose_ports_are_in_use_leaves_the_call() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, towards_b) = call(&mut rig);
    let free = (20_000..20_040).map(|port| addr(&format!("192.0.2.1:{port}")));
    rig.occupied = free.collect();
    let why = rig.refusal(&[
        ("command", "offer"),
        ("call-id", "call"),
        ("from-tag", "a"),
        ("to-tag", "b"),
        ("direction", "[inside,outside]"),
        ("sdp", &plain_a()),
    ]);
    assert_eq!(why, "no media port left");
    rig.pass(Duration::from_secs(5));
    let to_b = rig.send(A, &towards_a, &rtp(7, 1));
    assert_eq!(to_b.map(|(to, _)| to), Some(addr(B)));
    let to_a = rig.send(B, &towards_b, &rtp(9, 1));
    assert_eq!(to_a.map(|(to, _)| to), Some(addr(A)));
    // A further offer over the same interfaces needs no other ports.
    let again = rig.offer(&plain_a(), &[("to-tag", "b")]);
    assert_eq!(format!("198.51.100.1:{}", port_of(&again)), towards_b);
    rig.answer(&plain_b(), &[]);
    let delete = [
        ("command", "delete"),
        ("call-id", "call"),
        ("from-tag", "a"),
        ("delete-delay", "0"),
    ];
    assert_eq!(text(&rig.ask(&command(&delete)), "result"), "ok");
    rig.assert_quiet();
}

/// One call more than recordings are allowed.
#[test]
fn command_is_refused_that_cannot_be_recorded() {
    let config = CONFIG.replace(
        "recordings='/recordings'\n",
        "recordings='/recordings'\nmax_recordings=2\n",
    );
    let mut rig = Rig::new(&config);
    let record = ("flags", "[record-call]");
    for call in ["one", "two"] {
        rig.offer(&plain_a(), &[record, ("call-id", call)]);
    }
    let before = rig.node.census();
    assert_eq!((before.branches, before.recordings), (2, 2));
    let offer = |call| {
        [
            ("command", "offer"),
            ("call-id", call),
            ("from-tag", "a"),
            ("sdp", &*plain_a().leak()),
        ]
    };
    let refused = rig.refusal(&[&offer("three")[..], &[record]].concat());
    assert!(refused.contains("too many recordings"), "{refused}");
    assert_eq!(rig.node.census().branches, 2, "nothing was allocated");
    // A call that is recorded goes on.
    rig.answer(&plain_b(), &[record, ("call-id", "one")]);
    rig.offer(&plain_a(), &[("call-id", "three")]);
    let answer = [
        ("command", "answer"),
        ("call-id", "three"),
        ("from-tag", "a"),
        ("to-tag", "b"),
        ("sdp", &*plain_b().leak()),
        record,
    ];
    let refused = rig.refusal(&answer);
    assert!(refused.contains("too many recordings"), "{refused}");
    rig.ask(&command(&[("command", "delete"), ("call-id", "two")]));
    assert_eq!(text(&rig.ask(&command(&answer)), "result"), "ok");
    assert_eq!(rig.node.census().recordings, 2);
}

#[test]
fn second_recording_within_a_second_has_a_file_of_its_own() {
    let mut rig = Rig::new(CONFIG);
    call(&mut rig);
    for what in ["start recording", "stop recording", "start recording"] {
        let reply = rig.ask(&command(&[("command", what), ("call-id", "call")]));
        assert_eq!(text(&reply, "result"), "ok");
    }
    assert_eq!(rig.files.len(), 2, "{:?}", rig.files.keys());
}

#[test]
fn call_is_recorded_as_a_capture() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, towards_b) = call(&mut rig);
    let execute = |rig: &mut Rig, what: &str| {
        let reply = rig.ask(&command(&[("command", what), ("call-id", "call")]));
        assert_eq!(text(&reply, "result"), "ok");
    };
    rig.send(A, &towards_a, &rtp(7, 1));
    execute(&mut rig, "start recording");
    execute(&mut rig, "start recording");
    for sequence in 2..5 {
        rig.send(A, &towards_a, &rtp(7, sequence));
        rig.send(B, &towards_b, &rtp(9, sequence));
        rig.send("203.0.113.66:6", &towards_a, &rtp(7, sequence));
    }
    assert_eq!(rig.node.census().recordings, 1);
    execute(&mut rig, "stop recording");
    rig.send(A, &towards_a, &rtp(7, 5));
    assert_eq!((rig.node.census().recordings, rig.files.len()), (0, 1));
    let (name, bytes) = rig.files.pop_first().unwrap();
    assert_eq!(name, format!("{}-1-call.pcap", EPOCH + 1));
    // A header of 24 octets, then packets with 16 octets in front: 20 of IP, 8 of UDP, 172 of RTP.
    assert_eq!(bytes.len(), 24 + 6 * (16 + 200));
    let first = &bytes[24 + 16..][..200];
    let ip = wire::ip::Ipv4View::parse(first).unwrap();
    assert!(ip.has_valid_checksum());
    let udp = wire::udp::UdpView::parse(&first[20..]).unwrap();
    assert_eq!(
        (ip.source().to_string(), udp.source_port()),
        ("10.0.0.1".into(), 4000)
    );
    assert_eq!(udp.destination_port(), addr(&towards_a).port());
    assert_eq!(udp.payload(), rtp(7, 2));
    // A recording that starts with its call ends with it.
    rig.offer(
        &plain_a(),
        &[("flags", "[record-call]"), ("call-id", "../x")],
    );
    assert_eq!(rig.node.census().recordings, 1);
    rig.ask(&command(&[("command", "delete"), ("call-id", "../x")]));
    assert_eq!(rig.node.census().recordings, 0);
    let name = rig.files.pop_first().unwrap().0;
    assert!(name.ends_with("-2-.._x.pcap"), "{name}");
    let mut rig = Rig::new(&CONFIG.replace("recordings='/recordings'\n", ""));
    call(&mut rig);
    let why = rig.refusal(&[("command", "start recording"), ("call-id", "call")]);
    assert!(
        why.contains("no folder for recordings is configured"),
        "{why}"
    );
}

fn ask(rig: &mut Rig, what: &str) -> wire::ng::Value {
    let reply = rig.ask(&command(&[("command", what), ("call-id", "call")]));
    assert_eq!(text(&reply, "result"), "ok");
    reply
}

#[test]
fn record_call_starts_and_stops_by_each_spelling_of_its_value() {
    for (on, off) in [
        ("yes", "no"),
        ("on", "off"),
        ("1", "0"),
        ("true", "false"),
        ("On", "OFF"),
    ] {
        let mut rig = Rig::new(CONFIG);
        rig.offer(&plain_a(), &[("record-call", on)]);
        assert_eq!(rig.node.census().recordings, 1, "{on}");
        rig.answer(&plain_b(), &[("record-call", off)]);
        assert_eq!(rig.node.census().recordings, 0, "{off}");
    }
    // The key counts, whether it comes before or after the flag.
    for key in ["record-call", "Record call"] {
        let mut rig = Rig::new(CONFIG);
        rig.offer(&plain_a(), &[("flags", "[record-call]"), (key, "no")]);
        assert_eq!(rig.node.census().recordings, 0, "{key}");
    }
}

/// The disk was full: the recording has ended, and the next `start recording` begins another file.
#[test]
fn recording_whose_file_failed_can_be_started_again() {
    let limited = "recordings='/recordings'\nmax_recordings=1\n";
    let mut rig = Rig::new(&CONFIG.replace("recordings='/recordings'\n", limited));
    let (towards_a, _) = call(&mut rig);
    let is_recorded = |rig: &mut Rig| {
        let reply = ask(rig, "query");
        get(&reply, &["tags", "a", "recording"]).is_some()
    };
    ask(&mut rig, "start recording");
    assert!(is_recorded(&mut rig));
    rig.handle(Input::RecordingFailed { file: 1 });
    assert_eq!(rig.node.census().recordings, 0);
    assert!(!is_recorded(&mut rig));
    rig.send(A, &towards_a, &rtp(7, 1));
    ask(&mut rig, "start recording");
    rig.send(A, &towards_a, &rtp(7, 2));
    let sizes: Vec<usize> = rig.files.values().map(Vec::len).collect();
    assert_eq!(sizes, [24, 24 + 16 + 200]);
    // A late failure of the former file.
    rig.handle(Input::RecordingFailed { file: 1 });
    assert!(is_recorded(&mut rig));
}

/// The driver ends the files of a folder with its use.
#[test]
fn recordings_continue_in_a_new_folder_and_end_without_one() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, _) = call(&mut rig);
    let reload = |rig: &mut Rig, keys: &str| {
        let config = CONFIG.replace("recordings='/recordings'\n", keys);
        let now = rig.now;
        assert!(rig.node.reload(config::parse(&config, "f").unwrap(), now));
        rig.drain();
    };
    ask(&mut rig, "start recording");
    rig.send(A, &towards_a, &rtp(7, 1));
    reload(&mut rig, "recordings='/recordings'\nmax_recordings=7\n");
    assert_eq!(rig.files.len(), 1, "the folder is the same");
    reload(&mut rig, "recordings='/other'\n");
    rig.send(A, &towards_a, &rtp(7, 2));
    let sizes: Vec<usize> = rig.files.values().map(Vec::len).collect();
    assert_eq!(sizes, [24 + 16 + 200; 2]);
    assert_eq!(rig.node.census().recordings, 1);
    reload(&mut rig, "");
    assert_eq!(rig.node.census().recordings, 0);
    assert_eq!(rig.names().last(), Some(&"recording_failed"));
    assert!(rig.send(A, &towards_a, &rtp(7, 3)).is_some());
    let reply = ask(&mut rig, "query");
    assert_eq!(get(&reply, &["tags", "a", "recording"]), None);
}

#[test]
fn commands_over_streams() {
    let mut rig = Rig::new(CONFIG);
    let socket = rig.socket("192.0.2.1:2223");
    let tcp = *rig
        .sockets
        .iter()
        .find(|(_, (kind, _))| kind.stream_transport() == Some(engine::Transport::Tcp))
        .unwrap()
        .0;
    let web = *rig
        .sockets
        .iter()
        .find(|(_, (kind, _))| kind.stream_transport() == Some(engine::Transport::Ws))
        .unwrap()
        .0;
    assert_ne!(socket, tcp);
    let accept = |rig: &mut Rig, number: u64, socket, remote: &str| {
        let connection = ConnectionId(ConnectionId::ACCEPTED | number);
        rig.handle(Input::Accepted {
            connection,
            socket,
            local: addr("192.0.2.1:2223"),
            remote: addr(remote),
        });
        connection
    };
    let one = accept(&mut rig, 1, tcp, "192.0.2.50:1000");
    let mut bytes = Vec::new();
    for cookie in ["x", "y"] {
        NgMessage::write(
            cookie.as_bytes(),
            &command(&[("command", "ping")]),
            &mut bytes,
        );
    }
    for byte in &bytes {
        rig.handle(Input::Stream {
            connection: one,
            bytes: &[*byte],
        });
    }
    let said: Vec<(To, Vec<u8>)> = std::mem::take(&mut rig.said);
    assert_eq!(
        said,
        [
            (To::Stream(one), b"x d6:result4:ponge".to_vec()),
            (To::Stream(one), b"y d6:result4:ponge".to_vec())
        ]
    );
    let two = accept(&mut rig, 2, web, "192.0.2.50:1001");
    rig.handle(Input::Stream {
        connection: two,
        bytes: b"z d7:command4:pinge",
    });
    assert_eq!(
        rig.said.pop(),
        Some((To::Stream(two), b"z d6:result4:ponge".to_vec()))
    );
    // A stream that cannot be parsed is closed; unauthorised commanders are rejected.
    rig.handle(Input::Stream {
        connection: one,
        bytes: b"GET / HTTP/1.1\r\n\r\n",
    });
    let three = accept(&mut rig, 3, tcp, "203.0.113.1:1000");
    rig.handle(Input::Stream {
        connection: three,
        bytes: b"z d7:command4:pinge",
    });
    assert_eq!(rig.closed, [one, three]);
    assert!(rig.said.is_empty());
    assert_eq!(rig.node.census().connections, 1);
    assert_eq!(rig.node.drops().get(DropReason::NgSourceNotAllowed), 1);
    assert_eq!(rig.node.drops().get(DropReason::NgMalformed), 1);
}

#[test]
fn unauthorised_and_invalid_input_is_counted_without_effect() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, _) = call(&mut rig);
    rig.send_command("203.0.113.1:5000", b"x d7:command4:pinge");
    assert!(rig.said.is_empty());
    assert_eq!(rig.node.drops().get(DropReason::NgSourceNotAllowed), 1);
    rig.send_command(PROXY, b"no-cookie");
    assert!(rig.said.is_empty());
    assert_eq!(rig.node.drops().get(DropReason::NgMalformed), 1);
    let deep = [b"q ".to_vec(), b"d1:a".repeat(9_000)].concat();
    for (number, bytes) in [
        &deep[..],
        b"w {\"command\": \"ping\"}",
        b"e d7:command4:pinge ",
        b"r d7:command99999:ping",
        b"t le",
        b"u i1e",
        b"o ",
    ]
    .iter()
    .enumerate()
    {
        rig.send_command(PROXY, bytes);
        let (_, reply) = rig.said.pop().expect("an error is answered");
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.contains("6:result5:error"), "{reply}");
        assert_eq!(
            rig.node.drops().get(DropReason::NgMalformed),
            2 + number as u64
        );
    }
    for (number, body) in [
        "d7:commandi1ee",
        "d7:command5:offer7:call-idli1ee3:sdp1:xe",
        "d7:command5:offer5:flagsdee",
        "d7:command5:offer9:directionl1:aee",
        "d7:command5:offer5:codecd5:stripi1eee",
        "d7:command6:delete7:call-id0:12:delete-delay3:abce",
        "d7:command5:query7:call-id1:\u{1}e",
    ]
    .iter()
    .enumerate()
    {
        rig.send_command(PROXY, format!("n{number} {body}").as_bytes());
        let (_, reply) = rig.said.pop().expect("an error is answered");
        assert!(String::from_utf8_lossy(&reply).contains("6:result5:error"));
    }
    // Stored text is limited, and a reply that does not fit into a datagram is not sent in parts.
    let long = "x".repeat(513);
    let why = rig.refusal(&[("command", "query"), ("call-id", &long)]);
    assert_eq!(why, "\"call-id\" is longer than 512 octets");
    // STUN and DTLS at a port where neither is expected.
    let stun = protect::stun::Builder::new(protect::stun::message_type::BINDING_REQUEST, [7; 12])
        .finish(None);
    assert_eq!(rig.send(A, &towards_a, &stun), None);
    assert_eq!(rig.node.drops().get(DropReason::StunUnexpected), 1);
    assert!(
        rig.send(A, &towards_a, &rtp(7, 1)).is_some(),
        "the call continues"
    );
}

#[test]
fn drain_waits_for_calls_and_refuses_new_ones() {
    let mut rig = Rig::new(CONFIG);
    call(&mut rig);
    let now = rig.now;
    rig.node.drain(Duration::from_secs(30), now);
    rig.drain();
    assert!(!rig.node.is_drained());
    let mut pairs = vec![("command", "offer"), ("call-id", "new"), ("from-tag", "a")];
    let offer = plain_a();
    pairs.push(("sdp", &offer));
    assert!(rig.refusal(&pairs).contains("shutting down"));
    // An established call may change.
    rig.offer(&plain_a(), &[("to-tag", "b")]);
    rig.answer(&plain_b(), &[]);
    rig.pass(Duration::from_secs(29));
    assert!(!rig.node.is_drained());
    rig.pass(Duration::from_secs(2));
    assert!(rig.node.is_drained());
    rig.assert_quiet();
    let reported: Vec<String> = rig
        .events
        .iter()
        .map(|event| event.kind.name().to_owned())
        .collect();
    assert_eq!(
        reported
            .iter()
            .filter(|name| *name == "drain_finished")
            .count(),
        1
    );
    let mut idle = Rig::new(CONFIG);
    let now = idle.now;
    idle.node.drain(Duration::from_secs(30), now);
    idle.drain();
    assert!(idle.node.is_drained());
}

#[test]
fn reload_opens_and_closes_sockets_and_calls_continue() {
    let mut rig = Rig::new(CONFIG);
    let (towards_a, _) = call(&mut rig);
    let config = CONFIG
        .replace("'udp:192.0.2.1:2223',", "'udp:192.0.2.1:2229',")
        .replace("20000-20039", "21000-21039");
    let now = rig.now;
    assert!(rig.node.reload(config::parse(&config, "f").unwrap(), now));
    rig.drain();
    let doors: Vec<u16> = rig
        .sockets
        .values()
        .filter(|(kind, _)| *kind == engine::SocketKind::UdpSignalling)
        .map(|(_, local)| local.port())
        .collect();
    assert_eq!(doors, [2229]);
    assert!(rig.send(A, &towards_a, &rtp(7, 1)).is_some());
    let without = "[[interface]]\nname='a'\nlisten='udp:192.0.2.1'\n";
    let without = config::parse(without, "f").unwrap();
    assert!(!rig.node.reload(without, now));
}

#[test]
fn listener_that_could_not_be_opened_is_tried_again() {
    let mut rig = Rig::new(CONFIG);
    let address = "192.0.2.1:2225";
    rig.occupied = vec![addr(address)];
    let wanted = CONFIG.replace("listen=[", "listen=['udp:192.0.2.1:2225',");
    let reload = |rig: &mut Rig, config: &str| {
        let now = rig.now;
        assert!(rig.node.reload(config::parse(config, "f").unwrap(), now));
        rig.drain();
    };
    let is_open = |rig: &Rig| {
        let mut sockets = rig.sockets.values();
        sockets.any(|(_, local)| *local == addr(address))
    };
    let failed = |rig: &Rig| {
        let names = rig.names();
        names
            .iter()
            .filter(|name| **name == "socket_failed")
            .count()
    };
    reload(&mut rig, &wanted);
    assert_eq!((is_open(&rig), failed(&rig)), (false, 1));
    // One timer, also after several reloads; it tries until the port is free.
    reload(&mut rig, &wanted);
    assert_eq!((failed(&rig), rig.node.census().timers), (2, 1));
    rig.pass(Duration::from_secs(81));
    assert_eq!((is_open(&rig), failed(&rig)), (false, 4));
    rig.occupied.clear();
    rig.pass(Duration::from_secs(40));
    assert!(is_open(&rig));
    assert_eq!((failed(&rig), rig.node.census().timers), (4, 0));
    // At a reload at once.
    reload(&mut rig, CONFIG);
    assert!(!is_open(&rig));
    rig.occupied = vec![addr(address)];
    reload(&mut rig, &wanted);
    rig.occupied.clear();
    reload(&mut rig, &wanted);
    assert!(is_open(&rig));
    // A listener that is not open is not closed, and not tried again after its removal.
    let other = CONFIG.replace("listen=[", "listen=['udp:192.0.2.1:2226',");
    rig.occupied = vec![addr("192.0.2.1:2226")];
    reload(&mut rig, &other);
    reload(&mut rig, CONFIG);
    let before = failed(&rig);
    rig.pass(Duration::from_secs(100));
    assert_eq!((failed(&rig), rig.node.census().timers), (before, 0));
}

const COMMANDS: &[&str] = &[
    "offer",
    "offer",
    "answer",
    "answer",
    "delete",
    "query",
    "list",
    "block media",
    "unblock media",
    "start recording",
    "stop recording",
];

/// Keys with values that a commander may send, valid or not.
const PAIRS: &[(&str, &str)] = &[
    ("to-tag", "b"),
    ("to-tag", "a"),
    ("to-tag", ""),
    ("via-branch", "1"),
    ("via-branch", "2"),
    ("transport-protocol", "RTP/SAVP"),
    ("transport-protocol", "RTP/AVPF"),
    ("transport-protocol", "UDP/TLS/RTP/SAVPF"),
    ("ICE", "force"),
    ("ICE", "remove"),
    ("DTLS", "off"),
    ("SDES", "[off]"),
    ("OSRTP", "[offer]"),
    ("rtcp-mux", "[require]"),
    ("rtcp-mux", "[demux]"),
    ("direction", "[inside,outside]"),
    ("address-family", "IP6"),
    ("media-address", "203.0.113.1"),
    ("flags", "[asymmetric,generate-mid]"),
    ("flags", "[strict-source,loop-protect]"),
    ("flags", "[record-call]"),
    ("flags", "[codec-strip-all]"),
    ("flags", "[all]"),
    ("replace", "[origin]"),
    ("delete-delay", "3"),
    ("TOS", "64"),
    ("TOS", "184"),
];

fn descriptions() -> Vec<String> {
    let crypto =
        "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n";
    vec![
        plain_a(),
        plain_b(),
        sdp("10.0.0.3", 6000, "RTP/SAVP", crypto),
        sdp("10.0.0.3", 6000, "RTP/AVP", "a=rtcp-mux\r\na=inactive\r\n"),
        sdp(
            "2001:db8::9",
            6000,
            "RTP/AVP",
            "m=video 7000 RTP/AVP 31\r\n",
        ),
        sdp("10.0.0.4", 0, "RTP/AVP", ""),
        sdp("10.0.0.4", 9, "TCP/MSRP", ""),
        "v=0\r\n".to_owned(),
        "rubbish".to_owned(),
    ]
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        failure_persistence: None,
        cases: 96,
        ..proptest::prelude::ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_commands_leave_no_state(
        steps in proptest::collection::vec(
            (0..COMMANDS.len(), 0..3usize, 0..2usize, 0..9usize,
             proptest::collection::vec(0..PAIRS.len(), 0..4), 0..8u64),
            1..25,
        ),
        taken in proptest::collection::vec(0..40u16, 0..6),
    ) {
        let mut rig = Rig::new(CONFIG);
        rig.occupied = taken
            .iter()
            .map(|port| addr(&format!("192.0.2.1:{}", 20_000 + port)))
            .collect();
        let descriptions = descriptions();
        for (what, call, from, body, more, seconds) in steps {
            let mut pairs = vec![
                ("command", COMMANDS[what]),
                ("call-id", ["x", "y", "z"][call]),
                ("from-tag", ["a", "b"][from]),
            ];
            if matches!(COMMANDS[what], "offer" | "answer") {
                pairs.push(("sdp", &descriptions[body]));
            }
            for at in more {
                if !pairs.iter().any(|(key, _)| *key == PAIRS[at].0) {
                    pairs.push(PAIRS[at]);
                }
            }
            let reply = rig.ask(&command(&pairs));
            let result = text(&reply, "result");
            proptest::prop_assert!(matches!(result.as_str(), "ok" | "error"), "{}", result);
            rig.pass(Duration::from_secs(seconds));
            let census = rig.node.census();
            proptest::prop_assert_eq!(census.waiting, 0);
            proptest::prop_assert!(census.calls <= census.branches);
            proptest::prop_assert_eq!(census.sessions, rig.forwarder.sessions());
        }
        for call in ["x", "y", "z"] {
            rig.ask(&command(&[("command", "delete"), ("call-id", call), ("delete-delay", "0")]));
        }
        rig.assert_quiet();
    }
}
