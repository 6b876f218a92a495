//! The associations of the key exchange: negotiated by the daemon, and followed until they are deleted.

use super::plan::ExchangePlan;
use config::IkeSpec;
use engine::{Entropy, Time};
use protect::esp::{
    InboundSa, NegotiatedPair, OutboundSa, SaLifetime, SaSpec, TrafficSelector, UdpEncapsulation,
};
use protect::ike::{NegotiatedChild, ViciSection, connection_number};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;
use wire::esp::NAT_TRAVERSAL_PORT;

/// Most associations of a tunnel: a peer that makes more replaces the oldest ones.
const MAX_CHILDREN: usize = 4;

/// An association of both directions.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) tunnel: usize,
    /// The daemon's number of it.
    pub(super) id: u32,
    pub(super) spi_in: u32,
    pub(super) spi_out: u32,
    pub(super) algorithms: String,
    /// The address from which the peer negotiated it.
    pub(super) peer: SocketAddr,
    since: Time,
    /// It has sealed, or may: the peer has it.
    is_up: bool,
    /// The daemon that negotiated it has ended.
    is_orphan: bool,
    /// The daemon has said that it deletes it.
    is_closing: bool,
}

impl Child {
    /// The number by which the daemon that runs now knows it. Numbers of a daemon that has ended are those of other
    /// associations now.
    pub(super) fn daemon_number(&self) -> Option<u32> {
        (!self.is_orphan).then_some(self.id)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// By the SPI of received packets, which this end has chosen.
    known: HashMap<u32, Child>,
    /// The association that seals, by tunnel: its SPI of received packets.
    sealing: HashMap<usize, u32>,
    /// SPIs of received packets that the last list of the daemon did not have.
    missing: HashSet<u32>,
}

/// Result of the removal of an association.
#[derive(Debug)]
pub(super) struct RemovedChild {
    pub(super) child: Child,
    /// It sealed, and this one takes its place.
    pub(super) instead: Option<Child>,
    /// It sealed, and its tunnel has no other.
    pub(super) is_down: bool,
}

/// The facts of an event about an association.
#[derive(Debug)]
pub(super) struct ChildFacts {
    pub(super) tunnel: usize,
    pub(super) spi_in: u32,
    pub(super) peer: Option<SocketAddr>,
    pub(super) identity: String,
    /// The peer has it no more; the daemon keeps it for some seconds.
    pub(super) is_deleted: bool,
}

/// An association in an event, below `section` of its IKE association.
fn facts_of(tunnel: usize, ike: &ViciSection, child: &ViciSection) -> Option<ChildFacts> {
    let spi = child.text("spi-in")?;
    let host = ike.text("remote-host").and_then(|host| host.parse().ok());
    let port = ike.text("remote-port").and_then(|port| port.parse().ok());
    Some(ChildFacts {
        tunnel,
        spi_in: u32::from_str_radix(spi, 16).ok()?,
        peer: host
            .zip(port)
            .map(|(host, port)| SocketAddr::new(host, port)),
        identity: ike.text("remote-id").unwrap_or_default().to_owned(),
        is_deleted: child.text("state") == Some("DELETED"),
    })
}

/// The associations of an event `child-updown`.
pub(super) fn children_of(message: &ViciSection) -> Vec<ChildFacts> {
    let mut found = Vec::new();
    for (name, ike) in message.sections() {
        let Some(tunnel) = connection_number(name) else {
            continue;
        };
        let Some(children) = ike.section("child-sas") else {
            continue;
        };
        for (_, child) in children.sections() {
            found.extend(facts_of(tunnel, ike, child));
        }
    }
    found
}

/// The time after which keys are not used any more.
fn hard_lifetime(ike: &IkeSpec) -> Duration {
    ike.rekey * 5 / 4 + Duration::from_secs(120)
}

/// The descriptions of both directions.
fn specs(plan: &ExchangePlan, child: &NegotiatedChild) -> (SaSpec, SaSpec) {
    let (local, peer, packets) = (plan.local, child.peer, &plan.packets);
    // Until a message on the port of ESP the peer's port is that of IKE.
    let port = match peer.port() {
        500 => NAT_TRAVERSAL_PORT,
        port => port,
    };
    let of = |spi, keys: &protect::esp::EspKeys| SaSpec {
        lifetime: SaLifetime {
            soft_bytes: packets.lifetime.soft_bytes,
            hard_bytes: packets.lifetime.hard_bytes,
            soft_time: None,
            // The daemon renews the keys long before; if it is gone, they are not used for ever.
            hard_time: Some(hard_lifetime(&plan.ike)),
        },
        dscp: packets.dscp,
        allow_weak: packets.allow_weak,
        ..SaSpec::new(spi, child.suite, keys.clone())
    };
    let received = child.selectors.iter().map(TrafficSelector::reversed);
    let inbound = SaSpec {
        replay_window: packets.replay_window,
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
    /// Takes a negotiated association over. Returns it with those that it replaces.
    ///
    /// # Errors
    /// It is of no tunnel, or its algorithms are not allowed.
    pub(super) fn add(
        &mut self,
        plan: &ExchangePlan,
        child: &NegotiatedChild,
        entropy: &mut Entropy,
        now: Time,
    ) -> Result<(NegotiatedPair, Vec<Child>), String> {
        let tunnel = connection_number(&child.connection)
            .filter(|number| *number < plan.tunnels.len())
            .ok_or_else(|| format!("{} is no tunnel", child.connection))?;
        let (inbound, outbound) = specs(plan, child);
        let failed = |error| format!("SPI {:#010x}: {error}", child.spi_in);
        let pair = NegotiatedPair {
            tunnel,
            inbound: InboundSa::new(inbound, now).map_err(failed)?,
            outbound: OutboundSa::new(outbound, entropy, now).map_err(failed)?,
        };
        let replaced = self.make_room(tunnel);
        self.known.insert(
            child.spi_in,
            Child {
                tunnel,
                id: child.id,
                spi_in: child.spi_in,
                spi_out: child.spi_out,
                algorithms: child.suite.to_string(),
                peer: child.peer,
                since: now,
                is_up: false,
                is_orphan: false,
                is_closing: false,
            },
        );
        Ok((pair, replaced))
    }

    /// Forgets the oldest associations of a tunnel that do not seal, so that there is room for another one.
    fn make_room(&mut self, tunnel: usize) -> Vec<Child> {
        let sealing = self.sealing.get(&tunnel).copied();
        let of = |child: &&Child| child.tunnel == tunnel && Some(child.spi_in) != sealing;
        let mut others: Vec<Child> = self.known.values().filter(of).cloned().collect();
        others.sort_by_key(|child| core::cmp::Reverse(child.since));
        let surplus = others.split_off(others.len().min(MAX_CHILDREN - 2));
        for child in &surplus {
            self.known.remove(&child.spi_in);
        }
        surplus
    }

    /// The association of an event; `None` if it is not known.
    pub(super) fn of(&self, facts: &ChildFacts) -> Option<&Child> {
        self.with_spi(facts.tunnel, facts.spi_in)
    }

    /// The association of a tunnel with this SPI of received packets.
    pub(super) fn with_spi(&self, tunnel: usize, spi_in: u32) -> Option<&Child> {
        self.known
            .get(&spi_in)
            .filter(|child| child.tunnel == tunnel)
    }

    /// The newest of the associations of a tunnel with these SPIs of received packets that the peer has.
    pub(super) fn newest(&self, tunnel: usize, spis: &[u32]) -> Option<&Child> {
        let found = spis.iter().filter_map(|spi| self.with_spi(tunnel, *spi));
        found
            .filter(|child| child.is_up)
            .max_by_key(|child| child.since)
    }

    /// The association of a tunnel with this SPI, of received or of sent packets.
    pub(super) fn with_any_spi(&self, tunnel: usize, spi: u32) -> Option<&Child> {
        let sent = || {
            let mut known = self.known.values();
            known.find(|child| child.tunnel == tunnel && child.spi_out == spi)
        };
        self.with_spi(tunnel, spi).or_else(sent)
    }

    /// The association that seals the packets of a tunnel.
    pub(super) fn sealing(&self, tunnel: usize) -> Option<&Child> {
        self.with_spi(tunnel, *self.sealing.get(&tunnel)?)
    }

    /// Whether a tunnel has an association that seals, of the daemon that runs now.
    pub(super) fn is_up(&self, tunnel: usize) -> bool {
        self.sealing(tunnel).is_some_and(|child| !child.is_orphan)
    }

    /// Notes that an association seals. Forgets the one that sealed before, and returns it, if the daemon deletes it.
    /// Others stay: they may be of another IKE association, by which the peer sends.
    pub(super) fn seals(&mut self, tunnel: usize, spi_in: u32) -> Option<Child> {
        if let Some(child) = self.known.get_mut(&spi_in) {
            child.is_up = true;
        }
        let before = self.sealing.insert(tunnel, spi_in);
        let before = before.filter(|before| *before != spi_in)?;
        self.known.get(&before).filter(|child| child.is_closing)?;
        self.known.remove(&before)
    }

    /// Notes that the daemon deletes an association. Forgets it, and returns it, unless it seals: then it does so until
    /// the new one seals (the responder of a change of keys), or an event reports the end.
    pub(super) fn closes(&mut self, tunnel: usize, spi_in: u32) -> Option<Child> {
        let known = self.known.get_mut(&spi_in);
        known.filter(|child| child.tunnel == tunnel)?.is_closing = true;
        match self.sealing.get(&tunnel) == Some(&spi_in) {
            true => None,
            false => self.known.remove(&spi_in),
        }
    }

    /// Forgets an association.
    pub(super) fn remove(&mut self, tunnel: usize, spi_in: u32) -> Option<RemovedChild> {
        self.with_spi(tunnel, spi_in)?;
        let child = self.known.remove(&spi_in)?;
        if self.sealing.get(&tunnel) != Some(&spi_in) {
            return Some(RemovedChild {
                child,
                instead: None,
                is_down: false,
            });
        }
        self.sealing.remove(&tunnel);
        let others = self.known.values();
        let others = others.filter(|other| other.tunnel == tunnel && other.is_up);
        let instead = others
            .max_by_key(|other| (!other.is_orphan, other.since))
            .cloned();
        Some(RemovedChild {
            is_down: instead.is_none(),
            child,
            instead,
        })
    }

    /// Notes that the daemon has ended: nothing follows the associations any more.
    pub(super) fn orphan(&mut self) {
        for child in self.known.values_mut() {
            child.is_orphan = true;
        }
        self.missing.clear();
    }

    /// Associations that are there no more: the daemon, which listed `listed` since `asked`, does not know them, nor
    /// did it in the list before; or it has ended, and their lifetimes have. One list is no proof: associations that
    /// move to the next IKE association meanwhile may be in neither.
    pub(super) fn gone(
        &mut self,
        (listed, asked): (&HashSet<u32>, Time),
        ike: &IkeSpec,
        now: Time,
    ) -> Vec<(usize, u32)> {
        let (mut gone, mut missing) = (Vec::new(), HashSet::default());
        for child in self.known.values() {
            let is_missing = child.since < asked && !listed.contains(&child.spi_in);
            let is_gone = match child.is_orphan {
                true => {
                    let replaced = self.is_up(child.tunnel);
                    replaced || now.since(child.since) >= hard_lifetime(ike)
                }
                false => is_missing && self.missing.contains(&child.spi_in),
            };
            if is_gone {
                gone.push((child.tunnel, child.spi_in));
            } else if is_missing && !child.is_orphan {
                missing.insert(child.spi_in);
            }
        }
        self.missing = missing;
        gone
    }

    /// Whether the last list of the daemon lacked associations, so that another one decides.
    pub(super) fn lacks(&self) -> bool {
        !self.missing.is_empty()
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
        let found = children_of(&event(one));
        assert_eq!((found[0].tunnel, found[0].spi_in), (4, 0x0810_05ce));
        assert_eq!(found[0].peer, "192.0.2.2:4500".parse().ok());
        assert_eq!(found[0].identity, "centre.example");
        assert!(children_of(&event(ViciSection::new().with("spi-in", "x"))).is_empty());
        assert!(children_of(&event(ViciSection::new())).is_empty());
    }

    fn at(second: u64) -> Time {
        Time::ZERO + Duration::from_secs(second)
    }

    impl Children {
        /// An association of tunnel 4 that was negotiated at this time.
        pub(in crate::ike) fn negotiated(&mut self, spi: u32, second: u64) {
            self.known.insert(
                spi,
                Child {
                    tunnel: 4,
                    id: spi,
                    spi_in: spi,
                    spi_out: spi + 100,
                    algorithms: String::new(),
                    peer: "192.0.2.2:4500".parse().unwrap(),
                    since: at(second),
                    is_up: false,
                    is_orphan: false,
                    is_closing: false,
                },
            );
        }
    }

    fn with_children(children: &[(u32, u64)]) -> Children {
        let mut of = Children::default();
        for &(spi, second) in children {
            of.negotiated(spi, second);
        }
        of
    }

    fn ike() -> IkeSpec {
        let text = "[gateway]\nlocal=\"192.0.2.1\"\n[gateway.ike]\nrekey_s=100\n[[gateway.tunnel]]\nname=\"b\"\npeer=\"192.0.2.2\"\nsecret_file=\"s\"\nlocal_networks=\"10.1.0.0/16\"\nremote_networks=\"10.2.0.0/16\"\n";
        let spec = config::parse(text, "f").unwrap().gateway.unwrap();
        match spec.keys {
            config::GatewayKeySource::Ike(ike) => *ike,
            config::GatewayKeySource::File(_) => panic!(),
        }
    }

    #[test]
    fn associations_are_followed_until_they_are_deleted() {
        let mut children = with_children(&[(1, 0), (2, 10), (3, 20)]);
        assert!(children.with_spi(5, 1).is_none(), "of another tunnel");
        assert!(children.seals(4, 1).is_none());
        assert!(children.seals(4, 1).is_none());
        assert!(children.seals(4, 2).is_none(), "1 may be in use");
        assert!(children.is_up(4) && !children.is_up(5));
        // One that is up takes the place of a deleted one; 3 has never been.
        let removed = children.remove(4, 2).unwrap();
        assert!(!removed.is_down);
        assert_eq!(removed.instead.unwrap().spi_in, 1);
        assert!(children.seals(4, 1).is_none());
        let removed = children.remove(4, 1).unwrap();
        assert!(removed.is_down && removed.child.spi_out == 101);
        assert!(children.remove(4, 1).is_none());
    }

    /// Old keys end when the daemon deletes them: after the new ones seal at the initiator of the change, before that
    /// at the responder.
    #[test]
    fn replaced_associations_are_forgotten_when_the_daemon_deletes_them() {
        let spi = |child: Option<Child>| child.map(|child| child.spi_in);
        let mut children = with_children(&[(1, 0), (2, 10), (3, 20), (4, 30)]);
        children.seals(4, 1);
        assert_eq!(spi(children.seals(4, 2)), None);
        assert_eq!(spi(children.closes(4, 1)), Some(1), "initiator");
        assert_eq!(spi(children.closes(4, 1)), None, "again");
        assert_eq!(spi(children.closes(4, 2)), None, "responder: 2 seals");
        assert_eq!(children.sealing(4).map(|child| child.spi_in), Some(2));
        assert_eq!(spi(children.seals(4, 3)), Some(2));
        // The redundant one of two changes at the same time has never sealed.
        assert_eq!(spi(children.closes(5, 4)), None, "of another tunnel");
        assert_eq!(spi(children.closes(4, 4)), Some(4));
        assert_eq!(children.known.len(), 1);
    }

    #[test]
    fn the_oldest_associations_of_a_tunnel_make_room() {
        let mut children = with_children(&[(1, 0), (2, 10), (3, 20), (4, 30)]);
        children.seals(4, 1);
        let surplus: Vec<u32> = children.make_room(4).iter().map(|c| c.spi_in).collect();
        assert_eq!(surplus, [2], "the oldest one that does not seal");
        assert!(children.make_room(4).is_empty());
        assert!(children.make_room(5).is_empty());
    }

    /// The numbers of a daemon that has ended are those of other associations of the next one.
    #[test]
    fn associations_of_an_ended_daemon_have_no_number() {
        let mut children = with_children(&[(1, 0), (2, 10), (3, 20), (4, 30)]);
        children.seals(4, 1);
        children.orphan();
        children.known.get_mut(&4).unwrap().is_orphan = false;
        let surplus = children.make_room(4);
        let numbers: Vec<_> = surplus.iter().map(Child::daemon_number).collect();
        assert_eq!(numbers, [None], "{surplus:?}");
        assert_eq!(children.known[&4].daemon_number(), Some(4));
    }

    #[test]
    fn the_newest_association_that_the_peer_has_is_found() {
        let mut children = with_children(&[(1, 0), (2, 10), (3, 20), (4, 30)]);
        for spi in [1, 2, 3] {
            children.seals(4, spi);
        }
        let newest = |spis: &[u32]| children.newest(4, spis).map(|child| child.spi_in);
        assert_eq!(newest(&[1, 2, 4, 9]), Some(2), "4 has not sealed");
        assert_eq!(newest(&[4]), None);
    }

    #[test]
    fn associations_are_found_by_both_spis() {
        let children = with_children(&[(1, 0), (2, 10)]);
        for spi in [2, 102] {
            assert_eq!(children.with_any_spi(4, spi).map(|child| child.id), Some(2));
        }
        assert!(children.with_any_spi(5, 2).is_none(), "of another tunnel");
        assert!(children.with_any_spi(4, 3).is_none());
    }

    #[test]
    fn associations_that_the_daemon_does_not_know_are_gone() {
        let mut children = with_children(&[(1, 0), (2, 10), (3, 50)]);
        children.seals(4, 2);
        let ike = ike();
        let listed = HashSet::from([2]);
        let gone = |children: &mut Children, now| children.gone((&listed, at(40)), &ike, at(now));
        assert!(
            gone(&mut children, 60).is_empty() && children.lacks(),
            "the first list"
        );
        // It was moved to another IKE association meanwhile.
        let all = HashSet::from([1, 2]);
        assert!(children.gone((&all, at(40)), &ike, at(60)).is_empty() && !children.lacks());
        assert!(gone(&mut children, 60).is_empty() && children.lacks());
        assert_eq!(
            gone(&mut children, 60),
            [(4, 1)],
            "3 is newer than the list"
        );
        assert!(!children.lacks());
        // A daemon that has ended knows none: the keys are used until they end, or others take their place.
        children.orphan();
        assert!(!children.is_up(4));
        assert!(gone(&mut children, 200).is_empty());
        let mut ended = gone(&mut children, 255);
        ended.sort_unstable();
        assert_eq!(ended, [(4, 1), (4, 2)], "after 100 s * 5 / 4 + 120 s");
        children.known.get_mut(&3).unwrap().is_orphan = false;
        children.seals(4, 3);
        assert_eq!(gone(&mut children, 60).len(), 2);
    }
}
