//! Tunnels by the networks behind their peers: the longest prefix that contains an address.

use super::gateway::MAX_GATEWAY_TUNNELS;
use super::{AddressPrefix, SaError};
use core::net::IpAddr;
use engine::{BoundedMap, HashKey};

/// Most networks of all tunnels.
const MAX_NETWORKS: usize = 8 * MAX_GATEWAY_TUNNELS;

/// The masked bits of an address, the length of the prefix, and whether it is IPv6.
type NetworkKey = (u128, u8, bool);

/// Networks and the numbers of their tunnels. A search costs one look-up for each length of prefix that exists.
#[derive(Debug)]
pub(super) struct NetworkTable {
    /// Lengths of IPv4 and of IPv6 prefixes, longest first.
    lengths: [Vec<u8>; 2],
    tunnels: BoundedMap<NetworkKey, usize>,
}

fn key(address: IpAddr, length: u8) -> NetworkKey {
    let (bits, width, v6) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32, false),
        IpAddr::V6(address) => (address.to_bits(), 128, true),
    };
    let behind = u32::from(width - length.min(width));
    let masked = bits
        .checked_shr(behind)
        .and_then(|bits| bits.checked_shl(behind))
        .unwrap_or(0);
    (masked, length, v6)
}

impl NetworkTable {
    pub(super) fn new(hash: HashKey) -> NetworkTable {
        NetworkTable {
            lengths: [Vec::new(), Vec::new()],
            tunnels: BoundedMap::new(MAX_NETWORKS, hash),
        }
    }

    /// Adds a network.
    ///
    /// # Errors
    /// [`SaError::DuplicateNetwork`] if another tunnel has it, [`SaError::TableFull`].
    pub(super) fn insert(&mut self, network: AddressPrefix, tunnel: usize) -> Result<(), SaError> {
        let (address, length) = (network.address(), network.length());
        let key = key(address, length);
        if self.tunnels.get(&key).is_some_and(|other| *other != tunnel) {
            return Err(SaError::DuplicateNetwork(network));
        }
        if self.tunnels.insert(key, tunnel).is_err() {
            return Err(SaError::TableFull);
        }
        let lengths = &mut self.lengths[usize::from(address.is_ipv6())];
        if !lengths.contains(&length) {
            lengths.push(length);
            lengths.sort_unstable_by(|a, b| b.cmp(a));
        }
        Ok(())
    }

    /// The tunnel whose network contains an address.
    #[inline]
    pub(super) fn find(&self, address: IpAddr) -> Option<usize> {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        lengths
            .iter()
            .find_map(|length| self.tunnels.get(&key(address, *length)))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_is_found() {
        let mut table = NetworkTable::new(HashKey::default());
        for (tunnel, network) in [
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.2.3",
            "fd00::/8",
            "fd00:1::/32",
        ]
        .iter()
        .enumerate()
        {
            table.insert(network.parse().unwrap(), tunnel).unwrap();
        }
        for (address, tunnel) in [
            ("10.2.0.1", Some(0)),
            ("10.1.2.4", Some(1)),
            ("10.1.2.3", Some(2)),
            ("11.0.0.1", None),
            ("fd01::1", Some(3)),
            ("fd00:1::1", Some(4)),
            ("::1", None),
        ] {
            assert_eq!(table.find(address.parse().unwrap()), tunnel, "{address}");
        }
        let again = table.insert("10.1.0.0/16".parse().unwrap(), 7);
        assert!(matches!(again, Err(SaError::DuplicateNetwork(_))));
        table.insert("0.0.0.0/0".parse().unwrap(), 9).unwrap();
        assert_eq!(table.find("192.0.2.1".parse().unwrap()), Some(9));
        assert_eq!(table.find("::2".parse().unwrap()), None);
    }
}
