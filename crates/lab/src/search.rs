//! The search for a capacity, in the terms of RFC 7501.
//!
//! The searched quantity is the one that the sweep sets: the Session Attempt Rate, the Registration Attempt Rate, or a
//! number of concurrent sessions. A trial is good if it has no failure, is within every threshold of the experiment,
//! and was steady to its end. The next value is that of the bracket search, or of the walk of RFC 7502.

mod bracket;
pub(crate) mod record;
pub(crate) mod rfc7502;
mod short;

pub use record::{SearchRecord, SearchTrial};
#[cfg(test)]
pub(crate) use short::coarse_seconds;
pub(crate) use short::expected_seconds;

use crate::caveats;
use crate::decimal::{counted, plain};
use crate::error::{LabError, RunVerdict};
use crate::experiment::{Experiment, File, SearchMethod, SearchPlan};
use crate::figures::{self, ThresholdCheck};
use crate::progress::Display;
use crate::raw::{RawWriter, TrialRecord};
use crate::refusal::UniformRefusal;
use crate::run::{self, Executed, RunOptions};
use bracket::{Bracket, Probe};
use rfc7502::RfcSearch;
use serde_json::json;
use std::cmp::Ordering;
use std::path::Path;

/// Most repetitions of a trial that failed while the machine was busy with other programs, as it is weak evidence about
/// the SUT. A machine that is busy each time is busy with the trial.
const MAX_REPEATS: u32 = 1;

/// The benchmark of RFC 7501 that a sweep over these keys measures.
pub fn benchmark(keys: &[String]) -> String {
    let sets = |key: &str| keys.iter().any(|known| known == key);
    if sets("callers.rate") {
        "Session Establishment Rate"
    } else if sets("registrations.refresh_rate") {
        "Re-registration Rate"
    } else if sets("registrations.rate") {
        "Registration Rate"
    } else if sets("callers.limit") || sets("callers.total") {
        "sessions at a time"
    } else if sets("conference.count") {
        "conferences at a time"
    } else if sets("conference.instances") {
        "instances at a time"
    } else {
        "capacity"
    }
    .to_owned()
}

/// The test setup in the form of RFC 7502 (Test Setup Report).
pub fn setup(experiment: &Experiment) -> Vec<(String, String)> {
    let mut rows: Vec<(&str, String)> = Vec::new();
    if let Some(callers) = &experiment.callers {
        let transport = engine::Transport::from(callers.transport);
        rows.push(("SIP transport protocol", transport.via_name().to_owned()));
        if transport != engine::Transport::Udp {
            rows.push(("connections", callers.connections.to_string()));
        }
        rows.push(("session duration, s", plain(callers.hold_seconds)));
        rows.push((
            "establishment threshold time, s",
            plain(callers.ring_seconds),
        ));
        let media = match callers.media {
            crate::experiment::MediaKind::None => "none".to_owned(),
            _ => {
                let codec = callers.codec.format(false).kind().name();
                let silence = match callers.silence_suppression {
                    true => ", silence suppression",
                    false => "",
                };
                let srtp = if callers.srtp {
                    ", SRTP of the callers"
                } else {
                    ""
                };
                format!("1 stream each way, {codec}, 20 ms{silence}{srtp}")
            }
        };
        rows.push(("associated media per session", media));
        let media = format!("{:?}", experiment.sut.media).to_lowercase();
        rows.push(("media on the device under test", media));
    }
    if let Some(codec) = experiment.transcodes_to() {
        let codec = codec.format(false).kind().name().to_owned();
        rows.push(("codec of the called side", codec));
    }
    if let Some(plan) = &experiment.conference {
        rows.push(("codec", plan.codec.format(false).kind().name().to_owned()));
        rows.push((
            "participants of a conference",
            plan.participants.to_string(),
        ));
        rows.push(("measured time, s", plain(plan.duration_seconds)));
    }
    if let Some(registrations) = &experiment.registrations {
        let transport = engine::Transport::from(registrations.transport);
        rows.push(("SIP transport protocol", transport.via_name().to_owned()));
        if transport != engine::Transport::Udp {
            rows.push(("connections", registrations.connections.to_string()));
        }
        let digest = match registrations.password.is_empty() {
            true => "none",
            false => "digest",
        };
        rows.push(("authentication", digest.to_owned()));
        rows.push(("registered users", registrations.users.to_string()));
    }
    rows.push((
        "threads of the generator, each side",
        experiment.generator.workers.to_string(),
    ));
    rows.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The failed thresholds of a trial, as text; empty for a good one.
pub fn failed_thresholds(trial: &TrialRecord) -> String {
    let names = trial.checks.iter().filter(|check| check.failed());
    let names: Vec<String> = names
        .filter_map(|check| {
            let measured = crate::decimal::plain(check.measured?);
            Some(format!("{} {measured}", check.name))
        })
        .collect();
    match figures::verdict(&trial.checks) {
        RunVerdict::NotMeasured => crate::not_judged::NO_FIGURE.to_owned(),
        _ => names.join(", "),
    }
}

/// Steadiness: the median response time of a trial's last third may be longer than that of the thirds before by this
/// share. A queue that grows from the start on has medians of 1, 3 and 5 parts: 1.67 times the middle one at any slope.
const STEADY_SHARE: f64 = 0.25;
/// The same as a time, milliseconds; below it, the noise of the machine decides.
const STEADY_MS: f64 = 5.0;

/// Whether the trial was steady to its end; `None` if too few attempts were answered.
fn steady(trial: &TrialRecord) -> Option<ThresholdCheck> {
    let [middle, last] = trial.details.thirds_ms?;
    let before = trial.details.first_third_ms?.min(middle);
    let limit = before * (1.0 + STEADY_SHARE) + STEADY_MS;
    Some(ThresholdCheck {
        name: "steady_ms".to_owned(),
        limit,
        measured: Some(last),
        holds: Some(last <= limit),
        required: false,
    })
}

/// A setting of the sweep that the plan of the search replaces, and the plan's setting.
fn ignored(plan: &SearchPlan, set: &[String]) -> Option<(&'static str, &'static str)> {
    let replaced = [
        ("levels.from", "search.start", plan.start),
        ("levels.to", "search.highest", plan.highest),
        ("levels.step", "search.step", plan.step),
        ("levels.values", "search.start", plan.start),
    ];
    let is_set = |name: &str| {
        let names = set.iter().filter_map(|item| item.split_once('='));
        names.map(|(key, _)| key.trim()).any(|key| key == name)
    };
    replaced
        .into_iter()
        .find(|(sweep, _, value)| value.is_some() && is_set(sweep))
        .map(|(sweep, instead, _)| (sweep, instead))
}

/// Searches the capacity of the built-in experiment of this name, or of the file at this path.
///
/// # Errors
/// [`LabError`] if the file is wrong, has no sweep by from, to and step, if a setting of the sweep has no effect, or if
/// the machine cannot run it.
pub fn search(name_or_file: &str, options: &RunOptions) -> Result<RunVerdict, LabError> {
    let file = run::load(name_or_file, options)?;
    if let Some((setting, instead)) = ignored(&file.experiment().search, &options.set) {
        return Err(LabError::bad_input(format!(
            "{setting} has no effect on this search: {instead} is set in the experiment; set {instead}"
        )));
    }
    run::check_places(options.json.as_deref(), options.out.as_deref())?;
    let dir = run::out_dir(options.out.as_deref(), &file.experiment().name)?;
    let Executed {
        record,
        published,
        planned,
        refused,
    } = execute(file, options, &dir)?;
    let mut value = run::run_json(&record, &published);
    if let Some(object) = value.as_object_mut() {
        let found = record.search.as_ref().and_then(|search| search.result);
        object.insert("capacity".to_owned(), json!(found));
    }
    if options.json.as_deref() != Some(Path::new("-")) {
        let table = crate::terminal::table(&record, &published);
        let page = published.page.display();
        let sentence = record
            .search
            .as_ref()
            .map_or(String::new(), |search| search.sentence(&record.level_label));
        crate::output::print(&format!("{table}{sentence}\nreport: {page}\n"));
    }
    if let Some(refused) = refused {
        eprintln!("{refused}");
    }
    run::write_json(options.json.as_deref(), &value)?;
    match record.cut_short {
        true => Err(LabError::Interrupted(format!(
            "interrupted after {} of at most {}; figures and report contain the results until then",
            record.trials.len(),
            counted(planned, "trial")
        ))),
        false => Ok(record.verdict),
    }
}

/// First value, step and highest value of a search; `None` if the experiment does not have them.
fn bounds(experiment: &Experiment) -> Option<(f64, f64, f64)> {
    let (plan, levels) = (&experiment.search, experiment.levels.as_ref()?);
    let start = plan.start.or(levels.from)?;
    let highest = plan.highest.or(levels.to)?;
    Some((start, plan.step.or(levels.step)?, highest))
}

/// The algorithm of a search.
enum Walk {
    Bracket {
        search: Bracket,
        /// The trial after the limit was taken.
        took_last: bool,
    },
    Rfc7502(RfcSearch),
}

impl Walk {
    fn next(&self) -> Option<Probe> {
        match self {
            Walk::Bracket { search, .. } => search.next(),
            Walk::Rfc7502(search) => search.next().map(|value| Probe {
                value,
                short: false,
            }),
        }
    }

    fn record_result(&mut self, good: bool) {
        match self {
            Walk::Bracket { search, .. } => search.record_result(good),
            Walk::Rfc7502(search) => search.record_result(good),
        }
    }

    fn best(&self) -> Option<f64> {
        match self {
            Walk::Bracket { search, .. } => search.best(),
            Walk::Rfc7502(search) => search.best(),
        }
    }

    fn failed_above(&self) -> Option<f64> {
        match self {
            Walk::Bracket { search, .. } => search.failed_above(),
            Walk::Rfc7502(search) => search.failed_above(),
        }
    }

    /// Takes one more trial after the time limit where full ones have only failed: without it the time of all trials
    /// would have no result. [`Bracket::limit_to`] places it at half of the lowest failed load.
    fn take_last_trial(&mut self) -> bool {
        let Walk::Bracket { search, took_last } = self else {
            return false;
        };
        let is_due = !*took_last && search.best().is_none() && search.failed_above().is_some();
        *took_last |= is_due;
        is_due
    }

    /// Whether a load was carried.
    fn has_passed(&self) -> bool {
        match self {
            Walk::Bracket { search, .. } => search.has_passed(),
            Walk::Rfc7502(search) => search.best().is_some(),
        }
    }

    fn refuted(&self) -> Vec<f64> {
        match self {
            Walk::Bracket { .. } => Vec::new(),
            Walk::Rfc7502(search) => search.refuted().to_vec(),
        }
    }
}

/// Sets the attempts of each trial that the plan of the search gives.
fn set_attempts(file: &mut File, plan: &SearchPlan) -> Result<(), LabError> {
    let Some(attempts) = plan.attempts else {
        return Ok(());
    };
    let (key, duration) = match file.experiment().callers.is_some() {
        true => ("callers.total", "callers.duration_seconds"),
        false => ("registrations.users", "registrations.duration_seconds"),
    };
    let levels = file.experiment().levels.as_ref();
    if levels.is_some_and(|levels| levels.set.iter().any(|known| known == key)) {
        let text = format!("search.attempts: the sweep itself sets {key}");
        return Err(LabError::bad_input(text));
    }
    file.set(&format!("{key}={attempts}"))?;
    file.set(&format!("{duration}=0"))
}

/// Searches the capacity of an experiment, and writes records and report into `dir`.
pub(crate) fn execute(
    mut file: File,
    options: &RunOptions,
    dir: &Path,
) -> Result<Executed, LabError> {
    let plan = file.experiment().search.clone();
    let (start, step, highest) = bounds(file.experiment()).ok_or_else(|| {
        LabError::bad_input(
            "a search needs [levels] with from, to and step, or [search] with start, highest and step beside levels.set",
        )
    })?;
    set_attempts(&mut file, &plan)?;
    run::check_subject(&file, options)?;
    run::probe_and_keep(&file, options, dir)?;
    let mut raw = RawWriter::open(dir, options.force)?;
    let mut record = run::new_run(&file, options.simulate)?;
    record.overrides.clone_from(&options.set);
    run::handle_interrupts(options)?;
    let seconds = match options.simulate {
        true => None,
        false => Some(expected_seconds(&file)?).filter(|seconds| *seconds > 0.0),
    };
    let mut display = Display::new(&record.title, plan.trials, seconds);
    let coarse = short::coarse_seconds(&file, &plan, start)?;
    let mut steps = match plan.method() {
        SearchMethod::Rfc7502 => Walk::Rfc7502(RfcSearch::new(&plan, start, step, highest)),
        SearchMethod::Bracket => {
            let limits = (start, step, highest);
            let search = Bracket::new(&plan, coarse.is_some(), limits);
            Walk::Bracket {
                search,
                took_last: false,
            }
        }
    };
    let mut trials: Vec<SearchTrial> = Vec::new();
    let mut repeats = 0;
    let mut refused = None;
    let mut failure = None;
    let mut ended_by_limit_s = None;
    let clock = net::Clock::new();
    let begun = clock.now();
    let left_seconds = || {
        let limit = plan.limit_seconds.filter(|_| !options.simulate)?;
        Some(limit - (clock.now() - begun).as_secs_f64())
    };
    while trials.len() < plan.trials as usize {
        let left_seconds = left_seconds();
        if left_seconds.is_some_and(|left| left <= 0.0) && !steps.take_last_trial() {
            ended_by_limit_s = plan.limit_seconds.filter(|_| steps.next().is_some());
            break;
        }
        if let (Walk::Bracket { search, .. }, Some(seconds)) = (&mut steps, left_seconds)
            && let Some(probe) = search.next()
        {
            search.limit_to(short::full_trials_left(&file, probe.value, seconds)?);
        }
        let Some(probe) = steps.next() else { break };
        let value = probe.value;
        let level = match coarse.filter(|_| probe.short) {
            Some(seconds) => short::shortened(&file, value, seconds)?,
            None => file.level_at(value)?,
        };
        let number = trials.len() as u32;
        let seed = record.seed;
        let ran = run::run_trial(
            &level,
            number,
            0,
            seed,
            options.simulate,
            &mut raw,
            &mut display,
        );
        let mut trial = match ran {
            Ok(trial) => trial,
            Err(error) if trials.is_empty() => return Err(error),
            // The trials before it stay.
            Err(error) => {
                run::mark_ended_by(&mut record, number, &error);
                failure = Some(error);
                break;
            }
        };
        trial.short = probe.short;
        let disturbed = caveats::is_disturbed(&trial);
        let mut step = judge(&mut trial, value);
        let again = !step.good && disturbed && repeats < MAX_REPEATS;
        if again {
            step.missed
                .push_str("; repeated, because the machine was busy");
        }
        repeats = if again { repeats + 1 } else { 0 };
        // Silence above a load that was carried is a result of the search.
        let above = steps.has_passed();
        refused = UniformRefusal::of(&level.experiment, &trial)
            .filter(|refusal| !(above && refusal.is_silence()))
            .map(|refusal| run::remark_refusal(refusal, &level.experiment, &mut trial));
        if net::stops() > 0 {
            cut_short(&mut step, &mut trial);
        }
        step.repeated |= again;
        if !step.repeated {
            steps.record_result(step.good);
        }
        let label = match probe.short {
            true => format!("{} (short trial)", plain(value)),
            false => plain(value),
        };
        if net::stops() == 0 {
            display.search_step(&label, &step.missed, steps.best(), steps.failed_above());
        }
        trials.push(step);
        record.trials.push(trial);
        if net::stops() > 0 {
            run::mark_interrupted(&mut record, number);
            refused = None;
            break;
        }
        if refused.is_some() {
            break;
        }
    }
    // Without a full trial the short ones have the only figures.
    if record.trials.iter().all(|trial| trial.short) {
        record
            .trials
            .iter_mut()
            .for_each(|trial| trial.short = false);
    }
    let keys = file.experiment().levels.as_ref().map(|levels| &levels.set);
    let is_rfc = plan.method() == SearchMethod::Rfc7502;
    let mut setup = setup(file.experiment());
    if let Some(attempts) = plan.attempts {
        setup.push(("total sessions attempted".to_owned(), attempts.to_string()));
    }
    let search = SearchRecord {
        benchmark: keys.map_or(String::new(), |keys| benchmark(keys)),
        method: plan.method(),
        start,
        attempts: plan.attempts,
        coarse_seconds: coarse,
        resolution_percent: (!is_rfc).then(|| plan.resolution_percent()),
        increase: is_rfc.then(|| plan.increase()),
        decrease: is_rfc.then(|| plan.decrease()),
        confirm: plan.confirm(),
        step,
        highest,
        setup,
        trials,
        result: steps.best(),
        failed_above: steps.failed_above(),
        converged: steps.next().is_none(),
        refuted: steps.refuted(),
        ended_by_limit_s,
    };
    record.verdict = verdict(&search, &record.trials, refused.is_some());
    let refused = refused.map(|why| run::stopped_by_refusal(&mut record, plan.trials, &why));
    record.trials.sort_by(|a, b| {
        let levels = a.level.partial_cmp(&b.level).unwrap_or(Ordering::Equal);
        levels.then(a.trial.cmp(&b.trial))
    });
    record.search = Some(search);
    raw.finish(&record)?;
    let published = run::publish(dir, &mut record)?;
    display.finish();
    match failure {
        Some(error) => Err(error.after(record.trials.len(), dir)),
        None => Ok(Executed {
            refused,
            record,
            published,
            planned: plan.trials,
        }),
    }
}

/// A trial that the user interrupted is not judged and does not count.
fn cut_short(step: &mut SearchTrial, trial: &mut TrialRecord) {
    trial.verdict = RunVerdict::NotMeasured;
    step.good = false;
    step.repeated = true;
    step.invalid = true;
    step.missed = "cut short by the user".to_owned();
}

/// Judges a trial of a search: without the planned load the SUT is not judged, but the search continues below. Any
/// failure counts, unless the experiment has a bound of its own (RFC 7502: all attempts have to be established).
fn judge(trial: &mut TrialRecord, value: f64) -> SearchTrial {
    let is_empty = trial.details.is_empty();
    let ended = ThresholdCheck::has_subject_ended(&trial.checks);
    let mut fault = trial
        .load_fault()
        .or_else(|| is_empty.then(|| figures::NO_ATTEMPT.to_owned()));
    if fault.is_none() && !ended {
        trial.checks.extend(steady(trial));
        let named = |check: &ThresholdCheck| check.name == figures::FAILED_PERCENT;
        if !trial.checks.iter().any(named) {
            trial.checks.extend(figures::no_failures(&trial.details));
        }
        let unknown = figures::missing(&trial.checks);
        if !unknown.is_empty() && figures::verdict(&trial.checks) != RunVerdict::Failed {
            fault = Some(format!("not measured: {}", unknown.join(", ")));
        }
    }
    let missed = match &fault {
        Some(fault) => fault.clone(),
        None if ended => "the system under test ended".to_owned(),
        None => failed_thresholds(trial),
    };
    let good = missed.is_empty();
    trial.verdict = match (good, &fault) {
        (true, _) => RunVerdict::Passed,
        (false, Some(_)) => RunVerdict::NotMeasured,
        (false, None) => RunVerdict::Failed,
    };
    SearchTrial {
        trial: trial.trial,
        value,
        good,
        missed,
        short: trial.short,
        invalid: fault.is_some(),
        shared: caveats::shared_processors(trial),
        ..SearchTrial::default()
    }
}

/// The verdict of a search. Without a result it has failed if the lowest value failed, or if any lower value would fail
/// alike: the SUT ended, or it refused every attempt. A search that its trials, its time or the user ended before knows
/// only that the limit is below the trials of full length.
fn verdict(search: &SearchRecord, trials: &[TrialRecord], is_refused: bool) -> RunVerdict {
    let mut trials = trials.iter();
    let is_decided = search.converged
        || is_refused
        || trials.any(|trial| ThresholdCheck::has_subject_ended(&trial.checks));
    match search.result {
        Some(_) => RunVerdict::Passed,
        None if search.is_measured() && is_decided => RunVerdict::Failed,
        None => RunVerdict::NotMeasured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::built_in;
    use crate::figures::{self, Figures};
    use crate::raw::{SocketShortage, Surroundings, TrialRecord};
    use crate::record::{Attempt, AttemptKind, AttemptOutcome};
    use engine::Time;

    /// A trial of 300 attempts, one each 10 ms, whose response times `response_ms` gives.
    fn trial(response_ms: impl Fn(u64) -> f64) -> TrialRecord {
        let attempts: Vec<Attempt> = (0..300)
            .map(|number| {
                let due = number * 10_000_000;
                let mut attempt = Attempt::new("calls", AttemptKind::Call, number, Time(due));
                attempt.sent = Some(due);
                attempt.established = Some(due + (response_ms(number) * 1e6) as u64);
                attempt.ended = attempt.established;
                attempt.outcome = AttemptOutcome::Completed;
                attempt
            })
            .collect();
        let (figures, details) = figures::compute(&attempts, &[], None);
        TrialRecord {
            figures,
            details,
            ..TrialRecord::default()
        }
    }

    #[test]
    fn queue_that_grows_from_the_start_is_not_steady() {
        let holds = |response: &dyn Fn(u64) -> f64| steady(&trial(response)).unwrap().holds;
        // At twice the capacity and just above it.
        assert_eq!(holds(&|n| n as f64), Some(false));
        assert_eq!(holds(&|n| 20.0 + n as f64 * 0.1), Some(false));
        assert_eq!(holds(&|n| 30.0 + (n * 7 % 11) as f64), Some(true));
        assert_eq!(holds(&|n| 1.0 + (n * 7 % 5) as f64), Some(true));
        // Slower at its beginning.
        assert_eq!(holds(&|n| if n < 60 { 80.0 } else { 10.0 }), Some(true));
        assert!(steady(&TrialRecord::default()).is_none());
    }

    #[test]
    fn trial_without_its_load_is_no_failure_of_the_system_under_test() {
        let mut starved = trial(|_| 1.0);
        starved.surroundings = Some(Surroundings::default());
        starved.details.lateness_ms = [Some(900.0); 3];
        let step = judge(&mut starved, 400.0);
        assert!(step.invalid && !step.good, "{step:?}");
        assert!(step.missed.contains("the generator could not keep up"));
        assert_eq!(starved.verdict, RunVerdict::NotMeasured);
        let mut short = trial(|_| 1.0);
        short.details.outcomes = vec![
            (AttemptOutcome::Completed, 200),
            (AttemptOutcome::CouldNotStart, 100),
        ];
        short.surroundings = Some(Surroundings {
            generator_shortage: Some(SocketShortage {
                calls: 100,
                error: "Too many open files".to_owned(),
            }),
            ..Surroundings::default()
        });
        let step = judge(&mut short, 400.0);
        assert!(step.invalid && !step.good, "{step:?}");
        assert!(step.missed.contains("no socket for 100 calls"), "{step:?}");
        let mut stopped = trial(|_| 1.0);
        let mut step = judge(&mut stopped, 400.0);
        assert!(step.good);
        cut_short(&mut step, &mut stopped);
        assert_eq!(
            (step.counts(), step.outcome()),
            (false, "not judged"),
            "{step:?}"
        );
        assert_eq!(stopped.verdict, RunVerdict::NotMeasured);
        let mut slow = trial(|n| n as f64);
        let step = judge(&mut slow, 400.0);
        assert!(!step.invalid && !step.good, "{step:?}");
        assert_eq!(slow.verdict, RunVerdict::Failed);
        assert_eq!(slow.figures.calls.failed, Figures::default().calls.failed);
        // The end of the system under test is a failure, also if it disturbed the machine.
        let mut crashed = trial(|_| 1.0);
        crashed.surroundings = Some(Surroundings::default());
        crashed.details.lateness_ms = [Some(900.0); 3];
        crashed.checks = vec![ThresholdCheck::subject_ended()];
        let step = judge(&mut crashed, 400.0);
        assert!(!step.invalid && !step.good, "{step:?}");
        assert_eq!(step.missed, "the system under test ended");
        assert_eq!(crashed.verdict, RunVerdict::Failed);
    }

    #[test]
    fn a_search_whose_full_trials_have_failed_takes_one_after_its_limit() {
        let plan = SearchPlan::default();
        let bracket = Bracket::new(&plan, true, (400.0, 50.0, 20_000.0));
        let mut steps = Walk::Bracket {
            search: bracket,
            took_last: false,
        };
        steps.record_result(true);
        assert!(!steps.take_last_trial(), "only short trials have passed");
        if let Walk::Bracket { search, .. } = &mut steps {
            search.limit_to(2);
        }
        steps.record_result(false);
        assert!(steps.take_last_trial());
        if let Walk::Bracket { search, .. } = &mut steps {
            search.limit_to(1);
        }
        assert_eq!(steps.next().map(|probe| probe.value), Some(200.0));
        assert!(!steps.take_last_trial(), "one trial, not more");
        steps.record_result(true);
        assert_eq!(steps.best(), Some(200.0));
    }

    #[test]
    fn failed_attempts_fail_a_trial_without_a_bound_for_them() {
        let shed = || {
            let mut shed = trial(|_| 1.0);
            shed.figures.calls.failed = 180;
            shed.details.outcomes = vec![
                (AttemptOutcome::Completed, 120),
                (AttemptOutcome::Refused, 180),
            ];
            shed
        };
        let bound = |name: &str, limit: f64, measured: f64| ThresholdCheck {
            name: name.to_owned(),
            limit,
            measured: Some(measured),
            holds: Some(measured <= limit),
            required: false,
        };
        for checks in [vec![], vec![bound("response_p99_ms", 10.0, 1.0)]] {
            let mut trial = shed();
            trial.checks = checks;
            let step = judge(&mut trial, 400.0);
            assert!(!step.good && !step.invalid, "{step:?}");
            assert_eq!(step.missed, "failed_percent 60");
            assert_eq!(trial.verdict, RunVerdict::Failed);
        }
        let mut allowed = shed();
        allowed.checks = vec![bound("failed_percent", 70.0, 60.0)];
        assert!(judge(&mut allowed, 400.0).good);
        // A bound that the user has set, and that cannot be measured, says nothing.
        let mut unmeasured = trial(|_| 1.0);
        unmeasured.checks = vec![ThresholdCheck {
            measured: None,
            holds: None,
            required: true,
            ..bound("one_way_ms", 150.0, 0.0)
        }];
        let step = judge(&mut unmeasured, 400.0);
        assert!(step.invalid && !step.good, "{step:?}");
        assert_eq!(step.missed, "not measured: one_way_ms");
        let step = judge(&mut TrialRecord::default(), 400.0);
        assert!(step.invalid && !step.good, "{step:?}");
        assert!(judge(&mut trial(|_| 1.0), 400.0).good);
    }

    #[test]
    fn search_that_ended_before_a_load_passed_is_not_measured() {
        let found = |value: f64, converged: bool| SearchRecord {
            trials: vec![SearchTrial {
                value,
                ..SearchTrial::default()
            }],
            failed_above: Some(value),
            converged,
            ..SearchRecord::default()
        };
        let of = |search: &SearchRecord| verdict(search, &[], false);
        // Its trials were used up at 9,050: the limit is anywhere below.
        assert_eq!(of(&found(9_050.0, false)), RunVerdict::NotMeasured);
        assert_eq!(of(&found(50.0, true)), RunVerdict::Failed);
        let refused = verdict(&found(9_050.0, false), &[], true);
        assert_eq!(refused, RunVerdict::Failed);
        let mut crashed = trial(|_| 1.0);
        crashed.checks = vec![ThresholdCheck::subject_ended()];
        let crashed = verdict(&found(9_050.0, false), &[crashed], false);
        assert_eq!(crashed, RunVerdict::Failed);
        let passed = SearchRecord {
            result: Some(400.0),
            ..found(9_050.0, false)
        };
        assert_eq!(of(&passed), RunVerdict::Passed);
    }

    #[test]
    fn keys_of_the_other_method_are_refused() {
        let parse = |set: &[&str]| {
            let set: Vec<String> = set.iter().map(|&set| set.to_owned()).collect();
            File::parse_with("call-rate", built_in("call-rate").unwrap(), &set)
        };
        let increase = ["search.increase=0.1", "search.method=bracket"];
        let error = parse(&increase).unwrap_err().to_string();
        let remedy = "set search.method = \"rfc7502\", or remove search.increase";
        assert!(error.contains(remedy), "{error}");
        let accepted = parse(&["search.increase=0.1", "search.method=rfc7502"]).unwrap();
        assert!(accepted.warnings().is_empty());
        // Files of earlier releases have the key and no method.
        let former = parse(&["search.increase=0.1"]).unwrap();
        assert_eq!(former.experiment().search.method(), SearchMethod::Bracket);
        let warnings = former.warnings();
        assert!(
            warnings.len() == 1 && warnings[0].contains(remedy),
            "{warnings:?}"
        );
        assert!(parse(&[]).unwrap().warnings().is_empty());
        let coarse = ["search.coarse_seconds=3", "search.method=rfc7502"];
        let error = parse(&coarse).unwrap_err().to_string();
        assert!(error.contains("search.method = \"bracket\""), "{error}");
        assert!(parse(&["search.resolution_percent=0"]).is_err());
    }
}
