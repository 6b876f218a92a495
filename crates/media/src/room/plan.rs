//! What control says about a seat in a conference: plain values.

use crate::forward::SidePlan;
use codec::Format;
use core::time::Duration;
use engine::SocketId;
use smallvec::SmallVec;

/// Digits of a command at most.
pub const MAX_COMMAND: usize = 8;

/// What a conference is like. The terms of the seat that was planned last are in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomTerms {
    /// Seats at a time, beside those who wait.
    pub seats: u16,
    /// So many of those who speak are heard at the same time, the loudest.
    pub speakers: u16,
    /// Whether a tone tells that somebody came.
    pub entry_tone: bool,
    /// Whether a tone tells that somebody left.
    pub leave_tone: bool,
    /// The digits by which a participant silences himself, and is heard again; empty: there are none.
    pub mute: SmallVec<[u8; MAX_COMMAND]>,
    /// How long a packet is waited for at most.
    pub max_delay: Duration,
}

impl Default for RoomTerms {
    fn default() -> Self {
        RoomTerms {
            seats: 32,
            speakers: 4,
            entry_tone: true,
            leave_tone: true,
            mute: SmallVec::from_slice(b"*6"),
            max_delay: Duration::from_millis(200),
        }
    }
}

/// What was agreed about the voice of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Voice {
    /// The codec as the participant described what he takes.
    pub sends: Format,
    /// Its payload type, both ways.
    pub payload_type: u8,
    /// Payload type of telephone events (RFC 4733).
    pub events: Option<u8>,
    /// Payload type of comfort noise (RFC 3389).
    pub noise: Option<u8>,
    /// Milliseconds of a packet that we send.
    pub packet_ms: u32,
    /// Whether nothing is sent while nobody speaks.
    pub suppress_silence: bool,
}

impl Voice {
    /// A codec under its static payload type (Opus: 96), in packets of 20 ms, without events and comfort noise.
    pub fn new(sends: Format) -> Voice {
        Voice {
            sends,
            payload_type: sends.kind().payload_type().unwrap_or(96),
            events: None,
            noise: None,
            packet_ms: 20,
            suppress_silence: false,
        }
    }
}

/// A participant of a conference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatPlan {
    /// Control's number, from the same range as those of [`crate::SessionPlan`].
    pub session: u64,
    /// The conference; it begins with the first seat and ends with the last.
    pub room: u64,
    /// What it is like.
    pub terms: RoomTerms,
    /// Towards the participant. Of the sockets' clock rates nothing has to be said: they follow from `voice`.
    pub side: SidePlan,
    /// What he speaks.
    pub voice: Voice,
    /// Silence after which [`crate::MediaEvent::Timeout`] is told; `None` for never.
    pub inactivity: Option<Duration>,
    /// The same while he may not send (hold).
    pub hold_inactivity: Option<Duration>,
    /// Anything: identifiers and intervals come from it.
    pub seed: u64,
    /// Whether he waits: he hears nobody and is heard by nobody, takes none of [`RoomTerms::seats`], and his digits are told, until
    /// [`super::SeatOrder::Admit`]. Counts where he joins; later plans leave it as it is.
    pub waits: bool,
}

impl SeatPlan {
    /// A seat with everything at its usual value.
    pub fn new(session: u64, room: u64, side: SidePlan, voice: Voice) -> SeatPlan {
        SeatPlan {
            session,
            room,
            terms: RoomTerms::default(),
            side,
            voice,
            inactivity: Some(crate::SessionPlan::INACTIVITY),
            hold_inactivity: None,
            seed: session ^ 0x5bd1_e995,
            waits: false,
        }
    }

    /// The sockets that it needs.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = SocketId> {
        core::iter::once(self.side.rtp).chain(self.side.rtcp)
    }
}
