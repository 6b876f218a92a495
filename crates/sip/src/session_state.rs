//! Values of session timers (RFC 4028): headers of a request, state of a leg.

use engine::Time;
use engine::timers::TimerKey;
use serde::{Deserialize, Serialize};
use wire::sip::Refresher;

/// The smallest valid Min-SE, in seconds (section 5).
pub(crate) const FLOOR: u32 = 90;

/// Session timer headers of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionRequest {
    /// Session-Expires in seconds; 0: none.
    pub(crate) seconds: u32,
    /// Min-SE in seconds; 0: none.
    pub(crate) min_se: u32,
    pub(crate) refresher: Option<Refresher>,
    /// The sender lists `timer` in Supported.
    pub(crate) supported: bool,
}

/// Session timer state of a leg.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SessionState {
    /// Negotiated interval in seconds; 0: no session timer.
    pub(crate) seconds: u32,
    /// Largest Min-SE received or required by a 422; 0: none.
    pub(crate) min_se: u32,
    pub(crate) we_refresh: bool,
    /// The refresh has been started.
    pub(crate) refreshing: bool,
    pub(crate) expires: Time,
    pub(crate) timer: Option<TimerKey>,
}

impl SessionState {
    /// Min-SE of our requests, in seconds.
    pub(crate) fn min_se(&self, ours: u32) -> u32 {
        self.min_se.max(ours).max(FLOOR)
    }
}
