//! The store in either place: a folder or a database.

use crate::call::{CallFilter, StoredCall};
use crate::database::{DatabaseReader, DatabaseWriter};
use crate::found::{
    CallPage, LoadedMessage, MAX_JOINED_BYTES, MAX_JOINED_EVENTS, MAX_MESSAGES, StoreError,
    StoredEvent, UnreadPart,
};
use crate::joined::{CallRecord, JoinedCall, copies};
use crate::losses::Losses;
use crate::reader::FolderReader;
use crate::segment::StoredMessage;
use crate::settings::{StoreLocation, StoreNote, StoreSettings};
use crate::writer::FolderWriter;
use engine::Event;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Writes a store. One at a time writes to a folder, or as one node to a database; any number may read.
#[derive(Debug)]
pub struct HistoryWriter(Writer);

#[derive(Debug)]
enum Writer {
    Folder(Box<FolderWriter>),
    Database(Box<DatabaseWriter>),
}

/// Calls the same method of either writer.
macro_rules! writer {
    ($self:ident, $writer:ident => $call:expr) => {
        match &mut $self.0 {
            Writer::Folder($writer) => $call,
            Writer::Database($writer) => $call,
        }
    };
}

impl HistoryWriter {
    /// Opens a store, or creates it; completes it after a crash. `now`: microseconds since the Unix epoch. A database
    /// server that cannot be reached is no error: it is tried again in [`HistoryWriter::tick`].
    ///
    /// # Errors
    /// The folder cannot be created or written, the database refuses the border or its certificate is not trusted, or
    /// another program writes to the folder or as this node.
    pub fn open(settings: StoreSettings, now: i64) -> io::Result<HistoryWriter> {
        let writer = match settings.location.clone() {
            StoreLocation::Folder(folder) => {
                Writer::Folder(Box::new(FolderWriter::open(folder, settings, now)?))
            }
            StoreLocation::Database(database) => {
                Writer::Database(Box::new(DatabaseWriter::open(database, settings, now)?))
            }
        };
        Ok(HistoryWriter(writer))
    }

    /// Stores a message. `correlation`: an id that both legs of a call have in common, from a capture agent; empty:
    /// none. A message that cannot be stored is counted.
    pub fn message(&mut self, message: &StoredMessage<'_>, correlation: &[u8]) {
        writer!(self, writer => writer.message(message, correlation));
    }

    /// The first Call-ID of the call of the last message.
    pub fn correlation(&self) -> Option<&str> {
        match &self.0 {
            Writer::Folder(writer) => writer.correlation(),
            Writer::Database(writer) => writer.correlation(),
        }
    }

    /// Whether a call with this Call-ID, or correlation id of a capture agent, is in progress or has ended within about
    /// half a minute: further events about it find their call.
    pub fn knows(&self, call_id: &str) -> bool {
        match &self.0 {
            Writer::Folder(writer) => writer.knows(call_id),
            Writer::Database(writer) => writer.knows(call_id),
        }
    }

    /// Stores an event that happened at `at`, microseconds since the Unix epoch.
    pub fn event(&mut self, event: &Event, at: i64) {
        writer!(self, writer => writer.event(event, at));
    }

    /// Ends a call whose `call_ended` found no room in the queue of the store.
    pub fn lost_end(&mut self, call: u64) {
        writer!(self, writer => writer.lost_end(call));
    }

    /// Stores a number of drops since the last call for this reason.
    pub fn drops(&mut self, at: i64, reason: &'static str, count: u64) {
        writer!(self, writer => writer.drops(at, reason, count));
    }

    /// Counts of everything that is lost. The threads that fill the queue of the store add the items that found no room
    /// in it.
    pub fn losses(&self) -> Arc<Losses> {
        match &self.0 {
            Writer::Folder(writer) => writer.losses(),
            Writer::Database(writer) => writer.losses(),
        }
    }

    /// Does the work that is due; to be called about five times per second, and after each batch of messages. `now`:
    /// microseconds since the Unix epoch. It may take some seconds while a database server does not answer.
    pub fn tick(&mut self, now: i64) {
        writer!(self, writer => writer.tick(now));
    }

    /// The clock of the machine, microseconds since the Unix epoch: it may have been set since the start, which the
    /// time of the other methods does not follow. Nothing is removed for its age while that is days ahead.
    pub fn set_wall_clock(&mut self, at: i64) {
        writer!(self, writer => writer.wall_clock = at);
    }

    /// The next report.
    pub fn next_note(&mut self) -> Option<StoreNote> {
        writer!(self, writer => writer.next_note())
    }

    /// Writes all that is left, and counts the rest if that fails. Returns the losses that were not reported.
    pub fn end(self, now: i64) -> Option<StoreNote> {
        match self.0 {
            Writer::Folder(writer) => writer.end(now),
            Writer::Database(writer) => writer.end(now),
        }
    }
}

/// Searches a store.
#[derive(Debug)]
pub struct HistoryReader(Reader);

#[derive(Debug)]
enum Reader {
    Folder(FolderReader),
    Database(Box<DatabaseReader>),
}

/// Calls the same method of either reader.
macro_rules! reader {
    ($self:ident, $reader:ident => $call:expr) => {
        match &$self.0 {
            Reader::Folder($reader) => $call,
            Reader::Database($reader) => $call,
        }
    };
}

impl HistoryReader {
    /// Opens a store for reading.
    ///
    /// # Errors
    /// The folder cannot be read, or the database not reached or not read.
    pub fn open(location: &StoreLocation) -> Result<HistoryReader, StoreError> {
        Ok(HistoryReader(match location {
            StoreLocation::Folder(folder) => Reader::Folder(FolderReader::open(folder)?),
            StoreLocation::Database(database) => {
                Reader::Database(Box::new(DatabaseReader::open(database.clone())?))
            }
        }))
    }

    /// Notices partitions that have been added or removed, and connects again to a database.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn refresh(&mut self) -> Result<(), StoreError> {
        match &mut self.0 {
            Reader::Folder(reader) => reader.refresh(),
            Reader::Database(reader) => reader.refresh(),
        }
    }

    /// Parts that could not be read since the last refresh: results lack their contents.
    pub fn unread(&self) -> Vec<UnreadPart> {
        match &self.0 {
            Reader::Folder(reader) => reader.unread(),
            // A database is one part.
            Reader::Database(_) => Vec::new(),
        }
    }

    /// A page of the calls for which `filter` holds, newest first. `before`: the cursor of the page; `None`: the first
    /// page.
    ///
    /// # Errors
    /// The store cannot be read, or the search took too long.
    pub fn search(
        &self,
        filter: &CallFilter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<CallPage, StoreError> {
        reader!(self, reader => reader.search(filter, before, limit))
    }

    /// The call with this number in the store; without one, the newest one with this Call-ID. Callers choose their
    /// Call-IDs: one that looks like the number of a call must not hide that call.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn find(&self, id: &str) -> Result<Option<StoredCall>, StoreError> {
        let is_number = id.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(number) = id.parse::<i64>().ok().filter(|_| is_number)
            && let Some(call) = reader!(self, reader => reader.call(number))?
        {
            return Ok(Some(call));
        }
        let filter = CallFilter {
            call_id: Some(id.to_owned()),
            ..CallFilter::default()
        };
        Ok(self.search(&filter, None, 1)?.calls.pop())
    }

    /// The records of other nodes about the same call: those that have a Call-ID in common with it, directly or by a
    /// further record. Ascending by number, at most 16; none in a folder.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn correlated(&self, call: &StoredCall) -> Result<Vec<StoredCall>, StoreError> {
        match &self.0 {
            Reader::Folder(_) => Ok(Vec::new()),
            Reader::Database(reader) => reader.correlated(call),
        }
    }

    /// The messages of a call in order of time; at most 100,000.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn messages(&self, call: i64) -> Result<Vec<LoadedMessage>, StoreError> {
        self.first_messages(call, MAX_MESSAGES, usize::MAX)
    }

    /// The messages of several records of one call in order of time. A message from one node to another is in both
    /// records; of these two the one at the sender is returned.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn messages_of(&self, calls: &[i64]) -> Result<Vec<LoadedMessage>, StoreError> {
        let mut all = Vec::new();
        for call in calls {
            all.extend(self.messages(*call)?);
        }
        all.sort_by_key(|message| message.time);
        if calls.len() > 1 {
            let of_all: Vec<&LoadedMessage> = all.iter().collect();
            let mut copies = copies(&of_all).into_iter();
            all.retain(|_| copies.next().is_some_and(|copy| copy.is_none()));
        }
        Ok(all)
    }

    /// A call with the records of all borders that it passed, and the first `limit` of their messages, of 64 MiB about
    /// at most; 20,000 events of each record.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn joined(&self, call: StoredCall, limit: usize) -> Result<JoinedCall, StoreError> {
        let related = self.correlated(&call)?;
        let (mut records, mut room) = (Vec::new(), MAX_JOINED_BYTES);
        let mut has_more_events = false;
        for call in [call].into_iter().chain(related) {
            // One more tells whether there are more.
            let messages = self.first_messages(call.id, limit.saturating_add(1), room)?;
            let sizes = messages.iter().map(|message| message.bytes.len());
            room = room.saturating_sub(sizes.sum());
            let mut events = self.first_events(call.id, MAX_JOINED_EVENTS + 1)?;
            has_more_events |= events.len() > MAX_JOINED_EVENTS;
            events.truncate(MAX_JOINED_EVENTS);
            records.push(CallRecord {
                messages,
                events,
                call,
            });
        }
        let joined = JoinedCall::new(records, limit);
        let joined = match has_more_events {
            true => joined.events_truncated(),
            false => joined,
        };
        Ok(match room {
            0 => joined.truncated(),
            _ => joined,
        })
    }

    /// The first messages of a call in order of time, at most `limit`, and none after the first `bytes` of them.
    fn first_messages(
        &self,
        call: i64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<LoadedMessage>, StoreError> {
        reader!(self, reader => reader.first_messages(call, limit, bytes))
    }

    /// The first events of a call in order of time, at most `limit`.
    fn first_events(&self, call: i64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        reader!(self, reader => reader.first_events(call, limit))
    }

    /// The events of a call in order of time.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn events(&self, call: i64) -> Result<Vec<StoredEvent>, StoreError> {
        self.first_events(call, usize::MAX)
    }

    /// The newest events at `from` or later and before `until`, newest first, at most `limit`; those of calls included.
    /// `level`: the lowest severity, 0 error to 3 debug.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn events_between(
        &self,
        period: (i64, i64),
        level: i64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        reader!(self, reader => reader.events_between(period, level, limit))
    }

    /// Drops by reason at `from` or later and before `until`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn drops_between(
        &self,
        from: i64,
        until: i64,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        reader!(self, reader => reader.drops_between(from, until))
    }
}
