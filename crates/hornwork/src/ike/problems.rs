//! Problems in the words of the daemon, and bounds of the events about them.

use engine::Time;
use std::time::Duration;

/// Beginning of the descriptions of commands that delete an association.
pub(super) const TERMINATE: &str = "terminate ";
/// Problems that are logged in [`PROBLEM_INTERVAL`]: strangers can cause them.
const MAX_PROBLEMS: u64 = 10;
const PROBLEM_INTERVAL: Duration = Duration::from_secs(10);

/// Beginnings of lines of the daemon's log that tell about a problem. Strangers can write no beginning of a line.
const PROBLEMS: [&str; 17] = [
    "failed to establish CHILD_SA",
    "unable to install",
    "received AUTHENTICATION_FAILED",
    "received NO_PROPOSAL_CHOSEN",
    "received TS_UNACCEPTABLE",
    "traffic selectors",
    "no IKE config found",
    "no matching peer config found",
    "no acceptable proposal found",
    "no acceptable traffic selectors found",
    "no shared key found",
    "no private key found",
    "no trusted",
    "tried ",
    "giving up after",
    "peer not responding",
    "constraint check failed",
];

/// Bounds the events about problems.
#[derive(Debug, Default)]
pub(super) struct Problems {
    since: Time,
    logged: u64,
    suppressed: u64,
}

impl Problems {
    /// Whether one may be logged now, with the number of those that were not.
    pub(super) fn allow(&mut self, now: Time) -> Option<u64> {
        if now.since(self.since) >= PROBLEM_INTERVAL {
            self.since = now;
            self.logged = 0;
        }
        if self.logged >= MAX_PROBLEMS {
            self.suppressed += 1;
            return None;
        }
        self.logged += 1;
        Some(core::mem::take(&mut self.suppressed))
    }
}

/// Whether an association that shall be deleted is there no more: the peer, or new keys, have deleted it at the same
/// time.
pub(super) fn is_gone_already(what: &str, why: &str) -> bool {
    what.starts_with(TERMINATE) && why == "no matching SAs to terminate found"
}

/// Whether a line is about a problem of a peer or of a message.
pub(super) fn is_problem(text: &str) -> bool {
    PROBLEMS.iter().any(|start| text.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of strongSwan 5.9.8.
    #[test]
    fn associations_that_are_gone_need_not_be_deleted() {
        let gone = "no matching SAs to terminate found";
        assert!(is_gone_already("terminate 2", gone));
        assert!(!is_gone_already("rekey far", gone));
        assert!(!is_gone_already("terminate 2", "another reason"));
    }

    #[test]
    fn problems_that_strangers_cause_are_bounded() {
        let mut problems = Problems::default();
        let at = |second| Time::ZERO + Duration::from_secs(second);
        let allowed = (0..100)
            .filter(|_| problems.allow(at(20)).is_some())
            .count();
        assert_eq!(allowed, 10);
        assert_eq!(problems.allow(at(29)), None);
        assert_eq!(problems.allow(at(30)), Some(91));
        assert_eq!(problems.allow(at(31)), Some(0));
        assert!(is_problem(
            "no IKE config found for 192.0.2.1...192.0.2.9, sending NO_PROPOSAL_CHOSEN"
        ));
        assert!(!is_problem("IKE_SA tunnel-0[1] established"));
        // A name that a stranger has chosen.
        assert!(!is_problem(
            "looking for peer configs matching a[b]...c[giving up after]"
        ));
    }
}
