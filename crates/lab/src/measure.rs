//! Figures of cases that an experiment measures itself, beside the columns of `levels.csv`: names, samples, summaries.

use crate::esp;
use crate::statistics::{Interval, quantile};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// From this number of samples on the figure is their median, below it their mean: order statistics give no interval
/// for fewer.
const MEDIAN_FROM: usize = 10;

/// The samples of one figure in one trial: a line of `measures.ndjson`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasureRecord {
    /// Number of the trial in the run.
    pub trial: u32,
    /// Name of the figure; its unit is in the name.
    pub figure: String,
    /// Kind of samples, in the plural.
    pub of: String,
    /// The samples, in the order of measurement.
    pub samples: Vec<f64>,
}

/// A figure of a trial or of a level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCase {
    /// Name of the figure.
    pub figure: String,
    /// Median of ten samples or more, else their mean.
    pub value: f64,
    /// 95 % confidence interval of the value.
    pub interval: Interval,
}

/// Samples by figure, while a trial runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct MeasureSamples {
    of: &'static str,
    figures: BTreeMap<String, Vec<f64>>,
}

impl MeasureSamples {
    /// No samples yet; `of` is the kind of samples, in the plural.
    pub(crate) fn new(of: &'static str) -> MeasureSamples {
        MeasureSamples {
            of,
            figures: BTreeMap::new(),
        }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, figure: String, value: f64) {
        self.figures.entry(figure).or_default().push(value);
    }

    /// The records.
    pub(crate) fn records(self, trial: u32) -> Vec<MeasureRecord> {
        let of = self.of;
        let figures = self.figures.into_iter();
        figures
            .map(|(figure, samples)| MeasureRecord {
                trial,
                figure,
                of: of.to_owned(),
                samples,
            })
            .collect()
    }
}

/// From this number of trials on the interval contains their differences.
const SPREAD_FROM: usize = 3;

/// The figures of these records by name, the samples of all of them combined.
pub(crate) fn summarise<'a>(
    records: impl IntoIterator<Item = &'a MeasureRecord>,
) -> Vec<MeasuredCase> {
    let mut all: BTreeMap<&str, (&str, Vec<&[f64]>)> = BTreeMap::new();
    for record in records {
        let entry = all
            .entry(&record.figure)
            .or_insert((&record.of, Vec::new()));
        entry.1.push(&record.samples);
    }
    all.into_iter()
        .filter_map(|(figure, (of, trials))| {
            let (value, within) = summary(trials.concat(), of)?;
            let each = trials.iter().filter_map(|samples| {
                let (value, _) = summary(samples.to_vec(), of)?;
                Some(value)
            });
            let each: Vec<f64> = each.collect();
            let interval = match each.len() < SPREAD_FROM {
                true => within,
                false => {
                    // Differences may be negative, so that the interval has no end at zero.
                    let mut between = Interval::of_mean(&each, "trials");
                    let shift = value - each.iter().sum::<f64>() / each.len() as f64;
                    between.low = between.low.map(|low| low + shift);
                    between.high = between.high.map(|high| high + shift);
                    within.wider(between)
                }
            };
            Some(MeasuredCase {
                figure: figure.to_owned(),
                value,
                interval,
            })
        })
        .collect()
}

fn summary(mut samples: Vec<f64>, of: &str) -> Option<(f64, Interval)> {
    if samples.len() < MEDIAN_FROM {
        let count = samples.len();
        let mean = samples.iter().sum::<f64>() / count.max(1) as f64;
        return (count > 0).then(|| (mean, Interval::of_mean(&samples, of)));
    }
    samples.sort_by(f64::total_cmp);
    Some((
        quantile(&samples, 0.5)?,
        Interval::of_quantile(&samples, 0.5, of),
    ))
}

/// Means of the values of each figure, without intervals.
pub(crate) fn mean_of<'a>(cases: impl IntoIterator<Item = &'a MeasuredCase>) -> Vec<MeasuredCase> {
    let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for case in cases {
        all.entry(&case.figure).or_default().push(case.value);
    }
    let figures = all.into_iter();
    figures
        .map(|(figure, values)| MeasuredCase {
            figure: figure.to_owned(),
            value: values.iter().sum::<f64>() / values.len().max(1) as f64,
            interval: Interval::none(values.len() as u64, "runs"),
        })
        .collect()
}

/// Whether an experiment can measure a figure of this name.
pub(crate) fn is_measured_figure(name: &str) -> bool {
    esp::is_figure(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(trial: u32, figure: &str, samples: &[f64]) -> MeasureRecord {
        MeasureRecord {
            trial,
            figure: figure.to_owned(),
            of: "rounds".to_owned(),
            samples: samples.to_vec(),
        }
    }

    #[test]
    fn samples_of_all_trials_are_combined() {
        let many: Vec<f64> = (0..20).map(f64::from).collect();
        let records = [
            record(0, "a", &[1.0, 2.0]),
            record(0, "b", &many),
            record(1, "a", &[6.0]),
        ];
        let all = summarise(&records);
        let values: Vec<(&str, f64, u64)> = all
            .iter()
            .map(|case| (case.figure.as_str(), case.value, case.interval.samples))
            .collect();
        assert_eq!(values, [("a", 3.0, 3), ("b", 9.5, 20)]);
        assert_eq!(all[0].interval.method, "Student's t");
        assert_eq!(all[1].interval.method, "order statistics");
        assert!(all[1].interval.low.unwrap() < 9.5 && all[1].interval.high.unwrap() > 9.5);
        assert!(summarise(&[record(0, "none", &[])]).is_empty());
        // Trials that differ more than their samples.
        let trials = [10.0, 12.0, 14.0].map(|us| record(0, "c", &[us; 50]));
        let interval = &summarise(&trials)[0].interval;
        assert!(interval.low.unwrap() < 10.0 && interval.high.unwrap() > 14.0);
    }
}
