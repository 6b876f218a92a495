//! The common interface of encoders and decoders. A coder is constructed once per stream; coding a frame allocates
//! nothing.

use crate::kind::Kind;
use core::fmt;

/// Maximum number of samples of a decoded payload: 120 ms at 48 kHz (RFC 7587 section 4.2), the longest of all codecs
/// here.
pub const MAX_SAMPLES: usize = 5760;
/// Maximum size of an encoded payload, octets: 120 ms at 64 kbit/s are 960; Opus is limited to this size too.
pub const MAX_PAYLOAD: usize = 1275;

/// The reason why a coder cannot be constructed, or a call failed. A failed call does not change the coder's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// The number of samples differs from the frame size of the encoder.
    Frame {
        /// Number of samples given.
        actual: usize,
        /// Samples of a frame.
        required: usize,
    },
    /// The output slice is too short.
    Space {
        /// Length of the slice.
        actual: usize,
        /// Length required.
        required: usize,
    },
    /// The payload is not one of this codec.
    Payload(Kind),
    /// The codec does not run at this sample rate.
    Rate(Kind, u32),
    /// The codec has no packets of this many milliseconds.
    PacketTime(Kind, u32),
    /// The codec's library was not available at build time.
    Absent(bcg729::Absent),
    /// The codec's library failed, with its error text.
    Library(&'static str),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecError::Frame { actual, required } => {
                write!(f, "{actual} samples where a frame has {required}")
            }
            CodecError::Space { actual, required } => {
                write!(
                    f,
                    "the buffer has {actual} elements, {required} are required"
                )
            }
            CodecError::Payload(kind) => write!(f, "not a payload of {}", kind.name()),
            CodecError::Rate(kind, rate) => write!(f, "{} does not run at {rate} Hz", kind.name()),
            CodecError::PacketTime(kind, ms) => {
                write!(f, "{} has no packets of {ms} ms", kind.name())
            }
            CodecError::Absent(absent) => absent.fmt(f),
            CodecError::Library(words) => f.write_str(words),
        }
    }
}

impl core::error::Error for CodecError {}

impl From<bcg729::Absent> for CodecError {
    fn from(absent: bcg729::Absent) -> CodecError {
        CodecError::Absent(absent)
    }
}

/// The result of encoding a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodedFrame {
    /// This many octets of speech.
    Speech(usize),
    /// This many octets of a silence insertion descriptor of the codec. It has to be the last frame of its packet.
    Noise(usize),
    /// Nothing to send for this frame.
    Nothing,
}

/// Encodes samples to octets, frame by frame.
pub trait AudioEncoder: Send {
    /// The codec.
    fn kind(&self) -> Kind;
    /// Rate of the samples in Hz.
    fn sample_rate(&self) -> u32;
    /// Samples of a frame. A packet is one or more of them.
    fn frame_samples(&self) -> usize;
    /// Maximum number of octets of a frame.
    fn max_frame_bytes(&self) -> usize;
    /// Encodes a frame.
    ///
    /// # Errors
    /// [`CodecError::Frame`], [`CodecError::Space`], [`CodecError::Library`].
    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<EncodedFrame, CodecError>;
    /// Sets the packet loss to protect against, in percent, as reported by the receiver. Used only by Opus with
    /// redundancy.
    ///
    /// # Errors
    /// [`CodecError::Library`].
    fn set_expected_loss(&mut self, percent: u8) -> Result<(), CodecError> {
        let _ = percent;
        Ok(())
    }
}

/// Decodes payloads to samples, and conceals lost ones.
pub trait AudioDecoder: Send {
    /// The codec.
    fn kind(&self) -> Kind;
    /// Rate of the samples in Hz.
    fn sample_rate(&self) -> u32;
    /// The number of samples of a payload, without decoding it.
    ///
    /// # Errors
    /// [`CodecError::Payload`].
    fn samples_of(&self, payload: &[u8]) -> Result<usize, CodecError>;
    /// Decodes a payload; returns the number of samples.
    ///
    /// # Errors
    /// [`CodecError::Payload`], [`CodecError::Space`], [`CodecError::Library`].
    fn decode(&mut self, payload: &[u8], samples: &mut [i16]) -> Result<usize, CodecError>;
    /// Fills `samples` for a lost or absent payload: by concealment, or by noise that the sender has described.
    fn conceal(&mut self, samples: &mut [i16]);
    /// Fills `samples`, which precede the payload `following`, from the redundancy in it; returns true if there is
    /// some, otherwise conceals. `following` has to be decoded afterwards.
    fn recover(&mut self, following: &[u8], samples: &mut [i16]) -> bool {
        let _ = following;
        self.conceal(samples);
        false
    }
    /// Additional delay of the output by concealment, in samples.
    fn delay(&self) -> usize {
        0
    }
}

/// The first `required` elements of `slice`.
pub(crate) fn output_slice<T>(slice: &mut [T], required: usize) -> Result<&mut [T], CodecError> {
    let actual = slice.len();
    slice
        .get_mut(..required)
        .ok_or(CodecError::Space { actual, required })
}

/// Checks that `samples` are a frame of `required` samples.
pub(crate) fn check_frame(samples: &[i16], required: usize) -> Result<(), CodecError> {
    if samples.len() == required {
        Ok(())
    } else {
        Err(CodecError::Frame {
            actual: samples.len(),
            required,
        })
    }
}
