//! State of the PIN entry of one caller.

use config::{MAX_PIN, Pin};
use core::time::Duration;
use engine::timers::TimerKey;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// State of the PIN entry of one caller.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PinEntry {
    pub(super) digits: SmallVec<[u8; MAX_PIN]>,
    pub(super) wrong_pins: u8,
    pub(super) timer: Option<TimerKey>,
}

/// Result of a digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DigitResult {
    Incomplete,
    Correct,
    Wrong,
}

impl PinEntry {
    /// Takes the timer, to be cancelled.
    pub(crate) fn take_timer(&mut self) -> Option<TimerKey> {
        self.timer.take()
    }

    /// Adds a digit. A PIN is complete with `#` or by its length.
    pub(super) fn add_digit(&mut self, digit: u8, pin: &Pin) -> DigitResult {
        if digit != b'#' {
            self.digits.push(digit);
        }
        // A `#` after a PIN that was complete by its length is ignored.
        let is_complete = match digit {
            b'#' => !self.digits.is_empty(),
            _ => self.digits.len() >= pin.digits(),
        };
        if !is_complete {
            return DigitResult::Incomplete;
        }
        let is_correct = pin.matches(&self.digits);
        self.digits.clear();
        match is_correct {
            true => DigitResult::Correct,
            false => {
                self.wrong_pins += 1;
                DigitResult::Wrong
            }
        }
    }
}

/// Number of wrong PINs at which the call ends.
pub(super) const MAX_ATTEMPTS: u8 = 3;

/// Time limit for all attempts together.
pub(super) const PIN_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_complete_by_its_length_or_a_hash() {
        let pin = Pin::new("2468").unwrap();
        let dial = |digits: &[u8]| {
            let mut entry = PinEntry::default();
            let result: Vec<DigitResult> = digits
                .iter()
                .map(|&digit| entry.add_digit(digit, &pin))
                .collect();
            (result, entry.wrong_pins)
        };
        use DigitResult::{Correct, Incomplete, Wrong};
        assert_eq!(
            dial(b"2468"),
            (vec![Incomplete, Incomplete, Incomplete, Correct], 0)
        );
        assert_eq!(
            dial(b"246#"),
            (vec![Incomplete, Incomplete, Incomplete, Wrong], 1)
        );
        assert_eq!(
            dial(b"2469#2468").0[3..],
            [
                Wrong, Incomplete, Incomplete, Incomplete, Incomplete, Correct
            ]
        );
        // A `#` alone is no attempt.
        assert_eq!(dial(b"###"), (vec![Incomplete; 3], 0));
        assert_eq!(dial(b"*468").1, 1);
    }
}
