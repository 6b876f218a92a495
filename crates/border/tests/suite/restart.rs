//! A restart: registrations drained from one border are restored by another before it listens, so phones are reachable
//! at once.

use crate::virtual_network;

use border::registrar::StoredRegistration;
use engine::{Time, Transport};
use sip::MessageContent;
use virtual_network::*;
use wire::sip::{Edit, HeaderId};

const IN: &str = "198.51.100.1:5060";
/// Behind NAT: not the source address.
const CONTACT: &str = "<sip:1000@192.168.3.3:5060>";

fn local(workers: u8) -> String {
    PLAIN.replace("kind='access'\n", "kind='access'\nregister='local'\n")
        + &format!(
            "[[route]]\nregistered=true\n[registrar]\nnat_expires_s=0\n[sip]\nworkers={workers}\n"
        )
}

fn start(config: &str, seed: u64) -> VirtualNetwork {
    let mut net = VirtualNetwork::with_workers(config, seed);
    net.control(|border, _| border.track_registration_changes());
    net
}

fn register(
    net: &mut VirtualNetwork,
    phone: usize,
    transport: Transport,
    user: &str,
    contact: &str,
) {
    let request = RegisterRequest {
        transport,
        call_id: Some(user),
        cseq: Some(1),
        ..RegisterRequest::new(user, contact)
    };
    net.send_register(phone, &request);
    net.run(seconds(2));
}

/// The changes of all workers, with times relative to now.
fn stored_registrations(net: &mut VirtualNetwork) -> Vec<StoredRegistration> {
    let workers = net.each_worker(|_, _| ()).len();
    let mut all = Vec::new();
    for worker in 0..workers {
        net.control_worker(worker, |border, _| {
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

/// Starts a border `later` with these registrations. Returns the number of restored contacts.
fn restart(config: &str, stored: &[StoredRegistration], later: u64) -> (VirtualNetwork, usize) {
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
        restored += net.control(|border, now| border.restore_registration(&registration, now));
    }
    (net, restored)
}

fn is_called(net: &VirtualNetwork, phone: usize) -> bool {
    net.has(phone, |event| *event == PhoneEvent::Offered)
}

#[test]
fn call_right_after_a_restart_reaches_the_phone() {
    let config = local(1);
    let mut net = start(&config, 1);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
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
    let stored = stored_registrations(&mut net);
    assert_eq!(stored.len(), 2);
    let (mut net, restored) = restart(&config, &stored, 100);
    assert_eq!(restored, 1, "the other has expired");
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let caller = net.phone("10.1.0.2:5060", PhoneBehaviour::answering(SDP_B));
    net.call(caller, "sip:1001@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(!is_called(&net, phone), "its registration has expired");
    net.call(caller, "sip:1000@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(is_called(&net, phone));
    assert!(net.has(caller, |event| *event == PhoneEvent::Answered));
    // An expired contact is not restored; the other expires at its time.
    net.run(seconds(600));
    let left = stored_registrations(&mut net);
    assert_eq!(left.len(), 1);
    assert!(left[0].user == "1000" && left[0].contacts.is_empty());
}

#[test]
fn phone_accepting_tcp_is_called_over_a_new_connection() {
    let config = local(1);
    let mut net = start(&config, 1);
    let phone = net.phone_over(
        "10.1.0.1:5060",
        Transport::Tcp,
        PhoneBehaviour::answering(SDP_A),
    );
    let contact = "<sip:1000@10.1.0.1:5060;transport=tcp>;expires=600";
    register(&mut net, phone, Transport::Tcp, "1000", contact);
    register(
        &mut net,
        phone,
        Transport::Tcp,
        "1001",
        "<sip:1001@192.168.3.3;transport=tcp>",
    );
    let stored = stored_registrations(&mut net);
    let (mut net, restored) = restart(&config, &stored, 1);
    assert_eq!(restored, 1, "{stored:?}");
    let phone = net.phone_over(
        "10.1.0.1:5060",
        Transport::Tcp,
        PhoneBehaviour::answering(SDP_A),
    );
    let caller = net.phone("10.1.0.2:5060", PhoneBehaviour::answering(SDP_B));
    net.call(caller, "sip:1000@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    assert!(is_called(&net, phone), "{:?}", net.phone_events(caller));
}

/// The core accepts the last REGISTER that it received. Returns its Contact.
fn accept_register(net: &mut VirtualNetwork, core: usize) -> String {
    let entry = net
        .last(core, |event| matches!(event, PhoneEvent::OutOfDialog(_)))
        .clone();
    assert!(entry.text().starts_with("REGISTER "));
    let contact = entry.header("Contact");
    let PhoneEvent::OutOfDialog(transaction) = entry.event else {
        panic!()
    };
    net.command(core, |endpoint, now| {
        let edits = [Edit::Replace {
            id: HeaderId::Contact,
            value: contact.as_bytes(),
        }];
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
    contact
}

#[test]
fn core_reaches_relayed_registrations_after_a_restart() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n");
    let mut net = start(&config, 1);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let core = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[core].log.behaviour.outside = None;
    register(&mut net, phone, Transport::Udp, "1000", CONTACT);
    let contact = accept_register(&mut net, core);
    let stored = stored_registrations(&mut net);
    for later in [1, 20] {
        let (mut net, restored) = restart(&config, &stored, later);
        assert_eq!(restored, 1);
        let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
        let core = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
        net.phones[core].log.behaviour.outside = None;
        let uri = contact.trim_start_matches('<').split('>').next().unwrap();
        net.call(core, uri, IN, &offer());
        net.run(seconds(1));
        assert!(is_called(&net, phone), "{:?}", net.phone_events(core));
        // A refreshed REGISTER is answered from the core's registration.
        register(&mut net, phone, Transport::Udp, "1000", CONTACT);
        assert!(net.has(phone, |event| *event
            == PhoneEvent::OutOfDialogResponse(200)));
        assert!(!net.has(core, |event| matches!(event, PhoneEvent::OutOfDialog(_))));
    }
}

#[test]
fn registrations_of_two_workers_are_restored_by_three() {
    let users: Vec<String> = (0..24).map(|number| (1_000 + number).to_string()).collect();
    let mut net = start(&local(2), 1);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    for user in &users {
        let contact = format!("<sip:{user}@192.168.3.3:5060>");
        register(&mut net, phone, Transport::Udp, user, &contact);
    }
    let stored = stored_registrations(&mut net);
    assert_eq!(stored.len(), users.len());
    for workers in [1, 3] {
        let (mut net, restored) = restart(&local(workers), &stored, 1);
        assert_eq!(restored, users.len());
        let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
        let caller = net.phone("10.1.0.2:5060", PhoneBehaviour::answering(SDP_B));
        for user in &users {
            let uri = format!("sip:{user}@192.0.2.1");
            net.call(caller, &uri, OUT, &offer());
        }
        net.run(seconds(1));
        let offered = net.log(phone).iter();
        let offered = offered
            .filter(|entry| entry.event == PhoneEvent::Offered)
            .count();
        assert_eq!(offered, users.len(), "{workers}");
        // All expire at their time, in whichever part they are.
        net.run(seconds(7_300));
        assert_eq!(stored_registrations(&mut net).len(), users.len());
    }
}
