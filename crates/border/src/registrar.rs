//! Registrar: bindings kept here (RFC 3261 section 10, RFC 3327, RFC 5626), bindings forwarded to the core, and digest
//! authentication. It does no IO: the owner passes REGISTERs and the time, and sends the responses.

mod authority;
mod binding;
mod failures;
mod forwarding;
mod number_index;
mod rate_limit;
mod refreshes;
mod registry;
mod stored;
#[cfg(test)]
mod stored_tests;
mod trunk_credentials;

#[cfg(test)]
mod tests;

pub use authority::{Authentication, Authority, Claim};
pub use failures::{AuthenticationFailures, FailureSource, LockedOut};
pub use forwarding::Passing;
pub use rate_limit::RegistrationLimiter;
pub use registry::{Registry, SharedRegistry};
pub use stored::{StoredContact, StoredCore, StoredRegistration, slack};
pub use trunk_credentials::{TrunkClaim, TrunkCredentials};

use crate::policy::Contact;
use crate::views::{ContactView, RegistrationView};
use binding::Binding;
use config::{InterfaceId, Registrar};
use core::time::Duration;
use engine::PagedSlab;
use engine::timers::{TimerKey, TimerWheel};
use engine::{
    BoundedMap, ConnectionId, Deadline, Entropy, EventKind, HashKey, MaybeShared, Reason, Time,
    Transport,
};
use number_index::NumberIndex;
use sip::Flow;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use wire::sip::{HeaderId, Message, NameAddr, Uri};

/// Longest lifetime requested from the core in seconds: a week.
const LONGEST: u32 = 604_800;
/// Maximum number of contacts in a REGISTER.
const MAX_LISTED: usize = 32;
/// Maximum length of the user part of an address of record in bytes.
const MAX_USER: usize = 256;
/// Maximum size of a contact in bytes: URI, parameters, Path, Call-ID.
const MAX_KEPT: usize = 4_096;

/// The registrar: locations of users, authentication and rates of registrations.
#[derive(Debug)]
pub(crate) struct BorderRegistrar {
    pub(crate) authority: MaybeShared<Authority>,
    pub(crate) location: Registry,
    /// Rate limits of registrations, without and with credentials.
    pub(crate) limiter: MaybeShared<RegistrationLimiter>,
    pub(crate) authenticated_limiter: MaybeShared<RegistrationLimiter>,
}

/// Response to a REGISTER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterResponse {
    /// Status.
    pub status: u16,
    /// Reason phrase, unless it is that of the status.
    pub reason: Option<&'static str>,
    /// Headers to add, in order.
    pub headers: Vec<(HeaderId, Vec<u8>)>,
    /// Events.
    pub notes: Vec<EventKind>,
}

impl RegisterResponse {
    fn refuse(reason: Reason) -> RegisterResponse {
        RegisterResponse {
            status: reason.status(),
            reason: Some(reason.text()),
            ..RegisterResponse::default()
        }
    }

    fn with(mut self, id: HeaderId, value: impl Into<Vec<u8>>) -> RegisterResponse {
        self.headers.push((id, value.into()));
        self
    }
}

#[derive(Debug)]
struct UserBindings {
    user: Arc<str>,
    bindings: SmallVec<[Binding; 1]>,
    timer: Option<TimerKey>,
    /// Whether it is in the queue of changes to be written.
    changed: bool,
}

/// The bindings of all users.
#[derive(Debug)]
pub struct Location {
    settings: Registrar,
    records: PagedSlab<UserBindings>,
    by_user: BoundedMap<Arc<str>, u32>,
    /// Users in the order of their names, so that a page of a list costs its users only; as many as in `by_user`.
    by_name: BTreeMap<Arc<str>, u32>,
    numbers: NumberIndex,
    by_token: BoundedMap<u64, u32>,
    by_connection: BoundedMap<ConnectionId, SmallVec<[u32; 2]>>,
    /// Number of contacts of all users.
    contacts: usize,
    /// The same of all partitions of a registry, for which `limit` is.
    total: Arc<AtomicUsize>,
    limit: usize,
    timers: TimerWheel<u32>,
    /// Key that derives Call-IDs for the core from those of phones.
    disguise: HashKey,
    entropy: Entropy,
    /// Changes to be written, if registrations are stored in a file.
    changes: Option<stored::ChangeQueue>,
}

#[cfg(test)]
thread_local! {
    /// Calls of [`Location::view`] by this thread.
    static VIEWS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// A validated contact of a REGISTER.
struct ContactRequest<'m> {
    address: NameAddr<'m>,
    uri: Uri<'m>,
    /// Granted seconds; 0 removes the contact.
    expires: u32,
    /// Requested seconds.
    requested: u32,
    instance: &'m [u8],
    /// Flow identifier (RFC 5626), if both sides support outbound, or if the contact is removed.
    reg_id: u32,
}

impl ContactRequest<'_> {
    /// Whether it registers a flow of RFC 5626.
    fn is_outbound_flow(&self) -> bool {
        self.reg_id != 0 && self.requested != 0
    }
}

/// A validated REGISTER.
struct ValidatedRegister<'m> {
    contacts: Vec<ContactRequest<'m>>,
    star: bool,
    path: Vec<&'m [u8]>,
    call_id: &'m [u8],
    cseq: u32,
    outbound: bool,
}

impl Location {
    /// An empty store for at most `limit` contacts.
    pub fn new(settings: Registrar, limit: usize, entropy: Entropy) -> Location {
        Location::partition(settings, limit, entropy, Arc::default())
    }

    /// An empty partition of a registry for at most `limit` contacts, which are counted in `total`.
    fn partition(
        settings: Registrar,
        limit: usize,
        mut entropy: Entropy,
        total: Arc<AtomicUsize>,
    ) -> Location {
        Location {
            settings,
            records: PagedSlab::new(),
            by_user: BoundedMap::new(limit, HashKey::new(&mut entropy)),
            by_name: BTreeMap::new(),
            numbers: NumberIndex::default(),
            by_token: BoundedMap::new(limit, HashKey::new(&mut entropy)),
            by_connection: BoundedMap::new(limit, HashKey::new(&mut entropy)),
            contacts: 0,
            total,
            limit,
            timers: TimerWheel::new(),
            disguise: HashKey::new(&mut entropy),
            entropy,
            changes: None,
        }
    }

    /// Applies new settings; existing registrations stay.
    pub fn reload(&mut self, settings: Registrar, limit: usize) {
        self.settings = settings;
        self.limit = limit;
        self.by_user.set_limit(limit);
        self.by_token.set_limit(limit);
        self.by_connection.set_limit(limit);
    }

    /// Applies the prefixes of numbers of the configured users, see [`Location::contacts_below`].
    pub fn set_number_prefixes(&mut self, prefixes: Vec<Box<str>>) {
        let users = self.records.iter().map(|(_, record)| &*record.user);
        self.numbers.set_prefixes(prefixes, users);
    }

    /// Number of contacts of all users.
    pub fn len(&self) -> usize {
        self.contacts
    }

    /// Whether there is no registration.
    pub fn is_empty(&self) -> bool {
        self.contacts == 0
    }

    /// Keeps a registration. `user` is the (authenticated) user part of the address of record. RFC 3261 section 10.3:
    /// everything is validated before anything changes.
    pub fn register(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        now: Time,
    ) -> RegisterResponse {
        let judged = match self.validate(request, flow) {
            Ok(judged) => judged,
            Err(answer) => return *answer,
        };
        if let Err(answer) = self.admit(user, &judged) {
            return *answer;
        }
        let before = self.bindings_of(user).len();
        let outbound = judged.outbound;
        let mut notes = Vec::new();
        if judged.star {
            self.remove(user, |_| true);
        }
        let (kept, gone): (Vec<&ContactRequest<'_>>, Vec<&ContactRequest<'_>>) = judged
            .contacts
            .iter()
            .partition(|wanted| wanted.expires != 0);
        // Removals first, because they free capacity for the others.
        for wanted in gone {
            if let Some(place) = self.find(user, wanted) {
                self.remove_at(user, place);
            }
        }
        for wanted in kept {
            let place = self.find(user, wanted);
            let until = now + Duration::from_secs(u64::from(wanted.expires));
            let fresh = Binding::new(wanted, &judged, interface, flow, now, until, 0);
            self.put(user, place, fresh);
        }
        self.schedule(user);
        self.report_change(
            user,
            before,
            !judged.contacts.is_empty() || judged.star,
            now,
            &mut notes,
        );
        let mut answer = RegisterResponse {
            status: 200,
            notes,
            ..RegisterResponse::default()
        };
        for binding in self.bindings_of(user) {
            answer
                .headers
                .push((HeaderId::Contact, binding.listed(now)));
        }
        for path in request.all(HeaderId::Path) {
            answer.headers.push((HeaderId::Path, path.to_vec()));
        }
        if outbound {
            answer = answer.with(HeaderId::Require, "outbound");
            if judged.path.is_empty() {
                let timer = self.flow_timer(flow.transport).to_string();
                answer = answer.with(HeaderId::FlowTimer, timer);
            }
        }
        answer
    }

    /// Validates a REGISTER independent of stored bindings.
    fn validate<'m>(
        &self,
        request: &Message<'m>,
        flow: Flow,
    ) -> Result<ValidatedRegister<'m>, Box<RegisterResponse>> {
        let refuse = |reason| Err(Box::new(RegisterResponse::refuse(reason)));
        let unknown: Vec<&[u8]> = request
            .require()
            .filter(|option| {
                ![&b"path"[..], b"outbound", b"gruu"]
                    .iter()
                    .any(|known| option.eq_ignore_ascii_case(known))
            })
            .collect();
        if !unknown.is_empty() {
            let answer = RegisterResponse::refuse(Reason::BadExtension)
                .with(HeaderId::Unsupported, unknown.join(&b", "[..]));
            return Err(Box::new(answer));
        }
        let supports = |option: &[u8]| {
            request.lists(HeaderId::Supported, option) || request.lists(HeaderId::Require, option)
        };
        let path: Vec<&[u8]> = request.values(HeaderId::Path).take(MAX_LISTED).collect();
        if !path.is_empty() && !supports(b"path") {
            let answer =
                RegisterResponse::refuse(Reason::ExtensionRequired).with(HeaderId::Require, "path");
            return Err(Box::new(answer));
        }
        let (Ok(call_id), Ok(cseq)) = (request.call_id(), request.cseq()) else {
            return refuse(Reason::BadCallIdOrCseq);
        };
        let mut judged = ValidatedRegister {
            contacts: Vec::new(),
            star: false,
            path,
            call_id,
            cseq: cseq.number,
            outbound: false,
        };
        for contact in request.contacts() {
            let Ok(address) = contact else {
                return refuse(Reason::BadContact);
            };
            if address.is_star() {
                judged.star = true;
                continue;
            }
            if judged.contacts.len() >= MAX_LISTED {
                return refuse(Reason::TooManyContacts);
            }
            let Some(uri) = address.parse_uri().filter(Uri::is_sip) else {
                return refuse(Reason::BadContactUri);
            };
            let wanted =
                self.validate_contact(request, address, uri, flow, supports(b"outbound"), &judged)?;
            judged.outbound |= wanted.is_outbound_flow();
            let kept = address.raw.len()
                + call_id.len()
                + judged.path.iter().map(|p| p.len()).sum::<usize>();
            if kept > MAX_KEPT {
                return refuse(Reason::ContactTooLong);
            }
            judged.contacts.push(wanted);
        }
        let expires = request.expires();
        if judged.star && (!judged.contacts.is_empty() || expires != Ok(0)) {
            return refuse(Reason::BadContactWildcard);
        }
        let flows = judged.contacts.iter();
        if flows.filter(|wanted| wanted.is_outbound_flow()).count() > 1 {
            return refuse(Reason::SeveralContacts);
        }
        let lacks = |value: &&[u8]| {
            NameAddr::parse(value)
                .and_then(|address| address.parse_uri())
                .is_none_or(|uri| !uri.params.has(b"ob"))
        };
        let far = request.vias().take(2).count() > 1;
        if judged.outbound && far && judged.path.last().is_none_or(lacks) {
            return refuse(Reason::NoOutbound);
        }
        Ok(judged)
    }

    /// Validates a contact: its lifetime, and whether it is a flow of RFC 5626.
    fn validate_contact<'m>(
        &self,
        request: &Message<'m>,
        address: NameAddr<'m>,
        uri: Uri<'m>,
        flow: Flow,
        outbound: bool,
        judged: &ValidatedRegister<'m>,
    ) -> Result<ContactRequest<'m>, Box<RegisterResponse>> {
        let settings = &self.settings;
        // An unreadable value counts as none (RFC 3261 section 10.2.1.1).
        let requested = address
            .expires()
            .or_else(|| request.expires().ok())
            .unwrap_or(settings.default_expires_s);
        // An hour or more must not be refused as too brief (RFC 3261 section 10.3 step 7).
        if requested != 0 && requested < settings.min_expires_s && requested < 3_600 {
            let answer = RegisterResponse::refuse(Reason::IntervalTooBrief)
                .with(HeaderId::MinExpires, settings.min_expires_s.to_string());
            return Err(Box::new(answer));
        }
        let instance = address.params.get(b"+sip.instance").unwrap_or_default();
        let reg_id = match address.params.get(b"reg-id") {
            Some(digits) if (outbound || requested == 0) && !instance.is_empty() => {
                match std::str::from_utf8(digits)
                    .ok()
                    .and_then(|text| text.parse().ok())
                {
                    Some(number) if number > 0 && number < 1 << 31 => number,
                    // A contact that is removed is found by its URI, too.
                    _ if requested == 0 => 0,
                    _ => return Err(Box::new(RegisterResponse::refuse(Reason::BadRegId))),
                }
            }
            _ => 0,
        };
        let mut expires = requested.min(settings.max_expires_s);
        // Phones with outbound keep their flow alive.
        if reg_id == 0 {
            expires = expires.min(self.longest_expires(&uri, flow, &judged.path));
        }
        Ok(ContactRequest {
            address,
            uri,
            expires,
            requested,
            instance,
            reg_id,
        })
    }

    /// Longest lifetime of a contact that is kept reachable by its REGISTERs: over UDP and without proxies in between,
    /// that of the NAT binding.
    fn longest_expires(&self, uri: &Uri<'_>, flow: Flow, path: &[&[u8]]) -> u32 {
        let pinhole = flow.transport == Transport::Udp && path.is_empty() && behind_nat(uri, flow);
        match self.settings.nat_expires_s {
            seconds if seconds != 0 && pinhole => seconds,
            _ => u32::MAX,
        }
    }

    /// Seconds for Flow-Timer. The default suits connections; over UDP, NAT bindings end earlier (RFC 5626 section 4.4
    /// has 24 to 29 s without the header).
    fn flow_timer(&self, transport: Transport) -> u32 {
        let settings = &self.settings;
        match (transport, settings.nat_expires_s) {
            (Transport::Udp, 1..) => settings.flow_timer_s.min(settings.nat_expires_s),
            _ => settings.flow_timer_s,
        }
    }

    /// Validates a REGISTER against stored bindings: order (RFC 3261 section 10.3 step 7) and capacity.
    fn admit(
        &self,
        user: &str,
        judged: &ValidatedRegister<'_>,
    ) -> Result<(), Box<RegisterResponse>> {
        if user.len() > MAX_USER {
            return Err(Box::new(RegisterResponse::refuse(Reason::UserTooLong)));
        }
        let bindings = self.bindings_of(user);
        let late =
            |binding: &Binding| binding.call_id() == judged.call_id && judged.cseq <= binding.cseq;
        let out_of_order = match judged.star {
            true => bindings.iter().any(late),
            false => judged
                .contacts
                .iter()
                .filter_map(|wanted| bindings.get(self.find(user, wanted)?))
                .any(late),
        };
        if out_of_order {
            return Err(Box::new(RegisterResponse::refuse(Reason::CseqOutOfOrder)));
        }
        let fresh = judged
            .contacts
            .iter()
            .filter(|wanted| wanted.expires != 0 && self.find(user, wanted).is_none())
            .count();
        let gone = judged
            .contacts
            .iter()
            .filter(|wanted| wanted.expires == 0 && self.find(user, wanted).is_some())
            .count();
        let more = fresh.saturating_sub(gone);
        let total = self.total.load(Relaxed).saturating_add(more);
        if bindings.len() + more > self.settings.max_contacts || more > 0 && total > self.limit {
            let answer = RegisterResponse::refuse(Reason::TooManyRegistrations)
                .with(HeaderId::RetryAfter, "60");
            return Err(Box::new(answer));
        }
        Ok(())
    }

    fn slot(&self, user: &str) -> Option<usize> {
        self.by_user.get(user).map(|&slot| slot as usize)
    }

    fn bindings_of(&self, user: &str) -> &[Binding] {
        self.slot(user)
            .and_then(|slot| self.records.get(slot))
            .map_or(&[], |record| record.bindings.as_slice())
    }

    /// The binding of a contact: the same flow of the same instance (RFC 5626 section 6), otherwise the same URI,
    /// otherwise the same instance without reg-id (a device that returned on another port). Flows of an instance may
    /// have the same URI; a removed contact with another reg-id than theirs is that of a binding without one.
    fn find(&self, user: &str, wanted: &ContactRequest<'_>) -> Option<usize> {
        let bindings = self.bindings_of(user);
        let same_instance =
            |b: &Binding| !wanted.instance.is_empty() && b.instance() == wanted.instance;
        let same_uri =
            |b: &Binding| Uri::parse(b.uri()).is_some_and(|uri| uri.equivalent(&wanted.uri));
        if wanted.reg_id != 0 {
            let flow = bindings
                .iter()
                .position(|b| b.reg_id == wanted.reg_id && same_instance(b));
            let without = || bindings.iter().position(|b| b.reg_id == 0 && same_uri(b));
            return match wanted.requested {
                0 => flow.or_else(without),
                _ => flow,
            };
        }
        bindings.iter().position(same_uri).or_else(|| {
            bindings
                .iter()
                .position(|b| b.reg_id == 0 && same_instance(b))
        })
    }

    /// Stores a binding, replacing the one at `place`. [`Location::admit`] has checked the capacity; a REGISTER that
    /// lists the same contact twice may exceed it nevertheless.
    fn put(&mut self, user: &str, place: Option<usize>, mut fresh: Binding) {
        if place.is_none() && !self.take_place(user) {
            return;
        }
        let slot = match self.slot(user) {
            Some(slot) => slot,
            None => {
                let name: Arc<str> = user.into();
                let slot = self.records.insert(UserBindings {
                    user: name.clone(),
                    bindings: SmallVec::new(),
                    timer: None,
                    changed: false,
                });
                if self.by_user.insert(name.clone(), slot as u32).is_err() {
                    self.records.try_remove(slot);
                    self.return_places(1);
                    return;
                }
                self.by_name.insert(name, slot as u32);
                self.numbers.insert(user);
                slot
            }
        };
        if let Some(connection) = fresh.flow.connection {
            self.link(connection, slot);
        }
        if fresh.token != 0 && self.by_token.insert(fresh.token, slot as u32).is_err() {
            fresh.token = 0;
        }
        let Some(record) = self.records.get_mut(slot) else {
            return;
        };
        let old = place.and_then(|place| record.bindings.get_mut(place));
        let outdated = self.changes.is_some() && fresh.outdates(old.as_deref());
        let old = match old {
            Some(binding) => {
                if !outdated {
                    fresh.written = binding.written;
                }
                Some(std::mem::replace(binding, fresh))
            }
            None => {
                record.bindings.push(fresh);
                self.contacts += 1;
                None
            }
        };
        if let Some(old) = old {
            self.unlink(&old, slot);
        }
        if outdated {
            self.mark(slot);
        }
    }

    /// Counts a contact more in all partitions, within the limits.
    fn take_place(&self, user: &str) -> bool {
        let next = |total: usize| (total < self.limit).then_some(total + 1);
        self.bindings_of(user).len() < self.settings.max_contacts
            && self.total.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    fn return_places(&self, places: usize) {
        self.total.fetch_sub(places, Relaxed);
    }

    fn link(&mut self, connection: ConnectionId, slot: usize) {
        let slot = slot as u32;
        match self.by_connection.get_mut(&connection) {
            Some(slots) if slots.contains(&slot) => {}
            Some(slots) => slots.push(slot),
            None => {
                // The table is as large as the store itself, so that there is a free entry for each contact.
                let _ = self
                    .by_connection
                    .insert(connection, SmallVec::from_slice(&[slot]));
            }
        }
    }

    /// Removes a binding from the lookup tables.
    fn unlink(&mut self, old: &Binding, slot: usize) {
        let left = self
            .records
            .get(slot)
            .map_or(&[][..], |record| &record.bindings);
        if old.token != 0 && !left.iter().any(|b| b.token == old.token) {
            self.by_token.remove(&old.token);
        }
        let Some(connection) = old.flow.connection else {
            return;
        };
        if left.iter().any(|b| b.flow.connection == Some(connection)) {
            return;
        }
        if let Some(slots) = self.by_connection.get_mut(&connection) {
            slots.retain(|other| *other != slot as u32);
            if slots.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
    }

    fn remove_at(&mut self, user: &str, place: usize) {
        let mut at = 0;
        self.remove(user, |_| {
            at += 1;
            at - 1 == place
        });
    }

    /// Removes the bindings of a user that match `gone`.
    fn remove(&mut self, user: &str, gone: impl FnMut(&Binding) -> bool) -> usize {
        match self.slot(user) {
            Some(slot) => self.remove_in(slot, gone),
            None => 0,
        }
    }

    fn remove_in(&mut self, slot: usize, mut gone: impl FnMut(&Binding) -> bool) -> usize {
        let Some(record) = self.records.get_mut(slot) else {
            return 0;
        };
        let bindings = std::mem::take(&mut record.bindings);
        let (old, left): (SmallVec<[Binding; 1]>, SmallVec<[Binding; 1]>) =
            bindings.into_iter().partition(|binding| gone(binding));
        record.bindings = left;
        let empty = record.bindings.is_empty();
        self.contacts -= old.len();
        self.return_places(old.len());
        for binding in &old {
            self.unlink(binding, slot);
        }
        let outdated = self.changes.is_some() && old.iter().any(Binding::is_kept);
        if outdated && !empty {
            self.mark(slot);
        }
        if empty && let Some(record) = self.records.try_remove(slot) {
            self.by_user.remove(&*record.user);
            self.by_name.remove(&*record.user);
            self.numbers.remove(&record.user);
            if let Some(timer) = record.timer {
                self.timers.cancel(timer);
            }
            if let Some(changes) = self
                .changes
                .as_mut()
                .filter(|_| outdated && !record.changed)
            {
                changes.add(record.user);
            }
        }
        old.len()
    }

    /// Sets the timer of a user to the earliest expiry of its bindings.
    fn schedule(&mut self, user: &str) {
        if let Some(slot) = self.slot(user) {
            self.schedule_at(slot);
        }
    }

    fn schedule_at(&mut self, slot: usize) {
        let Some(record) = self.records.get_mut(slot) else {
            return;
        };
        if let Some(timer) = record.timer.take() {
            self.timers.cancel(timer);
        }
        let first = record.bindings.iter().map(|binding| binding.until).min();
        record.timer = first.map(|at| self.timers.schedule(at, slot as u32));
    }

    fn report_change(
        &self,
        user: &str,
        before: usize,
        changed: bool,
        now: Time,
        notes: &mut Vec<EventKind>,
    ) {
        let bindings = self.bindings_of(user);
        let longest = bindings.iter().map(|b| b.seconds_left(now)).max();
        match longest {
            Some(expires) if changed => notes.push(EventKind::RegistrationStored {
                aor: user.to_owned(),
                contacts: bindings.len() as u64,
                expires: u64::from(expires),
            }),
            None if before > 0 => notes.push(EventKind::RegistrationEnded {
                aor: user.to_owned(),
                reason: "removed".to_owned(),
            }),
            _ => {}
        }
    }

    /// Contacts of `user`, the preferred one first; with `token`, the contact that was forwarded with it. Of several
    /// flows of one device the newest is used (RFC 5626 section 5.3).
    pub fn contacts(&self, user: &str, token: Option<&[u8]>) -> Vec<Contact> {
        if let Some(token) = token {
            return self
                .by_token_text(token)
                .map(Binding::contact)
                .into_iter()
                .collect();
        }
        let bindings = self.bindings_of(user);
        let newer = |a: &Binding, b: &Binding| {
            !a.instance().is_empty() && a.instance() == b.instance() && a.since > b.since
        };
        let mut chosen: Vec<&Binding> = bindings
            .iter()
            .filter(|binding| !bindings.iter().any(|other| newer(other, binding)))
            .collect();
        chosen.sort_by_key(|binding| core::cmp::Reverse((binding.q, binding.since)));
        chosen.into_iter().map(Binding::contact).collect()
    }

    /// Contacts of registered users whose name begins with `prefix`, which is one of [`Location::set_number_prefixes`].
    pub fn contacts_below(&self, prefix: &str) -> Vec<Contact> {
        let users = self.numbers.users_below(prefix);
        users.flat_map(|user| self.contacts(user, None)).collect()
    }

    /// Number of registered users whose name begins with `prefix`, which is one of [`Location::set_number_prefixes`].
    pub fn numbers_below(&self, prefix: &str) -> usize {
        self.numbers.count(prefix)
    }

    /// Whether the user has a contact.
    pub fn is_registered(&self, user: &str) -> bool {
        self.slot(user).is_some()
    }

    fn by_token_text(&self, token: &[u8]) -> Option<&Binding> {
        let text = std::str::from_utf8(token).ok()?;
        let number = u64::from_str_radix(text, 16)
            .ok()
            .filter(|&token| token != 0)?;
        let slot = *self.by_token.get(&number)?;
        let record = self.records.get(slot as usize)?;
        record
            .bindings
            .iter()
            .find(|binding| binding.token == number)
    }

    /// The registration of a user.
    pub fn view(&self, user: &str) -> Option<RegistrationView> {
        #[cfg(test)]
        VIEWS.set(VIEWS.get() + 1);
        let record = self.records.get(self.slot(user)?)?;
        let contacts = record.bindings.iter().map(|binding| ContactView {
            uri: String::from_utf8_lossy(binding.uri()).into_owned(),
            address: format!("{}:{}", binding.flow.transport, binding.flow.remote),
            interface: binding.interface,
            local: binding.flow.local,
            since: binding.since,
            until: binding.until,
            forwarded: binding.token != 0,
        });
        Some(RegistrationView {
            user: record.user.to_string(),
            contacts: contacts.collect(),
        })
    }

    /// Users behind `after`, in the order of their names.
    pub fn users_after(&self, after: Option<&str>) -> impl Iterator<Item = &Arc<str>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let users = self.by_name.range::<str, _>((from, Bound::Unbounded));
        users.map(|(user, _)| user)
    }

    /// Removes all contacts of a user. Returns their number, and events.
    pub fn remove_user(&mut self, user: &str) -> (usize, Vec<EventKind>) {
        let mut notes = Vec::new();
        let removed = self.remove(user, |_| true);
        if removed > 0 {
            self.after_loss(user, "removed by operator", &mut notes);
        }
        (removed, notes)
    }

    /// Whether a contact is reached by this connection.
    pub fn has_connection(&self, connection: ConnectionId) -> bool {
        self.by_connection.get(&connection).is_some()
    }

    /// A connection was closed: its contacts are removed (RFC 5626 section 5.3). Returns events.
    pub fn flow_failed(&mut self, connection: ConnectionId) -> Vec<EventKind> {
        let mut notes = Vec::new();
        let Some(slots) = self.by_connection.remove(&connection) else {
            return notes;
        };
        for slot in slots {
            let slot = slot as usize;
            let Some(user) = self.records.get(slot).map(|record| record.user.clone()) else {
                continue;
            };
            self.remove_in(slot, |binding| binding.flow.connection == Some(connection));
            self.after_loss(&user, "flow failed", &mut notes);
        }
        notes
    }

    fn after_loss(&mut self, user: &str, why: &str, notes: &mut Vec<EventKind>) {
        self.schedule(user);
        if self.bindings_of(user).is_empty() {
            notes.push(EventKind::RegistrationEnded {
                aor: user.to_owned(),
                reason: why.to_owned(),
            });
        }
    }

    /// Removes expired contacts. Returns events.
    pub fn expire(&mut self, now: Time) -> Vec<EventKind> {
        let mut notes = Vec::new();
        while let Some(slot) = self.timers.pop_due(now) {
            let slot = slot as usize;
            let Some(record) = self.records.get_mut(slot) else {
                continue;
            };
            record.timer = None;
            let user = record.user.clone();
            self.remove_in(slot, |binding| binding.until <= now);
            self.after_loss(&user, "expired", &mut notes);
        }
        notes
    }

    /// When [`Location::expire`] is due.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.timers
            .next_at()
            .map(|at| Deadline::new(at, "registration expiry"))
    }
}

/// Whether a contact is reachable only on the flow of its registration, because its host differs from the source.
fn behind_nat(uri: &Uri<'_>, flow: Flow) -> bool {
    let default = if matches!(uri.scheme, wire::sip::Scheme::Sips) {
        5061
    } else {
        5060
    };
    uri.host.ip() != Some(flow.remote.ip()) || uri.port.unwrap_or(default) != flow.remote.port()
}
