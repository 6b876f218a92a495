//! Failed transfers: for any failure and any distribution of the calls over workers, established calls continue and no
//! state is left.

use crate::transfers;
use crate::virtual_network;

use engine::{TransferStep, Transport};
use sip::{Ending, LegId, MessageContent};
use std::time::Duration;
use transfers::*;
use virtual_network::*;
use wire::sip::Method;

/// Workers of the two calls.
const WORKERS: [(u8, u8); 3] = [(1, 1), (0, 1), (1, 0)];

struct Calls {
    table: TransferRig,
    /// The first call.
    alice: LegId,
    bob: LegId,
    /// The second call.
    consulting: LegId,
    carol: LegId,
}

/// Alice has called Bob, and Bob has called Carol.
fn calls_of(mut table: TransferRig, (first, second): (u8, u8)) -> Calls {
    let [alice, bob] = table.call(ALICE, BOB, first);
    let [consulting, carol] = table.call(BOB, CAROL, second);
    Calls {
        table,
        alice,
        bob,
        consulting,
        carol,
    }
}

fn calls(workers: (u8, u8)) -> Calls {
    calls_of(TransferRig::new(2), workers)
}

impl Calls {
    fn transfer(&mut self) {
        self.table.attended(BOB, self.bob, self.consulting);
    }

    fn run(&mut self, seconds: u64) {
        self.table.run(Duration::from_secs(seconds));
    }

    /// The last status in NOTIFY.
    fn notified(&self) -> String {
        self.table.notified(BOB).last().cloned().unwrap_or_default()
    }

    /// Both calls are as before.
    fn check_unchanged(&mut self) {
        assert_eq!(self.table.all_legs(), [1, 2, 1, 0]);
        let (alice, bob) = ((ALICE, self.alice), (BOB, self.bob));
        self.table.check_connection(alice, bob);
        let (consulting, carol) = ((BOB, self.consulting), (CAROL, self.carol));
        self.table.check_connection(consulting, carol);
    }

    /// A repeated transfer succeeds, and no state is left.
    fn transfer_succeeds(mut self) {
        self.transfer();
        self.run(2);
        assert_eq!(self.notified(), DONE[0]);
        assert_eq!(self.table.all_legs(), [1, 0, 1, 0]);
        let (alice, carol) = ((ALICE, self.alice), (CAROL, self.carol));
        self.table.check_connection(alice, carol);
        assert_eq!(self.table.ports(), 2, "of one call: a pair for each side");
        self.table.hang_up(CAROL, self.carol);
        self.table.end_all();
    }
}

/// Carol refuses the re-INVITE.
#[test]
fn refused_transfer_keeps_both_calls() {
    for workers in WORKERS {
        let mut calls = calls(workers);
        for status in [488, 491, 503] {
            calls.table.set_in_dialog_response(CAROL, Some(status));
            calls.transfer();
            calls.run(2);
            assert!(calls.table.refer_answered(BOB, 202));
            let reported = calls.notified();
            assert!(
                reported.starts_with(&format!("SIP/2.0 {status}")),
                "{reported}"
            );
            calls.table.set_in_dialog_response(CAROL, Some(200));
            calls.check_unchanged();
        }
        // Both sessions are refreshed as before, by the negotiated refresher.
        calls.run(400);
        calls.check_unchanged();
        calls.transfer_succeeds();
    }
}

/// Alice refuses Carol's description: Carol and Bob exchange descriptions again.
#[test]
fn answered_consultation_returns_to_its_call() {
    for workers in WORKERS {
        let mut calls = calls(workers);
        for status in [488, 500] {
            calls.table.set_in_dialog_response(ALICE, Some(status));
            calls.transfer();
            calls.run(3);
            let reported = calls.notified();
            assert!(
                reported.starts_with(&format!("SIP/2.0 {status}")),
                "{reported}"
            );
            calls.table.set_in_dialog_response(ALICE, Some(200));
            calls.check_unchanged();
        }
        calls.run(400);
        calls.check_unchanged();
        calls.transfer_succeeds();
    }
}

/// Alice does not have the dialog any more.
#[test]
fn missing_transferee_restores_the_consultation() {
    for workers in WORKERS {
        for answers in [true, false] {
            let mut calls = calls(workers);
            match answers {
                true => calls.table.set_in_dialog_response(ALICE, Some(481)),
                false => calls.table.net.silence("10.1.0.1:5060"),
            }
            calls.transfer();
            calls.run(40);
            let reported = calls.notified();
            let expected = if answers {
                "SIP/2.0 481"
            } else {
                "SIP/2.0 408"
            };
            assert!(reported.starts_with(expected), "{reported}");
            calls.table.hang_up_all(ALICE);
            calls.run(2);
            assert_eq!(calls.table.all_legs()[1..], [1, 1, 0]);
            let (consulting, carol) = ((BOB, calls.consulting), (CAROL, calls.carol));
            calls.table.check_connection(consulting, carol);
            calls.table.hang_up(BOB, calls.consulting);
            calls.run(40);
            calls.table.end_all();
        }
    }
}

/// Alice or Carol receives the re-INVITE and does not answer.
#[test]
fn unanswered_re_invite_ends_the_transfer() {
    for workers in WORKERS {
        for index in [ALICE, CAROL] {
            let mut calls = calls(workers);
            calls.table.set_in_dialog_response(index, None);
            calls.transfer();
            calls.run(25);
            let reported = calls.notified();
            assert!(reported.starts_with("SIP/2.0 487"), "{reported}");
            calls.table.set_in_dialog_response(index, Some(200));
            calls.check_unchanged();
            calls.transfer_succeeds();
        }
    }
}

/// Carol does not have the dialog any more.
#[test]
fn missing_target_ends_only_its_call() {
    for workers in WORKERS {
        for answers in [true, false] {
            let mut calls = calls(workers);
            match answers {
                true => calls.table.set_in_dialog_response(CAROL, Some(481)),
                false => calls.table.net.silence("10.2.0.2:5060"),
            }
            calls.transfer();
            calls.run(40);
            let reported = calls.notified();
            let expected = if answers {
                "SIP/2.0 481"
            } else {
                "SIP/2.0 408"
            };
            assert!(reported.starts_with(expected), "{reported}");
            calls.table.hang_up_all(CAROL);
            assert_eq!(calls.table.all_legs()[..2], [1, 1]);
            let (alice, bob) = ((ALICE, calls.alice), (BOB, calls.bob));
            calls.table.check_connection(alice, bob);
            calls.table.hang_up(ALICE, calls.alice);
            calls.run(40);
            calls.table.end_all();
        }
    }
}

/// During another transaction in the second call the transfer is refused; afterwards it succeeds.
#[test]
fn busy_dialog_is_transferred_later() {
    for workers in WORKERS {
        for (asking, answering) in [(BOB, CAROL), (CAROL, BOB)] {
            let mut calls = calls(workers);
            calls.table.set_in_dialog_response(answering, None);
            let leg = match asking {
                BOB => calls.consulting,
                _ => calls.carol,
            };
            calls.table.send_request(asking, leg, Method::Invite);
            calls.run(1);
            calls.transfer();
            calls.run(1);
            assert!(calls.table.refer_answered(BOB, 202));
            assert!(!calls.table.refer_answered(BOB, 491));
            let reported = calls.notified();
            assert!(reported.starts_with("SIP/2.0 491"), "{reported}");
            calls.table.set_in_dialog_response(answering, Some(200));
            let before = calls.table.net.log(calls.table.phones[asking]).len();
            calls.table.answer_re_invite(answering, 200);
            calls.run(1);
            let heard = &calls.table.net.log(calls.table.phones[asking])[before..];
            let answered = |entry: &LogEntry| matches!(entry.event, PhoneEvent::Response(200, _));
            assert!(heard.iter().any(answered), "{heard:?}");
            calls.check_unchanged();
            calls.transfer_succeeds();
        }
    }
}

/// A pending request does not block a transfer; it is answered with the end of its call.
#[test]
fn pending_request_does_not_block_a_transfer() {
    for workers in WORKERS {
        for (asking, answering) in [(BOB, CAROL), (CAROL, BOB)] {
            let mut calls = calls(workers);
            calls.table.set_in_dialog_response(answering, None);
            let leg = match asking {
                BOB => calls.consulting,
                _ => calls.carol,
            };
            calls.table.send_request(asking, leg, Method::Info);
            calls.run(1);
            calls.table.set_in_dialog_response(answering, Some(200));
            calls.transfer_succeeds();
        }
    }
}

/// The first call ends before the handoff reply of the other worker arrives: the second call continues.
#[test]
fn dialog_moved_to_an_ended_call_returns() {
    for step in [TransferStep::Requested, TransferStep::Answered] {
        let mut calls = calls((0, 1));
        calls.table.net.lose_transfer_messages(Some(step));
        calls.transfer();
        calls.run(1);
        calls.table.net.lose_transfer_messages(None);
        calls.table.hang_up(ALICE, calls.alice);
        calls.run(1);
        assert_eq!(calls.table.all_legs(), [0, 1, 1, 0]);
        let (consulting, carol) = ((BOB, calls.consulting), (CAROL, calls.carol));
        calls.table.check_connection(consulting, carol);
        calls.table.hang_up(BOB, calls.consulting);
        calls.table.end_all();
    }
}

/// Both calls end before the handoff reply of the other worker arrives.
#[test]
fn dialog_without_a_call_is_ended() {
    for first in [ALICE, BOB] {
        let mut calls = calls((0, 1));
        calls
            .table
            .net
            .lose_transfer_messages(Some(TransferStep::Answered));
        calls.transfer();
        calls.run(1);
        calls.table.net.lose_transfer_messages(None);
        let (alice, consulting) = (calls.alice, calls.consulting);
        let mut ends = [(ALICE, alice), (BOB, consulting)];
        if first == BOB {
            ends.reverse();
        }
        // Whichever phone is first ends its call when the other one has lost its peer or is about to have it again.
        calls
            .table
            .net
            .lose_transfer_messages(Some(TransferStep::Finished));
        for (index, leg) in ends {
            calls.table.hang_up(index, leg);
        }
        calls.table.net.lose_transfer_messages(None);
        calls.run(6);
        let carol = calls.table.phones[CAROL];
        assert!(
            calls
                .table
                .net
                .has(carol, |event| *event == PhoneEvent::Ended(Ending::Peer))
        );
        calls.table.end_all();
    }
}

/// The message that returns the dialog is lost: its former owner asks for it.
#[test]
fn lost_return_message_is_recovered() {
    let mut calls = calls((0, 1));
    calls
        .table
        .net
        .lose_transfer_messages(Some(TransferStep::Finished));
    calls.table.set_in_dialog_response(CAROL, Some(488));
    calls.transfer();
    calls.run(6);
    assert!(calls.notified().starts_with("SIP/2.0 488"));
    calls.table.set_in_dialog_response(CAROL, Some(200));
    calls.check_unchanged();
    // Meanwhile the requested dialog exists.
    calls.table.set_in_dialog_response(CAROL, Some(488));
    calls.transfer();
    calls.run(1);
    calls.table.set_in_dialog_response(CAROL, Some(200));
    let (consulting, carol) = ((BOB, calls.consulting), (CAROL, calls.carol));
    calls.table.check_requests(carol, consulting);
    calls.table.net.lose_transfer_messages(None);
    calls.run(6);
    calls.check_unchanged();
    calls.transfer_succeeds();
}

/// A request that arrives while its dialog moves between workers is processed by the new owner.
#[test]
fn requests_during_a_move_are_processed() {
    for method in [Method::Info, Method::Bye, Method::Invite] {
        // For a dialog that the second worker began, and for one that returns.
        for home in [false, true] {
            let mut table = TransferRig::new(2);
            let (consulting, carol);
            if home {
                let [asking, far] = table.call(BOB, CAROL, 0);
                // It moves to the second worker first.
                let [dave, other] = table.call(DAVE, BOB, 1);
                table.attended(BOB, other, asking);
                table.run(Duration::from_secs(2));
                assert_eq!(table.notified(BOB), DONE);
                // Dave's call with Carol is the consultation.
                (consulting, carol) = (dave, far);
                let [_, called] = table.call(ALICE, DAVE, 0);
                table
                    .net
                    .lose_transfer_messages(Some(TransferStep::Answered));
                table.attended(DAVE, called, consulting);
                table.run(Duration::from_secs(1));
            } else {
                let [_, bob] = table.call(ALICE, BOB, 0);
                [consulting, carol] = table.call(BOB, CAROL, 1);
                table
                    .net
                    .lose_transfer_messages(Some(TransferStep::Answered));
                table.attended(BOB, bob, consulting);
                table.run(Duration::from_secs(1));
            }
            let phone = table.phones[CAROL];
            let before = table.net.log(phone).len();
            match method {
                Method::Bye => table.net.command(phone, |endpoint, now| {
                    endpoint
                        .bye(carol, &MessageContent::default(), now)
                        .unwrap();
                }),
                _ => table.send_request(CAROL, carol, method),
            }
            table.run(Duration::from_secs(1));
            let heard = &table.net.log(phone)[before..];
            match method {
                Method::Bye => {
                    let ended = heard
                        .iter()
                        .find(|entry| entry.event == PhoneEvent::Ended(Ending::Local));
                    let text = ended.unwrap().text();
                    assert!(text.starts_with("SIP/2.0 200"), "{text}");
                }
                Method::Info => {
                    let answered =
                        |entry: &LogEntry| matches!(entry.event, PhoneEvent::Response(200, _));
                    assert!(heard.iter().any(answered), "{heard:?}");
                }
                // The border's request crosses the phone's.
                _ => {
                    let answered =
                        |entry: &LogEntry| matches!(entry.event, PhoneEvent::Response(491, _));
                    assert!(heard.iter().any(answered), "{heard:?}");
                }
            }
            table.net.lose_transfer_messages(None);
            table.run(Duration::from_secs(6));
            let referrer = if home { DAVE } else { BOB };
            let reported = table.notified(referrer);
            let reported = reported.last().map_or("", String::as_str);
            let worked = reported.starts_with("SIP/2.0 200");
            match method {
                Method::Bye => assert!(reported.starts_with("SIP/2.0 487"), "{reported}"),
                Method::Info => assert!(worked, "{reported}"),
                _ => {}
            }
            // All phones hang up.
            for index in [ALICE, BOB, CAROL, DAVE] {
                table.hang_up_all(index);
            }
            table.run(Duration::from_secs(2));
            table.end_all();
        }
    }
}

/// Two transfers request the same dialog; one of them gets it.
#[test]
fn dialog_is_transferred_once() {
    for (first, other) in [(0, 0), (0, 1), (0, 2)] {
        let mut table = TransferRig::new(3);
        let [alice, bob] = table.call(ALICE, BOB, first);
        let [dave, called] = table.call(DAVE, BOB, other);
        let [consulting, carol] = table.call(BOB, CAROL, 1);
        table.attended(BOB, bob, consulting);
        table.attended(BOB, called, consulting);
        table.run(Duration::from_secs(6));
        let mut reported = table.notified(BOB);
        reported.sort();
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert_eq!(reported[0], DONE[0]);
        assert!(reported[1].starts_with("SIP/2.0 491"), "{reported:?}");
        assert_eq!(table.all_legs(), [1, 1, 1, 1]);
        let (one, rest) = match table.has_leg(BOB, called) {
            // Bob's other call is with Dave, or with Alice.
            true => ((ALICE, alice), [(BOB, called), (DAVE, dave)]),
            false => ((DAVE, dave), [(BOB, bob), (ALICE, alice)]),
        };
        table.check_connection(one, (CAROL, carol));
        table.check_connection(rest[0], rest[1]);
        for index in [ALICE, BOB, CAROL, DAVE] {
            table.hang_up_all(index);
        }
        table.run(Duration::from_secs(2));
        table.end_all();
    }
}

/// Both calls are transferred to each other at once.
#[test]
fn crossing_transfers_succeed_at_most_once() {
    for workers in WORKERS {
        let mut calls = calls(workers);
        calls.transfer();
        calls.table.attended(BOB, calls.consulting, calls.bob);
        calls.run(6);
        match calls.table.all_legs() {
            [1, 0, 1, 0] => {
                let (alice, carol) = ((ALICE, calls.alice), (CAROL, calls.carol));
                calls.table.check_connection(alice, carol);
                calls.table.hang_up(ALICE, calls.alice);
                calls.table.end_all();
            }
            _ => {
                calls.check_unchanged();
                calls.transfer_succeeds();
            }
        }
    }
}

/// A drain begins during a transfer.
#[test]
fn drain_ends_transfers_in_progress() {
    for step in [
        None,
        Some(TransferStep::Requested),
        Some(TransferStep::Answered),
        Some(TransferStep::Finished),
    ] {
        for fails in [false, true] {
            let mut calls = calls((0, 1));
            calls.table.net.lose_transfer_messages(step);
            if fails {
                calls.table.set_in_dialog_response(CAROL, Some(488));
            }
            calls.transfer();
            calls.run(1);
            calls.table.set_in_dialog_response(CAROL, Some(200));
            for worker in 0..2 {
                calls.table.net.control_worker(worker, |border, now| {
                    border.drain(Duration::from_secs(1), now);
                });
            }
            calls.run(8);
            assert_eq!(calls.table.all_legs(), [0; 4], "{step:?} {fails}");
            calls.table.end_all();
        }
    }
}

/// The media timeout expires during a transfer.
#[test]
fn media_timeout_ends_transfers_in_progress() {
    for workers in WORKERS {
        let quiet = config(2, "udp").replace("timeout_s=0", "timeout_s=8");
        let mut calls = calls_of(TransferRig::of(&quiet, Transport::Udp), workers);
        calls.table.set_in_dialog_response(CAROL, None);
        calls.transfer();
        calls.run(20);
        calls.table.set_in_dialog_response(CAROL, Some(200));
        calls.run(40);
        calls.table.end_all();
    }
}

/// A worker that stores too many peer names takes no dialog with another name: nothing is lost.
#[test]
fn peer_name_limit_refuses_a_dialog() {
    // Peers that the first worker pings.
    let others = 0..10_000;
    let targets: Vec<String> = others
        .map(|peer| format!("'tls:10.3.{}.{}:5061'", peer / 250, peer % 250 + 1))
        .collect();
    let config = format!(
        "{}[[trunk]]\nname='others'\ninterface='in'\nping_interval_s=600\ntarget=[{}]\n",
        config(2, "tls"),
        targets.join(",")
    );
    let mut table = TransferRig::of(&config, Transport::Tls);
    table.run(Duration::from_secs(600));
    let asked: std::collections::BTreeSet<_> = (table.net.tls_connections.iter())
        .map(|(worker, remote, _)| (*worker, *remote))
        .collect();
    assert_eq!(asked.len(), 10_000);
    assert!(asked.iter().all(|(worker, _)| *worker == 0));
    let mut calls = calls_of(table, (0, 1));
    for _ in 0..2 {
        calls.transfer();
        calls.run(2);
        assert!(calls.table.refer_answered(BOB, 503));
        assert!(!calls.table.refer_answered(BOB, 202));
        assert_eq!(calls.table.notified(BOB), [""; 0]);
        calls.check_unchanged();
    }
    // In the other direction the second worker takes Alice's dialog, which has no such name.
    calls.table.attended(BOB, calls.consulting, calls.bob);
    calls.run(2);
    assert_eq!(calls.notified(), DONE[0]);
    let (alice, carol) = ((ALICE, calls.alice), (CAROL, calls.carol));
    calls.table.check_connection(alice, carol);
    calls.table.hang_up(ALICE, calls.alice);
    calls.run(40);
    assert_eq!(calls.table.all_legs(), [0; 4]);
    let left = calls.table.net.each_worker(|border, _| {
        let census = border.census();
        (census.calls, census.ports, census.trunk_calls, census.moved)
    });
    assert_eq!(left, [(0, 0, 0, 0); 2]);
}

/// Media passes after a failed transfer as before it, regardless of the target.
#[test]
fn failed_transfer_keeps_the_media_path() {
    let inside = config(2, "udp");
    let outside = inside.replace(
        "name='carol'\ninterface='in'",
        "name='carol'\ninterface='out'",
    );
    assert_ne!(inside, outside);
    for config in [inside, outside] {
        for workers in WORKERS {
            let mut calls = calls_of(TransferRig::of(&config, Transport::Udp), workers);
            let reported = calls.table.net.phones.iter().enumerate().map(|(index, _)| {
                let begins = |event: &PhoneEvent| {
                    matches!(event, PhoneEvent::Answered | PhoneEvent::Offered)
                };
                let body = calls.table.net.find(index, begins).body();
                let port = body.split("m=audio ").nth(1).unwrap_or_default();
                let port = port.split(' ').next().unwrap_or_default();
                let address = body.split("c=IN IP4 ").nth(1).unwrap_or_default();
                let address = address.lines().next().unwrap_or_default();
                format!("{address}:{port}")
            });
            let phones = [ALICE, BOB, CAROL];
            let reported: Vec<String> = reported.take(phones.len()).collect();
            let own = ["10.1.0.1:5000", "10.2.0.1:5000", "10.2.0.2:5000"];
            let heard = |calls: &mut Calls, from: usize, to: usize| {
                calls.table.net.media.clear();
                let packet = [&[0x80, 0, 0, 1, 0, 0, 0, 160, 1, 2, 3, 4][..], &[0x55; 160]];
                calls
                    .table
                    .net
                    .send_raw(own[from], &reported[from], &packet.concat());
                calls.run(1);
                let came = |(at, by, _): &(std::net::SocketAddr, std::net::SocketAddr, Vec<u8>)| {
                    at.to_string() == own[to] && by.to_string() == reported[to]
                };
                assert!(
                    calls.table.net.media.iter().any(came),
                    "{from} to {to}: {workers:?} {reported:?}"
                );
            };
            heard(&mut calls, ALICE, BOB);
            heard(&mut calls, BOB, ALICE);
            for refuses in [CAROL, ALICE] {
                calls.table.set_in_dialog_response(refuses, Some(488));
                calls.transfer();
                calls.run(2);
                assert!(calls.notified().starts_with("SIP/2.0 488"));
                calls.table.set_in_dialog_response(refuses, Some(200));
                heard(&mut calls, ALICE, BOB);
                heard(&mut calls, BOB, ALICE);
                assert_eq!(calls.table.ports(), 4, "a pair of each side of two calls");
            }
            calls.check_unchanged();
            heard(&mut calls, ALICE, BOB);
            heard(&mut calls, BOB, ALICE);
            calls.transfer_succeeds();
        }
    }
}
