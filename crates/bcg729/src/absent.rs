//! The types of the crate for builds without the library: they cannot be constructed.

use crate::{Absent, Encoded, FRAME_SAMPLES, Frame, SPEECH_BYTES};

enum Never {}

/// State of an encoder; cannot be constructed without the library.
pub struct Encoder(Never);

impl Encoder {
    /// Always [`Absent`].
    ///
    /// # Errors
    /// [`Absent`].
    pub fn new(_silence_suppression: bool) -> Result<Encoder, Absent> {
        Err(Absent)
    }

    /// Cannot be called.
    pub fn encode(&mut self, _: &[i16; FRAME_SAMPLES], _: &mut [u8; SPEECH_BYTES]) -> Encoded {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn rfc3389(&mut self) -> Option<[u8; 11]> {
        match self.0 {}
    }
}

/// State of a decoder; cannot be constructed without the library.
pub struct Decoder(Never);

impl Decoder {
    /// Always [`Absent`].
    ///
    /// # Errors
    /// [`Absent`].
    pub fn new() -> Result<Decoder, Absent> {
        Err(Absent)
    }

    /// Cannot be called.
    pub fn decode(&mut self, _: Frame<'_>, _: &mut [i16; FRAME_SAMPLES]) {
        match self.0 {}
    }
}
