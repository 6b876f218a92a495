//! The record of a search, as a run and its report contain it.

use crate::decimal::{counted, plain};
use crate::experiment::SearchMethod;
use crate::statistics::Interval;
use serde::{Deserialize, Serialize};

/// Repetitions that a failed value below a good one has to hold before its failure counts as a disturbance.
pub(super) const REFUTING_TRIALS: u32 = 2;

/// One trial of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchTrial {
    /// Number of the trial in the run.
    pub trial: u32,
    /// The value tried.
    pub value: f64,
    /// No failure, within every threshold, steady.
    pub good: bool,
    /// Failed thresholds, as text; empty for a good trial. For a busy machine it mentions the repetition.
    pub missed: String,
    /// Whether the trial was repeated because the machine was busy; it does not count then.
    #[serde(default, rename = "anew")]
    pub repeated: bool,
    /// A short trial, which only chose where the full ones began.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub short: bool,
    /// The SUT did not get the planned load: the failure is none of the SUT, but the search continues below it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub invalid: bool,
    /// The SUT had work and no processor of the machine that it shares with the generator, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
}

impl SearchTrial {
    /// Whether it says something of the SUT at full length.
    pub(crate) fn counts(&self) -> bool {
        !self.short && !self.repeated && !self.invalid
    }

    /// The outcome, for tables.
    pub fn outcome(&self) -> &'static str {
        match (self.good, self.invalid) {
            (true, _) => "good",
            (false, true) => "not judged",
            (false, false) => "failed",
        }
    }
}

/// A search with its parameters, for reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchRecord {
    /// The benchmark by its name in RFC 7501, if it has one.
    pub benchmark: String,
    /// The algorithm.
    #[serde(default = "method_of_old_records")]
    pub method: SearchMethod,
    /// *r*: the first value tried.
    pub start: f64,
    /// *N*: attempts of each trial; `null` if the experiment bounds them otherwise.
    pub attempts: Option<u64>,
    /// Duration of the load in short trials, seconds; `null` without them.
    #[serde(default)]
    pub coarse_seconds: Option<f64>,
    /// Share of the result at which the gap is narrow enough, percent; `null` for RFC 7502.
    #[serde(default)]
    pub resolution_percent: Option<f64>,
    /// *w* at the start; `null` for the bracket search.
    pub increase: Option<f64>,
    /// *d* at the start; `null` for the bracket search.
    pub decrease: Option<f64>,
    /// Good trials without a higher result after which it has converged; repetitions at the result of the bracket
    /// search.
    pub confirm: u32,
    /// Final gap between the result and the lowest failed value.
    pub step: f64,
    /// The highest permitted value.
    pub highest: f64,
    /// Test setup in the form of RFC 7502 (Test Setup Report): name and value.
    pub setup: Vec<(String, String)>,
    /// Trials in their order.
    pub trials: Vec<SearchTrial>,
    /// The highest good value.
    pub result: Option<f64>,
    /// The lowest value above the result that failed.
    pub failed_above: Option<f64>,
    /// Whether the algorithm ended within the permitted trials.
    pub converged: bool,
    /// Values that failed once below a good one, were repeated, and held each time.
    #[serde(default)]
    pub refuted: Vec<f64>,
    /// The time limit in seconds, if it ended the search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by_limit_s: Option<f64>,
}

fn method_of_old_records() -> SearchMethod {
    SearchMethod::Rfc7502
}

impl SearchRecord {
    /// Whether any trial of full length says something of the SUT.
    pub fn is_measured(&self) -> bool {
        self.trials.iter().any(SearchTrial::counts)
    }

    /// The lowest value of the full trials, if some were judged and none gave a result.
    pub fn lowest_failed(&self) -> Option<f64> {
        let full = self.trials.iter().filter(|step| step.counts());
        full.map(|step| step.value)
            .filter(|_| self.result.is_none())
            .reduce(f64::min)
    }

    /// The place of the limit, if full trials were judged and none of them passed: it is below each of them, and short
    /// trials may have passed below.
    pub fn without_result(&self) -> Option<String> {
        let lowest = self.lowest_failed()?;
        let full = self.trials.iter().filter(|step| step.counts());
        let mut text = match full.count() {
            1 => format!("below {}, the only trial of full length", plain(lowest)),
            count => format!(
                "below {}, the lowest of {count} trials of full length",
                plain(lowest)
            ),
        };
        let short = self.trials.iter().filter(|step| step.short && step.good);
        let below = short
            .map(|step| step.value)
            .filter(|value| *value < lowest)
            .reduce(f64::max);
        if let Some(passed) = below {
            text.push_str(&format!("; short trials passed up to {}", plain(passed)));
        }
        if let Some(seconds) = self.ended_by_limit_s {
            text.push_str(&format!(
                "; ended by its time limit of {} s",
                plain(seconds)
            ));
        }
        Some(text)
    }

    /// The failed trials at the result, as text; `None` without any.
    pub fn failures_at_result(&self) -> Option<String> {
        let result = self.result?.to_bits();
        let at = |step: &&SearchTrial| step.counts() && step.value.to_bits() == result;
        let all = self.trials.iter().filter(at);
        let failed = all.clone().filter(|step| !step.good).count();
        (failed > 0).then(|| format!("{failed} of {} there failed", counted(all.count(), "trial")))
    }

    /// The reason, if the SUT did not get the load of the lowest failed value: its limit may be higher.
    pub fn load_limit(&self) -> Option<&str> {
        let above = self.failed_above?.to_bits();
        let at =
            |trial: &&SearchTrial| trial.value.to_bits() == above && !trial.short && !trial.good;
        let mut failed = self
            .trials
            .iter()
            .filter(at)
            .filter(|trial| !trial.repeated);
        match failed.clone().all(|trial| trial.invalid) {
            true => failed.next().map(|trial| trial.missed.as_str()),
            false => None,
        }
    }

    /// The reason to take the machine for the limit, if the SUT had no processor in a trial that failed above the
    /// result.
    pub fn shared_above(&self) -> Option<String> {
        let above = self.failed_above?.to_bits();
        let failed = |trial: &&SearchTrial| trial.value.to_bits() == above && !trial.good;
        let mut failed = self.trials.iter().filter(failed);
        let why = failed.find_map(|trial| trial.shared.as_deref())?;
        Some(format!("at {} {why}", plain(f64::from_bits(above))))
    }

    /// The values below the result that failed and were not refuted by later trials, in rising order. The search
    /// continues below them, so there are some only if its trials were used up.
    pub fn failed_below(&self) -> Vec<f64> {
        let mut failed: Vec<f64> = Vec::new();
        for step in self.trials.iter().filter(|step| step.counts()) {
            let below = self.result.is_some_and(|result| step.value < result);
            if !step.good && below && !failed.contains(&step.value) {
                failed.push(step.value);
            }
        }
        failed.retain(|value| !self.refuted.contains(value));
        failed.sort_by(f64::total_cmp);
        failed
    }

    /// The failures below the result, as text; `None` without any.
    pub fn lower_failures(&self) -> Option<String> {
        let list = |values: &[f64]| {
            values
                .iter()
                .map(|v| plain(*v))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let failed = self.failed_below();
        let refuted: Vec<f64> = (self.refuted.iter().copied())
            .filter(|value| self.result.is_some_and(|result| *value < result))
            .collect();
        match (failed.is_empty(), refuted.is_empty()) {
            (true, true) => None,
            (true, false) => Some(format!(
                "not monotonic: {} failed once and held {REFUTING_TRIALS} times afterwards",
                list(&refuted)
            )),
            (false, _) => Some(format!(
                "not monotonic: {} failed below it, so the limit may be lower",
                list(&failed)
            )),
        }
    }

    /// The interval of the limit: the highest good value below every failed one, and the lowest failed one above the
    /// result.
    pub fn interval(&self) -> Option<Interval> {
        let result = self.result?;
        let first = self.failed_below().first().copied();
        let full = self.trials.iter().filter(|step| !step.short);
        let good = full.clone().filter(|step| step.good).map(|step| step.value);
        let low = match first {
            None => Some(result),
            Some(first) => good.filter(|value| *value < first).reduce(f64::max),
        };
        let high = self.failed_above.filter(|_| self.load_limit().is_none());
        Some(Interval::bracket(low, high, full.count()))
    }

    /// The algorithm with its parameters, as sentences.
    pub fn algorithm(&self) -> String {
        let known = |value: Option<f64>| value.map_or("-".to_owned(), plain);
        let attempts = self
            .attempts
            .map_or("as in the experiment".to_owned(), |n| n.to_string());
        let (start, step) = (plain(self.start), plain(self.step));
        match self.method {
            SearchMethod::Rfc7502 => format!(
                "Algorithm of RFC 7502: r = {start}, N = {attempts}, w = {}, d = {}, converged after {} good trials without a \
                 higher one; then the gap halved down to {step}.",
                known(self.increase),
                known(self.decrease),
                self.confirm
            ),
            SearchMethod::Bracket => {
                let coarse = self.coarse_seconds.map_or(String::new(), |seconds| {
                    format!(
                        "Short trials (load of {} s) chose where the full ones began; their results do not count. ",
                        plain(seconds)
                    )
                });
                format!(
                    "{coarse}Trials from {start} (attempts: {attempts}) put the limit between a passed and a failed value, down to a gap of \
                     {} % or {step}; the result was repeated, and the majority of {} trials decided where it failed.",
                    known(self.resolution_percent),
                    2 * self.confirm + 1
                )
            }
        }
    }

    /// The result in a sentence, without its unit.
    pub fn sentence(&self, unit: &str) -> String {
        let mut converged = match self.converged {
            true => String::new(),
            false => format!(
                "; not converged after {}",
                counted(self.trials.len(), "trial")
            ),
        };
        if let Some(words) = self.lower_failures() {
            converged.push_str("; ");
            converged.push_str(&words);
        }
        if let Some(why) = self.shared_above() {
            converged.push_str("; ");
            converged.push_str(&why);
        }
        let name = &self.benchmark;
        match (self.result, self.failed_above, self.load_limit()) {
            (None, _, _) if !self.is_measured() => {
                let last = self.trials.iter().rev().find(|trial| trial.invalid);
                let why = last.map_or("no trial of full length was run", |trial| &trial.missed);
                format!("{name}: not measured: {why}{converged}")
            }
            (None, _, _) => {
                let place = self.without_result().unwrap_or_default();
                format!("{name} ({unit}): {place}{converged}")
            }
            (Some(result), Some(above), Some(why)) => format!(
                "{name}: at least {} {unit}; at {} the system under test was not the limit: {why}{converged}",
                plain(result),
                plain(above)
            ),
            (Some(result), Some(above), None) => format!(
                "{name}: {} {unit}, {} failed{converged}",
                plain(result),
                plain(above)
            ),
            (Some(result), None, _) => format!(
                "{name}: at least {} {unit}, the highest value tried{converged}",
                plain(result)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(value: f64, good: bool, invalid: bool) -> SearchTrial {
        SearchTrial {
            value,
            good,
            invalid,
            missed: match invalid {
                true => "the generator could not keep up: late".to_owned(),
                false => String::new(),
            },
            ..SearchTrial::default()
        }
    }

    #[test]
    fn limit_of_the_generator_is_none_of_the_system_under_test() {
        let mut found = SearchRecord {
            benchmark: "Session Establishment Rate".to_owned(),
            trials: vec![trial(400.0, true, false), trial(800.0, false, true)],
            result: Some(400.0),
            failed_above: Some(800.0),
            converged: true,
            ..SearchRecord::default()
        };
        assert!(found.load_limit().is_some());
        assert_eq!(found.interval().unwrap().high, None);
        let sentence = found.sentence("calls per second");
        assert!(
            sentence.contains("at least 400 calls per second; at 800 the system under test was not the limit: the generator"),
            "{sentence}"
        );
        // A valid failure there is a limit of the system under test.
        found.trials.push(trial(800.0, false, false));
        assert_eq!(found.load_limit(), None);
        assert_eq!(found.interval().unwrap().high, Some(800.0));
        // Two trials that were not valid say nothing, nor do short ones.
        let mut short = trial(100.0, false, false);
        short.short = true;
        let none = SearchRecord {
            trials: vec![short, trial(400.0, false, true), trial(200.0, false, true)],
            result: None,
            failed_above: Some(200.0),
            ..found.clone()
        };
        assert!(!none.is_measured());
        assert!(
            none.sentence("calls")
                .contains("not measured: the generator")
        );
    }

    #[test]
    fn machine_is_named_as_the_limit_where_the_sut_had_no_processor() {
        let with = |value: f64, good: bool, shared: Option<&str>| SearchTrial {
            shared: shared.map(str::to_owned),
            ..trial(value, good, false)
        };
        let mut found = SearchRecord {
            benchmark: "Media capacity".to_owned(),
            trials: vec![
                with(700.0, true, Some("below")),
                with(800.0, false, Some("the SUT waited")),
            ],
            result: Some(700.0),
            failed_above: Some(800.0),
            converged: true,
            ..SearchRecord::default()
        };
        let sentence = found.sentence("calls");
        assert!(
            sentence.ends_with("800 failed; at 800 the SUT waited"),
            "{sentence}"
        );
        found.trials[1].shared = None;
        assert_eq!(found.shared_above(), None);
    }

    #[test]
    fn short_trials_are_neither_result_nor_interval() {
        let mut short = trial(900.0, true, false);
        short.short = true;
        let found = SearchRecord {
            trials: vec![short, trial(400.0, true, false), trial(420.0, false, false)],
            result: Some(400.0),
            failed_above: Some(420.0),
            converged: true,
            ..SearchRecord::default()
        };
        let interval = found.interval().unwrap();
        assert_eq!((interval.low, interval.high), (Some(400.0), Some(420.0)));
        assert_eq!(interval.samples, 2);
        assert!(found.lower_failures().is_none());
    }

    fn short(value: f64, good: bool) -> SearchTrial {
        SearchTrial {
            short: true,
            ..trial(value, good, false)
        }
    }

    #[test]
    fn search_without_result_names_its_trials() {
        let mut found = SearchRecord {
            trials: vec![
                short(200.0, true),
                short(800.0, true),
                short(1_000.0, false),
                trial(950.0, false, false),
            ],
            failed_above: Some(950.0),
            ended_by_limit_s: Some(58.0),
            ..SearchRecord::default()
        };
        assert_eq!(
            found.without_result().unwrap(),
            "below 950, the only trial of full length; short trials passed up to 800; ended by its time limit of 58 s"
        );
        let sentence = found.sentence("calls");
        assert!(
            sentence.contains("(calls): below 950, the only"),
            "{sentence}"
        );
        // Short trials above the failed load say nothing of the place below it.
        found.trials.push(trial(150.0, false, false));
        found.ended_by_limit_s = None;
        assert_eq!(
            found.without_result().unwrap(),
            "below 150, the lowest of 2 trials of full length"
        );
        found.result = Some(100.0);
        assert_eq!(found.without_result(), None);
    }

    #[test]
    fn failed_trials_at_the_result_are_named() {
        let mut found = SearchRecord {
            trials: vec![
                short(11_700.0, false),
                trial(11_700.0, true, false),
                trial(11_700.0, false, false),
                trial(11_700.0, true, false),
                trial(12_250.0, false, false),
            ],
            result: Some(11_700.0),
            failed_above: Some(12_250.0),
            ..SearchRecord::default()
        };
        assert_eq!(
            found.failures_at_result().unwrap(),
            "1 of 3 trials there failed"
        );
        found
            .trials
            .retain(|step| step.good || step.value > 12_000.0);
        assert_eq!(found.failures_at_result(), None);
    }
}
