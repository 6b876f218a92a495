//! Applies `[threads]`: real-time priority, CPUs and locked memory, as far as the system permits.

use config::{Config, PrivilegedMode};
use engine::{Event, EventKind};
use net::{Clock, DriverConfig};
use std::io;

use crate::log::EventLog;

/// Settings for the driver threads.
#[derive(Debug, Default)]
pub(crate) struct ThreadSettings {
    realtime: Option<u32>,
    cpus: Vec<usize>,
}

impl ThreadSettings {
    /// Determines the permitted settings, locks memory, and logs both.
    ///
    /// # Errors
    /// If a required setting is denied, or the program may not use a configured processor.
    pub(crate) fn of(config: &Config, log: &EventLog, clock: &Clock) -> io::Result<ThreadSettings> {
        let threads = &config.threads;
        let log_setting = |what: &str, done: bool, why: String| {
            let what = what.to_owned();
            log.event(&Event::new(
                clock.now(),
                EventKind::ThreadsSet {
                    setting: what,
                    applied: done,
                    detail: why,
                },
            ));
        };
        let priority = threads.priority;
        let fifo = outcome_of(threads.realtime, "realtime", || {
            net::may_be_realtime(priority)
        })?;
        if let Some(outcome) = &fifo {
            let said = || format!("SCHED_FIFO, priority {priority}");
            log_setting(
                "realtime",
                outcome.is_ok(),
                outcome.clone().err().unwrap_or_else(said),
            );
        }
        if let Some(outcome) = outcome_of(threads.lock_memory, "lock_memory", net::lock_memory)? {
            log_setting("memory", outcome.is_ok(), outcome.err().unwrap_or_default());
        }
        let cpus: Vec<usize> = threads.cpus.iter().map(|&n| n.into()).collect();
        let allowed = net::allowed_cpus();
        if let Some(missing) = cpus.iter().find(|number| !allowed.contains(number)) {
            return Err(io::Error::other(format!(
                "[threads] cpus: CPU {missing} is not permitted for this program\n  remedy: use {}",
                list(&allowed)
            )));
        }
        if !cpus.is_empty() {
            log_setting("cpus", true, list(&cpus));
        }
        Ok(ThreadSettings {
            realtime: fifo
                .is_some_and(|outcome| outcome.is_ok())
                .then_some(priority),
            cpus,
        })
    }

    /// Driver settings of a worker, numbered from 0.
    pub(crate) fn apply(&self, worker: u8, settings: DriverConfig) -> DriverConfig {
        let named = self.cpus.get(usize::from(worker)).copied();
        DriverConfig {
            realtime: self.realtime,
            pin: named.or(settings.pin),
            ..settings
        }
    }
}

fn list(numbers: &[usize]) -> String {
    let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
    words.join(", ")
}

/// Result of a configured setting, with the reason of a denial; `None` if it is not configured.
fn outcome_of(
    setting: PrivilegedMode,
    key: &str,
    job: impl FnOnce() -> io::Result<()>,
) -> io::Result<Option<Result<(), String>>> {
    if setting == PrivilegedMode::Never {
        return Ok(None);
    }
    let outcome = job().map_err(|error| error.to_string());
    match outcome {
        Err(why) if setting == PrivilegedMode::Require => Err(io::Error::other(format!(
            "[threads] {key} was denied: {why}\n  remedy: set `{key} = \"auto\"` to run without it"
        ))),
        outcome => Ok(Some(outcome)),
    }
}
