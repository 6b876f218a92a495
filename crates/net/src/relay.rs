//! The relay in the kernel: the BPF program `ebpf/relay.c` at the interfaces of media, its tables, and what it has to know of the ways on
//! which packets leave.
//!
//! One is shared by all drivers of a program, since an interface takes one program. Drivers open and close flows in memory that they
//! have in common with the kernel; a thread of its own asks for routes and neighbours and never keeps a driver waiting: a flow whose
//! way is not known yet, or no more, has its packets come up to its socket as ever.

mod netlink;
mod table;
mod ways;

pub(crate) use table::Opening;

use crate::steer;
use engine::{Passed, Time};
use netlink::{Changes, Devices, Netlink};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use table::{Flow, Mapped, Way};
use ways::{Keeper, Ways};

/// Ports of an address in the program's table.
const PORTS: u32 = 1 << 16;
/// As LOCALS in the program.
const MOST_LOCALS: usize = 8;
/// Ways in the program's table.
const WAYS: u32 = 1 << 16;

/// An address that the program serves.
#[derive(Clone, Copy, Debug)]
struct Local {
    address: Ipv4Addr,
    interface: u32,
    card: [u8; 6],
}

struct Inner {
    flows: Mapped<Flow>,
    table: Mapped<Way>,
    ways: Mutex<Ways>,
    locals: Vec<Local>,
    class: u8,
    /// Wakes the thread that looks for ways.
    call: OwnedFd,
    /// Holds program, tables and the places at the interfaces.
    _program: program::Program,
    unserved: String,
    /// For each address, whether its interface sends what is redirected to it at present.
    sends: Vec<AtomicBool>,
    /// That has changed since it was last asked for.
    changed: AtomicBool,
}

/// The relay. Copies are the same one; it ends with the last.
#[derive(Clone)]
pub struct KernelRelay(Arc<Inner>);

impl fmt::Debug for KernelRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelRelay")
            .field("locals", &self.0.locals)
            .field("unserved", &self.0.unserved)
            .finish_non_exhaustive()
    }
}

impl KernelRelay {
    /// Puts the program at the interfaces that have `addresses`, in this thread's network namespace. What leaves is marked with the
    /// code point `dscp`.
    ///
    /// # Errors
    /// No address can be served: rights (CAP_BPF, CAP_NET_ADMIN) or the kernel (6.3 or later) do not allow it, the interfaces' drivers
    /// have no XDP (the loopback has none), somebody else's program is there, or this program was built without.
    pub fn start(addresses: &[IpAddr], dscp: u8) -> io::Result<KernelRelay> {
        let mut netlink = Netlink::routes()?;
        let mut devices = Devices::open().map_err(|error| {
            io::Error::other(format!("the kernel does not tell of XDP: {error}"))
        })?;
        let mut unserved = Vec::new();
        let mut locals = Vec::new();
        for &address in addresses {
            match local(&mut netlink, address) {
                Ok(_) if locals.len() == MOST_LOCALS => {
                    unserved.push(format!("{address}: {MOST_LOCALS} addresses are served"));
                }
                Ok(local) => locals.push(local),
                Err(error) => unserved.push(format!("{address}: {error}")),
            }
        }
        let program = match locals.is_empty() {
            true => None,
            false => Some(program::Program::start(&mut locals, &mut unserved)?),
        };
        let unserved = unserved.join("; ");
        let Some(program) = program.filter(|_| !locals.is_empty()) else {
            return Err(io::Error::other(unserved));
        };
        let count = (locals.len() as u32 * PORTS) as usize;
        // SAFETY: the program's tables, of these types and sizes; all bytes are valid for their words, which are atomic.
        let (flows, table) = unsafe {
            (
                Mapped::new(program.flows()?, count)?,
                Mapped::new(program.ways()?, WAYS as usize)?,
            )
        };
        // Asked with the program in its place, with which some drivers begin to do so.
        let sends = locals.iter();
        let sends = sends.map(|local| AtomicBool::new(local.sends(&mut devices)));
        let sends = sends.collect();
        let relay = KernelRelay(Arc::new(Inner {
            flows,
            table,
            ways: Mutex::new(Ways::new(WAYS)),
            locals,
            class: dscp << 2,
            call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            _program: program,
            unserved,
            sends,
            changed: AtomicBool::new(false),
        }));
        let (changes, held) = (Changes::open()?, Arc::downgrade(&relay.0));
        let call = relay.0.call.try_clone()?;
        std::thread::Builder::new()
            .name("ways".into())
            .spawn(move || look_for_ways(&held, &call, &changes, Keeper::new(netlink, devices)))?;
        Ok(relay)
    }

    /// Whether any stream can be relayed at present, and for which addresses not, with the reasons; empty where all are served.
    pub fn state(&self) -> (bool, String) {
        let sends = |at: usize| self.0.sends[at].load(Ordering::Relaxed);
        let mut why: Vec<String> = Vec::new();
        if !self.0.unserved.is_empty() {
            why.push(self.0.unserved.clone());
        }
        let mut any = false;
        for (at, local) in self.0.locals.iter().enumerate() {
            any |= sends(at);
            if local.interface != 0 && !sends(at) {
                why.push(format!(
                    "{}: its interface does not send what is redirected to it (a veth does where its far end gathers: `ethtool -K IFACE gro on` there)",
                    local.address
                ));
            }
        }
        (any, why.join("; "))
    }

    /// The same, once after each change.
    pub fn news(&self) -> Option<(bool, String)> {
        let changed = self.0.changed.swap(false, Ordering::Acquire);
        changed.then(|| self.state())
    }

    /// The place of a port in the table of flows; `None` where the program does not serve its address.
    pub(crate) fn place(&self, local: SocketAddrV4) -> Option<u32> {
        let mut locals = self.0.locals.iter();
        let number =
            locals.position(|known| known.address == *local.ip() && known.interface != 0)?;
        Some(number as u32 * PORTS + u32::from(local.port()))
    }

    /// The way from an address of ours to a host, for a flow that will use it until [`KernelRelay::leave`]; `None` where it is not known,
    /// in which case it is looked for.
    pub(crate) fn way(&self, own: Ipv4Addr, to: Ipv4Addr) -> Option<u16> {
        let (way, looked_for) = self.0.ways().take(own, to);
        if looked_for {
            self.0.wake();
        }
        way
    }

    /// A flow does not use its way any more.
    pub(crate) fn leave(&self, way: u16) {
        self.0.ways().leave(way);
    }

    /// Opens a flow whose record is closed.
    pub(crate) fn open(&self, place: u32, opening: &Opening) {
        if let Some(flow) = self.0.flows.get(place) {
            flow.open(opening);
        }
    }

    /// Closes a flow that was opened with this sequence number, and tells what has passed.
    pub(crate) fn close(&self, place: u32, first: u16, now: (Time, u64)) -> Passed {
        match self.0.flows.get(place) {
            Some(flow) => flow.close(first, now),
            None => Passed::default(),
        }
    }

    /// Opens a flow on its own, for measurements: everything that comes to `local` from `source` with this source identifier and payload
    /// type 18, beginning with number 0, goes on from `out` to `destination`. Whether the way is known; it is looked for otherwise.
    #[doc(hidden)]
    pub fn open_for_measurement(
        &self,
        [local, source, out, destination]: [SocketAddr; 4],
        ssrc: u32,
    ) -> bool {
        let v4 = |address| match address {
            SocketAddr::V4(address) => Some(address),
            SocketAddr::V6(_) => None,
        };
        let (Some(local), Some(source), Some(out), Some(destination)) =
            (v4(local), v4(source), v4(out), v4(destination))
        else {
            return false;
        };
        let Some((place, way)) = self
            .place(local)
            .and_then(|place| Some((place, self.way(*out.ip(), *destination.ip())?)))
        else {
            return false;
        };
        let opening = Opening {
            local,
            source,
            out,
            destination,
            ssrc,
            payload_type: 18,
            sequence: 0,
            timestamp: 0,
            arrived: 0,
            clock_rate: 8_000,
            jitter: std::time::Duration::ZERO,
            way,
        };
        self.open(place, &opening);
        true
    }
}

impl Local {
    fn sends(&self, devices: &mut Devices) -> bool {
        // What the kernel does not tell does not count.
        self.interface != 0 && devices.sends_frames(self.interface).unwrap_or(false)
    }
}

impl Inner {
    /// Looks which interfaces send what is redirected to them.
    fn look_at_interfaces(&self, devices: &mut Devices) {
        for (local, known) in self.locals.iter().zip(&self.sends) {
            let sends = local.sends(devices);
            if known.swap(sends, Ordering::Relaxed) != sends {
                self.changed.store(true, Ordering::Release);
            }
        }
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        // Nothing in there can be left half done.
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // As in `Waker::wake`.
        let _ = rustix::io::write(&self.call, &1u64.to_ne_bytes());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wake();
    }
}

/// The interface that has an address, where it may be served.
fn local(netlink: &mut Netlink, address: IpAddr) -> io::Result<Local> {
    let IpAddr::V4(address) = address else {
        return Err(io::Error::other("IPv6 goes through sockets"));
    };
    let interface = netlink
        .interface_of(address)?
        .ok_or_else(|| io::Error::other("no interface has it"))?;
    let known = netlink
        .interface(interface)?
        .ok_or_else(|| io::Error::other("its interface is no Ethernet, or down"))?;
    Ok(Local {
        address,
        interface,
        card: known.card,
    })
}

/// Looks for ways until the relay is gone: for new ones at once, for all others time and again.
fn look_for_ways(relay: &Weak<Inner>, call: &OwnedFd, changes: &Changes, mut keeper: Keeper) {
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    loop {
        let mut watched = [
            PollFd::from_borrowed_fd(call.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(changes.fd(), PollFlags::IN),
        ];
        // Interrupted or not, there is something to look at soon enough.
        let _ = poll(&mut watched, Some(&second));
        let mut count = [0; 8];
        let _ = rustix::io::read(call, &mut count);
        let all = changes.take();
        let Some(relay) = relay.upgrade() else {
            return;
        };
        keeper.turn(&relay, all);
    }
}

#[cfg(bpf_present)]
mod program {
    use super::steer::failed;
    use super::{Local, PORTS};
    use aya::maps::{DevMap, Map, MapData};
    use aya::programs::Xdp;
    use aya::programs::xdp::XdpMode;
    use aya::{Ebpf, EbpfLoader};
    use std::io;
    use std::os::fd::{AsFd as _, BorrowedFd};

    /// As `struct local`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Known {
        address: [u8; 4],
        interface: u32,
        card: [u8; 6],
        unused: [u8; 2],
    }

    // SAFETY: numbers in C's layout, for which all bytes are valid and between which nothing lies.
    unsafe impl aya::Pod for Known {}

    pub(super) struct Program {
        _loaded: Ebpf,
        flows: MapData,
        ways: MapData,
    }

    fn array(loaded: &mut Ebpf, name: &str) -> io::Result<MapData> {
        match loaded.take_map(name) {
            Some(Map::Array(map)) => Ok(map),
            _ => Err(io::Error::other(format!("the BPF program lacks {name}"))),
        }
    }

    impl Program {
        /// Loads the program and puts it at the interfaces; locals where it cannot be are taken out, with the reason.
        pub(super) fn start(
            locals: &mut Vec<Local>,
            unserved: &mut Vec<String>,
        ) -> io::Result<Program> {
            let known: Vec<Known> = locals
                .iter()
                .map(|local| Known {
                    address: local.address.octets(),
                    interface: local.interface,
                    card: local.card,
                    unused: [0; 2],
                })
                .collect();
            let mut all = [Known {
                address: [0; 4],
                interface: 0,
                card: [0; 6],
                unused: [0; 2],
            }; super::MOST_LOCALS];
            for (place, known) in all.iter_mut().zip(&known) {
                *place = *known;
            }
            let count = known.len() as u32;
            let code = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/relay.o"));
            let mut loaded = EbpfLoader::new()
                .map_max_entries("flows", count * PORTS)
                .override_global("local_count", &count, true)
                .override_global("locals", &all[..], true)
                .load(code)
                .map_err(|error| failed("the kernel does not take the BPF program", error))?;
            let flows = array(&mut loaded, "flows")?;
            let ways = array(&mut loaded, "ways")?;
            let wrong = |error| failed("a table of the BPF program", error);
            let map = loaded
                .take_map("devices")
                .ok_or_else(|| io::Error::other("the BPF program lacks devices"))?;
            let mut devices = DevMap::try_from(map).map_err(wrong)?;
            for (place, local) in (0..).zip(locals.iter()) {
                devices
                    .set(place, local.interface, None, 0)
                    .map_err(|error| failed("an interface cannot be redirected to", error))?;
            }
            let program: &mut Xdp = loaded
                .program_mut("relay")
                .ok_or_else(|| io::Error::other("the BPF program lacks its entry"))?
                .try_into()
                .map_err(|error| failed("the BPF program", error))?;
            program
                .load()
                .map_err(|error| failed("the kernel does not take the BPF program", error))?;
            let mut tried: Vec<(u32, Result<(), String>)> = Vec::new();
            for local in locals.iter() {
                if tried.iter().any(|(known, _)| *known == local.interface) {
                    continue;
                }
                // By the driver: a program behind the kernel's own buffers would be no faster than a socket.
                let put = program.attach_to_if_index(local.interface, XdpMode::Driver);
                let put = put.map(|_| ()).map_err(|error| {
                    failed("the interface does not take the BPF program", error).to_string()
                });
                tried.push((local.interface, put));
            }
            // Places in the table stay as they are: one that is not served has no packets and opens no flows.
            for local in locals.iter_mut() {
                let why = tried
                    .iter()
                    .find(|(interface, _)| *interface == local.interface)
                    .and_then(|(_, put)| put.as_ref().err());
                if let Some(why) = why {
                    unserved.push(format!("{}: {why}", local.address));
                    local.interface = 0;
                }
            }
            while locals.last().is_some_and(|local| local.interface == 0) {
                locals.pop();
            }
            // The devmap's file is held by the program.
            Ok(Program {
                _loaded: loaded,
                flows,
                ways,
            })
        }

        pub(super) fn flows(&self) -> io::Result<BorrowedFd<'_>> {
            Ok(self.flows.fd().as_fd())
        }

        pub(super) fn ways(&self) -> io::Result<BorrowedFd<'_>> {
            Ok(self.ways.fd().as_fd())
        }
    }
}

#[cfg(not(bpf_present))]
mod program {
    use super::Local;
    use std::io;
    use std::os::fd::BorrowedFd;

    pub(super) enum Program {}

    impl Program {
        pub(super) fn start(_: &mut Vec<Local>, _: &mut Vec<String>) -> io::Result<Program> {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build has no BPF programs, for want of clang",
            ))
        }

        pub(super) fn flows(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }

        pub(super) fn ways(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }
    }
}
