//! Comparison of two searches by their results.

use super::super::study::search_result;
use super::{ComparedValue, ComparisonRow, OF_SEARCH, RESULT, difference_percent, run_file};
use crate::search::record::SearchRecord;
use serde::{Deserialize, Serialize};

/// The limit that a search found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SearchedLimit {
    /// It carried this value; `null` without any.
    pub low: Option<f64>,
    /// It failed at this value; `null` if the limit is higher than the values tried, or that of the generator.
    pub high: Option<f64>,
    /// Whether the search says something of the SUT.
    pub is_measured: bool,
    /// The lowest value that failed a full trial, if none passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<f64>,
    /// Whether the search reached its end: without a result, the lowest value of all failed.
    #[serde(default)]
    pub converged: bool,
}

impl SearchedLimit {
    /// Whether this limit of a search without a result is known not to be higher than a new one with this result. Where
    /// the lowest value failed in both searches, it is not.
    pub(super) fn is_at_most(self, new: SearchedLimit, result: Option<f64>) -> bool {
        let has_failed = |limit: SearchedLimit| limit.is_measured && limit.converged;
        match result {
            Some(result) => self.below.is_some_and(|below| below <= result),
            None => has_failed(self) && has_failed(new),
        }
    }
}

/// The results of two searches.
pub(super) fn search_row(
    folder: &str,
    (old, new): (&SearchRecord, &SearchRecord),
) -> ComparisonRow {
    let value = |file: &str, search: &SearchRecord| {
        let found = search_result(search);
        let (low, high) = match &found.interval {
            Some(interval) => (interval.low, interval.high),
            None => (None, search.failed_above),
        };
        let full = search.trials.iter().filter(|step| !step.short);
        ComparedValue {
            value: found.value,
            range: low.zip(high),
            n: full.count(),
            searched: Some(SearchedLimit {
                low,
                high,
                is_measured: search.is_measured(),
                below: search.lowest_failed(),
                converged: search.converged,
            }),
            from: vec![format!("{file}#/search")],
            ..ComparedValue::default()
        }
    };
    let (baseline, new) = (value(&run_file(folder), old), value("run.json", new));
    ComparisonRow {
        level: OF_SEARCH.to_owned(),
        figure: RESULT.to_owned(),
        difference_percent: difference_percent(&baseline, &new),
        baseline,
        new,
        is_probe: false,
    }
}

impl ComparisonRow {
    /// Whether the new run is worse by the results of two searches: their limits do not overlap, and differ by more
    /// than the tolerance.
    pub(super) fn is_worse_search(&self, tolerance_percent: f64) -> bool {
        let (Some(old), Some(new)) = (self.baseline.searched, self.new.searched) else {
            return false;
        };
        let Some(carried) = old.low else {
            return false;
        };
        match self.new.value {
            Some(value) => {
                new.high.is_some_and(|high| high < carried)
                    && carried - value > carried * tolerance_percent / 100.0
            }
            // The limit is below the trials that failed, which may be above the baseline's.
            None => new
                .below
                .is_some_and(|below| carried - below >= carried * tolerance_percent / 100.0),
        }
    }
}
