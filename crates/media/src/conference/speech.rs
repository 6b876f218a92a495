//! Speech detection by level: against the noise floor of the participant's line, with a hangover time.

/// Levels in dBov above which audio is always speech, and below which it never is.
const ALWAYS_SPEECH: f32 = -38.0;
const NEVER_SPEECH: f32 = -62.0;
/// Minimum level of speech above the noise floor, in dB.
const MIN_ABOVE_FLOOR: f32 = 9.0;
/// The lowest floor: from a lower one it would rise for longer without a use.
const MIN_FLOOR: f32 = NEVER_SPEECH - MIN_ABOVE_FLOOR;
/// The floor falls by this part of the difference, and rises by this many dB per turn: 1 dB per second.
const FLOOR_FALL: f32 = 0.3;
const FLOOR_RISE: f32 = 0.02;
/// Hangover: turns of 20 ms for which a participant counts as speaking after speech.
const HANGOVER: u16 = 20;
/// Decay of the level by which speakers are ranked, per turn.
const RANK_DECAY: f32 = 0.05;

/// Speech detector of one participant.
#[derive(Clone, Debug)]
pub(super) struct SpeechDetector {
    floor: f32,
    ranked: f32,
    hangover: u16,
}

impl SpeechDetector {
    pub(super) fn new() -> SpeechDetector {
        SpeechDetector {
            floor: -60.0,
            ranked: -96.0,
            hangover: 0,
        }
    }

    /// Whether a level in dBov is speech on this line.
    pub(super) fn exceeds(&self, level: f32) -> bool {
        level > ALWAYS_SPEECH || (level > self.floor + MIN_ABOVE_FLOOR && level > NEVER_SPEECH)
    }

    /// Takes the level of a turn in dBov; `None` if it has no audio: a pause tells nothing about the noise of the line.
    /// `received`: the audio was received, not concealed, so that the floor follows it. Returns whether the participant
    /// speaks.
    pub(super) fn update(&mut self, level: Option<f32>, received: bool) -> bool {
        let speaks = level.is_some_and(|level| self.exceeds(level));
        match level {
            Some(level) if received && level < self.floor => {
                self.floor += (level.max(MIN_FLOOR) - self.floor) * FLOOR_FALL;
            }
            Some(level) if received => {
                self.floor = (self.floor + FLOOR_RISE)
                    .min(level)
                    .min(ALWAYS_SPEECH - MIN_ABOVE_FLOOR);
            }
            _ => {}
        }
        let level = level.unwrap_or(-96.0);
        if level > self.ranked {
            self.ranked = level;
        } else {
            self.ranked += (level - self.ranked) * RANK_DECAY;
        }
        self.hangover = match speaks {
            true => HANGOVER,
            false => self.hangover.saturating_sub(1),
        };
        self.is_speaking()
    }

    pub(super) fn is_speaking(&self) -> bool {
        self.hangover > 0
    }

    /// Level by which speakers are ranked, in dBov.
    pub(super) fn rank(&self) -> f32 {
        self.ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speech_is_distinguished_from_line_noise() {
        let mut speech = SpeechDetector::new();
        for _ in 0..3_000 {
            speech.update(Some(-52.0), true);
        }
        // A minute of constant noise is not speech. A louder turn is, for the hangover time.
        assert!(!speech.is_speaking());
        assert!(speech.update(Some(-41.0), true));
        for _ in 1..HANGOVER {
            assert!(speech.update(Some(-52.0), true));
        }
        assert!(!speech.update(Some(-52.0), true));
        // The floor follows a quieter line quickly.
        for _ in 0..100 {
            speech.update(Some(-70.0), true);
        }
        assert!(speech.update(Some(-55.0), true));
        // Loud audio is speech however long it lasts.
        for _ in 0..10_000 {
            assert!(speech.update(Some(-20.0), true));
        }
        for _ in 0..HANGOVER {
            speech.update(None, false);
        }
        assert!(!speech.is_speaking());
    }

    #[test]
    fn pauses_and_concealed_audio_do_not_change_the_floor() {
        let mut speech = SpeechDetector::new();
        for _ in 0..3_000 {
            speech.update(Some(-52.0), true);
        }
        for _ in 0..100 {
            speech.update(None, false);
            speech.update(Some(-90.0), false);
        }
        assert!(!speech.update(Some(-52.0), true), "noise as before");
        // After digital silence, as of a muted phone, noise is learned again within some seconds.
        for _ in 0..100 {
            speech.update(Some(-127.0), true);
        }
        let turns = (0..3_000).filter(|_| speech.update(Some(-52.0), true));
        assert!(turns.count() < 11 * 50);
    }
}
