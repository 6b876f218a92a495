//! The registrations, of an engine's own or in common with other workers. In common they lie in as many parts as there are
//! workers, by a hash of the user: each part has a lock, which is taken for one registration or one look-up at a time. Calls
//! that lead to no registered user never touch them.

use super::{Answer, Location, Passing, StoredContact, StoredRegistration};
use crate::config::{InterfaceId, Registrar};
use crate::policy::Contact;
use core::hash::BuildHasher as _;
use core::time::Duration;
use engine::worker::lock;
use engine::{ConnectionId, Deadline, Entropy, Note, Time, Transport, Worker};
use sip::{Flow, LocalId};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use wire::sip::Message;

/// How often a worker looks for what has expired in its part: a registration may outlive its time by so much.
const SWEEP: Duration = Duration::from_secs(1);

/// Registrations, see [`Location`].
#[derive(Debug)]
pub enum Registry {
    /// Of one engine alone.
    Own(Box<Location>),
    /// In common.
    Common(Parts),
}

/// The parts, as one of the workers has them.
#[derive(Clone, Debug)]
pub struct Parts {
    parts: Arc<[Mutex<Location>]>,
    worker: Worker,
    /// When our own part is next looked through.
    sweep: Time,
    /// Parts in which this worker left changes, a bit for each: there are at most [`Worker::MOST`].
    changed: u64,
}

impl Parts {
    /// Empty parts for as many workers as `worker` says, for at most `limit` contacts together.
    pub fn new(settings: Registrar, limit: usize, worker: Worker, entropy: &mut Entropy) -> Parts {
        let part = |_| {
            let location = Location::new(settings, worker.share(limit), entropy.fork());
            Mutex::new(location)
        };
        Parts {
            parts: (0..worker.of).map(part).collect(),
            worker,
            sweep: Time::ZERO,
            changed: 0,
        }
    }

    /// The same parts for another of the workers.
    pub fn of_worker(&self, number: u8) -> Parts {
        let mut parts = self.clone();
        parts.worker.number = number;
        parts
    }

    fn index(&self, user: &str) -> usize {
        // The index is below the length.
        (self.worker.key.hash_one(user) % self.parts.len() as u64) as usize
    }

    fn part(&self, user: &str) -> MutexGuard<'_, Location> {
        lock(&self.parts[self.index(user)])
    }

    /// Works on a part, and notes whether it has changes.
    fn work<R>(&mut self, index: usize, work: impl FnOnce(&mut Location) -> R) -> Option<R> {
        let mut part = lock(self.parts.get(index)?);
        let done = work(&mut part);
        self.changed |= u64::from(part.has_changes()) << index;
        Some(done)
    }
}

impl Registry {
    fn with<R>(&mut self, user: &str, work: impl FnOnce(&mut Location) -> R) -> R {
        match self {
            Registry::Own(location) => work(location),
            Registry::Common(parts) => {
                let index = parts.index(user);
                let mut part = lock(&parts.parts[index]);
                let done = work(&mut part);
                parts.changed |= u64::from(part.has_changes()) << index;
                done
            }
        }
    }

    fn look<R>(&self, user: &str, look: impl FnOnce(&Location) -> R) -> R {
        match self {
            Registry::Own(location) => look(location),
            Registry::Common(parts) => look(&parts.part(user)),
        }
    }

    /// See [`Location::reload`]; for all parts.
    pub fn reload(&mut self, settings: Registrar, limit: usize) {
        match self {
            Registry::Own(location) => location.reload(settings, limit),
            Registry::Common(parts) => {
                let limit = parts.worker.share(limit);
                for part in parts.parts.iter() {
                    lock(part).reload(settings, limit);
                }
            }
        }
    }

    /// Contacts of all users.
    pub fn len(&self) -> usize {
        match self {
            Registry::Own(location) => location.len(),
            Registry::Common(parts) => parts.parts.iter().map(|part| lock(part).len()).sum(),
        }
    }

    /// Whether no one is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// See [`Location::register`].
    pub fn register(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        now: Time,
    ) -> Answer {
        self.with(user, |part| {
            part.register(user, request, interface, flow, now)
        })
    }

    /// See [`Location::refresh`].
    pub fn refresh(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        now: Time,
    ) -> Option<Answer> {
        self.with(user, |part| {
            part.refresh(user, request, interface, flow, now)
        })
    }

    /// See [`Location::survive`].
    pub fn survive(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        now: Time,
    ) -> Option<Answer> {
        self.with(user, |part| {
            part.survive(user, request, interface, flow, now)
        })
    }

    /// See [`Location::holds`].
    pub fn holds(&self, user: &str, flow: Flow) -> bool {
        self.look(user, |part| part.holds(user, flow))
    }

    /// See [`Location::pass`].
    ///
    /// # Errors
    /// As there.
    pub fn pass(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        host: &str,
        transport: Transport,
    ) -> Result<Passing, Box<Answer>> {
        self.with(user, |part| {
            part.pass(user, request, interface, flow, host, transport)
        })
    }

    /// See [`Location::passed`].
    pub fn passed(&mut self, passing: &Passing, response: &Message<'_>, now: Time) -> Answer {
        self.with(&passing.user, |part| part.passed(passing, response, now))
    }

    /// See [`Location::contacts`].
    pub fn contacts(&self, user: &str, token: Option<&[u8]>) -> Vec<Contact> {
        let found = self.look(user, |part| part.contacts(user, token));
        match self {
            // A core may write another user in front of our token.
            Registry::Common(parts) if token.is_some() && found.is_empty() => parts
                .parts
                .iter()
                .map(|part| lock(part).contacts(user, token))
                .find(|contacts| !contacts.is_empty())
                .unwrap_or_default(),
            _ => found,
        }
    }

    /// See [`Location::flow_failed`]; in all parts.
    pub fn flow_failed(&mut self, connection: ConnectionId) -> Vec<Note> {
        match self {
            Registry::Own(location) => location.flow_failed(connection),
            Registry::Common(parts) => {
                let all = 0..parts.parts.len();
                let failed = |index| parts.work(index, |part| part.flow_failed(connection));
                all.filter_map(failed).flatten().collect()
            }
        }
    }

    /// See [`Location::expire`]; in common, of the worker's own part, once in a second.
    pub fn expire(&mut self, now: Time) -> Vec<Note> {
        match self {
            Registry::Own(location) => location.expire(now),
            Registry::Common(parts) if now < parts.sweep => Vec::new(),
            Registry::Common(parts) => {
                parts.sweep = now + SWEEP;
                let own = usize::from(parts.worker.number);
                parts.work(own, |part| part.expire(now)).unwrap_or_default()
            }
        }
    }

    /// When [`Registry::expire`] is next wanted.
    pub fn next_deadline(&self) -> Option<Deadline> {
        match self {
            Registry::Own(location) => location.next_deadline(),
            Registry::Common(parts) => Some(Deadline::new(parts.sweep, "registration expiry")),
        }
    }

    /// See [`Location::track_changes`]; in all parts.
    pub fn track_changes(&mut self) {
        match self {
            Registry::Own(location) => location.track_changes(),
            Registry::Common(parts) => {
                for part in parts.parts.iter() {
                    lock(part).track_changes();
                }
            }
        }
    }

    /// Whether there are changes to drain.
    pub fn has_changes(&self) -> bool {
        match self {
            Registry::Own(location) => location.has_changes(),
            Registry::Common(parts) => parts.changed != 0,
        }
    }

    /// See [`Location::mark_all_changed`]; in common, of the worker's own part.
    pub fn mark_all_changed(&mut self) {
        match self {
            Registry::Own(location) => location.mark_all_changed(),
            Registry::Common(parts) => {
                let own = usize::from(parts.worker.number);
                parts.work(own, Location::mark_all_changed);
            }
        }
    }

    /// See [`Location::drain_changes`]; in common, of the parts in which this worker left changes. A part is locked while `take` takes from
    /// it, so that two workers cannot drain the states of one user in the wrong order.
    pub fn drain_changes(
        &mut self,
        address_of: &dyn Fn(LocalId) -> Option<SocketAddr>,
        take: &mut dyn FnMut(StoredRegistration) -> bool,
    ) -> bool {
        match self {
            Registry::Own(location) => location.drain_changes(address_of, take),
            Registry::Common(parts) => {
                while parts.changed != 0 {
                    let index = parts.changed.trailing_zeros();
                    let part = parts.parts.get(index as usize);
                    if part.is_some_and(|part| lock(part).drain_changes(address_of, take)) {
                        return true;
                    }
                    parts.changed &= !(1 << index);
                }
                false
            }
        }
    }

    /// See [`Location::take_lost_changes`]; in common, of the worker's own part.
    pub fn take_lost_changes(&mut self) -> u64 {
        match self {
            Registry::Own(location) => location.take_lost_changes(),
            Registry::Common(parts) => {
                let own = parts.parts.get(usize::from(parts.worker.number));
                own.map_or(0, |part| lock(part).take_lost_changes())
            }
        }
    }

    /// See [`Location::restore`].
    pub fn restore(
        &mut self,
        stored: &StoredRegistration,
        place_of: &dyn Fn(&StoredContact) -> Option<(LocalId, InterfaceId)>,
        now: Time,
    ) -> usize {
        self.with(&stored.user, |part| part.restore(stored, place_of, now))
    }
}
