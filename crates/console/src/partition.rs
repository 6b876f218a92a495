//! The index of a partition, in SQLite.

use crate::call::StoredCall;
use crate::index::{CallEntry, OpenCalls, PendingEvent};
use engine::EventLevel;
use rusqlite::{Connection, OpenFlags, Transaction, params};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// File name of the index in the folder of its partition.
pub(crate) const INDEX_FILE: &str = "index.db";
/// Version of the layout. Partitions of other versions are refused.
const VERSION: i64 = 1;
/// Time that a reader waits for a lock.
const BUSY: Duration = Duration::from_millis(2_000);
/// Distinct names of one partition; further ones are not indexed.
const MAX_NAMES: usize = 20_000;

/// Kinds of names.
pub(crate) mod name_kind {
    pub(crate) const TRUNK: i64 = 1;
    pub(crate) const CODEC: i64 = 2;
    pub(crate) const PROTECTION: i64 = 3;
}

/// Keys and numbers are sorted within slices of calls, because new keys then touch few pages; a search visits the
/// slices from the newest one. Narrow rows in `calls` make conditions without a key cheap.
const SCHEMA: &str = "
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
BEGIN;
CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, name TEXT NOT NULL, UNIQUE (kind, name));
CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, state INTEGER NOT NULL, status INTEGER,
  duration_ms INTEGER, mos INTEGER, trunk INTEGER, codec INTEGER, protection INTEGER);
CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, slice INTEGER NOT NULL, details TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS slices (slice INTEGER PRIMARY KEY, first INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS keys (slice INTEGER, key INTEGER, call INTEGER, PRIMARY KEY (slice, key, call)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numbers (slice INTEGER, number TEXT, call INTEGER, PRIMARY KEY (slice, number, call)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunks (call INTEGER, number INTEGER, segment INTEGER NOT NULL, offsets BLOB NOT NULL,
  PRIMARY KEY (call, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, level INTEGER NOT NULL, name TEXT NOT NULL,
  call INTEGER, fields TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_at ON events (at);
CREATE INDEX IF NOT EXISTS events_call ON events (call) WHERE call IS NOT NULL;
CREATE TABLE IF NOT EXISTS drops (at INTEGER NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS progress (segment INTEGER PRIMARY KEY, indexed INTEGER NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (text, content = '', columnsize = 0);
COMMIT;
";

/// Results of SQLite.
pub(crate) type Sql<T> = rusqlite::Result<T>;

/// The level's number in the index.
pub(crate) fn level_number(level: EventLevel) -> i64 {
    match level {
        EventLevel::Error => 0,
        EventLevel::Warn => 1,
        EventLevel::Info => 2,
        EventLevel::Debug => 3,
    }
}

/// Opens an index for reading; `None`: it is being created.
pub(crate) fn open_for_reading(partition: &Path) -> Sql<Option<Connection>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(partition.join(INDEX_FILE), flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "mmap_size", 1_i64 << 30)?;
    if version_of(&connection)? == 0 {
        return Ok(None);
    }
    check_version(&connection)?;
    Ok(Some(connection))
}

fn version_of(connection: &Connection) -> Sql<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn check_version(connection: &Connection) -> Sql<()> {
    match version_of(connection)? {
        VERSION => Ok(()),
        other => Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB),
            Some(format!(
                "layout {other} of the index is not supported, {VERSION} is"
            )),
        )),
    }
}

/// The index of the partition that is written.
#[derive(Debug)]
pub(crate) struct Partition {
    connection: Connection,
    names: HashMap<(i64, String), i64>,
    /// Number of the next chunk.
    chunk: i64,
}

/// A call without an end.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub(crate) call: StoredCall,
    pub(crate) slice: i64,
    /// Time of its last event.
    pub(crate) last_event: Option<i64>,
    /// Segment and offset of its last message.
    pub(crate) last_message: Option<(u32, u32)>,
}

/// All that one transaction adds.
#[derive(Debug)]
pub(crate) struct Additions<'a> {
    pub(crate) index: &'a OpenCalls,
    /// Segments and the bytes of them that are indexed.
    pub(crate) progress: &'a [(u32, u64)],
    /// Time and drops by reason since the last transaction.
    pub(crate) drops: &'a [(i64, &'static str, u64)],
}

impl Partition {
    /// Opens or creates the index in the folder of a partition.
    pub(crate) fn open(folder: &Path) -> Sql<Partition> {
        let connection = Connection::open(folder.join(INDEX_FILE))?;
        connection.busy_timeout(BUSY)?;
        let version = version_of(&connection)?;
        connection.pragma_update(None, "cache_size", -32_768)?;
        connection.pragma_update(None, "wal_autocheckpoint", 4_000)?;
        if version == 0 {
            connection.execute_batch(SCHEMA)?;
            connection.pragma_update(None, "user_version", VERSION)?;
        } else {
            check_version(&connection)?;
            connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")?;
        }
        connection.set_prepared_statement_cache_capacity(32);
        let mut names = HashMap::default();
        let chunk = {
            let mut select = connection.prepare("SELECT kind, name, id FROM names")?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                names.insert((row.get(0)?, row.get(1)?), row.get(2)?);
            }
            connection.query_row(
                "SELECT coalesce(max(number), 0) + 1 FROM chunks",
                [],
                |row| row.get(0),
            )?
        };
        Ok(Partition {
            connection,
            names,
            chunk,
        })
    }

    /// Bytes of each segment that are indexed.
    pub(crate) fn progress(&self) -> Sql<HashMap<u32, u64>> {
        let mut select = self
            .connection
            .prepare("SELECT segment, indexed FROM progress")?;
        let rows = select.query_map([], |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)?.max(0) as u64))
        })?;
        rows.collect()
    }

    /// The last slice, and the last number of a call.
    pub(crate) fn last(&self) -> Sql<(i64, i64)> {
        self.connection.query_row(
            "SELECT (SELECT coalesce(max(slice), 0) FROM slices), (SELECT coalesce(max(id), 0) FROM calls)",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
    }

    /// Calls that have not ended.
    pub(crate) fn open_calls(&self) -> Sql<Vec<OpenCall>> {
        let mut select = self.connection.prepare(
            "SELECT texts.details, texts.slice, (SELECT max(at) FROM events WHERE events.call = calls.id) FROM calls JOIN texts USING (id)
  WHERE calls.state < 2",
        )?;
        let mut last_chunk = self.connection.prepare(
            "SELECT segment, offsets FROM chunks WHERE call = ?1 ORDER BY number DESC LIMIT 1",
        )?;
        let mut rows = select.query([])?;
        let mut calls = Vec::new();
        while let Some(row) = rows.next()? {
            let text: String = row.get(0)?;
            // A row that cannot be read is not restored.
            let Ok(call) = serde_json::from_str::<StoredCall>(&text) else {
                continue;
            };
            let mut chunk = last_chunk.query([call.id])?;
            let last_message = match chunk.next()? {
                Some(chunk) => {
                    let offsets: Vec<u8> = chunk.get(1)?;
                    let last = offsets.last_chunk::<4>();
                    let segment: u32 = chunk.get(0)?;
                    last.map(|bytes| (segment, u32::from_le_bytes(*bytes)))
                }
                None => None,
            };
            calls.push(OpenCall {
                call,
                slice: row.get(1)?,
                last_event: row.get(2)?,
                last_message,
            });
        }
        Ok(calls)
    }

    /// Writes all additions in one transaction. On failure nothing is written.
    pub(crate) fn write(&mut self, additions: &Additions<'_>) -> Sql<()> {
        let known = self.names.len();
        let transaction = self.connection.transaction()?;
        let mut transfer = IndexTransaction {
            transaction: &transaction,
            names: &mut self.names,
            chunk: self.chunk,
        };
        let done = transfer.all(additions);
        let chunk = transfer.chunk;
        let done = done.and_then(|()| transaction.commit());
        match done {
            Ok(()) => self.chunk = chunk,
            // Names of the transaction that failed are unknown again.
            Err(_) if self.names.len() != known => {
                self.names.clear();
                let mut select = self
                    .connection
                    .prepare("SELECT kind, name, id FROM names")?;
                let mut rows = select.query([])?;
                while let Some(row) = rows.next()? {
                    self.names.insert((row.get(0)?, row.get(1)?), row.get(2)?);
                }
            }
            Err(_) => {}
        }
        done
    }

    /// Ends writing: the index becomes one file that needs no write access for reading.
    pub(crate) fn close(self) {
        // With readers the write-ahead log stays, which is read as well.
        let _ = self
            .connection
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE;");
    }
}

/// The statements of one transaction.
struct IndexTransaction<'a> {
    transaction: &'a Transaction<'a>,
    names: &'a mut HashMap<(i64, String), i64>,
    chunk: i64,
}

impl IndexTransaction<'_> {
    fn all(&mut self, additions: &Additions<'_>) -> Sql<()> {
        let index = additions.index;
        for &(slice, first) in &index.new_slices {
            let mut insert = self
                .transaction
                .prepare_cached("INSERT OR REPLACE INTO slices VALUES (?1, ?2)")?;
            insert.execute(params![slice, first])?;
        }
        for entry in index.dirty.iter().filter_map(|at| index.entries.get(*at)) {
            self.call(entry)?;
        }
        self.events(&index.events)?;
        for &(at, reason, count) in additions.drops {
            let mut insert = self
                .transaction
                .prepare_cached("INSERT INTO drops VALUES (?1, ?2, ?3)")?;
            insert.execute(params![at, reason, count as i64])?;
        }
        for &(segment, indexed) in additions.progress {
            let mut insert = self
                .transaction
                .prepare_cached("INSERT OR REPLACE INTO progress VALUES (?1, ?2)")?;
            insert.execute(params![segment, indexed as i64])?;
        }
        Ok(())
    }

    /// The number of a name; 0 if there are too many.
    fn name(&mut self, kind: i64, name: &str) -> Sql<Option<i64>> {
        if name.is_empty() {
            return Ok(None);
        }
        let key = (kind, name.to_owned());
        if let Some(&id) = self.names.get(&key) {
            return Ok(Some(id));
        }
        if self.names.len() >= MAX_NAMES {
            return Ok(Some(0));
        }
        let mut insert = self
            .transaction
            .prepare_cached("INSERT INTO names (kind, name) VALUES (?1, ?2)")?;
        insert.execute(params![kind, name])?;
        let id = self.transaction.last_insert_rowid();
        self.names.insert(key, id);
        Ok(Some(id))
    }

    fn call(&mut self, entry: &CallEntry) -> Sql<()> {
        let call = &entry.call;
        let details = serde_json::to_string(call)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        let trunk = self.name(name_kind::TRUNK, &call.trunk)?;
        let codec = self.name(name_kind::CODEC, &call.codec)?;
        let protection = self.name(name_kind::PROTECTION, &call.protection)?;
        let transaction = self.transaction;
        let values = params![
            call.id,
            call.kind.number(),
            call.state.number(),
            call.status,
            call.duration_ms(),
            call.mos().map(|mos| mos as i64),
            trunk,
            codec,
            protection,
        ];
        if entry.inserted {
            let mut update = transaction.prepare_cached(
                "UPDATE calls SET kind = ?2, state = ?3, status = ?4, duration_ms = ?5, mos = ?6, trunk = ?7, codec = ?8, protection = ?9 WHERE id = ?1",
            )?;
            update.execute(values)?;
            let mut update =
                transaction.prepare_cached("UPDATE texts SET details = ?2 WHERE id = ?1")?;
            update.execute(params![call.id, details])?;
        } else {
            let mut insert = transaction.prepare_cached(
                "INSERT OR REPLACE INTO calls VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?;
            insert.execute(values)?;
            let mut insert =
                transaction.prepare_cached("INSERT OR REPLACE INTO texts VALUES (?1, ?2, ?3)")?;
            insert.execute(params![call.id, entry.slice, details])?;
        }
        for key in entry.keys.iter().skip(entry.keys_written) {
            let mut insert =
                transaction.prepare_cached("INSERT OR IGNORE INTO keys VALUES (?1, ?2, ?3)")?;
            insert.execute(params![entry.slice, key, call.id])?;
        }
        for number in entry.numbers.iter().skip(entry.numbers_written) {
            let mut insert =
                transaction.prepare_cached("INSERT OR IGNORE INTO numbers VALUES (?1, ?2, ?3)")?;
            insert.execute(params![entry.slice, number, call.id])?;
        }
        for (segment, offsets) in &entry.chunks {
            let bytes: Vec<u8> = offsets.iter().flat_map(|at| at.to_le_bytes()).collect();
            let mut insert =
                transaction.prepare_cached("INSERT INTO chunks VALUES (?1, ?2, ?3, ?4)")?;
            insert.execute(params![call.id, self.chunk, segment, bytes])?;
            self.chunk += 1;
        }
        if let Some(words) = entry.due_words() {
            let mut insert =
                transaction.prepare_cached("INSERT INTO words (rowid, text) VALUES (?1, ?2)")?;
            insert.execute(params![call.id, words])?;
        }
        Ok(())
    }

    fn events(&mut self, events: &[PendingEvent]) -> Sql<()> {
        let mut insert = self.transaction.prepare_cached(
            "INSERT INTO events (at, level, name, call, fields) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for event in events {
            let level = level_number(event.level);
            insert.execute(params![
                event.at,
                level,
                event.name,
                event.call,
                event.fields
            ])?;
        }
        Ok(())
    }
}
