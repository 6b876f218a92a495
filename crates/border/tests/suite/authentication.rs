//! Digest authentication of phones: failures are logged and limited, challenges are no failures, users have numbers.

use crate::virtual_network;

use border::registrar::LockedOut;
use engine::EventKind;
use sip::{Login, MessageContent};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId};

fn users(more: &str) -> String {
    format!(
        "[[interface]]\nname='out'\nkind='access'\nlisten='udp:192.0.2.1:5060'\nauthenticate='digest'\nregister='local'\n\
         [[user]]\nname='1000'\npassword='right'\n{more}"
    )
}

/// Registers `aor` with these credentials. Returns the status.
fn register(net: &mut VirtualNetwork, phone: usize, aor: &str, user: &str, password: &str) -> u16 {
    let contact = format!("<sip:{aor}@{}>", net.phones[phone].address);
    register_at(net, phone, aor, (user, password), &contact)
}

fn register_at(
    net: &mut VirtualNetwork,
    phone: usize,
    aor: &str,
    (user, password): (&str, &str),
    contact: &str,
) -> u16 {
    let request = RegisterRequest {
        login: Some(Login {
            user: user.as_bytes(),
            password: password.as_bytes(),
        }),
        ..RegisterRequest::new(aor, contact)
    };
    net.send_register(phone, &request);
    net.run(Duration::from_millis(100));
    let reported = net.phone_events(phone);
    match reported.last() {
        Some(PhoneEvent::OutOfDialogResponse(status)) => *status,
        other => panic!("no answer: {other:?}"),
    }
}

/// A Contact may name any host: calls go to the flow that registered it, unless the interface is configured otherwise.
#[test]
fn contact_of_another_host_is_routed_to_its_flow() {
    for (more, own) in [("", true), ("contacts='address'\n", false)] {
        let config = users("[[user]]\nname='2000'\npassword='other'\n")
            .replace("register='local'\n", &format!("register='local'\n{more}"));
        let mut net = VirtualNetwork::new(&config, 5);
        let phone = net.phone("198.51.100.7:5060", PhoneBehaviour::answering(SDP_A));
        let foreign = net.phone("203.0.113.9:5060", PhoneBehaviour::answering(SDP_B));
        let caller = net.phone("198.51.100.8:5060", PhoneBehaviour::answering(SDP_B));
        let contact = "<sip:1000@203.0.113.9:5060>";
        let status = register_at(&mut net, phone, "1000", ("1000", "right"), contact);
        assert_eq!(status, 200);
        net.call_with(
            caller,
            "sip:1000@192.0.2.1",
            OUT,
            &MessageContent::sdp(SDP_A.as_bytes()),
            |invite| {
                invite.from = Some(b"<sip:2000@192.0.2.1>");
                invite.login = Some(Login {
                    user: b"2000",
                    password: b"other",
                });
            },
        );
        net.run(seconds(1));
        assert_eq!(
            net.has(phone, |event| *event == PhoneEvent::Offered),
            own,
            "{more}"
        );
        assert_eq!(
            net.has(foreign, |event| *event == PhoneEvent::Offered),
            !own,
            "{more}"
        );
    }
}

/// The INVITE of a phone behind the raw source `10.1.0.9:5060`.
fn raw_invite(cseq: u32, call_id: &str, extra: &str) -> String {
    format!(
        "INVITE sip:2000@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.9:5060;branch=z9hG4bKc{cseq}{call_id}\r\n\
         Max-Forwards: 70\r\nFrom: <sip:1000@192.0.2.1>;tag=1\r\nTo: <sip:2000@192.0.2.1>\r\nCall-ID: {call_id}\r\n\
         CSeq: {cseq} INVITE\r\nContact: <sip:1000@10.1.0.9:5060>\r\n{extra}Content-Length: 0\r\n\r\n"
    )
}

const CREDENTIALS: &str = "Proxy-Authorization: Digest username=\"1000\", realm=\"pbx\", nonce=\"n\", uri=\"sip:x\", response=\"r\"\r\n";

/// The trunk authenticates: the INVITE with credentials reaches it with Call-ID and From tag of the challenged INVITE,
/// and the next CSeq (RFC 3261 section 22.2).
#[test]
fn invite_with_credentials_repeats_the_challenged_one_towards_the_trunk() {
    let mut net = VirtualNetwork::new(PLAIN, 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[pbx].log.behaviour.progress.clear();
    net.phones[pbx].log.behaviour.answer = Some(407);
    let steps = [
        (1, "one", ""),
        (2, "one", CREDENTIALS),
        (3, "one", CREDENTIALS),
        (1, "two", ""),
        (2, "three", CREDENTIALS),
    ];
    for (cseq, call_id, extra) in steps {
        let invite = raw_invite(cseq, call_id, extra);
        net.send_raw("10.1.0.9:5060", OUT, invite.as_bytes());
        net.run(seconds(1));
    }
    let offered: Vec<[String; 3]> = net
        .log(pbx)
        .iter()
        .filter(|entry| entry.event == PhoneEvent::Offered)
        .map(|entry| {
            let from = entry.header("From");
            let tag = from.split("tag=").nth(1).expect("tag").to_owned();
            let (call_id, cseq) = (entry.header("Call-ID"), entry.header("CSeq"));
            [call_id.to_owned(), tag, cseq.to_owned()]
        })
        .collect();
    let [first, second, third, other, without] = &offered[..] else {
        panic!("{offered:?}");
    };
    // Also after a second challenge.
    for (repeated, cseq) in [(second, "2 INVITE"), (third, "3 INVITE")] {
        assert_eq!(first[..2], repeated[..2], "Call-ID and From tag");
        assert_eq!(repeated[2], cseq);
    }
    for new in [other, without] {
        assert!(new[0] != first[0] && new[1] != first[1], "{offered:?}");
        assert_eq!(new[2], "1 INVITE");
    }
    assert_ne!(other[0], without[0]);
    assert!(!first[0].contains("one"), "the caller's Call-ID is hidden");
}

/// The dialog of a repeated INVITE, whose tag is that of the ended leg, is found by requests of the trunk.
#[test]
fn dialog_of_a_repeated_invite_is_found_by_its_tag() {
    let mut net = VirtualNetwork::new(PLAIN, 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[pbx].log.behaviour.answer = Some(407);
    net.phones[pbx].log.behaviour.progress.clear();
    net.send_raw("10.1.0.9:5060", OUT, raw_invite(1, "one", "").as_bytes());
    net.run(seconds(1));
    net.phones[pbx].log.behaviour.answer = Some(200);
    let offer = format!(
        "{CREDENTIALS}Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{SDP_A}",
        SDP_A.len()
    );
    let invite = raw_invite(2, "one", "").replace("Content-Length: 0\r\n\r\n", &offer);
    net.send_raw("10.1.0.9:5060", OUT, invite.as_bytes());
    net.run(seconds(1));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let sent: Vec<String> = net.wire.iter().map(|(_, bytes)| text(bytes)).collect();
    let answer = sent
        .iter()
        .find(|text| text.starts_with("SIP/2.0 200") && text.contains("CSeq: 2 INVITE"));
    let mut lines = answer.expect("answer").split("\r\n");
    let to = lines.find(|line| line.starts_with("To:"));
    let to = to.expect("To").to_owned();
    let ack = format!(
        "ACK sip:192.0.2.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.9:5060;branch=z9hG4bKack\r\nMax-Forwards: 70\r\n\
         From: <sip:1000@192.0.2.1>;tag=1\r\n{to}\r\nCall-ID: one\r\nCSeq: 2 ACK\r\nContent-Length: 0\r\n\r\n"
    );
    net.send_raw("10.1.0.9:5060", OUT, ack.as_bytes());
    net.run(seconds(1));
    let leg = net
        .last(pbx, |event| *event == PhoneEvent::Acked)
        .leg
        .expect("leg");
    net.wire.clear();
    net.command(pbx, |endpoint, now| {
        endpoint
            .hang_up(leg, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    let caller = "10.1.0.9:5060".parse().unwrap();
    let mut sent = net.wire.iter().filter(|(to, _)| *to == caller);
    assert!(sent.any(|(_, bytes)| bytes.starts_with(b"BYE ")));
}

/// A challenge of the trunk is no failed call; a refusal of credentials is one.
#[test]
fn challenge_of_the_trunk_is_no_failed_call() {
    let mut net = VirtualNetwork::new(PLAIN, 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[pbx].log.behaviour.progress.clear();
    net.phones[pbx].log.behaviour.answer = Some(407);
    for (cseq, extra, counted, reason) in [(1, "", 0, "challenged"), (2, CREDENTIALS, 1, "refused")]
    {
        net.events.clear();
        let invite = raw_invite(cseq, "one", extra);
        net.send_raw("10.1.0.9:5060", OUT, invite.as_bytes());
        net.run(seconds(1));
        let counters = net.border.counters();
        assert_eq!((counters.offered, counters.refused), (counted, counted));
        let ended = net.events.iter().find_map(|event| match &event.kind {
            EventKind::CallEnded { reason, status, .. } => Some((reason.as_str(), *status)),
            _ => None,
        });
        assert_eq!(ended, Some((reason, 407)));
        let required = net.events.iter().find_map(|event| match &event.kind {
            EventKind::AuthenticationRequired { trunk, .. } => trunk.as_deref(),
            _ => None,
        });
        assert_eq!(required, (counted == 0).then_some("pbx"));
    }
}

fn failures(net: &VirtualNetwork) -> Vec<(String, String, String, u64)> {
    let note = |event: &engine::Event| match &event.kind {
        EventKind::AuthenticationFailed {
            source,
            user,
            reason,
            suppressed: unreported,
            ..
        } => Some((source.clone(), user.clone(), reason.clone(), *unreported)),
        _ => None,
    };
    net.events.iter().filter_map(note).collect()
}

#[test]
fn challenge_lockout_limits_attempts_and_spares_the_registered_phone() {
    let mut net = VirtualNetwork::new(&users(""), 5);
    let phone = net.phone("198.51.100.7:5060", PhoneBehaviour::answering(SDP_A));
    let attacker = net.phone("203.0.113.9:5060", PhoneBehaviour::answering(SDP_B));
    assert_eq!(register(&mut net, phone, "1000", "1000", "right"), 200);
    let required = net
        .names()
        .iter()
        .filter(|name| **name == "authentication_required")
        .count();
    assert_eq!(
        (required, failures(&net).len()),
        (1, 0),
        "a challenge is not a failure"
    );
    assert!(net.names().contains(&"authenticated"));
    let mut judged = 0;
    for number in 0..300 {
        let status = register(
            &mut net,
            attacker,
            "1000",
            "1000",
            &format!("wrong{number}"),
        );
        match status {
            401 => judged += 1,
            503 => {}
            other => panic!("{other}"),
        }
    }
    // In 30 s: ten, and one more after the first delay at most.
    assert!((10..=11).contains(&judged), "{judged}");
    assert!(
        net.last(attacker, |event| *event
            == PhoneEvent::OutOfDialogResponse(503))
            .header("Retry-After")
            .parse::<u64>()
            .unwrap()
            > 0
    );
    let reported = failures(&net);
    let reasons = |reason: &str| reported.iter().filter(|event| event.2 == reason).count();
    assert_eq!(reasons("wrong password"), judged);
    assert!(reported[0].0.starts_with("203.0.113.9") && reported[0].1 == "1000");
    assert!(
        (20..=80).contains(&reported.len()),
        "bounded: {}",
        reported.len()
    );
    let unreported: u64 = reported.iter().map(|event| event.3).sum();
    assert!(unreported + reported.len() as u64 >= 220, "{unreported}");
    assert_eq!(net.border.counters().authentication_failed, 300);
    // The correct password from the attacker's address is not checked either; the phone at its own address registers.
    assert_eq!(register(&mut net, attacker, "1000", "1000", "right"), 503);
    assert_eq!(register(&mut net, phone, "1000", "1000", "right"), 200);
    // Nor is it at another port of the attacker's address.
    let moved = net.phone("198.51.100.7:6060", PhoneBehaviour::answering(SDP_A));
    assert_eq!(register(&mut net, moved, "1000", "1000", "right"), 200);
}

fn behind_the_trunk() -> String {
    PLAIN.replace(
        "kind='access'\n",
        "kind='access'\nregister='pass:pbx'\nauthenticate='trunk'\n",
    )
}

/// A REGISTER with credentials for the trunk. Returns the status of the response.
fn register_at_trunk(
    net: &mut VirtualNetwork,
    source: &str,
    (user, nonce): (&str, &str),
    number: usize,
) -> u16 {
    let text = format!(
        "REGISTER sip:192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP {source};branch=z9hG4bKt{number}\r\nMax-Forwards: 70\r\n\
         From: <sip:1000@192.0.2.1>;tag={number}\r\nTo: <sip:1000@192.0.2.1>\r\nCall-ID: t{number}\r\n\
         CSeq: 1 REGISTER\r\nContact: <sip:1000@{source}>\r\nAuthorization: Digest username=\"{user}\", \
         realm=\"pbx\", nonce=\"{nonce}\", uri=\"sip:192.0.2.1\", response=\"{number:032x}\"\r\n\
         Content-Length: 0\r\n\r\n"
    );
    net.wire.clear();
    net.send_raw(source, OUT, text.as_bytes());
    net.run(Duration::from_millis(100));
    let source: std::net::SocketAddr = source.parse().unwrap();
    let sent = net.wire.iter().rev().find(|(to, _)| *to == source);
    let answer = String::from_utf8_lossy(&sent.expect("answer").1).into_owned();
    let status: u16 = answer[8..11].parse().unwrap();
    assert_eq!(status == 503, answer.contains("Retry-After: "), "{answer}");
    status
}

/// Wrong passwords that the trunk refuses are limited and logged as those that the border verifies; the right phone at
/// its own address is not locked out, although its user name is not its address of record.
#[test]
fn wrong_passwords_at_the_trunk_are_limited() {
    let mut net = VirtualNetwork::new(&behind_the_trunk(), 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let (phone, attacker) = ("198.51.100.7:5060", "203.0.113.9:5060");
    assert_eq!(
        register_at_trunk(&mut net, phone, ("u1000", "n"), 1_000),
        200
    );
    net.phones[pbx].log.behaviour.outside = Some(401);
    net.phones[pbx].log.entries.clear();
    for number in 0..250 {
        let status = register_at_trunk(&mut net, attacker, ("u1000", "n"), number);
        assert!(matches!(status, 401 | 503), "{status}");
    }
    let registers = |net: &VirtualNetwork| {
        let entries = net.log(pbx).iter();
        entries
            .filter(|entry| matches!(entry.event, PhoneEvent::OutOfDialog(_)))
            .count()
    };
    // The first delay of 30 s is not over.
    let judged = registers(&net);
    assert_eq!(judged, 10);
    let reported = failures(&net);
    let reasons = |reason: &str| reported.iter().filter(|event| event.2 == reason).count();
    assert_eq!(reasons("refused by trunk pbx"), judged);
    assert!(reported[0].0.starts_with("203.0.113.9") && reported[0].1 == "u1000");
    assert!(reported.len() <= 80, "bounded: {}", reported.len());
    assert_eq!(net.border.counters().authentication_failed, 250);
    // An INVITE with credentials is another way to try passwords.
    let wrong = CREDENTIALS.replace("1000", "u1000");
    let invite = raw_invite(1, "one", &wrong).replace("10.1.0.9", "203.0.113.9");
    net.wire.clear();
    net.send_raw(attacker, OUT, invite.as_bytes());
    net.run(seconds(1));
    assert!(!net.has(pbx, |event| *event == PhoneEvent::Offered));
    net.phones[pbx].log.behaviour.outside = Some(200);
    assert_eq!(
        register_at_trunk(&mut net, attacker, ("u1000", "n"), 400),
        503
    );
    assert_eq!(register_at_trunk(&mut net, phone, ("u1000", "m"), 401), 200);
}

/// INVITEs count as well.
#[test]
fn wrong_passwords_in_invites_to_the_trunk_are_limited() {
    let mut net = VirtualNetwork::new(&behind_the_trunk(), 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[pbx].log.behaviour.progress.clear();
    for answer in [407, 403] {
        net.phones[pbx].log.behaviour.answer = Some(answer);
        net.phones[pbx].log.entries.clear();
        for number in 0..60 {
            let wrong = CREDENTIALS.replace("1000", &format!("u{answer}"));
            let invite = raw_invite(1, &format!("c{answer}x{number}"), &wrong);
            net.send_raw("10.1.0.9:5060", OUT, invite.as_bytes());
            net.run(Duration::from_millis(100));
        }
        let offered = net.log(pbx).iter();
        let offered = offered.filter(|entry| entry.event == PhoneEvent::Offered);
        assert_eq!(offered.count(), 10, "{answer}");
    }
}

/// A nonce with which the trunk has accepted a user has expired: the challenge is no failure, also without `stale`.
#[test]
fn expired_nonce_at_the_trunk_is_no_failure() {
    let mut net = VirtualNetwork::new(&behind_the_trunk(), 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let phone = "198.51.100.7:5060";
    for number in 0..40 {
        let nonce = format!("n{number}");
        for (status, last) in [(200, 0), (401, 1)] {
            net.phones[pbx].log.behaviour.outside = Some(status);
            let number = 2 * number + last;
            let got = register_at_trunk(&mut net, phone, ("u1000", &nonce), number);
            assert_eq!(got, status);
        }
    }
    assert!(failures(&net).is_empty(), "{:?}", failures(&net));
}

/// The right owner at a new address is locked out by the failures of others: operators see it and can end it.
#[test]
fn locked_account_is_listed_and_unlocked_by_its_name() {
    let mut net = VirtualNetwork::new(&users(""), 5);
    for number in 0..10 {
        let source = format!("203.0.113.{}:5060", number + 1);
        let attacker = net.phone(&source, PhoneBehaviour::answering(SDP_B));
        assert_eq!(register(&mut net, attacker, "1000", "1000", "wrong"), 401);
    }
    let owner = net.phone("198.51.100.7:5060", PhoneBehaviour::answering(SDP_A));
    assert_eq!(register(&mut net, owner, "1000", "1000", "right"), 503);
    let now = net.now;
    let listed = net.border.lockouts(now);
    let names: Vec<String> = listed.iter().map(|(who, _)| who.to_string()).collect();
    assert_eq!(names, ["user:1000"]);
    let lockout = LockedOut::parse("user:1000").unwrap();
    assert!(net.border.remove_lockout(&lockout, now));
    assert!(!net.border.remove_lockout(&lockout, now));
    assert!(net.border.lockouts(now).is_empty());
    assert_eq!(register(&mut net, owner, "1000", "1000", "right"), 200);
}

/// A registered phone at the same address as an attacker is recognised by its flow.
#[test]
fn registered_flow_is_never_locked_out() {
    let mut net = VirtualNetwork::new(&users(""), 5);
    let phone = net.phone("198.51.100.7:5060", PhoneBehaviour::answering(SDP_A));
    let neighbour = net.phone("198.51.100.7:7070", PhoneBehaviour::answering(SDP_B));
    assert_eq!(register(&mut net, phone, "1000", "1000", "right"), 200);
    for number in 0..60 {
        register(
            &mut net,
            neighbour,
            "1000",
            "1000",
            &format!("wrong{number}"),
        );
    }
    assert_eq!(register(&mut net, neighbour, "1000", "1000", "right"), 503);
    assert_eq!(register(&mut net, phone, "1000", "1000", "right"), 200);
}

/// No response reveals whether a user exists.
#[test]
fn unknown_users_fail_like_known_ones() {
    let mut net = VirtualNetwork::new(&users(""), 5);
    let mut statuses = Vec::new();
    for (number, user) in ["1000", "6666"].into_iter().enumerate() {
        let source = format!("203.0.113.{}:5060", number + 1);
        let attacker = net.phone(&source, PhoneBehaviour::answering(SDP_B));
        let tried: Vec<u16> = (0..15)
            .map(|number| register(&mut net, attacker, user, user, &format!("wrong{number}")))
            .collect();
        statuses.push(tried);
    }
    assert_eq!(statuses[0], statuses[1]);
    let reported = failures(&net);
    assert!(reported.iter().any(|event| event.2 == "unknown user"));
}

#[test]
fn user_calls_with_and_is_reached_at_its_numbers() {
    let config =
        users("numbers=['+43123450','+4312345*']\n[[user]]\nname='2000'\npassword='other'\n")
            .replace("'+43123450',", "'+4369912345',");
    let mut net = VirtualNetwork::new(&config, 5);
    let pbx = net.phone("198.51.100.7:5060", PhoneBehaviour::answering(SDP_A));
    let other = net.phone("198.51.100.8:5060", PhoneBehaviour::answering(SDP_B));
    assert_eq!(register(&mut net, pbx, "1000", "1000", "right"), 200);
    assert_eq!(register(&mut net, other, "2000", "2000", "other"), 200);
    let call = |net: &mut VirtualNetwork,
                phone: usize,
                from: &str,
                to: &str,
                login: (&'static str, &'static str)| {
        let from: &'static str = format!("<sip:{from}@192.0.2.1>").leak();
        let uri = format!("sip:{to}@192.0.2.1");
        net.call_with(
            phone,
            &uri,
            OUT,
            &MessageContent::sdp(SDP_A.as_bytes()),
            |invite| {
                invite.from = Some(from.as_bytes());
                invite.login = Some(Login {
                    user: login.0.as_bytes(),
                    password: login.1.as_bytes(),
                });
            },
        );
        net.run(seconds(1));
        let failed = net
            .phone_events(phone)
            .iter()
            .rev()
            .find_map(|event| match event {
                PhoneEvent::Failed(_, status) => Some(*status),
                PhoneEvent::Answered => Some(200),
                _ => None,
            });
        failed.unwrap_or(0)
    };
    let login = ("1000", "right");
    for from in ["1000", "+4312345", "+431234567", "+4369912345"] {
        assert_eq!(call(&mut net, pbx, from, "2000", login), 200, "{from}");
    }
    for from in ["2000", "+4399", "+43699123456"] {
        assert_eq!(call(&mut net, pbx, from, "2000", login), 403, "{from}");
    }
    // A call to the user's number reaches the phone that registered with the user name.
    let login = ("2000", "other");
    for to in ["1000", "+43123459", "+4369912345"] {
        assert_eq!(call(&mut net, other, "2000", to, login), 200, "{to}");
    }
    assert_eq!(call(&mut net, other, "2000", "+4399", login), 404);
    // A phone may register the number, too.
    let elsewhere = net.phone("198.51.100.9:5060", PhoneBehaviour::answering(SDP_B));
    assert_eq!(
        register(&mut net, elsewhere, "+43123459", "1000", "right"),
        200
    );
    assert_eq!(register(&mut net, elsewhere, "+4399", "1000", "right"), 403);
    assert_eq!(call(&mut net, other, "2000", "+43123459", login), 200);
    assert!(net.has(elsewhere, |event| *event == PhoneEvent::Offered));
}

/// One account must not fill the registrar with the numbers of its prefix.
#[test]
fn registered_numbers_of_a_user_are_limited() {
    let config = users("numbers='+4312345*'\n[registrar]\nmax_numbers=3\n");
    let mut net = VirtualNetwork::new(&config, 5);
    let pbx = net.phone("198.51.100.7:5060", PhoneBehaviour::answering(SDP_A));
    let mut status = |number: &str| register(&mut net, pbx, number, "1000", "right");
    for digit in 0..3 {
        assert_eq!(status(&format!("+4312345{digit}")), 200);
    }
    assert_eq!(status("+43123453"), 503);
    assert_eq!(status("+43123452"), 200, "a registered number");
    assert_eq!(status("1000"), 200, "the name is not limited");
    let removed = net.control(|border, now| border.remove_registration("+43123450", now));
    assert_eq!(removed, 1);
    let status = register(&mut net, pbx, "+43123453", "1000", "right");
    assert_eq!(status, 200);
}

/// RFC 3323 section 4.1.1.3, RFC 3325 section 6: From names no user, so the credentials and the preferred identity do.
#[test]
fn user_calls_with_its_number_withheld() {
    // The number of the trunk would be shown instead.
    for trunk in ["", "from_user='4910'\n"] {
        calls_with_the_number_withheld(trunk);
    }
}

fn calls_with_the_number_withheld(trunk: &str) {
    let digest = "kind='access'\nauthenticate='digest'\nregister='local'\n";
    let config = format!(
        "{}{trunk}[[user]]\nname='1000'\npassword='right'\nnumbers=['+43123450']\n\
         [[user]]\nname='2000'\npassword='other'\n[[route]]\ntrunk='pbx'\n",
        PLAIN.replace("kind='access'\n", digest)
    );
    let mut net = VirtualNetwork::new(&config, 5);
    let phone = net.phone("198.51.100.7:5060", PhoneBehaviour::answering(SDP_A));
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let cases = [
        ("<sip:anonymous@anonymous.invalid>", "", Some("<sip:1000@")),
        (
            "<sip:anonymous@anonymous.invalid>",
            "<sip:2000@192.0.2.1>, <sip:+43123450@192.0.2.1>",
            Some("<sip:+43123450@"),
        ),
        ("<sip:2000@anonymous.invalid>", "", None),
        ("<sip:2000@192.0.2.1>", "<sip:1000@192.0.2.1>", None),
    ];
    for (from, preferred, asserted) in cases {
        let edits = [
            Edit::Add {
                id: HeaderId::Privacy,
                value: b"id",
            },
            Edit::Add {
                id: HeaderId::PPreferredIdentity,
                value: preferred.as_bytes(),
            },
        ];
        let edits = if preferred.is_empty() {
            &edits[..1]
        } else {
            &edits
        };
        net.call_with(
            phone,
            "sip:+4311@192.0.2.1",
            OUT,
            &MessageContent::sdp(SDP_A.as_bytes()).with(edits),
            |invite| {
                invite.from = Some(from.as_bytes());
                invite.login = Some(Login {
                    user: b"1000",
                    password: b"right",
                });
            },
        );
        net.run(seconds(1));
        let offered = net.log(pbx).iter().rev();
        let mut offered = offered.filter(|entry| entry.event == PhoneEvent::Offered);
        let offered = offered.next();
        match asserted {
            Some(asserted) => {
                let invite = offered.unwrap_or_else(|| panic!("{:?}", net.phone_events(phone)));
                let caller = invite.header("From");
                assert!(
                    caller.contains("<sip:anonymous@anonymous.invalid>"),
                    "{caller}"
                );
                let identity = invite.header("P-Asserted-Identity");
                assert!(identity.starts_with(asserted), "{identity}");
            }
            None => {
                let last = net.last(phone, |event| matches!(event, PhoneEvent::Failed(..)));
                assert!(matches!(last.event, PhoneEvent::Failed(_, 403)), "{from}");
                assert!(offered.is_none(), "{from}");
            }
        }
        net.phones[pbx].log.entries.clear();
    }
}

/// The phone's flow is never delayed, also with its number withheld; another account is, with any preferred identity.
#[test]
fn withheld_number_does_not_evade_the_lockout() {
    let config = users("[[user]]\nname='2000'\npassword='other'\n");
    let mut net = VirtualNetwork::new(&config, 5);
    let phone = net.phone("198.51.100.8:5060", PhoneBehaviour::answering(SDP_A));
    let other = net.phone("198.51.100.9:5060", PhoneBehaviour::answering(SDP_B));
    assert_eq!(register(&mut net, phone, "2000", "2000", "other"), 200);
    assert_eq!(register(&mut net, other, "1000", "1000", "right"), 200);
    let call =
        |net: &mut VirtualNetwork, phone: usize, user: &'static str, password: &'static str| {
            let edits = [Edit::Add {
                id: HeaderId::PPreferredIdentity,
                value: b"<sip:2000@192.0.2.1>",
            }];
            net.call_with(
                phone,
                "sip:2000@192.0.2.1",
                OUT,
                &MessageContent::sdp(SDP_A.as_bytes()).with(&edits),
                |invite| {
                    invite.from = Some(b"<sip:anonymous@anonymous.invalid>");
                    invite.login = Some(Login {
                        user: user.as_bytes(),
                        password: password.as_bytes(),
                    });
                },
            );
            net.run(seconds(1));
            let mut events = net.phone_events(phone).into_iter().rev();
            let status = events.find_map(|event| match event {
                PhoneEvent::Failed(_, status) => Some(status),
                PhoneEvent::Answered => Some(200),
                _ => None,
            });
            status.unwrap_or(0)
        };
    for _ in 0..30 {
        call(&mut net, phone, "1000", "guess");
    }
    assert_eq!(call(&mut net, phone, "1000", "right"), 503, "it is delayed");
    assert_eq!(call(&mut net, other, "1000", "right"), 200);
}

/// A PBX that registers its main number is reached at its other numbers; the Request-URI has the called number if
/// configured so.
#[test]
fn system_registered_with_one_number_is_reached_at_the_others() {
    for (place, uri) in [("to", "sip:+431234500@"), ("uri", "sip:+43123459@")] {
        let config = users(&format!(
            "numbers=['+4369912345','+4312345*']\ncalled_number='{place}'\n[[user]]\nname='2000'\npassword='other'\n"
        ));
        let mut net = VirtualNetwork::new(&config, 5);
        let pbx = net.phone("198.51.100.7:5060", PhoneBehaviour::answering(SDP_A));
        let other = net.phone("198.51.100.8:5060", PhoneBehaviour::answering(SDP_B));
        let registered = register(&mut net, pbx, "+431234500", "1000", "right");
        assert_eq!(registered, 200);
        for to in ["+43123459", "+4369912345", "1000"] {
            net.call_with(
                other,
                &format!("sip:{to}@192.0.2.1"),
                OUT,
                &MessageContent::sdp(SDP_A.as_bytes()),
                |invite| {
                    invite.from = Some(b"<sip:2000@192.0.2.1>");
                    invite.login = Some(Login {
                        user: b"2000",
                        password: b"other",
                    });
                },
            );
            net.run(seconds(1));
            let offered = net.log(pbx).iter().rev();
            let mut offered = offered.filter(|entry| entry.event == PhoneEvent::Offered);
            let invite = offered
                .next()
                .unwrap_or_else(|| panic!("{to} is not reached"));
            assert!(invite.header("To").contains(&format!("sip:{to}@")), "{to}");
            let line = String::from_utf8_lossy(&invite.bytes);
            let line = line.lines().next().unwrap();
            if to == "+43123459" {
                assert!(line.starts_with(&format!("INVITE {uri}")), "{line}");
            }
            net.phones[pbx].log.entries.clear();
        }
    }
}

/// Credentials with session keys, computed by Python if it is installed.
#[test]
fn session_algorithms_are_accepted() {
    let python = std::process::Command::new("python3")
        .arg("--version")
        .output();
    if !python.is_ok_and(|output| output.status.success()) {
        println!("skipped: not installed: [\"python3\"]");
        return;
    }
    for (algorithm, hash) in [
        ("MD5-sess", "md5"),
        ("SHA-256-sess", "sha256"),
        ("MD5", "md5"),
        ("SHA-256", "sha256"),
    ] {
        let config = users(&format!("[realm]\nalgorithms=['{algorithm}']\n"));
        for (password, wanted) in [("right", "SIP/2.0 200"), ("wrong", "SIP/2.0 401")] {
            let mut net = VirtualNetwork::new(&config, 5);
            let source = "203.0.113.9:5060";
            let request = |cseq: u32, extra: &str| {
                format!(
                    "REGISTER sip:192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP {source};branch=z9hG4bKs{cseq}\r\nMax-Forwards: 70\r\n\
                     From: <sip:1000@192.0.2.1>;tag=1\r\nTo: <sip:1000@192.0.2.1>\r\nCall-ID: c\r\nCSeq: {cseq} REGISTER\r\n\
                     Contact: <sip:1000@{source}>\r\n{extra}Content-Length: 0\r\n\r\n"
                )
            };
            net.send_raw(source, OUT, request(1, "").as_bytes());
            net.run(seconds(1));
            let challenge = String::from_utf8(net.wire.pop().unwrap().1).unwrap();
            assert!(
                challenge.contains(&format!("algorithm={algorithm}")),
                "{challenge}"
            );
            let nonce = challenge.split("nonce=\"").nth(1).unwrap();
            let nonce = nonce.split('"').next().unwrap();
            let script = format!(
                "import hashlib\n\
                 H=lambda t: hashlib.{hash}(t.encode()).hexdigest()\n\
                 a=H('1000:hornwork:{password}')\n\
                 if '{algorithm}'.endswith('-sess'): a=H(a+':{nonce}:abcdef')\n\
                 print(H(a+':{nonce}:00000001:abcdef:auth:'+H('REGISTER:sip:192.0.2.1')))\n"
            );
            let output = std::process::Command::new("python3")
                .args(["-c", &script])
                .output()
                .unwrap();
            let response = String::from_utf8(output.stdout).unwrap().trim().to_owned();
            let credentials = format!(
                "Authorization: Digest username=\"1000\", realm=\"hornwork\", nonce=\"{nonce}\", uri=\"sip:192.0.2.1\", \
                 response=\"{response}\", algorithm={algorithm}, cnonce=\"abcdef\", qop=auth, nc=00000001\r\n"
            );
            net.send_raw(source, OUT, request(2, &credentials).as_bytes());
            net.run(seconds(1));
            let answer = String::from_utf8(net.wire.pop().unwrap().1).unwrap();
            assert!(
                answer.starts_with(wanted),
                "{algorithm} {password}: {answer}"
            );
        }
    }
}
