//! Figures of a published study, for comparison with measured ones.

use super::bound::{PEAK, ReferenceValue};
use crate::report::LevelSummary;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Default of [`Study::ours`]: the highest level within every threshold.
pub const CAPACITY: &str = "capacity";

/// Figures of a study.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Rows of the studies that the experiment reproduces, such as `S5`.
    pub row: String,
    /// The study and its test bed: software, machines, load.
    pub ran_on: String,
    /// Differences of workload, SUT or machine from the study, each in a sentence; the report prints them beside the
    /// figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
    /// The study's main figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<f64>,
    /// Upper end if the study gives a range; `figure` is then its lower end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure_most: Option<f64>,
    /// Unit of the main figure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// The measured figure that the main figure is compared with: `capacity`, the highest level within every threshold,
    /// or a column of `levels.csv`.
    #[serde(default = "capacity")]
    pub ours: String,
    /// The level at which `ours` is read; by default the highest one of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// `ours` is given in percent of its value at this level, or of `"peak"`, measured before the levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent_of: Option<ReferenceValue>,
    /// Further figures by level.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub level: Vec<StudyLevel>,
}

fn capacity() -> String {
    CAPACITY.to_owned()
}

/// Figures of a study at one level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyLevel {
    /// Value of the sweep.
    pub at: f64,
    /// By the name of the column in `levels.csv`.
    pub figures: BTreeMap<String, f64>,
}

impl Study {
    /// Checks beyond the types; the error names the key.
    ///
    /// # Errors
    /// An unknown figure, or keys that exclude each other.
    pub(super) fn check(&self, has_peak: bool) -> Result<(), String> {
        let figures = self.level.iter().flat_map(|level| level.figures.keys());
        for name in figures {
            if !LevelSummary::has_figure(name) {
                return Err(format!(
                    "study.level.figures: {name:?} is not a numeric column of levels.csv"
                ));
            }
        }
        if self.ours != CAPACITY && !LevelSummary::has_figure(&self.ours) {
            return Err(format!(
                "study.ours: {:?} is neither capacity nor a numeric column of levels.csv",
                self.ours
            ));
        }
        if self.ours == CAPACITY && (self.at.is_some() || self.percent_of.is_some()) {
            return Err(
                "study.at and study.percent_of need study.ours, a column of levels.csv".to_owned(),
            );
        }
        if let Some(ReferenceValue::Name(name)) = &self.percent_of
            && (name != PEAK || !has_peak)
        {
            return Err(format!(
                "study.percent_of: {name:?} is neither a level nor \"peak\" of a table [peak]"
            ));
        }
        if self.differs.iter().any(|words| words.trim().is_empty()) {
            return Err("study.differs: an entry is empty".to_owned());
        }
        if self
            .figure_most
            .is_some_and(|most| self.figure.is_none_or(|least| least > most))
        {
            return Err("study.figure_most: the upper end of study.figure".to_owned());
        }
        if self.figure.is_some() == self.unit.is_empty() {
            return Err("study.figure and study.unit need each other".to_owned());
        }
        if self.row.is_empty() || self.ran_on.is_empty() {
            return Err("study: row and ran_on are required".to_owned());
        }
        Ok(())
    }
}
