//! `[limits]`: capacities, and the limits of admission control.

use super::sink::seconds;
use engine::Limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Capacities.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLimits {
    /// Maximum number of simultaneous calls. Up to 100 emergency calls are accepted above it.
    #[schemars(range(min = 1))]
    pub calls: u32,
    /// Maximum number of SIP transactions, including completed ones that absorb retransmissions.
    #[schemars(range(min = 1))]
    pub transactions: u32,
    /// Maximum number of registered contacts.
    #[schemars(range(min = 1))]
    pub registrations: u32,
    /// Maximum number of stream connections that peers open. If all are in use, a new one replaces the oldest one
    /// without a SIP message. Connections that are opened to peers do not count; there can be as many of them.
    #[schemars(range(min = 1))]
    pub connections: u32,
    /// Maximum number of stream connections that one source address opens (of IPv6, its /64).
    #[schemars(range(min = 1))]
    pub connections_per_source: u32,
    /// Seconds without a complete message or keep-alive after which a stream connection is closed, unless a registered
    /// phone or a dialog uses it. A connection that a peer opened is closed after 30 seconds without a SIP message,
    /// despite keep-alives.
    #[schemars(range(min = 60, max = 86400))]
    pub connection_idle_s: u32,
    /// Seconds for all handshakes of a connection (TLS, WebSocket) together.
    #[schemars(range(min = 1, max = 60))]
    pub handshake_timeout_s: u32,
    /// Maximum number of TLS handshakes per second on connections that peers open, so that handshakes do not take the
    /// CPU time of calls; one source address (of IPv6, its /64) gets at most half of them. Further ones wait, at most
    /// for `handshake_timeout_s`. 0: no limit.
    #[schemars(range(max = 1_000_000))]
    pub handshakes_per_s: u32,
    /// Maximum number of bytes queued for a slow peer; its connection is closed above that.
    #[schemars(range(min = 65536, max = 67108864))]
    pub connection_queue_bytes: u32,
    /// Maximum size of a SIP message in bytes.
    #[schemars(range(min = 2048, max = 65535))]
    pub message_bytes: u32,
    /// Memory for calls and registrations in MiB. A call takes 8 KiB, 40 more if its media is anchored, 16 for each
    /// side with TLS, 4 with WebSocket, 4 with SRTP (AES-GCM 6, DTLS 20 more), 64 if it is transcoded, 160 to 200 in a
    /// conference; a registration takes 1 KiB. Further calls are refused. 0: 60 % of the memory of the machine or its
    /// control group.
    #[schemars(range(max = 16_777_216))]
    pub memory_mib: u32,
    /// CPU time for calls in percent of one CPU. A call with anchored media takes 0.2 (0.18 over the shared-port
    /// socket, 0.1 over AF_XDP, 0.009 if relayed by the kernel), an upper bound: near the limit of a CPU a packet costs
    /// half as much. Each side with SRTP takes 0.01 (AES-GCM 0.006), each transcoded side 0.02 (G.711) to 1.2 (Opus), a
    /// conference participant 0.15 to 0.55; a TLS handshake takes 0.09 and a DTLS handshake 0.11 for one second.
    /// Further calls are refused, and the event `admission_refused` lists the use. 0: 70 % of the CPUs that the border
    /// can use.
    #[schemars(range(max = 100_000))]
    pub cpu_percent: u32,
    /// Status for calls that are refused for lack of memory or CPU time: 503 (with Retry-After), 486 and similar.
    /// Emergency calls (`urn:service:sos`, `[sip] emergency_numbers`) are always accepted.
    #[schemars(range(min = 400, max = 699))]
    pub status: u16,
}

impl Default for RawLimits {
    fn default() -> Self {
        let limits = engine::Limits::default();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        RawLimits {
            calls: number(limits.calls),
            transactions: number(limits.transactions),
            registrations: number(limits.registrations),
            connections: number(limits.connections),
            connections_per_source: number(limits.connections_per_source),
            connection_idle_s: number(limits.connection_idle.as_secs() as usize),
            handshake_timeout_s: number(limits.handshake.as_secs() as usize),
            handshakes_per_s: number(limits.handshakes_per_second),
            connection_queue_bytes: number(limits.connection_queue),
            message_bytes: number(limits.message_bytes),
            memory_mib: 0,
            cpu_percent: 0,
            status: 503,
        }
    }
}

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

pub(super) fn limits(raw: &RawLimits) -> Limits {
    Limits {
        calls: raw.calls as usize,
        transactions: raw.transactions as usize,
        registrations: raw.registrations as usize,
        connections: raw.connections as usize,
        connections_per_source: raw.connections_per_source as usize,
        message_bytes: raw.message_bytes as usize,
        connection_idle: seconds(raw.connection_idle_s),
        handshake: seconds(raw.handshake_timeout_s),
        handshakes_per_second: raw.handshakes_per_s as usize,
        connection_queue: raw.connection_queue_bytes as usize,
        ..Limits::default()
    }
}

pub(super) fn admission(raw: &RawLimits) -> AdmissionLimits {
    AdmissionLimits {
        memory: (raw.memory_mib != 0).then_some(u64::from(raw.memory_mib) << 10),
        processor: (raw.cpu_percent != 0).then_some(u64::from(raw.cpu_percent) * 10_000),
        status: raw.status,
        machine: None,
    }
}
