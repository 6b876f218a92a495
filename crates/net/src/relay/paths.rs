//! The next hop of each path, and its periodic revalidation.

use super::netlink::{Devices, EthernetInterface, Netlink, Route};
use super::table::NextHop;
use std::collections::HashMap;
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
    checked_at: Option<Instant>,
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

/// Cached paths by local address and destination.
pub(crate) struct PathTable {
    entries: HashMap<Ends, PathEntry>,
    slots: Vec<PathSlot>,
    capacity: u32,
    /// Unused slots.
    free: Vec<u16>,
}

impl PathTable {
    pub(crate) fn new(capacity: u32) -> PathTable {
        PathTable {
            entries: HashMap::new(),
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
            checked_at: None,
        };
        self.entries.insert((own, to), path);
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

    /// Paths to be looked up: new ones first, then the ones that were looked up longest ago.
    fn due_lookups(&self, all: bool, now: Instant) -> Vec<Ends> {
        let second = Duration::from_secs(1);
        let mut due: Vec<(Option<Instant>, Ends)> = self
            .entries
            .iter()
            .filter(|(_, path)| {
                all || path
                    .checked_at
                    .is_none_or(|checked_at| now.duration_since(checked_at) >= second)
            })
            .map(|(&ends, path)| (path.checked_at, ends))
            .collect();
        due.sort_unstable_by_key(|(checked_at, _)| *checked_at);
        let fresh = due
            .iter()
            .filter(|(checked_at, _)| checked_at.is_none())
            .count();
        if !all {
            due.truncate(fresh.max(PER_SECOND));
        }
        due.into_iter().map(|(_, ends)| ends).collect()
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
        path.checked_at = Some(now);
        let used = path
            .slot
            .and_then(|slot| self.slots.get(usize::from(slot)))
            .is_some_and(|entry| entry.flows > 0);
        let stale = now.duration_since(path.used_at) > EXPIRY && !used;
        let hop = hop.filter(|_| !stale);
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
        for ends in due {
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
