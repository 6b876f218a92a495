//! PIN entry of a conference: prompted by a tone, entered by digits. Until the PIN is correct the caller is in the
//! lobby, without audio in either direction.

use super::{ConferenceKey, JoinRefusal};
use crate::border::{Alarm, Core};
use crate::call::CallKey;
use config::{MAX_PIN, Pin};
use core::time::Duration;
use engine::timers::TimerKey;
use engine::{EventKind, Time};
use media::MediaCommand;
use media::conference::ParticipantCommand;
use sip::Endpoint;
use smallvec::SmallVec;

/// Number of wrong PINs at which the call ends.
const MAX_ATTEMPTS: u8 = 3;
/// Time limit for all attempts together.
const PIN_TIMEOUT: Duration = Duration::from_secs(30);

/// State of the PIN entry of one caller.
#[derive(Debug, Default)]
pub(crate) struct PinEntry {
    digits: SmallVec<[u8; MAX_PIN]>,
    wrong_pins: u8,
    timer: Option<TimerKey>,
}

/// Result of a digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DigitResult {
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
    fn add_digit(&mut self, digit: u8, pin: &Pin) -> DigitResult {
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

impl Core {
    /// Prompts a caller for the PIN.
    pub(super) fn request_pin(&mut self, slot: usize, now: Time) {
        let key = self.key_of(slot);
        let timer = self
            .timers
            .schedule(now + PIN_TIMEOUT, Alarm::PinTimeout(key));
        let Some(entry) = self.pin_entry(slot) else {
            self.timers.cancel(timer);
            return;
        };
        entry.timer = Some(timer);
        self.report_pin(slot, "requested", now);
    }

    fn pin_entry(&mut self, slot: usize) -> Option<&mut PinEntry> {
        let participant = self.calls.get_mut(slot)?.participant.as_deref_mut()?;
        participant.pin_entry.as_mut()
    }

    fn report_pin(&mut self, slot: usize, outcome: &str, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(participant) = call.participant.as_deref() else {
            return;
        };
        self.events.tell(now, || EventKind::ConferencePin {
            call: call.number,
            conference: participant.name.0.clone(),
            number: participant.name.1.clone(),
            outcome: outcome.to_owned(),
            wrong_pins: participant
                .pin_entry
                .as_ref()
                .map_or(0, |entry| entry.wrong_pins.into()),
        });
    }

    /// Processes a digit of a caller in the lobby.
    pub(super) fn handle_pin_digit(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        digit: u8,
        now: Time,
    ) {
        let participant = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.participant.as_deref_mut());
        let Some(participant) = participant else {
            return;
        };
        // Digits that arrive after admission are ignored.
        let (Some(entry), Some(pin)) = (
            participant.pin_entry.as_mut(),
            participant.spec.pin.as_ref(),
        ) else {
            return;
        };
        let result = entry.add_digit(digit, pin);
        let number = self.calls.get(slot).map_or(0, |call| call.number);
        self.conferences.lobby.record_digit(number, now);
        match result {
            DigitResult::Incomplete => {}
            DigitResult::Correct => self.accept_pin(endpoint, slot, now),
            DigitResult::Wrong => self.reject_pin(endpoint, slot, now),
        }
    }

    fn accept_pin(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        self.report_pin(slot, "accepted", now);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let Some(participant) = call.participant.as_deref_mut() else {
            return;
        };
        let (spec, name): (_, ConferenceKey) = (participant.spec.clone(), participant.name.clone());
        // The conference may have become full or locked in the meantime.
        if let Err(refusal) = self.conferences.admit(&spec, &name, number) {
            self.report_join_refusal(&name, &refusal, now);
            let JoinRefusal { reason, text, .. } = refusal;
            return self.end_call(endpoint, slot, "border", text, Some(reason), now);
        }
        if let Some(timer) = participant
            .pin_entry
            .take()
            .and_then(|mut entry| entry.take_timer())
        {
            self.timers.cancel(timer);
        }
        let key = CallKey::new(slot, number);
        self.plane
            .commands
            .push_back(MediaCommand::ControlParticipant(
                key.0,
                ParticipantCommand::Admit,
            ));
        self.report_joined(slot, now);
    }

    fn reject_pin(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        self.counters.pins_wrong += 1;
        self.report_pin(slot, "wrong", now);
        if self
            .pin_entry(slot)
            .is_some_and(|entry| entry.wrong_pins >= MAX_ATTEMPTS)
        {
            return self.end_without_pin(endpoint, slot, "wrong PIN", now);
        }
        let key = self.key_of(slot);
        self.plane
            .commands
            .push_back(MediaCommand::ControlParticipant(
                key.0,
                ParticipantCommand::RejectPin,
            ));
    }

    /// The time limit for the PIN has passed.
    pub(crate) fn pin_timeout(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(slot) = self.slot_of(key) else {
            return;
        };
        if let Some(entry) = self.pin_entry(slot) {
            entry.timer = None;
            self.report_pin(slot, "timeout", now);
            self.end_without_pin(endpoint, slot, "no PIN", now);
        }
    }

    /// Ends the call of the caller that was idle for longest, in favour of another.
    pub(super) fn displace_from_lobby(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(slot) = self.slot_of(key) else {
            return;
        };
        self.counters.pins_refused += 1;
        self.report_pin(slot, "displaced", now);
        let reason = b"SIP;cause=486;text=\"Displaced from the lobby\"";
        self.give_up(endpoint, slot, "displaced from the lobby", reason, now);
    }

    fn end_without_pin(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        cause: &'static str,
        now: Time,
    ) {
        self.counters.pins_refused += 1;
        let reason = b"SIP;cause=403;text=\"PIN missing or wrong\"";
        self.end_call(endpoint, slot, "border", cause, Some(reason), now);
    }
}

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
