//! Records of a study: `run.json` in its directory, `part.json` of parts that are no experiments.

pub use super::reading::Reading;
use crate::decimal::counted;
use crate::error::{LabError, RunVerdict};
use crate::files::{cannot_write, replace};
use crate::not_judged::NotJudged;
use crate::raw::MachineRecord;
use crate::statistics::Interval;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Version of the file format.
pub const FORMAT: u32 = 1;

/// One figure of a study beside ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StudyRow {
    /// Row of the study, such as `S5`.
    pub row: String,
    /// Description of the figure.
    pub what: String,
    /// The study's figure; `null` without one.
    pub study: Option<Reading>,
    /// Our figure; `null` if it was not measured.
    pub here: Option<f64>,
    /// 95 % confidence interval of our figure; the bracket of a capacity.
    pub interval: Option<Interval>,
    /// Number of samples of our figure.
    pub samples: u64,
    /// Differences in the set-up.
    pub differs: Vec<String>,
    /// Unit of both figures; may be empty.
    #[serde(default)]
    pub unit: String,
    /// Part that measured it; the directory of its records.
    #[serde(default)]
    pub part: String,
    /// Value of the part's sweep.
    #[serde(default)]
    pub level: Option<f64>,
    /// Name of the figure in the part.
    #[serde(default)]
    pub figure: String,
    /// Remark on our figure; the reason if it was not measured.
    #[serde(default)]
    pub remark: String,
    /// File with the records, relative to the study's directory; empty if nothing was measured.
    #[serde(default)]
    pub record: String,
    /// References to the records that our figure was computed from, relative to the study's directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
}

impl StudyRow {
    /// The interval in words; a single sample has none.
    pub fn interval_text(&self) -> String {
        let ends = self.interval.as_ref();
        let ends = ends.filter(|ends| ends.low.is_some() || ends.high.is_some());
        match (ends, self.here, self.samples) {
            (Some(ends), _, _) => ends.marked_ends(),
            (None, Some(_), 1) => "one sample".to_owned(),
            (None, Some(_), _) => "none".to_owned(),
            (None, None, _) => String::new(),
        }
    }

    /// Words for a figure that has no value: a capacity may lie below the lowest load tried.
    pub fn missing(&self) -> String {
        let below = self.interval.as_ref().and_then(|interval| interval.high);
        match below {
            Some(high) => format!("below {}", crate::decimal::plain(high)),
            None => "not measured".to_owned(),
        }
    }
}

/// A series of a plot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LineRecord {
    /// Name, for the legend.
    pub name: String,
    /// Points.
    pub points: Vec<(f64, f64)>,
    /// 95 % intervals of points: x, lower and upper end.
    #[serde(default)]
    pub spread: Vec<(f64, f64, f64)>,
    /// Points without a line.
    #[serde(default)]
    pub scatter: bool,
    /// Records of the points, as [`BarRecord::links`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
}

/// Bars of one colour, one for each category; `null`: not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BarRecord {
    /// Name, for the legend.
    pub name: String,
    /// One value for each category.
    pub values: Vec<Option<f64>>,
    /// 95 % intervals of the values.
    #[serde(default)]
    pub spread: Vec<Option<(f64, f64)>>,
    /// Records of the values, relative to the study's directory: files, or `FILE#POINTER`. Missing and empty ones:
    /// those of the plot itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
}

/// A plot, as data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlotRecord {
    /// Lines or points over a number.
    Lines {
        /// Title.
        title: String,
        /// Name of the x axis, with unit.
        x: String,
        /// Name of the y axis, with unit.
        y: String,
        /// The series.
        series: Vec<LineRecord>,
        /// A limit and its name.
        #[serde(default)]
        limit: Option<(f64, String)>,
    },
    /// Bars over categories, side by side, or stacked.
    Bars {
        /// Title.
        title: String,
        /// Name of the x axis.
        x: String,
        /// Name of the y axis, with unit.
        y: String,
        /// Names of the categories.
        categories: Vec<String>,
        /// The bars.
        bars: Vec<BarRecord>,
        /// Whether they are stacked.
        #[serde(default)]
        stacked: bool,
    },
}

impl PlotRecord {
    /// References to the records of its numbers.
    pub fn links(&self) -> impl Iterator<Item = &String> {
        let (lines, bars): (&[LineRecord], &[BarRecord]) = match self {
            PlotRecord::Lines { series, .. } => (series.as_slice(), &[]),
            PlotRecord::Bars { bars, .. } => (&[], bars.as_slice()),
        };
        let of_lines = lines.iter().flat_map(|line| &line.links);
        of_lines.chain(bars.iter().flat_map(|bar| &bar.links))
    }

    /// Gives each number without a record that of the plot itself; `record` is the reference of the plot.
    pub fn link_to_itself(&mut self, record: &str) {
        fn fill(links: &mut Vec<String>, count: usize, record: impl Fn(usize) -> String) {
            links.resize(count, String::new());
            for (place, link) in links.iter_mut().enumerate() {
                if link.is_empty() {
                    *link = record(place);
                }
            }
        }
        match self {
            PlotRecord::Lines { series, .. } => {
                for (at, line) in series.iter_mut().enumerate() {
                    let count = line.points.len();
                    fill(&mut line.links, count, |place| {
                        format!("{record}/lines/series/{at}/points/{place}/1")
                    });
                }
            }
            PlotRecord::Bars { bars, .. } => {
                for (at, bar) in bars.iter_mut().enumerate() {
                    let count = bar.values.len();
                    fill(&mut bar.links, count, |place| {
                        format!("{record}/bars/bars/{at}/values/{place}")
                    });
                }
            }
        }
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableRecord {
    /// Title.
    pub title: String,
    /// Text above the table; may be empty.
    #[serde(default)]
    pub note: String,
    /// Headings.
    pub head: Vec<String>,
    /// Rows; the first cell is their name.
    pub rows: Vec<Vec<String>>,
    /// Files with the records of the cells, relative to the study's directory; empty texts and missing ones: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Vec<String>>,
}

/// Results of a part that is no experiment: `part.json` in its directory. Its other records lie beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnPart {
    /// Rows; [`StudyRow::part`] and [`StudyRow::record`] are set by the frame if they are empty.
    pub rows: Vec<StudyRow>,
    /// Plots.
    #[serde(default)]
    pub plots: Vec<PlotRecord>,
    /// Tables.
    #[serde(default)]
    pub tables: Vec<TableRecord>,
    /// Verdict.
    pub verdict: RunVerdict,
    /// Why it was not measured completely.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// Explanations of the results, for the page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Points of its measurement that were not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_judged: Option<NotJudged>,
}

/// How a part was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartMode {
    /// `lab run` of an experiment.
    #[default]
    Run,
    /// `lab search` of an experiment.
    Search,
    /// Measured by the study itself.
    Own,
}

/// One part of a study.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartRecord {
    /// Name; the directory of its records in the study's directory.
    pub name: String,
    /// Experiment; empty for a part that is none.
    pub experiment: String,
    /// How it was measured.
    pub mode: PartMode,
    /// Overrides of the experiment file.
    pub overrides: Vec<String>,
    /// Verdict; `not judged` if it did not run.
    pub verdict: RunVerdict,
    /// Duration, seconds.
    pub seconds: f64,
    /// Why it was not measured, or not completely.
    pub cause: Option<String>,
    /// Whether records of it exist.
    pub measured: bool,
}

/// A part of a study that was not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NotRun {
    /// Its name.
    pub part: String,
    /// The reason.
    pub cause: String,
}

/// A whole study.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SuiteRecord {
    /// [`FORMAT`].
    pub format: u32,
    /// Name, such as `study-u`.
    pub suite: String,
    /// Title.
    pub title: String,
    /// Text of the page.
    pub about: String,
    /// The study.
    pub source: String,
    /// `quick` or `full`.
    pub setting: String,
    /// `sockets` or `simulation`.
    pub driver: String,
    /// Version of the program.
    pub version: String,
    /// Start, seconds since 1970; 0 in a simulation.
    pub started: u64,
    /// The machine; `null` in a simulation.
    pub machine: Option<MachineRecord>,
    /// Seed instead of those of the experiments.
    pub seed: Option<u64>,
    /// The parts.
    pub parts: Vec<PartRecord>,
    /// Figures beside those of the study.
    pub study: Vec<StudyRow>,
    /// Verdict over the parts that were measured.
    pub verdict: RunVerdict,
    /// The others: the verdict does not cover them.
    #[serde(default)]
    pub not_run: Vec<NotRun>,
    /// Points of the parts that ran, which were not judged: the verdict does not cover them either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_judged: Vec<NotJudged>,
    /// The user interrupted it.
    pub cut_short: bool,
}

/// Reasons for missing figures that the summary names.
const REASONS: usize = 5;

fn broken(path: &Path, error: impl std::fmt::Display) -> LabError {
    LabError::bad_input(format!("{}: {error}", path.display()))
}

fn write(path: &Path, record: &impl Serialize) -> Result<(), LabError> {
    let text = serde_json::to_vec_pretty(record).map_err(std::io::Error::from);
    let mut text = text.map_err(|error| cannot_write(path, &error))?;
    text.push(b'\n');
    replace(path, &text)
}

impl OwnPart {
    /// Writes `part.json` into `dir`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), LabError> {
        write(&dir.join("part.json"), self)
    }

    /// Reads `part.json` of `dir`.
    ///
    /// # Errors
    /// If it is missing or broken.
    pub fn read(dir: &Path) -> Result<OwnPart, LabError> {
        let path = dir.join("part.json");
        let text = fs::read_to_string(&path).map_err(|error| broken(&path, error))?;
        serde_json::from_str(&text).map_err(|error| broken(&path, error))
    }
}

impl SuiteRecord {
    /// The parts that the verdict does not cover, as a sentence; `None` if it covers all.
    pub fn gaps(&self) -> Option<String> {
        let gaps: Vec<String> = [self.parts_not_run(), self.parts_not_judged()]
            .into_iter()
            .flatten()
            .collect();
        (!gaps.is_empty()).then(|| gaps.join("; "))
    }

    fn parts_not_run(&self) -> Option<String> {
        let of_cause = |cause: &str| -> Vec<&str> {
            let same = self.not_run.iter().filter(|part| part.cause == cause);
            same.map(|part| part.part.as_str()).collect()
        };
        let mut causes: Vec<&str> = Vec::new();
        for part in &self.not_run {
            if !causes.contains(&part.cause.as_str()) {
                causes.push(&part.cause);
            }
        }
        let texts = causes
            .iter()
            .map(|cause| format!("{} ({cause})", of_cause(cause).join(", ")));
        let texts: Vec<String> = texts.collect();
        (!texts.is_empty()).then(|| {
            format!(
                "{} of {} not run: {}",
                self.not_run.len(),
                counted(self.planned_parts(), "part"),
                texts.join("; ")
            )
        })
    }

    /// The parts with a threshold that could not be judged; a study that another part passed has passed.
    fn parts_not_judged(&self) -> Option<String> {
        let parts = self.parts.iter();
        let names: Vec<&str> = parts
            .filter(|part| part.measured && part.verdict == RunVerdict::NotMeasured)
            .map(|part| part.name.as_str())
            .collect();
        (!names.is_empty()).then(|| {
            format!(
                "{} of {} not judged: {}",
                names.len(),
                counted(self.planned_parts(), "part"),
                names.join(", ")
            )
        })
    }

    /// The last lines of the summary: points that were not judged or have no figure, each with the reason, and the exit
    /// code that the others give; empty if there are none.
    pub(super) fn open_points(&self) -> String {
        let mut text = String::new();
        for open in &self.not_judged {
            let _ = writeln!(text, "not judged: {}", open.text());
        }
        // The result of a search may lie below its lowest load.
        let is_open = |row: &&StudyRow| {
            let below = row.interval.as_ref().and_then(|interval| interval.high);
            row.here.is_none() && below.is_none()
        };
        let mut reasons: Vec<(&str, usize)> = Vec::new();
        for row in self.study.iter().filter(is_open) {
            let reason = match row.remark.as_str() {
                "" => "not measured",
                remark => remark,
            };
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, count)) => *count += 1,
                None => reasons.push((reason, 1)),
            }
        }
        let rows: usize = reasons.iter().map(|(_, count)| count).sum();
        if rows > 0 {
            // The most frequent ones first.
            reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let named = reasons.iter().take(REASONS);
            let mut named: Vec<String> = named
                .map(|(reason, count)| format!("{reason} ({count})"))
                .collect();
            let more = reasons.len().saturating_sub(REASONS);
            named.extend((more > 0).then(|| format!("and {}", counted(more, "other reason"))));
            let _ = writeln!(
                text,
                "without a figure here: {rows} of {}: {}",
                counted(self.study.len(), "figure"),
                named.join("; ")
            );
        }
        let points: u64 = self.not_judged.iter().map(|open| open.points).sum();
        let parts = self.not_run.len();
        let open = [
            (points > 0).then(|| counted(points, "point")),
            (parts > 0).then(|| format!("{} that did not run", counted(parts, "part"))),
        ];
        let open: Vec<String> = open.into_iter().flatten().collect();
        if open.is_empty() {
            return text;
        }
        let code = match self.cut_short {
            true => "verdict is".to_owned(),
            false => format!("verdict and the exit code {} are", self.verdict.exit_code()),
        };
        let _ = writeln!(
            text,
            "not judged in all: {}; the {code} without them",
            open.join(", and ")
        );
        text
    }

    /// Number of parts of the plan.
    pub fn planned_parts(&self) -> usize {
        let measured = self.parts.iter().filter(|part| part.measured).count();
        measured + self.not_run.len()
    }

    /// Reads the record of `dir`.
    ///
    /// # Errors
    /// If it is missing, broken or of another format.
    pub fn read(dir: &Path) -> Result<SuiteRecord, LabError> {
        let path = dir.join("run.json");
        let text = fs::read_to_string(&path).map_err(|error| broken(&path, error))?;
        let record: SuiteRecord =
            serde_json::from_str(&text).map_err(|error| broken(&path, error))?;
        match record.format {
            FORMAT => Ok(record),
            other => Err(broken(&path, format!("unknown format {other}"))),
        }
    }

    /// Writes `run.json` into `dir`, which it creates.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), LabError> {
        fs::create_dir_all(dir).map_err(|error| cannot_write(dir, &error))?;
        write(&dir.join("run.json"), self)
    }
}
