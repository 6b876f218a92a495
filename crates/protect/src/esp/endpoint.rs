//! An engine whose datagrams pass through ESP, between the engine and its driver.
//!
//! The engine's UDP sockets exist only inside of this layer: nothing of it opens a UDP socket for them, so that nothing
//! is sent or received in the clear. One outer socket carries ESP packets, in IP protocol 50 or in UDP (RFC 3948).

use super::endpoint_keys::{EndpointAssociations, EndpointKeys};
use super::packet::{Extensions, PayloadPlace};
use super::shortcut::{self, DIRECT, Negotiation, RTP_WITHOUT_UDP, VoiceReceiver, VoiceShortcut};
use super::{
    ArrivedEsp, EspFailure, InboundState, MAX_HEADROOM, MAX_TAILROOM, NegotiatedPair,
    OutboundState, PacketRoom, SaError,
};
use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use core::time::Duration;
use engine::{
    CloseReason, ConnectionId, Datagram, Deadline, DropReason, Drops, Engine, Event, Input, Output,
    SocketId, SocketKind, Time,
};
use std::collections::VecDeque;
use wire::esp::{NAT_KEEP_ALIVE, NatTraversalDatagram};
use wire::ip::{internet_checksum, protocol};
use wire::udp::UdpView;

/// Number of the outer socket; engines count theirs from zero.
const OUTER: SocketId = SocketId(u32::MAX);
/// A keep-alive for the NAT's binding follows after this time without a packet (RFC 3948 section 4).
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Messages of a key exchange that wait for their reader.
const MAX_MESSAGES: usize = 64;
/// First port that is given to sockets without a fixed one; RTP has even ports.
const FIRST_PORT: u16 = 20_000;
const UDP_HEADER: usize = UdpView::HEADER;

/// Carrier of ESP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspCarrier {
    /// IP protocol 50.
    Ip,
    /// UDP (RFC 3948).
    Udp,
}

impl EspCarrier {
    /// Its name: `ip` or `udp`.
    pub const fn name(self) -> &'static str {
        match self {
            EspCarrier::Ip => "ip",
            EspCarrier::Udp => "udp",
        }
    }
}

/// The parts of an endpoint. Associations in tunnel mode are used without their addresses, as the outer socket has
/// them.
#[derive(Debug)]
pub struct EspEndpointPlan {
    /// Carrier.
    pub carrier: EspCarrier,
    /// Local address of ESP packets; the port only counts in UDP.
    pub local: SocketAddr,
    /// Address of the peer; in UDP it follows authenticated packets that are newer than all before, as a NAT may change
    /// it, if there is replay protection. With negotiated keys it is that of the association that seals.
    pub peer: SocketAddr,
    /// Keys.
    pub keys: EndpointKeys,
    /// Shortcut of voice: offered or accepted, see `offers`.
    pub shortcut: Option<VoiceShortcut>,
    /// Offers the shortcut, and refuses to work without it; otherwise it is used if the peer offers it.
    pub offers: bool,
}

/// Counters of an endpoint; packets that were not sealed or opened are in its drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EspEndpointCounters {
    /// Packets sealed.
    pub sealed: u64,
    /// Packets opened.
    pub opened: u64,
    /// Keep-alives sent.
    pub keep_alives_sent: u64,
    /// Keep-alives received.
    pub keep_alives_received: u64,
    /// IKE messages received. Without a key exchange they have no effect.
    pub ike_messages: u64,
    /// Associations that were taken from a key exchange.
    pub installed: u64,
    /// Changes from an association that seals to another one.
    pub rekeyed: u64,
    /// ICMP errors for sent packets. They are not authenticated, and have no effect.
    pub unreachable: u64,
    /// Changes of the peer's address or port.
    pub peer_changes: u64,
    /// RTP packets sent by a shortcut, among those sealed.
    pub shortcut_sent: u64,
    /// RTP packets received by a shortcut, among those opened.
    pub shortcut_received: u64,
}

/// An engine whose datagrams pass through ESP.
#[derive(Debug)]
pub struct EspEndpoint<E> {
    engine: E,
    path: EspPath,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OuterSocket {
    NotRequested,
    Opening,
    Open,
    Failed(String),
}

#[derive(Debug)]
struct InnerSocket {
    id: SocketId,
    local: SocketAddr,
    is_media: bool,
}

/// The content of an opened packet, and its place.
enum Opened {
    Datagram(SocketId, SocketAddr, Range<usize>),
    /// Voice by [`VoiceShortcut::Direct`].
    Voice(SocketId, SocketAddr, Range<usize>),
    /// A message of the negotiation.
    Message,
}

/// A packet from the outer socket for the engine.
enum Arrived<'a> {
    Datagram(Datagram<'a>),
    Voice(Datagram<'a>),
}

/// An output that waits.
#[derive(Debug)]
enum Queued {
    OpenOuter,
    /// A place in the arena.
    Sealed(Range<usize>),
    KeepAlive,
    /// A message of a key exchange, and its destination.
    Message(Vec<u8>, SocketAddr),
    Event(Box<Event>),
}

/// The layer's answer to an output of the engine, given when all its outputs are read.
#[derive(Debug)]
enum Reply {
    Opened(SocketId, SocketAddr),
    OpenFailed(SocketId, &'static str),
    NoConnection(ConnectionId),
    NoFilter(SocketId),
}

#[derive(Debug)]
struct EspPath {
    carrier: EspCarrier,
    local: SocketAddr,
    peer: SocketAddr,
    keys: EndpointAssociations,
    /// Received messages of a key exchange, and their sources.
    messages: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Shortcut that is offered or accepted, and whether it is offered.
    shortcut: (Option<VoiceShortcut>, bool),
    outer: OuterSocket,
    sockets: Vec<InnerSocket>,
    next_port: u16,
    identification: u16,
    queue: VecDeque<Queued>,
    replies: VecDeque<Reply>,
    /// The message that is being sent.
    message: Vec<u8>,
    /// Sealed packets of the queue; emptied when the queue is empty.
    arena: Vec<u8>,
    now: Time,
    last_sent: Time,
    negotiation: Negotiation,
    /// An association has sealed: the engine may work.
    is_negotiated: bool,
    /// The last destination of media.
    media_peer: Option<SocketAddr>,
    counters: EspEndpointCounters,
    drops: Drops,
}

impl<E: Engine> EspEndpoint<E> {
    /// `engine` behind ESP.
    pub fn new(engine: E, plan: EspEndpointPlan) -> EspEndpoint<E> {
        EspEndpoint {
            engine,
            path: EspPath {
                negotiation: Negotiation::new(plan.shortcut),
                media_peer: None,
                is_negotiated: false,
                carrier: plan.carrier,
                local: plan.local,
                peer: plan.peer,
                keys: EndpointAssociations::new(plan.keys),
                messages: VecDeque::new(),
                shortcut: (plan.shortcut, plan.offers),
                outer: OuterSocket::NotRequested,
                sockets: Vec::new(),
                next_port: FIRST_PORT,
                identification: 0,
                queue: VecDeque::new(),
                replies: VecDeque::new(),
                message: Vec::new(),
                arena: Vec::new(),
                now: Time::ZERO,
                last_sent: Time::ZERO,
                counters: EspEndpointCounters::default(),
                drops: Drops::new(),
            },
        }
    }

    /// The engine.
    pub fn engine(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Counters since the start.
    pub fn counters(&self) -> EspEndpointCounters {
        self.path.counters
    }

    /// Packets that were not sealed or not opened.
    pub fn drops(&self) -> &Drops {
        &self.path.drops
    }

    /// Address of the peer.
    pub fn peer(&self) -> SocketAddr {
        self.path.peer
    }

    /// The shortcut that both ends agreed on.
    pub fn shortcut(&self) -> Option<VoiceShortcut> {
        self.path.negotiation.agreed()
    }

    /// The states of both associations with manual keys, to be written out; negotiated keys are used by one run only.
    pub fn states(&self, now: Time) -> Option<(OutboundState, InboundState)> {
        self.path.keys.states(now)
    }

    /// Whether the outer socket is open, so that messages of a key exchange can be sent.
    pub fn is_open(&self) -> bool {
        self.path.outer == OuterSocket::Open
    }

    /// Whether an association seals.
    pub fn seals(&self) -> bool {
        self.path.keys.sealing_spi().is_some()
    }

    /// Number of associations that open.
    pub fn opening(&self) -> usize {
        self.path.keys.opening()
    }

    /// Takes an association of a key exchange. It opens at once, and seals from [`EspEndpoint::seal_with`] on.
    ///
    /// # Errors
    /// [`SaError::DuplicateSpi`], [`SaError::TableFull`]; [`SaError::State`] with manual keys and in transport mode.
    pub fn install(&mut self, pair: NegotiatedPair, now: Time) -> Result<(), SaError> {
        self.path.keys.install(pair, now)?;
        self.path.counters.installed += 1;
        Ok(())
    }

    /// Seals with the negotiated association of this SPI from now on, and sends to `peer`. The first one opens the
    /// sockets of the engine. The one before stays until it is removed. Returns whether there is one with this SPI.
    pub fn seal_with(&mut self, spi: u32, peer: SocketAddr) -> bool {
        let path = &mut self.path;
        let before = path.keys.sealing_spi();
        if !path.keys.seal_with(spi) {
            return false;
        }
        path.counters.rekeyed += u64::from(before.is_some_and(|before| before != spi));
        path.peer = peer;
        true
    }

    /// Removes an association that the key exchange has deleted, by its SPIs of received and of sent packets. It opens
    /// for ten more seconds, for packets on their way; with `at_once`, no more.
    pub fn remove(&mut self, spis: [u32; 2], at_once: bool, now: Time) {
        self.path.keys.remove(spis, at_once, now);
    }

    /// Sends a message of the key exchange, with its marker, from the outer socket.
    pub fn send_message(&mut self, message: Vec<u8>, to: SocketAddr) {
        self.path.queue.push_back(Queued::Message(message, to));
    }

    /// The next received message of the key exchange, with its marker, and its source.
    pub fn next_message(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.path.messages.pop_front()
    }

    /// Reads all outputs of the engine, and gives it the layer's replies.
    fn drain(&mut self) {
        loop {
            while let Some(output) = self.engine.next_output() {
                self.path.take(output);
            }
            let now = self.path.now;
            match self.path.next_reply() {
                Some(Reply::Opened(socket, local)) => {
                    self.engine.handle(Input::Opened { socket, local }, now);
                }
                Some(Reply::OpenFailed(socket, error)) => {
                    let error = match &self.path.outer {
                        OuterSocket::Failed(outer) => outer,
                        _ => error,
                    };
                    self.engine.handle(Input::OpenFailed { socket, error }, now);
                }
                Some(Reply::NoConnection(connection)) => {
                    let reason = CloseReason::ConnectFailed;
                    self.engine
                        .handle(Input::Closed { connection, reason }, now);
                }
                Some(Reply::NoFilter(socket)) => {
                    self.engine.handle(Input::Shed { socket, dropped: 0 }, now);
                }
                None => return,
            }
        }
    }
}

impl<E: VoiceReceiver> Engine for EspEndpoint<E> {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        self.path.now = now;
        match input {
            Input::Datagram(datagram) => match self.path.open(datagram) {
                Some(Arrived::Datagram(datagram)) => {
                    self.engine.handle(Input::Datagram(datagram), now);
                }
                Some(Arrived::Voice(packet)) => self.engine.receive_voice(packet, now),
                None => {}
            },
            Input::Opened { socket: OUTER, .. } => {
                self.path.outer = OuterSocket::Open;
                self.path.last_sent = now;
                if self.path.shortcut.1 {
                    self.path.negotiation.start(now);
                    self.path.negotiate();
                }
            }
            Input::OpenFailed {
                socket: OUTER,
                error,
            } => self.path.outer_failed(error),
            Input::Unreachable { .. } => self.path.counters.unreachable += 1,
            Input::Timeout => {
                self.path.keys.forget(now);
                self.path.keep_alive();
                self.path.negotiate();
                self.engine.handle(Input::Timeout, now);
            }
            input => self.engine.handle(input, now),
        }
        self.drain();
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if self.path.queue.is_empty() {
            self.path.arena.clear();
            // Calls to the engine between two turns leave outputs behind.
            self.drain();
        }
        self.path.next()
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let offer = self.path.negotiation.due();
        let own = Deadline::earlier(
            self.path.next_keep_alive(),
            offer.map(|at| Deadline::new(at, "ESP shortcut")),
        );
        let end = self.path.keys.next_end();
        let own = Deadline::earlier(own, end.map(|at| Deadline::new(at, "deleted ESP keys")));
        Deadline::earlier(self.engine.next_deadline(), own)
    }

    fn media_deadline(&self) -> Option<Time> {
        self.engine.media_deadline()
    }

    fn send_media(&mut self, now: Time) {
        self.path.now = now;
        self.engine.send_media(now);
        self.drain();
    }

    fn flushed(&mut self, now: Time) {
        self.engine.flushed(now);
    }
}

impl EspPath {
    /// Takes an output of the engine.
    fn take(&mut self, output: Output<'_>) {
        match output {
            Output::OpenSocket {
                socket,
                kind,
                local,
            } => self.open_inner(socket, kind, local),
            Output::CloseSocket { socket } => self.sockets.retain(|open| open.id != socket),
            Output::Datagram {
                socket,
                destination,
                bytes,
            } => match self.seal_output(socket, destination, bytes) {
                Ok(place) => self.send(place),
                Err(failure) => self.drops.count(failure.reason()),
            },
            Output::SocketFilter { socket, .. } => self.replies.push_back(Reply::NoFilter(socket)),
            Output::Connect { connection, .. } => {
                self.replies.push_back(Reply::NoConnection(connection));
            }
            Output::Event(event) => self.queue.push_back(Queued::Event(Box::new(event))),
            // They belong to connections and workers, which the layer has refused.
            Output::Stream { .. }
            | Output::Close { .. }
            | Output::HandOff { .. }
            | Output::Recording { .. } => {}
        }
    }

    fn open_inner(&mut self, id: SocketId, kind: SocketKind, mut local: SocketAddr) {
        if kind.stream_transport().is_some() || kind == SocketKind::Esp {
            let error = "only UDP passes through ESP";
            self.replies.push_back(Reply::OpenFailed(id, error));
            return;
        }
        if local.port() == 0 {
            while self
                .sockets
                .iter()
                .any(|open| open.local.port() == self.next_port)
            {
                self.next_port = self.next_port.wrapping_add(2).max(FIRST_PORT);
            }
            local.set_port(self.next_port);
        }
        self.sockets.push(InnerSocket {
            id,
            local,
            is_media: kind == SocketKind::UdpMedia,
        });
        self.replies.push_back(Reply::Opened(id, local));
        if self.outer == OuterSocket::NotRequested {
            self.outer = OuterSocket::Opening;
            self.queue.push_back(Queued::OpenOuter);
        }
    }

    fn outer_failed(&mut self, error: &str) {
        let local = self.local;
        self.fail(match self.carrier {
            EspCarrier::Udp => format!("ESP over UDP at {local}: {error}"),
            EspCarrier::Ip => format!("ESP (IP protocol 50) at {}: {error}", local.ip()),
        });
    }

    /// Sockets that the engine waits for are not opened, for this reason.
    fn fail(&mut self, reason: String) {
        self.outer = OuterSocket::Failed(reason);
        for reply in &mut self.replies {
            if let Reply::Opened(socket, _) = *reply {
                *reply = Reply::OpenFailed(socket, "");
            }
        }
    }

    /// The next reply; those about sockets wait for the outer socket, and for the first association of a key exchange.
    fn next_reply(&mut self) -> Option<Reply> {
        self.is_negotiated |= self.keys.sealing_spi().is_some();
        let failed = matches!(self.outer, OuterSocket::Failed(_));
        let waits = matches!(self.outer, OuterSocket::NotRequested | OuterSocket::Opening)
            || self.negotiation.waits()
            || !(self.is_negotiated || failed);
        match self.replies.front()? {
            Reply::Opened(..) if waits => None,
            _ => self.replies.pop_front(),
        }
    }

    fn next(&mut self) -> Option<Output<'_>> {
        let EspPath {
            carrier,
            local,
            peer,
            ..
        } = *self;
        let destination = match carrier {
            EspCarrier::Udp => peer,
            EspCarrier::Ip => SocketAddr::new(peer.ip(), 0),
        };
        let datagram = |bytes| Output::Datagram {
            socket: OUTER,
            destination,
            bytes,
        };
        Some(match self.queue.pop_front()? {
            Queued::OpenOuter => Output::OpenSocket {
                socket: OUTER,
                kind: match carrier {
                    EspCarrier::Ip => SocketKind::Esp,
                    EspCarrier::Udp => SocketKind::UdpSignalling,
                },
                local,
            },
            Queued::Sealed(place) => datagram(self.arena.get(place).unwrap_or_default()),
            Queued::KeepAlive => datagram(&NAT_KEEP_ALIVE),
            Queued::Message(message, to) => {
                self.message = message;
                Output::Datagram {
                    socket: OUTER,
                    destination: to,
                    bytes: &self.message,
                }
            }
            Queued::Event(event) => Output::Event(*event),
        })
    }

    fn next_keep_alive(&self) -> Option<Deadline> {
        let sends = self.carrier == EspCarrier::Udp
            && self.outer == OuterSocket::Open
            && self.keys.sealing_spi().is_some();
        sends.then(|| Deadline::new(self.last_sent + KEEP_ALIVE, "NAT keep-alive"))
    }

    fn keep_alive(&mut self) {
        if self
            .next_keep_alive()
            .is_some_and(|deadline| deadline.at <= self.now)
        {
            self.last_sent = self.now;
            self.counters.keep_alives_sent += 1;
            self.queue.push_back(Queued::KeepAlive);
        }
    }

    /// Sends the offer that is due; the end of all offers is a failure of the sockets.
    fn negotiate(&mut self) {
        if let Some(message) = self.negotiation.timeout(self.now) {
            self.send_message(&message);
        }
        self.check_negotiation();
    }

    fn check_negotiation(&mut self) {
        if let (Some(why), Some(shortcut), OuterSocket::Open) =
            (self.negotiation.failure(), self.shortcut.0, &self.outer)
        {
            self.fail(format!("ESP shortcut \"{}\": {why}", shortcut.name()));
        }
    }

    fn send_message(&mut self, message: &[u8]) {
        match self.seal_direct(message) {
            Ok(place) => self.send(place),
            Err(failure) => self.drops.count(failure.reason()),
        }
    }

    fn send(&mut self, place: Range<usize>) {
        self.counters.sealed += 1;
        self.last_sent = self.now;
        self.queue.push_back(Queued::Sealed(place));
    }

    /// Seals bytes without IP and UDP headers into the arena.
    fn seal_direct(&mut self, bytes: &[u8]) -> Result<Range<usize>, EspFailure> {
        let from = self.arena.len();
        let packet = from + MAX_HEADROOM;
        self.arena.resize(packet, 0);
        self.arena.extend_from_slice(bytes);
        self.arena.resize(packet + bytes.len() + MAX_TAILROOM, 0);
        let buffer = self.arena.get_mut(from..).unwrap_or_default();
        let mut room = PacketRoom::new(buffer, MAX_HEADROOM, bytes.len());
        let sealing = self.keys.sealing();
        let sealed = sealing.and_then(|sa| sa.seal_direct(&mut room, self.now));
        let place = from + room.start..from + room.end;
        self.arena
            .truncate(if sealed.is_ok() { place.end } else { from });
        sealed.map(|_| place)
    }

    /// Seals a datagram into the arena, by the shortcut that is in use if it is RTP.
    fn seal_output(
        &mut self,
        socket: SocketId,
        destination: SocketAddr,
        bytes: &[u8],
    ) -> Result<Range<usize>, EspFailure> {
        let is_media = self
            .sockets
            .iter()
            .any(|open| open.id == socket && open.is_media);
        if is_media {
            self.media_peer = Some(destination);
        }
        let is_voice = is_media && shortcut::is_rtp(bytes);
        let sealed = match self.negotiation.agreed().filter(|_| is_voice) {
            None => return self.seal(socket, destination, bytes),
            Some(VoiceShortcut::Direct) => self.seal_direct(bytes),
            Some(VoiceShortcut::WithoutUdp) => self.seal_as(
                socket,
                destination,
                Layers {
                    protocol: RTP_WITHOUT_UDP,
                    header: 0,
                },
                bytes,
            ),
        };
        self.counters.shortcut_sent += u64::from(sealed.is_ok());
        sealed
    }

    fn seal(
        &mut self,
        socket: SocketId,
        destination: SocketAddr,
        bytes: &[u8],
    ) -> Result<Range<usize>, EspFailure> {
        self.seal_as(
            socket,
            destination,
            Layers {
                protocol: protocol::UDP,
                header: UDP_HEADER,
            },
            bytes,
        )
    }

    /// Seals bytes behind the headers of the mode and of `layers` into the arena.
    fn seal_as(
        &mut self,
        socket: SocketId,
        destination: SocketAddr,
        layers: Layers,
        bytes: &[u8],
    ) -> Result<Range<usize>, EspFailure> {
        let open = self.sockets.iter().find(|open| open.id == socket);
        let source = open.ok_or(EspFailure::Selector)?.local;
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(EspFailure::Selector);
        }
        let is_tunnel = self.keys.is_tunnel();
        if !is_tunnel && destination.ip() != self.peer.ip() {
            return Err(EspFailure::Selector);
        }
        let ip_header = match (is_tunnel, source) {
            (false, _) => 0,
            (true, SocketAddr::V4(_)) => 20,
            (true, SocketAddr::V6(_)) => 40,
        };
        let length = ip_header + layers.header + bytes.len();
        if length > usize::from(u16::MAX) {
            return Err(EspFailure::TooLarge);
        }
        let from = self.arena.len();
        let packet = from + MAX_HEADROOM;
        self.arena.resize(packet + length + MAX_TAILROOM, 0);
        let inner = self.arena.get_mut(packet..packet + length);
        let inner = inner.ok_or(EspFailure::NoRoom)?;
        self.identification = self.identification.wrapping_add(1);
        write_ip(
            inner.get_mut(..ip_header).unwrap_or_default(),
            (source.ip(), destination.ip()),
            (length, self.identification, layers.protocol),
        );
        let payload = inner.get_mut(ip_header..).unwrap_or_default();
        match layers.header {
            0 => payload.copy_from_slice(bytes),
            _ => write_datagram(payload, source, destination, bytes),
        }
        let next_header = match ip_header {
            0 => layers.protocol,
            20 => protocol::IPIP,
            _ => protocol::IPV6,
        };
        let buffer = self.arena.get_mut(from..).unwrap_or_default();
        let mut room = PacketRoom::new(buffer, MAX_HEADROOM, length);
        let sealing = self.keys.sealing();
        let sealed = sealing.and_then(|sa| sa.seal_payload(&mut room, next_header, self.now));
        let place = from + room.start..from + room.end;
        self.arena.truncate(match sealed {
            Ok(_) => place.end,
            Err(_) => from,
        });
        sealed.map(|_| place)
    }

    /// Opens a datagram of the outer socket.
    fn open<'a>(&mut self, datagram: Datagram<'a>) -> Option<Arrived<'a>> {
        let Datagram {
            source,
            arrived,
            bytes,
            ..
        } = datagram;
        if self.carrier == EspCarrier::Udp {
            match NatTraversalDatagram::parse(bytes) {
                NatTraversalDatagram::Esp(_) => {}
                NatTraversalDatagram::KeepAlive => {
                    self.counters.keep_alives_received += 1;
                    return None;
                }
                NatTraversalDatagram::Ike(_) => {
                    self.counters.ike_messages += 1;
                    self.keep_message(source, bytes);
                    return None;
                }
                NatTraversalDatagram::Malformed => {
                    self.drops.count(DropReason::EspMalformed);
                    return None;
                }
            }
        }
        if self.is_own_copy(source, bytes) {
            return None;
        }
        match self.open_packet(source, bytes) {
            Ok(Opened::Datagram(socket, source, place)) => Some(Arrived::Datagram(Datagram {
                socket,
                source,
                arrived,
                bytes: bytes.get_mut(place)?,
            })),
            Ok(Opened::Voice(socket, source, place)) => Some(Arrived::Voice(Datagram {
                socket,
                source,
                arrived,
                bytes: bytes.get_mut(place)?,
            })),
            Ok(Opened::Message) => None,
            Err(failure) => {
                self.drops.count(failure.reason());
                None
            }
        }
    }

    /// Keeps a message of the key exchange for its reader. The peer repeats a message that is dropped.
    fn keep_message(&mut self, source: SocketAddr, bytes: &[u8]) {
        if !self.keys.negotiates() {
            return;
        }
        match self.messages.len() < MAX_MESSAGES {
            true => self.messages.push_back((source, bytes.to_vec())),
            false => self.drops.count(DropReason::IkeOverrun),
        }
    }

    /// A raw socket at an address of this host also receives packets for another end at the same address: with both
    /// ends on one host, the own packets.
    fn is_own_copy(&self, source: SocketAddr, bytes: &[u8]) -> bool {
        self.carrier == EspCarrier::Ip
            && source.ip() == self.local.ip()
            && self.peer.ip() == self.local.ip()
            && self
                .keys
                .sealing_spi()
                .is_some_and(|spi| bytes.starts_with(&spi.to_be_bytes()))
    }

    /// The content of a packet.
    fn open_packet(&mut self, outer: SocketAddr, bytes: &mut [u8]) -> Result<Opened, EspFailure> {
        let arrived = ArrivedEsp {
            source: outer.ip(),
            destination: self.local.ip(),
            // The driver does not report it: congestion marks of the outer header are not carried over.
            traffic_class: 0,
        };
        let opened = self.keys.open(bytes, &arrived, self.now)?;
        self.counters.opened += 1;
        // A delayed packet would lead back to an address that the peer has left (RFC 7296 section 2.23).
        let may_move = opened.is_newest || self.peer.ip().is_unspecified();
        if self.carrier == EspCarrier::Udp && outer != self.peer && may_move {
            self.peer = outer;
            self.counters.peer_changes += 1;
        }
        let payload = bytes.get(opened.range.clone());
        let payload = payload.ok_or(EspFailure::Malformed)?;
        if opened.next_header == DIRECT {
            return self.open_direct(payload, opened.range);
        }
        let (addresses, name, place) = if self.keys.is_tunnel() {
            let place =
                PayloadPlace::find(payload, Extensions::All).ok_or(EspFailure::Malformed)?;
            if place.is_fragment {
                return Err(EspFailure::Fragment);
            }
            let inner = ArrivedEsp::of(payload, &place).ok_or(EspFailure::Malformed)?;
            let addresses = (inner.source, Some(inner.destination));
            (addresses, place.protocol, place.offset..place.end)
        } else {
            ((outer.ip(), None), opened.next_header, 0..payload.len())
        };
        let start = opened.range.start + place.start;
        let datagram = payload.get(place).ok_or(EspFailure::Malformed)?;
        match name {
            protocol::UDP => {}
            RTP_WITHOUT_UDP => {
                let (socket, source) = self.voice_socket(VoiceShortcut::WithoutUdp)?;
                let place = start..start + datagram.len();
                return Ok(Opened::Datagram(socket, source, place));
            }
            _ => return Err(EspFailure::Selector),
        }
        let view = UdpView::parse(datagram).ok_or(EspFailure::Malformed)?;
        let length = view.payload_length();
        if length > datagram.len() - UDP_HEADER {
            return Err(EspFailure::Malformed);
        }
        let socket = self.sockets.iter().find(|open| {
            open.local.port() == view.destination_port()
                && addresses.1.is_none_or(|ip| open.local.ip() == ip)
        });
        let start = start + UDP_HEADER;
        Ok(Opened::Datagram(
            socket.ok_or(EspFailure::Selector)?.id,
            SocketAddr::new(addresses.0, view.source_port()),
            start..start + length,
        ))
    }

    /// Voice without other layers, or a message of the negotiation.
    fn open_direct(&mut self, payload: &[u8], place: Range<usize>) -> Result<Opened, EspFailure> {
        if shortcut::is_rtp(payload) {
            let (socket, source) = self.voice_socket(VoiceShortcut::Direct)?;
            return Ok(Opened::Voice(socket, source, place));
        }
        if let Some(answer) = self.negotiation.receive(payload)? {
            self.send_message(&answer);
        }
        self.check_negotiation();
        Ok(Opened::Message)
    }

    /// The socket of received voice, and its source, if this shortcut was agreed.
    fn voice_socket(
        &mut self,
        shortcut: VoiceShortcut,
    ) -> Result<(SocketId, SocketAddr), EspFailure> {
        let open = self.sockets.iter().find(|open| open.is_media);
        let (true, Some(open)) = (self.negotiation.agreed() == Some(shortcut), open) else {
            return Err(EspFailure::Selector);
        };
        self.counters.shortcut_received += 1;
        let source = self.media_peer.unwrap_or(self.peer);
        Ok((open.id, source))
    }
}

/// Layers between IP and the bytes of the engine.
#[derive(Clone, Copy)]
struct Layers {
    protocol: u8,
    /// Length of the header.
    header: usize,
}

/// Writes the IP header of a packet of `length` bytes; nothing if `header` is empty.
fn write_ip(
    header: &mut [u8],
    addresses: (IpAddr, IpAddr),
    (length, id, protocol): (usize, u16, u8),
) {
    if let (Some(header), (IpAddr::V4(source), IpAddr::V4(destination))) =
        (header.first_chunk_mut::<20>(), addresses)
    {
        *header = [0; 20];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        header[4..6].copy_from_slice(&id.to_be_bytes());
        header[8] = 64;
        header[9] = protocol;
        header[12..16].copy_from_slice(&source.octets());
        header[16..20].copy_from_slice(&destination.octets());
        let sum = internet_checksum(&[&header[..]]).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
    }
    if let (Some(header), (IpAddr::V6(source), IpAddr::V6(destination))) =
        (header.first_chunk_mut::<40>(), addresses)
    {
        *header = [0; 40];
        header[0] = 0x60;
        header[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        header[6] = protocol;
        header[7] = 64;
        header[8..24].copy_from_slice(&source.octets());
        header[24..40].copy_from_slice(&destination.octets());
    }
}

/// Writes a UDP datagram with its checksum.
fn write_datagram(out: &mut [u8], source: SocketAddr, destination: SocketAddr, bytes: &[u8]) {
    let length = (out.len() as u16).to_be_bytes();
    let Some((header, payload)) = out.split_first_chunk_mut::<UDP_HEADER>() else {
        return;
    };
    header[..2].copy_from_slice(&source.port().to_be_bytes());
    header[2..4].copy_from_slice(&destination.port().to_be_bytes());
    header[4..6].copy_from_slice(&length);
    header[6..].fill(0);
    payload.copy_from_slice(bytes);
    let pseudo = [0, protocol::UDP, length[0], length[1]];
    let sum = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            internet_checksum(&[&from.octets(), &to.octets(), &pseudo, &*header, payload])
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            internet_checksum(&[&from.octets(), &to.octets(), &pseudo, &*header, payload])
        }
        _ => 0,
    };
    // A sum of zero means that there is none (RFC 768).
    let sum = if sum == 0 { u16::MAX } else { sum };
    header[6..].copy_from_slice(&sum.to_be_bytes());
}
