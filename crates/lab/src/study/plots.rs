//! Plots of a study: its figures drawn again, with ours beside.

use super::plan::{BarSpec, PlotSpec, StudyPlan};
use super::record::{BarRecord, LineRecord, PartRecord, PlotRecord, Reading, StudyRow};
use super::records::record_href;
use super::rows::Measured;
use crate::decimal::plain;
use crate::error::LabError;
use crate::figures::CLASS_NAMES;
use crate::raw::{RunRecord, TrialRecord};
use crate::record::StreamRecord;
use crate::records_page::segment;
use crate::report::{
    Chart, Group, LevelSummary, MarkLinks, PALETTE, RESPONSE_CLASSES, Series, Stack, level_figure,
};
use crate::statistics::Interval;
use std::collections::BTreeSet;
use std::path::Path;

/// A plot, and the part whose records it shows; empty for rows of several parts.
pub(super) type PlacedPlot = (String, PlotRecord);

/// Seconds of a trial that are drawn, at most.
const MOST_SECONDS: usize = 3_600;

/// All plots of a study that have something to show.
pub(super) fn all(
    dir: &Path,
    plan: &StudyPlan,
    parts: &[(PartRecord, Option<Measured>)],
    rows: &[StudyRow],
) -> Result<Vec<PlacedPlot>, LabError> {
    let find = |name: &str| {
        parts.iter().find_map(|(record, measured)| match measured {
            Some(Measured::Experiment(run, levels)) if record.name == name => {
                Some((run.as_ref(), levels.as_slice()))
            }
            _ => None,
        })
    };
    let mut plots = Vec::new();
    for spec in &plan.plots {
        match spec {
            PlotSpec::Distribution { part } => {
                if let Some((run, levels)) = find(part) {
                    plots.push(((*part).to_owned(), distribution(part, run, levels)));
                }
            }
            PlotSpec::Levels {
                title,
                part,
                x,
                scale,
                y,
                figures,
            } => {
                if let Some((run, levels)) = find(part) {
                    let series = over_levels((part, run), levels, figures, *scale);
                    let plot = PlotRecord::Lines {
                        title: (*title).to_owned(),
                        x: (*x).to_owned(),
                        y: (*y).to_owned(),
                        series,
                        limit: None,
                    };
                    plots.push(((*part).to_owned(), plot));
                }
            }
            PlotSpec::LossOverTime {
                title,
                part,
                levels,
                study,
            } => {
                if let Some((run, _)) = find(part) {
                    let streams = crate::report::read_streams(&dir.join(part))?;
                    let plot = loss_over_time(title, (part, run), &streams, (levels, *study));
                    plots.push(((*part).to_owned(), plot));
                }
            }
            PlotSpec::Rows { title, y, bars } => {
                plots.push((String::new(), beside(title, y, bars, rows)));
            }
        }
    }
    for (record, measured) in parts {
        if let Some(Measured::Own(own)) = measured {
            let of_part = own.plots.iter().cloned().enumerate();
            plots.extend(of_part.map(|(place, mut plot)| {
                plot.link_to_itself(&format!("{}/part.json#/plots/{place}", record.name));
                (record.name.clone(), plot)
            }));
        }
    }
    Ok(plots)
}

/// Packets that were lost in each second, and those that were expected, of the streams of a trial.
fn lost_by_second(streams: &[&StreamRecord]) -> Vec<(f64, f64)> {
    let mut seconds: Vec<(f64, f64)> = Vec::new();
    for stream in streams {
        let (Some(first), Some(last)) = (stream.first, stream.last) else {
            continue;
        };
        let (from, to) = (first as f64 / 1e9, last as f64 / 1e9);
        // Packets that are missing before the first and after the last one were due at other times.
        let between = stream.expected.saturating_sub(stream.lost_at_ends());
        let each_second = between as f64 / (to - from).max(1.0);
        let begin = from.floor() as usize;
        // The last, partial second of a stream has few packets.
        let end = (to.floor() as usize).max(begin + 1).min(MOST_SECONDS);
        if seconds.len() < end {
            seconds.resize(end, (0.0, 0.0));
        }
        for (at, second) in seconds.iter_mut().enumerate().take(end).skip(begin) {
            let covered = (to.min(at as f64 + 1.0) - from.max(at as f64)).max(0.0);
            second.1 += each_second * covered;
        }
        for (number, lost) in stream.lost_by_second.iter().enumerate() {
            if let Some(second) = seconds.get_mut(begin + number) {
                second.0 += f64::from(*lost);
            }
        }
    }
    seconds
}

/// Lost packets over the seconds of the first trial of each level, with the intervals of their shares.
fn loss_over_time(
    title: &str,
    (part, run): (&str, &RunRecord),
    streams: &[StreamRecord],
    (levels, (figure, words)): (&[(f64, &str)], (f64, &str)),
) -> PlotRecord {
    let mut series = Vec::new();
    for (level, name) in levels {
        let mut trials = run.trials.iter().enumerate();
        let counts = |trial: &TrialRecord| trial.level == Some(*level) && !trial.is_load_invalid();
        let Some((place, trial)) = trials.find(|(_, trial)| counts(trial)) else {
            continue;
        };
        let of_trial: Vec<&StreamRecord> = streams
            .iter()
            .filter(|stream| stream.trial == trial.trial)
            .collect();
        let mut line = LineRecord {
            name: (*name).to_owned(),
            ..LineRecord::default()
        };
        let seconds = lost_by_second(&of_trial);
        let most = seconds.iter().map(|second| second.1).fold(0.0, f64::max);
        for (second, (lost, expected)) in seconds.into_iter().enumerate() {
            let whole = expected.round() as u64;
            // While the streams begin and end, a second has few packets.
            if whole == 0 || expected * 2.0 < most {
                continue;
            }
            let ends = Interval::of_share(lost as u64, whole, expected, "packets");
            line.points.push((second as f64, lost));
            let spread = ends.low.zip(ends.high);
            line.spread
                .extend(spread.map(|(low, high)| (second as f64, low, high)));
        }
        if !line.points.is_empty() {
            // The losses of all streams of the trial.
            let record = format!("{part}/run.json#/trials/{place}");
            line.links = vec![record; line.points.len()];
            series.push(line);
        }
    }
    PlotRecord::Lines {
        title: title.to_owned(),
        x: "seconds since the start of the trial".to_owned(),
        y: "packets lost in a second".to_owned(),
        series,
        limit: Some((figure, words.to_owned())),
    }
}

/// Reference to a figure of a level of a part.
fn measured(part: &str, place: usize, figure: &str) -> String {
    format!("{part}/{}", level_figure(place, figure))
}

/// Reference to a figure that the study states for a level.
fn studied(part: &str, place: usize, figure: &str) -> String {
    format!(
        "{part}/run.json#/study/level/{place}/figures/{}",
        segment(figure)
    )
}

/// Stacked classes of the response time at each level, the study's bar before ours.
fn distribution(part: &str, run: &RunRecord, levels: &[LevelSummary]) -> PlotRecord {
    let study = run.study.as_ref();
    let mut categories = Vec::new();
    let mut bars: Vec<BarRecord> = CLASS_NAMES
        .iter()
        .map(|name| BarRecord {
            name: format!("{name} ms"),
            ..BarRecord::default()
        })
        .collect();
    for (place, level) in levels.iter().enumerate() {
        let Some(value) = level.level else { continue };
        let theirs = study
            .and_then(|study| {
                study
                    .level
                    .iter()
                    .enumerate()
                    .find(|(_, of)| of.at == value)
            })
            .filter(|(_, of)| of.figures.keys().any(|name| name.ends_with(" ms")));
        if let Some((at, theirs)) = theirs {
            categories.push(format!("{} study", plain(value)));
            for bar in &mut bars {
                bar.values.push(theirs.figures.get(&bar.name).copied());
                bar.links.push(studied(part, at, &bar.name));
            }
        }
        // Answers to another load than the planned one say nothing of the SUT.
        let is_judged = level.is_judged();
        let remark = if is_judged { "" } else { " (not judged)" };
        categories.push(format!("{} here{remark}", plain(value)));
        for (bar, count) in bars.iter_mut().zip(level.classes) {
            bar.values.push(is_judged.then_some(count));
            bar.links.push(match is_judged {
                true => measured(part, place, &bar.name),
                false => String::new(),
            });
        }
    }
    PlotRecord::Bars {
        title: "Distribution of response times".to_owned(),
        x: run.level_label.clone(),
        y: "calls".to_owned(),
        categories,
        bars,
        stacked: true,
    }
}

/// Figures over the levels that are judged, with the study's points.
fn over_levels(
    (part, run): (&str, &RunRecord),
    levels: &[LevelSummary],
    figures: &[(&str, &str)],
    scale: f64,
) -> Vec<LineRecord> {
    let mut series = Vec::new();
    for (figure, name) in figures {
        let judged = levels.iter().enumerate();
        let judged = judged.filter(|(_, level)| level.is_judged());
        let points = judged.filter_map(|(place, level)| {
            let x = level.level? * scale;
            let value = level.figure(figure)?;
            Some((x, value, level.intervals.get(*figure), place))
        });
        let mut points: Vec<_> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut line = LineRecord {
            name: (*name).to_owned(),
            ..LineRecord::default()
        };
        for (x, value, interval, place) in points {
            line.points.push((x, value));
            line.links.push(measured(part, place, figure));
            let ends = interval.and_then(|ends| Some((ends.low?, ends.high?)));
            line.spread.extend(ends.map(|(low, high)| (x, low, high)));
        }
        let theirs = run.study.iter().flat_map(|study| &study.level).enumerate();
        let theirs = theirs.filter_map(|(place, level)| {
            let value = *level.figures.get(*figure)?;
            let point = (level.at * scale, value);
            Some((point, studied(part, place, figure)))
        });
        let (theirs, links): (Vec<_>, Vec<_>) = theirs.unzip();
        let is_measured = !line.points.is_empty();
        if is_measured {
            series.push(line);
        }
        if is_measured && !theirs.is_empty() {
            series.push(LineRecord {
                name: format!("{name}, study"),
                points: theirs,
                spread: Vec::new(),
                scatter: true,
                links,
            });
        }
    }
    series
}

/// Name of the bars with figures of a study.
const STUDY: &str = "study";

/// Name of our bars with these intervals at them.
fn with_whiskers(intervals: &[&Interval]) -> &'static str {
    let brackets = intervals.iter().filter(|of| of.is_bracket()).count();
    match brackets {
        _ if intervals.is_empty() => "here",
        0 => "here, with 95 % interval",
        count if count == intervals.len() => "here, with the bracket of the search",
        _ => "here, with 95 % interval or bracket of the search",
    }
}

/// Figures of rows, the study's beside ours.
fn beside(title: &str, y: &str, specs: &[BarSpec], rows: &[StudyRow]) -> PlotRecord {
    let mut study = BarRecord {
        name: STUDY.to_owned(),
        ..BarRecord::default()
    };
    let mut here = BarRecord::default();
    let mut intervals: Vec<&Interval> = Vec::new();
    let mut categories = Vec::new();
    for spec in specs {
        let matches = |row: &StudyRow| {
            row.part == spec.part
                && row.figure == spec.figure
                && (spec.level.is_none() || row.level == spec.level)
        };
        let at = rows.iter().position(matches);
        let row = at.and_then(|at| rows.get(at));
        for (bar, key) in [(&mut study, "study"), (&mut here, "here")] {
            let record = at.map(|at| format!("run.json#/study/{at}/{key}"));
            bar.links.push(record.unwrap_or_default());
        }
        let theirs = row.and_then(|row| row.study.as_ref().and_then(Reading::number));
        let ours = row.and_then(|row| row.here);
        // A bar that is missing looks like a value of 0.
        categories.push(match (theirs, ours) {
            (None, None) => format!("{}: not measured", spec.name),
            (Some(_), None) => format!("{}: not measured here", spec.name),
            _ => spec.name.to_owned(),
        });
        study.values.push(theirs);
        here.values.push(ours);
        let interval = row.and_then(|row| row.interval.as_ref());
        intervals.extend(interval.filter(|ends| ends.low.is_some() && ends.high.is_some()));
        here.spread
            .push(interval.and_then(|ends| Some((ends.low?, ends.high?))));
    }
    here.name = with_whiskers(&intervals).to_owned();
    // A data sheet has no study to compare with.
    let mut bars = vec![study, here];
    bars.retain(|bar| bar.name != STUDY || bar.values.iter().any(Option::is_some));
    PlotRecord::Bars {
        title: title.to_owned(),
        x: String::new(),
        y: y.to_owned(),
        categories,
        bars,
        stacked: false,
    }
}

/// Draws a plot, with `files` on the records page; `None` if it is empty.
pub(super) fn chart(plot: &PlotRecord, files: &BTreeSet<String>) -> Option<Chart> {
    let hrefs = |links: &[String]| {
        let href = |link: &String| match link.as_str() {
            "" => String::new(),
            link => record_href(files, link),
        };
        MarkLinks::Each(links.iter().map(href).collect())
    };
    let chart = match plot {
        PlotRecord::Lines {
            title,
            x,
            y,
            series,
            limit,
        } => {
            let lines = series.iter().enumerate().map(|(place, line)| Series {
                name: line.name.clone(),
                points: line.points.clone(),
                colour: PALETTE
                    .get(place % PALETTE.len())
                    .copied()
                    .unwrap_or(PALETTE[0]),
                scatter: line.scatter,
                spread: line.spread.clone(),
                links: hrefs(&line.links),
            });
            let chart = Chart::lines(title, x, y, lines.collect());
            match limit {
                Some((limit, name)) => chart.with_limit(Some(*limit), name),
                None => chart,
            }
        }
        PlotRecord::Bars {
            title,
            x,
            y,
            categories,
            bars,
            stacked: true,
        } => {
            let stacks = bars.iter().enumerate().map(|(place, bar)| Stack {
                name: bar.name.clone(),
                values: bar
                    .values
                    .iter()
                    .map(|value| value.unwrap_or(0.0))
                    .collect(),
                colour: match bars.len() == RESPONSE_CLASSES.len() {
                    true => RESPONSE_CLASSES.get(place).copied().unwrap_or(PALETTE[0]),
                    false => PALETTE
                        .get(place % PALETTE.len())
                        .copied()
                        .unwrap_or(PALETTE[0]),
                },
                links: hrefs(&bar.links),
            });
            Chart::stacks(title, x, y, categories.clone(), stacks.collect()).with_full_width()
        }
        PlotRecord::Bars {
            title,
            x,
            y,
            categories,
            bars,
            stacked: false,
        } => {
            // The study's bars are grey.
            let colours = [PALETTE[5], PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[3]];
            let groups = bars.iter().enumerate().map(|(place, bar)| Group {
                name: bar.name.clone(),
                values: bar.values.clone(),
                spread: bar.spread.clone(),
                colour: colours
                    .get(place % colours.len())
                    .copied()
                    .unwrap_or(PALETTE[0]),
                links: hrefs(&bar.links),
            });
            Chart::groups(title, x, y, categories.clone(), groups.collect())
        }
    };
    (!chart.is_empty()).then_some(chart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::LinkRecord;

    #[test]
    fn bars_of_a_data_sheet_have_no_study_and_missing_ones_are_named() {
        let row = |part: &str, here: Option<f64>, study: Option<f64>| StudyRow {
            part: part.to_owned(),
            figure: "capacity".to_owned(),
            study: study.map(Reading::Number),
            here,
            ..StudyRow::default()
        };
        let specs = ["media", "media-srtp"].map(|part| BarSpec {
            name: part,
            part,
            figure: "capacity",
            level: None,
        });
        let drawn = |study: Option<f64>| {
            let rows = [
                row("media", Some(630.0), None),
                row("media-srtp", None, study),
            ];
            match beside("Calls", "calls", &specs, &rows) {
                PlotRecord::Bars {
                    categories, bars, ..
                } => (categories, bars.len()),
                PlotRecord::Lines { .. } => panic!("bars"),
            }
        };
        let (categories, bars) = drawn(None);
        assert_eq!(categories, ["media", "media-srtp: not measured"]);
        assert_eq!(bars, 1);
        let (categories, bars) = drawn(Some(78_000.0));
        assert_eq!(categories, ["media", "media-srtp: not measured here"]);
        assert_eq!(bars, 2);
    }

    #[test]
    fn whiskers_are_named_by_their_kind() {
        let bracket = Interval::bracket(Some(600.0), Some(650.0), 8);
        let mean = Interval::of_mean(&[1.0, 2.0, 3.0], "runs");
        for (intervals, name) in [
            (vec![], "here"),
            (vec![&mean], "here, with 95 % interval"),
            (
                vec![&bracket, &bracket],
                "here, with the bracket of the search",
            ),
            (
                vec![&mean, &bracket],
                "here, with 95 % interval or bracket of the search",
            ),
        ] {
            assert_eq!(with_whiskers(&intervals), name);
        }
    }

    #[test]
    fn levels_that_are_not_judged_are_named_and_not_drawn() {
        let trial = |number: u32, level: f64, faults: Vec<String>| {
            let mut trial = TrialRecord {
                trial: number,
                level: Some(level),
                links: vec![LinkRecord {
                    faults,
                    ..LinkRecord::default()
                }],
                ..TrialRecord::default()
            };
            trial.figures.response_ms.p50 = Some(level);
            trial.details.response_classes[0] = 7;
            trial
        };
        let slow = vec!["up: the link cannot keep up".to_owned()];
        let run = RunRecord {
            trials: vec![trial(0, 300.0, Vec::new()), trial(1, 900.0, slow)],
            ..RunRecord::default()
        };
        let levels = crate::report::summarise(&run.trials);
        let figures = [("response_p50_ms", "median")];
        let lines = over_levels(("part", &run), &levels, &figures, 1.0);
        assert_eq!(lines[0].points, [(300.0, 300.0)]);
        let PlotRecord::Bars {
            categories, bars, ..
        } = distribution("part", &run, &levels)
        else {
            panic!("bars");
        };
        assert_eq!(categories, ["300 here", "900 here (not judged)"]);
        assert_eq!(bars[0].values, [Some(7.0), None]);
    }

    #[test]
    fn losses_are_drawn_in_their_second_with_their_interval() {
        let stream = |trial, first_ms: u64, lost: &[u32]| StreamRecord {
            trial,
            expected: 200,
            first: Some(first_ms * 1_000_000),
            last: Some((first_ms + 4_000) * 1_000_000),
            lost_by_second: lost.to_vec(),
            ..StreamRecord::default()
        };
        let trial = |number, level| TrialRecord {
            trial: number,
            level: Some(level),
            ..TrialRecord::default()
        };
        let run = RunRecord {
            trials: vec![trial(1, 0.0), trial(2, 1.0)],
            ..RunRecord::default()
        };
        let streams = [
            stream(1, 0, &[0, 5]),
            stream(1, 1_000, &[3, 0, 7]),
            stream(2, 0, &[]),
        ];
        let names = [(0.0, "without"), (1.0, "with")];
        let plot = loss_over_time("t", ("part", &run), &streams, (&names, (500.0, "study")));
        let PlotRecord::Lines { series, limit, .. } = plot else {
            panic!("lines");
        };
        assert_eq!(
            series[0].points,
            [(0.0, 0.0), (1.0, 8.0), (2.0, 0.0), (3.0, 7.0), (4.0, 0.0)]
        );
        // Nothing lost in a second still has an upper end.
        let (_, low, high) = series[0].spread[0];
        assert!(low == 0.0 && high > 0.0);
        let (_, low, high) = series[0].spread[1];
        assert!(low < 8.0 && high > 8.0, "{low} {high}");
        assert!(series[1].points.iter().all(|point| point.1 == 0.0));
        assert_eq!(series[1].points.len(), 4);
        assert_eq!(series[1].links, vec!["part/run.json#/trials/1"; 4]);
        assert_eq!(limit, Some((500.0, "study".to_owned())));
    }
}
