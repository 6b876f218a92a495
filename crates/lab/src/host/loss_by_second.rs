//! Lost packets of a stream by second, for plots of the loss over time.

use engine::Time;
use media::stats::Sequence;

/// Seconds that are kept; later losses count for the last one.
const MOST: usize = 3_600;

/// Lost packets by the second since the first packet.
#[derive(Clone, Debug, Default)]
pub(super) struct LossBySecond {
    first: Option<Time>,
    lost: u64,
    seconds: Vec<i64>,
}

impl LossBySecond {
    /// The next packet is of another source, which begins without losses.
    pub(super) fn begin_source(&mut self) {
        self.lost = 0;
    }

    /// After a packet that arrived at this time.
    pub(super) fn note(&mut self, at: Time, sequence: &Sequence) {
        self.add(at, sequence.expected().saturating_sub(sequence.unique()));
    }

    /// `lost` packets are missing among those until now.
    fn add(&mut self, at: Time, lost: u64) {
        let first = *self.first.get_or_insert(at);
        if lost == self.lost {
            return;
        }
        let second = (at.since(first).as_secs() as usize).min(MOST - 1);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        // A packet that came late is no longer missing.
        self.seconds[second] += lost as i64 - self.lost as i64;
        self.lost = lost;
    }

    /// The losses; empty without any.
    pub(super) fn seconds(&self) -> Vec<u32> {
        let lost = |lost: &i64| u32::try_from((*lost).max(0)).unwrap_or(u32::MAX);
        match self.seconds.iter().any(|lost| *lost > 0) {
            true => self.seconds.iter().map(lost).collect(),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_count_in_their_second() {
        let mut losses = LossBySecond::default();
        let at = |ms: u64| Time::from_millis(10_000 + ms);
        losses.add(at(0), 0);
        losses.add(at(900), 2);
        losses.add(at(1_100), 2);
        losses.add(at(2_500), 5);
        // One of them was only late.
        losses.add(at(2_520), 4);
        assert_eq!(losses.seconds(), [2, 0, 2]);
        // Another source; the losses of the first one stay.
        losses.begin_source();
        losses.add(at(3_100), 0);
        losses.add(at(3_200), 1);
        assert_eq!(losses.seconds(), [2, 0, 2, 1]);
        losses.add(at(9_000_000), 6);
        assert_eq!(losses.seconds().len(), MOST);
        assert!(LossBySecond::default().seconds().is_empty());
    }
}
