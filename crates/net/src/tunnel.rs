//! The path of media through the tunnels of a gateway that runs on the driver's own thread, and the routes that decide
//! which packets take it.

use crate::packet::InterfaceInfo;
use crate::relay::netlink::Netlink;
use engine::Time;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Time for which a route is remembered.
const ROUTE_TIME: Duration = Duration::from_secs(5);
/// Most remembered routes.
const MAX_ROUTES: usize = 65_536;

/// A gateway's tunnels, driven by the thread that carries media: packets for open media ports pass between the tunnel
/// and the forwarder, all others between the tunnel and a TUN device. No call waits. Ciphers are unknown here.
pub trait TunnelPath: Send {
    /// Copies of the descriptors to wait for: the device, the outer socket, and one for commands.
    ///
    /// # Errors
    /// Too many open files.
    fn descriptors(&self) -> io::Result<[OwnedFd; 3]>;

    /// Sends the next packets of the device into their tunnels, at most [`crate::EspSocket::BATCH`], and returns the
    /// number of those that it has read; `failed`: the device is gone.
    fn send_from_device(&mut self, failed: bool, now: Time) -> usize;

    /// Receives at most `most` packets of the outer socket, and returns their number. Those of the inside that `take`
    /// does not take go to the device.
    fn receive(&mut self, most: usize, now: Time, take: &mut dyn FnMut(&[u8]) -> bool) -> usize;

    /// Executes waiting commands.
    fn execute(&mut self, now: Time);

    /// Work that depends on time, due at [`TunnelPath::next_tick`].
    fn tick(&mut self, now: Time);

    /// Time of the next tick.
    fn next_tick(&self) -> Time;

    /// Queues a packet from a local address to another host, which `write` writes into the room that it gets; its
    /// length is bounded by the MTU. False if the packet must be sent by the kernel: its route leads elsewhere, or it
    /// is too long.
    fn send(
        &mut self,
        ends: (IpAddr, IpAddr),
        now: Time,
        write: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> bool;

    /// Sends the queued packets.
    fn flush(&mut self, now: Time);

    /// Whether it has ended: it has failed, or another thread drives it.
    fn has_ended(&self) -> bool;
}

/// Whether routes lead through a device. Answers of the kernel are remembered for some seconds.
pub struct TunnelRoutes {
    netlink: Netlink,
    interface: u32,
    /// Keyed by addresses from the network, so the hash is keyed.
    known: HashMap<(IpAddr, IpAddr), (bool, Time)>,
}

impl std::fmt::Debug for TunnelRoutes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunnelRoutes")
            .field("interface", &self.interface)
            .finish_non_exhaustive()
    }
}

impl TunnelRoutes {
    /// The routes of a device.
    ///
    /// # Errors
    /// There is no such device, or no netlink.
    pub fn of(device: &str) -> io::Result<TunnelRoutes> {
        Ok(TunnelRoutes {
            netlink: Netlink::routes()?,
            interface: InterfaceInfo::of(device)?.index,
            known: HashMap::new(),
        })
    }

    /// Whether packets from a local address to another host leave through the device.
    pub fn lead_to(&mut self, own: IpAddr, to: IpAddr, now: Time) -> bool {
        if let Some((leads, until)) = self.known.get(&(own, to))
            && now < *until
        {
            return *leads;
        }
        // Without an answer the kernel sends the packet, or refuses it.
        let route = self.netlink.route(own, to).ok().flatten();
        let leads = route.is_some_and(|route| route.interface == self.interface);
        if self.known.len() >= MAX_ROUTES {
            self.known.clear();
        }
        self.known.insert((own, to), (leads, now + ROUTE_TIME));
        leads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_those_of_the_kernel() {
        let mut routes = TunnelRoutes::of("lo").unwrap();
        let own = IpAddr::from([127, 0, 0, 1]);
        // A local destination has no route to another host.
        assert!(!routes.lead_to(own, own, Time::ZERO));
        assert!(!routes.lead_to(own, [192, 0, 2, 1].into(), Time::ZERO));
        assert_eq!(routes.known.len(), 2);
        assert!(TunnelRoutes::of("no-such-device").is_err());
    }
}
