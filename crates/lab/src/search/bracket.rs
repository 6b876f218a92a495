//! The bracket search: short trials find the region of the limit, then trials of full length put it between a passed
//! and a failed value.
//!
//! Result and interval are those of full trials: a short one ends before a queue is long, so it only chooses where the
//! full ones begin.

use crate::decimal::twelve_digits;
use crate::experiment::SearchPlan;

/// Ratio of the lowest failed to the highest passed value at which the coarse pass ends: closer to the limit, short
/// trials decide by chance.
const COARSE_RATIO: f64 = 1.15;
/// Largest decrease at once while no full trial has passed, as a share.
const MAX_DECREASE: f64 = 0.5;
/// Shares of the lowest failed value at which the last full trial and the one before it are placed while none has
/// passed.
const LAST_SHARES: [f64; 2] = [0.5, 0.8];

/// The value to be tried, and the length of its trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// The value.
    pub value: f64,
    /// A short trial of the coarse pass.
    pub short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Short trials.
    Coarse,
    /// Full trials, until the interval is as narrow as the resolution.
    Full,
    /// Repetitions at the result: how many passed, the first trial included, and how many failed.
    Confirm {
        passed: u32,
        failed: u32,
    },
    Over,
}

/// The search: selects the next value.
#[derive(Clone, Debug)]
pub struct Bracket {
    stage: Stage,
    value: f64,
    /// Highest passed and lowest failed value of the present length of trials.
    pass: Option<f64>,
    fail: Option<f64>,
    /// The passed values of full trials, so that the highest can be withdrawn.
    passed: Vec<f64>,
    /// Change to the next value while one side of the limit is unknown, as a share; it doubles with each step.
    stride: f64,
    step: f64,
    highest: f64,
    resolution: f64,
    confirm: u32,
}

impl Bracket {
    /// A search that begins at `start`, with a coarse pass if `coarse`; values are multiples of `step`, `highest` at
    /// most.
    pub fn new(
        plan: &SearchPlan,
        coarse: bool,
        (start, step, highest): (f64, f64, f64),
    ) -> Bracket {
        let resolution = plan.resolution_percent() / 100.0;
        let mut search = Bracket {
            stage: if coarse { Stage::Coarse } else { Stage::Full },
            value: start,
            pass: None,
            fail: None,
            passed: Vec::new(),
            // Without a coarse pass the start may be far from the limit.
            stride: if coarse { resolution } else { 1.0 },
            step,
            highest,
            resolution,
            confirm: plan.confirm(),
        };
        search.value = search.whole(start);
        search
    }

    /// A multiple of the step, within bounds.
    fn whole(&self, value: f64) -> f64 {
        let steps = (value / self.step + 1e-9).floor();
        let value = twelve_digits(steps * self.step);
        value.clamp(self.step.min(self.highest), self.highest)
    }

    /// The next trial; `None` at the end of the search.
    pub fn next(&self) -> Option<Probe> {
        (self.stage != Stage::Over).then_some(Probe {
            value: self.value,
            short: self.stage == Stage::Coarse,
        })
    }

    /// The highest value that passed full trials.
    pub fn best(&self) -> Option<f64> {
        match self.stage {
            Stage::Coarse => None,
            // The search may end here, by its time or its number of trials.
            _ if self.is_refuted_for(0) => self.passed_below(self.value),
            _ => self.pass,
        }
    }

    /// The lowest value that failed a full trial.
    pub fn failed_above(&self) -> Option<f64> {
        match self.stage {
            Stage::Coarse => None,
            _ if self.is_refuted_for(0) => Some(self.value),
            _ => self.fail,
        }
    }

    /// Whether most trials at the result have failed, and so many further ones cannot change that.
    fn is_refuted_for(&self, further: usize) -> bool {
        match self.stage {
            Stage::Confirm { passed, failed } => failed as usize > passed as usize + further,
            Stage::Coarse | Stage::Full | Stage::Over => false,
        }
    }

    /// The highest passed value of full trials below this one.
    fn passed_below(&self, value: f64) -> Option<f64> {
        let below = self.passed.iter().copied().filter(|known| *known < value);
        below.reduce(f64::max)
    }

    /// Whether any trial passed, short ones included.
    pub fn has_passed(&self) -> bool {
        self.pass.is_some()
    }

    /// Takes the result of the trial at [`Bracket::next`].
    pub fn record_result(&mut self, good: bool) {
        match self.stage {
            Stage::Coarse => {
                self.narrow(good);
                self.next_coarse();
            }
            Stage::Full => {
                if good {
                    self.passed.push(self.value);
                }
                self.narrow(good);
                self.next_full();
            }
            Stage::Confirm { passed, failed } => self.judge_repetition(good, passed, failed),
            Stage::Over => {}
        }
    }

    /// Adapts to the number of full trials for which there is time. With two the coarse pass ends, and while none has
    /// passed the next one is at a load that is likely to pass: the limit is then known with a wide interval instead of
    /// not at all.
    pub fn limit_to(&mut self, full_trials: usize) {
        if full_trials > LAST_SHARES.len() {
            return;
        }
        // One trial more than needed: a tie is no majority.
        if self.is_refuted_for(full_trials.saturating_sub(1)) {
            self.withdraw();
        }
        if self.stage == Stage::Coarse {
            // Without a passed value the next one is half of the lowest failed value.
            self.value = self.pass.unwrap_or(self.value);
            self.stage = Stage::Full;
            (self.pass, self.fail) = (None, None);
        }
        if let (Stage::Full, None, Some(fail)) = (self.stage, self.pass, self.fail)
            && fail > self.step
        {
            let share = LAST_SHARES[full_trials.saturating_sub(1)];
            self.value = self.value.min(self.whole(fail * share));
        }
    }

    fn narrow(&mut self, good: bool) {
        match good {
            true => self.pass = Some(self.pass.map_or(self.value, |pass| pass.max(self.value))),
            false => self.fail = Some(self.fail.map_or(self.value, |fail| fail.min(self.value))),
        }
    }

    /// Doubles or halves until both sides are known, then takes the geometric mean.
    fn next_coarse(&mut self) {
        let next = match (self.pass, self.fail) {
            (Some(pass), None) => Some(self.whole(pass * 2.0)).filter(|next| *next > pass),
            (None, Some(fail)) => Some(self.whole(fail / 2.0)).filter(|next| *next < fail),
            (Some(pass), Some(fail)) if fail / pass > COARSE_RATIO => {
                Some(self.whole((pass * fail).sqrt())).filter(|next| *next > pass && *next < fail)
            }
            _ => None,
        };
        match next {
            Some(next) => self.value = next,
            None => {
                self.value = self.pass.or(self.fail).unwrap_or(self.value);
                self.stage = Stage::Full;
                (self.pass, self.fail) = (None, None);
            }
        }
    }

    fn next_full(&mut self) {
        let stride = self.stride;
        match (self.pass, self.fail) {
            (Some(pass), None) if pass >= self.highest => self.confirm_at(pass),
            (Some(pass), None) => {
                self.value = self.whole((pass * (1.0 + stride)).max(pass + self.step));
                self.stride = (stride * 2.0).min(1.0);
            }
            (None, Some(fail)) if fail <= self.step => self.stage = Stage::Over,
            (None, Some(fail)) => {
                let lower = fail * (1.0 - stride.min(MAX_DECREASE));
                self.value = self.whole(lower.min(fail - self.step));
                self.stride = (stride * 2.0).min(1.0);
            }
            (Some(pass), Some(fail)) => {
                let steps = ((fail - pass) / self.step / 2.0).round().max(1.0);
                let middle = twelve_digits(pass + steps * self.step);
                let is_narrow =
                    fail - pass <= (self.resolution * pass).max(self.step) * (1.0 + 1e-9);
                match is_narrow || middle >= fail - self.step * 1e-6 {
                    true => self.confirm_at(pass),
                    false => self.value = middle,
                }
            }
            (None, None) => {}
        }
    }

    fn confirm_at(&mut self, pass: f64) {
        self.value = pass;
        self.stage = match self.confirm {
            0 => Stage::Over,
            _ => Stage::Confirm {
                passed: 1,
                failed: 0,
            },
        };
    }

    /// The majority of the repetitions decides: with one repetition, two of three trials.
    fn judge_repetition(&mut self, good: bool, passed: u32, failed: u32) {
        let (passed, failed) = (passed + u32::from(good), failed + u32::from(!good));
        self.stage = Stage::Confirm { passed, failed };
        if passed > self.confirm {
            self.stage = Stage::Over;
        } else if failed > self.confirm {
            self.withdraw();
        }
    }

    /// The result has failed: the search continues below it.
    fn withdraw(&mut self) {
        let withdrawn = self.value;
        self.passed.retain(|value| *value < withdrawn);
        self.pass = self.passed_below(withdrawn);
        self.fail = Some(withdrawn);
        self.stride = self.resolution;
        self.stage = Stage::Full;
        self.next_full();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Entropy;

    const BOUNDS: (f64, f64, f64) = (400.0, 50.0, 20_000.0);

    /// The probes of a search whose trials `passes` decides.
    fn probes(mut search: Bracket, mut passes: impl FnMut(Probe) -> bool) -> (Vec<Probe>, Bracket) {
        let mut all = Vec::new();
        while let Some(probe) = search.next() {
            all.push(probe);
            assert!(all.len() < 60, "it ends: {all:?}");
            search.record_result(passes(probe));
        }
        (all, search)
    }

    fn of_capacity(start: f64, capacity: f64) -> (Vec<Probe>, Bracket) {
        let search = Bracket::new(&SearchPlan::default(), true, (start, 50.0, 20_000.0));
        probes(search, |probe| probe.value <= capacity)
    }

    #[test]
    fn limit_is_found_within_the_resolution_from_any_start() {
        for capacity in [400.0, 730.0, 5_000.0, 9_049.0, 19_970.0] {
            for start in [50.0, 400.0, 6_000.0, 20_000.0] {
                let (all, search) = of_capacity(start, capacity);
                let (best, above) = (search.best().unwrap(), search.failed_above().unwrap());
                assert!(
                    best <= capacity && capacity < above,
                    "{capacity}: {best} {above}"
                );
                assert!(above - best <= (best * 0.05).max(50.0), "{best} {above}");
                let full = all.iter().filter(|probe| !probe.short).count();
                assert!(
                    all.len() <= 20 && full <= 6,
                    "{capacity} from {start}: {all:?}"
                );
                // The result was tried twice at full length.
                let at = |probe: &&Probe| !probe.short && probe.value == best;
                assert_eq!(all.iter().filter(at).count(), 2, "{all:?}");
            }
        }
    }

    /// Short trials pass up to 1,000, full ones only up to a lower capacity; there is time for so many full trials from
    /// the start.
    fn in_limited_time(capacity: f64, mut full_trials: usize) -> (Vec<Probe>, Bracket) {
        let mut search = Bracket::new(&SearchPlan::default(), true, (200.0, 10.0, 20_000.0));
        let mut all = Vec::new();
        // A short trial takes a third of the time of a full one.
        let mut thirds = 3 * full_trials;
        while thirds > 0 {
            full_trials = thirds.div_ceil(3);
            search.limit_to(full_trials);
            let Some(probe) = search.next() else { break };
            all.push(probe);
            search.record_result(probe.value <= if probe.short { 1_000.0 } else { capacity });
            thirds = thirds.saturating_sub(if probe.short { 1 } else { 3 });
        }
        (all, search)
    }

    #[test]
    fn limited_time_gives_a_result_with_a_wide_interval() {
        for full_trials in [3, 4, 5] {
            for capacity in [500.0, 700.0, 900.0] {
                let (all, search) = in_limited_time(capacity, full_trials);
                let best = search.best().unwrap_or_else(|| panic!("{all:?}"));
                assert!(best <= capacity && best >= 0.4 * capacity, "{all:?}");
                assert!(search.failed_above().is_none_or(|above| above > capacity));
                assert!(all.iter().any(|probe| probe.short), "{all:?}");
            }
        }
        // The last trial is below the one that failed, and not below the step.
        let mut search = Bracket::new(&SearchPlan::default(), false, (10.0, 10.0, 100.0));
        search.record_result(false);
        search.limit_to(1);
        assert_eq!(search.next(), None);
    }

    #[test]
    fn bounds_end_the_search() {
        let (all, search) = of_capacity(400.0, 9e9);
        assert_eq!(
            (search.best(), search.failed_above()),
            (Some(20_000.0), None)
        );
        assert_eq!(all.iter().filter(|probe| !probe.short).count(), 2);
        let (all, search) = of_capacity(400.0, 10.0);
        assert_eq!((search.best(), search.failed_above()), (None, Some(50.0)));
        // The lowest value has a trial of full length as well.
        assert_eq!(
            all.last(),
            Some(&Probe {
                value: 50.0,
                short: false
            })
        );
        assert!(!search.has_passed());
    }

    #[test]
    fn values_of_a_decimal_step_are_as_written() {
        for coarse in [true, false] {
            let search = Bracket::new(&SearchPlan::default(), coarse, (0.1, 0.1, 2.0));
            let (all, search) = probes(search, |probe| probe.value <= 0.75);
            let written = |value: f64| format!("{value:.1}").parse::<f64>() == Ok(value);
            assert!(all.iter().all(|probe| written(probe.value)), "{all:?}");
            assert_eq!(
                (search.best(), search.failed_above()),
                (Some(0.7), Some(0.8))
            );
        }
    }

    #[test]
    fn without_a_coarse_pass_values_double() {
        let search = Bracket::new(&SearchPlan::default(), false, (5.0, 5.0, 60.0));
        let (all, search) = probes(search, |probe| probe.value <= 20.0);
        let values: Vec<f64> = all.iter().map(|probe| probe.value).collect();
        assert_eq!(values, [5.0, 10.0, 20.0, 40.0, 30.0, 25.0, 20.0]);
        assert!(all.iter().all(|probe| !probe.short));
        assert_eq!(
            (search.best(), search.failed_above()),
            (Some(20.0), Some(25.0))
        );
    }

    #[test]
    fn short_trials_that_pass_too_easily_do_not_raise_the_result() {
        for share in [1.15, 1.3, 2.0] {
            let search = Bracket::new(&SearchPlan::default(), true, BOUNDS);
            let (all, search) = probes(search, |probe| match probe.short {
                true => probe.value <= 5_000.0 * share,
                false => probe.value <= 5_000.0,
            });
            let (best, above) = (search.best().unwrap(), search.failed_above().unwrap());
            assert!(best <= 5_000.0 && above > 5_000.0, "{best} {above}");
            assert!(above - best <= best * 0.05 && all.len() <= 20, "{all:?}");
        }
    }

    #[test]
    fn two_of_three_trials_decide_at_the_result() {
        // The limit is 20; the result fails its first repetition. A success keeps it, a second failure withdraws it.
        for (second, result) in [(true, 20.0), (false, 15.0)] {
            let search = Bracket::new(&SearchPlan::default(), false, (5.0, 5.0, 60.0));
            let mut number = 0;
            let (all, search) = probes(search, |probe| {
                number += 1;
                match number {
                    7 => false,
                    8 => second,
                    _ => probe.value <= 20.0,
                }
            });
            assert_eq!(all[6].value, 20.0, "{all:?}");
            assert_eq!(all[7].value, 20.0, "{all:?}");
            assert_eq!(search.best(), Some(result), "{all:?}");
            assert_eq!(search.failed_above(), Some(result + 5.0));
        }
    }

    #[test]
    fn result_that_most_of_its_trials_refute_is_none_when_the_time_is_over() {
        let plan = SearchPlan {
            confirm: Some(2),
            ..SearchPlan::default()
        };
        let mut search = Bracket::new(&plan, false, (5.0, 5.0, 60.0));
        // 5, 10 and 20 pass, 40, 30 and 25 fail; then 20 is repeated.
        for good in [true, true, true, false, false, false] {
            search.record_result(good);
        }
        let found = |search: &Bracket| {
            let next = search.next().map(|probe| probe.value);
            (next, search.best(), search.failed_above())
        };
        search.record_result(false);
        assert_eq!(found(&search), (Some(20.0), Some(20.0), Some(25.0)));
        search.record_result(false);
        assert_eq!(found(&search), (Some(20.0), Some(10.0), Some(20.0)));
        // Two trials more could make three of five; one cannot, and is of use below.
        search.limit_to(2);
        assert_eq!(found(&search).0, Some(20.0));
        search.limit_to(1);
        assert_eq!(found(&search), (Some(15.0), Some(10.0), Some(20.0)));
        search.record_result(true);
        assert_eq!(search.best(), Some(15.0));
    }

    /// A machine whose trials fail by chance near the limit, over 3 % to both sides.
    #[test]
    fn soft_limit_is_found_within_seven_percent_mostly() {
        let mut near = 0;
        for seed in 0..200 {
            let mut entropy = Entropy::from_number(seed);
            let search = Bracket::new(&SearchPlan::default(), true, BOUNDS);
            let (_, search) = probes(search, |probe| {
                let share = (probe.value / 5_000.0 - 0.97) / 0.06;
                let draw = f64::from(entropy.u32()) / f64::from(u32::MAX);
                draw >= share
            });
            let error = (search.best().unwrap() / 5_000.0 - 1.0).abs();
            near += u32::from(error <= 0.07);
        }
        assert!(near >= 180, "{near} of 200");
    }
}
