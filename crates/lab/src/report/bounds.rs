//! Bounds of figures over several levels, judged after all levels were run.

use super::level_summary::LevelSummary;
use super::study::{capacity, search_result};
use crate::decimal::plain;
use crate::error::RunVerdict;
use crate::experiment::{CAPACITY, FigureBound, PEAK, ReferenceValue};
use crate::peak::record::PeakRecord;
use crate::raw::{RunRecord, TrialRecord};
use crate::statistics::Interval;
use serde::{Deserialize, Serialize};

/// A bound of a level's figure, and the measured value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BoundCheck {
    /// Description of the figure and of its reference value.
    pub figure: String,
    /// Name of the figure.
    #[serde(default)]
    pub name: String,
    /// The level; `null` for a figure of the whole run, and if the figure's description names it.
    pub level: Option<f64>,
    /// The level at which the figure was read.
    #[serde(default)]
    pub at: Option<f64>,
    /// Lower bound.
    pub least: Option<f64>,
    /// Upper bound.
    pub most: Option<f64>,
    /// Measured value; `null` without a measurement.
    pub measured: Option<f64>,
    /// 95 % confidence interval of the value; the value is judged, not the interval.
    pub interval: Option<Interval>,
    /// Whether the bound holds; `null` without a measurement.
    pub holds: Option<bool>,
    /// Explanation of the value.
    pub remark: String,
    /// The bound could not be judged, because the SUT did not get the load, a reference is missing, or the host was too
    /// noisy: the run has not passed, even if all other bounds hold.
    #[serde(
        default,
        alias = "too_noisy",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub unjudged: bool,
}

impl BoundCheck {
    /// The verdict of this bound alone.
    pub const fn verdict(&self) -> RunVerdict {
        RunVerdict::of(self.holds)
    }

    /// The bound as text: `at least 95`.
    pub fn limit(&self) -> String {
        match (self.least, self.most) {
            (Some(least), Some(most)) => format!("{} to {}", plain(least), plain(most)),
            (Some(least), None) => format!("at least {}", plain(least)),
            (None, Some(most)) => format!("at most {}", plain(most)),
            (None, None) => String::new(),
        }
    }

    /// The measured value as text.
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
    bounds
        .flat_map(|bound| judge_bound(bound, run, levels))
        .collect()
}

/// The verdict over trials and bounds. `NotMeasured` counts only without any other verdict where the SUT does not have
/// the figure; where a bound could not be judged, nothing has passed.
pub(super) fn verdict<'a>(
    trials: RunVerdict,
    checks: impl IntoIterator<Item = &'a BoundCheck>,
) -> RunVerdict {
    let mut unjudged = RunVerdict::NotJudged;
    let mut all = trials;
    for check in checks {
        match check.unjudged {
            true => unjudged = RunVerdict::NotMeasured,
            false => all = all.or_measured(check.verdict()),
        }
    }
    all.and(unjudged)
}

/// `NotMeasured` if a trial with thresholds is not judged because the SUT did not get the planned load: bounds that
/// hold do not replace its thresholds.
pub(super) fn without_load<'a>(trials: impl IntoIterator<Item = &'a TrialRecord>) -> RunVerdict {
    let mut trials = trials.into_iter();
    let is_open =
        |trial: &TrialRecord| trial.verdict == RunVerdict::NotMeasured && trial.is_load_invalid();
    match trials.any(is_open) {
        true => RunVerdict::NotMeasured,
        false => RunVerdict::NotJudged,
    }
}

fn judge_bound(bound: &FigureBound, run: &RunRecord, levels: &[LevelSummary]) -> Vec<BoundCheck> {
    match bound.name.as_str() {
        CAPACITY => return vec![check_capacity(bound, run, levels)],
        PEAK => {
            return vec![match &run.peak {
                Some(peak) => check_peak(bound, peak),
                None => unjudged(bound, None, NO_PEAK),
            }];
        }
        _ => {}
    }
    // A search also tries levels beyond the limit, at which no bound has to hold.
    if run.search.is_some() {
        return Vec::new();
    }
    let chosen = levels
        .iter()
        .filter(|l| bound.at.is_none() || l.level == bound.at);
    let checks: Vec<BoundCheck> = chosen
        .map(|level| check_level(bound, level, run, levels))
        .collect();
    match checks.is_empty() {
        true => vec![checked(bound, bound.at, None, None, "level not run")],
        false => checks,
    }
}

fn check_level(
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
        None => reference(bound.percent_of.as_ref(), &bound.name, run, levels),
    };
    let reference_level = match bound.percent_of {
        Some(ReferenceValue::Level(at)) => Some(at),
        _ => level.level,
    };
    let used = |trial: &&TrialRecord| trial.level == level.level || trial.level == reference_level;
    let fault = (run.trials.iter().filter(used)).find_map(TrialRecord::load_fault);
    if let Some(fault) = fault {
        return unjudged(bound, place, &fault);
    }
    if let Some(check) = check_noise(bound, level, place) {
        return check;
    }
    match base.map(|base| relative_to_reference(level, &bound.name, base)) {
        Ok((value, interval)) => checked(bound, place, value, interval, ""),
        Err(NO_PEAK) => unjudged(bound, place, NO_PEAK),
        // The levels that a run leaves out are those that its user did not choose.
        Err(remark) => checked(bound, place, None, None, remark),
    }
}

/// Judges a figure beyond its bound on a host with noise; `None` where the noise plays no part: the figure is within
/// its bound, or the noise is small, or unknown (in virtual time there is none).
fn check_noise(
    bound: &FigureBound,
    level: &LevelSummary,
    place: Option<f64>,
) -> Option<BoundCheck> {
    let (name, limit, most) = (bound.noise.as_ref()?, bound.noise_most?, bound.most?);
    let (figure, noise) = (level.figure(&bound.name)?, level.figure(name)?);
    if figure <= most {
        return None;
    }
    let remark = |what: &str| format!("{name} is {}{what}", plain(noise));
    if noise > limit {
        let remark = remark(&format!(
            ", above {}: the host is too noisy for this bound, which {} does not keep",
            plain(limit),
            plain(figure)
        ));
        return Some(unjudged(bound, place, &remark));
    }
    let rest = bound.beyond_noise.then_some(figure - noise)?;
    let interval = level.intervals.get(&bound.name).cloned();
    Some(checked(bound, place, Some(rest), interval, &remark("")))
}

/// Remark of a bound without its reference.
const NO_PEAK: &str = "the peak was not measured";

type Read<'a> = (Option<f64>, Option<&'a Interval>);

/// Reference value for a figure of this name; `None` without one.
pub(super) fn reference<'a>(
    percent_of: Option<&ReferenceValue>,
    name: &str,
    run: &'a RunRecord,
    levels: &'a [LevelSummary],
) -> Result<Option<Read<'a>>, &'static str> {
    match percent_of {
        None => Ok(None),
        Some(ReferenceValue::Name(_)) => match &run.peak {
            Some(peak) => Ok(Some((Some(peak.value), peak.interval.as_ref()))),
            None => Err(NO_PEAK),
        },
        Some(ReferenceValue::Level(at)) => {
            match levels.iter().find(|level| level.level == Some(*at)) {
                Some(level) => Ok(Some((level.figure(name), level.intervals.get(name)))),
                None => Err("the reference level was not run"),
            }
        }
    }
}

/// A figure of a level, in percent of its reference value if there is one.
pub(super) fn relative_to_reference(
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

/// A peak that the generator limited may be higher, as [`check_capacity`] has it.
fn check_peak(bound: &FigureBound, peak: &PeakRecord) -> BoundCheck {
    let check = checked(bound, None, Some(peak.value), None, "");
    let mut limits = peak.steps.iter().filter(|step| step.invalid.is_some());
    let limit = limits.find_map(|step| step.invalid.as_deref());
    match (check.holds, peak.failed_above, limit) {
        (Some(false), None, Some(why)) => BoundCheck {
            measured: check.measured,
            ..unjudged(bound, None, &format!("the peak may be higher: {why}"))
        },
        _ => check,
    }
}

fn check_capacity(bound: &FigureBound, run: &RunRecord, levels: &[LevelSummary]) -> BoundCheck {
    let found = match &run.search {
        Some(search) => search_result(search),
        None => capacity(levels),
    };
    let mut check = checked(bound, None, found.value, found.interval, &found.remark);
    // If sweep or load end below the capacity, the true capacity may satisfy the bound.
    if check.holds == Some(false) && found.is_open_above {
        check.holds = None;
    }
    // The range of a search is chosen by its user; the limit of the generator is not.
    let search = run.search.as_ref();
    let is_limited =
        search.is_some_and(|search| search.load_limit().is_some() || !search.is_measured());
    check.unjudged = check.holds.is_none() && found.is_open_above && is_limited;
    let is_below = found.value.is_none() && !found.is_open_above && !levels.is_empty();
    if let Some(least) = bound.least.filter(|_| is_below) {
        // A search that ended early knows only that the limit is below its lowest trial of full length.
        let is_known = search.is_none_or(|search| {
            let lowest = search.lowest_failed();
            search.converged || lowest.is_some_and(|lowest| lowest <= least)
        });
        check.holds = is_known.then_some(false);
        check.unjudged |= !is_known;
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
        figure: bound.description(),
        name: bound.name.clone(),
        level,
        at: level.or(bound.at),
        least: bound.least,
        most: bound.most,
        measured,
        interval,
        holds,
        remark: remark.to_owned(),
        unjudged: false,
    }
}

/// A bound that could not be judged for this reason.
fn unjudged(bound: &FigureBound, level: Option<f64>, remark: &str) -> BoundCheck {
    BoundCheck {
        unjudged: true,
        ..checked(bound, level, None, None, remark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Details, Figures};
    use crate::search::record::{SearchRecord, SearchTrial};
    use serde_json::json;

    fn trial(level: f64, faults: &[&str]) -> TrialRecord {
        let record = json!({
            "trial": 0, "level": level, "repetition": 0, "seed": 1, "seconds": 1.0, "figures": Figures::default(),
            "details": Details::default(), "checks": [], "leaks": null, "verdict": "passed", "remarks": [],
            "surroundings": null, "digest": null,
            "links": [{ "name": "callers", "remark": "", "faults": faults, "directions": [] }],
        });
        serde_json::from_value(record).unwrap()
    }

    /// A figure and the noise of the host, in ms, for a bound of 21 beyond a noise of at most 1.
    fn noisy(figure: f64, noise: Option<f64>, beyond_noise: bool) -> BoundCheck {
        let bound = FigureBound {
            name: "delta_max_ms".to_owned(),
            most: Some(21.0),
            noise: Some("host_noise_max_ms".to_owned()),
            noise_most: Some(1.0),
            beyond_noise,
            ..FigureBound::default()
        };
        let level = LevelSummary {
            delta_max: Some(figure),
            host_noise_max: noise,
            ..LevelSummary::default()
        };
        let run = RunRecord {
            bounds: vec![bound],
            ..RunRecord::default()
        };
        judge(&run, &[level]).remove(0)
    }

    #[test]
    fn a_noisy_host_fails_no_bound_and_passes_none() {
        for (figure, noise, beyond, holds) in [
            // Within the bound, noise or not.
            (20.9, Some(5.0), true, Some(true)),
            (20.9, None, false, Some(true)),
            // Beyond it on a quiet host, with and without allowance.
            (21.5, Some(0.6), true, Some(true)),
            (21.5, Some(0.6), false, Some(false)),
            (21.7, Some(0.6), true, Some(false)),
            (22.1, Some(1.0), true, Some(false)),
            // Without a known noise, as in virtual time.
            (21.5, None, true, Some(false)),
            // A host noisier than the bound: neither passed nor failed.
            (21.5, Some(1.1), true, None),
            (60.0, Some(1.1), false, None),
        ] {
            let check = noisy(figure, noise, beyond);
            assert_eq!(check.holds, holds, "{figure} {noise:?} {beyond}: {check:?}");
        }
        let of = |checks: &[BoundCheck]| verdict(RunVerdict::Passed, checks);
        let [kept, missed, unjudged] = [
            noisy(20.0, None, true),
            noisy(23.0, Some(0.6), true),
            noisy(23.0, Some(3.0), true),
        ];
        assert_eq!(of(std::slice::from_ref(&kept)), RunVerdict::Passed);
        let both = [unjudged.clone(), kept];
        assert_eq!(of(&both), RunVerdict::NotMeasured, "not passed");
        assert_eq!(of(&[unjudged, missed]), RunVerdict::Failed);
        let line = noisy(21.5, Some(1.1), true).line();
        assert!(line.starts_with("not measured"), "{line}");
        assert!(line.contains("host_noise_max_ms is 1.1, above 1"), "{line}");
    }

    #[test]
    fn faulty_link_of_a_level_or_of_its_reference_leaves_it_without_a_measurement() {
        let bound = FigureBound {
            name: "mos".to_owned(),
            at: Some(10.0),
            percent_of: Some(ReferenceValue::Level(0.0)),
            most: Some(90.0),
            ..FigureBound::default()
        };
        let levels = [(0.0, 4.4), (5.0, 3.9), (10.0, 3.3)].map(|(level, mos)| LevelSummary {
            level: Some(level),
            mos: Some(mos),
            ..LevelSummary::default()
        });
        let holds = |faulty: Option<f64>| {
            let trials = [0.0, 5.0, 10.0].map(|level| match faulty == Some(level) {
                true => trial(level, &["up: the link cannot keep up"]),
                false => trial(level, &[]),
            });
            let run = RunRecord {
                bounds: vec![bound.clone()],
                trials: trials.to_vec(),
                ..RunRecord::default()
            };
            let checks = judge(&run, &levels);
            (checks[0].holds, verdict(RunVerdict::Passed, &checks))
        };
        assert_eq!(holds(None), (Some(true), RunVerdict::Passed));
        assert_eq!(holds(Some(5.0)), (Some(true), RunVerdict::Passed));
        let unjudged = (None, RunVerdict::NotMeasured);
        assert_eq!([holds(Some(0.0)), holds(Some(10.0))], [unjudged; 2]);
    }

    #[test]
    fn run_whose_load_was_not_offered_has_not_passed_by_its_bounds() {
        let held = noisy(20.0, None, true);
        let checks = std::slice::from_ref(&held);
        // Trials without any of the figures of their thresholds give way to a bound.
        assert_eq!(verdict(RunVerdict::NotMeasured, checks), RunVerdict::Passed);
        let mut starved = trial(10.0, &["up: the link cannot keep up"]);
        starved.verdict = RunVerdict::NotMeasured;
        let all = |trials: &[TrialRecord]| {
            verdict(RunVerdict::NotMeasured, checks).and(without_load(trials))
        };
        let trials = [trial(0.0, &[]), starved.clone()];
        assert_eq!(all(&trials), RunVerdict::NotMeasured);
        // Without thresholds nothing of it was to be judged; its bounds are judged by themselves.
        starved.verdict = RunVerdict::NotJudged;
        assert_eq!(all(&[starved]), RunVerdict::Passed);
    }

    #[test]
    fn capacity_that_the_generator_limited_below_its_bound_is_not_passed() {
        let step = |value: f64, good: bool, invalid: bool| SearchTrial {
            value,
            good,
            invalid,
            missed: "the generator could not keep up".to_owned(),
            ..SearchTrial::default()
        };
        let judged = |least: f64, invalid: bool| {
            let bound = FigureBound {
                name: CAPACITY.to_owned(),
                least: Some(least),
                ..FigureBound::default()
            };
            let run = RunRecord {
                bounds: vec![bound],
                search: Some(SearchRecord {
                    trials: vec![step(400.0, true, false), step(800.0, false, invalid)],
                    result: Some(400.0),
                    failed_above: Some(800.0),
                    converged: true,
                    ..SearchRecord::default()
                }),
                ..RunRecord::default()
            };
            verdict(RunVerdict::Passed, &judge(&run, &[]))
        };
        assert_eq!(judged(300.0, true), RunVerdict::Passed);
        assert_eq!(judged(700.0, true), RunVerdict::NotMeasured);
        assert_eq!(judged(700.0, false), RunVerdict::Failed);
    }

    #[test]
    fn search_that_ended_above_the_bound_of_its_capacity_does_not_fail_it() {
        let check = |failed_at: f64, converged: bool| {
            let bound = FigureBound {
                name: CAPACITY.to_owned(),
                least: Some(700.0),
                ..FigureBound::default()
            };
            let run = RunRecord {
                bounds: vec![bound],
                search: Some(SearchRecord {
                    trials: vec![SearchTrial {
                        value: failed_at,
                        ..SearchTrial::default()
                    }],
                    failed_above: Some(failed_at),
                    converged,
                    ..SearchRecord::default()
                }),
                ..RunRecord::default()
            };
            let level = LevelSummary {
                level: Some(failed_at),
                ..LevelSummary::default()
            };
            judge(&run, &[level]).remove(0)
        };
        let early = check(12_000.0, false);
        assert_eq!(early.holds, None, "{early:?}");
        assert!(early.line().contains("below 12000"), "{}", early.line());
        let of = |check: &BoundCheck| verdict(RunVerdict::NotMeasured, [check]);
        assert_eq!(of(&early), RunVerdict::NotMeasured);
        // At or below the bound, and where the lowest value of all failed.
        for failed in [check(700.0, false), check(800.0, true)] {
            assert_eq!(of(&failed), RunVerdict::Failed, "{failed:?}");
        }
    }
}
