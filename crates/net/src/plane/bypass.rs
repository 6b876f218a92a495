//! Media beside the kernel's network stack: the paths that may take queued datagrams before their sockets.

use super::{Chain, NONE, Plane, SendEntry, SendQueue, start_of};
use std::net::SocketAddr;

/// Media that a path has taken.
#[derive(Default)]
pub(super) struct SentBypassing {
    pub(super) datagrams: usize,
    /// Media that is left for other paths.
    pub(super) rest: usize,
}

/// The address without flow label and scope, as packets have it.
pub(super) fn without_scope(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

impl Plane {
    /// Whether a path beside the stack receives media.
    pub(super) fn has_bypass(&self) -> bool {
        self.af_xdp.is_some() || self.tunnel.is_some()
    }

    /// Registers an open media port.
    pub(super) fn open_bypass_port(&mut self, local: Option<SocketAddr>, index: u32) {
        let Some(local) = local else {
            return;
        };
        if let Some(af_xdp) = &mut self.af_xdp {
            af_xdp.open(local, index);
        }
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.open(local, index);
        }
    }

    /// Removes a closed media port.
    pub(super) fn close_bypass_port(&mut self, local: Option<SocketAddr>) {
        let Some(local) = local else {
            return;
        };
        if let Some(af_xdp) = &mut self.af_xdp {
            af_xdp.close(local);
        }
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.close(local);
        }
    }

    /// Sends the queued media by the paths beside the stack, as far as they take it. Routes into a tunnel lead through
    /// no interface of AF_XDP.
    pub(super) fn flush_bypass(&mut self) {
        if self.has_bypass() {
            self.flush_tunnel();
            self.flush_af_xdp();
        }
    }

    /// Offers each queued media datagram to `send`: local address, destination, payload. What it does not take stays
    /// in its chain.
    pub(super) fn send_queued(
        &mut self,
        mut send: impl FnMut(SocketAddr, SocketAddr, &[u8]) -> bool,
    ) -> SentBypassing {
        let (mut sent, mut bytes) = (SentBypassing::default(), 0);
        for queue in &self.pending_queues {
            let chain = match *queue {
                SendQueue::Socket(index) => match self.sockets.get_mut(index as usize) {
                    Some(socket) if socket.media => &mut socket.chain,
                    _ => continue,
                },
                SendQueue::Address(address) => match self.chains.get_mut(usize::from(address)) {
                    Some(chain) => chain,
                    None => continue,
                },
            };
            let mut at = std::mem::replace(chain, Chain::EMPTY).first;
            let mut rest = Chain::EMPTY;
            while at != NONE {
                let number = at;
                let entry = &mut self.entries[number as usize];
                at = std::mem::replace(&mut entry.next, NONE);
                let socket = self.sockets.get(entry.socket as usize);
                let local = socket.and_then(|socket| socket.local);
                let taken = local.is_some_and(|local| {
                    // SAFETY: as in `push_singly`.
                    let payload = unsafe { payload_of(&self.arena, entry) };
                    send(local, entry.destination, payload)
                });
                if taken {
                    sent.datagrams += 1;
                    bytes += entry.length;
                    continue;
                }
                sent.rest += 1;
                match rest.first {
                    NONE => rest.first = number,
                    _ => self.entries[rest.last as usize].next = number,
                }
                rest.last = number;
            }
            match *queue {
                SendQueue::Socket(index) => self.sockets[index as usize].chain = rest,
                SendQueue::Address(address) => self.chains[usize::from(address)] = rest,
            }
        }
        self.shared.datagrams_out.add(sent.datagrams);
        self.shared.bytes_out.add(bytes);
        sent
    }
}

/// The payload of an entry.
///
/// # Safety
/// The entry is not sent yet: its payload is still valid.
unsafe fn payload_of<'a>(arena: &'a [u8], entry: &SendEntry) -> &'a [u8] {
    // SAFETY: the contract of this function.
    unsafe { std::slice::from_raw_parts(start_of(arena, entry), entry.length) }
}
