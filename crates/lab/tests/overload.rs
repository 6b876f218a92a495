//! The experiment on overload in virtual time: the whole border, with callers who send again what nobody answers.

use lab::Verdict;
use lab::run::{RunOptions, run};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Calls a second that the border can take, as slow as it is made: thirteen datagrams of 100 microseconds each.
const PEAK: f64 = 765.0;

#[test]
fn the_peak_is_kept_at_twice_and_at_ten_times_as_much() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("overload");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let sets = ["callers.seconds=20.0"];
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
    let in_time: Vec<f64> = (0..3)
        .map(|trial| {
            let figure = &result["trials"][trial]["details"]["in_time_per_second"];
            figure.as_f64().unwrap() / PEAK
        })
        .collect();
    assert!((0.999..=1.001).contains(&in_time[0]), "{in_time:?}");
    assert!(in_time[1] >= 0.98, "{in_time:?}");
    // The first second counts, too, in which it has to be seen how much there is.
    assert!(in_time[2] >= 0.98, "{in_time:?}");
    // The raw results of a quarter of a million attempts are not worth keeping.
    fs::remove_dir_all(&folder).unwrap();
}
