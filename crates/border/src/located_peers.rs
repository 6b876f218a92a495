//! Addresses of the named targets of trunks. Requests from them belong to the trunk.

use config::{Config, HostName, InterfaceId, Trunk, TrunkId};
use core::time::Duration;
use engine::{BoundedMap, HashKey, Time};
use smallvec::SmallVec;
use std::net::IpAddr;
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
    /// Time of the last lookup.
    at: Time,
}

impl LocatedTarget {
    /// Whether the trunk exists and still has this target.
    fn belongs_to(&self, trunk: &Trunk) -> bool {
        let mut targets = trunk.targets.iter();
        trunk.name == *self.trunk && targets.any(|target| target.host.text() == &*self.host)
    }

    fn is_valid(&self, now: Time) -> bool {
        now.since(self.at) < LIFETIME
    }
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
    pub(crate) fn is_recent(&self, ip: IpAddr, trunk: &str, host: &HostName, now: Time) -> bool {
        let mut targets = self.targets.get(&ip).into_iter().flatten();
        targets.any(|target| {
            (&*target.trunk, &*target.host) == (trunk, host.text())
                && now.since(target.at) < RENEWAL
        })
    }

    /// Stores an address of a target, in place of the oldest address if there are too many.
    pub(crate) fn store(&mut self, ip: IpAddr, trunk: &str, host: &HostName, now: Time) {
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
        targets.retain(|target| {
            let same = (&*target.trunk, &*target.host) == (trunk, host.text());
            !same && target.is_valid(now)
        });
        if targets.len() < MAX_NAMES {
            targets.push(LocatedTarget {
                trunk: trunk.into(),
                host: host.text().into(),
                at: now,
            });
        }
    }

    /// The trunk on this interface that an address belongs to, the first one of the configuration. `by_certificate`: the
    /// peer has opened a TLS connection, on which a trunk with client names is identified by these alone.
    pub(crate) fn trunk_of(
        &self,
        config: &Config,
        interface: InterfaceId,
        (ip, by_certificate): (IpAddr, bool),
        now: Time,
    ) -> Option<TrunkId> {
        let targets = self.targets.get(&ip)?;
        let at = config.trunks.iter().position(|trunk| {
            let mut targets = targets.iter().filter(|target| target.is_valid(now));
            trunk.interface == interface
                && !(by_certificate && !trunk.client_names().is_empty())
                && targets.any(|target| target.belongs_to(trunk))
        })?;
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
            [[interface]]\nname='b'\nlisten='udp:192.0.2.2:5060'\n";
        config::parse(&format!("{interfaces}{trunks}"), "t").unwrap()
    }

    const TRUNK: &str = "[[trunk]]\nname='tel'\ninterface='b'\ntarget='tel.example'\n";

    fn peers() -> LocatedPeers {
        LocatedPeers::new(HashKey::default())
    }

    fn host(config: &Config) -> &HostName {
        &config.trunks[0].targets[0].host
    }

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn address_belongs_to_its_trunk_on_its_interface_for_a_day() {
        let config = config(TRUNK);
        let mut peers = peers();
        let start = Time::from_secs(100);
        peers.store(IP, "tel", host(&config), start);
        let found = |peers: &LocatedPeers, interface, now| {
            peers.trunk_of(&config, InterfaceId(interface), (IP, false), now)
        };
        assert_eq!(found(&peers, 1, start), Some(TrunkId(0)));
        assert_eq!(found(&peers, 0, start), None);
        let end = start + LIFETIME;
        assert_eq!(found(&peers, 1, end), None);
        let renewed = start + LIFETIME / 2;
        assert!(!peers.is_recent(IP, "tel", host(&config), renewed));
        peers.store(IP, "tel", host(&config), renewed);
        assert!(peers.is_recent(IP, "tel", host(&config), renewed));
        assert_eq!(found(&peers, 1, end), Some(TrunkId(0)));
    }

    #[test]
    fn address_is_removed_with_its_trunk_or_target() {
        for (name, other) in [("'tel'", "'other'"), ("tel.example", "other.example")] {
            let before = config(TRUNK);
            let mut peers = peers();
            peers.store(IP, "tel", host(&before), Time::ZERO);
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
            peers.store(address(number), "tel", host(&config), now);
        }
        assert_eq!(peers.targets.len(), MAX_ADDRESSES);
        assert!(peers.targets.get(&address(9)).is_none());
        assert!(peers.targets.get(&address(10)).is_some());
    }
}
