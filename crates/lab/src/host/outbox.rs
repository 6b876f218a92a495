//! Outputs of a host besides those of its endpoint; packets are in one reused buffer.

use engine::{Event, Output, SocketId, SocketKind};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

#[derive(Debug)]
enum HostOutput {
    Open(SocketId, SocketKind, SocketAddr),
    Datagram(SocketId, SocketAddr, Range<usize>),
    Event(Box<Event>),
}

/// Outputs in order.
#[derive(Debug, Default)]
pub(crate) struct HostOutbox {
    items: VecDeque<HostOutput>,
    bytes: Vec<u8>,
}

impl HostOutbox {
    /// Clears the bytes of consumed outputs.
    pub(crate) fn recycle(&mut self) {
        if self.items.is_empty() {
            self.bytes.clear();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn open(&mut self, socket: SocketId, kind: SocketKind, local: SocketAddr) {
        self.items.push_back(HostOutput::Open(socket, kind, local));
    }

    pub(crate) fn datagram(&mut self, socket: SocketId, destination: SocketAddr, packet: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        let range = start..self.bytes.len();
        self.items
            .push_back(HostOutput::Datagram(socket, destination, range));
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.items.push_back(HostOutput::Event(Box::new(event)));
    }

    pub(crate) fn next(&mut self) -> Option<Output<'_>> {
        Some(match self.items.pop_front()? {
            HostOutput::Open(socket, kind, local) => Output::OpenSocket {
                socket,
                kind,
                local,
            },
            HostOutput::Datagram(socket, destination, range) => Output::Datagram {
                socket,
                destination,
                bytes: self.bytes.get(range).unwrap_or_default(),
            },
            HostOutput::Event(event) => Output::Event(*event),
        })
    }
}
