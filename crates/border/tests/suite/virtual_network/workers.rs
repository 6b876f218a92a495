//! Several workers of one border. Like a kernel, the network assigns packets to workers by their source; handoff
//! messages are delivered at once. `border` and `forwarder` are those of the active worker, which is the first one
//! whenever a test inspects them.

use super::{LinkConditions, Node, VirtualNetwork, socket_filters};
use border::border::Border;
use engine::{Engine as _, Entropy, Forward as _, HashKey, Input, SocketId, Time, Transport};
use media::{Forwarder, ForwarderLimits};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

#[derive(Default)]
pub struct Workers {
    /// The other workers; while one of them is active, its place holds the first worker.
    siblings: Vec<(Border, Forwarder)>,
    pub active: usize,
    /// Sockets with the same address, by worker.
    shared: HashMap<(SocketAddr, Transport), Vec<(usize, SocketId)>>,
    /// Handoff messages so far.
    pub handed_off: u64,
    /// Messages of this transfer step are lost between workers.
    pub lost_transfer_step: Option<engine::TransferStep>,
}

pub(super) fn read(config: &str) -> config::Config {
    config::parse(config, "test.toml").unwrap_or_else(|mistakes| {
        panic!(
            "{}",
            mistakes.iter().map(|m| m.to_string()).collect::<String>()
        )
    })
}

impl VirtualNetwork {
    /// A network with a border and without phones.
    pub(super) fn around(border: Border, forwarder: Forwarder, entropy: Entropy) -> VirtualNetwork {
        VirtualNetwork {
            border,
            forwarder,
            phones: Vec::new(),
            now: Time::from_millis(1),
            link_conditions: LinkConditions::ideal(),
            reliable_ports: Vec::new(),
            events: Vec::new(),
            entropy,
            arrivals: BTreeMap::new(),
            count: 0,
            sockets: HashMap::new(),
            border_sockets: HashMap::new(),
            streams: HashMap::new(),
            accepted: 0,
            ports: 40_000,
            refuse_media_sockets: false,
            reports_unreachable: false,
            occupied: Vec::new(),
            media: Vec::new(),
            open_sockets: 0,
            aliases: HashMap::new(),
            source_aliases: HashMap::new(),
            zone: Vec::new(),
            silent: Vec::new(),
            tls_connections: Vec::new(),
            lag: Default::default(),
            socket_filters: socket_filters::SocketFilters::default(),
            programs: Vec::new(),
            wire: Vec::new(),
            reporting: false,
            workers: Workers::default(),
            saved_calls: super::saved_calls::SavedCalls::of_environment(),
        }
    }

    /// A border with the number of workers in its configuration.
    pub fn with_workers(config: &str, seed: u64) -> VirtualNetwork {
        let config = read(config);
        let workers = config.sip.workers;
        let mut entropy = Entropy::from_number(seed);
        let borders = Border::worker_pool(config, workers, entropy.fork());
        let mut members = borders.into_iter().map(|border| {
            let key = HashKey::new(&mut entropy);
            (border, Forwarder::new(ForwarderLimits::default(), key))
        });
        let (border, forwarder) = members.next().unwrap();
        let siblings = members.collect();
        let mut world = VirtualNetwork::around(border, forwarder, entropy);
        world.workers.siblings = siblings;
        for worker in 0..usize::from(workers) {
            world.switch_worker(worker);
            world.border.handle(Input::Timeout, world.now);
            world.drain_border();
        }
        world.switch_worker(0);
        world
    }

    /// Makes a worker the active one.
    pub fn switch_worker(&mut self, worker: usize) {
        if worker == self.workers.active {
            return;
        }
        let mut exchange = |worker: usize| {
            if let Some((border, forwarder)) = worker
                .checked_sub(1)
                .map(|at| &mut self.workers.siblings[at])
            {
                std::mem::swap(&mut self.border, border);
                std::mem::swap(&mut self.forwarder, forwarder);
            }
        };
        exchange(self.workers.active);
        exchange(worker);
        self.workers.active = worker;
    }

    /// Inspects all workers, beginning with the first.
    pub fn each_worker<R>(&mut self, mut look: impl FnMut(&Border, &Forwarder) -> R) -> Vec<R> {
        let workers = 0..=self.workers.siblings.len();
        let entry = workers.map(|worker| {
            self.switch_worker(worker);
            look(&self.border, &self.forwarder)
        });
        let entry = entry.collect();
        self.switch_worker(0);
        entry
    }

    /// Executes a command at a worker.
    pub fn control_worker<T>(
        &mut self,
        worker: usize,
        command: impl FnOnce(&mut Border, Time) -> T,
    ) -> T {
        self.switch_worker(worker);
        let result = self.control(command);
        self.switch_worker(0);
        result
    }

    pub(super) fn siblings_due(&self) -> Time {
        let due = self
            .workers
            .siblings
            .iter()
            .flat_map(|(border, forwarder)| {
                let deadlines = [border.next_deadline(), forwarder.next_deadline()];
                deadlines.into_iter().flatten().map(|deadline| deadline.at)
            });
        due.min().unwrap_or(Time::NEVER)
    }

    pub(super) fn run_siblings(&mut self) {
        let now = self.now;
        for worker in 1..=self.workers.siblings.len() {
            self.switch_worker(worker);
            if self.border.next_deadline().is_some_and(|due| due.at <= now) {
                self.border.handle(Input::Timeout, now);
                self.drain_border();
            }
            if self
                .forwarder
                .next_deadline()
                .is_some_and(|due| due.at <= now)
            {
                self.forwarder.timeout(now);
                self.drain_forwarder();
            }
        }
        self.switch_worker(0);
    }

    /// The active worker opens a socket.
    pub(super) fn border_opens(&mut self, at: (SocketAddr, Transport), socket: SocketId) {
        let own = (self.workers.active, socket);
        let before = self.sockets.insert(at, (Node::Border, socket));
        let shared = self.workers.shared.entry(at).or_default();
        let ours = shared.iter().any(|(worker, _)| *worker == own.0);
        let foreign = before.is_some_and(|(node, _)| node != Node::Border);
        assert!(!ours && !foreign, "{} opened twice", at.0);
        shared.push(own);
        self.border_sockets.insert(own, at.0);
    }

    pub(super) fn border_shuts(&mut self, socket: SocketId) {
        let own = (self.workers.active, socket);
        self.workers.shared.retain(|at, shared| {
            shared.retain(|one| *one != own);
            if shared.is_empty() {
                self.sockets.remove(at);
            }
            !shared.is_empty()
        });
    }

    /// Address of a socket of the active worker.
    pub(super) fn border_address(&self, socket: SocketId) -> SocketAddr {
        *self
            .border_sockets
            .get(&(self.workers.active, socket))
            .expect("an open socket")
    }

    /// The receiver of a packet to an address. Makes the worker that owns the socket active.
    pub(super) fn reached(
        &mut self,
        to: SocketAddr,
        transport: Transport,
        from: SocketAddr,
    ) -> Option<(Node, SocketId)> {
        let found = self.sockets.get(&(to, transport)).copied()?;
        if found.0 != Node::Border {
            return Some(found);
        }
        let shared = &self.workers.shared[&(to, transport)];
        // Any choice works that is stable for a peer.
        let ip = match from.ip() {
            IpAddr::V4(ip) => u32::from(ip),
            IpAddr::V6(_) => 0,
        };
        let mixed = (ip ^ u32::from(from.port()) << 8).wrapping_mul(0x9e37_79b1) >> 16;
        let (worker, socket) = shared[mixed as usize % shared.len()];
        self.switch_worker(worker);
        Some((Node::Border, socket))
    }

    /// Makes the owner of a connection active.
    pub(super) fn switch_to_connection_owner(&mut self, input: &Input<'_>) {
        let connection = match input {
            Input::Stream { connection, .. }
            | Input::Connected { connection, .. }
            | Input::Closed { connection, .. }
            | Input::Accepted { connection, .. } => *connection,
            _ => return,
        };
        self.switch_worker(usize::from(connection.worker()));
    }

    /// From now on messages of this transfer step are lost between workers.
    pub fn lose_transfer_messages(&mut self, step: Option<engine::TransferStep>) {
        self.workers.lost_transfer_step = step;
    }

    /// Handoff messages between workers so far.
    pub fn handed_off(&self) -> u64 {
        self.workers.handed_off
    }
}
