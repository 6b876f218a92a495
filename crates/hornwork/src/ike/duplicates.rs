//! Tunnels that both ends have set up at the same time, each with an IKE association of its own (RFC 7296 has no rule
//! for it, and the `unique` policies of strongSwan 5.9.8 keep both where neither is established when the other one
//! begins).
//!
//! Both ends delete the same one: that whose initiator has the larger SPI. They need no message about it.
//!
//! Each has keys of its own until then, which may change in the meantime: a list from before a change names an
//! association that is there no more, and the next list decides.

use super::children::{Child, Children, children_of};
use engine::Time;
use protect::ike::{ViciSection, connection_number};
use std::collections::HashSet;

/// Longest time between the ends of two negotiations that began at the same time: first messages are repeated for 26 s.
const MAX_DISTANCE_S: u64 = 30;
/// Greatest age of both. New keys for IKE messages come with new SPIs, after 54 s at the earliest (`ike_rekey_s` of 60
/// less a tenth): one end may list the old ones, the other end the new ones, and each keep another one.
const MAX_AGE_S: u64 = 50;

/// An established IKE association in a list of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedExchange {
    tunnel: usize,
    /// The daemon's number of it.
    pub(super) id: u32,
    /// SPI of its initiator, 16 digits: both ends know it.
    initiator_spi: String,
    /// This end is the initiator.
    is_initiator: bool,
    age_s: u64,
    /// SPIs of received packets of its installed associations.
    pub(super) children: Vec<u32>,
}

/// Two IKE associations of a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Duplicate {
    pub(super) tunnel: usize,
    pub(super) kept: ListedExchange,
    /// The daemon's number of the other one.
    pub(super) surplus: u32,
}

/// The answer to a request for all associations of the daemon.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// The time of the request.
    pub(super) asked: Time,
    /// SPIs of received packets.
    pub(super) children: HashSet<u32>,
    exchanges: Vec<ListedExchange>,
}

/// A duplicate that is deleted.
#[derive(Debug)]
pub(super) struct Removal {
    pub(super) duplicate: Duplicate,
    /// The association of the kept one that seals if none of it does.
    pub(super) sealing: Child,
}

/// Tunnels that both ends have set up, of which one association was deleted. A peer that replaces it has two.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    done: HashSet<usize>,
}

impl Duplicates {
    /// The duplicates of a list that are deleted now, and whether others need another list.
    pub(super) fn decide(&mut self, listed: &Listed, children: &Children) -> (Vec<Removal>, bool) {
        let (mut removals, mut is_open) = (Vec::new(), false);
        for duplicate in listed.duplicates() {
            let tunnel = duplicate.tunnel;
            if self.done.contains(&tunnel) {
                continue;
            }
            match children.newest(tunnel, &duplicate.kept.children) {
                Some(sealing) => {
                    self.done.insert(tunnel);
                    removals.push(Removal {
                        sealing: sealing.clone(),
                        duplicate,
                    });
                }
                None => is_open = true,
            }
        }
        (removals, is_open)
    }

    /// The next duplicate of a tunnel is another case.
    pub(super) fn forget(&mut self, tunnel: usize) {
        self.done.remove(&tunnel);
    }

    /// The daemon has ended, with its associations.
    pub(super) fn clear(&mut self) {
        self.done.clear();
    }
}

/// Whether an association in this state carries packets; during a change of keys the former one does.
fn is_in_use(state: &str) -> bool {
    matches!(state, "INSTALLED" | "REKEYING" | "REKEYED")
}

/// An IKE association with installed associations, in an event `list-sa`.
fn exchange_of(tunnel: usize, ike: &ViciSection) -> Option<ListedExchange> {
    if ike.text("state") != Some("ESTABLISHED") {
        return None;
    }
    let children = ike.section("child-sas")?;
    let installed = children
        .sections()
        .map(|(_, child)| child)
        .filter(|child| child.text("state").is_some_and(is_in_use));
    let spis = installed.filter_map(|child| u32::from_str_radix(child.text("spi-in")?, 16).ok());
    let children: Vec<u32> = spis.collect();
    if children.is_empty() {
        return None;
    }
    Some(ListedExchange {
        tunnel,
        id: ike.text("uniqueid")?.parse().ok()?,
        initiator_spi: ike.text("initiator-spi")?.to_owned(),
        is_initiator: ike.text("initiator") == Some("yes"),
        age_s: ike.text("established")?.parse().ok()?,
        children,
    })
}

impl Listed {
    /// A list that was requested at this time.
    pub(super) fn new(asked: Time) -> Listed {
        Listed {
            asked,
            ..Listed::default()
        }
    }

    /// Adds the associations of an event `list-sa`.
    pub(super) fn add(&mut self, message: &ViciSection) {
        let children = children_of(message).into_iter();
        let children = children.filter(|child| !child.is_deleted);
        self.children.extend(children.map(|child| child.spi_in));
        for (name, ike) in message.sections() {
            let tunnel = connection_number(name);
            self.exchanges
                .extend(tunnel.and_then(|tunnel| exchange_of(tunnel, ike)));
        }
    }

    /// Tunnels that both ends have set up at the same time. Others with two associations are left to dead peer
    /// detection: the older one may be that of a peer that has restarted.
    fn duplicates(&self) -> Vec<Duplicate> {
        let mut found = Vec::new();
        for one in self.exchanges.iter().filter(|one| one.is_initiator) {
            let mut others = self
                .exchanges
                .iter()
                .filter(|other| other.tunnel == one.tunnel && other.id != one.id);
            let (Some(other), None) = (others.next(), others.next()) else {
                continue;
            };
            let is_late = one.age_s.max(other.age_s) > MAX_AGE_S;
            if other.is_initiator || is_late || one.age_s.abs_diff(other.age_s) > MAX_DISTANCE_S {
                continue;
            }
            let (kept, surplus) = match one.initiator_spi <= other.initiator_spi {
                true => (one, other),
                false => (other, one),
            };
            found.push(Duplicate {
                tunnel: one.tunnel,
                kept: kept.clone(),
                surplus: surplus.id,
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IKE association as strongSwan 5.9.8 lists it.
    fn event(id: u32, initiator_spi: &str, is_initiator: bool, age_s: u64) -> ViciSection {
        let child = |state, spi: u32| {
            ViciSection::new()
                .with("state", state)
                .with("spi-in", format!("{spi:08x}"))
        };
        let children = ViciSection::new()
            .with_section("net-1", child("DELETED", id + 200))
            .with_section("net-2", child("INSTALLED", id + 100))
            .with_section("net-3", child("REKEYING", id + 300));
        let mut ike = ViciSection::new()
            .with("uniqueid", id.to_string())
            .with("state", "ESTABLISHED");
        if is_initiator {
            ike = ike.with("initiator", "yes");
        }
        let ike = ike
            .with("initiator-spi", initiator_spi)
            .with("established", age_s.to_string())
            .with_section("child-sas", children);
        ViciSection::new().with_section("tunnel-4", ike)
    }

    fn listed(events: &[ViciSection]) -> Listed {
        let mut listed = Listed::new(Time::ZERO);
        for event in events {
            listed.add(event);
        }
        listed
    }

    #[test]
    fn both_ends_delete_the_same_association() {
        let (low, high) = ("25113fcf129af156", "7ed7fd866349e1a5");
        let here = listed(&[event(1, high, true, 9), event(2, low, false, 7)]).duplicates();
        let there = listed(&[event(7, low, true, 7), event(6, high, false, 9)]).duplicates();
        let [here] = &here[..] else {
            panic!("{here:?}");
        };
        assert_eq!((here.tunnel, here.kept.id, here.surplus), (4, 2, 1));
        assert_eq!(here.kept.children, [102, 302], "without the deleted one");
        let listed = listed(&[event(1, low, true, 9)]);
        assert_eq!(listed.children, HashSet::from([101, 301]));
        assert_eq!((there[0].kept.id, there[0].surplus), (7, 6));
    }

    /// An IKE association with one association of this SPI.
    fn with_child(id: u32, initiator_spi: &str, is_initiator: bool, child: u32) -> ViciSection {
        let child = ViciSection::new()
            .with("state", "INSTALLED")
            .with("spi-in", format!("{child:08x}"));
        let ike = ViciSection::new()
            .with("uniqueid", id.to_string())
            .with("state", "ESTABLISHED")
            .with("initiator", if is_initiator { "yes" } else { "no" })
            .with("initiator-spi", initiator_spi)
            .with("established", "5")
            .with_section("child-sas", ViciSection::new().with_section("net-1", child));
        ViciSection::new().with_section("tunnel-4", ike)
    }

    /// With `rekey_s = 5` each of two IKE associations has had new keys before the list: 1 became 3 and 5, 2 became 4.
    /// The kept one is that whose keys changed before those of the other one.
    #[test]
    fn one_of_two_stays_where_the_keys_of_both_have_changed() {
        let (low, high) = ("25113fcf129af156", "7ed7fd866349e1a5");
        let mut children = Children::default();
        let mut rekeyed = |old: u32, new: u32, second: u64, is_initiator: bool| {
            children.negotiated(new, second);
            if is_initiator {
                children.seals(4, new);
                children.closes(4, old);
            } else {
                children.closes(4, old);
                children.seals(4, new);
            }
        };
        rekeyed(0, 1, 0, true);
        rekeyed(0, 2, 2, true);
        rekeyed(1, 3, 3, false);
        rekeyed(2, 4, 5, false);
        rekeyed(3, 5, 6, true);
        assert_eq!(children.sealing(4).map(|child| child.spi_in), Some(5));
        let listed = listed(&[with_child(1, low, true, 4), with_child(2, high, false, 5)]);
        let (removals, is_open) = Duplicates::default().decide(&listed, &children);
        let [removal] = &removals[..] else {
            panic!("{removals:?}");
        };
        assert_eq!((removal.sealing.spi_in, removal.duplicate.surplus), (4, 2));
        assert!(!is_open);
    }

    /// The daemon has made the list before the change of keys that its log tells about.
    #[test]
    fn a_list_from_before_a_change_of_keys_is_repeated() {
        let (low, high) = ("25113fcf129af156", "7ed7fd866349e1a5");
        let mut children = Children::default();
        for (spi, second) in [(1, 0), (2, 1), (3, 5)] {
            children.negotiated(spi, second);
            children.seals(4, spi);
        }
        children.closes(4, 1);
        let mut duplicates = Duplicates::default();
        let mut decide = |child, children: &Children| {
            let other = with_child(2, high, false, 2);
            let listed = listed(&[with_child(1, low, true, child), other]);
            let (removals, is_open) = duplicates.decide(&listed, children);
            (removals.len(), is_open)
        };
        assert_eq!(decide(1, &children), (0, true));
        assert_eq!(decide(3, &children), (1, false));
        assert_eq!(decide(3, &children), (0, false), "the peer has replaced it");
        duplicates.forget(4);
        let listed = listed(&[with_child(1, low, true, 3), with_child(2, high, false, 2)]);
        assert_eq!(duplicates.decide(&listed, &children).0.len(), 1);
    }

    #[test]
    fn other_associations_of_a_tunnel_stay() {
        let (low, high) = ("25113fcf129af156", "7ed7fd866349e1a5");
        for (events, why) in [
            (vec![event(1, low, true, 9)], "one"),
            (
                vec![event(1, low, false, 9), event(2, high, false, 8)],
                "both of the peer",
            ),
            (
                vec![event(1, low, true, 90), event(2, high, false, 8)],
                "the peer has restarted",
            ),
            (
                vec![event(1, low, true, 51), event(2, high, false, 49)],
                "the SPIs may change",
            ),
            (
                vec![
                    event(1, low, true, 9),
                    event(2, high, false, 8),
                    event(3, high, false, 7),
                ],
                "a third one",
            ),
        ] {
            assert_eq!(listed(&events).duplicates(), [], "{why}");
        }
        // One that is deleted, or has no association for packets.
        let text = |state| {
            let ike = ViciSection::new()
                .with("uniqueid", "9")
                .with("state", state)
                .with("initiator-spi", low)
                .with("established", "9")
                .with_section("child-sas", ViciSection::new());
            ViciSection::new().with_section("tunnel-4", ike)
        };
        for state in ["DELETING", "ESTABLISHED"] {
            let events = [event(1, low, true, 9), text(state)];
            assert_eq!(listed(&events).duplicates(), [], "{state}");
        }
    }
}
