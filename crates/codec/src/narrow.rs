//! G.711 and G.722 with the common coder interface and with concealment.

use crate::coder::{
    AudioDecoder, AudioEncoder, CodecError, EncodedFrame, check_frame, output_slice,
};
use crate::g711::Law;
use crate::g722;
use crate::kind::Kind;
use crate::plc::Concealer;

/// Samples of a frame of G.711: 10 ms.
const G711_FRAME_SAMPLES: usize = 80;
/// Samples of a frame of G.722: 10 ms.
const G722_FRAME_SAMPLES: usize = 160;

/// Delay of both filter banks of G.722, in samples: the signal that the predictors follow is this much ahead.
const FILTER_DELAY: usize = 22;

/// A G.711 encoder.
#[derive(Clone, Debug)]
pub struct G711Encoder(Law);

impl G711Encoder {
    /// An encoder of either law; stateless.
    pub fn new(law: Law) -> G711Encoder {
        G711Encoder(law)
    }
}

impl AudioEncoder for G711Encoder {
    fn kind(&self) -> Kind {
        self.0.into()
    }

    fn sample_rate(&self) -> u32 {
        8000
    }

    fn frame_samples(&self) -> usize {
        G711_FRAME_SAMPLES
    }

    fn max_frame_bytes(&self) -> usize {
        G711_FRAME_SAMPLES
    }

    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<EncodedFrame, CodecError> {
        check_frame(samples, G711_FRAME_SAMPLES)?;
        let count = self
            .0
            .encode(samples, output_slice(octets, G711_FRAME_SAMPLES)?);
        Ok(EncodedFrame::Speech(count))
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

impl AudioDecoder for G711Decoder {
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
        let samples = output_slice(samples, payload.len())?;
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
pub struct G722Encoder(g722::SbAdpcmEncoder);

impl G722Encoder {
    /// An encoder in its reset state.
    pub fn new() -> G722Encoder {
        G722Encoder(g722::SbAdpcmEncoder::new(g722::Mode::Kbit64))
    }
}

impl Default for G722Encoder {
    fn default() -> Self {
        G722Encoder::new()
    }
}

impl AudioEncoder for G722Encoder {
    fn kind(&self) -> Kind {
        Kind::G722
    }

    fn sample_rate(&self) -> u32 {
        g722::RATE
    }

    fn frame_samples(&self) -> usize {
        G722_FRAME_SAMPLES
    }

    fn max_frame_bytes(&self) -> usize {
        G722_FRAME_SAMPLES / 2
    }

    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<EncodedFrame, CodecError> {
        check_frame(samples, G722_FRAME_SAMPLES)?;
        let octets = output_slice(octets, G722_FRAME_SAMPLES / 2)?;
        Ok(EncodedFrame::Speech(self.0.encode(samples, octets)))
    }
}

/// A G.722 decoder at 64 kbit/s.
///
/// During losses [`Concealer`] continues the signal, and the decoder's predictors follow it, so that their state is
/// near the sender's when packets are received again.
#[derive(Clone, Debug)]
pub struct G722Decoder {
    decoder: g722::SbAdpcmDecoder,
    concealer: Concealer,
}

impl G722Decoder {
    /// A decoder in its reset state.
    pub fn new() -> G722Decoder {
        G722Decoder {
            decoder: g722::SbAdpcmDecoder::new(g722::Mode::Kbit64),
            concealer: Concealer::new(g722::RATE),
        }
    }
}

impl Default for G722Decoder {
    fn default() -> Self {
        G722Decoder::new()
    }
}

impl AudioDecoder for G722Decoder {
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
        let samples = output_slice(samples, payload.len() * 2)?;
        self.decoder.decode(payload, samples);
        self.concealer.received(samples);
        Ok(samples.len())
    }

    fn conceal(&mut self, samples: &mut [i16]) {
        for piece in samples.chunks_mut(G722_FRAME_SAMPLES) {
            // Following is useless for pieces shorter than the filters' delay.
            if piece.len() <= FILTER_DELAY {
                self.concealer.conceal(piece);
                continue;
            }
            let first = self.concealer.lost() == 0;
            let mut before = [0; G722_FRAME_SAMPLES];
            before.copy_from_slice(self.concealer.newest(G722_FRAME_SAMPLES));
            self.concealer.conceal(piece);
            let mut ahead = [0; FILTER_DELAY];
            self.concealer.peek(&mut ahead);
            let concealed = self.concealer.newest(piece.len());
            if first {
                self.decoder
                    .start_following(&before, &concealed[..FILTER_DELAY]);
            }
            self.decoder.follow(&concealed[FILTER_DELAY..]);
            self.decoder.follow(&ahead);
        }
    }

    fn delay(&self) -> usize {
        self.concealer.delay()
    }
}
