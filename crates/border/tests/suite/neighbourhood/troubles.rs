//! What may go wrong on the way.

use super::{Arrival, Neighbourhood, Node, Weather};
use std::net::SocketAddr;

impl Neighbourhood {
    /// From now on no datagram comes from an address, nor gets there.
    pub fn silence(&mut self, address: &str) {
        self.silent.push(address.parse().unwrap());
    }

    pub(super) fn is_silent(&self, to: SocketAddr, from: SocketAddr) -> bool {
        self.silent.contains(&to) || self.silent.contains(&from)
    }

    /// Sends a datagram from or to a port that the weather spares; `false` where it does not.
    pub(super) fn spares(&mut self, to: SocketAddr, from: SocketAddr, bytes: &[u8]) -> bool {
        let mut ends = [from, to].into_iter();
        if !ends.any(|end| self.spared.contains(&end.port())) {
            return false;
        }
        let weather = std::mem::replace(&mut self.weather, Weather::fine());
        let bytes = bytes.to_vec();
        self.arrive(Arrival::Datagram { to, from, bytes });
        self.weather = weather;
        true
    }

    /// Breaks every stream of a phone.
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
