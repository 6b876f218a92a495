//! What a driver does for [`engine::Output::Sieve`].

use engine::{Sieve, SocketId};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Sieves(BTreeMap<SocketId, (Sieve, u64)>);

impl Sieves {
    /// Puts a sieve before a socket; how many the one before it has dropped.
    pub fn set(&mut self, socket: SocketId, sieve: Option<Sieve>) -> u64 {
        let before = self.0.remove(&socket);
        if let Some(sieve) = sieve {
            self.0.insert(socket, (sieve, 0));
        }
        before.map_or(0, |(_, dropped)| dropped)
    }

    /// Whether a datagram is dropped unread.
    pub fn drops(&mut self, socket: SocketId, bytes: &[u8]) -> bool {
        self.0.get_mut(&socket).is_some_and(|(sieve, dropped)| {
            let drops = !sieve.passes(bytes);
            *dropped += u64::from(drops);
            drops
        })
    }
}
