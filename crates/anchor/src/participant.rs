//! Media of a conference participant: one side with ports; the forwarder's participant takes the place of the other
//! side.

use super::{CallMedia, MediaPlane, MediaSide};
use media::MediaCommand;
use media::conference::{ConferenceSettings, ParticipantPlan, VoiceFormat};
use serde::{Deserialize, Serialize};

/// Settings of a participant for the forwarder.
#[derive(Debug, Serialize, Deserialize)]
pub struct ParticipantSettings {
    /// Number of the conference.
    pub conference: u64,
    /// Settings of the conference.
    pub settings: ConferenceSettings,
    /// Media line of the audio and its agreed format; `None` before the first agreement.
    pub voice: Option<(usize, VoiceFormat)>,
    /// Seed of the participant's random numbers.
    pub seed: u64,
    /// Whether the participant starts in the lobby, without the PIN.
    pub in_lobby: bool,
}

impl CallMedia {
    /// Media of a participant; `session` is its number in the forwarder.
    pub fn for_participant(
        session: u64,
        side: MediaSide,
        settings: ParticipantSettings,
    ) -> CallMedia {
        let other = MediaSide {
            security: None,
            ..side.clone()
        };
        CallMedia {
            participant: Some(Box::new(settings)),
            exchanged: None,
            ..CallMedia::new(session, [side, other])
        }
    }

    /// Sets the format before it is agreed by the answer. Returns the previous one.
    pub fn agree_voice(
        &mut self,
        voice: Option<(usize, VoiceFormat)>,
    ) -> Option<(usize, VoiceFormat)> {
        let participant = self.participant.as_deref_mut()?;
        core::mem::replace(&mut participant.voice, voice)
    }

    /// Whether we use SRTP or ICE on its media.
    pub fn has_media_security(&self) -> bool {
        self.secures_media()
    }

    /// Whether a media line has ports.
    pub fn has_line(&self, index: usize) -> bool {
        self.lines.get(index).is_some_and(Option::is_some)
    }

    /// The agreed audio line and format.
    pub fn voice(&self) -> Option<(usize, VoiceFormat)> {
        self.participant.as_ref()?.voice
    }

    /// Sends the current plan to the forwarder.
    pub(super) fn command_participant(&mut self, plane: &mut MediaPlane) {
        let Some(participant) = &self.participant else {
            return;
        };
        // Before an answer there is no media in either direction.
        let Some((index, voice)) = participant.voice else {
            return;
        };
        let line = self.lines.get(index).and_then(Option::as_ref);
        let Some(side) = line.and_then(|line| self.side_plan(index, line, 0)) else {
            return;
        };
        let plan = Box::new(ParticipantPlan {
            session: self.session,
            conference: participant.conference,
            settings: participant.settings.clone(),
            side,
            voice,
            inactivity: plane.inactivity,
            hold_inactivity: plane.hold_inactivity,
            seed: participant.seed,
            in_lobby: participant.in_lobby,
        });
        if self.added {
            plane
                .commands
                .push_back(MediaCommand::UpdateParticipant(plan));
        } else {
            self.added = true;
            plane.sessions += 1;
            plane.commands.push_back(MediaCommand::AddParticipant(plan));
        }
    }
}
