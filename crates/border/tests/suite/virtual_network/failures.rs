//! Failures of the network.

use super::{Arrival, LinkConditions, Node, VirtualNetwork};
use engine::{SocketId, Transport};
use std::net::SocketAddr;

impl VirtualNetwork {
    /// From now on all datagrams from and to an address are lost.
    pub fn silence(&mut self, address: &str) {
        self.silent.push(address.parse().unwrap());
    }

    /// Stops or starts the program of a phone over UDP, whose state is kept: while it is stopped, its host reports the
    /// port as unreachable ([`VirtualNetwork::reports_unreachable`]).
    pub fn set_running(&mut self, phone: usize, runs: bool) {
        let address = (self.phones[phone].address, Transport::Udp);
        match runs {
            true => self
                .sockets
                .insert(address, (Node::Phone(phone), SocketId(1))),
            false => self.sockets.remove(&address),
        };
    }

    pub(super) fn is_silent(&self, to: SocketAddr, from: SocketAddr) -> bool {
        self.silent.contains(&to) || self.silent.contains(&from)
    }

    /// Sends a datagram without loss if one of its ports is listed as reliable. Returns whether it did.
    pub(super) fn send_reliably(&mut self, to: SocketAddr, from: SocketAddr, bytes: &[u8]) -> bool {
        let mut ends = [from, to].into_iter();
        if !ends.any(|end| self.reliable_ports.contains(&end.port())) {
            return false;
        }
        let link_conditions = std::mem::replace(&mut self.link_conditions, LinkConditions::ideal());
        let bytes = bytes.to_vec();
        self.arrive(Arrival::Datagram { to, from, bytes });
        self.link_conditions = link_conditions;
        true
    }

    /// Closes all streams of a phone.
    pub fn break_streams(&mut self, phone: usize) {
        let mut broken: Vec<_> = self
            .streams
            .iter()
            .filter(|(from, _)| from.0 == Node::Phone(phone))
            .map(|(from, to)| (*from, *to))
            .collect();
        broken.sort_by_key(|(from, _)| *from);
        for (from, to) in broken {
            self.streams.remove(&from);
            self.streams.remove(&to);
            self.arrive(Arrival::Closed { to });
            self.arrive(Arrival::Closed { to: from });
        }
    }
}
