//! Several borders as the workers of one: what they have in common, and what is divided among them.
//!
//! | in common | divided evenly | each for itself |
//! |---|---|---|
//! | registrations, proof of identity, rates, turns of a storm, state and calls of trunks, the limit of calls, located peers, what certificates have proven, who is taken under overload, how many conferences take place, transfers with calls of several | media ports, connections and those of a source, transactions, memory and processor time for calls | the queue and its sieve under overload, lookups of names, draining |
//!
//! Trunks are pinged, and carriers registered at, by the first of them. A conference is wholly one worker's, whom the number that is
//! called tells ([`crate::rooms::worker_of`]).

use crate::border::Border;
use crate::call::join::Transfers;
use crate::call::room::TakingPlace;
use crate::config::Config;
use crate::gate::Gate;
use crate::overload::sifting::Rows;
use crate::registrar::{Admission, Authority, Location, Parts, Registry};
use crate::rooms::worker_of;
use crate::trunks::{Boards, Trunks};
use engine::worker::lock;
use engine::{BoundedMap, ConnectionId, Entropy, HashKey, Held, Time, Worker};
use sip::Moves;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Addresses of located names that may send requests although no list names them.
const LOCATED_PEERS: usize = 4_096;

/// The SIP domains of the verified certificates that peers have shown, by connection (RFC 5922 section 7.4).
pub(crate) type Proven = BoundedMap<ConnectionId, Box<[String]>>;

/// What one of the workers starts with.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) worker: Worker,
    pub(crate) trunks: Trunks,
    pub(crate) authority: Held<Authority>,
    pub(crate) location: Registry,
    pub(crate) registering: Held<Admission>,
    pub(crate) proving: Held<Admission>,
    pub(crate) gate: Held<Gate>,
    pub(crate) located_peers: Held<BoundedMap<IpAddr, ()>>,
    pub(crate) proven: Held<Proven>,
    pub(crate) conferences: Held<TakingPlace>,
    pub(crate) crew: Option<Crew>,
    pub(crate) moves: Option<Moves>,
    /// New calls while there are too many.
    pub(crate) rows: Arc<Rows>,
    /// Of the table of sockets.
    pub(crate) sockets: HashKey,
    pub(crate) carriers: Entropy,
    pub(crate) names: Entropy,
    pub(crate) marks: HashKey,
}

/// What the workers know of each other; those who are alone have none.
#[derive(Clone, Debug)]
pub(crate) struct Crew {
    /// Calls of each.
    calls: Arc<[AtomicUsize]>,
    number: usize,
    /// Reloads that what is in common has seen.
    reloads: Arc<Mutex<u32>>,
    /// And that we have.
    seen: u32,
    /// Workers whose drain is over, and the calls that they had to end.
    drained: Arc<(AtomicUsize, AtomicU64)>,
    /// Transfers with calls of different ones.
    pub(crate) transfers: Arc<Mutex<Transfers>>,
}

impl Crew {
    /// Tells the others how many calls we have.
    pub(crate) fn tell(&self, calls: usize) {
        if let Some(own) = self.calls.get(self.number) {
            own.store(calls, Ordering::Relaxed);
        }
    }

    /// Calls of all.
    pub(crate) fn calls(&self) -> usize {
        self.calls
            .iter()
            .map(|calls| calls.load(Ordering::Relaxed))
            .sum()
    }

    /// Whether the conferences of a called number are ours.
    pub(crate) fn has_room(&self, number: &str) -> bool {
        self.number == usize::from(self.room_owner(number))
    }

    /// Whose the conferences of a called number are.
    pub(crate) fn room_owner(&self, number: &str) -> u8 {
        // There are as many as a worker's number can say.
        worker_of(number, self.calls.len() as u8)
    }

    /// Whether we are the one who tells what concerns all.
    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Our drain is over; calls that had to be ended, of all, where it was the last one.
    pub(crate) fn finished(&self, cut: u64) -> Option<u64> {
        let (finished, cuts) = &*self.drained;
        let all = cuts.fetch_add(cut, Ordering::AcqRel) + cut;
        let last = finished.fetch_add(1, Ordering::AcqRel) + 1 == self.calls.len();
        last.then_some(all)
    }

    /// Whether we are the first to come to this reload: what is in common is ours to renew.
    pub(crate) fn first_to_reload(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        let mut reloads = lock(&self.reloads);
        let first = *reloads < self.seen;
        *reloads = self.seen.max(*reloads);
        first
    }
}

impl Share {
    /// Of one who is alone.
    pub(crate) fn alone(config: &Config, entropy: &mut Entropy) -> Share {
        let sockets = HashKey::new(entropy);
        let trunks = Trunks::new(config, entropy.fork(), Time::ZERO);
        let authority = Authority::new(config, entropy.fork());
        let limit = config.limits.registrations;
        let location = Location::new(config.registrar, limit, entropy.fork());
        let (carriers, names) = (entropy.fork(), entropy.fork());
        let marks = HashKey::new(entropy);
        Share {
            sockets,
            carriers,
            names,
            marks,
            worker: Worker::default(),
            trunks,
            authority: Held::Own(authority),
            location: Registry::Own(Box::new(location)),
            registering: Held::Own(admission(config, entropy)),
            proving: Held::Own(admission(config, entropy)),
            gate: Held::Own(Gate::new(entropy)),
            located_peers: Held::Own(BoundedMap::new(LOCATED_PEERS, marks)),
            proven: Held::Own(Proven::new(config.limits.connections, marks)),
            conferences: Held::Own(TakingPlace::default()),
            crew: None,
            moves: None,
            rows: Arc::new(Rows::new(entropy.u64() as u32)),
        }
    }

    /// Of each of several.
    fn of(config: &Config, of: u8, entropy: &mut Entropy) -> Vec<Share> {
        let worker = Worker {
            number: 0,
            of,
            key: HashKey::new(entropy),
        };
        let boards = Arc::new(Mutex::new(Boards::default()));
        let authority = common(Authority::new(config, entropy.fork()));
        let limit = config.limits.registrations;
        let parts = Parts::new(config.registrar, limit, worker, entropy);
        let registering = common(admission(config, entropy));
        let proving = common(admission(config, entropy));
        let gate = common(Gate::new(entropy));
        let peers = BoundedMap::new(LOCATED_PEERS, HashKey::new(entropy));
        let peers = common(peers);
        let connections = config.limits.connections;
        let proven = common(Proven::new(connections, HashKey::new(entropy)));
        let conferences = common(TakingPlace::default());
        let crew = Crew {
            calls: (0..of).map(|_| AtomicUsize::new(0)).collect(),
            number: 0,
            reloads: Arc::default(),
            seen: 0,
            drained: Arc::default(),
            transfers: Arc::default(),
        };
        // A call has two.
        let dialogs = config.limits.calls.saturating_mul(2);
        let moves = Moves::new(dialogs, HashKey::new(entropy));
        let rows = Arc::new(Rows::new(entropy.u64() as u32));
        let share = |number: u8| Share {
            worker: Worker { number, ..worker },
            trunks: Trunks::of_worker(config, entropy.fork(), boards.clone(), number == 0),
            authority: Held::Common(authority.clone()),
            location: Registry::Common(parts.of_worker(number)),
            registering: Held::Common(registering.clone()),
            proving: Held::Common(proving.clone()),
            gate: Held::Common(gate.clone()),
            located_peers: Held::Common(peers.clone()),
            proven: Held::Common(proven.clone()),
            conferences: Held::Common(conferences.clone()),
            crew: Some(Crew {
                number: usize::from(number),
                ..crew.clone()
            }),
            moves: Some(moves.clone()),
            rows: rows.clone(),
            sockets: HashKey::new(entropy),
            carriers: entropy.fork(),
            names: entropy.fork(),
            marks: HashKey::new(entropy),
        };
        (0..of).map(share).collect()
    }
}

impl Border {
    /// As many borders as workers of one, 1 to [`Worker::MOST`]: each has an engine's sockets of its own at the same
    /// addresses, and hands the others what is theirs. Give each of them every reload and every drain.
    pub fn crew(config: impl Into<Arc<Config>>, of: u8, mut entropy: Entropy) -> Vec<Border> {
        let config = config.into();
        if of <= 1 {
            return vec![Border::new(config, entropy)];
        }
        let of = of.min(Worker::MOST);
        let shares = Share::of(&config, of, &mut entropy);
        let border = |share| {
            let endpoint = entropy.fork();
            Border::with(config.clone(), share, endpoint, entropy.fork())
        };
        shares.into_iter().map(border).collect()
    }
}

fn common<T>(value: T) -> Arc<Mutex<T>> {
    Arc::new(Mutex::new(value))
}

fn admission(config: &Config, entropy: &mut Entropy) -> Admission {
    Admission::new(config.registrar.rate, config.limits.registrations, entropy)
}
