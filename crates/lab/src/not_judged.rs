//! Points of a run or of a study that were not judged, with the reasons: the last lines of its summary.

use crate::decimal::counted;
use crate::error::RunVerdict;
use crate::raw::{CUT_SHORT, TrialRecord};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Begin of a remark that names why a trial is not judged.
pub(crate) const NOT_JUDGED: &str = "not judged: ";
/// In a remark that names why a trial has no figures.
pub(crate) const NOT_MEASURED: &str = ": not measured, ";
/// The reason where no other one is known.
pub(crate) const NO_FIGURE: &str = "no figure with a threshold was measured";
/// Reasons that a line names.
const REASONS: usize = 3;

/// Points that were not judged, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotJudged {
    /// The part of the study; empty: an experiment of its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// The noun of a point: `trial`, `cell`, `part`.
    pub unit: String,
    /// Number of points that were not judged.
    pub points: u64,
    /// Number of all points.
    pub of: u64,
    /// The reasons, each once.
    pub causes: Vec<String>,
}

impl NotJudged {
    /// Points of this kind, with the reason of each; `None` if all were judged.
    pub(crate) fn of(unit: &str, all: usize, causes: Vec<String>) -> Option<NotJudged> {
        let points = causes.len() as u64;
        let mut found: Vec<String> = Vec::new();
        for cause in causes {
            if !found.contains(&cause) {
                found.push(cause);
            }
        }
        (points > 0).then(|| NotJudged {
            part: String::new(),
            unit: unit.to_owned(),
            points,
            of: all as u64,
            causes: found,
        })
    }

    /// The trials of a run that have a threshold, and were not judged; `None` if all were.
    pub(crate) fn of_trials(trials: &[TrialRecord]) -> Option<NotJudged> {
        let open = trials
            .iter()
            .filter(|trial| trial.verdict == RunVerdict::NotMeasured || trial.is_cut_short());
        NotJudged::of("trial", trials.len(), open.map(reason).collect())
    }

    /// A part without a judgement as a whole.
    pub(crate) fn whole(cause: String) -> NotJudged {
        NotJudged {
            unit: "part".to_owned(),
            points: 1,
            of: 1,
            causes: vec![cause],
            ..NotJudged::default()
        }
    }

    /// As a sentence: how many of which, and why.
    pub fn text(&self) -> String {
        let mut text = match self.of {
            1 if self.unit == "part" => self.part.clone(),
            of => format!("{} of {}", self.points, counted(of, &self.unit)),
        };
        if !self.part.is_empty() && text != self.part {
            let _ = write!(text, " of {}", self.part);
        }
        let named: Vec<&str> = self
            .causes
            .iter()
            .take(REASONS)
            .map(String::as_str)
            .collect();
        let _ = write!(text, ": {}", named.join("; "));
        match self.causes.len().saturating_sub(REASONS) {
            0 => {}
            more => {
                let _ = write!(text, "; and {}", counted(more as u64, "other reason"));
            }
        }
        text
    }
}

/// Why a trial was not judged, by its remarks and thresholds.
fn reason(trial: &TrialRecord) -> String {
    if trial.is_cut_short() {
        return CUT_SHORT.trim_start_matches(NOT_JUDGED).to_owned();
    }
    let remarks = || trial.remarks.iter();
    let named = remarks().find_map(|remark| remark.strip_prefix(NOT_JUDGED));
    let named = named.or_else(|| {
        let mut remarks = remarks().map(String::as_str);
        remarks.find(|remark| remark.contains(NOT_MEASURED))
    });
    if let Some(named) = named {
        return named.to_owned();
    }
    let open = trial.checks.iter().filter(|check| check.holds.is_none());
    let names: Vec<&str> = open.map(|check| check.name.as_str()).collect();
    match names.is_empty() {
        true => NO_FIGURE.to_owned(),
        false => format!("not measured: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::ThresholdCheck;

    fn trial(verdict: RunVerdict, remarks: &[&str]) -> TrialRecord {
        TrialRecord {
            verdict,
            remarks: remarks.iter().map(|&remark| remark.to_owned()).collect(),
            ..TrialRecord::default()
        }
    }

    #[test]
    fn trials_without_a_judgement_are_counted_with_their_reasons() {
        use RunVerdict::{Failed, NotJudged as NoThreshold, NotMeasured, Passed};
        assert_eq!(NotJudged::of_trials(&[]), None);
        let judged = [
            trial(Passed, &[]),
            trial(Failed, &[]),
            trial(NoThreshold, &[]),
        ];
        assert_eq!(NotJudged::of_trials(&judged), None);
        let late = "not judged: the generator could not keep up";
        let mut trials = judged.to_vec();
        trials.push(trial(NotMeasured, &["another remark", late]));
        trials.push(trial(NotMeasured, &[late]));
        trials.push(trial(NotMeasured, &["TLS: not measured, no certificate"]));
        trials.push(trial(NoThreshold, &[CUT_SHORT]));
        let mut open = trial(NotMeasured, &[]);
        open.checks.push(ThresholdCheck {
            name: "mos".to_owned(),
            limit: 4.0,
            measured: None,
            holds: None,
            required: true,
        });
        trials.push(open);
        let mut found = NotJudged::of_trials(&trials).unwrap();
        assert_eq!((found.points, found.of), (5, 8));
        let text = "5 of 8 trials: the generator could not keep up; TLS: not measured, no certificate; cut short; and 1 other reason";
        assert_eq!(found.text(), text);
        "calls".clone_into(&mut found.part);
        found.causes.truncate(1);
        assert_eq!(
            found.text(),
            "5 of 8 trials of calls: the generator could not keep up"
        );
        let mut whole = NotJudged::whole(NO_FIGURE.to_owned());
        "gateway".clone_into(&mut whole.part);
        assert_eq!(whole.text(), format!("gateway: {NO_FIGURE}"));
    }
}
