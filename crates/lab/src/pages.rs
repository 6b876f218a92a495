//! `lab report`: the page of a run, of a study or of a data sheet, from its records alone.

use crate::error::LabError;
use crate::study::{self, SuiteRecord};
use crate::{datasheet, raw, report, study_c};
use std::path::{Path, PathBuf};

/// Writes the page of the results in `dir`; returns its path.
///
/// # Errors
/// If `dir` contains no results or broken ones (the error names the file), or is not writable.
pub fn write(dir: &Path) -> Result<PathBuf, LabError> {
    if !raw::holds_suite(dir) {
        return report::write(dir);
    }
    let mut record = SuiteRecord::read(dir)?;
    let plan = match record.suite.as_str() {
        datasheet::NAME => Some(datasheet::plan(datasheet::MINUTES)),
        study_c::NAME => Some(study_c::plan()),
        name => study::plan(name),
    };
    let plan = plan.ok_or_else(|| {
        LabError::bad_input(format!(
            "{}: {:?} is no study of this version",
            dir.join("run.json").display(),
            record.suite
        ))
    })?;
    study::publish(dir, &plan, &mut record).map(|published| published.page)
}
