//! How a laboratory command ends: the exit codes of the command line, and errors that name the remedy.

use std::fmt;

/// How a command ended that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within every threshold.
    Passed,
    /// It ran, and a threshold was missed.
    Missed,
}

impl Verdict {
    /// Exit code: 0 or 1.
    pub const fn exit_code(self) -> u8 {
        match self {
            Verdict::Passed => 0,
            Verdict::Missed => 1,
        }
    }

    /// The word used in JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Missed => "missed",
        }
    }

    /// [`Verdict::Missed`] where either is.
    pub const fn and(self, other: Verdict) -> Verdict {
        match (self, other) {
            (Verdict::Passed, Verdict::Passed) => Verdict::Passed,
            _ => Verdict::Missed,
        }
    }
}

/// Why a command could not do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabError {
    /// What was given cannot be used: a file with a mistake, an unknown name. Exit code 2.
    BadInput(String),
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

    /// Exit code: 2 or 3.
    pub const fn exit_code(&self) -> u8 {
        match self {
            LabError::BadInput(_) => 2,
            LabError::CannotRun { .. } => 3,
        }
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabError::BadInput(text) => f.write_str(text),
            LabError::CannotRun { what, remedy } if remedy.is_empty() => f.write_str(what),
            LabError::CannotRun { what, remedy } => write!(f, "{what}\n  remedy: {remedy}"),
        }
    }
}

impl std::error::Error for LabError {}
