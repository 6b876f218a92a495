//! The library's functions, and the two types that own their state.

use crate::{Absent, Encoded, FRAME_SAMPLES, Frame, SPEECH_BYTES};
use core::marker::{PhantomData, PhantomPinned};
use core::ptr::{NonNull, null};

/// Opaque state of the library; accessed by pointer only.
#[repr(C)]
struct Opaque {
    none: [u8; 0],
    marker: PhantomData<(*mut u8, PhantomPinned)>,
}

// Signatures as in the headers bcg729/encoder.h and bcg729/decoder.h of version 1.1.1.
#[allow(non_snake_case)]
unsafe extern "C" {
    fn initBcg729EncoderChannel(enableVAD: u8) -> *mut Opaque;
    fn closeBcg729EncoderChannel(context: *mut Opaque);
    fn bcg729Encoder(context: *mut Opaque, input: *const i16, stream: *mut u8, length: *mut u8);
    fn bcg729GetRFC3389Payload(context: *mut Opaque, payload: *mut u8);
    fn initBcg729DecoderChannel() -> *mut Opaque;
    fn closeBcg729DecoderChannel(context: *mut Opaque);
    fn bcg729Decoder(
        context: *mut Opaque,
        stream: *const u8,
        length: u8,
        erased: u8,
        noise: u8,
        rfc3389: u8,
        signal: *mut i16,
    );
}

/// State of an encoder.
pub struct Encoder {
    context: NonNull<Opaque>,
    /// Whether a descriptor was generated. Without one, and without silence suppression, the library has no noise
    /// parameters and would dereference a null pointer.
    described: bool,
}

// SAFETY: the state is one block (two with silence suppression) that only this value refers to; the library has no
// global and no thread-local state.
unsafe impl Send for Encoder {}

impl Encoder {
    /// A new encoder. With `silence_suppression` it detects speech and encodes noise as descriptors (Annex B).
    ///
    /// # Errors
    /// None here; [`Absent`] if the library was not available at build time.
    pub fn new(silence_suppression: bool) -> Result<Encoder, Absent> {
        // SAFETY: no precondition; the library allocates and initialises.
        let context = unsafe { initBcg729EncoderChannel(u8::from(silence_suppression)) };
        let context = NonNull::new(context).ok_or(Absent)?;
        Ok(Encoder {
            context,
            described: false,
        })
    }

    /// Encodes a frame of 10 ms.
    pub fn encode(
        &mut self,
        samples: &[i16; FRAME_SAMPLES],
        octets: &mut [u8; SPEECH_BYTES],
    ) -> Encoded {
        let mut length = 0;
        // SAFETY: the context is alive and borrowed mutably; the library reads 80 samples and writes at most 10 octets
        // and the length, all of which the types guarantee.
        unsafe {
            bcg729Encoder(
                self.context.as_ptr(),
                samples.as_ptr(),
                octets.as_mut_ptr(),
                &raw mut length,
            );
        }
        match length {
            0 => Encoded::Nothing,
            2 => {
                self.described = true;
                Encoded::Noise
            }
            _ => Encoded::Speech,
        }
    }

    /// The noise of the last descriptor as a comfort noise payload with ten coefficients (RFC 3389); `None` before the
    /// first [`Encoded::Noise`].
    pub fn rfc3389(&mut self) -> Option<[u8; 11]> {
        if !self.described {
            return None;
        }
        let mut payload = [0; 11];
        // SAFETY: the context is alive, borrowed mutably and has described a noise; the library writes 11 octets.
        unsafe { bcg729GetRFC3389Payload(self.context.as_ptr(), payload.as_mut_ptr()) };
        Some(payload)
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        // SAFETY: the context came from the library's init, and nothing uses it after this.
        unsafe { closeBcg729EncoderChannel(self.context.as_ptr()) };
    }
}

/// State of a decoder.
pub struct Decoder(NonNull<Opaque>);

// SAFETY: as for the encoder.
unsafe impl Send for Decoder {}

impl Decoder {
    /// A new decoder.
    ///
    /// # Errors
    /// None here; [`Absent`] if the library was not available at build time.
    pub fn new() -> Result<Decoder, Absent> {
        // SAFETY: no precondition; the library allocates and initialises.
        let context = unsafe { initBcg729DecoderChannel() };
        NonNull::new(context).map(Decoder).ok_or(Absent)
    }

    /// Decodes a frame of 10 ms, or conceals one.
    pub fn decode(&mut self, frame: Frame<'_>, samples: &mut [i16; FRAME_SAMPLES]) {
        let (stream, length, erased, noise) = match frame {
            Frame::Speech(octets) => (octets.as_ptr(), 10, 0, 0),
            Frame::Noise(octets) => (octets.as_ptr(), 2, 0, 1),
            Frame::Nothing => (null(), 0, 1, 0),
        };
        // SAFETY: the context is alive and borrowed mutably; the stream has the length of its type, or is null with the
        // erasure flag, which the header allows; the library writes 80 samples.
        unsafe {
            bcg729Decoder(
                self.0.as_ptr(),
                stream,
                length,
                erased,
                noise,
                0,
                samples.as_mut_ptr(),
            );
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: the context came from the library's init, and nothing uses it after this.
        unsafe { closeBcg729DecoderChannel(self.0.as_ptr()) };
    }
}
