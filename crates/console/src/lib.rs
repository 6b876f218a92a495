//! Service assurance: the store of calls, messages and events, and its search.
//!
//! A store is a folder of one border, or a PostgreSQL database of several; [`HistoryWriter`] and [`HistoryReader`] are
//! the same for both.
//!
//! A folder holds *partitions* of at most a day each. A partition has the raw messages in pcapng files (*segments*) and
//! an index of calls in SQLite. The writer appends to the newest partition and removes old ones; the reader searches
//! all of them, also while a border writes. Segments are written before the index, so that the index can be completed
//! from them after a crash.
//!
//! A database has all of it in tables with a partition per day. Each transaction adds messages, calls and events
//! together.
//!
//! Neither has a clock: the program passes the time.
#![forbid(unsafe_code)]

mod call;
mod database;
mod edits;
mod export;
mod found;
mod index;
mod joined;
mod ladder;
mod losses;
mod pages;
mod partition;
mod reader;
mod recovery;
mod redact;
mod retention;
mod secure;
mod segment;
mod settings;
mod store;
mod text;
mod writer;

pub use call::{CallFilter, CallKind, CallState, SideQuality, StoredCall};
pub use edits::{AppliedRule, Edit, applied_rules, attribute, counterpart, edits};
pub use export::export;
pub use found::{CallPage, LoadedMessage, MAX_MESSAGES, StoreError, StoredEvent, UnreadPart};
pub use joined::{CallRecord, JoinedCall};
pub use ladder::{LadderStyle, ladder, messages_in_full};
pub use losses::{LossCounts, Losses};
pub use pages::{PAGE_FILES, PageFile, media_type, page_file};
pub use redact::{MaskedUsers, mask, mask_numbers, mask_phrase, redact};
pub use retention::{RetentionClock, newest_change};
pub use secure::{is_secure, reduce};
pub use segment::{StoredDirection, StoredMessage};
pub use settings::{DatabaseHost, DatabaseSettings, StoreLocation, StoreNote, StoreSettings};
pub use store::{HistoryReader, HistoryWriter};
pub use text::{escape_controls, parse_time, rfc3339};
