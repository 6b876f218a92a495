//! Callers that have not given the PIN, with a limit of their own.
//!
//! When the lobby is full, the caller that was idle for longest is displaced: at once if its source has more entries
//! than the newcomer's, otherwise after a time that is enough to dial, and never in favour of a source that has more
//! entries. So callers without the PIN cannot keep others out, unless they use as many sources as there are entries.

use crate::calls::key::CallKey;
use config::{ConferenceSpec, TrunkId};
use core::time::Duration;
use engine::Time;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use wire::sip::Message;

/// Idle time after which a caller can be displaced: long enough to look up a PIN.
const MIN_IDLE: Duration = Duration::from_secs(10);

/// Octets of an asserted caller that are kept.
const MAX_CALLER: usize = 256;

/// Origin of entries, as far as the caller cannot choose it freely.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LobbySource {
    /// An authenticated user.
    User(Box<str>),
    /// A caller as asserted by a trunk, which carries many.
    Caller(TrunkId, Box<[u8]>),
    /// An address, or the /64 network of an IPv6 address.
    Address(IpAddr),
}

impl LobbySource {
    pub(super) fn of(
        user: Option<Box<str>>,
        trunk: Option<TrunkId>,
        request: &Message<'_>,
        address: IpAddr,
    ) -> LobbySource {
        match (user, trunk) {
            (Some(user), _) => LobbySource::User(user),
            (None, Some(trunk)) => {
                let from = request.from().map(|from| from.uri).unwrap_or_default();
                let from = from.get(..MAX_CALLER).unwrap_or(from);
                LobbySource::Caller(trunk, from.into())
            }
            (None, None) => LobbySource::Address(match address.to_canonical() {
                IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
                ip => ip,
            }),
        }
    }
}

#[derive(Debug)]
struct LobbyEntry {
    call: CallKey,
    /// Name of the conference table.
    conference: String,
    source: LobbySource,
    /// Time of the call or of the last digit.
    idle_since: Time,
}

/// Space for a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LobbySpace {
    /// The lobby has a free entry.
    Free,
    /// This caller has to be displaced.
    Displace(CallKey),
    /// No caller can be displaced.
    Full,
}

/// A call that begins to join a conference.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewCaller {
    pub(super) call: CallKey,
    /// Number of the call.
    pub(super) number: u64,
    pub(super) at: Time,
}

/// All callers in lobbies, by the numbers of their calls.
#[derive(Debug, Default)]
pub(super) struct Lobby(BTreeMap<u64, LobbyEntry>);

impl Lobby {
    pub(super) fn enter(&mut self, caller: NewCaller, conference: &str, source: LobbySource) {
        let entry = LobbyEntry {
            call: caller.call,
            conference: conference.to_owned(),
            source,
            idle_since: caller.at,
        };
        self.0.insert(caller.number, entry);
    }

    /// Conference table and source of a caller.
    pub(super) fn origin(&self, number: u64) -> Option<(&str, &LobbySource)> {
        let entry = self.0.get(&number)?;
        Some((entry.conference.as_str(), &entry.source))
    }

    /// Resets the idle time after a digit.
    pub(super) fn record_digit(&mut self, number: u64, now: Time) {
        if let Some(entry) = self.0.get_mut(&number) {
            entry.idle_since = now;
        }
    }

    pub(super) fn leave(&mut self, number: u64) {
        self.0.remove(&number);
    }

    /// The space for a newcomer from `source`.
    pub(super) fn space(
        &self,
        spec: &ConferenceSpec,
        source: &LobbySource,
        now: Time,
    ) -> LobbySpace {
        let entries = || {
            self.0
                .values()
                .filter(|entry| entry.conference == spec.name)
        };
        if entries().count() < usize::from(spec.max_lobby) {
            return LobbySpace::Free;
        }
        let mut counts: BTreeMap<&LobbySource, usize> = BTreeMap::new();
        for entry in entries() {
            *counts.entry(&entry.source).or_default() += 1;
        }
        let count = |source: &LobbySource| counts.get(source).copied().unwrap_or_default();
        let most = counts.values().copied().max().unwrap_or_default();
        // The newcomer counts for its own source: it must not displace an entry of a source with as few.
        let over_share = most > count(source) + 1;
        let displaced = match over_share {
            true => entries()
                .filter(|entry| count(&entry.source) == most)
                .min_by_key(|entry| entry.idle_since),
            false => entries()
                .filter(|entry| now.since(entry.idle_since) >= MIN_IDLE)
                // A source with more entries gets none from a source with fewer.
                .filter(|entry| count(&entry.source) >= count(source))
                .min_by_key(|entry| entry.idle_since),
        };
        displaced.map_or(LobbySpace::Full, |entry| LobbySpace::Displace(entry.call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::key::CallSlot;

    fn spec(max_lobby: u16) -> ConferenceSpec {
        let text = format!(
            "[[interface]]\nname='a'\nlisten='udp:192.0.2.1:5060'\nmedia={{address='192.0.2.1'}}\n[[conference]]\nname='m'\nnumber='1'\npin='1234'\nmax_lobby={max_lobby}\n"
        );
        let config = config::parse(&text, "t").unwrap();
        ConferenceSpec::clone(&config.conferences[0])
    }

    fn source(user: Option<&str>, trunk: Option<u16>, from: &str, address: &str) -> LobbySource {
        let text = format!(
            "INVITE sip:1@h SIP/2.0\r\nFrom: <sip:{from}@h>;tag=1\r\nTo: <sip:1@h>\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\n\r\n"
        );
        let request = Message::parse(text.as_bytes()).unwrap();
        let trunk = trunk.map(TrunkId);
        LobbySource::of(
            user.map(Box::from),
            trunk,
            &request,
            address.parse().unwrap(),
        )
    }

    #[test]
    fn sources_cannot_be_chosen_by_the_caller() {
        let by_address = |address| source(None, None, "x", address);
        assert_eq!(by_address("10.0.0.1"), source(None, None, "y", "10.0.0.1"));
        assert_ne!(by_address("10.0.0.1"), by_address("10.0.0.2"));
        assert_eq!(by_address("::ffff:10.0.0.1"), by_address("10.0.0.1"));
        assert_eq!(by_address("2001:db8::1"), by_address("2001:db8::2:0:0:9"));
        assert_ne!(by_address("2001:db8::1"), by_address("2001:db8:0:1::1"));
        // Many callers share a trunk, or a NAT address.
        let trunk = |from| source(None, Some(0), from, "10.0.0.1");
        assert_eq!(trunk("x"), trunk("x"));
        assert_ne!(trunk("x"), trunk("y"));
        assert_ne!(trunk("x"), source(None, Some(1), "x", "10.0.0.1"));
        let user = |user| source(Some(user), None, "x", "10.0.0.1");
        assert_ne!(user("a"), user("b"));
        assert_eq!(user("a"), source(Some("a"), None, "x", "10.0.0.9"));
    }

    #[test]
    fn the_lobby_is_shared_fairly_and_by_idle_time() {
        let spec = spec(4);
        let at = |second: u64| Time::from_secs(100 + second);
        let key = |number: u64| CallKey::new(CallSlot(number as usize), number);
        let caller = |number, second| NewCaller {
            call: key(number),
            number,
            at: at(second),
        };
        let [one, two, three] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| source(None, None, "x", ip));
        let mut lobby = Lobby::default();
        for number in 0..3 {
            assert_eq!(lobby.space(&spec, &one, at(number)), LobbySpace::Free);
            lobby.enter(caller(number, number), "m", one.clone());
        }
        lobby.enter(caller(9, 0), "another spec", two.clone());
        lobby.enter(caller(3, 3), "m", two.clone());
        // Source two has one of four entries: a second one is within its share, and so is a third source. Source one
        // exceeds its share.
        assert_eq!(
            lobby.space(&spec, &two, at(4)),
            LobbySpace::Displace(key(0))
        );
        assert_eq!(
            lobby.space(&spec, &three, at(4)),
            LobbySpace::Displace(key(0))
        );
        assert_eq!(lobby.space(&spec, &one, at(4)), LobbySpace::Full);
        // A digit resets the idle time.
        lobby.record_digit(0, at(5));
        assert_eq!(
            lobby.space(&spec, &three, at(6)),
            LobbySpace::Displace(key(1))
        );
        assert_eq!(lobby.space(&spec, &one, at(10)), LobbySpace::Full);
        assert_eq!(
            lobby.space(&spec, &one, at(11)),
            LobbySpace::Displace(key(1))
        );
        lobby.leave(0);
        assert_eq!(lobby.space(&spec, &three, at(12)), LobbySpace::Free);
        lobby.enter(caller(4, 12), "m", two.clone());
        // Two each: the next caller of either waits for the idle time.
        assert_eq!(
            lobby.space(&spec, &two, at(12)),
            LobbySpace::Displace(key(1))
        );
        lobby.leave(2);
        lobby.enter(caller(5, 12), "m", two.clone());
        // Source two has three; source one is idle for longest, but has one.
        assert_eq!(lobby.space(&spec, &two, at(12)), LobbySpace::Full);
        assert_eq!(
            lobby.space(&spec, &two, at(13)),
            LobbySpace::Displace(key(3))
        );
        lobby.leave(5);
        lobby.enter(caller(2, 12), "m", one.clone());
        lobby.record_digit(1, at(12));
        lobby.record_digit(3, at(12));
        assert_eq!(lobby.space(&spec, &two, at(12)), LobbySpace::Full);
        assert_eq!(
            lobby.space(&spec, &three, at(12)),
            LobbySpace::Displace(key(1))
        );
    }
}
