//! Limits on new requests before a transaction exists: calls and registrations above the rates of their interface,
//! trunk or source are refused statelessly, and repeated registrations are answered.

use config::RateLimits;
use core::time::Duration;
use engine::{BoundedMap, Entropy, HashKey, Time, network_of};
use std::net::IpAddr;

/// Burst allowance, as the time in which the rate admits it: large enough for calls that were held back by adaptive
/// batching or by a stall of the machine, small enough that ten seconds stay within one percent of the rate.
const BURST: Duration = Duration::from_millis(50);
/// A source without requests for one to two of these is removed, or after as many other sources as a table has.
const GENERATION: Duration = Duration::from_secs(10);
/// Sources with a meter, in each generation.
const MAX_SOURCES: usize = 65_536;
/// Minimum interval between two events of one limit.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Kind of a limited request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LimitedRequest {
    Call,
    Registration,
}

/// Scope of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LimitScope {
    Interface(u16),
    Trunk(u16),
}

/// A meter that admits one request per step, and a burst; `rate` per second, 0 for no limit.
fn admit(next: &mut Time, rate: u32, now: Time) -> bool {
    if rate == 0 {
        return true;
    }
    let step = Duration::from_secs(1) / rate;
    let from = (*next).max(now);
    if from.since(now) > BURST.max(step) {
        return false;
    }
    *next = from + step;
    true
}

/// Meters of one interface or trunk: calls and registrations, each without and with credentials.
#[derive(Clone, Copy, Debug, Default)]
struct Meters {
    next: [[Time; 2]; 2],
    refused: u64,
    reported_at: Option<Time>,
}

type SourceKey = (IpAddr, LimitScope, LimitedRequest, bool);

/// Meters of all interfaces, trunks and sources.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    interfaces: Vec<Meters>,
    trunks: Vec<Meters>,
    recent: BoundedMap<SourceKey, Time>,
    previous: BoundedMap<SourceKey, Time>,
    since: Time,
}

impl RateLimiter {
    pub(crate) fn new(entropy: &mut Entropy) -> RateLimiter {
        let key = HashKey::new(entropy);
        RateLimiter {
            interfaces: Vec::new(),
            trunks: Vec::new(),
            recent: BoundedMap::new(MAX_SOURCES, key),
            previous: BoundedMap::new(MAX_SOURCES, key),
            since: Time(0),
        }
    }

    /// Resets all meters: a reload changes the indices of interfaces and trunks.
    pub(crate) fn reload(&mut self) {
        self.interfaces.clear();
        self.trunks.clear();
        self.recent.clear();
        self.previous.clear();
    }

    fn meters(&mut self, scope: LimitScope) -> Option<&mut Meters> {
        let (list, index) = match scope {
            LimitScope::Interface(index) => (&mut self.interfaces, usize::from(index)),
            LimitScope::Trunk(index) => (&mut self.trunks, usize::from(index)),
        };
        if list.len() <= index {
            list.resize(index + 1, Meters::default());
        }
        list.get_mut(index)
    }

    /// Whether a request of this kind is within its rates.
    pub(super) fn admits(
        &mut self,
        scope: LimitScope,
        rates: &RateLimits,
        request_kind: LimitedRequest,
        has_credentials: bool,
        source: IpAddr,
        now: Time,
    ) -> bool {
        let (all, each) = match request_kind {
            LimitedRequest::Call => (rates.calls_per_s, rates.source_calls_per_s),
            LimitedRequest::Registration => {
                (rates.registrations_per_s, rates.source_registrations_per_s)
            }
        };
        let source = network_of(source);
        // The source first: a source above its rate must not use up the rate of the others.
        if !self.admit_source((source, scope, request_kind, has_credentials), each, now) {
            return false;
        }
        let meter = self
            .meters(scope)
            .and_then(|meters| meters.next.get_mut(request_kind as usize))
            .and_then(|pair| pair.get_mut(usize::from(has_credentials)));
        meter.is_none_or(|next| admit(next, all, now))
    }

    fn admit_source(&mut self, key: SourceKey, rate: u32, now: Time) -> bool {
        if rate == 0 {
            return true;
        }
        // A full generation ends early: a source that stays active keeps its meter, and each new one gets one.
        let is_full = self.recent.is_full() && self.recent.get(&key).is_none();
        if is_full || now.since(self.since) >= GENERATION {
            self.since = now;
            core::mem::swap(&mut self.recent, &mut self.previous);
            self.recent.clear();
        }
        let mut next = match (self.recent.get(&key), self.previous.get(&key)) {
            (Some(next), _) | (None, Some(next)) => *next,
            (None, None) => Time(0),
        };
        let is_admitted = admit(&mut next, rate, now);
        // There is room, see above.
        let _ = self.recent.insert(key, next);
        is_admitted
    }

    /// Counts a refusal; returns the number since the last report when a report is due.
    pub(super) fn refuse(&mut self, scope: LimitScope, now: Time) -> Option<u64> {
        let meters = self.meters(scope)?;
        meters.refused += 1;
        if meters
            .reported_at
            .is_some_and(|reported| now.since(reported) < REPORT_INTERVAL)
        {
            return None;
        }
        meters.reported_at = Some(now);
        Some(core::mem::take(&mut meters.refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "192.0.2.7";

    pub(super) fn admits(
        limiter: &mut RateLimiter,
        rates: &RateLimits,
        source: &str,
        now: Time,
    ) -> bool {
        let source = source.parse().unwrap();
        limiter.admits(
            LimitScope::Interface(0),
            rates,
            LimitedRequest::Call,
            false,
            source,
            now,
        )
    }

    /// Requests admitted in a minute with `offered` per second, evenly.
    fn minute(rates: &RateLimits, offered: u64, source: impl Fn(u64) -> String) -> u64 {
        let mut limiter = RateLimiter::new(&mut Entropy::from_number(1));
        let step = 1_000_000_000 / offered;
        let start = Time::from_secs(100);
        (0..offered * 60)
            .filter(|number| {
                let now = start + Duration::from_nanos(number * step);
                admits(&mut limiter, rates, &source(*number), now)
            })
            .count() as u64
    }

    #[test]
    fn the_rate_is_enforced_within_one_percent() {
        for (rate, offered) in [(400, 700), (1, 50), (10, 1_000), (3, 4), (999, 1_000)] {
            let rates = RateLimits {
                calls_per_s: rate,
                ..RateLimits::default()
            };
            let admitted = minute(&rates, offered, |_| SOURCE.into());
            let expected = u64::from(rate) * 60;
            assert!(
                admitted >= expected && admitted <= expected + expected / 100 + 1,
                "{rate} of {offered}: {admitted}"
            );
        }
        assert_eq!(
            minute(&RateLimits::default(), 700, |_| SOURCE.into()),
            42_000
        );
    }

    #[test]
    fn requests_below_the_rate_are_admitted() {
        let rates = RateLimits {
            calls_per_s: 700,
            source_calls_per_s: 700,
            ..RateLimits::default()
        };
        assert_eq!(minute(&rates, 699, |_| SOURCE.into()), 699 * 60);
    }

    #[test]
    fn a_source_above_its_rate_does_not_affect_others() {
        let rates = RateLimits {
            calls_per_s: 100,
            source_calls_per_s: 10,
            ..RateLimits::default()
        };
        let mut limiter = RateLimiter::new(&mut Entropy::from_number(1));
        let (mut frequent, mut rare) = (0, 0);
        for millisecond in 0..60_000 {
            let now = Time::from_secs(100) + Duration::from_millis(millisecond);
            frequent += u32::from(admits(&mut limiter, &rates, SOURCE, now));
            if millisecond % 200 == 0 {
                rare += u32::from(admits(&mut limiter, &rates, "192.0.2.8", now));
            }
        }
        assert_eq!(rare, 300);
        assert!((600..=606).contains(&frequent), "{frequent}");
    }

    #[test]
    fn addresses_of_one_ipv6_network_have_one_rate() {
        let rates = RateLimits {
            source_calls_per_s: 10,
            ..RateLimits::default()
        };
        let admitted = minute(&rates, 1_000, |number| {
            format!("2001:db8::{:x}", number % 1_000 + 1)
        });
        assert!((600..=606).contains(&admitted), "{admitted}");
    }

    #[test]
    fn source_meters_use_bounded_memory() {
        let rates = RateLimits {
            source_calls_per_s: 1,
            ..RateLimits::default()
        };
        let mut limiter = RateLimiter::new(&mut Entropy::from_number(1));
        let now = Time::from_secs(100);
        for number in 0..200_000u32 {
            let source = std::net::Ipv4Addr::from(number).to_string();
            assert!(admits(&mut limiter, &rates, &source, now));
        }
        assert_eq!(limiter.previous.len(), MAX_SOURCES);
        assert!(limiter.recent.len() <= MAX_SOURCES);
        // A source that the full table did not have is limited, too. One is admitted early, by the burst.
        assert!(admits(&mut limiter, &rates, "10.0.0.1", now));
        assert!(admits(&mut limiter, &rates, "10.0.0.1", now));
        assert!(!admits(&mut limiter, &rates, "10.0.0.1", now));
        let later = now + GENERATION + GENERATION;
        assert!(admits(&mut limiter, &rates, SOURCE, later));
        assert!(admits(&mut limiter, &rates, SOURCE, later + GENERATION));
        assert_eq!(limiter.recent.len() + limiter.previous.len(), 2);
    }

    #[test]
    fn every_refusal_is_counted_in_a_periodic_report() {
        let mut limiter = RateLimiter::new(&mut Entropy::from_number(1));
        let reported: Vec<u64> = (0..250)
            .filter_map(|tenth| {
                let now = Time::from_secs(100) + Duration::from_millis(tenth * 100);
                limiter.refuse(LimitScope::Trunk(3), now)
            })
            .collect();
        assert_eq!(reported, [1, 100, 100]);
    }
}
