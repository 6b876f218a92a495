//! The cost of a call, registration or packet over the load of a thread, from measured points.
//!
//! A busy thread takes several messages at a time, so that each costs less. Between two points two things are known
//! of the CPU time of a thread: it does not fall with the load, and that of one call does not rise. So it is at most
//! that of as many calls at the cost of the lower point, and at most that at the higher point; and at least that at
//! the lower point, and that of as many calls at the cost of the higher point. These bounds are the ends of the
//! interval, and their geometric mean is the value. A straight line (a fixed part and one for each call) lies too
//! low: most of the fall comes in a narrow range of loads. Beyond the points the cost of the nearest one is kept: it
//! may be lower at a higher load, but was not measured.

use super::costs::Cost;
use super::estimate::{Estimate, IntervalEnd};
use crate::decimal::plain;
use std::ops::Range;

/// Least growth of the CPU time of a thread from one point to the next, as a share.
const LEAST_GROWTH: f64 = 1e-6;
/// Least cost, microseconds: nothing has no logarithm.
const LEAST_COST: f64 = 1e-6;
/// Least ratio of the load of a turn to those beside it: closer ones are the same one.
const NEXT_LOAD: f64 = 1.001;
/// Most halvings of the interval of a busy share.
const HALVINGS: u32 = 200;

/// A point of one end of the interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Knot {
    /// Calls, registrations or packets a second at one thread.
    load: f64,
    /// Busy share of the thread.
    busy: f64,
}

impl Knot {
    /// CPU time of one call, registration or packet, microseconds.
    fn each(self) -> f64 {
        self.busy / self.load * 1e6
    }
}

/// A cost over the load of a thread.
#[derive(Clone, Debug, PartialEq)]
pub struct CostCurve {
    /// The points in the order of their loads; a single one may have none.
    points: Vec<Cost>,
    /// The CPU time of a thread over its load for lower end, value and upper end, in parts that are straight between
    /// logarithms; empty for a single point, whose cost is taken at every load.
    paths: [Vec<Knot>; 3],
}

impl CostCurve {
    /// The curve through these points; `None` without any.
    pub(super) fn new(mut points: Vec<Cost>) -> Option<CostCurve> {
        points.sort_by(|a, b| a.load.unwrap_or(0.0).total_cmp(&b.load.unwrap_or(0.0)));
        let paths = match points.len() {
            0 => return None,
            1 => [const { Vec::new() }; 3],
            _ => [IntervalEnd::Low, IntervalEnd::Value, IntervalEnd::High]
                .map(|end| path(&knots(&points, end), end)),
        };
        Some(CostCurve { points, paths })
    }

    /// The points, in the order of their loads.
    pub fn points(&self) -> &[Cost] {
        &self.points
    }

    /// The cost on a thread that is busy to this share, microseconds.
    pub fn at_busy(&self, busy: f64) -> Estimate {
        Estimate::each(|end| self.end_at(end, busy))
    }

    /// The value or an end of the cost on a thread that is busy to this share.
    pub(super) fn end_at(&self, end: IntervalEnd, busy: f64) -> f64 {
        let path = match end {
            IntervalEnd::Low => &self.paths[0],
            IntervalEnd::Value => &self.paths[1],
            IntervalEnd::High => &self.paths[2],
        };
        let (Some(first), Some(last)) = (path.first(), path.last()) else {
            let only = self.points.first();
            return only.map_or(0.0, |point| point.estimate().at(end));
        };
        if busy <= first.busy {
            return first.each();
        }
        let between = path.windows(2).find_map(|pair| match pair {
            [from, to] if busy <= to.busy => Some((from, to)),
            _ => None,
        });
        let Some((from, to)) = between else {
            return last.each();
        };
        let part = (busy / from.busy).ln() / (to.busy / from.busy).ln();
        busy / (from.load * (to.load / from.load).powf(part)) * 1e6
    }

    /// The source of the cost on a thread that is busy to this share, in words.
    pub(super) fn source(&self, busy: f64) -> String {
        let (place, used) = match self.points.as_slice() {
            [only] => match only.load {
                Some(load) => (
                    format!(
                        "measured at {}/s of a thread alone, and taken for every load",
                        plain(load)
                    ),
                    0..1,
                ),
                None => ("taken for every load".to_owned(), 0..1),
            },
            _ => self.place(busy),
        };
        let origins = self.points.get(used).unwrap_or_default().iter();
        let origins: Vec<&str> = origins.map(|of| of.origin.as_str()).collect();
        format!("{place}; {}", origins.join("; "))
    }

    /// The place of a busy share among several points, in words, and the points that give the cost there.
    fn place(&self, busy: f64) -> (String, Range<usize>) {
        let knots = knots(&self.points, IntervalEnd::Value);
        let point = |knot: &Knot| {
            format!(
                "{} us at {}/s of a thread ({} % busy)",
                plain(knot.each()),
                plain(knot.load),
                plain(knot.busy * 100.0)
            )
        };
        let at = |place: usize| knots.get(place).map_or(String::new(), point);
        match knots.iter().position(|knot| busy <= knot.busy) {
            Some(0) => (
                format!(
                    "that of the lowest load measured, {}, not extrapolated",
                    at(0)
                ),
                0..1,
            ),
            Some(next) => (
                format!("between {} and {}", at(next - 1), at(next)),
                next - 1..next + 1,
            ),
            None => {
                let last = knots.len().saturating_sub(1);
                let words = format!(
                    "that of the highest load measured, {}, not extrapolated",
                    at(last)
                );
                (words, last..knots.len())
            }
        }
    }
}

/// The points of an end. From one to the next the CPU time of a thread grows, and the cost does not: where measured
/// ones do otherwise, the larger one counts for both.
fn knots(points: &[Cost], end: IntervalEnd) -> Vec<Knot> {
    let of_point = |point: &Cost| {
        let (load, cost) = (point.load?, point.estimate().at(end).max(LEAST_COST));
        let busy = load * cost * 1e-6;
        Some(Knot { load, busy })
    };
    let mut knots: Vec<Knot> = points.iter().filter_map(of_point).collect();
    let mut least = 0.0;
    for knot in knots.iter_mut().rev() {
        least = knot.each().max(least);
        knot.busy = knot.busy.max(knot.load * least * 1e-6);
    }
    growing(knots)
}

/// With a growth of the CPU time from each to the next.
fn growing(mut knots: Vec<Knot>) -> Vec<Knot> {
    let mut least = 0.0;
    for knot in &mut knots {
        knot.busy = knot.busy.max(least);
        least = knot.busy * (1.0 + LEAST_GROWTH);
    }
    knots
}

/// The CPU time of an end over the load, with the knots between its points.
fn path(knots: &[Knot], end: IntervalEnd) -> Vec<Knot> {
    let mut path: Vec<Knot> = knots.first().copied().into_iter().collect();
    for pair in knots.windows(2) {
        let [from, to] = pair else { continue };
        let (cost_below, cost_above) = (from.busy / from.load, to.busy / to.load);
        // The lower bound leaves the CPU time of the lower point, and the upper one reaches that of the higher point.
        let mut turns = [from.busy / cost_above, to.busy / cost_below];
        turns.sort_by(f64::total_cmp);
        for load in turns {
            let before = path.last().map_or(0.0, |knot| knot.load);
            if load < before * NEXT_LOAD || load * NEXT_LOAD > to.load {
                continue;
            }
            let least = from.busy.max(load * cost_above);
            let most = to.busy.min(load * cost_below);
            let busy = match end {
                IntervalEnd::Low => least,
                IntervalEnd::Value => (least * most).sqrt(),
                IntervalEnd::High => most,
            };
            path.push(Knot { load, busy });
        }
        path.push(*to);
    }
    growing(path)
}

/// The busy share of one thread with these loads per second, by the value or an end of their costs. Each of them costs
/// as much as on a thread that is busy to this share by all of them together. More load gives a larger share.
pub(super) fn busy_share(loads: &[(f64, &CostCurve)], end: IntervalEnd) -> f64 {
    let used = |busy: f64| -> f64 {
        let each = loads.iter();
        each.map(|(rate, curve)| rate * curve.end_at(end, busy) * 1e-6)
            .sum()
    };
    // Costs do not rise with the busy share, so that `used` is above it up to one share, and below from there on.
    let (mut low, mut high) = (0.0, used(0.0));
    for _ in 0..HALVINGS {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        match used(middle) > middle {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(load: Option<f64>, [low, value, high]: [f64; 3]) -> Cost {
        Cost {
            id: "call.bypass.udp".to_owned(),
            value,
            low,
            high,
            unit: "us".to_owned(),
            load,
            samples: 3,
            origin: format!("origin of {value}"),
        }
    }

    fn curve(points: &[(f64, [f64; 3])]) -> CostCurve {
        let points = points.iter().map(|(load, ends)| point(Some(*load), *ends));
        CostCurve::new(points.collect()).unwrap()
    }

    fn near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() <= 1e-6 * wanted, "{found} {wanted}");
    }

    #[test]
    fn cost_between_two_points_is_the_middle_of_its_bounds() {
        // In the order of the file, not of the loads.
        let of = curve(&[
            (11_000.0, [40.0, 44.0, 50.0]),
            (500.0, [90.0, 148.0, 204.0]),
        ]);
        // 0.074 and 0.484 of a thread. At 1,000 calls/s: at least the 0.074, at most 0.148.
        let busy = (0.074_f64 * 0.148).sqrt();
        near(of.at_busy(busy).value, busy / 1_000.0 * 1e6);
        // At 2,500 calls/s: at least 0.11, at most 0.37.
        let busy = (0.11_f64 * 0.37).sqrt();
        near(of.at_busy(busy).value, busy / 2_500.0 * 1e6);
        // At 8,000 calls/s: at least 0.352, at most the 0.484.
        let busy = (0.352_f64 * 0.484).sqrt();
        near(of.at_busy(busy).value, busy / 8_000.0 * 1e6);
        // The interval has the ends of both points: the fall may be anywhere between them.
        let between = of.at_busy(0.2);
        near(between.low, 40.0);
        near(between.high, 204.0);
        near(of.at_busy(0.074).value, 148.0);
        near(of.at_busy(0.484).value, 44.0);
        // Nothing is extrapolated, and the plan says so.
        for (busy, value, words) in [
            (
                0.001,
                148.0,
                "that of the lowest load measured, 148 us at 500/s of a thread (7.4 % busy), not",
            ),
            (
                0.9,
                44.0,
                "that of the highest load measured, 44 us at 11000/s of a thread (48.4 % busy), not",
            ),
        ] {
            near(of.at_busy(busy).value, value);
            let source = of.source(busy);
            assert!(source.starts_with(words), "{source}");
            assert!(
                source.ends_with(&format!("extrapolated; origin of {value}")),
                "{source}"
            );
        }
        let source = of.source(0.3);
        assert!(
            source.starts_with("between 148 us at 500/s of a thread (7.4 % busy) and 44 us"),
            "{source}"
        );
        assert!(
            source.ends_with("; origin of 148; origin of 44"),
            "{source}"
        );
    }

    #[test]
    fn points_that_contradict_each_other_are_taken_at_the_larger_one() {
        // A cost that rises is that of the higher load at the lower one, too.
        let rising = curve(&[(1_000.0, [6.0; 3]), (5_000.0, [12.0; 3])]);
        near(rising.at_busy(0.001).value, 12.0);
        near(rising.at_busy(0.03).value, 12.0);
        // CPU time that falls is that of the lower load at the higher one, too.
        let falling = curve(&[(500.0, [200.0; 3]), (1_000.0, [10.0; 3])]);
        near(falling.at_busy(0.05).value, 200.0);
        assert!((falling.at_busy(0.2).value - 100.0).abs() < 0.01);
    }

    #[test]
    fn single_cost_is_that_of_every_load() {
        for load in [None, Some(6_400.0)] {
            let of = CostCurve::new(vec![point(load, [60.0, 80.0, 100.0])]).unwrap();
            for busy in [0.0, 0.3, 2.0] {
                let cost = of.at_busy(busy);
                assert_eq!((cost.low, cost.value, cost.high), (60.0, 80.0, 100.0));
            }
            assert!(of.source(0.7).contains("taken for every load"));
        }
        assert!(CostCurve::new(Vec::new()).is_none());
    }

    /// Curves with intervals of different widths, with a cost that rises, and with CPU time that falls.
    fn curves() -> [CostCurve; 4] {
        [
            curve(&[
                (500.0, [92.0, 148.0, 204.0]),
                (11_700.0, [42.0, 42.9, 44.0]),
            ]),
            curve(&[(500.0, [0.0, 50.0, 300.0]), (600.0, [49.0, 50.0, 51.0])]),
            curve(&[
                (1_000.0, [5.0, 6.0, 9.0]),
                (5_000.0, [7.0, 12.0, 13.0]),
                (90_000.0, [6.0, 6.5, 7.0]),
            ]),
            curve(&[(500.0, [100.0, 200.0, 300.0]), (550.0, [1.0, 2.0, 3.0])]),
        ]
    }

    #[test]
    fn busier_thread_carries_more_at_a_lower_cost_and_ends_are_in_order() {
        for of in curves() {
            let mut before = [[0.0, f64::INFINITY]; 3];
            for step in 1..2_000 {
                let busy = f64::from(step) / 1_000.0;
                let Estimate { low, value, high } = of.at_busy(busy);
                assert!(
                    low <= value && value <= high,
                    "{busy}: {low} {value} {high}"
                );
                for (place, cost) in [low, value, high].into_iter().enumerate() {
                    let [load_before, cost_before] = before[place];
                    let load = busy / cost;
                    assert!(load >= load_before * (1.0 - 1e-9), "{busy}: {cost}");
                    assert!(cost <= cost_before * (1.0 + 1e-9), "{busy}: {cost}");
                    before[place] = [load, cost];
                }
            }
        }
    }

    #[test]
    fn busy_share_of_a_thread_grows_with_each_of_its_loads() {
        let [first, second, ..] = curves();
        near(busy_share(&[(500.0, &first)], IntervalEnd::Value), 0.074);
        near(
            busy_share(&[(11_700.0, &first)], IntervalEnd::Value),
            0.501_93,
        );
        near(busy_share(&[(500.0, &first)], IntervalEnd::High), 0.102);
        assert_eq!(busy_share(&[(0.0, &first)], IntervalEnd::Value), 0.0);
        assert_eq!(busy_share(&[], IntervalEnd::Value), 0.0);
        // With others on the thread, a call costs less than alone, and the thread is busier.
        let alone = busy_share(&[(500.0, &first)], IntervalEnd::Value);
        let both = busy_share(&[(500.0, &first), (3_000.0, &second)], IntervalEnd::Value);
        assert!(both > alone && first.at_busy(both).value < first.at_busy(alone).value);
        for of in curves() {
            for end in [IntervalEnd::Low, IntervalEnd::Value, IntervalEnd::High] {
                let shares: Vec<f64> = (0..400)
                    .map(|n| busy_share(&[(f64::from(n) * 40.0, &of), (200.0, &first)], end))
                    .collect();
                let grows = |pair: &[f64]| matches!(pair, [a, b] if a <= b);
                assert!(shares.windows(2).all(grows), "{end:?}");
            }
        }
    }
}
