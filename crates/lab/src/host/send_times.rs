//! Lateness of sent RTP packets: from the due time of each to the time at which its batch had been passed to the
//! kernel.

use engine::Time;
use hdrhistogram::Histogram;

/// Longest lateness that is recorded, microseconds; a later packet counts as this late.
const LONGEST_US: u64 = 60_000_000;

/// Lateness of the packets that a host has sent. The due times of a batch are kept until the driver has flushed it, so
/// that the system calls themselves count: the lateness is an upper bound for all packets but the last of a batch.
#[derive(Debug, Default)]
pub struct SendTimes {
    /// Lateness in microseconds; `None`: not recorded, as in virtual time.
    late: Option<Histogram<u64>>,
    /// Due times of packets that are not flushed yet; the allocation is reused.
    due: Vec<Time>,
    skipped: u64,
}

impl SendTimes {
    /// An empty record.
    pub fn new() -> SendTimes {
        SendTimes {
            // Three digits; the bounds are valid, and without a histogram nothing would be recorded.
            late: Histogram::new_with_bounds(1, LONGEST_US, 3).ok(),
            due: Vec::new(),
            skipped: 0,
        }
    }

    /// A packet that was due at `at` is among the outputs.
    pub(crate) fn queued(&mut self, at: Time) {
        if self.late.is_some() {
            self.due.push(at);
        }
    }

    /// Packets were not sent because they were later than a sender may be.
    pub(crate) fn skipped(&mut self, count: u64) {
        self.skipped += count;
    }

    /// All queued packets have been passed to the kernel by `now`.
    pub(crate) fn flushed(&mut self, now: Time) {
        let Some(late) = &mut self.late else { return };
        for at in self.due.drain(..) {
            late.saturating_record(now.0.saturating_sub(at.0) / 1_000);
        }
    }

    /// Adds the packets of another host.
    pub fn add(&mut self, other: &SendTimes) {
        self.skipped += other.skipped;
        match (&mut self.late, &other.late) {
            // Both have the same bounds.
            (Some(late), Some(other)) => drop(late.add(other)),
            (None, Some(other)) => self.late = Some(other.clone()),
            (_, None) => {}
        }
    }

    /// Packets that were sent.
    pub fn packets(&self) -> u64 {
        self.late.as_ref().map_or(0, Histogram::len)
    }

    /// Packets that were skipped because they were too late.
    pub fn skipped_packets(&self) -> u64 {
        self.skipped
    }

    /// Mean lateness, milliseconds; `None` without packets.
    pub fn mean_ms(&self) -> Option<f64> {
        let late = self.late.as_ref().filter(|late| !late.is_empty())?;
        Some(late.mean() / 1e3)
    }

    /// Lateness at a quantile, milliseconds; `None` without packets.
    pub fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        let late = self.late.as_ref().filter(|late| !late.is_empty())?;
        Some(late.value_at_quantile(quantile) as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_counts_from_the_due_time_to_the_flush() {
        let mut times = SendTimes::new();
        for packet in 0..100u64 {
            times.queued(Time(packet * 20_000_000));
            // The first packet of each ten leaves late.
            let late = if packet % 10 == 0 { 3_000_000 } else { 100_000 };
            times.flushed(Time(packet * 20_000_000 + late));
        }
        times.skipped(2);
        let near = |quantile, ms: f64| {
            let is = times.quantile_ms(quantile).unwrap_or_default();
            assert!((is - ms).abs() < ms / 100.0, "{is} instead of {ms}");
        };
        near(0.5, 0.1);
        near(0.99, 3.0);
        let mean = times.mean_ms().unwrap();
        assert!((mean - 0.39).abs() < 0.002, "{mean}");
        let mut both = SendTimes::default();
        both.add(&times);
        both.add(&times);
        assert_eq!((both.packets(), both.skipped_packets()), (200, 4));
        assert_eq!(both.quantile_ms(0.5), times.quantile_ms(0.5));
    }

    #[test]
    fn nothing_is_kept_in_virtual_time() {
        let mut times = SendTimes::default();
        times.queued(Time::from_secs(1));
        assert!(times.due.is_empty() && times.quantile_ms(0.5).is_none());
    }
}
