//! Memory of calls and registrations: a border in a process of its own, whose resident memory is read.

use crate::error::{LabError, RunVerdict};
use crate::raw::TrialRecord;
use crate::run::{self, RunOptions};
use crate::statistics::Interval;
use crate::study::{OwnPart, PartContext, StudyRow};
use crate::subject::{self, Placement, RunningSubject};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two samples of the memory.
const SAMPLE: Duration = Duration::from_millis(50);

/// Most calls of a measurement, for the ports of the border.
const MOST_CALLS: u64 = 2_000;

/// One measurement.
struct Load {
    /// Identifier of the cost, and name of the directory of its records.
    id: &'static str,
    what: &'static str,
    experiment: &'static str,
    /// Subject that is measured.
    subject: &'static str,
    sets: Vec<String>,
    count: fn(&TrialRecord) -> u64,
}

/// Measures memory.
///
/// # Errors
/// If no border can be started, or none of the loads run.
pub(super) fn measure(context: &PartContext<'_>) -> Result<OwnPart, LabError> {
    let (standing, subscribers) = if context.quick {
        (1_000, 10_000)
    } else {
        (2_000, 50_000)
    };
    let call_sets = |total: u32| {
        vec![
            "levels=".to_owned(),
            "study=".to_owned(),
            "thresholds.figure=".to_owned(),
            "thresholds.leaks=".to_owned(),
            format!("callers.total={total}"),
            "callers.rate=500".to_owned(),
            format!("callers.hold_seconds={}", total / 500 + 1),
            "settle_seconds=20".to_owned(),
        ]
    };
    let loads = [
        Load {
            id: "memory.call.bypass",
            what: "memory of a standing call with media bypass",
            experiment: "standing-call-capacity",
            subject: "hornwork",
            sets: call_sets(standing),
            count: |trial| trial.figures.calls.established,
        },
        Load {
            id: "memory.call.anchored",
            what: "memory of a standing call with anchored media",
            experiment: "standing-call-capacity",
            subject: "hornwork-anchored",
            sets: call_sets(standing / 2),
            count: |trial| trial.figures.calls.established,
        },
        Load {
            id: "memory.registration",
            what: "memory of a registration",
            experiment: "registrations-million",
            subject: "hornwork",
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
        },
    ];
    let mut part = OwnPart::default();
    let mut process: Option<f64> = None;
    for load in &loads {
        if net::stops() > 0 {
            part.remarks.push("interrupted by the user".to_owned());
            break;
        }
        match one(context, load) {
            Ok((row, resident)) => {
                process = Some(process.map_or(resident, |known: f64| known.max(resident)));
                part.rows.push(row);
            }
            Err(error) => part.rows.push(StudyRow {
                row: "X1".to_owned(),
                what: load.what.to_owned(),
                unit: "bytes".to_owned(),
                figure: load.id.to_owned(),
                remark: error.to_string().replace("\n  remedy:", "; remedy:"),
                ..StudyRow::default()
            }),
        }
    }
    if process.is_none() {
        let causes: Vec<&str> = part.rows.iter().map(|row| row.remark.as_str()).collect();
        return Err(LabError::cannot_run(causes.join("; "), "see the causes"));
    }
    part.rows.push(StudyRow {
        row: "X1".to_owned(),
        what: "resident memory of a border without calls".to_owned(),
        here: process,
        samples: 1,
        unit: "bytes".to_owned(),
        figure: "memory.process".to_owned(),
        record: "memory/part.json".to_owned(),
        ..StudyRow::default()
    });
    part.verdict = RunVerdict::NotJudged;
    Ok(part)
}

/// Runs a load against a border of its own; gives its row, and the memory of the border before it.
fn one(context: &PartContext<'_>, load: &Load) -> Result<(StudyRow, f64), LabError> {
    let dir = context.dir.join(load.id);
    let cannot = |error: std::io::Error| crate::files::cannot_write(&dir, &error);
    std::fs::create_dir_all(&dir).map_err(cannot)?;
    let [called] = subject::addresses([127, 0, 0, 1].into())?;
    let file = subject::show(load.subject)
        .and_then(|text| subject::SubjectFile::parse(load.subject, text))?;
    let border = RunningSubject::start(
        &file,
        Placement {
            ip: called.ip(),
            called: Some(called),
            calls: MOST_CALLS,
        },
    )?;
    let process = border.process();
    let before = resident_bytes(process)?;
    let mut sets = load.sets.clone();
    sets.push(format!("sut.address={}", border.address()));
    sets.push(format!("sut.process_id={process}"));
    if load.experiment == "standing-call-capacity" {
        sets.push(format!("callees.address={called}"));
    }
    let options = RunOptions {
        set: sets,
        seed: context.seed,
        force: true,
        no_probe: true,
        ..RunOptions::default()
    };
    let file = run::load(load.experiment, &options)?;
    let sampler = PeakSampler::start(process);
    let executed = run::execute(&file, &options, &dir);
    let peak = sampler.stop();
    let executed = executed?;
    let trial = executed
        .record
        .trials
        .first()
        .ok_or_else(|| LabError::cannot_run("no trial ran", "start it again"))?;
    let count = (load.count)(trial);
    // Calls have ended at the end of the trial: the peak counts.
    let grew = peak - before;
    if count == 0 || grew <= 0.0 {
        return Err(LabError::cannot_run(
            format!("{count} were accepted, and the memory of the border grew by {grew} bytes"),
            format!("see {}", dir.join("report.html").display()),
        ));
    }
    let row = StudyRow {
        row: "X1".to_owned(),
        what: load.what.to_owned(),
        here: Some(grew / count as f64),
        interval: Some(Interval::none(1, "runs")),
        samples: 1,
        unit: "bytes".to_owned(),
        figure: load.id.to_owned(),
        remark: format!(
            "growth of the resident memory at its peak, divided by the number of them: {count}"
        ),
        record: format!("memory/{}/run.json", load.id),
        ..StudyRow::default()
    };
    Ok((row, before))
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
    let path = format!("/proc/{process}/statm");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<f64>().ok());
    pages
        .map(|pages| pages * 4_096.0)
        .ok_or_else(|| LabError::cannot_run(format!("{path}: not readable"), "mount /proc"))
}
