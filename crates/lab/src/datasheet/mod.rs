//! `lab datasheet`: capacities and costs of the border on this machine, on one page.

mod costs;
mod memory;
mod parts;
mod peers;

pub use parts::{MINUTES, NAME, plan};

use crate::error::{LabError, RunVerdict};
use crate::run::RunOptions;
use crate::study::{self, Setting};
use std::path::PathBuf;

/// Options of `hornwork lab datasheet`.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasheetOptions {
    /// Directory for page, records and costs.
    pub out: PathBuf,
    /// Time for all measurements, minutes.
    pub minutes: f64,
    /// The quick setting: less than 3 minutes, one load each.
    pub quick: bool,
    /// Replace the results of an earlier data sheet.
    pub force: bool,
    /// Write the record as JSON to this file; `-` is standard output.
    pub json: Option<PathBuf>,
    /// Seed instead of those of the experiments.
    pub seed: Option<u64>,
}

/// Measures the data sheet.
///
/// # Errors
/// Minutes out of range, if nothing can be measured here, or if the user interrupted it.
pub fn run(options: &DatasheetOptions) -> Result<RunVerdict, LabError> {
    if !(options.minutes.is_finite() && (1.0..=600.0).contains(&options.minutes)) {
        return Err(LabError::bad_input(format!(
            "--minutes {}: expected 1 to 600",
            options.minutes
        )));
    }
    let of_parts = RunOptions {
        out: Some(options.out.clone()),
        json: options.json.clone(),
        force: options.force,
        seed: options.seed,
        ..RunOptions::default()
    };
    let setting = match options.quick {
        true => Setting::quick(),
        false => Setting {
            name: match options.minutes {
                1.0 => "1 minute".to_owned(),
                minutes => format!("{} minutes", crate::decimal::plain(minutes)),
            },
            quick: false,
            limit_s: Some(options.minutes * 60.0),
        },
    };
    study::run_plan(&plan(options.minutes), &of_parts, &setting)
}
