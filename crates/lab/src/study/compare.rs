//! Comparison of two runs of one study: their rows with intervals, as text, JSON and a page.

use super::page::MORE_STYLE;
use super::record::{StudyRow, SuiteRecord};
use crate::decimal::{counted, plain};
use crate::error::{LabError, RunVerdict};
use crate::files::{cannot_write, replace};
use crate::output;
use crate::records_page::{Document, RecordsPage, link_to, text_on};
use crate::report::{Compared, STYLE, check_tolerance, difference_text, escape, relative};
use crate::statistics::Interval;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The record of a comparison.
const RECORD: &str = "compare.json";
/// The page of its records.
const RECORDS: &str = "compare-records.html";
const PAGE: &str = "compare.html";

/// Explanation of the columns.
const LEGEND: &str = "Figures with their 95 % intervals, capacities with their brackets. Significant: the intervals do not overlap, which is stricter than an interval of \
the difference; without an interval on both sides nothing is significant. Worse: a significant difference in the worse direction, \
above the tolerance. Not judged: ranks, figures that do not rate the system under test, intervals within one run, which say nothing \
of the next run, and figures at different levels, such as the response time at the highest load that passed.";

/// A figure in one of the runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct RowFigure {
    value: Option<f64>,
    interval: Option<Interval>,
    /// Words for a missing interval or value.
    words: String,
    /// Its row in `run.json`.
    from: Vec<String>,
}

/// A compared row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ComparedRow {
    row: String,
    what: String,
    unit: String,
    figure: String,
    baseline: RowFigure,
    new: RowFigure,
    /// The levels of both figures, where they differ: they are not judged then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    levels: Option<[Option<f64>; 2]>,
    /// Difference in percent of the baseline; `null` without one.
    difference_percent: Option<f64>,
    /// Whether the intervals do not overlap; `null` without both.
    significant: Option<bool>,
    worse: bool,
    /// Worse by more than the tolerance, without intervals that say something of the next run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    untested: bool,
}

/// The comparison of two runs of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StudyRunsCompared {
    suite: String,
    title: String,
    /// Folder of the baseline, relative to that of the new run.
    baseline: String,
    notes: Vec<String>,
    rows: Vec<ComparedRow>,
    /// Only the new run has the verdict failed.
    newly_failed: bool,
    tolerance_percent: f64,
}

/// Direction in which a figure gets worse; `None` for one that does not rate the system under test.
fn is_worse_above(figure: &str) -> Option<bool> {
    let name = figure.strip_prefix("esp.").unwrap_or(figure);
    let lower = [
        "capacity",
        "established",
        "completed",
        "registered",
        "in_time_per_second",
        "mos",
        "gain_percent",
        "protections",
    ];
    let higher = [
        "latency",
        "jitter",
        "loss",
        "lost",
        "failed",
        "dropped",
        "registrations_failed",
        "response_",
        "delta_max_ms",
        "cpu_us",
        "signalling_us",
        "media_us",
        "relay_",
        "one_way_ms",
        "round_trip_ms",
        "memory.",
        "in_us",
        "out_us",
        "tunnel_minus_transport",
        "wrong_packets",
        "refused_packets",
    ];
    let begins = |names: &[&str]| names.iter().any(|known| name.starts_with(known));
    match (begins(&lower), begins(&higher)) {
        (true, _) => Some(false),
        (false, true) => Some(true),
        (false, false) => None,
    }
}

/// Whether two intervals have no value in common; an open end has no limit. `None` if one of them is missing, or does
/// not contain the differences between runs.
fn are_apart(a: Option<&Interval>, b: Option<&Interval>) -> Option<bool> {
    let (a, b) = (a?, b?);
    let has_ends = |of: &Interval| of.low.is_some() || of.high.is_some();
    let is_usable = |of: &Interval| has_ends(of) && !of.is_within_runs();
    if !is_usable(a) || !is_usable(b) {
        return None;
    }
    let below =
        |a: &Interval, b: &Interval| a.high.zip(b.low).is_some_and(|(high, low)| high < low);
    Some(below(a, b) || below(b, a))
}

/// Whether a row rates the system under test.
fn is_judged(row: &StudyRow) -> bool {
    row.unit != "rank" && is_worse_above(&row.figure).is_some()
}

impl RowFigure {
    fn of(row: &StudyRow, from: String) -> RowFigure {
        RowFigure {
            value: row.here,
            interval: row.interval.clone(),
            words: match row.here {
                Some(_) => row.interval_text(),
                None => row.missing(),
            },
            from: vec![from],
        }
    }

    fn text(&self) -> String {
        match self.value {
            Some(value) if self.words.is_empty() => plain(value),
            Some(value) => format!("{} ({})", plain(value), self.words),
            None => self.words.clone(),
        }
    }
}

impl ComparedRow {
    fn of(
        (old, old_from): (&StudyRow, String),
        (new, new_from): (&StudyRow, String),
        tolerance_percent: f64,
    ) -> ComparedRow {
        let difference_percent = match (old.here, new.here) {
            (Some(old), Some(new)) if old == new => Some(0.0),
            (Some(old), Some(new)) if old != 0.0 => Some((new - old) * 100.0 / old.abs()),
            _ => None,
        };
        let is_same_level = old.level == new.level;
        let apart = are_apart(old.interval.as_ref(), new.interval.as_ref());
        let significant = apart.filter(|_| is_same_level);
        let is_judged = is_judged(old) && is_same_level;
        let by = match (old.here, new.here, is_worse_above(&new.figure)) {
            (Some(old), Some(new), Some(true)) if is_judged => Some(new - old),
            (Some(old), Some(new), Some(false)) if is_judged => Some(old - new),
            _ => None,
        };
        let tolerated = old.here.unwrap_or(0.0).abs() * tolerance_percent / 100.0;
        let is_beyond = by.is_some_and(|by| by > tolerated);
        ComparedRow {
            row: new.row.clone(),
            what: new.what.clone(),
            unit: new.unit.clone(),
            figure: new.figure.clone(),
            baseline: RowFigure::of(old, old_from),
            new: RowFigure::of(new, new_from),
            levels: (!is_same_level).then_some([old.level, new.level]),
            difference_percent,
            significant,
            worse: significant == Some(true) && is_beyond,
            untested: significant.is_none() && is_beyond,
        }
    }

    fn difference(&self) -> String {
        let both = self.baseline.value.zip(self.new.value);
        difference_text(self.difference_percent, both.is_some())
    }

    /// The figure of the baseline (0) or of the new run (1) as text, with its level where the levels differ.
    fn text_of(&self, run: usize) -> String {
        let figure = if run == 0 { &self.baseline } else { &self.new };
        let level = self.levels.and_then(|levels| *levels.get(run)?);
        match level.filter(|_| figure.value.is_some()) {
            Some(level) => format!("{} at {}", figure.text(), plain(level)),
            None => figure.text(),
        }
    }

    fn significance(&self) -> &'static str {
        match self.significant {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        }
    }

    fn judged(&self) -> &'static str {
        match (self.worse, &self.levels) {
            (true, _) => "worse",
            (false, Some(_)) => "no: other level",
            (false, None) if self.untested => "not judged",
            (false, None) => "",
        }
    }

    /// Whether both runs have the figure.
    fn is_compared(&self) -> bool {
        self.baseline.value.is_some() && self.new.value.is_some()
    }

    /// Whether a figure that rates the system under test was measured before, and is not now. A capacity below the
    /// lowest load is measured.
    fn is_lost(&self) -> bool {
        let upper = self.new.interval.as_ref().and_then(|of| of.high);
        let is_rated = self.unit != "rank" && is_worse_above(&self.figure).is_some();
        is_rated && self.baseline.value.is_some() && self.new.value.is_none() && upper.is_none()
    }
}

/// Compares the study in `dir` with the one in `baseline`, and writes `compare.json`, `compare.html` and its
/// `compare-records.html` into `dir`. A figure is worse if the intervals do not overlap, and it differs by more than
/// `tolerance_percent`.
///
/// # Errors
/// If one of them has no study, if they are different ones or have no row in common, or if `dir` is not writable.
pub fn compare(baseline: &Path, dir: &Path, tolerance_percent: f64) -> Result<Compared, LabError> {
    check_tolerance(tolerance_percent)?;
    for folder in [baseline, dir] {
        if folder.join("run.json").exists() && !crate::raw::holds_suite(folder) {
            return Err(LabError::bad_input(format!(
                "cannot compare a study with an experiment: {} has an experiment",
                folder.display()
            )));
        }
    }
    let (old, new) = (SuiteRecord::read(baseline)?, SuiteRecord::read(dir)?);
    let compared = StudyRunsCompared::of((&old, baseline), (&new, dir), tolerance_percent)?;
    let path = dir.join(RECORD);
    let json = serde_json::to_value(&compared).map_err(std::io::Error::from);
    let json = json.map_err(|error| cannot_write(&path, &error))?;
    replace(&path, format!("{json:#}\n").as_bytes())?;
    Ok(Compared {
        text: compared.text(),
        json,
        verdict: compared.verdict(),
        page: write(dir)?,
    })
}

/// Writes the page of the comparison whose record is in `dir` again, if there is one.
///
/// # Errors
/// If the record is broken, or `dir` is not writable.
pub(super) fn write_again(dir: &Path) -> Result<(), LabError> {
    match dir.join(RECORD).exists() {
        true => write(dir).map(drop),
        false => Ok(()),
    }
}

impl StudyRunsCompared {
    fn of(
        (old, baseline): (&SuiteRecord, &Path),
        (new, dir): (&SuiteRecord, &Path),
        tolerance_percent: f64,
    ) -> Result<StudyRunsCompared, LabError> {
        if old.suite != new.suite {
            return Err(LabError::bad_input(format!(
                "cannot compare different studies: {} has {}, {} has {}",
                baseline.display(),
                old.suite,
                dir.display(),
                new.suite
            )));
        }
        let folder = relative(dir, baseline);
        let old_file = match folder.as_str() {
            "" => "run.json".to_owned(),
            folder => format!("{folder}/run.json"),
        };
        let key = |row: &StudyRow| (row.row.clone(), row.what.clone(), row.part.clone());
        let mut notes = notes(old, new);
        let mut rows = Vec::new();
        let mut only_new = 0_usize;
        for (place, row) in new.study.iter().enumerate() {
            let found = old.study.iter().position(|other| key(other) == key(row));
            let Some((at, other)) = found.and_then(|at| Some((at, old.study.get(at)?))) else {
                only_new += 1;
                continue;
            };
            rows.push(ComparedRow::of(
                (other, format!("{old_file}#/study/{at}")),
                (row, format!("run.json#/study/{place}")),
                tolerance_percent,
            ));
        }
        if rows.is_empty() {
            return Err(LabError::bad_input(format!(
                "{} and {} have no row in common",
                baseline.display(),
                dir.display()
            )));
        }
        let only_old = old.study.len() - rows.len().min(old.study.len());
        for (count, which) in [(only_old, "baseline"), (only_new, "new run")] {
            if count > 0 {
                notes.push(format!("only in the {which}: {}", counted(count, "row")));
            }
        }
        let of = |row: &&ComparedRow| row.baseline.value.is_some() && row.new.value.is_none();
        let lost: Vec<&str> = rows
            .iter()
            .filter(of)
            .map(|row| row.what.as_str())
            .collect();
        if !lost.is_empty() {
            notes.push(format!(
                "measured in the baseline only: {}",
                lost.join("; ")
            ));
        }
        Ok(StudyRunsCompared {
            suite: new.suite.clone(),
            title: new.title.clone(),
            baseline: folder,
            notes,
            rows,
            newly_failed: new.verdict == RunVerdict::Failed && old.verdict != RunVerdict::Failed,
            tolerance_percent,
        })
    }

    /// The figures that are worse in the new run, and its verdict if it is.
    fn worse(&self) -> Vec<String> {
        let rows = self.rows.iter().filter(|row| row.worse);
        let mut worse: Vec<String> = rows
            .map(|row| format!("{} {}", row.row, row.what))
            .collect();
        if self.newly_failed {
            worse.push("the verdict: failed".to_owned());
        }
        worse
    }

    /// Whether the rows that would be worse have no usable intervals, and no other row was tested.
    fn is_untested(&self) -> bool {
        let is_tested = self.rows.iter().any(|row| row.significant.is_some());
        !is_tested && self.rows.iter().any(|row| row.untested)
    }

    /// Failed if the new run is worse; not measured if no row has both figures, if one that was judged is missing now,
    /// or if no row could be tested.
    fn verdict(&self) -> RunVerdict {
        let is_lost = self.rows.iter().any(ComparedRow::is_lost);
        match self.worse().is_empty() {
            false => RunVerdict::Failed,
            true if is_lost
                || self.is_untested()
                || !self.rows.iter().any(ComparedRow::is_compared) =>
            {
                RunVerdict::NotMeasured
            }
            true => RunVerdict::Passed,
        }
    }

    fn judgement(&self) -> String {
        match self.verdict() {
            RunVerdict::Failed => format!("worse than the baseline: {}", self.worse().join("; ")),
            RunVerdict::NotMeasured if self.is_untested() => {
                "not compared: no row has intervals over several runs on both sides".to_owned()
            }
            RunVerdict::NotMeasured => {
                "not compared: figures of the baseline were not measured in the new run".to_owned()
            }
            RunVerdict::Passed | RunVerdict::NotJudged => {
                let untested = self.rows.iter().filter(|row| row.untested).count();
                let more = match untested {
                    0 => String::new(),
                    count => format!("; not judged without intervals: {}", counted(count, "row")),
                };
                let tolerance = plain(self.tolerance_percent);
                format!("not worse (tolerance {tolerance} %){more}")
            }
        }
    }

    fn text(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                vec![
                    format!("{:<4} {}", row.row, row.what),
                    row.unit.clone(),
                    row.text_of(0),
                    row.text_of(1),
                    row.difference(),
                    row.significance().to_owned(),
                    row.judged().to_owned(),
                ]
            })
            .collect();
        let head = [
            "figure",
            "unit",
            "baseline",
            "new",
            "difference",
            "significant",
            "judged",
        ];
        let mut out = format!("{}\n", self.title);
        for note in &self.notes {
            let _ = writeln!(out, "  {note}");
        }
        let table = output::columns(&head, &rows);
        format!("{out}\n{table}\n{LEGEND}\n{}\n", self.judgement())
    }
}

/// Other differences between the runs.
fn notes(old: &SuiteRecord, new: &SuiteRecord) -> Vec<String> {
    let mut notes = vec![format!(
        "verdict: {} before, {} now",
        old.verdict.name(),
        new.verdict.name()
    )];
    for (what, before, now) in [
        ("setting", &old.setting, &new.setting),
        ("driver", &old.driver, &new.driver),
        ("version", &old.version, &new.version),
    ] {
        if before != now {
            notes.push(format!("{what}: {before} before, {now} now"));
        }
    }
    if old.machine != new.machine {
        notes.push("the two machines differ".to_owned());
    }
    for (which, record) in [("baseline", old), ("new run", new)] {
        if let Some(gaps) = record.gaps() {
            notes.push(format!("{which}: {gaps}"));
        }
    }
    notes
}

fn write(dir: &Path) -> Result<PathBuf, LabError> {
    let record = Document::read(dir, RECORD)?;
    let path = dir.join(RECORD);
    let compared: StudyRunsCompared = serde_json::from_value(record.value.clone())
        .map_err(|error| LabError::bad_input(format!("{}: {error}", path.display())))?;
    let mut documents = vec![record, Document::read(dir, "run.json")?];
    let baseline = format!("{}/run.json", compared.baseline);
    // Without the baseline's folder its values are in the record; a study compared with itself is there already.
    if !compared.baseline.is_empty() && dir.join(&baseline).exists() {
        documents.push(Document::read(dir, &baseline)?);
    }
    let records = RecordsPage {
        title: &compared.title,
        of: PAGE,
        documents,
        lines: &[],
    };
    records.write(dir, RECORDS)?;
    let page = dir.join(PAGE);
    replace(&page, render(&compared).as_bytes())?;
    Ok(page)
}

fn render(compared: &StudyRunsCompared) -> String {
    let title = escape(&compared.title);
    let (class, verdict) = match compared.verdict() {
        RunVerdict::Failed => ("failed", "worse"),
        RunVerdict::NotMeasured => ("open", "not compared"),
        RunVerdict::Passed | RunVerdict::NotJudged => ("passed", "not worse"),
    };
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>Comparison: {title}</title><style>{STYLE}{MORE_STYLE}</style></head><body><main><header><p class=\"kicker\">Hornwork \
         test lab &middot; comparison</p><h1>{title}</h1><span class=\"badge {class}\">{verdict}</span></header>",
    );
    let link =
        |pointer: &str, text: &str| link_to(RECORDS, &format!("{RECORD}#{pointer}"), &escape(text));
    let judged_by = match class {
        "passed" => "/tolerance_percent",
        _ => "/rows",
    };
    let words = |pointer: &str, text: &str| text_on(RECORDS, &format!("{RECORD}#{pointer}"), text);
    for (place, note) in compared.notes.iter().enumerate() {
        let note = words(&format!("/notes/{place}"), note);
        let _ = write!(html, "<p class=\"note\">{note}</p>");
    }
    html.push_str(
        "<section><div class=\"scroll\"><table class=\"stack\"><thead><tr><th>row</th><th class=\"words\">figure</th>\
         <th class=\"words unit\">unit</th><th>baseline</th><th>new</th><th>difference</th><th>significant</th><th>judged</th></tr>\
         </thead><tbody>",
    );
    for (place, row) in compared.rows.iter().enumerate() {
        let cell = |pointer: &str, text: &str| link(&format!("/rows/{place}/{pointer}"), text);
        let _ = write!(
            html,
            "<tr><th>{}</th><td class=\"words\" data-name=\"figure\">{}</td><td class=\"words unit\" data-name=\"unit\">{}</td>\
             <td data-name=\"baseline\">{}</td><td data-name=\"new\">{}</td><td data-name=\"difference\">{}</td>\
             <td data-name=\"significant\">{}</td><td data-name=\"judged\">{}</td></tr>",
            escape(&row.row),
            words(&format!("/rows/{place}/{}", "what"), &row.what),
            words(&format!("/rows/{place}/unit"), &row.unit),
            cell("baseline", &row.text_of(0)),
            cell("new", &row.text_of(1)),
            cell("difference_percent", &row.difference()),
            row.significance(),
            row.judged(),
        );
    }
    let _ = writeln!(
        html,
        "</tbody></table></div><p class=\"note\">{}</p><p class=\"note\">{}</p><p class=\"note\">Each number links to its record in \
         <a href=\"{RECORDS}\">{RECORDS}</a>. The comparison is in {RECORD}.</p></section></main></body></html>",
        escape(LEGEND),
        words(judged_by, &compared.judgement())
    );
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances_of_studies_that_are_no_percentage_are_refused() {
        let nowhere = Path::new("no-results");
        for tolerance in [f64::NAN, f64::INFINITY, -5.0] {
            let error = compare(nowhere, nowhere, tolerance).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.starts_with("--tolerance "), "{text}");
        }
    }

    fn row(figure: &str, here: f64, half: Option<f64>) -> StudyRow {
        StudyRow {
            row: "S5".to_owned(),
            what: format!("the {figure}"),
            figure: figure.to_owned(),
            unit: "ms".to_owned(),
            here: Some(here),
            interval: Some(match half {
                Some(half) => Interval {
                    low: Some(here - half),
                    high: Some(here + half),
                    samples: 5,
                    ..Interval::default()
                },
                None => Interval::none(1, "runs"),
            }),
            samples: if half.is_some() { 5 } else { 1 },
            ..StudyRow::default()
        }
    }

    fn study(rows: Vec<StudyRow>) -> SuiteRecord {
        SuiteRecord {
            suite: "study-s".to_owned(),
            study: rows,
            ..SuiteRecord::default()
        }
    }

    fn compared(old: &SuiteRecord, new: &SuiteRecord) -> StudyRunsCompared {
        let at = Path::new("/nonexistent");
        StudyRunsCompared::of((old, at), (new, at), 5.0).unwrap()
    }

    #[test]
    fn figures_are_worse_by_their_direction_and_intervals() {
        let old = study(vec![
            row("response_p99_ms", 10.0, Some(1.0)),
            row("capacity", 700.0, Some(20.0)),
            row("jitter_mean_ms", 1.0, Some(0.3)),
            row("cpu_us_each", 50.0, None),
            row("mos", 4.0, Some(0.001)),
            row("host_cpu_percent", 10.0, Some(1.0)),
        ]);
        assert!(compared(&old, &old).worse().is_empty());
        let new = study(vec![
            row("response_p99_ms", 20.0, Some(1.0)),
            row("capacity", 400.0, Some(20.0)),
            // The intervals overlap; a single sample has none; the difference is within the tolerance; no judged
            // figure.
            row("jitter_mean_ms", 1.5, Some(0.3)),
            row("cpu_us_each", 500.0, None),
            row("mos", 3.99, Some(0.001)),
            row("host_cpu_percent", 90.0, Some(1.0)),
        ]);
        let worse = compared(&old, &new);
        assert_eq!(worse.worse(), ["S5 the response_p99_ms", "S5 the capacity"]);
        let significant: Vec<Option<bool>> = worse.rows.iter().map(|row| row.significant).collect();
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(significant, [yes, yes, no, None, yes, yes]);
        // The other way round both are better.
        assert!(compared(&new, &old).worse().is_empty());
        let text = worse.text();
        assert!(
            text.contains("+100.0 %") && text.contains("one sample"),
            "{text}"
        );
    }

    #[test]
    fn figures_at_different_levels_are_shown_and_not_judged() {
        let at = |level: f64, ms: f64| StudyRow {
            level: Some(level),
            ..row("response_p99_ms", ms, Some(0.1))
        };
        let old = study(vec![at(9_000.0, 12.0)]);
        let better = compared(&old, &study(vec![at(12_000.0, 25.0)]));
        assert!(better.worse().is_empty() && better.rows[0].significant.is_none());
        assert_eq!(better.verdict(), RunVerdict::Passed);
        let text = better.text();
        assert!(
            text.contains("at 9000") && text.contains("at 12000"),
            "{text}"
        );
        assert_eq!(
            compared(&old, &study(vec![at(9_000.0, 25.0)]))
                .worse()
                .len(),
            1
        );
    }

    #[test]
    fn intervals_within_one_run_prove_no_difference() {
        let of_one_run = |ms: f64| {
            let mut row = row("relay_p50_ms", ms, Some(0.01));
            row.interval = row.interval.map(Interval::within_runs);
            row
        };
        let (old, new) = (study(vec![of_one_run(1.0)]), study(vec![of_one_run(1.1)]));
        let found = compared(&old, &new);
        assert_eq!(found.rows[0].significant, None);
        assert_eq!(found.verdict(), RunVerdict::NotMeasured);
        assert!(
            found
                .judgement()
                .starts_with("not compared: no row has intervals")
        );
        // Beside a row that was tested it is named.
        let tested = row("mos", 4.0, Some(0.1));
        let [old, new] = [1.0, 1.1].map(|ms| study(vec![of_one_run(ms), tested.clone()]));
        let found = compared(&old, &new);
        assert_eq!(found.verdict(), RunVerdict::Passed);
        assert!(found.judgement().ends_with("without intervals: 1 row"));
        assert_eq!(
            compared(&old, &old).judgement(),
            "not worse (tolerance 5 %)"
        );
    }

    #[test]
    fn verdicts_and_missing_figures_are_named() {
        let old = study(vec![
            row("capacity", 700.0, Some(20.0)),
            row("mos", 4.0, Some(0.1)),
        ]);
        let mut new = old.clone();
        new.verdict = RunVerdict::Failed;
        new.study[0].here = None;
        new.study[0].interval = None;
        new.study[1].what = "another".to_owned();
        let missing = {
            let mut missing = new.clone();
            missing.verdict = old.verdict;
            compared(&old, &missing)
        };
        assert_eq!(missing.verdict(), RunVerdict::NotMeasured);
        assert!(missing.judgement().starts_with("not compared"));
        assert!(render(&missing).contains(">not compared</span>"));
        assert_eq!(compared(&old, &old).verdict(), RunVerdict::Passed);
        let compared = compared(&old, &new);
        assert_eq!(compared.worse(), ["the verdict: failed"]);
        assert_eq!(compared.verdict(), RunVerdict::Failed);
        let notes = compared.notes.join("\n");
        for words in [
            "verdict: not judged before, failed now",
            "only in the baseline: 1 row",
            "only in the new run: 1 row",
            "measured in the baseline only: the capacity",
        ] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
        let mut other = old.clone();
        other.suite = "study-u".to_owned();
        let at = Path::new("/nonexistent");
        let error = StudyRunsCompared::of((&old, at), (&other, at), 5.0).unwrap_err();
        assert!(error.to_string().contains("different studies"), "{error}");
    }
}
