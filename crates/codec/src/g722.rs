//! G.722: wideband speech at 64 kbit/s in two sub-bands, and its modes of 56 and 48 kbit/s.
//!
//! Samples are at 16 kHz; an octet contains two of them: the two bits of the higher band above the six of the lower
//! one. The RTP clock rate is nevertheless 8000 Hz, an old mistake that RFC 3551 section 4.5.2 keeps: an octet is one
//! timestamp unit.
//!
//! In modes 2 and 3 the lowest one or two bits of each octet belong to an auxiliary data channel (clause 1.3 of the
//! Recommendation). RTP uses mode 1 only (RFC 3551); the others serve material from other transports.

mod band;
mod tables;

use band::{Band, SubBand, saturate};
use tables::{
    HIGH_STEPS, INVERSE_2, INVERSE_4, INVERSE_5, INVERSE_6, LEVELS, LOW_NEGATIVE, LOW_POSITIVE,
    LOW_STEPS, QMF, QMF_ODD,
};

/// Rate of the samples in Hz.
pub const RATE: u32 = 16_000;
/// Number of taps of each half of the filter bank.
const HALF_TAPS: usize = QMF.len();
/// Number of pairs of samples that are filtered at a time.
const BLOCK_PAIRS: usize = 80;

/// The number of speech bits in an octet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Mode 1: 64 kbit/s.
    #[default]
    Kbit64,
    /// Mode 2: 56 kbit/s; the lowest bit is data.
    Kbit56,
    /// Mode 3: 48 kbit/s; the two lowest bits are data.
    Kbit48,
}

impl Mode {
    /// Number of data bits in each octet.
    pub const fn data_bits(self) -> u32 {
        match self {
            Mode::Kbit64 => 0,
            Mode::Kbit56 => 1,
            Mode::Kbit48 => 2,
        }
    }
}

/// State of each half of the filter: the samples before a block.
#[derive(Clone, Debug)]
struct Halves {
    even: [i16; HALF_TAPS - 1 + BLOCK_PAIRS],
    odd: [i16; HALF_TAPS - 1 + BLOCK_PAIRS],
}

impl Halves {
    const fn new() -> Halves {
        Halves {
            even: [0; HALF_TAPS - 1 + BLOCK_PAIRS],
            odd: [0; HALF_TAPS - 1 + BLOCK_PAIRS],
        }
    }

    /// Stores the sum or difference of two bands of 15 bits, which fits into a sample.
    fn set(&mut self, position: usize, even: i16, odd: i16) {
        self.even[HALF_TAPS - 1 + position] = even;
        self.odd[HALF_TAPS - 1 + position] = odd;
    }

    /// The two sums of the filter at position `position`.
    fn filter(&self, position: usize) -> (i32, i32) {
        let sum = |samples: &[i16], taps: &[i16; HALF_TAPS]| -> i32 {
            let products = samples.iter().zip(taps);
            products
                .map(|(&sample, &tap)| i32::from(sample) * i32::from(tap))
                .sum()
        };
        (
            sum(&self.even[position..position + HALF_TAPS], &QMF),
            sum(&self.odd[position..position + HALF_TAPS], &QMF_ODD),
        )
    }

    /// Keeps the samples that the next block needs, after a block of `pairs`.
    fn shift(&mut self, pairs: usize) {
        self.even.copy_within(pairs..pairs + HALF_TAPS - 1, 0);
        self.odd.copy_within(pairs..pairs + HALF_TAPS - 1, 0);
    }
}

/// State of both bands; identical in encoder and decoder after the same octets.
#[derive(Clone, Debug)]
struct Bands {
    low: Band,
    high: Band,
}

impl Bands {
    fn new() -> Bands {
        Bands {
            low: Band::new(SubBand::Low),
            high: Band::new(SubBand::High),
        }
    }

    /// The octet for a sample of each band (15 bits).
    fn encode(&mut self, low: i32, high: i32) -> u8 {
        let octet = self.quantise(low, high);
        self.adapt(octet & 63, octet >> 6);
        octet
    }

    fn quantise(&self, low: i32, high: i32) -> u8 {
        let low_code = quantise_low(saturate(low - self.low.predicted), self.low.scale);
        let high_code = quantise_high(saturate(high - self.high.predicted), self.high.scale);
        high_code << 6 | low_code
    }

    /// The samples of both bands for an octet.
    fn decode(&mut self, octet: u8, mode: Mode) -> (i32, i32) {
        let (low_code, high_code) = (octet & 63, octet >> 6);
        let output = match mode {
            Mode::Kbit64 => INVERSE_6[usize::from(low_code)],
            Mode::Kbit56 => INVERSE_5[usize::from(low_code >> 1)],
            Mode::Kbit48 => INVERSE_4[usize::from(low_code >> 2)],
        };
        // The bands are limited to 15 bits, so that their sum fits into 16.
        let limit = |value: i32| value.clamp(-16_384, 16_383);
        let low = limit(self.low.predicted + self.low.dequantise(output));
        let difference = self.high.dequantise(INVERSE_2[usize::from(high_code)]);
        let high = limit(self.high.predicted + difference);
        self.adapt(low_code, high_code);
        (low, high)
    }

    fn adapt(&mut self, low_code: u8, high_code: u8) {
        // Only the upper four bits of the lower band adapt it, so that a wrong mode does not desynchronise the decoder.
        let core = usize::from(low_code >> 2);
        let difference = self.low.dequantise(INVERSE_4[core]);
        self.low.adapt(difference, LOW_STEPS[core]);
        let high = usize::from(high_code & 3);
        let difference = self.high.dequantise(INVERSE_2[high]);
        self.high.adapt(difference, HIGH_STEPS[high]);
    }
}

/// QUANTL.
fn quantise_low(difference: i32, scale: i32) -> u8 {
    let negative = difference < 0;
    let magnitude = if negative { !difference } else { difference };
    let position = LEVELS.partition_point(|level| magnitude >= (level * scale) >> 12);
    if negative {
        LOW_NEGATIVE[position]
    } else {
        LOW_POSITIVE[position]
    }
}

/// QUANTH.
fn quantise_high(difference: i32, scale: i32) -> u8 {
    let negative = difference < 0;
    let magnitude = if negative { !difference } else { difference };
    let large = magnitude >= (564 * scale) >> 12;
    match (negative, large) {
        (true, true) => 0,
        (true, false) => 1,
        (false, true) => 2,
        (false, false) => 3,
    }
}

/// An encoder: 16 kHz samples to octets.
#[derive(Clone, Debug)]
pub struct SbAdpcmEncoder {
    mode: Mode,
    bands: Bands,
    halves: Halves,
}

impl SbAdpcmEncoder {
    /// An encoder in its reset state. In modes 2 and 3 the data bits of its octets are zero.
    pub fn new(mode: Mode) -> SbAdpcmEncoder {
        SbAdpcmEncoder {
            mode,
            bands: Bands::new(),
            halves: Halves::new(),
        }
    }

    /// Encodes pairs of samples into octets, as many as both slices hold; returns the number of octets.
    pub fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> usize {
        let keep = 0xff << self.mode.data_bits();
        let (pairs, _) = samples.as_chunks::<2>();
        let count = pairs.len().min(octets.len());
        for (pairs, octets) in pairs[..count]
            .chunks(BLOCK_PAIRS)
            .zip(octets.chunks_mut(BLOCK_PAIRS))
        {
            for (position, &[first, second]) in pairs.iter().enumerate() {
                self.halves.set(position, first, second);
            }
            for (position, octet) in octets.iter_mut().take(pairs.len()).enumerate() {
                let (even, odd) = self.halves.filter(position);
                *octet = self.bands.encode((odd + even) >> 14, (odd - even) >> 14) & keep as u8;
            }
            self.halves.shift(pairs.len());
        }
        count
    }
}

/// A decoder: octets to 16 kHz samples.
#[derive(Clone, Debug)]
pub struct SbAdpcmDecoder {
    mode: Mode,
    bands: Bands,
    halves: Halves,
    /// State of the filter bank for the signal that replaces lost octets.
    analysis: Halves,
}

impl SbAdpcmDecoder {
    /// A decoder in its reset state.
    pub fn new(mode: Mode) -> SbAdpcmDecoder {
        SbAdpcmDecoder {
            mode,
            bands: Bands::new(),
            halves: Halves::new(),
            analysis: Halves::new(),
        }
    }

    /// Decodes octets into pairs of samples, as many as both slices hold; returns the number of samples.
    pub fn decode(&mut self, octets: &[u8], samples: &mut [i16]) -> usize {
        let (pairs, _) = samples.as_chunks_mut::<2>();
        let count = pairs.len().min(octets.len());
        for (octets, pairs) in octets[..count]
            .chunks(BLOCK_PAIRS)
            .zip(pairs.chunks_mut(BLOCK_PAIRS))
        {
            for (position, &octet) in octets.iter().enumerate() {
                let (low, high) = self.bands.decode(octet, self.mode);
                self.halves
                    .set(position, (low + high) as i16, (low - high) as i16);
            }
            for (position, pair) in pairs.iter_mut().take(octets.len()).enumerate() {
                let (even, odd) = self.halves.filter(position);
                *pair = [odd, even].map(|sum| saturate(sum >> 11) as i16);
            }
            self.halves.shift(octets.len());
        }
        count * 2
    }

    /// Starts to follow a signal that replaces lost octets: `before` are the last decoded samples, `ahead` the first
    /// samples of the signal, as many as the delay of both filter banks.
    pub(crate) fn start_following(&mut self, before: &[i16], ahead: &[i16]) {
        self.analysis = Halves::new();
        for samples in [before, ahead] {
            let (pairs, _) = samples.as_chunks::<2>();
            for pairs in pairs.chunks(BLOCK_PAIRS) {
                self.analyse(pairs);
                self.analysis.shift(pairs.len());
            }
        }
    }

    fn analyse(&mut self, pairs: &[[i16; 2]]) {
        for (position, &[one, two]) in pairs.iter().enumerate() {
            self.analysis.set(position, one, two);
        }
    }

    /// Updates the predictors as if the octets of the signal had been received. `samples` are ahead by the delay of
    /// both filter banks, so that the bands are in time.
    pub(crate) fn follow(&mut self, samples: &[i16]) {
        let (pairs, _) = samples.as_chunks::<2>();
        for pairs in pairs.chunks(BLOCK_PAIRS) {
            self.analyse(pairs);
            for position in 0..pairs.len() {
                let (even, odd) = self.analysis.filter(position);
                let octet = self.bands.quantise((odd + even) >> 14, (odd - even) >> 14);
                let (low, high) = self.bands.decode(octet, self.mode);
                self.halves
                    .set(position, (low + high) as i16, (low - high) as i16);
            }
            self.analysis.shift(pairs.len());
            self.halves.shift(pairs.len());
        }
    }
}
