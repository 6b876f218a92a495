//! Costs for `lab plan --from`, from the records of a data sheet.

use crate::decimal::{counted, plain};
use crate::error::{LabError, RunVerdict};
use crate::planner::{Cost, Costs, FILE_NAME, FORMAT};
use crate::raw::TrialRecord;
use crate::statistics::Interval;
use crate::study::{Measured, PartRecord, StudyRow, SuiteRecord};
use std::path::Path;

/// Share of the highest level that passed from which on trials count: a batching delay makes high load cheaper.
const FROM_SHARE: f64 = 0.3;
/// Half width of the interval of a single trial, as a share: the spread of trials on a shared machine.
const OF_ONE: f64 = 0.25;

type Read = fn(&TrialRecord) -> Option<f64>;

/// CPU costs: identifier, part, and how a trial gives it. A part with three runs at a fixed load (`-cost`) is preferred.
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
    let trials = |name: &str| -> Vec<&TrialRecord> {
        let found = parts.iter().find(|(part, _)| part.name == name);
        match found {
            Some((_, Some(Measured::Experiment(run, _)))) => run.trials.iter().collect(),
            _ => Vec::new(),
        }
    };
    let good = |name: &str| -> Vec<&TrialRecord> {
        let mut all = trials(name);
        all.retain(|trial| {
            let failed = matches!(trial.verdict, RunVerdict::Failed | RunVerdict::NotMeasured);
            !failed && !trial.short
        });
        all
    };
    for (id, part, read) in MEASURED {
        let fixed = format!("{part}-cost");
        let (part, good) = match good(&fixed) {
            none if none.is_empty() => (part, good(part)),
            runs => (fixed.as_str(), runs),
        };
        let highest = good
            .iter()
            .filter_map(|trial| trial.level)
            .fold(0.0, f64::max);
        let values: Vec<f64> = good
            .into_iter()
            .filter(|trial| trial.level.unwrap_or(0.0) >= highest * FROM_SHARE)
            .filter_map(read)
            .collect();
        let single = match values.len() {
            1 => ", one sample, interval assumed: 25 %",
            _ => "",
        };
        let origin = format!(
            "{part}/run.json, {} up to {}{single}",
            counted(values.len(), "trial"),
            plain(highest)
        );
        costs.cost.extend(cost(id, "us", &values, origin));
    }
    anchored_tls(&mut costs);
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

/// Anchoring takes as much with TLS as without.
fn anchored_tls(costs: &mut Costs) {
    let get = |id: &str| costs.find(id).cloned();
    let (Some(anchored), Some(bypass), Some(tls)) = (
        get("call.anchored.udp"),
        get("call.bypass.udp"),
        get("call.bypass.tls"),
    ) else {
        return;
    };
    let more = (anchored.value - bypass.value).max(0.0);
    costs.cost.push(Cost {
        id: "call.anchored.tls".to_owned(),
        value: tls.value + more,
        low: tls.low,
        high: tls.high + (anchored.high - bypass.low).max(more),
        origin: "call.bypass.tls + call.anchored.udp - call.bypass.udp".to_owned(),
        ..tls
    });
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
