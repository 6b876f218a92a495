//! Reasons to doubt the figures of a trial: the load generator or the machine, not the SUT, was the limit.

use crate::raw::{Surroundings, TrialRecord};

/// Lateness of the generator (99th percentile, milliseconds) above which it may dominate the response times.
const LATE_MS: f64 = 10.0;
/// Lateness of a sleeping thread (99th percentile, microseconds) above which other work kept the machine busy.
/// Timers of an idle virtual machine are late by about 0.2 ms, beside other work that leaves CPU time free by about 2
/// ms.
const NOISE_US: f64 = 4_000.0;

/// Lateness of RTP packets (99th percentile, milliseconds) beyond the host's noise above which the generator did not
/// send the planned load: the packet time of voice.
const SENT_LATE_MS: f64 = 20.0;

/// The reason why the generator could not keep up with the RTP packets that it had to send, if so: figures of the SUT
/// would be those of the generator.
pub(crate) fn starved(around: &Surroundings) -> Option<String> {
    let sent = around.send_lateness.as_ref()?;
    let noise_ms = around.noise.p99_us / 1e3;
    if sent.skipped > 0 {
        return Some(format!(
            "the generator could not keep up: {} of {} RTP packets were too late to be sent",
            sent.skipped,
            sent.skipped + sent.packets
        ));
    }
    (sent.p99_ms - noise_ms > SENT_LATE_MS).then(|| {
        format!(
            "the generator could not keep up: RTP packets were sent {:.1} ms late (99th percentile), the host's noise is {noise_ms:.1} ms",
            sent.p99_ms
        )
    })
}

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
    all.extend(starved(around));
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
/// of calls alone is not counted, since the load itself may cause it. Or a link of `[network]` or the generator's RTP
/// packets did not keep up.
pub fn is_disturbed(trial: &TrialRecord) -> bool {
    let around = trial.surroundings.as_ref();
    trial.is_load_invalid() || around.is_some_and(|around| around.noise.p99_us > NOISE_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RunVerdict;
    use crate::figures::{Details, Figures};
    use crate::raw::{LinkRecord, NoiseRecord, SendLateness};

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
        let mut starving = trial(0.0, 1_000.0, 0);
        let late = |p99_ms, skipped| {
            Some(SendLateness {
                packets: 100,
                skipped,
                p99_ms,
                ..SendLateness::default()
            })
        };
        for (lateness, is_late) in [
            (late(20.9, 0), false),
            (late(21.1, 0), true),
            (late(0.1, 1), true),
        ] {
            if let Some(around) = &mut starving.surroundings {
                around.send_lateness = lateness;
            }
            assert_eq!(is_disturbed(&starving), is_late, "{lateness:?}");
            assert_eq!(for_trial(&starving).len(), usize::from(is_late));
        }
        let mut simulated = trial(242.0, 12_000.0, 3);
        simulated.surroundings = None;
        assert!(for_trial(&simulated).is_empty() && !is_disturbed(&simulated));
    }
}
