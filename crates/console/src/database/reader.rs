//! Search in the database, with the same results as in a folder.

use super::connection::{Connection, DatabaseError};
use super::{call_number, first_number, layout, node_of, without_nul, words};
use crate::call::{CallFilter, StoredCall};
use crate::found::{
    CallPage, LoadedMessage, MAX_EXAMINED, MAX_EXAMINED_TEXT, START_TOLERANCE, StoreError,
    StoredEvent,
};
use crate::index::{ADDRESS_KEY, CALL_ID_KEY, key_of};
use crate::segment::{StoredDirection, TRANSPORTS};
use crate::settings::DatabaseSettings;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

/// Time limit of a search; the server ends the statement somewhat earlier.
const READ_LIMIT: Duration = Duration::from_secs(18);
/// Settings of the session: nothing can be changed with it.
const SESSION: &str = "SET statement_timeout = '15s'; SET default_transaction_read_only = on; \
    SET client_min_messages = 'warning'";
/// Settings around a search without key and index: calls are read in the order of their numbers until there are enough.
/// The planner expects too few results and would read and sort a whole day.
const ORDERED: (&str, &str) = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET max_parallel_workers_per_gather = 0",
    "RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_sort; RESET max_parallel_workers_per_gather",
);
/// Settings around a search for rare words: each call that has them is looked up. The planner would read all calls in
/// their order, to spare a sort of some thousand rows.
const LOOKED_UP: (&str, &str) = (
    "SET enable_mergejoin = off; SET enable_hashjoin = off",
    "RESET enable_mergejoin; RESET enable_hashjoin",
);
/// Words are rare if the server expects that at most one of so many calls has them. Then these are found by the index
/// of words and sorted. Of more frequent words the newest calls are found sooner in the order of the calls. The server
/// expects one of 200 for words that it does not know to be frequent.
const RARE: u64 = 100;
/// Bounds of the indexes of calls that failed or had poor media.
const FAILED: u16 = 300;
const POOR: u64 = 349;
/// Calls that are read at once: the first time at least, and at most.
const CHUNK: (usize, usize) = (50, 2_000);
/// Calls whose messages are searched for a text at once.
const TEXT_CHUNK: usize = 500;
/// Records of other nodes about one call, at most.
const MAX_CORRELATED: usize = 16;
/// Time between the first messages of a call at different nodes, at most, microseconds.
const CORRELATION_TIME: i64 = 600_000_000;

/// Searches a database.
#[derive(Debug)]
pub(crate) struct DatabaseReader {
    settings: DatabaseSettings,
    connection: Connection,
    /// Whether a statement failed, so that a new connection is needed.
    is_broken: AtomicBool,
    nodes: HashMap<i16, String>,
}

/// Values of a statement with their types.
type Values = Vec<(Box<dyn ToSql + Sync>, Type)>;

/// The number of a call, and that of rows at most.
fn call_and_limit(call: i64, limit: usize) -> Values {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    vec![(Box::new(call), Type::INT8), (Box::new(limit), Type::INT8)]
}

/// A statement that finds the numbers of calls, highest first: those below `$1`, at most `$2`.
struct Candidates {
    statement: String,
    values: Values,
    /// Settings of the session around the statement, and those that end them.
    settings: Option<(&'static str, &'static str)>,
}

fn store_error(error: DatabaseError) -> StoreError {
    StoreError(match error {
        // 57014: the statement ran longer than it may.
        DatabaseError::Unavailable(reason) if reason.ends_with("(57014)") => {
            "the search took too long: add a time, a number or another condition".to_owned()
        }
        error => error.to_string(),
    })
}

fn connect(
    settings: &DatabaseSettings,
) -> Result<(Connection, HashMap<i16, String>), DatabaseError> {
    let connection = Connection::open(settings, "reader")?;
    let nodes = connection.run(READ_LIMIT, |client| async move {
        client.batch_execute(SESSION).await?;
        layout::check(client).await?;
        names(client).await
    })?;
    Ok((connection, nodes))
}

/// The names of the nodes.
async fn names(client: &Client) -> Result<HashMap<i16, String>, DatabaseError> {
    let rows = client
        .query_typed("SELECT number, name FROM hornwork.nodes", &[])
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

impl DatabaseReader {
    /// Connects to a database.
    ///
    /// # Errors
    /// It cannot be reached or read, or has no store of this version.
    pub(crate) fn open(settings: DatabaseSettings) -> Result<DatabaseReader, StoreError> {
        let (connection, nodes) = connect(&settings)
            .map_err(|error| StoreError(format!("{settings}: {}", store_error(error))))?;
        Ok(DatabaseReader {
            settings,
            connection,
            is_broken: AtomicBool::new(false),
            nodes,
        })
    }

    /// Learns the names of new nodes, and connects again if the connection is gone.
    ///
    /// # Errors
    /// The database cannot be reached or read.
    pub(crate) fn refresh(&mut self) -> Result<(), StoreError> {
        if !self.is_broken.load(Ordering::Relaxed)
            && let Ok(nodes) = self.connection.run(READ_LIMIT, names)
        {
            self.nodes = nodes;
            return Ok(());
        }
        (self.connection, self.nodes) = connect(&self.settings)
            .map_err(|error| StoreError(format!("{}: {}", self.settings, store_error(error))))?;
        self.is_broken = AtomicBool::new(false);
        Ok(())
    }

    fn query(&self, statement: &str, values: &Values) -> Result<Vec<Row>, StoreError> {
        let values = values.iter().map(|(value, kind)| (&**value, kind.clone()));
        let values: Vec<(&(dyn ToSql + Sync), Type)> = values.collect();
        let values = &values;
        let rows = self.connection.run(READ_LIMIT, |client| async move {
            Ok(client.query_typed(statement, values).await?)
        });
        rows.map_err(|error| {
            self.is_broken.store(true, Ordering::Relaxed);
            store_error(error)
        })
    }

    /// Changes settings of the session.
    fn set(&self, settings: &str) -> Result<(), StoreError> {
        let done = self.connection.run(READ_LIMIT, |client| async move {
            Ok(client.batch_execute(settings).await?)
        });
        done.map_err(|error| {
            self.is_broken.store(true, Ordering::Relaxed);
            store_error(error)
        })
    }

    /// A page of the calls for which `filter` holds, newest first.
    ///
    /// # Errors
    /// The database cannot be read, or the search took too long.
    pub(crate) fn search(
        &self,
        filter: &CallFilter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<CallPage, StoreError> {
        let limit = limit.max(1);
        let mut page = CallPage::default();
        let node = filter.node.as_ref().map(|name| {
            let mut nodes = self.nodes.iter();
            nodes
                .find(|(_, known)| *known == name)
                .map(|(number, _)| *number)
        });
        let rare = match &filter.words {
            Some(text) => self.are_rare(text)?,
            None => false,
        };
        let Some(mut candidates) = Candidates::new(filter, node, rare) else {
            return Ok(page);
        };
        let mut before = before.unwrap_or(i64::MAX);
        let (mut chunk, bound) = match filter.text {
            Some(_) => (TEXT_CHUNK, MAX_EXAMINED_TEXT),
            None => (limit.clamp(CHUNK.0, CHUNK.1), MAX_EXAMINED),
        };
        let mut examined = 0;
        loop {
            let ids = self.candidates(&mut candidates, before, chunk)?;
            let Some(&lowest) = ids.last() else {
                return Ok(page);
            };
            let mut calls = self.load(&ids)?;
            calls.retain(|call| filter.holds(call));
            // Otherwise the table of numbers has selected the calls.
            let is_combined = filter.words.is_some() || filter.call_id.is_some();
            if let Some(number) = filter.number.as_deref().filter(|_| is_combined) {
                self.retain_number(&mut calls, number)?;
            }
            if let Some(text) = &filter.text {
                self.retain_text(&mut calls, text)?;
            }
            for call in calls {
                page.next = Some(call.id);
                page.calls.push(call);
                if page.calls.len() == limit {
                    return Ok(page);
                }
            }
            page.next = None;
            if ids.len() < chunk {
                return Ok(page);
            }
            examined += ids.len();
            if examined >= bound {
                page.next = Some(lowest);
                return Ok(page);
            }
            before = lowest;
            if filter.text.is_none() {
                chunk = (chunk * 2).min(CHUNK.1);
            }
        }
    }

    /// Whether the server expects few calls with these words.
    fn are_rare(&self, text: &str) -> Result<bool, StoreError> {
        let Some(query) = words::query(text) else {
            return Ok(false);
        };
        let with = "EXPLAIN SELECT call FROM hornwork.words WHERE words @@ CAST($1 AS tsquery)";
        let with = self.expected_rows(with, &vec![(Box::new(query), Type::TEXT)])?;
        let all = self.expected_rows("EXPLAIN SELECT call FROM hornwork.words", &Values::new())?;
        Ok(with.zip(all).is_some_and(|(with, all)| with <= all / RARE))
    }

    /// The number of rows in the first line of a plan.
    fn expected_rows(&self, explain: &str, values: &Values) -> Result<Option<u64>, StoreError> {
        let rows = self.query(explain, values)?;
        let plan: Option<&str> = rows.first().map(|row| row.get(0));
        let expected = plan.and_then(|plan| plan.split_once(" rows=")?.1.split(' ').next());
        Ok(expected.and_then(|rows| rows.parse().ok()))
    }

    fn candidates(
        &self,
        candidates: &mut Candidates,
        before: i64,
        chunk: usize,
    ) -> Result<Vec<i64>, StoreError> {
        for (value, bound) in candidates.values.iter_mut().zip([before, chunk as i64]) {
            value.0 = Box::new(bound);
        }
        if let Some((begin, _)) = candidates.settings {
            self.set(begin)?;
        }
        let rows = self.query(&candidates.statement, &candidates.values)?;
        if let Some((_, end)) = candidates.settings {
            self.set(end)?;
        }
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The calls with these numbers, highest first.
    fn load(&self, ids: &[i64]) -> Result<Vec<StoredCall>, StoreError> {
        let values: Values = vec![(Box::new(ids.to_vec()), Type::INT8_ARRAY)];
        let select = "SELECT id, details FROM hornwork.texts WHERE id = ANY($1)";
        let rows = self.query(select, &values)?;
        let calls = rows.iter().filter_map(|row| {
            let (id, details): (i64, &str) = (row.get(0), row.get(1));
            // A damaged row is no call.
            let call = serde_json::from_str::<StoredCall>(details).ok()?;
            Some(StoredCall { id, ..call })
        });
        let mut calls: Vec<StoredCall> = calls.collect();
        calls.sort_unstable_by_key(|call| std::cmp::Reverse(call.id));
        Ok(calls)
    }

    /// Keeps calls with this number: of a user, or dialled, which is in the table of numbers alone.
    fn retain_number(&self, calls: &mut Vec<StoredCall>, number: &str) -> Result<(), StoreError> {
        let others = calls
            .iter()
            .filter(|call| !CallFilter::fits_user(number, call));
        let ids: Vec<i64> = others.map(|call| call.id).collect();
        let (Some(&lowest), Some(&highest)) = (ids.iter().min(), ids.iter().max()) else {
            return Ok(());
        };
        // The bounds choose the partitions.
        let mut values: Values = vec![
            (Box::new(ids), Type::INT8_ARRAY),
            (Box::new(lowest), Type::INT8),
            (Box::new(highest), Type::INT8),
        ];
        let wanted = without_nul(number).into_owned();
        let condition = match wanted.strip_suffix('*') {
            Some(start) => {
                values.push((Box::new(start.to_owned()), Type::TEXT));
                // The first text after all that begin with `start`, in the order of bytes.
                values.push((Box::new(format!("{start}\u{10ffff}")), Type::TEXT));
                "number >= $4 AND number < $5"
            }
            None => {
                values.push((Box::new(wanted), Type::TEXT));
                "number = $4"
            }
        };
        let select = format!(
            "SELECT DISTINCT call FROM hornwork.numbers \
             WHERE call = ANY($1) AND call >= $2 AND call <= $3 AND {condition}"
        );
        let rows = self.query(&select, &values)?;
        let dialled: BTreeSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        calls.retain(|call| CallFilter::fits_user(number, call) || dialled.contains(&call.id));
        Ok(())
    }

    /// Keeps calls with a message that has this text.
    fn retain_text(&self, calls: &mut Vec<StoredCall>, text: &[u8]) -> Result<(), StoreError> {
        let ids: Vec<i64> = calls.iter().map(|call| call.id).collect();
        let values: Values = vec![
            (Box::new(ids), Type::INT8_ARRAY),
            (Box::new(text.to_vec()), Type::BYTEA),
        ];
        let select = "SELECT DISTINCT call FROM hornwork.messages WHERE call = ANY($1) AND position($2 in bytes) > 0";
        let rows = self.query(select, &values)?;
        let with_text: BTreeSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        calls.retain(|call| with_text.contains(&call.id));
        Ok(())
    }

    /// The call with this number.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn call(&self, number: i64) -> Result<Option<StoredCall>, StoreError> {
        Ok(self.load(&[number])?.pop())
    }

    /// The records of other nodes about the same call, ascending by number.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn correlated(&self, call: &StoredCall) -> Result<Vec<StoredCall>, StoreError> {
        let mut found: BTreeMap<i64, StoredCall> = BTreeMap::new();
        let mut known: BTreeSet<String> = call.call_ids.iter().cloned().collect();
        let mut new: Vec<String> = call.call_ids.clone();
        let middle = call.started;
        while !new.is_empty() && found.len() < MAX_CORRELATED {
            let keys = new.iter().map(|id| key_of(CALL_ID_KEY, id.as_bytes()));
            let keys: Vec<i64> = keys.collect();
            let values: Values = vec![
                (Box::new(keys), Type::INT8_ARRAY),
                (
                    Box::new(first_number(middle - CORRELATION_TIME)),
                    Type::INT8,
                ),
                (
                    Box::new(first_number(middle + CORRELATION_TIME)),
                    Type::INT8,
                ),
            ];
            let select = "SELECT DISTINCT call FROM hornwork.keys WHERE key = ANY($1) AND call > $2 AND call < $3 ORDER BY call LIMIT 64";
            let rows = self.query(select, &values)?;
            let ids = rows.iter().map(|row| row.get::<_, i64>(0));
            let ids: Vec<i64> = ids
                .filter(|id| *id != call.id && !found.contains_key(id))
                .filter(|id| node_of(*id) != node_of(call.id))
                .collect();
            new.clear();
            for other in self.load(&ids)? {
                // Keys may collide.
                if !other.call_ids.iter().any(|id| known.contains(id)) {
                    continue;
                }
                let more = other.call_ids.iter().filter(|id| !known.contains(*id));
                new.extend(more.cloned());
                found.insert(other.id, other);
            }
            known.extend(new.iter().cloned());
        }
        Ok(found.into_values().take(MAX_CORRELATED).collect())
    }

    /// The first messages of a call in order of time, at most `limit`.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn first_messages(
        &self,
        call: i64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<LoadedMessage>, StoreError> {
        let limit = match bytes {
            usize::MAX => limit,
            bytes => self.messages_within(call, limit, bytes)?,
        };
        let values = call_and_limit(call, limit);
        let select = "SELECT at, direction, transport, source, destination, bytes FROM hornwork.messages \
            WHERE call = $1 ORDER BY at, ctid LIMIT $2";
        let rows = self.query(select, &values)?;
        let node = self.nodes.get(&node_of(call)).cloned().unwrap_or_default();
        let message = |row: &Row| {
            let transport: i16 = row.get(2);
            Some(LoadedMessage {
                node: node.clone(),
                time: row.get::<_, i64>(0).max(0) as u64,
                direction: match row.get::<_, i16>(1) {
                    1 => StoredDirection::Received,
                    2 => StoredDirection::Sent,
                    _ => StoredDirection::Observed,
                },
                transport: *TRANSPORTS.get(usize::try_from(transport).ok()?)?,
                source: row.get::<_, &str>(3).parse().ok()?,
                destination: row.get::<_, &str>(4).parse().ok()?,
                bytes: row.get(5),
            })
        };
        // A damaged row is no message.
        Ok(rows.iter().filter_map(message).collect())
    }

    /// The number of first messages of a call, at most `limit`, without those after the first `bytes` of them.
    fn messages_within(&self, call: i64, limit: usize, bytes: usize) -> Result<usize, StoreError> {
        let select = "SELECT octet_length(bytes) FROM hornwork.messages WHERE call = $1 ORDER BY at, ctid LIMIT $2";
        let rows = self.query(select, &call_and_limit(call, limit))?;
        let mut size = 0;
        let within = rows.iter().take_while(|row| {
            let fits = size < bytes;
            size += usize::try_from(row.get::<_, i32>(0)).unwrap_or(0);
            fits
        });
        Ok(within.count())
    }

    /// The first events of a call in order of time, at most `limit`.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn first_events(
        &self,
        call: i64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let mut values = call_and_limit(call, limit);
        // Events of a call are not earlier than the call; so only some partitions are read.
        values.push((Box::new(call / super::NODES - super::DAY), Type::INT8));
        let select = "SELECT at, name, fields FROM hornwork.events WHERE call = $1 AND at >= $3 ORDER BY at, ctid LIMIT $2";
        Ok(self.query(select, &values)?.iter().map(event).collect())
    }

    /// The newest events within a period, newest first, at most `limit`.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn events_between(
        &self,
        (from, until): (i64, i64),
        level: i64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let values: Values = vec![
            (Box::new(from), Type::INT8),
            (Box::new(until), Type::INT8),
            (Box::new(level as i16), Type::INT2),
            (Box::new(limit as i64), Type::INT8),
        ];
        let select = "SELECT at, name, fields FROM hornwork.events \
            WHERE at >= $1 AND at < $2 AND level <= $3 ORDER BY at DESC LIMIT $4";
        Ok(self.query(select, &values)?.iter().map(event).collect())
    }

    /// Drops by reason within a period.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn drops_between(
        &self,
        from: i64,
        until: i64,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        let values: Values = vec![(Box::new(from), Type::INT8), (Box::new(until), Type::INT8)];
        let select = "SELECT reason, sum(count)::bigint FROM hornwork.drops WHERE at >= $1 AND at < $2 GROUP BY reason";
        let rows = self.query(select, &values)?;
        let count = |row: &Row| row.get::<_, i64>(1).max(0) as u64;
        Ok(rows.iter().map(|row| (row.get(0), count(row))).collect())
    }
}

fn event(row: &Row) -> StoredEvent {
    StoredEvent {
        at: row.get(0),
        name: row.get(1),
        fields: row.get(2),
    }
}

impl Candidates {
    /// `None`: no call can fit. `node`: the condition on the node, if there is one, and its number, if it is known.
    /// `rare`: few calls have the words of the condition.
    fn new(filter: &CallFilter, node: Option<Option<i16>>, rare: bool) -> Option<Candidates> {
        // Their values follow with each chunk.
        let mut candidates = Candidates {
            settings: rare.then_some(LOOKED_UP),
            statement: String::new(),
            values: vec![(Box::new(0_i64), Type::INT8), (Box::new(0_i64), Type::INT8)],
        };
        let mut conditions = candidates.of_calls(filter, node)?;
        let driver = candidates.driver(filter)?;
        candidates.statement = match driver {
            Some((table, condition)) => {
                let join = match conditions.is_empty() {
                    true => "",
                    false => " JOIN hornwork.calls ON calls.id = keys.call",
                };
                conditions.insert(0, condition);
                candidates.period(filter, "keys.call", &mut conditions);
                let mut table = table;
                if rare {
                    // The planner expects that a scan in the order of calls soon finds enough of them, and would read
                    // all. An offset makes it plan the inner query for itself.
                    let inner = conditions
                        .extract_if(.., |condition| condition.starts_with("keys."))
                        .collect::<Vec<_>>()
                        .join(" AND ");
                    table =
                        format!("(SELECT keys.call FROM {table} AS keys WHERE {inner} OFFSET 0)");
                    conditions.push("true".to_owned());
                }
                let conditions = conditions.join(" AND ");
                format!(
                    "SELECT DISTINCT keys.call FROM {table} AS keys{join} WHERE {conditions} ORDER BY keys.call DESC LIMIT $2"
                )
            }
            None => {
                let is_failed = filter.status.is_some_and(|(low, _)| low >= FAILED);
                let is_poor = filter.mos_max.is_some_and(|mos| mos <= POOR);
                // Neither a key nor an index selects the calls.
                candidates.settings = (!is_failed && !is_poor).then_some(ORDERED);
                candidates.period(filter, "calls.id", &mut conditions);
                candidates.exact_end(filter, &mut conditions);
                let conditions = conditions.join(" AND ");
                format!(
                    "SELECT calls.id FROM hornwork.calls WHERE {conditions} ORDER BY calls.id DESC LIMIT $2"
                )
            }
        };
        Some(candidates)
    }

    /// Adds a value; returns its name in the statement.
    fn value(&mut self, value: impl ToSql + Sync + 'static, kind: Type) -> String {
        self.values.push((Box::new(value), kind));
        format!("${}", self.values.len())
    }

    /// The bounds of numbers, which also choose the partitions.
    fn period(&mut self, filter: &CallFilter, column: &str, conditions: &mut Vec<String>) {
        conditions.push(format!("{column} < $1"));
        if let Some(from) = filter.from {
            let from = self.value(first_number(from), Type::INT8);
            conditions.push(format!("{column} >= {from}"));
        }
        if let Some(until) = filter.until {
            let until = call_number(until.saturating_add(START_TOLERANCE), 0);
            let until = self.value(until, Type::INT8);
            conditions.push(format!("{column} < {until}"));
        }
    }

    /// Calls may begin before the time of their number, by [`START_TOLERANCE`] at most. Without this condition all
    /// calls of that time after the end would be loaded only to be discarded.
    fn exact_end(&mut self, filter: &CallFilter, conditions: &mut Vec<String>) {
        let Some(until) = filter.until else { return };
        let number = self.value(call_number(until, 0), Type::INT8);
        let until = self.value(until, Type::INT8);
        // A quotation mark within a value of the JSON text has a backslash before it.
        conditions.push(format!(
            "(calls.id < {number} OR EXISTS (SELECT FROM hornwork.texts WHERE texts.id = calls.id \
             AND CAST(substring(texts.details FROM '\"started\":(-?[0-9]+)') AS bigint) < {until}))"
        ));
    }

    /// The table with the most selective condition, and the condition.
    fn driver(&mut self, filter: &CallFilter) -> Option<Option<(String, String)>> {
        if let Some(text) = &filter.words {
            let query = self.value(words::query(text)?, Type::TEXT);
            let condition = format!("keys.words @@ CAST({query} AS tsquery)");
            return Some(Some(("hornwork.words".to_owned(), condition)));
        }
        if let Some(id) = &filter.call_id {
            let key = self.value(key_of(CALL_ID_KEY, id.as_bytes()), Type::INT8);
            return Some(Some((
                "hornwork.keys".to_owned(),
                format!("keys.key = {key}"),
            )));
        }
        if let Some(number) = &filter.number {
            let number = without_nul(number).into_owned();
            let condition = match number.strip_suffix('*') {
                Some(start) => {
                    // The first text after all that begin with `start`, in the order of bytes.
                    let end = self.value(format!("{start}\u{10ffff}"), Type::TEXT);
                    let start = self.value(start.to_owned(), Type::TEXT);
                    format!("keys.number >= {start} AND keys.number < {end}")
                }
                None => format!("keys.number = {}", self.value(number, Type::TEXT)),
            };
            return Some(Some(("hornwork.numbers".to_owned(), condition)));
        }
        if let Some(address) = &filter.address {
            let key = self.value(key_of(ADDRESS_KEY, address.as_bytes()), Type::INT8);
            return Some(Some((
                "hornwork.keys".to_owned(),
                format!("keys.key = {key}"),
            )));
        }
        Some(None)
    }

    /// The conditions on the narrow table.
    fn of_calls(&mut self, filter: &CallFilter, node: Option<Option<i16>>) -> Option<Vec<String>> {
        let mut conditions = Vec::new();
        if let Some(node) = node {
            let node = self.value(node?, Type::INT2);
            conditions.push(format!("calls.node = {node}"));
        }
        let small = |value: Option<i64>| value.map(|value| value.clamp(0, 32_767) as i16);
        for (condition, value) in [
            ("kind =", filter.kind.map(|kind| kind.number())),
            ("status >=", filter.status.map(|(low, _)| low.into())),
            ("status <=", filter.status.map(|(_, high)| high.into())),
            ("mos >=", filter.mos_min.map(|mos| mos as i64)),
            ("mos <=", filter.mos_max.map(|mos| mos as i64)),
        ] {
            if let Some(value) = small(value) {
                let value = self.value(value, Type::INT2);
                conditions.push(format!("calls.{condition} {value}"));
            }
        }
        if let Some(state) = filter.state {
            // The condition of the index of open calls.
            if state.is_open() {
                conditions.push("calls.state < 2".to_owned());
            }
            conditions.push(format!("calls.state = {}", state.number()));
        }
        for (condition, value) in [
            ("duration_ms >=", filter.duration_min),
            ("duration_ms <=", filter.duration_max),
        ] {
            if let Some(value) = value {
                let value = self.value(value, Type::INT8);
                conditions.push(format!("calls.{condition} {value}"));
            }
        }
        if let Some(trunk) = &filter.trunk {
            let trunk = self.value(without_nul(trunk).into_owned(), Type::TEXT);
            conditions.push(format!("lower(calls.trunk) = lower({trunk} COLLATE \"C\")"));
        }
        for (column, wanted) in [("codec", &filter.codec), ("protection", &filter.protection)] {
            match wanted.as_deref() {
                None => {}
                Some("none") if column == "protection" => {
                    conditions.push("calls.protection IS NULL".to_owned());
                }
                Some(wanted) => {
                    let wanted = self.value(without_nul(wanted).into_owned(), Type::TEXT);
                    conditions.push(format!(
                        "lower({wanted} COLLATE \"C\") = ANY(string_to_array(lower(calls.{column}), '/'))"
                    ));
                }
            }
        }
        Some(conditions)
    }
}
