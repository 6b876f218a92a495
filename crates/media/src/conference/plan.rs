//! The description of a participant by control, as plain values.

use crate::forward::SidePlan;
use codec::Format;
use core::time::Duration;
use engine::SocketId;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Maximum number of digits that mute and unmute.
pub const MAX_MUTE_DIGITS: usize = 8;

/// Settings of a conference. The ones of the participant that joined last are in force: plans of earlier participants
/// have the settings from before a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConferenceSettings {
    /// Participants at a time, without those in the lobby.
    pub max_participants: u16,
    /// Speakers that are mixed at a time, the loudest.
    pub max_speakers: u16,
    /// Whether a tone announces a new participant.
    pub entry_tone: bool,
    /// Whether a tone announces that a participant left.
    pub leave_tone: bool,
    /// The digits with which a participant mutes and unmutes itself; empty for none.
    pub mute_digits: SmallVec<[u8; MAX_MUTE_DIGITS]>,
    /// Maximum playout delay of the jitter buffers.
    pub max_delay: Duration,
}

impl Default for ConferenceSettings {
    fn default() -> Self {
        ConferenceSettings {
            max_participants: 32,
            max_speakers: 4,
            entry_tone: true,
            leave_tone: true,
            mute_digits: SmallVec::from_slice(b"*6"),
            max_delay: Duration::from_millis(200),
        }
    }
}

/// Negotiated audio format of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoiceFormat {
    /// The codec, with the parameters of the participant's session description.
    pub format: Format,
    /// Payload type in both directions.
    pub payload_type: u8,
    /// Payload type of telephone events (RFC 4733).
    pub events: Option<u8>,
    /// Clock rate of telephone events: that of the codec (RFC 4733 section 2.1), or 8000 for peers without it.
    pub events_clock: u32,
    /// Payload type of comfort noise (RFC 3389).
    pub noise: Option<u8>,
    /// Packet time that we send, in milliseconds.
    pub packet_ms: u32,
    /// Whether no packets are sent during silence.
    pub suppress_silence: bool,
}

impl VoiceFormat {
    /// A codec with its static payload type (Opus: 96), packets of 20 ms, without telephone events and comfort noise.
    pub fn new(format: Format) -> VoiceFormat {
        VoiceFormat {
            format,
            payload_type: format.kind().payload_type().unwrap_or(96),
            events: None,
            events_clock: 8_000,
            noise: None,
            packet_ms: 20,
            suppress_silence: false,
        }
    }
}

/// A participant of a conference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParticipantPlan {
    /// Session number, from the same range as those of [`crate::SessionPlan`].
    pub session: u64,
    /// Number of the conference, which begins with its first participant and ends with its last.
    pub conference: u64,
    /// Settings of the conference.
    pub settings: ConferenceSettings,
    /// The side towards the participant. Its clock rates are set from `voice`.
    pub side: SidePlan,
    /// Audio format.
    pub voice: VoiceFormat,
    /// Silence after which [`crate::MediaEvent::Timeout`] is reported; `None` for never.
    pub inactivity: Option<Duration>,
    /// The same while the participant may not send (hold).
    pub hold_inactivity: Option<Duration>,
    /// Random seed for identifiers and intervals.
    pub seed: u64,
    /// Whether the participant starts in the lobby: it neither receives nor contributes to the mix, is not counted in
    /// [`ConferenceSettings::max_participants`], and its digits are reported until
    /// [`super::ParticipantCommand::Admit`]. Later plans do not change this.
    pub in_lobby: bool,
}

impl ParticipantPlan {
    /// A participant with default values.
    pub fn new(
        session: u64,
        conference: u64,
        side: SidePlan,
        voice: VoiceFormat,
    ) -> ParticipantPlan {
        ParticipantPlan {
            session,
            conference,
            settings: ConferenceSettings::default(),
            side,
            voice,
            inactivity: Some(crate::SessionPlan::INACTIVITY),
            hold_inactivity: None,
            seed: session ^ 0x5bd1_e995,
            in_lobby: false,
        }
    }

    /// The sockets of the participant.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = SocketId> {
        core::iter::once(self.side.rtp).chain(self.side.rtcp)
    }
}
