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
    use super::super::queues::{self, Queues};
    use super::super::ring::{CLEARED, Queue};
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
    use std::sync::Arc;
    use std::time::Instant;

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

    /// What came of the queues of an interface.
    #[derive(Default)]
    struct Got {
        sockets: Vec<Xsk>,
        /// Why there are copies, where without them was tried.
        copied: Option<String>,
        /// At which queue there is no socket, and why; the first of them.
        failed: Option<String>,
    }

    impl Got {
        fn take(&mut self, socket: Xsk, copied: Option<io::Error>) {
            self.sockets.push(socket);
            if self.copied.is_none() {
                self.copied = copied.map(|why| why.to_string());
            }
        }

        fn without(&mut self, queue: u32, why: &io::Error) {
            self.failed
                .get_or_insert_with(|| format!("queue {queue}: {why}"));
        }

        /// In words; `queues`: how many the interface has.
        fn words(&self, queues: u32) -> String {
            let have = self.sockets.len();
            let copies = self.sockets.iter().filter(|socket| !socket.zero_copy());
            let mut words = match (copies.count(), &self.copied) {
                (0, _) => "without copies".to_owned(),
                (_, None) => "in copies".to_owned(),
                (count, Some(why)) if count == have => format!("in copies (zero-copy: {why})"),
                (count, Some(why)) => format!("in copies at {count} queues (zero-copy: {why})"),
            };
            words.push_str(&format!(", queues: {have}"));
            if (have as u32) < queues {
                words.push_str(&format!(" of {queues}, the others by sockets"));
                if let Some(why) = &self.failed {
                    words.push_str(&format!(" ({why})"));
                }
            }
            words
        }
    }

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

        /// Puts the program at an interface, and opens sockets at its queues.
        fn serve(&mut self, place: u32, interface: u32) -> Result<Opened, String> {
            let text = |error: io::Error| error.to_string();
            let (name, queues) = queues::of(interface).map_err(text)?;
            let (most, told) = match queues {
                Queues::Told(queues) => (queues, true),
                Queues::AtMost(queues) => (queues, false),
            };
            // By the driver where it can; else behind the kernel's own buffers, which is slower and as right. The program comes first: it leads
            // nothing on before there are sockets, and only where the driver runs it can there be no copies.
            let program = self.entry().map_err(text)?;
            let driver = program.attach_to_if_index(interface, XdpMode::Driver);
            let (link, generic) = match driver {
                Ok(link) => (link, None),
                Err(first) => {
                    let first = failed("the interface does not take the BPF program", first);
                    match program.attach_to_if_index(interface, XdpMode::Skb) {
                        Ok(link) => (link, Some(first)),
                        Err(_) => return Err(text(first)),
                    }
                }
            };
            let mut got = Got::default();
            let until = Instant::now() + CLEARED;
            let mut number = 0;
            let name: Arc<str> = name.into();
            while number < most.min(MOST_QUEUES) {
                let queue = Queue {
                    name: name.clone(),
                    interface,
                    number,
                };
                match self.open_at(place, &queue, generic.is_none(), until) {
                    Ok((socket, copied)) => got.take(socket, copied),
                    // That was the last one.
                    Err(error)
                        if !told && number > 0 && error.raw_os_error() == Some(libc::EINVAL) =>
                    {
                        break;
                    }
                    Err(error) => got.without(number, &error),
                }
                number += 1;
            }
            if got.sockets.is_empty() {
                // Without a socket it would only cost time.
                let _ = self.entry().map(|program| program.detach(link));
                let why = got.failed.unwrap_or_default();
                return Err(format!("no AF_XDP socket at {name}: {why}"));
            }
            let queues = if told { most } else { number };
            let mode = match generic {
                None => "driver mode".to_owned(),
                Some(why) => format!("generic mode, as without it {why}"),
            };
            Ok(Opened {
                how: format!("{name}: {mode}, {}", got.words(queues)),
                sockets: got.sockets,
            })
        }

        fn open_at(
            &mut self,
            place: u32,
            queue: &Queue,
            zero_copy: bool,
            until: Instant,
        ) -> io::Result<(Xsk, Option<io::Error>)> {
            let (socket, copied) = Xsk::open(queue, zero_copy, until)?;
            let number = place * MOST_QUEUES + queue.number;
            self.sockets
                .set(number, socket.fd(), 0)
                .map_err(|error| failed("a socket cannot be led to", error))?;
            Ok((socket, copied))
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
