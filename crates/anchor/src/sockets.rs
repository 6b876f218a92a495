//! Media sockets: opened when a call uses their port, kept open for a short time after its end for the next call, then
//! closed, so that other programs can use the port.

use core::time::Duration;
use engine::PagedSlab;
use engine::{BoundedMap, HashKey, SocketId, SocketKind, Time};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Maximum number of open media sockets: that of open files in the unit of the package. Where the process may have
/// fewer, [`MediaSocketPool::set_open_files`] lowers it.
pub const MEDIA_SOCKETS: usize = 262_144;
/// Of so many open files four may be media sockets; the others are for connections, logs and records, which must not
/// fail because of calls.
const SHARE_OF_FILES: u64 = 5;
/// First number of media sockets; lower ones are signalling sockets.
pub const MEDIA_BASE: u32 = 1 << 16;

/// Time for which a socket stays open after its call. Opening and closing the four sockets of a call costs half as much
/// as the rest of the call; from a thousand calls per second on, most sockets are reused within this time.
const KEEP: Duration = Duration::from_secs(1);
/// Shortest interval between two checks of idle sockets.
const SWEEP: Duration = Duration::from_millis(50);
/// Maximum number of sockets closed at once, which takes half a millisecond; the others follow after [`PAUSE`].
const PER_SWEEP: usize = 128;
const PAUSE: Duration = Duration::from_millis(5);

/// A socket operation for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketWork {
    /// Open a socket.
    Open {
        /// Number of the socket.
        socket: SocketId,
        /// Purpose.
        kind: SocketKind,
        /// Address.
        local: SocketAddr,
    },
    /// Close a socket.
    Shut(SocketId),
}

#[derive(Debug)]
struct PooledSocket {
    address: SocketAddr,
    /// Counter of uses, by which outdated entries of the idle queue are recognised.
    stamp: u32,
    busy: bool,
    /// Whether the driver has yet to confirm the opening.
    opening: bool,
    /// Whether it was released for good during the opening: it is closed after the confirmation.
    unwanted: bool,
    /// Call that waits for the opening; 0: none.
    waiter: u64,
    /// Call that gets the packets passed up by the forwarder; 0: none.
    owner: u64,
}

impl PooledSocket {
    /// Marks it as in use again.
    fn take(&mut self, stamp: u32) {
        self.busy = true;
        self.unwanted = false;
        self.stamp = stamp;
    }
}

/// A socket that no call uses.
#[derive(Clone, Copy, Debug)]
struct IdleSocket {
    index: u32,
    /// Counter of its last use.
    stamp: u32,
    since: Time,
}

/// The open media sockets.
#[derive(Debug)]
pub struct MediaSocketPool {
    entries: PagedSlab<PooledSocket>,
    by_address: BoundedMap<SocketAddr, u32>,
    /// In order of release.
    idle: VecDeque<IdleSocket>,
    /// Next check of idle sockets.
    next_sweep: Time,
    idle_count: usize,
    limit: usize,
    /// Open sockets from which on an idle one is closed before another is opened.
    kept: usize,
    stamps: u32,
}

impl MediaSocketPool {
    /// An empty table for at most `limit` open sockets.
    pub fn new(limit: usize, key: HashKey) -> MediaSocketPool {
        MediaSocketPool {
            entries: PagedSlab::new(),
            by_address: BoundedMap::new(limit, key),
            idle: VecDeque::new(),
            next_sweep: Time::ZERO,
            idle_count: 0,
            limit,
            kept: limit,
            stamps: 0,
        }
    }

    /// Sets the number of files that the process may have open for this table and all else.
    pub fn set_open_files(&mut self, files: u64) {
        let most = files / SHARE_OF_FILES * (SHARE_OF_FILES - 1);
        self.limit = usize::try_from(most).unwrap_or(usize::MAX).min(self.limit);
        self.kept = self.limit;
    }

    /// Like [`MediaSocketPool::acquire`]. `before` is the socket of the previous use of this address, which saves the
    /// lookup in most cases.
    pub fn acquire_again(
        &mut self,
        address: SocketAddr,
        before: Option<SocketId>,
        work: &mut VecDeque<SocketWork>,
    ) -> Option<SocketId> {
        let stamp = self.stamps.wrapping_add(1);
        match before.and_then(|socket| Some((socket, self.entry_mut(socket)?))) {
            Some((socket, entry)) if entry.address == address && !entry.busy => {
                entry.take(stamp);
                self.stamps = stamp;
                self.idle_count -= 1;
                Some(socket)
            }
            _ => self.acquire(address, work),
        }
    }

    /// The socket at `address`, opened if necessary; `None` if the limit of sockets is in use.
    pub fn acquire(
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
            entry.take(self.stamps);
            self.idle_count -= 1;
            return Some(SocketId(MEDIA_BASE + index));
        }
        if self.entries.len() >= self.kept
            && self.close_oldest(work).is_none()
            && self.entries.len() >= self.limit
        {
            return None;
        }
        let index = self.entries.insert(PooledSocket {
            address,
            stamp: self.stamps,
            busy: true,
            opening: true,
            unwanted: false,
            waiter: 0,
            owner: 0,
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

    /// Releases a socket after a call. It stays open for a while.
    pub fn release(&mut self, socket: SocketId, now: Time) {
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
        entry.owner = 0;
        let stamp = entry.stamp;
        self.idle_count += 1;
        self.idle.push_back(IdleSocket {
            index,
            stamp,
            since: now,
        });
        if self.idle.len() > 2 * self.entries.len() + 64 {
            let entries = &self.entries;
            self.idle.retain(|idle| is_idle(entries, idle));
        }
    }

    /// When [`MediaSocketPool::close_idle`] is due.
    pub fn next_close(&self) -> Option<Time> {
        let oldest = self.idle.front()?;
        Some((oldest.since + KEEP).max(self.next_sweep))
    }

    /// Closes sockets that have been idle for too long.
    pub fn close_idle(&mut self, now: Time, work: &mut VecDeque<SocketWork>) {
        if self.next_close().is_none_or(|due| due > now) {
            return;
        }
        let mut closed = 0;
        while let Some(&idle) = self.idle.front()
            && idle.since + KEEP <= now
            && closed < PER_SWEEP
        {
            self.idle.pop_front();
            if is_closable(&self.entries, &idle) {
                self.close_at(idle.index, work);
                closed += 1;
            }
        }
        let pause = if closed == PER_SWEEP { PAUSE } else { SWEEP };
        self.next_sweep = now + pause;
    }

    /// Whether the opening of `socket` is not confirmed yet.
    pub fn is_opening(&self, socket: SocketId) -> bool {
        self.entry(socket).is_some_and(|entry| entry.opening)
    }

    /// Registers `waiter` (not 0) for the opening of `socket`.
    pub fn await_open(&mut self, socket: SocketId, waiter: u64) {
        if let Some(entry) = self.entry_mut(socket).filter(|entry| entry.opening) {
            entry.waiter = waiter;
        }
    }

    /// Assigns STUN and DTLS packets of `socket` to `owner` (not 0) until its release.
    pub fn own(&mut self, socket: SocketId, owner: u64) {
        if let Some(entry) = self.entry_mut(socket) {
            entry.owner = owner;
        }
    }

    /// The owner of packets that the forwarder passes up.
    pub fn owner(&self, socket: SocketId) -> Option<u64> {
        let owner = self.entry(socket)?.owner;
        (owner != 0).then_some(owner)
    }

    /// The driver has opened `socket`. Returns the call that waits for it.
    pub fn opened(
        &mut self,
        socket: SocketId,
        now: Time,
        work: &mut VecDeque<SocketWork>,
    ) -> Option<u64> {
        let entry = self.entry_mut(socket)?;
        entry.opening = false;
        let waiter = core::mem::take(&mut entry.waiter);
        let index = socket.0 - MEDIA_BASE;
        match (entry.busy, entry.unwanted) {
            (true, _) => {}
            (false, true) => self.close_at(index, work),
            (false, false) => {
                let stamp = entry.stamp;
                self.idle.push_back(IdleSocket {
                    index,
                    stamp,
                    since: now,
                });
            }
        }
        Some(waiter).filter(|&waiter| waiter != 0)
    }

    /// The driver could not open `socket`, which is removed. Returns its address and the call that waits for it.
    pub fn failed(&mut self, socket: SocketId) -> Option<(SocketAddr, Option<u64>)> {
        let index = socket.0.checked_sub(MEDIA_BASE)?;
        let entry = self.entries.try_remove(index as usize)?;
        if !entry.busy {
            self.idle_count -= 1;
        }
        self.by_address.remove(&entry.address);
        let waiter = Some(entry.waiter).filter(|&waiter| waiter != 0);
        Some((entry.address, waiter))
    }

    /// Releases a socket that no other call may use.
    pub fn discard(&mut self, socket: SocketId, now: Time, work: &mut VecDeque<SocketWork>) {
        self.release(socket, now);
        match self.entry_mut(socket).filter(|entry| !entry.busy) {
            Some(entry) if entry.opening => entry.unwanted = true,
            Some(_) => self.close_at(socket.0 - MEDIA_BASE, work),
            None => {}
        }
    }

    fn entry(&self, socket: SocketId) -> Option<&PooledSocket> {
        let index = socket.0.checked_sub(MEDIA_BASE)?;
        let entry = self.entries.get(index as usize)?;
        Some(entry)
    }

    fn entry_mut(&mut self, socket: SocketId) -> Option<&mut PooledSocket> {
        let index = socket.0.checked_sub(MEDIA_BASE)?;
        self.entries.get_mut(index as usize)
    }

    /// Closes idle sockets whose address is not `wanted` after a reload.
    pub fn close_outside_ranges(
        &mut self,
        wanted: impl Fn(SocketAddr) -> bool,
        work: &mut VecDeque<SocketWork>,
    ) {
        let gone: Vec<usize> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.busy && !entry.opening && !wanted(entry.address))
            .map(|(index, _)| index)
            .collect();
        for index in gone {
            self.close_at(index as u32, work);
        }
    }

    /// Sockets that calls hold.
    pub fn busy(&self) -> usize {
        self.entries.len() - self.idle_count
    }

    /// Sockets that are open.
    pub fn open(&self) -> usize {
        self.entries.len()
    }

    /// Closes idle sockets before their time, the oldest first, because no other can be opened. From now on fewer are
    /// kept.
    pub(crate) fn close_early(&mut self, work: &mut VecDeque<SocketWork>) {
        self.kept = self.kept.min(self.entries.len());
        for _ in 0..PER_SWEEP {
            if self.close_oldest(work).is_none() {
                return;
            }
        }
    }

    fn close_oldest(&mut self, work: &mut VecDeque<SocketWork>) -> Option<()> {
        while let Some(idle) = self.idle.pop_front() {
            if is_closable(&self.entries, &idle) {
                self.close_at(idle.index, work);
                return Some(());
            }
        }
        None
    }

    fn close_at(&mut self, index: u32, work: &mut VecDeque<SocketWork>) {
        if let Some(entry) = self.entries.try_remove(index as usize) {
            self.by_address.remove(&entry.address);
            self.idle_count -= 1;
            work.push_back(SocketWork::Shut(SocketId(MEDIA_BASE + index)));
        }
    }
}

fn is_idle(entries: &PagedSlab<PooledSocket>, idle: &IdleSocket) -> bool {
    entries
        .get(idle.index as usize)
        .is_some_and(|entry| !entry.busy && entry.stamp == idle.stamp)
}

/// Whether it may be closed. A number is reused only after the confirmation of its opening, which would otherwise be
/// taken for that of the next socket.
fn is_closable(entries: &PagedSlab<PooledSocket>, idle: &IdleSocket) -> bool {
    is_idle(entries, idle)
        && entries
            .get(idle.index as usize)
            .is_some_and(|entry| !entry.opening)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Entropy;

    const NOW: Time = Time::ZERO;

    fn pool(limit: usize) -> MediaSocketPool {
        MediaSocketPool::new(limit, HashKey::new(&mut Entropy::from_number(1)))
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn released_socket_is_reused() {
        let (mut pool, mut work) = (pool(4), VecDeque::new());
        let first = pool.acquire(at(1), &mut work).unwrap();
        assert_eq!(work.len(), 1);
        assert_eq!(pool.acquire(at(1), &mut work), None, "it is in use");
        pool.release(first, NOW);
        pool.release(first, NOW);
        assert_eq!((pool.busy(), pool.open()), (0, 1));
        assert_eq!(pool.acquire(at(1), &mut work), Some(first));
        assert_eq!(work.len(), 1, "not opened again");
    }

    /// Sockets of ended calls hold open files that the next call needs.
    #[test]
    fn idle_sockets_are_closed_early_at_the_limit_of_open_files() {
        let (mut pool, mut work) = (pool(1_000), VecDeque::new());
        let sockets: Vec<SocketId> = (0..200)
            .map(|port| pool.acquire(at(port), &mut work).unwrap())
            .collect();
        for &socket in &sockets {
            pool.opened(socket, NOW, &mut work);
        }
        for &socket in sockets.iter().skip(1) {
            pool.release(socket, NOW);
        }
        work.clear();
        pool.close_early(&mut work);
        assert_eq!((work.len(), pool.open(), pool.busy()), (PER_SWEEP, 72, 1));
        pool.close_early(&mut work);
        assert_eq!((pool.open(), pool.busy()), (1, 1), "that of a call stays");
    }

    /// Calls come before idle sockets where the process may have few files open.
    #[test]
    fn idle_sockets_make_room_within_the_open_files() {
        let (mut pool, mut work) = (pool(1_000), VecDeque::new());
        pool.set_open_files(250);
        let sockets: Vec<SocketId> = (0..200)
            .map(|port| pool.acquire(at(port), &mut work).unwrap())
            .collect();
        for &socket in &sockets {
            pool.opened(socket, NOW, &mut work);
        }
        for &socket in sockets.iter().skip(100) {
            pool.release(socket, NOW);
        }
        work.clear();
        for port in 200..300 {
            pool.acquire(at(port), &mut work).unwrap();
        }
        assert_eq!(pool.open(), 200, "an idle one was closed for each");
        assert_eq!(
            pool.acquire(at(300), &mut work),
            None,
            "fifty files are left"
        );
    }

    #[test]
    fn idle_sockets_are_closed_after_a_second() {
        let (mut pool, mut work) = (pool(1_000), VecDeque::new());
        let sockets: Vec<SocketId> = (0..300)
            .map(|port| pool.acquire(at(port), &mut work).unwrap())
            .collect();
        for &socket in &sockets {
            pool.opened(socket, NOW, &mut work);
        }
        assert_eq!(pool.next_close(), None, "calls have them");
        let at_second = Time::from_secs;
        for &socket in &sockets {
            pool.release(socket, at_second(1));
        }
        // One is reused in time, and one is released later.
        assert_eq!(pool.acquire(at(0), &mut work), Some(sockets[0]));
        assert_eq!(pool.acquire(at(1), &mut work), Some(sockets[1]));
        pool.release(sockets[1], at_second(2));
        work.clear();
        assert_eq!(pool.next_close(), Some(at_second(2)));
        pool.close_idle(at_second(1) + Duration::from_millis(999), &mut work);
        assert!(work.is_empty());
        // The number per check is limited.
        let mut now = at_second(2);
        while pool.open() > 2 {
            let before = work.len();
            assert!(now < at_second(2) + 2 * SWEEP);
            pool.close_idle(now, &mut work);
            assert!(work.len() - before <= PER_SWEEP);
            now = pool.next_close().unwrap();
        }
        pool.close_idle(at_second(3), &mut work);
        assert_eq!((pool.open(), pool.busy(), work.len()), (1, 1, 299));
        assert_eq!(pool.next_close(), None);
    }

    #[test]
    fn previous_socket_is_reused_if_idle() {
        let (mut pool, mut work) = (pool(2), VecDeque::new());
        let first = pool.acquire(at(1), &mut work).unwrap();
        assert_eq!(
            pool.acquire_again(at(1), Some(first), &mut work),
            None,
            "in use"
        );
        assert_eq!(pool.opened(first, NOW, &mut work), None);
        pool.release(first, NOW);
        assert_eq!(
            pool.acquire_again(at(1), Some(first), &mut work),
            Some(first)
        );
        assert_eq!((pool.busy(), pool.open(), work.len()), (1, 1, 1));
        pool.release(first, NOW);
        // In use by another call, not present, or never present: looked up, and opened.
        for before in [Some(first), Some(SocketId(7)), None] {
            let second = pool.acquire_again(at(2), before, &mut work).unwrap();
            assert_ne!(second, first);
            assert_eq!((pool.busy(), pool.open(), work.len()), (1, 2, 2));
            pool.opened(second, NOW, &mut work);
            pool.release(second, NOW);
        }
        // A socket acquired by its number is no longer idle: another one is closed.
        assert_eq!(
            pool.acquire_again(at(1), Some(first), &mut work),
            Some(first)
        );
        let third = pool.acquire(at(3), &mut work).unwrap();
        assert_ne!(third, first);
        assert_eq!((pool.busy(), pool.open()), (2, 2));
    }

    #[test]
    fn full_pool_closes_the_oldest_idle_socket_or_refuses() {
        let (mut pool, mut work) = (pool(2), VecDeque::new());
        let first = pool.acquire(at(1), &mut work).unwrap();
        let second = pool.acquire(at(2), &mut work).unwrap();
        assert_eq!(pool.acquire(at(3), &mut work), None);
        for socket in [first, second] {
            assert_eq!(pool.opened(socket, NOW, &mut work), None);
        }
        pool.release(second, NOW);
        pool.release(first, NOW);
        work.clear();
        let third = pool.acquire(at(3), &mut work).unwrap();
        assert_eq!(work.pop_front(), Some(SocketWork::Shut(second)));
        assert!(
            matches!(work.pop_front(), Some(SocketWork::Open { socket, .. }) if socket == third)
        );
        assert_eq!((pool.busy(), pool.open()), (1, 2));
    }

    #[test]
    fn idle_queue_is_bounded() {
        let (mut pool, mut work) = (pool(4), VecDeque::new());
        for _ in 0..10_000 {
            let socket = pool.acquire(at(7), &mut work).unwrap();
            pool.release(socket, NOW);
        }
        assert!(pool.idle.len() < 200);
        assert_eq!(pool.open(), 1);
    }

    #[test]
    fn failed_socket_is_removed() {
        let (mut pool, mut work) = (pool(4), VecDeque::new());
        let socket = pool.acquire(at(1), &mut work).unwrap();
        pool.await_open(socket, 7);
        assert_eq!(pool.failed(socket), Some((at(1), Some(7))));
        assert_eq!(pool.failed(socket), None);
        pool.release(socket, NOW);
        assert_eq!((pool.busy(), pool.open()), (0, 0));
    }

    #[test]
    fn waiter_of_a_socket_is_returned_once() {
        let (mut pool, mut work) = (pool(4), VecDeque::new());
        let socket = pool.acquire(at(1), &mut work).unwrap();
        assert!(pool.is_opening(socket));
        pool.await_open(socket, 7);
        assert_eq!(pool.opened(socket, NOW, &mut work), Some(7));
        assert!(!pool.is_opening(socket));
        pool.await_open(socket, 8);
        assert_eq!(pool.opened(socket, NOW, &mut work), None, "it was open");
    }

    #[test]
    fn socket_id_is_reused_only_after_confirmation() {
        let (mut pool, mut work) = (pool(4), VecDeque::new());
        let first = pool.acquire(at(1), &mut work).unwrap();
        pool.discard(first, NOW, &mut work);
        assert_eq!(
            (pool.busy(), work.len()),
            (0, 1),
            "not shut before it is open"
        );
        let second = pool.acquire(at(2), &mut work).unwrap();
        assert_ne!(first, second);
        assert_eq!(pool.opened(first, NOW, &mut work), None);
        assert_eq!(work.pop_back(), Some(SocketWork::Shut(first)));
        assert!(pool.is_opening(second), "the word was the first one's");
        pool.discard(second, NOW, &mut work);
        let again = pool.acquire(at(2), &mut work).unwrap();
        assert_eq!(again, second, "wanted again before it was given up");
        pool.discard(second, NOW, &mut work);
        assert_eq!(pool.failed(second), Some((at(2), None)));
        assert_eq!((pool.busy(), pool.open()), (0, 0));
    }
}
