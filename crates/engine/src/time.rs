//! Time of engines: nanoseconds since the driver's start, and deadlines with their reasons.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// A point in time: nanoseconds since the driver started. Plain data, so that it can be recorded and replayed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// The driver's start.
    pub const ZERO: Time = Time(0);
    /// Later than any time that a driver reaches.
    pub const NEVER: Time = Time(u64::MAX);

    /// The time `ms` milliseconds after the start.
    pub const fn from_millis(ms: u64) -> Time {
        Time(ms.saturating_mul(1_000_000))
    }

    /// The time `us` microseconds after the start.
    pub const fn from_micros(us: u64) -> Time {
        Time(us.saturating_mul(1_000))
    }

    /// The time `s` seconds after the start.
    pub const fn from_secs(s: u64) -> Time {
        Time(s.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the start.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Seconds since the start, with fraction.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The duration since `earlier`; zero if `earlier` is later than this time.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, span: Duration) -> Time {
        Time(
            self.0
                .saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Appends a decimal number with leading zeros up to `width` digits, at most 20. Logs write lines for each call or
/// packet: this does without the general formatting of the standard library.
pub fn push_digits(text: &mut String, number: u64, width: usize) {
    // 20 digits are the most of 64 bits.
    let mut digits = [b'0'; 20];
    let (mut rest, mut count) = (number, 0);
    for digit in digits.iter_mut().rev() {
        if rest == 0 && count >= width.max(1) {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
    }
    let written = digits.get(digits.len() - count..).unwrap_or_default();
    text.extend(written.iter().map(|digit| char::from(*digit)));
}

impl fmt::Display for Time {
    /// Seconds with all nine digits, so that a log of events is exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// The time of an engine's next call and its reason, by which frequent wake-ups can be diagnosed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The time at which [`crate::Input::Timeout`] is due.
    pub at: Time,
    /// The reason, in a word or two.
    pub reason: &'static str,
}

impl Deadline {
    /// A deadline at `at` for `reason`.
    pub const fn new(at: Time, reason: &'static str) -> Deadline {
        Deadline { at, reason }
    }

    /// The earlier of two optional deadlines.
    pub fn earlier(a: Option<Deadline>, b: Option<Deadline>) -> Option<Deadline> {
        match (a, b) {
            (Some(a), Some(b)) if b.at < a.at => Some(b),
            (Some(a), _) => Some(a),
            (None, b) => b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::push_digits;

    #[test]
    fn digits_are_those_of_the_standard_library() {
        for (number, width) in [
            (0, 0),
            (0, 1),
            (7, 2),
            (42, 2),
            (123, 2),
            (5, 9),
            (u64::MAX, 1),
            (u64::MAX, 20),
            (10, 1),
        ] {
            let mut text = "x".to_owned();
            push_digits(&mut text, number, width);
            assert_eq!(text, format!("x{number:0width$}"));
        }
    }
}
