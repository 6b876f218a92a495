//! Significance of the differences between two runs, and the correction for the number of compared figures.

use crate::statistics::student_tail;

/// Level of one side of a two-sided test at 95 %.
pub(super) const ONE_SIDED: f64 = 0.025;

/// The trials of one run as a sample of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Mean of the trials.
    pub mean: f64,
    /// Number of trials.
    pub n: usize,
    /// Variance over the trials.
    pub variance: f64,
    /// Variance of a trial that follows from its number of events alone; `None` for figures that are no counts.
    pub least_variance: Option<f64>,
}

impl Sample {
    /// Variance of the mean, and the part of it whose size the trials only estimate.
    fn of_mean(&self) -> (f64, f64) {
        let n = self.n.max(1) as f64;
        match self.least_variance {
            Some(least) if least > self.variance => (least / n, 0.0),
            _ => (self.variance / n, self.variance / n),
        }
    }
}

/// Probability of a rise from `old` to `new` by this much or more without a change of the system (Welch's test); `None`
/// with fewer than two trials on either side, or if both sides have no spread and too few trials to prove that.
pub(super) fn p_of_rise(old: &Sample, new: &Sample) -> Option<f64> {
    if old.n < 2 || new.n < 2 {
        return None;
    }
    let ((a, estimated_a), (b, estimated_b)) = (old.of_mean(), new.of_mean());
    let (change, spread) = (new.mean - old.mean, a + b);
    if spread == 0.0 {
        return match change {
            0.0 => Some(0.5),
            // Two equal values are no proof of certainty.
            _ if old.n < 3 || new.n < 3 => None,
            change => Some(if change > 0.0 { 0.0 } else { 1.0 }),
        };
    }
    let parts = estimated_a.powi(2) / (old.n - 1) as f64 + estimated_b.powi(2) / (new.n - 1) as f64;
    // Of counts without a spread of their own the variance is known.
    let freedom = match parts > 0.0 {
        true => spread.powi(2) / parts,
        false => f64::INFINITY,
    };
    Some(student_tail(change / spread.sqrt(), freedom))
}

/// Probability of a rise of the share of events from `old` to `new` by this much or more without a change of the system
/// (two proportions, pooled, with a correction for continuity); each is a number of events and of their occasions.
/// `None` without occasions on either side.
pub(super) fn p_of_counts(old: (f64, f64), new: (f64, f64)) -> Option<f64> {
    if old.1 <= 0.0 || new.1 <= 0.0 {
        return None;
    }
    let change = new.0 / new.1 - old.0 / old.1;
    let each = 1.0 / old.1 + 1.0 / new.1;
    // No event is no proof of certainty: one event and one other are added.
    let share = (old.0 + new.0 + 1.0) / (old.1 + new.1 + 2.0);
    let sure = (change.abs() - each / 2.0).max(0.0).copysign(change);
    Some(student_tail(
        sure / (share * (1.0 - share) * each).sqrt(),
        f64::INFINITY,
    ))
}

/// Variance of a trial's number of events, of `part` events among `whole` in `trials` trials (binomial). No event is no
/// proof of certainty: one event and one other are added.
pub(super) fn variance_of_count(part: f64, whole: f64, trials: usize) -> f64 {
    let share = (part + 1.0) / (whole + 2.0);
    whole / trials.max(1) as f64 * share * (1.0 - share)
}

/// Which of these probabilities remain significant among all of them (Benjamini and Hochberg): if nothing has changed,
/// the chance that any of them does is that of a single test.
pub(super) fn significant_together(p_values: &[Option<f64>]) -> Vec<bool> {
    let mut known: Vec<f64> = p_values.iter().flatten().copied().collect();
    known.sort_by(f64::total_cmp);
    let count = known.len() as f64;
    let ranked = known.iter().zip(1_u32..);
    let within = ranked.filter(|(p, rank)| **p <= ONE_SIDED * f64::from(*rank) / count);
    let limit = within.map(|(p, _)| *p).last();
    p_values
        .iter()
        .map(|p| p.zip(limit).is_some_and(|(p, limit)| p <= limit))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::variance;
    use engine::Entropy;

    fn sample(values: &[f64]) -> Sample {
        Sample {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            n: values.len(),
            variance: variance(values).unwrap_or_default(),
            least_variance: None,
        }
    }

    #[test]
    fn equal_values_of_two_trials_are_no_certainty() {
        let p = |old: &[f64], new: &[f64]| p_of_rise(&sample(old), &sample(new));
        assert_eq!(p(&[1.0, 1.0], &[2.0, 2.0]), None);
        assert_eq!(p(&[1.0; 3], &[2.0; 3]), Some(0.0));
        assert_eq!(p(&[2.0; 3], &[1.0; 3]), Some(1.0));
        assert_eq!(p(&[1.0; 2], &[1.0; 2]), Some(0.5));
        assert_eq!(p(&[1.0], &[2.0, 3.0]), None);
        // One failed call of 10,000 in each trial against none.
        let counted = |count: f64| Sample {
            least_variance: Some(variance_of_count(2.0 * count, 20_000.0, 2)),
            ..sample(&[count, count])
        };
        let p = p_of_rise(&counted(0.0), &counted(1.0)).unwrap();
        assert!((0.1..0.3).contains(&p), "{p}");
        let p = p_of_rise(&counted(0.0), &counted(100.0)).unwrap();
        assert!(p < 1e-6, "{p}");
    }

    #[test]
    fn shares_of_single_trials_are_tested_as_proportions() {
        let p = |old, new| p_of_counts(old, new).unwrap();
        // 12 of 78 calls failed before, 70 of 94 now.
        assert!(p((12.0, 78.0), (70.0, 94.0)) < 1e-6);
        assert!(p((70.0, 94.0), (12.0, 78.0)) > 1.0 - 1e-6);
        // One of ten is no proof, and equal shares are none of other loads.
        assert!(p((0.0, 10.0), (1.0, 10.0)) > 0.2);
        assert!((p((10.0, 100.0), (20.0, 200.0)) - 0.5).abs() < 1e-9);
        assert!((p((0.0, 50.0), (0.0, 50.0)) - 0.5).abs() < 1e-9);
        assert_eq!(p_of_counts((0.0, 0.0), (1.0, 10.0)), None);
    }

    #[test]
    fn many_figures_of_equal_runs_rarely_have_a_difference() {
        let mut alarms = 0;
        for seed in 0..400 {
            let mut entropy = Entropy::from_number(seed);
            // The sum of twelve uniform numbers is nearly normal.
            let mut normal = || (0..12).map(|_| entropy.unit()).sum::<f64>();
            let mut three = || sample(&[normal(), normal(), normal()]);
            let p_values: Vec<Option<f64>> =
                (0..20).map(|_| p_of_rise(&three(), &three())).collect();
            alarms += u32::from(significant_together(&p_values).contains(&true));
        }
        assert!(alarms <= 40, "{alarms} of 400");
    }

    #[test]
    fn a_single_figure_is_tested_as_without_correction() {
        assert_eq!(significant_together(&[Some(0.024), None]), [true, false]);
        assert_eq!(significant_together(&[Some(0.026)]), [false]);
        assert_eq!(
            significant_together(&[Some(0.024), Some(0.9), Some(0.001)]),
            [false, false, true]
        );
    }
}
