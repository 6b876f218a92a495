//! A value with its interval, and the arithmetic of the plan.

use serde::{Deserialize, Serialize};

/// A value that is not negative, with the interval in which it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// Lower end, at most the value.
    pub low: f64,
    /// Upper end, at least the value.
    pub high: f64,
}

/// The value of an estimate, or an end of its interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalEnd {
    /// The lower end.
    Low,
    /// The value.
    Value,
    /// The upper end.
    High,
}

impl Estimate {
    /// Computes value and ends, each by itself; an end that is on the wrong side of the value is the value.
    pub fn each(of: impl Fn(IntervalEnd) -> f64) -> Estimate {
        let value = of(IntervalEnd::Value);
        Estimate {
            value,
            low: of(IntervalEnd::Low).min(value),
            high: of(IntervalEnd::High).max(value),
        }
    }

    /// The value, or an end.
    pub const fn at(self, end: IntervalEnd) -> f64 {
        match end {
            IntervalEnd::Low => self.low,
            IntervalEnd::Value => self.value,
            IntervalEnd::High => self.high,
        }
    }

    /// A value that is known.
    pub const fn exact(value: f64) -> Estimate {
        Estimate {
            value,
            low: value,
            high: value,
        }
    }

    /// Applies a function that does not fall, such as rounding up, to value and ends.
    #[must_use]
    pub fn map(self, rising: impl Fn(f64) -> f64) -> Estimate {
        Estimate {
            value: rising(self.value),
            low: rising(self.low),
            high: rising(self.high),
        }
    }

    /// Times a factor that is not negative.
    #[must_use]
    pub fn times(self, factor: f64) -> Estimate {
        self.map(|value| value * factor)
    }

    /// The product: the ends are those of both.
    #[must_use]
    pub fn by(self, other: Estimate) -> Estimate {
        Estimate {
            value: self.value * other.value,
            low: self.low * other.low,
            high: self.high * other.high,
        }
    }

    /// The sum: the ends are those of both, which is wider than for independent errors.
    #[must_use]
    pub fn plus(self, other: Estimate) -> Estimate {
        Estimate {
            value: self.value + other.value,
            low: self.low + other.low,
            high: self.high + other.high,
        }
    }

    /// The larger one, for value and ends.
    #[must_use]
    pub fn or_larger(self, other: Estimate) -> Estimate {
        Estimate {
            value: self.value.max(other.value),
            low: self.low.max(other.low),
            high: self.high.max(other.high),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_keeps_the_value_inside() {
        let a = Estimate {
            value: 2.0,
            low: 1.0,
            high: 4.0,
        };
        let b = Estimate {
            value: 3.0,
            low: 3.0,
            high: 5.0,
        };
        let all = [
            a.by(b),
            a.plus(b),
            a.or_larger(b),
            a.times(0.5),
            a.map(f64::ceil),
        ];
        assert!(all.iter().all(|e| e.low <= e.value && e.value <= e.high));
        assert_eq!((a.by(b).low, a.by(b).high), (3.0, 20.0));
        assert_eq!((a.plus(b).value, a.or_larger(b).high), (5.0, 5.0));
        assert_eq!(Estimate::each(|end| a.at(end)), a);
        let wrong = Estimate::each(|end| if end == IntervalEnd::Low { 3.0 } else { 2.0 });
        assert_eq!((wrong.low, wrong.value, wrong.high), (2.0, 2.0, 2.0));
    }
}
