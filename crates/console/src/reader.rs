//! Search in all partitions of a folder, also while a border writes to it.

use crate::call::{CallFilter, StoredCall};
use crate::found::{
    CallPage, LoadedMessage, MAX_EXAMINED, MAX_EXAMINED_TEXT, START_TOLERANCE, StoreError,
    StoredEvent, UnreadPart,
};
use crate::index::{ADDRESS_KEY, CALL_ID_KEY, CONTINUED_SLICE, key_of};
use crate::partition::{Sql, name_kind, open_for_reading};
use crate::segment::{SegmentReader, StoredMessage};
use crate::writer::{partitions, start_of};
use memchr::memmem;
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A partition that is open for reading.
#[derive(Debug)]
struct OpenPartition {
    folder: PathBuf,
    start: i64,
    connection: Connection,
}

/// Searches a folder.
#[derive(Debug)]
pub(crate) struct FolderReader {
    folder: PathBuf,
    /// Newest first.
    partitions: Vec<OpenPartition>,
    /// Names of partitions that could not be read since the last refresh, with the reason.
    unread: RefCell<BTreeMap<String, String>>,
}

/// The calls that one search has found.
struct CallSearch<'a> {
    filter: &'a CallFilter,
    /// All of them, newest first: the messages of a call that goes on are in several.
    partitions: &'a [OpenPartition],
    before: i64,
    limit: usize,
    found: BTreeMap<i64, StoredCall>,
    /// Number of those in the partition that is being searched.
    found_here: usize,
    /// Calls that were examined: a call that goes on is in several partitions, the newest of which counts.
    seen: BTreeSet<i64>,
    examined: usize,
    /// By slice of the partition that is being searched: calls with a number that begins as the wanted one.
    dialled: BTreeMap<i64, BTreeSet<i64>>,
    /// The lowest number that was examined when the search had to stop.
    stopped_at: Option<i64>,
}

impl FolderReader {
    /// Opens a store for reading.
    ///
    /// # Errors
    /// As [`FolderReader::refresh`].
    pub(crate) fn open(folder: &Path) -> Result<FolderReader, StoreError> {
        let mut reader = FolderReader {
            folder: folder.to_owned(),
            partitions: Vec::new(),
            unread: RefCell::default(),
        };
        reader.refresh()?;
        Ok(reader)
    }

    /// Opens partitions that have been added, and closes those that have been removed. A partition that cannot be
    /// opened does not hide the others: see [`FolderReader::unread`].
    ///
    /// # Errors
    /// The folder cannot be read, or none of its partitions.
    pub(crate) fn refresh(&mut self) -> Result<(), StoreError> {
        let shown = self.folder.display();
        let listed = partitions(&self.folder);
        let all = listed.map_err(|error| StoreError(format!("{shown}: {error}")))?;
        self.partitions.retain(|open| all.contains(&open.folder));
        self.unread.borrow_mut().clear();
        let mut failure = None;
        for folder in all {
            if self.partitions.iter().any(|open| open.folder == folder) {
                continue;
            }
            match open_for_reading(&folder) {
                Ok(None) => {}
                Ok(Some(connection)) => self.partitions.push(OpenPartition {
                    start: start_of(&folder),
                    folder,
                    connection,
                }),
                // It was removed meanwhile, or has just been created.
                Err(_) if !folder.join(crate::partition::INDEX_FILE).exists() => {}
                Err(error) => failure = Some(self.fail(&folder, &error)),
            }
        }
        self.partitions
            .sort_unstable_by_key(|open| std::cmp::Reverse(open.start));
        match failure {
            Some(error) if self.partitions.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Partitions that could not be read since the last refresh: results lack their contents.
    pub(crate) fn unread(&self) -> Vec<UnreadPart> {
        let unread = self.unread.borrow();
        let parts = unread.iter().map(|(name, reason)| UnreadPart {
            name: name.clone(),
            reason: reason.clone(),
        });
        parts.collect()
    }

    /// Notes that a partition cannot be read.
    fn fail(&self, folder: &Path, error: &rusqlite::Error) -> StoreError {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let mut unread = self.unread.borrow_mut();
        unread.insert(name.into_owned(), error.to_string());
        StoreError(format!("{}: {error}", folder.display()))
    }

    /// Reads partitions in this order, until `read` breaks. One that cannot be read is noted, and the others are read.
    ///
    /// # Errors
    /// None of them can be read.
    fn each<'a>(
        &'a self,
        order: impl Iterator<Item = &'a OpenPartition>,
        mut read: impl FnMut(&'a OpenPartition) -> Sql<ControlFlow<()>>,
    ) -> Result<(), StoreError> {
        let (mut any, mut failure) = (false, None);
        for partition in order {
            match read(partition) {
                Ok(ControlFlow::Continue(())) => any = true,
                Ok(ControlFlow::Break(())) => return Ok(()),
                Err(error) => failure = Some(self.fail(&partition.folder, &error)),
            }
        }
        match failure {
            Some(error) if !any => Err(error),
            _ => Ok(()),
        }
    }

    /// A page of the calls for which `filter` holds, newest first. `before`: the cursor of the page; `None`: the first
    /// page.
    ///
    /// # Errors
    /// No partition can be read.
    pub(crate) fn search(
        &self,
        filter: &CallFilter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<CallPage, StoreError> {
        let mut search = CallSearch {
            filter,
            partitions: &self.partitions,
            before: before.unwrap_or(i64::MAX),
            limit: limit.max(1),
            found: BTreeMap::new(),
            found_here: 0,
            seen: BTreeSet::new(),
            examined: 0,
            dialled: BTreeMap::new(),
            stopped_at: None,
        };
        // Those that begin after the wanted time as well: they have the ends of calls that went on.
        self.each(self.partitions.iter(), |partition| {
            search.partition(partition)?;
            Ok(match search.is_complete(partition.start) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        })?;
        Ok(search.page())
    }

    /// The call with this number in the store.
    ///
    /// # Errors
    /// No partition can be read.
    pub(crate) fn call(&self, number: i64) -> Result<Option<StoredCall>, StoreError> {
        let mut found = None;
        self.each(self.partitions.iter(), |partition| {
            found = load(&partition.connection, number)?;
            Ok(match found {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            })
        })?;
        Ok(found)
    }

    /// The first messages of a call in order of time, at most `limit`, and none after the first `bytes` of them.
    ///
    /// # Errors
    /// No partition can be read.
    pub(crate) fn first_messages(
        &self,
        call: i64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<LoadedMessage>, StoreError> {
        let (mut messages, mut size) = (Vec::new(), 0);
        if bytes == 0 {
            return Ok(messages);
        }
        self.each(self.partitions.iter().rev(), |partition| {
            each_message(partition, call, &mut |message| {
                size += message.bytes.len();
                messages.push(LoadedMessage {
                    node: String::new(),
                    time: message.time,
                    direction: message.direction,
                    transport: message.transport,
                    source: message.source,
                    destination: message.destination,
                    bytes: message.bytes.to_vec(),
                });
                messages.len() < limit && size < bytes
            })?;
            Ok(match messages.len() < limit && size < bytes {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            })
        })?;
        messages.sort_by_key(|message| message.time);
        Ok(messages)
    }

    /// The first events of a call in order of time, at most `limit`.
    ///
    /// # Errors
    /// No partition can be read.
    pub(crate) fn first_events(
        &self,
        call: i64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let mut events = Vec::new();
        self.each(self.partitions.iter().rev(), |partition| {
            let query = "SELECT at, name, fields FROM events WHERE call = ?1 ORDER BY id LIMIT ?2";
            let left = i64::try_from(limit.saturating_sub(events.len())).unwrap_or(i64::MAX);
            let values = [call, left].map(Value::Integer);
            rows(&partition.connection, query, &values, &mut events)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(events)
    }

    /// The newest events at `from` or later and before `until`, newest first, at most `limit`; those of calls included.
    /// `level`: the lowest severity, 0 error to 3 debug.
    ///
    /// # Errors
    /// No partition can be read.
    pub(crate) fn events_between(
        &self,
        (from, until): (i64, i64),
        level: i64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let mut events = Vec::new();
        self.each(self.partitions.iter(), |partition| {
            let query = "SELECT at, name, fields FROM events WHERE at >= ?1 AND at < ?2 AND level <= ?3 ORDER BY at DESC LIMIT ?4";
            let left = limit.saturating_sub(events.len());
            let values = [from, until, level, left as i64].map(Value::Integer);
            rows(&partition.connection, query, &values, &mut events)?;
            Ok(match events.len() >= limit || partition.start < from {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        })?;
        Ok(events)
    }

    /// Drops by reason at `from` or later and before `until`.
    ///
    /// # Errors
    /// No partition can be read.
    pub(crate) fn drops_between(
        &self,
        from: i64,
        until: i64,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        let mut drops = BTreeMap::new();
        self.each(self.partitions.iter(), |partition| {
            add_drops(&partition.connection, (from, until), &mut drops)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(drops)
    }
}

fn add_drops(
    connection: &Connection,
    (from, until): (i64, i64),
    drops: &mut BTreeMap<String, u64>,
) -> Sql<()> {
    let mut select = connection.prepare_cached(
        "SELECT reason, sum(count) FROM drops WHERE at >= ?1 AND at < ?2 GROUP BY reason",
    )?;
    let mut rows = select.query(params![from, until])?;
    while let Some(row) = rows.next()? {
        *drops.entry(row.get(0)?).or_default() += row.get::<_, i64>(1)?.max(0) as u64;
    }
    Ok(())
}

fn rows(
    connection: &Connection,
    query: &str,
    values: &[Value],
    events: &mut Vec<StoredEvent>,
) -> Sql<()> {
    let mut select = connection.prepare_cached(query)?;
    let mut rows = select.query(params_from_iter(values))?;
    while let Some(row) = rows.next()? {
        events.push(StoredEvent {
            at: row.get(0)?,
            name: row.get(1)?,
            fields: row.get(2)?,
        });
    }
    Ok(())
}

fn load(connection: &Connection, id: i64) -> Sql<Option<StoredCall>> {
    let mut select = connection.prepare_cached("SELECT details FROM texts WHERE id = ?1")?;
    let mut rows = select.query(params![id])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let text: String = row.get(0)?;
    // A damaged row is no call.
    Ok(serde_json::from_str(&text).ok())
}

/// Passes the messages of a call to `each` until it returns false.
fn each_message(
    partition: &OpenPartition,
    call: i64,
    each: &mut dyn FnMut(&StoredMessage<'_>) -> bool,
) -> Sql<()> {
    let mut select = partition
        .connection
        .prepare_cached("SELECT segment, offsets FROM chunks WHERE call = ?1 ORDER BY number")?;
    let mut rows = select.query(params![call])?;
    let mut open: Option<(u32, SegmentReader)> = None;
    while let Some(row) = rows.next()? {
        let number: u32 = row.get(0)?;
        let offsets: Vec<u8> = row.get(1)?;
        if open.as_ref().is_none_or(|(known, _)| *known != number) {
            // A segment that was removed meanwhile has no messages.
            let segment = SegmentReader::open(&partition.folder, number);
            open = segment.ok().map(|segment| (number, segment));
        }
        let Some((_, segment)) = &mut open else {
            continue;
        };
        for offset in offsets.chunks_exact(4) {
            let offset = u32::from_le_bytes(offset.try_into().unwrap_or_default());
            if let Ok(Some(message)) = segment.read(offset)
                && !each(&message)
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

impl CallSearch<'_> {
    fn partition(&mut self, partition: &OpenPartition) -> Sql<()> {
        self.found_here = 0;
        self.dialled.clear();
        let filter = self.filter;
        if let Some(words) = &filter.words {
            return self.words(partition, words);
        }
        if let Some(id) = &filter.call_id {
            let key = Value::Integer(key_of(CALL_ID_KEY, id.as_bytes()));
            return self.postings(partition, "keys WHERE slice = ?1 AND key = ?2", &[key]);
        }
        if let Some(number) = &filter.number {
            return self.number(partition, number);
        }
        if let Some(address) = &filter.address {
            let key = Value::Integer(key_of(ADDRESS_KEY, address.as_bytes()));
            return self.postings(partition, "keys WHERE slice = ?1 AND key = ?2", &[key]);
        }
        self.scan(partition)
    }

    fn number(&mut self, partition: &OpenPartition, number: &str) -> Sql<()> {
        match number.strip_suffix('*') {
            Some(start) => {
                // The first text after all that begin with `start`, in the order of bytes.
                let end = format!("{start}\u{10ffff}");
                let bounds = [Value::Text(start.to_owned()), Value::Text(end)];
                let from = "numbers WHERE slice = ?1 AND number >= ?2 AND number < ?3";
                self.postings(partition, from, &bounds)
            }
            None => {
                let exact = [Value::Text(number.to_owned())];
                self.postings(
                    partition,
                    "numbers WHERE slice = ?1 AND number = ?2",
                    &exact,
                )
            }
        }
    }

    /// Examines the calls of an index of keys, slice by slice from the newest one.
    fn postings(&mut self, partition: &OpenPartition, from: &str, values: &[Value]) -> Sql<()> {
        let connection = &partition.connection;
        let mut slices =
            connection.prepare_cached("SELECT slice, first FROM slices ORDER BY slice DESC")?;
        let slices = slices.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let slices: Vec<(i64, i64)> = slices.collect::<Sql<_>>()?;
        let query = format!("SELECT DISTINCT call FROM {from} ORDER BY call DESC");
        let mut select = connection.prepare_cached(&query)?;
        // First number of the slice after the current one.
        let mut end = i64::MAX;
        for (slice, first) in slices {
            let continued = slice == CONTINUED_SLICE;
            if self.is_full() {
                break;
            }
            let is_late = !continued
                && (first >= self.before
                    || self
                        .filter
                        .until
                        .is_some_and(|until| first > until + START_TOLERANCE));
            let is_early = !continued && self.filter.from.is_some_and(|from| end <= from);
            if is_early {
                continue;
            }
            end = first;
            if is_late {
                continue;
            }
            let all = [Value::Integer(slice)]
                .into_iter()
                .chain(values.iter().cloned());
            let mut rows = select.query(params_from_iter(all))?;
            while let Some(row) = rows.next()? {
                let id: i64 = row.get(0)?;
                if id < self.before && !self.examine(partition, id, None)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn words(&mut self, partition: &OpenPartition, words: &str) -> Sql<()> {
        // Each word as a string of FTS5: operators in it are text. FTS5 ends a query at NUL; control characters
        // separate words as spaces do.
        let words = words.split_whitespace();
        let query: Vec<String> = words
            .map(|word| word.replace(char::is_control, " ").replace('"', "\"\""))
            .map(|word| format!("\"{word}\""))
            .collect();
        if query.is_empty() {
            return Ok(());
        }
        let mut select = partition.connection.prepare_cached(
            "SELECT rowid FROM words WHERE words MATCH ?1 AND rowid < ?2 ORDER BY rowid DESC",
        )?;
        let mut rows = select.query(params![query.join(" "), self.end()])?;
        while let Some(row) = rows.next()? {
            if !self.examine(partition, row.get(0)?, None)? {
                break;
            }
        }
        Ok(())
    }

    /// Examines all calls in order, with conditions on the narrow table.
    fn scan(&mut self, partition: &OpenPartition) -> Sql<()> {
        let connection = &partition.connection;
        let (conditions, values) = self.conditions(connection)?;
        // CROSS JOIN fixes the order of the loops: texts are read for the calls that fulfil the conditions.
        let query = format!(
            "SELECT calls.id, texts.details FROM calls CROSS JOIN texts ON texts.id = calls.id WHERE {conditions} ORDER BY calls.id DESC"
        );
        let mut select = connection.prepare_cached(&query)?;
        let mut rows = select.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            let details: String = row.get(1)?;
            let call = serde_json::from_str(&details).ok();
            if !self.examine(partition, row.get(0)?, call)? {
                break;
            }
        }
        self.see_continued(partition)
    }

    /// Counts the calls that go on in a partition as examined, also those that its narrow table has excluded: their
    /// rows in earlier partitions have the state at the end of these.
    fn see_continued(&mut self, partition: &OpenPartition) -> Sql<()> {
        let mut select = partition
            .connection
            .prepare_cached("SELECT id FROM calls WHERE id < ?1 AND id >= ?2")?;
        let from = self.filter.from.unwrap_or(i64::MIN);
        let mut rows = select.query(params![partition.start.min(self.end()), from])?;
        while let Some(row) = rows.next()? {
            self.seen.insert(row.get(0)?);
        }
        Ok(())
    }

    /// The number below which calls are wanted. Calls may have begun shortly before the time of their number.
    fn end(&self) -> i64 {
        let until = self.filter.until.map(|until| until + START_TOLERANCE);
        until.map_or(self.before, |until| until.min(self.before))
    }

    /// Conditions on the narrow table, with their values.
    fn conditions(&self, connection: &Connection) -> Sql<(String, Vec<Value>)> {
        let filter = self.filter;
        let mut texts = vec!["calls.id < ?".to_owned()];
        let mut values = vec![Value::Integer(self.end())];
        let mut add = |condition: &str, value: Option<i64>| {
            if let Some(value) = value {
                texts.push(format!("calls.{condition}"));
                values.push(Value::Integer(value));
            }
        };
        add("id >= ?", filter.from);
        add("kind = ?", filter.kind.map(crate::call::CallKind::number));
        add(
            "state = ?",
            filter.state.map(crate::call::CallState::number),
        );
        add("status >= ?", filter.status.map(|(low, _)| low.into()));
        add("status <= ?", filter.status.map(|(_, high)| high.into()));
        add("duration_ms >= ?", filter.duration_min);
        add("duration_ms <= ?", filter.duration_max);
        add("mos >= ?", filter.mos_min.map(|mos| mos as i64));
        add("mos <= ?", filter.mos_max.map(|mos| mos as i64));
        for (column, kind, wanted) in [
            ("trunk", name_kind::TRUNK, &filter.trunk),
            ("codec", name_kind::CODEC, &filter.codec),
            ("protection", name_kind::PROTECTION, &filter.protection),
        ] {
            match wanted.as_deref() {
                None => {}
                Some("none") if kind == name_kind::PROTECTION => {
                    texts.push("calls.protection IS NULL".to_owned());
                }
                Some(wanted) => {
                    let names = named(connection, kind, wanted)?;
                    texts.push(format!("calls.{column} IN ({names})"));
                }
            }
        }
        Ok((texts.join(" AND "), values))
    }

    /// Examines a call; `false`: the search of this partition ends.
    fn examine(
        &mut self,
        partition: &OpenPartition,
        id: i64,
        call: Option<StoredCall>,
    ) -> Sql<bool> {
        let bound = match self.filter.text {
            Some(_) => MAX_EXAMINED_TEXT,
            None => MAX_EXAMINED,
        };
        self.examined += 1;
        if self.examined > bound {
            self.stopped_at = Some(self.stopped_at.map_or(id + 1, |at| at.max(id + 1)));
            return Ok(false);
        }
        if !self.seen.insert(id) {
            return Ok(true);
        }
        let call = match call {
            Some(call) => Some(call),
            None => load(&partition.connection, id)?,
        };
        let Some(call) = call.filter(|call| self.filter.holds(call)) else {
            return Ok(true);
        };
        if self.fits_number(partition, id, &call)? && self.has_text(partition, id)? {
            self.found.insert(id, call);
            self.found_here += 1;
        }
        Ok(!self.is_full())
    }

    /// Whether a number that was combined with another key is that of a user, or the number dialled, which is in the
    /// index of numbers alone.
    fn fits_number(&mut self, partition: &OpenPartition, id: i64, call: &StoredCall) -> Sql<bool> {
        let filter = self.filter;
        let Some(number) = &filter.number else {
            return Ok(true);
        };
        let by_index = filter.words.is_none() && filter.call_id.is_none();
        if by_index || CallFilter::fits_user(number, call) {
            return Ok(true);
        }
        let connection = &partition.connection;
        let mut select = connection.prepare_cached("SELECT slice FROM texts WHERE id = ?1")?;
        let slice: i64 = select.query_row(params![id], |row| row.get(0))?;
        let Some(start) = number.strip_suffix('*') else {
            let mut select = connection.prepare_cached(
                "SELECT 1 FROM numbers WHERE slice = ?1 AND number = ?2 AND call = ?3",
            )?;
            return select.exists(params![slice, number, id]);
        };
        if let Some(calls) = self.dialled.get(&slice) {
            return Ok(calls.contains(&id));
        }
        // The index is in the order of numbers: one pass for all calls of the slice.
        let end = format!("{start}\u{10ffff}");
        let mut select = connection.prepare_cached(
            "SELECT call FROM numbers WHERE slice = ?1 AND number >= ?2 AND number < ?3",
        )?;
        let calls = select.query_map(params![slice, start, end], |row| row.get(0))?;
        let calls: BTreeSet<i64> = calls.collect::<Sql<_>>()?;
        let is_dialled = calls.contains(&id);
        self.dialled.insert(slice, calls);
        Ok(is_dialled)
    }

    fn has_text(&self, partition: &OpenPartition, id: i64) -> Sql<bool> {
        let Some(text) = &self.filter.text else {
            return Ok(true);
        };
        let finder = memmem::Finder::new(text);
        let mut found = false;
        for one in self.partitions {
            if one.start > partition.start {
                continue;
            }
            let read = each_message(one, id, &mut |message| {
                found |= finder.find(message.bytes).is_some();
                !found
            });
            // Another one that cannot be read has a note of its own, if it was searched.
            if one.start == partition.start {
                read?;
            }
            // Those before have no message of the call.
            if found || one.start <= id {
                break;
            }
        }
        Ok(found)
    }

    fn is_full(&self) -> bool {
        self.found_here >= self.limit
    }

    /// Whether older partitions cannot have a call that belongs to this page.
    fn is_complete(&self, start: i64) -> bool {
        self.stopped_at.is_some()
            || self.filter.from.is_some_and(|from| start <= from)
            || self
                .found
                .iter()
                .rev()
                .nth(self.limit - 1)
                .is_some_and(|(id, _)| *id >= start)
    }

    fn page(mut self) -> CallPage {
        let mut calls = Vec::new();
        while calls.len() < self.limit
            && let Some((id, call)) = self.found.pop_last()
        {
            // Calls below the position at which the search stopped belong to the next page.
            if self.stopped_at.is_some_and(|at| id < at) {
                break;
            }
            calls.push(call);
        }
        let last = calls.last().map(|call| call.id);
        let next = match self.stopped_at {
            Some(at) if calls.len() < self.limit => Some(at),
            _ => last.filter(|_| calls.len() == self.limit),
        };
        CallPage { calls, next }
    }
}

/// The numbers of names of this kind that fit, as a list for SQL; 0 stands for names that are not listed.
fn named(connection: &Connection, kind: i64, wanted: &str) -> Sql<String> {
    let mut select = connection.prepare_cached("SELECT id, name FROM names WHERE kind = ?1")?;
    let mut rows = select.query(params![kind])?;
    let mut list = "0".to_owned();
    while let Some(row) = rows.next()? {
        let (id, name): (i64, String) = (row.get(0)?, row.get(1)?);
        let mut parts = name.split('/').chain([name.as_str()]);
        if parts.any(|part| part.eq_ignore_ascii_case(wanted)) {
            list.push_str(&format!(",{id}"));
        }
    }
    Ok(list)
}
