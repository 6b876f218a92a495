//! Levels of linear PCM in dBov: relative to the overload point of the system, so that a full-scale square wave is at 0
//! dBov and a full-scale sine at -3.01 dBov (RFC 3389 section 3, RFC 6464).

/// The level of digital silence.
pub const SILENCE_DBOV: f64 = -127.0;

/// Mean power of `samples` in dBov; [`SILENCE_DBOV`] if there are none or all are zero.
pub fn dbov(samples: &[i16]) -> f64 {
    power_dbov(mean_square(samples))
}

/// Mean of the squares; zero for no samples.
pub fn mean_square(samples: &[i16]) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    let sum: f64 = samples
        .iter()
        .map(|&sample| f64::from(sample) * f64::from(sample))
        .sum();
    sum / samples.len() as f64
}

/// The level of a mean square in dBov.
pub fn power_dbov(mean_square: f64) -> f64 {
    if mean_square <= 0.0 {
        return SILENCE_DBOV;
    }
    (10.0 * (mean_square / (32_768.0 * 32_768.0)).log10()).max(SILENCE_DBOV)
}

/// Level of the active parts only: frames of 20 ms at `rate` within 30 dB of the loudest frame. Pauses between words
/// are excluded, so that levels of speech with different pauses are comparable (the principle of ITU-T P.56, with a
/// fixed margin).
pub fn active_dbov(samples: &[i16], rate: u32) -> f64 {
    let frame = (rate as usize / 50).max(1);
    let loudest = samples
        .chunks(frame)
        .map(mean_square)
        .fold(0.0_f64, f64::max);
    let (mut sum, mut frames) = (0.0, 0u32);
    for power in samples.chunks(frame).map(mean_square) {
        if power > 0.0 && power >= loudest * 1e-3 {
            sum += power;
            frames += 1;
        }
    }
    power_dbov(if frames == 0 {
        0.0
    } else {
        sum / f64::from(frames)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_points() {
        let square: Vec<i16> = (0..800)
            .map(|i| if i % 8 < 4 { 32_767 } else { -32_768 })
            .collect();
        assert!(dbov(&square).abs() < 0.001);
        let sine: Vec<i16> = (0..8000)
            .map(|i| {
                (32_767.0 * (f64::from(i) * 2.0 * std::f64::consts::PI * 1000.0 / 8000.0).sin())
                    as i16
            })
            .collect();
        assert!((dbov(&sine) + 3.01).abs() < 0.02);
        assert_eq!(dbov(&[]), SILENCE_DBOV);
        assert_eq!(dbov(&[0; 160]), SILENCE_DBOV);
    }

    #[test]
    fn pauses_do_not_lower_the_active_level() {
        let mut samples = vec![10_000i16; 1600];
        samples.extend([0; 8000]);
        assert!((active_dbov(&samples, 8000) - dbov(&samples[..1600])).abs() < 0.001);
        assert_eq!(active_dbov(&[0; 320], 8000), SILENCE_DBOV);
    }
}
