//! The registrations, of one engine or shared by several workers. Shared registrations are divided into as many
//! partitions as there are workers, by a hash of the user. Each partition has a lock, held for one registration or
//! lookup at a time. Calls to unregistered users do not take it.

use super::{Location, Passing, RegisterResponse, StoredContact, StoredRegistration};
use crate::policy::Contact;
use crate::views::RegistrationView;
use config::{InterfaceId, Registrar};
use core::hash::BuildHasher as _;
use core::time::Duration;
use engine::worker::lock;
use engine::{ConnectionId, Deadline, Entropy, EventKind, Time, Transport, Worker};
use sip::{Flow, ListenerId};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use wire::sip::Message;

/// Interval at which a worker removes expired registrations of its partition; a registration may outlive its expiry by
/// this.
const SWEEP: Duration = Duration::from_secs(1);

/// Registrations, see [`Location`].
#[derive(Debug)]
pub enum Registry {
    /// Of one engine.
    Own(Box<Location>),
    /// Shared.
    Common(SharedRegistry),
}

/// The partitions, as used by one worker.
#[derive(Clone, Debug)]
pub struct SharedRegistry {
    parts: Arc<[Mutex<Location>]>,
    worker: Worker,
    /// When our own partition is checked next.
    sweep: Time,
    /// Bit mask of partitions in which this worker left changes; there are at most [`Worker::MAX`].
    changed: u64,
}

impl SharedRegistry {
    /// Empty partitions for the number of workers in `worker`, with at most `limit` contacts together.
    pub fn new(
        settings: Registrar,
        limit: usize,
        worker: Worker,
        entropy: &mut Entropy,
    ) -> SharedRegistry {
        // The hash does not divide users evenly: one count for all partitions.
        let total: Arc<AtomicUsize> = Arc::default();
        let part = |_| {
            let total = Arc::clone(&total);
            Mutex::new(Location::partition(settings, limit, entropy.fork(), total))
        };
        SharedRegistry {
            parts: (0..worker.count).map(part).collect(),
            worker,
            sweep: Time::ZERO,
            changed: 0,
        }
    }

    /// The same partitions for another worker.
    pub fn of_worker(&self, number: u8) -> SharedRegistry {
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

    /// Applies `work` to a partition, and records whether it has changes.
    fn work<R>(&mut self, index: usize, work: impl FnOnce(&mut Location) -> R) -> Option<R> {
        let mut part = lock(self.parts.get(index)?);
        let done = work(&mut part);
        self.changed |= u64::from(part.has_changes()) << index;
        Some(done)
    }
}

/// Adds the users of a partition to a page with the first `limit` users of all partitions.
fn add_to_page(
    page: &mut BTreeSet<Arc<str>>,
    limit: usize,
    location: &Location,
    after: Option<&str>,
) {
    for user in location.users_after(after).take(limit) {
        if page.len() >= limit {
            if page.last().is_some_and(|last| user > last) {
                // So are those that follow in this partition.
                return;
            }
            page.pop_last();
        }
        page.insert(user.clone());
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

    /// See [`Location::reload`]; for all partitions.
    pub fn reload(&mut self, settings: Registrar, limit: usize) {
        match self {
            Registry::Own(location) => location.reload(settings, limit),
            Registry::Common(parts) => {
                for part in parts.parts.iter() {
                    lock(part).reload(settings, limit);
                }
            }
        }
    }

    /// See [`Location::set_number_prefixes`]; for all partitions.
    pub fn set_number_prefixes(&mut self, prefixes: Vec<Box<str>>) {
        match self {
            Registry::Own(location) => location.set_number_prefixes(prefixes),
            Registry::Common(parts) => {
                for part in parts.parts.iter() {
                    lock(part).set_number_prefixes(prefixes.clone());
                }
            }
        }
    }

    /// Number of contacts of all users.
    pub fn len(&self) -> usize {
        match self {
            Registry::Own(location) => location.len(),
            Registry::Common(parts) => parts.parts.iter().map(|part| lock(part).len()).sum(),
        }
    }

    /// See [`Location::view`].
    pub fn view(&self, user: &str) -> Option<RegistrationView> {
        self.look(user, |part| part.view(user))
    }

    /// At most `limit` users behind `after`, in the order of their names.
    pub fn page(&self, after: Option<&str>, limit: usize) -> Vec<RegistrationView> {
        let mut page = BTreeSet::new();
        match self {
            Registry::Own(location) => add_to_page(&mut page, limit, location, after),
            Registry::Common(parts) => {
                for part in parts.parts.iter() {
                    add_to_page(&mut page, limit, &lock(part), after);
                }
            }
        }
        // A user may have gone since its partition was read.
        page.iter().filter_map(|user| self.view(user)).collect()
    }

    /// See [`Location::remove_user`].
    pub fn remove_user(&mut self, user: &str) -> (usize, Vec<EventKind>) {
        self.with(user, |part| part.remove_user(user))
    }

    /// See [`Location::has_connection`]; for all partitions.
    pub fn has_connection(&self, connection: ConnectionId) -> bool {
        match self {
            Registry::Own(location) => location.has_connection(connection),
            Registry::Common(parts) => {
                let mut parts = parts.parts.iter();
                parts.any(|part| lock(part).has_connection(connection))
            }
        }
    }

    /// Whether there is no registration.
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
    ) -> RegisterResponse {
        self.with(user, |part| {
            part.register(user, request, interface, flow, now)
        })
    }

    /// See [`Location::refresh`].
    pub fn refresh(
        &mut self,
        user: &str,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Option<RegisterResponse> {
        self.with(user, |part| part.refresh(user, request, flow, now))
    }

    /// See [`Location::survive`].
    pub fn survive(
        &mut self,
        user: &str,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Option<RegisterResponse> {
        self.with(user, |part| part.survive(user, request, flow, now))
    }

    /// See [`Location::holds`].
    pub fn holds(&self, user: &str, flow: Flow) -> bool {
        self.look(user, |part| part.holds(user, flow))
    }

    /// See [`Location::knows_host`].
    pub fn knows_host(&self, user: &str, host: IpAddr) -> bool {
        self.look(user, |part| part.knows_host(user, host))
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
    ) -> Result<Passing, Box<RegisterResponse>> {
        self.with(user, |part| {
            part.pass(user, request, interface, flow, host, transport)
        })
    }

    /// See [`Location::passed`].
    pub fn passed(
        &mut self,
        passing: &Passing,
        response: &Message<'_>,
        now: Time,
    ) -> RegisterResponse {
        self.with(&passing.user, |part| part.passed(passing, response, now))
    }

    /// See [`Location::contacts`].
    pub fn contacts(&self, user: &str, token: Option<&[u8]>) -> Vec<Contact> {
        let found = self.look(user, |part| part.contacts(user, token));
        match self {
            // The core may write another user before our token.
            Registry::Common(parts) if token.is_some() && found.is_empty() => parts
                .parts
                .iter()
                .map(|part| lock(part).contacts(user, token))
                .find(|contacts| !contacts.is_empty())
                .unwrap_or_default(),
            _ => found,
        }
    }

    /// See [`Location::contacts_below`]; of all partitions.
    pub fn contacts_below(&self, prefix: &str) -> Vec<Contact> {
        match self {
            Registry::Own(location) => location.contacts_below(prefix),
            Registry::Common(parts) => {
                let parts = parts.parts.iter();
                parts
                    .flat_map(|part| lock(part).contacts_below(prefix))
                    .collect()
            }
        }
    }

    /// See [`Location::numbers_below`]; of all partitions.
    pub fn numbers_below(&self, prefix: &str) -> usize {
        match self {
            Registry::Own(location) => location.numbers_below(prefix),
            Registry::Common(parts) => {
                let parts = parts.parts.iter();
                parts.map(|part| lock(part).numbers_below(prefix)).sum()
            }
        }
    }

    /// See [`Location::is_registered`].
    pub fn is_registered(&self, user: &str) -> bool {
        self.look(user, |part| part.is_registered(user))
    }

    /// See [`Location::flow_failed`]; for all partitions.
    pub fn flow_failed(&mut self, connection: ConnectionId) -> Vec<EventKind> {
        match self {
            Registry::Own(location) => location.flow_failed(connection),
            Registry::Common(parts) => {
                let all = 0..parts.parts.len();
                let failed = |index| parts.work(index, |part| part.flow_failed(connection));
                all.filter_map(failed).flatten().collect()
            }
        }
    }

    /// See [`Location::expire`]; if shared, for the worker's own partition, once per second.
    pub fn expire(&mut self, now: Time) -> Vec<EventKind> {
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

    /// When [`Registry::expire`] is due.
    pub fn next_deadline(&self) -> Option<Deadline> {
        match self {
            Registry::Own(location) => location.next_deadline(),
            Registry::Common(parts) => Some(Deadline::new(parts.sweep, "registration expiry")),
        }
    }

    /// See [`Location::track_changes`]; for all partitions.
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

    /// See [`Location::mark_all_changed`]; if shared, for the worker's own partition.
    pub fn mark_all_changed(&mut self) {
        match self {
            Registry::Own(location) => location.mark_all_changed(),
            Registry::Common(parts) => {
                let own = usize::from(parts.worker.number);
                parts.work(own, Location::mark_all_changed);
            }
        }
    }

    /// See [`Location::drain_changes`]; if shared, for the partitions in which this worker left changes. A partition is
    /// locked during `take`, so that two workers cannot drain states of one user in the wrong order.
    pub fn drain_changes(
        &mut self,
        address_of: &dyn Fn(ListenerId) -> Option<SocketAddr>,
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

    /// See [`Location::take_lost_changes`]; if shared, for the worker's own partition.
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
        place_of: &dyn Fn(&StoredContact) -> Option<(ListenerId, InterfaceId)>,
        now: Time,
    ) -> usize {
        self.with(&stored.user, |part| part.restore(stored, place_of, now))
    }
}
