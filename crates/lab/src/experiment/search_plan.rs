//! Parameters of the search for the capacity of an experiment.

use serde::{Deserialize, Serialize};

/// Least number of trials of the RFC's walk without a higher result.
const RFC_CONFIRM: u32 = 10;

/// The algorithm of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchMethod {
    /// Short trials to find the region, then full ones on both sides of the limit.
    #[default]
    Bracket,
    /// The iteration of RFC 7502 (Benchmarking Algorithm), then halving of the gap.
    Rfc7502,
}

/// Parameters of the search; those of RFC 7502 (Benchmarking Algorithm) have its names in brackets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchPlan {
    /// The algorithm; by default `bracket`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<SearchMethod>,
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
    /// `bracket`: duration of the load in a short trial, seconds; 0: no short trials. By default 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coarse_seconds: Option<f64>,
    /// `bracket`: the search ends when the gap to the lowest failed value is this share of the result, percent, or one
    /// step. By default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolution_percent: Option<f64>,
    /// `rfc7502`: increase of the value after a good trial [w], as a share. By default 0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub increase: Option<f64>,
    /// `rfc7502`: decrease after a failed one [d], as a share; by default half of `increase`, at least a tenth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decrease: Option<f64>,
    /// `bracket`: repetitions at the result, of which the majority decides; by default 1. `rfc7502`: good trials
    /// without a higher result after which the search has converged; by default 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<u32>,
    /// Most trials.
    pub trials: u32,
    /// Seconds after which no further trial begins, except one where full trials have only failed; by default without
    /// limit. Not in virtual time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_seconds: Option<f64>,
}

impl Default for SearchPlan {
    fn default() -> Self {
        SearchPlan {
            method: None,
            start: None,
            step: None,
            highest: None,
            attempts: None,
            coarse_seconds: None,
            resolution_percent: None,
            increase: None,
            decrease: None,
            confirm: None,
            trials: 80,
            limit_seconds: None,
        }
    }
}

impl SearchPlan {
    /// The algorithm.
    pub fn method(&self) -> SearchMethod {
        self.method.unwrap_or_default()
    }

    /// Duration of the load in a short trial, seconds.
    pub fn coarse_seconds(&self) -> f64 {
        self.coarse_seconds.unwrap_or(4.0)
    }

    /// Share of the result at which the gap is narrow enough, percent.
    pub fn resolution_percent(&self) -> f64 {
        self.resolution_percent.unwrap_or(5.0)
    }

    /// The weight of the increase.
    pub fn increase(&self) -> f64 {
        self.increase.unwrap_or(0.10)
    }

    /// The weight of the decrease.
    pub fn decrease(&self) -> f64 {
        self.decrease.unwrap_or((self.increase() / 2.0).max(0.10))
    }

    /// Trials that confirm the result.
    pub fn confirm(&self) -> u32 {
        self.confirm.unwrap_or(match self.method() {
            SearchMethod::Bracket => 1,
            SearchMethod::Rfc7502 => RFC_CONFIRM,
        })
    }

    /// Checks beyond the types; the error names the key.
    ///
    /// # Errors
    /// A value out of range, or a key of the other method.
    pub(super) fn check(&self) -> Result<(), String> {
        self.check_method()?;
        let within = |name: &str, value: f64, most: f64| match value > 0.0 && value <= most {
            true => Ok(()),
            false => Err(format!(
                "search.{name} = {value}: expected more than 0, at most {most}"
            )),
        };
        within("increase", self.increase(), 1.0)?;
        within("decrease", self.decrease(), 1.0)?;
        within("resolution_percent", self.resolution_percent(), 100.0)?;
        if !(0.0..=3_600.0).contains(&self.coarse_seconds()) {
            return Err("search.coarse_seconds: expected 0 to 3600".to_owned());
        }
        within(
            "limit_seconds",
            self.limit_seconds.unwrap_or(1.0),
            864_000.0,
        )?;
        if self.confirm == Some(0) || self.trials == 0 || self.attempts == Some(0) {
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

    /// A warning about a key of the RFC's walk, which has no effect. Files of earlier releases have such keys and name
    /// no method, since there was no other; they are accepted for one release.
    pub(super) fn unused_key(&self) -> Option<String> {
        let (key, method) = self.key_of_other_method()?;
        self.method.is_none().then(|| {
            format!(
                "search.{key} has an effect with search.method = \"{method}\" only, and will be refused without it by the next release: set search.method = \"{method}\", or remove search.{key}"
            )
        })
    }

    /// A key of the other method would have no effect.
    fn check_method(&self) -> Result<(), String> {
        match self.key_of_other_method() {
            Some((key, method)) if self.method.is_some() => Err(format!(
                "search.{key} has an effect with search.method = \"{method}\" only: set search.method = \"{method}\", or remove search.{key}"
            )),
            _ => Ok(()),
        }
    }

    /// The first key that is set and belongs to the other method, and that method.
    fn key_of_other_method(&self) -> Option<(&'static str, &'static str)> {
        let (keys, other) = match self.method() {
            SearchMethod::Bracket => (
                [
                    ("increase", self.increase.is_some()),
                    ("decrease", self.decrease.is_some()),
                ],
                "rfc7502",
            ),
            SearchMethod::Rfc7502 => (
                [
                    ("coarse_seconds", self.coarse_seconds.is_some()),
                    ("resolution_percent", self.resolution_percent.is_some()),
                ],
                "bracket",
            ),
        };
        let (key, _) = keys.into_iter().find(|(_, is_set)| *is_set)?;
        Some((key, other))
    }
}
