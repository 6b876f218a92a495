//! The driver's part for [`engine::Output::SocketFilter`].

use engine::{SocketFilter, SocketId};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct SocketFilters(BTreeMap<SocketId, (SocketFilter, u64)>);

impl SocketFilters {
    /// Sets the filter of a socket. Returns the drops of the previous one.
    pub fn set(&mut self, socket: SocketId, filter: Option<SocketFilter>) -> u64 {
        let before = self.0.remove(&socket);
        if let Some(filter) = filter {
            self.0.insert(socket, (filter, 0));
        }
        before.map_or(0, |(_, dropped)| dropped)
    }

    /// Whether the filter drops a datagram.
    pub fn drops(&mut self, socket: SocketId, bytes: &[u8]) -> bool {
        self.0.get_mut(&socket).is_some_and(|(filter, dropped)| {
            let drops = !filter.passes(bytes);
            *dropped += u64::from(drops);
            drops
        })
    }
}
