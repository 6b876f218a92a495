//! Operator commands: one set for the Unix socket of `hornwork ctl`, the control interface over HTTP and the console.

use super::{Operators, ServiceRequest, WorkerContext};
use crate::alarms::Acknowledgement;
use crate::event_output::TrunkOutcomes;
use border::border::CallInfo;
use border::operator::CallName;
use border::registrar::LockedOut;
use border::views::{RegistrationView, TrunkView};
use engine::Event;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Longest time for reading a configuration.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Most entries of a list that a packet thread copies between two turns: less than a millisecond.
const MAX_COPIED: usize = 500;
/// Text before a Call-ID which would otherwise be the number of a call.
const CALL_ID: &str = "call_id:";

/// Levels of the log.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Reason why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandError {
    /// The border did not respond in time.
    Busy(&'static str),
    /// A value is not possible.
    BadValue(String),
    /// The command was tried and failed.
    Failed(String),
}

impl From<&'static str> for CommandError {
    fn from(why: &'static str) -> CommandError {
        CommandError::Busy(why)
    }
}

/// Capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandLimits {
    pub(crate) calls: usize,
    pub(crate) registrations: usize,
    pub(crate) transactions: usize,
    pub(crate) connections: usize,
}

/// A registered user, with the names of the interfaces of its contacts.
pub(crate) type NamedRegistration = (RegistrationView, Vec<String>);

/// The names of calls that `id` may be, in the order of the search. Callers choose their Call-IDs: one that looks like
/// the number of a call must not stand for that call.
fn names_of(id: &str) -> Vec<CallName> {
    let is_number = id.bytes().all(|byte| byte.is_ascii_digit());
    let number = id.parse().ok().filter(|_| is_number);
    let call_id = id.strip_prefix(CALL_ID).unwrap_or(id);
    let mut names: Vec<CallName> = number.into_iter().map(CallName::Number).collect();
    names.push(CallName::CallId(call_id.to_owned()));
    names
}

impl Operators {
    /// Calls of all threads with higher numbers than `after`, by number; at most `limit`, and the number of all calls.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn calls_after(
        &self,
        after: Option<u64>,
        limit: usize,
    ) -> Result<(usize, Vec<CallInfo>), &'static str> {
        let mut all: Vec<CallInfo> = Vec::new();
        loop {
            let after = all.last().map(|call| call.number).or(after);
            let part = limit.saturating_sub(all.len()).min(MAX_COPIED);
            let pages = self.ask_all(move |context| {
                let border = &*context.border;
                (border.call_count(), border.calls_after(after, part))
            });
            let pages = pages.await?;
            let total = pages.iter().map(|(count, _)| count).sum();
            let mut calls: Vec<CallInfo> = pages.into_iter().flat_map(|(_, calls)| calls).collect();
            calls.sort_by_key(|call| call.number);
            calls.truncate(part);
            let is_last = calls.len() < part;
            all.append(&mut calls);
            if is_last || all.len() >= limit {
                return Ok((total, all));
            }
        }
    }

    /// The call with this number; without one, that with this Call-ID in one of its legs. `call_id:` before a Call-ID
    /// tells that it is none of a number.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn call(&self, id: &str) -> Result<Option<CallInfo>, &'static str> {
        for name in names_of(id) {
            let found = self.ask_all(move |context| context.border.call(&name));
            if let Some(call) = found.await?.into_iter().flatten().next() {
                return Ok(Some(call));
            }
        }
        Ok(None)
    }

    /// Ends a call, which is named as in [`Operators::call`]; false if there is none.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn hang_up(&self, id: &str) -> Result<bool, &'static str> {
        for name in names_of(id) {
            let ended = self.ask_all(move |context| {
                let now = context.now;
                context.border.hang_up(&name, now)
            });
            if ended.await?.contains(&true) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Registered users behind `after` in the order of their names, or the one named `user`; and the number of all
    /// registrations.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn registrations(
        &self,
        user: Option<String>,
        after: Option<String>,
        limit: usize,
    ) -> Result<(usize, Vec<NamedRegistration>), &'static str> {
        let mut all: Vec<NamedRegistration> = Vec::new();
        loop {
            let last = all.last().map(|(view, _)| view.user.clone());
            let (user, after) = (user.clone(), last.or_else(|| after.clone()));
            let part = limit.saturating_sub(all.len()).min(MAX_COPIED);
            let page = self.ask(0, move |context| {
                let border = &*context.border;
                let views = border.registrations_after(user.as_deref(), after.as_deref(), part);
                let named = views.into_iter().map(|view| {
                    let names = view.contacts.iter();
                    let names = names.map(|contact| border.interface_name(contact.interface));
                    let names = names.collect();
                    (view, names)
                });
                let named: Vec<NamedRegistration> = named.collect();
                (border.registration_count(), named)
            });
            let (total, mut page) = page.await?;
            let is_last = page.len() < part;
            all.append(&mut page);
            if is_last || all.len() >= limit {
                return Ok((total, all));
            }
        }
    }

    /// Removes all contacts of a user; returns their number.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn remove_registration(&self, user: String) -> Result<usize, &'static str> {
        self.ask(0, move |context| {
            let now = context.now;
            context.border.remove_registration(&user, now)
        })
        .await
    }

    /// All trunks, in the order of the configuration.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn trunks(&self) -> Result<Vec<TrunkView>, &'static str> {
        let mut all: Vec<TrunkView> = Vec::new();
        let mut known = BTreeSet::new();
        let mut from = 0;
        loop {
            let views =
                move |context: &mut WorkerContext<'_>| context.border.trunk_views(from, MAX_COPIED);
            let page = self.ask(0, views).await?;
            from += page.len();
            let is_last = page.len() < MAX_COPIED;
            // A reload between two pages may have moved trunks.
            all.extend(
                page.into_iter()
                    .filter(|view| known.insert(view.name.clone())),
            );
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Ended calls of all trunks by outcome, of all threads.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn trunk_outcomes(&self) -> Result<TrunkOutcomes, &'static str> {
        let mut all = TrunkOutcomes::new();
        for worker in 0..self.workers() {
            let mut after: Option<String> = None;
            loop {
                let last = after.take();
                let counts = move |context: &mut WorkerContext<'_>| {
                    context.counts.trunks_after(last.as_deref(), MAX_COPIED)
                };
                let page = self.ask(worker, counts).await?;
                let is_last = page.len() < MAX_COPIED;
                after = page.last().map(|(name, _)| name.clone());
                for (name, counts) in page {
                    let sums = all.entry(name).or_default();
                    for (sum, count) in sums.iter_mut().zip(counts) {
                        *sum += count;
                    }
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Puts a trunk into or out of service; `None` if there is none of this name.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn enable_trunk(
        &self,
        name: String,
        enabled: bool,
    ) -> Result<Option<TrunkView>, &'static str> {
        self.ask(0, move |context| {
            context.border.set_trunk_enabled(&name, enabled);
            context.border.trunk_view(&name)
        })
        .await
    }

    /// The capacities in force.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn limits(&self) -> Result<CommandLimits, &'static str> {
        self.ask(0, |context| {
            let limits = &context.border.config().limits;
            CommandLimits {
                calls: limits.calls,
                registrations: limits.registrations,
                transactions: limits.transactions,
                connections: limits.connections,
            }
        })
        .await
    }

    /// Changes the limit of calls until the next reload or restart.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn set_call_limit(&self, calls: usize) -> Result<CommandLimits, &'static str> {
        let changed = self.ask_all(move |context| context.border.set_call_limit(calls));
        changed.await?;
        self.limits().await
    }

    /// Sources and users whose credentials are not checked, with the remaining time.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn bans(&self) -> Result<Vec<(LockedOut, Duration)>, &'static str> {
        self.ask(0, |context| {
            let now = context.now;
            context.border.lockouts(now)
        })
        .await
    }

    /// Has the credentials of a source (its address) or a user (`user:NAME`) checked again; false if it was not banned.
    ///
    /// # Errors
    /// Neither address nor user; or as [`Operators::ask`].
    pub(crate) async fn remove_ban(&self, source: &str) -> Result<bool, CommandError> {
        let lockout = LockedOut::parse(source).ok_or_else(|| {
            let why = format!("\"{source}\" is neither an IP address nor user:NAME");
            CommandError::BadValue(why)
        })?;
        let removed = self.ask(0, move |context| {
            let now = context.now;
            context.border.remove_lockout(&lockout, now)
        });
        Ok(removed.await?)
    }

    /// Acknowledges an alarm in the name of a user or source; false if there is no such active alarm.
    pub(crate) fn acknowledge_alarm(&self, id: u64, by: &str) -> bool {
        let now = self.clock.now();
        match self.alarms.acknowledge(id, by, now) {
            Acknowledgement::Unknown => return false,
            Acknowledgement::Repeated => {}
            Acknowledgement::First(event) => {
                self.log.event(&Event::new(now, *event));
                self.log.flush();
            }
        }
        true
    }

    /// Changes the level of the log until the restart.
    ///
    /// # Errors
    /// No level, or the log refuses it.
    pub(crate) fn set_log_level(&self, level: &str) -> Result<(), CommandError> {
        if !LEVELS.contains(&level) {
            let why = "the level is error, warn, info, debug or trace".to_owned();
            return Err(CommandError::BadValue(why));
        }
        self.log.set_level(level).map_err(CommandError::Failed)
    }

    /// Reads the configuration again; a faulty one changes nothing.
    ///
    /// # Errors
    /// The mistakes, or that reading takes too long.
    pub(crate) async fn reload(&self) -> Result<(), CommandError> {
        let (reply, answer) = oneshot::channel();
        self.request(ServiceRequest::Reload(reply));
        match timeout(RELOAD_TIMEOUT, answer).await {
            Ok(Ok(outcome)) => outcome.map_err(CommandError::Failed),
            _ => Err(CommandError::Busy("the configuration was not read in time")),
        }
    }

    /// Refuses new calls, and ends the program after the last one, or after `limit`.
    pub(crate) fn drain(&self, limit: Option<Duration>) {
        self.request(ServiceRequest::Drain(limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_calls_come_before_call_ids() {
        let call_id = |id: &str| CallName::CallId(id.to_owned());
        assert_eq!(names_of("17"), [CallName::Number(17), call_id("17")]);
        assert_eq!(names_of("call_id:17"), [call_id("17")]);
        for id in ["+17", "17@x", "99999999999999999999", ""] {
            assert_eq!(names_of(id), [call_id(id)]);
        }
    }
}
