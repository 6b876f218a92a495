//! Fuzzing entry for the whole border: arbitrary input at any time; also used by tests that replay findings.
//!
//! A harness in virtual time: the border, its forwarder, and the sockets and connections of a correct driver. The
//! input is a list of steps. Messages of peers are built from the last messages of the border, so that they match
//! existing transactions, dialogs and challenges; then the input modifies them.

mod configurations;
mod media_security;
mod messages;

use crate::admission::CostPart;
use crate::border::Border;
use configurations::*;
use core::time::Duration;
use engine::{
    CloseReason, ConnectionId, Control, Datagram, Engine, Entropy, Forward, HashKey, Input,
    MediaPacket, Output, PacketVerdict, SocketId, SocketKind, Time,
};
use media::{Forwarder, ForwarderLimits};
use media_security::SecurePeer;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// Messages of the border kept for the input's choice.
const KEPT_MESSAGES: usize = 16;
/// Outputs per input at most.
const MAX_OUTPUTS: usize = 2_000;
/// Timeouts at one instant at most.
const MAX_TIMEOUTS_AT_ONCE: usize = 200;

/// Runs [`explore`] without DTLS.
pub fn fuzz_border(data: &[u8]) {
    explore(data, None);
}

/// Runs [`explore`] with DTLS. The peers share the border's certificate.
pub fn fuzz_border_with_dtls(data: &[u8], endpoint: &protect::dtls::DtlsEndpoint) {
    explore(data, Some(endpoint));
}

/// Coverage of a list of steps, for tests.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    /// The border's counters at the end.
    pub counters: crate::counters::BorderCounters,
    /// Names of all events, in order.
    pub events: Vec<&'static str>,
    /// SIP messages that the border sent.
    pub sent: usize,
    /// Packets that the forwarder relayed.
    pub forwarded: usize,
    /// STUN and DTLS packets that the forwarder passed up.
    pub punted: usize,
    /// Largest reservation for handshakes in one second, microseconds of CPU time.
    pub handshake_cpu_us: u64,
}

/// Path of a message, and of the response to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerPath {
    Socket(SocketId, SocketAddr),
    Stream(ConnectionId),
}

#[derive(Clone, Debug)]
struct BorderMessage {
    path: PeerPath,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerStream {
    Connecting,
    Open,
}

struct FuzzHarness {
    border: Border,
    forwarder: Forwarder,
    now: Time,
    sockets: BTreeMap<SocketId, (SocketKind, SocketAddr)>,
    /// Sockets that were closed: transactions may still send from them, which the driver counts.
    closed: Vec<SocketId>,
    streams: BTreeMap<ConnectionId, PeerStream>,
    accepted: u64,
    sent: VecDeque<BorderMessage>,
    queries: VecDeque<BorderMessage>,
    /// Out-of-dialog requests of peers, to be repeated with credentials.
    requests: VecDeque<(PeerPath, Vec<u8>)>,
    number: u32,
    secure_peer: SecurePeer,
    refuse_media: bool,
    checks_secret: bool,
    reached: Reached,
}

/// Runs `data` as a list of steps. Panics if a limit is exceeded, if the border sends anything but SIP or uses an
/// unknown socket, if an event contains a secret, and if state is left at the end. With an `endpoint` it uses DTLS,
/// whose randomness is independent of the input.
pub fn explore(data: &[u8], endpoint: Option<&protect::dtls::DtlsEndpoint>) -> Reached {
    let mut harness = FuzzHarness::new(data, endpoint);
    let mut rest = data;
    while let [kind, choice, length, tail @ ..] = rest {
        let length = usize::from(*length).saturating_mul(4).min(tail.len());
        let (bytes, tail) = tail.split_at(length);
        rest = tail;
        harness.step(*kind, *choice, bytes);
        harness.check();
    }
    harness.finish();
    harness.reached
}

fn keep<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == KEPT_MESSAGES {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// Addresses of peers.
fn peer(choice: u8) -> SocketAddr {
    const PEERS: [&str; 8] = [
        "10.1.0.1:5060",
        "10.2.0.1:5060",
        "10.2.0.2:5060",
        "10.3.0.1:5060",
        "10.1.0.2:40001",
        "203.0.113.5:5060",
        "10.2.0.3:5060",
        "10.3.0.2:5060",
    ];
    let text = PEERS[usize::from(choice) % PEERS.len()];
    text.parse().unwrap_or_else(|_| unreachable!("an address"))
}

impl FuzzHarness {
    fn new(data: &[u8], endpoint: Option<&protect::dtls::DtlsEndpoint>) -> FuzzHarness {
        let mut entropy = Entropy::from_number(1);
        let mut border = Border::new(configuration(0), entropy.fork());
        if let Some(endpoint) = endpoint {
            border.set_dtls(endpoint.clone());
        }
        let limits = ForwarderLimits {
            conferences: 4,
            sessions: 2 * CALLS,
            ..ForwarderLimits::default()
        };
        let mut harness = FuzzHarness {
            border,
            forwarder: Forwarder::new(limits, HashKey::new(&mut entropy)),
            now: Time::from_millis(1),
            sockets: BTreeMap::new(),
            closed: Vec::new(),
            streams: BTreeMap::new(),
            accepted: 0,
            sent: VecDeque::new(),
            queries: VecDeque::new(),
            requests: VecDeque::new(),
            number: 0,
            secure_peer: SecurePeer::new(endpoint.cloned()),
            refuse_media: false,
            // If the input contains the secret itself, events may quote it.
            checks_secret: !data.windows(SECRET.len()).any(|window| window == SECRET),
            reached: Reached::default(),
        };
        harness.feed(Input::Timeout);
        harness
    }

    fn step(&mut self, kind: u8, choice: u8, bytes: &[u8]) {
        match kind % 16 {
            0 => self.deliver(self.any_path(choice), bytes),
            1 => self.stream_bytes(choice, bytes),
            2 => self.accept(choice),
            3 => self.finish_connect(choice),
            4 => self.close_stream(choice),
            5 | 6 => self.advance(Duration::from_millis(1 << (choice % 18))),
            7 | 8 => self.send_request(choice, bytes),
            9 | 10 => self.respond(choice, bytes),
            11 | 12 => self.send_in_dialog_request(choice, bytes),
            13 => self.media(choice, bytes),
            14 => self.dns_stream_input(choice, bytes),
            _ => self.operate(choice, bytes),
        }
    }

    fn nth<T>(queue: &VecDeque<T>, back: u8) -> Option<&T> {
        let back = usize::from(back) % queue.len().max(1);
        queue.get(queue.len().checked_sub(1 + back)?)
    }

    /// A signalling socket and a peer.
    fn any_path(&self, choice: u8) -> PeerPath {
        let sockets: Vec<SocketId> = self
            .sockets
            .iter()
            .filter(|(_, (kind, _))| *kind == SocketKind::UdpSignalling)
            .map(|(socket, _)| *socket)
            .collect();
        let at = usize::from(choice & 7) % sockets.len().max(1);
        match sockets.get(at) {
            Some(socket) => PeerPath::Socket(*socket, peer(choice >> 3 & 7)),
            None => PeerPath::Stream(ConnectionId(0)),
        }
    }

    fn deliver(&mut self, path: PeerPath, bytes: &[u8]) {
        match path {
            PeerPath::Socket(socket, source) if self.sockets.contains_key(&socket) => {
                let mut bytes = bytes.to_vec();
                let arrived = self.now;
                self.feed(Input::Datagram(Datagram {
                    socket,
                    source,
                    arrived,
                    bytes: &mut bytes,
                }));
            }
            PeerPath::Stream(connection)
                if self.streams.get(&connection) == Some(&PeerStream::Open) =>
            {
                // In two parts.
                let (head, tail) = bytes.split_at(bytes.len() / 3);
                self.feed(Input::Stream {
                    connection,
                    bytes: head,
                });
                if self.streams.contains_key(&connection) {
                    self.feed(Input::Stream {
                        connection,
                        bytes: tail,
                    });
                }
            }
            _ => {}
        }
    }

    fn stream(&self, choice: u8) -> Option<ConnectionId> {
        let at = usize::from(choice) % self.streams.len().max(1);
        self.streams.keys().nth(at).copied()
    }

    fn stream_bytes(&mut self, choice: u8, bytes: &[u8]) {
        if let Some(connection) = self.stream(choice) {
            self.deliver(PeerPath::Stream(connection), bytes);
        }
    }

    fn accept(&mut self, choice: u8) {
        let listeners: Vec<(SocketId, SocketAddr)> = self
            .sockets
            .iter()
            .filter(|(_, (kind, _))| kind.stream_transport().is_some())
            .map(|(socket, (_, address))| (*socket, *address))
            .collect();
        let at = usize::from(choice & 1) % listeners.len().max(1);
        let Some(&(socket, local)) = listeners.get(at) else {
            return;
        };
        self.accepted += 1;
        let connection = ConnectionId(ConnectionId::ACCEPTED | self.accepted);
        let mut remote = peer(choice >> 1 & 7);
        remote.set_port(40_000 + (self.accepted % 1_000) as u16);
        self.streams.insert(connection, PeerStream::Open);
        self.feed(Input::Accepted {
            connection,
            socket,
            local,
            remote,
        });
    }

    /// Completes or refuses a connection of the border.
    fn finish_connect(&mut self, choice: u8) {
        let asked = self
            .streams
            .iter()
            .find(|(_, state)| **state == PeerStream::Connecting);
        let Some((&connection, _)) = asked else {
            return;
        };
        if choice & 3 == 0 {
            self.streams.remove(&connection);
            let reason = CloseReason::ConnectFailed;
            return self.feed(Input::Closed { connection, reason });
        }
        self.streams.insert(connection, PeerStream::Open);
        let local = SocketAddr::from(([198, 51, 100, 1], 41_000));
        self.feed(Input::Connected { connection, local });
    }

    fn close_stream(&mut self, choice: u8) {
        if let Some(connection) = self.stream(choice) {
            self.streams.remove(&connection);
            let reason = [
                CloseReason::Peer,
                CloseReason::Error,
                CloseReason::Backpressure,
            ][usize::from(choice >> 6) % 3];
            self.feed(Input::Closed { connection, reason });
        }
    }

    /// Sends a request of a peer; by choice, repeats the last challenged one with credentials.
    fn send_request(&mut self, choice: u8, bytes: &[u8]) {
        if choice & 0xf0 == 0xf0 {
            return self.send_with_credentials(choice);
        }
        self.number += 1;
        let last = Self::nth(&self.sent, bytes.get(3).copied().unwrap_or_default())
            .map_or(Vec::new(), |sent| sent.bytes.clone());
        let mut message = messages::new_request(choice, bytes, self.number, &last);
        if bytes.get(2).is_some_and(|byte| byte & 0x80 != 0) {
            messages::mutate(&mut message, bytes.get(8..).unwrap_or_default());
        }
        let path = match (bytes.get(5), self.stream(choice >> 4)) {
            (Some(byte), Some(connection)) if byte & 0x80 != 0 => PeerPath::Stream(connection),
            (byte, _) => self.any_path(byte.copied().unwrap_or_default()),
        };
        self.secure_peer.insert_fingerprint(&mut message);
        keep(&mut self.requests, (path, message.clone()));
        self.deliver(path, &message);
    }

    fn send_with_credentials(&mut self, choice: u8) {
        let challenge = self
            .sent
            .iter()
            .rev()
            .find(|sent| messages::is_challenge(&sent.bytes));
        let Some(challenge) = challenge.cloned() else {
            return;
        };
        let id = messages::call_id(&challenge.bytes);
        let asked = self
            .requests
            .iter()
            .rev()
            .find(|(_, request)| id.is_some() && messages::call_id(request) == id)
            .cloned();
        if let Some((path, request)) = asked
            && let Some(again) = messages::with_credentials(&request, &challenge.bytes, choice)
        {
            self.deliver(path, &again);
        }
    }

    /// Sends a response to a request of the border.
    fn respond(&mut self, choice: u8, bytes: &[u8]) {
        let back = bytes.get(3).copied().unwrap_or_default();
        // Requests only.
        let requests: VecDeque<&BorderMessage> = self
            .sent
            .iter()
            .filter(|sent| !sent.bytes.starts_with(b"SIP/2.0") && !sent.bytes.starts_with(b"ACK"))
            .collect();
        let Some(sent) = Self::nth(&requests, back).map(|sent| (*sent).clone()) else {
            return;
        };
        if let Some(mut message) = messages::response(&sent.bytes, choice, bytes) {
            if bytes.get(2).is_some_and(|byte| byte & 0x80 != 0) {
                messages::mutate(&mut message, bytes.get(8..).unwrap_or_default());
            }
            self.secure_peer.insert_fingerprint(&mut message);
            self.deliver(sent.path, &message);
        }
    }

    /// Sends an in-dialog request.
    fn send_in_dialog_request(&mut self, choice: u8, bytes: &[u8]) {
        let at = |index: usize| bytes.get(index).copied().unwrap_or_default();
        let Some(sent) = Self::nth(&self.sent, at(3)).cloned() else {
            return;
        };
        let other = Self::nth(&self.sent, at(4)).map_or(Vec::new(), |sent| sent.bytes.clone());
        self.number += 1;
        let message = messages::in_dialog_request(&sent.bytes, choice, bytes, self.number, &other);
        if let Some(mut message) = message {
            if at(2) & 0x80 != 0 {
                messages::mutate(&mut message, bytes.get(8..).unwrap_or_default());
            }
            self.secure_peer.insert_fingerprint(&mut message);
            // Sometimes from another address.
            let path = match (sent.path, at(5) & 0xf8) {
                (PeerPath::Socket(socket, _), 0xf8) => PeerPath::Socket(socket, peer(at(5))),
                (path, _) => path,
            };
            self.deliver(path, &message);
        }
    }

    fn media(&mut self, choice: u8, bytes: &[u8]) {
        let sockets: Vec<SocketId> = self
            .sockets
            .iter()
            .filter(|(_, (kind, _))| *kind == SocketKind::UdpMedia)
            .map(|(socket, _)| *socket)
            .collect();
        let at = usize::from(choice >> 3) % sockets.len().max(1);
        let Some(&socket) = sockets.get(at) else {
            return;
        };
        let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
        let mut source = peer(choice & 7);
        source.set_port(4_000 + u16::from(byte(0) & 7));
        let rtp = [0x80, 0, 0, choice, 0, 0, 0, 160, 1, 2, 3, 4];
        let report = [&[0x80, 200, 0, 6, 1, 2, 3, 4][..], &[0; 20]].concat();
        let packet = match byte(1) & 15 {
            0 => [&rtp[..], bytes].concat(),
            1 => [
                0x80, 101, 0, choice, 0, 0, 0, 160, 1, 2, 3, 4, 5, 10, 0, 160,
            ]
            .to_vec(),
            2 => report,
            4 => self
                .secure_peer
                .protect_packet(&[&rtp[..], bytes].concat(), false),
            5 => self.secure_peer.protect_packet(&report, true),
            6 => self.secure_peer.check(byte(2)),
            7 => {
                for datagram in self.secure_peer.handshake(byte(2), self.now) {
                    self.packet(socket, source, &datagram);
                }
                return;
            }
            _ => bytes.to_vec(),
        };
        self.packet(socket, source, &packet);
    }

    /// Passes a packet to the forwarder first, as the driver does, and to the border if it is passed up.
    fn packet(&mut self, socket: SocketId, source: SocketAddr, bytes: &[u8]) {
        let arrived = self.now;
        let mut buffer = bytes.to_vec();
        buffer.resize(bytes.len() + MediaPacket::TAILROOM, 0);
        let mut packet = MediaPacket {
            length: bytes.len(),
            ..MediaPacket::new(socket, source, arrived, &mut buffer)
        };
        match self.forwarder.forward(&mut packet, self.now) {
            PacketVerdict::Forward { socket, .. } => {
                assert!(
                    self.sockets.contains_key(&socket),
                    "media from an unknown socket"
                );
                self.reached.forwarded += 1;
            }
            PacketVerdict::Punt(_) => {
                self.reached.punted += 1;
                let mut bytes = bytes.to_vec();
                self.feed(Input::Datagram(Datagram {
                    socket,
                    source,
                    arrived,
                    bytes: &mut bytes,
                }));
            }
            _ => {}
        }
        self.drain();
    }

    fn dns_stream_input(&mut self, choice: u8, bytes: &[u8]) {
        let Some(query) = Self::nth(&self.queries, choice >> 7).cloned() else {
            return;
        };
        let Some(answer) = messages::dns_answer(&query.bytes, choice, bytes) else {
            return;
        };
        self.deliver(query.path, &answer);
    }

    fn operate(&mut self, choice: u8, bytes: &[u8]) {
        match choice & 15 {
            0..=8 => {
                let config = configuration(choice % 3);
                self.border.reload(config, self.now);
                self.drain();
            }
            9 | 10 => {
                let limit = Duration::from_secs(u64::from(choice >> 4) * 10);
                self.border.drain(limit, self.now);
                self.drain();
            }
            11 | 12 => self.refuse_media = choice & 16 != 0,
            // The same bytes at a resolver's socket.
            _ => {
                if let Some(query) = self.queries.back().cloned() {
                    self.deliver(query.path, bytes);
                }
            }
        }
    }

    /// Advances virtual time, with all timeouts in it.
    fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        let mut at_once = 0;
        loop {
            let border = self
                .border
                .next_deadline()
                .map_or(Time::NEVER, |due| due.at);
            let forwarder = self
                .forwarder
                .next_deadline()
                .map_or(Time::NEVER, |due| due.at);
            let next = border.min(forwarder);
            if next > end {
                break;
            }
            at_once = if next > self.now { 0 } else { at_once + 1 };
            assert!(
                at_once < MAX_TIMEOUTS_AT_ONCE,
                "time does not advance: {:?} {:?}",
                self.border.next_deadline(),
                self.forwarder.next_deadline()
            );
            self.now = self.now.max(next);
            if forwarder <= self.now {
                self.forwarder.timeout(self.now);
                self.drain();
            }
            if border <= self.now {
                self.feed(Input::Timeout);
            }
        }
        self.now = end;
        self.feed(Input::Timeout);
    }

    fn feed(&mut self, input: Input<'_>) {
        self.border.handle(input, self.now);
        self.drain();
    }

    /// Processes all outputs of the border and its forwarder.
    fn drain(&mut self) {
        let mut outputs = 0;
        loop {
            let (mut opened, mut filtered) = (Vec::new(), Vec::new());
            while let Some(output) = self.border.next_output() {
                outputs += 1;
                assert!(outputs < MAX_OUTPUTS, "too many outputs for one input");
                match output {
                    Output::OpenSocket {
                        socket,
                        kind,
                        local,
                    } => opened.push((socket, kind, local)),
                    Output::HandOff { .. } => {
                        panic!("handed off without another worker")
                    }
                    Output::CloseSocket { socket } => {
                        assert!(
                            self.sockets.remove(&socket).is_some(),
                            "closed, but not open"
                        );
                        self.closed.push(socket);
                    }
                    Output::Recording { .. } => panic!("the border records nothing"),
                    Output::SocketFilter { socket, filter } => {
                        filtered.push((socket, u64::from(filter.is_none())));
                    }
                    Output::Datagram {
                        socket,
                        destination,
                        bytes,
                    } => {
                        let path = PeerPath::Socket(socket, destination);
                        let sent = BorderMessage {
                            path,
                            bytes: bytes.to_vec(),
                        };
                        // Sockets opened in the same turn are open when the driver sends.
                        let resolver = destination.port() == 53;
                        let kind = self.sockets.get(&socket).map(|(kind, _)| *kind);
                        let known = self.sockets.contains_key(&socket)
                            || self.closed.contains(&socket)
                            || opened.iter().any(|(id, ..)| *id == socket);
                        assert!(
                            known,
                            "sent from an unknown socket: {}",
                            bytes.escape_ascii()
                        );
                        match resolver {
                            true => keep(&mut self.queries, sent),
                            false if kind == Some(SocketKind::UdpMedia) => {
                                self.secure_peer.receive(bytes)
                            }
                            false => {
                                assert_sip(bytes);
                                self.secure_peer.read_description(bytes);
                                self.reached.sent += 1;
                                keep(&mut self.sent, sent);
                            }
                        }
                    }
                    Output::Connect { connection, .. } => {
                        let before = self.streams.insert(connection, PeerStream::Connecting);
                        assert_eq!(before, None, "a duplicate connection number");
                    }
                    Output::Stream { connection, bytes } => {
                        // The driver ignores data for a connection that the peer has closed.
                        assert_sip(bytes);
                        self.secure_peer.read_description(bytes);
                        self.reached.sent += 1;
                        let sent = BorderMessage {
                            path: PeerPath::Stream(connection),
                            bytes: bytes.to_vec(),
                        };
                        keep(&mut self.sent, sent);
                    }
                    Output::Close { connection } => {
                        self.streams.remove(&connection);
                    }
                    Output::Event(event) => {
                        let text = event.to_string();
                        let described = text
                            .as_bytes()
                            .windows(SECRET.len())
                            .any(|window| window == SECRET);
                        assert!(
                            !(described && self.checks_secret),
                            "an event contains a secret: {text}"
                        );
                        self.reached.events.push(event.kind.name());
                    }
                }
            }
            let mut idle = opened.is_empty() && filtered.is_empty();
            while let Some(command) = self.border.next_command() {
                self.forwarder.command(command, self.now);
                idle = false;
            }
            for (socket, kind, mut local) in opened {
                if kind == SocketKind::UdpMedia && self.refuse_media {
                    let error = "too many open files";
                    self.border
                        .handle(Input::OpenFailed { socket, error }, self.now);
                    continue;
                }
                if local.port() == 0 {
                    local.set_port(50_000);
                }
                let taken = self.sockets.iter().any(|(id, (other, at))| {
                    *id == socket
                        || (*at == local
                            && other.stream_transport().is_some()
                                == kind.stream_transport().is_some())
                });
                assert!(!taken, "{local} is opened twice");
                self.sockets.insert(socket, (kind, local));
                self.border
                    .handle(Input::Opened { socket, local }, self.now);
            }
            for (socket, dropped) in filtered {
                self.border
                    .handle(Input::Shed { socket, dropped }, self.now);
            }
            while let Some((socket, ..)) = self.forwarder.next_packet() {
                assert!(
                    self.sockets.contains_key(&socket),
                    "media from an unknown socket"
                );
                self.reached.forwarded += 1;
            }
            while let Some(report) = self.forwarder.next_report() {
                self.border.report(report, self.now);
                idle = false;
            }
            // The driver reads the deadline in every turn.
            let _ = self.border.next_deadline();
            if idle {
                return;
            }
        }
    }

    /// Checks the invariants.
    fn check(&mut self) {
        let reserved = self.border.taken(self.now);
        let handshake_cpu_us = reserved
            .iter()
            .find(|(part, _)| *part == CostPart::Handshakes);
        let handshake_cpu_us = handshake_cpu_us.map_or(0, |(_, price)| price.processor);
        self.reached.handshake_cpu_us = self.reached.handshake_cpu_us.max(handshake_cpu_us);
        let census = self.border.census();
        let described = || format!("{census:?}");
        assert!(census.calls <= CALLS, "{}", described());
        assert!(census.sip.legs <= 2 * CALLS, "{}", described());
        let transactions = census.sip.clients + census.sip.servers;
        assert!(transactions <= TRANSACTIONS, "{}", described());
        assert!(census.sip.connections <= 2 * CONNECTIONS, "{}", described());
        assert!(
            census.sip.connections <= self.streams.len(),
            "{}",
            described()
        );
        assert!(census.outside <= TRANSACTIONS, "{}", described());
        assert!(census.lookups <= QUERIES, "{}", described());
        assert!(census.sessions <= census.calls, "{}", described());
        assert_eq!(
            census.sessions,
            self.forwarder.sessions(),
            "{}",
            described()
        );
        // A port pair has one or two sockets.
        assert!(census.sockets_busy <= 2 * census.ports, "{}", described());
        assert!(census.ports <= census.sockets_busy, "{}", described());
        let media = self
            .sockets
            .values()
            .filter(|(kind, _)| *kind == SocketKind::UdpMedia)
            .count();
        assert_eq!(media, census.sockets_open, "{}", described());
        // Both sides, and a third one during a transfer or hunting.
        assert!(census.trunk_calls <= 2 * CALLS as u64, "{}", described());
        assert!(
            self.border.parts.registrar.location.len() <= REGISTRATIONS,
            "{}",
            described()
        );
        assert_eq!(self.border.calls().len(), census.calls);
        if census.calls == 0 {
            let held = (census.ports, census.sockets_busy, census.trunk_calls);
            assert_eq!(held, (0, 0, 0), "{}", described());
        }
    }

    /// Ends the run: a drain ends all calls, time everything else.
    fn finish(&mut self) {
        self.refuse_media = false;
        while let Some(connection) = self.stream(0) {
            self.streams.remove(&connection);
            let reason = CloseReason::Peer;
            self.feed(Input::Closed { connection, reason });
        }
        self.border.drain(Duration::from_secs(30), self.now);
        self.drain();
        self.check();
        self.advance(Duration::from_secs(200));
        self.check();
        assert!(self.border.is_drained(), "{:?}", self.border.calls());
        assert!(self.border.is_unregistered());
        // A configuration without pings, which would never end.
        self.border.reload(configuration(2), self.now);
        self.drain();
        self.advance(Duration::from_secs(200));
        self.check();
        let mut census = self.border.census();
        census.sip.connections = 0;
        assert!(census.is_quiet(), "{census:?}");
        let media = (self.forwarder.sessions(), self.forwarder.sockets());
        assert_eq!(media, (0, 0), "sessions and sockets of the forwarder");
        let longest = self.border.config().registrar.max_expires_s;
        self.advance(Duration::from_secs(u64::from(longest)));
        assert_eq!(
            self.border.parts.registrar.location.len(),
            0,
            "registrations that do not expire"
        );
        let counters = self.border.counters().clone();
        let ended = counters.completed
            + counters.cancelled
            + counters.declined
            + counters.unanswered
            + counters.refused
            + counters.redirected
            + counters.failed;
        assert_eq!(ended, counters.offered, "an outcome for each: {counters:?}");
        self.reached.counters = counters;
    }
}

/// The border sends SIP or keep-alives only.
fn assert_sip(bytes: &[u8]) {
    if bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
        return;
    }
    let parsed = wire::sip::Message::parse(bytes);
    assert!(parsed.is_ok(), "no SIP: {}", bytes.escape_ascii());
}

#[cfg(test)]
mod tests;
