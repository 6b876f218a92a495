//! When calls are due. As everywhere in the laboratory the plan is a pure function of rate and seed; but a call that the limit
//! of open calls holds back is made later, not given up, because a scenario's user counts on his number of calls. How late
//! such calls are stands apart from the generator's own lateness.

use crate::pace::{Arrivals, Pace};
use engine::{Entropy, Time};
use std::time::Duration;

/// What limits the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Calls in total.
    pub total: Option<u64>,
    /// Calls open at a time.
    pub open: Option<u64>,
    /// Seconds after the start at which no call is due any more.
    pub span: Option<Duration>,
}

/// A call that is to be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When it was due.
    pub at: Time,
    /// The limit of open calls held it back.
    pub held_back: bool,
}

/// The share of one thread in a plan.
#[derive(Clone, Debug)]
pub struct Schedule {
    arrivals: Option<Arrivals>,
    limits: Limits,
    until: Option<Time>,
    next: Option<Time>,
    made: u64,
    batch: Duration,
    /// Calls were kept waiting since this moment.
    full: bool,
}

impl Schedule {
    /// The plan of thread `index` of `threads`: each takes every `threads`-th call of `pace`, and its share of the limits.
    /// Calls that are due within `batch` of each other are made together.
    pub fn share(
        pace: Pace,
        limits: Limits,
        start: Time,
        (index, threads): (u64, u64),
        batch: Duration,
        entropy: Entropy,
    ) -> Schedule {
        let part = |total: u64| total / threads + u64::from(index < total % threads);
        let by = threads as f64;
        let (pace, rate) = match pace {
            Pace::Constant { rate } => (Pace::Constant { rate: rate / by }, rate),
            Pace::Poisson { rate } => (Pace::Poisson { rate: rate / by }, 0.0),
            Pace::Ramp { from, to, over } => (
                Pace::Ramp {
                    from: from / by,
                    to: to / by,
                    over,
                },
                from.max(to),
            ),
        };
        // The threads' calls lie between each other's.
        let offset = match rate > 0.0 {
            true => Duration::try_from_secs_f64(index as f64 / rate).unwrap_or_default(),
            false => Duration::ZERO,
        };
        let limits = Limits {
            total: limits.total.map(part),
            open: limits.open.map(|open| part(open).max(1)),
            span: limits.span,
        };
        let mut schedule = Schedule {
            arrivals: Some(Arrivals::new(pace, start + offset, entropy)),
            until: limits.span.map(|span| start + span),
            limits,
            next: None,
            made: 0,
            batch,
            full: false,
        };
        schedule.advance();
        schedule
    }

    /// Nothing is ever due by time: calls come from the peer, or follow each other.
    pub fn none(limits: Limits) -> Schedule {
        Schedule {
            arrivals: None,
            until: None,
            limits,
            next: None,
            made: 0,
            batch: Duration::ZERO,
            full: false,
        }
    }

    fn advance(&mut self) {
        let more = self.limits.total.is_none_or(|total| self.made < total);
        self.next = match (&mut self.arrivals, more) {
            (Some(arrivals), true) => arrivals.next(),
            _ => None,
        }
        .filter(|at| self.until.is_none_or(|until| *at < until));
    }

    /// The next call to be made at `now`, where `open` are open.
    pub fn pop(&mut self, now: Time, open: u64) -> Option<Due> {
        let at = self.next.filter(|at| *at <= now)?;
        if self.limits.open.is_some_and(|limit| open >= limit) {
            self.full = true;
            return None;
        }
        let held_back = self.full;
        self.made += 1;
        self.advance();
        // The plan has caught up when the next call lies ahead.
        if self.next.is_none_or(|next| next > now) {
            self.full = false;
        }
        Some(Due { at, held_back })
    }

    /// A call was made that is not of the plan.
    pub fn count(&mut self) {
        self.made += 1;
    }

    /// Whether a call that is not of the plan may be made.
    pub fn may_make(&self) -> bool {
        self.limits.total.is_none_or(|total| self.made < total)
    }

    /// Calls made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// When to ask again; with `open` calls open.
    pub fn next_at(&self, open: u64) -> Option<Time> {
        let at = self.next?;
        if self.limits.open.is_some_and(|limit| open >= limit) {
            return None;
        }
        let batch = self.batch.as_nanos() as u64;
        match batch {
            0 => Some(at),
            // The end of the batch in which it lies.
            batch => Some(Time(at.0.div_ceil(batch).saturating_mul(batch))),
        }
    }

    /// Nothing further is due.
    pub fn is_over(&self) -> bool {
        self.next.is_none()
    }

    /// No further calls.
    pub fn stop(&mut self) {
        self.next = None;
        self.limits.total = Some(self.made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(pace: Pace, limits: Limits, share: (u64, u64), batch: u64) -> Schedule {
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
    fn shares_make_the_whole() {
        let limits = Limits {
            total: Some(10),
            ..Limits::default()
        };
        let pace = Pace::Constant { rate: 10.0 };
        let mut times: Vec<u64> = (0..3)
            .flat_map(|index| {
                let mut share = schedule(pace, limits, (index, 3), 0);
                std::iter::from_fn(move || share.pop(Time::FAR, 0))
            })
            .map(|due| due.at.as_millis())
            .collect();
        times.sort_unstable();
        let wanted: Vec<u64> = (0..10).map(|number| 1_000 + number * 100).collect();
        assert_eq!(times, wanted);
    }

    #[test]
    fn the_limit_holds_back_and_says_so() {
        let limits = Limits {
            open: Some(1),
            total: Some(5),
            span: None,
        };
        let mut plan = schedule(Pace::Constant { rate: 10.0 }, limits, (0, 1), 0);
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
        assert!(plan.is_over() && plan.made() == 5);
    }

    #[test]
    fn batches_and_spans() {
        let limits = Limits {
            span: Some(Duration::from_millis(10)),
            ..Limits::default()
        };
        let mut plan = schedule(Pace::Constant { rate: 1_000.0 }, limits, (0, 1), 4);
        assert_eq!(plan.next_at(0), Some(Time::from_millis(1_000)));
        let count = std::iter::from_fn(|| plan.pop(Time::from_millis(1_001), 0)).count();
        assert_eq!(
            (count, plan.next_at(0)),
            (2, Some(Time::from_millis(1_004)))
        );
        let count = std::iter::from_fn(|| plan.pop(Time::FAR, 0)).count();
        assert_eq!(count, 8);
        let mut stopped = schedule(Pace::Constant { rate: 1_000.0 }, limits, (0, 1), 4);
        stopped.stop();
        assert_eq!(stopped.pop(Time::FAR, 0), None);
        assert!(!stopped.may_make());
    }
}
