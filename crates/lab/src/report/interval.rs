//! Where the figures of a level lie with 95 % confidence.

use super::data::Part;
use super::levels::{LevelSummary, of_trial};
use crate::figures::{self, CLASS_NAMES};
use crate::raw::TrialRecord;
use crate::record::{Attempt, Kind, Outcome, StreamRecord};
use crate::statistics::{Interval, variance};
use std::collections::BTreeMap;

/// From what the interval of a figure follows.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The mean of the runs.
    Runs,
    /// The mean of the runs without the best and the worst.
    TrimmedRuns,
    /// A number of attempts of those that were due.
    Counted(fn(&Attempt) -> bool),
    /// The same each second.
    Rate(fn(&Attempt) -> bool),
    /// A quantile of the response times.
    Response(f64),
    /// The mean over the streams.
    Streams(fn(&StreamRecord) -> Option<f64>),
    /// A quantile over the streams.
    StreamQuantile(fn(&StreamRecord) -> Option<f64>, f64),
    /// Packets lost.
    Packets,
    /// An extreme, or what the plan says: no interval.
    Extreme,
}

fn is_established(attempt: &Attempt) -> bool {
    attempt.established.is_some()
}

fn was_dropped(attempt: &Attempt) -> bool {
    attempt.outcome.was_started() && attempt.established.is_none()
}

fn source(name: &str) -> Source {
    match name {
        "established" | "registered" => Source::Counted(is_established),
        "completed" => Source::Counted(|a| a.outcome == Outcome::Completed),
        "failed" | "registrations_failed" => Source::Counted(|a| !a.outcome.is_good()),
        "dropped" => Source::Counted(was_dropped),
        "refused" => Source::Counted(|a| a.outcome == Outcome::Refused),
        "established_per_second" => Source::Rate(is_established),
        "in_time_per_second" => Source::Rate(figures::in_time),
        "response_p50_ms" => Source::Response(0.5),
        "response_p99_ms" => Source::Response(0.99),
        "jitter_mean_ms" => Source::Streams(|s| s.jitter_mean_ms),
        "jitter_p99_ms" => Source::StreamQuantile(|s| s.jitter_p99_ms, 0.99),
        "relay_p50_ms" => Source::StreamQuantile(|s| s.relay_p50_ms, 0.5),
        "relay_p99_ms" => Source::StreamQuantile(|s| s.relay_p99_ms, 0.99),
        "mos" => Source::Streams(|s| s.mos),
        "lost_percent" => Source::Packets,
        "jitter_trimmed_mean_ms"
        | "jitter_trimmed_p99_ms"
        | "noise_jitter_mean_ms"
        | "noise_jitter_p99_ms" => Source::TrimmedRuns,
        "peak_calls"
        | "cpu_us_each"
        | "cpu_us_per_packet"
        | "signalling_us_per_call"
        | "media_us_per_packet"
        | "subject_cores"
        | "host_cpu_percent" => Source::Runs,
        _ => Source::Extreme,
    }
}

/// The intervals of all figures of a level, by name. The records are those of all its trials.
pub(super) fn of_level(
    level: &LevelSummary,
    trials: &[&TrialRecord],
    records: &Part<'_>,
) -> BTreeMap<String, Interval> {
    let names = LevelSummary::FIGURES.into_iter().map(str::to_owned);
    let mut all = BTreeMap::new();
    let streams = figures::measured_streams(records.streams);
    for name in names.filter(|name| level.figure(name).is_some()) {
        let mut interval = one(&name, level, trials, records, &streams);
        // Jitter is weighed by packets, its spread is that of the streams.
        if let (Source::Streams(_), Some(value)) = (source(&name), level.figure(&name)) {
            interval.centre(value);
        }
        all.insert(name, interval);
    }
    for (class, name) in CLASS_NAMES.iter().enumerate() {
        let name = format!("{name} ms");
        let within = |a: &&Attempt| {
            let class_of = |ms| figures::classes(&[ms]).get(class) == Some(&1);
            a.response_ms().is_some_and(class_of)
        };
        let values: Vec<f64> = (trials.iter())
            .filter_map(|trial| trial.details.response_classes.get(class).map(|n| *n as f64))
            .collect();
        all.insert(name, counted(&values, &main_of(records), within, 1.0));
    }
    all
}

fn main_of<'a>(records: &Part<'a>) -> Vec<&'a Attempt> {
    figures::main_attempts(records.attempts)
}

fn one(
    name: &str,
    level: &LevelSummary,
    trials: &[&TrialRecord],
    records: &Part<'_>,
    streams: &[&StreamRecord],
) -> Interval {
    let runs = || -> Vec<f64> { trials.iter().filter_map(|t| of_trial(name, t)).collect() };
    let over = |read: fn(&StreamRecord) -> Option<f64>| -> Vec<f64> {
        let mut values: Vec<f64> = streams.iter().filter_map(|s| read(s)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    match source(name) {
        Source::Runs => Interval::of_mean(&runs(), "runs"),
        Source::TrimmedRuns => Interval::of_mean(super::levels::inner(&mut runs()), "runs"),
        Source::Counted(test) => {
            let group = match name.starts_with("regist") {
                true => (records.attempts.iter())
                    .filter(|a| figures::REGISTERING.contains(&a.kind))
                    .collect(),
                false if level.attempted > 0.0 => (records.attempts.iter())
                    .filter(|a| a.kind == Kind::Call)
                    .collect(),
                false => main_of(records),
            };
            counted(&runs(), &group, |a| test(a), 1.0)
        }
        Source::Rate(test) => {
            let main = main_of(records);
            let part = main.iter().filter(|a| test(a)).count();
            let offered = match (part, level.figure(name)) {
                (0, _) | (_, None) => 0.0,
                (part, Some(rate)) => rate * main.len() as f64 / part as f64,
            };
            // As a share of what was offered each second, not of all that was due.
            counted(
                &runs(),
                &main,
                |a| test(a),
                offered * trials.len() as f64 / main.len().max(1) as f64,
            )
        }
        Source::Response(q) => {
            let main = main_of(records);
            let mut times: Vec<f64> = main.iter().filter_map(|a| a.response_ms()).collect();
            times.sort_by(f64::total_cmp);
            Interval::of_quantile(&times, q, "attempts")
        }
        Source::Streams(read) => match trials.len() {
            0 | 1 => Interval::of_mean(&over(read), "streams"),
            _ => Interval::of_mean(&runs(), "runs"),
        },
        Source::StreamQuantile(read, q) => Interval::of_quantile(&over(read), q, "streams"),
        Source::Packets => {
            let lost = streams.iter().map(|s| s.lost).sum();
            let expected = streams.iter().map(|s| s.expected).sum();
            Interval::of_share(lost, expected, 100.0, "packets")
        }
        Source::Extreme => Interval::none(trials.len() as u64, "runs"),
    }
}

/// A number of attempts a run, times `scale`: by its spread over three runs or more, else by that of a share of all attempts.
fn counted(
    runs: &[f64],
    attempts: &[&Attempt],
    test: impl Fn(&&Attempt) -> bool,
    scale: f64,
) -> Interval {
    // Runs that all gave the same have no spread, which is no proof of none.
    if runs.len() >= 3 && variance(runs).is_some_and(|variance| variance > 0.0) {
        let mut interval = Interval::of_mean(runs, "runs");
        interval.low = interval.low.map(|low| low.max(0.0));
        return interval;
    }
    let part = attempts.iter().filter(|a| test(a)).count() as u64;
    let each = attempts.len() as f64 / runs.len().max(1) as f64;
    Interval::of_share(part, attempts.len() as u64, each * scale, "attempts")
}
