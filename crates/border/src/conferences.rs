//! Control interface of conferences, in plain values: requests and their replies. A request has a number; its reply
//! has the same number and follows after one of the next turns, because the figures of participants are collected from
//! the forwarder.

use core::hash::Hasher as _;
use engine::Time;
use media::conference::MuteState;
use siphasher::sip::SipHasher13;

/// Maximum number of pending requests; further ones are answered [`ConferenceReply::Busy`].
pub const MAX_CONFERENCE_REQUESTS: usize = 64;

/// Identity of a conference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConferenceName {
    /// Name of the conference table in the configuration.
    pub conference: String,
    /// The called number, which distinguishes the conferences of one table.
    pub number: String,
}

/// The worker that owns the conferences of a called number: SipHash-1-3 of its octets with a key of zeros, modulo
/// `workers`. The result is no secret and the same after each start, so that the load of a machine can be planned.
pub fn worker_of(number: &str, workers: u8) -> u8 {
    let mut hasher = SipHasher13::new();
    hasher.write(number.as_bytes());
    (hasher.finish() % u64::from(workers.max(1))) as u8
}

/// A request. The reply is named with each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConferenceRequest {
    /// [`ConferenceReply::Conferences`].
    List,
    /// [`ConferenceReply::Conference`].
    Show,
    /// [`ConferenceReply::Participant`] of a call.
    ShowParticipant(u64),
    /// Mutes or unmutes a participant, named by the number of its call. [`ConferenceReply::Participant`].
    Mute(u64, bool),
    /// Locks or unlocks the conference. [`ConferenceReply::Conference`].
    Lock(bool),
    /// Ends a participant's call. [`ConferenceReply::Ended`].
    Remove(u64),
    /// Ends all calls of the conference. [`ConferenceReply::Ended`].
    End,
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum ConferenceReply {
    /// The active conferences, sorted by name.
    Conferences(Vec<ConferenceView>),
    /// A conference with its participants, sorted by call.
    Conference(ConferenceView, Vec<ParticipantView>),
    /// One participant.
    Participant(ParticipantView),
    /// Number of ended calls.
    Ended(u64),
    /// The conference does not exist.
    NoConference,
    /// The conference has no such participant.
    NoParticipant,
    /// Too many requests are pending.
    Busy,
}

/// State of a conference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConferenceView {
    /// Its identity.
    pub name: ConferenceName,
    /// Number of participants.
    pub participants: u16,
    /// Callers in the lobby.
    pub in_lobby: u16,
    /// Whether new callers are refused.
    pub locked: bool,
    /// Time of the first caller.
    pub since: Time,
}

/// State of a participant.
#[derive(Clone, Debug, PartialEq)]
pub struct ParticipantView {
    /// Number of the call.
    pub call: u64,
    /// Call-ID of the leg.
    pub call_id: String,
    /// From URI as received: not authenticated.
    pub from: String,
    /// Codec.
    pub codec: &'static str,
    /// Packet time of the packets to the participant, milliseconds.
    pub packet_ms: u32,
    /// Time of joining.
    pub since: Time,
    /// Whether the PIN is still missing.
    pub in_lobby: bool,
    /// Whether the participant is muted, and by which side.
    pub muted: MuteState,
    /// Whether the participant is part of the mix at present.
    pub in_mix: bool,
    /// RTP packets received from the participant.
    pub received: u64,
    /// RTP packets sent to the participant.
    pub sent: u64,
    /// Packets from the participant that were lost: expected less received, of all sources.
    pub lost: u64,
    /// Mean interarrival jitter from the participant (RFC 3550 section 6.4.1) in milliseconds; `None` before two
    /// packets.
    pub jitter_ms: Option<f64>,
}
