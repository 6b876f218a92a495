//! Outside of calls: registrations, out-of-dialog requests, access control, pings, DNS names, reload and drain.

use crate::virtual_network;

use engine::Transport;
use sip::{Ending, Failure, Login, MessageContent, OutOfDialogRequest, Target};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

/// Sends an out-of-dialog request from a phone to the border.
fn send(
    net: &mut VirtualNetwork,
    phone: usize,
    method: Method<'static>,
    uri: &str,
    edits: &[Edit<'_>],
    login: Option<Login<'_>>,
) {
    let flow = net.flow(phone, OUT, Transport::Udp);
    let user = format!("<sip:100{phone}@192.0.2.1>");
    net.command(phone, |endpoint, now| {
        let outside = OutOfDialogRequest {
            from: Some(user.as_bytes()),
            to: (method == Method::Register).then_some(user.as_bytes()),
            content: MessageContent::default().with(edits),
            login,
            ..OutOfDialogRequest::new(method, Target::new(uri.as_bytes(), flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(1));
}

fn last_status(net: &VirtualNetwork, phone: usize) -> u16 {
    match net
        .last(phone, |event| {
            matches!(
                event,
                PhoneEvent::OutOfDialogResponse(_) | PhoneEvent::OutOfDialogTimedOut
            )
        })
        .event
    {
        PhoneEvent::OutOfDialogResponse(status) => status,
        _ => 0,
    }
}

#[test]
fn options_are_answered() {
    let (mut net, alice, _) = pair(PLAIN);
    send(&mut net, alice, Method::Options, "sip:192.0.2.1", &[], None);
    let entry = net.find(alice, |event| {
        *event == PhoneEvent::OutOfDialogResponse(200)
    });
    for name in ["Allow", "Accept", "Supported", "Accept-Encoding"] {
        assert!(!entry.header(name).is_empty(), "{name} in {}", entry.text());
    }
    assert!(entry.header("Allow").contains("INVITE"));
}

/// A name in sent-by may be that of a phone behind NAT on an access interface, but not on a core interface.
#[test]
fn responses_without_rport_follow_the_kind_of_the_interface() {
    let (mut net, _, _) = pair(PLAIN);
    for (local, source, expected) in [
        ("192.0.2.1:5060", "10.1.0.9:51234", "10.1.0.9:51234"),
        ("198.51.100.1:5060", "10.2.0.9:51234", "10.2.0.9:5060"),
    ] {
        let request = format!(
            "OPTIONS sip:{local} SIP/2.0\r\nVia: SIP/2.0/UDP gateway.example:5060;branch=z9hG4bKn\r\n\
             Max-Forwards: 70\r\nFrom: <sip:x@gateway.example>;tag=1\r\nTo: <sip:{local}>\r\n\
             Call-ID: {local}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
        );
        net.wire.clear();
        net.send_raw(source, local, request.as_bytes());
        net.run(seconds(1));
        let answers = net.wire.iter();
        let mut answers = answers.filter(|(_, bytes)| bytes.starts_with(b"SIP/2.0 "));
        let (to, _) = answers.next().unwrap();
        assert_eq!(*to, expected.parse().unwrap());
    }
}

/// RFC 3261 section 16.7 step 6: the phone would send nothing, not even calls, to the border for that time.
#[test]
fn overload_of_a_target_is_not_that_of_the_border() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let silent = PhoneBehaviour {
        outside: None,
        ..PhoneBehaviour::answering(SDP_B)
    };
    let bob = net.phone("10.2.0.1:5060", silent);
    let uri = "sip:bob@192.0.2.1";
    send(&mut net, alice, Method::Message, uri, &[], None);
    let request = net.find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    let PhoneEvent::OutOfDialog(transaction) = request.event else {
        panic!()
    };
    let edits = [Edit::Add {
        id: HeaderId::RetryAfter,
        value: b"300",
    }];
    net.command(bob, |endpoint, now| {
        let content = MessageContent::default().with(&edits);
        endpoint.respond(transaction, 503, &content, now).unwrap();
    });
    net.run(seconds(1));
    let answer = net.find(alice, |event| {
        *event == PhoneEvent::OutOfDialogResponse(500)
    });
    assert_eq!(answer.header("Retry-After"), "");
}

#[test]
fn allowed_requests_are_relayed_and_others_refused() {
    let (mut net, alice, bob) = pair(PLAIN);
    let edits = [Edit::Add {
        id: HeaderId::Subject,
        value: b"hello",
    }];
    send(
        &mut net,
        alice,
        Method::Message,
        "sip:bob@192.0.2.1",
        &edits,
        None,
    );
    assert_eq!(last_status(&net, alice), 200);
    let entry = net.find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    assert_eq!(entry.header("Subject"), "hello");
    assert!(
        !entry.text().contains("10.1.0.1") && !entry.text().contains("192.0.2.1"),
        "{}",
        entry.text()
    );
    net.phones[bob].log.behaviour.outside = Some(404);
    send(
        &mut net,
        alice,
        Method::Message,
        "sip:bob@192.0.2.1",
        &[],
        None,
    );
    assert_eq!(last_status(&net, alice), 404);
    send(
        &mut net,
        alice,
        Method::Publish,
        "sip:bob@192.0.2.1",
        &[],
        None,
    );
    assert_eq!(last_status(&net, alice), 404);
    send(
        &mut net,
        alice,
        Method::Refer,
        "sip:bob@192.0.2.1",
        &[],
        None,
    );
    assert_eq!(last_status(&net, alice), 403);
    send(
        &mut net,
        alice,
        Method::Info,
        "sip:bob@192.0.2.1",
        &[],
        None,
    );
    assert_eq!(last_status(&net, alice), 481);
    send(
        &mut net,
        alice,
        Method::Other(b"DANCE"),
        "sip:bob@192.0.2.1",
        &[],
        None,
    );
    assert_eq!(last_status(&net, alice), 405);
    net.assert_quiet();
}

/// Headers that belong to a response itself: the contacts of a redirect, option tags.
#[test]
fn refusals_are_relayed_with_their_headers() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.outside = None;
    for (status, id, value) in [
        (420, HeaderId::Unsupported, "foo"),
        (
            302,
            HeaderId::Contact,
            "<sip:carol@a.example>, <sip:dave@b.example>",
        ),
        (421, HeaderId::Require, "sec-agree"),
    ] {
        send(
            &mut net,
            alice,
            Method::Message,
            "sip:bob@192.0.2.1",
            &[],
            None,
        );
        let received = net.last(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
        let PhoneEvent::OutOfDialog(transaction) = received.event else {
            panic!()
        };
        let edits = [Edit::Add {
            id,
            value: value.as_bytes(),
        }];
        net.command(bob, |endpoint, now| {
            let content = MessageContent::default().with(&edits);
            endpoint
                .respond(transaction, status, &content, now)
                .unwrap();
        });
        net.run(seconds(1));
        let event = PhoneEvent::OutOfDialogResponse(status);
        let refused = net.find(alice, |found| *found == event);
        assert_eq!(refused.header(id.name()), value, "{}", refused.text());
    }
    net.assert_quiet();
}

/// A silent target gets no request any more when the next one has it, and no target gets a request whose sender has
/// given up.
#[test]
fn relayed_request_fails_over_while_its_sender_waits() {
    let targets = |hosts: &[u8]| {
        let targets = hosts.iter().enumerate().map(|(priority, host)| {
            format!("{{address='udp:10.2.0.{host}:5060',priority={priority}}}")
        });
        let list = targets.collect::<Vec<String>>().join(",");
        let list = format!("target=[{list}]\nanswer_timeout_s=5");
        PLAIN.replace("target='udp:10.2.0.1:5060'", &list)
    };
    let requests = |net: &VirtualNetwork, to: &str| {
        let to: std::net::SocketAddr = to.parse().unwrap();
        net.wire
            .iter()
            .filter(|(at, bytes)| *at == to && bytes.starts_with(b"MESSAGE "))
            .count()
    };
    let (mut net, alice, bob) = pair(&targets(&[91, 1]));
    send(
        &mut net,
        alice,
        Method::Message,
        "sip:bob@192.0.2.1",
        &[],
        None,
    );
    net.run(seconds(5));
    assert_eq!(last_status(&net, alice), 200);
    assert_eq!(requests(&net, "10.2.0.1:5060"), 1);
    let sent = requests(&net, "10.2.0.91:5060");
    net.run(seconds(40));
    assert_eq!(
        requests(&net, "10.2.0.91:5060"),
        sent,
        "not retransmitted any more"
    );
    assert!(net.has(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_))));
    net.assert_quiet();
    // Seven silent targets take longer than the transaction of the sender.
    let (mut net, alice, bob) = pair(&targets(&[91, 92, 93, 94, 95, 96, 97, 1]));
    send(
        &mut net,
        alice,
        Method::Message,
        "sip:bob@192.0.2.1",
        &[],
        None,
    );
    net.run(seconds(60));
    assert!(net.has(alice, |event| *event == PhoneEvent::OutOfDialogTimedOut));
    assert!(!net.has(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_))));
    net.assert_quiet();
    // A target that has sent a provisional response is not given up.
    let (mut net, alice, bob) = pair(&targets(&[1, 91]));
    net.phones[bob].log.behaviour.outside = None;
    send(
        &mut net,
        alice,
        Method::Message,
        "sip:bob@192.0.2.1",
        &[],
        None,
    );
    net.run(seconds(20));
    assert_eq!(requests(&net, "10.2.0.91:5060"), 0);
}

const USERS: &str = "[[interface]]\nname='out'\nkind='access'\nlisten='udp:192.0.2.1:5060'\nauthenticate='digest'\nregister='local'\n\
    [[user]]\nname='1000'\npassword='secret-1000'\n[[user]]\nname='1001'\npassword='secret-1001'\n[registrar]\nmin_expires_s=60\n";

fn login(password: &'static str, user: &'static str) -> Option<Login<'static>> {
    Some(Login {
        user: user.as_bytes(),
        password: password.as_bytes(),
    })
}

#[test]
fn phones_register_with_digest_and_call_each_other() {
    let mut net = VirtualNetwork::new(USERS, 5);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let contact = [Edit::Replace {
        id: HeaderId::Contact,
        value: b"<sip:1001@192.168.7.7:5099>",
    }];
    send(
        &mut net,
        bob,
        Method::Register,
        "sip:192.0.2.1",
        &contact,
        None,
    );
    assert_eq!(last_status(&net, bob), 401);
    send(
        &mut net,
        bob,
        Method::Register,
        "sip:192.0.2.1",
        &contact,
        login("wrong", "1001"),
    );
    assert_eq!(last_status(&net, bob), 401);
    send(
        &mut net,
        bob,
        Method::Register,
        "sip:192.0.2.1",
        &contact,
        login("secret-1001", "1001"),
    );
    assert_eq!(
        last_status(&net, bob),
        200,
        "{:?}",
        net.last(bob, |_| true).text()
    );
    assert!(net.names().contains(&"registration_stored"));
    // Without authentication there is no call; with it the phone behind NAT is reached on its flow.
    let call = |net: &mut VirtualNetwork, login| {
        let leg = net.call_with(alice, "sip:1001@192.0.2.1", OUT, &offer(), |invite| {
            invite.from = Some(b"<sip:1000@192.0.2.1>");
            invite.login = login;
        });
        net.run(seconds(1));
        leg
    };
    call(&mut net, None);
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 407)));
    let leg = call(&mut net, login("secret-1000", "1000"));
    assert!(
        net.has(alice, |event| *event == PhoneEvent::Answered),
        "{:?}",
        net.phone_events(alice)
    );
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered);
    assert!(
        offered
            .text()
            .starts_with("INVITE sip:1001@192.168.7.7:5099 SIP/2.0")
    );
    assert!(
        offered.header("Proxy-Authorization").is_empty(),
        "credentials are not relayed"
    );
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(bob, |event| *event == PhoneEvent::Ended(Ending::Peer)));
    // A user must not use the identity of another.
    net.call_with(alice, "sip:1001@192.0.2.1", OUT, &offer(), |invite| {
        invite.from = Some(b"<sip:1001@192.0.2.1>");
        invite.login = login("secret-1000", "1000");
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 403)));
    for event in &net.events {
        assert!(!event.to_string().contains("secret"), "{event}");
    }
    net.assert_quiet();
}

/// Registers a contact of user 1001.
fn register(net: &mut VirtualNetwork, phone: usize, contact: &str) {
    let request = RegisterRequest {
        login: login("secret-1001", "1001"),
        ..RegisterRequest::new("1001", contact)
    };
    net.send_register(phone, &request);
    net.run(seconds(1));
}

#[test]
fn all_contacts_ring_and_the_first_answer_wins() {
    let mut net = VirtualNetwork::new(USERS, 5);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut slow = PhoneBehaviour::answering(SDP_B);
    slow.answer = None;
    let fixed = net.phone("10.2.0.1:5060", slow);
    let mobile = net.phone("10.3.0.1:5060", PhoneBehaviour::answering(SDP_B));
    for (phone, contact) in [
        (fixed, "<sip:1001@10.2.0.1>"),
        (mobile, "<sip:1001@10.3.0.1>"),
    ] {
        register(&mut net, phone, contact);
        assert_eq!(last_status(&net, phone), 200);
    }
    let leg = net.call_with(alice, "sip:1001@192.0.2.1", OUT, &offer(), |invite| {
        invite.from = Some(b"<sip:1000@192.0.2.1>");
        invite.login = login("secret-1000", "1000");
    });
    net.run(seconds(2));
    assert!(net.has(fixed, |event| *event == PhoneEvent::Offered));
    let cancelled = net.find(fixed, |event| *event == PhoneEvent::Cancelled);
    assert!(
        cancelled.header("Reason").contains("cause=200"),
        "{}",
        cancelled.text()
    );
    assert!(net.has(mobile, |event| *event == PhoneEvent::Acked));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.assert_quiet();
}

#[test]
fn max_breadth_is_divided_among_branches_and_obeyed() {
    let mut net = VirtualNetwork::new(USERS, 5);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut busy = PhoneBehaviour::answering(SDP_B);
    busy.answer = Some(486);
    let phones: Vec<usize> = (2..6)
        .map(|host| net.phone(&format!("10.{host}.0.1:5060"), busy.clone()))
        .collect();
    for &phone in &phones {
        let contact = format!("<sip:1001@{}>", net.phones[phone].address);
        register(&mut net, phone, &contact);
    }
    // Max-Breadth of the request; Max-Breadth at each phone in calling order; number of phones that ring at once.
    for (breadth, expected, at_once) in [
        (None, vec!["15", "15", "15", "15"], 4),
        (Some("9"), vec!["2", "2", "2", "2"], 4),
        (Some("3"), vec!["1", "1", "1", "3"], 3),
        (Some("1"), vec!["1", "1", "1", "1"], 1),
        (Some("0"), vec![], 0),
    ] {
        for &phone in &phones {
            net.phones[phone].log.entries.clear();
            net.phones[phone].log.behaviour.answer = None;
        }
        let edits: Vec<Edit<'_>> = breadth
            .map(|value: &str| Edit::AddNamed {
                name: b"Max-Breadth",
                value: value.as_bytes(),
            })
            .into_iter()
            .collect();
        let content = offer().with(&edits);
        net.call_with(alice, "sip:1001@192.0.2.1", OUT, &content, |invite| {
            invite.from = Some(b"<sip:1000@192.0.2.1>");
            invite.login = login("secret-1000", "1000");
        });
        let mut calls: Vec<String> = Vec::new();
        for round in 0..4 {
            net.run(Duration::from_millis(200));
            let mut ringing = 0;
            for &phone in &phones {
                let offered: Vec<_> = net
                    .log(phone)
                    .iter()
                    .filter(|entry| entry.event == PhoneEvent::Offered)
                    .cloned()
                    .collect();
                for entry in offered {
                    ringing += 1;
                    calls.push(entry.header("Max-Breadth"));
                    let leg = entry.leg.unwrap();
                    net.command(phone, |endpoint, now| {
                        let _ = endpoint.reject(leg, 486, &MessageContent::default(), now);
                    });
                }
                net.phones[phone].log.entries.clear();
            }
            if round == 0 {
                assert_eq!(ringing, at_once, "{breadth:?}");
            }
        }
        assert_eq!(calls, expected, "{breadth:?}");
        let status = if breadth == Some("0") { 440 } else { 486 };
        let end = net.last(alice, |event| matches!(event, PhoneEvent::Failed(..)));
        assert_eq!(end.event, PhoneEvent::Failed(Failure::Response, status));
    }
    net.assert_quiet();
}

#[test]
fn registrations_are_relayed_to_the_core_with_our_contact() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n");
    let (mut net, alice, bob) = pair(&config);
    net.phones[bob].log.behaviour.outside = None;
    let contact = [
        Edit::Replace {
            id: HeaderId::Contact,
            value: b"<sip:1000@192.168.3.3:5060>",
        },
        Edit::Add {
            id: HeaderId::Expires,
            value: b"600",
        },
    ];
    send(
        &mut net,
        alice,
        Method::Register,
        "sip:192.0.2.1",
        &contact,
        None,
    );
    let entry = net
        .find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)))
        .clone();
    assert_eq!(entry.method(), "REGISTER");
    let ours = entry.header("Contact");
    assert!(
        ours.contains("198.51.100.1") && !entry.text().contains("192.168.3.3"),
        "{}",
        entry.text()
    );
    let PhoneEvent::OutOfDialog(transaction) = entry.event else {
        panic!()
    };
    let granted = format!("{};expires=300", ours.split(";expires").next().unwrap());
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: granted.as_bytes(),
    }];
    net.command(bob, |endpoint, now| {
        endpoint
            .respond(
                transaction,
                200,
                &MessageContent::default().with(&edits),
                now,
            )
            .unwrap()
    });
    net.run(seconds(1));
    assert_eq!(last_status(&net, alice), 200);
    let answer = net.last(alice, |event| {
        *event == PhoneEvent::OutOfDialogResponse(200)
    });
    assert!(
        answer.header("Contact").contains("192.168.3.3"),
        "{}",
        answer.text()
    );
    // The core calls the registered contact: the phone is reached on its flow.
    let uri = ours
        .trim_start_matches('<')
        .split('>')
        .next()
        .unwrap()
        .to_owned();
    net.call(
        bob,
        &uri,
        "198.51.100.1:5060",
        &MessageContent::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    let offered = net.find(alice, |event| *event == PhoneEvent::Offered);
    assert!(
        offered
            .text()
            .starts_with("INVITE sip:1000@192.168.3.3:5060"),
        "{}",
        offered.text()
    );
    assert!(net.has(bob, |event| *event == PhoneEvent::Answered));
}

#[test]
fn requests_from_unlisted_addresses_are_dropped_and_counted() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nallow=['10.1.0.0/16']\n");
    let (mut net, alice, bob) = pair(&config);
    let eve = net.phone("203.0.113.5:5060", PhoneBehaviour::answering(SDP_A));
    net.call(eve, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(2));
    assert!(net.phones[eve].received.is_empty());
    assert!(
        net.border
            .drops()
            .get(engine::DropReason::SipSourceNotAllowed)
            > 1
    );
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    // TCP connections are rejected.
    let mallory = net.phone_over(
        "203.0.113.6:5060",
        Transport::Tcp,
        PhoneBehaviour::answering(SDP_A),
    );
    let flow = net.flow(mallory, OUT, Transport::Tcp);
    net.command(mallory, |endpoint, now| {
        let outside = OutOfDialogRequest::new(Method::Options, Target::new(b"sip:192.0.2.1", flow));
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(2));
    assert!(net.phones[mallory].received.is_empty());
}

#[test]
fn pings_detect_a_trunk_down_and_up() {
    let config = format!("{PLAIN}ping=10\nping_failures=2\n");
    let (mut net, alice, bob) = pair(&config);
    net.run(seconds(20));
    let pinged = net.find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    assert_eq!(pinged.method(), "OPTIONS");
    net.phones[bob].log.behaviour.outside = Some(503);
    net.run(seconds(40));
    assert!(net.names().contains(&"trunk_down"));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 503)));
    net.phones[bob].log.behaviour.outside = Some(200);
    net.run(seconds(40));
    assert!(net.names().contains(&"trunk_up"));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

#[test]
fn reload_keeps_calls_and_changes_only_differing_sockets() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    // The core interface loses TCP, a third interface is added, and the trunk moves to the second position of the file.
    let changed = "[[interface]]\nname='new'\nkind='access'\nlisten='udp:192.0.2.9:5060'\nmedia={address='192.0.2.9'}\n"
        .to_owned()
        + &PLAIN.replace("['udp:198.51.100.1:5060','tcp:198.51.100.1:5060']", "'udp:198.51.100.1:5060'")
            .replace("[[trunk]]", "[[trunk]]\nname='first'\ninterface='in'\ntarget='udp:10.2.0.44:5060'\n[[trunk]]")
        + "[[route]]\ntrunk='pbx'\n";
    let config = config::parse(&changed, "changed.toml").unwrap();
    let before = net.open_sockets;
    net.control(|border, now| border.reload(config, now));
    net.run(seconds(1));
    assert!(net.names().contains(&"configuration_reloaded"));
    assert_eq!(net.open_sockets, before, "one closed, one opened");
    let calls = net.border.calls();
    assert_eq!(calls[0].trunks[1].as_deref(), Some("pbx"));
    assert_eq!(calls[0].interfaces, ["out".to_owned(), "in".to_owned()]);
    net.command(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.log(bob).iter().any(|entry| entry.method() == "INFO"));
    // New calls arrive at the new interface.
    net.call(alice, "sip:bob@192.0.2.9", "192.0.2.9:5060", &offer());
    net.run(seconds(1));
    assert_eq!(net.border.calls().len(), 2);
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert_eq!(net.border.calls().len(), 1);
}

#[test]
fn removed_listener_serves_only_its_calls() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let moved = PLAIN.replace("udp:192.0.2.1:5060", "udp:192.0.2.1:5070");
    let config = config::parse(&moved, "moved.toml").unwrap();
    net.control(|border, now| border.reload(config, now));
    let sent = net.wire.len();
    let ask = |net: &mut VirtualNetwork, to: &str, mark: &str| {
        let options = format!(
            "OPTIONS sip:{to} SIP/2.0\r\nVia: SIP/2.0/UDP 10.9.9.9;branch=z9hG4bK{mark}\r\nMax-Forwards: 70\r\n\
             From: <sip:x@x>;tag=1\r\nTo: <sip:{to}>\r\nCall-ID: {mark}\r\nCSeq: 1 OPTIONS\r\n\r\n"
        );
        net.send_raw("10.9.9.9:5060", to, options.as_bytes());
        net.run(Duration::from_millis(100));
    };
    ask(&mut net, OUT, "old");
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(40));
    assert_eq!(net.wire.len(), sent, "no socket is left");
    ask(&mut net, "192.0.2.1:5070", "new");
    assert_eq!(net.wire.len(), sent + 1);
    // Its established call continues.
    net.command(alice, |endpoint, now| {
        endpoint
            .request(
                leg,
                wire::sip::Method::Info,
                &MessageContent::default(),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.log(bob).iter().any(|entry| entry.method() == "INFO"));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| matches!(event, PhoneEvent::Ended(_))));
    net.assert_quiet();
}

#[test]
fn drain_refuses_calls_and_ends_with_the_last_one() {
    let (mut net, alice, _) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.control(|border, now| border.drain(seconds(600), now));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let refused = net.find(alice, |event| {
        *event == PhoneEvent::Failed(Failure::Response, 503)
    });
    assert!(
        !refused.header("Retry-After").is_empty(),
        "{}",
        refused.text()
    );
    assert!(!net.border.is_drained());
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.border.is_drained());
    assert_eq!(*net.names().last().unwrap(), "drain_finished");
    net.assert_quiet();
}

#[test]
fn drain_ends_remaining_calls_after_its_timeout() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.control(|border, now| border.drain(seconds(10), now));
    net.run(seconds(12));
    assert!(net.border.is_drained());
    for phone in [alice, bob] {
        assert!(net.has(phone, |event| *event == PhoneEvent::Ended(Ending::Peer)));
    }
    let reported = net
        .events
        .iter()
        .rev()
        .find(|event| event.kind.name() == "drain_finished")
        .unwrap();
    assert!(reported.to_string().contains("terminated=1"), "{reported}");
    net.assert_quiet();
}

/// No response to anything: BYE of an established call, an INVITE's ACK, or pings. The workers end nevertheless.
#[test]
fn drain_ends_without_any_response() {
    let config = format!("{PLAIN}[sip]\nworkers=2\n");
    let mut net = VirtualNetwork::with_workers(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mute = PhoneBehaviour {
        acks: false,
        ..PhoneBehaviour::answering(SDP_A)
    };
    let mute = net.phone("10.1.0.2:5060", mute);
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    for caller in [alice, mute] {
        for _ in 0..8 {
            net.call(caller, "sip:bob@192.0.2.1", OUT, &offer());
        }
    }
    net.run(seconds(1));
    net.phones[bob].log.behaviour.answer = None;
    for _ in 0..8 {
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    }
    net.run(seconds(1));
    net.phones[bob].log.behaviour.silent = true;
    for _ in 0..8 {
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    }
    net.run(seconds(1));
    let calls = net.each_worker(|border, _| border.calls().len());
    assert!(calls.iter().all(|calls| *calls > 4), "{calls:?}");
    assert_eq!(calls.iter().sum::<usize>(), 32);
    for worker in 0..2 {
        net.control_worker(worker, |border, now| border.drain(seconds(5), now));
    }
    net.run(seconds(4));
    assert!(net.each_worker(|border, _| border.is_drained()) == [false; 2]);
    net.link_conditions.loss = 1.0;
    net.run(seconds(4));
    assert!(net.each_worker(|border, _| border.is_drained()) == [true; 2]);
    let calls = net.each_worker(|border, _| border.calls().len());
    assert_eq!(calls, [0; 2]);
    let reported = |name: &str| {
        let of_name = net.events.iter().filter(|event| event.kind.name() == name);
        of_name.map(ToString::to_string).collect::<Vec<String>>()
    };
    assert_eq!(reported("call_ended").len(), 32);
    assert!(
        reported("call_ended")
            .iter()
            .all(|event| event.contains("drained"))
    );
    let [finished] = &reported("drain_finished")[..] else {
        panic!("{:?}", reported("drain_finished"))
    };
    assert!(finished.contains("terminated=32"), "{finished}");
}

/// Before the ACK of our 2xx, BYE must not be sent (RFC 3261 section 15), but it is at the end of a drain. A second
/// command ends the drain at once.
#[test]
fn unacknowledged_call_gets_bye_at_the_end_of_a_drain() {
    let (mut net, alice, _) = pair(PLAIN);
    net.phones[alice].log.behaviour.acks = false;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.control(|border, now| border.drain(seconds(600), now));
    net.run(seconds(3));
    net.control(|border, now| border.drain(Duration::ZERO, now));
    let ended =
        |net: &VirtualNetwork| net.has(alice, |event| *event == PhoneEvent::Ended(Ending::Peer));
    net.run(seconds(1));
    assert!(!net.border.is_drained() && !ended(&net));
    net.run(seconds(2));
    assert!(net.border.is_drained() && ended(&net));
}

/// A DNS response with one A record for a query.
fn dns_answer(query: &[u8], address: [u8; 4]) -> Vec<u8> {
    let mut answer = query.to_vec();
    answer.truncate(question_end(query));
    answer[2] = 0x81;
    answer[3] = 0x80;
    answer[6..8].copy_from_slice(&1u16.to_be_bytes());
    answer[8..12].fill(0);
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    answer.extend(address);
    answer
}

fn question_end(query: &[u8]) -> usize {
    let mut at = 12;
    while query[at] != 0 {
        at += 1 + usize::from(query[at]);
    }
    at + 5
}

#[test]
fn trunk_with_a_host_name_is_located_by_dns() {
    let config = PLAIN.replace("udp:10.2.0.1:5060", "udp:pbx.example:5060")
        + "[dns]\nservers=['10.8.0.53:53']\n";
    let (mut net, alice, bob) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(Duration::from_millis(100));
    let (_, from, query) = net
        .media
        .iter()
        .find(|(to, _, _)| *to == "10.8.0.53:53".parse().unwrap())
        .expect("a query")
        .clone();
    net.send_raw(
        "10.8.0.53:53",
        &from.to_string(),
        &dns_answer(&query, [10, 2, 0, 1]),
    );
    net.run(seconds(1));
    assert!(
        net.has(bob, |event| *event == PhoneEvent::Acked),
        "{:?}",
        net.phone_events(alice)
    );
    assert!(
        net.find(bob, |event| *event == PhoneEvent::Offered)
            .text()
            .starts_with("INVITE sip:bob@pbx.example:5060")
    );
    // An unknown name: no response in time.
    let (mut net, alice, _) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(60));
    assert!(
        net.has(alice, |event| *event
            == PhoneEvent::Failed(Failure::Response, 503)),
        "{:?}",
        net.phone_events(alice)
    );
    net.assert_quiet();
}

#[test]
fn identities_are_relayed_only_between_trusted_sides() {
    let (mut net, alice, bob) = pair(PLAIN);
    let edits = [Edit::Add {
        id: HeaderId::PAssertedIdentity,
        value: b"<sip:+431@10.1.0.1>",
    }];
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    assert!(
        net.find(bob, |event| *event == PhoneEvent::Offered)
            .header("P-Asserted-Identity")
            .is_empty()
    );
    let core = PLAIN.replace("kind='access'", "kind='core'\nallow='10.1.0.0/24'");
    let (mut net, alice, bob) = pair(&core);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    let entry = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .header("P-Asserted-Identity");
    assert_eq!(entry, "<sip:+431@198.51.100.1:5060>");
    // A trunk may be without them, though it is trusted.
    let removed = core.replacen("[[trunk]]", "[[trunk]]\nidentity='remove'", 1);
    assert_ne!(removed, core);
    let (mut net, alice, bob) = pair(&removed);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered);
    assert!(offered.header("P-Asserted-Identity").is_empty());
}

/// The 200 to a MESSAGE that one phone sends through the border and the other answers with these headers. `from_core`:
/// the PBX sends it, to a phone on the access side.
fn answer_with(config: &str, from_core: bool, edits: &[Edit<'_>]) -> LogEntry {
    let (mut net, alice, bob) = pair(config);
    let (sender, responder, to, uri) = match from_core {
        true => (bob, alice, "198.51.100.1:5060", "sip:99@198.51.100.1"),
        false => (alice, bob, OUT, "sip:bob@192.0.2.1"),
    };
    net.phones[responder].log.behaviour.outside = None;
    let flow = net.flow(sender, to, Transport::Udp);
    net.command(sender, |endpoint, now| {
        let message = OutOfDialogRequest::new(Method::Message, Target::new(uri.as_bytes(), flow));
        endpoint.send(&message, now).unwrap();
    });
    net.run(seconds(1));
    let received = net.find(responder, |event| {
        matches!(event, PhoneEvent::OutOfDialog(_))
    });
    let PhoneEvent::OutOfDialog(transaction) = received.event else {
        panic!()
    };
    net.command(responder, |endpoint, now| {
        let content = MessageContent::default().with(edits);
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let answered = |event: &PhoneEvent| *event == PhoneEvent::OutOfDialogResponse(200);
    net.find(sender, answered).clone()
}

#[test]
fn identities_in_responses_outside_calls_follow_trust() {
    let asserted = Edit::Add {
        id: HeaderId::PAssertedIdentity,
        value: b"<sip:ceo@10.0.0.5>",
    };
    let others = [
        asserted,
        Edit::Add {
            id: HeaderId::RemotePartyId,
            value: b"<sip:ceo@10.0.0.5>",
        },
        Edit::Add {
            id: HeaderId::PPreferredIdentity,
            value: b"<sip:ceo@10.0.0.5>",
        },
        Edit::Add {
            id: HeaderId::PAccessNetworkInfo,
            value: b"3GPP-E-UTRAN;network-provided",
        },
    ];
    let to_phone = |trusted: &str| {
        format!(
            "{PLAIN}[[trunk]]\nname='phone'\ninterface='out'\ntrusted={trusted}\ntarget='udp:10.1.0.1:5060'\n\
             [[route]]\nto={{regex='^99$'}}\ntrunk='phone'\n[[route]]\ntrunk='pbx'\n"
        )
    };
    // An untrusted phone asserts nothing.
    let answer = answer_with(&to_phone("false"), true, &others);
    for name in [
        "P-Asserted-Identity",
        "Remote-Party-ID",
        "P-Preferred-Identity",
        "P-Access-Network-Info",
    ] {
        assert_eq!(answer.header(name), "", "{}", answer.text());
    }
    // Between trusted sides an identity has our host, unless the trunk is without identities.
    let answer = answer_with(&to_phone("true"), true, &others);
    assert_eq!(
        answer.header("P-Asserted-Identity"),
        "<sip:ceo@198.51.100.1:5060>"
    );
    let removed = to_phone("true").replacen("[[trunk]]", "[[trunk]]\nidentity='remove'", 1);
    let answer = answer_with(&removed, true, &others);
    assert_eq!(answer.header("P-Asserted-Identity"), "");
    // The identity of the core reaches a phone without the address of the core, and not if it requested privacy.
    let answer = answer_with(PLAIN, false, &[asserted]);
    assert_eq!(
        answer.header("P-Asserted-Identity"),
        "<sip:ceo@192.0.2.1:5060>"
    );
    let private = [
        asserted,
        Edit::Add {
            id: HeaderId::Privacy,
            value: b"id",
        },
    ];
    let answer = answer_with(PLAIN, false, &private);
    assert_eq!(
        answer.header("P-Asserted-Identity"),
        "",
        "{}",
        answer.text()
    );
    assert_eq!(answer.header("Privacy"), "");
}

/// Sends a MESSAGE with this text from a phone to the border over the phone's transport.
fn send_text(net: &mut VirtualNetwork, phone: usize, transport: Transport, text: &str) {
    let flow = net.flow(phone, OUT, transport);
    net.command(phone, |endpoint, now| {
        let content = MessageContent {
            body: sip::Body::New {
                content_type: b"text/plain",
                bytes: text.as_bytes(),
            },
            ..MessageContent::default()
        };
        let outside = OutOfDialogRequest {
            content,
            ..OutOfDialogRequest::new(Method::Message, Target::new(b"sip:bob@192.0.2.1", flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn messages_up_to_the_limit_are_relayed_and_larger_ones_counted() {
    let text = "0123456789abcdef".repeat(4_000);
    let (mut net, alice, bob) = pair(PLAIN);
    send_text(&mut net, alice, Transport::Udp, &text);
    assert_eq!(last_status(&net, alice), 200);
    let entry = net.find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    assert!(entry.bytes.len() > 64_000);
    assert_eq!(entry.body(), text);
    net.assert_quiet();
    // Over TCP on both sides.
    let config = PLAIN.replace("udp:10.2.0.1:5060", "tcp:10.2.0.1:5060");
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone_over(
        "10.1.0.1:5060",
        Transport::Tcp,
        PhoneBehaviour::answering(SDP_A),
    );
    let bob = net.phone_over(
        "10.2.0.1:5060",
        Transport::Tcp,
        PhoneBehaviour::answering(SDP_B),
    );
    send_text(&mut net, alice, Transport::Tcp, &text);
    assert_eq!(last_status(&net, alice), 200);
    let entry = net.find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    assert_eq!(entry.body(), text);
    // Messages above the limit are refused, and others are still relayed.
    let config = format!("{PLAIN}[limits]\nmessage_bytes=4096\n");
    let (mut net, alice, bob) = pair(&config);
    send_text(&mut net, alice, Transport::Udp, &text);
    assert!(!net.has(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_))));
    assert!(net.border.drops().get(engine::DropReason::SipTooLarge) > 0);
    send(&mut net, alice, Method::Options, "sip:192.0.2.1", &[], None);
    assert_eq!(last_status(&net, alice), 200);
}
