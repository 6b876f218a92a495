//! What makes a trial say less about its subject than its figures seem to: the generator or the machine was the limit.

use crate::raw::TrialRecord;

/// Lateness of the generator (99th percentile) from which on response times may be its own, milliseconds.
const LATE_MS: f64 = 10.0;
/// Lateness of a thread that only sleeps (99th percentile) from which the machine was busy with something else, microseconds.
/// The timers of a quiet virtual machine are late by a fifth of a millisecond, and by two beside other work that leaves room.
const NOISE_US: f64 = 4_000.0;

/// In words; none for a trial on a quiet machine, or in virtual time.
pub fn of(trial: &TrialRecord) -> Vec<String> {
    let Some(around) = &trial.surroundings else {
        return Vec::new();
    };
    let mut all = Vec::new();
    if let Some(late) = trial.details.lateness_ms[1].filter(|late| *late > LATE_MS) {
        all.push(format!(
            "the generator itself was late by {late:.0} ms (99th percentile)"
        ));
    }
    if around.noise.p99_us > NOISE_US {
        all.push(format!(
            "the machine was busy: a thread that only sleeps came back {:.1} ms late (99th percentile)",
            around.noise.p99_us / 1e3
        ));
    }
    let dropped = around
        .receive_buffer_errors_after
        .saturating_sub(around.receive_buffer_errors_before);
    if dropped > 0 {
        all.push(format!(
            "the kernel dropped {dropped} datagrams (RcvbufErrors), which retransmissions hide"
        ));
    }
    all
}

/// Whether the machine was busy with something else for so long that the trial says little: a thread that only sleeps came back late.
/// What only the generator was late by may be the load itself.
pub fn disturbed(trial: &TrialRecord) -> bool {
    let around = trial.surroundings.as_ref();
    around.is_some_and(|around| around.noise.p99_us > NOISE_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Verdict;
    use crate::figures::{Details, Figures};
    use crate::raw::{NoiseRecord, Surroundings};

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
            verdict: Verdict::Passed,
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
        }
    }

    #[test]
    fn only_what_is_out_of_bounds_is_told() {
        assert!(of(&trial(9.0, 3_900.0, 0)).is_empty());
        let all = of(&trial(242.5, 12_000.0, 3));
        assert_eq!(all.len(), 3);
        assert!(all[0].contains("242 ms") && all[1].contains("12.0 ms") && all[2].contains(" 3 "));
        assert!(disturbed(&trial(0.0, 12_000.0, 0)) && !disturbed(&trial(242.0, 3_900.0, 3)));
        let mut simulated = trial(242.0, 12_000.0, 3);
        simulated.surroundings = None;
        assert!(of(&simulated).is_empty() && !disturbed(&simulated));
    }
}
