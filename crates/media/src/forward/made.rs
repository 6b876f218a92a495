//! Packets of the forwarder's own making, from when they are made until the driver has taken them.

use engine::{Packet, SocketId};
use std::net::SocketAddr;

/// The header of an RTP packet (RFC 3550 section 5.1) that has only the fixed part.
pub(crate) fn head(
    payload_type: u8,
    marker: bool,
    sequence: u16,
    timestamp: u32,
    ssrc: u32,
) -> [u8; 12] {
    let mut head = [0; 12];
    head[0] = 0x80;
    head[1] = payload_type | u8::from(marker) << 7;
    head[2..4].copy_from_slice(&sequence.to_be_bytes());
    head[4..8].copy_from_slice(&timestamp.to_be_bytes());
    head[8..12].copy_from_slice(&ssrc.to_be_bytes());
    head
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Made {
    socket: SocketId,
    destination: SocketAddr,
    start: usize,
    length: usize,
}

/// All that wait, in order, in one buffer that keeps its size.
#[derive(Debug)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    packets: Vec<Made>,
    taken: usize,
    /// Where the packet in the making begins.
    open: usize,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        Outbox {
            bytes: Vec::new(),
            packets: Vec::new(),
            taken: 0,
            open: 0,
        }
    }

    /// Begins a packet with `head`, then `payload`; [`Outbox::finish`] must follow.
    pub(crate) fn begin(&mut self, head: &[u8], payload: &[u8]) {
        self.open = self.bytes.len();
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(payload);
    }

    /// The packet that was begun, with room behind it, for `change`; then it waits for the driver. Gives its length.
    ///
    /// # Errors
    /// As `change`; the packet is gone then.
    pub(crate) fn finish<E>(
        &mut self,
        way: (SocketId, SocketAddr),
        change: impl FnOnce(&mut Packet<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let start = self.open;
        let length = self.bytes.len() - start;
        self.bytes.resize(start + length + Packet::ROOM, 0);
        let (socket, destination) = way;
        let mut packet = Packet {
            length,
            ..Packet::new(
                socket,
                destination,
                engine::Time::ZERO,
                self.bytes.get_mut(start..).unwrap_or_default(),
            )
        };
        let done = change(&mut packet);
        let length = packet.length;
        match done {
            Ok(()) => {
                self.bytes.truncate(start + length);
                self.packets.push(Made {
                    socket,
                    destination,
                    start,
                    length,
                });
                Ok(length)
            }
            Err(error) => {
                self.bytes.truncate(start);
                Err(error)
            }
        }
    }

    /// The next packet for the driver.
    pub(crate) fn next(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        let Some(made) = self.packets.get(self.taken).copied() else {
            self.packets.clear();
            self.bytes.clear();
            self.taken = 0;
            return None;
        };
        self.taken += 1;
        let bytes = self.bytes.get(made.start..made.start + made.length)?;
        Some((made.socket, made.destination, bytes))
    }
}
