//! The overload experiments in virtual time: the whole border, with callers that retransmit unanswered requests.

use lab::RunVerdict;
use lab::run::{RunOptions, run};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Calls per second that the border can serve at its simulated speed: thirteen datagrams of 100 microseconds each.
const PEAK: f64 = 765.0;

/// The same of two workers at that speed: each call costs the worker that reads it three datagrams; half of all six
/// messages are handed off, and each worker sends half of seven. Eight datagrams together.
const PEAK_OF_TWO: f64 = 1_250.0;
/// Milliseconds within which 99 % of the admitted calls are answered.
const ANSWERED: f64 = 50.0;

/// In-time calls per second and the 99th percentile of the response in milliseconds, of each level.
fn levels(name: &str, sets: &[&str]) -> Vec<(f64, f64)> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let options = RunOptions {
        set: sets.iter().map(|&set| set.to_owned()).collect(),
        json: Some(folder.join("overload.json")),
        out: Some(folder.join("out")),
        simulate: true,
        ..RunOptions::default()
    };
    assert_eq!(run("overload", &options).unwrap(), RunVerdict::Passed);
    let text = fs::read(folder.join("overload.json")).unwrap();
    let result: Value = serde_json::from_slice(&text).unwrap();
    // The raw results of a quarter of a million attempts are not kept.
    fs::remove_dir_all(&folder).unwrap();
    let trials = result["trials"].as_array().unwrap();
    let figures = trials.iter().map(|trial| {
        let in_time = &trial["details"]["in_time_per_second"];
        let p99 = &trial["response_ms"]["p99"];
        (in_time.as_f64().unwrap(), p99.as_f64().unwrap())
    });
    figures.collect()
}

#[test]
fn throughput_holds_at_twice_and_ten_times_the_peak() {
    let levels = levels("overload", &["callers.duration_seconds=20.0"]);
    assert_eq!(levels.len(), 3);
    assert!(
        (0.999..=1.001).contains(&(levels[0].0 / PEAK)),
        "{levels:?}"
    );
    // The first second counts, too, in which the border has to detect the load.
    for (in_time, p99) in &levels[1..] {
        assert!(*in_time >= 0.98 * PEAK, "{levels:?}");
        assert!(*p99 < ANSWERED, "{levels:?}");
    }
}

/// Each of two workers has its own queue and socket filter; both shed the same share.
#[test]
fn two_workers_hold_the_sum_of_their_peaks() {
    let sets = [
        "sut.workers=2",
        "callers.duration_seconds=20.0",
        "levels.values=[1250, 2500, 12500]",
    ];
    let levels = levels("overload-workers", &sets);
    assert_eq!(levels.len(), 3);
    // At exactly the peak, some calls wait too long by chance.
    let peak = levels[0].0;
    assert!(peak >= 0.98 * PEAK_OF_TWO, "{levels:?}");
    // At ten times the peak, the random choice of callers makes a difference of half a percent.
    for ((in_time, p99), least) in levels[1..].iter().zip([0.98, 0.97]) {
        assert!(*in_time >= least * peak, "{least}: {levels:?}");
        assert!(*p99 < ANSWERED, "{levels:?}");
    }
}
