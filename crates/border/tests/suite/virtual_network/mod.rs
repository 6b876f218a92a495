//! A virtual network in memory: phones (SIP endpoints), a border with its forwarder, and links that lose, duplicate and
//! delay packets.
#![allow(dead_code)]

mod configurations;
mod dns;
mod failures;
mod forwarder;
mod link_conditions;
mod phone_log;
mod programs;
pub mod saved_calls;
mod set_up;
mod socket_filters;
mod workers;

pub use phone_log::{LogEntry, PhoneEvent};
// Not every test uses all of them.
use dns::zone_answer;
#[allow(unused_imports)]
pub use {configurations::*, dns::dns_name, link_conditions::*, programs::Program, set_up::*};

use border::border::Border;
use engine::{
    ConnectionId, Control, Datagram, Engine, Entropy, Event, Forward, HashKey, Input, Output,
    PacketVerdict, SocketId, Time, Transport,
};
use media::{Forwarder, ForwarderLimits};
use sip::{
    DialogId, Endpoint, EndpointConfig, Flow, Handler, Indication, Invite, LegId, ListenerConfig,
    ListenerId, MessageContent, Prack, Target,
};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;
use wire::sip::Message;

/// Automatic behaviour of a phone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhoneBehaviour {
    /// Provisional responses to an INVITE: status, reliable.
    pub progress: Vec<(u16, bool)>,
    /// Final response to an INVITE; `None`: keep ringing.
    pub answer: Option<u16>,
    /// SDP of its answers and offers.
    pub sdp: String,
    /// Whether provisional responses other than 180 carry SDP.
    pub early_media: bool,
    /// Sends no response to an INVITE.
    pub silent: bool,
    /// Acknowledges 2xx responses automatically.
    pub acks: bool,
    /// Status of responses to in-dialog requests.
    pub inside: Option<u16>,
    /// Status of responses to out-of-dialog requests.
    pub outside: Option<u16>,
}

impl PhoneBehaviour {
    pub fn answering(sdp: &str) -> PhoneBehaviour {
        PhoneBehaviour {
            progress: vec![(180, false)],
            answer: Some(200),
            sdp: sdp.to_owned(),
            early_media: true,
            silent: false,
            acks: true,
            inside: Some(200),
            outside: Some(200),
        }
    }
}

pub struct PhoneLog {
    pub entries: Vec<LogEntry>,
    pub behaviour: PhoneBehaviour,
    /// Dialogs created by received SUBSCRIBE and REFER requests.
    pub dialogs: Vec<DialogId>,
}

fn has_sdp(message: &Message<'_>) -> bool {
    message.body().starts_with(b"v=0")
}

impl Handler for PhoneLog {
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        let (leg, event, message): (Option<LegId>, PhoneEvent, Option<&Message<'_>>) =
            match &indication {
                Indication::Offered { leg, request, .. } => {
                    (Some(*leg), PhoneEvent::Offered, Some(request))
                }
                Indication::Progressed {
                    leg,
                    response,
                    reliable,
                    fork,
                } => (
                    Some(*leg),
                    PhoneEvent::Progressed(response.status(), *reliable, *fork),
                    Some(response),
                ),
                Indication::Answered { leg, response, .. } => {
                    (Some(*leg), PhoneEvent::Answered, Some(response))
                }
                Indication::Failed {
                    leg,
                    reason: why,
                    response,
                } => (
                    Some(*leg),
                    PhoneEvent::Failed(*why, response.map_or(0, |response| response.status())),
                    *response,
                ),
                Indication::Acked { leg, request } => {
                    (Some(*leg), PhoneEvent::Acked, Some(request))
                }
                Indication::Cancelled { leg, request } => {
                    (Some(*leg), PhoneEvent::Cancelled, Some(request))
                }
                Indication::Pracked {
                    leg,
                    transaction,
                    request,
                } => (Some(*leg), PhoneEvent::Pracked(*transaction), Some(request)),
                Indication::Request {
                    leg,
                    transaction,
                    request,
                } => (Some(*leg), PhoneEvent::Request(*transaction), Some(request)),
                Indication::RequestCancelled { leg, .. } => {
                    (Some(*leg), PhoneEvent::RequestCancelled, None)
                }
                Indication::Response {
                    leg,
                    response,
                    transaction,
                } => (
                    Some(*leg),
                    PhoneEvent::Response(response.status(), *transaction),
                    Some(response),
                ),
                Indication::TimedOut { leg, .. } => (Some(*leg), PhoneEvent::TimedOut, None),
                Indication::OutOfDialog {
                    transaction,
                    request,
                    ..
                } => (None, PhoneEvent::OutOfDialog(*transaction), Some(request)),
                Indication::InDialog {
                    dialog,
                    transaction,
                    request,
                    ..
                } => (
                    None,
                    PhoneEvent::InDialog(*dialog, *transaction),
                    Some(request),
                ),
                Indication::OutOfDialogResponse { response, .. } => (
                    None,
                    PhoneEvent::OutOfDialogResponse(response.status()),
                    Some(response),
                ),
                Indication::OutOfDialogTimedOut { .. } => {
                    (None, PhoneEvent::OutOfDialogTimedOut, None)
                }
                Indication::Ended {
                    leg,
                    reason: why,
                    message,
                } => (Some(*leg), PhoneEvent::Ended(*why), *message),
                Indication::RefreshDue { leg } => (Some(*leg), PhoneEvent::RefreshDue, None),
                Indication::SessionExpired { leg } => {
                    (Some(*leg), PhoneEvent::SessionExpired, None)
                }
                Indication::FlowFailed { .. } => (None, PhoneEvent::FlowFailed, None),
            };
        self.entries.push(LogEntry {
            at: now,
            leg,
            event,
            bytes: message
                .map(|message| message.bytes().to_vec())
                .unwrap_or_default(),
        });
        self.react(endpoint, &indication, now);
    }
}

impl PhoneLog {
    fn react(&mut self, endpoint: &mut Endpoint, indication: &Indication<'_>, now: Time) {
        let behaviour = self.behaviour.clone();
        let sdp = MessageContent::sdp(behaviour.sdp.as_bytes());
        let none = MessageContent::default();
        match indication {
            Indication::Offered { leg, .. } if !behaviour.silent => {
                for (status, reliable) in &behaviour.progress {
                    let with = *status != 180 && behaviour.early_media;
                    let content = if with { &sdp } else { &none };
                    endpoint
                        .progress(*leg, *status, content, *reliable, now)
                        .unwrap();
                }
                match behaviour.answer {
                    Some(status) if status < 300 => {
                        endpoint.answer(*leg, status, &sdp, now).unwrap();
                    }
                    Some(status) => endpoint.reject(*leg, status, &none, now).unwrap(),
                    None => {}
                }
            }
            Indication::Answered { leg, response, .. } if behaviour.acks => {
                let late = has_sdp(response)
                    && !self
                        .entries
                        .iter()
                        .any(|entry| entry.leg == Some(*leg) && entry.event == PhoneEvent::Offered)
                    && behaviour.sdp == "late";
                let answer = MessageContent::sdp(LATE_ANSWER.as_bytes());
                let content = if late { &answer } else { &none };
                endpoint.ack(*leg, content, now).unwrap();
            }
            Indication::Response { leg, response, .. }
                if behaviour.acks
                    && (200..300).contains(&response.status())
                    && response.method() == wire::sip::Method::Invite =>
            {
                endpoint.ack(*leg, &none, now).unwrap();
            }
            Indication::Request {
                transaction,
                request,
                ..
            } => {
                if let Some(status) = behaviour.inside {
                    let offers =
                        has_sdp(request) || (request.method() == wire::sip::Method::Invite);
                    let content = if offers && status < 300 { &sdp } else { &none };
                    let _ = endpoint.respond(*transaction, status, content, now);
                }
            }
            Indication::Pracked {
                transaction,
                request,
                ..
            } => {
                let content = if has_sdp(request) { &sdp } else { &none };
                let _ = endpoint.respond(*transaction, 200, content, now);
            }
            Indication::OutOfDialog {
                transaction,
                request,
                flow,
            } => {
                let founds = matches!(
                    request.method(),
                    wire::sip::Method::Subscribe | wire::sip::Method::Refer
                );
                let Some(status) = behaviour.outside else {
                    return;
                };
                if founds && status < 300 {
                    let dialog = endpoint.open_dialog(*transaction, request, *flow, true, 0);
                    self.dialogs.push(dialog.unwrap());
                }
                let expires = request.expires().unwrap_or(600).to_string();
                let edit = [wire::sip::Edit::Add {
                    id: wire::sip::HeaderId::Expires,
                    value: expires.as_bytes(),
                }];
                let content = match request.method() {
                    wire::sip::Method::Subscribe => none.with(&edit),
                    _ => none,
                };
                let _ = endpoint.respond(*transaction, status, &content, now);
            }
            Indication::InDialog {
                transaction,
                request,
                ..
            } => {
                let expires = request.expires().unwrap_or(600).to_string();
                let edit = [wire::sip::Edit::Add {
                    id: wire::sip::HeaderId::Expires,
                    value: expires.as_bytes(),
                }];
                if let Some(status) = behaviour.inside {
                    let _ = endpoint.respond(*transaction, status, &none.with(&edit), now);
                }
            }
            _ => {}
        }
    }
}
pub const LATE_ANSWER: &str = "v=0\r\no=- 9 9 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4444 RTP/AVP 0\r\n";

pub struct Phone {
    pub endpoint: Endpoint,
    pub log: PhoneLog,
    pub address: SocketAddr,
    pub local: ListenerId,
    /// Every datagram and stream segment received.
    pub received: Vec<Vec<u8>>,
    /// Every one sent.
    pub sent: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    Border,
    Phone(usize),
}

enum Arrival {
    Datagram {
        to: SocketAddr,
        from: SocketAddr,
        bytes: Vec<u8>,
    },
    Connect {
        from: (Node, ConnectionId),
        local: SocketAddr,
        remote: SocketAddr,
    },
    Stream {
        to: (Node, ConnectionId),
        bytes: Vec<u8>,
    },
    Closed {
        to: (Node, ConnectionId),
    },
    /// A handoff message between workers.
    HandoffMessage {
        to: usize,
        kind: engine::HandoffKind,
        bytes: Vec<u8>,
    },
}

pub struct VirtualNetwork {
    pub border: Border,
    pub forwarder: Forwarder,
    pub phones: Vec<Phone>,
    pub now: Time,
    pub link_conditions: LinkConditions,
    /// Datagrams from and to these ports have ideal link conditions.
    pub reliable_ports: Vec<u16>,
    pub events: Vec<Event>,
    entropy: Entropy,
    arrivals: BTreeMap<(Time, u64), Arrival>,
    count: u64,
    /// UDP sockets and listeners by address.
    sockets: HashMap<(SocketAddr, Transport), (Node, SocketId)>,
    /// The border's sockets by worker and number.
    border_sockets: HashMap<(usize, SocketId), SocketAddr>,
    streams: HashMap<(Node, ConnectionId), (Node, ConnectionId)>,
    accepted: u64,
    ports: u16,
    /// Whether opening media sockets fails.
    pub refuse_media_sockets: bool,
    /// Whether the network reports an unused address as unreachable at once (ICMP).
    pub reports_unreachable: bool,
    /// Addresses of the border's host that another program uses.
    pub occupied: Vec<SocketAddr>,
    /// Media datagrams to unused addresses: destination, source, bytes.
    pub media: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    pub open_sockets: usize,
    /// Destination addresses that are mapped to others (port forwarding of a NAT).
    pub aliases: HashMap<SocketAddr, SocketAddr>,
    /// Source addresses that are mapped to others (outbound NAT).
    pub source_aliases: HashMap<SocketAddr, SocketAddr>,
    /// DNS records for the border's queries: name, type (1 A, 28 AAAA, 33 SRV, 35 NAPTR) and data.
    pub zone: Vec<(&'static str, u16, Vec<u8>)>,
    /// TLS connections that the border opened: worker, destination, name that the certificate must contain, settings.
    pub tls_connections: Vec<(usize, SocketAddr, (String, String))>,
    /// Addresses from and to which datagrams are lost.
    silent: Vec<SocketAddr>,
    /// Queueing delay of datagrams in the border's socket with this address.
    pub lag: (Option<SocketAddr>, Duration),
    socket_filters: socket_filters::SocketFilters,
    pub programs: Vec<Box<dyn Program>>,
    /// All bytes that the border sent, with their destinations.
    pub wire: Vec<(SocketAddr, Vec<u8>)>,
    /// The forwarder's reports are being passed to the border.
    reporting: bool,
    workers: workers::Workers,
    /// Calls are written out and read back between inputs.
    pub saved_calls: saved_calls::SavedCalls,
}

impl VirtualNetwork {
    pub fn new(config: &str, seed: u64) -> VirtualNetwork {
        let config = workers::read(config);
        let mut entropy = Entropy::from_number(seed);
        let border = Border::new(config, entropy.fork());
        let key = HashKey::new(&mut entropy);
        let forwarder = Forwarder::new(ForwarderLimits::default(), key);
        let mut world = VirtualNetwork::around(border, forwarder, entropy);
        world.border.handle(Input::Timeout, world.now);
        world.drain_border();
        world
    }

    pub fn phone(&mut self, address: &str, behaviour: PhoneBehaviour) -> usize {
        self.phone_over(address, Transport::Udp, behaviour)
    }

    pub fn phone_over(
        &mut self,
        address: &str,
        transport: Transport,
        behaviour: PhoneBehaviour,
    ) -> usize {
        self.phone_with((address, transport), behaviour, |_| {})
    }

    /// A phone whose endpoint has other settings.
    pub fn phone_with(
        &mut self,
        (address, transport): (&str, Transport),
        behaviour: PhoneBehaviour,
        change: impl FnOnce(&mut EndpointConfig),
    ) -> usize {
        let address: SocketAddr = address.parse().unwrap();
        let mut config = EndpointConfig {
            user_agent: format!("phone{}", self.phones.len()),
            ..EndpointConfig::default()
        };
        config.supported.push("precondition".into());
        change(&mut config);
        let mut endpoint = Endpoint::new(config, self.entropy.fork());
        let local = endpoint.add_listener(ListenerConfig {
            name: "phone".into(),
            socket: SocketId(1),
            transport,
            address,
            advertised: String::new(),
        });
        let index = self.phones.len();
        self.sockets
            .insert((address, transport), (Node::Phone(index), SocketId(1)));
        self.phones.push(Phone {
            endpoint,
            log: PhoneLog {
                entries: Vec::new(),
                behaviour,
                dialogs: Vec::new(),
            },
            address,
            local,
            received: Vec::new(),
            sent: Vec::new(),
        });
        index
    }

    /// The way from a phone to an address of the border.
    pub fn flow(&self, phone: usize, to: &str, transport: Transport) -> Flow {
        Flow {
            local: self.phones[phone].local,
            transport,
            remote: to.parse().unwrap(),
            connection: None,
        }
    }

    /// A call of a phone to `uri` through the border at `hop`.
    pub fn call(
        &mut self,
        phone: usize,
        uri: &str,
        hop: &str,
        content: &MessageContent<'_>,
    ) -> LegId {
        self.call_with(phone, uri, hop, content, |_| {})
    }

    pub fn call_with(
        &mut self,
        phone: usize,
        uri: &str,
        hop: &str,
        content: &MessageContent<'_>,
        change: impl FnOnce(&mut Invite<'_>),
    ) -> LegId {
        let transport = Transport::Udp;
        let flow = self.flow(phone, hop, transport);
        let mut invite = Invite::new(Target::new(uri.as_bytes(), flow));
        invite.content = *content;
        let from = format!(
            "\"Phone {phone}\" <sip:p{phone}@{}>",
            self.phones[phone].address
        );
        invite.from = Some(from.as_bytes());
        invite.prack = Prack::Automatic;
        change(&mut invite);
        let now = self.now;
        let leg = self.phones[phone].endpoint.invite(&invite, now).unwrap();
        self.drain_phone(phone);
        leg
    }

    pub fn command<T>(
        &mut self,
        phone: usize,
        command: impl FnOnce(&mut Endpoint, Time) -> T,
    ) -> T {
        let now = self.now;
        let result = command(&mut self.phones[phone].endpoint, now);
        self.drain_phone(phone);
        result
    }

    /// Executes a command at the border (reload, drain).
    pub fn control<T>(&mut self, command: impl FnOnce(&mut Border, Time) -> T) -> T {
        let now = self.now;
        let result = command(&mut self.border, now);
        self.drain_border();
        result
    }

    /// Sends raw bytes from one address to another.
    pub fn send_raw(&mut self, from: &str, to: &str, bytes: &[u8]) {
        self.arrive(Arrival::Datagram {
            to: to.parse().unwrap(),
            from: from.parse().unwrap(),
            bytes: bytes.to_vec(),
        });
    }

    pub fn log(&self, phone: usize) -> &[LogEntry] {
        &self.phones[phone].log.entries
    }

    /// The first log entry whose event matches `which`.
    pub fn find(&self, phone: usize, which: impl Fn(&PhoneEvent) -> bool) -> &LogEntry {
        self.log(phone)
            .iter()
            .find(|entry| which(&entry.event))
            .unwrap_or_else(|| panic!("no such event at {phone}: {:#?}", self.phone_events(phone)))
    }

    pub fn last(&self, phone: usize, which: impl Fn(&PhoneEvent) -> bool) -> &LogEntry {
        self.log(phone)
            .iter()
            .rev()
            .find(|entry| which(&entry.event))
            .unwrap_or_else(|| panic!("no such event at {phone}: {:#?}", self.phone_events(phone)))
    }

    pub fn phone_events(&self, phone: usize) -> Vec<PhoneEvent> {
        self.log(phone)
            .iter()
            .map(|entry| entry.event.clone())
            .collect()
    }

    pub fn has(&self, phone: usize, which: impl Fn(&PhoneEvent) -> bool) -> bool {
        self.log(phone).iter().any(|entry| which(&entry.event))
    }

    /// Runs the network for a time.
    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            self.save_calls();
            let arrival = self.arrivals.keys().next().map(|key| key.0);
            let mut next = arrival.unwrap_or(Time::NEVER);
            let border = self.border.next_deadline().map_or(Time::NEVER, |d| d.at);
            let forwarder = self.forwarder.next_deadline().map_or(Time::NEVER, |d| d.at);
            next = next.min(border).min(forwarder).min(self.siblings_due());
            for phone in &self.phones {
                next = next.min(phone.endpoint.next_deadline().map_or(Time::NEVER, |d| d.at));
            }
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            let now = self.now;
            if arrival.is_some_and(|at| at <= now)
                && let Some((_, arrival)) = self.arrivals.pop_first()
            {
                self.deliver(arrival);
                self.switch_worker(0);
                continue;
            }
            if border <= now {
                self.border.handle(Input::Timeout, now);
                self.drain_border();
            }
            if forwarder <= now {
                self.forwarder.timeout(now);
                self.drain_forwarder();
            }
            self.run_siblings();
            for index in 0..self.phones.len() {
                let due = self.phones[index]
                    .endpoint
                    .next_deadline()
                    .is_some_and(|d| d.at <= now);
                if due {
                    self.feed_phone(index, Input::Timeout);
                }
            }
        }
        self.now = end;
    }

    fn feed_phone(&mut self, index: usize, input: Input<'_>) {
        let now = self.now;
        let phone = &mut self.phones[index];
        phone.endpoint.feed(input, now, &mut phone.log);
        self.drain_phone(index);
    }

    fn arrive(&mut self, arrival: Arrival) {
        let mut at = self.now + self.link_conditions.delay;
        if !self.link_conditions.jitter.is_zero() && matches!(arrival, Arrival::Datagram { .. }) {
            let nanos = self.link_conditions.jitter.as_nanos() as u64;
            at += Duration::from_nanos(self.entropy.below(nanos));
        }
        self.count += 1;
        self.arrivals.insert((at, self.count), arrival);
    }

    fn send_datagram(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.is_silent(to, from) || self.send_reliably(to, from, bytes) {
            return;
        }
        let from = self.source_aliases.get(&from).copied().unwrap_or(from);
        if to.port() == 53 && !self.zone.is_empty() {
            let bytes = zone_answer(&self.zone, bytes);
            return self.arrive(Arrival::Datagram {
                to: from,
                from: to,
                bytes,
            });
        }
        if self.entropy.unit() < self.link_conditions.loss {
            return;
        }
        let times = if self.entropy.unit() < self.link_conditions.repeat {
            2
        } else {
            1
        };
        for _ in 0..times {
            self.arrive(Arrival::Datagram {
                to,
                from,
                bytes: bytes.to_vec(),
            });
        }
    }

    fn drain_phone(&mut self, index: usize) {
        enum Out {
            Datagram(SocketAddr, Vec<u8>),
            Connect(ConnectionId, SocketAddr),
            Stream(ConnectionId, Vec<u8>),
            Close(ConnectionId),
        }
        loop {
            let out = match self.phones[index].endpoint.next_output() {
                None => return,
                Some(Output::Datagram {
                    destination, bytes, ..
                }) => Out::Datagram(destination, bytes.to_vec()),
                Some(Output::Connect {
                    connection, remote, ..
                }) => Out::Connect(connection, remote),
                Some(Output::Stream { connection, bytes }) => {
                    Out::Stream(connection, bytes.to_vec())
                }
                Some(Output::Close { connection }) => Out::Close(connection),
                Some(_) => continue,
            };
            let node = Node::Phone(index);
            let address = self.phones[index].address;
            match out {
                Out::Datagram(to, bytes) => {
                    self.phones[index].sent.push(bytes.clone());
                    self.send_datagram(address, to, &bytes);
                }
                Out::Connect(connection, remote) => self.connect(node, connection, address, remote),
                Out::Stream(connection, bytes) => {
                    self.phones[index].sent.push(bytes.clone());
                    self.stream(node, connection, bytes);
                }
                Out::Close(connection) => self.close(node, connection),
            }
        }
    }

    fn connect(
        &mut self,
        node: Node,
        connection: ConnectionId,
        local: SocketAddr,
        remote: SocketAddr,
    ) {
        self.ports += 1;
        let local = SocketAddr::new(local.ip(), self.ports);
        self.arrive(Arrival::Connect {
            from: (node, connection),
            local,
            remote,
        });
    }

    fn stream(&mut self, node: Node, connection: ConnectionId, bytes: Vec<u8>) {
        if let Some(&to) = self.streams.get(&(node, connection)) {
            self.arrive(Arrival::Stream { to, bytes });
        } else {
            // Not connected yet: deliver after the connection.
            self.arrive(Arrival::Stream {
                to: (node, ConnectionId(u64::MAX - connection.0)),
                bytes,
            });
        }
    }

    fn close(&mut self, node: Node, connection: ConnectionId) {
        if let Some(to) = self.streams.remove(&(node, connection)) {
            self.streams.remove(&to);
            self.arrive(Arrival::Closed { to });
        }
    }

    pub fn drain_border(&mut self) {
        enum Out {
            Open(SocketId, SocketAddr, engine::SocketKind),
            Shut(SocketId),
            SocketFilter(SocketId, Option<engine::SocketFilter>),
            Datagram(SocketId, SocketAddr, Vec<u8>),
            Connect(ConnectionId, Option<SocketAddr>, SocketAddr),
            Stream(ConnectionId, Vec<u8>),
            Close(ConnectionId),
        }
        let (mut opened, mut sifted) = (Vec::new(), Vec::new());
        loop {
            let out = match self.border.next_output() {
                None => break,
                Some(Output::OpenSocket {
                    socket,
                    kind,
                    local,
                }) => Out::Open(socket, local, kind),
                Some(Output::CloseSocket { socket }) => Out::Shut(socket),
                Some(Output::SocketFilter { socket, filter }) => Out::SocketFilter(socket, filter),
                Some(Output::Datagram {
                    socket,
                    destination,
                    bytes,
                }) => Out::Datagram(socket, destination, bytes.to_vec()),
                Some(Output::Connect {
                    connection,
                    local,
                    remote,
                    tls: secure,
                    ..
                }) => {
                    if let Some(secure) = secure {
                        let name = (secure.server_name.to_owned(), secure.profile.to_owned());
                        self.tls_connections
                            .push((self.workers.active, remote, name));
                    }
                    Out::Connect(connection, local, remote)
                }
                Some(Output::Stream { connection, bytes }) => {
                    Out::Stream(connection, bytes.to_vec())
                }
                Some(Output::Close { connection }) => Out::Close(connection),
                Some(Output::HandOff {
                    worker,
                    message: handoff,
                }) => {
                    let (to, bytes) = (usize::from(worker), handoff.bytes.to_vec());
                    let head = handoff.kind;
                    if let engine::HandoffKind::Transfer { step, .. } = head
                        && self.workers.lost_transfer_step == Some(step)
                    {
                        continue;
                    }
                    self.count += 1;
                    let handoff = Arrival::HandoffMessage {
                        to,
                        kind: head,
                        bytes,
                    };
                    self.arrivals.insert((self.now, self.count), handoff);
                    self.workers.handed_off += 1;
                    continue;
                }
                Some(Output::Recording { .. }) => panic!("no file"),
                Some(Output::Event(event)) => {
                    self.events.push(event);
                    continue;
                }
            };
            match out {
                Out::Open(socket, mut local, kind) => {
                    let is_occupied = self.occupied.contains(&local);
                    if local.port() == 0 {
                        self.ports += 1;
                        local.set_port(self.ports);
                    }
                    let is_media = kind == engine::SocketKind::UdpMedia;
                    if is_occupied || (is_media && self.refuse_media_sockets) {
                        opened.push((socket, None));
                        continue;
                    }
                    let transport = kind.stream_transport().unwrap_or(Transport::Udp);
                    self.open_sockets += 1;
                    self.border_opens((local, transport), socket);
                    opened.push((socket, Some(local)));
                }
                Out::Shut(socket) => {
                    let own = (self.workers.active, socket);
                    self.border_sockets.remove(&own).expect("open socket");
                    self.open_sockets -= 1;
                    self.border_shuts(socket);
                }
                Out::SocketFilter(socket, filter) => {
                    sifted.push((socket, self.socket_filters.set(socket, filter)));
                }
                Out::Datagram(socket, to, bytes) => {
                    let from = self.border_address(socket);
                    self.wire.push((to, bytes.clone()));
                    self.send_datagram(from, to, &bytes);
                }
                Out::Connect(connection, local, remote) => {
                    let local = local.unwrap_or_else(|| "192.0.2.1:0".parse().unwrap());
                    self.connect(Node::Border, connection, local, remote);
                }
                Out::Stream(connection, bytes) => {
                    self.wire
                        .push(("0.0.0.0:0".parse().unwrap(), bytes.clone()));
                    self.stream(Node::Border, connection, bytes);
                }
                Out::Close(connection) => self.close(Node::Border, connection),
            }
        }
        while let Some(command) = self.border.next_command() {
            self.forwarder.command(command, self.now);
        }
        let _ = self.border.next_deadline();
        for (socket, local) in opened {
            let input = match local {
                Some(local) => Input::Opened { socket, local },
                None => Input::OpenFailed {
                    socket,
                    error: "address in use",
                },
            };
            self.feed_border(input);
        }
        for (socket, dropped) in sifted {
            self.feed_border(Input::Shed { socket, dropped });
        }
        self.drain_forwarder();
    }

    fn feed_border(&mut self, input: Input<'_>) {
        self.border.handle(input, self.now);
        self.drain_border();
    }

    fn deliver(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Datagram {
                to,
                from,
                mut bytes,
            } => {
                let to = self.aliases.get(&to).copied().unwrap_or(to);
                let at = self.reached(to, Transport::Udp, from);
                match at {
                    Some((Node::Border, socket)) if socket.0 >= 1 << 16 => {
                        let verdict = forwarder::forward_packet(
                            &mut self.forwarder,
                            (socket, from),
                            &mut bytes,
                            self.now,
                        );
                        if let PacketVerdict::Forward {
                            socket,
                            destination,
                        } = verdict
                        {
                            let from = self.border_address(socket);
                            self.send_datagram(from, destination, &bytes);
                        }
                        self.drain_forwarder();
                    }
                    Some((Node::Border, socket)) if self.socket_filters.drops(socket, &bytes) => {}
                    Some((Node::Border, socket)) => {
                        let lag = match self.lag {
                            (Some(at), lag) if at == to => lag.as_nanos() as u64,
                            _ => 0,
                        };
                        let arrived = Time(self.now.0.saturating_sub(lag));
                        self.feed_border(Input::Datagram(Datagram {
                            socket,
                            source: from,
                            arrived,
                            bytes: &mut bytes,
                        }));
                    }
                    Some((Node::Phone(index), socket)) => {
                        self.phones[index].received.push(bytes.clone());
                        let arrived = self.now;
                        self.feed_phone(
                            index,
                            Input::Datagram(Datagram {
                                socket,
                                source: from,
                                arrived,
                                bytes: &mut bytes,
                            }),
                        );
                    }
                    None if self.deliver_to_program(to, from, &bytes) => {}
                    None => {
                        let teller = self.sockets.get(&(from, Transport::Udp)).copied();
                        if let Some((Node::Border, socket)) = teller
                            && self.reports_unreachable
                            && socket.0 < 1 << 16
                        {
                            self.feed_border(Input::Unreachable {
                                socket,
                                destination: to,
                                bytes: bytes.get(..528).unwrap_or(&bytes),
                            });
                        }
                        self.media.push((to, from, bytes));
                    }
                }
            }
            Arrival::Connect {
                from,
                local,
                remote,
            } => match [Transport::Tcp, Transport::Tls]
                .into_iter()
                .find_map(|transport| self.reached(remote, transport, local))
            {
                None => self.feed(
                    from.0,
                    Input::Closed {
                        connection: from.1,
                        reason: engine::CloseReason::ConnectFailed,
                    },
                ),
                Some((node, socket)) => {
                    self.accepted += 1;
                    let holder = ConnectionId::of_worker(self.workers.active as u8);
                    let accepted = ConnectionId(ConnectionId::ACCEPTED | holder | self.accepted);
                    self.streams.insert(from, (node, accepted));
                    self.streams.insert((node, accepted), from);
                    self.feed(
                        node,
                        Input::Accepted {
                            connection: accepted,
                            socket,
                            local: remote,
                            remote: local,
                        },
                    );
                    self.feed(
                        from.0,
                        Input::Connected {
                            connection: from.1,
                            local,
                        },
                    );
                }
            },
            Arrival::Stream { to, bytes } => {
                let mut to = to;
                // Sent before the connection was established: its peer is known by now, or never will be.
                let early = ConnectionId(u64::MAX - to.1.0);
                if let Some(&peer) = self.streams.get(&(to.0, early)) {
                    to = peer;
                }
                if !self.streams.contains_key(&to) {
                    return;
                }
                if let Node::Phone(index) = to.0 {
                    self.phones[index].received.push(bytes.clone());
                }
                self.feed(
                    to.0,
                    Input::Stream {
                        connection: to.1,
                        bytes: &bytes,
                    },
                );
            }
            Arrival::HandoffMessage {
                to,
                kind: head,
                bytes,
            } => {
                self.switch_worker(to);
                let handoff = engine::HandoffMessage {
                    kind: head,
                    bytes: &bytes,
                };
                self.feed_border(Input::Handoff(handoff));
            }
            Arrival::Closed { to } => self.feed(
                to.0,
                Input::Closed {
                    connection: to.1,
                    reason: engine::CloseReason::Peer,
                },
            ),
        }
    }

    fn feed(&mut self, node: Node, input: Input<'_>) {
        match node {
            Node::Border => {
                self.switch_to_connection_owner(&input);
                self.feed_border(input);
            }
            Node::Phone(index) => self.feed_phone(index, input),
        }
    }

    /// Nothing of any call is left after the transactions have expired.
    pub fn assert_quiet(&mut self) {
        self.run(Duration::from_secs(100));
        self.each_worker(|border, forwarder| {
            let census = border.census();
            assert!(census.is_quiet(), "left over: {census:#?}");
            assert_eq!(forwarder.sessions(), 0);
            assert_eq!(forwarder.sockets(), 0);
        });
    }

    /// Whether the border has a UDP socket with this address.
    pub fn is_open(&self, address: SocketAddr) -> bool {
        matches!(
            self.sockets.get(&(address, Transport::Udp)),
            Some((Node::Border, _))
        )
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.events.iter().map(|event| event.kind.name()).collect()
    }
}
