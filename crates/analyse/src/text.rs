//! The analysis as tables for a terminal.

use super::report::{Analysis, CallReport, StreamReport};
use std::fmt::Write;

/// Rows of each table; the JSON form has all.
const MAX_ROWS: usize = 200;

/// Tables of calls, streams and findings. Control characters in text from the capture are replaced.
pub fn render_text(analysis: &Analysis) -> String {
    let mut out = String::new();
    let span = match (analysis.first_at, analysis.last_at) {
        (Some(first), Some(last)) => last - first,
        _ => 0.0,
    };
    // Writing into a string cannot fail.
    let _ = writeln!(
        out,
        "{} frames in {span:.3} s: {} calls, {} SIP messages, {} RTP streams, {} RTCP packets",
        analysis.frames,
        analysis.calls.len(),
        analysis.sip_messages,
        analysis.streams.len(),
        analysis.rtcp_packets,
    );
    let zero = analysis.first_at.unwrap_or(0.0);
    table(
        &mut out,
        &[
            "call", "from", "to", "outcome", "status", "start s", "answer s", "end s", "messages",
        ],
        analysis.calls.iter().map(|call| call_row(call, zero)),
    );
    table(
        &mut out,
        &[
            "source",
            "destination",
            "ssrc",
            "codec",
            "packets",
            "lost",
            "lost %",
            "dup",
            "late",
            "jitter mean",
            "p99",
            "max ms",
            "delta max",
            "skew ppm",
            "dtmf",
            "R",
            "MOS",
        ],
        analysis.streams.iter().map(stream_row),
    );
    table(
        &mut out,
        &[
            "esp source",
            "destination",
            "spi",
            "packets",
            "encrypted",
            "opened",
        ],
        analysis.esp.iter().map(|esp| {
            vec![
                esp.src.clone(),
                esp.dst.clone(),
                esp.spi.clone(),
                esp.packets.to_string(),
                if esp.encrypted { "yes" } else { "no" }.to_owned(),
                esp.opened.to_string(),
            ]
        }),
    );
    for (title, list) in [("note", &analysis.notes), ("error", &analysis.errors)] {
        for line in list {
            let _ = writeln!(out, "{title}: {}", clean(line, 300));
        }
    }
    out
}

fn call_row(call: &CallReport, zero: f64) -> Vec<String> {
    let at = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{:.3}", time - zero));
    vec![
        clean(&call.call_id, 24),
        clean(&call.from, 32),
        clean(&call.to, 32),
        call.outcome.to_owned(),
        call.status
            .map_or("-".to_owned(), |status| status.to_string()),
        at(call.invite_at),
        at(call.answered_at),
        at(call.ended_at),
        call.messages.to_string(),
    ]
}

fn stream_row(stream: &StreamReport) -> Vec<String> {
    let figure = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let codec = stream.codec.as_deref().unwrap_or("?");
    let codec = if stream.srtp {
        format!("{codec}+srtp")
    } else {
        codec.to_owned()
    };
    vec![
        stream.src.clone(),
        stream.dst.clone(),
        stream.ssrc.clone(),
        clean(&codec, 24),
        stream.packets_received.to_string(),
        stream.lost_unique.to_string(),
        format!("{:.2}", stream.lost_percent),
        stream.duplicates.to_string(),
        stream.out_of_order.to_string(),
        figure(stream.jitter_ms.map(|jitter| jitter.mean), 3),
        figure(stream.jitter_ms.map(|jitter| jitter.p99), 3),
        figure(stream.jitter_ms.map(|jitter| jitter.max), 3),
        figure(stream.delta_ms.map(|delta| delta.max), 3),
        figure(stream.skew_ppm, 1),
        clean(&stream.dtmf.concat(), 16),
        figure(stream.r, 1),
        figure(stream.mos, 2),
    ]
}

fn table(out: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut lines: Vec<Vec<String>> = vec![head.iter().map(|cell| (*cell).to_owned()).collect()];
    let mut left_out = 0;
    for row in rows {
        if lines.len() <= MAX_ROWS {
            lines.push(row);
        } else {
            left_out += 1;
        }
    }
    if lines.len() == 1 {
        return;
    }
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cell = |line: &Vec<String>| line.get(column).map_or(0, |cell| cell.chars().count());
            lines.iter().map(cell).max().unwrap_or(0)
        })
        .collect();
    out.push('\n');
    for line in &lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    if left_out > 0 {
        let _ = writeln!(out, "... and {left_out} more (see the JSON form)");
    }
}

/// At most `width` characters, without control characters that a terminal would interpret.
fn clean(text: &str, width: usize) -> String {
    let mut kept: String = text
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(width + 1)
        .collect();
    if kept.chars().count() > width {
        kept.pop();
        kept.pop();
        kept.push('\u{2026}');
    }
    kept
}
