//! The report as one HTML page that needs nothing else.

use super::chart::{CLASSES, Chart, PALETTE, Series, Stack, escape, plain};
use super::data::Results;
use super::levels::LevelSummary;
use super::plots;
use super::reference::beside;
use crate::figures::CLASS_NAMES;
use crate::raw::{RawResults, TrialRecord};
use crate::record::{Kind, Outcome};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// Renders the page.
pub fn render(results: &Results, levels: &[LevelSummary]) -> String {
    let raw = &results.raw;
    let mut html = String::with_capacity(64 << 10);
    head(&mut html, raw);
    facts(&mut html, raw);
    summary_table(&mut html, raw, levels);
    reference_table(&mut html, raw, levels);
    checks_table(&mut html, raw);
    classes_table(&mut html, raw, levels);
    outcomes_table(&mut html, raw);
    media_table(&mut html, levels, &raw.run.level_label);
    charts(&mut html, results, levels);
    surroundings(&mut html, raw);
    plan(&mut html, raw);
    html.push_str("</main></body></html>\n");
    html
}

fn head(html: &mut String, raw: &RawResults) {
    let run = &raw.run;
    let title = escape(&run.title);
    let _ = write!(
        html,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><main><header><p class=\"kicker\">Hornwork laboratory &middot; {}</p><h1>{title}</h1>\
         <span class=\"badge {}\">{}</span></header>",
        escape(&run.experiment),
        run.verdict.name(),
        if run.verdict.name() == "passed" {
            "within every threshold"
        } else {
            "a threshold was missed"
        },
    );
    if !run.about.trim().is_empty() {
        let _ = write!(html, "<p class=\"lead\">{}</p>", escape(run.about.trim()));
    }
}

fn facts(html: &mut String, raw: &RawResults) {
    let run = &raw.run;
    let mut rows = vec![
        ("Subject", run.subject.clone()),
        (
            "Ran on",
            match run.driver.as_str() {
                "simulation" => "virtual time (simulation)".to_owned(),
                _ => "real sockets".to_owned(),
            },
        ),
        ("Trials", run.trials.len().to_string()),
        ("Seed", run.seed.to_string()),
        ("Version", run.version.clone()),
    ];
    if run.started > 0 {
        rows.push(("Started", date(run.started)));
    }
    if let Some(machine) = &run.machine {
        let memory = machine.memory as f64 / (1u64 << 30) as f64;
        rows.push((
            "Machine",
            format!(
                "{}, {} cores, {} GiB",
                machine.cpu,
                machine.cores,
                plain(memory)
            ),
        ));
        rows.push(("Kernel", machine.kernel.clone()));
    }
    if !run.study.is_empty() {
        rows.push(("Study rows", run.study.clone()));
    }
    html.push_str("<dl class=\"facts\">");
    for (name, value) in rows {
        let _ = write!(
            html,
            "<div><dt>{name}</dt><dd>{}</dd></div>",
            escape(&value)
        );
    }
    html.push_str("</dl>");
}

/// Seconds since 1970 as a date (UTC): days to civil date by the usual count of eras of 400 years.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// A number, or a dash where nothing was measured.
fn number(value: Option<f64>) -> String {
    value.map_or("&ndash;".to_owned(), plain)
}

fn table(html: &mut String, title: &str, note: &str, columns: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(html, "<section><h2>{}</h2>", escape(title));
    if !note.is_empty() {
        let _ = write!(html, "<p class=\"note\">{}</p>", escape(note));
    }
    html.push_str("<div class=\"scroll\"><table><thead><tr>");
    for column in columns {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(column));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let tag = if index == 0 { "th scope=\"row\"" } else { "td" };
            let end = if index == 0 { "th" } else { "td" };
            let _ = write!(html, "<{tag}>{cell}</{end}>");
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div></section>");
}

fn level_name(level: Option<f64>) -> String {
    level.map_or("all".to_owned(), plain)
}

fn verdict_mark(passed: bool) -> String {
    match passed {
        true => "<span class=\"mark passed\">&#10003; passed</span>".to_owned(),
        false => "<span class=\"mark missed\">&#10007; missed</span>".to_owned(),
    }
}

fn summary_table(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let label = if raw.run.level_label.is_empty() {
        "level"
    } else {
        &raw.run.level_label
    };
    let has_calls = levels.iter().any(|level| level.attempted > 0.0);
    let rows: Vec<Vec<String>> = levels
        .iter()
        .map(|level| {
            let mut row = vec![level_name(level.level)];
            if has_calls {
                row.extend(
                    [
                        level.attempted,
                        level.established,
                        level.completed,
                        level.failed,
                    ]
                    .map(plain),
                );
                row.push(plain(level.peak));
            } else {
                row.extend(
                    [
                        level.registrations,
                        level.registered,
                        level.registrations_failed,
                    ]
                    .map(plain),
                );
            }
            row.extend([level.p50, level.p99, level.max, level.cpu_us].map(number));
            row.push(verdict_mark(level.passed));
            row
        })
        .collect();
    let mut columns = vec![label];
    if has_calls {
        columns.extend([
            "attempted",
            "established",
            "completed",
            "failed",
            "peak open",
        ]);
    } else {
        columns.extend(["attempted", "accepted", "failed"]);
    }
    columns.extend([
        "response p50, ms",
        "response p99, ms",
        "response max, ms",
        "CPU of subject, us each",
        "verdict",
    ]);
    let note = match levels.iter().map(|level| level.repetitions).max() {
        Some(repetitions) if repetitions > 1 => format!(
            "Counts: mean of {repetitions} runs a level. Response times: quantiles over the attempts of all of them."
        ),
        _ => String::new(),
    };
    table(html, "Result", &note, &columns, &rows);
}

fn reference_table(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    let Some(reference) = &raw.run.reference else {
        return;
    };
    let rows: Vec<Vec<String>> = beside(reference, levels)
        .iter()
        .map(|row| {
            let figure = match row.figure.as_str() {
                "capacity" => "highest level within every threshold".to_owned(),
                name if name.ends_with(" ms") => format!("answered in {name}"),
                name => name.replace('_', " "),
            };
            vec![
                level_name(row.level),
                escape(&figure),
                plain(row.theirs),
                escape(&row.ours_text()),
            ]
        })
        .collect();
    let columns = [label(raw), "figure", "there", "here"];
    table(html, "Beside the study", &reference.source, &columns, &rows);
}

/// What the sweep's value is.
fn label(raw: &RawResults) -> &str {
    match raw.run.level_label.as_str() {
        "" => "level",
        label => label,
    }
}

fn checks_table(html: &mut String, raw: &RawResults) {
    let rows: Vec<Vec<String>> = raw
        .run
        .trials
        .iter()
        .flat_map(|trial| trial.checks.iter().map(move |check| (trial, check)))
        .filter(|(_, check)| raw.run.trials.len() == 1 || !check.holds)
        .map(|(trial, check)| {
            vec![
                trial_name(trial),
                escape(&check.name),
                plain(check.limit),
                number(check.measured),
                verdict_mark(check.holds),
            ]
        })
        .collect();
    let judged = raw
        .run
        .trials
        .iter()
        .map(|trial| trial.checks.len())
        .sum::<usize>();
    let note = match raw.run.trials.len() {
        1 => String::new(),
        _ => format!("Of {judged} checks, these were missed."),
    };
    table(
        html,
        "Thresholds",
        &note,
        &["trial", "threshold", "limit", "measured", "verdict"],
        &rows,
    );
}

fn trial_name(trial: &TrialRecord) -> String {
    match trial.level {
        Some(level) => format!("{} / run {}", plain(level), trial.repetition + 1),
        None => format!("run {}", trial.repetition + 1),
    }
}

fn classes_table(html: &mut String, raw: &RawResults, levels: &[LevelSummary]) {
    if levels
        .iter()
        .all(|level| level.classes.iter().all(|count| *count == 0.0))
    {
        return;
    }
    let rows: Vec<Vec<String>> = levels
        .iter()
        .map(|level| {
            let mut row = vec![level_name(level.level)];
            row.extend(level.classes.iter().map(|count| format!("{:.0}", count)));
            row.push(format!("{:.0}", level.dropped));
            row
        })
        .collect();
    let mut columns = vec![if raw.run.level_label.is_empty() {
        "level"
    } else {
        &raw.run.level_label
    }];
    columns.extend(CLASS_NAMES);
    columns.push("dropped");
    let note = "Attempts per class of response time in milliseconds, mean of the runs, rounded. Dropped: started, and never answered with 2xx.";
    table(html, "Response-time repartition", note, &columns, &rows);
}

fn outcomes_table(html: &mut String, raw: &RawResults) {
    let present: Vec<Outcome> = Outcome::ALL
        .into_iter()
        .filter(|outcome| {
            let mut counts = raw
                .run
                .trials
                .iter()
                .flat_map(|trial| &trial.details.outcomes);
            counts.any(|(of, _)| of == outcome)
        })
        .collect();
    let rows: Vec<Vec<String>> = raw
        .run
        .trials
        .iter()
        .map(|trial| {
            let count = |outcome: &Outcome| {
                let found = trial.details.outcomes.iter().find(|(of, _)| of == outcome);
                found.map_or(0, |(_, count)| *count).to_string()
            };
            let statuses: Vec<String> = trial
                .details
                .statuses
                .iter()
                .map(|(status, count)| format!("{status}: {count}"))
                .collect();
            let mut row = vec![trial_name(trial)];
            row.extend(present.iter().map(count));
            row.push(statuses.join(", "));
            row.push(
                trial
                    .leaks
                    .map_or("&ndash;".to_owned(), |leaks| leaks.to_string()),
            );
            row
        })
        .collect();
    let mut columns = vec!["trial"];
    columns.extend(present.iter().map(|outcome| outcome.name()));
    columns.extend(["refused with", "still held"]);
    table(html, "Outcomes", "", &columns, &rows);
}

fn media_table(html: &mut String, levels: &[LevelSummary], label: &str) {
    let rows: Vec<Vec<String>> = levels
        .iter()
        .filter(|level| level.streams > 0.0)
        .map(|level| {
            let mut row = vec![
                level_name(level.level),
                plain(level.streams),
                plain(level.packets),
            ];
            row.extend(
                [
                    level.lost_percent,
                    level.jitter_mean,
                    level.jitter_p99,
                    level.jitter_max,
                    level.one_way,
                    level.round_trip,
                    level.mos,
                    level.correlation,
                    level.level_db,
                ]
                .map(number),
            );
            row
        })
        .collect();
    let columns = [
        if label.is_empty() { "level" } else { label },
        "streams",
        "packets",
        "lost, %",
        "jitter mean, ms",
        "p99",
        "max",
        "one way, ms",
        "round trip, ms",
        "MOS",
        "correlation",
        "level, dB",
    ];
    let note = "Jitter as RFC 3550, over received packets. Delays: the worst stream's mean. Correlation and level: the worst call that was listened to.";
    table(html, "Media", note, &columns, &rows);
}

fn series(name: &str, colour: usize, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        points,
        colour: PALETTE[colour % PALETTE.len()],
        scatter: false,
    }
}

fn charts(html: &mut String, results: &Results, levels: &[LevelSummary]) {
    let raw = &results.raw;
    let label = &raw.run.level_label;
    let mut charts = Vec::new();
    if levels.len() > 1 {
        let over = |value: &dyn Fn(&LevelSummary) -> Option<f64>| -> Vec<(f64, f64)> {
            levels
                .iter()
                .filter_map(|level| Some((level.level?, value(level)?)))
                .collect()
        };
        charts.push(classes_chart(label, levels));
        let limit = |name: &str| {
            let checks = raw.run.trials.first().map(|trial| &trial.checks);
            checks.and_then(|checks| {
                checks
                    .iter()
                    .find(|check| check.name == name)
                    .map(|check| check.limit)
            })
        };
        charts.push(
            Chart::lines(
                "Response time",
                label,
                "milliseconds",
                vec![
                    series("median", 0, over(&|level| level.p50)),
                    series("99th percentile", 1, over(&|level| level.p99)),
                ],
            )
            .with_limit(limit("response_p99_ms"), "limit of the 99th percentile"),
        );
        charts.push(Chart::lines(
            "Jitter",
            label,
            "milliseconds",
            vec![
                series("mean", 0, over(&|level| level.jitter_mean)),
                series("99th percentile", 1, over(&|level| level.jitter_p99)),
            ],
        ));
        charts.push(Chart::lines(
            "CPU time of the subject",
            label,
            "microseconds each",
            vec![series("per call", 2, over(&|level| level.cpu_us))],
        ));
    }
    charts.extend(plots::charts(results));
    charts.push(scatter(raw));
    charts.push(open_calls(raw));
    html.push_str("<section class=\"charts\"><h2>Plots</h2>");
    for chart in charts.iter().filter(|chart| !chart.is_empty()) {
        let _ = write!(html, "<figure><figcaption>{}", escape(chart.title()));
        for (name, colour) in chart.legend() {
            let _ = write!(
                html,
                "<span class=\"key\"><i style=\"background:{colour}\"></i>{}</span>",
                escape(name)
            );
        }
        let _ = write!(html, "</figcaption>{}</figure>", chart.svg());
    }
    html.push_str("</section>");
}

fn classes_chart(label: &str, levels: &[LevelSummary]) -> Chart {
    let categories = levels.iter().map(|level| level_name(level.level)).collect();
    let stacks = CLASS_NAMES
        .iter()
        .enumerate()
        .map(|(class, name)| Stack {
            name: format!("{name} ms"),
            values: levels.iter().map(|level| level.classes[class]).collect(),
            colour: CLASSES[class],
        })
        .collect();
    Chart::stacks(
        "Response-time repartition",
        label,
        "attempts",
        categories,
        stacks,
    )
}

/// Each answered attempt of the last trial (at most some thousand dots).
fn scatter(raw: &RawResults) -> Chart {
    const DOTS: usize = 3_000;
    let last = raw.run.trials.len().saturating_sub(1) as u32;
    let kinds = [
        Kind::Call,
        Kind::Registration,
        Kind::Refresh,
        Kind::Deregistration,
    ];
    let all: Vec<(f64, f64)> = raw
        .attempts
        .iter()
        .filter(|attempt| attempt.trial == last && kinds.contains(&attempt.kind))
        .filter_map(|attempt| Some((attempt.due as f64 / 1e9, attempt.response_ms()?)))
        .collect();
    let stride = all.len().div_ceil(DOTS).max(1);
    let dots = Series {
        scatter: true,
        ..series("one attempt", 0, all.into_iter().step_by(stride).collect())
    };
    Chart::lines(
        "Response time of each attempt, last trial",
        "seconds since the start",
        "milliseconds",
        vec![dots],
    )
}

/// Calls open over time, last trial.
fn open_calls(raw: &RawResults) -> Chart {
    const POINTS: usize = 1_000;
    let last = raw.run.trials.len().saturating_sub(1) as u32;
    let mut changes: Vec<(u64, f64)> = Vec::new();
    for attempt in &raw.attempts {
        let counted = attempt.trial == last && matches!(attempt.kind, Kind::Call | Kind::Stream);
        if let (true, Some(from), Some(to)) = (counted, attempt.established, attempt.ended) {
            changes.extend([(from, 1.0), (to, -1.0)]);
        }
    }
    changes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut open = 0.0;
    let all: Vec<(f64, f64)> = changes
        .iter()
        .map(|(at, change)| {
            open += change;
            (*at as f64 / 1e9, open)
        })
        .collect();
    let stride = all.len().div_ceil(POINTS).max(1);
    let points = all.into_iter().step_by(stride).collect();
    Chart::lines(
        "Calls open, last trial",
        "seconds since the start",
        "calls",
        vec![series("open", 2, points)],
    )
}

fn surroundings(html: &mut String, raw: &RawResults) {
    let rows: Vec<Vec<String>> = raw
        .run
        .trials
        .iter()
        .filter_map(|trial| {
            let around = trial.surroundings.as_ref()?;
            let dropped = around
                .receive_buffer_errors_after
                .saturating_sub(around.receive_buffer_errors_before);
            Some(vec![
                trial_name(trial),
                plain(trial.seconds),
                number(trial.details.lateness_ms[0]),
                number(trial.details.lateness_ms[1]),
                number(trial.details.lateness_ms[2]),
                trial.details.not_started.to_string(),
                plain(around.noise.p99_us / 1e3),
                plain(around.noise.max_us / 1e3),
                plain(around.noise.lost_share * 100.0),
                dropped.to_string(),
                number(around.subject_cpu_seconds),
                plain(around.generator_cpu_seconds),
            ])
        })
        .collect();
    let columns = [
        "trial",
        "seconds",
        "generator late p50, ms",
        "p99",
        "max",
        "not started",
        "host noise p99, ms",
        "max",
        "lost, %",
        "RcvbufErrors",
        "CPU of subject, s",
        "CPU of generator, s",
    ];
    let note = "What else happened while it was measured. A generator that is late, a noisy host or datagrams dropped by the kernel belong to the result.";
    table(html, "Generator and host", note, &columns, &rows);
    let remarks: Vec<String> = raw
        .run
        .trials
        .iter()
        .flat_map(|trial| {
            trial
                .remarks
                .iter()
                .map(move |text| format!("{}: {text}", trial_name(trial)))
        })
        .collect();
    if !remarks.is_empty() {
        html.push_str("<section><h2>Remarks</h2><ul>");
        for remark in remarks {
            let _ = write!(html, "<li>{}</li>", escape(&remark));
        }
        html.push_str("</ul></section>");
    }
}

fn plan(html: &mut String, raw: &RawResults) {
    let _ = write!(
        html,
        "<section><details><summary>The experiment file, with its overrides</summary><pre>{}</pre></details>\
         <p class=\"note\">Raw results beside this page: run.json, attempts.ndjson, streams.ndjson; tables: levels.csv, \
         attempts.csv, streams.csv.</p></section>",
        escape(&raw.run.plan)
    );
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_767_225_599), "2025-12-31 23:59:59 UTC");
    }
}
