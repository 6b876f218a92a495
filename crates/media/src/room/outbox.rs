//! Packets that wait, sealed where their seat is protected.

use crate::forward::flow::Side;
use engine::{Packet, SocketId, Time};
use std::net::SocketAddr;

/// Packets that wait for their deadline.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) bytes: Vec<u8>,
    /// Seat, beginning and length.
    pub(super) packets: Vec<(u32, u32, u32)>,
}

impl Outbox {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }

    /// Takes what `write` appends for a seat's side, protected as that wants it.
    pub(super) fn put(
        &mut self,
        index: u32,
        side: &mut Side,
        rtcp: bool,
        write: impl FnOnce(&mut Vec<u8>) -> bool,
    ) {
        let Some((socket, destination)) = way(side, rtcp) else {
            return;
        };
        let start = self.bytes.len();
        if !write(&mut self.bytes) {
            self.bytes.truncate(start);
            return;
        }
        let length = self.bytes.len() - start;
        self.bytes.resize(start + length + Packet::ROOM, 0);
        let buffer = self.bytes.get_mut(start..).unwrap_or_default();
        let mut packet = Packet {
            length,
            ..Packet::new(socket, destination, Time::ZERO, buffer)
        };
        match side.seal(&mut packet, rtcp) {
            Ok(()) => {
                let length = packet.length;
                self.bytes.truncate(start + length);
                self.packets.push((index, start as u32, length as u32));
            }
            Err(reason) => {
                self.bytes.truncate(start);
                side.dropped(reason);
            }
        }
    }
}

/// Where packets for a side go.
pub(super) fn way(side: &Side, rtcp: bool) -> Option<(SocketId, SocketAddr)> {
    match rtcp {
        true => side.rtcp_way(),
        false => side.way(),
    }
}
