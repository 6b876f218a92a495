//! Plots over the levels and their arrangement on the page.

use super::chart::{CLASSES, Chart, PALETTE, Series, Stack, escape};
use super::data::RunResults;
use super::level_summary::LevelSummary;
use super::marks::MarkLinks;
use super::plots;
use super::sources::figure as record_of;
use super::tables::level_name;
use crate::figures::CLASS_NAMES;
use crate::raw::RawResults;
use crate::record::AttemptKind;
use crate::records_page::{RECORDS, href, with_links};
use std::fmt::Write;

/// Title of the plot of response-time classes.
const CLASSES_TITLE: &str = "Calls by class of response time";

fn series(name: &str, colour: usize, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        points,
        colour: PALETTE[colour % PALETTE.len()],
        scatter: false,
        spread: Vec::new(),
        links: MarkLinks::None,
    }
}

/// A figure over the levels that are judged, with its intervals and the records of both.
fn over_levels(name: &str, colour: usize, figure: &str, levels: &[LevelSummary]) -> Series {
    let judged = || {
        let all = levels.iter().enumerate();
        all.filter(|(_, level)| level.is_judged())
    };
    let points =
        judged().filter_map(|(place, level)| Some((place, (level.level?, level.figure(figure)?))));
    let (places, points): (Vec<usize>, Vec<(f64, f64)>) = points.unzip();
    let ends = |(_, level): (usize, &LevelSummary)| {
        let interval = level.intervals.get(figure)?;
        Some((level.level?, interval.low?.max(0.0), interval.high?))
    };
    let links = places
        .into_iter()
        .map(|place| href(&record_of(place, figure)));
    Series {
        spread: judged().filter_map(ends).collect(),
        links: MarkLinks::Each(links.collect()),
        ..series(name, colour, points)
    }
}

/// All plots of the run except the response-time distribution, which is written separately.
pub(super) fn write(html: &mut String, results: &RunResults, levels: &[LevelSummary]) {
    let raw = &results.raw;
    let label = &raw.run.level_label;
    let mut charts = Vec::new();
    if levels.len() > 1 {
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
                    over_levels("median", 0, "response_p50_ms", levels),
                    over_levels("99th percentile", 1, "response_p99_ms", levels),
                ],
            )
            .with_limit(limit("response_p99_ms"), "limit of the 99th percentile"),
        );
        charts.push(Chart::lines(
            "Jitter",
            label,
            "milliseconds",
            vec![
                over_levels("mean", 0, "jitter_mean_ms", levels),
                over_levels("99th percentile", 1, "jitter_p99_ms", levels),
            ],
        ));
        charts.push(Chart::lines(
            "CPU time of the SUT",
            label,
            "\u{b5}s each",
            vec![over_levels("per call", 2, "cpu_us_each", levels)],
        ));
    }
    charts.extend(plots::charts(results));
    charts.push(scatter(results));
    charts.push(open_calls(results));
    let charts: Vec<&Chart> = charts.iter().filter(|chart| !chart.is_empty()).collect();
    if charts.is_empty() {
        return;
    }
    let left_out = match levels.iter().all(LevelSummary::is_judged) {
        true => "",
        false => {
            " Levels that are not judged, because their load was not the planned one, are not drawn."
        }
    };
    let _ = write!(
        html,
        "<section><h2>Plots</h2><p class=\"note\">Whiskers over levels: 95 % confidence intervals, if there are enough samples.{left_out}</p><div class=\"charts\">"
    );
    for chart in charts {
        figure(html, chart);
    }
    html.push_str("</div></section>");
}

/// The response-time distribution over the levels, across the page.
pub(super) fn response_distribution(
    html: &mut String,
    results: &RunResults,
    levels: &[LevelSummary],
) {
    let chart = classes_chart(&results.raw.run.level_label, levels).with_full_width();
    if levels.len() > 1 && !chart.is_empty() {
        html.push_str("<section>");
        figure(html, &chart);
        html.push_str("</section>");
    }
}

fn figure(html: &mut String, chart: &Chart) {
    let class = if chart.is_wide() {
        " class=\"wide\""
    } else {
        ""
    };
    let _ = write!(html, "<figure{class}><figcaption>{}", escape(chart.title()));
    for (name, colour) in chart.legend() {
        let _ = write!(
            html,
            "<span class=\"key\"><i style=\"background:{colour}\"></i>{}</span>",
            match chart.record_of(name) {
                Some(record) => with_links(name, |number| format!(
                    "<a href=\"{}\">{number}</a>",
                    escape(record)
                )),
                None => escape(name),
            }
        );
    }
    let _ = write!(
        html,
        "<a class=\"key\" href=\"{RECORDS}#{}\">records</a></figcaption>{}</figure>",
        records_of(chart.title()),
        chart.html()
    );
}

/// Address of the records that a plot draws.
fn records_of(title: &str) -> &'static str {
    match title {
        "Response time" | "Jitter" | "CPU time of the SUT" | CLASSES_TITLE => {
            "computed.json/levels"
        }
        "Jitter per stream" => "streams.ndjson/1",
        "Processor time" => "run.json/trials",
        _ => "attempts.ndjson/1",
    }
}

fn classes_chart(label: &str, levels: &[LevelSummary]) -> Chart {
    let categories = levels.iter().map(|level| {
        let name = level_name(level.level);
        match level.is_judged() {
            true => name,
            false => format!("{name} (not judged)"),
        }
    });
    // Answers to another load than the planned one say nothing of the SUT.
    let count = |level: &LevelSummary, class: usize| match level.is_judged() {
        true => level.classes[class],
        false => 0.0,
    };
    let stacks = CLASS_NAMES
        .iter()
        .enumerate()
        .map(|(class, name)| Stack {
            name: format!("{} ms", name.replace(">=", "\u{2265}")),
            values: levels.iter().map(|level| count(level, class)).collect(),
            colour: CLASSES[class],
            links: MarkLinks::Each(
                (0..levels.len())
                    .map(|place| href(&record_of(place, &format!("{name} ms"))))
                    .collect(),
            ),
        })
        .collect();
    Chart::stacks(
        CLASSES_TITLE,
        label,
        "attempts",
        categories.collect(),
        stacks,
    )
}

/// Number of the last trial that is no short one.
fn last_full(raw: &RawResults) -> Option<u32> {
    let mut trials = raw.run.trials.iter().rev();
    trials.find(|trial| !trial.short).map(|trial| trial.trial)
}

/// Response time of each answered attempt of the last trial (at most some thousand dots).
fn scatter(results: &RunResults) -> Chart {
    const DOTS: usize = 3_000;
    let last = last_full(&results.raw);
    let kinds = [
        AttemptKind::Call,
        AttemptKind::Registration,
        AttemptKind::Refresh,
        AttemptKind::Reregistration,
        AttemptKind::Deregistration,
    ];
    let all: Vec<((f64, f64), usize)> = results
        .numbered_attempts()
        .filter(|(attempt, _)| Some(attempt.trial) == last && kinds.contains(&attempt.kind))
        .filter_map(|(attempt, line)| {
            Some(((attempt.due as f64 / 1e9, attempt.response_ms()?), line))
        })
        .collect();
    let stride = all.len().div_ceil(DOTS).max(1);
    let shown = all.into_iter().step_by(stride);
    let (points, links): (Vec<_>, Vec<_>) = shown
        .map(|(point, line)| (point, href(&format!("attempts.ndjson:{line}"))))
        .unzip();
    let dots = Series {
        scatter: true,
        links: MarkLinks::Each(links),
        ..series("one attempt", 0, points)
    };
    Chart::lines(
        "Response time of each attempt, last trial",
        "seconds since the start",
        "milliseconds",
        vec![dots],
    )
}

/// Concurrent calls over time, last trial.
fn open_calls(results: &RunResults) -> Chart {
    const POINTS: usize = 1_000;
    let raw = &results.raw;
    let last = last_full(raw);
    let mut changes: Vec<(u64, f64)> = Vec::new();
    for attempt in &raw.attempts {
        let counted = Some(attempt.trial) == last
            && matches!(attempt.kind, AttemptKind::Call | AttemptKind::Stream);
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
    let trial = last.and_then(|trial| results.place(trial));
    let open = Series {
        links: trial.map_or(MarkLinks::None, |place| {
            MarkLinks::Whole(href(&format!("run.json#/trials/{place}")))
        }),
        ..series("open", 2, points)
    };
    Chart::lines(
        "Calls open, last trial",
        "seconds since the start",
        "calls",
        vec![open],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{LinkRecord, TrialRecord};
    use crate::report::summarise;

    #[test]
    fn levels_that_are_not_judged_are_not_drawn() {
        let trial = |number: u32, level: f64, faults: Vec<String>| {
            let mut trial = TrialRecord {
                trial: number,
                level: Some(level),
                links: vec![LinkRecord {
                    faults,
                    ..LinkRecord::default()
                }],
                ..TrialRecord::default()
            };
            trial.figures.response_ms.p50 = Some(level);
            trial.details.response_classes[0] = 7;
            trial
        };
        let slow = vec!["up: the link cannot keep up".to_owned()];
        let levels = summarise(&[trial(0, 300.0, Vec::new()), trial(1, 900.0, slow)]);
        let median = over_levels("median", 0, "response_p50_ms", &levels);
        assert_eq!(median.points, [(300.0, 300.0)]);
        let html = classes_chart("calls", &levels).html();
        assert!(html.contains("900 (not judged)"), "{html}");
        assert!(!html.contains("300 (not judged)"), "{html}");
    }
}
