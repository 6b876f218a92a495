//! Admission: how many calls fit into the machine. Each call costs memory and processor time while it stands, by its kind; a
//! call that would take more than there is of either is refused before anything is opened for it. Calls for help always fit.
//!
//! The costs are estimates with margin, from what `make bench` shows of standing calls and relayed packets; no machine was
//! calibrated for them.
//! `[limits] memory` and `processor` say what there is.

use crate::border::Core;
use crate::call::CallKey;
use crate::call::offered::Refused;
use crate::config::MediaMode;
use crate::overload::calls_for_help;
use crate::policy::{CallPlan, Place};
use codec::kind::Kind;
use core::ops::{AddAssign, SubAssign};
use core::time::Duration;
use engine::{Note, Time, Transport};
use sip::Flow;
use wire::sip::HeaderId;

/// What something takes while it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Memory, KiB: ours and the kernel's.
    pub memory: u64,
    /// Processor time, microseconds in each second.
    pub processor: u64,
}

impl Cost {
    /// A call whose media passes us by: two legs.
    pub const CALL: Cost = Cost {
        memory: 8,
        processor: 1,
    };
    /// What anchored media adds: two flows with their reports, four sockets, and 50 packets a second each way, received and
    /// sent at 5 microseconds.
    pub const ANCHORED: Cost = Cost {
        memory: 40,
        processor: 500,
    };
    /// What a side adds that speaks TLS, or WebSocket: its connection's share.
    pub const SECURE: Cost = Cost {
        memory: 16,
        processor: 2,
    };
    /// What a seat in a conference adds to a call: its jitter buffer, coders and filters, and packets both ways.
    pub const SEAT: Cost = Cost {
        memory: 160,
        processor: 1_500,
    };
    /// What a codec adds to a seat that models the voice (G.729, Opus), where one of four speaks at a time: `make bench` (part
    /// `conference`) shows some 5 ms a second for a seat in all.
    pub const VOCODER: Cost = Cost {
        memory: 40,
        processor: 4_000,
    };
    /// What a line adds whose speech is transcoded, by what its two sides speak: each is decoded and encoded, 50 packets a second.
    pub fn of_transcoding(kinds: [Kind; 2]) -> Cost {
        let processor = kinds.map(|kind| match kind {
            Kind::Pcmu | Kind::Pcma => 200,
            Kind::G722 => 2_000,
            Kind::G729 => 8_000,
            Kind::Opus => 12_000,
        });
        Cost {
            memory: 64,
            processor: processor.iter().sum(),
        }
    }

    /// A registered contact.
    pub const REGISTRATION: Cost = Cost {
        memory: 1,
        processor: 0,
    };

    /// What a call costs when it begins, by what becomes of its media and over which transports its sides come. Whether it is
    /// transcoded is known by its answer and added then; SRTP has no price of its own.
    pub fn of_call(anchored: bool, sides: [Option<Transport>; 2]) -> Cost {
        let mut cost = Cost::CALL;
        if anchored {
            cost += Cost::ANCHORED;
        }
        for side in sides.into_iter().flatten() {
            if matches!(side, Transport::Tls | Transport::Ws | Transport::Wss) {
                cost += Cost::SECURE;
            }
        }
        cost
    }

    /// What a participant of a conference costs, by his codec and what his signalling comes by.
    pub fn of_seat(kind: codec::Kind, transport: Transport) -> Cost {
        let mut cost = Cost::of_call(false, [Some(transport), None]);
        cost += Cost::SEAT;
        if matches!(kind, codec::Kind::G729 | codec::Kind::Opus) {
            cost += Cost::VOCODER;
        }
        cost
    }

    /// The same `count` times.
    pub fn times(self, count: u64) -> Cost {
        Cost {
            memory: self.memory.saturating_mul(count),
            processor: self.processor.saturating_mul(count),
        }
    }

    /// How many of `each` fit into this; `None` where nothing is limited that it needs.
    pub fn holds(self, each: Cost) -> u64 {
        let fits = |all: u64, one: u64| all.checked_div(one).unwrap_or(u64::MAX);
        fits(self.memory, each.memory).min(fits(self.processor, each.processor))
    }

    /// What of `limit` would be exceeded with `more`.
    fn beyond(self, more: Cost, limit: Cost) -> Option<&'static str> {
        if self.memory.saturating_add(more.memory) > limit.memory {
            return Some("memory");
        }
        (self.processor.saturating_add(more.processor) > limit.processor).then_some("processor")
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.memory = self.memory.saturating_add(other.memory);
        self.processor = self.processor.saturating_add(other.processor);
    }
}

impl SubAssign for Cost {
    fn sub_assign(&mut self, other: Cost) {
        self.memory = self.memory.saturating_sub(other.memory);
        self.processor = self.processor.saturating_sub(other.processor);
    }
}

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

/// What the calls that stand take.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    taken: Cost,
    refused: u64,
    told: Option<Time>,
}

impl Admitted {
    /// What calls take at present.
    pub(crate) fn taken(&self) -> Cost {
        self.taken
    }
}

impl Core {
    /// Takes what a call of this plan costs out of what there is.
    pub(crate) fn take_cost(
        &mut self,
        uri: &[u8],
        plan: &CallPlan,
        flow: Flow,
        now: Time,
    ) -> Result<Cost, Refused> {
        let callee = plan.steps.first().map(|step| match &step.place {
            Place::Address(_, transport) => Some(*transport),
            Place::Flow(flow) => Some(flow.transport),
            Place::Name(_, transport) => *transport,
        });
        let anchored = plan.media == MediaMode::Anchor;
        let cost = Cost::of_call(anchored, [Some(flow.transport), callee.flatten()]);
        self.take(uri, cost, now)
    }

    /// Takes this out of what there is.
    pub(crate) fn take(&mut self, uri: &[u8], cost: Cost, now: Time) -> Result<Cost, Refused> {
        // Workers have equal shares; registrations are in common.
        let workers = u64::from(self.config.sip.workers.max(1));
        let limit = self.config.admission.limit().map(|limit| Cost {
            memory: limit.memory / workers,
            processor: limit.processor / workers,
        });
        let Some(limit) = limit else {
            self.admitted.taken += cost;
            return Ok(cost);
        };
        let mut taken = self.admitted.taken;
        taken += Cost::REGISTRATION.times(self.location.len() as u64 / workers);
        let Some(what) = taken.beyond(cost, limit).filter(|_| !calls_for_help(uri)) else {
            self.admitted.taken += cost;
            return Ok(cost);
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
                refused,
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

    /// The speech of a call is transcoded from now on. It stands already, so it is not refused; the next one may be.
    pub(crate) fn take_cost_of_transcoding(&mut self, key: CallKey, kinds: [Kind; 2]) {
        let Some(call) = self.slot_of(key).and_then(|slot| self.calls.get_mut(slot)) else {
            return;
        };
        if !core::mem::replace(&mut call.transcoded, true) {
            let cost = Cost::of_transcoding(kinds);
            call.cost += cost;
            self.admitted.taken += cost;
        }
    }

    /// A call that cost this is over.
    pub(crate) fn give_cost_back(&mut self, cost: Cost) {
        self.admitted.taken -= cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_cost_by_their_kind() {
        let plain = Cost::of_call(false, [Some(Transport::Udp), Some(Transport::Tcp)]);
        assert_eq!(plain, Cost::CALL);
        let all = Cost::of_call(true, [Some(Transport::Tls), Some(Transport::Wss)]);
        let mut sum = Cost::CALL;
        sum += Cost::ANCHORED;
        sum += Cost::SECURE.times(2);
        assert_eq!(all, sum);
        assert_eq!(
            Cost::of_call(false, [Some(Transport::Udp), None]),
            Cost::CALL
        );
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
