//! Scheduling of worker threads.

use super::sink::Sink;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Use of a feature that requires privileges.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum PrivilegedMode {
    /// Not used.
    #[default]
    Never,
    /// Used if the privileges allow it; the log states the result.
    Auto,
    /// Used, or the program does not start.
    Require,
}

/// Threads that process signalling and media.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Threads {
    /// Scheduling by SCHED_FIFO: ordinary processes on the same CPUs no longer delay these threads, and wait for as
    /// long as these have work. For machines dedicated to the border. Requires CAP_SYS_NICE or a limit of real-time
    /// priority (RLIMIT_RTPRIO).
    pub realtime: PrivilegedMode,
    /// Priority under SCHED_FIFO.
    #[schemars(range(min = 1, max = 90))]
    pub priority: u32,
    /// Whether memory is locked against swapping after first use (mlockall). Requires CAP_IPC_LOCK or an unlimited
    /// RLIMIT_MEMLOCK.
    pub lock_memory: PrivilegedMode,
    /// CPUs to pin the threads to, one for each of `sip.workers` in order, counted from 0. Default: several workers are
    /// pinned to the first CPUs that the program may use, if there are enough; a single thread is not pinned.
    pub cpus: Vec<u16>,
}

impl Default for Threads {
    fn default() -> Self {
        Threads {
            realtime: PrivilegedMode::Never,
            priority: 10,
            lock_memory: PrivilegedMode::Never,
            cpus: Vec::new(),
        }
    }
}

/// The threads; there are `sip_workers` workers.
pub(super) fn threads(threads: &Threads, sip_workers: u8, sink: &mut Sink<'_>) -> Threads {
    let (named, workers) = (threads.cpus.len(), usize::from(sip_workers));
    if named != 0 && named != workers {
        sink.report(
            "threads.cpus",
            format!("{named} CPUs for {workers} workers (sip.workers)"),
            "list one CPU for each worker, or remove `cpus`",
        );
    }
    let mut seen = threads.cpus.clone();
    seen.sort_unstable();
    seen.dedup();
    if seen.len() != named {
        sink.report(
            "threads.cpus",
            "a CPU is listed twice".to_owned(),
            "use a different CPU for each worker",
        );
    }
    threads.clone()
}
