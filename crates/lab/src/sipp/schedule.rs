//! Due times of calls. As in the rest of the test lab the plan is a pure function of rate and seed; but a call that the
//! limit of open calls delays is made later, not dropped, because users of scenarios expect the full number of calls.
//! The lateness of such calls is recorded apart from the generator's own.

use crate::pace::{ArrivalProcess, Arrivals};
use engine::{Entropy, Time};
use std::time::Duration;

/// Limits of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Calls in total.
    pub total: Option<u64>,
    /// Calls open at a time.
    pub open: Option<u64>,
    /// End of arrivals after the start.
    pub span: Option<Duration>,
}

/// A call to be started now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueCall {
    /// Its due time.
    pub at: Time,
    /// Whether the limit of open calls delayed it.
    pub held_back: bool,
}

/// The share of one thread in a plan.
#[derive(Clone, Debug)]
pub struct Schedule {
    arrivals: Option<Arrivals>,
    limits: CallLimits,
    until: Option<Time>,
    next: Option<Time>,
    calls_started: u64,
    batch: Duration,
    /// Whether calls have been delayed since the plan was last on time.
    full: bool,
}

impl Schedule {
    /// The plan of thread `index` of `threads`: each takes every `threads`-th call of `pace`, and its share of the
    /// limits. Calls that are due within the batching delay `batch` start together.
    pub fn share(
        pace: ArrivalProcess,
        limits: CallLimits,
        start: Time,
        (index, threads): (u64, u64),
        batch: Duration,
        entropy: Entropy,
    ) -> Schedule {
        let part = |total: u64| total / threads + u64::from(index < total % threads);
        let by = threads as f64;
        let (pace, rate) = match pace {
            ArrivalProcess::Constant { rate } => {
                (ArrivalProcess::Constant { rate: rate / by }, rate)
            }
            ArrivalProcess::Poisson { rate } => (ArrivalProcess::Poisson { rate: rate / by }, 0.0),
            ArrivalProcess::Ramp { from, to, over } => (
                ArrivalProcess::Ramp {
                    from: from / by,
                    to: to / by,
                    over,
                },
                from.max(to),
            ),
        };
        // The calls of the threads alternate.
        let offset = match rate > 0.0 {
            true => Duration::try_from_secs_f64(index as f64 / rate).unwrap_or_default(),
            false => Duration::ZERO,
        };
        let limits = CallLimits {
            total: limits.total.map(part),
            open: limits.open.map(|open| part(open).max(1)),
            span: limits.span,
        };
        let mut schedule = Schedule {
            arrivals: Some(Arrivals::new(pace, start + offset, entropy)),
            until: limits.span.map(|span| start + span),
            limits,
            next: None,
            calls_started: 0,
            batch,
            full: false,
        };
        schedule.advance();
        schedule
    }

    /// A plan without due times: calls come from the peer, or follow each other. It ends with the span of its limits.
    pub fn none(limits: CallLimits, start: Time) -> Schedule {
        Schedule {
            arrivals: None,
            until: limits.span.map(|span| start + span),
            limits,
            next: None,
            calls_started: 0,
            batch: Duration::ZERO,
            full: false,
        }
    }

    fn advance(&mut self) {
        let more = self
            .limits
            .total
            .is_none_or(|total| self.calls_started < total);
        self.next = match (&mut self.arrivals, more) {
            (Some(arrivals), true) => arrivals.next(),
            _ => None,
        }
        .filter(|at| self.until.is_none_or(|until| *at < until));
    }

    /// The next call to start at `now`, with `open` calls open.
    pub fn pop(&mut self, now: Time, open: u64) -> Option<DueCall> {
        let at = self.next.filter(|at| *at <= now)?;
        self.note_limit(now, open);
        // Calls that the limit has delayed until the end of the span are not made.
        if self.full && self.until.is_some_and(|until| until <= now) {
            self.stop();
            return None;
        }
        if self.limits.open.is_some_and(|limit| open >= limit) {
            return None;
        }
        let held_back = self.full;
        self.calls_started += 1;
        self.advance();
        // The plan has caught up when the next call is in the future.
        if self.next.is_none_or(|next| next > now) {
            self.full = false;
        }
        Some(DueCall { at, held_back })
    }

    /// Notes that the limit delays the next call, if it is due while so many calls are open.
    pub fn note_limit(&mut self, now: Time, open: u64) {
        let is_due = self.next.is_some_and(|at| at <= now);
        self.full |= is_due && self.limits.open.is_some_and(|limit| open >= limit);
    }

    /// Counts a call outside of the plan.
    pub fn count(&mut self) {
        self.calls_started += 1;
    }

    /// Whether a call outside of the plan may start.
    pub fn may_make(&self) -> bool {
        self.limits
            .total
            .is_none_or(|total| self.calls_started < total)
    }

    /// End of a plan without due times, unless it is over.
    pub fn expires_at(&self) -> Option<Time> {
        let is_open = self.arrivals.is_none() && self.may_make();
        self.until.filter(|_| is_open)
    }

    /// Ends a plan without due times at the end of its span.
    pub fn expire(&mut self, now: Time) {
        if self.expires_at().is_some_and(|until| until <= now) {
            self.stop();
        }
    }

    /// Calls made.
    pub fn calls_started(&self) -> u64 {
        self.calls_started
    }

    /// Time of the next poll, with `open` calls open.
    pub fn next_at(&self, open: u64) -> Option<Time> {
        let at = self.next?;
        if self.limits.open.is_some_and(|limit| open >= limit) {
            return None;
        }
        let batch = self.batch.as_nanos() as u64;
        match batch {
            0 => Some(at),
            // The end of its batch.
            batch => Some(Time(at.0.div_ceil(batch).saturating_mul(batch))),
        }
    }

    /// Whether nothing further is due.
    pub fn is_over(&self) -> bool {
        self.next.is_none()
    }

    /// Cancels further calls.
    pub fn stop(&mut self) {
        self.next = None;
        self.limits.total = Some(self.calls_started);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(
        pace: ArrivalProcess,
        limits: CallLimits,
        share: (u64, u64),
        batch: u64,
    ) -> Schedule {
        Schedule::share(
            pace,
            limits,
            Time::from_secs(1),
            share,
            Duration::from_millis(batch),
            Entropy::from_number(4),
        )
    }

    #[test]
    fn shares_of_the_limit_add_up_to_it() {
        let pace = ArrivalProcess::Constant { rate: 10.0 };
        for limit in 4..=100 {
            let limits = CallLimits {
                open: Some(limit),
                ..CallLimits::default()
            };
            let open = (0..4).filter_map(|index| schedule(pace, limits, (index, 4), 0).limits.open);
            assert_eq!(open.sum::<u64>(), limit);
        }
    }

    #[test]
    fn shares_add_up_to_the_plan() {
        let limits = CallLimits {
            total: Some(10),
            ..CallLimits::default()
        };
        let pace = ArrivalProcess::Constant { rate: 10.0 };
        let mut times: Vec<u64> = (0..3)
            .flat_map(|index| {
                let mut share = schedule(pace, limits, (index, 3), 0);
                std::iter::from_fn(move || share.pop(Time::NEVER, 0))
            })
            .map(|due| due.at.as_millis())
            .collect();
        times.sort_unstable();
        let wanted: Vec<u64> = (0..10).map(|number| 1_000 + number * 100).collect();
        assert_eq!(times, wanted);
    }

    #[test]
    fn calls_over_the_limit_are_delayed_and_marked() {
        let limits = CallLimits {
            open: Some(1),
            total: Some(5),
            span: None,
        };
        let mut plan = schedule(ArrivalProcess::Constant { rate: 10.0 }, limits, (0, 1), 0);
        let first = plan.pop(Time::from_millis(1_000), 0).unwrap();
        assert!(!first.held_back);
        assert_eq!(plan.next_at(0), Some(Time::from_millis(1_100)));
        assert_eq!(plan.pop(Time::from_millis(1_250), 1), None);
        assert_eq!(plan.next_at(1), None);
        let late = plan.pop(Time::from_millis(1_350), 0).unwrap();
        assert_eq!((late.at.as_millis(), late.held_back), (1_100, true));
        assert!(plan.pop(Time::from_millis(1_350), 0).unwrap().held_back);
        assert!(plan.pop(Time::from_millis(1_350), 0).unwrap().held_back);
        let last = plan.pop(Time::from_millis(1_400), 0).unwrap();
        assert_eq!((last.at.as_millis(), last.held_back), (1_400, false));
        assert!(plan.is_over() && plan.calls_started() == 5);
    }

    #[test]
    fn batches_and_spans() {
        let limits = CallLimits {
            span: Some(Duration::from_millis(10)),
            ..CallLimits::default()
        };
        let mut plan = schedule(
            ArrivalProcess::Constant { rate: 1_000.0 },
            limits,
            (0, 1),
            4,
        );
        assert_eq!(plan.next_at(0), Some(Time::from_millis(1_000)));
        let count = std::iter::from_fn(|| plan.pop(Time::from_millis(1_001), 0)).count();
        assert_eq!(
            (count, plan.next_at(0)),
            (2, Some(Time::from_millis(1_004)))
        );
        let count = std::iter::from_fn(|| plan.pop(Time::NEVER, 0)).count();
        assert_eq!(count, 8);
        let mut stopped = schedule(
            ArrivalProcess::Constant { rate: 1_000.0 },
            limits,
            (0, 1),
            4,
        );
        stopped.stop();
        assert_eq!(stopped.pop(Time::NEVER, 0), None);
        assert!(!stopped.may_make());
        // Without due times.
        let mut open = Schedule::none(limits, Time::from_secs(1));
        open.expire(Time::from_millis(1_009));
        assert!(open.may_make());
        assert_eq!(open.expires_at(), Some(Time::from_millis(1_010)));
        open.expire(Time::from_millis(1_010));
        assert!(!open.may_make() && open.expires_at().is_none());
    }
}
