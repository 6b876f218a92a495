//! Links behave as configured.

use engine::{DropReason, Entropy, Time};
use proptest::prelude::*;
use sim::link::{Delay, Emulator, Fate, Link, LinkConfig, Loss};
use std::time::Duration;

fn link(config: LinkConfig, seed: u64) -> Link {
    Link::new(config, Entropy::from_number(seed))
}

/// Sends `n` packets of 200 bytes, 1 ms apart; returns the losses in order and the arrivals.
fn run(link: &mut Link, n: u64) -> (Vec<bool>, Vec<(Time, Time)>) {
    let mut lost = Vec::new();
    let mut arrivals = Vec::new();
    for i in 0..n {
        let now = Time::from_millis(i);
        match link.offer(200, now) {
            Fate::Lost(_) => lost.push(true),
            Fate::Arrives(first, second) => {
                lost.push(false);
                arrivals.push((now, first));
                arrivals.extend(second.map(|at| (now, at)));
            }
        }
    }
    (lost, arrivals)
}

#[test]
fn random_loss_has_its_rate_and_no_memory() {
    let mut link = link(
        LinkConfig {
            loss: Loss::Random(0.1),
            ..LinkConfig::default()
        },
        1,
    );
    let (lost, _) = run(&mut link, 100_000);
    let rate = lost.iter().filter(|l| **l).count() as f64 / 1e5;
    assert!((rate - 0.1).abs() < 0.005, "{rate}");
    let after_loss = lost.windows(2).filter(|w| w[0]).count() as f64;
    let twice = lost.windows(2).filter(|w| w[0] && w[1]).count() as f64;
    assert!((twice / after_loss - 0.1).abs() < 0.02);
}

#[test]
fn burst_loss_has_its_rate_and_length() {
    let mut link = link(
        LinkConfig {
            loss: Loss::Bursts {
                to_bad: 0.01,
                to_good: 0.2,
                good: 0.0,
                bad: 1.0,
            },
            ..LinkConfig::default()
        },
        2,
    );
    let (lost, _) = run(&mut link, 200_000);
    let losses = lost.iter().filter(|l| **l).count() as f64;
    let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count() as f64;
    let share = losses / 2e5;
    assert!((share - 0.01 / 0.21).abs() < 0.006, "{share}");
    assert!((losses / bursts - 5.0).abs() < 0.4, "{}", losses / bursts);
}

#[test]
fn duplicates_and_reordering() {
    let mut twice = link(
        LinkConfig {
            duplicate: 0.05,
            ..LinkConfig::default()
        },
        3,
    );
    let (lost, arrivals) = run(&mut twice, 20_000);
    assert!(lost.iter().all(|l| !l));
    let extra = arrivals.len() - 20_000;
    assert!((900..1_100).contains(&extra), "{extra}");

    let mut mixed = link(
        LinkConfig {
            reorder: 0.02,
            reorder_by: Duration::from_millis(20),
            ..LinkConfig::default()
        },
        4,
    );
    let (_, arrivals) = run(&mut mixed, 20_000);
    let late = arrivals
        .iter()
        .filter(|(sent, at)| *at - *sent > Duration::from_millis(20))
        .count();
    assert!((340..460).contains(&late), "{late}");
}

#[test]
fn delays_have_their_distribution() {
    let ms = Duration::from_millis;
    let mean = |delay: Delay, seed| {
        let config = LinkConfig {
            delay,
            ordered: false,
            ..LinkConfig::default()
        };
        let (_, arrivals) = run(&mut link(config, seed), 50_000);
        let spans: Vec<f64> = arrivals
            .iter()
            .map(|(sent, at)| (*at - *sent).as_secs_f64() * 1e3)
            .collect();
        let mean = spans.iter().sum::<f64>() / spans.len() as f64;
        let variance = spans.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / spans.len() as f64;
        (
            mean,
            variance.sqrt(),
            spans.iter().copied().fold(f64::MAX, f64::min),
        )
    };
    assert_eq!(mean(Delay::Constant(ms(7)), 1), (7.0, 0.0, 7.0));
    let (m, _, least) = mean(Delay::Uniform(ms(10), ms(30)), 2);
    assert!((m - 20.0).abs() < 0.2 && least >= 10.0);
    let (m, d, _) = mean(
        Delay::Normal {
            mean: ms(40),
            deviation: ms(5),
        },
        3,
    );
    assert!((m - 40.0).abs() < 0.1 && (d - 5.0).abs() < 0.1, "{m} {d}");
    let (m, d, least) = mean(
        Delay::Tail {
            base: ms(10),
            mean: ms(4),
        },
        4,
    );
    assert!((m - 14.0).abs() < 0.2 && (d - 4.0).abs() < 0.2 && least >= 10.0);
}

#[test]
fn rate_spaces_packets_and_queue_overflows() {
    // 1 Mbit/s: 1,250 bytes take 10 ms.
    let mut slow = link(
        LinkConfig {
            delay: Delay::Constant(Duration::ZERO),
            rate: Some(1_000_000),
            queue: 5_000,
            ..LinkConfig::default()
        },
        5,
    );
    let mut arrivals = Vec::new();
    let mut full = 0;
    for _ in 0..10 {
        match slow.offer(1_250, Time::ZERO) {
            Fate::Arrives(at, None) => arrivals.push(at.as_millis()),
            Fate::Lost(DropReason::LinkQueueFull) => full += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(arrivals, [10, 20, 30, 40]);
    assert_eq!(full, 6);
    // The queue drains over time.
    assert_eq!(
        slow.offer(1_250, Time::from_millis(35)),
        Fate::Arrives(Time::from_millis(50), None)
    );
}

#[test]
fn emulator_holds_packets_until_their_time() {
    let mut emulator = Emulator::new(link(LinkConfig::default(), 6), 2);
    assert_eq!(emulator.push('a', 100, Time::ZERO), None);
    assert_eq!(emulator.push('b', 100, Time::from_micros(50)), None);
    assert_eq!(
        emulator.push('c', 100, Time::from_micros(60)),
        Some(DropReason::LinkQueueFull)
    );
    assert_eq!(emulator.pop(Time::from_micros(199)), None);
    assert_eq!(emulator.next_at(), Some(Time::from_micros(200)));
    assert_eq!(
        emulator.pop(Time::from_millis(1)),
        Some((Time::from_micros(200), 'a'))
    );
    assert_eq!(
        emulator.pop(Time::from_millis(1)),
        Some((Time::from_micros(250), 'b'))
    );
    assert_eq!(emulator.lost, 1);
}

proptest! {
    /// With any settings no packet arrives before it was sent, and an ordered link without reordering keeps the order.
    #[test]
    fn packets_are_never_early_and_in_order(
        seed: u64,
        loss in 0.0f64..1.0,
        duplicate in 0.0f64..1.0,
        low in 0u64..50_000_000,
        width in 0u64..50_000_000,
        rate in proptest::option::of(1_000u64..100_000_000),
        ordered: bool,
    ) {
        let mut link = link(LinkConfig {
            delay: Delay::Uniform(Duration::from_nanos(low), Duration::from_nanos(low + width)),
            loss: Loss::Random(loss),
            duplicate,
            ordered,
            rate,
            ..LinkConfig::default()
        }, seed);
        let (_, arrivals) = run(&mut link, 200);
        for (sent, at) in &arrivals {
            prop_assert!(at.0 >= sent.0 + low);
        }
        if ordered {
            prop_assert!(arrivals.windows(2).all(|w| w[0].1 <= w[1].1));
        }
    }
}
