//! The compared figures of a level: names, directions, and access to their values.

use super::super::data::{AttemptGroup, Tally, TrialSummary};
use super::super::significance::variance_of_count;
use super::{ComparedValue, RESULT, half_width};
use crate::statistics::variance;

/// Aggregation of a figure over several trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregation {
    /// The mean of the trials, with its confidence interval.
    Trials,
    /// A quantile or an extreme over the records of all trials, since a mean of quantiles is not a quantile. The range
    /// over the trials shows their spread.
    Records,
}

/// Reads a figure from a summary.
type SummaryFigureFn = Box<dyn Fn(&TrialSummary) -> Option<f64>>;

/// Reads events and the number of their occasions from a summary.
type CountFn = Box<dyn Fn(&TrialSummary) -> Option<(f64, f64)>>;

/// A compared figure: name, aggregation, and access to its value in a summary.
pub(super) struct Figure {
    pub name: String,
    over: Aggregation,
    read: SummaryFigureFn,
    /// The events of a count, with the factor by which the figure is more than their number per occasion.
    counts: Option<(CountFn, CountScale)>,
}

/// Unit of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountScale {
    Events,
    Percent,
}

/// Direction in which a figure gets worse; figures that do not rate the SUT have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorseDirection {
    Higher,
    Lower,
}

/// The direction of a figure, derived from its name.
pub(super) fn direction(name: &str) -> Option<WorseDirection> {
    let higher = [" failed", "jitter", "lost", "delay", "round trip", "CPU"];
    if name.ends_with(" established") || name == "MOS" || name == RESULT {
        return Some(WorseDirection::Lower);
    }
    let other_library = name.contains("awslc") || name.contains("openssl");
    let is_time = name.starts_with("esp.") && name.contains("_us") && !other_library;
    (is_time || higher.iter().any(|part| name.contains(part)) || name.contains(" response "))
        .then_some(WorseDirection::Higher)
}

impl Figure {
    pub fn value(&self, all: &TrialSummary, each: &[TrialSummary]) -> ComparedValue {
        let trials: Vec<Option<f64>> = each.iter().map(|one| (self.read)(one)).collect();
        let values: Vec<f64> = trials.iter().copied().flatten().collect();
        let n = values.len();
        let mean = (n > 0).then(|| values.iter().sum::<f64>() / n as f64);
        match self.over {
            Aggregation::Records => ComparedValue {
                value: (self.read)(all),
                range: (n > 1).then(|| {
                    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
                    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    (low, high)
                }),
                n,
                variance: variance(&values),
                trial_mean: mean,
                trials,
                ..ComparedValue::default()
            },
            Aggregation::Trials => {
                let half = half_width(&values);
                ComparedValue {
                    value: mean,
                    range: mean
                        .zip(half)
                        .map(|(mean, half)| (mean - half, mean + half)),
                    half_width: half,
                    confidence: true,
                    n,
                    variance: variance(&values),
                    least_variance: self.least_variance(each, n),
                    events: self.events(each),
                    trials,
                    ..ComparedValue::default()
                }
            }
        }
    }
}

impl Figure {
    /// Events and occasions of a count of calls. Lost packets have none: they come in bursts, so that a single trial
    /// does not show their spread.
    fn events(&self, each: &[TrialSummary]) -> Option<(f64, f64)> {
        let (read, scale) = self.counts.as_ref()?;
        if *scale != CountScale::Events {
            return None;
        }
        let counts = each.iter().filter_map(read);
        Some(counts.fold((0.0, 0.0), |sum, (part, whole)| {
            (sum.0 + part, sum.1 + whole)
        }))
    }

    /// The variance of a trial's count by its number of events, over `n` trials; `None` for figures that are no counts.
    fn least_variance(&self, each: &[TrialSummary], n: usize) -> Option<f64> {
        let (read, scale) = self.counts.as_ref()?;
        let counts: Vec<(f64, f64)> = each.iter().filter_map(read).collect();
        let part: f64 = counts.iter().map(|(part, _)| part).sum();
        let whole: f64 = counts.iter().map(|(_, whole)| whole).sum();
        let variance = variance_of_count(part, whole, n);
        let occasions = whole / n.max(1) as f64;
        match scale {
            CountScale::Events => Some(variance),
            CountScale::Percent => {
                (occasions > 0.0).then(|| variance * (100.0 / occasions).powi(2))
            }
        }
    }
}

pub(super) fn figures(old: &TrialSummary, new: &TrialSummary) -> Vec<Figure> {
    let mut all = Vec::new();
    let mut add = |name: String, over: Aggregation, read: SummaryFigureFn| {
        all.push(Figure {
            name,
            over,
            read,
            counts: None,
        });
    };
    for group in AttemptGroup::ALL {
        if old.tally(group).attempted == 0 && new.tally(group).attempted == 0 {
            continue;
        }
        let name = group.name();
        let count = |read: fn(&Tally) -> u64| -> SummaryFigureFn {
            Box::new(move |summary| Some(read(summary.tally(group)) as f64))
        };
        add(
            format!("{name} attempted"),
            Aggregation::Trials,
            count(|t| t.attempted),
        );
        add(
            format!("{name} established"),
            Aggregation::Trials,
            count(|t| t.established),
        );
        add(
            format!("{name} failed"),
            Aggregation::Trials,
            count(|t| t.failed),
        );
        add(
            format!("{name} response mean, ms"),
            Aggregation::Trials,
            Box::new(move |s| s.tally(group).response_mean()),
        );
        for (what, q) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            add(
                format!("{name} response {what}, ms"),
                Aggregation::Records,
                Box::new(move |s| s.tally(group).response(q)),
            );
        }
    }
    type Read = fn(&TrialSummary) -> Option<f64>;
    let rest: [(&str, Aggregation, Read); 14] = [
        ("peak calls", Aggregation::Records, |s| {
            Some(s.details.peak_calls as f64)
        }),
        ("jitter mean, ms", Aggregation::Trials, |s| {
            s.figures.jitter_ms.mean
        }),
        ("jitter p99, ms", Aggregation::Records, |s| {
            s.figures.jitter_ms.p99
        }),
        ("jitter max, ms", Aggregation::Records, |s| {
            s.figures.jitter_ms.max
        }),
        ("lost, %", Aggregation::Trials, |s| s.figures.lost_percent),
        ("MOS", Aggregation::Trials, |s| s.figures.mos),
        ("one-way delay, worst, ms", Aggregation::Records, |s| {
            s.details.one_way_ms
        }),
        ("round trip, worst, ms", Aggregation::Records, |s| {
            s.details.round_trip_ms
        }),
        ("lateness p50, ms", Aggregation::Records, |s| {
            s.details.lateness_ms[0]
        }),
        ("lateness p99, ms", Aggregation::Records, |s| {
            s.details.lateness_ms[1]
        }),
        (
            "CPU per call, packets included, us",
            Aggregation::Trials,
            |s| s.figures.cpu_us_per_call,
        ),
        ("CPU of signalling per call, us", Aggregation::Trials, |s| {
            s.details.planes.signalling_us_per_call
        }),
        ("CPU of media per packet, us", Aggregation::Trials, |s| {
            s.details.planes.media_us_per_packet
        }),
        ("RcvbufErrors", Aggregation::Trials, |s| {
            s.receive_buffer_errors.map(|count| count as f64)
        }),
    ];
    for (name, over, read) in rest {
        add(name.to_owned(), over, Box::new(read));
    }
    for case in &old.details.measures {
        let name = case.figure.clone();
        let read: SummaryFigureFn = Box::new(move |summary| {
            let mut measured = summary.details.measures.iter();
            Some(measured.find(|other| other.figure == name)?.value)
        });
        add(case.figure.clone(), Aggregation::Trials, read);
    }
    for figure in &mut all {
        figure.counts = counts_of(&figure.name);
    }
    all
}

/// Access to the events of a count, by the name of its figure.
fn counts_of(name: &str) -> Option<(CountFn, CountScale)> {
    if name == "lost, %" {
        let read = |summary: &TrialSummary| {
            let lost = summary.figures.lost_percent?;
            let expected = summary.details.packets as f64 / (1.0 - lost / 100.0).max(0.01);
            Some((expected * lost / 100.0, expected))
        };
        return Some((Box::new(read), CountScale::Percent));
    }
    let mut groups = AttemptGroup::ALL.into_iter();
    let group = groups.find(|group| name.starts_with(group.name()))?;
    let count: fn(&Tally) -> u64 = match name.strip_prefix(group.name())? {
        " established" => |tally| tally.established,
        " failed" => |tally| tally.failed,
        _ => return None,
    };
    let read = move |summary: &TrialSummary| {
        let tally = summary.tally(group);
        Some((count(tally) as f64, tally.attempted as f64))
    };
    Some((Box::new(read), CountScale::Events))
}
