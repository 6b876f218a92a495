//! Sample rate conversion by a windowed-sinc filter in polyphase form.

use core::f64::consts::PI;
use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Zero crossings of the sinc on each side of its centre, at the lower of both rates: 3.5 ms of delay at 8 kHz.
const ZERO_CROSSINGS: usize = 28;
/// Kaiser window parameter: about 67 dB of attenuation beyond the transition.
const KAISER_BETA: f64 = 6.6;
/// The centre of the transition band, relative to the lower Nyquist frequency. The pass band ends at 0.855 of it (3420
/// Hz at 8 kHz, 6840 Hz at 16 kHz), and the transition ends at the Nyquist frequency.
const CUTOFF: f64 = 0.928;
/// Number of parallel sums in the inner loop, for vectorisation. Taps are padded to a multiple.
const LANES: usize = 8;
/// Maximum interpolation and decimation factor; 160 suffices for 44.1 kHz to 8 kHz.
const MAX_FACTOR: u32 = 480;
/// Filters that are kept, at most; the largest ones have some 200 KiB. The rates of all codecs need ten.
const MAX_FILTERS: usize = 24;

/// Two rates whose conversion would need too large a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedRates {
    /// Rate of the input in Hz.
    pub from: u32,
    /// Rate of the output in Hz.
    pub to: u32,
}

impl fmt::Display for UnsupportedRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot resample from {} Hz to {} Hz", self.from, self.to)
    }
}

impl core::error::Error for UnsupportedRates {}

/// The filter for a pair of rates.
#[derive(Debug)]
struct PolyphaseFilter {
    up: usize,
    down: usize,
    /// Coefficients of all phases, one phase after the other; newest sample last.
    phases: Vec<f32>,
    /// Number of taps of a phase.
    taps: usize,
}

/// Filters in the order of their last use, the latest one last.
#[derive(Debug)]
struct FilterCache(Vec<Arc<PolyphaseFilter>>);

impl FilterCache {
    /// The filter for a ratio, which counts as used now.
    fn find(&mut self, up: usize, down: usize) -> Option<Arc<PolyphaseFilter>> {
        let mut all = self.0.iter();
        let at = all.position(|filter| (filter.up, filter.down) == (up, down))?;
        let found = self.0.remove(at);
        self.0.push(found.clone());
        Some(found)
    }

    /// Adds a filter, unless another thread has added the same one meanwhile; returns the one that is kept. The filter
    /// that was unused for longest makes room.
    fn insert(&mut self, filter: Arc<PolyphaseFilter>) -> Arc<PolyphaseFilter> {
        if let Some(known) = self.find(filter.up, filter.down) {
            return known;
        }
        if self.0.len() >= MAX_FILTERS {
            self.0.remove(0);
        }
        self.0.push(filter.clone());
        filter
    }
}

/// Filters in use before. Resamplers are created on packet threads, a conference that changes its rate creates two for
/// each participant at once, and the design of a filter takes up to some milliseconds.
static FILTERS: Mutex<FilterCache> = Mutex::new(FilterCache(Vec::new()));

/// The filter for a ratio, which is designed once.
fn shared_filter(up: usize, down: usize) -> Arc<PolyphaseFilter> {
    // A thread that panicked has left a complete list.
    let filters = || FILTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = filters().find(up, down);
    known.unwrap_or_else(|| {
        // Without the lock: other threads do not wait for a design.
        let designed = Arc::new(design(up, down));
        filters().insert(designed)
    })
}

/// Sample rate conversion of one stream.
#[derive(Clone, Debug)]
pub struct Resampler {
    filter: Arc<PolyphaseFilter>,
    /// The last `taps - 1` samples and the samples not processed yet.
    history: Vec<f32>,
    /// Position of the next output within the history, in units of 1/up sample.
    position: usize,
}

impl Resampler {
    /// A converter between two rates, both from 1 kHz to 192 kHz with a ratio of small numbers (such as 8, 16, 32,
    /// 44.1, 48 kHz).
    ///
    /// # Errors
    /// [`UnsupportedRates`] if the ratio needs too large a filter.
    pub fn new(from: u32, to: u32) -> Result<Resampler, UnsupportedRates> {
        let unsupported = UnsupportedRates { from, to };
        let range = 1000..=192_000;
        if !range.contains(&from) || !range.contains(&to) {
            return Err(unsupported);
        }
        let divisor = gcd(from, to);
        let (up, down) = (to / divisor, from / divisor);
        if up > MAX_FACTOR || down > MAX_FACTOR {
            return Err(unsupported);
        }
        let filter = shared_filter(up as usize, down as usize);
        Ok(Resampler {
            history: vec![0.0; filter.taps - 1],
            filter,
            position: 0,
        })
    }

    /// Resets the state, for a new stream.
    pub fn reset(&mut self) {
        self.history.clear();
        self.history.resize(self.filter.taps - 1, 0.0);
        self.position = 0;
    }

    /// Delay of the output, in output samples.
    pub fn delay(&self) -> usize {
        (self.filter.taps / 2) * self.filter.up / self.filter.down
    }

    /// Processes `input` and appends all available samples to `output`. In the long run the output has exactly `to`
    /// samples for every `from` samples of input.
    pub fn process(&mut self, input: &[i16], output: &mut Vec<i16>) {
        let filter = &*self.filter;
        let (up, down, taps) = (filter.up, filter.down, filter.taps);
        if up == down {
            output.extend_from_slice(input);
            return;
        }
        self.history
            .extend(input.iter().map(|&sample| f32::from(sample)));
        loop {
            let (start, phase) = (self.position / up, self.position % up);
            let Some(window) = self.history.get(start..start + taps) else {
                break;
            };
            let coefficients = filter
                .phases
                .get(phase * taps..(phase + 1) * taps)
                .unwrap_or_default();
            let sum = dot(window, coefficients);
            output.push(sum.round().clamp(-32_768.0, 32_767.0) as i16);
            self.position += down;
        }
        let used = (self.position / up).min(self.history.len());
        self.history.drain(..used);
        self.position -= used * up;
    }

    /// Converts all of `input` without the delay of the filter: output and input begin at the same time.
    ///
    /// # Errors
    /// As [`Resampler::new`].
    pub fn whole(input: &[i16], from: u32, to: u32) -> Result<Vec<i16>, UnsupportedRates> {
        let mut resampler = Resampler::new(from, to)?;
        let (up, down, taps) = {
            let filter = &resampler.filter;
            (filter.up, filter.down, filter.taps)
        };
        let length = input.len() * up / down;
        let mut output = Vec::with_capacity(length + taps);
        if up == down {
            output.extend_from_slice(input);
            return Ok(output);
        }
        // Starting half a filter later removes the delay, to the fraction of a sample.
        resampler.position = taps / 2 * up;
        resampler.process(input, &mut output);
        resampler.process(&vec![0; taps], &mut output);
        output.truncate(length);
        Ok(output)
    }
}

fn dot(window: &[f32], coefficients: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (window, _) = window.as_chunks::<LANES>();
    let (coefficients, _) = coefficients.as_chunks::<LANES>();
    for (x, c) in window.iter().zip(coefficients) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * c[lane];
        }
    }
    sums.iter().sum()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The filter as a polyphase table.
fn design(up: usize, down: usize) -> PolyphaseFilter {
    // Number of input samples between zero crossings at the lower rate.
    let span = down.div_ceil(up).max(1);
    let taps = (2 * ZERO_CROSSINGS * span).next_multiple_of(2 * LANES);
    let length = taps * up;
    let middle = (taps / 2 * up) as f64;
    // Cut-off in cycles per sample of the upsampled rate, times two.
    let cutoff = CUTOFF / up.max(down) as f64;
    let mut phases = vec![0.0f32; length];
    let window_peak = bessel_i0(KAISER_BETA);
    for phase in 0..up {
        let mut sum = 0.0;
        let row: Vec<f64> = (0..taps)
            .map(|tap| {
                // Tap 0 applies to the oldest sample of the window.
                let at = ((taps - 1 - tap) * up + phase) as f64 - middle;
                sinc(at * cutoff) * kaiser(at / middle, window_peak)
            })
            .inspect(|value| sum += value)
            .collect();
        // Each phase is normalised on its own, so that the gain for a constant signal is one.
        for (place, value) in phases.iter_mut().skip(phase * taps).zip(row) {
            *place = (value / sum) as f32;
        }
    }
    PolyphaseFilter {
        up,
        down,
        phases,
        taps,
    }
}

fn sinc(x: f64) -> f64 {
    if x.abs() < 1e-12 {
        1.0
    } else {
        (PI * x).sin() / (PI * x)
    }
}

/// Kaiser window for `x` from -1 to 1; `peak` is the Bessel function of its parameter.
fn kaiser(x: f64, peak: f64) -> f64 {
    let inside = 1.0 - x * x;
    if inside <= 0.0 {
        return 0.0;
    }
    bessel_i0(KAISER_BETA * inside.sqrt()) / peak
}

/// Modified Bessel function of the first kind, order zero, by its power series.
fn bessel_i0(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..60 {
        term *= (x / 2.0 / f64::from(k)).powi(2);
        let next = sum + term;
        // Later terms are smaller still.
        if next == sum {
            break;
        }
        sum = next;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::dbov;
    use crate::tone::{Tone, ToneGenerator};

    fn sine(hz: f64, rate: u32, samples: usize) -> Vec<i16> {
        let mut out = vec![0; samples];
        ToneGenerator::new(Tone::sine(hz, -6.0), rate).fill(&mut out);
        out
    }

    /// Level in dB of the difference against the level of `a`, away from the ends.
    fn error_db(a: &[i16], b: &[i16]) -> f64 {
        assert_eq!(a.len(), b.len());
        let range = 600..a.len() - 600;
        let difference: Vec<i16> = range.clone().map(|i| a[i].saturating_sub(b[i])).collect();
        dbov(&difference) - dbov(&a[range])
    }

    #[test]
    fn a_sine_keeps_level_and_phase() {
        for (from, to) in [
            (8000, 16_000),
            (16_000, 8000),
            (8000, 48_000),
            (48_000, 8000),
            (16_000, 48_000),
            (48_000, 16_000),
            (44_100, 8000),
        ] {
            for hz in [300.0, 1000.0, 3200.0] {
                let input = sine(hz, from, from as usize);
                let output = Resampler::whole(&input, from, to).unwrap();
                let expected = sine(hz, to, to as usize);
                let error = error_db(&expected, &output);
                assert!(error < -60.0, "{from} to {to}, {hz} Hz: {error} dB");
            }
        }
    }

    #[test]
    fn frequencies_above_nyquist_are_removed() {
        for hz in [4300.0, 6000.0, 7500.0] {
            let input = sine(hz, 16_000, 16_000);
            let output = Resampler::whole(&input, 16_000, 8000).unwrap();
            let left = dbov(&output[600..7400]) - dbov(&input);
            assert!(left < -60.0, "{hz} Hz: {left} dB");
        }
    }

    /// A conference creates resamplers for all its participants at once, on the thread that relays packets.
    #[test]
    fn resamplers_of_the_same_rates_share_a_filter() {
        let first = Resampler::new(8000, 48_000).unwrap();
        let filters = || FILTERS.lock().unwrap().0.len();
        for _ in 0..1_000 {
            let next = Resampler::new(8000, 48_000).unwrap();
            assert!(Arc::ptr_eq(&first.filter, &next.filter));
        }
        // The same ratio, so the same filter; another one has its own.
        let same = Resampler::new(4000, 24_000).unwrap();
        assert!(Arc::ptr_eq(&first.filter, &same.filter));
        let other = Resampler::new(48_000, 8000).unwrap();
        assert!(!Arc::ptr_eq(&first.filter, &other.filter));
        // Files may have any rate: the number of filters is bounded.
        for rate in 0..2 * MAX_FILTERS as u32 {
            Resampler::new(9_000 + 100 * rate, 10_000).unwrap();
            assert!(filters() <= MAX_FILTERS);
        }
    }

    /// Files of many odd rates: the filter of a codec in use is not designed again.
    #[test]
    fn filter_that_was_unused_for_longest_makes_room() {
        let mut cache = FilterCache(Vec::new());
        let filter = |up: usize| Arc::new(design(up, 1));
        let first = cache.insert(filter(1));
        for up in 2..4 * MAX_FILTERS {
            cache.insert(filter(up));
            let kept = cache.find(1, 1).unwrap();
            assert!(Arc::ptr_eq(&kept, &first), "{up}");
            assert!(cache.0.len() <= MAX_FILTERS);
        }
        // The latest ones are kept; one that two threads have designed is kept once.
        assert!(cache.find(2, 1).is_none());
        let latest = cache.find(4 * MAX_FILTERS - 1, 1).unwrap();
        assert!(Arc::ptr_eq(&cache.insert(filter(latest.up)), &latest));
        assert_eq!(cache.0.len(), MAX_FILTERS);
    }

    #[test]
    fn output_does_not_depend_on_block_sizes() {
        let input = sine(440.0, 8000, 8000);
        let mut whole = Vec::new();
        Resampler::new(8000, 48_000)
            .unwrap()
            .process(&input, &mut whole);
        let mut resampler = Resampler::new(8000, 48_000).unwrap();
        let mut parts = Vec::new();
        for part in input.chunks(37) {
            resampler.process(part, &mut parts);
        }
        assert_eq!(whole, parts);
        assert_eq!(whole.len(), 48_000);
        assert!(Resampler::new(8000, 7919).is_err());
        assert!(Resampler::new(0, 8000).is_err());
    }
}
