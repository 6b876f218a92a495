//! Calls from SIP messages: one call for each Call-ID of an INVITE dialog.

use super::datagram::CapturedDatagram;
use super::report::seconds;
use super::report::{CallReport, SdpMediaReport};
use super::sdp::{SdpIndex, SdpMedia};
use engine::{BoundedMap, HashKey};
use std::net::SocketAddr;
use wire::sip::{HeaderId, Message};

/// Longer start lines are not examined.
const MAX_START_LINE: usize = 4096;
/// Call-IDs, URIs and digits are kept up to this length.
const MAX_TEXT: usize = 512;
/// Message hashes remembered of one call, for detecting retransmissions.
const MAX_MEMORY: usize = 64;
/// Senders of SDP remembered of one call.
const MAX_SENDERS: usize = 8;

/// Whether the bytes begin with a request line or status line of SIP.
pub(super) fn is_sip_start(bytes: &[u8]) -> bool {
    if bytes.starts_with(b"SIP/2.0 ") {
        return true;
    }
    if !matches!(bytes.first(), Some(b'A'..=b'Z' | b'a'..=b'z')) {
        return false;
    }
    let head = bytes.get(..MAX_START_LINE).unwrap_or(bytes);
    let Some(end) = memchr::memchr(b'\n', head) else {
        return false;
    };
    let line = head.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let Some(method) = memchr::memchr(b' ', line) else {
        return false;
    };
    line.ends_with(b" SIP/2.0") && method < 32
}

#[derive(Debug, Default)]
struct CallTrace {
    id: String,
    from: String,
    to: String,
    tcp: bool,
    messages: u64,
    retransmissions: u64,
    invite_at: Option<u64>,
    ringing_at: Option<u64>,
    first_response_at: Option<u64>,
    answered_at: Option<u64>,
    cancelled_at: Option<u64>,
    bye_at: Option<u64>,
    final_at: Option<u64>,
    status: Option<u16>,
    provisional: bool,
    /// CSeq number of the first INVITE transactions, before an answer.
    invite_sequence: u32,
    seen: Vec<u64>,
    media: Vec<(SocketAddr, Vec<SdpMedia>)>,
    dtmf_info: Vec<String>,
}

/// Call-IDs by number, for naming the call of a stream.
#[derive(Debug, Default)]
pub(super) struct CallIndex(Vec<String>);

impl CallIndex {
    pub(super) fn identifier(&self, call: usize) -> Option<String> {
        self.0.get(call).cloned()
    }
}

#[derive(Debug)]
pub(super) struct CallTable {
    index: BoundedMap<Vec<u8>, usize>,
    calls: Vec<CallTrace>,
    messages: u64,
    refused: u64,
}

impl CallTable {
    pub(super) fn new(limit: usize, key: HashKey) -> CallTable {
        CallTable {
            index: BoundedMap::new(limit, key),
            calls: Vec::new(),
            messages: 0,
            refused: 0,
        }
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes a message. Messages outside of calls are counted, and their SDP is learned.
    pub(super) fn message(
        &mut self,
        datagram: &CapturedDatagram<'_>,
        tcp: bool,
        sdp_index: &mut SdpIndex,
    ) {
        let Ok(message) = Message::parse(datagram.payload) else {
            return;
        };
        self.messages += 1;
        let body = message.body();
        let description = has_sdp(&message, body).then_some(body);
        let (sequence, method) = sequence_of(&message);
        let at = message
            .header(HeaderId::CallId)
            .filter(|_| is_call_method(method))
            .and_then(|id| self.call(id, &message, tcp));
        let medias = description.map(|body| sdp_index.learn(body, at));
        let Some(call) = at.and_then(|at| self.calls.get_mut(at)) else {
            return;
        };
        call.messages += 1;
        if call.repeats(datagram) {
            call.retransmissions += 1;
        }
        if message.is_request() {
            call.request(method, sequence, datagram.time, body);
        } else {
            call.response(method, sequence, message.status(), datagram.time);
        }
        if let Some(medias) = medias {
            call.media_of(datagram.source, medias);
        }
    }

    fn call(&mut self, id: &[u8], message: &Message<'_>, tcp: bool) -> Option<usize> {
        let id = id.get(..MAX_TEXT).unwrap_or(id);
        if let Some(at) = self.index.get(id) {
            return Some(*at);
        }
        if self.index.insert(id.to_vec(), self.calls.len()).is_err() {
            self.refused += 1;
            return None;
        }
        self.calls.push(CallTrace {
            id: String::from_utf8_lossy(id).into_owned(),
            from: uri_of(message.header(HeaderId::From)),
            to: uri_of(message.header(HeaderId::To)),
            tcp,
            ..CallTrace::default()
        });
        Some(self.calls.len() - 1)
    }

    /// All calls, the number of SIP messages, and the identifiers by number.
    pub(super) fn report(&self) -> (Vec<CallReport>, u64) {
        (
            self.calls.iter().map(CallTrace::report).collect(),
            self.messages,
        )
    }

    pub(super) fn identifiers(&self) -> CallIndex {
        CallIndex(self.calls.iter().map(|call| call.id.clone()).collect())
    }
}

fn is_call_method(method: &[u8]) -> bool {
    matches!(
        method,
        b"INVITE" | b"ACK" | b"BYE" | b"CANCEL" | b"PRACK" | b"UPDATE" | b"INFO"
    )
}

fn has_sdp(message: &Message<'_>, body: &[u8]) -> bool {
    !body.is_empty()
        && message.header(HeaderId::ContentType).is_none_or(|kind| {
            contains_ignoring_case(kind, b"sdp") || contains_ignoring_case(kind, b"multipart")
        })
        && memchr::memmem::find(body, b"m=").is_some()
}

fn contains_ignoring_case(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len())
        .any(|window| window.eq_ignore_ascii_case(word))
}

/// Number and method of CSeq; of the request line where CSeq is missing.
fn sequence_of<'a>(message: &Message<'a>) -> (u32, &'a [u8]) {
    let value = message.header(HeaderId::CSeq).unwrap_or_default();
    let mut words = value
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let number = words
        .next()
        .and_then(|number| std::str::from_utf8(number).ok()?.parse().ok())
        .unwrap_or(0);
    match words.next() {
        Some(method) => (number, method),
        None if message.is_request() => (number, message.method().as_bytes()),
        None => (number, &[]),
    }
}

/// The URI of a name-addr or addr-spec.
fn uri_of(value: Option<&[u8]>) -> String {
    let value = value.unwrap_or_default();
    let uri = match (memchr::memrchr(b'<', value), memchr::memrchr(b'>', value)) {
        (Some(open), Some(close)) if open < close => value.get(open + 1..close),
        _ => value.split(|byte| *byte == b';').next(),
    };
    let uri = uri.unwrap_or_default().trim_ascii();
    String::from_utf8_lossy(uri.get(..MAX_TEXT).unwrap_or(uri)).into_owned()
}

impl CallTrace {
    /// Whether the same bytes passed between the same addresses before. A hash suffices: only a counter depends on it.
    fn repeats(&mut self, datagram: &CapturedDatagram<'_>) -> bool {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (datagram.source, datagram.destination, datagram.payload).hash(&mut hasher);
        let hash = hasher.finish();
        if self.seen.contains(&hash) {
            return true;
        }
        if self.seen.len() >= MAX_MEMORY {
            self.seen.remove(0);
        }
        self.seen.push(hash);
        false
    }

    fn request(&mut self, method: &[u8], sequence: u32, time: u64, body: &[u8]) {
        match method {
            b"INVITE" => {
                // After a gap in a TCP stream it may be read after its response.
                self.invite_at = Some(self.invite_at.map_or(time, |at| at.min(time)));
                self.begin_attempt(sequence);
            }
            b"CANCEL" if self.answered_at.is_none() => {
                self.cancelled_at.get_or_insert(time);
            }
            b"BYE" => {
                self.bye_at.get_or_insert(time);
            }
            b"INFO" => self
                .dtmf_info
                .extend(info_digit(body).filter(|_| self.dtmf_info.len() < MAX_TEXT)),
            _ => {}
        }
    }

    /// The first message of a further attempt, with credentials or to another target: earlier responses are not the
    /// outcome.
    fn begin_attempt(&mut self, sequence: u32) {
        if self.answered_at.is_none() && sequence > self.invite_sequence {
            self.invite_sequence = sequence;
            self.status = None;
            self.final_at = None;
            self.cancelled_at = None;
            // A challenge or a redirection indicates no status of the called side (RFC 6076 section 4.3).
            self.first_response_at = self.ringing_at;
        }
    }

    fn response(&mut self, method: &[u8], sequence: u32, status: u16, time: u64) {
        if method != b"INVITE" || self.answered_at.is_some() {
            return;
        }
        self.begin_attempt(sequence);
        if status > 100 && sequence >= self.invite_sequence {
            self.first_response_at.get_or_insert(time);
        }
        match status {
            100 => self.provisional = true,
            101..=199 => {
                self.provisional = true;
                self.ringing_at.get_or_insert(time);
            }
            200..=299 => {
                self.answered_at = Some(time);
                self.status = Some(status);
                self.final_at = Some(time);
            }
            // A repeated response to an earlier attempt.
            _ if sequence < self.invite_sequence => {}
            _ => {
                self.status = Some(status);
                self.final_at.get_or_insert(time);
            }
        }
    }

    fn media_of(&mut self, sender: SocketAddr, medias: Vec<SdpMedia>) {
        if let Some(known) = self.media.iter_mut().find(|(known, _)| *known == sender) {
            known.1 = medias;
        } else if self.media.len() < MAX_SENDERS {
            self.media.push((sender, medias));
        }
    }

    fn outcome(&self) -> &'static str {
        if self.bye_at.is_some() {
            return "completed";
        }
        if self.answered_at.is_some() {
            return "established";
        }
        match (self.status, self.cancelled_at) {
            (Some(487), _) | (_, Some(_)) => "cancelled",
            (Some(486 | 600), _) => "busy",
            (Some(408 | 480), _) => "no_answer",
            (Some(401 | 407), _) => "unauthorized",
            (Some(300..=399), _) => "redirected",
            (Some(500..=599), _) => "failed",
            (Some(_), _) => "rejected",
            (None, None) if self.ringing_at.is_some() => "ringing",
            (None, None) if self.provisional => "trying",
            (None, None) => "no_response",
        }
    }

    fn ended_at(&self) -> Option<u64> {
        if self.answered_at.is_some() {
            return self.bye_at;
        }
        self.bye_at.or(self.final_at).or(self.cancelled_at)
    }

    fn report(&self) -> CallReport {
        let delay = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
        CallReport {
            call_id: self.id.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
            outcome: self.outcome(),
            invite_at: self.invite_at.map(seconds),
            answered_at: self.answered_at.map(seconds),
            ended_at: self.ended_at().map(seconds),
            messages: self.messages,
            retransmissions: self.retransmissions,
            status: self.status,
            ringing_at: self.ringing_at.map(seconds),
            post_dial_delay_ms: self
                .invite_at
                .zip(self.first_response_at)
                .map(|(from, to)| delay(from, to)),
            transport: if self.tcp { "tcp" } else { "udp" },
            media: self
                .media
                .iter()
                .flat_map(|(by, medias)| medias.iter().map(|media| media_report(*by, media)))
                .collect(),
            dtmf_info: self.dtmf_info.clone(),
        }
    }
}

fn media_report(by: SocketAddr, media: &SdpMedia) -> SdpMediaReport {
    SdpMediaReport {
        by: by.to_string(),
        kind: media.kind.clone(),
        address: media.endpoints.first().map(SocketAddr::to_string),
        protocol: media.protocol.clone(),
        codecs: media
            .formats
            .iter()
            .map(|(_, name, _)| name.clone())
            .collect(),
    }
}

/// The digit of `Signal=5` (application/dtmf-relay).
fn info_digit(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body.get(..MAX_TEXT).unwrap_or(body)).into_owned();
    let line = text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("signal")
            .then(|| value.trim().to_owned())
    })?;
    line.chars()
        .all(|c| c.is_ascii_digit() || "*#ABCDabcd!".contains(c))
        .then_some(line)
}
