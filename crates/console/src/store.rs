//! The store in either place: a folder or a database.

use crate::call::{CallFilter, StoredCall};
use crate::database::{DatabaseReader, DatabaseWriter};
use crate::found::{CallPage, LoadedMessage, MAX_MESSAGES, StoreError, StoredEvent};
use crate::losses::Losses;
use crate::reader::FolderReader;
use crate::segment::{StoredDirection, StoredMessage};
use crate::settings::{StoreLocation, StoreNote, StoreSettings};
use crate::writer::FolderWriter;
use engine::Event;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Time within which the copies of a message at its sender and at its receiver are one message, nanoseconds.
const SAME_MESSAGE: u64 = 2_000_000_000;

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

    /// Stores an event that happened at `at`, microseconds since the Unix epoch.
    pub fn event(&mut self, event: &Event, at: i64) {
        writer!(self, writer => writer.event(event, at));
    }

    /// Stores a number of drops since the last call for this reason.
    pub fn drops(&mut self, at: i64, reason: &'static str, count: u64) {
        writer!(self, writer => writer.drops(at, reason, count));
    }

    /// Counts of everything that is lost. The threads that fill the queue of the store add the items that found no room in it.
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

    /// The call with this number in the store, or the newest one with this Call-ID.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn find(&self, id: &str) -> Result<Option<StoredCall>, StoreError> {
        let filter = CallFilter {
            call_id: Some(id.to_owned()),
            ..CallFilter::default()
        };
        if let Some(call) = self.search(&filter, None, 1)?.calls.pop() {
            return Ok(Some(call));
        }
        let Ok(number) = id.parse::<i64>() else {
            return Ok(None);
        };
        reader!(self, reader => reader.call(number))
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
        self.first_messages(call, MAX_MESSAGES)
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
        Ok(match calls {
            [_, _, ..] => without_copies(all),
            _ => all,
        })
    }

    /// The first messages of a call in order of time, at most `limit`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn first_messages(
        &self,
        call: i64,
        limit: usize,
    ) -> Result<Vec<LoadedMessage>, StoreError> {
        reader!(self, reader => reader.first_messages(call, limit))
    }

    /// The events of a call in order of time.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn events(&self, call: i64) -> Result<Vec<StoredEvent>, StoreError> {
        reader!(self, reader => reader.events(call))
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

/// Removes received messages that another node recorded as sent; each sent one stands for one received one. Clocks may
/// differ, so that the copy at the receiver may be the earlier one.
fn without_copies(all: Vec<LoadedMessage>) -> Vec<LoadedMessage> {
    let mut sent: BTreeMap<(SocketAddr, &[u8]), Vec<&LoadedMessage>> = BTreeMap::new();
    for message in &all {
        if message.direction == StoredDirection::Sent {
            let key = (message.destination, &*message.bytes);
            sent.entry(key).or_default().push(message);
        }
    }
    let keeps = all.iter().map(|message| {
        let is_received = message.direction == StoredDirection::Received;
        let copies = sent.get_mut(&(message.destination, &*message.bytes));
        let Some(copies) = copies.filter(|_| is_received) else {
            return true;
        };
        let copy = copies.iter().position(|other| {
            other.node != message.node && message.time.abs_diff(other.time) <= SAME_MESSAGE
        });
        copy.map(|at| copies.remove(at)).is_none()
    });
    let keeps: Vec<bool> = keeps.collect();
    let kept = all.into_iter().zip(keeps);
    kept.filter_map(|(message, keeps)| keeps.then_some(message))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Transport;

    fn message(node: &str, time: u64, direction: StoredDirection, bytes: &[u8]) -> LoadedMessage {
        LoadedMessage {
            node: node.into(),
            time,
            direction,
            transport: Transport::Udp,
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5060".parse().unwrap(),
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn a_message_between_nodes_is_one() {
        use StoredDirection::{Received, Sent};
        let all = vec![
            message("a", 1, Sent, b"INVITE"),
            message("b", 2, Received, b"INVITE"),
            // A retransmission of which the second copy was lost, and one that arrived twice.
            message("a", 3, Sent, b"INVITE"),
            message("b", 4, Received, b"BYE"),
            message("b", SAME_MESSAGE + 10, Received, b"INVITE"),
        ];
        let times: Vec<u64> = without_copies(all).iter().map(|one| one.time).collect();
        assert_eq!(times, [1, 3, 4, SAME_MESSAGE + 10]);
    }
}
