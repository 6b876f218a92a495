//! What a timer is for.

/// One entry of the wheel. Slots are only given anew after their timers were cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A client transaction: A, B, D, E, F, K, M.
    Client(u32),
    /// A server transaction: G, H, I, J, L, and the 100 that is due.
    Server(u32),
    /// A leg's 2xx or reliable provisional response that awaits its ACK or PRACK.
    Unacked(u32),
    /// A leg's session: refresh, expiry, second try after glare.
    Session(u32),
    /// A connection may be idle, or has not answered a ping.
    Connection(u32),
    /// A flow over UDP that is kept alive has not answered.
    Kept(u32),
}

impl Timer {
    /// For [`engine::Deadline`].
    pub(crate) const WHY: &'static str = "sip timers";
}
