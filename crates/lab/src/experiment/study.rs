//! What a study measured, so that it stands beside what we measure.

use super::bound::{Base, PEAK};
use crate::report::LevelSummary;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Our figure where [`Study::ours`] says nothing else: the highest level within every threshold.
pub const CAPACITY: &str = "capacity";

/// Figures of a study.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Rows of the studies that the experiment reproduces, such as `S5`.
    pub row: String,
    /// Which study, and what it ran on: software, machines, load.
    pub ran_on: String,
    /// What of our workload, subject or machine differs from the study's, each in a sentence; the report prints them beside the figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
    /// The study's main figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<f64>,
    /// Unit of the main figure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Which of our figures the main figure is compared with: `capacity`, the highest level within every threshold, or a
    /// column of `levels.csv`.
    #[serde(default = "capacity")]
    pub ours: String,
    /// The level at which `ours` is read; the highest one that was run where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// `ours` is given in percent of its value at this level, or of `"peak"`, which was measured before the levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent_of: Option<Base>,
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
    /// What types cannot say; the error names the key.
    ///
    /// # Errors
    /// Where a figure is none of ours, or keys do not make sense together.
    pub(super) fn check(&self, has_peak: bool) -> Result<(), String> {
        let figures = self.level.iter().flat_map(|level| level.figures.keys());
        for name in figures {
            if !LevelSummary::has_figure(name) {
                return Err(format!(
                    "study.level.figures: {name:?} is no column of levels.csv with a number"
                ));
            }
        }
        if self.ours != CAPACITY && !LevelSummary::has_figure(&self.ours) {
            return Err(format!(
                "study.ours: {:?} is neither capacity nor a column of levels.csv with a number",
                self.ours
            ));
        }
        if self.ours == CAPACITY && (self.at.is_some() || self.percent_of.is_some()) {
            return Err(
                "study.at and study.percent_of need study.ours, a column of levels.csv".to_owned(),
            );
        }
        if let Some(Base::Name(name)) = &self.percent_of
            && (name != PEAK || !has_peak)
        {
            return Err(format!(
                "study.percent_of: {name:?} is neither a level nor \"peak\" of a table [peak]"
            ));
        }
        if self.differs.iter().any(|words| words.trim().is_empty()) {
            return Err("study.differs: say what differs".to_owned());
        }
        if self.figure.is_some() == self.unit.is_empty() {
            return Err("study.figure and study.unit belong together".to_owned());
        }
        if self.row.is_empty() || self.ran_on.is_empty() {
            return Err("study: row and ran_on say whose figures these are".to_owned());
        }
        Ok(())
    }
}
