//! Outputs of a host besides those of its endpoint; packets lie in one buffer that is used again.

use engine::{Event, Output, SocketId, SocketKind};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

#[derive(Debug)]
enum Item {
    Open(SocketId, SocketKind, SocketAddr),
    Datagram(SocketId, SocketAddr, Range<usize>),
    Event(Event),
}

/// Outputs in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    items: VecDeque<Item>,
    bytes: Vec<u8>,
}

impl Outbox {
    /// Forgets the bytes of outputs that were taken.
    pub(crate) fn recycle(&mut self) {
        if self.items.is_empty() {
            self.bytes.clear();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn open(&mut self, socket: SocketId, kind: SocketKind, local: SocketAddr) {
        self.items.push_back(Item::Open(socket, kind, local));
    }

    pub(crate) fn datagram(&mut self, socket: SocketId, destination: SocketAddr, packet: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        let range = start..self.bytes.len();
        self.items
            .push_back(Item::Datagram(socket, destination, range));
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.items.push_back(Item::Event(event));
    }

    pub(crate) fn next(&mut self) -> Option<Output<'_>> {
        Some(match self.items.pop_front()? {
            Item::Open(socket, kind, local) => Output::Open {
                socket,
                kind,
                local,
            },
            Item::Datagram(socket, destination, range) => Output::Datagram {
                socket,
                destination,
                bytes: self.bytes.get(range).unwrap_or_default(),
            },
            Item::Event(event) => Output::Event(event),
        })
    }
}
