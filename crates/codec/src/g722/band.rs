//! One sub-band: the adaptive predictor with two poles and six zeros, and the scale factor; identical in encoder and
//! decoder. Names in the comments are those of the sub-blocks in the Recommendation.

use super::tables::MANTISSAS;

/// The sub-band, for constants that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubBand {
    Low,
    High,
}

#[derive(Clone, Debug)]
pub(super) struct Band {
    which: SubBand,
    /// Logarithm of the scale factor (NB).
    log_scale: i32,
    /// Scale factor of the quantiser (DET).
    pub(super) scale: i32,
    /// Predicted signal (S).
    pub(super) predicted: i32,
    /// Part of the predicted signal from the zeros (SZ).
    zeros: i32,
    /// Reconstructed signal of the last sample; older ones are not needed after the prediction (RLT).
    reconstructed: i32,
    /// Partially reconstructed signal of the last two samples (PLT).
    partial: [i32; 2],
    /// Coefficients of the poles (AL).
    poles: [i32; 2],
    /// Coefficients of the zeros (BL).
    coefficients: [i32; 6],
    /// Quantised differences, newest first (DLT).
    differences: [i32; 6],
}

pub(super) fn saturate(value: i32) -> i32 {
    value.clamp(-32_768, 32_767)
}

impl Band {
    pub(super) fn new(which: SubBand) -> Band {
        Band {
            which,
            log_scale: 0,
            scale: match which {
                SubBand::Low => 32,
                SubBand::High => 8,
            },
            predicted: 0,
            zeros: 0,
            reconstructed: 0,
            partial: [0; 2],
            poles: [0; 2],
            coefficients: [0; 6],
            differences: [0; 6],
        }
    }

    /// Scales an output of the inverse quantiser to the signal.
    pub(super) fn dequantise(&self, output: i32) -> i32 {
        (self.scale * output) >> 15
    }

    /// Processes the quantised difference and the step of the scale factor; computes the next prediction.
    pub(super) fn adapt(&mut self, difference: i32, step: i32) {
        self.adapt_scale(step);
        self.adapt_predictor(difference);
    }

    /// LOGSCL and SCALEL, LOGSCH and SCALEH.
    fn adapt_scale(&mut self, step: i32) {
        let (limit, shift) = match self.which {
            SubBand::Low => (18_432, 8),
            SubBand::High => (22_528, 10),
        };
        self.log_scale = (((self.log_scale * 127) >> 7) + step).clamp(0, limit);
        let mantissa = MANTISSAS[(self.log_scale >> 6 & 31) as usize];
        let down = shift - (self.log_scale >> 11);
        self.scale = if down < 0 {
            mantissa << -down
        } else {
            mantissa >> down
        } << 2;
    }

    /// Block 4: RECONS, PARREC, UPPOL2, UPPOL1, UPZERO, DELAYA, FILTEP, FILTEZ, PREDIC.
    fn adapt_predictor(&mut self, difference: i32) {
        let reconstructed = saturate(self.predicted + difference);
        let partial = saturate(self.zeros + difference);
        self.adapt_poles(partial);
        self.adapt_zeros(difference);
        self.partial = [partial, self.partial[0]];
        let before = self.reconstructed;
        self.reconstructed = reconstructed;
        let poles = saturate(
            ((self.poles[0] * saturate(2 * reconstructed)) >> 15)
                + ((self.poles[1] * saturate(2 * before)) >> 15),
        );
        self.zeros = self.coefficients.iter().zip(&self.differences).rev().fold(
            0,
            |sum, (coefficient, &difference)| {
                saturate(sum + ((coefficient * saturate(2 * difference)) >> 15))
            },
        );
        self.predicted = saturate(poles + self.zeros);
    }

    fn adapt_poles(&mut self, partial: i32) {
        let same = |other: i32| (partial < 0) == (other < 0);
        let quadruple = saturate(4 * self.poles[0]);
        let turned = if same(self.partial[0]) {
            (-quadruple).min(32_767)
        } else {
            quadruple
        };
        let toward = if same(self.partial[1]) { 128 } else { -128 };
        let second =
            ((turned >> 7) + toward + ((self.poles[1] * 32_512) >> 15)).clamp(-12_288, 12_288);
        let toward = if same(self.partial[0]) { 192 } else { -192 };
        let bound = 15_360 - second;
        let first = (toward + ((self.poles[0] * 32_640) >> 15)).clamp(-bound, bound);
        self.poles = [first, second];
    }

    fn adapt_zeros(&mut self, difference: i32) {
        let size = if difference == 0 { 0 } else { 128 };
        for (coefficient, &old) in self.coefficients.iter_mut().zip(&self.differences) {
            let toward = if (difference < 0) == (old < 0) {
                size
            } else {
                -size
            };
            *coefficient = saturate(toward + ((*coefficient * 32_640) >> 15));
        }
        self.differences.copy_within(..5, 1);
        self.differences[0] = difference;
    }
}
