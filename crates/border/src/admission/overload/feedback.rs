//! Overload control between neighbours (RFC 7339, RFC 7415): loss feedback for neighbours that request it, and
//! throttling of new calls to trunks by their feedback.

use crate::index_remap::IndexRemap;
use crate::policy::TrunkTarget;
use config::TrunkId;
use core::time::Duration;
use engine::Time;
use std::collections::{BTreeMap, VecDeque};
use wire::sip::{Feedback, Throttle, Via};

/// The whole of a share.
const ALL: u64 = 65_536;
/// Minimum of the share: one of twenty, so that neighbours can observe the end of the overload.
const MIN_SHARE: u64 = ALL / 20;
/// Control intervals per decision: the last feedback must have had its effect.
const INTERVALS: u32 = 5;
/// Validity of our feedback.
pub(crate) const VALID: Duration = Duration::from_secs(1);

/// State of the feedback that is sent to neighbours.
#[derive(Debug)]
pub(crate) struct LossFeedback {
    /// Whether any neighbour has requested feedback since the overload began.
    is_requested: bool,
    /// The share of new calls that neighbours should send, of [`ALL`].
    share: u64,
    accepted: u64,
    offered: u64,
    intervals: u32,
}

impl Default for LossFeedback {
    fn default() -> LossFeedback {
        LossFeedback {
            is_requested: false,
            share: ALL,
            accepted: 0,
            offered: 0,
            intervals: 0,
        }
    }
}

impl LossFeedback {
    /// Records whether a request's sender supports feedback.
    pub(crate) fn record_request(&mut self, via: &Via<'_>) {
        self.is_requested |= via.requests_feedback();
    }

    /// Whether neighbours are asked to reduce.
    pub(crate) fn is_reducing(&self) -> bool {
        self.share < ALL
    }

    /// Adds the calls of one interval; returns the loss to report, in percent, where it changes.
    pub(crate) fn update(&mut self, accepted: u64, offered: u64) -> Option<u8> {
        if !self.is_requested {
            return None;
        }
        self.accepted += accepted;
        self.offered += offered;
        self.intervals += 1;
        if self.intervals < INTERVALS {
            return None;
        }
        self.intervals = 0;
        let (accepted, offered) = (
            core::mem::take(&mut self.accepted),
            core::mem::take(&mut self.offered),
        );
        let before = self.loss_percent();
        // Neighbours have reduced already: the shares multiply.
        self.share = match offered > accepted + accepted / 50 {
            true => (self.share * accepted / offered)
                .max(self.share / 2)
                .max(MIN_SHARE),
            false => ALL.min(self.share + self.share / 4 + ALL / 32),
        };
        let now = self.loss_percent();
        (now != before).then_some(now)
    }

    /// The loss that neighbours are asked for.
    pub(crate) fn loss_percent(&self) -> u8 {
        u8::try_from((ALL - self.share) * 100 / ALL).unwrap_or(100)
    }
}

/// Period of the call rates of trunks.
const SECOND: Duration = Duration::from_secs(1);

/// Feedback received from targets of trunks, and the calls that were sent to trunks with a call rate.
#[derive(Debug, Default)]
pub struct Throttles {
    targets: BTreeMap<TrunkTarget, Throttled>,
    /// Times of the last calls to each trunk with `max_calls_per_s`, in their order: as many as it allows, and those of
    /// the last second beyond, which are emergency calls.
    calls: BTreeMap<TrunkId, VecDeque<Time>>,
}

#[derive(Clone, Copy, Debug)]
struct Throttled {
    feedback: Feedback,
    until: Time,
    /// For a rate: time at which the next call may be sent.
    next: Time,
}

impl Throttled {
    fn is_reducing(&self) -> bool {
        self.feedback.throttle != Throttle::Loss(0)
    }
}

impl Throttles {
    /// Applies the feedback of a target. Returns whether it now asks to reduce and did not before.
    pub fn update(&mut self, target: TrunkTarget, feedback: Feedback, now: Time) -> bool {
        let before = self.targets.get(&target).copied();
        // Expired feedback may be that of a peer that has restarted, whose sequence begins anew.
        let valid = before.filter(|before| before.until > now);
        let old = valid.and_then(|before| before.feedback.sequence);
        if feedback.sequence.is_some() && feedback.sequence < old {
            return false;
        }
        if feedback.validity == 0 {
            self.targets.remove(&target);
            return false;
        }
        let new = Throttled {
            feedback,
            until: now + Duration::from_millis(feedback.validity.into()),
            next: before.map_or(now, |before| before.next),
        };
        let was_reducing = before.is_some_and(|before| before.until > now && before.is_reducing());
        self.targets.insert(target, new);
        new.is_reducing() && !was_reducing
    }

    /// Whether a new call may be sent to a target; `random` selects the share of calls under a loss.
    pub fn admits(&self, target: TrunkTarget, random: u64, now: Time) -> bool {
        let Some(throttled) = self.targets.get(&target).filter(|t| t.until > now) else {
            return true;
        };
        match throttled.feedback.throttle {
            Throttle::Loss(percent) => {
                // The targets of one call are decided independently.
                let (trunk, index) = target;
                let number = u64::from(trunk.0) | (u64::from(index) << 16);
                let mixed = (random ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed >> 32) % 100 >= u64::from(percent)
            }
            Throttle::Rate(0) => false,
            Throttle::Rate(_) => throttled.next <= now,
        }
    }

    /// Counts a new request that is sent to a target.
    pub fn record_sent(&mut self, target: TrunkTarget, now: Time) {
        if let Some(throttled) = self.targets.get_mut(&target)
            && let Throttle::Rate(rate @ 1..) = throttled.feedback.throttle
        {
            // One call that was not sent may be made up for.
            let step = Duration::from_secs(1) / rate;
            let earliest = Time(now.0.saturating_sub(step.as_nanos() as u64));
            throttled.next = throttled.next.max(earliest) + step;
        }
    }

    /// Whether a call may be sent to a trunk that takes `most` in any second.
    fn admits_call(&self, trunk: TrunkId, most: u32, now: Time) -> bool {
        let Some(sent) = self.calls.get(&trunk) else {
            return true;
        };
        let before = sent.len().checked_sub(most as usize);
        let before = before.and_then(|at| sent.get(at));
        before.is_none_or(|before| now.since(*before) >= SECOND)
    }

    /// Counts a call to a trunk that takes `most` in any second, unless it would exceed them: in one step, so that
    /// workers together do not exceed them. Returns the time for which it counts, for [`Throttles::withdraw_call`].
    pub fn admit_call(&mut self, trunk: TrunkId, most: u32, now: Time) -> Option<Time> {
        self.admits_call(trunk, most, now)
            .then(|| self.record_call(trunk, most, now))
    }

    /// Counts a call that no rate limits; otherwise as [`Throttles::admit_call`].
    pub fn record_call(&mut self, trunk: TrunkId, most: u32, now: Time) -> Time {
        let most = most as usize;
        let sent = self.calls.entry(trunk).or_default();
        while sent.len() >= most
            && (sent.len() >= 2 * most || sent.front().is_some_and(|at| now.since(*at) >= SECOND))
        {
            sent.pop_front();
        }
        // The turn of another worker may have begun a moment later.
        let at = sent.back().map_or(now, |last| now.max(*last));
        sent.push_back(at);
        at
    }

    /// Removes a call that was counted for this time and then not sent.
    pub fn withdraw_call(&mut self, trunk: TrunkId, at: Time) {
        if let Some(sent) = self.calls.get_mut(&trunk)
            && let Some(index) = sent.iter().rposition(|one| *one == at)
        {
            sent.remove(index);
        }
    }

    /// Removes all feedback: trunk indices have changed.
    pub fn clear(&mut self) {
        self.targets.clear();
    }

    /// Applies the new trunk indices after a reload, once for all workers: the calls of the last second still count.
    pub(crate) fn rename(&mut self, renamed: &IndexRemap) {
        let calls = std::mem::take(&mut self.calls).into_iter();
        self.calls = calls
            .filter_map(|(trunk, sent)| Some((renamed.trunk(trunk)?, sent)))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::TrunkId;

    fn feedback(throttle: Throttle, sequence: u64) -> Feedback {
        Feedback {
            throttle,
            validity: 500,
            sequence: Some((sequence, 0)),
        }
    }

    const TARGET: TrunkTarget = (TrunkId(3), 1);

    #[test]
    fn a_loss_is_applied_for_its_validity() {
        let mut throttles = Throttles::default();
        let now = Time::from_secs(10);
        assert!(throttles.update(TARGET, feedback(Throttle::Loss(30), 5), now));
        let mut entropy = engine::Entropy::from_number(1);
        let mut of = |throttles: &Throttles, target, now| {
            let admits = |_: &u32| throttles.admits(target, entropy.u64(), now);
            (0..10_000).filter(admits).count()
        };
        let accepted = of(&throttles, TARGET, now);
        assert!((6_800..7_200).contains(&accepted), "{accepted}");
        // Another target of the trunk, and another trunk.
        for other in [(TrunkId(3), 0), (TrunkId(2), 1)] {
            assert_eq!(of(&throttles, other, now), 10_000);
        }
        // Feedback with an older sequence is ignored, and an unchanged value is no event.
        assert!(!throttles.update(TARGET, feedback(Throttle::Loss(0), 4), now));
        assert!(!throttles.update(TARGET, feedback(Throttle::Loss(30), 5), now));
        assert!(of(&throttles, TARGET, now) < 8_000);
        assert_eq!(
            of(&throttles, TARGET, now + Duration::from_millis(500)),
            10_000
        );
        assert!(!throttles.update(TARGET, feedback(Throttle::Loss(0), 6), now));
        assert_eq!(of(&throttles, TARGET, now), 10_000);
        throttles.update(TARGET, feedback(Throttle::Loss(100), 7), now);
        assert_eq!(of(&throttles, TARGET, now), 0);
        let end = Feedback {
            validity: 0,
            ..feedback(Throttle::Loss(100), 8)
        };
        throttles.update(TARGET, end, now);
        assert_eq!(of(&throttles, TARGET, now), 10_000);
    }

    #[test]
    fn lower_sequence_after_the_expiry_is_that_of_a_restarted_peer() {
        let mut throttles = Throttles::default();
        let now = Time::from_secs(10);
        assert!(throttles.update(TARGET, feedback(Throttle::Loss(30), 5_000), now));
        assert!(!throttles.update(TARGET, feedback(Throttle::Loss(100), 3), now));
        assert!(throttles.admits(TARGET, 0, now) || throttles.admits(TARGET, 1 << 60, now));
        let later = now + Duration::from_secs(10);
        assert!(throttles.update(TARGET, feedback(Throttle::Loss(100), 3), later));
        assert!(!throttles.admits(TARGET, 1, later));
    }

    #[test]
    fn a_rate_is_not_exceeded() {
        let mut throttles = Throttles::default();
        let mut now = Time::from_secs(10);
        let mut sent = 0;
        for tick in 0..10_000u64 {
            if tick % 100 == 0 {
                throttles.update(TARGET, feedback(Throttle::Rate(150), tick), now);
            }
            if throttles.admits(TARGET, tick, now) {
                throttles.record_sent(TARGET, now);
                sent += 1;
            }
            now += Duration::from_millis(1);
        }
        assert!((1_495..=1_502).contains(&sent), "{sent}");
        throttles.update(TARGET, feedback(Throttle::Rate(0), 20_000), now);
        assert!(!throttles.admits(TARGET, 1, now));
    }

    /// No second has more calls, wherever it begins.
    #[test]
    fn a_trunk_gets_no_more_calls_in_any_second() {
        let (mut throttles, trunk) = (Throttles::default(), TrunkId(3));
        let mut entropy = engine::Entropy::from_number(1);
        let mut sent: Vec<Time> = Vec::new();
        let mut now = Time::from_secs(10);
        for _ in 0..20_000 {
            now += Duration::from_micros(entropy.below(20_000));
            if throttles.admit_call(trunk, 30, now).is_some() {
                sent.push(now);
            }
        }
        let mut windows = sent.windows(31);
        assert!(windows.len() > 1_000);
        assert!(windows.all(|calls| calls[30].since(calls[0]) >= SECOND));
        // About thirty a second: none of the rate is wasted.
        let span = now.since(Time::from_secs(10)).as_secs_f64();
        assert!(
            sent.len() as f64 > 29.0 * span,
            "{} in {span} s",
            sent.len()
        );
        assert!(throttles.admits_call(TrunkId(4), 30, now));
        // A reload may have lowered the rate.
        assert!(!throttles.admits_call(trunk, 1, now));
        throttles.record_call(trunk, 1, now);
        assert!(throttles.admits_call(trunk, 1, now + SECOND));
    }

    /// Workers whose turns began at different times, and a call that is not sent after all.
    #[test]
    fn workers_together_exceed_no_call_rate() {
        let (mut throttles, trunk) = (Throttles::default(), TrunkId(3));
        let now = Time::from_secs(10);
        let earlier = Time(now.0 - 5_000_000);
        let first = throttles.admit_call(trunk, 2, now);
        assert_eq!(first, Some(now));
        let second = throttles.admit_call(trunk, 2, earlier);
        assert_eq!(second, Some(now), "counted in order");
        assert_eq!(throttles.admit_call(trunk, 2, earlier), None);
        assert_eq!(throttles.admit_call(trunk, 2, earlier + SECOND), None);
        // It has left room for one.
        throttles.withdraw_call(trunk, now);
        assert!(throttles.admit_call(trunk, 2, now).is_some());
        assert_eq!(throttles.admit_call(trunk, 2, now), None);
        // Emergency calls count, and one that is withdrawn leaves the others counted.
        let emergency = throttles.record_call(trunk, 2, now);
        throttles.withdraw_call(trunk, emergency);
        assert_eq!(throttles.admit_call(trunk, 2, now), None);
        for _ in 0..100 {
            throttles.record_call(trunk, 2, now);
        }
        assert_eq!(throttles.calls[&trunk].len(), 4, "bounded");
        let later = now + SECOND;
        assert!(throttles.admit_call(trunk, 2, later).is_some());
        assert!(throttles.admit_call(trunk, 2, later).is_some());
        assert_eq!(throttles.admit_call(trunk, 2, later), None);
    }

    /// Each server counts its own sequence: one of a lower number is not older feedback of another.
    #[test]
    fn sequences_of_targets_are_independent() {
        let mut throttles = Throttles::default();
        let now = Time::from_secs(10);
        let other: TrunkTarget = (TARGET.0, TARGET.1 + 1);
        assert!(throttles.update(TARGET, feedback(Throttle::Loss(100), 5_000), now));
        assert!(!throttles.update(other, feedback(Throttle::Loss(0), 3), now));
        assert!(!throttles.admits(TARGET, 1, now) && throttles.admits(other, 1, now));
        assert!(throttles.update(other, feedback(Throttle::Loss(100), 4), now));
        assert!(!throttles.admits(other, 1, now));
    }

    /// The loss settles near the capacity for neighbours that comply, and returns to zero afterwards.
    #[test]
    fn loss_feedback_settles_near_the_capacity() {
        let mut feedback = LossFeedback::default();
        assert_eq!(feedback.update(10, 1_000), None, "not requested");
        feedback.record_request(
            &Via::parse(b"SIP/2.0/UDP h;branch=z9hG4bKa;oc;oc-algo=\"loss\"").unwrap(),
        );
        let mut loss = 0;
        let mut refused = Vec::new();
        for interval in 0..200u64 {
            // The capacity is 80 of 400 in each tenth of a second.
            let offered = 400 * u64::from(100 - loss) / 100;
            let accepts = offered.min(80);
            if interval > 50 {
                refused.push(offered - accepts);
            }
            loss = feedback.update(accepts, offered).unwrap_or(loss);
        }
        assert!((60..=85).contains(&loss), "{loss}");
        let mean = refused.iter().sum::<u64>() / refused.len() as u64;
        assert!(mean <= 30, "{mean}");
        let mut intervals = 0;
        while feedback.is_reducing() {
            feedback.update(40, 40);
            intervals += 1;
        }
        assert!(intervals <= 60, "{intervals}");
        assert_eq!(feedback.loss_percent(), 0);
    }
}
