//! Thresholds over levels, judged when all of them are run.

use super::chart::plain;
use super::levels::LevelSummary;
use super::study::{capacity, searched};
use crate::error::Verdict;
use crate::experiment::{Base, CAPACITY, FigureBound, PEAK};
use crate::raw::RunRecord;
use crate::statistics::Interval;
use serde::{Deserialize, Serialize};

/// A bound of a figure of a level, and what was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BoundCheck {
    /// The figure in words, with what it is compared with.
    pub figure: String,
    /// The level; `null` for a figure of the whole run, and where the figure names it.
    pub level: Option<f64>,
    /// The level at which it was read.
    #[serde(default)]
    pub at: Option<f64>,
    /// The least that holds.
    pub least: Option<f64>,
    /// The most that holds.
    pub most: Option<f64>,
    /// What was measured; `null` where nothing was.
    pub measured: Option<f64>,
    /// Where that lies with 95 % confidence; the figure itself is judged, not its interval.
    pub interval: Option<Interval>,
    /// Whether it holds; `null` where nothing was measured.
    pub holds: Option<bool>,
    /// What the number alone does not say.
    pub remark: String,
}

impl BoundCheck {
    /// Its verdict alone.
    pub const fn verdict(&self) -> Verdict {
        match self.holds {
            Some(true) => Verdict::Passed,
            Some(false) => Verdict::Failed,
            None => Verdict::NotMeasured,
        }
    }

    /// The bound in words: `at least 95`.
    pub fn limit(&self) -> String {
        match (self.least, self.most) {
            (Some(least), Some(most)) => format!("{} to {}", plain(least), plain(most)),
            (Some(least), None) => format!("at least {}", plain(least)),
            (None, Some(most)) => format!("at most {}", plain(most)),
            (None, None) => String::new(),
        }
    }

    /// What was measured, in words.
    pub fn measured_text(&self) -> String {
        let value = self.measured.map_or("not measured".to_owned(), plain);
        match self.remark.as_str() {
            "" => value,
            remark => format!("{value} ({remark})"),
        }
    }

    /// One line for a terminal.
    pub fn line(&self) -> String {
        let place = self.level.map(|level| format!(" at {}", plain(level)));
        format!(
            "{}{}: {} is {}, limit {}",
            self.verdict().name(),
            place.unwrap_or_default(),
            self.figure,
            self.measured_text(),
            self.limit()
        )
    }
}

/// Judges all bounds of a run.
pub(super) fn judge(run: &RunRecord, levels: &[LevelSummary]) -> Vec<BoundCheck> {
    let bounds = run.bounds.iter();
    bounds.flat_map(|bound| one(bound, run, levels)).collect()
}

/// The verdict over the trials' and these; what was not measured counts where nothing else was.
pub(super) fn verdict<'a>(
    trials: Verdict,
    checks: impl IntoIterator<Item = &'a BoundCheck>,
) -> Verdict {
    let verdicts = checks.into_iter().map(BoundCheck::verdict);
    verdicts.fold(trials, Verdict::beside)
}

fn one(bound: &FigureBound, run: &RunRecord, levels: &[LevelSummary]) -> Vec<BoundCheck> {
    match bound.name.as_str() {
        CAPACITY => return vec![of_capacity(bound, run, levels)],
        PEAK => {
            let peak = run.peak.as_ref().map(|peak| peak.value);
            return vec![checked(bound, None, peak, None, "")];
        }
        _ => {}
    }
    // A search tries levels beyond the limit, where nothing has to hold.
    if run.search.is_some() {
        return Vec::new();
    }
    let chosen = levels
        .iter()
        .filter(|l| bound.at.is_none() || l.level == bound.at);
    let checks: Vec<BoundCheck> = chosen.map(|level| at(bound, level, run, levels)).collect();
    match checks.is_empty() {
        true => vec![checked(bound, bound.at, None, None, "level not run")],
        false => checks,
    }
}

fn at(
    bound: &FigureBound,
    level: &LevelSummary,
    run: &RunRecord,
    levels: &[LevelSummary],
) -> BoundCheck {
    let place = if bound.at.is_some() {
        None
    } else {
        level.level
    };
    let base = match &bound.percent_of_figure {
        Some(other) => Ok(Some((level.figure(other), level.intervals.get(other)))),
        None => base(bound.percent_of.as_ref(), &bound.name, run, levels),
    };
    match base.map(|base| related(level, &bound.name, base)) {
        Ok((value, interval)) => checked(bound, place, value, interval, ""),
        Err(remark) => checked(bound, place, None, None, remark),
    }
}

type Read<'a> = (Option<f64>, Option<&'a Interval>);

/// With what a figure of this name is compared; `None`: with nothing.
pub(super) fn base<'a>(
    percent_of: Option<&Base>,
    name: &str,
    run: &'a RunRecord,
    levels: &'a [LevelSummary],
) -> Result<Option<Read<'a>>, &'static str> {
    match percent_of {
        None => Ok(None),
        Some(Base::Name(_)) => match &run.peak {
            Some(peak) => Ok(Some((Some(peak.value), peak.interval.as_ref()))),
            None => Err("the peak was not measured"),
        },
        Some(Base::Level(at)) => match levels.iter().find(|level| level.level == Some(*at)) {
            Some(level) => Ok(Some((level.figure(name), level.intervals.get(name)))),
            None => Err("the level compared with was not run"),
        },
    }
}

/// A figure of a level, in percent of its base where there is one.
pub(super) fn related(
    level: &LevelSummary,
    name: &str,
    base: Option<Read<'_>>,
) -> (Option<f64>, Option<Interval>) {
    let (figure, interval) = (level.figure(name), level.intervals.get(name));
    let Some((base, spread)) = base else {
        return (figure, interval.cloned());
    };
    let Some((figure, base)) = figure.zip(base.filter(|base| *base > 0.0)) else {
        return (None, None);
    };
    let percent = figure * 100.0 / base;
    let none = Interval::none(1, "runs");
    let ratio = Interval::of_ratio(
        percent,
        (figure, interval.unwrap_or(&none)),
        (base, spread.unwrap_or(&none)),
    );
    (Some(percent), Some(ratio))
}

fn of_capacity(bound: &FigureBound, run: &RunRecord, levels: &[LevelSummary]) -> BoundCheck {
    let found = match &run.search {
        Some(search) => searched(search),
        None => capacity(levels),
    };
    let mut check = checked(bound, None, found.value, found.interval, &found.remark);
    // Below the limit of the sweep the figure says nothing about a higher one.
    if check.holds == Some(false) && found.is_open_above {
        check.holds = None;
    }
    if found.value.is_none() && !levels.is_empty() && bound.least.is_some() {
        check.holds = Some(false);
    }
    check
}

fn checked(
    bound: &FigureBound,
    level: Option<f64>,
    measured: Option<f64>,
    interval: Option<Interval>,
    remark: &str,
) -> BoundCheck {
    let holds = measured.map(|measured| {
        bound.least.is_none_or(|least| measured >= least)
            && bound.most.is_none_or(|most| measured <= most)
    });
    BoundCheck {
        figure: bound.words(),
        level,
        at: level.or(bound.at),
        least: bound.least,
        most: bound.most,
        measured,
        interval,
        holds,
        remark: remark.to_owned(),
    }
}
