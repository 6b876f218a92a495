//! Calls through the border, in memory: set-up, failure, failover, ending.

use crate::neighbourhood;

use neighbourhood::*;
use sip::{Content, Ending, Failure};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Message};

const OUT: &str = "192.0.2.1:5060";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn offer() -> Content<'static> {
    Content::sdp(SDP_A.as_bytes())
}

fn pair(config: &str) -> (Neighbourhood, usize, usize) {
    let mut net = Neighbourhood::new(config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    (net, alice, bob)
}

/// Two targets in order of priority.
fn two_targets() -> String {
    PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target=[{address='udp:10.2.0.9:5060',priority=1},{address='udp:10.2.0.1:5060',priority=2}]\nanswer_timeout=2",
    )
}

#[test]
fn a_call_from_end_to_end() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Answered));
    assert!(net.has(bob, |told| *told == Told::Acked));
    let calls = net.border.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].interfaces, ["out".to_owned(), "in".to_owned()]);
    assert_eq!(calls[0].trunks[1].as_deref(), Some("pbx"));
    let reason = [Edit::Add {
        id: HeaderId::Reason,
        value: b"Q.850;cause=16;text=\"done\"",
    }];
    net.tell(alice, |endpoint, now| {
        endpoint
            .bye(leg, &Content::default().with(&reason), now)
            .unwrap()
    });
    net.run(seconds(1));
    let bye = net.find(bob, |told| *told == Told::Ended(Ending::Peer));
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
            "call_ended"
        ]
    );
    assert_eq!(net.border.counters().completed, 1);
    net.assert_quiet();
}

#[test]
fn the_callee_may_end_it_too() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let leg = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
    net.tell(bob, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Ended(Ending::Peer)));
    net.assert_quiet();
}

/// Every byte that goes to one side is searched for whatever names the other.
#[test]
fn neither_side_sees_the_other() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, wire::sip::Method::Info, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
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
fn headers_that_are_not_ours_pass_unchanged_and_in_order() {
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
    let invite = net.find(bob, |told| *told == Told::Offered).text();
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
fn max_forwards_ends_calls_and_loops_are_found() {
    let (mut net, alice, _) = pair(PLAIN);
    let none = [Edit::Replace {
        id: HeaderId::MaxForwards,
        value: b"0",
    }];
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&none));
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 483)));
    // The trunk is the border's own address: the call comes back with the Request-URI that it was given.
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
        net.has(alice, |told| *told == Told::Failed(Failure::Response, 482)),
        "{:?}",
        net.told(alice)
    );
    assert!(
        net.border.counters().offered <= 3,
        "{:?}",
        net.border.counters()
    );
    net.assert_quiet();
}

#[test]
fn a_loop_through_another_b2bua_ends_by_max_forwards() {
    let (mut net, alice, bob) = pair(&format!("{PLAIN}[[route]]\ntrunk='pbx'\n"));
    net.phones[bob].ears.manners.silent = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    // Bob is a B2BUA that sends the call back: with its own Call-ID, yet Max-Forwards carried on.
    for round in 0..100 {
        let offered: Vec<u8> = match net.seen(bob).get(round) {
            Some(seen) => seen.bytes.clone(),
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
        net.throw("10.2.0.1:5060", "198.51.100.1:5060", again.as_bytes());
        net.run(Duration::from_millis(100));
    }
    let offers = net
        .told(bob)
        .iter()
        .filter(|told| **told == Told::Offered)
        .count();
    assert!((30..=40).contains(&offers), "{offers} rounds");
}

#[test]
fn a_hundred_goes_out_at_once() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.silent = true;
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
fn cancel_passes_with_its_reason() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.answer = None;
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let reason = [Edit::Add {
        id: HeaderId::Reason,
        value: b"SIP;cause=200;text=\"Call completed elsewhere\"",
    }];
    net.tell(alice, |endpoint, now| {
        endpoint
            .cancel(leg, &Content::default().with(&reason), now)
            .unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 487)));
    let cancelled = net.find(bob, |told| *told == Told::Cancelled);
    assert!(cancelled.header("Reason").contains("completed elsewhere"));
    assert_eq!(net.border.counters().cancelled, 1);
    net.assert_quiet();
}

#[test]
fn cancel_that_crosses_the_answer_leaves_nothing_open() {
    for delay in 0..8 {
        let (mut net, alice, bob) = pair(PLAIN);
        net.phones[bob].ears.manners.answer = None;
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        let called = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
        // The 2xx is on its way to the border while CANCEL is on its way to it, from `delay` half steps apart.
        net.tell(alice, |endpoint, now| {
            endpoint.cancel(leg, &Content::default(), now).unwrap()
        });
        net.run(Duration::from_micros(500 * delay));
        net.tell(bob, |endpoint, now| {
            let _ = endpoint.answer(called, 200, &Content::sdp(SDP_B.as_bytes()), now);
        });
        net.run(seconds(40));
        let bob_open = net.phones[bob].endpoint.census().legs;
        let alice_open = net.phones[alice].endpoint.census().legs;
        assert_eq!((alice_open, bob_open), (0, 0), "delay {delay}");
        net.assert_quiet();
    }
}

#[test]
fn busy_and_declined_pass_as_they_are() {
    for status in [404, 486, 488, 600, 603] {
        let (mut net, alice, bob) = pair(PLAIN);
        net.phones[bob].ears.manners.answer = Some(status);
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        assert!(net.has(alice, |told| *told
            == Told::Failed(Failure::Response, status)));
        net.assert_quiet();
    }
}

#[test]
fn failover_on_503_on_silence_and_on_a_refused_connection() {
    // 503 of the first target.
    let (mut net, alice, bob) = pair(&two_targets());
    let mut manners = Manners::answering("");
    manners.progress.clear();
    manners.answer = Some(503);
    let sick = net.phone("10.2.0.9:5060", manners);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(sick, |told| *told == Told::Offered));
    assert!(net.has(bob, |told| *told == Told::Acked));
    // Nothing at all from the first target.
    let (mut net, alice, bob) = pair(&two_targets());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(Duration::from_millis(1_900));
    assert!(!net.has(bob, |told| *told == Told::Offered));
    net.run(seconds(1));
    assert!(net.has(bob, |told| *told == Told::Acked));
    net.run(seconds(40));
    // The network says that nobody is there: no need to wait.
    let (mut net, alice, bob) = pair(&two_targets());
    net.tells_of_nobody = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(Duration::from_millis(20));
    assert!(net.has(bob, |told| *told == Told::Acked));
    // A connection that is refused.
    let tcp = two_targets().replace("udp:10.2.0.9", "tcp:10.2.0.9");
    let (mut net, alice, bob) = pair(&tcp);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(
        net.has(bob, |told| *told == Told::Acked),
        "{:?}",
        net.told(alice)
    );
}

#[test]
fn no_failover_after_a_provisional_response() {
    let (mut net, alice, bob) = pair(&two_targets());
    let mut manners = Manners::answering("");
    manners.answer = Some(503);
    net.phone("10.2.0.9:5060", manners);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(5));
    assert!(!net.has(bob, |told| *told == Told::Offered));
    // Another's overload is not ours (RFC 3261 section 16.7).
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 500)));
    net.assert_quiet();
}

#[test]
fn a_target_that_said_100_gets_its_time() {
    let (mut net, alice, bob) = pair(&two_targets());
    let mut manners = Manners::answering("");
    manners.progress.clear();
    manners.answer = None;
    let slow = net.phone("10.2.0.9:5060", manners);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(5));
    assert!(
        !net.has(bob, |told| *told == Told::Offered),
        "{:?}",
        net.told(slow)
    );
}

#[test]
fn nobody_answers_in_time() {
    let config = format!("{PLAIN}[sip]\nring_timeout=20\n");
    let (mut net, alice, bob) = pair(&config);
    net.phones[bob].ears.manners.answer = None;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(21));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 480)));
    assert!(net.has(bob, |told| *told == Told::Cancelled));
    net.assert_quiet();
}

#[test]
fn redirections_pass_or_are_followed() {
    let redirect = |net: &mut Neighbourhood, phone: usize| {
        let leg = net.find(phone, |told| *told == Told::Offered).leg.unwrap();
        let edits = [Edit::Add {
            id: HeaderId::Contact,
            value: b"<sip:bob@10.2.0.7:5060>;q=0.1, <sip:bob@10.2.0.8:5060>;q=0.9",
        }];
        net.tell(phone, |endpoint, now| {
            endpoint
                .reject(leg, 302, &Content::default().with(&edits), now)
                .unwrap()
        });
    };
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.silent = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    redirect(&mut net, bob);
    net.run(seconds(1));
    let refused = net.find(alice, |told| *told == Told::Failed(Failure::Response, 302));
    eprintln!("{}", refused.text());
    assert!(refused.text().contains("10.2.0.8"));
    net.assert_quiet();

    let follow = format!("{PLAIN}redirect='follow'\n");
    let (mut net, alice, bob) = pair(&follow);
    net.phones[bob].ears.manners.silent = true;
    let mut busy = Manners::answering(SDP_B);
    busy.answer = Some(503);
    busy.progress.clear();
    let best = net.phone("10.2.0.8:5060", busy);
    let other = net.phone("10.2.0.7:5060", Manners::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    redirect(&mut net, bob);
    net.run(seconds(1));
    assert!(
        net.has(best, |told| *told == Told::Offered),
        "the preferred one first"
    );
    assert!(net.has(other, |told| *told == Told::Acked));
    assert!(net.has(alice, |told| *told == Told::Answered));
}

#[test]
fn a_challenge_that_our_login_should_have_met_is_not_the_callers() {
    let config = format!("{PLAIN}username='us'\npassword='pw'\n");
    let config = match border::config::parse(&config, "t") {
        Ok(_) => config,
        Err(_) => format!("{PLAIN}credentials={{username='us',password='pw'}}\n"),
    };
    let (mut net, alice, bob) = pair(&config);
    net.phones[bob].ears.manners.silent = true;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let challenge = [Edit::Add {
        id: HeaderId::ProxyAuthenticate,
        value: b"Digest realm=\"r\", nonce=\"n\", qop=\"auth\", algorithm=MD5",
    }];
    for _ in 0..2 {
        let leg = net.last(bob, |told| *told == Told::Offered).leg.unwrap();
        net.tell(bob, |endpoint, now| {
            let _ = endpoint.reject(leg, 407, &Content::default().with(&challenge), now);
        });
        net.run(seconds(1));
    }
    let second = net.last(bob, |told| *told == Told::Offered);
    assert!(
        second
            .header("Proxy-Authorization")
            .contains("username=\"us\""),
        "{}",
        second.text()
    );
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 403)));
}

#[test]
fn a_callee_that_forks_behind_us_gives_early_dialogs_and_a_late_answer_is_ended() {
    // The target is written by hand: a proxy that forked to two phones.
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
        net.throw("10.2.0.77:5060", "198.51.100.1:5060", bytes.as_bytes());
    }
    net.run(seconds(1));
    let statuses: Vec<u16> = net
        .told(alice)
        .iter()
        .filter_map(|told| match told {
            Told::Progressed(status, ..) => Some(*status),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, [180, 183]);
    assert!(net.has(alice, |told| *told == Told::Answered));
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
    assert!(sent("BYE", "two") >= 1, "the second answer is one too many");
}

#[test]
fn a_missing_ack_ends_both_sides() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[alice].ears.manners.acks = false;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(40));
    assert!(
        net.has(bob, |told| matches!(told, Told::Ended(_))),
        "{:?}",
        net.told(bob)
    );
    assert!(
        net.has(alice, |told| *told == Told::Ended(Ending::Peer)),
        "{:?}",
        net.told(alice)
    );
    net.assert_quiet();
}

#[test]
fn calls_over_tcp() {
    let config = PLAIN.replace("target='udp:10.2.0.1", "target='tcp:10.2.0.1");
    let mut net = Neighbourhood::new(&config, 3);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone_over(
        "10.2.0.1:5060",
        engine::Transport::Tcp,
        Manners::answering(SDP_B),
    );
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(bob, |told| *told == Told::Acked));
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    net.assert_quiet();
}
