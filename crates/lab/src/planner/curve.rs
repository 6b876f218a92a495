//! The cost of a call, registration or packet over the load of a thread, from measured points.
//!
//! A busy thread takes several messages at a time, so that each costs less. Between two points the CPU time of a thread
//! has a fixed part and one that grows with the load: the straight line through both. Beyond the points the cost of the
//! nearest one is kept: the cost at a higher load may be lower, but was not measured.

use super::costs::Cost;
use super::estimate::{Estimate, IntervalEnd};
use crate::decimal::plain;

/// Least growth of the CPU time of a thread from one point to the next, as a share. Points whose CPU time falls with
/// the load are an error of measurement: more load never needs less.
const LEAST_GROWTH: f64 = 1e-6;
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
    /// For lower end, value and upper end; empty for a single point, whose cost is taken at every load.
    knots: [Vec<Knot>; 3],
}

impl CostCurve {
    /// The curve through these points; `None` without any.
    pub(super) fn new(mut points: Vec<Cost>) -> Option<CostCurve> {
        points.sort_by(|a, b| a.load.unwrap_or(0.0).total_cmp(&b.load.unwrap_or(0.0)));
        let knots = match points.len() {
            0 => return None,
            1 => [const { Vec::new() }; 3],
            _ => [IntervalEnd::Low, IntervalEnd::Value, IntervalEnd::High]
                .map(|end| knots(&points, end)),
        };
        Some(CostCurve { points, knots })
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
        let knots = match end {
            IntervalEnd::Low => &self.knots[0],
            IntervalEnd::Value => &self.knots[1],
            IntervalEnd::High => &self.knots[2],
        };
        let (Some(first), Some(last)) = (knots.first(), knots.last()) else {
            let only = self.points.first();
            return only.map_or(0.0, |point| point.estimate().at(end));
        };
        if busy <= first.busy {
            return first.each();
        }
        let between = knots.windows(2).find_map(|pair| match pair {
            [from, to] if busy <= to.busy => Some((from, to)),
            _ => None,
        });
        let Some((from, to)) = between else {
            return last.each();
        };
        let part = (busy - from.busy) / (to.busy - from.busy);
        busy / (from.load + (to.load - from.load) * part) * 1e6
    }

    /// The source of the cost on a thread that is busy to this share, in words.
    pub(super) fn source(&self, busy: f64) -> String {
        let place = match self.points.as_slice() {
            [only] => match only.load {
                Some(load) => format!(
                    "measured at {}/s of a thread alone, and taken for every load",
                    plain(load)
                ),
                None => "taken for every load".to_owned(),
            },
            _ => self.place(busy),
        };
        let origins: Vec<&str> = self.points.iter().map(|of| of.origin.as_str()).collect();
        format!("{place}; {}", origins.join("; "))
    }

    /// The place of a busy share among several points, in words.
    fn place(&self, busy: f64) -> String {
        let [_, knots, _] = &self.knots;
        let point = |knot: &Knot| {
            format!(
                "{} us at {}/s of a thread ({} % busy)",
                plain(knot.each()),
                plain(knot.load),
                plain(knot.busy * 100.0)
            )
        };
        let next = knots.iter().position(|knot| busy <= knot.busy);
        match (next, next.and_then(|at| at.checked_sub(1))) {
            (Some(at), Some(before)) => format!(
                "on the line of CPU time over load from {} to {}",
                knots.get(before).map_or(String::new(), point),
                knots.get(at).map_or(String::new(), point)
            ),
            (Some(at), None) => format!(
                "that of the lowest load measured, {}, not extrapolated",
                knots.get(at).map_or(String::new(), point)
            ),
            (None, _) => format!(
                "that of the highest load measured, {}, not extrapolated",
                knots.last().map_or(String::new(), point)
            ),
        }
    }
}

/// The points of an end. Its CPU time grows from point to point, also where the measured one does not.
fn knots(points: &[Cost], end: IntervalEnd) -> Vec<Knot> {
    let mut knots: Vec<Knot> = Vec::with_capacity(points.len());
    for point in points {
        let Some(load) = point.load else { continue };
        let measured = load * point.estimate().at(end) * 1e-6;
        let least = knots.last().map_or(0.0, |before| before.busy);
        knots.push(Knot {
            load,
            busy: measured.max(least * (1.0 + LEAST_GROWTH)),
        });
    }
    knots
}

/// The busy share of one thread with these loads per second, by the value or an end of their costs. Each of them costs
/// as much as on a thread that is busy to this share by all of them together. More load gives a larger share.
pub(super) fn busy_share(loads: &[(f64, &CostCurve)], end: IntervalEnd) -> f64 {
    let used = |busy: f64| -> f64 {
        let each = loads.iter();
        each.map(|(rate, curve)| rate * curve.end_at(end, busy) * 1e-6)
            .sum()
    };
    // The load that a curve carries grows with the busy share, so that `used` is above it up to one share, and below
    // from there on.
    let (mut low, mut high) = (0.0, used(0.0));
    for _ in 0..HALVINGS {
        if used(high) <= high {
            break;
        }
        high *= 2.0;
    }
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
    fn cost_between_two_points_has_a_fixed_and_a_variable_part() {
        // In the order of the file, not of the loads.
        let of = curve(&[
            (11_000.0, [40.0, 44.0, 50.0]),
            (500.0, [90.0, 148.0, 204.0]),
        ]);
        // 0.074 and 0.484 of a thread: a fixed part of 0.0545 and 39.05 us for each call.
        let (b, a) = (
            (0.484 - 0.074) / 10_500.0,
            0.074 - 500.0 * (0.484 - 0.074) / 10_500.0,
        );
        for load in [500.0, 2_000.0, 7_000.0, 11_000.0] {
            let busy = a + b * load;
            near(of.at_busy(busy).value, busy / load * 1e6);
        }
        near(of.at_busy(0.074).value, 148.0);
        near(of.at_busy(0.484).value, 44.0);
        // Nothing is extrapolated, and the plan says so.
        for (busy, value, words) in [
            (
                0.001,
                148.0,
                "lowest load measured, 148 us at 500/s of a thread (7.4 % busy), not",
            ),
            (
                0.9,
                44.0,
                "highest load measured, 44 us at 11000/s of a thread (48.4 % busy), not",
            ),
        ] {
            near(of.at_busy(busy).value, value);
            let source = of.source(busy);
            assert!(source.contains(words), "{source}");
            assert!(source.contains("origin of 148; origin of 44"), "{source}");
        }
        let source = of.source(0.3);
        assert!(
            source.starts_with("on the line of CPU time over load from 148 us at 500/s"),
            "{source}"
        );
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
    fn busier_thread_carries_more_and_ends_are_in_order() {
        for of in curves() {
            let mut before = [0.0; 3];
            for step in 1..2_000 {
                let busy = f64::from(step) / 1_000.0;
                let Estimate { low, value, high } = of.at_busy(busy);
                assert!(
                    low <= value && value <= high,
                    "{busy}: {low} {value} {high}"
                );
                // A cost of nothing has no bound of the load.
                let loads = [low, value, high].map(|cost| busy / cost.max(1e-9));
                for (now, before) in loads.into_iter().zip(before) {
                    assert!(now >= before * (1.0 - 1e-12), "{busy}: {now} {before}");
                }
                before = loads;
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
