//! `[log]`: logging.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Log levels.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawLevel {
    /// Failures.
    Error,
    /// Possible failures.
    Warn,
    /// Calls, registrations, trunks.
    #[default]
    Info,
    /// Also each refused request.
    Debug,
    /// Everything.
    Trace,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawFormat {
    /// Text lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Logging.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLog {
    /// Lowest level that is written.
    pub level: RawLevel,
    /// `text` or `json`.
    pub format: RawFormat,
}

/// Logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSpec {
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// One JSON object per line instead of text.
    pub json: bool,
}

pub(super) fn log(raw: &RawLog) -> LogSpec {
    let level = match raw.level {
        RawLevel::Error => "error",
        RawLevel::Warn => "warn",
        RawLevel::Info => "info",
        RawLevel::Debug => "debug",
        RawLevel::Trace => "trace",
    };
    LogSpec {
        level: level.to_owned(),
        json: raw.format == RawFormat::Json,
    }
}
