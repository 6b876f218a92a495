//! AF_XDP: the BPF program `ebpf/xsk.c` at the interfaces of media redirects UDP datagrams for open media ports into
//! rings that a driver reads, bypassing the kernel's network stack. Frames that the driver writes leave through the
//! same rings.
//!
//! Each port is also opened as a socket, which receives the packets that the program does not redirect and sends
//! those without a known path. Without support of the network card's driver, frames are copied; without XDP in the
//! driver, the kernel runs the program on received packets (generic mode). An interface gets one AF_XDP socket per
//! receive queue; packets of a queue without one are passed on to the kernel, to the port's other socket. The
//! loopback is left to the sockets: it carries packets without checksums, which the program would reject.

mod frame;
mod program;
mod queues;
mod ring;

pub(crate) use frame::{MacAddresses, read, write};
pub(crate) use ring::XskSocket;

use crate::relay::paths::{PathOwner, PathTable};
use crate::relay::table::{Mapped, NextHop};
use crate::relay::{MAX_PATHS, PORTS, PathThread, ServedAddress, local, netlink::Netlink};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Same as LOCALS in the program.
const MAX_LOCALS: usize = 16;
/// Largest number of receive queues per interface, same as in the program.
const MAX_QUEUES: u32 = 64;

struct AfXdpInner {
    /// Whether a port is open, by index.
    open: Mapped<AtomicU64>,
    paths: Mutex<PathTable>,
    /// Incremented when a path changes.
    generation: AtomicU64,
    locals: Vec<ServedAddress>,
    class: u8,
    /// Moved to the driver when it starts.
    sockets: Mutex<Vec<XskSocket>>,
    /// Wakes the path thread.
    wake_event: OwnedFd,
    /// Keeps the program and its attachments alive.
    _program: program::XskProgram,
    modes: String,
    unserved: String,
}

/// AF_XDP sockets for one driver. Clones share them; the program is detached with the last one.
#[derive(Clone)]
pub struct AfXdp(Arc<AfXdpInner>);

impl fmt::Debug for AfXdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfXdp")
            .field("locals", &self.0.locals)
            .field("modes", &self.0.modes)
            .field("unserved", &self.0.unserved)
            .finish_non_exhaustive()
    }
}

impl AfXdp {
    /// Attaches the program to the interfaces of `addresses`, in this thread's network namespace, and opens a socket
    /// at each of their receive queues, at most 64 per interface. Sent packets are marked with the code point `dscp`.
    ///
    /// # Errors
    /// No address can be served: permissions (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW), locked memory (8 MiB
    /// a queue) or the kernel (5.11 or later) are insufficient, another XDP program is attached, or the build has no
    /// BPF programs.
    pub fn start(addresses: &[IpAddr], dscp: u8) -> io::Result<AfXdp> {
        let mut netlink = Netlink::routes()?;
        let mut unserved = Vec::new();
        let mut locals = Vec::new();
        for &address in addresses {
            match local(&mut netlink, address) {
                Ok(_) if locals.len() == MAX_LOCALS => {
                    unserved.push(format!(
                        "{address}: at most {MAX_LOCALS} addresses are served"
                    ));
                }
                Ok(local) => locals.push(ServedAddress {
                    number: locals.len() as u32,
                    ..local
                }),
                Err(error) => unserved.push(format!("{address}: {error}")),
            }
        }
        if locals.is_empty() {
            return Err(io::Error::other(unserved.join("; ")));
        }
        let (program, opened) = program::XskProgram::start(&locals)?;
        let (mut sockets, mut modes) = (Vec::new(), Vec::new());
        for (interface, opened) in opened {
            match opened {
                Ok(opened) => {
                    modes.push(opened.modes);
                    sockets.extend(opened.sockets);
                }
                // Indices in the table do not change: an unserved address opens no ports.
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
        // SAFETY: the program's map, whose words are atomic.
        let open = unsafe { Mapped::new(program.open()?, count)? };
        let table = AfXdp(Arc::new(AfXdpInner {
            open,
            paths: Mutex::new(PathTable::new(MAX_PATHS)),
            generation: AtomicU64::new(0),
            locals,
            class: dscp << 2,
            sockets: Mutex::new(sockets),
            wake_event: PathThread::wake_event()?,
            _program: program,
            modes: modes.join("; "),
            unserved,
        }));
        PathThread::start(&table.0, netlink, None, table.0.wake_event.try_clone()?)?;
        Ok(table)
    }

    /// The mode of each interface, and the addresses that are not served with the reasons; the second text is empty
    /// if all are served. An interface with some queues without a socket is served; the first text reports it.
    pub fn state(&self) -> (String, String) {
        (self.0.modes.clone(), self.0.unserved.clone())
    }

    /// Addresses that are served.
    pub fn served_addresses(&self) -> Vec<IpAddr> {
        let served = self.0.locals.iter().filter(|local| local.interface != 0);
        served.map(|local| local.address).collect()
    }

    /// Moves the sockets out; `None` if a driver has them already.
    pub(crate) fn take(&self) -> Option<Vec<XskSocket>> {
        let sockets = self.0.sockets.lock();
        let sockets = std::mem::take(&mut *sockets.unwrap_or_else(PoisonError::into_inner));
        (!sockets.is_empty()).then_some(sockets)
    }

    /// Index of a port in the program's table; `None` if its address is not served.
    pub(crate) fn slot(&self, port: SocketAddr) -> Option<u32> {
        let mut locals = self.0.locals.iter();
        let local = locals.find(|local| local.address == port.ip() && local.interface != 0)?;
        Some(local.number * PORTS + u32::from(port.port()))
    }

    /// Starts or stops the redirection of a port's datagrams.
    pub(crate) fn set_open(&self, slot: u32, open: bool) {
        if let Some(word) = self.0.open.get(slot) {
            word.store(u64::from(open), Ordering::Release);
        }
    }

    /// Incremented when a path changes.
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// The path from a local address to a host, reserved until [`AfXdp::leave`]; `None` if it is unknown, in which
    /// case a lookup is started.
    pub(crate) fn path(&self, own: IpAddr, to: IpAddr) -> Option<(u16, NextHop)> {
        let mut paths = self.0.paths();
        let (slot, lookup_needed) = paths.take(own, to);
        let path = slot.and_then(|slot| Some((slot, paths.hop(slot)?)));
        drop(paths);
        if lookup_needed {
            PathThread::wake(&self.0.wake_event);
        }
        path
    }

    /// Releases a path.
    pub(crate) fn leave(&self, slot: u16) {
        self.0.paths().leave(slot);
    }
}

impl AfXdpInner {
    fn paths(&self) -> MutexGuard<'_, PathTable> {
        // No operation leaves the table inconsistent, so a poisoned lock is usable.
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AfXdpInner {
    fn drop(&mut self) {
        PathThread::wake(&self.wake_event);
    }
}

impl PathOwner for AfXdpInner {
    fn paths(&self) -> MutexGuard<'_, PathTable> {
        self.paths()
    }

    fn device(&self, interface: u32) -> Option<u32> {
        let mut locals = self.locals.iter();
        locals
            .position(|local| local.interface == interface)
            .map(|slot| slot as u32)
    }

    fn class(&self) -> u8 {
        self.class
    }

    fn valid(&self, _: u16, _: &NextHop) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn invalid(&self, _: u16) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}
