//! Operator commands: one set for the Unix socket of `hornwork ctl`, the control interface over HTTP and the console.

use super::{Operators, ServiceRequest};
use crate::alarms::Acknowledgement;
use border::border::CallInfo;
use border::registrar::LockedOut;
use border::views::{RegistrationView, TrunkView};
use engine::Event;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Longest time for reading a configuration.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

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
        let pages = self.ask_all(move |context| {
            let border = &*context.border;
            (border.call_count(), border.calls_after(after, limit))
        });
        let pages = pages.await?;
        let total = pages.iter().map(|(count, _)| count).sum();
        let mut calls: Vec<CallInfo> = pages.into_iter().flat_map(|(_, calls)| calls).collect();
        calls.sort_by_key(|call| call.number);
        calls.truncate(limit);
        Ok((total, calls))
    }

    /// The call with this number, or with this Call-ID in one of its legs.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn call(&self, id: &str) -> Result<Option<CallInfo>, &'static str> {
        let number = id.parse::<u64>().ok();
        let (_, calls) = self.calls_after(None, usize::MAX).await?;
        let has = |call: &CallInfo| {
            Some(call.number) == number || call.call_ids.iter().flatten().any(|own| own == id)
        };
        Ok(calls.into_iter().find(has))
    }

    /// Ends a call; false if there is none.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn hang_up(&self, id: String) -> Result<bool, &'static str> {
        let ended = self.ask_all(move |context| {
            let now = context.now;
            context.border.hang_up(&id, now)
        });
        Ok(ended.await?.contains(&true))
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
        self.ask(0, move |context| {
            let border = &*context.border;
            let views = border.registrations_after(user.as_deref(), after.as_deref(), limit);
            let named = views.into_iter().map(|view| {
                let names = view.contacts.iter();
                let names = names.map(|contact| border.interface_name(contact.interface));
                let names = names.collect();
                (view, names)
            });
            (border.registration_count(), named.collect())
        })
        .await
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

    /// All trunks.
    ///
    /// # Errors
    /// As [`Operators::ask`].
    pub(crate) async fn trunks(&self) -> Result<Vec<TrunkView>, &'static str> {
        self.ask(0, |context| context.border.trunk_views()).await
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
            let found = context.border.set_trunk_enabled(&name, enabled);
            let views = context.border.trunk_views();
            let mut views = views.into_iter().filter(|trunk| trunk.name == name);
            if found { views.next() } else { None }
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
