//! Service assurance: the store of calls, messages and events, and its search.
//!
//! A folder holds *partitions* of at most a day each. A partition has the raw messages in pcapng files (*segments*) and
//! an index of calls in SQLite. [`HistoryWriter`] appends to the newest partition and removes old ones; [`HistoryReader`]
//! searches all of them, also while a border writes. Segments are written before the index, so that the index can be
//! completed from them after a crash.
//!
//! Neither has a clock: the program passes the time.
#![forbid(unsafe_code)]

mod call;
mod export;
mod index;
mod ladder;
mod partition;
mod reader;
mod recovery;
mod secure;
mod segment;
mod text;
mod writer;

pub use call::{CallFilter, CallKind, CallState, SideQuality, StoredCall};
pub use export::export;
pub use ladder::{LadderStyle, ladder, messages_in_full};
pub use reader::{CallPage, HistoryReader, LoadedMessage, StoreError, StoredEvent};
pub use secure::{is_secure, reduce};
pub use segment::{StoredDirection, StoredMessage};
pub use text::{escape_controls, parse_time, rfc3339};
pub use writer::{HistoryWriter, StoreNote, StoreSettings};
