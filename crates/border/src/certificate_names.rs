//! Names that the certificates of peers must contain.

use crate::listeners::BorderListener;
use crate::policy::HopStep;
use config::{Config, Trunk, TrunkId};
use engine::Transport;
use sip::{Endpoint, Flow, KnownPeer, ListenerId};
use std::net::SocketAddr;
use wire::sip::Uri;

/// The flow to a hop, with the name that the certificate of the peer must contain.
pub(crate) fn with_hop_certificate_name(
    endpoint: &mut Endpoint,
    config: &Config,
    flow: Flow,
    hop: &HopStep,
) -> Flow {
    if let Some(trunk) = hop.trunk.filter(|_| !hop.redirected) {
        let target = (trunk, usize::from(hop.target));
        return with_certificate_name(endpoint, config, flow, target);
    }
    let uri = Uri::parse(&hop.uri);
    let host = uri.map(|uri| uri.host.to_string());
    with_peer(endpoint, flow, || {
        let host = host.as_deref().unwrap_or_default();
        // The settings of the trunk apply to its own hosts.
        let trunk = hop.trunk.and_then(|trunk| config.trunk(trunk));
        let Some(trunk) = trunk.filter(|_| !hop.foreign) else {
            return (host, "");
        };
        let own = trunk.tls.as_ref().and_then(|tls| tls.name.as_deref());
        (own.unwrap_or(host), trunk.name.as_str())
    })
}

/// The flow to a target of a trunk, with the name that its certificate must contain: the configured one, otherwise
/// the host of the target before resolution (RFC 5922 section 7.3).
pub(crate) fn with_certificate_name(
    endpoint: &mut Endpoint,
    config: &Config,
    flow: Flow,
    (trunk, target): (TrunkId, usize),
) -> Flow {
    let Some(trunk) = config.trunk(trunk) else {
        return with_peer(endpoint, flow, || ("", ""));
    };
    let named = trunk
        .targets
        .get(target)
        .is_some_and(|target| target.host.ip().is_none());
    if named && flow.transport == Transport::Tls && flow.connection.is_none() {
        endpoint.learn_peer(&known_peer(trunk, target, flow.local, flow.remote));
    }
    with_peer(endpoint, flow, || {
        (name_at(trunk, target), trunk.name.as_str())
    })
}

/// The name that the certificate of a target must contain.
fn name_at(trunk: &Trunk, target: usize) -> &str {
    let own = trunk.tls.as_ref().and_then(|tls| tls.name.as_deref());
    let host = trunk.targets.get(target).map(|target| target.host.text());
    own.or(host).unwrap_or_default()
}

fn known_peer(
    trunk: &Trunk,
    target: usize,
    local: ListenerId,
    address: SocketAddr,
) -> KnownPeer<'_> {
    KnownPeer {
        local,
        address,
        name: name_at(trunk, target),
        profile: &trunk.name,
    }
}

/// Tells the endpoint the names of the targets of trunks, for dialogs that these have opened. The address of a target
/// with a host name follows when it is resolved.
pub(crate) fn learn_targets(
    endpoint: &mut Endpoint,
    config: &Config,
    listeners: &[BorderListener],
) {
    endpoint.forget_peers();
    for trunk in &config.trunks {
        for (index, target) in trunk.targets.iter().enumerate() {
            let Some((address, Transport::Tls)) = target.direct() else {
                continue;
            };
            for point in listeners {
                if point.interface == Some(trunk.interface)
                    && point.transport == Transport::Tls
                    && point.address.is_ipv4() == address.is_ipv4()
                {
                    endpoint.learn_peer(&known_peer(trunk, index, point.local, address));
                }
            }
        }
    }
}

/// Registers the name of the peer for a flow whose TLS connection is not open yet.
pub(crate) fn with_peer<'n>(
    endpoint: &mut Endpoint,
    mut flow: Flow,
    name: impl FnOnce() -> (&'n str, &'n str),
) -> Flow {
    if flow.transport == Transport::Tls && flow.connection.is_none() {
        let (name, profile) = name();
        // If the table of names is full, the address is the name, which no certificate contains by mistake.
        flow.connection = endpoint.peer(name, profile).ok();
    }
    flow
}
