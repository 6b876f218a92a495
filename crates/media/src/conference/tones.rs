//! Tones of a conference, which serve as announcements.

use codec::{Tone, ToneGenerator};

/// A finite sequence of tones.
#[derive(Clone, Debug)]
pub(super) struct ToneSequence {
    /// The tones with their durations in milliseconds.
    steps: &'static [(Tone, u32)],
    step: usize,
    remaining: usize,
    generator: Option<(u32, ToneGenerator)>,
}

const LEVEL: f64 = -18.0;
const HIGH: Tone = Tone::sine(880.0, LEVEL);
const LOW: Tone = Tone::sine(440.0, LEVEL);
const ENTRY: &[(Tone, u32)] = &[(LOW, 100), (HIGH, 100)];
const LEAVE: &[(Tone, u32)] = &[(HIGH, 100), (LOW, 100)];
const MUTED: &[(Tone, u32)] = &[(Tone::sine(400.0, LEVEL), 120)];
const PIN_PROMPT: &[(Tone, u32)] = &[(LOW, 150), (HIGH, 150), (LOW, 150)];
const WRONG_PIN: &[(Tone, u32)] = &[
    (Tone::sine(300.0, LEVEL), 500),
    (LOW, 150),
    (HIGH, 150),
    (LOW, 150),
];
const UNMUTED: &[(Tone, u32)] = &[(Tone::sine(1000.0, LEVEL), 120)];

impl ToneSequence {
    fn new(steps: &'static [(Tone, u32)]) -> ToneSequence {
        ToneSequence {
            steps,
            step: 0,
            remaining: 0,
            generator: None,
        }
    }

    pub(super) fn entry() -> ToneSequence {
        ToneSequence::new(ENTRY)
    }

    pub(super) fn leave() -> ToneSequence {
        ToneSequence::new(LEAVE)
    }

    pub(super) fn pin_prompt() -> ToneSequence {
        ToneSequence::new(PIN_PROMPT)
    }

    pub(super) fn wrong_pin() -> ToneSequence {
        ToneSequence::new(WRONG_PIN)
    }

    pub(super) fn muted() -> ToneSequence {
        ToneSequence::new(MUTED)
    }

    pub(super) fn unmuted() -> ToneSequence {
        ToneSequence::new(UNMUTED)
    }

    /// Fills `samples` at `rate` Hz. Returns false if the sequence had ended before.
    pub(super) fn fill(&mut self, rate: u32, samples: &mut [i16]) -> bool {
        let mut rest = samples;
        let mut sounded = false;
        while !rest.is_empty() {
            let same = self.generator.as_ref().is_some_and(|(at, _)| *at == rate);
            if self.remaining == 0 || !same {
                if self.remaining == 0 && self.generator.is_some() {
                    self.step += 1;
                }
                let Some(&(tone, ms)) = self.steps.get(self.step) else {
                    rest.fill(0);
                    return sounded;
                };
                self.generator = Some((rate, ToneGenerator::new(tone, rate)));
                self.remaining = (rate / 1000 * ms) as usize;
            }
            let (now, later) = rest.split_at_mut(self.remaining.min(rest.len()));
            if let Some((_, generator)) = &mut self.generator {
                generator.fill(now);
            }
            self.remaining -= now.len();
            sounded = true;
            rest = later;
        }
        sounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_ends_and_survives_a_rate_change() {
        let mut sequence = ToneSequence::entry();
        let mut samples = [0; 160];
        let turns = (0..20)
            .take_while(|_| sequence.fill(8000, &mut samples))
            .count();
        assert_eq!(turns, 10);
        assert_eq!(samples, [0; 160]);
        let mut sequence = ToneSequence::leave();
        let mut wide = [0; 960];
        assert!(sequence.fill(8000, &mut samples));
        assert!(sequence.fill(48_000, &mut wide));
        assert!(wide.iter().any(|&sample| sample > 1000));
    }
}
