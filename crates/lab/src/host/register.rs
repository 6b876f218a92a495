//! Registrations: first, refresh, removal; each is an attempt.

use super::calls::mismatch_text;
use super::phone::PhoneOccurrence;
use super::{HostState, HostTimer, identity, is_websocket};
use crate::experiment::fill;
use crate::pace::{AttemptSchedule, Due};
use crate::record::{Attempt, AttemptKind, AttemptOutcome};
use engine::{ConnectionId, Entropy, Time, Transport};
use protect::digest::{Algorithm, DigestServer, NonceKey, Refusal, Secret, ServerConfig};
use sip::{
    Endpoint, Failure, Flow, Login, MessageContent, OutOfDialogRequest, ResponseMismatch,
    ServerTransaction, Target,
};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Message, Method, NameAddr};

/// Shortest time from an answer to the next refresh that follows the granted lifetime.
const SHORTEST_REFRESH: Duration = Duration::from_secs(1);
/// Wait of a phone before it registers again after its connection has ended; doubled with each failure, up to the
/// second one (RFC 5626 section 4.5 recommends longer ones, for many phones behind one proxy).
const LOST_WAIT: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Nonces that the registrar remembers at a time.
const NONCES: usize = 1_000_000;

/// The authentication of the test lab's registrar.
pub(super) fn authority(entropy: &mut Entropy) -> DigestServer {
    let mut key = [0; 32];
    entropy.fill(&mut key);
    let config = ServerConfig {
        realm: b"laboratory".to_vec(),
        algorithms: vec![Algorithm::MD5],
        auth_int: false,
        without_qop: false,
        nonce_lifetime: Duration::from_secs(3_600),
        nonces: NONCES,
    };
    DigestServer::new(config, NonceKey(key), entropy)
}

/// Whether both name the same user at the same address; parameters may differ.
fn is_same_contact(one: &NameAddr<'_>, other: &NameAddr<'_>) -> bool {
    let (Some(one), Some(other)) = (one.parse_uri(), other.parse_uri()) else {
        return false;
    };
    one.user == other.user && one.host == other.host && one.port == other.port
}

/// The lifetime of `own` among the bindings that a response to REGISTER lists, or that of all (RFC 3261 section
/// 10.2.4). A single contact is ours, also if the registrar has changed its address.
fn granted_s(response: &Message<'_>, own: &str) -> Option<u32> {
    let own = NameAddr::parse(own.as_bytes());
    let mut listed = response.contacts().filter_map(Result::ok);
    let mut bindings = listed.clone();
    let ours = own
        .and_then(|own| listed.find(|contact| is_same_contact(contact, &own)))
        .or_else(|| bindings.next().filter(|_| bindings.next().is_none()));
    let lifetime = ours.and_then(|contact| {
        let text = contact.params.get(b"expires")?;
        std::str::from_utf8(text).ok()?.trim().parse().ok()
    });
    lifetime.or_else(|| response.expires().ok())
}

/// One user.
#[derive(Debug)]
pub(crate) struct UserRegistration {
    user: String,
    password: String,
    number: u64,
    call_id: String,
    cseq: u32,
    attempt: Option<Attempt>,
    refreshes_left: u32,
    registered: bool,
    /// Lifetime that the registrar granted, seconds.
    granted_s: Option<u32>,
    /// Lifetime that the registrar wants at least (423), seconds; requested in place of that of the plan.
    least_s: Option<u32>,
    /// Time of the next refresh; earlier timers are obsolete.
    next_refresh: Option<Time>,
    /// Connection of the last answer.
    connection: Option<ConnectionId>,
    /// The connection has ended, and the phone registers over a new one.
    is_lost: bool,
    /// Wait after the next end of a connection, or after the next failure to open one.
    lost_wait: Duration,
    /// Time of the last good answer.
    answered_at: Time,
    /// The binding is removed once the present request is answered.
    leaves: bool,
    /// Whether it counts as open in the schedule.
    open: bool,
    /// A field of a response to the present request was not that of the request.
    mismatch: Option<ResponseMismatch>,
}

impl HostState {
    pub(crate) fn start_registration(&mut self, endpoint: &mut Endpoint, due: Due, now: Time) {
        let Some(plan) = self.plan.registrations.clone() else {
            return;
        };
        let (user, password) = plan.login.of(due.number);
        let mut attempt = Attempt::new(&plan.name, AttemptKind::Registration, due.number, due.at);
        attempt.from.clone_from(&user);
        attempt.to = self
            .target
            .map(|target| target.to_string())
            .unwrap_or_default();
        let index = self.registrations.len() as u32;
        let planned = self.entropy.u64();
        let unique = identity(planned, &mut self.identities);
        self.registrations.push(UserRegistration {
            user,
            password,
            number: due.number,
            call_id: format!("r{index:x}-{unique:016x}"),
            cseq: 0,
            attempt: Some(attempt),
            // Refreshes at a rate are counted by their own plan.
            refreshes_left: match plan.refresh_rate > 0.0 {
                true => 0,
                false => plan.refreshes,
            },
            registered: false,
            granted_s: None,
            least_s: None,
            next_refresh: None,
            connection: None,
            is_lost: false,
            lost_wait: LOST_WAIT[0],
            answered_at: Time::ZERO,
            leaves: false,
            open: true,
            mismatch: None,
        });
        self.unanswered_registrations += 1;
        self.send_register(endpoint, index, plan.expires, now);
    }

    fn send_register(&mut self, endpoint: &mut Endpoint, index: u32, expires: u32, now: Time) {
        if let Err(why) = self.try_register(endpoint, index, expires, now) {
            self.registration_over(index, AttemptOutcome::CouldNotStart, 0, why, now);
        }
    }

    fn try_register(
        &mut self,
        endpoint: &mut Endpoint,
        index: u32,
        expires: u32,
        now: Time,
    ) -> Result<(), String> {
        let plan = self.plan.registrations.as_ref().ok_or("no plan")?;
        let number = self.registrations.get(index as usize).ok_or("gone")?.number;
        let flow = self
            .flow(plan.transport, number, plan.connections)
            .ok_or("no target")?;
        self.write_own_contact(index)?;
        let plan = self.plan.registrations.as_ref().ok_or("no plan")?;
        let entry = self.registrations.get_mut(index as usize).ok_or("gone")?;
        // Two numbers each: the request with credentials uses the second.
        entry.cseq += 2;
        let names = &mut self.names;
        names.write(&plan.domain, flow.remote, "", &entry.user);
        let expires = expires.to_string();
        let edits = [
            Edit::Replace {
                id: HeaderId::Contact,
                value: names.contact.as_bytes(),
            },
            Edit::Add {
                id: HeaderId::Expires,
                value: expires.as_bytes(),
            },
        ];
        let login = Login {
            user: entry.user.as_bytes(),
            password: entry.password.as_bytes(),
        };
        let outside = OutOfDialogRequest {
            from: Some(names.from.as_bytes()),
            to: Some(names.from.as_bytes()),
            call_id: Some(entry.call_id.as_bytes()),
            cseq: Some(entry.cseq),
            content: MessageContent::default().with(&edits),
            user: u64::from(index),
            login: (!entry.password.is_empty()).then_some(login),
            ..OutOfDialogRequest::new(Method::Register, Target::new(names.uri.as_bytes(), flow))
        };
        endpoint
            .send(&outside, now)
            .map_err(|refused| refused.to_string())?;
        if let Some(attempt) = &mut entry.attempt {
            attempt.sent = Some(now.0);
            attempt.call_id.clone_from(&entry.call_id);
        }
        Ok(())
    }

    /// Writes the Contact of a user.
    fn write_own_contact(&mut self, index: u32) -> Result<(), String> {
        let plan = self.plan.registrations.as_ref().ok_or("no plan")?;
        let entry = self.registrations.get(index as usize).ok_or("gone")?;
        let parameter = match plan.transport {
            Transport::Udp => "",
            Transport::Tls => ";transport=tls",
            Transport::Tcp => ";transport=tcp",
            // The same for both (RFC 7118 section 5.2.3).
            Transport::Ws | Transport::Wss => ";transport=ws",
        };
        let address = self.own_address(plan.transport);
        let names = &mut self.names;
        match (is_websocket(plan.transport), address) {
            (true, _) => names.write_contact(&entry.user, &self.unreachable_host, parameter),
            (false, Some(address)) => names.write_contact(&entry.user, address, parameter),
            (false, None) => return Err("no socket".to_owned()),
        }
        Ok(())
    }

    pub(crate) fn registration_answered(
        &mut self,
        endpoint: &mut Endpoint,
        user: u64,
        (response, flow): (&Message<'_>, Flow),
        now: Time,
    ) {
        let index = user as u32;
        let received_at = self.received_at.0;
        let is_phone = self.plan.phone.is_some();
        if is_phone {
            // Without a socket there was no request.
            let _ = self.write_own_contact(index);
        }
        let requested = self.plan.registrations.as_ref().map(|plan| plan.expires);
        let Some(entry) = self.registrations.get_mut(index as usize) else {
            return;
        };
        let Some(attempt) = &mut entry.attempt else {
            return;
        };
        attempt.first_answer.get_or_insert(received_at);
        let phrase = String::from_utf8_lossy(response.reason()).into_owned();
        match response.status() {
            100..200 => {}
            status @ 200..300 => {
                if is_phone {
                    entry.granted_s = granted_s(response, &self.names.contact);
                    entry.connection = flow.connection;
                    entry.is_lost = false;
                    entry.answered_at = now;
                }
                attempt.established = Some(received_at);
                self.registration_over(
                    index,
                    AttemptOutcome::Completed,
                    status,
                    String::new(),
                    now,
                );
            }
            // Once: another, longer one is refused (RFC 3261 section 10.2.8).
            423 if is_phone
                && attempt.kind != AttemptKind::Deregistration
                && entry.least_s.is_none()
                && response.min_expires().ok() > requested =>
            {
                let least = response.min_expires().unwrap_or_default();
                entry.least_s = Some(least);
                self.send_register(endpoint, index, least, now);
            }
            status => {
                let why = match self.plan.phone {
                    Some(_) => phrase,
                    None => String::new(),
                };
                self.registration_over(index, AttemptOutcome::Refused, status, why, now);
            }
        }
    }

    /// Challenges a request without valid credentials; whether it has them.
    fn authorize(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) -> bool {
        let Some(server) = &mut self.authority else {
            return true;
        };
        let verdict = server
            .presented(request, HeaderId::Authorization)
            .and_then(|presented| {
                // Every user name is accepted: its password follows from the template.
                let user = String::from_utf8_lossy(&presented.username);
                let password = fill(&self.plan.registrar_password, 0, &user);
                let secret = Secret::Password(password.into_bytes());
                let method = request.method().as_bytes();
                let name = presented.username.clone();
                server.verify(
                    &presented,
                    &name,
                    Some(&secret),
                    method,
                    request.body(),
                    now,
                )
            });
        let Err(refusal) = verdict else {
            return true;
        };
        let mut challenge = Vec::new();
        let stale = refusal == Refusal::Stale;
        server.write_challenge(
            Algorithm::MD5,
            stale,
            now,
            &mut self.entropy,
            &mut challenge,
        );
        let edits = [Edit::Add {
            id: HeaderId::WwwAuthenticate,
            value: &challenge,
        }];
        let content = MessageContent::default().with(&edits);
        self.respond(endpoint, transaction, 401, &content, now);
        false
    }

    /// The registrar: accepts every user, or users with the right password, for the requested expiry (RFC 3261 section
    /// 10.3). Its answer contains the contact; it keeps no bindings.
    pub(crate) fn take_registration(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) {
        if !self.authorize(endpoint, transaction, request, now) {
            return;
        }
        self.progress.accepted_registrations += 1;
        let expires = request.header(HeaderId::Expires).unwrap_or(b"3600");
        let mut contact = request
            .header(HeaderId::Contact)
            .unwrap_or_default()
            .to_vec();
        // The answer to a removal lists no contact (RFC 3261 section 10.3).
        let leaves = contact == b"*" || expires == b"0" || contact.ends_with(b";expires=0");
        if !contact.windows(9).any(|part| part == b";expires=") {
            contact.extend_from_slice(b";expires=");
            contact.extend_from_slice(expires);
        }
        let edits = [Edit::Add {
            id: HeaderId::Contact,
            value: &contact,
        }];
        let content = match leaves {
            true => MessageContent::default(),
            false => MessageContent::default().with(&edits),
        };
        self.respond(endpoint, transaction, 200, &content, now);
    }

    /// Keeps the first field of the responses to a REGISTER that was not that of its request.
    pub(super) fn note_registration_mismatch(&mut self, user: u64, field: ResponseMismatch) {
        if let Some(entry) = self.registrations.get_mut(user as usize) {
            entry.mismatch.get_or_insert(field);
        }
    }

    /// There was no response. A phone says whether the request could be sent; one that is registered over a connection
    /// registers again over a new one.
    pub(crate) fn registration_failed(
        &mut self,
        endpoint: &mut Endpoint,
        user: u64,
        reason: Failure,
        now: Time,
    ) {
        let index = user as u32;
        let entry = self.registrations.get(index as usize);
        let entry = entry.filter(|entry| entry.registered && self.plan.phone.is_some());
        let connection = entry.and_then(|entry| entry.connection);
        if connection.is_some() {
            self.lose(index, now);
        }
        let why = match (reason, &self.plan.phone) {
            (Failure::Transport, Some(_)) => "connection failed".to_owned(),
            _ => String::new(),
        };
        self.registration_over(index, AttemptOutcome::TimedOut, 0, why, now);
        if let Some(connection) = connection {
            // The peer may have lost it without a word.
            endpoint.close_connection(connection, now, self);
        }
    }

    fn registration_over(
        &mut self,
        index: u32,
        outcome: AttemptOutcome,
        status: u16,
        why: String,
        now: Time,
    ) {
        let Some(plan) = self.plan.registrations.clone() else {
            return;
        };
        let Some(entry) = self.registrations.get_mut(index as usize) else {
            return;
        };
        let Some(mut attempt) = entry.attempt.take() else {
            return;
        };
        let (outcome, why) = match entry.mismatch.take() {
            Some(field) => {
                // The answer to another request is none to this one.
                attempt.established = None;
                (AttemptOutcome::Mismatched, mismatch_text(field))
            }
            None => (outcome, why),
        };
        // The server may be starting again.
        let retries = matches!(status, 0 | 500..600)
            && matches!(
                outcome,
                AttemptOutcome::Refused | AttemptOutcome::TimedOut | AttemptOutcome::CouldNotStart
            );
        let removal = attempt.kind == AttemptKind::Deregistration;
        let registers_again = entry.is_lost && retries && !entry.leaves && !removal;
        self.unanswered_registrations = self.unanswered_registrations.saturating_sub(1);
        attempt.outcome = outcome;
        attempt.status = status;
        attempt.why = why;
        attempt.ended = Some(now.0);
        if registers_again {
            self.register_later(index, now);
            return self.record(attempt, now);
        }
        let registered = entry.registered;
        let granted = entry.granted_s;
        let good = outcome == AttemptOutcome::Completed;
        match (attempt.kind, good) {
            (AttemptKind::Deregistration, true) => entry.registered = false,
            (AttemptKind::Deregistration, false) => {}
            (_, good) => entry.registered = good,
        }
        self.progress.registered = self
            .progress
            .registered
            .saturating_add_signed(i64::from(entry.registered) - i64::from(registered));
        let more = good
            && attempt.kind != AttemptKind::Deregistration
            && (entry.refreshes_left > 0 || plan.remove);
        let until_end = plan.refresh.is_none() && plan.remove;
        let cycle = attempt.kind == AttemptKind::Reregistration;
        if cycle && let Some(refresh_schedule) = &mut self.refresh_schedule {
            refresh_schedule.closed();
        }
        let wait = match plan.follows_expiry {
            true => {
                let lifetime = entry.granted_s.unwrap_or(plan.expires);
                let half = Duration::from_millis(u64::from(lifetime) * 500);
                Some(half.max(SHORTEST_REFRESH))
            }
            false => plan.refresh,
        };
        if entry.leaves && entry.registered && !removal {
            // The removal that had to wait for this answer.
            entry.refreshes_left = 0;
            entry.next_refresh = Some(now);
            self.agenda.push(now, HostTimer::Refresh(index));
        } else if let (true, Some(wait)) = (more, wait) {
            entry.next_refresh = Some(now + wait);
            self.agenda.push(now + wait, HostTimer::Refresh(index));
        } else if more && until_end {
            // The binding exists, and counts as open, until all are removed.
            entry.refreshes_left = 0;
        } else if !(cycle && good)
            && std::mem::take(&mut entry.open)
            && let Some(schedule) = &mut self.registration_schedule
        {
            schedule.closed();
        }
        let expires_s = match attempt.kind {
            AttemptKind::Deregistration => 0,
            _ => granted.unwrap_or(plan.expires),
        };
        self.report(PhoneOccurrence::Registration {
            removal,
            status: attempt.status,
            expires_s,
            reason: attempt.why.clone(),
        });
        self.record(attempt, now);
        if until_end {
            self.remove_when_complete(plan.rate(), now);
        }
    }

    /// Once every user has its first answer, all bindings are removed at the rate of registration.
    fn remove_when_complete(&mut self, rate: f64, now: Time) {
        let all_due =
            |plan: &Option<AttemptSchedule>| plan.as_ref().is_none_or(|s| s.next_at().is_none());
        let more = !all_due(&self.registration_schedule) || !all_due(&self.refresh_schedule);
        if self.removing_bindings || self.unanswered_registrations > 0 || more {
            return;
        }
        self.removing_bindings = true;
        let gap = Duration::try_from_secs_f64(1.0 / rate).unwrap_or_default();
        let standing = self.registrations.iter().enumerate();
        let standing = standing.filter(|(_, entry)| entry.registered);
        let mut at = now;
        for (index, _) in standing {
            self.agenda.push(at, HostTimer::Refresh(index as u32));
            at += gap;
        }
    }

    /// Registers a phone again a little later, because its connection has ended.
    fn register_later(&mut self, index: u32, now: Time) {
        let Some(entry) = self.registrations.get_mut(index as usize) else {
            return;
        };
        let wait = entry.lost_wait;
        entry.lost_wait = (wait * 2).min(LOST_WAIT[1]);
        entry.next_refresh = Some(now + wait);
        self.agenda.push(now + wait, HostTimer::Refresh(index));
        self.report(PhoneOccurrence::RegistrationLost { retry_after: wait });
    }

    /// Notes that the connection of a registered phone has ended.
    fn lose(&mut self, index: u32, now: Time) {
        let Some(entry) = self.registrations.get_mut(index as usize) else {
            return;
        };
        entry.connection = None;
        entry.is_lost = true;
        // A server that closes each connection after its answer is not asked again and again.
        if now.since(entry.answered_at) >= LOST_WAIT[1] {
            entry.lost_wait = LOST_WAIT[0];
        }
    }

    /// A connection has ended. A phone that is reached by it registers again, over a new one.
    pub(crate) fn flow_failed(&mut self, flow: Flow, now: Time) {
        if self.plan.phone.is_none() {
            return;
        }
        let index = self.registrations.iter().position(|entry| {
            entry.registered && entry.connection.is_some() && entry.connection == flow.connection
        });
        let Some(index) = index else { return };
        self.lose(index as u32, now);
        // The answer to a request over another connection is waited for.
        if self.registrations[index].attempt.is_none() {
            self.register_later(index as u32, now);
        }
    }

    /// Whether a registered phone is reached by this connection, which must stay open then.
    pub(crate) fn is_reached_by(&self, connection: ConnectionId) -> bool {
        let mut registrations = self.registrations.iter();
        self.plan.phone.is_some()
            && registrations.any(|entry| entry.registered && entry.connection == Some(connection))
    }

    /// The next refresh of a user, or the removal after the last.
    pub(crate) fn refresh(&mut self, endpoint: &mut Endpoint, index: u32, now: Time) {
        let Some(expires) = self.plan.registrations.as_ref().map(|plan| plan.expires) else {
            return;
        };
        let Some(entry) = self.registrations.get_mut(index as usize) else {
            return;
        };
        let is_early = entry.next_refresh.is_some_and(|at| now < at);
        if !entry.registered || is_early {
            return;
        }
        let expires = entry.least_s.unwrap_or(expires);
        let (kind, expires) = match entry.refreshes_left.checked_sub(1) {
            Some(left) => {
                entry.refreshes_left = left;
                (AttemptKind::Refresh, expires)
            }
            None => (AttemptKind::Deregistration, 0),
        };
        self.register_again(endpoint, index, (kind, now), expires, now);
    }

    /// Registers the next user of a cycle again. A user that is not registered, or whose last request has no answer, is
    /// an attempt that could not start: it is counted, never postponed.
    pub(crate) fn start_cycle(&mut self, endpoint: &mut Endpoint, due: Due, now: Time) {
        let Some(plan) = &self.plan.registrations else {
            return;
        };
        let (name, expires) = (plan.name.clone(), plan.expires);
        let users = self.registrations.len() as u64;
        let turn = (due.number / self.plan.share.count).checked_rem(users);
        let index = turn.unwrap_or(0) as u32;
        let entry = self.registrations.get(index as usize);
        let may = entry.filter(|entry| entry.registered && entry.attempt.is_none());
        if may.is_some() && due.may_start {
            let kind = (AttemptKind::Reregistration, due.at);
            return self.register_again(endpoint, index, kind, expires, now);
        }
        self.progress.due += 1;
        let mut attempt = Attempt::new(&name, AttemptKind::Reregistration, due.number, due.at);
        attempt.outcome = match entry {
            Some(entry) if entry.registered => AttemptOutcome::PreviousPending,
            _ => AttemptOutcome::NotRegistered,
        };
        attempt.ended = Some(now.0);
        if let Some(refresh_schedule) = &mut self.refresh_schedule {
            refresh_schedule.closed();
        }
        self.record(attempt, now);
    }

    /// `due`: kind and due time of the request.
    fn register_again(
        &mut self,
        endpoint: &mut Endpoint,
        index: u32,
        (kind, due): (AttemptKind, Time),
        expires: u32,
        now: Time,
    ) {
        let name = self
            .plan
            .registrations
            .as_ref()
            .map(|plan| plan.name.clone());
        let Some(entry) = self.registrations.get_mut(index as usize) else {
            return;
        };
        if entry.attempt.is_some() {
            return;
        }
        let mut attempt = Attempt::new(&name.unwrap_or_default(), kind, entry.number, due);
        attempt.from.clone_from(&entry.user);
        attempt.to = self
            .target
            .map(|target| target.to_string())
            .unwrap_or_default();
        entry.attempt = Some(attempt);
        self.unanswered_registrations += 1;
        self.progress.due += 1;
        self.send_register(endpoint, index, expires, now);
    }

    /// Removes all existing bindings; one whose request is not answered yet, with the answer.
    pub(crate) fn deregister_all(&mut self, endpoint: &mut Endpoint, now: Time) {
        for index in 0..self.registrations.len() {
            let entry = &mut self.registrations[index];
            if entry.attempt.is_some() {
                entry.leaves = true;
            } else if entry.registered {
                let kind = (AttemptKind::Deregistration, now);
                self.register_again(endpoint, index as u32, kind, 0, now);
            }
        }
    }

    pub(crate) fn abandon_registrations(&mut self, now: Time) {
        for index in 0..self.registrations.len() {
            self.registration_over(
                index as u32,
                AttemptOutcome::Unfinished,
                0,
                String::new(),
                now,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetime_is_that_of_the_own_contact() {
        let own = "<sip:1000@192.0.2.1:5060;transport=tcp>";
        for (headers, granted) in [
            (
                "Contact: <sip:1000@192.0.2.7>;expires=5, <sip:1000@192.0.2.1:5060>;Expires=60\r\n",
                Some(60),
            ),
            (
                "m: <sip:1000@192.0.2.1:5060>;expires=60\r\nContact: <sip:1000@192.0.2.7>;expires=5\r\n",
                Some(60),
            ),
            // One binding is ours, also at an address that a NAT has given it.
            (
                "Contact: \"a;expires=9\" <sip:1000@198.51.100.1:1024>;q=1;expires=70\r\n",
                Some(70),
            ),
            (
                "Contact: <sip:1000@192.0.2.1:5060>\r\nExpires: 80\r\n",
                Some(80),
            ),
            (
                "Contact: <sip:a@192.0.2.7>;expires=5, <sip:b@192.0.2.8>;expires=6\r\n",
                None,
            ),
            ("", None),
        ] {
            let text = format!(
                "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1\r\nFrom: <sip:1000@a>;tag=1\r\nTo: <sip:1000@a>;tag=2\r\nCall-ID: 1\r\nCSeq: 1 REGISTER\r\n{headers}Content-Length: 0\r\n\r\n"
            );
            let response = Message::parse_datagram(text.as_bytes()).unwrap();
            assert_eq!(granted_s(&response, own), granted, "{headers}");
        }
    }
}
