//! Summary of the trials of one level: means over the repetitions.

use super::data::RunResults;
use super::level_summary::{LevelSummary, LoadFault};
use crate::error::RunVerdict;
use crate::figures::CLASS_NAMES;
use crate::measure::{self, is_measured_figure};
use crate::metrics::SipMetrics;
use crate::raw::{NoiseRecord, TrialRecord};
use crate::record::AttemptOutcome;
use crate::search::record::SearchRecord;
use std::collections::BTreeMap;

impl LevelSummary {
    /// Names of the figures, the columns of `levels.csv`; [`LevelSummary::figure`] accepts each of them.
    pub const FIGURES: [&str; 47] = [
        "attempted",
        "established",
        "completed",
        "failed",
        "dropped",
        "refused",
        "peak_calls",
        "registrations",
        "registered",
        "registrations_failed",
        "response_p50_ms",
        "response_p99_ms",
        "response_max_ms",
        "cpu_us_each",
        "established_per_second",
        "in_time_per_second",
        "streams",
        "packets",
        "lost_percent",
        "jitter_mean_ms",
        "jitter_p99_ms",
        "jitter_max_ms",
        "delta_max_ms",
        "jitter_trimmed_mean_ms",
        "jitter_trimmed_p99_ms",
        "noise_jitter_mean_ms",
        "noise_jitter_p99_ms",
        "host_noise_mean_ms",
        "host_noise_max_ms",
        "subject_cores",
        "host_cpu_percent",
        "one_way_ms",
        "relay_p50_ms",
        "relay_p99_ms",
        "relay_max_ms",
        "cpu_us_per_packet",
        "signalling_us_per_call",
        "media_us_per_packet",
        "node_spread_percent",
        "kernel_relay_percent",
        "connections",
        "connections_lost",
        "passed_on",
        "round_trip_ms",
        "mos",
        "correlation",
        "level_db",
    ];

    /// Whether a figure of this name exists, the ones that experiments measure themselves included.
    pub fn has_figure(name: &str) -> bool {
        LevelSummary::FIGURES.contains(&name) || class(name).is_some() || is_measured_figure(name)
    }

    /// A figure by name: one of [`LevelSummary::FIGURES`], or a response-time class with its unit (`10-20 ms`).
    pub fn figure(&self, name: &str) -> Option<f64> {
        match name {
            "attempted" => Some(self.attempted),
            "established" => Some(self.established),
            "completed" => Some(self.completed),
            "failed" => Some(self.failed),
            "dropped" => Some(self.dropped),
            "refused" => Some(self.refused),
            "peak_calls" => Some(self.peak),
            "registrations" => Some(self.registrations),
            "registered" => Some(self.registered),
            "registrations_failed" => Some(self.registrations_failed),
            "response_p50_ms" => self.p50,
            "response_p99_ms" => self.p99,
            "response_max_ms" => self.max,
            "cpu_us_each" => self.cpu_us,
            "established_per_second" => self.per_second,
            "in_time_per_second" => self.in_time_per_second,
            "streams" => Some(self.streams),
            "packets" => Some(self.packets),
            "lost_percent" => self.lost_percent,
            "jitter_mean_ms" => self.jitter_mean,
            "jitter_p99_ms" => self.jitter_p99,
            "jitter_max_ms" => self.jitter_max,
            "delta_max_ms" => self.delta_max,
            "jitter_trimmed_mean_ms" => self.jitter_trimmed_mean,
            "jitter_trimmed_p99_ms" => self.jitter_trimmed_p99,
            "noise_jitter_mean_ms" => self.noise_jitter_mean,
            "noise_jitter_p99_ms" => self.noise_jitter_p99,
            "host_noise_mean_ms" => self.host_noise_mean,
            "host_noise_max_ms" => self.host_noise_max,
            "subject_cores" => self.subject_cores,
            "host_cpu_percent" => self.host_cpu,
            "one_way_ms" => self.one_way,
            "relay_p50_ms" => self.relay_p50,
            "relay_p99_ms" => self.relay_p99,
            "relay_max_ms" => self.relay_max,
            "cpu_us_per_packet" => self.cpu_us_packet,
            "signalling_us_per_call" => self.signalling_us,
            "media_us_per_packet" => self.media_us,
            "node_spread_percent" => self.node_spread,
            "kernel_relay_percent" => self.kernel_relay,
            "connections" => self.connections,
            "connections_lost" => self.connections_lost,
            "passed_on" => self.passed_on,
            "round_trip_ms" => self.round_trip,
            "mos" => self.mos,
            "correlation" => self.correlation,
            "level_db" => self.level_db,
            name => match class(name) {
                Some(class) => self.classes.get(class).copied(),
                None => self.measures.get(name).copied(),
            },
        }
    }
}

/// Index of the response-time class with this name, unit included.
fn class(name: &str) -> Option<usize> {
    let bare = name.strip_suffix(" ms")?;
    CLASS_NAMES.iter().position(|known| *known == bare)
}

/// As [`summarise`], with quantiles computed over the records of all trials of a level, since a mean of quantiles is
/// not a quantile.
pub(super) fn from_records(results: &RunResults) -> Vec<LevelSummary> {
    let mut levels = summarise(&results.raw.run.trials);
    for (level, records) in levels.iter_mut().zip(results.levels()) {
        let summary = records.summary();
        let tally = summary.main();
        level.p50 = tally.response(0.5);
        level.p99 = tally.response(0.99);
        level.max = tally.response(1.0);
        level.jitter_mean = summary.figures.jitter_ms.mean;
        level.jitter_p99 = summary.figures.jitter_ms.p99;
        level.lost_percent = summary.figures.lost_percent;
        level.mos = summary.figures.mos;
        [level.relay_p50, level.relay_p99, _] = summary.details.relay_ms;
        level.cpu_us = summary.figures.cpu_us_per_call;
        level.sip = summary.details.sip.clone();
        let trials: Vec<&TrialRecord> = records.all.trials.iter().collect();
        level.intervals = super::interval::of_level(level, &trials, &records.all);
        for measured in results.measures(&records) {
            level
                .measures
                .insert(measured.figure.clone(), measured.value);
            level.intervals.insert(measured.figure, measured.interval);
        }
    }
    levels
}

/// Combines the trials of each level, in the order of the levels; short trials of a search do not count, nor do trials
/// without the planned load beside others.
pub fn summarise(trials: &[TrialRecord]) -> Vec<LevelSummary> {
    let trials: Vec<&TrialRecord> = trials.iter().filter(|trial| !trial.short).collect();
    let mut levels: Vec<Option<f64>> = Vec::new();
    for trial in &trials {
        if !levels.contains(&trial.level) {
            levels.push(trial.level);
        }
    }
    levels
        .into_iter()
        .map(|level| {
            let of = trials.iter().filter(|trial| trial.level == level);
            let of: Vec<&TrialRecord> = of.copied().collect();
            summarise_level(level, &of)
        })
        .collect()
}

fn summarise_level(level: Option<f64>, all: &[&TrialRecord]) -> LevelSummary {
    let load_fault = LoadFault::of(all.iter().map(|trial| trial.load_fault()));
    let is_whole = load_fault.as_ref().is_some_and(LoadFault::is_whole_level);
    let counts = |trial: &&&TrialRecord| is_whole || !trial.is_load_invalid();
    let trials: Vec<&TrialRecord> = all.iter().filter(counts).copied().collect();
    let trials = trials.as_slice();
    let mean = |value: &dyn Fn(&TrialRecord) -> f64| {
        trials.iter().map(|trial| value(trial)).sum::<f64>() / trials.len().max(1) as f64
    };
    let known = |value: &dyn Fn(&TrialRecord) -> Option<f64>| -> Vec<f64> {
        trials.iter().filter_map(|trial| value(trial)).collect()
    };
    let mean_of = |value: &dyn Fn(&TrialRecord) -> Option<f64>| {
        let values = known(value);
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let largest =
        |value: &dyn Fn(&TrialRecord) -> Option<f64>| known(value).into_iter().reduce(f64::max);
    let mut classes = [0.0; CLASS_NAMES.len()];
    for (class, count) in classes.iter_mut().enumerate() {
        *count = mean(&|t| t.details.response_classes[class] as f64);
    }
    LevelSummary {
        level,
        repetitions: trials.len(),
        load_fault,
        attempted: mean(&|t| t.figures.calls.attempted as f64),
        established: mean(&|t| t.figures.calls.established as f64),
        completed: mean(&|t| t.figures.calls.completed as f64),
        failed: mean(&|t| t.figures.calls.failed as f64),
        peak: mean(&|t| t.details.peak_calls as f64),
        registrations: mean(&|t| t.details.registrations.attempted as f64),
        registered: mean(&|t| t.details.registrations.established as f64),
        registrations_failed: mean(&|t| t.details.registrations.failed as f64),
        dropped: mean(&|t| dropped(t)),
        refused: mean(&refused),
        classes,
        p50: mean_of(&|t| t.figures.response_ms.p50),
        p99: mean_of(&|t| t.figures.response_ms.p99),
        max: None,
        cpu_us: mean_of(&|t| t.figures.cpu_us_per_call),
        per_second: mean_of(&|t| t.details.established_per_second),
        in_time_per_second: mean_of(&|t| t.details.in_time_per_second),
        streams: mean(&|t| t.details.streams as f64),
        packets: mean(&|t| t.details.packets as f64),
        lost_percent: mean_of(&|t| t.figures.lost_percent),
        jitter_mean: mean_of(&|t| t.figures.jitter_ms.mean),
        jitter_p99: mean_of(&|t| t.figures.jitter_ms.p99),
        jitter_max: largest(&|t| t.figures.jitter_ms.max),
        delta_max: largest(&|t| t.figures.jitter_ms.delta_max),
        jitter_trimmed_mean: trimmed(known(&|t| t.figures.jitter_ms.mean)),
        jitter_trimmed_p99: trimmed(known(&|t| t.figures.jitter_ms.p99)),
        noise_jitter_mean: trimmed(known(&|t| t.details.noise_jitter_ms.mean)),
        noise_jitter_p99: trimmed(known(&|t| t.details.noise_jitter_ms.p99)),
        host_noise_mean: mean_of(&|t| Some(own_noise(t)?.mean_us / 1e3)),
        host_noise_max: largest(&|t| Some(own_noise(t)?.max_us / 1e3)),
        subject_cores: mean_of(&|t| t.details.subject_cores),
        host_cpu: mean_of(&|t| t.details.host_cpu_percent),
        one_way: largest(&|t| t.details.one_way_ms),
        relay_p50: mean_of(&|t| t.details.relay_ms[0]),
        relay_p99: mean_of(&|t| t.details.relay_ms[1]),
        relay_max: largest(&|t| t.details.relay_ms[2]),
        cpu_us_packet: mean_of(&|t| t.details.cpu_us_per_packet),
        signalling_us: mean_of(&|t| t.details.planes.signalling_us_per_call),
        media_us: mean_of(&|t| t.details.planes.media_us_per_packet),
        node_spread: largest(&|t| t.details.node_spread_percent()),
        kernel_relay: known(&|t| t.details.kernel_relay_percent)
            .into_iter()
            .reduce(f64::min),
        connections: known(&|t| t.details.connections.map(|count| count as f64))
            .into_iter()
            .reduce(f64::min),
        connections_lost: largest(&|t| t.details.connections_lost.map(|count| count as f64)),
        passed_on: mean_of(&|t| t.details.passed_on.map(|count| count as f64)),
        round_trip: largest(&|t| t.details.round_trip_ms),
        mos: mean_of(&|t| t.figures.mos),
        correlation: known(&|t| t.figures.audio.correlation)
            .into_iter()
            .reduce(f64::min),
        level_db: known(&|t| t.figures.audio.level_db)
            .into_iter()
            .reduce(|a, b| if b.abs() > a.abs() { b } else { a }),
        sip: SipMetrics::default(),
        answered: trials
            .iter()
            .map(|t| t.details.response_classes.iter().sum::<u64>())
            .sum(),
        measures: measures(trials),
        intervals: BTreeMap::new(),
        verdict: all
            .iter()
            .fold(RunVerdict::NotJudged, |all, trial| all.and(trial.verdict)),
    }
}

/// The verdict of a search over the trials of a level: those that were repeated do not count, nor do those without the
/// planned load and short ones. `None` if no other trial was run.
pub(super) fn searched_verdict<'a>(
    search: &SearchRecord,
    trials: impl IntoIterator<Item = &'a TrialRecord>,
) -> Option<RunVerdict> {
    let counts = |trial: &&TrialRecord| {
        let mut steps = search.trials.iter();
        steps.any(|step| step.trial == trial.trial && step.counts())
    };
    let judged = trials.into_iter().filter(counts);
    judged.map(|trial| trial.verdict).reduce(RunVerdict::and)
}

/// Means over the trials of the figures that they measured themselves.
fn measures(trials: &[&TrialRecord]) -> BTreeMap<String, f64> {
    let cases = trials.iter().flat_map(|trial| &trial.details.measures);
    let means = measure::mean_of(cases).into_iter();
    means.map(|case| (case.figure, case.value)).collect()
}

/// The mean without the smallest and the largest value if more than two are given.
fn trimmed(mut values: Vec<f64>) -> Option<f64> {
    let inner = without_extremes(&mut values);
    (!inner.is_empty()).then(|| inner.iter().sum::<f64>() / inner.len() as f64)
}

/// All but the smallest and the largest value if more than two are given.
pub(super) fn without_extremes(values: &mut [f64]) -> &[f64] {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0..3 => values,
        count => values.get(1..count - 1).unwrap_or_default(),
    }
}

/// The value in one trial of a figure that is a mean over the runs; `None` for other figures.
pub(super) fn trial_figure(name: &str, trial: &TrialRecord) -> Option<f64> {
    let (figures, details) = (&trial.figures, &trial.details);
    match name {
        "established" => Some(figures.calls.established as f64),
        "completed" => Some(figures.calls.completed as f64),
        "failed" => Some(figures.calls.failed as f64),
        "registered" => Some(details.registrations.established as f64),
        "registrations_failed" => Some(details.registrations.failed as f64),
        "dropped" => Some(dropped(trial)),
        "refused" => Some(refused(trial)),
        "peak_calls" => Some(details.peak_calls as f64),
        "cpu_us_each" => figures.cpu_us_per_call,
        "cpu_us_per_packet" => details.cpu_us_per_packet,
        "signalling_us_per_call" => details.planes.signalling_us_per_call,
        "media_us_per_packet" => details.planes.media_us_per_packet,
        "node_spread_percent" => details.node_spread_percent(),
        "kernel_relay_percent" => details.kernel_relay_percent,
        "passed_on" => details.passed_on.map(|count| count as f64),
        "established_per_second" => details.established_per_second,
        "in_time_per_second" => details.in_time_per_second,
        "subject_cores" => details.subject_cores,
        "host_cpu_percent" => details.host_cpu_percent,
        "jitter_mean_ms" | "jitter_trimmed_mean_ms" => figures.jitter_ms.mean,
        "jitter_trimmed_p99_ms" => figures.jitter_ms.p99,
        "noise_jitter_mean_ms" => details.noise_jitter_ms.mean,
        "noise_jitter_p99_ms" => details.noise_jitter_ms.p99,
        "mos" => figures.mos,
        "lost_percent" => figures.lost_percent,
        _ => None,
    }
}

/// The host's noise for the measured program.
fn own_noise(trial: &TrialRecord) -> Option<&NoiseRecord> {
    trial.surroundings.as_ref()?.own_noise.as_ref()
}

fn refused(trial: &TrialRecord) -> f64 {
    let refused = |(outcome, _): &&(AttemptOutcome, u64)| *outcome == AttemptOutcome::Refused;
    let counts = trial.details.outcomes.iter().filter(refused);
    counts.map(|(_, count)| *count).sum::<u64>() as f64
}

fn dropped(trial: &TrialRecord) -> f64 {
    let counts = match trial.figures.calls.attempted {
        0 => trial.details.registrations,
        _ => trial.figures.calls,
    };
    let started = counts.attempted.saturating_sub(trial.details.not_started);
    started.saturating_sub(counts.established) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{FORMAT, RawWriter, RunRecord};
    use crate::record::StreamRecord;
    use crate::search::SearchTrial;

    #[test]
    fn best_and_worst_run_are_trimmed() {
        assert_eq!(trimmed(vec![]), None);
        assert_eq!(trimmed(vec![4.0, 2.0]), Some(3.0));
        assert_eq!(trimmed(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(trimmed(vec![5.0, 100.0, 1.0, 3.0, 4.0]), Some(4.0));
    }

    #[test]
    fn trials_without_the_planned_load_are_left_out() {
        let trial = |number: u32, p50: f64, lateness_ms: f64| {
            let mut trial = TrialRecord {
                trial: number,
                level: Some(900.0),
                verdict: RunVerdict::Passed,
                surroundings: Some(crate::raw::Surroundings::default()),
                ..TrialRecord::default()
            };
            trial.figures.response_ms.p50 = Some(p50);
            trial.details.lateness_ms = [Some(lateness_ms); 3];
            if lateness_ms > 50.0 {
                trial.verdict = RunVerdict::NotMeasured;
            }
            trial
        };
        let one = summarise(&[
            trial(0, 10.0, 1.0),
            trial(1, 500.0, 900.0),
            trial(2, 12.0, 1.0),
        ]);
        assert_eq!((one[0].p50, one[0].repetitions), (Some(11.0), 2));
        assert!(one[0].is_judged() && one[0].verdict == RunVerdict::NotMeasured);
        let remark = one[0].load_remark();
        let cause = "1 of 3 trials not judged: the generator could not keep up";
        assert!(remark.starts_with(cause), "{remark}");
        let all = summarise(&[trial(0, 500.0, 900.0)]);
        assert!(!all[0].is_judged() && all[0].p50 == Some(500.0));
        assert!(summarise(&[trial(0, 1.0, 1.0)])[0].load_remark().is_empty());
    }

    #[test]
    fn repeated_trial_of_a_search_does_not_count() {
        use RunVerdict::{Failed, NotMeasured, Passed};
        // The verdict of each trial, and whether the search counts it.
        let of = |verdicts: &[(RunVerdict, bool)]| {
            let number = |place: usize| u32::try_from(place).unwrap();
            let trials: Vec<TrialRecord> = verdicts
                .iter()
                .enumerate()
                .map(|(place, (verdict, _))| TrialRecord {
                    trial: number(place),
                    verdict: *verdict,
                    ..TrialRecord::default()
                })
                .collect();
            let step = |(place, (verdict, counts)): (usize, &(RunVerdict, bool))| SearchTrial {
                trial: number(place),
                good: *verdict == Passed,
                invalid: *verdict == NotMeasured,
                repeated: !counts,
                ..SearchTrial::default()
            };
            let search = SearchRecord {
                trials: verdicts.iter().enumerate().map(step).collect(),
                ..SearchRecord::default()
            };
            searched_verdict(&search, &trials)
        };
        assert_eq!(of(&[(NotMeasured, false), (Passed, true)]), Some(Passed));
        assert_eq!(of(&[(Failed, false), (Passed, true)]), Some(Passed));
        assert_eq!(of(&[(Passed, true), (Failed, true)]), Some(Failed));
        assert_eq!(of(&[(NotMeasured, true)]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn median_delay_of_several_trials_is_within_its_interval() {
        let dir = std::env::temp_dir().join(format!("hornwork-relay-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let mut raw = RawWriter::create(&dir).unwrap();
        let mut run = RunRecord {
            format: FORMAT,
            ..RunRecord::default()
        };
        for (number, delay_ms) in [(0, 0.2), (1, 0.2), (2, 5.0)] {
            let stream = |tenth: u32| StreamRecord {
                trial: number,
                received: 50,
                expected: 50,
                relay_p50_ms: Some(delay_ms + f64::from(tenth) / 100.0),
                relay_p99_ms: Some(delay_ms + 1.0),
                ..StreamRecord::default()
            };
            let streams: Vec<StreamRecord> = (0..20).map(stream).collect();
            raw.trial(&[], &streams).unwrap();
            let mut trial = TrialRecord {
                trial: number,
                ..TrialRecord::default()
            };
            trial.details.relay_ms = [Some(delay_ms), Some(delay_ms + 1.0), None];
            run.trials.push(trial);
        }
        raw.finish(&run).unwrap();
        let levels = from_records(&RunResults::read(&dir).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
        for name in ["relay_p50_ms", "relay_p99_ms"] {
            let value = levels[0].figure(name).unwrap();
            let interval = &levels[0].intervals[name];
            assert!(
                interval.low.is_none_or(|low| low <= value)
                    && interval.high.is_none_or(|high| value <= high),
                "{name}: {value} {interval:?}"
            );
        }
        let median = levels[0].figure("relay_p50_ms").unwrap();
        assert!((0.2..0.5).contains(&median), "{median}");
    }

    #[test]
    fn every_figure_name_is_accepted() {
        let level = LevelSummary::default();
        for name in LevelSummary::FIGURES {
            assert!(LevelSummary::has_figure(name));
            assert!(
                level.figure(name).is_none_or(|value| value == 0.0),
                "{name}"
            );
        }
    }
}
