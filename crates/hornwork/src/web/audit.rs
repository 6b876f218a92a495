//! The audit log: logins, commands, exports and refusals, one JSON object a line; the newest entries are also in memory
//! for the console. A thread of its own writes, because no disk may delay the console and its health.

use crate::full_disk::append_whole;
use engine::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Entries in memory.
const MAX_ENTRIES: usize = 10_000;
/// Entries about refused logins in memory: those of clients without login must not displace others.
const MAX_REFUSED: usize = 1_000;
/// Refused logins of one source that have entries, and the time; further ones are only counted.
const REFUSED_OF_SOURCE: (u64, Duration) = (10, Duration::from_secs(60));
/// Sources whose refused logins are counted.
const MAX_SOURCES: usize = 1_024;
/// Earlier files that are kept.
const OLD_FILES: usize = 9;
/// Octets of the file at which it is renamed.
const MAX_FILE: u64 = 64 << 20;
/// Role of a client without login.
pub(super) const NO_ROLE: &str = "-";
/// Octets at the end of the file that are read at the start.
const READ_BACK: u64 = 4 << 20;
/// Longest wait for an entry to be in the file; further entries then do not wait until the disk responds.
const LONGEST_WRITE: Duration = Duration::from_secs(1);
/// Entries that may wait for the disk; further ones are in memory only.
const MAX_WAITING: usize = 1_000;
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
    /// Values that a command accepted, `name=value`; empty for others, and for refused ones. For a refused login or
    /// token: `refused=N`, the number of those since the last entry of the source that have no entry.
    #[serde(default)]
    pub(super) value: String,
}

/// Refused logins of a source.
struct RefusedLogins {
    since: Time,
    /// Those with an entry since then.
    entries: u64,
    /// Those without one since the last entry.
    omitted: u64,
}

#[derive(Default)]
struct AuditState {
    /// Newest last, each with its number.
    entries: VecDeque<(u64, AuditEntry)>,
    /// As `entries`: refused logins.
    refused: VecDeque<(u64, AuditEntry)>,
    last: u64,
    sources: BTreeMap<IpAddr, RefusedLogins>,
    /// Refused logins of sources beyond those in the table, without an entry.
    of_others: u64,
    file: Option<AuditWriter>,
    /// Whether the last write failed, which was reported.
    failing: bool,
}

/// The audit log.
pub(super) struct AuditLog(Mutex<AuditState>);

fn open(path: &Path) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .open(path)?;
    let mut length = file.metadata()?.len();
    if length > 0 {
        let mut last = [0];
        file.read_exact_at(&mut last, length - 1)?;
        // After a crash: the next entry would be part of the line that was cut off.
        if last != *b"\n" {
            file.write_all(b"\n")?;
            length += 1;
        }
    }
    Ok((file, length))
}

/// Whether the path still leads to this file.
fn is_in_place(path: &Path, file: &File) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (there, own) = (std::fs::metadata(path), file.metadata());
    there.is_ok_and(|there| own.is_ok_and(|own| identity(there) == identity(own)))
}

/// Name of an earlier file.
fn old(path: &Path, number: usize) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".{number}"));
    name.into()
}

impl AuditState {
    fn keep(&mut self, entry: AuditEntry) {
        self.last += 1;
        let (entries, limit) = match entry.role == NO_ROLE {
            true => (&mut self.refused, MAX_REFUSED),
            false => (&mut self.entries, MAX_ENTRIES),
        };
        if entries.len() >= limit {
            entries.pop_front();
        }
        entries.push_back((self.last, entry));
    }

    /// Whether a refused login of this source has an entry: the number of those before without one.
    fn admit_refused(&mut self, source: IpAddr, now: Time) -> Option<u64> {
        let (most, period) = REFUSED_OF_SOURCE;
        let is_recent = |logins: &RefusedLogins| now.since(logins.since) < period;
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&source) {
            let of_others = &mut self.of_others;
            self.sources.retain(|_, logins| {
                let stays = is_recent(logins);
                *of_others += if stays { 0 } else { logins.omitted };
                stays
            });
            if self.sources.len() >= MAX_SOURCES {
                self.of_others += 1;
                return None;
            }
        }
        let logins = self.sources.entry(source).or_insert(RefusedLogins {
            since: now,
            entries: 0,
            omitted: 0,
        });
        if !is_recent(logins) {
            (logins.since, logins.entries) = (now, 0);
        }
        if logins.entries >= most {
            logins.omitted += 1;
            return None;
        }
        logins.entries += 1;
        let omitted = std::mem::take(&mut logins.omitted);
        Some(omitted + std::mem::take(&mut self.of_others))
    }

    /// Keeps the newest entries of the file.
    fn read_back(&mut self, mut file: &File, length: u64) -> io::Result<()> {
        let start = length.saturating_sub(READ_BACK);
        // From the octet before: if it ends a line, the first line is whole.
        file.seek(SeekFrom::Start(start.saturating_sub(1)))?;
        let mut lines = BufReader::new(file.take(READ_BACK + 1)).split(b'\n');
        if start > 0 {
            lines.next().transpose()?;
        }
        for line in lines {
            // Lines that are cut off, damaged or foreign are no entries.
            if let Ok(entry) = serde_json::from_slice(&line?) {
                self.keep(entry);
            }
        }
        Ok(())
    }
}

/// The file, in the thread that writes it.
struct AuditFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// Length at which it is renamed.
    limit: u64,
}

impl AuditFile {
    fn append(&mut self, line: &str) -> io::Result<()> {
        let AuditFile {
            path,
            file,
            length,
            limit,
        } = self;
        // Another program has renamed or removed it. Also, without it no earlier file may be shifted: each entry would
        // shift them once more.
        if !is_in_place(path, file) {
            (*file, *length) = open(path)?;
        }
        if *length >= *limit {
            for number in (1..OLD_FILES).rev() {
                match std::fs::rename(old(path, number), old(path, number + 1)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            std::fs::rename(path.as_path(), old(path, 1))?;
            (*file, *length) = open(path)?;
        }
        append_whole(file, *length, line)?;
        *length += line.len() as u64;
        Ok(())
    }
}

/// Hands entries to the thread that writes.
struct AuditWriter {
    lines: SyncSender<String>,
    written: Receiver<io::Result<()>>,
    /// Entries whose outcome is not known.
    pending: usize,
}

impl AuditWriter {
    /// Starts the thread. It ends with this value.
    fn start(mut file: AuditFile) -> io::Result<AuditWriter> {
        let (lines, inbox) = sync_channel::<String>(MAX_WAITING);
        let (outcomes, written) = sync_channel(MAX_WAITING + 1);
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                for line in inbox {
                    if outcomes.send(file.append(&line)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(AuditWriter {
            lines,
            written,
            pending: 0,
        })
    }

    /// Writes a line; waits only if the disk has responded to all lines before it.
    fn write(&mut self, line: String) -> io::Result<()> {
        let mut late = Ok(());
        while let Ok(outcome) = self.written.try_recv() {
            self.pending = self.pending.saturating_sub(1);
            late = late.and(outcome);
        }
        let silent = |entries: &str| {
            let seconds = LONGEST_WRITE.as_secs();
            let why = format!("its disk has not responded for {seconds} s, {entries}");
            io::Error::new(io::ErrorKind::TimedOut, why)
        };
        if self.lines.try_send(line).is_err() {
            return Err(silent("and entries are in memory only"));
        }
        self.pending += 1;
        if self.pending > 1 {
            return Err(silent("and entries wait"));
        }
        let outcome = self.written.recv_timeout(LONGEST_WRITE);
        let outcome = outcome.map_err(|_| silent("and entries wait"))?;
        self.pending = 0;
        late.and(outcome)
    }
}

impl AuditLog {
    /// Opens the file, and reads the newest entries back; without file only the memory is used. Returns also the error
    /// of reading back: the log goes on without older entries.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn open(path: Option<&Path>) -> io::Result<(AuditLog, Option<io::Error>)> {
        AuditLog::open_limited(path, MAX_FILE)
    }

    /// As [`AuditLog::open`] with another length at which the file is renamed.
    fn open_limited(path: Option<&Path>, limit: u64) -> io::Result<(AuditLog, Option<io::Error>)> {
        let mut state = AuditState::default();
        let mut unread = None;
        if let Some(path) = path {
            let failed = |error: io::Error| {
                io::Error::other(format!(
                    "cannot write the audit log {}: {error}\n  remedy: correct `audit` in [console], or create its folder",
                    path.display()
                ))
            };
            let (file, length) = open(path).map_err(failed)?;
            unread = state.read_back(&file, length).err();
            state.file = Some(AuditWriter::start(AuditFile {
                path: path.to_owned(),
                file,
                length,
                limit,
            })?);
        }
        Ok((AuditLog(Mutex::new(state)), unread))
    }

    /// Adds an entry. Returns the error of the file, once until writing works again.
    pub(super) fn add(&self, mut entry: AuditEntry) -> Option<io::Error> {
        if let Some((at, _)) = entry.action.char_indices().nth(MAX_ACTION) {
            entry.action.truncate(at);
        }
        let line = serde_json::to_string(&entry).unwrap_or_default() + "\n";
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = state.file.as_mut().map_or(Ok(()), |file| file.write(line));
        state.keep(entry);
        let was_failing = std::mem::replace(&mut state.failing, written.is_err());
        written.err().filter(|_| !was_failing)
    }

    /// Whether a refused login of this source has an entry, and the value of that entry. Clients without login must not
    /// fill the log.
    pub(super) fn admit_refused(&self, source: IpAddr, now: Time) -> Option<String> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let omitted = state.admit_refused(source, now)?;
        Some(match omitted {
            0 => String::new(),
            omitted => format!("refused={omitted}"),
        })
    }

    /// Entries before the number `before`, newest first, at most `limit`, and the cursor of the next page.
    pub(super) fn page(&self, before: Option<u64>, limit: usize) -> (Vec<AuditEntry>, Option<u64>) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut entries, mut refused) = (
            state.entries.iter().rev().peekable(),
            state.refused.iter().rev().peekable(),
        );
        let mut page = Vec::new();
        let mut last = None;
        loop {
            let number = |entry: Option<&&(u64, AuditEntry)>| entry.map_or(0, |entry| entry.0);
            let next = match number(entries.peek()) > number(refused.peek()) {
                true => entries.next(),
                false => refused.next(),
            };
            let Some((number, entry)) = next else {
                return (page, None);
            };
            if before.is_some_and(|before| *number >= before) {
                continue;
            }
            if page.len() == limit {
                return (page, last);
            }
            page.push(entry.clone());
            last = Some(*number);
        }
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

    fn scratch(name: &str) -> PathBuf {
        let path = format!("hornwork-audit-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(path);
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn entries_are_read_back_in_pages() {
        let path = scratch("pages");
        let (log, unread) = AuditLog::open(Some(&path)).unwrap();
        assert!(unread.is_none());
        for number in 0..5 {
            assert!(log.add(entry(&format!("{number}\n\"x\""))).is_none());
        }
        drop(log);
        // A line that a crash cut off comes last.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        // An entry of an earlier version.
        file.write_all(b"{\"at\":\"2\",\"user\":\"a\",\"role\":\"admin\",\"source\":\"::1\",\"action\":\"old\",\"outcome\":\"200\"}\n").unwrap();
        file.write_all(b"{\"at\":\"2").unwrap();
        let (log, unread) = AuditLog::open(Some(&path)).unwrap();
        assert!(unread.is_none());
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

    /// The part that is read back begins at any octet, also within a character.
    #[test]
    fn entries_of_any_characters_are_read_back() {
        let path = scratch("characters");
        for shift in 0..4 {
            let _ = std::fs::remove_file(&path);
            let long = AuditEntry {
                user: "\u{1f4de}".repeat(256),
                ..entry("login")
            };
            let line = serde_json::to_string(&long).unwrap() + "\n";
            let lines = 5 * (1 << 20) / line.len();
            let text = format!("{}\n{}", "x".repeat(shift), line.repeat(lines));
            std::fs::write(&path, text).unwrap();
            let (log, unread) = AuditLog::open(Some(&path)).unwrap();
            assert!(unread.is_none(), "{unread:?}");
            log.add(entry("newest"));
            let (page, _) = log.page(None, 2);
            assert_eq!((&*page[0].action, &*page[1].action), ("newest", "login"));
        }
        // Damaged octets in the middle are no entry.
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() - 100_000;
        bytes[middle] = 0xff;
        std::fs::write(&path, &bytes).unwrap();
        let (log, unread) = AuditLog::open(Some(&path)).unwrap();
        assert!(unread.is_none(), "{unread:?}");
        assert_eq!(log.page(None, 1).0[0].action, "newest");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn entry_after_a_line_that_was_cut_off_is_read_back() {
        let path = scratch("cut");
        std::fs::write(&path, b"{\"at\":\"2").unwrap();
        let (log, _) = AuditLog::open(Some(&path)).unwrap();
        log.add(entry("x"));
        drop(log);
        let (log, _) = AuditLog::open(Some(&path)).unwrap();
        assert_eq!(log.page(None, 1).0[0].action, "x");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn refused_logins_do_not_displace_entries_of_users() {
        let (log, _) = AuditLog::open(None).unwrap();
        log.add(entry("PUT /limits"));
        let refused = || AuditEntry {
            user: "x".into(),
            role: NO_ROLE.into(),
            ..entry("login")
        };
        for _ in 0..MAX_ENTRIES + 500 {
            log.add(refused());
        }
        let (mut all, mut before) = (Vec::new(), None);
        loop {
            let (page, next) = log.page(before, 300);
            all.extend(page.into_iter().map(|entry| entry.action));
            before = next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(all.len(), MAX_REFUSED + 1);
        assert_eq!(all.last().unwrap(), "PUT /limits");
        assert!(all.iter().rev().skip(1).all(|action| action == "login"));
    }

    #[test]
    fn refused_logins_of_a_source_have_few_entries() {
        let (log, _) = AuditLog::open(None).unwrap();
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let admitted =
            |source: IpAddr, second: u64| log.admit_refused(source, Time::from_secs(second));
        let first: Vec<_> = (0..100).filter_map(|_| admitted(one, 0)).collect();
        assert_eq!(first, [""; 10]);
        assert_eq!(
            admitted("192.0.2.2".parse().unwrap(), 1).as_deref(),
            Some("")
        );
        assert_eq!(admitted(one, 59), None);
        assert_eq!(admitted(one, 60).as_deref(), Some("refused=91"));
        assert_eq!(admitted(one, 61).as_deref(), Some(""));
        // The table is bounded; further sources are counted together.
        let many = (0..5_000_u32).map(|number| IpAddr::from(std::net::Ipv4Addr::from(number)));
        let many = many.filter_map(|source| admitted(source, 62)).count();
        assert!(many <= MAX_SOURCES && log.0.lock().unwrap().sources.len() <= MAX_SOURCES);
        let omitted = 5_000 - many;
        assert_eq!(admitted(one, 130), Some(format!("refused={omitted}")));
    }

    #[test]
    fn a_file_that_is_moved_or_removed_is_begun_anew() {
        let path = scratch("moved");
        // A file with an entry is full; those before it stay as they are.
        let (log, _) = AuditLog::open_limited(Some(&path), 1).unwrap();
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        log.add(entry("first"));
        let moved = scratch("moved-away");
        std::fs::rename(&path, &moved).unwrap();
        std::fs::write(old(&path, 1), "earlier").unwrap();
        assert!(log.add(entry("second")).is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(log.add(entry("third")).is_none());
        assert!(text(&path).contains("third") && !text(&path).contains("second"));
        assert!(text(&moved).contains("first") && !text(&moved).contains("second"));
        assert_eq!(text(&old(&path, 1)), "earlier");
        assert!(!old(&path, 2).exists());
        for path in [&path, &moved, &old(&path, 1)] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_disk_that_does_not_respond_delays_one_entry() {
        let path = scratch("silent");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        // A FIFO that is not read takes 64 KiB, and then keeps its writer waiting.
        let (log, _) = AuditLog::open(Some(&path)).unwrap();
        let long = || AuditEntry {
            user: "x".repeat(1_000),
            ..entry("GET /calls")
        };
        let mut all = 0;
        let failed = loop {
            all += 1;
            if let Some(error) = log.add(long()) {
                break error;
            }
            assert!(all < 200);
        };
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        // Further entries do not wait: these would take longer than the test may.
        for _ in 0..2 * MAX_WAITING {
            assert!(log.add(long()).is_none(), "the failure is told once");
        }
        let state = log.0.lock().unwrap();
        assert_eq!(state.entries.len(), all + 2 * MAX_WAITING);
        drop(state);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn earlier_files_are_kept() {
        let path = scratch("rotated");
        let (log, _) = AuditLog::open_limited(Some(&path), 1).unwrap();
        for number in 0..OLD_FILES + 2 {
            assert!(log.add(entry(&format!("action {number}"))).is_none());
        }
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert!(text(&path).contains("action 10"));
        assert!(text(&old(&path, 1)).contains("action 9"));
        assert!(text(&old(&path, OLD_FILES)).contains("action 1\""));
        assert!(!old(&path, OLD_FILES + 1).exists());
        for number in 1..=OLD_FILES {
            std::fs::remove_file(old(&path, number)).unwrap();
        }
        std::fs::remove_file(&path).unwrap();
    }
}
