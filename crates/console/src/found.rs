//! Results of searches, the same for all backends of the store.

use crate::call::StoredCall;
use crate::segment::{StoredDirection, StoredMessage};
use engine::Transport;
use std::fmt;
use std::net::SocketAddr;

/// Calls examined for one page, at most, so that its time is bounded; the next page continues.
pub(crate) const MAX_EXAMINED: usize = 200_000;
/// As [`MAX_EXAMINED`], with a text that is searched in messages.
pub(crate) const MAX_EXAMINED_TEXT: usize = 20_000;
/// Messages of one call that are read, at most.
pub const MAX_MESSAGES: usize = 100_000;
/// Bytes of the messages of a joined call, about at most: peers choose the size of messages, and a border that shows
/// their call must not run out of memory.
pub(crate) const MAX_JOINED_BYTES: usize = 64 << 20;
/// Events of each record of a joined call, at most.
pub(crate) const MAX_JOINED_EVENTS: usize = 20_000;
/// Difference between the number of a call and its start, at most, microseconds: numbers ascend, and messages of
/// capture agents arrive later than ours.
pub(crate) const START_TOLERANCE: i64 = 2_000_000;

/// A store cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError(pub String);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreError {}

/// A part of a store that cannot be read, while others can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadPart {
    /// Name of the partition.
    pub name: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for UnreadPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnreadPart { name, reason } = self;
        write!(f, "partition {name} of the store cannot be read: {reason}")
    }
}

/// One page of a search, newest call first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallPage {
    /// The calls.
    pub calls: Vec<StoredCall>,
    /// Cursor of the next page: pass it as `before`; `None`: this page is the last one.
    pub next: Option<i64>,
}

/// An event of a call, or of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Microseconds since the Unix epoch.
    pub at: i64,
    /// Name.
    pub name: String,
    /// Fields as a JSON object.
    pub fields: String,
}

/// A message that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedMessage {
    /// Border that recorded it, in a store of several; empty: the only one.
    pub node: String,
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// Direction.
    pub direction: StoredDirection,
    /// Transport.
    pub transport: Transport,
    /// Sender.
    pub source: SocketAddr,
    /// Destination.
    pub destination: SocketAddr,
    /// The message.
    pub bytes: Vec<u8>,
}

impl LoadedMessage {
    /// The message with borrowed bytes.
    pub fn stored(&self) -> StoredMessage<'_> {
        StoredMessage {
            time: self.time,
            direction: self.direction,
            transport: self.transport,
            source: self.source,
            destination: self.destination,
            bytes: &self.bytes,
        }
    }
}
