//! Overload control between neighbours (RFC 7339, RFC 7415): we tell those who ask how much less to send, and send trunks no
//! more new calls than they say.

use crate::border::Core;
use crate::config::TrunkId;
use core::time::Duration;
use engine::{Note, Time};
use sip::{Endpoint, Indication};
use std::collections::BTreeMap;
use wire::sip::{Feedback, Throttle, Via};

/// Everything is to be sent.
const ALL: u64 = 65_536;
/// The least that we ask for: one of twenty, so that neighbours see when it is over.
const LEAST: u64 = ALL / 20;
/// So many looks at the queues make one judgement: what was told must have shown its effect.
const LOOKS: u32 = 5;
/// How long what we tell counts.
pub(crate) const VALID: Duration = Duration::from_secs(1);

/// What we tell neighbours.
#[derive(Debug)]
pub(crate) struct Told {
    /// Whether anybody asked since the overload began.
    asked: bool,
    /// The share that we want to have, of [`ALL`].
    wanted: u64,
    taken: u64,
    offered: u64,
    looks: u32,
}

impl Default for Told {
    fn default() -> Told {
        Told {
            asked: false,
            wanted: ALL,
            taken: 0,
            offered: 0,
            looks: 0,
        }
    }
}

impl Told {
    /// Somebody who has to be told came.
    pub(crate) fn asked(&mut self, via: &Via<'_>) {
        self.asked |= via.takes_feedback();
    }

    /// Whether neighbours hold something back because of us.
    pub(crate) fn holds_back(&self) -> bool {
        self.wanted < ALL
    }

    /// Of so many new calls so many were taken since the last look; the loss to be told, in percent, where that changes.
    pub(crate) fn look(&mut self, taken: u64, offered: u64) -> Option<u8> {
        if !self.asked {
            return None;
        }
        self.taken += taken;
        self.offered += offered;
        self.looks += 1;
        if self.looks < LOOKS {
            return None;
        }
        self.looks = 0;
        let (taken, offered) = (
            core::mem::take(&mut self.taken),
            core::mem::take(&mut self.offered),
        );
        let before = self.loss();
        // What comes is what neighbours let through: the shares multiply.
        self.wanted = match offered > taken + taken / 50 {
            true => (self.wanted * taken / offered)
                .max(self.wanted / 2)
                .max(LEAST),
            false => ALL.min(self.wanted + self.wanted / 4 + ALL / 32),
        };
        let now = self.loss();
        (now != before).then_some(now)
    }

    fn loss(&self) -> u8 {
        u8::try_from((ALL - self.wanted) * 100 / ALL).unwrap_or(100)
    }
}

/// What trunks have told us.
#[derive(Debug, Default)]
pub struct Throttles {
    trunks: BTreeMap<TrunkId, Throttled>,
}

#[derive(Clone, Copy, Debug)]
struct Throttled {
    feedback: Feedback,
    until: Time,
    /// By rate: when the next one may be sent.
    next: Time,
}

impl Throttled {
    fn holds_back(&self) -> bool {
        self.feedback.throttle != Throttle::Loss(0)
    }
}

impl Throttles {
    /// Takes what a trunk told; whether it now holds back more than nothing, and did not before.
    pub fn told(&mut self, trunk: TrunkId, feedback: Feedback, now: Time) -> bool {
        let before = self.trunks.get(&trunk).copied();
        let old = before.and_then(|before| before.feedback.sequence);
        if feedback.sequence.is_some() && feedback.sequence < old {
            return false;
        }
        if feedback.validity == 0 {
            self.trunks.remove(&trunk);
            return false;
        }
        let new = Throttled {
            feedback,
            until: now + Duration::from_millis(feedback.validity.into()),
            next: before.map_or(now, |before| before.next),
        };
        let held = before.is_some_and(|before| before.until > now && before.holds_back());
        self.trunks.insert(trunk, new);
        new.holds_back() && !held
    }

    /// Whether a new call may be sent to a trunk; `random` decides where a share of them may.
    pub fn takes(&self, trunk: TrunkId, random: u64, now: Time) -> bool {
        let Some(throttled) = self.trunks.get(&trunk).filter(|t| t.until > now) else {
            return true;
        };
        match throttled.feedback.throttle {
            Throttle::Loss(percent) => {
                // Trunks of one call are judged apart.
                let mixed = (random ^ u64::from(trunk.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed >> 32) % 100 >= u64::from(percent)
            }
            Throttle::Rate(0) => false,
            Throttle::Rate(_) => throttled.next <= now,
        }
    }

    /// A new call is sent to a trunk.
    pub fn sent(&mut self, trunk: TrunkId, now: Time) {
        if let Some(throttled) = self.trunks.get_mut(&trunk)
            && let Throttle::Rate(rate @ 1..) = throttled.feedback.throttle
        {
            // What was not sent a moment ago may be made up for, by one.
            let step = Duration::from_secs(1) / rate;
            let earliest = Time(now.0.saturating_sub(step.as_nanos() as u64));
            throttled.next = throttled.next.max(earliest) + step;
        }
    }

    /// Forgets all: trunks have other numbers now.
    pub fn clear(&mut self) {
        self.trunks.clear();
    }
}

impl Core {
    /// Tells neighbours what they ask for from now on.
    pub(crate) fn begin_feedback(&mut self, endpoint: &mut Endpoint, now: Time) {
        let loss = self.config.sip.feedback.then_some(0);
        endpoint.tell_loss(loss, VALID, now);
        self.asks_trunks = self.config.trunks.iter().any(|trunk| trunk.feedback);
        self.throttles.clear();
    }

    /// Hears what a trunk tells in a response.
    pub(crate) fn hear_feedback(
        &mut self,
        endpoint: &Endpoint,
        indication: &Indication<'_>,
        now: Time,
    ) {
        let (response, flow) = match indication {
            Indication::Progressed { leg, response, .. }
            | Indication::Answered { leg, response }
            | Indication::Failed {
                leg,
                response: Some(response),
                ..
            } => (response, endpoint.flow_of(*leg)),
            Indication::OutOfDialogResponse { response, flow, .. } => (response, Some(*flow)),
            _ => return,
        };
        let Some(feedback) = response.via().ok().and_then(|via| via.feedback()) else {
            return;
        };
        let trunk = flow.and_then(|flow| {
            let interface = self.interface_of(flow.local)?;
            self.trunk_at(interface, &flow)
        });
        let config = self.config.clone();
        let Some((id, trunk)) = trunk
            .and_then(|id| Some((id, config.trunk(id)?)))
            .filter(|(_, trunk)| trunk.feedback)
        else {
            return;
        };
        if self.throttles.told(id, feedback, now) {
            let (algorithm, value) = match feedback.throttle {
                Throttle::Loss(percent) => ("loss", u32::from(percent)),
                Throttle::Rate(rate) => ("rate", rate),
            };
            self.events.tell(now, || Note::TrunkThrottled {
                trunk: trunk.name.clone(),
                algorithm: algorithm.to_owned(),
                value,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feedback(throttle: Throttle, sequence: u64) -> Feedback {
        Feedback {
            throttle,
            validity: 500,
            sequence: Some((sequence, 0)),
        }
    }

    const TRUNK: TrunkId = TrunkId(3);

    #[test]
    fn a_share_is_held_back_as_long_as_it_was_told_for() {
        let mut throttles = Throttles::default();
        let now = Time::from_secs(10);
        assert!(throttles.told(TRUNK, feedback(Throttle::Loss(30), 5), now));
        let mut entropy = engine::Entropy::from_number(1);
        let mut of = |throttles: &Throttles, trunk, now| {
            let takes = |_: &u32| throttles.takes(trunk, entropy.u64(), now);
            (0..10_000).filter(takes).count()
        };
        let taken = of(&throttles, TRUNK, now);
        assert!((6_800..7_200).contains(&taken), "{taken}");
        assert_eq!(of(&throttles, TrunkId(2), now), 10_000);
        // Older news is none, and the same is no event.
        assert!(!throttles.told(TRUNK, feedback(Throttle::Loss(0), 4), now));
        assert!(!throttles.told(TRUNK, feedback(Throttle::Loss(30), 5), now));
        assert!(of(&throttles, TRUNK, now) < 8_000);
        assert_eq!(
            of(&throttles, TRUNK, now + Duration::from_millis(500)),
            10_000
        );
        assert!(!throttles.told(TRUNK, feedback(Throttle::Loss(0), 6), now));
        assert_eq!(of(&throttles, TRUNK, now), 10_000);
        throttles.told(TRUNK, feedback(Throttle::Loss(100), 7), now);
        assert_eq!(of(&throttles, TRUNK, now), 0);
        let end = Feedback {
            validity: 0,
            ..feedback(Throttle::Loss(100), 8)
        };
        throttles.told(TRUNK, end, now);
        assert_eq!(of(&throttles, TRUNK, now), 10_000);
    }

    #[test]
    fn a_rate_is_kept() {
        let mut throttles = Throttles::default();
        let mut now = Time::from_secs(10);
        let mut sent = 0;
        for tick in 0..10_000u64 {
            if tick % 100 == 0 {
                throttles.told(TRUNK, feedback(Throttle::Rate(150), tick), now);
            }
            if throttles.takes(TRUNK, tick, now) {
                throttles.sent(TRUNK, now);
                sent += 1;
            }
            now += Duration::from_millis(1);
        }
        assert!((1_495..=1_502).contains(&sent), "{sent}");
        throttles.told(TRUNK, feedback(Throttle::Rate(0), 20_000), now);
        assert!(!throttles.takes(TRUNK, 1, now));
    }

    /// Neighbours that obey are brought to what can be taken, and let go when it is over.
    #[test]
    fn what_is_told_settles_where_everything_can_be_taken() {
        let mut told = Told::default();
        assert_eq!(told.look(10, 1_000), None, "nobody asked");
        told.asked(&Via::parse(b"SIP/2.0/UDP h;branch=z9hG4bKa;oc;oc-algo=\"loss\"").unwrap());
        let mut loss = 0;
        let mut refused = Vec::new();
        for look in 0..200u64 {
            // 80 of 400 can be taken in each tenth of a second.
            let comes = 400 * u64::from(100 - loss) / 100;
            let takes = comes.min(80);
            if look > 50 {
                refused.push(comes - takes);
            }
            loss = told.look(takes, comes).unwrap_or(loss);
        }
        assert!((60..=85).contains(&loss), "{loss}");
        let mean = refused.iter().sum::<u64>() / refused.len() as u64;
        assert!(mean <= 30, "{mean}");
        let mut looks = 0;
        while told.holds_back() {
            told.look(40, 40);
            looks += 1;
        }
        assert!(looks <= 60, "{looks}");
        assert_eq!(told.loss(), 0);
    }
}
