//! Loader of the BPF program that steers the datagrams of all open media ports into one socket (`ebpf/steer.c`), and
//! its maps.

use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Ports per address in the program's table.
#[cfg(bpf_present)]
const PORTS: u32 = 1 << 16;

/// Key in the layout of `struct address` of the program: network order, IPv4 mapped into IPv6.
fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(bpf_present)]
mod program {
    use super::{PORTS, key};
    use aya::maps::{Array, HashMap, MapData, SockMap};
    use aya::programs::SkLookup;
    use aya::{Ebpf, EbpfLoader};
    use std::io;
    use std::net::IpAddr;
    use std::os::fd::BorrowedFd;

    /// Layout of `struct port` of the program.
    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    struct SteeringPort {
        open: u32,
        window: u32,
        count: u32,
        flooded: u32,
    }

    // SAFETY: four integers in C layout without padding, for which all bytes are valid.
    unsafe impl aya::Pod for SteeringPort {}

    pub(super) struct SteeringProgram {
        /// Keeps the program loaded and attached to the network namespace until it is dropped.
        _loaded: Ebpf,
        addresses: HashMap<MapData, [u8; 16], u32>,
        ports: Array<MapData, SteeringPort>,
        address_count: u32,
        capacity: u32,
    }

    pub(crate) fn failed(what: &str, error: impl std::error::Error) -> io::Error {
        // The last cause is the kernel's error.
        let mut cause: &dyn std::error::Error = &error;
        while let Some(next) = cause.source() {
            cause = next;
        }
        io::Error::other(format!("{what}: {cause}"))
    }

    impl SteeringProgram {
        pub(super) fn start(
            capacity: u32,
            sockets: [Option<BorrowedFd<'_>>; 4],
        ) -> io::Result<SteeringProgram> {
            let code = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.o"));
            let mut loaded = EbpfLoader::new()
                .map_max_entries("ports", capacity * PORTS)
                .load(code)
                .map_err(|error| failed("the kernel rejects the BPF program", error))?;
            let map = |loaded: &mut Ebpf, name: &str| {
                loaded
                    .take_map(name)
                    .ok_or_else(|| io::Error::other(format!("the BPF program has no map {name}")))
            };
            let wrong_map = |error| failed("a map of the BPF program has another type", error);
            let addresses = HashMap::try_from(map(&mut loaded, "addresses")?).map_err(wrong_map)?;
            let ports = Array::try_from(map(&mut loaded, "ports")?).map_err(wrong_map)?;
            let mut table: SockMap<MapData> =
                SockMap::try_from(map(&mut loaded, "sockets")?).map_err(wrong_map)?;
            for (number, socket) in (0..).zip(sockets) {
                if let Some(socket) = socket {
                    table.set(number, &socket, 0).map_err(|error| {
                        failed("a socket cannot be added to the BPF map", error)
                    })?;
                }
            }
            let program: &mut SkLookup = loaded
                .program_mut("steer")
                .ok_or_else(|| io::Error::other("the BPF program has no entry point"))?
                .try_into()
                .map_err(|error| failed("the BPF program has another type", error))?;
            program
                .load()
                .map_err(|error| failed("the kernel rejects the BPF program", error))?;
            // The network namespace of this thread, to which its sockets belong.
            let namespace = std::fs::File::open("/proc/thread-self/ns/net")?;
            program
                .attach(namespace)
                .map_err(|error| failed("the BPF program cannot be attached", error))?;
            Ok(SteeringProgram {
                _loaded: loaded,
                addresses,
                ports,
                address_count: 0,
                capacity,
            })
        }

        pub(super) fn add(&mut self, address: IpAddr) -> io::Result<u32> {
            if self.address_count == self.capacity {
                return Err(io::Error::other("more media addresses than at the start"));
            }
            let first = self.address_count * PORTS;
            self.addresses
                .insert(key(address), first, 0)
                .map_err(|error| failed("BPF map of addresses", error))?;
            self.address_count += 1;
            Ok(first)
        }

        pub(super) fn set(&mut self, index: u32, open: bool) -> io::Result<u32> {
            let wrong_map = |error| failed("BPF map of ports", error);
            let flooded = match open {
                true => 0,
                false => self.ports.get(&index, 0).map_err(wrong_map)?.flooded,
            };
            let port = SteeringPort {
                open: u32::from(open),
                ..SteeringPort::default()
            };
            self.ports.set(index, port, 0).map_err(wrong_map)?;
            Ok(flooded)
        }
    }
}

#[cfg(bpf_present)]
pub(crate) use program::failed;

#[cfg(not(bpf_present))]
mod program {
    use std::io;
    use std::net::IpAddr;
    use std::os::fd::BorrowedFd;

    pub(super) enum SteeringProgram {}

    impl SteeringProgram {
        pub(super) fn start(_: u32, _: [Option<BorrowedFd<'_>>; 4]) -> io::Result<SteeringProgram> {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build has no BPF programs: clang was missing when it was built",
            ))
        }

        pub(super) fn add(&mut self, address: IpAddr) -> io::Result<u32> {
            let _ = super::key(address);
            match *self {}
        }

        pub(super) fn set(&mut self, _: u32, _: bool) -> io::Result<u32> {
            match *self {}
        }
    }
}

/// The attached program; dropping it detaches it.
pub(crate) struct Steering {
    program: program::SteeringProgram,
    /// Sockets for the excess of floods; never read.
    sinks: Vec<OwnedFd>,
}

impl Steering {
    /// Loads the program and attaches it to this thread's network namespace. `sockets` receive IPv4 and IPv6; `sinks`
    /// receive the excess of floods.
    ///
    /// # Errors
    /// The kernel lacks a feature, permissions are missing (CAP_BPF with CAP_NET_ADMIN), or the build has no BPF
    /// programs.
    pub(crate) fn start(
        addresses: u32,
        sockets: [Option<BorrowedFd<'_>>; 2],
        sinks: [Option<OwnedFd>; 2],
    ) -> io::Result<Steering> {
        use std::os::fd::AsFd as _;
        let [v4, v6] = sockets;
        let [sink4, sink6] = &sinks;
        let all = [
            v4,
            v6,
            sink4.as_ref().map(|fd| fd.as_fd()),
            sink6.as_ref().map(|fd| fd.as_fd()),
        ];
        let program = program::SteeringProgram::start(addresses, all)?;
        Ok(Steering {
            program,
            sinks: sinks.into_iter().flatten().collect(),
        })
    }

    /// Adds an address; returns the index of its port 0.
    pub(crate) fn add(&mut self, address: IpAddr) -> io::Result<u32> {
        self.program.add(address)
    }

    /// Opens the port at an index.
    pub(crate) fn open(&mut self, index: u32) -> io::Result<()> {
        self.program.set(index, true).map(|_| ())
    }

    /// Closes the port at an index; returns the number of its datagrams that flood protection diverted.
    pub(crate) fn close(&mut self, index: u32) -> io::Result<u32> {
        self.program.set(index, false)
    }

    /// The sockets that are never read.
    pub(crate) fn sinks(&self) -> &[OwnedFd] {
        &self.sinks
    }
}
