//! Control sockets and connections (UDP, TCP, WebSocket), and the cache of replies.

use anchor::sockets::SocketWork;
use config::{ListenAddress, NgServerSpec};
use core::time::Duration;
use engine::{BoundedMap, ConnectionId, HashKey, SocketId, SocketKind, Time};
use std::collections::VecDeque;
use std::net::SocketAddr;
use wire::ng::NgStreamFramer;

/// Control connections at a time.
const MAX_CONNECTIONS: usize = 1_000;
/// Time for which a reply is cached for a repeated command.
const REPLY_LIFETIME: Duration = Duration::from_secs(30);
/// Cached replies at most.
const MAX_REPLIES: usize = 16_384;
/// Octets of cached replies at most.
const MAX_REPLY_BYTES: usize = 32 << 20;
/// Interval of attempts to open a listener, as at the border.
pub(super) const OPEN_INTERVAL: Duration = Duration::from_secs(40);

/// Path by which a command arrived and its reply is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReplyPath {
    Datagram(SocketId, SocketAddr),
    Stream(ConnectionId),
}

/// Destination of a pending reply.
#[derive(Clone, Debug)]
pub(super) struct Requester {
    pub(super) path: ReplyPath,
    pub(super) cookie: Vec<u8>,
}

/// A socket for commands.
#[derive(Debug)]
pub(super) struct NgListener {
    pub(super) socket: SocketId,
    pub(super) listen: ListenAddress,
    /// Whether its socket could not be opened.
    failed: bool,
}

impl NgListener {
    fn opening(&self) -> SocketWork {
        SocketWork::Open {
            socket: self.socket,
            kind: SocketKind::signalling(self.listen.transport),
            local: self.listen.address,
        }
    }
}

/// A control connection.
#[derive(Debug)]
pub(super) struct ControlConnection {
    /// Splits a TCP stream into messages; a WebSocket has message boundaries.
    pub(super) framer: Option<NgStreamFramer>,
}

/// Listeners and connections.
#[derive(Debug)]
pub(super) struct ControlSockets {
    pub(super) listeners: Vec<NgListener>,
    next_socket: u32,
    /// Whether a timer for another attempt to open listeners runs.
    retrying: bool,
    pub(super) connections: BoundedMap<ConnectionId, ControlConnection>,
}

impl ControlSockets {
    pub(super) fn new(key: HashKey) -> ControlSockets {
        ControlSockets {
            listeners: Vec::new(),
            next_socket: 1,
            retrying: false,
            connections: BoundedMap::new(MAX_CONNECTIONS, key),
        }
    }

    /// Opens the listeners of the configuration that are not open, also those that could not be opened before, and
    /// closes those that it does not have.
    pub(super) fn open(&mut self, node: &NgServerSpec, work: &mut VecDeque<SocketWork>) {
        self.listeners.retain(|listener| {
            let is_kept = node.listen.contains(&listener.listen);
            if !is_kept && !listener.failed {
                work.push_back(SocketWork::Shut(listener.socket));
            }
            is_kept
        });
        self.reopen(work);
        for listen in &node.listen {
            if self
                .listeners
                .iter()
                .any(|listener| listener.listen == *listen)
            {
                continue;
            }
            let socket = SocketId(self.next_socket);
            self.next_socket += 1;
            let listener = NgListener {
                socket,
                listen: *listen,
                failed: false,
            };
            work.push_back(listener.opening());
            self.listeners.push(listener);
        }
    }

    /// Opens the listeners that could not be opened before.
    fn reopen(&mut self, work: &mut VecDeque<SocketWork>) {
        for listener in self.listeners.iter_mut().filter(|listener| listener.failed) {
            listener.failed = false;
            work.push_back(listener.opening());
        }
    }

    /// The timer for another attempt has run out.
    pub(super) fn retry(&mut self, work: &mut VecDeque<SocketWork>) {
        self.retrying = false;
        self.reopen(work);
    }

    /// A listener could not be opened: the address may be added later, or in use by a program that ends. Returns its
    /// address, and whether a timer for another attempt has to be started.
    pub(super) fn open_failed(&mut self, socket: SocketId) -> Option<(SocketAddr, bool)> {
        let listener = self.listener(socket)?;
        listener.failed = true;
        let address = listener.listen.address;
        let waits = core::mem::replace(&mut self.retrying, true);
        Some((address, !waits))
    }

    pub(super) fn listener(&mut self, socket: SocketId) -> Option<&mut NgListener> {
        self.listeners
            .iter_mut()
            .find(|listener| listener.socket == socket)
    }
}

/// State of a command that may be a repetition.
pub(super) enum CommandState {
    /// The command is new.
    New,
    /// It is being processed.
    Pending,
    /// It was answered with this reply.
    Answered(Vec<u8>),
}

/// Replies by cookie, so that a repeated command is not carried out again.
#[derive(Debug)]
pub(super) struct ReplyCache {
    /// `None`: no reply yet.
    replies: BoundedMap<(ReplyPath, Vec<u8>), Option<Vec<u8>>>,
    order: VecDeque<(Time, ReplyPath, Vec<u8>)>,
    bytes: usize,
}

impl ReplyCache {
    pub(super) fn new(key: HashKey) -> ReplyCache {
        ReplyCache {
            replies: BoundedMap::new(MAX_REPLIES, key),
            order: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The state of a command; a new one is recorded.
    pub(super) fn check(&mut self, path: ReplyPath, cookie: &[u8], now: Time) -> CommandState {
        while self
            .order
            .front()
            .is_some_and(|(at, ..)| *at + REPLY_LIFETIME <= now)
            || self.order.len() >= MAX_REPLIES
        {
            self.remove_oldest();
        }
        let key = (path, cookie.to_vec());
        match self.replies.get(&key) {
            Some(Some(reply)) => return CommandState::Answered(reply.clone()),
            Some(None) => return CommandState::Pending,
            None => {}
        }
        self.order.push_back((now, path, cookie.to_vec()));
        // There is space: the order has at least as many entries.
        let _ = self.replies.insert(key, None);
        CommandState::New
    }

    /// Stores the reply to a command.
    pub(super) fn store(&mut self, requester: &Requester, reply: &[u8]) {
        let key = (requester.path, requester.cookie.clone());
        if let Some(slot) = self.replies.get_mut(&key) {
            self.bytes += reply.len();
            *slot = Some(reply.to_vec());
        }
        while self.bytes > MAX_REPLY_BYTES {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        let Some((_, path, cookie)) = self.order.pop_front() else {
            self.bytes = 0;
            return;
        };
        if let Some(Some(reply)) = self.replies.remove(&(path, cookie)) {
            self.bytes -= reply.len();
        }
    }

    /// Number of cached replies.
    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }
}
