//! `lab list`, `lab show`, `lab run`, `lab search`.

use crate::error::{LabError, Verdict};
use std::path::PathBuf;

/// What `hornwork lab run` was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// `key=value` with a dotted path, in order.
    pub set: Vec<String>,
    /// Write the result as JSON to this file (`-`: standard output).
    pub json: Option<PathBuf>,
    /// Directory for raw results and report; a new one under the system's temporary directory where not given.
    pub out: Option<PathBuf>,
    /// In virtual time instead of on sockets.
    pub simulate: bool,
    /// Seed instead of the experiment's own.
    pub seed: Option<u64>,
    /// Number of repetitions instead of the experiment's own.
    pub repeat: Option<u32>,
}

/// A built-in experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// Name, as `lab run` takes it.
    pub name: &'static str,
    /// One line about it.
    pub title: &'static str,
}

/// The built-in experiments, in order of name.
pub fn list() -> Vec<BuiltIn> {
    Vec::new()
}

/// The file of a built-in experiment, as TOML.
///
/// # Errors
/// Where there is none of that name.
pub fn show(name: &str) -> Result<&'static str, LabError> {
    Err(LabError::bad(format!("no experiment {name:?}")))
}

/// Runs the experiment that is built in under this name, or the file at this path.
///
/// # Errors
/// [`LabError`] where the file is wrong, or where the machine cannot run it.
pub fn run(name_or_file: &str, options: &RunOptions) -> Result<Verdict, LabError> {
    let _ = options;
    Err(LabError::bad(format!("no experiment {name_or_file:?}")))
}

/// Searches the highest load at which the experiment's thresholds hold.
///
/// # Errors
/// [`LabError`] where the file is wrong, or where the machine cannot run it.
pub fn search(name_or_file: &str, options: &RunOptions) -> Result<Verdict, LabError> {
    let _ = options;
    Err(LabError::bad(format!("no experiment {name_or_file:?}")))
}
