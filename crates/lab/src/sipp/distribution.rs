//! Distributions of pauses and samples. They draw from the entropy of the run, so a seed gives the same values.

use engine::Entropy;

/// A distribution with its parameters, named as in SIPp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Constant.
    Fixed(f64),
    /// Uniform between two values.
    Uniform {
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
    },
    /// Normal.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        stdev: f64,
    },
    /// Log-normal.
    LogNormal {
        /// Mean of the logarithm.
        mean: f64,
        /// Standard deviation of the logarithm.
        stdev: f64,
    },
    /// Exponential.
    Exponential {
        /// Mean.
        mean: f64,
    },
    /// Weibull.
    Weibull {
        /// Scale.
        lambda: f64,
        /// Shape.
        k: f64,
    },
    /// Pareto.
    Pareto {
        /// Shape.
        k: f64,
        /// Smallest value.
        x_m: f64,
    },
    /// Generalised Pareto.
    GeneralizedPareto {
        /// Shape.
        shape: f64,
        /// Scale.
        scale: f64,
        /// Smallest value.
        location: f64,
    },
    /// Gamma.
    Gamma {
        /// Shape.
        k: f64,
        /// Scale.
        theta: f64,
    },
    /// Negative binomial: failures before the n-th success.
    NegativeBinomial {
        /// Chance of a success.
        p: f64,
        /// Successes.
        n: f64,
    },
}

impl Distribution {
    /// Draws one value.
    pub fn draw(&self, entropy: &mut Entropy) -> f64 {
        match *self {
            Distribution::Fixed(value) => value,
            Distribution::Uniform { min, max } => min + (max - min) * entropy.unit(),
            Distribution::Normal { mean, stdev } => mean + stdev * normal(entropy),
            Distribution::LogNormal { mean, stdev } => (mean + stdev * normal(entropy)).exp(),
            Distribution::Exponential { mean } => entropy.exponential(mean),
            Distribution::Weibull { lambda, k } => lambda * entropy.exponential(1.0).powf(1.0 / k),
            Distribution::Pareto { k, x_m } => x_m * (entropy.exponential(1.0) / k).exp(),
            Distribution::GeneralizedPareto {
                shape,
                scale,
                location,
            } => {
                let drawn = entropy.exponential(1.0);
                match shape == 0.0 {
                    true => location + scale * drawn,
                    false => location + scale * ((shape * drawn).exp() - 1.0) / shape,
                }
            }
            Distribution::Gamma { k, theta } => theta * gamma(k, entropy),
            Distribution::NegativeBinomial { p, n } => {
                // A Poisson variable whose mean is gamma distributed.
                poisson(gamma(n, entropy) * (1.0 - p) / p, entropy)
            }
        }
    }

    /// Whether the parameters are valid.
    pub fn is_sound(&self) -> bool {
        let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
        match *self {
            Distribution::Fixed(value) => finite(&[value]),
            Distribution::Uniform { min, max } => finite(&[min, max]) && min <= max,
            Distribution::Normal { mean, stdev } | Distribution::LogNormal { mean, stdev } => {
                finite(&[mean, stdev]) && stdev >= 0.0
            }
            Distribution::GeneralizedPareto {
                shape,
                scale,
                location,
            } => finite(&[shape, scale, location]) && scale > 0.0,
            Distribution::Exponential { mean } => finite(&[mean]) && mean >= 0.0,
            Distribution::Weibull { lambda: a, k: b }
            | Distribution::Pareto { x_m: a, k: b }
            | Distribution::Gamma { theta: a, k: b } => finite(&[a, b]) && a > 0.0 && b > 0.0,
            Distribution::NegativeBinomial { p, n } => {
                finite(&[p, n]) && p > 0.0 && p <= 1.0 && n > 0.0
            }
        }
    }
}

/// Standard normal, by Box and Muller.
fn normal(entropy: &mut Entropy) -> f64 {
    let radius = (2.0 * entropy.exponential(1.0)).sqrt();
    radius * (std::f64::consts::TAU * entropy.unit()).cos()
}

/// Standard gamma with shape `k`, by Marsaglia and Tsang (2000).
fn gamma(k: f64, entropy: &mut Entropy) -> f64 {
    if k < 1.0 {
        let boost = (-entropy.exponential(1.0) / k).exp();
        return gamma(k + 1.0, entropy) * boost;
    }
    let d = k - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    // Each try succeeds with a chance above 0.95; the bound keeps the work finite for any parameters.
    for _ in 0..1_000 {
        let x = normal(entropy);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && -entropy.exponential(1.0) < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
    d
}

/// Poisson with `mean`: counted in steps of an exponential; above 1,000 approximated by the normal distribution.
fn poisson(mean: f64, entropy: &mut Entropy) -> f64 {
    if mean > 1_000.0 {
        return (mean + mean.sqrt() * normal(entropy)).round().max(0.0);
    }
    let (mut sum, mut count) = (entropy.exponential(1.0), 0.0);
    while sum < mean {
        sum += entropy.exponential(1.0);
        count += 1.0;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and standard deviation of many draws.
    fn moments(distribution: Distribution) -> (f64, f64) {
        assert!(distribution.is_sound());
        let mut entropy = Entropy::from_number(11);
        let draws: Vec<f64> = (0..100_000)
            .map(|_| distribution.draw(&mut entropy))
            .collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let square = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>();
        (mean, (square / draws.len() as f64).sqrt())
    }

    #[test]
    fn means_and_deviations_match_theory() {
        use Distribution::*;
        let half = 0.5f64;
        for (distribution, mean, deviation) in [
            (Fixed(3.0), 3.0, 0.0),
            (Uniform { min: 2.0, max: 5.0 }, 3.5, 3.0 / 12f64.sqrt()),
            (
                Normal {
                    mean: 60.0,
                    stdev: 15.0,
                },
                60.0,
                15.0,
            ),
            (
                LogNormal {
                    mean: 1.0,
                    stdev: 0.5,
                },
                (1.0f64 + 0.125).exp(),
                (1.0f64 + 0.125).exp() * (0.25f64.exp() - 1.0).sqrt(),
            ),
            (Exponential { mean: 9.0 }, 9.0, 9.0),
            // Shape 2: the mean is lambda times the square root of pi over two.
            (
                Weibull {
                    lambda: 3.0,
                    k: 2.0,
                },
                3.0 * std::f64::consts::PI.sqrt() / 2.0,
                3.0 * (1.0 - std::f64::consts::PI / 4.0).sqrt(),
            ),
            (
                Pareto { k: 5.0, x_m: 2.0 },
                2.5,
                2.0 / 4.0 * (5.0f64 / 3.0).sqrt(),
            ),
            (Gamma { k: 3.0, theta: 2.0 }, 6.0, 2.0 * 3f64.sqrt()),
            (
                Gamma {
                    k: half,
                    theta: 2.0,
                },
                1.0,
                2.0 * half.sqrt(),
            ),
            (
                NegativeBinomial { p: 0.1, n: 2.0 },
                18.0,
                (2.0 * 0.9f64).sqrt() / 0.1,
            ),
        ] {
            let (got_mean, got_deviation) = moments(distribution);
            assert!(
                (got_mean - mean).abs() < 0.02 * mean,
                "{distribution:?}: mean {got_mean}, not {mean}"
            );
            assert!(
                (got_deviation - deviation).abs() <= 0.06 * deviation,
                "{distribution:?}: deviation {got_deviation}, not {deviation}"
            );
        }
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        for distribution in [
            Distribution::Uniform { min: 2.0, max: 1.0 },
            Distribution::Exponential { mean: f64::NAN },
            Distribution::Gamma { k: 0.0, theta: 1.0 },
            Distribution::NegativeBinomial { p: 1.5, n: 1.0 },
        ] {
            assert!(!distribution.is_sound(), "{distribution:?}");
        }
    }
}
