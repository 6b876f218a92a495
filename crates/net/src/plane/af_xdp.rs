//! Media over AF_XDP sockets, which bypass the kernel's network stack.

use super::bypass::without_scope;
use super::{Plane, Token};
use crate::batch::Receiver;
use crate::config::DriverConfig;
use crate::counters::Shared;
use crate::raw::IpMarks;
use crate::relay::table::NextHop;
use crate::xsk::{self, AfXdp, MacAddresses, XskSocket};
use engine::DropReason;
use rustix::event::epoll::{self, EventFlags};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Interval after which cached paths are looked up again, so that unused ones expire in the table.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// A media port.
struct AfXdpPort {
    /// Index of the plane's socket that has it.
    index: u32,
    slot: u32,
    /// Frames received by each AF_XDP socket before the port was opened: these belong to an earlier owner of the
    /// port.
    since: Box<[u64]>,
}

/// A cached path.
#[derive(Clone, Copy)]
struct AfXdpPath {
    slot: u16,
    hop: NextHop,
    /// Index of the sending socket: that of the interface's first queue.
    xsk: usize,
}

/// The AF_XDP sockets, and caches of ports and paths. The tables are keyed by addresses from the network, so their
/// hash is keyed.
pub(super) struct AfXdpPlane {
    table: AfXdp,
    xsks: Vec<XskSocket>,
    ports: HashMap<SocketAddr, AfXdpPort>,
    paths: HashMap<(IpAddr, IpAddr), Option<AfXdpPath>>,
    /// Generation of the table when the paths were cached.
    generation: u64,
    refreshed: Instant,
    /// For IPv4 and IPv6.
    marks: [IpMarks; 2],
    identification: u16,
}

impl AfXdpPlane {
    fn new(table: AfXdp, config: &DriverConfig) -> io::Result<AfXdpPlane> {
        let xsks = table.take().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "another driver uses the AF_XDP sockets",
            )
        })?;
        let hops = crate::socket::default_hops()?;
        let marks = hops.map(|hops| IpMarks {
            class: config.media_dscp << 2,
            hops,
        });
        Ok(AfXdpPlane {
            generation: table.generation(),
            table,
            xsks,
            ports: HashMap::new(),
            paths: HashMap::new(),
            refreshed: Instant::now(),
            marks,
            identification: 0,
        })
    }

    pub(super) fn open(&mut self, local: SocketAddr, index: u32) {
        let local = without_scope(local);
        let Some(slot) = self.table.slot(local) else {
            return;
        };
        let port = AfXdpPort {
            index,
            slot,
            since: self.xsks.iter().map(XskSocket::received_count).collect(),
        };
        self.ports.insert(local, port);
        self.table.set_open(slot, true);
    }

    pub(super) fn close(&mut self, local: SocketAddr) {
        if let Some(port) = self.ports.remove(&without_scope(local)) {
            self.table.set_open(port.slot, false);
        }
    }

    /// Drops the cached paths if the table has changed, or their time has expired.
    fn refresh(&mut self) {
        let generation = self.table.generation();
        if generation == self.generation && self.refreshed.elapsed() < REFRESH_INTERVAL {
            return;
        }
        self.generation = generation;
        self.refreshed = Instant::now();
        for path in self.paths.drain().filter_map(|(_, path)| path) {
            self.table.leave(path.slot);
        }
    }

    fn path(&mut self, own: IpAddr, to: IpAddr) -> Option<AfXdpPath> {
        if let Some(cached) = self.paths.get(&(own, to)) {
            return *cached;
        }
        let path = self.table.path(own, to).and_then(|(slot, hop)| {
            let mut xsks = self.xsks.iter();
            let xsk = xsks.position(|xsk| xsk.queue().interface == hop.interface);
            if xsk.is_none() {
                self.table.leave(slot);
            }
            Some(AfXdpPath {
                slot,
                hop,
                xsk: xsk?,
            })
        });
        self.paths.insert((own, to), path);
        path
    }

    /// Writes a datagram into the send ring; false if it must be sent by its socket.
    fn send(&mut self, local: SocketAddr, destination: SocketAddr, payload: &[u8]) -> bool {
        let Some(path) = self.path(local.ip(), destination.ip()) else {
            return false;
        };
        let Some(xsk) = self.xsks.get_mut(path.xsk) else {
            return false;
        };
        let (own, next) = path.hop.macs;
        let marks = self.marks[usize::from(local.is_ipv6())];
        self.identification = self.identification.wrapping_add(1);
        let identification = self.identification;
        xsk.send(|room| {
            let ends = (local, destination);
            let macs = MacAddresses { own, next };
            xsk::write(
                room,
                macs,
                ends,
                marks,
                path.hop.mtu,
                identification,
                payload,
            )
        })
    }

    /// Has the kernel send the written frames.
    fn kick(&mut self, shared: &Shared) {
        for xsk in &mut self.xsks {
            if xsk.has_unsent() {
                let (calls, dropped) = xsk.kick();
                shared.send_calls.add(calls);
                shared.dropped(DropReason::SendFailed, dropped);
            }
        }
    }
}

impl Plane {
    /// Enables AF_XDP for media.
    ///
    /// # Errors
    /// Another driver uses the sockets.
    pub(crate) fn start_af_xdp(&mut self, table: AfXdp, config: &DriverConfig) -> io::Result<()> {
        let af_xdp = AfXdpPlane::new(table, config)?;
        let set = self.prompt.as_ref().unwrap_or(&self.epoll);
        for (number, xsk) in (0..).zip(&af_xdp.xsks) {
            epoll::add(set, xsk.fd(), Token::AfXdp(number).data(), EventFlags::IN)?;
        }
        self.af_xdp = Some(af_xdp);
        Ok(())
    }

    /// Receives from an AF_XDP socket into `receiver`. Returns whether more may be queued.
    pub(crate) fn receive_af_xdp(&mut self, number: u32, receiver: &mut Receiver) -> bool {
        let Some(AfXdpPlane { xsks, ports, .. }) = &mut self.af_xdp else {
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
            let fresh = |port: &&AfXdpPort| port.since.get(at).is_some_and(|since| count >= *since);
            let socket = ports
                .get(&local)
                .filter(fresh)
                .and_then(|port| sockets.get(port.index as usize));
            receiver.put(source, payload);
            origins.push(socket.map(|socket| socket.id));
        });
        shared.af_xdp_in.add(n);
        n == room
    }

    /// Frames received so far by each AF_XDP socket, with its interface and queue.
    pub(crate) fn af_xdp_queues(&self) -> Vec<(&str, u32, u64)> {
        let xsks = self.af_xdp.iter().flat_map(|af_xdp| &af_xdp.xsks);
        xsks.map(|xsk| (&*xsk.queue().name, xsk.queue().number, xsk.received_count()))
            .collect()
    }

    /// Frames for an AF_XDP socket that were dropped at its full ring.
    pub(super) fn af_xdp_drops(&self) -> io::Result<u64> {
        let xsks = self.af_xdp.iter().flat_map(|af_xdp| &af_xdp.xsks);
        xsks.map(XskSocket::drops).sum()
    }

    /// Sends the queued media through AF_XDP as far as possible; the rest stays in its chains.
    pub(super) fn flush_af_xdp(&mut self) {
        let Some(mut af_xdp) = self.af_xdp.take() else {
            return;
        };
        if !self.pending_queues.is_empty() {
            af_xdp.refresh();
        }
        let sent = self.send_queued(|local, destination, payload| {
            af_xdp.send(without_scope(local), destination, payload)
        });
        self.shared.af_xdp_out.add(sent.datagrams);
        self.shared.af_xdp_bypassed.add(sent.rest);
        af_xdp.kick(&self.shared);
        self.af_xdp = Some(af_xdp);
    }
}
