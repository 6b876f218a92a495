//! Commands, events and figures of a participant.

/// An action of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParticipantEvent {
    /// It muted itself.
    Muted,
    /// It unmuted itself.
    Unmuted,
    /// It entered a digit in the lobby: `0` to `9`, `*`, `#`, `A` to `D`.
    Digit(u8),
}

/// A command of control about a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParticipantCommand {
    /// Mutes the participant, which cannot undo this by digits.
    Mute,
    /// Unmutes the participant, regardless of the cause of muting.
    Unmute,
    /// Moves the participant from the lobby into the conference.
    Admit,
    /// Plays the tone for a wrong PIN and prompts for the PIN again.
    RejectPin,
}

/// Whether and by which side a participant is muted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MuteState {
    /// Not muted.
    #[default]
    Unmuted,
    /// Muted by its own digits.
    ByParticipant,
    /// Muted by control.
    ByControl,
}

/// State of a participant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParticipantFigures {
    /// Counters of its decoder.
    pub decoder: DecoderFigures,
    /// Whether its audio is in the present mix.
    pub in_mix: bool,
    /// Whether and by which side it is muted.
    pub muted: MuteState,
    /// Whether it is in the lobby.
    pub in_lobby: bool,
}

/// Counters of a participant decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderFigures {
    /// Payloads decoded.
    pub decoded: u64,
    /// G.729 payloads without speech, by their gains, that were not decoded.
    pub skipped: u64,
    /// Concealed samples, at the codec's rate.
    pub concealed: u64,
    /// The present delay of the jitter buffer in microseconds.
    pub wait_us: u64,
}
