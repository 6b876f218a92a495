//! `[registrar]`: the embedded registrar.

use super::sink::Sink;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The embedded registrar.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRegistrar {
    /// Shortest accepted registration lifetime in seconds. Shorter requests are refused with 423.
    #[schemars(range(min = 1, max = 86400))]
    pub min_expires_s: u32,
    /// Longest granted registration lifetime in seconds. Longer requests are shortened to this.
    #[schemars(range(min = 1, max = 604800))]
    pub max_expires_s: u32,
    /// Registration lifetime in seconds if the request states none.
    #[schemars(range(min = 1, max = 604800))]
    pub default_expires_s: u32,
    /// Maximum number of contacts of one user.
    #[schemars(range(min = 1, max = 100))]
    pub max_contacts: u32,
    /// Maximum number of numbers that one user with a prefix in `numbers` registers at the same time, each with its own
    /// contacts.
    #[schemars(range(min = 1, max = 1000000))]
    pub max_numbers: u32,
    /// Longest registration lifetime in seconds for a phone behind NAT over UDP, so that its NAT binding stays open. 0:
    /// no such limit. Default: 30, or `min_expires_s` if that is more.
    #[schemars(range(max = 86400))]
    pub nat_expires_s: Option<u32>,
    /// Seconds between keep-alives of phones that use outbound (RFC 5626), sent to them in Flow-Timer; over UDP at most
    /// `nat_expires_s`.
    #[schemars(range(min = 10, max = 900))]
    pub flow_timer_s: u32,
    /// Seconds between two REGISTERs to the core for a forwarded registration that does not change; REGISTERs in
    /// between are answered here. The core is asked for twice this lifetime; a registration that the core has accepted
    /// stays valid while the core is unreachable. 0: each REGISTER is forwarded.
    #[schemars(range(max = 86400))]
    pub refresh_interval_s: u32,
    /// Maximum number of accepted registrations per second, with and without credentials each. Phones above it are
    /// refused with 503 and a Retry-After for which a place is reserved. Phones that are registered from the same
    /// address are not counted. 0: no limit.
    #[schemars(range(max = 1000000))]
    pub registrations_per_s: u32,
    /// File that keeps registrations over a restart (SQLite), or `none`: in memory only. Its directory must exist, and
    /// one program uses it at a time. Default: `registrations.db` in the state directory that systemd provides
    /// (`StateDirectory=`, as in the packaged unit), otherwise `none`. Takes effect at the next start.
    pub store: Option<String>,
}

impl Default for RawRegistrar {
    fn default() -> Self {
        RawRegistrar {
            min_expires_s: 30,
            max_expires_s: 7200,
            default_expires_s: 3600,
            max_contacts: 10,
            max_numbers: 1000,
            nat_expires_s: None,
            flow_timer_s: 120,
            refresh_interval_s: 1800,
            registrations_per_s: 0,
            store: None,
        }
    }
}

/// The embedded registrar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrar {
    /// Shortest accepted lifetime in seconds. Shorter requests are refused with 423.
    pub min_expires_s: u32,
    /// Longest granted lifetime in seconds.
    pub max_expires_s: u32,
    /// Lifetime in seconds if the request states none.
    pub default_expires_s: u32,
    /// Maximum number of contacts per address of record.
    pub max_contacts: usize,
    /// Maximum number of registered numbers of one user with a prefix.
    pub max_numbers: usize,
    /// Longest lifetime in seconds for a phone behind NAT over UDP. 0: no such limit.
    pub nat_expires_s: u32,
    /// Flow-Timer of RFC 5626 in seconds.
    pub flow_timer_s: u32,
    /// Seconds between two REGISTERs to the core for a registration that does not change. 0: each one is forwarded.
    pub refresh_interval_s: u32,
    /// Maximum number of accepted registrations per second. 0: no limit.
    pub registrations_per_s: u32,
}

/// Storage of registrations over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrarStore {
    /// A file in the state directory, if the program has one.
    #[default]
    Usual,
    /// In memory only.
    None,
    /// This file.
    File(PathBuf),
}

pub(super) fn registrar(r: &RawRegistrar, sink: &mut Sink<'_>) -> Registrar {
    let (min, max) = (r.min_expires_s, r.max_expires_s);
    if min > max {
        sink.report(
            "registrar.min_expires_s",
            format!("min_expires_s ({min}) is above max_expires_s ({max})"),
            "lower min_expires_s, or raise max_expires_s",
        );
    }
    if !(min..=max.max(min)).contains(&r.default_expires_s) {
        sink.report(
            "registrar.default_expires_s",
            format!(
                "default_expires_s ({}) is not between min_expires_s ({min}) and max_expires_s ({max})",
                r.default_expires_s
            ),
            "choose a value between min_expires_s and max_expires_s",
        );
    }
    let nat_expires_s = r.nat_expires_s.unwrap_or(min.max(30));
    if nat_expires_s != 0 && nat_expires_s < min {
        sink.report(
            "registrar.nat_expires_s",
            format!("nat_expires_s ({nat_expires_s}) is below min_expires_s ({min})"),
            "raise nat_expires_s, lower min_expires_s, or set nat_expires_s to 0",
        );
    }
    Registrar {
        min_expires_s: min,
        max_expires_s: max,
        default_expires_s: r.default_expires_s,
        max_contacts: r.max_contacts as usize,
        max_numbers: r.max_numbers as usize,
        nat_expires_s,
        flow_timer_s: r.flow_timer_s,
        refresh_interval_s: r.refresh_interval_s,
        registrations_per_s: r.registrations_per_s,
    }
}

pub(super) fn store(raw: &RawRegistrar, sink: &mut Sink<'_>) -> RegistrarStore {
    match raw.store.as_deref() {
        None => RegistrarStore::Usual,
        Some("none") => RegistrarStore::None,
        Some(path) => {
            let path = PathBuf::from(path);
            if !path.is_absolute() {
                sink.report(
                    "registrar.store",
                    "`store` is not an absolute path",
                    "write store = \"/DIRECTORY/FILE\", or \"none\"",
                );
            }
            RegistrarStore::File(path)
        }
    }
}
