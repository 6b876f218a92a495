//! The tables of the report as comma-separated values (RFC 4180).

use super::level_summary::LevelSummary;
use crate::figures::CLASS_NAMES;
use crate::record::{Attempt, StreamRecord};
use std::fmt::Write;

fn text(value: &str) -> String {
    if value.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value.to_owned()
    }
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn milliseconds(nanoseconds: Option<u64>) -> String {
    nanoseconds
        .map(|ns| format!("{:.6}", ns as f64 / 1e6))
        .unwrap_or_default()
}

/// One row per level.
pub fn levels(label: &str, levels: &[LevelSummary]) -> String {
    let label = if label.is_empty() { "level" } else { label };
    let classes = CLASS_NAMES.map(|class| format!("{class} ms"));
    let names: Vec<&str> = LevelSummary::FIGURES
        .into_iter()
        .chain(classes.iter().map(String::as_str))
        .collect();
    let mut out = format!(
        "{},repetitions,{},verdict\r\n",
        text(label),
        names.join(",")
    );
    for level in levels {
        let _ = write!(out, "{},{}", optional(level.level), level.repetitions);
        for name in &names {
            let _ = write!(out, ",{}", optional(level.figure(name)));
        }
        let _ = write!(out, ",{}\r\n", level.verdict.name());
    }
    out
}

/// One row per attempt; times in milliseconds since the trial's start.
pub fn attempts(attempts: &[Attempt]) -> String {
    let mut out = String::from(
        "trial,workload,kind,number,from,to,call_id,due_ms,sent_ms,first_answer_ms,ringing_ms,established_ms,hung_up_ms,ended_ms,response_ms,outcome,status,why\r\n",
    );
    for a in attempts {
        let kind = format!("{:?}", a.kind).to_lowercase();
        let _ = write!(
            out,
            "{},{},{kind},{},",
            a.trial,
            text(&a.workload),
            a.number
        );
        let _ = write!(
            out,
            "{},{},{},",
            text(&a.from),
            text(&a.to),
            text(&a.call_id)
        );
        for time in [
            Some(a.due),
            a.sent,
            a.first_answer,
            a.ringing,
            a.established,
            a.hung_up,
            a.ended,
        ] {
            let _ = write!(out, "{},", milliseconds(time));
        }
        let response = optional(a.response_ms());
        let _ = write!(
            out,
            "{response},{},{},{}\r\n",
            a.outcome,
            a.status,
            text(&a.why)
        );
    }
    out
}

/// One row per received stream.
pub fn streams(streams: &[StreamRecord]) -> String {
    let mut out = String::from(
        "trial,workload,number,side,ssrc,codec,sent,received,expected,lost,duplicates,out_of_order,first_ms,last_ms,jitter_mean_ms,jitter_p99_ms,jitter_max_ms,delta_max_ms,one_way_mean_ms,one_way_max_ms,relay_p50_ms,relay_p99_ms,relay_max_ms,round_trip_ms,r,mos,correlation,level_db\r\n",
    );
    for s in streams {
        let _ = write!(
            out,
            "{},{},{},{},",
            s.trial,
            text(&s.workload),
            s.number,
            text(&s.side)
        );
        let _ = write!(out, "{:#010x},{}", s.ssrc, text(&s.codec));
        for count in [
            s.sent,
            s.received,
            s.expected,
            s.lost,
            s.duplicates,
            s.out_of_order,
        ] {
            let _ = write!(out, ",{count}");
        }
        let _ = write!(out, ",{},{}", milliseconds(s.first), milliseconds(s.last));
        for value in [
            s.jitter_mean_ms,
            s.jitter_p99_ms,
            s.jitter_max_ms,
            s.delta_max_ms,
            s.one_way_mean_ms,
            s.one_way_max_ms,
            s.relay_p50_ms,
            s.relay_p99_ms,
            s.relay_max_ms,
            s.round_trip_ms,
            s.r,
            s.mos,
            s.correlation,
            s.level_db,
        ] {
            let _ = write!(out, ",{}", optional(value));
        }
        out.push_str("\r\n");
    }
    out
}
