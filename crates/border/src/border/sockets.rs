//! Media sockets: opened when a port is first used, kept for the next call, closed when too many are open.

use engine::{BoundedMap, HashKey, SocketId, SocketKind};
use slab::Slab;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Numbers of media sockets begin here; below are signalling sockets.
pub(crate) const MEDIA_BASE: u32 = 1 << 16;

/// What the driver has to do about sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketWork {
    /// Open this one.
    Open {
        /// Our number for it.
        socket: SocketId,
        /// What it is for.
        kind: SocketKind,
        /// Where.
        local: SocketAddr,
    },
    /// Close this one.
    Shut(SocketId),
}

#[derive(Debug)]
struct Entry {
    address: SocketAddr,
    /// Counts uses, so that old places in the idle queue are recognised.
    stamp: u32,
    busy: bool,
}

/// The media sockets that are open.
#[derive(Debug)]
pub(crate) struct MediaSockets {
    entries: Slab<Entry>,
    by_address: BoundedMap<SocketAddr, u32>,
    idle: VecDeque<(u32, u32)>,
    idle_count: usize,
    limit: usize,
    stamps: u32,
}

impl MediaSockets {
    /// No sockets; at most `limit` of them will be open at a time.
    pub(crate) fn new(limit: usize, key: HashKey) -> MediaSockets {
        MediaSockets {
            entries: Slab::new(),
            by_address: BoundedMap::new(limit, key),
            idle: VecDeque::new(),
            idle_count: 0,
            limit,
            stamps: 0,
        }
    }

    /// The socket at `address`, opened where it is not; `None` where as many as allowed are in use.
    pub(crate) fn acquire(
        &mut self,
        address: SocketAddr,
        work: &mut VecDeque<SocketWork>,
    ) -> Option<SocketId> {
        self.stamps = self.stamps.wrapping_add(1);
        if let Some(&index) = self.by_address.get(&address) {
            let entry = self.entries.get_mut(index as usize)?;
            if entry.busy {
                return None;
            }
            entry.busy = true;
            entry.stamp = self.stamps;
            self.idle_count -= 1;
            return Some(SocketId(MEDIA_BASE + index));
        }
        if self.entries.len() >= self.limit {
            self.shut_oldest(work)?;
        }
        let index = self.entries.insert(Entry {
            address,
            stamp: self.stamps,
            busy: true,
        }) as u32;
        if self.by_address.insert(address, index).is_err() {
            self.entries.try_remove(index as usize);
            return None;
        }
        let socket = SocketId(MEDIA_BASE + index);
        work.push_back(SocketWork::Open {
            socket,
            kind: SocketKind::UdpMedia,
            local: address,
        });
        Some(socket)
    }

    /// The call no longer needs `socket`; it stays open for the next one.
    pub(crate) fn release(&mut self, socket: SocketId) {
        let Some(index) = socket.0.checked_sub(MEDIA_BASE) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return;
        };
        if !entry.busy {
            return;
        }
        entry.busy = false;
        self.idle_count += 1;
        self.idle.push_back((index, entry.stamp));
        if self.idle.len() > 2 * self.entries.len() + 64 {
            let entries = &self.entries;
            self.idle
                .retain(|&(index, stamp)| is_idle(entries, index, stamp));
        }
    }

    /// The driver could not open `socket`: it exists no more.
    pub(crate) fn failed(&mut self, socket: SocketId) -> Option<SocketAddr> {
        let index = socket.0.checked_sub(MEDIA_BASE)?;
        let entry = self.entries.try_remove(index as usize)?;
        if !entry.busy {
            self.idle_count -= 1;
        }
        self.by_address.remove(&entry.address);
        Some(entry.address)
    }

    /// Closes every idle socket for which `wanted` says no (a changed configuration).
    pub(crate) fn shut_unwanted(
        &mut self,
        wanted: impl Fn(SocketAddr) -> bool,
        work: &mut VecDeque<SocketWork>,
    ) {
        let gone: Vec<usize> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.busy && !wanted(entry.address))
            .map(|(index, _)| index)
            .collect();
        for index in gone {
            self.shut(index as u32, work);
        }
    }

    /// Sockets that calls hold.
    pub(crate) fn busy(&self) -> usize {
        self.entries.len() - self.idle_count
    }

    /// Sockets that are open.
    pub(crate) fn open(&self) -> usize {
        self.entries.len()
    }

    fn shut_oldest(&mut self, work: &mut VecDeque<SocketWork>) -> Option<()> {
        while let Some((index, stamp)) = self.idle.pop_front() {
            if is_idle(&self.entries, index, stamp) {
                self.shut(index, work);
                return Some(());
            }
        }
        None
    }

    fn shut(&mut self, index: u32, work: &mut VecDeque<SocketWork>) {
        if let Some(entry) = self.entries.try_remove(index as usize) {
            self.by_address.remove(&entry.address);
            self.idle_count -= 1;
            work.push_back(SocketWork::Shut(SocketId(MEDIA_BASE + index)));
        }
    }
}

fn is_idle(entries: &Slab<Entry>, index: u32, stamp: u32) -> bool {
    entries
        .get(index as usize)
        .is_some_and(|entry| !entry.busy && entry.stamp == stamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Entropy;

    fn pool(limit: usize) -> MediaSockets {
        MediaSockets::new(limit, HashKey::new(&mut Entropy::from_number(1)))
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_socket_is_opened_once_and_used_again() {
        let (mut pool, mut work) = (pool(4), VecDeque::new());
        let first = pool.acquire(at(1), &mut work).unwrap();
        assert_eq!(work.len(), 1);
        assert_eq!(pool.acquire(at(1), &mut work), None, "it is in use");
        pool.release(first);
        pool.release(first);
        assert_eq!((pool.busy(), pool.open()), (0, 1));
        assert_eq!(pool.acquire(at(1), &mut work), Some(first));
        assert_eq!(work.len(), 1, "not opened again");
    }

    #[test]
    fn the_oldest_idle_one_makes_room_and_a_full_pool_refuses() {
        let (mut pool, mut work) = (pool(2), VecDeque::new());
        let first = pool.acquire(at(1), &mut work).unwrap();
        let second = pool.acquire(at(2), &mut work).unwrap();
        assert_eq!(pool.acquire(at(3), &mut work), None);
        pool.release(second);
        pool.release(first);
        work.clear();
        let third = pool.acquire(at(3), &mut work).unwrap();
        assert_eq!(work.pop_front(), Some(SocketWork::Shut(second)));
        assert!(
            matches!(work.pop_front(), Some(SocketWork::Open { socket, .. }) if socket == third)
        );
        assert_eq!((pool.busy(), pool.open()), (1, 2));
    }

    #[test]
    fn the_idle_queue_does_not_grow_with_use() {
        let (mut pool, mut work) = (pool(4), VecDeque::new());
        for _ in 0..10_000 {
            let socket = pool.acquire(at(7), &mut work).unwrap();
            pool.release(socket);
        }
        assert!(pool.idle.len() < 200);
        assert_eq!(pool.open(), 1);
    }

    #[test]
    fn a_failed_socket_is_forgotten() {
        let (mut pool, mut work) = (pool(4), VecDeque::new());
        let socket = pool.acquire(at(1), &mut work).unwrap();
        assert_eq!(pool.failed(socket), Some(at(1)));
        assert_eq!(pool.failed(socket), None);
        pool.release(socket);
        assert_eq!((pool.busy(), pool.open()), (0, 0));
    }
}
