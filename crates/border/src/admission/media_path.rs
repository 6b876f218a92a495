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
    /// Sockets of the border, one for each media port.
    #[default]
    SocketPerPort,
    /// One socket of the border for all media ports of a thread.
    SharedPortSocket,
    /// The relay in the kernel (XDP).
    Kernel,
    /// AF_XDP.
    AfXdp,
}

impl MediaPath {
    /// Name in events.
    pub const fn name(self) -> &'static str {
        match self {
            MediaPath::SocketPerPort => "socket_per_port",
            MediaPath::SharedPortSocket => "shared_port_socket",
            MediaPath::Kernel => "kernel",
            MediaPath::AfXdp => "af_xdp",
        }
    }

    /// Whether media passes through sockets of the border.
    pub const fn uses_sockets(self) -> bool {
        matches!(self, MediaPath::SocketPerPort | MediaPath::SharedPortSocket)
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

/// The paths of anchored media through this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaPaths {
    /// The fast path, if there is one.
    pub offload: MediaOffload,
    /// Whether all media ports of a thread share a socket.
    pub shared_ports: bool,
    /// Whether media passes between tunnels of the IPsec gateway and the forwarder, on the worker's thread.
    pub direct_tunnels: bool,
}

impl MediaPaths {
    /// Path of streams that do not use the fast path.
    pub const fn sockets(&self) -> MediaPath {
        match self.shared_ports {
            true => MediaPath::SharedPortSocket,
            false => MediaPath::SocketPerPort,
        }
    }

    /// Path of media between two interfaces: the fast path where it covers every address that a call may use.
    pub fn between(&self, config: &Config, interfaces: [InterfaceId; 2]) -> MediaPath {
        let is_served = |interface: &InterfaceId| {
            let media = config
                .interface(*interface)
                .map(|interface| &interface.media);
            let covered = &self.offload.addresses;
            let is_covered = |media: &Vec<MediaAddress>| {
                !media.is_empty() && media.iter().all(|at| covered.contains(&at.address))
            };
            media.is_some_and(is_covered)
        };
        match self.offload.path {
            path if !path.uses_sockets() && interfaces.iter().all(is_served) => path,
            _ => self.sockets(),
        }
    }
}

impl Reservation {
    /// Reserves for media by this path, where the call has anchored media, or by `sockets` where that path cannot
    /// process it. Returns the reservation before and after.
    pub(super) fn set_media_path(&mut self, path: MediaPath, sockets: MediaPath) -> (Price, Price) {
        let Some(now) = self.path else {
            return Default::default();
        };
        let path = match self.is_supported_by(path) {
            true => path,
            false => sockets,
        };
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

    const PER_PORT: MediaPath = MediaPath::SocketPerPort;

    fn of_call(path: MediaPath) -> Price {
        Price::of_call(Some(path), [None, None])
    }

    #[test]
    fn only_plain_rtp_gets_the_price_of_the_kernel_relay() {
        for sockets in [PER_PORT, MediaPath::SharedPortSocket] {
            let mut reservation = Reservation::of_call(Some(MediaPath::Kernel), [None, None]);
            assert_eq!(
                reservation.set_media_path(sockets, sockets).1,
                Price::of_media(sockets)
            );
            assert_eq!(reservation.total(), of_call(sockets));
            reservation.set_media_path(MediaPath::Kernel, sockets);
            assert_eq!(reservation.total(), of_call(MediaPath::Kernel));
            let keys = Price::of_srtp(Keying::Sdes, Suite::AesCm128HmacSha1_80);
            reservation.protect(0, anchor::Side::Caller, keys);
            reservation.set_media_path(MediaPath::Kernel, sockets);
            let mut protected = of_call(sockets);
            protected += keys;
            assert_eq!(reservation.total(), protected);
            // SRTP can use AF_XDP as well.
            reservation.set_media_path(MediaPath::AfXdp, sockets);
            assert!(reservation.total().processor < protected.processor);
        }
        let mut without = Reservation::of_call(None, [None, None]);
        assert_eq!(
            without.set_media_path(MediaPath::Kernel, PER_PORT),
            Default::default()
        );
        assert_eq!(without.total(), Price::CALL);
    }
}
