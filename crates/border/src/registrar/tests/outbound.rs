//! Flows of RFC 5626.

use super::*;

#[test]
fn outbound_flows_of_one_instance_coexist() {
    let mut store = location();
    let contact = |reg: u32| {
        format!(
            "Supported: path, outbound\r\nContact: {HERE};+sip.instance=\"<urn:x>\";reg-id={reg}\r\n"
        )
    };
    let answer = send(
        &mut store,
        1,
        &contact(1),
        flow("203.0.113.5:1", Some(1)),
        0,
    );
    assert_eq!(headers(&answer, HeaderId::Require), ["outbound"]);
    assert_eq!(headers(&answer, HeaderId::FlowTimer), ["120"]);
    assert!(contacts(&answer)[0].contains("reg-id=1"));
    let answer = send(
        &mut store,
        2,
        &contact(2),
        flow("203.0.113.5:2", Some(2)),
        1,
    );
    assert_eq!(contacts(&answer).len(), 2);
    // The newest flow is used; if it fails, the other.
    let connection = |store: &Location| {
        store
            .contacts("1000", None)
            .iter()
            .map(|c| c.flow.connection)
            .collect::<Vec<_>>()
    };
    assert_eq!(connection(&store), [Some(ConnectionId(2))]);
    assert!(
        store.flow_failed(ConnectionId(2)).is_empty(),
        "one contact is left"
    );
    assert_eq!(connection(&store), [Some(ConnectionId(1))]);
    // The same flow again, from another port: replaced.
    let answer = send(
        &mut store,
        3,
        &contact(1),
        flow("203.0.113.5:3", Some(3)),
        2,
    );
    assert_eq!(contacts(&answer).len(), 1);
    assert!(
        store.flow_failed(ConnectionId(1)).is_empty(),
        "no longer its connection"
    );
    let notes = store.flow_failed(ConnectionId(3));
    assert!(
        matches!(&notes[..], [EventKind::RegistrationEnded { reason: why, .. }] if why == "flow failed")
    );
    assert!(store.is_empty());
    assert_eq!(store.by_connection.len(), 0);
}

/// RFC 5626 section 6: the contact of a flow that is removed has the same URI as the others.
#[test]
fn removed_outbound_flow_leaves_the_others() {
    let mut store = location();
    let contact = |reg: &str, expires: u32| {
        format!("Contact: {HERE};+sip.instance=\"<urn:x>\"{reg};expires={expires}\r\n")
    };
    let supported = "Supported: path, outbound\r\n";
    for (cseq, reg) in [(1, ";reg-id=1"), (2, ";reg-id=2")] {
        let port = format!("203.0.113.5:{cseq}");
        let headers = supported.to_owned() + &contact(reg, 600);
        send(
            &mut store,
            cseq,
            &headers,
            flow(&port, Some(u64::from(cseq))),
            0,
        );
    }
    let from = flow("203.0.113.5:2", Some(2));
    // A flow that does not exist.
    let answer = send(&mut store, 3, &contact(";reg-id=3", 0), from, 1);
    assert_eq!(contacts(&answer).len(), 2);
    // Removal needs no support of outbound; several contacts may be removed at once.
    let answer = send(&mut store, 4, &contact(";reg-id=2", 0), from, 2);
    let left = contacts(&answer);
    assert!(left.len() == 1 && left[0].contains("reg-id=1"), "{left:?}");
    assert_eq!(headers(&answer, HeaderId::Require), [""; 0]);
    let headers = supported.to_owned() + &contact(";reg-id=2", 600);
    send(&mut store, 5, &headers, from, 3);
    let both = supported.to_owned() + &contact(";reg-id=1", 0) + &contact(";reg-id=2", 0);
    assert!(contacts(&send(&mut store, 6, &both, from, 4)).is_empty());
    // A binding that was stored without reg-id is found by its URI.
    send(&mut store, 7, &contact(";reg-id=1", 600), from, 5);
    let answer = send(
        &mut store,
        8,
        &(supported.to_owned() + &contact(";reg-id=1", 0)),
        from,
        6,
    );
    assert!(contacts(&answer).is_empty());
    assert!(store.is_empty());
}

#[test]
fn outbound_requires_ob_in_the_first_path() {
    let mut store = location();
    let register = |path: &str| {
        text(1, &format!("{path}Supported: path, outbound\r\nContact: {HERE};+sip.instance=\"<urn:x>\";reg-id=1\r\n"))
            .replacen("Via:", "Via: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKp\r\nVia:", 1)
    };
    for (path, status) in [
        ("", 439),
        ("Path: <sip:edge;lr>\r\n", 439),
        ("Path: <sip:far;lr;ob>, <sip:edge;lr>\r\n", 439),
        ("Path: <sip:edge;lr;ob>\r\n", 200),
    ] {
        let text = register(path);
        let message = Message::parse(text.as_bytes()).unwrap();
        let answer = store.register("1000", &message, InterfaceId(0), here(), Time::ZERO);
        assert_eq!(answer.status, status, "{path}");
        assert!(
            headers(&answer, HeaderId::FlowTimer).is_empty(),
            "the edge's matter"
        );
    }
    let two = format!(
        "Supported: outbound\r\nContact: {HERE};+sip.instance=\"<urn:x>\";reg-id=1, <sip:b@h>;+sip.instance=\"<urn:x>\";reg-id=2\r\n"
    );
    assert_eq!(send(&mut store, 9, &two, here(), 0).status, 400);
    // Without `outbound`, reg-id is ignored.
    let plain = format!("Contact: {HERE};+sip.instance=\"<urn:y>\";reg-id=1\r\n");
    assert!(headers(&send(&mut store, 10, &plain, here(), 0), HeaderId::Require).is_empty());
}

/// The default suits connections; NAT bindings of UDP end earlier.
#[test]
fn flow_timer_over_udp_is_bounded_by_the_nat_binding() {
    let contact = "Supported: path, outbound\r\nContact: <sip:1000@10.1.1.1>;+sip.instance=\"<urn:x>\";reg-id=1\r\n";
    for (nat_expires_s, connection, expected) in
        [(90, None, "90"), (0, None, "120"), (90, Some(1), "120")]
    {
        let mut store = location();
        store.settings.nat_expires_s = nat_expires_s;
        let answer = send(
            &mut store,
            1,
            contact,
            flow("203.0.113.5:1024", connection),
            0,
        );
        assert_eq!(headers(&answer, HeaderId::Require), ["outbound"]);
        assert_eq!(headers(&answer, HeaderId::FlowTimer), [expected]);
        assert!(contacts(&answer)[0].ends_with(";expires=3600"));
    }
}

/// The core grants no outbound, so that the phone sends no keep-alives (RFC 5626 section 4.4).
#[test]
fn forwarded_outbound_registrations_last_as_long_as_the_nat_binding() {
    let mut store = location();
    let phone = flow("203.0.113.5:1024", None);
    let register = |cseq| {
        let headers = "Supported: path, outbound\r\nContact: <sip:1000@10.1.1.1>;+sip.instance=\"<urn:x>\";reg-id=1;expires=3600\r\n";
        text(cseq, headers)
    };
    let request = register(1);
    let message = Message::parse(request.as_bytes()).unwrap();
    let (host, udp) = ("10.0.0.1", Transport::Udp);
    let passing = store
        .pass("1000", &message, InterfaceId(0), phone, host, udp)
        .unwrap();
    let sent = String::from_utf8_lossy(&passing.contacts[0]).into_owned();
    assert!(
        sent.ends_with(">;+sip.instance=\"<urn:x>\";expires=3600"),
        "{sent}"
    );
    let contact = sent.split_inclusive('>').next().unwrap().as_bytes();
    let answer = core_answer(&[contact.to_vec()], ";expires=3600");
    let answer = Message::parse(answer.as_bytes()).unwrap();
    let taken = store.passed(&passing, &answer, Time::ZERO);
    let lasting = |answer: &RegisterResponse| contacts(answer)[0].ends_with(";expires=90");
    assert!(lasting(&taken), "{taken:?}");
    // The same where the core is not asked.
    let again = register(2);
    let message = Message::parse(again.as_bytes()).unwrap();
    let answer = store.refresh("1000", &message, phone, Time::from_secs(60));
    let answer = answer.unwrap();
    assert!(lasting(&answer), "{answer:?}");
    assert_eq!(store.expire(Time::from_secs(151)).len(), 1);
}
