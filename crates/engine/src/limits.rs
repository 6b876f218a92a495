//! Capacities of tables and queues, for all engines.

use core::time::Duration;

/// Maximum sizes of an engine's tables and queues, and time limits of its connections. Each limit is enforced: full is
/// an ordinary, tested case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls at a time.
    pub calls: usize,
    /// SIP transactions at a time, including completed ones that wait for retransmissions.
    pub transactions: usize,
    /// Registered contacts.
    pub registrations: usize,
    /// Accepted stream connections, and as many opened ones.
    pub connections: usize,
    /// Accepted stream connections from one source address.
    pub connections_per_source: usize,
    /// Bytes of one SIP message.
    pub message_bytes: usize,
    /// Time without a complete message or keep-alive after which a stream connection is closed.
    pub connection_idle: Duration,
    /// Time limit of the handshakes of a connection (TLS, WebSocket).
    pub handshake: Duration,
    /// TLS handshakes of accepted connections per second; zero: no limit.
    pub handshakes_per_second: usize,
    /// Size of a connection's send queue, bytes.
    pub connection_queue: usize,
    /// Open DNS queries.
    pub dns_queries: usize,
    /// Entries of the DNS cache.
    pub dns_cache: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            calls: 200_000,
            transactions: 2_000_000,
            registrations: 1_000_000,
            connections: 10_000,
            connections_per_source: 1_000,
            message_bytes: 65_535,
            connection_idle: Duration::from_secs(900),
            handshake: Duration::from_secs(10),
            handshakes_per_second: 500,
            connection_queue: 512 << 10,
            dns_queries: 4_096,
            dns_cache: 16_384,
        }
    }
}
