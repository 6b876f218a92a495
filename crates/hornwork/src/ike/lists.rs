//! Lists of all associations of the daemon: when one is requested, and the one that is being received.

use super::duplicates::Listed;
use engine::Time;
use protect::ike::ViciSection;
use std::time::Duration;

/// Interval of comparing the associations with those of the daemon.
const INTERVAL: Duration = Duration::from_secs(60);
/// Wait before a second association of a tunnel is looked at: both ends have it by then.
const DUPLICATE_WAIT: Duration = Duration::from_secs(5);
/// Wait before another list where one did not decide, or an IKE association has ended.
const AGAIN: Duration = Duration::from_secs(1);

/// The lists of the daemon.
#[derive(Debug)]
pub(super) struct Lists {
    next: Time,
    /// The one whose events are arriving. Events have no number of their request, so there is one at a time.
    open: Option<Listed>,
}

impl Lists {
    pub(super) fn new(now: Time) -> Lists {
        Lists {
            next: now + INTERVAL,
            open: None,
        }
    }

    /// Whether a list is to be requested now.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.open.is_none() && now >= self.next
    }

    /// Notes that one is requested.
    pub(super) fn begin(&mut self, now: Time) {
        self.next = now + INTERVAL;
        self.open = Some(Listed::new(now));
    }

    /// Adds an event of the list.
    pub(super) fn add(&mut self, message: &ViciSection) {
        if let Some(open) = &mut self.open {
            open.add(message);
        }
    }

    /// The list, which is complete.
    pub(super) fn finish(&mut self) -> Option<Listed> {
        self.open.take()
    }

    /// No list will follow: the daemon has refused it, or has ended.
    pub(super) fn abandon(&mut self) {
        self.open = None;
    }

    /// A tunnel has a second association.
    pub(super) fn await_duplicate(&mut self, now: Time) {
        self.next = self.next.min(now + DUPLICATE_WAIT);
    }

    /// Associations may have changed, or a list did not decide.
    pub(super) fn repeat(&mut self, now: Time) {
        self.next = self.next.min(now + AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Time {
        Time::ZERO + Duration::from_secs(second)
    }

    #[test]
    fn lists_are_requested_at_their_interval_and_after_changes() {
        let mut lists = Lists::new(at(0));
        assert!(!lists.is_due(at(59)) && lists.is_due(at(60)));
        lists.await_duplicate(at(10));
        assert!(!lists.is_due(at(14)) && lists.is_due(at(15)));
        lists.repeat(at(10));
        lists.await_duplicate(at(10));
        assert!(lists.is_due(at(11)), "the earliest one");
    }

    /// Events of a slow list would be those of the next one: associations that it has had would be gone.
    #[test]
    fn a_list_is_requested_after_the_end_of_the_one_before() {
        let mut lists = Lists::new(at(0));
        lists.begin(at(60));
        lists.repeat(at(61));
        assert!(!lists.is_due(at(200)));
        let listed = lists.finish().unwrap();
        assert_eq!(listed.asked, at(60));
        assert!(lists.is_due(at(62)) && lists.finish().is_none());
        lists.begin(at(62));
        lists.abandon();
        assert!(!lists.is_due(at(121)) && lists.is_due(at(122)));
        // An event without a request is of no list.
        lists.add(&ViciSection::new());
        assert!(lists.finish().is_none());
    }
}
