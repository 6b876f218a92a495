//! Receive statistics: the formulas of RFC 3550, wraps, duplicates, reordering, restarts, skew, and no allocation per
//! packet.

use engine::Time;
use media::stats::{Arrival, IntegerJitter, Jitter, ReceiveStatistics, RtpArrival, Sequence};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeSet;

const MS: u64 = 1_000_000;

fn packet(ms: u64, sequence: u16, timestamp: u32) -> RtpArrival {
    RtpArrival {
        time: Time(ms * MS),
        sequence,
        timestamp,
        payload_type: 0,
    }
}

#[test]
fn jitter_examples() {
    let root = std::env::var("HORNWORK_TESTDATA").unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/testdata").into()
    });
    let Ok(text) = std::fs::read_to_string(format!("{root}/quality/rfc3550-jitter-examples.json"))
    else {
        println!("skipped: testdata absent");
        return;
    };
    let oracle: Value = serde_json::from_str(&text).expect("JSON");
    for example in oracle["examples"].as_array().expect("examples") {
        let clock = example["clock"].as_u64().unwrap() as u32;
        let list = |name: &str| example[name].as_array().unwrap().clone();
        let (mut jitter, mut integer) = (Jitter::new(), IntegerJitter::default());
        let stamps = list("rtp_timestamps");
        let (whole, real) = (list("jitter_integer_A8"), list("jitter_real"));
        for (at, arrival) in list("arrival_in_timestamp_units").iter().enumerate() {
            let arrival = arrival.as_u64().unwrap();
            let stamp = stamps[at].as_u64().unwrap() as u32;
            integer.receive_units(arrival as u32, stamp);
            jitter.receive(
                Time(arrival * 1_000_000_000 / u64::from(clock)),
                stamp,
                clock,
            );
            assert_eq!(
                u64::from(integer.value()),
                whole[at].as_u64().unwrap(),
                "{example}"
            );
            let units = jitter.current() * f64::from(clock) / 1e9;
            assert!(
                (units - real[at].as_f64().unwrap()).abs() < 1e-3,
                "{at} {example}"
            );
        }
    }
}

#[test]
fn the_99th_percentile_is_close_to_the_sorted_one() {
    let (mut jitter, mut samples) = (Jitter::new(), Vec::new());
    let mut random = 12_345u64;
    for at in 0..20_000u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let late = (random >> 40) % 15_000_000;
        jitter.receive(Time(at * 20 * MS + late), at as u32 * 160, 8000);
        if at > 0 {
            samples.push(jitter.current());
        }
    }
    samples.sort_by(f64::total_cmp);
    let exact = samples[samples.len() * 99 / 100] / 1e6;
    let summary = jitter.summary().unwrap();
    assert!(
        (summary.p99 - exact).abs() / exact < 0.03,
        "{} for {exact}",
        summary.p99
    );
    assert!(summary.mean < summary.p99 && summary.p99 < summary.max);
}

#[test]
fn loss_duplicates_and_reordering_over_a_wrap() {
    let mut statistics = ReceiveStatistics::default();
    let order = [65_533u16, 65_534, 0, 65_535, 0, 1, 4, 3, 3];
    for (at, sequence) in order.into_iter().enumerate() {
        statistics.receive(&packet(at as u64 * 20, sequence, at as u32 * 160));
    }
    let summary = statistics.summary();
    assert_eq!(
        (summary.received, summary.unique, summary.duplicates),
        (9, 7, 2)
    );
    assert_eq!((summary.out_of_order, summary.cycles), (2, 1));
    assert_eq!((summary.lowest, summary.highest), (65_533, 65_540));
    assert_eq!(
        (
            summary.expected,
            summary.lost_unique,
            summary.cumulative_lost
        ),
        (8, 1, -1)
    );
    assert!(statistics.sequence().is_valid());
}

#[test]
fn late_packets_before_the_first() {
    let mut sequence = Sequence::new(64);
    for number in [1, 0, 65_535, 2] {
        sequence.receive(number, Time::ZERO);
    }
    assert_eq!(
        (sequence.lowest(), sequence.highest(), sequence.expected()),
        (-1, 2, 4)
    );
    assert_eq!((sequence.out_of_order(), sequence.unique()), (2, 4));
}

#[test]
fn a_restart_is_not_loss_and_a_long_outage_is() {
    let mut statistics = ReceiveStatistics::default();
    for at in 0..100u16 {
        statistics.receive(&packet(u64::from(at) * 20, at, u32::from(at) * 160));
    }
    for at in 0..100u16 {
        statistics.receive(&packet(
            2000 + u64::from(at) * 20,
            20_000 + at,
            u32::from(at) * 160,
        ));
    }
    let summary = statistics.summary();
    assert_eq!(
        (summary.expected, summary.lost_unique, summary.restarts),
        (200, 0, 1)
    );
    assert_eq!((summary.unique, summary.strays), (200, 0));

    let mut outage = ReceiveStatistics::default();
    for at in (0..100u64).chain(5100..5200) {
        outage.receive(&packet(at * 20, at as u16, at as u32 * 160));
    }
    let summary = outage.summary();
    assert_eq!(
        (summary.expected, summary.lost_unique, summary.restarts),
        (5200, 5000, 0)
    );
}

#[test]
fn stray_packet_changes_nothing() {
    let mut statistics = ReceiveStatistics::default();
    for at in 0..50u16 {
        if at == 25 {
            assert_eq!(statistics.receive(&packet(500, 30_000, 9)), Arrival::Stray);
        }
        statistics.receive(&packet(u64::from(at) * 20, at, u32::from(at) * 160));
    }
    let summary = statistics.summary();
    assert_eq!(
        (
            summary.strays,
            summary.lost_unique,
            summary.received,
            summary.unique
        ),
        (1, 0, 51, 50)
    );
}

/// In captures, packets that were held for seconds and come behind others are late, neither lost nor a new sequence. A
/// sender that begins again at numbers that were received is still found.
#[test]
fn packets_of_a_capture_may_be_late_by_seconds() {
    const WINDOW: usize = 8_192;
    let mut held = ReceiveStatistics::new(WINDOW);
    let order = (0..375u16).chain(385..501).chain(375..385).chain(501..601);
    for (at, sequence) in (0..).zip(order) {
        held.receive(&packet(at * 20, sequence, u32::from(sequence) * 160));
    }
    let summary = held.summary();
    assert_eq!(
        (summary.expected, summary.lost_unique, summary.out_of_order),
        (601, 0, 10)
    );
    assert_eq!((summary.strays, summary.restarts), (0, 0));

    let mut restarted = ReceiveStatistics::new(WINDOW);
    for (at, sequence) in (0..).zip((0..600u16).chain(100..400)) {
        restarted.receive(&packet(at * 20, sequence, at as u32 * 160));
    }
    let summary = restarted.summary();
    assert_eq!(
        (summary.expected, summary.lost_unique, summary.restarts),
        (900, 0, 1)
    );
}

#[test]
fn main_payload_type_only() {
    let mut statistics = ReceiveStatistics::default();
    for at in 0..100u16 {
        let is_event = (40..50).contains(&at);
        statistics.receive(&RtpArrival {
            time: Time(u64::from(at) * 20 * MS),
            sequence: at,
            timestamp: if is_event {
                40 * 160
            } else {
                u32::from(at) * 160
            },
            payload_type: if is_event { 101 } else { 8 },
        });
    }
    let summary = statistics.summary();
    assert_eq!(statistics.main_payload_type(), Some(8));
    assert_eq!(
        statistics.payload_types().collect::<Vec<_>>(),
        [(8, 90), (101, 10)]
    );
    assert_eq!(summary.jitter_ms.unwrap().max, 0.0);
    assert_eq!(summary.delta_ms.unwrap().mean, 20.0);
}

/// A stream of 20 ms packets whose timestamps and sequence numbers are shifted from packet 300 on, which is delayed by
/// `pause_ms`.
fn stream_with_break(sequence: u16, timestamp: u32, pause_ms: u64) -> media::stats::Summary {
    let mut statistics = ReceiveStatistics::default();
    for at in 0..600u16 {
        let behind = at >= 300;
        let number = if behind {
            at.wrapping_add(sequence)
        } else {
            at
        };
        let stamp = u32::from(at) * 160;
        let stamp = if behind {
            stamp.wrapping_add(timestamp)
        } else {
            stamp
        };
        let late = if behind { pause_ms } else { 0 };
        statistics.receive(&packet(u64::from(at) * 20 + late, number, stamp));
    }
    statistics.summary()
}

#[test]
fn timestamp_reset_is_no_jitter() {
    // Far away, 90 s back, 10 s back, 1 s ahead, 1 s back; and after 60 s of hold with the media clock stopped.
    for (timestamp, pause_ms) in [
        (0x9000_0000, 0),
        (0u32.wrapping_sub(720_000), 0),
        (0u32.wrapping_sub(80_000), 0),
        (8_000, 0),
        (0u32.wrapping_sub(8_000), 0),
        (0, 60_000),
    ] {
        let summary = stream_with_break(0, timestamp, pause_ms);
        let what = format!("{timestamp} {pause_ms}");
        assert_eq!((summary.lost_unique, summary.restarts), (0, 0), "{what}");
        assert_eq!(summary.jitter_ms.unwrap().max, 0.0, "{what}");
        assert_eq!(summary.skew_ppm.map(f64::round), Some(0.0), "{what}");
    }
}

#[test]
fn sequence_reset_is_neither_loss_nor_jitter() {
    // RFC 3550 A.1: the first packet is on probation, the second one starts the new sequence.
    for sequence in [
        10_000,
        40_000,
        60_000,
        0u16.wrapping_sub(500),
        0u16.wrapping_sub(150),
    ] {
        let summary = stream_with_break(sequence, 0x1234_5678, 0);
        assert_eq!(summary.restarts, 1, "{sequence}");
        assert_eq!((summary.lost_unique, summary.strays), (0, 0), "{sequence}");
        assert_eq!(summary.jitter_ms.unwrap().max, 0.0, "{sequence}");
    }
}

#[test]
fn network_delay_is_jitter() {
    // A stall of 2 s, after which the delayed packets arrive at once.
    let mut statistics = ReceiveStatistics::default();
    for at in 0..600u64 {
        let arrival = if (300..400).contains(&at) {
            8_000
        } else {
            at * 20
        };
        statistics.receive(&packet(arrival, at as u16, at as u32 * 160));
    }
    let jitter = statistics.summary().jitter_ms.unwrap();
    assert!((124.0..130.0).contains(&jitter.max), "{jitter:?}");
    // One packet is overtaken by 50: it is late by a second, and the next one is early by as much.
    let mut statistics = ReceiveStatistics::default();
    for at in (0..300u64).chain(301..351).chain([300]).chain(351..600) {
        let arrival = if at == 300 { 350 * 20 + 1 } else { at * 20 };
        statistics.receive(&packet(arrival, at as u16, at as u32 * 160));
    }
    let jitter = statistics.summary().jitter_ms.unwrap();
    assert!((115.0..125.0).contains(&jitter.max), "{jitter:?}");
}

#[test]
fn skew_of_a_fast_sender() {
    let mut statistics = ReceiveStatistics::default();
    for at in 0..3000u64 {
        // 20 ms of the sender are 19.998 ms of ours: 100 ppm fast. With symmetric noise.
        let noise = (at * 7919 % 13) * 100_000;
        statistics.receive(&RtpArrival {
            time: Time(at * 19_998_000 + noise),
            sequence: at as u16,
            timestamp: (at as u32).wrapping_mul(160).wrapping_add(u32::MAX - 1000),
            payload_type: 0,
        });
    }
    let ppm = statistics.summary().skew_ppm.unwrap();
    assert!((ppm - 100.0).abs() < 2.0, "{ppm}");
}

#[test]
fn skew_survives_clock_pauses_and_needs_enough_packets() {
    let mut statistics = ReceiveStatistics::default();
    let mut timestamp = 0u32;
    for at in 0..2000u64 {
        // Every 200 packets ten events, during which the audio timeline stops.
        let is_event = at % 200 >= 190;
        timestamp += if is_event { 0 } else { 160 };
        statistics.receive(&RtpArrival {
            time: Time(at * 20_001_000 + (at * 31 % 7) * 10_000),
            sequence: at as u16,
            timestamp,
            payload_type: if is_event { 101 } else { 0 },
        });
    }
    let ppm = statistics.summary().skew_ppm.unwrap();
    assert!((ppm + 50.0).abs() < 10.0, "{ppm}");
    let mut noisy = ReceiveStatistics::default();
    for at in 0..100u64 {
        let noise = (at * 7919 % 101) * 800_000;
        noisy.receive(&RtpArrival {
            time: Time(at * 20 * MS + noise),
            ..packet(0, at as u16, at as u32 * 160)
        });
    }
    assert_eq!(noisy.summary().skew_ppm, None);
}

#[test]
fn burst_ratio_distinguishes_bursts() {
    let lossy = |lost: fn(u64) -> bool| {
        let mut statistics = ReceiveStatistics::default();
        for at in (0..20_000u64).filter(|at| !lost(*at)) {
            statistics.receive(&packet(at * 20, at as u16, at as u32 * 160));
        }
        statistics.summary()
    };
    let single = lossy(|at| at % 20 == 10);
    let bursts = lossy(|at| at % 100 >= 50 && at % 100 < 55);
    assert_eq!(single.lost_unique, bursts.lost_unique);
    assert!(
        (single.burst_ratio - 0.95).abs() < 0.01,
        "{}",
        single.burst_ratio
    );
    assert!(
        (bursts.burst_ratio - 4.75).abs() < 0.05,
        "{}",
        bursts.burst_ratio
    );
}

#[test]
fn report_blocks() {
    let mut statistics = ReceiveStatistics::default();
    for at in (0..100u64).filter(|at| at % 4 != 1) {
        statistics.receive(&packet(at * 20, at as u16, at as u32 * 160));
    }
    let block = statistics.report_block(7);
    assert_eq!(
        (
            block.ssrc,
            block.fraction_lost,
            block.cumulative_lost,
            block.highest_sequence
        ),
        (7, 64, 25, 99)
    );
    for at in 100..200u64 {
        statistics.receive(&packet(at * 20, at as u16, at as u32 * 160));
    }
    let block = statistics.report_block(7);
    assert_eq!((block.fraction_lost, block.cumulative_lost), (0, 25));
    assert!(!statistics.received_since_report());
    assert_eq!(statistics.report_block(7).fraction_lost, 0);
}

/// An hour of one codec, then another with much jitter, and a few telephone events.
#[test]
fn report_block_has_the_jitter_of_the_present_codec() {
    let mut statistics = ReceiveStatistics::default();
    statistics.set_clock_rate(96, 48_000);
    statistics.set_clock_rate(101, 8_000);
    let mut at = 0u64;
    let mut receive = |statistics: &mut ReceiveStatistics, payload_type, late: u64, clock: u64| {
        at += 1;
        statistics.receive(&RtpArrival {
            payload_type,
            timestamp: (at * 20 * clock) as u32,
            ..packet(at * 20 + late, at as u16, 0)
        });
    };
    for _ in 0..1_000 {
        receive(&mut statistics, 0, 0, 8);
    }
    assert_eq!(statistics.report_block(7).jitter, 0);
    for late in [0, 15].into_iter().cycle().take(100) {
        receive(&mut statistics, 96, late, 48);
    }
    for _ in 0..10 {
        receive(&mut statistics, 101, 0, 8);
    }
    let jitter = statistics.report_block(7).jitter;
    assert!((600..=720).contains(&jitter), "15 ms of 48 kHz: {jitter}");
}

proptest! {
    #[test]
    fn exact_against_a_set(steps in proptest::collection::vec((-40i64..40, 0u64..50), 1..300), start in any::<u16>(), live: bool) {
        // A live stream takes a packet that is later than 99 for a stray one.
        let (window, latest) = if live { (Sequence::LIVE_WINDOW, 59) } else { (Sequence::EXACT_WINDOW, 900) };
        let mut statistics = ReceiveStatistics::new(window);
        let (mut at, mut time) = (100_000 + i64::from(start), 0);
        let (mut seen, mut duplicates, mut late, mut highest) = (BTreeSet::new(), 0, 0, i64::MIN);
        for (step, gap) in steps {
            at += step;
            time += gap;
            if seen.insert(at) {
                late += u64::from(at < highest);
            } else {
                duplicates += 1;
            }
            highest = highest.max(at);
            statistics.receive(&packet(time, at as u16, 0));
            // Stay so close below the highest number that results are exact.
            at = at.max(highest - latest);
        }
        let summary = statistics.summary();
        prop_assert_eq!(summary.unique, seen.len() as u64);
        prop_assert_eq!(summary.duplicates, duplicates);
        prop_assert_eq!(summary.out_of_order, late);
        prop_assert_eq!(summary.expected, (highest - seen.first().unwrap() + 1) as u64);
    }

    #[test]
    fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
        media::stats::fuzz_rtp_rtcp(&data);
    }
}
