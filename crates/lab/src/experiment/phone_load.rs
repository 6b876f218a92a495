//! A telephone program whose stream is measured.

use super::Experiment;
use serde::{Deserialize, Serialize};

/// A telephone program in a process of its own calls a receiver of the load generator and plays speech. The receiver
/// measures the packets by the kernel's receive times. Beside it streams of the generator load the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PhoneLoad {
    /// 1: `hornwork phone --real-time`, 2: baresip, 3: linphone, 4: `hornwork phone` without real-time mode.
    pub program: u32,
    /// Time from the answer to the measurement, seconds.
    pub warm_up_seconds: f64,
    /// Measured time, seconds.
    pub duration_seconds: f64,
    /// Streams of the load, 20 ms of G.711 each.
    pub load_streams: u64,
}

impl Default for PhoneLoad {
    fn default() -> Self {
        PhoneLoad {
            program: 1,
            warm_up_seconds: 2.0,
            duration_seconds: 60.0,
            load_streams: 50,
        }
    }
}

/// Approximate duration of a trial, seconds; 0 without a telephone and without a measurement of ESP.
pub(super) fn seconds(experiment: &Experiment) -> f64 {
    let phone = experiment.phone.as_ref();
    phone.map_or(super::esp_load::seconds(experiment), |plan| {
        plan.warm_up_seconds + plan.duration_seconds + 4.0
    })
}

/// Whether the experiment has one of the workloads that need no other.
pub(super) fn has_workload_of_its_own(experiment: &Experiment) -> bool {
    experiment.conference.is_some() || experiment.phone.is_some() || experiment.esp.is_some()
}

/// Checks a telephone whose stream is measured.
pub(super) fn check_phone(experiment: &Experiment) -> Result<(), String> {
    let Some(plan) = &experiment.phone else {
        return super::esp_load::check_esp(experiment);
    };
    let others = [
        experiment.callers.is_some(),
        experiment.callees.is_some(),
        experiment.registrations.is_some(),
        experiment.streams.is_some(),
        experiment.conference.is_some(),
        experiment.link.is_some(),
    ];
    if others.contains(&true) {
        return Err("[phone] cannot be combined with other workloads".to_owned());
    }
    if !experiment.sut.direct {
        return Err("[phone] calls the load generator itself: set sut.direct = true".to_owned());
    }
    let within = |value: f64, least: f64, most: f64| (least..=most).contains(&value);
    if !(1..=4).contains(&plan.program)
        || !within(plan.warm_up_seconds, 0.0, 60.0)
        || !within(plan.duration_seconds, 1.0, 480.0)
        || plan.load_streams > 2_000
    {
        return Err(
            "phone: expected program 1 to 4, warm_up_seconds 0 to 60, duration_seconds 1 to 480, load_streams at most 2000"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::experiment::{File, built_in};

    #[test]
    fn invalid_values_are_refused() {
        let text = built_in("phone-jitter").unwrap();
        for (set, wanted) in [
            ("levels.values=[5]", "program 1 to 4"),
            ("phone.duration_seconds=0", "duration_seconds"),
            ("phone.load_streams=100000", "load_streams"),
            ("sut.direct=false", "sut.direct = true"),
        ] {
            let error = File::parse_with("phone-jitter", text, &[set.to_owned()]).unwrap_err();
            assert!(error.to_string().contains(wanted), "{set}: {error}");
        }
    }
}
