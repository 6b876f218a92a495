//! The BPF program that leads the datagrams of all open media ports into one socket (`ebpf/steer.c`), and its tables.

use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Ports of an address in the program's table.
#[cfg(bpf_present)]
const PORTS: u32 = 1 << 16;

/// As `struct address` of the program: network order, IPv4 mapped into IPv6.
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

    /// As `struct port` of the program.
    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    struct Port {
        open: u32,
        window: u32,
        count: u32,
        flooded: u32,
    }

    // SAFETY: four whole numbers in C's layout, for which all bytes are valid and between which nothing lies.
    unsafe impl aya::Pod for Port {}

    pub(super) struct Program {
        /// Holds the program, and its place in the network namespace, until it is dropped.
        _loaded: Ebpf,
        addresses: HashMap<MapData, [u8; 16], u32>,
        ports: Array<MapData, Port>,
        known: u32,
        room: u32,
    }

    pub(crate) fn failed(what: &str, error: impl std::error::Error) -> io::Error {
        // The last cause is the kernel's word.
        let mut cause: &dyn std::error::Error = &error;
        while let Some(next) = cause.source() {
            cause = next;
        }
        io::Error::other(format!("{what}: {cause}"))
    }

    impl Program {
        pub(super) fn start(
            room: u32,
            sockets: [Option<BorrowedFd<'_>>; 4],
        ) -> io::Result<Program> {
            let code = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.o"));
            let mut loaded = EbpfLoader::new()
                .map_max_entries("ports", room * PORTS)
                .load(code)
                .map_err(|error| failed("the kernel does not take the BPF program", error))?;
            let map = |loaded: &mut Ebpf, name: &str| {
                loaded
                    .take_map(name)
                    .ok_or_else(|| io::Error::other(format!("the BPF program lacks {name}")))
            };
            let wrong = |error| failed("a table of the BPF program", error);
            let addresses = HashMap::try_from(map(&mut loaded, "addresses")?).map_err(wrong)?;
            let ports = Array::try_from(map(&mut loaded, "ports")?).map_err(wrong)?;
            let mut table: SockMap<MapData> =
                SockMap::try_from(map(&mut loaded, "sockets")?).map_err(wrong)?;
            for (number, socket) in (0..).zip(sockets) {
                if let Some(socket) = socket {
                    table
                        .set(number, &socket, 0)
                        .map_err(|error| failed("a socket cannot be steered to", error))?;
                }
            }
            let program: &mut SkLookup = loaded
                .program_mut("steer")
                .ok_or_else(|| io::Error::other("the BPF program lacks its entry"))?
                .try_into()
                .map_err(|error| failed("the BPF program", error))?;
            program
                .load()
                .map_err(|error| failed("the kernel does not take the BPF program", error))?;
            // The namespace of this thread: that of its sockets.
            let namespace = std::fs::File::open("/proc/thread-self/ns/net")?;
            program
                .attach(namespace)
                .map_err(|error| failed("the BPF program cannot be attached", error))?;
            Ok(Program {
                _loaded: loaded,
                addresses,
                ports,
                known: 0,
                room,
            })
        }

        pub(super) fn add(&mut self, address: IpAddr) -> io::Result<u32> {
            if self.known == self.room {
                return Err(io::Error::other("more media addresses than were announced"));
            }
            let first = self.known * PORTS;
            self.addresses
                .insert(key(address), first, 0)
                .map_err(|error| failed("the table of addresses", error))?;
            self.known += 1;
            Ok(first)
        }

        pub(super) fn set(&mut self, at: u32, open: bool) -> io::Result<u32> {
            let wrong = |error| failed("the table of ports", error);
            let flooded = match open {
                true => 0,
                false => self.ports.get(&at, 0).map_err(wrong)?.flooded,
            };
            let port = Port {
                open: u32::from(open),
                ..Port::default()
            };
            self.ports.set(at, port, 0).map_err(wrong)?;
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

    pub(super) enum Program {}

    impl Program {
        pub(super) fn start(_: u32, _: [Option<BorrowedFd<'_>>; 4]) -> io::Result<Program> {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build has no BPF programs, for want of clang",
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

/// The loaded program. Ended by dropping it.
pub(crate) struct Steering {
    program: program::Program,
    /// Where floods end; nobody reads them.
    sinks: Vec<OwnedFd>,
}

impl Steering {
    /// Loads and attaches the program in this thread's network namespace. `sockets` take IPv4 and IPv6; `sinks` take what is
    /// too much.
    ///
    /// # Errors
    /// The kernel cannot do it, the right for it (CAP_BPF with CAP_NET_ADMIN) is missing, or the program was built without.
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
        let program = program::Program::start(addresses, all)?;
        Ok(Steering {
            program,
            sinks: sinks.into_iter().flatten().collect(),
        })
    }

    /// A further address; gives the place of its port 0.
    pub(crate) fn add(&mut self, address: IpAddr) -> io::Result<u32> {
        self.program.add(address)
    }

    /// Opens the port at a place.
    pub(crate) fn open(&mut self, at: u32) -> io::Result<()> {
        self.program.set(at, true).map(|_| ())
    }

    /// Closes it; gives how many datagrams were too many there.
    pub(crate) fn close(&mut self, at: u32) -> io::Result<u32> {
        self.program.set(at, false)
    }

    /// The sockets that nobody reads.
    pub(crate) fn sinks(&self) -> &[OwnedFd] {
        &self.sinks
    }
}
