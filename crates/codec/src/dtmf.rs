//! DTMF digits in audio: detection (with the requirements of ITU-T Q.24), and conversion between telephone events (RFC
//! 4733) and audio.
//!
//! The detector examines 20 ms every 10 ms. A pair of tones is a digit if both exceed all others in their groups,
//! contain nearly all of the power, have similar levels and deviate at most 2.5 % from their frequencies. The frequency
//! is measured by the phase difference between the two halves of the window, a test that speech hardly ever passes.

use crate::tone::{Tone, ToneGenerator};
use core::f32::consts::TAU;

/// The lower group and the higher group in Hz (Q.23).
const FREQUENCIES: [f32; 8] = [697.0, 770.0, 852.0, 941.0, 1209.0, 1336.0, 1477.0, 1633.0];
const KEYS: [char; 16] = [
    '1', '2', '3', 'A', '4', '5', '6', 'B', '7', '8', '9', 'C', '*', '0', '#', 'D',
];
/// Maximum deviation of a frequency: Q.24 requires 1.5 to 1.8 % to be accepted and 3 to 3.5 % to be refused.
const TOLERANCE: f32 = 0.025;
/// Maximum level of the higher tone above the lower one, and below it, in dB.
const MAX_TWIST_DB: f32 = 6.0;
const MAX_REVERSE_TWIST_DB: f32 = 9.0;
/// Minimum share of the pair in the window's power.
const MIN_PURITY: f32 = 0.8;
/// Minimum level of the strongest tone of a group above the next, in dB.
const MIN_LEAD_DB: f32 = 6.0;
/// Minimum level of each tone, in dBm0: Q.24 lists administrations with -25 to -29.
const MIN_DBM0: f32 = -30.0;
/// Number of consecutive windows for the start and the end of a digit. 40 ms of tone contain two windows at any offset;
/// an interruption of 10 ms affects two or three.
const START_WINDOWS: u32 = 2;
const END_WINDOWS: u32 = 3;
/// A full-scale sine is at +3.14 dBm0 (G.711), and its power is half of the square of full scale.
const DBM0_OF_FULL_POWER: f32 = 6.15;

/// An event of the detector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DetectorEvent {
    /// A digit started.
    Begin {
        /// The digit.
        digit: char,
        /// Its first sample, relative to the detector's start; accurate to 10 ms.
        at: u64,
        /// The mean of the levels of both tones, in dBm0.
        level_dbm0: f32,
    },
    /// A digit ended.
    End {
        /// The digit.
        digit: char,
        /// Its duration, in samples; accurate to 10 ms.
        duration: u64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Half {
    /// Correlation with each frequency, and the total power.
    sums: [(f32, f32); 8],
    power: f32,
}

/// Detects digits in a stream.
#[derive(Clone, Debug)]
pub struct Detector {
    rate: f32,
    /// Number of samples of half a window.
    hop: usize,
    rotations: [(f32, f32); 8],
    phasors: [(f32, f32); 8],
    current: Half,
    filled: usize,
    before: Half,
    /// Number of processed samples.
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

    /// The current digit.
    pub fn digit(&self) -> Option<char> {
        self.digit.map(|(digit, _, _)| digit)
    }

    /// Whether a digit is present, or may be starting: a sender of telephone events mutes the audio meanwhile.
    pub fn may_be_digit(&self) -> bool {
        self.candidate.is_some() || self.digit.is_some()
    }

    /// Processes samples; calls `on_event` at each start and end of a digit.
    pub fn push(&mut self, samples: &[i16], on_event: &mut dyn FnMut(DetectorEvent)) {
        let mut rest = samples;
        while !rest.is_empty() {
            let count = (self.hop - self.filled).min(rest.len());
            let (now, later) = rest.split_at(count);
            self.correlate(now);
            self.filled += count;
            self.position += count as u64;
            rest = later;
            if self.filled == self.hop {
                self.window(on_event);
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

    /// Evaluates the window that consists of this hop and the previous one.
    fn window(&mut self, on_event: &mut dyn FnMut(DetectorEvent)) {
        let found = self.evaluate();
        self.before = core::mem::take(&mut self.current);
        self.filled = 0;
        for phasor in &mut self.phasors {
            // Rounding errors would change the length of the phasor.
            let length = phasor.0.hypot(phasor.1);
            *phasor = (phasor.0 / length, phasor.1 / length);
        }
        self.follow(found, on_event);
    }

    fn evaluate(&self) -> Option<(char, f32)> {
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
        let even = (-MAX_REVERSE_TWIST_DB..=MAX_TWIST_DB).contains(&twist);
        let pure = low_power + high_power >= MIN_PURITY * total;
        let key = KEYS.get(low * 4 + high - 4)?;
        let level = (dbm0(low_power) + dbm0(high_power)) / 2.0;
        (loud && even && pure).then_some((*key, level))
    }

    /// The dominant tone of a group.
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
        // A tone between two frequencies of the table has a smaller lead.
        (best_power > next * 10f32.powf(MIN_LEAD_DB / 10.0)).then_some(best)
    }

    /// Mean power of the tone nearest to `index`, in squares of full scale; `None` if its frequency deviates too much.
    fn tone_power(&self, index: usize) -> Option<f32> {
        let (a, b) = (self.before.sums[index], self.current.sums[index]);
        // The phase difference between the halves gives the deviation of the frequency.
        let turn = multiply(b, (a.0, -a.1));
        let off = turn.1.atan2(turn.0) / TAU * self.rate / self.hop as f32;
        if off.abs() > TOLERANCE * FREQUENCIES[index] {
            return None;
        }
        // The correlation of a half is slightly lower for a deviating tone.
        let x = core::f32::consts::PI * off * self.hop as f32 / self.rate;
        let seen = if x.abs() < 1e-3 { 1.0 } else { x.sin() / x };
        let squares = a.0 * a.0 + a.1 * a.1 + b.0 * b.0 + b.1 * b.1;
        let hop = self.hop as f32;
        // Twice, because a tone of amplitude A sums up to A/2 per sample, and has a power of A^2/2.
        Some(squares / (hop * hop) / (seen * seen))
    }

    fn follow(&mut self, found: Option<(char, f32)>, on_event: &mut dyn FnMut(DetectorEvent)) {
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
        let begins = self.hits >= START_WINDOWS;
        if let Some((digit, begin, last)) = self.digit
            && (begins || self.misses >= END_WINDOWS)
        {
            self.digit = None;
            on_event(DetectorEvent::End {
                digit,
                duration: last.saturating_sub(begin),
            });
        }
        if let (true, Some((digit, level_dbm0))) = (begins, found) {
            let at = self
                .position
                .saturating_sub(u64::from(START_WINDOWS + 1) * hop);
            self.digit = Some((digit, at, self.position));
            self.candidate = None;
            self.hits = 0;
            self.misses = 0;
            on_event(DetectorEvent::Begin {
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

/// The digit of an event code; `None` above 15.
pub fn event_digit(code: u8) -> Option<char> {
    "0123456789*#ABCD".chars().nth(usize::from(code))
}

/// The volume field for a level (RFC 4733 section 2.3.3): the negated power, 0 to 63.
pub fn event_volume(level_dbm0: f32) -> u8 {
    (-level_dbm0).round().clamp(0.0, 63.0) as u8
}

/// The level of each of a digit's tones for a volume field. From 37 on (below -36 dBm0, the limit of detection in the
/// RFC) and for 0, which many senders use for an unknown level, it is -10 dBm0.
pub fn tone_level(volume: u8) -> f64 {
    match volume & 63 {
        0 | 37.. => -10.0,
        volume => -f64::from(volume),
    }
}

/// Inserts digits into a stream as audio: a digit replaces the signal while it lasts, and for the minimum duration of
/// tone and following pause.
#[derive(Clone, Debug)]
pub struct Inserter {
    rate: u32,
    tone: Option<ToneGenerator>,
    /// Remaining samples of tone and of pause.
    remaining: usize,
    pause: usize,
    is_held: bool,
}

/// The shortest digit and pause that every receiver detects (Q.24): 40 ms each.
const MIN_DURATION_MS: u32 = 40;

impl Inserter {
    /// An inserter at `rate` Hz.
    pub fn new(rate: u32) -> Inserter {
        Inserter {
            rate,
            tone: None,
            remaining: 0,
            pause: 0,
            is_held: false,
        }
    }

    /// Whether the signal is being replaced.
    pub fn is_active(&self) -> bool {
        self.tone.is_some() || self.pause > 0
    }

    /// Whether the event has ended, but not yet its shortest tone and pause.
    pub fn is_ending(&self) -> bool {
        !self.is_held && self.is_active()
    }

    /// Starts an event. Returns false if its code is no digit.
    pub fn begin(&mut self, code: u8, volume: u8) -> bool {
        let Some(tone) = event_digit(code).and_then(|digit| Tone::dtmf(digit, tone_level(volume)))
        else {
            return false;
        };
        self.tone = Some(ToneGenerator::new(tone, self.rate));
        self.remaining = self.min_samples();
        self.is_held = true;
        true
    }

    /// Ends the event. The tone continues until it has the minimum duration.
    pub fn end(&mut self) {
        self.is_held = false;
    }

    fn min_samples(&self) -> usize {
        (self.rate / 1000 * MIN_DURATION_MS) as usize
    }

    /// Replaces the due part of `samples`.
    pub fn apply(&mut self, samples: &mut [i16]) {
        let mut rest = samples;
        if let Some(generator) = &mut self.tone {
            let count = if self.is_held {
                rest.len()
            } else {
                self.remaining.min(rest.len())
            };
            let (now, later) = rest.split_at_mut(count);
            generator.fill(now);
            self.remaining = self.remaining.saturating_sub(count);
            rest = later;
            if !self.is_held && self.remaining == 0 {
                self.tone = None;
                self.pause = self.min_samples();
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

    fn detect(samples: &[i16], rate: u32) -> Vec<DetectorEvent> {
        let mut detector = Detector::new(rate);
        let mut all = Vec::new();
        for piece in samples.chunks(160) {
            detector.push(piece, &mut |event| all.push(event));
        }
        all
    }

    fn digits(events: &[DetectorEvent]) -> String {
        events
            .iter()
            .filter_map(|event| match event {
                DetectorEvent::Begin { digit, .. } => Some(*digit),
                DetectorEvent::End { .. } => None,
            })
            .collect()
    }

    #[test]
    fn every_digit_is_detected_at_every_offset() {
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
                let events = detect(&samples, rate);
                assert_eq!(digits(&events), keys, "{rate} Hz, {offset} ms");
                let ends = events
                    .iter()
                    .filter(|h| matches!(h, DetectorEvent::End { .. }))
                    .count();
                assert_eq!(ends, 16);
                let unit = u64::from(rate) / 100;
                let DetectorEvent::Begin { at, level_dbm0, .. } = events[0] else {
                    panic!("{events:?}")
                };
                assert!(at.abs_diff(unit * offset as u64 / 10) <= unit, "{at}");
                assert!((level_dbm0 + 10.0).abs() < 1.0, "{level_dbm0}");
                let DetectorEvent::End { duration, .. } = events[1] else {
                    panic!("{events:?}")
                };
                assert!(duration.abs_diff(4 * unit) <= unit, "{duration}");
            }
        }
    }

    /// The limits of Q.24: frequency, twist, level, duration, interruption.
    #[test]
    fn detection_limits_follow_q24() {
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
            assert_eq!(digits(&detect(&samples, 8000)), expected, "{name}");
        }
        // An interruption of 10 ms does not split a digit, one of 40 ms does.
        for (gap, expected) in [(10, "5"), (40, "55")] {
            let mut samples = pair(five, level, 8000, 60);
            samples.extend(vec![0; 8 * gap]);
            samples.extend(pair(five, level, 8000, 60));
            samples.extend([0; 800]);
            assert_eq!(digits(&detect(&samples, 8000)), expected, "{gap} ms");
        }
        // A third tone of the same level: speech or music.
        let mut samples = pair(five, level, 8000, 200);
        let third = pair([1000.0, 0.0], [-8.0, -90.0], 8000, 200);
        samples.iter_mut().zip(third).for_each(|(s, t)| *s += t);
        assert_eq!(digits(&detect(&samples, 8000)), "");
    }

    #[test]
    fn digits_are_detected_in_noise_and_after_coding() {
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
        assert_eq!(digits(&detect(&samples, 8000)), keys);
    }

    #[test]
    fn built_in_speech_contains_no_digit() {
        for speech in [crate::speech::speech(), crate::speech::answer()] {
            for gain in [64, 128, 256, 512] {
                let mut samples = speech.to_vec();
                crate::mix::scale(&mut samples, gain);
                assert_eq!(detect(&samples, 8000), [], "gain {gain}/256");
            }
        }
        let mut noise = vec![0; 8000 * 60];
        let mut generator = Generator::new(11);
        generator.describe(Noise::white(20));
        generator.fill(&mut noise);
        assert_eq!(detect(&noise, 8000), []);
    }

    #[test]
    fn events_round_trip() {
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
            // At least 40 ms of tone and 40 ms of pause, then the signal again.
            assert_eq!(rest[160..480], [0; 320]);
            assert_eq!(rest[480..], [1000; 320]);
            samples.extend(&rest[..480]);
            let events = detect(&samples, 8000);
            assert_eq!(digits(&events), digit.to_string());
            let DetectorEvent::Begin { level_dbm0, .. } = events[0] else {
                panic!("{events:?}")
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
