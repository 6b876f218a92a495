//! Requests and answers between test lab and agent, as JSON.

use crate::raw::MachineRecord;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A request of the test lab.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum AgentRequest {
    /// The file of a subject, its version and whether it is installed.
    Describe {
        /// Name of the subject.
        subject: String,
    },
    /// Start a subject.
    Start {
        /// Name of the subject.
        subject: String,
        /// The called side, at the test lab.
        called: Option<SocketAddr>,
        /// Most calls at a time.
        calls: u64,
    },
    /// Its figures.
    Figures {
        /// With those of the memory.
        memory: bool,
    },
    /// Stop it.
    Stop,
}

/// An answer of an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum AgentAnswer {
    /// A subject.
    Described {
        /// Its file, as TOML.
        text: String,
        /// Version of its program.
        version: String,
        /// Programs that are not installed there.
        missing: Vec<String>,
        /// The agent's machine.
        machine: MachineRecord,
    },
    /// The subject runs.
    Started {
        /// Its SIP address.
        listen: SocketAddr,
    },
    /// Figures of the processes that count.
    Figures {
        /// CPU time, seconds.
        cpu_seconds: f64,
        /// Memory, bytes; 0 if it was not requested.
        memory_bytes: u64,
        /// The reason, if the subject has ended by itself.
        ended: Option<String>,
    },
    /// The subject has stopped.
    Stopped,
    /// The request was not fulfilled.
    Refused {
        /// The problem.
        problem: String,
        /// The remedy.
        remedy: String,
    },
}
