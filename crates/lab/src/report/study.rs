//! A study's figures beside ours.

use super::chart::plain;
use super::levels::LevelSummary;
use crate::error::Verdict;
use crate::experiment::{CAPACITY, Study};
use crate::search::SearchRecord;
use serde_json::{Value, json};
use std::cmp::Ordering;

/// One figure, as it was measured there and here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Beside {
    /// Value of the sweep; `None` for a figure of all levels.
    pub level: Option<f64>,
    /// Name of the figure: a column of `levels.csv`, or `capacity`.
    pub figure: String,
    /// Its unit, where the study's main figure is meant.
    pub unit: String,
    /// There.
    pub theirs: f64,
    /// Here; `None` where the level was not run, or the figure not measured.
    pub ours: Option<f64>,
    /// What the number alone does not say.
    pub remark: &'static str,
}

impl Beside {
    /// Our figure in words.
    pub(crate) fn ours_text(&self) -> String {
        match (self.ours, self.remark) {
            (None, "") => "not measured".to_owned(),
            (None, remark) => remark.to_owned(),
            (Some(ours), "") => plain(ours),
            (Some(ours), remark) => format!("{}, {remark}", plain(ours)),
        }
    }
}

/// The figures of `study` beside those of the levels that were run; the main one last.
pub(crate) fn beside(
    study: &Study,
    levels: &[LevelSummary],
    search: Option<&SearchRecord>,
) -> Vec<Beside> {
    let mut rows: Vec<Beside> = Vec::new();
    for theirs in &study.level {
        let ours = at(levels, theirs.at);
        // In the order of the tables, not of the alphabet.
        let mut names: Vec<&String> = theirs.figures.keys().collect();
        names.sort_by_key(|name| place(name));
        for name in names {
            rows.push(Beside {
                level: Some(theirs.at),
                figure: name.clone(),
                unit: String::new(),
                theirs: theirs.figures.get(name).copied().unwrap_or_default(),
                ours: ours.and_then(|level| level.figure(name)),
                remark: if ours.is_some() { "" } else { NOT_RUN },
            });
        }
    }
    if let Some(theirs) = study.figure {
        let (level, ours, remark) = main_figure(study, levels, search);
        rows.push(Beside {
            level,
            figure: study.ours.clone(),
            unit: study.unit.clone(),
            theirs,
            ours,
            remark,
        });
    }
    rows
}

const NOT_RUN: &str = "level not run";

fn at(levels: &[LevelSummary], value: f64) -> Option<&LevelSummary> {
    levels.iter().find(|level| level.level == Some(value))
}

/// What stands beside the study's main figure: the level where it was read, the figure, a remark.
fn main_figure(
    study: &Study,
    levels: &[LevelSummary],
    search: Option<&SearchRecord>,
) -> (Option<f64>, Option<f64>, &'static str) {
    if study.ours == CAPACITY {
        let (ours, remark) = match search {
            Some(search) => searched(search),
            None => capacity(levels),
        };
        return (None, ours, remark);
    }
    let level = match study.at {
        Some(value) => at(levels, value),
        None => levels
            .iter()
            .max_by(|a, b| a.level.partial_cmp(&b.level).unwrap_or(Ordering::Equal)),
    };
    let Some(level) = level else {
        return (study.at, None, NOT_RUN);
    };
    let figure = level.figure(&study.ours);
    let Some(base) = study.percent_of else {
        return (level.level, figure, "");
    };
    let Some(base) = at(levels, base) else {
        return (level.level, None, "the level compared with was not run");
    };
    let percent = figure
        .zip(base.figure(&study.ours).filter(|base| *base > 0.0))
        .map(|(figure, base)| figure * 100.0 / base);
    (level.level, percent, "")
}

fn place(name: &str) -> usize {
    let bare = name.trim_end_matches(" ms");
    let class = crate::figures::CLASS_NAMES.iter().position(|n| *n == bare);
    let figure = LevelSummary::FIGURES.iter().position(|n| *n == name);
    class.or(figure.map(|at| at + 100)).unwrap_or(usize::MAX)
}

/// What a search found.
pub(super) fn searched(search: &SearchRecord) -> (Option<f64>, &'static str) {
    let remark = match (search.result, search.failed_above) {
        (None, _) => "below the lowest value that was tried",
        (Some(_), None) => "the highest value that was tried: the limit is above",
        (Some(_), Some(_)) if !search.converged => "the search has not converged",
        (Some(_), Some(_)) => "",
    };
    (search.result, remark)
}

/// The highest level below which, and at which, every threshold held.
pub(super) fn capacity(levels: &[LevelSummary]) -> (Option<f64>, &'static str) {
    let mut sorted: Vec<&LevelSummary> = levels.iter().filter(|l| l.level.is_some()).collect();
    sorted.sort_by(|a, b| a.level.partial_cmp(&b.level).unwrap_or(Ordering::Equal));
    let good = sorted
        .iter()
        .take_while(|level| level.verdict != Verdict::Failed)
        .count();
    let best = good.checked_sub(1).and_then(|at| sorted.get(at)?.level);
    match best {
        _ if sorted.is_empty() => (None, ""),
        None => (None, "below the lowest level"),
        Some(_) if good == sorted.len() => {
            (best, "the highest level that was run: the limit is above")
        }
        Some(_) => (best, ""),
    }
}

/// For `lab run --json`.
pub fn beside_json(study: &Study, levels: &[LevelSummary], search: Option<&SearchRecord>) -> Value {
    let rows: Vec<Value> = beside(study, levels, search)
        .into_iter()
        .map(|row| {
            json!({
                "level": row.level,
                "figure": row.figure,
                "unit": row.unit,
                "study": row.theirs,
                "ours": row.ours,
                "remark": row.remark,
            })
        })
        .collect();
    json!({ "row": study.row, "ran_on": study.ran_on, "figures": rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::StudyLevel;

    fn level(at: f64, passed: bool) -> LevelSummary {
        let mut classes = [0.0; 9];
        classes[0] = at - 10.0;
        classes[1] = 10.0;
        LevelSummary {
            level: Some(at),
            dropped: 3.0,
            classes,
            verdict: match passed {
                true => Verdict::Passed,
                false => Verdict::Failed,
            },
            ..LevelSummary::default()
        }
    }

    #[test]
    fn figures_stand_side_by_side() {
        let figures = [("dropped", 18.0), ("10-20 ms", 298.0), ("<10 ms", 602.0)];
        let figures = figures.map(|(name, value)| (name.to_owned(), value));
        let study = Study {
            row: "U4".to_owned(),
            ran_on: "there".to_owned(),
            figure: Some(1100.0),
            unit: "calls at a time".to_owned(),
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
        let rows = beside(&study, &levels, None);
        let shown: Vec<(&str, f64, String)> = rows
            .iter()
            .map(|row| (row.figure.as_str(), row.theirs, row.ours_text()))
            .collect();
        let expected = [
            ("<10 ms", 602.0, "890"),
            ("10-20 ms", 298.0, "10"),
            ("dropped", 18.0, "3"),
            ("mos", 4.0, "level not run"),
            ("capacity", 1100.0, "900"),
        ];
        let expected = expected.map(|(name, theirs, ours)| (name, theirs, ours.to_owned()));
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_column_is_read_at_its_level_and_in_percent_of_another() {
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
            percent_of,
            ..Study::default()
        };
        let ours = |at, percent_of| {
            let rows = beside(&study(at, percent_of), &levels, None);
            assert_eq!(rows.len(), 1);
            (rows[0].level, rows[0].ours, rows[0].remark)
        };
        assert_eq!(ours(Some(1.0), Some(0.0)), (Some(1.0), Some(105.0), ""));
        assert_eq!(ours(None, None), (Some(2.0), Some(110.0), ""));
        assert_eq!(ours(Some(3.0), None), (Some(3.0), None, NOT_RUN));
        assert!(!ours(Some(1.0), Some(9.0)).2.is_empty());
    }

    #[test]
    fn a_capacity_outside_of_the_sweep_is_told() {
        assert_eq!(capacity(&[]), (None, ""));
        assert_eq!(
            capacity(&[level(5.0, false)]),
            (None, "below the lowest level")
        );
        let all = [level(5.0, true), level(10.0, true)];
        assert_eq!(capacity(&all).0, Some(10.0));
        assert!(!capacity(&all).1.is_empty());
    }
}
