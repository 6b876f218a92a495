//! How a laboratory command ends: the exit codes of the command line, and errors that name the remedy.

use std::fmt;

/// How a command ended that could do its work; of several verdicts the last one in this order is that of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No threshold applies.
    #[default]
    NotJudged,
    /// Every threshold that could be measured holds, and one at least could.
    Passed,
    /// There are thresholds, and none of them could be measured.
    NotMeasured,
    /// A threshold does not hold.
    Failed,
}

impl Verdict {
    /// Exit code: 0 (nothing failed), 1 (failed) or 4 (nothing that has a threshold was measured).
    pub const fn exit_code(self) -> u8 {
        match self {
            Verdict::Passed | Verdict::NotJudged => 0,
            Verdict::Failed => 1,
            Verdict::NotMeasured => 4,
        }
    }

    /// The word used in JSON, CSV and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::NotJudged => "not judged",
            Verdict::Passed => "passed",
            Verdict::NotMeasured => "not measured",
            Verdict::Failed => "failed",
        }
    }

    /// The verdict of this name.
    pub fn of_name(name: &str) -> Option<Verdict> {
        match name {
            "not judged" => Some(Verdict::NotJudged),
            "passed" => Some(Verdict::Passed),
            "not measured" => Some(Verdict::NotMeasured),
            // As versions before 0.2 wrote it.
            "failed" | "missed" => Some(Verdict::Failed),
            _ => None,
        }
    }

    /// Of two judgements about one and the same run: what was not measured does not count beside what was.
    #[must_use]
    pub fn beside(self, other: Verdict) -> Verdict {
        match (self, other) {
            (Verdict::Failed, _) | (_, Verdict::Failed) => Verdict::Failed,
            (Verdict::Passed, _) | (_, Verdict::Passed) => Verdict::Passed,
            (one, other) => one.max(other),
        }
    }

    /// Both together, of two trials.
    #[must_use]
    pub fn and(self, other: Verdict) -> Verdict {
        self.max(other)
    }
}

/// Why a command could not do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabError {
    /// What was given cannot be used: a file with a mistake, an unknown name. Exit code 2.
    BadInput(String),
    /// The user ended the run early; what was measured is kept. Exit code 130, as for a program that SIGINT ends.
    Interrupted(String),
    /// This machine cannot run it: a right, a device, a port or a program is missing. Exit code 3.
    CannotRun {
        /// What is missing.
        what: String,
        /// What to do about it.
        remedy: String,
    },
}

impl LabError {
    /// Bad input.
    pub fn bad(text: impl Into<String>) -> LabError {
        LabError::BadInput(text.into())
    }

    /// Something is missing.
    pub fn cannot(what: impl Into<String>, remedy: impl Into<String>) -> LabError {
        LabError::CannotRun {
            what: what.into(),
            remedy: remedy.into(),
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
            LabError::CannotRun { what, remedy } if remedy.is_empty() => f.write_str(what),
            LabError::CannotRun { what, remedy } => write!(f, "{what}\n  remedy: {remedy}"),
        }
    }
}

impl std::error::Error for LabError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_outweighs_all_else_and_words_lead_back() {
        use Verdict::{Failed, NotJudged, NotMeasured, Passed};
        assert_eq!(Passed.and(Failed), Failed);
        assert_eq!(Passed.and(NotMeasured), NotMeasured);
        assert_eq!(Passed.and(NotJudged), Passed);
        for verdict in [NotJudged, Passed, NotMeasured, Failed] {
            assert_eq!(Verdict::of_name(verdict.name()), Some(verdict));
        }
        let codes = [NotJudged, Passed, NotMeasured, Failed].map(Verdict::exit_code);
        assert_eq!(codes, [0, 0, 4, 1]);
    }
}
