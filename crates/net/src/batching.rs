//! Adaptive batching: the delays by which reception of signalling and media is put off to process more packets at
//! once.

use engine::Time;
use std::time::Duration;

/// Averaging time of the thread's load.
const AVERAGING: Duration = Duration::from_millis(100);
/// Load below which signalling is not delayed: there is spare CPU time.
const MIN_LOAD: f64 = 0.2;
/// Load at which signalling gets the longest delay.
const FULL_LOAD: f64 = 0.4;

/// The signalling load of one thread, and the resulting batching delay.
#[derive(Debug)]
pub(crate) struct SignallingBatcher {
    max_delay: Duration,
    /// Share of time in which signalling kept the thread busy, 0 to 1, averaged.
    load: f64,
    /// End of the last turn.
    last_ended: Time,
    /// Start of the last turn that received signalling.
    last_served: Option<Time>,
}

impl SignallingBatcher {
    pub(crate) fn new(max_delay: Duration) -> SignallingBatcher {
        SignallingBatcher {
            max_delay,
            load: 0.0,
            last_ended: Time(0),
            last_served: None,
        }
    }

    /// Time by which signalling may be delayed from now on.
    pub(crate) fn delay(&self, now: Time) -> Duration {
        let Some(last_served) = self.last_served else {
            return Duration::ZERO;
        };
        let window = self
            .max_delay
            .mul_f64(((self.load - MIN_LOAD) / (FULL_LOAD - MIN_LOAD)).clamp(0.0, 1.0));
        window.saturating_sub(now.since(last_served))
    }

    /// Records a turn that was busy from `woke` to `now`. `worked`: control had inputs. `signalled`: queued
    /// signalling was received, so a new delay begins. Timers and media alone do not extend the delay.
    pub(crate) fn end_turn(&mut self, woke: Time, now: Time, worked: bool, signalled: bool) {
        let span = now.since(self.last_ended).as_secs_f64();
        if span > 0.0 {
            let weight = (span / AVERAGING.as_secs_f64()).min(1.0);
            // Media is not delayed, so its share of the load does not show the savings of a delay.
            let busy = match worked {
                true => (now.since(woke).as_secs_f64() / span).min(1.0),
                false => 0.0,
            };
            self.load += weight * (busy - self.load);
        }
        self.last_ended = now;
        if signalled {
            self.last_served = Some(woke);
        }
    }
}

/// Packets per batch at which the delay reaches its maximum: larger batches hardly lower the cost per packet.
const FULL_BATCH: f64 = 8.0;

/// The media packet rate of one thread, and the resulting batching delay.
#[derive(Debug)]
pub(crate) struct MediaBatcher {
    max_delay: Duration,
    /// Packets per second, averaged.
    rate: f64,
    /// Start of the last turn that received media.
    last_served: Time,
}

impl MediaBatcher {
    pub(crate) fn new(max_delay: Duration) -> MediaBatcher {
        MediaBatcher {
            max_delay,
            rate: 0.0,
            last_served: Time(0),
        }
    }

    /// Time by which media may be delayed from now on: the maximum if [`FULL_BATCH`] packets arrive in it,
    /// proportionally less at lower rates.
    pub(crate) fn delay(&self, now: Time) -> Duration {
        if self.max_delay.is_zero() {
            return Duration::ZERO;
        }
        let expected = self.rate * self.max_delay.as_secs_f64();
        let window = self.max_delay.mul_f64((expected / FULL_BATCH).min(1.0));
        window.saturating_sub(now.since(self.last_served))
    }

    /// Records a turn that began at `woke` and received `packets`.
    pub(crate) fn end_turn(&mut self, woke: Time, packets: usize) {
        if packets == 0 || self.max_delay.is_zero() {
            return;
        }
        let span = woke.since(self.last_served).as_secs_f64();
        if span > 0.0 {
            let weight = (span / AVERAGING.as_secs_f64()).min(1.0);
            self.rate += weight * (packets as f64 / span - self.rate);
        }
        self.last_served = woke;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batcher after one second with `packets` per millisecond.
    fn media_batcher_at(packets: usize) -> (MediaBatcher, Time) {
        let mut batcher = MediaBatcher::new(Duration::from_millis(1));
        let mut now = Time(0);
        for _ in 0..1_000 {
            now += Duration::from_millis(1);
            batcher.end_turn(now, packets);
        }
        (batcher, now)
    }

    #[test]
    fn media_delay_grows_with_the_packet_rate() {
        let (batcher, now) = media_batcher_at(50);
        assert_eq!(batcher.delay(now), Duration::from_millis(1));
        let later = now + Duration::from_micros(400);
        assert_eq!(batcher.delay(later), Duration::from_micros(600));
        assert_eq!(
            batcher.delay(now + Duration::from_millis(1)),
            Duration::ZERO
        );
        // One packet per millisecond: an eighth.
        let (batcher, now) = media_batcher_at(1);
        let delay = batcher.delay(now);
        assert!(
            delay.abs_diff(Duration::from_micros(125)) < Duration::from_micros(5),
            "{delay:?}"
        );
    }

    #[test]
    fn single_stream_is_not_delayed() {
        let mut batcher = MediaBatcher::new(Duration::from_millis(1));
        let mut now = Time(0);
        for _ in 0..100 {
            now += Duration::from_millis(20);
            batcher.end_turn(now, 1);
        }
        assert!(batcher.delay(now) < Duration::from_micros(10));
        let off = MediaBatcher::new(Duration::ZERO);
        assert_eq!(off.delay(now), Duration::ZERO);
    }

    const MAX_DELAY: Duration = Duration::from_millis(6);

    /// A batcher after one second with turns of `busy` microseconds in each millisecond.
    fn loaded(busy: u64) -> (SignallingBatcher, Time) {
        let mut batcher = SignallingBatcher::new(MAX_DELAY);
        let mut now = Time(0);
        for _ in 0..1_000 {
            let woke = now + Duration::from_micros(1_000 - busy);
            now += Duration::from_millis(1);
            batcher.end_turn(woke, now, true, true);
        }
        (batcher, now)
    }

    #[test]
    fn idle_thread_has_no_delay() {
        let (batcher, now) = loaded(1);
        assert_eq!(batcher.delay(now), Duration::ZERO);
        // A load of one sixth is below the threshold.
        let (batcher, now) = loaded(166);
        assert_eq!(batcher.delay(now), Duration::ZERO);
        assert_eq!(
            SignallingBatcher::new(MAX_DELAY).delay(Time(1)),
            Duration::ZERO
        );
    }

    #[test]
    fn delay_grows_with_load_up_to_the_limit() {
        let (batcher, now) = loaded(500);
        assert_eq!(batcher.delay(now), MAX_DELAY - Duration::from_micros(500));
        assert_eq!(batcher.delay(now + MAX_DELAY), Duration::ZERO);
        let (batcher, now) = loaded(300);
        let half = batcher.delay(now) + Duration::from_micros(300);
        assert!(half > MAX_DELAY / 3 && half < MAX_DELAY * 2 / 3, "{half:?}");
    }

    #[test]
    fn timers_do_not_extend_the_delay() {
        let (mut batcher, mut now) = loaded(500);
        // Timers fire each millisecond, for longer than the longest delay.
        let end = now + MAX_DELAY;
        while now < end {
            let woke = now + Duration::from_micros(500);
            now += Duration::from_millis(1);
            batcher.end_turn(woke, now, true, false);
        }
        assert_eq!(batcher.delay(now), Duration::ZERO);
    }

    #[test]
    fn media_load_causes_no_delay() {
        let mut batcher = SignallingBatcher::new(MAX_DELAY);
        let mut now = Time(0);
        for turn in 0..1_000 {
            let woke = now + Duration::from_micros(500);
            now += Duration::from_millis(1);
            batcher.end_turn(woke, now, turn == 999, turn == 999);
        }
        assert!(batcher.delay(now) < Duration::from_millis(1));
    }

    #[test]
    fn overdue_signalling_is_not_delayed() {
        let (mut batcher, now) = loaded(500);
        let later = now + Duration::from_secs(1);
        batcher.end_turn(later, later, false, false);
        assert_eq!(batcher.delay(later), Duration::ZERO);
    }
}
