//! Counts of everything that the store could not keep. They are shared with the threads that fill its queue and with
//! metrics, so that a loss is visible at once, also while the writing thread waits for a disk or a server.

use crate::settings::StoreNote;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Time between two notes about losses, microseconds.
const REPORT_INTERVAL: i64 = 10_000_000;

/// Numbers of lost items by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounts {
    /// Messages.
    pub messages: u64,
    /// Events.
    pub events: u64,
    /// Drops whose counts were not stored: the sum of these counts.
    pub drops: u64,
    /// Calls and other exchanges whose record, or the last change of it, was not stored.
    pub calls: u64,
}

impl LossCounts {
    /// Each kind with its name in metrics and JSON.
    pub fn kinds(&self) -> [(&'static str, u64); 4] {
        [
            ("messages", self.messages),
            ("events", self.events),
            ("drops", self.drops),
            ("calls", self.calls),
        ]
    }

    /// The sum over all kinds.
    pub fn total(&self) -> u64 {
        self.kinds().iter().map(|(_, count)| count).sum()
    }

    /// The losses after `before`, an earlier state of the same counts.
    #[must_use]
    pub fn since(&self, before: &LossCounts) -> LossCounts {
        LossCounts {
            messages: self.messages.saturating_sub(before.messages),
            events: self.events.saturating_sub(before.events),
            drops: self.drops.saturating_sub(before.drops),
            calls: self.calls.saturating_sub(before.calls),
        }
    }
}

/// Losses of a store since it was opened. Counting never waits. Each count is exact; counts of different kinds may be
/// of slightly different moments.
#[derive(Debug, Default)]
pub struct Losses {
    messages: AtomicU64,
    events: AtomicU64,
    drops: AtomicU64,
    calls: AtomicU64,
    unindexed: AtomicU64,
    failing: AtomicBool,
}

impl Losses {
    /// Adds lost items.
    pub fn add(&self, lost: &LossCounts) {
        for (counter, count) in [
            (&self.messages, lost.messages),
            (&self.events, lost.events),
            (&self.drops, lost.drops),
            (&self.calls, lost.calls),
        ] {
            if count > 0 {
                counter.fetch_add(count, Relaxed);
            }
        }
    }

    /// Adds lost messages.
    pub fn add_messages(&self, messages: u64) {
        self.add(&LossCounts {
            messages,
            ..LossCounts::default()
        });
    }

    /// Adds lost events.
    pub fn add_events(&self, events: u64) {
        self.add(&LossCounts {
            events,
            ..LossCounts::default()
        });
    }

    pub(crate) fn add_drops(&self, drops: u64) {
        self.add(&LossCounts {
            drops,
            ..LossCounts::default()
        });
    }

    pub(crate) fn add_calls(&self, calls: u64) {
        self.add(&LossCounts {
            calls,
            ..LossCounts::default()
        });
    }

    pub(crate) fn add_unindexed(&self, messages: u64) {
        self.unindexed.fetch_add(messages, Relaxed);
    }

    /// Tells whether writing fails.
    pub fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Relaxed);
    }

    /// All losses so far.
    pub fn counts(&self) -> LossCounts {
        LossCounts {
            messages: self.messages.load(Relaxed),
            events: self.events.load(Relaxed),
            drops: self.drops.load(Relaxed),
            calls: self.calls.load(Relaxed),
        }
    }

    /// Messages that are in the files and cannot be searched: without SIP, without Call-ID, or beyond the calls that
    /// fit into the memory. They are not lost. Always 0 for a database.
    pub fn unindexed(&self) -> u64 {
        self.unindexed.load(Relaxed)
    }

    /// Whether writing fails at present.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }
}

/// Reports of losses for the event log, at a bounded rate.
#[derive(Debug)]
pub(crate) struct LossReport {
    losses: Arc<Losses>,
    /// Losses that were reported.
    reported: LossCounts,
    /// Time of the last report.
    at: i64,
}

impl LossReport {
    pub(crate) fn new(losses: Arc<Losses>) -> LossReport {
        LossReport {
            losses,
            reported: LossCounts::default(),
            at: i64::MIN / 2,
        }
    }

    /// The losses since the last report, if there are any and a report is due. `now`: microseconds since the Unix
    /// epoch; it may have been set back.
    pub(crate) fn due(&mut self, now: i64) -> Option<StoreNote> {
        if now >= self.at && now - self.at < REPORT_INTERVAL {
            return None;
        }
        let note = self.rest()?;
        self.at = now;
        Some(note)
    }

    /// The losses since the last report, if there are any.
    pub(crate) fn rest(&mut self) -> Option<StoreNote> {
        let all = self.losses.counts();
        let lost = all.since(&self.reported);
        if lost.total() == 0 {
            return None;
        }
        self.reported = all;
        Some(StoreNote::Lost(lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_differences_at_a_bounded_rate() {
        let losses = Arc::new(Losses::default());
        let mut report = LossReport::new(losses.clone());
        assert_eq!(report.due(5), None);
        let first = LossCounts {
            messages: 3,
            events: 2,
            drops: 1,
            calls: 4,
        };
        losses.add(&first);
        assert_eq!(report.due(7), Some(StoreNote::Lost(first)));
        losses.add_messages(1);
        losses.add_drops(5);
        assert_eq!(report.due(7 + REPORT_INTERVAL - 1), None);
        let second = LossCounts {
            messages: 1,
            drops: 5,
            ..LossCounts::default()
        };
        assert_eq!(
            report.due(7 + REPORT_INTERVAL),
            Some(StoreNote::Lost(second))
        );
        // The clock was set back.
        losses.add_calls(1);
        assert!(report.due(3).is_some());
        assert_eq!((report.rest(), report.due(i64::MAX)), (None, None));
        assert_eq!(losses.counts().total(), 17);
    }
}
