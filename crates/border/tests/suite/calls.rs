//! Calls through the border: set-up, failure, failover, end.

use crate::virtual_network;

use sip::{Ending, Failure, MessageContent};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Message, Method};

/// Two targets in order of priority.
fn two_targets() -> String {
    PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target=[{address='udp:10.2.0.9:5060',priority=1},{address='udp:10.2.0.1:5060',priority=2}]\nanswer_timeout_s=2",
    )
}

#[test]
fn call_from_end_to_end() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    let calls = net.border.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].interfaces, ["out".to_owned(), "in".to_owned()]);
    assert_eq!(calls[0].trunks[1].as_deref(), Some("pbx"));
    let reason = [Edit::Add {
        id: HeaderId::Reason,
        value: b"Q.850;cause=16;text=\"done\"",
    }];
    net.command(alice, |endpoint, now| {
        endpoint
            .bye(leg, &MessageContent::default().with(&reason), now)
            .unwrap()
    });
    net.run(seconds(1));
    let bye = net.find(bob, |event| *event == PhoneEvent::Ended(Ending::Peer));
    assert_eq!(bye.header("Reason"), "Q.850;cause=16;text=\"done\"");
    assert_eq!(
        net.names(),
        [
            "socket_opened",
            "socket_opened",
            "socket_opened",
            "socket_opened",
            "call_offered",
            "call_routed",
            "call_progressed",
            "call_answered",
            "call_media",
            "call_ended"
        ]
    );
    assert_eq!(net.border.counters().completed, 1);
    net.assert_quiet();
}

#[test]
fn callee_may_end_the_call() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let leg = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    net.command(bob, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Ended(Ending::Peer)));
    net.assert_quiet();
}

/// All bytes sent to one side are searched for names of the other.
#[test]
fn neither_side_sees_addresses_of_the_other() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
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
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    let names_of = |phone: usize| {
        let mut names = Vec::new();
        for bytes in &net.phones[phone].sent {
            let message = Message::parse(bytes).unwrap();
            names.push(message.call_id().unwrap().to_vec());
            for tag in [message.from().unwrap().tag(), message.to().unwrap().tag()] {
                names.extend(tag.map(<[u8]>::to_vec));
            }
            names.extend(message.via().map(|via| via.branch().to_vec()));
        }
        names
    };
    for (from, to, words) in [
        (alice, bob, ["10.1.0.1", "192.0.2.1"]),
        (bob, alice, ["10.2.0.1", "198.51.100.1"]),
    ] {
        let mut secrets = names_of(from);
        secrets.extend(words.map(|word| word.as_bytes().to_vec()));
        assert!(secrets.len() > 10, "{}", secrets.len());
        for bytes in &net.phones[to].received {
            for secret in &secrets {
                assert!(
                    !bytes.windows(secret.len()).any(|window| window == secret),
                    "{} leaks in\n{}",
                    String::from_utf8_lossy(secret),
                    String::from_utf8_lossy(bytes)
                );
            }
        }
    }
}

#[test]
fn other_headers_are_relayed_unchanged_and_in_order() {
    let (mut net, alice, bob) = pair(PLAIN);
    let edits = [
        Edit::AddNamed {
            name: b"X-First",
            value: b"  odd ; spacing=\"kept\" ,x",
        },
        Edit::Add {
            id: HeaderId::CallInfo,
            value: b"<http://example.org/a>;purpose=icon",
        },
        Edit::AddNamed {
            name: b"x-SECOND",
            value: b"2",
        },
        Edit::Add {
            id: HeaderId::Subject,
            value: b"lunch",
        },
        Edit::Add {
            id: HeaderId::UserToUser,
            value: b"56a390f3d2b7310023a2;encoding=hex",
        },
        Edit::Replace {
            id: HeaderId::Supported,
            value: b"histinfo, 100rel",
        },
        Edit::Replace {
            id: HeaderId::MaxForwards,
            value: b"17",
        },
    ];
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    let invite = net.find(bob, |event| *event == PhoneEvent::Offered).text();
    let mut at = 0;
    for line in [
        "odd ; spacing=\"kept\" ,x\r\n",
        "Call-Info: <http://example.org/a>;purpose=icon\r\n",
        "x-SECOND: 2\r\n",
        "Subject: lunch\r\n",
        "User-to-User: 56a390f3d2b7310023a2;encoding=hex\r\n",
    ] {
        let found = invite[at..]
            .find(line.trim_start())
            .unwrap_or_else(|| panic!("{line} in {invite}"));
        at += found;
    }
    assert!(invite.contains("Max-Forwards: 16\r\n"), "{invite}");
    assert!(
        invite.contains("Supported: 100rel, timer, replaces, histinfo\r\n"),
        "{invite}"
    );
}

#[test]
fn max_forwards_ends_calls_and_loops_are_detected() {
    let (mut net, alice, _) = pair(PLAIN);
    let none = [Edit::Replace {
        id: HeaderId::MaxForwards,
        value: b"0",
    }];
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&none));
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 483)));
    // The trunk is the border itself: the call returns with the Request-URI that was sent.
    let looped = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target='udp:203.0.113.7:5060'",
    );
    let (mut net, alice, _) = pair(&looped);
    net.aliases.insert(
        "203.0.113.7:5060".parse().unwrap(),
        "198.51.100.1:5060".parse().unwrap(),
    );
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(
        net.has(alice, |event| *event
            == PhoneEvent::Failed(Failure::Response, 482)),
        "{:?}",
        net.phone_events(alice)
    );
    assert!(
        net.border.counters().offered <= 3,
        "{:?}",
        net.border.counters()
    );
    net.assert_quiet();
}

#[test]
fn loop_through_another_b2bua_ends_by_max_forwards() {
    let (mut net, alice, bob) = pair(&format!("{PLAIN}[[route]]\ntrunk='pbx'\n"));
    net.phones[bob].log.behaviour.silent = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    // Bob is a B2BUA that sends the call back with another Call-ID and decremented Max-Forwards.
    for round in 0..100 {
        let offered: Vec<u8> = match net.log(bob).get(round) {
            Some(entry) => entry.bytes.clone(),
            None => break,
        };
        let invite = Message::parse(&offered).unwrap();
        let forwards = invite.max_forwards().unwrap();
        let again = String::from_utf8(offered.clone()).unwrap();
        let again = again
            .replace(
                "INVITE sip:bob@10.2.0.1:5060",
                "INVITE sip:bob@198.51.100.1:5060",
            )
            .replace(
                &format!("Max-Forwards: {forwards}"),
                &format!("Max-Forwards: {}", forwards.saturating_sub(1)),
            )
            .replace("Call-ID: ", &format!("Call-ID: x{round}"))
            .replace("branch=z9hG4bK", &format!("branch=z9hG4bKx{round}"))
            .replace("SIP/2.0/UDP 198.51.100.1:5060", "SIP/2.0/UDP 10.2.0.1:5060");
        net.send_raw("10.2.0.1:5060", "198.51.100.1:5060", again.as_bytes());
        net.run(Duration::from_millis(100));
    }
    let offers = net
        .phone_events(bob)
        .iter()
        .filter(|event| **event == PhoneEvent::Offered)
        .count();
    assert!((30..=40).contains(&offers), "{offers} rounds");
}

#[test]
fn trying_is_sent_at_once() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.silent = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(Duration::from_millis(3));
    assert!(
        net.phones[alice]
            .received
            .iter()
            .any(|bytes| bytes.starts_with(b"SIP/2.0 100"))
    );
}

#[test]
fn cancel_is_relayed_with_its_reason() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.answer = None;
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    // RFC 3326 section 2: one for each protocol.
    let reason = [
        &b"SIP;cause=200;text=\"Call completed elsewhere\""[..],
        b"Q.850;cause=26",
    ]
    .map(|value| Edit::Add {
        id: HeaderId::Reason,
        value,
    });
    net.command(alice, |endpoint, now| {
        endpoint
            .cancel(leg, &MessageContent::default().with(&reason), now)
            .unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 487)));
    let cancelled = net.find(bob, |event| *event == PhoneEvent::Cancelled);
    assert_eq!(
        cancelled.header("Reason"),
        "SIP;cause=200;text=\"Call completed elsewhere\", Q.850;cause=26"
    );
    assert_eq!(net.border.counters().cancelled, 1);
    net.assert_quiet();
}

#[test]
fn cancel_crossing_the_answer_leaves_no_state() {
    for delay in 0..8 {
        let (mut net, alice, bob) = pair(PLAIN);
        net.phones[bob].log.behaviour.answer = None;
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        let called = net
            .find(bob, |event| *event == PhoneEvent::Offered)
            .leg
            .unwrap();
        // The 2xx and CANCEL cross; their delay varies in half steps.
        net.command(alice, |endpoint, now| {
            endpoint
                .cancel(leg, &MessageContent::default(), now)
                .unwrap()
        });
        net.run(Duration::from_micros(500 * delay));
        net.command(bob, |endpoint, now| {
            let _ = endpoint.answer(called, 200, &MessageContent::sdp(SDP_B.as_bytes()), now);
        });
        net.run(seconds(40));
        let bob_open = net.phones[bob].endpoint.census().legs;
        let alice_open = net.phones[alice].endpoint.census().legs;
        assert_eq!((alice_open, bob_open), (0, 0), "delay {delay}");
        net.assert_quiet();
    }
}

#[test]
fn busy_and_decline_are_relayed() {
    for status in [404, 486, 488, 600, 603] {
        let (mut net, alice, bob) = pair(PLAIN);
        net.phones[bob].log.behaviour.answer = Some(status);
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        assert!(net.has(alice, |event| *event
            == PhoneEvent::Failed(Failure::Response, status)));
        net.assert_quiet();
    }
}

#[test]
fn failover_on_503_timeout_and_refused_connection() {
    // The first target answers 503.
    let (mut net, alice, bob) = pair(&two_targets());
    let mut behaviour = PhoneBehaviour::answering("");
    behaviour.progress.clear();
    behaviour.answer = Some(503);
    let sick = net.phone("10.2.0.9:5060", behaviour);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(sick, |event| *event == PhoneEvent::Offered));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    // The first target does not answer.
    let (mut net, alice, bob) = pair(&two_targets());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(Duration::from_millis(1_900));
    assert!(!net.has(bob, |event| *event == PhoneEvent::Offered));
    net.run(seconds(1));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    net.run(seconds(40));
    // The network reports the address as unreachable: failover at once.
    let (mut net, alice, bob) = pair(&two_targets());
    net.reports_unreachable = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(Duration::from_millis(20));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    // A refused connection.
    let tcp = two_targets().replace("udp:10.2.0.9", "tcp:10.2.0.9");
    let (mut net, alice, bob) = pair(&tcp);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(
        net.has(bob, |event| *event == PhoneEvent::Acked),
        "{:?}",
        net.phone_events(alice)
    );
}

#[test]
fn no_failover_after_a_provisional_response() {
    let (mut net, alice, bob) = pair(&two_targets());
    let mut behaviour = PhoneBehaviour::answering("");
    behaviour.answer = Some(503);
    net.phone("10.2.0.9:5060", behaviour);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(5));
    assert!(!net.has(bob, |event| *event == PhoneEvent::Offered));
    // Overload of another server is not our own (RFC 3261 section 16.7).
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 500)));
    net.assert_quiet();
}

#[test]
fn target_that_sent_100_is_waited_for() {
    let (mut net, alice, bob) = pair(&two_targets());
    let mut behaviour = PhoneBehaviour::answering("");
    behaviour.progress.clear();
    behaviour.answer = None;
    let slow = net.phone("10.2.0.9:5060", behaviour);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(5));
    assert!(
        !net.has(bob, |event| *event == PhoneEvent::Offered),
        "{:?}",
        net.phone_events(slow)
    );
}

#[test]
fn unanswered_call_times_out() {
    let config = format!("{PLAIN}[sip]\nring_timeout_s=20\n");
    let (mut net, alice, bob) = pair(&config);
    net.phones[bob].log.behaviour.answer = None;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(21));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 480)));
    assert!(net.has(bob, |event| *event == PhoneEvent::Cancelled));
    net.assert_quiet();
}

#[test]
fn redirects_are_relayed_or_followed() {
    let redirect = |net: &mut VirtualNetwork, phone: usize| {
        let leg = net
            .find(phone, |event| *event == PhoneEvent::Offered)
            .leg
            .unwrap();
        let edits = [Edit::Add {
            id: HeaderId::Contact,
            value: b"<sip:bob@10.2.0.7:5060>;q=0.1, <sip:bob@10.2.0.8:5060>;q=0.9",
        }];
        net.command(phone, |endpoint, now| {
            endpoint
                .reject(leg, 302, &MessageContent::default().with(&edits), now)
                .unwrap()
        });
    };
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.silent = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    redirect(&mut net, bob);
    net.run(seconds(1));
    let refused = net.find(alice, |event| {
        *event == PhoneEvent::Failed(Failure::Response, 302)
    });
    assert!(refused.text().contains(";q=0.1"), "{}", refused.text());
    net.assert_quiet();

    let follow = format!("{PLAIN}redirect='follow'\n");
    // A call that is forwarded because it was not answered has rung before.
    for progress in [vec![], vec![(180, false)], vec![(183, false)]] {
        let (mut net, alice, bob) = pair(&follow);
        let ringing = &mut net.phones[bob].log.behaviour;
        (ringing.progress, ringing.answer) = (progress, None);
        let mut busy = PhoneBehaviour::answering(SDP_B);
        busy.answer = Some(503);
        busy.progress.clear();
        let best = net.phone("10.2.0.8:5060", busy);
        let other = net.phone("10.2.0.7:5060", PhoneBehaviour::answering(SDP_B));
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        redirect(&mut net, bob);
        net.run(seconds(1));
        assert!(
            net.has(best, |event| *event == PhoneEvent::Offered),
            "the preferred target first"
        );
        assert!(net.has(other, |event| *event == PhoneEvent::Acked));
        assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    }
    // A reliable answer is final for the caller.
    let (mut net, alice, bob) = pair(&follow);
    let ringing = &mut net.phones[bob].log.behaviour;
    (ringing.progress, ringing.answer) = (vec![(183, true)], None);
    let best = net.phone("10.2.0.8:5060", PhoneBehaviour::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    redirect(&mut net, bob);
    net.run(seconds(1));
    assert!(!net.has(best, |event| *event == PhoneEvent::Offered));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 302)));
}

/// RFC 3261 section 8.1.3.4: in the order of their preference, after any refusal below 600.
#[test]
fn followed_redirects_are_tried_in_the_order_of_their_preference() {
    for status in [503, 486, 404] {
        contacts_of_a_redirect_are_tried_after(status);
    }
}

fn contacts_of_a_redirect_are_tried_after(status: u16) {
    // The second trunk is for outages of the first one, and not part of the list of contacts.
    let follow = format!(
        "{PLAIN}redirect='follow'\n[[trunk]]\nname='spare'\ninterface='in'\ntarget='udp:10.2.0.20:5060'\n\
         [[route]]\ntrunk=['pbx','spare']\n"
    );
    let (mut net, alice, bob) = pair(&follow);
    let spare = net.phone("10.2.0.20:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[bob].log.behaviour.silent = true;
    let mut busy = PhoneBehaviour::answering(SDP_B);
    busy.answer = Some(status);
    busy.progress.clear();
    let contacts = [6, 7, 8, 9].map(|host| {
        let address = format!("10.2.0.{host}:5060");
        (
            net.phone(&address, busy.clone()),
            format!("<sip:bob@{address}>;q=0.{host}"),
        )
    });
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let leg = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    let values: Vec<&str> = contacts.iter().map(|(_, value)| value.as_str()).collect();
    let value = values.join(", ");
    let edits = [Edit::Add {
        id: HeaderId::Contact,
        value: value.as_bytes(),
    }];
    net.command(bob, |endpoint, now| {
        endpoint
            .reject(leg, 302, &MessageContent::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(2));
    let mut called: Vec<_> = contacts
        .iter()
        .map(|(phone, value)| {
            (
                net.find(*phone, |event| *event == PhoneEvent::Offered).at,
                value,
            )
        })
        .collect();
    called.sort();
    let called: Vec<&String> = called.into_iter().map(|(_, value)| value).collect();
    let preferred: Vec<&String> = contacts.iter().rev().map(|(_, value)| value).collect();
    assert_eq!(called, preferred, "{status}");
    let moved_on = net.has(spare, |event| *event == PhoneEvent::Offered);
    assert_eq!(moved_on, status == 503, "{status}");
}

/// The addresses of one name are one target.
#[test]
fn refusing_redirect_contact_is_called_at_one_address() {
    let follow = format!("{PLAIN}redirect='follow'\n[dns]\nservers=['10.8.0.53:53']\n");
    let (mut net, alice, bob) = pair(&follow);
    net.zone = vec![
        ("target.example", 1, vec![10, 2, 0, 6]),
        ("target.example", 1, vec![10, 2, 0, 7]),
    ];
    net.phones[bob].log.behaviour.silent = true;
    let mut busy = PhoneBehaviour::answering(SDP_B);
    busy.answer = Some(486);
    busy.progress.clear();
    let phones = ["10.2.0.6:5060", "10.2.0.7:5060"].map(|at| net.phone(at, busy.clone()));
    let voicemail = net.phone("10.2.0.8:5060", PhoneBehaviour::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let leg = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    let edits = [Edit::Add {
        id: HeaderId::Contact,
        value: b"<sip:bob@target.example>;q=0.9, <sip:bob@10.2.0.8:5060>;q=0.1",
    }];
    net.command(bob, |endpoint, now| {
        endpoint
            .reject(leg, 302, &MessageContent::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(5));
    let called = |phone: &usize| net.has(*phone, |event| *event == PhoneEvent::Offered);
    assert_eq!(phones.iter().filter(|phone| called(phone)).count(), 1);
    assert!(net.has(voicemail, |event| *event == PhoneEvent::Acked));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

#[test]
fn calls_from_a_trunk_count_for_its_limit() {
    let config = format!(
        "{PLAIN}max_calls=1\n[[trunk]]\nname='phones'\ninterface='out'\ntarget='udp:10.1.0.1:5060'\n\
         [[route]]\nfrom_trunk='pbx'\ntrunk='phones'\n"
    );
    let (mut net, alice, bob) = pair(&config);
    let call = |net: &mut VirtualNetwork, to: &str| {
        let leg = net.call(bob, to, "198.51.100.1:5060", &offer());
        net.run(seconds(1));
        leg
    };
    let first = call(&mut net, "sip:alice@198.51.100.1");
    assert!(net.has(bob, |event| *event == PhoneEvent::Answered));
    call(&mut net, "sip:alice@198.51.100.1");
    let refused = PhoneEvent::Failed(Failure::Response, 503);
    let answer = net.last(bob, |event| *event == refused);
    assert_eq!(answer.header("Retry-After"), "5");
    let offered = |net: &VirtualNetwork| {
        let events = net.phone_events(alice);
        events
            .iter()
            .filter(|event| **event == PhoneEvent::Offered)
            .count()
    };
    assert_eq!(offered(&net), 1);
    call(&mut net, "urn:service:sos");
    assert_eq!(offered(&net), 2, "an emergency call");
    net.command(bob, |endpoint, now| {
        endpoint
            .bye(first, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    let emergency = net.last(bob, |event| *event == PhoneEvent::Answered).leg;
    net.command(bob, |endpoint, now| {
        let leg = emergency.unwrap();
        endpoint.bye(leg, &MessageContent::default(), now).unwrap();
    });
    net.run(seconds(1));
    call(&mut net, "sip:alice@198.51.100.1");
    assert_eq!(offered(&net), 3);
}

/// The trunk has credentials and is trusted; a host that it redirects to is only if it is one of its own.
#[test]
fn redirect_to_another_host_gets_no_credentials_and_no_trust() {
    for (domain, own) in [("", false), ("domain='10.2.0.8'\n", true)] {
        let trunk = "redirect='follow'\nusername='us'\npassword='pw'\nping_interval_s=60\nping_failures=1\n";
        let config = format!("{PLAIN}{trunk}{domain}")
            .replace("kind='access'", "kind='core'\nallow='10.1.0.0/24'");
        let (mut net, alice, bob) = pair(&config);
        net.phones[bob].log.behaviour.silent = true;
        let mut silent = PhoneBehaviour::answering(SDP_B);
        silent.silent = true;
        let other = net.phone("10.2.0.8:5060", silent);
        let identity = [Edit::Add {
            id: HeaderId::PAssertedIdentity,
            value: b"<sip:+431@10.1.0.1>",
        }];
        let reject = |net: &mut VirtualNetwork, phone: usize, status: u16, edit: Edit<'_>| {
            let leg = net.last(phone, |event| *event == PhoneEvent::Offered).leg;
            net.command(phone, |endpoint, now| {
                let content = MessageContent::default();
                let edits = [edit];
                let _ = endpoint.reject(leg.unwrap(), status, &content.with(&edits), now);
            });
            net.run(seconds(1));
        };
        let contact = Edit::Add {
            id: HeaderId::Contact,
            value: b"<sip:bob@10.2.0.8:5060>",
        };
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&identity));
        net.run(seconds(1));
        reject(&mut net, bob, 302, contact);
        let offered = net.last(other, |event| *event == PhoneEvent::Offered);
        assert_eq!(!offered.header("P-Asserted-Identity").is_empty(), own);
        let challenge = Edit::Add {
            id: HeaderId::ProxyAuthenticate,
            value: b"Digest realm=\"r\", nonce=\"n\", qop=\"auth\", algorithm=MD5",
        };
        reject(&mut net, other, 407, challenge);
        let offered = net.last(other, |event| *event == PhoneEvent::Offered);
        assert_eq!(!offered.header("Proxy-Authorization").is_empty(), own);
        // Its failures are not those of the trunk.
        let behaviour = &mut net.phones[other].log.behaviour;
        (behaviour.silent, behaviour.answer) = (false, Some(503));
        behaviour.progress.clear();
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        reject(&mut net, bob, 302, contact);
        assert!(net.has(alice, |event| matches!(event, PhoneEvent::Failed(..))));
        assert!(!net.names().contains(&"trunk_down"), "{:?}", net.names());
    }
}

#[test]
fn challenge_for_our_credentials_is_not_relayed() {
    let config = format!("{PLAIN}username='us'\npassword='pw'\n");
    let config = match config::parse(&config, "t") {
        Ok(_) => config,
        Err(_) => format!("{PLAIN}credentials={{username='us',password='pw'}}\n"),
    };
    let (mut net, alice, bob) = pair(&config);
    net.phones[bob].log.behaviour.silent = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let challenge = [Edit::Add {
        id: HeaderId::ProxyAuthenticate,
        value: b"Digest realm=\"r\", nonce=\"n\", qop=\"auth\", algorithm=MD5",
    }];
    for _ in 0..2 {
        let leg = net
            .last(bob, |event| *event == PhoneEvent::Offered)
            .leg
            .unwrap();
        net.command(bob, |endpoint, now| {
            let _ = endpoint.reject(leg, 407, &MessageContent::default().with(&challenge), now);
        });
        net.run(seconds(1));
    }
    let second = net.last(bob, |event| *event == PhoneEvent::Offered);
    assert!(
        second
            .header("Proxy-Authorization")
            .contains("username=\"us\""),
        "{}",
        second.text()
    );
    assert!(net.has(alice, |event| *event
        == PhoneEvent::Failed(Failure::Response, 403)));
}

#[test]
fn forking_callee_gives_early_dialogs_and_a_late_answer_is_ended() {
    // The target is a hand-written proxy that forked to two phones.
    let (mut net, alice, _) = pair(&PLAIN.replace("10.2.0.1", "10.2.0.77"));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(Duration::from_millis(100));
    let invite = net.media[0].2.clone();
    let invite = Message::parse(&invite).unwrap();
    let reply = |status: &str, tag: &str, sdp: &str| {
        let mut out = String::new();
        out += &format!("SIP/2.0 {status}\r\n");
        for header in invite.headers() {
            match header.id {
                HeaderId::Via | HeaderId::From | HeaderId::CallId | HeaderId::CSeq => {
                    out += &String::from_utf8_lossy(header.raw);
                }
                HeaderId::To => {
                    out += &format!(
                        "To: {};tag={tag}\r\n",
                        String::from_utf8_lossy(header.value)
                    );
                }
                _ => {}
            }
        }
        out += &format!("Contact: <sip:{tag}@10.2.0.77:5060>\r\n");
        if !sdp.is_empty() {
            out += "Content-Type: application/sdp\r\n";
        }
        out += &format!("Content-Length: {}\r\n\r\n{sdp}", sdp.len());
        out
    };
    let sdp_c = SDP_B.replace("10.2.0.1", "10.2.0.3");
    for bytes in [
        reply("180 Ringing", "one", ""),
        reply("183 Session Progress", "two", &sdp_c),
        reply("200 OK", "one", SDP_B),
        reply("200 OK", "two", &sdp_c),
    ] {
        net.send_raw("10.2.0.77:5060", "198.51.100.1:5060", bytes.as_bytes());
    }
    net.run(seconds(1));
    let statuses: Vec<u16> = net
        .phone_events(alice)
        .iter()
        .filter_map(|event| match event {
            PhoneEvent::Progressed(status, ..) => Some(*status),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, [180, 183]);
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    let sent = |method: &str, tag: &str| {
        net.media
            .iter()
            .filter(|(_, _, bytes)| {
                let text = String::from_utf8_lossy(bytes);
                text.starts_with(method) && text.contains(&format!("tag={tag}\r\n"))
            })
            .count()
    };
    assert!(sent("ACK", "one") >= 1 && sent("ACK", "two") >= 1);
    assert_eq!(sent("BYE", "one"), 0);
    assert!(sent("BYE", "two") >= 1, "the second answer is ended by BYE");
}

#[test]
fn missing_ack_ends_both_sides() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[alice].log.behaviour.acks = false;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(40));
    assert!(
        net.has(bob, |event| matches!(event, PhoneEvent::Ended(_))),
        "{:?}",
        net.phone_events(bob)
    );
    assert!(
        net.has(alice, |event| *event == PhoneEvent::Ended(Ending::Peer)),
        "{:?}",
        net.phone_events(alice)
    );
    net.assert_quiet();
}

#[test]
fn calls_over_tcp() {
    let config = PLAIN.replace("target='udp:10.2.0.1", "target='tcp:10.2.0.1");
    let mut net = VirtualNetwork::new(&config, 3);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone_over(
        "10.2.0.1:5060",
        engine::Transport::Tcp,
        PhoneBehaviour::answering(SDP_B),
    );
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    net.assert_quiet();
}

/// A phone behind NAT keeps its registration and its calls on a connection without traffic.
#[test]
fn idle_connection_of_a_registered_phone_stays_open() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='local'\n")
        + "[[route]]\nregistered=true\n[media]\ntimeout_s=0\n";
    for workers in [1, 2] {
        let config = format!("{config}[sip]\nworkers={workers}\n");
        let mut net = VirtualNetwork::with_workers(&config, 3);
        let phone = net.phone_with(
            ("10.1.0.1:5060", engine::Transport::Tcp),
            PhoneBehaviour::answering(SDP_A),
            |config| config.timers.idle = seconds(100_000),
        );
        let caller = net.phone("10.1.0.2:5060", PhoneBehaviour::answering(SDP_B));
        let flow = net.flow(phone, OUT, engine::Transport::Tcp);
        net.command(phone, |endpoint, now| {
            let edits = [Edit::Replace {
                id: HeaderId::Contact,
                value: b"<sip:1000@192.168.3.3;transport=tcp>;expires=3600",
            }];
            let target = sip::Target::new(b"sip:192.0.2.1", flow);
            let register = sip::OutOfDialogRequest {
                from: Some(b"<sip:1000@192.0.2.1>"),
                to: Some(b"<sip:1000@192.0.2.1>"),
                content: MessageContent::default().with(&edits),
                ..sip::OutOfDialogRequest::new(Method::Register, target)
            };
            endpoint.send(&register, now).unwrap();
        });
        net.run(seconds(1000));
        let leg = net.call(caller, "sip:1000@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        assert!(
            net.has(phone, |event| *event == PhoneEvent::Acked),
            "{workers}: {:?}",
            net.phone_events(caller)
        );
        // The registration ends during the call, so that only the call needs the connection.
        net.run(seconds(5000));
        assert!(!net.has(phone, |event| *event == PhoneEvent::FlowFailed));
        net.command(caller, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap()
        });
        net.run(seconds(1));
        assert!(
            net.has(phone, |event| *event == PhoneEvent::Ended(Ending::Peer)),
            "{workers}: {:?}",
            net.phone_events(phone)
        );
        net.run(seconds(2000));
        assert!(net.has(phone, |event| *event == PhoneEvent::FlowFailed));
    }
}
