//! The simulated network: hosts, links, time.

mod datagram;

use crate::agenda::Agenda;
use crate::fault::{Fault, Storm};
use crate::host::{ControlNode, EngineNode, HostId, HostNode, QueuedInput, SimHost};
use crate::link::{Delay, Link, LinkConfig};
use crate::log::{Detail, Log};
use crate::queued::QueuedLink;
use crate::stream::{Segment, Side, Stream, StreamId};
use crate::tap::{TapPoint, TapRecord, TapTransport};
use engine::io::Checked;
use engine::{
    CloseReason, ConnectionId, Control, Deadline, DropReason, Drops, Engine, Entropy, Event,
    Forward, Input, Output, SocketId, SocketKind, Time,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Calls of an engine without progress of time after which it is considered stuck.
const WAKES_AT_ONCE: u32 = 10_000;

/// Owned form of a pending input.
pub(crate) enum HostInput {
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
    Closed(ConnectionId, CloseReason),
    Shed(SocketId, u64),
}

pub(crate) enum WorldEvent {
    Wake {
        host: HostId,
        number: u64,
    },
    Datagram {
        host: HostId,
        source: SocketAddr,
        destination: SocketAddr,
        bytes: Vec<u8>,
        /// Digest of the bytes for the log, if it is known.
        digest: Option<u64>,
    },
    Input {
        host: HostId,
        life: u32,
        input: HostInput,
    },
    /// A segment enters the link, for the `tries`-th time.
    Attempt {
        stream: StreamId,
        from: Side,
        segment: Segment,
        tries: u32,
    },
    /// A segment has passed the link.
    Segment {
        stream: StreamId,
        from: Side,
        segment: Segment,
    },
    /// An end detects that its peer has vanished.
    Vanished {
        stream: StreamId,
        side: Side,
    },
    /// Packets of a link with a queue of its own move on.
    LinkTurn {
        pair: (HostId, HostId),
    },
    /// A host with processing time takes its next datagram.
    ProcessorTurn {
        host: HostId,
        worker: usize,
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
    /// Datagrams to an address without host, or a port without socket.
    pub undeliverable: u64,
    /// Datagrams lost in a partition.
    pub partitioned: u64,
    /// Segments of connections delivered.
    pub segments: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Packets that the forwarder passed to control.
    pub punted: u64,
    /// Outputs for a socket or connection that does not exist (any more).
    pub strays: u64,
    /// Losses of links, and drops by forwarders.
    pub drops: Drops,
}

type Tap = Box<dyn FnMut(&TapRecord<'_>)>;

/// A network of hosts in virtual time. One seed determines all random draws.
pub struct World {
    seed: u64,
    pub(crate) now: Time,
    pub(crate) agenda: Agenda,
    pub(crate) hosts: Vec<SimHost>,
    by_address: BTreeMap<IpAddr, HostId>,
    links: BTreeMap<(HostId, HostId), Link>,
    pub(crate) queues: BTreeMap<(HostId, HostId), QueuedLink>,
    configs: BTreeMap<(HostId, HostId), LinkConfig>,
    default_link: LinkConfig,
    storm_link: Option<LinkConfig>,
    partitions: BTreeSet<(HostId, HostId)>,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) next_stream: StreamId,
    pub(crate) entropy: Entropy,
    host_entropy: Entropy,
    pub(crate) log: Log,
    taps: Vec<Tap>,
    pub(crate) counts: Counts,
    events: Vec<(HostId, Event)>,
    keep_events: bool,
    wakes: u64,
    /// Empty buffers of datagrams.
    spare: Vec<Vec<u8>>,
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

/// Setup.
impl World {
    /// An empty world.
    pub fn new(seed: u64) -> World {
        let mut root = Entropy::from_number(seed);
        World {
            seed,
            now: Time::ZERO,
            agenda: Agenda::default(),
            hosts: Vec::new(),
            by_address: BTreeMap::new(),
            links: BTreeMap::new(),
            queues: BTreeMap::new(),
            configs: BTreeMap::new(),
            default_link: LinkConfig::default(),
            storm_link: None,
            partitions: BTreeSet::new(),
            streams: BTreeMap::new(),
            next_stream: 0,
            entropy: root.fork(),
            host_entropy: root.fork(),
            log: Log::new(),
            taps: Vec::new(),
            counts: Counts::default(),
            events: Vec::new(),
            keep_events: false,
            wakes: 0,
            spare: Vec::new(),
        }
    }

    /// A generator for a new host; each call returns another.
    pub fn entropy(&mut self) -> Entropy {
        self.host_entropy.fork()
    }

    /// Adds a host with a plain engine. Its first outputs are performed at once.
    ///
    /// # Panics
    /// If another host has one of the addresses.
    pub fn add_engine<E: Engine + 'static>(
        &mut self,
        name: &str,
        addresses: &[IpAddr],
        engine: E,
    ) -> HostId {
        self.add(name, addresses, Box::new(EngineNode(Checked::new(engine))))
    }

    /// Adds a host with a control plane and its forwarder.
    ///
    /// # Panics
    /// If another host has one of the addresses.
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
        let node = Box::new(ControlNode::new(control, forwarder));
        self.add(name, addresses, node)
    }

    pub(crate) fn add(
        &mut self,
        name: &str,
        addresses: &[IpAddr],
        node: Box<dyn HostNode>,
    ) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        for &address in addresses {
            let taken = self.by_address.insert(address, id);
            assert!(taken.is_none(), "two hosts have the address {address}");
        }
        self.hosts.push(SimHost::new(name, addresses, node));
        self.step(id, |_, _| ());
        id
    }

    /// Sets the time that a host needs for each signalling datagram, in or out. Datagrams that arrive meanwhile wait in
    /// its socket. Each of several workers has a processor of its own, and needs the same time for a handoff message.
    pub fn set_processing_time(&mut self, host: HostId, processing_time: Duration) {
        self.hosts[host.0 as usize].processing_time = processing_time;
    }

    /// Starts a new engine on a host that crashed; it has nothing open.
    pub fn restart<E: Engine + 'static>(&mut self, host: HostId, engine: E) {
        self.install(host, Box::new(EngineNode(Checked::new(engine))));
    }

    /// Starts a new control plane and forwarder on a host that crashed.
    pub fn restart_control<C, F>(&mut self, host: HostId, control: C, forwarder: F)
    where
        C: Control<Command = F::Command, Report = F::Report> + 'static,
        F: Forward + 'static,
    {
        self.install(host, Box::new(ControlNode::new(control, forwarder)));
    }

    fn install(&mut self, host: HostId, node: Box<dyn HostNode>) {
        let place = &mut self.hosts[host.0 as usize];
        place.forget();
        place.node = Some(node);
        self.log_event(host, "restart");
        self.step(host, |_, _| ());
    }

    /// Sets the link between hosts without a link of their own, from now on.
    pub fn set_default_link(&mut self, config: LinkConfig) {
        self.default_link = config;
        self.renew_links();
    }

    /// Sets the link from one host to another (one direction), from now on.
    pub fn set_link(&mut self, from: HostId, to: HostId, config: LinkConfig) {
        self.configs.insert((from, to), config);
        self.renew_links();
    }

    fn renew_links(&mut self) {
        let now = self.now;
        let pairs: Vec<_> = self.links.keys().copied().collect();
        for pair in pairs {
            let config = self.link_config(pair);
            if let Some(link) = self.links.get_mut(&pair)
                && *link.config() != config
            {
                link.set(config, now);
            }
        }
        let pairs: Vec<_> = self.queues.keys().copied().collect();
        for pair in pairs {
            let config = self.link_config(pair);
            if let Some(queue) = self.queues.get_mut(&pair)
                && *queue.emulator.config() != config
            {
                queue.emulator.set(config, now);
                self.agenda.push(now, WorldEvent::LinkTurn { pair });
            }
        }
    }

    pub(crate) fn link_config(&self, pair: (HostId, HostId)) -> LinkConfig {
        if pair.0 == pair.1 {
            // A storm does not affect a host's link to itself.
            return LinkConfig {
                delay: Delay::Constant(Duration::from_micros(10)),
                ..LinkConfig::default()
            };
        }
        self.config_between(pair).clone()
    }

    /// The settings of a link between two hosts.
    fn config_between(&self, pair: (HostId, HostId)) -> &LinkConfig {
        self.storm_link
            .as_ref()
            .or_else(|| self.configs.get(&pair))
            .unwrap_or(&self.default_link)
    }

    /// Whether packets of this link go through a queue of their own.
    pub(crate) fn is_queued(&self, pair: (HostId, HostId)) -> bool {
        pair.0 != pair.1 && self.config_between(pair).codel.is_some()
    }

    /// The generator of a link, made from the seed and the two hosts, so that traffic on one link does not change the
    /// draws of another.
    pub(crate) fn link_entropy(&self, (from, to): (HostId, HostId)) -> Entropy {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..12].copy_from_slice(&from.0.to_le_bytes());
        seed[12..16].copy_from_slice(&to.0.to_le_bytes());
        Entropy::from_seed(seed)
    }

    /// The link from one host to another whose queue needs no events.
    pub(crate) fn link(&mut self, pair: (HostId, HostId)) -> &mut Link {
        if !self.links.contains_key(&pair) {
            let link = Link::new(self.link_config(pair), self.link_entropy(pair));
            self.links.insert(pair, link);
        }
        self.links
            .entry(pair)
            .or_insert_with(|| Link::new(LinkConfig::default(), Entropy::from_number(0)))
    }

    /// Passes every packet to `tap` from now on, in place of earlier taps.
    pub fn set_tap(&mut self, tap: impl FnMut(&TapRecord<'_>) + 'static) {
        self.taps.clear();
        self.add_tap(tap);
    }

    /// Passes every packet to `tap`, too, from now on.
    pub fn add_tap(&mut self, tap: impl FnMut(&TapRecord<'_>) + 'static) {
        self.taps.push(Box::new(tap));
    }

    /// Sets the level of detail of the log; packets by default.
    pub fn set_detail(&mut self, detail: Detail) {
        self.log.detail = detail;
    }

    /// Keeps the log's text from now on; otherwise only its digest is computed.
    pub fn keep_log(&mut self) {
        self.log.keep();
    }

    /// Keeps the hosts' events from now on, for [`World::take_events`].
    pub fn keep_events(&mut self) {
        self.keep_events = true;
    }

    /// Schedules a fault; one in the past happens at once.
    pub fn plan(&mut self, at: Time, fault: Fault) {
        self.agenda.push(at.max(self.now), WorldEvent::Fault(fault));
    }

    /// Schedules a storm from now to `until`. Afterwards the links have their own settings again.
    pub fn storm(&mut self, storm: &Storm, until: Time) {
        self.storm_link = Some(storm.link.clone());
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

/// Running and inspection.
impl World {
    /// The current time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Figures until now.
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

    /// Numbers of a host's open sockets and connections.
    pub fn open(&self, host: HostId) -> (usize, usize) {
        let host = &self.hosts[host.0 as usize];
        (host.sockets.len(), host.connections.len())
    }

    /// Time of the next event; `None`: no event is scheduled.
    pub fn next_at(&self) -> Option<Time> {
        self.agenda.next_at()
    }

    /// Processes events up to `until` and sets the time to it.
    pub fn run_until(&mut self, until: Time) {
        self.run_while(until, |_| true);
    }

    /// Runs until no event is scheduled, not even a deadline, at most up to `limit`. Returns whether that state was
    /// reached.
    pub fn run_quiet(&mut self, limit: Time) -> bool {
        self.run_while(limit, |world| world.agenda.next_at().is_some());
        self.agenda.next_at().is_none()
    }

    /// Runs up to `limit` as long as `go_on` returns true. It is called after every event.
    pub fn run_while(&mut self, limit: Time, mut go_on: impl FnMut(&mut World) -> bool) {
        while let Some((at, event)) = self.agenda.pop_due(limit) {
            self.now = self.now.max(at);
            if self.process(event) && !go_on(self) {
                return;
            }
        }
        self.now = self.now.max(limit);
    }

    /// Borrows the engine of a host for `work`, then performs its outputs. `None` if the host is down or its engine has
    /// another type.
    pub fn with_engine<E: Engine + 'static, R>(
        &mut self,
        host: HostId,
        work: impl FnOnce(&mut E, Time) -> R,
    ) -> Option<R> {
        self.step(host, |node, now| {
            let single = node.as_any().downcast_mut::<EngineNode<E>>()?;
            Some(work(single.0.get(), now))
        })?
    }

    /// Borrows control plane and forwarder of a host, as [`World::with_engine`].
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
            let pair = node.as_any().downcast_mut::<ControlNode<C, F>>()?;
            Some(work(pair.control.get(), &mut pair.forwarder, now))
        })?
    }
}

/// Events.
impl World {
    /// Processes an event. `false`: it was a replaced wake-up, without effect.
    fn process(&mut self, event: WorldEvent) -> bool {
        match event {
            WorldEvent::Wake { host, number } => return self.wake(host, number),
            WorldEvent::Datagram {
                host,
                source,
                destination,
                bytes,
                digest,
            } => self.deliver(host, (source, destination), bytes, digest),
            WorldEvent::LinkTurn { pair } => self.link_turn(pair),
            WorldEvent::ProcessorTurn { host, worker, life } => self.turn(host, worker, life),
            WorldEvent::Input { host, life, input } => self.deliver_input(host, life, input),
            WorldEvent::Attempt {
                stream,
                from,
                segment,
                tries,
            } => self.attempt(stream, from, segment, tries),
            WorldEvent::Segment {
                stream,
                from,
                segment,
            } => self.segment(stream, from, segment),
            WorldEvent::Vanished { stream, side } => self.vanished(stream, side),
            WorldEvent::Fault(fault) => self.fault(fault),
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
        let name = if stuck {
            host.name.clone()
        } else {
            String::new()
        };
        self.step(id, |node, now| {
            let due = |deadline: Option<Deadline>| deadline.filter(|deadline| deadline.at <= now);
            assert!(
                !stuck,
                "{name} requests wake-ups without progress at {now}: {:?}",
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

    /// Borrows the node of a host for `work`, then performs all outputs and schedules the next wake-up.
    pub(crate) fn step<R>(
        &mut self,
        id: HostId,
        work: impl FnOnce(&mut dyn HostNode, Time) -> R,
    ) -> Option<R> {
        let now = self.now;
        // Moved out during the step, because performing its outputs borrows the world.
        let mut node = self.hosts[id.0 as usize].node.take()?;
        let result = work(&mut *node, now);
        loop {
            while let Some(output) = node.next_output() {
                if self.perform(id, output) {
                    self.add_processing_time(id, node.output_worker());
                }
            }
            let reported = node.shuttle(now);
            while let Some((socket, destination, bytes)) = node.next_packet() {
                self.send(id, socket, destination, bytes);
            }
            match node.next_handoff() {
                Some(handoff) if self.hosts[id.0 as usize].processing_time.is_zero() => {
                    node.deliver_handoff(&handoff, now);
                }
                Some(handoff) => {
                    let to = handoff.to;
                    let processor = self.hosts[id.0 as usize].processor(to);
                    processor.waiting.push_back(QueuedInput::Handoff(handoff));
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
        if at == Time::NEVER {
            host.wake = None;
        } else if host.wake.is_none_or(|(planned, _)| planned != at) {
            self.wakes += 1;
            host.wake = Some((at, self.wakes));
            let number = self.wakes;
            self.agenda.push(at, WorldEvent::Wake { host: id, number });
        }
    }

    /// Performs an output. Returns whether it was a signalling datagram, which costs processing time.
    fn perform(&mut self, id: HostId, output: Output<'_>) -> bool {
        match output {
            Output::OpenSocket {
                socket,
                kind,
                local,
            } => self.open_socket(id, socket, kind, local),
            Output::CloseSocket { socket } => self.hosts[id.0 as usize].shut(socket),
            Output::SocketFilter { socket, filter } => {
                let host = &mut self.hosts[id.0 as usize];
                let dropped = host.sockets.get_mut(&socket).map_or(0, |open| {
                    open.filter = filter;
                    std::mem::take(&mut open.shed)
                });
                let (host, life) = (id, host.life);
                let input = HostInput::Shed(socket, dropped);
                self.agenda
                    .push(self.now, WorldEvent::Input { host, life, input });
            }
            Output::Datagram {
                socket,
                destination,
                bytes,
            } => return self.send(id, socket, destination, bytes),
            // WebSockets do not exist in virtual time.
            Output::Connect {
                connection,
                websocket: true,
                ..
            } => self.plan_input(
                id,
                HostInput::Closed(connection, CloseReason::ConnectFailed),
            ),
            Output::Connect {
                connection,
                local,
                remote,
                ..
            } => self.connect(id, connection, local, remote),
            Output::Stream { connection, bytes } => self.write(id, connection, bytes),
            Output::Close { connection } => self.close(id, connection),
            // A host with one engine has no other worker, see `World::add_workers`.
            Output::HandOff { .. } => self.counts.strays += 1,
            // There is no disk.
            Output::Recording { .. } => self.counts.drops.count(DropReason::RecordingOverflow),
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
        let input = match self.hosts[id.0 as usize].open(socket, kind, local) {
            Ok(local) => HostInput::Opened(socket, local),
            Err(error) => HostInput::OpenFailed(socket, error),
        };
        self.plan_input(id, input);
    }

    /// Schedules an input for a host, after its current step.
    pub(crate) fn plan_input(&mut self, host: HostId, input: HostInput) {
        let life = self.hosts[host.0 as usize].life;
        self.agenda
            .push(self.now, WorldEvent::Input { host, life, input });
    }

    fn deliver_input(&mut self, host: HostId, life: u32, input: HostInput) {
        if self.hosts[host.0 as usize].life != life {
            return;
        }
        self.step(host, |node, now| {
            let input = match &input {
                &HostInput::Opened(socket, local) => Input::Opened { socket, local },
                &HostInput::OpenFailed(socket, error) => Input::OpenFailed { socket, error },
                &HostInput::Accepted {
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
                &HostInput::Connected(connection, local) => Input::Connected { connection, local },
                HostInput::Stream(connection, bytes) => Input::Stream {
                    connection: *connection,
                    bytes,
                },
                &HostInput::Closed(connection, reason) => Input::Closed { connection, reason },
                &HostInput::Shed(socket, dropped) => Input::Shed { socket, dropped },
            };
            node.handle(input, now);
        });
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
        for tap in &mut self.taps {
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

    pub(crate) fn log_event(&mut self, host: HostId, what: &str) {
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
                self.crash_streams(host);
                self.hosts[host.0 as usize].forget();
            }
            Fault::Calm => {
                self.storm_link = None;
                self.partitions.clear();
                self.renew_links();
            }
        }
    }
}
