//! What may go wrong on the way.

use super::{Arrival, Neighbourhood, Node};

impl Neighbourhood {
    /// From now on no datagram comes from an address, nor gets there.
    pub fn silence(&mut self, address: &str) {
        self.silent.push(address.parse().unwrap());
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
