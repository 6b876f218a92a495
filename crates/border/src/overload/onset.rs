//! What a thread that always has something to do tells of itself, and a flood in its first moments.

use core::time::Duration;
use engine::Time;

/// Datagrams of a message, in and out, by which its work is counted.
const MESSAGE: u32 = 2;
/// And of a call of seven messages, with the 100 (Trying) to its caller.
const CALL: f64 = 13.0;
/// Of these come in.
const IN: f64 = 6.0;
/// A message takes no longer: the thread was kept from running.
const LONGEST: Duration = Duration::from_millis(10);
/// So much work tells how fast it is done.
const ENOUGH: u64 = 40;
/// What was measured in so long is worth half of what comes then.
const MEMORY: Duration = Duration::from_millis(500);

/// How fast a thread works, measured while the next message waits already.
#[derive(Debug)]
pub(super) struct Work {
    /// What a call takes, with what is handed on of others.
    call: f64,
    /// When the last messages were dealt with, and what work they are: those of one turn of a driver have the same time.
    last: Time,
    units: u32,
    /// The same of those before, until it is known whether the thread was busy in between.
    before: Option<(Time, u32)>,
    /// Work done so far, and how long it took.
    done: u64,
    busy: Duration,
}

impl Work {
    /// Of one of so many workers. Which of them a message comes to is chance: what it reads of its own calls and hands on of
    /// others' is together as much as comes in of a call, and what others hand to it was read by them.
    pub(super) fn new(workers: u8) -> Work {
        let others = 1.0 - 1.0 / f64::from(workers.max(1));
        Work {
            call: CALL + IN * others,
            last: Time::ZERO,
            units: 0,
            before: None,
            done: 0,
            busy: Duration::ZERO,
        }
    }

    /// A message that came at `arrived` is dealt with; where `waits` is not stated, the thread may have waited, too.
    pub(super) fn comes(&mut self, arrived: Time, waits: bool, now: Time) {
        if now > self.last {
            self.before = Some((self.last, self.units));
            (self.last, self.units) = (now, 0);
        }
        // One that waited tells it of all that were dealt with at its time, whichever socket they came to.
        if let Some((last, units)) = self.before.filter(|(last, _)| waits && arrived <= *last) {
            self.before = None;
            self.done += u64::from(units);
            self.busy += now.since(last).min(LONGEST);
            if self.busy > MEMORY {
                (self.done, self.busy) = (self.done / 2, self.busy / 2);
            }
        }
        self.units += MESSAGE;
    }

    /// The message begins a call: its caller is told that it is tried.
    pub(super) fn begins_call(&mut self) {
        self.units += 1;
    }

    /// Nothing is sent for this message.
    pub(super) fn ends_here(&mut self) {
        self.units = self.units.saturating_sub(1);
    }

    /// Calls a second that could be taken, each with all of its messages; 0: not known.
    pub(super) fn calls(&self) -> f64 {
        match self.done >= ENOUGH && !self.busy.is_zero() {
            true => self.done as f64 / self.call / self.busy.as_secs_f64(),
            false => 0.0,
        }
    }
}

/// New calls are counted in parts of this length, by when they came.
const PART: Duration = Duration::from_millis(5);
/// A flood lasts through so many of them: what stood still sends what it owes in less.
const PARTS: usize = 3;
/// And has this many times as many calls as can be taken in each of them, beyond what chance may do.
const TIMES: f64 = 2.0;
/// Standard deviations of chance.
const CHANCE: f64 = 3.0;

/// New calls in the last moments.
#[derive(Debug, Default)]
pub(super) struct Onset {
    /// When the part began that is being counted.
    since: Time,
    number: u32,
    /// The parts before that, one after the other.
    parts: [u32; PARTS],
}

impl Onset {
    /// A new call came at `arrived`.
    pub(super) fn comes(&mut self, arrived: Time) {
        let past = arrived.since(self.since);
        if past >= PART {
            self.parts.rotate_left(1);
            if let Some(last) = self.parts.last_mut() {
                *last = self.number;
            }
            self.number = 0;
            if past >= PART * 2 {
                // Nothing came in at least one of them.
                self.parts = [0; PARTS];
                self.since = arrived;
            } else {
                self.since += PART;
            }
        }
        self.number += 1;
    }

    /// Whether it is a flood where `possible` calls a second can be taken.
    pub(super) fn is_flood(&self, possible: f64) -> bool {
        let usual = possible * PART.as_secs_f64();
        let most = usual * TIMES + CHANCE * (usual * TIMES).sqrt();
        possible > 0.0 && self.parts.iter().all(|part| f64::from(*part) > most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `calls` a second for so many milliseconds from `start` on, evenly.
    fn evenly(onset: &mut Onset, calls: u64, start: u64, milliseconds: u64) {
        for number in 0..calls * milliseconds / 1_000 {
            onset.comes(Time(start * 1_000_000 + number * 1_000_000_000 / calls));
        }
    }

    #[test]
    fn a_flood_is_known_within_moments() {
        let mut onset = Onset::default();
        evenly(&mut onset, 7_650, 1_000, 21);
        assert!(onset.is_flood(765.0));
        assert!(
            !onset.is_flood(0.0),
            "nothing is known of what can be taken"
        );
    }

    /// What is more by a half, or by chance, shows by how long messages wait.
    #[test]
    fn a_little_too_much_is_no_flood() {
        let mut onset = Onset::default();
        evenly(&mut onset, 1_200, 1_000, 500);
        assert!(!onset.is_flood(765.0));
    }

    /// Callers who stood still for 300 ms owe three hundred calls, and go on as before.
    #[test]
    fn a_heap_is_no_flood() {
        let mut onset = Onset::default();
        evenly(&mut onset, 700, 1_000, 500);
        for number in 0..300 {
            onset.comes(Time(1_800_000_000 + number * 20_000));
            assert!(!onset.is_flood(765.0));
        }
        for step in 0..100 {
            evenly(&mut onset, 700, 1_807 + step * 10, 10);
            assert!(!onset.is_flood(765.0));
        }
    }

    /// A thread that stood still finds a long queue, whose calls came no faster than before.
    #[test]
    fn a_standstill_of_the_thread_is_no_flood_and_no_work() {
        let mut work = Work::new(1);
        let mut onset = Onset::default();
        let mut now = 1_000_000_000;
        for number in 0..300 {
            // Each came a millisecond after the one before; after the fiftieth, the thread was kept from running for 300 ms.
            let came = 1_000_000_000 + number * 1_000_000;
            now = now.max(came) + 500_000;
            if number == 50 {
                now += 300_000_000;
            }
            work.comes(Time(came), now - came > 10_000_000, Time(now));
            onset.comes(Time(came));
            assert!(!onset.is_flood(work.calls()), "{number}");
        }
        // Two units in half a millisecond, of thirteen that a call takes.
        let calls = work.calls();
        assert!((300.0..=320.0).contains(&calls), "{calls}");
    }

    /// A driver gives what it read from several sockets at one time; at some of them nothing waits.
    #[test]
    fn what_is_read_in_one_turn_counts_as_a_whole() {
        let mut work = Work::new(1);
        let first = Time::from_secs(1);
        for turn in 1..200 {
            let now = first + Duration::from_millis(2) * turn;
            for number in 0..8 {
                match number % 2 {
                    0 => work.comes(first, true, now),
                    _ => work.comes(now, false, now),
                }
            }
        }
        // Eight messages in two milliseconds.
        let units = work.calls() * CALL;
        assert!((7_900.0..=8_100.0).contains(&units), "{units}");
    }

    /// Of two workers one reads half of its own messages and as many of the other's, and has the rest handed to it.
    #[test]
    fn what_is_handed_on_of_others_is_work_and_costs_calls() {
        let mut work = Work::new(2);
        let first = Time::from_secs(1);
        let mut now = first;
        // Each datagram takes a tenth of a millisecond: sixteen of them are a call, with three that are handed on.
        for _ in 0..200 {
            for message in 0..9 {
                work.comes(first, true, now);
                let datagrams = match message {
                    0 => {
                        work.begins_call();
                        3
                    }
                    1..6 => 2,
                    _ => {
                        work.ends_here();
                        1
                    }
                };
                now += Duration::from_micros(100) * datagrams;
            }
        }
        let calls = work.calls();
        assert!((620.0..=630.0).contains(&calls), "{calls}");
    }

    #[test]
    fn each_kind_of_message_counts_for_what_it_is() {
        let run = |kind: fn(&mut Work)| {
            let mut work = Work::new(1);
            for number in 1..1_000 {
                work.comes(Time::from_millis(1), true, Time::from_millis(number));
                kind(&mut work);
            }
            work.calls() * CALL
        };
        let near = |value: f64, wanted: f64| (value - wanted).abs() < wanted / 50.0;
        assert!(near(run(|_| {}), 2_000.0));
        assert!(near(run(Work::begins_call), 3_000.0));
        assert!(near(run(Work::ends_here), 1_000.0));
        assert_eq!(Work::new(1).calls(), 0.0);
    }
}
