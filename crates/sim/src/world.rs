//! The world: hosts, links, time.

use crate::fault::{Fault, Storm};
use crate::host::{Host, HostId, Node, Pair, Single, Waiting};
use crate::link::{Delay, Fate, Link, LinkConfig};
use crate::log::{Detail, Log, Short};
use crate::stream::{Segment, Side, Stream, StreamId};
use crate::tap::{TapPoint, TapRecord, TapTransport};
use engine::io::Checked;
use engine::timers::Agenda;
use engine::{
    CloseWhy, ConnectionId, Control, Datagram, Deadline, DropReason, Drops, Engine, Entropy, Event,
    Forward, Input, Output, Packet, SocketId, SocketKind, Time, Verdict,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Headers of a datagram on the link, bytes.
const UDP_HEADER: usize = 28;
/// An engine that wants to be called this often without time moving is broken.
const WAKES_AT_ONCE: u32 = 10_000;
/// Datagrams that wait at a host that is busy; a kernel's usual receive buffer holds about as many.
const ROOM: usize = 8_192;

/// Owned form of what a host is still to be told.
pub(crate) enum Told {
    Opened(SocketId, SocketAddr),
    OpenFailed(SocketId, &'static str),
    Accepted {
        connection: ConnectionId,
        socket: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
    },
    Connected(ConnectionId, SocketAddr),
    Stream(ConnectionId, Vec<u8>),
    Closed(ConnectionId, CloseWhy),
    Sifted(SocketId, u64),
}

pub(crate) enum Happening {
    Wake {
        host: HostId,
        number: u64,
    },
    Datagram {
        host: HostId,
        source: SocketAddr,
        destination: SocketAddr,
        bytes: Vec<u8>,
    },
    Tell {
        host: HostId,
        life: u32,
        told: Told,
    },
    /// A segment enters the link, for the `tries`-th time.
    Attempt {
        stream: StreamId,
        from: Side,
        segment: Segment,
        tries: u32,
    },
    /// A segment has come through.
    Segment {
        stream: StreamId,
        from: Side,
        segment: Segment,
    },
    /// An end whose peer has vanished notices.
    Vanished {
        stream: StreamId,
        side: Side,
    },
    /// A host that is not infinitely fast takes the next datagram.
    Turn {
        host: HostId,
        member: usize,
        life: u32,
    },
    Fault(Fault),
}

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams sent by hosts.
    pub sent: u64,
    /// Datagrams delivered to sockets (repeated ones counted each time).
    pub delivered: u64,
    /// Datagrams to an address that no host has, or a port that nobody holds.
    pub nowhere: u64,
    /// Datagrams into a partition.
    pub partitioned: u64,
    /// Segments of connections delivered.
    pub segments: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Packets for control that the forwarder punted.
    pub punted: u64,
    /// Outputs that name a socket or connection that does not exist (any more).
    pub strays: u64,
    /// Losses of links, and drops by forwarders' verdicts.
    pub drops: Drops,
}

type Tap = Box<dyn FnMut(&TapRecord<'_>)>;

/// A world of hosts in virtual time. One seed determines everything that is drawn in it.
pub struct World {
    seed: u64,
    pub(crate) now: Time,
    pub(crate) agenda: Agenda<Happening>,
    pub(crate) hosts: Vec<Host>,
    by_address: BTreeMap<IpAddr, HostId>,
    links: BTreeMap<(HostId, HostId), Link>,
    configs: BTreeMap<(HostId, HostId), LinkConfig>,
    default_link: LinkConfig,
    weather: Option<LinkConfig>,
    partitions: BTreeSet<(HostId, HostId)>,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) next_stream: StreamId,
    pub(crate) entropy: Entropy,
    host_entropy: Entropy,
    pub(crate) log: Log,
    tap: Option<Tap>,
    pub(crate) counts: Counts,
    events: Vec<(HostId, Event)>,
    keep_events: bool,
    wakes: u64,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.seed)
            .field("now", &self.now)
            .field("hosts", &self.hosts.len())
            .finish_non_exhaustive()
    }
}

/// Setting up.
impl World {
    /// An empty world.
    pub fn new(seed: u64) -> World {
        let mut root = Entropy::from_number(seed);
        World {
            seed,
            now: Time::ZERO,
            agenda: Agenda::new(),
            hosts: Vec::new(),
            by_address: BTreeMap::new(),
            links: BTreeMap::new(),
            configs: BTreeMap::new(),
            default_link: LinkConfig::default(),
            weather: None,
            partitions: BTreeSet::new(),
            streams: BTreeMap::new(),
            next_stream: 0,
            entropy: root.fork(),
            host_entropy: root.fork(),
            log: Log::new(),
            tap: None,
            counts: Counts::default(),
            events: Vec::new(),
            keep_events: false,
            wakes: 0,
        }
    }

    /// A generator for a host that is about to be made; each call gives another.
    pub fn entropy(&mut self) -> Entropy {
        self.host_entropy.fork()
    }

    /// Adds a host with a plain engine. Its first outputs are carried out at once.
    ///
    /// # Panics
    /// Where another host has one of the addresses.
    pub fn add_engine<E: Engine + 'static>(
        &mut self,
        name: &str,
        addresses: &[IpAddr],
        engine: E,
    ) -> HostId {
        self.add(name, addresses, Box::new(Single(Checked::new(engine))))
    }

    /// Adds a host with a control plane and its forwarder.
    ///
    /// # Panics
    /// Where another host has one of the addresses.
    pub fn add_control<C, F>(
        &mut self,
        name: &str,
        addresses: &[IpAddr],
        control: C,
        forwarder: F,
    ) -> HostId
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        let control = Checked::new(control);
        self.add(name, addresses, Box::new(Pair { control, forwarder }))
    }

    pub(crate) fn add(&mut self, name: &str, addresses: &[IpAddr], node: Box<dyn Node>) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        for &address in addresses {
            let taken = self.by_address.insert(address, id);
            assert!(taken.is_none(), "two hosts have the address {address}");
        }
        self.hosts.push(Host::new(name, addresses, node));
        self.step(id, |_, _| ());
        id
    }

    /// Makes a host take this long for each signalling datagram from now on, in or out; those that come meanwhile wait in its socket.
    /// Of several workers each has a processor of its own, and takes as long for what another hands to it, too.
    pub fn set_effort(&mut self, host: HostId, effort: Duration) {
        self.hosts[host.0 as usize].effort = effort;
    }

    /// Puts a new engine on a host that crashed; it starts with nothing open.
    pub fn restart<E: Engine + 'static>(&mut self, host: HostId, engine: E) {
        self.put(host, Box::new(Single(Checked::new(engine))));
    }

    /// Puts a new control plane and forwarder on a host that crashed.
    pub fn restart_control<C, F>(&mut self, host: HostId, control: C, forwarder: F)
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        let control = Checked::new(control);
        self.put(host, Box::new(Pair { control, forwarder }));
    }

    fn put(&mut self, host: HostId, node: Box<dyn Node>) {
        let place = &mut self.hosts[host.0 as usize];
        place.forget();
        place.node = Some(node);
        self.note(host, "restart");
        self.step(host, |_, _| ());
    }

    /// The link between any two hosts of which nothing else is said, from now on.
    pub fn set_default_link(&mut self, config: LinkConfig) {
        self.default_link = config;
        self.renew_links();
    }

    /// The link from one host to another (one direction), from now on.
    pub fn set_link(&mut self, from: HostId, to: HostId, config: LinkConfig) {
        self.configs.insert((from, to), config);
        self.renew_links();
    }

    fn renew_links(&mut self) {
        let pairs: Vec<_> = self.links.keys().copied().collect();
        for pair in pairs {
            let config = self.link_config(pair);
            if let Some(link) = self.links.get_mut(&pair)
                && *link.config() != config
            {
                link.set(config);
            }
        }
    }

    fn link_config(&self, pair: (HostId, HostId)) -> LinkConfig {
        if pair.0 == pair.1 {
            // A host reaches itself whatever the weather.
            return LinkConfig {
                delay: Delay::Constant(Duration::from_micros(10)),
                ..LinkConfig::default()
            };
        }
        self.weather
            .as_ref()
            .or_else(|| self.configs.get(&pair))
            .unwrap_or(&self.default_link)
            .clone()
    }

    /// The link's fate for a packet. Links draw from generators of their own, made from the seed and the two hosts, so that
    /// traffic on one does not change the draws of another.
    pub(crate) fn offer(&mut self, from: HostId, to: HostId, length: usize) -> Fate {
        let pair = (from, to);
        if !self.links.contains_key(&pair) {
            let mut seed = [0; 32];
            seed[..8].copy_from_slice(&self.seed.to_le_bytes());
            seed[8..12].copy_from_slice(&from.0.to_le_bytes());
            seed[12..16].copy_from_slice(&to.0.to_le_bytes());
            let link = Link::new(self.link_config(pair), Entropy::from_seed(seed));
            self.links.insert(pair, link);
        }
        match self.links.get_mut(&pair) {
            Some(link) => link.offer(length, self.now),
            None => Fate::Lost(DropReason::LinkLost),
        }
    }

    /// Sees every packet from now on.
    pub fn set_tap(&mut self, tap: impl FnMut(&TapRecord<'_>) + 'static) {
        self.tap = Some(Box::new(tap));
    }

    /// What goes into the log from now on; packets by default.
    pub fn set_detail(&mut self, detail: Detail) {
        self.log.detail = detail;
    }

    /// Keeps the log's text from now on; without it only the digest is kept.
    pub fn keep_log(&mut self) {
        self.log.keep();
    }

    /// Keeps the hosts' events from now on, for [`World::take_events`].
    pub fn keep_events(&mut self) {
        self.keep_events = true;
    }

    /// Plans a fault; one whose time has passed happens at once.
    pub fn plan(&mut self, at: Time, fault: Fault) {
        self.agenda.push(at.max(self.now), Happening::Fault(fault));
    }

    /// Plans a storm from now to `until`, after which the network is its own again.
    pub fn storm(&mut self, storm: &Storm, until: Time) {
        self.weather = Some(storm.link.clone());
        self.renew_links();
        let span = until.since(self.now).as_nanos() as u64;
        let hosts = self.hosts.len() as u64;
        for _ in 0..storm.partitions {
            let at = self.now + Duration::from_nanos(self.entropy.below(span));
            let a = HostId(self.entropy.below(hosts) as u32);
            let b = HostId(self.entropy.below(hosts) as u32);
            if a != b {
                self.plan(at, Fault::Partition(a, b));
                self.plan((at + storm.partition).min(until), Fault::Heal(a, b));
            }
        }
        for _ in 0..storm.resets {
            let at = self.now + Duration::from_nanos(self.entropy.below(span));
            self.plan(at, Fault::ResetAny);
        }
        self.plan(until, Fault::Calm);
    }
}

/// Running and looking.
impl World {
    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Figures so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The log's text since [`World::keep_log`].
    pub fn log(&self) -> &[u8] {
        self.log.kept()
    }

    /// A digest of the whole log.
    pub fn digest(&self) -> u128 {
        self.log.digest()
    }

    /// The events since the last call, with their hosts.
    pub fn take_events(&mut self) -> Vec<(HostId, Event)> {
        std::mem::take(&mut self.events)
    }

    /// The name of a host.
    pub fn name(&self, host: HostId) -> &str {
        &self.hosts[host.0 as usize].name
    }

    /// What a host has open at present: sockets and connections.
    pub fn open(&self, host: HostId) -> (usize, usize) {
        let host = &self.hosts[host.0 as usize];
        (host.sockets.len(), host.connections.len())
    }

    /// When the next thing happens; `None`: never, the world is quiet.
    pub fn next_at(&self) -> Option<Time> {
        self.agenda.next_at()
    }

    /// Lets everything happen that is due up to `until`, and moves time there.
    pub fn run_until(&mut self, until: Time) {
        self.run_while(until, |_| true);
    }

    /// Lets time run until nothing is to happen any more, not even a deadline, at most up to `limit`. Whether it became
    /// quiet.
    pub fn run_quiet(&mut self, limit: Time) -> bool {
        self.run_while(limit, |world| world.agenda.next_at().is_some());
        self.agenda.next_at().is_none()
    }

    /// Lets time run up to `limit`, as long as `go_on` says so; it is asked after everything that happens.
    pub fn run_while(&mut self, limit: Time, mut go_on: impl FnMut(&mut World) -> bool) {
        while let Some((at, happening)) = self.agenda.pop_due(limit) {
            self.now = self.now.max(at);
            if self.happen(happening) && !go_on(self) {
                return;
            }
        }
        self.now = self.now.max(limit);
    }

    /// Lends the engine of a host, to be told something by the program; what follows is carried out. `None` where the
    /// host is down or its engine is of another type.
    pub fn with_engine<E: Engine + 'static, R>(
        &mut self,
        host: HostId,
        work: impl FnOnce(&mut E, Time) -> R,
    ) -> Option<R> {
        self.step(host, |node, now| {
            let single = node.as_any().downcast_mut::<Single<E>>()?;
            Some(work(single.0.get(), now))
        })?
    }

    /// Lends control plane and forwarder of a host, as [`World::with_engine`].
    pub fn with_control<C, F, R>(
        &mut self,
        host: HostId,
        work: impl FnOnce(&mut C, &mut F, Time) -> R,
    ) -> Option<R>
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        self.step(host, |node, now| {
            let pair = node.as_any().downcast_mut::<Pair<C, F>>()?;
            Some(work(pair.control.get(), &mut pair.forwarder, now))
        })?
    }
}

/// What happens.
impl World {
    /// Whether anything did: wake-ups that were replaced by others are nothing.
    fn happen(&mut self, happening: Happening) -> bool {
        match happening {
            Happening::Wake { host, number } => return self.wake(host, number),
            Happening::Datagram {
                host,
                source,
                destination,
                bytes,
            } => self.deliver(host, source, destination, bytes),
            Happening::Turn { host, member, life } => self.turn(host, member, life),
            Happening::Tell { host, life, told } => self.tell(host, life, told),
            Happening::Attempt {
                stream,
                from,
                segment,
                tries,
            } => self.attempt(stream, from, segment, tries),
            Happening::Segment {
                stream,
                from,
                segment,
            } => self.segment(stream, from, segment),
            Happening::Vanished { stream, side } => self.vanished(stream, side),
            Happening::Fault(fault) => self.fault(fault),
        }
        true
    }

    fn wake(&mut self, id: HostId, number: u64) -> bool {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        if host.wake.is_none_or(|(_, current)| current != number) {
            return false;
        }
        host.wake = None;
        if host.woken != now {
            host.woken = now;
            host.wakes_at_once = 0;
        }
        host.wakes_at_once += 1;
        let stuck = host.wakes_at_once > WAKES_AT_ONCE;
        let name = host.name.clone();
        self.step(id, |node, now| {
            let due = |deadline: Option<Deadline>| deadline.filter(|deadline| deadline.at <= now);
            assert!(
                !stuck,
                "{name} asks to be called again and again at {now}: {:?}",
                node.next_deadline()
            );
            if due(node.forward_deadline()).is_some() {
                node.forward_timeout(now);
            }
            if due(node.next_deadline()).is_some() {
                node.handle(Input::Timeout, now);
            }
        });
        debug_assert_eq!(now, self.now);
        true
    }

    /// Lets `work` have the node of a host, then carries out all that follows and plans the next wake-up.
    pub(crate) fn step<R>(
        &mut self,
        id: HostId,
        work: impl FnOnce(&mut dyn Node, Time) -> R,
    ) -> Option<R> {
        let now = self.now;
        // Taken out for the time of the step, because carrying out its outputs borrows the world.
        let mut node = self.hosts[id.0 as usize].node.take()?;
        let result = work(&mut *node, now);
        loop {
            while let Some(output) = node.next_output() {
                if self.perform(id, output) {
                    self.takes_effort(id, node.speaker());
                }
            }
            let reported = node.shuttle(now);
            while let Some((socket, destination, bytes)) = node.next_packet() {
                self.send(id, socket, destination, bytes);
            }
            match node.next_parcel() {
                Some(handed) if self.hosts[id.0 as usize].effort.is_zero() => {
                    node.hand(&handed, now);
                }
                Some(handed) => {
                    let to = handed.to;
                    let processor = self.hosts[id.0 as usize].processor(to);
                    processor.waiting.push_back(Waiting::Handed(handed));
                    self.plan_turn(id, to);
                }
                None if !reported => break,
                None => {}
            }
        }
        let next = Deadline::earlier(node.next_deadline(), node.forward_deadline());
        self.hosts[id.0 as usize].node = Some(node);
        self.plan_wake(id, next);
        Some(result)
    }

    fn plan_wake(&mut self, id: HostId, next: Option<Deadline>) {
        let host = &mut self.hosts[id.0 as usize];
        let Some(at) = next.map(|deadline| deadline.at.max(self.now)) else {
            host.wake = None;
            return;
        };
        if at == Time::FAR {
            host.wake = None;
        } else if host.wake.is_none_or(|(planned, _)| planned != at) {
            self.wakes += 1;
            host.wake = Some((at, self.wakes));
            let number = self.wakes;
            self.agenda.push(at, Happening::Wake { host: id, number });
        }
    }

    /// Carries out an output; whether that was a signalling datagram, which takes its effort.
    fn perform(&mut self, id: HostId, output: Output<'_>) -> bool {
        match output {
            Output::Open {
                socket,
                kind,
                local,
            } => self.open_socket(id, socket, kind, local),
            Output::Shut { socket } => self.hosts[id.0 as usize].shut(socket),
            Output::Sieve { socket, sieve } => {
                let host = &mut self.hosts[id.0 as usize];
                let dropped = host.sockets.get_mut(&socket).map_or(0, |open| {
                    open.sieve = sieve;
                    std::mem::take(&mut open.sifted)
                });
                let (host, life) = (id, host.life);
                let told = Told::Sifted(socket, dropped);
                self.agenda
                    .push(self.now, Happening::Tell { host, life, told });
            }
            Output::Datagram {
                socket,
                destination,
                bytes,
            } => return self.send(id, socket, destination, bytes),
            // There are no WebSockets in virtual time.
            Output::Connect {
                connection,
                websocket: true,
                ..
            } => self.plan_told(id, Told::Closed(connection, CloseWhy::Refused)),
            Output::Connect {
                connection,
                local,
                remote,
                ..
            } => self.connect(id, connection, local, remote),
            Output::Stream { connection, bytes } => self.write(id, connection, bytes),
            Output::Close { connection } => self.close(id, connection),
            // There is no other on this host, see `World::add_crew`.
            Output::Hand { .. } => self.counts.strays += 1,
            // There is no disk.
            Output::Record { .. } => self.counts.drops.count(DropReason::RecordOverflow),
            Output::Event(event) => {
                let name = &self.hosts[id.0 as usize].name;
                self.log
                    .line(Detail::Events, format_args!("{} {name} {event}", self.now));
                if self.keep_events {
                    self.events.push((id, event));
                }
            }
        }
        false
    }

    fn open_socket(&mut self, id: HostId, socket: SocketId, kind: SocketKind, local: SocketAddr) {
        let told = match self.hosts[id.0 as usize].open(socket, kind, local) {
            Ok(local) => Told::Opened(socket, local),
            Err(error) => Told::OpenFailed(socket, error),
        };
        self.plan_told(id, told);
    }

    /// Tells a host something, after what it is doing at present.
    pub(crate) fn plan_told(&mut self, host: HostId, told: Told) {
        let life = self.hosts[host.0 as usize].life;
        self.agenda
            .push(self.now, Happening::Tell { host, life, told });
    }

    fn tell(&mut self, host: HostId, life: u32, told: Told) {
        if self.hosts[host.0 as usize].life != life {
            return;
        }
        self.step(host, |node, now| {
            let input = match &told {
                &Told::Opened(socket, local) => Input::Opened { socket, local },
                &Told::OpenFailed(socket, error) => Input::OpenFailed { socket, error },
                &Told::Accepted {
                    connection,
                    socket,
                    local,
                    remote,
                } => Input::Accepted {
                    connection,
                    socket,
                    local,
                    remote,
                },
                &Told::Connected(connection, local) => Input::Connected { connection, local },
                Told::Stream(connection, bytes) => Input::Stream {
                    connection: *connection,
                    bytes,
                },
                &Told::Closed(connection, why) => Input::Closed { connection, why },
                &Told::Sifted(socket, dropped) => Input::Sifted { socket, dropped },
            };
            node.handle(input, now);
        });
    }

    /// Whether it left by a socket for signalling.
    fn send(
        &mut self,
        id: HostId,
        socket: SocketId,
        destination: SocketAddr,
        bytes: &[u8],
    ) -> bool {
        let host = &self.hosts[id.0 as usize];
        let source = host
            .sockets
            .get(&socket)
            .and_then(|open| host.source(open.local, destination));
        let Some(source) = source.filter(|_| bytes.len() <= 65_507) else {
            self.counts.strays += 1;
            self.counts.drops.count(DropReason::SendFailed);
            return false;
        };
        let open = host.sockets.get(&socket);
        let signalling = open.is_some_and(|open| open.kind == SocketKind::UdpSignalling);
        self.counts.sent += 1;
        self.tap(
            TapPoint::Sent(id),
            source,
            destination,
            TapTransport::Udp,
            bytes,
        );
        let Some(&to) = self.by_address.get(&destination.ip()) else {
            self.counts.nowhere += 1;
            self.packet_line("nowhere", source, destination, bytes);
            return signalling;
        };
        if self.is_partitioned(id, to) {
            self.counts.partitioned += 1;
            self.packet_line("partition", source, destination, bytes);
            return signalling;
        }
        match self.offer(id, to, bytes.len() + UDP_HEADER) {
            Fate::Lost(reason) => {
                self.counts.drops.count(reason);
                self.packet_line(reason.name(), source, destination, bytes);
            }
            Fate::Arrives(first, second) => {
                self.packet_line("udp", source, destination, bytes);
                for at in [Some(first), second].into_iter().flatten() {
                    let bytes = bytes.to_vec();
                    self.agenda.push(
                        at,
                        Happening::Datagram {
                            host: to,
                            source,
                            destination,
                            bytes,
                        },
                    );
                }
            }
        }
        signalling
    }

    fn packet_line(&mut self, what: &str, source: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.log.detail >= Detail::Packets {
            let (now, length, short) = (self.now, bytes.len(), Short(bytes));
            self.log.line(
                Detail::Packets,
                format_args!("{now} {what} {source} {to} {length} {short}"),
            );
            self.log.payload(bytes);
        }
    }

    pub(crate) fn is_partitioned(&self, a: HostId, b: HostId) -> bool {
        self.partitions.contains(&(a.min(b), a.max(b)))
    }

    pub(crate) fn host_at(&self, address: IpAddr) -> Option<HostId> {
        self.by_address.get(&address).copied()
    }

    pub(crate) fn tap(
        &mut self,
        point: TapPoint,
        source: SocketAddr,
        destination: SocketAddr,
        transport: TapTransport,
        bytes: &[u8],
    ) {
        if let Some(tap) = &mut self.tap {
            tap(&TapRecord {
                at: self.now,
                point,
                source,
                destination,
                transport,
                bytes,
            });
        }
    }

    fn deliver(&mut self, id: HostId, source: SocketAddr, destination: SocketAddr, bytes: Vec<u8>) {
        let now = self.now;
        let host = &mut self.hosts[id.0 as usize];
        let socket = host
            .socket_at(destination, false)
            .filter(|_| host.node.is_some());
        if let Some(socket) = socket
            && let Some(open) = host.sockets.get_mut(&socket)
            && let Some(node) = &mut host.node
        {
            let dropped = open.sieve.is_some_and(|sieve| !sieve.passes(&bytes));
            open.sifted += u64::from(dropped);
            let slow = !host.effort.is_zero() && open.kind == SocketKind::UdpSignalling;
            if dropped || node.sifts(socket, source, &bytes) {
                self.packet_line("sifted", source, destination, &bytes);
                return;
            }
            if slow {
                let member = node.member_at(socket, source);
                let waiting = Waiting::Datagram {
                    arrived: now,
                    source,
                    destination,
                    bytes,
                };
                let processor = host.processor(member);
                if processor.busy_until <= now && processor.waiting.is_empty() {
                    return self.work(id, member, waiting);
                }
                if processor.waiting.len() >= ROOM {
                    self.counts.drops.count(DropReason::LinkQueueFull);
                    return;
                }
                processor.waiting.push_back(waiting);
                return self.plan_turn(id, member);
            }
        }
        self.take_in(id, (source, destination), bytes, self.now);
    }

    pub(crate) fn take_in(
        &mut self,
        id: HostId,
        (source, destination): (SocketAddr, SocketAddr),
        mut bytes: Vec<u8>,
        arrived: Time,
    ) {
        let host = &self.hosts[id.0 as usize];
        let socket = host
            .socket_at(destination, false)
            .filter(|_| host.node.is_some());
        let Some(socket) = socket else {
            self.counts.nowhere += 1;
            self.packet_line("closed-port", source, destination, &bytes);
            return;
        };
        let media = host
            .sockets
            .get(&socket)
            .is_some_and(|open| open.kind == SocketKind::UdpMedia);
        self.counts.delivered += 1;
        self.packet_line("delivered", source, destination, &bytes);
        let udp = TapTransport::Udp;
        self.tap(TapPoint::Delivered(id), source, destination, udp, &bytes);
        let verdict = self.step(id, |node, now| {
            let verdict = if media {
                let length = bytes.len();
                bytes.resize(length + Packet::ROOM, 0);
                let mut packet = Packet {
                    socket,
                    source,
                    arrived: now,
                    buffer: &mut bytes,
                    length,
                };
                let verdict = node.forward(&mut packet, now);
                // A forwarder may have changed the packet's length.
                let length = packet.bytes().len();
                bytes.truncate(length);
                verdict
            } else {
                None
            };
            if verdict.is_none_or(|verdict| matches!(verdict, Verdict::Punt(_))) {
                let datagram = Datagram {
                    socket,
                    source,
                    arrived,
                    bytes: &mut bytes,
                };
                node.handle(Input::Datagram(datagram), now);
            }
            verdict
        });
        match verdict.flatten() {
            Some(Verdict::Forward {
                socket,
                destination,
            }) => {
                self.send(id, socket, destination, &bytes);
            }
            Some(Verdict::Punt(_)) => self.counts.punted += 1,
            Some(Verdict::Drop(reason)) => self.counts.drops.count(reason),
            Some(Verdict::Consumed) | None => {}
        }
    }

    pub(crate) fn note(&mut self, host: HostId, what: &str) {
        let name = &self.hosts[host.0 as usize].name;
        self.log
            .line(Detail::Events, format_args!("{} {name} {what}", self.now));
    }

    fn fault(&mut self, fault: Fault) {
        self.log
            .line(Detail::Events, format_args!("{} {fault:?}", self.now));
        match fault {
            Fault::Partition(a, b) => {
                self.partitions.insert((a.min(b), a.max(b)));
            }
            Fault::Heal(a, b) => {
                self.partitions.remove(&(a.min(b), a.max(b)));
            }
            Fault::Link(from, to, config) => self.set_link(from, to, config),
            Fault::Reset(host) => {
                let streams: Vec<StreamId> = self.hosts[host.0 as usize]
                    .connections
                    .values()
                    .map(|&(stream, _)| stream)
                    .collect();
                for stream in streams {
                    self.reset(stream);
                }
            }
            Fault::ResetAny => {
                let live: Vec<StreamId> = self
                    .streams
                    .iter()
                    .filter(|(_, stream)| stream.opener.alive)
                    .map(|(&id, _)| id)
                    .collect();
                let index = self.entropy.below(live.len() as u64) as usize;
                if let Some(&stream) = live.get(index) {
                    self.reset(stream);
                }
            }
            Fault::Crash(host) => {
                self.abandon(host);
                self.hosts[host.0 as usize].forget();
            }
            Fault::Calm => {
                self.weather = None;
                self.partitions.clear();
                self.renew_links();
            }
        }
    }
}
