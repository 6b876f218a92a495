//! `[session_timer]`: session timers (RFC 4028).

use super::sink::Sink;
use super::units;
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Session timers (RFC 4028).
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct SessionTimer {
    /// Session-Expires in seconds that the border requests if a side requests none. 0: none; session timers requested
    /// by the sides are kept.
    #[serde(rename = "expires_s", with = "units::optional_seconds")]
    #[schemars(with = "u32", range(max = 86400))]
    pub expires: Option<Duration>,
    /// Min-SE in seconds, used with `expires_s`. Requests for less are refused with 422.
    #[serde(rename = "min_se_s", with = "units::seconds")]
    #[schemars(with = "u32", range(min = 90, max = 86400))]
    pub min_se: Duration,
}

impl Default for SessionTimer {
    fn default() -> Self {
        SessionTimer {
            expires: None,
            min_se: Duration::from_secs(90),
        }
    }
}

pub(super) fn session_timer(timer: &SessionTimer, sink: &mut Sink<'_>) -> SessionTimer {
    if timer.expires.is_none() && timer.min_se != SessionTimer::default().min_se {
        sink.report(
            "session_timer.min_se_s",
            "`min_se_s` has no effect without `expires_s`",
            "set `expires_s`, or remove `min_se_s`",
        );
    }
    if let Some(expires) = timer.expires.filter(|expires| *expires < timer.min_se) {
        sink.report(
            "session_timer.expires_s",
            format!(
                "expires_s ({}) is below min_se_s ({})",
                expires.as_secs(),
                timer.min_se.as_secs()
            ),
            "raise expires_s, or set it to 0",
        );
    }
    *timer
}
