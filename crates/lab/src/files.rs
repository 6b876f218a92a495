//! Files of results: a full disk or a killed process leaves the earlier ones.

use crate::error::LabError;
use serde_json::Value;
use std::fs;
use std::io::{Error, ErrorKind, Write as _};
use std::path::Path;

/// The error of a file that cannot be written, with the remedy for its cause.
pub(crate) fn cannot_write(path: &Path, error: &Error) -> LabError {
    let remedy = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "the disk is full: free space, or name a directory on another disk with --out"
        }
        _ => "name a writable directory with --out",
    };
    LabError::cannot_run(format!("{}: {error}", path.display()), remedy)
}

/// Writes a file through a temporary one beside it, so that there is always the earlier or the new one.
///
/// # Errors
/// If it cannot be written; then the earlier file stays, and nothing else.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), LabError> {
    write_beside(path, bytes).map_err(|error| cannot_write(path, &error))
}

fn write_beside(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = Path::new(&name);
    let written = fs::File::create(part)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(part, path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(part);
    })
}

/// Writes JSON to a file, or to standard output for `-`.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json(path: Option<&Path>, value: &Value) -> Result<(), LabError> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| LabError::bad_input(error.to_string()))?;
    text.push('\n');
    let result = if path == Path::new("-") {
        crate::output::print(&text);
        return Ok(());
    } else if std::fs::metadata(path).is_ok_and(|known| !known.is_file()) {
        // A pipe or a device.
        std::fs::write(path, text)
    } else {
        write_beside(path, text.as_bytes())
    };
    result.map_err(|error| {
        LabError::cannot_run(
            format!("{}: {error}", path.display()),
            "name a writable file with --json",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_is_named_and_leaves_the_earlier_file() {
        let error = cannot_write(Path::new("a"), &Error::from_raw_os_error(28)).to_string();
        assert!(error.contains("the disk is full"), "{error}");
        let dir = std::env::temp_dir().join(format!("hornwork-files-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("run.json");
        replace(&path, b"one").unwrap();
        // A folder in the place of the temporary file: nothing can be written there.
        fs::create_dir(dir.join("run.json.part")).unwrap();
        let error = replace(&path, b"two").unwrap_err().to_string();
        assert!(
            error.contains("run.json") && error.contains("--out"),
            "{error}"
        );
        let error = write_json(Some(&path), &Value::Null).unwrap_err();
        assert!(error.to_string().contains("--json"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"one");
        fs::remove_dir(dir.join("run.json.part")).unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }
}
