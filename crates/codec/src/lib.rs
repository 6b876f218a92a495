//! Voice codecs and signal processing: G.711, G.722, G.729, Opus, tones, DTMF, WAV files, resampling, levels, built-in
//! speech.
//!
//! All functions work on slices and keep no time. Samples are 16-bit linear PCM; rates are in Hz.
#![forbid(unsafe_code)]

pub mod coder;
pub mod dtmf;
pub mod format;
#[cfg(feature = "fuzz")]
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
pub mod quality;
pub mod resample;
pub mod sound;
pub mod speech;
pub mod tone;
pub mod transcode;
pub mod vad;
pub mod wav;

pub use coder::{AudioDecoder, AudioEncoder, CodecError, EncodedFrame};
pub use format::{Format, OpusParameters};
#[cfg(feature = "fuzz")]
pub use fuzz::fuzz_codec;
pub use kind::{CodecSpec, Kind};
pub use packet::{Content, Packet, Packetiser, PacketiserSettings, Unpacker};
pub use resample::Resampler;
pub use sound::Sound;
pub use tone::{Tone, ToneGenerator};
pub use transcode::Transcoder;
