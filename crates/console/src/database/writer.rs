//! Writes messages, calls and events of one node into the database.

use super::DAY;
use super::connection::{Connection, DatabaseError};
use super::layout::{self, NodeState};
use super::rows::{Batch, PendingMessages, RefusedRows, Value};
use crate::call::{CallKind, CallState, StoredCall};
use crate::index::OpenCalls;
use crate::losses::{LossCounts, LossReport, Losses};
use crate::retention::RetentionClock;
use crate::secure::{is_secure, reduce};
use crate::segment::StoredMessage;
use crate::settings::{DatabaseSettings, StoreNote, StoreSettings};
use crate::text::day_of;
use engine::Event;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

/// Time between transactions, microseconds: messages of this time are lost when the program is killed.
const COMMIT_INTERVAL: i64 = 400_000;
/// Bytes of messages above which a transaction is begun earlier.
const COMMIT_SIZE: usize = 4 << 20;
/// Bytes of messages that wait for the server, at most; further ones are counted and not stored.
const MAX_PENDING: usize = 32 << 20;
/// Time between attempts after a failure, microseconds: the first, doubled up to the last.
const RETRY_INTERVAL: (i64, i64) = (1_000_000, 15_000_000);
/// Time between checks of age and size, microseconds.
const RETENTION_INTERVAL: i64 = 10_000_000;
/// Time between sweeps of the memory, microseconds.
const SWEEP_INTERVAL: i64 = 1_000_000;
/// Counts of drops that wait, at most.
const MAX_DROPS: usize = 10_000;
/// Time limit of a transaction.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of a change of the partitions.
const LAYOUT_LIMIT: Duration = Duration::from_secs(10);
/// Attempts to write without the rows that the server refuses, before everything that waits is discarded.
const MAX_ATTEMPTS: u32 = 3;
/// Settings of the session. The server notices the end of the network path to a border within half a minute, and then
/// releases the name of the node.
const SESSION: &str = "SET statement_timeout = '10s'; SET lock_timeout = '5s'; SET tcp_keepalives_idle = 10; \
    SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET client_min_messages = 'warning'";

/// A connection with the state of the node.
#[derive(Debug)]
struct Session {
    connection: Connection,
    node: NodeState,
    /// Days that have partitions.
    days: BTreeSet<i64>,
}

/// A failure that lasts.
#[derive(Debug)]
struct Outage {
    since: i64,
    retry_at: i64,
    delay: i64,
}

/// A transaction whose outcome is unknown, with the numbers of waiting messages, events and counts that it has.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    batch: i64,
    messages: usize,
    events: usize,
    drops: usize,
    /// Rows that it does not have because the server refused them.
    refused: LossCounts,
}

/// Writes to a database.
#[derive(Debug)]
pub(crate) struct DatabaseWriter {
    database: DatabaseSettings,
    settings: StoreSettings,
    session: Option<Session>,
    index: OpenCalls,
    pending: PendingMessages,
    drops: Vec<(i64, &'static str, u64)>,
    in_flight: Option<InFlight>,
    /// Attempts to write the waiting rows since the server refused some of them; 0: it did not.
    attempts: u32,
    /// Whether calls of the last run have been marked.
    marked: bool,
    reduced: Vec<u8>,
    outage: Option<Outage>,
    losses: Arc<Losses>,
    report: LossReport,
    notes: Vec<StoreNote>,
    now: i64,
    committed: i64,
    swept: i64,
    checked: i64,
    retention: RetentionClock,
    /// Time of the machine's clock; `i64::MAX`: unknown.
    pub(crate) wall_clock: i64,
}

impl DatabaseWriter {
    /// Connects, creates the tables if there are none, and marks the calls that the last run of the node did not end.
    /// A server that cannot be reached is no error.
    ///
    /// # Errors
    /// The server refuses the border or is not to be trusted, the layout is that of another version, or another border
    /// writes as this node.
    pub(crate) fn open(
        database: DatabaseSettings,
        settings: StoreSettings,
        now: i64,
    ) -> io::Result<DatabaseWriter> {
        let losses = Arc::new(Losses::default());
        let node = settings.node.clone();
        let mut writer = DatabaseWriter {
            index: OpenCalls::new(settings.full_text, node, losses.clone()),
            database,
            settings,
            session: None,
            pending: PendingMessages::default(),
            drops: Vec::new(),
            in_flight: None,
            attempts: 0,
            marked: false,
            reduced: Vec::new(),
            outage: None,
            report: LossReport::new(losses.clone()),
            losses,
            notes: Vec::new(),
            now,
            committed: now,
            swept: now,
            checked: i64::MIN / 2,
            retention: RetentionClock::default(),
            wall_clock: i64::MAX,
        };
        match writer.connect(now) {
            Ok(()) => {}
            Err(DatabaseError::Unavailable(reason)) if !reason.starts_with("another border") => {
                writer.fail(&reason, now);
            }
            Err(error) => return Err(io::Error::other(error.to_string())),
        }
        Ok(writer)
    }

    fn connect(&mut self, now: i64) -> Result<(), DatabaseError> {
        let node = &self.settings.node;
        let connection = Connection::open(&self.database, node)?;
        let today = day_of(now);
        let days = [today, today + 1];
        let state = connection.run(LAYOUT_LIMIT, |client| async move {
            client.batch_execute(SESSION).await?;
            layout::migrate(client).await?;
            let state = layout::enter(client, node).await?;
            layout::ensure_days(client, &days).await?;
            Ok(state)
        })?;
        self.index.last_id = self.index.last_id.max(state.last_call);
        if !self.marked {
            let cut = connection.run(WRITE_LIMIT, |client| mark_cut_calls(client, state.number))?;
            self.marked = true;
            self.remember(&cut, state.number);
            let calls = cut.iter().filter(|call| call.kind == CallKind::Call);
            let interrupted = calls.count() as u64;
            if interrupted > 0 {
                self.notes.push(StoreNote::Completed {
                    messages: 0,
                    interrupted,
                });
            }
        }
        if let Some(sent) = self.in_flight.take()
            && sent.batch == state.batch
        {
            self.forget(&sent);
        }
        self.session = Some(Session {
            connection,
            node: state,
            days: days.into(),
        });
        Ok(())
    }

    /// Takes calls of the last run into memory: late messages belong to them.
    fn remember(&mut self, cut: &[StoredCall], node: i16) {
        // After an outage at the start, new calls may have the same Call-IDs already.
        if !self.index.entries.is_empty() {
            return;
        }
        for call in cut {
            let mut call = call.clone();
            call.id = (call.id - i64::from(node)) / super::NODES;
            // Numbers of calls begin anew with each start of the border.
            call.call = None;
            let last = call.ended;
            self.index.restore(call, 0, last);
        }
    }

    /// Forgets the rows of a transaction that was completed although no answer came.
    fn forget(&mut self, sent: &InFlight) {
        self.index.forget_stored(sent.messages as u32);
        self.index
            .events
            .drain(..sent.events.min(self.index.events.len()));
        self.drops.drain(..sent.drops.min(self.drops.len()));
        self.losses.add(&sent.refused);
        self.attempts = 0;
    }

    /// Stores a message. `correlation`: an id that both legs of a call have in common, from a capture agent; empty:
    /// none.
    pub(crate) fn message(&mut self, message: &StoredMessage<'_>, correlation: &[u8]) {
        if self.pending.size() >= MAX_PENDING {
            self.index.skip_message();
            self.losses.add_messages(1);
            return;
        }
        let mut message = *message;
        let mut reduced = std::mem::take(&mut self.reduced);
        if is_secure(message.transport) && !self.settings.secure_content {
            reduce(message.bytes, &mut reduced);
            message.bytes = &reduced;
        }
        let position = self.pending.push(&message);
        if !self.index.message(&message, 0, position, correlation) {
            // A row of a message needs its call.
            self.pending.remove_last();
            self.losses.add_messages(1);
        }
        self.reduced = reduced;
    }

    /// Whether a call with this Call-ID, or correlation id, is in progress or has ended just now.
    pub(crate) fn knows(&self, call_id: &str) -> bool {
        self.index.knows(call_id)
    }

    /// The first Call-ID of the call of the last message.
    pub(crate) fn correlation(&self) -> Option<&str> {
        self.index.last_call_id()
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
        // Nothing is known about the state of the connection.
        self.session = None;
        self.losses.set_failing(true);
        let (first, last) = RETRY_INTERVAL;
        match &mut self.outage {
            Some(outage) => {
                outage.delay = (outage.delay * 2).min(last);
                outage.retry_at = now + outage.delay;
            }
            None => {
                self.outage = Some(Outage {
                    since: now,
                    retry_at: now + first,
                    delay: first,
                });
                self.notes.push(StoreNote::Failed {
                    reason: reason.to_owned(),
                });
            }
        }
    }

    /// Does the work that is due. `now`: microseconds since the Unix epoch.
    pub(crate) fn tick(&mut self, now: i64) {
        (self.now, self.index.now) = (now, now);
        let waits = |outage: &Outage| now < outage.retry_at && now >= outage.since;
        if !self.outage.as_ref().is_some_and(waits) {
            let is_due = now - self.committed >= COMMIT_INTERVAL || now < self.committed;
            if is_due || self.pending.size() >= COMMIT_SIZE || self.outage.is_some() {
                self.committed = now;
                self.commit(now);
            }
        }
        if now - self.swept >= SWEEP_INTERVAL || now < self.swept {
            self.swept = now;
            self.index.sweep(now);
        }
        let checks = now - self.checked >= RETENTION_INTERVAL || now < self.checked;
        if checks && self.outage.is_none() {
            self.checked = now;
            if let Err(error) = self.remove_old(now) {
                self.fail(&error.to_string(), now);
            }
        }
        self.notes.extend(self.report.due(now));
    }

    fn commit(&mut self, now: i64) {
        let connected = match self.session {
            Some(_) => Ok(()),
            None => self.connect(now),
        };
        let written = connected.and_then(|()| {
            self.write()
                .inspect_err(|error| self.discard_refused(error))
        });
        if let Err(error) = written {
            self.fail(&error.to_string(), now);
            return;
        }
        self.losses.set_failing(false);
        if let Some(outage) = self.outage.take() {
            let outage_s = u64::try_from((now - outage.since) / 1_000_000).unwrap_or(0);
            self.notes.push(StoreNote::Resumed { outage_s });
        }
    }

    /// Has the next attempt leave out the rows that the server refuses because of their contents. If that fails again
    /// and again, everything that waits is discarded and counted: it must not block later rows.
    fn discard_refused(&mut self, error: &DatabaseError) {
        if error.concerns_rows() || self.attempts > 0 {
            self.attempts += 1;
        }
        if self.attempts > MAX_ATTEMPTS {
            self.discard_waiting();
        }
    }

    /// Discards and counts everything that waits.
    fn discard_waiting(&mut self) {
        self.losses.add(&self.index.discard_waiting());
        self.losses
            .add_drops(self.drops.iter().map(|(_, _, count)| count).sum());
        self.nothing_waits();
    }

    /// Writes everything that waits, in one transaction; after a refusal without the rows that the server refuses.
    fn write(&mut self) -> Result<(), DatabaseError> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let is_idle = self.index.dirty.is_empty()
            && self.index.events.is_empty()
            && self.pending.len() == 0
            && self.drops.is_empty();
        if is_idle && self.outage.is_none() {
            return Ok(());
        }
        let number = session.node.batch + 1;
        let batch = Batch::new(
            (session.node.number, number),
            &self.index,
            &self.pending,
            &self.drops,
        );
        let missing: Vec<i64> = batch.days.difference(&session.days).copied().collect();
        if !missing.is_empty() {
            let connection = &session.connection;
            connection.run(LAYOUT_LIMIT, |client| layout::ensure_days(client, &missing))?;
            session.days.extend(missing);
        }
        self.in_flight = Some(InFlight {
            batch: number,
            messages: self.pending.len(),
            events: self.index.events.len(),
            drops: self.drops.len(),
            refused: LossCounts::default(),
        });
        let connection = &session.connection;
        let mut refused = RefusedRows::default();
        if self.attempts == 0 {
            connection.run(WRITE_LIMIT, |client| batch.write(client))?;
        } else {
            refused = connection.run(WRITE_LIMIT, |client| batch.write_accepted(client))?;
            if let Some(sent) = &mut self.in_flight {
                sent.refused = refused.counts;
            }
            connection.run(WRITE_LIMIT, |client| async move {
                Ok(client.batch_execute("COMMIT").await?)
            })?;
        }
        session.node.batch = number;
        self.written();
        self.losses.add(&refused.counts);
        self.index.uncount_messages(&refused.messages_of);
        Ok(())
    }

    /// The database has everything.
    fn written(&mut self) {
        self.index.written();
        self.nothing_waits();
    }

    fn nothing_waits(&mut self) {
        self.in_flight = None;
        self.attempts = 0;
        self.pending.clear();
        self.drops.clear();
    }

    /// Creates the partitions of the next day, and removes those that are too old, and the oldest ones while the tables
    /// are too large. The present day stays.
    fn remove_old(&mut self, now: i64) -> Result<(), DatabaseError> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let today = day_of(now);
        let connection = &session.connection;
        if !session.days.contains(&(today + 1)) {
            let days = [today, today + 1];
            connection.run(LAYOUT_LIMIT, |client| async move {
                layout::ensure_days(client, &days).await
            })?;
            session.days.extend(days);
        }
        let sizes = connection.run(LAYOUT_LIMIT, layout::sizes)?;
        // Other borders share the server's clock: one with a wrong clock must not remove their history.
        let server = connection.run(LAYOUT_LIMIT, layout::clock)?;
        let days_ahead = self.retention.days_ahead(now, server.min(self.wall_clock));
        let oldest = now - i64::from(self.settings.retention_days) * DAY;
        let mut total: u64 = sizes.values().sum();
        let (mut removed, mut is_read) = (None, false);
        for (&day, size) in &sizes {
            let mut is_old = (day + 1) * DAY <= oldest;
            if let Some(days) = days_ahead.filter(|_| is_old) {
                is_old = false;
                if self.retention.take_report() {
                    self.notes.push(StoreNote::ClockAhead { days });
                }
            }
            if day >= today || !is_old && total <= self.settings.size {
                break;
            }
            match connection.run(LAYOUT_LIMIT, |client| layout::drop_day(client, day)) {
                Ok(()) => {}
                // A search is reading it: the next check tries again, with a new connection.
                Err(DatabaseError::Refused(code, _)) if code == "55P03" => {
                    is_read = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            total -= size;
            session.days.remove(&day);
            removed = Some(day);
        }
        if is_read {
            self.session = None;
        }
        if let Some(day) = removed {
            self.index.renumber_before((day + 1) * DAY, now);
        }
        Ok(())
    }

    /// The next report.
    pub(crate) fn next_note(&mut self) -> Option<StoreNote> {
        match self.notes.is_empty() {
            true => None,
            false => Some(self.notes.remove(0)),
        }
    }

    /// Writes all that is left, if the server is there; returns the losses that were not reported.
    pub(crate) fn end(mut self, now: i64) -> Option<StoreNote> {
        if self.outage.is_none() {
            self.commit(now);
        }
        // Nothing is left after a commit.
        self.discard_waiting();
        self.report.rest()
    }
}

/// Marks the open calls of a node as interrupted, because its border has just started. Returns them.
async fn mark_cut_calls(client: &Client, node: i16) -> Result<Vec<StoredCall>, DatabaseError> {
    let select = "SELECT calls.id, texts.details, \
        greatest((SELECT max(at) / 1000 FROM hornwork.messages WHERE messages.call = calls.id), \
        (SELECT max(at) FROM hornwork.events WHERE events.call = calls.id)) \
        FROM hornwork.calls JOIN hornwork.texts ON texts.id = calls.id WHERE calls.node = $1 AND calls.state < 2";
    let rows = client.query_typed(select, &[(&node, Type::INT2)]).await?;
    let mut cut = Vec::new();
    for row in rows {
        let (id, details): (i64, &str) = (row.try_get(0)?, row.try_get(1)?);
        let last: Option<i64> = row.try_get(2)?;
        // A row that cannot be read is not marked.
        let Ok(mut call) = serde_json::from_str::<StoredCall>(details) else {
            continue;
        };
        call.id = id;
        call.state = CallState::Interrupted;
        let known = [call.answered, last, Some(call.started)];
        call.ended = known.into_iter().flatten().max();
        (call.ended_by, call.reason) = match call.kind {
            CallKind::Call => ("border".into(), "the border was interrupted".into()),
            _ => (String::new(), "no end was seen".into()),
        };
        cut.push(call);
    }
    let ids: Vec<i64> = cut.iter().map(|call| call.id).collect();
    let durations: Vec<Option<i64>> = cut.iter().map(StoredCall::duration_ms).collect();
    let details: Vec<String> = cut
        .iter()
        .filter_map(|call| serde_json::to_string(call).ok())
        .collect();
    let update = "WITH cut AS (SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS rows (id, duration_ms, details)), \
        marked AS (UPDATE hornwork.calls SET state = 3, duration_ms = cut.duration_ms FROM cut WHERE calls.id = cut.id) \
        UPDATE hornwork.texts SET details = cut.details FROM cut WHERE texts.id = cut.id";
    let values: [Value<'_>; 3] = [
        (&ids, Type::INT8_ARRAY),
        (&durations, Type::INT8_ARRAY),
        (&details, Type::TEXT_ARRAY),
    ];
    if !ids.is_empty() {
        client.execute_typed(update, &values).await?;
    }
    Ok(cut)
}

#[cfg(test)]
#[path = "../../tests/common/postgres.rs"]
mod postgres;

#[cfg(test)]
mod tests {
    use super::super::{NODES, call_number, node_of};
    use super::*;
    use crate::segment::StoredDirection;
    use crate::settings::{DatabaseHost, StoreLocation};
    use crate::text::day_name;
    use engine::Transport;

    const NOW: i64 = 1_764_000_123_456_789;

    #[test]
    fn numbers_contain_time_and_node() {
        let number = call_number(NOW, 255);
        assert_eq!(node_of(number), 255);
        assert_eq!((number - 255) / NODES, NOW);
        assert!(number < call_number(NOW + 1, 0));
    }

    fn put(writer: &mut DatabaseWriter, call_id: &str) {
        let text =
            format!("OPTIONS sip:a@b SIP/2.0\r\nCall-ID: {call_id}\r\nCSeq: 1 OPTIONS\r\n\r\n");
        let message = StoredMessage {
            time: NOW as u64 * 1_000,
            direction: StoredDirection::Received,
            transport: Transport::Udp,
            source: "192.0.2.1:5060".parse().unwrap(),
            destination: "192.0.2.2:5060".parse().unwrap(),
            bytes: text.as_bytes(),
        };
        writer.message(&message, b"");
    }

    fn open(server: &postgres::Server, name: &str) -> DatabaseWriter {
        let database = DatabaseSettings {
            host: DatabaseHost::Socket(server.folder.clone()),
            port: postgres::PORT,
            user: "postgres".into(),
            database: name.to_owned(),
            authorities: None,
            password_file: None,
        };
        let settings = StoreSettings {
            location: StoreLocation::Database(database.clone()),
            node: "edge-1".into(),
            retention_days: 7,
            size: 1 << 30,
            secure_content: false,
            full_text: true,
        };
        DatabaseWriter::open(database, settings, NOW).unwrap()
    }

    /// A border with a clock that is a year ahead, which others share the database with.
    #[test]
    fn wrong_clock_removes_no_day_of_the_database() {
        let Some(server) = postgres::Server::new(&[], "") else {
            return;
        };
        let name = server.database();
        let mut writer = open(&server, &name);
        let exists = format!(
            "SELECT to_regclass('hornwork.calls_{}') IS NOT NULL",
            day_name(day_of(NOW))
        );
        let present = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64;
        writer.remove_old(present + 366 * DAY).unwrap();
        assert_eq!(server.psql(&name, &exists).as_deref(), Some("t"));
        let note = writer.next_note();
        assert!(
            matches!(note, Some(StoreNote::ClockAhead { .. })),
            "{note:?}"
        );
        writer.remove_old(present).unwrap();
        assert_eq!(server.psql(&name, &exists).as_deref(), Some("f"));
    }

    /// Another border removes a partition while this one asks for the sizes.
    #[test]
    fn partition_that_is_removed_meanwhile_has_no_size() {
        let Some(server) = postgres::Server::new(&[], "") else {
            return;
        };
        let name = server.database();
        let mut writer = open(&server, &name);
        let day = day_name(day_of(NOW) + 1);
        let removal =
            format!("BEGIN; DROP TABLE hornwork.calls_{day}; SELECT pg_sleep(0.5); COMMIT");
        let locked = "SELECT count(*) FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock'";
        std::thread::scope(|scope| {
            let other = scope.spawn(|| server.psql(&name, &removal));
            while !other.is_finished() && server.psql(&name, locked).as_deref() == Some("0") {}
            writer.tick(NOW);
            other.join().unwrap().unwrap();
        });
        assert!(writer.outage.is_none(), "{:?}", writer.outage);
        put(&mut writer, "one");
        writer.tick(NOW + COMMIT_INTERVAL);
        let stored = server.psql(&name, "SELECT count(*) FROM hornwork.messages");
        assert_eq!(stored.as_deref(), Some("1"));
    }

    #[test]
    fn a_transaction_whose_answer_was_lost_is_written_once() {
        let Some(server) = postgres::Server::new(&[], "") else {
            return;
        };
        let name = server.database();
        let mut writer = open(&server, &name);
        let count = || {
            server
                .psql(&name, "SELECT count(*) FROM hornwork.messages")
                .unwrap()
        };
        for (round, completed) in [true, false].into_iter().enumerate() {
            put(&mut writer, "one");
            let session = writer.session.as_mut().unwrap();
            let number = session.node.batch + 1;
            writer.in_flight = Some(InFlight {
                batch: number,
                messages: 1,
                events: 0,
                drops: 0,
                refused: LossCounts::default(),
            });
            if completed {
                let node = (session.node.number, number);
                let batch = Batch::new(node, &writer.index, &writer.pending, &[]);
                let done = session
                    .connection
                    .run(WRITE_LIMIT, |client| batch.write(client));
                done.unwrap();
            }
            writer.fail("no answer", NOW);
            put(&mut writer, "one");
            put(&mut writer, "two");
            writer.tick(NOW + 20_000_000 * (round as i64 + 1));
            assert!(writer.outage.is_none());
            assert_eq!(count(), ((round + 1) * 3).to_string());
        }
    }
}
