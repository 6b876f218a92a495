//! Loads the BPF program `ebpf/xsk.c`, attaches it to interfaces and opens their AF_XDP sockets.

use super::ring::XskSocket;

/// The sockets of an interface.
pub(super) struct OpenedInterface {
    pub(super) sockets: Vec<XskSocket>,
    /// Description of the mode for messages.
    pub(super) modes: String,
}

/// An interface, and its sockets or the reason for having none.
type Tried = (u32, Result<OpenedInterface, String>);

pub(super) use loaded::XskProgram;

#[cfg(bpf_present)]
mod loaded {
    use super::super::queues::{self, Queues};
    use super::super::ring::{Queue, RELEASE_TIMEOUT};
    use super::super::{MAX_LOCALS, MAX_QUEUES, PORTS, ServedAddress};
    use super::{OpenedInterface, Tried, XskSocket};
    use crate::steer::failed;
    use aya::maps::{Map, MapData, XskMap};
    use aya::programs::Xdp;
    use aya::programs::xdp::XdpMode;
    use aya::{Ebpf, EbpfLoader};
    use std::io;
    use std::net::IpAddr;
    use std::os::fd::{AsFd as _, BorrowedFd};
    use std::sync::Arc;
    use std::time::Instant;

    /// Layout of `struct local`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct XskLocalRecord {
        address: [u8; 16],
        interface: u32,
        place: u32,
        mac: [u8; 6],
        unused: [u8; 2],
    }

    // SAFETY: integers in C layout without padding, for which all bytes are valid.
    unsafe impl aya::Pod for XskLocalRecord {}

    /// Result of opening sockets at the queues of an interface.
    #[derive(Default)]
    struct QueueResult {
        sockets: Vec<XskSocket>,
        /// Error of the first socket for which zero-copy was refused.
        refusal: Option<String>,
        /// The first queue without a socket, and its error.
        failed: Option<String>,
    }

    impl QueueResult {
        fn take(&mut self, socket: XskSocket, refusal: Option<io::Error>) {
            self.sockets.push(socket);
            if self.refusal.is_none() {
                self.refusal = refusal.map(|why| why.to_string());
            }
        }

        fn without(&mut self, queue: u32, why: &io::Error) {
            self.failed
                .get_or_insert_with(|| format!("queue {queue}: {why}"));
        }

        /// Description for messages; `queues`: number of queues of the interface.
        fn description(&self, queues: u32) -> String {
            let have = self.sockets.len();
            let copies = self.sockets.iter().filter(|socket| !socket.zero_copy());
            let mut description = match (copies.count(), &self.refusal) {
                (0, _) => "zero-copy".to_owned(),
                (_, None) => "copy mode".to_owned(),
                (count, Some(why)) if count == have => format!("copy mode (zero-copy: {why})"),
                (count, Some(why)) => format!("copy mode at {count} queues (zero-copy: {why})"),
            };
            description.push_str(&format!(", queues: {have}"));
            if (have as u32) < queues {
                description.push_str(&format!(" of {queues}, the others use sockets"));
                if let Some(why) = &self.failed {
                    description.push_str(&format!(" ({why})"));
                }
            }
            description
        }
    }

    pub(in super::super) struct XskProgram {
        loaded: Ebpf,
        open: MapData,
        // Keeps the sockets in the map.
        sockets: XskMap<MapData>,
    }

    impl XskProgram {
        /// Loads the program, opens sockets at all queues of the addresses' interfaces and attaches the program to
        /// them; returns the result for each interface.
        pub(in super::super) fn start(
            locals: &[ServedAddress],
        ) -> io::Result<(XskProgram, Vec<Tried>)> {
            let mut interfaces: Vec<u32> = Vec::new();
            let mut records = [XskLocalRecord {
                address: [0; 16],
                interface: 0,
                place: 0,
                mac: [0; 6],
                unused: [0; 2],
            }; MAX_LOCALS];
            for (entry, local) in records.iter_mut().zip(locals) {
                let place = interfaces.iter().position(|&at| at == local.interface);
                let place = place.unwrap_or_else(|| {
                    interfaces.push(local.interface);
                    interfaces.len() - 1
                });
                *entry = XskLocalRecord {
                    address: match local.address {
                        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                        IpAddr::V6(address) => address.octets(),
                    },
                    interface: local.interface,
                    place: place as u32,
                    mac: local.mac,
                    unused: [0; 2],
                };
            }
            let count = locals.len() as u32;
            let code = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xsk.o"));
            let mut loaded = EbpfLoader::new()
                .map_max_entries("open", count * PORTS)
                .override_global("local_count", &count, true)
                .override_global("locals", &records[..], true)
                .load(code)
                .map_err(|error| failed("the kernel rejects the BPF program", error))?;
            let open = match loaded.take_map("open") {
                Some(Map::Array(map)) => map,
                _ => return Err(io::Error::other("the BPF program has no map open")),
            };
            let sockets = loaded
                .take_map("sockets")
                .ok_or_else(|| io::Error::other("the BPF program has no map sockets"))?;
            let sockets = XskMap::try_from(sockets)
                .map_err(|error| failed("a map of the BPF program has another type", error))?;
            let mut program = XskProgram {
                loaded,
                open,
                sockets,
            };
            program
                .entry()?
                .load()
                .map_err(|error| failed("the kernel rejects the BPF program", error))?;
            let opened = (0..)
                .zip(interfaces)
                .map(|(place, interface)| (interface, program.serve(place, interface)))
                .collect();
            Ok((program, opened))
        }

        fn entry(&mut self) -> io::Result<&mut Xdp> {
            self.loaded
                .program_mut("lead")
                .ok_or_else(|| io::Error::other("the BPF program has no entry point"))?
                .try_into()
                .map_err(|error| failed("the BPF program has another type", error))
        }

        /// Attaches the program to an interface, and opens sockets at its queues.
        fn serve(&mut self, place: u32, interface: u32) -> Result<OpenedInterface, String> {
            let text = |error: io::Error| error.to_string();
            let (name, queues) = queues::of(interface).map_err(text)?;
            let (most, reported) = match queues {
                Queues::Reported(queues) => (queues, true),
                Queues::AtMost(queues) => (queues, false),
            };
            // Driver mode is preferred; generic mode is slower and equivalent. The program is attached first: it
            // redirects nothing before there are sockets, and zero-copy is possible only with the program in driver
            // mode.
            let program = self.entry().map_err(text)?;
            let driver = program.attach_to_if_index(interface, XdpMode::Driver);
            let (link, generic) = match driver {
                Ok(link) => (link, None),
                Err(first) => {
                    let first = failed("the interface rejects the BPF program", first);
                    match program.attach_to_if_index(interface, XdpMode::Skb) {
                        Ok(link) => (link, Some(first)),
                        Err(_) => return Err(text(first)),
                    }
                }
            };
            let mut result = QueueResult::default();
            let until = Instant::now() + RELEASE_TIMEOUT;
            let mut number = 0;
            let name: Arc<str> = name.into();
            while number < most.min(MAX_QUEUES) {
                let queue = Queue {
                    name: name.clone(),
                    interface,
                    number,
                };
                match self.open_queue(place, &queue, generic.is_none(), until) {
                    Ok((socket, refusal)) => result.take(socket, refusal),
                    // The queue before this one was the last.
                    Err(error)
                        if !reported
                            && number > 0
                            && error.raw_os_error() == Some(libc::EINVAL) =>
                    {
                        break;
                    }
                    Err(error) => result.without(number, &error),
                }
                number += 1;
            }
            if result.sockets.is_empty() {
                // Without a socket the program only costs time.
                let _ = self.entry().map(|program| program.detach(link));
                let why = result.failed.unwrap_or_default();
                return Err(format!("no AF_XDP socket at {name}: {why}"));
            }
            let queues = if reported { most } else { number };
            let mode = match generic {
                None => "driver mode".to_owned(),
                Some(why) => format!("generic mode, because {why}"),
            };
            Ok(OpenedInterface {
                modes: format!("{name}: {mode}, {}", result.description(queues)),
                sockets: result.sockets,
            })
        }

        fn open_queue(
            &mut self,
            place: u32,
            queue: &Queue,
            zero_copy: bool,
            until: Instant,
        ) -> io::Result<(XskSocket, Option<io::Error>)> {
            let (socket, refusal) = XskSocket::open(queue, zero_copy, until)?;
            let number = place * MAX_QUEUES + queue.number;
            self.sockets
                .set(number, socket.fd(), 0)
                .map_err(|error| failed("a socket cannot be added to the BPF map", error))?;
            Ok((socket, refusal))
        }

        pub(in super::super) fn open(&self) -> io::Result<BorrowedFd<'_>> {
            Ok(self.open.fd().as_fd())
        }
    }
}

#[cfg(not(bpf_present))]
mod loaded {
    use super::super::ServedAddress;
    use super::Tried;
    use std::io;
    use std::os::fd::BorrowedFd;

    pub(in super::super) enum XskProgram {}

    impl XskProgram {
        pub(in super::super) fn start(_: &[ServedAddress]) -> io::Result<(XskProgram, Vec<Tried>)> {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build has no BPF programs: clang was missing when it was built",
            ))
        }

        pub(in super::super) fn open(&self) -> io::Result<BorrowedFd<'_>> {
            match *self {}
        }
    }
}
