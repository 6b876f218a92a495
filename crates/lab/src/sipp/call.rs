//! The state of one call. Calls are used again, so their buffers keep their room and nothing is allocated for a new one.

use super::program::Variable;
use super::schedule::Due;
use engine::timers::TimerKey;
use engine::{ConnectionId, SocketId, Time};
use protect::digest::ClientSession;
use std::net::SocketAddr;
use std::time::Duration;

/// What a variable holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// Nothing.
    #[default]
    Unset,
    /// A text.
    Text(Vec<u8>),
    /// A number.
    Number(f64),
    /// Yes or no.
    Truth(bool),
}

impl Value {
    /// As `test` sees it.
    pub fn is_set(&self) -> bool {
        !matches!(self, Value::Unset | Value::Truth(false))
    }

    /// As a number; a text by what it begins with.
    pub fn number(&self) -> f64 {
        match self {
            Value::Number(number) => *number,
            Value::Truth(truth) => f64::from(u8::from(*truth)),
            Value::Text(text) => leading_number(text),
            Value::Unset => 0.0,
        }
    }

    /// Appends it as a text.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::Unset => {}
            Value::Text(text) => out.extend_from_slice(text),
            Value::Number(number) => out.extend_from_slice(format!("{number:.6}").as_bytes()),
            Value::Truth(truth) => out.extend_from_slice(match truth {
                true => b"true",
                false => b"false",
            }),
        }
    }
}

/// The number that a text begins with, as C's `strtod` reads it; 0 where there is none.
fn leading_number(text: &[u8]) -> f64 {
    let text = text.trim_ascii();
    let end = text
        .iter()
        .take(64)
        .position(|byte| !matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
        .unwrap_or(text.len().min(64));
    (1..=end)
        .rev()
        .filter_map(|length| std::str::from_utf8(text.get(..length)?).ok())
        .find_map(|number| number.parse().ok())
        .unwrap_or(0.0)
}

/// How a call reaches its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By datagrams.
    Udp(SocketId, SocketAddr),
    /// By a connection.
    Stream(ConnectionId),
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It is no call.
    #[default]
    Free,
    /// For its socket or connection.
    Opening,
    /// For a message.
    Receiving,
    /// For time to pass.
    Pausing,
    /// For retransmissions only.
    Lingering,
}

/// The last message sent, and its retransmission.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// The message.
    pub bytes: Vec<u8>,
    /// The step that sent it.
    pub step: u16,
    /// It is an INVITE.
    pub invite: bool,
    /// The timer of its retransmission.
    pub timer: Option<TimerKey>,
    /// Retransmissions so far.
    pub count: u32,
    /// Time to the next.
    pub interval: Duration,
    /// CSeq of the request in it.
    pub cseq: u32,
}

/// Media of a call.
#[derive(Clone, Debug, Default)]
pub struct CallMedia {
    /// Where the peer wants audio.
    pub audio: Option<SocketAddr>,
    /// Where the peer wants video.
    pub video: Option<SocketAddr>,
    /// Where the peer wants images (T.38).
    pub image: Option<SocketAddr>,
    /// The payload type of the peer's telephone events.
    pub events: Option<u8>,
    /// Audio or an image, video, digits that are being played.
    pub playing: [Option<super::media::Playing>; 3],
    /// The streams of audio, of video are held.
    pub held: [bool; 2],
    /// Incoming audio, video is sent back.
    pub echo: [bool; 2],
    /// When the agenda plays next.
    pub next_play: Option<Time>,
}

impl CallMedia {
    /// Where the peer wants audio, or video.
    pub fn of(&self, video: bool) -> Option<SocketAddr> {
        match video {
            true => self.video,
            false => self.audio,
        }
    }

    /// Holds streams, or lets them go on.
    pub fn hold(&mut self, lines: [bool; 2], on: bool) {
        for (held, wanted) in self.held.iter_mut().zip(lines) {
            *held = if wanted { on } else { *held };
        }
    }
}

/// A call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Rises with each use of the place, so that old timers are known.
    pub generation: u32,
    /// What it waits for.
    pub phase: Phase,
    /// `[call_number]`
    pub number: u64,
    /// The step at which it is.
    pub step: u16,
    /// Call-ID.
    pub id: Vec<u8>,
    /// The way to the peer.
    pub route: Route,
    /// Our port, where the call has a socket of its own.
    pub local_port: Option<u16>,
    /// The peer, for `[remote_ip]` and `[remote_port]`.
    pub remote: SocketAddr,
    /// When it was due, and whether it was held back.
    pub due: Due,
    /// When it began.
    pub begun: Time,
    /// When each timer started.
    pub timers: Vec<Time>,
    /// Timers that have stopped, by bit.
    pub stopped: u64,
    /// Variables.
    pub variables: Vec<Value>,
    /// Its line of each injection file.
    pub lines: Vec<u64>,
    /// Its user.
    pub user: Option<u64>,
    /// `[cseq]`
    pub cseq: u32,
    /// The peer's tag.
    pub peer_tag: Vec<u8>,
    /// The last message received.
    pub last: Vec<u8>,
    /// Status of the last response.
    pub last_status: u16,
    /// Fingerprints of the last messages received, the newest first.
    pub seen: [u64; 4],
    /// The fingerprint of the message that the last one sent answers.
    pub answered: u64,
    /// The last message sent.
    pub sent: Sent,
    /// The timer of a pause or a wait for a message.
    pub wait: Option<TimerKey>,
    /// When a pause ends.
    pub wait_until: Time,
    /// The end of a pause that goes on instead of the next step.
    pub restored: Option<Time>,
    /// Its own connection was closed by the scenario.
    pub unconnected: bool,
    /// What happens when the wait ends: the step whose timeout it is.
    pub wait_step: u16,
    /// `[routes]`
    pub routes: Vec<u8>,
    /// `[next_url]`
    pub next_url: Vec<u8>,
    /// The challenge to be answered.
    pub challenge: Option<Box<super::digest::Challenged>>,
    /// Credentials in use.
    pub session: Option<Box<ClientSession>>,
    /// Branches of transactions.
    pub branches: Vec<Vec<u8>>,
    /// The INVITE was accepted.
    pub accepted: bool,
    /// The ACK was sent.
    pub established: bool,
    /// Media.
    pub media: CallMedia,
}

impl Call {
    /// A place for a call.
    pub fn new() -> Call {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Call {
            generation: 0,
            phase: Phase::Free,
            number: 0,
            step: 0,
            id: Vec::new(),
            route: Route::Udp(SocketId(0), nowhere),
            local_port: None,
            remote: nowhere,
            due: Due {
                at: Time::ZERO,
                held_back: false,
            },
            begun: Time::ZERO,
            timers: Vec::new(),
            stopped: 0,
            variables: Vec::new(),
            lines: Vec::new(),
            user: None,
            cseq: 0,
            peer_tag: Vec::new(),
            last: Vec::new(),
            last_status: 0,
            seen: [0; 4],
            answered: 0,
            sent: Sent::default(),
            wait: None,
            wait_until: Time::ZERO,
            restored: None,
            unconnected: false,
            wait_step: 0,
            routes: Vec::new(),
            next_url: Vec::new(),
            challenge: None,
            session: None,
            branches: Vec::new(),
            accepted: false,
            established: false,
            media: CallMedia::default(),
        }
    }

    /// Makes the place ready for another call. Timers must be cancelled before.
    pub fn reset(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.phase = Phase::Free;
        self.step = 0;
        self.local_port = None;
        self.restored = None;
        self.unconnected = false;
        self.id.clear();
        self.timers.clear();
        self.stopped = 0;
        self.variables.clear();
        self.lines.clear();
        self.user = None;
        self.peer_tag.clear();
        self.last.clear();
        self.last_status = 0;
        self.seen = [0; 4];
        self.answered = 0;
        self.sent.bytes.clear();
        self.sent.count = 0;
        self.sent.invite = false;
        self.sent.cseq = 0;
        self.routes.clear();
        self.next_url.clear();
        self.challenge = None;
        self.session = None;
        self.branches.clear();
        self.accepted = false;
        self.established = false;
        self.media = CallMedia::default();
    }

    /// A message was received: it is remembered by its fingerprint.
    pub fn see(&mut self, fingerprint: u64) {
        self.seen.rotate_right(1);
        self.seen[0] = fingerprint;
    }

    /// What a variable of the call holds.
    pub fn variable(&self, variable: Variable) -> &Value {
        self.variables
            .get(usize::from(variable))
            .unwrap_or(&Value::Unset)
    }
}

impl Default for Call {
    fn default() -> Self {
        Call::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_texts() {
        for (text, number) in [
            ("12", 12.0),
            (" -1.5e2x", -150.0),
            ("3 apples", 3.0),
            ("", 0.0),
            ("x", 0.0),
            ("1e", 1.0),
        ] {
            assert_eq!(Value::Text(text.into()).number(), number, "{text}");
        }
        let mut out = Vec::new();
        Value::Number(0.8).write(&mut out);
        assert_eq!(out, b"0.800000");
        assert!(!Value::Truth(false).is_set() && Value::Number(0.0).is_set());
    }
}
