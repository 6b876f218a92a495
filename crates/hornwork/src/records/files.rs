//! Files of call records: appended, rotated by size and age, removed by age and total size; and the journal of running
//! calls, from which the records of calls are written that a crash cut.

use super::form;
use crate::full_disk::{append_whole, is_full};
use crate::history::clock_warning;
use crate::log::timestamp;
use config::{RecordFormat, RecordsSpec};
use console::{RetentionClock, newest_change};
use engine::record::CallRecord;
use net::Clock;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Name of the journal of running calls.
const JOURNAL: &str = "running.journal";
/// Size of the journal from which it is rewritten with the running calls alone, if that makes it half as long or
/// shorter.
const COMPACT_BYTES: u64 = 16 << 20;
/// Bytes at the end of a file of records that are searched for calls whose end is missing in the journal: more than one
/// part of a batch ([`super::CHUNK`]).
const TAIL_BYTES: u64 = 16 << 20;
/// Longest time between two removals of old files, nanoseconds: without calls no file is rotated.
const REMOVE_INTERVAL: u64 = 3_600_000_000_000;

/// A file that is appended to. A failed write leaves no part of its text.
#[derive(Debug)]
struct AppendedFile {
    path: PathBuf,
    file: File,
    length: u64,
    inode: u64,
    /// Creation, nanoseconds since 1970.
    since: u64,
}

impl AppendedFile {
    /// Opens or creates a file; an incomplete last line, the rest of a crash, is removed.
    fn open(path: &Path, header: &str, now: u64) -> io::Result<AppendedFile> {
        let mut options = OpenOptions::new();
        // Records have numbers, addresses and times of all calls; a group may collect them.
        let options = options.create(true).read(true).append(true).mode(0o640);
        let mut file = options.open(path)?;
        let metadata = file.metadata()?;
        let created = metadata.created().ok().filter(|_| metadata.len() > 0);
        let created = created.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let length = complete_length(&mut file, metadata.len())?;
        if length < metadata.len() {
            file.set_len(length)?;
        }
        let mut opened = AppendedFile {
            path: path.to_owned(),
            length,
            inode: metadata.ino(),
            since: created.map_or(now, |at| u64::try_from(at.as_nanos()).unwrap_or(now)),
            file,
        };
        if length == 0 && !header.is_empty() {
            opened.append(header)?;
        }
        Ok(opened)
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        append_whole(&self.file, self.length, text)?;
        self.length += text.len() as u64;
        Ok(())
    }

    /// Whether the path still leads to this file.
    fn is_in_place(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode)
    }
}

/// A full disk at the start is an outage as later on: the file is opened with the next record, and calls go on.
fn unless_full(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if is_full(&error) => Ok(()),
        done => done,
    }
}

/// The value unless the file has gone meanwhile: other programs collect the records.
fn unless_gone<T>(of_file: io::Result<T>) -> io::Result<Option<T>> {
    match of_file {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        of_file => of_file.map(Some),
    }
}

/// Length up to the last line feed.
fn complete_length(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    let mut block = [0u8; 4096];
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let part = block.get_mut(..(end - start) as usize).unwrap_or_default();
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// One format of the records.
#[derive(Debug)]
struct RecordFile {
    ending: &'static str,
    header: String,
    open: Option<AppendedFile>,
}

impl RecordFile {
    fn path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("cdr.{}", self.ending))
    }

    fn ready(&mut self, folder: &Path, now: u64) -> io::Result<&mut AppendedFile> {
        if self.open.as_ref().is_some_and(|file| !file.is_in_place()) {
            // Another program has renamed or removed it.
            self.open = None;
        }
        match &mut self.open {
            Some(file) => Ok(file),
            none => {
                let opened = AppendedFile::open(
                    &folder.join(format!("cdr.{}", self.ending)),
                    &self.header,
                    now,
                )?;
                Ok(none.insert(opened))
            }
        }
    }

    /// Whether the file is large or old enough to be rotated.
    fn is_due(&self, spec: &RecordsSpec, now: u64) -> bool {
        let Some(file) = &self.open else {
            return false;
        };
        let age = now.saturating_sub(file.since);
        let old = u128::from(age) >= spec.rotate_after.as_nanos();
        let filled = file.length > self.header.len() as u64;
        filled && (old || file.length >= spec.rotate_bytes)
    }

    /// Renames a file that is large or old enough; returns whether it did.
    fn rotate(&mut self, spec: &RecordsSpec, now: u64) -> io::Result<bool> {
        if !self.is_due(spec, now) {
            return Ok(false);
        }
        self.set_aside(spec, now)
    }

    /// Renames a file of an earlier version, whose lines have other columns.
    fn set_aside_other_columns(&mut self, spec: &RecordsSpec, now: u64) -> io::Result<()> {
        let Some(file) = &mut self.open else {
            return Ok(());
        };
        let mut first = vec![0; self.header.len()];
        file.file.seek(SeekFrom::Start(0))?;
        let read = file.file.read(&mut first)?;
        if first.get(..read) == Some(self.header.as_bytes()) {
            return Ok(());
        }
        self.set_aside(spec, now)?;
        self.ready(&spec.folder, now).map(drop)
    }

    /// Renames the file; returns whether there was one.
    fn set_aside(&mut self, spec: &RecordsSpec, now: u64) -> io::Result<bool> {
        let Some(file) = &self.open else {
            return Ok(false);
        };
        let date: String = timestamp(now)
            .chars()
            .filter(|c| !"-:.".contains(*c))
            .collect();
        let name = |more: &str| {
            spec.folder
                .join(format!("cdr-{date}{more}.{}", self.ending))
        };
        let target = (0..100)
            .map(|number| {
                name(&if number == 0 {
                    String::new()
                } else {
                    format!("-{number}")
                })
            })
            .find(|path| !path.exists());
        let target = target.ok_or_else(|| io::Error::other("no free name for a rotated file"))?;
        file.file.sync_data()?;
        std::fs::rename(&file.path, target)?;
        self.open = None;
        Ok(true)
    }
}

/// A part of a batch in its written forms.
#[derive(Debug, Default)]
pub(super) struct WrittenChunk {
    /// Text for each file, in the order of the files; emptied when it is written.
    texts: Vec<String>,
    /// Lines for the journal, written after the records.
    journal: String,
}

/// All files in the folder of the records.
#[derive(Debug)]
pub(super) struct RecordFolder {
    spec: RecordsSpec,
    files: Vec<RecordFile>,
    journal: AppendedFile,
    /// Whether the journal lacks entries because a write failed.
    journal_incomplete: bool,
    /// Length of the journal after it was rewritten last.
    compacted: u64,
    dirty: bool,
    /// Lines that the second file lacks since the last end of the program.
    interrupted: WrittenChunk,
    /// Time of the last removal of old files, nanoseconds since 1970; 0: none yet.
    removed_at: u64,
    retention: RetentionClock,
}

/// Microseconds of nanoseconds.
fn micros(nanos: u64) -> i64 {
    i64::try_from(nanos / 1_000).unwrap_or(i64::MAX)
}

impl RecordFolder {
    /// Opens the folder, creates it if it does not exist, and returns the records of calls that were cut.
    ///
    /// # Errors
    /// If the folder cannot be written, or another program uses it.
    pub(super) fn open(
        spec: &RecordsSpec,
        now: u64,
    ) -> io::Result<(RecordFolder, Vec<Map<String, Value>>)> {
        match DirBuilder::new().mode(0o750).create(&spec.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Before this run changes the files.
        let newest = newest_change(&spec.folder);
        let retention = RetentionClock::in_folder(&spec.folder, newest, micros(now));
        let ndjson = || RecordFile {
            ending: "ndjson",
            header: String::new(),
            open: None,
        };
        let csv = || RecordFile {
            ending: "csv",
            header: form::csv_header(),
            open: None,
        };
        let mut files = match spec.format {
            RecordFormat::Ndjson => vec![ndjson()],
            RecordFormat::Csv => vec![csv()],
            RecordFormat::Both => vec![ndjson(), csv()],
        };
        let journal = AppendedFile::open(&spec.folder.join(JOURNAL), "", now)?;
        if journal.file.try_lock().is_err() {
            return Err(io::Error::other("another program writes its records there"));
        }
        for file in &mut files {
            unless_full(file.ready(&spec.folder, now).map(drop))?;
        }
        let mut folder = RecordFolder {
            spec: spec.clone(),
            files,
            journal,
            journal_incomplete: false,
            compacted: 0,
            dirty: false,
            interrupted: WrittenChunk::default(),
            removed_at: 0,
            retention,
        };
        let cut = folder.running_before()?;
        for file in &mut folder.files {
            unless_full(file.set_aside_other_columns(spec, now))?;
        }
        Ok((folder, cut))
    }

    /// The calls of the journal that have no end, as records.
    fn running_before(&mut self) -> io::Result<Vec<Map<String, Value>>> {
        let mut running: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        let mut alive = String::new();
        self.journal.file.seek(SeekFrom::Start(0))?;
        for line in BufReader::new(&self.journal.file).split(b'\n') {
            // A line that is no JSON is the rest of a failed write, or of a power failure.
            let Ok(Value::Object(mut entry)) = serde_json::from_slice(&line?) else {
                continue;
            };
            if let Some(Value::String(at)) = entry.get("alive") {
                alive.clone_from(at);
            }
            if let Some(Value::String(id)) = entry.get("ended") {
                running.remove(id);
            }
            if let Some(Value::Object(record)) = entry.remove("running")
                && let Some(Value::String(id)) = record.get("id")
            {
                running.insert(id.clone(), record);
            }
        }
        if running.is_empty() {
            return Ok(Vec::new());
        }
        let mut written = match self.files.first() {
            Some(file) => self.written_at_the_end(file)?,
            None => BTreeMap::new(),
        };
        written.retain(|id, _| running.remove(id).is_some());
        self.interrupted = self.rest_of(&written)?;
        let mut cut: Vec<Map<String, Value>> = running.into_values().collect();
        for record in &mut cut {
            form::cut(record, &alive);
        }
        Ok(cut)
    }

    /// The last records of a file: identifiers and lines.
    fn written_at_the_end(&self, file: &RecordFile) -> io::Result<BTreeMap<String, String>> {
        let Some(mut source) = unless_gone(File::open(file.path(&self.spec.folder)))? else {
            return Ok(BTreeMap::new());
        };
        let start = source.metadata()?.len().saturating_sub(TAIL_BYTES);
        source.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let id_of = |line: &str| match file.ending {
            "csv" => line.split(',').next().map(str::to_owned),
            _ => {
                let rest = line.strip_prefix("{\"id\":\"")?;
                rest.split('"').next().map(str::to_owned)
            }
        };
        let lines = text.lines();
        Ok(lines
            .filter_map(|line| Some((id_of(line)?, line.to_owned())))
            .collect())
    }

    /// The lines of these records of the first file that the second one lacks: the program ended between both, or the
    /// disk was full.
    fn rest_of(&self, written: &BTreeMap<String, String>) -> io::Result<WrittenChunk> {
        let mut texts = vec![String::new(); self.files.len()];
        let others = self.files.iter().zip(&mut texts).skip(1);
        for (file, text) in others.filter(|_| !written.is_empty()) {
            let existing = self.written_at_the_end(file)?;
            let missing = written.iter().filter(|(id, _)| !existing.contains_key(*id));
            // With both formats, the first file has objects, and the second one rows.
            let rows = missing
                .filter_map(|(_, line)| serde_json::from_str::<Map<String, Value>>(line).ok())
                .map(|record| form::csv(&record));
            text.extend(rows);
        }
        Ok(WrittenChunk {
            texts,
            // Until the journal is rewritten, which fails on a full disk: rotated files are not searched.
            journal: written.keys().map(|id| super::ended_entry(id)).collect(),
        })
    }

    /// The lines that the second file lacks since the last end of the program, to be written once.
    pub(super) fn take_interrupted(&mut self) -> WrittenChunk {
        std::mem::take(&mut self.interrupted)
    }

    /// The written forms of records and journal lines.
    pub(super) fn prepare(&self, ended: &[Map<String, Value>], journal: String) -> WrittenChunk {
        let text = |file: &RecordFile| {
            let lines = ended.iter().map(|record| match file.ending {
                "csv" => form::csv(record),
                _ => serde_json::to_string(record).unwrap_or_default() + "\n",
            });
            lines.collect::<String>()
        };
        WrittenChunk {
            texts: self.files.iter().map(text).collect(),
            journal,
        }
    }

    /// The same of records that are complete.
    pub(super) fn prepare_records(
        &self,
        ended: &[Box<CallRecord>],
        clock: &Clock,
        journal: String,
    ) -> WrittenChunk {
        let text = |file: &RecordFile| {
            let lines = ended.iter().map(|record| match file.ending {
                "csv" => form::csv(&form::json(record, false, clock)),
                _ => form::line(record, false, clock) + "\n",
            });
            lines.collect::<String>()
        };
        WrittenChunk {
            texts: self.files.iter().map(text).collect(),
            journal,
        }
    }

    /// Writes a part of a batch: records first, then the journal. After an error it may be repeated: parts that were
    /// written are not written again.
    ///
    /// # Errors
    /// Of the file system.
    pub(super) fn write(&mut self, chunk: &mut WrittenChunk, now: u64) -> io::Result<()> {
        for (file, text) in self.files.iter_mut().zip(&mut chunk.texts) {
            if !text.is_empty() {
                file.ready(&self.spec.folder, now)?.append(text)?;
                text.clear();
                self.dirty = true;
            }
        }
        if !chunk.journal.is_empty() {
            let appended = self.journal.append(&chunk.journal);
            self.journal_incomplete |= appended.is_err();
            appended?;
            chunk.journal.clear();
            self.dirty = true;
        }
        Ok(())
    }

    /// Notes that the border runs.
    pub(super) fn heartbeat(&mut self, now: u64) -> io::Result<()> {
        self.journal
            .append(&format!("{{\"alive\":\"{}\"}}\n", timestamp(now)))
    }

    /// Rotates files, and removes old ones.
    ///
    /// # Errors
    /// Of the file system.
    pub(super) fn rotate(&mut self, now: u64) -> io::Result<()> {
        let mut rotated = false;
        if self.files.iter().any(|file| file.is_due(&self.spec, now)) {
            // The next start searches only the present files for records without their end in the journal. So the ends
            // of those in rotated files have to survive a power failure.
            self.journal.file.sync_data()?;
        }
        for file in &mut self.files {
            rotated |= file.rotate(&self.spec, now)?;
        }
        if rotated || now.saturating_sub(self.removed_at) >= REMOVE_INTERVAL {
            self.removed_at = now;
            self.remove_old(now)?;
        }
        Ok(())
    }

    /// Removes rotated files beyond the configured age and size.
    pub(super) fn remove_old(&mut self, now: u64) -> io::Result<()> {
        let mut rotated = Vec::new();
        for entry in std::fs::read_dir(&self.spec.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours =
                name.starts_with("cdr-") && [".ndjson", ".csv"].iter().any(|e| name.ends_with(e));
            let metadata = unless_gone(entry.metadata())?;
            if let Some(metadata) = metadata.filter(|metadata| ours && metadata.is_file()) {
                let modified = metadata.modified()?.duration_since(UNIX_EPOCH);
                let modified = modified.map_or(0, |at| at.as_nanos());
                rotated.push((name, entry.path(), metadata.len(), modified));
            }
        }
        rotated.sort();
        // The time is that of the machine's clock, which is not compared with itself.
        let days_ahead = self.retention.days_ahead(micros(now), i64::MAX);
        let mut total: u64 = rotated.iter().map(|(_, _, length, _)| length).sum();
        for (_, path, length, modified) in rotated {
            let age = u128::from(now).saturating_sub(modified);
            let mut old = self.spec.keep.is_some_and(|keep| age > keep.as_nanos());
            if let Some(days) = days_ahead.filter(|_| old) {
                old = false;
                if self.retention.take_report() {
                    let folder = self.spec.folder.display();
                    tracing::warn!("call records in {folder}: {}", clock_warning(days));
                }
            }
            let large = self.spec.keep_bytes.is_some_and(|most| total > most);
            if old || large {
                unless_gone(std::fs::remove_file(path))?;
                total = total.saturating_sub(length);
            }
        }
        Ok(())
    }

    /// Whether the journal should be rewritten.
    pub(super) fn needs_compaction(&self) -> bool {
        self.journal_incomplete || self.journal.length > COMPACT_BYTES.max(2 * self.compacted)
    }

    /// Rewrites the journal with these entries of running calls.
    ///
    /// # Errors
    /// Of the file system; the old journal stays.
    pub(super) fn compact(&mut self, entries: &str, now: u64) -> io::Result<()> {
        let path = self.spec.folder.join(JOURNAL);
        let fresh = self.spec.folder.join(format!("{JOURNAL}.new"));
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut journal = AppendedFile::open(&fresh, "", now)?;
        journal.file.try_lock()?;
        journal.append(&format!("{{\"alive\":\"{}\"}}\n", timestamp(now)))?;
        journal.append(entries)?;
        journal.file.sync_data()?;
        std::fs::rename(&fresh, &path)?;
        journal.path = path;
        self.compacted = journal.length;
        self.journal = journal;
        self.journal_incomplete = false;
        Ok(())
    }

    /// Passes written data to the disk, as a protection against power failures.
    ///
    /// # Errors
    /// Of the file system.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.dirty) {
            for file in self.files.iter().filter_map(|file| file.open.as_ref()) {
                file.file.sync_data()?;
            }
            self.journal.file.sync_data()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    const START: u64 = 1_700_000_000_000_000_000;

    fn scratch(name: &str) -> PathBuf {
        let name = format!("hornwork-records-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    fn spec(folder: &Path, format: RecordFormat) -> RecordsSpec {
        RecordsSpec {
            folder: folder.to_owned(),
            format,
            rotate_bytes: 1 << 20,
            rotate_after: Duration::from_secs(3_600),
            keep: Some(Duration::from_secs(86_400)),
            keep_bytes: None,
        }
    }

    fn record(id: &str) -> Map<String, Value> {
        let mut record = Map::new();
        record.insert("id".to_owned(), id.into());
        record.insert("started".to_owned(), timestamp(START).into());
        record.insert("answered".to_owned(), timestamp(START).into());
        record
    }

    fn running(id: &str) -> String {
        format!("{}\n", serde_json::json!({ "running": record(id) }))
    }

    #[test]
    fn file_with_other_columns_is_set_aside() {
        let folder = scratch("columns");
        let spec = spec(&folder, RecordFormat::Csv);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("cdr.csv"), "id,call_id\na,b\n").unwrap();
        for _ in 0..2 {
            drop(RecordFolder::open(&spec, START).unwrap());
        }
        let kept = std::fs::read_to_string(folder.join("cdr.csv")).unwrap();
        assert_eq!(kept, form::csv_header());
        let others = std::fs::read_dir(&folder).unwrap();
        let others: Vec<String> = others
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("cdr-"))
            .collect();
        assert_eq!(others.len(), 1, "{others:?}");
        let old = std::fs::read_to_string(folder.join(&others[0])).unwrap();
        assert_eq!(old, "id,call_id\na,b\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The umask may permit more: no other user of the machine reads them.
    #[test]
    fn records_are_closed_to_other_users() {
        let folder = scratch("modes");
        let spec = spec(&folder, RecordFormat::Both);
        let (mut files, _) = RecordFolder::open(&spec, START).unwrap();
        files.compact(&running("a"), START).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&folder) & 0o027, 0);
        for name in ["cdr.ndjson", "cdr.csv", JOURNAL] {
            assert_eq!(mode(&folder.join(name)) & 0o137, 0, "{name}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn calls_without_an_end_are_cut_at_the_next_start() {
        for format in [RecordFormat::Ndjson, RecordFormat::Csv] {
            let folder = scratch(&format!("cut-{format:?}"));
            let spec = spec(&folder, format);
            let (mut files, cut) = RecordFolder::open(&spec, START).unwrap();
            assert!(cut.is_empty());
            let journal = running("a") + &running("b") + &running("c") + "{\"ended\":\"a\"}\n";
            let mut chunk = files.prepare(&[record("a")], journal);
            files.write(&mut chunk, START).unwrap();
            files.heartbeat(START + 2_000_000_000).unwrap();
            // The record of b is written, but not its end in the journal.
            let mut chunk = files.prepare(&[record("b")], String::new());
            files.write(&mut chunk, START).unwrap();
            // Both files end in the middle of a line.
            files.journal.file.write_all(b"{\"ended\":\"c").unwrap();
            let name = if format == RecordFormat::Csv {
                "cdr.csv"
            } else {
                "cdr.ndjson"
            };
            let mut file = OpenOptions::new()
                .append(true)
                .open(folder.join(name))
                .unwrap();
            file.write_all(b"{\"id\":\"c\",").unwrap();
            drop(files);
            let (_files, cut) = RecordFolder::open(&spec, START).unwrap();
            let ids: Vec<&str> = cut
                .iter()
                .filter_map(|record| record["id"].as_str())
                .collect();
            assert_eq!(ids, ["c"]);
            assert_eq!(cut[0]["duration_s"], 2.0);
            assert_eq!(cut[0]["cut"], true);
            let text = std::fs::read_to_string(folder.join(name)).unwrap();
            assert!(text.ends_with('\n') && !text.contains("\"c\""), "{text}");
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }

    /// The program is killed between both files of a batch.
    #[test]
    fn a_record_in_one_of_both_files_is_written_to_the_other_one() {
        let folder = scratch("both");
        let spec = spec(&folder, RecordFormat::Both);
        let (mut files, _) = RecordFolder::open(&spec, START).unwrap();
        let mut chunk = files.prepare(&[record("a")], running("a") + &running("b"));
        files.write(&mut chunk, START).unwrap();
        let mut chunk = files.prepare(&[record("b")], String::new());
        chunk.texts[1].clear();
        files.write(&mut chunk, START).unwrap();
        drop(files);
        let (mut files, cut) = RecordFolder::open(&spec, START).unwrap();
        assert!(cut.is_empty(), "both have ended");
        let mut rest = files.take_interrupted();
        files.write(&mut rest, START).unwrap();
        drop(files);
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let rows = form::csv_header() + &form::csv(&record("a")) + &form::csv(&record("b"));
        assert_eq!(read("cdr.csv"), rows);
        assert_eq!(read("cdr.ndjson").lines().count(), 2);
        // Once only.
        let (mut files, _) = RecordFolder::open(&spec, START).unwrap();
        let rest = files.take_interrupted();
        assert!(rest.texts.iter().all(String::is_empty), "{rest:?}");
        drop(files);
        // The journal was not rewritten, and the file with the records has been rotated.
        std::fs::remove_file(folder.join("cdr.ndjson")).unwrap();
        let (_, cut) = RecordFolder::open(&spec, START).unwrap();
        assert!(cut.is_empty(), "a second record: {cut:?}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The entries of the running calls alone are longer than the size from which the journal is rewritten.
    #[test]
    fn journal_of_many_standing_calls_is_rewritten_when_it_has_doubled() {
        let folder = scratch("standing");
        let spec = spec(&folder, RecordFormat::Ndjson);
        let (mut files, _) = RecordFolder::open(&spec, START).unwrap();
        let entry = |number: u32| {
            let mut record = record(&number.to_string());
            record.insert("from".to_owned(), "x".repeat(600).into());
            format!("{}\n", serde_json::json!({ "running": record }))
        };
        let entries: String = (0..30_000).map(entry).collect();
        assert!(entries.len() as u64 > COMPACT_BYTES);
        let append = |files: &mut RecordFolder| {
            let mut chunk = files.prepare(&[], entries.clone());
            files.write(&mut chunk, START).unwrap();
        };
        append(&mut files);
        assert!(files.needs_compaction());
        files.compact(&entries, START).unwrap();
        assert!(!files.needs_compaction());
        append(&mut files);
        assert!(!files.needs_compaction());
        append(&mut files);
        assert!(files.needs_compaction());
        // Most calls have ended.
        files.compact(&entry(0), START).unwrap();
        assert!(!files.needs_compaction());
        append(&mut files);
        assert!(files.needs_compaction());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn folder_has_one_writer() {
        let folder = scratch("one");
        let spec = spec(&folder, RecordFormat::Ndjson);
        let (mut first, _) = RecordFolder::open(&spec, START).unwrap();
        assert!(RecordFolder::open(&spec, START).is_err());
        first.compact(&running("a"), START).unwrap();
        assert!(RecordFolder::open(&spec, START).is_err());
        drop(first);
        let (_, cut) = RecordFolder::open(&spec, START).unwrap();
        assert_eq!(cut.len(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn large_and_old_files_are_rotated_and_removed() {
        let folder = scratch("rotate");
        let spec = RecordsSpec {
            rotate_bytes: 1_000,
            keep_bytes: Some(5_000),
            ..spec(&folder, RecordFormat::Both)
        };
        let (mut files, _) = RecordFolder::open(&spec, START).unwrap();
        for number in 0..200 {
            let mut chunk = files.prepare(&[record(&number.to_string())], String::new());
            files.write(&mut chunk, START).unwrap();
            files.rotate(START + number).unwrap();
        }
        let names = || {
            let entries = std::fs::read_dir(&folder).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let rotated = names()
            .iter()
            .filter(|name| name.starts_with("cdr-"))
            .count();
        assert!((3..=6).contains(&rotated), "{:?}", names());
        // By age; the present files have too few lines to be rotated by size.
        let hour = 3_600_000_000_000;
        let mut chunk = files.prepare(&[record("last")], String::new());
        files.write(&mut chunk, START).unwrap();
        // The creation of the files is a time of this machine.
        let now = files.files[0].open.as_ref().unwrap().since;
        files.rotate(now + hour).unwrap();
        assert!(!folder.join("cdr.ndjson").exists());
        files.remove_old(u64::MAX / 2).unwrap();
        assert_eq!(names(), ["running.journal"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_full_disk_at_the_start_costs_no_call() {
        let folder = scratch("full");
        let spec = spec(&folder, RecordFormat::Csv);
        std::fs::create_dir(&folder).unwrap();
        // Writing there fails as on a full disk.
        std::os::unix::fs::symlink("/dev/full", folder.join("cdr.csv")).unwrap();
        let (mut files, cut) = RecordFolder::open(&spec, START).unwrap();
        assert!(cut.is_empty());
        let mut chunk = files.prepare(&[record("a")], String::new());
        let failed = files.write(&mut chunk, START).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::StorageFull);
        // The disk has room again.
        std::fs::remove_file(folder.join("cdr.csv")).unwrap();
        files.write(&mut chunk, START).unwrap();
        let text = std::fs::read_to_string(folder.join("cdr.csv")).unwrap();
        assert!(text.starts_with(&form::csv_header()), "{text}");
        assert_eq!(text.lines().count(), 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn old_files_are_removed_without_new_records() {
        let folder = scratch("keep");
        let spec = spec(&folder, RecordFormat::Ndjson);
        let (mut files, _) = RecordFolder::open(&spec, START).unwrap();
        let old = folder.join("cdr-20231101T000000000000Z.ndjson");
        let write = || std::fs::write(&old, "{}\n").unwrap();
        write();
        let now = std::fs::metadata(&old).unwrap().modified().unwrap();
        let now = now.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let day = 86_400_000_000_000;
        files.rotate(now + day / 2).unwrap();
        assert!(old.exists(), "younger than keep_days");
        files.rotate(now + 2 * day).unwrap();
        assert!(!old.exists());
        // At most hourly, as the folder may be large.
        write();
        files.rotate(now + 2 * day + 1).unwrap();
        assert!(old.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn wrong_clock_at_the_start_removes_no_file() {
        let folder = scratch("clock");
        let spec = spec(&folder, RecordFormat::Ndjson);
        std::fs::create_dir(&folder).unwrap();
        let old = folder.join("cdr-20231101T000000000000Z.ndjson");
        std::fs::write(&old, "{}\n").unwrap();
        let right = UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let day = 86_400_000_000_000;
        let wrong = right + 3_650 * day;
        for _ in 0..2 {
            let (mut files, _) = RecordFolder::open(&spec, wrong).unwrap();
            files.rotate(wrong).unwrap();
            assert!(old.exists());
        }
        // The clock was set: the age of the file is right again.
        let (mut files, _) = RecordFolder::open(&spec, wrong).unwrap();
        files.rotate(right + day / 2).unwrap();
        assert!(old.exists());
        files.rotate(right + 2 * day).unwrap();
        assert!(!old.exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_damaged_line_of_the_journal_hides_no_other_and_no_start() {
        let folder = scratch("damaged");
        let spec = spec(&folder, RecordFormat::Ndjson);
        std::fs::create_dir(&folder).unwrap();
        let mut journal = running("a").into_bytes();
        journal.extend_from_slice(b"\xff\xfe\0\n");
        journal.extend_from_slice(running("b").as_bytes());
        std::fs::write(folder.join(JOURNAL), journal).unwrap();
        let (_, cut) = RecordFolder::open(&spec, START).unwrap();
        let ids: Vec<&Value> = cut.iter().map(|record| &record["id"]).collect();
        assert_eq!(ids, ["a", "b"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn renamed_file_is_opened_again() {
        let folder = scratch("renamed");
        let spec = spec(&folder, RecordFormat::Ndjson);
        let (mut files, _) = RecordFolder::open(&spec, START).unwrap();
        std::fs::rename(folder.join("cdr.ndjson"), folder.join("moved")).unwrap();
        let mut chunk = files.prepare(&[record("a")], String::new());
        files.write(&mut chunk, START).unwrap();
        let text = std::fs::read_to_string(folder.join("cdr.ndjson")).unwrap();
        assert_eq!(text.lines().count(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
