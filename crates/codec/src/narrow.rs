//! G.711 and G.722 as coders of the common kind, with concealment.

use crate::coder::{CodecError, Decoder, Encoded, Encoder, room, whole};
use crate::g711::Law;
use crate::g722;
use crate::kind::Kind;
use crate::plc::Concealer;

/// Samples of a frame of G.711: 10 ms.
const G711_FRAME: usize = 80;
/// Samples of a frame of G.722: 10 ms.
const G722_FRAME: usize = 160;

/// Delay of G.722's two filter banks together, in samples: what its predictors follow is that much ahead.
const AHEAD: usize = 22;

/// A G.711 encoder.
#[derive(Clone, Debug)]
pub struct G711Encoder(Law);

impl G711Encoder {
    /// An encoder of either law; it has no state.
    pub fn new(law: Law) -> G711Encoder {
        G711Encoder(law)
    }
}

impl Encoder for G711Encoder {
    fn kind(&self) -> Kind {
        self.0.into()
    }

    fn sample_rate(&self) -> u32 {
        8000
    }

    fn frame_samples(&self) -> usize {
        G711_FRAME
    }

    fn max_frame_bytes(&self) -> usize {
        G711_FRAME
    }

    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<Encoded, CodecError> {
        whole(samples, G711_FRAME)?;
        let count = self.0.encode(samples, room(octets, G711_FRAME)?);
        Ok(Encoded::Speech(count))
    }
}

/// A G.711 decoder.
#[derive(Clone, Debug)]
pub struct G711Decoder {
    law: Law,
    concealer: Concealer,
}

impl G711Decoder {
    /// A decoder of either law.
    pub fn new(law: Law) -> G711Decoder {
        G711Decoder {
            law,
            concealer: Concealer::new(8000),
        }
    }
}

impl Decoder for G711Decoder {
    fn kind(&self) -> Kind {
        self.law.into()
    }

    fn sample_rate(&self) -> u32 {
        8000
    }

    fn samples_of(&self, payload: &[u8]) -> Result<usize, CodecError> {
        Ok(payload.len())
    }

    fn decode(&mut self, payload: &[u8], samples: &mut [i16]) -> Result<usize, CodecError> {
        let samples = room(samples, payload.len())?;
        self.law.decode(payload, samples);
        self.concealer.received(samples);
        Ok(samples.len())
    }

    fn conceal(&mut self, samples: &mut [i16]) {
        self.concealer.conceal(samples);
    }

    fn delay(&self) -> usize {
        self.concealer.delay()
    }
}

/// A G.722 encoder at 64 kbit/s.
#[derive(Clone, Debug)]
pub struct G722Encoder(g722::Encoder);

impl G722Encoder {
    /// An encoder in its reset state.
    pub fn new() -> G722Encoder {
        G722Encoder(g722::Encoder::new(g722::Mode::Kbit64))
    }
}

impl Default for G722Encoder {
    fn default() -> Self {
        G722Encoder::new()
    }
}

impl Encoder for G722Encoder {
    fn kind(&self) -> Kind {
        Kind::G722
    }

    fn sample_rate(&self) -> u32 {
        g722::RATE
    }

    fn frame_samples(&self) -> usize {
        G722_FRAME
    }

    fn max_frame_bytes(&self) -> usize {
        G722_FRAME / 2
    }

    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<Encoded, CodecError> {
        whole(samples, G722_FRAME)?;
        let octets = room(octets, G722_FRAME / 2)?;
        Ok(Encoded::Speech(self.0.encode(samples, octets)))
    }
}

/// A G.722 decoder at 64 kbit/s.
///
/// Where packets are lost, the signal goes on as [`Concealer`] makes it, and the decoder's predictors follow it, so that they
/// are near the sender's when packets come again.
#[derive(Clone, Debug)]
pub struct G722Decoder {
    decoder: g722::Decoder,
    concealer: Concealer,
}

impl G722Decoder {
    /// A decoder in its reset state.
    pub fn new() -> G722Decoder {
        G722Decoder {
            decoder: g722::Decoder::new(g722::Mode::Kbit64),
            concealer: Concealer::new(g722::RATE),
        }
    }
}

impl Default for G722Decoder {
    fn default() -> Self {
        G722Decoder::new()
    }
}

impl Decoder for G722Decoder {
    fn kind(&self) -> Kind {
        Kind::G722
    }

    fn sample_rate(&self) -> u32 {
        g722::RATE
    }

    fn samples_of(&self, payload: &[u8]) -> Result<usize, CodecError> {
        Ok(payload.len() * 2)
    }

    fn decode(&mut self, payload: &[u8], samples: &mut [i16]) -> Result<usize, CodecError> {
        let samples = room(samples, payload.len() * 2)?;
        self.decoder.decode(payload, samples);
        self.concealer.received(samples);
        Ok(samples.len())
    }

    fn conceal(&mut self, samples: &mut [i16]) {
        for piece in samples.chunks_mut(G722_FRAME) {
            // Pieces shorter than the filters' delay are not worth following.
            if piece.len() <= AHEAD {
                self.concealer.conceal(piece);
                continue;
            }
            let first = self.concealer.lost() == 0;
            let mut before = [0; G722_FRAME];
            before.copy_from_slice(self.concealer.newest(G722_FRAME));
            self.concealer.conceal(piece);
            let mut ahead = [0; AHEAD];
            self.concealer.peek(&mut ahead);
            let made = self.concealer.newest(piece.len());
            if first {
                self.decoder.begin_to_follow(&before, &made[..AHEAD]);
            }
            self.decoder.follow(&made[AHEAD..]);
            self.decoder.follow(&ahead);
        }
    }

    fn delay(&self) -> usize {
        self.concealer.delay()
    }
}
