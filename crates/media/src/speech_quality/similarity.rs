//! Neurogram similarity (NSIM, Hines and Harte 2012) of two patches of a spectrogram: intensity and structure in
//! neighbourhoods of three bands and three frames.

use super::bands::{BANDS, Column};

/// Frames of a patch: 0.4 s.
pub(super) const PATCH: usize = 20;
/// Weights of a neighbourhood: the centre, its sides, and its corners (a Gaussian window).
const CENTRE: f64 = 0.619_485_845_753_726;
const SIDE: f64 = 0.083_825_147_544_263_3;
const CORNER: f64 = 0.011_303_391_017_305_2;
/// Constants for small values; the range of intensities is taken as 1, as in the published implementation.
const C1: f64 = 0.01 * 0.01;
const C3: f64 = 0.03 * 0.03 / 2.0;

/// Similarity of a patch in each band.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Similarity {
    bands: [f64; BANDS],
}

impl Similarity {
    /// Mean over the bands.
    pub(super) fn mean(&self) -> f64 {
        self.bands.iter().sum::<f64>() / BANDS as f64
    }
}

/// Mean similarity of several patches.
pub(super) fn mean<'a>(patches: impl Iterator<Item = &'a Similarity>) -> f64 {
    let (mut sum, mut count) = (0.0, 0_usize);
    for patch in patches {
        sum += patch.mean();
        count += 1;
    }
    sum / count.max(1) as f64
}

/// A patch with the weighted means and variances of its neighbourhoods.
#[derive(Clone, Debug)]
pub(super) struct Patch {
    values: Vec<Column>,
    means: Vec<Column>,
    variances: Vec<Column>,
}

impl Patch {
    pub(super) fn new(values: Vec<Column>) -> Patch {
        let means = smoothed(&values);
        let squares: Vec<Column> = values.iter().map(|column| column.map(|v| v * v)).collect();
        let mut variances = smoothed(&squares);
        for (variance, mean) in variances.iter_mut().flatten().zip(means.iter().flatten()) {
            *variance -= mean * mean;
        }
        Patch {
            values,
            means,
            variances,
        }
    }

    /// Similarity to another patch of the same length.
    pub(super) fn compare(&self, other: &Patch) -> Similarity {
        let products: Vec<Column> = self
            .values
            .iter()
            .zip(&other.values)
            .map(|(ours, theirs)| core::array::from_fn(|band| ours[band] * theirs[band]))
            .collect();
        let products = smoothed(&products);
        let mut bands = [0.0; BANDS];
        for (frame, product) in products.iter().enumerate() {
            for band in 0..BANDS {
                let (x, y) = (self.means[frame][band], other.means[frame][band]);
                let intensity = (2.0 * x * y + C1) / (x * x + y * y + C1);
                let spread = self.variances[frame][band] * other.variances[frame][band];
                // Rounding can make a variance of zero negative.
                let structure = (product[band] - x * y + C3) / (spread.max(0.0).sqrt() + C3);
                bands[band] += intensity * structure;
            }
        }
        Similarity {
            bands: bands.map(|sum| sum / products.len().max(1) as f64),
        }
    }
}

/// Weighted means of the neighbourhoods; at the edges the last value is repeated.
fn smoothed(columns: &[Column]) -> Vec<Column> {
    let last = columns.len().saturating_sub(1);
    (0..columns.len())
        .map(|frame| {
            let before = &columns[frame.saturating_sub(1)];
            let here = &columns[frame];
            let after = &columns[(frame + 1).min(last)];
            core::array::from_fn(|band| {
                let (low, high) = (band.saturating_sub(1), (band + 1).min(BANDS - 1));
                CENTRE * here[band]
                    + SIDE * (before[band] + after[band] + here[low] + here[high])
                    + CORNER * (before[low] + before[high] + after[low] + after[high])
            })
        })
        .collect()
}
