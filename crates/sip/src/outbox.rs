//! What is to leave: messages in one reused arena, lent slice by slice.

use engine::{ConnectionId, Output, Parcel, ParcelHead, Secure, SocketId, Worker};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// An arena that grew beyond this gives its memory back when it is empty.
const KEEP: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
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
        /// With TLS, to the peer of this number in [`Outbox::peers`], or to whoever stands for the address.
        secure: Option<Option<u32>>,
        /// With a WebSocket in it.
        websocket: bool,
    },
    Close {
        connection: ConnectionId,
    },
    /// For another worker.
    Hand {
        worker: u8,
        head: ParcelHead,
    },
}

/// A peer of TLS connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerName {
    /// Whom its certificate must name.
    pub(crate) name: String,
    /// By which settings of the driver's.
    pub(crate) profile: String,
}

/// Outputs in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Messages are composed at its end; see [`Outbox::begin`].
    pub(crate) arena: Vec<u8>,
    /// Peers that are known by name.
    pub(crate) peers: Vec<PeerName>,
    /// The name of a peer that is known by its address alone, while it is lent.
    address: String,
    /// Whose outputs these are: what concerns connections of others is handed to them.
    pub(crate) worker: Worker,
    queue: VecDeque<(Item, u32, u32)>,
}

impl Outbox {
    /// An empty one of this worker's.
    pub(crate) fn of(worker: Worker) -> Outbox {
        Outbox {
            worker,
            ..Outbox::default()
        }
    }

    /// Where the next message begins. What was composed and not pushed before is thrown away.
    pub(crate) fn begin(&mut self) -> usize {
        let end = self.queue.back().map_or(0, |&(_, _, end)| end as usize);
        if end == 0 && self.arena.capacity() > KEEP {
            self.arena = Vec::new();
        }
        self.arena.truncate(end);
        end
    }

    /// Queues what was composed since `start`.
    pub(crate) fn push(&mut self, item: Item, start: usize) {
        let end = self.arena.len();
        self.queue.push_back((item, start as u32, end as u32));
    }

    /// Queues a copy of `bytes`.
    pub(crate) fn push_copy(&mut self, item: Item, bytes: &[u8]) {
        let start = self.begin();
        self.arena.extend_from_slice(bytes);
        self.push(item, start);
    }

    /// Queues something without bytes; a message begun at `start` stays where it is, behind it.
    pub(crate) fn push_before(&mut self, item: Item, start: usize) {
        self.queue.push_back((item, start as u32, start as u32));
    }

    /// Queues something without bytes, while no message is begun.
    pub(crate) fn push_bare(&mut self, item: Item) {
        let start = self.begin();
        self.push(item, start);
    }

    /// The Request-URI of the request that is being composed.
    pub(crate) fn request_uri(&self) -> &[u8] {
        let start = self.queue.back().map_or(0, |&(_, _, end)| end as usize);
        let line = self.arena.get(start..).unwrap_or_default();
        line.split(|byte| *byte == b' ').nth(1).unwrap_or_default()
    }

    /// Whether another worker holds a connection.
    pub(crate) fn is_elsewhere(&self, connection: ConnectionId) -> bool {
        !self.worker.is_alone() && connection.worker() != self.worker.number
    }

    /// What was composed since `start`.
    pub(crate) fn composed(&self, start: usize) -> &[u8] {
        self.arena.get(start..).unwrap_or_default()
    }

    pub(crate) fn next(&mut self) -> Option<Output<'_>> {
        let (item, start, end) = self.queue.pop_front()?;
        let bytes = self
            .arena
            .get(start as usize..end as usize)
            .unwrap_or_default();
        Some(match item {
            Item::Datagram {
                socket,
                destination,
            } => Output::Datagram {
                socket,
                destination,
                bytes,
            },
            Item::Stream { connection } if self.is_elsewhere(connection) => Output::Hand {
                worker: connection.worker(),
                parcel: Parcel {
                    head: ParcelHead::Send {
                        connection,
                        from: self.worker.number,
                    },
                    bytes,
                },
            },
            Item::Stream { connection } => Output::Stream { connection, bytes },
            Item::Connect {
                connection,
                local,
                remote,
                secure,
                websocket,
            } => Output::Connect {
                connection,
                local,
                remote,
                secure: secure.map(|peer| {
                    let peer = peer.and_then(|peer| self.peers.get(peer as usize));
                    if peer.is_none() {
                        self.address = remote.ip().to_string();
                    }
                    Secure {
                        name: peer.map_or(&self.address, |peer| &peer.name),
                        profile: peer.map_or("", |peer| &peer.profile),
                    }
                }),
                websocket,
            },
            Item::Close { connection } if self.is_elsewhere(connection) => Output::Hand {
                worker: connection.worker(),
                parcel: Parcel {
                    head: ParcelHead::Close { connection },
                    bytes: &[],
                },
            },
            Item::Close { connection } => Output::Close { connection },
            Item::Hand { worker, head } => Output::Hand {
                worker,
                parcel: Parcel { head, bytes },
            },
        })
    }
}
