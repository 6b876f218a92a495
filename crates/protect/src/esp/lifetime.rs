//! Lifetimes of associations (RFC 4301 section 4.4.2.1): at the soft bound a new association is due, at the hard bound
//! the old one ends.

use core::time::Duration;
use engine::Time;
use serde::{Deserialize, Serialize};

/// Bounds of an association; none is enforced where it is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaLifetime {
    /// Payload bytes after which a new association is due.
    pub soft_bytes: Option<u64>,
    /// Payload bytes after which packets are refused.
    pub hard_bytes: Option<u64>,
    /// Age at which a new association is due.
    pub soft_time: Option<Duration>,
    /// Age from which packets are refused.
    pub hard_time: Option<Duration>,
}

/// Why a new association is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RekeyReason {
    /// The soft bound of bytes.
    Bytes,
    /// The soft bound of time.
    Time,
    /// Fifteen sixteenths of the sequence numbers are used.
    Sequence,
}

/// Where an association stands in its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeStatus {
    /// Before the soft bounds.
    Fresh,
    /// A new association is due.
    RekeyDue(RekeyReason),
    /// Packets are refused.
    Expired,
}

/// Consumption of an association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaUsage {
    /// Packets sealed or opened.
    pub packets: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Age when the state was written, nanoseconds.
    pub age_ns: u64,
}

/// An association's consumption beside its bounds.
#[derive(Clone, Debug)]
pub(super) struct LifetimeCounter {
    lifetime: SaLifetime,
    usage: SaUsage,
    /// When counting began; the age before that is in `usage`.
    since: Time,
    reported: bool,
}

impl LifetimeCounter {
    pub fn new(lifetime: SaLifetime, usage: SaUsage, now: Time) -> LifetimeCounter {
        LifetimeCounter {
            lifetime,
            usage,
            since: now,
            reported: false,
        }
    }

    #[inline]
    fn age(&self, now: Time) -> u64 {
        self.usage
            .age_ns
            .saturating_add(now.0.saturating_sub(self.since.0))
    }

    /// Packets that were counted.
    pub fn packets(&self) -> u64 {
        self.usage.packets
    }

    pub fn usage(&self, now: Time) -> SaUsage {
        SaUsage {
            age_ns: self.age(now),
            ..self.usage
        }
    }

    /// Whether another payload of `bytes` is beyond the hard bounds.
    #[inline]
    pub fn is_expired(&self, bytes: usize, now: Time) -> bool {
        let after = self.usage.bytes.saturating_add(bytes as u64);
        self.lifetime.hard_bytes.is_some_and(|bound| after > bound)
            || self
                .lifetime
                .hard_time
                .is_some_and(|bound| u128::from(self.age(now)) >= bound.as_nanos())
    }

    /// Counts a packet; returns the reason once, when a soft bound is passed.
    #[inline]
    pub fn count(&mut self, bytes: usize, sequence_due: bool, now: Time) -> Option<RekeyReason> {
        self.usage.packets += 1;
        self.usage.bytes = self.usage.bytes.saturating_add(bytes as u64);
        if self.reported {
            return None;
        }
        let reason = self.rekey_reason(sequence_due, now)?;
        self.reported = true;
        Some(reason)
    }

    /// The reason was not passed on: the next packet returns it again.
    pub fn report_again(&mut self) {
        self.reported = false;
    }

    fn rekey_reason(&self, sequence_due: bool, now: Time) -> Option<RekeyReason> {
        if self
            .lifetime
            .soft_bytes
            .is_some_and(|bound| self.usage.bytes >= bound)
        {
            return Some(RekeyReason::Bytes);
        }
        if self
            .lifetime
            .soft_time
            .is_some_and(|bound| u128::from(self.age(now)) >= bound.as_nanos())
        {
            return Some(RekeyReason::Time);
        }
        sequence_due.then_some(RekeyReason::Sequence)
    }

    pub fn status(&self, sequence_due: bool, now: Time) -> LifetimeStatus {
        if self.is_expired(1, now) {
            return LifetimeStatus::Expired;
        }
        match self.rekey_reason(sequence_due, now) {
            Some(reason) => LifetimeStatus::RekeyDue(reason),
            None => LifetimeStatus::Fresh,
        }
    }

    /// The next bound of time after `now`.
    pub fn next_bound(&self, now: Time) -> Option<Time> {
        let age = self.age(now);
        [self.lifetime.soft_time, self.lifetime.hard_time]
            .into_iter()
            .flatten()
            .filter_map(|bound| u64::try_from(bound.as_nanos()).ok())
            .filter(|bound| *bound > age)
            .map(|bound| Time(now.0.saturating_add(bound - age)))
            .min()
    }
}
