//! Other programs beside the border, each started from its subject file, with the same experiments; ours is started the
//! same way.

use crate::decimal::plain;
use crate::error::{LabError, RunVerdict};
use crate::report::LevelSummary;
use crate::run::{self, RunOptions};
use crate::study::{OwnPart, PartContext, StudyRow, TableRecord};
use crate::subject;

/// A figure of an experiment: column of `levels.csv`, description, unit.
type LoadFigure = (&'static str, &'static str, &'static str);

/// A load that several subjects get.
struct PeerLoad {
    /// Name, and folder of its records.
    name: &'static str,
    what: &'static str,
    experiment: &'static str,
    sets: &'static [&'static str],
    /// Replaces `{s}`: seconds in the quick and in the full setting.
    seconds: [u32; 2],
    figures: &'static [LoadFigure],
    subjects: &'static [&'static str],
}

const LOADS: [PeerLoad; 3] = [
    PeerLoad {
        name: "calls",
        what: "400 calls/s",
        experiment: "call-rate",
        sets: &[
            "callers.rate=400",
            "callers.duration_seconds={s}",
            "callers.hold_seconds=1",
        ],
        seconds: [1, 8],
        figures: &[
            ("cpu_us_each", "CPU time of a call", "us"),
            ("response_p99_ms", "response time, 99th percentile", "ms"),
            ("failed", "calls failed", "calls"),
        ],
        subjects: &["hornwork", "kamailio", "sipp", "asterisk", "freeswitch"],
    },
    PeerLoad {
        name: "media",
        what: "50 calls at a time, 5,000 packets/s",
        experiment: "media-capacity",
        sets: &[
            "callers.total=50",
            "callers.limit=50",
            "callers.hold_seconds={s}",
        ],
        seconds: [2, 10],
        figures: &[
            ("cpu_us_per_packet", "CPU time of a packet", "us"),
            ("relay_p50_ms", "delay of a packet, median", "ms"),
            ("lost_percent", "packets lost", "%"),
        ],
        subjects: &["hornwork-node", "rtpengine"],
    },
    PeerLoad {
        name: "registrations",
        what: "1,000 registrations/s without authentication",
        experiment: "registration-rate",
        sets: &[
            "registrations.registrar=border",
            "registrations.password=\"\"",
            "registrations.rate=1000",
            "registrations.users={s}000",
        ],
        seconds: [1, 8],
        figures: &[
            ("cpu_us_each", "CPU time of a registration", "us"),
            ("response_p99_ms", "response time, 99th percentile", "ms"),
            (
                "registrations_failed",
                "registrations failed",
                "registrations",
            ),
        ],
        subjects: &["hornwork", "kamailio"],
    },
];

/// Measures the subjects that are installed.
///
/// # Errors
/// If the directory is not writable.
pub(super) fn measure(context: &PartContext<'_>) -> Result<OwnPart, LabError> {
    let mut part = OwnPart::default();
    let mut table = TableRecord {
        title: "Peers".to_owned(),
        note: "Programs started from their subject files (hornwork lab subjects) and measured by the same experiments.".to_owned(),
        head: ["subject", "version", "result"].map(str::to_owned).to_vec(),
        ..TableRecord::default()
    };
    for (name, _) in subject::BUILT_IN {
        let file = subject::show(name).and_then(|text| subject::SubjectFile::parse(name, text))?;
        let loads = LOADS.iter().filter(|load| load.subjects.contains(&name));
        let version = match file.missing().is_empty() {
            true => file.version(),
            false => "not installed".to_owned(),
        };
        let mut results = Vec::new();
        for load in loads {
            if net::stops() > 0 {
                part.remarks.push("interrupted by the user".to_owned());
                break;
            }
            let rows = file
                .check_installed()
                .and_then(|()| measured(context, load, name));
            match rows {
                Ok(mut rows) => {
                    results.push(summary(load, &rows));
                    for row in rows.iter_mut().filter(|row| row.here.is_some()) {
                        let remarks = [version.as_str(), row.remark.as_str()];
                        let remarks = remarks.into_iter().filter(|remark| !remark.is_empty());
                        row.remark = remarks.collect::<Vec<_>>().join("; ");
                    }
                    part.rows.extend(rows);
                }
                Err(error) => {
                    let cause = error.to_string().replace("\n  remedy:", "; remedy:");
                    results.push(format!("not measured: {cause}"));
                    part.rows.push(StudyRow {
                        row: "X1".to_owned(),
                        what: format!("{name}, {}", load.what),
                        remark: cause,
                        ..StudyRow::default()
                    });
                }
            }
        }
        if results.is_empty() {
            continue;
        }
        table
            .rows
            .push(vec![name.to_owned(), version, results.join("; ")]);
    }
    part.tables.push(table);
    part.verdict = RunVerdict::NotJudged;
    Ok(part)
}

/// The figures of a load with the remark on them, or the reason why there are none.
fn summary(load: &PeerLoad, rows: &[StudyRow]) -> String {
    let mut parts: Vec<String> = rows
        .iter()
        .filter_map(|row| Some(format!("{} {}", plain(row.here?), row.unit)))
        .collect();
    let measured = rows.iter().find(|row| row.here.is_some());
    match measured.or(rows.first()).map(|row| row.remark.as_str()) {
        None | Some("") if parts.is_empty() => parts.push("not measured".to_owned()),
        None | Some("") => {}
        Some(remark) => parts.push(remark.to_owned()),
    }
    format!("{}: {}", load.what, parts.join(", "))
}

/// The row of a figure. A level without the planned load has none: it says nothing of the subject.
fn row(
    load: &PeerLoad,
    subject: &str,
    level: Option<&LevelSummary>,
    (figure, what, unit): LoadFigure,
) -> StudyRow {
    let judged = level.filter(|level| level.is_judged());
    let here = judged.and_then(|level| level.figure(figure));
    let interval = judged.and_then(|level| level.intervals.get(figure));
    let interval = interval.filter(|_| here.is_some()).cloned();
    StudyRow {
        row: "X1".to_owned(),
        what: format!("{subject}, {}: {what}", load.what),
        here,
        samples: match (&interval, here) {
            (Some(interval), _) => interval.samples,
            (None, here) => u64::from(here.is_some()),
        },
        interval,
        unit: unit.to_owned(),
        figure: figure.to_owned(),
        remark: level.map_or(String::new(), LevelSummary::load_remark),
        record: format!("peers/{}-{subject}/run.json", load.name),
        ..StudyRow::default()
    }
}

/// Runs a load on a subject.
fn measured(
    context: &PartContext<'_>,
    load: &PeerLoad,
    subject: &str,
) -> Result<Vec<StudyRow>, LabError> {
    let folder = format!("{}-{subject}", load.name);
    let [quick, full] = load.seconds;
    let seconds = if context.quick { quick } else { full }.to_string();
    let common = [
        "levels=",
        "study=",
        "thresholds.figure=",
        "settle_seconds=10",
    ];
    let mut set: Vec<String> = common.map(str::to_owned).to_vec();
    set.extend(load.sets.iter().map(|set| set.replace("{s}", &seconds)));
    set.push(format!("sut.subject={subject}"));
    let options = RunOptions {
        set,
        seed: context.seed,
        force: true,
        ..RunOptions::default()
    };
    let file = run::load(load.experiment, &options)?;
    let executed = run::execute(&file, &options, &context.dir.join(&folder))?;
    let level = executed.published.levels.first();
    let remarks: Vec<String> = executed
        .record
        .trials
        .iter()
        .flat_map(|trial| trial.remarks.clone())
        .collect();
    let figures = load.figures.iter();
    let mut rows: Vec<StudyRow> = figures
        .map(|figure| row(load, subject, level, *figure))
        .collect();
    for row in &mut rows {
        if row.here.is_none() && row.remark.is_empty() {
            row.remark = remarks.join("; ");
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{File, built_in};
    use crate::report::LoadFault;

    #[test]
    fn figures_without_the_planned_load_are_not_shown() {
        let load = &LOADS[0];
        let rows = |faulty: usize| {
            let level = LevelSummary {
                p99: Some(900.0),
                cpu_us: Some(70.0),
                load_fault: (faulty > 0).then(|| LoadFault {
                    trials: faulty,
                    of: 3,
                    reason: "the generator could not keep up".to_owned(),
                }),
                ..LevelSummary::default()
            };
            let figures = load.figures.iter();
            let rows: Vec<StudyRow> = figures
                .map(|figure| row(load, "kamailio", Some(&level), *figure))
                .collect();
            let text = summary(load, &rows);
            (rows, text)
        };
        let cause = "not judged: the generator could not keep up";
        let (starved, text) = rows(3);
        for row in &starved {
            assert_eq!((row.here, row.samples), (None, 0), "{row:?}");
            assert_eq!(row.remark, cause);
        }
        assert_eq!(text, format!("400 calls/s: {cause}"));
        // Other trials have the figures.
        let (mixed, text) = rows(1);
        assert_eq!((mixed[0].here, mixed[1].here), (Some(70.0), Some(900.0)));
        assert!(
            text.contains("900 ms") && text.contains("1 of 3 trials"),
            "{text}"
        );
        let (whole, text) = rows(0);
        assert_eq!(whole[0].remark, "");
        assert_eq!(text, "400 calls/s: 70 us, 900 ms, 0 calls");
    }

    #[test]
    fn loads_fit_their_experiments_and_subjects() {
        for load in LOADS {
            for subject in load.subjects {
                let mut sets: Vec<String> = ["levels=", "study=", "thresholds.figure="]
                    .map(str::to_owned)
                    .to_vec();
                sets.extend(load.sets.iter().map(|set| set.replace("{s}", "2")));
                sets.push(format!("sut.subject={subject}"));
                let text = built_in(load.experiment).unwrap();
                File::parse_with(load.experiment, text, &sets)
                    .unwrap_or_else(|error| panic!("{subject}: {error}"));
                assert!(subject::show(subject).is_ok());
            }
        }
    }
}
