//! Pacing: due times of attempts, on an absolute timeline.
//!
//! Due times are a pure function of the plan and the seed; the course of a run never moves them. A generator that falls
//! behind starts late and records it. An attempt that may not start (a limit is reached) is counted and dropped, never
//! postponed: postponed attempts would hide the slowness of the SUT (coordinated omission).

use engine::{Entropy, Time};
use std::time::Duration;

/// Arrival process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalProcess {
    /// The n-th attempt at n / rate.
    Constant {
        /// Attempts per second.
        rate: f64,
    },
    /// The rate changes linearly from `from` to `to` within `over`, and stays there.
    Ramp {
        /// Attempts per second at the start.
        from: f64,
        /// Attempts per second at the end.
        to: f64,
        /// Seconds.
        over: f64,
    },
    /// Exponentially distributed gaps with the mean 1 / rate.
    Poisson {
        /// Attempts per second.
        rate: f64,
    },
}

impl ArrivalProcess {
    /// Seconds after the start at which the attempt `n` (from 0) is due; `None` for a process that never reaches it,
    /// and for [`ArrivalProcess::Poisson`], which is drawn.
    fn at(self, n: u64) -> Option<f64> {
        let n = n as f64;
        match self {
            ArrivalProcess::Constant { rate } => (rate > 0.0).then(|| n / rate),
            ArrivalProcess::Ramp { from, to, over } => {
                ramp_time(from.max(0.0), to.max(0.0), over, n)
            }
            ArrivalProcess::Poisson { .. } => None,
        }
    }
}

/// Solves from t + (to - from) t^2 / (2 over) = n, with the rate `to` after `over`.
fn ramp_time(from: f64, to: f64, over: f64, n: f64) -> Option<f64> {
    let in_ramp = (from + to) / 2.0 * over;
    if over <= 0.0 || n > in_ramp {
        return (to > 0.0).then(|| over.max(0.0) + (n - in_ramp.max(0.0)) / to);
    }
    let slope = (to - from) / over;
    if slope == 0.0 {
        return (from > 0.0).then(|| n / from);
    }
    // The stable form of the quadratic's solution: no cancellation for small slopes.
    let root = (from * from + 2.0 * slope * n).max(0.0).sqrt();
    let sum = from + root;
    Some(if sum > 0.0 { 2.0 * n / sum } else { 0.0 })
}

/// The due times of an [`ArrivalProcess`], in order, without end.
#[derive(Clone, Debug)]
pub struct Arrivals {
    pace: ArrivalProcess,
    entropy: Entropy,
    start: Time,
    count: u64,
    drawn: f64,
}

impl Arrivals {
    /// Attempts from `start` on. `entropy` is used by [`ArrivalProcess::Poisson`] only.
    pub fn new(pace: ArrivalProcess, start: Time, entropy: Entropy) -> Arrivals {
        Arrivals {
            pace,
            entropy,
            start,
            count: 0,
            drawn: 0.0,
        }
    }
}

impl Iterator for Arrivals {
    type Item = Time;

    fn next(&mut self) -> Option<Time> {
        let seconds = match self.pace {
            ArrivalProcess::Poisson { rate } if rate > 0.0 => {
                self.drawn += self.entropy.exponential(1.0 / rate);
                self.drawn
            }
            ArrivalProcess::Poisson { .. } => return None,
            pace => pace.at(self.count)?,
        };
        self.count += 1;
        Some(self.start + Duration::try_from_secs_f64(seconds).ok()?)
    }
}

/// Limits on starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Attempts in total; `None`: until `until`.
    pub total: Option<u64>,
    /// Attempts open at a time; one that is due while as many are open could not start.
    pub open: Option<u64>,
    /// No attempt is due at or after this time.
    pub until: Option<Time>,
}

/// An attempt that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Its number, from 0.
    pub number: u64,
    /// When it was due.
    pub at: Time,
    /// Whether it may start; if not, it counts as one that could not.
    pub may_start: bool,
}

/// The attempts of one of several generators that execute a plan together: every `count`-th from `index` on. Due times
/// and numbers are those of the whole plan, so that together they act as one generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanShare {
    /// Index of the generator, from 0.
    pub index: u64,
    /// Number of generators.
    pub count: u64,
}

impl PlanShare {
    /// A single generator.
    pub const ALL: PlanShare = PlanShare { index: 0, count: 1 };

    /// Its part of a limit: the parts add up to the limit.
    pub fn of(self, limit: u64) -> u64 {
        limit / self.count + u64::from(self.index < limit % self.count)
    }

    /// Whether the attempt with this number is its own.
    pub fn has(self, number: u64) -> bool {
        number % self.count == self.index
    }
}

/// A plan of attempts: arrivals, and limits on them.
#[derive(Clone, Debug)]
pub struct AttemptSchedule {
    arrivals: Arrivals,
    bounds: Bounds,
    share: PlanShare,
    next: Option<Time>,
    number: u64,
    open: u64,
    peak: u64,
}

impl AttemptSchedule {
    /// A plan.
    pub fn new(arrivals: Arrivals, bounds: Bounds) -> AttemptSchedule {
        AttemptSchedule::shared(arrivals, bounds, PlanShare::ALL)
    }

    /// One generator's share of a plan; each has its part of the limit of open attempts.
    pub fn shared(arrivals: Arrivals, bounds: Bounds, share: PlanShare) -> AttemptSchedule {
        let bounds = Bounds {
            open: bounds.open.map(|limit| share.of(limit)),
            ..bounds
        };
        let mut plan = AttemptSchedule {
            arrivals,
            bounds,
            share,
            next: None,
            number: 0,
            open: 0,
            peak: 0,
        };
        plan.advance();
        plan
    }

    fn advance(&mut self) {
        loop {
            let full = self.bounds.total.is_some_and(|total| self.number >= total);
            self.next = if full { None } else { self.arrivals.next() }
                .filter(|at| self.bounds.until.is_none_or(|until| *at < until));
            if self.next.is_none() || self.share.has(self.number) {
                return;
            }
            // An attempt of another generator is skipped; numbers and times stay the same for all.
            self.number += 1;
        }
    }

    /// The next attempt that is due at `now`. If it may start, it counts as open until [`AttemptSchedule::closed`].
    pub fn pop_due(&mut self, now: Time) -> Option<Due> {
        let at = self.next.filter(|at| *at <= now)?;
        let number = self.number;
        self.number += 1;
        self.advance();
        let may_start = self.bounds.open.is_none_or(|limit| self.open < limit);
        if may_start {
            self.open += 1;
            self.peak = self.peak.max(self.open);
        }
        Some(Due {
            number,
            at,
            may_start,
        })
    }

    /// A started attempt has its outcome.
    pub fn closed(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// Due time of the next attempt; `None` at the end.
    pub fn next_at(&self) -> Option<Time> {
        self.next
    }

    /// Attempts that are open.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// The highest number of attempts open at a time.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Attempts of the whole plan that have been due.
    pub fn count(&self) -> u64 {
        self.number
    }

    /// Whether nothing further is due and nothing is open.
    pub fn is_done(&self) -> bool {
        self.next.is_none() && self.open == 0
    }

    /// Cancels all further attempts.
    pub fn stop(&mut self) {
        self.next = None;
        self.bounds.total = Some(self.number);
    }
}

/// Distribution of the hold time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HoldTime {
    /// Constant, seconds.
    Fixed(f64),
    /// Exponentially distributed, with this mean, seconds.
    Exponential(f64),
}

impl HoldTime {
    /// The hold time of one call.
    pub fn draw(self, entropy: &mut Entropy) -> Duration {
        let seconds = match self {
            HoldTime::Fixed(seconds) => seconds,
            HoldTime::Exponential(mean) => entropy.exponential(mean),
        };
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(pace: ArrivalProcess, count: usize) -> Vec<f64> {
        Arrivals::new(pace, Time::from_secs(5), Entropy::from_number(7))
            .take(count)
            .map(|at| at.since(Time::from_secs(5)).as_secs_f64())
            .collect()
    }

    #[test]
    fn generators_share_one_plan() {
        for pace in [
            ArrivalProcess::Constant { rate: 30.0 },
            ArrivalProcess::Poisson { rate: 30.0 },
        ] {
            let plan = |share| {
                let arrivals = Arrivals::new(pace, Time::from_secs(5), Entropy::from_number(7));
                let bounds = Bounds {
                    total: Some(101),
                    open: Some(10),
                    until: None,
                };
                AttemptSchedule::shared(arrivals, bounds, share)
            };
            let all = |mut plan: AttemptSchedule| {
                let mut dues = Vec::new();
                let mut open = 0;
                while let Some(due) = plan.pop_due(Time::from_secs(1_000)) {
                    open += u64::from(due.may_start);
                    dues.push((due.number, due.at));
                }
                (dues, open)
            };
            let (alone, open) = all(plan(PlanShare::ALL));
            assert_eq!((alone.len(), open), (101, 10));
            let mut together = Vec::new();
            let mut opened = Vec::new();
            for index in 0..3 {
                let (dues, open) = all(plan(PlanShare { index, count: 3 }));
                together.extend(dues);
                opened.push(open);
            }
            together.sort_unstable();
            assert_eq!(together, alone);
            assert_eq!(opened, [4, 3, 3], "the limit is divided");
        }
    }

    #[test]
    fn constant_rate_does_not_drift() {
        let pace = ArrivalProcess::Constant { rate: 30.0 };
        let all = times(pace, 3_000_001);
        assert_eq!(all[0], 0.0);
        assert!((all[3_000_000] - 100_000.0).abs() < 1e-6);
        assert_eq!(
            times(ArrivalProcess::Constant { rate: 0.0 }, 5),
            Vec::<f64>::new()
        );
    }

    #[test]
    fn ramp_has_the_number_of_its_integral() {
        let pace = ArrivalProcess::Ramp {
            from: 0.0,
            to: 20.0,
            over: 10.0,
        };
        let all = times(pace, 301);
        // 100 within the ramp, 20 a second after it.
        assert!((all[100] - 10.0).abs() < 1e-9);
        assert!((all[25] - 5.0).abs() < 1e-9);
        assert!((all[300] - 20.0).abs() < 1e-9);
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]));
        let down = ArrivalProcess::Ramp {
            from: 10.0,
            to: 0.0,
            over: 2.0,
        };
        let all = times(down, 100);
        assert_eq!(all.len(), 11, "ten calls and the first at zero: {all:?}");
    }

    #[test]
    fn poisson_gaps_have_mean_and_spread() {
        let all = times(ArrivalProcess::Poisson { rate: 100.0 }, 20_001);
        let gaps: Vec<f64> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.01).abs() < 0.0003, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
        assert_eq!(all, times(ArrivalProcess::Poisson { rate: 100.0 }, 20_001));
    }

    #[test]
    fn attempts_over_the_limit_are_counted_not_postponed() {
        let arrivals = Arrivals::new(
            ArrivalProcess::Constant { rate: 10.0 },
            Time::ZERO,
            Entropy::from_number(1),
        );
        let bounds = Bounds {
            total: Some(5),
            open: Some(2),
            until: None,
        };
        let mut plan = AttemptSchedule::new(arrivals, bounds);
        let due: Vec<Due> = std::iter::from_fn(|| plan.pop_due(Time::from_millis(350))).collect();
        let may: Vec<bool> = due.iter().map(|due| due.may_start).collect();
        assert_eq!(may, [true, true, false, false]);
        assert_eq!(due[3].at, Time::from_millis(300));
        plan.closed();
        let last = plan.pop_due(Time::from_secs(9)).unwrap();
        assert!(last.may_start && last.number == 4 && last.at == Time::from_millis(400));
        assert_eq!((plan.pop_due(Time::from_secs(99)), plan.peak()), (None, 2));
        plan.closed();
        plan.closed();
        assert!(plan.is_done());
    }

    #[test]
    fn arrivals_end_at_until() {
        let arrivals = Arrivals::new(
            ArrivalProcess::Constant { rate: 10.0 },
            Time::ZERO,
            Entropy::from_number(1),
        );
        let bounds = Bounds {
            until: Some(Time::from_secs(1)),
            ..Bounds::default()
        };
        let mut plan = AttemptSchedule::new(arrivals, bounds);
        let count = std::iter::from_fn(|| plan.pop_due(Time::NEVER)).count();
        assert_eq!(count, 10);
    }

    #[test]
    fn hold_times() {
        let mut entropy = Entropy::from_number(3);
        assert_eq!(
            HoldTime::Fixed(1.5).draw(&mut entropy),
            Duration::from_millis(1500)
        );
        let mean = (0..10_000)
            .map(|_| HoldTime::Exponential(2.0).draw(&mut entropy).as_secs_f64())
            .sum::<f64>()
            / 10_000.0;
        assert!((mean - 2.0).abs() < 0.06);
    }
}
