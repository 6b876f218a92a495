//! The cost of protection for a call, in one table: CPU, bandwidth, added delay, MOS.

use super::chart::escape;
use super::level_summary::LevelSummary;
use super::sources::computed;
use crate::decimal::plain;
use crate::experiment::Protection;
use crate::output::columns;
use crate::raw::RunRecord;
use crate::records_page::link;
use crate::statistics::Interval;
use serde_json::{Value, json};
use std::fmt::Write;

/// A figure with the ends of its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TableCell {
    value: Option<f64>,
    ends: Option<(f64, f64)>,
}

/// A kind of protection and its cost.
#[derive(Clone, Debug, PartialEq)]
struct CostRow {
    kind: u8,
    name: String,
    /// In the order of [`HEADINGS`].
    cells: [TableCell; 4],
    runs: usize,
}

const HEADINGS: [(&str, &str); 4] = [
    ("CPU us a call", "cpu_us_each"),
    ("kbit/s each way", "esp.call_kbit"),
    ("added delay ms", "added_delay_ms"),
    ("MOS", "mos"),
];
/// Delay of single packets, from which the added delay is computed.
pub(super) const DELAY: &str = "relay_p50_ms";

fn ends(interval: Option<&Interval>) -> Option<(f64, f64)> {
    let interval = interval?;
    interval.low.zip(interval.high)
}

fn cell(level: &LevelSummary, name: &str) -> TableCell {
    TableCell {
        value: level.figure(name),
        ends: ends(level.intervals.get(name)),
    }
}

/// The excess of a delay over that without protection; half widths in quadrature.
fn added(level: &LevelSummary, clear: Option<&LevelSummary>) -> TableCell {
    let (mine, clear) = (cell(level, DELAY), clear.map(|level| cell(level, DELAY)));
    let Some((value, base)) = mine.value.zip(clear.and_then(|clear| clear.value)) else {
        return TableCell::default();
    };
    let half = |(low, high): (f64, f64)| (high - low) / 2.0;
    let both = mine.ends.zip(clear.and_then(|clear| clear.ends));
    let excess = value - base;
    TableCell {
        value: Some(excess),
        ends: both.map(|(a, b)| {
            let half = half(a).hypot(half(b));
            (excess - half, excess + half)
        }),
    }
}

/// The rows of a run whose levels are kinds of protection; empty for other runs.
fn rows(run: &RunRecord, levels: &[LevelSummary]) -> Vec<CostRow> {
    if run.level_label != "protection" {
        return Vec::new();
    }
    let clear = levels.iter().find(|level| level.level == Some(0.0));
    let row = |level: &LevelSummary| {
        let kind = level.level.filter(|kind| (0.0..=255.0).contains(kind))? as u8;
        Some(CostRow {
            kind,
            name: Protection::of(kind).name(),
            cells: [
                cell(level, "cpu_us_each"),
                cell(level, "esp.call_kbit"),
                added(level, clear),
                cell(level, "mos"),
            ],
            runs: level.repetitions,
        })
    };
    levels.iter().filter_map(row).collect()
}

impl TableCell {
    fn text(&self) -> String {
        match (self.value, self.ends) {
            (None, _) => "not measured".to_owned(),
            (Some(value), None) => plain(value),
            (Some(value), Some((low, high))) => {
                format!("{} ({} to {})", plain(value), plain(low), plain(high))
            }
        }
    }
}

/// The table of the page.
pub(super) fn table(html: &mut String, run: &RunRecord, levels: &[LevelSummary]) {
    let rows = rows(run, levels);
    if rows.is_empty() {
        return;
    }
    html.push_str(
        "<section><h2>Cost of media protection per call</h2><p class=\"note\">CPU of the border, and of the gateway before it with ESP; \
         bandwidth of a call on the access side, signalling included; median delay of a packet above that without protection; mean opinion score. \
         Each with its 95 % confidence interval.</p><div class=\"scroll\"><table><thead><tr><th scope=\"col\">protection</th>",
    );
    for (heading, _) in HEADINGS {
        let _ = write!(html, "<th scope=\"col\">{heading}</th>");
    }
    html.push_str("<th scope=\"col\">runs</th></tr></thead><tbody>");
    for (place, row) in rows.iter().enumerate() {
        let record = |name: &str| computed(&format!("/protection/{place}/{name}"));
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(&row.name));
        for (cell, (_, name)) in row.cells.iter().zip(HEADINGS) {
            let cell = link(&record(name), &escape(&cell.text()));
            let _ = write!(html, "<td>{cell}</td>");
        }
        let runs = link(&record("runs"), &row.runs.to_string());
        let _ = write!(html, "<td>{runs}</td></tr>");
    }
    html.push_str("</tbody></table></div></section>");
}

/// The table for a terminal; empty for other runs.
pub(crate) fn text(run: &RunRecord, levels: &[LevelSummary]) -> String {
    let rows: Vec<Vec<String>> = rows(run, levels)
        .into_iter()
        .map(|row| {
            let cells = row.cells.iter().map(TableCell::text);
            std::iter::once(row.name).chain(cells).collect()
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = HEADINGS.map(|(heading, _)| heading);
    let headings: Vec<&str> = std::iter::once("protection").chain(headings).collect();
    format!("{}\n", columns(&headings, &rows))
}

/// The table for `--json`; `null` for other runs.
pub(crate) fn json(run: &RunRecord, levels: &[LevelSummary]) -> Value {
    let rows: Vec<Value> = rows(run, levels)
        .into_iter()
        .map(|row| {
            let mut object = json!({ "kind": row.kind, "protection": row.name, "runs": row.runs });
            for ((_, name), cell) in HEADINGS.iter().zip(row.cells) {
                let (low, high) = cell.ends.unzip();
                object[*name] = json!({ "value": cell.value, "low": low, "high": high });
            }
            object
        })
        .collect();
    match rows.is_empty() {
        true => Value::Null,
        false => Value::Array(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(kind: f64, delay: f64, half: f64) -> LevelSummary {
        let mut level = LevelSummary {
            level: Some(kind),
            repetitions: 3,
            relay_p50: Some(delay),
            mos: Some(4.4),
            ..LevelSummary::default()
        };
        let interval = Interval {
            low: Some(delay - half),
            high: Some(delay + half),
            ..Interval::default()
        };
        level.intervals.insert(DELAY.to_owned(), interval);
        level
    }

    #[test]
    fn delay_is_that_above_no_protection() {
        let levels = [level(0.0, 0.25, 0.03), level(13.0, 0.5, 0.04)];
        let run = RunRecord {
            level_label: "protection".to_owned(),
            ..RunRecord::default()
        };
        let json = json(&run, &levels);
        assert_eq!(json[1]["protection"], "ESP aes-gcm, tunnel mode");
        assert_eq!(json[1]["added_delay_ms"]["value"], 0.25);
        let low = json[1]["added_delay_ms"]["low"].as_f64().unwrap();
        assert!((low - 0.2).abs() < 1e-9, "{low}");
        assert_eq!(json[0]["cpu_us_each"]["value"], Value::Null);
        let text = text(&run, &levels);
        assert!(text.contains("0.25 (0.2 to 0.3)"), "{text}");
        assert!(
            text.contains("not measured") && text.contains("4.4"),
            "{text}"
        );
        assert!(super::json(&RunRecord::default(), &levels).is_null());
        // Without the level in the clear there is nothing to add to.
        assert!(rows(&run, &levels[1..])[0].cells[2].value.is_none());
    }
}
