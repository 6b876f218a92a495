//! Peak throughput, measured before the levels of an experiment as their reference: without it a SUT with nearly no
//! throughput would pass by keeping all of it under overload.

pub(crate) mod record;

pub use record::{PeakRecord, PeakStep};

use crate::caveats::OfferedLoad;
use crate::error::LabError;
use crate::experiment::{File, PeakPlan, SearchMethod, SearchPlan};
use crate::figures;
use crate::progress::Display;
use crate::run::trial_seed;
use crate::search::rfc7502::RfcSearch;
use crate::statistics::Interval;
use crate::trial::{Outcomes, Trial, on_sockets, simulate};

/// Seed numbers of these trials start here, above those of the trials of a run.
const FIRST_SEED: u32 = 2_000;

/// Measures the peak of the experiment in `file` with `plan`.
///
/// # Errors
/// As for a trial, and [`LabError::Interrupted`] if the user ends it.
pub(crate) fn measure(
    file: &File,
    plan: &PeakPlan,
    simulated: bool,
    display: &mut Display,
) -> Result<PeakRecord, LabError> {
    let mut file = file.clone();
    file.set(&format!(
        "callers.duration_seconds={:?}",
        plan.trial_seconds
    ))?;
    let steps = SearchPlan {
        method: Some(SearchMethod::Rfc7502),
        increase: Some(0.5),
        confirm: Some(1),
        ..SearchPlan::default()
    };
    let mut search = RfcSearch::new(&steps, plan.start, plan.step, plan.highest);
    let mut repeated = false;
    let mut seen: Vec<PeakStep> = Vec::new();
    while let Some(value) = search.next().filter(|_| (seen.len() as u32) < plan.trials) {
        let number = seen.len() as u32;
        let trial = Trial {
            experiment: file.level_at(value)?.experiment,
            number,
            seed: trial_seed(file.experiment().seed, FIRST_SEED + number),
        };
        display.begin(Some(value), 0);
        let outcomes = match simulated {
            true => simulate(&trial)?,
            false => on_sockets(&trial, |seconds, progress| {
                display.update(seconds, progress)
            })?,
        };
        // A trial that the user ended early says nothing of the peak.
        if net::stops() > 0 {
            return Err(LabError::Interrupted(
                "interrupted while the peak was measured".to_owned(),
            ));
        }
        if let Some(fault) = outcomes.links.iter().flat_map(|link| &link.faults).next() {
            return Err(LabError::cannot_run(
                format!("the peak was not measured: {fault}"),
                "run it on an idle machine, or with a lower peak.highest",
            ));
        }
        let step = step(value, plan, &outcomes);
        let words = match (step.good, &step.invalid) {
            (true, _) => String::new(),
            (false, Some(why)) => why.clone(),
            (false, None) => format!(
                "{} % served in time",
                crate::decimal::plain(step.served_percent)
            ),
        };
        // Once more: other work may have taken the machine away.
        repeated = step.invalid.is_some() && !repeated;
        if !repeated {
            search.record_result(step.good);
        }
        let label = crate::decimal::plain(value);
        display.search_step(&label, &words, search.best(), search.failed_above());
        seen.push(step);
    }
    let record = record(seen);
    match (
        record.at,
        record.steps.iter().find_map(|step| step.invalid.as_ref()),
    ) {
        (None, Some(why)) => Err(LabError::cannot_run(
            format!("the peak was not measured: {why}"),
            "run it on an idle machine, or with a lower peak.start",
        )),
        _ => Ok(record),
    }
}

fn step(value: f64, plan: &PeakPlan, outcomes: &Outcomes) -> PeakStep {
    let (_, details) = figures::compute(&outcomes.attempts, &[], None);
    let offered = OfferedLoad::of(outcomes.surroundings.as_ref(), &details, &[]);
    let invalid = offered.and_then(|offered| offered.fault());
    let main = figures::main_attempts(&outcomes.attempts);
    let served = main
        .iter()
        .filter(|attempt| figures::in_time(attempt))
        .count();
    let percent = served as f64 * 100.0 / main.len().max(1) as f64;
    PeakStep {
        value,
        served_percent: percent,
        in_time_per_second: details.in_time_per_second.unwrap_or_default(),
        good: percent >= plan.served_percent && invalid.is_none(),
        invalid,
    }
}

fn record(steps: Vec<PeakStep>) -> PeakRecord {
    let of = |good: bool| {
        let valid = steps.iter().filter(|step| step.invalid.is_none());
        valid.filter(move |step| step.good == good)
    };
    let best = of(true).max_by(|a, b| a.value.total_cmp(&b.value));
    let most = steps
        .iter()
        .filter(|step| step.invalid.is_none())
        .max_by(|a, b| a.in_time_per_second.total_cmp(&b.in_time_per_second));
    let at = best.map(|step| step.value);
    let above = of(false)
        .map(|step| step.value)
        .filter(|value| at.is_some_and(|at| *value > at));
    let failed_above = above.reduce(f64::min);
    let value = best.or(most).map_or(0.0, |step| step.in_time_per_second);
    PeakRecord {
        value,
        at,
        failed_above,
        interval: failed_above
            .map(|above| Interval::bracket(Some(value), Some(above.max(value)), steps.len())),
        steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sut_with_low_throughput_has_low_peak() {
        let step = |value: f64, in_time: f64, good: bool| PeakStep {
            value,
            served_percent: in_time * 100.0 / value,
            in_time_per_second: in_time,
            good,
            invalid: None,
        };
        let none = record(vec![step(600.0, 31.0, false), step(300.0, 30.0, false)]);
        assert_eq!((none.value, none.at, none.failed_above), (31.0, None, None));
        assert!(none.sentence("calls per second").contains("31 per second"));
        let steps = vec![
            step(600.0, 600.0, true),
            step(900.0, 700.0, false),
            step(750.0, 749.0, true),
        ];
        let found = record(steps);
        assert_eq!(
            (found.value, found.at, found.failed_above),
            (749.0, Some(750.0), Some(900.0))
        );
        assert_eq!(
            found.interval.unwrap().marked_ends(),
            "749 to 900 (bracket)"
        );
        // Where the generator was the limit, the peak is open above.
        let mut starved = step(900.0, 500.0, false);
        starved.invalid = Some("the generator could not keep up: late".to_owned());
        let found = record(vec![step(600.0, 600.0, true), starved]);
        assert_eq!((found.at, found.failed_above), (Some(600.0), None));
        let sentence = found.sentence("calls per second");
        assert!(
            sentence.contains("the peak is higher: the generator could not keep up"),
            "{sentence}"
        );
    }
}
