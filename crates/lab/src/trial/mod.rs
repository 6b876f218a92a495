//! Trials: one experiment at one level, once; on sockets or in virtual time.

mod cast;
mod simulated;
mod sockets;
mod thread;

pub use cast::Cast;
pub use simulated::{simulate, simulate_watched, simulate_with_log};
pub(crate) use sockets::from_start;
pub use sockets::on_sockets;
pub use thread::{Finished, HostThread};

use crate::experiment::Experiment;
use crate::host::{Holdings, Results, StreamResult};
use crate::raw::Surroundings;
use crate::record::{Attempt, StreamRecord};

/// A trial to be run.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The experiment at its level.
    pub experiment: Experiment,
    /// Number in the run.
    pub number: u32,
    /// Seed.
    pub seed: u64,
}

/// What a trial gave.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// One per attempt.
    pub attempts: Vec<Attempt>,
    /// One per received stream.
    pub streams: Vec<StreamRecord>,
    /// Seconds from the first arrival to the end.
    pub seconds: f64,
    /// What subject and hosts still hold; `None` where the subject cannot be asked.
    pub leaks: Option<u64>,
    /// Remarks.
    pub remarks: Vec<String>,
    /// On sockets only.
    pub surroundings: Option<Surroundings>,
    /// CPU time of the subject, seconds.
    pub subject_cpu_seconds: Option<f64>,
    /// Digest of the event log, in simulation only.
    pub digest: Option<String>,
}

/// Puts the results of all hosts together: by workload order, then by number, so that nothing depends on who ended first.
pub(crate) fn merge(trial: u32, results: Vec<Results>) -> (Vec<Attempt>, Vec<StreamRecord>) {
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut streams: Vec<StreamResult> = Vec::new();
    for mut result in results {
        attempts.append(&mut result.attempts);
        streams.append(&mut result.streams);
    }
    for attempt in &mut attempts {
        attempt.trial = trial;
    }
    attempts.sort_by(|a, b| {
        (a.due, &a.workload, a.kind, a.number).cmp(&(b.due, &b.workload, b.kind, b.number))
    });
    let mut streams = crate::link::complete(streams);
    for stream in &mut streams {
        stream.trial = trial;
    }
    streams.sort_by(|a, b| (&a.workload, a.number, a.first).cmp(&(&b.workload, b.number, b.first)));
    (attempts, streams)
}

pub(crate) fn held(holdings: &[Holdings]) -> u64 {
    holdings
        .iter()
        .map(|held| (held.calls + held.legs + held.sessions) as u64)
        .sum()
}
