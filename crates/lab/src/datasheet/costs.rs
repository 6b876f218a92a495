//! Costs for `lab plan --from`, from the records of a data sheet.

use crate::decimal::{counted, plain};
use crate::error::{LabError, RunVerdict};
use crate::planner::{Cost, Costs, FILE_NAME, FORMAT};
use crate::raw::{RunRecord, TrialRecord};
use crate::statistics::Interval;
use crate::study::{Measured, PartRecord, StudyRow, SuiteRecord};
use std::path::Path;

/// Half width of the interval of a single trial, as a share: the spread of trials on a shared machine.
const OF_ONE: f64 = 0.25;

/// Packets a second of a call with media, which is the level of its experiments: one each 20 ms, each way.
const PACKETS_OF_A_CALL: f64 = 100.0;

type Read = fn(&TrialRecord) -> Option<f64>;

/// CPU costs: identifier, part, and how a trial gives it. Each has a point at the fixed, low load of its `-cost` part,
/// one at the result of its search, and those of the loads below that the search tried.
const MEASURED: [(&str, &str, Read); 9] = [
    ("call.bypass.udp", "calls", each),
    ("call.anchored.udp", "calls-anchored", each),
    ("call.bypass.tls", "calls-tls", each),
    ("registration.udp", "registrations", each),
    ("registration.tls", "registrations-tls", each),
    ("refresh.udp", "re-registrations", each),
    ("refresh.tls", "re-registrations-tls", each),
    ("packet.none", "media", packet),
    ("packet.srtp", "media-srtp", packet),
];

fn each(trial: &TrialRecord) -> Option<f64> {
    trial.figures.cpu_us_per_call
}

/// Signalling is included where it could not be divided.
fn packet(trial: &TrialRecord) -> Option<f64> {
    let details = &trial.details;
    details
        .planes
        .media_us_per_packet
        .or(details.cpu_us_per_packet)
}

/// A cost with an interval that contains all trials.
fn cost(id: &str, unit: &str, values: &[f64], origin: String) -> Option<Cost> {
    let count = values.len();
    if count == 0 {
        return None;
    }
    let value = values.iter().sum::<f64>() / count as f64;
    let (mut low, mut high) = match count {
        1 => (value * (1.0 - OF_ONE), value * (1.0 + OF_ONE)),
        _ => (
            values.iter().copied().fold(value, f64::min),
            values.iter().copied().fold(value, f64::max),
        ),
    };
    if count > 2 {
        let interval = Interval::of_mean(values, "trials");
        low = interval.low.map_or(low, |end| end.min(low)).max(0.0);
        high = interval.high.map_or(high, |end| end.max(high));
    }
    Some(Cost {
        id: id.to_owned(),
        value,
        low,
        high,
        unit: unit.to_owned(),
        load: None,
        samples: count as u64,
        origin,
    })
}

/// The cost of a row with memory: its interval is that of the row, if it has one.
fn of_row(row: &StudyRow, here: f64, origin: String) -> Option<Cost> {
    let assumed = cost(&row.figure, "bytes", &[here], origin)?;
    let ends = row
        .interval
        .as_ref()
        .and_then(|interval| Some((interval.low?, interval.high?)));
    let (low, high) = ends.unwrap_or((assumed.low, assumed.high));
    Some(Cost {
        low: low.clamp(0.0, here),
        high: high.max(here),
        samples: row.samples.max(1),
        ..assumed
    })
}

/// The costs of a data sheet.
pub(super) fn of(record: &SuiteRecord, parts: &[(PartRecord, Option<Measured>)]) -> Costs {
    let machine = record
        .machine
        .as_ref()
        .map_or("virtual time".to_owned(), |machine| {
            format!(
                "{}, {} cores, {}",
                machine.cpu, machine.cores, machine.kernel
            )
        });
    let mut costs = Costs {
        format: FORMAT,
        version: record.version.clone(),
        machine,
        cost: Vec::new(),
    };
    let run = |name: &str| -> Option<&RunRecord> {
        let (_, measured) = parts.iter().find(|(part, _)| part.name == name)?;
        match measured {
            Some(Measured::Experiment(run, _)) => Some(run.as_ref()),
            _ => None,
        }
    };
    for (id, part, read) in MEASURED {
        for part in [format!("{part}-cost"), part.to_owned()] {
            let found = run(&part).map_or(Vec::new(), |run| points(id, &part, read, run));
            for point in found {
                let same = |known: &Cost| known.id == id && known.load == point.load;
                if !costs.cost.iter().any(same) {
                    costs.cost.push(point);
                }
            }
        }
    }
    costs.derive();
    for (part, measured) in parts {
        let Some(Measured::Own(own)) = measured else {
            continue;
        };
        for row in own
            .rows
            .iter()
            .filter(|row| row.figure.starts_with("memory."))
        {
            if let Some(here) = row.here {
                let single = match row.samples {
                    0 | 1 => ", one sample, interval assumed: 25 %",
                    _ => "",
                };
                let origin = format!("{}/part.json: {}{single}", part.name, row.what);
                costs.cost.extend(of_row(row, here, origin));
            }
        }
    }
    costs
}

/// CPU times at the loads that passed, up to the result of a search; none of a search without one.
fn points(id: &str, part: &str, read: Read, run: &RunRecord) -> Vec<Cost> {
    let most = match run.search.as_ref().map(|search| search.result) {
        Some(None) => return Vec::new(),
        Some(Some(result)) => result,
        None => f64::INFINITY,
    };
    let passed = |trial: &&TrialRecord| {
        !matches!(trial.verdict, RunVerdict::Failed | RunVerdict::NotMeasured)
    };
    let good: Vec<&TrialRecord> = run.trials.iter().filter(passed).collect();
    let mut levels: Vec<f64> = good.iter().filter_map(|trial| trial.level).collect();
    levels.retain(|level| *level > 0.0 && *level <= most);
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    let per_level = match id.starts_with("packet.") {
        true => PACKETS_OF_A_CALL,
        false => 1.0,
    };
    let of_level = |level: f64| {
        let at = good.iter().filter(|trial| trial.level == Some(level));
        // Short trials of a search have the only CPU time of their loads.
        let is_full = at.clone().any(|trial| !trial.short);
        let used = at.filter(|trial| !trial.short || !is_full);
        let values: Vec<f64> = used.filter_map(|trial| read(trial)).collect();
        let noun = if is_full { "trial" } else { "short trial" };
        let single = match values.len() {
            1 => ", one sample, interval assumed: 25 %",
            _ => "",
        };
        let origin = format!(
            "{part}/run.json, {} at {}{single}",
            counted(values.len(), noun),
            plain(level)
        );
        let load = Some(level * per_level);
        cost(id, "us", &values, origin).map(|cost| Cost { load, ..cost })
    };
    levels.into_iter().filter_map(of_level).collect()
}

/// Writes `costs.toml` into the directory of a data sheet.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write(
    dir: &Path,
    record: &SuiteRecord,
    parts: &[(PartRecord, Option<Measured>)],
) -> Result<(), LabError> {
    let path = dir.join(FILE_NAME);
    let text = of(record, parts).text()?;
    crate::files::replace(&path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::SearchRecord;

    #[test]
    fn interval_contains_value_and_trials() {
        let one = cost("call.bypass.udp", "us", &[80.0], String::new()).unwrap();
        assert_eq!((one.low, one.value, one.high), (60.0, 80.0, 100.0));
        let two = cost("call.bypass.udp", "us", &[80.0, 90.0], String::new()).unwrap();
        assert_eq!((two.low, two.value, two.high), (80.0, 85.0, 90.0));
        let many = cost(
            "call.bypass.udp",
            "us",
            &[80.0, 90.0, 85.0, 200.0],
            String::new(),
        )
        .unwrap();
        assert!(many.low <= 80.0 && many.low >= 0.0 && many.high >= 200.0);
        assert!(cost("call.bypass.udp", "us", &[], String::new()).is_none());
    }

    fn trial(level: f64, us: f64, verdict: RunVerdict) -> TrialRecord {
        let mut trial = TrialRecord {
            level: Some(level),
            verdict,
            ..TrialRecord::default()
        };
        trial.figures.cpu_us_per_call = Some(us);
        trial.details.cpu_us_per_packet = Some(us / 10.0);
        trial
    }

    fn short(level: f64, us: f64, verdict: RunVerdict) -> TrialRecord {
        TrialRecord {
            short: true,
            ..trial(level, us, verdict)
        }
    }

    fn measured(name: &str, run: RunRecord) -> (PartRecord, Option<Measured>) {
        let part = PartRecord {
            name: name.to_owned(),
            ..PartRecord::default()
        };
        (part, Some(Measured::Experiment(Box::new(run), Vec::new())))
    }

    #[test]
    fn cost_has_points_at_the_fixed_load_and_at_the_loads_of_the_search() {
        use RunVerdict::{Failed, NotJudged, Passed};
        let fixed = |level: f64| RunRecord {
            trials: [140.0, 150.0, 154.0]
                .map(|us| trial(level, us, NotJudged))
                .to_vec(),
            ..RunRecord::default()
        };
        let searched = |result: Option<f64>| RunRecord {
            trials: vec![
                short(3_200.0, 80.0, Passed),
                short(11_700.0, 50.0, Passed),
                short(12_800.0, 40.0, Passed),
                trial(11_700.0, 42.0, Passed),
                trial(11_700.0, 90.0, Failed),
                trial(11_700.0, 44.0, Passed),
                trial(12_250.0, 95.0, Failed),
            ],
            search: Some(SearchRecord {
                result,
                ..SearchRecord::default()
            }),
            ..RunRecord::default()
        };
        let costs = of(
            &SuiteRecord::default(),
            &[
                measured("calls-cost", fixed(500.0)),
                measured("calls", searched(Some(11_700.0))),
                measured("registrations-cost", fixed(1_000.0)),
                measured("registrations", searched(None)),
                measured("media-cost", fixed(50.0)),
            ],
        );
        let points = |id: &str| -> Vec<(Option<f64>, f64, f64, f64)> {
            let curve = costs.curve(id).unwrap();
            let of = |point: &Cost| {
                (
                    point.load,
                    point.low.floor(),
                    point.value,
                    point.high.ceil(),
                )
            };
            curve.points().iter().map(of).collect()
        };
        assert_eq!(
            points("call.bypass.udp"),
            [
                (Some(500.0), 130.0, 148.0, 166.0),
                (Some(3_200.0), 60.0, 80.0, 100.0),
                (Some(11_700.0), 42.0, 43.0, 44.0)
            ]
        );
        let origin = |load: f64| {
            let mut all = costs.cost.iter();
            let of = all.find(|cost| cost.id == "call.bypass.udp" && cost.load == Some(load));
            of.unwrap().origin.clone()
        };
        assert_eq!(
            origin(3_200.0),
            "calls/run.json, 1 short trial at 3200, one sample, interval assumed: 25 %"
        );
        assert_eq!(origin(11_700.0), "calls/run.json, 2 trials at 11700");
        // A search without a result has no point.
        assert_eq!(
            points("registration.udp"),
            [(Some(1_000.0), 130.0, 148.0, 166.0)]
        );
        let packets = costs.curve("packet.none").unwrap();
        assert_eq!(packets.points()[0].load, Some(5_000.0));
        assert_eq!(
            Costs::parse("again", &costs.text().unwrap()).unwrap(),
            costs
        );
        // The quick setting has one load, and no part at a fixed one.
        let one = RunRecord {
            trials: vec![trial(400.0, 150.0, Passed)],
            ..RunRecord::default()
        };
        let costs = of(&SuiteRecord::default(), &[measured("calls", one)]);
        let call = costs.get("call.bypass.udp").unwrap();
        assert_eq!(
            (call.load, call.low, call.high),
            (Some(400.0), 112.5, 187.5)
        );
        assert_eq!(
            call.origin,
            "calls/run.json, 1 trial at 400, one sample, interval assumed: 25 %"
        );
    }

    #[test]
    fn memory_has_the_interval_of_its_row() {
        let row = |interval: Interval| StudyRow {
            here: Some(1_800.0),
            samples: interval.samples,
            interval: Some(interval),
            figure: "memory.call.bypass".to_owned(),
            ..StudyRow::default()
        };
        let three = row(Interval::of_mean(&[1_700.0, 1_800.0, 1_900.0], "borders"));
        let cost = of_row(&three, 1_800.0, String::new()).unwrap();
        assert_eq!((cost.value, cost.samples), (1_800.0, 3));
        assert!(cost.low > 1_500.0 && cost.low < 1_700.0, "{cost:?}");
        assert!(cost.high > 1_900.0 && cost.high < 2_100.0, "{cost:?}");
        // Of one border it is assumed.
        let one = row(Interval::none(1, "borders"));
        let cost = of_row(&one, 1_800.0, String::new()).unwrap();
        assert_eq!((cost.low, cost.high, cost.samples), (1_350.0, 2_250.0, 1));
    }
}
