//! Comparison of a study's figures with those of a run.

use super::bounds::{reference, relative_to_reference};
use super::level_summary::LevelSummary;
use crate::decimal::plain;
use crate::error::RunVerdict;
use crate::experiment::{CAPACITY, Study};
use crate::raw::RunRecord;
use crate::search::record::SearchRecord;
use crate::statistics::{Interval, has_too_few_samples};
use serde_json::{Value, json};
use std::cmp::Ordering;

/// One figure of the study and of this run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StudyComparison {
    /// Value of the sweep; `None` for a figure of all levels.
    pub level: Option<f64>,
    /// Name of the figure: a column of `levels.csv`, or `capacity`.
    pub figure: String,
    /// Its unit, for the study's main figure.
    pub unit: String,
    /// Value in the study.
    pub study_value: f64,
    /// Upper end of a range in the study.
    pub study_most: Option<f64>,
    /// Value in this run; `None` if the level was not run, or the figure not measured.
    pub run_value: Option<f64>,
    /// 95 % confidence interval of our value, and its number of samples.
    pub interval: Option<Interval>,
    /// Explanation of the value.
    pub remark: String,
}

impl StudyComparison {
    /// The study's value as text.
    pub(crate) fn study_text(&self) -> String {
        let value = plain(self.study_value);
        self.study_most
            .map_or(value.clone(), |most| format!("{value} to {}", plain(most)))
    }

    /// Our value as text.
    pub(crate) fn run_value_text(&self) -> String {
        match (self.run_value, self.remark.as_str()) {
            (None, "") => "not measured".to_owned(),
            (None, remark) => remark.to_owned(),
            (Some(ours), "") => plain(ours),
            (Some(ours), remark) => format!("{}, {remark}", plain(ours)),
        }
    }

    /// The interval as text; empty if not measured.
    pub(crate) fn interval_text(&self) -> String {
        self.interval
            .as_ref()
            .map_or(String::new(), Interval::marked_ends)
    }

    /// The source of the interval as text.
    pub(crate) fn source_text(&self) -> String {
        self.interval
            .as_ref()
            .map_or(String::new(), Interval::source)
    }
}

/// The figures of the run's study beside those of the levels that were run; the main figure last.
pub(crate) fn compare_with_study(run: &RunRecord, levels: &[LevelSummary]) -> Vec<StudyComparison> {
    let Some(study) = &run.study else {
        return Vec::new();
    };
    let mut rows: Vec<StudyComparison> = Vec::new();
    for theirs in &study.level {
        let ours = level_at(levels, theirs.at);
        let judged = ours.filter(|level| level.is_judged());
        // In the order of the tables, not of the alphabet.
        let mut names: Vec<&String> = theirs.figures.keys().collect();
        names.sort_by_key(|name| table_order(name));
        for name in names {
            let value = judged.and_then(|level| level.figure(name));
            let interval = judged.and_then(|level| level.intervals.get(name));
            rows.push(StudyComparison {
                level: Some(theirs.at),
                figure: name.clone(),
                unit: String::new(),
                study_value: theirs.figures.get(name).copied().unwrap_or_default(),
                study_most: None,
                run_value: value,
                interval: interval.filter(|_| value.is_some()).cloned(),
                remark: match ours {
                    Some(level) => remark_on(level, name),
                    None => NOT_RUN.to_owned(),
                },
            });
        }
    }
    if let Some(theirs) = study.figure {
        let (level, found) = main_figure(study, run, levels);
        rows.push(StudyComparison {
            level,
            figure: study.ours.clone(),
            unit: study.unit.clone(),
            study_value: theirs,
            study_most: study.figure_most,
            run_value: found.value,
            interval: found.interval,
            remark: found.remark,
        });
    }
    rows
}

const NOT_RUN: &str = "level not run";

/// Remark on a figure with few samples, or with trials that cannot be judged.
fn remark_on(level: &LevelSummary, name: &str) -> String {
    let is_few = name == "response_p99_ms" && has_too_few_samples(level.answered, 0.99);
    let few = match is_few && level.is_judged() {
        true => "fewer than 300 samples: close to the largest",
        false => "",
    };
    match (level.load_remark(), few) {
        (fault, "") => fault,
        (fault, few) if fault.is_empty() => few.to_owned(),
        (fault, few) => format!("{few}; {fault}"),
    }
}

fn level_at(levels: &[LevelSummary], value: f64) -> Option<&LevelSummary> {
    levels.iter().find(|level| level.level == Some(value))
}

/// A figure of ours, and the remark on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MeasuredFigure {
    /// The value; `None` if there is none.
    pub value: Option<f64>,
    /// Its confidence interval.
    pub interval: Option<Interval>,
    /// Whether the true value may be higher: no higher level failed, or the SUT did not get the load of that level.
    pub is_open_above: bool,
    /// Remark as text.
    pub remark: String,
}

/// Our value for the study's main figure, and the level at which it was read.
fn main_figure(
    study: &Study,
    run: &RunRecord,
    levels: &[LevelSummary],
) -> (Option<f64>, MeasuredFigure) {
    if study.ours == CAPACITY {
        let found = match &run.search {
            Some(search) => search_result(search),
            None => capacity(levels),
        };
        return (None, found);
    }
    let remarked = |remark: &str| MeasuredFigure {
        remark: remark.to_owned(),
        ..MeasuredFigure::default()
    };
    let level = match study.at {
        Some(value) => level_at(levels, value),
        None => levels
            .iter()
            .max_by(|a, b| a.level.partial_cmp(&b.level).unwrap_or(Ordering::Equal)),
    };
    let Some(level) = level else {
        return (study.at, remarked(NOT_RUN));
    };
    if !level.is_judged() {
        return (level.level, remarked(&level.load_remark()));
    }
    let base = match reference(study.percent_of.as_ref(), &study.ours, run, levels) {
        Ok(base) => base,
        Err(remark) => return (level.level, remarked(remark)),
    };
    let (value, interval) = relative_to_reference(level, &study.ours, base);
    let found = MeasuredFigure {
        value,
        interval,
        ..remarked(&remark_on(level, &study.ours))
    };
    (level.level, found)
}

fn table_order(name: &str) -> usize {
    let bare = name.trim_end_matches(" ms");
    let class = crate::figures::CLASS_NAMES.iter().position(|n| *n == bare);
    let figure = LevelSummary::FIGURES.iter().position(|n| *n == name);
    class.or(figure.map(|at| at + 100)).unwrap_or(usize::MAX)
}

/// Result of a search.
pub(super) fn search_result(search: &SearchRecord) -> MeasuredFigure {
    let mut remarks: Vec<String> = Vec::new();
    match (search.result, search.failed_above, search.load_limit()) {
        (None, _, _) if !search.is_measured() => remarks.push("not measured".to_owned()),
        (None, _, _) => remarks.extend(search.without_result()),
        (Some(_), None, _) => {
            remarks.push("the highest value tried: the limit is higher".to_owned());
        }
        (Some(_), Some(above), Some(why)) => {
            remarks.push(format!("not judged at {}: {why}", plain(above)));
        }
        (Some(_), Some(_), None) => {}
    }
    if search.result.is_some() && !search.converged {
        remarks.push("the search has not converged".to_owned());
    }
    remarks.extend(search.shared_above());
    remarks.extend(search.failures_at_result());
    remarks.extend(search.lower_failures());
    MeasuredFigure {
        value: search.result,
        interval: search.interval(),
        is_open_above: match search.result {
            Some(_) => search.failed_above.is_none() || search.load_limit().is_some(),
            None => !search.is_measured(),
        },
        remark: remarks.join("; "),
    }
}

/// The capacity of a run: the result of its search, or its highest level within every threshold.
pub(crate) fn capacity_of(run: &RunRecord, levels: &[LevelSummary]) -> MeasuredFigure {
    match &run.search {
        Some(search) => search_result(search),
        None => capacity(levels),
    }
}

/// The highest level at which, and below which, no threshold failed.
pub(super) fn capacity(levels: &[LevelSummary]) -> MeasuredFigure {
    let mut sorted: Vec<&LevelSummary> = levels.iter().filter(|l| l.level.is_some()).collect();
    sorted.sort_by(|a, b| a.level.partial_cmp(&b.level).unwrap_or(Ordering::Equal));
    let holds = |level: &&&LevelSummary| {
        !matches!(level.verdict, RunVerdict::Failed | RunVerdict::NotMeasured)
    };
    let good = sorted.iter().take_while(holds).count();
    let value = good.checked_sub(1).and_then(|at| sorted.get(at)?.level);
    let above = sorted.get(good);
    let is_judged = above.is_some_and(|level| level.verdict == RunVerdict::Failed);
    let failed = above.and_then(|level| level.level).filter(|_| is_judged);
    let remark = match value {
        _ if sorted.is_empty() => "",
        _ if above.is_some() && !is_judged => {
            "the level above was not measured: the limit may be higher"
        }
        None => "below the lowest level",
        Some(_) if failed.is_none() => "the highest level run: the limit is higher",
        Some(_) => "",
    };
    let trials = sorted.iter().map(|level| level.repetitions).sum();
    MeasuredFigure {
        value,
        interval: (!sorted.is_empty()).then(|| Interval::bracket(value, failed, trials)),
        is_open_above: !sorted.is_empty() && failed.is_none(),
        remark: remark.to_owned(),
    }
}

/// The comparison for `lab run --json`.
pub fn comparison_json(run: &RunRecord, levels: &[LevelSummary]) -> Value {
    let Some(study) = &run.study else {
        return Value::Null;
    };
    let rows: Vec<Value> = compare_with_study(run, levels)
        .into_iter()
        .map(|row| {
            json!({
                "level": row.level,
                "figure": row.figure,
                "unit": row.unit,
                "study": row.study_value,
                "study_most": row.study_most,
                "ours": row.run_value,
                "interval": row.interval,
                "remark": row.remark,
            })
        })
        .collect();
    json!({ "row": study.row, "ran_on": study.ran_on, "differs": study.differs, "figures": rows })
}

#[cfg(test)]
mod tests {
    use super::super::level_summary::LoadFault;
    use super::*;
    use crate::experiment::{ReferenceValue, StudyLevel};

    fn run(study: Study) -> RunRecord {
        RunRecord {
            study: Some(study),
            ..RunRecord::default()
        }
    }

    fn level(at: f64, passed: bool) -> LevelSummary {
        let mut classes = [0.0; 9];
        classes[0] = at - 10.0;
        classes[1] = 10.0;
        LevelSummary {
            level: Some(at),
            dropped: 3.0,
            repetitions: 1,
            classes,
            verdict: match passed {
                true => RunVerdict::Passed,
                false => RunVerdict::Failed,
            },
            ..LevelSummary::default()
        }
    }

    #[test]
    fn study_and_run_figures_are_paired() {
        let figures = [("dropped", 18.0), ("10-20 ms", 298.0), ("<10 ms", 602.0)];
        let figures = figures.map(|(name, value)| (name.to_owned(), value));
        let study = Study {
            row: "U4".to_owned(),
            ran_on: "there".to_owned(),
            figure: Some(1100.0),
            unit: "concurrent calls".to_owned(),
            ours: CAPACITY.to_owned(),
            level: vec![
                StudyLevel {
                    at: 900.0,
                    figures: figures.into(),
                },
                StudyLevel {
                    at: 1500.0,
                    figures: [("mos".to_owned(), 4.0)].into(),
                },
            ],
            ..Study::default()
        };
        let levels = [level(100.0, true), level(900.0, true), level(1000.0, false)];
        let rows = compare_with_study(&run(study), &levels);
        let shown: Vec<(&str, f64, String)> = rows
            .iter()
            .map(|row| (row.figure.as_str(), row.study_value, row.run_value_text()))
            .collect();
        let expected = [
            ("<10 ms", 602.0, "890"),
            ("10-20 ms", 298.0, "10"),
            ("dropped", 18.0, "3"),
            ("mos", 4.0, "level not run"),
            ("capacity", 1100.0, "900"),
        ];
        let capacity = rows.last().unwrap();
        assert_eq!(capacity.interval_text(), "900 to 1000 (bracket)");
        assert!(
            capacity.source_text().starts_with("3 trials"),
            "{capacity:?}"
        );
        let expected = expected.map(|(name, theirs, ours)| (name, theirs, ours.to_owned()));
        assert_eq!(shown, expected);
    }

    #[test]
    fn column_is_read_at_its_level_and_in_percent_of_another() {
        let levels = [0.0, 1.0, 2.0].map(|at| LevelSummary {
            level: Some(at),
            cpu_us: Some(100.0 + at * 5.0),
            ..LevelSummary::default()
        });
        let study = |at: Option<f64>, percent_of: Option<f64>| Study {
            row: "S11".to_owned(),
            ran_on: "there".to_owned(),
            figure: Some(107.7),
            unit: "%".to_owned(),
            ours: "cpu_us_each".to_owned(),
            at,
            percent_of: percent_of.map(ReferenceValue::Level),
            ..Study::default()
        };
        let ours = |at, percent_of| {
            let rows = compare_with_study(&run(study(at, percent_of)), &levels);
            assert_eq!(rows.len(), 1);
            (rows[0].level, rows[0].run_value, rows[0].remark.clone())
        };
        assert_eq!(
            ours(Some(1.0), Some(0.0)),
            (Some(1.0), Some(105.0), String::new())
        );
        assert_eq!(ours(None, None), (Some(2.0), Some(110.0), String::new()));
        assert_eq!(ours(Some(3.0), None), (Some(3.0), None, NOT_RUN.to_owned()));
        assert!(!ours(Some(1.0), Some(9.0)).2.is_empty());
    }

    #[test]
    fn figures_without_the_planned_load_are_not_shown() {
        let fault = |trials: usize| {
            Some(LoadFault {
                trials,
                of: 3,
                reason: "the generator could not keep up".to_owned(),
            })
        };
        let study = Study {
            row: "U1".to_owned(),
            figure: Some(2.0),
            ours: "response_p50_ms".to_owned(),
            at: Some(900.0),
            level: vec![StudyLevel {
                at: 900.0,
                figures: [("dropped".to_owned(), 18.0)].into(),
            }],
            ..Study::default()
        };
        let rows = |trials: usize| {
            let level = LevelSummary {
                p50: Some(5.0),
                load_fault: fault(trials),
                ..level(900.0, true)
            };
            let rows = compare_with_study(&run(study.clone()), &[level]);
            let texts = rows.iter().map(StudyComparison::run_value_text);
            (rows[1].run_value, texts.collect::<Vec<String>>())
        };
        let cause = "not judged: the generator could not keep up";
        assert_eq!(rows(3), (None, vec![cause.to_owned(); 2]));
        let (value, texts) = rows(1);
        assert_eq!(value, Some(5.0));
        assert_eq!(texts[0], format!("3, 1 of 3 trials {cause}"));
    }

    #[test]
    fn capacity_outside_the_sweep_is_reported() {
        assert_eq!(capacity(&[]), MeasuredFigure::default());
        let none = capacity(&[level(5.0, false)]);
        assert_eq!(
            (none.value, none.remark.as_str()),
            (None, "below the lowest level")
        );
        let all = [level(5.0, true), level(10.0, true)];
        assert_eq!(capacity(&all).value, Some(10.0));
        assert!(capacity(&all).is_open_above && !capacity(&all).remark.is_empty());
    }
}
