//! Two endpoints in memory, connected by a link that can lose, duplicate and reorder.
#![allow(dead_code)]

use engine::{ConnectionId, Datagram, Deadline, Entropy, Input, Output, SocketId, Time, Transport};
use sip::{
    DialogId, Ending, Endpoint, EndpointConfig, Failure, Flow, Fork, Handler, Indication, Invite,
    LegId, ListenerConfig, ListenerId, MessageContent, ServerTransaction, Target, TransactionId,
};
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;
use wire::sip::{HeaderId, Message};

pub const SDP: &[u8] = b"v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 0\r\n";

/// A received indication, recorded for assertions.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordedIndication {
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
    OutOfDialog(ServerTransaction, String),
    InDialog(DialogId, ServerTransaction, String),
    OutOfDialogResponse(u64, u16),
    OutOfDialogTimedOut(u64),
    Ended(LegId, Ending),
    RefreshDue(LegId),
    SessionExpired(LegId),
    FlowFailed,
}

/// Automatic behaviour of a host.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Final status for offered calls; `None`: none is sent.
    pub answer: Option<u16>,
    pub ring: bool,
    pub ack: bool,
    /// Status for requests within and outside of dialogs; `None`: none is sent.
    pub respond: Option<u16>,
    pub body: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            answer: Some(200),
            ring: true,
            ack: true,
            respond: Some(200),
            body: true,
        }
    }
}

#[derive(Default)]
pub struct HandlerLog {
    pub behaviour: Behaviour,
    pub indications: Vec<RecordedIndication>,
    /// The indications' messages, in the same order (empty if there was none).
    pub texts: Vec<Vec<u8>>,
}

impl HandlerLog {
    pub fn last(&self) -> &RecordedIndication {
        self.indications.last().expect("at least one indication")
    }

    pub fn count(&self, wanted: impl Fn(&RecordedIndication) -> bool) -> usize {
        self.indications
            .iter()
            .filter(|recorded| wanted(recorded))
            .count()
    }

    fn record(&mut self, recorded: RecordedIndication, message: Option<&Message<'_>>) {
        self.indications.push(recorded);
        self.texts
            .push(message.map(|m| m.bytes().to_vec()).unwrap_or_default());
    }
}

fn method(message: &Message<'_>) -> String {
    message.method().to_string()
}

fn content(body: bool) -> MessageContent<'static> {
    match body {
        true => MessageContent::sdp(SDP),
        false => MessageContent::default(),
    }
}

impl Handler for HandlerLog {
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        let behaviour = self.behaviour.clone();
        match indication {
            Indication::Offered { leg, request, .. } => {
                self.record(RecordedIndication::Offered(leg), Some(request));
                if behaviour.ring {
                    endpoint
                        .progress(leg, 180, &MessageContent::default(), false, now)
                        .expect("ring");
                }
                match behaviour.answer {
                    Some(status @ 200..=299) => endpoint
                        .answer(leg, status, &content(behaviour.body), now)
                        .expect("answer"),
                    Some(status) => endpoint
                        .reject(leg, status, &MessageContent::default(), now)
                        .expect("reject"),
                    None => {}
                }
            }
            Indication::Progressed {
                leg,
                fork,
                response,
                reliable,
            } => self.record(
                RecordedIndication::Progressed(leg, fork, response.status(), reliable),
                Some(response),
            ),
            Indication::Answered { leg, response, .. } => {
                self.record(
                    RecordedIndication::Answered(leg, response.status()),
                    Some(response),
                );
                if behaviour.ack {
                    endpoint
                        .ack(leg, &MessageContent::default(), now)
                        .expect("ack");
                }
            }
            Indication::Failed {
                leg,
                reason: why,
                response,
            } => self.record(
                RecordedIndication::Failed(leg, why, response.map_or(0, |r| r.status())),
                response,
            ),
            Indication::Acked { leg, request } => {
                self.record(
                    RecordedIndication::Acked(leg, request.body().to_vec()),
                    Some(request),
                );
            }
            Indication::Cancelled { leg, request } => {
                self.record(RecordedIndication::Cancelled(leg), Some(request));
            }
            Indication::Pracked {
                leg,
                transaction,
                request,
            } => {
                self.record(RecordedIndication::Pracked(leg, transaction), Some(request));
                if let Some(status) = behaviour.respond {
                    endpoint
                        .respond(transaction, status, &MessageContent::default(), now)
                        .expect("respond");
                }
            }
            Indication::Request {
                leg,
                transaction,
                request,
            } => {
                self.record(
                    RecordedIndication::Request(leg, transaction, method(request)),
                    Some(request),
                );
                if let Some(status) = behaviour.respond {
                    let invite = request.method() == wire::sip::Method::Invite;
                    endpoint
                        .respond(transaction, status, &content(invite && status < 300), now)
                        .expect("respond");
                }
            }
            Indication::RequestCancelled { leg, .. } => {
                self.record(RecordedIndication::RequestCancelled(leg), None);
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
                self.record(
                    RecordedIndication::Response(leg, transaction, response.status(), name.clone()),
                    Some(response),
                );
                if behaviour.ack && name == "INVITE" && (200..300).contains(&response.status()) {
                    endpoint
                        .ack(leg, &MessageContent::default(), now)
                        .expect("ack");
                }
            }
            Indication::TimedOut {
                leg, transaction, ..
            } => {
                self.record(RecordedIndication::TimedOut(leg, transaction), None);
            }
            Indication::OutOfDialog {
                transaction,
                request,
                ..
            } => {
                self.record(
                    RecordedIndication::OutOfDialog(transaction, method(request)),
                    Some(request),
                );
                if let Some(status) = behaviour.respond {
                    endpoint
                        .respond(transaction, status, &MessageContent::default(), now)
                        .expect("respond");
                }
            }
            Indication::InDialog {
                dialog,
                transaction,
                request,
                ..
            } => {
                let recorded = RecordedIndication::InDialog(dialog, transaction, method(request));
                self.record(recorded, Some(request));
                if let Some(status) = behaviour.respond {
                    endpoint
                        .respond(transaction, status, &MessageContent::default(), now)
                        .expect("respond");
                }
            }
            Indication::OutOfDialogResponse { user, response, .. } => {
                self.record(
                    RecordedIndication::OutOfDialogResponse(user, response.status()),
                    Some(response),
                );
            }
            Indication::OutOfDialogTimedOut { user, .. } => {
                self.record(RecordedIndication::OutOfDialogTimedOut(user), None);
            }
            Indication::Ended {
                leg,
                reason: why,
                message,
            } => {
                self.record(RecordedIndication::Ended(leg, why), message);
            }
            Indication::RefreshDue { leg } => {
                self.record(RecordedIndication::RefreshDue(leg), None)
            }
            Indication::SessionExpired { leg } => {
                self.record(RecordedIndication::SessionExpired(leg), None)
            }
            Indication::FlowFailed { .. } => self.record(RecordedIndication::FlowFailed, None),
        }
    }
}

/// One endpoint with its handler.
pub struct Host {
    pub endpoint: Endpoint,
    pub log: HandlerLog,
    pub udp: ListenerId,
    pub tcp: ListenerId,
    pub address: SocketAddr,
}

impl Host {
    pub fn new(address: &str, config: EndpointConfig, seed: u64) -> Host {
        let address: SocketAddr = address.parse().unwrap();
        let mut endpoint = Endpoint::new(config, Entropy::from_number(seed));
        let mut local = |socket, transport| {
            endpoint.add_listener(ListenerConfig {
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
            log: HandlerLog::default(),
            udp,
            tcp,
            address,
        }
    }

    pub fn feed(&mut self, input: Input<'_>, now: Time) {
        self.endpoint.feed(input, now, &mut self.log);
    }

    /// Receives a datagram.
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

    /// All pending outputs.
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

    /// The pending datagrams as text.
    pub fn datagrams(&mut self) -> Vec<String> {
        self.drain()
            .into_iter()
            .map(|sent| match sent {
                Sent::Datagram(_, bytes) => String::from_utf8(bytes).expect("text"),
                other => panic!("no datagram: {other:?}"),
            })
            .collect()
    }

    /// Runs timers up to `until`; returns the outputs with their times.
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

/// Faults of the link, each per thousand datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lost: u64,
    pub duplicated: u64,
    pub late: u64,
}

struct InTransit {
    at: Time,
    number: u64,
    to: usize,
    payload: LinkPayload,
}

enum LinkPayload {
    Datagram(SocketAddr, Vec<u8>),
    Accepted(ConnectionId, SocketAddr),
    Connected(ConnectionId),
    Stream(ConnectionId, Vec<u8>),
    Closed(ConnectionId),
}

impl PartialEq for InTransit {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for InTransit {}
impl PartialOrd for InTransit {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for InTransit {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Two hosts and the link between them. Host 0 is 192.0.2.1:5060, host 1 is 192.0.2.2:5060.
pub struct Pair {
    pub hosts: [Host; 2],
    pub faults: Faults,
    pub now: Time,
    /// Every message on the link: (time, sender, text).
    pub ladder: Vec<(Time, usize, String)>,
    entropy: Entropy,
    in_transit: BinaryHeap<InTransit>,
    number: u64,
    /// Connection of one host to its identifier at the other.
    peer_connections: BTreeMap<(usize, u64), ConnectionId>,
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
            in_transit: BinaryHeap::new(),
            number: 0,
            peer_connections: BTreeMap::new(),
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

    /// Host `from` calls the other one with an SDP offer.
    pub fn call(&mut self, from: usize, transport: Transport) -> LegId {
        let target = self.target(from, transport);
        let invite = Invite {
            content: MessageContent::sdp(SDP),
            ..Invite::new(target)
        };
        let leg = self.hosts[from]
            .endpoint
            .invite(&invite, self.now)
            .expect("invite");
        self.collect(from);
        leg
    }

    /// Puts the outputs of `from` onto the link.
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
                    let copies = 1 + u64::from(self.entropy.below(1_000) < self.faults.duplicated);
                    for _ in 0..copies {
                        let late = match self.entropy.below(1_000) < self.faults.late {
                            true => Duration::from_millis(self.entropy.below(1_500)),
                            false => Duration::ZERO,
                        };
                        self.schedule(1 - from, late, LinkPayload::Datagram(source, bytes.clone()));
                    }
                }
                Sent::Connect(id, _) => {
                    let theirs = ConnectionId(ConnectionId::ACCEPTED | id.0 << 1 | from as u64);
                    self.peer_connections.insert((from, id.0), theirs);
                    self.peer_connections.insert((1 - from, theirs.0), id);
                    let source = SocketAddr::new(
                        self.hosts[from].address.ip(),
                        40_000 + (id.0 % 10_000) as u16,
                    );
                    self.schedule(
                        1 - from,
                        Duration::ZERO,
                        LinkPayload::Accepted(theirs, source),
                    );
                    self.schedule(from, Duration::ZERO, LinkPayload::Connected(id));
                }
                Sent::Stream(id, bytes) => {
                    self.ladder.push((
                        self.now,
                        from,
                        String::from_utf8_lossy(&bytes).into_owned(),
                    ));
                    if let Some(&theirs) = self.peer_connections.get(&(from, id.0)) {
                        self.schedule(1 - from, Duration::ZERO, LinkPayload::Stream(theirs, bytes));
                    }
                }
                Sent::Close(id) => {
                    if let Some(theirs) = self.peer_connections.remove(&(from, id.0)) {
                        self.peer_connections.remove(&(1 - from, theirs.0));
                        self.schedule(1 - from, Duration::ZERO, LinkPayload::Closed(theirs));
                    }
                }
            }
        }
    }

    /// Closes all connections at both ends.
    pub fn break_connections(&mut self) {
        for ((host, id), _) in std::mem::take(&mut self.peer_connections) {
            self.schedule(host, Duration::ZERO, LinkPayload::Closed(ConnectionId(id)));
        }
    }

    fn schedule(&mut self, to: usize, late: Duration, payload: LinkPayload) {
        self.number += 1;
        self.in_transit.push(InTransit {
            at: self.now + self.delay + late,
            number: self.number,
            to,
            payload,
        });
    }

    fn next_event(&self) -> Option<Time> {
        let wire = self
            .in_transit
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
            if let Some(flight) = self.in_transit.peek().filter(|flight| flight.at <= now) {
                let to = flight.to;
                let flight = self.in_transit.pop().expect("peeked");
                self.deliver(to, flight.payload);
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

    fn deliver(&mut self, to: usize, payload: LinkPayload) {
        let now = self.now;
        let host = &mut self.hosts[to];
        match payload {
            LinkPayload::Datagram(source, mut bytes) => host.feed(
                Input::Datagram(Datagram {
                    socket: SocketId(1),
                    source,
                    arrived: now,
                    bytes: &mut bytes,
                }),
                now,
            ),
            LinkPayload::Accepted(connection, remote) => {
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
            LinkPayload::Connected(connection) => {
                let local = host.address;
                host.feed(Input::Connected { connection, local }, now);
            }
            LinkPayload::Stream(connection, bytes) => host.feed(
                Input::Stream {
                    connection,
                    bytes: &bytes,
                },
                now,
            ),
            LinkPayload::Closed(connection) => host.feed(
                Input::Closed {
                    connection,
                    reason: engine::CloseReason::Peer,
                },
                now,
            ),
        }
    }

    /// Runs for `span`.
    pub fn run(&mut self, span: Duration) {
        let until = self.now + span;
        self.run_until(until);
    }

    /// Runs until all timers have ended; no state may be left.
    pub fn settle(&mut self) {
        self.faults = Faults::default();
        self.run(Duration::from_secs(200));
        for (at, host) in self.hosts.iter().enumerate() {
            let census = host.endpoint.census();
            assert!(census.is_quiet(), "host {at} holds {census:?}");
        }
    }

    /// Summary of the messages sent, as `0 INVITE` or `1 200 INVITE`.
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
