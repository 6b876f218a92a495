//! Commands of control to the forwarder, and its reports.

use super::plan::{Component, PlanError, SessionPlan};
use super::playback::{PlaybackEncoding, PlaybackPlan, PlaybackResult};
use super::statistics::SessionStats;
use crate::conference::{ParticipantCommand, ParticipantEvent, ParticipantPlan};
use engine::Time;
use std::net::SocketAddr;

/// The largest datagram that is accepted as media, in bytes.
pub const MAX_PACKET: usize = 4096;

/// A command of control to the forwarder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaCommand {
    /// Adds a session.
    Add(Box<SessionPlan>),
    /// Changes the plan of a session. Lines keep their statistics, and their latches unless the signalled address, the
    /// socket or the latch epoch changed.
    Update(Box<SessionPlan>),
    /// Adds a participant of a conference.
    AddParticipant(Box<ParticipantPlan>),
    /// Changes the plan of a participant.
    UpdateParticipant(Box<ParticipantPlan>),
    /// Mutes, unmutes or admits a participant, or rejects its PIN.
    ControlParticipant(u64, ParticipantCommand),
    /// Ends a session or removes a participant. Answered by [`MediaEvent::Stats`] with `last` set.
    Remove(u64),
    /// Requests [`MediaEvent::Stats`].
    Query(u64),
    /// Turns the recording of a session on or off: each accepted packet is then reported by [`MediaEvent::Recorded`],
    /// at the cost of a copy.
    Record(u64, bool),
    /// Plays a sound to a side. It replaces the other side's media and a running playback. Answered by
    /// [`MediaEvent::PlaybackEnded`] when the playback has ended, for any reason.
    Play(Box<PlaybackPlan>),
    /// Changes the encoding of a running playback.
    ChangePlayback(PlaybackTarget, PlaybackEncoding),
    /// Stops the playback to a side.
    StopPlayback(PlaybackTarget),
}

/// Address of a playback: one side of a media line of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaybackTarget {
    /// Session number.
    pub session: u64,
    /// Number of the media line.
    pub line: u8,
    /// Side, 0 or 1.
    pub side: u8,
}

/// A report of the forwarder to control.
#[derive(Clone, Debug, PartialEq)]
pub enum MediaEvent {
    /// A side was latched to an address.
    Latched {
        /// Session number.
        session: u64,
        /// Number of the media line.
        line: u8,
        /// Side, 0 or 1.
        side: u8,
        /// RTP or RTCP.
        component: Component,
        /// The address.
        address: SocketAddr,
    },
    /// No acceptable packet was received from any side of the session for the time that its plan allows.
    Timeout {
        /// Session number.
        session: u64,
        /// When the last packet was accepted, or the session was added.
        since: Time,
    },
    /// Statistics, on request or at the end of a session.
    Stats {
        /// Session number.
        session: u64,
        /// Whether the session has ended.
        last: bool,
        /// The statistics.
        stats: Box<SessionStats>,
    },
    /// An accepted packet of a recorded session, after SRTP was removed.
    Recorded {
        /// Session number.
        session: u64,
        /// Number of the media line.
        line: u8,
        /// The sending side, 0 or 1.
        side: u8,
        /// Whether the packet was received on the RTCP port.
        rtcp: bool,
        /// Source address.
        source: SocketAddr,
        /// Time of arrival.
        received_at: Time,
        /// The UDP payload: RTP, RTCP, or datagrams of another protocol such as UDPTL.
        bytes: Vec<u8>,
    },
    /// A playback has ended.
    PlaybackEnded {
        /// The side that it was sent to.
        target: PlaybackTarget,
        /// How it ended.
        result: PlaybackResult,
    },
    /// A participant muted or unmuted itself, or entered a digit in the lobby.
    Participant {
        /// Session number of the participant.
        session: u64,
        /// The event.
        event: ParticipantEvent,
    },
    /// A command was refused and had no effect.
    Refused {
        /// Session number.
        session: u64,
        /// The reason.
        error: PlanError,
    },
}
