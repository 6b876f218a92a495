//! Memory of calls and registrations on the data sheet.

use crate::error::{LabError, RunVerdict};
use crate::memory_growth::{GrowthLoad, MemoryGrowth};
use crate::statistics::Interval;
use crate::study::{OwnPart, PartContext, StudyRow};

/// Borders whose growth is measured for each load.
const BORDERS: u32 = 3;
/// Remark on the memory of a border without calls.
const SETTLED: &str =
    "settled after a few hundred calls, when a part of the memory of its start was given back";

/// Measures memory.
///
/// # Errors
/// If no border can be started, or none of the loads run.
pub(super) fn measure(context: &PartContext<'_>) -> Result<OwnPart, LabError> {
    let (subscribers, borders) = match context.quick {
        true => (10_000, 1),
        false => (20_000, BORDERS),
    };
    let loads = [
        GrowthLoad::calls(false, 2_000),
        GrowthLoad::calls(true, 1_000),
        GrowthLoad::registrations(subscribers),
    ];
    let mut part = OwnPart::default();
    let mut processes: Vec<f64> = Vec::new();
    for load in &loads {
        if net::stops() > 0 {
            part.remarks.push("interrupted by the user".to_owned());
            break;
        }
        let dir = context.dir.join(load.id);
        match load.measure_borders(&dir, borders, context.seed) {
            Ok(grown) => {
                if load.leaves_nothing() {
                    processes.extend(grown.iter().map(|growth| growth.before));
                }
                part.rows.push(row(load, &grown));
            }
            Err(error) => part.rows.push(StudyRow {
                row: "X1".to_owned(),
                what: load.what.to_owned(),
                unit: "bytes".to_owned(),
                figure: load.id.to_owned(),
                remark: error.to_string().replace("\n  remedy:", "; remedy:"),
                ..StudyRow::default()
            }),
        }
    }
    if part.rows.iter().all(|row| row.here.is_none()) {
        let causes: Vec<&str> = part.rows.iter().map(|row| row.remark.as_str()).collect();
        return Err(LabError::cannot_run(causes.join("; "), "see the causes"));
    }
    if !processes.is_empty() {
        part.rows.push(StudyRow {
            row: "X1".to_owned(),
            what: "resident memory of a border without calls".to_owned(),
            here: Some(mean(&processes)),
            interval: Some(Interval::of_mean(&processes, "borders")),
            samples: processes.len() as u64,
            unit: "bytes".to_owned(),
            figure: "memory.process".to_owned(),
            remark: SETTLED.to_owned(),
            record: "memory/part.json".to_owned(),
            ..StudyRow::default()
        });
    }
    part.verdict = RunVerdict::NotJudged;
    Ok(part)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The row of a load: the mean of the borders.
fn row(load: &GrowthLoad, grown: &[MemoryGrowth]) -> StudyRow {
    let values: Vec<f64> = grown.iter().map(MemoryGrowth::each).collect();
    let counts: Vec<String> = grown
        .iter()
        .map(|growth| growth.count.to_string())
        .collect();
    StudyRow {
        row: "X1".to_owned(),
        what: load.what.to_owned(),
        here: Some(mean(&values)),
        interval: Some(Interval::of_mean(&values, "borders")),
        samples: values.len() as u64,
        unit: "bytes".to_owned(),
        figure: load.id.to_owned(),
        remark: format!(
            "growth of the resident memory from the settled border to its peak, divided by the number of them: {}",
            counts.join(", ")
        ),
        record: format!("memory/{}/run.json", load.id),
        ..StudyRow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_several_borders_has_an_interval() {
        let growth = |bytes: f64| MemoryGrowth {
            before: 37e6,
            bytes,
            count: 1_000,
        };
        let load = GrowthLoad::calls(false, 1_000);
        let of_three = row(&load, &[growth(1.7e6), growth(1.8e6), growth(1.9e6)]);
        assert_eq!((of_three.here, of_three.samples), (Some(1_800.0), 3));
        let interval = of_three.interval.unwrap();
        let (low, high) = (interval.low.unwrap(), interval.high.unwrap());
        assert!((1_500.0..1_700.0).contains(&low), "{low}");
        assert!((1_900.0..2_100.0).contains(&high), "{high}");
        // The quick setting has one border.
        let of_one = row(&load, &[growth(1.7e6)]);
        assert_eq!(of_one.interval.map(|interval| interval.low), Some(None));
    }
}
