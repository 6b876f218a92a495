//! The tables of the report.

use super::bounds::BoundCheck;
use super::chart::escape;
use super::levels::LevelSummary;
use super::study::{StudyComparison, compare_with_study};
use crate::decimal::plain;
use crate::error::RunVerdict;
use crate::experiment::CAPACITY;
use crate::figures::{CLASS_NAMES, ThresholdCheck};
use crate::raw::{RawResults, TrialRecord};
use crate::record::AttemptOutcome;
use crate::statistics::has_too_few_samples;
use std::fmt::Write;

/// Tables with one row per trial are folded if they have more rows than this.
const FOLD: usize = 8;

/// Formats a number, or a dash without a measurement.
fn number(value: Option<f64>) -> String {
    value.map_or("&ndash;".to_owned(), grouped)
}

/// Formats a number without trailing zeros, with thousands separators.
pub(super) fn grouped(value: f64) -> String {
    let text = plain(value);
    let digits = text.trim_start_matches('-');
    if digits.contains('.') || digits.len() < 5 {
        return text;
    }
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    match text.starts_with('-') {
        true => format!("-{out}"),
        false => out,
    }
}

/// Formats a count; zero is drawn faint.
fn count(value: f64) -> String {
    match value {
        0.0 => "<span class=\"nil\">0</span>".to_owned(),
        value => grouped(value),
    }
}

/// One table.
#[derive(Default)]
struct HtmlTable<'a> {
    title: &'a str,
    note: &'a str,
    columns: Vec<&'a str>,
    /// Text columns, aligned to the left; the first column always is.
    words: &'a [usize],
    rows: Vec<TableRow>,
    folded: bool,
}

#[derive(Default)]
struct TableRow {
    cells: Vec<String>,
    class: &'static str,
}

impl From<Vec<String>> for TableRow {
    fn from(cells: Vec<String>) -> TableRow {
        TableRow { cells, class: "" }
    }
}

impl HtmlTable<'_> {
    fn write(&self, html: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        let title = escape(self.title);
        let _ = match self.folded {
            true => write!(
                html,
                "<section><details><summary>{title} ({})</summary>",
                self.rows.len()
            ),
            false => write!(html, "<section><h2>{title}</h2>"),
        };
        if !self.note.is_empty() {
            let _ = write!(html, "<p class=\"note\">{}</p>", escape(self.note));
        }
        html.push_str("<div class=\"scroll\"><table><thead><tr>");
        for (place, column) in self.columns.iter().enumerate() {
            let _ = write!(
                html,
                "<th scope=\"col\"{}>{}</th>",
                self.align(place),
                escape(column)
            );
        }
        html.push_str("</tr></thead><tbody>");
        for row in &self.rows {
            let _ = match row.class {
                "" => write!(html, "<tr>"),
                class => write!(html, "<tr class=\"{class}\">"),
            };
            for (place, cell) in row.cells.iter().enumerate() {
                // A cell may bring its own attributes.
                let _ = match (place, cell.strip_prefix("<td")) {
                    (0, _) => write!(html, "<th scope=\"row\">{cell}</th>"),
                    (_, Some(_)) => write!(html, "{cell}"),
                    _ => write!(html, "<td{}>{cell}</td>", self.align(place)),
                };
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div>");
        html.push_str(match self.folded {
            true => "</details></section>",
            false => "</section>",
        });
    }

    fn align(&self, place: usize) -> &'static str {
        match self.words.contains(&place) {
            true => " class=\"words\"",
            false => "",
        }
    }
}

pub(super) fn level_name(level: Option<f64>) -> String {
    level.map_or("all".to_owned(), grouped)
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
    let row = |level: &LevelSummary| {
        let mut cells = vec![level_name(level.level)];
        if calls {
            let counts = [
                level.attempted,
                level.established,
                level.completed,
                level.failed,
                level.peak,
            ];
            cells.extend(counts.map(count));
        }
        if registrations {
            let counts = [
                level.registrations,
                level.registered,
                level.registrations_failed,
            ];
            cells.extend(counts.map(count));
        }
        if calls || registrations {
            cells.push(number(level.p50));
            let few = level.p99.is_some() && has_too_few_samples(level.answered, 0.99);
            cells.push(format!(
                "{}{}",
                number(level.p99),
                if few { "*" } else { "" }
            ));
            cells.extend([level.max, level.cpu_us].map(number));
        } else {
            cells.extend([level.streams, level.packets].map(count));
            cells.extend([level.lost_percent, level.jitter_p99, level.mos].map(number));
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
        columns,
        rows: levels.iter().map(row).collect(),
        ..HtmlTable::default()
    }
    .write(html);
}

pub(super) fn study(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let Some(study) = &raw.run.study else {
        return;
    };
    let row = |row: &StudyComparison| {
        let figure = match row.figure.as_str() {
            name if name.starts_with("esp.") => name.to_owned(),
            CAPACITY => "highest level within every threshold".to_owned(),
            name if name.ends_with(" ms") => format!("answered in {name}"),
            name => name.replace('_', " "),
        };
        let remark = match row.remark.as_str() {
            "" => String::new(),
            remark => format!(" <span class=\"soft\">({})</span>", escape(remark)),
        };
        TableRow::from(vec![
            level_name(row.level),
            escape(&figure),
            match row.study_most {
                Some(_) => row.study_text(),
                None => grouped(row.study_value),
            },
            format!("{}{remark}", number(row.run_value)),
            escape(&row.interval_text()),
            escape(&row.source_text()),
            escape(&row.unit),
        ])
    };
    let note = format!(
        "{}, which ran on: {}. Here: this run, with the 95 % confidence interval and the number of samples.",
        study.row, study.ran_on
    );
    HtmlTable {
        title: "Comparison with the study",
        note: &note,
        columns: vec![
            label(raw),
            "figure",
            "study",
            "here",
            "95 % interval",
            "of",
            "unit",
        ],
        words: &[1, 3, 4, 5, 6],
        rows: compare_with_study(&raw.run, levels)
            .iter()
            .map(row)
            .collect(),
        ..HtmlTable::default()
    }
    .write(html);
    if !study.differs.is_empty() {
        html.push_str("<section><h2>Differences from the study</h2><ul>");
        for differs in &study.differs {
            let _ = write!(html, "<li>{}</li>", escape(differs));
        }
        html.push_str("</ul></section>");
    }
}

/// Bounds of the experiment's main figures over its levels, and the peak that was measured before them.
pub(super) fn bounds(html: &mut String, raw: &RawResults, bounds: &[BoundCheck]) {
    let row = |bound: &BoundCheck| {
        let interval = bound.interval.as_ref();
        TableRow::from(vec![
            escape(&bound.figure),
            bound.level.map_or(String::new(), grouped),
            bound.limit(),
            escape(&bound.measured_text()),
            interval.map_or(String::new(), |interval| escape(&interval.ends())),
            interval.map_or(String::new(), |interval| escape(&interval.source())),
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
        columns: vec![
            "figure",
            label(raw),
            "limit",
            "measured",
            "95 % interval",
            "of",
            "verdict",
        ],
        words: &[3, 4, 5],
        rows: bounds.iter().map(row).collect(),
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
        "{}. Algorithm of RFC 7502: r = {}, N = {}, w = {}, d = {}, converged after {} good trials without a higher \
         one; then the gap halved down to {}. In a good trial no threshold fails and it is steady: the median response time of \
         its last third is at most twice that of its middle third and 5 ms more.",
        search.sentence(label(raw)),
        plain(search.start),
        search
            .attempts
            .map_or("as in the experiment".to_owned(), |n| n.to_string()),
        plain(search.increase),
        plain(search.decrease),
        search.confirm,
        plain(search.step)
    );
    let row = |step: &crate::search::SearchTrial| {
        let verdict = if step.good { "good" } else { "failed" };
        TableRow::from(vec![
            (step.trial + 1).to_string(),
            grouped(step.value),
            verdict.to_owned(),
            escape(&step.missed),
        ])
    };
    HtmlTable {
        title: "Search",
        note: &note,
        columns: vec!["trial", label(raw), "outcome", "failed threshold"],
        words: &[2, 3],
        rows: search.trials.iter().map(row).collect(),
        ..HtmlTable::default()
    }
    .write(html);
    let row = |(name, value): &(String, String)| TableRow::from(vec![escape(name), escape(value)]);
    HtmlTable {
        title: "Test setup",
        note: "Test Setup Report of RFC 7502.",
        columns: vec!["parameter", "value"],
        words: &[1],
        rows: search.setup.iter().map(row).collect(),
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
fn is_lower_bound(check: &str) -> bool {
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

/// One row per threshold with the worst of all trials.
pub(super) fn thresholds(html: &mut String, raw: &RawResults) {
    let trials = &raw.run.trials;
    let mut names: Vec<&str> = Vec::new();
    for check in trials.iter().flat_map(|trial| &trial.checks) {
        if !names.contains(&check.name.as_str()) {
            names.push(&check.name);
        }
    }
    let row = |name: &&str| {
        let of: Vec<(&TrialRecord, &ThresholdCheck)> = trials
            .iter()
            .flat_map(|trial| trial.checks.iter().map(move |check| (trial, check)))
            .filter(|(_, check)| check.name == **name)
            .collect();
        let worst =
            of.iter()
                .copied()
                .reduce(|a, b| match worse(name, b.1.measured, a.1.measured) {
                    true => b,
                    false => a,
                });
        let failed = of.iter().filter(|(_, check)| check.failed()).count();
        let open = of.iter().filter(|(_, check)| check.holds.is_none()).count();
        let (trial, check) = worst?;
        let sign = if is_lower_bound(name) { "&ge;" } else { "&le;" };
        Some(TableRow::from(vec![
            escape(&threshold_description(name)),
            format!("{sign} {}", grouped(check.limit)),
            check.measured.map_or("not measured".to_owned(), grouped),
            trial_name(trial),
            format!("{failed} of {}", of.len()),
            count(open as f64),
            verdict_mark(crate::figures::verdict(of.iter().map(|(_, check)| *check))),
        ]))
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
        rows: names.iter().filter_map(row).collect(),
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
    for level in levels {
        let all = (answered(level) + level.dropped).max(1.0);
        let mut cells = vec![level_name(level.level)];
        for (class, value) in level.classes.iter().enumerate() {
            let share = value * 100.0 / all;
            cells.push(format!(
                "<td class=\"heat c{class}\" style=\"--p:{:.0}\">{}</td>",
                share * 0.6,
                count(value.round())
            ));
        }
        cells.push(count(level.dropped.round()));
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
    let theirs = study.level.iter().find(|l| Some(l.at) == level)?;
    let cell = |name: &str| theirs.figures.get(name).copied().map(grouped);
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
pub(super) fn outcomes(html: &mut String, raw: &RawResults) {
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
    let row = |name: String, trials: &[TrialRecord]| {
        let mut cells = vec![name];
        for outcome in &present {
            let sum: u64 = trials.iter().map(|trial| counts(trial, *outcome)).sum();
            cells.push(count(sum as f64));
        }
        cells.push(statuses(trials));
        let leaks: Option<u64> = trials.iter().map(|trial| trial.leaks).sum();
        cells.push(leaks.map_or("unknown".to_owned(), |leaks| count(leaks as f64)));
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
            .filter_map(|trials| Some(row(level_name(trials.first()?.level), trials)))
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
                .map(|trial| row(trial_name(trial), std::slice::from_ref(trial)))
                .collect(),
            folded: true,
            ..HtmlTable::default()
        }
        .write(html);
    }
}

fn statuses(trials: &[TrialRecord]) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for (status, count) in trials.iter().flat_map(|trial| &trial.details.statuses) {
        *counts.entry(*status).or_insert(0u64) += count;
    }
    let words: Vec<String> = counts
        .iter()
        .map(|(status, count)| format!("{status}: {count}"))
        .collect();
    words.join(", ")
}

pub(super) fn media(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let row = |level: &LevelSummary| {
        let mut cells = vec![
            level_name(level.level),
            count(level.streams),
            count(level.packets),
        ];
        let figures = [
            level.lost_percent,
            level.jitter_mean,
            level.jitter_p99,
            level.jitter_max,
            level.one_way,
            level.round_trip,
            level.mos,
            level.correlation,
            level.level_db,
        ];
        cells.extend(figures.map(number));
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
            .filter(|level| level.streams > 0.0)
            .map(row)
            .collect(),
        ..HtmlTable::default()
    }
    .write(html);
}

/// Cost of media, and jitter of the host itself.
pub(super) fn media_plane(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let figures = |level: &LevelSummary| {
        [
            level.relay_p50,
            level.relay_p99,
            level.relay_max,
            level.jitter_trimmed_mean,
            level.jitter_trimmed_p99,
            level.noise_jitter_mean,
            level.noise_jitter_p99,
            level.cpu_us_packet,
            level.subject_cores,
            level.host_cpu,
        ]
    };
    let told = |level: &&LevelSummary| {
        level.streams > 0.0 && (level.relay_p50.is_some() || level.noise_jitter_mean.is_some())
    };
    let row = |level: &LevelSummary| {
        let mut cells = vec![level_name(level.level)];
        cells.extend(figures(level).map(number));
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
        rows: levels.iter().filter(told).map(row).collect(),
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
    let row = |level: &LevelSummary| {
        let sip = &level.sip;
        let mut cells = vec![level_name(level.level)];
        if calls {
            cells.extend(
                [
                    sip.session_request_delay_ms.mean,
                    sip.failed_session_request_delay_ms.mean,
                    sip.session_disconnect_delay_ms.mean,
                    sip.session_duration_s.mean,
                    sip.session_establishment_percent,
                    sip.session_establishment_effectiveness_percent,
                    sip.ineffective_sessions_percent,
                    sip.session_completion_percent,
                ]
                .map(number),
            );
        }
        if registrations {
            cells.push(number(sip.registration_request_delay_ms.mean));
            cells.push(number(sip.ineffective_registrations_percent));
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
        rows: levels.iter().map(row).collect(),
        folded: levels.len() > FOLD,
        ..HtmlTable::default()
    }
    .write(html);
}

pub(super) fn surroundings(html: &mut String, raw: &RawResults) {
    let row = |trial: &TrialRecord| {
        let around = trial.surroundings.as_ref()?;
        let mut cells = vec![trial_name(trial), plain(trial.seconds)];
        cells.extend(trial.details.lateness_ms.map(number));
        cells.push(count(trial.details.not_started as f64));
        cells.push(plain(around.noise.p99_us / 1e3));
        cells.push(plain(around.noise.max_us / 1e3));
        cells.push(plain(around.noise.lost_share * 100.0));
        cells.push(count(super::data::receive_buffer_errors(around) as f64));
        cells.push(number(around.subject_cpu_seconds));
        cells.push(plain(around.generator_cpu_seconds));
        cells.push(plain(around.callers_cpu_seconds));
        let made = trial.details.registrations.established + trial.figures.calls.established;
        let each = around.subject_grew_bytes.filter(|_| made > 0);
        let each = each.map(|bytes| bytes as f64 / made as f64);
        cells.push(number(each));
        Some(TableRow::from(cells))
    };
    let rows: Vec<TableRow> = raw.run.trials.iter().filter_map(row).collect();
    HtmlTable {
        title: "Generator and host",
        note: "Conditions of the measurement: lateness of the generator (due to sent), noise of the host (lateness of a thread that sleeps for a millisecond at a time: 99th percentile, largest, sum in percent of the time), and datagrams dropped by the kernel (RcvbufErrors of the whole machine).",
        columns: vec![
            "trial",
            "seconds",
            "generator late p50, ms",
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
    remarks(html, raw);
}

fn remarks(html: &mut String, raw: &RawResults) {
    // A remark of all trials is printed once.
    let mut texts: Vec<(&str, Vec<String>)> = Vec::new();
    for trial in &raw.run.trials {
        for remark in &trial.remarks {
            match texts.iter_mut().find(|(known, _)| known == remark) {
                Some((_, trials)) => trials.push(trial_name(trial)),
                None => texts.push((remark, vec![trial_name(trial)])),
            }
        }
    }
    if texts.is_empty() {
        return;
    }
    html.push_str("<section><h2>Remarks</h2><ul>");
    for (text, trials) in texts {
        let of = match (trials.len(), trials.first()) {
            (1, Some(trial)) => trial.clone(),
            (all, _) if all == raw.run.trials.len() => "every trial".to_owned(),
            (some, _) => format!("{some} trials"),
        };
        let _ = write!(html, "<li>{of}: {}</li>", escape(text));
    }
    html.push_str("</ul></section>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let written = [0.0, 999.0, 1200.0, 23_400.0, -1_234_567.0, 0.25].map(grouped);
        assert_eq!(
            written,
            ["0", "999", "1200", "23,400", "-1,234,567", "0.25"]
        );
    }

    #[test]
    fn worst_measurement_is_selected() {
        assert!(worse("mos", Some(3.0), Some(4.0)) && !worse("mos", Some(4.0), Some(3.0)));
        assert!(worse("level_db", Some(-2.0), Some(1.0)));
        assert!(!worse("failed_percent", None, Some(9.0)));
        assert!(worse("failed_percent", Some(9.0), None));
    }
}
