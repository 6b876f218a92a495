//! Raw results: one record per attempt and per stream, written before any figure is computed.

use engine::Time;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Calls and streams for which the generator had no socket: it neither offered nor served the planned load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketShortage {
    /// Their number.
    pub calls: u64,
    /// The error of the first.
    pub error: String,
}

impl SocketShortage {
    /// Counts one; `into` is the shortage of its host.
    pub(crate) fn add(into: &mut Option<SocketShortage>, error: &str) {
        let shortage = into.get_or_insert_with(|| SocketShortage {
            calls: 0,
            error: error.to_owned(),
        });
        shortage.calls += 1;
    }

    /// Those of several hosts together; `None` if all of them had their sockets.
    pub(crate) fn of_all<'a>(
        hosts: impl IntoIterator<Item = &'a Option<SocketShortage>>,
    ) -> Option<SocketShortage> {
        let shortages = hosts.into_iter().flatten().cloned();
        shortages.reduce(|all, more| SocketShortage {
            calls: all.calls + more.calls,
            ..all
        })
    }
}

/// Result of an attempt. Each attempt has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// A call that was established and ended as planned; an accepted registration.
    Completed,
    /// A final response of 300 or above; see the status.
    Refused,
    /// No final response in time (RFC 3261 timer B or F, or the ring limit of the experiment).
    TimedOut,
    /// Cancelled by the caller before an answer, as planned; answered with 487.
    Cancelled,
    /// The called side answered and received no ACK (RFC 3261 section 13.3.1.4).
    NoAck,
    /// Established, and no media packet arrived although some were due.
    NoMedia,
    /// Established, and ended early by the other side.
    CutOff,
    /// Established, and the BYE of the generator got no response.
    ByeUnanswered,
    /// A response had the branch of its request, and another Call-ID, CSeq or From tag (RFC 3261 section 8.2.6.2).
    Mismatched,
    /// Due while the limit of open calls was reached.
    LimitReached,
    /// Due, and the generator could not start it (no socket, table full).
    CouldNotStart,
    /// A refresh that was due for a subscriber without a registration: an earlier attempt failed.
    NotRegistered,
    /// A refresh that was due while the previous request of the subscriber had no final response.
    PreviousPending,
    /// Still open at the end of the trial.
    Unfinished,
}

impl AttemptOutcome {
    /// All of them, in the order of reports.
    pub const ALL: [AttemptOutcome; 14] = [
        AttemptOutcome::Completed,
        AttemptOutcome::Refused,
        AttemptOutcome::TimedOut,
        AttemptOutcome::Cancelled,
        AttemptOutcome::NoAck,
        AttemptOutcome::NoMedia,
        AttemptOutcome::CutOff,
        AttemptOutcome::ByeUnanswered,
        AttemptOutcome::Mismatched,
        AttemptOutcome::LimitReached,
        AttemptOutcome::CouldNotStart,
        AttemptOutcome::NotRegistered,
        AttemptOutcome::PreviousPending,
        AttemptOutcome::Unfinished,
    ];

    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            AttemptOutcome::Completed => "completed",
            AttemptOutcome::Refused => "refused",
            AttemptOutcome::TimedOut => "timed_out",
            AttemptOutcome::Cancelled => "cancelled",
            AttemptOutcome::NoAck => "no_ack",
            AttemptOutcome::NoMedia => "no_media",
            AttemptOutcome::CutOff => "cut_off",
            AttemptOutcome::ByeUnanswered => "bye_unanswered",
            AttemptOutcome::Mismatched => "mismatched",
            AttemptOutcome::LimitReached => "limit_reached",
            AttemptOutcome::CouldNotStart => "could_not_start",
            AttemptOutcome::NotRegistered => "not_registered",
            AttemptOutcome::PreviousPending => "previous_pending",
            AttemptOutcome::Unfinished => "unfinished",
        }
    }

    /// The description in reports.
    pub const fn description(self) -> &'static str {
        match self {
            AttemptOutcome::Completed => "completed",
            AttemptOutcome::Refused => "refused",
            AttemptOutcome::TimedOut => "no answer in time",
            AttemptOutcome::Cancelled => "cancelled",
            AttemptOutcome::NoAck => "no ACK",
            AttemptOutcome::NoMedia => "no media",
            AttemptOutcome::CutOff => "cut off by the other side",
            AttemptOutcome::ByeUnanswered => "BYE not answered",
            AttemptOutcome::Mismatched => "response with another Call-ID, CSeq or From tag",
            AttemptOutcome::LimitReached => "not started: limit of open calls",
            AttemptOutcome::CouldNotStart => "not started: no socket or connection",
            AttemptOutcome::NotRegistered => "not started: the registration had failed",
            AttemptOutcome::PreviousPending => "not started: the previous request was unanswered",
            AttemptOutcome::Unfinished => "unfinished at the end of the trial",
        }
    }

    /// Whether the attempt ended as planned.
    pub const fn is_good(self) -> bool {
        matches!(self, AttemptOutcome::Completed | AttemptOutcome::Cancelled)
    }

    /// Whether a request of the attempt was sent.
    pub const fn was_started(self) -> bool {
        !matches!(
            self,
            AttemptOutcome::LimitReached
                | AttemptOutcome::CouldNotStart
                | AttemptOutcome::NotRegistered
                | AttemptOutcome::PreviousPending
        )
    }
}

impl fmt::Display for AttemptOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Kind of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptKind {
    /// A call, recorded at its caller.
    Call,
    /// A call, recorded at the called side; not counted as an attempt.
    Answer,
    /// A first registration.
    Registration,
    /// A refreshed registration.
    Refresh,
    /// A refresh that a plan for all users together starts at a given rate.
    Reregistration,
    /// Removal of a registration.
    Deregistration,
    /// A media stream without signalling.
    Stream,
}

/// One attempt. Times are nanoseconds since the start of the trial, `null` for events that did not happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number of the trial in the run, from 0.
    pub trial: u32,
    /// Its workload.
    pub workload: String,
    /// Its kind.
    pub kind: AttemptKind,
    /// Number within the workload, from 0.
    pub number: u64,
    /// Calling or registering user.
    pub from: String,
    /// Called user; the registrar.
    pub to: String,
    /// Call-ID at the generator.
    pub call_id: String,
    /// When it was due.
    pub due: u64,
    /// Time of the first message handed to the socket.
    pub sent: Option<u64>,
    /// First response of any kind.
    pub first_answer: Option<u64>,
    /// First 18x.
    pub ringing: Option<u64>,
    /// 2xx to the INVITE or REGISTER.
    pub established: Option<u64>,
    /// BYE sent by the generator; `null` if the other side sent it, or none was sent.
    #[serde(default)]
    pub hung_up: Option<u64>,
    /// Time at which the attempt was complete.
    pub ended: Option<u64>,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// Final status; 0 without one.
    pub status: u16,
    /// Further explanation of the outcome; may be empty.
    pub why: String,
}

impl Attempt {
    /// An attempt that is due; unfinished until another outcome is set.
    pub fn new(workload: &str, kind: AttemptKind, number: u64, due: Time) -> Attempt {
        Attempt {
            trial: 0,
            workload: workload.to_owned(),
            kind,
            number,
            from: String::new(),
            to: String::new(),
            call_id: String::new(),
            due: due.0,
            sent: None,
            first_answer: None,
            ringing: None,
            established: None,
            hung_up: None,
            ended: None,
            outcome: AttemptOutcome::Unfinished,
            status: 0,
            why: String::new(),
        }
    }

    /// First request to 2xx, milliseconds: the response time as SIPp defines it.
    pub fn response_ms(&self) -> Option<f64> {
        between(self.sent, self.established)
    }

    /// Due to sent, milliseconds: the lateness of the generator.
    pub fn lateness_ms(&self) -> Option<f64> {
        between(Some(self.due), self.sent)
    }

    /// Answer to end, seconds.
    pub fn talk_seconds(&self) -> Option<f64> {
        between(self.established, self.ended).map(|ms| ms / 1e3)
    }
}

fn between(from: Option<u64>, to: Option<u64>) -> Option<f64> {
    Some(to?.saturating_sub(from?) as f64 / 1e6)
}

/// One received stream of a call, with the data of its sender if available.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamRecord {
    /// Number of the trial in the run.
    pub trial: u32,
    /// Workload that received it.
    pub workload: String,
    /// Number of the call at the receiver.
    pub number: u64,
    /// `caller` or `callee`: the receiving side.
    pub side: String,
    /// Synchronisation source of the received stream; the last one, if it changed. Jitter and delays are those of the
    /// last one, counts those of all.
    pub ssrc: u32,
    /// Name of the codec in SDP.
    pub codec: String,
    /// Packets that the receiving side itself sent in the same call.
    pub sent: u64,
    /// Packets received, duplicates included.
    pub received: u64,
    /// Packets that the sender must have sent.
    pub expected: u64,
    /// Packets missing.
    pub lost: u64,
    /// Packets sent before the first one that arrived, of less than a second: `lost` does not have them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub clipped: u64,
    /// Those that were missed between received packets, by the second since the first one; empty without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_by_second: Vec<u32>,
    /// Mean length of the runs of these losses over that of random losses (G.107 section 7.5); `null` without losses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_ratio: Option<f64>,
    /// Repeats.
    pub duplicates: u64,
    /// First arrivals out of order.
    pub out_of_order: u64,
    /// First packet, nanoseconds since the trial's start.
    pub first: Option<u64>,
    /// Last packet.
    pub last: Option<u64>,
    /// RFC 3550 jitter over the packets, milliseconds: mean.
    pub jitter_mean_ms: Option<f64>,
    /// 99th percentile.
    pub jitter_p99_ms: Option<f64>,
    /// Largest.
    pub jitter_max_ms: Option<f64>,
    /// Largest time between two packets, milliseconds.
    pub delta_max_ms: Option<f64>,
    /// One-way delay, milliseconds, from the sender's schedule to the arrival, if both ends use the same clock: mean.
    pub one_way_mean_ms: Option<f64>,
    /// Largest one-way delay.
    pub one_way_max_ms: Option<f64>,
    /// Median one-way delay, if the arrival of single packets was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_way_p50_ms: Option<f64>,
    /// 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_way_p99_ms: Option<f64>,
    /// Delay of single packets, milliseconds, from sending to arrival, if measured: mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_mean_ms: Option<f64>,
    /// Median.
    #[serde(default)]
    pub relay_p50_ms: Option<f64>,
    /// 99th percentile.
    #[serde(default)]
    pub relay_p99_ms: Option<f64>,
    /// Largest.
    #[serde(default)]
    pub relay_max_ms: Option<f64>,
    /// Mean round trip, milliseconds: the one-way delays of both directions added, or the delay of an echoed packet; of
    /// a phone without these, that of the peer's RTCP reports.
    pub round_trip_ms: Option<f64>,
    /// Packets of the sent stream that the peer missed by its last RTCP report; duplicates make it negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_lost: Option<i64>,
    /// Interarrival jitter of the sent stream by that report, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_jitter_ms: Option<f64>,
    /// E-model rating.
    pub r: Option<f64>,
    /// Mean opinion score.
    pub mos: Option<f64>,
    /// Correlation of received with sent speech, for calls whose audio was analysed.
    pub correlation: Option<f64>,
    /// Active level of received against sent speech, dB.
    pub level_db: Option<f64>,
}

/// Whether a count is left out of the record.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl StreamRecord {
    /// Packets that were missed before the first and after the last one that arrived; the burst ratio is not theirs.
    pub(crate) fn lost_at_ends(&self) -> u64 {
        let between: u64 = self.lost_by_second.iter().copied().map(u64::from).sum();
        self.lost.saturating_sub(between)
    }

    /// The correlation of the losses of neighbouring packets, 0 to 1; `None` without losses, or if it is unknown.
    pub(crate) fn loss_correlation(&self) -> Option<f64> {
        let burst_ratio = self.burst_ratio.filter(|_| self.lost > 0)?.max(1.0);
        let share = |lost: u64, of: u64| lost as f64 / of.max(1) as f64;
        let ends = self.lost_at_ends();
        let between = self.lost - ends;
        let random = 1.0 - share(between, self.expected.saturating_sub(ends));
        // Each end is one run.
        let runs = between as f64 * random / burst_ratio + f64::from(u8::from(ends > 0));
        let length = self.lost as f64 / runs.max(f64::MIN_POSITIVE);
        let lost = share(self.lost, self.expected);
        // A run ends with a packet that arrives: neighbours are both lost with the probability p (1 - 1 / length).
        let correlation = (1.0 - 1.0 / length.max(1.0) - lost) / (1.0 - lost);
        Some(match lost < 1.0 {
            true => correlation.clamp(0.0, 1.0),
            false => 1.0,
        })
    }

    /// Whether packets were received or expected; the record of a side that only sends has neither.
    pub fn is_incoming(&self) -> bool {
        self.received > 0 || self.expected > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_serialization() {
        let mut attempt = Attempt::new("callers", AttemptKind::Call, 7, Time::from_millis(20));
        attempt.sent = Some(21_000_000);
        attempt.established = Some(33_500_000);
        attempt.outcome = AttemptOutcome::Completed;
        let line = serde_json::to_string(&attempt).unwrap();
        assert!(line.contains("\"outcome\":\"completed\"") && !line.contains('\n'));
        assert_eq!(serde_json::from_str::<Attempt>(&line).unwrap(), attempt);
        assert_eq!(attempt.response_ms(), Some(12.5));
        assert_eq!(attempt.lateness_ms(), Some(1.0));
        assert_eq!(attempt.talk_seconds(), None);
    }

    #[test]
    fn losses_in_runs_are_correlated() {
        let stream = |lost: u64, by_second: &[u32], burst_ratio: f64| StreamRecord {
            expected: 10_000,
            lost,
            lost_by_second: by_second.to_vec(),
            burst_ratio: Some(burst_ratio),
            ..StreamRecord::default()
        };
        let of = |stream: StreamRecord| stream.loss_correlation().unwrap();
        assert!(of(stream(200, &[200], 0.98)) < 1e-9);
        // Runs of four packets: 1 - 1 / (4 * 0.98).
        assert!((of(stream(200, &[200], 3.92)) - 0.745).abs() < 0.001);
        // One run at the end.
        assert!(of(stream(9_000, &[], 1.0)) > 0.99);
        assert!(of(stream(10_000, &[], 1.0)) > 0.99);
        assert_eq!(stream(0, &[], 1.0).loss_correlation(), None);
        assert_eq!(StreamRecord::default().loss_correlation(), None);
    }

    #[test]
    fn every_outcome_is_listed_under_its_serialized_name() {
        for outcome in AttemptOutcome::ALL {
            let written = serde_json::to_string(&outcome).unwrap();
            assert_eq!(written, format!("{:?}", outcome.name()));
        }
    }
}
