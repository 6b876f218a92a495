//! Rate limit of registrations: after a power failure all phones register at once. A phone above the rate gets a
//! reserved time slot, and Retry-After for it. A phone that returns in time is admitted regardless of others, so that
//! each phone is served, including hundreds behind one address.

use core::hash::BuildHasher as _;
use core::time::Duration;
use engine::{BoundedMap, Entropy, HashKey, Time};
use std::collections::VecDeque;

/// How early a phone may use its slot: Retry-After has whole seconds, and phones round.
const EARLY: Duration = Duration::from_millis(500);
/// Time for which an unused slot is kept.
const KEPT: Duration = Duration::from_secs(64);
/// Longest delay until a slot; phones beyond it get none, and retry after this time.
const LONGEST: Duration = Duration::from_secs(300);

/// Rate limiter of registrations.
#[derive(Debug)]
pub struct RegistrationLimiter {
    /// Registrations per second; 0: no limit.
    rate: u32,
    /// The last slot that was reserved.
    last: Time,
    turns: BoundedMap<u64, Time>,
    /// Slots in order, for their expiry.
    order: VecDeque<(Time, u64)>,
    key: HashKey,
}

impl RegistrationLimiter {
    /// Admits `rate` registrations per second (0: no limit), and keeps slots for at most `limit` phones.
    pub fn new(rate: u32, limit: usize, entropy: &mut Entropy) -> RegistrationLimiter {
        RegistrationLimiter {
            rate,
            last: Time(0),
            turns: BoundedMap::new(limit, HashKey::new(entropy)),
            order: VecDeque::new(),
            key: HashKey::new(entropy),
        }
    }

    /// Applies new settings; slots stay.
    pub fn reload(&mut self, rate: u32, limit: usize) {
        self.rate = rate;
        self.turns.set_limit(limit);
    }

    /// Admits a registration of `user`.
    ///
    /// # Errors
    /// Seconds until the reserved slot.
    pub fn reserve_slot(&mut self, user: &str, now: Time) -> Result<(), u32> {
        if self.rate == 0 {
            return Ok(());
        }
        self.forget(now);
        let who = self.key.hash_one(user);
        if let Some(&turn) = self.turns.get(&who) {
            if now + EARLY < turn {
                return Err(seconds(turn.since(now)));
            }
            self.turns.remove(&who);
            return Ok(());
        }
        let step = Duration::from_secs(1) / self.rate;
        // A burst of one second is admitted at once.
        let earliest = Time(now.0.saturating_sub(1_000_000_000));
        let turn = self.last.max(earliest) + step;
        if turn <= now {
            self.last = turn;
            return Ok(());
        }
        let wait = turn.since(now);
        if wait > LONGEST || self.turns.insert(who, turn).is_err() {
            return Err(seconds(wait.min(LONGEST)));
        }
        self.last = turn;
        self.order.push_back((turn, who));
        Err(seconds(wait))
    }

    /// Removes unused slots.
    fn forget(&mut self, now: Time) {
        while let Some(&(turn, who)) = self.order.front() {
            // Slots that were used are removed when they reach the front.
            if now < turn + KEPT && self.turns.get(&who) == Some(&turn) {
                return;
            }
            self.order.pop_front();
            // The same phone may have got another slot since.
            if self.turns.get(&who) == Some(&turn) {
                self.turns.remove(&who);
            }
        }
    }
}

/// Whole seconds, rounded up.
fn seconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(rate: u32, limit: usize) -> RegistrationLimiter {
        RegistrationLimiter::new(rate, limit, &mut Entropy::from_number(1))
    }

    #[test]
    fn without_rate_all_registers_are_admitted() {
        let mut admission = admission(0, 1);
        for phone in 0..1_000 {
            assert_eq!(admission.reserve_slot(&phone.to_string(), Time(1)), Ok(()));
        }
    }

    /// All phones at once, each of which obeys Retry-After: all are registered at the configured rate, and none sends
    /// more than two requests.
    #[test]
    fn registration_storm_is_admitted_at_the_rate() {
        let (rate, phones) = (50, 1_000u32);
        let mut admission = admission(rate, 10_000);
        let start = Time::from_secs(1_000);
        let mut again: Vec<(Time, u32)> = Vec::new();
        let mut at_once = 0;
        for phone in 0..phones {
            match admission.reserve_slot(&phone.to_string(), start) {
                Ok(()) => at_once += 1,
                Err(wait) => again.push((start + Duration::from_secs(wait.into()), phone)),
            }
        }
        assert_eq!(at_once, rate);
        again.sort_unstable();
        let last = again.last().map(|(at, _)| at.since(start));
        assert_eq!(
            last,
            Some(Duration::from_secs(u64::from(phones / rate - 1)))
        );
        for second in again.chunk_by(|a, b| a.0 == b.0) {
            assert!(second.len() <= rate as usize, "{}", second.len());
        }
        for (at, phone) in again {
            assert_eq!(
                admission.reserve_slot(&phone.to_string(), at),
                Ok(()),
                "{phone}"
            );
        }
        assert!(admission.turns.is_empty());
    }

    #[test]
    fn early_retries_keep_their_reserved_slot() {
        let mut admission = admission(1, 100);
        let start = Time::from_secs(1_000);
        assert_eq!(admission.reserve_slot("a", start), Ok(()));
        assert_eq!(admission.reserve_slot("b", start), Err(1));
        assert_eq!(admission.reserve_slot("c", start), Err(2));
        for _ in 0..10 {
            assert_eq!(admission.reserve_slot("c", start), Err(2));
        }
        let later = start + Duration::from_secs(2);
        assert_eq!(admission.reserve_slot("c", later), Ok(()));
        assert_eq!(admission.reserve_slot("b", later), Ok(()));
    }

    #[test]
    fn reserved_slots_are_bounded_and_expire() {
        let mut admission = admission(10, 5);
        let start = Time::from_secs(1_000);
        for phone in 0..1_000 {
            let _ = admission.reserve_slot(&phone.to_string(), start);
        }
        assert_eq!(admission.turns.len(), 5);
        assert!(admission.order.len() <= 5);
        let later = start + Duration::from_secs(100);
        assert_eq!(admission.reserve_slot("new", later), Ok(()));
        assert!(admission.turns.is_empty() && admission.order.is_empty());
        // Phones beyond the longest delay have no slot.
        let mut admission = self::admission(1, 10_000);
        let waits = (0..1_000).map(|phone| admission.reserve_slot(&phone.to_string(), start));
        assert_eq!(waits.filter_map(Result::err).max(), Some(300));
        assert_eq!(admission.turns.len(), 300);
    }
}
