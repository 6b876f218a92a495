//! A host: its engine, its addresses, its sockets and connections.

use crate::stream::{Side, StreamId};
use engine::io::Checked;
use engine::{
    ConnectionId, Control, Deadline, Engine, Forward, HandoffKind, Input, MediaPacket, Output,
    PacketVerdict, SocketFilter, SocketId, SocketKind, Time,
};
use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A host of a [`crate::World`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(crate) u32);

/// An engine, with or without a forwarder, as a host runs it.
pub(crate) trait HostNode {
    fn handle(&mut self, input: Input<'_>, now: Time);
    fn next_output(&mut self) -> Option<Output<'_>>;
    fn next_deadline(&self) -> Option<Deadline>;
    /// Forwards a media packet. `None`: there is no forwarder, the packet is the engine's.
    fn forward(&mut self, _packet: &mut MediaPacket<'_>, _now: Time) -> Option<PacketVerdict> {
        None
    }
    fn forward_deadline(&self) -> Option<Deadline> {
        None
    }
    fn forward_timeout(&mut self, _now: Time) {}
    fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        None
    }
    /// Moves all commands and one report between control plane and forwarder; returns whether there was a report.
    fn shuttle(&mut self, _now: Time) -> bool {
        false
    }
    /// The worker that receives datagrams from `source` at a socket.
    fn worker_at(&self, _socket: SocketId, _source: SocketAddr) -> usize {
        0
    }
    /// The worker of the last output.
    fn output_worker(&self) -> usize {
        0
    }
    /// Whether a worker's own socket filter drops this datagram.
    fn filters_datagram(&mut self, _socket: SocketId, _source: SocketAddr, _bytes: &[u8]) -> bool {
        false
    }
    /// The next handoff message between workers.
    fn next_handoff(&mut self) -> Option<HandoffInTransit> {
        None
    }
    fn deliver_handoff(&mut self, _handoff: &HandoffInTransit, _now: Time) {}
    fn as_any(&mut self) -> &mut dyn Any;
}

pub(crate) struct EngineNode<E>(pub(crate) Checked<E>);

impl<E: Engine + 'static> HostNode for EngineNode<E> {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.0.handle(input, now);
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.0.next_output()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        self.0.next_deadline()
    }
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

pub(crate) struct ControlNode<C, F> {
    pub(crate) control: Checked<C>,
    pub(crate) forwarder: F,
    /// The deadline of the control plane, once it was read; a packet that the forwarder handles alone does not change
    /// it.
    deadline: Cell<Option<Option<Deadline>>>,
}

impl<C: Control, F: Forward> ControlNode<C, F> {
    pub(crate) fn new(control: C, forwarder: F) -> ControlNode<C, F> {
        ControlNode {
            control: Checked::new(control),
            forwarder,
            deadline: Cell::new(None),
        }
    }
}

impl<C, F> HostNode for ControlNode<C, F>
where
    C: Control<Command = F::Command, Report = F::Report> + 'static,
    F: Forward + 'static,
{
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.deadline.set(None);
        self.control.handle(input, now);
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        let output = self.control.next_output();
        if output.is_some() {
            self.deadline.set(None);
        }
        output
    }
    fn next_deadline(&self) -> Option<Deadline> {
        if let Some(known) = self.deadline.get() {
            return known;
        }
        let deadline = self.control.next_deadline();
        self.deadline.set(Some(deadline));
        deadline
    }
    fn forward(&mut self, packet: &mut MediaPacket<'_>, now: Time) -> Option<PacketVerdict> {
        Some(self.forwarder.forward(packet, now))
    }
    fn forward_deadline(&self) -> Option<Deadline> {
        self.forwarder.next_deadline()
    }
    fn forward_timeout(&mut self, now: Time) {
        self.forwarder.timeout(now);
    }
    fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        self.forwarder.next_packet()
    }
    fn shuttle(&mut self, now: Time) -> bool {
        while let Some(command) = self.control.get().next_command() {
            self.deadline.set(None);
            self.forwarder.command(command, now);
        }
        match self.forwarder.next_report() {
            Some(report) => {
                self.deadline.set(None);
                self.control.get().report(report, now);
                true
            }
            None => false,
        }
    }
    fn as_any(&mut self) -> &mut dyn Any {
        self.deadline.set(None);
        self
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    pub(crate) kind: SocketKind,
    pub(crate) local: SocketAddr,
    pub(crate) filter: Option<SocketFilter>,
    /// Datagrams dropped by the filter since the last report.
    pub(crate) shed: u64,
}

/// An input that waits for its host's processor.
pub(crate) enum QueuedInput {
    Datagram {
        arrived: Time,
        source: SocketAddr,
        destination: SocketAddr,
        bytes: Vec<u8>,
    },
    Handoff(HandoffInTransit),
}

/// A handoff message between two workers.
pub(crate) struct HandoffInTransit {
    pub(crate) to: usize,
    pub(crate) kind: HandoffKind,
    pub(crate) bytes: Vec<u8>,
}

/// The processor of a worker on a host with processing time.
#[derive(Default)]
pub(crate) struct Processor {
    pub(crate) busy_until: Time,
    /// In order of arrival.
    pub(crate) waiting: VecDeque<QueuedInput>,
    /// Whether its next turn is scheduled.
    pub(crate) planned: bool,
}

/// Multiplicative hash of numbers and addresses that the simulated hosts have chosen.
#[derive(Default)]
pub(crate) struct SocketHasher(u64);

impl Hasher for SocketHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// A table that each packet looks up; nothing depends on its order.
pub(crate) type SocketMap<K, V> = HashMap<K, V, BuildHasherDefault<SocketHasher>>;

pub(crate) struct SimHost {
    pub(crate) name: String,
    pub(crate) node: Option<Box<dyn HostNode>>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) sockets: SocketMap<SocketId, Socket>,
    pub(crate) udp: SocketMap<SocketAddr, SocketId>,
    pub(crate) tcp: SocketMap<SocketAddr, SocketId>,
    pub(crate) connections: BTreeMap<ConnectionId, (StreamId, Side)>,
    /// Incremented by each crash: inputs for an earlier life do not reach the next one.
    pub(crate) life: u32,
    /// The current wake-up; others in the agenda are outdated.
    pub(crate) wake: Option<(Time, u64)>,
    /// Time of the last wake-up.
    pub(crate) woken: Time,
    /// Number of wake-ups at that time.
    pub(crate) wakes_at_once: u32,
    pub(crate) next_accepted: u64,
    pub(crate) next_port: u16,
    /// Processing time of a signalling datagram.
    pub(crate) processing_time: Duration,
    /// One for each worker.
    pub(crate) processors: Vec<Processor>,
}

impl SimHost {
    pub(crate) fn new(name: &str, addresses: &[IpAddr], node: Box<dyn HostNode>) -> SimHost {
        SimHost {
            name: name.to_owned(),
            node: Some(node),
            addresses: addresses.to_vec(),
            sockets: SocketMap::default(),
            udp: SocketMap::default(),
            tcp: SocketMap::default(),
            connections: BTreeMap::new(),
            life: 0,
            wake: None,
            woken: Time::ZERO,
            wakes_at_once: 0,
            next_accepted: ConnectionId::ACCEPTED,
            next_port: 32_768,
            processing_time: Duration::ZERO,
            processors: Vec::new(),
        }
    }

    pub(crate) fn processor(&mut self, worker: usize) -> &mut Processor {
        if self.processors.len() <= worker {
            self.processors.resize_with(worker + 1, Processor::default);
        }
        &mut self.processors[worker]
    }

    pub(crate) fn forget(&mut self) {
        self.node = None;
        self.sockets.clear();
        self.udp.clear();
        self.tcp.clear();
        self.connections.clear();
        self.life += 1;
        self.wake = None;
        self.processors.clear();
    }

    /// Opens a socket. The error is the text of the operating system.
    pub(crate) fn open(
        &mut self,
        id: SocketId,
        kind: SocketKind,
        local: SocketAddr,
    ) -> Result<SocketAddr, &'static str> {
        if self.sockets.contains_key(&id) {
            return Err("socket number is in use");
        }
        if !local.ip().is_unspecified() && !self.addresses.contains(&local.ip()) {
            return Err("Cannot assign requested address");
        }
        let stream = kind.stream_transport().is_some();
        let local = if local.port() == 0 {
            self.free_port(local.ip(), stream)
                .ok_or("Address already in use")?
        } else if self.is_taken(local, stream) {
            return Err("Address already in use");
        } else {
            local
        };
        let socket = Socket {
            kind,
            local,
            filter: None,
            shed: 0,
        };
        self.sockets.insert(id, socket);
        let table = if stream { &mut self.tcp } else { &mut self.udp };
        table.insert(local, id);
        Ok(local)
    }

    fn is_taken(&self, local: SocketAddr, stream: bool) -> bool {
        let table = if stream { &self.tcp } else { &self.udp };
        table.keys().any(|taken| {
            taken.port() == local.port()
                && taken.is_ipv4() == local.is_ipv4()
                && (taken.ip() == local.ip()
                    || taken.ip().is_unspecified()
                    || local.ip().is_unspecified())
        })
    }

    pub(crate) fn free_port(&mut self, ip: IpAddr, stream: bool) -> Option<SocketAddr> {
        for _ in 0..28_232 {
            let port = self.next_port;
            self.next_port = if port >= 60_999 { 32_768 } else { port + 1 };
            let local = SocketAddr::new(ip, port);
            if !self.is_taken(local, stream) {
                return Some(local);
            }
        }
        None
    }

    pub(crate) fn shut(&mut self, id: SocketId) {
        if let Some(socket) = self.sockets.remove(&id) {
            let table = match socket.kind.stream_transport() {
                Some(_) => &mut self.tcp,
                None => &mut self.udp,
            };
            table.remove(&socket.local);
        }
    }

    /// The socket that receives packets for `destination`.
    pub(crate) fn socket_at(&self, destination: SocketAddr, stream: bool) -> Option<SocketId> {
        let table = if stream { &self.tcp } else { &self.udp };
        let any: IpAddr = if destination.is_ipv4() {
            IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)
        } else {
            IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)
        };
        table
            .get(&destination)
            .or_else(|| table.get(&SocketAddr::new(any, destination.port())))
            .copied()
    }

    /// The source address of a socket bound to `local` for `destination`.
    pub(crate) fn source(&self, local: SocketAddr, destination: SocketAddr) -> Option<SocketAddr> {
        if local.is_ipv4() != destination.is_ipv4() {
            return None;
        }
        if !local.ip().is_unspecified() {
            return Some(local);
        }
        let ip = self
            .addresses
            .iter()
            .find(|ip| ip.is_ipv4() == destination.is_ipv4())?;
        Some(SocketAddr::new(*ip, local.port()))
    }
}
