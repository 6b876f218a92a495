//! The interface between state machines and their drivers: engines, inputs, outputs, time, events and counted drops.
//!
//! An *engine* takes an input and the time, and returns outputs and its next deadline. It has no socket, clock, thread
//! or random source of its own. The same engine therefore runs over kernel sockets (`net`) and in virtual time (`sim`),
//! and the same seed produces the same bytes.
#![forbid(unsafe_code)]

pub mod drops;
pub mod entropy;
pub mod event;
pub mod figures;
pub mod io;
pub mod limits;
pub mod offload;
pub mod paged_slab;
pub mod reason;
pub mod record;
pub mod socket_filter;
pub mod source;
pub mod table;
pub mod tap;
pub mod time;
pub mod timers;
pub mod worker;

pub use drops::{DropReason, Drops};
pub use entropy::Entropy;
pub use event::{Event, EventKind, EventLevel};
pub use figures::{Hundredths, ReportedJitter};
pub use io::{
    ClientTls, CloseReason, ConnectionId, Control, Datagram, Engine, Forward, Input, MediaPacket,
    Output, PacketVerdict, RecordingCommand, SocketId, SocketKind, Transport,
};
pub use limits::Limits;
pub use offload::{OffloadChange, OffloadStatistics, OffloadedStream};
pub use paged_slab::PagedSlab;
pub use reason::Reason;
pub use socket_filter::{Prefix, SocketFilter};
pub use source::network_of;
pub use table::{BoundedMap, Full, HashKey};
pub use tap::{MessageBatch, RecordedMessage};
pub use time::{Deadline, Time, push_digits};
pub use worker::{
    HandoffKind, HandoffMessage, MaybeShared, MaybeSharedGuard, TransferStep, Worker,
};
