//! Calls over wires that lose, repeat and reorder: every attempt ends, nothing is left over, and the same seed gives the
//! same events.

use crate::neighbourhood;

use engine::Entropy;
use neighbourhood::*;
use sip::{Content, LegId};
use std::time::Duration;
use wire::sip::Method;

const OUT: &str = "192.0.2.1:5060";

fn run(seed: u64, calls: usize) -> (Vec<String>, usize) {
    let config = format!("{PLAIN}[media]\ntimeout=600\n");
    let mut net = Neighbourhood::new(&config, seed);
    let mut chance = Entropy::from_number(seed ^ 0x5eed);
    net.weather = Weather {
        loss: 0.15 * chance.unit(),
        repeat: 0.2 * chance.unit(),
        delay: Duration::from_millis(1 + chance.below(30)),
        jitter: Duration::from_millis(1 + chance.below(300)),
    };
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let mut manners = Manners::answering(SDP_B);
    manners.progress = vec![(180, false), (183, chance.unit() < 0.5)];
    if manners.progress[1].1 {
        // The answer waits for PRACK at the phone's endpoint; it is told to answer below.
        manners.answer = None;
    }
    let bob = net.phone("10.2.0.1:5060", manners);
    let mut legs: Vec<LegId> = Vec::new();
    for _ in 0..calls {
        legs.push(net.call(
            alice,
            "sip:bob@192.0.2.1",
            OUT,
            &Content::sdp(SDP_A.as_bytes()),
        ));
        net.run(Duration::from_millis(chance.below(2_000)));
        let seen: Vec<LegId> = net
            .seen(bob)
            .iter()
            .filter(|seen| seen.told == Told::Offered)
            .filter_map(|seen| seen.leg)
            .collect();
        for leg in seen {
            net.tell(bob, |endpoint, now| {
                let _ = endpoint.answer(leg, 200, &Content::sdp(SDP_B.as_bytes()), now);
            });
        }
        let leg = legs[chance.below(legs.len() as u64) as usize];
        let what = chance.below(4);
        net.tell(alice, |endpoint, now| {
            let _ = match what {
                0 => endpoint.cancel(leg, &Content::default(), now),
                1 => endpoint
                    .request(leg, Method::Invite, &Content::sdp(SDP_A.as_bytes()), now)
                    .map(|_| ()),
                2 => endpoint
                    .request(leg, Method::Info, &Content::default(), now)
                    .map(|_| ()),
                _ => endpoint.bye(leg, &Content::default(), now),
            };
        });
    }
    net.run(Duration::from_secs(60));
    let open: Vec<LegId> = net
        .seen(bob)
        .iter()
        .filter(|seen| seen.told == Told::Offered)
        .filter_map(|seen| seen.leg)
        .collect();
    for leg in legs {
        net.tell(alice, |endpoint, now| {
            let _ = endpoint.hang_up(leg, &Content::default(), now);
        });
    }
    for leg in open {
        net.tell(bob, |endpoint, now| {
            let _ = endpoint.hang_up(leg, &Content::default(), now);
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
    assert_eq!(offered, ended, "seed {seed}: every call has its outcome");
    let counters = net.border.counters();
    let outcomes = counters.completed
        + counters.cancelled
        + counters.declined
        + counters.unanswered
        + counters.refused
        + counters.redirected
        + counters.failed;
    assert_eq!(outcomes, counters.offered, "seed {seed}: {counters:?}");
    (
        net.events.iter().map(ToString::to_string).collect(),
        offered,
    )
}

#[test]
fn no_call_is_left_half_open() {
    let mut calls = 0;
    for seed in 0..std::env::var("SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(150u64)
    {
        calls += run(seed, 8).1;
    }
    assert!(calls > 800, "{calls}");
}

#[test]
fn the_same_seed_gives_the_same_events() {
    for seed in 1_000..1_005 {
        assert_eq!(run(seed, 6).0, run(seed, 6).0);
    }
}
