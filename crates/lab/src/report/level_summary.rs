//! The figures of one level.

use crate::error::RunVerdict;
use crate::metrics::SipMetrics;
use crate::statistics::Interval;
use std::collections::BTreeMap;

/// Names of the response-time classes.
pub const CLASS_NAMES: [&str; 9] = [
    "<10", "10-20", "20-30", "30-40", "40-50", "50-100", "100-150", "150-200", ">=200",
];

/// Trials of a level in which the SUT did not get the planned load: other trials of the level alone have its figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadFault {
    /// Their number.
    pub trials: usize,
    /// Trials of the level.
    pub of: usize,
    /// The reason of the first.
    pub reason: String,
}

impl LoadFault {
    /// The fault of trials with these reasons; `None` if all of them had the planned load.
    pub(crate) fn of(reasons: impl IntoIterator<Item = Option<String>>) -> Option<LoadFault> {
        let mut found = LoadFault::default();
        for reason in reasons {
            found.of += 1;
            if let Some(reason) = reason {
                found.trials += 1;
                if found.reason.is_empty() {
                    found.reason = reason;
                }
            }
        }
        (found.trials > 0).then_some(found)
    }

    /// Whether no trial of the level can be judged.
    pub fn is_whole_level(&self) -> bool {
        self.trials == self.of
    }

    /// As text.
    pub fn text(&self) -> String {
        match self.is_whole_level() {
            true => format!("not judged: {}", self.reason),
            false => format!(
                "{} of {} trials not judged: {}",
                self.trials, self.of, self.reason
            ),
        }
    }
}

/// One level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LevelSummary {
    /// Value of the sweep.
    pub level: Option<f64>,
    /// Repetitions that have the figures.
    pub repetitions: usize,
    /// Repetitions without the planned load.
    pub load_fault: Option<LoadFault>,
    /// Calls due; this and the following counts are means over the repetitions.
    pub attempted: f64,
    /// Calls established.
    pub established: f64,
    /// Calls completed.
    pub completed: f64,
    /// Calls failed.
    pub failed: f64,
    /// Most calls at a time.
    pub peak: f64,
    /// Registrations due.
    pub registrations: f64,
    /// Registrations accepted.
    pub registered: f64,
    /// Registrations failed.
    pub registrations_failed: f64,
    /// Sent, and never answered with 2xx.
    pub dropped: f64,
    /// Answered with 300 or above.
    pub refused: f64,
    /// Attempts per response-time class.
    pub classes: [f64; CLASS_NAMES.len()],
    /// Median response time, ms.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Largest response time; `None` if only `run.json` was read.
    pub max: Option<f64>,
    /// CPU time of the SUT per call or registration, microseconds.
    pub cpu_us: Option<f64>,
    /// Attempts answered with 2xx, per second of the time in which they were due.
    pub per_second: Option<f64>,
    /// Of these, the ones answered in time that ended as planned.
    pub in_time_per_second: Option<f64>,
    /// Streams received.
    pub streams: f64,
    /// Packets received.
    pub packets: f64,
    /// Lost, percent.
    pub lost_percent: Option<f64>,
    /// Mean jitter, ms.
    pub jitter_mean: Option<f64>,
    /// 99th percentile of the jitter.
    pub jitter_p99: Option<f64>,
    /// Largest jitter over the repetitions.
    pub jitter_max: Option<f64>,
    /// Longest time between two packets over the repetitions, ms.
    pub delta_max: Option<f64>,
    /// Mean of the runs' mean jitter without the best and the worst run, ms; of all runs if there are fewer than three.
    pub jitter_trimmed_mean: Option<f64>,
    /// The same for the runs' 99th percentiles.
    pub jitter_trimmed_p99: Option<f64>,
    /// Jitter of the host, ms, trimmed in the same way: mean.
    pub noise_jitter_mean: Option<f64>,
    /// 99th percentile of the host's jitter.
    pub noise_jitter_p99: Option<f64>,
    /// Lateness of a sleeping thread with the scheduling of the measured program, ms: mean.
    pub host_noise_mean: Option<f64>,
    /// The largest over the repetitions.
    pub host_noise_max: Option<f64>,
    /// Number of cores that the SUT kept busy.
    pub subject_cores: Option<f64>,
    /// Load of all processors, percent.
    pub host_cpu: Option<f64>,
    /// One-way delay of the worst stream, ms.
    pub one_way: Option<f64>,
    /// Delay of single packets, ms: median.
    pub relay_p50: Option<f64>,
    /// 99th percentile.
    pub relay_p99: Option<f64>,
    /// Largest over the repetitions.
    pub relay_max: Option<f64>,
    /// CPU time of the SUT per media packet, microseconds.
    pub cpu_us_packet: Option<f64>,
    /// CPU time of the signalling of one call, microseconds, if it could be divided from that of media.
    pub signalling_us: Option<f64>,
    /// CPU time of the media path per relayed packet, microseconds, if it could be divided.
    pub media_us: Option<f64>,
    /// Spread of the calls over the media nodes, percent of their mean; the largest of the runs.
    pub node_spread: Option<f64>,
    /// Smallest share of the media packets that the kernel relay forwarded, percent.
    pub kernel_relay: Option<f64>,
    /// Fewest connections of registered users.
    pub connections: Option<f64>,
    /// Most of them that were closed.
    pub connections_lost: Option<f64>,
    /// REGISTERs that the registrar behind the SUT accepted.
    pub passed_on: Option<f64>,
    /// Round trip of the worst stream, ms.
    pub round_trip: Option<f64>,
    /// MOS.
    pub mos: Option<f64>,
    /// Smallest speech correlation.
    pub correlation: Option<f64>,
    /// Speech level farthest from zero, dB.
    pub level_db: Option<f64>,
    /// The metrics of RFC 6076 over the attempts of all runs; empty if only `run.json` was read.
    pub sip: SipMetrics,
    /// Answered attempts of all runs, from which the response-time quantiles are computed.
    pub answered: u64,
    /// Figures that the experiment measures itself, by name.
    pub measures: BTreeMap<String, f64>,
    /// 95 % confidence intervals of the figures, by name; empty if only `run.json` was read.
    pub intervals: BTreeMap<String, Interval>,
    /// Verdict over all trials of the level.
    pub verdict: RunVerdict,
}

impl LevelSummary {
    /// Whether the SUT got the planned load in at least one trial.
    pub(crate) fn is_judged(&self) -> bool {
        let fault = self.load_fault.as_ref();
        !fault.is_some_and(LoadFault::is_whole_level)
    }

    /// Remark on trials without the planned load; empty without any.
    pub(crate) fn load_remark(&self) -> String {
        let fault = self.load_fault.as_ref();
        fault.map_or(String::new(), LoadFault::text)
    }
}
