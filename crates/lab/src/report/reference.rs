//! Somebody else's figures beside ours.

use super::chart::plain;
use super::levels::LevelSummary;
use crate::experiment::Reference;
use serde_json::{Value, json};

/// One figure, as it was measured there and here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Beside {
    /// Value of the sweep; `None` for the capacity.
    pub level: Option<f64>,
    /// Name of the figure: a column of `levels.csv`, or `capacity`.
    pub figure: String,
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

/// The figures of `reference` beside those of the levels that were run; the capacity last.
pub(crate) fn beside(reference: &Reference, levels: &[LevelSummary]) -> Vec<Beside> {
    let mut rows: Vec<Beside> = Vec::new();
    for theirs in &reference.level {
        let ours = levels.iter().find(|level| level.level == Some(theirs.at));
        // In the order of the tables, not of the alphabet.
        let mut names: Vec<&String> = theirs.figures.keys().collect();
        names.sort_by_key(|name| place(name));
        for name in names {
            rows.push(Beside {
                level: Some(theirs.at),
                figure: name.clone(),
                theirs: theirs.figures.get(name).copied().unwrap_or_default(),
                ours: ours.and_then(|level| level.figure(name)),
                remark: if ours.is_some() { "" } else { "level not run" },
            });
        }
    }
    if let Some(theirs) = reference.capacity {
        let (ours, remark) = capacity(levels);
        rows.push(Beside {
            level: None,
            figure: "capacity".to_owned(),
            theirs,
            ours,
            remark,
        });
    }
    rows
}

fn place(name: &str) -> usize {
    let bare = name.trim_end_matches(" ms");
    let class = crate::figures::CLASS_NAMES.iter().position(|n| *n == bare);
    let figure = LevelSummary::FIGURES.iter().position(|n| *n == name);
    class.or(figure.map(|at| at + 100)).unwrap_or(usize::MAX)
}

/// The highest level below which, and at which, every threshold held.
pub(super) fn capacity(levels: &[LevelSummary]) -> (Option<f64>, &'static str) {
    let mut sorted: Vec<&LevelSummary> = levels.iter().filter(|l| l.level.is_some()).collect();
    sorted.sort_by(|a, b| {
        a.level
            .partial_cmp(&b.level)
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let good = sorted.iter().take_while(|level| level.passed).count();
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
pub fn beside_json(reference: &Reference, levels: &[LevelSummary]) -> Value {
    let rows: Vec<Value> = beside(reference, levels)
        .into_iter()
        .map(|row| {
            json!({
                "level": row.level,
                "figure": row.figure,
                "theirs": row.theirs,
                "ours": row.ours,
                "remark": row.remark,
            })
        })
        .collect();
    json!({ "source": reference.source, "figures": rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::ReferenceLevel;

    fn level(at: f64, passed: bool) -> LevelSummary {
        let mut classes = [0.0; 9];
        classes[0] = at - 10.0;
        classes[1] = 10.0;
        LevelSummary {
            level: Some(at),
            dropped: 3.0,
            classes,
            passed,
            ..LevelSummary::default()
        }
    }

    #[test]
    fn figures_stand_side_by_side() {
        let figures = [("dropped", 18.0), ("10-20 ms", 298.0), ("<10 ms", 602.0)];
        let figures = figures.map(|(name, value)| (name.to_owned(), value));
        let reference = Reference {
            source: "there".to_owned(),
            capacity: Some(1100.0),
            level: vec![
                ReferenceLevel {
                    at: 900.0,
                    figures: figures.into(),
                },
                ReferenceLevel {
                    at: 1500.0,
                    figures: [("mos".to_owned(), 4.0)].into(),
                },
            ],
        };
        let levels = [level(100.0, true), level(900.0, true), level(1000.0, false)];
        let rows = beside(&reference, &levels);
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
