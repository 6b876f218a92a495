//! Addresses of the named targets of trunks. Requests from them belong to the trunk.

use config::{Config, HostName, InterfaceId, InterfaceKind, Trunk, TrunkId};
use core::time::Duration;
use engine::{BoundedMap, HashKey, Time, Transport};
use smallvec::SmallVec;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Maximum number of addresses.
const MAX_ADDRESSES: usize = 4_096;
/// Maximum number of names of one address.
const MAX_NAMES: usize = 16;
/// An address that no lookup has returned for so long belongs to the name no longer.
const LIFETIME: Duration = Duration::from_secs(86_400);
/// An entry is renewed by lookups after this time, so that most of them change nothing.
const RENEWAL: Duration = Duration::from_secs(60);

/// A target with a name that resolved to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LocatedTarget {
    trunk: Arc<str>,
    host: Arc<str>,
    port: u16,
    /// Time of the last lookup.
    at: Time,
}

impl LocatedTarget {
    /// Whether the trunk exists and still has this target.
    fn belongs_to(&self, trunk: &Trunk) -> bool {
        let mut targets = trunk.targets.iter();
        trunk.name == *self.trunk && targets.any(|target| target.host.text() == &*self.host)
    }

    fn is(&self, trunk: &str, host: &HostName, port: u16) -> bool {
        (&*self.trunk, &*self.host, self.port) == (trunk, host.text(), port)
    }

    fn is_valid(&self, now: Time) -> bool {
        now.since(self.at) < LIFETIME
    }
}

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestPeer {
    pub(crate) address: SocketAddr,
    pub(crate) transport: Transport,
    /// Whether it has opened a TLS connection, on which a trunk with client names is identified by these alone.
    pub(crate) by_certificate: bool,
}

/// The targets of each address.
#[derive(Debug)]
pub(crate) struct LocatedPeers {
    targets: BoundedMap<IpAddr, SmallVec<[LocatedTarget; 1]>>,
}

impl LocatedPeers {
    pub(crate) fn new(key: HashKey) -> LocatedPeers {
        LocatedPeers {
            targets: BoundedMap::new(MAX_ADDRESSES, key),
        }
    }

    /// Whether an address of a target was stored or renewed recently.
    pub(crate) fn is_recent(
        &self,
        address: SocketAddr,
        trunk: &str,
        host: &HostName,
        now: Time,
    ) -> bool {
        let mut targets = self.targets.get(&address.ip()).into_iter().flatten();
        targets
            .any(|target| target.is(trunk, host, address.port()) && now.since(target.at) < RENEWAL)
    }

    /// Stores an address of a target, in place of the oldest address if there are too many.
    pub(crate) fn store(&mut self, address: SocketAddr, trunk: &str, host: &HostName, now: Time) {
        let (ip, port) = (address.ip(), address.port());
        if self.targets.is_full() && self.targets.get(&ip).is_none() {
            let newest = |targets: &[LocatedTarget]| targets.iter().map(|target| target.at).max();
            let entries = self.targets.iter_unordered();
            let oldest = entries.min_by_key(|(ip, targets)| (newest(targets), **ip));
            if let Some(ip) = oldest.map(|(ip, _)| *ip) {
                self.targets.remove(&ip);
            }
        }
        if self.targets.get(&ip).is_none() {
            // There is room, see above.
            let _ = self.targets.insert(ip, SmallVec::new());
        }
        let Some(targets) = self.targets.get_mut(&ip) else {
            return;
        };
        targets.retain(|target| !target.is(trunk, host, port) && target.is_valid(now));
        if targets.len() < MAX_NAMES {
            targets.push(LocatedTarget {
                trunk: trunk.into(),
                host: host.text().into(),
                port,
                at: now,
            });
        }
    }

    /// The trunk on this interface that a peer belongs to: `known` if it is one, otherwise the first one of the
    /// configuration. On interfaces of phones, which may have the address in common with a trunk behind the same NAT,
    /// the port decides too, as it does for a target with an address.
    pub(crate) fn trunk_of(
        &self,
        config: &Config,
        interface: InterfaceId,
        peer: RequestPeer,
        known: Option<TrunkId>,
        now: Time,
    ) -> Option<TrunkId> {
        let targets = self.targets.get(&peer.address.ip())?;
        let settings = config.interface(interface)?;
        let any_port = settings.kind == InterfaceKind::Core || peer.transport.is_reliable();
        let is_at = |trunk: &Trunk| {
            let mut targets = targets.iter().filter(|target| {
                target.is_valid(now) && (any_port || target.port == peer.address.port())
            });
            trunk.interface == interface
                && (!peer.by_certificate || trunk.client_names().is_empty())
                && targets.any(|target| target.belongs_to(trunk))
        };
        if known.and_then(|id| config.trunk(id)).is_some_and(is_at) {
            return known;
        }
        let at = config.trunks.iter().position(is_at)?;
        u16::try_from(at).ok().map(TrunkId)
    }

    /// Removes the addresses of targets that the configuration no longer has.
    pub(crate) fn reload(&mut self, config: &Config) {
        self.targets.retain(|_, targets| {
            targets.retain(|target| config.trunks.iter().any(|trunk| target.belongs_to(trunk)));
            !targets.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn config(trunks: &str) -> Config {
        let interfaces = "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\n\
            [[interface]]\nname='b'\nkind='core'\nlisten='udp:192.0.2.2:5060'\n";
        config::parse(&format!("{interfaces}{trunks}"), "t").unwrap()
    }

    const TRUNK: &str = "[[trunk]]\nname='tel'\ninterface='b'\ntarget='tel.example'\n";

    fn peers() -> LocatedPeers {
        LocatedPeers::new(HashKey::default())
    }

    fn host(config: &Config) -> &HostName {
        &config.trunks[0].targets[0].host
    }

    fn place(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn peer(port: u16) -> RequestPeer {
        RequestPeer {
            address: place(port),
            transport: Transport::Udp,
            by_certificate: false,
        }
    }

    #[test]
    fn address_belongs_to_its_trunk_on_its_interface_for_a_day() {
        let config = config(TRUNK);
        let mut peers = peers();
        let start = Time::from_secs(100);
        peers.store(place(5060), "tel", host(&config), start);
        let found = |peers: &LocatedPeers, interface, now| {
            peers.trunk_of(&config, InterfaceId(interface), peer(7777), None, now)
        };
        assert_eq!(found(&peers, 1, start), Some(TrunkId(0)));
        assert_eq!(found(&peers, 0, start), None);
        let end = start + LIFETIME;
        assert_eq!(found(&peers, 1, end), None);
        let renewed = start + LIFETIME / 2;
        assert!(!peers.is_recent(place(5060), "tel", host(&config), renewed));
        peers.store(place(5060), "tel", host(&config), renewed);
        assert!(peers.is_recent(place(5060), "tel", host(&config), renewed));
        assert_eq!(found(&peers, 1, end), Some(TrunkId(0)));
    }

    /// Phones behind the NAT of a trunk are not the trunk.
    #[test]
    fn port_decides_on_interfaces_of_phones() {
        let config = config(&TRUNK.replace("'b'", "'a'"));
        let mut peers = peers();
        peers.store(place(5060), "tel", host(&config), Time::ZERO);
        let found = |peer| peers.trunk_of(&config, InterfaceId(0), peer, None, Time::ZERO);
        assert_eq!(found(peer(5060)), Some(TrunkId(0)));
        assert_eq!(found(peer(7777)), None);
        let stream = RequestPeer {
            transport: Transport::Tcp,
            ..peer(7777)
        };
        assert_eq!(found(stream), Some(TrunkId(0)));
    }

    #[test]
    fn address_is_removed_with_its_trunk_or_target() {
        for (name, other) in [("'tel'", "'other'"), ("tel.example", "other.example")] {
            let before = config(TRUNK);
            let mut peers = peers();
            peers.store(place(5060), "tel", host(&before), Time::ZERO);
            peers.reload(&before);
            assert_eq!(peers.targets.len(), 1);
            peers.reload(&config(&TRUNK.replace(name, other)));
            assert_eq!(peers.targets.len(), 0);
        }
    }

    #[test]
    fn oldest_address_makes_room() {
        let config = config(TRUNK);
        let mut peers = peers();
        let address = |number: u32| IpAddr::V4(Ipv4Addr::from(number));
        for number in 0..MAX_ADDRESSES as u32 + 10 {
            let now = Time::from_secs(u64::from(number));
            let place = SocketAddr::new(address(number), 5060);
            peers.store(place, "tel", host(&config), now);
        }
        assert_eq!(peers.targets.len(), MAX_ADDRESSES);
        assert!(peers.targets.get(&address(9)).is_none());
        assert!(peers.targets.get(&address(10)).is_some());
    }
}
