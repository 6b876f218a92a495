//! Media that comes and leaves by AF_XDP, past the kernel's network.

use super::{Entry, NONE, Plane, Token, start_of};
use crate::batch::Receiver;
use crate::config::DriverConfig;
use crate::counters::Shared;
use crate::raw::Marks;
use crate::relay::table::Hop;
use crate::xsk::{self, AfXdp, Cards, Xsk};
use engine::DropReason;
use rustix::event::epoll::{self, EventFlags};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Ways that are remembered here are asked for anew this often, so that those nobody uses can be forgotten.
const ROUND: Duration = Duration::from_secs(30);

/// A media port.
struct Port {
    /// Index of the plane's socket that has it.
    index: u32,
    place: u32,
    /// How many frames had come to each socket when it was opened: those are not for whoever has it now.
    since: Box<[u64]>,
}

/// A way that is remembered.
#[derive(Clone, Copy)]
struct Way {
    slot: u16,
    hop: Hop,
    /// Which socket sends: that of its interface's first queue.
    xsk: usize,
}

/// The sockets, and what is known of ports and ways. Tables keyed by addresses have a keyed hash.
pub(super) struct Express {
    table: AfXdp,
    xsks: Vec<Xsk>,
    ports: HashMap<SocketAddr, Port>,
    ways: HashMap<(IpAddr, IpAddr), Option<Way>>,
    /// Of the table, when the ways were asked for.
    generation: u64,
    asked: Instant,
    /// Of IPv4 and IPv6.
    marks: [Marks; 2],
    identification: u16,
}

/// Addresses as frames have them, without what belongs to this host.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

impl Express {
    fn new(table: AfXdp, config: &DriverConfig) -> io::Result<Express> {
        let xsks = table.take().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "another driver has the AF_XDP sockets",
            )
        })?;
        let hops = crate::socket::default_hops()?;
        let marks = hops.map(|hops| Marks {
            class: config.media_dscp << 2,
            hops,
        });
        Ok(Express {
            generation: table.generation(),
            table,
            xsks,
            ports: HashMap::new(),
            ways: HashMap::new(),
            asked: Instant::now(),
            marks,
            identification: 0,
        })
    }

    fn open(&mut self, local: SocketAddr, index: u32) {
        let local = plain(local);
        let Some(place) = self.table.place(local) else {
            return;
        };
        let port = Port {
            index,
            place,
            since: self.xsks.iter().map(Xsk::come).collect(),
        };
        self.ports.insert(local, port);
        self.table.set_open(place, true);
    }

    fn close(&mut self, local: SocketAddr) {
        if let Some(port) = self.ports.remove(&plain(local)) {
            self.table.set_open(port.place, false);
        }
    }

    /// Forgets ways where some have changed, or it is time to.
    fn refresh(&mut self) {
        let generation = self.table.generation();
        if generation == self.generation && self.asked.elapsed() < ROUND {
            return;
        }
        self.generation = generation;
        self.asked = Instant::now();
        for way in self.ways.drain().filter_map(|(_, way)| way) {
            self.table.leave(way.slot);
        }
    }

    fn way(&mut self, own: IpAddr, to: IpAddr) -> Option<Way> {
        if let Some(known) = self.ways.get(&(own, to)) {
            return *known;
        }
        let way = self.table.way(own, to).and_then(|(slot, hop)| {
            let mut xsks = self.xsks.iter();
            let xsk = xsks.position(|xsk| xsk.at().interface == hop.interface);
            if xsk.is_none() {
                self.table.leave(slot);
            }
            Some(Way {
                slot,
                hop,
                xsk: xsk?,
            })
        });
        self.ways.insert((own, to), way);
        way
    }

    /// Takes a datagram to be sent; false where it has to go by its socket.
    fn send(&mut self, local: SocketAddr, destination: SocketAddr, payload: &[u8]) -> bool {
        let Some(way) = self.way(local.ip(), destination.ip()) else {
            return false;
        };
        let Some(xsk) = self.xsks.get_mut(way.xsk) else {
            return false;
        };
        let (own, next) = way.hop.cards;
        let marks = self.marks[usize::from(local.is_ipv6())];
        self.identification = self.identification.wrapping_add(1);
        let identification = self.identification;
        xsk.send(|room| {
            let ends = (local, destination);
            let cards = Cards { own, next };
            xsk::write(
                room,
                cards,
                ends,
                marks,
                way.hop.longest,
                identification,
                payload,
            )
        })
    }

    /// Has the kernel send what was taken.
    fn kick(&mut self, shared: &Shared) {
        for xsk in &mut self.xsks {
            if xsk.has_more() {
                let (calls, dropped) = xsk.kick();
                shared.send_calls.add(calls);
                shared.dropped(DropReason::SendFailed, dropped);
            }
        }
    }
}

impl Plane {
    /// Lets media come and leave by AF_XDP.
    ///
    /// # Errors
    /// Another driver has the sockets.
    pub(crate) fn express_by(&mut self, table: AfXdp, config: &DriverConfig) -> io::Result<()> {
        let express = Express::new(table, config)?;
        let set = self.prompt.as_ref().unwrap_or(&self.epoll);
        for (number, xsk) in (0..).zip(&express.xsks) {
            epoll::add(set, xsk.fd(), Token::Express(number).data(), EventFlags::IN)?;
        }
        self.express = Some(express);
        Ok(())
    }

    /// A media port is open from now on.
    pub(super) fn express_opened(&mut self, local: Option<SocketAddr>, index: u32) {
        if let (Some(express), Some(local)) = (&mut self.express, local) {
            express.open(local, index);
        }
    }

    /// It is no more.
    pub(super) fn express_closed(&mut self, local: Option<SocketAddr>) {
        if let (Some(express), Some(local)) = (&mut self.express, local) {
            express.close(local);
        }
    }

    /// Adds to `receiver` what has come to an AF_XDP socket. Whether there may be more.
    pub(crate) fn gather_express(&mut self, number: u32, receiver: &mut Receiver) -> bool {
        let Some(Express { xsks, ports, .. }) = &mut self.express else {
            return false;
        };
        let at = number as usize;
        let Some(xsk) = xsks.get_mut(at) else {
            return false;
        };
        let room = receiver.room();
        let (shared, sockets, origins) = (&self.shared, &self.sockets, &mut self.origins);
        let n = xsk.receive(room, |count, frame| {
            let Some((source, local, payload)) = xsk::read(frame) else {
                shared.drop_one(DropReason::MediaMalformed);
                return;
            };
            let fresh = |port: &&Port| port.since.get(at).is_some_and(|since| count >= *since);
            let socket = ports
                .get(&local)
                .filter(fresh)
                .and_then(|port| sockets.get(port.index as usize));
            receiver.put(source, payload);
            origins.push(socket.map(|socket| socket.id));
        });
        shared.express_in.add(n);
        n == room
    }

    /// Datagrams that came so far to each AF_XDP socket, with its interface and queue.
    pub(crate) fn express_queues(&self) -> Vec<(&str, u32, u64)> {
        let xsks = self.express.iter().flat_map(|express| &express.xsks);
        xsks.map(|xsk| (&*xsk.at().name, xsk.at().number, xsk.come()))
            .collect()
    }

    /// Frames that were led to an AF_XDP socket and found no room there.
    pub(super) fn express_drops(&self) -> io::Result<u64> {
        let xsks = self.express.iter().flat_map(|express| &express.xsks);
        xsks.map(Xsk::drops).sum()
    }

    /// Sends by AF_XDP what can be, and leaves the rest of each chain where it is.
    pub(super) fn flush_express(&mut self) {
        let Some(express) = &mut self.express else {
            return;
        };
        if !self.touched.is_empty() {
            express.refresh();
        }
        let (mut taken, mut bytes, mut left) = (0, 0, 0);
        for touched in &self.touched {
            let chain = match *touched {
                super::Touched::Socket(index) => match self.sockets.get_mut(index as usize) {
                    Some(socket) if socket.media => &mut socket.chain,
                    _ => continue,
                },
                super::Touched::Address(address) => {
                    match self.chains.get_mut(usize::from(address)) {
                        Some(chain) => chain,
                        None => continue,
                    }
                }
            };
            let mut at = std::mem::replace(chain, super::Chain::EMPTY).first;
            let mut rest = super::Chain::EMPTY;
            while at != NONE {
                let number = at;
                let entry = &mut self.entries[number as usize];
                at = std::mem::replace(&mut entry.next, NONE);
                let socket = self.sockets.get(entry.socket as usize);
                let local = socket.and_then(|socket| socket.local);
                let sent = local.is_some_and(|local| {
                    // SAFETY: as in `push_singly`.
                    let payload = unsafe { payload_of(&self.arena, entry) };
                    express.send(plain(local), entry.destination, payload)
                });
                if sent {
                    taken += 1;
                    bytes += entry.length;
                    continue;
                }
                left += 1;
                match rest.first {
                    NONE => rest.first = number,
                    _ => self.entries[rest.last as usize].next = number,
                }
                rest.last = number;
            }
            match *touched {
                super::Touched::Socket(index) => self.sockets[index as usize].chain = rest,
                super::Touched::Address(address) => self.chains[usize::from(address)] = rest,
            }
        }
        if taken > 0 {
            self.shared.datagrams_out.add(taken);
            self.shared.bytes_out.add(bytes);
            self.shared.express_out.add(taken);
        }
        if left > 0 {
            self.shared.express_aside.add(left);
        }
        express.kick(&self.shared);
    }
}

/// What an entry sends.
///
/// # Safety
/// It has not been sent yet: its payload is where it was when it was linked.
unsafe fn payload_of<'a>(arena: &'a [u8], entry: &Entry) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start_of(arena, entry), entry.length) }
}
