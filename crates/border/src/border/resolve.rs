//! Names to addresses (RFC 3263), for hops that name a host.

use super::Core;
use crate::call::Place;
use engine::{SocketId, Time};
use sip::Endpoint;
use std::net::SocketAddr;

impl Core {
    pub(crate) fn is_resolver(&self, _socket: SocketId) -> bool {
        false
    }

    pub(crate) fn located(
        &mut self,
        _endpoint: &mut Endpoint,
        _source: SocketAddr,
        _bytes: &[u8],
        _now: Time,
    ) {
    }

    pub(crate) fn locate_hop(&mut self, slot: usize, _index: usize, _now: Time) {
        self.hop_failed(slot, 503, None, "names cannot be located");
    }

    pub(crate) fn resolver_alarm(&mut self, _endpoint: &mut Endpoint, _now: Time) {}
}
