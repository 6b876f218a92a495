//! AF_XDP: the BPF program `ebpf/xsk.c` at the interfaces of media leads plain datagrams to open media ports past the kernel's network,
//! into rings that a driver reads; and frames of the driver's making leave by the same rings.
//!
//! All else is as with sockets: ports are opened as sockets, too, which get what the program does not lead away and send what has no known
//! way. Where the network card has no part in it frames are copied; where its driver has none, the kernel runs the program on what the driver
//! has handed to it (generic mode). An interface has a socket at each of its receive queues; what comes by a queue without one goes on into
//! the kernel, to the port's other socket. The loopback is left to the sockets: its senders leave checksums out, so that nothing would come.

mod frame;
mod program;
mod queues;
mod ring;

pub(crate) use frame::{Cards, read, write};
pub(crate) use ring::Xsk;

use crate::relay::table::{Hop, Mapped};
use crate::relay::ways::{Book, Ways};
use crate::relay::{Keeping, Local, PORTS, WAYS, local, netlink::Netlink};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// As LOCALS in the program.
const MOST_LOCALS: usize = 16;
/// Receive queues of an interface that are served at most, as in the program.
const MOST_QUEUES: u32 = 64;

struct Inner {
    /// Whether a port is open, by place.
    open: Mapped<AtomicU64>,
    ways: Mutex<Ways>,
    /// Changes when a way does.
    generation: AtomicU64,
    locals: Vec<Local>,
    class: u8,
    /// Until a driver takes them.
    sockets: Mutex<Vec<Xsk>>,
    /// Wakes the thread that looks for ways.
    call: OwnedFd,
    /// Holds the program and its places at the interfaces.
    _program: program::Program,
    how: String,
    unserved: String,
}

/// AF_XDP sockets for one driver. Copies are the same ones; the program leaves the interfaces with the last.
#[derive(Clone)]
pub struct AfXdp(Arc<Inner>);

impl fmt::Debug for AfXdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfXdp")
            .field("locals", &self.0.locals)
            .field("how", &self.0.how)
            .field("unserved", &self.0.unserved)
            .finish_non_exhaustive()
    }
}

impl AfXdp {
    /// Puts the program at the interfaces that have `addresses`, in this thread's network namespace, and opens a socket at each of their
    /// receive queues, 64 of an interface at most. What leaves is marked with the code point `dscp`.
    ///
    /// # Errors
    /// No address can be served: rights (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW), locked memory (8 MiB a queue) or the kernel (5.11 or
    /// later) do not allow it, somebody else's program is there, or this program was built without.
    pub fn start(addresses: &[IpAddr], dscp: u8) -> io::Result<AfXdp> {
        let mut netlink = Netlink::routes()?;
        let mut unserved = Vec::new();
        let mut locals = Vec::new();
        for &address in addresses {
            match local(&mut netlink, address) {
                Ok(_) if locals.len() == MOST_LOCALS => {
                    unserved.push(format!("{address}: {MOST_LOCALS} addresses are served"));
                }
                Ok(local) => locals.push(Local {
                    number: locals.len() as u32,
                    ..local
                }),
                Err(error) => unserved.push(format!("{address}: {error}")),
            }
        }
        if locals.is_empty() {
            return Err(io::Error::other(unserved.join("; ")));
        }
        let (program, opened) = program::Program::start(&locals)?;
        let (mut sockets, mut how) = (Vec::new(), Vec::new());
        for (interface, opened) in opened {
            match opened {
                Ok(opened) => {
                    how.push(opened.how);
                    sockets.extend(opened.sockets);
                }
                // Places in the table stay as they are: one that is not served opens no ports.
                Err(why) => {
                    for local in &mut locals {
                        if local.interface == interface {
                            unserved.push(format!("{}: {why}", local.address));
                            local.interface = 0;
                        }
                    }
                }
            }
        }
        let unserved = unserved.join("; ");
        if sockets.is_empty() {
            return Err(io::Error::other(unserved));
        }
        let count = locals.len() * PORTS as usize;
        // SAFETY: the program's table, of words that are atomic.
        let open = unsafe { Mapped::new(program.open()?, count)? };
        let table = AfXdp(Arc::new(Inner {
            open,
            ways: Mutex::new(Ways::new(WAYS)),
            generation: AtomicU64::new(0),
            locals,
            class: dscp << 2,
            sockets: Mutex::new(sockets),
            call: Keeping::call()?,
            _program: program,
            how: how.join("; "),
            unserved,
        }));
        Keeping::start(&table.0, netlink, None, table.0.call.try_clone()?)?;
        Ok(table)
    }

    /// How frames come and leave at each interface, and for which addresses they do not, with the reasons; the second is empty where
    /// all are served. An interface some of whose queues have no socket is served, and the first text says which.
    pub fn state(&self) -> (String, String) {
        (self.0.how.clone(), self.0.unserved.clone())
    }

    /// Addresses that it serves.
    pub fn serves(&self) -> Vec<IpAddr> {
        let served = self.0.locals.iter().filter(|local| local.interface != 0);
        served.map(|local| local.address).collect()
    }

    /// The sockets; `None` where a driver has them already.
    pub(crate) fn take(&self) -> Option<Vec<Xsk>> {
        let sockets = self.0.sockets.lock();
        let sockets = std::mem::take(&mut *sockets.unwrap_or_else(PoisonError::into_inner));
        (!sockets.is_empty()).then_some(sockets)
    }

    /// The place of a port in the program's table; `None` where its address is not served.
    pub(crate) fn place(&self, port: SocketAddr) -> Option<u32> {
        let mut locals = self.0.locals.iter();
        let known = locals.find(|known| known.address == port.ip() && known.interface != 0)?;
        Some(known.number * PORTS + u32::from(port.port()))
    }

    /// Has the program lead datagrams of a port here, or no more.
    pub(crate) fn set_open(&self, place: u32, open: bool) {
        if let Some(word) = self.0.open.get(place) {
            word.store(u64::from(open), Ordering::Release);
        }
    }

    /// Changes when a way does.
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// The way from an address of ours to a host, which is kept until [`AfXdp::leave`]; `None` where it is not known, in which case
    /// it is looked for.
    pub(crate) fn way(&self, own: IpAddr, to: IpAddr) -> Option<(u16, Hop)> {
        let mut ways = self.0.ways();
        let (slot, looked_for) = ways.take(own, to);
        let way = slot.and_then(|slot| Some((slot, ways.hop(slot)?)));
        drop(ways);
        if looked_for {
            Keeping::wake(&self.0.call);
        }
        way
    }

    /// A way is not used any more.
    pub(crate) fn leave(&self, slot: u16) {
        self.0.ways().leave(slot);
    }
}

impl Inner {
    fn ways(&self) -> MutexGuard<'_, Ways> {
        // Nothing in there can be left half done.
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        Keeping::wake(&self.call);
    }
}

impl Book for Inner {
    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways()
    }

    fn device(&self, interface: u32) -> Option<u32> {
        let mut locals = self.locals.iter();
        locals
            .position(|local| local.interface == interface)
            .map(|place| place as u32)
    }

    fn class(&self) -> u8 {
        self.class
    }

    fn valid(&self, _: u16, _: &Hop) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn invalid(&self, _: u16) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}
