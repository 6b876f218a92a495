//! Admission: how many calls fit into the machine. Each call costs memory and processor time while it stands, by its kind; a
//! call that would take more than there is of either is refused before anything is opened for it. Calls for help always fit.
//!
//! The costs (`price.rs`) are twice what was measured of standing calls, relayed packets, transcoders, SRTP and handshakes on the machine
//! of the project; no other machine was calibrated for them. `[limits] memory` and `processor` say what there is.

mod carrier;
mod price;

pub use carrier::{MediaCarrier, MediaWay};
pub(crate) use price::Bill;
pub use price::{Cost, Part};

use crate::border::Core;
use crate::call::offered::{Origin, Refused};
use crate::call::{CallKey, Side};
use crate::config::{Keying, MediaMode, SrtpPolicy};
use crate::overload::calls_for_help;
use crate::policy::{CallPlan, Place};
use codec::kind::Kind;
use core::time::Duration;
use engine::{Note, Time};
use protect::srtp::Suite;
use sip::Flow;
use wire::sip::HeaderId;

/// What a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Memory that the border may have at most, KiB: the machine's, or its control group's.
    pub memory: u64,
    /// Processor time that it can use, microseconds in each second: a million for each thread that works.
    pub processor: u64,
}

/// How much of the machine standing calls may take where the configuration does not say: the study's border stood at 56 % of
/// its memory, and calls that begin and end need processor time, too.
const MEMORY_PERCENT: u64 = 60;
const PROCESSOR_PERCENT: u64 = 70;

impl Machine {
    /// What standing calls may take of it.
    pub fn for_calls(self) -> Cost {
        Cost {
            memory: self.memory / 100 * MEMORY_PERCENT,
            processor: self.processor / 100 * PROCESSOR_PERCENT,
        }
    }
}

/// What the configuration says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Memory for calls and registrations, KiB; `None`: a share of the machine's.
    pub memory: Option<u64>,
    /// Processor time for calls that stand, microseconds in each second; `None`: a share of the machine's.
    pub processor: Option<u64>,
    /// What calls are answered that do not fit.
    pub status: u16,
    /// The machine, where it is known.
    pub machine: Option<Machine>,
}

impl Admission {
    /// What calls and registrations may take together; `None`: whatever they need.
    pub fn limit(&self) -> Option<Cost> {
        let of_machine = self.machine.map(Machine::for_calls);
        if of_machine.is_none() && self.memory.is_none() && self.processor.is_none() {
            return None;
        }
        let or = |said: Option<u64>, found: Option<u64>| said.or(found).unwrap_or(u64::MAX);
        Some(Cost {
            memory: or(self.memory, of_machine.map(|cost| cost.memory)),
            processor: or(self.processor, of_machine.map(|cost| cost.processor)),
        })
    }
}

/// How often it is told that calls are refused.
const TELL: Duration = Duration::from_secs(10);

/// Work that was done once, of the last second, by tenths of it.
#[derive(Debug, Default)]
struct Lately {
    tenths: [u64; 10],
    /// The last one, counted from the start.
    last: u64,
}

impl Lately {
    fn advance(&mut self, now: Time) {
        let tenth = now.0 / 100_000_000;
        let passed = tenth.saturating_sub(self.last).min(10);
        for step in 1..=passed {
            self.tenths[((tenth - passed + step) % 10) as usize] = 0;
        }
        self.last = self.last.max(tenth);
    }

    fn add(&mut self, work: u64, now: Time) {
        self.advance(now);
        self.tenths[(self.last % 10) as usize] += work;
    }

    fn sum(&mut self, now: Time) -> u64 {
        self.advance(now);
        self.tenths.iter().sum()
    }
}

/// What the calls that stand take.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    taken: [Cost; Part::ALL.len()],
    handshakes: Lately,
    refused: u64,
    told: Option<Time>,
}

impl Admitted {
    /// What calls take at present.
    pub(crate) fn taken(&self) -> Cost {
        let mut sum = Cost::default();
        for &part in &self.taken {
            sum += part;
        }
        sum
    }

    fn add(&mut self, part: Part, cost: Cost) {
        self.taken[part as usize] += cost;
    }

    /// A handshake was made.
    pub(crate) fn shook_hands(&mut self, work: Cost, now: Time) {
        self.handshakes.add(work.processor, now);
    }
}

/// What is taken, by what for, of a limit; what nothing is taken for is left out.
fn by_part(taken: &[(Part, Cost)], limit: u64, of: impl Fn(Cost) -> u64) -> String {
    let mut text = String::new();
    for (part, cost) in taken.iter().filter(|(_, cost)| of(*cost) > 0) {
        text.push_str(&format!("{} {} ", part.name(), of(*cost)));
    }
    text.push_str(&format!("of {limit}"));
    text
}

impl Core {
    /// Takes what a call of this plan costs out of what there is.
    pub(crate) fn take_cost(
        &mut self,
        uri: &[u8],
        plan: &CallPlan,
        flow: Flow,
        origin: Origin,
        now: Time,
    ) -> Result<Bill, Refused> {
        let first = plan.steps.first();
        let callee = first.map(|step| match &step.place {
            Place::Address(_, transport) => Some(*transport),
            Place::Flow(flow) => Some(flow.transport),
            Place::Name(_, transport) => *transport,
        });
        let anchored = plan.media == MediaMode::Anchor;
        let far = first.map_or(origin.interface, |step| step.interface);
        let between = [origin.interface, far];
        let way = anchored.then(|| self.media_carrier.between(&self.config, between));
        let mut bill = Bill::of_call(way, [Some(flow.transport), callee.flatten()]);
        if anchored {
            // Who must have keys will have them, or end. Of which kind is known then; until then of the dearest.
            let sides = [
                (Side::Caller, Some((origin.interface, origin.trunk))),
                (Side::Callee, first.map(|step| (step.interface, step.trunk))),
            ];
            for (side, place) in sides {
                let security = place.and_then(|(at, trunk)| self.config.security(at, trunk));
                if let Some(security) = security
                    && security.srtp == SrtpPolicy::Require
                {
                    bill.protect(0, side, Cost::of_security(security));
                }
            }
            if let Some(way) = way {
                bill.lead(way);
            }
        }
        self.take(uri, bill, now)
    }

    /// What is taken at present, by what for, of this border's share of the machine.
    pub(crate) fn taken(&mut self, now: Time) -> [(Part, Cost); Part::ALL.len()] {
        // Workers have equal shares; registrations are in common.
        let workers = u64::from(self.config.sip.workers.max(1));
        let registrations = Cost::REGISTRATION.times(self.location.len() as u64 / workers);
        let handshakes = Cost {
            memory: 0,
            processor: self.admitted.handshakes.sum(now),
        };
        let taken = &self.admitted.taken;
        Part::ALL.map(|part| {
            let cost = match part {
                Part::Registrations => registrations,
                Part::Handshakes => handshakes,
                part => taken[part as usize],
            };
            (part, cost)
        })
    }

    /// Takes this out of what there is.
    pub(crate) fn take(&mut self, uri: &[u8], bill: Bill, now: Time) -> Result<Bill, Refused> {
        let workers = u64::from(self.config.sip.workers.max(1));
        let limit = self.config.admission.limit().map(|limit| Cost {
            memory: limit.memory / workers,
            processor: limit.processor / workers,
        });
        let Some(limit) = limit else {
            return Ok(self.charge_for(bill));
        };
        let by_parts = self.taken(now);
        let mut taken = Cost::default();
        for (_, cost) in by_parts {
            taken += cost;
        }
        let beyond = taken.beyond(bill.total(), limit);
        let Some(what) = beyond.filter(|_| !calls_for_help(uri)) else {
            return Ok(self.charge_for(bill));
        };
        self.counters.not_admitted += 1;
        let admitted = &mut self.admitted;
        admitted.refused += 1;
        if admitted.told.is_none_or(|told| now.since(told) >= TELL) {
            admitted.told = Some(now);
            let refused = core::mem::take(&mut admitted.refused);
            let calls = self.calls.len() as u64;
            self.events.tell(now, || Note::AdmissionRefused {
                what: what.to_owned(),
                calls,
                calls_max: limit.holds(bill.total()),
                path: bill.way().map(|way| way.name().to_owned()),
                refused,
                memory: by_part(&by_parts, limit.memory, |cost| cost.memory),
                processor: by_part(&by_parts, limit.processor, |cost| cost.processor),
            });
        }
        let status = self.config.admission.status;
        let mut refused = Refused::new(status, "the machine is full");
        if status == 503 {
            let seconds = 1 + self.entropy.below(10);
            let value = seconds.to_string().into_bytes();
            refused.headers.push((HeaderId::RetryAfter, value));
        }
        Err(refused)
    }

    fn charge_for(&mut self, bill: Bill) -> Bill {
        for (part, cost) in bill.parts() {
            self.admitted.add(part, cost);
        }
        bill
    }

    /// The speech of a call is transcoded from now on. It stands already, so it is not refused; the next one may be.
    pub(crate) fn take_cost_of_transcoding(&mut self, key: CallKey, kinds: [Kind; 2]) {
        let Some(call) = self.slot_of(key).and_then(|slot| self.calls.get_mut(slot)) else {
            return;
        };
        if !core::mem::replace(&mut call.transcoded, true) {
            let cost = Cost::of_transcoding(kinds);
            call.bill.add(Part::Transcoding, cost);
            self.admitted.add(Part::Transcoding, cost);
            if let Some(slot) = self.slot_of(key) {
                self.price_media(slot);
            }
        }
    }

    /// A side of a call's line has keys from now on, as above; other keys than before take their place. The price stands until the call
    /// ends, also where a line is given up before.
    pub(crate) fn take_cost_of_keys(
        &mut self,
        key: CallKey,
        (line, side): (usize, Side),
        (keying, suite): (Keying, Suite),
        now: Time,
    ) {
        if keying == Keying::Dtls {
            self.admitted.shook_hands(Cost::DTLS_HANDSHAKE, now);
        }
        let Some(call) = self.slot_of(key).and_then(|slot| self.calls.get_mut(slot)) else {
            return;
        };
        let cost = Cost::of_srtp(keying, suite);
        let before = call.bill.protect(line, side, cost);
        let sum = &mut self.admitted.taken[Part::Srtp as usize];
        *sum -= before;
        *sum += cost;
        if let Some(slot) = self.slot_of(key) {
            self.price_media(slot);
        }
    }

    /// A call that cost this is over.
    pub(crate) fn give_cost_back(&mut self, bill: &Bill) {
        for (part, cost) in bill.parts() {
            self.admitted.taken[part as usize] -= cost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_for_a_second() {
        let mut lately = Lately::default();
        let at = Time::from_millis;
        lately.add(100, at(50));
        lately.add(10, at(950));
        assert_eq!(lately.sum(at(999)), 110);
        assert_eq!(lately.sum(at(1_000)), 10);
        // A clock that stands is no reason to forget.
        lately.add(1, at(1_000));
        assert_eq!(lately.sum(at(1_899)), 11);
        assert_eq!(lately.sum(at(1_900)), 1);
        assert_eq!(lately.sum(at(2_000)), 0);
        lately.add(7, at(3_600_000));
        assert_eq!(lately.sum(at(3_600_100)), 7);
        assert_eq!(lately.sum(at(7_200_000)), 0);
    }

    #[test]
    fn a_machine_holds_what_the_scarcer_of_both_allows() {
        // The study's: 16 GB and 8 processors held 85,000 calls with media passed by in 56 % of the memory.
        let study = Machine {
            memory: 16 << 20,
            processor: 8_000_000,
        };
        assert!(study.for_calls().holds(Cost::CALL) > 85_000);
        let small = Machine {
            memory: 1 << 20,
            processor: 1_000_000,
        };
        let limit = small.for_calls();
        assert_eq!(limit.holds(Cost::CALL), (1 << 20) / 100 * 60 / 8);
        let anchored = Cost::of_call(true, [None, None]);
        assert_eq!(limit.holds(anchored), 700_000 / 501);
        assert_eq!(limit.beyond(Cost::CALL, limit), Some("memory"));
        let said = Admission {
            memory: Some(80),
            ..Admission::default()
        };
        assert_eq!(Admission::default().limit(), None);
        assert_eq!(said.limit().unwrap().holds(Cost::CALL), 10);
        let known = Admission {
            machine: Some(small),
            ..said
        };
        assert_eq!(known.limit().unwrap().processor, limit.processor);
        assert_eq!(known.limit().unwrap().memory, 80);
        let idle = Cost::default();
        assert_eq!(idle.beyond(limit, limit), None);
        let much = Cost {
            memory: 1,
            processor: 700_001,
        };
        assert_eq!(idle.beyond(much, limit), Some("processor"));
    }
}
