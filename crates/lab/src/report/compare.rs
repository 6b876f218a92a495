//! Two runs side by side: differences, with the intervals that the repetitions allow.

use super::chart::{escape, plain};
use crate::raw::{RawResults, TrialRecord};
use std::fmt::Write;

/// A figure of a trial.
type Value = fn(&TrialRecord) -> Option<f64>;

const ROWS: &[(&str, Value)] = &[
    ("calls established", |t| {
        Some(t.figures.calls.established as f64)
    }),
    ("calls failed", |t| Some(t.figures.calls.failed as f64)),
    ("registrations accepted", |t| {
        Some(t.details.registrations.established as f64)
    }),
    ("response p50, ms", |t| t.figures.response_ms.p50),
    ("response p99, ms", |t| t.figures.response_ms.p99),
    ("CPU of subject, us each", |t| t.figures.cpu_us_per_call),
    ("lost, %", |t| t.figures.lost_percent),
    ("jitter mean, ms", |t| t.figures.jitter_ms.mean),
    ("jitter p99, ms", |t| t.figures.jitter_ms.p99),
    ("one way, ms", |t| t.details.one_way_ms),
    ("MOS", |t| t.figures.mos),
];

/// 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom; 1.96 beyond.
const T: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

/// One figure at one level.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Value of the sweep.
    pub level: Option<f64>,
    /// The figure.
    pub name: &'static str,
    /// Mean of the baseline.
    pub baseline: f64,
    /// Mean of the other run.
    pub other: f64,
    /// 95 % interval of the difference (Welch); `None` with fewer than two repetitions on a side.
    pub interval: Option<(f64, f64)>,
}

impl Difference {
    /// `other - baseline`.
    pub fn change(&self) -> f64 {
        self.other - self.baseline
    }

    /// The same in percent of the baseline.
    pub fn percent(&self) -> Option<f64> {
        (self.baseline != 0.0).then(|| self.change() * 100.0 / self.baseline)
    }

    /// Whether the interval says that there is a difference.
    pub fn is_clear(&self) -> Option<bool> {
        self.interval.map(|(low, high)| low > 0.0 || high < 0.0)
    }
}

fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (n - 1.0);
    (mean, variance)
}

/// The 95 % interval of the difference of two means, by Welch's t.
fn interval(a: &[f64], b: &[f64]) -> Option<(f64, f64)> {
    if a.len() < 2 || b.len() < 2 {
        return None;
    }
    let ((mean_a, var_a), (mean_b, var_b)) = (moments(a), moments(b));
    let (part_a, part_b) = (var_a / a.len() as f64, var_b / b.len() as f64);
    let spread = part_a + part_b;
    let change = mean_b - mean_a;
    if spread == 0.0 {
        return Some((change, change));
    }
    let degrees = spread.powi(2)
        / (part_a.powi(2) / (a.len() - 1) as f64 + part_b.powi(2) / (b.len() - 1) as f64);
    let t = T
        .get((degrees.floor() as usize).saturating_sub(1))
        .copied()
        .unwrap_or(1.96);
    let half = t * spread.sqrt();
    Some((change - half, change + half))
}

/// Compares level by level; levels that only one of them has are left out.
pub fn differences(baseline: &RawResults, other: &RawResults) -> Vec<Difference> {
    let mut levels: Vec<Option<f64>> = Vec::new();
    for trial in &baseline.run.trials {
        let in_other = other.run.trials.iter().any(|t| t.level == trial.level);
        if in_other && !levels.contains(&trial.level) {
            levels.push(trial.level);
        }
    }
    let values = |raw: &RawResults, level: Option<f64>, value: Value| -> Vec<f64> {
        let trials = raw.run.trials.iter().filter(|trial| trial.level == level);
        trials.filter_map(value).collect()
    };
    let mut out = Vec::new();
    for level in levels {
        for (name, value) in ROWS {
            let (a, b) = (
                values(baseline, level, *value),
                values(other, level, *value),
            );
            if a.is_empty() || b.is_empty() || a.iter().chain(&b).all(|value| *value == 0.0) {
                continue;
            }
            out.push(Difference {
                level,
                name,
                baseline: a.iter().sum::<f64>() / a.len() as f64,
                other: b.iter().sum::<f64>() / b.len() as f64,
                interval: interval(&a, &b),
            });
        }
    }
    out
}

fn columns(difference: &Difference) -> [String; 7] {
    let percent = difference
        .percent()
        .map(|percent| format!("{percent:+.1} %"));
    let interval = difference
        .interval
        .map(|(low, high)| format!("{} to {}", plain(low), plain(high)));
    let clear = match difference.is_clear() {
        Some(true) => "different",
        Some(false) => "not told apart",
        None => "repeat to tell",
    };
    [
        difference.level.map_or("all".to_owned(), plain),
        difference.name.to_owned(),
        plain(difference.baseline),
        plain(difference.other),
        percent.unwrap_or_default(),
        interval.unwrap_or_default(),
        clear.to_owned(),
    ]
}

const HEADINGS: [&str; 7] = [
    "level",
    "figure",
    "baseline",
    "this run",
    "change",
    "95 % interval",
    "",
];

/// For the terminal.
pub fn text(baseline: &RawResults, other: &RawResults, differences: &[Difference]) -> String {
    let rows: Vec<[String; 7]> = differences.iter().map(columns).collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = format!("{} against {}\n", other.run.title, baseline.run.title);
    out.push_str(
        &cautions(baseline, other)
            .iter()
            .map(|caution| format!("note: {caution}\n"))
            .collect::<String>(),
    );
    let line = |out: &mut String, cells: &[String; 7]| {
        for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let _ = if (2..6).contains(&index) {
                write!(out, "{cell:>width$}  ")
            } else {
                write!(out, "{cell:<width$}  ")
            };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    };
    line(&mut out, &HEADINGS.map(str::to_owned));
    for row in &rows {
        line(&mut out, row);
    }
    out
}

/// What makes a comparison doubtful.
fn cautions(baseline: &RawResults, other: &RawResults) -> Vec<String> {
    let (a, b) = (&baseline.run, &other.run);
    let mut out = Vec::new();
    if a.experiment != b.experiment {
        out.push(format!(
            "different experiments: {} and {}",
            a.experiment, b.experiment
        ));
    } else if a.plan != b.plan {
        out.push("the experiment files differ".to_owned());
    }
    if a.machine != b.machine {
        out.push("different machines or kernels".to_owned());
    }
    if a.driver != b.driver {
        out.push("one ran on sockets, the other in simulation".to_owned());
    }
    out
}

/// As a page.
pub fn page(baseline: &RawResults, other: &RawResults, differences: &[Difference]) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>Comparison</title><style>{}</style></head><body><main><header><p class=\"kicker\">Hornwork laboratory \
         &middot; comparison</p><h1>{}</h1></header><p class=\"lead\">Baseline: {} ({}). This run: {} ({}).</p>",
        include_str!("style.css"),
        escape(&other.run.title),
        escape(&baseline.run.subject),
        escape(&baseline.run.version),
        escape(&other.run.subject),
        escape(&other.run.version),
    );
    for caution in cautions(baseline, other) {
        let _ = write!(html, "<p class=\"note\">{}</p>", escape(&caution));
    }
    html.push_str("<section><div class=\"scroll\"><table><thead><tr>");
    for heading in HEADINGS {
        let _ = write!(html, "<th scope=\"col\">{heading}</th>");
    }
    html.push_str("</tr></thead><tbody>");
    for difference in differences {
        let [first, rest @ ..] = columns(difference);
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escape(&first));
        for cell in rest {
            let _ = write!(html, "<td>{}</td>", escape(&cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div></section></main></body></html>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn welch_finds_a_difference_and_doubts_another() {
        let (low, high) = interval(&[10.0, 10.1, 9.9], &[12.0, 12.1, 11.9]).unwrap();
        assert!(low > 1.7 && high < 2.3, "{low} {high}");
        let (low, high) = interval(&[10.0, 20.0, 5.0], &[12.0, 8.0, 19.0]).unwrap();
        assert!(low < 0.0 && high > 0.0);
        assert_eq!(interval(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(interval(&[1.0, 1.0], &[1.0, 1.0]), Some((0.0, 0.0)));
    }
}
