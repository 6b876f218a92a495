//! Shortcuts of the forwarder, carried out by the relay in the kernel.

use super::{IdMap, Plane, Way};
use crate::clock::Clock;
use crate::relay::{KernelRelay, Opening, Place};
use engine::{Forward, Passed, Shortcut, ShortcutChange, SocketId, Time};
use std::net::SocketAddr;
use std::time::Duration;

/// Every shortcut is closed this often, to be opened anew by the next packet: the program's counters have 32 bits.
const ROUND: Duration = Duration::from_secs(60);
/// Shortcuts closed for that reason in a turn at most.
const PER_TURN: usize = 64;

/// An open one.
struct Taken {
    place: Place,
    /// The sequence number with which it was opened.
    first: u16,
    way: u16,
}

/// The shortcuts of a plane.
pub(super) struct Shortcuts {
    relay: KernelRelay,
    clock: Clock,
    open: IdMap<SocketId, Taken>,
    /// Those whose turn it is to be closed.
    round: Vec<SocketId>,
    next_round: Time,
    /// What passed at sockets that were closed, for the forwarder, which will ask.
    left: Vec<(SocketId, Passed)>,
}

impl Shortcuts {
    /// Closes the shortcut of a socket; `None` where there is none.
    pub(super) fn close(&mut self, id: SocketId, now: Time) -> Option<Passed> {
        let taken = self.open.remove(&id)?;
        let now = (now, self.clock.monotonic(now));
        let passed = self.relay.close(taken.place, taken.first, now);
        self.relay.leave(taken.way);
        Some(passed)
    }

    /// The same where the socket itself is closed.
    pub(super) fn abandon(&mut self, id: SocketId) {
        let now = self.clock.now();
        if let Some(passed) = self.close(id, now) {
            self.left.push((id, passed));
        }
    }

    fn take_left(&mut self, id: SocketId) -> Option<Passed> {
        let at = self.left.iter().position(|(left, _)| *left == id)?;
        Some(self.left.swap_remove(at).1)
    }

    /// The next one whose turn it is.
    fn due(&mut self, now: Time) -> Option<SocketId> {
        if self.round.is_empty() && now >= self.next_round {
            self.next_round = now + ROUND;
            self.round.extend(self.open.keys());
        }
        self.round.pop()
    }
}

impl Plane {
    /// Lets streams take shortcuts through the kernel.
    pub(crate) fn relay_by(&mut self, relay: KernelRelay, clock: Clock) {
        self.shortcuts = Some(Shortcuts {
            relay,
            clock,
            open: IdMap::default(),
            round: Vec::new(),
            left: Vec::new(),
            next_round: clock.now() + ROUND,
        });
    }

    /// A packet has come to a socket although its stream has a shortcut: the forwarder takes over before it sees that packet.
    pub(super) fn came_up<F: Forward>(&mut self, id: SocketId, forwarder: &mut F) {
        let Some(shortcuts) = &mut self.shortcuts else {
            return;
        };
        if shortcuts.open.is_empty() {
            return;
        }
        let now = shortcuts.clock.now();
        if let Some(passed) = shortcuts.close(id, now) {
            self.shared.passed.add(passed.packets as usize);
            forwarder.shortcut_closed(id, &passed, now);
        }
    }

    /// Does what the forwarder wants of its shortcuts.
    pub(super) fn shortcuts_of<F: Forward>(&mut self, forwarder: &mut F) {
        let Some(shortcuts) = &mut self.shortcuts else {
            return;
        };
        let now = shortcuts.clock.now();
        for _ in 0..PER_TURN {
            let Some(id) = shortcuts.due(now) else {
                break;
            };
            if let Some(passed) = shortcuts.close(id, now) {
                self.shared.passed.add(passed.packets as usize);
                forwarder.shortcut_closed(id, &passed, now);
            }
        }
        while let Some(change) = forwarder.next_shortcut() {
            match change {
                ShortcutChange::Open(shortcut) => {
                    if self.open_shortcut(&shortcut).is_some() {
                        self.shared.shortcuts.add(1);
                    }
                }
                ShortcutChange::Close(id) => {
                    let passed = self.shortcuts.as_mut().and_then(|shortcuts| {
                        let left = shortcuts.take_left(id);
                        left.or_else(|| shortcuts.close(id, now))
                    });
                    let passed = passed.unwrap_or_default();
                    self.shared.passed.add(passed.packets as usize);
                    forwarder.shortcut_closed(id, &passed, now);
                }
            }
        }
        while let Some((id, passed)) = self.shortcuts.as_mut().and_then(|all| all.left.pop()) {
            self.shared.passed.add(passed.packets as usize);
            forwarder.shortcut_closed(id, &passed, now);
        }
    }

    /// Where a media socket is bound.
    fn local(&self, id: SocketId) -> Option<SocketAddr> {
        let socket = self.sockets.get(*self.by_id.get(&id)? as usize)?;
        match socket.way {
            Way::Own(_) => socket.local,
            Way::Range(_, local) => Some(local),
        }
    }

    fn open_shortcut(&mut self, shortcut: &Shortcut) -> Option<()> {
        let local = self.local(shortcut.socket)?;
        let out = self.local(shortcut.out)?;
        let (source, destination) = (shortcut.source, shortcut.destination);
        // From a family into the other the headers would have to grow or shrink: sockets do that.
        let six = |end: SocketAddr| end.is_ipv6();
        if [source, out, destination]
            .iter()
            .any(|&end| six(end) != six(local))
        {
            return None;
        }
        let shortcuts = self.shortcuts.as_mut()?;
        let place = shortcuts.relay.place(local)?;
        let now = shortcuts.clock.now();
        // One that the forwarder thinks closed already; nothing of it is lost, since it is told before.
        if shortcuts.open.contains_key(&shortcut.socket) {
            return None;
        }
        let way = shortcuts.relay.way(out.ip(), destination.ip())?;
        let first = shortcut.sequence.wrapping_add(1);
        let opening = Opening {
            local,
            source,
            out,
            destination,
            ssrc: shortcut.ssrc,
            payload_type: shortcut.payload_type,
            sequence: first,
            timestamp: shortcut.timestamp,
            arrived: shortcuts.clock.monotonic(shortcut.arrived.min(now)),
            clock_rate: shortcut.clock_rate,
            jitter: shortcut.jitter,
            way,
        };
        shortcuts.relay.open(place, &opening);
        let taken = Taken { place, first, way };
        shortcuts.open.insert(shortcut.socket, taken);
        Some(())
    }
}
