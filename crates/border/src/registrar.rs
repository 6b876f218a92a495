//! Registrations: the location store (RFC 3261 section 10, RFC 3327, RFC 5626), those that are passed to the core, and
//! digest proof. A value without IO: the owner feeds REGISTERs and the time, and sends what is said.

mod authority;
mod binding;
mod failures;
mod pass;
mod refresh;
mod registry;
mod stored;
#[cfg(test)]
mod stored_tests;
mod storm;
#[cfg(test)]
mod tests;

pub use authority::{Authentication, Authority, Claim};
pub use failures::{FailureLimits, Failures};
pub use pass::Passing;
pub use registry::{Parts, Registry};
pub use stored::{StoredContact, StoredCore, StoredRegistration, slack};
pub use storm::Admission;

use crate::config::{InterfaceId, Registrar};
use crate::policy::Contact;
use binding::Binding;
use core::time::Duration;
use engine::timers::{TimerKey, Wheel};
use engine::{BoundedMap, ConnectionId, Deadline, Entropy, HashKey, Note, Time, Transport};
use sip::Flow;
use slab::Slab;
use smallvec::SmallVec;
use wire::sip::{HeaderId, Message, NameAddr, Uri};

/// Name of the URI parameter by which a passed registration's contact is found again.
pub const TOKEN: &[u8] = b"hw";

/// What is asked of the core for a contact at most, seconds: a week.
const LONGEST: u32 = 604_800;
/// Contacts of one REGISTER at most.
const MAX_LISTED: usize = 32;
/// Bytes that are kept of one contact at most: URI, parameters, Path, Call-ID.
const MAX_KEPT: usize = 4_096;

/// What to answer to a REGISTER.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Reason phrase, where another than the usual.
    pub reason: Option<&'static str>,
    /// Headers to add, in order.
    pub headers: Vec<(HeaderId, Vec<u8>)>,
    /// What happened.
    pub notes: Vec<Note>,
}

impl Answer {
    fn refuse(status: u16, reason: &'static str) -> Answer {
        Answer {
            status,
            reason: Some(reason),
            ..Answer::default()
        }
    }

    fn with(mut self, id: HeaderId, value: impl Into<Vec<u8>>) -> Answer {
        self.headers.push((id, value.into()));
        self
    }
}

#[derive(Debug)]
struct Record {
    user: Box<str>,
    bindings: SmallVec<[Binding; 1]>,
    timer: Option<TimerKey>,
    /// It is among the changes that are to be written.
    changed: bool,
}

/// Which users are where.
#[derive(Debug)]
pub struct Location {
    settings: Registrar,
    records: Slab<Record>,
    by_user: BoundedMap<Box<str>, u32>,
    by_token: BoundedMap<u64, u32>,
    by_connection: BoundedMap<ConnectionId, SmallVec<[u32; 2]>>,
    /// Contacts of all users.
    contacts: usize,
    limit: usize,
    timers: Wheel<u32>,
    /// Makes Call-IDs for the core out of the phones'.
    disguise: HashKey,
    entropy: Entropy,
    /// Changes for the file, where registrations are kept in one.
    changes: Option<stored::Changes>,
}

/// A contact as a REGISTER names it, judged.
struct Wanted<'m> {
    address: NameAddr<'m>,
    uri: Uri<'m>,
    /// What is given, seconds; 0 removes.
    expires: u32,
    /// What the phone wishes for, seconds.
    wish: u32,
    instance: &'m [u8],
    /// RFC 5626, where both sides use it.
    reg_id: u32,
}

/// A REGISTER, judged.
struct Judged<'m> {
    contacts: Vec<Wanted<'m>>,
    star: bool,
    path: Vec<&'m [u8]>,
    call_id: &'m [u8],
    cseq: u32,
    outbound: bool,
}

impl Location {
    /// An empty store for at most `limit` contacts.
    pub fn new(settings: Registrar, limit: usize, mut entropy: Entropy) -> Location {
        Location {
            settings,
            records: Slab::new(),
            by_user: BoundedMap::new(limit, HashKey::new(&mut entropy)),
            by_token: BoundedMap::new(limit, HashKey::new(&mut entropy)),
            by_connection: BoundedMap::new(limit, HashKey::new(&mut entropy)),
            contacts: 0,
            limit,
            timers: Wheel::new(),
            disguise: HashKey::new(&mut entropy),
            entropy,
            changes: None,
        }
    }

    /// Takes over new settings; what is registered stays.
    pub fn reload(&mut self, settings: Registrar, limit: usize) {
        self.settings = settings;
        self.limit = limit;
        self.by_user.set_limit(limit);
        self.by_token.set_limit(limit);
        self.by_connection.set_limit(limit);
    }

    /// Contacts of all users.
    pub fn len(&self) -> usize {
        self.contacts
    }

    /// Whether no one is registered.
    pub fn is_empty(&self) -> bool {
        self.contacts == 0
    }

    /// Keeps a registration here: `user` is the (proven) user part of the address of record. RFC 3261 section 10.3: all
    /// is judged before anything is changed.
    pub fn register(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        now: Time,
    ) -> Answer {
        let judged = match self.judge(request, flow) {
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
        let (kept, gone): (Vec<&Wanted<'_>>, Vec<&Wanted<'_>>) = judged
            .contacts
            .iter()
            .partition(|wanted| wanted.expires != 0);
        // Removals first: they make room for the others.
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
        self.tell(
            user,
            before,
            !judged.contacts.is_empty() || judged.star,
            now,
            &mut notes,
        );
        let mut answer = Answer {
            status: 200,
            notes,
            ..Answer::default()
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
                let timer = self.settings.flow_timer.to_string();
                answer = answer.with(HeaderId::FlowTimer, timer);
            }
        }
        answer
    }

    /// Judges a REGISTER by itself.
    fn judge<'m>(&self, request: &Message<'m>, flow: Flow) -> Result<Judged<'m>, Box<Answer>> {
        let refuse = |status, reason| Err(Box::new(Answer::refuse(status, reason)));
        let unknown: Vec<&[u8]> = request
            .require()
            .filter(|option| {
                ![&b"path"[..], b"outbound", b"gruu"]
                    .iter()
                    .any(|known| option.eq_ignore_ascii_case(known))
            })
            .collect();
        if !unknown.is_empty() {
            let answer = Answer::refuse(420, "Bad Extension")
                .with(HeaderId::Unsupported, unknown.join(&b", "[..]));
            return Err(Box::new(answer));
        }
        let supports = |option: &[u8]| {
            request.lists(HeaderId::Supported, option) || request.lists(HeaderId::Require, option)
        };
        let path: Vec<&[u8]> = request.values(HeaderId::Path).take(MAX_LISTED).collect();
        if !path.is_empty() && !supports(b"path") {
            let answer = Answer::refuse(421, "Extension Required").with(HeaderId::Require, "path");
            return Err(Box::new(answer));
        }
        let (Ok(call_id), Ok(cseq)) = (request.call_id(), request.cseq()) else {
            return refuse(400, "Bad Call-ID Or CSeq");
        };
        let mut judged = Judged {
            contacts: Vec::new(),
            star: false,
            path,
            call_id,
            cseq: cseq.number,
            outbound: false,
        };
        for contact in request.contacts() {
            let Ok(address) = contact else {
                return refuse(400, "Bad Contact");
            };
            if address.is_star() {
                judged.star = true;
                continue;
            }
            if judged.contacts.len() >= MAX_LISTED {
                return refuse(400, "Too Many Contacts");
            }
            let Some(uri) = address.parse_uri().filter(Uri::is_sip) else {
                return refuse(400, "Bad Contact URI");
            };
            let wanted = self.wish(request, address, uri, flow, supports(b"outbound"), &judged)?;
            judged.outbound |= wanted.reg_id != 0;
            let kept = address.raw.len()
                + call_id.len()
                + judged.path.iter().map(|p| p.len()).sum::<usize>();
            if kept > MAX_KEPT {
                return refuse(400, "Contact Too Long");
            }
            judged.contacts.push(wanted);
        }
        let expires = request.expires();
        if judged.star && (!judged.contacts.is_empty() || expires != Ok(0)) {
            return refuse(400, "Bad Contact Wildcard");
        }
        let flows = judged.contacts.iter().filter(|wanted| wanted.reg_id != 0);
        if flows.count() > 1 {
            return refuse(400, "Several Contacts With Reg-Id");
        }
        let lacks = |value: &&[u8]| {
            NameAddr::parse(value)
                .and_then(|address| address.parse_uri())
                .is_none_or(|uri| !uri.params.has(b"ob"))
        };
        let far = request.vias().take(2).count() > 1;
        if judged.outbound && far && judged.path.last().is_none_or(lacks) {
            return refuse(439, "First Hop Lacks Outbound Support");
        }
        Ok(judged)
    }

    /// One contact: how long it is given, and whether it is a flow of RFC 5626.
    fn wish<'m>(
        &self,
        request: &Message<'m>,
        address: NameAddr<'m>,
        uri: Uri<'m>,
        flow: Flow,
        outbound: bool,
        judged: &Judged<'m>,
    ) -> Result<Wanted<'m>, Box<Answer>> {
        let settings = &self.settings;
        // A value that cannot be read counts as none (RFC 3261 section 10.2.1.1).
        let wish = address
            .expires()
            .or_else(|| request.expires().ok())
            .unwrap_or(settings.default_expires);
        // Nothing of an hour or more may be refused as too brief (RFC 3261 section 10.3 step 7).
        if wish != 0 && wish < settings.min_expires && wish < 3_600 {
            let answer = Answer::refuse(423, "Interval Too Brief")
                .with(HeaderId::MinExpires, settings.min_expires.to_string());
            return Err(Box::new(answer));
        }
        let instance = address.params.get(b"+sip.instance").unwrap_or_default();
        let reg_id = match address.params.get(b"reg-id") {
            Some(digits) if outbound && !instance.is_empty() && wish != 0 => {
                match std::str::from_utf8(digits)
                    .ok()
                    .and_then(|text| text.parse().ok())
                {
                    Some(number) if number > 0 && number < 1 << 31 => number,
                    _ => return Err(Box::new(Answer::refuse(400, "Bad Reg-Id"))),
                }
            }
            _ => 0,
        };
        let mut expires = wish.min(settings.max_expires);
        let pinhole = flow.transport == Transport::Udp
            && reg_id == 0
            && judged.path.is_empty()
            && behind_nat(&uri, flow);
        if pinhole && settings.nat_expires != 0 {
            expires = expires.min(settings.nat_expires);
        }
        Ok(Wanted {
            address,
            uri,
            expires,
            wish,
            instance,
            reg_id,
        })
    }

    /// Judges a REGISTER against what is stored: order (RFC 3261 section 10.3 step 7), room.
    fn admit(&self, user: &str, judged: &Judged<'_>) -> Result<(), Box<Answer>> {
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
            return Err(Box::new(Answer::refuse(500, "CSeq Out Of Order")));
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
        if bindings.len() + more > self.settings.max_contacts || self.contacts + more > self.limit {
            let answer =
                Answer::refuse(503, "Too Many Registrations").with(HeaderId::RetryAfter, "60");
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

    /// Which binding a contact means: the same flow of the same instance (RFC 5626 section 6), else the same URI, else
    /// the same instance without reg-id (a device that came back on another port).
    fn find(&self, user: &str, wanted: &Wanted<'_>) -> Option<usize> {
        let bindings = self.bindings_of(user);
        let same_instance =
            |b: &Binding| !wanted.instance.is_empty() && b.instance() == wanted.instance;
        if wanted.reg_id != 0 {
            return bindings
                .iter()
                .position(|b| b.reg_id == wanted.reg_id && same_instance(b));
        }
        bindings
            .iter()
            .position(|b| Uri::parse(b.uri()).is_some_and(|uri| uri.equivalent(&wanted.uri)))
            .or_else(|| {
                bindings
                    .iter()
                    .position(|b| b.reg_id == 0 && same_instance(b))
            })
    }

    /// Stores a binding, in the place of another where `place` says so. [`Location::admit`] saw to it that there is room
    /// for what a sane phone sends; one that names the same contact twice may find that there is none after all.
    fn put(&mut self, user: &str, place: Option<usize>, mut fresh: Binding) {
        let full = self.contacts >= self.limit
            || self.bindings_of(user).len() >= self.settings.max_contacts;
        if place.is_none() && full {
            return;
        }
        let slot = match self.slot(user) {
            Some(slot) => slot,
            None => {
                let slot = self.records.insert(Record {
                    user: user.into(),
                    bindings: SmallVec::new(),
                    timer: None,
                    changed: false,
                });
                if self.by_user.insert(user.into(), slot as u32).is_err() {
                    self.records.try_remove(slot);
                    return;
                }
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

    fn link(&mut self, connection: ConnectionId, slot: usize) {
        let slot = slot as u32;
        match self.by_connection.get_mut(&connection) {
            Some(slots) if slots.contains(&slot) => {}
            Some(slots) => slots.push(slot),
            None => {
                // As large as the store itself: there is room wherever a contact had room.
                let _ = self
                    .by_connection
                    .insert(connection, SmallVec::from_slice(&[slot]));
            }
        }
    }

    /// Forgets where a binding that is gone was found by.
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

    /// Removes the bindings of a user for which `gone` says so.
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
        for binding in &old {
            self.unlink(binding, slot);
        }
        let outdated = self.changes.is_some() && old.iter().any(Binding::is_kept);
        if outdated && !empty {
            self.mark(slot);
        }
        if empty && let Some(record) = self.records.try_remove(slot) {
            self.by_user.remove(&*record.user);
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

    /// Sets the timer of a user to the earliest end of a binding.
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

    fn tell(&self, user: &str, before: usize, changed: bool, now: Time, notes: &mut Vec<Note>) {
        let bindings = self.bindings_of(user);
        let longest = bindings.iter().map(|b| b.seconds_left(now)).max();
        match longest {
            Some(expires) if changed => notes.push(Note::RegistrationStored {
                aor: user.to_owned(),
                contacts: bindings.len() as u64,
                expires: u64::from(expires),
            }),
            None if before > 0 => notes.push(Note::RegistrationEnded {
                aor: user.to_owned(),
                why: "removed".to_owned(),
            }),
            _ => {}
        }
    }

    /// Where `user` is reached, the preferred contact first; with `token`, the one contact that was passed on under it.
    /// Of several flows of one device the youngest counts (RFC 5626 section 5.3).
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

    /// A connection ended: the contacts behind it are gone (RFC 5626 section 5.3), the events say whose.
    pub fn flow_failed(&mut self, connection: ConnectionId) -> Vec<Note> {
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

    fn after_loss(&mut self, user: &str, why: &str, notes: &mut Vec<Note>) {
        self.schedule(user);
        if self.bindings_of(user).is_empty() {
            notes.push(Note::RegistrationEnded {
                aor: user.to_owned(),
                why: why.to_owned(),
            });
        }
    }

    /// Removes what has expired; the events say whose registrations ended.
    pub fn expire(&mut self, now: Time) -> Vec<Note> {
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

    /// When [`Location::expire`] is next wanted.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.timers
            .next_at()
            .map(|at| Deadline::new(at, "registration expiry"))
    }
}

/// Whether a contact is reached only on the flow on which it came: its host is not where it came from.
fn behind_nat(uri: &Uri<'_>, flow: Flow) -> bool {
    let default = if matches!(uri.scheme, wire::sip::Scheme::Sips) {
        5061
    } else {
        5060
    };
    uri.host.ip() != Some(flow.remote.ip()) || uri.port.unwrap_or(default) != flow.remote.port()
}
