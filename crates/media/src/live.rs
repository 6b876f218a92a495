//! Live audio between a sound card and a stream: a ring of samples without locks, and the encoder behind it.
//!
//! The callback of a sound card must not wait, nor may a packet thread: both sides only move samples. The clocks of a
//! sound card and of a stream differ: excess samples are dropped, gaps are filled with silence, and both are counted.

use codec::packet::{Packetiser, PacketiserSettings};
use codec::{CodecError, Format, Resampler};
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicI16, AtomicU64, Ordering};
use std::sync::Arc;

/// Audio that the ring holds, milliseconds.
const CAPACITY_MS: u32 = 1_000;
/// Waiting audio with which the reader begins, and begins again after a gap, milliseconds.
const TARGET_MS: u32 = 40;
/// Waiting audio above which the reader drops the oldest, down to the target, milliseconds.
const LIMIT_MS: u32 = 160;

/// Counters of a ring, in samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveFigures {
    /// Samples that passed.
    pub samples: u64,
    /// Samples of silence that the reader got because there were none.
    pub missing: u64,
    /// Samples that were dropped because the reader was slower than the writer.
    pub dropped: u64,
}

#[derive(Debug)]
struct Ring {
    rate: u32,
    samples: Box<[AtomicI16]>,
    written: AtomicU64,
    read: AtomicU64,
    /// Whether the reader has begun: earlier samples belong to no call.
    begun: AtomicBool,
    /// Whether the reader has the target and takes samples.
    flowing: AtomicBool,
    missing: AtomicU64,
    /// Dropped by the reader before it had begun, by the reader later, and by the writer.
    skipped: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
}

impl Ring {
    fn samples_of(&self, ms: u32) -> u64 {
        u64::from(self.rate) * u64::from(ms) / 1_000
    }

    fn slot(&self, position: u64) -> Option<&AtomicI16> {
        self.samples
            .get((position % self.samples.len() as u64) as usize)
    }

    fn figures(&self) -> LiveFigures {
        let read = self.read.load(Ordering::Relaxed);
        let skipped = self.skipped.load(Ordering::Relaxed);
        let dropped = self.dropped.load(Ordering::Relaxed);
        LiveFigures {
            samples: read.saturating_sub(dropped + skipped),
            missing: self.missing.load(Ordering::Relaxed),
            dropped: dropped + self.refused.load(Ordering::Relaxed),
        }
    }
}

/// A ring for mono samples at `rate` Hz; 0 counts as 8,000.
pub fn live_audio(rate: u32) -> (LiveWriter, LiveReader) {
    let rate = if rate == 0 { 8_000 } else { rate };
    let capacity = (u64::from(rate) * u64::from(CAPACITY_MS) / 1_000).max(1);
    let ring = Arc::new(Ring {
        rate,
        samples: (0..capacity).map(|_| AtomicI16::new(0)).collect(),
        written: AtomicU64::new(0),
        read: AtomicU64::new(0),
        begun: AtomicBool::new(false),
        flowing: AtomicBool::new(false),
        missing: AtomicU64::new(0),
        skipped: AtomicU64::new(0),
        dropped: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    });
    (LiveWriter(ring.clone()), LiveReader(ring))
}

/// The writing end. Only one of its clones may write at a time.
#[derive(Clone, Debug)]
pub struct LiveWriter(Arc<Ring>);

impl LiveWriter {
    /// Sample rate in Hz.
    pub fn rate(&self) -> u32 {
        self.0.rate
    }

    /// Counters.
    pub fn figures(&self) -> LiveFigures {
        self.0.figures()
    }

    /// Appends a sample. A full ring has a reader that does not read: the sample is dropped.
    pub fn push(&self, sample: i16) {
        let ring = &*self.0;
        let written = ring.written.load(Ordering::Relaxed);
        if written.saturating_sub(ring.read.load(Ordering::Acquire)) >= ring.samples.len() as u64 {
            let counted = u64::from(ring.begun.load(Ordering::Relaxed));
            ring.refused.fetch_add(counted, Ordering::Relaxed);
            return;
        }
        if let Some(slot) = ring.slot(written) {
            slot.store(sample, Ordering::Relaxed);
        }
        ring.written.store(written + 1, Ordering::Release);
    }
}

/// The reading end. Only one of its clones may read at a time.
#[derive(Clone, Debug)]
pub struct LiveReader(Arc<Ring>);

impl LiveReader {
    /// Sample rate in Hz.
    pub fn rate(&self) -> u32 {
        self.0.rate
    }

    /// Counters.
    pub fn figures(&self) -> LiveFigures {
        self.0.figures()
    }

    /// Fills `out` with the next samples. Silence stands for missing ones; then the reader waits for the target again.
    pub fn fill(&self, out: &mut [i16]) {
        let ring = &*self.0;
        let (target, limit) = (ring.samples_of(TARGET_MS), ring.samples_of(LIMIT_MS));
        // A sound card may ask for more than the target in one call.
        let wanted = out.len() as u64;
        let (target, limit) = (target.max(wanted), limit.max(2 * wanted));
        let written = ring.written.load(Ordering::Acquire);
        let mut read = ring.read.load(Ordering::Relaxed);
        let mut waiting = written.saturating_sub(read);
        let begun = ring.begun.swap(true, Ordering::Relaxed);
        if waiting > limit {
            let excess = waiting - target;
            read += excess;
            waiting = target;
            match begun {
                true => ring.dropped.fetch_add(excess, Ordering::Relaxed),
                false => ring.skipped.fetch_add(excess, Ordering::Relaxed),
            };
        }
        let mut flowing = ring.flowing.load(Ordering::Relaxed);
        let begins = !flowing && waiting >= target;
        flowing |= begins;
        let count = if flowing { waiting.min(wanted) } else { 0 };
        let (found, silent) = out.split_at_mut(count as usize);
        for (position, sample) in (read..).zip(found) {
            *sample = ring
                .slot(position)
                .map_or(0, |slot| slot.load(Ordering::Relaxed));
        }
        if !silent.is_empty() {
            silent.fill(0);
            flowing = false;
            // Before the first sample nothing is missing.
            if written > 0 {
                ring.missing
                    .fetch_add(silent.len() as u64, Ordering::Relaxed);
            }
        }
        ring.flowing.store(flowing, Ordering::Relaxed);
        ring.read.store(read + count, Ordering::Release);
    }
}

/// Encodes live audio packet by packet.
pub(crate) struct LiveEncoder {
    reader: LiveReader,
    resampler: Resampler,
    packetiser: Packetiser,
    samples: Vec<i16>,
    converted: Vec<i16>,
    packets: Vec<(bool, Vec<u8>)>,
}

impl fmt::Debug for LiveEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiveEncoder").field(&self.reader).finish()
    }
}

impl LiveEncoder {
    /// # Errors
    /// The codec is missing in this build, there is no filter for the rate of the ring, or it has no whole number of
    /// samples in a packet time.
    pub(crate) fn new(
        reader: LiveReader,
        format: Format,
        packet_ms: u32,
    ) -> Result<LiveEncoder, CodecError> {
        let unsupported = CodecError::Rate(format.kind(), reader.rate());
        let rate = format.kind().rate_near(reader.rate());
        let resampler = Resampler::new(reader.rate(), rate).map_err(|_| unsupported)?;
        if !(reader.rate() * packet_ms).is_multiple_of(1_000) {
            return Err(unsupported);
        }
        let packing = PacketiserSettings {
            packet_ms,
            suppress_silence: false,
        };
        Ok(LiveEncoder {
            packetiser: Packetiser::new(&format, rate, packing)?,
            resampler,
            samples: vec![0; (reader.rate() * packet_ms / 1_000) as usize],
            converted: Vec::new(),
            packets: Vec::new(),
            reader,
        })
    }

    /// Sets the percentage of packets that are expected to be lost. The encoder adds redundancy if its receiver can use
    /// it (`useinbandfec` of Opus, RFC 7587 section 6.1).
    pub(crate) fn set_expected_loss(&mut self, percent: u8) {
        // A library that refuses the value keeps the one before.
        let _ = self.packetiser.encoder().set_expected_loss(percent);
    }

    /// The payload of the next packet time and its marker, appended to `out`.
    pub(crate) fn append(&mut self, out: &mut Vec<u8>) -> bool {
        // The delay of the resampler holds back the first packet once.
        for _ in 0..2 {
            if self.packets.is_empty() {
                self.reader.fill(&mut self.samples);
                self.encode();
            }
        }
        if self.packets.is_empty() {
            return false;
        }
        let (marker, payload) = self.packets.remove(0);
        out.extend_from_slice(&payload);
        marker
    }

    /// Passes over the audio of a packet time.
    pub(crate) fn skip(&mut self) {
        self.reader.fill(&mut self.samples);
    }

    fn encode(&mut self) {
        self.converted.clear();
        self.resampler.process(&self.samples, &mut self.converted);
        let packets = &mut self.packets;
        // A packet that the library of the codec cannot encode is lost, as on the network.
        let _ = self.packetiser.push(&self.converted, &mut |packet| {
            packets.push((packet.marker, packet.payload.to_vec()));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::Kind;

    fn push(writer: &LiveWriter, samples: impl IntoIterator<Item = i16>) {
        samples.into_iter().for_each(|sample| writer.push(sample));
    }

    #[test]
    fn reader_begins_with_the_target_and_counts_gaps() {
        let (writer, reader) = live_audio(8_000);
        let mut out = [7; 160];
        reader.fill(&mut out);
        assert_eq!((out, reader.figures().missing), ([0; 160], 0));
        // 20 ms are fewer than the target.
        push(&writer, (1..).take(160));
        reader.fill(&mut out);
        assert_eq!((out, reader.figures().missing), ([0; 160], 160));
        push(&writer, (161..).take(160));
        reader.fill(&mut out);
        assert!(out.iter().copied().eq(1..=160));
        reader.fill(&mut out);
        assert!(out.iter().copied().eq(161..=320));
        reader.fill(&mut out);
        assert_eq!(reader.figures().missing, 320);
        assert_eq!(reader.figures().samples, 320);
    }

    #[test]
    fn waiting_audio_is_bounded() {
        let (writer, reader) = live_audio(8_000);
        // Samples from before the call are passed over.
        push(&writer, (0..).take(9_000));
        let mut out = [0; 160];
        reader.fill(&mut out);
        assert_eq!((out[0], reader.figures().dropped), (8_000 - 320, 0));
        reader.fill(&mut out);
        push(&writer, (0..).take(2_000));
        reader.fill(&mut out);
        // All but the target of 40 ms is dropped.
        assert_eq!((out[0], reader.figures().dropped), (1_680, 1_680));
        // A reader that does not read at all: the ring keeps what it has.
        push(&writer, core::iter::repeat_n(1, 20_000));
        // 160 of the target were left, so 12,160 were refused; then all but the target is dropped again.
        reader.fill(&mut out);
        assert_eq!(reader.figures().dropped, 1_680 + 12_160 + 8_000 - 320);
    }

    #[test]
    fn every_codec_encodes_live_audio_of_every_usual_rate() {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.is_available()) {
            for rate in [8_000, 16_000, 32_000, 44_100, 48_000] {
                let (writer, reader) = live_audio(rate);
                let mut encoder = LiveEncoder::new(reader.clone(), Format::new(kind), 20).unwrap();
                push(&writer, core::iter::repeat_n(0, rate as usize / 25));
                let mut packets = 0;
                for _ in 0..100 {
                    push(&writer, core::iter::repeat_n(500, rate as usize / 50));
                    let mut payload = Vec::new();
                    encoder.append(&mut payload);
                    packets += usize::from(!payload.is_empty());
                }
                assert_eq!(packets, 100, "{kind:?} {rate}");
                let figures = reader.figures();
                assert_eq!(figures.dropped, 0, "{kind:?} {rate}");
                assert!(figures.missing <= u64::from(rate) / 50, "{kind:?} {rate}");
            }
        }
        let (_, reader) = live_audio(11_025);
        assert!(LiveEncoder::new(reader, Format::Pcma, 20).is_err());
    }

    #[test]
    fn redundancy_of_opus_follows_the_receiver_and_the_loss() {
        let speech = Resampler::whole(codec::speech::speech(), 8_000, 16_000).unwrap();
        let redundant = |format: Format, loss: u8| {
            let (writer, reader) = live_audio(16_000);
            let mut encoder = LiveEncoder::new(reader, format, 20).unwrap();
            encoder.set_expected_loss(loss);
            let count = speech.chunks_exact(320).filter(|frame| {
                push(&writer, frame.iter().copied());
                let mut payload = Vec::new();
                encoder.append(&mut payload);
                codec::opus::has_redundancy(&payload)
            });
            count.count()
        };
        let requested = Format::of_decoder(Kind::Opus);
        assert!(redundant(requested, 20) > 10);
        assert_eq!(redundant(requested, 0), 0);
        assert_eq!(redundant(Format::new(Kind::Opus), 20), 0);
    }
}
