//! The port pool: pairs, exhaustion, completeness, late reuse.

use core::time::Duration;
use engine::{Entropy, Time};
use media::ports::{EmptyRange, PortPool};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const NOW: Time = Time::ZERO;

fn pool(first: u16, last: u16, seed: u64) -> PortPool {
    PortPool::new(ADDRESS, first, last, Entropy::from_number(seed)).unwrap()
}

#[test]
fn pairs_are_even_and_odd() {
    let mut odd = pool(20_001, 20_008, 1);
    assert_eq!(odd.capacity(), 3, "20002 to 20007");
    let pairs: Vec<_> = std::iter::from_fn(|| odd.allocate(NOW)).collect();
    let ports: BTreeSet<u16> = pairs.iter().map(|pair| pair.rtp().port()).collect();
    assert_eq!(
        ports.into_iter().collect::<Vec<_>>(),
        [20_002, 20_004, 20_006]
    );
    assert!(
        pairs
            .iter()
            .all(|pair| pair.rtcp().port() == pair.rtp().port() + 1)
    );
    assert_eq!((odd.exhausted(), odd.in_use(), odd.peak()), (1, 3, 3));
    for pair in pairs {
        odd.release(pair).unwrap();
    }
    assert_eq!(odd.in_use(), 0);
    for (first, last) in [(7, 7), (7, 8), (9, 3), (0, 1)] {
        let empty = PortPool::new(ADDRESS, first, last, Entropy::from_number(1));
        assert_eq!(empty.err(), Some(EmptyRange), "{first} to {last}");
    }
    assert_eq!(pool(0, 65_535, 1).capacity(), 32_767);
    let mut last = pool(65_534, 65_535, 1);
    assert_eq!(last.allocate(NOW).unwrap().rtcp().port(), 65_535);
}

#[test]
fn order_is_unpredictable_and_reuse_is_late() {
    let order = |seed| {
        let mut pool = pool(20_000, 20_199, seed);
        std::iter::from_fn(|| pool.allocate(NOW).map(|pair| pair.rtp().port())).collect::<Vec<_>>()
    };
    assert_ne!(order(1), order(2));
    assert_eq!(order(1), order(1));
    let mut sorted = order(1);
    sorted.sort_unstable();
    assert_ne!(sorted, order(1));
    let mut pool = pool(20_000, 20_199, 3);
    for _ in 0..2000 {
        let pair = pool.allocate(NOW).unwrap();
        let port = pair.rtp().port();
        pool.release(pair).unwrap();
        let others: Vec<_> = (0..40).map(|_| pool.allocate(NOW).unwrap()).collect();
        assert!(others.iter().all(|other| other.rtp().port() != port));
        others
            .into_iter()
            .for_each(|other| pool.release(other).unwrap());
    }
}

#[test]
fn pair_of_another_pool_is_returned() {
    let mut mine = pool(20_000, 20_009, 1);
    let mut other = pool(20_000, 20_009, 1);
    let pair = other.allocate(NOW).unwrap();
    let pair = mine.release(pair).unwrap_err();
    assert_eq!(mine.in_use(), 0);
    other.release(pair).unwrap();
    let mut above = pool(30_000, 30_009, 1);
    assert!(mine.release(above.allocate(NOW).unwrap()).is_err());
}

proptest! {
    #[test]
    fn pairs_are_unique_and_none_is_lost(steps in prop::collection::vec(any::<(bool, u8)>(), 0..400), seed: u64) {
        let mut pool = pool(10_000, 10_063, seed);
        let mut held = Vec::new();
        for (take, which) in steps {
            if take {
                match pool.allocate(NOW) {
                    Some(pair) => {
                        prop_assert!(!held.contains(&pair));
                        prop_assert!(pair.rtp().port() % 2 == 0);
                        held.push(pair);
                    }
                    None => prop_assert_eq!(held.len(), 32),
                }
            } else if !held.is_empty() {
                let pair = held.swap_remove(usize::from(which) % held.len());
                prop_assert!(pool.release(pair).is_ok());
            }
            prop_assert_eq!(pool.in_use(), held.len());
        }
    }
}

/// Using a new pair costs a socket, so used ones are preferred once enough of them wait.
#[test]
fn unused_pairs_are_spared() {
    let entropy = engine::Entropy::from_number(9);
    let mut pool = PortPool::new("192.0.2.1".parse().unwrap(), 10_000, 49_999, entropy).unwrap();
    let mut seen = std::collections::BTreeMap::new();
    for round in 0..60_000 {
        let pair = pool.allocate(NOW).unwrap();
        if let Some(last) = seen.insert(pair.rtp(), round) {
            assert!(
                round - last > 1_000,
                "{} after {} rounds",
                pair.rtp(),
                round - last
            );
        }
        pool.release(pair).unwrap();
    }
    assert!(seen.len() < 2_500, "{} pairs were touched", seen.len());
}

#[test]
fn pairs_of_other_programs_are_left_out_and_come_last() {
    let mut pool = pool(20_000, 20_007, 3);
    let bad = pool.allocate(NOW).unwrap();
    let port = bad.rtp();
    let until = NOW + Duration::from_secs(60);
    pool.leave_out(&bad, until);
    pool.release(bad).unwrap();
    assert_eq!(pool.in_use(), 0, "no pair is in use");
    for _ in 0..20 {
        let pairs: Vec<_> = (0..3).map(|_| pool.allocate(until).unwrap()).collect();
        assert!(pairs.iter().all(|pair| pair.rtp() != port));
        for pair in pairs {
            pool.release(pair).unwrap();
        }
    }
    let others: Vec<_> = (0..3).map(|_| pool.allocate(NOW).unwrap()).collect();
    assert_eq!((others.len(), pool.exhausted()), (3, 0));
    assert!(pool.allocate(NOW).is_none(), "it is left out");
    assert_eq!((pool.in_use(), pool.exhausted()), (3, 1));
    let again = pool.allocate(until).unwrap();
    assert_eq!(again.rtp(), port, "the other program may have ended");
    assert!(pool.allocate(until).is_none());
    // It has: the pair is like any other.
    pool.release(again).unwrap();
    assert!(pool.allocate(NOW).is_some());
    // Pairs of other pools.
    let mut other = PortPool::new(ADDRESS, 30_000, 30_001, Entropy::from_number(3)).unwrap();
    let foreign = other.allocate(NOW).unwrap();
    pool.leave_out(&foreign, until);
    other.leave_out(&others[0], until);
    other.release(foreign).unwrap();
    assert!(other.allocate(NOW).is_some());
}
