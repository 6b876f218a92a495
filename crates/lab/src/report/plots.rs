//! Plots of single records, with details that means and quantiles hide.

use super::chart::{Chart, PALETTE, Series, Stack};
use super::data::{AttemptGroup, LevelRecords, RunResults};
use crate::raw::TrialRecord;
use crate::record::{Attempt, AttemptOutcome};

/// Most lines in a plot of levels; of more levels an equidistant selection is drawn.
const MOST_LINES: usize = PALETTE.len();
/// Points of a line, and bins of a time axis.
const POINTS: usize = 400;
/// Bars of a histogram.
const BARS: usize = 24;

/// All plots, including empty ones.
pub(super) fn charts(results: &RunResults) -> Vec<Chart> {
    let levels = results.levels();
    let shown = spread(&levels);
    let label = &results.raw.run.level_label;
    let mut charts = Vec::new();
    for group in results.groups() {
        let name = group.name();
        let answered =
            |level: &LevelRecords<'_>| cumulative(&level.all.summary().tally(group).responses);
        charts.push(Chart::lines(
            &format!("Distribution of the response time, {name}"),
            "response time, ms",
            "answered within this time, %",
            lines(&shown, label, answered),
        ));
        let sent = |level: &LevelRecords<'_>| {
            let first = level.trials.first().map_or(&[][..], |part| part.attempts);
            rate(
                first
                    .iter()
                    .filter(|a| group.contains(a.kind))
                    .filter_map(|a| a.sent),
            )
        };
        charts.push(Chart::lines(
            &format!("Attempts sent per second, {name} (first trial of each level)"),
            "seconds since the start",
            "per second",
            lines(&shown, label, sent),
        ));
    }
    charts.push(jitter(results));
    charts.push(processors(&levels, label));
    charts.push(outcomes(results));
    charts
}

/// At most [`MOST_LINES`] levels, including the first and the last.
fn spread<'a, 'b>(levels: &'b [LevelRecords<'a>]) -> Vec<&'b LevelRecords<'a>> {
    if levels.len() <= MOST_LINES {
        return levels.iter().collect();
    }
    (0..MOST_LINES)
        .filter_map(|n| levels.get(n * (levels.len() - 1) / (MOST_LINES - 1)))
        .collect()
}

fn lines(
    levels: &[&LevelRecords<'_>],
    label: &str,
    points: impl Fn(&LevelRecords<'_>) -> Vec<(f64, f64)>,
) -> Vec<Series> {
    let series = |(level, colour): (&&LevelRecords<'_>, &'static str)| Series {
        name: match level.value {
            Some(value) => format!("{label} {value}"),
            None => "all".to_owned(),
        },
        points: points(level),
        colour,
        scatter: false,
        spread: Vec::new(),
    };
    levels.iter().zip(PALETTE).map(series).collect()
}

/// Steps of the cumulative distribution, thinned if there are many.
fn cumulative(sorted: &[f64]) -> Vec<(f64, f64)> {
    let count = sorted.len();
    let step = count.div_ceil(POINTS).max(1);
    let mut points = Vec::new();
    let mut before = 0.0;
    for (place, value) in sorted.iter().enumerate() {
        if place % step == 0 || place + 1 == count {
            let share = (place + 1) as f64 * 100.0 / count as f64;
            points.push((*value, before));
            points.push((*value, share));
            before = share;
        }
    }
    points
}

/// Events per second, in bins of a second or more.
fn rate(times: impl Iterator<Item = u64>) -> Vec<(f64, f64)> {
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    let seconds = times.last().map_or(0, |last| last / 1_000_000_000);
    let width = (seconds / POINTS as u64 + 1) * 1_000_000_000;
    let stretch = |time: u64| time / width;
    let Some(last) = times.last().map(|last| stretch(*last)) else {
        return Vec::new();
    };
    let mut counts = vec![0u64; last as usize + 1];
    for time in &times {
        if let Some(count) = counts.get_mut(stretch(*time) as usize) {
            *count += 1;
        }
    }
    let seconds = width as f64 / 1e9;
    let mut points = Vec::with_capacity(counts.len() * 2);
    for (place, count) in counts.into_iter().enumerate() {
        let from = place as f64 * seconds;
        points.push((from, count as f64 / seconds));
        points.push((from + seconds, count as f64 / seconds));
    }
    points
}

fn bars(title: &str, x: &str, y: &str, bars: Vec<(String, f64)>) -> Chart {
    let (names, values) = bars.into_iter().unzip();
    let stack = Stack {
        name: y.to_owned(),
        values,
        colour: PALETTE[0],
    };
    Chart::stacks(title, x, y, names, vec![stack])
}

fn jitter(results: &RunResults) -> Chart {
    let streams = results.raw.streams.iter();
    let values: Vec<f64> = streams.filter_map(|s| s.jitter_mean_ms).collect();
    let x = "mean jitter of a stream, ms (lower end of each bar)";
    bars("Jitter per stream", x, "streams", histogram(&values))
}

/// Load of the processors by level.
fn processors(levels: &[LevelRecords<'_>], label: &str) -> Chart {
    type Read = fn(&TrialRecord) -> Option<f64>;
    let drawn: [(&str, Read); 2] = [
        ("all processors of this machine", |t| {
            t.details.host_cpu_percent
        }),
        ("SUT, of one core", |t| {
            t.details.subject_cores.map(|cores| cores * 100.0)
        }),
    ];
    let series = |((name, read), colour): ((&str, Read), &'static str)| Series {
        name: name.to_owned(),
        points: levels
            .iter()
            .filter_map(|level| {
                let values: Vec<f64> = level.all.trials.iter().filter_map(read).collect();
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                (!values.is_empty()).then_some((level.value?, mean))
            })
            .collect(),
        colour,
        scatter: false,
        spread: Vec::new(),
    };
    let series = drawn.into_iter().zip(PALETTE).map(series);
    let series = series.filter(|series| !series.points.is_empty()).collect();
    Chart::lines("Processor time", label, "busy, %", series)
}

/// Bars of equal width over the range of the values.
fn histogram(values: &[f64]) -> Vec<(String, f64)> {
    let low = values.iter().copied().reduce(f64::min);
    let high = values.iter().copied().reduce(f64::max);
    let (Some(low), Some(high)) = (low, high) else {
        return Vec::new();
    };
    let width = (high - low) / BARS as f64;
    if !width.is_normal() {
        return vec![(format!("{low:.3}"), values.len() as f64)];
    }
    let mut counts = [0u64; BARS];
    for value in values {
        let place = (((value - low) / width) as usize).min(BARS - 1);
        if let Some(count) = counts.get_mut(place) {
            *count += 1;
        }
    }
    let bar = |(place, count): (usize, &u64)| {
        let from = low + place as f64 * width;
        (format!("{from:.3}"), *count as f64)
    };
    counts.iter().enumerate().map(bar).collect()
}

fn outcomes(results: &RunResults) -> Chart {
    let counted = |a: &&Attempt| AttemptGroup::ALL.iter().any(|group| group.contains(a.kind));
    let count = |outcome: AttemptOutcome| {
        let attempts = results.raw.attempts.iter().filter(counted);
        attempts.filter(|a| a.outcome == outcome).count() as f64
    };
    let all = AttemptOutcome::ALL.into_iter();
    let counts = all.map(|outcome| (outcome.name().replace('_', " "), count(outcome)));
    let some: Vec<(String, f64)> = counts.filter(|(_, count)| *count > 0.0).collect();
    // A single bar is not worth a plot.
    let some = if some.len() > 1 { some } else { Vec::new() };
    bars("Outcomes of all attempts", "", "attempts", some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cumulative_distribution_ends_at_100_percent() {
        let points = cumulative(&[1.0, 2.0, 4.0, 8.0]);
        assert_eq!(points[..2], [(1.0, 0.0), (1.0, 25.0)]);
        assert_eq!(points.last(), Some(&(8.0, 100.0)));
        let many: Vec<f64> = (0..100_000).map(f64::from).collect();
        let points = cumulative(&many);
        assert!(points.len() <= 2 * POINTS + 2);
        assert_eq!(points.last(), Some(&(99_999.0, 100.0)));
        assert!(cumulative(&[]).is_empty());
    }

    #[test]
    fn rates_are_counted_per_second() {
        let times = [0, 500_000_000, 1_000_000_000, 1_500_000_000];
        let expected = [(0.0, 2.0), (1.0, 2.0), (1.0, 2.0), (2.0, 2.0)];
        assert_eq!(rate(times.into_iter()), expected);
        assert!(rate([u64::MAX].into_iter()).len() <= 2 * POINTS + 2);
    }

    #[test]
    fn histograms_count_every_value() {
        let bars = histogram(&[0.0, 0.1, 4.0]);
        assert_eq!(bars.iter().map(|bar| bar.1).sum::<f64>(), 3.0);
        assert_eq!(bars.first(), Some(&("0.000".to_owned(), 2.0)));
        assert_eq!(histogram(&[2.0, 2.0]).len(), 1);
        assert!(histogram(&[]).is_empty());
    }
}
