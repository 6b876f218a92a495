//! The short tones of a conference.

use codec::{Tone, ToneGenerator};

/// A tone that ends.
#[derive(Clone, Debug)]
pub(super) struct Jingle {
    /// One tone after the other, each for so many milliseconds.
    parts: &'static [(Tone, u32)],
    part: usize,
    left: usize,
    generator: Option<(u32, ToneGenerator)>,
}

const LEVEL: f64 = -18.0;
const HIGH: Tone = Tone::sine(880.0, LEVEL);
const LOW: Tone = Tone::sine(440.0, LEVEL);
const ENTRY: &[(Tone, u32)] = &[(LOW, 100), (HIGH, 100)];
const LEAVE: &[(Tone, u32)] = &[(HIGH, 100), (LOW, 100)];
const MUTED: &[(Tone, u32)] = &[(Tone::sine(400.0, LEVEL), 120)];
const ASK: &[(Tone, u32)] = &[(LOW, 150), (HIGH, 150), (LOW, 150)];
const ASK_AGAIN: &[(Tone, u32)] = &[
    (Tone::sine(300.0, LEVEL), 500),
    (LOW, 150),
    (HIGH, 150),
    (LOW, 150),
];
const UNMUTED: &[(Tone, u32)] = &[(Tone::sine(1000.0, LEVEL), 120)];

impl Jingle {
    fn new(parts: &'static [(Tone, u32)]) -> Jingle {
        Jingle {
            parts,
            part: 0,
            left: 0,
            generator: None,
        }
    }

    pub(super) fn entry() -> Jingle {
        Jingle::new(ENTRY)
    }

    pub(super) fn leave() -> Jingle {
        Jingle::new(LEAVE)
    }

    pub(super) fn ask() -> Jingle {
        Jingle::new(ASK)
    }

    pub(super) fn ask_again() -> Jingle {
        Jingle::new(ASK_AGAIN)
    }

    pub(super) fn muted() -> Jingle {
        Jingle::new(MUTED)
    }

    pub(super) fn unmuted() -> Jingle {
        Jingle::new(UNMUTED)
    }

    /// Fills `samples` at `rate` Hz; false where the tone had ended before.
    pub(super) fn fill(&mut self, rate: u32, samples: &mut [i16]) -> bool {
        let mut rest = samples;
        let mut sounded = false;
        while !rest.is_empty() {
            let same = self.generator.as_ref().is_some_and(|(at, _)| *at == rate);
            if self.left == 0 || !same {
                if self.left == 0 && self.generator.is_some() {
                    self.part += 1;
                }
                let Some(&(tone, ms)) = self.parts.get(self.part) else {
                    rest.fill(0);
                    return sounded;
                };
                self.generator = Some((rate, ToneGenerator::new(tone, rate)));
                self.left = (rate / 1000 * ms) as usize;
            }
            let (now, later) = rest.split_at_mut(self.left.min(rest.len()));
            if let Some((_, generator)) = &mut self.generator {
                generator.fill(now);
            }
            self.left -= now.len();
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
    fn a_tone_ends_and_survives_another_rate() {
        let mut jingle = Jingle::entry();
        let mut samples = [0; 160];
        let turns = (0..20)
            .take_while(|_| jingle.fill(8000, &mut samples))
            .count();
        assert_eq!(turns, 10);
        assert_eq!(samples, [0; 160]);
        let mut jingle = Jingle::leave();
        let mut wide = [0; 960];
        assert!(jingle.fill(8000, &mut samples));
        assert!(jingle.fill(48_000, &mut wide));
        assert!(wide.iter().any(|&sample| sample > 1000));
    }
}
