//! `lab report` and `lab compare`: pages and tables from raw results.

mod bounds;
mod chart;
mod compare;
mod compare_page;
mod csv;
mod data;
mod delays;
mod html_table;
mod interval;
mod level_summary;
mod levels;
mod marks;
mod measures;
mod page;
mod plots;
mod protection;
mod rules;
mod significance;
mod sources;
mod study;
mod style;
mod sweep;
mod tables;

pub use crate::decimal::plain;
pub use bounds::BoundCheck;
pub use chart::{CLASSES as RESPONSE_CLASSES, Chart, Group, PALETTE, Series, Stack, escape};
pub(crate) use compare::{difference_text, relative};
pub use level_summary::{CLASS_NAMES, LevelSummary, LoadFault};
#[cfg(test)]
pub(crate) use levels::summarise;
pub use marks::MarkLinks;
pub(crate) use measures::text as measures_text;
pub(crate) use page::date;
pub(crate) use protection::{json as protection_json, text as protection_text};
pub(crate) use sources::{computed, figure as level_figure};
pub use study::comparison_json;
pub(crate) use study::{capacity_of, compare_with_study};
pub(crate) use style::STYLE;

use crate::error::{LabError, RunVerdict};
use crate::figures;
use crate::raw::RunRecord;
use crate::records_page::{Document, RECORDS, RecordsPage};
use data::RunResults;
use std::path::{Path, PathBuf};

fn put(path: &Path, text: &str) -> Result<(), LabError> {
    crate::files::replace(path, text.as_bytes())
}

/// Written report and its results by level.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Path of the page.
    pub page: PathBuf,
    /// The bounds of the run's figures, judged.
    pub bounds: Vec<BoundCheck>,
    /// The verdict over trials and bounds.
    pub verdict: RunVerdict,
    /// The levels: counts are means over the trials, quantiles are taken over the records of all of them.
    pub levels: Vec<LevelSummary>,
}

/// Writes the report of a run: `report.html` with its `records.html` and `computed.json`, `levels.csv`, `attempts.csv`,
/// `streams.csv` and `measures.csv` beside the raw results in `dir`, and the page of a comparison if `dir` has the
/// record of one. Returns the path of the report.
///
/// # Errors
/// If `dir` contains no raw results or broken ones (the error names file and line), or is not writable.
pub fn write(dir: &Path) -> Result<PathBuf, LabError> {
    let published = publish(dir)?;
    compare_page::write_again(dir)?;
    Ok(published.page)
}

/// The record of a run, and its levels computed from the raw results; its report is written again.
///
/// # Errors
/// As for [`write()`].
pub(crate) fn read_levels(dir: &Path) -> Result<(RunRecord, Vec<LevelSummary>), LabError> {
    let published = publish(dir)?;
    let mut run = crate::raw::read_run(dir)?;
    run.verdict = published.verdict;
    Ok((run, published.levels))
}

/// The streams of a run.
///
/// # Errors
/// If the records are broken.
pub(crate) fn read_streams(dir: &Path) -> Result<Vec<crate::record::StreamRecord>, LabError> {
    Ok(RunResults::read(dir)?.raw.streams)
}

/// The verdict by thresholds that an override sets: bounds that hold do not replace them. A search judges its trials,
/// and an interrupted run is not judged.
fn missing(run: &RunRecord) -> RunVerdict {
    let checks = run.trials.iter().flat_map(|trial| &trial.checks);
    match run.cut_short || run.search.is_some() || figures::missing(checks).is_empty() {
        true => RunVerdict::NotJudged,
        false => RunVerdict::NotMeasured,
    }
}

/// Writes the report as [`write()`] does, and returns the levels too.
///
/// # Errors
/// As for [`write()`].
pub fn publish(dir: &Path) -> Result<Published, LabError> {
    let mut results = RunResults::read(dir)?;
    let mut levels = levels::from_records(&results);
    // Bounds compare levels, and some were not run.
    let bounds = match results.raw.run.cut_short {
        true => Vec::new(),
        false => bounds::judge(&results.raw.run, &levels),
    };
    let verdict = bounds::verdict(results.raw.run.verdict, &bounds);
    let verdict = verdict.and(missing(&results.raw.run));
    let run = &mut results.raw.run;
    // A search looks for the load at which trials are no longer good, and an interrupted run is not judged.
    let may_open = run.cut_short || run.search.is_some();
    let without_load = bounds::without_load(run.trials.iter().filter(|_| !may_open));
    let verdict = verdict.and(without_load);
    run.verdict = verdict;
    // A level at which a bound fails has not passed.
    for level in &mut levels {
        let mine = bounds
            .iter()
            .filter(|bound| bound.at.is_some() && bound.at == level.level);
        let trials = run.trials.iter().filter(|trial| trial.level == level.level);
        level.verdict = match &run.search {
            Some(search) => levels::searched_verdict(search, trials).unwrap_or(level.verdict),
            None => bounds::verdict(level.verdict, mine).and(bounds::without_load(trials)),
        };
    }
    let raw = &results.raw;
    put(
        &dir.join("levels.csv"),
        &csv::levels(&raw.run.level_label, &levels),
    )?;
    put(&dir.join("attempts.csv"), &csv::attempts(&raw.attempts))?;
    put(&dir.join("streams.csv"), &csv::streams(&raw.streams))?;
    put(&dir.join("measures.csv"), &measures::csv(&levels))?;
    write_records(dir, &results, &levels, &bounds)?;
    let page = dir.join("report.html");
    put(&page, &page::render(&results, &levels, &bounds))?;
    Ok(Published {
        page,
        bounds,
        verdict,
        levels,
    })
}

/// Writes `computed.json`, and `records.html` with the records behind the report.
fn write_records(
    dir: &Path,
    results: &RunResults,
    levels: &[LevelSummary],
    bounds: &[BoundCheck],
) -> Result<(), LabError> {
    let figures = sources::all(results, levels, bounds);
    put(&dir.join(sources::FIGURES), &format!("{figures:#}\n"))?;
    let page = RecordsPage {
        title: &results.raw.run.title,
        of: "report.html",
        documents: vec![
            Document {
                name: sources::FIGURES.to_owned(),
                value: figures,
            },
            Document::read(dir, "run.json")?,
        ],
        lines: &["attempts.ndjson", "streams.ndjson", "measures.ndjson"],
    };
    page.write(dir, RECORDS)
}

/// Comparison of two runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// As text for the terminal.
    pub text: String,
    /// As JSON.
    pub json: serde_json::Value,
    /// Failed if the new run is worse than the baseline, not measured if there was nothing to compare it by.
    pub verdict: RunVerdict,
    /// Path of the written page.
    pub page: PathBuf,
}

/// Default of the difference between runs, in percent, up to which figures count as equal.
pub const TOLERANCE_PERCENT: f64 = 5.0;

/// Checks the tolerance of a comparison: by a value that is no number nothing would be worse.
pub(crate) fn check_tolerance(percent: f64) -> Result<(), LabError> {
    match percent.is_finite() && percent >= 0.0 {
        true => Ok(()),
        false => Err(LabError::bad_input(format!(
            "--tolerance {percent}: expected 0 or more"
        ))),
    }
}

/// Compares the results in `dir` with those in `baseline`, and writes `compare.json`, `compare.html` and its
/// `compare-records.html` into `dir`. A figure is worse if it differs by more than `tolerance_percent` and the
/// difference is significant over the trials, among all figures. Two searches are compared by their results.
///
/// # Errors
/// If one of them contains no raw results, if they belong to different experiments or have no level in common, if the
/// tolerance is below 0 or not finite, or if `dir` is not writable.
pub fn compare(baseline: &Path, dir: &Path, tolerance_percent: f64) -> Result<Compared, LabError> {
    check_tolerance(tolerance_percent)?;
    let comparison = compare::compare(baseline, dir, tolerance_percent)?;
    let page = compare_page::publish(dir, &comparison)?;
    Ok(Compared {
        text: comparison.text(),
        json: comparison.json(),
        verdict: comparison.verdict(),
        page,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances_that_are_no_percentage_are_refused() {
        let nowhere = Path::new("no-results");
        for tolerance in [f64::NAN, f64::INFINITY, -5.0] {
            let error = compare(nowhere, nowhere, tolerance).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.starts_with("--tolerance "), "{text}");
        }
        assert!(check_tolerance(0.0).is_ok());
    }
}
