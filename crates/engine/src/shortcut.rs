//! Streams that may pass a forwarder by: it says which, a driver that can lets them through on a faster way and tells what went there.

use crate::{SocketId, Time};
use core::time::Duration;
use std::net::SocketAddr;

/// A stream of RTP in which the forwarder would only do what it did with the last packet: send it on, as it is. A packet may take the
/// shortcut where it comes to `socket` from `source`, has no padding, extension or contributing sources, this synchronisation source and
/// payload type, and the sequence number that comes next. Everything else is the forwarder's, and so is all that comes after it
/// until a new shortcut is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortcut {
    /// Where it comes in.
    pub socket: SocketId,
    /// From where.
    pub source: SocketAddr,
    /// From which socket it leaves.
    pub out: SocketId,
    /// Where to.
    pub destination: SocketAddr,
    /// Synchronisation source.
    pub ssrc: u32,
    /// Payload type.
    pub payload_type: u8,
    /// Sequence number of the last packet that the forwarder saw.
    pub sequence: u16,
    /// Its timestamp.
    pub timestamp: u32,
    /// When it came.
    pub arrived: Time,
    /// Units of the timestamp in a second.
    pub clock_rate: u32,
    /// The interarrival jitter after that packet (RFC 3550 section 6.4.1).
    pub jitter: Duration,
}

/// What a forwarder wants of its shortcuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortcutChange {
    /// From now on the stream may pass. Nothing is answered; that it was not possible is seen by the packets that still come.
    Open(Shortcut),
    /// The stream that comes to this socket is to come to the forwarder again. Answered by [`crate::Forward::shortcut_closed`] at once,
    /// also where none was open.
    Close(SocketId),
}

/// What has taken a shortcut since it was opened. All of it was in sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Packets; the other figures mean something where there were any.
    pub packets: u32,
    /// Their bytes, of UDP payload.
    pub bytes: u64,
    /// Timestamp of the last one.
    pub timestamp: u32,
    /// When the last one came.
    pub arrived: Time,
    /// The jitter after the last one.
    pub jitter: Duration,
    /// The sum of the jitter after each.
    pub jitter_sum: Duration,
    /// The largest jitter after any.
    pub jitter_most: Duration,
    /// The shortest time between two of them, the one that the forwarder saw last included.
    pub gap_least: Duration,
    /// The longest.
    pub gap_most: Duration,
}
