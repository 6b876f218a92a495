//! The associations of the key exchange: made of what the daemon has negotiated, and followed until they are deleted.

use config::{GatewaySpec, IkeSpec};
use engine::{Entropy, Time};
use protect::esp::{
    InboundSa, NegotiatedPair, OutboundSa, SaLifetime, SaSpec, TrafficSelector, UdpEncapsulation,
};
use protect::ike::{NegotiatedChild, ViciSection, connection_number};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use wire::esp::NAT_TRAVERSAL_PORT;

/// Time after which an association that never sealed is removed: two ends that rekey at the same time make one too many.
const UNUSED: Duration = Duration::from_secs(60);

/// An association of both directions.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) tunnel: usize,
    pub(super) spi_in: u32,
    pub(super) spi_out: u32,
    pub(super) algorithms: String,
    since: Time,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// By the SPI of received packets, which this end has chosen.
    known: HashMap<u32, Child>,
    /// SPI of the association that seals, by tunnel.
    sealing: HashMap<usize, u32>,
}

/// The facts of an event about an association.
#[derive(Debug)]
pub(super) struct ChildFacts {
    pub(super) tunnel: usize,
    pub(super) spi_in: u32,
    pub(super) peer: Option<SocketAddr>,
    pub(super) identity: String,
}

/// An association in an event, below `section` of its IKE association.
fn facts_of(tunnel: usize, ike: &ViciSection, child: &ViciSection) -> Option<ChildFacts> {
    let spi = child.text("spi-in")?;
    let host = ike.text("remote-host").and_then(|host| host.parse().ok());
    let port = ike.text("remote-port").and_then(|port| port.parse().ok());
    Some(ChildFacts {
        tunnel,
        spi_in: u32::from_str_radix(spi, 16).ok()?,
        peer: host.zip(port).map(|(host, port)| SocketAddr::new(host, port)),
        identity: ike.text("remote-id").unwrap_or_default().to_owned(),
    })
}

/// The associations of an event `child-updown`, or with `age` those of `child-rekey`: `old` or `new`.
pub(super) fn children_of(message: &ViciSection, age: Option<&str>) -> Vec<ChildFacts> {
    let mut found = Vec::new();
    for (name, ike) in message.sections() {
        let Some(tunnel) = connection_number(name) else {
            continue;
        };
        let Some(children) = ike.section("child-sas") else {
            continue;
        };
        for (_, child) in children.sections() {
            let child = match age {
                Some(age) => child.section(age),
                None => Some(child),
            };
            found.extend(child.and_then(|child| facts_of(tunnel, ike, child)));
        }
    }
    found
}

/// The descriptions of both directions.
fn specs(
    gateway: &GatewaySpec,
    ike: &IkeSpec,
    child: &NegotiatedChild,
) -> (SaSpec, SaSpec) {
    let (local, peer) = (gateway.local, child.peer);
    // Until a message on the port of ESP the peer's port is that of IKE.
    let port = match peer.port() {
        500 => NAT_TRAVERSAL_PORT,
        port => port,
    };
    let of = |spi, keys: &protect::esp::EspKeys| SaSpec {
        lifetime: SaLifetime {
            soft_bytes: gateway.lifetime.soft_bytes,
            hard_bytes: gateway.lifetime.hard_bytes,
            soft_time: None,
            // The daemon renews the keys long before; if it is gone, they are not used for ever.
            hard_time: Some(ike.rekey * 5 / 4 + Duration::from_secs(60)),
        },
        dscp: gateway.dscp,
        allow_weak: gateway.allow_weak,
        ..SaSpec::new(spi, child.suite, keys.clone())
    };
    let received = child.selectors.iter().map(TrafficSelector::reversed);
    let inbound = SaSpec {
        replay_window: gateway.replay_window,
        selectors: received.collect(),
        encapsulation: Some(UdpEncapsulation {
            source_port: port,
            destination_port: local.port(),
        }),
        ..of(child.spi_in, &child.keys_in)
    };
    let outbound = SaSpec {
        selectors: child.selectors.clone(),
        encapsulation: Some(UdpEncapsulation {
            source_port: local.port(),
            destination_port: port,
        }),
        ..of(child.spi_out, &child.keys_out)
    };
    (
        inbound.tunnel(peer.ip(), local.ip()),
        outbound.tunnel(local.ip(), peer.ip()),
    )
}

impl Children {
    /// Takes a negotiated association over.
    ///
    /// # Errors
    /// It is of no tunnel, or its algorithms are not allowed.
    pub(super) fn add(
        &mut self,
        (gateway, ike): (&GatewaySpec, &IkeSpec),
        child: &NegotiatedChild,
        entropy: &mut Entropy,
        now: Time,
    ) -> Result<NegotiatedPair, String> {
        let tunnel = connection_number(&child.connection)
            .filter(|number| *number < gateway.tunnels.len())
            .ok_or_else(|| format!("{} is no tunnel", child.connection))?;
        let (inbound, outbound) = specs(gateway, ike, child);
        let failed = |error| format!("SPI {:#010x}: {error}", child.spi_in);
        let pair = NegotiatedPair {
            tunnel,
            inbound: InboundSa::new(inbound, now).map_err(failed)?,
            outbound: OutboundSa::new(outbound, entropy, now).map_err(failed)?,
        };
        self.known.insert(
            child.spi_in,
            Child {
                tunnel,
                spi_in: child.spi_in,
                spi_out: child.spi_out,
                algorithms: child.suite.to_string(),
                since: now,
            },
        );
        Ok(pair)
    }

    /// The association of an event; `None` if it is not known.
    pub(super) fn of(&self, facts: &ChildFacts) -> Option<&Child> {
        self.known
            .get(&facts.spi_in)
            .filter(|child| child.tunnel == facts.tunnel)
    }

    /// Whether a tunnel has an association that seals.
    pub(super) fn is_up(&self, tunnel: usize) -> bool {
        self.sealing.contains_key(&tunnel)
    }

    /// Notes that an association seals; returns whether its tunnel had none before.
    pub(super) fn seals(&mut self, tunnel: usize, spi_out: u32) -> bool {
        self.sealing.insert(tunnel, spi_out).is_none()
    }

    /// Forgets an association; returns it, and whether its tunnel is down now.
    pub(super) fn remove(&mut self, facts: &ChildFacts) -> Option<(Child, bool)> {
        self.of(facts)?;
        let child = self.known.remove(&facts.spi_in)?;
        let is_last = self.sealing.get(&child.tunnel) == Some(&child.spi_out);
        if is_last {
            self.sealing.remove(&child.tunnel);
        }
        Some((child, is_last))
    }

    /// Forgets associations that have not sealed for [`UNUSED`], and returns them.
    pub(super) fn unused(&mut self, now: Time) -> Vec<Child> {
        let sealing = &self.sealing;
        let is_unused = |child: &Child| {
            now.since(child.since) >= UNUSED
                && sealing.get(&child.tunnel) != Some(&child.spi_out)
        };
        let unused: Vec<Child> = self.known.values().filter(|c| is_unused(c)).cloned().collect();
        for child in &unused {
            self.known.remove(&child.spi_in);
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events as strongSwan 5.9.8 sends them.
    fn event(child: ViciSection) -> ViciSection {
        let ike = ViciSection::new()
            .with("uniqueid", "1")
            .with("remote-host", "192.0.2.2")
            .with("remote-port", "4500")
            .with("remote-id", "centre.example")
            .with_section("child-sas", ViciSection::new().with_section("net-1", child));
        ViciSection::new()
            .with("up", "yes")
            .with_section("tunnel-4", ike)
    }

    #[test]
    fn events_name_associations() {
        let one = ViciSection::new().with("spi-in", "081005ce");
        let found = children_of(&event(one.clone()), None);
        assert_eq!((found[0].tunnel, found[0].spi_in), (4, 0x0810_05ce));
        assert_eq!(found[0].peer, "192.0.2.2:4500".parse().ok());
        assert_eq!(found[0].identity, "centre.example");
        let both = ViciSection::new()
            .with_section("old", one)
            .with_section("new", ViciSection::new().with("spi-in", "00000999"));
        let message = event(both);
        assert_eq!(children_of(&message, Some("old"))[0].spi_in, 0x0810_05ce);
        assert_eq!(children_of(&message, Some("new"))[0].spi_in, 0x999);
        assert!(children_of(&message, None).is_empty());
        assert!(children_of(&event(ViciSection::new().with("spi-in", "x")), None).is_empty());
    }

    #[test]
    fn associations_are_followed_until_they_are_deleted() {
        let mut children = Children::default();
        let at = |second| Time::ZERO + Duration::from_secs(second);
        for (spi, second) in [(1, 0), (2, 10), (3, 10)] {
            children.known.insert(
                spi,
                Child {
                    tunnel: 4,
                    spi_in: spi,
                    spi_out: spi + 100,
                    algorithms: String::new(),
                    since: at(second),
                },
            );
        }
        let facts = |tunnel, spi_in| ChildFacts {
            tunnel,
            spi_in,
            peer: None,
            identity: String::new(),
        };
        assert!(children.of(&facts(5, 1)).is_none(), "of another tunnel");
        assert!(children.seals(4, 101));
        assert!(!children.seals(4, 102));
        let (_, is_down) = children.remove(&facts(4, 1)).unwrap();
        assert!(!is_down);
        assert!(children.unused(at(69)).is_empty());
        let unused = children.unused(at(70));
        assert_eq!(unused[0].spi_in, 3);
        assert!(children.unused(at(90)).is_empty(), "the other one seals");
        let (child, is_down) = children.remove(&facts(4, 2)).unwrap();
        assert!(is_down && child.spi_out == 102);
        assert!(children.remove(&facts(4, 2)).is_none());
    }
}
