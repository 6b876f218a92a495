//! The check of a plan against a real run at a small scale: calls of its kind through a border on this machine, whose CPU time is
//! compared with the one that the plan's costs predict for the same calls and packets.

use super::costs::Costs;
use super::estimate::Estimate;
use super::request::{MediaPath, PlanRequest, Protection, Signalling};
use crate::decimal::{counted, plain};
use crate::error::{LabError, RunVerdict};
use crate::raw::TrialRecord;
use crate::run::{self, RunOptions};
use crate::statistics::Interval;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Calls at a time, by default.
pub const REAL_CALLS: u32 = 50;
/// Most calls at a time: one thread carries them.
const MOST_CALLS: u32 = 1_000;
/// Runs; their spread gives the interval.
const RUNS: u32 = 3;
/// Duration of a call with media, seconds.
const MEDIA_SECONDS: u32 = 5;
/// Time in which calls without media are offered, seconds; each lasts one.
const OFFERED_SECONDS: u32 = 4;

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
    let call = costs.get(&call)?.estimate();
    let packet = match request.path {
        MediaPath::Bypass => Estimate::exact(0.0),
        MediaPath::Anchored => {
            let id = format!("packet.{}", request.protection.media());
            costs.get(&id)?.estimate()
        }
    };
    let of_run = RunOptions {
        set: sets(request, options.calls),
        seed: Some(options.seed),
        ..RunOptions::default()
    };
    if options.dir.join("run.json").exists() {
        return Err(LabError::bad_input(format!(
            "--check-real {}: it has results of an earlier run; name another directory",
            options.dir.display()
        )));
    }
    run::handle_interrupts(&of_run)?;
    let file = run::load(name, &of_run)?;
    let executed = run::execute(&file, &of_run, &options.dir)?;
    if executed.record.cut_short {
        return Err(LabError::Interrupted(
            "interrupted: the plan was not compared with a real run".to_owned(),
        ));
    }
    let trials = &executed.record.trials;
    let runs: Vec<RealRun> = trials
        .iter()
        .filter_map(|trial| real_run(trial, call, packet))
        .collect();
    let failed = trials.iter().map(|trial| trial.figures.calls.failed).sum();
    compare(name, options, runs, failed)
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
        runs,
    })
}

impl RealCheck {
    /// Verdict: failed if the measured CPU time lies outside the interval of the prediction.
    pub fn verdict(&self) -> RunVerdict {
        match self.agrees {
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
        let ends = match (self.interval.low, self.interval.high) {
            (Some(low), Some(high)) => format!(" ({} to {})", ms(low.max(0.0)), ms(high)),
            _ => " (one sample)".to_owned(),
        };
        let words = match self.agrees {
            true => "it lies within the interval of the plan".to_owned(),
            false if self.measured_seconds > predicted.high => format!(
                "it is {} times the upper end of the plan's interval: the costs are not those of this machine and build; measure them \
                 with hornwork lab datasheet, and plan with --from",
                plain(self.measured_seconds / predicted.high.max(f64::MIN_POSITIVE))
            ),
            false => format!(
                "it is below the plan's interval, {} of its lower end: the plan has more cores than needed; measure the costs with \
                 hornwork lab datasheet, and plan with --from",
                plain(self.measured_seconds / predicted.low.max(f64::MIN_POSITIVE))
            ),
        };
        format!(
            "\nReal run on this machine ({}, {} of {} at a time; {} calls and {} packets each): CPU time of the border {} ms{ends}, by the \
             plan's costs {} ms ({} to {}); {words}. Without registrations; memory and bandwidth are not compared. Records: {}\n",
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
        )
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
