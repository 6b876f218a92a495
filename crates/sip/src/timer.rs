//! Timers of an endpoint.

/// One entry of the timer wheel. A slot is reused only after its timers were cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A client transaction: A, B, D, E, F, K, M.
    Client(u32),
    /// A server transaction: G, H, I, J, L, and the delayed 100.
    Server(u32),
    /// A leg's 2xx or reliable provisional response without ACK or PRACK.
    Unacked(u32),
    /// A leg's session: refresh, expiry, retry after glare.
    Session(u32),
    /// A connection: idle timeout, incomplete message, unanswered ping.
    Connection(u32),
    /// A UDP flow: unanswered keep-alive.
    KeepAlive(u32),
}

impl Timer {
    /// For [`engine::Deadline`].
    pub(crate) const DEADLINE_REASON: &'static str = "sip timers";
}
