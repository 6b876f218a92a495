//! Checks of the rates at which workloads begin: without any attempt a trial would measure nothing.

use super::{Callers, Experiment, PaceKind, Registrations, StreamLoad};

/// The rate of a workload, with its table for errors.
struct WorkloadRate {
    table: &'static str,
    pace: PaceKind,
    rate: f64,
    /// End and length of a ramp.
    ramp: [f64; 2],
}

impl WorkloadRate {
    fn check(&self) -> Result<(), String> {
        let WorkloadRate {
            table, pace, rate, ..
        } = self;
        let [to, seconds] = self.ramp;
        if *pace != PaceKind::Ramp {
            return match rate.is_finite() && *rate > 0.0 {
                true => Ok(()),
                false => Err(format!("{table}.rate = {rate}: expected more than 0")),
            };
        }
        for (key, value) in [("rate", *rate), ("ramp_to", to), ("ramp_seconds", seconds)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!("{table}.{key} = {value}: expected 0 or more"));
            }
        }
        // A ramp may begin or end at 0, but not both.
        match to > 0.0 || (*rate > 0.0 && seconds > 0.0) {
            true => Ok(()),
            false => Err(format!(
                "{table}.rate = {rate}, ramp_to = {to}, ramp_seconds = {seconds}: no attempt would be due: set {table}.ramp_to"
            )),
        }
    }
}

/// Checks the rates of calls, registrations and streams.
pub(super) fn check_rates(experiment: &Experiment) -> Result<(), String> {
    let calls = |plan: &Callers| WorkloadRate {
        table: "callers",
        pace: plan.pace,
        rate: plan.rate,
        ramp: [plan.ramp_to, plan.ramp_seconds],
    };
    let registrations = |plan: &Registrations| WorkloadRate {
        table: "registrations",
        pace: plan.pace,
        rate: plan.rate,
        ramp: [plan.ramp_to, plan.ramp_seconds],
    };
    let streams = |plan: &StreamLoad| WorkloadRate {
        table: "streams",
        pace: PaceKind::Constant,
        rate: plan.rate,
        ramp: [0.0; 2],
    };
    let all = [
        experiment.callers.as_ref().map(calls),
        experiment.registrations.as_ref().map(registrations),
        experiment.streams.as_ref().map(streams),
    ];
    all.iter().flatten().try_for_each(WorkloadRate::check)
}

#[cfg(test)]
mod tests {
    use super::super::{File, built_in};

    #[test]
    fn rates_without_any_attempt_are_refused() {
        let parse = |name: &str, sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
            File::parse_with(name, built_in(name).unwrap(), &sets)
                .map_err(|error| error.to_string())
        };
        for (name, set, words) in [
            (
                "standing-call-capacity",
                "callers.rate=0",
                "callers.rate = 0: expected more than 0",
            ),
            (
                "standing-call-capacity",
                "callers.rate=-5",
                "callers.rate = -5: expected more than 0",
            ),
            ("media-nodes", "callers.rate=nan", "callers.rate = NaN"),
            ("media-nodes", "callers.rate=inf", "callers.rate = inf"),
            (
                "small-network",
                "registrations.rate=0",
                "registrations.rate = 0",
            ),
            ("rtp-streams", "streams.rate=0", "streams.rate = 0"),
        ] {
            let error = parse(name, &[set]).unwrap_err();
            assert!(error.contains(words), "{set}: {error}");
        }
        let ramp = |sets: &[&str]| {
            let sets = [sets, &["callers.pace=ramp"]].concat();
            parse("small-network", &sets)
        };
        let rising = [
            "callers.rate=0",
            "callers.ramp_to=5",
            "callers.ramp_seconds=2",
        ];
        let falling = [
            "callers.rate=5",
            "callers.ramp_to=0",
            "callers.ramp_seconds=2",
        ];
        assert!(ramp(&rising).is_ok() && ramp(&falling).is_ok());
        for (sets, words) in [
            (
                ["callers.rate=0", "callers.ramp_to=0"],
                "no attempt would be due",
            ),
            (
                ["callers.rate=-1", "callers.ramp_to=5"],
                "callers.rate = -1",
            ),
            (
                ["callers.rate=1", "callers.ramp_to=-5"],
                "callers.ramp_to = -5",
            ),
        ] {
            let error = ramp(&sets).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
