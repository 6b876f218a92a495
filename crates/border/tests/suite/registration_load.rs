//! Registration load and overload: refreshes are answered locally, an unavailable core does not cost registrations,
//! phones are spread after a power failure; calls above the rate limit; overload control.

use crate::virtual_network;

use border::admission::{CostPart, MediaOffload, MediaPath, Price};
use config::Keying;
use engine::{DropReason, EventKind};
use protect::srtp::Suite;
use sip::{Failure, MessageContent};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

/// Behind NAT: not the source address.
const CONTACT: &str = "<sip:1000@192.168.3.3:5060>";

fn relaying_config() -> String {
    PLAIN
        .replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n")
        .replace(
            "target='udp:10.2.0.1:5060'",
            "target='udp:10.2.0.1:5060'\nping=10\nping_failures=1",
        )
}

fn register(net: &mut VirtualNetwork, phone: usize, user: &str, cseq: u32, contact: &str) {
    ask_to_register(net, phone, user, cseq, contact);
    net.run(seconds(1));
}

/// REGISTER requests that the core received.
fn registers(net: &VirtualNetwork, core: usize) -> Vec<LogEntry> {
    let mine = |entry: &&LogEntry| entry.text().starts_with("REGISTER ");
    net.log(core).iter().filter(mine).cloned().collect()
}

/// The core accepts the last REGISTER that it received.
fn accept_register(net: &mut VirtualNetwork, core: usize) {
    let entry = registers(net, core).pop().unwrap();
    let contact = entry.header("Contact").to_owned();
    let PhoneEvent::OutOfDialog(transaction) = entry.event else {
        panic!()
    };
    net.command(core, |endpoint, now| {
        let edits = [
            Edit::Replace {
                id: HeaderId::Contact,
                value: contact.as_bytes(),
            },
            Edit::Add {
                id: HeaderId::ServiceRoute,
                value: b"<sip:core;lr>",
            },
        ];
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
}

/// Answers OPTIONS pings; [`accept_register`] answers REGISTER.
fn answer_pings(net: &mut VirtualNetwork, core: usize, done: &mut usize) {
    let pings: Vec<LogEntry> = net.log(core)[*done..].to_vec();
    *done += pings.len();
    for entry in pings {
        if let (true, PhoneEvent::OutOfDialog(transaction)) =
            (entry.text().starts_with("OPTIONS "), entry.event.clone())
        {
            net.command(core, |endpoint, now| {
                let _ = endpoint.respond(transaction, 200, &MessageContent::default(), now);
            });
        }
    }
}

fn answers(net: &VirtualNetwork, phone: usize, status: u16) -> usize {
    let reported = net.phone_events(phone);
    let same = |event: &&PhoneEvent| **event == PhoneEvent::OutOfDialogResponse(status);
    reported.iter().filter(same).count()
}

#[test]
fn core_gets_register_only_on_change_or_when_due() {
    let mut net = VirtualNetwork::new(&relaying_config(), 1);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[core].log.behaviour.outside = None;
    let mut done = 0;
    let contact = format!("{CONTACT};expires=600");
    register(&mut net, phone, "1000", 1, &contact);
    let entry = registers(&net, core);
    assert_eq!(entry.len(), 1);
    assert!(
        entry[0].header("Contact").ends_with(">;expires=3600"),
        "{}",
        entry[0].header("Contact")
    );
    accept_register(&mut net, core);
    let answer = net.last(phone, |event| {
        *event == PhoneEvent::OutOfDialogResponse(200)
    });
    assert_eq!(answer.header("Contact"), format!("{CONTACT};expires=30"));
    assert_eq!(answer.header("Service-Route"), "");
    let mut cseq = 1;
    let mut now = 2;
    while registers(&net, core).len() == 1 {
        for _ in 0..3 {
            net.run(seconds(8));
            answer_pings(&mut net, core, &mut done);
        }
        cseq += 1;
        now += 25;
        register(&mut net, phone, "1000", cseq, &contact);
        assert!(now < 4_000, "never relayed");
        if registers(&net, core).len() == 1 {
            let answer = net.last(phone, |event| {
                *event == PhoneEvent::OutOfDialogResponse(200)
            });
            assert_eq!(answer.header("Contact"), format!("{CONTACT};expires=30"));
            // Neither in the first answer: the phone would send its calls past the border.
            assert_eq!(answer.header("Service-Route"), "");
        }
    }
    assert!(now >= 1_800, "{now}");
    accept_register(&mut net, core);
    assert_eq!(answers(&net, phone, 200), cseq as usize);
    register(
        &mut net,
        phone,
        "1000",
        cseq + 1,
        &format!("{CONTACT};expires=0"),
    );
    assert_eq!(registers(&net, core).len(), 3, "it is removed");
}

#[test]
fn unavailable_core_costs_no_registration() {
    let mut net = VirtualNetwork::new(&relaying_config(), 1);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[core].log.behaviour.outside = None;
    register(&mut net, phone, "1000", 1, CONTACT);
    accept_register(&mut net, core);
    let mut cseq = 1;
    // Pings are not answered: the trunk is soon down, for longer than the core's registration interval.
    for _ in 0..180 {
        net.run(seconds(24));
        cseq += 1;
        register(&mut net, phone, "1000", cseq, CONTACT);
    }
    assert_eq!(answers(&net, phone, 200), cseq as usize);
    assert_eq!(registers(&net, core).len(), 1);
    // A phone that the core never accepted is not registered.
    let other = net.phone("10.1.0.2:5060", PhoneBehaviour::answering(SDP_A));
    register(&mut net, other, "1001", 1, CONTACT);
    net.run(seconds(40));
    assert_eq!(answers(&net, other, 200), 0);
}

/// A header rule changes the user under which the registration is stored.
#[test]
fn refreshes_with_a_changed_address_of_record_are_answered_here() {
    let rule = "[[rules]]\ndirection='in'\non='request'\nmethod='REGISTER'\ninterface='out'\n\
        do=[{number='To',prefix='49'}]\n[registrar]\nregistrations_per_s=1\n";
    let mut net = VirtualNetwork::new(&format!("{}{rule}", relaying_config()), 1);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[core].log.behaviour.outside = None;
    let mut done = 0;
    net.run(seconds(3));
    answer_pings(&mut net, core, &mut done);
    register(&mut net, phone, "1000", 1, CONTACT);
    assert!(
        registers(&net, core)[0]
            .header("To")
            .contains("sip:491000@")
    );
    accept_register(&mut net, core);
    answer_pings(&mut net, core, &mut done);
    for cseq in 2..12 {
        // Two in one second: registered phones do not count for the rate.
        ask_to_register(&mut net, phone, "1000", 2 * cseq, CONTACT);
        register(&mut net, phone, "1000", 2 * cseq + 1, CONTACT);
        for _ in 0..3 {
            net.run(seconds(8));
            answer_pings(&mut net, core, &mut done);
        }
    }
    assert_eq!(registers(&net, core).len(), 1);
    assert_eq!(answers(&net, phone, 200), 21);
    assert_eq!(answers(&net, phone, 503), 0);
}

/// A reload puts an interface in front of the others, so that their indices shift.
#[test]
fn refreshes_are_answered_here_after_a_reload_with_another_interface() {
    let config = relaying_config();
    let mut net = VirtualNetwork::new(&config, 1);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[core].log.behaviour.outside = None;
    let mut done = 0;
    register(&mut net, phone, "1000", 1, CONTACT);
    accept_register(&mut net, core);
    answer_pings(&mut net, core, &mut done);
    let front = "[[interface]]\nname='front'\nkind='core'\nlisten='udp:203.0.113.9:5060'\nmedia={address='203.0.113.9'}\n";
    let shifted = config::parse(&format!("{front}{config}"), "t").unwrap();
    net.control(|border, now| border.reload(shifted, now));
    for cseq in 2..6 {
        for _ in 0..3 {
            net.run(seconds(8));
            answer_pings(&mut net, core, &mut done);
        }
        register(&mut net, phone, "1000", cseq, CONTACT);
    }
    assert_eq!(registers(&net, core).len(), 1);
    assert_eq!(answers(&net, phone, 200), 5);
    let interface = net.control(|border, _| {
        let views = border.registration_views(None, 10);
        border.interface_name(views[0].contacts[0].interface)
    });
    assert_eq!(interface, "out");
    // The core no longer answers.
    for cseq in 6..12 {
        net.run(seconds(24));
        register(&mut net, phone, "1000", cseq, CONTACT);
    }
    assert_eq!(answers(&net, phone, 200), 11);
}

/// The interface of phones forwards REGISTERs to the targets of this text.
fn core_at(targets: &str) -> String {
    PLAIN
        .replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n")
        .replace("target='udp:10.2.0.1:5060'", &format!("target={targets}"))
}

#[test]
fn register_goes_to_the_next_target_of_the_core() {
    let config = core_at("['udp:10.2.0.9:5060',{address='udp:10.2.0.1:5060',priority=1}]");
    let mut net = VirtualNetwork::new(&config, 1);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[core].log.behaviour.outside = None;
    // The first does not answer.
    register(&mut net, phone, "1000", 1, CONTACT);
    assert_eq!(registers(&net, core).len(), 0);
    net.run(seconds(4));
    assert_eq!(registers(&net, core).len(), 1);
    accept_register(&mut net, core);
    assert_eq!(answers(&net, phone, 200), 1);
    assert_eq!(registers(&net, core).len(), 1, "no second timeout");
    // The first accepts no requests.
    let first = net.phone("10.2.0.9:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[first].log.behaviour.outside = Some(503);
    register(&mut net, phone, "1001", 1, CONTACT);
    accept_register(&mut net, core);
    assert_eq!(answers(&net, phone, 200), 2);
    // So does the second.
    net.phones[core].log.behaviour.outside = Some(503);
    register(&mut net, phone, "1002", 1, CONTACT);
    assert_eq!(answers(&net, phone, 503), 1);
    // An accepted registration survives.
    net.run(seconds(10));
    register(&mut net, phone, "1001", 2, CONTACT);
    assert_eq!(answers(&net, phone, 200), 3);
    net.run(seconds(40));
    assert_eq!(answers(&net, phone, 200) + answers(&net, phone, 503), 4);
}

#[test]
fn register_goes_to_the_next_address_of_a_name() {
    let config = core_at("'pbx.example'") + "[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = vec![
        ("_sip._udp.pbx.example", 33, srv(1, "a.pbx.example")),
        ("_sip._udp.pbx.example", 33, srv(2, "b.pbx.example")),
        ("a.pbx.example", 1, vec![10, 2, 0, 66]),
        ("b.pbx.example", 1, vec![10, 2, 0, 77]),
    ];
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let second = net.phone("10.2.0.77:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[second].log.behaviour.outside = None;
    register(&mut net, phone, "1000", 1, CONTACT);
    net.run(seconds(4));
    accept_register(&mut net, second);
    assert_eq!(answers(&net, phone, 200), 1);
}

/// An SRV record with the default port.
fn srv(priority: u16, target: &str) -> Vec<u8> {
    let numbers = [priority, 10, 5060].map(u16::to_be_bytes);
    [numbers.concat(), dns_name(target)].concat()
}

#[test]
fn register_over_tls_requires_the_name_of_its_target() {
    let config = core_at("['tls:a.example',{address='tls:b.example',priority=1}]").replace(
        "'tcp:198.51.100.1:5060']",
        "'tls:198.51.100.1:5061']\ntls={certificate={chain='c.pem',key='c.key'}}",
    ) + "[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    net.zone = vec![
        ("a.example", 1, vec![10, 2, 0, 66]),
        ("b.example", 1, vec![10, 2, 0, 77]),
    ];
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    register(&mut net, phone, "1000", 1, CONTACT);
    net.run(seconds(5));
    let names: Vec<(String, &str)> = net
        .tls_connections
        .iter()
        .map(|(_, remote, (name, _))| (remote.to_string(), name.as_str()))
        .collect();
    let expected = [
        ("10.2.0.66:5061", "a.example"),
        ("10.2.0.77:5061", "b.example"),
    ];
    assert_eq!(
        names,
        expected.map(|(remote, name)| (remote.to_owned(), name))
    );
}

/// Hundreds of phones behind one address register at once; each obeys Retry-After.
#[test]
fn phones_are_spread_after_a_power_failure() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='local'\n")
        + "[[route]]\nregistered=true\n[registrar]\nregistrations_per_s=40\n";
    let mut net = VirtualNetwork::new(&config, 1);
    let phones: Vec<usize> = (0..300)
        .map(|phone| {
            let address = format!("10.1.0.1:{}", 10_000 + phone);
            net.phone(&address, PhoneBehaviour::answering(SDP_A))
        })
        .collect();
    let wait_of = |net: &VirtualNetwork, phone: usize| -> Option<u64> {
        let last = net.phone_events(phone).pop()?;
        match last {
            PhoneEvent::OutOfDialogResponse(503) => {
                let entry = net.last(phone, |event| {
                    *event == PhoneEvent::OutOfDialogResponse(503)
                });
                Some(entry.header("Retry-After").parse().unwrap())
            }
            PhoneEvent::OutOfDialogResponse(200) => None,
            other => panic!("{other:?}"),
        }
    };
    let mut due: Vec<(u64, usize)> = phones.iter().map(|&phone| (0, phone)).collect();
    let mut asked = vec![0; phones.len()];
    let mut now = 0;
    while let Some(&(at, _)) = due.iter().min() {
        net.run(seconds(at.saturating_sub(now)));
        now = now.max(at);
        let (turn, later): (Vec<_>, Vec<_>) = due.into_iter().partition(|(due, _)| *due <= now);
        due = later;
        for &(_, phone) in &turn {
            asked[phone - phones[0]] += 1;
            let user = (1000 + phone).to_string();
            let contact = format!("<sip:{user}@192.168.3.3:5060>");
            ask_to_register(&mut net, phone, &user, asked[phone - phones[0]], &contact);
        }
        net.run(Duration::from_millis(200));
        for &(_, phone) in &turn {
            if let Some(wait) = wait_of(&net, phone) {
                due.push((now + wait, phone));
            }
        }
    }
    assert!(now <= 8, "{now} seconds");
    assert!(asked.iter().all(|asked| *asked <= 2), "{asked:?}");
}

fn ask_to_register(net: &mut VirtualNetwork, phone: usize, user: &str, cseq: u32, contact: &str) {
    let request = RegisterRequest {
        call_id: Some(user),
        cseq: Some(cseq),
        ..RegisterRequest::new(user, contact)
    };
    net.send_register(phone, &request);
}

/// Calls above the rate limit: calls up to the limit succeed, every other gets the configured status without state, and
/// established calls are unaffected.
#[test]
fn calls_above_the_rate_get_the_configured_status() {
    let config = PLAIN.replace(
        "kind='access'\n",
        "kind='access'\nrates={calls=40,status=486}\n",
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offered = 700;
    for _ in 0..offered {
        net.call(
            caller,
            "sip:2000@192.0.2.1",
            OUT,
            &MessageContent::sdp(SDP_A.as_bytes()),
        );
        net.run(Duration::from_nanos(1_000_000_000 / 70));
    }
    net.run(seconds(5));
    let reported = net.phone_events(caller);
    let answered = reported
        .iter()
        .filter(|t| **t == PhoneEvent::Answered)
        .count();
    let shielded = reported
        .iter()
        .filter(|t| matches!(t, PhoneEvent::Failed(Failure::Response, 486)))
        .count();
    assert_eq!(answered + shielded, offered, "{reported:?}");
    assert!((400..=405).contains(&answered), "{answered}");
    let counters = net.control(|border, _| border.counters().clone());
    assert_eq!(counters.offered as usize, answered);
    assert_eq!(counters.shielded as usize, shielded);
    assert_eq!(
        net.names()
            .iter()
            .filter(|name| **name == "rate_limited")
            .count(),
        1
    );
}

/// With too long a queueing delay, new requests are refused, established calls continue, and normal operation returns
/// by itself.
#[test]
fn queueing_delay_refuses_new_requests() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let callee = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    // A normal delay with batching.
    // The other side's socket has no queue, which must not hide this one's.
    let at = OUT.parse().ok();
    net.lag = (at, Duration::from_millis(20));
    let established = net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
    net.run(seconds(2));
    assert!(net.has(caller, |event| *event == PhoneEvent::Answered));
    // A short stall is recovered.
    net.lag = (at, Duration::from_millis(80));
    for _ in 0..2 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(Duration::from_millis(60));
    }
    assert_eq!(
        net.phone_events(caller)
            .iter()
            .filter(|t| **t == PhoneEvent::Answered)
            .count(),
        3
    );
    for _ in 0..20 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
    }
    register(&mut net, caller, "1000", 1, CONTACT);
    net.run(seconds(1));
    let refused = |net: &VirtualNetwork| {
        let reported = net.phone_events(caller);
        let same = |t: &&PhoneEvent| matches!(t, PhoneEvent::Failed(Failure::Response, 503));
        reported.iter().filter(same).count()
    };
    assert_eq!(refused(&net), 20);
    let last = net.last(caller, |t| {
        matches!(t, PhoneEvent::Failed(Failure::Response, 503))
    });
    let wait: u32 = last.header("Retry-After").parse().unwrap();
    assert!((1..=10).contains(&wait));
    assert_eq!(
        answers(&net, caller, 503),
        1,
        "the REGISTER is refused, too"
    );
    // Requests of the established call are processed.
    net.command(caller, |endpoint, now| {
        endpoint
            .bye(established, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(
        net.has(callee, |event| matches!(event, PhoneEvent::Ended(..))),
        "{:?}",
        net.phone_events(callee)
    );
    let state = |net: &VirtualNetwork| net.names().iter().filter(|n| **n == "overload").count();
    assert_eq!(state(&net), 1, "overload has begun");
    net.lag = (at, Duration::ZERO);
    net.run(seconds(6));
    assert_eq!(state(&net), 2, "overload has ended");
    net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
    net.run(seconds(2));
    assert_eq!(refused(&net), 20);
    let (counters, drops) = net.control(|border, _| (border.counters().clone(), border.drops()));
    assert_eq!((counters.shed, counters.offered), (21, 4));
    // Their ACKs are recognised by the tag, although there is no state.
    assert_eq!(drops.get(DropReason::SipRefusedAck), 20);
    assert_eq!(drops.get(DropReason::SipStrayAck), 0);
}

/// A thread that stalls now and then and finds one message each time is not overloaded.
#[test]
fn two_stalls_are_no_overload() {
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    net.lag = (OUT.parse().ok(), Duration::from_millis(80));
    for _ in 0..5 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(seconds(3));
    }
    let answered = net.phone_events(caller);
    let answered = answered
        .iter()
        .filter(|event| **event == PhoneEvent::Answered);
    assert_eq!(answered.count(), 5);
    assert_eq!(net.control(|border, _| border.counters().shed), 0);
}

/// Far above the capacity: refusals are limited, too, and retransmissions of dropped requests are dropped.
#[test]
fn flood_limits_refusals_too() {
    let bypass = format!("{PLAIN}[[route]]\ntrunk='pbx'\nmedia='bypass'\n");
    let mut net = VirtualNetwork::new(&bypass, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let at = OUT.parse().ok();
    let uri = "sip:2000@192.0.2.1";
    // A call takes 1 ms and a refusal 0.1 ms; each waits for the ones before it. Five thousand arrive in a second.
    let (mut offered, mut done, mut queue) = (0, 0, 0u64);
    let mut established = None;
    let mut settled = (0, 0);
    for millisecond in 0..8_000 {
        for _ in 0..5 {
            net.lag = (at, Duration::from_micros(100 * queue));
            let leg = net.call(caller, uri, OUT, &offer);
            established = established.or(Some(leg).filter(|_| millisecond == 20));
            offered += 1;
            net.run(Duration::from_micros(200));
            let (taken, shed) =
                net.control(|border, _| (border.counters().offered, border.counters().shed));
            queue = (queue + 10 * taken + shed - done).saturating_sub(2);
            done = 10 * taken + shed;
            if millisecond == 4_000 {
                settled = (taken, shed);
            }
        }
    }
    let counters = net.control(|border, _| border.counters().clone());
    let (taken, shed) = (counters.offered - settled.0, counters.shed - settled.1);
    assert!(taken >= 3_700, "{taken} {shed} {counters:?}");
    assert!(
        (taken / 40..taken).contains(&shed),
        "{taken} {shed} {counters:?}"
    );
    // Calls accepted at the beginning end normally.
    let first = established.expect("a first call");
    net.command(caller, |endpoint, now| {
        endpoint
            .bye(first, &MessageContent::default(), now)
            .unwrap();
    });
    net.lag = (at, Duration::ZERO);
    net.run(seconds(60));
    assert!(net.has(caller, |event| matches!(event, PhoneEvent::Ended(..))));
    let (counters, drops) = net.control(|border, _| (border.counters().clone(), border.drops()));
    assert!(counters.unread > 1_000, "{counters:?}");
    assert_eq!(drops.get(DropReason::SipShed), counters.unread);
    let states: Vec<_> = net
        .names()
        .into_iter()
        .filter(|n| *n == "overload")
        .collect();
    assert_eq!(states.len(), 2, "overload began and ended");
    // Each call is accepted, refused, or given up by its caller.
    let reported = net.phone_events(caller);
    let ended = reported
        .iter()
        .filter(|t| matches!(t, PhoneEvent::Answered | PhoneEvent::Failed(..)));
    assert_eq!(ended.count(), offered);
    // Normal operation afterwards.
    let before = counters.offered;
    net.call(caller, uri, OUT, &offer);
    net.run(seconds(1));
    let counters = net.control(|border, _| border.counters().clone());
    assert_eq!(counters.offered, before + 1);
}

/// Neither rate limits nor overload control refuse emergency calls.
#[test]
fn emergency_calls_are_accepted_under_limits() {
    let config = PLAIN.replace(
        "kind='access'\n",
        "kind='access'\nrates={calls=1,source_calls=1,status=486}\n",
    ) + "[sip]\nrefusals_percent=0\nemergency_numbers=['112']\n";
    let mut net = VirtualNetwork::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let callee = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let at = OUT.parse().ok();
    let mut helped = 0;
    for round in 0..40 {
        net.lag = (at, Duration::from_millis(80));
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
        if round % 4 == 0 {
            let uri = match round % 8 {
                0 => "urn:service:sos.fire",
                _ => "sip:112@192.0.2.1",
            };
            net.call(caller, uri, OUT, &offer);
            helped += 1;
        }
        net.run(Duration::from_millis(50));
    }
    net.run(seconds(2));
    let counters = net.control(|border, _| border.counters().clone());
    assert!(counters.shed > 0 && counters.shielded > 0, "{counters:?}");
    assert_eq!(
        counters.shed + counters.shielded + counters.offered,
        40 + helped
    );
    assert!(counters.offered >= helped, "{counters:?}");
    // They are routed, with their service URN or number.
    for line in ["INVITE urn:service:sos.fire SIP/2.0", "INVITE sip:112@"] {
        let led = net
            .log(callee)
            .iter()
            .filter(|entry| entry.text().starts_with(line));
        assert_eq!(led.count() as u64, helped / 2, "{line}");
    }
}

/// A side behind a tunnel takes CPU time of the gateway's thread, which other calls leave free.
#[test]
fn calls_above_the_capacity_of_the_gateway_are_refused() {
    let gateway = "[gateway]\nlocal='203.0.113.1'\nkey_file='/k'\n[[gateway.tunnel]]\nname='site'\n\
                   peer='203.0.113.2'\nlocal_networks='192.0.2.0/24'\nremote_networks='10.1.0.0/24'\n";
    let config = format!("{PLAIN}\n[limits]\nmemory_mib=1000\ncpu_percent=100000\n{gateway}");
    let mut net = VirtualNetwork::new(&config, 1);
    let inside = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let outside = net.phone("10.1.1.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let fit = (Price::GATEWAY / Price::GATEWAY_SIDE) as usize;
    let mut call = |phone, number| -> Vec<_> {
        let call = |_| {
            let leg = net.call(phone, "sip:2000@192.0.2.1", OUT, &offer);
            net.run(Duration::from_millis(2));
            leg
        };
        (0..number).map(call).collect()
    };
    let legs = [call(inside, fit + 5), call(outside, 5)];
    net.run(seconds(2));
    let count = |net: &VirtualNetwork, phone, wanted: PhoneEvent| {
        let events = net.phone_events(phone);
        events.iter().filter(|event| **event == wanted).count()
    };
    let refused = PhoneEvent::Failed(Failure::Response, 503);
    assert_eq!(count(&net, inside, PhoneEvent::Answered), fit);
    assert_eq!(count(&net, inside, refused), 5);
    assert_eq!(count(&net, outside, PhoneEvent::Answered), 5);
    let logged = net.events.iter().find_map(|event| match &event.kind {
        EventKind::AdmissionRefused {
            resource,
            calls_max,
            ..
        } => Some((resource.clone(), *calls_max)),
        _ => None,
    });
    assert_eq!(logged, Some(("gateway".to_owned(), fit as u64)));
    // The capacity is free again when a call ends.
    net.command(inside, |endpoint, now| {
        let _ = endpoint.bye(legs[0][0], &MessageContent::default(), now);
    });
    net.run(seconds(40));
    net.call(inside, "sip:2000@192.0.2.1", OUT, &offer);
    net.run(seconds(2));
    assert_eq!(count(&net, inside, PhoneEvent::Answered), fit + 1);
}

/// A side behind a tunnel whose media passes directly takes CPU time of the border, and none of the gateway.
#[test]
fn calls_with_direct_media_take_cpu_time_of_the_border() {
    let gateway = "[gateway]\nlocal='203.0.113.1'\nkey_file='/k'\n[[gateway.tunnel]]\nname='site'\n\
                   peer='203.0.113.2'\nlocal_networks='192.0.2.0/24'\nremote_networks='10.1.0.0/24'\n";
    let mut side = of_call(MediaPath::SocketPerPort);
    side += Price::of_tunnel_sides(1, true);
    let percent = 5;
    let fit = (percent * 10_000 / side.processor) as usize;
    let config = format!("{PLAIN}\n[limits]\nmemory_mib=1000\ncpu_percent={percent}\n{gateway}");
    let mut net = VirtualNetwork::new(&config, 1);
    net.control(|border, _| border.set_direct_tunnels(true));
    let inside = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    for _ in 0..fit + 3 {
        net.call(inside, "sip:2000@192.0.2.1", OUT, &offer);
        net.run(Duration::from_millis(2));
    }
    net.run(seconds(2));
    let events = net.phone_events(inside);
    let count = |wanted: PhoneEvent| events.iter().filter(|event| **event == wanted).count();
    assert_eq!(count(PhoneEvent::Answered), fit);
    assert_eq!(count(PhoneEvent::Failed(Failure::Response, 503)), 3);
    let resource = net.events.iter().find_map(|event| match &event.kind {
        EventKind::AdmissionRefused { resource, .. } => Some(resource.clone()),
        _ => None,
    });
    assert_eq!(resource.as_deref(), Some("processor"));
}

/// Price of a call with anchored media by this path.
fn of_call(path: MediaPath) -> Price {
    Price::of_call(Some(path), [None, None])
}

/// Calls reserve capacity. Without free capacity they get the configured status; it is free again when calls end.
#[test]
fn calls_above_the_capacity_are_refused() {
    let config = format!("{PLAIN}\n[limits]\nmemory_mib=1\nstatus=486\n");
    let mut net = VirtualNetwork::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let fit = (1_024 / of_call(MediaPath::SocketPerPort).memory) as usize;
    let legs: Vec<_> = (0..fit + 5)
        .map(|_| net.call(caller, "sip:2000@192.0.2.1", OUT, &offer))
        .collect();
    net.run(seconds(2));
    let count = |net: &VirtualNetwork, wanted: fn(&PhoneEvent) -> bool| {
        net.phone_events(caller)
            .iter()
            .filter(|event| wanted(event))
            .count()
    };
    let answered = |event: &PhoneEvent| *event == PhoneEvent::Answered;
    let refused = |event: &PhoneEvent| *event == PhoneEvent::Failed(Failure::Response, 486);
    assert_eq!((count(&net, answered), count(&net, refused)), (fit, 5));
    let (counters, census) = net.control(|border, _| (border.counters().clone(), border.census()));
    assert_eq!(counters.not_admitted, 5);
    assert_eq!(
        census.admitted,
        fit as u64 * of_call(MediaPath::SocketPerPort).memory
    );
    let reported = net
        .names()
        .into_iter()
        .filter(|name| *name == "admission_refused");
    assert_eq!(reported.count(), 1);
    // One call ends, another one is accepted.
    net.command(caller, |endpoint, now| {
        endpoint
            .bye(legs[0], &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(2));
    for _ in 0..2 {
        net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
    }
    net.run(seconds(2));
    assert_eq!((count(&net, answered), count(&net, refused)), (fit + 1, 6));
}

/// With the kernel relay more calls fit. Calls that cannot be offloaded need the capacity for sockets, and so do all
/// when the relay fails.
#[test]
fn media_path_determines_the_capacity() {
    let config = format!(
        "{PLAIN}
[limits]
cpu_percent=1
status=486
"
    );
    let config = config.replace(
        "kind='access'",
        "kind='access'
srtp='prefer'",
    );
    let mut net = VirtualNetwork::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let kernel = |addresses: &[&str]| MediaOffload {
        path: MediaPath::Kernel,
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
    };
    let [sockets, shared, in_kernel] = [
        MediaPath::SocketPerPort,
        MediaPath::SharedPortSocket,
        MediaPath::Kernel,
    ]
    .map(|path| of_call(path).processor);
    let relayed = Price::of_media(MediaPath::Kernel).processor;
    let of_sockets = Price::of_media(MediaPath::SocketPerPort).processor;
    assert!(10_000 / in_kernel > 5 * (10_000 / shared));
    assert!(10_000 / shared > 10_000 / sockets);
    // Both interfaces need the kernel relay, as media enters at one and leaves at the other.
    net.control(|border, _| border.set_media_offload(kernel(&["192.0.2.1"])));
    let (answered, legs) = answered_of(&mut net, caller, 25, SDP_A, true);
    assert_eq!(answered as u64, 10_000 / sockets);
    for leg in legs {
        net.command(caller, |endpoint, now| {
            let _ = endpoint.bye(leg, &MessageContent::default(), now);
        });
    }
    net.run(seconds(2));
    let both = kernel(&["192.0.2.1", "198.51.100.1"]);
    net.control(|border, _| border.set_media_offload(both.clone()));
    let (answered, _) = answered_of(&mut net, caller, 50, SDP_A, true);
    assert_eq!(answered, 50);
    assert_eq!(reserved_cpu_us(&mut net, CostPart::Media), 50 * relayed);
    // A call with SRTP uses sockets.
    let secret = SDP_A.replace("RTP/AVP", "RTP/SAVP") + KEYS[0];
    let (answered, _) = answered_of(&mut net, caller, 1, &secret, true);
    assert_eq!(answered, 1);
    let media = 50 * relayed + of_sockets;
    assert_eq!(reserved_cpu_us(&mut net, CostPart::Media), media);
    // The kernel relay fails: the established calls exceed the capacity, and no call is accepted.
    net.run(seconds(10));
    net.events.clear();
    net.control(|border, _| border.set_media_offload(MediaOffload::default()));
    assert_eq!(reserved_cpu_us(&mut net, CostPart::Media), 51 * of_sockets);
    let (answered, _) = answered_of(&mut net, caller, 1, SDP_A, true);
    assert_eq!(answered, 0);
    let refused = net.events.iter().find_map(|event| match &event.kind {
        EventKind::AdmissionRefused {
            calls,
            calls_max,
            path,
            ..
        } => Some((*calls, *calls_max, path.clone())),
        _ => None,
    });
    let (calls, calls_max, path) = refused.unwrap();
    assert_eq!((calls, calls_max), (51, 10_000 / sockets));
    assert_eq!(path.as_deref(), Some("socket_per_port"));
    net.control(|border, _| border.set_media_offload(both));
    assert_eq!(reserved_cpu_us(&mut net, CostPart::Media), media);
    // With one socket for all ports the call with SRTP costs less.
    net.control(|border, _| border.set_shared_ports(true));
    let media = 50 * relayed + Price::of_media(MediaPath::SharedPortSocket).processor;
    assert_eq!(reserved_cpu_us(&mut net, CostPart::Media), media);
}

/// A key of 30 bytes for counter mode suites, and one of 28 for GCM.
const KEYS: [&str; 2] = [
    "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n",
    "a=crypto:1 AEAD_AES_128_GCM inline:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\r\n",
];

/// CPU time in microseconds that is reserved for this part.
fn reserved_cpu_us(net: &mut VirtualNetwork, part: CostPart) -> u64 {
    let all = net.control(|border, now| border.taken(now));
    let of = all.iter().find(|(known, _)| *known == part).unwrap();
    of.1.processor
}

/// Number of answered calls out of this number, offered one after the other or all at once, and their legs.
fn answered_of(
    net: &mut VirtualNetwork,
    caller: usize,
    count: usize,
    offer: &str,
    at_once: bool,
) -> (usize, Vec<sip::LegId>) {
    let offer = MessageContent::sdp(offer.as_bytes());
    let before = net.control(|border, _| border.counters().answered);
    let legs = (0..count)
        .map(|_| {
            let leg = net.call(caller, "sip:2000@192.0.2.1", OUT, &offer);
            if !at_once {
                net.run(seconds(1));
            }
            leg
        })
        .collect();
    net.run(seconds(2));
    let after = net.control(|border, _| border.counters().answered);
    ((after - before) as usize, legs)
}

/// SRTP needs capacity: fewer calls fit, depending on the suite, and the capacity is released at the end.
#[test]
fn srtp_calls_reserve_more_capacity() {
    // Ten percent of a CPU: 100,000 microseconds per second.
    let config = |srtp: &str| {
        let limits = format!("{PLAIN}\n[limits]\ncpu_percent=10\nstatus=486\n");
        limits.replace("kind='access'", &format!("kind='access'\nsrtp='{srtp}'"))
    };
    let plain = of_call(MediaPath::SocketPerPort).processor;
    let [counter, gcm] = [Suite::AesCm128HmacSha1_80, Suite::AeadAes128Gcm]
        .map(|suite| Price::of_srtp(Keying::Sdes, suite).processor);
    let secret = |keys: &str| SDP_A.replace("RTP/AVP", "RTP/SAVP") + keys;
    // With required SRTP a call reserves at once; with optional SRTP when keys are agreed.
    for (srtp, offer, price, at_once) in [
        ("pass", SDP_A.to_owned(), 0, true),
        ("prefer", SDP_A.to_owned(), 0, true),
        ("prefer", secret(KEYS[0]), counter, false),
        ("prefer", secret(KEYS[1]), gcm, false),
        ("require", secret(KEYS[0]), counter, true),
        // A cheaper suite than expected leaves capacity for the next call.
        ("require", secret(KEYS[1]), gcm, false),
    ] {
        let mut net = VirtualNetwork::new(&config(srtp), 1);
        let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
        net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
        let fit = (100_000 / (plain + price)) as usize;
        let (answered, legs) = answered_of(&mut net, caller, 55, &offer, at_once);
        let expected = match (srtp, price == gcm) {
            // Each is admitted at the price of the most expensive suite.
            ("require", true) => (1 + (100_000 - plain - counter) / (plain + gcm)) as usize,
            _ => fit,
        };
        assert_eq!(answered, expected, "{srtp} {price}");
        assert_eq!(
            reserved_cpu_us(&mut net, CostPart::Srtp),
            answered as u64 * price
        );
        let refused = net.events.iter().find_map(|event| match &event.kind {
            EventKind::AdmissionRefused {
                resource: what,
                processor,
                ..
            } => Some((what.clone(), processor.clone())),
            _ => None,
        });
        let (what, processor) = refused.unwrap();
        assert_eq!(what, "processor");
        assert!(processor.starts_with("call "), "{processor}");
        assert!(processor.ends_with(" of 100000"), "{processor}");
        assert_eq!(processor.contains(" srtp "), price > 0, "{processor}");
        // All capacity is released.
        for leg in legs {
            net.command(caller, |endpoint, now| {
                let _ = endpoint.bye(leg, &MessageContent::default(), now);
            });
        }
        net.run(seconds(2));
        let left = net.control(|border, now| border.taken(now));
        assert!(
            left.iter().all(|(_, cost)| *cost == Price::default()),
            "{left:?}"
        );
    }
}

/// New keys of an established call replace the old ones.
#[test]
fn new_keys_do_not_reserve_twice() {
    let config = PLAIN.replace("kind='access'", "kind='access'\nsrtp='prefer'");
    let mut net = VirtualNetwork::new(&config, 1);
    let caller = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let secret = |keys: &str| SDP_A.replace("RTP/AVP", "RTP/SAVP") + keys;
    let (answered, legs) = answered_of(&mut net, caller, 1, &secret(KEYS[0]), true);
    assert_eq!(answered, 1);
    let price = |suite| Price::of_srtp(Keying::Sdes, suite).processor;
    assert_eq!(
        reserved_cpu_us(&mut net, CostPart::Srtp),
        price(Suite::AesCm128HmacSha1_80)
    );
    let again = secret(KEYS[1]).replace("1 1 IN", "1 2 IN");
    net.command(caller, |endpoint, now| {
        let content = MessageContent::sdp(again.as_bytes());
        endpoint
            .request(legs[0], Method::Invite, &content, now)
            .unwrap();
    });
    net.run(seconds(2));
    assert_eq!(
        reserved_cpu_us(&mut net, CostPart::Srtp),
        price(Suite::AeadAes128Gcm)
    );
}
