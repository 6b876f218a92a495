//! Trials: one run of an experiment at one level, on sockets or in virtual time.

mod conference;
mod emulated;
mod esp;
mod hosts;
mod isolated;
mod machine;
mod namespaces;
mod phones;
mod progress;
mod protected;
mod simulated;
mod sockets;
mod thread;
#[cfg(test)]
mod tunnel_calls;
mod tunnel_to_border;
mod tunnelled;

pub use hosts::TrialHosts;
pub(crate) use machine::{local_ip_towards, receive_buffer_errors};
pub(crate) use progress::{from_start, kernel_drops, unparsable};
pub use simulated::{simulate, simulate_watched, simulate_with_log};
pub use sockets::on_sockets;
pub(crate) use sockets::{RAN_IN_VIRTUAL_TIME, SAMPLED_EVERY_S, in_network};
pub use thread::{HostPlacement, HostResults, HostThread};

use crate::experiment::{Experiment, HoldKind};
use crate::hops::DelaySplit;
use crate::host::{Holdings, Results, StreamResult};
use crate::measure::MeasureRecord;
use crate::planes::Samples;
use crate::raw::{LinkRecord, Surroundings};
use crate::record::{Attempt, StreamRecord};
use std::time::Duration;

/// A trial to run.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The experiment at the trial's level.
    pub experiment: Experiment,
    /// Number in the run.
    pub number: u32,
    /// Seed.
    pub seed: u64,
}

/// Results of a trial.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// One per attempt.
    pub attempts: Vec<Attempt>,
    /// One per received stream.
    pub streams: Vec<StreamRecord>,
    /// Samples of figures that the experiment measures itself.
    pub measures: Vec<MeasureRecord>,
    /// Seconds from the first arrival to the end.
    pub seconds: f64,
    /// Objects that SUT and hosts still have after the end; `None` if the SUT cannot be queried.
    pub leaks: Option<u64>,
    /// Remarks.
    pub remarks: Vec<String>,
    /// On sockets only.
    pub surroundings: Option<Surroundings>,
    /// CPU time of the SUT, seconds.
    pub subject_cpu_seconds: Option<f64>,
    /// Number of calls per media node of the SUT.
    pub node_calls: Vec<u64>,
    /// Media packets that the kernel relay forwarded; `None` if the SUT has none.
    pub kernel_relayed: Option<u64>,
    /// Connections of the registered users; `None` over UDP.
    pub connections: Option<UserConnections>,
    /// REGISTERs that the registrar behind the SUT accepted; `None` without one.
    pub passed_on: Option<u64>,
    /// Samples of the CPU time over the trial.
    pub samples: Samples,
    /// Cores that the SUT kept busy during the measurement, if that was only a part of the trial.
    pub subject_cores: Option<f64>,
    /// Load of all processors during the measurement, percent.
    pub host_cpu_percent: Option<f64>,
    /// The reason, if the subject ended by itself before the end of the trial.
    pub subject_ended: Option<String>,
    /// Digest of the event log, in simulation only.
    pub digest: Option<String>,
    /// Links of `[network]`, on sockets only.
    pub links: Vec<LinkRecord>,
    /// Time of packets in the gateways of `[protection]`, milliseconds: mean, median, 99th percentile.
    pub protection_ms: Option<[Option<f64>; 3]>,
    /// The delay of media packets by hop, in simulation only.
    pub delay_split: Option<DelaySplit>,
}

/// Stream connections of registered users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserConnections {
    /// Fewest at a time during the re-registrations at a rate; without them, at the end.
    pub open: u64,
    /// Connections opened, less those that were open at the end: closed ones, and those that took their place.
    pub lost: u64,
}

/// Timers B and F (RFC 3261 section 17): the longest duration of a transaction that begins or ends a call.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(32);
/// Factor of the longest wait for a random duration whose mean is planned: one in 10^17 is longer.
const RANDOM_DURATION_FACTOR: f64 = 40.0;

/// Limits of the wait for the end of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimits {
    /// Wait after the last attempt was due.
    settle: Duration,
    /// Additional wait while calls are up: the planned lifetime of a call. After that no BYE is expected any more.
    life: Duration,
}

impl WaitLimits {
    fn of(experiment: &Experiment) -> WaitLimits {
        let seconds =
            |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        let drawn = |drawn: bool| if drawn { RANDOM_DURATION_FACTOR } else { 1.0 };
        let holds = experiment
            .callers
            .iter()
            .map(|callers| callers.hold_seconds * drawn(callers.hold == HoldKind::Exponential));
        let answers = experiment.callees.iter().map(|callees| {
            (callees.answer_ms * drawn(callees.answer_random) + callees.reserve_ms) / 1e3
        });
        let planned = seconds(holds.chain(answers).sum());
        WaitLimits {
            settle: seconds(experiment.settle_seconds),
            life: planned.saturating_add(2 * TRANSACTION_TIMEOUT),
        }
    }

    /// Whether the wait is over, this long after the last attempt was due, with this many calls up.
    fn is_over(self, up: u64, since: Duration) -> bool {
        let wait = match up {
            0 => self.settle,
            _ => self.settle.saturating_add(self.life),
        };
        since > wait
    }
}

/// Merges the results of all hosts, ordered by workload and then by number, so that the order does not depend on which
/// host ended first.
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

pub(crate) fn total_held(holdings: &[Holdings]) -> u64 {
    holdings
        .iter()
        .map(|held| (held.calls + held.legs + held.sessions) as u64)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::File;

    fn wait_limits(text: &str) -> WaitLimits {
        let text = format!("name = \"t\"\ntitle = \"t\"\nsettle_seconds = 5.0\n{text}");
        WaitLimits::of(File::parse("t", &text).unwrap().experiment())
    }

    #[test]
    fn run_is_waited_for_as_long_as_its_calls_may_last() {
        let fixed = wait_limits(
            "[callers]\ntotal = 1\nhold_seconds = 100.0\n[callees]\nanswer_ms = 2000.0\n",
        );
        let seconds = Duration::from_secs;
        for (up, since, over) in [
            (0, seconds(5), false),
            (0, seconds(6), true),
            (1, seconds(171), false),
            (1, seconds(172), true),
        ] {
            assert_eq!(fixed.is_over(up, since), over, "{up} {since:?}");
        }
        let drawn = wait_limits(
            "[callers]\ntotal = 1\nhold_seconds = 100.0\nhold = \"exponential\"\n[callees]\n",
        );
        assert!(!drawn.is_over(1, seconds(4_000)) && drawn.is_over(1, seconds(4_070)));
    }
}
