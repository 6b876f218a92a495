//! Commands of control about single participants, and the entry tone.

use super::tones::ToneSequence;
use super::{ConferenceBridge, ConferenceMixer, ParticipantCommand};
use crate::forward::PlanError;

impl ConferenceBridge {
    /// Number of participants that are not in the lobby.
    pub(super) fn admitted_count(&self, conference: &ConferenceMixer) -> usize {
        let participants = conference.participants.iter();
        participants
            .filter_map(|&participant| self.participants.get(participant as usize))
            .filter(|participant| !participant.in_lobby)
            .count()
    }

    /// Plays the entry tone if the conference has other participants.
    pub(super) fn play_entry_tone(&mut self, index: u32) {
        let has_others = self
            .conferences
            .get(index as usize)
            .is_some_and(|conference| self.admitted_count(conference) > 1);
        if let Some(conference) = self.conferences.get_mut(index as usize)
            && has_others
            && conference.settings.entry_tone
        {
            conference.tone = Some(ToneSequence::entry());
        }
    }

    /// Executes a command of control.
    ///
    /// # Errors
    /// [`PlanError::NoSuchSession`].
    pub fn control(&mut self, session: u64, command: ParticipantCommand) -> Result<(), PlanError> {
        let index = *self
            .by_session
            .get(&session)
            .ok_or(PlanError::NoSuchSession)?;
        let participant = self.participants.get_mut(index as usize);
        let participant = participant.ok_or(PlanError::NoSuchSession)?;
        let conference = participant.conference;
        if participant.control(command) {
            self.play_entry_tone(conference);
        }
        Ok(())
    }
}
