//! Transcoding: an [`Unpacker`], a [`Resampler`] if the rates differ, a [`Packetiser`].

use crate::coder::{CodecError, MAX_SAMPLES};
use crate::format::Format;
use crate::packet::{Packet, Packetiser, PacketiserSettings, Unpacker};
use crate::resample::Resampler;
use crate::{g711, kind::Kind};

/// Longest gap that is filled, milliseconds; a longer one is skipped, because concealment would be silent.
pub const MAX_GAP_MS: u32 = 1000;

/// Transcoder for one direction of a call.
pub struct Transcoder {
    unpacker: Unpacker,
    resampler: Option<Resampler>,
    packetiser: Packetiser,
    samples: Box<[i16]>,
    resampled: Vec<i16>,
}

impl Transcoder {
    /// A transcoder between two formats. If one codec supports the sample rate of the other, nothing is resampled.
    /// `seed` is that of the noise generator.
    ///
    /// # Errors
    /// As [`Format::encoder`] and [`Format::decoder`].
    pub fn new(
        from: &Format,
        to: &Format,
        packing: PacketiserSettings,
        seed: u64,
    ) -> Result<Transcoder, CodecError> {
        let (from_rate, to_rate) = rates(from.kind(), to.kind());
        let resampler = if from_rate == to_rate {
            None
        } else {
            let resampler = Resampler::new(from_rate, to_rate);
            Some(resampler.map_err(|_| CodecError::Rate(to.kind(), from_rate))?)
        };
        // Space for the longest payload, and for the resampled signal.
        let most = MAX_SAMPLES * 2;
        Ok(Transcoder {
            unpacker: Unpacker::new(from, from_rate, seed)?,
            resampler,
            packetiser: Packetiser::new(to, to_rate, packing)?,
            samples: vec![0; MAX_SAMPLES].into_boxed_slice(),
            resampled: Vec::with_capacity(most),
        })
    }

    /// The receiving half.
    pub fn unpacker(&mut self) -> &mut Unpacker {
        &mut self.unpacker
    }

    /// The sending half.
    pub fn packetiser(&mut self) -> &mut Packetiser {
        &mut self.packetiser
    }

    /// Transcodes a payload of speech.
    ///
    /// # Errors
    /// [`CodecError::Payload`] and as [`Packetiser::push`].
    pub fn audio(
        &mut self,
        payload: &[u8],
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        let count = self.decode(payload)?.len();
        self.encode(count, send)
    }

    /// Decodes a payload of speech: its samples at [`Unpacker::sample_rate`], which may be modified before
    /// [`Transcoder::encode`].
    ///
    /// # Errors
    /// [`CodecError::Payload`].
    pub fn decode(&mut self, payload: &[u8]) -> Result<&mut [i16], CodecError> {
        let count = self.unpacker.audio(payload, &mut self.samples)?;
        Ok(self.samples.get_mut(..count).unwrap_or_default())
    }

    /// Encodes the first `count` samples of the last decoded payload.
    ///
    /// # Errors
    /// As [`Packetiser::push`].
    pub fn encode(
        &mut self,
        count: usize,
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        self.pass(count.min(self.samples.len()), send)
    }

    /// Encodes the samples that `fill` writes, at most [`MAX_SAMPLES`], at the rate of [`Unpacker::sample_rate`].
    ///
    /// # Errors
    /// As [`Packetiser::push`].
    pub fn insert(
        &mut self,
        count: usize,
        fill: &mut dyn FnMut(&mut [i16]),
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        let count = count.min(self.samples.len());
        fill(self.samples.get_mut(..count).unwrap_or_default());
        self.pass(count, send)
    }

    /// Processes a comfort noise payload with a duration of `units` of the sender's timestamp.
    ///
    /// # Errors
    /// As [`Packetiser::push`].
    pub fn noise(
        &mut self,
        payload: &[u8],
        units: u32,
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        self.unpacker.noise(payload);
        self.gap(units, send)
    }

    /// Fills a gap of `units` of the sender's timestamp; skips it if it is longer than [`MAX_GAP_MS`].
    ///
    /// # Errors
    /// As [`Packetiser::push`].
    pub fn gap(&mut self, units: u32, send: &mut dyn FnMut(Packet<'_>)) -> Result<(), CodecError> {
        let clock = self.unpacker.kind().rtp_clock();
        if u64::from(units) * 1000 > u64::from(clock) * u64::from(MAX_GAP_MS) {
            let to = self.packetiser.encoder().kind().rtp_clock();
            self.packetiser
                .skip((u64::from(units) * u64::from(to) / u64::from(clock)) as u32);
            return Ok(());
        }
        let mut left = self.unpacker.samples_in(units);
        while left > 0 {
            let count = left.min(self.samples.len());
            self.unpacker.gap(&mut self.samples[..count]);
            self.pass(count, send)?;
            left -= count;
        }
        Ok(())
    }

    /// Fills a gap of `units`, one lost packet before the payload `following`, from the redundancy in that one if it
    /// has some.
    ///
    /// # Errors
    /// As [`Packetiser::push`].
    pub fn recover(
        &mut self,
        units: u32,
        following: &[u8],
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        let count = self.unpacker.samples_in(units);
        let Some(samples) = self.samples.get_mut(..count) else {
            return self.gap(units, send);
        };
        self.unpacker.recover(following, samples);
        self.pass(count, send)
    }

    /// The source pauses for `units` of its timestamp: the packet that has begun is completed as a gap is filled, and
    /// the rest is skipped.
    ///
    /// # Errors
    /// As [`Packetiser::push`].
    pub fn pause(
        &mut self,
        units: u32,
        send: &mut dyn FnMut(Packet<'_>),
    ) -> Result<(), CodecError> {
        let clock = self.unpacker.kind().rtp_clock();
        let rate = self.packetiser.encoder().sample_rate().max(1);
        let mut left = units;
        // A resampler may return some samples less than expected.
        for _ in 0..4 {
            let missing = self.packetiser.missing_samples() as u64;
            if missing == 0 || left == 0 {
                break;
            }
            let filled = (missing * u64::from(clock)).div_ceil(u64::from(rate));
            let filled = left.min(filled as u32);
            self.gap(filled, send)?;
            left -= filled;
        }
        let to = self.packetiser.encoder().kind().rtp_clock();
        let skipped = u64::from(left) * u64::from(to) / u64::from(clock.max(1));
        self.packetiser.skip(skipped as u32);
        Ok(())
    }

    fn pass(&mut self, count: usize, send: &mut dyn FnMut(Packet<'_>)) -> Result<(), CodecError> {
        let samples = &self.samples[..count];
        let Some(resampler) = &mut self.resampler else {
            return self.packetiser.push(samples, send);
        };
        self.resampled.clear();
        resampler.process(samples, &mut self.resampled);
        self.packetiser.push(&self.resampled, send)
    }
}

/// The sample rates of both codecs.
fn rates(from: Kind, to: Kind) -> (u32, u32) {
    let to_rate = to.rate_near(from.sample_rates()[0]);
    (from.rate_near(to_rate), to_rate)
}

/// Converts one law's codes to the other's in place. This is sufficient for transcoding between them if packets keep
/// their duration and the receiver conceals losses.
pub fn convert_law(from: g711::Law, codes: &mut [u8]) {
    match from {
        g711::Law::A => codes
            .iter_mut()
            .for_each(|code| *code = g711::alaw_to_ulaw(*code)),
        g711::Law::Mu => codes
            .iter_mut()
            .for_each(|code| *code = g711::ulaw_to_alaw(*code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opus_uses_the_rate_of_the_other_codec() {
        assert_eq!(rates(Kind::Opus, Kind::Pcma), (8000, 8000));
        assert_eq!(rates(Kind::G722, Kind::Opus), (16_000, 16_000));
        assert_eq!(rates(Kind::Opus, Kind::G722), (16_000, 16_000));
        assert_eq!(rates(Kind::Opus, Kind::Opus), (48_000, 48_000));
        assert_eq!(rates(Kind::G722, Kind::G729), (16_000, 8000));
        assert_eq!(rates(Kind::Pcmu, Kind::G722), (8000, 16_000));
    }

    #[test]
    fn pause_completes_the_packet_that_has_begun() {
        let packing = PacketiserSettings::default();
        let mut transcoder = Transcoder::new(&Format::Pcmu, &Format::G722, packing, 1).unwrap();
        let mut stamps = Vec::new();
        let mut send = |packet: Packet<'_>| stamps.push(packet.timestamp);
        // A frame of 10 ms, then 100 ms without packets.
        transcoder.audio(&[0xff; 80], &mut send).unwrap();
        transcoder.pause(800, &mut send).unwrap();
        transcoder.audio(&[0xff; 160], &mut send).unwrap();
        transcoder.pause(800, &mut send).unwrap();
        transcoder.audio(&[0xff; 160], &mut send).unwrap();
        let apart: Vec<u32> = stamps.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(stamps.len() >= 2 && stamps[0] == 0, "{stamps:?}");
        // Up to the delay of the resampler.
        assert!(
            apart
                .iter()
                .zip([880, 960])
                .all(|(own, due)| own.abs_diff(due) <= 160),
            "{apart:?}"
        );
    }

    #[test]
    fn law_conversion_in_place() {
        let mut codes: Vec<u8> = (0..=255).collect();
        convert_law(g711::Law::A, &mut codes);
        assert!(
            (0..=255u8)
                .zip(&codes)
                .all(|(a, &u)| g711::alaw_to_ulaw(a) == u)
        );
        convert_law(g711::Law::Mu, &mut codes);
        assert_eq!(codes[0xd5], 0xd5);
    }
}
