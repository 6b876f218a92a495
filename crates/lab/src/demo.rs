//! The main job from end to end on this machine: border, PBX, phones, calls with speech, report.

use crate::error::{LabError, Verdict};
use std::path::PathBuf;

/// What `hornwork demo` was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoOptions {
    /// Longest run, seconds; 10 to 90.
    pub seconds: u32,
    /// Keep border and PBX running afterwards, so that a phone can register; until SIGINT or SIGTERM.
    pub stay: bool,
    /// Write the figures as JSON to this file (`-`: standard output).
    pub json: Option<PathBuf>,
    /// Directory for raw results and report; a new one under the system's temporary directory where not given.
    pub out: Option<PathBuf>,
}

impl Default for DemoOptions {
    fn default() -> Self {
        DemoOptions {
            seconds: 60,
            stay: false,
            json: None,
            out: None,
        }
    }
}

/// Runs the demo; progress and the final table go to standard output.
///
/// # Errors
/// [`LabError`] where the options make no sense, or where the machine cannot run it.
pub fn run(options: &DemoOptions) -> Result<Verdict, LabError> {
    let _ = options;
    Err(LabError::cannot(
        "the demo needs the border, which is not in this build yet",
        "build a later revision",
    ))
}
