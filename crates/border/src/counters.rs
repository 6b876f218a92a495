//! Counters of the border.

/// Declares the outcomes once: enum, labels of metrics, and their reference.
macro_rules! outcomes {
    ($count:literal $($(#[doc = $text:literal])* $variant:ident $name:literal)*) => {
        /// How a call ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CallOutcome {
            $($(#[doc = $text])* $variant,)*
        }

        impl CallOutcome {
            /// Labels of metrics, in the order of declaration.
            pub const NAMES: [&'static str; $count] = [$($name,)*];
            /// Labels with their meanings.
            pub const REFERENCE: [(&'static str, &'static str); $count] =
                [$(($name, concat!($($text),*)),)*];
        }
    };
}

outcomes! { 7
    /// Answered, whichever side ended it.
    Completed "completed"
    /// Cancelled by the caller before an answer.
    Cancelled "cancelled"
    /// Declined by the callee: 486, 600, 603.
    Declined "declined"
    /// Not answered: 408, 480, 487.
    Unanswered "unanswered"
    /// Refused by the border or the target: all other statuses from 400 to 499, and from 604 to 699.
    Refused "refused"
    /// Redirected: 300 to 399.
    Redirected "redirected"
    /// Failed: 500 to 599, 601, 602.
    Failed "failed"
}

impl CallOutcome {
    /// The outcome of an unanswered call by its final status.
    pub fn of(status: u16) -> CallOutcome {
        match status {
            200..=299 => CallOutcome::Completed,
            300..=399 => CallOutcome::Redirected,
            486 | 600 | 603 => CallOutcome::Declined,
            408 | 480 | 487 => CallOutcome::Unanswered,
            400..=499 | 604..=699 => CallOutcome::Refused,
            _ => CallOutcome::Failed,
        }
    }
}

/// Counters since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BorderCounters {
    /// Calls received.
    pub offered: u64,
    /// Calls answered.
    pub answered: u64,
    /// Answered calls that have ended.
    pub completed: u64,
    /// Calls cancelled by the caller.
    pub cancelled: u64,
    /// Calls declined by the callee.
    pub declined: u64,
    /// Calls without answer.
    pub unanswered: u64,
    /// Calls refused by us or the target (4xx, 6xx).
    pub refused: u64,
    /// Calls redirected.
    pub redirected: u64,
    /// Calls that failed (5xx).
    pub failed: u64,
    /// Calls ended because their media stopped.
    pub media_timeouts: u64,
    /// Calls or media lines refused for lack of ports.
    pub ports_exhausted: u64,
    /// Media port pairs that other programs held in part or whole, and that calls replaced.
    pub ports_taken: u64,
    /// Media sessions with final statistics.
    pub media_sessions_ended: u64,
    /// Forwarded out-of-dialog requests.
    pub relayed: u64,
    /// Calls and registrations refused by rate limits.
    pub shielded: u64,
    /// Requests with wrong credentials, and requests during the lockout that follows them.
    pub authentication_failed: u64,
    /// Requests refused because of the queueing delay.
    pub shed: u64,
    /// New calls dropped unread because of the limit of refusals.
    pub unread: u64,
    /// Calls refused by admission control.
    pub not_admitted: u64,
    /// REGISTERs confirmed without the core, because it was unreachable.
    pub refreshed: u64,
    /// Wrong PINs entered in conferences.
    pub pins_wrong: u64,
    /// Calls to conferences that ended without the right PIN.
    pub pins_refused: u64,
    /// Accepted subscriptions and out-of-dialog REFERs.
    pub subscriptions: u64,
}

impl BorderCounters {
    /// Adds the counters of another worker.
    pub fn merge(&mut self, other: &BorderCounters) {
        for (mine, theirs) in self.all_mut().into_iter().zip(other.clone().all_mut()) {
            *mine += *theirs;
        }
    }

    fn all_mut(&mut self) -> [&mut u64; 23] {
        [
            &mut self.offered,
            &mut self.answered,
            &mut self.completed,
            &mut self.cancelled,
            &mut self.declined,
            &mut self.unanswered,
            &mut self.refused,
            &mut self.redirected,
            &mut self.failed,
            &mut self.media_timeouts,
            &mut self.ports_exhausted,
            &mut self.ports_taken,
            &mut self.media_sessions_ended,
            &mut self.relayed,
            &mut self.shielded,
            &mut self.authentication_failed,
            &mut self.shed,
            &mut self.unread,
            &mut self.not_admitted,
            &mut self.refreshed,
            &mut self.pins_wrong,
            &mut self.pins_refused,
            &mut self.subscriptions,
        ]
    }

    pub(crate) fn count(&mut self, outcome: CallOutcome) {
        *match outcome {
            CallOutcome::Completed => &mut self.completed,
            CallOutcome::Cancelled => &mut self.cancelled,
            CallOutcome::Declined => &mut self.declined,
            CallOutcome::Unanswered => &mut self.unanswered,
            CallOutcome::Refused => &mut self.refused,
            CallOutcome::Redirected => &mut self.redirected,
            CallOutcome::Failed => &mut self.failed,
        } += 1;
    }
}
