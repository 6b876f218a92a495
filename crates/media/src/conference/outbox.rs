//! Packets of a turn, with SRTP applied, that wait for their deadline.

use crate::forward::flow::FlowSide;
use engine::{MediaPacket, SocketId, Time};
use std::net::SocketAddr;

/// Packets that wait for one deadline, in one buffer.
#[derive(Debug, Default)]
pub(super) struct TurnOutbox {
    pub(super) bytes: Vec<u8>,
    /// Participant, start and length of each packet.
    pub(super) packets: Vec<(u32, u32, u32)>,
}

impl TurnOutbox {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }

    /// Adds the packet that `write` appends, with SRTP if the side uses it. `write` returns false if there is none, and
    /// is not called while the side has no destination or waits for its SRTP keys: it would count a packet that is not
    /// sent.
    pub(super) fn put(
        &mut self,
        index: u32,
        side: &mut FlowSide,
        rtcp: bool,
        write: impl FnOnce(&mut Vec<u8>) -> bool,
    ) {
        let Some((socket, destination)) = destination(side, rtcp).filter(|_| side.can_protect())
        else {
            return;
        };
        let start = self.bytes.len();
        if !write(&mut self.bytes) {
            self.bytes.truncate(start);
            return;
        }
        let length = self.bytes.len() - start;
        self.bytes.resize(start + length + MediaPacket::TAILROOM, 0);
        let buffer = self.bytes.get_mut(start..).unwrap_or_default();
        let mut packet = MediaPacket {
            length,
            ..MediaPacket::new(socket, destination, Time::ZERO, buffer)
        };
        match side.protect(&mut packet, rtcp) {
            Ok(()) => {
                let length = packet.length;
                self.bytes.truncate(start + length);
                self.packets.push((index, start as u32, length as u32));
            }
            Err(reason) => {
                self.bytes.truncate(start);
                side.count_drop(reason);
            }
        }
    }
}

/// Socket and destination of packets to a side.
pub(super) fn destination(side: &FlowSide, rtcp: bool) -> Option<(SocketId, SocketAddr)> {
    match rtcp {
        true => side.rtcp_destination(),
        false => side.destination(),
    }
}
