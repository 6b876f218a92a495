//! Trials: one experiment at one level, once; on sockets or in virtual time.

mod cast;
mod conference;
mod isolated;
mod simulated;
mod sockets;
mod thread;

pub use cast::Cast;
pub use simulated::{simulate, simulate_watched, simulate_with_log};
pub use sockets::on_sockets;
pub(crate) use sockets::{SAMPLED_EVERY_S, from_start, in_network};
pub use thread::{Finished, HostThread, Place};

use crate::experiment::{Experiment, HoldKind};
use crate::host::{Holdings, Results, StreamResult};
use crate::planes::Samples;
use crate::raw::Surroundings;
use crate::record::{Attempt, StreamRecord};
use std::time::Duration;

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
    /// Calls that each media node of the subject was given.
    pub node_calls: Vec<u64>,
    /// Samples of that time over the trial.
    pub samples: Samples,
    /// Cores that the subject kept busy while it was measured, where that was a part of the trial.
    pub subject_cores: Option<f64>,
    /// How busy all processors were meanwhile, percent.
    pub host_cpu_percent: Option<f64>,
    /// Digest of the event log, in simulation only.
    pub digest: Option<String>,
}

/// Timers B and F (RFC 3261 section 17): what begins or ends a call takes no longer than this.
const TRANSACTION: Duration = Duration::from_secs(32);
/// Times of which only the mean is planned are waited for this often: one in 10^17 is longer.
const LONGEST_DRAWN: f64 = 40.0;

/// How long a run is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// After its last attempt was due.
    settle: Duration,
    /// Beyond that, where calls are up: as long as the plan lets one live. A BYE that was due then does not come any more.
    life: Duration,
}

impl Patience {
    fn of(experiment: &Experiment) -> Patience {
        let seconds =
            |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        let drawn = |drawn: bool| if drawn { LONGEST_DRAWN } else { 1.0 };
        let holds = experiment
            .callers
            .iter()
            .map(|callers| callers.hold_seconds * drawn(callers.hold == HoldKind::Exponential));
        let answers = experiment.callees.iter().map(|callees| {
            (callees.answer_ms * drawn(callees.answer_random) + callees.reserve_ms) / 1e3
        });
        let planned = seconds(holds.chain(answers).sum());
        Patience {
            settle: seconds(experiment.settle_seconds),
            life: planned.saturating_add(2 * TRANSACTION),
        }
    }

    /// Whether nothing more is waited for, so long after the last attempt was due, while so many calls are up.
    fn is_over(self, up: u64, since: Duration) -> bool {
        let wait = match up {
            0 => self.settle,
            _ => self.settle.saturating_add(self.life),
        };
        since > wait
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::File;

    fn patience(text: &str) -> Patience {
        let text = format!("name = \"t\"\ntitle = \"t\"\nsettle_seconds = 5.0\n{text}");
        Patience::of(File::parse("t", &text).unwrap().experiment())
    }

    #[test]
    fn a_run_is_waited_for_as_long_as_its_calls_may_live_and_no_longer() {
        let fixed =
            patience("[callers]\ntotal = 1\nhold_seconds = 100.0\n[callees]\nanswer_ms = 2000.0\n");
        let seconds = Duration::from_secs;
        for (up, since, over) in [
            (0, seconds(5), false),
            (0, seconds(6), true),
            (1, seconds(171), false),
            (1, seconds(172), true),
        ] {
            assert_eq!(fixed.is_over(up, since), over, "{up} {since:?}");
        }
        let drawn = patience(
            "[callers]\ntotal = 1\nhold_seconds = 100.0\nhold = \"exponential\"\n[callees]\n",
        );
        assert!(!drawn.is_over(1, seconds(4_000)) && drawn.is_over(1, seconds(4_070)));
    }
}
