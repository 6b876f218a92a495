//! The common language of everything that has behaviour in Hornwork.
//!
//! An *engine* takes an input and the time, and gives outputs and the time at which it next wants to be called. It holds
//! no socket, reads no clock, starts no thread and draws no randomness of its own, so the same engine runs over
//! kernel sockets (`net`) and in virtual time (`sim`), and the same seed gives the same bytes.
#![forbid(unsafe_code)]

pub mod drops;
pub mod entropy;
pub mod event;
pub mod io;
pub mod limits;
pub mod shortcut;
pub mod sieve;
pub mod table;
pub mod time;
pub mod timers;
pub mod worker;

pub use drops::{DropReason, Drops};
pub use entropy::Entropy;
pub use event::{Event, Hundredths, Note};
pub use io::{
    CloseWhy, ConnectionId, Control, Datagram, Engine, Forward, Input, Output, Packet, Record,
    Secure, SocketId, SocketKind, Transport, Verdict,
};
pub use limits::Limits;
pub use shortcut::{Passed, Shortcut, ShortcutChange};
pub use sieve::{Prefix, Sieve};
pub use table::{BoundedMap, Full, HashKey};
pub use time::{Deadline, Time};
pub use worker::{Held, Hold, Parcel, ParcelHead, TransferStep, Worker};
