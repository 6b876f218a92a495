//! The same tables as comma-separated values (RFC 4180).

use super::levels::LevelSummary;
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
    let mut out = format!(
        "{},repetitions,attempted,established,completed,failed,dropped,peak_calls,registrations,registered,registrations_failed,response_p50_ms,response_p99_ms,response_max_ms,cpu_us_each,streams,packets,lost_percent,jitter_mean_ms,jitter_p99_ms,jitter_max_ms,one_way_ms,round_trip_ms,mos,correlation,level_db",
        text(label)
    );
    for class in CLASS_NAMES {
        let _ = write!(out, ",{class} ms");
    }
    out.push_str(",verdict\r\n");
    for level in levels {
        let _ = write!(out, "{},{}", optional(level.level), level.repetitions);
        for value in [
            level.attempted,
            level.established,
            level.completed,
            level.failed,
            level.dropped,
            level.peak,
            level.registrations,
            level.registered,
            level.registrations_failed,
        ] {
            let _ = write!(out, ",{value}");
        }
        let _ = write!(
            out,
            ",{},{},{},{}",
            optional(level.p50),
            optional(level.p99),
            optional(level.max),
            optional(level.cpu_us)
        );
        let _ = write!(out, ",{},{}", level.streams, level.packets);
        for value in [
            level.lost_percent,
            level.jitter_mean,
            level.jitter_p99,
            level.jitter_max,
            level.one_way,
            level.round_trip,
            level.mos,
            level.correlation,
            level.level_db,
        ] {
            let _ = write!(out, ",{}", optional(value));
        }
        for count in level.classes {
            let _ = write!(out, ",{count}");
        }
        let _ = write!(
            out,
            ",{}\r\n",
            if level.passed { "passed" } else { "missed" }
        );
    }
    out
}

/// One row per attempt; times in milliseconds since the trial's start.
pub fn attempts(attempts: &[Attempt]) -> String {
    let mut out = String::from(
        "trial,workload,kind,number,from,to,call_id,due_ms,sent_ms,first_answer_ms,ringing_ms,established_ms,ended_ms,response_ms,outcome,status,why\r\n",
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
        "trial,workload,number,side,ssrc,codec,sent,received,expected,lost,duplicates,out_of_order,first_ms,last_ms,jitter_mean_ms,jitter_p99_ms,jitter_max_ms,delta_max_ms,one_way_mean_ms,one_way_max_ms,round_trip_ms,r,mos,correlation,level_db\r\n",
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
