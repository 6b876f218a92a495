//! Rows of a study from the records of its parts.

use super::plan::{AbsentRow, Action, Part, RowSpec, StudyPlan};
use super::record::{OwnPart, PartRecord, Reading, StudyRow};
use crate::decimal::plain;
use crate::error::LabError;
use crate::error::RunVerdict;
use crate::experiment::{CAPACITY, File, Study, built_in};
use crate::raw::RunRecord;
use crate::records_page::segment;
use crate::report::{self, LevelSummary, capacity_of, compare_with_study};
use std::path::Path;

/// Records of a part, read back.
#[derive(Debug)]
pub enum Measured {
    /// Of an experiment.
    Experiment(Box<RunRecord>, Vec<LevelSummary>),
    /// Of a part that is none.
    Own(OwnPart),
}

/// Reads the records of a part; `None` if there are none. The part's own report is written again.
pub(super) fn read(dir: &Path, record: &PartRecord) -> Result<Option<Measured>, LabError> {
    if !record.measured {
        return Ok(None);
    }
    let dir = dir.join(&record.name);
    if record.experiment.is_empty() {
        return OwnPart::read(&dir).map(|part| Some(Measured::Own(part)));
    }
    let (run, levels) = crate::report::read_levels(&dir)?;
    Ok(Some(Measured::Experiment(Box::new(run), levels)))
}

/// Description and unit of a figure of `levels.csv`.
pub(super) fn description(name: &str) -> (String, &'static str) {
    let (what, unit) = match name {
        "attempted" => ("calls attempted", "calls"),
        "established" => ("calls established", "calls"),
        "completed" => ("calls completed", "calls"),
        "failed" => ("calls failed", "calls"),
        "dropped" => ("calls not established", "calls"),
        "refused" => ("calls refused", "calls"),
        "peak_calls" => ("most calls at a time", "calls"),
        "registrations" => ("registrations attempted", "registrations"),
        "registered" => ("registrations accepted", "registrations"),
        "registrations_failed" => ("registrations failed", "registrations"),
        "response_p50_ms" => ("response time, median", "ms"),
        "response_p99_ms" => ("response time, 99th percentile", "ms"),
        "response_max_ms" => ("response time, largest", "ms"),
        "cpu_us_each" => ("CPU time of the SUT for each call or registration", "us"),
        "established_per_second" => ("calls or registrations accepted per second", "calls/s"),
        "in_time_per_second" => ("answered in time and completed, per second", "calls/s"),
        "streams" => ("streams", "streams"),
        "packets" => ("packets", "packets"),
        "lost_percent" => ("packets lost", "%"),
        "jitter_mean_ms" => ("jitter, mean", "ms"),
        "jitter_p99_ms" => ("jitter, 99th percentile", "ms"),
        "jitter_max_ms" => ("jitter, largest", "ms"),
        "delta_max_ms" => ("longest time between two packets", "ms"),
        "jitter_trimmed_mean_ms" => ("jitter, trimmed mean of the runs", "ms"),
        "jitter_trimmed_p99_ms" => ("jitter, 99th percentile, trimmed mean of the runs", "ms"),
        "noise_jitter_mean_ms" => ("jitter of the host itself, mean", "ms"),
        "noise_jitter_p99_ms" => ("jitter of the host itself, 99th percentile", "ms"),
        "host_noise_mean_ms" => ("lateness of timers of the host, mean", "ms"),
        "host_noise_max_ms" => ("lateness of timers of the host, largest", "ms"),
        "subject_cores" => ("cores busy with the SUT", "cores"),
        "host_cpu_percent" => ("CPU of the host", "%"),
        "one_way_ms" => ("one-way delay of the worst stream", "ms"),
        "relay_p50_ms" => ("delay of a packet, median", "ms"),
        "relay_p99_ms" => ("delay of a packet, 99th percentile", "ms"),
        "relay_max_ms" => ("delay of a packet, largest", "ms"),
        "cpu_us_per_packet" => ("CPU time of the SUT for each packet", "us"),
        "signalling_us_per_call" => ("CPU time of signalling for each call", "us"),
        "media_us_per_packet" => ("CPU time of media for each packet", "us"),
        "connections" => (
            "connections of registered users, fewest at a time",
            "connections",
        ),
        "connections_lost" => ("connections that were closed", "connections"),
        "passed_on" => ("REGISTERs passed on to the registrar", "registrations"),
        "node_spread_percent" => ("spread of calls over media nodes", "%"),
        "round_trip_ms" => ("round trip of the worst stream", "ms"),
        "mos" => ("mean opinion score", "MOS, 1 to 5"),
        CAPACITY => ("highest level within every threshold", ""),
        other if other.ends_with(" ms") => {
            return (format!("response time {other}"), "calls");
        }
        other => {
            let described = crate::esp::describe(other);
            return described.unwrap_or_else(|| (other.to_owned(), ""));
        }
    };
    (what.to_owned(), unit)
}

/// Description of a row: the figure, and the level at which it was read.
fn row_text(title: &str, figure: &str, unit: &str, at: &str) -> String {
    let words = match figure {
        CAPACITY => format!("{title}: {}", description(CAPACITY).0),
        // The description of a figure of ESP has its base.
        figure if unit.starts_with('%') && !figure.starts_with("esp.") => {
            format!("{}, {unit}", description(figure).0)
        }
        figure => description(figure).0,
    };
    match at {
        "" => words,
        at => format!("{words}; {at}"),
    }
}

/// Words for the level of a figure.
fn at(part: &Part, level: Option<f64>, label: &str) -> String {
    match level {
        Some(_) if !part.says.is_empty() => part.says.to_owned(),
        Some(level) => format!("{label} {}", plain(level)),
        None => String::new(),
    }
}

/// The experiment file of a part in its setting.
fn file(part: &Part, quick: bool) -> Option<File> {
    let sets = if quick { &part.quick } else { &part.full };
    File::parse_with(&part.name, built_in(&part.experiment)?, sets).ok()
}

/// Differences in the set-up: those of the experiment, and the quick setting.
fn differs(study: Option<&Study>, record: &PartRecord, quick: bool) -> Vec<String> {
    let mut all: Vec<String> = study.map_or(Vec::new(), |study| study.differs.clone());
    if quick && !record.overrides.is_empty() {
        all.push(format!("Quick setting: {}", record.overrides.join(", ")));
    }
    all
}

/// The row code of a part: its own, or the first of its experiment's table.
fn code(part: &Part, study: Option<&Study>) -> String {
    match part.row {
        "" => study.map_or(String::new(), |study| study.row.clone()),
        row => row.to_owned(),
    }
}

/// The unit of a row: that of the comparison, of the figure, or of the experiment's main figure, if it is the same one.
fn unit_of<'a>(figure: &str, unit: &'a str, study: Option<&'a Study>) -> &'a str {
    let own = description(figure).1;
    let main = study.filter(|study| study.ours == figure && !study.unit.starts_with('%'));
    match (unit, main) {
        _ if figure.starts_with("esp.") => own,
        ("", Some(study)) if !study.unit.is_empty() => &study.unit,
        ("", _) => own,
        (unit, _) => unit,
    }
}

/// Whether a figure of the study has its row: the main figure may be one of those by level.
fn has_row(rows: &[StudyRow], figure: &str, level: Option<f64>, study: &Reading) -> bool {
    let same = |row: &StudyRow| {
        row.figure == figure && row.level == level && row.study.as_ref() == Some(study)
    };
    rows.iter().any(same)
}

/// Rows of a part that was measured.
pub(super) fn measured(
    part: &Part,
    record: &PartRecord,
    measured: &Measured,
    quick: bool,
) -> Vec<StudyRow> {
    let file = format!("{}/run.json", record.name);
    match measured {
        Measured::Own(own) => own
            .rows
            .iter()
            .cloned()
            .enumerate()
            .map(|(place, mut row)| {
                if row.part.is_empty() {
                    row.part.clone_from(&record.name);
                }
                if row.record.is_empty() && row.here.is_some() {
                    row.record = format!("{}/part.json", record.name);
                }
                row.from = vec![format!("{}/part.json#/rows/{place}", record.name)];
                if !row.record.is_empty() && !row.record.ends_with("/part.json") {
                    row.from.push(format!("{}#", row.record));
                }
                row
            })
            .collect(),
        Measured::Experiment(run, levels) => {
            let study = run.study.as_ref();
            let differs = differs(study, record, quick);
            let mut rows = Vec::new();
            for (place, found) in compare_with_study(run, levels).into_iter().enumerate() {
                let mine = |level: f64| part.levels.is_empty() || part.levels.contains(&level);
                let elsewhere = match found.level {
                    Some(level) => !mine(level),
                    None => !part.levels.is_empty(),
                };
                // The main figure may be one of those by level.
                let theirs = match found.study_most {
                    Some(_) => Reading::Words(found.study_text()),
                    None => Reading::Number(found.study_value),
                };
                if elsewhere || has_row(&rows, &found.figure, found.level, &theirs) {
                    continue;
                }
                let unit = unit_of(&found.figure, &found.unit, study);
                let samples = found
                    .interval
                    .as_ref()
                    .map_or(0, |interval| interval.samples);
                let absent = found.run_value.is_none() && quick && found.remark == "level not run";
                rows.push(StudyRow {
                    row: code(part, study),
                    what: row_text(
                        &run.title,
                        &found.figure,
                        unit,
                        &at(part, found.level, &run.level_label),
                    ),
                    study: Some(theirs),
                    here: found.run_value,
                    samples,
                    differs: differs.clone(),
                    unit: unit.to_owned(),
                    part: record.name.clone(),
                    level: found.level,
                    figure: found.figure.clone(),
                    remark: match absent {
                        true => "level not in the quick setting".to_owned(),
                        false if found.run_value.is_none() => found.run_value_text(),
                        false => found.remark.clone(),
                    },
                    record: found.run_value.map_or(String::new(), |_| file.clone()),
                    interval: found.interval,
                    from: vec![computed(record, &format!("/study/{place}"))],
                });
            }
            rows.extend(
                part.rows
                    .iter()
                    .map(|spec| at_level(spec, record, (run, levels), &differs)),
            );
            rows
        }
    }
}

/// The level at which a row is read: the given one. That is the result of a search as well, as a higher level may have
/// passed short trials only. Otherwise the highest one that did not fail, if there is one.
fn level_of(at: Option<f64>, levels: &[LevelSummary]) -> Option<&LevelSummary> {
    if at.is_some() {
        return levels.iter().find(|level| level.level == at);
    }
    let passed = |level: &&LevelSummary| {
        !matches!(level.verdict, RunVerdict::Failed | RunVerdict::NotMeasured)
    };
    let any = levels.iter().any(|level| passed(&level));
    levels
        .iter()
        .filter(|level| !any || passed(level))
        .max_by(|a, b| {
            a.level
                .partial_cmp(&b.level)
                .unwrap_or(std::cmp::Ordering::Equal)
        })
}

/// Remark on a figure of a search without a result.
const NO_RESULT: &str = "not measured: no load passed a trial of full length";

/// Remark on the level at which a figure was read: a failed one is named, unless the row or the search chose it.
fn remark_on_level(level: &LevelSummary, is_chosen: bool) -> String {
    let load = level.load_remark();
    match (level.level, level.verdict) {
        (Some(value), RunVerdict::Failed) if !is_chosen && load.is_empty() => {
            format!("at {}, which failed", plain(value))
        }
        _ => load,
    }
}

/// A further row, read at its level.
fn at_level(
    spec: &RowSpec,
    record: &PartRecord,
    (run, levels): (&RunRecord, &[LevelSummary]),
    differs: &[String],
) -> StudyRow {
    let file = format!("{}/run.json", record.name);
    if spec.figure == CAPACITY {
        let found = capacity_of(run, levels);
        return StudyRow {
            here: found.value,
            samples: found
                .interval
                .as_ref()
                .map_or(0, |interval| interval.samples),
            interval: found.interval,
            differs: differs.to_vec(),
            part: record.name.clone(),
            remark: found.remark,
            record: found.value.map_or(String::new(), |_| file),
            from: vec![computed(record, "/capacity")],
            ..of_spec(spec)
        };
    }
    let searched = run.search.as_ref().and_then(|search| search.result);
    if let (Some(_), None, None) = (&run.search, searched, spec.at) {
        // The figures of loads that failed are those of queues.
        return StudyRow {
            differs: differs.to_vec(),
            part: record.name.clone(),
            remark: NO_RESULT.to_owned(),
            ..of_spec(spec)
        };
    }
    let level = level_of(spec.at.or(searched), levels);
    let judged = level.filter(|level| level.is_judged());
    let here = judged.and_then(|level| level.figure(spec.figure));
    let place = level.and_then(|level| levels.iter().position(|other| std::ptr::eq(other, level)));
    let from = place.filter(|_| here.is_some()).map(|place| {
        let figure = segment(spec.figure);
        computed(record, &format!("/levels/{place}/figures/{figure}"))
    });
    let interval = level
        .and_then(|level| level.intervals.get(spec.figure))
        .cloned();
    let samples = match (&interval, level) {
        (Some(interval), _) => interval.samples,
        (None, Some(level)) => level.repetitions as u64,
        (None, None) => 0,
    };
    StudyRow {
        here,
        interval: interval.filter(|_| here.is_some()),
        samples: if here.is_some() { samples } else { 0 },
        differs: differs.to_vec(),
        part: record.name.clone(),
        level: level.and_then(|level| level.level).or(spec.at),
        remark: match (here, level) {
            (Some(_), Some(level)) => remark_on_level(level, spec.at.or(searched).is_some()),
            (Some(_), None) => String::new(),
            (None, Some(level)) if !level.is_judged() => level.load_remark(),
            (None, Some(_)) if spec.figure.starts_with("cpu") => {
                "not measured: CPU time does not exist in virtual time, and is known of local processes only".to_owned()
            }
            (None, Some(_)) => "not measured".to_owned(),
            (None, None) => "level not run".to_owned(),
        },
        record: here.map_or(String::new(), |_| file),
        from: from.into_iter().collect(),
        ..of_spec(spec)
    }
}

/// Reference to a computed number of a part.
fn computed(record: &PartRecord, pointer: &str) -> String {
    format!("{}/{}", record.name, report::computed(pointer))
}

fn of_spec(spec: &RowSpec) -> StudyRow {
    StudyRow {
        row: spec.row.to_owned(),
        what: spec.what.to_owned(),
        study: Some(spec.study.clone()),
        unit: spec.unit.to_owned(),
        figure: spec.figure.to_owned(),
        ..StudyRow::default()
    }
}

/// Rows of a part that was not measured: the study's figures, with the cause.
pub(super) fn not_measured(part: &Part, record: &PartRecord, quick: bool) -> Vec<StudyRow> {
    let cause = record.cause.clone().unwrap_or_else(|| "not run".to_owned());
    let file = file(part, quick);
    let experiment = file.as_ref().map(File::experiment);
    let study = experiment.and_then(|experiment| experiment.study.as_ref());
    let label = experiment
        .and_then(|experiment| experiment.levels.as_ref())
        .map_or("level", |levels| levels.label.as_str());
    let title = experiment.map_or(part.name.as_str(), |experiment| &experiment.title);
    let differs = differs(study, record, quick);
    let base = |figure: &str, unit: &str, value: Reading, level: Option<f64>| StudyRow {
        row: code(part, study),
        what: row_text(title, figure, unit, &at(part, level, label)),
        study: Some(value),
        unit: unit.to_owned(),
        level,
        figure: figure.to_owned(),
        ..StudyRow::default()
    };
    let mut rows = Vec::new();
    for level in study.iter().flat_map(|study| &study.level) {
        if !part.levels.is_empty() && !part.levels.contains(&level.at) {
            continue;
        }
        for (figure, value) in &level.figures {
            let unit = unit_of(figure, "", study);
            rows.push(base(figure, unit, Reading::Number(*value), Some(level.at)));
        }
    }
    if let Some(study) = study.filter(|study| {
        let at = study.at.unwrap_or(f64::NAN);
        part.levels.is_empty() || part.levels.contains(&at)
    }) && let Some(figure) = study.figure
    {
        let theirs = match study.figure_most {
            Some(most) => Reading::Words(format!("{} to {}", plain(figure), plain(most))),
            None => Reading::Number(figure),
        };
        if !has_row(&rows, &study.ours, study.at, &theirs) {
            let unit = unit_of(&study.ours, &study.unit, Some(study));
            rows.push(base(&study.ours, unit, theirs, study.at));
        }
    }
    rows.extend(part.rows.iter().map(of_spec));
    if rows.is_empty() {
        rows.push(StudyRow {
            row: code(part, study),
            what: title.to_owned(),
            ..StudyRow::default()
        });
    }
    for row in &mut rows {
        row.part.clone_from(&record.name);
        row.remark.clone_from(&cause);
        row.differs.clone_from(&differs);
    }
    rows
}

/// A row that nothing in this build measures.
pub(super) fn absent(absent: &AbsentRow) -> StudyRow {
    StudyRow {
        row: absent.row.to_owned(),
        what: absent.what.to_owned(),
        study: Some(absent.study.clone()),
        unit: absent.unit.to_owned(),
        remark: absent.cause.clone(),
        ..StudyRow::default()
    }
}

/// All rows of a study, in the order of their codes.
pub(super) fn all(
    plan: &StudyPlan,
    parts: &[(PartRecord, Option<Measured>)],
    quick: bool,
) -> Vec<StudyRow> {
    let mut rows: Vec<StudyRow> = Vec::new();
    for part in &plan.parts {
        let record = parts.iter().find(|(record, _)| record.name == part.name);
        match record {
            Some((record, Some(found))) => rows.extend(measured(part, record, found, quick)),
            Some((record, None)) => rows.extend(not_measured(part, record, quick)),
            None => {
                let record = PartRecord {
                    name: part.name.clone(),
                    cause: Some("not run: the study was interrupted before".to_owned()),
                    ..PartRecord::default()
                };
                rows.extend(not_measured(part, &record, quick));
            }
        }
    }
    rows.extend(plan.absent.iter().map(absent));
    // S11 follows S9.
    let key = |row: &StudyRow| {
        let first = row.row.split([',', ' ']).next().unwrap_or_default();
        let digits: String = first.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u32>().unwrap_or(u32::MAX)
    };
    rows.sort_by_key(key);
    rows
}

/// Whether a part is left out in the quick setting, and why.
pub(super) fn left_out(part: &Part, quick: bool) -> Option<&'static str> {
    match part.action {
        Action::FullRun(why) | Action::FullSearch(why) if quick => Some(why),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::SearchRecord;
    use crate::study::plans;

    fn not_run(name: &str, quick: bool) -> Vec<StudyRow> {
        let plan = plans::find(name).unwrap();
        all(&plan, &[], quick)
    }

    #[test]
    fn rows_have_readable_texts_and_units_and_are_not_repeated() {
        for name in plans::NAMES {
            for quick in [true, false] {
                let rows = not_run(name, quick);
                for (place, row) in rows.iter().enumerate() {
                    assert!(
                        !row.what.contains("esp.") && !row.what.contains('_'),
                        "{row:?}"
                    );
                    assert!(row.figure.is_empty() || !row.unit.is_empty(), "{row:?}");
                    let same =
                        |other: &StudyRow| (&other.row, &other.what) == (&row.row, &row.what);
                    assert!(!rows[..place].iter().any(same), "{row:?}");
                }
            }
        }
        let rows = not_run("study-b", false);
        let what =
            "opening in tunnel mode less that in transport mode, AES-CBC-SHA1; packet time, ms 10";
        let row = rows.iter().find(|row| row.what == what).unwrap();
        assert_eq!((row.row.as_str(), row.unit.as_str()), ("B3", "us"));
        let gain = rows.iter().find(|row| row.row == "B4").unwrap();
        assert_eq!(gain.study, Some(Reading::Words("6 to 14".to_owned())));
        assert_eq!(gain.unit, "%");
        let shielding = not_run("study-s", true);
        let row = shielding.iter().find(|row| row.row == "S12").unwrap();
        assert_eq!(row.unit, "accepted calls/s");
    }

    #[test]
    fn figures_of_a_search_are_those_of_its_result() {
        let level = |value: f64, verdict: RunVerdict| LevelSummary {
            level: Some(value),
            verdict,
            ..LevelSummary::default()
        };
        // One of three trials at 680 failed; 720 passed in its short trial only.
        let levels = [
            level(680.0, RunVerdict::Failed),
            level(700.0, RunVerdict::Failed),
            level(720.0, RunVerdict::Failed),
        ];
        let read = |at: Option<f64>, levels| level_of(at, levels).and_then(|level| level.level);
        assert_eq!(read(Some(680.0), &levels), Some(680.0));
        assert_eq!(read(Some(690.0), &levels), None);
        assert_eq!(read(None, &levels), Some(720.0));
        let levels = [
            level(50.0, RunVerdict::Passed),
            level(100.0, RunVerdict::Failed),
        ];
        assert_eq!(read(None, &levels), Some(50.0));
    }

    #[test]
    fn search_without_result_has_no_figures_of_failed_loads() {
        let failed = LevelSummary {
            level: Some(950.0),
            verdict: RunVerdict::Failed,
            relay_p50: Some(11.5),
            repetitions: 1,
            ..LevelSummary::default()
        };
        let spec = RowSpec {
            row: "X1",
            what: "delay of a packet through the border, median",
            study: Reading::Words(String::new()),
            unit: "ms",
            figure: "relay_p50_ms",
            at: None,
        };
        let record = PartRecord {
            name: "media".to_owned(),
            ..PartRecord::default()
        };
        let read =
            |run: &RunRecord| at_level(&spec, &record, (run, std::slice::from_ref(&failed)), &[]);
        let mut run = RunRecord {
            search: Some(SearchRecord::default()),
            ..RunRecord::default()
        };
        let row = read(&run);
        assert_eq!((row.here, row.remark.as_str()), (None, NO_RESULT));
        assert!(row.record.is_empty() && row.from.is_empty(), "{row:?}");
        // Without a search the only load is read, and named.
        run.search = None;
        let row = read(&run);
        assert_eq!(row.here, Some(11.5));
        assert_eq!(row.remark, "at 950, which failed");
    }
}
