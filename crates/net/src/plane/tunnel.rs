//! Media through the tunnels of a gateway on this thread.

use super::bypass::without_scope;
use super::{Plane, Token};
use crate::batch::{BATCH, Receiver};
use crate::plain_datagram::{self, PlainDatagram};
use crate::raw::IpMarks;
use crate::tunnel::TunnelPath;
use engine::{DropReason, Time};
use rustix::event::epoll::{self, EventFlags};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// Numbers of the descriptors in tokens.
const DEVICE: u32 = 0;
const OUTER: u32 = 1;

/// The path, and the open media ports.
pub(super) struct TunnelPlane {
    path: Box<dyn TunnelPath>,
    descriptors: [OwnedFd; 3],
    /// Indices of the sockets. Keyed by addresses from the network, so the hash is keyed.
    ports: HashMap<SocketAddr, u32>,
    /// For IPv4 and IPv6.
    marks: [IpMarks; 2],
    identification: u16,
}

impl TunnelPlane {
    pub(super) fn open(&mut self, local: SocketAddr, index: u32) {
        // A socket of all addresses has packets of others, too.
        if !local.ip().is_unspecified() {
            self.ports.insert(without_scope(local), index);
        }
    }

    pub(super) fn close(&mut self, local: SocketAddr) {
        self.ports.remove(&without_scope(local));
    }
}

impl Plane {
    /// Attaches the path; media gets this code point in inner headers.
    ///
    /// # Errors
    /// The system refuses to watch its descriptors, or there is a path.
    pub(crate) fn start_tunnel(&mut self, path: Box<dyn TunnelPath>, dscp: u8) -> io::Result<()> {
        if self.tunnel.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let descriptors = path.descriptors()?;
        let marks = crate::socket::default_hops()?.map(|hops| IpMarks {
            class: dscp << 2,
            hops,
        });
        let set = self.prompt.as_ref().unwrap_or(&self.epoll);
        for (number, fd) in (0..).zip(&descriptors) {
            epoll::add(set, fd, Token::Tunnel(number).data(), EventFlags::IN)?;
        }
        self.tunnel = Some(TunnelPlane {
            path,
            descriptors,
            ports: HashMap::new(),
            marks,
            identification: 0,
        });
        Ok(())
    }

    /// Serves a ready descriptor of the path; media is received into `receiver`. Returns the number of packets, and
    /// whether more may be queued.
    pub(crate) fn receive_tunnel(
        &mut self,
        number: u32,
        flags: EventFlags,
        receiver: &mut Receiver,
        now: Time,
    ) -> (usize, bool) {
        let Some(TunnelPlane { path, ports, .. }) = &mut self.tunnel else {
            return (0, false);
        };
        let (mut count, room) = (0, receiver.room());
        match number {
            DEVICE => {
                let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
                count = path.send_from_device(failed, now);
            }
            OUTER => {
                self.shared.receive_calls.add(1);
                let (shared, sockets, origins) = (&self.shared, &self.sockets, &mut self.origins);
                count = path.receive(room, now, &mut |packet| {
                    // The kernel has rules for all other packets.
                    let Some(packet) = PlainDatagram::read(packet) else {
                        return false;
                    };
                    let index = ports.get(&packet.local);
                    let Some(socket) = index.and_then(|index| sockets.get(*index as usize)) else {
                        return false;
                    };
                    if !packet.is_header_intact() || !packet.has_plain_source() {
                        return false;
                    }
                    if !packet.is_datagram_intact() {
                        shared.drop_one(DropReason::MediaMalformed);
                        return true;
                    }
                    receiver.put(packet.source, packet.payload);
                    origins.push(Some(socket.id));
                    shared.tunnel_in.add(1);
                    true
                });
            }
            _ => path.execute(now),
        }
        self.end_tunnel_if_over();
        // This thread fills the device, too: it takes as many packets in a turn as the sockets of signalling give.
        let most = if number == DEVICE { BATCH } else { room };
        (count, count > 0 && count == most)
    }

    /// Does the path's work that is due.
    pub(crate) fn tick_tunnel(&mut self, now: Time) {
        if let Some(tunnel) = &mut self.tunnel
            && tunnel.path.next_tick() <= now
        {
            tunnel.path.tick(now);
            self.end_tunnel_if_over();
        }
    }

    /// The next time at which held signalling is released, or the path has work.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let tick = self.tunnel.as_ref().map(|tunnel| tunnel.path.next_tick());
        tick.into_iter().chain(self.next_release()).min()
    }

    /// Releases a path that has ended: its descriptors would stay ready.
    fn end_tunnel_if_over(&mut self) {
        let over = self.tunnel.take_if(|tunnel| tunnel.path.has_ended());
        for fd in over.iter().flat_map(|tunnel| &tunnel.descriptors) {
            // Fails only if the descriptor is not in the set.
            let _ = epoll::delete(self.prompt.as_ref().unwrap_or(&self.epoll), fd);
        }
    }

    /// Sends the queued media through tunnels as far as its routes lead there; the rest stays in its chains.
    pub(super) fn flush_tunnel(&mut self) {
        if self.pending_queues.is_empty() {
            return;
        }
        let Some(mut tunnel) = self.tunnel.take() else {
            return;
        };
        let now = self.now;
        let sent = self.send_queued(|local, destination, payload| {
            let ends = (without_scope(local), without_scope(destination));
            let marks = tunnel.marks[usize::from(local.is_ipv6())];
            tunnel.identification = tunnel.identification.wrapping_add(1);
            let identification = tunnel.identification;
            let addresses = (local.ip(), destination.ip());
            tunnel.path.send(addresses, now, &mut |room| {
                let most = room.len();
                plain_datagram::write(room, ends, marks, most, identification, payload)
            })
        });
        if sent.datagrams > 0 {
            tunnel.path.flush(now);
            self.shared.tunnel_out.add(sent.datagrams);
        }
        self.tunnel = Some(tunnel);
    }
}
