//! `lab report` and `lab compare`: pages and tables from raw results.

mod chart;
mod compare;
mod csv;
mod levels;
mod page;

pub use chart::{Chart, Series, Stack, plain};
pub use compare::{Difference, differences};
pub use levels::{LevelSummary, summarise};

use crate::error::LabError;
use crate::raw::RawResults;
use std::fs;
use std::path::{Path, PathBuf};

fn put(path: &Path, text: &str) -> Result<(), LabError> {
    fs::write(path, text).map_err(|error| {
        LabError::cannot(
            format!("{}: {error}", path.display()),
            "make the directory writable, or copy the results elsewhere",
        )
    })
}

/// Writes `report.html`, `levels.csv`, `attempts.csv` and `streams.csv` beside the raw results in `dir`; gives the path of
/// the page.
///
/// # Errors
/// Where `dir` holds no raw results, or cannot be written to.
pub fn write(dir: &Path) -> Result<PathBuf, LabError> {
    let raw = RawResults::read(dir)?;
    let levels = summarise(&raw.run.trials);
    put(
        &dir.join("levels.csv"),
        &csv::levels(&raw.run.level_label, &levels),
    )?;
    put(&dir.join("attempts.csv"), &csv::attempts(&raw.attempts))?;
    put(&dir.join("streams.csv"), &csv::streams(&raw.streams))?;
    let page = dir.join("report.html");
    put(&page, &page::render(&raw))?;
    Ok(page)
}

/// Compares the results in `dir` with those in `baseline`; gives a text for the terminal, and writes `compare.html` into
/// `dir`.
///
/// # Errors
/// Where one of them holds no raw results, or `dir` cannot be written to.
pub fn compare(baseline: &Path, dir: &Path) -> Result<String, LabError> {
    let (before, after) = (RawResults::read(baseline)?, RawResults::read(dir)?);
    let differences = differences(&before, &after);
    if differences.is_empty() {
        return Err(LabError::bad("the two runs have no level in common"));
    }
    put(
        &dir.join("compare.html"),
        &compare::page(&before, &after, &differences),
    )?;
    Ok(compare::text(&before, &after, &differences))
}
