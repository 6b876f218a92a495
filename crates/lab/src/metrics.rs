//! End-to-end SIP performance metrics (RFC 6076), computed from the records of attempts as their caller saw them.

use crate::figures::REGISTERING;
use crate::figures::quantile;
use crate::record::{Attempt, Kind, Outcome};
use serde::{Deserialize, Serialize};

/// A span that was measured some times, milliseconds (seconds where its field says so).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// How often.
    pub count: u64,
    /// Mean; `null` where there was none.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
}

impl Span {
    fn of(values: impl Iterator<Item = f64>) -> Span {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        Span {
            count: count as u64,
            mean: (count > 0).then(|| values.iter().sum::<f64>() / count as f64),
            p50: quantile(&values, 0.5),
            p99: quantile(&values, 0.99),
            max: values.last().copied(),
        }
    }
}

/// The metrics; ratios in percent, `null` where nothing was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SipMetrics {
    /// Registration Request Delay (section 4.1): first REGISTER to 2xx, a challenge included.
    pub registration_request_delay_ms: Span,
    /// Ineffective Registration Attempts (4.2): refused or unanswered, of all.
    pub ineffective_registrations_percent: Option<f64>,
    /// Session Request Delay of successful set-up (4.3.1): INVITE to the first status that a caller hears of (18x or 2xx).
    pub session_request_delay_ms: Span,
    /// Session Request Delay of failed set-up (4.3.2): INVITE to the final failure or its timeout; challenges and redirections
    /// are no failures.
    pub failed_session_request_delay_ms: Span,
    /// Session Disconnect Delay (4.4): our BYE to its answer or timeout.
    pub session_disconnect_delay_ms: Span,
    /// Session Duration Time (4.5): 2xx to BYE, seconds.
    pub session_duration_s: Span,
    /// Session Establishment Ratio (4.6): answered 2xx, of those not redirected.
    pub session_establishment_percent: Option<f64>,
    /// Session Establishment Effectiveness Ratio (4.7): the same with 480, 486, 600 and 603, which are the called user's.
    pub session_establishment_effectiveness_percent: Option<f64>,
    /// Ineffective Session Attempts (4.8): 408, 500, 503, 504 or no final response.
    pub ineffective_sessions_percent: Option<f64>,
    /// Session Completion Ratio (4.9): begun by INVITE and ended by BYE with its answer.
    pub session_completion_percent: Option<f64>,
}

fn between(from: Option<u64>, to: Option<u64>) -> Option<f64> {
    Some(to?.saturating_sub(from?) as f64 / 1e6)
}

fn percent(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 100.0 / whole as f64)
}

/// Statuses by which the called user, not the network, ends an attempt (section 4.7).
const OF_THE_USER: [u16; 4] = [480, 486, 600, 603];
/// Statuses of an overloaded or broken element (section 4.8).
const INEFFECTIVE: [u16; 4] = [408, 500, 503, 504];

/// The metrics of these attempts. Those that never left the generator are no requests.
pub fn compute(attempts: &[Attempt]) -> SipMetrics {
    let sent = |kinds: &[Kind]| -> Vec<&Attempt> {
        let of = attempts.iter().filter(|a| kinds.contains(&a.kind));
        of.filter(|a| a.outcome.was_started() && a.sent.is_some())
            .collect()
    };
    let registrations = sent(&REGISTERING);
    let calls = sent(&[Kind::Call]);
    let up = |a: &&Attempt| a.established.is_some();
    let redirected = |a: &Attempt| !up(&a) && (300..400).contains(&a.status);
    let considered: Vec<&Attempt> = calls.iter().copied().filter(|a| !redirected(a)).collect();
    let established = considered.iter().copied().filter(up).count();
    let of_the_user = considered
        .iter()
        .filter(|a| !up(a) && OF_THE_USER.contains(&a.status))
        .count();
    let ineffective = calls
        .iter()
        .filter(|a| !up(a) && (INEFFECTIVE.contains(&a.status) || unanswered(a)))
        .count();
    let completed = calls
        .iter()
        .filter(|a| up(a) && a.outcome == Outcome::Completed);
    let refused = registrations.iter().filter(|a| !up(a)).count();
    SipMetrics {
        registration_request_delay_ms: Span::of(
            registrations
                .iter()
                .filter_map(|a| between(a.sent, a.established)),
        ),
        ineffective_registrations_percent: percent(refused, registrations.len()),
        session_request_delay_ms: Span::of(calls.iter().filter_map(|a| {
            let first = a.ringing.or(a.established).filter(|_| up(a));
            between(a.sent, first)
        })),
        failed_session_request_delay_ms: Span::of(
            calls
                .iter()
                .filter(|a| failed(a))
                .filter_map(|a| between(a.sent, a.ended)),
        ),
        session_disconnect_delay_ms: Span::of(
            calls.iter().filter_map(|a| between(a.hung_up, a.ended)),
        ),
        session_duration_s: Span::of(calls.iter().filter_map(|a| {
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
    attempt.outcome == Outcome::TimedOut && attempt.status == 0
}

/// A failure final response, or none at all; what the caller cancelled, redirections and challenges are none (4.3.2).
fn failed(attempt: &Attempt) -> bool {
    let no_failure = matches!(attempt.status, 300..=399 | 401 | 402 | 407 | 487);
    attempt.established.is_none()
        && attempt.outcome != Outcome::Cancelled
        && (unanswered(attempt) || (attempt.status >= 400 && !no_failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Time;

    fn call(number: u64) -> Attempt {
        let mut attempt = Attempt::new("callers", Kind::Call, number, Time::from_millis(0));
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
        attempt.outcome = Outcome::Completed;
        attempt
    }

    fn refused(number: u64, status: u16, ms: u64, outcome: Outcome) -> Attempt {
        let mut attempt = call(number);
        attempt.status = status;
        attempt.ended = Some(ms * 1_000_000);
        attempt.outcome = outcome;
        attempt
    }

    #[test]
    fn each_metric_of_rfc_6076_by_hand() {
        let mut limit = call(9);
        limit.sent = None;
        limit.outcome = Outcome::LimitReached;
        let mut unanswered_bye = answered(2, None, 40, 1_040, 33_040);
        unanswered_bye.outcome = Outcome::ByeUnanswered;
        let attempts = [
            answered(0, Some(10), 100, 5_100, 5_120),
            answered(1, None, 30, 3_030, 3_040),
            unanswered_bye,
            refused(3, 486, 50, Outcome::Refused),
            refused(4, 503, 20, Outcome::Refused),
            refused(5, 0, 32_000, Outcome::TimedOut),
            refused(6, 302, 15, Outcome::Refused),
            refused(7, 487, 900, Outcome::Cancelled),
            limit,
        ];
        let metrics = compute(&attempts);
        // 10 (ringing), 30 and 40 (answered without).
        assert_eq!(metrics.session_request_delay_ms.count, 3);
        assert_eq!(metrics.session_request_delay_ms.p50, Some(30.0));
        // 486, 503 and the timeout; not the redirection, not what was cancelled.
        assert_eq!(metrics.failed_session_request_delay_ms.count, 3);
        assert_eq!(metrics.failed_session_request_delay_ms.max, Some(32_000.0));
        // 20 and 10 ms, and 32 s without an answer.
        assert_eq!(metrics.session_disconnect_delay_ms.count, 3);
        assert_eq!(metrics.session_disconnect_delay_ms.p50, Some(20.0));
        assert_eq!(metrics.session_duration_s.mean, Some(3.0));
        // Eight requests, one redirected.
        let near = |value: Option<f64>, wanted: f64| (value.unwrap() - wanted).abs() < 1e-9;
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
    fn registrations_by_hand() {
        let registration = |ms: Option<u64>, status: u16| {
            let mut attempt = Attempt::new("r", Kind::Registration, 0, Time::from_millis(0));
            attempt.sent = Some(0);
            attempt.established = ms.map(|ms| ms * 1_000_000);
            attempt.status = status;
            attempt.outcome = match ms {
                Some(_) => Outcome::Completed,
                None => Outcome::Refused,
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
