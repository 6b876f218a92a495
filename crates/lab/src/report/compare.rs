//! Comparison of two runs of one experiment.

use super::data::{AttemptGroup, LevelRecords, RunResults, TrialSummary};
use super::level_summary::LoadFault;
use crate::error::{LabError, RunVerdict};
use crate::statistics::{student, variance};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Aggregation of a figure over several trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregation {
    /// The mean of the trials, with its confidence interval.
    Trials,
    /// A quantile or an extreme over the records of all trials, since a mean of quantiles is not a quantile. The range
    /// over the trials shows their spread.
    Records,
}

/// Reads a figure from a summary.
type SummaryFigureFn = Box<dyn Fn(&TrialSummary) -> Option<f64>>;

/// A compared figure: name, aggregation, and access to its value in a summary.
struct Figure {
    name: String,
    over: Aggregation,
    read: SummaryFigureFn,
}

/// Direction in which a figure gets worse; figures that do not rate the SUT have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorseDirection {
    Higher,
    Lower,
}

/// The direction of a figure, derived from its name.
fn direction(name: &str) -> Option<WorseDirection> {
    let higher = [" failed", "jitter", "lost", "delay", "round trip", "CPU"];
    if name.ends_with(" established") || name == "MOS" {
        return Some(WorseDirection::Lower);
    }
    let other_library = name.contains("awslc") || name.contains("openssl");
    let is_time = name.starts_with("esp.") && name.contains("_us") && !other_library;
    (is_time || higher.iter().any(|part| name.contains(part)) || name.contains(" response "))
        .then_some(WorseDirection::Higher)
}

/// A row of the comparison.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ComparisonRow {
    level: String,
    figure: String,
    baseline: ComparedValue,
    new: ComparedValue,
    /// Difference in percent of the baseline; `null` without one.
    difference_percent: Option<f64>,
}

/// A figure measured in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ComparedValue {
    value: Option<f64>,
    /// 95 % confidence interval of the mean, or the range over the trials.
    range: Option<(f64, f64)>,
    /// Half the width of the confidence interval; `null` for a range.
    half_width: Option<f64>,
    confidence: bool,
    n: usize,
    /// Variance over the trials; `None` for fewer than two.
    variance: Option<f64>,
    /// Mean of the trials' own values, where `value` is that of the records of all trials: trials are the independent
    /// samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trial_mean: Option<f64>,
    /// Values of the single trials, in the order of [`ComparedValue::from`].
    trials: Vec<Option<f64>>,
    /// References to the trials in `run.json`.
    from: Vec<String>,
}

/// The two runs.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunComparison {
    /// Name of the experiment.
    pub title: String,
    /// Folder of the baseline, relative to that of the new run.
    pub baseline: String,
    /// Other differences between the runs.
    pub notes: Vec<String>,
    /// The compared figures.
    pub rows: Vec<ComparisonRow>,
    /// Only the new run has the verdict failed.
    newly_failed: bool,
    /// Smaller differences, in percent, are ignored.
    pub tolerance_percent: f64,
}

pub(super) const HEAD: [&str; 7] = [
    "level",
    "figure",
    "baseline",
    "new",
    "difference",
    "significant",
    "judged",
];

pub(super) const LEGEND: &str = "Levels with n runs: counts and means are the mean of the trials with its 95 % confidence \
interval (Student t, n - 1 degrees of freedom); quantiles and largest values are over the records of all trials, with the \
range of the single trials in brackets. Significant: the 95 % interval of the difference of the two means (Welch) excludes \
zero; of quantiles and largest values the means of those of the single trials are compared. Worse: a significant difference in the worse direction, above the tolerance; with fewer than two trials on either \
side no difference is significant, and only the verdicts are compared.";

/// Compares `dir` with `baseline`.
///
/// # Errors
/// If one of them cannot be read, or if they belong to different experiments.
pub(super) fn compare(
    baseline: &Path,
    dir: &Path,
    tolerance_percent: f64,
) -> Result<RunComparison, LabError> {
    let (old, new) = (RunResults::read(baseline)?, RunResults::read(dir)?);
    if old.raw.run.experiment != new.raw.run.experiment {
        return Err(LabError::bad_input(format!(
            "cannot compare different experiments: {} has {:?}, {} has {:?}",
            baseline.display(),
            old.raw.run.experiment,
            dir.display(),
            new.raw.run.experiment
        )));
    }
    let (old_levels, new_levels) = (old.levels(), new.levels());
    let same = |a: &LevelRecords<'_>, b: &LevelRecords<'_>| {
        a.value.map(f64::to_bits) == b.value.map(f64::to_bits)
    };
    let mut notes = notes(&old, &new);
    let folder = relative(dir, baseline);
    let mut rows = Vec::new();
    let mut has_common = false;
    for level in &old_levels {
        match new_levels.iter().find(|other| same(level, other)) {
            Some(other) => {
                has_common = true;
                notes.extend(load_note("baseline", level));
                notes.extend(load_note("new", other));
                // Figures under another load than the planned one say nothing of the SUT.
                if is_judged(level) && is_judged(other) {
                    rows.extend(level_rows(&folder, level, other));
                }
            }
            None => notes.push(format!("level {}: only in the baseline", level.name())),
        }
    }
    for level in &new_levels {
        if !old_levels.iter().any(|other| same(level, other)) {
            notes.push(format!("level {}: only in the new run", level.name()));
        }
    }
    if !has_common {
        return Err(LabError::bad_input(format!(
            "{} and {} have no level in common",
            baseline.display(),
            dir.display()
        )));
    }
    Ok(RunComparison {
        title: new.raw.run.experiment.clone(),
        baseline: folder,
        notes,
        rows,
        newly_failed: new.raw.run.verdict == RunVerdict::Failed
            && old.raw.run.verdict != RunVerdict::Failed,
        tolerance_percent,
    })
}

fn is_judged(level: &LevelRecords<'_>) -> bool {
    let fault = level.fault.as_ref();
    !fault.is_some_and(LoadFault::is_whole_level)
}

/// Note on trials of a level that the comparison leaves out.
fn load_note(which: &str, level: &LevelRecords<'_>) -> Option<String> {
    let fault = level.fault.as_ref()?;
    Some(format!(
        "level {}: {} of {} {which} trials not judged: {}",
        level.name(),
        fault.trials,
        fault.of,
        fault.reason
    ))
}

/// Other differences between the runs.
fn notes(old: &RunResults, new: &RunResults) -> Vec<String> {
    let (old, new) = (&old.raw.run, &new.raw.run);
    let mut notes = vec![format!(
        "verdict: {} before, {} now",
        old.verdict.name(),
        new.verdict.name()
    )];
    for (what, before, now) in [
        ("driver", &old.driver, &new.driver),
        ("subject", &old.subject, &new.subject),
        ("version", &old.version, &new.version),
    ] {
        if before != now {
            notes.push(format!("{what}: {before} before, {now} now"));
        }
    }
    if old.plan != new.plan {
        notes.push("the two plans differ".to_owned());
    }
    if old.seed != new.seed {
        notes.push(format!("seed: {} before, {} now", old.seed, new.seed));
    }
    if old.machine != new.machine {
        notes.push("the two machines differ".to_owned());
    }
    notes
}

/// The path from one existing folder to another.
pub(crate) fn relative(from: &Path, to: &Path) -> String {
    let (Ok(from), Ok(to)) = (from.canonicalize(), to.canonicalize()) else {
        return to.display().to_string();
    };
    let common = from
        .components()
        .zip(to.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = from.components().skip(common).map(|_| "..".to_owned());
    let down = to.components().skip(common);
    let down = down.map(|part| part.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<String>>().join("/")
}

fn level_rows(folder: &str, old: &LevelRecords<'_>, new: &LevelRecords<'_>) -> Vec<ComparisonRow> {
    let records = |file: &str, level: &LevelRecords<'_>| -> Vec<String> {
        let places = level.all.places.iter();
        places
            .map(|place| format!("{file}#/trials/{place}"))
            .collect()
    };
    let old_file = match folder {
        "" => "run.json".to_owned(),
        folder => format!("{folder}/run.json"),
    };
    let (old_from, new_from) = (records(&old_file, old), records("run.json", new));
    let (old_all, new_all) = (old.summary(), new.summary());
    let each = |level: &LevelRecords<'_>| -> Vec<TrialSummary> {
        level.trials.iter().map(|part| part.summary()).collect()
    };
    let (old_each, new_each) = (each(old), each(new));
    figures(&old_all, &new_all)
        .into_iter()
        .map(|figure| {
            let baseline = ComparedValue {
                from: old_from.clone(),
                ..figure.value(&old_all, &old_each)
            };
            let new = ComparedValue {
                from: new_from.clone(),
                ..figure.value(&new_all, &new_each)
            };
            ComparisonRow {
                level: old.name(),
                difference_percent: difference_percent(&baseline, &new),
                baseline,
                new,
                figure: figure.name,
            }
        })
        .filter(|row| row.baseline.value.is_some() || row.new.value.is_some())
        .collect()
}

impl Figure {
    fn value(&self, all: &TrialSummary, each: &[TrialSummary]) -> ComparedValue {
        let trials: Vec<Option<f64>> = each.iter().map(|one| (self.read)(one)).collect();
        let values: Vec<f64> = trials.iter().copied().flatten().collect();
        let n = values.len();
        let mean = (n > 0).then(|| values.iter().sum::<f64>() / n as f64);
        match self.over {
            Aggregation::Records => ComparedValue {
                value: (self.read)(all),
                range: (n > 1).then(|| {
                    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
                    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    (low, high)
                }),
                n,
                variance: variance(&values),
                trial_mean: mean,
                trials,
                ..ComparedValue::default()
            },
            Aggregation::Trials => {
                let half = half_width(&values);
                ComparedValue {
                    value: mean,
                    range: mean
                        .zip(half)
                        .map(|(mean, half)| (mean - half, mean + half)),
                    half_width: half,
                    confidence: true,
                    n,
                    variance: variance(&values),
                    trial_mean: None,
                    trials,
                    from: Vec::new(),
                }
            }
        }
    }
}

fn figures(old: &TrialSummary, new: &TrialSummary) -> Vec<Figure> {
    let mut all = Vec::new();
    let mut add = |name: String, over: Aggregation, read: SummaryFigureFn| {
        all.push(Figure { name, over, read });
    };
    for group in AttemptGroup::ALL {
        if old.tally(group).attempted == 0 && new.tally(group).attempted == 0 {
            continue;
        }
        let name = group.name();
        let count = |read: fn(&super::data::Tally) -> u64| -> SummaryFigureFn {
            Box::new(move |summary| Some(read(summary.tally(group)) as f64))
        };
        add(
            format!("{name} attempted"),
            Aggregation::Trials,
            count(|t| t.attempted),
        );
        add(
            format!("{name} established"),
            Aggregation::Trials,
            count(|t| t.established),
        );
        add(
            format!("{name} failed"),
            Aggregation::Trials,
            count(|t| t.failed),
        );
        add(
            format!("{name} response mean, ms"),
            Aggregation::Trials,
            Box::new(move |s| s.tally(group).response_mean()),
        );
        for (what, q) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            add(
                format!("{name} response {what}, ms"),
                Aggregation::Records,
                Box::new(move |s| s.tally(group).response(q)),
            );
        }
    }
    type Read = fn(&TrialSummary) -> Option<f64>;
    let rest: [(&str, Aggregation, Read); 14] = [
        ("peak calls", Aggregation::Records, |s| {
            Some(s.details.peak_calls as f64)
        }),
        ("jitter mean, ms", Aggregation::Trials, |s| {
            s.figures.jitter_ms.mean
        }),
        ("jitter p99, ms", Aggregation::Records, |s| {
            s.figures.jitter_ms.p99
        }),
        ("jitter max, ms", Aggregation::Records, |s| {
            s.figures.jitter_ms.max
        }),
        ("lost, %", Aggregation::Trials, |s| s.figures.lost_percent),
        ("MOS", Aggregation::Trials, |s| s.figures.mos),
        ("one-way delay, worst, ms", Aggregation::Records, |s| {
            s.details.one_way_ms
        }),
        ("round trip, worst, ms", Aggregation::Records, |s| {
            s.details.round_trip_ms
        }),
        ("lateness p50, ms", Aggregation::Records, |s| {
            s.details.lateness_ms[0]
        }),
        ("lateness p99, ms", Aggregation::Records, |s| {
            s.details.lateness_ms[1]
        }),
        (
            "CPU per call, packets included, us",
            Aggregation::Trials,
            |s| s.figures.cpu_us_per_call,
        ),
        ("CPU of signalling per call, us", Aggregation::Trials, |s| {
            s.details.planes.signalling_us_per_call
        }),
        ("CPU of media per packet, us", Aggregation::Trials, |s| {
            s.details.planes.media_us_per_packet
        }),
        ("RcvbufErrors", Aggregation::Trials, |s| {
            s.receive_buffer_errors.map(|count| count as f64)
        }),
    ];
    for (name, over, read) in rest {
        add(name.to_owned(), over, Box::new(read));
    }
    for case in &old.details.measures {
        let name = case.figure.clone();
        let read: SummaryFigureFn = Box::new(move |summary| {
            let mut measured = summary.details.measures.iter();
            Some(measured.find(|other| other.figure == name)?.value)
        });
        add(case.figure.clone(), Aggregation::Trials, read);
    }
    all
}

/// Half the width of the 95 % confidence interval of the mean; `None` for fewer than two values.
fn half_width(values: &[f64]) -> Option<f64> {
    let n = values.len();
    Some(student(n.saturating_sub(1)) * (variance(values)? / n as f64).sqrt())
}

/// Whether the 95 % interval of the difference of two means (Welch) excludes zero; `None` with fewer than two trials on
/// either side.
fn is_significant(old: &ComparedValue, new: &ComparedValue) -> Option<bool> {
    let part = |value: &ComparedValue| Some(value.variance? / value.n as f64);
    let (a, b) = (part(old)?, part(new)?);
    let change = (new.judged()? - old.judged()?).abs();
    let spread = a + b;
    if spread == 0.0 {
        return Some(change > 0.0);
    }
    let (n, m) = ((old.n - 1) as f64, (new.n - 1) as f64);
    let freedom = spread.powi(2) / (a.powi(2) / n + b.powi(2) / m);
    Some(change > student(freedom.floor() as usize) * spread.sqrt())
}

impl ComparedValue {
    /// The value by which a difference is judged.
    fn judged(&self) -> Option<f64> {
        self.value.and(self.trial_mean.or(self.value))
    }

    fn text(&self) -> String {
        let Some(value) = self.value else {
            return "-".to_owned();
        };
        let value = plain(value);
        match self.range {
            None => value,
            Some((low, high)) if self.confidence => {
                format!("{value} ± {} (n={})", plain((high - low) / 2.0), self.n)
            }
            Some((low, high)) => {
                format!("{value} [{}..{}] (n={})", plain(low), plain(high), self.n)
            }
        }
    }
}

fn plain(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}

/// Difference of two values in percent of the first; `None` if one is missing, or if only the first is 0.
fn difference_percent(old: &ComparedValue, new: &ComparedValue) -> Option<f64> {
    match (old.value?, new.value?) {
        (old, new) if old == new => Some(0.0),
        (0.0, _) => None,
        (old, new) => Some((new - old) * 100.0 / old.abs()),
    }
}

/// A difference as text; `has_both`: both values were measured.
pub(crate) fn difference_text(percent: Option<f64>, has_both: bool) -> String {
    match (percent, has_both) {
        (Some(0.0), _) => "0 %".to_owned(),
        (Some(percent), _) => format!("{percent:+.1} %"),
        (None, true) => "from 0".to_owned(),
        (None, false) => "-".to_owned(),
    }
}

impl ComparisonRow {
    fn difference(&self) -> String {
        let both = self.baseline.value.zip(self.new.value);
        difference_text(self.difference_percent, both.is_some())
    }

    fn significance(&self) -> &'static str {
        match is_significant(&self.baseline, &self.new) {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        }
    }

    /// Whether this figure is worse in the new run.
    fn is_worse(&self, tolerance_percent: f64) -> bool {
        let (Some(old), Some(new)) = (self.baseline.judged(), self.new.judged()) else {
            return false;
        };
        let by = match direction(&self.figure) {
            Some(WorseDirection::Higher) => new - old,
            Some(WorseDirection::Lower) => old - new,
            None => return false,
        };
        is_significant(&self.baseline, &self.new) == Some(true)
            && by > old.abs() * tolerance_percent / 100.0
    }

    /// The cells as text.
    pub fn cells(&self, tolerance_percent: f64) -> [String; 7] {
        [
            self.level.clone(),
            self.figure.clone(),
            self.baseline.text(),
            self.new.text(),
            self.difference(),
            self.significance().to_owned(),
            match self.is_worse(tolerance_percent) {
                true => "worse".to_owned(),
                false => String::new(),
            },
        ]
    }
}

impl RunComparison {
    /// As text for the terminal.
    pub fn text(&self) -> String {
        let mut rows = vec![HEAD.map(str::to_owned)];
        let cells = self
            .rows
            .iter()
            .map(|row| row.cells(self.tolerance_percent));
        rows.extend(cells);
        let mut widths = [0; 7];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut out = format!("{}\n", without_control_characters(&self.title));
        for note in &self.notes {
            out.push_str(&format!("  {}\n", without_control_characters(note)));
        }
        out.push('\n');
        for row in &rows {
            let cells = row.iter().zip(widths).enumerate();
            let line: Vec<String> = cells
                .map(|(place, (cell, width))| match place {
                    0 | 1 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                })
                .collect();
            out.push_str(line.join("  ").trim_end());
            out.push('\n');
        }
        out.push_str(&format!("\n{LEGEND}\n{}\n", self.judgement()));
        out
    }

    /// Figures that are worse in the new run, and the verdict if it is.
    fn worse_figures(&self) -> Vec<String> {
        let rows = self.rows.iter();
        let mut worse: Vec<String> = rows
            .filter(|row| row.is_worse(self.tolerance_percent))
            .map(|row| format!("{} at {}", row.figure, row.level))
            .collect();
        if self.newly_failed {
            worse.push("the verdict".to_owned());
        }
        worse
    }

    /// Whether the new run is worse.
    pub fn is_worse(&self) -> bool {
        !self.worse_figures().is_empty()
    }

    /// The judgement as a sentence.
    pub fn judgement(&self) -> String {
        let worse = self.worse_figures();
        match worse.is_empty() {
            true if self.rows.is_empty() => {
                "not compared: no level was judged in both runs".to_owned()
            }
            true => "not worse".to_owned(),
            false => format!("worse: {}", without_control_characters(&worse.join(", "))),
        }
    }

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        let value = |value: &ComparedValue| {
            let (low, high) = value.range.unzip();
            serde_json::json!({
                "value": value.value,
                "low": low,
                "high": high,
                "range": if value.confidence { "confidence_95" } else { "trials" },
                "trials": value.n,
            })
        };
        let rows: Vec<serde_json::Value> = self
            .rows
            .iter()
            .map(|row| {
                serde_json::json!({
                    "level": row.level,
                    "figure": row.figure,
                    "baseline": value(&row.baseline),
                    "new": value(&row.new),
                    "told_apart": is_significant(&row.baseline, &row.new),
                    "worse": row.is_worse(self.tolerance_percent),
                })
            })
            .collect();
        serde_json::json!({
            "experiment": self.title,
            "notes": self.notes,
            "tolerance_percent": self.tolerance_percent,
            "worse": self.is_worse(),
            "worse_in": self.worse_figures(),
            "rows": rows,
        })
    }
}

/// Removes control characters, which a terminal would interpret.
fn without_control_characters(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{FORMAT, RawWriter, RunRecord, SendLateness, Surroundings, TrialRecord};
    use crate::record::{Attempt, AttemptKind, AttemptOutcome, StreamRecord};
    use engine::Time;
    use std::path::PathBuf;

    /// Writes a run with one trial for each pair: the times of 300 responses, and the lateness of RTP packets; the one-way
    /// delay of its stream is the last response time.
    fn written(name: &str, trials: &[(Vec<f64>, f64)]) -> PathBuf {
        let name = format!("hornwork-compare-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        let mut raw = RawWriter::create(&dir).unwrap();
        let mut run = RunRecord {
            format: FORMAT,
            ..RunRecord::default()
        };
        for (number, (responses_ms, late_ms)) in (0..).zip(trials) {
            let attempts: Vec<Attempt> = (0u64..)
                .zip(responses_ms)
                .map(|(call, ms)| {
                    let mut attempt = Attempt::new("calls", AttemptKind::Call, call, Time(call));
                    attempt.trial = number;
                    attempt.sent = Some(call);
                    attempt.established = Some(call + (ms * 1e6) as u64);
                    attempt.outcome = AttemptOutcome::Completed;
                    attempt
                })
                .collect();
            let stream = StreamRecord {
                trial: number,
                received: 50,
                expected: 50,
                one_way_mean_ms: responses_ms.last().copied(),
                ..StreamRecord::default()
            };
            raw.trial(&attempts, &[stream]).unwrap();
            run.trials.push(TrialRecord {
                trial: number,
                level: Some(900.0),
                surroundings: Some(Surroundings {
                    send_lateness: Some(SendLateness {
                        packets: 1_000,
                        p99_ms: *late_ms,
                        ..SendLateness::default()
                    }),
                    ..Surroundings::default()
                }),
                ..TrialRecord::default()
            });
        }
        raw.finish(&run).unwrap();
        dir
    }

    fn compared(old: &[(Vec<f64>, f64)], new: &[(Vec<f64>, f64)], name: &str) -> RunComparison {
        let dirs = [("old", old), ("new", new)];
        let [old, new] = dirs.map(|(side, trials)| written(&format!("{name}-{side}"), trials));
        let found = compare(&old, &new, 5.0).unwrap();
        for dir in [old, new] {
            std::fs::remove_dir_all(dir).unwrap();
        }
        found
    }

    #[test]
    fn trials_without_the_planned_load_are_not_compared() {
        let trials = |ms: f64, late_ms: [f64; 3]| {
            late_ms.map(|late_ms| (vec![ms, ms + 0.1, ms + late_ms / 1e3], late_ms))
        };
        let (old, slow) = (trials(10.0, [0.1; 3]), trials(20.0, [0.1; 3]));
        assert!(compared(&old, &slow, "slow").is_worse());
        let starved = compared(&old, &trials(20.0, [25.0; 3]), "starved");
        assert!(!starved.is_worse() && starved.rows.is_empty());
        let cause = "level 900: 3 of 3 new trials not judged: the generator could not keep up";
        assert!(starved.notes.iter().any(|note| note.starts_with(cause)));
        assert!(starved.judgement().starts_with("not compared"));
        // One starved repetition of three is left out.
        let mut mixed = trials(10.0, [0.1; 3]);
        mixed[1] = (vec![900.0; 3], 25.0);
        let mixed = compared(&old, &mixed, "mixed");
        assert!(!mixed.is_worse(), "{}", mixed.text());
        let cause = "level 900: 1 of 3 new trials not judged";
        assert!(mixed.notes.iter().any(|note| note.starts_with(cause)));
        let mean = |row: &&ComparisonRow| row.figure == "calls response mean, ms";
        assert_eq!(mixed.rows.iter().find(mean).unwrap().new.n, 2);
    }

    #[test]
    fn quantiles_and_delays_can_be_worse() {
        // 2 % of the calls are slow; their mean moves by less than its tolerance.
        let trials = |slow_ms: [f64; 3]| {
            slow_ms.map(|slow_ms| {
                let mut responses = vec![200.0; 300];
                responses[294..].fill(slow_ms);
                (responses, 0.1)
            })
        };
        let (old, new) = (trials([220.0, 221.0, 219.0]), trials([320.0, 321.0, 319.0]));
        let found = compared(&old, &new, "quantiles");
        let worse = found.worse_figures();
        for figure in [
            "calls response p99, ms at 900",
            "one-way delay, worst, ms at 900",
        ] {
            assert!(worse.iter().any(|name| name == figure), "{worse:?}");
        }
        assert!(!worse.iter().any(|name| name.contains("mean")), "{worse:?}");
        assert!(!compared(&old, &old, "same").is_worse());
        // One trial on a side shows no spread.
        assert!(!compared(&old[..1], &new, "one").is_worse());
    }

    #[test]
    fn confidence_interval_uses_students_t() {
        assert_eq!(half_width(&[5.0]), None);
        // The standard deviation of 1, 2, 3 is 1; t with 2 degrees of freedom is 4.303.
        let half = half_width(&[1.0, 2.0, 3.0]).unwrap();
        assert!((half - 4.303 / 3f64.sqrt()).abs() < 1e-12);
        assert_eq!(
            (student(1), student(30), student(35)),
            (12.706, 2.042, 2.042)
        );
        assert_eq!((student(40), student(1000)), (2.021, 1.980));
    }

    #[test]
    fn welch_test_finds_significant_difference_only() {
        let value = |values: &[f64]| ComparedValue {
            value: Some(values.iter().sum::<f64>() / values.len() as f64),
            n: values.len(),
            variance: variance(values),
            ..ComparedValue::default()
        };
        let apart = |a: &[f64], b: &[f64]| is_significant(&value(a), &value(b));
        assert_eq!(apart(&[10.0, 10.1, 9.9], &[12.0, 12.1, 11.9]), Some(true));
        assert_eq!(apart(&[10.0, 20.0, 5.0], &[12.0, 8.0, 19.0]), Some(false));
        assert_eq!(apart(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(apart(&[1.0, 1.0], &[1.0, 1.0]), Some(false));
    }

    #[test]
    fn differences_are_relative_to_the_baseline() {
        let value = |value: f64| ComparedValue {
            value: Some(value),
            n: 1,
            ..ComparedValue::default()
        };
        let row = |old: f64, new: f64| ComparisonRow {
            level: String::new(),
            figure: String::new(),
            difference_percent: difference_percent(&value(old), &value(new)),
            baseline: value(old),
            new: value(new),
        };
        assert_eq!(row(10.0, 12.5).difference(), "+25.0 %");
        assert_eq!(row(-4.0, -5.0).difference(), "-25.0 %");
        assert_eq!(row(0.0, 1.0).difference(), "from 0");
        assert_eq!(row(0.0, 0.0).difference(), "0 %");
    }

    #[test]
    fn worse_requires_direction_and_more_than_the_tolerance() {
        let row = |figure: &str, old: [f64; 3], new: [f64; 3]| {
            let value = |values: [f64; 3]| ComparedValue {
                value: Some(values.iter().sum::<f64>() / 3.0),
                n: 3,
                variance: variance(&values),
                ..ComparedValue::default()
            };
            ComparisonRow {
                level: "10".to_owned(),
                figure: figure.to_owned(),
                baseline: value(old),
                new: value(new),
                difference_percent: None,
            }
        };
        let (low, high) = ([10.0, 10.1, 9.9], [12.0, 12.1, 11.9]);
        for (figure, worse) in [
            ("call failed", true),
            ("call response mean, ms", true),
            ("CPU per call, us", true),
            ("call established", false),
            ("MOS", false),
            ("call attempted", false),
            ("lateness p99, ms", false),
        ] {
            assert_eq!(row(figure, low, high).is_worse(5.0), worse, "{figure}");
        }
        assert!(row("MOS", high, low).is_worse(5.0));
        assert!(!row("MOS", high, low).is_worse(20.0));
        assert!(!row("MOS", [10.0, 20.0, 5.0], [12.0, 8.0, 4.0]).is_worse(5.0));
    }
}
