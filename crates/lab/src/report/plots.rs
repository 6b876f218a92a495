//! Plots of single records, with details that means and quantiles hide.

use super::chart::{Chart, PALETTE, Series, Stack};
use super::data::{AttemptGroup, LevelRecords, RunResults};
use super::marks::MarkLinks;
use super::sources::{computed, figure};
use crate::raw::TrialRecord;
use crate::record::{Attempt, AttemptOutcome};
use crate::records_page::href;

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
        let of_level = |place: usize, _: &LevelRecords<'_>| computed(&format!("/levels/{place}"));
        charts.push(Chart::lines(
            &format!("Distribution of the response time, {name}"),
            "response time, ms",
            "answered within this time, %",
            lines(&shown, label, answered, of_level),
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
            lines(&shown, label, sent, |_, level| {
                let first = level.trials.first().and_then(|part| part.places.first());
                format!("run.json#/trials/{}", first.copied().unwrap_or_default())
            }),
        ));
    }
    charts.push(jitter(results));
    charts.push(processors(&levels, label));
    charts.push(outcomes(results));
    charts
}

/// At most [`MOST_LINES`] levels with their places, including the first and the last.
fn spread<'a, 'b>(levels: &'b [LevelRecords<'a>]) -> Vec<(usize, &'b LevelRecords<'a>)> {
    if levels.len() <= MOST_LINES {
        return levels.iter().enumerate().collect();
    }
    (0..MOST_LINES)
        .map(|n| n * (levels.len() - 1) / (MOST_LINES - 1))
        .filter_map(|place| Some((place, levels.get(place)?)))
        .collect()
}

/// A line for each level, whose records `record` names.
fn lines(
    levels: &[(usize, &LevelRecords<'_>)],
    label: &str,
    points: impl Fn(&LevelRecords<'_>) -> Vec<(f64, f64)>,
    record: impl Fn(usize, &LevelRecords<'_>) -> String,
) -> Vec<Series> {
    let series = |((place, level), colour): (&(usize, &LevelRecords<'_>), &'static str)| Series {
        name: match level.value {
            Some(value) => format!("{label} {value}"),
            None => "all".to_owned(),
        },
        points: points(level),
        colour,
        scatter: false,
        spread: Vec::new(),
        links: MarkLinks::Whole(href(&record(*place, level))),
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

/// A bar of a plot with its name, its value, and the first one of the records that it counts.
struct CountBar {
    name: String,
    value: f64,
    record: String,
}

fn bars(title: &str, x: &str, y: &str, bars: Vec<CountBar>) -> Chart {
    let names = bars.iter().map(|bar| bar.name.clone()).collect();
    let stack = Stack {
        name: y.to_owned(),
        values: bars.iter().map(|bar| bar.value).collect(),
        colour: PALETTE[0],
        links: MarkLinks::Each(bars.iter().map(|bar| href(&bar.record)).collect()),
    };
    Chart::stacks(title, x, y, names, vec![stack])
}

fn jitter(results: &RunResults) -> Chart {
    let streams = results.numbered_streams();
    let values: Vec<(f64, usize)> = streams
        .filter_map(|(stream, line)| Some((stream.jitter_mean_ms?, line)))
        .collect();
    let x = "mean jitter of a stream, ms (lower end of each bar)";
    bars("Jitter per stream", x, "streams", histogram(&values))
}

/// Load of the processors by level.
fn processors(levels: &[LevelRecords<'_>], label: &str) -> Chart {
    type Read = fn(&TrialRecord) -> Option<f64>;
    let drawn: [(&str, &str, Read); 2] = [
        ("all processors of this machine", "host_cpu_percent", |t| {
            t.details.host_cpu_percent
        }),
        ("SUT, of one core", "subject_cores", |t| {
            t.details.subject_cores.map(|cores| cores * 100.0)
        }),
    ];
    let series = |((name, of, read), colour): ((&str, &str, Read), &'static str)| {
        let points = levels.iter().enumerate().filter_map(|(place, level)| {
            let values: Vec<f64> = level.all.trials.iter().filter_map(read).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let point = (!values.is_empty()).then_some((level.value?, mean))?;
            Some((point, href(&figure(place, of))))
        });
        let (points, links): (Vec<_>, Vec<_>) = points.unzip();
        Series {
            name: name.to_owned(),
            points,
            colour,
            scatter: false,
            spread: Vec::new(),
            links: MarkLinks::Each(links),
        }
    };
    let series = drawn.into_iter().zip(PALETTE).map(series);
    let series = series.filter(|series| !series.points.is_empty()).collect();
    Chart::lines("Processor time", label, "busy, %", series)
}

/// Bars of equal width over the range of the values, each of which has its line in `streams.ndjson`.
fn histogram(values: &[(f64, usize)]) -> Vec<CountBar> {
    let all = || values.iter().map(|(value, _)| *value);
    let (Some(low), Some(high)) = (all().reduce(f64::min), all().reduce(f64::max)) else {
        return Vec::new();
    };
    let width = (high - low) / BARS as f64;
    let place = |value: f64| match width.is_normal() {
        true => (((value - low) / width) as usize).min(BARS - 1),
        false => 0,
    };
    let number = if width.is_normal() { BARS } else { 1 };
    let bars = (0..number).map(|bar| {
        let mut counted = values.iter().filter(|(value, _)| place(*value) == bar);
        let first = counted.next();
        CountBar {
            name: format!("{:.3}", low + bar as f64 * width),
            value: first.map_or(0, |_| 1 + counted.count()) as f64,
            record: format!("streams.ndjson:{}", first.map_or(1, |(_, line)| *line)),
        }
    });
    bars.collect()
}

fn outcomes(results: &RunResults) -> Chart {
    let counted = |a: &Attempt| AttemptGroup::ALL.iter().any(|group| group.contains(a.kind));
    let bar = |outcome: AttemptOutcome| {
        let attempts = results.numbered_attempts();
        let mut of = attempts.filter(|(a, _)| counted(a) && a.outcome == outcome);
        let (_, first) = of.next()?;
        Some(CountBar {
            name: outcome.name().replace('_', " "),
            value: (1 + of.count()) as f64,
            record: format!("attempts.ndjson:{first}"),
        })
    };
    let some: Vec<CountBar> = AttemptOutcome::ALL.into_iter().filter_map(bar).collect();
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
    fn histograms_count_every_value_and_name_its_first_record() {
        let bars = histogram(&[(0.0, 7), (0.1, 3), (4.0, 9)]);
        assert_eq!(bars.iter().map(|bar| bar.value).sum::<f64>(), 3.0);
        let first = &bars[0];
        assert_eq!((first.name.as_str(), first.value), ("0.000", 2.0));
        assert_eq!(first.record, "streams.ndjson:7");
        assert_eq!(bars[BARS - 1].record, "streams.ndjson:9");
        let alike = histogram(&[(2.0, 1), (2.0, 2)]);
        assert_eq!((alike.len(), alike[0].value), (1, 2.0));
        assert!(histogram(&[]).is_empty());
    }
}
