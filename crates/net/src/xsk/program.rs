//! The program `ebpf/xsk.c` in the kernel, and the sockets at the interfaces.

use super::ring::Xsk;

/// What came of an interface.
pub(super) struct Opened {
    pub(super) sockets: Vec<Xsk>,
    /// In words.
    pub(super) how: String,
}

/// An interface, and what came of it.
type Tried = (u32, Result<Opened, String>);

pub(super) use loaded::Program;

#[cfg(bpf_present)]
mod loaded {
    use super::super::{Local, MOST_LOCALS, MOST_QUEUES, PORTS};
    use super::{Opened, Tried, Xsk};
    use crate::steer::failed;
    use aya::maps::{Map, MapData, XskMap};
    use aya::programs::Xdp;
    use aya::programs::xdp::XdpMode;
    use aya::{Ebpf, EbpfLoader};
    use std::io;
    use std::net::IpAddr;
    use std::os::fd::{AsFd as _, BorrowedFd};

    /// As `struct local`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Known {
        address: [u8; 16],
        interface: u32,
        place: u32,
        card: [u8; 6],
        unused: [u8; 2],
    }

    // SAFETY: numbers in C's layout, for which all bytes are valid and between which nothing lies.
    unsafe impl aya::Pod for Known {}

    pub(in super::super) struct Program {
        loaded: Ebpf,
        open: MapData,
        // Holds the sockets' places.
        sockets: XskMap<MapData>,
    }

    impl Program {
        /// Loads the program, opens sockets at all queues of the addresses' interfaces and puts the program there; tells what came of
        /// each interface.
        pub(in super::super) fn start(locals: &[Local]) -> io::Result<(Program, Vec<Tried>)> {
            let mut interfaces: Vec<u32> = Vec::new();
            let mut known = [Known {
                address: [0; 16],
                interface: 0,
                place: 0,
                card: [0; 6],
                unused: [0; 2],
            }; MOST_LOCALS];
            for (entry, local) in known.iter_mut().zip(locals) {
                let place = interfaces.iter().position(|&at| at == local.interface);
                let place = place.unwrap_or_else(|| {
                    interfaces.push(local.interface);
                    interfaces.len() - 1
                });
                *entry = Known {
                    address: match local.address {
                        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                        IpAddr::V6(address) => address.octets(),
                    },
                    interface: local.interface,
                    place: place as u32,
                    card: local.card,
                    unused: [0; 2],
                };
            }
            let count = locals.len() as u32;
            let code = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xsk.o"));
            let mut loaded = EbpfLoader::new()
                .map_max_entries("open", count * PORTS)
                .override_global("local_count", &count, true)
                .override_global("locals", &known[..], true)
                .load(code)
                .map_err(|error| failed("the kernel does not take the BPF program", error))?;
            let open = match loaded.take_map("open") {
                Some(Map::Array(map)) => map,
                _ => return Err(io::Error::other("the BPF program lacks open")),
            };
            let sockets = loaded
                .take_map("sockets")
                .ok_or_else(|| io::Error::other("the BPF program lacks sockets"))?;
            let sockets = XskMap::try_from(sockets)
                .map_err(|error| failed("a table of the BPF program", error))?;
            let mut program = Program {
                loaded,
                open,
                sockets,
            };
            program
                .entry()?
                .load()
                .map_err(|error| failed("the kernel does not take the BPF program", error))?;
            let opened = (0..)
                .zip(interfaces)
                .map(|(place, interface)| (interface, program.serve(place, interface)))
                .collect();
            Ok((program, opened))
        }

        fn entry(&mut self) -> io::Result<&mut Xdp> {
            self.loaded
                .program_mut("lead")
                .ok_or_else(|| io::Error::other("the BPF program lacks its entry"))?
                .try_into()
                .map_err(|error| failed("the BPF program", error))
        }

        fn serve(&mut self, place: u32, interface: u32) -> Result<Opened, String> {
            let text = |error: io::Error| error.to_string();
            let (name, queues) = super::super::queues::of(interface).map_err(text)?;
            if queues > MOST_QUEUES {
                return Err(format!(
                    "{name} has {queues} queues, of which {MOST_QUEUES} can be served"
                ));
            }
            let mut sockets = Vec::new();
            for queue in 0..queues {
                let socket = Xsk::open(interface, queue).map_err(|error| {
                    format!("no AF_XDP socket at queue {queue} of {name}: {error}")
                })?;
                let number = place * MOST_QUEUES + queue;
                self.sockets
                    .set(number, socket.fd(), 0)
                    .map_err(|error| text(failed("a socket cannot be led to", error)))?;
                sockets.push(socket);
            }
            // By the driver where it can; else behind the kernel's own buffers, which is slower and as right.
            let program = self.entry().map_err(text)?;
            let mut by = "driver";
            let put = program
                .attach_to_if_index(interface, XdpMode::Driver)
                .or_else(|first| {
                    by = "generic";
                    program
                        .attach_to_if_index(interface, XdpMode::Skb)
                        .map_err(|_| first)
                });
            put.map_err(|error| {
                text(failed("the interface does not take the BPF program", error))
            })?;
            let copies = sockets.iter().filter(|socket| !socket.zero_copy()).count();
            let copying = match copies {
                0 => "without copies",
                _ => "in copies",
            };
            Ok(Opened {
                sockets,
                how: format!("{name}: {by} mode, {copying}, queues: {queues}"),
            })
        }

        pub(in super::super) fn open(&self) -> io::Result<BorrowedFd<'_>> {
            Ok(self.open.fd().as_fd())
        }
    }
}

#[cfg(not(bpf_present))]
mod loaded {
    use super::super::Local;
    use super::Tried;
    use std::io;
    use std::os::fd::BorrowedFd;

    pub(in super::super) enum Program {}

    impl Program {
        pub(in super::super) fn start(_: &[Local]) -> io::Result<(Program, Vec<Tried>)> {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build has no BPF programs, for want of clang",
            ))
        }

        pub(in super::super) fn open(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }
    }
}
