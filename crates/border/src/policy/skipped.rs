//! Trunks of a route that a call is not sent to, with the reasons.

use config::TrunkId;
use core::fmt;
use engine::Reason;

/// A trunk that gets no INVITE of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedTrunk {
    /// The trunk.
    pub trunk: TrunkId,
    /// The reason.
    pub reason: SkipReason,
}

/// The reason for skipping a trunk, with the values that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The operator has taken it out of service.
    OutOfService,
    /// It has as many calls as `max_calls` allows.
    Full {
        /// Its calls.
        calls: u32,
        /// The limit.
        max_calls: u32,
    },
    /// It has got as many calls in a second as `max_calls_per_s` allows.
    Rate {
        /// The limit.
        max_calls_per_s: u32,
    },
    /// Its targets that answer ask for fewer calls (RFC 7339), and this one is beyond their shares.
    Overloaded,
    /// None of its targets answers OPTIONS.
    Down {
        /// Number of its targets.
        targets: usize,
    },
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SkipReason::OutOfService => f.write_str("out of service"),
            SkipReason::Full { calls, max_calls } => {
                write!(
                    f,
                    "call limit reached: {calls} calls, max_calls {max_calls}"
                )
            }
            SkipReason::Rate { max_calls_per_s } => {
                write!(f, "call rate reached: max_calls_per_s {max_calls_per_s}")
            }
            SkipReason::Overloaded => f.write_str("overload control rejects the call"),
            SkipReason::Down { targets } => write!(f, "down: none of {targets} targets answers"),
        }
    }
}

/// Reason and Retry-After of a call without any other trunk.
pub(super) fn refusal(skipped: &[SkippedTrunk]) -> (Reason, Option<u32>) {
    let any = |test: fn(&SkipReason) -> bool| skipped.iter().any(|one| test(&one.reason));
    // The caller should try other systems; the Retry-After of our trunk does not concern it (RFC 7339 section 5.10.2).
    if any(|reason| *reason == SkipReason::Overloaded) {
        (Reason::OverloadOfTrunks, None)
    } else if any(|reason| matches!(reason, SkipReason::Full { .. })) {
        (Reason::TrunksFull, Some(5))
    } else if any(|reason| matches!(reason, SkipReason::Down { .. })) || skipped.is_empty() {
        (Reason::TrunksDown, Some(30))
    } else {
        (Reason::TrunksOutOfService, Some(30))
    }
}
