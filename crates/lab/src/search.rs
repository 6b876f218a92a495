//! The search for a capacity after RFC 7502 (Benchmarking Algorithm), in the terms of RFC 7501.
//!
//! The searched quantity is the one that the sweep sets: the Session Attempt Rate, the Registration Attempt Rate, or a
//! number of concurrent sessions. A trial is good if it has no failure, is within every threshold of the experiment,
//! and was steady to its end. The rate rises by the weight *w* after a good trial and falls by *d* after a failed one;
//! both weights are halved then, down to a tenth. The search has converged after a number of good trials without a
//! higher result. Then, beyond the RFC, the gap to the lowest rate that failed is halved until it is as small as the
//! step of the sweep.

pub(crate) mod record;

pub use record::{SearchRecord, SearchTrial};

use crate::caveats;
use crate::decimal::counted;
use crate::error::{LabError, RunVerdict};
use crate::experiment::{Experiment, File, SearchPlan};
use crate::figures::{self, ThresholdCheck};
use crate::progress::Display;
use crate::raw::{RawWriter, TrialRecord};
use crate::refusal::UniformRefusal;
use crate::run::{self, Executed, RunOptions};
use record::REFUTING_TRIALS;
use serde_json::json;
use std::cmp::Ordering;
use std::path::Path;

/// Most repetitions of a trial that failed while the machine was busy with other programs, as it is weak evidence about
/// the SUT. A machine that is busy each time is busy with the trial.
const MAX_REPEATS: u32 = 1;

/// Neither weight falls below this (RFC 7502, Benchmarking Algorithm).
const LEAST_WEIGHT: f64 = 0.10;

/// The algorithm: selects the next value.
#[derive(Clone, Debug)]
pub struct Search {
    rate: f64,
    increase: f64,
    decrease: f64,
    /// The highest good value so far.
    best: Option<f64>,
    bad: Vec<f64>,
    /// Good trials without a higher result.
    count: u32,
    confirm: u32,
    step: f64,
    highest: f64,
    refining: bool,
    over: bool,
    /// Every good value, so that the best one can be withdrawn.
    good: Vec<f64>,
    /// The failed value below the best one that is being repeated, and how often it has held since.
    in_doubt: Option<(f64, u32)>,
    refuted: Vec<f64>,
}

impl Search {
    /// A search that begins at `start`; values are multiples of `step`, `highest` at most.
    pub fn new(plan: &SearchPlan, start: f64, step: f64, highest: f64) -> Search {
        let mut search = Search {
            rate: start,
            increase: plan.increase,
            decrease: plan.decrease(),
            best: None,
            bad: Vec::new(),
            count: 0,
            confirm: plan.confirm,
            step,
            highest,
            refining: false,
            over: false,
            good: Vec::new(),
            in_doubt: None,
            refuted: Vec::new(),
        };
        search.rate = search.whole(start);
        search
    }

    /// A multiple of the step, within bounds.
    fn whole(&self, value: f64) -> f64 {
        let steps = (value / self.step + 1e-9).floor();
        (steps * self.step).clamp(self.step.min(self.highest), self.highest)
    }

    /// The value to be tried; `None` at the end of the search.
    pub fn next(&self) -> Option<f64> {
        (!self.over).then_some(self.rate)
    }

    /// The highest good value.
    pub fn best(&self) -> Option<f64> {
        self.best
    }

    /// The lowest value above the best one that failed.
    pub fn failed_above(&self) -> Option<f64> {
        let best = self.best?;
        let above = self.bad.iter().copied().filter(|bad| *bad > best);
        above.reduce(f64::min)
    }

    /// Values that failed below a good one, and held when they were repeated.
    pub fn refuted(&self) -> &[f64] {
        &self.refuted
    }

    /// Takes the result of the trial at [`Search::next`].
    pub fn record_result(&mut self, good: bool) {
        let rate = self.rate;
        if let Some((_, held)) = self.in_doubt {
            return self.judge_retry(rate, held, good);
        }
        if good {
            self.good.push(rate);
        }
        let higher = good && self.best.is_none_or(|best| rate > best);
        match good {
            true if higher => self.best = Some(rate),
            true => {}
            false => self.bad.push(rate),
        }
        if self.refining {
            return self.refine();
        }
        if good {
            if !higher {
                self.count += 1;
            }
            if self.count >= self.confirm {
                self.refining = true;
                return self.refine();
            }
            // At least by a step: with a small rate, rounding down would make no progress (the RFC warns of it).
            self.rate = self.whole((rate + self.increase * rate).max(rate + self.step));
        } else {
            self.rate = self.whole((rate - self.decrease * rate).min(rate - self.step));
            self.decrease = (self.decrease / 2.0).max(LEAST_WEIGHT);
            self.increase = (self.increase / 2.0).max(LEAST_WEIGHT);
            if rate <= self.step {
                self.over = true;
            }
        }
    }

    /// Half-way between the best value and the lowest failed one above it, while there is a value between.
    fn refine(&mut self) {
        let (Some(best), Some(above)) = (self.best, self.failed_above()) else {
            return self.retry_lowest_failure();
        };
        let middle = best + (((above - best) / self.step / 2.0).round()).max(1.0) * self.step;
        if middle < above - self.step * 1e-6 {
            self.rate = middle;
        } else {
            self.retry_lowest_failure();
        }
    }

    /// Failed values below the best one put the result in doubt: the lowest is repeated. Without one the search is
    /// over.
    fn retry_lowest_failure(&mut self) {
        let below =
            (self.bad.iter().copied()).filter(|bad| self.best.is_some_and(|best| *bad < best));
        match below.reduce(f64::min) {
            Some(value) => {
                self.in_doubt = Some((value, 0));
                self.rate = value;
            }
            None => self.over = true,
        }
    }

    /// Takes the result of a repetition: a second failure is a limit, and the result falls below it.
    fn judge_retry(&mut self, rate: f64, held: u32, good: bool) {
        if good && held + 1 < REFUTING_TRIALS {
            self.in_doubt = Some((rate, held + 1));
            return;
        }
        self.in_doubt = None;
        if good {
            self.bad.retain(|bad| *bad != rate);
            self.refuted.push(rate);
            self.good.push(rate);
            return self.retry_lowest_failure();
        }
        self.good.retain(|value| *value < rate);
        self.best = self.good.iter().copied().reduce(f64::max);
        match self.best {
            Some(_) => self.refine(),
            None => self.over = true,
        }
    }
}

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
    use crate::decimal::plain;
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
        RunVerdict::NotMeasured => "no figure with a threshold was measured".to_owned(),
        _ => names.join(", "),
    }
}

/// Steadiness: the median response time of a trial's last third may be twice that of the middle third plus this time,
/// milliseconds; below it, the noise of the machine decides.
const STEADY_MS: f64 = 5.0;

/// Whether the trial was steady to its end; `None` if too few attempts were answered.
fn steady(trial: &TrialRecord) -> Option<ThresholdCheck> {
    let [middle, last] = trial.details.thirds_ms?;
    let limit = middle * 2.0 + STEADY_MS;
    Some(ThresholdCheck {
        name: "steady_ms".to_owned(),
        limit,
        measured: Some(last),
        holds: Some(last <= limit),
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
/// [`LabError`] if the file is wrong, has no sweep by from, to and step, if a setting of the sweep has no effect, or if the machine cannot
/// run it.
pub fn search(name_or_file: &str, options: &RunOptions) -> Result<RunVerdict, LabError> {
    let file = run::load(name_or_file, options)?;
    if let Some((setting, instead)) = ignored(&file.experiment().search, &options.set) {
        return Err(LabError::bad_input(format!(
            "{setting} has no effect on this search: {instead} is set in the experiment; set {instead}"
        )));
    }
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
    crate::files::write_json(options.json.as_deref(), &value)?;
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
    match record.cut_short {
        true => Err(LabError::Interrupted(format!(
            "interrupted after {} of at most {}; figures and report contain the results until then",
            record.trials.len(),
            counted(planned, "trial")
        ))),
        false => Ok(record.verdict),
    }
}

/// Searches the capacity of an experiment, and writes records and report into `dir`.
pub(crate) fn execute(
    mut file: File,
    options: &RunOptions,
    dir: &Path,
) -> Result<Executed, LabError> {
    let plan = file.experiment().search.clone();
    let sweep = file.experiment().levels.clone();
    let bounds = sweep.as_ref().and_then(|levels| {
        let start = plan.start.or(levels.from)?;
        let highest = plan.highest.or(levels.to)?;
        Some((start, highest, plan.step.or(levels.step)?))
    });
    let (start, to, step) = bounds.ok_or_else(|| {
        LabError::bad_input(
            "a search needs [levels] with from, to and step, or [search] with start, highest and step beside levels.set",
        )
    })?;
    let keys = sweep.map(|levels| levels.set).unwrap_or_default();
    if let Some(attempts) = plan.attempts {
        let key = match file.experiment().callers.is_some() {
            true => "callers.total",
            false => "registrations.users",
        };
        if keys.iter().any(|known| known == key) {
            let text = format!("search.attempts: the sweep itself sets {key}");
            return Err(LabError::bad_input(text));
        }
        file.set(&format!("{key}={attempts}"))?;
        if file.experiment().callers.is_some() {
            file.set("callers.duration_seconds=0")?;
        }
    }
    run::check_subject(&file, options)?;
    run::probe(&file, options)?;
    run::clear_results(dir, options.force)?;
    let mut raw = RawWriter::create(dir)?;
    let mut record = run::new_run(&file, options.simulate)?;
    record.overrides.clone_from(&options.set);
    run::handle_interrupts(options)?;
    let seconds = match options.simulate {
        true => None,
        false => expected_seconds(&file, &plan, start)?,
    };
    let mut display = Display::new(&record.title, plan.trials, seconds);
    let mut steps = Search::new(&plan, start, step, to);
    let mut setup = setup(file.experiment());
    if let Some(attempts) = plan.attempts {
        setup.push(("total sessions attempted".to_owned(), attempts.to_string()));
    }
    let mut trials: Vec<SearchTrial> = Vec::new();
    let mut repeats = 0;
    let mut refused = None;
    while let Some(value) = steps.next().filter(|_| trials.len() < plan.trials as usize) {
        let level = file.level_at(value)?;
        let number = trials.len() as u32;
        let seed = record.seed;
        let mut trial = run::run_trial(
            &level,
            number,
            0,
            seed,
            options.simulate,
            &mut raw,
            &mut display,
        )?;
        trial.checks.extend(steady(&trial));
        let around = trial.surroundings.as_ref();
        let missed = match (trial.has_faulty_link(), around.and_then(caveats::starved)) {
            (true, _) => "a link of [network] was not as configured".to_owned(),
            (false, Some(why)) => why,
            (false, None) => failed_thresholds(&trial),
        };
        let good = missed.is_empty();
        trial.verdict = if good {
            RunVerdict::Passed
        } else {
            RunVerdict::Failed
        };
        let disturbed = caveats::is_disturbed(&trial);
        let again = !good && disturbed && repeats < MAX_REPEATS;
        let missed = match again {
            true => format!("{missed}; repeated, because the machine was busy"),
            false => missed,
        };
        repeats = if again { repeats + 1 } else { 0 };
        // Silence above a load that was carried is a result of the search.
        let above = steps.best().is_some();
        refused = UniformRefusal::of(&level.experiment, &trial)
            .filter(|refusal| !(above && refusal.is_silence()))
            .map(|refusal| run::remark_refusal(refusal, &level.experiment, &mut trial));
        // A trial that the user interrupted does not count.
        let again = again || net::stops() > 0;
        if !again {
            steps.record_result(good);
        }
        display.search_step(value, &missed, steps.best(), steps.failed_above());
        trials.push(SearchTrial {
            trial: number,
            value,
            good,
            missed,
            repeated: again,
        });
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
    let search = SearchRecord {
        benchmark: benchmark(&keys),
        start,
        attempts: plan.attempts,
        increase: plan.increase,
        decrease: plan.decrease(),
        confirm: plan.confirm,
        step,
        highest: to,
        setup,
        trials,
        result: steps.best(),
        failed_above: steps.failed_above(),
        converged: steps.next().is_none(),
        refuted: steps.refuted().to_vec(),
    };
    record.verdict = match search.result {
        Some(_) => RunVerdict::Passed,
        None => RunVerdict::Failed,
    };
    let refused = refused.map(|why| run::stopped_by_refusal(&mut record, plan.trials, &why));
    record.trials.sort_by(|a, b| {
        let levels = a.level.partial_cmp(&b.level).unwrap_or(Ordering::Equal);
        levels.then(a.trial.cmp(&b.trial))
    });
    record.search = Some(search);
    raw.finish(&record)?;
    let published = run::publish(dir, &mut record)?;
    display.finish();
    Ok(Executed {
        refused,
        record,
        published,
        planned: plan.trials,
    })
}

/// Approximate duration of a search: its most trials, each as long as the first.
fn expected_seconds(file: &File, plan: &SearchPlan, start: f64) -> Result<Option<f64>, LabError> {
    let level = file.level_at(start)?;
    let seconds = level.experiment.expected_seconds() * f64::from(plan.trials);
    Ok((seconds > 0.0).then_some(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(increase: f64, confirm: u32) -> SearchPlan {
        SearchPlan {
            increase,
            confirm,
            ..SearchPlan::default()
        }
    }

    /// The tried values if all values up to `capacity` are good.
    fn tried_values(mut search: Search, capacity: f64) -> (Vec<f64>, Search) {
        let mut values = Vec::new();
        while let Some(value) = search.next() {
            values.push(value);
            assert!(values.len() < 200, "it ends: {values:?}");
            search.record_result(value <= capacity);
        }
        (values, search)
    }

    #[test]
    fn rate_changes_by_the_weights_of_rfc_7502() {
        // w = 1, so d = 0.5; after a failure both are halved, down to a tenth.
        let search = Search::new(&plan(1.0, 1), 100.0, 1.0, 1e6);
        let (values, search) = tried_values(search, 730.0);
        assert_eq!(values[..6], [100.0, 200.0, 400.0, 800.0, 400.0, 600.0]);
        assert_eq!(search.best(), Some(730.0), "the gap is closed: {values:?}");
        assert_eq!(search.failed_above(), Some(731.0));
    }

    #[test]
    fn search_converges_after_good_trials_without_a_higher_result() {
        let (values, search) = tried_values(Search::new(&plan(0.10, 10), 100.0, 1.0, 1e6), 100.0);
        let again = values.iter().filter(|value| **value <= 100.0).count();
        assert!(again >= 10, "{values:?}");
        assert_eq!(
            (search.best(), search.failed_above()),
            (Some(100.0), Some(101.0))
        );
    }

    #[test]
    fn small_values_change_by_at_least_one_step() {
        let (values, search) = tried_values(Search::new(&plan(0.10, 3), 2.0, 2.0, 100.0), 8.5);
        assert_eq!(
            (search.best(), search.failed_above()),
            (Some(8.0), Some(10.0))
        );
        assert_eq!(values[..5], [2.0, 4.0, 6.0, 8.0, 10.0]);
    }

    fn record(trials: &[(f64, bool)], search: &Search) -> SearchRecord {
        let step = |(place, (value, good)): (usize, &(f64, bool))| SearchTrial {
            trial: place as u32,
            value: *value,
            good: *good,
            missed: String::new(),
            repeated: false,
        };
        SearchRecord {
            benchmark: "Session Establishment Rate".to_owned(),
            start: 1.0,
            attempts: None,
            increase: 0.5,
            decrease: 0.25,
            confirm: 1,
            step: 50.0,
            highest: 1e6,
            setup: Vec::new(),
            trials: trials.iter().enumerate().map(step).collect(),
            result: search.best(),
            failed_above: search.failed_above(),
            converged: search.next().is_none(),
            refuted: search.refuted().to_vec(),
        }
    }

    /// Regression: 14,750 failed, and 16,350 was found.
    #[test]
    fn result_is_below_the_lowest_failed_value() {
        let run = |again: &[bool]| {
            let mut search = Search::new(&plan(0.5, 1), 10_000.0, 50.0, 20_000.0);
            let (mut trials, mut again) = (Vec::new(), again.iter());
            let mut first = true;
            while let Some(value) = search.next() {
                let good = match value {
                    _ if value > 13_000.0 && first => {
                        first = false;
                        false
                    }
                    value if trials.iter().any(|(seen, good)| *seen == value && !good) => {
                        again.next().copied().unwrap_or(value <= 16_350.0)
                    }
                    value => value <= 16_350.0,
                };
                trials.push((value, good));
                search.record_result(good);
                assert!(trials.len() < 60, "{trials:?}");
            }
            (record(&trials, &search), trials)
        };
        // It fails again: the result falls below it.
        let (found, trials) = run(&[false]);
        let lowest = trials
            .iter()
            .filter(|(_, good)| !good)
            .map(|(value, _)| *value);
        let lowest = lowest.reduce(f64::min).unwrap();
        assert!(found.result.unwrap() < lowest, "{found:?}");
        assert!(found.failed_below().is_empty() && found.lower_failures().is_none());
        assert_eq!(found.interval().unwrap().high, found.failed_above);
        // It holds twice: the failure was a disturbance, and is reported.
        let (found, trials) = run(&[true, true]);
        let disturbed = trials.iter().find(|(_, good)| !good).unwrap().0;
        assert_eq!(found.refuted, [disturbed]);
        assert_eq!(found.result, Some(16_350.0));
        assert!(
            found
                .sentence("calls per second")
                .contains("not monotonic: 15000 failed once"),
            "{}",
            found.sentence("")
        );
        // The trials are used up before: the result is marked, and the interval begins below the failure.
        let search = Search {
            best: Some(16_350.0),
            ..Search::new(&plan(0.5, 1), 10_000.0, 50.0, 20_000.0)
        };
        let cut = record(
            &[(10_000.0, true), (14_750.0, false), (16_350.0, true)],
            &search,
        );
        assert_eq!(cut.failed_below(), [14_750.0]);
        assert_eq!(cut.interval().unwrap().low, Some(10_000.0));
        assert!(
            cut.lower_failures()
                .unwrap()
                .contains("14750 failed below it")
        );
    }

    #[test]
    fn bounds_end_the_search() {
        let (values, search) = tried_values(Search::new(&plan(1.0, 2), 100.0, 50.0, 1_200.0), 9e9);
        assert_eq!(search.best(), Some(1_200.0));
        assert_eq!(search.failed_above(), None);
        assert_eq!(values.iter().filter(|v| **v == 1_200.0).count(), 3);
        let (values, search) = tried_values(Search::new(&plan(1.0, 2), 100.0, 50.0, 1_200.0), 10.0);
        assert_eq!(search.best(), None);
        assert_eq!(values, [100.0, 50.0]);
    }

    #[test]
    fn trials_are_kept_when_repeated() {
        let (values, search) = tried_values(
            Search::new(&plan(0.5, 3), 1_000.0, 100.0, 20_000.0),
            4_250.0,
        );
        assert!(values.iter().all(|value| value % 100.0 == 0.0));
        assert_eq!(
            (search.best(), search.failed_above()),
            (Some(4_200.0), Some(4_300.0))
        );
        assert!(values.len() < 30, "{values:?}");
    }
}
