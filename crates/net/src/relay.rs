//! The relay in the kernel: the BPF program `ebpf/relay.c` at the interfaces of media, its tables, and what it has to know of the ways on
//! which packets leave.
//!
//! One is shared by all drivers of a program, since an interface takes one program. Drivers open and close flows in memory that they
//! have in common with the kernel; a thread of its own asks for routes and neighbours and never keeps a driver waiting: a flow whose
//! way is not known yet, or no more, has its packets come up to its socket as ever.

pub(crate) mod netlink;
pub(crate) mod table;
pub(crate) mod ways;

pub(crate) use table::Opening;

use crate::steer;
use engine::{Passed, Time};
use netlink::{Changes, Devices, Netlink};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use table::{Flow, Flow6, Hop, Mapped, Way};
use ways::{Book, Keeper, Ways};

/// Ports of an address in the program's table.
pub(crate) const PORTS: u32 = 1 << 16;
/// As LOCALS in the program.
const MOST_LOCALS: usize = 8;
/// Ways in the program's table.
pub(crate) const WAYS: u32 = 1 << 16;

/// A port's place in the table of flows of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    V4(u32),
    V6(u32),
}

/// An address that the program serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) address: IpAddr,
    /// Which one it is, in the relay of its family.
    pub(crate) number: u32,
    /// 0 where it is not served.
    pub(crate) interface: u32,
    pub(crate) card: [u8; 6],
}

struct Inner {
    flows: Mapped<Flow>,
    flows6: Mapped<Flow6>,
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
    /// No address can be served: rights (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN) or the kernel (6.3 or later) do not allow it, the interfaces' drivers
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
                Ok(local) => {
                    let number = count(&locals, address.is_ipv6());
                    match number < MOST_LOCALS {
                        true => locals.push(Local {
                            number: number as u32,
                            ..local
                        }),
                        false => unserved.push(format!(
                            "{address}: {MOST_LOCALS} addresses of a family are served"
                        )),
                    }
                }
                Err(error) => unserved.push(format!("{address}: {error}")),
            }
        }
        let program = match locals.is_empty() {
            true => None,
            false => Some(program::Program::start(&mut locals, &mut unserved)?),
        };
        let unserved = unserved.join("; ");
        let served = locals.iter().any(|local| local.interface != 0);
        let Some(program) = program.filter(|_| served) else {
            return Err(io::Error::other(unserved));
        };
        // SAFETY: the program's tables, of these types and sizes; all bytes are valid for their words, which are atomic.
        let (flows, flows6, table) = unsafe {
            (
                Mapped::new(program.flows()?, room(&locals, false) as usize)?,
                Mapped::new(program.flows6()?, room(&locals, true) as usize)?,
                Mapped::new(program.ways()?, WAYS as usize)?,
            )
        };
        // Asked with the program in its place, with which some drivers begin to do so.
        let sends = locals.iter();
        let sends = sends.map(|local| AtomicBool::new(local.sends(&mut devices)));
        let sends = sends.collect();
        let relay = KernelRelay(Arc::new(Inner {
            flows,
            flows6,
            table,
            ways: Mutex::new(Ways::new(WAYS)),
            locals,
            class: dscp << 2,
            call: Keeping::call()?,
            _program: program,
            unserved,
            sends,
            changed: AtomicBool::new(false),
        }));
        Keeping::start(&relay.0, netlink, Some(devices), relay.0.call.try_clone()?)?;
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

    /// Addresses whose streams it can relay at present, both ways.
    pub fn serves(&self) -> Vec<IpAddr> {
        let locals = self.0.locals.iter().enumerate();
        let sends = |at: usize| {
            self.0
                .sends
                .get(at)
                .is_some_and(|sends| sends.load(Ordering::Relaxed))
        };
        locals
            .filter(|(at, local)| local.interface != 0 && sends(*at))
            .map(|(_, local)| local.address)
            .collect()
    }

    /// The same as [`KernelRelay::state`], once after each change.
    pub fn news(&self) -> Option<(bool, String)> {
        let changed = self.0.changed.swap(false, Ordering::Acquire);
        changed.then(|| self.state())
    }

    /// The place of a port in the table of flows; `None` where the program does not serve its address.
    pub(crate) fn place(&self, local: SocketAddr) -> Option<Place> {
        let mut locals = self.0.locals.iter();
        let known = locals.find(|known| known.address == local.ip() && known.interface != 0)?;
        let at = known.number * PORTS + u32::from(local.port());
        Some(match local {
            SocketAddr::V4(_) => Place::V4(at),
            SocketAddr::V6(_) => Place::V6(at),
        })
    }

    /// The way from an address of ours to a host, for a flow that will use it until [`KernelRelay::leave`]; `None` where it is not known,
    /// in which case it is looked for.
    pub(crate) fn way(&self, own: IpAddr, to: IpAddr) -> Option<u16> {
        let (way, looked_for) = self.0.ways().take(own, to);
        if looked_for {
            Keeping::wake(&self.0.call);
        }
        way
    }

    /// A flow does not use its way any more.
    pub(crate) fn leave(&self, way: u16) {
        self.0.ways().leave(way);
    }

    /// Opens a flow whose record is closed.
    pub(crate) fn open(&self, place: Place, opening: &Opening) {
        match place {
            Place::V4(at) => {
                if let Some(flow) = self.0.flows.get(at) {
                    flow.open(opening);
                }
            }
            Place::V6(at) => {
                if let Some(flow) = self.0.flows6.get(at) {
                    flow.open(opening);
                }
            }
        }
    }

    /// Closes a flow that was opened with this sequence number, and tells what has passed.
    pub(crate) fn close(&self, place: Place, first: u16, now: (Time, u64)) -> Passed {
        let passed = match place {
            Place::V4(at) => self.0.flows.get(at).map(|flow| flow.close(first, now)),
            Place::V6(at) => self.0.flows6.get(at).map(|flow| flow.close(first, now)),
        };
        passed.unwrap_or_default()
    }

    /// Opens a flow on its own, for measurements: everything that comes to `local` from `source` with this source identifier and payload
    /// type 18, beginning with number 0, goes on from `out` to `destination`. Whether the way is known; it is looked for otherwise.
    #[doc(hidden)]
    pub fn open_for_measurement(
        &self,
        [local, source, out, destination]: [SocketAddr; 4],
        ssrc: u32,
    ) -> bool {
        let Some((place, way)) = self
            .place(local)
            .and_then(|place| Some((place, self.way(out.ip(), destination.ip())?)))
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

    fn valid(&self, slot: u16, hop: &Hop) {
        if let Some(way) = self.table.get(u32::from(slot)) {
            way.set(hop);
        }
    }

    fn invalid(&self, slot: u16) {
        if let Some(way) = self.table.get(u32::from(slot)) {
            way.clear();
        }
    }

    fn look_at_interfaces(&self, devices: &mut Devices) {
        for (local, known) in self.locals.iter().zip(&self.sends) {
            let sends = local.sends(devices);
            if known.swap(sends, Ordering::Relaxed) != sends {
                self.changed.store(true, Ordering::Release);
            }
        }
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

fn count(locals: &[Local], six: bool) -> usize {
    let of = |local: &&Local| local.address.is_ipv6() == six;
    locals.iter().filter(of).count()
}

/// Entries of a family's table of flows; there is no table of none.
fn room(locals: &[Local], six: bool) -> u32 {
    (count(locals, six) as u32 * PORTS).max(1)
}

/// The interface that has an address, where it may be served.
pub(crate) fn local(netlink: &mut Netlink, address: IpAddr) -> io::Result<Local> {
    // Ways of those are each interface's own, and are not looked for.
    if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
        return Err(io::Error::other("link-local addresses go through sockets"));
    }
    let interface = netlink
        .interface_of(address)?
        .ok_or_else(|| io::Error::other("no interface has it"))?;
    let known = netlink.interface(interface)?.ok_or_else(|| {
        io::Error::other("its interface is no Ethernet (the loopback is none), or down")
    })?;
    Ok(Local {
        address,
        number: 0,
        interface,
        card: known.card,
    })
}

/// The thread that looks for ways.
pub(crate) struct Keeping;

impl Keeping {
    /// What it is called by.
    pub(crate) fn call() -> io::Result<OwnedFd> {
        Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
    }

    /// Has it look.
    pub(crate) fn wake(call: &OwnedFd) {
        // As in `Waker::wake`.
        let _ = rustix::io::write(call, &1u64.to_ne_bytes());
    }

    /// Starts it, for a book for as long as there is one.
    pub(crate) fn start(
        book: &Arc<impl Book>,
        netlink: Netlink,
        devices: Option<Devices>,
        call: OwnedFd,
    ) -> io::Result<()> {
        let (changes, held) = (Changes::open()?, Arc::downgrade(book));
        std::thread::Builder::new()
            .name("ways".into())
            .spawn(move || look_for_ways(&held, &call, &changes, Keeper::new(netlink, devices)))?;
        Ok(())
    }
}

/// Looks for ways until the book is gone: for new ones at once, for all others time and again.
fn look_for_ways(book: &Weak<impl Book>, call: &OwnedFd, changes: &Changes, mut keeper: Keeper) {
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
        let Some(book) = book.upgrade() else {
            return;
        };
        keeper.turn(&*book, all);
    }
}

#[cfg(bpf_present)]
mod program {
    use super::steer::failed;
    use super::{Local, MOST_LOCALS, count, room};
    use aya::maps::{DevMap, Map, MapData};
    use aya::programs::Xdp;
    use aya::programs::xdp::XdpMode;
    use aya::{Ebpf, EbpfLoader};
    use std::io;
    use std::net::IpAddr;
    use std::os::fd::{AsFd as _, BorrowedFd};

    /// As `struct local`, and with 16 bytes of address as `struct local6`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Known<const N: usize> {
        address: [u8; N],
        interface: u32,
        card: [u8; 6],
        unused: [u8; 2],
    }

    // SAFETY: numbers in C's layout, for which all bytes are valid and between which nothing lies.
    unsafe impl aya::Pod for Known<4> {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Known<16> {}

    /// The program's list of a family's addresses.
    fn known<const N: usize>(
        locals: &[Local],
        octets: impl Fn(IpAddr) -> Option<[u8; N]>,
    ) -> [Known<N>; MOST_LOCALS] {
        let nobody = Known {
            address: [0; N],
            interface: 0,
            card: [0; 6],
            unused: [0; 2],
        };
        let mut all = [nobody; MOST_LOCALS];
        for local in locals {
            if let Some(address) = octets(local.address)
                && let Some(place) = all.get_mut(local.number as usize)
            {
                *place = Known {
                    address,
                    interface: local.interface,
                    card: local.card,
                    ..nobody
                };
            }
        }
        all
    }

    pub(super) struct Program {
        _loaded: Ebpf,
        flows: MapData,
        flows6: MapData,
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
            locals: &mut [Local],
            unserved: &mut Vec<String>,
        ) -> io::Result<Program> {
            let locals4 = known(locals, |address| match address {
                IpAddr::V4(address) => Some(address.octets()),
                IpAddr::V6(_) => None,
            });
            let locals6 = known(locals, |address| match address {
                IpAddr::V4(_) => None,
                IpAddr::V6(address) => Some(address.octets()),
            });
            let [count4, count6] = [false, true].map(|six| count(locals, six) as u32);
            let code = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/relay.o"));
            let mut loaded = EbpfLoader::new()
                .map_max_entries("flows", room(locals, false))
                .map_max_entries("flows6", room(locals, true))
                .override_global("local_count", &count4, true)
                .override_global("local6_count", &count6, true)
                .override_global("locals", &locals4[..], true)
                .override_global("locals6", &locals6[..], true)
                .load(code)
                .map_err(|error| failed("the kernel does not take the BPF program", error))?;
            let flows = array(&mut loaded, "flows")?;
            let flows6 = array(&mut loaded, "flows6")?;
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
            // The devmap's file is held by the program.
            Ok(Program {
                _loaded: loaded,
                flows,
                flows6,
                ways,
            })
        }

        pub(super) fn flows(&self) -> io::Result<BorrowedFd<'_>> {
            Ok(self.flows.fd().as_fd())
        }

        pub(super) fn flows6(&self) -> io::Result<BorrowedFd<'_>> {
            Ok(self.flows6.fd().as_fd())
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
        pub(super) fn start(_: &mut [Local], _: &mut Vec<String>) -> io::Result<Program> {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build has no BPF programs, for want of clang",
            ))
        }

        pub(super) fn flows(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }

        pub(super) fn flows6(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }

        pub(super) fn ways(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }
    }
}
