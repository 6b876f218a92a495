//! Connections: reliable ordered streams whose segments travel over the same links as datagrams.

use crate::host::HostId;
use engine::ConnectionId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Largest segment, in bytes.
pub(crate) const SEGMENT: usize = 1_460;
/// First retransmission interval, doubled with each try.
pub(crate) const RETRY: Duration = Duration::from_millis(200);
/// Tries before a connection fails (25 s after the first).
pub(crate) const TRIES: u32 = 7;
/// Bytes in transit or waiting on one side, above which the peer is too slow.
pub(crate) const WINDOW: usize = 256 << 10;
/// Time after which an end detects that its peer has vanished (TCP keep-alive).
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(30);
/// Headers of a segment on the link, in bytes.
pub(crate) const TCP_HEADER: usize = 40;

pub(crate) type StreamId = u64;

/// One of the two sides of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The side that connected.
    Opener,
    /// The side that listened.
    Listener,
}

impl Side {
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Opener => Side::Listener,
            Side::Listener => Side::Opener,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Segment {
    Syn,
    SynAck,
    Data { offset: u64, bytes: Vec<u8> },
    Fin { offset: u64 },
    Rst,
}

impl Segment {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Segment::Syn => "syn",
            Segment::SynAck => "syn-ack",
            Segment::Data { .. } => "data",
            Segment::Fin { .. } => "fin",
            Segment::Rst => "rst",
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Segment::Data { bytes, .. } => bytes,
            _ => &[],
        }
    }
}

pub(crate) struct End {
    pub(crate) host: HostId,
    pub(crate) life: u32,
    pub(crate) connection: ConnectionId,
    pub(crate) address: SocketAddr,
    /// The engine knows the connection and not its end.
    pub(crate) alive: bool,
    pub(crate) connected: bool,
    /// Data written before the connection was established.
    pub(crate) waiting: Vec<u8>,
    /// Offset of the next byte to send.
    pub(crate) next: u64,
    /// Bytes sent and not yet received by the other side.
    pub(crate) outstanding: usize,
    /// Offset of the next expected byte.
    pub(crate) expected: u64,
    /// Segments received out of order; `None` is the FIN.
    pub(crate) early: BTreeMap<u64, Option<Vec<u8>>>,
}

impl End {
    pub(crate) fn new(
        host: HostId,
        life: u32,
        connection: ConnectionId,
        address: SocketAddr,
        connected: bool,
    ) -> End {
        End {
            host,
            life,
            connection,
            address,
            alive: true,
            connected,
            waiting: Vec::new(),
            next: 0,
            outstanding: 0,
            expected: 0,
            early: BTreeMap::new(),
        }
    }
}

pub(crate) struct Stream {
    pub(crate) opener: End,
    /// Created when the SYN arrives.
    pub(crate) listener: Option<End>,
    pub(crate) remote: SocketAddr,
    /// Segments in transit or waiting for retransmission, and timers. The stream is removed when there are none and
    /// both sides have ended.
    pub(crate) under_way: u32,
}

impl Stream {
    pub(crate) fn end(&mut self, side: Side) -> Option<&mut End> {
        match side {
            Side::Opener => Some(&mut self.opener),
            Side::Listener => self.listener.as_mut(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.under_way == 0
            && !self.opener.alive
            && self.listener.as_ref().is_none_or(|end| !end.alive)
    }

    /// Source and destination of a segment sent by `side`.
    pub(crate) fn addresses(&self, side: Side) -> (SocketAddr, SocketAddr) {
        match side {
            Side::Opener => (self.opener.address, self.remote),
            Side::Listener => (self.remote, self.opener.address),
        }
    }
}
