//! Memory of calls and registrations: the growth of a border in a process of its own, whose resident memory is read.

use crate::error::LabError;
use crate::raw::{RunRecord, TrialRecord};
use crate::run::{self, RunOptions};
use crate::subject::{self, Placement, RunningSubject};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two samples of the memory.
const SAMPLE: Duration = Duration::from_millis(50);
/// Most calls of a measurement that get ports of the border.
const MOST_CALLS: u64 = 2_000;
/// Experiment with standing calls, whose called side is in the test lab.
const STANDING_CALLS: &str = "standing-call-capacity";

/// A load whose memory is measured.
pub(crate) struct GrowthLoad {
    /// Identifier of the cost.
    pub(crate) id: &'static str,
    /// Its description.
    pub(crate) what: &'static str,
    /// Experiment that runs.
    pub(crate) experiment: &'static str,
    /// Subject that is measured.
    subject: &'static str,
    /// Calls at a time, for the ports of the border.
    calls: u64,
    sets: Vec<String>,
    count: fn(&TrialRecord) -> u64,
}

/// The growth of a border.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MemoryGrowth {
    /// Resident memory before the load, bytes.
    pub(crate) before: f64,
    /// Growth at the peak, bytes.
    pub(crate) bytes: f64,
    /// Calls or registrations.
    pub(crate) count: u64,
}

impl MemoryGrowth {
    /// Bytes of one of them.
    pub(crate) fn each(&self) -> f64 {
        self.bytes / self.count.max(1) as f64
    }
}

impl GrowthLoad {
    /// So many standing calls.
    pub(crate) fn calls(anchored: bool, total: u32) -> GrowthLoad {
        let (id, what, subject) = match anchored {
            false => (
                "memory.call.bypass",
                "memory of a standing call with media bypass",
                "hornwork",
            ),
            true => (
                "memory.call.anchored",
                "memory of a standing call with anchored media",
                "hornwork-anchored",
            ),
        };
        GrowthLoad {
            id,
            what,
            experiment: STANDING_CALLS,
            subject,
            calls: u64::from(total).min(MOST_CALLS),
            sets: vec![
                "levels=".to_owned(),
                "study=".to_owned(),
                "thresholds.figure=".to_owned(),
                "thresholds.leaks=".to_owned(),
                format!("callers.total={total}"),
                "callers.rate=500".to_owned(),
                format!("callers.hold_seconds={}", total / 500 + 1),
                "settle_seconds=20".to_owned(),
            ],
            count: |trial| trial.figures.calls.established,
        }
    }

    /// So many registrations.
    pub(crate) fn registrations(subscribers: u32) -> GrowthLoad {
        GrowthLoad {
            id: "memory.registration",
            what: "memory of a registration",
            experiment: "registrations-million",
            subject: "hornwork",
            calls: 0,
            sets: vec![
                "levels=".to_owned(),
                "study=".to_owned(),
                "thresholds.figure=".to_owned(),
                format!("registrations.users={subscribers}"),
                "registrations.rate=4000".to_owned(),
                "registrations.registrar=border".to_owned(),
                "settle_seconds=20".to_owned(),
            ],
            count: |trial| trial.details.registrations.established,
        }
    }

    /// Runs the load against a border of its own; the records are in `dir`.
    ///
    /// # Errors
    /// If no border can be started, the load does not run, or the memory does not grow.
    pub(crate) fn measure(&self, dir: &Path, seed: Option<u64>) -> Result<MemoryGrowth, LabError> {
        let cannot = |error: std::io::Error| crate::files::cannot_write(dir, &error);
        std::fs::create_dir_all(dir).map_err(cannot)?;
        let [called] = subject::addresses([127, 0, 0, 1].into())?;
        let file = subject::show(self.subject)
            .and_then(|text| subject::SubjectFile::parse(self.subject, text))?;
        let border = RunningSubject::start(
            &file,
            Placement {
                ip: called.ip(),
                called: Some(called),
                calls: self.calls,
            },
        )?;
        let process = border.process();
        let before = resident_bytes(process)?;
        let mut sets = self.sets.clone();
        sets.push(format!("sut.address={}", border.address()));
        sets.push(format!("sut.process_id={process}"));
        if self.experiment == STANDING_CALLS {
            sets.push(format!("callees.address={called}"));
        }
        let options = RunOptions {
            set: sets,
            seed,
            force: true,
            no_probe: true,
            ..RunOptions::default()
        };
        let file = run::load(self.experiment, &options)?;
        let sampler = PeakSampler::start(process);
        let executed = run::execute(&file, &options, dir);
        let peak = sampler.stop();
        self.growth(&executed?.record, [before, peak], dir)
    }

    /// The growth between two readings of the memory, bytes: before the run of `record`, and at its peak.
    fn growth(
        &self,
        record: &RunRecord,
        [before, peak]: [f64; 2],
        dir: &Path,
    ) -> Result<MemoryGrowth, LabError> {
        // Without all of its load the border has another share of memory that no call and no registration takes.
        if record.cut_short {
            return Err(LabError::Interrupted(format!(
                "interrupted: {} was not measured",
                self.what
            )));
        }
        let trial = record
            .trials
            .first()
            .ok_or_else(|| LabError::cannot_run("no trial ran", "start it again"))?;
        // Calls have ended at the end of the trial: the peak counts.
        let growth = MemoryGrowth {
            before,
            bytes: peak - before,
            count: (self.count)(trial),
        };
        if growth.count == 0 || growth.bytes <= 0.0 {
            return Err(LabError::cannot_run(
                format!(
                    "{} were accepted, and the memory of the border grew by {} bytes",
                    growth.count, growth.bytes
                ),
                format!("see {}", dir.join("report.html").display()),
            ));
        }
        Ok(growth)
    }
}

/// Reads the resident memory of a process during a trial.
struct PeakSampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<f64>>,
}

impl PeakSampler {
    fn start(process: u32) -> PeakSampler {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let sample = move || {
            let mut most = 0.0;
            while !seen.load(Ordering::Relaxed) {
                most = resident_bytes(process).unwrap_or(0.0).max(most);
                std::thread::sleep(SAMPLE);
            }
            most
        };
        let thread = std::thread::Builder::new()
            .name("memory".to_owned())
            .spawn(sample);
        PeakSampler {
            stop,
            thread: thread.ok(),
        }
    }

    /// The largest value, bytes; 0 if none was read.
    fn stop(mut self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.and_then(|thread| thread.join().ok()).unwrap_or(0.0)
    }
}

/// Resident memory of a process.
fn resident_bytes(process: u32) -> Result<f64, LabError> {
    let bytes = net::resident_bytes_of(process);
    bytes.map(|bytes| bytes as f64).map_err(|error| {
        LabError::cannot_run(
            format!("memory of process {process}: {error}"),
            "mount /proc",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_of_an_interrupted_run_is_not_a_figure() {
        let load = GrowthLoad::calls(false, 100);
        let mut trial = TrialRecord::default();
        trial.figures.calls.established = 50;
        let mut record = RunRecord {
            trials: vec![trial],
            ..RunRecord::default()
        };
        let growth = |record: &RunRecord| load.growth(record, [1e6, 1.5e6], Path::new("x"));
        assert!((growth(&record).unwrap().each() - 1e4).abs() < 1e-9);
        record.cut_short = true;
        let error = growth(&record).unwrap_err();
        assert_eq!(error.exit_code(), 130);
        assert!(error.to_string().contains("standing call"), "{error}");
    }
}
