//! The directory of a run: `run.json`, `attempts.ndjson`, `streams.ndjson`.

use crate::error::{LabError, Verdict};
use crate::experiment::{FigureBound, Study};
use crate::figures::{Check, Details, Figures};
use crate::peak::PeakRecord;
use crate::record::{Attempt, StreamRecord};
use crate::search::SearchRecord;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Version of the written form.
pub const FORMAT: u32 = 2;

/// The machine on which a run took place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// Processor.
    pub cpu: String,
    /// Cores.
    pub cores: u64,
    /// Kernel release.
    pub kernel: String,
    /// Memory, bytes.
    pub memory: u64,
}

/// The host's own scheduling noise beside a trial: lateness of a thread that only sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseRecord {
    /// Mean lateness, microseconds.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Largest.
    pub max_us: f64,
    /// Share of the time lost in stretches above 20 us.
    pub lost_share: f64,
}

impl From<net::NoiseReport> for NoiseRecord {
    fn from(seen: net::NoiseReport) -> NoiseRecord {
        NoiseRecord {
            mean_us: seen.mean_us,
            p99_us: seen.p99_us,
            max_us: seen.max_us,
            lost_share: seen.lost_share,
        }
    }
}

/// What was measured of machine and subject beside a trial on real sockets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Surroundings {
    /// Host noise.
    pub noise: NoiseRecord,
    /// The kernel's counter `RcvbufErrors` before the trial.
    pub receive_buffer_errors_before: u64,
    /// The same afterwards: datagrams that the kernel dropped hide behind SIP retransmission.
    pub receive_buffer_errors_after: u64,
    /// CPU time of the subject, seconds; `null` where it cannot be read.
    pub subject_cpu_seconds: Option<f64>,
    /// By how much the resident memory of the subject's process grew meanwhile, bytes; `null` where it shares this process or is not
    /// on this machine.
    #[serde(default)]
    pub subject_grew_bytes: Option<u64>,
    /// CPU time of the generator's threads, seconds.
    pub generator_cpu_seconds: f64,
    /// What of it was spent on the calling and registering side.
    #[serde(default)]
    pub callers_cpu_seconds: f64,
    /// Resident memory of this process afterwards, bytes.
    pub resident_bytes: u64,
}

/// One trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// Number in the run.
    pub trial: u32,
    /// Value of the sweep.
    pub level: Option<f64>,
    /// Repetition, from 0.
    pub repetition: u32,
    /// Seed of this trial.
    pub seed: u64,
    /// The experiment file of this trial alone, overrides, level and seed in it: it runs this trial again.
    #[serde(default)]
    pub plan: String,
    /// How long it took, seconds (virtual ones in a simulation).
    pub seconds: f64,
    /// Figures.
    pub figures: Figures,
    /// Further figures.
    pub details: Details,
    /// Thresholds.
    pub checks: Vec<Check>,
    /// Calls, transactions, ports and legs still held when all was over; `null` where unknown.
    pub leaks: Option<u64>,
    /// Verdict.
    pub verdict: Verdict,
    /// Remarks: what could not be measured, and why.
    pub remarks: Vec<String>,
    /// `null` in a simulation.
    pub surroundings: Option<Surroundings>,
    /// Digest of the event log; `null` on sockets.
    pub digest: Option<String>,
}

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the experiment.
    pub experiment: String,
    /// Its title.
    pub title: String,
    /// What it answers.
    pub about: String,
    /// What the sweep's value is.
    pub level_label: String,
    /// Seed of the run.
    pub seed: u64,
    /// `sockets` or `simulation`.
    pub driver: String,
    /// What was measured, in words.
    pub subject: String,
    /// What a study measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub study: Option<Study>,
    /// The search that the trials belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchRecord>,
    /// The peak that was measured before the levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<PeakRecord>,
    /// Bounds of what the experiment is about, judged over the levels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<FigureBound>,
    /// Overrides of the experiment's file, as they were given with `--set`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<String>,
    /// What was run, in words: workload, levels, repetitions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Version of the program.
    pub version: String,
    /// Start, seconds since 1970; 0 in a simulation.
    pub started: u64,
    /// The machine; `null` in a simulation.
    pub machine: Option<MachineRecord>,
    /// The experiment file with its overrides, as TOML.
    pub plan: String,
    /// The trials.
    pub trials: Vec<TrialRecord>,
    /// Verdict over all trials.
    pub verdict: Verdict,
    /// The user ended the run before all trials were over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_short: bool,
}

impl Serialize for Verdict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Verdict {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Verdict, D::Error> {
        let name = String::deserialize(deserializer)?;
        Verdict::of_name(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown verdict {name:?}")))
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> LabError {
    LabError::cannot(
        format!("{}: {error}", path.display()),
        "give a directory that can be written to with --out",
    )
}

/// Writes raw results as they come.
#[derive(Debug)]
pub struct RawWriter {
    dir: PathBuf,
    attempts: BufWriter<File>,
    streams: BufWriter<File>,
}

impl RawWriter {
    /// Makes the directory and its files.
    ///
    /// # Errors
    /// Where it cannot be written to, or holds the results of an earlier run.
    pub fn create(dir: &Path) -> Result<RawWriter, LabError> {
        fs::create_dir_all(dir).map_err(|error| cannot_write(dir, &error))?;
        if dir.join("run.json").exists() {
            let what = format!("{}: holds the results of an earlier run", dir.display());
            return Err(LabError::bad(what));
        }
        let open = |name: &str| {
            let path = dir.join(name);
            File::create(&path)
                .map(BufWriter::new)
                .map_err(|error| cannot_write(&path, &error))
        };
        Ok(RawWriter {
            dir: dir.to_owned(),
            attempts: open("attempts.ndjson")?,
            streams: open("streams.ndjson")?,
        })
    }

    /// Writes the records of one trial.
    ///
    /// # Errors
    /// Where the disk does not take them.
    pub fn trial(
        &mut self,
        attempts: &[Attempt],
        streams: &[StreamRecord],
    ) -> Result<(), LabError> {
        lines(&mut self.attempts, attempts)
            .and_then(|()| lines(&mut self.streams, streams))
            .map_err(|error| cannot_write(&self.dir, &error))
    }

    /// Writes `run.json`.
    ///
    /// # Errors
    /// Where the disk does not take it.
    pub fn finish(mut self, run: &RunRecord) -> Result<(), LabError> {
        let result = self.attempts.flush().and_then(|()| self.streams.flush());
        result.map_err(|error| cannot_write(&self.dir, &error))?;
        write_run(&self.dir, run)
    }
}

/// Writes `run.json` alone, anew where it is there.
///
/// # Errors
/// Where the disk does not take it.
pub(crate) fn write_run(dir: &Path, run: &RunRecord) -> Result<(), LabError> {
    let path = dir.join("run.json");
    serde_json::to_vec_pretty(run)
        .map_err(std::io::Error::from)
        .and_then(|json| fs::write(&path, json))
        .map_err(|error| cannot_write(&path, &error))
}

fn lines<T: Serialize>(out: &mut impl Write, records: &[T]) -> std::io::Result<()> {
    for record in records {
        serde_json::to_writer(&mut *out, record)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Raw results as they were written.
#[derive(Clone, Debug, PartialEq)]
pub struct RawResults {
    /// `run.json`.
    pub run: RunRecord,
    /// Attempts of all trials.
    pub attempts: Vec<Attempt>,
    /// Streams of all trials.
    pub streams: Vec<StreamRecord>,
}

impl RawResults {
    /// Reads a directory.
    ///
    /// # Errors
    /// Where a file is missing, or holds something else.
    pub fn read(dir: &Path) -> Result<RawResults, LabError> {
        let path = dir.join("run.json");
        let text = fs::read_to_string(&path)
            .map_err(|error| LabError::bad(format!("{}: {error}", path.display())))?;
        let run: RunRecord = serde_json::from_str(&text)
            .map_err(|error| LabError::bad(format!("{}: {error}", path.display())))?;
        if run.format != FORMAT {
            let text = format!("{}: format {} is not known", path.display(), run.format);
            return Err(LabError::bad(text));
        }
        Ok(RawResults {
            run,
            attempts: read_lines(&dir.join("attempts.ndjson"))?,
            streams: read_lines(&dir.join("streams.ndjson"))?,
        })
    }
}

fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, LabError> {
    let bad = |line: usize, why: String| LabError::bad(format!("{}:{line}: {why}", path.display()));
    let file = File::open(path).map_err(|error| bad(0, error.to_string()))?;
    let mut records = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|error| bad(number + 1, error.to_string()))?;
        let record =
            serde_json::from_str(&line).map_err(|error| bad(number + 1, error.to_string()))?;
        records.push(record);
    }
    Ok(records)
}
