//! The verdict of a comparison, and its judgement as a sentence.

use super::{
    ComparisonRow, OF_SEARCH, RowJudgement, RunComparison, judge, without_control_characters,
};
use crate::error::RunVerdict;

impl RunComparison {
    /// Names of the figures with such a judgement.
    fn figures_with(&self, has: fn(&RowJudgement) -> bool) -> Vec<String> {
        let judged = judge(&self.rows, self.tolerance_percent);
        let rows = self.rows.iter().zip(&judged);
        rows.filter(|(_, judgement)| has(judgement))
            .map(|(row, _)| match row.level.as_str() {
                OF_SEARCH => row.figure.clone(),
                level => format!("{} at {level}", row.figure),
            })
            .collect()
    }

    /// Figures that are worse in the new run, and the verdict if it is.
    pub(super) fn worse_figures(&self) -> Vec<String> {
        let mut worse = self.figures_with(|judgement| judgement.is_worse);
        if self.newly_failed {
            worse.push("the verdict".to_owned());
        }
        worse
    }

    /// Figures that are worse by more than the tolerance, with too few trials to tell that from chance.
    pub(super) fn untested_figures(&self) -> Vec<String> {
        self.figures_with(|judgement| judgement.is_untested)
    }

    /// Whether any figure that was judged was measured in both runs. Of two searches that is their result.
    fn is_compared(&self) -> bool {
        let mut rows = self.rows.iter().filter(|row| !row.is_probe);
        rows.any(ComparisonRow::is_compared)
    }

    /// Failed if the new run is worse; not measured if there is nothing to compare it by, or if a figure is worse by
    /// more than the tolerance and cannot be tested.
    pub fn verdict(&self) -> RunVerdict {
        match self.worse_figures().is_empty() {
            false => RunVerdict::Failed,
            true if self.is_compared() && self.untested_figures().is_empty() => RunVerdict::Passed,
            true => RunVerdict::NotMeasured,
        }
    }

    /// The judgement as a sentence.
    pub fn judgement(&self) -> String {
        let (worse, untested) = (self.worse_figures(), self.untested_figures());
        let named = |figures: &[String]| without_control_characters(&figures.join(", "));
        if !worse.is_empty() {
            return format!("worse: {}", named(&worse));
        }
        if !untested.is_empty() {
            return format!(
                "not judged: too few trials to tell these differences from chance: {}; repeat both runs with --repeat 3",
                named(&untested)
            );
        }
        match self.is_compared() {
            true => "not worse".to_owned(),
            false if self.rows.iter().any(|row| row.level == OF_SEARCH) => {
                "not compared: a search has no result".to_owned()
            }
            false => "not compared: no level was judged in both runs".to_owned(),
        }
    }
}
