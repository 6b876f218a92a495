//! Pairs of ports for RTP and RTCP on one address: even and the odd one above (RFC 3550 section 11).
//!
//! A pair that was given back is the last to be given out again, give or take: its old sender may go on for a while, and
//! who knows the ports of one call should not know those of the next. So free pairs wait in a queue that begins shuffled and
//! into whose younger half a pair returns at a random place. Pairs that were never used are left alone while enough used ones
//! wait: opening their sockets costs more than the rest of a call.

use engine::{Entropy, SocketId};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// So many used pairs wait at least before they are given out again, as far as the range allows. With two thousand allocations a
/// second a pair waits for half a second to a second, and its sockets, which are kept for a second, are still open.
const WAITING: usize = 2_048;

/// A pair of ports in use. Given back by [`PortPool::release`], once.
#[derive(Debug, PartialEq, Eq)]
pub struct PortPair {
    address: IpAddr,
    port: u16,
    /// Sockets that it had before, by number; [`NONE`]: none.
    before: [u32; 2],
}

/// No socket.
const NONE: u32 = u32::MAX;

impl PortPair {
    /// Address and port for RTP (even).
    pub fn rtp(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Address and port for RTCP (odd).
    pub fn rtcp(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port + 1)
    }

    /// The sockets for RTP and RTCP that it had when it was used last, if they are still there.
    pub fn before(&self) -> [Option<SocketId>; 2] {
        self.before
            .map(|socket| (socket != NONE).then_some(SocketId(socket)))
    }

    /// Which sockets it has now, for [`PortPair::before`] of who gets it next.
    pub fn remember(&mut self, sockets: [Option<SocketId>; 2]) {
        self.before = sockets.map(|socket| socket.map_or(NONE, |socket| socket.0));
    }
}

/// A range without one whole pair in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyRange;

impl core::fmt::Display for EmptyRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the range of media ports holds no pair of an even and an odd port")
    }
}

impl core::error::Error for EmptyRange {}

/// The pairs of one address.
#[derive(Debug)]
pub struct PortPool {
    address: IpAddr,
    first: u16,
    /// Never used so far, shuffled.
    fresh: Vec<u16>,
    /// Used before, the one that waits longest in front.
    used: VecDeque<u16>,
    /// Others hold one of their ports, as far as is known: given out again when there is nothing else.
    taken: VecDeque<u16>,
    in_use: Vec<bool>,
    /// Sockets that each pair had when it was used last.
    before: Vec<[u32; 2]>,
    entropy: Entropy,
    exhausted: u64,
    peak: usize,
}

impl PortPool {
    /// All whole pairs from `first` to `last`, both included.
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
            before: vec![[NONE; 2]; free.len()],
            fresh: free,
            used: VecDeque::new(),
            taken: VecDeque::new(),
            entropy,
            exhausted: 0,
            peak: 0,
        })
    }

    /// A free pair; `None`, counted, where all are in use.
    pub fn allocate(&mut self) -> Option<PortPair> {
        let fresh = match self.used.len() < WAITING {
            true => self.fresh.pop(),
            false => None,
        };
        let free = fresh.or_else(|| self.used.pop_front());
        let Some(index) = free.or_else(|| self.taken.pop_front()) else {
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
            before: self
                .before
                .get(usize::from(index))
                .copied()
                .unwrap_or([NONE; 2]),
        })
    }

    /// Takes a pair back of which somebody else holds one port or both: it is given out again when no other is left, because
    /// whoever has it may have ended by then.
    ///
    /// # Errors
    /// As [`PortPool::release`].
    pub fn set_aside(&mut self, pair: PortPair) -> Result<(), PortPair> {
        let index = self.index_of(pair)?;
        self.taken.push_back(index);
        Ok(())
    }

    /// The place of a pair that was in use, which it is no more.
    fn index_of(&mut self, pair: PortPair) -> Result<u16, PortPair> {
        let index = pair.port.wrapping_sub(self.first) / 2;
        let known = pair.address == self.address && pair.port >= self.first;
        match self.in_use.get_mut(usize::from(index)) {
            Some(flag) if known && *flag => {
                *flag = false;
                if let Some(before) = self.before.get_mut(usize::from(index)) {
                    *before = pair.before;
                }
                Ok(index)
            }
            _ => Err(pair),
        }
    }

    /// Takes a pair back. A pair of another pool is handed back as the error; nothing is changed then.
    ///
    /// # Errors
    /// The pair itself, where it is not one that this pool gave out.
    pub fn release(&mut self, pair: PortPair) -> Result<(), PortPair> {
        let index = self.index_of(pair)?;
        self.used.push_back(index);
        let length = self.used.len();
        let younger = length - length / 2;
        let place = length - 1 - self.entropy.below(younger as u64) as usize;
        self.used.swap(place, length - 1);
        Ok(())
    }

    /// Pairs in use.
    pub fn in_use(&self) -> usize {
        self.in_use.len() - self.fresh.len() - self.used.len() - self.taken.len()
    }

    /// Pairs in use at most so far.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// All pairs.
    pub fn capacity(&self) -> usize {
        self.in_use.len()
    }

    /// How often there was none left.
    pub fn exhausted(&self) -> u64 {
        self.exhausted
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }
}
