//! The walk of RFC 7502 (Benchmarking Algorithm).
//!
//! The rate rises by the weight *w* after a good trial and falls by *d* after a failed one; both weights are halved
//! then, down to a tenth. The search has converged after a number of good trials without a higher result. Then, beyond
//! the RFC, the gap to the lowest rate that failed is halved until it is as small as the step of the sweep.

use super::record::REFUTING_TRIALS;
use crate::decimal::twelve_digits;
use crate::experiment::SearchPlan;

/// Neither weight falls below this (RFC 7502, Benchmarking Algorithm).
const LEAST_WEIGHT: f64 = 0.10;

/// The walk: selects the next value.
#[derive(Clone, Debug)]
pub struct RfcSearch {
    rate: f64,
    increase: f64,
    decrease: f64,
    /// The highest good value so far.
    best: Option<f64>,
    bad: Vec<f64>,
    /// Good trials without a higher result.
    count: u32,
    confirm: u32,
    step: f64,
    highest: f64,
    refining: bool,
    over: bool,
    /// Every good value, so that the best one can be withdrawn.
    good: Vec<f64>,
    /// The failed value below the best one that is being repeated, and how often it has held since.
    in_doubt: Option<(f64, u32)>,
    refuted: Vec<f64>,
}

impl RfcSearch {
    /// A search that begins at `start`; values are multiples of `step`, `highest` at most.
    pub fn new(plan: &SearchPlan, start: f64, step: f64, highest: f64) -> RfcSearch {
        let mut search = RfcSearch {
            rate: start,
            increase: plan.increase(),
            decrease: plan.decrease(),
            best: None,
            bad: Vec::new(),
            count: 0,
            confirm: plan.confirm(),
            step,
            highest,
            refining: false,
            over: false,
            good: Vec::new(),
            in_doubt: None,
            refuted: Vec::new(),
        };
        search.rate = search.whole(start);
        search
    }

    /// A multiple of the step, within bounds.
    fn whole(&self, value: f64) -> f64 {
        let steps = (value / self.step + 1e-9).floor();
        let value = twelve_digits(steps * self.step);
        value.clamp(self.step.min(self.highest), self.highest)
    }

    /// The value to be tried; `None` at the end of the search.
    pub fn next(&self) -> Option<f64> {
        (!self.over).then_some(self.rate)
    }

    /// The highest good value.
    pub fn best(&self) -> Option<f64> {
        self.best
    }

    /// The lowest value above the best one that failed.
    pub fn failed_above(&self) -> Option<f64> {
        let best = self.best?;
        let above = self.bad.iter().copied().filter(|bad| *bad > best);
        above.reduce(f64::min)
    }

    /// Values that failed below a good one, and held when they were repeated.
    pub fn refuted(&self) -> &[f64] {
        &self.refuted
    }

    /// Takes the result of the trial at [`RfcSearch::next`].
    pub fn record_result(&mut self, good: bool) {
        let rate = self.rate;
        if let Some((_, held)) = self.in_doubt {
            return self.judge_retry(rate, held, good);
        }
        if good {
            self.good.push(rate);
        }
        let higher = good && self.best.is_none_or(|best| rate > best);
        match good {
            true if higher => self.best = Some(rate),
            true => {}
            false => self.bad.push(rate),
        }
        if self.refining {
            return self.refine();
        }
        if good {
            if !higher {
                self.count += 1;
            }
            if self.count >= self.confirm {
                self.refining = true;
                return self.refine();
            }
            // At least by a step: with a small rate, rounding down would make no progress (the RFC warns of it).
            self.rate = self.whole((rate + self.increase * rate).max(rate + self.step));
        } else {
            self.rate = self.whole((rate - self.decrease * rate).min(rate - self.step));
            self.decrease = (self.decrease / 2.0).max(LEAST_WEIGHT);
            self.increase = (self.increase / 2.0).max(LEAST_WEIGHT);
            if rate <= self.step {
                self.over = true;
            }
        }
    }

    /// Half-way between the best value and the lowest failed one above it, while there is a value between.
    fn refine(&mut self) {
        let (Some(best), Some(above)) = (self.best, self.failed_above()) else {
            return self.retry_lowest_failure();
        };
        let steps = ((above - best) / self.step / 2.0).round().max(1.0);
        let middle = twelve_digits(best + steps * self.step);
        if middle < above - self.step * 1e-6 {
            self.rate = middle;
        } else {
            self.retry_lowest_failure();
        }
    }

    /// Failed values below the best one put the result in doubt: the lowest is repeated. Without one the search is
    /// over.
    fn retry_lowest_failure(&mut self) {
        let below =
            (self.bad.iter().copied()).filter(|bad| self.best.is_some_and(|best| *bad < best));
        match below.reduce(f64::min) {
            Some(value) => {
                self.in_doubt = Some((value, 0));
                self.rate = value;
            }
            None => self.over = true,
        }
    }

    /// Takes the result of a repetition: a second failure is a limit, and the result falls below it.
    fn judge_retry(&mut self, rate: f64, held: u32, good: bool) {
        if good && held + 1 < REFUTING_TRIALS {
            self.in_doubt = Some((rate, held + 1));
            return;
        }
        self.in_doubt = None;
        if good {
            self.bad.retain(|bad| *bad != rate);
            self.refuted.push(rate);
            self.good.push(rate);
            return self.retry_lowest_failure();
        }
        self.good.retain(|value| *value < rate);
        self.best = self.good.iter().copied().reduce(f64::max);
        match self.best {
            Some(_) => self.refine(),
            None => self.over = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{SearchRecord, SearchTrial};
    use super::*;
    use crate::experiment::SearchMethod;

    fn plan(increase: f64, confirm: u32) -> SearchPlan {
        SearchPlan {
            method: Some(SearchMethod::Rfc7502),
            increase: Some(increase),
            confirm: Some(confirm),
            ..SearchPlan::default()
        }
    }

    /// The tried values if all values up to `capacity` are good.
    fn tried_values(mut search: RfcSearch, capacity: f64) -> (Vec<f64>, RfcSearch) {
        let mut values = Vec::new();
        while let Some(value) = search.next() {
            values.push(value);
            assert!(values.len() < 200, "it ends: {values:?}");
            search.record_result(value <= capacity);
        }
        (values, search)
    }

    #[test]
    fn rate_changes_by_the_weights_of_rfc_7502() {
        // w = 1, so d = 0.5; after a failure both are halved, down to a tenth.
        let search = RfcSearch::new(&plan(1.0, 1), 100.0, 1.0, 1e6);
        let (values, search) = tried_values(search, 730.0);
        assert_eq!(values[..6], [100.0, 200.0, 400.0, 800.0, 400.0, 600.0]);
        assert_eq!(search.best(), Some(730.0), "the gap is closed: {values:?}");
        assert_eq!(search.failed_above(), Some(731.0));
    }

    #[test]
    fn search_converges_after_good_trials_without_a_higher_result() {
        let (values, search) =
            tried_values(RfcSearch::new(&plan(0.10, 10), 100.0, 1.0, 1e6), 100.0);
        let again = values.iter().filter(|value| **value <= 100.0).count();
        assert!(again >= 10, "{values:?}");
        assert_eq!(
            (search.best(), search.failed_above()),
            (Some(100.0), Some(101.0))
        );
    }

    #[test]
    fn small_values_change_by_at_least_one_step() {
        let (values, search) = tried_values(RfcSearch::new(&plan(0.10, 3), 2.0, 2.0, 100.0), 8.5);
        assert_eq!(
            (search.best(), search.failed_above()),
            (Some(8.0), Some(10.0))
        );
        assert_eq!(values[..5], [2.0, 4.0, 6.0, 8.0, 10.0]);
    }

    fn record(trials: &[(f64, bool)], search: &RfcSearch) -> SearchRecord {
        let step = |(place, (value, good)): (usize, &(f64, bool))| SearchTrial {
            trial: place as u32,
            value: *value,
            good: *good,
            ..SearchTrial::default()
        };
        SearchRecord {
            benchmark: "Session Establishment Rate".to_owned(),
            trials: trials.iter().enumerate().map(step).collect(),
            result: search.best(),
            failed_above: search.failed_above(),
            converged: search.next().is_none(),
            refuted: search.refuted().to_vec(),
            ..SearchRecord::default()
        }
    }

    /// Regression: 14,750 failed, and 16,350 was found.
    #[test]
    fn result_is_below_the_lowest_failed_value() {
        let run = |again: &[bool]| {
            let mut search = RfcSearch::new(&plan(0.5, 1), 10_000.0, 50.0, 20_000.0);
            let (mut trials, mut again) = (Vec::new(), again.iter());
            let mut first = true;
            while let Some(value) = search.next() {
                let good = match value {
                    _ if value > 13_000.0 && first => {
                        first = false;
                        false
                    }
                    value if trials.iter().any(|(seen, good)| *seen == value && !good) => {
                        again.next().copied().unwrap_or(value <= 16_350.0)
                    }
                    value => value <= 16_350.0,
                };
                trials.push((value, good));
                search.record_result(good);
                assert!(trials.len() < 60, "{trials:?}");
            }
            (record(&trials, &search), trials)
        };
        // It fails again: the result falls below it.
        let (found, trials) = run(&[false]);
        let lowest = trials
            .iter()
            .filter(|(_, good)| !good)
            .map(|(value, _)| *value);
        let lowest = lowest.reduce(f64::min).unwrap();
        assert!(found.result.unwrap() < lowest, "{found:?}");
        assert!(found.failed_below().is_empty() && found.lower_failures().is_none());
        assert_eq!(found.interval().unwrap().high, found.failed_above);
        // It holds twice: the failure was a disturbance, and is reported.
        let (found, trials) = run(&[true, true]);
        let disturbed = trials.iter().find(|(_, good)| !good).unwrap().0;
        assert_eq!(found.refuted, [disturbed]);
        assert_eq!(found.result, Some(16_350.0));
        assert!(
            found
                .sentence("calls per second")
                .contains("not monotonic: 15000 failed once"),
            "{}",
            found.sentence("")
        );
        // The trials are used up before: the result is marked, and the interval begins below the failure.
        let search = RfcSearch {
            best: Some(16_350.0),
            ..RfcSearch::new(&plan(0.5, 1), 10_000.0, 50.0, 20_000.0)
        };
        let cut = record(
            &[(10_000.0, true), (14_750.0, false), (16_350.0, true)],
            &search,
        );
        assert_eq!(cut.failed_below(), [14_750.0]);
        assert_eq!(cut.interval().unwrap().low, Some(10_000.0));
        assert!(
            cut.lower_failures()
                .unwrap()
                .contains("14750 failed below it")
        );
    }

    #[test]
    fn bounds_end_the_search() {
        let (values, search) =
            tried_values(RfcSearch::new(&plan(1.0, 2), 100.0, 50.0, 1_200.0), 9e9);
        assert_eq!(search.best(), Some(1_200.0));
        assert_eq!(search.failed_above(), None);
        assert_eq!(values.iter().filter(|v| **v == 1_200.0).count(), 3);
        let (values, search) =
            tried_values(RfcSearch::new(&plan(1.0, 2), 100.0, 50.0, 1_200.0), 10.0);
        assert_eq!(search.best(), None);
        assert_eq!(values, [100.0, 50.0]);
    }

    #[test]
    fn trials_are_kept_when_repeated() {
        let (values, search) = tried_values(
            RfcSearch::new(&plan(0.5, 3), 1_000.0, 100.0, 20_000.0),
            4_250.0,
        );
        assert!(values.iter().all(|value| value % 100.0 == 0.0));
        assert_eq!(
            (search.best(), search.failed_above()),
            (Some(4_200.0), Some(4_300.0))
        );
        assert!(values.len() < 30, "{values:?}");
    }
}
