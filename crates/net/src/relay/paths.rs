//! The next hop of each path, and its periodic revalidation.

use super::netlink::{Devices, EthernetInterface, Netlink, Route};
use super::table::NextHop;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// Paths that are revalidated in one second at most; a change of interfaces or routes revalidates all.
const PER_SECOND: usize = 500;
/// Interval at which interfaces are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which an unused path is removed.
const EXPIRY: Duration = Duration::from_secs(60);

type Ends = (IpAddr, IpAddr);

struct PathEntry {
    /// Index in the program's table, while the path is valid.
    slot: Option<u16>,
    used_at: Instant,
}

#[derive(Clone, Copy, Default)]
struct PathSlot {
    flows: u32,
    hop: Option<NextHop>,
}

/// The owner of a path table, which applies its changes.
pub(crate) trait PathOwner: Send + Sync + 'static {
    fn paths(&self) -> MutexGuard<'_, PathTable>;
    /// Index of an interface through which frames may be sent.
    fn device(&self, interface: u32) -> Option<u32>;
    /// Traffic class of sent packets.
    fn class(&self) -> u8;
    /// A path has become valid, or invalid.
    fn valid(&self, slot: u16, hop: &NextHop);
    fn invalid(&self, slot: u16);
    /// Checks which interfaces transmit redirected frames.
    fn check_interfaces(&self, _devices: &mut Devices) {}
}

/// Cached paths by local address and destination. Packet threads wait for its lock, so that nothing under it takes
/// longer with more paths: the order of look-ups is kept, not computed.
pub(crate) struct PathTable {
    entries: HashMap<Ends, PathEntry>,
    /// New paths. Each path is here, in `known`, or being looked up.
    fresh: VecDeque<Ends>,
    /// Paths that were looked up, the longest ago first.
    known: VecDeque<Ends>,
    /// Time of the last revalidation.
    revalidated_at: Option<Instant>,
    slots: Vec<PathSlot>,
    capacity: u32,
    /// Unused slots.
    free: Vec<u16>,
}

impl PathTable {
    pub(crate) fn new(capacity: u32) -> PathTable {
        PathTable {
            entries: HashMap::new(),
            fresh: VecDeque::new(),
            known: VecDeque::new(),
            revalidated_at: None,
            slots: Vec::new(),
            capacity,
            free: Vec::new(),
        }
    }

    /// The slot of a path, reserved for a flow; and whether a lookup is needed.
    pub(crate) fn take(&mut self, own: IpAddr, to: IpAddr) -> (Option<u16>, bool) {
        let now = Instant::now();
        if let Some(path) = self.entries.get_mut(&(own, to)) {
            path.used_at = now;
            if let Some(slot) = path.slot
                && let Some(entry) = self.slots.get_mut(usize::from(slot))
            {
                entry.flows += 1;
            }
            return (path.slot, false);
        }
        // Bounded by the number of slots: with more destinations, further streams use sockets.
        if self.entries.len() >= self.capacity as usize {
            return (None, false);
        }
        let path = PathEntry {
            slot: None,
            used_at: now,
        };
        self.entries.insert((own, to), path);
        self.fresh.push_back((own, to));
        (None, true)
    }

    /// A flow has released a slot.
    pub(crate) fn leave(&mut self, slot: u16) {
        if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
            entry.flows = entry.flows.saturating_sub(1);
            if entry.flows == 0 && entry.hop.is_none() {
                self.free.push(slot);
            }
        }
    }

    /// Next hop of a slot.
    pub(crate) fn hop(&self, slot: u16) -> Option<NextHop> {
        self.slots.get(usize::from(slot))?.hop
    }

    /// Paths to be looked up: the new ones, and once a second those that were looked up longest ago, or with `all`
    /// every other. Each is passed to [`PathTable::update`] afterwards.
    fn due_lookups(&mut self, all: bool, now: Instant) -> [VecDeque<Ends>; 2] {
        let fresh = std::mem::take(&mut self.fresh);
        let is_due = |at: Instant| now.duration_since(at) >= CHECK_INTERVAL;
        if !all && !self.revalidated_at.is_none_or(is_due) {
            return [fresh, VecDeque::new()];
        }
        self.revalidated_at = Some(now);
        let known = match all {
            true => std::mem::take(&mut self.known),
            false => {
                let most = PER_SECOND.saturating_sub(fresh.len());
                self.known.drain(..most.min(self.known.len())).collect()
            }
        };
        [fresh, known]
    }

    /// Stores the result of a lookup. `valid` and `invalid` update the program's table.
    fn update(
        &mut self,
        ends: Ends,
        hop: Option<NextHop>,
        now: Instant,
        mut valid: impl FnMut(u16, &NextHop),
        mut invalid: impl FnMut(u16),
    ) {
        let Some(path) = self.entries.get_mut(&ends) else {
            return;
        };
        let used = path
            .slot
            .and_then(|slot| self.slots.get(usize::from(slot)))
            .is_some_and(|entry| entry.flows > 0);
        let stale = now.duration_since(path.used_at) > EXPIRY && !used;
        let hop = hop.filter(|_| !stale);
        if !stale {
            self.known.push_back(ends);
        }
        let old = path.slot.and_then(|slot| {
            let entry = self.slots.get_mut(usize::from(slot))?;
            Some((slot, entry))
        });
        if let Some((slot, entry)) = old {
            if entry.hop == hop {
                return;
            }
            // A valid record never changes: flows that refer to it are delivered to their sockets, and get the new
            // record when they are opened again.
            invalid(slot);
            entry.hop = None;
            path.slot = None;
            if entry.flows == 0 {
                self.free.push(slot);
            }
        }
        if let Some(hop) = hop {
            let slot = self.free.pop().or_else(|| {
                let next = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(PathSlot::default());
                Some(next)
            });
            if let Some(slot) = slot {
                self.slots[usize::from(slot)] = PathSlot {
                    flows: 0,
                    hop: Some(hop),
                };
                path.slot = Some(slot);
                valid(slot, &hop);
            }
        }
        if stale {
            self.entries.remove(&ends);
        }
    }
}

/// Looks up paths in the kernel.
pub(crate) struct PathResolver {
    netlink: Netlink,
    /// Present if the interfaces must transmit redirected frames.
    devices: Option<Devices>,
    /// Time of the last check of the interfaces.
    checked_at: Instant,
}

/// Interfaces that were looked up in the present round.
type Interfaces = HashMap<u32, Option<EthernetInterface>>;

impl PathResolver {
    pub(crate) fn new(netlink: Netlink, devices: Option<Devices>) -> PathResolver {
        PathResolver {
            netlink,
            devices,
            checked_at: Instant::now(),
        }
    }

    /// Looks up new paths, and revalidates known ones.
    pub(crate) fn run(&mut self, owner: &impl PathOwner, all: bool) {
        if all || self.checked_at.elapsed() >= CHECK_INTERVAL {
            self.checked_at = Instant::now();
            if let Some(devices) = &mut self.devices {
                owner.check_interfaces(devices);
            }
        }
        let due = owner.paths().due_lookups(all, Instant::now());
        let mut interfaces = Interfaces::new();
        for ends in due.into_iter().flatten() {
            // A failed lookup means that the path is unknown.
            let hop = self.resolve(owner, ends, &mut interfaces).unwrap_or(None);
            owner.paths().update(
                ends,
                hop,
                Instant::now(),
                |slot, hop| owner.valid(slot, hop),
                |slot| owner.invalid(slot),
            );
        }
    }

    fn resolve(
        &mut self,
        owner: &impl PathOwner,
        (own, to): Ends,
        interfaces: &mut Interfaces,
    ) -> io::Result<Option<NextHop>> {
        let Some(route) = self.netlink.route(own, to)? else {
            return Ok(None);
        };
        let Some(device) = owner.device(route.interface) else {
            return Ok(None);
        };
        let interface = match interfaces.get(&route.interface) {
            Some(interface) => *interface,
            None => {
                let interface = self.usable(route)?;
                interfaces.insert(route.interface, interface);
                interface
            }
        };
        let Some(interface) = interface else {
            return Ok(None);
        };
        Ok(self.netlink.neighbour(route)?.map(|next| NextHop {
            device,
            interface: route.interface,
            from: match own {
                IpAddr::V4(own) => own.octets(),
                IpAddr::V6(_) => [0; 4],
            },
            macs: (interface.mac, next),
            mtu: u16::try_from(interface.mtu).unwrap_or(u16::MAX),
            class: owner.class(),
        }))
    }

    /// An interface through which frames can be sent.
    fn usable(&mut self, route: Route) -> io::Result<Option<EthernetInterface>> {
        let sends = match &mut self.devices {
            Some(devices) => devices.sends_frames(route.interface)?,
            None => true,
        };
        match sends {
            true => self.netlink.interface(route.interface),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn destination(number: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    /// The destinations that are looked up in a round, which finds no next hop.
    fn round(table: &mut PathTable, all: bool, now: Instant) -> Vec<IpAddr> {
        let due = table.due_lookups(all, now).into_iter().flatten();
        let due: Vec<Ends> = due.collect();
        for ends in &due {
            table.update(*ends, None, now, |_, _| {}, |_| {});
        }
        due.into_iter().map(|(_, to)| to).collect()
    }

    fn range(numbers: std::ops::Range<u32>) -> Vec<IpAddr> {
        numbers.map(destination).collect()
    }

    #[test]
    fn new_paths_are_looked_up_at_once_and_known_ones_in_turn() {
        let mut table = PathTable::new(2_000);
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        for number in 0..1_200 {
            assert_eq!(table.take(OWN, destination(number)), (None, true));
        }
        assert_eq!(table.take(OWN, destination(0)), (None, false));
        assert_eq!(round(&mut table, false, at(0)), range(0..1_200));
        // A wake-up for a new path visits no other.
        assert!(table.take(OWN, destination(1_200)).1);
        assert_eq!(round(&mut table, false, at(10)), range(1_200..1_201));
        assert_eq!(round(&mut table, false, at(1_000)), range(0..500));
        assert_eq!(round(&mut table, false, at(1_500)), range(0..0));
        assert_eq!(round(&mut table, false, at(2_000)), range(500..1_000));
        // A change of routes revalidates all, each once.
        let mut all = round(&mut table, true, at(2_100));
        assert_eq!(all.first(), Some(&destination(1_000)));
        all.sort_unstable();
        assert_eq!(all, range(0..1_201));
        // Unused paths are forgotten when their turn comes.
        let later = 120_000;
        for second in 0..3 {
            round(&mut table, false, at(later + second * 1_000));
        }
        let counts = [table.entries.len(), table.fresh.len(), table.known.len()];
        assert_eq!(counts, [0; 3]);
        assert!(table.take(OWN, destination(7)).1);
    }
}
