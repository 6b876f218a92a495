//! G.729 Annexes A and B by libbcg729: two safe types over the library's functions.
//!
//! This crate exists because there is no maintained wrapper of the library, and because calling C is `unsafe`, which
//! the codec crate forbids. All unsafe code is in `linked.rs`. If the library is not available at build time,
//! [`AVAILABLE`] is false and both constructors return [`Absent`].

use core::fmt;

#[cfg(bcg729_present)]
mod linked;
#[cfg(bcg729_present)]
pub use linked::{Decoder, Encoder};

#[cfg(not(bcg729_present))]
mod absent;
#[cfg(not(bcg729_present))]
pub use absent::{Decoder, Encoder};

/// Whether the library was available at build time.
pub const AVAILABLE: bool = cfg!(bcg729_present);
/// Samples of a frame: 10 ms at 8 kHz.
pub const FRAME_SAMPLES: usize = 80;
/// Octets of a frame of speech.
pub const SPEECH_BYTES: usize = 10;
/// Octets of a silence insertion descriptor (Annex B).
pub const NOISE_BYTES: usize = 2;

/// The library was not available at build time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent;

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "G.729: libbcg729 was not available at build time (Debian package libbcg729-dev)",
        )
    }
}

impl core::error::Error for Absent {}

/// The result of encoding a frame; the octets are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// Speech: [`SPEECH_BYTES`] octets.
    Speech,
    /// A silence insertion descriptor: [`NOISE_BYTES`] octets.
    Noise,
    /// Nothing to send: the noise has not changed.
    Nothing,
}

/// The received data of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Speech.
    Speech(&'a [u8; SPEECH_BYTES]),
    /// A silence insertion descriptor.
    Noise(&'a [u8; NOISE_BYTES]),
    /// Nothing: lost within speech, or not sent within noise. The library distinguishes them by the previous frame.
    Nothing,
}
