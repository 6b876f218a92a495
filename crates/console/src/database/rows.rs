//! The rows of one transaction.

use super::connection::DatabaseError;
use super::copy::CopyRows;
use super::{call_number, without_nul, words};
use crate::index::{CallEntry, OpenCalls};
use crate::losses::LossCounts;
use crate::partition::level_number;
use crate::segment::{MAX_MESSAGE, StoredDirection, StoredMessage, TRANSPORTS};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

/// Statements with the columns of many rows as arrays. A transaction whose outcome is unknown is repeated, so that all
/// of them may meet their own rows.
const CALLS: &str = "INSERT INTO hornwork.calls (id, duration_ms, node, kind, state, status, mos, trunk, codec, protection) \
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::smallint[], $5::smallint[], $6::smallint[], \
    $7::smallint[], $8::text[], $9::text[], $10::text[]) ON CONFLICT (id) DO UPDATE SET duration_ms = excluded.duration_ms, \
    kind = excluded.kind, state = excluded.state, status = excluded.status, mos = excluded.mos, trunk = excluded.trunk, \
    codec = excluded.codec, protection = excluded.protection";
const TEXTS: &str = "INSERT INTO hornwork.texts (id, details) SELECT * FROM unnest($1::bigint[], $2::text[]) \
    ON CONFLICT (id) DO UPDATE SET details = excluded.details";
const KEYS: &str = "INSERT INTO hornwork.keys (key, call) SELECT * FROM unnest($1::bigint[], $2::bigint[]) \
    ON CONFLICT DO NOTHING";
const NUMBERS: &str = "INSERT INTO hornwork.numbers (number, call) SELECT * FROM unnest($1::text[], $2::bigint[]) \
    ON CONFLICT DO NOTHING";
const WORDS: &str = "INSERT INTO hornwork.words (call, words) SELECT call, words::tsvector \
    FROM unnest($1::bigint[], $2::text[]) AS rows (call, words) ON CONFLICT DO NOTHING";
const NODE: &str = "UPDATE hornwork.nodes SET batch = $2, last_call = $3 WHERE number = $1";
const MESSAGES: &str = "COPY hornwork.messages (call, at, direction, transport, source, destination, bytes) \
    FROM STDIN (FORMAT binary)";
const EVENTS: &str =
    "COPY hornwork.events (at, call, node, level, name, fields) FROM STDIN (FORMAT binary)";
const DROPS: &str = "COPY hornwork.drops (at, count, node, reason) FROM STDIN (FORMAT binary)";

/// Rows that are refused one by one in a transaction, at most; then parts that are refused are given up as a whole, so
/// that a table that refuses all rows takes no more than some thousand statements.
const MAX_REFUSED: usize = 64;

/// A value of a statement with its type.
pub(super) type Value<'a> = (&'a (dyn ToSql + Sync), Type);

/// Messages that wait for the next transaction.
#[derive(Debug, Default)]
pub(super) struct PendingMessages {
    messages: Vec<PendingMessage>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct PendingMessage {
    time: u64,
    direction: StoredDirection,
    transport: usize,
    source: SocketAddr,
    destination: SocketAddr,
    start: usize,
    end: usize,
}

impl PendingMessages {
    /// Adds a message; returns its position.
    pub(super) fn push(&mut self, message: &StoredMessage<'_>) -> u32 {
        let kept = message.bytes.get(..MAX_MESSAGE).unwrap_or(message.bytes);
        let transport = TRANSPORTS.iter().position(|one| *one == message.transport);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(kept);
        self.messages.push(PendingMessage {
            time: message.time,
            direction: message.direction,
            transport: transport.unwrap_or(0),
            source: message.source,
            destination: message.destination,
            start,
            end: self.bytes.len(),
        });
        (self.messages.len() - 1) as u32
    }

    /// Removes the message that was added last.
    pub(super) fn remove_last(&mut self) {
        if let Some(message) = self.messages.pop() {
            self.bytes.truncate(message.start);
        }
    }

    /// Number of messages.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Memory in bytes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + self.messages.len() * size_of::<PendingMessage>()
    }

    /// Removes all messages. The memory of an outage is given back.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.bytes.clear();
        self.messages.shrink_to(64 << 10);
        self.bytes.shrink_to(16 << 20);
    }

    fn copy(&self, position: u32, call: i64, rows: &mut CopyRows) {
        let Some(message) = self.messages.get(position as usize) else {
            return;
        };
        let direction = match message.direction {
            StoredDirection::Observed => 0,
            StoredDirection::Received => 1,
            StoredDirection::Sent => 2,
        };
        let bytes = self.bytes.get(message.start..message.end);
        rows.row()
            .int8(call)
            .int8(i64::try_from(message.time).unwrap_or(i64::MAX))
            .int2(direction)
            .int2(message.transport as i16)
            .field(message.source.to_string().as_bytes())
            .field(message.destination.to_string().as_bytes())
            .field(bytes.unwrap_or_default());
    }
}

/// A part of the rows of a transaction, with one statement (calls: two).
#[derive(Clone, Copy, Debug)]
enum Part {
    Calls,
    Keys,
    Numbers,
    Words,
    Messages,
    Events,
    Drops,
}

/// In the order in which they are written.
const PARTS: [Part; 7] = [
    Part::Calls,
    Part::Keys,
    Part::Numbers,
    Part::Words,
    Part::Messages,
    Part::Events,
    Part::Drops,
];

/// Rows that the server refused because of their contents.
#[derive(Clone, Debug, Default)]
pub(super) struct RefusedRows {
    /// Their numbers by kind. Rows by which a call is found count as calls.
    pub(super) counts: LossCounts,
    /// The calls of refused messages, as the border numbers them; one entry for each message.
    pub(super) messages_of: Vec<i64>,
}

/// All rows of one transaction.
#[derive(Debug)]
pub(super) struct Batch {
    node: i16,
    number: i64,
    last_call: i64,
    ids: Vec<i64>,
    durations: Vec<Option<i64>>,
    nodes: Vec<i16>,
    kinds: Vec<i16>,
    states: Vec<i16>,
    statuses: Vec<Option<i16>>,
    mos: Vec<Option<i16>>,
    trunks: Vec<Option<String>>,
    codecs: Vec<Option<String>>,
    protections: Vec<Option<String>>,
    details: Vec<String>,
    keys: Vec<i64>,
    key_calls: Vec<i64>,
    numbers: Vec<String>,
    number_calls: Vec<i64>,
    words: Vec<String>,
    word_calls: Vec<i64>,
    messages: CopyRows,
    /// The call of each message, as the border numbers it.
    message_calls: Vec<i64>,
    events: CopyRows,
    drops: CopyRows,
    drop_counts: Vec<u64>,
    /// Days that need partitions.
    pub(super) days: BTreeSet<i64>,
}

/// A text of a column; an empty one is NULL.
fn column(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| without_nul(text).into_owned())
}

impl Batch {
    /// The rows of all changes that the database does not have. `number`: that of the transaction.
    pub(super) fn new(
        (node, number): (i16, i64),
        index: &OpenCalls,
        pending: &PendingMessages,
        drops: &[(i64, &'static str, u64)],
    ) -> Batch {
        let mut batch = Batch {
            node,
            number,
            last_call: index.last_id,
            ids: Vec::new(),
            durations: Vec::new(),
            nodes: Vec::new(),
            kinds: Vec::new(),
            states: Vec::new(),
            statuses: Vec::new(),
            mos: Vec::new(),
            trunks: Vec::new(),
            codecs: Vec::new(),
            protections: Vec::new(),
            details: Vec::new(),
            keys: Vec::new(),
            key_calls: Vec::new(),
            numbers: Vec::new(),
            number_calls: Vec::new(),
            words: Vec::new(),
            word_calls: Vec::new(),
            messages: CopyRows::new(7),
            message_calls: Vec::new(),
            events: CopyRows::new(6),
            drops: CopyRows::new(4),
            drop_counts: Vec::new(),
            days: BTreeSet::new(),
        };
        for entry in index.dirty.iter().filter_map(|at| index.entries.get(*at)) {
            batch.call(entry, pending);
        }
        for event in &index.events {
            batch.days.insert(crate::text::day_of(event.at));
            let rows = batch.events.row().int8(event.at);
            match event.call {
                Some(call) => rows.int8(call_number(call, node)),
                None => rows.null(),
            }
            .int2(node)
            .int2(level_number(event.level) as i16)
            .field(event.name.as_bytes())
            .field(without_nul(&event.fields).as_bytes());
        }
        for &(at, reason, count) in drops {
            batch.days.insert(crate::text::day_of(at));
            batch.drop_counts.push(count);
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let rows = batch.drops.row().int8(at).int8(count);
            rows.int2(node).field(reason.as_bytes());
        }
        batch
    }

    fn call(&mut self, entry: &CallEntry, pending: &PendingMessages) {
        let call = &entry.call;
        let id = call_number(call.id, self.node);
        // A call is plain data that always has a text.
        let Ok(details) = serde_json::to_string(call) else {
            return;
        };
        self.days.insert(crate::text::day_of(call.id));
        self.ids.push(id);
        self.durations.push(call.duration_ms());
        self.nodes.push(self.node);
        self.kinds.push(call.kind.number() as i16);
        self.states.push(call.state.number() as i16);
        self.statuses.push(call.status.map(|status| status as i16));
        self.mos.push(call.mos().map(|mos| mos as i16));
        self.trunks.push(column(&call.trunk));
        self.codecs.push(column(&call.codec));
        self.protections.push(column(&call.protection));
        self.details.push(details);
        for &key in entry.keys.iter().skip(entry.keys_written) {
            self.keys.push(key);
            self.key_calls.push(id);
        }
        for number in entry.numbers.iter().skip(entry.numbers_written) {
            self.numbers.push(without_nul(number).into_owned());
            self.number_calls.push(id);
        }
        for (_, positions) in &entry.chunks {
            for &position in positions {
                pending.copy(position, id, &mut self.messages);
                self.message_calls.resize(self.messages.len(), call.id);
            }
        }
        if let Some(text) = entry.due_words() {
            self.words.push(words::vector(text));
            self.word_calls.push(id);
        }
    }

    fn len(&self, part: Part) -> usize {
        match part {
            Part::Calls => self.ids.len(),
            Part::Keys => self.keys.len(),
            Part::Numbers => self.numbers.len(),
            Part::Words => self.words.len(),
            Part::Messages => self.messages.len(),
            Part::Events => self.events.len(),
            Part::Drops => self.drops.len(),
        }
    }

    /// Begins the transaction, and gives it its number.
    async fn begin(&self, client: &Client) -> Result<(), DatabaseError> {
        client.batch_execute("BEGIN").await?;
        let node: [Value<'_>; 3] = [
            (&self.node, Type::INT2),
            (&self.number, Type::INT8),
            (&self.last_call, Type::INT8),
        ];
        client.execute_typed(NODE, &node).await?;
        Ok(())
    }

    /// Writes all rows in one transaction.
    pub(super) async fn write(self, client: &Client) -> Result<(), DatabaseError> {
        self.begin(client).await?;
        for part in PARTS {
            self.put(client, part, 0..self.len(part)).await?;
        }
        client.batch_execute("COMMIT").await?;
        Ok(())
    }

    /// Begins the transaction and writes all rows that the server accepts: a part that it refuses is divided into
    /// halves until only the refused row is left. The caller ends the transaction.
    pub(super) async fn write_accepted(
        self,
        client: &Client,
    ) -> Result<RefusedRows, DatabaseError> {
        self.begin(client).await?;
        // Otherwise the end of the transaction could be refused, where no row can be left out.
        client
            .batch_execute("SET CONSTRAINTS ALL IMMEDIATE")
            .await?;
        let mut refused = RefusedRows::default();
        let mut found = 0;
        for part in PARTS {
            let mut waiting: Vec<_> = std::iter::once(0..self.len(part)).collect();
            while let Some(rows) = waiting.pop() {
                if rows.is_empty() {
                    continue;
                }
                client.batch_execute("SAVEPOINT part").await?;
                match self.put(client, part, rows.clone()).await {
                    Ok(()) => client.batch_execute("RELEASE part").await?,
                    Err(error) if error.concerns_rows() => {
                        client
                            .batch_execute("ROLLBACK TO part; RELEASE part")
                            .await?;
                        if rows.len() == 1 || found >= MAX_REFUSED {
                            found += 1;
                            self.count_refused(part, rows, &mut refused);
                        } else {
                            let middle = rows.start + rows.len() / 2;
                            waiting.push(middle..rows.end);
                            waiting.push(rows.start..middle);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(refused)
    }

    fn count_refused(&self, part: Part, rows: Range<usize>, refused: &mut RefusedRows) {
        let (count, counts) = (rows.len() as u64, &mut refused.counts);
        match part {
            Part::Calls | Part::Keys | Part::Numbers | Part::Words => counts.calls += count,
            Part::Events => counts.events += count,
            Part::Drops => {
                let drops = self.drop_counts.get(rows).unwrap_or_default();
                counts.drops += drops.iter().sum::<u64>();
            }
            Part::Messages => {
                counts.messages += count;
                let calls = self.message_calls.get(rows).unwrap_or_default();
                refused.messages_of.extend(calls);
            }
        }
    }

    /// Writes these rows of a part.
    async fn put(
        &self,
        client: &Client,
        part: Part,
        rows: Range<usize>,
    ) -> Result<(), DatabaseError> {
        const IDS: Type = Type::INT8_ARRAY;
        const TEXT: Type = Type::TEXT_ARRAY;
        if rows.is_empty() {
            return Ok(());
        }
        match part {
            Part::Calls => self.put_calls(client, rows).await,
            Part::Messages => self.messages.send(client, MESSAGES, rows).await,
            Part::Events => self.events.send(client, EVENTS, rows).await,
            Part::Drops => self.drops.send(client, DROPS, rows).await,
            Part::Keys => {
                let (keys, calls) = (&self.keys[rows.clone()], &self.key_calls[rows]);
                execute(client, KEYS, [(&keys, IDS), (&calls, IDS)]).await
            }
            Part::Numbers => {
                let (numbers, calls) = (&self.numbers[rows.clone()], &self.number_calls[rows]);
                execute(client, NUMBERS, [(&numbers, TEXT), (&calls, IDS)]).await
            }
            Part::Words => {
                let (calls, words) = (&self.word_calls[rows.clone()], &self.words[rows]);
                execute(client, WORDS, [(&calls, IDS), (&words, TEXT)]).await
            }
        }
    }

    async fn put_calls(&self, client: &Client, rows: Range<usize>) -> Result<(), DatabaseError> {
        const IDS: Type = Type::INT8_ARRAY;
        const SMALL: Type = Type::INT2_ARRAY;
        const TEXT: Type = Type::TEXT_ARRAY;
        let ids = &self.ids[rows.clone()];
        let calls: [Value<'_>; 10] = [
            (&ids, IDS),
            (&&self.durations[rows.clone()], IDS),
            (&&self.nodes[rows.clone()], SMALL),
            (&&self.kinds[rows.clone()], SMALL),
            (&&self.states[rows.clone()], SMALL),
            (&&self.statuses[rows.clone()], SMALL),
            (&&self.mos[rows.clone()], SMALL),
            (&&self.trunks[rows.clone()], TEXT),
            (&&self.codecs[rows.clone()], TEXT),
            (&&self.protections[rows.clone()], TEXT),
        ];
        client.execute_typed(CALLS, &calls).await?;
        let texts: [Value<'_>; 2] = [(&ids, IDS), (&&self.details[rows], TEXT)];
        client.execute_typed(TEXTS, &texts).await?;
        Ok(())
    }
}

async fn execute(
    client: &Client,
    statement: &str,
    values: [Value<'_>; 2],
) -> Result<(), DatabaseError> {
    client.execute_typed(statement, &values).await?;
    Ok(())
}
