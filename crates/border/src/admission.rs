//! Admission control: a call that needs more memory or CPU time than is left is refused before any resource is opened
//! for it. Emergency calls are always admitted.
//!
//! The prices (`price.rs`) bound the cost of established calls, relayed packets, transcoders, SRTP and handshakes that
//! was measured on the machines of the project: about twice the cost near the limit of a thread. The capacity is
//! `memory_mib` and `cpu_percent` of `[limits]`, or a share of the machine's.

mod capacity;
mod fast_path;
mod media_path;
pub(crate) mod overload;
mod price;
pub(crate) mod rate_limit;
mod screening;
mod trunk_feedback;

pub(crate) use capacity::{CurrentLoad, Reservations};
pub use media_path::{MediaOffload, MediaPath, MediaPaths};
pub(crate) use price::Reservation;
pub use price::{CostPart, Price};

use crate::admission::overload::Overload;
use crate::admission::overload::feedback::Throttles;
use crate::admission::rate_limit::RateLimiter;
use crate::request::RequestOrigin;
use engine::MaybeShared;

/// Admission of new calls and requests: capacity, rates, overload.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    /// Memory and CPU time of calls in progress.
    pub(crate) reservations: Reservations,
    /// Rate limits of interfaces, trunks and sources.
    pub(crate) rate_limiter: MaybeShared<RateLimiter>,
    /// Queueing delay and load shedding.
    pub(crate) overload: Overload,
    /// Overload control reported by trunks to any worker, and whether any trunk uses it.
    pub(crate) throttles: MaybeShared<Throttles>,
    pub(crate) uses_trunk_feedback: bool,
    /// Origin and user of the current request, determined when it arrived.
    pub(crate) authorized: Option<(RequestOrigin, Option<Box<str>>)>,
}

impl AdmissionControl {
    pub(crate) fn new(
        rate_limiter: MaybeShared<RateLimiter>,
        throttles: MaybeShared<Throttles>,
        overload: Overload,
    ) -> AdmissionControl {
        AdmissionControl {
            reservations: Reservations::default(),
            rate_limiter,
            overload,
            throttles,
            uses_trunk_feedback: false,
            authorized: None,
        }
    }
}
