//! Tones: sines, DTMF pairs (ITU-T Q.23), call progress (ITU-T E.180 and the North American plan).

use core::f64::consts::TAU;

/// Level of a full-scale sine in A-law, in dBm0 (G.711 section 4).
const OVERLOAD_DBM0: f64 = 314.0 / 100.0;

/// One or two frequencies at a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tone {
    /// Frequencies in Hz; the second is zero for a single tone.
    pub frequencies: [f64; 2],
    /// Level of each frequency in dBm0. A full-scale sine is at +3.14 dBm0 (G.711).
    pub level_dbm0: f64,
}

impl Tone {
    /// A sine of `frequency` Hz at `level_dbm0`.
    pub const fn sine(frequency: f64, level_dbm0: f64) -> Tone {
        Tone {
            frequencies: [frequency, 0.0],
            level_dbm0,
        }
    }

    /// Two sines, each at `level_dbm0`.
    pub const fn pair(low: f64, high: f64, level_dbm0: f64) -> Tone {
        Tone {
            frequencies: [low, high],
            level_dbm0,
        }
    }

    /// The pair of a DTMF digit (0 to 9, `*`, `#`, A to D); `None` for other characters.
    pub fn dtmf(digit: char, level_dbm0: f64) -> Option<Tone> {
        const KEYS: &str = "123A456B789C*0#D";
        const LOW: [f64; 4] = [697.0, 770.0, 852.0, 941.0];
        const HIGH: [f64; 4] = [1209.0, 1336.0, 1477.0, 1633.0];
        let key = KEYS.find(digit.to_ascii_uppercase())?;
        Some(Tone::pair(LOW[key / 4], HIGH[key % 4], level_dbm0))
    }
}

/// A tone with a cadence.
#[derive(Clone, Debug, PartialEq)]
pub struct Cadence {
    /// The tone.
    pub tone: Tone,
    /// Milliseconds on, off, on, off, ..., repeated; empty for a continuous tone.
    pub pattern_ms: &'static [u32],
}

/// Plans of call-progress tones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// 425 Hz, as in most of Europe.
    Europe,
    /// The Precise Tone Plan.
    NorthAmerica,
}

/// The meaning of a call-progress tone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Dial tone.
    Dial,
    /// Ringing tone.
    Ringing,
    /// Busy tone.
    Busy,
    /// Congestion tone.
    Congestion,
}

/// The call-progress tone of a region, at `level_dbm0` per frequency.
pub fn progress(region: Region, kind: Progress, level_dbm0: f64) -> Cadence {
    let (low, high, pattern_ms): (f64, f64, &'static [u32]) = match (region, kind) {
        (Region::Europe, Progress::Dial) => (425.0, 0.0, &[]),
        (Region::Europe, Progress::Ringing) => (425.0, 0.0, &[1000, 4000]),
        (Region::Europe, Progress::Busy) => (425.0, 0.0, &[500, 500]),
        (Region::Europe, Progress::Congestion) => (425.0, 0.0, &[250, 250]),
        (Region::NorthAmerica, Progress::Dial) => (350.0, 440.0, &[]),
        (Region::NorthAmerica, Progress::Ringing) => (440.0, 480.0, &[2000, 4000]),
        (Region::NorthAmerica, Progress::Busy) => (480.0, 620.0, &[500, 500]),
        (Region::NorthAmerica, Progress::Congestion) => (480.0, 620.0, &[250, 250]),
    };
    Cadence {
        tone: Tone::pair(low, high, level_dbm0),
        pattern_ms,
    }
}

/// Generates a tone, without clicks between calls.
#[derive(Clone, Debug)]
pub struct ToneGenerator {
    steps: [f64; 2],
    phases: [f64; 2],
    amplitude: f64,
    pattern: Vec<u64>,
    /// Position in the cadence, samples.
    position: u64,
}

impl ToneGenerator {
    /// A continuous tone at `rate` Hz.
    pub fn new(tone: Tone, rate: u32) -> ToneGenerator {
        ToneGenerator::with_cadence(
            &Cadence {
                tone,
                pattern_ms: &[],
            },
            rate,
        )
    }

    /// A tone with a cadence at `rate` Hz.
    pub fn with_cadence(cadence: &Cadence, rate: u32) -> ToneGenerator {
        let rate = rate.max(1);
        let tone = cadence.tone;
        ToneGenerator {
            steps: tone.frequencies.map(|hz| TAU * hz / f64::from(rate)),
            phases: [0.0; 2],
            amplitude: 32_767.0 * 10f64.powf((tone.level_dbm0 - OVERLOAD_DBM0) / 20.0),
            pattern: cadence
                .pattern_ms
                .iter()
                .map(|&ms| u64::from(ms) * u64::from(rate) / 1000)
                .collect(),
            position: 0,
        }
    }

    /// Fills `samples` with the next samples.
    pub fn fill(&mut self, samples: &mut [i16]) {
        for sample in samples {
            *sample = self.next_sample();
        }
    }

    fn next_sample(&mut self) -> i16 {
        let on = self.next_is_on();
        self.position += 1;
        let mut sum = 0.0;
        for (phase, step) in self.phases.iter_mut().zip(self.steps) {
            sum += phase.sin();
            *phase = (*phase + step) % TAU;
        }
        if on {
            (sum * self.amplitude).round().clamp(-32_768.0, 32_767.0) as i16
        } else {
            0
        }
    }

    fn next_is_on(&mut self) -> bool {
        let total: u64 = self.pattern.iter().sum();
        if total == 0 {
            return true;
        }
        self.position %= total;
        let mut end = 0;
        for (index, length) in self.pattern.iter().enumerate() {
            end += length;
            if self.position < end {
                return index % 2 == 0;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::{SILENCE_DBOV, dbov};

    /// Power of one frequency by correlation with it, against full scale.
    fn power_at(samples: &[i16], hz: f64) -> f64 {
        let (mut re, mut im) = (0.0, 0.0);
        for (i, &sample) in samples.iter().enumerate() {
            let angle = TAU * hz * i as f64 / 8000.0;
            re += f64::from(sample) * angle.cos();
            im += f64::from(sample) * angle.sin();
        }
        let n = samples.len() as f64;
        20.0 * (2.0 * re.hypot(im) / n / 32_767.0).log10()
    }

    #[test]
    fn level_is_in_dbm0() {
        let mut samples = [0; 8000];
        ToneGenerator::new(Tone::sine(1000.0, 0.0), 8000).fill(&mut samples);
        // 0 dBm0 is 3.14 dB below a full-scale sine, which is at -3.01 dBov.
        assert!((dbov(&samples) + 6.15).abs() < 0.02);
        ToneGenerator::new(Tone::sine(1000.0, 30.0), 8000).fill(&mut samples);
        assert_eq!(samples.iter().max(), Some(&32_767), "clipped, not wrapped");
    }

    #[test]
    fn every_digit_has_its_two_frequencies() {
        for digit in "0123456789*#ABCD".chars() {
            let tone = Tone::dtmf(digit, -10.0).unwrap();
            let mut samples = [0; 800];
            ToneGenerator::new(tone, 8000).fill(&mut samples);
            for hz in [697.0, 770.0, 852.0, 941.0, 1209.0, 1336.0, 1477.0, 1633.0] {
                let present = tone.frequencies.contains(&hz);
                let power = power_at(&samples, hz);
                assert_eq!(power > -20.0, present, "{digit} {hz} {power}");
            }
        }
        assert_eq!(Tone::dtmf('x', 0.0), None);
        assert_eq!(Tone::dtmf('5', 0.0).unwrap().frequencies, [770.0, 1336.0]);
    }

    #[test]
    fn cadence_and_seams() {
        let busy = progress(Region::Europe, Progress::Busy, -10.0);
        let mut generator = ToneGenerator::with_cadence(&busy, 8000);
        let mut samples = [0; 16_000];
        generator.fill(&mut samples);
        assert!(dbov(&samples[..4000]) > -20.0);
        assert_eq!(dbov(&samples[4000..8000]), SILENCE_DBOV);
        assert!(dbov(&samples[8000..12_000]) > -20.0);
        let mut whole = [0; 480];
        let mut parts = [0; 480];
        ToneGenerator::new(busy.tone, 8000).fill(&mut whole);
        let mut again = ToneGenerator::new(busy.tone, 8000);
        parts.chunks_mut(7).for_each(|part| again.fill(part));
        assert_eq!(whole, parts);
    }
}
