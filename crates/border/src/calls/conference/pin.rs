//! PIN entry of a conference: prompted by a tone, entered by digits. Until the PIN is correct the caller is in the
//! lobby, without audio in either direction.

use crate::calls::conference::ConferenceCalls;
use crate::calls::conference::lobby::{LobbySource, LobbySpace};
use crate::calls::conference::pin_entry::{DigitResult, MAX_ATTEMPTS, PIN_TIMEOUT, PinEntry};
use crate::calls::conference::state::{ConferenceKey, JoinRefusal};
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::table::OngoingCalls;
use crate::shared::{Alarm, Ctx};
use config::ConferenceSpec;
use engine::{EventKind, Reason};
use media::MediaCommand;
use media::conference::ParticipantCommand;

impl OngoingCalls {
    /// Prompts a caller for the PIN.
    pub(super) fn request_pin(&mut self, ctx: &mut Ctx, slot: CallSlot) {
        let now = ctx.now;
        let key = self.key_of(slot);
        let timer = ctx
            .timers
            .schedule(now + PIN_TIMEOUT, Alarm::PinTimeout(key));
        let Some(entry) = self.pin_entry(slot) else {
            ctx.timers.cancel(timer);
            return;
        };
        entry.timer = Some(timer);
        self.report_pin(ctx, slot, "requested");
    }

    fn pin_entry(&mut self, slot: CallSlot) -> Option<&mut PinEntry> {
        let participant = self.get_mut(slot)?.kind.participant_mut()?;
        participant.pin_entry.as_mut()
    }

    fn report_pin(&mut self, ctx: &mut Ctx, slot: CallSlot, outcome: &str) {
        let now = ctx.now;
        let Some(call) = self.get(slot) else {
            return;
        };
        let Some(participant) = call.kind.participant() else {
            return;
        };
        ctx.events.tell(now, || EventKind::ConferencePin {
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
}

impl ConferenceCalls<'_> {
    /// Makes space in the lobby for a newcomer, or refuses the call.
    pub(super) fn make_lobby_space(
        &mut self,
        spec: &ConferenceSpec,
        source: &LobbySource,
    ) -> Result<(), JoinRefusal> {
        let now = self.parts.ctx.now;
        let conferences = &self.parts.conferences;
        let locked = conferences
            .pin_lockout
            .read(|lockout| lockout.is_locked(&spec.name, source, now));
        if locked {
            return Err(JoinRefusal::PIN);
        }
        match conferences.lobby.space(spec, source, now) {
            LobbySpace::Free => Ok(()),
            LobbySpace::Full => Err(JoinRefusal::LOBBY),
            LobbySpace::Displace(call) => {
                self.displace_from_lobby(call);
                Ok(())
            }
        }
    }

    /// Processes a digit of a caller in the lobby.
    pub(super) fn handle_pin_digit(&mut self, slot: CallSlot, digit: u8) {
        let now = self.parts.ctx.now;
        let participant = self
            .parts
            .calls
            .get_mut(slot)
            .and_then(|call| call.kind.participant_mut());
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
        let number = self.parts.calls.get(slot).map_or(0, |call| call.number);
        let conferences = &mut self.parts.conferences;
        conferences.lobby.record_digit(number, now);
        // While its source is locked out, a right PIN counts as a wrong one.
        let accepted = match (result, conferences.lobby.origin(number)) {
            (DigitResult::Incomplete, _) => return,
            (DigitResult::Wrong, _) => false,
            (DigitResult::Correct, None) => true,
            (DigitResult::Correct, Some((conference, source))) => conferences
                .pin_lockout
                .lock()
                .record_right(conference, source, now),
        };
        match accepted {
            true => self.accept_pin(slot),
            false => self.reject_pin(slot, number),
        }
    }

    fn accept_pin(&mut self, slot: CallSlot) {
        self.parts
            .calls
            .report_pin(&mut self.parts.ctx, slot, "accepted");
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let Some(participant) = call.kind.participant_mut() else {
            return;
        };
        let (spec, name): (_, ConferenceKey) = (participant.spec.clone(), participant.name.clone());
        // The conference may have become full or locked in the meantime.
        if let Err(refusal) = self.parts.conferences.admit(&spec, &name, number) {
            refusal.report(&mut self.parts.ctx, &name);
            return self.calls().end_by_border(slot, refusal.reason);
        }
        if let Some(timer) = participant
            .pin_entry
            .take()
            .and_then(|mut entry| entry.take_timer())
        {
            self.parts.ctx.timers.cancel(timer);
        }
        let key = CallKey::new(slot, number);
        self.parts
            .media
            .plane
            .commands
            .push_back(MediaCommand::ControlParticipant(
                key.0,
                ParticipantCommand::Admit,
            ));
        self.report_joined(slot);
    }

    fn reject_pin(&mut self, slot: CallSlot, number: u64) {
        let now = self.parts.ctx.now;
        self.parts.ctx.counters.pins_wrong += 1;
        self.parts
            .calls
            .report_pin(&mut self.parts.ctx, slot, "wrong");
        let conferences = &mut self.parts.conferences;
        let origin = conferences.lobby.origin(number);
        let is_locked_out = origin.is_some_and(|(conference, source)| {
            conferences
                .pin_lockout
                .lock()
                .record_wrong(conference, source, now)
        });
        if is_locked_out
            || self
                .parts
                .calls
                .pin_entry(slot)
                .is_some_and(|entry| entry.wrong_pins >= MAX_ATTEMPTS)
        {
            return self.end_without_pin(slot, Reason::WrongPin);
        }
        let key = self.parts.calls.key_of(slot);
        self.parts
            .media
            .plane
            .commands
            .push_back(MediaCommand::ControlParticipant(
                key.0,
                ParticipantCommand::RejectPin,
            ));
    }

    /// The time limit for the PIN has passed.
    pub(crate) fn pin_timeout(&mut self, key: CallKey) {
        let Some(slot) = self.parts.calls.slot_of(key) else {
            return;
        };
        if let Some(entry) = self.parts.calls.pin_entry(slot) {
            entry.timer = None;
            self.parts
                .calls
                .report_pin(&mut self.parts.ctx, slot, "timeout");
            self.end_without_pin(slot, Reason::NoPin);
        }
    }

    /// Ends the call of the caller that was idle for longest, in favour of another.
    pub(super) fn displace_from_lobby(&mut self, key: CallKey) {
        let Some(slot) = self.parts.calls.slot_of(key) else {
            return;
        };
        self.parts.ctx.counters.pins_refused += 1;
        self.parts
            .calls
            .report_pin(&mut self.parts.ctx, slot, "displaced");
        self.calls().give_up(slot, Reason::DisplacedFromLobby);
    }

    fn end_without_pin(&mut self, slot: CallSlot, why: Reason) {
        self.parts.ctx.counters.pins_refused += 1;
        self.calls().end_by_border(slot, why);
    }
}
