//! Operators that wait for the outcome of a reload.
//!
//! A request during a read of the files is answered by the next read, because this one may have read the old text.

use std::mem::take;
use tokio::sync::oneshot::Sender;

/// The outcome of a reload, or why the configuration is not, or not fully, in force.
type Outcome = Result<(), String>;

/// Requests for a reload by their stage.
#[derive(Debug, Default)]
pub(crate) struct ReloadWaiters {
    /// For the next read.
    requested: Vec<Sender<Outcome>>,
    /// For the read in progress.
    reading: Vec<Sender<Outcome>>,
    /// For the listeners of the new configuration.
    opening: Vec<Sender<Outcome>>,
    /// Errors of listeners.
    failures: Vec<String>,
}

impl ReloadWaiters {
    /// Adds a request.
    pub(crate) fn add(&mut self, waiter: Sender<Outcome>) {
        self.requested.push(waiter);
    }

    /// A read of the files has begun.
    pub(crate) fn read_began(&mut self) {
        self.reading.append(&mut self.requested);
    }

    /// The configuration of the read is refused.
    pub(crate) fn refused(&mut self, why: &str) {
        answer(take(&mut self.reading), &Err(why.to_owned()));
    }

    /// The configuration of the read is in force; its listeners are opened in the next turn of the driver.
    pub(crate) fn accepted(&mut self) {
        self.failures.clear();
        self.opening.append(&mut self.reading);
    }

    /// Whether the outcome of listeners is awaited.
    pub(crate) fn is_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    /// A listener could not be opened.
    pub(crate) fn listener_failed(&mut self, why: String) {
        if self.is_opening() {
            self.failures.push(why);
        }
    }

    /// The listeners were opened, or have failed.
    pub(crate) fn opened(&mut self) {
        let failures = take(&mut self.failures);
        let outcome = match failures.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "the configuration is in force, except: {}",
                failures.join("; ")
            )),
        };
        answer(take(&mut self.opening), &outcome);
    }
}

fn answer(waiters: Vec<Sender<Outcome>>, outcome: &Outcome) {
    for waiter in waiters {
        // The client may have gone.
        let _ = waiter.send(outcome.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::{Receiver, channel};

    fn waiter(waiters: &mut ReloadWaiters) -> Receiver<Outcome> {
        let (sender, receiver) = channel();
        waiters.add(sender);
        receiver
    }

    #[test]
    fn request_during_a_read_is_answered_by_the_next() {
        let mut waiters = ReloadWaiters::default();
        let mut first = waiter(&mut waiters);
        waiters.read_began();
        let mut second = waiter(&mut waiters);
        waiters.refused("a mistake");
        assert_eq!(first.try_recv().unwrap(), Err("a mistake".to_owned()));
        assert!(second.try_recv().is_err());
        waiters.read_began();
        waiters.accepted();
        waiters.opened();
        assert_eq!(second.try_recv().unwrap(), Ok(()));
    }

    #[test]
    fn failed_listeners_are_reported() {
        let mut waiters = ReloadWaiters::default();
        // Of other times.
        waiters.listener_failed("old".to_owned());
        let mut one = waiter(&mut waiters);
        waiters.read_began();
        waiters.accepted();
        assert!(waiters.is_opening());
        waiters.listener_failed("cannot listen on x".to_owned());
        waiters.opened();
        let why = one.try_recv().unwrap().unwrap_err();
        assert!(
            why.contains("cannot listen on x") && !why.contains("old"),
            "{why}"
        );
        assert!(!waiters.is_opening());
    }
}
