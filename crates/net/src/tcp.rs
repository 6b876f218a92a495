//! Stream connections: listening, connecting, reading, bounded writing and orderly closing.

mod handshakes;
mod layers;

use crate::config::DriverConfig;
use crate::layer::{Inbox, LayerBuffers};
use crate::mailbox::WorkerMailbox;
use crate::plane::{GENERATION_MASK, IdMap, Plane, Token};
use crate::socket;
use crate::source_counts::SourceCounts;
use crate::tls::Security;
use engine::timers::{TimerKey, TimerWheel};
use engine::{
    ClientTls, CloseReason, ConnectionId, DropReason, Entropy, EventKind, SocketId, Time,
    Transport, network_of,
};
use handshakes::{HandshakeLimiter, HandshakeTurn};
use layers::{LayerEnd, StreamLayers};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, Shutdown, SocketFlags, sockopt};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A result that is not yet passed to the engine.
#[derive(Debug)]
pub(crate) enum Pending {
    Opened {
        socket: SocketId,
        local: SocketAddr,
    },
    OpenFailed {
        socket: SocketId,
        error: String,
    },
    Accepted {
        connection: ConnectionId,
        socket: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    },
    Connected {
        connection: ConnectionId,
        local: SocketAddr,
    },
    Secured {
        connection: ConnectionId,
        names: Vec<String>,
    },
    Closed {
        connection: ConnectionId,
        why: CloseReason,
    },
    FilterDrops {
        socket: SocketId,
        dropped: u64,
    },
    RecordingFailed {
        file: u64,
    },
}

/// Number of spare write buffers.
const SPARE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Connecting,
    Open,
    /// Closed by the engine; queued data is still sent.
    Draining {
        /// The peer has closed its side.
        peer_ended: bool,
    },
}

struct SocketConnection {
    id: ConnectionId,
    fd: OwnedFd,
    /// Source address of an accepted connection, for the limit per source.
    source: Option<IpAddr>,
    state: StreamState,
    out: VecDeque<u8>,
    dirty: bool,
    watched: EventFlags,
    generation: u32,
    timer: Option<TimerKey>,
    shut: bool,
    /// An event of it is queued, see [`Streams::queue_event`].
    queued: bool,
    /// Bytes were written to it.
    written: bool,
    handshake: HandshakeTurn,
    /// `None`: plain TCP.
    layers: Option<Box<StreamLayers>>,
}

struct Listener {
    id: SocketId,
    fd: OwnedFd,
    local: SocketAddr,
    transport: Transport,
    /// The requested address, by which settings are looked up.
    requested: SocketAddr,
}

enum StreamTimer {
    Connection {
        index: u32,
        generation: u32,
    },
    Listener(u32),
    /// Connections wait for the rate limit of handshakes.
    Handshakes,
}

/// Result of a read.
pub(crate) enum ReadOutcome {
    Data(ConnectionId, usize),
    /// Number of bytes passed to the layers of a connection; their messages are in the inbox.
    Layered(ConnectionId, usize),
    /// Nothing more is queued, or the connection is gone.
    Done,
}

pub(crate) struct Streams {
    connections: Slab<SocketConnection>,
    by_id: IdMap<ConnectionId, u32>,
    listeners: Slab<Listener>,
    listeners_by_id: IdMap<SocketId, u32>,
    per_source: SourceCounts,
    /// Accepted connections among all.
    accepted: usize,
    handshakes: HandshakeLimiter,
    timers: TimerWheel<StreamTimer>,
    dirty: Vec<u32>,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) security: Security,
    pub(crate) inbox: Inbox,
    /// Events for the log.
    pub(crate) log_events: Vec<EventKind>,
    /// The second of the last reported refusal, and the number of refusals in it.
    refusal_reports: (u64, u32),
    shared: LayerBuffers,
    spare: Vec<VecDeque<u8>>,
    ending: Option<LayerEnd>,
    next_accepted: u64,
    generation: u32,
    /// A reserved descriptor: when the limit is reached, it allows accepting a connection in order to close it.
    reserve: Option<OwnedFd>,
}

impl Streams {
    pub(crate) fn new(config: &DriverConfig, entropy: Entropy) -> io::Result<Streams> {
        Ok(Streams {
            connections: Slab::new(),
            by_id: IdMap::default(),
            listeners: Slab::new(),
            listeners_by_id: IdMap::default(),
            per_source: SourceCounts::default(),
            accepted: 0,
            handshakes: HandshakeLimiter::new(config.handshakes_per_second),
            timers: TimerWheel::new(),
            dirty: Vec::with_capacity(64),
            pending: VecDeque::with_capacity(64),
            security: Security::default(),
            inbox: Inbox::default(),
            log_events: Vec::new(),
            refusal_reports: (0, 0),
            shared: LayerBuffers::new(entropy),
            spare: Vec::new(),
            ending: None,
            next_accepted: ConnectionId::ACCEPTED,
            generation: 0,
            reserve: Some(reserve()?),
        })
    }

    /// Numbers accepted connections for this worker from now on, and counts those of a source with the other workers.
    pub(crate) fn set_worker(&mut self, mailbox: &WorkerMailbox) {
        self.next_accepted = ConnectionId::ACCEPTED | ConnectionId::of_worker(mailbox.number());
        self.per_source = mailbox.sources();
    }

    /// Number of connections, including those that are being closed.
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.timers.next_at()
    }

    pub(crate) fn listen(
        &mut self,
        plane: &Plane,
        id: SocketId,
        transport: Transport,
        requested: SocketAddr,
        config: &DriverConfig,
    ) -> io::Result<SocketAddr> {
        if self.listeners_by_id.contains_key(&id) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("socket number {} is in use", id.0),
            ));
        }
        let websocket = transport == Transport::Wss;
        if matches!(transport, Transport::Tls | Transport::Wss)
            && self.security.server_of(requested, websocket).is_none()
        {
            return Err(io::Error::other(
                "no certificate is configured for this address",
            ));
        }
        let fd = socket::listener(requested, config)?;
        let local = socket::local_address(fd.as_fd())?;
        let entry = self.listeners.vacant_entry();
        let index = entry.key() as u32;
        plane.watch(fd.as_fd(), Token::Listener(index), EventFlags::IN)?;
        entry.insert(Listener {
            id,
            fd,
            local,
            transport,
            requested,
        });
        self.listeners_by_id.insert(id, index);
        Ok(local)
    }

    /// Closes a listener; false if there is none of that number.
    pub(crate) fn close_listener(&mut self, plane: &Plane, id: SocketId) -> bool {
        let Some(index) = self.listeners_by_id.remove(&id) else {
            return false;
        };
        if let Some(listener) = self.listeners.try_remove(index as usize) {
            plane.unwatch(listener.fd.as_fd());
        }
        true
    }

    pub(crate) fn connect(
        &mut self,
        plane: &Plane,
        id: ConnectionId,
        (local, remote): (Option<SocketAddr>, SocketAddr),
        (secure, websocket): (Option<ClientTls<'_>>, bool),
        config: &DriverConfig,
        now: Time,
    ) {
        if self.by_id.contains_key(&id) {
            plane.shared.unknown_targets.add(1);
            debug_assert!(false, "connection number {} is in use", id.0);
            return;
        }
        let refused = Pending::Closed {
            connection: id,
            why: CloseReason::ConnectFailed,
        };
        // Accepted connections do not count: strangers must not prevent our calls.
        if self.connections.len() - self.accepted >= config.connections {
            self.pending.push_back(refused);
            return;
        }
        let layers = match self.client(remote, secure, websocket, config) {
            Ok(layers) => layers,
            Err(why) => {
                let name = secure.map_or("", |secure| secure.server_name);
                self.refused(plane, remote, None, name, why, now);
                self.pending.push_back(Pending::Closed {
                    connection: id,
                    why: CloseReason::TlsFailed,
                });
                return;
            }
        };
        let opened = socket::connect(local, remote, config).and_then(|(fd, connected_at_once)| {
            self.add(plane, id, fd, None, connected_at_once, layers)
                .map(|index| (index, connected_at_once))
        });
        match opened {
            Ok((index, true)) => self.connected(plane, index, config, now),
            Ok((index, false)) => self.set_timer(index, now + config.connect_timeout),
            Err(_) => self.pending.push_back(refused),
        }
    }

    fn add(
        &mut self,
        plane: &Plane,
        id: ConnectionId,
        fd: OwnedFd,
        source: Option<IpAddr>,
        connected_at_once: bool,
        layers: Option<Box<StreamLayers>>,
    ) -> io::Result<u32> {
        self.generation = (self.generation + 1) & GENERATION_MASK;
        let generation = self.generation;
        let entry = self.connections.vacant_entry();
        let index = entry.key() as u32;
        let (state, watched) = if connected_at_once {
            (StreamState::Open, EventFlags::IN)
        } else {
            (StreamState::Connecting, EventFlags::OUT)
        };
        plane.watch(fd.as_fd(), Token::Stream { index, generation }, watched)?;
        entry.insert(SocketConnection {
            id,
            fd,
            source,
            state,
            out: VecDeque::new(),
            dirty: false,
            watched,
            generation,
            timer: None,
            shut: false,
            queued: false,
            written: false,
            handshake: HandshakeTurn::of(source.is_some(), layers.as_deref()),
            layers,
        });
        self.by_id.insert(id, index);
        Ok(index)
    }

    fn set_timer(&mut self, index: u32, at: Time) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        if let Some(key) = connection.timer.take() {
            self.timers.cancel(key);
        }
        let generation = connection.generation;
        connection.timer = Some(
            self.timers
                .schedule(at, StreamTimer::Connection { index, generation }),
        );
    }

    /// TCP is established: reports it to the engine, or starts the handshakes.
    fn connected(&mut self, plane: &Plane, index: u32, config: &DriverConfig, now: Time) {
        if self
            .connections
            .get(index as usize)
            .is_some_and(|connection| connection.layers.is_some())
        {
            plane.shared.connected.add(1);
            self.connections[index as usize].state = StreamState::Open;
            self.set_timer(index, now + config.handshake_timeout);
            self.process_layers(plane, index, &mut []);
            self.mark(index);
            return;
        }
        self.report_connected(plane, index);
    }

    /// A connection without layers is established.
    fn report_connected(&mut self, plane: &Plane, index: u32) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        let Ok(local) = socket::local_address(connection.fd.as_fd()) else {
            self.abort(plane, index, CloseReason::ConnectFailed);
            return;
        };
        if let Some(key) = connection.timer.take() {
            self.timers.cancel(key);
        }
        plane.shared.connected.add(1);
        connection.state = StreamState::Open;
        self.pending.push_back(Pending::Connected {
            connection: connection.id,
            local,
        });
        self.mark(index);
    }

    fn mark(&mut self, index: u32) {
        if let Some(connection) = self.connections.get_mut(index as usize)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(index);
        }
    }

    /// Accepts queued connections, a bounded number per turn.
    pub(crate) fn accept(&mut self, plane: &Plane, index: u32, config: &DriverConfig, now: Time) {
        for _ in 0..64 {
            let Some(listener) = self.listeners.get(index as usize) else {
                return;
            };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match net::acceptfrom_with(&listener.fd, flags) {
                Ok((fd, remote)) => {
                    let remote = remote.and_then(|address| SocketAddr::try_from(address).ok());
                    let accepted = remote
                        .is_some_and(|remote| self.admit(plane, index, fd, remote, config, now));
                    if !accepted {
                        plane.shared.accept_refused.add(1);
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE) => {
                    if !self.refuse_with_reserve(plane, index) {
                        self.pause(plane, index, now);
                        return;
                    }
                }
                // The connection ended before it was accepted, or has a pending network error: the next one may be
                // fine.
                Err(_) => {}
            }
        }
    }

    fn admit(
        &mut self,
        plane: &Plane,
        listener: u32,
        fd: OwnedFd,
        remote: SocketAddr,
        config: &DriverConfig,
        now: Time,
    ) -> bool {
        let source = network_of(remote.ip());
        if self.accepted >= config.connections
            || !self.per_source.take(source, config.connections_per_source)
        {
            return false;
        }
        let is_admitted = self.admit_counted(plane, listener, (fd, remote), config, now);
        if !is_admitted {
            self.per_source.release(source);
        }
        is_admitted
    }

    /// Admits a connection that counts for its source.
    fn admit_counted(
        &mut self,
        plane: &Plane,
        listener: u32,
        (fd, remote): (OwnedFd, SocketAddr),
        config: &DriverConfig,
        now: Time,
    ) -> bool {
        let Some(listener) = self.listeners.get(listener as usize) else {
            return false;
        };
        let (socket, listening) = (listener.id, listener.local);
        if socket::accepted_options(fd.as_fd(), remote, config).is_err() {
            return false;
        }
        let source = network_of(remote.ip());
        let local = socket::local_address(fd.as_fd()).unwrap_or(listening);
        let layers = match self.server(listener, remote, config) {
            Ok(layers) => layers,
            Err(why) => {
                self.refused(plane, remote, Some(listening), "", why, now);
                return false;
            }
        };
        let layered = layers.is_some();
        let connection = ConnectionId(self.next_accepted);
        let Ok(index) = self.add(plane, connection, fd, Some(source), true, layers) else {
            return false;
        };
        if layered {
            self.set_timer(index, now + config.handshake_timeout);
        }
        self.next_accepted = (self.next_accepted + 1) | ConnectionId::ACCEPTED;
        self.accepted += 1;
        plane.shared.accepted.add(1);
        self.pending.push_back(Pending::Accepted {
            connection,
            socket,
            local,
            remote,
        });
        true
    }

    /// File descriptors are used up: accepts one connection with the reserve and closes it, so that its peer is
    /// informed at once.
    fn refuse_with_reserve(&mut self, plane: &Plane, index: u32) -> bool {
        if self.reserve.take().is_none() {
            return false;
        }
        if let Some(listener) = self.listeners.get(index as usize)
            && net::accept_with(&listener.fd, SocketFlags::CLOEXEC).is_ok()
        {
            plane.shared.accept_refused.add(1);
        }
        self.reserve = reserve().ok();
        self.reserve.is_some()
    }

    /// Pauses a listener for 100 ms, so that it does not wake the thread without effect.
    fn pause(&mut self, plane: &Plane, index: u32, now: Time) {
        if let Some(listener) = self.listeners.get(index as usize) {
            plane.unwatch(listener.fd.as_fd());
            self.timers.schedule(
                now + Duration::from_millis(100),
                StreamTimer::Listener(index),
            );
        }
    }

    /// Whether the queue of a connection is above its limit with `more` bytes.
    fn is_above_limit(&self, index: u32, more: usize, config: &DriverConfig) -> bool {
        let connection = self.connections.get(index as usize);
        connection.is_some_and(|connection| {
            let layers = connection.layers.as_ref();
            let queued = layers.map_or(0, |layers| layers.layer.queued_bytes());
            connection.out.len() + queued + more > config.stream_buffer
        })
    }

    /// Closes a connection whose peer does not read: its queue is above the limit with `more` bytes. Returns whether it
    /// was closed.
    fn close_if_slow(
        &mut self,
        plane: &Plane,
        index: u32,
        more: usize,
        config: &DriverConfig,
    ) -> bool {
        if !self.is_above_limit(index, more, config) {
            return false;
        }
        // The kernel may have room now: the queued bytes are written before the peer is treated as slow.
        self.write(plane, index);
        let slow = self.is_above_limit(index, more, config);
        if slow {
            plane.shared.drop_one(DropReason::StreamBackpressure);
            self.abort(plane, index, CloseReason::Backpressure);
        }
        slow
    }

    /// Queues bytes for a connection; above the limit the connection is closed.
    pub(crate) fn send(
        &mut self,
        plane: &Plane,
        id: ConnectionId,
        bytes: &[u8],
        config: &DriverConfig,
    ) {
        let Some(&index) = self.by_id.get(&id) else {
            plane.shared.unknown_targets.add(1);
            plane.shared.drop_one(DropReason::SendFailed);
            return;
        };
        if self.close_if_slow(plane, index, bytes.len(), config) {
            return;
        }
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        match connection.layers.as_deref_mut() {
            Some(layers) => {
                if !layers.layer.send(bytes, &mut self.shared) {
                    plane.shared.drop_one(DropReason::SendFailed);
                }
            }
            None => {
                if connection.out.capacity() == 0 {
                    connection.out = self.spare.pop().unwrap_or_default();
                }
                connection.out.extend(bytes);
            }
        }
        self.mark(index);
    }

    /// Closes a connection for the engine; data queued before is still sent.
    pub(crate) fn close(
        &mut self,
        plane: &Plane,
        id: ConnectionId,
        config: &DriverConfig,
        now: Time,
    ) {
        let Some(index) = self.by_id.remove(&id) else {
            return;
        };
        self.pending.push_back(Pending::Closed {
            connection: id,
            why: CloseReason::Engine,
        });
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        // There is nothing that a close at once could destroy: a rejected connection does not keep its place.
        let unused = !connection.written
            && connection.out.is_empty()
            && connection
                .layers
                .as_ref()
                .is_none_or(|layers| layers.layer.queued_bytes() == 0);
        if connection.state == StreamState::Connecting || unused {
            self.remove(plane, index);
            return;
        }
        connection.state = StreamState::Draining { peer_ended: false };
        if let Some(layers) = connection.layers.as_deref_mut() {
            layers.layer.close(&mut connection.out, &mut self.shared);
        }
        self.set_timer(index, now + config.linger);
        self.mark(index);
    }

    /// Closes a connection at once and reports it to the engine.
    fn abort(&mut self, plane: &Plane, index: u32, why: CloseReason) {
        if let Some(connection) = self.connections.get(index as usize)
            && self.by_id.remove(&connection.id).is_some()
        {
            self.pending.push_back(Pending::Closed {
                connection: connection.id,
                why,
            });
        }
        self.remove(plane, index);
    }

    fn remove(&mut self, plane: &Plane, index: u32) {
        let Some(connection) = self.connections.try_remove(index as usize) else {
            return;
        };
        plane.unwatch(connection.fd.as_fd());
        if let Some(key) = connection.timer {
            self.timers.cancel(key);
        }
        if let Some(source) = connection.source {
            self.accepted -= 1;
            self.per_source.release(source);
        }
        drop(connection);
        if self.reserve.is_none() {
            self.reserve = reserve().ok();
        }
    }

    /// Whether the event belongs to the present connection of this index.
    fn is_current(&self, index: u32, generation: u32) -> bool {
        self.connections
            .get(index as usize)
            .is_some_and(|connection| connection.generation == generation)
    }

    /// Notes that an event of a connection is queued; false if it has one already, or is gone.
    pub(crate) fn queue_event(&mut self, index: u32, generation: u32) -> bool {
        match self.connections.get_mut(index as usize) {
            Some(connection) if connection.generation == generation => {
                !std::mem::replace(&mut connection.queued, true)
            }
            _ => false,
        }
    }

    /// Notes that the queued event of a connection is being processed; false if the connection is gone.
    pub(crate) fn take_event(&mut self, index: u32, generation: u32) -> bool {
        match self.connections.get_mut(index as usize) {
            Some(connection) if connection.generation == generation => {
                std::mem::replace(&mut connection.queued, false)
            }
            _ => false,
        }
    }

    /// Processes a connection that is writable, has an error, or whose connect has finished.
    pub(crate) fn writable(
        &mut self,
        plane: &Plane,
        index: u32,
        generation: u32,
        config: &DriverConfig,
        now: Time,
    ) {
        if !self.is_current(index, generation) {
            return;
        }
        if self.connections[index as usize].state != StreamState::Connecting {
            self.write(plane, index);
            return;
        }
        let outcome = sockopt::socket_error(&self.connections[index as usize].fd);
        match outcome {
            Ok(Ok(())) => self.connected(plane, index, config, now),
            _ => self.abort(plane, index, CloseReason::ConnectFailed),
        }
    }

    /// Reads once into `buffer`.
    pub(crate) fn read(
        &mut self,
        plane: &Plane,
        (index, generation): (u32, u32),
        buffer: &mut [u8],
        config: &DriverConfig,
        now: Time,
    ) -> ReadOutcome {
        if !self.is_current(index, generation) {
            return ReadOutcome::Done;
        }
        let connection = &self.connections[index as usize];
        if connection.state == StreamState::Connecting
            || (connection.state == StreamState::Open && !self.may_shake_hands(plane, index, now))
        {
            return ReadOutcome::Done;
        }
        let connection = &self.connections[index as usize];
        let got = net::recv(&connection.fd, &mut *buffer, RecvFlags::DONTWAIT);
        let draining = matches!(connection.state, StreamState::Draining { .. });
        match got {
            Ok((0, _)) => {
                if !draining {
                    self.unfinished(plane, index, "the peer closed the connection", now);
                }
                self.peer_ended(plane, index, config, now);
                ReadOutcome::Done
            }
            Ok(_) if draining => ReadOutcome::Done,
            Ok((n, _)) => {
                plane.shared.stream_bytes_in.add(n);
                let id = connection.id;
                if connection.layers.is_none() {
                    return ReadOutcome::Data(id, n);
                }
                self.process_layers(plane, index, buffer.get_mut(..n).unwrap_or_default());
                ReadOutcome::Layered(id, n)
            }
            Err(Errno::AGAIN | Errno::INTR) => ReadOutcome::Done,
            Err(_) => {
                self.unfinished(plane, index, "the peer reset the connection", now);
                self.abort(plane, index, CloseReason::Error);
                ReadOutcome::Done
            }
        }
    }

    /// The peer has closed its side: reports it to the engine, and sends the queued data (the peer may be half
    /// closed).
    fn peer_ended(&mut self, plane: &Plane, index: u32, config: &DriverConfig, now: Time) {
        let connection = &mut self.connections[index as usize];
        let id = connection.id;
        let reported = self.by_id.remove(&id).is_none();
        connection.state = StreamState::Draining { peer_ended: true };
        if let Some(layers) = connection.layers.as_deref_mut() {
            layers.layer.close(&mut connection.out, &mut self.shared);
        }
        if !reported {
            self.pending.push_back(Pending::Closed {
                connection: id,
                why: CloseReason::Peer,
            });
            self.set_timer(index, now + config.linger);
        }
        self.write(plane, index);
    }

    /// Writes the queued data of all marked connections.
    pub(crate) fn flush(&mut self, plane: &Plane) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            if let Some(connection) = self.connections.get_mut(index as usize)
                && connection.dirty
            {
                connection.dirty = false;
                self.write(plane, index);
            }
        }
        // Writing marks no connections, so the list is empty and its memory can be reused.
        self.dirty = dirty;
    }

    fn write(&mut self, plane: &Plane, index: u32) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        if connection.state == StreamState::Connecting {
            return;
        }
        if let Some(layers) = connection.layers.as_deref_mut() {
            if connection.out.capacity() == 0 && layers.layer.queued_bytes() > 0 {
                connection.out = self.spare.pop().unwrap_or_default();
            }
            if layers
                .layer
                .flush(&mut connection.out, &mut self.shared)
                .is_err()
            {
                plane.shared.drop_one(DropReason::TlsBroken);
                self.abort(plane, index, CloseReason::Error);
                return;
            }
        }
        while !connection.out.is_empty() {
            let (first, _) = connection.out.as_slices();
            match net::send(
                &connection.fd,
                first,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(n) => {
                    connection.written = true;
                    plane.shared.stream_bytes_out.add(n);
                    connection.out.drain(..n);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.abort(plane, index, CloseReason::Error);
                    return;
                }
            }
        }
        self.after_write(plane, index);
    }

    fn after_write(&mut self, plane: &Plane, index: u32) {
        let connection = &mut self.connections[index as usize];
        let empty = connection.out.is_empty();
        if empty && connection.out.capacity() > 0 {
            // An idle connection holds no buffer.
            let out = std::mem::take(&mut connection.out);
            if self.spare.len() < SPARE && out.capacity() <= 64 << 10 {
                self.spare.push(out);
            }
        }
        let reads = match connection.state {
            StreamState::Draining { peer_ended: true } if empty => {
                self.remove(plane, index);
                return;
            }
            StreamState::Draining { peer_ended: true } => false,
            StreamState::Draining { peer_ended: false } if empty && !connection.shut => {
                // Only our side is shut down; the connection is removed at the peer's end or by the timer. If it were
                // closed now, unread bytes of the peer would cause a reset, which discards the data just sent.
                connection.shut = true;
                if net::shutdown(&connection.fd, Shutdown::Write).is_err() {
                    self.remove(plane, index);
                    return;
                }
                true
            }
            StreamState::Open => connection.handshake != HandshakeTurn::Delayed,
            _ => true,
        };
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, reads);
        interest.set(EventFlags::OUT, !empty);
        self.watch_for(plane, index, interest);
    }

    /// Sets the events that a connection waits for.
    fn watch_for(&mut self, plane: &Plane, index: u32, interest: EventFlags) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        if interest == connection.watched {
            return;
        }
        connection.watched = interest;
        let token = Token::Stream {
            index,
            generation: connection.generation,
        };
        if plane
            .rewatch(connection.fd.as_fd(), token, interest)
            .is_err()
        {
            self.abort(plane, index, CloseReason::Error);
        }
    }

    /// Processes expired timers.
    pub(crate) fn timeout(&mut self, plane: &Plane, config: &DriverConfig, now: Time) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                StreamTimer::Connection { index, generation }
                    if self.is_current(index, generation) =>
                {
                    self.connections[index as usize].timer = None;
                    self.handle_timeout(plane, index, config, now);
                }
                StreamTimer::Connection { .. } => {}
                StreamTimer::Handshakes => self.resume_handshakes(plane, now),
                StreamTimer::Listener(index) => {
                    if let Some(listener) = self.listeners.get(index as usize)
                        && plane
                            .watch(listener.fd.as_fd(), Token::Listener(index), EventFlags::IN)
                            .is_err()
                    {
                        self.pause(plane, index, now);
                    }
                }
            }
        }
    }
}

fn reserve() -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    Ok(openat(
        CWD,
        "/dev/null",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}
