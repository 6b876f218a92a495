//! Pairs of an even RTP port and the RTCP port above it on one address (RFC 3550 section 11).
//!
//! Released pairs are reused late and in random order: the previous sender may still be sending, and the ports of one
//! call must not reveal those of the next. Free pairs wait in a queue that starts shuffled; a released pair is inserted
//! at a random position in its younger half. Pairs that were never used are left alone while enough used ones wait,
//! because opening their sockets costs more than the rest of a call.

use engine::{Entropy, SocketId, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Minimum number of used pairs that wait before they are reused, as far as the range allows. At two thousand
/// allocations per second, a pair waits for half a second to a second, and its sockets, which are kept for a second,
/// are still open.
const MIN_REUSE_QUEUE: usize = 2_048;

/// A port pair in use. It must be returned by [`PortPool::release`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortPair {
    address: IpAddr,
    port: u16,
    /// Numbers of the sockets of its previous use, or [`NO_SOCKET`].
    previous_sockets: [u32; 2],
}

/// No socket.
const NO_SOCKET: u32 = u32::MAX;

impl PortPair {
    /// Address and port for RTP (even).
    pub fn rtp(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Address and port for RTCP (odd).
    pub fn rtcp(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port + 1)
    }

    /// The sockets of the previous use for RTP and RTCP, if they are still open.
    pub fn previous_sockets(&self) -> [Option<SocketId>; 2] {
        self.previous_sockets
            .map(|socket| (socket != NO_SOCKET).then_some(SocketId(socket)))
    }

    /// Sets the sockets in use, for [`PortPair::previous_sockets`] of the next use.
    pub fn set_sockets(&mut self, sockets: [Option<SocketId>; 2]) {
        self.previous_sockets = sockets.map(|socket| socket.map_or(NO_SOCKET, |socket| socket.0));
    }
}

/// The port range contains no complete pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyRange;

impl core::fmt::Display for EmptyRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the range of media ports holds no pair of an even and an odd port")
    }
}

impl core::error::Error for EmptyRange {}

/// The port pairs of one address.
#[derive(Debug)]
pub struct PortPool {
    address: IpAddr,
    first: u16,
    /// Pairs that were never used, shuffled.
    unused: Vec<u16>,
    /// Used pairs, the longest waiting one first.
    used: VecDeque<u16>,
    /// Free pairs of which another program was seen to use a port. Allocated only if there is no other, and not before
    /// the time in `left_out`.
    occupied: VecDeque<u16>,
    /// When pairs of which another program was seen to use a port are tried again.
    left_out: BTreeMap<u16, Time>,
    in_use: Vec<bool>,
    /// Sockets of the previous use of each pair.
    previous_sockets: Vec<[u32; 2]>,
    entropy: Entropy,
    exhausted: u64,
    peak: usize,
}

impl PortPool {
    /// All complete pairs from `first` to `last`, both included.
    ///
    /// # Errors
    /// [`EmptyRange`].
    pub fn new(
        address: IpAddr,
        first: u16,
        last: u16,
        mut entropy: Entropy,
    ) -> Result<PortPool, EmptyRange> {
        // Port 0 means "any" to the kernel and "disabled" in SDP.
        let first = u32::from(first.max(2)).next_multiple_of(2);
        let pairs = (u32::from(last) + 1).saturating_sub(first) / 2;
        if pairs == 0 {
            return Err(EmptyRange);
        }
        let mut free: Vec<u16> = (0..pairs as u16).collect();
        for at in (1..free.len()).rev() {
            free.swap(at, entropy.below(at as u64 + 1) as usize);
        }
        Ok(PortPool {
            address,
            first: first as u16,
            in_use: vec![false; free.len()],
            previous_sockets: vec![[NO_SOCKET; 2]; free.len()],
            unused: free,
            used: VecDeque::new(),
            occupied: VecDeque::new(),
            left_out: BTreeMap::new(),
            entropy,
            exhausted: 0,
            peak: 0,
        })
    }

    /// A free pair. `None` if all are in use or left out, which is counted.
    pub fn allocate(&mut self, now: Time) -> Option<PortPair> {
        let unused = match self.used.len() < MIN_REUSE_QUEUE {
            true => self.unused.pop(),
            false => None,
        };
        let free = unused.or_else(|| self.used.pop_front());
        let Some(index) = free.or_else(|| self.take_occupied(now)) else {
            self.exhausted += 1;
            return None;
        };
        if let Some(flag) = self.in_use.get_mut(usize::from(index)) {
            *flag = true;
        }
        self.peak = self.peak.max(self.in_use());
        Some(PortPair {
            address: self.address,
            port: self.first + 2 * index,
            previous_sockets: self
                .previous_sockets
                .get(usize::from(index))
                .copied()
                .unwrap_or([NO_SOCKET; 2]),
        })
    }

    /// A pair of which another program used a port; the program may have ended by now.
    fn take_occupied(&mut self, now: Time) -> Option<u16> {
        let due = |index: &u16| self.left_out.get(index).is_none_or(|until| *until <= now);
        let at = self.occupied.iter().position(due)?;
        let index = self.occupied.remove(at)?;
        self.left_out.remove(&index);
        Some(index)
    }

    /// Notes that another program uses a port of `pair`: once returned, it is not allocated before `until`, and then
    /// only if no other pair is free.
    pub fn leave_out(&mut self, pair: &PortPair, until: Time) {
        if pair.address == self.address
            && let Some(offset) = pair.port.checked_sub(self.first)
            && usize::from(offset / 2) < self.in_use.len()
        {
            self.left_out.insert(offset / 2, until);
        }
    }

    /// Marks a pair as not in use and returns its index.
    fn index_of(&mut self, pair: PortPair) -> Result<u16, PortPair> {
        let index = pair.port.wrapping_sub(self.first) / 2;
        let known = pair.address == self.address && pair.port >= self.first;
        match self.in_use.get_mut(usize::from(index)) {
            Some(flag) if known && *flag => {
                *flag = false;
                if let Some(sockets) = self.previous_sockets.get_mut(usize::from(index)) {
                    *sockets = pair.previous_sockets;
                }
                Ok(index)
            }
            _ => Err(pair),
        }
    }

    /// Returns a pair to the pool.
    ///
    /// # Errors
    /// The pair itself, if it does not belong to this pool or is not in use. The pool is unchanged then.
    pub fn release(&mut self, pair: PortPair) -> Result<(), PortPair> {
        let index = self.index_of(pair)?;
        if self.left_out.contains_key(&index) {
            self.occupied.push_back(index);
            return Ok(());
        }
        self.used.push_back(index);
        let length = self.used.len();
        let younger = length - length / 2;
        let place = length - 1 - self.entropy.below(younger as u64) as usize;
        self.used.swap(place, length - 1);
        Ok(())
    }

    /// Pairs in use.
    pub fn in_use(&self) -> usize {
        self.in_use.len() - self.unused.len() - self.used.len() - self.occupied.len()
    }

    /// Highest number of pairs in use so far.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// Number of all pairs.
    pub fn capacity(&self) -> usize {
        self.in_use.len()
    }

    /// Number of failed allocations.
    pub fn exhausted(&self) -> u64 {
        self.exhausted
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }
}
