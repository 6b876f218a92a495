//! SIP over TCP: both directions of a connection are reassembled, messages are delimited by Content-Length.

use super::calls::{CallTable, is_sip_start};
use super::datagram::CapturedDatagram;
use super::keys::FlowKey;
use super::sdp::SdpIndex;
use engine::{BoundedMap, HashKey};
use std::net::SocketAddr;
use wire::sip::{HeaderId, Message};
use wire::tcp::{StreamPiece, StreamReassembler};

/// Bounds on out-of-order segments held of one direction.
const MAX_EARLY_BYTES: usize = 64 << 10;
const MAX_EARLY_SEGMENTS: usize = 256;
/// The largest message; beyond it the reader searches for the next start line.
const MAX_MESSAGE: usize = 64 << 10;

/// A TCP segment with its addresses and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpSegment<'a> {
    pub time: u64,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub sequence: u32,
    /// The acknowledgement number.
    pub acknowledged: Option<u32>,
    pub begins: bool,
    pub ends: bool,
    pub payload: &'a [u8],
    /// Bytes of the payload that the capture cut.
    pub missing: usize,
}

#[derive(Debug)]
struct TcpDirection {
    source: SocketAddr,
    destination: SocketAddr,
    stream: StreamReassembler,
    /// Bytes of messages that are not complete.
    buffer: Vec<u8>,
    last: u64,
    /// Time of the last bytes in the buffer.
    buffered_at: u64,
    serial: u64,
    /// Whether the stream has shown that it is SIP.
    is_sip: bool,
}

impl TcpDirection {
    /// Reads pieces of the stream, which were released at `now`; `None`: as if each had been captured in order.
    fn pieces(&mut self, now: Option<u64>) -> (&mut StreamReassembler, Pieces<'_>) {
        let pieces = Pieces {
            buffer: &mut self.buffer,
            buffered_at: &mut self.buffered_at,
            found: Vec::new(),
            is_sip: self.is_sip,
            now,
            gaps: 0,
        };
        (&mut self.stream, pieces)
    }
}

#[derive(Debug)]
pub(super) struct Connections {
    directions: BoundedMap<FlowKey, TcpDirection>,
    serial: u64,
    refused: u64,
    gaps: u64,
}

impl Connections {
    pub(super) fn new(limit: usize, key: HashKey) -> Connections {
        Connections {
            directions: BoundedMap::new(limit, key),
            serial: 0,
            refused: 0,
            gaps: 0,
        }
    }

    /// Places in streams of SIP at which segments are missing.
    pub(super) fn gaps(&self) -> u64 {
        self.gaps
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes a segment. A direction is followed from its SYN on as long as it may be SIP, else from the first segment
    /// that begins like SIP.
    pub(super) fn segment(
        &mut self,
        segment: &TcpSegment<'_>,
        calls: &mut CallTable,
        sdp_index: &mut SdpIndex,
    ) {
        // Before the answer to the acknowledged bytes, which the segment may contain.
        self.acknowledge(segment, calls, sdp_index);
        let key = FlowKey::new(segment.source, segment.destination, 0);
        if segment.begins && self.directions.get(&key).is_some() {
            self.close(&key, calls, sdp_index);
        }
        if self.directions.get(&key).is_none() && !self.open(key, segment) {
            return;
        }
        let Some(direction) = self.directions.get_mut(&key) else {
            return;
        };
        direction.last = segment.time;
        let (stream, mut pieces) = direction.pieces(Some(segment.time));
        if segment.begins {
            stream.start(segment.sequence.wrapping_add(1));
        }
        let sequence = segment.sequence.wrapping_add(u32::from(segment.begins));
        let mut sink = |time: u64, piece: StreamPiece<'_>| pieces.push(time, piece);
        stream.push(segment.time, sequence, segment.payload, &mut sink);
        let gaps = pieces.gaps;
        if segment.missing > 0 {
            let next = sequence.wrapping_add((segment.payload.len() + segment.missing) as u32);
            let mut sink = |time: u64, piece: StreamPiece<'_>| pieces.push(time, piece);
            stream.skip_to(segment.time, next, &mut sink);
        }
        let waiting = stream.is_waiting();
        let found = pieces.found;
        direction.is_sip |= !found.is_empty();
        self.gaps += gaps * u64::from(direction.is_sip);
        if !direction.is_sip && !may_become_sip(&direction.buffer) {
            self.directions.remove(&key);
            return;
        }
        let path = (segment.source, segment.destination);
        deliver(path, &found, calls, sdp_index);
        // Data missing before the end of the stream may still arrive.
        if segment.ends && !waiting {
            self.close(&key, calls, sdp_index);
        }
    }

    /// Skips segments of the other direction that its receiver has acknowledged, but the capture does not contain.
    fn acknowledge(
        &mut self,
        segment: &TcpSegment<'_>,
        calls: &mut CallTable,
        sdp_index: &mut SdpIndex,
    ) {
        let Some(next) = segment.acknowledged else {
            return;
        };
        let key = FlowKey::new(segment.destination, segment.source, 0);
        let direction = self.directions.get_mut(&key);
        let Some(direction) = direction.filter(|direction| direction.stream.is_waiting()) else {
            return;
        };
        let (stream, mut pieces) = direction.pieces(None);
        stream.acknowledged(next, &mut |time, piece| pieces.push(time, piece));
        let (found, gaps) = (pieces.found, pieces.gaps);
        direction.is_sip |= !found.is_empty();
        self.gaps += gaps * u64::from(direction.is_sip);
        let path = (segment.destination, segment.source);
        deliver(path, &found, calls, sdp_index);
    }

    fn open(&mut self, key: FlowKey, segment: &TcpSegment<'_>) -> bool {
        let is_sip = is_sip_start(trim_line_ends(segment.payload));
        if !is_sip && !segment.begins {
            return false;
        }
        if self.directions.is_full() {
            // Idle connections go first, in an order that does not depend on the hash.
            let mut idle: Vec<(u64, u64)> = self
                .directions
                .iter_unordered()
                .map(|(_, direction)| (direction.last, direction.serial))
                .collect();
            idle.sort_unstable();
            let limit = idle.get(idle.len() / 4).copied().unwrap_or((0, 0));
            self.directions
                .retain(|_, direction| (direction.last, direction.serial) > limit);
        }
        self.serial += 1;
        let direction = TcpDirection {
            source: segment.source,
            destination: segment.destination,
            stream: StreamReassembler::new(MAX_EARLY_BYTES, MAX_EARLY_SEGMENTS),
            buffer: Vec::new(),
            last: segment.time,
            buffered_at: segment.time,
            serial: self.serial,
            is_sip,
        };
        let opened = self.directions.insert(key, direction).is_ok();
        self.refused += u64::from(!opened);
        opened
    }

    fn close(&mut self, key: &FlowKey, calls: &mut CallTable, sdp_index: &mut SdpIndex) {
        if let Some(direction) = self.directions.remove(key) {
            self.gaps += finish(direction, calls, sdp_index);
        }
    }

    /// Delivers the remaining data, connections in the order of their first segments.
    pub(super) fn finish(&mut self, calls: &mut CallTable, sdp_index: &mut SdpIndex) {
        let mut remaining = Vec::new();
        self.directions.retain(|_, direction| {
            remaining.push(std::mem::replace(
                direction,
                TcpDirection {
                    source: direction.source,
                    destination: direction.destination,
                    stream: StreamReassembler::new(0, 0),
                    buffer: Vec::new(),
                    last: 0,
                    buffered_at: 0,
                    serial: 0,
                    is_sip: false,
                },
            ));
            false
        });
        remaining.sort_by_key(|direction| direction.serial);
        for direction in remaining {
            self.gaps += finish(direction, calls, sdp_index);
        }
    }
}

/// Delivers the remaining data. Returns the number of gaps, if it is SIP.
fn finish(mut direction: TcpDirection, calls: &mut CallTable, sdp_index: &mut SdpIndex) -> u64 {
    let (stream, mut pieces) = direction.pieces(None);
    stream.finish(&mut |time, piece| pieces.push(time, piece));
    let (mut found, gaps) = (pieces.found, pieces.gaps);
    // A message whose end is not in the capture still counts as a message.
    let time = direction.buffered_at;
    found.extend(remaining_message(&mut direction.buffer).map(|message| (time, message)));
    let path = (direction.source, direction.destination);
    deliver(path, &found, calls, sdp_index);
    gaps * u64::from(direction.is_sip || !found.is_empty())
}

fn remaining_message(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let rest = std::mem::take(buffer);
    let start = trim_line_ends(&rest);
    is_sip_start(start).then(|| start.to_vec())
}

fn deliver(
    (source, destination): (SocketAddr, SocketAddr),
    messages: &[(u64, Vec<u8>)],
    calls: &mut CallTable,
    sdp_index: &mut SdpIndex,
) {
    for (time, message) in messages {
        let datagram = CapturedDatagram {
            time: *time,
            source,
            destination,
            payload: message,
            sent_length: message.len(),
        };
        calls.message(&datagram, true, sdp_index);
    }
}

struct Pieces<'a> {
    buffer: &'a mut Vec<u8>,
    buffered_at: &'a mut u64,
    /// Messages with their times.
    found: Vec<(u64, Vec<u8>)>,
    is_sip: bool,
    /// Time of the segment that releases the pieces: the receiver has not read them before, unless the segments between
    /// are missing in the capture only.
    now: Option<u64>,
    gaps: u64,
}

impl Pieces<'_> {
    fn push(&mut self, time: u64, piece: StreamPiece<'_>) {
        match piece {
            StreamPiece::Data(bytes) => {
                self.buffer.extend_from_slice(bytes);
                *self.buffered_at = self.now.unwrap_or(time);
                self.cut();
            }
            StreamPiece::Gap => {
                let time = *self.buffered_at;
                let rest = remaining_message(self.buffer).map(|message| (time, message));
                self.found.extend(rest);
                self.now = None;
                self.gaps += 1;
            }
        }
    }

    /// Cuts complete messages off the front of the buffer.
    fn cut(&mut self) {
        let time = *self.buffered_at;
        let mut at = 0;
        loop {
            let rest = self.buffer.get(at..).unwrap_or_default();
            let start = trim_line_ends(rest);
            let skipped = rest.len() - start.len();
            match message_length(start) {
                Cut::Message(length) => {
                    let message = start.get(..length).unwrap_or(start).to_vec();
                    self.found.push((time, message));
                    at += skipped + length;
                }
                // The first line of a stream decides whether it is followed.
                Cut::NotSip(_) if !self.is_sip && self.found.is_empty() => break,
                Cut::NotSip(skip) => at += skipped + skip,
                Cut::Incomplete => {
                    at += skipped;
                    break;
                }
            }
        }
        self.buffer.drain(..at);
        if self.buffer.len() > MAX_MESSAGE {
            self.buffer.clear();
        }
    }
}

enum Cut {
    Message(usize),
    Incomplete,
    /// The number of bytes before the next possible start of a message.
    NotSip(usize),
}

/// Finds the end of the message at the beginning of a stream.
fn message_length(bytes: &[u8]) -> Cut {
    if bytes.is_empty() {
        return Cut::Incomplete;
    }
    let Some(line_end) = memchr::memchr(b'\n', bytes) else {
        return if bytes.len() > 8192 {
            Cut::NotSip(bytes.len())
        } else {
            Cut::Incomplete
        };
    };
    if !is_sip_start(bytes) {
        return Cut::NotSip(line_end + 1);
    }
    let Some(head) = memchr::memmem::find(bytes, b"\r\n\r\n") else {
        return Cut::Incomplete;
    };
    let head = head + 4;
    // On streams Content-Length is mandatory (RFC 3261 section 18.3); without it the message ends with its head.
    let length = Message::parse_framed(bytes.get(..head).unwrap_or(bytes))
        .ok()
        .and_then(|message| {
            let value = message.header(HeaderId::ContentLength)?;
            std::str::from_utf8(value)
                .ok()?
                .trim()
                .parse::<usize>()
                .ok()
        })
        .unwrap_or(0);
    match head.checked_add(length) {
        // The rest of a longer message is skipped in the search for the next start line.
        Some(total) if total <= bytes.len() => Cut::Message(total),
        Some(total) if total <= MAX_MESSAGE => Cut::Incomplete,
        _ => Cut::NotSip(head),
    }
}

/// Whether the first bytes of a stream may be the beginning of a SIP message.
fn may_become_sip(buffer: &[u8]) -> bool {
    let start = trim_line_ends(buffer);
    match memchr::memchr(b'\n', start) {
        Some(_) => is_sip_start(start),
        None => start.len() < 4096 && start.first().is_none_or(u8::is_ascii_alphabetic),
    }
}

/// Removes leading line ends, which are keep-alives (RFC 5626 section 3.5.1).
fn trim_line_ends(bytes: &[u8]) -> &[u8] {
    let skipped = bytes
        .iter()
        .position(|byte| !matches!(byte, b'\r' | b'\n'))
        .unwrap_or(bytes.len());
    bytes.get(skipped..).unwrap_or_default()
}
