//! The rules of the registrar, one REGISTER at a time, and checks for leaks.

mod outbound;

use super::*;
use engine::{Transport, Worker};
use proptest::prelude::*;
use sip::ListenerId;

const SETTINGS: Registrar = Registrar {
    min_expires_s: 60,
    max_expires_s: 7200,
    default_expires_s: 3600,
    max_contacts: 3,
    max_numbers: 10,
    nat_expires_s: 90,
    flow_timer_s: 120,
    refresh_interval_s: 600,
    registrations_per_s: 0,
};

fn location() -> Location {
    Location::new(SETTINGS, 5, Entropy::from_number(1))
}

fn flow(remote: &str, connection: Option<u64>) -> Flow {
    Flow {
        local: ListenerId(3),
        transport: if connection.is_some() {
            Transport::Tcp
        } else {
            Transport::Udp
        },
        remote: remote.parse().unwrap(),
        connection: connection.map(ConnectionId),
    }
}

/// From the address in [`HERE`]: not behind NAT.
fn here() -> Flow {
    flow("192.0.2.7:5062", None)
}

const HERE: &str = "<sip:1000@192.0.2.7:5062>";

fn text(cseq: u32, headers: &str) -> String {
    format!(
        "REGISTER sip:example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.7:5062;branch=z9hG4bK{cseq}\r\n\
         From: <sip:1000@example.com>;tag=1\r\nTo: <sip:1000@example.com>\r\nCall-ID: c@1\r\nCSeq: {cseq} REGISTER\r\n\
         Max-Forwards: 70\r\n{headers}Content-Length: 0\r\n\r\n"
    )
}

fn send(
    location: &mut Location,
    cseq: u32,
    headers: &str,
    flow: Flow,
    at: u64,
) -> RegisterResponse {
    let text = text(cseq, headers);
    let message = Message::parse(text.as_bytes()).unwrap();
    location.register("1000", &message, InterfaceId(0), flow, Time::from_secs(at))
}

fn headers(answer: &RegisterResponse, id: HeaderId) -> Vec<String> {
    answer
        .headers
        .iter()
        .filter(|(name, _)| *name == id)
        .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        .collect()
}

fn contacts(answer: &RegisterResponse) -> Vec<String> {
    assert_eq!(answer.status, 200, "{answer:?}");
    headers(answer, HeaderId::Contact)
}

fn uris(location: &Location) -> Vec<String> {
    location
        .contacts("1000", None)
        .iter()
        .map(|contact| String::from_utf8_lossy(&contact.uri).into_owned())
        .collect()
}

#[test]
fn register_stores_lists_refreshes_and_removes_contacts() {
    let mut store = location();
    let answer = send(
        &mut store,
        1,
        &format!("Contact: {HERE};q=0.5;+x=\"y\"\r\nExpires: 600\r\n"),
        here(),
        0,
    );
    assert_eq!(
        contacts(&answer),
        ["<sip:1000@192.0.2.7:5062>;q=0.5;+x=\"y\";expires=600"]
    );
    assert!(matches!(
        &answer.notes[..],
        [EventKind::RegistrationStored {
            contacts: 1,
            expires: 600,
            ..
        }]
    ));
    // A query changes nothing.
    let answer = send(&mut store, 2, "", here(), 100);
    assert_eq!(
        contacts(&answer),
        ["<sip:1000@192.0.2.7:5062>;q=0.5;+x=\"y\";expires=500"]
    );
    assert!(answer.notes.is_empty());
    // An equivalent URI in another spelling.
    let other = "Contact: \"A\" <SIP:1000@192.0.2.7:5062;x=y>;expires=700\r\n";
    assert_eq!(contacts(&send(&mut store, 3, other, here(), 100)).len(), 1);
    assert_eq!(store.len(), 1);
    let answer = send(
        &mut store,
        4,
        &format!("Contact: {HERE};expires=0\r\n"),
        here(),
        101,
    );
    assert!(contacts(&answer).is_empty());
    assert!(
        matches!(&answer.notes[..], [EventKind::RegistrationEnded { reason: why, .. }] if why == "removed")
    );
    assert!(store.is_empty() && uris(&store).is_empty());
}

#[test]
fn expires_is_bounded_by_configuration() {
    let mut store = location();
    let given = |store: &mut Location, cseq, headers: &str, flow| {
        let answer = send(store, cseq, headers, flow, 0);
        contacts(&answer)[0]
            .rsplit('=')
            .next()
            .unwrap()
            .parse::<u32>()
            .unwrap()
    };
    assert_eq!(
        given(&mut store, 1, &format!("Contact: {HERE}\r\n"), here()),
        3600,
        "default"
    );
    assert_eq!(
        given(
            &mut store,
            2,
            &format!("Contact: {HERE};expires=99999\r\n"),
            here()
        ),
        7200,
        "cut"
    );
    assert_eq!(
        given(
            &mut store,
            3,
            &format!("Contact: {HERE};expires=soon\r\nExpires: 100\r\n"),
            here()
        ),
        100
    );
    let answer = send(
        &mut store,
        4,
        &format!("Contact: {HERE};expires=59\r\n"),
        here(),
        0,
    );
    assert_eq!(
        (answer.status, headers(&answer, HeaderId::MinExpires)),
        (423, vec!["60".to_owned()])
    );
    // Behind NAT the NAT binding must stay open; over TCP that is not necessary.
    let nat = flow("203.0.113.5:1024", None);
    assert_eq!(
        given(
            &mut store,
            5,
            &format!("Contact: {HERE};expires=3600\r\n"),
            nat
        ),
        90
    );
    let tcp = flow("203.0.113.5:1024", Some(9));
    assert_eq!(
        given(
            &mut store,
            6,
            &format!("Contact: {HERE};expires=3600\r\n"),
            tcp
        ),
        3600
    );
}

#[test]
fn contacts_keep_the_flow_of_their_register() {
    let mut store = location();
    let nat = flow("203.0.113.5:1024", None);
    send(&mut store, 1, "Contact: <sip:1000@10.0.0.5>\r\n", nat, 0);
    let contact = &store.contacts("1000", None)[0];
    assert_eq!(
        (contact.flow, &contact.uri[..]),
        (nat, &b"sip:1000@10.0.0.5"[..])
    );
}

#[test]
fn wildcard_contact_requires_expires_zero_and_no_other_contact() {
    let mut store = location();
    send(
        &mut store,
        1,
        &format!("Contact: {HERE}, <sip:1000@192.0.2.8>\r\n"),
        here(),
        0,
    );
    assert_eq!(store.len(), 2);
    for bad in [
        "Contact: *\r\n",
        "Contact: *\r\nExpires: 60\r\n",
        "Contact: *, <sip:a@b>\r\nExpires: 0\r\n",
    ] {
        assert_eq!(send(&mut store, 2, bad, here(), 0).status, 400, "{bad}");
        assert_eq!(store.len(), 2);
    }
    let answer = send(&mut store, 2, "Contact: *\r\nExpires: 0\r\n", here(), 0);
    assert!(contacts(&answer).is_empty() && store.is_empty());
}

#[test]
fn register_with_old_cseq_is_rejected() {
    let mut store = location();
    send(&mut store, 5, &format!("Contact: {HERE}\r\n"), here(), 0);
    for (cseq, headers) in [
        (5, format!("Contact: {HERE};expires=0\r\n")),
        (4, "Contact: *\r\nExpires: 0\r\n".to_owned()),
        (4, format!("Contact: <sip:new@192.0.2.7>, {HERE}\r\n")),
    ] {
        assert_eq!(
            send(&mut store, cseq, &headers, here(), 1).status,
            500,
            "{headers}"
        );
        assert_eq!(uris(&store), ["sip:1000@192.0.2.7:5062"]);
    }
    // Another Call-ID has its own CSeq (the phone was restarted).
    let again = text(1, &format!("Contact: {HERE};expires=0\r\n")).replace("c@1", "c@2");
    let message = Message::parse(again.as_bytes()).unwrap();
    let answer = store.register("1000", &message, InterfaceId(0), here(), Time::from_secs(1));
    assert!(contacts(&answer).is_empty());
}

#[test]
fn invalid_registers_change_no_binding() {
    let mut store = location();
    for (headers, status) in [
        ("Contact: <mailto:a@b>\r\n", 400),
        ("Contact: <sip:a@b\r\n", 400),
        ("Contact: <sip:a@b>, <x y>\r\n", 400),
        ("Require: teleport\r\nContact: <sip:a@b>\r\n", 420),
        ("Path: <sip:p;lr>\r\nContact: <sip:a@b>\r\n", 421),
    ] {
        assert_eq!(
            send(&mut store, 1, headers, here(), 0).status,
            status,
            "{headers}"
        );
        assert!(store.is_empty());
    }
    let answer = send(&mut store, 1, "Require: teleport, path, fly\r\n", here(), 0);
    assert_eq!(headers(&answer, HeaderId::Unsupported), ["teleport, fly"]);
    let many = format!("Contact: {}\r\n", vec!["<sip:a@b>"; 40].join(","));
    assert_eq!(send(&mut store, 1, &many, here(), 0).status, 400);
    let long = format!("Contact: <sip:{}@b>\r\n", "a".repeat(5_000));
    assert_eq!(send(&mut store, 1, &long, here(), 0).status, 400);
}

#[test]
fn path_is_stored_returned_and_used() {
    let mut store = location();
    let answer = send(
        &mut store,
        1,
        "Supported: path\r\nPath: <sip:p2;lr>,<sip:p1;lr>\r\nContact: <sip:1000@10.0.0.5>\r\n",
        here(),
        0,
    );
    assert_eq!(
        headers(&answer, HeaderId::Path),
        ["<sip:p2;lr>,<sip:p1;lr>"]
    );
    let path: Vec<&[u8]> = vec![b"<sip:p2;lr>", b"<sip:p1;lr>"];
    assert_eq!(
        store.contacts("1000", None)[0]
            .path
            .iter()
            .map(|p| &**p)
            .collect::<Vec<_>>(),
        path
    );
}

#[test]
fn contacts_are_limited_per_user_and_in_total() {
    let mut store = location();
    let three = "Contact: <sip:1@h>, <sip:2@h>, <sip:3@h>\r\n";
    assert_eq!(contacts(&send(&mut store, 1, three, here(), 0)).len(), 3);
    let answer = send(&mut store, 2, "Contact: <sip:4@h>\r\n", here(), 0);
    assert_eq!(answer.status, 503);
    assert!(!headers(&answer, HeaderId::RetryAfter).is_empty());
    let swap = "Contact: <sip:4@h>, <sip:1@h>;expires=0\r\n";
    assert_eq!(contacts(&send(&mut store, 3, swap, here(), 0)).len(), 3);
    let text = text(1, three);
    let message = Message::parse(text.as_bytes()).unwrap();
    let other = |store: &mut Location, user: &str| {
        store
            .register(user, &message, InterfaceId(0), here(), Time::ZERO)
            .status
    };
    assert_eq!(
        other(&mut store, "1001"),
        503,
        "three more than the two that are left"
    );
    assert_eq!(store.len(), 3);
    // Removing and adding a contact in one request does not bypass the limit.
    let trick = "Contact: <sip:2@h>;expires=0, <sip:2@h>, <sip:5@h>\r\n";
    assert_eq!(contacts(&send(&mut store, 4, trick, here(), 0)).len(), 3);
}

#[test]
fn contact_of_a_known_instance_is_replaced() {
    let mut store = location();
    for (cseq, port) in [(1, 1111), (2, 2222)] {
        let contact = format!("Contact: <sip:1000@10.0.0.5:{port}>;+sip.instance=\"<urn:x>\"\r\n");
        assert_eq!(
            contacts(&send(&mut store, cseq, &contact, here(), 0)).len(),
            1
        );
    }
    assert_eq!(uris(&store), ["sip:1000@10.0.0.5:2222"]);
}

#[test]
fn contacts_are_ordered_by_q_then_newest() {
    let mut store = location();
    send(&mut store, 1, "Contact: <sip:a@h>;q=0.3\r\n", here(), 0);
    send(&mut store, 2, "Contact: <sip:b@h>;q=0.9\r\n", here(), 1);
    send(&mut store, 3, "Contact: <sip:c@h>;q=0.9\r\n", here(), 2);
    assert_eq!(uris(&store), ["sip:c@h", "sip:b@h", "sip:a@h"]);
}

/// Lists are made on a packet thread: a page costs its users only, with any number of registrations.
#[test]
fn limit_of_contacts_is_that_of_all_partitions_together() {
    let mut entropy = Entropy::from_number(1);
    let worker = Worker {
        number: 0,
        count: 2,
        key: HashKey::new(&mut entropy),
    };
    let registry = SharedRegistry::new(SETTINGS, 20, worker, &mut entropy);
    let mut registry = Registry::Common(registry);
    let register = |registry: &mut Registry, user: &str, cseq, expires| {
        let text = text(cseq, &format!("Contact: {HERE};expires={expires}\r\n"));
        let message = Message::parse(text.as_bytes()).unwrap();
        let answer = registry.register(user, &message, InterfaceId(0), here(), Time::ZERO);
        answer.status
    };
    for user in 0..20 {
        assert_eq!(register(&mut registry, &format!("u{user}"), 1, 600), 200);
    }
    assert_eq!(register(&mut registry, "more", 1, 600), 503);
    assert_eq!(registry.len(), 20);
    // A removal in one partition makes room in each.
    assert_eq!(register(&mut registry, "u3", 2, 0), 200);
    assert_eq!(register(&mut registry, "more", 2, 600), 200);
    assert_eq!(register(&mut registry, "u3", 3, 600), 503);
    registry.reload(SETTINGS, 21);
    assert_eq!(register(&mut registry, "u3", 4, 600), 200);
    assert_eq!(register(&mut registry, "u4", 2, 600), 200, "a refresh");
    assert_eq!(registry.len(), 21);
}

#[test]
fn long_user_is_refused() {
    let mut store = location();
    let text = text(1, &format!("Contact: {HERE}\r\n"));
    let message = Message::parse(text.as_bytes()).unwrap();
    for (length, status) in [(257, 400), (256, 200)] {
        let user = "1".repeat(length);
        let pass = store.pass(&user, &message, InterfaceId(0), here(), "h", Transport::Udp);
        assert_eq!(pass.err().map_or(200, |answer| answer.status), status);
        let answer = store.register(&user, &message, InterfaceId(0), here(), Time::ZERO);
        assert_eq!(answer.status, status);
    }
}

#[test]
fn page_of_a_list_has_views_of_its_users_only() {
    const USERS: usize = 10_000;
    let mut entropy = Entropy::from_number(1);
    let worker = Worker {
        number: 1,
        count: 4,
        key: HashKey::new(&mut entropy),
    };
    let registry = SharedRegistry::new(SETTINGS, 4 * USERS, worker, &mut entropy);
    let mut registry = Registry::Common(registry);
    let text = text(1, &format!("Contact: {HERE}\r\n"));
    let message = Message::parse(text.as_bytes()).unwrap();
    for user in 0..USERS {
        let user = format!("{user:05}");
        let answer = registry.register(&user, &message, InterfaceId(0), here(), Time::ZERO);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let before = VIEWS.get();
    let mut all: Vec<String> = Vec::new();
    loop {
        let page = registry.page(all.last().map(String::as_str), 999);
        assert!(page.len() <= 999);
        if page.is_empty() {
            break;
        }
        all.extend(page.into_iter().map(|view| view.user));
    }
    let expected: Vec<String> = (0..USERS).map(|user| format!("{user:05}")).collect();
    assert!(all == expected, "{} users", all.len());
    assert_eq!(VIEWS.get() - before, USERS);
    assert_eq!(
        registry.view("01001").map(|view| view.contacts.len()),
        Some(1)
    );
    assert_eq!(registry.view("none"), None);
    assert_eq!(VIEWS.get() - before, USERS + 2);
    registry.remove_user("00000");
    assert_eq!(registry.page(None, 1)[0].user, "00001");
    assert_eq!(registry.page(Some("09999"), 1), []);
}

#[test]
fn bindings_expire_at_their_deadline() {
    let mut store = location();
    send(
        &mut store,
        1,
        "Contact: <sip:a@h>;expires=100, <sip:b@h>;expires=200\r\n",
        flow("192.0.2.7:9", Some(4)),
        0,
    );
    assert!(store.expire(Time::from_secs(99)).is_empty());
    assert_eq!(store.len(), 2);
    assert!(store.next_deadline().is_some());
    assert!(
        store.expire(Time::from_secs(101)).is_empty(),
        "the other one stands"
    );
    assert_eq!(uris(&store), ["sip:b@h"]);
    let notes = store.expire(Time::from_secs(201));
    assert!(
        matches!(&notes[..], [EventKind::RegistrationEnded { reason: why, .. }] if why == "expired")
    );
    assert!(store.is_empty() && store.next_deadline().is_none());
    assert_eq!((store.by_user.len(), store.by_connection.len()), (0, 0));
}

fn core_answer(request_contacts: &[Vec<u8>], params: &str) -> String {
    let contacts: Vec<String> = request_contacts
        .iter()
        .map(|c| format!("Contact: {}{params}\r\n", String::from_utf8_lossy(c)))
        .collect();
    format!(
        "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK1\r\nFrom: <sip:1000@x>;tag=1\r\nTo: <sip:1000@x>;tag=2\r\n\
         Call-ID: c@1\r\nCSeq: 1 REGISTER\r\nContact: <sip:1000@172.16.0.1>;expires=50\r\n{}Content-Length: 0\r\n\r\n",
        contacts.concat()
    )
}

#[test]
fn forwarded_registrations_use_the_expiry_and_token_of_the_core() {
    let mut store = location();
    let phone = flow("203.0.113.5:1024", None);
    let pass = |store: &mut Location, cseq, headers: &str| {
        let text = text(cseq, headers);
        let message = Message::parse(text.as_bytes()).unwrap();
        store
            .pass(
                "1000",
                &message,
                InterfaceId(0),
                phone,
                "10.0.0.1:5060",
                Transport::Udp,
            )
            .map_err(|answer| answer.status)
    };
    let passing = pass(
        &mut store,
        1,
        "Contact: <sip:1000@10.1.1.1>;+sip.instance=\"<urn:x>\";reg-id=1;expires=3600\r\n",
    )
    .unwrap();
    let sent = String::from_utf8_lossy(&passing.contacts[0]).into_owned();
    assert!(
        sent.starts_with("<sip:1000@10.0.0.1:5060;hw=")
            && sent.ends_with(">;+sip.instance=\"<urn:x>\";expires=3600"),
        "{sent}"
    );
    assert!(store.is_empty(), "nothing is stored before the core agreed");
    let answer = core_answer(
        &[sent
            .split('>')
            .next()
            .unwrap()
            .as_bytes()
            .iter()
            .copied()
            .chain(*b">")
            .collect()],
        ";expires=120;pub-gruu=\"sip:g\"",
    );
    let taken = store.passed(
        &passing,
        &Message::parse(answer.as_bytes()).unwrap(),
        Time::ZERO,
    );
    assert_eq!(
        contacts(&taken),
        ["<sip:1000@10.1.1.1>;pub-gruu=\"sip:g\";expires=90"],
        "others stay hidden; behind NAT it lasts no longer than its pinhole"
    );
    let token = sent
        .split("hw=")
        .nth(1)
        .unwrap()
        .split('>')
        .next()
        .unwrap()
        .to_owned();
    let found = store.contacts("whoever", Some(token.as_bytes()));
    assert_eq!(
        (found.len(), found[0].flow, &found[0].uri[..]),
        (1, phone, &b"sip:1000@10.1.1.1"[..])
    );
    assert_eq!(uris(&store), ["sip:1000@10.1.1.1"], "found by its user too");
    assert!(store.contacts("1000", Some(b"zz")).is_empty());
    // A refresh keeps the token; a removal deletes it.
    let refresh = pass(
        &mut store,
        2,
        "Supported: path, Outbound, gruu\r\nContact: <sip:1000@10.1.1.1>;+sip.instance=\"<urn:x>\"\r\n",
    )
    .unwrap();
    assert_eq!(refresh.call_id, passing.call_id);
    assert!(
        !refresh.call_id.contains("c@1"),
        "the phone's own may name its address"
    );
    assert_eq!(refresh.supported, b"path, gruu");
    assert!(String::from_utf8_lossy(&refresh.contacts[0]).contains(&token));
    assert_eq!(
        pass(&mut store, 1, "Contact: <sip:1000@10.1.1.1>\r\n").unwrap_err(),
        500,
        "CSeq"
    );
    let gone = pass(&mut store, 3, "Contact: *\r\nExpires: 0\r\n").unwrap();
    assert_eq!(gone.contacts, [b"*".to_vec()]);
    let taken = store.passed(
        &gone,
        &Message::parse(core_answer(&[], "").as_bytes()).unwrap(),
        Time::ZERO,
    );
    assert!(contacts(&taken).is_empty() && store.is_empty());
    assert_eq!(store.by_token.len(), 0);
}

/// A phone behind NAT that the core has accepted, and queries of its state.
struct Cached {
    store: Location,
    phone: Flow,
}

impl Cached {
    fn new(granted: u32) -> Cached {
        let mut cached = Cached {
            store: location(),
            phone: flow("203.0.113.5:1024", None),
        };
        cached.taken(1, granted, Time::ZERO);
        cached
    }

    /// A REGISTER that is forwarded to the core, which accepts it.
    fn taken(&mut self, cseq: u32, granted: u32, now: Time) -> RegisterResponse {
        let text = text(cseq, PHONE);
        let message = Message::parse(text.as_bytes()).unwrap();
        let passing = self
            .store
            .pass(
                "1000",
                &message,
                InterfaceId(0),
                self.phone,
                "10.0.0.1",
                Transport::Udp,
            )
            .unwrap();
        let contact = String::from_utf8_lossy(&passing.contacts[0]).into_owned();
        assert!(contact.ends_with(";expires=1200"), "{contact}");
        let contact = contact.split_inclusive('>').next().unwrap().as_bytes();
        let answer = core_answer(
            &[contact.to_vec()],
            &format!(
                ";expires={granted};received=\"sip:10.0.0.1:5060\";pub-gruu=\"sip:g\"\r\nService-Route: <sip:core;lr>"
            ),
        );
        let answer = Message::parse(answer.as_bytes()).unwrap();
        self.store.passed(&passing, &answer, now)
    }

    fn again(&mut self, cseq: u32, headers: &str, at: u64) -> Option<RegisterResponse> {
        let text = text(cseq, headers);
        let message = Message::parse(text.as_bytes()).unwrap();
        let (at, phone) = (Time::from_secs(at), self.phone);
        self.store.refresh("1000", &message, phone, at)
    }

    fn away(&mut self, cseq: u32, headers: &str, at: u64) -> Option<RegisterResponse> {
        let text = text(cseq, headers);
        let message = Message::parse(text.as_bytes()).unwrap();
        let (at, phone) = (Time::from_secs(at), self.phone);
        self.store.survive("1000", &message, phone, at)
    }
}

const PHONE: &str = "Contact: <sip:1000@10.1.1.1>;expires=90\r\n";

#[test]
fn repeated_registers_are_answered_until_the_core_refresh() {
    let mut cached = Cached::new(1200);
    let answer = cached.again(2, PHONE, 80).unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(
        contacts(&answer),
        ["<sip:1000@10.1.1.1>;pub-gruu=\"sip:g\";expires=90"],
        "for the whole time again, as the core gave it"
    );
    assert_eq!(headers(&answer, HeaderId::ServiceRoute), [""; 0]);
    assert!(answer.notes.is_empty(), "nothing happened");
    // Its lifetime exceeds that of the first response.
    assert!(cached.store.expire(Time::from_secs(100)).is_empty());
    assert!(cached.again(3, PHONE, 165).is_some());
    assert!(cached.again(4, PHONE, 250).is_some());
    let mut at = 250;
    for cseq in 5.. {
        at += 80;
        let Some(_) = cached.again(cseq, PHONE, at) else {
            break;
        };
    }
    assert_eq!(at, 650, "the first one behind the ten minutes goes on");
    assert_eq!(cached.taken(20, 1200, Time::from_secs(650)).status, 200);
    assert!(cached.again(21, PHONE, 700).is_some());
    // The core stays unreachable: the registration expires here, regardless of the expiry at the core.
    assert_eq!(cached.store.expire(Time::from_secs(791)).len(), 1);
    assert!(cached.again(22, PHONE, 792).is_none());
    assert!(cached.away(22, PHONE, 792).is_none());
}

#[test]
fn changed_registers_are_forwarded_to_the_core() {
    let mut cached = Cached::new(1200);
    for (what, headers) in [
        ("a question", ""),
        ("a removal", "Contact: <sip:1000@10.1.1.1>;expires=0\r\n"),
        ("the end of all", "Contact: *\r\nExpires: 0\r\n"),
        ("another contact", "Contact: <sip:1000@10.1.1.2>\r\n"),
        ("another port", "Contact: <sip:1000@10.1.1.1:5062>\r\n"),
        (
            "one more",
            "Contact: <sip:1000@10.1.1.1>, <sip:1000@10.1.1.2>\r\n",
        ),
        ("a preference", "Contact: <sip:1000@10.1.1.1>;q=0.5\r\n"),
        ("a capability", "Contact: <sip:1000@10.1.1.1>;video\r\n"),
        (
            "a proxy",
            "Supported: path\r\nPath: <sip:p;lr>\r\nContact: <sip:1000@10.1.1.1>\r\n",
        ),
        (
            "unsupported option",
            "Require: x\r\nContact: <sip:1000@10.1.1.1>\r\n",
        ),
    ] {
        assert!(cached.again(2, headers, 10).is_none(), "{what}");
        assert!(cached.away(2, headers, 10).is_none(), "{what}, core away");
    }
    assert!(cached.again(0, PHONE, 10).is_none(), "out of order");
    let home = cached.phone;
    for elsewhere in ["203.0.113.5:1025", "203.0.113.6:1024"] {
        cached.phone = flow(elsewhere, None);
        assert!(cached.again(2, PHONE, 10).is_none(), "{elsewhere}");
        assert!(cached.away(2, PHONE, 10).is_none(), "{elsewhere}");
    }
    cached.phone = home;
    let first = cached.again(2, PHONE, 10);
    assert!(first.is_some());
    assert_eq!(cached.again(2, PHONE, 10), first, "a repetition");
    cached.store.settings.refresh_interval_s = 0;
    assert!(cached.again(3, PHONE, 20).is_none(), "turned off");
    assert!(cached.away(3, PHONE, 20).is_none(), "turned off");
}

#[test]
fn local_bindings_are_never_answered_for_the_core() {
    let mut store = location();
    let answer = send(&mut store, 1, &format!("Contact: {HERE}\r\n"), here(), 0);
    assert_eq!(answer.status, 200);
    let text = text(2, &format!("Contact: {HERE}\r\n"));
    let message = Message::parse(text.as_bytes()).unwrap();
    let now = Time::from_secs(1);
    assert!(store.refresh("1000", &message, here(), now).is_none());
    assert!(store.survive("1000", &message, here(), now).is_none());
}

/// The core grants less than requested.
#[test]
fn local_answers_never_exceed_the_expiry_of_the_core() {
    let mut cached = Cached::new(100);
    let answer = cached.again(2, PHONE, 40).unwrap();
    assert_eq!(
        contacts(&answer),
        ["<sip:1000@10.1.1.1>;pub-gruu=\"sip:g\";expires=60"]
    );
    assert!(cached.again(3, PHONE, 50).is_none(), "half of it is over");
}

#[test]
fn registrations_survive_an_unreachable_core() {
    let mut cached = Cached::new(100);
    assert!(cached.again(2, PHONE, 60).is_none(), "due");
    let mut at = 60;
    for cseq in 2..40 {
        let answer = cached.away(cseq * 2, PHONE, at).unwrap();
        assert_eq!((answer.status, contacts(&answer).len()), (200, 1));
        // For a while, the core gets no further requests.
        assert!(cached.again(cseq * 2 + 1, PHONE, at + 55).is_some());
        at += 61;
        assert!(cached.store.expire(Time::from_secs(at)).is_empty());
        assert!(cached.again(cseq * 2 + 2, PHONE, at).is_none(), "try again");
    }
    assert_eq!(cached.taken(100, 1200, Time::from_secs(at)).status, 200);
    assert!(cached.again(101, PHONE, at + 80).is_some());
}

#[test]
fn bindings_are_compact() {
    // A contact, its entry in the record, the record's entry in the table and its timer; the texts are additional.
    assert!(size_of::<Binding>() <= 152, "{}", size_of::<Binding>());
    assert!(
        size_of::<UserBindings>() <= 192,
        "{}",
        size_of::<UserBindings>()
    );
}

mod authentication {
    use super::super::*;
    use config::{Config, parse};
    use protect::digest::{Challenge, ClientSession, Secret};

    fn config() -> Config {
        let text = "[[interface]]\nname='a'\nlisten='udp:192.0.2.1'\n[[user]]\nname='1000'\npassword='secret'\n[realm]\nalgorithms=['SHA-256','MD5']\n";
        parse(text, "t").unwrap()
    }

    fn request(method: &str, user: &str, extra: &str) -> String {
        format!(
            "{method} sip:x SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:{user}@x>;tag=1\r\n\
             To: <sip:{user}@x>\r\nCall-ID: c\r\nCSeq: 1 {method}\r\nMax-Forwards: 70\r\n{extra}Content-Length: 0\r\n\r\n"
        )
    }

    fn check(authority: &mut Authority, text: &str) -> Authentication {
        authority.check(
            &config(),
            &Message::parse(text.as_bytes()).unwrap(),
            Claim {
                source: "192.0.2.9:5060".parse().unwrap(),
                registered: false,
                registered_host: false,
            },
            Time::from_secs(1),
        )
    }

    /// The credentials of `name` for a challenge.
    fn answer(asked: &Authentication, name: &str, password: &str, method: &str) -> String {
        let Authentication::Required { headers, .. } = asked else {
            panic!("no challenge: {asked:?}");
        };
        let credentials = wire::sip::Credentials::parse(&headers[0].1).unwrap();
        let challenge = Challenge::read(&credentials).unwrap();
        let secret = Secret::Password(password.as_bytes().to_vec());
        let mut session = ClientSession::new(
            challenge,
            name.as_bytes(),
            &secret,
            &mut Entropy::from_number(5),
        )
        .unwrap();
        let mut value = Vec::new();
        session.write_credentials(method.as_bytes(), b"sip:x", b"", &mut value);
        String::from_utf8(value).unwrap()
    }

    #[test]
    fn only_valid_digest_credentials_authenticate() {
        let mut authority = Authority::new(&config(), Entropy::from_number(2));
        let asked = check(&mut authority, &request("REGISTER", "1000", ""));
        assert!(
            matches!(&asked, Authentication::Required { status: 401, headers } if headers.len() == 2)
        );
        let good = answer(&asked, "1000", "secret", "REGISTER");
        let with = |method: &str, user: &str, name: &str, value: &str| {
            request(method, user, &format!("{name}: {value}\r\n"))
        };
        let register = |user: &str, value: &str| with("REGISTER", user, "Authorization", value);
        assert_eq!(
            check(&mut authority, &register("1000", &good)),
            Authentication::Authenticated("1000".into())
        );
        // The same credentials again are a replay.
        assert!(
            matches!(check(&mut authority, &register("1000", &good)), Authentication::Required { headers, .. }
            if headers[0].1.ends_with(b"stale=true"))
        );
        for (name, password) in [("1000", "wrong"), ("1001", "secret")] {
            let asked = check(&mut authority, &request("REGISTER", "1000", ""));
            let bad = answer(&asked, name, password, "REGISTER");
            assert!(matches!(
                check(&mut authority, &register("1000", &bad)),
                Authentication::Failed { status: 401, .. }
            ));
        }
        let asked = check(&mut authority, &request("REGISTER", "1000", ""));
        let good = answer(&asked, "1000", "secret", "REGISTER");
        assert!(
            matches!(
                check(&mut authority, &register("1001", &good)),
                Authentication::Failed { status: 403, .. }
            ),
            "a proof of another user"
        );
        // Credentials of a request to one target, used for another (RFC 7616 section 3.4.6).
        let asked = check(&mut authority, &request("REGISTER", "1000", ""));
        let good = register("1000", &answer(&asked, "1000", "secret", "REGISTER"));
        for (target, taken) in [
            ("sip:dear@x", false),
            ("sip:y", false),
            ("sip:x:5070", false),
            ("sips:x", false),
            ("sip:X:5060;transport=udp", true),
        ] {
            let elsewhere = good.replace("REGISTER sip:x ", &format!("REGISTER {target} "));
            match check(&mut authority, &elsewhere) {
                Authentication::Failed { status: 400, .. } => assert!(!taken, "{target}"),
                Authentication::Authenticated(_) => assert!(taken, "{target}"),
                other => panic!("{target}: {other:?}"),
            }
        }
        let asked = check(&mut authority, &request("INVITE", "1000", ""));
        assert!(matches!(
            &asked,
            Authentication::Required { status: 407, .. }
        ));
        let good = answer(&asked, "1000", "secret", "INVITE");
        let invite = with("INVITE", "1000", "Proxy-Authorization", &good);
        assert_eq!(
            check(&mut authority, &invite),
            Authentication::Authenticated("1000".into())
        );
    }
}

/// Possible requests of a phone, for property tests.
fn any_register() -> impl Strategy<Value = (usize, u32, String, Option<u64>, u64)> {
    let contact = (0..6u8, prop_oneof![Just(0u32), 60..300u32], 0..3u8, 0..3u32).prop_map(
        |(host, expires, instance, reg)| {
            let mut text = format!("<sip:u@h{host}>;expires={expires}");
            if instance > 0 {
                text.push_str(&format!(";+sip.instance=\"<urn:{instance}>\""));
            }
            if reg > 0 {
                text.push_str(&format!(";reg-id={reg}"));
            }
            text
        },
    );
    let headers = prop_oneof![
        8 => proptest::collection::vec(contact, 0..4)
            .prop_map(|list| format!("Supported: outbound, path\r\nContact: {}\r\n", list.join(","))),
        1 => Just("Contact: *\r\nExpires: 0\r\n".to_owned()),
    ];
    (
        0..3usize,
        1..50u32,
        headers,
        proptest::option::of(0..4u64),
        0..400u64,
    )
}

proptest! {
    #[test]
    fn tables_are_empty_after_all_bindings_expire(steps in proptest::collection::vec(any_register(), 1..60)) {
        let mut store = location();
        let mut now = 0;
        for (user, cseq, headers, connection, wait) in steps {
            now += wait;
            store.expire(Time::from_secs(now));
            let text = text(cseq, &headers);
            let message = Message::parse(text.as_bytes()).unwrap();
            let user = ["1000", "1001", "1002"][user];
            store.register(user, &message, InterfaceId(0), flow("192.0.2.7:9", connection), Time::from_secs(now));
            let counted: usize = store.records.iter().map(|(_, record)| record.bindings.len()).sum();
            prop_assert_eq!(counted, store.len());
            prop_assert!(store.len() <= 5);
            prop_assert!(store.records.iter().all(|(_, r)| !r.bindings.is_empty() && r.bindings.len() <= 3 && r.timer.is_some()));
            prop_assert_eq!(store.by_user.len(), store.records.len());
            prop_assert_eq!(store.by_name.len(), store.records.len());
            prop_assert_eq!(store.timers.len(), store.records.len());
            let mut connections: Vec<ConnectionId> = store.records.iter()
                .flat_map(|(_, r)| r.bindings.iter().filter_map(|b| b.flow.connection)).collect();
            connections.sort();
            connections.dedup();
            prop_assert_eq!(store.by_connection.len(), connections.len());
        }
        store.expire(Time::from_secs(now + 10_000));
        prop_assert!(store.is_empty());
        prop_assert_eq!((store.records.len(), store.by_user.len(), store.by_name.len(), store.by_connection.len(), store.timers.len()), (0, 0, 0, 0, 0));
    }
}
