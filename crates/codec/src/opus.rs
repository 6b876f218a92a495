//! Opus (RFC 6716) in RTP (RFC 7587), by libopus. One channel is sent; two are received and mixed.

use crate::coder::{
    AudioDecoder, AudioEncoder, CodecError, EncodedFrame, MAX_PAYLOAD, check_frame, output_slice,
};
use crate::format::OpusParameters;
use crate::kind::Kind;
use opusic_c as libopus;
use opusic_c::{Application, Bandwidth, Bitrate, Channels, InbandFec, SampleRate};

/// Size from which a frame has to be sent; a shorter one marks discontinuous transmission (documentation of libopus).
const MIN_SENT_OCTETS: usize = 3;
/// Default complexity of the library, 0 to 10: above 5 the cost rises much and the difference is hardly audible in
/// speech.
const DEFAULT_COMPLEXITY: u8 = 5;
/// Samples that are copied to the library at a time: 60 ms at 48 kHz.
const MAX_FRAME: usize = 2880;

fn library_error(error: libopus::ErrorCode) -> CodecError {
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
    /// A copy of the samples: the library's sample type is unsigned in name.
    copy: Box<[u16]>,
}

impl OpusEncoder {
    /// An encoder of frames of `packet_ms` at `rate` Hz, limited by the receiver's parameters `parameters`. With
    /// `silence`, or if the receiver requests it, silence is not sent.
    ///
    /// # Errors
    /// [`CodecError::Rate`], [`CodecError::PacketTime`], [`CodecError::Library`].
    pub fn new(
        rate: u32,
        packet_ms: u32,
        parameters: &OpusParameters,
        silence: bool,
    ) -> Result<OpusEncoder, CodecError> {
        if !Kind::Opus.packet_times().contains(&packet_ms) {
            return Err(CodecError::PacketTime(Kind::Opus, packet_ms));
        }
        let silence = silence || parameters.discontinuous;
        let mut encoder =
            libopus::Encoder::new(Channels::Mono, library_rate(rate)?, Application::Voip)
                .map_err(library_error)?;
        encoder
            .set_max_bandwidth(bandwidth(parameters.max_playback_rate))
            .map_err(library_error)?;
        encoder
            .set_bitrate(bitrate(parameters))
            .map_err(library_error)?;
        encoder
            .set_vbr(!parameters.constant_rate)
            .map_err(library_error)?;
        encoder.set_dtx(silence).map_err(library_error)?;
        let correction = if parameters.inband_fec {
            InbandFec::Mode1
        } else {
            InbandFec::Off
        };
        encoder.set_inband_fec(correction).map_err(library_error)?;
        encoder
            .set_complexity(DEFAULT_COMPLEXITY)
            .map_err(library_error)?;
        let frame = (rate / 1000 * packet_ms) as usize;
        Ok(OpusEncoder {
            encoder,
            rate,
            frame,
            silence,
            copy: vec![0; frame].into_boxed_slice(),
        })
    }

    /// Sets the complexity, 0 to 10; the default is 5.
    ///
    /// # Errors
    /// [`CodecError::Library`].
    pub fn set_complexity(&mut self, complexity: u8) -> Result<(), CodecError> {
        self.encoder
            .set_complexity(complexity.min(10))
            .map_err(library_error)
    }
}

/// The audio bandwidth that a receiver with this sample rate can use (RFC 7587 section 6.1).
fn bandwidth(max_playback_rate: u32) -> Bandwidth {
    match max_playback_rate {
        0..=8000 => Bandwidth::Narrow,
        8001..=12_000 => Bandwidth::Medium,
        12_001..=16_000 => Bandwidth::Wide,
        16_001..=24_000 => Bandwidth::Superwide,
        _ => Bandwidth::Full,
    }
}

/// The bit rates that RFC 7587 section 3.1.1 recommends for speech, limited by the receiver.
fn bitrate(parameters: &OpusParameters) -> Bitrate {
    let wanted = match parameters.max_playback_rate {
        0..=8000 => 12_000,
        8001..=16_000 => 20_000,
        _ => 32_000,
    };
    Bitrate::Value(
        parameters
            .max_average_bitrate
            .map_or(wanted, |limit| wanted.min(limit)),
    )
}

impl AudioEncoder for OpusEncoder {
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

    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<EncodedFrame, CodecError> {
        check_frame(samples, self.frame)?;
        for (copy, &sample) in self.copy.iter_mut().zip(samples) {
            *copy = sample as u16;
        }
        let octets = output_slice(octets, MAX_PAYLOAD)?;
        let made = self
            .encoder
            .encode_to_slice(&self.copy, octets)
            .map_err(library_error)?;
        Ok(if self.silence && made < MIN_SENT_OCTETS {
            EncodedFrame::Nothing
        } else {
            EncodedFrame::Speech(made)
        })
    }

    fn set_expected_loss(&mut self, percent: u8) -> Result<(), CodecError> {
        self.encoder
            .set_packet_loss(percent.min(100))
            .map_err(library_error)
    }
}

/// An Opus decoder to one channel.
pub struct OpusDecoder {
    decoder: libopus::Decoder,
    rate: u32,
    copy: Box<[u16]>,
}

impl OpusDecoder {
    /// A decoder at `rate` Hz, for any rate of the sender.
    ///
    /// # Errors
    /// [`CodecError::Rate`], [`CodecError::Library`].
    pub fn new(rate: u32) -> Result<OpusDecoder, CodecError> {
        let decoder =
            libopus::Decoder::new(Channels::Mono, library_rate(rate)?).map_err(library_error)?;
        Ok(OpusDecoder {
            decoder,
            rate,
            copy: vec![0; rate as usize / 1000 * 120].into_boxed_slice(),
        })
    }

    /// Decodes `payload`, or conceals if it is empty; returns false if the library fails.
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

impl AudioDecoder for OpusDecoder {
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
        let samples = output_slice(samples, self.samples_of(payload)?)?;
        if self.fill(payload, samples, false) {
            Ok(samples.len())
        } else {
            Err(CodecError::Payload(Kind::Opus))
        }
    }

    fn conceal(&mut self, samples: &mut [i16]) {
        // The library conceals multiples of 2.5 ms, best in frames of the same length as those of speech.
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
                let mut frame = [0; MAX_FRAME / 24];
                let frame = &mut frame[..unit];
                let made = self.fill(&[], frame, false);
                now.copy_from_slice(&frame[..piece]);
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

/// Samples of a payload at `rate` (RFC 6716 sections 3.1 and 3.2); `None` if it is malformed or longer than 120 ms.
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

/// Whether a payload's SILK frame contains a low-bit-rate copy of the previous one (RFC 6716 section 4.2.4). Detected
/// only if the first frame begins after the first octet, as in all payloads of telephones.
pub fn has_redundancy(payload: &[u8]) -> bool {
    let (Some(&first), Some(&second)) = (payload.first(), payload.get(1)) else {
        return false;
    };
    if first >> 3 >= 16 || first & 3 != 0 {
        return false;
    }
    // One bit of voice activity per SILK frame of 20 ms, then the redundancy bit.
    let silk_frames = match first >> 3 & 3 {
        size if first >> 3 >= 12 => usize::from(size > 3) + 1,
        0 | 1 => 1,
        2 => 2,
        _ => 3,
    };
    second >> (7 - silk_frames) & 1 == 1
}

/// Whether the payload signals silence: at most two octets.
pub fn is_silence(payload: &[u8]) -> bool {
    payload.len() < MIN_SENT_OCTETS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every first octet with every count of frames: the result equals that of the library, or both refuse.
    #[test]
    fn lengths_agree_with_the_library() {
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
        let (mut sent, mut decoded) = (Vec::new(), Vec::new());
        for _ in 0..50 {
            let mut left = [0; 960];
            tone.fill(&mut left);
            let both: Vec<u16> = left.iter().flat_map(|&sample| [sample as u16, 0]).collect();
            let mut payload = [0; MAX_PAYLOAD];
            let length = encoder.encode_to_slice(&both, &mut payload).unwrap();
            let mut samples = [0; 960];
            assert_eq!(decoder.decode(&payload[..length], &mut samples), Ok(960));
            sent.extend_from_slice(&left);
            decoded.extend_from_slice(&samples);
        }
        // One of two channels, halved.
        let change = crate::level::dbov(&decoded[9600..]) - crate::level::dbov(&sent[9600..]);
        assert!((change + 6.0).abs() < 0.7, "{change}");
    }
}
