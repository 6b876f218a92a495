//! Opus (RFC 6716) in RTP (RFC 7587), by libopus. We send one channel; two are received and mixed.

use crate::coder::{CodecError, Decoder, Encoded, Encoder, MAX_PAYLOAD, room, whole};
use crate::format::OpusParameters;
use crate::kind::Kind;
use opusic_c as libopus;
use opusic_c::{Application, Bandwidth, Bitrate, Channels, InbandFec, SampleRate};

/// Octets from which on a frame is more than a sign that nothing is to be sent (the library's documentation of DTX).
const NOTHING_BELOW: usize = 3;
/// The library's effort, 0 to 10, unless set otherwise: from 5 on more costs much and is hardly heard in speech.
const EFFORT: u8 = 5;
/// Samples that are copied to the library at once: 60 ms at 48 kHz.
const MAX_FRAME: usize = 2880;

fn refused(error: libopus::ErrorCode) -> CodecError {
    CodecError::Library(error.message())
}

fn library_rate(rate: u32) -> Result<SampleRate, CodecError> {
    match rate {
        8000 => Ok(SampleRate::Hz8000),
        12_000 => Ok(SampleRate::Hz12000),
        16_000 => Ok(SampleRate::Hz16000),
        24_000 => Ok(SampleRate::Hz24000),
        48_000 => Ok(SampleRate::Hz48000),
        _ => Err(CodecError::Rate(Kind::Opus, rate)),
    }
}

/// An Opus encoder for voice.
pub struct OpusEncoder {
    encoder: libopus::Encoder,
    rate: u32,
    frame: usize,
    silence: bool,
    /// The library's samples are unsigned in name.
    copy: Box<[u16]>,
}

impl OpusEncoder {
    /// An encoder of frames of `packet_ms` at `rate` Hz that keeps to what the receiver asks for in `wishes`. With `silence`,
    /// or where the receiver wishes so, nothing is sent while there is nothing but noise.
    ///
    /// # Errors
    /// [`CodecError::Rate`], [`CodecError::PacketTime`], [`CodecError::Library`].
    pub fn new(
        rate: u32,
        packet_ms: u32,
        wishes: &OpusParameters,
        silence: bool,
    ) -> Result<OpusEncoder, CodecError> {
        if !Kind::Opus.packet_times().contains(&packet_ms) {
            return Err(CodecError::PacketTime(Kind::Opus, packet_ms));
        }
        let silence = silence || wishes.discontinuous;
        let mut encoder =
            libopus::Encoder::new(Channels::Mono, library_rate(rate)?, Application::Voip)
                .map_err(refused)?;
        encoder
            .set_max_bandwidth(bandwidth(wishes.max_playback_rate))
            .map_err(refused)?;
        encoder.set_bitrate(bitrate(wishes)).map_err(refused)?;
        encoder.set_vbr(!wishes.constant_rate).map_err(refused)?;
        encoder.set_dtx(silence).map_err(refused)?;
        let correction = if wishes.inband_fec {
            InbandFec::Mode1
        } else {
            InbandFec::Off
        };
        encoder.set_inband_fec(correction).map_err(refused)?;
        encoder.set_complexity(EFFORT).map_err(refused)?;
        let frame = (rate / 1000 * packet_ms) as usize;
        Ok(OpusEncoder {
            encoder,
            rate,
            frame,
            silence,
            copy: vec![0; frame].into_boxed_slice(),
        })
    }

    /// Effort from 0 to 10; 5 unless set.
    ///
    /// # Errors
    /// [`CodecError::Library`].
    pub fn set_complexity(&mut self, effort: u8) -> Result<(), CodecError> {
        self.encoder.set_complexity(effort.min(10)).map_err(refused)
    }
}

/// The audio bandwidth that a receiver with this sample rate can make use of (RFC 7587 section 6.1).
fn bandwidth(max_playback_rate: u32) -> Bandwidth {
    match max_playback_rate {
        0..=8000 => Bandwidth::Narrow,
        8001..=12_000 => Bandwidth::Medium,
        12_001..=16_000 => Bandwidth::Wide,
        16_001..=24_000 => Bandwidth::Superwide,
        _ => Bandwidth::Full,
    }
}

/// The rates that RFC 7587 section 3.1.1 recommends for speech, under the receiver's limit.
fn bitrate(wishes: &OpusParameters) -> Bitrate {
    let wanted = match wishes.max_playback_rate {
        0..=8000 => 12_000,
        8001..=16_000 => 20_000,
        _ => 32_000,
    };
    Bitrate::Value(
        wishes
            .max_average_bitrate
            .map_or(wanted, |limit| wanted.min(limit)),
    )
}

impl Encoder for OpusEncoder {
    fn kind(&self) -> Kind {
        Kind::Opus
    }

    fn sample_rate(&self) -> u32 {
        self.rate
    }

    fn frame_samples(&self) -> usize {
        self.frame
    }

    fn max_frame_bytes(&self) -> usize {
        MAX_PAYLOAD
    }

    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<Encoded, CodecError> {
        whole(samples, self.frame)?;
        for (copy, &sample) in self.copy.iter_mut().zip(samples) {
            *copy = sample as u16;
        }
        let octets = room(octets, MAX_PAYLOAD)?;
        let made = self
            .encoder
            .encode_to_slice(&self.copy, octets)
            .map_err(refused)?;
        Ok(if self.silence && made < NOTHING_BELOW {
            Encoded::Nothing
        } else {
            Encoded::Speech(made)
        })
    }

    fn expect_loss(&mut self, percent: u8) -> Result<(), CodecError> {
        self.encoder
            .set_packet_loss(percent.min(100))
            .map_err(refused)
    }
}

/// An Opus decoder to one channel.
pub struct OpusDecoder {
    decoder: libopus::Decoder,
    rate: u32,
    copy: Box<[u16]>,
}

impl OpusDecoder {
    /// A decoder at `rate` Hz, whatever the sender had.
    ///
    /// # Errors
    /// [`CodecError::Rate`], [`CodecError::Library`].
    pub fn new(rate: u32) -> Result<OpusDecoder, CodecError> {
        let decoder =
            libopus::Decoder::new(Channels::Mono, library_rate(rate)?).map_err(refused)?;
        Ok(OpusDecoder {
            decoder,
            rate,
            copy: vec![0; rate as usize / 1000 * 120].into_boxed_slice(),
        })
    }

    /// Lets the library fill `samples` from `payload`, or from nothing where it is empty; false where it refuses.
    fn fill(&mut self, payload: &[u8], samples: &mut [i16], redundancy: bool) -> bool {
        let copy = &mut self.copy[..samples.len()];
        match self.decoder.decode_to_slice(payload, copy, redundancy) {
            Ok(made) if made == samples.len() => {
                for (sample, &copy) in samples.iter_mut().zip(copy.iter()) {
                    *sample = copy as i16;
                }
                true
            }
            _ => false,
        }
    }
}

impl Decoder for OpusDecoder {
    fn kind(&self) -> Kind {
        Kind::Opus
    }

    fn sample_rate(&self) -> u32 {
        self.rate
    }

    fn samples_of(&self, payload: &[u8]) -> Result<usize, CodecError> {
        packet_samples(payload, self.rate).ok_or(CodecError::Payload(Kind::Opus))
    }

    fn decode(&mut self, payload: &[u8], samples: &mut [i16]) -> Result<usize, CodecError> {
        let samples = room(samples, self.samples_of(payload)?)?;
        if self.fill(payload, samples, false) {
            Ok(samples.len())
        } else {
            Err(CodecError::Payload(Kind::Opus))
        }
    }

    fn conceal(&mut self, samples: &mut [i16]) {
        // The library conceals whole multiples of 2.5 ms, best in frames as long as speech has.
        let unit = self.rate as usize / 400;
        let mut rest = samples;
        while !rest.is_empty() {
            let piece = match rest.len() {
                length if length >= 8 * unit => 8 * unit,
                length if length >= unit => length / unit * unit,
                length => length,
            };
            let (now, later) = rest.split_at_mut(piece);
            if piece < unit {
                let mut whole = [0; MAX_FRAME / 24];
                let whole = &mut whole[..unit];
                let made = self.fill(&[], whole, false);
                now.copy_from_slice(&whole[..piece]);
                debug_assert!(made);
            } else if !self.fill(&[], now, false) {
                now.fill(0);
            }
            rest = later;
        }
    }

    fn recover(&mut self, following: &[u8], samples: &mut [i16]) -> bool {
        let unit = self.rate as usize / 400;
        let fits = samples.len().is_multiple_of(unit) && samples.len() <= self.copy.len();
        if fits && has_redundancy(following) && self.fill(following, samples, true) {
            return true;
        }
        self.conceal(samples);
        false
    }
}

/// Samples per frame of a payload at `rate`, by its first octet (RFC 6716 section 3.1).
fn frame_samples(first: u8, rate: u32) -> usize {
    let rate = rate as usize;
    let size = usize::from(first >> 3 & 3);
    match first >> 3 {
        // SILK only: 10, 20, 40, 60 ms.
        0..=11 => rate / 100 * [1, 2, 4, 6][size],
        // Hybrid: 10 or 20 ms.
        12..=15 => rate / 100 * [1, 2][size & 1],
        // CELT only: 2.5, 5, 10, 20 ms.
        _ => (rate / 400) << size,
    }
}

/// Samples of a payload at `rate` (RFC 6716 sections 3.1 and 3.2); `None` where it is malformed or longer than 120 ms.
pub fn packet_samples(payload: &[u8], rate: u32) -> Option<usize> {
    let first = *payload.first()?;
    let frames = match first & 3 {
        0 => 1,
        1 | 2 => 2,
        _ => usize::from(payload.get(1)? & 63),
    };
    let samples = frames * frame_samples(first, rate);
    (samples > 0 && samples <= rate as usize / 25 * 3).then_some(samples)
}

/// Whether a payload's SILK frame carries a low-bit-rate copy of the one before it (RFC 6716 section 4.2.4). Only where the
/// first frame begins behind the first octet, which is the case for all that telephones send.
pub fn has_redundancy(payload: &[u8]) -> bool {
    let (Some(&first), Some(&second)) = (payload.first(), payload.get(1)) else {
        return false;
    };
    if first >> 3 >= 16 || first & 3 != 0 {
        return false;
    }
    // One bit of voice activity per SILK frame of 20 ms, then the bit that we look for.
    let silk_frames = match first >> 3 & 3 {
        size if first >> 3 >= 12 => usize::from(size > 3) + 1,
        0 | 1 => 1,
        2 => 2,
        _ => 3,
    };
    second >> (7 - silk_frames) & 1 == 1
}

/// Whether the sender says that there is nothing but silence: a payload of at most two octets.
pub fn is_silence(payload: &[u8]) -> bool {
    payload.len() < NOTHING_BELOW
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every first octet with every count of frames: the library finds the same length, or we refuse what it would.
    #[test]
    fn lengths_are_the_librarys() {
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                let payload = [first, second, 1, 2, 3, 4];
                for rate in [8000, 48_000] {
                    let theirs =
                        libopus::utils::get_nb_samples(&payload, library_rate(rate).unwrap());
                    assert_eq!(
                        packet_samples(&payload, rate),
                        theirs.ok().filter(|&n| n > 0)
                    );
                }
            }
        }
        assert_eq!(packet_samples(&[], 48_000), None);
        assert_eq!(packet_samples(&[3], 48_000), None);
        assert!(is_silence(&[8, 0]) && !is_silence(&[8, 0, 0]));
    }

    #[test]
    fn opus_in_stereo_is_mixed() {
        let mut encoder =
            libopus::Encoder::new(Channels::Stereo, SampleRate::Hz48000, Application::Audio)
                .unwrap();
        let mut decoder = OpusDecoder::new(48_000).unwrap();
        let mut tone = crate::ToneGenerator::new(crate::Tone::sine(440.0, -10.0), 48_000);
        let (mut sent, mut heard) = (Vec::new(), Vec::new());
        for _ in 0..50 {
            let mut left = [0; 960];
            tone.fill(&mut left);
            let both: Vec<u16> = left.iter().flat_map(|&sample| [sample as u16, 0]).collect();
            let mut payload = [0; MAX_PAYLOAD];
            let length = encoder.encode_to_slice(&both, &mut payload).unwrap();
            let mut samples = [0; 960];
            assert_eq!(decoder.decode(&payload[..length], &mut samples), Ok(960));
            sent.extend_from_slice(&left);
            heard.extend_from_slice(&samples);
        }
        // One of two channels, halved.
        let change = crate::level::dbov(&heard[9600..]) - crate::level::dbov(&sent[9600..]);
        assert!((change + 6.0).abs() < 0.7, "{change}");
    }
}
