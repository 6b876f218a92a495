//! DTMF digits in sound: hearing them (the requirements are those of ITU-T Q.24), and turning telephone events (RFC 4733) into
//! sound and back.
//!
//! The detector looks at 20 ms every 10 ms. A pair of tones is a digit where both stand out of their groups, hold nearly all of
//! the power, are of similar level and within 2.5 % of their frequencies; the frequency is measured by how far the phase turns
//! from one half of the window to the other, which speech hardly ever survives.

use crate::tone::{Tone, ToneGenerator};
use core::f32::consts::TAU;

/// The lower group and the higher group in Hz (Q.23).
const FREQUENCIES: [f32; 8] = [697.0, 770.0, 852.0, 941.0, 1209.0, 1336.0, 1477.0, 1633.0];
const KEYS: [char; 16] = [
    '1', '2', '3', 'A', '4', '5', '6', 'B', '7', '8', '9', 'C', '*', '0', '#', 'D',
];
/// How far a frequency may be off: Q.24 has 1.5 to 1.8 % accepted and 3 to 3.5 % refused.
const TOLERANCE: f32 = 0.025;
/// The higher tone may be this much louder, and this much softer than the lower one, in dB.
const TWIST: f32 = 6.0;
const REVERSE_TWIST: f32 = 9.0;
/// The pair's part of the window's power.
const PURITY: f32 = 0.8;
/// How far the strongest tone of a group is above the next, in dB.
const LEAD: f32 = 6.0;
/// Each tone's level at least, in dBm0: Q.24 has administrations from -25 to -29.
const MIN_DBM0: f32 = -30.0;
/// Windows in a row until a digit counts, and until it has ended. 40 ms of tone have two windows in them, wherever they begin;
/// an interruption of 10 ms spoils two or three.
const BEGIN: u32 = 2;
const END: u32 = 3;
/// A full-scale sine is at +3.14 dBm0 (G.711), and its power is half of the square of full scale.
const DBM0_OF_FULL_POWER: f32 = 6.15;

/// What the detector heard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Heard {
    /// A digit began.
    Begin {
        /// The digit.
        digit: char,
        /// Its first sample, counted from the detector's beginning; right to 10 ms.
        at: u64,
        /// The mean of both tones' levels, in dBm0.
        level_dbm0: f32,
    },
    /// It ended.
    End {
        /// The digit.
        digit: char,
        /// How long it was, in samples; right to 10 ms.
        duration: u64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Half {
    /// Correlation with each frequency, and the power of all.
    sums: [(f32, f32); 8],
    power: f32,
}

/// Hears digits in a stream.
#[derive(Clone, Debug)]
pub struct Detector {
    rate: f32,
    /// Samples of half a window.
    hop: usize,
    rotations: [(f32, f32); 8],
    phasors: [(f32, f32); 8],
    current: Half,
    filled: usize,
    before: Half,
    /// Samples taken in.
    position: u64,
    candidate: Option<char>,
    hits: u32,
    misses: u32,
    digit: Option<(char, u64, u64)>,
}

impl Detector {
    /// A detector at `rate` Hz, at least 8000.
    pub fn new(rate: u32) -> Detector {
        let rate = rate.max(8000);
        Detector {
            rate: rate as f32,
            hop: rate as usize / 100,
            rotations: FREQUENCIES.map(|hz| {
                let (sin, cos) = (TAU * hz / rate as f32).sin_cos();
                (cos, sin)
            }),
            phasors: [(1.0, 0.0); 8],
            current: Half::default(),
            filled: 0,
            before: Half::default(),
            position: 0,
            candidate: None,
            hits: 0,
            misses: 0,
            digit: None,
        }
    }

    /// The digit that is being heard.
    pub fn digit(&self) -> Option<char> {
        self.digit.map(|(digit, _, _)| digit)
    }

    /// Whether a digit is heard, or may be about to: whoever sends it as an event mutes the sound meanwhile.
    pub fn suspects(&self) -> bool {
        self.candidate.is_some() || self.digit.is_some()
    }

    /// Takes samples; tells `heard` of each beginning and end.
    pub fn push(&mut self, samples: &[i16], heard: &mut dyn FnMut(Heard)) {
        let mut rest = samples;
        while !rest.is_empty() {
            let count = (self.hop - self.filled).min(rest.len());
            let (now, later) = rest.split_at(count);
            self.correlate(now);
            self.filled += count;
            self.position += count as u64;
            rest = later;
            if self.filled == self.hop {
                self.window(heard);
            }
        }
    }

    fn correlate(&mut self, samples: &[i16]) {
        for &sample in samples {
            let sample = f32::from(sample) / 32_768.0;
            self.current.power += sample * sample;
            let each = self.phasors.iter_mut().zip(&self.rotations);
            for ((phasor, rotation), sum) in each.zip(&mut self.current.sums) {
                sum.0 += sample * phasor.0;
                sum.1 -= sample * phasor.1;
                *phasor = multiply(*phasor, *rotation);
            }
        }
    }

    /// A hop is complete: judges the window that it makes with the one before.
    fn window(&mut self, heard: &mut dyn FnMut(Heard)) {
        let found = self.judge();
        self.before = core::mem::take(&mut self.current);
        self.filled = 0;
        for phasor in &mut self.phasors {
            // Rounding would let the length of the phasor drift.
            let length = phasor.0.hypot(phasor.1);
            *phasor = (phasor.0 / length, phasor.1 / length);
        }
        self.follow(found, heard);
    }

    fn judge(&self) -> Option<(char, f32)> {
        let samples = (2 * self.hop) as f32;
        let total = (self.before.power + self.current.power) / samples;
        if total <= 0.0 {
            return None;
        }
        let low = self.strongest(0)?;
        let high = self.strongest(4)?;
        let (low_power, high_power) = (self.tone_power(low)?, self.tone_power(high)?);
        let twist = decibels(high_power / low_power);
        let dbm0 = |power: f32| decibels(power) + DBM0_OF_FULL_POWER;
        let loud = dbm0(low_power.min(high_power)) >= MIN_DBM0;
        let even = (-REVERSE_TWIST..=TWIST).contains(&twist);
        let pure = low_power + high_power >= PURITY * total;
        let key = KEYS.get(low * 4 + high - 4)?;
        let level = (dbm0(low_power) + dbm0(high_power)) / 2.0;
        (loud && even && pure).then_some((*key, level))
    }

    /// The tone of a group that stands out.
    fn strongest(&self, group: usize) -> Option<usize> {
        let power = |index: usize| {
            let (a, b) = (self.before.sums[index], self.current.sums[index]);
            let sum = (a.0 + b.0, a.1 + b.1);
            sum.0 * sum.0 + sum.1 * sum.1
        };
        let (mut best, mut best_power, mut next) = (group, 0.0, 0.0);
        for index in group..group + 4 {
            let power = power(index);
            if power > best_power {
                next = best_power;
                (best, best_power) = (index, power);
            } else if power > next {
                next = power;
            }
        }
        // A tone between two of the table leads by less.
        (best_power > next * 10f32.powf(LEAD / 10.0)).then_some(best)
    }

    /// Mean power of the tone nearest to `index`, in squares of full scale; `None` where its frequency is too far off.
    fn tone_power(&self, index: usize) -> Option<f32> {
        let (a, b) = (self.before.sums[index], self.current.sums[index]);
        // How far the phase turns from half to half tells how far the frequency is off.
        let turn = multiply(b, (a.0, -a.1));
        let off = turn.1.atan2(turn.0) / TAU * self.rate / self.hop as f32;
        if off.abs() > TOLERANCE * FREQUENCIES[index] {
            return None;
        }
        // A half sees a tone that is off a little weaker.
        let x = core::f32::consts::PI * off * self.hop as f32 / self.rate;
        let seen = if x.abs() < 1e-3 { 1.0 } else { x.sin() / x };
        let squares = a.0 * a.0 + a.1 * a.1 + b.0 * b.0 + b.1 * b.1;
        let hop = self.hop as f32;
        // Twice: one tone of amplitude A sums up to A/2 per sample, and has a power of A^2/2.
        Some(squares / (hop * hop) / (seen * seen))
    }

    fn follow(&mut self, found: Option<(char, f32)>, heard: &mut dyn FnMut(Heard)) {
        let hop = self.hop as u64;
        let same = found.is_some_and(|(digit, _)| self.digit() == Some(digit));
        if same {
            self.misses = 0;
            self.candidate = None;
            if let Some((_, _, last)) = &mut self.digit {
                *last = self.position;
            }
            return;
        }
        self.misses += 1;
        let candidate = found.map(|(digit, _)| digit);
        self.hits = if candidate.is_some() && candidate == self.candidate {
            self.hits + 1
        } else {
            u32::from(candidate.is_some())
        };
        self.candidate = candidate;
        let begins = self.hits >= BEGIN;
        if let Some((digit, begin, last)) = self.digit
            && (begins || self.misses >= END)
        {
            self.digit = None;
            heard(Heard::End {
                digit,
                duration: last.saturating_sub(begin),
            });
        }
        if let (true, Some((digit, level_dbm0))) = (begins, found) {
            let at = self.position.saturating_sub(u64::from(BEGIN + 1) * hop);
            self.digit = Some((digit, at, self.position));
            self.candidate = None;
            self.hits = 0;
            self.misses = 0;
            heard(Heard::Begin {
                digit,
                at,
                level_dbm0,
            });
        }
    }
}

fn multiply(a: (f32, f32), b: (f32, f32)) -> (f32, f32) {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

fn decibels(ratio: f32) -> f32 {
    10.0 * ratio.max(1e-12).log10()
}

/// The event code of a digit (RFC 4733 section 3.2, table 3).
pub fn event_code(digit: char) -> Option<u8> {
    "0123456789*#ABCD"
        .find(digit.to_ascii_uppercase())
        .map(|place| place as u8)
}

/// The digit of an event code; events above 15 are none.
pub fn event_digit(code: u8) -> Option<char> {
    "0123456789*#ABCD".chars().nth(usize::from(code))
}

/// The volume field for a level (RFC 4733 section 2.3.3): the power without its sign, 0 to 63.
pub fn event_volume(level_dbm0: f32) -> u8 {
    (-level_dbm0).round().clamp(0.0, 63.0) as u8
}

/// The level of each of a digit's tones for a volume field. From 37 on (below the -36 dBm0 that the RFC calls the limit of
/// detection) and for 0, which many senders write for "do not know", it is -10 dBm0.
pub fn tone_level(volume: u8) -> f64 {
    match volume & 63 {
        0 | 37.. => -10.0,
        volume => -f64::from(volume),
    }
}

/// Puts digits into a stream as sound: while a digit is on, and for as long as it and the pause behind it must last to be
/// heard, it takes the place of what is there.
#[derive(Clone, Debug)]
pub struct Inserter {
    rate: u32,
    tone: Option<ToneGenerator>,
    /// Samples of tone and of pause that are owed.
    owed: usize,
    pause: usize,
    held: bool,
}

/// The shortest digit and the shortest pause that everyone hears (Q.24): 40 ms each.
const SHORTEST_MS: u32 = 40;

impl Inserter {
    /// An inserter at `rate` Hz.
    pub fn new(rate: u32) -> Inserter {
        Inserter {
            rate,
            tone: None,
            owed: 0,
            pause: 0,
            held: false,
        }
    }

    /// Whether the stream is being replaced.
    pub fn is_active(&self) -> bool {
        self.tone.is_some() || self.pause > 0
    }

    /// An event began. False where its code is no digit's.
    pub fn begin(&mut self, code: u8, volume: u8) -> bool {
        let Some(tone) = event_digit(code).and_then(|digit| Tone::dtmf(digit, tone_level(volume)))
        else {
            return false;
        };
        self.tone = Some(ToneGenerator::new(tone, self.rate));
        self.owed = self.shortest();
        self.held = true;
        true
    }

    /// The event ended. The tone goes on until it has been long enough.
    pub fn end(&mut self) {
        self.held = false;
    }

    fn shortest(&self) -> usize {
        (self.rate / 1000 * SHORTEST_MS) as usize
    }

    /// Replaces what is to be replaced of `samples`.
    pub fn apply(&mut self, samples: &mut [i16]) {
        let mut rest = samples;
        if let Some(generator) = &mut self.tone {
            let count = if self.held {
                rest.len()
            } else {
                self.owed.min(rest.len())
            };
            let (now, later) = rest.split_at_mut(count);
            generator.fill(now);
            self.owed = self.owed.saturating_sub(count);
            rest = later;
            if !self.held && self.owed == 0 {
                self.tone = None;
                self.pause = self.shortest();
            }
        }
        if self.tone.is_none() {
            let count = self.pause.min(rest.len());
            rest[..count].fill(0);
            self.pause -= count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{Generator, Noise};

    /// A pair of any two frequencies and levels.
    fn pair(hz: [f64; 2], dbm0: [f64; 2], rate: u32, ms: u32) -> Vec<i16> {
        let count = (rate / 1000 * ms) as usize;
        let mut sum = vec![0i16; count];
        for (hz, dbm0) in hz.into_iter().zip(dbm0) {
            let mut one = vec![0; count];
            ToneGenerator::new(Tone::sine(hz, dbm0), rate).fill(&mut one);
            sum.iter_mut().zip(one).for_each(|(s, o)| *s += o);
        }
        sum
    }

    fn hear(samples: &[i16], rate: u32) -> Vec<Heard> {
        let mut detector = Detector::new(rate);
        let mut all = Vec::new();
        for piece in samples.chunks(160) {
            detector.push(piece, &mut |heard| all.push(heard));
        }
        all
    }

    fn digits(heard: &[Heard]) -> String {
        heard
            .iter()
            .filter_map(|heard| match heard {
                Heard::Begin { digit, .. } => Some(*digit),
                Heard::End { .. } => None,
            })
            .collect()
    }

    #[test]
    fn every_digit_at_every_place() {
        for rate in [8000, 16_000, 48_000] {
            for offset in [0, 3, 7] {
                let keys = "1234567890*#ABCD";
                let mut samples = vec![0; rate as usize / 1000 * offset];
                for key in keys.chars() {
                    let mut tone = vec![0; rate as usize / 1000 * 40];
                    ToneGenerator::new(Tone::dtmf(key, -10.0).unwrap(), rate).fill(&mut tone);
                    samples.extend(tone);
                    samples.extend(vec![0; rate as usize / 1000 * 40]);
                }
                let heard = hear(&samples, rate);
                assert_eq!(digits(&heard), keys, "{rate} Hz, {offset} ms");
                let ends = heard
                    .iter()
                    .filter(|h| matches!(h, Heard::End { .. }))
                    .count();
                assert_eq!(ends, 16);
                let unit = u64::from(rate) / 100;
                let Heard::Begin { at, level_dbm0, .. } = heard[0] else {
                    panic!("{heard:?}")
                };
                assert!(at.abs_diff(unit * offset as u64 / 10) <= unit, "{at}");
                assert!((level_dbm0 + 10.0).abs() < 1.0, "{level_dbm0}");
                let Heard::End { duration, .. } = heard[1] else {
                    panic!("{heard:?}")
                };
                assert!(duration.abs_diff(4 * unit) <= unit, "{duration}");
            }
        }
    }

    /// The limits of Q.24: frequency, twist, level, duration, interruption.
    #[test]
    fn what_is_a_digit_and_what_is_not() {
        let five = [770.0, 1336.0];
        let level = [-10.0, -10.0];
        let off = |low: f64, high: f64| [five[0] * (1.0 + low), five[1] * (1.0 + high)];
        for (name, hz, dbm0, ms, expected) in [
            ("+1.8 %", off(0.018, 0.018), level, 60, "5"),
            ("-1.8 %", off(-0.018, -0.018), level, 60, "5"),
            ("low +3.5 %", off(0.035, 0.0), level, 60, ""),
            ("low -3.5 %", off(-0.035, 0.0), level, 60, ""),
            ("high +3.5 %", off(0.0, 0.035), level, 60, ""),
            ("high -3.5 %", off(0.0, -0.035), level, 60, ""),
            ("high +4 dB", five, [-12.0, -8.0], 60, "5"),
            ("high -8 dB", five, [-8.0, -16.0], 60, "5"),
            ("high +10 dB", five, [-18.0, -8.0], 60, ""),
            ("high -13 dB", five, [-8.0, -21.0], 60, ""),
            ("-28 dBm0", five, [-28.0, -28.0], 60, "5"),
            ("-36 dBm0", five, [-36.0, -36.0], 60, ""),
            ("15 ms", five, level, 15, ""),
            ("one tone", [770.0, 0.0], level, 60, ""),
        ] {
            let mut samples = vec![0; 333];
            samples.extend(pair(hz, dbm0, 8000, ms));
            samples.extend([0; 800]);
            assert_eq!(digits(&hear(&samples, 8000)), expected, "{name}");
        }
        // An interruption of 10 ms does not make two of one, one of 40 ms does.
        for (gap, expected) in [(10, "5"), (40, "55")] {
            let mut samples = pair(five, level, 8000, 60);
            samples.extend(vec![0; 8 * gap]);
            samples.extend(pair(five, level, 8000, 60));
            samples.extend([0; 800]);
            assert_eq!(digits(&hear(&samples, 8000)), expected, "{gap} ms");
        }
        // A third tone as loud: speech or music.
        let mut samples = pair(five, level, 8000, 200);
        let third = pair([1000.0, 0.0], [-8.0, -90.0], 8000, 200);
        samples.iter_mut().zip(third).for_each(|(s, t)| *s += t);
        assert_eq!(digits(&hear(&samples, 8000)), "");
    }

    #[test]
    fn noise_and_coding_do_not_hide_digits() {
        let keys = "159D#0";
        let mut samples = Vec::new();
        for key in keys.chars() {
            let mut tone = vec![0; 8 * 50];
            ToneGenerator::new(Tone::dtmf(key, -12.0).unwrap(), 8000).fill(&mut tone);
            samples.extend(tone);
            samples.extend([0; 8 * 50]);
        }
        let mut noise = vec![0; samples.len()];
        let mut generator = Generator::new(1);
        // 15 dB below the pair.
        generator.describe(Noise::white(30));
        generator.fill(&mut noise);
        for (sample, noise) in samples.iter_mut().zip(noise) {
            let law = crate::g711::Law::Mu;
            *sample = law.decode_sample(law.encode_sample(sample.saturating_add(noise)));
        }
        assert_eq!(digits(&hear(&samples, 8000)), keys);
    }

    #[test]
    fn speech_is_no_digit() {
        for speech in [crate::speech::speech(), crate::speech::answer()] {
            for gain in [64, 128, 256, 512] {
                let mut samples = speech.to_vec();
                crate::mix::scale(&mut samples, gain);
                assert_eq!(hear(&samples, 8000), [], "gain {gain}/256");
            }
        }
        let mut noise = vec![0; 8000 * 60];
        let mut generator = Generator::new(11);
        generator.describe(Noise::white(20));
        generator.fill(&mut noise);
        assert_eq!(hear(&noise, 8000), []);
    }

    #[test]
    fn events_there_and_back() {
        for code in 0..16 {
            let digit = event_digit(code).unwrap();
            assert_eq!(event_code(digit), Some(code));
            let mut inserter = Inserter::new(8000);
            assert!(inserter.begin(code, 12));
            let mut samples = vec![1000; 160];
            inserter.apply(&mut samples);
            inserter.end();
            assert!(inserter.is_active());
            let mut rest = vec![1000; 8 * 100];
            inserter.apply(&mut rest);
            assert!(!inserter.is_active());
            // 40 ms of tone and 40 ms of pause at least, then the stream again.
            assert_eq!(rest[160..480], [0; 320]);
            assert_eq!(rest[480..], [1000; 320]);
            samples.extend(&rest[..480]);
            let heard = hear(&samples, 8000);
            assert_eq!(digits(&heard), digit.to_string());
            let Heard::Begin { level_dbm0, .. } = heard[0] else {
                panic!("{heard:?}")
            };
            assert!(event_volume(level_dbm0).abs_diff(12) <= 1, "{level_dbm0}");
        }
        assert_eq!(event_digit(16), None);
        assert_eq!(event_code('x'), None);
        assert!(!Inserter::new(8000).begin(16, 10));
        assert_eq!(event_volume(3.0), 0);
        assert_eq!(event_volume(-90.0), 63);
        assert_eq!(
            (tone_level(0), tone_level(63), tone_level(20)),
            (-10.0, -10.0, -20.0)
        );
    }
}
