//! The record of a search, as a run and its report contain it.

use crate::decimal::plain;
use crate::statistics::Interval;
use serde::{Deserialize, Serialize};

/// Repetitions that a failed value below a good one has to hold before its failure counts as a disturbance.
pub(super) const REFUTING_TRIALS: u32 = 2;

/// One trial of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

/// A search with its parameters, for reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchRecord {
    /// The benchmark by its name in RFC 7501, if it has one.
    pub benchmark: String,
    /// *r*: the first value tried.
    pub start: f64,
    /// *N*: attempts of each trial; `null` if the experiment bounds them otherwise.
    pub attempts: Option<u64>,
    /// *w* at the start.
    pub increase: f64,
    /// *d* at the start.
    pub decrease: f64,
    /// Good trials without a higher result after which it has converged.
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
}

impl SearchRecord {
    /// The values below the result that failed and were not refuted by later trials, in rising order. The search
    /// continues below them, so there are some only if its trials were used up.
    pub fn failed_below(&self) -> Vec<f64> {
        let mut failed: Vec<f64> = Vec::new();
        for step in &self.trials {
            let below = self.result.is_some_and(|result| step.value < result);
            if !step.good && below && !step.repeated && !failed.contains(&step.value) {
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
        let good = self
            .trials
            .iter()
            .filter(|step| step.good)
            .map(|step| step.value);
        let low = match first {
            None => Some(result),
            Some(first) => good.filter(|value| *value < first).reduce(f64::max),
        };
        Some(Interval {
            low,
            high: self.failed_above,
            samples: self.trials.len() as u64,
            of: "trials".to_owned(),
            method: "between the highest passed and the lowest failed value".to_owned(),
        })
    }

    /// The result in a sentence, without its unit.
    pub fn sentence(&self, unit: &str) -> String {
        let mut converged = match self.converged {
            true => String::new(),
            false => "; not converged: all permitted trials were used".to_owned(),
        };
        if let Some(words) = self.lower_failures() {
            converged.push_str("; ");
            converged.push_str(&words);
        }
        match (self.result, self.failed_above) {
            (None, _) => format!(
                "{}: below {} {unit}{converged}",
                self.benchmark,
                plain(
                    self.trials
                        .iter()
                        .map(|step| step.value)
                        .fold(f64::INFINITY, f64::min)
                )
            ),
            (Some(result), Some(above)) => format!(
                "{}: {} {unit}, {} failed{converged}",
                self.benchmark,
                plain(result),
                plain(above)
            ),
            (Some(result), None) => format!(
                "{}: at least {} {unit}, the highest value tried{converged}",
                self.benchmark,
                plain(result)
            ),
        }
    }
}
