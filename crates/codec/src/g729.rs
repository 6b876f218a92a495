//! G.729 Annexes A and B by libbcg729, and estimation of the level of a payload without decoding it.

use crate::coder::{
    AudioDecoder, AudioEncoder, CodecError, EncodedFrame, check_frame, output_slice,
};
use crate::kind::Kind;
use bcg729::{FRAME_SAMPLES, Frame, NOISE_BYTES, SPEECH_BYTES};

/// Octets of the largest payload: 120 ms of speech and a silence descriptor.
pub const MAX_PAYLOAD: usize = 122;

/// A G.729 encoder: Annex A, with Annex B on request.
pub struct G729Encoder(bcg729::Encoder);

impl G729Encoder {
    /// A new encoder; with `annex_b` it sends silence insertion descriptors between speech.
    ///
    /// # Errors
    /// [`CodecError::Absent`].
    pub fn new(annex_b: bool) -> Result<G729Encoder, CodecError> {
        Ok(G729Encoder(bcg729::Encoder::new(annex_b)?))
    }
}

impl AudioEncoder for G729Encoder {
    fn kind(&self) -> Kind {
        Kind::G729
    }

    fn sample_rate(&self) -> u32 {
        8000
    }

    fn frame_samples(&self) -> usize {
        FRAME_SAMPLES
    }

    fn max_frame_bytes(&self) -> usize {
        SPEECH_BYTES
    }

    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<EncodedFrame, CodecError> {
        let Some(samples) = samples.as_array::<FRAME_SAMPLES>() else {
            return check_frame(samples, FRAME_SAMPLES).map(|()| EncodedFrame::Nothing);
        };
        let octets = output_slice(octets, SPEECH_BYTES)?;
        let mut frame = [0; SPEECH_BYTES];
        let encoded = match self.0.encode(samples, &mut frame) {
            bcg729::Encoded::Speech => EncodedFrame::Speech(SPEECH_BYTES),
            bcg729::Encoded::Noise => EncodedFrame::Noise(NOISE_BYTES),
            bcg729::Encoded::Nothing => EncodedFrame::Nothing,
        };
        octets.copy_from_slice(&frame);
        Ok(encoded)
    }
}

/// The frames of a payload: any number of speech frames, then at most one silence insertion descriptor (RFC 3551
/// section 4.5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames<'a> {
    /// Frames of speech, 10 ms each.
    pub speech: &'a [[u8; SPEECH_BYTES]],
    /// A silence insertion descriptor, which also lasts 10 ms.
    pub noise: Option<&'a [u8; NOISE_BYTES]>,
}

impl<'a> Frames<'a> {
    /// Splits a payload into frames.
    ///
    /// # Errors
    /// [`CodecError::Payload`] if its length is invalid.
    pub fn parse(payload: &'a [u8]) -> Result<Frames<'a>, CodecError> {
        let (speech, rest) = payload.as_chunks::<SPEECH_BYTES>();
        match rest {
            [] => Ok(Frames {
                speech,
                noise: None,
            }),
            rest => Ok(Frames {
                speech,
                noise: Some(rest.as_array().ok_or(CodecError::Payload(Kind::G729))?),
            }),
        }
    }

    /// The number of samples.
    pub fn samples(&self) -> usize {
        (self.speech.len() + usize::from(self.noise.is_some())) * FRAME_SAMPLES
    }
}

/// A G.729 decoder; it always supports the descriptors of Annex B.
pub struct G729Decoder(bcg729::Decoder);

impl G729Decoder {
    /// A new decoder.
    ///
    /// # Errors
    /// [`CodecError::Absent`].
    pub fn new() -> Result<G729Decoder, CodecError> {
        Ok(G729Decoder(bcg729::Decoder::new()?))
    }
}

impl AudioDecoder for G729Decoder {
    fn kind(&self) -> Kind {
        Kind::G729
    }

    fn sample_rate(&self) -> u32 {
        8000
    }

    fn samples_of(&self, payload: &[u8]) -> Result<usize, CodecError> {
        Ok(Frames::parse(payload)?.samples())
    }

    fn decode(&mut self, payload: &[u8], samples: &mut [i16]) -> Result<usize, CodecError> {
        let frames = Frames::parse(payload)?;
        let samples = output_slice(samples, frames.samples())?;
        let (places, _) = samples.as_chunks_mut::<FRAME_SAMPLES>();
        let speech = frames.speech.iter().map(Frame::Speech);
        let parts = speech.chain(frames.noise.map(Frame::Noise));
        for (part, place) in parts.zip(places) {
            self.0.decode(part, place);
        }
        Ok(samples.len())
    }

    fn conceal(&mut self, samples: &mut [i16]) {
        let (places, rest) = samples.as_chunks_mut::<FRAME_SAMPLES>();
        for place in places {
            self.0.decode(Frame::Nothing, place);
        }
        if !rest.is_empty() {
            // With a conforming sender a gap is a whole number of frames; otherwise the rest of the last frame is
            // dropped.
            let mut frame = [0; FRAME_SAMPLES];
            self.0.decode(Frame::Nothing, &mut frame);
            rest.copy_from_slice(&frame[..rest.len()]);
        }
    }
}

/// First stage of the conjugate gain codebook: pitch gain in 1/16384, correction of the fixed codebook's gain in
/// 1/4096; by transmitted index (clause 3.9.2 and its index mapping).
const GAIN_1: [(i16, i16); 8] = [
    (3242, 4975),
    (1551, 1213),
    (2678, 13_581),
    (1921, 4646),
    (1831, 2511),
    (0, 758),
    (356, 7378),
    (57, 2702),
];

/// Second stage.
const GAIN_2: [(i16, i16); 16] = [
    (5142, 296),
    (17_299, 931),
    (6160, 1197),
    (16_112, 1696),
    (826, 1003),
    (18_973, 2968),
    (1994, 0),
    (15_434, 119),
    (10_573, 1483),
    (15_132, 2457),
    (11_569, 598),
    (14_194, 815),
    (8091, 2431),
    (15_161, 7138),
    (9120, 263),
    (13_260, 1628),
];

/// Weights of the last four corrections in the prediction of the next gain (clause 3.9.1).
const PREDICTOR: [f32; 4] = [0.68, 0.58, 0.34, 0.19];

/// Estimates the level of a G.729 stream from the gains in its frames, at a hundredth of the cost of decoding:
/// sufficient to find active speakers and rank them by loudness. It is the level of the excitation, scaled to that of
/// the signal by a constant, the average for speech; single frames are off by some dB, because their spectrum is not
/// evaluated.
#[derive(Clone, Debug)]
pub struct GainFollower {
    corrections: [f32; 4],
    /// Power of the excitation in the last subframe.
    power: f32,
    /// Power while only noise is described.
    noise: f32,
}

impl Default for GainFollower {
    fn default() -> Self {
        GainFollower::new()
    }
}

/// Average power gain from the excitation of speech to the signal, by the synthesis filter and the halved input of the
/// codec: 27 dB together.
const SYNTHESIS_GAIN: f32 = 500.0;

/// The power gain for noise, whose spectrum is flatter: 8 dB.
const NOISE_GAIN: f32 = 6.3;

impl GainFollower {
    /// A follower at the beginning of a stream; if started later, it is accurate after some frames.
    pub const fn new() -> GainFollower {
        GainFollower {
            corrections: [-14.0; 4],
            power: 0.0,
            noise: 0.0,
        }
    }

    /// Processes a payload; returns the level of its loudest frame in dBov, `None` for a malformed payload.
    pub fn level(&mut self, payload: &[u8]) -> Option<f32> {
        let frames = Frames::parse(payload).ok()?;
        let mut loudest: f32 = 0.0;
        for frame in frames.speech {
            loudest = loudest.max(self.speech(frame));
        }
        if let Some(noise) = frames.noise {
            self.describe(noise);
            loudest = loudest.max(self.noise);
        }
        Some(crate::level::power_dbov(f64::from(loudest * SYNTHESIS_GAIN)) as f32)
    }

    /// Mean power of the excitation of a frame.
    fn speech(&mut self, frame: &[u8; SPEECH_BYTES]) -> f32 {
        // Table 8: GA1 and GB1 are bits 44 to 50, GA2 and GB2 bits 73 to 79.
        let first = u16::from_be_bytes([frame[5], frame[6]]);
        let second = u16::from(frame[9]);
        let indices = [first >> 5 & 0x7f, second & 0x7f];
        let mut sum = 0.0;
        for index in indices {
            let one = GAIN_1[usize::from(index >> 4 & 7)];
            let two = GAIN_2[usize::from(index & 15)];
            let pitch = (f32::from(one.0) + f32::from(two.0)) / 16_384.0;
            let correction = (f32::from(one.1) + f32::from(two.1)) / 4096.0;
            let predicted: f32 = self
                .corrections
                .iter()
                .zip(PREDICTOR)
                .map(|(c, p)| c * p)
                .sum();
            // Four pulses of one in forty positions have -10 dB; the mean of the prediction is 30 dB.
            let fixed_db = 30.0 + predicted + 20.0 * correction.max(1e-3).log10();
            self.corrections.copy_within(..3, 1);
            self.corrections[0] = 20.0 * correction.max(1e-3).log10();
            let fixed = 10f32.powf(fixed_db / 10.0);
            // The pitch part is the past excitation, most of which is as loud as the last subframe.
            self.power = (pitch * pitch * self.power + fixed).min(1e9);
            sum += self.power;
        }
        sum / 2.0
    }

    /// Processes the gain of a silence insertion descriptor (clause B.4.2.1): five bits, -12 dB, then steps of 4 dB,
    /// above 16 dB of 2 dB.
    fn describe(&mut self, noise: &[u8; NOISE_BYTES]) {
        let index = noise[1] >> 1 & 31;
        let db = match index {
            0 => -12.0,
            1..=5 => 4.0 * f32::from(index) - 8.0,
            _ => 2.0 * f32::from(index) + 4.0,
        };
        self.noise = 10f32.powf(db / 10.0) * NOISE_GAIN / SYNTHESIS_GAIN;
    }
}

/// Whether a payload consists of a silence insertion descriptor only.
pub fn is_noise(payload: &[u8]) -> bool {
    payload.len() == NOISE_BYTES
}
