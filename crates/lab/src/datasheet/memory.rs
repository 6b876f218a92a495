//! Memory of calls and registrations on the data sheet.

use crate::error::{LabError, RunVerdict};
use crate::memory_growth::GrowthLoad;
use crate::statistics::Interval;
use crate::study::{OwnPart, PartContext, StudyRow};

/// Measures memory.
///
/// # Errors
/// If no border can be started, or none of the loads run.
pub(super) fn measure(context: &PartContext<'_>) -> Result<OwnPart, LabError> {
    let (standing, subscribers) = if context.quick {
        (1_000, 10_000)
    } else {
        (2_000, 50_000)
    };
    let loads = [
        GrowthLoad::calls(false, standing),
        GrowthLoad::calls(true, standing / 2),
        GrowthLoad::registrations(subscribers),
    ];
    let mut part = OwnPart::default();
    let mut process: Option<f64> = None;
    for load in &loads {
        if net::stops() > 0 {
            part.remarks.push("interrupted by the user".to_owned());
            break;
        }
        match one(context, load) {
            Ok((row, resident)) => {
                process = Some(process.map_or(resident, |known: f64| known.max(resident)));
                part.rows.push(row);
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
    if process.is_none() {
        let causes: Vec<&str> = part.rows.iter().map(|row| row.remark.as_str()).collect();
        return Err(LabError::cannot_run(causes.join("; "), "see the causes"));
    }
    part.rows.push(StudyRow {
        row: "X1".to_owned(),
        what: "resident memory of a border without calls".to_owned(),
        here: process,
        samples: 1,
        unit: "bytes".to_owned(),
        figure: "memory.process".to_owned(),
        record: "memory/part.json".to_owned(),
        ..StudyRow::default()
    });
    part.verdict = RunVerdict::NotJudged;
    Ok(part)
}

/// Runs a load against a border of its own; gives its row, and the memory of the border before it.
fn one(context: &PartContext<'_>, load: &GrowthLoad) -> Result<(StudyRow, f64), LabError> {
    let growth = load.measure(&context.dir.join(load.id), context.seed)?;
    let row = StudyRow {
        row: "X1".to_owned(),
        what: load.what.to_owned(),
        here: Some(growth.each()),
        interval: Some(Interval::none(1, "runs")),
        samples: 1,
        unit: "bytes".to_owned(),
        figure: load.id.to_owned(),
        remark: format!(
            "growth of the resident memory at its peak, divided by the number of them: {}",
            growth.count
        ),
        record: format!("memory/{}/run.json", load.id),
        ..StudyRow::default()
    };
    Ok((row, growth.before))
}
