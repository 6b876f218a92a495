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
}

/// The peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeakRecord {
    /// Attempts per second that were answered in time and ended as planned at the highest good value; the largest rate
    /// of all trials if no value was good.
    pub value: f64,
    /// The highest good value of the sweep; `null` without one.
    pub at: Option<f64>,
    /// The lowest value above it that was not good; `null` if the highest permitted value was good.
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
            (Some(at), None) => format!(
                "{value} per second served at {} {label}, the highest value tried: the peak is higher",
                plain(at)
            ),
            (None, _) => format!(
                "no tried value was served nearly completely; the maximum was {value} per second ({})",
                counted(self.steps.len(), "trial")
            ),
        }
    }
}
