//! A histogram of fixed size with buckets of constant relative width.

/// Buckets per octave.
const STEPS: usize = 16;
/// Values below `2^LOW` share the first bucket.
const LOW: u32 = 10;
/// Values from `2^HIGH` on share the last bucket.
const HIGH: u32 = 38;
const BUCKETS: usize = (HIGH - LOW) as usize * STEPS + 2;

/// Counts values (nanoseconds) from about 1 microsecond to 270 s in 450 buckets; a quantile is within a bucket, at most
/// 6.3 %, of the true one and never above the largest value. Adding never allocates.
#[derive(Clone, Debug)]
pub struct LogHistogram {
    counts: Box<[u32; BUCKETS]>,
    total: u64,
    max: u64,
}

impl Default for LogHistogram {
    fn default() -> Self {
        LogHistogram {
            counts: Box::new([0; BUCKETS]),
            total: 0,
            max: 0,
        }
    }
}

impl LogHistogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        self.add_many(value, 1);
    }

    /// Counts a value several times.
    pub fn add_many(&mut self, value: u64, times: u64) {
        if let Some(count) = self.counts.get_mut(bucket(value)) {
            *count = count.saturating_add(u32::try_from(times).unwrap_or(u32::MAX));
        }
        self.total += times;
        self.max = self.max.max(value);
    }

    /// Reads the count of a value.
    pub(super) fn prefetch(&self, value: u64) -> u64 {
        self.counts
            .get(bucket(value))
            .map_or(0, |&count| u64::from(count))
    }

    /// Values counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The value below which the share `quantile` (0 to 1) of all values lies, interpolated in its bucket; `None` when
    /// empty.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let total: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        if total == 0 {
            return None;
        }
        let rank = quantile.clamp(0.0, 1.0) * total as f64;
        let mut below = 0u64;
        for (index, count) in self.counts.iter().enumerate() {
            let count = u64::from(*count);
            if count > 0 && (below + count) as f64 >= rank {
                let share = ((rank - below as f64) / count as f64).clamp(0.0, 1.0);
                let (low, high) = (lower_bound(index), lower_bound(index + 1));
                return Some((low + (high - low) * share).min(self.max as f64));
            }
            below += count;
        }
        None
    }
}

/// Index of the bucket of a value.
fn bucket(value: u64) -> usize {
    if value < 1 << LOW {
        return 0;
    }
    let octave = 63 - value.leading_zeros();
    if octave >= HIGH {
        return BUCKETS - 1;
    }
    // The four bits behind the leading one choose the step.
    let step = (value >> (octave - 4)) as usize & (STEPS - 1);
    1 + (octave - LOW) as usize * STEPS + step
}

fn lower_bound(index: usize) -> f64 {
    let Some(index) = index.checked_sub(1) else {
        return 0.0;
    };
    let octave = f64::from(1u32 << LOW) * 2f64.powi((index / STEPS) as i32);
    octave * (1.0 + (index % STEPS) as f64 / STEPS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous() {
        let mut last = 0;
        for exponent in 0..64u32 {
            for step in 0..64u64 {
                let value = (1u64 << exponent).saturating_add(step << exponent.saturating_sub(6));
                let index = bucket(value);
                assert!(
                    index == last || index == last + 1,
                    "{value}: {last} to {index}"
                );
                assert!(index < BUCKETS);
                last = index;
            }
        }
        for index in 1..BUCKETS - 1 {
            assert_eq!(bucket(lower_bound(index) as u64), index);
        }
    }

    #[test]
    fn quantiles() {
        let mut histogram = LogHistogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for value in 1..=10_000u64 {
            histogram.add(value * 1000);
        }
        for quantile in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let got = histogram.quantile(quantile).unwrap();
            let want = quantile * 1e7;
            assert!(
                (got - want).abs() / want < 0.032,
                "{quantile}: {got} for {want}"
            );
        }
        assert_eq!(histogram.total(), 10_000);
    }
}
