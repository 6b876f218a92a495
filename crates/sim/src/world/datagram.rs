//! Datagrams in the simulated network: sent, in a link, delivered.

use super::{World, WorldEvent};
use crate::host::{HostId, QueuedInput};
use crate::link::Fate;
use crate::queued::InTransit;
use crate::tap::{TapPoint, TapTransport};
use engine::{Datagram, DropReason, Input, MediaPacket, PacketVerdict, SocketId, SocketKind, Time};
use std::net::SocketAddr;

/// Headers of a datagram on the link, bytes.
const UDP_HEADER: usize = 28;
/// Buffers of delivered datagrams that are kept for the next ones, and the largest capacity of one, bytes.
const SPARE_BUFFERS: usize = 256;
const SPARE_BYTES: usize = 4_096;
/// Datagrams that wait at a busy host, at most; about the capacity of a kernel's default receive buffer.
const SOCKET_QUEUE: usize = 8_192;

impl World {
    /// Sends a datagram. Returns whether its socket is for signalling.
    pub(super) fn send(
        &mut self,
        id: HostId,
        socket: SocketId,
        destination: SocketAddr,
        bytes: &[u8],
    ) -> bool {
        let host = &self.hosts[id.0 as usize];
        let open = host.sockets.get(&socket);
        let source = open.and_then(|open| host.source(open.local, destination));
        let signalling = open.is_some_and(|open| open.kind == SocketKind::UdpSignalling);
        let Some(source) = source.filter(|_| bytes.len() <= 65_507) else {
            self.counts.strays += 1;
            self.counts.drops.count(DropReason::SendFailed);
            return false;
        };
        self.counts.sent += 1;
        self.tap(
            TapPoint::Sent(id),
            source,
            destination,
            TapTransport::Udp,
            bytes,
        );
        let Some(&to) = self.by_address.get(&destination.ip()) else {
            self.counts.undeliverable += 1;
            self.packet_line("no-host", source, destination, bytes);
            return signalling;
        };
        if self.is_partitioned(id, to) {
            self.counts.partitioned += 1;
            self.packet_line("partition", source, destination, bytes);
            return signalling;
        }
        let length = bytes.len() + UDP_HEADER;
        let digest = self.log.payload_digest(bytes);
        if self.is_queued((id, to)) {
            self.digested_line("udp", (source, destination), bytes, digest);
            let packet = InTransit::Datagram {
                source,
                destination,
                bytes: bytes.to_vec(),
            };
            self.enqueue((id, to), packet, length);
            return signalling;
        }
        let now = self.now;
        match self.link((id, to)).offer(length, now) {
            Fate::Lost(reason) => {
                self.counts.drops.count(reason);
                self.digested_line(reason.name(), (source, destination), bytes, digest);
            }
            Fate::Arrives(first, second) => {
                self.digested_line("udp", (source, destination), bytes, digest);
                for at in [Some(first), second].into_iter().flatten() {
                    let bytes = self.buffer(bytes);
                    self.agenda.push(
                        at,
                        WorldEvent::Datagram {
                            host: to,
                            source,
                            destination,
                            bytes,
                            digest,
                        },
                    );
                }
            }
        }
        signalling
    }

    /// A copy of a datagram, with room for its growth by a forwarder.
    fn buffer(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.reserve(bytes.len() + MediaPacket::TAILROOM);
        buffer.extend_from_slice(bytes);
        buffer
    }

    fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS && buffer.capacity() <= SPARE_BYTES {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    pub(crate) fn packet_line(
        &mut self,
        what: &str,
        source: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
    ) {
        self.digested_line(what, (source, to), bytes, None);
    }

    /// The line of a packet whose digest may be known: hashing a payload takes longer than the rest of its line.
    fn digested_line(
        &mut self,
        what: &str,
        ends: (SocketAddr, SocketAddr),
        bytes: &[u8],
        digest: Option<u64>,
    ) {
        if let Some(digest) = digest.or_else(|| self.log.payload_digest(bytes)) {
            self.log.packet(self.now, what, ends, (bytes.len(), digest));
            self.log.payload(bytes);
        }
    }

    pub(super) fn deliver(
        &mut self,
        id: HostId,
        (source, destination): (SocketAddr, SocketAddr),
        bytes: Vec<u8>,
        digest: Option<u64>,
    ) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        let socket = host
            .socket_at(destination, false)
            .filter(|_| host.node.is_some());
        let mut found = None;
        if let Some(socket) = socket
            && let Some(open) = host.sockets.get_mut(&socket)
            && let Some(node) = &mut host.node
        {
            let dropped = open.filter.is_some_and(|filter| !filter.passes(&bytes));
            open.shed += u64::from(dropped);
            found = Some((socket, open.kind == SocketKind::UdpMedia));
            let slow = !host.processing_time.is_zero() && open.kind == SocketKind::UdpSignalling;
            if dropped || node.filters_datagram(socket, source, &bytes) {
                self.packet_line("shed", source, destination, &bytes);
                return;
            }
            if slow {
                let worker = node.worker_at(socket, source);
                let waiting = QueuedInput::Datagram {
                    arrived: now,
                    source,
                    destination,
                    bytes,
                };
                let processor = host.processor(worker);
                if processor.busy_until <= now && processor.waiting.is_empty() {
                    return self.work(id, worker, waiting);
                }
                if processor.waiting.len() >= SOCKET_QUEUE {
                    self.counts.drops.count(DropReason::LinkQueueFull);
                    return;
                }
                processor.waiting.push_back(waiting);
                return self.plan_turn(id, worker);
            }
        }
        self.receive_at(id, found, (source, destination), bytes, (now, digest));
    }

    /// The open socket of a host that runs, and whether it is one for media.
    fn socket_of(&self, id: HostId, destination: SocketAddr) -> Option<(SocketId, bool)> {
        let host = &self.hosts[id.0 as usize];
        let socket = host.socket_at(destination, false)?;
        let open = host.sockets.get(&socket).filter(|_| host.node.is_some())?;
        Some((socket, open.kind == SocketKind::UdpMedia))
    }

    pub(crate) fn receive_datagram(
        &mut self,
        id: HostId,
        ends: (SocketAddr, SocketAddr),
        bytes: Vec<u8>,
        arrived: Time,
    ) {
        // Its socket may have been closed while it waited.
        let found = self.socket_of(id, ends.1);
        self.receive_at(id, found, ends, bytes, (arrived, None));
    }

    /// A datagram arrives at a socket, if there is one.
    fn receive_at(
        &mut self,
        id: HostId,
        found: Option<(SocketId, bool)>,
        (source, destination): (SocketAddr, SocketAddr),
        mut bytes: Vec<u8>,
        (arrived, digest): (Time, Option<u64>),
    ) {
        let Some((socket, media)) = found else {
            self.counts.undeliverable += 1;
            self.packet_line("closed-port", source, destination, &bytes);
            return;
        };
        self.counts.delivered += 1;
        self.digested_line("delivered", (source, destination), &bytes, digest);
        let udp = TapTransport::Udp;
        self.tap(TapPoint::Delivered(id), source, destination, udp, &bytes);
        let verdict = self.step(id, |node, now| {
            let verdict = if media {
                let length = bytes.len();
                bytes.resize(length + MediaPacket::TAILROOM, 0);
                let mut packet = MediaPacket {
                    socket,
                    source,
                    arrived: now,
                    buffer: &mut bytes,
                    length,
                };
                let verdict = node.forward(&mut packet, now);
                // A forwarder may change the packet's length.
                let length = packet.bytes().len();
                bytes.truncate(length);
                verdict
            } else {
                None
            };
            if verdict.is_none_or(|verdict| matches!(verdict, PacketVerdict::Punt(_))) {
                let datagram = Datagram {
                    socket,
                    source,
                    arrived,
                    bytes: &mut bytes,
                };
                node.handle(Input::Datagram(datagram), now);
            }
            verdict
        });
        match verdict.flatten() {
            Some(PacketVerdict::Forward {
                socket,
                destination,
            }) => {
                self.send(id, socket, destination, &bytes);
            }
            Some(PacketVerdict::Punt(_)) => self.counts.punted += 1,
            Some(PacketVerdict::Drop(reason)) => self.counts.drops.count(reason),
            Some(PacketVerdict::Consumed) | None => {}
        }
        self.recycle(bytes);
    }
}
