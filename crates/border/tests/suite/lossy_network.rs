//! Calls over links that lose, duplicate and reorder: every attempt ends, no state is left, and the same seed gives the
//! same events.

use crate::virtual_network;

use border::calls::saved::{RestoreError, SaveError};
use engine::Entropy;
use sip::{LegId, MessageContent};
use std::time::Duration;
use virtual_network::saved_calls::SavedCalls;
use virtual_network::*;
use wire::sip::Method;

fn run(seed: u64, calls: usize) -> (Vec<String>, usize) {
    let config = format!("{PLAIN}[media]\ntimeout_s=600\n");
    let mut net = VirtualNetwork::new(&config, seed);
    // The reference of other runs: no call is written out.
    net.saved_calls = SavedCalls::new(0.0, 0);
    run_in(&mut net, seed, calls)
}

fn run_in(net: &mut VirtualNetwork, seed: u64, calls: usize) -> (Vec<String>, usize) {
    let mut chance = Entropy::from_number(seed ^ 0x5eed);
    net.link_conditions = LinkConditions {
        loss: 0.15 * chance.unit(),
        repeat: 0.2 * chance.unit(),
        delay: Duration::from_millis(1 + chance.below(30)),
        jitter: Duration::from_millis(1 + chance.below(300)),
    };
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut behaviour = PhoneBehaviour::answering(SDP_B);
    behaviour.progress = vec![(180, false), (183, chance.unit() < 0.5)];
    if behaviour.progress[1].1 {
        // The answer waits for PRACK at the phone's endpoint; it is sent below.
        behaviour.answer = None;
    }
    let bob = net.phone("10.2.0.1:5060", behaviour);
    let mut legs: Vec<LegId> = Vec::new();
    for _ in 0..calls {
        legs.push(net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &MessageContent::sdp(SDP_A.as_bytes()),
        ));
        net.run(Duration::from_millis(chance.below(2_000)));
        let entry: Vec<LegId> = net
            .log(bob)
            .iter()
            .filter(|entry| entry.event == PhoneEvent::Offered)
            .filter_map(|entry| entry.leg)
            .collect();
        for leg in entry {
            net.command(bob, |endpoint, now| {
                let _ = endpoint.answer(leg, 200, &MessageContent::sdp(SDP_B.as_bytes()), now);
            });
        }
        let leg = legs[chance.below(legs.len() as u64) as usize];
        let what = chance.below(4);
        net.command(alice, |endpoint, now| {
            let _ = match what {
                0 => endpoint.cancel(leg, &MessageContent::default(), now),
                1 => endpoint
                    .request(
                        leg,
                        Method::Invite,
                        &MessageContent::sdp(SDP_A.as_bytes()),
                        now,
                    )
                    .map(|_| ()),
                2 => endpoint
                    .request(leg, Method::Info, &MessageContent::default(), now)
                    .map(|_| ()),
                _ => endpoint.bye(leg, &MessageContent::default(), now),
            };
        });
    }
    net.run(Duration::from_secs(60));
    let open: Vec<LegId> = net
        .log(bob)
        .iter()
        .filter(|entry| entry.event == PhoneEvent::Offered)
        .filter_map(|entry| entry.leg)
        .collect();
    for leg in legs {
        net.command(alice, |endpoint, now| {
            let _ = endpoint.hang_up(leg, &MessageContent::default(), now);
        });
    }
    for leg in open {
        net.command(bob, |endpoint, now| {
            let _ = endpoint.hang_up(leg, &MessageContent::default(), now);
        });
    }
    net.run(Duration::from_secs(100));
    let census = net.border.census();
    assert!(
        census.is_quiet(),
        "seed {seed}: {census:#?} {:#?}",
        net.border.calls()
    );
    assert_eq!(net.forwarder.sessions(), 0, "seed {seed}");
    let offered = net
        .names()
        .iter()
        .filter(|name| **name == "call_offered")
        .count();
    let ended = net
        .names()
        .iter()
        .filter(|name| **name == "call_ended")
        .count();
    assert_eq!(offered, ended, "seed {seed}: every call has an outcome");
    let counters = net.border.counters();
    let outcomes = counters.completed
        + counters.cancelled
        + counters.declined
        + counters.unanswered
        + counters.refused
        + counters.redirected
        + counters.failed;
    assert_eq!(outcomes, counters.offered, "seed {seed}: {counters:?}");
    let events = net.events.iter().map(ToString::to_string);
    // Everything that the border sent belongs to the log of a run, but not to that of EVENT_LOG.
    let wire = net.wire.iter();
    let wire = wire.map(|(to, bytes)| format!("{to} {}", bytes.escape_ascii()));
    let log = match std::env::var_os("EVENT_LOG") {
        Some(_) => events.collect(),
        None => events.chain(wire).collect(),
    };
    (log, offered)
}

#[test]
fn every_call_ends_without_state() {
    let mut calls = 0;
    // With EVENT_LOG=FILE the events of all seeds are written to FILE, to compare two versions of the code.
    let mut log =
        std::env::var_os("EVENT_LOG").map(|path| std::fs::File::create(path).expect("event log"));
    for seed in 0..seeds(150) {
        let (events, offered) = run(seed, 8);
        calls += offered;
        if let Some(file) = &mut log {
            for event in events {
                std::io::Write::write_all(file, format!("{seed} {event}\n").as_bytes())
                    .expect("event log");
            }
        }
    }
    assert!(calls > 800, "{calls}");
}

/// Each call is written out and read back at random moments, and nothing changes. SEEDS=1000 for a long run.
#[test]
fn calls_that_are_read_back_go_on_as_before() {
    let (mut offered, mut saved, mut times) = (0, 0, 0);
    for seed in 0..seeds(40) {
        let config = format!("{PLAIN}[media]\ntimeout_s=600\n");
        let mut net = VirtualNetwork::new(&config, seed);
        net.saved_calls = SavedCalls::new(0.3, seed);
        let (events, calls) = run_in(&mut net, seed, 8);
        assert_eq!(events, run(seed, 8).0, "seed {seed}");
        let counts = net.saved_calls.saved;
        offered += calls;
        saved += counts.len();
        times += counts.values().sum::<u64>();
    }
    println!("{saved} of {offered} calls were saved, {times} times in all");
    // A call that ends with the next input may be missed.
    assert!(offered > 0);
    assert!(saved * 100 >= offered * 98, "{saved} of {offered}");
}

#[test]
fn damaged_states_of_calls_are_refused() {
    let mut net = VirtualNetwork::new(PLAIN, 7);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(Duration::from_secs(2));
    let numbers = net.border.call_numbers();
    assert_eq!(numbers.len(), 1);
    assert_eq!(net.border.save_call(99), Err(SaveError::UnknownCall));
    let bytes = net.border.save_call(numbers[0]).expect("an answered call");
    for length in 0..bytes.len() {
        let result = net.border.restore_call(&bytes[..length]);
        assert!(
            matches!(result, Err(RestoreError::Malformed(_))),
            "{length}: {result:?}"
        );
    }
    let longer = [&bytes[..], &[0]].concat();
    let result = net.border.restore_call(&longer);
    assert!(
        matches!(result, Err(RestoreError::Malformed(_))),
        "{result:?}"
    );
    let mut other = bytes.clone();
    other[0] = 99;
    assert_eq!(
        net.border.restore_call(&other),
        Err(RestoreError::Version(99))
    );
    // No damage ends the program while it is read.
    let mut chance = Entropy::from_number(11);
    for _ in 0..2_000 {
        let mut damaged = bytes.clone();
        let at = chance.below(bytes.len() as u64) as usize;
        damaged[at] ^= 1 << chance.below(8);
        let _ = net.border.restore_call(&damaged);
        net.border
            .restore_call(&bytes)
            .expect("the state as it was");
    }
    net.command(alice, |endpoint, now| {
        let content = MessageContent::default();
        endpoint
            .request(leg, Method::Info, &content, now)
            .expect("INFO");
    });
    net.run(Duration::from_secs(1));
    assert_eq!(net.border.restore_call(&bytes), Err(RestoreError::Stale));
    net.command(alice, |endpoint, now| {
        let _ = endpoint.hang_up(leg, &MessageContent::default(), now);
    });
    net.run(Duration::from_secs(60));
    assert!(net.border.census().is_quiet(), "{:#?}", net.border.census());
    assert_eq!(
        net.border.restore_call(&bytes),
        Err(RestoreError::UnknownCall)
    );
}

#[test]
fn same_seed_gives_the_same_events() {
    for seed in 1_000..1_005 {
        assert_eq!(run(seed, 6).0, run(seed, 6).0);
    }
}
