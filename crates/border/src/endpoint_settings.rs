//! Settings of the SIP endpoint, derived from the configuration.

use config::Config;
use engine::Worker;
use sip::{EndpointConfig, MovedDialogs, SessionConfig, TimerConfig};

/// Supported methods.
pub(crate) const ALLOW: &str = "INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK, REFER, SUBSCRIBE, NOTIFY, MESSAGE, REGISTER, PUBLISH";

/// Emergency calls for which there is room beyond the limit of calls.
const EMERGENCY_CALLS: usize = 100;

/// The limit of calls of the endpoint. Policy refuses calls beyond the configured limit, except emergency calls.
pub(crate) fn endpoint_calls(config: &Config) -> usize {
    config.limits.calls.saturating_add(EMERGENCY_CALLS)
}

/// Services that callers may require of proxies in their path: the border applies Privacy (RFC 3323 section 5), unless
/// that is disabled.
pub(crate) fn proxy_services(config: &Config) -> Vec<String> {
    let applies = config.identity.privacy;
    applies
        .then(|| String::from("privacy"))
        .into_iter()
        .collect()
}

/// Settings of the endpoint, derived from a configuration.
pub(crate) fn endpoint_config(
    config: &Config,
    worker: Worker,
    moves: Option<MovedDialogs>,
) -> EndpointConfig {
    EndpointConfig {
        user_agent: config.sip.agent.clone(),
        allow: String::from(ALLOW),
        // In addition to its own option tags, the border passes those that both ends negotiate with each other.
        supported: [
            "100rel",
            "timer",
            "replaces",
            "norefersub",
            "precondition",
            "histinfo",
            "join",
            "answermode",
            "early-session",
            "path",
            "outbound",
            "gruu",
            "uui",
            "199",
            "eventlist",
            "siprec",
            "record-aware",
            "resource-priority",
            "geolocation-sip",
            "geolocation-http",
            "recipient-list-message",
            "recipient-list-subscribe",
            "multiple-refer",
        ]
        .map(String::from)
        .to_vec(),
        proxy_services: proxy_services(config),
        session: config.session_timer.expires.map(|expires| SessionConfig {
            expires: seconds(expires),
            min_se: seconds(config.session_timer.min_se).max(90),
        }),
        timers: TimerConfig {
            trying: core::time::Duration::ZERO,
            idle: config.limits.connection_idle,
            ..TimerConfig::default()
        },
        limits: engine::Limits {
            transactions: worker.share(config.limits.transactions),
            calls: endpoint_calls(config),
            ..config.limits.clone()
        },
        opens_websockets: false,
        worker,
        moved_dialogs: moves,
        forwards: true,
        symmetric_responses: true,
        bounded_answers: true,
    }
}

fn seconds(span: core::time::Duration) -> u32 {
    u32::try_from(span.as_secs()).unwrap_or(u32::MAX)
}
