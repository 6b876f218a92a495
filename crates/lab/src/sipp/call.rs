//! The state of one call. Slots are reused with the capacity of their buffers, so a new call allocates nothing.

use super::program::Variable;
use super::schedule::DueCall;
use engine::timers::TimerKey;
use engine::{ConnectionId, SocketId, Time};
use protect::digest::ClientSession;
use std::net::SocketAddr;
use std::time::Duration;

/// The value of a variable.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum VariableValue {
    /// No value.
    #[default]
    Unset,
    /// A text.
    Text(Vec<u8>),
    /// A number.
    Number(f64),
    /// A boolean.
    Truth(bool),
}

impl VariableValue {
    /// Whether it counts as set for `test` and `condexec`: a number that is zero does not, as in SIPp.
    pub fn is_set(&self) -> bool {
        match self {
            VariableValue::Unset | VariableValue::Truth(false) => false,
            VariableValue::Number(number) => *number != 0.0,
            VariableValue::Truth(true) | VariableValue::Text(_) => true,
        }
    }

    /// The value as a number. As in SIPp all other values are zero: `todouble` makes a number of them.
    pub fn number(&self) -> f64 {
        match self {
            VariableValue::Number(number) => *number,
            VariableValue::Truth(_) | VariableValue::Text(_) | VariableValue::Unset => 0.0,
        }
    }

    /// The number that `todouble` makes of it; `None` of a text with anything else.
    pub fn converted(&self) -> Option<f64> {
        match self {
            VariableValue::Number(number) => Some(*number),
            VariableValue::Truth(truth) => Some(f64::from(u8::from(*truth))),
            VariableValue::Text(text) => whole_number(text),
            VariableValue::Unset => None,
        }
    }

    /// The text; as in SIPp all other values are empty for `trim`, `strcmp` and expressions.
    pub fn text(&self) -> &[u8] {
        match self {
            VariableValue::Text(text) => text,
            VariableValue::Number(_) | VariableValue::Truth(_) | VariableValue::Unset => b"",
        }
    }

    /// Appends the value as text.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            VariableValue::Unset => {}
            VariableValue::Text(text) => out.extend_from_slice(text),
            VariableValue::Number(number) => {
                out.extend_from_slice(format!("{number:.6}").as_bytes())
            }
            VariableValue::Truth(truth) => out.extend_from_slice(match truth {
                true => b"true",
                false => b"false",
            }),
        }
    }
}

/// The number at the beginning of a text, as read by C's `strtod`; 0 without one.
pub(super) fn leading_number(text: &[u8]) -> f64 {
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

/// The number of a text that has nothing else but spaces before it, as C's `strtod` reads it; an empty text is zero.
fn whole_number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text.trim_ascii_start()).ok()?;
    if text.is_empty() {
        return Some(0.0);
    }
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16)
                .ok()
                .map(|number| sign * number as f64)
        }
        Some(_) => None,
        None => text.parse().ok(),
    }
}

/// The route from a call to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRoute {
    /// Datagrams from a socket to an address.
    Udp(SocketId, SocketAddr),
    /// A connection.
    Stream(ConnectionId),
}

/// The event that a call waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScenarioCallPhase {
    /// The slot is free.
    #[default]
    Free,
    /// Its socket or connection.
    Opening,
    /// A message.
    Receiving,
    /// The end of a pause.
    Pausing,
    /// Retransmissions of a completed call.
    Lingering,
}

/// The last message sent, and its retransmission.
#[derive(Clone, Debug, Default)]
pub struct SentMessage {
    /// The message.
    pub bytes: Vec<u8>,
    /// The step that sent it.
    pub step: u16,
    /// Whether it is an INVITE.
    pub invite: bool,
    /// The timer of its retransmission.
    pub timer: Option<TimerKey>,
    /// Retransmissions so far.
    pub count: u32,
    /// Whether an ICMP error was received for it.
    pub undelivered: bool,
    /// Interval before the next retransmission.
    pub interval: Duration,
    /// CSeq number of the request.
    pub cseq: u32,
}

/// The last ACK of a call, after a further message was sent.
#[derive(Clone, Debug, Default)]
pub struct SentAck {
    /// The message.
    pub bytes: Vec<u8>,
    /// The step that sent it.
    pub step: u16,
}

/// The packets of a pattern that a call has sent on one line, and those that came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatternCheck {
    /// The octet.
    pub octet: u8,
    /// Packets sent.
    pub sent: u64,
    /// A pattern was to be sent, and the peer had no media address.
    pub is_without_address: bool,
    /// Packets with the same payload received.
    pub matched: u64,
    /// The key under which received packets find the call: the peer's address and the source of the sent packets.
    pub source: Option<(SocketAddr, u32)>,
}

/// Media of a call.
#[derive(Clone, Debug, Default)]
pub struct ScenarioCallMedia {
    /// The peer's address for audio.
    pub audio: Option<SocketAddr>,
    /// The peer's address for video.
    pub video: Option<SocketAddr>,
    /// The peer's address for images (T.38).
    pub image: Option<SocketAddr>,
    /// The payload type of the peer's telephone events.
    pub events: Option<u8>,
    /// Current playback of audio or image, of video, and of digits.
    pub playing: [Option<super::media::RecordingPlayback>; 3],
    /// Whether the streams of audio and of video are paused.
    pub paused: [bool; 2],
    /// The peers whose audio and video is sent back.
    pub echo: [Option<SocketAddr>; 2],
    /// Numbers of the RTP packets of audio, of video, and of digits.
    pub numbering: [Option<super::media::RtpNumbering>; 3],
    /// Patterns of audio and of video, which have to come back.
    pub patterns: [PatternCheck; 2],
    /// Time of the next playback entry in the agenda.
    pub next_play: Option<Time>,
}

impl ScenarioCallMedia {
    /// The peer's address for audio or video.
    pub fn of(&self, video: bool) -> Option<SocketAddr> {
        match video {
            true => self.video,
            false => self.audio,
        }
    }

    /// Pauses or resumes streams.
    pub fn pause_streams(&mut self, lines: [bool; 2], on: bool) {
        for (paused, wanted) in self.paused.iter_mut().zip(lines) {
            *paused = if wanted { on } else { *paused };
        }
    }
}

/// A call.
#[derive(Clone, Debug)]
pub struct ScenarioCall {
    /// Incremented with each use of the slot, to detect stale timers.
    pub generation: u32,
    /// The event that it waits for.
    pub phase: ScenarioCallPhase,
    /// `[call_number]`
    pub number: u64,
    /// The current step.
    pub step: u16,
    /// Call-ID.
    pub id: Vec<u8>,
    /// The route to the peer.
    pub route: PeerRoute,
    /// The local port, for a call with its own socket.
    pub local_port: Option<u16>,
    /// The peer, for `[remote_ip]` and `[remote_port]`.
    pub remote: SocketAddr,
    /// Its due time, and whether the limit delayed it.
    pub due: DueCall,
    /// Its start.
    pub started: Time,
    /// Start time of each timer.
    pub timers: Vec<Time>,
    /// Stopped timers, as a bit mask.
    pub stopped: u64,
    /// Variables.
    pub variables: Vec<VariableValue>,
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
    /// Hashes of the last received messages, the newest first.
    pub seen: [u64; 4],
    /// The hash of the message that the last sent one answers.
    pub answered: u64,
    /// The last message sent.
    pub sent: SentMessage,
    /// The last ACK, if it is not the last message sent.
    pub ack: SentAck,
    /// The status that the last ACK acknowledges; 0 before an ACK.
    pub acknowledged: u16,
    /// Whether a check of the scenario has failed: the call goes on, and fails at its end.
    pub check_failed: bool,
    /// The timer of a pause or a wait for a message.
    pub wait: Option<TimerKey>,
    /// End of a pause.
    pub wait_until: Time,
    /// End of an interrupted pause, which continues in place of the next step.
    pub resumed_pause: Option<Time>,
    /// Whether the scenario closed the call's own connection.
    pub unconnected: bool,
    /// The step whose timeout the wait is.
    pub wait_step: u16,
    /// `[routes]`
    pub routes: Vec<u8>,
    /// `[next_url]`
    pub next_url: Vec<u8>,
    /// The challenge to answer.
    pub challenge: Option<Box<super::digest::PendingChallenge>>,
    /// Credentials in use.
    pub session: Option<Box<ClientSession>>,
    /// Branches of transactions.
    pub branches: Vec<Vec<u8>>,
    /// Whether the INVITE was accepted.
    pub accepted: bool,
    /// Whether the ACK was sent.
    pub established: bool,
    /// Media.
    pub media: ScenarioCallMedia,
}

impl ScenarioCall {
    /// A free slot.
    pub fn new() -> ScenarioCall {
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        ScenarioCall {
            generation: 0,
            phase: ScenarioCallPhase::Free,
            number: 0,
            step: 0,
            id: Vec::new(),
            route: PeerRoute::Udp(SocketId(0), unspecified),
            local_port: None,
            remote: unspecified,
            due: DueCall {
                at: Time::ZERO,
                held_back: false,
            },
            started: Time::ZERO,
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
            sent: SentMessage::default(),
            ack: SentAck::default(),
            acknowledged: 0,
            check_failed: false,
            wait: None,
            wait_until: Time::ZERO,
            resumed_pause: None,
            unconnected: false,
            wait_step: 0,
            routes: Vec::new(),
            next_url: Vec::new(),
            challenge: None,
            session: None,
            branches: Vec::new(),
            accepted: false,
            established: false,
            media: ScenarioCallMedia::default(),
        }
    }

    /// Prepares the slot for the next call. Its timers must be cancelled before.
    pub fn reset(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.phase = ScenarioCallPhase::Free;
        self.step = 0;
        self.local_port = None;
        self.resumed_pause = None;
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
        self.sent.undelivered = false;
        self.sent.invite = false;
        self.sent.cseq = 0;
        self.ack.bytes.clear();
        self.acknowledged = 0;
        self.check_failed = false;
        self.routes.clear();
        self.next_url.clear();
        self.challenge = None;
        self.session = None;
        self.branches.clear();
        self.accepted = false;
        self.established = false;
        self.media = ScenarioCallMedia::default();
    }

    /// Remembers a received message by its hash.
    pub fn remember(&mut self, fingerprint: u64) {
        self.seen.rotate_right(1);
        self.seen[0] = fingerprint;
    }

    /// The value of a variable of the call.
    pub fn variable(&self, variable: Variable) -> &VariableValue {
        self.variables
            .get(usize::from(variable))
            .unwrap_or(&VariableValue::Unset)
    }
}

impl Default for ScenarioCall {
    fn default() -> Self {
        ScenarioCall::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_numbers_of_texts() {
        for (text, number) in [
            ("12", 12.0),
            (" -1.5e2x", -150.0),
            ("3 apples", 3.0),
            ("", 0.0),
            ("x", 0.0),
            ("1e", 1.0),
        ] {
            assert_eq!(leading_number(text.as_bytes()), number, "{text}");
        }
        // What SIPp 3.6.1 makes of them.
        for (text, number) in [
            (" 12", Some(12.0)),
            ("+5", Some(5.0)),
            ("-.5", Some(-0.5)),
            ("1e3", Some(1_000.0)),
            ("0x1f", Some(31.0)),
            ("-0x10", Some(-16.0)),
            ("", Some(0.0)),
            ("12 ", None),
            ("12.5xyz", None),
            ("0x", None),
            ("5,1", None),
            ("1_0", None),
        ] {
            let value = VariableValue::Text(text.into());
            assert_eq!((value.converted(), value.number()), (number, 0.0), "{text}");
        }
        let mut out = Vec::new();
        VariableValue::Number(0.8).write(&mut out);
        assert_eq!(out, b"0.800000");
        // As SIPp 3.6.1 has it: `strcmp` of equal texts gives a variable that is not set.
        for (value, is_set) in [
            (VariableValue::Unset, false),
            (VariableValue::Truth(false), false),
            (VariableValue::Number(0.0), false),
            (VariableValue::Number(-1.0), true),
            (VariableValue::Text(Vec::new()), true),
        ] {
            assert_eq!(value.is_set(), is_set, "{value:?}");
        }
    }
}
