//! The PIN of a conference: asked for by a tone, given by digits. Until it is right its caller hears nobody and is heard by nobody.

use super::{Full, Name};
use crate::border::{Alarm, Core};
use crate::call::CallKey;
use crate::config::{MAX_PIN, Pin};
use core::time::Duration;
use engine::timers::TimerKey;
use engine::{Note, Time};
use media::MediaCommand;
use media::room::SeatOrder;
use sip::Endpoint;
use smallvec::SmallVec;

/// The wrong PIN with which a call ends.
const TRIES: u8 = 3;
/// For so long a caller may take, all tries together.
const TIME: Duration = Duration::from_secs(30);

/// What a caller has given so far.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    typed: SmallVec<[u8; MAX_PIN]>,
    wrong: u8,
    timer: Option<TimerKey>,
}

/// What came of a digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressed {
    More,
    Right,
    Wrong,
}

impl Entry {
    /// The timer, to be cancelled.
    pub(crate) fn end(&mut self) -> Option<TimerKey> {
        self.timer.take()
    }

    /// A digit comes; `#` ends what was given, and so does the PIN's length.
    fn press(&mut self, digit: u8, pin: &Pin) -> Pressed {
        if digit != b'#' {
            self.typed.push(digit);
        }
        // What ended by its length may be ended by the caller as well.
        let over = match digit {
            b'#' => !self.typed.is_empty(),
            _ => self.typed.len() >= pin.digits(),
        };
        if !over {
            return Pressed::More;
        }
        let right = pin.is(&self.typed);
        self.typed.clear();
        match right {
            true => Pressed::Right,
            false => {
                self.wrong += 1;
                Pressed::Wrong
            }
        }
    }
}

impl Core {
    /// A caller is asked for the PIN.
    pub(super) fn ask_pin(&mut self, slot: usize, now: Time) {
        let key = self.key_of(slot);
        let timer = self.timers.schedule(now + TIME, Alarm::PinLate(key));
        let Some(entry) = self.entry(slot) else {
            self.timers.cancel(timer);
            return;
        };
        entry.timer = Some(timer);
        self.tell_pin(slot, "asked", now);
    }

    fn entry(&mut self, slot: usize) -> Option<&mut Entry> {
        let seat = self.calls.get_mut(slot)?.seat.as_deref_mut()?;
        seat.entry.as_mut()
    }

    fn tell_pin(&mut self, slot: usize, outcome: &str, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(seat) = call.seat.as_deref() else {
            return;
        };
        self.events.tell(now, || Note::RoomPin {
            call: call.number,
            room: seat.name.0.clone(),
            number: seat.name.1.clone(),
            outcome: outcome.to_owned(),
            wrong: seat.entry.as_ref().map_or(0, |entry| entry.wrong.into()),
        });
    }

    /// A caller who is asked pressed a digit.
    pub(super) fn pin_digit(&mut self, endpoint: &mut Endpoint, slot: usize, digit: u8, now: Time) {
        let seat = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.seat.as_deref_mut());
        let Some(seat) = seat else { return };
        // Digits that were on their way when he was let in are nothing any more.
        let (Some(entry), Some(pin)) = (seat.entry.as_mut(), seat.room.pin.as_ref()) else {
            return;
        };
        let pressed = entry.press(digit, pin);
        let number = self.calls.get(slot).map_or(0, |call| call.number);
        self.conferences.lobby.stir(number, now);
        match pressed {
            Pressed::More => {}
            Pressed::Right => self.pin_right(endpoint, slot, now),
            Pressed::Wrong => self.pin_wrong(endpoint, slot, now),
        }
    }

    fn pin_right(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        self.tell_pin(slot, "right", now);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let Some(seat) = call.seat.as_deref_mut() else {
            return;
        };
        let (room, name): (_, Name) = (seat.room.clone(), seat.name.clone());
        // While he dialled, others may have come.
        if let Err(full) = self.conferences.admit(&room, &name, number) {
            self.tell_full(&name, &full, now);
            let Full { reason, why, .. } = full;
            return self.end_call(endpoint, slot, "us", why, Some(reason), now);
        }
        if let Some(timer) = seat.entry.take().and_then(|mut entry| entry.end()) {
            self.timers.cancel(timer);
        }
        let key = CallKey::new(slot, number);
        self.plane
            .commands
            .push_back(MediaCommand::Seat(key.0, SeatOrder::Admit));
        self.tell_in(slot, now);
    }

    fn pin_wrong(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        self.counters.pins_wrong += 1;
        self.tell_pin(slot, "wrong", now);
        if self.entry(slot).is_some_and(|entry| entry.wrong >= TRIES) {
            return self.without_pin(endpoint, slot, "wrong PIN", now);
        }
        let key = self.key_of(slot);
        self.plane
            .commands
            .push_back(MediaCommand::Seat(key.0, SeatOrder::AskAgain));
    }

    /// A caller has not given the PIN in time.
    pub(crate) fn pin_late(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(slot) = self.slot_of(key) else {
            return;
        };
        if let Some(entry) = self.entry(slot) {
            entry.timer = None;
            self.tell_pin(slot, "late", now);
            self.without_pin(endpoint, slot, "no PIN", now);
        }
    }

    /// A caller who was still for longest makes place for another.
    pub(super) fn give_way(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(slot) = self.slot_of(key) else {
            return;
        };
        self.counters.pins_refused += 1;
        self.tell_pin(slot, "gave_way", now);
        let reason = b"SIP;cause=486;text=\"Others wait\"";
        self.give_up(endpoint, slot, "gave way to another caller", reason, now);
    }

    fn without_pin(&mut self, endpoint: &mut Endpoint, slot: usize, why: &'static str, now: Time) {
        self.counters.pins_refused += 1;
        let reason = b"SIP;cause=403;text=\"No right PIN\"";
        self.end_call(endpoint, slot, "us", why, Some(reason), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_ends_with_its_length_or_a_hash() {
        let pin = Pin::new("2468").unwrap();
        let dial = |digits: &[u8]| {
            let mut entry = Entry::default();
            let pressed: Vec<Pressed> = digits
                .iter()
                .map(|&digit| entry.press(digit, &pin))
                .collect();
            (pressed, entry.wrong)
        };
        use Pressed::{More, Right, Wrong};
        assert_eq!(dial(b"2468"), (vec![More, More, More, Right], 0));
        assert_eq!(dial(b"246#"), (vec![More, More, More, Wrong], 1));
        assert_eq!(
            dial(b"2469#2468").0[3..],
            [Wrong, More, More, More, More, Right]
        );
        // A hash alone is no try.
        assert_eq!(dial(b"###"), (vec![More; 3], 0));
        assert_eq!(dial(b"*468").1, 1);
    }
}
