//! What a driver does for [`engine::Forward`]: a packet is lent with room behind it to grow into.

use engine::{Control as _, Forward, Packet, SocketId, Time, Verdict};
use media::Forwarder;
use std::net::SocketAddr;

/// Lends a packet to the forwarder; `bytes` are then what it made of it.
pub fn forwarded(
    forwarder: &mut Forwarder,
    (socket, from): (SocketId, SocketAddr),
    bytes: &mut Vec<u8>,
    now: Time,
) -> Verdict {
    let length = bytes.len();
    bytes.resize(length + Packet::ROOM, 0);
    let mut packet = Packet {
        length,
        ..Packet::new(socket, from, now, bytes)
    };
    let verdict = forwarder.forward(&mut packet, now);
    let length = packet.length;
    bytes.truncate(length);
    verdict
}

/// The packets of the forwarder's own making.
pub fn made(forwarder: &mut Forwarder) -> Vec<(SocketId, SocketAddr, Vec<u8>)> {
    let mut made = Vec::new();
    while let Some((socket, to, bytes)) = forwarder.next_packet() {
        made.push((socket, to, bytes.to_vec()));
    }
    made
}

impl super::Neighbourhood {
    /// Sends what the forwarder has made, and tells the border its reports.
    pub(super) fn drain_forwarder(&mut self) {
        // What the border answers to a report may lead here again: one report after the other, in their order.
        if std::mem::replace(&mut self.reporting, true) {
            return;
        }
        loop {
            for (socket, to, bytes) in made(&mut self.forwarder) {
                self.send_datagram(self.border_address(socket), to, &bytes);
            }
            let Some(report) = self.forwarder.next_report() else {
                break;
            };
            self.border.report(report, self.now);
            self.drain_border();
        }
        self.reporting = false;
    }
}
