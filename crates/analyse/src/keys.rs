//! Keys of tables: addresses packed into bytes, so that one pass hashes them.

use std::net::{IpAddr, SocketAddr};

/// An address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EndpointKey([u8; 18]);

/// A direction between two endpoints, with a number (an SSRC, or zero).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowKey([u8; 40]);

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl EndpointKey {
    pub(super) fn new(endpoint: SocketAddr) -> EndpointKey {
        let mut key = [0; 18];
        key[..16].copy_from_slice(&octets(endpoint.ip()));
        key[16..].copy_from_slice(&endpoint.port().to_be_bytes());
        EndpointKey(key)
    }
}

impl FlowKey {
    pub(super) fn new(source: SocketAddr, destination: SocketAddr, number: u32) -> FlowKey {
        let mut key = [0; 40];
        key[..18].copy_from_slice(&EndpointKey::new(source).0);
        key[18..36].copy_from_slice(&EndpointKey::new(destination).0);
        key[36..].copy_from_slice(&number.to_be_bytes());
        FlowKey(key)
    }
}
