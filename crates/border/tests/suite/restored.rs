//! A restart: registrations drained from one border are restored by another before it listens; their phones are reachable at once.

use crate::neighbourhood;

use border::registrar::StoredRegistration;
use engine::{Time, Transport};
use neighbourhood::*;
use sip::{Content, Flow, Outside, Target};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

const OUT: &str = "192.0.2.1:5060";
const IN: &str = "198.51.100.1:5060";
/// Behind NAT: not where it comes from.
const CONTACT: &str = "<sip:1000@192.168.3.3:5060>";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn offer() -> Content<'static> {
    Content::sdp(SDP_A.as_bytes())
}

fn local(workers: u8) -> String {
    PLAIN.replace("kind='access'\n", "kind='access'\nregister='local'\n")
        + &format!(
            "[[route]]\nregistered=true\n[registrar]\nnat_expires=0\n[sip]\nworkers={workers}\n"
        )
}

fn start(config: &str, seed: u64) -> Neighbourhood {
    let mut net = Neighbourhood::crew(config, seed);
    net.operate(|border, _| border.track_registration_changes());
    net
}

fn register(
    net: &mut Neighbourhood,
    phone: usize,
    transport: Transport,
    user: &str,
    contact: &str,
) {
    let flow = Flow {
        local: net.phones[phone].local,
        transport,
        remote: OUT.parse().unwrap(),
        connection: None,
    };
    let address = format!("<sip:{user}@192.0.2.1>");
    net.tell(phone, |endpoint, now| {
        let edits = [Edit::Replace {
            id: HeaderId::Contact,
            value: contact.as_bytes(),
        }];
        let outside = Outside {
            from: Some(address.as_bytes()),
            to: Some(address.as_bytes()),
            call_id: Some(user.as_bytes()),
            cseq: Some(1),
            content: Content::default().with(&edits),
            ..Outside::new(Method::Register, Target::new(b"sip:192.0.2.1", flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(2));
}

/// The changes of all workers, with times that count from now.
fn written(net: &mut Neighbourhood) -> Vec<StoredRegistration> {
    let workers = net.each_worker(|_, _| ()).len();
    let mut all = Vec::new();
    for worker in 0..workers {
        net.operate_worker(worker, |border, _| {
            border.drain_registration_changes(&mut |registration| {
                all.push(registration);
                true
            });
        });
    }
    let since = |time: Time| Time(time.since(net.now).as_nanos() as u64);
    for registration in &mut all {
        for contact in &mut registration.contacts {
            contact.until = since(contact.until);
            if let Some(core) = &mut contact.core {
                (core.due, core.until) = (since(core.due), since(core.until));
            }
        }
    }
    all
}

/// A new start that is `later`, with these registrations; gives how many contacts were restored.
fn restart(config: &str, stored: &[StoredRegistration], later: u64) -> (Neighbourhood, usize) {
    let mut net = start(config, 2);
    let now = net.now;
    let mut restored = 0;
    for registration in stored {
        let mut registration = registration.clone();
        for contact in &mut registration.contacts {
            let shift = |time: Time| {
                Time((time.0 + now.0).saturating_sub(seconds(later).as_nanos() as u64))
            };
            contact.until = shift(contact.until);
            if let Some(core) = &mut contact.core {
                (core.due, core.until) = (shift(core.due), shift(core.until));
            }
        }
        restored += net.operate(|border, now| border.restore_registration(&registration, now));
    }
    (net, restored)
}

fn is_called(net: &Neighbourhood, phone: usize) -> bool {
    net.has(phone, |told| *told == Told::Offered)
}

#[test]
fn a_call_right_after_a_restart_reaches_the_phone() {
    let config = local(1);
    let mut net = start(&config, 1);
    let phone = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    register(
        &mut net,
        phone,
        Transport::Udp,
        "1000",
        &format!("{CONTACT};expires=600"),
    );
    register(
        &mut net,
        phone,
        Transport::Udp,
        "1001",
        "<sip:1001@192.168.3.3>;expires=60",
    );
    let stored = written(&mut net);
    assert_eq!(stored.len(), 2);
    let (mut net, restored) = restart(&config, &stored, 100);
    assert_eq!(restored, 1, "one has ended meanwhile");
    let phone = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let caller = net.phone("10.1.0.2:5060", Manners::answering(SDP_B));
    net.call(caller, "sip:1001@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(!is_called(&net, phone), "its registration has ended");
    net.call(caller, "sip:1000@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(is_called(&net, phone));
    assert!(net.has(caller, |told| *told == Told::Answered));
    // The contact that ended meanwhile is not drained; the other ends in its time.
    net.run(seconds(600));
    let left = written(&mut net);
    assert_eq!(left.len(), 1);
    assert!(left[0].user == "1000" && left[0].contacts.is_empty());
}

#[test]
fn a_phone_that_takes_connections_over_tcp_is_called_by_a_new_one() {
    let config = local(1);
    let mut net = start(&config, 1);
    let phone = net.phone_over("10.1.0.1:5060", Transport::Tcp, Manners::answering(SDP_A));
    let contact = "<sip:1000@10.1.0.1:5060;transport=tcp>;expires=600";
    register(&mut net, phone, Transport::Tcp, "1000", contact);
    register(
        &mut net,
        phone,
        Transport::Tcp,
        "1001",
        "<sip:1001@192.168.3.3;transport=tcp>",
    );
    let stored = written(&mut net);
    let (mut net, restored) = restart(&config, &stored, 1);
    assert_eq!(restored, 1, "{stored:?}");
    let phone = net.phone_over("10.1.0.1:5060", Transport::Tcp, Manners::answering(SDP_A));
    let caller = net.phone("10.1.0.2:5060", Manners::answering(SDP_B));
    net.call(caller, "sip:1000@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(is_called(&net, phone), "{:?}", net.told(caller));
}

/// The core takes the last REGISTER that it saw; gives the Contact.
fn take(net: &mut Neighbourhood, core: usize) -> String {
    let seen = net
        .last(core, |told| matches!(told, Told::Outside(_)))
        .clone();
    assert!(seen.text().starts_with("REGISTER "));
    let contact = seen.header("Contact");
    let Told::Outside(transaction) = seen.told else {
        panic!()
    };
    net.tell(core, |endpoint, now| {
        let edits = [Edit::Replace {
            id: HeaderId::Contact,
            value: contact.as_bytes(),
        }];
        endpoint
            .respond(transaction, 200, &Content::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(1));
    contact
}

#[test]
fn after_a_restart_the_core_reaches_phones_whose_registration_was_passed_to_it() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n");
    let mut net = start(&config, 1);
    let phone = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    net.phones[core].ears.manners.outside = None;
    register(&mut net, phone, Transport::Udp, "1000", CONTACT);
    let contact = take(&mut net, core);
    let stored = written(&mut net);
    for later in [1, 20] {
        let (mut net, restored) = restart(&config, &stored, later);
        assert_eq!(restored, 1);
        let phone = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
        let core = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
        net.phones[core].ears.manners.outside = None;
        let uri = contact.trim_start_matches('<').split('>').next().unwrap();
        net.call(core, uri, IN, &offer());
        net.run(seconds(1));
        assert!(is_called(&net, phone), "{:?}", net.told(core));
        // A REGISTER that repeats itself is answered from the core's grant.
        register(&mut net, phone, Transport::Udp, "1000", CONTACT);
        assert!(net.has(phone, |told| *told == Told::OutsideResponse(200)));
        assert!(!net.has(core, |told| matches!(told, Told::Outside(_))));
    }
}

#[test]
fn registrations_of_two_workers_are_restored_by_three() {
    let users: Vec<String> = (0..24).map(|number| (1_000 + number).to_string()).collect();
    let mut net = start(&local(2), 1);
    let phone = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    for user in &users {
        let contact = format!("<sip:{user}@192.168.3.3:5060>");
        register(&mut net, phone, Transport::Udp, user, &contact);
    }
    let stored = written(&mut net);
    assert_eq!(stored.len(), users.len());
    for workers in [1, 3] {
        let (mut net, restored) = restart(&local(workers), &stored, 1);
        assert_eq!(restored, users.len());
        let phone = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
        let caller = net.phone("10.1.0.2:5060", Manners::answering(SDP_B));
        for user in &users {
            let uri = format!("sip:{user}@192.0.2.1");
            net.call(caller, &uri, OUT, &offer());
        }
        net.run(seconds(1));
        let offered = net.seen(phone).iter();
        let offered = offered.filter(|seen| seen.told == Told::Offered).count();
        assert_eq!(offered, users.len(), "{workers}");
        // All end in time, in whichever part they are.
        net.run(seconds(7_300));
        assert_eq!(written(&mut net).len(), users.len());
    }
}
