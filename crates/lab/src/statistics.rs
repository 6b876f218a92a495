//! 95 % confidence intervals of figures.

use crate::decimal::plain;
use serde::{Deserialize, Serialize};

/// 95 % confidence interval of a figure, and its source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end; `null` if there are too few samples for one.
    pub low: Option<f64>,
    /// Upper end; `null` if there are too few samples for one.
    pub high: Option<f64>,
    /// Number of samples.
    pub samples: u64,
    /// Kind of samples, in the plural.
    pub of: String,
    /// Method of computation.
    pub method: String,
}

/// Quantile of sorted values by linear interpolation.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let low = place.floor() as usize;
    let (a, b) = (sorted.get(low)?, sorted.get(place.ceil() as usize)?);
    Some(a + (b - a) * (place - low as f64))
}

/// Normal quantile of a two-sided interval of 95 %.
const Z95: f64 = 1.959_964;

/// Two-sided 95 % quantiles of Student's t with 1 to 30 degrees of freedom.
const T95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Student's t; between two rows the one with fewer degrees of freedom, which gives the wider interval.
pub fn student(freedom: usize) -> f64 {
    match freedom {
        0 => f64::INFINITY,
        1..=30 => T95.get(freedom - 1).copied().unwrap_or(f64::INFINITY),
        31..40 => 2.042,
        40..60 => 2.021,
        60..120 => 2.000,
        _ => 1.980,
    }
}

/// Most degrees of freedom that are told apart; above, the distribution is the normal one.
const MAX_FREEDOM: f64 = 1e4;

/// Probability that Student's t with these degrees of freedom exceeds `t`.
pub fn student_tail(t: f64, freedom: f64) -> f64 {
    let freedom = freedom.clamp(0.1, MAX_FREEDOM);
    let square = t * t;
    if !square.is_finite() {
        return if t > 0.0 { 0.0 } else { 1.0 };
    }
    let beyond = 0.5 * incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + square));
    if t >= 0.0 { beyond } else { 1.0 - beyond }
}

/// Logarithm of the gamma function of a positive number (Stirling's series, from 10 on).
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut product) = (x, 1.0);
    while x < 10.0 {
        product *= x;
        x += 1.0;
    }
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1_260.0 * x.powi(5));
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series - product.ln()
}

/// The regularised incomplete beta function.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let logarithm = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln();
    let factor = logarithm.exp();
    match x < (a + 1.0) / (a + b + 2.0) {
        true => factor * beta_fraction(a, b, x) / a,
        false => 1.0 - factor * beta_fraction(b, a, 1.0 - x) / b,
    }
}

/// The continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8, Lentz's method).
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let not_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut upper = 1.0;
    let mut lower = 1.0 / not_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = lower;
    for step in 1..500 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            lower = 1.0 / not_zero(1.0 + term * lower);
            upper = not_zero(1.0 + term / upper);
            change = lower * upper;
            fraction *= change;
        }
        if (change - 1.0).abs() < 1e-12 {
            break;
        }
    }
    fraction
}

/// Variance of a sample; `None` for fewer than two values.
pub fn variance(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| squares / (n - 1.0))
}

/// Correlation of neighbours (lag 1) in series of events, `true` if it occurred; 0 if all are alike.
pub fn correlation_of_events(series: &[Vec<bool>]) -> f64 {
    let count: usize = series.iter().map(Vec::len).sum();
    let events: usize = series
        .iter()
        .map(|one| one.iter().filter(|is| **is).count())
        .sum();
    let share = events as f64 / count.max(1) as f64;
    let deviation = |is: bool| f64::from(u8::from(is)) - share;
    let pairs = series.iter().flat_map(|one| one.windows(2));
    let (mut products, mut number) = (0.0, 0.0);
    for pair in pairs {
        if let [a, b] = pair {
            products += deviation(*a) * deviation(*b);
            number += 1.0;
        }
    }
    let variance = share * (1.0 - share);
    match variance > 0.0 && number > 0.0 {
        true => (products / number / variance).clamp(0.0, 1.0),
        false => 0.0,
    }
}

/// Share of independent samples among samples of which neighbours have this correlation (lag 1).
fn independent(correlation: f64) -> f64 {
    let r = correlation.clamp(0.0, 0.99);
    (1.0 - r) / (1.0 + r)
}

/// Whether a quantile of this number of samples is close to the largest of them: fewer than three lie beyond it.
pub fn has_too_few_samples(samples: u64, q: f64) -> bool {
    // 300 for the 99th percentile; (1 - q) is not exact.
    samples as f64 * (1.0 - q) < 3.0 - 1e-9
}

/// Method of a bracket.
const BRACKET: &str = "between the highest passed and the lowest failed value";
/// Heading of a column that has confidence intervals, and brackets of searches.
pub(crate) const INTERVAL_COLUMN: &str = "95 % interval or bracket";

/// End of the method of an interval within the runs.
const WITHIN_RUNS: &str = ", within the runs";

impl Interval {
    /// A number of samples that gives no interval.
    pub fn none(samples: u64, of: &str) -> Interval {
        Interval {
            samples,
            of: of.to_owned(),
            method: "no interval".to_owned(),
            ..Interval::default()
        }
    }

    /// The bracket of a limit: the highest value that passed, and the lowest that failed. It is no confidence interval.
    pub(crate) fn bracket(low: Option<f64>, high: Option<f64>, trials: usize) -> Interval {
        Interval {
            low,
            high,
            samples: trials as u64,
            of: "trials".to_owned(),
            method: BRACKET.to_owned(),
        }
    }

    /// Whether it is the bracket of a search.
    pub fn is_bracket(&self) -> bool {
        self.method == BRACKET
    }

    /// Interval of the mean of these values (Student's t).
    pub fn of_mean(values: &[f64], of: &str) -> Interval {
        let n = values.len();
        let Some(variance) = variance(values) else {
            return Interval::none(n as u64, of);
        };
        let mean = values.iter().sum::<f64>() / n as f64;
        let half = student(n - 1) * (variance / n as f64).sqrt();
        Interval {
            low: Some(mean - half),
            high: Some(mean + half),
            samples: n as u64,
            of: of.to_owned(),
            method: "Student's t".to_owned(),
        }
    }

    /// Interval of the share `part` of `whole` (Wilson), times `scale`: 100 gives percent.
    pub fn of_share(part: u64, whole: u64, scale: f64, of: &str) -> Interval {
        if whole == 0 {
            return Interval::none(0, of);
        }
        let (n, p) = (whole as f64, part.min(whole) as f64 / whole as f64);
        let square = Z95 * Z95;
        let middle = (p + square / (2.0 * n)) / (1.0 + square / n);
        let half = Z95 / (1.0 + square / n) * (p * (1.0 - p) / n + square / (4.0 * n * n)).sqrt();
        let end = |value: f64| Some(value.clamp(0.0, 1.0) * scale);
        // Rounding must not exclude the observed value.
        Interval {
            low: if part == 0 {
                Some(0.0)
            } else {
                end(middle - half)
            },
            high: if part >= whole {
                Some(scale)
            } else {
                end(middle + half)
            },
            samples: whole,
            of: of.to_owned(),
            method: "Wilson".to_owned(),
        }
    }

    /// As [`Interval::of_share`] for events in time of which neighbours have this correlation, 0 to 1: they count as
    /// fewer independent ones, `n (1 - r) / (1 + r)`.
    pub fn of_correlated_share(
        (part, whole): (u64, u64),
        correlation: f64,
        scale: f64,
        of: &str,
    ) -> Interval {
        let factor = independent(correlation);
        if factor > 0.999 {
            return Interval::of_share(part, whole, scale, of);
        }
        // At least one event, so that a rare one is not rounded away.
        let fewer = |n: u64| ((n as f64 * factor).round() as u64).max(u64::from(n > 0));
        let mut interval = Interval::of_share(fewer(part), fewer(whole), scale, of);
        if part > 0 {
            let observed = part as f64 * scale / whole.max(1) as f64;
            interval.low = interval.low.map(|low| low.min(observed));
            interval.high = interval.high.map(|high| high.max(observed));
        }
        interval.samples = whole;
        interval.method = "Wilson, corrected for correlation".to_owned();
        interval
    }

    /// Interval of the mean of time series whose neighbouring values are correlated: they count as fewer independent
    /// ones, `n (1 - r) / (1 + r)` with the correlation r of neighbours (Student's t).
    pub fn of_series(series: &[&[f64]], of: &str) -> Interval {
        let all: Vec<f64> = series.iter().flat_map(|one| one.iter().copied()).collect();
        let Some(variance) = variance(&all) else {
            return Interval::none(all.len() as u64, of);
        };
        let n = all.len() as f64;
        let mean = all.iter().sum::<f64>() / n;
        let pairs = series.iter().flat_map(|one| one.windows(2));
        let products: f64 = pairs.map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
        let squares = variance * (n - 1.0);
        let correlation = match squares > 0.0 {
            true => products / squares,
            false => 0.0,
        };
        let fewer = (n * independent(correlation)).max(2.0);
        let half = student(fewer as usize - 1) * (variance / fewer).sqrt();
        Interval {
            low: Some(mean - half),
            high: Some(mean + half),
            samples: all.len() as u64,
            of: of.to_owned(),
            method: "Student's t, corrected for correlation".to_owned(),
        }
    }

    /// Interval of the quantile `q` of these values in ascending order (order statistics, binomial).
    pub fn of_quantile(sorted: &[f64], q: f64, of: &str) -> Interval {
        Interval::of_correlated_quantile(sorted, q, 0.0, of)
    }

    /// As [`Interval::of_quantile`] for values in time, of which neighbours are beyond the quantile with this
    /// correlation, 0 to 1.
    pub fn of_correlated_quantile(sorted: &[f64], q: f64, correlation: f64, of: &str) -> Interval {
        let n = sorted.len();
        let mut interval = Interval::none(n as u64, of);
        if quantile(sorted, q).is_none() {
            return interval;
        }
        let factor = independent(correlation);
        let mean = n as f64 * q;
        let spread = Z95 * (n as f64 * q * (1.0 - q) / factor).sqrt();
        let at = |rank: f64| {
            // Ranks begin at 1; a rank outside the samples has no value.
            (rank >= 1.0).then(|| sorted.get(rank as usize - 1).copied())?
        };
        interval.low = at((mean - spread).floor());
        interval.high = at((mean + spread).ceil() + 1.0);
        interval.method = match factor > 0.999 {
            true => "order statistics".to_owned(),
            false => "order statistics, corrected for correlation".to_owned(),
        };
        interval
    }

    /// Interval of the mean without the smallest and the largest value (Tukey and McLaughlin): the variance is that of
    /// the values of which both are replaced by their neighbours.
    pub fn of_trimmed_mean(values: &[f64], of: &str) -> Interval {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let Some([second, .., last]) = sorted.get(1..n.saturating_sub(1)) else {
            return match n {
                0..3 => Interval::of_mean(values, of),
                _ => Interval::none(1, of),
            };
        };
        let (second, last) = (*second, *last);
        let kept = n - 2;
        let mean = sorted.iter().skip(1).take(kept).sum::<f64>() / kept as f64;
        let winsorised: Vec<f64> = sorted
            .iter()
            .map(|value| value.max(second).min(last))
            .collect();
        let Some(variance) = variance(&winsorised) else {
            return Interval::none(kept as u64, of);
        };
        let share = kept as f64 / n as f64;
        let half = student(kept - 1) * (variance / n as f64).sqrt() / share;
        Interval {
            low: Some(mean - half),
            high: Some(mean + half),
            samples: kept as u64,
            of: of.to_owned(),
            method: "Student's t of the trimmed mean".to_owned(),
        }
    }

    /// Interval of a figure in percent of another one: both relative half widths in quadrature.
    pub fn of_ratio(ratio: f64, figure: (f64, &Interval), base: (f64, &Interval)) -> Interval {
        let relative = |(value, interval): (f64, &Interval)| {
            let width = (interval.high? - interval.low?) / 2.0;
            (value != 0.0).then(|| width / value.abs())
        };
        let samples = figure.1.samples.min(base.1.samples);
        let Some((a, b)) = relative(figure).zip(relative(base)) else {
            return Interval::none(samples, &figure.1.of);
        };
        let half = ratio.abs() * (a * a + b * b).sqrt();
        Interval {
            low: Some(ratio - half),
            high: Some(ratio + half),
            samples,
            of: figure.1.of.clone(),
            method: format!("{} of both, in quadrature", figure.1.method),
        }
    }

    /// Marks an interval that is computed from the samples within the runs: it says nothing of their differences.
    #[must_use]
    pub fn within_runs(mut self) -> Interval {
        if self.low.is_some() || self.high.is_some() {
            self.method.push_str(WITHIN_RUNS);
        }
        self
    }

    /// Whether it says nothing of the differences between runs.
    pub fn is_within_runs(&self) -> bool {
        self.method.ends_with(WITHIN_RUNS)
    }

    /// The wider one of two intervals; an open end is the widest.
    #[must_use]
    pub fn wider(self, other: Interval) -> Interval {
        let width = |interval: &Interval| match (interval.low, interval.high) {
            (Some(low), Some(high)) => high - low,
            (None, None) => f64::NEG_INFINITY,
            _ => f64::INFINITY,
        };
        match width(&other) > width(&self) {
            true => other,
            false => self,
        }
    }

    /// Moves the interval so that `value` is in its middle; its ends do not go below zero.
    pub fn centre(&mut self, value: f64) {
        if let (Some(low), Some(high)) = (self.low, self.high) {
            let half = (high - low) / 2.0;
            self.low = Some((value - half).max(0.0));
            self.high = Some(value + half);
        }
    }

    /// The ends as text: `1.2 to 1.5`.
    pub fn ends(&self) -> String {
        match (self.low, self.high) {
            (Some(low), Some(high)) => format!("{} to {}", plain(low), plain(high)),
            (Some(low), None) => format!("{} or more", plain(low)),
            (None, Some(high)) => format!("{} or less", plain(high)),
            (None, None) => "none".to_owned(),
        }
    }

    /// The ends as text, a bracket marked: `700 to 750 (bracket)`.
    pub fn marked_ends(&self) -> String {
        let is_marked = self.is_bracket() && (self.low.is_some() || self.high.is_some());
        let mark = if is_marked { " (bracket)" } else { "" };
        format!("{}{mark}", self.ends())
    }

    /// The samples as text: `5 runs`, `1 run`.
    pub fn counted(&self) -> String {
        let of = match self.samples {
            1 => self.of.strip_suffix('s').unwrap_or(&self.of),
            _ => &self.of,
        };
        format!("{} {of}", self.samples)
    }

    /// The source as text: `5 runs, Student's t`.
    pub fn source(&self) -> String {
        format!("{}, {}", self.counted(), self.method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: Option<f64>, wanted: f64) {
        assert!(
            found.is_some_and(|found| (found - wanted).abs() < 1e-3),
            "{found:?} {wanted}"
        );
    }

    #[test]
    fn bracket_of_a_search_is_told_from_a_confidence_interval() {
        let bracket = Interval::bracket(Some(700.0), Some(750.0), 8);
        assert!(bracket.is_bracket());
        assert_eq!(bracket.marked_ends(), "700 to 750 (bracket)");
        let open = Interval::bracket(Some(2_000.0), None, 3);
        assert_eq!(open.marked_ends(), "2000 or more (bracket)");
        assert_eq!(Interval::bracket(None, None, 1).marked_ends(), "none");
        let mean = Interval::of_mean(&[1.0, 2.0, 3.0], "runs");
        assert!(!mean.is_bracket());
        assert_eq!(mean.marked_ends(), mean.ends());
    }

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.99), Some(3.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[1.0, 2.0], 1.0), Some(2.0));
    }

    #[test]
    fn tail_of_students_t_is_that_of_the_table() {
        for freedom in [1_usize, 2, 5, 30] {
            let tail = student_tail(student(freedom), freedom as f64);
            assert!((tail - 0.025).abs() < 1e-4, "{freedom}: {tail}");
        }
        assert!((student_tail(Z95, f64::INFINITY) - 0.025).abs() < 1e-4);
        assert_eq!(student_tail(0.0, 3.0), 0.5);
        // With one degree of freedom it is Cauchy's distribution.
        assert!((student_tail(1.0, 1.0) - 0.25).abs() < 1e-9);
        assert!((student_tail(-1.0, 1.0) - 0.75).abs() < 1e-9);
        let far = student_tail(120.0, 4.0);
        assert!((1e-9..1e-7).contains(&far), "{far}");
        assert_eq!(student_tail(f64::INFINITY, 4.0), 0.0);
    }

    #[test]
    fn interval_of_mean_uses_students_t() {
        // The standard deviation of 1, 2, 3 is 1; t with 2 degrees of freedom is 4.303.
        let interval = Interval::of_mean(&[1.0, 2.0, 3.0], "runs");
        near(interval.low, 2.0 - 4.303 / 3f64.sqrt());
        near(interval.high, 2.0 + 4.303 / 3f64.sqrt());
        assert_eq!(interval.source(), "3 runs, Student's t");
        let one = Interval::of_mean(&[5.0], "runs");
        assert_eq!(
            (one.low, one.high, one.source().as_str()),
            (None, None, "1 run, no interval")
        );
    }

    #[test]
    fn interval_of_series_counts_correlated_values_as_fewer() {
        // Values in turn are no fewer samples: Student's t of all.
        let turns = [1.0, 3.0, 1.0, 3.0, 1.0, 3.0];
        let plain = Interval::of_mean(&turns, "blocks");
        let series = Interval::of_series(&[&turns], "blocks");
        assert_eq!((series.low, series.high), (plain.low, plain.high));
        // A trend: r = 8.75 / 17.5 = 0.5, so that 6 values count as 2; s = 1.871, t with 1 degree of freedom 12.706.
        let trend = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let series = Interval::of_series(&[&trend], "blocks");
        near(series.high, 3.5 + 12.706 * (3.5f64 / 2.0).sqrt());
        assert_eq!(series.samples, 6);
        assert_eq!(Interval::of_series(&[&[1.0]], "blocks").low, None);
        // Two of 100 in bursts: as 1 of 33.
        let share = Interval::of_correlated_share((2, 100), 0.5, 1.0, "packets");
        let fewer = Interval::of_share(1, 33, 1.0, "packets");
        assert_eq!((share.low, share.high), (fewer.low, fewer.high));
        let none = Interval::of_correlated_share((0, 100), 0.0, 1.0, "packets");
        assert_eq!(none, Interval::of_share(0, 100, 1.0, "packets"));
    }

    #[test]
    fn quantiles_of_correlated_values_have_wider_intervals() {
        // Blocks of ten slow and ten fast ones: neighbours differ at one of ten places.
        let slow = |n: usize| (n / 10) % 2 == 1;
        let events: Vec<bool> = (0..1_000).map(slow).collect();
        let correlation = correlation_of_events(&[events]);
        assert!((0.75..0.85).contains(&correlation), "{correlation}");
        let turns: Vec<bool> = (0..1_000).map(|n| n % 2 == 0).collect();
        assert_eq!(correlation_of_events(&[turns]), 0.0);
        assert_eq!(correlation_of_events(&[vec![true; 5]]), 0.0);
        let values: Vec<f64> = (1..=1_000).map(f64::from).collect();
        let width = |correlation: f64| {
            let interval = Interval::of_correlated_quantile(&values, 0.5, correlation, "calls");
            interval.high.unwrap() - interval.low.unwrap()
        };
        // (1 + r) / (1 - r) = 9: three times as wide.
        assert!((2.8..3.2).contains(&(width(0.8) / width(0.0))));
    }

    #[test]
    fn trimmed_mean_has_the_winsorised_variance() {
        // 1, 2, 3, 4, 9: mean of 2, 3, 4; variance of 2, 2, 3, 4, 4 is 1; t with 2 degrees of freedom is 4.303.
        let interval = Interval::of_trimmed_mean(&[9.0, 1.0, 3.0, 2.0, 4.0], "runs");
        let half = 4.303 * (1f64 / 5.0).sqrt() / 0.6;
        near(interval.low, 3.0 - half);
        near(interval.high, 3.0 + half);
        assert_eq!(interval.samples, 3);
        assert_eq!(
            Interval::of_trimmed_mean(&[1.0, 2.0, 3.0], "runs").low,
            None
        );
        let two = Interval::of_trimmed_mean(&[1.0, 2.0], "runs");
        assert_eq!(two, Interval::of_mean(&[1.0, 2.0], "runs"));
    }

    #[test]
    fn interval_is_centred_on_its_figure() {
        let mut interval = Interval::of_mean(&[1.0, 2.0, 3.0], "streams");
        interval.centre(4.0);
        near(interval.low, 4.0 - 4.303 / 3f64.sqrt());
        near(interval.high, 4.0 + 4.303 / 3f64.sqrt());
        interval.centre(0.5);
        assert_eq!(interval.low, Some(0.0));
    }

    #[test]
    fn interval_of_share_is_wilsons() {
        // 1 of 10: 0.0179 to 0.4042 (Wilson, 1927).
        let interval = Interval::of_share(1, 10, 1.0, "calls");
        near(interval.low, 0.0179);
        near(interval.high, 0.4042);
        // No loss among a million packets does not prove zero loss.
        let none = Interval::of_share(0, 1_000_000, 100.0, "packets");
        assert_eq!(none.low, Some(0.0));
        near(none.high, 0.000_384);
        assert_eq!(Interval::of_share(10, 10, 100.0, "calls").high, Some(100.0));
        assert_eq!(Interval::of_share(0, 0, 1.0, "calls").high, None);
    }

    #[test]
    fn interval_of_quantile_has_no_upper_end_with_few_samples() {
        let values: Vec<f64> = (1..=1_000).map(f64::from).collect();
        let median = Interval::of_quantile(&values, 0.5, "calls");
        near(median.low, 469.0);
        near(median.high, 532.0);
        let p99 = Interval::of_quantile(&values[..60], 0.99, "calls");
        assert_eq!(p99.high, None);
        assert_eq!(p99.ends(), "57 or more");
        assert!(
            has_too_few_samples(60, 0.99)
                && has_too_few_samples(299, 0.99)
                && !has_too_few_samples(300, 0.99)
        );
        assert_eq!(Interval::of_quantile(&[], 0.5, "calls").samples, 0);
    }

    #[test]
    fn ratio_has_the_spread_of_both() {
        let interval = |low, high| Interval {
            low: Some(low),
            high: Some(high),
            samples: 3,
            ..Interval::default()
        };
        let (a, b) = (interval(97.0, 103.0), interval(96.0, 104.0));
        let ratio = Interval::of_ratio(100.0, (100.0, &a), (100.0, &b));
        near(ratio.low, 95.0);
        near(ratio.high, 105.0);
        assert_eq!(
            Interval::of_ratio(1.0, (1.0, &Interval::none(1, "runs")), (1.0, &b)).low,
            None
        );
    }
}
