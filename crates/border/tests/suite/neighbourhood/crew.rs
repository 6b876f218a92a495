//! Several workers of one border. As with a kernel, what comes is given to one of them by who sent it; what they hand to each other comes
//! at once. `border` and `forwarder` are those of the worker at work: the first one's wherever a test looks.

use super::{Neighbourhood, Node, Weather, sieves};
use border::border::Border;
use engine::{Engine as _, Entropy, Forward as _, HashKey, Input, SocketId, Time, Transport};
use media::{Forwarder, ForwarderLimits};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

#[derive(Default)]
pub struct Crew {
    /// Those beside the first; in the place of the one at work stands the first.
    mates: Vec<(Border, Forwarder)>,
    pub at_work: usize,
    /// Sockets that several have, by worker.
    shared: HashMap<(SocketAddr, Transport), Vec<(usize, SocketId)>>,
    /// Parcels so far.
    pub carried: u64,
    /// Words about transfers of this kind are lost on their way.
    pub deaf_to: Option<engine::TransferStep>,
}

pub(super) fn read(config: &str) -> border::config::Config {
    border::config::parse(config, "test.toml").unwrap_or_else(|mistakes| {
        panic!(
            "{}",
            mistakes.iter().map(|m| m.to_string()).collect::<String>()
        )
    })
}

impl Neighbourhood {
    /// Nothing yet but a border.
    pub(super) fn around(border: Border, forwarder: Forwarder, entropy: Entropy) -> Neighbourhood {
        Neighbourhood {
            border,
            forwarder,
            phones: Vec::new(),
            now: Time::from_millis(1),
            weather: Weather::fine(),
            spared: Vec::new(),
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
            tells_of_nobody: false,
            taken: Vec::new(),
            media: Vec::new(),
            open_sockets: 0,
            aliases: HashMap::new(),
            disguises: HashMap::new(),
            zone: Vec::new(),
            silent: Vec::new(),
            secured: Vec::new(),
            lag: Default::default(),
            sieves: sieves::Sieves::default(),
            programs: Vec::new(),
            wire: Vec::new(),
            reporting: false,
            crew: Crew::default(),
        }
    }

    /// A border with as many workers as its configuration says.
    pub fn crew(config: &str, seed: u64) -> Neighbourhood {
        let config = read(config);
        let workers = config.sip.workers;
        let mut entropy = Entropy::from_number(seed);
        let borders = Border::crew(config, workers, entropy.fork());
        let mut members = borders.into_iter().map(|border| {
            let key = HashKey::new(&mut entropy);
            (border, Forwarder::new(ForwarderLimits::default(), key))
        });
        let (border, forwarder) = members.next().unwrap();
        let mates = members.collect();
        let mut world = Neighbourhood::around(border, forwarder, entropy);
        world.crew.mates = mates;
        for worker in 0..usize::from(workers) {
            world.turn_to(worker);
            world.border.handle(Input::Timeout, world.now);
            world.drain_border();
        }
        world.turn_to(0);
        world
    }

    /// Puts a worker to work.
    pub fn turn_to(&mut self, worker: usize) {
        if worker == self.crew.at_work {
            return;
        }
        let mut exchange = |worker: usize| {
            if let Some((border, forwarder)) =
                worker.checked_sub(1).map(|at| &mut self.crew.mates[at])
            {
                std::mem::swap(&mut self.border, border);
                std::mem::swap(&mut self.forwarder, forwarder);
            }
        };
        exchange(self.crew.at_work);
        exchange(worker);
        self.crew.at_work = worker;
    }

    /// Looks at all workers, the first one first.
    pub fn each_worker<R>(&mut self, mut look: impl FnMut(&Border, &Forwarder) -> R) -> Vec<R> {
        let workers = 0..=self.crew.mates.len();
        let seen = workers.map(|worker| {
            self.turn_to(worker);
            look(&self.border, &self.forwarder)
        });
        let seen = seen.collect();
        self.turn_to(0);
        seen
    }

    /// Commands of one of them.
    pub fn operate_worker<T>(
        &mut self,
        worker: usize,
        command: impl FnOnce(&mut Border, Time) -> T,
    ) -> T {
        self.turn_to(worker);
        let result = self.operate(command);
        self.turn_to(0);
        result
    }

    pub(super) fn mates_due(&self) -> Time {
        let due = self.crew.mates.iter().flat_map(|(border, forwarder)| {
            let deadlines = [border.next_deadline(), forwarder.next_deadline()];
            deadlines.into_iter().flatten().map(|deadline| deadline.at)
        });
        due.min().unwrap_or(Time::FAR)
    }

    pub(super) fn run_mates(&mut self) {
        let now = self.now;
        for worker in 1..=self.crew.mates.len() {
            self.turn_to(worker);
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
        self.turn_to(0);
    }

    /// The worker at work opens a socket.
    pub(super) fn border_opens(&mut self, at: (SocketAddr, Transport), socket: SocketId) {
        let own = (self.crew.at_work, socket);
        let before = self.sockets.insert(at, (Node::Border, socket));
        let shared = self.crew.shared.entry(at).or_default();
        let ours = shared.iter().any(|(worker, _)| *worker == own.0);
        let foreign = before.is_some_and(|(node, _)| node != Node::Border);
        assert!(!ours && !foreign, "{} opened twice", at.0);
        shared.push(own);
        self.border_sockets.insert(own, at.0);
    }

    pub(super) fn border_shuts(&mut self, socket: SocketId) {
        let own = (self.crew.at_work, socket);
        self.crew.shared.retain(|at, shared| {
            shared.retain(|one| *one != own);
            if shared.is_empty() {
                self.sockets.remove(at);
            }
            !shared.is_empty()
        });
    }

    /// Where a socket of the worker at work is.
    pub(super) fn border_address(&self, socket: SocketId) -> SocketAddr {
        *self
            .border_sockets
            .get(&(self.crew.at_work, socket))
            .expect("an open socket")
    }

    /// Who gets what somebody sends to an address; a worker is put to work.
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
        let shared = &self.crew.shared[&(to, transport)];
        // Any choice will do that stays the same for a peer.
        let ip = match from.ip() {
            IpAddr::V4(ip) => u32::from(ip),
            IpAddr::V6(_) => 0,
        };
        let mixed = (ip ^ u32::from(from.port()) << 8).wrapping_mul(0x9e37_79b1) >> 16;
        let (worker, socket) = shared[mixed as usize % shared.len()];
        self.turn_to(worker);
        Some((Node::Border, socket))
    }

    /// Puts to work who holds a connection.
    pub(super) fn turn_to_holder(&mut self, input: &Input<'_>) {
        let connection = match input {
            Input::Stream { connection, .. }
            | Input::Connected { connection, .. }
            | Input::Closed { connection, .. }
            | Input::Accepted { connection, .. } => *connection,
            _ => return,
        };
        self.turn_to(usize::from(connection.worker()));
    }

    /// From now on words about transfers of this kind are lost between the workers.
    pub fn lose_words(&mut self, step: Option<engine::TransferStep>) {
        self.crew.deaf_to = step;
    }

    /// Parcels from worker to worker so far.
    pub fn carried(&self) -> u64 {
        self.crew.carried
    }
}
