//! The directory of a run: `run.json`, `attempts.ndjson`, `streams.ndjson`, `measures.ndjson`.

use crate::error::{LabError, RunVerdict};
use crate::experiment::{FigureBound, Study};
use crate::figures::{Details, Figures, ThresholdCheck};
use crate::files::{cannot_write, replace};
use crate::measure::MeasureRecord;
use crate::peak::record::PeakRecord;
pub use crate::record::SocketShortage;
use crate::record::{Attempt, StreamRecord};
use crate::search::record::SearchRecord;
pub use crate::trial_records::{LinkRecord, SendLateness};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Version of the file format.
pub const FORMAT: u32 = 2;

/// The machine of a run.
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

impl MachineRecord {
    /// This machine.
    pub(crate) fn here() -> MachineRecord {
        let machine = net::machine();
        MachineRecord {
            cpu: machine.cpu,
            cores: machine.cores as u64,
            kernel: machine.kernel,
            memory: machine.memory,
        }
    }
}

/// Scheduling noise of the host during a trial: lateness of a sleeping thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseRecord {
    /// Mean lateness, microseconds.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Largest.
    pub max_us: f64,
    /// Share of the time lost in delays above 20 us.
    pub lost_share: f64,
}

impl From<net::NoiseReport> for NoiseRecord {
    fn from(report: net::NoiseReport) -> NoiseRecord {
        NoiseRecord {
            mean_us: report.mean_us,
            p99_us: report.p99_us,
            max_us: report.max_us,
            lost_share: report.lost_share,
        }
    }
}

/// Measurements of machine and SUT during a trial on real sockets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Surroundings {
    /// Scheduling noise of the host.
    pub noise: NoiseRecord,
    /// Noise for a thread with the scheduling of the measured program, where a program is measured: with real-time
    /// priority if that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_noise: Option<NoiseRecord>,
    /// The kernel's counter `RcvbufErrors` before the trial.
    pub receive_buffer_errors_before: u64,
    /// The counter after the trial; SIP retransmission hides datagrams that the kernel dropped.
    pub receive_buffer_errors_after: u64,
    /// Datagrams that the kernel dropped at the generator's own sockets.
    #[serde(default)]
    pub generator_drops: u64,
    /// Messages at the generator's SIP ports that are no SIP, and responses that break its grammar.
    #[serde(default)]
    pub generator_unparsable: u64,
    /// CPU time of the SUT, seconds; `null` if it cannot be read.
    pub subject_cpu_seconds: Option<f64>,
    /// Time in which its threads were ready to run and had no processor, seconds; `null` if it is unknown, as of a SUT
    /// on another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_waited_seconds: Option<f64>,
    /// Growth of the resident memory of the SUT's process during the trial, bytes; `null` if it shares this process or
    /// runs on another machine.
    #[serde(default)]
    pub subject_grew_bytes: Option<u64>,
    /// CPU time of the generator's threads, seconds.
    pub generator_cpu_seconds: f64,
    /// Part of it of the calling and registering side.
    #[serde(default)]
    pub callers_cpu_seconds: f64,
    /// Calls and streams for which the generator had no socket; `null` if it had all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generator_shortage: Option<SocketShortage>,
    /// Lateness of the generator's RTP packets; `null` if it sent none of its own.
    #[serde(default)]
    pub send_lateness: Option<SendLateness>,
    /// The generator's threads had real-time priority: the noise, of a thread without it, is not theirs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub generator_is_realtime: bool,
    /// Load of all processors by programs other than the generator and the SUT, percent; `null` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_programs_percent: Option<f64>,
    /// Resident memory of this process after the trial, bytes.
    pub resident_bytes: u64,
}

/// One trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// Number in the run.
    pub trial: u32,
    /// Value of the sweep.
    pub level: Option<f64>,
    /// Repetition, from 0.
    pub repetition: u32,
    /// Seed of this trial.
    pub seed: u64,
    /// The experiment file of this trial alone, with overrides, level and seed: running it repeats this trial.
    #[serde(default)]
    pub plan: String,
    /// Duration, seconds (of virtual time in a simulation).
    pub seconds: f64,
    /// Figures.
    pub figures: Figures,
    /// Further figures.
    pub details: Details,
    /// Thresholds.
    pub checks: Vec<ThresholdCheck>,
    /// Calls, transactions, ports and legs still present after the end; `null` if unknown.
    pub leaks: Option<u64>,
    /// Verdict.
    pub verdict: RunVerdict,
    /// Remarks: figures that could not be measured, with the reason.
    pub remarks: Vec<String>,
    /// A short trial of a search: it only chose where the trials of full length began, and its figures do not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub short: bool,
    /// `null` in a simulation.
    pub surroundings: Option<Surroundings>,
    /// Digest of the event log; `null` on sockets.
    pub digest: Option<String>,
    /// Links of `[network]`, on sockets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkRecord>,
}

/// Remark of a trial that the user ended.
pub(crate) const CUT_SHORT: &str = "not judged: cut short";

impl TrialRecord {
    /// Whether the user ended it.
    pub fn is_cut_short(&self) -> bool {
        self.remarks.iter().any(|remark| remark == CUT_SHORT)
    }

    /// Whether a link was not as configured, so that the figures say nothing of the SUT.
    pub fn has_faulty_link(&self) -> bool {
        self.links.iter().any(|link| !link.faults.is_empty())
    }

    /// Whether the SUT did not get the planned load: a link was not as configured, or the generator could not keep up.
    pub fn is_load_invalid(&self) -> bool {
        self.load_fault().is_some()
    }

    /// The reason, if the SUT did not get the planned load. The end of the SUT is a failure at any load.
    pub fn load_fault(&self) -> Option<String> {
        let of_link = self.links.iter().flat_map(|link| &link.faults).next();
        match of_link {
            _ if ThresholdCheck::has_subject_ended(&self.checks) => None,
            Some(fault) => Some(format!("a link was not as configured: {fault}")),
            None => crate::caveats::starved(self),
        }
    }
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
    /// The question that it answers.
    pub about: String,
    /// Name of the sweep's value.
    pub level_label: String,
    /// Seed of the run.
    pub seed: u64,
    /// `sockets`, `simulation`, or `memory` for measurements without either.
    pub driver: String,
    /// Description of the SUT.
    pub subject: String,
    /// The subject file that started it, as TOML; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject_file: String,
    /// The study with whose figures the run is compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub study: Option<Study>,
    /// The search that the trials belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchRecord>,
    /// The peak, measured before the levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<PeakRecord>,
    /// Bounds of the experiment's main figures, judged over the levels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<FigureBound>,
    /// Overrides of the experiment file, as given with `--set`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<String>,
    /// Description of the run: workload, levels, repetitions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Version of the program.
    pub version: String,
    /// Start, seconds since 1970; 0 in a simulation.
    pub started: u64,
    /// The machine; `null` in a simulation.
    pub machine: Option<MachineRecord>,
    /// The machine of the SUT, if an agent runs it on another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_machine: Option<MachineRecord>,
    /// The experiment file with its overrides, as TOML.
    pub plan: String,
    /// The trials.
    pub trials: Vec<TrialRecord>,
    /// Verdict over all trials.
    pub verdict: RunVerdict,
    /// The user interrupted the run before its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_short: bool,
}

impl Serialize for RunVerdict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for RunVerdict {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<RunVerdict, D::Error> {
        let name = String::deserialize(deserializer)?;
        RunVerdict::from_name(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown verdict {name:?}")))
    }
}

/// Files of the records of attempts, streams and samples.
const LINES: [&str; 3] = ["attempts.ndjson", "streams.ndjson", "measures.ndjson"];
/// Files of a comparison, which is that of the results beside it.
pub(crate) const COMPARED: [&str; 3] = ["compare.json", "compare.html", "compare-records.html"];

/// Writes raw results during a run, into files that take the place of earlier ones at its end: without an end the
/// earlier results stay.
#[derive(Debug)]
pub struct RawWriter {
    dir: PathBuf,
    attempts: BufWriter<File>,
    streams: BufWriter<File>,
    measures: BufWriter<File>,
    is_finished: bool,
}

/// The file in which the records of a run that goes on are.
fn unfinished(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.part"))
}

impl Drop for RawWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            for name in LINES {
                let _ = fs::remove_file(unfinished(&self.dir, name));
            }
        }
    }
}

impl RawWriter {
    /// Creates the directory and its files.
    ///
    /// # Errors
    /// If it is not writable, or contains the results of an earlier run.
    pub fn create(dir: &Path) -> Result<RawWriter, LabError> {
        RawWriter::open(dir, false)
    }

    /// As [`RawWriter::create`]; the results of an earlier run are replaced at the end of this one, if `replaces`.
    ///
    /// # Errors
    /// As for [`RawWriter::create`].
    pub(crate) fn open(dir: &Path, replaces: bool) -> Result<RawWriter, LabError> {
        fs::create_dir_all(dir).map_err(|error| cannot_write(dir, &error))?;
        if !replaces && dir.join("run.json").exists() {
            let what = format!("{}: holds the results of an earlier run", dir.display());
            return Err(LabError::bad_input(what));
        }
        let [attempts, streams, measures] = LINES.map(|name| {
            let path = unfinished(dir, name);
            File::create(&path)
                .map(BufWriter::new)
                .map_err(|error| cannot_write(&path, &error))
        });
        Ok(RawWriter {
            dir: dir.to_owned(),
            attempts: attempts?,
            streams: streams?,
            measures: measures?,
            is_finished: false,
        })
    }

    /// Writes the records of one trial.
    ///
    /// # Errors
    /// If writing fails.
    pub fn trial(
        &mut self,
        attempts: &[Attempt],
        streams: &[StreamRecord],
    ) -> Result<(), LabError> {
        lines(&mut self.attempts, attempts)
            .and_then(|()| lines(&mut self.streams, streams))
            .map_err(|error| cannot_write(&self.dir, &error))
    }

    /// Writes the samples of figures that a trial measured itself.
    ///
    /// # Errors
    /// If writing fails.
    pub fn measures(&mut self, measures: &[MeasureRecord]) -> Result<(), LabError> {
        lines(&mut self.measures, measures).map_err(|error| cannot_write(&self.dir, &error))
    }

    /// Writes `run.json`; the records of an earlier run, and its comparison, are replaced.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(mut self, run: &RunRecord) -> Result<(), LabError> {
        let result = self.attempts.flush().and_then(|()| self.streams.flush());
        let result = result.and_then(|()| self.measures.flush());
        result.map_err(|error| cannot_write(&self.dir, &error))?;
        write_run(&self.dir, run)?;
        for name in LINES {
            let path = self.dir.join(name);
            fs::rename(unfinished(&self.dir, name), &path)
                .map_err(|error| cannot_write(&path, &error))?;
        }
        self.is_finished = true;
        for name in COMPARED {
            let _ = fs::remove_file(self.dir.join(name));
        }
        Ok(())
    }
}

/// Writes `run.json` alone, replacing an existing one.
///
/// # Errors
/// If writing fails.
pub(crate) fn write_run(dir: &Path, run: &RunRecord) -> Result<(), LabError> {
    let path = dir.join("run.json");
    let json = serde_json::to_vec_pretty(run).map_err(std::io::Error::from);
    let json = json.map_err(|error| cannot_write(&path, &error))?;
    replace(&path, &json)
}

fn lines<T: Serialize>(out: &mut impl Write, records: &[T]) -> std::io::Result<()> {
    for record in records {
        serde_json::to_writer(&mut *out, record)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Raw results of a run, read back.
#[derive(Clone, Debug, PartialEq)]
pub struct RawResults {
    /// `run.json`.
    pub run: RunRecord,
    /// Attempts of all trials.
    pub attempts: Vec<Attempt>,
    /// Streams of all trials.
    pub streams: Vec<StreamRecord>,
    /// Samples of all trials.
    pub measures: Vec<MeasureRecord>,
}

impl RawResults {
    /// Reads a directory.
    ///
    /// # Errors
    /// If a file is missing or has other content.
    pub fn read(dir: &Path) -> Result<RawResults, LabError> {
        Ok(RawResults {
            run: read_run(dir)?,
            attempts: read_lines(&dir.join("attempts.ndjson"))?,
            streams: read_lines(&dir.join("streams.ndjson"))?,
            measures: read_measures(dir)?,
        })
    }
}

/// Whether `run.json` of `dir` is the record of a study or a data sheet.
pub fn holds_suite(dir: &Path) -> bool {
    #[derive(Deserialize)]
    struct Head {
        suite: Option<String>,
    }
    let text = fs::read_to_string(dir.join("run.json")).ok();
    let head = text.and_then(|text| serde_json::from_str::<Head>(&text).ok());
    head.is_some_and(|head| head.suite.is_some())
}

/// Reads `run.json` alone.
///
/// # Errors
/// If it is missing or has other content.
pub(crate) fn read_run(dir: &Path) -> Result<RunRecord, LabError> {
    let path = dir.join("run.json");
    let bad =
        |error: &dyn std::fmt::Display| LabError::bad_input(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(&path).map_err(|error| bad(&error))?;
    if holds_suite(dir) {
        return Err(bad(
            &"holds a study or a data sheet; name the directory of one of its parts",
        ));
    }
    let run: RunRecord = serde_json::from_str(&text).map_err(|error| bad(&error))?;
    match run.format {
        FORMAT => Ok(run),
        other => Err(bad(&format!("unknown format {other}"))),
    }
}

/// Runs of earlier versions have no such file.
fn read_measures(dir: &Path) -> Result<Vec<MeasureRecord>, LabError> {
    let path = dir.join("measures.ndjson");
    match path.exists() {
        true => read_lines(&path),
        false => Ok(Vec::new()),
    }
}

fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, LabError> {
    let bad =
        |line: usize, why: String| LabError::bad_input(format!("{}:{line}: {why}", path.display()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AttemptKind;

    #[test]
    fn run_that_does_not_end_leaves_the_earlier_results() {
        let dir = std::env::temp_dir().join(format!("lab-raw-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let names = || {
            let entries = fs::read_dir(&dir).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let attempt = Attempt::new("callers", AttemptKind::Call, 0, engine::Time::ZERO);
        let mut first = RawWriter::create(&dir).unwrap();
        first.trial(std::slice::from_ref(&attempt), &[]).unwrap();
        first.finish(&RunRecord::default()).unwrap();
        fs::write(dir.join("compare.json"), "{}").unwrap();
        let earlier = names();
        let record = fs::read(dir.join("attempts.ndjson")).unwrap();
        assert_eq!(RawWriter::create(&dir).unwrap_err().exit_code(), 2);
        let mut second = RawWriter::open(&dir, true).unwrap();
        second.trial(&[], &[]).unwrap();
        drop(second);
        assert_eq!(names(), earlier);
        assert_eq!(fs::read(dir.join("attempts.ndjson")).unwrap(), record);
        // One that ends replaces them, and the comparison goes with them.
        let third = RawWriter::open(&dir, true).unwrap();
        third.finish(&RunRecord::default()).unwrap();
        let left = [
            "attempts.ndjson",
            "measures.ndjson",
            "run.json",
            "streams.ndjson",
        ];
        assert_eq!(names(), left);
        assert!(fs::read(dir.join("attempts.ndjson")).unwrap().is_empty());
        fs::remove_dir_all(&dir).unwrap();
    }
}
