//! What a run counts.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Longest time that is told apart, microseconds: an hour.
const LONGEST: u64 = 3_600_000_000;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// A message came that the scenario does not expect.
    Unexpected,
    /// The peer ended it by BYE or CANCEL where the scenario does not expect it.
    EndedByPeer,
    /// A message did not come in time.
    ReceiveTimeout,
    /// What was sent was never answered, however often it was sent.
    Retransmissions,
    /// A regular expression did not match where it had to, or matched where it must not.
    Check,
    /// The scenario goes in a circle without waiting.
    Endless,
    /// There is no way to the peer: no connection, no socket.
    Connection,
    /// The scenario, or the end of the run, stopped it.
    Stopped,
    /// A message could not be written: no challenge for `[authentication]`, or too long.
    Unwritable,
}

impl Failure {
    /// All, in order.
    pub const ALL: [Failure; 9] = [
        Failure::Unexpected,
        Failure::EndedByPeer,
        Failure::ReceiveTimeout,
        Failure::Retransmissions,
        Failure::Check,
        Failure::Endless,
        Failure::Connection,
        Failure::Stopped,
        Failure::Unwritable,
    ];

    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Failure::Unexpected => "unexpected_message",
            Failure::EndedByPeer => "ended_by_peer",
            Failure::ReceiveTimeout => "receive_timeout",
            Failure::Retransmissions => "retransmissions_exhausted",
            Failure::Check => "check_failed",
            Failure::Endless => "endless_loop",
            Failure::Connection => "no_connection",
            Failure::Stopped => "stopped",
            Failure::Unwritable => "unwritable",
        }
    }
}

/// Times with their classes.
#[derive(Clone, Debug)]
pub struct Times {
    /// Microseconds.
    pub histogram: Histogram<u64>,
    /// Upper edges of the scenario's classes, milliseconds.
    pub edges: Vec<u64>,
    /// How many fell into each; the last is beyond all edges.
    pub classes: Vec<u64>,
}

impl Times {
    /// Nothing yet.
    pub fn new(edges: &[u64]) -> Times {
        Times {
            histogram: histogram(),
            edges: edges.to_vec(),
            classes: vec![0; edges.len() + 1],
        }
    }

    /// One time.
    pub fn add(&mut self, time: Duration) {
        let micros = time.as_micros().min(u128::from(LONGEST)) as u64;
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

    fn merge(&mut self, other: &Times) {
        merge(&mut self.histogram, &other.histogram);
        for (count, more) in self.classes.iter_mut().zip(&other.classes) {
            *count += more;
        }
    }
}

/// A histogram of microseconds with three digits.
pub fn histogram() -> Histogram<u64> {
    let made = Histogram::new_with_bounds(1, LONGEST, 3);
    // The bounds are constants that the library takes.
    made.unwrap_or_else(|error| unreachable!("{error}"))
}

fn merge(into: &mut Histogram<u64>, other: &Histogram<u64>) {
    // Both have the same bounds, so there is room for every value.
    let merged = into.add(other);
    debug_assert!(merged.is_ok());
}

/// What one step counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCount {
    /// Messages sent or received; pauses and others that were gone through.
    pub messages: u64,
    /// Retransmissions sent, or received.
    pub retransmissions: u64,
    /// Waits that ended by time.
    pub timeouts: u64,
    /// Messages that were not expected here.
    pub unexpected: u64,
    /// Messages that were made to be lost.
    pub lost: u64,
}

/// Figures of one generator, or of several together.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Calls made or taken.
    pub created: u64,
    /// Calls that went through their scenario.
    pub successful: u64,
    /// Calls that did not, by reason.
    pub failed: [u64; Failure::ALL.len()],
    /// Calls that are open.
    pub open: u64,
    /// The most that were open.
    pub peak: u64,
    /// By step.
    pub steps: Vec<StepCount>,
    /// Response times, by counter.
    pub responses: Vec<Times>,
    /// Lengths of the calls that succeeded.
    pub lengths: Times,
    /// The scenario's own counters.
    pub counters: Vec<u64>,
    /// How late calls began, the limit of open calls aside; microseconds.
    pub lateness: Histogram<u64>,
    /// How late calls began that the limit of open calls held back; microseconds.
    pub held_back: Histogram<u64>,
    /// Messages of no call.
    pub out_of_call: u64,
    /// What was no SIP.
    pub garbage: u64,
    /// Messages of calls that were over.
    pub late: u64,
    /// Requests that were answered by themselves.
    pub answered: u64,
    /// Calls that found no room.
    pub no_room: u64,
    /// Media packets sent, received and sent back.
    pub media: [u64; 3],
}

impl Statistics {
    /// Nothing yet.
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
            failed: [0; Failure::ALL.len()],
            open: 0,
            peak: 0,
            steps: vec![StepCount::default(); steps],
            responses: vec![Times::new(response_classes); timers],
            lengths: Times::new(length_classes),
            counters: vec![0; counters],
            lateness: histogram(),
            held_back: histogram(),
            out_of_call: 0,
            garbage: 0,
            late: 0,
            answered: 0,
            no_room: 0,
            media: [0; 3],
        }
    }

    /// All calls that failed.
    pub fn failures(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// Retransmissions that were sent.
    pub fn retransmissions(&self) -> u64 {
        self.steps.iter().map(|step| step.retransmissions).sum()
    }

    /// A call began.
    pub fn begun(&mut self) {
        self.created += 1;
        self.open += 1;
        self.peak = self.peak.max(self.open);
    }

    /// How late a call began.
    pub fn late_by(&mut self, late: Duration, held_back: bool) {
        let micros = late.as_micros().min(u128::from(LONGEST)) as u64;
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
        self.out_of_call += other.out_of_call;
        self.garbage += other.garbage;
        self.late += other.late;
        self.answered += other.answered;
        self.no_room += other.no_room;
        let pairs = self.failed.iter_mut().zip(&other.failed);
        let pairs = pairs.chain(self.counters.iter_mut().zip(&other.counters));
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
