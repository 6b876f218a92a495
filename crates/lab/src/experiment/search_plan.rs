//! Parameters of the search for the capacity of an experiment.

use serde::{Deserialize, Serialize};

/// Parameters of the search (RFC 7502, Benchmarking Algorithm; its names are in brackets).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchPlan {
    /// The first value tried [r]; by default the first value of the sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<f64>,
    /// Granularity of the values; by default the step of the sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// The highest value tried; by default the last value of the sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub highest: Option<f64>,
    /// Attempts of each trial [N]: `callers.total`, or `registrations.users` without callers; by default as in the
    /// experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u64>,
    /// Increase of the value after a good trial [w], as a share.
    pub increase: f64,
    /// Decrease after a failed one [d], as a share; by default half of `increase`, at least a tenth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decrease: Option<f64>,
    /// Good trials without a higher result after which the search has converged.
    pub confirm: u32,
    /// Most trials.
    pub trials: u32,
}

impl Default for SearchPlan {
    fn default() -> Self {
        SearchPlan {
            start: None,
            step: None,
            highest: None,
            attempts: None,
            increase: 0.10,
            decrease: None,
            confirm: 10,
            trials: 80,
        }
    }
}

impl SearchPlan {
    /// The weight of the decrease.
    pub fn decrease(&self) -> f64 {
        self.decrease.unwrap_or((self.increase / 2.0).max(0.10))
    }

    /// Checks beyond the types; the error names the key.
    ///
    /// # Errors
    /// A weight out of range.
    pub(super) fn check(&self) -> Result<(), String> {
        let weight = |name: &str, value: f64| match value > 0.0 && value <= 1.0 {
            true => Ok(()),
            false => Err(format!(
                "search.{name} = {value}: expected more than 0, at most 1"
            )),
        };
        weight("increase", self.increase)?;
        weight("decrease", self.decrease())?;
        if self.confirm == 0 || self.trials == 0 || self.attempts == Some(0) {
            return Err("search: expected confirm, trials and attempts of at least 1".to_owned());
        }
        for (name, value) in [
            ("start", self.start),
            ("step", self.step),
            ("highest", self.highest),
        ] {
            if value.is_some_and(|value| !(value.is_finite() && value > 0.0)) {
                return Err(format!("search.{name}: expected more than 0"));
            }
        }
        if let (Some(start), Some(highest)) = (self.start, self.highest)
            && start > highest
        {
            return Err("search.start: at most search.highest".to_owned());
        }
        Ok(())
    }
}
