//! Tables for the terminal.

use crate::decimal::{counted, plain};
use crate::error::RunVerdict;
use crate::figures::ThresholdCheck;
use crate::not_judged::{NOT_MEASURED, NotJudged};
use crate::output::columns;
use crate::raw::{RunRecord, TrialRecord};
use crate::record::AttemptOutcome;
use crate::report::{BoundCheck, LevelSummary, Published, compare_with_study};
use crate::statistics::{INTERVAL_COLUMN, has_too_few_samples};
use crate::trial::RAN_IN_VIRTUAL_TIME;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Runs with more trials print no lines about the delay of each.
const MOST_DELAY_LINES: usize = 4;

/// Reads a figure of a level.
type LevelFigureFn = fn(&LevelSummary) -> Option<f64>;

/// Figures of media and connections; a column is printed if its figure was measured.
const MEDIA_COLUMNS: [(&str, LevelFigureFn); 12] = [
    ("node spread %", |level| level.node_spread),
    ("kernel relay %", |level| level.kernel_relay),
    ("connections", |level| level.connections),
    ("closed", |level| level.connections_lost),
    ("passed on", |level| level.passed_on),
    ("us/packet", |level| level.cpu_us_packet.and(level.media_us)),
    ("delay p50 ms", |level| level.relay_p50),
    ("delay p99 ms", |level| level.relay_p99),
    ("jitter p99 ms", |level| {
        level.noise_jitter_p99.and(level.jitter_trimmed_p99)
    }),
    ("host's p99 ms", |level| level.noise_jitter_p99),
    ("cores", |level| level.subject_cores),
    ("CPU %", |level| level.host_cpu),
];

/// A threshold that does not hold, or was not measured; `place` names the level or trial, and may be empty.
pub fn check_line(place: &str, check: &ThresholdCheck) -> String {
    let limit = plain(check.limit);
    match check.measured {
        Some(measured) => format!(
            "failed{place}: {} is {}, limit {limit}",
            check.name,
            plain(measured)
        ),
        None => format!("not measured{place}: {}, limit {limit}", check.name),
    }
}

/// Thresholds that no trial measured: they neither hold nor fail.
fn never_measured(run: &RunRecord) -> Vec<&ThresholdCheck> {
    let all = || run.trials.iter().flat_map(|trial| &trial.checks);
    let mut open: Vec<&ThresholdCheck> = Vec::new();
    for check in all().filter(|check| check.holds.is_none()) {
        let measured = all().any(|other| other.name == check.name && other.holds.is_some());
        if !measured && !open.iter().any(|known| known.name == check.name) {
            open.push(check);
        }
    }
    open
}

/// Reasons why the CPU time of calls and packets was not divided; each reason once.
fn undivided(run: &RunRecord) -> String {
    let planes = run.trials.iter().map(|trial| &trial.details.planes);
    let mut reasons: Vec<&str> = planes
        .map(|planes| planes.undivided.as_str())
        .filter(|reason| !reason.is_empty())
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    match reasons.is_empty() {
        true => String::new(),
        false => format!(
            "CPU of signalling and of media could not be separated in some trials: {}\n",
            reasons.join("; ")
        ),
    }
}

/// Failed attempts by reason, one row per reason and level; empty without failures.
fn failures(run: &RunRecord, label: &str) -> String {
    let mut rows: Vec<(Vec<String>, u64)> = Vec::new();
    let mut add = |level: Option<f64>, reason: String, count: u64| {
        let key = vec![level.map_or("all".to_owned(), plain), reason];
        match rows.iter_mut().find(|(known, _)| *known == key) {
            Some((_, sum)) => *sum += count,
            None => rows.push((key, count)),
        }
    };
    for trial in &run.trials {
        for (outcome, count) in &trial.details.outcomes {
            let open = *outcome == AttemptOutcome::Unfinished && trial.is_cut_short();
            if outcome.is_good() || open {
                continue;
            }
            if *outcome != AttemptOutcome::Refused {
                add(trial.level, outcome.description().to_owned(), *count);
                continue;
            }
            for (status, count) in &trial.details.statuses {
                add(trial.level, format!("refused with {status}"), *count);
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(mut key, count)| {
            key.push(count.to_string());
            key
        })
        .collect();
    format!(
        "\n{}\n",
        columns(&[label, "failed by reason", "count"], &rows)
    )
}

/// The delay by hop, and its effect on a conversation, for each trial that has them.
fn delay_lines(run: &RunRecord) -> String {
    let mut out = String::new();
    // The lines of a sweep would hide its table; the page has them.
    if run.trials.len() > MOST_DELAY_LINES {
        return out;
    }
    for trial in &run.trials {
        let level = trial
            .level
            .map(|level| format!(" at {}", plain(level)))
            .unwrap_or_default();
        let place = format!("{level}, run {}", trial.repetition + 1);
        if let Some(split) = &trial.details.delay_split {
            let _ = writeln!(out, "delay by hop{place}, mean ms: {}", split.line());
        }
        if let Some(talk) = &trial.details.talk_over {
            let _ = writeln!(out, "conversation{place}: {}", talk.line());
        }
    }
    out
}

/// A verdict, with the reason why there is none.
fn verdict_text(verdict: RunVerdict, cut_short: bool) -> String {
    match (verdict, cut_short) {
        (RunVerdict::NotJudged, true) => format!("{} (cut short)", verdict.name()),
        _ => verdict.name().to_owned(),
    }
}

/// The bounds that a run which has passed did not measure.
fn unmeasured_bounds(verdict: RunVerdict, bounds: &[BoundCheck]) -> String {
    let open = bounds.iter().filter(|bound| bound.holds.is_none()).count();
    match (verdict, open) {
        (RunVerdict::Passed, 1..) => {
            format!(
                " ({open} of {} not measured)",
                counted(bounds.len() as u32, "bound")
            )
        }
        _ => String::new(),
    }
}

/// Trials that ran in virtual time because this machine did not permit them on sockets, with the reasons.
fn in_virtual_time(trials: &[TrialRecord]) -> String {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    let remarks = trials.iter().flat_map(|trial| &trial.remarks);
    for reason in remarks.filter_map(|remark| remark.strip_prefix(RAN_IN_VIRTUAL_TIME)) {
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((reason, 1)),
        }
    }
    let mut out = String::new();
    for (reason, count) in reasons {
        let all = counted(trials.len() as u32, "trial");
        let _ = writeln!(
            out,
            "in virtual time, without CPU time: {count} of {all}: {reason}"
        );
    }
    out
}

/// Why trials without a verdict have none, from their remarks.
fn reasons_not_measured(trials: &[TrialRecord]) -> String {
    let open = trials
        .iter()
        .filter(|trial| trial.verdict == RunVerdict::NotMeasured);
    let remarks = open.flat_map(|trial| &trial.remarks);
    let reasons: BTreeSet<&String> = remarks
        .filter(|remark| remark.contains(NOT_MEASURED))
        .collect();
    reasons.iter().map(|reason| format!("{reason}\n")).collect()
}

/// The trials that were not judged, with the reasons and the exit code that follows; empty without any.
fn not_judged_line(run: &RunRecord, verdict: RunVerdict) -> String {
    let Some(open) = NotJudged::of_trials(&run.trials) else {
        return String::new();
    };
    let code = match run.cut_short {
        true => String::new(),
        false => format!(" (exit code {})", verdict.exit_code()),
    };
    format!("not judged: {}{code}\n", open.text())
}

/// The levels of a run with their main figures, the thresholds that failed, and the study's figures if the experiment
/// names them.
pub fn table(run: &RunRecord, published: &Published) -> String {
    let levels = published.levels.as_slice();
    let number = |value: Option<f64>| value.map_or("-".to_owned(), plain);
    let calls = levels.iter().any(|level| level.attempted > 0.0);
    let more: Vec<&(&str, LevelFigureFn)> = MEDIA_COLUMNS
        .iter()
        .filter(|(_, read)| levels.iter().any(|level| read(level).is_some()))
        .collect();
    let rows: Vec<Vec<String>> = levels
        .iter()
        .map(|level| {
            let counts = match calls {
                true => [level.attempted, level.established, level.failed],
                false => [
                    level.registrations,
                    level.registered,
                    level.registrations_failed,
                ],
            };
            let mut row = vec![level.level.map_or("all".to_owned(), plain)];
            row.extend(counts.map(plain));
            if calls {
                row.push(plain(level.peak));
            }
            row.push(number(level.p50));
            let few = level.p99.is_some() && has_too_few_samples(level.answered, 0.99);
            row.push(format!(
                "{}{}",
                number(level.p99),
                if few { "*" } else { "" }
            ));
            row.extend(
                [
                    level.jitter_mean,
                    level.lost_percent,
                    level.mos,
                    // With packets in it, a figure for a call would be none.
                    match level.cpu_us_packet {
                        None => level.cpu_us,
                        Some(_) => level.signalling_us,
                    },
                ]
                .map(number),
            );
            row.extend(more.iter().map(|(_, read)| number(read(level))));
            let mut trials = run.trials.iter().filter(|trial| trial.level == level.level);
            row.push(verdict_text(
                level.verdict,
                trials.any(TrialRecord::is_cut_short),
            ));
            row
        })
        .collect();
    let label = if run.level_label.is_empty() {
        "level"
    } else {
        &run.level_label
    };
    let counts = [label, "attempted", "established", "failed"];
    // The level of a sweep is a plan: the calls that were open at a time may be fewer.
    let peak: &[&str] = match calls {
        true => &["peak"],
        false => &[],
    };
    let headings = ["p50 ms", "p99 ms", "jitter ms", "lost %", "MOS", "us/call"];
    let headings: Vec<&str> = counts
        .iter()
        .chain(peak)
        .chain(&headings)
        .copied()
        .chain(more.iter().map(|(heading, _)| *heading))
        .chain(["verdict"])
        .collect();
    let measured = published.levels.iter().any(|l| !l.measures.is_empty());
    let other = levels
        .iter()
        .any(|l| l.attempted + l.registrations + l.streams > 0.0);
    let mut out = match other || !measured {
        true => columns(&headings, &rows),
        false => String::new(),
    };
    out.push_str(&crate::report::measures_text(label, levels));
    out.push_str(&crate::report::protection_text(run, levels));
    if rows.iter().flatten().any(|cell| cell.ends_with('*')) {
        out.push_str(
            "* fewer than 300 answers: the 99th percentile is close to the largest value\n",
        );
    }
    out.push_str(&undivided(run));
    if let Some(peak) = &run.peak {
        let _ = writeln!(out, "peak: {}", peak.sentence(label));
    }
    for bound in &published.bounds {
        let _ = writeln!(out, "{}", bound.line());
    }
    out.push_str(&failures(run, label));
    out.push_str(&in_virtual_time(&run.trials));
    out.push_str(&reasons_not_measured(&run.trials));
    let verdict = verdict_text(published.verdict, run.cut_short);
    let open = unmeasured_bounds(published.verdict, &published.bounds);
    let _ = writeln!(out, "verdict: {verdict}{open}");
    for trial in &run.trials {
        for check in trial.checks.iter().filter(|check| check.failed()) {
            let level = trial
                .level
                .map(|level| format!(" at {}", plain(level)))
                .unwrap_or_default();
            let place = format!("{level}, run {}", trial.repetition + 1);
            let _ = writeln!(out, "{}", check_line(&place, check));
        }
    }
    for check in never_measured(run) {
        let _ = writeln!(out, "{}", check_line("", check));
    }
    for trial in &run.trials {
        let caveats = crate::caveats::for_trial(trial);
        if !caveats.is_empty() {
            let level = trial
                .level
                .map(|level| format!(" at {}", plain(level)))
                .unwrap_or_default();
            let _ = writeln!(
                out,
                "caveat{level}, run {}: {}",
                trial.repetition + 1,
                caveats.join("; ")
            );
        }
    }
    out.push_str(&delay_lines(run));
    if let Some(study) = &run.study {
        let rows: Vec<Vec<String>> = compare_with_study(run, levels)
            .iter()
            .map(|row| {
                vec![
                    row.level.map_or("all".to_owned(), plain),
                    row.figure.clone(),
                    row.study_text(),
                    row.run_value_text(),
                    row.interval_text(),
                    row.source_text(),
                    row.unit.clone(),
                ]
            })
            .collect();
        let _ = writeln!(out, "\nstudy {}, which ran on: {}", study.row, study.ran_on);
        for differs in &study.differs {
            let _ = writeln!(out, "differs from the study: {differs}");
        }
        let headings = [
            label,
            "figure",
            "study",
            "here",
            INTERVAL_COLUMN,
            "of",
            "unit",
        ];
        out.push_str(&columns(&headings, &rows));
    }
    out.push_str(&not_judged_line(run, published.verdict));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Details, Figures};
    use serde_json::json;

    #[test]
    fn bounds_that_were_not_measured_are_counted_beside_the_verdict() {
        let bound = |holds| BoundCheck {
            holds,
            ..BoundCheck::default()
        };
        let open = [bound(None), bound(Some(true)), bound(None)];
        let text = |verdict, bounds: &[BoundCheck]| unmeasured_bounds(verdict, bounds);
        assert_eq!(
            text(RunVerdict::Passed, &open),
            " (2 of 3 bounds not measured)"
        );
        assert_eq!(text(RunVerdict::Passed, &open[1..2]), "");
        assert_eq!(text(RunVerdict::Failed, &open), "");
    }

    #[test]
    fn trials_in_virtual_time_are_named_with_their_reason() {
        let trial = |remarks: &[&str]| -> TrialRecord {
            let record = json!({
                "trial": 0, "level": 1.0, "repetition": 0, "seed": 1, "seconds": 1.0, "figures": Figures::default(),
                "details": Details::default(), "checks": [], "leaks": null, "verdict": "passed", "remarks": remarks,
                "surroundings": null, "digest": null, "links": [],
            });
            serde_json::from_value(record).unwrap()
        };
        let reason = format!("{RAN_IN_VIRTUAL_TIME}no network namespace of its own");
        let trials = [
            trial(&[&reason, "another remark"]),
            trial(&[]),
            trial(&[&reason]),
        ];
        assert_eq!(
            in_virtual_time(&trials),
            "in virtual time, without CPU time: 2 of 3 trials: no network namespace of its own\n"
        );
        assert_eq!(in_virtual_time(&trials[1..2]), "");

        // A trial without figures names the cause, once.
        let cause = "TLS for signalling: not measured, TLS does not exist in virtual time";
        let mut open = [trial(&[cause, "another remark"]), trial(&[cause])];
        assert_eq!(reasons_not_measured(&open), "");
        for trial in &mut open {
            trial.verdict = RunVerdict::NotMeasured;
        }
        assert_eq!(reasons_not_measured(&open), format!("{cause}\n"));
        // The last line counts them, and names the exit code.
        let run = RunRecord {
            trials: open.to_vec(),
            ..RunRecord::default()
        };
        let line = not_judged_line(&run, RunVerdict::NotMeasured);
        assert_eq!(
            line,
            format!("not judged: 2 of 2 trials: {cause} (exit code 4)\n")
        );
        assert_eq!(
            not_judged_line(&RunRecord::default(), RunVerdict::Passed),
            ""
        );
    }
}
