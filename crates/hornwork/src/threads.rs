//! What `[threads]` asks of the machine, and what of it can be had.

use border::config::{Config, Wish};
use engine::{Event, Note};
use net::{Clock, DriverConfig};
use std::io;

use crate::log::Log;

/// What the threads of drivers get.
#[derive(Debug, Default)]
pub(crate) struct Placing {
    realtime: Option<u32>,
    processors: Vec<usize>,
}

impl Placing {
    /// Finds out what is allowed, locks memory, and logs both.
    ///
    /// # Errors
    /// What is required cannot be had, or the program may not use one of the processors.
    pub(crate) fn of(config: &Config, log: &Log, clock: &Clock) -> io::Result<Placing> {
        let threads = &config.threads;
        let tell = |what: &str, done: bool, why: String| {
            let what = what.to_owned();
            log.event(&Event::new(
                clock.now(),
                Note::ThreadsSet { what, done, why },
            ));
        };
        let priority = threads.priority;
        let fifo = wished(threads.realtime, "realtime", || {
            net::may_be_realtime(priority)
        })?;
        if let Some(outcome) = &fifo {
            let said = || format!("SCHED_FIFO, priority {priority}");
            tell(
                "realtime",
                outcome.is_ok(),
                outcome.clone().err().unwrap_or_else(said),
            );
        }
        if let Some(outcome) = wished(threads.lock_memory, "lock_memory", net::lock_memory)? {
            tell("memory", outcome.is_ok(), outcome.err().unwrap_or_default());
        }
        let processors: Vec<usize> = threads.processors.iter().map(|&n| n.into()).collect();
        let allowed = net::allowed_cpus();
        if let Some(missing) = processors.iter().find(|number| !allowed.contains(number)) {
            return Err(io::Error::other(format!(
                "[threads] processors: the program may not use processor {missing}\n  remedy: it may use {}",
                list(&allowed)
            )));
        }
        if !processors.is_empty() {
            tell("processors", true, list(&processors));
        }
        Ok(Placing {
            realtime: fifo
                .is_some_and(|outcome| outcome.is_ok())
                .then_some(priority),
            processors,
        })
    }

    /// The settings of the driver of a worker, counted from 0.
    pub(crate) fn apply(&self, worker: u8, settings: DriverConfig) -> DriverConfig {
        let named = self.processors.get(usize::from(worker)).copied();
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

/// What came of a wish, with the reason where nothing did; `None`: there was none.
fn wished(
    wish: Wish,
    key: &str,
    job: impl FnOnce() -> io::Result<()>,
) -> io::Result<Option<Result<(), String>>> {
    if wish == Wish::Never {
        return Ok(None);
    }
    let outcome = job().map_err(|error| error.to_string());
    match outcome {
        Err(why) if wish == Wish::Require => Err(io::Error::other(format!(
            "[threads] {key} cannot be had: {why}\n  remedy: `{key} = \"auto\"` goes without"
        ))),
        outcome => Ok(Some(outcome)),
    }
}
