//! Registrations drained and restored: no property of a contact is lost, and refreshes are drained rarely.

use super::*;
use engine::Transport;
use proptest::prelude::*;
use sip::ListenerId;
use std::net::SocketAddr;

const SETTINGS: Registrar = Registrar {
    min_expires_s: 1,
    max_expires_s: 7200,
    default_expires_s: 3600,
    max_contacts: 3,
    max_numbers: 10,
    nat_expires_s: 0,
    flow_timer_s: 120,
    refresh_interval_s: 600,
    registrations_per_s: 0,
};
const LISTENS: &str = "192.0.2.1:5060";

fn location() -> Location {
    let mut location = Location::new(SETTINGS, 40_000, Entropy::from_number(1));
    location.track_changes();
    location
}

fn flow(transport: Transport, remote: &str) -> Flow {
    let connection = transport.is_reliable().then_some(ConnectionId(7));
    Flow {
        local: ListenerId(3),
        transport,
        remote: remote.parse().unwrap(),
        connection,
    }
}

fn nat() -> Flow {
    flow(Transport::Udp, "203.0.113.5:1024")
}

fn text(user: &str, cseq: u32, headers: &str) -> String {
    format!(
        "REGISTER sip:example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.7:5062;branch=z9hG4bK{cseq}\r\n\
         From: <sip:{user}@example.com>;tag=1\r\nTo: <sip:{user}@example.com>\r\nCall-ID: c@1\r\nCSeq: {cseq} REGISTER\r\n\
         Supported: path, outbound\r\nMax-Forwards: 70\r\n{headers}Content-Length: 0\r\n\r\n"
    )
}

fn send(location: &mut Location, user: &str, cseq: u32, headers: &str, flow: Flow, at: u64) {
    let text = text(user, cseq, headers);
    let message = Message::parse(text.as_bytes()).unwrap();
    let answer = location.register(user, &message, InterfaceId(0), flow, Time::from_secs(at));
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// All changes.
fn drained(location: &mut Location) -> Vec<StoredRegistration> {
    let mut all = Vec::new();
    let address = |local| (local == ListenerId(3)).then(|| LISTENS.parse().unwrap());
    location.drain_changes(&address, &mut |registration| {
        all.push(registration);
        true
    });
    assert!(!location.has_changes());
    all
}

fn restore(location: &mut Location, stored: &StoredRegistration, at: u64) -> usize {
    // After a restart, listeners may have other numbers.
    let listens: SocketAddr = LISTENS.parse().unwrap();
    let place = |contact: &StoredContact| {
        (contact.local == listens).then_some((ListenerId(3), InterfaceId(0)))
    };
    location.restore(stored, &place, Time::from_secs(at))
}

#[test]
fn stored_contacts_are_restored_unchanged() {
    let mut store = location();
    let headers = "Path: <sip:edge.example.com;lr;ob>, <sip:other;lr>\r\n\
        Contact: <sip:1000@10.1.1.1;ob>;q=0.4;+sip.instance=\"<urn:x>\";reg-id=1;+x=\"a;b\";expires=600\r\n";
    send(&mut store, "1000", 1, headers, nat(), 5);
    let other = "Contact: <sip:1000@10.1.1.2>;expires=900\r\n";
    send(&mut store, "1000", 2, other, nat(), 6);
    let stored = drained(&mut store);
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].contacts.len(), 2);
    assert_eq!(stored[0].contacts[0].lifetime, 600);

    let mut again = location();
    assert_eq!(restore(&mut again, &stored[0], 10), 2);
    assert_eq!(again.contacts("1000", None), store.contacts("1000", None));
    assert!(again.holds("1000", nat()) && !again.has_changes());
    again.mark_all_changed();
    assert_eq!(drained(&mut again), stored);
    // The order of requests is preserved: an older one changes nothing; expiry continues.
    let old = text("1000", 2, other);
    let old = Message::parse(old.as_bytes()).unwrap();
    let at = Time::from_secs(20);
    let answer = again.register("1000", &old, InterfaceId(0), nat(), at);
    assert_eq!(answer.status, 500);
    assert_eq!(again.expire(Time::from_secs(606)).len(), 0);
    assert_eq!(again.contacts("1000", None).len(), 1);
    assert_eq!(again.expire(Time::from_secs(907)).len(), 1);
    assert!(again.is_empty());
}

#[test]
fn expired_or_unreachable_contacts_are_not_restored() {
    let mut store = location();
    send(
        &mut store,
        "1000",
        1,
        "Contact: <sip:a@10.1.1.1>;expires=60\r\n",
        nat(),
        0,
    );
    send(
        &mut store,
        "1000",
        2,
        "Contact: <sip:b@10.1.1.1>;expires=600\r\n",
        nat(),
        0,
    );
    let stored = drained(&mut store).remove(0);
    let mut again = location();
    assert_eq!(restore(&mut again, &stored, 60), 1);
    let left = drained(&mut again);
    assert_eq!(left[0].contacts, stored.contacts[1..]);
    let mut moved = stored.clone();
    for contact in &mut moved.contacts {
        contact.local = "192.0.2.9:5060".parse().unwrap();
    }
    let mut again = location();
    assert_eq!(restore(&mut again, &moved, 1), 0);
    assert!(again.is_empty() && !again.has_changes());
    // The registration of an existing user is unchanged.
    send(
        &mut again,
        "1000",
        1,
        "Contact: <sip:c@10.1.1.1>\r\n",
        nat(),
        1,
    );
    assert_eq!(restore(&mut again, &stored, 1), 0);
    assert_eq!(again.len(), 1);
}

/// How often a phone that refreshes each `every` seconds is drained within a number of seconds.
fn drained_in(seconds: u64, expires: u32, every: u64) -> usize {
    let mut store = location();
    let contact = format!("Contact: <sip:1000@10.1.1.1>;expires={expires}\r\n");
    let mut count = 0;
    for at in (0..seconds).step_by(every as usize) {
        send(&mut store, "1000", 1 + at as u32, &contact, nat(), at);
        count += drained(&mut store).len();
    }
    count
}

#[test]
fn refreshes_are_written_after_the_expiry_slack() {
    // Once, and then hourly.
    assert_eq!(drained_in(3_600, 30, 25), 1);
    assert_eq!(drained_in(7_200, 30, 25), 2);
    assert_eq!(drained_in(7_200, 300, 150), 2);
    // An eighth of 3,600 s is 450 s.
    assert_eq!(drained_in(3_600, 3_600, 100), 8);
    assert_eq!(drained_in(3_600, 3_600, 1_800), 2);
}

#[test]
fn contact_changes_are_written() {
    let mut store = location();
    let first = "Contact: <sip:1000@10.1.1.1>;expires=60\r\n";
    let mut cseq = 1;
    let mut sends = |headers: &str, flow, changes: usize| {
        send(&mut store, "1000", cseq, headers, flow, u64::from(cseq));
        cseq += 1;
        assert_eq!(drained(&mut store).len(), changes, "{headers}");
    };
    sends(first, nat(), 1);
    sends(first, nat(), 0);
    sends(first, flow(Transport::Udp, "203.0.113.5:1025"), 1);
    sends(
        "Contact: <sip:1000@10.1.1.1>;q=0.5;expires=60\r\n",
        nat(),
        1,
    );
    sends(
        "Contact: <sip:1000@10.1.1.1>;q=0.5;expires=50\r\n",
        nat(),
        1,
    );
    sends(
        "Contact: <sip:1000@10.1.1.1>;q=0.5;expires=50\r\n",
        nat(),
        0,
    );
    sends("", nat(), 0);
    sends("Contact: *\r\nExpires: 0\r\n", nat(), 1);
    sends(first, nat(), 1);
    store.expire(Time::from_secs(1_000));
    let gone = drained(&mut store);
    assert_eq!(gone.len(), 1);
    assert!(gone[0].contacts.is_empty());
}

#[test]
fn only_reconnectable_tcp_contacts_are_restored() {
    let kept = |transport, remote: &str, contact: &str| {
        let mut store = location();
        let headers = format!("Contact: {contact}\r\n");
        send(&mut store, "1000", 1, &headers, flow(transport, remote), 0);
        let stored = drained(&mut store).pop()?;
        let mut again = location();
        assert_eq!(restore(&mut again, &stored, 1), 1);
        // Reachable on its connection as before; new connections use the address in the Contact.
        assert_eq!(
            store.contacts("1000", None)[0].flow.remote.to_string(),
            remote
        );
        let flow = again.contacts("1000", None)[0].flow;
        assert_eq!((flow.transport, flow.connection), (transport, None));
        Some(flow.remote.to_string())
    };
    let (tcp, from) = (Transport::Tcp, "192.0.2.7:40000");
    let direct = "<sip:1000@192.0.2.7:5070;transport=tcp>";
    assert_eq!(kept(tcp, from, direct).as_deref(), Some("192.0.2.7:5070"));
    let usual = "<sip:1000@192.0.2.7;transport=TCP>";
    assert_eq!(kept(tcp, from, usual).as_deref(), Some("192.0.2.7:5060"));
    for (transport, contact) in [
        (tcp, "<sip:1000@10.1.1.1:5070;transport=tcp>"),
        (tcp, "<sip:1000@192.0.2.7:5070>"),
        (tcp, "<sip:1000@phone.example.com;transport=tcp>"),
        (tcp, "<sip:1000@192.0.2.7;transport=tcp;ob>"),
        (
            tcp,
            "<sip:1000@192.0.2.7;transport=tcp>;reg-id=1;+sip.instance=\"<urn:x>\"",
        ),
        (Transport::Tls, "<sip:1000@192.0.2.7;transport=tls>"),
        (Transport::Tls, direct),
        (Transport::Ws, "<sip:x@x.invalid;transport=ws>"),
        (Transport::Wss, direct),
    ] {
        assert_eq!(kept(transport, from, contact), None, "{contact}");
    }
    // A phone that changes from UDP to TLS is removed from the file.
    let mut store = location();
    let instance = "+sip.instance=\"<urn:x>\"";
    let contact = format!("Contact: <sip:1000@10.1.1.1>;{instance}\r\n");
    send(&mut store, "1000", 1, &contact, nat(), 0);
    assert_eq!(drained(&mut store)[0].contacts.len(), 1);
    let contact = format!("Contact: <sip:1000@10.1.1.1;transport=tls>;{instance}\r\n");
    send(
        &mut store,
        "1000",
        2,
        &contact,
        flow(Transport::Tls, from),
        0,
    );
    assert_eq!(drained(&mut store)[0].contacts.len(), 0);
    send(
        &mut store,
        "1000",
        3,
        &contact,
        flow(Transport::Tls, from),
        1,
    );
    assert!(!store.has_changes());
}

#[test]
fn restored_forwarded_registration_keeps_token_and_state() {
    let register = |cseq| text("1000", cseq, "Contact: <sip:1000@10.1.1.1>;expires=60\r\n");
    let mut store = location();
    let first = register(1);
    let message = Message::parse(first.as_bytes()).unwrap();
    let (host, udp) = ("10.0.0.1:5060", Transport::Udp);
    let passing = store
        .pass("1000", &message, InterfaceId(0), nat(), host, udp)
        .unwrap();
    let contact = String::from_utf8_lossy(&passing.contacts[0]).into_owned();
    let token = contact.split("hw=").nth(1).unwrap()[..16].to_owned();
    let answer = format!(
        "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK1\r\nFrom: <sip:1000@x>;tag=1\r\nTo: <sip:1000@x>;tag=2\r\n\
         Call-ID: c@1\r\nCSeq: 1 REGISTER\r\nContact: {contact};pub-gruu=\"sip:g\"\r\nService-Route: <sip:core;lr>\r\n\
         P-Associated-URI: <sip:1000@x>\r\nContent-Length: 0\r\n\r\n"
    );
    let answer = Message::parse(answer.as_bytes()).unwrap();
    assert_eq!(
        store.passed(&passing, &answer, Time::from_secs(0)).status,
        200
    );
    let stored = drained(&mut store);
    let mut again = location();
    assert_eq!(restore(&mut again, &stored[0], 2), 1);
    let found = again.contacts("1000", Some(token.as_bytes()));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].flow, nat());
    for (cseq, at) in [(2, 30), (3, 400), (4, 599)] {
        let text = register(cseq);
        let message = Message::parse(text.as_bytes()).unwrap();
        let at = Time::from_secs(at);
        let ask = |store: &mut Location| store.refresh("1000", &message, nat(), at);
        let (before, after) = (ask(&mut store), ask(&mut again));
        assert!(before.is_some());
        assert_eq!(after, before);
        assert!(
            !again.has_changes() && !store.has_changes(),
            "it only refreshes"
        );
    }
    let text = register(5);
    let message = Message::parse(text.as_bytes()).unwrap();
    let at = Time::from_secs(601);
    let due = again.refresh("1000", &message, nat(), at);
    assert_eq!(due, None, "the core is to hear of it");
}

#[test]
fn change_queue_overflow_drains_all_users() {
    let mut store = location();
    let names: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    let contact = "Contact: <sip:x@10.1.1.1>\r\n";
    for name in &names {
        send(&mut store, name, 1, contact, nat(), 0);
    }
    assert!(store.take_lost_changes() > 0);
    let all = drained(&mut store);
    let known: std::collections::BTreeSet<&String> = all.iter().map(|one| &one.user).collect();
    assert_eq!(known.len(), names.len());
    assert_eq!(store.take_lost_changes(), 0);
    send(&mut store, "7", 2, "Contact: *\r\nExpires: 0\r\n", nat(), 1);
    assert_eq!(drained(&mut store).len(), 1);
}

#[test]
fn changes_are_not_tracked_without_a_file() {
    let mut store = Location::new(SETTINGS, 5, Entropy::from_number(1));
    send(
        &mut store,
        "1000",
        1,
        "Contact: <sip:a@10.1.1.1>\r\n",
        nat(),
        0,
    );
    store.expire(Time::from_secs(10_000));
    store.mark_all_changed();
    assert!(!store.has_changes());
}

fn any_contact() -> impl Strategy<Value = StoredContact> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
    let uri = prop_oneof![
        Just(b"sip:a@192.0.2.7;transport=tcp".to_vec()),
        Just(b"sip:a@10.1.1.1".to_vec()),
        bytes()
    ];
    let transport = prop_oneof![
        Just(Transport::Udp),
        Just(Transport::Tcp),
        Just(Transport::Wss)
    ];
    let times = (any::<u32>(), any::<u64>(), any::<u64>());
    let core = proptest::option::of((1u64.., bytes(), any::<u64>()));
    let texts = (uri, bytes(), bytes(), bytes(), bytes());
    // A valid preference is usual: a contact with another one is not restored.
    let q = prop_oneof![9 => 0..=1_000u16, 1 => any::<u16>()];
    (texts, transport, times, core, q).prop_map(|(texts, transport, times, core, q)| {
        StoredContact {
            uri: texts.0,
            params: texts.1,
            instance: texts.2,
            call_id: texts.3,
            path: texts.4,
            transport,
            local: LISTENS.parse().unwrap(),
            remote: "192.0.2.7:5060".parse().unwrap(),
            q,
            cseq: times.0,
            reg_id: times.0 % 2,
            lifetime: times.0,
            until: Time(times.1),
            written: Time(times.2),
            core: core.map(|(token, params, due)| StoredCore {
                token,
                due: Time(due),
                until: Time(due),
                params,
                associated_uris: Vec::new(),
            }),
        }
    })
}

proptest! {
    /// Any content of a file is restored or omitted; restored contacts are drained unchanged, and leave nothing behind
    /// after their expiry.
    #[test]
    fn arbitrary_records_are_restored_or_ignored(contacts in proptest::collection::vec(any_contact(), 0..5)) {
        let mut store = location();
        let stored = StoredRegistration { user: "1000".to_owned(), contacts };
        let taken = restore(&mut store, &stored, 0);
        prop_assert_eq!(taken, store.len());
        drained(&mut store);
        store.mark_all_changed();
        for given in drained(&mut store) {
            prop_assert_eq!(given.contacts.len(), taken);
            for contact in given.contacts {
                let same = |old: &&StoredContact| {
                    StoredContact { written: contact.written, ..(*old).clone() } == contact
                };
                prop_assert!(stored.contacts.iter().find(same).is_some(), "{:?}", contact);
            }
        }
        store.expire(Time(u64::MAX));
        prop_assert!(store.is_empty());
    }
}
