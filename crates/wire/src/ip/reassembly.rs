//! Reassembly of IP fragments with limits on packets, fragments, bytes and time.

use super::{Fragment, IpPacket};
use core::net::IpAddr;
use std::collections::BTreeMap;

/// Limits of a [`Reassembler`].
#[derive(Clone, Copy, Debug)]
pub struct ReassemblyLimits {
    /// Maximum number of incomplete packets; the oldest is abandoned if one more is received.
    pub packets: usize,
    /// Maximum number of fragments of one packet.
    pub fragments: usize,
    /// Nanoseconds after which an incomplete packet is abandoned (60 s in RFC 8200 section 4.5).
    pub timeout: u64,
}

impl Default for ReassemblyLimits {
    fn default() -> Self {
        ReassemblyLimits {
            packets: 512,
            fragments: 128,
            timeout: 60_000_000_000,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    identification: u32,
}

#[derive(Debug)]
struct Group {
    started: u64,
    serial: u64,
    /// Sorted by offset, without overlaps.
    parts: Vec<(usize, Vec<u8>)>,
    /// End of the last fragment, once received.
    end: Option<usize>,
    /// Protocol of the fragment at offset zero; in IPv6 only that one is reliable.
    protocol: u8,
}

/// Reassembles fragments. Overlapping fragments void the packet (RFC 5722); exact duplicates are ignored.
#[derive(Debug)]
pub struct Reassembler {
    limits: ReassemblyLimits,
    groups: BTreeMap<Key, Group>,
    serial: u64,
    abandoned: u64,
}

impl Default for Reassembler {
    fn default() -> Self {
        Reassembler::new(ReassemblyLimits::default())
    }
}

impl Reassembler {
    /// An empty reassembler.
    pub fn new(limits: ReassemblyLimits) -> Reassembler {
        Reassembler {
            limits,
            groups: BTreeMap::new(),
            serial: 0,
            abandoned: 0,
        }
    }

    /// Number of abandoned packets: overlapping, too many fragments, truncated by the capture, too old or displaced.
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// Number of incomplete packets.
    pub fn waiting(&self) -> usize {
        self.groups.len()
    }

    /// Adds a fragment at time `now` (nanoseconds); returns protocol and payload of the packet that it completes.
    pub fn push(
        &mut self,
        packet: &IpPacket<'_>,
        fragment: Fragment,
        now: u64,
    ) -> Option<(u8, Vec<u8>)> {
        let key = Key {
            source: packet.source,
            destination: packet.destination,
            // IPv6 fragments are assigned to packets by the identification alone (RFC 8200 section 4.5).
            protocol: if packet.source.is_ipv4() {
                packet.protocol
            } else {
                0
            },
            identification: fragment.identification,
        };
        let stale = self
            .groups
            .get(&key)
            .is_some_and(|group| now.saturating_sub(group.started) > self.limits.timeout);
        if stale {
            self.abandon(&key);
        }
        if !self.groups.contains_key(&key) {
            self.evict(now);
        }
        self.serial += 1;
        let group = self.groups.entry(key).or_insert(Group {
            started: now,
            serial: self.serial,
            parts: Vec::new(),
            end: None,
            protocol: packet.protocol,
        });
        let good = !packet.is_truncated() && group.add(packet, fragment, self.limits.fragments);
        if !good {
            self.abandon(&key);
            return None;
        }
        if !group.is_complete() {
            return None;
        }
        let group = self.groups.remove(&key)?;
        let mut whole = Vec::with_capacity(group.end.unwrap_or(0));
        for (_, part) in &group.parts {
            whole.extend_from_slice(part);
        }
        Some((group.protocol, whole))
    }

    fn abandon(&mut self, key: &Key) {
        if self.groups.remove(key).is_some() {
            self.abandoned += 1;
        }
    }

    fn evict(&mut self, now: u64) {
        if self.groups.len() < self.limits.packets {
            return;
        }
        let before = self.groups.len();
        let timeout = self.limits.timeout;
        self.groups
            .retain(|_, group| now.saturating_sub(group.started) <= timeout);
        self.abandoned += (before - self.groups.len()) as u64;
        while self.groups.len() >= self.limits.packets.max(1) {
            let oldest = self
                .groups
                .iter()
                .min_by_key(|(_, group)| group.serial)
                .map(|(key, _)| *key);
            match oldest {
                Some(key) => self.abandon(&key),
                None => return,
            }
        }
    }
}

impl Group {
    /// Adds a fragment; returns false if the packet is void.
    fn add(&mut self, packet: &IpPacket<'_>, fragment: Fragment, limit: usize) -> bool {
        let (start, end) = (fragment.offset, fragment.offset + packet.payload.len());
        if end > 65_535 || (fragment.more && !packet.payload.len().is_multiple_of(8)) {
            return false;
        }
        let at = self.parts.partition_point(|(offset, _)| *offset < start);
        if let Some((offset, part)) = self.parts.get(at)
            && *offset == start
            && part == packet.payload
        {
            return true;
        }
        let before = at.checked_sub(1).and_then(|index| self.parts.get(index));
        let overlaps = before.is_some_and(|(offset, part)| offset + part.len() > start)
            || self.parts.get(at).is_some_and(|(offset, _)| end > *offset);
        let beyond = self
            .end
            .is_some_and(|last| end > last || (!fragment.more && end != last));
        if overlaps || beyond || self.parts.len() >= limit {
            return false;
        }
        if !fragment.more {
            if self
                .parts
                .last()
                .is_some_and(|(offset, part)| offset + part.len() > end)
            {
                return false;
            }
            self.end = Some(end);
        }
        if start == 0 {
            self.protocol = packet.protocol;
        }
        self.parts.insert(at, (start, packet.payload.to_vec()));
        true
    }

    fn is_complete(&self) -> bool {
        let received: usize = self.parts.iter().map(|(_, part)| part.len()).sum();
        // Parts do not overlap, so that equal sums mean no gap.
        self.end == Some(received)
    }
}
