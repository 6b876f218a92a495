//! G.722: wideband speech at 64 kbit/s in two sub-bands, and its modes of 56 and 48 kbit/s.
//!
//! Samples are at 16 kHz; an octet holds two of them: the two bits of the higher band above the six of the lower one. The RTP
//! clock is 8000 Hz all the same, an old mistake that RFC 3551 section 4.5.2 keeps: an octet is one timestamp unit.
//!
//! In modes 2 and 3 the lowest one or two bits of each octet belong to an auxiliary data channel (clause 1.3 of the
//! Recommendation). RTP knows mode 1 only (RFC 3551); the others are here for what comes from other transports.

mod band;
mod tables;

use band::{Band, Which, saturate};
use tables::{
    HIGH_STEPS, INVERSE_2, INVERSE_4, INVERSE_5, INVERSE_6, LEVELS, LOW_NEGATIVE, LOW_POSITIVE,
    LOW_STEPS, QMF, QMF_ODD,
};

/// Rate of the samples in Hz.
pub const RATE: u32 = 16_000;
/// Taps of each half of the filter bank.
const HALF: usize = QMF.len();
/// Pairs of samples that are filtered at once.
const BLOCK: usize = 80;

/// How many bits of an octet are speech.
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
    /// Bits of each octet that are data.
    pub const fn data_bits(self) -> u32 {
        match self {
            Mode::Kbit64 => 0,
            Mode::Kbit56 => 1,
            Mode::Kbit48 => 2,
        }
    }
}

/// What is kept of each half of the filter's input: the samples before a block.
#[derive(Clone, Debug)]
struct Halves {
    even: [i16; HALF - 1 + BLOCK],
    odd: [i16; HALF - 1 + BLOCK],
}

impl Halves {
    const fn new() -> Halves {
        Halves {
            even: [0; HALF - 1 + BLOCK],
            odd: [0; HALF - 1 + BLOCK],
        }
    }

    /// Sums and differences of two bands of 15 bits fit as samples do.
    fn set(&mut self, place: usize, even: i16, odd: i16) {
        self.even[HALF - 1 + place] = even;
        self.odd[HALF - 1 + place] = odd;
    }

    /// The two sums of the filter at `place`.
    fn filter(&self, place: usize) -> (i32, i32) {
        let sum = |samples: &[i16], taps: &[i16; HALF]| -> i32 {
            let products = samples.iter().zip(taps);
            products
                .map(|(&sample, &tap)| i32::from(sample) * i32::from(tap))
                .sum()
        };
        (
            sum(&self.even[place..place + HALF], &QMF),
            sum(&self.odd[place..place + HALF], &QMF_ODD),
        )
    }

    /// Keeps what the next block needs, after a block of `pairs`.
    fn shift(&mut self, pairs: usize) {
        self.even.copy_within(pairs..pairs + HALF - 1, 0);
        self.odd.copy_within(pairs..pairs + HALF - 1, 0);
    }
}

/// Both bands' states; encoder and decoder hold the same after the same octets.
#[derive(Clone, Debug)]
struct Bands {
    low: Band,
    high: Band,
}

impl Bands {
    fn new() -> Bands {
        Bands {
            low: Band::new(Which::Low),
            high: Band::new(Which::High),
        }
    }

    /// The octet of a sample of each band (15 bits).
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

    /// The sample of each band of an octet.
    fn decode(&mut self, octet: u8, mode: Mode) -> (i32, i32) {
        let (low_code, high_code) = (octet & 63, octet >> 6);
        let output = match mode {
            Mode::Kbit64 => INVERSE_6[usize::from(low_code)],
            Mode::Kbit56 => INVERSE_5[usize::from(low_code >> 1)],
            Mode::Kbit48 => INVERSE_4[usize::from(low_code >> 2)],
        };
        // The bands are limited to 15 bits, so that their sum fits.
        let limit = |value: i32| value.clamp(-16_384, 16_383);
        let low = limit(self.low.predicted + self.low.dequantise(output));
        let difference = self.high.dequantise(INVERSE_2[usize::from(high_code)]);
        let high = limit(self.high.predicted + difference);
        self.adapt(low_code, high_code);
        (low, high)
    }

    fn adapt(&mut self, low_code: u8, high_code: u8) {
        // Only the upper four bits of the lower band adapt it, so that modes may be told apart late or never.
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
    let place = LEVELS.partition_point(|level| magnitude >= (level * scale) >> 12);
    if negative {
        LOW_NEGATIVE[place]
    } else {
        LOW_POSITIVE[place]
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
pub struct Encoder {
    mode: Mode,
    bands: Bands,
    halves: Halves,
}

impl Encoder {
    /// An encoder in its reset state. In modes 2 and 3 the data bits of its octets are zero.
    pub fn new(mode: Mode) -> Encoder {
        Encoder {
            mode,
            bands: Bands::new(),
            halves: Halves::new(),
        }
    }

    /// Encodes pairs of samples into octets, as many as both slices hold; gives the number of octets.
    pub fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> usize {
        let keep = 0xff << self.mode.data_bits();
        let (pairs, _) = samples.as_chunks::<2>();
        let count = pairs.len().min(octets.len());
        for (pairs, octets) in pairs[..count].chunks(BLOCK).zip(octets.chunks_mut(BLOCK)) {
            for (place, &[first, second]) in pairs.iter().enumerate() {
                self.halves.set(place, first, second);
            }
            for (place, octet) in octets.iter_mut().take(pairs.len()).enumerate() {
                let (even, odd) = self.halves.filter(place);
                *octet = self.bands.encode((odd + even) >> 14, (odd - even) >> 14) & keep as u8;
            }
            self.halves.shift(pairs.len());
        }
        count
    }
}

/// A decoder: octets to 16 kHz samples.
#[derive(Clone, Debug)]
pub struct Decoder {
    mode: Mode,
    bands: Bands,
    halves: Halves,
    /// Of the signal that takes the place of lost octets.
    analysis: Halves,
}

impl Decoder {
    /// A decoder in its reset state.
    pub fn new(mode: Mode) -> Decoder {
        Decoder {
            mode,
            bands: Bands::new(),
            halves: Halves::new(),
            analysis: Halves::new(),
        }
    }

    /// Decodes octets into pairs of samples, as many as both slices hold; gives the number of samples.
    pub fn decode(&mut self, octets: &[u8], samples: &mut [i16]) -> usize {
        let (pairs, _) = samples.as_chunks_mut::<2>();
        let count = pairs.len().min(octets.len());
        for (octets, pairs) in octets[..count].chunks(BLOCK).zip(pairs.chunks_mut(BLOCK)) {
            for (place, &octet) in octets.iter().enumerate() {
                let (low, high) = self.bands.decode(octet, self.mode);
                self.halves
                    .set(place, (low + high) as i16, (low - high) as i16);
            }
            for (place, pair) in pairs.iter_mut().take(octets.len()).enumerate() {
                let (even, odd) = self.halves.filter(place);
                *pair = [odd, even].map(|sum| saturate(sum >> 11) as i16);
            }
            self.halves.shift(octets.len());
        }
        count * 2
    }

    /// Begins to follow a signal that takes the place of lost octets: `before` is what was decoded last, `ahead` the
    /// signal's first samples, as many as the delay of both filter banks.
    pub(crate) fn begin_to_follow(&mut self, before: &[i16], ahead: &[i16]) {
        self.analysis = Halves::new();
        for samples in [before, ahead] {
            let (pairs, _) = samples.as_chunks::<2>();
            for pairs in pairs.chunks(BLOCK) {
                self.analyse(pairs);
                self.analysis.shift(pairs.len());
            }
        }
    }

    fn analyse(&mut self, pairs: &[[i16; 2]]) {
        for (place, &[one, two]) in pairs.iter().enumerate() {
            self.analysis.set(place, one, two);
        }
    }

    /// Lets the predictors go on as if the octets of the signal had come. `samples` are ahead by the delay of both filter
    /// banks, so that the bands are in time.
    pub(crate) fn follow(&mut self, samples: &[i16]) {
        let (pairs, _) = samples.as_chunks::<2>();
        for pairs in pairs.chunks(BLOCK) {
            self.analyse(pairs);
            for place in 0..pairs.len() {
                let (even, odd) = self.analysis.filter(place);
                let octet = self.bands.quantise((odd + even) >> 14, (odd - even) >> 14);
                let (low, high) = self.bands.decode(octet, self.mode);
                self.halves
                    .set(place, (low + high) as i16, (low - high) as i16);
            }
            self.analysis.shift(pairs.len());
            self.halves.shift(pairs.len());
        }
    }
}
