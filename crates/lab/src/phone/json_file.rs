//! The JSON file of the statistics: opened before the call, so that a call is not lost for a path that cannot be
//! written.

use crate::error::LabError;
use serde_json::Value;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Where the statistics are written.
#[derive(Debug)]
pub(super) struct JsonFile {
    path: PathBuf,
    /// `None`: standard output.
    file: Option<File>,
}

impl JsonFile {
    /// Creates the file; `-` is standard output.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn create(path: &Path) -> Result<JsonFile, LabError> {
        let file = match path == Path::new("-") {
            true => None,
            false => Some(File::create(path).map_err(|error| cannot(path, &error))?),
        };
        Ok(JsonFile {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes the statistics.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn write(mut self, value: &Value) -> Result<(), LabError> {
        let text = format!("{value:#}\n");
        let written = match &mut self.file {
            Some(file) => file.write_all(text.as_bytes()),
            None => {
                crate::output::print(&text);
                return Ok(());
            }
        };
        written.map_err(|error| cannot(&self.path, &error))
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> LabError {
    LabError::cannot_run(
        format!("--json {}: {error}", path.display()),
        "name a writable file with --json",
    )
}
