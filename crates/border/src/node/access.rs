//! Who commands, and by which way: datagrams, streams, WebSockets.

use crate::border::sockets::SocketWork;
use crate::config::{ListenAddress, MediaNode};
use core::time::Duration;
use engine::{BoundedMap, ConnectionId, HashKey, SocketId, SocketKind, Time};
use std::collections::VecDeque;
use std::net::SocketAddr;
use wire::ng::StreamFramer;

/// Connections of commanders at a time.
const MAX_LINKS: usize = 1_000;
/// A reply is kept this long for a command that is sent again.
const KEPT: Duration = Duration::from_secs(30);
/// Replies kept at most.
const MAX_KEPT: usize = 16_384;
/// Octets of replies kept at most.
const MAX_KEPT_BYTES: usize = 32 << 20;

/// The way on which a command came, and on which its reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    Datagram(SocketId, SocketAddr),
    Stream(ConnectionId),
}

/// Whoever waits for a reply.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub(super) way: Way,
    pub(super) cookie: Vec<u8>,
}

/// A place where commands are taken in.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) socket: SocketId,
    pub(super) listen: ListenAddress,
    /// Where it is open.
    pub(super) open: Option<SocketAddr>,
}

/// A connection of a commander.
#[derive(Debug)]
pub(super) struct Link {
    /// Messages are cut out of a stream; a WebSocket gives whole ones.
    pub(super) framer: Option<StreamFramer>,
}

/// Doors and connections.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) doors: Vec<Door>,
    next_socket: u32,
    pub(super) links: BoundedMap<ConnectionId, Link>,
}

impl Access {
    pub(super) fn new(key: HashKey) -> Access {
        Access {
            doors: Vec::new(),
            next_socket: 1,
            links: BoundedMap::new(MAX_LINKS, key),
        }
    }

    /// Opens the doors of a configuration that are not open, and closes those that it has not.
    pub(super) fn open(&mut self, node: &MediaNode, work: &mut VecDeque<SocketWork>) {
        self.doors.retain(|door| {
            let stays = node.listen.contains(&door.listen);
            if !stays {
                work.push_back(SocketWork::Shut(door.socket));
            }
            stays
        });
        for listen in &node.listen {
            if self.doors.iter().any(|door| door.listen == *listen) {
                continue;
            }
            let socket = SocketId(self.next_socket);
            self.next_socket += 1;
            self.doors.push(Door {
                socket,
                listen: *listen,
                open: None,
            });
            work.push_back(SocketWork::Open {
                socket,
                kind: SocketKind::signalling(listen.transport),
                local: listen.address,
            });
        }
    }

    pub(super) fn door(&mut self, socket: SocketId) -> Option<&mut Door> {
        self.doors.iter_mut().find(|door| door.socket == socket)
    }
}

/// What became of a command that may have come before.
pub(super) enum Seen {
    /// It is new.
    New,
    /// It is being carried out.
    Pending,
    /// It was carried out, and answered so.
    Answered(Vec<u8>),
}

/// Replies by cookie, so that a command that is sent again is not carried out again.
#[derive(Debug)]
pub(super) struct Cookies {
    /// `None`: no reply yet.
    known: BoundedMap<(Way, Vec<u8>), Option<Vec<u8>>>,
    order: VecDeque<(Time, Way, Vec<u8>)>,
    bytes: usize,
}

impl Cookies {
    pub(super) fn new(key: HashKey) -> Cookies {
        Cookies {
            known: BoundedMap::new(MAX_KEPT, key),
            order: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Whether a command came before; if it did not, it has now.
    pub(super) fn meet(&mut self, way: Way, cookie: &[u8], now: Time) -> Seen {
        while self.order.front().is_some_and(|(at, ..)| *at + KEPT <= now)
            || self.order.len() >= MAX_KEPT
        {
            self.forget_oldest();
        }
        let key = (way, cookie.to_vec());
        match self.known.get(&key) {
            Some(Some(reply)) => return Seen::Answered(reply.clone()),
            Some(None) => return Seen::Pending,
            None => {}
        }
        self.order.push_back((now, way, cookie.to_vec()));
        // There is room: what is known is in the order.
        let _ = self.known.insert(key, None);
        Seen::New
    }

    /// A command was answered.
    pub(super) fn answered(&mut self, asker: &Asker, reply: &[u8]) {
        let key = (asker.way, asker.cookie.clone());
        if let Some(slot) = self.known.get_mut(&key) {
            self.bytes += reply.len();
            *slot = Some(reply.to_vec());
        }
        while self.bytes > MAX_KEPT_BYTES {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, way, cookie)) = self.order.pop_front() else {
            self.bytes = 0;
            return;
        };
        if let Some(Some(reply)) = self.known.remove(&(way, cookie)) {
            self.bytes -= reply.len();
        }
    }

    /// Replies that are kept.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}
