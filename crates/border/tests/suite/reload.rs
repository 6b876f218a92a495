//! Reloads of the configuration: listeners that are renamed or could not be opened, and limits; calls after a drain.

use crate::virtual_network;

use engine::{EventKind, Transport};
use sip::{Login, MessageContent, OutOfDialogRequest, Target};
use std::time::Duration;
use virtual_network::*;
use wire::sip::Method;

/// The public address of OUT behind a NAT.
const PUBLIC: &str = "203.0.113.8:5060";

fn reload(net: &mut VirtualNetwork, config: &str) {
    let config = config::parse(config, "changed.toml").unwrap();
    net.control(|border, now| border.reload(config, now));
}

/// Sends OPTIONS from a phone. Returns whether it was answered with 200.
fn answers_options(net: &mut VirtualNetwork, phone: usize, to: &str) -> bool {
    let answered = |net: &VirtualNetwork| {
        let events = net.phone_events(phone);
        let answers = events.iter();
        answers
            .filter(|event| **event == PhoneEvent::OutOfDialogResponse(200))
            .count()
    };
    let before = answered(net);
    let flow = net.flow(phone, to, Transport::Udp);
    net.command(phone, |endpoint, now| {
        let options = OutOfDialogRequest::new(Method::Options, Target::new(b"sip:192.0.2.1", flow));
        endpoint.send(&options, now).unwrap();
    });
    net.run(seconds(1));
    answered(net) == before + 1
}

const USERS: &str = "[[interface]]\nname='out'\nkind='access'\nlisten='udp:192.0.2.1:5060'\nauthenticate='digest'\nregister='local'\n\
    [[user]]\nname='1000'\npassword='secret-1000'\n[[user]]\nname='1001'\npassword='secret-1001'\n[registrar]\nmin_expires_s=60\n";

fn login(user: &'static str, password: &'static str) -> Option<Login<'static>> {
    Some(Login {
        user: user.as_bytes(),
        password: password.as_bytes(),
    })
}

#[test]
fn another_public_address_keeps_the_socket_and_its_registrations() {
    let advertising = |host: &str| {
        let line = format!("kind='access'\nadvertise='{host}'\n");
        USERS.replace("kind='access'\n", &line)
    };
    let (mut net, alice, bob) = pair(&advertising("203.0.113.7"));
    net.aliases
        .insert(PUBLIC.parse().unwrap(), OUT.parse().unwrap());
    let register = RegisterRequest {
        login: login("1001", "secret-1001"),
        ..RegisterRequest::new("1001", "<sip:1001@10.2.0.1>")
    };
    net.send_register(bob, &register);
    net.run(seconds(1));
    assert!(net.names().contains(&"registration_stored"));
    let before = net.open_sockets;
    reload(&mut net, &advertising("203.0.113.8"));
    assert_eq!(net.open_sockets, before, "the address is the same");
    assert!(answers_options(&mut net, alice, OUT));
    net.call_with(alice, "sip:1001@192.0.2.1", OUT, &offer(), |invite| {
        invite.from = Some(b"<sip:1000@192.0.2.1>");
        invite.login = login("1000", "secret-1000");
    });
    net.run(seconds(1));
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered);
    assert!(
        offered
            .header("Via")
            .starts_with("SIP/2.0/UDP 203.0.113.8:5060;"),
        "{}",
        offered.text()
    );
    assert!(offered.header("Contact").contains(PUBLIC));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    // Long after the old name, too.
    net.run(seconds(120));
    assert!(answers_options(&mut net, alice, OUT));
}

#[test]
fn requests_sent_before_a_rename_get_their_responses() {
    let advertising = |host: &str| {
        let line = format!("kind='core'\nadvertise='{host}'\n");
        PLAIN.replace("kind='core'\n", &line)
    };
    let (mut net, alice, bob) = pair(&advertising("203.0.113.7"));
    net.phones[bob].log.behaviour.answer = None;
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    reload(&mut net, &advertising("203.0.113.8"));
    let leg = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    net.command(bob, |endpoint, now| {
        let sdp = MessageContent::sdp(SDP_B.as_bytes());
        endpoint.answer(leg, 200, &sdp, now).unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    assert_eq!(
        net.border.drops().get(engine::DropReason::SipViaMismatch),
        0
    );
}

#[test]
fn listener_that_could_not_be_opened_is_tried_again() {
    let moved = PLAIN.replace("udp:192.0.2.1:5060", "udp:192.0.2.1:5070");
    let address = "192.0.2.1:5070";
    let failures = |net: &VirtualNetwork| {
        let names = net.names();
        names
            .iter()
            .filter(|name| **name == "socket_failed")
            .count()
    };
    // At the next reload.
    let (mut net, alice, _) = pair(PLAIN);
    net.occupied = vec![address.parse().unwrap()];
    reload(&mut net, &moved);
    assert_eq!(failures(&net), 1);
    assert!(!net.is_open(address.parse().unwrap()));
    net.occupied.clear();
    reload(&mut net, &moved);
    assert!(net.is_open(address.parse().unwrap()));
    assert!(answers_options(&mut net, alice, address));
    net.run(seconds(100));
    assert_eq!(failures(&net), 1);
    // Without a reload, after some time.
    let (mut net, alice, _) = pair(PLAIN);
    net.occupied = vec![address.parse().unwrap()];
    reload(&mut net, &moved);
    net.run(seconds(90));
    assert_eq!(failures(&net), 3);
    net.occupied.clear();
    net.run(seconds(40));
    assert!(answers_options(&mut net, alice, address));
    // Not after its removal.
    let (mut net, ..) = pair(PLAIN);
    net.occupied = vec![address.parse().unwrap()];
    reload(&mut net, &moved);
    reload(&mut net, PLAIN);
    net.run(seconds(100));
    assert_eq!(failures(&net), 1);
    assert!(net.is_open(OUT.parse().unwrap()));
}

/// The endpoint has room for 100 emergency calls beyond the limit of calls.
#[test]
fn raised_limit_of_calls_takes_effect_at_once() {
    let limited = |calls: u32| format!("{PLAIN}[limits]\ncalls={calls}\n");
    let raises: [fn(&mut VirtualNetwork); 2] = [
        |net| net.control(|border, _| border.set_call_limit(300)),
        |net| reload(net, &format!("{PLAIN}[limits]\ncalls=300\n")),
    ];
    for raise in raises {
        let (mut net, alice, _) = pair(&limited(1));
        raise(&mut net);
        for _ in 0..103 {
            net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
            net.run(Duration::from_millis(50));
        }
        net.run(seconds(1));
        assert_eq!(net.border.calls().len(), 103);
        assert!(!net.has(alice, |event| matches!(event, PhoneEvent::Failed(..))));
    }
}

#[test]
fn changes_are_named() {
    for (more, named) in [
        ("", "nothing"),
        ("[limits]\ncalls=7\n", "limits"),
        ("[limits]\ncpu_percent=7\n", "limits"),
        ("[registrar]\nmax_contacts=3\n", "registrar"),
        ("[realm]\nuser_failures=7\n", "realm"),
        ("[dns]\nservers=['10.8.0.53:53']\n", "dns"),
        ("[session_timer]\nexpires_s=600\n", "session timer"),
        ("[drain]\ntimeout_s=7\n", "drain"),
        ("[sip]\nring_timeout_s=7\n[log]\nlevel='warn'\n", "sip, log"),
        ("[media]\nhold_timeout_s=77\n", "media"),
        ("[[user]]\nname='1000'\npassword='x'\n", "users"),
    ] {
        let (mut net, ..) = pair(PLAIN);
        reload(&mut net, &format!("{PLAIN}{more}"));
        let changes = net.events.iter().find_map(|event| match &event.kind {
            EventKind::ConfigurationReloaded { changes } => Some(changes.as_str()),
            _ => None,
        });
        assert_eq!(changes, Some(named), "{more}");
    }
}

/// The first TLS listener and the first IPv6 address: names are located with them without a restart.
#[test]
fn names_are_located_for_the_listeners_of_a_reload() {
    let dns = "[dns]\nservers=['10.8.0.53:53']\n";
    let secure = PLAIN
        .replace(
            "'tcp:198.51.100.1:5060']",
            "'tcp:198.51.100.1:5060','tls:198.51.100.1:5061']\ntls={certificate={chain='c.pem',key='c.key'}}",
        )
        .replace("udp:10.2.0.1:5060", "tls:pbx.example");
    let six = PLAIN
        .replace("198.51.100.1:5060", "[2001:db8::1]:5060")
        .replace("198.51.100.1", "2001:db8::1")
        .replace("udp:10.2.0.1:5060", "udp:pbx.example:5060");
    let address = "2001:db8::b".parse::<std::net::Ipv6Addr>().unwrap();
    let record = (28, address.octets().to_vec());
    for (changed, (kind, data), place) in [
        (
            secure,
            (1, vec![10, 2, 0, 1]),
            ("10.2.0.1:5061", Transport::Tls),
        ),
        (six, record, ("[2001:db8::b]:5060", Transport::Udp)),
    ] {
        let mut net = VirtualNetwork::new(&format!("{PLAIN}{dns}"), 1);
        net.zone = vec![("pbx.example", kind, data)];
        let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
        let sdp = match place.1 {
            Transport::Udp => SDP_B.replace("IP4 10.2.0.1", "IP6 2001:db8::b"),
            _ => SDP_B.to_owned(),
        };
        let bob = net.phone_over(place.0, place.1, PhoneBehaviour::answering(&sdp));
        reload(&mut net, &format!("{changed}{dns}"));
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        assert!(
            net.has(bob, |event| *event == PhoneEvent::Offered),
            "{changed}"
        );
        assert!(
            net.has(alice, |event| *event == PhoneEvent::Answered),
            "{changed}"
        );
    }
}

/// Another worker may still have calls, or a carrier has not confirmed the end of a registration: the program goes on,
/// and must not end under an emergency call.
#[test]
fn emergency_call_after_a_drain_is_waited_for_within_its_time() {
    let config = format!("{PLAIN}[sip]\nemergency_numbers=['112']\n");
    let (mut net, alice, _) = pair(&config);
    net.control(|border, now| border.drain(seconds(60), now));
    net.run(seconds(1));
    assert!(net.border.is_drained());
    let leg = net.call(alice, "sip:112@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(!net.border.is_drained());
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.border.is_drained());
    net.call(alice, "sip:112@192.0.2.1", OUT, &offer());
    net.run(seconds(50));
    assert!(!net.border.is_drained());
    net.run(seconds(20));
    assert!(net.border.is_drained());
    // Later ones are ended at once, and the program does not wait for them.
    net.call(alice, "sip:112@192.0.2.1", OUT, &offer());
    net.run(Duration::from_millis(10));
    assert!(net.border.is_drained());
    net.run(seconds(40));
    let ended = PhoneEvent::Ended(sip::Ending::Peer);
    assert!(net.has(alice, |event| *event == ended));
    let finished = net.names().into_iter();
    assert_eq!(finished.filter(|name| *name == "drain_finished").count(), 1);
    net.assert_quiet();
}
