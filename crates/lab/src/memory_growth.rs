//! Memory of calls and registrations: the growth of a border in a process of its own, whose resident memory is read.

use crate::error::LabError;
use crate::raw::{RunRecord, TrialRecord};
use crate::run::{self, Executed, RunOptions};
use crate::subject::{self, Placement, RunningSubject};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two samples of the memory.
const SAMPLE: Duration = Duration::from_millis(50);
/// Time without a fall of the memory after which it counts as settled, in samples.
const SETTLED_SAMPLES: u32 = 30;
/// Longest wait for it, in samples.
const MOST_SETTLING_SAMPLES: u32 = 200;
/// A fall that does not count, bytes: the pages of a few tables.
const SMALL_FALL: f64 = 64.0 * 1024.0;
/// Largest share of the growth that the memory may fall below its first reading during the load. Beyond it the process
/// gave back memory of its start, and the growth is not that of the load.
const MOST_FALL_SHARE: f64 = 0.1;
/// Calls and registrations of the load before the measured one, and their rates per second. The allocator gives back
/// memory of the start (a quarter of it) not by time, but after so many operations: those of about 200 calls or 1,500
/// registrations. These calls are short, so that the measured ones find little memory of theirs.
const WARM_UP_CALLS: (u32, u32) = (450, 300);
const WARM_UP_REGISTRATIONS: (u32, u32) = (3_000, 3_000);
/// Multiples of the load before the measured one: where the memory fell during the measured one all the same, another
/// border gets the next.
const WARM_UPS: [u32; 3] = [1, 2, 4];
/// Most calls of a measurement that get ports of the border.
const MOST_CALLS: u64 = 2_000;
/// Duration of the set-up of all measured calls, and of all registrations, seconds.
const SET_UP_S: f64 = 2.0;
const REGISTERING_S: f64 = 2.5;
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
    /// Settings of the load before the measured one, after those of `sets`, for a multiple of its usual number.
    warm_up: fn(u32) -> Vec<String>,
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
                format!("callers.rate={:.1}", f64::from(total) / SET_UP_S),
                // Longer than the set-up of all calls.
                format!("callers.hold_seconds={:.1}", SET_UP_S + 1.0),
                "settle_seconds=20".to_owned(),
            ],
            warm_up: |times| {
                vec![
                    format!("callers.total={}", WARM_UP_CALLS.0 * times),
                    format!("callers.rate={}", WARM_UP_CALLS.1),
                    "callers.hold_seconds=0.1".to_owned(),
                ]
            },
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
                format!(
                    "registrations.rate={:.1}",
                    f64::from(subscribers) / REGISTERING_S
                ),
                "registrations.registrar=border".to_owned(),
                "settle_seconds=20".to_owned(),
            ],
            warm_up: |times| {
                vec![
                    // Bindings of other users, which stay.
                    "registrations.user=warm-{number:7}".to_owned(),
                    format!("registrations.users={}", WARM_UP_REGISTRATIONS.0 * times),
                    format!("registrations.rate={}", WARM_UP_REGISTRATIONS.1),
                ]
            },
            count: |trial| trial.details.registrations.established,
        }
    }

    /// Whether the load before the measured one leaves no calls and no bindings: the memory before is then that of an
    /// idle border.
    pub(crate) fn leaves_nothing(&self) -> bool {
        self.experiment == STANDING_CALLS
    }

    /// Runs the load against so many borders, each in a process of its own. The records of the first are in `dir`,
    /// those of the others beside it (`DIR-2`, `DIR-3`).
    ///
    /// # Errors
    /// As for [`GrowthLoad::measure`].
    pub(crate) fn measure_borders(
        &self,
        dir: &Path,
        borders: u32,
        seed: Option<u64>,
    ) -> Result<Vec<MemoryGrowth>, LabError> {
        let each = directories(dir, borders).into_iter();
        each.map(|dir| self.measure(&dir, seed)).collect()
    }

    /// Runs the load against a border of its own; the records are in `dir`.
    ///
    /// # Errors
    /// If no border can be started, the load does not run, or the memory does not grow.
    pub(crate) fn measure(&self, dir: &Path, seed: Option<u64>) -> Result<MemoryGrowth, LabError> {
        let [first @ .., last] = WARM_UPS;
        for times in first {
            let (record, readings) = self.load_border(dir, seed, times)?;
            if !fell(readings) {
                return self.growth(&record, readings, dir);
            }
        }
        let (record, readings) = self.load_border(dir, seed, last)?;
        self.growth(&record, readings, dir)
    }

    /// Starts a border, and runs the load before the measured one and the measured one. Gives its record, and the
    /// memory before, the lowest one and the peak.
    fn load_border(
        &self,
        dir: &Path,
        seed: Option<u64>,
        warm_up: u32,
    ) -> Result<(RunRecord, [f64; 3]), LabError> {
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
        let mut addresses = vec![
            format!("sut.address={}", border.address()),
            format!("sut.process_id={process}"),
        ];
        if self.experiment == STANDING_CALLS {
            addresses.push(format!("callees.address={called}"));
        }
        let more = (self.warm_up)(warm_up);
        self.run(&addresses, &more, &dir.join("warm-up"), seed)?;
        let before = settled_bytes(process)?;
        let sampler = MemorySampler::start(process);
        let executed = self.run(&addresses, &[], dir, seed);
        let [lowest, peak] = sampler.stop();
        Ok((executed?.record, [before, lowest, peak]))
    }

    /// Runs the load with further settings.
    fn run(
        &self,
        addresses: &[String],
        more: &[String],
        dir: &Path,
        seed: Option<u64>,
    ) -> Result<Executed, LabError> {
        std::fs::create_dir_all(dir).map_err(|error| crate::files::cannot_write(dir, &error))?;
        let options = RunOptions {
            set: [&self.sets, addresses, more].concat(),
            seed,
            force: true,
            no_probe: true,
            ..RunOptions::default()
        };
        let file = run::load(self.experiment, &options)?;
        let executed = run::execute(&file, &options, dir)?;
        match executed.record.cut_short {
            true => Err(self.interrupted()),
            false => Ok(executed),
        }
    }

    fn interrupted(&self) -> LabError {
        LabError::Interrupted(format!("interrupted: {} was not measured", self.what))
    }

    /// The growth between readings of the memory, bytes: before the run of `record`, the lowest one during it, and its
    /// peak.
    fn growth(
        &self,
        record: &RunRecord,
        [before, lowest, peak]: [f64; 3],
        dir: &Path,
    ) -> Result<MemoryGrowth, LabError> {
        // Without all of its load the border has another share of memory that no call and no registration takes.
        if record.cut_short {
            return Err(self.interrupted());
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
        if fell([before, lowest, peak]) {
            let fall = before - lowest;
            return Err(LabError::cannot_run(
                format!(
                    "the memory of the border fell by {fall} bytes during the load: its growth of {} bytes is not that of {}",
                    growth.bytes, growth.count
                ),
                "measure again, with more calls or registrations",
            ));
        }
        Ok(growth)
    }
}

/// Directories for the records of so many borders.
fn directories(dir: &Path, borders: u32) -> Vec<PathBuf> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let more = (2..=borders).map(|number| dir.with_file_name(format!("{name}-{number}")));
    std::iter::once(dir.to_owned()).chain(more).collect()
}

/// Detects the end of a fall in a series of readings.
#[derive(Default)]
struct Settling {
    lowest: Option<f64>,
    /// Readings since the last fall.
    still: u32,
    readings: u32,
}

impl Settling {
    /// Takes a reading; `true` if the memory has settled, or the longest wait is over.
    fn take(&mut self, bytes: f64) -> bool {
        let fell = self.lowest.is_none_or(|lowest| bytes < lowest - SMALL_FALL);
        self.still = if fell { 0 } else { self.still + 1 };
        self.lowest = match (fell, self.lowest) {
            (false, Some(lowest)) => Some(lowest),
            _ => Some(bytes),
        };
        self.readings += 1;
        self.still >= SETTLED_SAMPLES || self.readings >= MOST_SETTLING_SAMPLES
    }
}

/// Whether the memory fell during the load by so much that its growth is not that of the load.
fn fell([before, lowest, peak]: [f64; 3]) -> bool {
    let fall = before - lowest;
    fall > SMALL_FALL && fall > (peak - before) * MOST_FALL_SHARE
}

/// Waits until the memory of a process has settled, and gives it.
///
/// # Errors
/// If it cannot be read.
fn settled_bytes(process: u32) -> Result<f64, LabError> {
    let mut settling = Settling::default();
    loop {
        let bytes = resident_bytes(process)?;
        if settling.take(bytes) || net::stops() > 0 {
            return Ok(bytes);
        }
        std::thread::sleep(SAMPLE);
    }
}

/// Reads the resident memory of a process during a trial.
struct MemorySampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<[f64; 2]>>,
}

impl MemorySampler {
    fn start(process: u32) -> MemorySampler {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let sample = move || {
            let (mut least, mut most) = (f64::INFINITY, 0.0);
            while !seen.load(Ordering::Relaxed) {
                // A process that has ended has no memory.
                if let Some(bytes) = resident_bytes(process).ok().filter(|bytes| *bytes > 0.0) {
                    least = bytes.min(least);
                    most = bytes.max(most);
                }
                std::thread::sleep(SAMPLE);
            }
            [least, most]
        };
        let thread = std::thread::Builder::new()
            .name("memory".to_owned())
            .spawn(sample);
        MemorySampler {
            stop,
            thread: thread.ok(),
        }
    }

    /// The smallest and the largest value, bytes; infinite and 0 if none was read.
    fn stop(mut self) -> [f64; 2] {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        let values = thread.and_then(|thread| thread.join().ok());
        values.unwrap_or([f64::INFINITY, 0.0])
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
        let growth = |record: &RunRecord| load.growth(record, [1e6, 1e6, 1.5e6], Path::new("x"));
        assert!((growth(&record).unwrap().each() - 1e4).abs() < 1e-9);
        record.cut_short = true;
        let error = growth(&record).unwrap_err();
        assert_eq!(error.exit_code(), 130);
        assert!(error.to_string().contains("standing call"), "{error}");
    }

    /// Resident memory in kB, each second, of a border that carries 200 calls/s from the second reading on.
    const SECONDS: [f64; 21] = [
        49_060.0, 49_244.0, 37_248.0, 37_552.0, 37_984.0, 38_288.0, 38_584.0, 38_940.0, 39_316.0,
        39_636.0, 39_992.0, 40_320.0, 40_568.0, 41_044.0, 41_324.0, 41_680.0, 42_100.0, 42_480.0,
        42_856.0, 43_108.0, 43_108.0,
    ];

    #[test]
    fn memory_of_the_start_is_not_that_of_calls() {
        let load = GrowthLoad::calls(false, 4_000);
        let of = |count: u64, readings: [f64; 3]| {
            let mut trial = TrialRecord::default();
            trial.figures.calls.established = count;
            let record = RunRecord {
                trials: vec![trial],
                ..RunRecord::default()
            };
            load.growth(&record, readings, Path::new("x"))
        };
        let kb = SECONDS.map(|kb| kb * 1024.0);
        let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
        let least = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
        // After the fall: 18 s of calls.
        let late = kb[2..].to_vec();
        let each = of(3_400, [kb[2], least(&late), most(&late)])
            .unwrap()
            .each();
        assert!((1_700.0..1_900.0).contains(&each), "{each}");
        // Before it: the memory of the start is larger than the growth.
        let none = of(3_400, [kb[0], least(&kb), most(&kb)]).unwrap_err();
        assert_eq!(none.exit_code(), 3);
        assert!(none.to_string().contains("fell by"), "{none}");
        // A fall of a few pages is none.
        let few = [kb[2], kb[2] - 8_192.0, most(&late)];
        assert!(of(3_400, few).is_ok());
    }

    #[test]
    fn each_border_has_records_of_its_own() {
        let of = directories(Path::new("out/memory.call.bypass"), 3);
        let names = ["", "-2", "-3"].map(|end| format!("out/memory.call.bypass{end}"));
        assert_eq!(of, names.map(PathBuf::from));
        assert_eq!(directories(Path::new("out"), 1), [PathBuf::from("out")]);
    }

    #[test]
    fn memory_has_settled_when_it_falls_no_more() {
        let mut settling = Settling::default();
        let mut readings = 0;
        // It falls after one second, and grows by pages afterwards.
        let bytes = |at: u32| match at {
            0..20 => 49e6,
            _ => 37e6 + f64::from(at) * 100.0,
        };
        while !settling.take(bytes(readings)) {
            readings += 1;
        }
        assert_eq!(readings, 20 + SETTLED_SAMPLES);
        // A process that never settles is read after the longest wait.
        let mut settling = Settling::default();
        let mut readings = 0;
        while !settling.take(1e9 - f64::from(readings) * 1e6) {
            readings += 1;
        }
        assert_eq!(readings + 1, MOST_SETTLING_SAMPLES);
    }
}
