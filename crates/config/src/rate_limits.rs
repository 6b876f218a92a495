//! Rate limits of an interface or a trunk.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rate limits. Requests with credentials are counted separately from those without, so that a call or registration
/// with digest counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimits {
    /// Maximum number of new calls per second. 0: no limit.
    #[schemars(range(max = 1_000_000))]
    pub calls_per_s: u32,
    /// Maximum number of registrations per second. 0: no limit.
    #[schemars(range(max = 1_000_000))]
    pub registrations_per_s: u32,
    /// Maximum number of new calls per second from one source address (of IPv6, its /64). 0: no limit.
    #[schemars(range(max = 1_000_000))]
    pub source_calls_per_s: u32,
    /// Maximum number of registrations per second from one source address (of IPv6, its /64); a site behind NAT is one
    /// address. 0: no limit.
    #[schemars(range(max = 1_000_000))]
    pub source_registrations_per_s: u32,
    /// Status of refused requests: 503 (with Retry-After), 486 and similar.
    #[schemars(range(min = 400, max = 699))]
    pub status: u16,
}

impl Default for RateLimits {
    fn default() -> Self {
        RateLimits {
            calls_per_s: 0,
            registrations_per_s: 0,
            source_calls_per_s: 0,
            source_registrations_per_s: 0,
            status: 503,
        }
    }
}

impl RateLimits {
    /// Whether no limit is set.
    pub fn is_unlimited(&self) -> bool {
        [
            self.calls_per_s,
            self.registrations_per_s,
            self.source_calls_per_s,
            self.source_registrations_per_s,
        ] == [0; 4]
    }
}
