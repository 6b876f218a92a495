//! Plan of a study: its parts, rows and plots.

use super::record::{OwnPart, PartRecord, Reading, SuiteRecord};
use super::rows::Measured;
use crate::error::LabError;
use std::path::Path;

/// Surroundings of a part that the study measures itself.
#[derive(Debug)]
pub struct PartContext<'a> {
    /// Directory for its records; it exists.
    pub dir: &'a Path,
    /// The quick setting.
    pub quick: bool,
    /// In virtual time, without any right.
    pub simulate: bool,
    /// Seed instead of the part's own.
    pub seed: Option<u64>,
    /// Repetitions instead of the part's own.
    pub repeat: Option<u32>,
}

/// Measures a part: rows, plots, tables. It writes its records into the directory; the result is written there as
/// `part.json` by the frame.
pub type OwnAction = fn(&PartContext<'_>) -> Result<OwnPart, LabError>;

/// How a part is measured.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// `lab run` in both settings.
    Run,
    /// `lab run` in the quick setting, `lab search` in the full one.
    Search,
    /// Not in the quick setting, for this reason; `lab run` in the full one.
    FullRun(&'static str),
    /// Not in the quick setting, for this reason; `lab search` in the full one.
    FullSearch(&'static str),
    /// Measured by a function.
    Own(OwnAction),
}

/// A row that the experiment's own `[study]` table does not have.
#[derive(Clone, Debug)]
pub struct RowSpec {
    /// Row of the study.
    pub row: &'static str,
    /// Description.
    pub what: &'static str,
    /// The study's figure.
    pub study: Reading,
    /// Unit.
    pub unit: &'static str,
    /// A column of `levels.csv`.
    pub figure: &'static str,
    /// The level at which it is read; by default the highest one.
    pub at: Option<f64>,
}

/// One part of a study.
#[derive(Clone, Debug)]
pub struct Part {
    /// Name, and directory of its records.
    pub name: String,
    /// Experiment; empty for [`Action::Own`].
    pub experiment: String,
    /// Row of the study for the figures of the experiment's `[study]` table; empty: that of the table.
    pub row: &'static str,
    /// How it is measured.
    pub action: Action,
    /// Overrides in the quick setting.
    pub quick: Vec<String>,
    /// Overrides in the full setting.
    pub full: Vec<String>,
    /// Figures of the `[study]` table at other levels belong to other parts; empty: all are of this part.
    pub levels: Vec<f64>,
    /// Replaces the level in descriptions; empty: the level is named.
    pub says: &'static str,
    /// Further rows.
    pub rows: Vec<RowSpec>,
    /// Approximate duration in the quick setting, seconds, for a part that is no experiment.
    pub quick_seconds: f64,
    /// The same in the full setting; 0: that of the quick one.
    pub full_seconds: f64,
}

impl Part {
    /// A part that runs the built-in experiment of this name.
    pub fn of(experiment: &str, row: &'static str, action: Action) -> Part {
        Part {
            name: experiment.to_owned(),
            experiment: experiment.to_owned(),
            row,
            action,
            quick: Vec::new(),
            full: Vec::new(),
            levels: Vec::new(),
            says: "",
            rows: Vec::new(),
            quick_seconds: 0.0,
            full_seconds: 0.0,
        }
    }

    /// A part that a function measures; it takes about `quick_seconds` in the quick setting.
    pub fn own(name: &str, row: &'static str, action: OwnAction, quick_seconds: f64) -> Part {
        Part {
            experiment: String::new(),
            quick_seconds,
            ..Part::of(name, row, Action::Own(action))
        }
    }

    /// Another duration in the full setting, seconds.
    #[must_use]
    pub fn lasting(mut self, seconds: f64) -> Part {
        self.full_seconds = seconds;
        self
    }

    /// Another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Part {
        name.clone_into(&mut self.name);
        self
    }

    /// Overrides in the quick setting.
    #[must_use]
    pub fn quick(mut self, overrides: &[&str]) -> Part {
        self.quick = overrides.iter().map(|&set| set.to_owned()).collect();
        self
    }

    /// Overrides in the full setting.
    #[must_use]
    pub fn full(mut self, overrides: &[&str]) -> Part {
        self.full = overrides.iter().map(|&set| set.to_owned()).collect();
        self
    }

    /// Only figures of the `[study]` table at these levels.
    #[must_use]
    pub fn only(mut self, levels: &[f64]) -> Part {
        self.levels = levels.to_vec();
        self
    }

    /// Words instead of the level in descriptions.
    #[must_use]
    pub fn saying(mut self, words: &'static str) -> Part {
        self.says = words;
        self
    }

    /// A further row.
    #[must_use]
    pub fn with(mut self, row: RowSpec) -> Part {
        self.rows.push(row);
        self
    }
}

/// A row that nothing in this build measures.
#[derive(Clone, Debug)]
pub struct AbsentRow {
    /// Row of the study.
    pub row: &'static str,
    /// Description.
    pub what: &'static str,
    /// The study's figure.
    pub study: Reading,
    /// Unit.
    pub unit: &'static str,
    /// Why it is not measured.
    pub cause: String,
}

/// A bar of a plot.
#[derive(Clone, Copy, Debug)]
pub struct BarSpec {
    /// Name of the category.
    pub name: &'static str,
    /// Part of the row.
    pub part: &'static str,
    /// Figure of the row, as in `levels.csv`, or `capacity`.
    pub figure: &'static str,
    /// Level of the row; by default the first row with this figure.
    pub level: Option<f64>,
}

/// A plot of the study's page.
#[derive(Clone, Debug)]
pub enum PlotSpec {
    /// Distribution of response times at the levels of the study, the study's bars beside ours.
    Distribution {
        /// The part.
        part: &'static str,
    },
    /// Figures of a part over its levels, with the study's points.
    Levels {
        /// Title.
        title: &'static str,
        /// The part.
        part: &'static str,
        /// Name of the x axis.
        x: &'static str,
        /// Factor from level to the x axis.
        scale: f64,
        /// Name of the y axis, with unit.
        y: &'static str,
        /// Figures and their names in the legend.
        figures: &'static [(&'static str, &'static str)],
    },
    /// Packets lost in each second, from the streams of the first trial of each level.
    LossOverTime {
        /// Title.
        title: &'static str,
        /// The part.
        part: &'static str,
        /// Levels and their names in the legend.
        levels: &'static [(f64, &'static str)],
        /// The study's figure, and its words.
        study: (f64, &'static str),
    },
    /// Figures of rows as bars, the study's beside ours.
    Rows {
        /// Title.
        title: &'static str,
        /// Name of the y axis, with unit.
        y: &'static str,
        /// The bars.
        bars: Vec<BarSpec>,
    },
}

/// A study.
#[derive(Clone, Debug)]
pub struct StudyPlan {
    /// Name for `lab run`.
    pub name: &'static str,
    /// Title of the page.
    pub title: &'static str,
    /// The study.
    pub source: &'static str,
    /// Text of the page.
    pub about: &'static str,
    /// The parts, in order.
    pub parts: Vec<Part>,
    /// Rows that nothing measures.
    pub absent: Vec<AbsentRow>,
    /// Plots.
    pub plots: Vec<PlotSpec>,
    /// Whether figures are compared with those of the study; a data sheet has none.
    pub compares: bool,
    /// Writes further files beside the page.
    pub publish_more: Option<PublishMore>,
}

/// Writes further files into the directory of a study, from its records.
pub type PublishMore =
    fn(&Path, &SuiteRecord, &[(PartRecord, Option<Measured>)]) -> Result<(), LabError>;

/// The setting of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Name, for the page.
    pub name: String,
    /// The quick overrides.
    pub quick: bool,
    /// Time after which no further part begins that would exceed it, seconds.
    pub limit_s: Option<f64>,
}

/// Time after which the quick setting begins no further part, seconds; with the last part it stays below 3 minutes.
const QUICK_SECONDS: f64 = 155.0;

impl Setting {
    /// The quick setting.
    pub fn quick() -> Setting {
        Setting {
            name: "quick".to_owned(),
            quick: true,
            limit_s: Some(QUICK_SECONDS),
        }
    }

    /// The study's own durations.
    pub fn full() -> Setting {
        Setting {
            name: "full".to_owned(),
            quick: false,
            limit_s: None,
        }
    }
}
