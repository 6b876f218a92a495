//! 95 % confidence intervals of the figures of a level.

use super::data::TrialSlice;
use super::level_summary::LevelSummary;
use super::levels::trial_figure;
use crate::figures::{self, CLASS_NAMES};
use crate::metrics::REGISTRATION_KINDS;
use crate::raw::TrialRecord;
use crate::record::{Attempt, AttemptKind, AttemptOutcome, StreamRecord};
use crate::statistics::{Interval, correlation_of_events, quantile, variance};
use std::collections::BTreeMap;

/// Method by which the interval of a figure is computed.
#[derive(Clone, Copy, Debug)]
enum IntervalMethod {
    /// From the mean over the runs.
    Runs,
    /// From the mean over the runs without the best and the worst.
    TrimmedRuns,
    /// From a number of attempts out of all due ones.
    Counted(fn(&Attempt) -> bool),
    /// From such a number per second.
    Rate(fn(&Attempt) -> bool),
    /// From a quantile of the response times.
    Response(f64),
    /// From the mean over the streams.
    Streams(fn(&StreamRecord) -> Option<f64>),
    /// From a quantile over the streams.
    StreamQuantile(fn(&StreamRecord) -> Option<f64>, f64),
    /// From the share of lost packets.
    Packets,
    /// An extreme or a planned value: no interval.
    Extreme,
}

fn is_established(attempt: &Attempt) -> bool {
    attempt.established.is_some()
}

fn is_dropped(attempt: &Attempt) -> bool {
    attempt.outcome.was_started() && attempt.established.is_none()
}

fn source(name: &str) -> IntervalMethod {
    match name {
        "established" | "registered" => IntervalMethod::Counted(is_established),
        "completed" => IntervalMethod::Counted(|a| a.outcome == AttemptOutcome::Completed),
        "failed" | "registrations_failed" => IntervalMethod::Counted(|a| !a.outcome.is_good()),
        "dropped" => IntervalMethod::Counted(is_dropped),
        "refused" => IntervalMethod::Counted(|a| a.outcome == AttemptOutcome::Refused),
        "established_per_second" => IntervalMethod::Rate(is_established),
        "in_time_per_second" => IntervalMethod::Rate(figures::in_time),
        "response_p50_ms" => IntervalMethod::Response(0.5),
        "response_p99_ms" => IntervalMethod::Response(0.99),
        "jitter_mean_ms" => IntervalMethod::Streams(|s| s.jitter_mean_ms),
        "jitter_p99_ms" => IntervalMethod::StreamQuantile(|s| s.jitter_p99_ms, 0.99),
        "relay_p50_ms" => IntervalMethod::StreamQuantile(|s| s.relay_p50_ms, 0.5),
        "relay_p99_ms" => IntervalMethod::StreamQuantile(|s| s.relay_p99_ms, 0.99),
        "mos" => IntervalMethod::Streams(|s| s.mos),
        "lost_percent" => IntervalMethod::Packets,
        "jitter_trimmed_mean_ms"
        | "jitter_trimmed_p99_ms"
        | "noise_jitter_mean_ms"
        | "noise_jitter_p99_ms" => IntervalMethod::TrimmedRuns,
        "peak_calls"
        | "cpu_us_each"
        | "cpu_us_per_packet"
        | "signalling_us_per_call"
        | "media_us_per_packet"
        | "passed_on"
        | "subject_cores"
        | "host_cpu_percent" => IntervalMethod::Runs,
        _ => IntervalMethod::Extreme,
    }
}

/// The intervals of all figures of a level, by name, from the records of all its trials.
pub(super) fn of_level(
    level: &LevelSummary,
    trials: &[&TrialRecord],
    records: &TrialSlice<'_>,
) -> BTreeMap<String, Interval> {
    let names = LevelSummary::FIGURES.into_iter().map(str::to_owned);
    let mut all = BTreeMap::new();
    let streams = figures::measured_streams(records.streams);
    let probe = figures::probe_streams(&streams);
    for name in names.filter(|name| level.figure(name).is_some()) {
        // As for the figures themselves, jitter is that of the probe.
        let of_figure = if name.starts_with("jitter") {
            &probe
        } else {
            &streams
        };
        let mut interval = interval_of(&name, level, trials, records, of_figure);
        // Mean jitter is weighted by packets, its spread is taken over the streams.
        if let (IntervalMethod::Streams(_), Some(value)) = (source(&name), level.figure(&name)) {
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
        all.insert(
            name,
            count_interval(&values, &main_of(records), within, 1.0),
        );
    }
    all
}

fn main_of<'a>(records: &TrialSlice<'a>) -> Vec<&'a Attempt> {
    figures::main_attempts(records.attempts)
}

fn interval_of(
    name: &str,
    level: &LevelSummary,
    trials: &[&TrialRecord],
    records: &TrialSlice<'_>,
    streams: &[&StreamRecord],
) -> Interval {
    let runs = || -> Vec<f64> {
        trials
            .iter()
            .filter_map(|t| trial_figure(name, t))
            .collect()
    };
    let over = |read: fn(&StreamRecord) -> Option<f64>| -> Vec<f64> {
        let mut values: Vec<f64> = streams.iter().filter_map(|s| read(s)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    match source(name) {
        IntervalMethod::Runs => Interval::of_mean(&runs(), "runs"),
        IntervalMethod::TrimmedRuns => Interval::of_trimmed_mean(&runs(), "runs"),
        IntervalMethod::Counted(test) => {
            let group = match name.starts_with("regist") {
                true => (records.attempts.iter())
                    .filter(|a| REGISTRATION_KINDS.contains(&a.kind))
                    .collect(),
                false if level.attempted > 0.0 => (records.attempts.iter())
                    .filter(|a| a.kind == AttemptKind::Call)
                    .collect(),
                false => main_of(records),
            };
            count_interval(&runs(), &group, |a| test(a), 1.0)
        }
        IntervalMethod::Rate(test) => {
            let main = main_of(records);
            let part = main.iter().filter(|a| test(a)).count();
            let offered = match (part, level.figure(name)) {
                (0, _) | (_, None) => 0.0,
                (part, Some(rate)) => rate * main.len() as f64 / part as f64,
            };
            // The interval of the share is scaled by the rate of due attempts, not by their number.
            count_interval(
                &runs(),
                &main,
                |a| test(a),
                offered * trials.len() as f64 / main.len().max(1) as f64,
            )
        }
        IntervalMethod::Response(q) => {
            let mut main = main_of(records);
            main.sort_by_key(|attempt| (attempt.trial, attempt.due));
            let times = main
                .iter()
                .filter_map(|a| Some((a.trial, a.response_ms()?)));
            quantile_interval(&by_trial(times), q, "attempts")
        }
        IntervalMethod::Streams(read) => match trials.len() {
            0 | 1 => Interval::of_mean(&over(read), "streams").within_runs(),
            _ => Interval::of_mean(&runs(), "runs"),
        },
        IntervalMethod::StreamQuantile(read, q) => {
            let values = streams.iter().filter_map(|s| Some((s.trial, read(s)?)));
            quantile_interval(&by_trial(values), q, "streams")
        }
        IntervalMethod::Packets => loss_interval(&runs(), streams),
        IntervalMethod::Extreme => Interval::none(trials.len() as u64, "runs"),
    }
}

/// Interval of the loss. Losses of one stream are no independent events, and runs differ: of three runs or more the
/// wider one of both intervals counts.
fn loss_interval(runs: &[f64], streams: &[&StreamRecord]) -> Interval {
    let lost: u64 = streams.iter().map(|s| s.lost).sum();
    let expected: u64 = streams.iter().map(|s| s.expected).sum();
    // Weighted by losses.
    let known = streams
        .iter()
        .filter_map(|s| Some((s.loss_correlation()?, s.lost as f64)));
    let (sum, weight) = known.fold((0.0, 0.0), |(sum, all), (correlation, weight)| {
        (sum + correlation * weight, all + weight)
    });
    let correlation = if weight > 0.0 { sum / weight } else { 0.0 };
    let within = Interval::of_correlated_share((lost, expected), correlation, 100.0, "packets");
    if runs.len() < SPREAD_FROM {
        return within.within_runs();
    }
    let mut between = Interval::of_mean(runs, "runs");
    between.centre(lost as f64 * 100.0 / expected.max(1) as f64);
    between.high = between.high.map(|high| high.min(100.0));
    within.wider(between)
}

/// From this number of runs on their spread is known well enough for an interval.
const SPREAD_FROM: usize = 3;

/// The values of each trial, in their order.
fn by_trial(values: impl Iterator<Item = (u32, f64)>) -> Vec<Vec<f64>> {
    let mut trials: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (trial, value) in values {
        trials.entry(trial).or_default().push(value);
    }
    trials.into_values().collect()
}

/// Interval of a quantile over the values of all trials. Neighbours are no independent samples, and runs differ: of
/// three runs or more the wider one of both intervals counts.
fn quantile_interval(trials: &[Vec<f64>], q: f64, of: &str) -> Interval {
    let mut all: Vec<f64> = trials.concat();
    all.sort_by(f64::total_cmp);
    let Some(value) = quantile(&all, q) else {
        return Interval::none(0, of);
    };
    let beyond = |trial: &Vec<f64>| trial.iter().map(|one| *one > value).collect();
    let events: Vec<Vec<bool>> = trials.iter().map(beyond).collect();
    let correlation = correlation_of_events(&events);
    let within = Interval::of_correlated_quantile(&all, q, correlation, of);
    if trials.len() < SPREAD_FROM {
        return within.within_runs();
    }
    let of_trial = |trial: &Vec<f64>| {
        let mut sorted = trial.clone();
        sorted.sort_by(f64::total_cmp);
        quantile(&sorted, q)
    };
    let each: Vec<f64> = trials.iter().filter_map(of_trial).collect();
    let mut between = Interval::of_mean(&each, "runs");
    between.centre(value);
    within.wider(between)
}

/// A number of attempts per run, times `scale`: with three runs or more from their spread, else from the share of all
/// attempts.
fn count_interval(
    runs: &[f64],
    attempts: &[&Attempt],
    test: impl Fn(&&Attempt) -> bool,
    scale: f64,
) -> Interval {
    // Identical runs have zero variance, which does not prove zero spread.
    if runs.len() >= SPREAD_FROM && variance(runs).is_some_and(|variance| variance > 0.0) {
        let mut interval = Interval::of_mean(runs, "runs");
        interval.low = interval.low.map(|low| low.max(0.0));
        return interval;
    }
    let part = attempts.iter().filter(|a| test(a)).count() as u64;
    let each = attempts.len() as f64 / runs.len().max(1) as f64;
    let mut ordered: Vec<&Attempt> = attempts.to_vec();
    ordered.sort_by_key(|attempt| (attempt.trial, attempt.due));
    let trials = ordered.chunk_by(|a, b| a.trial == b.trial);
    let events: Vec<Vec<bool>> = trials
        .map(|trial| trial.iter().map(&test).collect())
        .collect();
    let whole = attempts.len() as u64;
    let correlation = correlation_of_events(&events);
    let interval =
        Interval::of_correlated_share((part, whole), correlation, each * scale, "attempts");
    match runs.len() < SPREAD_FROM {
        true => interval.within_runs(),
        false => interval,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_a_quantile_has_the_spread_of_the_runs() {
        let runs = [10.0, 12.0, 14.0].map(|ms| vec![ms; 1_000]);
        let interval = quantile_interval(&runs, 0.5, "attempts");
        assert!(interval.low.unwrap() <= 10.0 && interval.high.unwrap() >= 14.0);
        assert!(interval.of == "runs" && !interval.is_within_runs());
        // One run says nothing of the next.
        let values: Vec<f64> = (0..1_000).map(|n| f64::from(n * 7 % 1_000)).collect();
        let one = quantile_interval(std::slice::from_ref(&values), 0.5, "attempts");
        assert!(one.is_within_runs() && one.low.unwrap() < 500.0, "{one:?}");
        // A queue that comes and goes: neighbours are alike.
        let queue: Vec<f64> = (0..1_000).map(|n| f64::from(n % 100)).collect();
        let turns: Vec<f64> = (0..1_000).map(|n| f64::from(n * 37 % 100)).collect();
        let width = |values: &Vec<f64>| {
            let interval = quantile_interval(std::slice::from_ref(values), 0.5, "attempts");
            interval.high.unwrap() - interval.low.unwrap()
        };
        assert!(width(&queue) > 3.0 * width(&turns));
    }

    #[test]
    fn interval_of_losses_has_bursts_and_the_spread_of_runs() {
        let stream = |lost: u32, burst_ratio: f64| StreamRecord {
            expected: 10_000,
            lost: u64::from(lost),
            lost_by_second: vec![lost],
            burst_ratio: Some(burst_ratio),
            ..StreamRecord::default()
        };
        let width = |runs: &[f64], streams: &[StreamRecord]| {
            let streams: Vec<&StreamRecord> = streams.iter().collect();
            let interval = loss_interval(runs, &streams);
            (interval.high.unwrap() - interval.low.unwrap(), interval.of)
        };
        let (random, of) = width(&[2.0], &[stream(200, 0.98)]);
        assert_eq!(of, "packets");
        // The variance of runs of four packets is nearly seven times as large.
        let (bursts, _) = width(&[2.0], &[stream(200, 3.92)]);
        assert!((2.4..2.8).contains(&(bursts / random)), "{bursts} {random}");
        let runs = [1.0, 2.0, 3.0];
        let streams = [100, 200, 300].map(|lost| stream(lost, 0.98));
        let (spread, of) = width(&runs, &streams);
        assert!(of == "runs" && spread > 3.0, "{spread} {of}");
        // Equal runs prove no zero spread.
        let equal = [200, 200, 200].map(|lost| stream(lost, 0.98));
        assert_eq!(width(&[2.0; 3], &equal).1, "packets");
    }
}
