//! `lab report` and `lab compare`: pages and tables from raw results.

mod bounds;
mod chart;
mod compare;
mod csv;
mod data;
mod interval;
mod levels;
mod page;
mod plots;
mod study;
mod sweep;
mod tables;

pub use bounds::BoundCheck;
pub use chart::{Chart, Series, Stack, plain};
pub use levels::LevelSummary;
pub(crate) use study::beside;
pub use study::beside_json;

use crate::error::{LabError, Verdict};
use data::Results;
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

/// What was written, and what it says by level.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The page.
    pub page: PathBuf,
    /// The bounds of the run's figures, judged.
    pub bounds: Vec<BoundCheck>,
    /// The verdict over trials and bounds.
    pub verdict: Verdict,
    /// The levels: counts are means of the trials, quantiles are taken over the records of all of them.
    pub levels: Vec<LevelSummary>,
}

/// Writes `report.html`, `levels.csv`, `attempts.csv` and `streams.csv` beside the raw results in `dir`; gives the path of
/// the page.
///
/// # Errors
/// Where `dir` holds no raw results, or broken ones (file and line are named), or cannot be written to.
pub fn write(dir: &Path) -> Result<PathBuf, LabError> {
    publish(dir).map(|published| published.page)
}

/// As [`write()`], and gives the levels too.
///
/// # Errors
/// As [`write()`].
pub fn publish(dir: &Path) -> Result<Published, LabError> {
    let mut results = Results::read(dir)?;
    let mut levels = levels::from_records(&results);
    let bounds = bounds::judge(&results.raw.run, &levels);
    let verdict = bounds::verdict(results.raw.run.verdict, &bounds);
    results.raw.run.verdict = verdict;
    // A level at which a bound fails has not passed.
    for level in &mut levels {
        let mine = bounds
            .iter()
            .filter(|bound| bound.at.is_some() && bound.at == level.level);
        level.verdict = bounds::verdict(level.verdict, mine);
    }
    let raw = &results.raw;
    put(
        &dir.join("levels.csv"),
        &csv::levels(&raw.run.level_label, &levels),
    )?;
    put(&dir.join("attempts.csv"), &csv::attempts(&raw.attempts))?;
    put(&dir.join("streams.csv"), &csv::streams(&raw.streams))?;
    let page = dir.join("report.html");
    put(&page, &page::render(&results, &levels, &bounds))?;
    Ok(Published {
        page,
        bounds,
        verdict,
        levels,
    })
}

/// Two runs compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// For the terminal.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
    /// Whether the new run is worse than the baseline.
    pub worse: bool,
    /// The page that was written.
    pub page: PathBuf,
}

/// Differences between runs below so many percent are none, where nothing else is asked for.
pub const TOLERANCE_PERCENT: f64 = 5.0;

/// Compares the results in `dir` with those in `baseline`, and writes `compare.html` into `dir`. A figure is worse where it differs by
/// more than `tolerance_percent` and the trials tell the two runs apart.
///
/// # Errors
/// Where one of them holds no raw results, where they are of different experiments or have no level in common, or `dir` cannot be written to.
pub fn compare(baseline: &Path, dir: &Path, tolerance_percent: f64) -> Result<Compared, LabError> {
    let comparison = compare::compare(baseline, dir, tolerance_percent)?;
    let page = dir.join("compare.html");
    put(&page, &comparison.page())?;
    Ok(Compared {
        text: comparison.text(),
        json: comparison.json(),
        worse: comparison.is_worse(),
        page,
    })
}
