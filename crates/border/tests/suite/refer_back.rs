//! Transfers that fail: whatever goes wrong, and whichever workers the calls belong to, nobody loses a call that stood, and nothing is
//! left behind.

use crate::neighbourhood;
use crate::transfers;

use engine::{TransferStep, Transport};
use neighbourhood::*;
use sip::{Content, Ending, LegId};
use std::time::Duration;
use transfers::*;
use wire::sip::Method;

/// Workers of the two calls.
const WORKERS: [(u8, u8); 3] = [(1, 1), (0, 1), (1, 0)];

struct Calls {
    table: Table,
    /// The first call.
    alice: LegId,
    bob: LegId,
    /// The other one.
    consulting: LegId,
    carol: LegId,
}

/// Alice has called Bob, and Bob Carol.
fn calls_of(mut table: Table, (first, second): (u8, u8)) -> Calls {
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
    calls_of(Table::new(2), workers)
}

impl Calls {
    fn transfer(&mut self) {
        self.table.attended(BOB, self.bob, self.consulting);
    }

    fn run(&mut self, seconds: u64) {
        self.table.run(Duration::from_secs(seconds));
    }

    /// What NOTIFY told at last.
    fn told(&self) -> String {
        self.table.told(BOB).last().cloned().unwrap_or_default()
    }

    /// Both calls are as they were.
    fn stand(&mut self) {
        assert_eq!(self.table.all_legs(), [1, 2, 1, 0]);
        let (alice, bob) = ((ALICE, self.alice), (BOB, self.bob));
        self.table.talk(alice, bob);
        let (consulting, carol) = ((BOB, self.consulting), (CAROL, self.carol));
        self.table.talk(consulting, carol);
    }

    /// Now it works, and nothing is left of it.
    fn works(mut self) {
        self.transfer();
        self.run(2);
        assert_eq!(self.told(), DONE[0]);
        assert_eq!(self.table.all_legs(), [1, 0, 1, 0]);
        let (alice, carol) = ((ALICE, self.alice), (CAROL, self.carol));
        self.table.talk(alice, carol);
        assert_eq!(self.table.ports(), 2, "one call's: a pair of each side");
        self.table.hang_up(CAROL, self.carol);
        self.table.ends();
    }
}

/// Carol does not like the question.
#[test]
fn who_refuses_to_be_taken_stays_in_her_call() {
    for workers in WORKERS {
        let mut calls = calls(workers);
        for status in [488, 491, 503] {
            calls.table.says(CAROL, Some(status));
            calls.transfer();
            calls.run(2);
            assert!(calls.table.answered(BOB, 202));
            let told = calls.told();
            assert!(told.starts_with(&format!("SIP/2.0 {status}")), "{told}");
            calls.table.says(CAROL, Some(200));
            calls.stand();
        }
        // Both are refreshed as before, by whoever has promised it.
        calls.run(400);
        calls.stand();
        calls.works();
    }
}

/// Alice does not like Carol's description: Carol and Bob agree again.
#[test]
fn who_answered_for_nothing_goes_back_to_her_call() {
    for workers in WORKERS {
        let mut calls = calls(workers);
        for status in [488, 500] {
            calls.table.says(ALICE, Some(status));
            calls.transfer();
            calls.run(3);
            let told = calls.told();
            assert!(told.starts_with(&format!("SIP/2.0 {status}")), "{told}");
            calls.table.says(ALICE, Some(200));
            calls.stand();
        }
        calls.run(400);
        calls.stand();
        calls.works();
    }
}

/// Alice is not there any more.
#[test]
fn who_waited_for_somebody_who_is_gone_goes_back_to_her_call() {
    for workers in WORKERS {
        for answers in [true, false] {
            let mut calls = calls(workers);
            match answers {
                true => calls.table.says(ALICE, Some(481)),
                false => calls.table.net.silence("10.1.0.1:5060"),
            }
            calls.transfer();
            calls.run(40);
            let told = calls.told();
            let expected = if answers {
                "SIP/2.0 481"
            } else {
                "SIP/2.0 408"
            };
            assert!(told.starts_with(expected), "{told}");
            calls.table.leaves(ALICE);
            calls.run(2);
            assert_eq!(calls.table.all_legs()[1..], [1, 1, 0]);
            let (consulting, carol) = ((BOB, calls.consulting), (CAROL, calls.carol));
            calls.table.talk(consulting, carol);
            calls.table.hang_up(BOB, calls.consulting);
            calls.run(40);
            calls.table.ends();
        }
    }
}

/// Alice, or Carol, hears the question and does not answer it.
#[test]
fn who_thinks_for_too_long_is_asked_no_more() {
    for workers in WORKERS {
        for who in [ALICE, CAROL] {
            let mut calls = calls(workers);
            calls.table.says(who, None);
            calls.transfer();
            calls.run(25);
            let told = calls.told();
            assert!(told.starts_with("SIP/2.0 487"), "{told}");
            calls.table.says(who, Some(200));
            calls.stand();
            calls.works();
        }
    }
}

/// Carol is not there any more.
#[test]
fn who_is_gone_ends_her_call_alone() {
    for workers in WORKERS {
        for answers in [true, false] {
            let mut calls = calls(workers);
            match answers {
                true => calls.table.says(CAROL, Some(481)),
                false => calls.table.net.silence("10.2.0.2:5060"),
            }
            calls.transfer();
            calls.run(40);
            let told = calls.told();
            let expected = if answers {
                "SIP/2.0 481"
            } else {
                "SIP/2.0 408"
            };
            assert!(told.starts_with(expected), "{told}");
            calls.table.leaves(CAROL);
            assert_eq!(calls.table.all_legs()[..2], [1, 1]);
            let (alice, bob) = ((ALICE, calls.alice), (BOB, calls.bob));
            calls.table.talk(alice, bob);
            calls.table.hang_up(ALICE, calls.alice);
            calls.run(40);
            calls.table.ends();
        }
    }
}

/// While something is under way in the other call it stays as it is; afterwards it can be had.
#[test]
fn a_call_that_changes_is_had_later() {
    for workers in WORKERS {
        for (asking, answering) in [(BOB, CAROL), (CAROL, BOB)] {
            let mut calls = calls(workers);
            calls.table.says(answering, None);
            let leg = match asking {
                BOB => calls.consulting,
                _ => calls.carol,
            };
            calls.table.asks(asking, leg, Method::Invite);
            calls.run(1);
            calls.transfer();
            calls.run(1);
            assert!(calls.table.answered(BOB, 202));
            assert!(!calls.table.answered(BOB, 491));
            let told = calls.told();
            assert!(told.starts_with("SIP/2.0 491"), "{told}");
            calls.table.says(answering, Some(200));
            let before = calls.table.net.seen(calls.table.phones[asking]).len();
            calls.table.answers(answering, 200);
            calls.run(1);
            let heard = &calls.table.net.seen(calls.table.phones[asking])[before..];
            let answered = |seen: &Seen| matches!(seen.told, Told::Response(200, _));
            assert!(heard.iter().any(answered), "{heard:?}");
            calls.stand();
            calls.works();
        }
    }
}

/// A question that is under way is nobody's business: its asker is told that the call is over.
#[test]
fn a_question_under_way_keeps_nobody_from_a_transfer() {
    for workers in WORKERS {
        for (asking, answering) in [(BOB, CAROL), (CAROL, BOB)] {
            let mut calls = calls(workers);
            calls.table.says(answering, None);
            let leg = match asking {
                BOB => calls.consulting,
                _ => calls.carol,
            };
            calls.table.asks(asking, leg, Method::Info);
            calls.run(1);
            calls.table.says(answering, Some(200));
            calls.works();
        }
    }
}

/// The first call ends before the answer of the other worker is seen: the other one stays.
#[test]
fn who_was_given_to_a_call_that_ends_goes_back() {
    for step in [TransferStep::Asked, TransferStep::Answered] {
        let mut calls = calls((0, 1));
        calls.table.net.lose_words(Some(step));
        calls.transfer();
        calls.run(1);
        calls.table.net.lose_words(None);
        calls.table.hang_up(ALICE, calls.alice);
        calls.run(1);
        assert_eq!(calls.table.all_legs(), [0, 1, 1, 0]);
        let (consulting, carol) = ((BOB, calls.consulting), (CAROL, calls.carol));
        calls.table.talk(consulting, carol);
        calls.table.hang_up(BOB, calls.consulting);
        calls.table.ends();
    }
}

/// Both calls end before the answer of the other worker is seen.
#[test]
fn who_has_no_call_to_go_back_to_is_told() {
    for first in [ALICE, BOB] {
        let mut calls = calls((0, 1));
        calls.table.net.lose_words(Some(TransferStep::Answered));
        calls.transfer();
        calls.run(1);
        calls.table.net.lose_words(None);
        let (alice, consulting) = (calls.alice, calls.consulting);
        let mut ends = [(ALICE, alice), (BOB, consulting)];
        if first == BOB {
            ends.reverse();
        }
        // Whoever is first ends his call when the other one has lost its far end, or is about to have it again.
        calls.table.net.lose_words(Some(TransferStep::Over));
        for (who, leg) in ends {
            calls.table.hang_up(who, leg);
        }
        calls.table.net.lose_words(None);
        calls.run(6);
        let carol = calls.table.phones[CAROL];
        assert!(
            calls
                .table
                .net
                .has(carol, |told| *told == Told::Ended(Ending::Peer))
        );
        calls.table.ends();
    }
}

/// Nobody heard that the far end is to go back: who gave it looks for it.
#[test]
fn a_word_that_is_lost_on_the_way_back_loses_nothing() {
    let mut calls = calls((0, 1));
    calls.table.net.lose_words(Some(TransferStep::Over));
    calls.table.says(CAROL, Some(488));
    calls.transfer();
    calls.run(6);
    assert!(calls.told().starts_with("SIP/2.0 488"));
    calls.table.says(CAROL, Some(200));
    calls.stand();
    // And whoever is asked for meanwhile is there.
    calls.table.says(CAROL, Some(488));
    calls.transfer();
    calls.run(1);
    calls.table.says(CAROL, Some(200));
    let (consulting, carol) = ((BOB, calls.consulting), (CAROL, calls.carol));
    calls.table.speaks_to(carol, consulting);
    calls.table.net.lose_words(None);
    calls.run(6);
    calls.stand();
    calls.works();
}

/// What the far end says while it is between two workers is heard by the one that is to have it.
#[test]
fn who_speaks_on_the_way_is_heard() {
    for method in [Method::Info, Method::Bye, Method::Invite] {
        // Of a dialog that the second worker began, and of one that comes home.
        for home in [false, true] {
            let mut table = Table::new(2);
            let (consulting, carol);
            if home {
                let [asking, far] = table.call(BOB, CAROL, 0);
                // It moves to the second worker first.
                let [dave, other] = table.call(DAVE, BOB, 1);
                table.attended(BOB, other, asking);
                table.run(Duration::from_secs(2));
                assert_eq!(table.told(BOB), DONE);
                // And Dave's call with Carol is the one that Dave consults in.
                (consulting, carol) = (dave, far);
                let [_, called] = table.call(ALICE, DAVE, 0);
                table.net.lose_words(Some(TransferStep::Answered));
                table.attended(DAVE, called, consulting);
                table.run(Duration::from_secs(1));
            } else {
                let [_, bob] = table.call(ALICE, BOB, 0);
                [consulting, carol] = table.call(BOB, CAROL, 1);
                table.net.lose_words(Some(TransferStep::Answered));
                table.attended(BOB, bob, consulting);
                table.run(Duration::from_secs(1));
            }
            let phone = table.phones[CAROL];
            let before = table.net.seen(phone).len();
            match method {
                Method::Bye => table.net.tell(phone, |endpoint, now| {
                    endpoint.bye(carol, &Content::default(), now).unwrap();
                }),
                _ => table.asks(CAROL, carol, method),
            }
            table.run(Duration::from_secs(1));
            let heard = &table.net.seen(phone)[before..];
            match method {
                Method::Bye => {
                    let ended = heard
                        .iter()
                        .find(|seen| seen.told == Told::Ended(Ending::Us));
                    let text = ended.unwrap().text();
                    assert!(text.starts_with("SIP/2.0 200"), "{text}");
                }
                Method::Info => {
                    let answered = |seen: &Seen| matches!(seen.told, Told::Response(200, _));
                    assert!(heard.iter().any(answered), "{heard:?}");
                }
                // Ours crosses hers.
                _ => {
                    let answered = |seen: &Seen| matches!(seen.told, Told::Response(491, _));
                    assert!(heard.iter().any(answered), "{heard:?}");
                }
            }
            table.net.lose_words(None);
            table.run(Duration::from_secs(6));
            let referrer = if home { DAVE } else { BOB };
            let told = table.told(referrer);
            let told = told.last().map_or("", String::as_str);
            let worked = told.starts_with("SIP/2.0 200");
            match method {
                Method::Bye => assert!(told.starts_with("SIP/2.0 487"), "{told}"),
                Method::Info => assert!(worked, "{told}"),
                _ => {}
            }
            // Everyone goes.
            for who in [ALICE, BOB, CAROL, DAVE] {
                table.leaves(who);
            }
            table.run(Duration::from_secs(2));
            table.ends();
        }
    }
}

/// Who is asked for by two at once goes to one of them.
#[test]
fn one_far_end_is_given_once() {
    for (first, other) in [(0, 0), (0, 1), (0, 2)] {
        let mut table = Table::new(3);
        let [alice, bob] = table.call(ALICE, BOB, first);
        let [dave, called] = table.call(DAVE, BOB, other);
        let [consulting, carol] = table.call(BOB, CAROL, 1);
        table.attended(BOB, bob, consulting);
        table.attended(BOB, called, consulting);
        table.run(Duration::from_secs(6));
        let mut told = table.told(BOB);
        told.sort();
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0], DONE[0]);
        assert!(told[1].starts_with("SIP/2.0 491"), "{told:?}");
        assert_eq!(table.all_legs(), [1, 1, 1, 1]);
        let (one, rest) = match table.has_leg(BOB, called) {
            // Bob is left with Dave, or with Alice.
            true => ((ALICE, alice), [(BOB, called), (DAVE, dave)]),
            false => ((DAVE, dave), [(BOB, bob), (ALICE, alice)]),
        };
        table.talk(one, (CAROL, carol));
        table.talk(rest[0], rest[1]);
        for who in [ALICE, BOB, CAROL, DAVE] {
            table.leaves(who);
        }
        table.run(Duration::from_secs(2));
        table.ends();
    }
}

/// In each of two calls he refers to the other one.
#[test]
fn who_asks_for_both_gets_one_at_most() {
    for workers in WORKERS {
        let mut calls = calls(workers);
        calls.transfer();
        calls.table.attended(BOB, calls.consulting, calls.bob);
        calls.run(6);
        match calls.table.all_legs() {
            [1, 0, 1, 0] => {
                let (alice, carol) = ((ALICE, calls.alice), (CAROL, calls.carol));
                calls.table.talk(alice, carol);
                calls.table.hang_up(ALICE, calls.alice);
                calls.table.ends();
            }
            _ => {
                calls.stand();
                calls.works();
            }
        }
    }
}

/// The border is told to end while a transfer is under way.
#[test]
fn a_drain_ends_what_is_on_its_way() {
    for step in [
        None,
        Some(TransferStep::Asked),
        Some(TransferStep::Answered),
        Some(TransferStep::Over),
    ] {
        for fails in [false, true] {
            let mut calls = calls((0, 1));
            calls.table.net.lose_words(step);
            if fails {
                calls.table.says(CAROL, Some(488));
            }
            calls.transfer();
            calls.run(1);
            calls.table.says(CAROL, Some(200));
            for worker in 0..2 {
                calls.table.net.operate_worker(worker, |border, now| {
                    border.drain(Duration::from_secs(1), now);
                });
            }
            calls.run(8);
            assert_eq!(calls.table.all_legs(), [0; 4], "{step:?} {fails}");
            calls.table.ends();
        }
    }
}

/// Media is quiet for too long while a transfer is under way.
#[test]
fn media_that_is_quiet_ends_what_is_on_its_way() {
    for workers in WORKERS {
        let quiet = config(2, "udp").replace("timeout=0", "timeout=8");
        let mut calls = calls_of(Table::of(&quiet, Transport::Udp), workers);
        calls.table.says(CAROL, None);
        calls.transfer();
        calls.run(20);
        calls.table.says(CAROL, Some(200));
        calls.run(40);
        calls.table.ends();
    }
}

/// A worker that knows too many peers by their names takes no dialog with another one: nobody has lost anything.
#[test]
fn who_knows_too_many_names_takes_nobody() {
    // Those whom the first worker asks whether they are there.
    let others = 0..10_000;
    let targets: Vec<String> = others
        .map(|peer| format!("'tls:10.3.{}.{}:5061'", peer / 250, peer % 250 + 1))
        .collect();
    let config = format!(
        "{}[[trunk]]\nname='others'\ninterface='in'\nping=600\ntarget=[{}]\n",
        config(2, "tls"),
        targets.join(",")
    );
    let mut table = Table::of(&config, Transport::Tls);
    table.run(Duration::from_secs(600));
    let asked: std::collections::BTreeSet<_> = (table.net.secured.iter())
        .map(|(worker, remote, _)| (*worker, *remote))
        .collect();
    assert_eq!(asked.len(), 10_000);
    assert!(asked.iter().all(|(worker, _)| *worker == 0));
    let mut calls = calls_of(table, (0, 1));
    for _ in 0..2 {
        calls.transfer();
        calls.run(2);
        assert!(calls.table.answered(BOB, 503));
        assert!(!calls.table.answered(BOB, 202));
        assert_eq!(calls.table.told(BOB), [""; 0]);
        calls.stand();
    }
    // The other way round the second worker takes Alice, who has no such name.
    calls.table.attended(BOB, calls.consulting, calls.bob);
    calls.run(2);
    assert_eq!(calls.told(), DONE[0]);
    let (alice, carol) = ((ALICE, calls.alice), (CAROL, calls.carol));
    calls.table.talk(alice, carol);
    calls.table.hang_up(ALICE, calls.alice);
    calls.run(40);
    assert_eq!(calls.table.all_legs(), [0; 4]);
    let left = calls.table.net.each_worker(|border, _| {
        let census = border.census();
        (census.calls, census.ports, census.trunk_calls, census.moved)
    });
    assert_eq!(left, [(0, 0, 0, 0); 2]);
}

/// What was heard in a call before a transfer that fails is heard after it, wherever the target was.
#[test]
fn who_is_not_replaced_is_heard_as_before() {
    let inside = config(2, "udp");
    let outside = inside.replace(
        "name='carol'\ninterface='in'",
        "name='carol'\ninterface='out'",
    );
    assert_ne!(inside, outside);
    for config in [inside, outside] {
        for workers in WORKERS {
            let mut calls = calls_of(Table::of(&config, Transport::Udp), workers);
            let told = calls.table.net.phones.iter().enumerate().map(|(who, _)| {
                let begins = |told: &Told| matches!(told, Told::Answered | Told::Offered);
                let body = calls.table.net.find(who, begins).body();
                let port = body.split("m=audio ").nth(1).unwrap_or_default();
                let port = port.split(' ').next().unwrap_or_default();
                let address = body.split("c=IN IP4 ").nth(1).unwrap_or_default();
                let address = address.lines().next().unwrap_or_default();
                format!("{address}:{port}")
            });
            let phones = [ALICE, BOB, CAROL];
            let told: Vec<String> = told.take(phones.len()).collect();
            let own = ["10.1.0.1:5000", "10.2.0.1:5000", "10.2.0.2:5000"];
            let heard = |calls: &mut Calls, from: usize, to: usize| {
                calls.table.net.media.clear();
                let packet = [&[0x80, 0, 0, 1, 0, 0, 0, 160, 1, 2, 3, 4][..], &[0x55; 160]];
                calls
                    .table
                    .net
                    .throw(own[from], &told[from], &packet.concat());
                calls.run(1);
                let came = |(at, by, _): &(std::net::SocketAddr, std::net::SocketAddr, Vec<u8>)| {
                    at.to_string() == own[to] && by.to_string() == told[to]
                };
                assert!(
                    calls.table.net.media.iter().any(came),
                    "{from} to {to}: {workers:?} {told:?}"
                );
            };
            heard(&mut calls, ALICE, BOB);
            heard(&mut calls, BOB, ALICE);
            for refuses in [CAROL, ALICE] {
                calls.table.says(refuses, Some(488));
                calls.transfer();
                calls.run(2);
                assert!(calls.told().starts_with("SIP/2.0 488"));
                calls.table.says(refuses, Some(200));
                heard(&mut calls, ALICE, BOB);
                heard(&mut calls, BOB, ALICE);
                assert_eq!(calls.table.ports(), 4, "a pair of each side of two calls");
            }
            calls.stand();
            heard(&mut calls, ALICE, BOB);
            heard(&mut calls, BOB, ALICE);
            calls.works();
        }
    }
}
