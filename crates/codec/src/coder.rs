//! What every codec's two halves have in common. A coder is made once per stream; after that nothing is allocated per frame.

use crate::kind::Kind;
use core::fmt;

/// Samples that a payload decodes to at most: 120 ms at 48 kHz (RFC 7587 section 4.2), the longest of all codecs here.
pub const MAX_SAMPLES: usize = 5760;
/// Octets of a payload that we make at most: 120 ms of 64 kbit/s are 960; Opus is held to this too.
pub const MAX_PAYLOAD: usize = 1275;

/// Why a coder cannot be made, or a call of one failed. No failure changes a coder's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// An encoder was given another number of samples than its frame has.
    Frame {
        /// Samples given.
        given: usize,
        /// Samples of a frame.
        wanted: usize,
    },
    /// The output slice is too short.
    Space {
        /// Places given.
        given: usize,
        /// Places wanted.
        wanted: usize,
    },
    /// The payload cannot be one of this codec's.
    Payload(Kind),
    /// The codec does not run at this sample rate.
    Rate(Kind, u32),
    /// The codec has no packets of this many milliseconds.
    PacketTime(Kind, u32),
    /// The codec's library was not there when this was built.
    Absent(bcg729::Absent),
    /// The codec's library refused, with its own words.
    Library(&'static str),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecError::Frame { given, wanted } => {
                write!(f, "{given} samples where a frame has {wanted}")
            }
            CodecError::Space { given, wanted } => {
                write!(f, "room for {given} where {wanted} are needed")
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

/// What an encoder made of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// That many octets of speech.
    Speech(usize),
    /// That many octets that describe noise: the codec's own silence insertion. Nothing of speech may follow in the packet.
    Noise(usize),
    /// Nothing is to be sent for this frame.
    Nothing,
}

/// Samples to octets, frame by frame.
pub trait Encoder: Send {
    /// The codec.
    fn kind(&self) -> Kind;
    /// Rate of the samples in Hz.
    fn sample_rate(&self) -> u32;
    /// Samples of a frame. A packet is one or more of them.
    fn frame_samples(&self) -> usize;
    /// Octets of a frame at most.
    fn max_frame_bytes(&self) -> usize;
    /// Encodes a frame.
    ///
    /// # Errors
    /// [`CodecError::Frame`], [`CodecError::Space`], [`CodecError::Library`].
    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<Encoded, CodecError>;
    /// How much loss to protect against, in per cent, as the receiver's reports tell. Only Opus with redundancy heeds it.
    ///
    /// # Errors
    /// [`CodecError::Library`].
    fn expect_loss(&mut self, percent: u8) -> Result<(), CodecError> {
        let _ = percent;
        Ok(())
    }
}

/// Payloads to samples, and something in their place where they are lost.
pub trait Decoder: Send {
    /// The codec.
    fn kind(&self) -> Kind;
    /// Rate of the samples in Hz.
    fn sample_rate(&self) -> u32;
    /// How many samples a payload decodes to, without decoding it.
    ///
    /// # Errors
    /// [`CodecError::Payload`].
    fn samples_of(&self, payload: &[u8]) -> Result<usize, CodecError>;
    /// Decodes a payload; gives the number of samples.
    ///
    /// # Errors
    /// [`CodecError::Payload`], [`CodecError::Space`], [`CodecError::Library`].
    fn decode(&mut self, payload: &[u8], samples: &mut [i16]) -> Result<usize, CodecError>;
    /// Fills `samples` where nothing arrived: concealment, or more of the noise that the sender described.
    fn conceal(&mut self, samples: &mut [i16]);
    /// Fills `samples`, the last before the payload `following`, from redundancy in it; true where there was some.
    /// Conceals where not. `following` is to be decoded afterwards.
    fn recover(&mut self, following: &[u8], samples: &mut [i16]) -> bool {
        let _ = following;
        self.conceal(samples);
        false
    }
    /// How much later than the codec itself would have it a sound is in the output, in samples: what concealment needs.
    fn delay(&self) -> usize {
        0
    }
}

/// The first `wanted` places of `slice`.
pub(crate) fn room<T>(slice: &mut [T], wanted: usize) -> Result<&mut [T], CodecError> {
    let given = slice.len();
    slice
        .get_mut(..wanted)
        .ok_or(CodecError::Space { given, wanted })
}

/// `samples` where they are a frame of `wanted`.
pub(crate) fn whole(samples: &[i16], wanted: usize) -> Result<(), CodecError> {
    if samples.len() == wanted {
        Ok(())
    } else {
        Err(CodecError::Frame {
            given: samples.len(),
            wanted,
        })
    }
}
