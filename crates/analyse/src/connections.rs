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
    serial: u64,
    /// Whether the stream has shown that it is SIP.
    is_sip: bool,
}

#[derive(Debug)]
pub(super) struct Connections {
    directions: BoundedMap<FlowKey, TcpDirection>,
    serial: u64,
    refused: u64,
}

impl Connections {
    pub(super) fn new(limit: usize, key: HashKey) -> Connections {
        Connections {
            directions: BoundedMap::new(limit, key),
            serial: 0,
            refused: 0,
        }
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
        let mut pieces = Pieces {
            buffer: &mut direction.buffer,
            found: Vec::new(),
            is_sip: direction.is_sip,
        };
        if segment.begins {
            direction.stream.start(segment.sequence.wrapping_add(1));
        }
        let mut sink = |piece: StreamPiece<'_>| pieces.push(piece);
        let sequence = segment.sequence.wrapping_add(u32::from(segment.begins));
        direction.stream.push(sequence, segment.payload, &mut sink);
        if segment.missing > 0 {
            let next = sequence.wrapping_add((segment.payload.len() + segment.missing) as u32);
            direction.stream.skip_to(next, &mut sink);
        }
        let found = pieces.found;
        let waiting = direction.stream.is_waiting();
        direction.is_sip |= !found.is_empty();
        if !direction.is_sip && !may_become_sip(&direction.buffer) {
            self.directions.remove(&key);
            return;
        }
        deliver(
            segment.time,
            segment.source,
            segment.destination,
            &found,
            calls,
            sdp_index,
        );
        // Data missing before the end of the stream may still arrive.
        if segment.ends && !waiting {
            self.close(&key, calls, sdp_index);
        }
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
            serial: self.serial,
            is_sip,
        };
        let opened = self.directions.insert(key, direction).is_ok();
        self.refused += u64::from(!opened);
        opened
    }

    fn close(&mut self, key: &FlowKey, calls: &mut CallTable, sdp_index: &mut SdpIndex) {
        if let Some(direction) = self.directions.remove(key) {
            finish(direction, calls, sdp_index);
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
                    serial: 0,
                    is_sip: false,
                },
            ));
            false
        });
        remaining.sort_by_key(|direction| direction.serial);
        for direction in remaining {
            finish(direction, calls, sdp_index);
        }
    }
}

fn finish(mut direction: TcpDirection, calls: &mut CallTable, sdp_index: &mut SdpIndex) {
    let mut pieces = Pieces {
        buffer: &mut direction.buffer,
        found: Vec::new(),
        is_sip: direction.is_sip,
    };
    direction.stream.finish(&mut |piece| pieces.push(piece));
    let mut found = pieces.found;
    // A message whose end is not in the capture still counts as a message.
    found.extend(remaining_message(&mut direction.buffer));
    deliver(
        direction.last,
        direction.source,
        direction.destination,
        &found,
        calls,
        sdp_index,
    );
}

fn remaining_message(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let rest = std::mem::take(buffer);
    let start = trim_line_ends(&rest);
    is_sip_start(start).then(|| start.to_vec())
}

fn deliver(
    time: u64,
    source: SocketAddr,
    destination: SocketAddr,
    messages: &[Vec<u8>],
    calls: &mut CallTable,
    sdp_index: &mut SdpIndex,
) {
    for message in messages {
        let datagram = CapturedDatagram {
            time,
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
    found: Vec<Vec<u8>>,
    is_sip: bool,
}

impl Pieces<'_> {
    fn push(&mut self, piece: StreamPiece<'_>) {
        match piece {
            StreamPiece::Data(bytes) => {
                self.buffer.extend_from_slice(bytes);
                self.cut();
            }
            StreamPiece::Gap => self.found.extend(remaining_message(self.buffer)),
        }
    }

    /// Cuts complete messages off the front of the buffer.
    fn cut(&mut self) {
        let mut at = 0;
        loop {
            let rest = self.buffer.get(at..).unwrap_or_default();
            let start = trim_line_ends(rest);
            let skipped = rest.len() - start.len();
            match message_length(start) {
                Cut::Message(length) => {
                    self.found
                        .push(start.get(..length).unwrap_or(start).to_vec());
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
