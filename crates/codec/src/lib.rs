//! Voice codecs and what goes with them: G.711, tones, WAV files, resampling, levels, the built-in speech samples.
//!
//! Everything works on slices, at the caller's pace. Samples are 16-bit linear PCM; rates are in Hz.
#![forbid(unsafe_code)]

pub mod g711;
pub mod g722;
pub mod level;
pub mod resample;
pub mod speech;
pub mod tone;
pub mod wav;

pub use resample::Resampler;
pub use tone::{Tone, ToneGenerator};
