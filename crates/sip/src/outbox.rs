//! Outgoing messages, in one reused arena; the output borrows its slices.

use engine::{ClientTls, ConnectionId, HandoffKind, HandoffMessage, Output, SocketId, Worker};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// An empty arena above this capacity (bytes) is freed.
const KEEP: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(crate) enum OutboxItem {
    Datagram {
        socket: SocketId,
        destination: SocketAddr,
    },
    Stream {
        connection: ConnectionId,
    },
    Connect {
        connection: ConnectionId,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        /// With TLS, to the peer of this index in [`Outbox::peers`], or to any certificate that is valid for the
        /// address.
        secure: Option<Option<u32>>,
        /// With a WebSocket in it.
        websocket: bool,
    },
    Close {
        connection: ConnectionId,
    },
    /// A handoff message to another worker.
    HandOff {
        worker: u8,
        kind: HandoffKind,
    },
}

/// A named peer of TLS connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerName {
    /// Name that its certificate must contain.
    pub(crate) name: String,
    /// Name of the driver's TLS settings.
    pub(crate) profile: String,
}

/// Outputs in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Messages are composed at its end, see [`Outbox::begin`].
    pub(crate) arena: Vec<u8>,
    /// Named peers.
    pub(crate) peers: Vec<PeerName>,
    /// The name of an unnamed peer (its address), while the output borrows it.
    address: String,
    /// The worker of this endpoint. Outputs for connections of other workers are handed off.
    pub(crate) worker: Worker,
    queue: VecDeque<(OutboxItem, u32, u32)>,
}

impl Outbox {
    /// An empty outbox of this worker.
    pub(crate) fn of(worker: Worker) -> Outbox {
        Outbox {
            worker,
            ..Outbox::default()
        }
    }

    /// Start of the next message. A composed message that was not pushed is discarded.
    pub(crate) fn begin(&mut self) -> usize {
        let end = self.queue.back().map_or(0, |&(_, _, end)| end as usize);
        if end == 0 && self.arena.capacity() > KEEP {
            self.arena = Vec::new();
        }
        self.arena.truncate(end);
        end
    }

    /// Queues the message composed since `start`.
    pub(crate) fn push(&mut self, item: OutboxItem, start: usize) {
        let end = self.arena.len();
        self.queue.push_back((item, start as u32, end as u32));
    }

    /// Queues a copy of `bytes`.
    pub(crate) fn push_copy(&mut self, item: OutboxItem, bytes: &[u8]) {
        let start = self.begin();
        self.arena.extend_from_slice(bytes);
        self.push(item, start);
    }

    /// Queues an item without bytes before the message that begins at `start`.
    pub(crate) fn push_before(&mut self, item: OutboxItem, start: usize) {
        self.queue.push_back((item, start as u32, start as u32));
    }

    /// Queues an item without bytes while no message is being composed.
    pub(crate) fn push_bare(&mut self, item: OutboxItem) {
        let start = self.begin();
        self.push(item, start);
    }

    /// The Request-URI of the request that is being composed.
    pub(crate) fn request_uri(&self) -> &[u8] {
        let start = self.queue.back().map_or(0, |&(_, _, end)| end as usize);
        let line = self.arena.get(start..).unwrap_or_default();
        line.split(|byte| *byte == b' ').nth(1).unwrap_or_default()
    }

    /// Whether another worker holds the connection.
    pub(crate) fn is_foreign(&self, connection: ConnectionId) -> bool {
        !self.worker.is_alone() && connection.worker() != self.worker.number
    }

    /// The bytes composed since `start`.
    pub(crate) fn composed(&self, start: usize) -> &[u8] {
        self.arena.get(start..).unwrap_or_default()
    }

    /// The next item with its bytes.
    pub(crate) fn front(&self) -> Option<(OutboxItem, &[u8])> {
        let &(item, start, end) = self.queue.front()?;
        let bytes = self.arena.get(start as usize..end as usize);
        Some((item, bytes.unwrap_or_default()))
    }

    pub(crate) fn next(&mut self) -> Option<Output<'_>> {
        let (item, start, end) = self.queue.pop_front()?;
        let bytes = self
            .arena
            .get(start as usize..end as usize)
            .unwrap_or_default();
        Some(match item {
            OutboxItem::Datagram {
                socket,
                destination,
            } => Output::Datagram {
                socket,
                destination,
                bytes,
            },
            OutboxItem::Stream { connection } if self.is_foreign(connection) => Output::HandOff {
                worker: connection.worker(),
                message: HandoffMessage {
                    kind: HandoffKind::Send {
                        connection,
                        from: self.worker.number,
                    },
                    bytes,
                },
            },
            OutboxItem::Stream { connection } => Output::Stream { connection, bytes },
            OutboxItem::Connect {
                connection,
                local,
                remote,
                secure,
                websocket,
            } => Output::Connect {
                connection,
                local,
                remote,
                tls: secure.map(|peer| {
                    let peer = peer.and_then(|peer| self.peers.get(peer as usize));
                    if peer.is_none() {
                        self.address = remote.ip().to_string();
                    }
                    ClientTls {
                        server_name: peer.map_or(&self.address, |peer| &peer.name),
                        profile: peer.map_or("", |peer| &peer.profile),
                    }
                }),
                websocket,
            },
            OutboxItem::Close { connection } if self.is_foreign(connection) => Output::HandOff {
                worker: connection.worker(),
                message: HandoffMessage {
                    kind: HandoffKind::Close { connection },
                    bytes: &[],
                },
            },
            OutboxItem::Close { connection } => Output::Close { connection },
            OutboxItem::HandOff { worker, kind } => Output::HandOff {
                worker,
                message: HandoffMessage { kind, bytes },
            },
        })
    }
}
