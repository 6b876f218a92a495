//! Common functions of the tests.
#![allow(dead_code)]

use std::path::PathBuf;

/// A file of the shared test data; `None`, reported once, if absent.
pub fn testdata(name: &str) -> Option<Vec<u8>> {
    let root = std::env::var_os("HORNWORK_TESTDATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/testdata"),
        PathBuf::from,
    );
    if !root.is_dir() {
        println!("skipped: testdata absent");
        return None;
    }
    Some(std::fs::read(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Little-endian samples.
pub fn words(bytes: &[u8]) -> Vec<i16> {
    bytes
        .chunks_exact(2)
        .map(|word| i16::from_le_bytes([word[0], word[1]]))
        .collect()
}

/// Power of `signal` relative to the power of its difference from `other`, in dB.
pub fn snr(signal: &[i16], other: &[i16]) -> f64 {
    let (mut power, mut noise) = (0.0, 0.0);
    for (&x, &y) in signal.iter().zip(other) {
        power += f64::from(x).powi(2);
        noise += (f64::from(x) - f64::from(y)).powi(2);
    }
    10.0 * (power / noise.max(1e-9)).log10()
}

/// Level of one frequency in dB relative to a full-scale sine, by correlation under a Hann window.
pub fn level_at(samples: &[i16], hz: f64, rate: u32) -> f64 {
    use std::f64::consts::TAU;
    let n = samples.len() as f64;
    let (mut re, mut im, mut weight) = (0.0, 0.0, 0.0);
    for (i, &sample) in samples.iter().enumerate() {
        let window = 0.5 - 0.5 * (TAU * i as f64 / n).cos();
        let angle = TAU * hz * i as f64 / f64::from(rate);
        re += window * f64::from(sample) * angle.cos();
        im += window * f64::from(sample) * angle.sin();
        weight += window;
    }
    20.0 * (2.0 * re.hypot(im) / weight / 32_767.0).max(1e-9).log10()
}
