//! Registrations as plain values, which the program writes to a file and restores after a restart. Writing each refresh
//! would write the file as often as phones register. So a contact is drained when it changes, and a refresh only if the
//! written expiry lags by more than [`slack`].

use super::binding::{Binding, CoreState, GrantedValues};
use super::{Location, MAX_KEPT, MAX_USER};
use config::InterfaceId;
use core::time::Duration;
use engine::{Time, Transport};
use sip::{Flow, ListenerId};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::sip::{HeaderId, Scheme, Uri};

/// Refreshes of lifetimes up to this, in seconds, are written once per hour; the start time of the program shows that
/// the contact was still registered.
const SHORT: u32 = 300;
/// Maximum lag of the written expiry of a short lifetime.
const SHORT_SLACK: Duration = Duration::from_secs(3_600);
/// Maximum lag of the written expiry at the core.
const CORE_SLACK: Duration = Duration::from_secs(300);
/// Maximum number of users queued for writing; above that, all users are written again.
const WAITING: usize = 16_384;

/// Maximum lag of the written expiry of a contact with this lifetime (seconds).
pub const fn slack(lifetime: u32) -> Duration {
    match lifetime {
        0..=SHORT => SHORT_SLACK,
        _ => Duration::from_secs(lifetime as u64 / 8),
    }
}

/// All contacts of a user that survive a restart; empty: the user has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRegistration {
    /// User part of the address of record.
    pub user: String,
    /// Contacts in the order of registration.
    pub contacts: Vec<StoredContact>,
}

/// A contact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredContact {
    /// URI.
    pub uri: Vec<u8>,
    /// Contact parameters without `expires`, each with its semicolon.
    pub params: Vec<u8>,
    /// `+sip.instance`.
    pub instance: Vec<u8>,
    /// Call-ID of the REGISTER.
    pub call_id: Vec<u8>,
    /// Path values, separated by commas.
    pub path: Vec<u8>,
    /// UDP, or TCP if the phone accepts connections.
    pub transport: Transport,
    /// Address of our listener.
    pub local: SocketAddr,
    /// Address of the phone.
    pub remote: SocketAddr,
    /// Preference in thousandths.
    pub q: u16,
    /// CSeq of the written REGISTER.
    pub cseq: u32,
    /// reg-id of RFC 5626; 0: none.
    pub reg_id: u32,
    /// Seconds granted with each REGISTER.
    pub lifetime: u32,
    /// Expiry.
    pub until: Time,
    /// Expiry in the file, if it differs.
    pub written: Time,
    /// State of the core, for a forwarded contact.
    pub core: Option<StoredCore>,
}

/// State granted by the core for a forwarded contact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCore {
    /// Token of the contact in calls from the core; not 0.
    pub token: u64,
    /// Until then, unchanged REGISTERs are answered here.
    pub due: Time,
    /// Expiry at the core.
    pub until: Time,
    /// Contact parameters of its response.
    pub params: Vec<u8>,
    /// P-Associated-URI of its response, separated by commas.
    pub associated_uris: Vec<u8>,
}

/// Users with changes to be written.
#[derive(Debug, Default)]
pub(super) struct ChangeQueue {
    /// Each at most once, unless it was removed and returned.
    users: VecDeque<Arc<str>>,
    /// All users from this slot on are to be written too.
    rest: Option<usize>,
    /// Number of changes that exceeded the capacity.
    lost: u64,
}

impl ChangeQueue {
    /// Queues a user.
    pub(super) fn add(&mut self, user: Arc<str>) {
        if self.users.len() < WAITING {
            self.users.push_back(user);
        } else {
            self.lost += 1;
            self.rest = Some(0);
        }
    }

    fn are_none(&self) -> bool {
        self.users.is_empty() && self.rest.is_none()
    }
}

/// The address for a new connection to a contact over TCP: its URI contains the source address, and it did not request
/// its flow.
fn takes_connections(uri: &[u8], flow: Flow) -> Option<SocketAddr> {
    let uri = Uri::parse(uri)?;
    let tcp = uri.params.get(b"transport")?.eq_ignore_ascii_case(b"tcp");
    let host = uri.host.ip().filter(|ip| *ip == flow.remote.ip())?;
    let direct = tcp && matches!(uri.scheme, Scheme::Sip) && !uri.params.has(b"ob");
    direct.then(|| SocketAddr::new(host, uri.port.unwrap_or(5060)))
}

impl Binding {
    /// The address after a restart; `None` if it is reachable only on its connection, which is then closed.
    fn remote_after_restart(&self) -> Option<SocketAddr> {
        match self.flow.transport {
            Transport::Udp => Some(self.flow.remote),
            Transport::Tcp if self.reg_id == 0 && self.path().is_empty() => {
                takes_connections(self.uri(), self.flow)
            }
            Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => None,
        }
    }

    /// Whether it survives a restart.
    pub(super) fn is_kept(&self) -> bool {
        self.remote_after_restart().is_some()
    }

    /// Whether the written expiry lags too much.
    pub(super) fn has_moved(&self) -> bool {
        self.is_behind(self.written) && self.is_kept()
    }

    /// Whether the written form is outdated if this replaces `old`.
    pub(super) fn outdates(&self, old: Option<&Binding>) -> bool {
        let Some(old) = old.filter(|old| old.is_kept()) else {
            return self.is_kept();
        };
        let same = self.text == old.text
            && self.ends == old.ends
            && self.flow == old.flow
            && (self.q, self.reg_id, self.token) == (old.q, old.reg_id, old.token)
            && self.lifetime == old.lifetime
            && self.core.given == old.core.given
            && self.core.due <= old.core.due + CORE_SLACK;
        !same || self.is_behind(old.written)
    }

    fn is_behind(&self, written: u32) -> bool {
        self.until > Time::from_secs(written.into()) + slack(self.lifetime)
    }

    fn stored(&self, local: SocketAddr) -> Option<StoredContact> {
        let remote = self.remote_after_restart()?;
        let given = self.core.given.as_deref();
        let headers = given.into_iter().flat_map(|given| &given.headers);
        let associated_uris: Vec<&[u8]> = headers.map(|(_, value)| value.as_slice()).collect();
        let core = (self.token != 0).then(|| StoredCore {
            token: self.token,
            due: self.core.due,
            until: self.core.until,
            params: given.map_or_else(Vec::new, |given| given.params.clone()),
            associated_uris: associated_uris.join(&b", "[..]),
        });
        Some(StoredContact {
            uri: self.uri().to_vec(),
            params: self.params().to_vec(),
            instance: self.instance().to_vec(),
            call_id: self.call_id().to_vec(),
            path: self.path().to_vec(),
            transport: self.flow.transport,
            local,
            remote,
            q: self.q,
            cseq: self.cseq,
            reg_id: self.reg_id,
            lifetime: self.lifetime,
            until: self.until,
            written: self.until,
            core,
        })
    }

    /// The contact of a stored one; `None` if it is invalid. `order` gives the order of several contacts of a user.
    fn restored(
        stored: &StoredContact,
        local: ListenerId,
        interface: InterfaceId,
        order: u64,
    ) -> Option<Binding> {
        let parts = [
            stored.uri.as_slice(),
            &stored.params,
            &stored.instance,
            &stored.call_id,
            &stored.path,
        ];
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let sip = Uri::parse(&stored.uri).is_some_and(|uri| uri.is_sip());
        // The parameters contain the instance too.
        if !sip || length > 2 * MAX_KEPT || stored.q > 1_000 {
            return None;
        }
        let core = stored.core.as_ref();
        let (text, ends) = Binding::text_of(parts);
        let restored = Binding {
            text,
            ends,
            flow: Flow {
                local,
                transport: stored.transport,
                remote: stored.remote,
                connection: None,
            },
            interface,
            q: stored.q,
            cseq: stored.cseq,
            reg_id: stored.reg_id,
            lifetime: stored.lifetime,
            since: Time(order),
            until: stored.until,
            written: whole_seconds(stored.written),
            token: core.map_or(0, |core| core.token),
            core: core.map_or_else(CoreState::default, |core| CoreState {
                due: core.due,
                until: core.until,
                given: given(core),
            }),
        };
        restored.is_kept().then_some(restored)
    }
}

fn whole_seconds(time: Time) -> u32 {
    u32::try_from(time.0 / 1_000_000_000).unwrap_or(u32::MAX)
}

fn given(core: &StoredCore) -> Option<Box<GrantedValues>> {
    let uris = Some(&core.associated_uris).filter(|uris| !uris.is_empty());
    let given = GrantedValues {
        params: core.params.clone(),
        headers: uris
            .map(|uris| (HeaderId::PAssociatedUri, uris.clone()))
            .into_iter()
            .collect(),
    };
    (given != GrantedValues::default()).then(|| Box::new(given))
}

impl Location {
    /// Tracks changes from now on, until [`Location::drain_changes`] takes them.
    pub fn track_changes(&mut self) {
        self.changes = Some(ChangeQueue::default());
    }

    /// Whether there are changes to drain.
    pub fn has_changes(&self) -> bool {
        self.changes
            .as_ref()
            .is_some_and(|changes| !changes.are_none())
    }

    /// Marks all users as changed.
    pub fn mark_all_changed(&mut self) {
        if let Some(changes) = &mut self.changes {
            changes.rest = Some(0);
        }
    }

    /// Number of changes that exceeded the capacity since the last call.
    pub fn take_lost_changes(&mut self) -> u64 {
        let changes = self.changes.as_mut();
        changes.map_or(0, |changes| std::mem::take(&mut changes.lost))
    }

    /// Passes changed users to `take` until it returns false. Returns whether some are left. `address_of` returns the
    /// address of a listener.
    pub fn drain_changes(
        &mut self,
        address_of: &dyn Fn(ListenerId) -> Option<SocketAddr>,
        take: &mut dyn FnMut(StoredRegistration) -> bool,
    ) -> bool {
        while let Some(user) = self.next_changed() {
            if !take(self.stored(&user, address_of)) {
                return self.has_changes();
            }
        }
        false
    }

    fn next_changed(&mut self) -> Option<Arc<str>> {
        let changes = self.changes.as_mut()?;
        if let Some(user) = changes.users.pop_front() {
            return Some(user);
        }
        let first = changes.rest?;
        let mut slots = first..self.records.capacity();
        let found = slots.find_map(|slot| Some((slot, self.records.get(slot)?.user.clone())));
        changes.rest = found.as_ref().map(|(slot, _)| slot + 1);
        found.map(|(_, user)| user)
    }

    fn stored(
        &mut self,
        user: &str,
        address_of: &dyn Fn(ListenerId) -> Option<SocketAddr>,
    ) -> StoredRegistration {
        let slot = self.slot(user);
        let record = slot.and_then(|slot| self.records.get_mut(slot));
        let mut contacts = Vec::new();
        if let Some(record) = record {
            record.changed = false;
            let mut order: Vec<&mut Binding> = record.bindings.iter_mut().collect();
            order.sort_by_key(|binding| binding.since);
            for binding in order {
                binding.written = whole_seconds(binding.until);
                let local = address_of(binding.flow.local);
                contacts.extend(local.and_then(|local| binding.stored(local)));
            }
        }
        StoredRegistration {
            user: user.to_owned(),
            contacts,
        }
    }

    /// Marks a user as changed.
    pub(super) fn mark(&mut self, slot: usize) {
        if let Some(changes) = &mut self.changes
            && let Some(record) = self.records.get_mut(slot)
            && !std::mem::replace(&mut record.changed, true)
        {
            changes.add(record.user.clone());
        }
    }

    /// Restores a registration that was drained before a restart. Returns the number of restored contacts. Contacts
    /// that have expired, have no listener any more (`place_of`) or exceed the capacity are omitted; the user then
    /// counts as changed.
    pub fn restore(
        &mut self,
        stored: &StoredRegistration,
        place_of: &dyn Fn(&StoredContact) -> Option<(ListenerId, InterfaceId)>,
        now: Time,
    ) -> usize {
        let user = stored.user.as_str();
        if user.len() > MAX_USER || self.slot(user).is_some() {
            return 0;
        }
        let before = self.contacts;
        // The file contains them.
        let changes = self.changes.take();
        for (order, contact) in (0..).zip(&stored.contacts) {
            let restored = place_of(contact)
                .filter(|_| contact.until > now)
                .and_then(|(local, interface)| Binding::restored(contact, local, interface, order));
            if let Some(binding) = restored {
                self.put(user, None, binding);
            }
        }
        self.changes = changes;
        self.schedule(user);
        let taken = self.contacts - before;
        if taken < stored.contacts.len()
            && let Some(slot) = self.slot(user)
        {
            self.mark(slot);
        }
        taken
    }
}
