//! A small network in memory: phones (SIP endpoints), a border with its forwarder, and wires that lose, repeat and delay.
#![allow(dead_code)]

mod crew;
mod lend;
mod programs;
mod seen;
mod sieves;
mod texts;
mod troubles;
mod zone;

pub use seen::{Seen, Told};
// Not every test has all of them.
use zone::zone_answer;
#[allow(unused_imports)]
pub use {programs::Program, texts::*, zone::dns_name};

use border::border::Border;
use engine::{
    ConnectionId, Control, Datagram, Engine, Entropy, Event, Forward, HashKey, Input, Output,
    SocketId, Time, Transport, Verdict,
};
use media::{Forwarder, ForwarderLimits};
use sip::{
    Content, DialogId, Endpoint, EndpointConfig, Flow, Indication, Invite, LegId, Local, LocalId,
    Prack, Target, User,
};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;
use wire::sip::Message;

/// What a phone does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manners {
    /// On an INVITE: provisional responses to send (status, reliable).
    pub progress: Vec<(u16, bool)>,
    /// Then the final one; `None`: keep ringing.
    pub answer: Option<u16>,
    /// SDP for answers and offers of its own.
    pub sdp: String,
    /// Whether provisional responses other than 180 carry SDP.
    pub early_media: bool,
    /// Sends nothing at all on an INVITE.
    pub silent: bool,
    /// Acknowledges answers by itself.
    pub acks: bool,
    /// Answers requests inside a dialog with this status.
    pub inside: Option<u16>,
    /// Answers requests outside of dialogs with this status.
    pub outside: Option<u16>,
}

impl Manners {
    pub fn answering(sdp: &str) -> Manners {
        Manners {
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

pub struct Ears {
    pub seen: Vec<Seen>,
    pub manners: Manners,
    /// Dialogs that others' SUBSCRIBEs and REFERs have founded.
    pub dialogs: Vec<DialogId>,
}

fn has_sdp(message: &Message<'_>) -> bool {
    message.body().starts_with(b"v=0")
}

impl User for Ears {
    fn indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        let (leg, told, message): (Option<LegId>, Told, Option<&Message<'_>>) = match &indication {
            Indication::Offered { leg, request, .. } => (Some(*leg), Told::Offered, Some(request)),
            Indication::Progressed {
                leg,
                response,
                reliable,
                fork,
            } => (
                Some(*leg),
                Told::Progressed(response.status(), *reliable, *fork),
                Some(response),
            ),
            Indication::Answered { leg, response } => (Some(*leg), Told::Answered, Some(response)),
            Indication::Failed { leg, why, response } => (
                Some(*leg),
                Told::Failed(*why, response.map_or(0, |response| response.status())),
                *response,
            ),
            Indication::Acked { leg, request } => (Some(*leg), Told::Acked, Some(request)),
            Indication::Cancelled { leg, request } => (Some(*leg), Told::Cancelled, Some(request)),
            Indication::Pracked {
                leg,
                transaction,
                request,
            } => (Some(*leg), Told::Pracked(*transaction), Some(request)),
            Indication::Request {
                leg,
                transaction,
                request,
            } => (Some(*leg), Told::Request(*transaction), Some(request)),
            Indication::RequestCancelled { leg, .. } => (Some(*leg), Told::RequestCancelled, None),
            Indication::Response {
                leg,
                response,
                transaction,
            } => (
                Some(*leg),
                Told::Response(response.status(), *transaction),
                Some(response),
            ),
            Indication::TimedOut { leg, .. } => (Some(*leg), Told::TimedOut, None),
            Indication::OutOfDialog {
                transaction,
                request,
                ..
            } => (None, Told::Outside(*transaction), Some(request)),
            Indication::InDialog {
                dialog,
                transaction,
                request,
                ..
            } => (None, Told::InDialog(*dialog, *transaction), Some(request)),
            Indication::OutOfDialogResponse { response, .. } => (
                None,
                Told::OutsideResponse(response.status()),
                Some(response),
            ),
            Indication::OutOfDialogTimedOut { .. } => (None, Told::OutsideTimedOut, None),
            Indication::Ended { leg, why, message } => (Some(*leg), Told::Ended(*why), *message),
            Indication::RefreshDue { leg } => (Some(*leg), Told::RefreshDue, None),
            Indication::SessionExpired { leg } => (Some(*leg), Told::SessionExpired, None),
            Indication::FlowFailed { .. } => (None, Told::FlowFailed, None),
        };
        self.seen.push(Seen {
            at: now,
            leg,
            told,
            bytes: message
                .map(|message| message.bytes().to_vec())
                .unwrap_or_default(),
        });
        self.react(endpoint, &indication, now);
    }
}

impl Ears {
    fn react(&mut self, endpoint: &mut Endpoint, indication: &Indication<'_>, now: Time) {
        let manners = self.manners.clone();
        let sdp = Content::sdp(manners.sdp.as_bytes());
        let none = Content::default();
        match indication {
            Indication::Offered { leg, .. } if !manners.silent => {
                for (status, reliable) in &manners.progress {
                    let with = *status != 180 && manners.early_media;
                    let content = if with { &sdp } else { &none };
                    endpoint
                        .progress(*leg, *status, content, *reliable, now)
                        .unwrap();
                }
                match manners.answer {
                    Some(status) if status < 300 => {
                        endpoint.answer(*leg, status, &sdp, now).unwrap();
                    }
                    Some(status) => endpoint.reject(*leg, status, &none, now).unwrap(),
                    None => {}
                }
            }
            Indication::Answered { leg, response } if manners.acks => {
                let late = has_sdp(response)
                    && !self
                        .seen
                        .iter()
                        .any(|seen| seen.leg == Some(*leg) && seen.told == Told::Offered)
                    && manners.sdp == "late";
                let answer = Content::sdp(LATE_ANSWER.as_bytes());
                let content = if late { &answer } else { &none };
                endpoint.ack(*leg, content, now).unwrap();
            }
            Indication::Response { leg, response, .. }
                if manners.acks
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
                if let Some(status) = manners.inside {
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
                let Some(status) = manners.outside else {
                    return;
                };
                if founds && status < 300 {
                    let dialog = endpoint.found_dialog(*transaction, request, *flow, true, 0);
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
                if let Some(status) = manners.inside {
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
    pub ears: Ears,
    pub address: SocketAddr,
    pub local: LocalId,
    /// Every datagram and stream piece that came to it.
    pub received: Vec<Vec<u8>>,
    /// Every one that it sent.
    pub sent: Vec<Vec<u8>>,
}

/// What the wires do.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub loss: f64,
    pub repeat: f64,
    pub delay: Duration,
    pub jitter: Duration,
}

impl Weather {
    pub fn fine() -> Weather {
        Weather {
            loss: 0.0,
            repeat: 0.0,
            delay: Duration::from_millis(1),
            jitter: Duration::ZERO,
        }
    }
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
    /// What one worker hands to another.
    Parcel {
        to: usize,
        head: engine::ParcelHead,
        bytes: Vec<u8>,
    },
}

pub struct Neighbourhood {
    pub border: Border,
    pub forwarder: Forwarder,
    pub phones: Vec<Phone>,
    pub now: Time,
    pub weather: Weather,
    /// Datagrams from and to these ports go through the finest weather.
    pub spared: Vec<u16>,
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
    /// Addresses that nobody has: what is sent there is lost (also refused, on TCP).
    pub refuse_media_sockets: bool,
    /// The network says at once that nobody is at an address of nobody (ICMP).
    pub tells_of_nobody: bool,
    /// Addresses of the border's machine that another program holds.
    pub taken: Vec<SocketAddr>,
    /// Media datagrams that came to addresses of nobody: to, from, bytes.
    pub media: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    pub open_sockets: usize,
    /// Addresses that lead to others (a NAT's port forwarding).
    pub aliases: HashMap<SocketAddr, SocketAddr>,
    /// Addresses that others see as another (a NAT on the way out).
    pub disguises: HashMap<SocketAddr, SocketAddr>,
    /// Answers the border's DNS queries, where there is one: by name and type (1 A, 28 AAAA, 33 SRV, 35 NAPTR) the data.
    pub zone: Vec<(&'static str, u16, Vec<u8>)>,
    /// TLS connections that the border opened: by which worker, to where, whom the certificate must name and by which settings.
    pub secured: Vec<(usize, SocketAddr, (String, String))>,
    /// Addresses from and to which datagrams are lost.
    silent: Vec<SocketAddr>,
    /// How long datagrams lie in the border's socket of this address before it sees them.
    pub lag: (Option<SocketAddr>, Duration),
    sieves: sieves::Sieves,
    pub programs: Vec<Box<dyn Program>>,
    /// All bytes that the border sent, with where to.
    pub wire: Vec<(SocketAddr, Vec<u8>)>,
    /// The border is being told the forwarder's reports.
    reporting: bool,
    crew: crew::Crew,
}

impl Neighbourhood {
    pub fn new(config: &str, seed: u64) -> Neighbourhood {
        let config = crew::read(config);
        let mut entropy = Entropy::from_number(seed);
        let border = Border::new(config, entropy.fork());
        let key = HashKey::new(&mut entropy);
        let forwarder = Forwarder::new(ForwarderLimits::default(), key);
        let mut world = Neighbourhood::around(border, forwarder, entropy);
        world.border.handle(Input::Timeout, world.now);
        world.drain_border();
        world
    }

    pub fn phone(&mut self, address: &str, manners: Manners) -> usize {
        self.phone_over(address, Transport::Udp, manners)
    }

    pub fn phone_over(&mut self, address: &str, transport: Transport, manners: Manners) -> usize {
        let address: SocketAddr = address.parse().unwrap();
        let mut config = EndpointConfig {
            user_agent: format!("phone{}", self.phones.len()),
            ..EndpointConfig::default()
        };
        config.supported.push("precondition".into());
        let mut endpoint = Endpoint::new(config, self.entropy.fork());
        let local = endpoint.add_local(Local {
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
            ears: Ears {
                seen: Vec::new(),
                manners,
                dialogs: Vec::new(),
            },
            address,
            local,
            received: Vec::new(),
            sent: Vec::new(),
        });
        index
    }

    fn flow(&self, phone: usize, to: &str, transport: Transport) -> Flow {
        Flow {
            local: self.phones[phone].local,
            transport,
            remote: to.parse().unwrap(),
            connection: None,
        }
    }

    /// A call of a phone to `uri` by way of the border at `hop`.
    pub fn call(&mut self, phone: usize, uri: &str, hop: &str, content: &Content<'_>) -> LegId {
        self.call_with(phone, uri, hop, content, |_| {})
    }

    pub fn call_with(
        &mut self,
        phone: usize,
        uri: &str,
        hop: &str,
        content: &Content<'_>,
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

    pub fn tell<T>(&mut self, phone: usize, command: impl FnOnce(&mut Endpoint, Time) -> T) -> T {
        let now = self.now;
        let result = command(&mut self.phones[phone].endpoint, now);
        self.drain_phone(phone);
        result
    }

    /// Commands of the border itself (reload, drain).
    pub fn operate<T>(&mut self, command: impl FnOnce(&mut Border, Time) -> T) -> T {
        let now = self.now;
        let result = command(&mut self.border, now);
        self.drain_border();
        result
    }

    /// Raw bytes from an address to another.
    pub fn throw(&mut self, from: &str, to: &str, bytes: &[u8]) {
        self.arrive(Arrival::Datagram {
            to: to.parse().unwrap(),
            from: from.parse().unwrap(),
            bytes: bytes.to_vec(),
        });
    }

    pub fn seen(&self, phone: usize) -> &[Seen] {
        &self.phones[phone].ears.seen
    }

    /// The first thing told that `which` wants.
    pub fn find(&self, phone: usize, which: impl Fn(&Told) -> bool) -> &Seen {
        self.seen(phone)
            .iter()
            .find(|seen| which(&seen.told))
            .unwrap_or_else(|| panic!("not told to {phone}: {:#?}", self.told(phone)))
    }

    pub fn last(&self, phone: usize, which: impl Fn(&Told) -> bool) -> &Seen {
        self.seen(phone)
            .iter()
            .rev()
            .find(|seen| which(&seen.told))
            .unwrap_or_else(|| panic!("not told to {phone}: {:#?}", self.told(phone)))
    }

    pub fn told(&self, phone: usize) -> Vec<Told> {
        self.seen(phone)
            .iter()
            .map(|seen| seen.told.clone())
            .collect()
    }

    pub fn has(&self, phone: usize, which: impl Fn(&Told) -> bool) -> bool {
        self.seen(phone).iter().any(|seen| which(&seen.told))
    }

    /// Lets time pass.
    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let arrival = self.arrivals.keys().next().map(|key| key.0);
            let mut next = arrival.unwrap_or(Time::FAR);
            let border = self.border.next_deadline().map_or(Time::FAR, |d| d.at);
            let forwarder = self.forwarder.next_deadline().map_or(Time::FAR, |d| d.at);
            next = next.min(border).min(forwarder).min(self.mates_due());
            for phone in &self.phones {
                next = next.min(phone.endpoint.next_deadline().map_or(Time::FAR, |d| d.at));
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
                self.turn_to(0);
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
            self.run_mates();
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
        phone.endpoint.feed(input, now, &mut phone.ears);
        self.drain_phone(index);
    }

    fn arrive(&mut self, arrival: Arrival) {
        let mut at = self.now + self.weather.delay;
        if !self.weather.jitter.is_zero() && matches!(arrival, Arrival::Datagram { .. }) {
            let nanos = self.weather.jitter.as_nanos() as u64;
            at += Duration::from_nanos(self.entropy.below(nanos));
        }
        self.count += 1;
        self.arrivals.insert((at, self.count), arrival);
    }

    fn send_datagram(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.is_silent(to, from) || self.spares(to, from, bytes) {
            return;
        }
        let from = self.disguises.get(&from).copied().unwrap_or(from);
        if to.port() == 53 && !self.zone.is_empty() {
            let bytes = zone_answer(&self.zone, bytes);
            return self.arrive(Arrival::Datagram {
                to: from,
                from: to,
                bytes,
            });
        }
        if self.entropy.unit() < self.weather.loss {
            return;
        }
        let times = if self.entropy.unit() < self.weather.repeat {
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
            // Not connected yet: behind the connect that is on its way.
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
            Sieve(SocketId, Option<engine::Sieve>),
            Datagram(SocketId, SocketAddr, Vec<u8>),
            Connect(ConnectionId, Option<SocketAddr>, SocketAddr),
            Stream(ConnectionId, Vec<u8>),
            Close(ConnectionId),
        }
        let (mut opened, mut sifted) = (Vec::new(), Vec::new());
        loop {
            let out = match self.border.next_output() {
                None => break,
                Some(Output::Open {
                    socket,
                    kind,
                    local,
                }) => Out::Open(socket, local, kind),
                Some(Output::Shut { socket }) => Out::Shut(socket),
                Some(Output::Sieve { socket, sieve }) => Out::Sieve(socket, sieve),
                Some(Output::Datagram {
                    socket,
                    destination,
                    bytes,
                }) => Out::Datagram(socket, destination, bytes.to_vec()),
                Some(Output::Connect {
                    connection,
                    local,
                    remote,
                    secure,
                    ..
                }) => {
                    if let Some(secure) = secure {
                        let name = (secure.name.to_owned(), secure.profile.to_owned());
                        self.secured.push((self.crew.at_work, remote, name));
                    }
                    Out::Connect(connection, local, remote)
                }
                Some(Output::Stream { connection, bytes }) => {
                    Out::Stream(connection, bytes.to_vec())
                }
                Some(Output::Close { connection }) => Out::Close(connection),
                Some(Output::Hand { worker, parcel }) => {
                    let (to, bytes) = (usize::from(worker), parcel.bytes.to_vec());
                    let head = parcel.head;
                    if let engine::ParcelHead::Transfer { step, .. } = head
                        && self.crew.deaf_to == Some(step)
                    {
                        continue;
                    }
                    self.count += 1;
                    let parcel = Arrival::Parcel { to, head, bytes };
                    self.arrivals.insert((self.now, self.count), parcel);
                    self.crew.carried += 1;
                    continue;
                }
                Some(Output::Record { .. }) => panic!("no file"),
                Some(Output::Event(event)) => {
                    self.events.push(event);
                    continue;
                }
            };
            match out {
                Out::Open(socket, mut local, kind) => {
                    if local.port() == 0 {
                        self.ports += 1;
                        local.set_port(self.ports);
                    }
                    let refused = self.refuse_media_sockets || self.taken.contains(&local);
                    if kind == engine::SocketKind::UdpMedia && refused {
                        opened.push((socket, None));
                        continue;
                    }
                    let transport = kind.stream().unwrap_or(Transport::Udp);
                    self.open_sockets += 1;
                    self.border_opens((local, transport), socket);
                    opened.push((socket, Some(local)));
                }
                Out::Shut(socket) => {
                    let own = (self.crew.at_work, socket);
                    self.border_sockets.remove(&own).expect("open socket");
                    self.open_sockets -= 1;
                    self.border_shuts(socket);
                }
                Out::Sieve(socket, sieve) => {
                    sifted.push((socket, self.sieves.set(socket, sieve)));
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
            self.feed_border(Input::Sifted { socket, dropped });
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
                        let verdict = lend::forwarded(
                            &mut self.forwarder,
                            (socket, from),
                            &mut bytes,
                            self.now,
                        );
                        if let Verdict::Forward {
                            socket,
                            destination,
                        } = verdict
                        {
                            let from = self.border_address(socket);
                            self.send_datagram(from, destination, &bytes);
                        }
                        self.drain_forwarder();
                    }
                    Some((Node::Border, socket)) if self.sieves.drops(socket, &bytes) => {}
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
                    None if self.reaches_program(to, from, &bytes) => {}
                    None => {
                        let teller = self.sockets.get(&(from, Transport::Udp)).copied();
                        if let Some((Node::Border, socket)) = teller
                            && self.tells_of_nobody
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
                        why: engine::CloseWhy::Refused,
                    },
                ),
                Some((node, socket)) => {
                    self.accepted += 1;
                    let holder = ConnectionId::of_worker(self.crew.at_work as u8);
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
                // Given before the connection stood: its other end is known by now, or it never will be.
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
            Arrival::Parcel { to, head, bytes } => {
                self.turn_to(to);
                let parcel = engine::Parcel {
                    head,
                    bytes: &bytes,
                };
                self.feed_border(Input::Handed(parcel));
            }
            Arrival::Closed { to } => self.feed(
                to.0,
                Input::Closed {
                    connection: to.1,
                    why: engine::CloseWhy::Peer,
                },
            ),
        }
    }

    fn feed(&mut self, node: Node, input: Input<'_>) {
        match node {
            Node::Border => {
                self.turn_to_holder(&input);
                self.feed_border(input);
            }
            Node::Phone(index) => self.feed_phone(index, input),
        }
    }

    /// Nothing of any call is left, after the lingering of transactions.
    pub fn assert_quiet(&mut self) {
        self.run(Duration::from_secs(100));
        self.each_worker(|border, forwarder| {
            let census = border.census();
            assert!(census.is_quiet(), "left over: {census:#?}");
            assert_eq!(forwarder.sessions(), 0);
            assert_eq!(forwarder.sockets(), 0);
        });
    }

    /// Whether the border has a UDP socket at this address.
    pub fn is_open(&self, address: SocketAddr) -> bool {
        matches!(
            self.sockets.get(&(address, Transport::Udp)),
            Some((Node::Border, _))
        )
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.events.iter().map(|event| event.note.name()).collect()
    }
}
