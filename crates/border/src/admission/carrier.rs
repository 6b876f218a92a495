//! What carries media that is anchored here, as the program has found this machine; and what that makes of a call's price.

use super::price::{Bill, Cost, Part};
use crate::border::Core;
use crate::call::Call;
use crate::config::{Config, InterfaceId, MediaAddress};
use std::net::IpAddr;
use std::sync::Arc;

/// The way of a call's media through this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediaWay {
    /// Sockets.
    #[default]
    Sockets,
    /// The relay in the kernel (XDP).
    Kernel,
    /// AF_XDP.
    AfXdp,
}

impl MediaWay {
    /// As events say it.
    pub const fn name(self) -> &'static str {
        match self {
            MediaWay::Sockets => "sockets",
            MediaWay::Kernel => "kernel",
            MediaWay::AfXdp => "af_xdp",
        }
    }
}

/// What carries media beside sockets, and for which of our addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaCarrier {
    /// The way of streams between these addresses, where nothing is to be done to them that it cannot.
    pub way: MediaWay,
    /// Addresses of media that it serves.
    pub addresses: Arc<[IpAddr]>,
}

impl MediaCarrier {
    /// The way of media between two interfaces: the faster one where every address serves it that a call may use.
    pub fn between(&self, config: &Config, interfaces: [InterfaceId; 2]) -> MediaWay {
        let served = |interface: &InterfaceId| {
            let media = config
                .interface(*interface)
                .map(|interface| &interface.media);
            let known = |media: &Vec<MediaAddress>| {
                !media.is_empty() && media.iter().all(|at| self.addresses.contains(&at.address))
            };
            media.is_some_and(known)
        };
        match self.way {
            MediaWay::Sockets => MediaWay::Sockets,
            way if interfaces.iter().all(served) => way,
            _ => MediaWay::Sockets,
        }
    }
}

impl Core {
    /// Other means carry media from now on: calls that stand take what theirs costs now.
    pub(crate) fn set_media_carrier(&mut self, carrier: MediaCarrier) {
        if self.media_carrier == carrier {
            return;
        }
        self.media_carrier = carrier;
        let slots: Vec<usize> = self.calls.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.price_media(slot);
        }
    }

    /// Takes what a call's media costs by the way that it goes now.
    pub(super) fn price_media(&mut self, slot: usize) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let way = self.media_carrier.between(&self.config, interfaces(call));
        let (before, after) = call.bill.lead(way);
        let sum = &mut self.admitted.taken[Part::Media as usize];
        *sum -= before;
        *sum += after;
    }
}

fn interfaces(call: &Call) -> [InterfaceId; 2] {
    use crate::call::Side;
    Side::BOTH.map(|side| *call.interfaces.get(side))
}

impl Bill {
    /// Reserves for media of this call by this way, where the call has anchored media that needs no processing in user space. Returns the
    /// reservation before and after.
    pub(super) fn lead(&mut self, way: MediaWay) -> (Cost, Cost) {
        let Some(now) = self.way else {
            return Default::default();
        };
        let way = self.possible(way);
        self.way = Some(way);
        let (before, after) = (Cost::of_media(now), Cost::of_media(way));
        if let Some(sum) = self.part_mut(Part::Media) {
            *sum -= before;
            *sum += after;
        }
        (before, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Keying;
    use protect::srtp::Suite;

    #[test]
    fn only_plain_calls_take_the_price_of_the_kernel() {
        let mut bill = Bill::of_call(Some(MediaWay::Kernel), [None, None]);
        let kernel = bill.total().processor;
        assert_eq!(bill.lead(MediaWay::Sockets).1, Cost::ANCHORED);
        assert_eq!(bill.total(), Cost::of_call(true, [None, None]));
        bill.lead(MediaWay::Kernel);
        assert_eq!(bill.total().processor, kernel);
        let keys = Cost::of_srtp(Keying::Sdes, Suite::AesCm128HmacSha1_80);
        bill.protect(0, crate::call::Side::Caller, keys);
        bill.lead(MediaWay::Kernel);
        let mut sockets = Cost::of_call(true, [None, None]);
        sockets += keys;
        assert_eq!(bill.total(), sockets);
        // SRTP passes by AF_XDP as well.
        bill.lead(MediaWay::AfXdp);
        assert!(bill.total().processor < sockets.processor);
        let mut without = Bill::of_call(None, [None, None]);
        assert_eq!(without.lead(MediaWay::Kernel), Default::default());
        assert_eq!(without.total(), Cost::CALL);
    }
}
