//! The kernel relay: the BPF program `ebpf/relay.c` at the interfaces of media, its tables, and the paths on which
//! packets leave.
//!
//! All drivers of a program share one relay, because an interface takes one program. Drivers open and close flows in
//! memory shared with the kernel. A separate thread queries routes and neighbours and never blocks a driver: packets
//! of a flow whose path is unknown or has become invalid are delivered to its socket.

pub(crate) mod netlink;
pub(crate) mod paths;
pub(crate) mod table;

pub(crate) use table::Opening;

use crate::steer;
use engine::{OffloadStatistics, Time};
use netlink::{Changes, Devices, Netlink};
use paths::{PathOwner, PathResolver, PathTable};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use table::{FlowRecord, FlowRecord6, Mapped, NextHop, NextHopRecord};

/// Ports per address in the program's table.
pub(crate) const PORTS: u32 = 1 << 16;
/// Same as LOCALS in the program.
const MAX_LOCALS: usize = 8;
/// Paths in the program's table.
pub(crate) const MAX_PATHS: u32 = 1 << 16;

/// Index of a port in the flow table of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowSlot {
    V4(u32),
    V6(u32),
}

/// An address that the program serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedAddress {
    pub(crate) address: IpAddr,
    /// Index among the addresses of its family.
    pub(crate) number: u32,
    /// 0 if it is not served.
    pub(crate) interface: u32,
    pub(crate) mac: [u8; 6],
}

struct RelayInner {
    flows: Mapped<FlowRecord>,
    flows6: Mapped<FlowRecord6>,
    table: Mapped<NextHopRecord>,
    paths: Mutex<PathTable>,
    locals: Vec<ServedAddress>,
    class: u8,
    /// Wakes the path thread.
    wake_event: OwnedFd,
    /// Keeps the program, its tables and its attachments alive.
    _program: program::Program,
    unserved: String,
    /// For each address, whether its interface transmits redirected frames at present.
    sends: Vec<AtomicBool>,
    /// `sends` has changed since the last call of `take_changed_state`.
    changed: AtomicBool,
}

/// The kernel relay. Clones share it; it ends with the last one.
#[derive(Clone)]
pub struct KernelRelay(Arc<RelayInner>);

impl fmt::Debug for KernelRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelRelay")
            .field("locals", &self.0.locals)
            .field("unserved", &self.0.unserved)
            .finish_non_exhaustive()
    }
}

impl KernelRelay {
    /// Attaches the program to the interfaces of `addresses`, in this thread's network namespace. Sent packets are
    /// marked with the code point `dscp`.
    ///
    /// # Errors
    /// No address can be served: permissions (CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN) or the kernel (6.3 or later) are
    /// insufficient, the interfaces' drivers have no XDP (the loopback has none), another XDP program is attached, or
    /// the build has no BPF programs.
    pub fn start(addresses: &[IpAddr], dscp: u8) -> io::Result<KernelRelay> {
        let mut netlink = Netlink::routes()?;
        let mut devices = Devices::open().map_err(|error| {
            io::Error::other(format!("the kernel does not report XDP features: {error}"))
        })?;
        let mut unserved = Vec::new();
        let mut locals = Vec::new();
        for &address in addresses {
            match local(&mut netlink, address) {
                Ok(local) => {
                    let number = count(&locals, address.is_ipv6());
                    match number < MAX_LOCALS {
                        true => locals.push(ServedAddress {
                            number: number as u32,
                            ..local
                        }),
                        false => unserved.push(format!(
                            "{address}: at most {MAX_LOCALS} addresses of a family are served"
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
        // SAFETY: the program's maps have these types and sizes; all bytes are valid for their words, which are
        // atomic.
        let (flows, flows6, table) = unsafe {
            (
                Mapped::new(program.flows()?, room(&locals, false) as usize)?,
                Mapped::new(program.flows6()?, room(&locals, true) as usize)?,
                Mapped::new(program.paths()?, MAX_PATHS as usize)?,
            )
        };
        // Queried with the program attached, because some drivers enable transmission only then.
        let sends = locals.iter();
        let sends = sends.map(|local| AtomicBool::new(local.sends(&mut devices)));
        let sends = sends.collect();
        let relay = KernelRelay(Arc::new(RelayInner {
            flows,
            flows6,
            table,
            paths: Mutex::new(PathTable::new(MAX_PATHS)),
            locals,
            class: dscp << 2,
            wake_event: PathThread::wake_event()?,
            _program: program,
            unserved,
            sends,
            changed: AtomicBool::new(false),
        }));
        PathThread::start(
            &relay.0,
            netlink,
            Some(devices),
            relay.0.wake_event.try_clone()?,
        )?;
        Ok(relay)
    }

    /// Whether any stream can be relayed at present, and the addresses that are not served with the reasons; empty if
    /// all are served.
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
                    "{}: its interface does not transmit redirected frames (a veth does if its peer has GRO: run `ethtool -K IFACE gro on` on the peer)",
                    local.address
                ));
            }
        }
        (any, why.join("; "))
    }

    /// Addresses whose streams can be relayed at present, in both directions.
    pub fn served_addresses(&self) -> Vec<IpAddr> {
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

    /// The state of [`KernelRelay::state`], once after each change.
    pub fn take_changed_state(&self) -> Option<(bool, String)> {
        let changed = self.0.changed.swap(false, Ordering::Acquire);
        changed.then(|| self.state())
    }

    /// Index of a port in the flow table; `None` if the program does not serve its address.
    pub(crate) fn slot(&self, local: SocketAddr) -> Option<FlowSlot> {
        let mut locals = self.0.locals.iter();
        let served = locals.find(|served| served.address == local.ip() && served.interface != 0)?;
        let at = served.number * PORTS + u32::from(local.port());
        Some(match local {
            SocketAddr::V4(_) => FlowSlot::V4(at),
            SocketAddr::V6(_) => FlowSlot::V6(at),
        })
    }

    /// The path from a local address to a host, reserved for a flow until [`KernelRelay::leave`]; `None` if it is
    /// unknown, in which case a lookup is started.
    pub(crate) fn path(&self, own: IpAddr, to: IpAddr) -> Option<u16> {
        let (path, lookup_needed) = self.0.paths().take(own, to);
        if lookup_needed {
            PathThread::wake(&self.0.wake_event);
        }
        path
    }

    /// Releases a flow's path.
    pub(crate) fn leave(&self, path: u16) {
        self.0.paths().leave(path);
    }

    /// Opens a flow whose record is closed.
    pub(crate) fn open(&self, slot: FlowSlot, opening: &Opening) {
        match slot {
            FlowSlot::V4(at) => {
                if let Some(flow) = self.0.flows.get(at) {
                    flow.open(opening);
                }
            }
            FlowSlot::V6(at) => {
                if let Some(flow) = self.0.flows6.get(at) {
                    flow.open(opening);
                }
            }
        }
    }

    /// Closes a flow that was opened with this sequence number, and returns its counts.
    pub(crate) fn close(&self, slot: FlowSlot, first: u16, now: (Time, u64)) -> OffloadStatistics {
        let passed = match slot {
            FlowSlot::V4(at) => self.0.flows.get(at).map(|flow| flow.close(first, now)),
            FlowSlot::V6(at) => self.0.flows6.get(at).map(|flow| flow.close(first, now)),
        };
        passed.unwrap_or_default()
    }

    /// Opens a flow for measurements: packets from `source` to `local` with this SSRC and payload type 18, from
    /// sequence number 0 on, are sent from `out` to `destination`. Returns whether the path is known; otherwise a
    /// lookup is started.
    #[doc(hidden)]
    pub fn open_for_measurement(
        &self,
        [local, source, out, destination]: [SocketAddr; 4],
        ssrc: u32,
    ) -> bool {
        let Some((slot, path)) = self
            .slot(local)
            .and_then(|slot| Some((slot, self.path(out.ip(), destination.ip())?)))
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
            path,
        };
        self.open(slot, &opening);
        true
    }
}

impl ServedAddress {
    fn sends(&self, devices: &mut Devices) -> bool {
        // If the kernel does not report it, the interface is not used.
        self.interface != 0 && devices.sends_frames(self.interface).unwrap_or(false)
    }
}

impl PathOwner for RelayInner {
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

    fn valid(&self, slot: u16, hop: &NextHop) {
        if let Some(path) = self.table.get(u32::from(slot)) {
            path.set(hop);
        }
    }

    fn invalid(&self, slot: u16) {
        if let Some(path) = self.table.get(u32::from(slot)) {
            path.clear();
        }
    }

    fn check_interfaces(&self, devices: &mut Devices) {
        for (local, transmits) in self.locals.iter().zip(&self.sends) {
            let sends = local.sends(devices);
            if transmits.swap(sends, Ordering::Relaxed) != sends {
                self.changed.store(true, Ordering::Release);
            }
        }
    }
}

impl RelayInner {
    fn paths(&self) -> MutexGuard<'_, PathTable> {
        // No operation leaves the table inconsistent, so a poisoned lock is usable.
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RelayInner {
    fn drop(&mut self) {
        PathThread::wake(&self.wake_event);
    }
}

fn count(locals: &[ServedAddress], six: bool) -> usize {
    let of = |local: &&ServedAddress| local.address.is_ipv6() == six;
    locals.iter().filter(of).count()
}

/// Entries of a family's flow table; a map cannot be empty.
fn room(locals: &[ServedAddress], six: bool) -> u32 {
    (count(locals, six) as u32 * PORTS).max(1)
}

/// The interface of an address, if it can be served.
pub(crate) fn local(netlink: &mut Netlink, address: IpAddr) -> io::Result<ServedAddress> {
    // Paths of link-local addresses depend on the interface, which the table does not hold.
    if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
        return Err(io::Error::other(
            "link-local addresses are not supported; they use sockets",
        ));
    }
    let interface = netlink
        .interface_of(address)?
        .ok_or_else(|| io::Error::other("no interface has this address"))?;
    let found = netlink.interface(interface)?.ok_or_else(|| {
        io::Error::other("its interface is down or not Ethernet (the loopback is not)")
    })?;
    Ok(ServedAddress {
        address,
        number: 0,
        interface,
        mac: found.mac,
    })
}

/// The thread that looks up paths.
pub(crate) struct PathThread;

impl PathThread {
    /// The event descriptor that wakes it.
    pub(crate) fn wake_event() -> io::Result<OwnedFd> {
        Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
    }

    /// Starts a lookup.
    pub(crate) fn wake(wake_event: &OwnedFd) {
        // As in `Waker::wake`.
        let _ = rustix::io::write(wake_event, &1u64.to_ne_bytes());
    }

    /// Starts the thread; it ends when its owner is dropped.
    pub(crate) fn start(
        owner: &Arc<impl PathOwner>,
        netlink: Netlink,
        devices: Option<Devices>,
        wake_event: OwnedFd,
    ) -> io::Result<()> {
        let (changes, weak) = (Changes::open()?, Arc::downgrade(owner));
        std::thread::Builder::new()
            .name("paths".into())
            .spawn(move || {
                resolve_paths(
                    &weak,
                    &wake_event,
                    &changes,
                    PathResolver::new(netlink, devices),
                )
            })?;
        Ok(())
    }
}

/// Looks up paths until the owner is dropped: new ones at once, all others periodically.
fn resolve_paths(
    owner: &Weak<impl PathOwner>,
    wake_event: &OwnedFd,
    changes: &Changes,
    mut resolver: PathResolver,
) {
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    loop {
        let mut watched = [
            PollFd::from_borrowed_fd(wake_event.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(changes.fd(), PollFlags::IN),
        ];
        // The result is ignored: a spurious wake-up costs one round.
        let _ = poll(&mut watched, Some(&second));
        let mut count = [0; 8];
        let _ = rustix::io::read(wake_event, &mut count);
        let all = changes.take();
        let Some(owner) = owner.upgrade() else {
            return;
        };
        resolver.run(&*owner, all);
    }
}

#[cfg(bpf_present)]
mod program {
    use super::steer::failed;
    use super::{MAX_LOCALS, ServedAddress, count, room};
    use aya::maps::{DevMap, Map, MapData};
    use aya::programs::Xdp;
    use aya::programs::xdp::XdpMode;
    use aya::{Ebpf, EbpfLoader};
    use std::io;
    use std::net::IpAddr;
    use std::os::fd::{AsFd as _, BorrowedFd};

    /// Layout of `struct local`, and with 16 bytes of address of `struct local6`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct LocalRecord<const N: usize> {
        address: [u8; N],
        interface: u32,
        mac: [u8; 6],
        unused: [u8; 2],
    }

    // SAFETY: integers in C layout without padding, for which all bytes are valid.
    unsafe impl aya::Pod for LocalRecord<4> {}
    // SAFETY: as above.
    unsafe impl aya::Pod for LocalRecord<16> {}

    /// The program's list of a family's addresses.
    fn local_records<const N: usize>(
        locals: &[ServedAddress],
        octets: impl Fn(IpAddr) -> Option<[u8; N]>,
    ) -> [LocalRecord<N>; MAX_LOCALS] {
        let unused_record = LocalRecord {
            address: [0; N],
            interface: 0,
            mac: [0; 6],
            unused: [0; 2],
        };
        let mut all = [unused_record; MAX_LOCALS];
        for local in locals {
            if let Some(address) = octets(local.address)
                && let Some(slot) = all.get_mut(local.number as usize)
            {
                *slot = LocalRecord {
                    address,
                    interface: local.interface,
                    mac: local.mac,
                    ..unused_record
                };
            }
        }
        all
    }

    pub(super) struct Program {
        _loaded: Ebpf,
        flows: MapData,
        flows6: MapData,
        paths: MapData,
    }

    fn array(loaded: &mut Ebpf, name: &str) -> io::Result<MapData> {
        match loaded.take_map(name) {
            Some(Map::Array(map)) => Ok(map),
            _ => Err(io::Error::other(format!(
                "the BPF program has no map {name}"
            ))),
        }
    }

    impl Program {
        /// Loads the program and attaches it to the interfaces; addresses whose interface refuses it are marked as
        /// unserved, with the reason.
        pub(super) fn start(
            locals: &mut [ServedAddress],
            unserved: &mut Vec<String>,
        ) -> io::Result<Program> {
            let locals4 = local_records(locals, |address| match address {
                IpAddr::V4(address) => Some(address.octets()),
                IpAddr::V6(_) => None,
            });
            let locals6 = local_records(locals, |address| match address {
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
                .map_err(|error| failed("the kernel rejects the BPF program", error))?;
            let flows = array(&mut loaded, "flows")?;
            let flows6 = array(&mut loaded, "flows6")?;
            let paths = array(&mut loaded, "ways")?;
            let wrong_map = |error| failed("a map of the BPF program has another type", error);
            let map = loaded
                .take_map("devices")
                .ok_or_else(|| io::Error::other("the BPF program has no map devices"))?;
            let mut devices = DevMap::try_from(map).map_err(wrong_map)?;
            for (slot, local) in (0..).zip(locals.iter()) {
                devices
                    .set(slot, local.interface, None, 0)
                    .map_err(|error| {
                        failed("an interface cannot be added to the BPF map", error)
                    })?;
            }
            let program: &mut Xdp = loaded
                .program_mut("relay")
                .ok_or_else(|| io::Error::other("the BPF program has no entry point"))?
                .try_into()
                .map_err(|error| failed("the BPF program has another type", error))?;
            program
                .load()
                .map_err(|error| failed("the kernel rejects the BPF program", error))?;
            let mut tried: Vec<(u32, Result<(), String>)> = Vec::new();
            for local in locals.iter() {
                if tried
                    .iter()
                    .any(|(interface, _)| *interface == local.interface)
                {
                    continue;
                }
                // Driver mode only: in generic mode the program would be no faster than a socket.
                let attached = program.attach_to_if_index(local.interface, XdpMode::Driver);
                let attached = attached.map(|_| ()).map_err(|error| {
                    failed("the interface rejects the BPF program", error).to_string()
                });
                tried.push((local.interface, attached));
            }
            // Indices in the table do not change: an unserved address gets no packets and opens no flows.
            for local in locals.iter_mut() {
                let why = tried
                    .iter()
                    .find(|(interface, _)| *interface == local.interface)
                    .and_then(|(_, attached)| attached.as_ref().err());
                if let Some(why) = why {
                    unserved.push(format!("{}: {why}", local.address));
                    local.interface = 0;
                }
            }
            // The loaded program keeps the devmap alive.
            Ok(Program {
                _loaded: loaded,
                flows,
                flows6,
                paths,
            })
        }

        pub(super) fn flows(&self) -> io::Result<BorrowedFd<'_>> {
            Ok(self.flows.fd().as_fd())
        }

        pub(super) fn flows6(&self) -> io::Result<BorrowedFd<'_>> {
            Ok(self.flows6.fd().as_fd())
        }

        pub(super) fn paths(&self) -> io::Result<BorrowedFd<'_>> {
            Ok(self.paths.fd().as_fd())
        }
    }
}

#[cfg(not(bpf_present))]
mod program {
    use super::ServedAddress;
    use std::io;
    use std::os::fd::BorrowedFd;

    pub(super) enum Program {}

    impl Program {
        pub(super) fn start(_: &mut [ServedAddress], _: &mut Vec<String>) -> io::Result<Program> {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build has no BPF programs: clang was missing when it was built",
            ))
        }

        pub(super) fn flows(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }

        pub(super) fn flows6(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }

        pub(super) fn paths(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }
    }
}
