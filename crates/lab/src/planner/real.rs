//! The check of a plan against a real run at a small scale: calls of its kind, registrations and standing calls through
//! a border on this machine, whose CPU time and memory are compared with those that the plan's costs predict.

use super::costs::Costs;
use super::curve::{CostCurve, busy_share};
use super::estimate::{Estimate, IntervalEnd};
use super::request::{MediaPath, PlanRequest, Protection, Signalling};
use crate::decimal::{counted, plain};
use crate::error::{LabError, RunVerdict};
use crate::memory_growth::{GrowthLoad, MemoryGrowth};
use crate::raw::TrialRecord;
use crate::run::{self, Executed, RunOptions};
use crate::statistics::Interval;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Calls at a time, by default.
pub const REAL_CALLS: u32 = 50;
/// Most calls at a time: one thread carries them.
const MOST_CALLS: u32 = 1_000;
/// Runs, and borders whose memory is measured; their spread gives the interval.
const RUNS: u32 = 3;
/// Packets a second of a call in these runs: one each 20 ms, each way.
const PACKETS_OF_A_CALL: f64 = 100.0;
/// Duration of a call with media, seconds.
const MEDIA_SECONDS: u32 = 5;
/// Time in which calls without media are offered, seconds; each lasts one.
const OFFERED_SECONDS: u32 = 4;
/// Registrations a second, and for how long, seconds.
const REGISTRATIONS_PER_S: u32 = 500;
const REGISTRATION_SECONDS: u32 = 3;
/// Refreshes from the cache a second.
const REFRESHES_PER_S: u32 = 1_000;
/// Standing calls whose memory is measured, for each call at a time, and their bounds: the memory of a few is lost in
/// the pages of the allocator. Anchored calls are half as many, because they have ports.
const STANDING_FOR_EACH: u32 = 20;
const STANDING: (u32, u32) = (400, 1_000);
/// Registrations whose memory is measured, for each standing call.
const REGISTERED_FOR_EACH: u32 = 10;

/// Options of the check.
#[derive(Clone, Debug, PartialEq)]
pub struct RealOptions {
    /// Directory for the records of the runs.
    pub dir: PathBuf,
    /// Calls at a time.
    pub calls: u32,
    /// Seed of the runs.
    pub seed: u64,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RealRun {
    /// Calls that were set up.
    pub calls: u64,
    /// Packets that were relayed.
    pub packets: u64,
    /// CPU time of the border, seconds.
    pub cpu_seconds: f64,
    /// CPU time by the costs of the plan for these calls and packets, seconds.
    pub predicted_seconds: Estimate,
}

/// The result of the check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RealCheck {
    /// Experiment that ran.
    pub experiment: String,
    /// Directory of its records.
    pub records: String,
    /// Calls at a time.
    pub calls_at_a_time: u32,
    /// The runs.
    pub runs: Vec<RealRun>,
    /// Mean of the predicted CPU time, seconds, with the interval of the costs.
    pub predicted_seconds: Estimate,
    /// Mean of the measured CPU time, seconds.
    pub measured_seconds: f64,
    /// Its 95 % interval over the runs.
    pub interval: Interval,
    /// Whether the measured mean lies within the interval of the prediction.
    pub agrees: bool,
    /// CPU time of registrations, and memory.
    pub parts: Vec<RealPart>,
}

/// A cost that was measured beside the CPU time of calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RealPart {
    /// Identifier of the cost.
    pub cost: String,
    /// Its description.
    pub what: String,
    /// Its unit.
    pub unit: String,
    /// Experiment that ran.
    pub experiment: String,
    /// Directory of its records.
    pub records: String,
    /// Calls or registrations, of all runs.
    pub count: u64,
    /// The cost of the plan.
    pub predicted: Estimate,
    /// Mean of the runs, or of the borders whose memory was measured.
    pub measured: f64,
    /// Its 95 % interval over them.
    pub interval: Interval,
    /// Whether the measured mean lies within the interval of the plan.
    pub agrees: bool,
}

/// The experiment with calls of this kind.
fn experiment(request: &PlanRequest) -> Result<&'static str, LabError> {
    match (request.path, request.protection) {
        (_, Protection::Esp) => Err(LabError::bad_input(
            "--check-real: no experiment has ESP between callers and border: leave it out, or check --protection srtp",
        )),
        (MediaPath::Bypass, _) => Ok("call-rate"),
        (MediaPath::Anchored, protection) if protection.media() == "srtp" => {
            Ok("media-capacity-srtp")
        }
        (MediaPath::Anchored, _) => Ok("media-capacity"),
    }
}

fn sets(request: &PlanRequest, calls: u32) -> Vec<String> {
    let mut sets = vec![
        "levels=".to_owned(),
        "study=".to_owned(),
        "thresholds.figure=".to_owned(),
        format!("repeat={RUNS}"),
        "settle_seconds=10".to_owned(),
    ];
    match request.path {
        MediaPath::Bypass => sets.extend([
            format!("callers.rate={calls}"),
            format!("callers.duration_seconds={OFFERED_SECONDS}"),
            "callers.hold_seconds=1".to_owned(),
        ]),
        MediaPath::Anchored => sets.extend([
            format!("callers.total={calls}"),
            format!("callers.limit={calls}"),
            format!("callers.hold_seconds={MEDIA_SECONDS}"),
        ]),
    }
    if request.protection.signalling() == Signalling::Tls {
        sets.extend(["callers.transport=tls", "callees.transport=tls"].map(str::to_owned));
    }
    sets
}

/// Checks that a directory has no results of an earlier run, before the plan is computed and simulated.
///
/// # Errors
/// If it has.
pub fn check_unused(dir: &Path) -> Result<(), LabError> {
    match dir.join("run.json").exists() {
        true => Err(LabError::bad_input(format!(
            "--check-real {}: it has results of an earlier run; name another directory",
            dir.display()
        ))),
        false => Ok(()),
    }
}

/// Runs calls of the request's kind, and compares their CPU time with that of the costs.
///
/// # Errors
/// A cost that was not measured, a kind of call that no experiment has, or if the runs could not be measured here.
pub fn check_real(
    request: &PlanRequest,
    costs: &Costs,
    options: &RealOptions,
) -> Result<RealCheck, LabError> {
    if !(1..=MOST_CALLS).contains(&options.calls) {
        return Err(LabError::bad_input(format!(
            "--check-calls {}: expected 1 to {MOST_CALLS}",
            options.calls
        )));
    }
    let name = experiment(request)?;
    let call = format!(
        "call.{}.{}",
        request.path.name(),
        request.protection.signalling().name()
    );
    let call = costs.curve(&call)?;
    let packet = match request.path {
        MediaPath::Bypass => None,
        MediaPath::Anchored => {
            let id = format!("packet.{}", request.protection.media());
            Some(costs.curve(&id)?)
        }
    };
    let (call, packet) = at_load(&call, packet.as_ref(), options.calls);
    let parts = parts(request, options.calls);
    // A missing cost is named before anything runs.
    for part in &parts {
        costs.get(part.id())?;
    }
    let of_run = RunOptions {
        set: sets(request, options.calls),
        seed: Some(options.seed),
        ..RunOptions::default()
    };
    check_unused(&options.dir)?;
    run::handle_interrupts(&of_run)?;
    let file = run::load(name, &of_run)?;
    let executed = run::execute(&file, &of_run, &options.dir)?;
    whole(&executed)?;
    let trials = &executed.record.trials;
    let runs: Vec<RealRun> = trials
        .iter()
        .filter_map(|trial| real_run(trial, call, packet))
        .collect();
    let failed = trials.iter().map(|trial| trial.figures.calls.failed).sum();
    let mut check = compare(name, options, runs, failed)?;
    for part in parts {
        check.parts.push(part.run(costs, options)?);
    }
    Ok(check)
}

/// CPU time of a call and of a packet at the load of the runs: so many calls each second with media bypass, or at a
/// time with media. A thread that is hardly busy takes messages singly, so that they cost more than those of the plan.
fn at_load(call: &CostCurve, packet: Option<&CostCurve>, calls: u32) -> (Estimate, Estimate) {
    let calls = f64::from(calls);
    let loads = match packet {
        None => vec![(calls, call)],
        Some(packet) => vec![
            (calls / f64::from(MEDIA_SECONDS), call),
            (calls * PACKETS_OF_A_CALL, packet),
        ],
    };
    let busy = busy_share(&loads, IntervalEnd::Value);
    let packet = packet.map_or(Estimate::exact(0.0), |packet| packet.at_busy(busy));
    (call.at_busy(busy), packet)
}

/// Refuses a run that was cut short.
///
/// # Errors
/// If the user interrupted it.
fn whole(executed: &Executed) -> Result<(), LabError> {
    match executed.record.cut_short {
        true => Err(LabError::Interrupted(
            "interrupted: the plan was not compared with a real run".to_owned(),
        )),
        false => Ok(()),
    }
}

/// A measurement beside that of calls.
enum PartPlan {
    /// CPU time of full registrations over this transport.
    Registrations(Signalling),
    /// CPU time of refreshes that are answered from the cache.
    Refreshes(Signalling),
    /// Memory of standing calls or of registrations.
    Memory(GrowthLoad),
}

/// Figures that are measured beside the CPU time of calls.
fn parts(request: &PlanRequest, calls: u32) -> Vec<PartPlan> {
    let mut parts = Vec::new();
    // A plan has the costs of those that it has.
    let signalling = request.protection.signalling();
    if request.cached_percent < 100.0 {
        parts.push(PartPlan::Registrations(signalling));
    }
    if request.cached_percent > 0.0 {
        parts.push(PartPlan::Refreshes(signalling));
    }
    let (least, most) = STANDING;
    let standing = calls.saturating_mul(STANDING_FOR_EACH).clamp(least, most);
    let anchored = request.path == MediaPath::Anchored;
    let total = if anchored { standing / 2 } else { standing };
    parts.push(PartPlan::Memory(GrowthLoad::calls(anchored, total)));
    let users = standing * REGISTERED_FOR_EACH;
    parts.push(PartPlan::Memory(GrowthLoad::registrations(users)));
    parts
}

impl PartPlan {
    /// Identifier of its cost.
    fn id(&self) -> &'static str {
        match self {
            PartPlan::Registrations(Signalling::Udp) => "registration.udp",
            PartPlan::Registrations(Signalling::Tls) => "registration.tls",
            PartPlan::Refreshes(Signalling::Udp) => "refresh.udp",
            PartPlan::Refreshes(Signalling::Tls) => "refresh.tls",
            PartPlan::Memory(load) => load.id,
        }
    }

    fn run(&self, costs: &Costs, options: &RealOptions) -> Result<RealPart, LabError> {
        let dir = options.dir.join(self.id());
        let predicted = self.predicted(costs)?;
        let (values, count) = match self {
            PartPlan::Registrations(_) | PartPlan::Refreshes(_) => {
                registrations(self.experiment(), self.sets(), &dir, options.seed)?
            }
            PartPlan::Memory(load) => {
                let grown = load.measure_borders(&dir, RUNS, Some(options.seed))?;
                let count = grown.iter().map(|growth| growth.count).sum();
                (grown.iter().map(MemoryGrowth::each).collect(), count)
            }
        };
        let (what, unit) = match self {
            PartPlan::Registrations(_) => ("CPU time of a registration with digest", "us"),
            PartPlan::Refreshes(_) => ("CPU time of a re-registration from the cache", "us"),
            PartPlan::Memory(load) => (load.what, "bytes"),
        };
        Ok(part(
            (self.id(), what, unit),
            (self.experiment(), dir.as_path(), count),
            predicted,
            (values.as_slice(), self.samples()),
        ))
    }

    /// The cost of the plan; a CPU time is that at the load of the runs.
    fn predicted(&self, costs: &Costs) -> Result<Estimate, LabError> {
        let rate = match self {
            PartPlan::Registrations(_) => REGISTRATIONS_PER_S,
            PartPlan::Refreshes(_) => REFRESHES_PER_S,
            PartPlan::Memory(_) => return Ok(costs.get(self.id())?.estimate()),
        };
        let curve = costs.curve(self.id())?;
        let busy = busy_share(&[(f64::from(rate), &curve)], IntervalEnd::Value);
        Ok(curve.at_busy(busy))
    }

    /// Kind of the samples.
    fn samples(&self) -> &'static str {
        match self {
            PartPlan::Memory(_) => "borders",
            PartPlan::Registrations(_) | PartPlan::Refreshes(_) => "runs",
        }
    }

    fn experiment(&self) -> &'static str {
        match self {
            PartPlan::Registrations(Signalling::Udp) => "registration-rate",
            PartPlan::Registrations(Signalling::Tls) => "registration-rate-tls",
            PartPlan::Refreshes(Signalling::Udp) => "re-registration-rate",
            PartPlan::Refreshes(Signalling::Tls) => "re-registration-rate-tls",
            PartPlan::Memory(load) => load.experiment,
        }
    }

    /// Settings of an experiment with registrations.
    fn sets(&self) -> Vec<String> {
        let (rate, per_s) = match self {
            PartPlan::Refreshes(_) => ("refresh_rate", REFRESHES_PER_S),
            _ => ("rate", REGISTRATIONS_PER_S),
        };
        vec![
            "levels=".to_owned(),
            "study=".to_owned(),
            "thresholds.figure=".to_owned(),
            format!("repeat={RUNS}"),
            "settle_seconds=10".to_owned(),
            format!("registrations.{rate}={per_s}"),
            format!("registrations.users={per_s}"),
            format!("registrations.duration_seconds={REGISTRATION_SECONDS}"),
        ]
    }
}

/// CPU time of a registration in each run, microseconds, and the number of all of them.
fn registrations(
    name: &str,
    set: Vec<String>,
    dir: &Path,
    seed: u64,
) -> Result<(Vec<f64>, u64), LabError> {
    let of_run = RunOptions {
        set,
        seed: Some(seed),
        ..RunOptions::default()
    };
    let file = run::load(name, &of_run)?;
    let executed = run::execute(&file, &of_run, dir)?;
    whole(&executed)?;
    let trials = &executed.record.trials;
    let failed: u64 = trials.iter().map(|t| t.details.registrations.failed).sum();
    let good = trials.iter().filter(|trial| !trial.is_load_invalid());
    let values: Vec<f64> = good.filter_map(|t| t.figures.cpu_us_per_call).collect();
    if failed > 0 || values.is_empty() {
        let why = match failed {
            0 => {
                "the CPU time of no run was measured, or the generator could not keep up".to_owned()
            }
            failed => format!("{} failed", counted(failed, "registration")),
        };
        return Err(LabError::cannot_run(
            format!("--check-real: {why}"),
            format!(
                "see {}; measure on an idle machine",
                dir.join("report.html").display()
            ),
        ));
    }
    let count = trials.iter().map(|t| t.details.registrations.established);
    Ok((values, count.sum()))
}

/// Compares the mean of measured values with the interval of a cost.
fn part(
    (cost, what, unit): (&str, &str, &str),
    (experiment, dir, count): (&str, &Path, u64),
    predicted: Estimate,
    (values, of): (&[f64], &str),
) -> RealPart {
    let measured = values.iter().sum::<f64>() / values.len().max(1) as f64;
    RealPart {
        cost: cost.to_owned(),
        what: what.to_owned(),
        unit: unit.to_owned(),
        experiment: experiment.to_owned(),
        records: dir.display().to_string(),
        count,
        predicted,
        measured,
        interval: Interval::of_mean(values, of),
        agrees: (predicted.low..=predicted.high).contains(&measured),
    }
}

/// A run with its prediction; `None` if its CPU time was not measured, or the generator could not keep up.
fn real_run(trial: &TrialRecord, call: Estimate, packet: Estimate) -> Option<RealRun> {
    if trial.is_load_invalid() {
        return None;
    }
    let (calls, packets) = (trial.figures.calls.established, trial.details.packets);
    let cpu_seconds = trial.surroundings.as_ref()?.subject_cpu_seconds?;
    let by_calls = call.times(calls as f64 / 1e6);
    let by_packets = packet.times(packets as f64 / 1e6);
    Some(RealRun {
        calls,
        packets,
        cpu_seconds,
        predicted_seconds: by_calls.plus(by_packets),
    })
}

fn compare(
    experiment: &str,
    options: &RealOptions,
    runs: Vec<RealRun>,
    failed: u64,
) -> Result<RealCheck, LabError> {
    let dir = options.dir.display().to_string();
    if runs.is_empty() || failed > 0 {
        let why = match failed {
            0 => {
                "the CPU time of no run was measured, or the generator could not keep up".to_owned()
            }
            failed => format!("{} failed", counted(failed, "call")),
        };
        return Err(LabError::cannot_run(
            format!("--check-real: {why}"),
            format!(
                "see {}; try fewer calls with --check-calls, on an idle machine",
                Path::new(&dir).join("report.html").display()
            ),
        ));
    }
    let count = runs.len() as f64;
    let measured: Vec<f64> = runs.iter().map(|run| run.cpu_seconds).collect();
    let measured_seconds = measured.iter().sum::<f64>() / count;
    let all = runs.iter().fold(Estimate::default(), |all, run| {
        all.plus(run.predicted_seconds)
    });
    let predicted_seconds = all.times(1.0 / count);
    let ends = predicted_seconds.low..=predicted_seconds.high;
    Ok(RealCheck {
        experiment: experiment.to_owned(),
        records: dir,
        calls_at_a_time: options.calls,
        predicted_seconds,
        measured_seconds,
        interval: Interval::of_mean(&measured, "runs"),
        agrees: ends.contains(&measured_seconds),
        parts: Vec::new(),
        runs,
    })
}

/// The measured value and the prediction in words.
fn verdict_words(measured: f64, predicted: Estimate) -> String {
    if measured > predicted.high {
        return format!(
            "it is {} times the upper end of the plan's interval: the costs are not those of this machine and build; measure them \
             with hornwork lab datasheet, and plan with --from",
            plain(measured / predicted.high.max(f64::MIN_POSITIVE))
        );
    }
    if measured < predicted.low {
        return format!(
            "it is below the plan's interval, {} of its lower end: the plan has more than needed; measure the costs with hornwork lab \
             datasheet, and plan with --from",
            plain(measured / predicted.low.max(f64::MIN_POSITIVE))
        );
    }
    "it lies within the interval of the plan".to_owned()
}

/// An interval of a mean in words.
fn ends_words(interval: &Interval, shown: impl Fn(f64) -> String) -> String {
    match (interval.low, interval.high) {
        (Some(low), Some(high)) => format!(" ({} to {})", shown(low.max(0.0)), shown(high)),
        _ => " (one sample)".to_owned(),
    }
}

impl RealPart {
    fn text(&self) -> String {
        let predicted = self.predicted;
        // Half a byte means nothing.
        let shown = |value: f64| match self.unit.as_str() {
            "bytes" => plain(value.round()),
            _ => plain(value),
        };
        format!(
            "{} ({}, {} of them): {} {}{}, by the plan's costs {} ({} to {}); {}. Records: {}\n",
            self.what,
            self.experiment,
            self.count,
            shown(self.measured),
            self.unit,
            ends_words(&self.interval, shown),
            shown(predicted.value),
            shown(predicted.low),
            shown(predicted.high),
            verdict_words(self.measured, predicted),
            self.records
        )
    }
}

impl RealCheck {
    /// Verdict: failed if a measured CPU time or memory lies outside the interval of the prediction.
    pub fn verdict(&self) -> RunVerdict {
        match self.agrees && self.parts.iter().all(|part| part.agrees) {
            true => RunVerdict::Passed,
            false => RunVerdict::Failed,
        }
    }

    /// The result as text.
    pub fn text(&self) -> String {
        let mean = |of: fn(&RealRun) -> u64| {
            let sum: u64 = self.runs.iter().map(of).sum();
            plain(sum as f64 / self.runs.len().max(1) as f64)
        };
        let ms = |seconds: f64| plain(seconds * 1e3);
        let predicted = self.predicted_seconds;
        let ends = ends_words(&self.interval, ms);
        let words = verdict_words(self.measured_seconds, predicted);
        let mut text = format!(
            "\nReal run on this machine ({}, {} of {} at a time; {} calls and {} packets each): CPU time of the border {} ms{ends}, by the \
             plan's costs {} ms ({} to {}); {words}. Records: {}\n",
            self.experiment,
            counted(self.runs.len(), "run"),
            counted(self.calls_at_a_time, "call"),
            mean(|run| run.calls),
            mean(|run| run.packets),
            ms(self.measured_seconds),
            ms(predicted.value),
            ms(predicted.low),
            ms(predicted.high),
            self.records
        );
        for part in &self.parts {
            text.push_str(&part.text());
        }
        text.push_str("Memory is that of calls without TLS and SRTP. Bandwidth is not compared.\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{File, built_in};

    fn request(protection: Protection, path: MediaPath) -> PlanRequest {
        PlanRequest {
            protection,
            path,
            ..PlanRequest::default()
        }
    }

    #[test]
    fn every_kind_of_call_has_its_experiment() {
        for path in MediaPath::ALL {
            for protection in Protection::ALL {
                let request = request(*protection, *path);
                let Ok(name) = experiment(&request) else {
                    assert_eq!(*protection, Protection::Esp);
                    continue;
                };
                let sets = sets(&request, 20);
                File::parse_with(name, built_in(name).unwrap(), &sets)
                    .unwrap_or_else(|error| panic!("{}: {error}", protection.name()));
            }
        }
    }

    #[test]
    fn registrations_and_memory_have_their_loads() {
        let names = |request: &PlanRequest, calls| -> Vec<&str> {
            parts(request, calls).iter().map(PartPlan::id).collect()
        };
        let bypass = request(Protection::Tls, MediaPath::Bypass);
        let all = [
            "registration.tls",
            "memory.call.bypass",
            "memory.registration",
        ];
        assert_eq!(names(&bypass, 20), all);
        let cached = |cached_percent| PlanRequest {
            cached_percent,
            ..request(Protection::Srtp, MediaPath::Anchored)
        };
        let memory = ["memory.call.anchored", "memory.registration"];
        let with = |more: &[&'static str]| [more, &memory[..]].concat();
        assert_eq!(names(&cached(100.0), 20), with(&["refresh.udp"]));
        let both = with(&["registration.udp", "refresh.udp"]);
        assert_eq!(names(&cached(50.0), 20), both);
        for signalling in [Signalling::Udp, Signalling::Tls] {
            for part in [
                PartPlan::Registrations(signalling),
                PartPlan::Refreshes(signalling),
            ] {
                let name = part.experiment();
                let file = File::parse_with(name, built_in(name).unwrap(), &part.sets())
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(file.levels().unwrap().len(), 1, "{name}");
            }
        }
        // A missing cost ends the check before anything runs.
        let mut costs = Costs::built_in().unwrap();
        costs.cost.retain(|cost| cost.id != "memory.registration");
        let options = RealOptions {
            dir: PathBuf::from("/nonexistent/real"),
            calls: 20,
            seed: 1,
        };
        let error = check_real(&bypass, &costs, &options).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("memory.registration"), "{error}");
    }

    #[test]
    fn prediction_is_that_of_the_load_of_the_runs() {
        let head = "format = 2\nversion = \"1\"\nmachine = \"m\"\n";
        let point = |id: &str, value: f64, load: f64| {
            format!(
                "[[cost]]\nid = {id:?}\nvalue = {value:?}\nlow = {value:?}\nhigh = {value:?}\nunit = \"us\"\nload = {load:?}\n\
                 samples = 5\norigin = \"a run\"\n"
            )
        };
        let text = [
            head,
            &point("call.anchored.udp", 150.0, 500.0),
            &point("call.anchored.udp", 60.0, 8_000.0),
            &point("packet.none", 16.0, 5_000.0),
            &point("packet.none", 6.5, 90_000.0),
            &point("registration.udp", 100.0, 1_000.0),
            &point("registration.udp", 40.0, 14_000.0),
        ];
        let costs = Costs::parse("mine", &text.concat()).unwrap();
        let curve = |id: &str| costs.curve(id).unwrap();
        let (call, packet) = (curve("call.anchored.udp"), curve("packet.none"));
        // 20 calls at a time, 2,000 packets/s: a thread that is less busy than at the lowest points.
        let (each, relayed) = at_load(&call, Some(&packet), 20);
        assert!((each.value - 150.0).abs() < 1e-9 && (relayed.value - 16.0).abs() < 1e-9);
        // 500 calls at a time are between the points.
        let (each, relayed) = at_load(&call, Some(&packet), 500);
        assert!(each.value < 100.0 && (6.5..9.0).contains(&relayed.value));
        let (each, none) = at_load(&call, None, 500);
        assert!((each.value - 150.0).abs() < 1e-6 && none == Estimate::exact(0.0));
        let part = PartPlan::Registrations(Signalling::Udp);
        assert!((part.predicted(&costs).unwrap().value - 100.0).abs() < 1e-9);
        let memory = PartPlan::Memory(GrowthLoad::registrations(1_000));
        assert_eq!(memory.predicted(&costs).unwrap_err().exit_code(), 3);
    }

    #[test]
    fn every_part_is_part_of_the_verdict() {
        let options = RealOptions {
            dir: PathBuf::from("real"),
            calls: 20,
            seed: 1,
        };
        let run = RealRun {
            calls: 1_000,
            packets: 0,
            cpu_seconds: 0.07,
            predicted_seconds: Estimate::exact(0.07),
        };
        let mut check = compare("call-rate", &options, vec![run], 0).unwrap();
        let of = |values: &[f64]| {
            part(
                ("memory.registration", "memory of a registration", "bytes"),
                ("registrations-million", Path::new("real/memory"), 4_000),
                Estimate {
                    value: 1_000.0,
                    low: 750.0,
                    high: 1_250.0,
                },
                (values, "borders"),
            )
        };
        check.parts.push(of(&[1_100.0]));
        assert_eq!(check.verdict(), RunVerdict::Passed);
        let text = check.text();
        assert!(
            text.contains("1100 bytes (one sample), by the plan's costs 1000 (750 to 1250)"),
            "{text}"
        );
        check.parts.push(of(&[2_500.0, 2_500.0, 2_500.0]));
        assert_eq!(check.verdict(), RunVerdict::Failed);
        let text = check.text();
        assert!(text.contains("it is 2 times the upper end"), "{text}");
        assert!(!of(&[300.0]).agrees);
        assert!(of(&[300.0]).text().contains("0.4 of its lower end"));
    }

    #[test]
    fn measured_time_is_compared_with_the_interval_of_the_prediction() {
        let options = RealOptions {
            dir: PathBuf::from("real"),
            calls: 20,
            seed: 1,
        };
        let run = |cpu_seconds| RealRun {
            calls: 1_000,
            packets: 0,
            cpu_seconds,
            predicted_seconds: Estimate {
                value: 0.07,
                low: 0.06,
                high: 0.08,
            },
        };
        let of =
            |times: [f64; 3]| compare("call-rate", &options, times.map(run).to_vec(), 0).unwrap();
        let within = of([0.07, 0.075, 0.072]);
        assert_eq!(
            (within.agrees, within.verdict()),
            (true, RunVerdict::Passed)
        );
        assert!(
            within.text().contains("within the interval"),
            "{}",
            within.text()
        );
        let above = of([0.2, 0.16, 0.18]);
        assert_eq!(above.verdict(), RunVerdict::Failed);
        assert!(
            above.text().contains("2.25 times the upper end"),
            "{}",
            above.text()
        );
        let below = of([0.03, 0.03, 0.03]);
        assert!(
            below.text().contains("0.5 of its lower end"),
            "{}",
            below.text()
        );
        let failed = compare("call-rate", &options, vec![run(0.07)], 2).unwrap_err();
        assert!(failed.to_string().contains("2 calls failed"), "{failed}");
        assert_eq!(
            compare("call-rate", &options, Vec::new(), 0)
                .unwrap_err()
                .exit_code(),
            3
        );
    }
}
