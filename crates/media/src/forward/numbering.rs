//! RTP sequence numbers and timestamps of streams whose packets are not relayed one by one, or were not for a time.
//!
//! The numbers of a synchronisation source continue over a change between relay and transcoding (RFC 3550 section 5.1):
//! with SRTP a number may not be used twice under a key, and a receiver takes a jump back for late packets. After
//! transcoding, and towards SRTP if a source begins its numbers again or a hold took half of all numbers, they are
//! therefore moved by a constant. So are timestamps, whose jumps a receiver takes for a gap or for late packets.

use super::statistics::{MAX_SOURCES, Sources};
use smallvec::SmallVec;

/// Our timestamps of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// One instant as the sender's timestamp and as ours.
    pub(crate) origin: (u32, u32),
    pub(crate) clocks: (u32, u32),
}

impl Timeline {
    /// The timeline of relayed packets: the sender's timestamps, moved by a constant.
    fn relayed(shift: u32) -> Timeline {
        Timeline {
            origin: (0, shift),
            clocks: (1, 1),
        }
    }

    /// Converts units of the sender's clock to units of ours.
    fn scaled(&self, units: u32) -> u32 {
        let (from, to) = self.clocks;
        (u64::from(units) * u64::from(to) / u64::from(from.max(1))) as u32
    }

    /// Converts a timestamp of the sender to ours.
    pub(crate) fn mapped(&self, timestamp: u32) -> u32 {
        let since = timestamp.wrapping_sub(self.origin.0);
        // Before the origin, the difference is negative.
        let local = match since as i32 >= 0 {
            true => self.scaled(since),
            false => self.scaled(since.wrapping_neg()).wrapping_neg(),
        };
        self.origin.1.wrapping_add(local)
    }
}

/// Numbers of one source. A receiver knows them if the source returns, as after music on hold, and if another plan
/// applies to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumberedSource {
    /// The source.
    pub(crate) ssrc: u32,
    /// Highest sequence number received, extended by its cycles (RFC 3550 section 6.4.1).
    pub(crate) highest: u32,
    /// Next number to send.
    pub(crate) next: u16,
    pub(crate) timeline: Timeline,
    /// Timestamp of the sender after its last packet that was transcoded.
    pub(crate) timestamp: u32,
    /// Packets and octets of transcoded packets; `None` before the first.
    pub(crate) sent: Option<(u32, u32)>,
}

impl NumberedSource {
    /// A source whose first packet has this number, and is sent under the same.
    pub(crate) fn new(ssrc: u32, first: u16) -> NumberedSource {
        NumberedSource {
            ssrc,
            highest: u32::from(first),
            next: first,
            timeline: Timeline::relayed(0),
            timestamp: 0,
            sent: None,
        }
    }

    /// A source that was relayed up to this number.
    fn relayed(ssrc: u32, highest: u32) -> NumberedSource {
        NumberedSource {
            highest,
            next: (highest as u16).wrapping_add(1),
            ..NumberedSource::new(ssrc, 0)
        }
    }

    /// Added to the timestamps of relayed packets.
    fn shift(&self) -> u32 {
        let before = self.timestamp;
        self.timeline.mapped(before).wrapping_sub(before)
    }

    /// Added to the numbers of relayed packets.
    fn offset(&self) -> u16 {
        self.next.wrapping_sub(1).wrapping_sub(self.highest as u16)
    }

    /// So many packets beyond the highest were received and relayed; late ones, which are before it, change nothing.
    fn advance(&mut self, step: u16) {
        if (step as i16) > 0 {
            self.highest = self.highest.wrapping_add(u32::from(step));
            self.next = self.next.wrapping_add(step);
        }
    }
}

/// Numbers of the sources of one side, each towards the other side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbering {
    /// Those that were seen first are first.
    sources: SmallVec<[NumberedSource; MAX_SOURCES]>,
}

impl Numbering {
    /// Stores the numbers of a source. If there are too many, the first one is forgotten.
    pub(crate) fn store(&mut self, source: NumberedSource) {
        if let Some(existing) = self.find(source.ssrc) {
            *existing = source;
            return;
        }
        if self.sources.len() >= MAX_SOURCES {
            self.sources.remove(0);
        }
        self.sources.push(source);
    }

    /// The numbers of a source.
    pub(crate) fn get(&self, ssrc: u32) -> Option<NumberedSource> {
        let mut sources = self.sources.iter();
        sources.find(|source| source.ssrc == ssrc).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    fn find(&mut self, ssrc: u32) -> Option<&mut NumberedSource> {
        self.sources.iter_mut().find(|source| source.ssrc == ssrc)
    }

    /// Transcoding begins: each source continues after its last relayed packet.
    pub(crate) fn begin_transcoding(&mut self, received: &Sources) {
        for (ssrc, highest) in received.highest() {
            match self.find(ssrc) {
                None => self.store(NumberedSource::relayed(ssrc, highest)),
                Some(source) => {
                    source.advance((highest as u16).wrapping_sub(source.highest as u16))
                }
            }
        }
    }

    /// Transcoding ends: the next packet received is sent under the next number. Returns whether a source has other
    /// numbers than its sender.
    pub(crate) fn end_transcoding(&mut self, received: &Sources) -> bool {
        for (ssrc, highest) in received.highest() {
            if let Some(source) = self.find(ssrc) {
                source.highest = highest;
            }
        }
        for source in &mut self.sources {
            source.timeline = Timeline::relayed(source.shift());
        }
        self.sources
            .retain(|source| source.offset() != 0 || source.shift() != 0);
        !self.sources.is_empty()
    }

    /// A source has begun a new sequence with this number, or goes on with it after a pause of relaying: it continues
    /// after the last number that was sent, if it would not be above it.
    pub(crate) fn restart(&mut self, ssrc: u32, sequence: u16, sent: u16) {
        let known = self.get(ssrc);
        let offset = known.map_or(0, |source| source.offset());
        let number = sequence.wrapping_add(offset);
        if number.wrapping_sub(sent) as i16 <= 0 {
            let known = known.unwrap_or_else(|| NumberedSource::new(ssrc, sequence));
            self.store(NumberedSource {
                highest: u32::from(sequence.wrapping_sub(1)),
                next: sent.wrapping_add(1),
                ..known
            });
        }
    }

    /// Number and timestamp of a relayed packet, if they are not the sender's.
    pub(crate) fn relay(&mut self, ssrc: u32, sequence: u16, timestamp: u32) -> Option<(u16, u32)> {
        let source = self.find(ssrc)?;
        let number = sequence.wrapping_add(source.offset());
        source.advance(sequence.wrapping_sub(source.highest as u16));
        Some((number, source.timeline.mapped(timestamp)))
    }

    /// The highest number of a reception report about a source, as a number of its sender.
    pub(crate) fn reported(&self, ssrc: u32, highest: u32) -> Option<u32> {
        let source = self.get(ssrc)?;
        let sequence = (highest as u16).wrapping_sub(source.offset());
        let behind = (source.highest as u16).wrapping_sub(sequence);
        // The receiver counts cycles from its own first packet.
        Some(match (behind as i16) < 0 {
            true => source.highest,
            false => source.highest.wrapping_sub(u32::from(behind)),
        })
    }
}
