//! What is not a call: registrations, requests outside of dialogs, who may come in, pings, names, reload and drain.

use crate::neighbourhood;

use engine::Transport;
use neighbourhood::*;
use sip::{Content, Ending, Failure, Flow, Login, Outside, Target};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Message, Method};

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

/// A request outside of dialogs, from a phone to the border.
fn send(
    net: &mut Neighbourhood,
    phone: usize,
    method: Method<'static>,
    uri: &str,
    edits: &[Edit<'_>],
    login: Option<Login<'_>>,
) {
    let flow = Flow {
        local: net.phones[phone].local,
        transport: Transport::Udp,
        remote: OUT.parse().unwrap(),
        connection: None,
    };
    let user = format!("<sip:100{phone}@192.0.2.1>");
    net.tell(phone, |endpoint, now| {
        let outside = Outside {
            from: Some(user.as_bytes()),
            to: (method == Method::Register).then_some(user.as_bytes()),
            content: Content::default().with(edits),
            login,
            ..Outside::new(method, Target::new(uri.as_bytes(), flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(1));
}

fn last_status(net: &Neighbourhood, phone: usize) -> u16 {
    match net
        .last(phone, |told| {
            matches!(told, Told::OutsideResponse(_) | Told::OutsideTimedOut)
        })
        .told
    {
        Told::OutsideResponse(status) => status,
        _ => 0,
    }
}

#[test]
fn options_are_answered() {
    let (mut net, alice, _) = pair(PLAIN);
    send(&mut net, alice, Method::Options, "sip:192.0.2.1", &[], None);
    let seen = net.find(alice, |told| *told == Told::OutsideResponse(200));
    for name in ["Allow", "Accept", "Supported", "Accept-Encoding"] {
        assert!(!seen.header(name).is_empty(), "{name} in {}", seen.text());
    }
    assert!(seen.header("Allow").contains("INVITE"));
}

#[test]
fn messages_pass_and_what_is_not_passed_is_refused_clearly() {
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
    let seen = net.find(bob, |told| matches!(told, Told::Outside(_)));
    assert_eq!(seen.header("Subject"), "hello");
    assert!(
        !seen.text().contains("10.1.0.1") && !seen.text().contains("192.0.2.1"),
        "{}",
        seen.text()
    );
    net.phones[bob].ears.manners.outside = Some(404);
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

const USERS: &str = "[[interface]]\nname='out'\nkind='access'\nlisten='udp:192.0.2.1:5060'\nauthenticate='digest'\nregister='local'\n\
    [[user]]\nname='1000'\npassword='secret-1000'\n[[user]]\nname='1001'\npassword='secret-1001'\n[registrar]\nmin_expires=60\n";

fn login(password: &'static str, user: &'static str) -> Option<Login<'static>> {
    Some(Login {
        user: user.as_bytes(),
        password: password.as_bytes(),
    })
}

#[test]
fn phones_register_with_digest_and_call_each_other() {
    let mut net = Neighbourhood::new(USERS, 5);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
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
    // Without proof no call; with it the phone behind NAT is reached on its flow.
    let call = |net: &mut Neighbourhood, login| {
        let leg = net.call_with(alice, "sip:1001@192.0.2.1", OUT, &offer(), |invite| {
            invite.from = Some(b"<sip:1000@192.0.2.1>");
            invite.login = login;
        });
        net.run(seconds(1));
        leg
    };
    call(&mut net, None);
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 407)));
    let leg = call(&mut net, login("secret-1000", "1000"));
    assert!(
        net.has(alice, |told| *told == Told::Answered),
        "{:?}",
        net.told(alice)
    );
    let offered = net.find(bob, |told| *told == Told::Offered);
    assert!(
        offered
            .text()
            .starts_with("INVITE sip:1001@192.168.7.7:5099 SIP/2.0")
    );
    assert!(
        offered.header("Proxy-Authorization").is_empty(),
        "credentials end here"
    );
    assert!(net.has(bob, |told| *told == Told::Acked));
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(bob, |told| *told == Told::Ended(Ending::Peer)));
    // Nobody may be somebody else.
    net.call_with(alice, "sip:1001@192.0.2.1", OUT, &offer(), |invite| {
        invite.from = Some(b"<sip:1001@192.0.2.1>");
        invite.login = login("secret-1000", "1000");
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 403)));
    for event in &net.events {
        assert!(!event.to_string().contains("secret"), "{event}");
    }
    net.assert_quiet();
}

#[test]
fn all_contacts_ring_and_the_first_answer_wins() {
    let mut net = Neighbourhood::new(USERS, 5);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let mut slow = Manners::answering(SDP_B);
    slow.answer = None;
    let desk = net.phone("10.2.0.1:5060", slow);
    let mobile = net.phone("10.3.0.1:5060", Manners::answering(SDP_B));
    for (phone, contact) in [
        (desk, "<sip:1001@10.2.0.1>"),
        (mobile, "<sip:1001@10.3.0.1>"),
    ] {
        let contact = [Edit::Replace {
            id: HeaderId::Contact,
            value: contact.as_bytes(),
        }];
        let flow = Flow {
            local: net.phones[phone].local,
            transport: Transport::Udp,
            remote: OUT.parse().unwrap(),
            connection: None,
        };
        net.tell(phone, |endpoint, now| {
            let outside = Outside {
                from: Some(b"<sip:1001@192.0.2.1>"),
                to: Some(b"<sip:1001@192.0.2.1>"),
                content: Content::default().with(&contact),
                login: login("secret-1001", "1001"),
                ..Outside::new(Method::Register, Target::new(b"sip:192.0.2.1", flow))
            };
            endpoint.send(&outside, now).unwrap();
        });
        net.run(seconds(1));
        assert_eq!(last_status(&net, phone), 200);
    }
    let leg = net.call_with(alice, "sip:1001@192.0.2.1", OUT, &offer(), |invite| {
        invite.from = Some(b"<sip:1000@192.0.2.1>");
        invite.login = login("secret-1000", "1000");
    });
    net.run(seconds(2));
    assert!(net.has(desk, |told| *told == Told::Offered));
    let cancelled = net.find(desk, |told| *told == Told::Cancelled);
    assert!(
        cancelled.header("Reason").contains("cause=200"),
        "{}",
        cancelled.text()
    );
    assert!(net.has(mobile, |told| *told == Told::Acked));
    assert!(net.has(alice, |told| *told == Told::Answered));
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.assert_quiet();
}

#[test]
fn breadth_is_divided_among_branches_and_kept_to() {
    let mut net = Neighbourhood::new(USERS, 5);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let mut busy = Manners::answering(SDP_B);
    busy.answer = Some(486);
    let phones: Vec<usize> = (2..6)
        .map(|host| net.phone(&format!("10.{host}.0.1:5060"), busy.clone()))
        .collect();
    for &phone in &phones {
        let value = format!("<sip:1001@{}>", net.phones[phone].address);
        let contact = [Edit::Replace {
            id: HeaderId::Contact,
            value: value.as_bytes(),
        }];
        let flow = Flow {
            local: net.phones[phone].local,
            transport: Transport::Udp,
            remote: OUT.parse().unwrap(),
            connection: None,
        };
        net.tell(phone, |endpoint, now| {
            let outside = Outside {
                from: Some(b"<sip:1001@192.0.2.1>"),
                to: Some(b"<sip:1001@192.0.2.1>"),
                content: Content::default().with(&contact),
                login: login("secret-1001", "1001"),
                ..Outside::new(Method::Register, Target::new(b"sip:192.0.2.1", flow))
            };
            endpoint.send(&outside, now).unwrap();
        });
        net.run(seconds(1));
    }
    // Breadth of the request; what each of the phones sees, in order of calling; how many ring at once.
    for (breadth, expected, at_once) in [
        (None, vec!["15", "15", "15", "15"], 4),
        (Some("9"), vec!["2", "2", "2", "2"], 4),
        (Some("3"), vec!["1", "1", "1", "3"], 3),
        (Some("1"), vec!["1", "1", "1", "1"], 1),
        (Some("0"), vec![], 0),
    ] {
        for &phone in &phones {
            net.phones[phone].ears.seen.clear();
            net.phones[phone].ears.manners.answer = None;
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
                    .seen(phone)
                    .iter()
                    .filter(|seen| seen.told == Told::Offered)
                    .cloned()
                    .collect();
                for seen in offered {
                    ringing += 1;
                    calls.push(seen.header("Max-Breadth"));
                    let leg = seen.leg.unwrap();
                    net.tell(phone, |endpoint, now| {
                        let _ = endpoint.reject(leg, 486, &Content::default(), now);
                    });
                }
                net.phones[phone].ears.seen.clear();
            }
            if round == 0 {
                assert_eq!(ringing, at_once, "{breadth:?}");
            }
        }
        assert_eq!(calls, expected, "{breadth:?}");
        let status = if breadth == Some("0") { 440 } else { 486 };
        let end = net.last(alice, |told| matches!(told, Told::Failed(..)));
        assert_eq!(end.told, Told::Failed(Failure::Response, status));
    }
    net.assert_quiet();
}

#[test]
fn registrations_pass_to_the_core_with_our_contact() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n");
    let (mut net, alice, bob) = pair(&config);
    net.phones[bob].ears.manners.outside = None;
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
    let seen = net
        .find(bob, |told| matches!(told, Told::Outside(_)))
        .clone();
    assert_eq!(seen.method(), "REGISTER");
    let ours = seen.header("Contact");
    assert!(
        ours.contains("198.51.100.1") && !seen.text().contains("192.168.3.3"),
        "{}",
        seen.text()
    );
    let Told::Outside(transaction) = seen.told else {
        panic!()
    };
    let granted = format!("{};expires=300", ours.split(";expires").next().unwrap());
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: granted.as_bytes(),
    }];
    net.tell(bob, |endpoint, now| {
        endpoint
            .respond(transaction, 200, &Content::default().with(&edits), now)
            .unwrap()
    });
    net.run(seconds(1));
    assert_eq!(last_status(&net, alice), 200);
    let answer = net.last(alice, |told| *told == Told::OutsideResponse(200));
    assert!(
        answer.header("Contact").contains("192.168.3.3"),
        "{}",
        answer.text()
    );
    // The core calls the contact that it was given: the phone is reached on its flow.
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
        &Content::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    let offered = net.find(alice, |told| *told == Told::Offered);
    assert!(
        offered
            .text()
            .starts_with("INVITE sip:1000@192.168.3.3:5060"),
        "{}",
        offered.text()
    );
    assert!(net.has(bob, |told| *told == Told::Answered));
}

#[test]
fn requests_from_addresses_that_no_list_names_are_dropped_and_counted() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nallow=['10.1.0.0/16']\n");
    let (mut net, alice, bob) = pair(&config);
    let eve = net.phone("203.0.113.5:5060", Manners::answering(SDP_A));
    net.call(eve, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(2));
    assert!(net.phones[eve].received.is_empty());
    assert!(net.border.drops().get(engine::DropReason::SipUnauthorised) > 1);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(bob, |told| *told == Told::Acked));
    // Over TCP the connection is not taken.
    let mallory = net.phone_over(
        "203.0.113.6:5060",
        Transport::Tcp,
        Manners::answering(SDP_A),
    );
    let flow = Flow {
        local: net.phones[mallory].local,
        transport: Transport::Tcp,
        remote: OUT.parse().unwrap(),
        connection: None,
    };
    net.tell(mallory, |endpoint, now| {
        let outside = Outside::new(Method::Options, Target::new(b"sip:192.0.2.1", flow));
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(2));
    assert!(net.phones[mallory].received.is_empty());
}

#[test]
fn pings_find_a_trunk_down_and_up_again() {
    let config = format!("{PLAIN}ping=10\nping_failures=2\n");
    let (mut net, alice, bob) = pair(&config);
    net.run(seconds(20));
    let pinged = net.find(bob, |told| matches!(told, Told::Outside(_)));
    assert_eq!(pinged.method(), "OPTIONS");
    net.phones[bob].ears.manners.outside = Some(503);
    net.run(seconds(40));
    assert!(net.names().contains(&"trunk_down"));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Failed(Failure::Response, 503)));
    net.phones[bob].ears.manners.outside = Some(200);
    net.run(seconds(40));
    assert!(net.names().contains(&"trunk_up"));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Answered));
}

#[test]
fn we_register_at_a_carrier() {
    let config = format!(
        "{PLAIN}username='us'\npassword='pw'\nregister={{user='4711',domain='carrier.example',contact_user='line1',expires=600}}\n"
    );
    let (mut net, _, carrier) = pair(&config);
    net.run(seconds(5));
    let seen = net.find(carrier, |told| matches!(told, Told::Outside(_)));
    assert_eq!(seen.method(), "REGISTER");
    assert_eq!(seen.header("To"), "<sip:4711@carrier.example>");
    assert_eq!(seen.header("Contact"), "<sip:line1@198.51.100.1:5060>");
    assert_eq!(seen.header("Expires"), "600");
    assert!(net.names().contains(&"carrier_registration"));
}

#[test]
fn the_flow_of_our_registration_is_kept_alive_and_registered_anew_when_it_fails() {
    let account = |keep: &str, target: &str| {
        PLAIN.replace("udp:10.2.0.1:5060", target)
            + &format!(
                "username='us'\npassword='pw'\nregister={{user='4711',domain='carrier.example',expires=3600{keep}}}\n"
            )
    };
    let registers = |net: &Neighbourhood, carrier: usize| {
        let of = |seen: &&Seen| seen.method() == "REGISTER";
        net.seen(carrier).iter().filter(of).count()
    };
    let pings = |net: &Neighbourhood, carrier: usize| {
        let is = |bytes: &&Vec<u8>| bytes.starts_with(&[0, 1]) || bytes.as_slice() == b"\r\n\r\n";
        net.phones[carrier].received.iter().filter(is).count()
    };
    // The carrier says nothing of keep-alives: it gets none.
    let (mut net, _, carrier) = pair(&account("", "udp:10.2.0.1:5060"));
    net.run(seconds(600));
    assert_eq!((registers(&net, carrier), pings(&net, carrier)), (1, 0));

    // Over UDP every 24 to 29 seconds.
    let always = ",keep_alive='always'";
    let (mut net, _, carrier) = pair(&account(always, "udp:10.2.0.1:5060"));
    net.run(seconds(300));
    assert_eq!(registers(&net, carrier), 1);
    assert!(
        (9..=12).contains(&pings(&net, carrier)),
        "{}",
        pings(&net, carrier)
    );
    // Nobody answers for as long as seven tries take.
    net.weather.loss = 1.0;
    net.run(seconds(75));
    net.weather.loss = 0.0;
    let told = |net: &Neighbourhood| {
        let failed = |event: &&engine::Event| event.to_string().contains("flow failed");
        net.events.iter().filter(failed).count()
    };
    assert_eq!(told(&net), 1);
    net.run(seconds(60));
    assert!(registers(&net, carrier) >= 2);
    let before = pings(&net, carrier);
    net.run(seconds(100));
    assert!(pings(&net, carrier) > before, "the new flow is kept alive");

    // A stream that ends.
    let config = account(always, "tcp:10.2.0.1:5060");
    let mut net = Neighbourhood::new(&config, 1);
    let carrier = net.phone_over("10.2.0.1:5060", Transport::Tcp, Manners::answering(SDP_B));
    net.run(seconds(500));
    assert_eq!(registers(&net, carrier), 1);
    assert!(
        (4..=5).contains(&pings(&net, carrier)),
        "{}",
        pings(&net, carrier)
    );
    net.break_streams(carrier);
    net.run(seconds(10));
    assert_eq!((registers(&net, carrier), told(&net)), (2, 1));
}

#[test]
fn reload_keeps_calls_and_changes_sockets_by_difference() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    // The core interface loses TCP, a third interface comes, and the trunk moves to the second place of the file.
    let changed = "[[interface]]\nname='new'\nkind='access'\nlisten='udp:192.0.2.9:5060'\nmedia={address='192.0.2.9'}\n"
        .to_owned()
        + &PLAIN.replace("['udp:198.51.100.1:5060','tcp:198.51.100.1:5060']", "'udp:198.51.100.1:5060'")
            .replace("[[trunk]]", "[[trunk]]\nname='first'\ninterface='in'\ntarget='udp:10.2.0.44:5060'\n[[trunk]]")
        + "[[route]]\ntrunk='pbx'\n";
    let config = border::config::parse(&changed, "changed.toml").unwrap();
    let before = net.open_sockets;
    net.operate(|border, now| border.reload(config, now));
    net.run(seconds(1));
    assert!(net.names().contains(&"configuration_reloaded"));
    assert_eq!(net.open_sockets, before, "one closed, one opened");
    let calls = net.border.calls();
    assert_eq!(calls[0].trunks[1].as_deref(), Some("pbx"));
    assert_eq!(calls[0].interfaces, ["out".to_owned(), "in".to_owned()]);
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.seen(bob).iter().any(|seen| seen.method() == "INFO"));
    // New calls come in by the new interface.
    net.call(alice, "sip:bob@192.0.2.9", "192.0.2.9:5060", &offer());
    net.run(seconds(1));
    assert_eq!(net.border.calls().len(), 2);
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert_eq!(net.border.calls().len(), 1);
}

#[test]
fn a_listening_point_that_a_reload_removed_is_silent_but_for_its_calls() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let moved = PLAIN.replace("udp:192.0.2.1:5060", "udp:192.0.2.1:5070");
    let config = border::config::parse(&moved, "moved.toml").unwrap();
    net.operate(|border, now| border.reload(config, now));
    let sent = net.wire.len();
    let ask = |net: &mut Neighbourhood, to: &str, mark: &str| {
        let options = format!(
            "OPTIONS sip:{to} SIP/2.0\r\nVia: SIP/2.0/UDP 10.9.9.9;branch=z9hG4bK{mark}\r\nMax-Forwards: 70\r\n\
             From: <sip:x@x>;tag=1\r\nTo: <sip:{to}>\r\nCall-ID: {mark}\r\nCSeq: 1 OPTIONS\r\n\r\n"
        );
        net.throw("10.9.9.9:5060", to, options.as_bytes());
        net.run(Duration::from_millis(100));
    };
    ask(&mut net, OUT, "old");
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(40));
    assert_eq!(net.wire.len(), sent, "nobody is there");
    ask(&mut net, "192.0.2.1:5070", "new");
    assert_eq!(net.wire.len(), sent + 1);
    // The call that stands there goes on as before.
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, wire::sip::Method::Info, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.seen(bob).iter().any(|seen| seen.method() == "INFO"));
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| matches!(told, Told::Ended(_))));
    net.assert_quiet();
}

#[test]
fn a_drain_takes_no_calls_and_ends_with_the_last_one() {
    let (mut net, alice, _) = pair(PLAIN);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.operate(|border, now| border.drain(seconds(600), now));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let refused = net.find(alice, |told| *told == Told::Failed(Failure::Response, 503));
    assert!(
        !refused.header("Retry-After").is_empty(),
        "{}",
        refused.text()
    );
    assert!(!net.border.is_drained());
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.border.is_drained());
    assert_eq!(*net.names().last().unwrap(), "drain_finished");
    net.assert_quiet();
}

#[test]
fn a_drain_cuts_what_is_left_after_its_time() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.operate(|border, now| border.drain(seconds(10), now));
    net.run(seconds(12));
    assert!(net.border.is_drained());
    for phone in [alice, bob] {
        assert!(net.has(phone, |told| *told == Told::Ended(Ending::Peer)));
    }
    let told = net
        .events
        .iter()
        .rev()
        .find(|event| event.note.name() == "drain_finished")
        .unwrap();
    assert!(told.to_string().contains("cut=1"), "{told}");
    net.assert_quiet();
}

/// Nobody answers any more: not the BYE of a standing call, not with an ACK, not whether somebody is at home. The workers end all the same.
#[test]
fn a_drain_ends_though_nobody_answers() {
    let config = format!("{PLAIN}[sip]\nworkers=2\n");
    let mut net = Neighbourhood::crew(&config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let mute = Manners {
        acks: false,
        ..Manners::answering(SDP_A)
    };
    let mute = net.phone("10.1.0.2:5060", mute);
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    for caller in [alice, mute] {
        for _ in 0..8 {
            net.call(caller, "sip:bob@192.0.2.1", OUT, &offer());
        }
    }
    net.run(seconds(1));
    net.phones[bob].ears.manners.answer = None;
    for _ in 0..8 {
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    }
    net.run(seconds(1));
    net.phones[bob].ears.manners.silent = true;
    for _ in 0..8 {
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    }
    net.run(seconds(1));
    let calls = net.each_worker(|border, _| border.calls().len());
    assert!(calls.iter().all(|calls| *calls > 4), "{calls:?}");
    assert_eq!(calls.iter().sum::<usize>(), 32);
    for worker in 0..2 {
        net.operate_worker(worker, |border, now| border.drain(seconds(5), now));
    }
    net.run(seconds(4));
    assert!(net.each_worker(|border, _| border.is_drained()) == [false; 2]);
    net.weather.loss = 1.0;
    net.run(seconds(4));
    assert!(net.each_worker(|border, _| border.is_drained()) == [true; 2]);
    let calls = net.each_worker(|border, _| border.calls().len());
    assert_eq!(calls, [0; 2]);
    let told = |name: &str| {
        let of_name = net.events.iter().filter(|event| event.note.name() == name);
        of_name.map(ToString::to_string).collect::<Vec<String>>()
    };
    assert_eq!(told("call_ended").len(), 32);
    assert!(
        told("call_ended")
            .iter()
            .all(|told| told.contains("drained"))
    );
    let [finished] = &told("drain_finished")[..] else {
        panic!("{:?}", told("drain_finished"))
    };
    assert!(finished.contains("cut=32"), "{finished}");
}

/// Who has not acknowledged our 2xx may not be told by BYE before (RFC 3261 section 15), but is when nobody will be here later; and
/// a second word ends the wait for all.
#[test]
fn who_never_acknowledged_is_told_at_the_end_of_a_drain() {
    let (mut net, alice, _) = pair(PLAIN);
    net.phones[alice].ears.manners.acks = false;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    net.operate(|border, now| border.drain(seconds(600), now));
    net.run(seconds(3));
    net.operate(|border, now| border.drain(Duration::ZERO, now));
    let ended = |net: &Neighbourhood| net.has(alice, |told| *told == Told::Ended(Ending::Peer));
    net.run(seconds(1));
    assert!(!net.border.is_drained() && !ended(&net));
    net.run(seconds(2));
    assert!(net.border.is_drained() && ended(&net));
}

/// A DNS answer with one A record, made from the query.
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
fn a_trunk_that_is_a_name_is_located_by_dns() {
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
    net.throw(
        "10.8.0.53:53",
        &from.to_string(),
        &dns_answer(&query, [10, 2, 0, 1]),
    );
    net.run(seconds(1));
    assert!(
        net.has(bob, |told| *told == Told::Acked),
        "{:?}",
        net.told(alice)
    );
    assert!(
        net.find(bob, |told| *told == Told::Offered)
            .text()
            .starts_with("INVITE sip:bob@pbx.example:5060")
    );
    // A name that nobody knows: no answer in time.
    let (mut net, alice, _) = pair(&config);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(60));
    assert!(
        net.has(alice, |told| *told == Told::Failed(Failure::Response, 503)),
        "{:?}",
        net.told(alice)
    );
    net.assert_quiet();
}

#[test]
fn identities_pass_only_between_those_who_are_believed() {
    let (mut net, alice, bob) = pair(PLAIN);
    let edits = [Edit::Add {
        id: HeaderId::PAssertedIdentity,
        value: b"<sip:+431@10.1.0.1>",
    }];
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    assert!(
        net.find(bob, |told| *told == Told::Offered)
            .header("P-Asserted-Identity")
            .is_empty()
    );
    let core = PLAIN.replace("kind='access'", "kind='core'\nallow='10.1.0.0/24'");
    let (mut net, alice, bob) = pair(&core);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&edits));
    net.run(seconds(1));
    let seen = net
        .find(bob, |told| *told == Told::Offered)
        .header("P-Asserted-Identity");
    assert_eq!(seen, "<sip:+431@198.51.100.1:5060>");
    let _ = Message::parse(b"");
}

/// A MESSAGE with this text, from a phone to the border on its own transport.
fn send_text(net: &mut Neighbourhood, phone: usize, transport: Transport, text: &str) {
    let flow = Flow {
        local: net.phones[phone].local,
        transport,
        remote: OUT.parse().unwrap(),
        connection: None,
    };
    net.tell(phone, |endpoint, now| {
        let content = Content {
            body: sip::Body::New {
                content_type: b"text/plain",
                bytes: text.as_bytes(),
            },
            ..Content::default()
        };
        let outside = Outside {
            content,
            ..Outside::new(Method::Message, Target::new(b"sip:bob@192.0.2.1", flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn the_largest_messages_pass_and_larger_ones_are_counted() {
    let text = "0123456789abcdef".repeat(4_000);
    let (mut net, alice, bob) = pair(PLAIN);
    send_text(&mut net, alice, Transport::Udp, &text);
    assert_eq!(last_status(&net, alice), 200);
    let seen = net.find(bob, |told| matches!(told, Told::Outside(_)));
    assert!(seen.bytes.len() > 64_000);
    assert_eq!(seen.body(), text);
    net.assert_quiet();
    // Over TCP on both sides.
    let config = PLAIN.replace("udp:10.2.0.1:5060", "tcp:10.2.0.1:5060");
    let mut net = Neighbourhood::new(&config, 1);
    let alice = net.phone_over("10.1.0.1:5060", Transport::Tcp, Manners::answering(SDP_A));
    let bob = net.phone_over("10.2.0.1:5060", Transport::Tcp, Manners::answering(SDP_B));
    send_text(&mut net, alice, Transport::Tcp, &text);
    assert_eq!(last_status(&net, alice), 200);
    let seen = net.find(bob, |told| matches!(told, Told::Outside(_)));
    assert_eq!(seen.body(), text);
    // What is above the limit does not pass, and others go on.
    let config = format!("{PLAIN}[limits]\nmessage_bytes=4096\n");
    let (mut net, alice, bob) = pair(&config);
    send_text(&mut net, alice, Transport::Udp, &text);
    assert!(!net.has(bob, |told| matches!(told, Told::Outside(_))));
    assert!(net.border.drops().get(engine::DropReason::SipTooLarge) > 0);
    send(&mut net, alice, Method::Options, "sip:192.0.2.1", &[], None);
    assert_eq!(last_status(&net, alice), 200);
}
