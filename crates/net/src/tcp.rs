//! Stream connections: listening, connecting, reading, writing with a bound, closing in order.

mod upper;

use crate::config::DriverConfig;
use crate::layer::{Inbox, Shared};
use crate::plane::{GENERATION_MASK, IdMap, Plane, Token};
use crate::socket;
use crate::tls::Security;
use engine::timers::{TimerKey, Wheel};
use engine::{
    BoundedMap, CloseWhy, ConnectionId, DropReason, Entropy, HashKey, Note, Secure, SocketId, Time,
    Transport,
};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, Shutdown, SocketFlags, sockopt};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use upper::{End, Upper};

/// Something that the engine is still to be told.
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
        why: CloseWhy,
    },
    Sifted {
        socket: SocketId,
        dropped: u64,
    },
}

/// Spare buffers for what waits to be written.
const SPARE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Open,
    /// The engine has done with it; what waits is still sent.
    Draining {
        /// The peer has ended its side.
        peer_ended: bool,
    },
}

struct Connection {
    id: ConnectionId,
    fd: OwnedFd,
    /// Set on accepted ones: whom it counts against.
    source: Option<IpAddr>,
    state: State,
    out: VecDeque<u8>,
    dirty: bool,
    watched: EventFlags,
    generation: u32,
    timer: Option<TimerKey>,
    shut: bool,
    /// `None`: plain TCP.
    upper: Option<Box<Upper>>,
}

struct Listener {
    id: SocketId,
    fd: OwnedFd,
    local: SocketAddr,
    transport: Transport,
    /// The address as it was asked for: settings are found by it.
    asked: SocketAddr,
}

enum Timer {
    Connection { index: u32, generation: u32 },
    Listener(u32),
}

/// What a read gave.
pub(crate) enum ReadOutcome {
    Data(ConnectionId, usize),
    /// So many bytes went into the layers of a connection; what came out is in the inbox.
    Layered(ConnectionId, usize),
    /// Nothing more at present, or the connection is gone.
    Done,
}

pub(crate) struct Streams {
    connections: Slab<Connection>,
    by_id: IdMap<ConnectionId, u32>,
    listeners: Slab<Listener>,
    listeners_by_id: IdMap<SocketId, u32>,
    per_source: BoundedMap<IpAddr, usize>,
    timers: Wheel<Timer>,
    dirty: Vec<u32>,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) security: Security,
    pub(crate) inbox: Inbox,
    /// Events.
    pub(crate) notes: Vec<Note>,
    /// Second in which refusals were last told, and how many.
    told: (u64, u32),
    shared: Shared,
    spare: Vec<VecDeque<u8>>,
    ending: Option<End>,
    next_accepted: u64,
    generation: u32,
    /// A descriptor in reserve: with it a connection can be taken and closed where there is no other left.
    reserve: Option<OwnedFd>,
}

impl Streams {
    pub(crate) fn new(config: &DriverConfig, mut entropy: Entropy) -> io::Result<Streams> {
        let key = HashKey::new(&mut entropy);
        Ok(Streams {
            connections: Slab::new(),
            by_id: IdMap::default(),
            listeners: Slab::new(),
            listeners_by_id: IdMap::default(),
            per_source: BoundedMap::new(config.connections, key),
            timers: Wheel::new(),
            dirty: Vec::with_capacity(64),
            pending: VecDeque::with_capacity(64),
            security: Security::default(),
            inbox: Inbox::default(),
            notes: Vec::new(),
            told: (0, 0),
            shared: Shared::new(entropy),
            spare: Vec::new(),
            ending: None,
            next_accepted: ConnectionId::ACCEPTED,
            generation: 0,
            reserve: Some(reserve()?),
        })
    }

    /// Gives connections that are accepted from now on numbers of this worker's.
    pub(crate) fn belong_to(&mut self, worker: u8) {
        self.next_accepted = ConnectionId::ACCEPTED | ConnectionId::of_worker(worker);
    }

    /// Connections that exist, those that are being closed included.
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
        asked: SocketAddr,
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
            && self.security.server_of(asked, websocket).is_none()
        {
            return Err(io::Error::other("there is no certificate for it"));
        }
        let fd = socket::listener(asked, config)?;
        let local = socket::local_address(fd.as_fd())?;
        let entry = self.listeners.vacant_entry();
        let index = entry.key() as u32;
        plane.watch(fd.as_fd(), Token::Listener(index), EventFlags::IN)?;
        entry.insert(Listener {
            id,
            fd,
            local,
            transport,
            asked,
        });
        self.listeners_by_id.insert(id, index);
        Ok(local)
    }

    /// Closes a listener; false where there is none of that number.
    pub(crate) fn shut(&mut self, plane: &Plane, id: SocketId) -> bool {
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
        (secure, websocket): (Option<Secure<'_>>, bool),
        config: &DriverConfig,
        now: Time,
    ) {
        if self.by_id.contains_key(&id) {
            plane.shared.strays.add(1);
            debug_assert!(false, "connection number {} is in use", id.0);
            return;
        }
        let refused = Pending::Closed {
            connection: id,
            why: CloseWhy::Refused,
        };
        if self.connections.len() >= config.connections {
            self.pending.push_back(refused);
            return;
        }
        let upper = match self.client(remote, secure, websocket, config) {
            Ok(upper) => upper,
            Err(why) => {
                let name = secure.map_or("", |secure| secure.name);
                self.refused(plane, remote, None, name, why, now);
                self.pending.push_back(Pending::Closed {
                    connection: id,
                    why: CloseWhy::Untrusted,
                });
                return;
            }
        };
        let opened = socket::connect(local, remote, config).and_then(|(fd, stands)| {
            self.add(plane, id, fd, None, stands, upper)
                .map(|index| (index, stands))
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
        stands: bool,
        upper: Option<Box<Upper>>,
    ) -> io::Result<u32> {
        self.generation = (self.generation + 1) & GENERATION_MASK;
        let generation = self.generation;
        let entry = self.connections.vacant_entry();
        let index = entry.key() as u32;
        let (state, watched) = if stands {
            (State::Open, EventFlags::IN)
        } else {
            (State::Connecting, EventFlags::OUT)
        };
        plane.watch(fd.as_fd(), Token::Stream { index, generation }, watched)?;
        entry.insert(Connection {
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
            upper,
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
                .schedule(at, Timer::Connection { index, generation }),
        );
    }

    /// TCP stands: the engine is told, or TLS begins.
    fn connected(&mut self, plane: &Plane, index: u32, config: &DriverConfig, now: Time) {
        if self
            .connections
            .get(index as usize)
            .is_some_and(|connection| connection.upper.is_some())
        {
            plane.shared.connected.add(1);
            self.connections[index as usize].state = State::Open;
            self.set_timer(index, now + config.handshake_timeout);
            self.layers(plane, index, &mut []);
            self.mark(index);
            return;
        }
        self.stands(plane, index);
    }

    /// A plain connection stands.
    fn stands(&mut self, plane: &Plane, index: u32) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        let Ok(local) = socket::local_address(connection.fd.as_fd()) else {
            self.lose(plane, index, CloseWhy::Refused);
            return;
        };
        if let Some(key) = connection.timer.take() {
            self.timers.cancel(key);
        }
        plane.shared.connected.add(1);
        connection.state = State::Open;
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

    /// Takes what waits at a listener, a bounded number per turn.
    pub(crate) fn accept(&mut self, plane: &Plane, index: u32, config: &DriverConfig, now: Time) {
        for _ in 0..64 {
            let Some(listener) = self.listeners.get(index as usize) else {
                return;
            };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match net::acceptfrom_with(&listener.fd, flags) {
                Ok((fd, remote)) => {
                    let remote = remote.and_then(|address| SocketAddr::try_from(address).ok());
                    let taken = remote
                        .is_some_and(|remote| self.admit(plane, index, fd, remote, config, now));
                    if !taken {
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
                // The connection died before it was taken, or the network has an error for it: the next may be well.
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
        let Some(listener) = self.listeners.get(listener as usize) else {
            return false;
        };
        let (socket, listening) = (listener.id, listener.local);
        let source = remote.ip();
        let held = self.per_source.get(&source).copied().unwrap_or(0);
        if self.connections.len() >= config.connections
            || held >= config.connections_per_source
            || socket::stream_options(fd.as_fd(), remote, config).is_err()
        {
            return false;
        }
        let local = socket::local_address(fd.as_fd()).unwrap_or(listening);
        let upper = match self.server(listener, remote, config) {
            Ok(upper) => upper,
            Err(why) => {
                self.refused(plane, remote, Some(listening), "", why, now);
                return false;
            }
        };
        let layered = upper.is_some();
        let connection = ConnectionId(self.next_accepted);
        let Ok(index) = self.add(plane, connection, fd, Some(source), true, upper) else {
            return false;
        };
        if layered {
            self.set_timer(index, now + config.handshake_timeout);
        }
        self.next_accepted = (self.next_accepted + 1) | ConnectionId::ACCEPTED;
        // Room is certain: there are never more sources than connections.
        let _ = self.per_source.insert(source, held + 1);
        plane.shared.accepted.add(1);
        self.pending.push_back(Pending::Accepted {
            connection,
            socket,
            local,
            remote,
        });
        true
    }

    /// Out of descriptors: takes one connection with the reserve and closes it, so that its peer learns at once.
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

    /// Leaves a listener alone for a moment, so that it does not wake us in vain.
    fn pause(&mut self, plane: &Plane, index: u32, now: Time) {
        if let Some(listener) = self.listeners.get(index as usize) {
            plane.unwatch(listener.fd.as_fd());
            self.timers
                .schedule(now + Duration::from_millis(100), Timer::Listener(index));
        }
    }

    /// Gives bytes to a connection; too many for a slow peer end it.
    pub(crate) fn send(
        &mut self,
        plane: &Plane,
        id: ConnectionId,
        bytes: &[u8],
        config: &DriverConfig,
    ) {
        let Some(&index) = self.by_id.get(&id) else {
            plane.shared.strays.add(1);
            plane.shared.drop_one(DropReason::SendFailed);
            return;
        };
        let waits = |streams: &Streams| {
            streams.connections.get(index as usize).map(|connection| {
                let upper = connection.upper.as_ref();
                connection.out.len() + upper.map_or(0, |upper| upper.layer.waiting())
            })
        };
        if waits(self).is_some_and(|waits| waits + bytes.len() > config.stream_buffer) {
            // The kernel may have room meanwhile: what waits is tried before the peer is called slow.
            self.write(plane, index);
        }
        if waits(self).is_some_and(|waits| waits + bytes.len() > config.stream_buffer) {
            plane.shared.drop_one(DropReason::StreamBackpressure);
            self.lose(plane, index, CloseWhy::Backpressure);
            return;
        }
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        match connection.upper.as_deref_mut() {
            Some(upper) => {
                if !upper.layer.send(bytes, &mut self.shared) {
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

    /// The engine closes a connection; what it gave before is still sent.
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
            why: CloseWhy::Engine,
        });
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        if connection.state == State::Connecting {
            self.remove(plane, index);
            return;
        }
        connection.state = State::Draining { peer_ended: false };
        if let Some(upper) = connection.upper.as_deref_mut() {
            upper.layer.close(&mut connection.out, &mut self.shared);
        }
        self.set_timer(index, now + config.linger);
        self.mark(index);
    }

    /// Takes a connection from the engine and from the world at once.
    fn lose(&mut self, plane: &Plane, index: u32, why: CloseWhy) {
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
        if let Some(source) = connection.source
            && let Some(held) = self.per_source.get_mut(&source)
        {
            *held -= 1;
            if *held == 0 {
                self.per_source.remove(&source);
            }
        }
        drop(connection);
        if self.reserve.is_none() {
            self.reserve = reserve().ok();
        }
    }

    /// Whether the token's connection is still the one that the event was about.
    fn is_current(&self, index: u32, generation: u32) -> bool {
        self.connections
            .get(index as usize)
            .is_some_and(|connection| connection.generation == generation)
    }

    /// A connection can be written, or has an error, or its opening is decided.
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
        if self.connections[index as usize].state != State::Connecting {
            self.write(plane, index);
            return;
        }
        let outcome = sockopt::socket_error(&self.connections[index as usize].fd);
        match outcome {
            Ok(Ok(())) => self.connected(plane, index, config, now),
            _ => self.lose(plane, index, CloseWhy::Refused),
        }
    }

    /// Reads once into `buffer`.
    pub(crate) fn read(
        &mut self,
        plane: &Plane,
        index: u32,
        generation: u32,
        buffer: &mut [u8],
        config: &DriverConfig,
        now: Time,
    ) -> ReadOutcome {
        if !self.is_current(index, generation) {
            return ReadOutcome::Done;
        }
        let connection = &self.connections[index as usize];
        if connection.state == State::Connecting {
            return ReadOutcome::Done;
        }
        let got = net::recv(&connection.fd, &mut *buffer, RecvFlags::DONTWAIT);
        let draining = matches!(connection.state, State::Draining { .. });
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
                if connection.upper.is_none() {
                    return ReadOutcome::Data(id, n);
                }
                self.layers(plane, index, buffer.get_mut(..n).unwrap_or_default());
                ReadOutcome::Layered(id, n)
            }
            Err(Errno::AGAIN | Errno::INTR) => ReadOutcome::Done,
            Err(_) => {
                self.unfinished(plane, index, "the peer reset the connection", now);
                self.lose(plane, index, CloseWhy::Error);
                ReadOutcome::Done
            }
        }
    }

    /// The peer ended its side: the engine is told, and what it gave before is still sent (the peer may be half closed).
    fn peer_ended(&mut self, plane: &Plane, index: u32, config: &DriverConfig, now: Time) {
        let connection = &mut self.connections[index as usize];
        let id = connection.id;
        let told = self.by_id.remove(&id).is_none();
        connection.state = State::Draining { peer_ended: true };
        if let Some(upper) = connection.upper.as_deref_mut() {
            upper.layer.close(&mut connection.out, &mut self.shared);
        }
        if !told {
            self.pending.push_back(Pending::Closed {
                connection: id,
                why: CloseWhy::Peer,
            });
            self.set_timer(index, now + config.linger);
        }
        self.write(plane, index);
    }

    /// Writes what waits on the connections that were given something.
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
        // Writing can mark nothing, so the list is empty and its memory can be used again.
        self.dirty = dirty;
    }

    fn write(&mut self, plane: &Plane, index: u32) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        if connection.state == State::Connecting {
            return;
        }
        if let Some(upper) = connection.upper.as_deref_mut() {
            if connection.out.capacity() == 0 && upper.layer.waiting() > 0 {
                connection.out = self.spare.pop().unwrap_or_default();
            }
            if upper
                .layer
                .flush(&mut connection.out, &mut self.shared)
                .is_err()
            {
                plane.shared.drop_one(DropReason::TlsBroken);
                self.lose(plane, index, CloseWhy::Error);
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
                    plane.shared.stream_bytes_out.add(n);
                    connection.out.drain(..n);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.lose(plane, index, CloseWhy::Error);
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
            State::Draining { peer_ended: true } if empty => {
                self.remove(plane, index);
                return;
            }
            State::Draining { peer_ended: true } => false,
            State::Draining { peer_ended: false } if empty && !connection.shut => {
                // Our end is told; the peer's end, or the timer, takes the connection away. Closed at once, unread bytes
                // of the peer would turn into a reset that destroys what was just sent.
                connection.shut = true;
                if net::shutdown(&connection.fd, Shutdown::Write).is_err() {
                    self.remove(plane, index);
                    return;
                }
                true
            }
            _ => true,
        };
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, reads);
        wanted.set(EventFlags::OUT, !empty);
        if wanted == connection.watched {
            return;
        }
        connection.watched = wanted;
        let token = Token::Stream {
            index,
            generation: connection.generation,
        };
        if plane.rewatch(connection.fd.as_fd(), token, wanted).is_err() {
            self.lose(plane, index, CloseWhy::Error);
        }
    }

    /// Does what is due by time.
    pub(crate) fn timeout(&mut self, plane: &Plane, config: &DriverConfig, now: Time) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Connection { index, generation } if self.is_current(index, generation) => {
                    self.connections[index as usize].timer = None;
                    self.too_late(plane, index, config, now);
                }
                Timer::Connection { .. } => {}
                Timer::Listener(index) => {
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
