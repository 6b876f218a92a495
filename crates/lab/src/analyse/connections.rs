//! SIP over TCP: the two directions of connections put in order, messages cut out by Content-Length.

use super::calls::{Calls, is_sip_start};
use super::keys::FlowKey;
use super::network::Datagram;
use super::sdp::Learned;
use engine::{BoundedMap, HashKey};
use std::net::SocketAddr;
use wire::sip::{HeaderId, Message};
use wire::tcp::{StreamPiece, StreamReassembler};

/// Early segments held of one direction.
const HELD_BYTES: usize = 64 << 10;
const HELD_SEGMENTS: usize = 256;
/// The largest message waited for; beyond it a new beginning is looked for.
const MAX_MESSAGE: usize = 64 << 10;

/// A TCP segment in its place and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
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
struct Direction {
    source: SocketAddr,
    destination: SocketAddr,
    stream: StreamReassembler,
    /// Bytes of messages that are not complete.
    buffer: Vec<u8>,
    last: u64,
    serial: u64,
    /// Whether the stream has shown that it is SIP.
    sure: bool,
}

#[derive(Debug)]
pub(super) struct Connections {
    directions: BoundedMap<FlowKey, Direction>,
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

    /// Takes a segment. A direction is followed from its SYN on as long as it may be SIP, else from the first segment that
    /// begins like SIP.
    pub(super) fn segment(
        &mut self,
        segment: &Segment<'_>,
        calls: &mut Calls,
        learned: &mut Learned,
    ) {
        let key = FlowKey::new(segment.source, segment.destination, 0);
        if segment.begins && self.directions.get(&key).is_some() {
            self.close(&key, calls, learned);
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
            sure: direction.sure,
        };
        if segment.begins {
            direction.stream.start(segment.sequence.wrapping_add(1));
        }
        let mut sink = |piece: StreamPiece<'_>| pieces.take(piece);
        let sequence = segment.sequence.wrapping_add(u32::from(segment.begins));
        direction.stream.push(sequence, segment.payload, &mut sink);
        if segment.missing > 0 {
            let next = sequence.wrapping_add((segment.payload.len() + segment.missing) as u32);
            direction.stream.skip_to(next, &mut sink);
        }
        let found = pieces.found;
        let waiting = direction.stream.is_waiting();
        direction.sure |= !found.is_empty();
        if !direction.sure && !may_become_sip(&direction.buffer) {
            self.directions.remove(&key);
            return;
        }
        deliver(
            segment.time,
            segment.source,
            segment.destination,
            &found,
            calls,
            learned,
        );
        // Where data is still missing in front of the end, it may come.
        if segment.ends && !waiting {
            self.close(&key, calls, learned);
        }
    }

    fn open(&mut self, key: FlowKey, segment: &Segment<'_>) -> bool {
        let sure = is_sip_start(trim_line_ends(segment.payload));
        if !sure && !segment.begins {
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
        let direction = Direction {
            source: segment.source,
            destination: segment.destination,
            stream: StreamReassembler::new(HELD_BYTES, HELD_SEGMENTS),
            buffer: Vec::new(),
            last: segment.time,
            serial: self.serial,
            sure,
        };
        let opened = self.directions.insert(key, direction).is_ok();
        self.refused += u64::from(!opened);
        opened
    }

    fn close(&mut self, key: &FlowKey, calls: &mut Calls, learned: &mut Learned) {
        if let Some(direction) = self.directions.remove(key) {
            finish(direction, calls, learned);
        }
    }

    /// Hands on what is still held, connections in the order of their beginning.
    pub(super) fn finish(&mut self, calls: &mut Calls, learned: &mut Learned) {
        let mut left = Vec::new();
        self.directions.retain(|_, direction| {
            left.push(std::mem::replace(
                direction,
                Direction {
                    source: direction.source,
                    destination: direction.destination,
                    stream: StreamReassembler::new(0, 0),
                    buffer: Vec::new(),
                    last: 0,
                    serial: 0,
                    sure: false,
                },
            ));
            false
        });
        left.sort_by_key(|direction| direction.serial);
        for direction in left {
            finish(direction, calls, learned);
        }
    }
}

fn finish(mut direction: Direction, calls: &mut Calls, learned: &mut Learned) {
    let mut pieces = Pieces {
        buffer: &mut direction.buffer,
        found: Vec::new(),
        sure: direction.sure,
    };
    direction.stream.finish(&mut |piece| pieces.take(piece));
    let mut found = pieces.found;
    // A message whose end the capture does not hold is still a message.
    found.extend(pieces_rest(&mut direction.buffer));
    deliver(
        direction.last,
        direction.source,
        direction.destination,
        &found,
        calls,
        learned,
    );
}

fn pieces_rest(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let rest = std::mem::take(buffer);
    let start = trim_line_ends(&rest);
    is_sip_start(start).then(|| start.to_vec())
}

fn deliver(
    time: u64,
    source: SocketAddr,
    destination: SocketAddr,
    messages: &[Vec<u8>],
    calls: &mut Calls,
    learned: &mut Learned,
) {
    for message in messages {
        let datagram = Datagram {
            time,
            source,
            destination,
            payload: message,
            sent_length: message.len(),
        };
        calls.message(&datagram, true, learned);
    }
}

struct Pieces<'a> {
    buffer: &'a mut Vec<u8>,
    found: Vec<Vec<u8>>,
    sure: bool,
}

impl Pieces<'_> {
    fn take(&mut self, piece: StreamPiece<'_>) {
        match piece {
            StreamPiece::Data(bytes) => {
                self.buffer.extend_from_slice(bytes);
                self.cut();
            }
            StreamPiece::Gap => self.found.extend(pieces_rest(self.buffer)),
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
                // The first line of a stream decides whether it is followed at all.
                Cut::NotSip(_) if !self.sure && self.found.is_empty() => break,
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
    /// So many bytes lead to where a message may begin.
    NotSip(usize),
}

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

/// Without the line ends in front, which are keep-alives (RFC 5626 section 3.5.1).
fn trim_line_ends(bytes: &[u8]) -> &[u8] {
    let skipped = bytes
        .iter()
        .position(|byte| !matches!(byte, b'\r' | b'\n'))
        .unwrap_or(bytes.len());
    bytes.get(skipped..).unwrap_or_default()
}
