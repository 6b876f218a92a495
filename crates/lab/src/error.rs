//! Results of `lab` commands: the exit codes of the command line, and errors that name the remedy.

use std::fmt;
use std::path::Path;

/// Verdict of a command that ran; the verdict of several is the last one in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunVerdict {
    /// No threshold applies.
    #[default]
    NotJudged,
    /// At least one threshold was measured, and every measured one holds.
    Passed,
    /// There are thresholds, and none of them was measured, or one could not be judged: the SUT did not get its load.
    NotMeasured,
    /// A threshold does not hold.
    Failed,
}

impl RunVerdict {
    /// The verdict of one threshold: whether it holds, if it was measured.
    pub const fn of(holds: Option<bool>) -> RunVerdict {
        match holds {
            Some(true) => RunVerdict::Passed,
            Some(false) => RunVerdict::Failed,
            None => RunVerdict::NotMeasured,
        }
    }

    /// Exit code: 0 (nothing failed), 1 (failed) or 4 (thresholds were not measured).
    pub const fn exit_code(self) -> u8 {
        match self {
            RunVerdict::Passed | RunVerdict::NotJudged => 0,
            RunVerdict::Failed => 1,
            RunVerdict::NotMeasured => 4,
        }
    }

    /// Its name in JSON, CSV and reports.
    pub const fn name(self) -> &'static str {
        match self {
            RunVerdict::NotJudged => "not judged",
            RunVerdict::Passed => "passed",
            RunVerdict::NotMeasured => "not measured",
            RunVerdict::Failed => "failed",
        }
    }

    /// The verdict of this name.
    pub fn from_name(name: &str) -> Option<RunVerdict> {
        match name {
            "not judged" => Some(RunVerdict::NotJudged),
            "passed" => Some(RunVerdict::Passed),
            "not measured" => Some(RunVerdict::NotMeasured),
            // "missed" was written by versions before 0.2.
            "failed" | "missed" => Some(RunVerdict::Failed),
            _ => None,
        }
    }

    /// Combines two judgements of one run: one that was not measured gives way to one that was.
    #[must_use]
    pub fn or_measured(self, other: RunVerdict) -> RunVerdict {
        match (self, other) {
            (RunVerdict::Failed, _) | (_, RunVerdict::Failed) => RunVerdict::Failed,
            (RunVerdict::Passed, _) | (_, RunVerdict::Passed) => RunVerdict::Passed,
            (one, other) => one.max(other),
        }
    }

    /// Combines the verdicts of two trials.
    #[must_use]
    pub fn and(self, other: RunVerdict) -> RunVerdict {
        self.max(other)
    }
}

/// Reason why a command could not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabError {
    /// Invalid input: a file with a mistake, an unknown name. Exit code 2.
    BadInput(String),
    /// The user interrupted the run; its results until then are kept. Exit code 130, as for a program that SIGINT ends.
    Interrupted(String),
    /// The machine cannot run it: a right, a device, a port or a program is missing. Exit code 3.
    CannotRun {
        /// The missing right, device, port or program.
        problem: String,
        /// The remedy.
        remedy: String,
    },
}

impl LabError {
    /// Invalid input.
    pub fn bad_input(text: impl Into<String>) -> LabError {
        LabError::BadInput(text.into())
    }

    /// A prerequisite is missing.
    pub fn cannot_run(problem: impl Into<String>, remedy: impl Into<String>) -> LabError {
        LabError::CannotRun {
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    /// The same error, with the place of the trials before it.
    #[must_use]
    pub(crate) fn after(self, trials: usize, dir: &Path) -> LabError {
        let dir = dir.display();
        let kept = match trials {
            1 => format!("; the trial before it is in {dir}"),
            trials => format!("; the {trials} trials before it are in {dir}"),
        };
        match self {
            LabError::BadInput(text) => LabError::BadInput(text + &kept),
            LabError::Interrupted(text) => LabError::Interrupted(text + &kept),
            LabError::CannotRun { problem, remedy } => LabError::CannotRun {
                problem: problem + &kept,
                remedy,
            },
        }
    }

    /// Exit code: 2, 3 or 130.
    pub const fn exit_code(&self) -> u8 {
        match self {
            LabError::BadInput(_) => 2,
            LabError::Interrupted(_) => 130,
            LabError::CannotRun { .. } => 3,
        }
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabError::BadInput(text) | LabError::Interrupted(text) => f.write_str(text),
            LabError::CannotRun { problem, remedy } if remedy.is_empty() => f.write_str(problem),
            LabError::CannotRun { problem, remedy } => write!(f, "{problem}\n  remedy: {remedy}"),
        }
    }
}

impl std::error::Error for LabError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_outweighs_other_verdicts_and_names_parse_back() {
        use RunVerdict::{Failed, NotJudged, NotMeasured, Passed};
        assert_eq!(Passed.and(Failed), Failed);
        assert_eq!(Passed.and(NotMeasured), NotMeasured);
        assert_eq!(Passed.and(NotJudged), Passed);
        for verdict in [NotJudged, Passed, NotMeasured, Failed] {
            assert_eq!(RunVerdict::from_name(verdict.name()), Some(verdict));
        }
        let codes = [NotJudged, Passed, NotMeasured, Failed].map(RunVerdict::exit_code);
        assert_eq!(codes, [0, 0, 4, 1]);
    }
}
