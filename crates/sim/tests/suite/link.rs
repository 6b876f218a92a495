//! Links behave as configured.

use engine::{DropReason, Entropy, Time};
use proptest::prelude::*;
use sim::link::{Delay, Fate, Link, LinkConfig, Loss};
use sim::{CodelSettings, Emulator, Framing, Passage};
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

/// The packets that have arrived by `now`, with their times in milliseconds.
fn arrived<T: Clone>(emulator: &mut Emulator<T>, now: Time) -> Vec<(u64, T)> {
    let mut all = Vec::new();
    while let Some((at, passage)) = emulator.pop(now) {
        if let Passage::Arrived { packet, .. } = passage {
            all.push((at.as_millis(), packet));
        }
    }
    all
}

#[test]
fn emulator_holds_packets_until_their_time_and_never_more_than_its_limit() {
    let mut emulator = Emulator::new(link(LinkConfig::default(), 6), 2);
    assert_eq!(emulator.push('a', 100, Time::ZERO), Ok(()));
    assert_eq!(emulator.push('b', 100, Time::from_micros(50)), Ok(()));
    assert_eq!(
        emulator.push('c', 100, Time::from_micros(60)),
        Err(('c', DropReason::LinkQueueFull))
    );
    assert_eq!(emulator.pop(Time::from_micros(199)), None);
    assert_eq!(emulator.next_at(), Some(Time::from_micros(200)));
    let passed = |packet| Passage::Arrived {
        packet,
        corrupt: false,
    };
    assert_eq!(
        emulator.pop(Time::from_millis(1)),
        Some((Time::from_micros(200), passed('a')))
    );
    assert_eq!(
        emulator.pop(Time::from_millis(1)),
        Some((Time::from_micros(250), passed('b')))
    );
    assert_eq!(emulator.counts().over_limit, 1);

    // A duplicate needs room, too.
    let config = LinkConfig {
        duplicate: 1.0,
        ..LinkConfig::default()
    };
    let mut twice = Emulator::new(link(config, 6), 3);
    assert!(twice.push(1, 100, Time::ZERO).is_ok());
    assert_eq!(twice.packets(), 2);
    assert!(twice.push(2, 100, Time::ZERO).is_ok());
    assert_eq!(twice.packets(), 3);
    assert!(twice.push(3, 100, Time::ZERO).is_err());
    assert_eq!(arrived(&mut twice, Time::from_millis(1)).len(), 3);
}

/// A line of 64 kbit/s.
fn serial(queue_packets: usize) -> LinkConfig {
    LinkConfig {
        delay: Delay::Constant(Duration::from_millis(20)),
        rate: Some(64_000),
        framing: Framing::Hdlc,
        queue: usize::MAX,
        queue_packets: Some(queue_packets),
        ..LinkConfig::default()
    }
}

#[test]
fn framing_counts_on_the_line_and_the_queue_counts_packets() {
    // 193 bytes with 7 of HDLC are 1,600 bits, 25 ms at 64 kbit/s.
    let mut emulator = Emulator::new(link(serial(3), 1), 100);
    let kept: Vec<u32> = (0..8)
        .filter(|n| emulator.push(*n, 193, Time::ZERO).is_ok())
        .collect();
    // One on the line, three waiting.
    assert_eq!(kept, [0, 1, 2, 3]);
    assert_eq!(emulator.counts().queue_full, 4);
    let times: Vec<u64> = arrived(&mut emulator, Time::from_secs(1))
        .iter()
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(times, [45, 70, 95, 120]);
    // Without events the fate is the same.
    let mut plain = link(serial(3), 1);
    let fates: Vec<Fate> = (0..5).map(|_| plain.offer(193, Time::ZERO)).collect();
    assert_eq!(fates[3], Fate::Arrives(Time::from_millis(120), None));
    assert_eq!(fates[4], Fate::Lost(DropReason::LinkQueueFull));
    assert!(matches!(
        plain.offer(193, Time::from_millis(26)),
        Fate::Arrives(..)
    ));
}

#[test]
fn new_rate_applies_to_waiting_packets_and_the_rest_of_the_current_one() {
    let mut emulator = Emulator::new(link(serial(10), 1), 100);
    for n in 0..3 {
        assert!(emulator.push(n, 193, Time::ZERO).is_ok());
    }
    // After 5 of 25 ms the rate is tenfold: 20 ms become 2 ms, the others take 2.5 ms.
    let faster = LinkConfig {
        rate: Some(640_000),
        ..serial(10)
    };
    emulator.set(faster.clone(), Time::from_millis(5));
    let mut all = Vec::new();
    while let Some((at, _)) = emulator.pop(Time::from_secs(1)) {
        all.push(at.0 / 100_000);
    }
    assert_eq!(all, [270, 295, 320]);
    // A link in virtual time: a slow packet no longer blocks a line whose rate was raised.
    let mut plain = link(
        LinkConfig {
            rate: Some(64),
            ..serial(10)
        },
        1,
    );
    assert!(matches!(plain.offer(193, Time::ZERO), Fate::Arrives(..)));
    plain.set(
        LinkConfig {
            rate: None,
            ordered: false,
            ..serial(10)
        },
        Time::from_millis(5),
    );
    assert_eq!(
        plain.offer(193, Time::from_millis(5)),
        Fate::Arrives(Time::from_millis(25), None)
    );
}

#[test]
fn mtu_drops_larger_packets_and_divides_connections() {
    let config = LinkConfig {
        mtu: Some(1_000),
        ..serial(10)
    };
    let mut plain = link(config.clone(), 1);
    let too_large = DropReason::LinkTooLarge;
    assert_eq!(plain.offer(1_001, Time::ZERO), Fate::Lost(too_large));
    assert!(matches!(plain.offer(1_000, Time::ZERO), Fate::Arrives(..)));
    let mut emulator = Emulator::new(link(config.clone(), 1), 100);
    assert_eq!(emulator.push((), 1_001, Time::ZERO), Err(((), too_large)));
    assert!(emulator.push((), 1_000, Time::ZERO).is_ok());
    // 1,500 bytes in two packets: 1,514 bytes on the line, 189.25 ms.
    let mut stream = link(config, 1);
    assert_eq!(
        stream.offer_segment(1_500, Time::ZERO),
        Fate::Arrives(Time::from_micros(209_250), None)
    );
}

#[test]
fn trace_is_followed_and_repeated() {
    let loss = Loss::parse_trace("# a comment 111\n0 1 0\n01\n").unwrap();
    assert!((loss.share() - 0.4).abs() < 1e-9);
    let config = LinkConfig {
        loss,
        ..LinkConfig::default()
    };
    let (lost, _) = run(&mut link(config.clone(), 1), 7);
    assert_eq!(lost, [false, true, false, false, true, false, true]);
    let mut emulator = Emulator::new(link(config, 1), 100);
    for n in 0..7 {
        assert!(emulator.push(n, 100, Time::ZERO).is_ok());
    }
    let kept: Vec<u32> = arrived(&mut emulator, Time::from_secs(1))
        .into_iter()
        .map(|(_, n)| n)
        .collect();
    assert_eq!(kept, [0, 2, 3, 5]);
    assert!(Loss::parse_trace("01\n02").unwrap_err().contains("line 2"));
    assert!(Loss::parse_trace("# nothing\n").is_err());
}

#[test]
fn shares_of_losses_need_bursts_of_some_length() {
    for (share, least) in [(0.5, 1.0), (0.6, 1.5), (0.8, 4.0), (0.9, 9.0)] {
        let found = Loss::least_burst(share).unwrap();
        assert!((found - least).abs() < 1e-6 && found <= least, "{found}");
        assert!((Loss::in_bursts(share, least.max(1.01)).share() - share).abs() < 1e-9);
    }
    assert_eq!(
        (Loss::least_burst(0.0), Loss::least_burst(1.0)),
        (None, None)
    );
}

#[test]
fn correlation_of_losses_is_that_of_the_link() {
    assert_eq!(Loss::Random(0.1).correlation(), 0.0);
    let bursts = Loss::in_bursts(0.02, 4.0);
    let gentle = Loss::Bursts {
        to_bad: 0.02,
        to_good: 0.2,
        good: 0.01,
        bad: 0.5,
    };
    for loss in [bursts, gentle] {
        let config = LinkConfig {
            loss: loss.clone(),
            ..LinkConfig::default()
        };
        let (lost, _) = run(&mut link(config, 4), 1_000_000);
        let p = loss.share();
        let pairs = lost.windows(2).filter(|pair| pair[0] && pair[1]).count();
        let both = pairs as f64 / (lost.len() - 1) as f64;
        let found = (both - p * p) / (p * (1.0 - p));
        let wanted = loss.correlation();
        assert!((found - wanted).abs() < 0.03, "{found} {wanted}");
    }
}

#[test]
fn corruption_has_its_rate() {
    let config = LinkConfig {
        corrupt: 0.05,
        ..LinkConfig::default()
    };
    let mut emulator = Emulator::new(link(config.clone(), 3), 100);
    let mut corrupted = 0;
    for n in 0..20_000u64 {
        assert!(emulator.push(n, 100, Time::from_millis(n)).is_ok());
        while let Some((_, passage)) = emulator.pop(Time::from_millis(n)) {
            corrupted += u64::from(matches!(passage, Passage::Arrived { corrupt: true, .. }));
        }
    }
    assert!((900..1_100).contains(&corrupted), "{corrupted}");
    assert!(emulator.counts().corrupted.abs_diff(corrupted) <= 1);
    // In virtual time the receiver refuses such a packet.
    let mut plain = link(config, 3);
    let refused = Fate::Lost(DropReason::LinkCorrupted);
    let lost = (0..20_000).filter(|n| plain.offer(100, Time::from_millis(*n)) == refused);
    assert!((900..1_100).contains(&lost.count()));
}

#[test]
fn codel_bounds_the_delay_of_a_standing_queue_and_leaves_short_ones_alone() {
    // 1 Mbit/s, packets of 1,250 bytes (10 ms), offered at 1.5 times the rate for 10 s.
    let delays = |codel: Option<CodelSettings>, every_us: u64| {
        let config = LinkConfig {
            delay: Delay::Constant(Duration::ZERO),
            rate: Some(1_000_000),
            queue: usize::MAX,
            queue_packets: Some(100),
            codel,
            ..LinkConfig::default()
        };
        let mut emulator = Emulator::new(link(config, 9), 10_000);
        let mut delays = Vec::new();
        for n in 0..10_000_000 / every_us {
            let now = Time::from_micros(n * every_us);
            while let Some((at, passage)) = emulator.pop(now) {
                if let Passage::Arrived { packet, .. } = passage {
                    let sent: Time = packet;
                    delays.push(at.since(sent).as_secs_f64() * 1e3);
                }
            }
            let _ = emulator.push(now, 1_250, now);
        }
        (delays, emulator.counts())
    };
    let last = |delays: &[f64]| {
        let tail = &delays[delays.len() / 2..];
        tail.iter().sum::<f64>() / tail.len() as f64
    };
    let (full, counts) = delays(None, 6_667);
    assert!(last(&full) > 900.0, "{}", last(&full));
    assert!(counts.codel == 0 && counts.queue_full > 0);
    let (managed, counts) = delays(Some(CodelSettings::default()), 6_667);
    assert!(last(&managed) < 450.0, "{}", last(&managed));
    assert!(counts.codel > 100, "{counts:?}");
    // Below the rate nothing waits, and nothing is dropped.
    let (idle, counts) = delays(Some(CodelSettings::default()), 11_000);
    assert_eq!((counts.codel, counts.queue_full), (0, 0));
    assert!(idle.iter().all(|delay| (delay - 10.0).abs() < 0.01));
}

proptest! {
    /// A link in virtual time and one with its packets lose the same ones, also those that are longer than the queue.
    #[test]
    fn queue_in_bytes_drops_the_same_packets_in_both_links(
        rate in proptest::sample::select(vec![64_000u64, 1_000_000, 8_000_000]),
        queue in 100usize..3_000,
        packets in proptest::collection::vec((0u64..20_000, 40usize..1_500), 1..100),
    ) {
        let config = LinkConfig {
            delay: Delay::Constant(Duration::ZERO),
            rate: Some(rate),
            queue,
            ..LinkConfig::default()
        };
        let mut plain = link(config.clone(), 1);
        let mut emulator = Emulator::new(link(config, 1), 1_000);
        let mut now = Time::ZERO;
        for (number, (gap_us, length)) in packets.into_iter().enumerate() {
            now += Duration::from_micros(gap_us);
            let is_lost = matches!(plain.offer(length, now), Fate::Lost(_));
            prop_assert_eq!(emulator.push(number, length, now).is_err(), is_lost, "{}", number);
        }
    }

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
