//! Raw results: one record per attempt and per stream, written before anything is computed from them.

use engine::Time;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How an attempt ended. Every attempt has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A call that was established and ended as planned; a registration that was accepted.
    Completed,
    /// A final answer of 300 or above; the status says which.
    Refused,
    /// No final answer in time (RFC 3261 timer B or F, or the experiment's own limit of ringing).
    TimedOut,
    /// Given up by the caller before an answer, as planned; answered by 487.
    Cancelled,
    /// The called side answered and no ACK came (RFC 3261 section 13.3.1.4).
    NoAck,
    /// Established, and not one media packet came although some were due.
    NoMedia,
    /// Established, and ended by the other side before its time.
    CutOff,
    /// Established, and our BYE had no answer.
    ByeUnanswered,
    /// Due while as many were open as are allowed.
    LimitReached,
    /// Due, and the generator itself could not start it (no socket, no room in a table).
    CouldNotStart,
    /// Still open when the trial ended.
    Unfinished,
}

impl Outcome {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Outcome; 11] = [
        Outcome::Completed,
        Outcome::Refused,
        Outcome::TimedOut,
        Outcome::Cancelled,
        Outcome::NoAck,
        Outcome::NoMedia,
        Outcome::CutOff,
        Outcome::ByeUnanswered,
        Outcome::LimitReached,
        Outcome::CouldNotStart,
        Outcome::Unfinished,
    ];

    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Refused => "refused",
            Outcome::TimedOut => "timed_out",
            Outcome::Cancelled => "cancelled",
            Outcome::NoAck => "no_ack",
            Outcome::NoMedia => "no_media",
            Outcome::CutOff => "cut_off",
            Outcome::ByeUnanswered => "bye_unanswered",
            Outcome::LimitReached => "limit_reached",
            Outcome::CouldNotStart => "could_not_start",
            Outcome::Unfinished => "unfinished",
        }
    }

    /// The reason as a reader is told it.
    pub const fn in_words(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Refused => "refused",
            Outcome::TimedOut => "no answer in time",
            Outcome::Cancelled => "cancelled",
            Outcome::NoAck => "no ACK",
            Outcome::NoMedia => "no media",
            Outcome::CutOff => "cut off by the other side",
            Outcome::ByeUnanswered => "BYE not answered",
            Outcome::LimitReached => "not begun: limit of open calls",
            Outcome::CouldNotStart => "not begun: no socket or connection",
            Outcome::Unfinished => "unfinished at the end of the trial",
        }
    }

    /// Whether the attempt did what it was meant to do.
    pub const fn is_good(self) -> bool {
        matches!(self, Outcome::Completed | Outcome::Cancelled)
    }

    /// Whether the attempt ever left the generator.
    pub const fn was_started(self) -> bool {
        !matches!(self, Outcome::LimitReached | Outcome::CouldNotStart)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an attempt was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A call as its caller saw it.
    Call,
    /// A call as the called side saw it; not counted as an attempt of its own.
    Answer,
    /// A first registration.
    Registration,
    /// A refreshed registration.
    Refresh,
    /// A refresh that came at a rate planned for all users together.
    Reregistration,
    /// A registration taken back.
    Deregistration,
    /// A media stream without signalling.
    Stream,
}

/// One attempt: times are nanoseconds since the trial's start, `null` for what did not happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number of the trial in the run, from 0.
    pub trial: u32,
    /// Which workload made it.
    pub workload: String,
    /// What it was.
    pub kind: Kind,
    /// Number within the workload, from 0.
    pub number: u64,
    /// Who called or registered.
    pub from: String,
    /// Who was called; the registrar.
    pub to: String,
    /// Call-ID at the generator.
    pub call_id: String,
    /// When it was due.
    pub due: u64,
    /// When its first message was handed to the socket.
    pub sent: Option<u64>,
    /// First response of any kind.
    pub first_answer: Option<u64>,
    /// First 18x.
    pub ringing: Option<u64>,
    /// 2xx to the INVITE or REGISTER.
    pub established: Option<u64>,
    /// When we sent BYE; `null` where the other side did, or nobody.
    #[serde(default)]
    pub hung_up: Option<u64>,
    /// When everything about it was over.
    pub ended: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// The final status; 0 where there was none.
    pub status: u16,
    /// More about the outcome, in words; may be empty.
    pub why: String,
}

impl Attempt {
    /// An attempt that is due; unfinished until it has another outcome.
    pub fn new(workload: &str, kind: Kind, number: u64, due: Time) -> Attempt {
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
            outcome: Outcome::Unfinished,
            status: 0,
            why: String::new(),
        }
    }

    /// First request sent to the 2xx: what SIPp calls the response time.
    pub fn response_ms(&self) -> Option<f64> {
        between(self.sent, self.established)
    }

    /// Due to sent: what the generator itself was late.
    pub fn lateness_ms(&self) -> Option<f64> {
        between(Some(self.due), self.sent)
    }

    /// Seconds from the answer to the end.
    pub fn talk_seconds(&self) -> Option<f64> {
        between(self.established, self.ended).map(|ms| ms / 1e3)
    }
}

fn between(from: Option<u64>, to: Option<u64>) -> Option<f64> {
    Some(to?.saturating_sub(from?) as f64 / 1e6)
}

/// One received stream of a call, with what its sender says it sent where that is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamRecord {
    /// Number of the trial in the run.
    pub trial: u32,
    /// Which workload received it.
    pub workload: String,
    /// Number of the call at the receiver.
    pub number: u64,
    /// `caller` or `callee`: the side that received it.
    pub side: String,
    /// Synchronisation source of the received stream.
    pub ssrc: u32,
    /// Name of the codec in SDP.
    pub codec: String,
    /// Packets that this side itself sent in the same call.
    pub sent: u64,
    /// Packets received, duplicates included.
    pub received: u64,
    /// Packets that the sender must have sent.
    pub expected: u64,
    /// Packets missing.
    pub lost: u64,
    /// Repeats.
    pub duplicates: u64,
    /// First arrivals out of order.
    pub out_of_order: u64,
    /// First packet, nanoseconds since the trial's start.
    pub first: Option<u64>,
    /// Last packet.
    pub last: Option<u64>,
    /// RFC 3550 jitter over the packets: mean.
    pub jitter_mean_ms: Option<f64>,
    /// 99th percentile.
    pub jitter_p99_ms: Option<f64>,
    /// Largest.
    pub jitter_max_ms: Option<f64>,
    /// Largest time between two packets.
    pub delta_max_ms: Option<f64>,
    /// One-way delay, sender's schedule to arrival, where both ends run on one clock: mean.
    pub one_way_mean_ms: Option<f64>,
    /// Largest one-way delay.
    pub one_way_max_ms: Option<f64>,
    /// Delay of single packets, from when each was sent to when it came, where they were timed: median.
    #[serde(default)]
    pub relay_p50_ms: Option<f64>,
    /// 99th percentile.
    #[serde(default)]
    pub relay_p99_ms: Option<f64>,
    /// Largest.
    #[serde(default)]
    pub relay_max_ms: Option<f64>,
    /// Mean round trip: both one-way delays of the call added, or the way of an echoed packet.
    pub round_trip_ms: Option<f64>,
    /// E-model rating.
    pub r: Option<f64>,
    /// Mean opinion score.
    pub mos: Option<f64>,
    /// Correlation of what was heard with what was said, on the calls that were listened to.
    pub correlation: Option<f64>,
    /// Active level heard against the level said, dB.
    pub level_db: Option<f64>,
}

impl StreamRecord {
    /// Whether anything was received, or should have been: the record of a side that only sends says neither.
    pub fn is_awaited(&self) -> bool {
        self.received > 0 || self.expected > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_their_written_form() {
        let mut attempt = Attempt::new("callers", Kind::Call, 7, Time::from_millis(20));
        attempt.sent = Some(21_000_000);
        attempt.established = Some(33_500_000);
        attempt.outcome = Outcome::Completed;
        let line = serde_json::to_string(&attempt).unwrap();
        assert!(line.contains("\"outcome\":\"completed\"") && !line.contains('\n'));
        assert_eq!(serde_json::from_str::<Attempt>(&line).unwrap(), attempt);
        assert_eq!(attempt.response_ms(), Some(12.5));
        assert_eq!(attempt.lateness_ms(), Some(1.0));
        assert_eq!(attempt.talk_seconds(), None);
    }

    #[test]
    fn every_outcome_is_listed_under_its_written_name() {
        for outcome in Outcome::ALL {
            let written = serde_json::to_string(&outcome).unwrap();
            assert_eq!(written, format!("{:?}", outcome.name()));
        }
    }
}
