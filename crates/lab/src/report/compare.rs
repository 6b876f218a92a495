//! Comparison of two runs of one experiment.

mod figures;
mod search;
mod verdict;

use super::data::{LevelRecords, RunResults, TrialSummary};
use super::level_summary::LoadFault;
use super::significance::{ONE_SIDED, Sample, p_of_counts, p_of_rise, significant_together};
use crate::error::{LabError, RunVerdict};
use crate::statistics::{student, variance};
use figures::{WorseDirection, direction, figures};
use search::{SearchedLimit, search_row};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the row with the results of two searches, and its level.
const RESULT: &str = "result of the search";
const OF_SEARCH: &str = "search";

/// A row of the comparison.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ComparisonRow {
    level: String,
    figure: String,
    baseline: ComparedValue,
    new: ComparedValue,
    /// Difference in percent of the baseline; `null` without one.
    difference_percent: Option<f64>,
    /// Of a level that a search has tried: its trials only served to find the result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_probe: bool,
}

/// The judgement of a row among all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RowJudgement {
    /// Probability of a change in the worse direction by this much or more, without a change of the SUT.
    p_value: Option<f64>,
    /// Whether the row's own test finds a difference; `None` without a test.
    is_significant: Option<bool>,
    is_worse: bool,
    /// Worse by more than the tolerance, with too few trials for a test.
    is_untested: bool,
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
    /// Variance of a trial that follows from its number of events alone; `null` for figures that are no counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    least_variance: Option<f64>,
    /// Events and occasions of a count of calls, over all trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    events: Option<(f64, f64)>,
    /// The limit that a search found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    searched: Option<SearchedLimit>,
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
zero; of quantiles and largest values the means of those of the single trials are compared; counts have at least the variance \
of independent events. Worse: a difference in the worse direction above the tolerance that is significant among all judged \
figures (Benjamini and Hochberg), so that many figures of equal runs are no more often worse than one. With fewer than two \
trials on either side only shares of calls are tested (established, failed: two proportions, calls taken as independent). Not \
judged: a difference in the worse direction above the tolerance that the trials are too few to test. Searches are compared by their result, \
with the highest value that passed and the lowest above it that failed in brackets: it is worse if these do not overlap; the \
levels that a search has tried are not judged.";

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
    let searches = (old.raw.run.search.as_ref()).zip(new.raw.run.search.as_ref());
    rows.extend(searches.map(|searches| search_row(&folder, searches)));
    let mut has_common = searches.is_some();
    for level in &old_levels {
        match new_levels.iter().find(|other| same(level, other)) {
            Some(other) => {
                has_common = true;
                notes.extend(load_note("baseline", level));
                notes.extend(load_note("new", other));
                // Figures under another load than the planned one say nothing of the SUT.
                if is_judged(level) && is_judged(other) {
                    let of_level = level_rows(&folder, level, other).into_iter();
                    rows.extend(of_level.map(|row| ComparisonRow {
                        is_probe: searches.is_some(),
                        ..row
                    }));
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
        ("SUT", &old.subject, &new.subject),
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

/// The record of the run in a folder, relative to the new run.
fn run_file(folder: &str) -> String {
    match folder {
        "" => "run.json".to_owned(),
        folder => format!("{folder}/run.json"),
    }
}

fn level_rows(folder: &str, old: &LevelRecords<'_>, new: &LevelRecords<'_>) -> Vec<ComparisonRow> {
    let records = |file: &str, level: &LevelRecords<'_>| -> Vec<String> {
        let places = level.all.places.iter();
        places
            .map(|place| format!("{file}#/trials/{place}"))
            .collect()
    };
    let (old_from, new_from) = (records(&run_file(folder), old), records("run.json", new));
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
                is_probe: false,
            }
        })
        .filter(|row| row.baseline.value.is_some() || row.new.value.is_some())
        .collect()
}

/// Half the width of the 95 % confidence interval of the mean; `None` for fewer than two values.
fn half_width(values: &[f64]) -> Option<f64> {
    let n = values.len();
    Some(student(n.saturating_sub(1)) * (variance(values)? / n as f64).sqrt())
}

impl ComparedValue {
    /// The value by which a difference is judged.
    fn judged(&self) -> Option<f64> {
        self.value.and(self.trial_mean.or(self.value))
    }

    /// The trials as a sample; `None` without a value, or with fewer than two trials.
    fn sample(&self) -> Option<Sample> {
        Some(Sample {
            mean: self.judged()?,
            n: self.n,
            variance: self.variance?,
            least_variance: self.least_variance,
        })
    }

    fn text(&self) -> String {
        let Some(value) = self.value else {
            return match self.searched {
                Some(limit) if limit.is_measured => limit.below.map_or_else(
                    || "no load passed".to_owned(),
                    |value| format!("below {}", plain(value)),
                ),
                _ => "-".to_owned(),
            };
        };
        let value = plain(value);
        match self.range {
            None if self.searched.is_some() => format!("{value} or more (n={})", self.n),
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

    /// The test of this row alone.
    fn tested(&self) -> RowJudgement {
        if let Some((old, new)) = self.baseline.searched.zip(self.new.searched) {
            let below = |a: SearchedLimit, b: SearchedLimit| {
                (a.high.zip(b.low)).is_some_and(|(high, low)| high < low)
            };
            let both = self.baseline.value.zip(self.new.value);
            return RowJudgement {
                is_significant: both.map(|_| below(old, new) || below(new, old)),
                ..RowJudgement::default()
            };
        }
        let rise = match self.baseline.sample().zip(self.new.sample()) {
            Some((old, new)) => p_of_rise(&old, &new),
            None => (self.baseline.events.zip(self.new.events))
                .and_then(|(old, new)| p_of_counts(old, new)),
        };
        RowJudgement {
            p_value: rise.map(|rise| match direction(&self.figure) {
                Some(WorseDirection::Lower) => 1.0 - rise,
                _ => rise,
            }),
            is_significant: rise.map(|rise| !(ONE_SIDED..=1.0 - ONE_SIDED).contains(&rise)),
            ..RowJudgement::default()
        }
    }

    /// Whether the figure is worse by more than the tolerance, significant or not.
    fn is_beyond(&self, tolerance_percent: f64) -> bool {
        let (Some(old), Some(new)) = (self.baseline.judged(), self.new.judged()) else {
            return false;
        };
        let by = match direction(&self.figure) {
            Some(WorseDirection::Higher) => new - old,
            Some(WorseDirection::Lower) => old - new,
            None => return false,
        };
        by > old.abs() * tolerance_percent / 100.0
    }

    /// Whether the trials are too few for a test. Searches have their own rule.
    fn is_untested(&self, test: &RowJudgement) -> bool {
        test.p_value.is_none() && self.baseline.searched.is_none()
    }

    /// Whether it was measured in both runs. A search without a result has measured that its limit is below the trials
    /// that failed.
    fn is_compared(&self) -> bool {
        let searched = self.baseline.searched.zip(self.new.searched);
        match (self.baseline.value, self.new.value) {
            (Some(_), Some(_)) => true,
            // Unless it is worse, the new limit may be on either side of the baseline's.
            (Some(_), None) => false,
            (None, result) => searched.is_some_and(|(old, new)| old.is_at_most(new, result)),
        }
    }

    /// The cells as text.
    fn cells(&self, judgement: &RowJudgement) -> [String; 7] {
        [
            self.level.clone(),
            self.figure.clone(),
            self.baseline.text(),
            self.new.text(),
            self.difference(),
            match judgement.is_significant {
                Some(true) => "yes",
                Some(false) => "no",
                None => "-",
            }
            .to_owned(),
            match (judgement.is_worse, judgement.is_untested) {
                (true, _) => "worse".to_owned(),
                (false, true) => "not judged".to_owned(),
                (false, false) => String::new(),
            },
        ]
    }
}

/// Judges rows among each other.
fn judge(rows: &[ComparisonRow], tolerance_percent: f64) -> Vec<RowJudgement> {
    let tested: Vec<RowJudgement> = rows.iter().map(ComparisonRow::tested).collect();
    let judged = |row: &ComparisonRow| !row.is_probe && direction(&row.figure).is_some();
    let p_values: Vec<Option<f64>> = (rows.iter().zip(&tested))
        .map(|(row, test)| test.p_value.filter(|_| judged(row)))
        .collect();
    let together = significant_together(&p_values);
    let rows = rows.iter().zip(tested).zip(together);
    rows.map(|((row, test), is_significant)| RowJudgement {
        is_worse: row.is_worse_search(tolerance_percent)
            || is_significant && row.is_beyond(tolerance_percent),
        is_untested: judged(row) && row.is_untested(&test) && row.is_beyond(tolerance_percent),
        ..test
    })
    .collect()
}

impl RunComparison {
    /// The cells of all rows as text.
    pub fn cells(&self) -> Vec<[String; 7]> {
        let judged = judge(&self.rows, self.tolerance_percent);
        let rows = self.rows.iter().zip(&judged);
        rows.map(|(row, judgement)| row.cells(judgement)).collect()
    }

    /// As text for the terminal.
    pub fn text(&self) -> String {
        let mut rows = vec![HEAD.map(str::to_owned)];
        rows.extend(self.cells());
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

    /// As JSON.
    pub fn json(&self) -> serde_json::Value {
        let value = |value: &ComparedValue| {
            let (low, high) = value.range.unzip();
            serde_json::json!({
                "value": value.value,
                "low": low,
                "high": high,
                "range": match (value.confidence, value.searched) {
                    (true, _) => "confidence_95",
                    (false, Some(_)) => "search",
                    (false, None) => "trials",
                },
                "trials": value.n,
            })
        };
        let judged = judge(&self.rows, self.tolerance_percent);
        let rows: Vec<serde_json::Value> = self
            .rows
            .iter()
            .zip(&judged)
            .map(|(row, judgement)| {
                serde_json::json!({
                    "level": row.level,
                    "figure": row.figure,
                    "baseline": value(&row.baseline),
                    "new": value(&row.new),
                    "told_apart": judgement.is_significant,
                    "p_value": judgement.p_value,
                    "worse": judgement.is_worse,
                    "not_judged": judgement.is_untested,
                })
            })
            .collect();
        serde_json::json!({
            "experiment": self.title,
            "notes": self.notes,
            "tolerance_percent": self.tolerance_percent,
            "worse": match self.verdict() {
                RunVerdict::Failed => Some(true),
                RunVerdict::Passed | RunVerdict::NotJudged => Some(false),
                RunVerdict::NotMeasured => None,
            },
            "verdict": self.verdict(),
            "worse_in": self.worse_figures(),
            "not_judged": self.untested_figures(),
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
    use super::super::significance::variance_of_count;
    use super::*;
    use crate::raw::{FORMAT, RawWriter, RunRecord, SendLateness, Surroundings, TrialRecord};
    use crate::record::{Attempt, AttemptKind, AttemptOutcome, StreamRecord};
    use engine::Time;
    use std::path::PathBuf;

    /// Writes a run with one trial for each pair: the times of 300 responses, and the lateness of RTP packets; the
    /// one-way delay of its stream is the last response time.
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

    impl RunComparison {
        fn is_worse(&self) -> bool {
            self.verdict() == RunVerdict::Failed
        }
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
        assert_eq!(starved.verdict(), RunVerdict::NotMeasured);
        assert_eq!(
            compared(&old, &old, "unchanged").verdict(),
            RunVerdict::Passed
        );
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

    /// Writes a search with this result, and the value above it that failed.
    fn searched(
        name: &str,
        result: Option<f64>,
        failed_above: Option<f64>,
        invalid: bool,
    ) -> PathBuf {
        use crate::search::record::{SearchRecord, SearchTrial};
        let dir = written(name, &[(vec![1.0; 300], 0.1)]);
        let mut run = crate::raw::read_run(&dir).unwrap();
        let step = |good: bool, value: f64| SearchTrial {
            value,
            good,
            invalid: !good && invalid,
            ..SearchTrial::default()
        };
        run.trials[0].level = result.or(failed_above);
        run.search = Some(SearchRecord {
            trials: (result.map(|value| step(true, value)).into_iter())
                .chain(failed_above.map(|value| step(false, value)))
                .collect(),
            result,
            failed_above,
            ..SearchRecord::default()
        });
        crate::raw::write_run(&dir, &run).unwrap();
        dir
    }

    #[test]
    fn searches_are_compared_by_their_results() {
        type Found = (Option<f64>, Option<f64>, bool);
        let compared = |name: &str, old: Found, new: Found| {
            let [old, new] = [("old", old), ("new", new)].map(|(side, found)| {
                searched(&format!("search-{name}-{side}"), found.0, found.1, found.2)
            });
            let found = compare(&old, &new, 5.0).unwrap();
            for dir in [old, new] {
                std::fs::remove_dir_all(dir).unwrap();
            }
            found
        };
        let full = (Some(9_000.0), Some(9_450.0), false);
        let half = (Some(4_500.0), Some(4_725.0), false);
        let found = compared("half", full, half);
        assert_eq!(found.worse_figures(), [RESULT]);
        assert_eq!(found.verdict(), RunVerdict::Failed);
        assert!(
            found.text().contains("9000 [9000..9450] (n=2)"),
            "{}",
            found.text()
        );
        let verdict = |name: &str, old: Found, new: Found| compared(name, old, new).verdict();
        assert_eq!(verdict("better", half, full), RunVerdict::Passed);
        assert_eq!(verdict("equal", full, full), RunVerdict::Passed);
        // Neighbours overlap.
        let near = (Some(8_600.0), Some(9_050.0), false);
        assert_eq!(verdict("near", full, near), RunVerdict::Passed);
        // The generator was the limit of the new run; the lowest value failed; nothing was measured.
        let limited = (Some(4_500.0), Some(4_725.0), true);
        assert_eq!(verdict("limited", full, limited), RunVerdict::Passed);
        let none = (None, Some(100.0), false);
        assert_eq!(verdict("none", full, none), RunVerdict::Failed);
        let unknown = (None, Some(100.0), true);
        assert_eq!(verdict("unknown", full, unknown), RunVerdict::NotMeasured);
        // The only full trial failed above the other search's result: either limit may be the higher one.
        let early = (None, Some(12_000.0), false);
        let found = compared("early", full, early);
        assert_eq!(found.verdict(), RunVerdict::NotMeasured);
        let judgement = found.judgement();
        assert!(judgement.starts_with("not compared"), "{judgement}");
        assert_eq!(verdict("baseline", early, full), RunVerdict::NotMeasured);
        assert_eq!(verdict("both", early, early), RunVerdict::NotMeasured);
        // A baseline that failed below the new result is not better than it.
        assert_eq!(verdict("raised", none, full), RunVerdict::Passed);
    }

    #[test]
    fn a_failed_call_in_each_of_two_trials_is_no_proof() {
        let row = |figure: &str, old: [f64; 2], new: [f64; 2]| {
            let value = |counts: [f64; 2]| ComparedValue {
                value: Some(counts.iter().sum::<f64>() / 2.0),
                n: 2,
                variance: variance(&counts),
                least_variance: Some(variance_of_count(counts.iter().sum(), 600.0, 2)),
                ..ComparedValue::default()
            };
            ComparisonRow {
                level: "10".to_owned(),
                figure: figure.to_owned(),
                baseline: value(old),
                new: value(new),
                difference_percent: None,
                is_probe: false,
            }
        };
        let worse = |old, new| judge(&[row("calls failed", old, new)], 5.0)[0].is_worse;
        assert!(!worse([0.0; 2], [1.0; 2]));
        assert!(worse([0.0; 2], [30.0; 2]));
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
        let one = compared(&old[..1], &new, "one");
        assert_eq!(one.verdict(), RunVerdict::NotMeasured);
        assert!(
            one.judgement().contains("--repeat 3"),
            "{}",
            one.judgement()
        );
        // Faster, or equal: no difference waits for a test.
        assert_eq!(
            compared(&new[..1], &old[..1], "faster").verdict(),
            RunVerdict::Passed
        );
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
        let apart = |a: &[f64], b: &[f64]| {
            let row = ComparisonRow {
                level: String::new(),
                figure: String::new(),
                baseline: value(a),
                new: value(b),
                difference_percent: None,
                is_probe: false,
            };
            row.tested().is_significant
        };
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
            is_probe: false,
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
                is_probe: false,
            }
        };
        let is_worse = |row: ComparisonRow, tolerance| judge(&[row], tolerance)[0].is_worse;
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
            assert_eq!(is_worse(row(figure, low, high), 5.0), worse, "{figure}");
        }
        assert!(is_worse(row("MOS", high, low), 5.0));
        assert!(!is_worse(row("MOS", high, low), 20.0));
        let scattered = row("MOS", [10.0, 20.0, 5.0], [12.0, 8.0, 4.0]);
        assert!(!is_worse(scattered, 5.0));
    }
}
