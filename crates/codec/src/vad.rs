//! Voice activity detection for codecs without their own, and silence suppression.
//!
//! The level of a frame is compared in two bands with the noise floor, which follows the quietest frames of the last
//! two seconds. A frame above it is speech; after speech, more frames are sent, because words end softly. Loud frames
//! are always sent: music and tones have no pauses from which a floor could be estimated.

use crate::level::power_dbov;
use crate::noise::{Analyser, Noise};

/// Number of frames that are sent after speech: 200 ms.
const HANGOVER_FRAMES: u32 = 20;
/// Number of frames at the beginning that are sent while the floor is not known.
const LEARNING_FRAMES: u32 = 10;
/// Level above the floor, in dB, at which speech starts, and at which it continues.
const START_DB: f32 = 7.0;
const CONTINUE_DB: f32 = 4.5;
/// Above the first level a frame is never noise, below the second one never speech, in dBov.
const LOUD_DBOV: f32 = -36.0;
const INAUDIBLE_DBOV: f32 = -72.0;
/// The floor is the minimum of this many windows of [`WINDOW_FRAMES`] frames.
const WINDOWS: usize = 4;
const WINDOW_FRAMES: u32 = 50;

/// The minimum level of the last two seconds.
#[derive(Clone, Debug)]
struct Floor {
    windows: [f32; WINDOWS],
    current: f32,
    smoothed: f32,
}

impl Floor {
    const fn new() -> Floor {
        Floor {
            windows: [0.0; WINDOWS],
            current: 0.0,
            smoothed: 0.0,
        }
    }

    fn take(&mut self, dbov: f32, first: bool) {
        if first {
            self.smoothed = dbov;
            self.current = dbov;
        }
        self.smoothed += (dbov - self.smoothed) * 0.3;
        self.current = self.current.min(self.smoothed);
    }

    fn turn(&mut self, window: usize) {
        self.windows[window % WINDOWS] = self.current;
        self.current = self.smoothed;
    }

    /// The minimum of a fluctuating level is below its mean; the difference is added.
    fn level(&self) -> f32 {
        self.windows.iter().fold(self.current, |a, &b| a.min(b)) + 1.5
    }
}

/// Detects speech, frame by frame.
#[derive(Clone, Debug)]
pub struct Vad {
    frames: u32,
    low: Floor,
    high: Floor,
    before: f32,
    speaking: bool,
    hangover: u32,
}

impl Default for Vad {
    fn default() -> Self {
        Vad::new()
    }
}

impl Vad {
    /// A detector without input; it classifies the first 100 ms as speech.
    pub const fn new() -> Vad {
        Vad {
            frames: 0,
            low: Floor::new(),
            high: Floor::new(),
            before: 0.0,
            speaking: true,
            hangover: LEARNING_FRAMES,
        }
    }

    /// Classifies a frame of 10 ms.
    pub fn classify_frame(&mut self, samples: &[i16]) -> bool {
        let (low, high, all) = self.levels(samples);
        let first = self.frames == 0;
        self.low.take(low, first);
        self.high.take(high, first);
        self.frames += 1;
        if first {
            // Windows without frames are ignored.
            self.low.windows = [low; WINDOWS];
            self.high.windows = [high; WINDOWS];
        } else if self.frames.is_multiple_of(WINDOW_FRAMES) {
            let window = (self.frames / WINDOW_FRAMES) as usize;
            self.low.turn(window);
            self.high.turn(window);
        }
        let above = (low - self.low.level()).max(high - self.high.level());
        let threshold = if self.speaking { CONTINUE_DB } else { START_DB };
        let stands_out = above > threshold && all > INAUDIBLE_DBOV || all > LOUD_DBOV;
        if stands_out {
            self.speaking = true;
            self.hangover = HANGOVER_FRAMES.max(self.hangover);
        } else {
            self.hangover = self.hangover.saturating_sub(1);
            self.speaking = self.hangover > 0;
        }
        self.speaking
    }

    /// Levels in dBov of two bands, obtained from sum and difference of neighbouring samples and divided at a quarter
    /// of the rate, and of the whole signal.
    fn levels(&mut self, samples: &[i16]) -> (f32, f32, f32) {
        let (mut low, mut high) = (0.0f32, 0.0f32);
        for &sample in samples {
            let sample = f32::from(sample);
            let (sum, difference) = (sample + self.before, sample - self.before);
            self.before = sample;
            low += sum * sum;
            high += difference * difference;
        }
        let per = 0.25 / samples.len().max(1) as f32;
        let dbov = |power: f32| power_dbov(f64::from(power * per)) as f32;
        // Noise of half a bit, so that digital silence has a floor.
        let bias = 0.25 / per;
        (dbov(low + bias), dbov(high + bias), dbov(low + high))
    }
}

/// The output of silence suppression for a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Send the frame.
    Speech,
    /// Send a comfort noise packet with this description.
    Describe(Noise),
    /// Send nothing: the noise has not changed.
    Nothing,
}

/// Silence suppression with [`Vad`] and RFC 3389, for a codec without its own.
#[derive(Clone, Debug, Default)]
pub struct Suppressor {
    vad: Vad,
    analyser: Analyser,
    described: Option<Noise>,
    /// Number of frames since the last description.
    since: u32,
}

/// Minimum (200 ms) and maximum (3 s) of frames between two descriptions; the maximum limits the effect of a lost one.
const MIN_DESCRIPTION_INTERVAL: u32 = 20;
const MAX_DESCRIPTION_INTERVAL: u32 = 300;

impl Suppressor {
    /// A suppressor without input.
    pub fn new() -> Suppressor {
        Suppressor::default()
    }

    /// Classifies a packet, in pieces of `frame` samples (10 ms).
    pub fn classify(&mut self, packet: &[i16], frame: usize) -> Verdict {
        let (mut speech, mut frames) = (false, 0);
        for piece in packet.chunks(frame.max(1)) {
            let piece_is_speech = self.vad.classify_frame(piece);
            speech |= piece_is_speech;
            frames += 1;
            // The last frames of the hangover are noise and train the analyser.
            if !piece_is_speech || self.vad.hangover < HANGOVER_FRAMES / 2 {
                self.analyser.add(piece);
            } else {
                self.analyser.reset();
            }
        }
        if speech {
            self.described = None;
            return Verdict::Speech;
        }
        self.since = self.since.saturating_add(frames);
        let noise = self.analyser.describe();
        let due = match &self.described {
            None => true,
            Some(described) => {
                self.since >= MAX_DESCRIPTION_INTERVAL
                    || self.since >= MIN_DESCRIPTION_INTERVAL && noise.differs(described)
            }
        };
        if !due {
            return Verdict::Nothing;
        }
        self.described = Some(noise);
        self.since = 0;
        Verdict::Describe(noise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Generator;
    use crate::speech;
    use crate::tone::{Tone, ToneGenerator};

    /// Speech with two seconds of pause before and after, and the frames that clearly contain speech.
    fn material(noise_level: u8) -> (Vec<i16>, Vec<bool>) {
        let mut clean = vec![0i16; 16_000];
        clean.extend_from_slice(speech::speech());
        clean.extend([0; 24_000]);
        let mut noise = vec![0; clean.len()];
        let mut generator = Generator::new(3);
        let mut description = Noise::white(noise_level);
        description.order = 1;
        description.coefficients[0] = -0.6;
        generator.describe(description);
        generator.fill(&mut noise);
        let loudest = crate::level::active_dbov(&clean, 8000);
        let plain = clean
            .chunks(80)
            .map(|frame| crate::level::dbov(frame) > loudest - 16.0)
            .collect();
        let mixed = clean
            .iter()
            .zip(&noise)
            .map(|(a, b)| a.saturating_add(*b))
            .collect();
        (mixed, plain)
    }

    #[test]
    fn speech_is_kept_and_pauses_are_not() {
        for noise_level in [50, 60, 70, 127] {
            let (samples, plain) = material(noise_level);
            let mut vad = Vad::new();
            let verdicts: Vec<bool> = samples
                .chunks(80)
                .map(|frame| vad.classify_frame(frame))
                .collect();
            let lost = verdicts
                .iter()
                .zip(&plain)
                .filter(|&(&v, &p)| p && !v)
                .count();
            let kept = plain.iter().filter(|&&p| p).count();
            let pause = verdicts.len() - 300..verdicts.len();
            let sent = verdicts[pause].iter().filter(|&&v| v).count();
            let before = verdicts[LEARNING_FRAMES as usize + 1..200]
                .iter()
                .filter(|&&v| v)
                .count();
            println!(
                "-{noise_level} dBov: {lost} of {kept} plain frames lost, {before}+{sent} of 489 noise frames sent"
            );
            assert!(lost * 100 <= kept, "{noise_level}: {lost} of {kept} lost");
            assert!(
                before <= 4 && sent <= HANGOVER_FRAMES as usize + 10,
                "{noise_level}: {before} {sent}"
            );
        }
    }

    #[test]
    fn loud_sounds_without_pauses_are_kept() {
        let mut samples = vec![0; 8000 * 20];
        ToneGenerator::new(Tone::sine(440.0, -20.0), 8000).fill(&mut samples);
        let mut vad = Vad::new();
        assert!(samples.chunks(80).all(|frame| vad.classify_frame(frame)));
        assert!(vad.classify_frame(&[i16::MIN; 80]));
        assert!(Vad::new().classify_frame(&[]));
    }

    #[test]
    fn suppression_describes_once_and_again_when_the_noise_changes() {
        let mut generator = Generator::new(5);
        generator.describe(Noise::white(60));
        let mut suppressor = Suppressor::new();
        let mut descriptions = Vec::new();
        for packet in 0..500 {
            if packet == 300 {
                generator.describe(Noise::white(55));
            }
            let mut samples = [0; 160];
            generator.fill(&mut samples);
            match suppressor.classify(&samples, 80) {
                Verdict::Speech => assert!(packet < 6 || (299..330).contains(&packet), "{packet}"),
                Verdict::Describe(noise) => descriptions.push((packet, noise.level)),
                Verdict::Nothing => {}
            }
        }
        println!("{descriptions:?}");
        assert!(descriptions[0].0 <= 6 && descriptions[0].1.abs_diff(60) <= 1);
        assert!(descriptions.len() >= 4 && descriptions.len() <= 12);
        let last = descriptions.last().unwrap();
        assert!(last.1.abs_diff(55) <= 1);
        // Speech resets it, and the next noise is described again.
        let loud = [3000; 160];
        assert_eq!(suppressor.classify(&loud, 80), Verdict::Speech);
    }
}
