//! UDP sockets by number, an epoll set, and batched receiving and sending: used by both the control and the media
//! thread.

mod af_xdp;
mod bypass;
mod offload;
mod token;
mod tunnel;

use crate::batch::{BATCH, Receiver, RefusedDatagram, SendSummary, Sender};
use crate::clock::nanos;
use crate::config::DriverConfig;
use crate::counters::Shared;
use crate::gso::{GsoPlan, PendingDatagram};
use crate::icmp::{self, Undelivered};
use crate::pacing::{PacedDatagram, Pacer};
use crate::raw::RawSender;
use crate::shared_port::{OpenPortError, SharedPorts};
use engine::{
    DropReason, EventKind, Forward, MediaPacket, PacketVerdict, SocketFilter, SocketId, Time,
};
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::time::{ClockId, Timespec};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
pub(crate) use token::{GENERATION_MASK, Token};

const NONE: u32 = u32::MAX;
const MAX_ENTRIES: usize = 1_024;
const ARENA_BYTES: usize = 1 << 20;
const MAX_EVENTS: usize = 512;
/// Media addresses whose lack of a shared-port socket is reported.
const MAX_UNSERVED: usize = 256;
/// Time after which GSO is tried again when devices have refused it.
const GSO_RETRY: Duration = Duration::from_secs(60);
/// Refused datagrams that are kept until they are reported; further ones are counted only.
const MAX_REFUSED_SENDS: usize = 1_024;

/// Multiplicative hash: the keys are numbers of our own engines, not data from the network.
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

/// The kind of a socket.
enum PortBacking {
    /// A socket of its own.
    Own(Arc<OwnedFd>),
    /// A port of the shared-port socket: the number of its address, and the full address.
    Shared(u8, SocketAddr),
}

/// A linked list of entries queued for sending: the first and the last.
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

/// A queue with entries to send: a socket of its own, or an address of the shared ports.
#[derive(Clone, Copy)]
enum SendQueue {
    Socket(u32),
    Address(u8),
}

struct UdpSocket {
    id: SocketId,
    backing: PortBacking,
    /// Local address; set only for media with the kernel relay, AF_XDP or a tunnel path.
    local: Option<SocketAddr>,
    media: bool,
    /// Received datagrams begin with an IPv4 header: a raw socket.
    has_ipv4_header: bool,
    chain: Chain,
    /// The last turn in which media was received from it.
    last_turn: u64,
    /// While a socket filter is attached: the drop count at the last report.
    filter_drops: Option<u64>,
}

#[derive(Clone, Copy)]
enum Payload {
    Arena(usize),
    Received(*const u8),
}

struct SendEntry {
    payload: Payload,
    length: usize,
    destination: SocketAddr,
    /// Index of the sending socket.
    socket: u32,
    order: u32,
    /// Whether it was held by pacing and released.
    paced: bool,
    next: u32,
}

/// A received packet that is forwarded.
struct ForwardedPacket {
    socket: SocketId,
    /// Index of that socket, if it is open.
    index: Option<u32>,
    start: *const u8,
    length: usize,
    destination: SocketAddr,
}

/// Returns the order number of a signalling datagram, see [`crate::DriverConfig::gso_order`].
pub(crate) type OrderOf = fn(&[u8]) -> u32;

pub(crate) struct Plane {
    epoll: OwnedFd,
    /// An inner epoll set with the media sockets, which are not delayed with signalling and are also read between
    /// stream events.
    prompt: Option<OwnedFd>,
    sockets: Slab<UdpSocket>,
    by_id: IdMap<SocketId, u32>,
    entries: Vec<SendEntry>,
    arena: Box<[u8]>,
    arena_used: usize,
    pending_queues: Vec<SendQueue>,
    sender: Sender,
    /// Whether refused signalling is collected in `refused_sends`.
    reports_refused: bool,
    /// Signalling datagrams that the kernel refused to send, with their sockets.
    pub(crate) refused_sends: VecDeque<(SocketId, RefusedDatagram)>,
    /// The shared-port sockets, if used.
    shared_ports: Option<SharedPorts>,
    raw: RawSender,
    /// Entries queued for the shared-port addresses.
    chains: Vec<Chain>,
    order_of: Option<OrderOf>,
    gso_plan: GsoPlan,
    /// When GSO is tried again, if it is refused.
    gso_retry: Option<Time>,
    /// Pacing of signalling, if configured; `now` is its clock, updated once per turn.
    pacer: Option<Pacer>,
    now: Time,
    events: Vec<Event>,
    /// Events of the inner epoll set.
    media_events: Vec<Event>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) punted: Vec<usize>,
    /// For each datagram of a receiver that was filled from several sockets, its socket; `None` if its port is not
    /// open.
    origins: Vec<Option<SocketId>>,
    /// Media addresses without a shared-port socket that were reported.
    unserved: Vec<IpAddr>,
    /// Events for the log.
    pub(crate) log_events: Vec<EventKind>,
    /// Socket indices of datagrams of the shared-port socket, during lookup.
    found: Vec<Option<u32>>,
    /// Forwarded packets, while a batch is processed.
    forwarded: Vec<ForwardedPacket>,
    /// Released signalling datagrams, before they are queued again.
    released: Vec<PacedDatagram>,
    /// Number of turns that received media.
    turn: u64,
    timestamps: bool,
    /// Flows in the kernel relay, if used.
    offload: Option<offload::KernelOffload>,
    /// AF_XDP sockets for media, if used.
    af_xdp: Option<af_xdp::AfXdpPlane>,
    /// The tunnel path, if used.
    tunnel: Option<tunnel::TunnelPlane>,
}

// SAFETY: the raw pointers in `entries` and `forwarded` exist only within one call of `forward_batch`, until its
// flush.
unsafe impl Send for Plane {}

impl Plane {
    /// `prompt`: media sockets can be waited for separately, see [`Plane::wait_prompt`] and [`Plane::poll_media`].
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
            entries: Vec::with_capacity(MAX_ENTRIES),
            arena: vec![0; ARENA_BYTES].into_boxed_slice(),
            arena_used: 0,
            pending_queues: Vec::with_capacity(MAX_ENTRIES),
            sender: Sender::new(),
            reports_refused: false,
            refused_sends: VecDeque::new(),
            shared_ports: None,
            raw: RawSender::new(),
            chains: Vec::new(),
            order_of: None,
            gso_plan: GsoPlan::new(),
            gso_retry: None,
            pacer: None,
            now: Time::ZERO,
            events: Vec::with_capacity(MAX_EVENTS),
            media_events: Vec::with_capacity(MAX_EVENTS),
            shared: Arc::new(Shared::new()),
            punted: Vec::with_capacity(BATCH),
            unserved: Vec::new(),
            log_events: Vec::new(),
            origins: Vec::with_capacity(BATCH),
            found: Vec::with_capacity(BATCH),
            forwarded: Vec::with_capacity(BATCH),
            released: Vec::new(),
            turn: 1,
            timestamps,
            offload: None,
            af_xdp: None,
            tunnel: None,
        })
    }

    /// Enables GSO bursts of signalling datagrams.
    pub(crate) fn set_gso_order(&mut self, order_of: Option<OrderOf>) {
        self.order_of = order_of;
    }

    /// Bounds the signalling bytes that are sent at once to one peer.
    pub(crate) fn set_pacing(&mut self, burst: usize) {
        self.pacer = (burst > 0).then(|| Pacer::new(burst));
    }

    /// Collects signalling datagrams that the kernel refuses to send.
    pub(crate) fn report_refused_sends(&mut self, reports: bool) {
        self.reports_refused = reports;
    }

    pub(crate) fn has_refused_sends(&self) -> bool {
        !self.refused_sends.is_empty()
    }

    /// Adds a file descriptor to the epoll set.
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
        // Fails only if the descriptor is not in the set.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Adds a bound socket; `read`: this plane reads it.
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
        let bypass = self.has_bypass();
        let entry = self.sockets.vacant_entry();
        let index = entry.key() as u32;
        if read {
            let set = self.prompt.as_ref().filter(|_| media);
            let set = set.unwrap_or(&self.epoll);
            epoll::add(set, &fd, Token::Udp(index).data(), EventFlags::IN)?;
        }
        let own = media && (self.offload.is_some() || bypass);
        let local = own
            .then(|| crate::socket::local_address(fd.as_fd()).ok())
            .flatten();
        entry.insert(UdpSocket {
            id,
            local,
            backing: PortBacking::Own(fd),
            media,
            has_ipv4_header: false,
            chain: Chain::EMPTY,
            last_turn: 0,
            filter_drops: None,
        });
        self.by_id.insert(id, index);
        self.open_bypass_port(local, index);
        Ok(())
    }

    /// Notes that a socket is a raw one of IPv4.
    pub(crate) fn mark_raw_ipv4(&mut self, id: SocketId) {
        let index = self.by_id.get(&id).copied();
        if let Some(socket) = index.and_then(|index| self.sockets.get_mut(index as usize)) {
            socket.has_ipv4_header = true;
        }
    }

    /// Closes a socket after sending its queued datagrams; `None` if there is no such socket, else whether it was a
    /// media socket.
    pub(crate) fn remove_socket(&mut self, id: SocketId) -> Option<bool> {
        let index = *self.by_id.get(&id)?;
        self.send_all_of(id, index);
        self.by_id.remove(&id);
        if let Some(offload) = &mut self.offload {
            offload.close_with_socket(id);
        }
        let socket = self.sockets.try_remove(index as usize)?;
        self.close_bypass_port(socket.local);
        match socket.backing {
            PortBacking::Own(fd) => {
                let set = self.prompt.as_ref().filter(|_| socket.media);
                // As in `unwatch`.
                let _ = epoll::delete(set.unwrap_or(&self.epoll), fd.as_fd());
            }
            PortBacking::Shared(address, local) => {
                if let Some(shared_ports) = &mut self.shared_ports {
                    let flooded = shared_ports.close(address, local.port());
                    self.shared
                        .dropped(DropReason::MediaFlood, flooded as usize);
                }
            }
        }
        Some(socket.media)
    }

    /// Sends the queued and held datagrams of a socket that is about to be closed. Those that pacing holds for other
    /// sockets stay held, and a media socket without queued datagrams splits no batch.
    fn send_all_of(&mut self, id: SocketId, index: u32) {
        let Some(socket) = self.sockets.get(index as usize) else {
            return;
        };
        let chain = match socket.backing {
            PortBacking::Own(_) => Some(&socket.chain),
            PortBacking::Shared(address, _) => self.chains.get(usize::from(address)),
        };
        let (media, queued) = (socket.media, chain.is_some_and(|chain| chain.first != NONE));
        if queued {
            self.flush();
        }
        // Media is never held.
        let Some(pacer) = self.pacer.as_mut().filter(|_| !media) else {
            return;
        };
        let mut released = std::mem::take(&mut self.released);
        pacer.release_of(id, |held| released.push(held));
        for held in released.drain(..) {
            self.queue_as(held.socket, held.destination, &held.bytes, true);
        }
        self.released = released;
        self.flush();
    }

    /// Number and kind (media or not) of the socket at `index`.
    pub(crate) fn socket(&self, index: u32) -> Option<(SocketId, bool)> {
        self.sockets.get(index as usize).map(|s| (s.id, s.media))
    }

    /// Sum of the kernel's drops at all open sockets.
    pub(crate) fn kernel_drops(&self) -> io::Result<u64> {
        let mut sum = 0;
        for (_, socket) in &self.sockets {
            if let PortBacking::Own(fd) = &socket.backing {
                sum += crate::socket::socket_drops(fd.as_fd())?;
            }
        }
        if let Some(shared_ports) = &self.shared_ports {
            for (_, fd) in shared_ports.sockets() {
                sum += crate::socket::socket_drops(fd.as_fd())?;
            }
            for fd in shared_ports.sinks() {
                sum += crate::socket::socket_drops(fd.as_fd())?;
            }
        }
        sum += self.af_xdp_drops()?;
        Ok(sum)
    }

    /// Attaches a socket filter to a socket, or detaches it; returns the datagrams that it has dropped since the last
    /// call, and the error if the kernel refuses.
    pub(crate) fn set_socket_filter(
        &mut self,
        id: SocketId,
        filter: Option<&SocketFilter>,
    ) -> (u64, io::Result<()>) {
        let socket = self
            .by_id
            .get(&id)
            .and_then(|&index| self.sockets.get_mut(index as usize));
        let Some(socket) = socket else {
            return (0, Ok(()));
        };
        let PortBacking::Own(fd) = &socket.backing else {
            return (0, Ok(()));
        };
        let fd = fd.as_fd();
        if filter.is_none() && socket.filter_drops.is_none() {
            return (0, Ok(()));
        }
        let done = crate::socket_filter::attach(fd, filter);
        let drops = crate::socket::socket_drops(fd).unwrap_or_default();
        let before = socket.filter_drops.unwrap_or(drops);
        socket.filter_drops = (filter.is_some() && done.is_ok()).then_some(drops);
        // The kernel's counter has 32 bits.
        (u64::from((drops as u32).wrapping_sub(before as u32)), done)
    }

    /// Receives a batch on the socket at `index`.
    pub(crate) fn receive(&self, index: u32, receiver: &mut Receiver, most: usize) -> usize {
        let Some(UdpSocket {
            backing: PortBacking::Own(fd),
            has_ipv4_header,
            ..
        }) = self.sockets.get(index as usize)
        else {
            return 0;
        };
        self.shared.receive_calls.add(1);
        // An error here is a pending ICMP error of an earlier send, which is returned once; queued datagrams stay,
        // and epoll reports them again.
        let received = receiver.receive(fd.as_fd(), most).unwrap_or(0);
        if *has_ipv4_header {
            receiver.strip_ipv4_headers();
        }
        received
    }

    /// The oldest delivery error of the socket at `index`.
    pub(crate) fn undelivered(
        &self,
        index: u32,
        bytes: &mut [u8],
    ) -> Option<(SocketId, Undelivered)> {
        let socket = self.sockets.get(index as usize)?;
        let PortBacking::Own(fd) = &socket.backing else {
            return None;
        };
        // An error here is a pending error of the socket, which is now cleared.
        let report = icmp::next(fd.as_fd(), bytes).ok().flatten()?;
        Some((socket.id, report))
    }

    /// The wall clock, if datagrams have receive time stamps.
    pub(crate) fn wall(&self) -> Option<u64> {
        self.timestamps.then(wall)
    }

    /// Queues a copy of `bytes` for the next flush.
    pub(crate) fn queue(&mut self, id: SocketId, destination: SocketAddr, bytes: &[u8]) {
        self.queue_as(id, destination, bytes, false);
    }

    /// Sets the time for pacing and releases held signalling that is due.
    pub(crate) fn set_time(&mut self, now: Time) {
        self.now = now;
        self.gso_plan.expire_paths(now);
        if self.pacer.as_ref().is_some_and(Pacer::is_holding) {
            // Queued datagrams are newer than held ones and must be paced behind them.
            self.flush();
            self.release(false);
        }
    }

    /// Time of the next release of held signalling; `None` if none is held.
    pub(crate) fn next_release(&self) -> Option<Time> {
        self.pacer.as_ref().and_then(Pacer::next_release)
    }

    /// Queues held signalling that may be sent now, or all of it.
    fn release(&mut self, all: bool) {
        let Some(pacer) = &mut self.pacer else {
            return;
        };
        let mut released = std::mem::take(&mut self.released);
        pacer.release(self.now, all, |held| released.push(held));
        for held in released.drain(..) {
            self.queue_as(held.socket, held.destination, &held.bytes, true);
        }
        self.released = released;
    }

    /// Moves the datagrams of a chain that may not be sent yet to the pacer. Returns the new first entry.
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
                pacer.hold(PacedDatagram {
                    socket,
                    destination: entry.destination,
                    bytes: bytes.unwrap_or_default().into(),
                });
                self.shared.paced.add(1);
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
            self.shared.unknown_targets.add(1);
            self.shared.drop_one(DropReason::SendFailed);
            return;
        };
        if self.entries.len() == MAX_ENTRIES || self.arena.len() - self.arena_used < bytes.len() {
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
        self.enqueue(
            index,
            Payload::Arena(start),
            bytes.len(),
            destination,
            order,
        );
        // The last entry is this one, unless its address family does not match the socket.
        if let Some(entry) = self.entries.last_mut().filter(|_| paced) {
            entry.paced = true;
        }
    }

    fn enqueue(
        &mut self,
        index: u32,
        payload: Payload,
        length: usize,
        destination: SocketAddr,
        order: u32,
    ) {
        let number = self.entries.len() as u32;
        self.entries.push(SendEntry {
            payload,
            length,
            destination,
            socket: index,
            order,
            paced: false,
            next: NONE,
        });
        let socket = &mut self.sockets[index as usize];
        let (chain, queue) = match socket.backing {
            PortBacking::Own(_) => (&mut socket.chain, SendQueue::Socket(index)),
            PortBacking::Shared(address, local) => {
                if local.is_ipv6() != destination.is_ipv6() {
                    self.entries.pop();
                    self.shared.drop_one(DropReason::SendFailed);
                    return;
                }
                let chain = &mut self.chains[usize::from(address)];
                (chain, SendQueue::Address(address))
            }
        };
        if chain.first == NONE {
            chain.first = number;
            self.pending_queues.push(queue);
        } else {
            self.entries[chain.last as usize].next = number;
        }
        chain.last = number;
    }

    /// Sends all queued datagrams: in order per socket, sockets in the order of their first datagram.
    pub(crate) fn flush(&mut self) {
        self.flush_bypass();
        let gso = !self.pending_queues.is_empty() && self.may_use_gso();
        for i in 0..self.pending_queues.len() {
            let index = match self.pending_queues[i] {
                SendQueue::Socket(index) => index as usize,
                SendQueue::Address(address) => {
                    self.flush_shared_ports(address);
                    continue;
                }
            };
            let Some(socket) = self.sockets.get_mut(index) else {
                continue;
            };
            let mut at = std::mem::replace(&mut socket.chain, Chain::EMPTY).first;
            let use_gso = gso && !socket.media;
            let PortBacking::Own(fd) = &socket.backing else {
                continue;
            };
            let fd = fd.clone();
            let (id, media) = (socket.id, socket.media);
            if !media {
                at = self.hold(at, id);
            }
            self.sender.set_reports(self.reports_refused && !media);
            while at != NONE {
                at = match use_gso {
                    true => self.push_bursts(at),
                    false => self.push_singly(at),
                };
                self.send(fd.as_fd());
                for refused in self.sender.refused() {
                    if self.refused_sends.len() < MAX_REFUSED_SENDS {
                        self.refused_sends.push_back((id, refused));
                    }
                }
            }
        }
        debug_assert!(self.sender.is_empty());
        self.pending_queues.clear();
        self.entries.clear();
        self.arena_used = 0;
    }

    /// Whether bursts are planned. After refusals by a device it is tried again from time to time: routes change.
    fn may_use_gso(&mut self) -> bool {
        if self.order_of.is_none() {
            return false;
        }
        if self.sender.gso_available() {
            self.gso_retry = None;
            return true;
        }
        let due = *self.gso_retry.get_or_insert(self.now + GSO_RETRY);
        if self.now < due {
            return false;
        }
        self.gso_retry = Some(self.now + GSO_RETRY);
        self.sender.retry_gso();
        true
    }

    /// Sends the datagrams queued for an address of the shared ports.
    fn flush_shared_ports(&mut self, address: u8) {
        let (Some(shared_ports), Some(chain)) = (
            &self.shared_ports,
            self.chains.get_mut(usize::from(address)),
        ) else {
            return;
        };
        let mut at = std::mem::replace(chain, Chain::EMPTY).first;
        let Some((fd, marks)) = shared_ports.sender(address) else {
            return;
        };
        while at != NONE {
            while at != NONE && !self.raw.is_full() {
                let entry = &self.entries[at as usize];
                let start = start_of(&self.arena, entry);
                at = entry.next;
                let Some(UdpSocket {
                    backing: PortBacking::Shared(_, local),
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
            let sent = self
                .raw
                .send(fd, marks, |source| shared_ports.bound(source));
            count_sent(&self.shared, sent, count, bytes);
        }
    }

    /// Pushes a batch that begins with entry `at` to the sender, in order; returns the next entry.
    fn push_singly(&mut self, mut at: u32) -> u32 {
        while at != NONE && !self.sender.is_full() {
            let entry = &self.entries[at as usize];
            let start = start_of(&self.arena, entry);
            // SAFETY: the arena is written only by `queue`, after a flush has removed its entries; a received payload
            // stays in its buffer until the flush of `forward_batch`, which queued it.
            unsafe { self.sender.push(entry.destination, start, entry.length) };
            at = entry.next;
        }
        at
    }

    /// The same, with GSO bursts.
    fn push_bursts(&mut self, mut at: u32) -> u32 {
        let mut batch = [0u32; BATCH];
        let mut count = 0;
        self.gso_plan.clear();
        while at != NONE && count < BATCH {
            let entry = &self.entries[at as usize];
            let waiting = PendingDatagram {
                destination: entry.destination,
                length: entry.length,
                order: entry.order,
            };
            self.gso_plan.add(count, waiting);
            batch[count] = at;
            count += 1;
            at = entry.next;
        }
        for burst in self.gso_plan.iter() {
            for (segment, index) in burst.enumerate() {
                let entry = &self.entries[batch[index] as usize];
                let start = start_of(&self.arena, entry);
                // SAFETY: as in `push_singly`.
                unsafe {
                    match segment {
                        0 => self.sender.push(entry.destination, start, entry.length),
                        _ => self.sender.append_segment(start, entry.length),
                    }
                }
            }
        }
        at
    }

    /// Sends the datagrams of the sender.
    fn send(&mut self, fd: BorrowedFd<'_>) {
        let bytes = self.sender.bytes();
        let count = self.sender.datagrams();
        let sent = self.sender.send(fd);
        count_sent(&self.shared, sent, count, bytes);
        for (destination, length) in self.sender.too_long() {
            self.gso_plan
                .limit_segments(destination.ip(), length, self.now);
        }
    }

    /// Opens the shared-port sockets.
    ///
    /// # Errors
    /// As [`SharedPorts::start`].
    pub(crate) fn start_shared_ports(&mut self, config: &DriverConfig) -> io::Result<()> {
        let shared_ports = SharedPorts::start(config)?;
        let set = self.prompt.as_ref().unwrap_or(&self.epoll);
        for (number, fd) in shared_ports.sockets() {
            epoll::add(set, fd, Token::SharedPort(number).data(), EventFlags::IN)?;
        }
        self.shared_ports = Some(shared_ports);
        Ok(())
    }

    /// Whether media ports share a socket.
    pub(crate) fn has_shared_ports(&self) -> bool {
        self.shared_ports.is_some()
    }

    /// Opens a media port on the shared-port socket and returns its address; `None` if it needs a socket of its own.
    pub(crate) fn open_shared_port(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        config: &DriverConfig,
    ) -> io::Result<Option<SocketAddr>> {
        let Some(shared_ports) = &mut self.shared_ports else {
            return Ok(None);
        };
        if self.by_id.contains_key(&id) {
            return Err(in_use(id));
        }
        let entry = self.sockets.vacant_entry();
        let index = entry.key() as u32;
        let (address, local) = match shared_ports.open(local, index, config) {
            Ok(opened) => opened,
            Err(OpenPortError::Unavailable) => return Ok(None),
            Err(OpenPortError::Unserved(error)) => {
                self.report_unserved(local.ip(), &error);
                return Ok(None);
            }
            Err(OpenPortError::InUse(error)) => return Err(error),
        };
        entry.insert(UdpSocket {
            id,
            backing: PortBacking::Shared(address, local),
            local: Some(local),
            media: true,
            has_ipv4_header: false,
            chain: Chain::EMPTY,
            last_turn: 0,
            filter_drops: None,
        });
        if self.chains.len() <= usize::from(address) {
            self.chains.resize(usize::from(address) + 1, Chain::EMPTY);
        }
        self.by_id.insert(id, index);
        self.open_bypass_port(Some(local), index);
        Ok(Some(local))
    }

    /// Reports once that the ports of an address get one socket each.
    fn report_unserved(&mut self, address: IpAddr, error: &io::Error) {
        if !self.unserved.contains(&address) && self.unserved.len() < MAX_UNSERVED {
            self.unserved.push(address);
            self.log_events.push(EventKind::MediaPath {
                path: "socket_per_port".into(),
                reason: format!("{address}: {error}"),
            });
        }
    }

    /// Receives a batch from a shared-port socket into `receiver`. Returns whether more may be queued.
    pub(crate) fn receive_shared_port(&mut self, number: u32, receiver: &mut Receiver) -> bool {
        let Some(shared_ports) = &mut self.shared_ports else {
            return false;
        };
        let Some(fd) = shared_ports.socket(number) else {
            return false;
        };
        self.shared.receive_calls.add(1);
        let (from, room) = (receiver.filled(), receiver.room());
        // As in `receive`.
        let n = receiver.add(fd, room).unwrap_or(0);
        // Two separate loops: the cache misses of the lookups then overlap.
        self.found.clear();
        for i in from..from + n {
            let local = receiver.destination(i);
            self.found
                .push(local.and_then(|local| shared_ports.find(local)));
        }
        for index in &self.found {
            let socket = index.and_then(|index| self.sockets.get(index as usize));
            self.origins.push(socket.map(|socket| socket.id));
        }
        if n < room {
            shared_ports.mark_drained(number);
        }
        n == room
    }

    /// Begins a turn that receives media.
    pub(crate) fn begin_media_turn(&mut self) {
        self.turn += 1;
    }

    /// Receives from the media socket at `index` into `receiver`: one datagram, as usual for one stream, or a full
    /// batch if the socket was also ready in the last turn. Returns whether more may be queued.
    pub(crate) fn receive_batch(&mut self, index: u32, receiver: &mut Receiver) -> bool {
        let Some(socket) = self.sockets.get_mut(index as usize) else {
            return false;
        };
        let most = match socket.last_turn + 1 >= self.turn {
            true => receiver.room(),
            false => 1,
        };
        socket.last_turn = self.turn;
        self.shared.receive_calls.add(1);
        // As in `receive`.
        let PortBacking::Own(fd) = &socket.backing else {
            return false;
        };
        let n = receiver.add(fd.as_fd(), most).unwrap_or(0);
        self.origins.resize(receiver.filled(), Some(socket.id));
        n == most && most > 1
    }

    /// Discards the batch.
    pub(crate) fn clear_batch(&mut self, receiver: &mut Receiver) {
        receiver.clear();
        self.origins.clear();
    }

    /// Socket of the datagram `i` of the batch.
    pub(crate) fn origin(&self, i: usize) -> Option<SocketId> {
        self.origins.get(i).copied().flatten()
    }

    /// Passes the batch to the forwarder and sends the forwarded packets straight from the buffers. The packets for
    /// control are listed in `self.punted`; the batch stays in the receiver until it is cleared.
    pub(crate) fn forward_batch<F: Forward>(
        &mut self,
        receiver: &mut Receiver,
        forwarder: &mut F,
        now: Time,
    ) {
        self.punted.clear();
        let n = receiver.filled();
        if self.entries.len() + n > MAX_ENTRIES {
            self.flush();
        }
        let wall = self.wall();
        self.shared.datagrams_in.add(n);
        let mut bytes_in = 0;
        forwarder.prefetch(&self.origins);
        self.forwarded.clear();
        for i in 0..n {
            let Some(received) = receiver.get(i) else {
                continue;
            };
            let Some(socket) = self.origins.get(i).copied().flatten() else {
                self.shared.drop_one(DropReason::MediaNoFlow);
                continue;
            };
            bytes_in += received.length;
            self.close_offload(socket, forwarder);
            let Some(received) = receiver.get(i) else {
                continue;
            };
            if received.truncated {
                self.shared.drop_one(DropReason::MediaTooLarge);
                continue;
            }
            let mut packet = MediaPacket {
                socket,
                source: received.source,
                arrived: arrived(now, wall, received.stamp),
                buffer: received.buffer,
                length: received.length,
            };
            match forwarder.forward(&mut packet, now) {
                PacketVerdict::Forward {
                    socket,
                    destination,
                } => self.forwarded.push(ForwardedPacket {
                    socket,
                    index: None,
                    start: packet.buffer.as_ptr(),
                    length: packet.bytes().len(),
                    destination,
                }),
                PacketVerdict::Consumed => {}
                PacketVerdict::Punt(_) => self.punted.push(i),
                PacketVerdict::Drop(reason) => self.shared.drop_one(reason),
            }
        }
        // Two separate loops, as in `receive_shared_port`.
        let mut forwarded = core::mem::take(&mut self.forwarded);
        for packet in &mut forwarded {
            packet.index = self.by_id.get(&packet.socket).copied();
        }
        for packet in &forwarded {
            let Some(index) = packet.index else {
                self.shared.unknown_targets.add(1);
                self.shared.drop_one(DropReason::SendFailed);
                continue;
            };
            let payload = Payload::Received(packet.start);
            self.enqueue(index, payload, packet.length, packet.destination, 0);
        }
        forwarded.clear();
        self.forwarded = forwarded;
        self.shared.bytes_in.add(bytes_in);
        self.flush();
        self.drain_forwarder(forwarder);
    }

    /// Processes the forwarder's relay requests, and queues the packets that it generated.
    pub(crate) fn drain_forwarder<F: Forward>(&mut self, forwarder: &mut F) {
        self.process_relay_requests(forwarder);
        while let Some((socket, destination, bytes)) = forwarder.next_packet() {
            self.queue(socket, destination, bytes);
        }
    }

    /// Waits for events, at most `limit`; returns their number.
    pub(crate) fn wait(&mut self, limit: Duration) -> io::Result<usize> {
        self.media_events.clear();
        self.wait_on(false, limit)?;
        let prompt = self
            .events
            .iter()
            .position(|event| Token::of(event.data) == Token::Prompt);
        if let Some(at) = prompt {
            self.events.swap_remove(at);
            self.wait_on(true, Duration::ZERO)?;
        }
        Ok(self.media_events.len() + self.events.len())
    }

    /// Waits for media only, at most `limit`: signalling stays queued.
    pub(crate) fn wait_prompt(&mut self, limit: Duration) -> io::Result<usize> {
        self.events.clear();
        self.wait_on(true, limit)?;
        Ok(self.media_events.len())
    }

    /// Replaces the media events by those of now, without waiting; returns their number. The other events of the last
    /// wait have other indices afterwards.
    pub(crate) fn poll_media(&mut self) -> io::Result<usize> {
        self.wait_on(true, Duration::ZERO)?;
        Ok(self.media_events.len())
    }

    /// Reads the events of one epoll set. Each has a list of its own, so that ready streams leave room for media.
    fn wait_on(&mut self, prompt: bool, limit: Duration) -> io::Result<()> {
        let (set, list) = match &self.prompt {
            Some(inner) if prompt => (inner, &mut self.media_events),
            _ => (&self.epoll, &mut self.events),
        };
        list.clear();
        self.shared.waits.add(1);
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let events = rustix::buffer::spare_capacity(list);
        match epoll::wait(set, events, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The event `i` of the last wait, those of media first.
    pub(crate) fn event(&self, i: usize) -> Option<(Token, EventFlags)> {
        let event = match i.checked_sub(self.media_events.len()) {
            None => self.media_events.get(i)?,
            Some(i) => self.events.get(i)?,
        };
        // The structure is packed: its fields are copied, not referenced.
        let (data, flags) = (event.data, event.flags);
        Some((Token::of(data), flags))
    }
}

impl Drop for Plane {
    /// Sends held signalling: it may be the last BYE of a call.
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

fn count_sent(shared: &Shared, sent: SendSummary, count: usize, bytes: usize) {
    shared.send_calls.add(sent.calls);
    shared.datagrams_out.add(sent.sent);
    shared.gso_datagrams.add(sent.gso_datagrams);
    shared.dropped(DropReason::SendFailed, sent.failed);
    // The lengths of failed datagrams are not known; the mean length is used.
    let bytes = match sent.sent == count {
        true => bytes,
        false => bytes * sent.sent / count.max(1),
    };
    shared.bytes_out.add(bytes);
}

fn start_of(arena: &[u8], entry: &SendEntry) -> *const u8 {
    match entry.payload {
        Payload::Arena(offset) => arena[offset..].as_ptr(),
        Payload::Received(pointer) => pointer,
    }
}

/// The wall clock, nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    nanos(ClockId::Realtime)
}

/// Kernel receive time of a datagram, in engine time. Measured back from now, so that steps of the wall clock have no
/// effect.
pub(crate) fn arrived(now: Time, wall: Option<u64>, stamp: Option<u64>) -> Time {
    match (wall, stamp) {
        (Some(wall), Some(stamp)) => Time(now.0.saturating_sub(wall.saturating_sub(stamp))),
        _ => now,
    }
}
