//! The tables, their versions, and their partitions: created ahead, removed when they are too old.

use super::connection::DatabaseError;
use super::{DAY, NODES};
use crate::text::{day_name, day_of_name};
use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

/// Version of the layout that this program writes and reads.
const VERSION: i32 = 1;
/// Number of the lock under which tables are created, of the whole database.
const LAYOUT_LOCK: i64 = 0x686f_726e_776f_726b;
/// First number of the locks of nodes; the second is the number of the node.
const NODE_LOCK: i32 = 0x686f_726e;
/// Time that a change of the partitions waits for searches in progress, so that further searches do not wait long.
const PATIENCE: &str = "SET LOCAL lock_timeout = '500ms'";
/// Attempts to take the name of a node, and the time between them: the server releases the name a moment after the
/// connection of a killed border has ended, and a border that is started again at once must find it free.
const NAME_ATTEMPTS: u32 = 60;
const NAME_INTERVAL: Duration = Duration::from_millis(50);

/// Tables by the number of their call, and tables by time.
const BY_CALL: [&str; 6] = ["calls", "texts", "keys", "numbers", "words", "messages"];
const BY_TIME: [&str; 2] = ["events", "drops"];

/// The steps from each version to the next. A step that was released is never changed.
const STEPS: [&str; VERSION as usize] = ["
CREATE SCHEMA IF NOT EXISTS hornwork;
CREATE TABLE hornwork.layout (version integer NOT NULL);
INSERT INTO hornwork.layout VALUES (0);
CREATE TABLE hornwork.nodes (number smallint PRIMARY KEY, name text NOT NULL UNIQUE, batch bigint NOT NULL DEFAULT 0,
  last_call bigint NOT NULL DEFAULT 0);
CREATE TABLE hornwork.calls (id bigint PRIMARY KEY, duration_ms bigint, node smallint NOT NULL, kind smallint NOT NULL,
  state smallint NOT NULL, status smallint, mos smallint, trunk text COLLATE \"C\", codec text COLLATE \"C\",
  protection text COLLATE \"C\") PARTITION BY RANGE (id);
CREATE INDEX calls_open ON hornwork.calls (node, id) WHERE state < 2;
CREATE INDEX calls_failed ON hornwork.calls (status, id) WHERE status >= 300;
CREATE INDEX calls_poor ON hornwork.calls (mos, id) WHERE mos < 350;
CREATE TABLE hornwork.texts (id bigint PRIMARY KEY, details text NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE hornwork.keys (key bigint, call bigint, PRIMARY KEY (key, call)) PARTITION BY RANGE (call);
CREATE TABLE hornwork.numbers (number text COLLATE \"C\", call bigint, PRIMARY KEY (number, call)) PARTITION BY RANGE (call);
CREATE TABLE hornwork.words (call bigint PRIMARY KEY, words tsvector NOT NULL) PARTITION BY RANGE (call);
CREATE INDEX words_words ON hornwork.words USING gin (words);
CREATE TABLE hornwork.messages (call bigint NOT NULL, at bigint NOT NULL, direction smallint NOT NULL,
  transport smallint NOT NULL, source text NOT NULL, destination text NOT NULL, bytes bytea NOT NULL)
  PARTITION BY RANGE (call);
CREATE INDEX messages_call ON hornwork.messages (call);
CREATE TABLE hornwork.events (at bigint NOT NULL, call bigint, node smallint NOT NULL, level smallint NOT NULL,
  name text NOT NULL, fields text NOT NULL) PARTITION BY RANGE (at);
CREATE INDEX events_at ON hornwork.events (at);
CREATE INDEX events_call ON hornwork.events (call) WHERE call IS NOT NULL;
CREATE TABLE hornwork.drops (at bigint NOT NULL, count bigint NOT NULL, node smallint NOT NULL, reason text NOT NULL)
  PARTITION BY RANGE (at);
CREATE INDEX drops_at ON hornwork.drops (at);
"];

/// The version of the layout; 0: there is none.
async fn version(client: &Client) -> Result<i32, DatabaseError> {
    let exists = "SELECT to_regclass('hornwork.layout') IS NOT NULL";
    if !is_true(client, exists).await? {
        return Ok(0);
    }
    let row = client
        .query_typed_one("SELECT version FROM hornwork.layout", &[])
        .await?;
    Ok(row.try_get(0)?)
}

fn other_version(found: i32) -> DatabaseError {
    let reason = match found {
        0 => "the database has no store yet: a border creates it".to_owned(),
        found => format!(
            "the layout of the database has version {found}, this program has version {VERSION}"
        ),
    };
    DatabaseError::Unusable(reason)
}

/// Checks that the layout can be read.
pub(super) async fn check(client: &Client) -> Result<(), DatabaseError> {
    match version(client).await? {
        VERSION => Ok(()),
        other => Err(other_version(other)),
    }
}

/// Creates the tables, or brings them to the version of this program. Several borders may do that at once.
pub(super) async fn migrate(client: &Client) -> Result<(), DatabaseError> {
    // The usual case needs no right to create anything.
    if version(client).await? == VERSION {
        return Ok(());
    }
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({LAYOUT_LOCK})");
    client.batch_execute(&lock).await?;
    let found = version(client).await?;
    let done = usize::try_from(found).unwrap_or(usize::MAX);
    let Some(missing) = STEPS.get(done..) else {
        return Err(other_version(found));
    };
    for step in missing {
        client.batch_execute(step).await?;
    }
    let end = format!("UPDATE hornwork.layout SET version = {VERSION}; COMMIT");
    client.batch_execute(&end).await?;
    Ok(())
}

/// The answer of a question to the database.
async fn is_true(client: &Client, question: &str) -> Result<bool, DatabaseError> {
    Ok(client.query_typed_one(question, &[]).await?.try_get(0)?)
}

/// A border that writes to the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeState {
    pub(super) number: i16,
    /// Number of the last transaction that was completed.
    pub(super) batch: i64,
    /// The highest number that a call of this node has, in the numbering of the border.
    pub(super) last_call: i64,
}

/// Registers a node, or finds it, and locks its name for this connection.
pub(super) async fn enter(client: &Client, name: &str) -> Result<NodeState, DatabaseError> {
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({LAYOUT_LOCK})");
    client.batch_execute(&lock).await?;
    let insert = "INSERT INTO hornwork.nodes (number, name) SELECT coalesce(max(number) + 1, 0), $1 FROM hornwork.nodes \
                  HAVING NOT EXISTS (SELECT FROM hornwork.nodes WHERE name = $1)";
    client.execute_typed(insert, &[(&name, Type::TEXT)]).await?;
    let select = "SELECT number, batch, last_call FROM hornwork.nodes WHERE name = $1";
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&name, Type::TEXT)];
    let row = client.query_typed_one(select, &parameters).await?;
    let number: i16 = row.try_get(0)?;
    if i64::from(number) >= NODES {
        return Err(DatabaseError::Unusable(format!(
            "the database has {NODES} nodes already: remove names that are not used from hornwork.nodes"
        )));
    }
    client.batch_execute("COMMIT").await?;
    let lock = format!("SELECT pg_try_advisory_lock({NODE_LOCK}, {number})");
    let mut attempts = 1;
    while !is_true(client, &lock).await? {
        if attempts == NAME_ATTEMPTS {
            return Err(DatabaseError::Unavailable(format!(
                "another border writes as node \"{name}\""
            )));
        }
        attempts += 1;
        sleep(NAME_INTERVAL).await;
    }
    // A transaction of the previous holder may have ended while this one waited.
    let row = client.query_typed_one(select, &parameters).await?;
    Ok(NodeState {
        number,
        batch: row.try_get(1)?,
        last_call: row.try_get(2)?,
    })
}

/// Creates the partitions of these days that do not exist.
pub(super) async fn ensure_days(client: &Client, days: &[i64]) -> Result<(), DatabaseError> {
    if days.is_empty() {
        return Ok(());
    }
    let mut script = format!("BEGIN; SELECT pg_advisory_xact_lock({LAYOUT_LOCK});");
    for &day in days {
        let name = day_name(day);
        let exists = format!("SELECT to_regclass('hornwork.drops_{name}') IS NOT NULL");
        if is_true(client, &exists).await? {
            continue;
        }
        let calls = BY_CALL.iter().map(|table| (table, NODES));
        for (table, factor) in calls.chain(BY_TIME.iter().map(|table| (table, 1))) {
            let (from, until) = (day * DAY * factor, (day + 1) * DAY * factor);
            // Calls change some times: room on their pages keeps the changes out of the indexes.
            let fill = match *table {
                "calls" | "texts" => " WITH (fillfactor = 70)",
                _ => "",
            };
            // Attaching, unlike CREATE TABLE ... PARTITION OF, does not wait for searches. Another border may have
            // created it since the question above.
            let _ = writeln!(
                script,
                "CREATE TABLE IF NOT EXISTS hornwork.{table}_{name} (LIKE hornwork.{table} INCLUDING ALL){fill};\n\
                 DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = 'hornwork.{table}_{name}'::regclass) THEN\n\
                 ALTER TABLE hornwork.{table} ATTACH PARTITION hornwork.{table}_{name} FOR VALUES FROM ({from}) TO ({until});\n\
                 END IF; END $$;"
            );
        }
    }
    script.push_str("COMMIT");
    Ok(client.batch_execute(&script).await?)
}

/// Days that have partitions, with their sizes in bytes, indexes included.
pub(super) async fn sizes(client: &Client) -> Result<BTreeMap<i64, u64>, DatabaseError> {
    // The size of a partition that another border removes meanwhile is null.
    let select = "SELECT part.relname, coalesce(pg_total_relation_size(part.oid), 0) FROM pg_inherits \
        JOIN pg_class part ON part.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent \
        JOIN pg_namespace space ON space.oid = parent.relnamespace \
        WHERE space.nspname = 'hornwork' AND part.relkind = 'r'";
    let mut sizes = BTreeMap::new();
    for row in client.query_typed(select, &[]).await? {
        let (name, size): (&str, i64) = (row.try_get(0)?, row.try_get(1)?);
        let day = name.rsplit_once('_').and_then(|(_, day)| day_of_name(day));
        if let Some(day) = day {
            *sizes.entry(day).or_default() += u64::try_from(size).unwrap_or(0);
        }
    }
    Ok(sizes)
}

/// The clock of the server, microseconds since the Unix epoch.
pub(super) async fn clock(client: &Client) -> Result<i64, DatabaseError> {
    let select = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    Ok(client.query_typed_one(select, &[]).await?.try_get(0)?)
}

/// Removes the partitions of a day.
pub(super) async fn drop_day(client: &Client, day: i64) -> Result<(), DatabaseError> {
    let name = day_name(day);
    let tables = BY_CALL.iter().chain(&BY_TIME);
    let tables: Vec<String> = tables
        .map(|table| format!("hornwork.{table}_{name}"))
        .collect();
    let script = format!(
        "BEGIN; {PATIENCE}; SELECT pg_advisory_xact_lock({LAYOUT_LOCK}); DROP TABLE IF EXISTS {}; COMMIT",
        tables.join(", ")
    );
    Ok(client.batch_execute(&script).await?)
}
