//! Figures of events and records, with the precision that their sources have.

use core::fmt;

/// A figure with two decimals. Events compare exactly; floating-point numbers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hundredths(pub u64);

impl Hundredths {
    /// Rounds to the nearest hundredth; zero for negative values and NaN.
    pub fn of(value: f64) -> Hundredths {
        // A cast from a float saturates.
        Hundredths((value * 100.0).round() as u64)
    }

    /// The mean of two figures by their weights; this one if both are zero.
    pub(crate) fn mean(self, weight: u64, other: Hundredths, other_weight: u64) -> Hundredths {
        let sum = self.0.saturating_mul(weight);
        let sum = sum.saturating_add(other.0.saturating_mul(other_weight));
        match weight.saturating_add(other_weight) {
            0 => self,
            weights => Hundredths(sum / weights),
        }
    }
}

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// Mean interarrival jitter in milliseconds, with the decimals of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedJitter {
    /// Measured at packets, here or at a media node of Hornwork.
    Measured(Hundredths),
    /// Reported in whole milliseconds, as rtpengine does.
    Whole(u64),
}

impl ReportedJitter {
    /// A measured mean in milliseconds.
    pub fn measured(mean_ms: f64) -> ReportedJitter {
        ReportedJitter::Measured(Hundredths::of(mean_ms))
    }

    /// The value, without its precision.
    pub fn hundredths(self) -> Hundredths {
        match self {
            ReportedJitter::Measured(jitter) => jitter,
            ReportedJitter::Whole(ms) => Hundredths(ms.saturating_mul(100)),
        }
    }

    /// The mean of two figures by their weights; that of whole milliseconds is in whole milliseconds, too.
    pub(crate) fn mean(self, weight: u64, other: ReportedJitter, other_weight: u64) -> Self {
        let hundredths = self.hundredths();
        let mean = hundredths.mean(weight, other.hundredths(), other_weight);
        match (self, other) {
            (ReportedJitter::Whole(_), ReportedJitter::Whole(_)) => {
                ReportedJitter::Whole(mean.0.saturating_add(50) / 100)
            }
            _ => ReportedJitter::Measured(mean),
        }
    }
}

impl fmt::Display for ReportedJitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReportedJitter::Measured(jitter) => write!(f, "{jitter}"),
            ReportedJitter::Whole(ms) => write!(f, "{ms}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_has_the_decimals_of_its_source() {
        assert_eq!(ReportedJitter::measured(0.304).to_string(), "0.30");
        assert_eq!(ReportedJitter::Whole(1).to_string(), "1");
        assert_eq!(ReportedJitter::Whole(1).hundredths(), Hundredths(100));
    }

    #[test]
    fn mean_of_whole_milliseconds_is_whole() {
        let (one, four) = (ReportedJitter::Whole(1), ReportedJitter::Whole(4));
        assert_eq!(one.mean(3, four, 1), ReportedJitter::Whole(2));
        let measured = ReportedJitter::measured(2.0);
        let mean = ReportedJitter::Measured(Hundredths(150));
        assert_eq!(one.mean(1, measured, 1), mean);
        assert_eq!(one.mean(0, four, 0), one);
    }
}
