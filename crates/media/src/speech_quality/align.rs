//! Alignment in time: the lag at which the envelopes of two signals correlate best.

use core::f64::consts::PI;

/// A shift of the degraded signal, in samples: positive delays it, negative removes its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lag {
    pub(super) samples: i64,
}

impl Lag {
    /// The shifted degraded signal.
    pub(super) fn apply(self, degraded: &[f64]) -> Vec<f64> {
        let shift = self.samples.unsigned_abs() as usize;
        match self.samples < 0 {
            true => degraded[shift.min(degraded.len())..].to_vec(),
            false => {
                let mut shifted = vec![0.0; shift];
                shifted.extend_from_slice(degraded);
                shifted
            }
        }
    }

    /// The parts of both signals that lie over each other.
    pub(super) fn overlap<'a>(
        self,
        reference: &'a [f64],
        degraded: &'a [f64],
    ) -> (&'a [f64], &'a [f64]) {
        let shift = self.samples.unsigned_abs() as usize;
        let (reference, degraded) = match self.samples < 0 {
            true => (reference, &degraded[shift.min(degraded.len())..]),
            false => (&reference[shift.min(reference.len())..], degraded),
        };
        let length = reference.len().min(degraded.len());
        (&reference[..length], &degraded[..length])
    }
}

/// The lag of the degraded signal. It is 0 where a signal is silent, and where the best lag exceeds half of the
/// reference, which would be an accident.
pub(super) fn global_lag(reference: &[f64], degraded: &[f64]) -> Lag {
    let longest = reference.len().max(degraded.len());
    let size = (2 * longest).next_power_of_two();
    let mut ours = transform(&envelope(reference), size);
    let theirs = transform(&envelope(degraded), size);
    for (a, b) in ours.iter_mut().zip(&theirs) {
        *a = a.times(b.conjugate());
    }
    fft(&mut ours, 1.0);
    let (mut best, mut highest) = (0_i64, ours[0].re.abs());
    for lag in 1..longest as i64 {
        for lag in [lag, -lag] {
            let value = ours[lag.rem_euclid(size as i64) as usize].re.abs();
            if value > highest {
                (best, highest) = (lag, value);
            }
        }
    }
    let samples = match best.unsigned_abs() as usize > reference.len() / 2 {
        true => 0,
        false => best,
    };
    Lag { samples }
}

/// The rectified signal around its mean. The published implementation calculates an analytic signal (Hilbert transform)
/// and keeps its real part, which is the signal itself; a true envelope finds the lag of coded speech less exactly.
fn envelope(signal: &[f64]) -> Vec<f64> {
    let mean = signal.iter().sum::<f64>() / signal.len().max(1) as f64;
    let rectified = signal
        .iter()
        .map(|sample| 2.0 * (sample - mean).abs() + mean);
    rectified.collect()
}

#[derive(Clone, Copy, Debug, Default)]
struct Complex {
    re: f64,
    im: f64,
}

impl Complex {
    fn times(self, other: Complex) -> Complex {
        Complex {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }

    fn conjugate(self) -> Complex {
        Complex {
            re: self.re,
            im: -self.im,
        }
    }
}

/// The spectrum of a real signal, padded with zeros to a power of two.
fn transform(signal: &[f64], size: usize) -> Vec<Complex> {
    let mut values = vec![Complex::default(); size];
    for (value, &sample) in values.iter_mut().zip(signal) {
        value.re = sample;
    }
    fft(&mut values, -1.0);
    values
}

/// Fourier transform in place, without scaling, of a power of two; `sign` is -1 for the forward direction.
fn fft(values: &mut [Complex], sign: f64) {
    let size = values.len();
    if size < 2 {
        return;
    }
    let shift = usize::BITS - size.trailing_zeros();
    for index in 0..size {
        let other = index.reverse_bits() >> shift;
        if index < other {
            values.swap(index, other);
        }
    }
    let roots: Vec<Complex> = (0..size / 2)
        .map(|index| {
            let (im, re) = (sign * 2.0 * PI * index as f64 / size as f64).sin_cos();
            Complex { re, im }
        })
        .collect();
    let mut half = 1;
    while half < size {
        let stride = size / (2 * half);
        for block in values.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (index, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let turned = b.times(roots[index * stride]);
                let sum = Complex {
                    re: a.re + turned.re,
                    im: a.im + turned.im,
                };
                *b = Complex {
                    re: a.re - turned.re,
                    im: a.im - turned.im,
                };
                *a = sum;
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_of_a_shifted_signal_is_the_shift() {
        let burst =
            |n: usize| (n as f64 * 0.7).sin() * (-((n as f64 - 300.0) / 60.0).powi(2)).exp();
        let signal: Vec<f64> = (0..1000).map(burst).collect();
        for shift in [0_i64, 1, 173, -90] {
            let lag = Lag { samples: shift };
            let moved = lag.apply(&signal);
            assert_eq!(global_lag(&signal, &moved).samples, -shift, "{shift}");
        }
        assert_eq!(global_lag(&signal, &[0.0; 1000]).samples, 0);
    }

    #[test]
    fn transform_of_a_tone_is_one_line() {
        let tone: Vec<f64> = (0..64)
            .map(|n| (2.0 * PI * 5.0 * n as f64 / 64.0).cos())
            .collect();
        let spectrum = transform(&tone, 64);
        for (line, value) in spectrum.iter().enumerate() {
            let expected = if line == 5 || line == 59 { 32.0 } else { 0.0 };
            assert!((value.re.hypot(value.im) - expected).abs() < 1e-9, "{line}");
        }
    }
}
