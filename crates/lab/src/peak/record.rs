//! The record of a peak, as a run and its report contain it.

use crate::decimal::{counted, plain};
use crate::statistics::Interval;
use serde::{Deserialize, Serialize};

/// One trial of the peak measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeakStep {
    /// Value of the sweep.
    pub value: f64,
    /// Attempts that were answered in time and ended as planned, percent.
    pub served_percent: f64,
    /// The same attempts, per second.
    pub in_time_per_second: f64,
    /// Whether the share reaches [`crate::experiment::PeakPlan::served_percent`].
    pub good: bool,
    /// The reason, if the generator did not offer the load: the step says nothing of the SUT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
}

/// The peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeakRecord {
    /// Attempts per second that were answered in time and ended as planned at the highest good value; the largest rate
    /// of all trials if no value was good.
    pub value: f64,
    /// The highest good value of the sweep; `null` without one.
    pub at: Option<f64>,
    /// The lowest value above it that was not good; `null` if the highest permitted value was good, or the generator
    /// was the limit.
    pub failed_above: Option<f64>,
    /// Interval from the peak to the failed value above it.
    pub interval: Option<Interval>,
    /// Trials in the order of execution.
    pub steps: Vec<PeakStep>,
}

impl PeakRecord {
    /// The result as a sentence.
    pub fn sentence(&self, label: &str) -> String {
        let value = plain(self.value);
        match (self.at, self.failed_above) {
            (Some(at), Some(above)) => format!(
                "{value} per second served at {} {label}; overloaded at {} ({})",
                plain(at),
                plain(above),
                counted(self.steps.len(), "trial")
            ),
            (Some(at), None) => {
                let invalid = self.steps.iter().find_map(|step| step.invalid.as_deref());
                let limit = invalid.unwrap_or("the highest value tried");
                format!(
                    "{value} per second served at {} {label}; the peak is higher: {limit}",
                    plain(at)
                )
            }
            (None, _) => format!(
                "no tried value was served nearly completely; the maximum was {value} per second ({})",
                counted(self.steps.len(), "trial")
            ),
        }
    }
}
