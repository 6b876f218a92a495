//! Which way calls and registrations take: trunks by weight, priority and state, names by DNS, a carrier beyond a NAT,
//! registrations passed with Path, and a configuration that changes under standing calls.

use crate::neighbourhood;

use engine::{DropReason, Transport};
use neighbourhood::*;
use sip::{Content, Ending, Failure, Flow, Outside, Target};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

const OUT: &str = "192.0.2.1:5060";
const IN: &str = "198.51.100.1:5060";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn offer() -> Content<'static> {
    Content::sdp(SDP_A.as_bytes())
}

fn busy() -> Manners {
    let mut manners = Manners::answering("");
    manners.progress.clear();
    manners.answer = Some(486);
    manners
}

fn offers(net: &Neighbourhood, phone: usize) -> usize {
    let offered = |told: &&Told| **told == Told::Offered;
    net.told(phone).iter().filter(offered).count()
}

#[test]
fn targets_share_by_weight_and_the_next_priority_waits() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target=[{address='udp:10.2.0.1:5060',weight=3},{address='udp:10.2.0.2:5060',weight=1},\
         {address='udp:10.2.0.3:5060',priority=1}]\nanswer_timeout=1",
    );
    let mut net = Neighbourhood::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
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
    // Both say nothing any more: the call gets to the third.
    net.phones[heavy].ears.manners.silent = true;
    net.phones[light].ears.manners.silent = true;
    for phone in [heavy, light] {
        net.phones[phone].ears.manners.progress.clear();
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

#[test]
fn a_trunk_that_is_down_is_not_tried_and_one_that_is_up_again_is() {
    let config = format!(
        "{PLAIN}ping=10\nping_failures=2\n[[trunk]]\nname='spare'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[route]]\ntrunk=[{{name='pbx'}},{{name='spare',priority=1}}]\n"
    );
    let mut net = Neighbourhood::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let first = net.phone("10.2.0.1:5060", busy());
    let spare = net.phone("10.2.0.2:5060", busy());
    let call = |net: &mut Neighbourhood| {
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        (offers(net, first), offers(net, spare))
    };
    net.run(seconds(12));
    assert_eq!(call(&mut net), (1, 0));
    // Silence to pings, as from a host that is off.
    net.phones[first].ears.manners.outside = None;
    net.run(seconds(90));
    assert!(net.names().contains(&"trunk_down"), "{:?}", net.names());
    assert_eq!(call(&mut net), (1, 1), "the next one at once");
    net.phones[first].ears.manners.outside = Some(200);
    net.run(seconds(60));
    assert!(net.names().contains(&"trunk_up"));
    assert_eq!(call(&mut net), (2, 1));
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
fn a_name_leads_by_naptr_and_srv_and_a_silent_server_to_the_next() {
    let config = PLAIN.replace("udp:10.2.0.1:5060", "pbx.example")
        + "answer_timeout=2\n[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = Neighbourhood::new(&config, 1);
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
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let second = net.phone("10.2.0.77:5077", Manners::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let tried = net
        .wire
        .iter()
        .filter(|(to, _)| *to == "10.2.0.66:5066".parse().unwrap());
    assert!(tried.count() > 0, "the first by priority is tried first");
    assert_eq!(offers(&net, second), 0);
    net.run(seconds(3));
    assert_eq!(offers(&net, second), 1);
    assert!(
        net.has(alice, |told| *told == Told::Answered),
        "{:?}",
        net.told(alice)
    );
    // The lookups are remembered for as long as their records last.
    let asked = |net: &Neighbourhood| net.wire.iter().filter(|(to, _)| to.port() == 53).count();
    let before = asked(&net);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(5));
    assert_eq!((offers(&net, second), asked(&net)), (2, before));
}

#[test]
fn a_contact_that_is_a_name_is_located_and_makes_nobody_welcome() {
    let config = PLAIN.replace("kind='core'", "kind='core'\nallow='10.2.0.1/32'")
        + "[dns]\nservers=['10.8.0.53:53']\n";
    let mut net = Neighbourhood::new(&config, 1);
    net.zone = vec![("far.example", 1, vec![10, 2, 0, 77])];
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let mut manners = Manners::answering(SDP_B);
    manners.answer = None;
    let bob = net.phone("10.2.0.1:5060", manners);
    let far = net.phone("10.2.0.77:5060", Manners::answering(SDP_B));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let theirs = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
    let contact = [Edit::Replace {
        id: HeaderId::Contact,
        value: b"<sip:bob@Far.example;transport=udp>",
    }];
    net.tell(bob, |endpoint, now| {
        let content = Content::sdp(SDP_B.as_bytes()).with(&contact);
        endpoint
            .progress(theirs, 183, &content, false, now)
            .unwrap();
    });
    net.run(seconds(1));
    net.tell(bob, |endpoint, now| {
        let content = Content::sdp(SDP_B.as_bytes()).with(&contact);
        endpoint.answer(theirs, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let came = |net: &Neighbourhood, method: &str| {
        let starts = |bytes: &&Vec<u8>| bytes.starts_with(method.as_bytes());
        net.phones[far].received.iter().filter(starts).count()
    };
    // Again with every 200 that is repeated by whoever got none.
    assert!(came(&net, "ACK sip:bob@Far.example;transport=udp ") >= 1);
    assert!(!net.has(bob, |told| *told == Told::Acked));
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(came(&net, "INFO sip:bob@Far.example;transport=udp ") >= 1);
    // Whoever stands at that name is no guest of ours for it.
    let before = net.border.drops().get(DropReason::SipUnauthorised);
    let way = Flow {
        local: net.phones[far].local,
        transport: Transport::Udp,
        remote: "198.51.100.1:5060".parse().unwrap(),
        connection: None,
    };
    net.tell(far, |endpoint, now| {
        let target = Target::new(b"sip:x@198.51.100.1", way);
        endpoint
            .send(&Outside::new(Method::Options, target), now)
            .unwrap();
    });
    net.run(Duration::from_millis(100));
    assert_eq!(
        net.border.drops().get(DropReason::SipUnauthorised),
        before + 1
    );
    // There nobody knows the dialog, which ends it: by BYE, to that place as well.
    net.run(seconds(1));
    assert!(came(&net, "BYE sip:bob@Far.example;transport=udp ") >= 1);
}

#[test]
fn a_carrier_beyond_a_nat_is_given_the_address_that_it_sees() {
    let config = format!(
        "{PLAIN}username='us'\npassword='pw'\nregister={{user='4711',domain='carrier.example',contact_user='line1'}}\n\
         [[trunk]]\nname='inner'\ninterface='out'\ntarget='udp:10.1.0.1:5060'\n"
    );
    let mut net = Neighbourhood::new(&config, 1);
    let (inside, outside) = (IN.parse().unwrap(), "203.0.113.50:7777".parse().unwrap());
    net.disguises.insert(inside, outside);
    net.aliases.insert(outside, inside);
    let pbx = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let carrier = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    net.run(seconds(10));
    let registers: Vec<String> = net
        .seen(carrier)
        .iter()
        .filter(|seen| seen.method() == "REGISTER")
        .map(|seen| seen.header("Contact"))
        .collect();
    assert_eq!(
        registers[0], "<sip:line1@198.51.100.1:5060>",
        "before it knows"
    );
    let learnt = registers.last().unwrap();
    assert!(
        learnt.starts_with("<sip:line1@203.0.113.50:7777"),
        "{registers:?}"
    );
    // What the carrier calls there arrives.
    net.call(
        carrier,
        "sip:line1@203.0.113.50:7777",
        "203.0.113.50:7777",
        &Content::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    assert!(
        net.has(pbx, |told| *told == Told::Acked),
        "{:?}",
        net.told(carrier)
    );
    assert!(net.has(carrier, |told| *told == Told::Answered));
}

fn register(net: &mut Neighbourhood, phone: usize, edits: &[Edit<'_>]) {
    let flow = Flow {
        local: net.phones[phone].local,
        transport: Transport::Udp,
        remote: OUT.parse().unwrap(),
        connection: None,
    };
    net.tell(phone, |endpoint, now| {
        let outside = Outside {
            from: Some(b"<sip:1000@192.0.2.1>"),
            to: Some(b"<sip:1000@192.0.2.1>"),
            content: Content::default().with(edits),
            ..Outside::new(Method::Register, Target::new(b"sip:192.0.2.1", flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn the_path_of_a_passed_registration_is_ours_to_follow() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n");
    let mut net = Neighbourhood::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    net.phones[core].ears.manners.outside = None;
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
    let seen = net
        .find(core, |told| matches!(told, Told::Outside(_)))
        .clone();
    assert!(
        !seen.text().contains("10.1.0.77"),
        "the core routes to us alone: {}",
        seen.text()
    );
    assert_eq!(seen.header("Supported"), "path, gruu");
    let Told::Outside(transaction) = seen.told else {
        panic!()
    };
    let contact = seen.header("Contact");
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: contact.as_bytes(),
    }];
    net.tell(core, |endpoint, now| {
        endpoint
            .respond(transaction, 200, &Content::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(1));
    let answer = net.find(alice, |told| *told == Told::OutsideResponse(200));
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
    net.call(core, &uri, IN, &Content::sdp(SDP_B.as_bytes()));
    net.run(seconds(1));
    let offered = net.find(alice, |told| *told == Told::Offered);
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
fn a_registered_contact_outlives_a_reload_that_moves_its_interface() {
    let local = PLAIN.replace("kind='access'\n", "kind='access'\nregister='local'\n")
        + "[[route]]\nregistered=true\n";
    let mut net = Neighbourhood::new(&local, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: b"<sip:1000@10.1.0.1:5060>",
    }];
    register(&mut net, alice, &edits);
    assert!(net.has(alice, |told| *told == Told::OutsideResponse(200)));
    // Another interface now has the place that this one had in the file.
    let moved = format!(
        "[[interface]]\nname='new'\nkind='core'\nlisten='udp:192.0.2.9:5060'\nmedia={{address='192.0.2.9'}}\n{local}"
    );
    let config = border::config::parse(&moved, "moved.toml").unwrap();
    net.operate(|border, now| border.reload(config, now));
    net.call(
        core,
        "sip:1000@198.51.100.1",
        IN,
        &Content::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    let offered = net.find(alice, |told| *told == Told::Offered);
    assert!(
        offered.body().contains("c=IN IP4 192.0.2.1"),
        "through its own interface: {}",
        offered.body()
    );
    // Without its interface it cannot be reached.
    let gone = "[[interface]]\nname='in'\nkind='core'\nlisten='udp:198.51.100.1:5060'\nmedia={address='198.51.100.1'}\n[[route]]\nregistered=true\n";
    let config = border::config::parse(gone, "gone.toml").unwrap();
    net.operate(|border, now| border.reload(config, now));
    net.call(
        core,
        "sip:1000@198.51.100.1",
        IN,
        &Content::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    assert!(
        net.has(core, |told| matches!(
            told,
            Told::Failed(Failure::Response, _)
        )),
        "{:?}",
        net.told(core)
    );
    assert_eq!(offers(&net, alice), 1);
}

#[test]
fn calls_outlive_the_interface_and_the_trunk_that_carry_them() {
    let mut net = Neighbourhood::new(&format!("{PLAIN}[media]\ntimeout=0\n"), 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let other = "[[interface]]\nname='new'\nkind='access'\nlisten='udp:192.0.2.9:5060'\nmedia={address='192.0.2.9'}\n\
                 [[trunk]]\nname='another'\ntarget='udp:10.2.0.7:5060'\n[media]\ntimeout=0\n";
    let config = border::config::parse(other, "other.toml").unwrap();
    net.operate(|border, now| border.reload(config, now));
    net.run(seconds(200));
    // Both ways, long after.
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &Content::default(), now)
            .unwrap()
    });
    let theirs = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(theirs, Method::Invite, &Content::sdp(SDP_B.as_bytes()), now)
            .unwrap()
    });
    net.run(seconds(1));
    assert!(net.seen(bob).iter().any(|seen| seen.method() == "INFO"));
    assert!(
        net.has(alice, |told| matches!(told, Told::Request(_))),
        "{:?}",
        net.told(alice)
    );
    // For new ones nobody is there.
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(40));
    assert!(
        net.has(alice, |told| *told == Told::Failed(Failure::TimedOut, 0)),
        "{:?}",
        net.told(alice)
    );
    net.tell(alice, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(bob, |told| *told == Told::Ended(Ending::Peer)));
    assert!(net.has(alice, |told| *told == Told::Ended(Ending::Us)));
    net.assert_quiet();
    // One signalling socket is left, that of the new interface; the media sockets of the old addresses are closed.
    assert_eq!(net.open_sockets - net.border.census().sockets_open, 1);
    // And what comes back works as before.
    let config = border::config::parse(PLAIN, "plain.toml").unwrap();
    net.operate(|border, now| border.reload(config, now));
    net.run(seconds(1));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!(offers(&net, bob), 2, "{:?}", net.told(alice));
}

#[test]
fn a_call_that_is_being_set_up_survives_a_trunk_that_changes() {
    let mut net = Neighbourhood::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let mut ringing = Manners::answering(SDP_B);
    ringing.answer = None;
    let bob = net.phone("10.2.0.1:5060", ringing);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let changed = PLAIN.replace("10.2.0.1:5060", "10.2.0.2:5060");
    let config = border::config::parse(&changed, "changed.toml").unwrap();
    net.operate(|border, now| border.reload(config, now));
    let leg = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
    net.tell(bob, |endpoint, now| {
        endpoint
            .answer(leg, 200, &Content::sdp(SDP_B.as_bytes()), now)
            .unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Answered));
    assert!(net.has(bob, |told| *told == Told::Acked));
    let next = net.phone("10.2.0.2:5060", Manners::answering(SDP_B));
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert_eq!((offers(&net, bob), offers(&net, next)), (1, 1));
}
