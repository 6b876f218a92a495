//! Routing of calls and registrations: trunks by weight, priority and state, DNS names, a carrier behind NAT,
//! registrations with Path, and reloads during established calls.

use crate::virtual_network;

use engine::{DropReason, EventKind, Transport};
use sip::{Ending, Failure, MessageContent, OutOfDialogRequest, Target};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

const IN: &str = "198.51.100.1:5060";

fn busy() -> PhoneBehaviour {
    let mut behaviour = PhoneBehaviour::answering("");
    behaviour.progress.clear();
    behaviour.answer = Some(486);
    behaviour
}

fn offers(net: &VirtualNetwork, phone: usize) -> usize {
    let offered = |event: &&PhoneEvent| **event == PhoneEvent::Offered;
    net.phone_events(phone).iter().filter(offered).count()
}

/// A page costs the copies of its trunks, between two turns of a packet thread.
#[test]
fn trunks_are_listed_in_pages() {
    let more: Vec<String> = (0..4)
        .map(|number| {
            format!("[[trunk]]\nname='t{number}'\ninterface='in'\ntarget='10.2.1.{number}'\n")
        })
        .collect();
    let mut net = VirtualNetwork::new(&format!("{PLAIN}{}", more.concat()), 1);
    let mut names = |skipped, limit| {
        let views = net.control(|border, _| border.trunk_views(skipped, limit));
        let names: Vec<String> = views.into_iter().map(|trunk| trunk.name).collect();
        names.join(" ")
    };
    assert_eq!(names(0, 2), "pbx t0");
    assert_eq!(names(2, 2), "t1 t2");
    assert_eq!(names(4, 2), "t3");
    assert_eq!(names(5, 2), "");
    let one = net.control(|border, _| border.trunk_view("t2"));
    assert_eq!(one.map(|trunk| trunk.name).as_deref(), Some("t2"));
}

#[test]
fn targets_share_by_weight_before_the_next_priority() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target=[{address='udp:10.2.0.1:5060',weight=3},{address='udp:10.2.0.2:5060',weight=1},\
         {address='udp:10.2.0.3:5060',priority=1}]\nanswer_timeout_s=1",
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let heavy = net.phone("10.2.0.1:5060", busy());
    let light = net.phone("10.2.0.2:5060", busy());
    let spare = net.phone("10.2.0.3:5060", busy());
    for _ in 0..200 {
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(Duration::from_millis(100));
    }
    // Three of four, within four standard deviations.
    let share = offers(&net, heavy);
    assert!((126..=174).contains(&share), "{share}");
    assert_eq!(share + offers(&net, light), 200);
    assert_eq!(offers(&net, spare), 0);
    // Both stop answering: the call reaches the third.
    net.phones[heavy].log.behaviour.silent = true;
    net.phones[light].log.behaviour.silent = true;
    for phone in [heavy, light] {
        net.phones[phone].log.behaviour.progress.clear();
    }
    let aside = "10.9.9.9:9".parse().unwrap();
    for address in ["10.2.0.1:5060", "10.2.0.2:5060"] {
        net.aliases.insert(address.parse().unwrap(), aside);
    }
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(5));
    assert_eq!(offers(&net, spare), 1);
    net.assert_quiet();
}

/// A carrier takes three calls a second: further ones go to the next trunk, or are refused. Emergency calls do not.
#[test]
fn calls_beyond_the_rate_of_a_trunk_go_to_the_next_one() {
    let config = format!(
        "{PLAIN}max_calls_per_s=3\n[[trunk]]\nname='spare'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         max_calls_per_s=1\n[[route]]\ntrunk=[{{name='pbx'}},{{name='spare',priority=1}}]\n\
         [sip]\nemergency_numbers=['112']\n"
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let first = net.phone("10.2.0.1:5060", busy());
    let spare = net.phone("10.2.0.2:5060", busy());
    let mut call = |uri: &str, times: usize| {
        for _ in 0..times {
            net.call(alice, uri, OUT, &offer());
        }
        net.run(Duration::from_millis(900 / 2));
        let refused = |event: &&PhoneEvent| **event == PhoneEvent::Failed(Failure::Response, 503);
        let refused = net.phone_events(alice).iter().filter(refused).count();
        (offers(&net, first), offers(&net, spare), refused)
    };
    assert_eq!(call("sip:bob@192.0.2.1", 5), (3, 1, 1));
    assert_eq!(call("sip:112@192.0.2.1", 1), (4, 1, 1));
    // A second after the first ones; the emergency call counts, as the carrier counts it.
    assert_eq!(call("sip:bob@192.0.2.1", 0), (4, 1, 1));
    assert_eq!(call("sip:bob@192.0.2.1", 4), (6, 2, 2));
}

/// A reload puts a trunk in front of the others, so that their indices shift.
#[test]
fn reload_keeps_the_calls_that_a_trunk_got_in_the_last_second() {
    let before = format!(
        "{PLAIN}max_calls_per_s=3\n[[trunk]]\nname='spare'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[route]]\ntrunk=[{{name='pbx'}},{{name='spare',priority=1}}]\n"
    );
    let after = before.replacen(
        "[[trunk]]",
        "[[trunk]]\nname='new'\ninterface='in'\ntarget='udp:10.2.0.40:5060'\n[[trunk]]",
        1,
    );
    let mut net = VirtualNetwork::new(&before, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let first = net.phone("10.2.0.1:5060", busy());
    let spare = net.phone("10.2.0.2:5060", busy());
    let call = |net: &mut VirtualNetwork, times: usize| {
        for _ in 0..times {
            net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        }
        net.run(Duration::from_millis(300));
        (offers(net, first), offers(net, spare))
    };
    assert_eq!(call(&mut net, 3), (3, 0));
    let config = config::parse(&after, "more.toml").unwrap();
    net.control(|border, now| border.reload(config, now));
    assert_eq!(call(&mut net, 1), (3, 1), "three in a second");
    net.run(seconds(1));
    assert_eq!(call(&mut net, 1), (4, 1));
}

#[test]
fn trunk_that_is_down_is_skipped_until_up() {
    let config = format!(
        "{PLAIN}ping=10\nping_failures=2\n[[trunk]]\nname='spare'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[route]]\ntrunk=[{{name='pbx'}},{{name='spare',priority=1}}]\n"
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let first = net.phone("10.2.0.1:5060", busy());
    let spare = net.phone("10.2.0.2:5060", busy());
    let call = |net: &mut VirtualNetwork| {
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        (offers(net, first), offers(net, spare))
    };
    net.run(seconds(12));
    assert_eq!(call(&mut net), (1, 0));
    // No response to pings, as from a host that is down.
    net.phones[first].log.behaviour.outside = None;
    net.run(seconds(90));
    assert!(net.names().contains(&"trunk_down"), "{:?}", net.names());
    assert_eq!(call(&mut net), (1, 1), "the next target at once");
    net.phones[first].log.behaviour.outside = Some(200);
    net.run(seconds(60));
    assert!(net.names().contains(&"trunk_up"));
    assert_eq!(call(&mut net), (2, 1));
}

/// Carriers answer calls to a destination that is congested with 503, and pings and other calls with 200.
#[test]
fn refused_calls_take_no_trunk_out_of_service() {
    let config = format!("{PLAIN}ping_interval_s=60\nping_failures=2\n");
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut congested = busy();
    congested.answer = Some(503);
    let carrier = net.phone("10.2.0.1:5060", congested);
    let call = |net: &mut VirtualNetwork| {
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(6));
    };
    net.run(seconds(6));
    for _ in 0..3 {
        call(&mut net);
    }
    assert!(!net.names().contains(&"trunk_down"), "{:?}", net.names());
    net.phones[carrier].log.behaviour = PhoneBehaviour::answering(SDP_B);
    call(&mut net);
    assert_eq!(offers(&net, carrier), 4);
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    // Calls without any response do, without a ping.
    let (own, aside) = ("10.2.0.1:5060", "10.9.9.9:9");
    net.aliases
        .insert(own.parse().unwrap(), aside.parse().unwrap());
    call(&mut net);
    assert!(!net.names().contains(&"trunk_down"), "{:?}", net.names());
    call(&mut net);
    assert!(net.names().contains(&"trunk_down"), "{:?}", net.names());
}

/// The callee offers three lines, and the border has ports for two.
#[test]
fn lack_of_own_ports_takes_no_trunk_out_of_service() {
    let config = PLAIN.replace(
        "media={address='192.0.2.1'}",
        "media={address='192.0.2.1',ports='20000-20003'}",
    ) + "ping_interval_s=60\nping_failures=1\n";
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let line = "m=audio 5002 RTP/AVP 0\r\n";
    let mut offering = PhoneBehaviour::answering(&format!("{SDP_B}{line}{line}"));
    offering.progress = vec![(183, true)];
    offering.answer = None;
    let bob = net.phone("10.2.0.1:5060", offering);
    net.run(seconds(6));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &MessageContent::default());
    net.run(seconds(1));
    assert!(
        net.has(alice, |event| *event
            == PhoneEvent::Failed(Failure::Response, 503)),
        "{:?}",
        net.phone_events(alice)
    );
    assert!(!net.names().contains(&"trunk_down"), "{:?}", net.names());
    net.phones[bob].log.behaviour = PhoneBehaviour::answering(SDP_B);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

fn srv(priority: u16, port: u16, target: &str) -> Vec<u8> {
    let mut data = Vec::new();
    for number in [priority, 10, port] {
        data.extend(number.to_be_bytes());
    }
    data.extend(dns_name(target));
    data
}

#[test]
fn name_is_resolved_by_naptr_and_srv_with_failover() {
    let config = PLAIN.replace("udp:10.2.0.1:5060", "pbx.example")
        + "answer_timeout_s=2\n[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    let naptr = [
        &[0, 10, 0, 10][..],
        b"\x01s\x07SIP+D2U\x00",
        &dns_name("_sip._udp.pbx.example"),
    ]
    .concat();
    net.zone = vec![
        ("pbx.example", 35, naptr),
        ("_sip._udp.pbx.example", 33, srv(1, 5066, "a.pbx.example")),
        ("_sip._udp.pbx.example", 33, srv(2, 5077, "b.pbx.example")),
        ("a.pbx.example", 1, vec![10, 2, 0, 66]),
        ("b.pbx.example", 1, vec![10, 2, 0, 77]),
    ];
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let second = net.phone("10.2.0.77:5077", PhoneBehaviour::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let tried = net
        .wire
        .iter()
        .filter(|(to, _)| *to == "10.2.0.66:5066".parse().unwrap());
    assert!(
        tried.count() > 0,
        "the target with the first priority is tried first"
    );
    assert_eq!(offers(&net, second), 0);
    net.run(seconds(3));
    assert_eq!(offers(&net, second), 1);
    assert!(
        net.has(alice, |event| *event == PhoneEvent::Answered),
        "{:?}",
        net.phone_events(alice)
    );
    // The lookups are cached for the lifetime of their records.
    let asked = |net: &VirtualNetwork| net.wire.iter().filter(|(to, _)| to.port() == 53).count();
    let before = asked(&net);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(5));
    assert_eq!((offers(&net, second), asked(&net)), (2, before));
}

/// No socket can be opened when the first name is looked up, as at the limit of open files or without a free ephemeral
/// port: names are resolved as soon as one can be.
#[test]
fn query_socket_that_could_not_be_opened_is_tried_again() {
    let config = PLAIN.replace("udp:10.2.0.1:5060", "pbx.example")
        + "answer_timeout_s=2\n[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = vec![("pbx.example", 1, vec![10, 2, 0, 1])];
    net.occupied = vec!["0.0.0.0:0".parse().unwrap()];
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(30));
    assert_eq!(offers(&net, bob), 0);
    let failures = net.events.iter().filter(
        |event| matches!(&event.kind, EventKind::SocketFailed { purpose, .. } if purpose == "dns"),
    );
    assert_eq!(failures.count(), 1, "logged once");
    net.occupied.clear();
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(5));
    assert_eq!(offers(&net, bob), 1);
}

/// A NAPTR record for a service, by its order.
fn naptr(order: u8, service: &str, replacement: &str) -> Vec<u8> {
    let mut record = vec![0, order, 0, 1];
    for text in ["s", service, ""] {
        record.push(text.len() as u8);
        record.extend(text.as_bytes());
    }
    record.extend(dns_name(replacement));
    record
}

/// The carrier prefers TLS to TCP and TCP to UDP. Phones have TCP, the interface of the trunk has UDP.
#[test]
fn name_is_located_for_the_transports_of_its_interface() {
    let config = PLAIN
        .replace(",'tcp:198.51.100.1:5060'", "")
        .replace("udp:10.2.0.1:5060", "pbx.example");
    let config = config + "ping_interval_s=10\n[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = vec![
        (
            "pbx.example",
            35,
            naptr(10, "SIPS+D2T", "_sips._tcp.pbx.example"),
        ),
        (
            "pbx.example",
            35,
            naptr(20, "SIP+D2T", "_sip._tcp.pbx.example"),
        ),
        (
            "pbx.example",
            35,
            naptr(30, "SIP+D2U", "_sip._udp.pbx.example"),
        ),
        ("_sips._tcp.pbx.example", 33, srv(1, 5061, "a.pbx.example")),
        ("_sip._tcp.pbx.example", 33, srv(1, 5060, "a.pbx.example")),
        ("_sip._udp.pbx.example", 33, srv(1, 5066, "a.pbx.example")),
        ("a.pbx.example", 1, vec![10, 2, 0, 66]),
    ];
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let pbx = net.phone("10.2.0.66:5066", PhoneBehaviour::answering(SDP_B));
    net.run(seconds(30));
    assert!(!net.names().contains(&"trunk_down"), "{:?}", net.names());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!(offers(&net, pbx), 1);
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
}

/// A name with two hosts; the first, by priority, does not answer.
fn half_dead_name() -> Vec<(&'static str, u16, Vec<u8>)> {
    vec![
        ("_sip._udp.pbx.example", 33, srv(1, 5066, "a.pbx.example")),
        ("_sip._udp.pbx.example", 33, srv(2, 5077, "b.pbx.example")),
        ("a.pbx.example", 1, vec![10, 2, 0, 66]),
        ("b.pbx.example", 1, vec![10, 2, 0, 77]),
    ]
}

#[test]
fn named_trunk_is_up_while_one_of_its_addresses_answers() {
    let config = PLAIN.replace("udp:10.2.0.1:5060", "pbx.example")
        + "answer_timeout_s=2\nping_interval_s=10\nping_failures=1\n[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = half_dead_name();
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let second = net.phone("10.2.0.77:5077", PhoneBehaviour::answering(SDP_B));
    for _ in 0..3 {
        net.run(seconds(40));
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(4));
    }
    assert_eq!(offers(&net, second), 3);
    assert!(!net.names().contains(&"trunk_down"), "{:?}", net.names());
    let pings = net.log(second).iter();
    assert!(pings.filter(|entry| entry.method() == "OPTIONS").count() >= 2);
    // No address answers.
    net.silence("10.2.0.77:5077");
    net.run(seconds(120));
    assert!(net.names().contains(&"trunk_down"), "{:?}", net.names());
}

#[test]
fn account_registers_at_the_next_address_of_a_name() {
    let config = PLAIN.replace("udp:10.2.0.1:5060", "pbx.example")
        + "username='us'\npassword='pw'\nregister={user='4711',domain='pbx.example'}\n[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = half_dead_name();
    let second = net.phone("10.2.0.77:5077", PhoneBehaviour::answering(SDP_B));
    net.run(seconds(36));
    let registers = net.log(second).iter();
    assert!(
        registers
            .filter(|entry| entry.method() == "REGISTER")
            .count()
            >= 1
    );
    assert!(
        net.names().contains(&"carrier_registration"),
        "{:?}",
        net.names()
    );
    assert!(!net.control(|border, _| border.is_unregistered()));
}

#[test]
fn contact_with_a_host_name_is_located_without_authorising_it() {
    let config = PLAIN.replace("kind='core'", "kind='core'\nallow='10.2.0.1/32'")
        + "[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = vec![("far.example", 1, vec![10, 2, 0, 77])];
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut behaviour = PhoneBehaviour::answering(SDP_B);
    behaviour.answer = None;
    let bob = net.phone("10.2.0.1:5060", behaviour);
    let far = net.phone("10.2.0.77:5060", PhoneBehaviour::answering(SDP_B));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let theirs = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    let contact = [Edit::Replace {
        id: HeaderId::Contact,
        value: b"<sip:bob@Far.example;transport=udp>",
    }];
    net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(SDP_B.as_bytes()).with(&contact);
        endpoint
            .progress(theirs, 183, &content, false, now)
            .unwrap();
    });
    net.run(seconds(1));
    net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(SDP_B.as_bytes()).with(&contact);
        endpoint.answer(theirs, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let came = |net: &VirtualNetwork, method: &str| {
        let starts = |bytes: &&Vec<u8>| bytes.starts_with(method.as_bytes());
        net.phones[far].received.iter().filter(starts).count()
    };
    // Again with every retransmitted 200 that the peer did not receive.
    assert!(came(&net, "ACK sip:bob@Far.example;transport=udp ") >= 1);
    assert!(!net.has(bob, |event| *event == PhoneEvent::Acked));
    net.command(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(came(&net, "INFO sip:bob@Far.example;transport=udp ") >= 1);
    // The name's address is not authorised by this.
    let before = net.border.drops().get(DropReason::SipSourceNotAllowed);
    let way = net.flow(far, "198.51.100.1:5060", Transport::Udp);
    net.command(far, |endpoint, now| {
        let target = Target::new(b"sip:x@198.51.100.1", way);
        endpoint
            .send(&OutOfDialogRequest::new(Method::Options, target), now)
            .unwrap();
    });
    net.run(Duration::from_millis(100));
    assert_eq!(
        net.border.drops().get(DropReason::SipSourceNotAllowed),
        before + 1
    );
    // The peer there has no such dialog, so it ends: by BYE, to that address, too.
    net.run(seconds(1));
    assert!(came(&net, "BYE sip:bob@Far.example;transport=udp ") >= 1);
}

/// Sends OPTIONS to a border address. Whether it was dropped because of its source.
fn is_dropped(net: &mut VirtualNetwork, phone: usize, to: &str) -> bool {
    let reason = DropReason::SipSourceNotAllowed;
    let before = net.border.drops().get(reason);
    let way = net.flow(phone, to, Transport::Udp);
    net.command(phone, |endpoint, now| {
        let target = Target::new(b"sip:x@192.0.2.1", way);
        endpoint
            .send(&OutOfDialogRequest::new(Method::Options, target), now)
            .unwrap();
    });
    net.run(Duration::from_millis(100));
    net.border.drops().get(reason) > before
}

#[test]
fn host_name_in_a_redirect_admits_no_source() {
    let config = PLAIN.replace("kind='core'", "kind='core'\nallow='10.2.0.1/32'")
        + "redirect='follow'\n[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = vec![("evil.example", 1, vec![10, 2, 0, 77])];
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut silent = PhoneBehaviour::answering(SDP_B);
    silent.silent = true;
    let bob = net.phone("10.2.0.1:5060", silent);
    let evil = net.phone("10.2.0.77:5060", PhoneBehaviour::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let leg = net.find(bob, |event| *event == PhoneEvent::Offered).leg;
    let contact = [Edit::Add {
        id: HeaderId::Contact,
        value: b"<sip:x@evil.example>",
    }];
    net.command(bob, |endpoint, now| {
        let content = MessageContent::default().with(&contact);
        endpoint.reject(leg.unwrap(), 302, &content, now).unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(evil, |event| *event == PhoneEvent::Offered));
    assert!(is_dropped(&mut net, evil, IN));
}

#[test]
fn named_trunk_is_recognised_by_its_addresses_while_it_is_configured() {
    let plain = PLAIN
        .replace("kind='access'", "kind='access'\nallow='10.1.0.0/16'")
        .replace("kind='core'", "kind='core'\nallow='10.3.0.0/16'");
    let named = plain.replace("'udp:10.2.0.1:5060'", "'pbx.example'");
    let config = format!(
        "{named}[dns]\nservers=['10.8.0.53:53']\n[[route]]\nfrom_trunk='pbx'\nreject=410\n[[route]]\ntrunk='pbx'\n"
    );
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = vec![("pbx.example", 1, vec![10, 2, 0, 77])];
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    // Not the port of the target.
    let host = net.phone("10.2.0.77:5060", PhoneBehaviour::answering(SDP_B));
    let other = net.phone("10.2.0.77:5099", PhoneBehaviour::answering(SDP_B));
    assert!(is_dropped(&mut net, other, IN));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!(offers(&net, host), 1);
    assert!(!is_dropped(&mut net, other, IN));
    assert!(is_dropped(&mut net, other, OUT), "the trunk is not there");
    net.call(other, "sip:alice@198.51.100.1", IN, &offer());
    net.run(seconds(1));
    let refused = PhoneEvent::Failed(Failure::Response, 410);
    assert!(net.has(other, |event| *event == refused));
    // The trunk is removed, and another one has its place.
    let after = plain.replace("name='pbx'", "name='new'");
    let after = config::parse(&after.replace("10.2.0.1:", "10.2.0.200:"), "t").unwrap();
    net.control(|border, now| border.reload(after, now));
    assert!(is_dropped(&mut net, other, IN));
}

#[test]
fn carrier_behind_nat_gets_the_public_address() {
    let config = format!(
        "{PLAIN}username='us'\npassword='pw'\nregister={{user='4711',domain='carrier.example',contact_user='line1'}}\n\
         [[trunk]]\nname='inner'\ninterface='out'\ntarget='udp:10.1.0.1:5060'\n"
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let (inside, outside) = (IN.parse().unwrap(), "203.0.113.50:7777".parse().unwrap());
    net.source_aliases.insert(inside, outside);
    net.aliases.insert(outside, inside);
    let pbx = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let carrier = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.run(seconds(10));
    let registers: Vec<String> = net
        .log(carrier)
        .iter()
        .filter(|entry| entry.method() == "REGISTER")
        .map(|entry| entry.header("Contact"))
        .collect();
    assert_eq!(
        registers[0], "<sip:line1@198.51.100.1:5060>",
        "before the address is known"
    );
    let learnt = registers.last().unwrap();
    assert!(
        learnt.starts_with("<sip:line1@203.0.113.50:7777"),
        "{registers:?}"
    );
    // A call from the carrier to this address arrives.
    net.call(
        carrier,
        "sip:line1@203.0.113.50:7777",
        "203.0.113.50:7777",
        &MessageContent::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    assert!(
        net.has(pbx, |event| *event == PhoneEvent::Acked),
        "{:?}",
        net.phone_events(carrier)
    );
    assert!(net.has(carrier, |event| *event == PhoneEvent::Answered));
}

fn register(net: &mut VirtualNetwork, phone: usize, edits: &[Edit<'_>]) {
    let flow = net.flow(phone, OUT, Transport::Udp);
    net.command(phone, |endpoint, now| {
        let outside = OutOfDialogRequest {
            from: Some(b"<sip:1000@192.0.2.1>"),
            to: Some(b"<sip:1000@192.0.2.1>"),
            content: MessageContent::default().with(edits),
            ..OutOfDialogRequest::new(Method::Register, Target::new(b"sip:192.0.2.1", flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn path_of_a_relayed_registration_is_followed() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n");
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[core].log.behaviour.outside = None;
    let edits = [
        Edit::Replace {
            id: HeaderId::Contact,
            value: b"<sip:1000@192.168.3.3:5060>",
        },
        Edit::Add {
            id: HeaderId::Path,
            value: b"<sip:10.1.0.77:5060;lr>",
        },
        Edit::Replace {
            id: HeaderId::Supported,
            value: b"path, gruu",
        },
    ];
    register(&mut net, alice, &edits);
    let entry = net
        .find(core, |event| matches!(event, PhoneEvent::OutOfDialog(_)))
        .clone();
    assert!(
        !entry.text().contains("10.1.0.77"),
        "the core routes to the border only: {}",
        entry.text()
    );
    assert_eq!(entry.header("Supported"), "path, gruu");
    let PhoneEvent::OutOfDialog(transaction) = entry.event else {
        panic!()
    };
    let contact = entry.header("Contact");
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: contact.as_bytes(),
    }];
    net.command(core, |endpoint, now| {
        endpoint
            .respond(
                transaction,
                200,
                &MessageContent::default().with(&edits),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    let answer = net.find(alice, |event| {
        *event == PhoneEvent::OutOfDialogResponse(200)
    });
    assert_eq!(
        answer.header("Path"),
        "<sip:10.1.0.77:5060;lr>",
        "RFC 3327 section 5.3"
    );
    let uri = contact
        .trim_start_matches('<')
        .split('>')
        .next()
        .unwrap()
        .to_owned();
    net.call(core, &uri, IN, &MessageContent::sdp(SDP_B.as_bytes()));
    net.run(seconds(1));
    let offered = net.find(alice, |event| *event == PhoneEvent::Offered);
    assert!(
        offered
            .text()
            .starts_with("INVITE sip:1000@192.168.3.3:5060 "),
        "{}",
        offered.text()
    );
    assert_eq!(offered.header("Route"), "<sip:10.1.0.77:5060;lr>");
}

#[test]
fn registered_contact_survives_a_reload_that_moves_its_interface() {
    let local = PLAIN.replace("kind='access'\n", "kind='access'\nregister='local'\n")
        + "[[route]]\nregistered=true\n";
    let mut net = VirtualNetwork::new(&local, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: b"<sip:1000@10.1.0.1:5060>",
    }];
    register(&mut net, alice, &edits);
    assert!(net.has(alice, |event| *event
        == PhoneEvent::OutOfDialogResponse(200)));
    // Another interface has its index in the file now.
    let moved = format!(
        "[[interface]]\nname='new'\nkind='core'\nlisten='udp:192.0.2.9:5060'\nmedia={{address='192.0.2.9'}}\n{local}"
    );
    let config = config::parse(&moved, "moved.toml").unwrap();
    net.control(|border, now| border.reload(config, now));
    net.call(
        core,
        "sip:1000@198.51.100.1",
        IN,
        &MessageContent::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    let offered = net.find(alice, |event| *event == PhoneEvent::Offered);
    assert!(
        offered.body().contains("c=IN IP4 192.0.2.1"),
        "through its interface: {}",
        offered.body()
    );
    // Without its interface the contact is unreachable.
    let gone = "[[interface]]\nname='in'\nkind='core'\nlisten='udp:198.51.100.1:5060'\nmedia={address='198.51.100.1'}\n[[route]]\nregistered=true\n";
    let config = config::parse(gone, "gone.toml").unwrap();
    net.control(|border, now| border.reload(config, now));
    net.call(
        core,
        "sip:1000@198.51.100.1",
        IN,
        &MessageContent::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    assert!(
        net.has(core, |event| matches!(
            event,
            PhoneEvent::Failed(Failure::Response, _)
        )),
        "{:?}",
        net.phone_events(core)
    );
    assert_eq!(offers(&net, alice), 1);
}

#[test]
fn calls_survive_the_removal_of_their_interface_and_trunk() {
    let mut net = VirtualNetwork::new(&format!("{PLAIN}[media]\ntimeout_s=0\n"), 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let other = "[[interface]]\nname='new'\nkind='access'\nlisten='udp:192.0.2.9:5060'\nmedia={address='192.0.2.9'}\n\
                 [[trunk]]\nname='another'\ntarget='udp:10.2.0.7:5060'\n[media]\ntimeout_s=0\n";
    let config = config::parse(other, "other.toml").unwrap();
    net.control(|border, now| border.reload(config, now));
    net.run(seconds(200));
    // In both directions, long afterwards.
    net.command(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &MessageContent::default(), now)
            .unwrap()
    });
    let theirs = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    net.command(bob, |endpoint, now| {
        endpoint
            .request(
                theirs,
                Method::Invite,
                &MessageContent::sdp(SDP_B.as_bytes()),
                now,
            )
            .unwrap()
    });
    net.run(seconds(1));
    assert!(net.log(bob).iter().any(|entry| entry.method() == "INFO"));
    assert!(
        net.has(alice, |event| matches!(event, PhoneEvent::Request(_))),
        "{:?}",
        net.phone_events(alice)
    );
    // New calls find no trunk.
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(40));
    assert!(
        net.has(alice, |event| *event
            == PhoneEvent::Failed(Failure::TimedOut, 0)),
        "{:?}",
        net.phone_events(alice)
    );
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(bob, |event| *event == PhoneEvent::Ended(Ending::Peer)));
    assert!(net.has(alice, |event| *event == PhoneEvent::Ended(Ending::Local)));
    net.assert_quiet();
    // One signalling socket is left, that of the new interface; the media sockets of the old addresses are closed.
    assert_eq!(net.open_sockets - net.border.census().sockets_open, 1);
    // A restored interface works as before.
    let config = config::parse(PLAIN, "plain.toml").unwrap();
    net.control(|border, now| border.reload(config, now));
    net.run(seconds(1));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!(offers(&net, bob), 2, "{:?}", net.phone_events(alice));
}

#[test]
fn call_set_up_survives_a_change_of_its_trunk() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut ringing = PhoneBehaviour::answering(SDP_B);
    ringing.answer = None;
    let bob = net.phone("10.2.0.1:5060", ringing);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let changed = PLAIN.replace("10.2.0.1:5060", "10.2.0.2:5060");
    let config = config::parse(&changed, "changed.toml").unwrap();
    net.control(|border, now| border.reload(config, now));
    let leg = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    net.command(bob, |endpoint, now| {
        endpoint
            .answer(leg, 200, &MessageContent::sdp(SDP_B.as_bytes()), now)
            .unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    let next = net.phone("10.2.0.2:5060", PhoneBehaviour::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!((offers(&net, bob), offers(&net, next)), (1, 1));
}
