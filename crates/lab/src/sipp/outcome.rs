//! The result of a run: as a table, as JSON, as CSV.

use super::program::{ScenarioProgram, StepKind};
use super::stats::{CallFailure, Statistics, StepCount, TimeStatistics};
use crate::error::RunVerdict;
use crate::output::columns;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct ScenarioResult {
    /// The scenario.
    pub program: ScenarioProgram,
    /// Its file.
    pub file: String,
    /// Figures.
    pub statistics: Statistics,
    /// Duration of the run.
    pub seconds: f64,
    /// CPU time of the whole process.
    pub cpu: Option<Duration>,
    /// 99th percentile of the host's own scheduling noise during the run, microseconds.
    pub noise_p99_us: Option<f64>,
    /// Whether it ran in virtual time.
    pub simulated: bool,
    /// The run failed because it had not ended at its time limit.
    pub timed_out: bool,
    /// The result of the other end, in virtual time.
    pub other: Option<Box<ScenarioResult>>,
}

impl ScenarioResult {
    /// Passed if calls were made, all succeeded, and the patterns that they sent came back, in time if that was asked
    /// for.
    pub fn verdict(&self) -> RunVerdict {
        let good = !self.timed_out
            && self.statistics.failures() == 0
            && self.statistics.no_room == 0
            && self.statistics.patterns[1] == 0
            && self.statistics.successful > 0;
        match good {
            true => RunVerdict::Passed,
            false => RunVerdict::Failed,
        }
    }

    fn cpu_per_call_us(&self) -> Option<f64> {
        let calls = self.statistics.created;
        let cpu = self.cpu.filter(|_| calls > 0)?;
        Some(cpu.as_secs_f64() * 1e6 / calls as f64)
    }

    /// The result as JSON.
    pub fn to_json(&self) -> Value {
        let statistics = &self.statistics;
        let failed: serde_json::Map<String, Value> = CallFailure::ALL
            .iter()
            .zip(&statistics.failed)
            .filter(|(_, count)| **count > 0)
            .map(|(failure, count)| (failure.name().to_owned(), json!(count)))
            .collect();
        let named = |name: &String, times: &TimeStatistics| {
            let mut value = times_json(times);
            value["name"] = json!(name);
            value
        };
        let responses: Vec<Value> = self
            .program
            .timers
            .iter()
            .zip(&statistics.responses)
            .map(|(name, times)| named(name, times))
            .collect();
        let counters: serde_json::Map<String, Value> = self
            .program
            .counters
            .iter()
            .zip(&statistics.counters)
            .map(|(name, count)| (name.clone(), json!(count)))
            .collect();
        let steps: Vec<Value> = self
            .program
            .steps
            .iter()
            .zip(&statistics.steps)
            .map(|(step, count)| {
                json!({
                    "line": step.line,
                    "kind": kind(&step.kind),
                    "label": step.label,
                    "messages": count.messages,
                    "retransmissions": count.retransmissions,
                    "timeouts": count.timeouts,
                    "unexpected": count.unexpected,
                    "lost": count.lost,
                })
            })
            .collect();
        json!({
            "scenario": self.program.name,
            "file": self.file,
            "simulated": self.simulated,
            "verdict": self.verdict().name(),
            "seconds": self.seconds,
            "timed_out": self.timed_out,
            "calls": {
                "created": statistics.created,
                "successful": statistics.successful,
                "failed": statistics.failures(),
                "failures": failed,
                "peak": statistics.peak,
                "peak_is_sum_of_threads": statistics.generators > 1,
                "no_room": statistics.no_room,
            },
            "messages": {
                "retransmissions": statistics.retransmissions(),
                "out_of_call": statistics.out_of_call,
                "garbage": statistics.garbage,
                "late": statistics.late,
                "answered_by_themselves": statistics.answered,
            },
            "media": {
                "sent": statistics.media[0],
                "received": statistics.media[1],
                "echoed": statistics.media[2],
            },
            "rtp_check": {
                "streams": statistics.patterns[0],
                "failed": statistics.patterns[1],
            },
            "response_times": responses,
            "call_length": times_json(&statistics.lengths),
            "counters": counters,
            "lateness_us": spread(&statistics.lateness),
            "held_back_us": spread(&statistics.held_back),
            "host_noise_p99_us": self.noise_p99_us,
            "cpu_seconds": self.cpu.map(|cpu| cpu.as_secs_f64()),
            "cpu_us_per_call": self.cpu_per_call_us(),
            "steps": steps,
            "other_end": self.other.as_ref().map(|other| other.to_json()),
        })
    }

    /// The result as a table.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let statistics = &self.statistics;
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{} ({})\n", self.program.name, self.file);
        out.push_str(&self.steps_text());
        let of_threads = match statistics.generators {
            0 | 1 => "",
            _ => " (sum of the threads' peaks)",
        };
        let _ = writeln!(
            out,
            "\n{} calls in {:.2} s: {} successful, {} failed, {} open at most{of_threads}, {} retransmissions",
            statistics.created,
            self.seconds,
            statistics.successful,
            statistics.failures(),
            statistics.peak,
            statistics.retransmissions()
        );
        if self.timed_out {
            out.push_str("  failed: the run had not ended at its time limit\n");
        }
        for (failure, count) in CallFailure::ALL.iter().zip(&statistics.failed) {
            if *count > 0 {
                let _ = writeln!(out, "  failed, {}: {count}", failure.name());
            }
        }
        for (label, count) in [
            (
                "calls beyond the limit of concurrent calls",
                statistics.no_room,
            ),
            ("messages without a call", statistics.out_of_call),
            ("messages of ended calls", statistics.late),
            ("input that is not SIP", statistics.garbage),
            ("requests answered automatically", statistics.answered),
            ("media packets sent", statistics.media[0]),
            ("media packets received", statistics.media[1]),
            ("media packets sent back", statistics.media[2]),
            ("pattern streams sent", statistics.patterns[0]),
            (
                "pattern streams that did not come back (failed)",
                statistics.patterns[1],
            ),
        ] {
            if count > 0 {
                let _ = writeln!(out, "  {label}: {count}");
            }
        }
        out.push('\n');
        out.push_str(&self.times_text());
        for (name, count) in self.program.counters.iter().zip(&statistics.counters) {
            let _ = writeln!(out, "counter {name}: {count}");
        }
        if let Some(cost) = self.cpu_per_call_us() {
            let _ = writeln!(out, "generator: {cost:.1} us CPU per call");
        }
        if !statistics.lateness.is_empty() {
            let noise = self
                .noise_p99_us
                .map(|noise| format!("; timer noise of this host {noise:.0} us (p99)"))
                .unwrap_or_default();
            let _ = writeln!(
                out,
                "generator: calls started {} us late (p50), {} (p99), {} (max){noise}",
                statistics.lateness.value_at_quantile(0.5),
                statistics.lateness.value_at_quantile(0.99),
                statistics.lateness.max()
            );
        }
        if !statistics.held_back.is_empty() {
            let _ = writeln!(
                out,
                "{} calls were delayed by --limit, {} us at most",
                statistics.held_back.len(),
                statistics.held_back.max()
            );
        }
        if let Some(other) = &self.other {
            let _ = write!(out, "\nthe other end: {}", other.to_text());
        }
        out
    }

    fn steps_text(&self) -> String {
        let headings = ["", "messages", "retrans", "timeout", "unexpected", "lost"];
        let rows: Vec<Vec<String>> = self
            .program
            .steps
            .iter()
            .zip(&self.statistics.steps)
            .filter(|(step, _)| !step.hidden)
            .flat_map(|(step, count)| {
                let row = step_row(kind(&step.kind), &step.label, count);
                let gap = step.gap.then(|| vec![String::new(); headings.len()]);
                std::iter::once(row).chain(gap)
            })
            .collect();
        columns(&headings, &rows)
    }

    fn times_text(&self) -> String {
        let headings = ["ms", "count", "mean", "p50", "p90", "p99", "max"];
        let mut rows = Vec::new();
        let mut classes = String::new();
        let named = self
            .program
            .timers
            .iter()
            .zip(&self.statistics.responses)
            .map(|(name, times)| (format!("response time {name}"), times));
        let lengths = ("call length".to_owned(), &self.statistics.lengths);
        for (name, times) in named.chain(std::iter::once(lengths)) {
            if times.histogram.is_empty() {
                continue;
            }
            let ms = |micros: f64| format!("{:.3}", micros / 1e3);
            let at = |share: f64| ms(times.histogram.value_at_quantile(share) as f64);
            rows.push(vec![
                name.clone(),
                times.histogram.len().to_string(),
                ms(times.histogram.mean()),
                at(0.5),
                at(0.9),
                at(0.99),
                ms(times.histogram.max() as f64),
            ]);
            if !times.edges.is_empty() {
                let _ = writeln!(classes, "{name}: {}", classes_text(times));
            }
        }
        match rows.is_empty() {
            true => String::new(),
            false => columns(&headings, &rows) + &classes + "\n",
        }
    }
}

fn step_row(kind: &str, label: &str, count: &StepCount) -> Vec<String> {
    let arrow = match kind {
        "send" => "-->",
        "receive" => "<--",
        _ => "   ",
    };
    let mut row = vec![format!("{arrow} {label}")];
    row.extend(
        [
            count.messages,
            count.retransmissions,
            count.timeouts,
            count.unexpected,
            count.lost,
        ]
        .map(|count| count.to_string()),
    );
    row
}

fn kind(kind: &StepKind) -> &'static str {
    match kind {
        StepKind::Send(_) => "send",
        StepKind::Receive(_) => "receive",
        StepKind::Pause { .. } => "pause",
        StepKind::Nothing => "nop",
    }
}

/// `< 10: 3, < 20: 0, rest: 1`
fn classes_text(times: &TimeStatistics) -> String {
    let mut parts: Vec<String> = times
        .edges
        .iter()
        .zip(&times.classes)
        .map(|(edge, count)| format!("< {edge}: {count}"))
        .collect();
    parts.extend(times.classes.last().map(|count| format!("rest: {count}")));
    parts.join(", ")
}

fn spread(histogram: &Histogram<u64>) -> Value {
    json!({
        "count": histogram.len(),
        "mean": histogram.mean(),
        "p50": histogram.value_at_quantile(0.5),
        "p90": histogram.value_at_quantile(0.9),
        "p99": histogram.value_at_quantile(0.99),
        "max": histogram.max(),
    })
}

fn times_json(times: &TimeStatistics) -> Value {
    json!({
        "us": spread(&times.histogram),
        "edges_ms": times.edges,
        "classes": times.classes,
    })
}

/// Writes the header of the figures of each second.
///
/// # Errors
/// Write errors of the file.
pub fn write_csv_head(out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "seconds,created,open,successful,failed,retransmissions,out_of_call,response_p50_us,response_p99_us,lateness_p99_us"
    )
}

/// Writes one line; counts are cumulative.
///
/// # Errors
/// Write errors of the file.
pub fn write_csv_line(
    out: &mut impl Write,
    seconds: f64,
    statistics: &Statistics,
) -> std::io::Result<()> {
    let at = |share: f64| {
        statistics
            .responses
            .first()
            .map_or(0, |times| times.histogram.value_at_quantile(share))
    };
    writeln!(
        out,
        "{seconds:.3},{},{},{},{},{},{},{},{},{}",
        statistics.created,
        statistics.open,
        statistics.successful,
        statistics.failures(),
        statistics.retransmissions(),
        statistics.out_of_call,
        at(0.5),
        at(0.99),
        statistics.lateness.value_at_quantile(0.99)
    )
}
