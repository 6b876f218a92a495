//! Capacities come from one place.

use core::time::Duration;

/// How much of each thing an engine takes at most; full is an ordinary, tested case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls at a time.
    pub calls: usize,
    /// SIP transactions at a time, those that linger included.
    pub transactions: usize,
    /// Registered contacts.
    pub registrations: usize,
    /// Contacts of one address of record.
    pub contacts_per_aor: usize,
    /// Stream connections.
    pub connections: usize,
    /// Stream connections from one source address.
    pub connections_per_source: usize,
    /// Bytes of one SIP message.
    pub message_bytes: usize,
    /// How long a stream connection without a whole message or a keep-alive stands.
    pub connection_idle: Duration,
    /// How long the handshakes of a connection (TLS, WebSocket) may take.
    pub handshake: Duration,
    /// Bytes that may wait for a peer that reads slowly.
    pub connection_queue: usize,
    /// Open questions to name servers.
    pub dns_queries: usize,
    /// Entries of the cache of names.
    pub dns_cache: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            calls: 200_000,
            transactions: 2_000_000,
            registrations: 1_000_000,
            contacts_per_aor: 10,
            connections: 10_000,
            connections_per_source: 1_000,
            message_bytes: 65_535,
            connection_idle: Duration::from_secs(900),
            handshake: Duration::from_secs(10),
            connection_queue: 512 << 10,
            dns_queries: 4_096,
            dns_cache: 16_384,
        }
    }
}
