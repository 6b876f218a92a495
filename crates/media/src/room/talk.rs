//! Who speaks, by levels alone: against the noise floor of his own line, with a while more after words.

/// Always speech above this level, never below that one, in dBov.
const LOUD: f32 = -38.0;
const INAUDIBLE: f32 = -62.0;
/// How far above the floor speech is, in dB.
const ABOVE: f32 = 9.0;
/// The floor is followed down by this part of the difference, and up by this many dB a turn: 1 dB a second.
const DOWN: f32 = 0.3;
const UP: f32 = 0.02;
/// Turns of 20 ms for which somebody who spoke goes on to be heard.
const HANG: u16 = 20;
/// How fast the level by which speakers are ranked falls.
const FALL: f32 = 0.05;

/// Follows one participant.
#[derive(Clone, Debug)]
pub(super) struct Talk {
    floor: f32,
    ranked: f32,
    hang: u16,
}

impl Talk {
    pub(super) fn new() -> Talk {
        Talk {
            floor: -60.0,
            ranked: -96.0,
            hang: 0,
        }
    }

    /// Whether a level in dBov is that of speech on this line.
    pub(super) fn exceeds(&self, level: f32) -> bool {
        level > LOUD || (level > self.floor + ABOVE && level > INAUDIBLE)
    }

    /// Takes the level of a turn in dBov; `None` where nothing came. Whether he is to be heard.
    pub(super) fn take(&mut self, level: Option<f32>) -> bool {
        let level = level.unwrap_or(-96.0);
        let speaks = self.exceeds(level);
        if level < self.floor {
            self.floor += (level.max(-80.0) - self.floor) * DOWN;
        } else {
            self.floor = (self.floor + UP).min(level).min(LOUD - ABOVE);
        }
        if level > self.ranked {
            self.ranked = level;
        } else {
            self.ranked += (level - self.ranked) * FALL;
        }
        self.hang = match speaks {
            true => HANG,
            false => self.hang.saturating_sub(1),
        };
        self.is_speaking()
    }

    pub(super) fn is_speaking(&self) -> bool {
        self.hang > 0
    }

    /// By what speakers are ranked, in dBov.
    pub(super) fn rank(&self) -> f32 {
        self.ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_from_the_noise_of_the_line() {
        let mut talk = Talk::new();
        for _ in 0..3_000 {
            talk.take(Some(-52.0));
        }
        // A minute of even noise is no speech, and what stands out of it is, for a while longer than it lasts.
        assert!(!talk.is_speaking());
        assert!(talk.take(Some(-41.0)));
        for _ in 1..HANG {
            assert!(talk.take(Some(-52.0)));
        }
        assert!(!talk.take(Some(-52.0)));
        // A quieter line has a lower floor soon.
        for _ in 0..100 {
            talk.take(Some(-70.0));
        }
        assert!(talk.take(Some(-55.0)));
        // What is loud is heard however long it lasts.
        for _ in 0..10_000 {
            assert!(talk.take(Some(-20.0)));
        }
        for _ in 0..HANG {
            talk.take(None);
        }
        assert!(!talk.is_speaking());
    }
}
