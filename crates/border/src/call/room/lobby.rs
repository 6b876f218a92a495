//! Callers who have yet to give a PIN, in places of their own. Where all places are taken, who has been still for longest gives way: at
//! once, where his source holds more places than the newcomer's; otherwise after a time in which everybody can dial, and never to a source
//! that holds more than his. So callers who do not know the PIN keep nobody out who does, unless they come from as many sources as there are
//! places.

use super::{CallKey, Full};
use crate::border::Core;
use crate::config::{Room, TrunkId};
use core::time::Duration;
use engine::Time;
use sip::Endpoint;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use wire::sip::Message;

/// How long somebody may be still before he gives way to anybody: long enough to look a PIN up.
const STILL: Duration = Duration::from_secs(10);

/// Who holds places, as far as that cannot be made up at will.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// A user who has proven who he is.
    User(Box<str>),
    /// Whom a trunk says that it has: many call through one.
    Caller(TrunkId, Box<[u8]>),
    /// Somebody at an address, or in the network that an IPv6 host has for itself.
    Address(IpAddr),
}

impl Source {
    pub(super) fn of(
        user: Option<Box<str>>,
        trunk: Option<TrunkId>,
        request: &Message<'_>,
        address: IpAddr,
    ) -> Source {
        match (user, trunk) {
            (Some(user), _) => Source::User(user),
            (None, Some(trunk)) => {
                let from = request.from().map(|from| from.uri).unwrap_or_default();
                Source::Caller(trunk, from.into())
            }
            (None, None) => Source::Address(match address.to_canonical() {
                IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
                ip => ip,
            }),
        }
    }
}

#[derive(Debug)]
struct Place {
    call: CallKey,
    /// Name of the room.
    room: String,
    source: Source,
    /// Since when he has been still: since he called, or pressed a digit.
    still: Time,
}

/// What there is for a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// A place is free.
    Free,
    /// This one gives way.
    From(CallKey),
    /// Nobody does.
    None,
}

/// All who wait, by the numbers of their calls.
#[derive(Debug, Default)]
pub(super) struct Lobby(BTreeMap<u64, Place>);

impl Lobby {
    pub(super) fn enter(
        &mut self,
        number: u64,
        call: CallKey,
        room: &str,
        source: Source,
        now: Time,
    ) {
        let place = Place {
            call,
            room: room.to_owned(),
            source,
            still: now,
        };
        self.0.insert(number, place);
    }

    /// He pressed a digit.
    pub(super) fn stir(&mut self, number: u64, now: Time) {
        if let Some(place) = self.0.get_mut(&number) {
            place.still = now;
        }
    }

    pub(super) fn leave(&mut self, number: u64) {
        self.0.remove(&number);
    }

    /// Where a newcomer may wait.
    pub(super) fn space(&self, room: &Room, source: &Source, now: Time) -> Space {
        let places = || self.0.values().filter(|place| place.room == room.name);
        if places().count() < usize::from(room.waiting) {
            return Space::Free;
        }
        let mut counts: BTreeMap<&Source, usize> = BTreeMap::new();
        for place in places() {
            *counts.entry(&place.source).or_default() += 1;
        }
        let count = |source: &Source| counts.get(source).copied().unwrap_or_default();
        let most = counts.values().copied().max().unwrap_or_default();
        // The newcomer is one more of his own source: what that takes it must not have lost.
        let unfair = most > count(source) + 1;
        let longest = match unfair {
            true => places()
                .filter(|place| count(&place.source) == most)
                .min_by_key(|place| place.still),
            false => places()
                .filter(|place| now.since(place.still) >= STILL)
                // Who has many places does not get one more from who has few.
                .filter(|place| count(&place.source) >= count(source))
                .min_by_key(|place| place.still),
        };
        longest.map_or(Space::None, |place| Space::From(place.call))
    }
}

impl Core {
    /// Makes a place for somebody who has to give the PIN.
    pub(super) fn space_to_wait(
        &mut self,
        endpoint: &mut Endpoint,
        room: &Room,
        source: &Source,
        now: Time,
    ) -> Result<(), Full> {
        match self.conferences.lobby.space(room, source, now) {
            Space::Free => Ok(()),
            Space::None => Err(Full::WAITING),
            Space::From(call) => {
                self.give_way(endpoint, call, now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(waiting: u16) -> Room {
        let text = format!(
            "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\nmedia={{address='192.0.2.1'}}\n[[room]]\nname='m'\nnumber='1'\npin='1234'\nwaiting={waiting}\n"
        );
        let config = crate::config::parse(&text, "t").unwrap();
        Room::clone(&config.rooms[0])
    }

    fn source(user: Option<&str>, trunk: Option<u16>, from: &str, address: &str) -> Source {
        let text = format!(
            "INVITE sip:1@h SIP/2.0\r\nFrom: <sip:{from}@h>;tag=1\r\nTo: <sip:1@h>\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\n\r\n"
        );
        let request = Message::parse(text.as_bytes()).unwrap();
        let trunk = trunk.map(TrunkId);
        Source::of(
            user.map(Box::from),
            trunk,
            &request,
            address.parse().unwrap(),
        )
    }

    #[test]
    fn sources_are_what_cannot_be_made_up() {
        let by_address = |address| source(None, None, "x", address);
        assert_eq!(by_address("10.0.0.1"), source(None, None, "y", "10.0.0.1"));
        assert_ne!(by_address("10.0.0.1"), by_address("10.0.0.2"));
        assert_eq!(by_address("::ffff:10.0.0.1"), by_address("10.0.0.1"));
        assert_eq!(by_address("2001:db8::1"), by_address("2001:db8::2:0:0:9"));
        assert_ne!(by_address("2001:db8::1"), by_address("2001:db8:0:1::1"));
        // Many come through one trunk, or from behind one NAT.
        let trunk = |from| source(None, Some(0), from, "10.0.0.1");
        assert_eq!(trunk("x"), trunk("x"));
        assert_ne!(trunk("x"), trunk("y"));
        assert_ne!(trunk("x"), source(None, Some(1), "x", "10.0.0.1"));
        let user = |user| source(Some(user), None, "x", "10.0.0.1");
        assert_ne!(user("a"), user("b"));
        assert_eq!(user("a"), source(Some("a"), None, "x", "10.0.0.9"));
    }

    #[test]
    fn places_are_shared_fairly_and_by_patience() {
        let room = room(4);
        let at = |second: u64| Time::from_secs(100 + second);
        let key = |number: u64| CallKey::new(number as usize, number);
        let [one, two, three] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| source(None, None, "x", ip));
        let mut lobby = Lobby::default();
        for number in 0..3 {
            assert_eq!(lobby.space(&room, &one, at(number)), Space::Free);
            lobby.enter(number, key(number), "m", one.clone(), at(number));
        }
        lobby.enter(9, key(9), "another room", two.clone(), at(0));
        lobby.enter(3, key(3), "m", two.clone(), at(3));
        // Two has one of four: a second one is fair, and so is a third source. One has its share and more.
        assert_eq!(lobby.space(&room, &two, at(4)), Space::From(key(0)));
        assert_eq!(lobby.space(&room, &three, at(4)), Space::From(key(0)));
        assert_eq!(lobby.space(&room, &one, at(4)), Space::None);
        // Who dials is not who is still.
        lobby.stir(0, at(5));
        assert_eq!(lobby.space(&room, &three, at(6)), Space::From(key(1)));
        assert_eq!(lobby.space(&room, &one, at(10)), Space::None);
        assert_eq!(lobby.space(&room, &one, at(11)), Space::From(key(1)));
        lobby.leave(0);
        assert_eq!(lobby.space(&room, &three, at(12)), Space::Free);
        lobby.enter(4, key(4), "m", two.clone(), at(12));
        // Two each: the next of either waits until somebody was still for long.
        assert_eq!(lobby.space(&room, &two, at(12)), Space::From(key(1)));
        lobby.leave(2);
        lobby.enter(5, key(5), "m", two.clone(), at(12));
        // Two has three, One is still for longest, but has one.
        assert_eq!(lobby.space(&room, &two, at(12)), Space::None);
        assert_eq!(lobby.space(&room, &two, at(13)), Space::From(key(3)));
        lobby.leave(5);
        lobby.enter(2, key(2), "m", one.clone(), at(12));
        lobby.stir(1, at(12));
        lobby.stir(3, at(12));
        assert_eq!(lobby.space(&room, &two, at(12)), Space::None);
        assert_eq!(lobby.space(&room, &three, at(12)), Space::From(key(1)));
    }
}
