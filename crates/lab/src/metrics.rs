//! End-to-end SIP performance metrics (RFC 6076), computed from the attempt records of the calling side.

use crate::record::{Attempt, AttemptKind, AttemptOutcome};
use crate::statistics::quantile;
use serde::{Deserialize, Serialize};

/// Kinds of attempts that count as registrations.
pub(crate) const REGISTRATION_KINDS: [AttemptKind; 4] = [
    AttemptKind::Registration,
    AttemptKind::Refresh,
    AttemptKind::Reregistration,
    AttemptKind::Deregistration,
];

/// Statistics of a duration, milliseconds (seconds if the field name has that unit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DurationStats {
    /// Number of measurements.
    pub count: u64,
    /// Mean; `null` without measurements.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
}

impl DurationStats {
    fn of(values: impl Iterator<Item = f64>) -> DurationStats {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        DurationStats {
            count: count as u64,
            mean: (count > 0).then(|| values.iter().sum::<f64>() / count as f64),
            p50: quantile(&values, 0.5),
            p99: quantile(&values, 0.99),
            max: values.last().copied(),
        }
    }
}

/// The metrics; ratios in percent, `null` without requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SipMetrics {
    /// Registration Request Delay (section 4.1): first REGISTER to 2xx, a challenge included.
    pub registration_request_delay_ms: DurationStats,
    /// Ineffective Registration Attempts (4.2): refused or unanswered, of all.
    pub ineffective_registrations_percent: Option<f64>,
    /// Session Request Delay of successful set-up (4.3.1): INVITE to the first 18x or 2xx.
    pub session_request_delay_ms: DurationStats,
    /// Session Request Delay of failed set-up (4.3.2): INVITE to the final failure response or the timeout; challenges
    /// and redirections are not failures.
    pub failed_session_request_delay_ms: DurationStats,
    /// Session Disconnect Delay (4.4): BYE of the generator to its response or timeout.
    pub session_disconnect_delay_ms: DurationStats,
    /// Session Duration Time (4.5): 2xx to BYE, seconds.
    pub session_duration_s: DurationStats,
    /// Session Establishment Ratio (4.6): answered with 2xx, of those not redirected.
    pub session_establishment_percent: Option<f64>,
    /// Session Establishment Effectiveness Ratio (4.7): as above, also counting 480, 486, 600 and 603 of the called
    /// user.
    pub session_establishment_effectiveness_percent: Option<f64>,
    /// Ineffective Session Attempts (4.8): 408, 500, 503, 504 or no final response.
    pub ineffective_sessions_percent: Option<f64>,
    /// Session Completion Ratio (4.9): begun by INVITE and ended by BYE with a response.
    pub session_completion_percent: Option<f64>,
}

fn between(from: Option<u64>, to: Option<u64>) -> Option<f64> {
    Some(to?.saturating_sub(from?) as f64 / 1e6)
}

fn percent(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 100.0 / whole as f64)
}

/// Statuses with which the called user, not the network, ends an attempt (section 4.7).
const USER_STATUSES: [u16; 4] = [480, 486, 600, 603];
/// Statuses of an overloaded or broken element (section 4.8).
const INEFFECTIVE_STATUSES: [u16; 4] = [408, 500, 503, 504];

/// The metrics of these attempts. Attempts that were never sent are not requests.
pub fn compute(attempts: &[Attempt]) -> SipMetrics {
    let sent = |kinds: &[AttemptKind]| -> Vec<&Attempt> {
        let of = attempts.iter().filter(|a| kinds.contains(&a.kind));
        of.filter(|a| a.outcome.was_started() && a.sent.is_some())
            .collect()
    };
    let registrations = sent(&REGISTRATION_KINDS);
    let calls = sent(&[AttemptKind::Call]);
    let up = |a: &&Attempt| a.established.is_some();
    let redirected = |a: &Attempt| !up(&a) && (300..400).contains(&a.status);
    let considered: Vec<&Attempt> = calls.iter().copied().filter(|a| !redirected(a)).collect();
    let established = considered.iter().copied().filter(up).count();
    let of_the_user = considered
        .iter()
        .filter(|a| !up(a) && USER_STATUSES.contains(&a.status))
        .count();
    let ineffective = calls
        .iter()
        .filter(|a| !up(a) && (INEFFECTIVE_STATUSES.contains(&a.status) || unanswered(a)))
        .count();
    let completed = calls
        .iter()
        .filter(|a| up(a) && a.outcome == AttemptOutcome::Completed);
    let refused = registrations.iter().filter(|a| !up(a)).count();
    SipMetrics {
        registration_request_delay_ms: DurationStats::of(
            registrations
                .iter()
                .filter_map(|a| between(a.sent, a.established)),
        ),
        ineffective_registrations_percent: percent(refused, registrations.len()),
        session_request_delay_ms: DurationStats::of(calls.iter().filter_map(|a| {
            let first = a.ringing.or(a.established).filter(|_| up(a));
            between(a.sent, first)
        })),
        failed_session_request_delay_ms: DurationStats::of(
            calls
                .iter()
                .filter(|a| failed(a))
                .filter_map(|a| between(a.sent, a.ended)),
        ),
        session_disconnect_delay_ms: DurationStats::of(
            calls.iter().filter_map(|a| between(a.hung_up, a.ended)),
        ),
        session_duration_s: DurationStats::of(calls.iter().filter_map(|a| {
            let end = a.hung_up.or(a.ended);
            between(a.established, end).map(|ms| ms / 1e3)
        })),
        session_establishment_percent: percent(established, considered.len()),
        session_establishment_effectiveness_percent: percent(
            established + of_the_user,
            considered.len(),
        ),
        ineffective_sessions_percent: percent(ineffective, calls.len()),
        session_completion_percent: percent(completed.count(), calls.len()),
    }
}

fn unanswered(attempt: &Attempt) -> bool {
    attempt.outcome == AttemptOutcome::TimedOut && attempt.status == 0
}

/// Whether the attempt ended with a failure response or without a final one; cancelled calls, redirections and
/// challenges do not count (4.3.2).
fn failed(attempt: &Attempt) -> bool {
    let no_failure = matches!(attempt.status, 300..=399 | 401 | 402 | 407 | 487);
    attempt.established.is_none()
        && attempt.outcome != AttemptOutcome::Cancelled
        && (unanswered(attempt) || (attempt.status >= 400 && !no_failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Time;

    fn call(number: u64) -> Attempt {
        let mut attempt = Attempt::new("callers", AttemptKind::Call, number, Time::from_millis(0));
        attempt.sent = Some(0);
        attempt
    }

    fn answered(number: u64, ringing: Option<u64>, answer: u64, bye: u64, end: u64) -> Attempt {
        let ms = |value: u64| value * 1_000_000;
        let mut attempt = call(number);
        attempt.ringing = ringing.map(ms);
        attempt.established = Some(ms(answer));
        attempt.hung_up = Some(ms(bye));
        attempt.ended = Some(ms(end));
        attempt.status = 200;
        attempt.outcome = AttemptOutcome::Completed;
        attempt
    }

    fn refused(number: u64, status: u16, ms: u64, outcome: AttemptOutcome) -> Attempt {
        let mut attempt = call(number);
        attempt.status = status;
        attempt.ended = Some(ms * 1_000_000);
        attempt.outcome = outcome;
        attempt
    }

    #[test]
    fn rfc_6076_metrics_match_manual_calculation() {
        let mut limit = call(9);
        limit.sent = None;
        limit.outcome = AttemptOutcome::LimitReached;
        let mut unanswered_bye = answered(2, None, 40, 1_040, 33_040);
        unanswered_bye.outcome = AttemptOutcome::ByeUnanswered;
        let attempts = [
            answered(0, Some(10), 100, 5_100, 5_120),
            answered(1, None, 30, 3_030, 3_040),
            unanswered_bye,
            refused(3, 486, 50, AttemptOutcome::Refused),
            refused(4, 503, 20, AttemptOutcome::Refused),
            refused(5, 0, 32_000, AttemptOutcome::TimedOut),
            refused(6, 302, 15, AttemptOutcome::Refused),
            refused(7, 487, 900, AttemptOutcome::Cancelled),
            limit,
        ];
        let metrics = compute(&attempts);
        // 10 (ringing), 30 and 40 (answered without ringing).
        assert_eq!(metrics.session_request_delay_ms.count, 3);
        assert_eq!(metrics.session_request_delay_ms.p50, Some(30.0));
        // 486, 503 and the timeout; neither the redirected nor the cancelled call.
        assert_eq!(metrics.failed_session_request_delay_ms.count, 3);
        assert_eq!(metrics.failed_session_request_delay_ms.max, Some(32_000.0));
        // 20 and 10 ms, and 32 s without a response.
        assert_eq!(metrics.session_disconnect_delay_ms.count, 3);
        assert_eq!(metrics.session_disconnect_delay_ms.p50, Some(20.0));
        assert_eq!(metrics.session_duration_s.mean, Some(3.0));
        // Eight requests, one redirected.
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-9;
        assert!(near(metrics.session_establishment_percent, 300.0 / 7.0));
        assert!(near(
            metrics.session_establishment_effectiveness_percent,
            400.0 / 7.0
        ));
        assert!(near(metrics.ineffective_sessions_percent, 25.0));
        assert!(near(metrics.session_completion_percent, 25.0));
        assert_eq!(metrics.ineffective_registrations_percent, None);
    }

    #[test]
    fn registration_metrics_match_manual_calculation() {
        let registration = |ms: Option<u64>, status: u16| {
            let mut attempt = Attempt::new("r", AttemptKind::Registration, 0, Time::from_millis(0));
            attempt.sent = Some(0);
            attempt.established = ms.map(|ms| ms * 1_000_000);
            attempt.status = status;
            attempt.outcome = match ms {
                Some(_) => AttemptOutcome::Completed,
                None => AttemptOutcome::Refused,
            };
            attempt
        };
        let metrics = compute(&[
            registration(Some(4), 200),
            registration(Some(8), 200),
            registration(None, 403),
            registration(None, 503),
        ]);
        assert_eq!(metrics.registration_request_delay_ms.mean, Some(6.0));
        assert_eq!(metrics.ineffective_registrations_percent, Some(50.0));
        assert_eq!(metrics.session_establishment_percent, None);
    }
}
