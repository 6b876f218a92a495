//! Writes messages, calls and events into the newest partition of a folder.

use crate::index::OpenCalls;
use crate::losses::{LossCounts, LossReport, Losses};
use crate::partition::{Additions, Partition};
use crate::recovery::recover;
use crate::retention::{RetentionClock, newest_change};
use crate::secure::{is_secure, reduce};
use crate::segment::{self, MAX_SEGMENT, SegmentWriter, StoredMessage};
use crate::settings::{StoreNote, StoreSettings};
use crate::text::{day_of, partition_name, partition_start};
use engine::Event;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Time between transactions, microseconds. Messages are safe before, in their segment.
const COMMIT_INTERVAL: i64 = 1_000_000;
/// Time after which messages are written to their segment, microseconds.
const FLUSH_INTERVAL: i64 = 200_000;
/// Time between attempts after a failure, microseconds.
const RETRY_INTERVAL: i64 = 2_000_000;
/// Time between checks of age and size, microseconds.
const RETENTION_INTERVAL: i64 = 10_000_000;
/// Time between sweeps of the memory, microseconds.
const SWEEP_INTERVAL: i64 = 1_000_000;
/// Parts of the maximum size that a partition may have, so that removing one frees a bounded share.
const PARTITIONS: u64 = 8;
/// Beginning of the names of partitions that are being removed.
const REMOVED: &str = "removed-";
/// Beginning of the names of partitions that could not be read.
const DAMAGED: &str = "damaged-";
/// Counts of drops that wait for the index, at most.
const MAX_DROPS: usize = 10_000;
/// Name of the file that shows whether the disk takes data again.
const PROBE: &str = "probe";
/// Bytes that the disk must take before an outage is over: those of the index and of the first messages.
const PROBE_SIZE: usize = 512 << 10;
/// Microseconds per day.
const DAY: i64 = 86_400_000_000;

/// Reason for which the newest partition cannot be continued.
enum ResumeFailure {
    /// A search holds its index: it stays in its place.
    Locked,
    /// The disk is full, which tells nothing about the partition.
    FullDisk(io::Error),
    /// Its contents.
    Damaged(String),
}

/// A failure of writing that lasts.
#[derive(Debug)]
struct Outage {
    since: i64,
    retry_at: i64,
}

/// Writes a folder. One at a time writes to a folder; any number may read it.
#[derive(Debug)]
pub(crate) struct FolderWriter {
    root: PathBuf,
    settings: StoreSettings,
    /// Its lock is held as long as it is open.
    _lock: File,
    folder: PathBuf,
    partition: Option<Partition>,
    segment: Option<SegmentWriter>,
    next_segment: u32,
    /// Day of the partition, days since 1970.
    day: i64,
    /// Bytes of its closed segments.
    closed_bytes: u64,
    index: OpenCalls,
    progress: Vec<(u32, u64)>,
    drops: Vec<(i64, &'static str, u64)>,
    reduced: Vec<u8>,
    outage: Option<Outage>,
    losses: Arc<Losses>,
    report: LossReport,
    /// Messages in the buffer of the segment that belong to no call.
    unindexed: u64,
    notes: Vec<StoreNote>,
    /// Time of the last call of [`FolderWriter::tick`]; times of messages from agents may be wrong.
    now: i64,
    committed: i64,
    flushed: i64,
    swept: i64,
    checked: i64,
    retention: RetentionClock,
    /// Time of the machine's clock; `i64::MAX`: unknown.
    pub(crate) wall_clock: i64,
}

fn sql_error(error: rusqlite::Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// Whether a file system, or the share of it that the user may have, is full.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Whether another program holds a lock on an index.
fn is_locked(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
    )
}

/// The partitions of a store, oldest first.
pub(crate) fn partitions(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.and_then(partition_start).is_some() {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Start of a partition by its name.
pub(crate) fn start_of(partition: &Path) -> i64 {
    let name = partition.file_name().and_then(|name| name.to_str());
    name.and_then(partition_start).unwrap_or(0)
}

/// Bytes of the files in a folder.
fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    // A file that is removed meanwhile counts nothing.
    let sizes = entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
    sizes.sum()
}

impl FolderWriter {
    /// Opens a store, or creates it; completes its index after a crash. `now`: microseconds since the Unix epoch. A
    /// full disk is no error, but an outage as it is later on: the border must start.
    ///
    /// # Errors
    /// The folder cannot be created or written, or another program writes to it.
    pub(crate) fn open(
        root: PathBuf,
        settings: StoreSettings,
        now: i64,
    ) -> io::Result<FolderWriter> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&root)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(root.join("lock"))?;
        if lock.try_lock().is_err() {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another program writes to it",
            ));
        }
        let losses = Arc::new(Losses::default());
        let node = settings.node.clone();
        let mut writer = FolderWriter {
            index: OpenCalls::new(settings.full_text, node, losses.clone()),
            root,
            _lock: lock,
            folder: PathBuf::new(),
            partition: None,
            segment: None,
            next_segment: 1,
            day: 0,
            closed_bytes: 0,
            progress: Vec::new(),
            drops: Vec::new(),
            reduced: Vec::new(),
            outage: None,
            report: LossReport::new(losses.clone()),
            losses,
            unindexed: 0,
            notes: Vec::new(),
            now,
            committed: now,
            flushed: now,
            swept: now,
            checked: i64::MIN / 2,
            retention: RetentionClock::default(),
            wall_clock: i64::MAX,
            settings,
        };
        // Before this run changes the files.
        let newest = partitions(&writer.root)?.pop();
        let newest =
            newest.map(|newest| newest_change(&newest).unwrap_or_else(|| start_of(&newest)));
        writer.retention = RetentionClock::in_folder(&writer.root, newest, now);
        writer.index.now = now;
        writer.remove_leftovers();
        if let Err(error) = writer.begin(now) {
            // SQLite tells a full disk in several ways.
            match writer.probe() {
                Err(full) if is_full(&full) => writer.fail(&full.to_string(), now),
                _ => return Err(error),
            }
        }
        writer.remove_old(now);
        Ok(writer)
    }

    /// Continues the newest partition, or begins one.
    fn begin(&mut self, now: i64) -> io::Result<()> {
        self.resume_newest()?;
        if self.partition.is_none() || self.day != day_of(now) {
            self.begin_partition(now)?;
        }
        self.write_index().map_err(sql_error)
    }

    /// Begins after a start with a full disk: the newest partition is completed; everything since the start belongs to
    /// one of its own.
    fn begin_late(&mut self, now: i64) -> io::Result<()> {
        let before = self.empty_index();
        let present = std::mem::replace(&mut self.index, before);
        let resumed = self.resume_newest();
        let last_id = self.index.last_id;
        self.index = present;
        self.index.last_id = self.index.last_id.max(last_id);
        self.progress.clear();
        let begun = resumed.and_then(|()| self.begin_partition(now));
        if begun.is_err()
            && let Some(partition) = self.partition.take()
        {
            partition.close();
        }
        begun
    }

    /// Continues the newest partition, if there is one and it can be continued.
    fn resume_newest(&mut self) -> io::Result<()> {
        let Some(newest) = partitions(&self.root)?.pop() else {
            return Ok(());
        };
        match self.resume(&newest) {
            Ok(()) | Err(ResumeFailure::Locked) => Ok(()),
            Err(ResumeFailure::FullDisk(error)) => Err(error),
            Err(ResumeFailure::Damaged(reason)) => self.move_aside(&newest, reason),
        }
    }

    /// An index without calls.
    fn empty_index(&self) -> OpenCalls {
        let node = self.settings.node.clone();
        let mut index = OpenCalls::new(self.settings.full_text, node, self.losses.clone());
        index.now = self.now;
        index
    }

    /// Removes partitions whose removal was interrupted.
    fn remove_leftovers(&self) {
        let Ok(entries) = std::fs::read_dir(&self.root) else {
            return;
        };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(REMOVED) {
                // Tried again at the next start.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Continues a partition, after a crash or a regular end.
    fn resume(&mut self, folder: &Path) -> Result<(), ResumeFailure> {
        let failed = |reason: String| match self.probe() {
            Err(error) if is_full(&error) => ResumeFailure::FullDisk(error),
            _ => ResumeFailure::Damaged(reason),
        };
        let opened = Partition::open(folder).map_err(|error| match is_locked(&error) {
            true => ResumeFailure::Locked,
            false => failed(error.to_string()),
        });
        let mut partition = opened?;
        let mut index = self.empty_index();
        let (recovered, progress) = recover(folder, &partition, &mut index).map_err(failed)?;
        let additions = Additions {
            index: &index,
            progress: &progress,
            drops: &[],
        };
        let written = partition.write(&additions);
        written.map_err(|error| failed(error.to_string()))?;
        let numbers = segment::numbers(folder).map_err(|error| failed(error.to_string()))?;
        self.index = index;
        self.index.written();
        if recovered.messages > 0 || recovered.interrupted > 0 {
            self.notes.push(StoreNote::Completed {
                messages: recovered.messages,
                interrupted: recovered.interrupted,
            });
        }
        self.next_segment = numbers.last().map_or(1, |last| last + 1);
        self.closed_bytes = size_of(folder);
        self.day = day_of(start_of(folder));
        self.folder = folder.to_owned();
        self.partition = Some(partition);
        Ok(())
    }

    fn move_aside(&mut self, folder: &Path, reason: String) -> io::Result<()> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let moved = self.root.join(format!("{DAMAGED}{name}"));
        std::fs::rename(folder, &moved)?;
        self.notes.push(StoreNote::Replaced {
            moved_to: moved.display().to_string(),
            reason,
        });
        Ok(())
    }

    fn begin_partition(&mut self, now: i64) -> io::Result<()> {
        // Names must ascend, also when the clock was set back.
        let newest = partitions(&self.root)?.pop();
        let start = newest.map_or(now, |newest| now.max(start_of(&newest) + 1));
        let folder = self.root.join(partition_name(start));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let opened = Partition::open(&folder).map_err(sql_error);
        let partition = match opened {
            Ok(partition) => partition,
            Err(error) => {
                let _ = std::fs::remove_dir_all(&folder);
                return Err(error);
            }
        };
        if let Some(old) = self.partition.replace(partition) {
            old.close();
        }
        self.segment = None;
        self.next_segment = 1;
        self.closed_bytes = 0;
        self.folder = folder;
        self.day = day_of(now);
        self.index.begin_partition();
        self.progress.clear();
        Ok(())
    }

    /// Maximum size of a segment.
    fn segment_size(&self) -> u64 {
        MAX_SEGMENT.min(self.settings.size / PARTITIONS / 2)
    }

    /// Stores a message. `correlation`: an id that both legs of a call have in common, from a capture agent; empty:
    /// none. A message that cannot be stored is counted.
    pub(crate) fn message(&mut self, message: &StoredMessage<'_>, correlation: &[u8]) {
        if self.outage.is_some() {
            self.lose_message();
            return;
        }
        let mut message = *message;
        let mut reduced = std::mem::take(&mut self.reduced);
        if is_secure(message.transport) && !self.settings.secure_content {
            reduce(message.bytes, &mut reduced);
            message.bytes = &reduced;
        }
        self.append(&message, correlation);
        self.reduced = reduced;
    }

    /// Counts a message that is not stored.
    fn lose_message(&mut self) {
        self.index.skip_message();
        self.losses.add_messages(1);
    }

    fn append(&mut self, message: &StoredMessage<'_>, correlation: &[u8]) {
        let limit = self.segment_size();
        let is_full = |segment: &SegmentWriter| segment.length() >= limit || segment.is_full();
        if self.segment.as_ref().is_none_or(is_full)
            && let Err(error) = self.next_segment()
        {
            self.lose_message();
            self.fail(&error.to_string(), self.now);
            return;
        }
        let Some(segment) = &mut self.segment else {
            self.lose_message();
            return;
        };
        let (number, offset) = (segment.number, segment.append(message));
        let is_due = segment.is_due();
        let is_indexed = self.index.message(message, number, offset, correlation);
        self.unindexed += u64::from(!is_indexed);
        if is_due && let Err(error) = self.flush() {
            self.fail(&error.to_string(), self.now);
        }
    }

    /// Whether a call with this Call-ID, or correlation id, is in progress or has ended just now.
    pub(crate) fn knows(&self, call_id: &str) -> bool {
        self.index.knows(call_id)
    }

    /// The first Call-ID of the call of the last message.
    pub(crate) fn correlation(&self) -> Option<&str> {
        self.index.last_call_id()
    }

    fn next_segment(&mut self) -> io::Result<()> {
        self.flush()?;
        if let Some(segment) = self.segment.take() {
            self.closed_bytes += segment.written();
            self.set_progress(segment.number, segment.written());
        }
        self.segment = Some(SegmentWriter::create(&self.folder, self.next_segment)?);
        self.next_segment += 1;
        Ok(())
    }

    fn set_progress(&mut self, number: u32, bytes: u64) {
        self.progress.retain(|(known, _)| *known != number);
        self.progress.push((number, bytes));
    }

    /// Writes buffered messages to their segment. On failure they are lost.
    fn flush(&mut self) -> io::Result<()> {
        let Some(segment) = &mut self.segment else {
            return Ok(());
        };
        let waiting = segment.waiting();
        let done = segment.flush();
        let (number, written) = (segment.number, segment.written());
        let unindexed = std::mem::take(&mut self.unindexed);
        match done {
            Ok(()) => self.losses.add_unindexed(unindexed),
            Err(_) => {
                self.losses.add_messages(waiting);
                self.index.discard(number, written as u32);
            }
        }
        self.set_progress(number, written);
        done
    }

    /// Stores an event that happened at `at`, microseconds since the Unix epoch.
    pub(crate) fn event(&mut self, event: &Event, at: i64) {
        self.index.event(event, at);
    }

    /// Ends a call whose `call_ended` was lost.
    pub(crate) fn lost_end(&mut self, call: u64) {
        self.index.lost_end(call);
    }

    /// Stores a number of drops since the last call for this reason.
    pub(crate) fn drops(&mut self, at: i64, reason: &'static str, count: u64) {
        match self.drops.len() < MAX_DROPS {
            _ if count == 0 => {}
            true => self.drops.push((at, reason, count)),
            false => self.losses.add_drops(count),
        }
    }

    /// Counts of everything that is lost.
    pub(crate) fn losses(&self) -> Arc<Losses> {
        self.losses.clone()
    }

    fn fail(&mut self, reason: &str, now: i64) {
        let retry_at = now + RETRY_INTERVAL;
        self.losses.set_failing(true);
        match &mut self.outage {
            Some(outage) => outage.retry_at = retry_at,
            None => {
                self.outage = Some(Outage {
                    since: now,
                    retry_at,
                });
                self.notes.push(StoreNote::Failed {
                    reason: reason.to_owned(),
                });
            }
        }
    }

    /// Does the work that is due; to be called about five times per second, and after each batch of messages. `now`:
    /// microseconds since the Unix epoch, by the clock of the messages and events.
    pub(crate) fn tick(&mut self, now: i64) {
        (self.now, self.index.now) = (now, now);
        let waits = |outage: &Outage| now < outage.retry_at && now >= outage.since;
        if !self.outage.as_ref().is_some_and(waits) {
            self.work(now);
        }
        self.notes.extend(self.report.due(now));
    }

    fn work(&mut self, now: i64) {
        if now - self.committed >= COMMIT_INTERVAL || now < self.committed || self.outage.is_some()
        {
            self.committed = now;
            self.flushed = now;
            self.commit(now);
        } else if now - self.flushed >= FLUSH_INTERVAL {
            self.flushed = now;
            if let Err(error) = self.flush() {
                self.fail(&error.to_string(), now);
            }
        }
        if now - self.swept >= SWEEP_INTERVAL || now < self.swept {
            self.swept = now;
            self.index.sweep(now);
        }
        if now - self.checked >= RETENTION_INTERVAL || now < self.checked {
            self.remove_old(now);
        }
    }

    fn commit(&mut self, now: i64) {
        if let Err(error) = self.write(now) {
            self.fail(&error.to_string(), now);
            return;
        }
        self.losses.set_failing(false);
        if let Some(outage) = self.outage.take() {
            let outage_s = u64::try_from((now - outage.since) / 1_000_000).unwrap_or(0);
            self.notes.push(StoreNote::Resumed { outage_s });
        }
    }

    /// Writes everything that waits, and begins a new partition if that is due.
    fn write(&mut self, now: i64) -> io::Result<()> {
        if self.outage.is_some() {
            self.probe()?;
        }
        if self.partition.is_none() {
            self.begin_late(now)?;
        }
        self.flush()?;
        self.write_index().map_err(sql_error)?;
        let open = self.segment.as_ref().map_or(0, SegmentWriter::length);
        let is_large = self.closed_bytes + open > self.settings.size / PARTITIONS;
        match is_large || self.day != day_of(now) {
            true => self.begin_partition(now),
            false => Ok(()),
        }
    }

    /// Whether the disk takes data: without this a full disk would seem to work whenever nothing waits.
    fn probe(&self) -> io::Result<()> {
        let path = self.root.join(PROBE);
        let written = std::fs::write(&path, vec![0; PROBE_SIZE]);
        let removed = std::fs::remove_file(&path);
        written.and(removed)
    }

    fn write_index(&mut self) -> rusqlite::Result<()> {
        let Some(partition) = &mut self.partition else {
            return Ok(());
        };
        let is_idle = self.index.dirty.is_empty()
            && self.index.events.is_empty()
            && self.index.new_slices.is_empty()
            && self.drops.is_empty();
        if is_idle {
            return Ok(());
        }
        partition.write(&Additions {
            index: &self.index,
            progress: &self.progress,
            drops: &self.drops,
        })?;
        self.written();
        Ok(())
    }

    /// The index has all additions.
    fn written(&mut self) {
        self.index.written();
        self.drops.clear();
        let open = self.segment.as_ref().map(|segment| segment.number);
        self.progress.retain(|(number, _)| Some(*number) == open);
    }

    /// Removes partitions that are too old, and the oldest ones while the store is too large. A thread removes the
    /// files, because that may take long.
    fn remove_old(&mut self, now: i64) {
        self.checked = now;
        let Ok(mut all) = partitions(&self.root) else {
            return;
        };
        // The newest one is being written, or will be when the disk has room.
        let Some(current) = all.pop() else {
            return;
        };
        let ends = all.iter().skip(1).map(|next| start_of(next));
        let ends: Vec<i64> = ends.chain([start_of(&current)]).collect();
        let sizes: Vec<u64> = all.iter().map(|partition| size_of(partition)).collect();
        let mut total = sizes.iter().sum::<u64>() + size_of(&current);
        let oldest = now - i64::from(self.settings.retention_days) * DAY;
        let days_ahead = self.retention.days_ahead(now, self.wall_clock);
        let mut removed = Vec::new();
        for ((partition, end), size) in all.iter().zip(ends).zip(sizes) {
            let is_old = end <= oldest;
            if let Some(days) = days_ahead.filter(|_| is_old)
                && self.retention.take_report()
            {
                self.notes.push(StoreNote::ClockAhead { days });
            }
            if !(is_old && days_ahead.is_none()) && total <= self.settings.size {
                break;
            }
            total -= size;
            let name = partition.file_name().unwrap_or_default().to_string_lossy();
            let target = self.root.join(format!("{REMOVED}{name}"));
            // A partition that cannot be renamed is tried again.
            if std::fs::rename(partition, &target).is_ok() {
                removed.push(target);
            }
        }
        if removed.is_empty() {
            return;
        }
        let remove = move || {
            for partition in removed {
                // Removed at the next start otherwise.
                let _ = std::fs::remove_dir_all(partition);
            }
        };
        // Without a thread the next start removes them.
        let _ = std::thread::Builder::new()
            .name("removal".to_owned())
            .spawn(remove);
    }

    /// The next report.
    pub(crate) fn next_note(&mut self) -> Option<StoreNote> {
        match self.notes.is_empty() {
            true => None,
            false => Some(self.notes.remove(0)),
        }
    }

    /// Writes all that is left; returns the losses that were not reported.
    pub(crate) fn end(mut self, now: i64) -> Option<StoreNote> {
        if self.write(now).is_err() {
            // Messages are in their segment, from which the next start completes the index.
            let lost = self.index.discard_waiting();
            self.losses.add(&LossCounts {
                messages: 0,
                drops: self.drops.iter().map(|(_, _, count)| count).sum(),
                ..lost
            });
        }
        if let Some(partition) = self.partition.take() {
            partition.close();
        }
        self.report.rest()
    }
}
