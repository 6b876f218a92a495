//! The experiment on overload in virtual time: the whole border, with callers who send again what nobody answers.

use lab::Verdict;
use lab::run::{RunOptions, run};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Calls a second that the border can take, as slow as it is made: thirteen datagrams of 100 microseconds each.
const PEAK: f64 = 765.0;

/// Of two workers, each as slow: each call costs the one that reads it three datagrams, half of all six messages are handed over,
/// and each of them sends half of seven. Eight together.
const PEAK_OF_TWO: f64 = 1_250.0;
/// Milliseconds within which those who are taken are answered, all but one of a hundred.
const ANSWERED: f64 = 50.0;

/// Calls a second that were answered in time, and the 99th percentile of the response in milliseconds, of each level.
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
    assert_eq!(run("overload", &options).unwrap(), Verdict::Passed);
    let text = fs::read(folder.join("overload.json")).unwrap();
    let result: Value = serde_json::from_slice(&text).unwrap();
    // The raw results of a quarter of a million attempts are not worth keeping.
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
fn the_peak_is_kept_at_twice_and_at_ten_times_as_much() {
    let levels = levels("overload", &["callers.seconds=20.0"]);
    assert_eq!(levels.len(), 3);
    assert!(
        (0.999..=1.001).contains(&(levels[0].0 / PEAK)),
        "{levels:?}"
    );
    // The first second counts, too, in which it has to be seen how much there is.
    for (in_time, p99) in &levels[1..] {
        assert!(*in_time >= 0.98 * PEAK, "{levels:?}");
        assert!(*p99 < ANSWERED, "{levels:?}");
    }
}

/// Each of two workers has a queue and a sieve of its own; what is taken is the same for both.
#[test]
fn two_workers_keep_the_peak_of_both() {
    let sets = [
        "subject.workers=2",
        "callers.seconds=20.0",
        "levels.values=[1250, 2500, 12500]",
    ];
    let levels = levels("overload-workers", &sets);
    assert_eq!(levels.len(), 3);
    // Where exactly as many come as can be taken some wait too long by chance.
    let peak = levels[0].0;
    assert!(peak >= 0.98 * PEAK_OF_TWO, "{levels:?}");
    // At ten times as much, which callers the share takes by chance makes a difference of half a hundredth.
    for ((in_time, p99), least) in levels[1..].iter().zip([0.98, 0.97]) {
        assert!(*in_time >= least * peak, "{least}: {levels:?}");
        assert!(*p99 < ANSWERED, "{levels:?}");
    }
}
