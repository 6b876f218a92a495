//! Transfers that a border with several workers carries out: whichever of them the calls belong to, what comes of it is the same.

use crate::neighbourhood;
use crate::transfers;

use engine::{TransferStep, Transport};
use neighbourhood::*;
use sip::{Content, Ending};
use std::time::Duration;
use transfers::*;
use wire::sip::{Edit, HeaderId};

/// Alice has called Bob, who has called Carol; he brings them together.
fn attended(workers: u8, first: u8, second: u8, carol: Transport) -> Table {
    let mut table = Table::with(workers, carol);
    let [alice, bob] = table.call(ALICE, BOB, first);
    let [consulting, far] = table.call(BOB, CAROL, second);
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    assert!(
        table.answered(BOB, 202),
        "{:?}",
        table.net.told(table.phones[BOB])
    );
    assert_eq!(table.told(BOB), DONE);
    assert_eq!(table.all_legs(), [1, 0, 1, 0]);
    let mut calls = vec![0; usize::from(workers)];
    calls[usize::from(first)] = 1;
    assert_eq!(table.calls_of_workers(), calls);
    table.talk((ALICE, alice), (CAROL, far));
    // Sessions are refreshed, by whoever has promised it.
    table.run(Duration::from_secs(400));
    assert_eq!(table.all_legs(), [1, 0, 1, 0]);
    table.talk((ALICE, alice), (CAROL, far));
    table.hang_up(CAROL, far);
    table.ends();
    table
}

#[test]
fn calls_of_one_worker_are_brought_together() {
    attended(2, 1, 1, Transport::Udp);
}

#[test]
fn calls_of_different_workers_are_brought_together() {
    for (first, second) in [(0, 1), (1, 0)] {
        attended(2, first, second, Transport::Udp);
    }
    for (first, second) in [(0, 1), (1, 2), (2, 0)] {
        attended(3, first, second, Transport::Udp);
    }
}

#[test]
fn a_connection_stays_with_who_holds_it() {
    for (first, second) in [(0, 1), (1, 0), (2, 1)] {
        attended(3, first, second, Transport::Tcp);
    }
}

/// Whoever takes in a dialog with a peer that is known by its certificate demands the same certificate.
#[test]
fn a_peer_keeps_its_name() {
    for (first, second) in [(0, 1), (1, 0), (2, 1)] {
        let table = attended(3, first, second, Transport::Tls);
        let carol = "10.2.0.2:5060".parse().unwrap();
        let name = ("carol.example".to_owned(), "carol".to_owned());
        let opened = [second, first].map(|worker| (usize::from(worker), carol, name.clone()));
        assert_eq!(table.net.secured, opened);
    }
}

#[test]
fn who_was_called_by_both_brings_them_together() {
    // Over streams Carol is known by the connection that she opened, whoever holds that.
    for transport in [Transport::Udp, Transport::Tcp, Transport::Tls] {
        for (first, second) in [(0, 1), (1, 0), (1, 2), (2, 0)] {
            let mut table = Table::with(3, transport);
            let [alice, bob] = table.call(ALICE, BOB, first);
            let [carol, consulted] = table.call(CAROL, BOB, second);
            table.attended(BOB, bob, consulted);
            table.run(Duration::from_secs(2));
            assert_eq!(table.told(BOB), DONE);
            assert_eq!(table.all_legs(), [1, 0, 1, 0]);
            table.talk((ALICE, alice), (CAROL, carol));
            table.run(Duration::from_secs(400));
            table.talk((ALICE, alice), (CAROL, carol));
            table.hang_up(ALICE, alice);
            table.ends();
        }
    }
}

/// The connection of one who was taken to another call breaks: he is found again, by the name in his certificate.
#[test]
fn a_connection_that_breaks_is_opened_anew_by_whoever_has_the_dialog() {
    for transport in [Transport::Tcp, Transport::Tls] {
        for (first, second) in [(0, 1), (1, 0), (2, 1), (1, 1)] {
            let mut table = Table::with(3, transport);
            let [alice, bob] = table.call(ALICE, BOB, first);
            let [consulting, carol] = table.call(BOB, CAROL, second);
            // Carol has spoken, and is known by the connection that the second worker holds.
            table.talk((BOB, consulting), (CAROL, carol));
            table.attended(BOB, bob, consulting);
            table.run(Duration::from_secs(2));
            assert_eq!(table.told(BOB), DONE);
            let phone = table.phones[CAROL];
            table.net.break_streams(phone);
            table.run(Duration::from_secs(1));
            table.talk((ALICE, alice), (CAROL, carol));
            let name = ("carol.example".to_owned(), "carol".to_owned());
            assert!(table.net.secured.iter().all(|secured| secured.2 == name));
            table.hang_up(CAROL, carol);
            table.ends();
        }
    }
}

/// A dialog moves twice, and home again.
#[test]
fn a_dialog_moves_on() {
    for third in [2, 1] {
        let mut table = Table::new(3);
        let [alice, bob] = table.call(ALICE, BOB, 0);
        let [consulting, carol] = table.call(BOB, CAROL, 1);
        table.attended(BOB, bob, consulting);
        table.run(Duration::from_secs(2));
        assert_eq!(table.all_legs(), [1, 0, 1, 0]);
        // Alice brings Carol together with Dave.
        let [asking, dave] = table.call(ALICE, DAVE, third);
        table.attended(ALICE, asking, alice);
        table.run(Duration::from_secs(2));
        assert_eq!(table.told(ALICE), DONE);
        assert_eq!(table.all_legs(), [0, 0, 1, 1]);
        table.talk((CAROL, carol), (DAVE, dave));
        // And Carol refers in the dialog that has moved.
        let [calling, bob] = table.call(CAROL, BOB, 0);
        table.attended(CAROL, carol, calling);
        table.run(Duration::from_secs(2));
        assert_eq!(table.told(CAROL), DONE);
        assert_eq!(table.all_legs(), [0, 1, 0, 1]);
        table.talk((BOB, bob), (DAVE, dave));
        table.hang_up(BOB, bob);
        table.ends();
    }
}

#[test]
fn what_is_repeated_for_a_dialog_that_moved_is_answered_as_before() {
    let mut table = Table::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    // Something that was answered before it moved.
    table.speaks_to((CAROL, carol), (BOB, consulting));
    let phone = table.phones[CAROL];
    let sent = |table: &Table, begins: &str| {
        let mut sent = table.net.phones[phone].sent.iter().rev();
        let found = sent.find(|bytes| bytes.starts_with(begins.as_bytes()));
        found.unwrap().clone()
    };
    let info = sent(&table, "INFO ");
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    let again = |table: &mut Table, bytes: &[u8]| {
        let before = table.net.phones[phone].received.len();
        table.net.throw("10.2.0.2:5060", IN, bytes);
        table.run(Duration::from_secs(1));
        let received = &table.net.phones[phone].received[before..];
        let lines = received.iter().map(|bytes| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            text.lines().next().unwrap_or_default().to_owned()
        });
        lines.collect::<Vec<String>>()
    };
    assert_eq!(again(&mut table, &info), ["SIP/2.0 200 OK"]);
    table.talk((ALICE, alice), (CAROL, carol));
    table.hang_up(CAROL, carol);
    let bye = sent(&table, "BYE ");
    assert_eq!(again(&mut table, &bye), ["SIP/2.0 200 OK"]);
    table.ends();
    // Who comes back after everybody has forgotten it is told so.
    let answer = again(&mut table, &bye);
    assert!(answer[0].starts_with("SIP/2.0 481"), "{answer:?}");
}

/// Somebody takes the place of a leg that has moved, by an INVITE with Replaces.
#[test]
fn a_dialog_that_moved_can_be_replaced() {
    let mut table = Table::new(3);
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
    let content = Content::sdp(sdp.as_bytes()).with(&edits);
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
    assert!(table.net.has(table.phones[CAROL], |told| *told
        == Told::Ended(Ending::Peer)));
    assert_eq!(table.all_legs(), [1, 0, 0, 1]);
    table.talk((ALICE, alice), (DAVE, dave));
    table.hang_up(DAVE, dave);
    table.ends();
}

#[test]
fn what_cannot_be_taken_is_refused_and_nothing_changes() {
    let mut table = Table::new(2);
    table.net.phones[table.phones[CAROL]].ears.manners.answer = None;
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [dialling, _] = table.calls(BOB, CAROL, 1);
    // It is not answered yet.
    table.attended(BOB, bob, dialling);
    table.run(Duration::from_secs(1));
    assert!(
        table.answered(BOB, 481),
        "{:?}",
        table.net.told(table.phones[BOB])
    );
    // A dialog that this worker never had.
    let strange = format!("x%3Bto-tag%3D{:08x}01{:014x}%3Bfrom-tag%3Dx", 7, 5);
    let before = table.net.seen(table.phones[BOB]).len();
    table.refer(
        BOB,
        bob,
        &format!("<sip:x@198.51.100.1?Replaces={strange}>"),
    );
    table.run(Duration::from_secs(1));
    let after = &table.net.seen(table.phones[BOB])[before..];
    assert!(
        after
            .iter()
            .any(|seen| matches!(seen.told, Told::Response(481, _))),
        "{after:?}"
    );
    assert!(table.told(BOB).is_empty());
    table.talk((ALICE, alice), (BOB, bob));
    table.net.tell(table.phones[BOB], |endpoint, now| {
        endpoint
            .hang_up(dialling, &Content::default(), now)
            .unwrap();
    });
    table.hang_up(ALICE, alice);
    table.ends();
}

#[test]
fn a_word_that_is_lost_between_workers_loses_nothing() {
    // Nobody heard the question: the caller is told to come again, and can.
    let mut table = Table::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    table.net.lose_words(Some(TransferStep::Asked));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(6));
    assert!(
        table.answered(BOB, 503),
        "{:?}",
        table.net.told(table.phones[BOB])
    );
    assert_eq!(table.all_legs(), [1, 2, 1, 0]);
    // Nobody heard the answer: it is looked for.
    table.net.lose_words(Some(TransferStep::Answered));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(6));
    assert!(table.answered(BOB, 202));
    assert_eq!(table.told(BOB), DONE);
    table.talk((ALICE, alice), (CAROL, carol));
    table.hang_up(ALICE, alice);
    table.ends();
    // Nobody heard that it is over: who gave the leg looks for it.
    let [alice, bob] = table.call(ALICE, BOB, 0);
    let [consulting, carol] = table.call(BOB, CAROL, 1);
    table.net.lose_words(Some(TransferStep::Over));
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(2));
    assert_eq!(table.all_legs(), [1, 1, 1, 0]);
    table.run(Duration::from_secs(4));
    assert_eq!(table.all_legs(), [1, 0, 1, 0]);
    table.talk((ALICE, alice), (CAROL, carol));
    table.hang_up(CAROL, carol);
    table.ends();
}

/// Bob ends the call that he gave away before he is told how it went.
#[test]
fn the_referrer_may_go_at_once() {
    let mut table = Table::new(2);
    let [alice, bob] = table.call(ALICE, BOB, 1);
    let [consulting, carol] = table.call(BOB, CAROL, 0);
    table.net.phones[table.phones[CAROL]].ears.manners.inside = None;
    table.attended(BOB, bob, consulting);
    table.run(Duration::from_secs(1));
    table.hang_up(BOB, consulting);
    assert_eq!(table.all_legs(), [1, 1, 1, 0]);
    let phone = table.phones[CAROL];
    let asked = table
        .net
        .last(phone, |told| matches!(told, Told::Request(_)))
        .told
        .clone();
    let Told::Request(transaction) = asked else {
        panic!("{asked:?}")
    };
    let offer = table.net.phones[phone].ears.manners.sdp.clone();
    table.net.phones[phone].ears.manners.inside = Some(200);
    table.net.tell(phone, |endpoint, now| {
        let content = Content::sdp(offer.as_bytes());
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    table.run(Duration::from_secs(2));
    assert_eq!(table.told(BOB), DONE);
    table.talk((ALICE, alice), (CAROL, carol));
    table.hang_up(ALICE, alice);
    table.ends();
}

#[test]
fn blind_transfer_by_any_worker() {
    for worker in 0..3 {
        let mut table = Table::new(3);
        let [alice, bob] = table.call(ALICE, BOB, worker);
        table.refer(BOB, bob, "<sip:carol@198.51.100.1>");
        table.run(Duration::from_secs(2));
        let told = [
            "SIP/2.0 100 Trying",
            "SIP/2.0 180 Ringing",
            "SIP/2.0 200 OK",
        ];
        assert_eq!(table.told(BOB), told);
        assert_eq!(table.all_legs(), [1, 0, 1, 0]);
        let carol = table
            .net
            .last(table.phones[CAROL], |told| *told == Told::Offered);
        let carol = carol.leg.unwrap();
        table.talk((ALICE, alice), (CAROL, carol));
        table.hang_up(CAROL, carol);
        table.ends();
    }
}

#[test]
fn a_blind_transfer_that_fails_leaves_the_call() {
    for worker in 0..2 {
        let mut table = Table::new(2);
        table.net.phones[table.phones[CAROL]].ears.manners.answer = Some(486);
        let [alice, bob] = table.call(ALICE, BOB, worker);
        table.refer(BOB, bob, "<sip:carol@198.51.100.1>");
        table.run(Duration::from_secs(2));
        let told = table.told(BOB);
        assert!(told.last().unwrap().starts_with("SIP/2.0 486"), "{told:?}");
        table.talk((ALICE, alice), (BOB, bob));
        table.hang_up(ALICE, alice);
        table.ends();
    }
}
