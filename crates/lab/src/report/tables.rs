//! The tables of the report.

use super::bounds::BoundCheck;
use super::chart::escape;
use super::data::RunResults;
use super::html_table::{HtmlTable, TableRow, count, grouped, number};
use super::level_summary::LevelSummary;
use super::sources::{computed, figure, sip_figures};
use super::study::{StudyComparison, compare_with_study};
use crate::decimal::{counted, plain};
use crate::error::RunVerdict;
use crate::experiment::CAPACITY;
use crate::figures::{CLASS_NAMES, ThresholdCheck};
use crate::raw::{RawResults, TrialRecord};
use crate::record::AttemptOutcome;
use crate::records_page::{self, link, segment};
use crate::statistics::{INTERVAL_COLUMN, has_too_few_samples};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Tables with one row per trial are folded if they have more rows than this.
pub(super) const FOLD: usize = 8;

pub(super) fn level_name(level: Option<f64>) -> String {
    level.map_or("all".to_owned(), grouped)
}

/// The level as the first cell of a row.
fn level_cell(place: usize, level: Option<f64>) -> String {
    link(
        &computed(&format!("/levels/{place}/level")),
        &level_name(level),
    )
}

/// A figure of a level as a cell.
fn figure_cell(place: usize, name: &str, value: Option<f64>) -> String {
    link(&figure(place, name), &number(value))
}

/// A number of a level that is drawn faint if it is zero.
fn count_cell(place: usize, name: &str, value: f64) -> String {
    link(&figure(place, name), &count(value))
}

pub(super) fn trial_name(trial: &TrialRecord) -> String {
    match trial.level {
        Some(level) => format!("{} / run {}", grouped(level), trial.repetition + 1),
        None => format!("run {}", trial.repetition + 1),
    }
}

/// Name of the sweep's value.
pub(super) fn label(raw: &RawResults) -> &str {
    match raw.run.level_label.as_str() {
        "" => "level",
        label => label,
    }
}

fn verdict_mark(verdict: RunVerdict) -> String {
    let (class, sign) = match verdict {
        RunVerdict::Passed => ("passed", "&#10003; "),
        RunVerdict::Failed => ("failed", "&#10007; "),
        RunVerdict::NotMeasured | RunVerdict::NotJudged => ("open", ""),
    };
    format!(
        "<span class=\"mark {class}\">{sign}{}</span>",
        verdict.name()
    )
}

pub(super) fn summary(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let calls = levels.iter().any(|level| level.attempted > 0.0);
    let registrations = levels.iter().any(|level| level.registrations > 0.0);
    let row = |(place, level): (usize, &LevelSummary)| {
        let mut cells = vec![level_cell(place, level.level)];
        let counts = |names: &[&str]| -> Vec<String> {
            let each = names.iter();
            each.map(|name| count_cell(place, name, level.figure(name).unwrap_or_default()))
                .collect()
        };
        let figures = |names: &[&str]| -> Vec<String> {
            let each = names.iter();
            each.map(|name| figure_cell(place, name, level.figure(name)))
                .collect()
        };
        if calls {
            cells.extend(counts(&[
                "attempted",
                "established",
                "completed",
                "failed",
                "peak_calls",
            ]));
        }
        if registrations {
            cells.extend(counts(&[
                "registrations",
                "registered",
                "registrations_failed",
            ]));
        }
        if calls || registrations {
            let few = level.p99.is_some() && has_too_few_samples(level.answered, 0.99);
            cells.extend(figures(&["response_p50_ms", "response_p99_ms"]));
            if let Some(p99) = cells.last_mut().filter(|_| few) {
                p99.push('*');
            }
            cells.extend(figures(&["response_max_ms", "cpu_us_each"]));
        } else {
            cells.extend(counts(&["streams", "packets"]));
            cells.extend(figures(&["lost_percent", "jitter_p99_ms", "mos"]));
        }
        cells.push(verdict_mark(level.verdict));
        TableRow::from(cells)
    };
    let mut columns = vec![label(raw)];
    if calls {
        columns.extend([
            "calls attempted",
            "established",
            "completed",
            "failed",
            "most open",
        ]);
    }
    if registrations {
        columns.extend(["registrations", "accepted", "failed"]);
    }
    if calls || registrations {
        columns.extend([
            "response p50, ms",
            "p99, ms",
            "max, ms",
            "CPU each, \u{b5}s",
        ]);
    } else {
        columns.extend(["streams", "packets", "lost, %", "jitter p99, ms", "MOS"]);
    }
    columns.push("verdict");
    let note = match levels.iter().map(|level| level.repetitions).max() {
        Some(repetitions) if repetitions > 1 => format!(
            "Counts: mean of {repetitions} runs per level. Response times: quantiles over the attempts of all of them, INVITE (or REGISTER) to 2xx. CPU: of the system under test (SUT)."
        ),
        _ => "Response times: INVITE (or REGISTER) to 2xx. CPU: of the system under test (SUT)."
            .to_owned(),
    };
    let few = levels
        .iter()
        .any(|l| l.p99.is_some() && has_too_few_samples(l.answered, 0.99));
    let note = match few {
        true => format!(
            "{note} * fewer than 300 answers: the 99th percentile is close to the largest value."
        ),
        false => note,
    };
    HtmlTable {
        title: "Result by level",
        note: &note,
        note_record: "run.json#/trials",
        columns,
        rows: levels.iter().enumerate().map(row).collect(),
        ..HtmlTable::default()
    }
    .write(html);
}

pub(super) fn study(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let Some(study) = &raw.run.study else {
        return;
    };
    let row = |(place, row): (usize, &StudyComparison)| {
        let record = |name: &str| computed(&format!("/study/{place}{name}"));
        let figure = match row.figure.as_str() {
            name if name.starts_with("esp.") => name.to_owned(),
            CAPACITY => "highest level within every threshold".to_owned(),
            name if name.ends_with(" ms") => format!("answered in {name}"),
            name => name.replace('_', " "),
        };
        let remark = match row.remark.as_str() {
            "" => String::new(),
            remark => format!(
                " <span class=\"soft\">({})</span>",
                records_page::text(&record("/remark"), remark)
            ),
        };
        TableRow::from(vec![
            link(&record("/level"), &level_name(row.level)),
            records_page::text(&record("/figure"), &figure),
            match row.study_most {
                Some(_) => link(&record(""), &row.study_text()),
                None => link(&record("/study"), &grouped(row.study_value)),
            },
            format!("{}{remark}", link(&record("/here"), &number(row.run_value))),
            link(&record("/interval"), &escape(&row.interval_text())),
            link(&record("/interval"), &escape(&row.source_text())),
            records_page::text(&record("/unit"), &row.unit),
        ])
    };
    let note = format!(
        "{}, which ran on: {}. Here: this run, with the 95 % confidence interval (a capacity: the bracket of its search) and the number of samples.",
        study.row, study.ran_on
    );
    HtmlTable {
        title: "Comparison with the study",
        note: &note,
        note_record: "run.json#/study",
        columns: vec![
            label(raw),
            "figure",
            "study",
            "here",
            INTERVAL_COLUMN,
            "of",
            "unit",
        ],
        words: &[1, 3, 4, 5, 6],
        rows: compare_with_study(&raw.run, levels)
            .iter()
            .enumerate()
            .map(row)
            .collect(),
        ..HtmlTable::default()
    }
    .write(html);
    if !study.differs.is_empty() {
        html.push_str("<section><h2>Differences from the study</h2><ul>");
        for (place, differs) in study.differs.iter().enumerate() {
            let record = format!("run.json#/study/differs/{place}");
            let _ = write!(html, "<li>{}</li>", records_page::text(&record, differs));
        }
        html.push_str("</ul></section>");
    }
}

/// Bounds of the experiment's main figures over its levels, and the peak that was measured before them.
pub(super) fn bounds(html: &mut String, raw: &RawResults, bounds: &[BoundCheck]) {
    let row = |(place, bound): (usize, &BoundCheck)| {
        let record = |name: &str| computed(&format!("/bounds/{place}{name}"));
        let interval = bound.interval.as_ref();
        TableRow::from(vec![
            records_page::text(&record("/figure"), &bound.figure),
            link(
                &record("/level"),
                &bound.level.map_or(String::new(), grouped),
            ),
            link(&record(""), &bound.limit()),
            link(&record(""), &escape(&bound.measured_text())),
            link(
                &record("/interval"),
                &interval.map_or(String::new(), |interval| escape(&interval.marked_ends())),
            ),
            link(
                &record("/interval"),
                &interval.map_or(String::new(), |interval| escape(&interval.source())),
            ),
            verdict_mark(bound.verdict()),
        ])
    };
    let peak = raw.run.peak.as_ref();
    let note = peak.map(|peak| {
        format!(
            "Peak, measured before the levels: {}.",
            peak.sentence(label(raw))
        )
    });
    HtmlTable {
        title: "Main figures of the experiment",
        note: &note.unwrap_or_default(),
        note_record: "run.json#/peak",
        columns: vec![
            "figure",
            label(raw),
            "limit",
            "measured",
            INTERVAL_COLUMN,
            "of",
            "verdict",
        ],
        words: &[3, 4, 5],
        rows: bounds.iter().enumerate().map(row).collect(),
        ..HtmlTable::default()
    }
    .write(html);
}

/// The search: its parameters, the test setup, its trials in order.
pub(super) fn search(html: &mut String, raw: &RawResults) {
    let Some(search) = &raw.run.search else {
        return;
    };
    let note = format!(
        "{}. {} In a good trial no threshold fails and it is steady: the median response time of its last third is at most \
         1.25 times that of the thirds before and 5 ms more.",
        search.sentence(label(raw)),
        search.algorithm()
    );
    let row = |(place, step): (usize, &crate::search::SearchTrial)| {
        let record = |name: &str| format!("run.json#/search/trials/{place}/{name}");
        let length = if step.short { "short" } else { "full" };
        TableRow::from(vec![
            link(&record("trial"), &(step.trial + 1).to_string()),
            link(&record("value"), &grouped(step.value)),
            length.to_owned(),
            step.outcome().to_owned(),
            link(&record("missed"), &escape(&step.missed)),
        ])
    };
    HtmlTable {
        title: "Search",
        note: &note,
        note_record: "run.json#/search",
        columns: vec!["trial", label(raw), "length", "outcome", "failed threshold"],
        words: &[2, 3, 4],
        rows: search.trials.iter().enumerate().map(row).collect(),
        ..HtmlTable::default()
    }
    .write(html);
    let row = |(place, (name, value)): (usize, &(String, String))| {
        let record = format!("run.json#/search/setup/{place}/1");
        TableRow::from(vec![escape(name), link(&record, &escape(value))])
    };
    HtmlTable {
        title: "Test setup",
        note: "Test Setup Report of RFC 7502.",
        columns: vec!["parameter", "value"],
        words: &[1],
        rows: search.setup.iter().enumerate().map(row).collect(),
        ..HtmlTable::default()
    }
    .write(html);
}

/// Description of a threshold.
fn threshold_description(check: &str) -> String {
    let words = match check {
        "failed_percent" => "failed attempts, %",
        "not_started_percent" => "attempts that could not start, %",
        "response_p50_ms" => "response time, median, ms",
        "response_p99_ms" => "response time, 99th percentile, ms",
        "lost_percent" => "media packets lost, %",
        "jitter_p99_ms" => "jitter, 99th percentile, ms",
        "jitter_mean_above_noise_ms" => "mean jitter above the host's own, ms",
        "jitter_p99_above_noise_ms" => "jitter above the host's own, 99th percentile, ms",
        "host_cpu_percent" => "load of this machine's processors, %",
        "relay_p50_ms" => "delay of single packets, median, ms",
        "relay_p99_ms" => "delay of single packets, 99th percentile, ms",
        "one_way_ms" => "one-way delay of the worst stream, ms",
        "round_trip_ms" => "round trip of the worst stream, ms",
        "mos" => "mean opinion score",
        "correlation" => "correlation of received with sent speech",
        "level_db" => "level of received against sent speech, dB",
        "lateness_p99_ms" => "lateness of the generator, 99th percentile, ms",
        "steady_ms" => "median response time of the last third of the trial, ms",
        "leaks" => "calls, ports, transactions left at the end",
        other => return other.replace('_', " "),
    };
    words.to_owned()
}

/// Whether the threshold is a lower bound.
pub(super) fn is_lower_bound(check: &str) -> bool {
    matches!(check, "mos" | "correlation")
}

/// Whether the first of two measurements is the worse one; any value is worse than none.
fn worse(name: &str, a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(_), None) => true,
        (Some(a), Some(b)) if is_lower_bound(name) => a < b,
        (Some(a), Some(b)) => a.abs() > b.abs(),
        _ => false,
    }
}

/// A threshold over all trials.
pub(super) struct ThresholdRow<'a> {
    /// Key in the experiment file.
    pub name: &'a str,
    /// The trial with the worst value.
    pub trial: &'a TrialRecord,
    /// The check of that trial.
    pub worst: &'a ThresholdCheck,
    /// Trials with a check of this threshold, and the place of the check in each.
    pub all: Vec<(&'a TrialRecord, usize)>,
    /// Number of checks that failed.
    pub failed: usize,
    /// Number of checks without a measurement.
    pub open: usize,
    /// The verdict over all checks.
    pub verdict: RunVerdict,
}

/// The thresholds in the order of their first occurrence.
pub(super) fn threshold_rows(trials: &[TrialRecord]) -> Vec<ThresholdRow<'_>> {
    let mut names: Vec<&str> = Vec::new();
    for check in trials.iter().flat_map(|trial| &trial.checks) {
        if !names.contains(&check.name.as_str()) {
            names.push(&check.name);
        }
    }
    let row = |name: &'_ str| {
        let of: Vec<(&TrialRecord, usize, &ThresholdCheck)> = trials
            .iter()
            .flat_map(|trial| {
                trial
                    .checks
                    .iter()
                    .zip(0..)
                    .map(move |(check, n)| (trial, n, check))
            })
            .filter(|(_, _, check)| check.name == name)
            .collect();
        let worst =
            of.iter()
                .copied()
                .reduce(|a, b| match worse(name, b.2.measured, a.2.measured) {
                    true => b,
                    false => a,
                });
        let (trial, _, check) = worst?;
        Some(ThresholdRow {
            name: &check.name,
            trial,
            worst: check,
            failed: of.iter().filter(|(_, _, check)| check.failed()).count(),
            open: of
                .iter()
                .filter(|(_, _, check)| check.holds.is_none())
                .count(),
            verdict: crate::figures::verdict(of.iter().map(|(_, _, check)| *check)),
            all: of.iter().map(|(trial, n, _)| (*trial, *n)).collect(),
        })
    };
    names.into_iter().filter_map(row).collect()
}

/// One row per threshold with the worst of all trials.
pub(super) fn thresholds(html: &mut String, raw: &RawResults) {
    let row = |(place, row): (usize, ThresholdRow<'_>)| {
        let record = |name: &str| computed(&format!("/thresholds/{place}/{name}"));
        let sign = if is_lower_bound(row.name) {
            "&ge;"
        } else {
            "&le;"
        };
        let measured = row
            .worst
            .measured
            .map_or("not measured".to_owned(), grouped);
        TableRow::from(vec![
            escape(&threshold_description(row.name)),
            link(
                &record("limit"),
                &format!("{sign} {}", grouped(row.worst.limit)),
            ),
            link(&record("worst/value"), &measured),
            link(&record("in"), &trial_name(row.trial)),
            link(
                &record("failed"),
                &format!("{} of {}", row.failed, row.all.len()),
            ),
            link(&record("not_measured"), &count(row.open as f64)),
            verdict_mark(row.verdict),
        ])
    };
    HtmlTable {
        title: "Thresholds",
        note: "The worst trial decides. A threshold without a measurement neither passes nor fails.",
        columns: vec![
            "threshold",
            "limit",
            "worst",
            "in trial",
            "failed",
            "not measured",
            "verdict",
        ],
        words: &[3],
        rows: threshold_rows(&raw.run.trials)
            .into_iter()
            .enumerate()
            .map(row)
            .collect(),
        ..HtmlTable::default()
    }
    .write(html);
}

/// The response-time distribution, with the study's rows if it states one.
pub(super) fn classes(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let answered = |level: &LevelSummary| level.classes.iter().sum::<f64>();
    if levels.iter().all(|level| answered(level) == 0.0) {
        return;
    }
    let mut rows: Vec<TableRow> = Vec::new();
    for (place, level) in levels.iter().enumerate() {
        let all = (answered(level) + level.dropped).max(1.0);
        let mut cells = vec![level_cell(place, level.level)];
        for ((class, value), name) in level.classes.iter().enumerate().zip(CLASS_NAMES) {
            let share = value * 100.0 / all;
            cells.push(format!(
                "<td class=\"heat c{class}\" style=\"--p:{:.0}\">{}</td>",
                share * 0.6,
                count_cell(place, &format!("{name} ms"), value.round())
            ));
        }
        cells.push(count_cell(place, "dropped", level.dropped.round()));
        rows.push(cells.into());
        rows.extend(study_classes(raw, level.level));
    }
    let mut columns = vec![label(raw)];
    columns.extend(CLASS_NAMES.map(|name| if name == ">=200" { "\u{2265}200" } else { name }));
    columns.push("dropped");
    HtmlTable {
        title: "Response-time distribution",
        note: "Attempts per class of response time in milliseconds, mean of the runs, rounded. Dropped: started, but not answered with 2xx.",
        columns,
        rows,
        ..HtmlTable::default()
    }
    .write(html);
}

/// The study's classes at this level; classes that it does not state stay empty.
fn study_classes(raw: &RawResults, level: Option<f64>) -> Option<TableRow> {
    let study = raw.run.study.as_ref()?;
    let mut levels = study.level.iter().zip(0..);
    let (theirs, place) = levels.find(|(l, _)| Some(l.at) == level)?;
    let place: usize = place;
    let cell = |name: &str| {
        let record = format!("run.json#/study/level/{place}/figures/{}", segment(name));
        let value = theirs.figures.get(name).copied().map(grouped)?;
        Some(link(&record, &value))
    };
    let mut cells = vec!["the study".to_owned()];
    cells.extend(CLASS_NAMES.map(|name| cell(&format!("{name} ms")).unwrap_or_default()));
    cells.push(cell("dropped").unwrap_or_default());
    let states_one = cells.iter().skip(1).any(|cell| !cell.is_empty());
    states_one.then_some(TableRow {
        cells,
        class: "study",
    })
}

/// Outcomes by level, and folded by trial.
pub(super) fn outcomes(html: &mut String, results: &RunResults) {
    let raw = &results.raw;
    let trials = &raw.run.trials;
    let counts = |trial: &TrialRecord, outcome: AttemptOutcome| -> u64 {
        let found = trial.details.outcomes.iter().find(|(of, _)| *of == outcome);
        found.map_or(0, |(_, count)| *count)
    };
    let present: Vec<AttemptOutcome> = AttemptOutcome::ALL
        .into_iter()
        .filter(|outcome| trials.iter().any(|trial| counts(trial, *outcome) > 0))
        .collect();
    let names: Vec<String> = present
        .iter()
        .map(|outcome| outcome.name().replace('_', " "))
        .collect();
    let row = |of: &str, place: usize, name: String, trials: &[TrialRecord]| {
        let record = |name: &str| computed(&format!("/outcomes/{of}/{place}/{name}"));
        let mut cells = vec![name];
        for outcome in &present {
            let sum: u64 = trials.iter().map(|trial| counts(trial, *outcome)).sum();
            let record = record(&format!("{}/value", outcome.name()));
            cells.push(link(&record, &count(sum as f64)));
        }
        cells.push(link(&record("refused_with/counts"), &statuses(trials)));
        let leaks: Option<u64> = trials.iter().map(|trial| trial.leaks).sum();
        let leaks = leaks.map_or("unknown".to_owned(), |leaks| count(leaks as f64));
        cells.push(link(&record("left_over/value"), &leaks));
        TableRow::from(cells)
    };
    let columns = |first| {
        let mut columns = vec![first];
        columns.extend(names.iter().map(String::as_str));
        columns.extend(["refused with", "left over"]);
        columns
    };
    let words = [present.len() + 1];
    let levels = trials.chunk_by(|a, b| a.level.map(f64::to_bits) == b.level.map(f64::to_bits));
    HtmlTable {
        title: "Outcomes",
        note: "Each attempt has exactly one; sums over all runs of a level. Left over: calls, legs, ports and sessions of SUT and generator after the end.",
        columns: columns(label(raw)),
        words: &words,
        rows: levels
            .enumerate()
            .filter_map(|(place, trials)| {
                let name = level_cell(place, trials.first()?.level);
                Some(row("levels", place, name, trials))
            })
            .collect(),
        ..HtmlTable::default()
    }
    .write(html);
    if trials.len() > 1 {
        HtmlTable {
            title: "Outcomes of each trial",
            columns: columns("trial"),
            words: &words,
            rows: trials
                .iter()
                .enumerate()
                .map(|(place, trial)| {
                    let name = trial_cell(results, trial);
                    row("trials", place, name, std::slice::from_ref(trial))
                })
                .collect(),
            folded: true,
            ..HtmlTable::default()
        }
        .write(html);
    }
}

/// Number of attempts that were refused with each status, over these trials.
pub(super) fn status_counts(trials: &[TrialRecord]) -> BTreeMap<u16, u64> {
    let mut counts = BTreeMap::new();
    for (status, count) in trials.iter().flat_map(|trial| &trial.details.statuses) {
        *counts.entry(*status).or_insert(0u64) += count;
    }
    counts
}

fn statuses(trials: &[TrialRecord]) -> String {
    let words: Vec<String> = status_counts(trials)
        .iter()
        .map(|(status, count)| format!("{status}: {count}"))
        .collect();
    words.join(", ")
}

pub(super) fn media(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let row = |(place, level): (usize, &LevelSummary)| {
        let mut cells = vec![
            level_cell(place, level.level),
            count_cell(place, "streams", level.streams),
            count_cell(place, "packets", level.packets),
        ];
        let figures = [
            "lost_percent",
            "jitter_mean_ms",
            "jitter_p99_ms",
            "jitter_max_ms",
            "one_way_ms",
            "round_trip_ms",
            "mos",
            "correlation",
            "level_db",
        ];
        cells.extend(figures.map(|name| figure_cell(place, name, level.figure(name))));
        TableRow::from(cells)
    };
    HtmlTable {
        title: "Media",
        note: "Streams and packets: mean of the runs. Jitter as of RFC 3550, over received packets. Delays: the worst stream's mean, both ends on one clock. MOS: E-model (G.107), mean of the streams. Correlation and level: the worst stream whose audio was analysed, against the sent speech.",
        columns: vec![
            label(raw),
            "streams",
            "packets",
            "lost, %",
            "jitter mean, ms",
            "p99, ms",
            "max, ms",
            "one way, ms",
            "round trip, ms",
            "MOS",
            "correlation",
            "level, dB",
        ],
        rows: levels
            .iter()
            .enumerate()
            .filter(|(_, level)| level.streams > 0.0)
            .map(row)
            .collect(),
        ..HtmlTable::default()
    }
    .write(html);
}

/// Cost of media, and jitter of the host itself.
pub(super) fn media_plane(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    const FIGURES: [&str; 10] = [
        "relay_p50_ms",
        "relay_p99_ms",
        "relay_max_ms",
        "jitter_trimmed_mean_ms",
        "jitter_trimmed_p99_ms",
        "noise_jitter_mean_ms",
        "noise_jitter_p99_ms",
        "cpu_us_per_packet",
        "subject_cores",
        "host_cpu_percent",
    ];
    let is_shown = |(_, level): &(usize, &LevelSummary)| {
        level.streams > 0.0 && (level.relay_p50.is_some() || level.noise_jitter_mean.is_some())
    };
    let row = |(place, level): (usize, &LevelSummary)| {
        let mut cells = vec![level_cell(place, level.level)];
        cells.extend(FIGURES.map(|name| figure_cell(place, name, level.figure(name))));
        TableRow::from(cells)
    };
    HtmlTable {
        title: "Media plane",
        note: "Packet delay: from the generator's send call to the kernel's receive timestamp at the other end; the median of the streams' medians, the 99th percentile of their 99th percentiles, the largest. Jitter: trimmed mean over the runs, without the best and the worst. The host's own jitter: streams of the generator that bypass the SUT at the same time. CPU: of the SUT, each received packet counted once; then the number of cores that it kept busy, and the load of all processors of this machine, including the generator.",
        columns: vec![
            label(raw),
            "packet delay p50, ms",
            "p99, ms",
            "max, ms",
            "jitter mean, ms",
            "p99, ms",
            "host's jitter mean, ms",
            "p99, ms",
            "CPU a packet, \u{b5}s",
            "SUT, cores",
            "processors busy, %",
        ],
        rows: levels.iter().enumerate().filter(is_shown).map(row).collect(),
        ..HtmlTable::default()
    }
    .write(html);
}

/// The metrics of RFC 6076 by level.
pub(super) fn metrics(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let calls = levels.iter().any(|level| level.attempted > 0.0);
    let registrations = levels.iter().any(|level| level.registrations > 0.0);
    if !calls && !registrations {
        return;
    }
    let row = |(place, level): (usize, &LevelSummary)| {
        let mut cells = vec![level_cell(place, level.level)];
        for (name, value) in sip_figures(level) {
            let shown = match name.contains("registration") {
                true => registrations,
                false => calls,
            };
            if shown {
                cells.push(figure_cell(place, name, value));
            }
        }
        TableRow::from(cells)
    };
    let mut columns = vec![label(raw)];
    if calls {
        columns.extend([
            "SRD, ms",
            "SRD of failed, ms",
            "SDD, ms",
            "SDT, s",
            "SER, %",
            "SEER, %",
            "ISA, %",
            "SCR, %",
        ]);
    }
    if registrations {
        columns.extend(["RRD, ms", "IRA, %"]);
    }
    HtmlTable {
        title: "SIP metrics of RFC 6076",
        note: "Means over the attempts of all runs. SRD: INVITE to the first 18x or 2xx; SDD: BYE to its answer; SDT: 2xx to BYE; SER: answered, of all not redirected; SEER: the same with busy, unavailable and declined; ISA: 408, 500, 503, 504 or no answer; SCR: from INVITE to the answer to BYE; RRD: REGISTER to 2xx; IRA: refused or unanswered.",
        columns,
        rows: levels.iter().enumerate().map(row).collect(),
        folded: levels.len() > FOLD,
        ..HtmlTable::default()
    }
    .write(html);
}

/// Growth of the SUT's memory for each accepted call or registration of a trial, bytes.
pub(super) fn bytes_each(trial: &TrialRecord) -> Option<f64> {
    let made = trial.details.registrations.established + trial.figures.calls.established;
    let grew = trial.surroundings.as_ref()?.subject_grew_bytes?;
    (made > 0).then(|| grew as f64 / made as f64)
}

/// The name of a trial as the first cell of a row.
pub(super) fn trial_cell(results: &RunResults, trial: &TrialRecord) -> String {
    let place = results.place(trial.trial).unwrap_or_default();
    link(&format!("run.json#/trials/{place}"), &trial_name(trial))
}

pub(super) fn surroundings(html: &mut String, results: &RunResults) {
    let raw = &results.raw;
    let row = |(place, trial): (usize, &TrialRecord)| {
        let around = trial.surroundings.as_ref()?;
        let at = results.place(trial.trial)?;
        let record = |name: &str, html: &str| link(&format!("run.json#/trials/{at}/{name}"), html);
        let host =
            |name: &str, html: &str| link(&computed(&format!("/host/{place}/{name}/value")), html);
        let around_cell = |name: &str, html: &str| record(&format!("surroundings/{name}"), html);
        let noise = &around.noise;
        let dropped = super::data::receive_buffer_errors(around) as f64;
        let mut cells = vec![
            trial_cell(results, trial),
            record("seconds", &plain(trial.seconds)),
        ];
        for (n, late) in trial.details.lateness_ms.into_iter().enumerate() {
            cells.push(record(&format!("details/lateness_ms/{n}"), &number(late)));
        }
        let sent = around.send_lateness;
        let sent_cell = |name: &str, value: Option<f64>| {
            around_cell(&format!("send_lateness/{name}"), &number(value))
        };
        match sent {
            Some(sent) => cells.extend([
                sent_cell("p50_ms", Some(sent.p50_ms)),
                sent_cell("p99_ms", Some(sent.p99_ms)),
                sent_cell("max_ms", Some(sent.max_ms)),
            ]),
            None => cells.extend([number(None), number(None), number(None)]),
        }
        cells.extend([
            record(
                "details/not_started",
                &count(trial.details.not_started as f64),
            ),
            host("noise_p99_ms", &plain(noise.p99_us / 1e3)),
            host("noise_max_ms", &plain(noise.max_us / 1e3)),
            host("noise_percent", &plain(noise.lost_share * 100.0)),
            host("receive_buffer_errors", &count(dropped)),
            around_cell("subject_cpu_seconds", &number(around.subject_cpu_seconds)),
            around_cell(
                "generator_cpu_seconds",
                &plain(around.generator_cpu_seconds),
            ),
            around_cell("callers_cpu_seconds", &plain(around.callers_cpu_seconds)),
            host("subject_bytes_each", &number(bytes_each(trial))),
        ]);
        Some(TableRow::from(cells))
    };
    let rows: Vec<TableRow> = raw.run.trials.iter().enumerate().filter_map(row).collect();
    HtmlTable {
        title: "Generator and host",
        note: "Conditions of the measurement: lateness of the generator (due to sent; of attempts, and of RTP packets), noise of the host (lateness of a thread that sleeps for a millisecond at a time: 99th percentile, largest, sum in percent of the time), and datagrams dropped by the kernel (RcvbufErrors of the whole machine).",
        columns: vec![
            "trial",
            "seconds",
            "generator late p50, ms",
            "p99, ms",
            "max, ms",
            "RTP sent late p50, ms",
            "p99, ms",
            "max, ms",
            "not started",
            "host noise p99, ms",
            "max, ms",
            "sum, %",
            "RcvbufErrors",
            "CPU of SUT, s",
            "CPU of generator, s",
            "of its callers, s",
            "memory of SUT, B each",
        ],
        folded: rows.len() > FOLD,
        rows,
        ..HtmlTable::default()
    }
    .write(html);
    remarks(html, results);
}

fn remarks(html: &mut String, results: &RunResults) {
    let raw = &results.raw;
    // A remark of all trials is printed once.
    let mut texts: Vec<(&str, String, Vec<String>)> = Vec::new();
    for trial in &raw.run.trials {
        for (n, remark) in trial.remarks.iter().enumerate() {
            match texts.iter_mut().find(|(known, _, _)| known == remark) {
                Some((_, _, trials)) => trials.push(trial_name(trial)),
                None => {
                    let place = results.place(trial.trial).unwrap_or_default();
                    let record = format!("run.json#/trials/{place}/remarks/{n}");
                    texts.push((remark, record, vec![trial_name(trial)]));
                }
            }
        }
    }
    if texts.is_empty() {
        return;
    }
    html.push_str("<section><h2>Remarks</h2><ul>");
    for (text, record, trials) in texts {
        let of = match (trials.len(), trials.first()) {
            (1, Some(trial)) => trial.clone(),
            (all, _) if all == raw.run.trials.len() => "every trial".to_owned(),
            (some, _) => counted(some, "trial"),
        };
        // The remark is in the record of its trial.
        let of_trial = record.split("/remarks/").next().unwrap_or(&record);
        let of = records_page::text(of_trial, &of);
        let text = records_page::text(&record, text);
        let _ = write!(html, "<li>{of}: {text}</li>");
    }
    html.push_str("</ul></section>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_measurement_is_selected() {
        assert!(worse("mos", Some(3.0), Some(4.0)) && !worse("mos", Some(4.0), Some(3.0)));
        assert!(worse("level_db", Some(-2.0), Some(1.0)));
        assert!(!worse("failed_percent", None, Some(9.0)));
        assert!(worse("failed_percent", Some(9.0), None));
    }
}
