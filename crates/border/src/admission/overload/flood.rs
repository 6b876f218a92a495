//! Processing time per call, measured while the thread is busy, and detection of a flood within its first
//! milliseconds.

use core::time::Duration;
use engine::Time;

/// Datagrams of a message, in and out: the unit of work.
const DATAGRAMS_PER_MESSAGE: u32 = 2;
/// Datagrams of a call of seven messages, with the 100 (Trying) to its caller.
const DATAGRAMS_PER_CALL: f64 = 13.0;
/// Incoming ones of these.
const INCOMING_PER_CALL: f64 = 6.0;
/// A turn that takes longer, and longer than [`MAX_PER_DATAGRAM`] for each datagram, is not counted: the thread was
/// kept from running.
const MAX_PROCESSING: Duration = Duration::from_millis(10);
/// Longest processing time of a datagram, 50 times that of a slow machine.
const MAX_PER_DATAGRAM: Duration = Duration::from_micros(500);
/// Datagrams needed for an estimate, those of twenty calls: the first ones after the start are slow.
const MIN_DATAGRAMS: u64 = 260;
/// Half-life of the measurement, in busy time.
const MEMORY: Duration = Duration::from_millis(500);

/// Rate at which a thread processes datagrams, measured while the next message is queued.
#[derive(Debug)]
pub(super) struct ServiceTime {
    /// Datagrams per call, with those handed off to other workers.
    datagrams_per_call: f64,
    /// Time of the last messages and their datagrams: the messages of one driver turn have the same time.
    last: Time,
    datagrams: u32,
    /// The same of the turn before, until it is known whether the thread was busy in between.
    previous: Option<(Time, u32)>,
    /// Datagrams processed so far, and the time that they took.
    done: u64,
    busy: Duration,
}

impl ServiceTime {
    /// For one of `workers` workers. Which worker reads a message is random: messages of its own calls that it reads
    /// and messages of other calls that it hands off are together as many as the incoming ones of a call; messages
    /// handed off to it were read by the others.
    pub(super) fn new(workers: u8) -> ServiceTime {
        let others = 1.0 - 1.0 / f64::from(workers.max(1));
        ServiceTime {
            datagrams_per_call: DATAGRAMS_PER_CALL + INCOMING_PER_CALL * others,
            last: Time::ZERO,
            datagrams: 0,
            previous: None,
            done: 0,
            busy: Duration::ZERO,
        }
    }

    /// Records a message that arrived at `arrived`; without `queued`, the thread may have been idle before it.
    pub(super) fn record_message(&mut self, arrived: Time, queued: bool, now: Time) {
        if now > self.last {
            self.previous = Some((self.last, self.datagrams));
            (self.last, self.datagrams) = (now, 0);
        }
        // One queued message proves that the thread was busy during the whole turn before, on all sockets.
        if let Some((last, datagrams)) =
            self.previous.filter(|(last, _)| queued && arrived <= *last)
        {
            self.previous = None;
            let processing = now.since(last);
            if processing <= MAX_PROCESSING.max(MAX_PER_DATAGRAM * datagrams) {
                self.done += u64::from(datagrams);
                self.busy += processing;
            }
            if self.busy > MEMORY {
                (self.done, self.busy) = (self.done / 2, self.busy / 2);
            }
        }
        self.datagrams += DATAGRAMS_PER_MESSAGE;
    }

    /// The message begins a call: a 100 (Trying) is sent.
    pub(super) fn record_new_call(&mut self) {
        self.datagrams += 1;
    }

    /// Nothing is sent for this message.
    pub(super) fn record_no_reply(&mut self) {
        self.datagrams = self.datagrams.saturating_sub(1);
    }

    /// Capacity in calls per second, each with all of its messages; 0 if unknown.
    pub(super) fn calls_per_second(&self) -> f64 {
        match self.done >= MIN_DATAGRAMS && !self.busy.is_zero() {
            true => self.done as f64 / self.datagrams_per_call / self.busy.as_secs_f64(),
            false => 0.0,
        }
    }
}

/// New calls are counted in slices of this length, by time of arrival.
const SLICE: Duration = Duration::from_millis(5);
/// Slices that a flood lasts: peers that send a backlog after a stall need less time.
const SLICES: usize = 3;
/// Ratio to the capacity that a flood has in each slice, beyond deviations by chance.
const FLOOD_RATIO: f64 = 2.0;
/// Standard deviations of chance.
const DEVIATIONS: f64 = 3.0;

/// New calls in the last slices.
#[derive(Debug, Default)]
pub(super) struct FloodDetector {
    /// Start of the current slice.
    since: Time,
    number: u32,
    /// The slices before, oldest first.
    slices: [u32; SLICES],
}

impl FloodDetector {
    /// Records a new call that arrived at `arrived`.
    pub(super) fn record(&mut self, arrived: Time) {
        let past = arrived.since(self.since);
        if past >= SLICE {
            self.slices.rotate_left(1);
            if let Some(last) = self.slices.last_mut() {
                *last = self.number;
            }
            self.number = 0;
            if past >= SLICE * 2 {
                // At least one slice without a call.
                self.slices = [0; SLICES];
                self.since = arrived;
            } else {
                self.since += SLICE;
            }
        }
        self.number += 1;
    }

    /// Whether it is a flood, for a capacity in calls per second.
    pub(super) fn is_flood(&self, capacity: f64) -> bool {
        let usual = capacity * SLICE.as_secs_f64();
        let most = usual * FLOOD_RATIO + DEVIATIONS * (usual * FLOOD_RATIO).sqrt();
        capacity > 0.0 && self.slices.iter().all(|part| f64::from(*part) > most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `calls` per second for `milliseconds` from `start` on (in ms), evenly.
    fn evenly(detector: &mut FloodDetector, calls: u64, start: u64, milliseconds: u64) {
        for number in 0..calls * milliseconds / 1_000 {
            detector.record(Time(start * 1_000_000 + number * 1_000_000_000 / calls));
        }
    }

    #[test]
    fn a_flood_is_detected_within_three_slices() {
        let mut detector = FloodDetector::default();
        evenly(&mut detector, 7_650, 1_000, 21);
        assert!(detector.is_flood(765.0));
        assert!(!detector.is_flood(0.0), "unknown capacity");
    }

    /// An excess of a half, or by chance, shows by the queueing delay instead.
    #[test]
    fn a_small_excess_is_no_flood() {
        let mut detector = FloodDetector::default();
        evenly(&mut detector, 1_200, 1_000, 500);
        assert!(!detector.is_flood(765.0));
    }

    /// Callers that stalled for 300 ms send a backlog of three hundred calls and go on as before.
    #[test]
    fn clustered_calls_are_no_flood() {
        let mut detector = FloodDetector::default();
        evenly(&mut detector, 700, 1_000, 500);
        for number in 0..300 {
            detector.record(Time(1_800_000_000 + number * 20_000));
            assert!(!detector.is_flood(765.0));
        }
        for step in 0..100 {
            evenly(&mut detector, 700, 1_807 + step * 10, 10);
            assert!(!detector.is_flood(765.0));
        }
    }

    /// After a stall the thread finds a long queue, but its calls arrived no faster than before.
    #[test]
    fn a_stalled_thread_is_no_flood_and_not_counted_as_work() {
        let mut work = ServiceTime::new(1);
        let mut detector = FloodDetector::default();
        let mut now = 1_000_000_000;
        for number in 0..300 {
            // Calls arrive a millisecond apart; after the fiftieth, the thread is kept from running for 300 ms.
            let arrived = 1_000_000_000 + number * 1_000_000;
            now = now.max(arrived) + 500_000;
            if number == 50 {
                now += 300_000_000;
            }
            work.record_message(Time(arrived), now - arrived > 10_000_000, Time(now));
            detector.record(Time(arrived));
            assert!(!detector.is_flood(work.calls_per_second()), "{number}");
        }
        // Two datagrams in half a millisecond, of thirteen per call.
        let calls = work.calls_per_second();
        assert!((300.0..=320.0).contains(&calls), "{calls}");
    }

    /// A turn in which the thread was kept from running says nothing about its capacity.
    #[test]
    fn turns_with_a_stall_are_not_counted() {
        let mut work = ServiceTime::new(1);
        let mut now = Time::from_secs(1);
        for turn in 0..100 {
            let arrived = now;
            now += Duration::from_millis(if turn % 10 == 0 { 30 } else { 1 });
            for _ in 0..5 {
                work.record_message(arrived, true, now);
            }
        }
        // Ten datagrams in a millisecond.
        let datagrams = work.calls_per_second() * DATAGRAMS_PER_CALL;
        assert!((9_900.0..=10_100.0).contains(&datagrams), "{datagrams}");
    }

    /// A driver passes messages of several sockets in one turn; some sockets have no queue.
    #[test]
    fn messages_of_one_driver_turn_are_counted_together() {
        let mut work = ServiceTime::new(1);
        let first = Time::from_secs(1);
        for turn in 1..200 {
            let now = first + Duration::from_millis(2) * turn;
            for number in 0..8 {
                match number % 2 {
                    0 => work.record_message(first, true, now),
                    _ => work.record_message(now, false, now),
                }
            }
        }
        // Eight messages in two milliseconds.
        let datagrams = work.calls_per_second() * DATAGRAMS_PER_CALL;
        assert!((7_900.0..=8_100.0).contains(&datagrams), "{datagrams}");
    }

    /// Each of two workers reads half of its own messages and as many of the other's, and receives the rest as
    /// handoff messages.
    #[test]
    fn handed_off_messages_reduce_the_call_rate() {
        let mut work = ServiceTime::new(2);
        let first = Time::from_secs(1);
        let mut now = first;
        // A datagram takes a tenth of a millisecond: a call has sixteen, with three that are handed off.
        for _ in 0..200 {
            for message in 0..9 {
                work.record_message(first, true, now);
                let datagrams = match message {
                    0 => {
                        work.record_new_call();
                        3
                    }
                    1..6 => 2,
                    _ => {
                        work.record_no_reply();
                        1
                    }
                };
                now += Duration::from_micros(100) * datagrams;
            }
        }
        let calls = work.calls_per_second();
        assert!((620.0..=630.0).contains(&calls), "{calls}");
    }

    #[test]
    fn each_kind_of_message_counts_its_datagrams() {
        let run = |kind: fn(&mut ServiceTime)| {
            let mut work = ServiceTime::new(1);
            for number in 1..1_000 {
                work.record_message(Time::from_millis(1), true, Time::from_millis(number));
                kind(&mut work);
            }
            work.calls_per_second() * DATAGRAMS_PER_CALL
        };
        let near = |value: f64, expected: f64| (value - expected).abs() < expected / 50.0;
        assert!(near(run(|_| {}), 2_000.0));
        assert!(near(run(ServiceTime::record_new_call), 3_000.0));
        assert!(near(run(ServiceTime::record_no_reply), 1_000.0));
        assert_eq!(ServiceTime::new(1).calls_per_second(), 0.0);
    }
}
