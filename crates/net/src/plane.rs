//! The UDP half that control and media threads share: sockets by number, an epoll set, batches in and out.

mod express;
mod shortcuts;

use crate::batch::{BATCH, Receiver, Sender, Sent};
use crate::clock::nanos;
use crate::config::DriverConfig;
use crate::counters::Shared;
use crate::icmp::{self, Undelivered};
use crate::pacing::{Held, Pacer};
use crate::range::{Range, Unopened};
use crate::raw::RawSender;
use crate::train::{Trains, Waiting};
use engine::{DropReason, Forward, Packet, Sieve, SocketId, Time, Verdict};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::time::{ClockId, Timespec};
use slab::Slab;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

const NONE: u32 = u32::MAX;
const ENTRIES: usize = 1_024;
const ARENA: usize = 1 << 20;
const EVENTS: usize = 512;

/// Multiplies: the keys are our own engines' numbers, not the network's.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// What an epoll event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Wake,
    /// The socket of all media ports of a family.
    Range(u32),
    /// An AF_XDP socket.
    Express(u32),
    /// The set of the sockets that are never held up has something.
    Prompt,
    Udp(u32),
    Listener(u32),
    Stream {
        index: u32,
        generation: u32,
    },
}

/// Generations in a token are this wide.
pub(crate) const GENERATION_MASK: u32 = 0x00ff_ffff;

impl Token {
    pub(crate) fn data(self) -> EventData {
        let pack = |kind: u64, generation: u32, index: u32| {
            EventData::new_u64(kind << 56 | u64::from(generation) << 32 | u64::from(index))
        };
        match self {
            Token::Wake => pack(0, 0, 0),
            Token::Prompt => pack(4, 0, 0),
            Token::Range(number) => pack(5, 0, number),
            Token::Express(number) => pack(6, 0, number),
            Token::Udp(index) => pack(1, 0, index),
            Token::Listener(index) => pack(2, 0, index),
            Token::Stream { index, generation } => pack(3, generation & GENERATION_MASK, index),
        }
    }

    fn of(data: EventData) -> Token {
        let value = data.u64();
        let index = value as u32;
        match value >> 56 {
            1 => Token::Udp(index),
            2 => Token::Listener(index),
            3 => Token::Stream {
                index,
                generation: (value >> 32) as u32 & GENERATION_MASK,
            },
            4 => Token::Prompt,
            5 => Token::Range(index),
            6 => Token::Express(index),
            _ => Token::Wake,
        }
    }
}

/// How a socket is had.
enum Way {
    /// From the kernel.
    Own(Arc<OwnedFd>),
    /// As a port of the range: the number of its address, and all of it.
    Range(u8, SocketAddr),
}

/// Entries that wait to be sent together, the first and the last.
#[derive(Clone, Copy)]
struct Chain {
    first: u32,
    last: u32,
}

impl Chain {
    const EMPTY: Chain = Chain {
        first: NONE,
        last: NONE,
    };
}

/// What has entries to send: a socket of its own, or an address of the range.
#[derive(Clone, Copy)]
enum Touched {
    Socket(u32),
    Address(u8),
}

struct UdpSocket {
    id: SocketId,
    way: Way,
    /// Where it is bound; only of media, where the kernel relays or AF_XDP carries it.
    local: Option<SocketAddr>,
    media: bool,
    chain: Chain,
    /// The turn in which media was last taken from it.
    seen: u64,
    /// While a sieve stands before it: what it had dropped when that was last told.
    sifted: Option<u64>,
}

#[derive(Clone, Copy)]
enum Payload {
    Arena(usize),
    Received(*const u8),
}

struct Entry {
    payload: Payload,
    length: usize,
    destination: SocketAddr,
    /// Index of the socket that it leaves from.
    socket: u32,
    order: u32,
    /// Whether pacing has let it pass already.
    paced: bool,
    next: u32,
}

/// A received packet that is sent on.
struct Onward {
    socket: SocketId,
    /// Index of that socket, where it is open.
    index: Option<u32>,
    start: *const u8,
    length: usize,
    destination: SocketAddr,
}

/// Tells of a signalling datagram what it must stay in order with, see [`crate::DriverConfig::order`].
pub(crate) type OrderOf = fn(&[u8]) -> u32;

pub(crate) struct Plane {
    epoll: OwnedFd,
    /// Where signalling may be held up for a while: the media sockets, which may not, in a set inside the other.
    prompt: Option<OwnedFd>,
    sockets: Slab<UdpSocket>,
    by_id: IdMap<SocketId, u32>,
    entries: Vec<Entry>,
    arena: Box<[u8]>,
    arena_used: usize,
    touched: Vec<Touched>,
    sender: Sender,
    /// One socket for all media ports, where that is so.
    range: Option<Range>,
    raw: RawSender,
    /// What waits to be sent from addresses of the range.
    chains: Vec<Chain>,
    order_of: Option<OrderOf>,
    trains: Trains,
    /// Bounds what leaves at once to one peer, where that is wanted, by the time of the last turn.
    pacer: Option<Pacer>,
    now: Time,
    events: Vec<Event>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) punted: Vec<usize>,
    /// From which socket each datagram of a receiver came that was filled from several; none where no port of it is open.
    origins: Vec<Option<SocketId>>,
    /// Indices of the sockets of datagrams that came to the range, while they are looked up.
    found: Vec<Option<u32>>,
    /// What is sent on, while it is gathered.
    onward: Vec<Onward>,
    /// Held signalling, while it is queued again.
    due: Vec<Held>,
    /// Turns so far in which media was gathered.
    turn: u64,
    timestamps: bool,
    /// Where the kernel relays.
    shortcuts: Option<shortcuts::Shortcuts>,
    /// Where AF_XDP carries media.
    express: Option<express::Express>,
}

// SAFETY: the raw pointers in `entries` and `onward` exist only between `forward_gathered` and the flush at its end, within one call.
unsafe impl Send for Plane {}

impl Plane {
    /// `prompt`: media sockets can be waited for without the others, see [`Plane::wait_prompt`].
    pub(crate) fn new(timestamps: bool, prompt: bool) -> io::Result<Plane> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let prompt = match prompt {
            true => {
                let inner = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                epoll::add(&epoll, &inner, Token::Prompt.data(), EventFlags::IN)?;
                Some(inner)
            }
            false => None,
        };
        Ok(Plane {
            epoll,
            prompt,
            sockets: Slab::new(),
            by_id: IdMap::default(),
            entries: Vec::with_capacity(ENTRIES),
            arena: vec![0; ARENA].into_boxed_slice(),
            arena_used: 0,
            touched: Vec::with_capacity(ENTRIES),
            sender: Sender::new(),
            range: None,
            raw: RawSender::new(),
            chains: Vec::new(),
            order_of: None,
            trains: Trains::new(),
            pacer: None,
            now: Time::ZERO,
            events: Vec::with_capacity(EVENTS),
            shared: Arc::new(Shared::new()),
            punted: Vec::with_capacity(BATCH),
            origins: Vec::with_capacity(BATCH),
            found: Vec::with_capacity(BATCH),
            onward: Vec::with_capacity(BATCH),
            due: Vec::new(),
            turn: 1,
            timestamps,
            shortcuts: None,
            express: None,
        })
    }

    /// Lets equal signalling datagrams leave as trains.
    pub(crate) fn couple(&mut self, order_of: Option<OrderOf>) {
        self.order_of = order_of;
    }

    /// Bounds the bytes of signalling that leave at once to one peer.
    pub(crate) fn pace(&mut self, burst: usize) {
        self.pacer = (burst > 0).then(|| Pacer::new(burst));
    }

    /// Puts a file under watch.
    pub(crate) fn watch(
        &self,
        fd: BorrowedFd<'_>,
        token: Token,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, token.data(), flags)?)
    }

    pub(crate) fn rewatch(
        &self,
        fd: BorrowedFd<'_>,
        token: Token,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, token.data(), flags)?)
    }

    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        // Fails only where the file is not under watch, which is what is wanted.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Takes in a bound socket; `read`: it is this plane that reads it.
    pub(crate) fn add_socket(
        &mut self,
        id: SocketId,
        fd: Arc<OwnedFd>,
        media: bool,
        read: bool,
    ) -> io::Result<()> {
        if self.by_id.contains_key(&id) {
            return Err(in_use(id));
        }
        let entry = self.sockets.vacant_entry();
        let index = entry.key() as u32;
        if read {
            let set = self.prompt.as_ref().filter(|_| media);
            let set = set.unwrap_or(&self.epoll);
            epoll::add(set, &fd, Token::Udp(index).data(), EventFlags::IN)?;
        }
        let own = media && (self.shortcuts.is_some() || self.express.is_some());
        let local = own
            .then(|| crate::socket::local_address(fd.as_fd()).ok())
            .flatten();
        entry.insert(UdpSocket {
            id,
            local,
            way: Way::Own(fd),
            media,
            chain: Chain::EMPTY,
            seen: 0,
            sifted: None,
        });
        self.by_id.insert(id, index);
        self.express_opened(local, index);
        Ok(())
    }

    /// Closes a socket after what waits to be sent on it; `None` where there is no such socket, else whether it was media.
    pub(crate) fn remove_socket(&mut self, id: SocketId) -> Option<bool> {
        if self.by_id.contains_key(&id) {
            self.flush();
            self.release(true);
        }
        let index = self.by_id.remove(&id)?;
        self.flush();
        if let Some(shortcuts) = &mut self.shortcuts {
            shortcuts.abandon(id);
        }
        let socket = self.sockets.try_remove(index as usize)?;
        self.express_closed(socket.local);
        match socket.way {
            Way::Own(fd) => {
                let set = self.prompt.as_ref().filter(|_| socket.media);
                // As in `unwatch`.
                let _ = epoll::delete(set.unwrap_or(&self.epoll), fd.as_fd());
            }
            Way::Range(address, local) => {
                if let Some(range) = &mut self.range {
                    let flooded = range.close(address, local.port());
                    self.shared
                        .dropped(DropReason::MediaFlood, flooded as usize);
                }
            }
        }
        Some(socket.media)
    }

    /// Number and kind (media or not) of the socket at `index`.
    pub(crate) fn socket(&self, index: u32) -> Option<(SocketId, bool)> {
        self.sockets.get(index as usize).map(|s| (s.id, s.media))
    }

    /// Drops told by the kernel for all sockets that are open.
    pub(crate) fn kernel_drops(&self) -> io::Result<u64> {
        let mut sum = 0;
        for (_, socket) in &self.sockets {
            if let Way::Own(fd) = &socket.way {
                sum += crate::socket::socket_drops(fd.as_fd())?;
            }
        }
        if let Some(range) = &self.range {
            for (_, fd) in range.sockets() {
                sum += crate::socket::socket_drops(fd.as_fd())?;
            }
            for fd in range.sinks() {
                sum += crate::socket::socket_drops(fd.as_fd())?;
            }
        }
        sum += self.express_drops()?;
        Ok(sum)
    }

    /// Puts a sieve before a socket, or takes it away; tells what was dropped there since that was last asked, and the error
    /// where the kernel does not do it.
    pub(crate) fn sieve(&mut self, id: SocketId, sieve: Option<&Sieve>) -> (u64, io::Result<()>) {
        let socket = self
            .by_id
            .get(&id)
            .and_then(|&index| self.sockets.get_mut(index as usize));
        let Some(socket) = socket else {
            return (0, Ok(()));
        };
        let Way::Own(fd) = &socket.way else {
            return (0, Ok(()));
        };
        let fd = fd.as_fd();
        if sieve.is_none() && socket.sifted.is_none() {
            return (0, Ok(()));
        }
        let done = crate::sieve::attach(fd, sieve);
        let drops = crate::socket::socket_drops(fd).unwrap_or_default();
        let before = socket.sifted.unwrap_or(drops);
        socket.sifted = (sieve.is_some() && done.is_ok()).then_some(drops);
        // The kernel counts in 32 bits.
        (u64::from((drops as u32).wrapping_sub(before as u32)), done)
    }

    /// Receives a batch on the socket at `index`.
    pub(crate) fn receive(&self, index: u32, receiver: &mut Receiver, most: usize) -> usize {
        let Some(UdpSocket {
            way: Way::Own(fd), ..
        }) = self.sockets.get(index as usize)
        else {
            return 0;
        };
        self.shared.receive_calls.add(1);
        // An error here is one that the network reported about an earlier send (ICMP), told once; datagrams that wait stay
        // and epoll tells of them again.
        receiver.receive(fd.as_fd(), most).unwrap_or(0)
    }

    /// The oldest thing that the network said about a datagram of the socket at `index`.
    pub(crate) fn undelivered(
        &self,
        index: u32,
        bytes: &mut [u8],
    ) -> Option<(SocketId, Undelivered)> {
        let socket = self.sockets.get(index as usize)?;
        let Way::Own(fd) = &socket.way else {
            return None;
        };
        // An error here is one of the socket's that has now been told.
        let told = icmp::next(fd.as_fd(), bytes).ok().flatten()?;
        Some((socket.id, told))
    }

    /// The wall clock, where datagrams carry stamps of it.
    pub(crate) fn wall(&self) -> Option<u64> {
        self.timestamps.then(wall)
    }

    /// Sends a copy of `bytes` at the next flush.
    pub(crate) fn queue(&mut self, id: SocketId, destination: SocketAddr, bytes: &[u8]) {
        self.queue_as(id, destination, bytes, false);
    }

    /// Tells the time, by which held signalling may leave.
    pub(crate) fn set_time(&mut self, now: Time) {
        self.now = now;
        if self.pacer.as_ref().is_some_and(Pacer::is_holding) {
            // What is gathered came later than what is held: it goes behind it.
            self.flush();
            self.release(false);
        }
    }

    /// The time at which held signalling may leave; none where none is held.
    pub(crate) fn next_release(&self) -> Option<Time> {
        self.pacer.as_ref().and_then(Pacer::next_release)
    }

    /// Queues held signalling that may leave now, or all of it.
    fn release(&mut self, all: bool) {
        let Some(pacer) = &mut self.pacer else {
            return;
        };
        let mut due = std::mem::take(&mut self.due);
        pacer.release(self.now, all, |held| due.push(held));
        for held in due.drain(..) {
            self.queue_as(held.socket, held.destination, &held.bytes, true);
        }
        self.due = due;
    }

    /// Takes the datagrams of a chain out that may not leave yet. Gives the first one that is left.
    fn hold(&mut self, first: u32, socket: SocketId) -> u32 {
        let Some(pacer) = &mut self.pacer else {
            return first;
        };
        let (mut kept, mut last) = (NONE, NONE);
        let mut at = first;
        while at != NONE {
            let entry = &self.entries[at as usize];
            let (this, next) = (at, entry.next);
            at = next;
            if let Payload::Arena(start) = entry.payload
                && !entry.paced
                && !pacer.admit(entry.destination, entry.length, self.now)
            {
                let bytes = self.arena.get(start..start + entry.length);
                pacer.hold(Held {
                    socket,
                    destination: entry.destination,
                    bytes: bytes.unwrap_or_default().into(),
                });
                self.shared.held.add(1);
                continue;
            }
            match last {
                NONE => kept = this,
                _ => self.entries[last as usize].next = this,
            }
            last = this;
            self.entries[this as usize].next = NONE;
        }
        kept
    }

    fn queue_as(&mut self, id: SocketId, destination: SocketAddr, bytes: &[u8], paced: bool) {
        let Some(&index) = self.by_id.get(&id) else {
            self.shared.strays.add(1);
            self.shared.drop_one(DropReason::SendFailed);
            return;
        };
        if self.entries.len() == ENTRIES || self.arena.len() - self.arena_used < bytes.len() {
            self.flush();
        }
        let start = self.arena_used;
        let Some(place) = self.arena.get_mut(start..start + bytes.len()) else {
            self.shared.drop_one(DropReason::SendFailed);
            return;
        };
        place.copy_from_slice(bytes);
        self.arena_used += bytes.len();
        let order = match self.order_of {
            Some(order_of) if !self.sockets[index as usize].media => order_of(bytes),
            _ => 0,
        };
        self.link(
            index,
            Payload::Arena(start),
            bytes.len(),
            destination,
            order,
        );
        // The last entry is this one, unless its address does not suit the socket.
        if let Some(entry) = self.entries.last_mut().filter(|_| paced) {
            entry.paced = true;
        }
    }

    fn link(
        &mut self,
        index: u32,
        payload: Payload,
        length: usize,
        destination: SocketAddr,
        order: u32,
    ) {
        let number = self.entries.len() as u32;
        self.entries.push(Entry {
            payload,
            length,
            destination,
            socket: index,
            order,
            paced: false,
            next: NONE,
        });
        let socket = &mut self.sockets[index as usize];
        let (chain, touched) = match socket.way {
            Way::Own(_) => (&mut socket.chain, Touched::Socket(index)),
            Way::Range(address, local) => {
                if local.is_ipv6() != destination.is_ipv6() {
                    self.entries.pop();
                    self.shared.drop_one(DropReason::SendFailed);
                    return;
                }
                let chain = &mut self.chains[usize::from(address)];
                (chain, Touched::Address(address))
            }
        };
        if chain.first == NONE {
            chain.first = number;
            self.touched.push(touched);
        } else {
            self.entries[chain.last as usize].next = number;
        }
        chain.last = number;
    }

    /// Sends all that is queued: per socket in order, sockets in the order of their first datagram.
    pub(crate) fn flush(&mut self) {
        self.flush_express();
        for i in 0..self.touched.len() {
            let index = match self.touched[i] {
                Touched::Socket(index) => index as usize,
                Touched::Address(address) => {
                    self.flush_range(address);
                    continue;
                }
            };
            let Some(socket) = self.sockets.get_mut(index) else {
                continue;
            };
            let mut at = std::mem::replace(&mut socket.chain, Chain::EMPTY).first;
            let couple = self.order_of.is_some() && !socket.media && self.sender.takes_trains();
            let Way::Own(fd) = &socket.way else {
                continue;
            };
            let fd = fd.clone();
            if !socket.media {
                let id = socket.id;
                at = self.hold(at, id);
            }
            while at != NONE {
                at = match couple {
                    true => self.push_trains(at),
                    false => self.push_singly(at),
                };
                self.send(fd.as_fd());
            }
        }
        debug_assert!(self.sender.is_empty());
        self.touched.clear();
        self.entries.clear();
        self.arena_used = 0;
    }

    /// Sends what waits at an address of the range.
    fn flush_range(&mut self, address: u8) {
        let (Some(range), Some(chain)) = (&self.range, self.chains.get_mut(usize::from(address)))
        else {
            return;
        };
        let mut at = std::mem::replace(chain, Chain::EMPTY).first;
        let Some((fd, marks)) = range.sender(address) else {
            return;
        };
        while at != NONE {
            while at != NONE && !self.raw.is_full() {
                let entry = &self.entries[at as usize];
                let start = start_of(&self.arena, entry);
                at = entry.next;
                let Some(UdpSocket {
                    way: Way::Range(_, local),
                    ..
                }) = self.sockets.get(entry.socket as usize)
                else {
                    continue;
                };
                // SAFETY: as in `push_singly`.
                unsafe {
                    self.raw
                        .push(*local, entry.destination, marks, start, entry.length);
                };
            }
            let (count, bytes) = (self.raw.datagrams(), self.raw.bytes());
            let sent = self.raw.send(fd, marks, |source| range.bound(source));
            count_sent(&self.shared, sent, count, bytes);
        }
    }

    /// Hands a batch that begins with entry `at` to the sender, in order; gives the entry behind it.
    fn push_singly(&mut self, mut at: u32) -> u32 {
        while at != NONE && !self.sender.is_full() {
            let entry = &self.entries[at as usize];
            let start = start_of(&self.arena, entry);
            // SAFETY: the arena is written only by `queue`, after a flush has taken its entries; a received payload
            // stays in its buffer until `forward_gathered`, which put it here, has flushed.
            unsafe { self.sender.push(entry.destination, start, entry.length) };
            at = entry.next;
        }
        at
    }

    /// The same, with equal datagrams coupled.
    fn push_trains(&mut self, mut at: u32) -> u32 {
        let mut batch = [0u32; BATCH];
        let mut count = 0;
        self.trains.clear();
        while at != NONE && count < BATCH {
            let entry = &self.entries[at as usize];
            let waiting = Waiting {
                destination: entry.destination,
                length: entry.length,
                order: entry.order,
            };
            self.trains.add(count, waiting);
            batch[count] = at;
            count += 1;
            at = entry.next;
        }
        for train in self.trains.iter() {
            for (wagon, index) in train.enumerate() {
                let entry = &self.entries[batch[index] as usize];
                let start = start_of(&self.arena, entry);
                // SAFETY: as in `push_singly`.
                unsafe {
                    match wagon {
                        0 => self.sender.push(entry.destination, start, entry.length),
                        _ => self.sender.couple(start, entry.length),
                    }
                }
            }
        }
        at
    }

    /// Sends what was handed to the sender.
    fn send(&mut self, fd: BorrowedFd<'_>) {
        let bytes = self.sender.bytes();
        let count = self.sender.datagrams();
        let sent = self.sender.send(fd);
        count_sent(&self.shared, sent, count, bytes);
    }

    /// Takes one socket for all media ports into use.
    ///
    /// # Errors
    /// As [`Range::start`].
    pub(crate) fn share_ports(&mut self, config: &DriverConfig) -> io::Result<()> {
        let range = Range::start(config)?;
        let set = self.prompt.as_ref().unwrap_or(&self.epoll);
        for (number, fd) in range.sockets() {
            epoll::add(set, fd, Token::Range(number).data(), EventFlags::IN)?;
        }
        self.range = Some(range);
        Ok(())
    }

    /// Whether media ports share a socket.
    pub(crate) fn shares_ports(&self) -> bool {
        self.range.is_some()
    }

    /// Opens a media port in the range; false where it has to have a socket of its own.
    pub(crate) fn open_shared(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        config: &DriverConfig,
    ) -> io::Result<bool> {
        let Some(range) = &mut self.range else {
            return Ok(false);
        };
        if self.by_id.contains_key(&id) {
            return Err(in_use(id));
        }
        let entry = self.sockets.vacant_entry();
        let index = entry.key() as u32;
        let address = match range.open(local, index, config) {
            Ok(address) => address,
            Err(Unopened::NotHere) => return Ok(false),
            Err(Unopened::Taken(error)) => return Err(error),
        };
        entry.insert(UdpSocket {
            id,
            way: Way::Range(address, local),
            local: Some(local),
            media: true,
            chain: Chain::EMPTY,
            seen: 0,
            sifted: None,
        });
        if self.chains.len() <= usize::from(address) {
            self.chains.resize(usize::from(address) + 1, Chain::EMPTY);
        }
        self.by_id.insert(id, index);
        self.express_opened(Some(local), index);
        Ok(true)
    }

    /// Adds to `receiver` what waits on the socket of all ports. Whether there may be more.
    pub(crate) fn gather_range(&mut self, number: u32, receiver: &mut Receiver) -> bool {
        let Some(range) = &mut self.range else {
            return false;
        };
        let Some(fd) = range.socket(number) else {
            return false;
        };
        self.shared.receive_calls.add(1);
        let (from, room) = (receiver.filled(), receiver.room());
        // As in `receive`.
        let n = receiver.add(fd, room).unwrap_or(0);
        // In two rounds: memory that one lookup waits for is waited for by all at once.
        self.found.clear();
        for i in from..from + n {
            let local = receiver.destination(i);
            self.found.push(local.and_then(|local| range.find(local)));
        }
        for index in &self.found {
            let socket = index.and_then(|index| self.sockets.get(index as usize));
            self.origins.push(socket.map(|socket| socket.id));
        }
        if n < room {
            range.empty(number);
        }
        n == room
    }

    /// A turn begins in which media is gathered.
    pub(crate) fn begin_gathering(&mut self) {
        self.turn += 1;
    }

    /// Adds to `receiver` what waits on the media socket at `index`: one datagram, as a stream has it, or where the socket had
    /// something in the turn before already, as many as there is room for. Whether there may be more.
    pub(crate) fn gather(&mut self, index: u32, receiver: &mut Receiver) -> bool {
        let Some(socket) = self.sockets.get_mut(index as usize) else {
            return false;
        };
        let most = match socket.seen + 1 >= self.turn {
            true => receiver.room(),
            false => 1,
        };
        socket.seen = self.turn;
        self.shared.receive_calls.add(1);
        // As in `receive`.
        let Way::Own(fd) = &socket.way else {
            return false;
        };
        let n = receiver.add(fd.as_fd(), most).unwrap_or(0);
        self.origins.resize(receiver.filled(), Some(socket.id));
        n == most && most > 1
    }

    /// What was gathered has been dealt with.
    pub(crate) fn end_gathering(&mut self, receiver: &mut Receiver) {
        receiver.clear();
        self.origins.clear();
    }

    /// Where the datagram `i` of the receiver that was gathered came in.
    pub(crate) fn origin(&self, i: usize) -> Option<SocketId> {
        self.origins.get(i).copied().flatten()
    }

    /// Runs gathered packets through the forwarder and sends what it forwards straight from the buffers. The packets for
    /// control are left in `self.punted`; what was gathered stays in the receiver until it is cleared.
    pub(crate) fn forward_gathered<F: Forward>(
        &mut self,
        receiver: &mut Receiver,
        forwarder: &mut F,
        now: Time,
    ) {
        self.punted.clear();
        let n = receiver.filled();
        if self.entries.len() + n > ENTRIES {
            self.flush();
        }
        let wall = self.wall();
        self.shared.datagrams_in.add(n);
        let mut taken = 0;
        forwarder.expect(&self.origins);
        self.onward.clear();
        for i in 0..n {
            let Some(received) = receiver.get(i) else {
                continue;
            };
            let Some(socket) = self.origins.get(i).copied().flatten() else {
                self.shared.drop_one(DropReason::MediaNoFlow);
                continue;
            };
            taken += received.length;
            self.came_up(socket, forwarder);
            let Some(received) = receiver.get(i) else {
                continue;
            };
            if received.truncated {
                self.shared.drop_one(DropReason::MediaTooLarge);
                continue;
            }
            let mut packet = Packet {
                socket,
                source: received.source,
                arrived: arrived(now, wall, received.stamp),
                buffer: received.buffer,
                length: received.length,
            };
            match forwarder.forward(&mut packet, now) {
                Verdict::Forward {
                    socket,
                    destination,
                } => self.onward.push(Onward {
                    socket,
                    index: None,
                    start: packet.buffer.as_ptr(),
                    length: packet.bytes().len(),
                    destination,
                }),
                Verdict::Consumed => {}
                Verdict::Punt(_) => self.punted.push(i),
                Verdict::Drop(reason) => self.shared.drop_one(reason),
            }
        }
        // Rounds again, as in `gather_range`.
        let mut onward = core::mem::take(&mut self.onward);
        for packet in &mut onward {
            packet.index = self.by_id.get(&packet.socket).copied();
        }
        for packet in &onward {
            let Some(index) = packet.index else {
                self.shared.strays.add(1);
                self.shared.drop_one(DropReason::SendFailed);
                continue;
            };
            let payload = Payload::Received(packet.start);
            self.link(index, payload, packet.length, packet.destination, 0);
        }
        onward.clear();
        self.onward = onward;
        self.shared.bytes_in.add(taken);
        self.flush();
        self.packets_of(forwarder);
    }

    /// Does what the forwarder wants of its shortcuts, and queues the packets of its own making.
    pub(crate) fn packets_of<F: Forward>(&mut self, forwarder: &mut F) {
        self.shortcuts_of(forwarder);
        while let Some((socket, destination, bytes)) = forwarder.next_packet() {
            self.queue(socket, destination, bytes);
        }
    }

    /// Waits for something to happen, at most `limit`; gives how many events there are.
    pub(crate) fn wait(&mut self, limit: Duration) -> io::Result<usize> {
        self.events.clear();
        self.wait_on(false, limit)?;
        let prompt = self
            .events
            .iter()
            .position(|event| Token::of(event.data) == Token::Prompt);
        if let Some(at) = prompt {
            self.events.swap_remove(at);
            self.wait_on(true, Duration::ZERO)?;
        }
        Ok(self.events.len())
    }

    /// Waits for media alone, at most `limit`: signalling is left where it is.
    pub(crate) fn wait_prompt(&mut self, limit: Duration) -> io::Result<usize> {
        self.events.clear();
        self.wait_on(true, limit)?;
        Ok(self.events.len())
    }

    /// Adds the events of one of the sets.
    fn wait_on(&mut self, prompt: bool, limit: Duration) -> io::Result<()> {
        let set = self.prompt.as_ref().filter(|_| prompt);
        let set = set.unwrap_or(&self.epoll);
        self.shared.waits.add(1);
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let events = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(set, events, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The event `i` of the last wait.
    pub(crate) fn event(&self, i: usize) -> Option<(Token, EventFlags)> {
        let event = self.events.get(i)?;
        // The structure is packed: copy the fields, never refer to them.
        let (data, flags) = (event.data, event.flags);
        Some((Token::of(data), flags))
    }
}

impl Drop for Plane {
    /// Held signalling is still sent: it may be the last BYE of a call.
    fn drop(&mut self) {
        self.flush();
        self.release(true);
        self.flush();
    }
}

fn in_use(id: SocketId) -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!("socket number {} is in use", id.0),
    )
}

fn count_sent(shared: &Shared, sent: Sent, count: usize, bytes: usize) {
    shared.send_calls.add(sent.calls);
    shared.datagrams_out.add(sent.sent);
    shared.coupled.add(sent.coupled);
    shared.dropped(DropReason::SendFailed, sent.failed);
    // The bytes of those that failed are not known one by one; the mean stands for them.
    let bytes = match sent.sent == count {
        true => bytes,
        false => bytes * sent.sent / count.max(1),
    };
    shared.bytes_out.add(bytes);
}

fn start_of(arena: &[u8], entry: &Entry) -> *const u8 {
    match entry.payload {
        Payload::Arena(offset) => arena[offset..].as_ptr(),
        Payload::Received(pointer) => pointer,
    }
}

/// The wall clock, nanoseconds.
pub(crate) fn wall() -> u64 {
    nanos(ClockId::Realtime)
}

/// When the kernel took a datagram in, in engine time. Measured back from now, so that steps of the wall clock do no harm.
pub(crate) fn arrived(now: Time, wall: Option<u64>, stamp: Option<u64>) -> Time {
    match (wall, stamp) {
        (Some(wall), Some(stamp)) => Time(now.0.saturating_sub(wall.saturating_sub(stamp))),
        _ => now,
    }
}
