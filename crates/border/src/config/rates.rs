//! How many calls and registrations an interface or a trunk lets in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is let in a second; 0: as much as comes. Requests that carry credentials are counted apart from those that do not, so
/// that a call or a registration with digest counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Calls a second. 0: no limit.
    #[schemars(range(max = 1_000_000))]
    pub calls: u32,
    /// Registrations a second. 0: no limit.
    #[schemars(range(max = 1_000_000))]
    pub registrations: u32,
    /// Calls a second from one address. 0: no limit.
    #[schemars(range(max = 1_000_000))]
    pub source_calls: u32,
    /// Registrations a second from one address. 0: no limit. A site behind NAT is one address.
    #[schemars(range(max = 1_000_000))]
    pub source_registrations: u32,
    /// What those beyond the rates are answered: 503 (with Retry-After), 486 and the like.
    #[schemars(range(min = 400, max = 699))]
    pub status: u16,
}

impl Default for Rates {
    fn default() -> Self {
        Rates {
            calls: 0,
            registrations: 0,
            source_calls: 0,
            source_registrations: 0,
            status: 503,
        }
    }
}

impl Rates {
    /// Whether nothing is limited.
    pub fn is_open(&self) -> bool {
        [
            self.calls,
            self.registrations,
            self.source_calls,
            self.source_registrations,
        ] == [0; 4]
    }
}
