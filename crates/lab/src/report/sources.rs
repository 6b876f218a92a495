//! `computed.json`: every computed number of a report, unrounded, with its rule and the records that it was computed
//! from.
//!
//! The report shows these numbers and links to them; the file is computed from the records alone.

use super::bounds::BoundCheck;
use super::data::{LevelRecords, RunResults, receive_buffer_errors};
use super::level_summary::LevelSummary;
use super::rules::{LARGEST, Rule, SMALLEST, SUM, rule};
use super::study::{capacity_of, compare_with_study};
use super::{protection, tables};
use crate::experiment::{CAPACITY, PEAK};
use crate::figures::{self, CLASS_NAMES};
use crate::raw::{RunRecord, TrialRecord};
use crate::record::AttemptOutcome;
use crate::records_page::segment;
use serde_json::{Map, Value, json};

/// The file of computed numbers.
pub(super) const FIGURES: &str = "computed.json";
/// Version of its format.
const FORMAT: u32 = 1;

/// Reference to the figure of a level, which the page shows: its value.
pub(crate) fn figure(place: usize, name: &str) -> String {
    format!("{}/value", entry(place, name))
}

/// Reference to the 95 % interval of a figure of a level.
pub(super) fn interval(place: usize, name: &str) -> String {
    format!("{}/interval", entry(place, name))
}

/// Reference to a figure of a level with its rule and its records.
fn entry(place: usize, name: &str) -> String {
    format!("{FIGURES}#/levels/{place}/figures/{}", segment(name))
}

/// Reference to a number of `computed.json` by its pointer.
pub(crate) fn computed(pointer: &str) -> String {
    format!("{FIGURES}#{pointer}")
}

/// Names of the figures by RFC 6076 in `computed.json`, and their values.
pub(super) fn sip_figures(level: &LevelSummary) -> [(&'static str, Option<f64>); 10] {
    let sip = &level.sip;
    [
        (
            "sip.session_request_delay_ms",
            sip.session_request_delay_ms.mean,
        ),
        (
            "sip.failed_session_request_delay_ms",
            sip.failed_session_request_delay_ms.mean,
        ),
        (
            "sip.session_disconnect_delay_ms",
            sip.session_disconnect_delay_ms.mean,
        ),
        ("sip.session_duration_s", sip.session_duration_s.mean),
        (
            "sip.session_establishment_percent",
            sip.session_establishment_percent,
        ),
        (
            "sip.session_establishment_effectiveness_percent",
            sip.session_establishment_effectiveness_percent,
        ),
        (
            "sip.ineffective_sessions_percent",
            sip.ineffective_sessions_percent,
        ),
        (
            "sip.session_completion_percent",
            sip.session_completion_percent,
        ),
        (
            "sip.registration_request_delay_ms",
            sip.registration_request_delay_ms.mean,
        ),
        (
            "sip.ineffective_registrations_percent",
            sip.ineffective_registrations_percent,
        ),
    ]
}

/// The content of `computed.json`.
pub(super) fn all(results: &RunResults, levels: &[LevelSummary], bounds: &[BoundCheck]) -> Value {
    let run = &results.raw.run;
    let records = results.levels();
    let of_levels: Vec<Value> = levels
        .iter()
        .zip(&records)
        .map(|(level, records)| of_level(results, level, records))
        .collect();
    let mut all = json!({
        "format": FORMAT,
        "about": "Computed from run.json, attempts.ndjson, streams.ndjson and measures.ndjson; lab report writes it again.",
        "totals": totals(results),
        "capacity": capacity(run, levels),
        "levels": of_levels,
        "thresholds": thresholds(results),
        "bounds": of_bounds(run, levels, bounds),
        "study": study(run, levels),
        "protection": of_protection(run, levels),
        "outcomes": outcomes(results, &records),
        "host": run.trials.iter().map(|trial| host(results, trial)).collect::<Vec<Value>>(),
    });
    // Records that a run does not have are left out.
    if let Value::Object(map) = &mut all {
        map.retain(|_, value| match value {
            Value::Array(list) => !list.is_empty(),
            other => !other.is_null(),
        });
    }
    all
}

/// A reference to a value of a trial.
fn of_trial(place: usize, pointer: &str) -> String {
    format!("run.json#/trials/{place}{pointer}")
}

/// References to lines, consecutive ones as a range.
fn lines(file: &str, lines: &[usize]) -> Vec<String> {
    let runs = lines.chunk_by(|a, b| a + 1 == *b);
    runs.filter_map(|run| match (run.first()?, run.last()?) {
        (first, last) if first == last => Some(format!("{file}:{first}")),
        (first, last) => Some(format!("{file}:{first}-{last}")),
    })
    .collect()
}

fn of_level(results: &RunResults, level: &LevelSummary, records: &LevelRecords<'_>) -> Value {
    let classes = CLASS_NAMES.map(|name| format!("{name} ms"));
    let names = LevelSummary::FIGURES
        .iter()
        .map(|name| (*name).to_owned())
        .chain(classes)
        .chain(level.measures.keys().cloned());
    let mut figures = Map::new();
    let mut add = |name: String, value: f64| {
        let (rule, from) = sources(&name, results, records);
        let mut entry = json!({ "value": value, "rule": rule, "from": from });
        if let Some(interval) = level.intervals.get(&name) {
            entry["interval"] = json!(interval);
        }
        figures.insert(name, entry);
    };
    for name in names {
        if let Some(value) = level.figure(&name) {
            add(name, value);
        }
    }
    for (name, value) in sip_figures(level) {
        if let Some(value) = value {
            add(name.to_owned(), value);
        }
    }
    json!({
        "level": level.level,
        "repetitions": level.repetitions,
        "from": records.all.places.iter().map(|place| of_trial(*place, "")).collect::<Vec<String>>(),
        "sums": sums(records),
        "figures": figures,
    })
}

/// Number of attempts and of streams of a level over all its trials.
fn sums(records: &LevelRecords<'_>) -> Value {
    let all = &records.all;
    let from = |pointers: &[&str]| -> Vec<String> {
        let places = all.places.iter();
        places
            .flat_map(|place| pointers.iter().map(|p| of_trial(*place, p)))
            .collect()
    };
    let attempts: u64 = all.trials.iter().map(attempts_of).sum();
    let streams: u64 = all.trials.iter().map(|trial| trial.details.streams).sum();
    json!({
        "attempts": {
            "value": attempts,
            "rule": SUM,
            "from": from(&["/figures/calls/attempted", "/details/registrations/attempted"]),
        },
        "streams": { "value": streams, "rule": SUM, "from": from(&["/details/streams"]) },
    })
}

/// Calls and registrations that were due in a trial.
fn attempts_of(trial: &TrialRecord) -> u64 {
    trial.figures.calls.attempted + trial.details.registrations.attempted
}

/// Rule and records of a figure of a level.
fn sources(name: &str, results: &RunResults, records: &LevelRecords<'_>) -> (String, Vec<String>) {
    let all = &records.all;
    let of_trials = |pointers: &[String]| -> Vec<String> {
        let each = all.places.iter();
        each.flat_map(|place| pointers.iter().map(|pointer| of_trial(*place, pointer)))
            .collect()
    };
    let attempts = || lines("attempts.ndjson", all.attempt_lines);
    match rule(name) {
        Rule::Trials(rule, pointer) => (rule.to_owned(), of_trials(&[pointer.to_owned()])),
        Rule::Element(rule, list, n) => (rule.to_owned(), of_trials(&[format!("{list}/{n}")])),
        Rule::Several(rule, pointers) => {
            let pointers: Vec<String> = pointers.iter().map(|p| (*p).to_owned()).collect();
            (rule.to_owned(), of_trials(&pointers))
        }
        Rule::Response(q) => response(q, records),
        Rule::Attempts(rule) => (rule.to_owned(), attempts()),
        Rule::AttemptsAnd(rule, pointer) => {
            let mut from = of_trials(&[pointer.to_owned()]);
            from.extend(attempts());
            (rule.to_owned(), from)
        }
        Rule::Streams(rule) => (rule.to_owned(), lines("streams.ndjson", all.stream_lines)),
        Rule::Samples => {
            let mine: Vec<usize> = results
                .raw
                .measures
                .iter()
                .zip(1..)
                .filter(|(m, _)| m.figure == name && all.trials.iter().any(|t| t.trial == m.trial))
                .map(|(_, line)| line)
                .collect();
            let rule = "median of all samples; mean if there are fewer than ten";
            (rule.to_owned(), lines("measures.ndjson", &mine))
        }
    }
}

/// Rule and records of a quantile of the response times: the attempts that decide it first, then all.
fn response(q: f64, records: &LevelRecords<'_>) -> (String, Vec<String>) {
    let all = &records.all;
    let main = figures::main_attempts(all.attempts);
    let mut main = main.into_iter().peekable();
    let mut timed: Vec<(f64, usize)> = Vec::new();
    for (attempt, line) in all.attempts.iter().zip(all.attempt_lines) {
        if main.next_if(|next| std::ptr::eq(*next, attempt)).is_some()
            && let Some(ms) = attempt.response_ms()
        {
            timed.push((ms, *line));
        }
    }
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let place = q * timed.len().saturating_sub(1) as f64;
    let ends = [place.floor() as usize, place.ceil() as usize];
    let mut from = Vec::new();
    for (_, line) in ends.iter().filter_map(|end| timed.get(*end)) {
        let reference = format!("attempts.ndjson:{line}");
        if !from.contains(&reference) {
            from.push(reference);
        }
    }
    from.extend(lines("attempts.ndjson", all.attempt_lines));
    let rule = format!(
        "quantile {q} of the response times (established less sent) of {} attempts; the first lines named are the values at or around it",
        timed.len()
    );
    (rule, from)
}

/// Sums over all trials.
fn totals(results: &RunResults) -> Value {
    let total = |figure: &str, read: &dyn Fn(&TrialRecord) -> u64| {
        let trials = results.raw.run.trials.iter();
        let sum: u64 = trials.clone().map(read).sum();
        let from: Vec<String> = trials
            .filter_map(|trial| results.place(trial.trial))
            .flat_map(|place| {
                ["/figures/calls", "/details/registrations"]
                    .map(|counts| of_trial(place, &format!("{counts}/{figure}")))
            })
            .collect();
        json!({ "value": sum, "rule": SUM, "from": from })
    };
    json!({
        "attempted": total("attempted", &attempts_of),
        "failed": total("failed", &|t| t.figures.calls.failed + t.details.registrations.failed),
    })
}

fn capacity(run: &RunRecord, levels: &[LevelSummary]) -> Value {
    let found = capacity_of(run, levels);
    let from: Vec<String> = match run.search {
        Some(_) => vec!["run.json#/search".to_owned()],
        None => (0..levels.len())
            .map(|place| computed(&format!("/levels/{place}/level")))
            .collect(),
    };
    json!({
        "value": found.value,
        "rule": "highest level within every threshold, and none below it that is not",
        "from": from,
        "interval": found.interval,
        "remark": found.remark,
    })
}

/// The worst trial of each threshold, as the page shows it.
fn thresholds(results: &RunResults) -> Vec<Value> {
    let rows = tables::threshold_rows(&results.raw.run.trials).into_iter();
    rows.map(|row| {
        let from: Vec<String> = row
            .all
            .iter()
            .filter_map(|(trial, place)| {
                let trial = results.place(trial.trial)?;
                Some(of_trial(trial, &format!("/checks/{place}/measured")))
            })
            .collect();
        json!({
            "name": row.name,
            "limit": row.worst.limit,
            "worst": {
                "value": row.worst.measured,
                "rule": match tables::is_lower_bound(row.name) {
                    true => SMALLEST,
                    false => "largest, regardless of its sign",
                },
                "from": from,
            },
            "in": { "level": row.trial.level, "run": row.trial.repetition + 1 },
            "failed": { "trials": row.failed, "of": row.all.len() },
            "not_measured": row.open,
        })
    })
    .collect()
}

fn of_bounds(run: &RunRecord, levels: &[LevelSummary], bounds: &[BoundCheck]) -> Vec<Value> {
    let with_source = |bound: &BoundCheck| {
        let mut value = json!(bound);
        let mut from = match bound.name.as_str() {
            CAPACITY => vec![computed("/capacity")],
            PEAK => vec!["run.json#/peak".to_owned()],
            name => level_figure(levels, bound.at, name),
        };
        if run.peak.is_some() && bound.name != PEAK {
            from.push("run.json#/peak".to_owned());
        }
        from.push("run.json#/bounds".to_owned());
        value["from"] = json!(from);
        value
    };
    bounds.iter().map(with_source).collect()
}

/// Reference to a figure of the level with this value; none if it was not measured.
fn level_figure(levels: &[LevelSummary], at: Option<f64>, name: &str) -> Vec<String> {
    let place = levels.iter().position(|level| level.level == at);
    let measured = |place: &usize| levels.get(*place).is_some_and(|l| l.figure(name).is_some());
    let place = place.filter(measured).into_iter();
    place.map(|place| entry(place, name)).collect()
}

fn study(run: &RunRecord, levels: &[LevelSummary]) -> Vec<Value> {
    let rows = compare_with_study(run, levels).into_iter();
    rows.map(|row| {
        let mut from = vec!["run.json#/study".to_owned()];
        from.extend(match row.figure.as_str() {
            CAPACITY if levels.len() > 1 => vec![computed("/capacity")],
            name => level_figure(levels, row.level, name),
        });
        json!({
            "level": row.level,
            "figure": row.figure,
            "study": row.study_value,
            "study_most": row.study_most,
            "unit": row.unit,
            "here": row.run_value,
            "interval": row.interval,
            "remark": row.remark,
            "from": from,
        })
    })
    .collect()
}

fn of_protection(run: &RunRecord, levels: &[LevelSummary]) -> Vec<Value> {
    let Value::Array(mut rows) = protection::json(run, levels) else {
        return Vec::new();
    };
    for row in &mut rows {
        let at = row["kind"].as_f64();
        let names = ["cpu_us_each", "esp.call_kbit", protection::DELAY, "mos"];
        let mut from: Vec<String> = names
            .iter()
            .flat_map(|name| level_figure(levels, at, name))
            .collect();
        from.extend(level_figure(levels, Some(0.0), protection::DELAY));
        row["from"] = json!(from);
    }
    rows
}

/// Number of attempts with each outcome, by level and by trial.
fn outcomes(results: &RunResults, levels: &[LevelRecords<'_>]) -> Value {
    let of = |trials: &[TrialRecord]| {
        let mut counts = Map::new();
        for outcome in AttemptOutcome::ALL {
            let mut sum = 0;
            let mut from = Vec::new();
            for trial in trials {
                let mut list = trial.details.outcomes.iter().zip(0..);
                let found = list.find(|((of, _), _)| *of == outcome);
                if let (Some(((_, count), n)), Some(place)) = (found, results.place(trial.trial)) {
                    sum += count;
                    let n: usize = n;
                    from.push(of_trial(place, &format!("/details/outcomes/{n}/1")));
                }
            }
            let entry = json!({ "value": sum, "rule": SUM, "from": from });
            counts.insert(outcome.name().to_owned(), entry);
        }
        let places: Vec<usize> = trials
            .iter()
            .filter_map(|t| results.place(t.trial))
            .collect();
        let each = |pointer: &str| -> Vec<String> {
            places
                .iter()
                .map(|place| of_trial(*place, pointer))
                .collect()
        };
        let statuses: Map<String, Value> = tables::status_counts(trials)
            .into_iter()
            .map(|(status, count)| (status.to_string(), json!(count)))
            .collect();
        let leaks: Option<u64> = trials.iter().map(|trial| trial.leaks).sum();
        counts.insert(
            "refused_with".to_owned(),
            json!({ "counts": statuses, "rule": SUM, "from": each("/details/statuses") }),
        );
        counts.insert(
            "left_over".to_owned(),
            json!({ "value": leaks, "rule": SUM, "from": each("/leaks") }),
        );
        Value::Object(counts)
    };
    let trials = results.raw.run.trials.iter();
    json!({
        "levels": levels.iter().map(|level| of(level.all.trials)).collect::<Vec<Value>>(),
        "trials": trials.map(|trial| of(std::slice::from_ref(trial))).collect::<Vec<Value>>(),
    })
}

/// Conditions of a trial in the units of the page; `null` in a simulation.
fn host(results: &RunResults, trial: &TrialRecord) -> Value {
    let (Some(around), Some(place)) = (&trial.surroundings, results.place(trial.trial)) else {
        return Value::Null;
    };
    let entry = |value: Option<f64>, rule: &str, pointers: &[&str]| {
        let from: Vec<String> = pointers.iter().map(|p| of_trial(place, p)).collect();
        json!({ "value": value, "rule": rule, "from": from })
    };
    json!({
        "trial": trial.trial,
        "noise_p99_ms": entry(Some(around.noise.p99_us / 1e3), "divided by 1000", &["/surroundings/noise/p99_us"]),
        "noise_max_ms": entry(Some(around.noise.max_us / 1e3), "divided by 1000", &["/surroundings/noise/max_us"]),
        "noise_percent": entry(Some(around.noise.lost_share * 100.0), "times 100", &["/surroundings/noise/lost_share"]),
        "receive_buffer_errors": entry(
            Some(receive_buffer_errors(around) as f64),
            "second less first",
            &["/surroundings/receive_buffer_errors_before", "/surroundings/receive_buffer_errors_after"],
        ),
        "subject_bytes_each": entry(
            tables::bytes_each(trial),
            "first by the sum of the others",
            &[
                "/surroundings/subject_grew_bytes",
                "/figures/calls/established",
                "/details/registrations/established",
            ],
        ),
    })
}

/// The place of the level with the largest, or smallest, value of a figure: the one that a tile shows.
pub(super) fn extreme(levels: &[LevelSummary], name: &str, how: &str) -> Option<(usize, f64)> {
    let values = levels
        .iter()
        .enumerate()
        .filter_map(|(place, level)| Some((place, level.figure(name)?)));
    values.reduce(|a, b| {
        let better = if how == LARGEST { b.1 > a.1 } else { b.1 < a.1 };
        if better { b } else { a }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_lines_are_one_reference() {
        assert_eq!(
            lines("a.ndjson", &[1, 2, 3, 7, 9, 10]),
            ["a.ndjson:1-3", "a.ndjson:7", "a.ndjson:9-10"]
        );
        assert!(lines("a.ndjson", &[]).is_empty());
    }

    #[test]
    fn worst_level_is_found() {
        let levels = [1.0, 3.0, 2.0].map(|p99| LevelSummary {
            p99: Some(p99),
            ..LevelSummary::default()
        });
        assert_eq!(extreme(&levels, "response_p99_ms", LARGEST), Some((1, 3.0)));
        assert_eq!(
            extreme(&levels, "response_p99_ms", SMALLEST),
            Some((0, 1.0))
        );
        assert_eq!(extreme(&levels, "mos", SMALLEST), None);
    }
}
