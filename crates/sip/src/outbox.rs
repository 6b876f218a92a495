//! What is to leave: messages in one reused arena, lent slice by slice.

use engine::{ConnectionId, Output, SocketId};
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
    },
    Close {
        connection: ConnectionId,
    },
}

/// Outputs in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Messages are composed at its end; see [`Outbox::begin`].
    pub(crate) arena: Vec<u8>,
    queue: VecDeque<(Item, u32, u32)>,
}

impl Outbox {
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
            Item::Stream { connection } => Output::Stream { connection, bytes },
            Item::Connect {
                connection,
                local,
                remote,
            } => Output::Connect {
                connection,
                local,
                remote,
            },
            Item::Close { connection } => Output::Close { connection },
        })
    }
}
