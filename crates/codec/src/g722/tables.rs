//! The constants of ITU-T Recommendation G.722: quantisers, scale factors, the quadrature mirror filter.

/// Decision levels of the lower band's 60-level quantiser (table 14 of the Recommendation), of magnitudes 1 to 29.
pub(super) const LEVELS: [i32; 29] = [
    35, 72, 110, 150, 190, 233, 276, 323, 370, 422, 473, 530, 587, 650, 714, 786, 858, 940, 1023,
    1121, 1219, 1339, 1458, 1612, 1765, 1980, 2195, 2557, 2919,
];

/// Codes of the lower band by magnitude, for negative differences.
pub(super) const LOW_NEGATIVE: [u8; 30] = [
    63, 62, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10,
    9, 8, 7, 6, 5, 4,
];

/// Codes of the lower band by magnitude, for other differences.
pub(super) const LOW_POSITIVE: [u8; 30] = [
    61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40, 39, 38,
    37, 36, 35, 34, 33, 32,
];

/// Outputs of the inverse quantiser of four bits, which adapts encoder and decoder.
pub(super) const INVERSE_4: [i32; 16] = [
    0, -20456, -12896, -8968, -6288, -4240, -2584, -1200, 20456, 12896, 8968, 6288, 4240, 2584,
    1200, 0,
];

/// Outputs of the inverse quantiser of five bits (mode 2).
pub(super) const INVERSE_5: [i32; 32] = [
    -280, -280, -23352, -17560, -14120, -11664, -9752, -8184, -6864, -5712, -4696, -3784, -2960,
    -2208, -1520, -880, 23352, 17560, 14120, 11664, 9752, 8184, 6864, 5712, 4696, 3784, 2960, 2208,
    1520, 880, 280, -280,
];

/// Outputs of the inverse quantiser of six bits (mode 1).
pub(super) const INVERSE_6: [i32; 64] = [
    -136, -136, -136, -136, -24808, -21904, -19008, -16704, -14984, -13512, -12280, -11192, -10232,
    -9360, -8576, -7856, -7192, -6576, -6000, -5456, -4944, -4464, -4008, -3576, -3168, -2776,
    -2400, -2032, -1688, -1360, -1040, -728, 24808, 21904, 19008, 16704, 14984, 13512, 12280,
    11192, 10232, 9360, 8576, 7856, 7192, 6576, 6000, 5456, 4944, 4464, 4008, 3576, 3168, 2776,
    2400, 2032, 1688, 1360, 1040, 728, 432, 136, -432, -136,
];

/// Outputs of the higher band's inverse quantiser.
pub(super) const INVERSE_2: [i32; 4] = [-7408, -1616, 7408, 1616];

/// Steps of the lower band's logarithmic scale factor by the four-bit code.
pub(super) const LOW_STEPS: [i32; 16] = [
    -60, 3042, 1198, 538, 334, 172, 58, -30, 3042, 1198, 538, 334, 172, 58, -30, -60,
];

/// Steps of the higher band's logarithmic scale factor by its code.
pub(super) const HIGH_STEPS: [i32; 4] = [798, -214, 798, -214];

/// Mantissas of the scale factor: 2048 * 2^(i/32).
pub(super) const MANTISSAS: [i32; 32] = [
    2048, 2093, 2139, 2186, 2233, 2282, 2332, 2383, 2435, 2489, 2543, 2599, 2656, 2714, 2774, 2834,
    2896, 2960, 3025, 3091, 3158, 3228, 3298, 3371, 3444, 3520, 3597, 3676, 3756, 3838, 3922, 4008,
];

/// The even taps of the symmetric filter with 24 taps.
pub(super) const QMF: [i16; 12] = [3, -11, 12, 32, -210, 951, 3876, -805, 362, -156, 53, -11];

/// The odd taps: the same in reverse order.
pub(super) const QMF_ODD: [i16; 12] = [-11, 53, -156, 362, -805, 3876, 951, -210, 32, 12, -11, 3];
