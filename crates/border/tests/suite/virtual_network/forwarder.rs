//! The driver's part for [`engine::Forward`]: a packet is lent with free space behind it.

use engine::{Control as _, Forward, MediaPacket, PacketVerdict, SocketId, Time};
use media::Forwarder;
use std::net::SocketAddr;

/// Lends a packet to the forwarder; `bytes` is the packet afterwards.
pub fn forward_packet(
    forwarder: &mut Forwarder,
    (socket, from): (SocketId, SocketAddr),
    bytes: &mut Vec<u8>,
    now: Time,
) -> PacketVerdict {
    let length = bytes.len();
    bytes.resize(length + MediaPacket::TAILROOM, 0);
    let mut packet = MediaPacket {
        length,
        ..MediaPacket::new(socket, from, now, bytes)
    };
    let verdict = forwarder.forward(&mut packet, now);
    let length = packet.length;
    bytes.truncate(length);
    verdict
}

/// The packets that the forwarder generated.
pub fn generated_packets(forwarder: &mut Forwarder) -> Vec<(SocketId, SocketAddr, Vec<u8>)> {
    let mut made = Vec::new();
    while let Some((socket, to, bytes)) = forwarder.next_packet() {
        made.push((socket, to, bytes.to_vec()));
    }
    made
}

impl super::VirtualNetwork {
    /// Sends the generated packets, and passes the forwarder's reports to the border.
    pub(super) fn drain_forwarder(&mut self) {
        // Handling a report may lead here again, so reports are handled one after the other.
        if std::mem::replace(&mut self.reporting, true) {
            return;
        }
        loop {
            for (socket, to, bytes) in generated_packets(&mut self.forwarder) {
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
