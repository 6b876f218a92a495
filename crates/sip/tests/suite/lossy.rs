//! Random commands over a network that loses, duplicates and reorders: no leg stays half open, no state is left.

use crate::common;

use common::*;
use engine::{Entropy, Transport};
use proptest::prelude::*;
use sip::*;
use std::time::Duration;
use wire::sip::Method;

#[derive(Clone, Copy, Debug)]
enum Act {
    Call(usize),
    Cancel(usize),
    Bye(usize),
    Reinvite(usize),
    Update(usize),
    Info(usize),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..2usize).prop_map(Act::Call),
        1 => (0..2usize).prop_map(Act::Cancel),
        2 => (0..2usize).prop_map(Act::Bye),
        1 => (0..2usize).prop_map(Act::Reinvite),
        1 => (0..2usize).prop_map(Act::Update),
        1 => (0..2usize).prop_map(Act::Info),
        4 => (1..3_000u64).prop_map(Act::Wait),
    ]
}

/// All legs of a host.
fn legs(host: &Host, called: &[LegId]) -> Vec<LegId> {
    let offered = host
        .log
        .indications
        .iter()
        .filter_map(|recorded| match recorded {
            RecordedIndication::Offered(leg) => Some(*leg),
            _ => None,
        });
    called.iter().copied().chain(offered).collect()
}

fn run(acts: &[Act], faults: Faults, seed: u64, transport: Transport) {
    let config = EndpointConfig {
        session: Some(SessionConfig {
            expires: 100,
            min_se: 90,
        }),
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new([config.clone(), config], seed);
    pair.faults = faults;
    let mut called = [Vec::new(), Vec::new()];
    let mut entropy = Entropy::from_number(seed ^ 77);
    for act in acts {
        let now = pair.now;
        let mut pick = |pair: &Pair, host: usize| {
            let legs = legs(&pair.hosts[host], &called[host]);
            legs.get(entropy.below(legs.len() as u64) as usize).copied()
        };
        match *act {
            Act::Call(host) => {
                let leg = pair.call(host, transport);
                called[host].push(leg);
            }
            Act::Wait(ms) => pair.run(Duration::from_millis(ms)),
            Act::Cancel(host) | Act::Bye(host) => {
                if let Some(leg) = pick(&pair, host) {
                    let _ = pair.hosts[host]
                        .endpoint
                        .hang_up(leg, &MessageContent::default(), now);
                }
            }
            Act::Reinvite(host) | Act::Update(host) | Act::Info(host) => {
                let method = match act {
                    Act::Reinvite(_) => Method::Invite,
                    Act::Update(_) => Method::Update,
                    _ => Method::Info,
                };
                if let Some(leg) = pick(&pair, host) {
                    let content = match method {
                        Method::Info => MessageContent::default(),
                        _ => MessageContent::sdp(SDP),
                    };
                    let _ = pair.hosts[host]
                        .endpoint
                        .request(leg, method, &content, now);
                }
            }
        }
    }
    pair.run(Duration::from_secs(40));
    for (host, called) in called.iter().enumerate() {
        let now = pair.now;
        for leg in legs(&pair.hosts[host], called) {
            // Refused for legs that have ended.
            let _ = pair.hosts[host]
                .endpoint
                .hang_up(leg, &MessageContent::default(), now);
        }
    }
    pair.settle();
    // Every leg has exactly one end indication.
    for (host, called) in called.iter().enumerate() {
        for leg in legs(&pair.hosts[host], called) {
            let ends = pair.hosts[host].log.count(|recorded| {
                matches!(recorded, RecordedIndication::Failed(l, ..) | RecordedIndication::Ended(l, _) | RecordedIndication::Cancelled(l) if *l == leg)
            });
            assert_eq!(ends, 1, "{leg:?} {:?}", pair.hosts[host].log.indications);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn lossy_udp_leaves_no_state(
        acts in prop::collection::vec(act(), 1..40),
        lost in 0..400u64,
        duplicated in 0..300u64,
        late in 0..500u64,
        seed in 0..1_000_000u64,
    ) {
        run(&acts, Faults { lost, duplicated, late }, seed, Transport::Udp);
    }

    #[test]
    fn tcp_leaves_no_state(acts in prop::collection::vec(act(), 1..40), seed in 0..1_000_000u64) {
        run(&acts, Faults::default(), seed, Transport::Tcp);
    }

    #[test]
    fn arbitrary_fuzz_input(data in prop::collection::vec(any::<u8>(), 0..2_000)) {
        sip::fuzz::fuzz_endpoint(&data);
    }
}

/// Runs `rounds` lists of steps that are mostly valid (random bytes rarely are a message); returns the set of
/// indications.
fn random_steps(rounds: u32, seed: u64) -> u32 {
    let mut entropy = Entropy::from_number(seed);
    let mut seen = 0;
    for _ in 0..rounds {
        let mut data = Vec::new();
        for _ in 0..entropy.below(60) {
            let kind = [5, 6, 7, 8, 8, 9, 10, 10][entropy.below(8) as usize];
            data.extend_from_slice(&[kind, entropy.u32() as u8, 1]);
            data.extend_from_slice(&entropy.u32().to_be_bytes());
        }
        seen |= sip::fuzz::run_steps(&data);
    }
    seen
}

#[test]
fn random_steps_reach_all_indications() {
    // All kinds of indications except 8, a cancelled re-INVITE, which has its own test.
    let seen = random_steps(6_000, 99);
    assert_eq!(seen | 1 << 8, (1 << 19) - 1, "{seen:018b}");
}

/// `HORNWORK_SEEDS` sets the number of seeds; 100 take some minutes.
#[test]
fn random_steps_from_other_seeds() {
    let seeds = std::env::var("HORNWORK_SEEDS").ok();
    let seeds = seeds.and_then(|text| text.parse().ok()).unwrap_or(2);
    for seed in 0..seeds {
        assert_ne!(random_steps(1_000, seed), 0, "seed {seed}: no indication");
    }
}

#[test]
fn same_seed_gives_the_same_messages() {
    let ladder = || {
        let mut pair = Pair::new([EndpointConfig::default(), EndpointConfig::default()], 42);
        pair.faults = Faults {
            lost: 200,
            duplicated: 200,
            late: 200,
        };
        for _ in 0..20 {
            pair.call(0, Transport::Udp);
            pair.run(Duration::from_millis(300));
        }
        pair.run(Duration::from_secs(60));
        pair.ladder
    };
    let first = ladder();
    let answered = first
        .iter()
        .filter(|(_, _, text)| text.starts_with("SIP/2.0 200"));
    assert!(answered.count() >= 20, "too few calls were answered");
    assert!(first == ladder());
}
