//! Full-reference comparison of speech: the algorithm of ViSQOL (Hines et al. 2015; version 3, Chinen et al. 2020) in
//! speech mode, with its published mapping from similarity to a mean opinion score (MOS-LQO).
//!
//! Both signals are compared in pictures of 21 bands of hearing. Patches of 0.4 s with speech are found again in the
//! degraded signal, aligned sample by sample, and compared in intensity and structure. Silence is a valid signal here:
//! a silent stretch is a bad patch, not an error.

mod align;
mod bands;
mod similarity;

use align::Lag;
use bands::{FRAME, FilterBank, Spectrogram, WINDOW};
use core::fmt;
use similarity::{PATCH, Patch, Similarity};

/// Sample rate of both signals in Hz.
pub const RATE: u32 = 16_000;
/// Longest signal in seconds: the search for patches takes time in proportion to the square of the duration.
pub const MAX_SECONDS: usize = 60;
/// Shortest signal in samples: one patch, and the frames before the first one.
const MIN_SAMPLES: usize = (PATCH + FIRST_FRAME) * FRAME + WINDOW;
/// Frames before the first patch.
const FIRST_FRAME: usize = PATCH / 2 - 1;
/// Range of the search for a patch on each side of its place, in frames: 60 patches.
const SEARCH: usize = 60 * PATCH;
/// Level of a frame with speech, relative to the highest sample of the signal.
const ACTIVE_LEVEL: f64 = 5000.0 / 32_768.0;
/// Similarity below which the score is 1.
const LEAST_SIMILARITY: f64 = 0.15;

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeechQuality {
    /// Mean opinion score of listening, 1 to 5 (MOS-LQO).
    pub mos: f64,
    /// Mean similarity of the patches, 1 for equal signals.
    pub similarity: f64,
    /// Delay of the degraded signal, seconds; negative if it begins earlier.
    pub delay_s: f64,
    /// Level of the degraded signal less that of the reference, dB; `None` if it is silent.
    pub level_db: Option<f64>,
    /// Patches with speech that were compared.
    pub patches: usize,
    /// Patches of these that were not found in the degraded signal.
    pub lost: usize,
}

/// The reason why two signals cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeechError {
    /// The reference is shorter than one patch needs.
    ShortReference,
    /// The degraded signal is shorter than one patch needs.
    ShortDegraded,
    /// A signal is longer than [`MAX_SECONDS`].
    TooLong,
    /// The reference has no speech.
    NoSpeech,
    /// The degraded signal ends before the first patch with speech.
    NoOverlap,
}

impl fmt::Display for SpeechError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shortest = (MIN_SAMPLES as f64 / f64::from(RATE) * 10.0).ceil() / 10.0;
        match self {
            SpeechError::ShortReference => {
                write!(f, "the reference is shorter than {shortest} s")
            }
            SpeechError::ShortDegraded => {
                write!(f, "the degraded signal is shorter than {shortest} s")
            }
            SpeechError::TooLong => write!(f, "a signal is longer than {MAX_SECONDS} s"),
            SpeechError::NoSpeech => write!(f, "the reference has no speech"),
            SpeechError::NoOverlap => {
                write!(
                    f,
                    "the degraded signal ends before the first speech of the reference"
                )
            }
        }
    }
}

/// Compares `degraded` with `reference`, both at [`RATE`].
///
/// # Errors
/// A signal is too short or too long, or the reference has no speech in the range of the degraded signal.
pub fn compare(reference: &[i16], degraded: &[i16]) -> Result<SpeechQuality, SpeechError> {
    if reference.len() < MIN_SAMPLES {
        return Err(SpeechError::ShortReference);
    }
    if degraded.len() < MIN_SAMPLES {
        return Err(SpeechError::ShortDegraded);
    }
    if reference.len().max(degraded.len()) > MAX_SECONDS * RATE as usize {
        return Err(SpeechError::TooLong);
    }
    let reference = samples(reference);
    let starts = patches_with_speech(&reference);
    if starts.is_empty() {
        return Err(SpeechError::NoSpeech);
    }
    let degraded = samples(degraded);
    let lag = align::global_lag(&reference, &degraded);
    let degraded = lag.apply(&degraded);
    let (level_db, degraded) = match_level(&reference, degraded);
    ComparedPair::new(&reference, &degraded, starts)?.quality(lag, level_db)
}

fn samples(pcm: &[i16]) -> Vec<f64> {
    pcm.iter()
        .map(|&sample| f64::from(sample) / 32_767.0)
        .collect()
}

fn root_mean_square(signal: &[f64]) -> f64 {
    let energy: f64 = signal.iter().map(|sample| sample * sample).sum();
    (energy / signal.len().max(1) as f64).sqrt()
}

/// Scales the degraded signal to the level of the reference; a silent one stays silent.
fn match_level(reference: &[f64], mut degraded: Vec<f64>) -> (Option<f64>, Vec<f64>) {
    let (wanted, found) = (root_mean_square(reference), root_mean_square(&degraded));
    if found <= 0.0 {
        return (None, degraded);
    }
    let factor = wanted / found;
    degraded.iter_mut().for_each(|sample| *sample *= factor);
    (Some(20.0 * (found / wanted).log10()), degraded)
}

/// First frames of the patches of the reference that have speech in at least one frame.
fn patches_with_speech(reference: &[f64]) -> Vec<usize> {
    let peak = reference.iter().copied().fold(0.0, f64::max);
    if peak <= 0.0 {
        return Vec::new();
    }
    let count = (Spectrogram::frames(reference.len()) - FIRST_FRAME) / PATCH;
    // The detector of the published implementation begins at a sample, not a frame, of this number. It is kept: with it
    // the same patches are chosen.
    let detected: Vec<bool> = reference[FIRST_FRAME..]
        .chunks_exact(FRAME)
        .take(count * PATCH)
        .map(|frame| root_mean_square(frame) >= ACTIVE_LEVEL * peak)
        .collect();
    // Speech lasts two frames longer than its level, and is assumed in the first two.
    let active = |frame: usize| detected[frame.saturating_sub(2)..=frame].contains(&true);
    (0..count)
        .filter(|patch| {
            (patch * PATCH..(patch + 1) * PATCH).any(|frame| frame < 2 || active(frame))
        })
        .map(|patch| FIRST_FRAME + patch * PATCH)
        .collect()
}

/// A patch of the reference and its place in the degraded signal.
struct PatchMatch {
    /// First frame in the reference.
    start: usize,
    /// First frame in the degraded signal; `None` if it was not found.
    place: Option<usize>,
    similarity: Similarity,
}

/// Both signals with their spectrograms.
struct ComparedPair<'a> {
    bank: FilterBank,
    reference: &'a [f64],
    degraded: &'a [f64],
    patches: Vec<(usize, Patch)>,
    degraded_picture: Spectrogram,
}

impl<'a> ComparedPair<'a> {
    fn new(
        reference: &'a [f64],
        degraded: &'a [f64],
        mut starts: Vec<usize>,
    ) -> Result<ComparedPair<'a>, SpeechError> {
        let bank = FilterBank::new(f64::from(RATE));
        let mut picture = bank.spectrogram(reference);
        let mut degraded_picture = bank.spectrogram(degraded);
        bands::level(&mut picture, &mut degraded_picture);
        starts.retain(|start| *start <= degraded_picture.len() + PATCH / 2);
        if starts.is_empty() || degraded_picture.len() == 0 {
            return Err(SpeechError::NoOverlap);
        }
        let patches = starts
            .into_iter()
            .map(|start| (start, Patch::new(picture.cut(start, PATCH))))
            .collect();
        Ok(ComparedPair {
            bank,
            reference,
            degraded,
            patches,
            degraded_picture,
        })
    }

    fn quality(&self, lag: Lag, level_db: Option<f64>) -> Result<SpeechQuality, SpeechError> {
        let matches: Vec<PatchMatch> = self
            .coarse_matches()
            .into_iter()
            .map(|found| self.align_finely(found))
            .collect();
        let similarity = similarity::mean(matches.iter().map(|found| &found.similarity));
        Ok(SpeechQuality {
            mos: score(similarity),
            similarity,
            delay_s: lag.samples.wrapping_neg() as f64 / f64::from(RATE),
            level_db,
            patches: matches.len(),
            lost: matches.iter().filter(|found| found.place.is_none()).count(),
        })
    }

    /// Places of the patches with the highest sum of similarities, in their order (dynamic programming). A patch whose
    /// place adds nothing is lost.
    fn coarse_matches(&self) -> Vec<PatchMatch> {
        let frames = self.degraded_picture.len();
        let places: Vec<Patch> = (0..frames)
            .map(|frame| Patch::new(self.degraded_picture.cut(frame, PATCH)))
            .collect();
        let mut sums: Vec<Vec<f64>> = Vec::with_capacity(self.patches.len());
        let mut origins: Vec<Vec<Option<usize>>> = Vec::with_capacity(self.patches.len());
        for (index, (start, patch)) in self.patches.iter().enumerate() {
            let (mut sum, mut origin) = (vec![0.0; frames], vec![None; frames]);
            let previous = index
                .checked_sub(1)
                .map(|last| (&sums[last], self.patches[last].0));
            let mut best = BestBefore::new(previous.map(|(_, start)| start));
            for place in start.saturating_sub(SEARCH)..frames.min(start + SEARCH + 1) {
                let own = patch.compare(&places[place]).mean();
                (sum[place], origin[place]) = match previous {
                    None => (own, None),
                    Some((sums, _)) => {
                        best.advance(sums, place);
                        let total = own + best.sum;
                        // The best sum without this patch: it is lost, and the place is that of the patch before.
                        match sums[place] > total {
                            true => (sums[place], Some(place)),
                            false => (total, best.place),
                        }
                    }
                };
            }
            sums.push(sum);
            origins.push(origin);
        }
        self.trace_back(&places, &sums, &origins)
    }

    fn trace_back(
        &self,
        places: &[Patch],
        sums: &[Vec<f64>],
        origins: &[Vec<Option<usize>>],
    ) -> Vec<PatchMatch> {
        let last = self.patches.len() - 1;
        let mut place = first_maximum(&sums[last], self.patches[last].0.saturating_sub(SEARCH));
        let mut matches: Vec<PatchMatch> = Vec::with_capacity(self.patches.len());
        for index in (0..=last).rev() {
            let (start, patch) = &self.patches[index];
            let origin = origins[index][place];
            let found = origin != Some(place);
            matches.push(PatchMatch {
                start: *start,
                place: found.then_some(place),
                similarity: match found {
                    true => patch.compare(&places[place]),
                    false => Similarity::default(),
                },
            });
            place = origin.unwrap_or(place);
        }
        matches.reverse();
        matches
    }

    /// Aligns a patch sample by sample, and keeps the better of both results.
    fn align_finely(&self, coarse: PatchMatch) -> PatchMatch {
        let Some(place) = coarse.place else {
            return coarse;
        };
        let reference = cut(self.reference, coarse.start);
        let degraded = cut(self.degraded, place);
        let lag = align::global_lag(&reference, &degraded);
        let (reference, degraded) = lag.overlap(&reference, &degraded);
        if reference.len().min(degraded.len()) < WINDOW {
            return coarse;
        }
        let mut reference = self.bank.spectrogram(reference);
        let mut degraded = self.bank.spectrogram(degraded);
        bands::level(&mut reference, &mut degraded);
        let length = reference.len().min(degraded.len());
        let fine =
            Patch::new(reference.cut(0, length)).compare(&Patch::new(degraded.cut(0, length)));
        match fine.mean() < coarse.similarity.mean() {
            true => coarse,
            false => PatchMatch {
                similarity: fine,
                ..coarse
            },
        }
    }
}

/// The best sum of the patch before at a place ahead of the present one.
struct BestBefore {
    sum: f64,
    place: Option<usize>,
    next: usize,
}

impl BestBefore {
    fn new(start: Option<usize>) -> BestBefore {
        BestBefore {
            sum: f64::NEG_INFINITY,
            place: None,
            next: start.unwrap_or(0).saturating_sub(SEARCH),
        }
    }

    fn advance(&mut self, sums: &[f64], place: usize) {
        while self.next < place {
            if sums[self.next] >= self.sum {
                (self.sum, self.place) = (sums[self.next], Some(self.next));
            }
            self.next += 1;
        }
    }
}

fn first_maximum(sums: &[f64], from: usize) -> usize {
    let mut best = from.min(sums.len() - 1);
    for place in from..sums.len() {
        if sums[place] > sums[best] {
            best = place;
        }
    }
    best
}

/// The samples of a patch, followed by silence where the signal ends.
fn cut(signal: &[f64], frame: usize) -> Vec<f64> {
    let from = (frame * FRAME).min(signal.len());
    let to = (from + PATCH * FRAME).min(signal.len());
    let mut samples = signal[from..to].to_vec();
    samples.resize(PATCH * FRAME, 0.0);
    samples
}

/// The published fit of scores to similarity on the TCD-VoIP data, scaled so that equal signals have 5.
fn score(similarity: f64) -> f64 {
    if similarity < LEAST_SIMILARITY {
        return 1.0;
    }
    let fitted = 1.155_945_5 + (4.685_115_3 * (similarity - 0.765_523_2)).exp();
    (fitted * 1.203_140_9).clamp(1.0, 5.0)
}
