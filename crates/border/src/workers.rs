//! The workers of one border: their shared state, and the state that is divided among them.
//!
//! | shared | divided evenly | per worker |
//! |---|---|---|
//! | registrations and their limit, authentication, rates, time slots of registrations, state, calls and overload feedback of trunks, limit of calls, resolved peers, domains of certificates, load shedding, number of conferences, wrong PINs, transfers between workers | media ports, connections in all and per source, transactions, memory and CPU time for calls | queue and socket filter under overload, DNS lookups, draining |
//!
//! The first worker pings trunks and registers at carriers. A conference belongs to one worker, selected by the
//! called number ([`crate::conferences::worker_of`]).

use crate::admission::overload::feedback::Throttles;
use crate::admission::overload::shedding::ShedLists;
use crate::admission::rate_limit::RateLimiter;
use crate::calls::conference::pin_lockout::PinLockout;
use crate::calls::conference::state::ActiveConferences;
use crate::calls::table::OngoingCalls;
use crate::calls::transfer::handover::Transfers;
use crate::conferences::worker_of;
use crate::listeners::CertificateDomains;
use crate::located_peers::LocatedPeers;
use crate::registrar::{Authority, Location, RegistrationLimiter, Registry, SharedRegistry};
use crate::shared::{Alarm, Ctx};
use crate::trunks::{Boards, Trunks};
use config::Config;
use engine::timers::TimerKey;
use engine::worker::lock;
use engine::{Entropy, EventKind, HashKey, MaybeShared, Time, Worker};
use sip::MovedDialogs;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The initial state of one worker.
#[derive(Debug)]
pub(crate) struct WorkerParts {
    pub(crate) worker: Worker,
    pub(crate) trunks: Trunks,
    pub(crate) authority: MaybeShared<Authority>,
    pub(crate) location: Registry,
    pub(crate) register_limiter: MaybeShared<RegistrationLimiter>,
    pub(crate) authenticated_register_limiter: MaybeShared<RegistrationLimiter>,
    pub(crate) rate_limiter: MaybeShared<RateLimiter>,
    pub(crate) throttles: MaybeShared<Throttles>,
    pub(crate) located_peers: MaybeShared<LocatedPeers>,
    pub(crate) certificate_domains: MaybeShared<CertificateDomains>,
    pub(crate) conferences: MaybeShared<ActiveConferences>,
    pub(crate) pin_lockout: MaybeShared<PinLockout>,
    pub(crate) siblings: Option<Siblings>,
    pub(crate) moves: Option<MovedDialogs>,
    /// The shed lists of all addresses.
    pub(crate) shed_lists: Arc<ShedLists>,
    /// Key of the socket table.
    pub(crate) sockets: HashKey,
    pub(crate) carriers: Entropy,
    pub(crate) resolver: Entropy,
    pub(crate) hash_key: HashKey,
}

/// Shared state of the workers; a single worker has none.
#[derive(Clone, Debug)]
pub(crate) struct Siblings {
    /// Number of calls of each worker.
    calls: Arc<[AtomicUsize]>,
    number: usize,
    /// Reloads applied to the shared state.
    shared_reloads: Arc<Mutex<u32>>,
    /// Reloads that this worker has received.
    reloads_seen: u32,
    /// Workers that have drained, and the calls that they terminated.
    drained: Arc<(AtomicUsize, AtomicU64)>,
    /// Transfers between calls of different workers.
    pub(crate) transfers: Arc<Mutex<Transfers>>,
}

/// State of a drain.
#[derive(Debug)]
pub(crate) struct DrainState {
    pub(crate) timer: Option<TimerKey>,
    /// The end of its time.
    pub(crate) until: Time,
    pub(crate) terminated: u64,
    /// The time limit has passed: remaining calls were terminated, and answers to the BYEs are awaited.
    pub(crate) time_expired: bool,
    pub(crate) finished: bool,
}

/// This worker as a member of the pool.
#[derive(Debug)]
pub(crate) struct PoolMember {
    /// The other workers, if there are several.
    pub(crate) siblings: Option<Siblings>,
    pub(crate) draining: Option<DrainState>,
}

impl PoolMember {
    /// Publishes our number of calls to the other workers.
    pub(crate) fn publish_calls(&self, calls: usize) {
        if let Some(siblings) = &self.siblings {
            siblings.publish_calls(calls);
        }
    }

    /// Number of calls of all workers; `own` are ours.
    pub(crate) fn total_calls(&self, own: usize) -> usize {
        self.siblings
            .as_ref()
            .map_or(own, |siblings| siblings.total_calls())
    }

    /// Whether this worker reports matters of all workers.
    pub(crate) fn is_first(&self) -> bool {
        self.siblings.as_ref().is_none_or(Siblings::is_first)
    }

    /// The table of transfers between workers, if there are several.
    pub(crate) fn transfers(&self) -> Option<Arc<Mutex<Transfers>>> {
        Some(self.siblings.as_ref()?.transfers.clone())
    }

    /// Number of transfers that involve calls of several workers.
    pub(crate) fn open_transfers(&self) -> usize {
        self.siblings
            .as_ref()
            .map_or(0, |siblings| lock(&siblings.transfers).len())
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Emergency calls are accepted after the last call has ended, while other workers or carriers are waited for: the
    /// time limit holds for them, too.
    pub(crate) fn limit_late_calls(&mut self, ctx: &mut Ctx, calls: &OngoingCalls) {
        if let Some(draining) = self.draining.as_mut()
            && draining.finished
            && draining.timer.is_none()
            && !calls.is_empty()
        {
            let at = draining.until.max(ctx.now);
            draining.time_expired = false;
            draining.timer = Some(ctx.timers.schedule(at, Alarm::DrainTimeout));
        }
    }

    /// Finishes a drain when the last call has ended, and its end was logged.
    pub(crate) fn finish_drain_if_idle(&mut self, ctx: &mut Ctx, calls: &OngoingCalls) {
        if !calls.is_empty() || !calls.ended.is_empty() {
            return;
        }
        let Some(draining) = self.draining.as_mut() else {
            return;
        };
        if let Some(timer) = draining.timer.take() {
            ctx.timers.cancel(timer);
        }
        if core::mem::replace(&mut draining.finished, true) {
            return;
        }
        // The last worker writes the event for all.
        let terminated = match &self.siblings {
            None => Some(draining.terminated),
            Some(siblings) => siblings.finish_drain(draining.terminated),
        };
        let Some(terminated) = terminated else { return };
        ctx.events
            .tell(ctx.now, || EventKind::DrainFinished { terminated });
    }
}

impl Siblings {
    /// Publishes the number of this worker's calls.
    pub(crate) fn publish_calls(&self, calls: usize) {
        if let Some(own) = self.calls.get(self.number) {
            own.store(calls, Ordering::Relaxed);
        }
    }

    /// Calls of all workers.
    pub(crate) fn total_calls(&self) -> usize {
        self.calls
            .iter()
            .map(|calls| calls.load(Ordering::Relaxed))
            .sum()
    }

    /// Whether this worker owns the conferences of a called number.
    pub(crate) fn owns_conference(&self, number: &str) -> bool {
        self.number == usize::from(self.conference_owner(number))
    }

    /// The worker that owns the conferences of a called number.
    pub(crate) fn conference_owner(&self, number: &str) -> u8 {
        // The number of workers fits a worker's number.
        worker_of(number, self.calls.len() as u8)
    }

    /// Whether this worker reports matters of all workers.
    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Records that this worker has drained. The last worker gets the number of calls terminated by all.
    pub(crate) fn finish_drain(&self, terminated_here: u64) -> Option<u64> {
        let (finished, terminated) = &*self.drained;
        let total = terminated.fetch_add(terminated_here, Ordering::AcqRel) + terminated_here;
        let last = finished.fetch_add(1, Ordering::AcqRel) + 1 == self.calls.len();
        last.then_some(total)
    }

    /// Whether this worker is the first to apply a reload, and therefore renews the shared state.
    pub(crate) fn begin_reload(&mut self) -> bool {
        self.reloads_seen = self.reloads_seen.wrapping_add(1);
        let mut shared_reloads = lock(&self.shared_reloads);
        let first = *shared_reloads < self.reloads_seen;
        *shared_reloads = self.reloads_seen.max(*shared_reloads);
        first
    }
}

impl WorkerParts {
    /// The state of a single worker.
    pub(crate) fn single(config: &Config, entropy: &mut Entropy) -> WorkerParts {
        let sockets = HashKey::new(entropy);
        let trunks = Trunks::new(config, entropy.fork(), Time::ZERO);
        let authority = Authority::new(config, entropy.fork());
        let limit = config.limits.registrations;
        let mut location = Registry::Own(Box::new(Location::new(
            config.registrar,
            limit,
            entropy.fork(),
        )));
        location.set_number_prefixes(config.number_prefixes());
        let (carriers, resolver) = (entropy.fork(), entropy.fork());
        let hash_key = HashKey::new(entropy);
        WorkerParts {
            sockets,
            carriers,
            resolver,
            hash_key,
            worker: Worker::default(),
            trunks,
            authority: MaybeShared::Own(authority),
            location,
            register_limiter: MaybeShared::Own(admission(config, entropy)),
            authenticated_register_limiter: MaybeShared::Own(admission(config, entropy)),
            rate_limiter: MaybeShared::Own(RateLimiter::new(entropy)),
            throttles: MaybeShared::Own(Throttles::default()),
            located_peers: MaybeShared::Own(LocatedPeers::new(hash_key)),
            certificate_domains: MaybeShared::Own(CertificateDomains::new(
                config.limits.connections,
                hash_key,
            )),
            conferences: MaybeShared::Own(ActiveConferences::default()),
            pin_lockout: MaybeShared::Own(PinLockout::default()),
            siblings: None,
            moves: None,
            shed_lists: Arc::new(ShedLists::new(entropy.u64() as u32)),
        }
    }

    /// The states of several workers.
    pub(crate) fn several(config: &Config, of: u8, entropy: &mut Entropy) -> Vec<WorkerParts> {
        let worker = Worker {
            number: 0,
            count: of,
            key: HashKey::new(entropy),
        };
        let boards = Arc::new(Mutex::new(Boards::default()));
        let authority = shared(Authority::new(config, entropy.fork()));
        let limit = config.limits.registrations;
        let parts = SharedRegistry::new(config.registrar, limit, worker, entropy);
        Registry::Common(parts.clone()).set_number_prefixes(config.number_prefixes());
        let register_limiter = shared(admission(config, entropy));
        let authenticated_register_limiter = shared(admission(config, entropy));
        let rate_limiter = shared(RateLimiter::new(entropy));
        let throttles = shared(Throttles::default());
        let peers = shared(LocatedPeers::new(HashKey::new(entropy)));
        let connections = config.limits.connections;
        let certificate_domains =
            shared(CertificateDomains::new(connections, HashKey::new(entropy)));
        let conferences = shared(ActiveConferences::default());
        let pin_lockout = shared(PinLockout::default());
        let siblings = Siblings {
            calls: (0..of).map(|_| AtomicUsize::new(0)).collect(),
            number: 0,
            shared_reloads: Arc::default(),
            reloads_seen: 0,
            drained: Arc::default(),
            transfers: Arc::default(),
        };
        // A call has two dialogs.
        let dialogs = config.limits.calls.saturating_mul(2);
        let moves = MovedDialogs::new(dialogs, HashKey::new(entropy));
        let shed_lists = Arc::new(ShedLists::new(entropy.u64() as u32));
        let worker_parts = |number: u8| WorkerParts {
            worker: Worker { number, ..worker },
            trunks: Trunks::of_worker(config, entropy.fork(), boards.clone(), number == 0),
            authority: MaybeShared::Shared(authority.clone()),
            location: Registry::Common(parts.of_worker(number)),
            register_limiter: MaybeShared::Shared(register_limiter.clone()),
            authenticated_register_limiter: MaybeShared::Shared(
                authenticated_register_limiter.clone(),
            ),
            rate_limiter: MaybeShared::Shared(rate_limiter.clone()),
            throttles: MaybeShared::Shared(throttles.clone()),
            located_peers: MaybeShared::Shared(peers.clone()),
            certificate_domains: MaybeShared::Shared(certificate_domains.clone()),
            conferences: MaybeShared::Shared(conferences.clone()),
            pin_lockout: MaybeShared::Shared(pin_lockout.clone()),
            siblings: Some(Siblings {
                number: usize::from(number),
                ..siblings.clone()
            }),
            moves: Some(moves.clone()),
            shed_lists: shed_lists.clone(),
            sockets: HashKey::new(entropy),
            carriers: entropy.fork(),
            resolver: entropy.fork(),
            hash_key: HashKey::new(entropy),
        };
        (0..of).map(worker_parts).collect()
    }
}

fn shared<T>(value: T) -> Arc<Mutex<T>> {
    Arc::new(Mutex::new(value))
}

fn admission(config: &Config, entropy: &mut Entropy) -> RegistrationLimiter {
    RegistrationLimiter::new(
        config.registrar.registrations_per_s,
        config.limits.registrations,
        entropy,
    )
}
