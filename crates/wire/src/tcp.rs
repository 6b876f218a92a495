//! TCP headers (RFC 9293) and the in-order byte stream of one direction, for SIP in captures.

use crate::ethernet::{array, be16, be32};
use std::collections::VecDeque;

/// A TCP header; the lengths were checked once at [`TcpView::parse`].
#[derive(Clone, Copy, Debug)]
pub struct TcpView<'a> {
    segment: &'a [u8],
}

impl<'a> TcpView<'a> {
    /// A view; `None` for a truncated header (options included).
    pub fn parse(segment: &'a [u8]) -> Option<Self> {
        let header = usize::from(*segment.get(12)? >> 4) * 4;
        (header >= 20 && segment.len() >= header).then_some(TcpView { segment })
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        be16(self.segment, 0)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        be16(self.segment, 2)
    }

    /// Sequence number of the first payload byte (of the SYN, if set).
    pub fn sequence(&self) -> u32 {
        be32(self.segment, 4)
    }

    /// Acknowledgement number.
    pub fn acknowledgement(&self) -> u32 {
        be32(self.segment, 8)
    }

    /// ACK: the acknowledgement number is valid.
    pub fn ack(&self) -> bool {
        self.flag_byte(13) & 0x10 != 0
    }

    /// Header length with options.
    pub fn header_length(&self) -> usize {
        usize::from(self.flag_byte(12) >> 4) * 4
    }

    /// FIN.
    pub fn fin(&self) -> bool {
        self.flag_byte(13) & 1 != 0
    }

    /// SYN.
    pub fn syn(&self) -> bool {
        self.flag_byte(13) & 2 != 0
    }

    /// RST.
    pub fn rst(&self) -> bool {
        self.flag_byte(13) & 4 != 0
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.segment.get(self.header_length()..).unwrap_or_default()
    }

    fn flag_byte(&self, at: usize) -> u8 {
        array::<1>(self.segment, at)[0]
    }
}

/// Output of a [`StreamReassembler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPiece<'a> {
    /// The next bytes in order.
    Data(&'a [u8]),
    /// Bytes are missing: the reader has to resynchronise.
    Gap,
}

/// Receives pieces with their times.
pub type PieceSink<'s> = &'s mut dyn FnMut(u64, StreamPiece<'_>);

/// A segment that waits for earlier ones.
#[derive(Debug)]
struct EarlySegment {
    time: u64,
    sequence: u32,
    bytes: Vec<u8>,
}

/// Reorders the segments of one direction. Retransmitted bytes are dropped; early segments are buffered within limits,
/// beyond which the missing bytes are skipped with a [`StreamPiece::Gap`]. Pieces are passed with the time of their
/// segment; that after a gap with the time of the next one.
#[derive(Debug)]
pub struct StreamReassembler {
    next: Option<u32>,
    buffered: VecDeque<EarlySegment>,
    buffered_bytes: usize,
    limit_bytes: usize,
    limit_segments: usize,
}

impl StreamReassembler {
    /// A reassembler that buffers at most `limit_bytes` bytes in at most `limit_segments` segments.
    pub fn new(limit_bytes: usize, limit_segments: usize) -> StreamReassembler {
        StreamReassembler {
            next: None,
            buffered: VecDeque::new(),
            buffered_bytes: 0,
            limit_bytes,
            limit_segments,
        }
    }

    /// Whether the start of the stream has been determined.
    pub fn is_started(&self) -> bool {
        self.next.is_some()
    }

    /// Whether segments are buffered that wait for earlier ones.
    pub fn is_waiting(&self) -> bool {
        !self.buffered.is_empty()
    }

    /// The stream (re)starts: the next byte has sequence number `next`.
    pub fn start(&mut self, next: u32) {
        self.next = Some(next);
        self.buffered.clear();
        self.buffered_bytes = 0;
    }

    /// Adds a segment that was captured at `time`. Without a start, the first segment is the start.
    pub fn push(&mut self, time: u64, sequence: u32, payload: &[u8], sink: PieceSink<'_>) {
        if payload.is_empty() {
            return;
        }
        let next = *self.next.get_or_insert(sequence);
        let ahead = sequence.wrapping_sub(next) as i32;
        if ahead > 0 {
            self.buffer(ahead, time, sequence, payload);
            while self.buffered.len() > self.limit_segments
                || self.buffered_bytes > self.limit_bytes
            {
                self.skip_gap(sink);
            }
            return;
        }
        let duplicate = ahead.unsigned_abs() as usize;
        if let Some(fresh) = payload.get(duplicate..)
            && !fresh.is_empty()
        {
            self.next = Some(next.wrapping_add(fresh.len() as u32));
            sink(time, StreamPiece::Data(fresh));
            self.drain(sink);
        }
    }

    /// The receiver has acknowledged all bytes before `next`: if these contain bytes of a buffered segment, the missing
    /// ones before it were received, but not captured, and are skipped.
    pub fn acknowledged(&mut self, next: u32, sink: PieceSink<'_>) {
        while let Some(first) = self.buffered.front()
            && (next.wrapping_sub(first.sequence) as i32) > 0
        {
            self.skip_gap(sink);
        }
    }

    /// Ends the stream: outputs the buffered segments.
    pub fn finish(&mut self, sink: PieceSink<'_>) {
        while !self.buffered.is_empty() {
            self.skip_gap(sink);
        }
    }

    /// Skips missing bytes (after a segment whose end the capture truncated): continues at `next`.
    pub fn skip_to(&mut self, time: u64, next: u32, sink: PieceSink<'_>) {
        if self
            .next
            .is_some_and(|duplicate| (next.wrapping_sub(duplicate) as i32) > 0)
        {
            self.next = Some(next);
            sink(time, StreamPiece::Gap);
            self.drain(sink);
        }
    }

    fn buffer(&mut self, ahead: i32, time: u64, sequence: u32, payload: &[u8]) {
        let base = sequence.wrapping_sub(ahead as u32);
        let at = self
            .buffered
            .partition_point(|early| early.sequence.wrapping_sub(base) < ahead as u32);
        if let Some(early) = self.buffered.get(at)
            && early.sequence == sequence
            && early.bytes.len() >= payload.len()
        {
            return;
        }
        self.buffered_bytes += payload.len();
        let early = EarlySegment {
            time,
            sequence,
            bytes: payload.to_vec(),
        };
        self.buffered.insert(at, early);
    }

    fn drain(&mut self, sink: PieceSink<'_>) {
        while let (Some(next), Some(early)) = (self.next, self.buffered.front()) {
            let behind = next.wrapping_sub(early.sequence) as i32;
            if behind < 0 {
                return;
            }
            let Some(early) = self.buffered.pop_front() else {
                return;
            };
            self.buffered_bytes -= early.bytes.len();
            if let Some(fresh) = early.bytes.get(behind as usize..)
                && !fresh.is_empty()
            {
                self.next = Some(next.wrapping_add(fresh.len() as u32));
                sink(early.time, StreamPiece::Data(fresh));
            }
        }
    }

    fn skip_gap(&mut self, sink: PieceSink<'_>) {
        if let Some(early) = self.buffered.front() {
            self.next = Some(early.sequence);
            sink(early.time, StreamPiece::Gap);
            self.drain(sink);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(segments: &[(u32, &[u8])], limit: usize) -> Vec<Option<Vec<u8>>> {
        let mut reassembler = StreamReassembler::new(limit, 8);
        reassembler.start(u32::MAX - 1);
        let mut got: Vec<Option<Vec<u8>>> = Vec::new();
        let mut sink = |_: u64, piece: StreamPiece<'_>| match piece {
            StreamPiece::Gap => got.push(None),
            StreamPiece::Data(bytes) => got.push(Some(bytes.to_vec())),
        };
        for (sequence, bytes) in segments {
            reassembler.push(0, *sequence, bytes, &mut sink);
        }
        reassembler.finish(&mut sink);
        got
    }

    #[test]
    fn order_overlap_and_wrap() {
        let got = collect(
            &[
                (1, b"def"),
                (u32::MAX - 1, b"abc"),
                (u32::MAX, b"bcd"),
                (4, b"g"),
            ],
            100,
        );
        let all: Vec<u8> = got.into_iter().flat_map(Option::unwrap).collect();
        assert_eq!(all, b"abcdefg");
    }

    #[test]
    fn gap_is_given_up_at_the_limit_and_at_the_end() {
        let got = collect(&[(5, b"xxxx"), (9, b"yyyy")], 6);
        assert_eq!(got, [None, Some(b"xxxx".to_vec()), Some(b"yyyy".to_vec())]);
        let got = collect(&[(5, b"xx")], 100);
        assert_eq!(got, [None, Some(b"xx".to_vec())]);
    }

    #[test]
    fn skipping_over_a_cut_segment() {
        let mut reassembler = StreamReassembler::new(100, 8);
        let mut got = Vec::new();
        let mut sink = |_: u64, piece: StreamPiece<'_>| got.push(matches!(piece, StreamPiece::Gap));
        reassembler.push(1, 10, b"ab", &mut sink);
        reassembler.skip_to(1, 20, &mut sink);
        reassembler.push(2, 20, b"c", &mut sink);
        assert_eq!(got, [false, true, false]);
    }

    #[test]
    fn gap_is_skipped_when_the_bytes_after_it_are_acknowledged() {
        let mut reassembler = StreamReassembler::new(100, 8);
        let mut got = Vec::new();
        let mut sink = |time: u64, piece: StreamPiece<'_>| {
            got.push((time, matches!(piece, StreamPiece::Gap)));
        };
        reassembler.push(1, 10, b"ab", &mut sink);
        reassembler.push(2, 14, b"cd", &mut sink);
        reassembler.push(3, 18, b"ef", &mut sink);
        reassembler.acknowledged(12, &mut sink);
        reassembler.acknowledged(16, &mut sink);
        assert!(reassembler.is_waiting());
        reassembler.acknowledged(20, &mut sink);
        assert_eq!(
            got,
            [(1, false), (2, true), (2, false), (3, true), (3, false)]
        );
    }

    #[test]
    fn header_lengths() {
        let mut segment = [0u8; 24];
        segment[12] = 0x60;
        segment[13] = 0x13;
        let view = TcpView::parse(&segment).unwrap();
        assert!(view.syn() && view.fin() && !view.rst());
        assert!(view.payload().is_empty());
        assert!(TcpView::parse(&segment[..23]).is_none());
        segment[12] = 0x40;
        assert!(TcpView::parse(&segment).is_none());
    }
}
