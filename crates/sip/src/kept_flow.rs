//! Flows that are kept alive (RFC 5626).

use crate::api::Flow;
use core::time::Duration;
use engine::timers::TimerKey;
use std::net::SocketAddr;

/// Longest time until the response (RFC 5626 section 4.4.1).
pub(crate) const PONG_WAIT: Duration = Duration::from_secs(10);

/// A UDP flow with keep-alive.
#[derive(Debug)]
pub(crate) struct KeepAliveFlow {
    pub(crate) flow: Flow,
    /// Our address in the last response (XOR-MAPPED-ADDRESS).
    pub(crate) mapped: Option<SocketAddr>,
    pub(crate) pending: Option<BindingRequest>,
}

/// A Binding request without response.
#[derive(Debug)]
pub(crate) struct BindingRequest {
    pub(crate) transaction: [u8; 12],
    pub(crate) tries: u8,
    pub(crate) timer: TimerKey,
}
