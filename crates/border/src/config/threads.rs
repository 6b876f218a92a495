//! How the threads that move signalling and media run.

use super::check::Sink;
use super::raw::Raw;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that takes rights which a program may lack.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// Not at all.
    #[default]
    Never,
    /// Where the rights are there, which the log says.
    Auto,
    /// Or no start.
    Require,
}

/// The threads that move signalling and media.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Threads {
    /// Whether they run under SCHED_FIFO: nothing ordinary on their processors then delays them, and they keep it waiting for as long as they
    /// have work. For machines that are the border's own. It takes CAP_SYS_NICE or a limit of real-time priority (RLIMIT_RTPRIO).
    pub realtime: Wish,
    /// Their priority under SCHED_FIFO.
    #[schemars(range(min = 1, max = 90))]
    pub priority: u32,
    /// Whether memory, once used, is kept from being swapped out (mlockall). It takes CAP_IPC_LOCK or no limit of locked memory
    /// (RLIMIT_MEMLOCK).
    pub lock_memory: Wish,
    /// Processors to pin them to, one for each of `sip.workers` in order, counted from 0. Left out: several workers are pinned to the first ones
    /// that the program may use, where there are enough; one thread alone goes where the kernel puts it.
    pub processors: Vec<u16>,
}

impl Default for Threads {
    fn default() -> Self {
        Threads {
            realtime: Wish::Never,
            priority: 10,
            lock_memory: Wish::Never,
            processors: Vec::new(),
        }
    }
}

pub(super) fn threads(raw: &Raw, sink: &mut Sink<'_>) -> Threads {
    let threads = &raw.threads;
    let (named, workers) = (threads.processors.len(), usize::from(raw.sip.workers));
    if named != 0 && named != workers {
        sink.report(
            "threads.processors",
            format!("{named} processors for {workers} threads (sip.workers)"),
            "name one for each, or leave processors out",
        );
    }
    let mut seen = threads.processors.clone();
    seen.sort_unstable();
    seen.dedup();
    if seen.len() != named {
        sink.report(
            "threads.processors",
            "a processor is named twice".to_owned(),
            "name another for each thread",
        );
    }
    threads.clone()
}
