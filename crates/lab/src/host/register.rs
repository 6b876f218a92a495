//! Registrations: first, refreshed, taken back; each an attempt of its own.

use super::{Inner, Timer};
use crate::pace::Due;
use crate::record::{Attempt, Kind, Outcome};
use engine::Time;
use sip::{Content, Endpoint, Login, Outside, Target};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Message, Method};

/// One user.
#[derive(Debug)]
pub(crate) struct Registration {
    user: String,
    password: String,
    number: u64,
    call_id: String,
    cseq: u32,
    attempt: Option<Attempt>,
    refreshes_left: u32,
    registered: bool,
    /// Counted as open in the schedule.
    open: bool,
}

impl Inner {
    pub(crate) fn start_registration(&mut self, endpoint: &mut Endpoint, due: Due, now: Time) {
        let Some(plan) = self.plan.registrations.clone() else {
            return;
        };
        let (user, password) = plan.login.of(due.number);
        let mut attempt = Attempt::new(&plan.name, Kind::Registration, due.number, due.at);
        attempt.from.clone_from(&user);
        attempt.to = self
            .target
            .map(|target| target.to_string())
            .unwrap_or_default();
        let index = self.registrations.len() as u32;
        self.registrations.push(Registration {
            user,
            password,
            number: due.number,
            call_id: format!("r{index:x}-{:016x}", self.entropy.u64()),
            cseq: 0,
            attempt: Some(attempt),
            refreshes_left: plan.refreshes,
            registered: false,
            open: true,
        });
        self.send_register(endpoint, index, plan.expires, now);
    }

    fn send_register(&mut self, endpoint: &mut Endpoint, index: u32, expires: u32, now: Time) {
        if let Err(why) = self.try_register(endpoint, index, expires, now) {
            self.registration_over(index, Outcome::CouldNotStart, 0, why, now);
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
        let domain = match plan.domain.as_str() {
            "" => flow.remote.to_string(),
            domain => domain.to_owned(),
        };
        let address = self.own_address(plan.transport).ok_or("no socket")?;
        let parameter = match plan.transport {
            engine::Transport::Udp => "",
            engine::Transport::Tls => ";transport=tls",
            _ => ";transport=tcp",
        };
        let entry = self.registrations.get_mut(index as usize).ok_or("gone")?;
        // Two numbers each: the answer to a challenge takes the second.
        entry.cseq += 2;
        let uri = format!("sip:{domain}");
        let aor = format!("<sip:{}@{domain}>", entry.user);
        let contact = format!("<sip:{}@{address}{parameter}>", entry.user);
        let expires = expires.to_string();
        let edits = [
            Edit::Replace {
                id: HeaderId::Contact,
                value: contact.as_bytes(),
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
        let outside = Outside {
            from: Some(aor.as_bytes()),
            to: Some(aor.as_bytes()),
            call_id: Some(entry.call_id.as_bytes()),
            cseq: Some(entry.cseq),
            content: Content::default().with(&edits),
            user: u64::from(index),
            login: (!entry.password.is_empty()).then_some(login),
            ..Outside::new(Method::Register, Target::new(uri.as_bytes(), flow))
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
        let Some(entry) = self.registrations.get_mut(index as usize) else {
            return;
        };
        let Some(attempt) = &mut entry.attempt else {
            return;
        };
        attempt.first_answer.get_or_insert(now.0);
        match response.status() {
            100..200 => {}
            status @ 200..300 => {
                attempt.established = Some(now.0);
                self.registration_over(index, Outcome::Completed, status, String::new(), now);
            }
            status => self.registration_over(index, Outcome::Refused, status, String::new(), now),
        }
    }

    pub(crate) fn registration_timed_out(&mut self, user: u64, now: Time) {
        self.registration_over(user as u32, Outcome::TimedOut, 0, String::new(), now);
    }

    fn registration_over(
        &mut self,
        index: u32,
        outcome: Outcome,
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
        attempt.outcome = outcome;
        attempt.status = status;
        attempt.why = why;
        attempt.ended = Some(now.0);
        let registered = entry.registered;
        let good = outcome == Outcome::Completed;
        match (attempt.kind, good) {
            (Kind::Deregistration, true) => entry.registered = false,
            (Kind::Deregistration, false) => {}
            (_, good) => entry.registered = good,
        }
        self.progress.registered = self
            .progress
            .registered
            .saturating_add_signed(i64::from(entry.registered) - i64::from(registered));
        let more = good
            && attempt.kind != Kind::Deregistration
            && (entry.refreshes_left > 0 || plan.remove);
        let until_end = plan.refresh.is_none() && plan.remove;
        if let (true, Some(wait)) = (more, plan.refresh) {
            self.agenda.push(now + wait, Timer::Refresh(index));
        } else if more && until_end {
            // It stands, and is open, until all of them are taken back.
            entry.refreshes_left = 0;
        } else if std::mem::take(&mut entry.open)
            && let Some(schedule) = &mut self.registering
        {
            schedule.closed();
        }
        self.record(attempt, now);
        if until_end {
            self.remove_at_the_end(plan.rate(), now);
        }
    }

    /// Once every user has had the first answer, all are taken back at the pace at which they came.
    fn remove_at_the_end(&mut self, rate: f64, now: Time) {
        let all_due = self
            .registering
            .as_ref()
            .is_some_and(|s| s.next_at().is_none());
        let waiting = self
            .registrations
            .iter()
            .any(|entry| entry.attempt.is_some());
        if self.removing || !all_due || waiting {
            return;
        }
        self.removing = true;
        let gap = Duration::try_from_secs_f64(1.0 / rate).unwrap_or_default();
        let standing = self.registrations.iter().enumerate();
        let standing = standing.filter(|(_, entry)| entry.registered);
        let mut at = now;
        for (index, _) in standing {
            self.agenda.push(at, Timer::Refresh(index as u32));
            at += gap;
        }
    }

    /// The next refresh of a user, or the removal where none is left.
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
                (Kind::Refresh, expires)
            }
            None => (Kind::Deregistration, 0),
        };
        self.register_again(endpoint, index, kind, expires, now);
    }

    fn register_again(
        &mut self,
        endpoint: &mut Endpoint,
        index: u32,
        kind: Kind,
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
        let mut attempt = Attempt::new(&name.unwrap_or_default(), kind, entry.number, now);
        attempt.from.clone_from(&entry.user);
        attempt.to = self
            .target
            .map(|target| target.to_string())
            .unwrap_or_default();
        entry.attempt = Some(attempt);
        self.progress.due += 1;
        self.send_register(endpoint, index, expires, now);
    }

    /// Takes all registrations back that stand.
    pub(crate) fn deregister_all(&mut self, endpoint: &mut Endpoint, now: Time) {
        for index in 0..self.registrations.len() {
            if self.registrations[index].registered {
                self.register_again(endpoint, index as u32, Kind::Deregistration, 0, now);
            }
        }
    }

    pub(crate) fn abandon_registrations(&mut self, now: Time) {
        for index in 0..self.registrations.len() {
            self.registration_over(index as u32, Outcome::Unfinished, 0, String::new(), now);
        }
    }
}
