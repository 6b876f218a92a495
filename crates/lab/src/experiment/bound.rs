//! Thresholds over levels: bounds of figures of the report.

use super::study::CAPACITY;
use crate::report::LevelSummary;
use serde::{Deserialize, Serialize};

/// Name of the figure that is measured before the levels (`[peak]`).
pub const PEAK: &str = "peak";

/// Reference value of a relative bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ReferenceValue {
    /// The same figure at this level.
    Level(f64),
    /// `peak`: the rate measured before the levels.
    Name(String),
}

/// A bound of a figure of levels: of the figure itself, in percent of its value at another level or of the peak, or in
/// percent of another figure of the same level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FigureBound {
    /// A column of `levels.csv`, `capacity`, or `peak`.
    pub name: String,
    /// The level at which it is read; without it, every level of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// In percent of the same figure at this level, or of `"peak"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent_of: Option<ReferenceValue>,
    /// In percent of this figure at the same level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent_of_figure: Option<String>,
    /// The noise of the host, a figure of the same level, which can only make the bounded figure worse. A value within
    /// the bound passes with any noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<String>,
    /// Above this noise a value beyond `most` is not a measurement of the system under test, and is not judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise_most: Option<f64>,
    /// Whether the noise, up to `noise_most`, may come on top of `most`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub beyond_noise: bool,
    /// Lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<f64>,
    /// Upper bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most: Option<f64>,
}

impl FigureBound {
    /// Checks beyond the types; the error names the key.
    ///
    /// # Errors
    /// An unknown figure, keys that exclude each other, or a figure of a sweep in an experiment without one.
    pub(super) fn check(&self, has_peak: bool, has_levels: bool) -> Result<(), String> {
        let name = &self.name;
        let whole = name == CAPACITY || name == PEAK;
        if !whole && !LevelSummary::has_figure(name) {
            return Err(format!(
                "thresholds.figure: {name:?} is neither capacity nor peak nor a numeric column of levels.csv"
            ));
        }
        if self.least.is_none() && self.most.is_none() {
            return Err(format!(
                "thresholds.figure {name:?}: least or most is required"
            ));
        }
        let related = self.percent_of.is_some() || self.percent_of_figure.is_some();
        if whole && (self.at.is_some() || related) {
            return Err(format!(
                "thresholds.figure {name:?} applies to the whole run: at and percent_of are not possible"
            ));
        }
        if self.percent_of.is_some() && self.percent_of_figure.is_some() {
            return Err(format!(
                "thresholds.figure {name:?}: percent_of and percent_of_figure exclude each other"
            ));
        }
        if let Some(other) =
            (self.percent_of_figure.as_ref()).filter(|o| !LevelSummary::has_figure(o))
        {
            return Err(format!(
                "thresholds.figure.percent_of_figure: {other:?} is not a numeric column of levels.csv"
            ));
        }
        self.check_noise(whole || related)?;
        if !has_levels && self.needs_levels() {
            return Err(format!(
                "thresholds.figure {:?} needs [levels]; without a sweep, remove the bound too: --set thresholds.figure=",
                self.description()
            ));
        }
        let peak = name == PEAK || matches!(self.percent_of, Some(ReferenceValue::Name(_)));
        match &self.percent_of {
            Some(ReferenceValue::Name(word)) if word != PEAK => Err(format!(
                "thresholds.figure.percent_of: {word:?} is neither a level nor \"peak\""
            )),
            _ if peak && !has_peak => {
                Err("thresholds.figure: the peak needs the table [peak]".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Whether it is a figure of a sweep: the capacity, or one that is read or compared at a level.
    fn needs_levels(&self) -> bool {
        let at_level = matches!(self.percent_of, Some(ReferenceValue::Level(_)));
        self.name == CAPACITY || self.at.is_some() || at_level
    }

    /// Noise has its own figure and bound, and belongs to an upper bound of a plain figure.
    fn check_noise(&self, is_other: bool) -> Result<(), String> {
        let name = &self.name;
        match (&self.noise, self.noise_most) {
            (None, None) if !self.beyond_noise => Ok(()),
            (Some(_), Some(_)) if is_other || self.most.is_none() || self.least.is_some() => {
                Err(format!(
                    "thresholds.figure {name:?}: noise belongs to an upper bound (most) of a figure of a level, not to a share"
                ))
            }
            (Some(noise), Some(_)) if !LevelSummary::has_figure(noise) => Err(format!(
                "thresholds.figure.noise: {noise:?} is not a numeric column of levels.csv"
            )),
            (Some(_), Some(most)) if most.is_finite() && most >= 0.0 => Ok(()),
            _ => Err(format!(
                "thresholds.figure {name:?}: noise and noise_most (0 or more) belong together, and beyond_noise needs both"
            )),
        }
    }

    /// Description of the figure: `in_time_per_second at 1530, % of the peak`. Names stay as they are written in files.
    pub fn description(&self) -> String {
        let mut description = self.name.clone();
        if let Some(at) = self.at {
            description.push_str(&format!(" at {}", crate::decimal::plain(at)));
        }
        match (&self.percent_of, &self.percent_of_figure) {
            (Some(ReferenceValue::Level(level)), _) => {
                description.push_str(&format!(", % of that at {}", crate::decimal::plain(*level)));
            }
            (Some(ReferenceValue::Name(name)), _) => {
                description.push_str(&format!(", % of the {name}"))
            }
            (None, Some(figure)) => description.push_str(&format!(", % of {figure}")),
            (None, None) => {}
        }
        if let Some(noise) = self.noise.as_ref().filter(|_| self.beyond_noise) {
            description.push_str(&format!(" beyond {noise}"));
        }
        description
    }
}

/// Measurement of the peak before the levels: the highest value of the sweep at which nearly all attempts are served in
/// time. The search is that of `lab search`, with short trials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeakPlan {
    /// The first value tried.
    pub start: f64,
    /// Granularity of the values.
    pub step: f64,
    /// The highest value tried.
    pub highest: f64,
    /// Duration of the offered load in each trial, seconds (`callers.duration_seconds`).
    pub trial_seconds: f64,
    /// Most trials.
    pub trials: u32,
    /// Attempts that must be answered within half a second and end as planned, percent.
    pub served_percent: f64,
}

impl Default for PeakPlan {
    fn default() -> Self {
        PeakPlan {
            start: 100.0,
            step: 10.0,
            highest: 1_000.0,
            trial_seconds: 5.0,
            trials: 12,
            served_percent: 99.0,
        }
    }
}

impl PeakPlan {
    /// Checks beyond the types; the error names the key.
    ///
    /// # Errors
    /// A value out of range.
    pub(super) fn check(&self) -> Result<(), String> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let values = [self.start, self.step, self.highest, self.trial_seconds];
        if !values.into_iter().all(positive) || self.start > self.highest || self.trials == 0 {
            return Err(
                "peak: expected start, step, highest, trial_seconds and trials above 0, and start at most highest"
                    .to_owned(),
            );
        }
        match (0.0..=100.0).contains(&self.served_percent) {
            true => Ok(()),
            false => Err("peak.served_percent: expected 0 to 100".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{File, Level};

    #[test]
    fn levels_of_a_decimal_step_are_those_that_a_bound_names() {
        let text = "name = \"t\"\ntitle = \"t\"\n[sut]\ndirect = true\n[callers]\nrate = 5.0\ntotal = 3\n[callees]\n\
                    [levels]\nset = [\"callers.hold_seconds\"]\nlabel = \"seconds\"\nfrom = 0.1\nto = 0.9\nstep = 0.1\n\
                    [[thresholds.figure]]\nname = \"failed\"\nat = 0.3\nmost = 0\n";
        let file = File::parse("t", text).unwrap();
        let levels = file.levels().unwrap();
        let values: Vec<Option<f64>> = levels.iter().map(|level| level.value).collect();
        let written = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
        assert_eq!(values, written.map(Some));
        assert!(values.contains(&file.experiment().thresholds.figure[0].at));
        let hold = |level: &Level| Some(level.experiment.callers.as_ref()?.hold_seconds);
        assert_eq!(levels.get(2).and_then(hold), Some(0.3));
    }
}
