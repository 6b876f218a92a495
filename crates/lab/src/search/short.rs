//! Short trials of a search, and the expected duration of all its trials.

use super::bounds;
use crate::error::LabError;
use crate::experiment::{Experiment, File, Level, SearchMethod, SearchPlan};

/// Trials of a search by short ones and full ones, as searches took that began two to five doublings below the limit.
const SHORT_TRIALS: f64 = 8.0;
const FULL_TRIALS: f64 = 5.0;
/// Start and end of a trial, seconds.
const TRIAL_OVERHEAD_S: f64 = 1.0;
/// Share of the duration of a full trial above which a short one is not worth its time.
const WORTHWHILE: f64 = 0.5;

/// Keys and values of a load that lasts `seconds` at most; calls are held for as long after the last set-up if their
/// number is searched, and for half of it if their rate is.
fn changes(experiment: &Experiment, counts_calls: bool, seconds: f64) -> Vec<(&'static str, f64)> {
    let mut changes = Vec::new();
    let mut shorten = |key: &'static str, now: f64, wanted: f64| {
        if now > wanted {
            changes.push((key, wanted));
        }
    };
    if let Some(callers) = &experiment.callers {
        let total = callers.total as f64;
        if counts_calls {
            let set_up = total / callers.rate.max(f64::MIN_POSITIVE);
            shorten(
                "callers.hold_seconds",
                callers.hold_seconds,
                set_up + seconds,
            );
        } else {
            shorten(
                "callers.duration_seconds",
                callers.duration_seconds,
                seconds,
            );
            shorten("callers.total", total, (callers.rate * seconds).ceil());
            shorten("callers.hold_seconds", callers.hold_seconds, seconds / 2.0);
        }
    }
    if let Some(plan) = &experiment.registrations {
        // First registrations before a cycle are preparation.
        let part = if plan.refresh_rate > 0.0 { 0.5 } else { 1.0 };
        let users = (plan.rate * seconds * part).ceil().max(1.0);
        shorten("registrations.users", plan.users as f64, users);
        shorten(
            "registrations.duration_seconds",
            plan.duration_seconds,
            seconds,
        );
    }
    if let Some(plan) = &experiment.conference {
        shorten(
            "conference.duration_seconds",
            plan.duration_seconds,
            seconds,
        );
    }
    if let Some(plan) = &experiment.streams {
        shorten("streams.duration_seconds", plan.duration_seconds, seconds);
    }
    changes
}

/// The level at `value` with a load of `seconds` at most.
///
/// # Errors
/// If the value does not fit.
pub(super) fn shortened(file: &File, value: f64, seconds: f64) -> Result<Level, LabError> {
    let keys = file.experiment().levels.as_ref().map(|levels| &levels.set);
    let sets = |key: &str| keys.is_some_and(|keys| keys.iter().any(|known| known == key));
    let counts_calls = sets("callers.total") || sets("callers.limit");
    let experiment = file.level_at(value)?.experiment;
    let mut short = file.clone();
    for (key, wanted) in changes(&experiment, counts_calls, seconds) {
        if !sets(key) {
            short.set(&format!("{key}={wanted}"))?;
        }
    }
    short.level_at(value)
}

/// Duration of the load in short trials; `None` without them: they are turned off, or hardly shorter than full ones.
///
/// # Errors
/// If the value does not fit.
pub(crate) fn coarse_seconds(
    file: &File,
    plan: &SearchPlan,
    start: f64,
) -> Result<Option<f64>, LabError> {
    let seconds = plan.coarse_seconds();
    if plan.method() != SearchMethod::Bracket || seconds <= 0.0 {
        return Ok(None);
    }
    let full = file.level_at(start)?.experiment.expected_seconds();
    let short = shortened(file, start, seconds)?.experiment;
    Ok((short.expected_seconds() < full * WORTHWHILE).then_some(seconds))
}

/// Number of full trials at `value` that can begin in the time that is left. A trial that has begun at the limit of the
/// search goes on to its end.
///
/// # Errors
/// If the value does not fit.
pub(super) fn full_trials_left(
    file: &File,
    value: f64,
    left_seconds: f64,
) -> Result<usize, LabError> {
    let full = file.level_at(value)?.experiment.expected_seconds() + TRIAL_OVERHEAD_S;
    Ok((left_seconds / full).max(0.0) as usize + 1)
}

/// Approximate duration of a search on sockets, seconds; for the walk of RFC 7502 that of its most trials. A trial that
/// has begun at the limit of the search goes on to its end.
///
/// # Errors
/// If the first value does not fit.
pub(crate) fn expected_seconds(file: &File) -> Result<f64, LabError> {
    let plan = &file.experiment().search;
    let Some((start, ..)) = bounds(file.experiment()) else {
        return Ok(0.0);
    };
    let full = file.level_at(start)?.experiment.expected_seconds() + TRIAL_OVERHEAD_S;
    let most = f64::from(plan.trials);
    let coarse = coarse_seconds(file, plan, start)?;
    let limit = plan
        .limit_seconds
        .map_or(f64::INFINITY, |limit| limit + full);
    let all = match (plan.method(), coarse) {
        (SearchMethod::Rfc7502, _) => most * full,
        (SearchMethod::Bracket, None) => (SHORT_TRIALS + FULL_TRIALS).min(most) * full,
        (SearchMethod::Bracket, Some(seconds)) => {
            let short = shortened(file, start, seconds)?
                .experiment
                .expected_seconds();
            SHORT_TRIALS.min(most) * (short + TRIAL_OVERHEAD_S)
                + FULL_TRIALS.min((most - SHORT_TRIALS).max(0.0)) * full
        }
    };
    Ok(all.min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::built_in;

    fn file(name: &str, overrides: &[&str]) -> File {
        let overrides: Vec<String> = overrides.iter().map(|&set| set.to_owned()).collect();
        File::parse_with(name, built_in(name).unwrap(), &overrides).unwrap()
    }

    #[test]
    fn rate_is_kept_and_durations_are_shortened() {
        let level = shortened(&file("call-rate", &[]), 5_000.0, 4.0).unwrap();
        let callers = level.experiment.callers.unwrap();
        assert_eq!((callers.rate, callers.duration_seconds), (5_000.0, 4.0));
        assert_eq!(callers.hold_seconds, 2.0);
        // Attempts that the search sets are those of the short duration.
        let total = ["callers.total=50000", "callers.duration_seconds=0"];
        let level = shortened(&file("call-rate", &total), 5_000.0, 4.0).unwrap();
        assert_eq!(level.experiment.callers.unwrap().total, 20_000);
        // Calls at a time stay up for the short duration after the last was set up.
        let level = shortened(&file("media-capacity", &[]), 700.0, 6.0).unwrap();
        let callers = level.experiment.callers.unwrap();
        assert_eq!((callers.total, callers.hold_seconds), (700, 13.0));
        let level = shortened(&file("registration-rate", &[]), 9_000.0, 4.0).unwrap();
        assert_eq!(level.experiment.registrations.unwrap().users, 36_000);
        let level = shortened(&file("re-registration-rate", &[]), 40_000.0, 4.0).unwrap();
        let plan = level.experiment.registrations.unwrap();
        assert!(plan.users < 60_000, "{plan:?}");
        let seconds = plan.users as f64 * f64::from(plan.refreshes) / plan.refresh_rate;
        assert!((4.0..6.0).contains(&seconds), "{plan:?}");
    }

    #[test]
    fn short_trials_have_to_be_shorter() {
        let of = |name: &str, overrides: &[&str]| {
            let file = file(name, overrides);
            let start = file.experiment().search.start.unwrap();
            coarse_seconds(&file, &file.experiment().search, start).unwrap()
        };
        assert_eq!(of("call-rate", &[]), Some(4.0));
        assert_eq!(of("call-rate", &["search.coarse_seconds=0"]), None);
        assert_eq!(of("call-rate", &["search.method=rfc7502"]), None);
        let brief = ["callers.duration_seconds=2", "callers.hold_seconds=1"];
        assert_eq!(of("call-rate", &brief), None);
        // The set-up of standing calls takes the time of its trials.
        assert_eq!(of("standing-call-capacity", &[]), None);
    }

    #[test]
    fn built_in_searches_take_minutes() {
        let minutes = |name: &str| expected_seconds(&file(name, &[])).unwrap() / 60.0;
        assert!((4.0..10.0).contains(&minutes("call-rate")));
        assert!(minutes("registration-rate") < 4.0);
        assert!((20.0..40.0).contains(&minutes("media-capacity")));
        let limited = file("media-capacity", &["search.limit_seconds=65"]);
        let trial = limited
            .level_at(100.0)
            .unwrap()
            .experiment
            .expected_seconds();
        let seconds = expected_seconds(&limited).unwrap();
        assert!((65.0..65.0 + trial + 2.0).contains(&seconds), "{seconds}");
        let rfc = file("call-rate", &["search.method=rfc7502"]);
        assert!(expected_seconds(&rfc).unwrap() > 1_000.0);
    }
}
