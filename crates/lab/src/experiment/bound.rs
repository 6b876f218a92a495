//! Thresholds over levels: bounds of the figures that an experiment is about.

use super::study::CAPACITY;
use crate::report::LevelSummary;
use serde::{Deserialize, Serialize};

/// The peak that was measured before the levels (`[peak]`), as a name of a figure.
pub const PEAK: &str = "peak";

/// With what a figure is compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Base {
    /// The same figure at this level.
    Level(f64),
    /// `peak`: the rate that was found before the levels.
    Name(String),
}

/// A bound of a figure of levels: of the figure itself, in percent of what it is at another level or of the peak, or in percent of
/// another figure of the same level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FigureBound {
    /// A column of `levels.csv`, `capacity`, or `peak`.
    pub name: String,
    /// The level at which it is read; every level that was run where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// In percent of the same figure at this level, or of `"peak"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent_of: Option<Base>,
    /// In percent of this figure at the same level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent_of_figure: Option<String>,
    /// The least that holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<f64>,
    /// The most that holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most: Option<f64>,
}

impl FigureBound {
    /// What types cannot say; the error names the key.
    ///
    /// # Errors
    /// Where a figure is none of ours, or keys do not make sense together.
    pub(super) fn check(&self, has_peak: bool) -> Result<(), String> {
        let name = &self.name;
        let whole = name == CAPACITY || name == PEAK;
        if !whole && !LevelSummary::has_figure(name) {
            return Err(format!(
                "thresholds.figure: {name:?} is neither capacity nor peak nor a column of levels.csv with a number"
            ));
        }
        if self.least.is_none() && self.most.is_none() {
            return Err(format!("thresholds.figure {name:?}: state least, or most"));
        }
        let related = self.percent_of.is_some() || self.percent_of_figure.is_some();
        if whole && (self.at.is_some() || related) {
            return Err(format!(
                "thresholds.figure {name:?} is of the whole run: no at, no percent_of"
            ));
        }
        if self.percent_of.is_some() && self.percent_of_figure.is_some() {
            return Err(format!(
                "thresholds.figure {name:?}: either percent_of, or percent_of_figure"
            ));
        }
        if let Some(other) =
            (self.percent_of_figure.as_ref()).filter(|o| !LevelSummary::has_figure(o))
        {
            return Err(format!(
                "thresholds.figure.percent_of_figure: {other:?} is no column of levels.csv with a number"
            ));
        }
        let peak = name == PEAK || matches!(self.percent_of, Some(Base::Name(_)));
        match &self.percent_of {
            Some(Base::Name(word)) if word != PEAK => Err(format!(
                "thresholds.figure.percent_of: {word:?} is neither a level nor \"peak\""
            )),
            _ if peak && !has_peak => Err(
                "thresholds.figure: a peak is measured where there is a table [peak]".to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// The figure in words: `in time per second at 1530, % of the peak`.
    pub fn words(&self) -> String {
        let mut words = self.name.replace('_', " ");
        if let Some(at) = self.at {
            words.push_str(&format!(" at {}", crate::report::plain(at)));
        }
        match (&self.percent_of, &self.percent_of_figure) {
            (Some(Base::Level(level)), _) => {
                words.push_str(&format!(", % of that at {}", crate::report::plain(*level)));
            }
            (Some(Base::Name(name)), _) => words.push_str(&format!(", % of the {name}")),
            (None, Some(figure)) => words.push_str(&format!(", % of {}", figure.replace('_', " "))),
            (None, None) => {}
        }
        words
    }
}

/// How the peak is measured before the levels: the highest value of the sweep at which nearly all is served in time. It is searched as
/// `lab search` does, with short trials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeakPlan {
    /// The first value tried.
    pub start: f64,
    /// Values are multiples of it.
    pub step: f64,
    /// The highest value tried.
    pub highest: f64,
    /// How long each trial offers calls, seconds (`callers.seconds`).
    pub seconds: f64,
    /// Trials at most.
    pub trials: u32,
    /// Attempts that have to be answered within half a second and end as planned, percent.
    pub served_percent: f64,
}

impl Default for PeakPlan {
    fn default() -> Self {
        PeakPlan {
            start: 100.0,
            step: 10.0,
            highest: 1_000.0,
            seconds: 5.0,
            trials: 12,
            served_percent: 99.0,
        }
    }
}

impl PeakPlan {
    /// What types cannot say; the error names the key.
    ///
    /// # Errors
    /// Where a value makes no sense.
    pub(super) fn check(&self) -> Result<(), String> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let values = [self.start, self.step, self.highest, self.seconds];
        if !values.into_iter().all(positive) || self.start > self.highest || self.trials == 0 {
            return Err(
                "peak: start, step, highest, seconds and trials are more than 0, start at most highest"
                    .to_owned(),
            );
        }
        match (0.0..=100.0).contains(&self.served_percent) {
            true => Ok(()),
            false => Err("peak.served_percent: expected 0 to 100".to_owned()),
        }
    }
}
