//! A host with several workers: engines that listen at the same addresses. As in a kernel, the source of a datagram or
//! connection selects the worker; handoff messages are carried between workers.

use crate::HostId;
use crate::host::{ControlNode, HandoffInTransit, HostNode};
use crate::world::World;
use engine::{
    ConnectionId, Control, Deadline, Engine, Event, Forward, HandoffMessage, Input, MediaPacket,
    Output, PacketVerdict, SocketFilter, SocketId, SocketKind, Time,
};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Bits of a world socket number that contain its worker.
const WORKER_BITS: u32 = 6;

/// An owned output for the world.
enum OwnedOutput {
    Open(SocketId, SocketKind, SocketAddr),
    Shut(SocketId),
    Datagram(SocketId, SocketAddr),
    Connect(ConnectionId, Option<SocketAddr>, SocketAddr, bool),
    Stream(ConnectionId),
    Close(ConnectionId),
    Event(Event),
}

/// An input about a worker's own socket.
enum SocketNotice {
    /// It is open already, at this address.
    Opened(SocketAddr),
    /// The number of datagrams dropped by its filter.
    Shed(u64),
}

/// A world socket that several workers share: address, whether it is for streams, each worker's number of it.
type SharedSocket = (SocketAddr, bool, Vec<(usize, SocketId)>);

/// The workers of a host.
pub(crate) struct SimWorkers<C, F> {
    workers: Vec<ControlNode<C, F>>,
    handoffs: VecDeque<HandoffInTransit>,
    /// Shared sockets. The first worker's number is that of the world.
    shared_sockets: Vec<SharedSocket>,
    /// Pending inputs about sockets.
    notices: VecDeque<(usize, SocketId, SocketNotice)>,
    /// Socket filters of workers, with the drops since the last report.
    filters: BTreeMap<(usize, SocketId), (SocketFilter, u64)>,
    /// The worker of each accepted connection.
    accepted: BTreeMap<u64, usize>,
    out: Option<OwnedOutput>,
    bytes: Vec<u8>,
    /// The worker of the last output.
    output_worker: usize,
    /// Number of handoff messages carried.
    handoff_count: u64,
}

/// The bits of an accepted connection's number that contain its worker.
const HOLDER: u64 = ConnectionId::of_worker(u8::MAX);

impl<C, F> SimWorkers<C, F>
where
    C: Control<Command = F::Command, Report = F::Report> + 'static,
    F: Forward + 'static,
{
    fn new(workers: Vec<(C, F)>) -> SimWorkers<C, F> {
        let node = |(control, forwarder)| ControlNode::new(control, forwarder);
        SimWorkers {
            workers: workers.into_iter().map(node).collect(),
            handoffs: VecDeque::new(),
            shared_sockets: Vec::new(),
            notices: VecDeque::new(),
            filters: BTreeMap::new(),
            accepted: BTreeMap::new(),
            out: None,
            bytes: Vec::new(),
            output_worker: 0,
            handoff_count: 0,
        }
    }

    fn world_id(worker: usize, id: SocketId) -> SocketId {
        SocketId(id.0 << WORKER_BITS | worker as u32)
    }

    /// The worker for a peer at a world socket, and its own number of the socket.
    fn worker_for(&self, socket: SocketId, peer: SocketAddr) -> (usize, SocketId) {
        let first = (
            (socket.0 & ((1 << WORKER_BITS) - 1)) as usize,
            SocketId(socket.0 >> WORKER_BITS),
        );
        let shared = self
            .shared_sockets
            .iter()
            .find(|(.., workers)| workers.first() == Some(&first));
        match shared {
            Some((.., workers)) if workers.len() > 1 => {
                // Any choice is valid that is constant for a peer.
                let ip = match peer.ip() {
                    IpAddr::V4(ip) => u32::from(ip),
                    IpAddr::V6(ip) => (u128::from(ip) % 65_521) as u32,
                };
                let mixed = (ip ^ u32::from(peer.port()) << 8).wrapping_mul(0x9e37_79b1) >> 16;
                workers[mixed as usize % workers.len()]
            }
            _ => first,
        }
    }

    /// The world socket that a worker's socket sends from.
    fn world_socket(&self, worker: usize, id: SocketId) -> SocketId {
        let own = (worker, id);
        let shared = self
            .shared_sockets
            .iter()
            .find(|(.., workers)| workers.contains(&own));
        let (worker, id) = shared
            .and_then(|(.., all)| all.first().copied())
            .unwrap_or(own);
        Self::world_id(worker, id)
    }

    fn holder(&self, connection: ConnectionId) -> usize {
        match self.accepted.get(&connection.0) {
            Some(worker) => *worker,
            None => usize::from(connection.worker()),
        }
    }

    /// A connection's number at its worker.
    fn inner(&self, connection: ConnectionId) -> ConnectionId {
        match self.accepted.get(&connection.0) {
            Some(worker) => ConnectionId(connection.0 | ConnectionId::of_worker(*worker as u8)),
            None => connection,
        }
    }

    /// A connection's number in the world.
    fn outer(connection: ConnectionId) -> ConnectionId {
        match connection.0 & ConnectionId::ACCEPTED {
            0 => connection,
            _ => ConnectionId(connection.0 & !HOLDER),
        }
    }

    /// Processes an output of a worker; `Some(false)`: it stays within the host; `None`: there is none.
    fn take_output(&mut self, worker: usize) -> Option<bool> {
        let count = self.workers.len();
        let output = self.workers[worker].control.next_output()?;
        self.output_worker = worker;
        let mut copy = |bytes: &[u8]| {
            self.bytes.clear();
            self.bytes.extend_from_slice(bytes);
        };
        let out = match output {
            Output::OpenSocket {
                socket,
                kind,
                local,
            } => OwnedOutput::Open(socket, kind, local),
            Output::CloseSocket { socket } => OwnedOutput::Shut(socket),
            Output::Datagram {
                socket,
                destination,
                bytes,
            } => {
                copy(bytes);
                OwnedOutput::Datagram(socket, destination)
            }
            Output::Connect {
                connection,
                local,
                remote,
                websocket,
                ..
            } => OwnedOutput::Connect(connection, local, remote, websocket),
            Output::Stream { connection, bytes } => {
                copy(bytes);
                OwnedOutput::Stream(Self::outer(connection))
            }
            Output::Close { connection } => OwnedOutput::Close(Self::outer(connection)),
            Output::HandOff {
                worker: target,
                message,
            } => {
                let to = usize::from(target);
                assert!(
                    to != worker && to < count,
                    "handoff to worker {to}, which does not exist"
                );
                self.handoffs.push_back(HandoffInTransit {
                    to,
                    kind: message.kind,
                    bytes: message.bytes.to_vec(),
                });
                return Some(false);
            }
            // Workers share the world's sockets: a worker's filter drops only datagrams for that worker.
            Output::SocketFilter { socket, filter } => {
                let own = (worker, socket);
                let dropped = self.filters.remove(&own).map_or(0, |(_, dropped)| dropped);
                self.notices
                    .push_back((worker, socket, SocketNotice::Shed(dropped)));
                if let Some(filter) = filter {
                    self.filters.insert(own, (filter, 0));
                }
                return Some(false);
            }
            // There is no disk.
            Output::Recording { .. } => return Some(false),
            Output::Event(event) => OwnedOutput::Event(event),
        };
        self.out = match out {
            OwnedOutput::Open(id, kind, local)
                if kind != SocketKind::UdpMedia && local.port() != 0 =>
            {
                let stream = kind.stream_transport().is_some();
                let same = |(at, is, _): &&mut SharedSocket| *at == local && *is == stream;
                match self.shared_sockets.iter_mut().find(same) {
                    Some((.., workers)) => {
                        workers.push((worker, id));
                        self.notices
                            .push_back((worker, id, SocketNotice::Opened(local)));
                        None
                    }
                    None => {
                        self.shared_sockets
                            .push((local, stream, vec![(worker, id)]));
                        Some(OwnedOutput::Open(Self::world_id(worker, id), kind, local))
                    }
                }
            }
            OwnedOutput::Open(id, kind, local) => {
                Some(OwnedOutput::Open(Self::world_id(worker, id), kind, local))
            }
            // A shared socket remains open until its last worker closes it.
            OwnedOutput::Shut(id) => {
                let by = self.world_socket(worker, id);
                let own = (worker, id);
                let at = self
                    .shared_sockets
                    .iter()
                    .position(|(.., all)| all.contains(&own));
                match at {
                    Some(at)
                        if self.shared_sockets[at].2.len() > 1
                            && self.shared_sockets[at].2[0] != own =>
                    {
                        self.shared_sockets[at].2.retain(|other| *other != own);
                        None
                    }
                    Some(at) => {
                        self.shared_sockets.remove(at);
                        Some(OwnedOutput::Shut(by))
                    }
                    None => Some(OwnedOutput::Shut(by)),
                }
            }
            OwnedOutput::Datagram(id, to) => {
                Some(OwnedOutput::Datagram(self.world_socket(worker, id), to))
            }
            out => Some(out),
        };
        Some(self.out.is_some())
    }
}

impl<C, F> HostNode for SimWorkers<C, F>
where
    C: Control<Command = F::Command, Report = F::Report> + 'static,
    F: Forward + 'static,
{
    fn handle(&mut self, input: Input<'_>, now: Time) {
        let (worker, input) = match input {
            Input::Timeout => {
                for worker in &mut self.workers {
                    let due = worker.control.next_deadline();
                    if due.is_some_and(|due| due.at <= now) {
                        worker.control.handle(Input::Timeout, now);
                    }
                }
                return;
            }
            Input::Datagram(mut datagram) => {
                let (worker, socket) = self.worker_for(datagram.socket, datagram.source);
                datagram.socket = socket;
                (worker, Input::Datagram(datagram))
            }
            Input::Accepted {
                connection,
                socket,
                local,
                remote,
            } => {
                let (worker, socket) = self.worker_for(socket, remote);
                self.accepted.insert(connection.0, worker);
                let input = Input::Accepted {
                    connection: self.inner(connection),
                    socket,
                    local,
                    remote,
                };
                (worker, input)
            }
            Input::Connected { connection, local } => (
                self.holder(connection),
                Input::Connected { connection, local },
            ),
            Input::Secured { connection, names } => {
                let (worker, connection) = (self.holder(connection), self.inner(connection));
                (worker, Input::Secured { connection, names })
            }
            Input::Stream { connection, bytes } => {
                let (worker, connection) = (self.holder(connection), self.inner(connection));
                (worker, Input::Stream { connection, bytes })
            }
            Input::Closed { connection, reason } => {
                let (worker, inner) = (self.holder(connection), self.inner(connection));
                self.accepted.remove(&connection.0);
                let connection = inner;
                (worker, Input::Closed { connection, reason })
            }
            Input::Unreachable {
                socket,
                destination,
                bytes,
            } => {
                let (worker, socket) = self.worker_for(socket, destination);
                let input = Input::Unreachable {
                    socket,
                    destination,
                    bytes,
                };
                (worker, input)
            }
            Input::Opened { socket, local } => {
                let (worker, socket) = (
                    (socket.0 & ((1 << WORKER_BITS) - 1)) as usize,
                    SocketId(socket.0 >> WORKER_BITS),
                );
                (worker, Input::Opened { socket, local })
            }
            Input::OpenFailed { socket, error } => {
                let (worker, socket) = (
                    (socket.0 & ((1 << WORKER_BITS) - 1)) as usize,
                    SocketId(socket.0 >> WORKER_BITS),
                );
                (worker, Input::OpenFailed { socket, error })
            }
            Input::Handoff(_) | Input::Shed { .. } | Input::RecordingFailed { .. } => return,
        };
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.control.handle(input, now);
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        let mut worker = 0;
        while worker < self.workers.len() {
            match self.take_output(worker) {
                None => worker += 1,
                Some(false) => {}
                Some(true) => break,
            }
        }
        let bytes = self.bytes.as_slice();
        Some(match self.out.take()? {
            OwnedOutput::Open(socket, kind, local) => Output::OpenSocket {
                socket,
                kind,
                local,
            },
            OwnedOutput::Shut(socket) => Output::CloseSocket { socket },
            OwnedOutput::Datagram(socket, destination) => Output::Datagram {
                socket,
                destination,
                bytes,
            },
            OwnedOutput::Connect(connection, local, remote, websocket) => Output::Connect {
                connection,
                local,
                remote,
                tls: None,
                websocket,
            },
            OwnedOutput::Stream(connection) => Output::Stream { connection, bytes },
            OwnedOutput::Close(connection) => Output::Close { connection },
            OwnedOutput::Event(event) => Output::Event(event),
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let deadlines = self
            .workers
            .iter()
            .map(|worker| worker.control.next_deadline());
        deadlines.fold(None, Deadline::earlier)
    }

    fn forward(&mut self, packet: &mut MediaPacket<'_>, now: Time) -> Option<PacketVerdict> {
        let (worker, socket) = self.worker_for(packet.socket, packet.source);
        let world = std::mem::replace(&mut packet.socket, socket);
        let verdict = self.workers.get_mut(worker)?.forwarder.forward(packet, now);
        packet.socket = world;
        Some(match verdict {
            PacketVerdict::Forward {
                socket,
                destination,
            } => PacketVerdict::Forward {
                socket: Self::world_id(worker, socket),
                destination,
            },
            other => other,
        })
    }

    fn forward_deadline(&self) -> Option<Deadline> {
        let deadlines = self
            .workers
            .iter()
            .map(|worker| worker.forwarder.next_deadline());
        deadlines.fold(None, Deadline::earlier)
    }

    fn forward_timeout(&mut self, now: Time) {
        for worker in &mut self.workers {
            worker.forwarder.timeout(now);
        }
    }

    fn next_packet(&mut self) -> Option<(SocketId, SocketAddr, &[u8])> {
        let mut found = None;
        for (index, worker) in self.workers.iter_mut().enumerate() {
            if let Some((socket, to, bytes)) = worker.forwarder.next_packet() {
                self.bytes.clear();
                self.bytes.extend_from_slice(bytes);
                found = Some((Self::world_id(index, socket), to));
                break;
            }
        }
        let (socket, to) = found?;
        Some((socket, to, &self.bytes))
    }

    /// Besides commands and reports: one pending input about a socket.
    fn shuttle(&mut self, now: Time) -> bool {
        if let Some((worker, socket, notice)) = self.notices.pop_front() {
            let input = match notice {
                SocketNotice::Opened(local) => Input::Opened { socket, local },
                SocketNotice::Shed(dropped) => Input::Shed { socket, dropped },
            };
            self.workers[worker].control.handle(input, now);
            return true;
        }
        let reported = self.workers.iter_mut().map(|worker| worker.shuttle(now));
        reported.fold(false, |any, one| any | one)
    }

    fn worker_at(&self, socket: SocketId, source: SocketAddr) -> usize {
        self.worker_for(socket, source).0
    }

    fn output_worker(&self) -> usize {
        self.output_worker
    }

    fn filters_datagram(&mut self, socket: SocketId, source: SocketAddr, bytes: &[u8]) -> bool {
        let own = self.worker_for(socket, source);
        match self.filters.get_mut(&own) {
            Some((filter, dropped)) if !filter.passes(bytes) => {
                *dropped += 1;
                true
            }
            _ => false,
        }
    }

    fn next_handoff(&mut self) -> Option<HandoffInTransit> {
        let handoff = self.handoffs.pop_front()?;
        self.handoff_count += 1;
        Some(handoff)
    }

    fn deliver_handoff(&mut self, handoff: &HandoffInTransit, now: Time) {
        let message = HandoffMessage {
            kind: handoff.kind,
            bytes: &handoff.bytes,
        };
        self.workers[handoff.to]
            .control
            .handle(Input::Handoff(message), now);
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl World {
    /// Adds a host with several workers, each with its forwarder.
    ///
    /// # Panics
    /// If another host has one of the addresses.
    pub fn add_workers<C, F>(
        &mut self,
        name: &str,
        addresses: &[IpAddr],
        workers: Vec<(C, F)>,
    ) -> HostId
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        self.add(name, addresses, Box::new(SimWorkers::new(workers)))
    }

    /// Borrows control plane and forwarder of one worker of a host, as [`World::with_engine`].
    pub fn with_worker<C, F, R>(
        &mut self,
        host: HostId,
        worker: usize,
        work: impl FnOnce(&mut C, &mut F, Time) -> R,
    ) -> Option<R>
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        self.step(host, |node, now| {
            let workers = node.as_any().downcast_mut::<SimWorkers<C, F>>()?;
            let pair = workers.workers.get_mut(worker)?;
            Some(work(pair.control.get(), &mut pair.forwarder, now))
        })?
    }

    /// Number of handoff messages between the workers of a host.
    pub fn handoffs<C, F>(&mut self, host: HostId) -> Option<u64>
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        self.step(host, |node, _| {
            Some(
                node.as_any()
                    .downcast_mut::<SimWorkers<C, F>>()?
                    .handoff_count,
            )
        })?
    }
}
