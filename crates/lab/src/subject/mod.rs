//! Systems under test that the test lab starts by itself, described by files in `subjects/`.

mod file;
mod ports;
mod processes;
mod program;
mod running;

pub use file::{
    AcceptedLoad, ProbeKind, ProcessSpec, StopSignal, SubjectFile, SubjectMedia, TemplateFile,
    Values,
};
pub(crate) use ports::addresses;
pub(crate) use processes::{Family, family, thread_cpu};
pub(crate) use program::{Probe, Program};
pub use running::{Placement, RunningSubject};

use crate::error::LabError;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Folder with subject files of the user, in the working directory.
pub const FOLDER: &str = "subjects";
/// Most files of a folder that are read.
const MAX_FILES: usize = 1_000;

/// Name and file of every built-in subject, in order of name.
pub const BUILT_IN: [(&str, &str); 8] = [
    (
        "asterisk",
        include_str!("../../../../subjects/asterisk.toml"),
    ),
    (
        "freeswitch",
        include_str!("../../../../subjects/freeswitch.toml"),
    ),
    (
        "hornwork",
        include_str!("../../../../subjects/hornwork.toml"),
    ),
    (
        "hornwork-anchored",
        include_str!("../../../../subjects/hornwork-anchored.toml"),
    ),
    (
        "hornwork-node",
        include_str!("../../../../subjects/hornwork-node.toml"),
    ),
    (
        "kamailio",
        include_str!("../../../../subjects/kamailio.toml"),
    ),
    (
        "rtpengine",
        include_str!("../../../../subjects/rtpengine.toml"),
    ),
    ("sipp", include_str!("../../../../subjects/sipp.toml")),
];

/// Where a subject is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectPlace {
    /// A system that runs already, at this SIP address.
    Address(SocketAddr),
    /// A subject file, started on this machine: its name or path.
    Here(String),
    /// A subject that an agent starts: its name, and the address of the agent.
    Agent(String, SocketAddr),
}

/// Reads `NAME`, `FILE`, `ADDRESS:PORT` or `NAME@ADDRESS:PORT`.
///
/// # Errors
/// An agent's address that is none.
pub fn place(text: &str) -> Result<SubjectPlace, LabError> {
    if let Ok(address) = text.parse() {
        return Ok(SubjectPlace::Address(address));
    }
    match text.split_once('@') {
        None => Ok(SubjectPlace::Here(text.to_owned())),
        Some((name, agent)) => match agent.parse() {
            Ok(agent) => Ok(SubjectPlace::Agent(name.to_owned(), agent)),
            // The path of a file may have the letter, too.
            Err(_) if text.contains('/') => Ok(SubjectPlace::Here(text.to_owned())),
            Err(_) => Err(LabError::bad_input(format!(
                "subject {text}: expected NAME@ADDRESS:PORT with the IP address of an agent"
            ))),
        },
    }
}

/// Reads every subject file of a folder, in order of name; none if the folder does not exist.
///
/// # Errors
/// If the folder cannot be read.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let cannot =
        |error: std::io::Error| LabError::bad_input(format!("{}: {error}", folder.display()));
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)?.take(MAX_FILES) {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|end| end == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A subject in a list.
#[derive(Debug)]
pub struct Listed {
    /// Its name, or the path of a file with a mistake.
    pub name: String,
    /// The file, or its mistake.
    pub file: Result<SubjectFile, LabError>,
}

/// The built-in subjects, and those of a folder, which replace built-in ones of the same name.
///
/// # Errors
/// If the folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<Listed>, LabError> {
    let mut all: Vec<Listed> = Vec::new();
    for path in files_in(folder)? {
        let file = file::read(&path);
        let name = match &file {
            Ok(file) => file.name.clone(),
            Err(_) => path.display().to_string(),
        };
        all.push(Listed { name, file });
    }
    for (name, text) in BUILT_IN {
        if !all.iter().any(|listed| listed.name == name) {
            all.push(Listed {
                name: name.to_owned(),
                file: SubjectFile::parse(name, text),
            });
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// The subject of this name among those of a folder and the built-in ones.
///
/// # Errors
/// If there is none, or its file contains a mistake.
pub fn named(name: &str, folder: &Path) -> Result<SubjectFile, LabError> {
    let listed = list(folder)?;
    let names: Vec<String> = listed.iter().map(|listed| listed.name.clone()).collect();
    if let Some(found) = listed.into_iter().find(|listed| listed.name == name) {
        return found.file;
    }
    let near = config::did_you_mean(name, names.iter().map(String::as_str))
        .map(|near| format!("did you mean {near:?}? "))
        .unwrap_or_default();
    Err(LabError::bad_input(format!(
        "no subject {name:?}; {near}subjects: {}; or a file, or ADDRESS:PORT of a system that runs",
        names.join(", ")
    )))
}

/// The subject of this name, or the file at this path.
///
/// # Errors
/// If there is none, or it contains a mistake.
pub fn find(name_or_file: &str) -> Result<SubjectFile, LabError> {
    match name_or_file.contains('/') || name_or_file.ends_with(".toml") {
        true => file::read(Path::new(name_or_file)),
        false => named(name_or_file, Path::new(FOLDER)),
    }
}

/// The file of a built-in subject, as TOML.
///
/// # Errors
/// If there is none of this name.
pub fn show(name: &str) -> Result<&'static str, LabError> {
    let found = BUILT_IN.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let names = BUILT_IN.map(|(name, _)| name).join(", ");
        LabError::bad_input(format!("no built-in subject {name:?}: {names}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_files_are_correct_and_sorted() {
        for (name, text) in BUILT_IN {
            let file = SubjectFile::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(file.name, name);
        }
        assert!(BUILT_IN.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn places_are_told_apart() {
        let address: SocketAddr = "10.0.0.1:5060".parse().unwrap();
        assert_eq!(
            place("10.0.0.1:5060").unwrap(),
            SubjectPlace::Address(address)
        );
        assert_eq!(
            place("sipp").unwrap(),
            SubjectPlace::Here("sipp".to_owned())
        );
        assert_eq!(
            place("sipp@10.0.0.1:5060").unwrap(),
            SubjectPlace::Agent("sipp".to_owned(), address)
        );
        assert!(place("sipp@here").is_err());
        let path = "./tests@home/sipp.toml";
        assert_eq!(place(path).unwrap(), SubjectPlace::Here(path.to_owned()));
        let error = find("kamailo").unwrap_err().to_string();
        assert!(error.contains("did you mean \"kamailio\"?"), "{error}");
        assert!(find("./absent.toml").is_err());
    }
}
