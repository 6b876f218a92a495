//! Reasons to doubt the figures of a trial: the load generator or the machine, not the SUT, was the limit.

use crate::decimal::counted;
use crate::figures::{Details, ThresholdCheck};
use crate::raw::{Surroundings, TrialRecord};

/// Lateness of the generator (99th percentile, milliseconds) above which it may dominate the response times.
const LATE_MS: f64 = 10.0;
/// Lateness of a sleeping thread (99th percentile, microseconds) above which other work kept the machine busy.
/// Timers of an idle virtual machine are late by about 0.2 ms, beside other work that leaves CPU time free by about 2
/// ms.
const NOISE_US: f64 = 4_000.0;

/// Lateness of RTP packets (99th percentile, milliseconds) beyond the host's noise above which the generator did not
/// send the planned load: the packet time of voice. A sleeping thread that is late by as much is late for such packets,
/// too.
const SENT_LATE_MS: f64 = 20.0;
/// Lateness of attempts (99th percentile, milliseconds) above which the generator did not offer the planned load.
const ATTEMPT_LATE_MS: f64 = 50.0;
/// The same as a share of the bound of the response time: with a wide bound the lateness matters less.
const SHARE_OF_BOUND: f64 = 0.25;

/// Share of all processors (percent) above which other programs count: the load of the machine is not that of the SUT.
const OTHERS_PERCENT: f64 = 10.0;

/// Share of the time in which the SUT had work (percent) that it spent waiting for a processor, above which the machine
/// may be the limit.
const WAITED_PERCENT: f64 = 25.0;
/// The least such wait that counts, percent of the trial: a SUT that is nearly idle loses nothing by it.
const WAITED_OF_TRIAL_PERCENT: f64 = 10.0;

/// Figures of a trial by which its load is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferedLoad<'a> {
    around: &'a Surroundings,
    /// Due to sent, of attempts: 99th percentile, milliseconds.
    lateness_ms: Option<f64>,
    /// Bound of the response time's 99th percentile, milliseconds.
    response_bound_ms: Option<f64>,
    /// The load of the machine has a bound.
    bounds_host: bool,
}

impl<'a> OfferedLoad<'a> {
    /// The load of a trial with these figures; `None` in virtual time, where the generator is never late.
    pub fn of(
        around: Option<&'a Surroundings>,
        details: &Details,
        checks: &[ThresholdCheck],
    ) -> Option<OfferedLoad<'a>> {
        let bound = checks.iter().find(|check| check.name == "response_p99_ms");
        Some(OfferedLoad {
            around: around?,
            lateness_ms: details.lateness_ms[1],
            response_bound_ms: bound.map(|check| check.limit),
            bounds_host: checks.iter().any(|check| check.name == "host_cpu_percent"),
        })
    }

    /// The reason why the generator did not offer the planned load, if so: figures of the SUT would be those of the
    /// generator.
    pub fn fault(&self) -> Option<String> {
        if let Some(shortage) = &self.around.generator_shortage {
            return Some(format!(
                "the generator had no socket for {}: {}",
                counted(shortage.calls, "call"),
                shortage.error
            ));
        }
        // Other figures of the SUT suffer only by a host that took time away (`host_taken_away`) and by a late
        // generator.
        if self.bounds_host
            && let Some(others) = other_programs(self.around)
        {
            return Some(others);
        }
        let reason = self.skipped().or_else(|| self.dropped());
        let reason = reason.or_else(|| self.host_taken_away());
        let reason = reason.or_else(|| self.late_attempts());
        let reason = reason.or_else(|| self.late_packets())?;
        Some(format!("the generator could not keep up: {reason}"))
    }

    fn skipped(&self) -> Option<String> {
        let sent = self.around.send_lateness.filter(|sent| sent.skipped > 0)?;
        Some(format!(
            "{} of {} RTP packets were too late to be sent",
            sent.skipped,
            sent.skipped + sent.packets
        ))
    }

    /// What the generator did not read is neither lost nor late by the SUT.
    fn dropped(&self) -> Option<String> {
        let dropped = self.around.generator_drops;
        (dropped > 0).then(|| {
            format!(
                "the kernel dropped {} at the generator's sockets",
                counted(dropped, "datagram")
            )
        })
    }

    /// Other work that takes the processors delays generator and sampler alike, so it is a cause of its own.
    fn host_taken_away(&self) -> Option<String> {
        let noise_ms = self.around.noise.p99_us / 1e3;
        let counts = !self.around.generator_is_realtime && noise_ms > SENT_LATE_MS;
        counts.then(|| {
            format!(
                "the machine was taken away: a sleeping thread woke up {noise_ms:.1} ms late (99th percentile)"
            )
        })
    }

    /// The time of sending is that of the hand-over to the transport, which a slow SUT does not delay.
    fn late_attempts(&self) -> Option<String> {
        let share = self.response_bound_ms.unwrap_or(0.0) * SHARE_OF_BOUND;
        let bound = share.max(ATTEMPT_LATE_MS);
        let late = self.lateness_ms.filter(|late| *late > bound)?;
        Some(format!(
            "attempts were sent {late:.0} ms late (99th percentile), more than {bound:.0} ms"
        ))
    }

    fn late_packets(&self) -> Option<String> {
        let sent = self.around.send_lateness?;
        let noise_ms = self.around.noise.p99_us / 1e3;
        (sent.p99_ms - noise_ms.min(SENT_LATE_MS) > SENT_LATE_MS).then(|| {
            format!(
                "RTP packets were sent {:.1} ms late (99th percentile), the host's noise is {noise_ms:.1} ms",
                sent.p99_ms
            )
        })
    }
}

/// Load by other programs, if it counts.
fn other_programs(around: &Surroundings) -> Option<String> {
    let percent = around.other_programs_percent;
    let percent = percent.filter(|percent| *percent > OTHERS_PERCENT)?;
    Some(format!(
        "other programs took {percent:.0} % of the processors"
    ))
}

/// The reason to take the machine for the limit of a trial, if its SUT had work and no processor: generator and SUT
/// share them. The trial is judged, as the load was offered; with more processors the SUT may carry more.
pub(crate) fn shared_processors(trial: &TrialRecord) -> Option<String> {
    let around = trial.surroundings.as_ref()?;
    let (ran, waited) = (around.subject_cpu_seconds?, around.subject_waited_seconds?);
    let of_work = waited * 100.0 / (ran + waited);
    let of_trial = waited * 100.0 / trial.seconds;
    (of_work > WAITED_PERCENT && of_trial > WAITED_OF_TRIAL_PERCENT).then(|| {
        format!(
            "the SUT waited for a processor in {of_work:.0} % of the time in which it had work: the machine that it \
             shares with the load generator may be the limit"
        )
    })
}

/// The reason why the generator did not offer the planned load of a trial, if so.
pub(crate) fn starved(trial: &TrialRecord) -> Option<String> {
    OfferedLoad::of(trial.surroundings.as_ref(), &trial.details, &trial.checks)?.fault()
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
    let fault = starved(trial);
    let others = other_programs(around).filter(|others| fault.as_ref() != Some(others));
    all.extend(fault.into_iter().chain(others));
    if around.noise.p99_us > NOISE_US {
        all.push(format!(
            "the machine was busy: a sleeping thread woke up {:.1} ms late (99th percentile)",
            around.noise.p99_us / 1e3
        ));
    }
    all.extend(shared_processors(trial));
    if around.generator_unparsable > 0 {
        all.push(format!(
            "the system under test answers with bytes that are no SIP: sip_unparsable and sip_malformed_response {}",
            around.generator_unparsable
        ));
    }
    // Those of the generator are a reason not to judge the trial.
    let dropped = around
        .receive_buffer_errors_after
        .saturating_sub(around.receive_buffer_errors_before)
        .saturating_sub(around.generator_drops);
    if dropped > 0 {
        // Nothing repeats a media packet.
        let hidden = match trial.details.streams {
            0 => ", hidden by retransmissions",
            _ => "",
        };
        all.push(format!(
            "the kernel dropped {} at other sockets (RcvbufErrors){hidden}",
            counted(dropped, "datagram")
        ));
    }
    all
}

/// Whether the trial is not conclusive: other work kept the machine busy, so that a sleeping thread was late, or a link
/// of `[network]` or the generator did not keep up.
pub fn is_disturbed(trial: &TrialRecord) -> bool {
    let around = trial.surroundings.as_ref();
    trial.is_load_invalid() || around.is_some_and(|around| around.noise.p99_us > NOISE_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RunVerdict;
    use crate::figures::{Details, Figures};
    use crate::raw::{LinkRecord, NoiseRecord, SendLateness, SocketShortage};

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
            short: false,
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
        let all = for_trial(&trial(42.5, 12_000.0, 3));
        assert_eq!(all.len(), 3);
        assert!(all[0].contains("42 ms") && all[1].contains("12.0 ms") && all[2].contains(" 3 "));
        assert!(is_disturbed(&trial(0.0, 12_000.0, 0)) && !is_disturbed(&trial(42.0, 3_900.0, 3)));
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

    #[test]
    fn machine_is_named_where_the_sut_had_no_processor() {
        let with = |ran: f64, waited: Option<f64>| {
            let mut trial = TrialRecord {
                seconds: 20.0,
                ..trial(1.0, 600.0, 0)
            };
            if let Some(around) = &mut trial.surroundings {
                around.subject_cpu_seconds = Some(ran);
                around.subject_waited_seconds = waited;
            }
            trial
        };
        // 800 calls with media on two processors: border and called side shared one of them.
        let shared = with(10.6, Some(9.4));
        let text = shared_processors(&shared).unwrap();
        assert!(text.contains("in 47 % of the time"), "{text}");
        assert!(for_trial(&shared).contains(&text));
        // The load was offered, so the trial is judged.
        assert!(!is_disturbed(&shared));
        for (ran, waited) in [(16.0, Some(4.0)), (1.0, Some(1.5)), (10.6, None)] {
            assert_eq!(shared_processors(&with(ran, waited)), None, "{ran}");
        }
    }

    #[test]
    fn load_of_other_programs_is_not_judged_as_that_of_the_system_under_test() {
        let with = |others: Option<f64>, bounds: &[&str]| {
            let mut trial = trial(1.0, 600.0, 0);
            trial.details.host_cpu_percent = Some(99.5);
            let bound = |name: &&str| ThresholdCheck {
                name: (*name).to_owned(),
                limit: 90.0,
                measured: Some(99.5),
                holds: Some(false),
                required: false,
            };
            trial.checks = bounds.iter().map(bound).collect();
            if let Some(around) = &mut trial.surroundings {
                around.other_programs_percent = others;
            }
            trial
        };
        let bounds = ["lost_percent", "host_cpu_percent"];
        let busy = with(Some(84.4), &bounds);
        let reason = "other programs took 84 % of the processors";
        assert_eq!(starved(&busy).as_deref(), Some(reason));
        assert_eq!(for_trial(&busy), [reason]);
        assert!(is_disturbed(&busy) && busy.is_load_invalid());
        // The load of the SUT and of the generator.
        for own in [with(Some(9.9), &bounds), with(None, &bounds)] {
            assert_eq!(starved(&own), None);
            assert!(for_trial(&own).is_empty());
        }
        // Without a bound of the machine's load it is a remark.
        let remarked = with(Some(84.4), &bounds[..1]);
        assert_eq!(starved(&remarked), None);
        assert_eq!(for_trial(&remarked), [reason]);
        assert!(!is_disturbed(&remarked));
    }

    #[test]
    fn answers_that_are_no_sip_are_named() {
        let mut nonsense = trial(1.0, 100.0, 0);
        if let Some(around) = &mut nonsense.surroundings {
            around.generator_unparsable = 251;
        }
        let all = for_trial(&nonsense);
        assert_eq!(
            all,
            [
                "the system under test answers with bytes that are no SIP: sip_unparsable and sip_malformed_response 251"
            ]
        );
        // It is a fault of the system under test, and no reason to doubt the figures.
        assert!(!is_disturbed(&nonsense));
    }

    #[test]
    fn calls_without_a_socket_are_no_failure_of_the_system_under_test() {
        let mut short = trial(1.0, 100.0, 0);
        if let Some(around) = &mut short.surroundings {
            around.generator_shortage = Some(SocketShortage {
                calls: 420,
                error: "Too many open files".to_owned(),
            });
        }
        let reason = "the generator had no socket for 420 calls: Too many open files";
        assert_eq!(starved(&short).as_deref(), Some(reason));
        assert!(is_disturbed(&short) && short.is_load_invalid());
    }

    #[test]
    fn datagrams_that_the_generator_lost_are_not_a_loss_of_the_system_under_test() {
        let mut busy = trial(1.0, 100.0, 8);
        busy.details.streams = 4;
        assert!(!is_disturbed(&busy));
        let remarks = for_trial(&busy).join("; ");
        assert!(
            remarks.contains("dropped 8 datagrams at other sockets (RcvbufErrors)"),
            "{remarks}"
        );
        assert!(!remarks.contains("hidden"), "{remarks}");
        if let Some(around) = &mut busy.surroundings {
            around.generator_drops = 8;
        }
        assert!(is_disturbed(&busy));
        let all = for_trial(&busy);
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(
            all[0].contains("the kernel dropped 8 datagrams at the generator's sockets"),
            "{all:?}"
        );
    }

    #[test]
    fn late_attempts_and_a_machine_that_is_taken_away_are_starvation() {
        let reason = |late: f64, noise: f64| starved(&trial(late, noise, 0)).unwrap_or_default();
        assert_eq!(reason(49.0, 19_900.0), "");
        assert!(reason(1_416.0, 200.0).contains("attempts were sent 1416 ms late"));
        // Noise is no excuse: it is the cause.
        assert!(reason(1_416.0, 1_442_000.0).contains("the machine was taken away"));
        assert!(reason(3.0, 20_100.0).contains("woke up 20.1 ms late"));
        let mut wide = trial(90.0, 200.0, 0);
        let bound = |limit| ThresholdCheck {
            name: "response_p99_ms".to_owned(),
            limit,
            measured: Some(1.0),
            holds: Some(true),
            required: false,
        };
        wide.checks = vec![bound(400.0)];
        assert_eq!(starved(&wide), None);
        wide.checks = vec![bound(200.0)];
        assert!(starved(&wide).is_some());
        // A sampler without real-time priority waits for threads that have it.
        let mut realtime = trial(3.0, 90_000.0, 0);
        if let Some(around) = &mut realtime.surroundings {
            around.generator_is_realtime = true;
        }
        assert_eq!(starved(&realtime), None);
    }
}
