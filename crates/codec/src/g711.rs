//! G.711: A-law and mu-law, with tables computed at compile time.
//!
//! Both laws agree with the ITU-T software tools (G.191) on all 65,536 linear values: negative values are processed in
//! one's complement, so that a value exactly on a decision level is assigned to the same side.

/// The two laws of G.711.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Law {
    /// A-law: RTP payload type 8, PCMA (RFC 3551 section 4.5.14).
    A,
    /// Mu-law: RTP payload type 0, PCMU.
    Mu,
}

impl Law {
    /// The code of one linear sample.
    pub fn encode_sample(self, sample: i16) -> u8 {
        match self {
            Law::A => encode_alaw(sample),
            Law::Mu => encode_ulaw(sample),
        }
    }

    /// The linear value of one code.
    pub fn decode_sample(self, code: u8) -> i16 {
        match self {
            Law::A => decode_alaw(code),
            Law::Mu => decode_ulaw(code),
        }
    }

    /// Encodes as many samples as both slices hold; returns their number.
    pub fn encode(self, samples: &[i16], codes: &mut [u8]) -> usize {
        for (code, &sample) in codes.iter_mut().zip(samples) {
            *code = self.encode_sample(sample);
        }
        samples.len().min(codes.len())
    }

    /// Decodes as many codes as both slices hold; returns their number.
    pub fn decode(self, codes: &[u8], samples: &mut [i16]) -> usize {
        for (sample, &code) in samples.iter_mut().zip(codes) {
            *sample = self.decode_sample(code);
        }
        samples.len().min(codes.len())
    }

    /// Mean square of the samples of `codes`, without decoding them; zero for no codes. [`crate::level::power_dbov`]
    /// converts it to a level.
    pub fn power(self, codes: &[u8]) -> f64 {
        let squares = match self {
            Law::A => &ALAW_SQUARES,
            Law::Mu => &ULAW_SQUARES,
        };
        let sum: u64 = codes
            .iter()
            .map(|&code| u64::from(squares[usize::from(code)]))
            .sum();
        sum as f64 / codes.len().max(1) as f64
    }

    /// The code of silence (the smallest positive value).
    pub const fn silence(self) -> u8 {
        match self {
            Law::A => 0xd5,
            Law::Mu => 0xff,
        }
    }

    /// The static RTP payload type (RFC 3551 section 6).
    pub const fn payload_type(self) -> u8 {
        match self {
            Law::A => 8,
            Law::Mu => 0,
        }
    }

    /// The encoding name in SDP.
    pub const fn name(self) -> &'static str {
        match self {
            Law::A => "PCMA",
            Law::Mu => "PCMU",
        }
    }

    /// The law of a static RTP payload type.
    pub const fn of_payload_type(payload_type: u8) -> Option<Law> {
        match payload_type {
            0 => Some(Law::Mu),
            8 => Some(Law::A),
            _ => None,
        }
    }
}

/// A-law code of a linear sample.
pub fn encode_alaw(sample: i16) -> u8 {
    ALAW_ENCODE[usize::from(sample as u16 >> 4)]
}

/// Linear value of an A-law code.
pub fn decode_alaw(code: u8) -> i16 {
    ALAW_DECODE[usize::from(code)]
}

/// Mu-law code of a linear sample.
pub fn encode_ulaw(sample: i16) -> u8 {
    ULAW_ENCODE[usize::from(sample as u16 >> 2)]
}

/// Linear value of a mu-law code.
pub fn decode_ulaw(code: u8) -> i16 {
    ULAW_DECODE[usize::from(code)]
}

/// The mu-law code nearest to an A-law code, by the linear value. (Tables 3 and 4 of G.711 differ from this by at most
/// one step, so that a path with several conversions loses no more.)
pub fn alaw_to_ulaw(code: u8) -> u8 {
    ALAW_TO_ULAW[usize::from(code)]
}

/// The A-law code nearest to a mu-law code, by the linear value.
pub fn ulaw_to_alaw(code: u8) -> u8 {
    ULAW_TO_ALAW[usize::from(code)]
}

static ALAW_DECODE: [i16; 256] = alaw_decode_table();
static ULAW_DECODE: [i16; 256] = ulaw_decode_table();
/// Indexed by the upper 12 bits of the sample.
static ALAW_ENCODE: [u8; 4096] = alaw_encode_table();
/// Indexed by the upper 14 bits of the sample.
static ULAW_ENCODE: [u8; 16_384] = ulaw_encode_table();
static ALAW_SQUARES: [u32; 256] = squares(alaw_decode_table());
static ULAW_SQUARES: [u32; 256] = squares(ulaw_decode_table());
static ALAW_TO_ULAW: [u8; 256] = transcode_table(true);
static ULAW_TO_ALAW: [u8; 256] = transcode_table(false);

const fn alaw_compress(sample: i16) -> u8 {
    let positive = sample >= 0;
    let magnitude = (if positive { sample } else { !sample }) as u16 >> 4;
    // Eight segments: the first two are linear, each further one is twice as wide.
    let mut segment = 0;
    let mut mantissa = magnitude;
    if mantissa > 15 {
        segment = 1;
        while mantissa > 31 {
            mantissa >>= 1;
            segment += 1;
        }
        mantissa -= 16;
    }
    let code = (segment << 4) as u8 | mantissa as u8 | if positive { 0x80 } else { 0 };
    code ^ 0x55
}

const fn alaw_expand(code: u8) -> i16 {
    let bits = code ^ 0x55;
    let segment = (bits >> 4) & 7;
    let mut value = (((bits & 15) as i16) << 4) + 8;
    if segment > 0 {
        value = (value + 0x100) << (segment - 1);
    }
    if bits & 0x80 != 0 { value } else { -value }
}

const fn ulaw_compress(sample: i16) -> u8 {
    let positive = sample >= 0;
    let magnitude = ((if positive { sample } else { !sample }) as u16 >> 2) + 33;
    let clipped = if magnitude > 0x1fff {
        0x1fff
    } else {
        magnitude
    };
    let mut segment = 0;
    while clipped >> (segment + 6) != 0 {
        segment += 1;
    }
    let mantissa = (clipped >> (segment + 1)) & 15;
    let bits = (segment << 4) as u8 | mantissa as u8;
    !bits & 0x7f | if positive { 0x80 } else { 0 }
}

const fn ulaw_expand(code: u8) -> i16 {
    let bits = !code;
    let segment = (bits >> 4) & 7;
    let mantissa = (bits & 15) as i32;
    let value = (((mantissa << 3) + 0x84) << segment) - 0x84;
    (if code & 0x80 != 0 { value } else { -value }) as i16
}

const fn alaw_decode_table() -> [i16; 256] {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = alaw_expand(code as u8);
        code += 1;
    }
    table
}

const fn ulaw_decode_table() -> [i16; 256] {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = ulaw_expand(code as u8);
        code += 1;
    }
    table
}

const fn squares(values: [i16; 256]) -> [u32; 256] {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        let value = values[code] as i32;
        table[code] = (value * value) as u32;
        code += 1;
    }
    table
}

const fn alaw_encode_table() -> [u8; 4096] {
    let mut table = [0; 4096];
    let mut index = 0;
    while index < 4096 {
        table[index] = alaw_compress(((index as u16) << 4) as i16);
        index += 1;
    }
    table
}

const fn ulaw_encode_table() -> [u8; 16_384] {
    let mut table = [0; 16_384];
    let mut index = 0;
    while index < 16_384 {
        table[index] = ulaw_compress(((index as u16) << 2) as i16);
        index += 1;
    }
    table
}

const fn transcode_table(from_alaw: bool) -> [u8; 256] {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = if from_alaw {
            ulaw_compress(alaw_expand(code as u8))
        } else {
            alaw_compress(ulaw_expand(code as u8))
        };
        code += 1;
    }
    table
}
