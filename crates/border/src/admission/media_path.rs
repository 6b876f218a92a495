//! The path of anchored media through this machine, as detected by the program, and its effect on the price of a
//! call.

use crate::admission::{CostPart, Price, Reservation};
use config::{Config, InterfaceId, MediaAddress};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;

/// Path of a call's media through this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MediaPath {
    /// Sockets of the border.
    #[default]
    Sockets,
    /// The relay in the kernel (XDP).
    Kernel,
    /// AF_XDP.
    AfXdp,
}

impl MediaPath {
    /// Name in events.
    pub const fn name(self) -> &'static str {
        match self {
            MediaPath::Sockets => "sockets",
            MediaPath::Kernel => "kernel",
            MediaPath::AfXdp => "af_xdp",
        }
    }
}

/// The fast path for media, and the local addresses that it covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaOffload {
    /// Path of streams between these addresses that need no processing that it cannot do.
    pub path: MediaPath,
    /// Local media addresses that it covers.
    pub addresses: Arc<[IpAddr]>,
}

impl MediaOffload {
    /// Path of media between two interfaces: the fast path where it covers every address that a call may use.
    pub fn path_between(&self, config: &Config, interfaces: [InterfaceId; 2]) -> MediaPath {
        let is_served = |interface: &InterfaceId| {
            let media = config
                .interface(*interface)
                .map(|interface| &interface.media);
            let is_covered = |media: &Vec<MediaAddress>| {
                !media.is_empty() && media.iter().all(|at| self.addresses.contains(&at.address))
            };
            media.is_some_and(is_covered)
        };
        match self.path {
            MediaPath::Sockets => MediaPath::Sockets,
            path if interfaces.iter().all(is_served) => path,
            _ => MediaPath::Sockets,
        }
    }
}

impl Reservation {
    /// Reserves for media by this path, where the call has anchored media that needs no processing in user space.
    /// Returns the reservation before and after.
    pub(super) fn set_media_path(&mut self, path: MediaPath) -> (Price, Price) {
        let Some(now) = self.path else {
            return Default::default();
        };
        let path = self.supported_path(path);
        self.path = Some(path);
        let (before, after) = (Price::of_media(now), Price::of_media(path));
        let mut sum = self.part(CostPart::Media);
        sum -= before;
        sum += after;
        self.set_part(CostPart::Media, sum);
        (before, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Keying;
    use protect::srtp::Suite;

    #[test]
    fn only_plain_rtp_gets_the_price_of_the_kernel_relay() {
        let mut reservation = Reservation::of_call(Some(MediaPath::Kernel), [None, None]);
        let kernel = reservation.total().processor;
        assert_eq!(
            reservation.set_media_path(MediaPath::Sockets).1,
            Price::ANCHORED
        );
        assert_eq!(reservation.total(), Price::of_call(true, [None, None]));
        reservation.set_media_path(MediaPath::Kernel);
        assert_eq!(reservation.total().processor, kernel);
        let keys = Price::of_srtp(Keying::Sdes, Suite::AesCm128HmacSha1_80);
        reservation.protect(0, anchor::Side::Caller, keys);
        reservation.set_media_path(MediaPath::Kernel);
        let mut sockets = Price::of_call(true, [None, None]);
        sockets += keys;
        assert_eq!(reservation.total(), sockets);
        // SRTP can use AF_XDP as well.
        reservation.set_media_path(MediaPath::AfXdp);
        assert!(reservation.total().processor < sockets.processor);
        let mut without = Reservation::of_call(None, [None, None]);
        assert_eq!(
            without.set_media_path(MediaPath::Kernel),
            Default::default()
        );
        assert_eq!(without.total(), Price::CALL);
    }
}
