//! Peers whose packets would be routed into a tunnel themselves. Addresses of the configuration are checked at the
//! start, those of other peers when they are learned.

use config::GatewaySpec;
use engine::{EventKind, Time};
use net::TunDevice;
use protect::esp::AddressPrefix;
use std::net::IpAddr;
use std::time::Duration;

/// Least time between two events: messages with forged addresses must not fill the log.
const EVENT_INTERVAL: Duration = Duration::from_secs(10);

/// The routes of a gateway, as far as they may take packets to peers.
#[derive(Debug)]
pub(super) struct PeerRoutes {
    device: String,
    local: IpAddr,
    networks: Vec<AddressPrefix>,
    reported: Option<Time>,
    suppressed: u64,
}

impl PeerRoutes {
    pub(super) fn of(spec: &GatewaySpec) -> PeerRoutes {
        let tunnels = spec.tunnels.iter();
        PeerRoutes {
            device: spec.device.clone(),
            local: spec.local.ip(),
            networks: tunnels
                .flat_map(|tunnel| tunnel.remote_networks.iter().copied())
                .collect(),
            reported: None,
            suppressed: 0,
        }
    }

    /// The remote network that contains a peer, if there is no longer route to the peer. Without a route, or without
    /// the local address, nothing loops.
    pub(super) fn looping(&self, peer: IpAddr) -> Option<AddressPrefix> {
        let network = self
            .networks
            .iter()
            .find(|network| network.contains(peer))?;
        let is_route = TunDevice::is_route(&self.device, self.local, peer).unwrap_or(false);
        is_route.then_some(*network)
    }

    /// The event about a peer that was refused; `None` if there was one a short time ago.
    pub(super) fn refused(
        &mut self,
        tunnel: String,
        (peer, network): (IpAddr, AddressPrefix),
        now: Time,
    ) -> Option<EventKind> {
        if self
            .reported
            .is_some_and(|at| now.since(at) < EVENT_INTERVAL)
        {
            self.suppressed += 1;
            return None;
        }
        self.reported = Some(now);
        Some(EventKind::GatewayPeerLoop {
            tunnel,
            peer: peer.to_string(),
            network: network.to_string(),
            suppressed: core::mem::take(&mut self.suppressed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_few() {
        let mut routes = PeerRoutes {
            device: "lo".to_owned(),
            local: IpAddr::from([127, 0, 0, 1]),
            networks: vec!["127.0.0.0/8".parse().unwrap()],
            reported: None,
            suppressed: 0,
        };
        let (peer, network) = (IpAddr::from([127, 0, 0, 2]), routes.networks[0]);
        // An address in no network needs no route.
        assert!(routes.looping(IpAddr::from([192, 0, 2, 1])).is_none());
        let mut at = |seconds: u64| {
            let now = Time::ZERO + Duration::from_secs(seconds);
            routes.refused(String::new(), (peer, network), now)
        };
        assert!(at(1).is_some());
        assert!(at(2).is_none() && at(10).is_none());
        let Some(EventKind::GatewayPeerLoop {
            suppressed,
            network,
            ..
        }) = at(11)
        else {
            panic!("no event");
        };
        assert_eq!((suppressed, network.as_str()), (2, "127.0.0.0/8"));
    }
}
