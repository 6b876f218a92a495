//! Files of results: a full disk or a killed process leaves the earlier ones.

use crate::error::LabError;
use serde_json::Value;
use std::fs;
use std::io::{Error, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

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

/// Checks, before the work whose results they will take, that the file of `--json` and the directory of `--out` can be
/// written, and leaves nothing behind. The file may be in the directory of `--out`, which is made later.
///
/// # Errors
/// If one cannot be written, with the remedy.
pub fn check_places(json: Option<&Path>, out: Option<&Path>) -> Result<(), LabError> {
    if let Some(dir) = out {
        check_directory("--out", dir)?;
    }
    match json {
        Some(path) if path != Path::new("-") => check_file(path, out),
        _ => Ok(()),
    }
}

/// Checks that the file of `--json` is none that the command reads: it would be overwritten.
///
/// # Errors
/// If it is one.
pub fn check_apart<'a>(
    json: Option<&Path>,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), LabError> {
    let file = json.and_then(|path| fs::canonicalize(path).ok());
    let is_same = |input: &&Path| fs::canonicalize(input).is_ok_and(|input| Some(input) == file);
    match inputs.into_iter().find(is_same) {
        Some(input) if file.as_ref().is_some_and(|file| file.is_file()) => {
            Err(LabError::bad_input(format!(
                "--json {}: this command reads the file: name another one",
                input.display()
            )))
        }
        _ => Ok(()),
    }
}

/// Checks that files can be made in a directory, or in the nearest one above it that exists.
///
/// # Errors
/// If not, with the option that names it.
pub fn check_directory(option: &str, dir: &Path) -> Result<(), LabError> {
    let refused = |error: Error| refused(option, dir, &error);
    if dir.as_os_str().is_empty() {
        return Err(refused(Error::other("an empty name")));
    }
    let mut place = dir;
    loop {
        match fs::metadata(place) {
            Ok(known) if known.is_dir() => return try_directory(place).map_err(refused),
            Ok(_) => return Err(refused(Error::from(ErrorKind::NotADirectory))),
            // A link to a missing place is no directory that could be made.
            Err(error) if error.kind() == ErrorKind::NotFound && !place.is_symlink() => {
                let parent = above(place);
                if parent == place {
                    return Err(refused(error));
                }
                place = parent;
            }
            Err(error) => return Err(refused(error)),
        }
    }
}

/// The directory for a run's results.
pub(crate) fn out_dir(wanted: Option<&Path>, name: &str) -> Result<PathBuf, LabError> {
    match wanted {
        Some(dir) => Ok(dir.to_owned()),
        None => {
            let mut entropy = net::entropy().map_err(|error| {
                LabError::cannot_run(format!("getrandom: {error}"), "run it outside the sandbox")
            })?;
            let unique = format!(
                "hornwork-{}-{}-{:06x}",
                part_of_name(name),
                unix_seconds()?,
                entropy.u32() & 0xff_ffff
            );
            Ok(std::env::temp_dir().join(unique))
        }
    }
}

/// Seconds since 1970 by the clock of the machine.
pub(crate) fn unix_seconds() -> Result<u64, LabError> {
    let clock = net::Clock::new();
    let wall: SystemTime = clock.wall(clock.now());
    wall.duration_since(UNIX_EPOCH)
        .map(|since| since.as_secs())
        .map_err(|_| {
            LabError::cannot_run("the system clock is before 1970", "set the system clock")
        })
}

/// The name of an experiment as a part of a file name: a file of a user may have any name.
pub(crate) fn part_of_name(name: &str) -> String {
    let letter = |letter: char| match letter.is_alphanumeric() || "-_.".contains(letter) {
        true => letter,
        false => '-',
    };
    name.chars().take(48).map(letter).collect()
}

/// The directory of a path; that of the program for a bare name.
fn above(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

/// Writes a file into a directory, and removes it.
fn try_directory(dir: &Path) -> Result<(), Error> {
    // Processes of several containers may have the same number.
    let unique = net::entropy()?.u64();
    let path = dir.join(format!(".hornwork-{unique:016x}.part"));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)?;
    let written = file.write_all(b"\n");
    written.and(fs::remove_file(&path))
}

/// Whether a file is written in place: a pipe, a device, or the target of a link such as /dev/stdout, which has to
/// stay.
fn is_written_in_place(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|known| !known.is_file() || path.is_symlink())
}

fn check_file(path: &Path, out: Option<&Path>) -> Result<(), LabError> {
    let refused = |error: Error| refused("--json", path, &error);
    let has_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    match fs::metadata(path) {
        Ok(known) if known.is_dir() => return Err(refused(ErrorKind::IsADirectory.into())),
        // Nothing is written into a pipe or a device.
        Ok(known) if !known.is_file() => return Ok(()),
        Ok(_) if is_written_in_place(path) => {
            let opened = fs::OpenOptions::new().append(true).open(path);
            return opened.map(drop).map_err(refused);
        }
        _ if has_slash || path.file_name().is_none() => {
            return Err(refused(ErrorKind::IsADirectory.into()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = above(path);
            let is_made = || {
                let [out, parent] = [out?, parent].map(|path| std::path::absolute(path).ok());
                Some(out?.starts_with(parent?))
            };
            if !parent.exists() && is_made() == Some(true) {
                return Ok(());
            }
        }
        Err(error) => return Err(refused(error)),
    }
    let part = part_of(path);
    let tried = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&part);
    match tried {
        Ok(mut file) => {
            let written = file.write_all(b"\n");
            written.and(fs::remove_file(&part)).map_err(refused)
        }
        // It is replaced when the file is written.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && part.is_file() => Ok(()),
        Err(error) => Err(refused(error)),
    }
}

/// The error of a place that an option names.
fn refused(option: &str, path: &Path, error: &Error) -> LabError {
    let kind = match option {
        "--json" => "file",
        _ => "directory",
    };
    let name = match option.starts_with("--") {
        true => format!("name a writable {kind} with {option}"),
        // An argument, which names earlier results.
        false => "copy the results to a writable directory".to_owned(),
    };
    let remedy = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("the disk is full: free space, or {name} on another disk")
        }
        ErrorKind::NotFound if !above(path).exists() => format!(
            "make the directory {} first, or {name}",
            above(path).display()
        ),
        _ => name,
    };
    LabError::cannot_run(format!("{option} {}: {error}", path.display()), remedy)
}

/// The temporary file beside a file.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Writes a file through a temporary one beside it, so that there is always the earlier or the new one.
///
/// # Errors
/// If it cannot be written; then the earlier file stays, and nothing else.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), LabError> {
    write_beside(path, bytes).map_err(|error| cannot_write(path, &error))
}

fn write_beside(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let part = part_of(path);
    let written = fs::File::create(&part)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&part, path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&part);
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
    } else if is_written_in_place(path) {
        std::fs::write(path, text)
    } else {
        write_beside(path, text.as_bytes())
    };
    result.map_err(|error| refused("--json", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_of_a_link_is_written_and_the_link_stays() {
        let dir = std::env::temp_dir().join(format!("hornwork-links-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (target, link) = (dir.join("target.json"), dir.join("link.json"));
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        check_places(Some(&link), None).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        write_json(Some(&link), &serde_json::json!({"a": 1})).unwrap();
        assert!(link.is_symlink());
        assert!(fs::read_to_string(&target).unwrap().contains("\"a\": 1"));
        fs::remove_dir_all(&dir).unwrap();
    }

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

    #[test]
    fn input_is_not_overwritten() {
        let dir = std::env::temp_dir().join(format!("hornwork-apart-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (capture, other) = (dir.join("a.pcap"), dir.join("b.json"));
        fs::write(&capture, b"kept").unwrap();
        let check = |json: &Path| check_apart(Some(json), [other.as_path(), capture.as_path()]);
        let error = check(
            &dir.join("../")
                .join(dir.file_name().unwrap())
                .join("a.pcap"),
        );
        let error = error.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(
            error.to_string().contains("this command reads the file"),
            "{error}"
        );
        assert_eq!(check(&other), Ok(()));
        assert_eq!(check(Path::new("-")), Ok(()));
        assert_eq!(check_apart(None, [capture.as_path()]), Ok(()));
        let device = Path::new("/dev/null");
        assert_eq!(check_apart(Some(device), [device]), Ok(()));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn names_of_experiments_are_no_paths() {
        assert_eq!(part_of_name("call-rate_2.1"), "call-rate_2.1");
        assert_eq!(part_of_name("../a b\0\u{5d0}"), "..-a-b-\u{5d0}");
        assert_eq!(part_of_name(&"\u{5d0}".repeat(200)).len(), 96);
    }

    #[test]
    fn places_are_tried_before_the_work_and_left_as_they_were() {
        let dir = std::env::temp_dir().join(format!("hornwork-places-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("folder with blank")).unwrap();
        fs::write(dir.join("file"), b"kept").unwrap();
        std::os::unix::fs::symlink(dir.join("missing"), dir.join("link")).unwrap();
        let json = |name: &str| check_places(Some(&dir.join(name)), None);
        let out = |name: &str| check_places(None, Some(&dir.join(name)));
        for good in ["new.json", "file", "folder with blank/\u{5d0}.json"] {
            assert_eq!(json(good), Ok(()), "{good}");
        }
        for good in [
            "new",
            "new/deeper/still",
            "folder with blank",
            "folder with blank/",
        ] {
            assert_eq!(out(good), Ok(()), "{good}");
        }
        for wrong in [
            "no/x.json",
            "folder with blank",
            "new/",
            "file/x.json",
            "..",
        ] {
            let error = json(wrong).unwrap_err();
            let text = error.to_string();
            assert!(
                text.starts_with("--json ") && text.contains("remedy:"),
                "{text}"
            );
            assert_eq!(error.exit_code(), 3, "{text}");
        }
        let text = json("no/x.json").unwrap_err().to_string();
        let folder = dir.join("no");
        assert!(
            text.contains(&format!("make the directory {} first", folder.display())),
            "{text}"
        );
        for wrong in ["file", "file/deeper", "link", "link/deeper"] {
            let text = out(wrong).unwrap_err().to_string();
            assert!(
                text.starts_with("--out ") && text.contains("remedy:"),
                "{text}"
            );
        }
        assert!(check_places(None, Some(Path::new(""))).is_err());
        assert!(check_places(Some(Path::new("")), None).is_err());
        assert_eq!(check_places(Some(Path::new("-")), None), Ok(()));
        assert_eq!(check_places(Some(Path::new("/dev/null")), None), Ok(()));
        assert!(check_places(Some(Path::new("/proc/x.json")), None).is_err());
        // The directory of the results is made by the run.
        let later = dir.join("results/a");
        let both = |name: &str| check_places(Some(&later.join(name)), Some(&later));
        assert_eq!(both("figures.json"), Ok(()));
        assert!(both("deeper/figures.json").is_err());
        let mut left: Vec<_> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["file", "folder with blank", "link"]);
        assert_eq!(
            fs::read_dir(dir.join("folder with blank")).unwrap().count(),
            0
        );
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"kept");
        fs::remove_dir_all(&dir).unwrap();
    }
}
