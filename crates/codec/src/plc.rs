//! Packet loss concealment for codecs that have none, by ITU-T G.711 Appendix I: the last pitch period is repeated,
//! after 10 ms the last two, after 20 ms the last three periods; joints are cross-faded; after 10 ms the level falls by
//! a fifth of the initial level each 10 ms, down to silence at 60 ms.
//!
//! The output is always delayed by 3.75 ms: at the start of a loss the last quarter period has not been output yet and
//! can be cross-faded into the repetition. The Appendix is for 8 kHz; at 16 kHz all lengths double.

use crate::coder::MAX_SAMPLES;

/// Lengths at 8 kHz, in samples.
mod at_8k {
    pub(super) const HISTORY: usize = 390;
    pub(super) const FRAME: usize = 80;
    pub(super) const DELAY: usize = 30;
    pub(super) const PITCH_MIN: usize = 40;
    pub(super) const PITCH_MAX: usize = 120;
    pub(super) const CORRELATION: usize = 160;
    /// Extension of the joint at the end of a loss for each 10 ms lost.
    pub(super) const JOINT_GROWTH: usize = 32;
}

/// Mean power below which two segments are not compared.
const QUIET_POWER: f32 = 1.5;
/// Number of frames of 10 ms until silence.
const AUDIBLE_FRAMES: usize = 6;

/// Concealment of one stream.
#[derive(Clone, Debug)]
pub struct Concealer {
    /// Samples per 1/8000 s.
    factor: usize,
    /// The signal up to now, without delay; the newest sample last.
    history: Box<[i16]>,
    /// The history at the start of the loss, its end faded into the repetition.
    past: Box<[i16]>,
    /// The original end of `past`.
    tail: Box<[i16]>,
    /// Buffer of one frame.
    scratch: Box<[i16]>,
    pitch: usize,
    /// Length of the joints.
    overlap: usize,
    /// Number of samples at the end of `past` that are repeated, and the position in them.
    length: usize,
    offset: usize,
    /// Number of consecutive samples lost.
    lost: usize,
}

impl Concealer {
    /// A concealer at `rate` Hz: 8000 or a multiple of it.
    pub fn new(rate: u32) -> Concealer {
        let factor = (rate as usize / 8000).max(1);
        let buffer = |length: usize| vec![0; length * factor].into_boxed_slice();
        Concealer {
            factor,
            history: buffer(at_8k::HISTORY),
            past: buffer(at_8k::HISTORY),
            tail: buffer(at_8k::DELAY),
            scratch: buffer(at_8k::FRAME),
            pitch: at_8k::PITCH_MAX * factor,
            overlap: at_8k::DELAY * factor,
            length: at_8k::PITCH_MAX * factor,
            offset: 0,
            lost: 0,
        }
    }

    /// Delay of the output, in samples.
    pub fn delay(&self) -> usize {
        at_8k::DELAY * self.factor
    }

    /// Number of consecutive samples lost up to now.
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// The newest `count` samples before the delay; at most 48.75 ms.
    pub(crate) fn newest(&self, count: usize) -> &[i16] {
        &self.history[self.history.len() - count.min(self.history.len())..]
    }

    /// Processes received samples; replaces them by the delayed output.
    pub fn received(&mut self, samples: &mut [i16]) {
        if self.lost > 0 {
            self.join(samples);
        }
        let frame = at_8k::FRAME * self.factor;
        for piece in samples.chunks_mut(frame) {
            self.keep(piece);
        }
    }

    /// Fills `samples` for a lost packet.
    pub fn conceal(&mut self, samples: &mut [i16]) {
        let frame = at_8k::FRAME * self.factor;
        let mut rest = samples;
        while !rest.is_empty() {
            // Not across a boundary of 10 ms, where the repetition grows.
            let piece = (frame - self.lost % frame).min(rest.len());
            let (now, later) = rest.split_at_mut(piece);
            self.synthesise(now);
            self.keep(now);
            rest = later;
        }
    }

    /// The continuation of the concealment, at most 10 ms; silence without a loss.
    pub(crate) fn peek(&self, samples: &mut [i16]) {
        if self.lost == 0 {
            samples.fill(0);
            return;
        }
        let start = self.past.len() - self.length;
        for (place, sample) in samples.iter_mut().enumerate() {
            *sample = self.past[start + (self.offset + place) % self.length];
        }
        self.fade(samples, self.lost);
    }

    /// Appends to the history; replaces the samples by the delayed signal.
    fn keep(&mut self, samples: &mut [i16]) {
        let (length, new) = (self.history.len(), samples.len());
        self.history.copy_within(new.., 0);
        self.history[length - new..].copy_from_slice(samples);
        let from = length - new - self.delay();
        samples.copy_from_slice(&self.history[from..from + new]);
    }

    fn synthesise(&mut self, samples: &mut [i16]) {
        let frame = at_8k::FRAME * self.factor;
        if self.lost == 0 {
            self.begin();
            self.repeat(samples);
        } else if self.lost == frame || self.lost == 2 * frame {
            let joint = self.overlap.min(samples.len());
            let mut before = core::mem::take(&mut self.scratch);
            self.repeat(&mut before[..joint]);
            self.grow();
            self.repeat(samples);
            cross_fade(&before[..joint], &mut samples[..joint]);
            self.scratch = before;
        } else {
            self.repeat(samples);
        }
        self.fade(samples, self.lost);
        self.lost = (self.lost + samples.len()).min(MAX_SAMPLES * 1000);
    }

    /// Starts a loss.
    fn begin(&mut self) {
        self.past.copy_from_slice(&self.history);
        self.pitch = self.find_pitch();
        self.overlap = self.pitch / 4;
        self.length = self.pitch;
        self.offset = 0;
        let end = self.past.len() - self.overlap;
        self.tail[..self.overlap].copy_from_slice(&self.past[end..]);
        self.fade_tail();
        // The part that has not been output yet becomes the faded end.
        let end = self.history.len() - self.overlap;
        self.history[end..].copy_from_slice(&self.past[end..]);
    }

    /// Adds one more period to the repetition.
    fn grow(&mut self) {
        // The position within the last period is kept, so that the pitch continues in phase.
        self.offset %= self.pitch;
        self.length += self.pitch;
        self.fade_tail();
    }

    /// Fades the end of `past` into the signal before the repeated part, so that its end is continuous with its
    /// beginning.
    fn fade_tail(&mut self) {
        let end = self.past.len() - self.overlap;
        let before = self.past.len() - self.length - self.overlap;
        for place in 0..self.overlap {
            let weight = (place + 1) as f32 / (self.overlap + 1) as f32;
            let old = f32::from(self.tail[place]);
            let new = f32::from(self.past[before + place]);
            self.past[end + place] = (old + (new - old) * weight) as i16;
        }
    }

    fn repeat(&mut self, samples: &mut [i16]) {
        let start = self.past.len() - self.length;
        for sample in samples {
            *sample = self.past[start + self.offset];
            self.offset += 1;
            if self.offset >= self.length {
                self.offset = 0;
            }
        }
    }

    /// Lowers the level of samples that begin `lost` samples into the loss.
    fn fade(&self, samples: &mut [i16], lost: usize) {
        let frame = (at_8k::FRAME * self.factor) as f32;
        for (place, sample) in samples.iter_mut().enumerate() {
            let frames = (lost + place) as f32 / frame;
            let gain = 1.0 - (frames - 1.0).max(0.0) / (AUDIBLE_FRAMES - 1) as f32;
            *sample = (f32::from(*sample) * gain.max(0.0)) as i16;
        }
    }

    /// Ends a loss: the repetition continues for a while and is cross-faded into the received signal.
    fn join(&mut self, samples: &mut [i16]) {
        let frame = at_8k::FRAME * self.factor;
        let growth = (self.lost.div_ceil(frame) - 1) * at_8k::JOINT_GROWTH * self.factor;
        let joint = (self.overlap + growth).min(frame).min(samples.len());
        let mut before = core::mem::take(&mut self.scratch);
        self.repeat(&mut before[..joint]);
        self.fade(&mut before[..joint], self.lost);
        cross_fade(&before[..joint], &mut samples[..joint]);
        self.scratch = before;
        self.lost = 0;
    }

    /// The lag with the highest correlation of the newest 20 ms with the past: first every other lag on every other
    /// sample, then around the best.
    fn find_pitch(&self) -> usize {
        let step = 2 * self.factor;
        let (low, high) = (
            at_8k::PITCH_MIN * self.factor,
            at_8k::PITCH_MAX * self.factor,
        );
        let best = |lags: &mut dyn Iterator<Item = usize>, stride: usize| {
            lags.map(|lag| (self.correlation(lag, stride), lag))
                .fold(
                    (f32::MIN, high),
                    |best, next| if next.0 > best.0 { next } else { best },
                )
                .1
        };
        let coarse = best(&mut (low..=high).step_by(step), step);
        let around = coarse.saturating_sub(step - 1).max(low)..=(coarse + step - 1).min(high);
        best(&mut around.into_iter(), 1)
    }

    fn correlation(&self, lag: usize, stride: usize) -> f32 {
        let count = at_8k::CORRELATION * self.factor;
        let newest = &self.past[self.past.len() - count..];
        let older = &self.past[self.past.len() - count - lag..];
        let (mut product, mut power) = (0.0, 0.0);
        for place in (0..count).step_by(stride) {
            let (x, y) = (f32::from(newest[place]), f32::from(older[place]));
            product += x * y;
            power += y * y;
        }
        product / power.max(QUIET_POWER * (count / stride) as f32).sqrt()
    }
}

/// Fades `before` out and `samples` in.
fn cross_fade(before: &[i16], samples: &mut [i16]) {
    let count = before.len() as f32 + 1.0;
    for (place, (sample, &before)) in samples.iter_mut().zip(before).enumerate() {
        let weight = (place + 1) as f32 / count;
        let before = f32::from(before);
        *sample = (before + (f32::from(*sample) - before) * weight).round() as i16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::dbov;
    use crate::tone::{Tone, ToneGenerator};

    #[test]
    fn without_loss_the_signal_is_only_delayed() {
        for rate in [8000, 16_000] {
            let mut concealer = Concealer::new(rate);
            let delay = concealer.delay();
            assert_eq!(delay * 800 / rate as usize, 3, "3.75 ms");
            let input: Vec<i16> = (0..2000).map(|i| (i * 7 % 4001) as i16).collect();
            let mut output = input.clone();
            output
                .chunks_mut(160)
                .for_each(|piece| concealer.received(piece));
            assert_eq!(output[delay..], input[..2000 - delay]);
        }
    }

    /// A steady tone continues through a loss of 10 ms nearly undisturbed.
    #[test]
    fn tone_continues_through_a_short_loss() {
        for (rate, hz) in [(8000, 200.0), (8000, 130.0), (16_000, 170.0)] {
            let frame = rate as usize / 100;
            let mut input = vec![0; frame * 12];
            ToneGenerator::new(Tone::sine(hz, -10.0), rate).fill(&mut input);
            let mut concealer = Concealer::new(rate);
            let mut output = input.clone();
            for (index, piece) in output.chunks_mut(frame).enumerate() {
                if index == 8 {
                    concealer.conceal(piece);
                } else {
                    concealer.received(piece);
                }
            }
            let delay = concealer.delay();
            let difference: Vec<i16> = output[delay..]
                .iter()
                .zip(&input)
                .map(|(a, b)| a - b)
                .collect();
            let error = dbov(&difference[7 * frame..10 * frame]) - dbov(&input);
            assert!(error < -20.0, "{hz} Hz: {error} dB");
            assert_eq!(difference[..7 * frame], vec![0; 7 * frame]);
        }
    }

    #[test]
    fn a_long_loss_fades_to_silence_and_ends_softly() {
        let mut input = vec![0; 80 * 10];
        ToneGenerator::new(Tone::sine(150.0, -10.0), 8000).fill(&mut input);
        let mut concealer = Concealer::new(8000);
        concealer.received(&mut input.clone());
        let mut lost = vec![0; 80 * 8];
        // For any size of pieces.
        let mut other = concealer.clone();
        lost.chunks_mut(160)
            .for_each(|piece| concealer.conceal(piece));
        let mut whole = vec![0; 80 * 8];
        other.conceal(&mut whole);
        assert_eq!(lost, whole);
        let levels: Vec<f64> = lost.chunks(80).map(dbov).collect();
        assert!(levels[0] > -17.0, "{levels:?}");
        assert!(
            levels[1..6].windows(2).all(|pair| pair[1] < pair[0] - 0.5),
            "{levels:?}"
        );
        assert_eq!(dbov(&lost[6 * 80 + 30..]), crate::level::SILENCE_DBOV);
        assert_eq!(concealer.lost(), 640);
        // Recovery from silence without a click: the first sample is small.
        let mut back = vec![20_000; 80];
        concealer.received(&mut back);
        assert!(back[30] < 1000 && back[79] > 10_000, "{back:?}");
        assert_eq!(concealer.lost(), 0);
    }

    #[test]
    fn loss_without_history_is_silence() {
        let mut concealer = Concealer::new(8000);
        let mut samples = [7; 33];
        concealer.conceal(&mut samples);
        assert_eq!(samples, [0; 33]);
        concealer.conceal(&mut []);
        concealer.received(&mut []);
    }
}
