//! `[drain]`: graceful shutdown.

use super::units;
use core::time::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Graceful shutdown.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Drain {
    /// Seconds after SIGTERM for calls in progress; new calls are refused. Calls that remain are then ended, with two
    /// more seconds for the responses of their peers. A second SIGTERM ends them at once.
    #[serde(rename = "timeout_s", with = "units::seconds")]
    #[schemars(with = "u32", range(max = 86400))]
    pub timeout: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Drain {
            timeout: Duration::from_secs(300),
        }
    }
}
