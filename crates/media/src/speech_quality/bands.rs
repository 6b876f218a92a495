//! Gammatone filters (Slaney 1993) at the bandwidths of hearing (Glasberg and Moore 1990), and pictures of a signal
//! made by them.

use core::f64::consts::PI;

/// Bands, from 50 Hz to 8 kHz.
pub(super) const BANDS: usize = 21;
const LOWEST_HZ: f64 = 50.0;
const HIGHEST_HZ: f64 = 8000.0;
/// Samples of a window: 80 ms.
pub(super) const WINDOW: usize = 1280;
/// Samples between two windows: 20 ms.
pub(super) const FRAME: usize = WINDOW / 4;
/// Lowest level, dB.
const FLOOR_DB: f64 = -45.0;
/// Lowest level relative to the highest band of a frame, dB.
const FRAME_FLOOR_DB: f64 = 45.0;
/// Quality factor and smallest bandwidth of the filters of hearing.
const EAR_Q: f64 = 9.264_49;
const LEAST_BANDWIDTH: f64 = 24.7;

/// Levels of the bands of one frame.
pub(super) type Column = [f64; BANDS];

/// A filter of fourth order: four sections with common poles.
#[derive(Clone, Copy, Debug)]
struct Filter {
    /// First coefficients of the numerators; the others are `numerator0` and zero.
    zeros: [f64; 4],
    numerator0: f64,
    poles: [f64; 2],
    gain: f64,
}

impl Filter {
    fn new(centre: f64, rate: f64) -> Filter {
        let step = 1.0 / rate;
        let angle = 2.0 * PI * centre * step;
        let decay = 1.019 * 2.0 * PI * (centre / EAR_Q + LEAST_BANDWIDTH) * step;
        let shrink = (-decay).exp();
        let (sine, cosine) = angle.sin_cos();
        let offsets = [1.0, -1.0].map(|sign| (3.0 + sign * 8.0_f64.sqrt()).sqrt());
        let [wide, narrow] = offsets;
        let zeros =
            [wide, -wide, narrow, -narrow].map(|offset| -step * shrink * (cosine + offset * sine));
        let mut filter = Filter {
            zeros,
            numerator0: step,
            poles: [-2.0 * shrink * cosine, shrink * shrink],
            gain: 1.0,
        };
        filter.gain = filter.response(angle);
        filter
    }

    /// Magnitude of the response at an angle of the unit circle.
    fn response(&self, angle: f64) -> f64 {
        let (sine, cosine) = angle.sin_cos();
        let (sine2, cosine2) = (2.0 * angle).sin_cos();
        let magnitude = |re: f64, im: f64| re.hypot(im);
        let below = magnitude(
            1.0 + self.poles[0] * cosine + self.poles[1] * cosine2,
            self.poles[0] * sine + self.poles[1] * sine2,
        );
        let above = |zero: f64| magnitude(self.numerator0 + zero * cosine, zero * sine);
        self.zeros.iter().map(|&zero| above(zero) / below).product()
    }

    /// Root mean square of a filtered window.
    fn level(&self, window: &[f64]) -> f64 {
        let mut states = [[0.0_f64; 2]; 4];
        let mut energy = 0.0;
        for &sample in window {
            let mut value = sample / self.gain;
            for (state, zero) in states.iter_mut().zip(self.zeros) {
                let output = self.numerator0 * value + state[0];
                state[0] = zero * value + state[1] - self.poles[0] * output;
                state[1] = -self.poles[1] * output;
                value = output;
            }
            energy += value * value;
        }
        (energy / window.len() as f64).sqrt()
    }
}

/// The filters of all bands, the lowest first.
#[derive(Debug)]
pub(super) struct FilterBank([Filter; BANDS]);

impl FilterBank {
    pub(super) fn new(rate: f64) -> FilterBank {
        let base = EAR_Q * LEAST_BANDWIDTH;
        let high = HIGHEST_HZ.min(rate / 2.0) + base;
        let ratio = ((LOWEST_HZ + base) / high).ln() / BANDS as f64;
        FilterBank(core::array::from_fn(|band| {
            let centre = high * (ratio * (BANDS - band) as f64).exp() - base;
            Filter::new(centre, rate)
        }))
    }

    /// The levels of a signal in each band and frame, not yet in dB.
    pub(super) fn spectrogram(&self, signal: &[f64]) -> Spectrogram {
        let columns = (0..Spectrogram::frames(signal.len()))
            .map(|frame| {
                let window = &signal[frame * FRAME..frame * FRAME + WINDOW];
                self.0.map(|filter| filter.level(window))
            })
            .collect();
        Spectrogram(columns)
    }
}

/// Levels over time.
#[derive(Debug)]
pub(super) struct Spectrogram(Vec<Column>);

impl Spectrogram {
    /// Frames of a signal.
    pub(super) const fn frames(samples: usize) -> usize {
        match samples.checked_sub(WINDOW) {
            Some(rest) => 1 + rest / FRAME,
            None => 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Frames from `start` on; beyond the end they are zero, which is the lowest level.
    pub(super) fn cut(&self, start: usize, length: usize) -> Vec<Column> {
        let from = start.min(self.0.len());
        let to = (start + length).min(self.0.len());
        let mut columns = self.0[from..to].to_vec();
        columns.resize(length, [0.0; BANDS]);
        columns
    }

    fn lowest(&self) -> f64 {
        self.0
            .iter()
            .flatten()
            .copied()
            .fold(f64::INFINITY, f64::min)
    }
}

/// Converts levels to dB above the lowest level of both, with the same floors in both.
pub(super) fn level(reference: &mut Spectrogram, degraded: &mut Spectrogram) {
    for value in reference.0.iter_mut().chain(&mut degraded.0).flatten() {
        *value = (10.0 * value.max(f64::EPSILON).log10()).max(FLOOR_DB);
    }
    for (ours, theirs) in reference.0.iter_mut().zip(&mut degraded.0) {
        let highest = ours
            .iter()
            .chain(theirs.iter())
            .copied()
            .fold(f64::NEG_INFINITY, f64::max);
        for value in ours.iter_mut().chain(theirs) {
            *value = value.max(highest - FRAME_FLOOR_DB);
        }
    }
    let lowest = reference.lowest().min(degraded.lowest());
    for value in reference.0.iter_mut().chain(&mut degraded.0).flatten() {
        *value -= lowest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tone_is_loudest_in_the_band_around_its_frequency() {
        let bank = FilterBank::new(16_000.0);
        let base = EAR_Q * LEAST_BANDWIDTH;
        let ratio = ((LOWEST_HZ + base) / (HIGHEST_HZ + base)).ln() / BANDS as f64;
        for band in [0, 7, 15, 20] {
            let centre = (HIGHEST_HZ + base) * (ratio * (BANDS - band) as f64).exp() - base;
            // The window begins with a transient, so that the gain is a little below 1.
            let tone: Vec<f64> = (0..WINDOW)
                .map(|n| (2.0 * PI * centre * n as f64 / 16_000.0).sin())
                .collect();
            let levels = bank.spectrogram(&tone).0[0];
            let loudest = (0..BANDS).max_by(|&a, &b| levels[a].total_cmp(&levels[b]));
            assert_eq!(loudest, Some(band), "{centre} Hz: {levels:?}");
            let gain = levels[band] / 0.5_f64.sqrt();
            assert!((0.8..1.01).contains(&gain), "{centre} Hz: {gain}");
        }
        // The lowest band begins at 50 Hz.
        assert!(((HIGHEST_HZ + base) * (ratio * BANDS as f64).exp() - base - 50.0).abs() < 1e-9);
    }
}
