//! Comfort noise (RFC 3389): level and spectrum of the noise, found by linear prediction, sent as reflection
//! coefficients, and synthesised by a lattice filter.
//!
//! The reflection coefficient of low-pass noise is negative here, as with WebRTC and ffmpeg; the RFC does not define
//! the sign.

use crate::level;

/// The static payload type of comfort noise at a clock of 8000 Hz (RFC 3389 section 4).
pub const PAYLOAD_TYPE: u8 = 13;
/// Number of coefficients that are sent: the order of G.711 Appendix II.
pub const ORDER: usize = 10;
/// Maximum number of coefficients that are used of a payload; further ones have no audible effect.
pub const MAX_ORDER: usize = 12;
/// Octets that [`Noise::write`] needs.
pub const MAX_PAYLOAD: usize = 1 + MAX_ORDER;

/// The contents of a comfort noise payload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Level in -dBov: 0 is the loudest, 127 silence.
    pub level: u8,
    /// Number of valid coefficients; none means white noise.
    pub order: usize,
    /// Reflection coefficients, each within -1 to 1.
    pub coefficients: [f32; MAX_ORDER],
}

impl Noise {
    /// White noise at `level` -dBov.
    pub fn white(level: u8) -> Noise {
        Noise {
            level: level.min(127),
            ..Noise::default()
        }
    }

    /// Parses a payload; `None` if it is empty, or has the reserved bit of the level set.
    pub fn parse(payload: &[u8]) -> Option<Noise> {
        let (&level, rest) = payload.split_first()?;
        if level > 127 {
            return None;
        }
        let mut noise = Noise::white(level);
        noise.order = rest.len().min(MAX_ORDER);
        for (coefficient, &octet) in noise.coefficients.iter_mut().zip(rest) {
            // Section 3.2; 255 is not used and treated as 254.
            *coefficient = 258.0 * (f32::from(octet.min(254)) - 127.0) / 32_768.0;
        }
        Some(noise)
    }

    /// Writes the payload; returns its length, zero if `payload` is too short.
    pub fn write(&self, payload: &mut [u8]) -> usize {
        let order = self.order.min(MAX_ORDER);
        let Some(payload) = payload.get_mut(..=order) else {
            return 0;
        };
        for (octet, coefficient) in payload.iter_mut().skip(1).zip(self.coefficients) {
            *octet = (coefficient * 32_768.0 / 258.0 + 127.0)
                .round()
                .clamp(0.0, 254.0) as u8;
        }
        if let Some(level) = payload.first_mut() {
            *level = self.level;
        }
        1 + order
    }

    /// Whether the difference is audible: 2 dB, or a clearly different spectrum.
    pub fn differs(&self, other: &Noise) -> bool {
        let colours = self.coefficients.iter().zip(other.coefficients).take(4);
        self.level.abs_diff(other.level) >= 2
            || colours.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) > 0.25
    }
}

/// Estimates level and spectrum of noise, averaged over the last few hundred milliseconds.
#[derive(Clone, Debug)]
pub struct Analyser {
    /// Autocorrelation per sample, averaged.
    correlation: [f64; ORDER + 1],
    /// Number of pieces since the last reset.
    count: u32,
}

impl Default for Analyser {
    fn default() -> Self {
        Analyser::new()
    }
}

impl Analyser {
    /// An analyser without input.
    pub const fn new() -> Analyser {
        Analyser {
            correlation: [0.0; ORDER + 1],
            count: 0,
        }
    }

    /// Resets the average.
    pub fn reset(&mut self) {
        *self = Analyser::new();
    }

    /// Adds a piece of noise of about 10 ms. The time constant of the average is sixteen pieces.
    pub fn add(&mut self, samples: &[i16]) {
        if samples.len() <= ORDER {
            return;
        }
        self.count = (self.count + 1).min(16);
        let weight = 1.0 / f64::from(self.count);
        for (lag, average) in self.correlation.iter_mut().enumerate() {
            let sum: i64 = samples
                .iter()
                .zip(samples.iter().skip(lag))
                .map(|(&x, &y)| i64::from(i32::from(x) * i32::from(y)))
                .sum();
            *average += (sum as f64 / samples.len() as f64 - *average) * weight;
        }
    }

    /// The estimated noise; silence without input.
    pub fn describe(&self) -> Noise {
        let level = (-level::power_dbov(self.correlation[0])).round();
        let mut noise = Noise::white(level as u8);
        if self.correlation[0] < 1.0 {
            return noise;
        }
        noise.order = ORDER;
        let mut correlation = self.correlation;
        // White noise at -40 dB keeps the filter stable if a band is empty.
        correlation[0] *= 1.0001;
        let mut prediction = [0.0; ORDER + 1];
        let mut error = correlation[0];
        for step in 1..=ORDER {
            let sum: f64 = (1..step)
                .map(|place| prediction[place] * correlation[step - place])
                .sum();
            let reflection = (-(correlation[step] + sum) / error).clamp(-0.999, 0.999);
            let before = prediction;
            for place in 1..step {
                prediction[place] = before[place] + reflection * before[step - place];
            }
            prediction[step] = reflection;
            error *= 1.0 - reflection * reflection;
            noise.coefficients[step - 1] = reflection as f32;
        }
        noise
    }
}

/// Generates noise from a description. Changes are gradual, over some tens of milliseconds.
#[derive(Clone, Debug)]
pub struct Generator {
    target: Noise,
    /// Current and target standard deviation of the output.
    deviation: f32,
    coefficients: [f32; MAX_ORDER],
    backward: [f32; MAX_ORDER],
    seed: u64,
    begun: bool,
}

impl Generator {
    /// A generator of silence. Generators with equal `seed` generate the same noise.
    pub fn new(seed: u64) -> Generator {
        Generator {
            target: Noise::white(127),
            deviation: 0.0,
            coefficients: [0.0; MAX_ORDER],
            backward: [0.0; MAX_ORDER],
            // Never zero, a state that the generator would not leave.
            seed: seed | 1 << 63,
            begun: false,
        }
    }

    /// Sets the noise to generate.
    pub fn describe(&mut self, noise: Noise) {
        self.target = noise;
        if !self.begun {
            self.begun = true;
            self.deviation = deviation(noise.level);
            self.coefficients = noise.coefficients;
        }
    }

    /// Fills `samples` with the next samples.
    pub fn fill(&mut self, samples: &mut [i16]) {
        for piece in samples.chunks_mut(40) {
            self.glide();
            // The lattice amplifies by the inverse of the prediction gain.
            let gain: f32 = self.coefficients.iter().map(|k| 1.0 - k * k).product();
            let amplitude = self.deviation * gain.max(0.0).sqrt();
            for sample in piece {
                let excitation = self.random() * amplitude;
                *sample = self.filter(excitation).round().clamp(-32_768.0, 32_767.0) as i16;
            }
        }
    }

    fn glide(&mut self) {
        let target = deviation(self.target.level);
        self.deviation += (target - self.deviation) * 0.2;
        for (now, target) in self.coefficients.iter_mut().zip(self.target.coefficients) {
            *now += (target - *now) * 0.2;
        }
    }

    /// A random value of variance one: the sum of four uniform values, sufficiently normal for listeners.
    fn random(&mut self) -> f32 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let sum: i32 = self
            .seed
            .to_le_bytes()
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&half| i32::from(i16::from_le_bytes(half)))
            .sum();
        // Each has a variance of 2^32/12.
        sum as f32 / (65_536.0 * 0.577_350_3)
    }

    fn filter(&mut self, excitation: f32) -> f32 {
        let mut forward = excitation;
        // From the last stage to the first: each uses the delayed signal of the older stage and stores its own for the
        // next sample.
        for place in (0..MAX_ORDER).rev() {
            let k = self.coefficients[place];
            forward -= k * self.backward[place];
            let backward = self.backward[place] + k * forward;
            if let Some(next) = self.backward.get_mut(place + 1) {
                *next = backward;
            }
        }
        self.backward[0] = forward;
        forward
    }
}

fn deviation(level: u8) -> f32 {
    if level >= 127 {
        return 0.0;
    }
    32_768.0 * 10f32.powf(-f32::from(level) / 20.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::dbov;

    fn noise(description: Noise, count: usize) -> Vec<i16> {
        let mut generator = Generator::new(7);
        generator.describe(description);
        let mut samples = vec![0; count];
        generator.fill(&mut samples);
        samples
    }

    #[test]
    fn payloads() {
        assert_eq!(Noise::parse(&[]), None);
        assert_eq!(Noise::parse(&[128]), None);
        assert_eq!(Noise::parse(&[60]), Some(Noise::white(60)));
        let parsed = Noise::parse(&[40, 0, 127, 254, 255]).unwrap();
        assert_eq!((parsed.level, parsed.order), (40, 4));
        assert!((parsed.coefficients[0] + 0.99994).abs() < 1e-4);
        assert_eq!(parsed.coefficients[1], 0.0);
        assert!((parsed.coefficients[2] - 0.99994).abs() < 1e-4);
        assert_eq!(parsed.coefficients[2], parsed.coefficients[3]);
        let mut payload = [0; MAX_PAYLOAD];
        assert_eq!(parsed.write(&mut payload), 5);
        assert_eq!(payload[..5], [40, 0, 127, 254, 254]);
        assert_eq!(parsed.write(&mut payload[..4]), 0);
        assert_eq!(Noise::parse(&[9; 100]).unwrap().order, MAX_ORDER);
    }

    #[test]
    fn generated_level_is_correct() {
        for level in [20, 40, 60, 75] {
            for coefficients in [vec![], vec![-0.9, 0.3], vec![0.5, -0.2, 0.6]] {
                let mut description = Noise::white(level);
                description.order = coefficients.len();
                description.coefficients[..coefficients.len()].copy_from_slice(&coefficients);
                let level_dbov = dbov(&noise(description, 40_000));
                assert!(
                    (level_dbov + f64::from(level)).abs() < 0.7,
                    "{level} {coefficients:?}: {level_dbov}"
                );
            }
        }
        assert!(
            noise(Noise::white(127), 800)
                .iter()
                .all(|&sample| sample == 0)
        );
    }

    #[test]
    fn generated_noise_is_estimated_correctly() {
        let mut description = Noise::white(45);
        description.order = ORDER;
        description.coefficients[..4].copy_from_slice(&[-0.8, 0.4, -0.2, 0.3]);
        let samples = noise(description, 16_000);
        let mut analyser = Analyser::new();
        assert_eq!(analyser.describe(), Noise::white(127));
        for piece in samples.chunks(800) {
            analyser.add(piece);
        }
        let found = analyser.describe();
        assert!(found.level.abs_diff(45) <= 1, "{found:?}");
        assert!(!found.differs(&description), "{found:?}");
        for (a, b) in found.coefficients.iter().zip(description.coefficients) {
            assert!((a - b).abs() < 0.1, "{found:?}");
        }
        assert!(found.differs(&Noise::white(45)));
        assert!(found.differs(&Noise { level: 49, ..found }));
        analyser.reset();
        analyser.add(&[1; 5]);
        assert_eq!(analyser.describe().level, 127);
    }

    #[test]
    fn any_payload_gives_bounded_noise() {
        for octet in 0..=255u8 {
            let payload = [
                octet % 128,
                octet,
                !octet,
                octet,
                octet,
                !octet,
                254,
                0,
                254,
                0,
                octet,
            ];
            let samples = noise(Noise::parse(&payload).unwrap(), 8000);
            assert_eq!(samples.len(), 8000);
        }
    }
}
