//! Two endpoints in memory, joined by a wire that may lose, repeat and reorder.
#![allow(dead_code)]

use engine::{ConnectionId, Datagram, Deadline, Entropy, Input, Output, SocketId, Time, Transport};
use sip::{
    Content, DialogId, Ending, Endpoint, EndpointConfig, Failure, Flow, Fork, Indication, Invite,
    LegId, Local, LocalId, ServerTransaction, Target, TransactionId, User,
};
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;
use wire::sip::{HeaderId, Message};

pub const SDP: &[u8] = b"v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n";

/// What an indication said, kept for assertions.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    Offered(LegId),
    Progressed(LegId, Option<Fork>, u16, bool),
    Answered(LegId, u16),
    Failed(LegId, Failure, u16),
    Acked(LegId, Vec<u8>),
    Cancelled(LegId),
    Pracked(LegId, ServerTransaction),
    Request(LegId, ServerTransaction, String),
    RequestCancelled(LegId),
    Response(LegId, TransactionId, u16, String),
    TimedOut(LegId, TransactionId),
    Outside(ServerTransaction, String),
    InDialog(DialogId, ServerTransaction, String),
    OutsideResponse(u64, u16),
    OutsideTimedOut(u64),
    Ended(LegId, Ending),
    RefreshDue(LegId),
    Expired(LegId),
    FlowFailed,
}

/// What a host does by itself.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Final status for calls that are offered; `None`: wait.
    pub answer: Option<u16>,
    pub ring: bool,
    pub ack: bool,
    /// Answer requests inside and outside of dialogs with this.
    pub respond: Option<u16>,
    pub body: bool,
}

impl Default for Habits {
    fn default() -> Self {
        Habits {
            answer: Some(200),
            ring: true,
            ack: true,
            respond: Some(200),
            body: true,
        }
    }
}

#[derive(Default)]
pub struct Log {
    pub habits: Habits,
    pub said: Vec<Said>,
    /// Raw messages lent with the indications, in the same order (empty where there was none).
    pub texts: Vec<Vec<u8>>,
}

impl Log {
    pub fn last(&self) -> &Said {
        self.said.last().expect("something was said")
    }

    pub fn count(&self, wanted: impl Fn(&Said) -> bool) -> usize {
        self.said.iter().filter(|said| wanted(said)).count()
    }

    fn note(&mut self, said: Said, message: Option<&Message<'_>>) {
        self.said.push(said);
        self.texts
            .push(message.map(|m| m.bytes().to_vec()).unwrap_or_default());
    }
}

fn method(message: &Message<'_>) -> String {
    message.method().to_string()
}

fn content(body: bool) -> Content<'static> {
    match body {
        true => Content::sdp(SDP),
        false => Content::default(),
    }
}

impl User for Log {
    fn indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        let habits = self.habits.clone();
        match indication {
            Indication::Offered { leg, request, .. } => {
                self.note(Said::Offered(leg), Some(request));
                if habits.ring {
                    endpoint
                        .progress(leg, 180, &Content::default(), false, now)
                        .expect("ring");
                }
                match habits.answer {
                    Some(status @ 200..=299) => endpoint
                        .answer(leg, status, &content(habits.body), now)
                        .expect("answer"),
                    Some(status) => endpoint
                        .reject(leg, status, &Content::default(), now)
                        .expect("reject"),
                    None => {}
                }
            }
            Indication::Progressed {
                leg,
                fork,
                response,
                reliable,
            } => self.note(
                Said::Progressed(leg, fork, response.status(), reliable),
                Some(response),
            ),
            Indication::Answered { leg, response } => {
                self.note(Said::Answered(leg, response.status()), Some(response));
                if habits.ack {
                    endpoint.ack(leg, &Content::default(), now).expect("ack");
                }
            }
            Indication::Failed { leg, why, response } => self.note(
                Said::Failed(leg, why, response.map_or(0, |r| r.status())),
                response,
            ),
            Indication::Acked { leg, request } => {
                self.note(Said::Acked(leg, request.body().to_vec()), Some(request));
            }
            Indication::Cancelled { leg, request } => {
                self.note(Said::Cancelled(leg), Some(request));
            }
            Indication::Pracked {
                leg,
                transaction,
                request,
            } => {
                self.note(Said::Pracked(leg, transaction), Some(request));
                if let Some(status) = habits.respond {
                    endpoint
                        .respond(transaction, status, &Content::default(), now)
                        .expect("respond");
                }
            }
            Indication::Request {
                leg,
                transaction,
                request,
            } => {
                self.note(
                    Said::Request(leg, transaction, method(request)),
                    Some(request),
                );
                if let Some(status) = habits.respond {
                    let invite = request.method() == wire::sip::Method::Invite;
                    endpoint
                        .respond(transaction, status, &content(invite && status < 300), now)
                        .expect("respond");
                }
            }
            Indication::RequestCancelled { leg, .. } => {
                self.note(Said::RequestCancelled(leg), None);
            }
            Indication::Response {
                leg,
                transaction,
                response,
            } => {
                let name = response
                    .cseq()
                    .map(|cseq| cseq.method.to_string())
                    .unwrap_or_default();
                self.note(
                    Said::Response(leg, transaction, response.status(), name.clone()),
                    Some(response),
                );
                if habits.ack && name == "INVITE" && (200..300).contains(&response.status()) {
                    endpoint.ack(leg, &Content::default(), now).expect("ack");
                }
            }
            Indication::TimedOut { leg, transaction } => {
                self.note(Said::TimedOut(leg, transaction), None);
            }
            Indication::OutOfDialog {
                transaction,
                request,
                ..
            } => {
                self.note(Said::Outside(transaction, method(request)), Some(request));
                if let Some(status) = habits.respond {
                    endpoint
                        .respond(transaction, status, &Content::default(), now)
                        .expect("respond");
                }
            }
            Indication::InDialog {
                dialog,
                transaction,
                request,
                ..
            } => {
                let said = Said::InDialog(dialog, transaction, method(request));
                self.note(said, Some(request));
                if let Some(status) = habits.respond {
                    endpoint
                        .respond(transaction, status, &Content::default(), now)
                        .expect("respond");
                }
            }
            Indication::OutOfDialogResponse { user, response, .. } => {
                self.note(
                    Said::OutsideResponse(user, response.status()),
                    Some(response),
                );
            }
            Indication::OutOfDialogTimedOut { user, .. } => {
                self.note(Said::OutsideTimedOut(user), None);
            }
            Indication::Ended { leg, why, message } => {
                self.note(Said::Ended(leg, why), message);
            }
            Indication::RefreshDue { leg } => self.note(Said::RefreshDue(leg), None),
            Indication::SessionExpired { leg } => self.note(Said::Expired(leg), None),
            Indication::FlowFailed { .. } => self.note(Said::FlowFailed, None),
        }
    }
}

/// One endpoint with its user.
pub struct Host {
    pub endpoint: Endpoint,
    pub log: Log,
    pub udp: LocalId,
    pub tcp: LocalId,
    pub address: SocketAddr,
}

impl Host {
    pub fn new(address: &str, config: EndpointConfig, seed: u64) -> Host {
        let address: SocketAddr = address.parse().unwrap();
        let mut endpoint = Endpoint::new(config, Entropy::from_number(seed));
        let mut local = |socket, transport| {
            endpoint.add_local(Local {
                name: String::from("test"),
                socket: SocketId(socket),
                transport,
                address,
                advertised: String::new(),
            })
        };
        let udp = local(1, Transport::Udp);
        let tcp = local(2, Transport::Tcp);
        Host {
            endpoint,
            log: Log::default(),
            udp,
            tcp,
            address,
        }
    }

    pub fn feed(&mut self, input: Input<'_>, now: Time) {
        self.endpoint.feed(input, now, &mut self.log);
    }

    /// A datagram arrives.
    pub fn datagram(&mut self, bytes: &[u8], source: &str, now: Time) {
        let mut bytes = bytes.to_vec();
        self.feed(
            Input::Datagram(Datagram {
                socket: SocketId(1),
                source: source.parse().unwrap(),
                arrived: now,
                bytes: &mut bytes,
            }),
            now,
        );
    }

    /// All datagrams and stream pieces that want to leave.
    pub fn drain(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        while let Some(output) = self.endpoint.next_output() {
            sent.push(match output {
                Output::Datagram {
                    destination, bytes, ..
                } => Sent::Datagram(destination, bytes.to_vec()),
                Output::Stream { connection, bytes } => Sent::Stream(connection, bytes.to_vec()),
                Output::Connect {
                    connection, remote, ..
                } => Sent::Connect(connection, remote),
                Output::Close { connection } => Sent::Close(connection),
                other => panic!("unexpected {other:?}"),
            });
        }
        sent
    }

    /// The datagrams that want to leave, as text.
    pub fn datagrams(&mut self) -> Vec<String> {
        self.drain()
            .into_iter()
            .map(|sent| match sent {
                Sent::Datagram(_, bytes) => String::from_utf8(bytes).expect("text"),
                other => panic!("no datagram: {other:?}"),
            })
            .collect()
    }

    /// Runs time forward to `until`, timer by timer; gives what was sent and when.
    pub fn run(&mut self, until: Time) -> Vec<(Time, Sent)> {
        let mut all = Vec::new();
        while let Some(deadline) = self.endpoint.next_deadline().filter(|d| d.at <= until) {
            self.feed(Input::Timeout, deadline.at);
            let at = deadline.at;
            all.extend(self.drain().into_iter().map(|sent| (at, sent)));
        }
        self.feed(Input::Timeout, until);
        all.extend(self.drain().into_iter().map(|sent| (until, sent)));
        all
    }

    pub fn flow(&self, remote: &str) -> Flow {
        Flow {
            local: self.udp,
            transport: Transport::Udp,
            remote: remote.parse().unwrap(),
            connection: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Sent {
    Datagram(SocketAddr, Vec<u8>),
    Stream(ConnectionId, Vec<u8>),
    Connect(ConnectionId, SocketAddr),
    Close(ConnectionId),
}

/// Faults of the wire, each of a thousand datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lost: u64,
    pub twice: u64,
    pub late: u64,
}

struct Flight {
    at: Time,
    number: u64,
    to: usize,
    cargo: Cargo,
}

enum Cargo {
    Datagram(SocketAddr, Vec<u8>),
    Accepted(ConnectionId, SocketAddr),
    Connected(ConnectionId),
    Stream(ConnectionId, Vec<u8>),
    Closed(ConnectionId),
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Flight {}
impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Two hosts and the wire between them. Host 0 is 192.0.2.1:5060, host 1 is 192.0.2.2:5060.
pub struct Pair {
    pub hosts: [Host; 2],
    pub faults: Faults,
    pub now: Time,
    /// Every message on the wire: (time, from, text).
    pub ladder: Vec<(Time, usize, String)>,
    entropy: Entropy,
    flying: BinaryHeap<Flight>,
    number: u64,
    /// Connection of one host to its name at the other.
    joined: BTreeMap<(usize, u64), ConnectionId>,
    pub delay: Duration,
}

impl Pair {
    pub fn new(config: [EndpointConfig; 2], seed: u64) -> Pair {
        let [a, b] = config;
        Pair {
            hosts: [
                Host::new("192.0.2.1:5060", a, seed * 2 + 1),
                Host::new("192.0.2.2:5060", b, seed * 2 + 2),
            ],
            faults: Faults::default(),
            now: Time::ZERO,
            ladder: Vec::new(),
            entropy: Entropy::from_number(seed),
            flying: BinaryHeap::new(),
            number: 0,
            joined: BTreeMap::new(),
            delay: Duration::from_millis(5),
        }
    }

    pub fn plain() -> Pair {
        Pair::new([EndpointConfig::default(), EndpointConfig::default()], 1)
    }

    pub fn target(&self, from: usize, transport: Transport) -> Target<'static> {
        let uri: &[u8] = match (from, transport) {
            (0, Transport::Udp) => b"sip:bob@192.0.2.2:5060",
            (0, _) => b"sip:bob@192.0.2.2:5060;transport=tcp",
            (_, Transport::Udp) => b"sip:alice@192.0.2.1:5060",
            _ => b"sip:alice@192.0.2.1:5060;transport=tcp",
        };
        let host = &self.hosts[from];
        Target::new(
            uri,
            Flow {
                local: match transport {
                    Transport::Udp => host.udp,
                    _ => host.tcp,
                },
                transport,
                remote: self.hosts[1 - from].address,
                connection: None,
            },
        )
    }

    /// Host `from` calls the other with an SDP offer.
    pub fn call(&mut self, from: usize, transport: Transport) -> LegId {
        let target = self.target(from, transport);
        let invite = Invite {
            content: Content::sdp(SDP),
            ..Invite::new(target)
        };
        let leg = self.hosts[from]
            .endpoint
            .invite(&invite, self.now)
            .expect("invite");
        self.collect(from);
        leg
    }

    /// Puts what `from` has to send onto the wire.
    pub fn collect(&mut self, from: usize) {
        for sent in self.hosts[from].drain() {
            match sent {
                Sent::Datagram(to, bytes) => {
                    self.ladder.push((
                        self.now,
                        from,
                        String::from_utf8_lossy(&bytes).into_owned(),
                    ));
                    let source = self.hosts[from].address;
                    if to != self.hosts[1 - from].address {
                        continue;
                    }
                    if self.entropy.below(1_000) < self.faults.lost {
                        continue;
                    }
                    let copies = 1 + u64::from(self.entropy.below(1_000) < self.faults.twice);
                    for _ in 0..copies {
                        let late = match self.entropy.below(1_000) < self.faults.late {
                            true => Duration::from_millis(self.entropy.below(1_500)),
                            false => Duration::ZERO,
                        };
                        self.fly(1 - from, late, Cargo::Datagram(source, bytes.clone()));
                    }
                }
                Sent::Connect(id, _) => {
                    let theirs = ConnectionId(ConnectionId::ACCEPTED | id.0 << 1 | from as u64);
                    self.joined.insert((from, id.0), theirs);
                    self.joined.insert((1 - from, theirs.0), id);
                    let source = SocketAddr::new(
                        self.hosts[from].address.ip(),
                        40_000 + (id.0 % 10_000) as u16,
                    );
                    self.fly(1 - from, Duration::ZERO, Cargo::Accepted(theirs, source));
                    self.fly(from, Duration::ZERO, Cargo::Connected(id));
                }
                Sent::Stream(id, bytes) => {
                    self.ladder.push((
                        self.now,
                        from,
                        String::from_utf8_lossy(&bytes).into_owned(),
                    ));
                    if let Some(&theirs) = self.joined.get(&(from, id.0)) {
                        self.fly(1 - from, Duration::ZERO, Cargo::Stream(theirs, bytes));
                    }
                }
                Sent::Close(id) => {
                    if let Some(theirs) = self.joined.remove(&(from, id.0)) {
                        self.joined.remove(&(1 - from, theirs.0));
                        self.fly(1 - from, Duration::ZERO, Cargo::Closed(theirs));
                    }
                }
            }
        }
    }

    /// The network breaks a connection of `host`, at both ends.
    pub fn break_connections(&mut self) {
        for ((host, id), _) in std::mem::take(&mut self.joined) {
            self.fly(host, Duration::ZERO, Cargo::Closed(ConnectionId(id)));
        }
    }

    fn fly(&mut self, to: usize, late: Duration, cargo: Cargo) {
        self.number += 1;
        self.flying.push(Flight {
            at: self.now + self.delay + late,
            number: self.number,
            to,
            cargo,
        });
    }

    fn next_event(&self) -> Option<Time> {
        let wire = self
            .flying
            .peek()
            .map(|flight| Deadline::new(flight.at, ""));
        let hosts = self
            .hosts
            .iter()
            .map(|host| host.endpoint.next_deadline())
            .fold(None, Deadline::earlier);
        Deadline::earlier(wire, hosts).map(|deadline| deadline.at)
    }

    /// Runs until `until`.
    pub fn run_until(&mut self, until: Time) {
        for from in 0..2 {
            self.collect(from);
        }
        while let Some(at) = self.next_event().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            let now = self.now;
            if let Some(flight) = self.flying.peek().filter(|flight| flight.at <= now) {
                let to = flight.to;
                let flight = self.flying.pop().expect("peeked");
                self.deliver(to, flight.cargo);
            } else {
                for host in &mut self.hosts {
                    host.feed(Input::Timeout, now);
                }
            }
            for from in 0..2 {
                self.collect(from);
            }
        }
        self.now = until;
    }

    fn deliver(&mut self, to: usize, cargo: Cargo) {
        let now = self.now;
        let host = &mut self.hosts[to];
        match cargo {
            Cargo::Datagram(source, mut bytes) => host.feed(
                Input::Datagram(Datagram {
                    socket: SocketId(1),
                    source,
                    arrived: now,
                    bytes: &mut bytes,
                }),
                now,
            ),
            Cargo::Accepted(connection, remote) => {
                let local = host.address;
                host.feed(
                    Input::Accepted {
                        connection,
                        socket: SocketId(2),
                        local,
                        remote,
                    },
                    now,
                );
            }
            Cargo::Connected(connection) => {
                let local = host.address;
                host.feed(Input::Connected { connection, local }, now);
            }
            Cargo::Stream(connection, bytes) => host.feed(
                Input::Stream {
                    connection,
                    bytes: &bytes,
                },
                now,
            ),
            Cargo::Closed(connection) => host.feed(
                Input::Closed {
                    connection,
                    why: engine::CloseWhy::Peer,
                },
                now,
            ),
        }
    }

    /// Runs `span` further.
    pub fn run(&mut self, span: Duration) {
        let until = self.now + span;
        self.run_until(until);
    }

    /// Lets all timers end; then nothing may be left.
    pub fn settle(&mut self) {
        self.faults = Faults::default();
        self.run(Duration::from_secs(200));
        for (at, host) in self.hosts.iter().enumerate() {
            let census = host.endpoint.census();
            assert!(census.is_quiet(), "host {at} holds {census:?}");
        }
    }

    /// First lines of what was sent, as `0 INVITE` or `1 200 INVITE`.
    pub fn steps(&self) -> Vec<String> {
        self.ladder
            .iter()
            .filter_map(|(_, from, text)| {
                let message = Message::parse(text.as_bytes()).ok()?;
                let cseq = message.cseq().ok()?;
                Some(match message.status() {
                    0 => format!("{from} {}", message.method()),
                    status => format!("{from} {status} {}", cseq.method),
                })
            })
            .collect()
    }
}

/// The value of a header in a message given as text.
pub fn header(text: &str, id: HeaderId) -> Option<String> {
    let message = Message::parse(text.as_bytes()).ok()?;
    message
        .header(id)
        .map(|value| String::from_utf8_lossy(value).into_owned())
}
