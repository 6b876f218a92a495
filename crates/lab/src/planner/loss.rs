//! Check of the traffic formulas by a simulation in virtual time: calls arrive, find a line or not, and end.

use super::erlang::erlang_b;
use engine::Entropy;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most arrivals that are simulated.
const MOST_ARRIVALS: u64 = 20_000_000;

/// Hold times that a simulation needs to show the blocking.
pub(super) const HOLD_TIMES: f64 = 10.0;

/// Result of the simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossCheck {
    /// Lines.
    pub lines: u64,
    /// Virtual seconds that were measured, after a warm-up of five hold times.
    pub seconds: f64,
    /// Calls that arrived in this time.
    pub arrived: u64,
    /// Calls of these that found no line.
    pub blocked: u64,
    /// Mean number of standing calls.
    pub mean_calls: f64,
    /// Largest number.
    pub most_calls: u64,
    /// Share of blocked calls by Erlang B.
    pub formula_blocking: f64,
    /// Share of blocked calls in the simulation.
    pub blocking: f64,
    /// The simulation ended early, because it had simulated the most calls.
    pub cut_short: bool,
    /// At least [`HOLD_TIMES`] hold times were measured: in less time the number of standing calls hardly changes, and
    /// the blocking is that of its value at the beginning.
    pub shows_blocking: bool,
}

/// Simulates `lines` lines with Poisson arrivals of `rate` calls per second and exponential hold times of mean
/// `hold_s`, for a warm-up of five hold times and then `seconds`. The same seed gives the same result.
pub fn simulate_loss(lines: u64, rate: f64, hold_s: f64, (seconds, seed): (f64, u64)) -> LossCheck {
    let mut entropy = Entropy::from_number(seed);
    let begin = 5.0 * hold_s;
    let end = begin + seconds;
    // Times in nanoseconds, which have an order.
    let mut ends: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let ns = |time: f64| (time * 1e9) as u64;
    let (mut now, mut total) = (0.0, 0u64);
    let (mut arrived, mut blocked, mut most) = (0u64, 0u64, 0u64);
    let (mut call_seconds, mut last) = (0.0, begin);
    let mut cut_short = false;
    loop {
        // Without arrivals the next one is beyond the end.
        let next = match rate > 0.0 {
            true => now + entropy.exponential(1.0 / rate),
            false => f64::INFINITY,
        };
        let stop = next.min(end);
        while let Some(Reverse(at)) = ends.peek().copied().filter(|Reverse(at)| *at <= ns(stop)) {
            let at = at as f64 / 1e9;
            if at > begin {
                call_seconds += ends.len() as f64 * (at - last);
                last = at;
            }
            ends.pop();
        }
        if stop > begin {
            call_seconds += ends.len() as f64 * (stop - last);
            last = stop;
        }
        if next >= end {
            break;
        }
        now = next;
        total += 1;
        if total > MOST_ARRIVALS {
            cut_short = true;
            break;
        }
        let free = (ends.len() as u64) < lines;
        if now > begin {
            arrived += 1;
            blocked += u64::from(!free);
        }
        if free {
            ends.push(Reverse(ns(now + entropy.exponential(hold_s))));
            if now > begin {
                most = most.max(ends.len() as u64);
            }
        }
    }
    let measured = (last - begin).max(0.0);
    LossCheck {
        lines,
        seconds: measured,
        arrived,
        blocked,
        mean_calls: if measured > 0.0 {
            call_seconds / measured
        } else {
            0.0
        },
        most_calls: most,
        formula_blocking: erlang_b(lines, rate * hold_s),
        blocking: if arrived > 0 {
            blocked as f64 / arrived as f64
        } else {
            0.0
        },
        cut_short,
        // Rounding of the times does not count.
        shows_blocking: measured + 1e-6 >= HOLD_TIMES * hold_s,
    }
}
