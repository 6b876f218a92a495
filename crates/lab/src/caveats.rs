//! Reasons to doubt the figures of a trial: the load generator or the machine, not the SUT, was the limit.

use crate::raw::TrialRecord;

/// Lateness of the generator (99th percentile, milliseconds) above which it may dominate the response times.
const LATE_MS: f64 = 10.0;
/// Lateness of a sleeping thread (99th percentile, microseconds) above which other work kept the machine busy.
/// Timers of an idle virtual machine are late by about 0.2 ms, beside other work that leaves CPU time free by about 2
/// ms.
const NOISE_US: f64 = 4_000.0;

/// The caveats as texts; empty for a trial on an idle machine or in virtual time.
pub fn for_trial(trial: &TrialRecord) -> Vec<String> {
    let Some(around) = &trial.surroundings else {
        return Vec::new();
    };
    let mut all = Vec::new();
    if let Some(late) = trial.details.lateness_ms[1].filter(|late| *late > LATE_MS) {
        all.push(format!(
            "the load generator was late by {late:.0} ms (99th percentile)"
        ));
    }
    if around.noise.p99_us > NOISE_US {
        all.push(format!(
            "the machine was busy: a sleeping thread woke up {:.1} ms late (99th percentile)",
            around.noise.p99_us / 1e3
        ));
    }
    let dropped = around
        .receive_buffer_errors_after
        .saturating_sub(around.receive_buffer_errors_before);
    if dropped > 0 {
        all.push(format!(
            "the kernel dropped {dropped} datagrams (RcvbufErrors), hidden by retransmissions"
        ));
    }
    all
}

/// Whether other work kept the machine so busy that the trial is not conclusive: a sleeping thread was late. Lateness
/// of the generator alone is not counted, since the load itself may cause it. Or a link of `[network]` did not keep up.
pub fn is_disturbed(trial: &TrialRecord) -> bool {
    let around = trial.surroundings.as_ref();
    trial.has_faulty_link() || around.is_some_and(|around| around.noise.p99_us > NOISE_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RunVerdict;
    use crate::figures::{Details, Figures};
    use crate::raw::{LinkRecord, NoiseRecord, Surroundings};

    fn trial(late: f64, noise: f64, dropped: u64) -> TrialRecord {
        TrialRecord {
            trial: 0,
            level: None,
            repetition: 0,
            seed: 1,
            plan: String::new(),
            seconds: 1.0,
            figures: Figures::default(),
            details: Details {
                lateness_ms: [Some(0.0), Some(late), Some(late)],
                ..Details::default()
            },
            checks: Vec::new(),
            leaks: None,
            verdict: RunVerdict::Passed,
            remarks: Vec::new(),
            surroundings: Some(Surroundings {
                noise: NoiseRecord {
                    p99_us: noise,
                    ..NoiseRecord::default()
                },
                receive_buffer_errors_before: 7,
                receive_buffer_errors_after: 7 + dropped,
                ..Surroundings::default()
            }),
            digest: None,
            links: Vec::new(),
        }
    }

    #[test]
    fn caveats_are_reported_only_above_the_limits() {
        assert!(for_trial(&trial(9.0, 3_900.0, 0)).is_empty());
        let all = for_trial(&trial(242.5, 12_000.0, 3));
        assert_eq!(all.len(), 3);
        assert!(all[0].contains("242 ms") && all[1].contains("12.0 ms") && all[2].contains(" 3 "));
        assert!(is_disturbed(&trial(0.0, 12_000.0, 0)) && !is_disturbed(&trial(242.0, 3_900.0, 3)));
        let mut slow = trial(0.0, 0.0, 0);
        slow.links.push(LinkRecord {
            faults: vec!["up: the link cannot keep up".to_owned()],
            ..LinkRecord::default()
        });
        assert!(is_disturbed(&slow));
        let mut simulated = trial(242.0, 12_000.0, 3);
        simulated.surroundings = None;
        assert!(for_trial(&simulated).is_empty() && !is_disturbed(&simulated));
    }
}
