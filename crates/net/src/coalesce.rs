//! How long signalling, and media, may wait for company.

use engine::Time;
use std::time::Duration;

/// Over how long the thread's load is averaged.
const WINDOW: Duration = Duration::from_millis(100);
/// Share of time below which signalling does not wait at all: there is processor time to spare.
const FROM: f64 = 0.2;
/// Share of time at which signalling waits for as long as it may.
const FULL: f64 = 0.4;

/// The load of one thread, and the pause that it justifies.
#[derive(Debug)]
pub(crate) struct Coalesce {
    longest: Duration,
    /// Share of time for which signalling kept the thread busy, 0 to 1, averaged.
    load: f64,
    /// When the last turn ended.
    ended: Time,
    /// When the last turn that dealt with signalling began.
    served: Option<Time>,
}

impl Coalesce {
    pub(crate) fn new(longest: Duration) -> Coalesce {
        Coalesce {
            longest,
            load: 0.0,
            ended: Time(0),
            served: None,
        }
    }

    /// How long signalling may be left waiting from now on.
    pub(crate) fn pause(&self, now: Time) -> Duration {
        let Some(served) = self.served else {
            return Duration::ZERO;
        };
        let window = self
            .longest
            .mul_f64(((self.load - FROM) / (FULL - FROM)).clamp(0.0, 1.0));
        window.saturating_sub(now.since(served))
    }

    /// A turn was busy from `woke` to `now`; `worked`: control had something to do; `signalled`: signalling that waited was
    /// taken in, after which more of it may wait anew. Timers and media alone postpone nothing.
    pub(crate) fn turn(&mut self, woke: Time, now: Time, worked: bool, signalled: bool) {
        let span = now.since(self.ended).as_secs_f64();
        if span > 0.0 {
            let weight = (span / WINDOW.as_secs_f64()).min(1.0);
            // Media does not wait, so its share of the load says nothing about what waiting would save.
            let busy = match worked {
                true => (now.since(woke).as_secs_f64() / span).min(1.0),
                false => 0.0,
            };
            self.load += weight * (busy - self.load);
        }
        self.ended = now;
        if signalled {
            self.served = Some(woke);
        }
    }
}

/// Packets that a pause has to gather before it is as long as it may be: more save hardly anything per packet.
const COMPANY: f64 = 8.0;

/// The rate of media on one thread, and the pause that it justifies.
#[derive(Debug)]
pub(crate) struct Gather {
    longest: Duration,
    /// Packets a second, averaged.
    rate: f64,
    /// When the last turn that had media began.
    served: Time,
}

impl Gather {
    pub(crate) fn new(longest: Duration) -> Gather {
        Gather {
            longest,
            rate: 0.0,
            served: Time(0),
        }
    }

    /// How long media may be left waiting from now on: all that is allowed where that brings [`COMPANY`] packets together,
    /// less where fewer come.
    pub(crate) fn pause(&self, now: Time) -> Duration {
        if self.longest.is_zero() {
            return Duration::ZERO;
        }
        let gathered = self.rate * self.longest.as_secs_f64();
        let window = self.longest.mul_f64((gathered / COMPANY).min(1.0));
        window.saturating_sub(now.since(self.served))
    }

    /// A turn that began at `woke` took in so many packets.
    pub(crate) fn turn(&mut self, woke: Time, packets: usize) {
        if packets == 0 || self.longest.is_zero() {
            return;
        }
        let span = woke.since(self.served).as_secs_f64();
        if span > 0.0 {
            let weight = (span / WINDOW.as_secs_f64()).min(1.0);
            self.rate += weight * (packets as f64 / span - self.rate);
        }
        self.served = woke;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many packets a millisecond, for a second.
    fn gathered(packets: usize) -> (Gather, Time) {
        let mut gather = Gather::new(Duration::from_millis(1));
        let mut now = Time(0);
        for _ in 0..1_000 {
            now += Duration::from_millis(1);
            gather.turn(now, packets);
        }
        (gather, now)
    }

    #[test]
    fn media_waits_for_company_where_there_is_some() {
        let (gather, now) = gathered(50);
        assert_eq!(gather.pause(now), Duration::from_millis(1));
        let later = now + Duration::from_micros(400);
        assert_eq!(gather.pause(later), Duration::from_micros(600));
        assert_eq!(gather.pause(now + Duration::from_millis(1)), Duration::ZERO);
        // One packet a millisecond: an eighth.
        let (gather, now) = gathered(1);
        let pause = gather.pause(now);
        assert!(
            pause.abs_diff(Duration::from_micros(125)) < Duration::from_micros(5),
            "{pause:?}"
        );
    }

    #[test]
    fn a_single_stream_does_not_wait() {
        let mut gather = Gather::new(Duration::from_millis(1));
        let mut now = Time(0);
        for _ in 0..100 {
            now += Duration::from_millis(20);
            gather.turn(now, 1);
        }
        assert!(gather.pause(now) < Duration::from_micros(10));
        let off = Gather::new(Duration::ZERO);
        assert_eq!(off.pause(now), Duration::ZERO);
    }

    const LONGEST: Duration = Duration::from_millis(6);

    /// Turns of `busy` microseconds each millisecond, for a second.
    fn after(busy: u64) -> (Coalesce, Time) {
        let mut coalesce = Coalesce::new(LONGEST);
        let mut now = Time(0);
        for _ in 0..1_000 {
            let woke = now + Duration::from_micros(1_000 - busy);
            now += Duration::from_millis(1);
            coalesce.turn(woke, now, true, true);
        }
        (coalesce, now)
    }

    #[test]
    fn an_idle_thread_answers_at_once() {
        let (coalesce, now) = after(1);
        assert_eq!(coalesce.pause(now), Duration::ZERO);
        // Nor does one that is busy for a sixth of the time.
        let (coalesce, now) = after(166);
        assert_eq!(coalesce.pause(now), Duration::ZERO);
        assert_eq!(Coalesce::new(LONGEST).pause(Time(1)), Duration::ZERO);
    }

    #[test]
    fn a_busy_thread_waits_up_to_the_limit() {
        let (coalesce, now) = after(500);
        assert_eq!(coalesce.pause(now), LONGEST - Duration::from_micros(500));
        assert_eq!(coalesce.pause(now + LONGEST), Duration::ZERO);
        let (coalesce, now) = after(300);
        let half = coalesce.pause(now) + Duration::from_micros(300);
        assert!(half > LONGEST / 3 && half < LONGEST * 2 / 3, "{half:?}");
    }

    #[test]
    fn timers_postpone_nothing() {
        let (mut coalesce, mut now) = after(500);
        // Timers fire each millisecond, for longer than signalling may wait.
        let end = now + LONGEST;
        while now < end {
            let woke = now + Duration::from_micros(500);
            now += Duration::from_millis(1);
            coalesce.turn(woke, now, true, false);
        }
        assert_eq!(coalesce.pause(now), Duration::ZERO);
    }

    #[test]
    fn media_is_no_reason_to_wait() {
        let mut coalesce = Coalesce::new(LONGEST);
        let mut now = Time(0);
        for turn in 0..1_000 {
            let woke = now + Duration::from_micros(500);
            now += Duration::from_millis(1);
            coalesce.turn(woke, now, turn == 999, turn == 999);
        }
        assert!(coalesce.pause(now) < Duration::from_millis(1));
    }

    #[test]
    fn what_is_due_since_long_does_not_wait() {
        let (mut coalesce, now) = after(500);
        let later = now + Duration::from_secs(1);
        coalesce.turn(later, later, false, false);
        assert_eq!(coalesce.pause(later), Duration::ZERO);
    }
}
