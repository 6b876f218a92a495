//! Statistics of a run.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Longest recorded time, microseconds: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// Reason of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallFailure {
    /// An unexpected message was received.
    Unexpected,
    /// The peer ended it by BYE or CANCEL, unexpected by the scenario.
    EndedByPeer,
    /// A message was not received in time.
    ReceiveTimeout,
    /// A sent message was not answered after all retransmissions.
    Retransmissions,
    /// A check of a regular expression failed.
    Check,
    /// The scenario loops without waiting.
    Endless,
    /// No route to the peer: no connection, no socket.
    Connection,
    /// ICMP errors: the peer's port is closed, or its network cannot be reached.
    Unreachable,
    /// The scenario, or the end of the run, stopped it.
    Stopped,
    /// A message is too long.
    Unwritable,
    /// No challenge was received that `[authentication]` could answer.
    NoChallenge,
}

impl CallFailure {
    /// All, in order.
    pub const ALL: [CallFailure; 11] = [
        CallFailure::Unexpected,
        CallFailure::EndedByPeer,
        CallFailure::ReceiveTimeout,
        CallFailure::Retransmissions,
        CallFailure::Check,
        CallFailure::Endless,
        CallFailure::Connection,
        CallFailure::Unreachable,
        CallFailure::Stopped,
        CallFailure::Unwritable,
        CallFailure::NoChallenge,
    ];

    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            CallFailure::Unexpected => "unexpected_message",
            CallFailure::EndedByPeer => "ended_by_peer",
            CallFailure::ReceiveTimeout => "receive_timeout",
            CallFailure::Retransmissions => "retransmissions_exhausted",
            CallFailure::Check => "check_failed",
            CallFailure::Endless => "endless_loop",
            CallFailure::Connection => "no_connection",
            CallFailure::Unreachable => "icmp_unreachable",
            CallFailure::Stopped => "stopped",
            CallFailure::Unwritable => "unwritable",
            CallFailure::NoChallenge => "no_challenge",
        }
    }
}

/// Times with their classes.
#[derive(Clone, Debug)]
pub struct TimeStatistics {
    /// Microseconds.
    pub histogram: Histogram<u64>,
    /// Upper edges of the scenario's classes, milliseconds.
    pub edges: Vec<u64>,
    /// Number of times in each class; the last class is open.
    pub classes: Vec<u64>,
}

impl TimeStatistics {
    /// Empty statistics.
    pub fn new(edges: &[u64]) -> TimeStatistics {
        TimeStatistics {
            histogram: histogram(),
            edges: edges.to_vec(),
            classes: vec![0; edges.len() + 1],
        }
    }

    /// Adds a time.
    pub fn add(&mut self, time: Duration) {
        let micros = time.as_micros().min(u128::from(LONGEST_US)) as u64;
        self.histogram.saturating_record(micros);
        let class = self
            .edges
            .iter()
            .position(|edge| micros < edge.saturating_mul(1_000))
            .unwrap_or(self.edges.len());
        if let Some(count) = self.classes.get_mut(class) {
            *count += 1;
        }
    }

    fn merge(&mut self, other: &TimeStatistics) {
        merge(&mut self.histogram, &other.histogram);
        for (count, more) in self.classes.iter_mut().zip(&other.classes) {
            *count += more;
        }
    }
}

/// A histogram of microseconds with three significant digits.
pub fn histogram() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1, LONGEST_US, 3);
    // The bounds are valid constants.
    histogram.unwrap_or_else(|error| unreachable!("{error}"))
}

fn merge(into: &mut Histogram<u64>, other: &Histogram<u64>) {
    // Both have the same bounds, so every value fits.
    let merged = into.add(other);
    debug_assert!(merged.is_ok());
}

/// Counters of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCount {
    /// Messages sent or received; executions of other steps.
    pub messages: u64,
    /// Retransmissions sent, or received.
    pub retransmissions: u64,
    /// Waits that ended by timeout.
    pub timeouts: u64,
    /// Unexpected messages at this step.
    pub unexpected: u64,
    /// Messages of simulated loss.
    pub lost: u64,
}

/// Figures of one generator, or the sum of several.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Outgoing or incoming calls.
    pub created: u64,
    /// Calls that completed their scenario.
    pub successful: u64,
    /// Failed calls, by reason.
    pub failed: [u64; CallFailure::ALL.len()],
    /// Calls that are open.
    pub open: u64,
    /// Most open calls at a time; of several generators the sum of theirs, which were at different times.
    pub peak: u64,
    /// Generators.
    pub generators: u64,
    /// By step.
    pub steps: Vec<StepCount>,
    /// Response times, by counter.
    pub responses: Vec<TimeStatistics>,
    /// Lengths of successful calls.
    pub lengths: TimeStatistics,
    /// The scenario's own counters.
    pub counters: Vec<u64>,
    /// Lateness of calls, except those delayed by the limit of open calls; microseconds.
    pub lateness: Histogram<u64>,
    /// Lateness of calls that the limit of open calls delayed; microseconds.
    pub held_back: Histogram<u64>,
    /// Messages without a call.
    pub out_of_call: u64,
    /// Input that is not SIP.
    pub garbage: u64,
    /// Messages of ended calls.
    pub late: u64,
    /// Requests that were answered automatically.
    pub answered: u64,
    /// Calls beyond the limit of concurrent calls.
    pub no_room: u64,
    /// Media packets sent, received and sent back.
    pub media: [u64; 3],
    /// Pattern streams of ended calls, and those of which too little came back.
    pub patterns: [u64; 2],
}

impl Statistics {
    /// Empty statistics.
    pub fn new(
        steps: usize,
        timers: usize,
        counters: usize,
        response_classes: &[u64],
        length_classes: &[u64],
    ) -> Statistics {
        Statistics {
            created: 0,
            successful: 0,
            failed: [0; CallFailure::ALL.len()],
            open: 0,
            peak: 0,
            generators: 1,
            steps: vec![StepCount::default(); steps],
            responses: vec![TimeStatistics::new(response_classes); timers],
            lengths: TimeStatistics::new(length_classes),
            counters: vec![0; counters],
            lateness: histogram(),
            held_back: histogram(),
            out_of_call: 0,
            garbage: 0,
            late: 0,
            answered: 0,
            no_room: 0,
            media: [0; 3],
            patterns: [0; 2],
        }
    }

    /// All failed calls.
    pub fn failures(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// Sent retransmissions.
    pub fn retransmissions(&self) -> u64 {
        self.steps.iter().map(|step| step.retransmissions).sum()
    }

    /// Counts the start of a call.
    pub fn call_started(&mut self) {
        self.created += 1;
        self.open += 1;
        self.peak = self.peak.max(self.open);
    }

    /// Records the lateness of a call.
    pub fn late_by(&mut self, late: Duration, held_back: bool) {
        let micros = late.as_micros().min(u128::from(LONGEST_US)) as u64;
        let into = match held_back {
            true => &mut self.held_back,
            false => &mut self.lateness,
        };
        into.saturating_record(micros);
    }

    /// Adds the figures of another generator with the same scenario.
    pub fn merge(&mut self, other: &Statistics) {
        self.created += other.created;
        self.successful += other.successful;
        self.open += other.open;
        self.peak += other.peak;
        self.generators += other.generators;
        self.out_of_call += other.out_of_call;
        self.garbage += other.garbage;
        self.late += other.late;
        self.answered += other.answered;
        self.no_room += other.no_room;
        let pairs = self.failed.iter_mut().zip(&other.failed);
        let pairs = pairs.chain(self.counters.iter_mut().zip(&other.counters));
        let pairs = pairs.chain(self.patterns.iter_mut().zip(&other.patterns));
        for (count, more) in pairs.chain(self.media.iter_mut().zip(&other.media)) {
            *count += more;
        }
        for (step, more) in self.steps.iter_mut().zip(&other.steps) {
            step.messages += more.messages;
            step.retransmissions += more.retransmissions;
            step.timeouts += more.timeouts;
            step.unexpected += more.unexpected;
            step.lost += more.lost;
        }
        for (times, more) in self.responses.iter_mut().zip(&other.responses) {
            times.merge(more);
        }
        self.lengths.merge(&other.lengths);
        merge(&mut self.lateness, &other.lateness);
        merge(&mut self.held_back, &other.held_back);
    }
}
