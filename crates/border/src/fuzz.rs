//! Any bytes at any time into the whole border: the entry for fuzzers, and for tests that replay what they found.
//!
//! A world in virtual time: the border, its forwarder, and the sockets and connections of a driver that keeps to its
//! contract. The input is a list of steps. What peers say is made from what the border said last, so that it belongs to
//! transactions, dialogs and challenges that exist; then the input changes it.

mod configurations;
mod secure;
mod speech;

use crate::admission::Part;
use crate::border::Border;
use configurations::*;
use core::time::Duration;
use engine::{
    CloseWhy, ConnectionId, Control, Datagram, Engine, Entropy, Forward, HashKey, Input, Output,
    Packet, SocketId, SocketKind, Time, Verdict,
};
use media::{Forwarder, ForwarderLimits};
use secure::Keyed;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// What was said, of which the input may choose.
const REMEMBERED: usize = 16;
/// Outputs that one input may cause.
const OUTPUTS: usize = 2_000;
/// Timeouts that one instant may ask for.
const AT_ONCE: usize = 200;

/// See [`explore`]; without DTLS.
pub fn fuzz_border(data: &[u8]) {
    explore(data, None);
}

/// See [`explore`]. The peers have the border's certificate, for want of a second one.
pub fn fuzz_border_with_dtls(data: &[u8], endpoint: &protect::dtls::Endpoint) {
    explore(data, Some(endpoint));
}

/// What a program of steps reached, so that tests can tell whether theirs reach anything.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    /// The border's counters at the end.
    pub counters: crate::border::Counters,
    /// Names of all events, in order.
    pub events: Vec<&'static str>,
    /// SIP messages that the border sent.
    pub sent: usize,
    /// Packets that its forwarder passed on.
    pub forwarded: usize,
    /// STUN and DTLS that its forwarder passed up.
    pub punted: usize,
    /// The most that handshakes of a second were counted for, microseconds of processor time.
    pub shaking: u64,
}

/// Where something came from, and where an answer to it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Socket(SocketId, SocketAddr),
    Stream(ConnectionId),
}

#[derive(Clone, Debug)]
struct Said {
    way: Way,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Open,
}

struct World {
    border: Border,
    forwarder: Forwarder,
    now: Time,
    sockets: BTreeMap<SocketId, (SocketKind, SocketAddr)>,
    /// Sockets that were open once: what transactions still send from there is the driver's to count.
    shut: Vec<SocketId>,
    streams: BTreeMap<ConnectionId, Stage>,
    accepted: u64,
    said: VecDeque<Said>,
    queries: VecDeque<Said>,
    /// Requests of peers outside of dialogs, to be repeated with credentials.
    asked: VecDeque<(Way, Vec<u8>)>,
    number: u32,
    keyed: Keyed,
    refuse_media: bool,
    secretive: bool,
    reached: Reached,
}

/// Reads `data` as a list of steps and carries them out. Panics where a limit is broken, where the border sends what is no
/// SIP or from where it has no socket, where an event tells a secret, and where something is left when all is over. With an
/// `endpoint` it speaks DTLS, whose randomness is not the input's.
pub fn explore(data: &[u8], endpoint: Option<&protect::dtls::Endpoint>) -> Reached {
    let mut world = World::new(data, endpoint);
    let mut rest = data;
    while let [kind, choice, length, tail @ ..] = rest {
        let length = usize::from(*length).saturating_mul(4).min(tail.len());
        let (bytes, tail) = tail.split_at(length);
        rest = tail;
        world.step(*kind, *choice, bytes);
        world.check();
    }
    world.finish();
    world.reached
}

fn remember<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == REMEMBERED {
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

impl World {
    fn new(data: &[u8], endpoint: Option<&protect::dtls::Endpoint>) -> World {
        let mut entropy = Entropy::from_number(1);
        let mut border = Border::new(configuration(0), entropy.fork());
        if let Some(endpoint) = endpoint {
            border.set_dtls(endpoint.clone());
        }
        let limits = ForwarderLimits {
            rooms: 4,
            sessions: 2 * CALLS,
            ..ForwarderLimits::default()
        };
        let mut world = World {
            border,
            forwarder: Forwarder::new(limits, HashKey::new(&mut entropy)),
            now: Time::from_millis(1),
            sockets: BTreeMap::new(),
            shut: Vec::new(),
            streams: BTreeMap::new(),
            accepted: 0,
            said: VecDeque::new(),
            queries: VecDeque::new(),
            asked: VecDeque::new(),
            number: 0,
            keyed: Keyed::new(endpoint.cloned()),
            refuse_media: false,
            // Where the input says the secret itself, events may quote it.
            secretive: !data.windows(SECRET.len()).any(|window| window == SECRET),
            reached: Reached::default(),
        };
        world.feed(Input::Timeout);
        world
    }

    fn step(&mut self, kind: u8, choice: u8, bytes: &[u8]) {
        match kind % 16 {
            0 => self.deliver(self.any_way(choice), bytes),
            1 => self.stream_bytes(choice, bytes),
            2 => self.accept(choice),
            3 => self.settle(choice),
            4 => self.hang_up(choice),
            5 | 6 => self.pass(Duration::from_millis(1 << (choice % 18))),
            7 | 8 => self.ask(choice, bytes),
            9 | 10 => self.reply(choice, bytes),
            11 | 12 => self.go_on(choice, bytes),
            13 => self.media(choice, bytes),
            14 => self.name_server(choice, bytes),
            _ => self.operate(choice, bytes),
        }
    }

    fn nth<T>(queue: &VecDeque<T>, back: u8) -> Option<&T> {
        let back = usize::from(back) % queue.len().max(1);
        queue.get(queue.len().checked_sub(1 + back)?)
    }

    /// A signalling socket and a peer.
    fn any_way(&self, choice: u8) -> Way {
        let sockets: Vec<SocketId> = self
            .sockets
            .iter()
            .filter(|(_, (kind, _))| *kind == SocketKind::UdpSignalling)
            .map(|(socket, _)| *socket)
            .collect();
        let at = usize::from(choice & 7) % sockets.len().max(1);
        match sockets.get(at) {
            Some(socket) => Way::Socket(*socket, peer(choice >> 3 & 7)),
            None => Way::Stream(ConnectionId(0)),
        }
    }

    fn deliver(&mut self, way: Way, bytes: &[u8]) {
        match way {
            Way::Socket(socket, source) if self.sockets.contains_key(&socket) => {
                let mut bytes = bytes.to_vec();
                let arrived = self.now;
                self.feed(Input::Datagram(Datagram {
                    socket,
                    source,
                    arrived,
                    bytes: &mut bytes,
                }));
            }
            Way::Stream(connection) if self.streams.get(&connection) == Some(&Stage::Open) => {
                // In two pieces, anywhere.
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
            self.deliver(Way::Stream(connection), bytes);
        }
    }

    fn accept(&mut self, choice: u8) {
        let listeners: Vec<(SocketId, SocketAddr)> = self
            .sockets
            .iter()
            .filter(|(_, (kind, _))| kind.stream().is_some())
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
        self.streams.insert(connection, Stage::Open);
        self.feed(Input::Accepted {
            connection,
            socket,
            local,
            remote,
        });
    }

    /// A connection that the border asked for stands, or does not.
    fn settle(&mut self, choice: u8) {
        let asked = self
            .streams
            .iter()
            .find(|(_, stage)| **stage == Stage::Asked);
        let Some((&connection, _)) = asked else {
            return;
        };
        if choice & 3 == 0 {
            self.streams.remove(&connection);
            let why = CloseWhy::Refused;
            return self.feed(Input::Closed { connection, why });
        }
        self.streams.insert(connection, Stage::Open);
        let local = SocketAddr::from(([198, 51, 100, 1], 41_000));
        self.feed(Input::Connected { connection, local });
    }

    fn hang_up(&mut self, choice: u8) {
        if let Some(connection) = self.stream(choice) {
            self.streams.remove(&connection);
            let why = [CloseWhy::Peer, CloseWhy::Error, CloseWhy::Backpressure]
                [usize::from(choice >> 6) % 3];
            self.feed(Input::Closed { connection, why });
        }
    }

    /// A request of a peer's; or, where the choice says so, the last challenged one again, with credentials.
    fn ask(&mut self, choice: u8, bytes: &[u8]) {
        if choice & 0xf0 == 0xf0 {
            return self.prove(choice);
        }
        self.number += 1;
        let last = Self::nth(&self.said, bytes.get(3).copied().unwrap_or_default())
            .map_or(Vec::new(), |said| said.bytes.clone());
        let mut message = speech::fresh(choice, bytes, self.number, &last);
        if bytes.get(2).is_some_and(|byte| byte & 0x80 != 0) {
            speech::mutate(&mut message, bytes.get(8..).unwrap_or_default());
        }
        let way = match (bytes.get(5), self.stream(choice >> 4)) {
            (Some(byte), Some(connection)) if byte & 0x80 != 0 => Way::Stream(connection),
            (byte, _) => self.any_way(byte.copied().unwrap_or_default()),
        };
        self.keyed.sign(&mut message);
        remember(&mut self.asked, (way, message.clone()));
        self.deliver(way, &message);
    }

    fn prove(&mut self, choice: u8) {
        let challenge = self
            .said
            .iter()
            .rev()
            .find(|said| speech::is_challenge(&said.bytes));
        let Some(challenge) = challenge.cloned() else {
            return;
        };
        let id = speech::call_id(&challenge.bytes);
        let asked = self
            .asked
            .iter()
            .rev()
            .find(|(_, request)| id.is_some() && speech::call_id(request) == id)
            .cloned();
        if let Some((way, request)) = asked
            && let Some(again) = speech::proven(&request, &challenge.bytes, choice)
        {
            self.deliver(way, &again);
        }
    }

    /// A response to something that the border asked.
    fn reply(&mut self, choice: u8, bytes: &[u8]) {
        let back = bytes.get(3).copied().unwrap_or_default();
        // Requests only, unless the input wants otherwise.
        let requests: VecDeque<&Said> = self
            .said
            .iter()
            .filter(|said| !said.bytes.starts_with(b"SIP/2.0") && !said.bytes.starts_with(b"ACK"))
            .collect();
        let Some(said) = Self::nth(&requests, back).map(|said| (*said).clone()) else {
            return;
        };
        if let Some(mut message) = speech::answer(&said.bytes, choice, bytes) {
            if bytes.get(2).is_some_and(|byte| byte & 0x80 != 0) {
                speech::mutate(&mut message, bytes.get(8..).unwrap_or_default());
            }
            self.keyed.sign(&mut message);
            self.deliver(said.way, &message);
        }
    }

    /// A request inside a dialog.
    fn go_on(&mut self, choice: u8, bytes: &[u8]) {
        let at = |index: usize| bytes.get(index).copied().unwrap_or_default();
        let Some(said) = Self::nth(&self.said, at(3)).cloned() else {
            return;
        };
        let other = Self::nth(&self.said, at(4)).map_or(Vec::new(), |said| said.bytes.clone());
        self.number += 1;
        let message = speech::inside(&said.bytes, choice, bytes, self.number, &other);
        if let Some(mut message) = message {
            if at(2) & 0x80 != 0 {
                speech::mutate(&mut message, bytes.get(8..).unwrap_or_default());
            }
            self.keyed.sign(&mut message);
            // From elsewhere now and then.
            let way = match (said.way, at(5) & 0xf8) {
                (Way::Socket(socket, _), 0xf8) => Way::Socket(socket, peer(at(5))),
                (way, _) => way,
            };
            self.deliver(way, &message);
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
            4 => self.keyed.sealed(&[&rtp[..], bytes].concat(), false),
            5 => self.keyed.sealed(&report, true),
            6 => self.keyed.check(byte(2)),
            7 => {
                for datagram in self.keyed.shake(byte(2), self.now) {
                    self.packet(socket, source, &datagram);
                }
                return;
            }
            _ => bytes.to_vec(),
        };
        self.packet(socket, source, &packet);
    }

    /// A packet for a media path, as the driver treats it: the forwarder first, and control with what that passes up.
    fn packet(&mut self, socket: SocketId, source: SocketAddr, bytes: &[u8]) {
        let arrived = self.now;
        let mut buffer = bytes.to_vec();
        buffer.resize(bytes.len() + Packet::ROOM, 0);
        let mut packet = Packet {
            length: bytes.len(),
            ..Packet::new(socket, source, arrived, &mut buffer)
        };
        match self.forwarder.forward(&mut packet, self.now) {
            Verdict::Forward { socket, .. } => {
                assert!(self.sockets.contains_key(&socket), "media from no socket");
                self.reached.forwarded += 1;
            }
            Verdict::Punt(_) => {
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

    fn name_server(&mut self, choice: u8, bytes: &[u8]) {
        let Some(query) = Self::nth(&self.queries, choice >> 7).cloned() else {
            return;
        };
        let Some(answer) = speech::dns_answer(&query.bytes, choice, bytes) else {
            return;
        };
        self.deliver(query.way, &answer);
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
            // The same bytes on a resolver's socket, as if they were an answer.
            _ => {
                if let Some(query) = self.queries.back().cloned() {
                    self.deliver(query.way, bytes);
                }
            }
        }
    }

    /// Time passes; whoever asked to be called then is called.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        let mut at_once = 0;
        loop {
            let border = self.border.next_deadline().map_or(Time::FAR, |due| due.at);
            let forwarder = self
                .forwarder
                .next_deadline()
                .map_or(Time::FAR, |due| due.at);
            let next = border.min(forwarder);
            if next > end {
                break;
            }
            at_once = if next > self.now { 0 } else { at_once + 1 };
            assert!(
                at_once < AT_ONCE,
                "time stands still: {:?} {:?}",
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

    /// Everything that the border and its forwarder have to say, until both are silent.
    fn drain(&mut self) {
        let mut outputs = 0;
        loop {
            let (mut opened, mut sifted) = (Vec::new(), Vec::new());
            while let Some(output) = self.border.next_output() {
                outputs += 1;
                assert!(outputs < OUTPUTS, "one input, endless outputs");
                match output {
                    Output::Open {
                        socket,
                        kind,
                        local,
                    } => opened.push((socket, kind, local)),
                    Output::Hand { .. } => {
                        panic!("handed to another worker, of whom there is none")
                    }
                    Output::Shut { socket } => {
                        assert!(self.sockets.remove(&socket).is_some(), "shut, not open");
                        self.shut.push(socket);
                    }
                    Output::Record { .. } => panic!("the border records nothing"),
                    Output::Sieve { socket, sieve } => {
                        sifted.push((socket, u64::from(sieve.is_none())));
                    }
                    Output::Datagram {
                        socket,
                        destination,
                        bytes,
                    } => {
                        let way = Way::Socket(socket, destination);
                        let said = Said {
                            way,
                            bytes: bytes.to_vec(),
                        };
                        // What is to be opened in this turn is open for the driver when it sends.
                        let resolver = destination.port() == 53;
                        let kind = self.sockets.get(&socket).map(|(kind, _)| *kind);
                        let known = self.sockets.contains_key(&socket)
                            || self.shut.contains(&socket)
                            || opened.iter().any(|(id, ..)| *id == socket);
                        assert!(known, "sent from no socket: {}", bytes.escape_ascii());
                        match resolver {
                            true => remember(&mut self.queries, said),
                            false if kind == Some(SocketKind::UdpMedia) => self.keyed.hear(bytes),
                            false => {
                                judge(bytes);
                                self.keyed.read(bytes);
                                self.reached.sent += 1;
                                remember(&mut self.said, said);
                            }
                        }
                    }
                    Output::Connect { connection, .. } => {
                        let before = self.streams.insert(connection, Stage::Asked);
                        assert_eq!(before, None, "one number for two connections");
                    }
                    Output::Stream { connection, bytes } => {
                        // The peer may have gone in the meantime: the driver's to ignore.
                        judge(bytes);
                        self.keyed.read(bytes);
                        self.reached.sent += 1;
                        let said = Said {
                            way: Way::Stream(connection),
                            bytes: bytes.to_vec(),
                        };
                        remember(&mut self.said, said);
                    }
                    Output::Close { connection } => {
                        self.streams.remove(&connection);
                    }
                    Output::Event(event) => {
                        let text = event.to_string();
                        let told = text
                            .as_bytes()
                            .windows(SECRET.len())
                            .any(|window| window == SECRET);
                        assert!(!(told && self.secretive), "an event tells a secret: {text}");
                        self.reached.events.push(event.note.name());
                    }
                }
            }
            let mut silent = opened.is_empty() && sifted.is_empty();
            while let Some(command) = self.border.next_command() {
                self.forwarder.command(command, self.now);
                silent = false;
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
                        || (*at == local && other.stream().is_some() == kind.stream().is_some())
                });
                assert!(!taken, "{local} is opened twice");
                self.sockets.insert(socket, (kind, local));
                self.border
                    .handle(Input::Opened { socket, local }, self.now);
            }
            for (socket, dropped) in sifted {
                self.border
                    .handle(Input::Sifted { socket, dropped }, self.now);
            }
            while let Some((socket, ..)) = self.forwarder.next_packet() {
                assert!(self.sockets.contains_key(&socket), "media from no socket");
                self.reached.forwarded += 1;
            }
            while let Some(report) = self.forwarder.next_report() {
                self.border.report(report, self.now);
                silent = false;
            }
            // The driver asks for the deadline in every turn.
            let _ = self.border.next_deadline();
            if silent {
                return;
            }
        }
    }

    /// What must hold at any time.
    fn check(&mut self) {
        let taken = self.border.taken(self.now);
        let shaking = taken.iter().find(|(part, _)| *part == Part::Handshakes);
        let shaking = shaking.map_or(0, |(_, cost)| cost.processor);
        self.reached.shaking = self.reached.shaking.max(shaking);
        let census = self.border.census();
        let told = || format!("{census:?}");
        assert!(census.calls <= CALLS, "{}", told());
        assert!(census.sip.legs <= 2 * CALLS, "{}", told());
        let transactions = census.sip.clients + census.sip.servers;
        assert!(transactions <= TRANSACTIONS, "{}", told());
        assert!(census.sip.connections <= CONNECTIONS, "{}", told());
        assert!(census.sip.connections <= self.streams.len(), "{}", told());
        assert!(census.outside <= TRANSACTIONS, "{}", told());
        assert!(census.lookups <= QUERIES, "{}", told());
        assert!(census.sessions <= census.calls, "{}", told());
        assert_eq!(census.sessions, self.forwarder.sessions(), "{}", told());
        // A pair of ports has one socket or two.
        assert!(census.sockets_busy <= 2 * census.ports, "{}", told());
        assert!(census.ports <= census.sockets_busy, "{}", told());
        let media = self
            .sockets
            .values()
            .filter(|(kind, _)| *kind == SocketKind::UdpMedia)
            .count();
        assert_eq!(media, census.sockets_open, "{}", told());
        // Both sides, and a third one while a call is transferred or hops are tried.
        assert!(census.trunk_calls <= 2 * CALLS as u64, "{}", told());
        assert!(
            self.border.core.location.len() <= REGISTRATIONS,
            "{}",
            told()
        );
        assert_eq!(self.border.calls().len(), census.calls);
        if census.calls == 0 {
            let held = (census.ports, census.sockets_busy, census.trunk_calls);
            assert_eq!(held, (0, 0, 0), "{}", told());
        }
    }

    /// No peer says anything any more: a drain ends all calls, time everything else.
    fn finish(&mut self) {
        self.refuse_media = false;
        while let Some(connection) = self.stream(0) {
            self.streams.remove(&connection);
            let why = CloseWhy::Peer;
            self.feed(Input::Closed { connection, why });
        }
        self.border.drain(Duration::from_secs(30), self.now);
        self.drain();
        self.check();
        self.pass(Duration::from_secs(200));
        self.check();
        assert!(self.border.is_drained(), "{:?}", self.border.calls());
        assert!(self.border.is_unregistered());
        // Pings would go on for ever.
        self.border.reload(configuration(2), self.now);
        self.drain();
        self.pass(Duration::from_secs(200));
        self.check();
        let mut census = self.border.census();
        census.sip.connections = 0;
        assert!(census.is_quiet(), "{census:?}");
        let media = (self.forwarder.sessions(), self.forwarder.sockets());
        assert_eq!(media, (0, 0), "sessions and sockets of the forwarder");
        let longest = self.border.config().registrar.max_expires;
        self.pass(Duration::from_secs(u64::from(longest)));
        assert_eq!(
            self.border.core.location.len(),
            0,
            "registrations without end"
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

/// What the border sends is SIP, or a keep-alive.
fn judge(bytes: &[u8]) {
    if bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
        return;
    }
    let parsed = wire::sip::Message::parse(bytes);
    assert!(parsed.is_ok(), "no SIP: {}", bytes.escape_ascii());
}

#[cfg(test)]
mod tests;
