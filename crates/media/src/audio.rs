//! Comparison of received audio with the audio that was sent: similarity, delay and level.

use codec::level;

/// Samples of a frame of the envelope: 10 ms at 8 kHz.
const FRAME: usize = 80;
/// Candidate positions from the envelopes that are examined sample by sample.
const PEAKS: usize = 4;
/// Minimum length for a comparison, in samples: 0.5 s at 8 kHz.
pub const MIN_SAMPLES: usize = 4000;

/// The result of [`compare`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Normalised cross-correlation at the best position: 1 is equal, 0 unrelated, -1 equal with inverted polarity.
    pub correlation: f64,
    /// Position in the reference at which the received audio begins, in samples.
    pub offset: usize,
    /// Active level of the received audio less that of the same part of the reference, in dB.
    pub level_db: f64,
}

/// Finds `received` (8 kHz) within `reference`, which the sender repeats without end, and compares them there.
///
/// The whole envelopes are correlated in steps of 10 ms, then the best positions are examined sample by sample. `None`
/// if either input is shorter than [`MIN_SAMPLES`], or silent throughout.
pub fn compare(reference: &[i16], received: &[i16]) -> Option<Comparison> {
    if reference.len() < MIN_SAMPLES || received.len() < MIN_SAMPLES {
        return None;
    }
    if level::mean_square(reference) == 0.0 || level::mean_square(received) == 0.0 {
        return None;
    }
    let (offset, _) = coarse(reference, received)
        .into_iter()
        .flat_map(|frame| {
            let middle = frame * FRAME + reference.len();
            (middle - 2 * FRAME..=middle + 2 * FRAME).map(|at| at % reference.len())
        })
        .map(|offset| (offset, correlation(reference, received, offset, 5)))
        .max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
    let aligned: Vec<i16> = around(reference, offset).take(received.len()).collect();
    Some(Comparison {
        correlation: correlation(reference, received, offset, 1),
        offset,
        level_db: level::active_dbov(received, 8000) - level::active_dbov(&aligned, 8000),
    })
}

/// `reference` from `offset` on, repeated.
fn around(reference: &[i16], offset: usize) -> impl Iterator<Item = i16> + '_ {
    reference.iter().cycle().skip(offset).copied()
}

/// Frames of the reference at which the received envelope correlates best.
fn coarse(reference: &[i16], received: &[i16]) -> Vec<usize> {
    let reference = envelope(reference);
    let received = envelope(received);
    let mut scores: Vec<(f64, usize)> = (0..reference.len())
        .map(|offset| {
            let turned = reference.iter().cycle().skip(offset);
            (
                normalised(turned.zip(&received).map(|(&x, &y)| (x, y))),
                offset,
            )
        })
        .collect();
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut best: Vec<usize> = Vec::with_capacity(PEAKS);
    for (_, offset) in scores {
        // Neighbours of a position are covered by its search.
        if best.iter().all(|&other| other.abs_diff(offset) > 3) {
            best.push(offset);
        }
        if best.len() == PEAKS {
            break;
        }
    }
    best
}

/// Root mean squares of frames, less their mean. An incomplete last frame of the reference is ignored, so a repetition
/// shifts the envelope by less than a frame, which is within the range of the search by samples.
fn envelope(samples: &[i16]) -> Vec<f64> {
    let mut frames: Vec<f64> = samples
        .chunks_exact(FRAME)
        .map(|frame| level::mean_square(frame).sqrt())
        .collect();
    let mean = frames.iter().sum::<f64>() / frames.len().max(1) as f64;
    frames.iter_mut().for_each(|frame| *frame -= mean);
    frames
}

/// Correlation at `offset`, over every `stride`-th sample.
fn correlation(reference: &[i16], received: &[i16], offset: usize, stride: usize) -> f64 {
    let mut at = offset % reference.len();
    let pairs = received.iter().step_by(stride).map(|&y| {
        let x = reference.get(at).copied().unwrap_or(0);
        at += stride;
        if at >= reference.len() {
            at -= reference.len();
        }
        (f64::from(x), f64::from(y))
    });
    normalised(pairs)
}

/// Normalised correlation of pairs; 0 if either signal is silent.
fn normalised(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in pairs {
        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    if xx <= 0.0 || yy <= 0.0 {
        return 0.0;
    }
    xy / (xx * yy).sqrt()
}
