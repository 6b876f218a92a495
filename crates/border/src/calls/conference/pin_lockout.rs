//! Wrong PINs by source, over several calls: a PIN of four digits must not be found by calling often.
//!
//! The numbers of one conference table belong to several workers, which therefore share the count: otherwise a source
//! had as many attempts more as there are workers. It is used for calls and complete PINs, never for packets of media.
//!
//! A source is locked out after [`FREE_ATTEMPTS`] wrong PINs for a growing time, in which its calls are refused and the
//! PINs of its callers in the lobby are not judged. The right PIN resets the count. The table is bounded: in place of a
//! new source, that with the oldest wrong PIN is forgotten.

use crate::calls::conference::lobby::LobbySource;
use core::time::Duration;
use engine::Time;
use std::collections::BTreeMap;

/// Wrong PINs before the first lockout: those of three calls.
const FREE_ATTEMPTS: u32 = 9;
/// The first lockout; each further wrong PIN doubles it.
const FIRST_LOCKOUT: Duration = Duration::from_secs(60);
/// The longest lockout, and the time after which wrong PINs are forgotten.
const LONGEST_LOCKOUT: Duration = Duration::from_secs(3_600);
/// Sources with wrong PINs, at most.
const MAX_SOURCES: usize = 4_096;

#[derive(Clone, Copy, Debug)]
struct WrongPins {
    count: u32,
    last: Time,
    locked_until: Time,
}

/// Sources with wrong PINs, by the name of the conference table.
#[derive(Debug, Default)]
pub(crate) struct PinLockout(BTreeMap<(String, LobbySource), WrongPins>);

impl PinLockout {
    /// Whether PINs of this source are not judged at present.
    pub(super) fn is_locked(&self, conference: &str, source: &LobbySource, now: Time) -> bool {
        let wrong = self.0.get(&(conference.to_owned(), source.clone()));
        wrong.is_some_and(|wrong| wrong.locked_until > now)
    }

    /// Counts a wrong PIN. Returns whether the source is locked out.
    pub(super) fn record_wrong(
        &mut self,
        conference: &str,
        source: &LobbySource,
        now: Time,
    ) -> bool {
        let key = (conference.to_owned(), source.clone());
        let is_recent =
            |wrong: &WrongPins| now.since(wrong.last.max(wrong.locked_until)) < LONGEST_LOCKOUT;
        let before = self.0.get(&key).filter(|wrong| is_recent(wrong));
        let count = before.map_or(0, |wrong| wrong.count).saturating_add(1);
        let locked_until = match count.checked_sub(FREE_ATTEMPTS) {
            None => now,
            Some(further) => {
                let span = FIRST_LOCKOUT.saturating_mul(1 << further.min(16));
                now + span.min(LONGEST_LOCKOUT)
            }
        };
        if self.0.len() >= MAX_SOURCES && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, wrong)| wrong.last);
            let oldest = oldest.map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        let wrong = WrongPins {
            count,
            last: now,
            locked_until,
        };
        self.0.insert(key, wrong);
        locked_until > now
    }

    /// The source has entered the right PIN. Returns whether it is accepted; not while the source is locked out.
    pub(super) fn record_right(
        &mut self,
        conference: &str,
        source: &LobbySource,
        now: Time,
    ) -> bool {
        let accepted = !self.is_locked(conference, source, now);
        if accepted {
            self.0.remove(&(conference.to_owned(), source.clone()));
        }
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(host: u32) -> LobbySource {
        LobbySource::Address(std::net::Ipv4Addr::from_bits(host).into())
    }

    #[test]
    fn lockouts_grow_and_concern_one_source_and_conference() {
        let mut lockout = PinLockout::default();
        let at = |second: u64| Time::from_secs(1_000_000 + second);
        for second in 0..8 {
            assert!(!lockout.record_wrong("m", &source(1), at(second)));
        }
        assert!(lockout.record_wrong("m", &source(1), at(8)));
        assert!(lockout.is_locked("m", &source(1), at(67)));
        assert!(!lockout.is_locked("m", &source(1), at(68)));
        for (conference, host) in [("m", 2), ("n", 1)] {
            assert!(!lockout.is_locked(conference, &source(host), at(9)));
        }
        // Each further one doubles it, to an hour.
        assert!(lockout.record_wrong("m", &source(1), at(68)));
        assert!(lockout.is_locked("m", &source(1), at(187)));
        assert!(!lockout.is_locked("m", &source(1), at(188)));
        for _ in 0..100 {
            lockout.record_wrong("m", &source(1), at(188));
        }
        assert!(lockout.is_locked("m", &source(1), at(188 + 3_599)));
        assert!(!lockout.is_locked("m", &source(1), at(188 + 3_600)));
        // An hour later they are forgotten, and at once with the right PIN.
        assert!(!lockout.record_wrong("m", &source(1), at(188 + 7_200)));
        for second in 0..20 {
            lockout.record_wrong("m", &source(3), at(second));
        }
        assert!(!lockout.record_right("m", &source(3), at(20)));
        assert!(lockout.record_right("m", &source(3), at(20 + 3_600)));
        assert!(!lockout.record_wrong("m", &source(3), at(20 + 3_600)));
    }

    #[test]
    fn table_is_bounded() {
        let mut lockout = PinLockout::default();
        for host in 0..2 * MAX_SOURCES as u32 {
            lockout.record_wrong("m", &source(host), Time::from_secs(u64::from(host)));
        }
        assert_eq!(lockout.0.len(), MAX_SOURCES);
        let newest = source(2 * MAX_SOURCES as u32 - 1);
        assert!(lockout.0.contains_key(&("m".to_owned(), newest)));
    }
}
