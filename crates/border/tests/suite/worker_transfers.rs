//! Transfers by a border with several workers: the result does not depend on the workers that own the calls.

use crate::transfers;
use crate::virtual_network;

use engine::record::CallRecord;
use engine::{TransferStep, Transport};
use sip::{Ending, MessageContent};
use std::time::Duration;
use transfers::*;
use virtual_network::*;
use wire::sip::{Edit, HeaderId};

/// Alice has called Bob, who has called Carol; Bob transfers.
fn attended(workers: u8, first: u8, second: u8, carol: Transport) -> TransferRig {
    let mut table = TransferRig::with(workers, carol);
    let [alice, bob] = table.call(ALICE, BOB, first);
    let [consulting, far] = table.call(BOB, CAROL, second);
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    assert!(
        table.refer_answered(BOB, 202),
        "{:?}",
        table.net.phone_events(table.phones[BOB])
    );
    assert_eq!(table.notified(BOB), DONE);
    assert_eq!(table.all_legs(), [1, 0, 1, 0]);
    let mut calls = vec![0; usize::from(workers)];
    calls[usize::from(first)] = 1;
    assert_eq!(table.calls_of_workers(), calls);
    table.check_connection((ALICE, alice), (CAROL, far));
    // Sessions are refreshed by the negotiated refresher.
    table.run(Duration::from_secs(400));
    assert_eq!(table.all_legs(), [1, 0, 1, 0]);
    table.check_connection((ALICE, alice), (CAROL, far));
    table.hang_up(CAROL, far);
    table.end_all();
    table
}

#[test]
fn calls_of_one_worker_are_transferred() {
    attended(2, 1, 1, Transport::Udp);
}

#[test]
fn calls_of_different_workers_are_transferred() {
    for (first, second) in [(0, 1), (1, 0)] {
        attended(2, first, second, Transport::Udp);
    }
    for (first, second) in [(0, 1), (1, 2), (2, 0)] {
        attended(3, first, second, Transport::Udp);
    }
}

#[test]
fn connection_stays_with_its_owner() {
    for (first, second) in [(0, 1), (1, 0), (2, 1)] {
        attended(3, first, second, Transport::Tcp);
    }
}

/// A worker that takes a dialog with a peer identified by its certificate requires the same certificate.
#[test]
fn peer_keeps_its_certificate_name() {
    for (first, second) in [(0, 1), (1, 0), (2, 1)] {
        let table = attended(3, first, second, Transport::Tls);
        let carol = "10.2.0.2:5060".parse().unwrap();
        let name = ("carol.example".to_owned(), "carol".to_owned());
        let opened = [second, first].map(|worker| (usize::from(worker), carol, name.clone()));
        assert_eq!(table.net.tls_connections, opened);
    }
}

#[test]
fn callee_of_both_calls_transfers() {
    // Over streams Carol is identified by the connection that she opened, whichever worker owns it.
    for transport in [Transport::Udp, Transport::Tcp, Transport::Tls] {
        for (first, second) in [(0, 1), (1, 0), (1, 2), (2, 0)] {
            let mut table = TransferRig::with(3, transport);
            let [alice, bob] = table.call(ALICE, BOB, first);
            let [carol, consulted] = table.call(CAROL, BOB, second);
            table.attended(BOB, bob, consulted);
            table.run(Duration::from_secs(2));
            assert_eq!(table.notified(BOB), DONE);
            assert_eq!(table.all_legs(), [1, 0, 1, 0]);
            table.check_connection((ALICE, alice), (CAROL, carol));
            table.run(Duration::from_secs(400));
            table.check_connection((ALICE, alice), (CAROL, carol));
            table.hang_up(ALICE, alice);
            table.end_all();
        }
    }
}

/// The connection of a transferred peer closes: a new one is opened, to the name in its certificate.
#[test]
fn closed_connection_is_reopened_by_the_dialog_owner() {
    for transport in [Transport::Tcp, Transport::Tls] {
        for (first, second) in [(0, 1), (1, 0), (2, 1), (1, 1)] {
            let mut table = TransferRig::with(3, transport);
            let [alice, bob] = table.call(ALICE, BOB, first);
            let [consulting, carol] = table.call(BOB, CAROL, second);
            // Carol has sent a request, so the connection at the second worker is known.
            table.check_connection((BOB, consulting), (CAROL, carol));
            table.attended(BOB, bob, consulting);
            table.run(Duration::from_secs(2));
            assert_eq!(table.notified(BOB), DONE);
            let phone = table.phones[CAROL];
            table.net.break_streams(phone);
            table.run(Duration::from_secs(1));
            table.check_connection((ALICE, alice), (CAROL, carol));
            let name = ("carol.example".to_owned(), "carol".to_owned());
            assert!(
                table
                    .net
                    .tls_connections
                    .iter()
                    .all(|added| added.2 == name)
            );
            table.hang_up(CAROL, carol);
            table.end_all();
        }
    }
}

/// A dialog moves twice, and back again.
#[test]
fn dialog_moves_repeatedly() {
    for third in [2, 1] {
        let mut table = TransferRig::new(3);
        let [alice, bob] = table.call(ALICE, BOB, 0);
        let [consulting, carol] = table.call(BOB, CAROL, 1);
        table.attended(BOB, bob, consulting);
        table.run(Duration::from_secs(2));
        assert_eq!(table.all_legs(), [1, 0, 1, 0]);
        // Alice transfers Carol to Dave.
        let [asking, dave] = table.call(ALICE, DAVE, third);
        table.attended(ALICE, asking, alice);
        table.run(Duration::from_secs(2));
        assert_eq!(table.notified(ALICE), DONE);
        assert_eq!(table.all_legs(), [0, 0, 1, 1]);
        table.check_connection((CAROL, carol), (DAVE, dave));
        // Carol sends REFER in the dialog that has moved.
        let [calling, bob] = table.call(CAROL, BOB, 0);
        table.attended(CAROL, carol, calling);
        table.run(Duration::from_secs(2));
        assert_eq!(table.notified(CAROL), DONE);
        assert_eq!(table.all_legs(), [0, 1, 0, 1]);
        table.check_connection((BOB, bob), (DAVE, dave));
        table.hang_up(BOB, bob);
        table.end_all();
    }
}

#[test]
fn retransmissions_for_a_moved_dialog_are_answered() {
    let mut table = TransferRig::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    // A request that was answered before the move.
    table.check_requests((CAROL, carol), (BOB, consulting));
    let phone = table.phones[CAROL];
    let sent = |table: &TransferRig, begins: &str| {
        let mut sent = table.net.phones[phone].sent.iter().rev();
        let found = sent.find(|bytes| bytes.starts_with(begins.as_bytes()));
        found.unwrap().clone()
    };
    let info = sent(&table, "INFO ");
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    let again = |table: &mut TransferRig, bytes: &[u8]| {
        let before = table.net.phones[phone].received.len();
        table.net.send_raw("10.2.0.2:5060", IN, bytes);
        table.run(Duration::from_secs(1));
        let received = &table.net.phones[phone].received[before..];
        let lines = received.iter().map(|bytes| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            text.lines().next().unwrap_or_default().to_owned()
        });
        lines.collect::<Vec<String>>()
    };
    assert_eq!(again(&mut table, &info), ["SIP/2.0 200 OK"]);
    table.check_connection((ALICE, alice), (CAROL, carol));
    table.hang_up(CAROL, carol);
    let bye = sent(&table, "BYE ");
    assert_eq!(again(&mut table, &bye), ["SIP/2.0 200 OK"]);
    table.end_all();
    // After the state has expired, its dialog is unknown.
    let answer = again(&mut table, &bye);
    assert!(answer[0].starts_with("SIP/2.0 481"), "{answer:?}");
}

/// An INVITE with Replaces for a leg that has moved.
#[test]
fn moved_dialog_can_be_replaced() {
    let mut table = TransferRig::new(3);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    let replaces = table
        .replaces(CAROL, carol)
        .replace("%3B", ";")
        .replace("%3D", "=");
    let edits = [Edit::Add {
        id: HeaderId::Replaces,
        value: replaces.as_bytes(),
    }];
    let sdp = SDP_B.replace("10.2.0.1", "10.2.0.3");
    let content = MessageContent::sdp(sdp.as_bytes()).with(&edits);
    let call_id: &'static str = format!("02{:046x}", 99).leak();
    let dave = table.net.call_with(
        table.phones[DAVE],
        "sip:x@198.51.100.1",
        IN,
        &content,
        |invite| {
            invite.call_id = Some(call_id.as_bytes());
        },
    );
    table.run(Duration::from_secs(2));
    assert!(table.net.has(table.phones[CAROL], |event| *event
        == PhoneEvent::Ended(Ending::Peer)));
    assert_eq!(table.all_legs(), [1, 0, 0, 1]);
    table.check_connection((ALICE, alice), (DAVE, dave));
    table.hang_up(DAVE, dave);
    table.end_all();
}

#[test]
fn impossible_transfer_is_refused_without_change() {
    let mut table = TransferRig::new(2);
    table.net.phones[table.phones[CAROL]].log.behaviour.answer = None;
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [dialling, _] = table.calls(BOB, CAROL, 1);
    // It is not answered yet.
    table.attended(BOB, bob, dialling);
    table.run(Duration::from_secs(1));
    assert!(
        table.refer_answered(BOB, 481),
        "{:?}",
        table.net.phone_events(table.phones[BOB])
    );
    // A dialog that this worker never had.
    let strange = format!("x%3Bto-tag%3D{:08x}01{:014x}%3Bfrom-tag%3Dx", 7, 5);
    let before = table.net.log(table.phones[BOB]).len();
    table.refer(
        BOB,
        bob,
        &format!("<sip:x@198.51.100.1?Replaces={strange}>"),
    );
    table.run(Duration::from_secs(1));
    let after = &table.net.log(table.phones[BOB])[before..];
    assert!(
        after
            .iter()
            .any(|entry| matches!(entry.event, PhoneEvent::Response(481, _))),
        "{after:?}"
    );
    assert!(table.notified(BOB).is_empty());
    table.check_connection((ALICE, alice), (BOB, bob));
    table.net.command(table.phones[BOB], |endpoint, now| {
        endpoint
            .hang_up(dialling, &MessageContent::default(), now)
            .unwrap();
    });
    table.hang_up(ALICE, alice);
    table.end_all();
}

#[test]
fn lost_handoff_messages_are_recovered() {
    // The request is lost: the caller gets a retryable failure, and can retry.
    let mut table = TransferRig::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    table
        .net
        .lose_transfer_messages(Some(TransferStep::Requested));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(6));
    assert!(
        table.refer_answered(BOB, 503),
        "{:?}",
        table.net.phone_events(table.phones[BOB])
    );
    assert_eq!(table.all_legs(), [1, 2, 1, 0]);
    // The reply is lost: it is requested again.
    table
        .net
        .lose_transfer_messages(Some(TransferStep::Answered));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(6));
    assert!(table.refer_answered(BOB, 202));
    assert_eq!(table.notified(BOB), DONE);
    table.check_connection((ALICE, alice), (CAROL, carol));
    table.hang_up(ALICE, alice);
    table.end_all();
    // The confirmation is lost: the former owner of the leg asks for it.
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    table
        .net
        .lose_transfer_messages(Some(TransferStep::Finished));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    assert_eq!(table.all_legs(), [1, 1, 1, 0]);
    table.run(Duration::from_secs(4));
    assert_eq!(table.all_legs(), [1, 0, 1, 0]);
    table.check_connection((ALICE, alice), (CAROL, carol));
    table.hang_up(CAROL, carol);
    table.end_all();
}

/// Bob ends the transferred call before the result arrives.
#[test]
fn referrer_may_end_its_call_at_once() {
    let mut table = TransferRig::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 1);
    let [consulting, carol] = table.call(BOB, CAROL, 0);
    table.net.phones[table.phones[CAROL]].log.behaviour.inside = None;
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(1));
    table.hang_up(BOB, consulting);
    assert_eq!(table.all_legs(), [1, 1, 1, 0]);
    let phone = table.phones[CAROL];
    let asked = table
        .net
        .last(phone, |event| matches!(event, PhoneEvent::Request(_)))
        .event
        .clone();
    let PhoneEvent::Request(transaction) = asked else {
        panic!("{asked:?}")
    };
    let offer = table.net.phones[phone].log.behaviour.sdp.clone();
    table.net.phones[phone].log.behaviour.inside = Some(200);
    table.net.command(phone, |endpoint, now| {
        let content = MessageContent::sdp(offer.as_bytes());
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    table.run(Duration::from_secs(2));
    assert_eq!(table.notified(BOB), DONE);
    table.check_connection((ALICE, alice), (CAROL, carol));
    table.hang_up(ALICE, alice);
    table.end_all();
}

#[test]
fn blind_transfer_by_any_worker() {
    for worker in 0..3 {
        let mut table = TransferRig::new(3);
        let [alice, bob] = table.call(ALICE, BOB, worker);
        table.refer(BOB, bob, "<sip:carol@198.51.100.1>");
        table.run(Duration::from_secs(2));
        let reported = [
            "SIP/2.0 100 Trying",
            "SIP/2.0 180 Ringing",
            "SIP/2.0 200 OK",
        ];
        assert_eq!(table.notified(BOB), reported);
        assert_eq!(table.all_legs(), [1, 0, 1, 0]);
        let carol = table
            .net
            .last(table.phones[CAROL], |event| *event == PhoneEvent::Offered);
        let carol = carol.leg.unwrap();
        table.check_connection((ALICE, alice), (CAROL, carol));
        table.hang_up(CAROL, carol);
        table.end_all();
    }
}

/// Addresses of the peers of both legs.
fn peers(record: &CallRecord) -> [&str; 2] {
    let legs = record.legs.each_ref();
    legs.map(|leg| leg.leg.address.as_deref().unwrap_or_default())
}

#[test]
fn record_of_a_transferred_call_has_the_legs_that_were_connected() {
    let [alice, bob, carol] =
        ["10.1.0.1", "10.2.0.1", "10.2.0.2"].map(|ip| format!("udp:{ip}:5060"));
    for (who, host, expected) in [
        (BOB, "198.51.100.1", [&alice, &carol]),
        (ALICE, "192.0.2.1", [&carol, &bob]),
    ] {
        let mut table = TransferRig::new(2);
        let legs = table.call(ALICE, BOB, 0);
        table.refer(who, legs[who], &format!("<sip:carol@{host}>"));
        table.run(Duration::from_secs(2));
        assert_eq!(
            table.notified(who).last().map(String::as_str),
            Some(DONE[0])
        );
        table.hang_up_all(CAROL);
        table.run(Duration::from_secs(2));
        let records = table.records();
        assert_eq!(records.len(), 1);
        assert_eq!(peers(&records[0]), expected);
        let fields = &records[0].fields;
        assert_eq!(fields.route.as_deref(), Some("transfer"));
        assert_eq!(fields.targets, 2);
    }
    // With a consultation call, of another worker too.
    for workers in [(1, 1), (0, 1)] {
        let table = attended(2, workers.0, workers.1, Transport::Udp);
        let records = table.records();
        let first = format!("{:02x}{:046x}", workers.0, 1);
        let mut of_first = records.iter();
        let record = of_first.find(|record| record.fields.call_id == first);
        assert_eq!(peers(record.unwrap()), [&alice, &carol]);
    }
}

#[test]
fn record_of_a_failed_transfer_has_the_legs_of_the_call() {
    let mut table = TransferRig::new(2);
    table.net.phones[table.phones[CAROL]].log.behaviour.answer = Some(486);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    table.refer(BOB, bob, "<sip:carol@198.51.100.1>");
    table.run(Duration::from_secs(2));
    table.hang_up(ALICE, alice);
    let records = table.records();
    assert_eq!(records.len(), 1);
    assert_eq!(
        peers(&records[0]),
        ["udp:10.1.0.1:5060", "udp:10.2.0.1:5060"]
    );
    let fields = &records[0].fields;
    assert_eq!(fields.trunk.as_deref(), Some("bob"));
    assert_ne!(fields.route.as_deref(), Some("transfer"));
    table.end_all();
}

#[test]
fn failed_blind_transfer_leaves_the_call() {
    for worker in 0..2 {
        let mut table = TransferRig::new(2);
        table.net.phones[table.phones[CAROL]].log.behaviour.answer = Some(486);
        let [alice, bob] = table.call(ALICE, BOB, worker);
        table.refer(BOB, bob, "<sip:carol@198.51.100.1>");
        table.run(Duration::from_secs(2));
        let reported = table.notified(BOB);
        assert!(
            reported.last().unwrap().starts_with("SIP/2.0 486"),
            "{reported:?}"
        );
        table.check_connection((ALICE, alice), (BOB, bob));
        table.hang_up(ALICE, alice);
        table.end_all();
    }
}
