//! The store in a PostgreSQL database that several borders share. Each border is a *node* with a number.
//!
//! All tables have a partition per day. A call and everything that belongs to it is in the partition of its start,
//! because its number contains that time: microseconds since the Unix epoch times 256, plus the number of the node.

mod connection;
mod copy;
mod layout;
mod reader;
mod rows;
mod tls;
mod words;
mod writer;

pub(crate) use reader::DatabaseReader;
pub(crate) use writer::DatabaseWriter;

/// Nodes of one database, at most.
const NODES: i64 = 256;
/// Microseconds per day.
const DAY: i64 = 86_400_000_000;

/// The number in the database of a call that this node has as `id`.
fn call_number(id: i64, node: i16) -> i64 {
    id.saturating_mul(NODES) + i64::from(node)
}

/// The lowest number that a call of this time can have.
fn first_number(micros: i64) -> i64 {
    micros.saturating_mul(NODES)
}

/// The node that a number in the database is of.
fn node_of(number: i64) -> i16 {
    number.rem_euclid(NODES) as i16
}

/// A text as PostgreSQL accepts it: without NUL.
fn without_nul(text: &str) -> std::borrow::Cow<'_, str> {
    match text.contains('\0') {
        true => text.replace('\0', "\u{fffd}").into(),
        false => text.into(),
    }
}
