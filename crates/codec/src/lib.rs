//! Voice codecs and what goes with them: G.711, tones, WAV files, resampling, levels, the built-in speech samples.
//!
//! Everything works on slices, at the caller's pace. Samples are 16-bit linear PCM; rates are in Hz.
#![forbid(unsafe_code)]

pub mod coder;
pub mod dtmf;
pub mod format;
mod fuzz;
pub mod g711;
pub mod g722;
pub mod g729;
pub mod kind;
pub mod level;
pub mod mix;
pub mod narrow;
pub mod noise;
pub mod opus;
pub mod packet;
pub mod plc;
pub mod resample;
pub mod sound;
pub mod speech;
pub mod tone;
pub mod transcode;
pub mod vad;
pub mod wav;

pub use coder::{CodecError, Decoder, Encoded, Encoder};
pub use format::{Format, OpusParameters};
pub use fuzz::fuzz_codec;
pub use kind::Kind;
pub use packet::{Content, Packet, Packetiser, Packing, Unpacker};
pub use resample::Resampler;
pub use sound::Sound;
pub use tone::{Tone, ToneGenerator};
pub use transcode::Transcoder;
