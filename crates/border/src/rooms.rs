//! Conferences as they are told to the outside, and what may be wanted of them from there: plain values, of which HTTP (or whatever
//! it is) knows how to write them. A question has a number; its reply has the same one, and comes after one of the next turns, because
//! the figures of participants are the forwarder's.

use crate::border::Border;
use core::hash::Hasher as _;
use engine::Time;
use media::room::Muted;
use siphasher::sip::SipHasher13;

/// Questions at a time; further ones are answered [`RoomReply::Busy`].
pub const MAX_QUESTIONS: usize = 64;

/// Which conference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoomName {
    /// Name of the room in the configuration.
    pub room: String,
    /// The number that was called, which tells its conferences from each other.
    pub number: String,
}

/// Which of `of` workers has the conferences of a called number: SipHash-1-3 of its octets under a key of zeros, modulo `of`. It is no
/// secret, and the same after each start: who plans a machine's load can work it out.
pub fn worker_of(number: &str, of: u8) -> u8 {
    let mut hasher = SipHasher13::new();
    hasher.write(number.as_bytes());
    (hasher.finish() % u64::from(of.max(1))) as u8
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomWish {
    /// [`RoomReply::Rooms`].
    List,
    /// [`RoomReply::Room`].
    Show,
    /// [`RoomReply::Seat`] of a call.
    ShowSeat(u64),
    /// That a participant, named by his call, is silenced or heard again. [`RoomReply::Seat`].
    Mute(u64, bool),
    /// That nobody comes in any more, or that people may again. [`RoomReply::Room`].
    Lock(bool),
    /// That a participant's call ends. [`RoomReply::Ended`].
    EndSeat(u64),
    /// That all calls of the conference end. [`RoomReply::Ended`].
    End,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub enum RoomReply {
    /// The conferences that take place, in order of their names.
    Rooms(Vec<RoomView>),
    /// A conference with those in it, in order of their calls.
    Room(RoomView, Vec<SeatView>),
    /// A participant.
    Seat(SeatView),
    /// So many calls were ended.
    Ended(u64),
    /// There is no such conference.
    NoRoom,
    /// There is no such participant in it.
    NoSeat,
    /// Too many questions wait for their answers already.
    Busy,
}

/// A conference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomView {
    /// Which one.
    pub name: RoomName,
    /// Those who take part.
    pub seats: u16,
    /// Those who have not given the PIN yet.
    pub waiting: u16,
    /// Whether nobody comes in any more.
    pub locked: bool,
    /// When the first came.
    pub since: Time,
}

/// A participant.
#[derive(Clone, Debug, PartialEq)]
pub struct SeatView {
    /// Number of his call.
    pub call: u64,
    /// Call-ID of his leg.
    pub call_id: String,
    /// His From, as he wrote it: an address that nobody has to have proven.
    pub from: String,
    /// Codec.
    pub codec: &'static str,
    /// Milliseconds of a packet that he is sent.
    pub packet_ms: u32,
    /// When he came.
    pub since: Time,
    /// He has not given the PIN yet.
    pub waits: bool,
    /// Whether he is silenced, and by whom.
    pub muted: Muted,
    /// Whether he is in the mix at present.
    pub speaks: bool,
    /// Packets of RTP from him.
    pub received: u64,
    /// Packets of RTP to him.
    pub sent: u64,
    /// Packets of his that never came: expected less those that came, of all his sources.
    pub lost: u64,
    /// Jitter of what came from him (RFC 3550 section 6.4.1), the mean in milliseconds; none before two packets.
    pub jitter_ms: Option<f64>,
}

impl Border {
    /// Wants something of the conference `name` (of all of this worker's for [`RoomWish::List`]); [`Border::next_room_reply`] gives the answer,
    /// under the same `number`, after this or one of the next turns. Of several workers the one is asked whom [`worker_of`] says.
    pub fn ask_rooms(&mut self, number: u64, name: &RoomName, wish: &RoomWish, now: Time) {
        self.core.begin(now);
        self.core
            .room_asked(&mut self.endpoint, number, name, wish, now);
    }

    /// The next answer to a question about conferences.
    pub fn next_room_reply(&mut self) -> Option<(u64, RoomReply)> {
        self.core.questions.replies.pop_front()
    }
}
