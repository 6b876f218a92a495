//! The audit log: logins, commands, exports and refusals, one JSON object a line; the newest entries are also in memory
//! for the console.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Entries in memory.
const MAX_ENTRIES: usize = 10_000;
/// Octets of the file at which it is renamed.
const MAX_FILE: u64 = 64 << 20;
/// Octets at the end of the file that are read at the start.
const READ_BACK: u64 = 4 << 20;
/// Longest action, characters.
const MAX_ACTION: usize = 300;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct AuditEntry {
    /// Time, RFC 3339, UTC.
    pub(super) at: String,
    /// Name of the user; `-` without one.
    pub(super) user: String,
    /// Role; `-` without one.
    pub(super) role: String,
    /// Address of the client.
    pub(super) source: String,
    /// Method and path, or login.
    pub(super) action: String,
    /// Status of the response.
    pub(super) outcome: String,
    /// Values that a command accepted, `name=value`; empty for others, and for refused ones.
    #[serde(default)]
    pub(super) value: String,
}

#[derive(Default)]
struct AuditState {
    /// Newest last, each with its number.
    entries: VecDeque<(u64, AuditEntry)>,
    last: u64,
    file: Option<(PathBuf, File, u64)>,
    /// Whether the last write failed, which was reported.
    failing: bool,
}

/// The audit log.
pub(super) struct AuditLog(Mutex<AuditState>);

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

impl AuditState {
    fn keep(&mut self, entry: AuditEntry) {
        self.last += 1;
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back((self.last, entry));
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let Some((path, file, length)) = &mut self.file else {
            return Ok(());
        };
        if *length >= MAX_FILE {
            let mut old = path.clone().into_os_string();
            old.push(".1");
            std::fs::rename(&*path, old)?;
            (*file, *length) = open(path)?;
        }
        file.write_all(line.as_bytes())?;
        *length += line.len() as u64;
        Ok(())
    }
}

impl AuditLog {
    /// Opens the file, and reads the newest entries back; without file only the memory is used.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn open(path: Option<&Path>) -> io::Result<AuditLog> {
        let mut state = AuditState::default();
        if let Some(path) = path {
            let failed = |error: io::Error| {
                io::Error::other(format!(
                    "cannot write the audit log {}: {error}\n  remedy: correct `audit` in [console], or create its folder",
                    path.display()
                ))
            };
            let (mut file, length) = open(path).map_err(failed)?;
            file.seek(SeekFrom::Start(length.saturating_sub(READ_BACK)))
                .map_err(failed)?;
            for line in BufReader::new((&file).take(READ_BACK)).lines() {
                // Lines that are cut off or foreign are no entries.
                if let Ok(entry) = serde_json::from_str(&line.map_err(failed)?) {
                    state.keep(entry);
                }
            }
            state.file = Some((path.to_owned(), file, length));
        }
        Ok(AuditLog(Mutex::new(state)))
    }

    /// Adds an entry. Returns the error of the file, once until writing works again.
    pub(super) fn add(&self, mut entry: AuditEntry) -> Option<io::Error> {
        if let Some((at, _)) = entry.action.char_indices().nth(MAX_ACTION) {
            entry.action.truncate(at);
        }
        let line = serde_json::to_string(&entry).unwrap_or_default() + "\n";
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = state.append(&line);
        state.keep(entry);
        let was_failing = std::mem::replace(&mut state.failing, written.is_err());
        written.err().filter(|_| !was_failing)
    }

    /// Entries before the number `before`, newest first, at most `limit`, and the cursor of the next page.
    pub(super) fn page(&self, before: Option<u64>, limit: usize) -> (Vec<AuditEntry>, Option<u64>) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut older = state.entries.iter().rev();
        let mut page = Vec::new();
        let mut last = None;
        for (number, entry) in older.by_ref() {
            if before.is_some_and(|before| *number >= before) {
                continue;
            }
            if page.len() == limit {
                return (page, last);
            }
            page.push(entry.clone());
            last = Some(*number);
        }
        (page, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(action: &str) -> AuditEntry {
        AuditEntry {
            at: "2026-11-25T00:00:00Z".into(),
            user: "ann".into(),
            role: "operator".into(),
            source: "127.0.0.1".into(),
            action: action.into(),
            value: "level=debug".into(),
            outcome: "200".into(),
        }
    }

    #[test]
    fn entries_are_read_back_in_pages() {
        let path = std::env::temp_dir().join(format!("hornwork-audit-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let log = AuditLog::open(Some(&path)).unwrap();
        for number in 0..5 {
            assert!(log.add(entry(&format!("{number}\n\"x\""))).is_none());
        }
        drop(log);
        // A line that a crash cut off comes last.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        // An entry of an earlier version.
        file.write_all(b"{\"at\":\"2\",\"user\":\"a\",\"role\":\"admin\",\"source\":\"::1\",\"action\":\"old\",\"outcome\":\"200\"}\n").unwrap();
        file.write_all(b"{\"at\":\"2").unwrap();
        let log = AuditLog::open(Some(&path)).unwrap();
        let (first, next) = log.page(None, 1);
        assert_eq!((&*first[0].action, &*first[0].value), ("old", ""));
        let (first, next) = log.page(next, 2);
        assert_eq!(first[0].value, "level=debug");
        assert_eq!(first[0].action, "4\n\"x\"");
        let (second, next) = log.page(next, 2);
        assert_eq!(second[0].action, "2\n\"x\"");
        let (third, next) = log.page(next, 2);
        assert_eq!((third.len(), next), (1, None));
        std::fs::remove_file(&path).unwrap();
        let error = AuditLog::open(Some(Path::new("/nonexistent/audit")))
            .err()
            .unwrap();
        assert!(error.to_string().contains("`audit` in [console]"));
    }
}
