//! Which station comes next on the way to each destination, and whether that is still so.

use super::netlink::{Devices, Interface, Netlink, Route};
use super::table::Hop;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// Ways that are looked at again in a second at most; a change of interfaces or routes has all of them looked at.
const PER_SECOND: usize = 500;
/// How often interfaces are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A way without a flow is forgotten after so long.
const FORGOTTEN: Duration = Duration::from_secs(60);

type Ends = (IpAddr, IpAddr);

struct Known {
    /// Where it stands in the program's table, while there is a way.
    slot: Option<u16>,
    asked: Instant,
    looked: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    flows: u32,
    hop: Option<Hop>,
}

/// Whoever keeps ways.
pub(crate) trait Book: Send + Sync + 'static {
    fn ways(&self) -> MutexGuard<'_, Ways>;
    /// The place of an interface from which frames may leave.
    fn device(&self, interface: u32) -> Option<u32>;
    /// Traffic class of what leaves.
    fn class(&self) -> u8;
    /// A way is known, and one is no more.
    fn valid(&self, slot: u16, hop: &Hop);
    fn invalid(&self, slot: u16);
    /// Looks which interfaces send what is redirected to them.
    fn look_at_interfaces(&self, _devices: &mut Devices) {}
}

/// The ways that are known, by our address and the destination.
pub(crate) struct Ways {
    known: HashMap<Ends, Known>,
    slots: Vec<Slot>,
    most: u32,
    /// Slots that nobody has.
    free: Vec<u16>,
}

impl Ways {
    pub(crate) fn new(most: u32) -> Ways {
        Ways {
            known: HashMap::new(),
            slots: Vec::new(),
            most,
            free: Vec::new(),
        }
    }

    /// The slot of a way, which a flow has from now on; and whether it is now being looked for.
    pub(crate) fn take(&mut self, own: IpAddr, to: IpAddr) -> (Option<u16>, bool) {
        let now = Instant::now();
        if let Some(known) = self.known.get_mut(&(own, to)) {
            known.asked = now;
            if let Some(slot) = known.slot
                && let Some(entry) = self.slots.get_mut(usize::from(slot))
            {
                entry.flows += 1;
            }
            return (known.slot, false);
        }
        // Not more than there are slots: who has addresses enough to fill this has his streams go through sockets.
        if self.known.len() >= self.most as usize {
            return (None, false);
        }
        let known = Known {
            slot: None,
            asked: now,
            looked: None,
        };
        self.known.insert((own, to), known);
        (None, true)
    }

    /// A flow has left a slot.
    pub(crate) fn leave(&mut self, slot: u16) {
        if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
            entry.flows = entry.flows.saturating_sub(1);
            if entry.flows == 0 && entry.hop.is_none() {
                self.free.push(slot);
            }
        }
    }

    /// Where a slot leads.
    pub(crate) fn hop(&self, slot: u16) -> Option<Hop> {
        self.slots.get(usize::from(slot))?.hop
    }

    /// What is to be looked at: what was not yet, then what was not for the longest time.
    fn due(&self, all: bool, now: Instant) -> Vec<Ends> {
        let second = Duration::from_secs(1);
        let mut due: Vec<(Option<Instant>, Ends)> = self
            .known
            .iter()
            .filter(|(_, known)| {
                all || known
                    .looked
                    .is_none_or(|looked| now.duration_since(looked) >= second)
            })
            .map(|(&ends, known)| (known.looked, ends))
            .collect();
        due.sort_unstable_by_key(|(looked, _)| *looked);
        let fresh = due.iter().filter(|(looked, _)| looked.is_none()).count();
        if !all {
            due.truncate(fresh.max(PER_SECOND));
        }
        due.into_iter().map(|(_, ends)| ends).collect()
    }

    /// Notes what was found out. `valid` and `invalid` tell the program.
    fn note(
        &mut self,
        ends: Ends,
        hop: Option<Hop>,
        now: Instant,
        mut valid: impl FnMut(u16, &Hop),
        mut invalid: impl FnMut(u16),
    ) {
        let Some(known) = self.known.get_mut(&ends) else {
            return;
        };
        known.looked = Some(now);
        let used = known
            .slot
            .and_then(|slot| self.slots.get(usize::from(slot)))
            .is_some_and(|entry| entry.flows > 0);
        let stale = now.duration_since(known.asked) > FORGOTTEN && !used;
        let hop = hop.filter(|_| !stale);
        let old = known.slot.and_then(|slot| {
            let entry = self.slots.get_mut(usize::from(slot))?;
            Some((slot, entry))
        });
        if let Some((slot, entry)) = old {
            if entry.hop == hop {
                return;
            }
            // A valid way never changes: what still refers to this one comes up, and finds the new one.
            invalid(slot);
            entry.hop = None;
            known.slot = None;
            if entry.flows == 0 {
                self.free.push(slot);
            }
        }
        if let Some(hop) = hop {
            let slot = self.free.pop().or_else(|| {
                let next = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot::default());
                Some(next)
            });
            if let Some(slot) = slot {
                self.slots[usize::from(slot)] = Slot {
                    flows: 0,
                    hop: Some(hop),
                };
                known.slot = Some(slot);
                valid(slot, &hop);
            }
        }
        if stale {
            self.known.remove(&ends);
        }
    }
}

/// Asks the kernel for ways.
pub(crate) struct Keeper {
    netlink: Netlink,
    /// Where interfaces are asked whether they send what is redirected to them.
    devices: Option<Devices>,
    /// When the interfaces were last looked at.
    looked: Instant,
}

/// What is known of interfaces within one turn.
type Interfaces = HashMap<u32, Option<Interface>>;

impl Keeper {
    pub(crate) fn new(netlink: Netlink, devices: Option<Devices>) -> Keeper {
        Keeper {
            netlink,
            devices,
            looked: Instant::now(),
        }
    }

    /// Looks for what is new and looks again at what may have changed.
    pub(crate) fn turn(&mut self, book: &impl Book, all: bool) {
        if all || self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            if let Some(devices) = &mut self.devices {
                book.look_at_interfaces(devices);
            }
        }
        let due = book.ways().due(all, Instant::now());
        let mut interfaces = Interfaces::new();
        for ends in due {
            // What the kernel does not tell is not known.
            let hop = self.look(book, ends, &mut interfaces).unwrap_or(None);
            book.ways().note(
                ends,
                hop,
                Instant::now(),
                |slot, hop| book.valid(slot, hop),
                |slot| book.invalid(slot),
            );
        }
    }

    fn look(
        &mut self,
        book: &impl Book,
        (own, to): Ends,
        interfaces: &mut Interfaces,
    ) -> io::Result<Option<Hop>> {
        let Some(route) = self.netlink.route(own, to)? else {
            return Ok(None);
        };
        let Some(device) = book.device(route.interface) else {
            return Ok(None);
        };
        let interface = match interfaces.get(&route.interface) {
            Some(known) => *known,
            None => {
                let known = self.usable(route)?;
                interfaces.insert(route.interface, known);
                known
            }
        };
        let Some(interface) = interface else {
            return Ok(None);
        };
        Ok(self.netlink.neighbour(route)?.map(|next| Hop {
            device,
            interface: route.interface,
            from: match own {
                IpAddr::V4(own) => own.octets(),
                IpAddr::V6(_) => [0; 4],
            },
            cards: (interface.card, next),
            longest: u16::try_from(interface.mtu).unwrap_or(u16::MAX),
            class: book.class(),
        }))
    }

    /// An interface from which frames leave.
    fn usable(&mut self, route: Route) -> io::Result<Option<Interface>> {
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
