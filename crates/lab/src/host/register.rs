//! Registrations: first, refresh, removal; each is an attempt.

use super::phone::PhoneOccurrence;
use super::{HostState, HostTimer, identity, is_websocket};
use crate::experiment::fill;
use crate::pace::{AttemptSchedule, Due};
use crate::record::{Attempt, AttemptKind, AttemptOutcome};
use engine::{Entropy, Time, Transport};
use protect::digest::{Algorithm, DigestServer, NonceKey, Refusal, Secret, ServerConfig};
use sip::{
    Endpoint, Failure, Login, MessageContent, OutOfDialogRequest, ServerTransaction, Target,
};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Message, Method};

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

/// The lifetime of the only contact in a response to REGISTER, or that of all (RFC 3261 section 10.2.4).
fn granted_s(response: &Message<'_>) -> Option<u32> {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse().ok();
    let contact = response.header(HeaderId::Contact);
    let parameter = contact.and_then(|contact| {
        let at = contact.windows(9).rposition(|part| part == b";expires=")? + 9;
        let rest = contact.get(at..)?;
        let end = rest.iter().position(|byte| !byte.is_ascii_digit());
        number(rest.get(..end.unwrap_or(rest.len()))?)
    });
    parameter.or_else(|| number(response.header(HeaderId::Expires)?))
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
    /// Whether it counts as open in the schedule.
    open: bool,
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
            open: true,
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
        let address = self.own_address(plan.transport);
        let parameter = match plan.transport {
            Transport::Udp => "",
            Transport::Tls => ";transport=tls",
            Transport::Tcp => ";transport=tcp",
            // The same for both (RFC 7118 section 5.2.3).
            Transport::Ws | Transport::Wss => ";transport=ws",
        };
        let entry = self.registrations.get_mut(index as usize).ok_or("gone")?;
        // Two numbers each: the request with credentials uses the second.
        entry.cseq += 2;
        let names = &mut self.names;
        names.write(&plan.domain, flow.remote, "", &entry.user);
        match (is_websocket(plan.transport), address) {
            (true, _) => names.write_contact(&entry.user, &self.unreachable_host, parameter),
            (false, Some(address)) => names.write_contact(&entry.user, address, parameter),
            (false, None) => return Err("no socket".to_owned()),
        }
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

    pub(crate) fn registration_answered(&mut self, user: u64, response: &Message<'_>, now: Time) {
        let index = user as u32;
        let received_at = self.received_at.0;
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
                entry.granted_s = granted_s(response);
                attempt.established = Some(received_at);
                self.registration_over(
                    index,
                    AttemptOutcome::Completed,
                    status,
                    String::new(),
                    now,
                );
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

    /// There was no response. A phone says whether the request could be sent.
    pub(crate) fn registration_failed(&mut self, user: u64, reason: Failure, now: Time) {
        let why = match (reason, &self.plan.phone) {
            (Failure::Transport, Some(_)) => "connection failed".to_owned(),
            _ => String::new(),
        };
        self.registration_over(user as u32, AttemptOutcome::TimedOut, 0, why, now);
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
        self.unanswered_registrations = self.unanswered_registrations.saturating_sub(1);
        attempt.outcome = outcome;
        attempt.status = status;
        attempt.why = why;
        attempt.ended = Some(now.0);
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
                Some(Duration::from_millis(u64::from(lifetime) * 500))
            }
            false => plan.refresh,
        };
        if let (true, Some(wait)) = (more, wait) {
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

    /// The next refresh of a user, or the removal after the last.
    pub(crate) fn refresh(&mut self, endpoint: &mut Endpoint, index: u32, now: Time) {
        let Some(expires) = self.plan.registrations.as_ref().map(|plan| plan.expires) else {
            return;
        };
        let Some(entry) = self.registrations.get_mut(index as usize) else {
            return;
        };
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

    /// Removes all existing bindings.
    pub(crate) fn deregister_all(&mut self, endpoint: &mut Endpoint, now: Time) {
        for index in 0..self.registrations.len() {
            if self.registrations[index].registered {
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
