//! Limits of admission control and of failed authentications.

use core::time::Duration;

/// Capacity of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineCapacity {
    /// Memory available to the border, KiB: of the machine, or of its control group.
    pub memory: u64,
    /// Available CPU time, microseconds per second: a million for each worker thread.
    pub processor: u64,
}

/// Configured limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Memory for calls and registrations, KiB; `None`: a share of the machine's.
    pub memory: Option<u64>,
    /// CPU time for established calls, microseconds per second; `None`: a share of the machine's.
    pub processor: Option<u64>,
    /// Status of the response to refused calls.
    pub status: u16,
    /// Capacity of the machine, if known.
    pub machine: Option<MachineCapacity>,
}

/// Limits of failed authentications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureLimits {
    /// Failures of one source in a row that are checked; 0: no limit.
    pub source: u32,
    /// Failures of one account in a row that are checked; 0: no limit.
    pub user: u32,
    /// First delay; it doubles with each further failure.
    pub delay: Duration,
    /// Longest delay. Failures older than this and the delay are forgotten.
    pub longest: Duration,
}
