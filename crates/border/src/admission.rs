//! Admission control: a call that needs more memory or CPU time than is left is refused before any resource is opened
//! for it. Emergency calls are always admitted.
//!
//! The prices (`price.rs`) are twice the values measured for established calls, relayed packets, transcoders, SRTP
//! and handshakes on the machine of the project; they were calibrated on no other machine. The capacity is
//! `memory_mib` and `cpu_percent` of `[limits]`, or a share of the machine's.

mod media_path;
mod price;

pub use media_path::{MediaOffload, MediaPath};
pub(crate) use price::Reservation;
pub use price::{CostPart, Price};

use crate::border::Core;
use crate::call::CallKey;
use crate::call::setup::{RequestOrigin, RequestRefusal};
use crate::overload::is_emergency_uri;
use crate::policy::{CallPlan, StepTarget};
use anchor::Side;
use codec::kind::Kind;
use config::{AdmissionLimits, Keying, MachineCapacity, MediaMode, SrtpPolicy};
use core::time::Duration;
use engine::{EventKind, Time};
use protect::srtp::Suite;
use sip::Flow;
use wire::sip::HeaderId;

/// Share of the machine that established calls may take by default: in the study's test the border used 56 % of its
/// memory, and beginning and ending calls need CPU time, too.
const MEMORY_PERCENT: u64 = 60;
const PROCESSOR_PERCENT: u64 = 70;

impl Price {
    /// The part of the capacity of a machine that established calls may take.
    pub fn for_calls(machine: MachineCapacity) -> Price {
        Price {
            memory: machine.memory / 100 * MEMORY_PERCENT,
            processor: machine.processor / 100 * PROCESSOR_PERCENT,
        }
    }

    /// Limit for calls and registrations together; `None`: no limit.
    pub fn limit(limits: &AdmissionLimits) -> Option<Price> {
        let of_machine = limits.machine.map(Price::for_calls);
        if of_machine.is_none() && limits.memory.is_none() && limits.processor.is_none() {
            return None;
        }
        let or =
            |configured: Option<u64>, found: Option<u64>| configured.or(found).unwrap_or(u64::MAX);
        Some(Price {
            memory: or(limits.memory, of_machine.map(|price| price.memory)),
            processor: or(limits.processor, of_machine.map(|price| price.processor)),
        })
    }
}

/// Minimum interval between two events about refused calls.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Work of the last second, in tenths of a second.
#[derive(Debug, Default)]
struct RecentWork {
    tenths: [u64; 10],
    /// Number of the current tenth, counted from time zero.
    last: u64,
}

impl RecentWork {
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

/// Capacity that is reserved for calls.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    reserved: [Price; CostPart::ALL.len()],
    handshakes: RecentWork,
    refused: u64,
    reported_at: Option<Time>,
}

impl Reservations {
    /// Sum of the reservations of all calls.
    pub(crate) fn reserved(&self) -> Price {
        let mut sum = Price::default();
        for &part in &self.reserved {
            sum += part;
        }
        sum
    }

    fn add(&mut self, part: CostPart, price: Price) {
        self.reserved[part as usize] += price;
    }

    /// Counts the work of a handshake.
    pub(crate) fn record_handshake(&mut self, work: Price, now: Time) {
        self.handshakes.add(work.processor, now);
    }
}

/// Lists the reservations by part, and the limit, for events; parts without a reservation are left out.
fn format_parts(reserved: &[(CostPart, Price)], limit: u64, of: impl Fn(Price) -> u64) -> String {
    let mut text = String::new();
    for (part, price) in reserved.iter().filter(|(_, price)| of(*price) > 0) {
        text.push_str(&format!("{} {} ", part.name(), of(*price)));
    }
    text.push_str(&format!("of {limit}"));
    text
}

impl Core {
    /// Reserves capacity for a call of this plan.
    pub(crate) fn reserve_for_plan(
        &mut self,
        uri: &[u8],
        plan: &CallPlan,
        flow: Flow,
        origin: RequestOrigin,
        now: Time,
    ) -> Result<Reservation, RequestRefusal> {
        let first = plan.steps.first();
        let callee = first.map(|step| match &step.place {
            StepTarget::Address(_, transport) => Some(*transport),
            StepTarget::Flow(flow) => Some(flow.transport),
            StepTarget::Name(_, transport) => *transport,
        });
        let anchored = plan.media == MediaMode::Anchor;
        let callee_interface = first.map_or(origin.interface, |step| step.interface);
        let interfaces = [origin.interface, callee_interface];
        let path = anchored.then(|| self.media_offload.path_between(&self.config, interfaces));
        let mut reservation = Reservation::of_call(path, [Some(flow.transport), callee.flatten()]);
        if anchored {
            // With `srtp = "require"` the side has keys or the call ends. Their kind is not known yet: reserve the
            // most expensive one.
            let sides = [
                (Side::Caller, Some((origin.interface, origin.trunk))),
                (Side::Callee, first.map(|step| (step.interface, step.trunk))),
            ];
            for (side, place) in sides {
                let security = place.and_then(|(at, trunk)| self.config.security(at, trunk));
                if let Some(security) = security
                    && security.srtp == SrtpPolicy::Require
                {
                    reservation.protect(0, side, Price::of_security(security));
                }
            }
            if let Some(path) = path {
                reservation.set_media_path(path);
            }
        }
        self.reserve(uri, reservation, now)
    }

    /// Current reservations by part, of this worker.
    pub(crate) fn reserved(&mut self, now: Time) -> [(CostPart, Price); CostPart::ALL.len()] {
        // Workers have equal shares of the limit, and of the registrations, which are shared.
        let workers = u64::from(self.config.sip.workers.max(1));
        let registrations = Price::REGISTRATION.times(self.location.len() as u64 / workers);
        let handshakes = Price {
            memory: 0,
            processor: self.reservations.handshakes.sum(now),
        };
        let reserved = &self.reservations.reserved;
        CostPart::ALL.map(|part| {
            let price = match part {
                CostPart::Registrations => registrations,
                CostPart::Handshakes => handshakes,
                part => reserved[part as usize],
            };
            (part, price)
        })
    }

    /// Reserves capacity, or refuses the call.
    pub(crate) fn reserve(
        &mut self,
        uri: &[u8],
        reservation: Reservation,
        now: Time,
    ) -> Result<Reservation, RequestRefusal> {
        let workers = u64::from(self.config.sip.workers.max(1));
        let limit = Price::limit(&self.config.admission).map(|limit| Price {
            memory: limit.memory / workers,
            processor: limit.processor / workers,
        });
        let Some(limit) = limit else {
            return Ok(self.record_reservation(reservation));
        };
        let by_parts = self.reserved(now);
        let mut reserved = Price::default();
        for (_, price) in by_parts {
            reserved += price;
        }
        let exceeded = reserved.exceeded(reservation.total(), limit);
        let Some(resource) = exceeded.filter(|_| !is_emergency_uri(uri)) else {
            return Ok(self.record_reservation(reservation));
        };
        self.counters.not_admitted += 1;
        let admitted = &mut self.reservations;
        admitted.refused += 1;
        if admitted
            .reported_at
            .is_none_or(|reported| now.since(reported) >= REPORT_INTERVAL)
        {
            admitted.reported_at = Some(now);
            let refused = core::mem::take(&mut admitted.refused);
            let calls = self.calls.len() as u64;
            self.events.tell(now, || EventKind::AdmissionRefused {
                resource: resource.to_owned(),
                calls,
                calls_max: limit.capacity_for(reservation.total()),
                path: reservation.path().map(|path| path.name().to_owned()),
                refused,
                memory: format_parts(&by_parts, limit.memory, |price| price.memory),
                processor: format_parts(&by_parts, limit.processor, |price| price.processor),
            });
        }
        let status = self.config.admission.status;
        let mut refused = RequestRefusal::new(status, "capacity exhausted");
        if status == 503 {
            let seconds = 1 + self.entropy.below(10);
            let value = seconds.to_string().into_bytes();
            refused.headers.push((HeaderId::RetryAfter, value));
        }
        Err(refused)
    }

    fn record_reservation(&mut self, reservation: Reservation) -> Reservation {
        for (part, price) in reservation.parts() {
            self.reservations.add(part, price);
        }
        reservation
    }

    /// Reserves for transcoding in an established call. The call is never refused; the next one may be.
    pub(crate) fn reserve_transcoding(&mut self, key: CallKey, kinds: [Kind; 2]) {
        let Some(call) = self.slot_of(key).and_then(|slot| self.calls.get_mut(slot)) else {
            return;
        };
        if !core::mem::replace(&mut call.transcoded, true) {
            let price = Price::of_transcoding(kinds);
            call.reservation.add(CostPart::Transcoding, price);
            self.reservations.add(CostPart::Transcoding, price);
            if let Some(slot) = self.slot_of(key) {
                self.update_media_price(slot);
            }
        }
    }

    /// Reserves for SRTP keys of one side of a media line, as above; new keys replace earlier ones. The reservation
    /// lasts until the end of the call, also where the line is removed earlier.
    pub(crate) fn reserve_srtp(
        &mut self,
        key: CallKey,
        (line, side): (usize, Side),
        (keying, suite): (Keying, Suite),
        now: Time,
    ) {
        if keying == Keying::Dtls {
            self.reservations
                .record_handshake(Price::DTLS_HANDSHAKE, now);
        }
        let Some(call) = self.slot_of(key).and_then(|slot| self.calls.get_mut(slot)) else {
            return;
        };
        let price = Price::of_srtp(keying, suite);
        let before = call.reservation.protect(line, side, price);
        let sum = &mut self.reservations.reserved[CostPart::Srtp as usize];
        *sum -= before;
        *sum += price;
        if let Some(slot) = self.slot_of(key) {
            self.update_media_price(slot);
        }
    }

    /// Releases the reservation of a call that has ended.
    pub(crate) fn release_reservation(&mut self, reservation: &Reservation) {
        for (part, price) in reservation.parts() {
            self.reservations.reserved[part as usize] -= price;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_for_one_second() {
        let mut work = RecentWork::default();
        let at = Time::from_millis;
        work.add(100, at(50));
        work.add(10, at(950));
        assert_eq!(work.sum(at(999)), 110);
        assert_eq!(work.sum(at(1_000)), 10);
        // A clock that does not advance removes nothing.
        work.add(1, at(1_000));
        assert_eq!(work.sum(at(1_899)), 11);
        assert_eq!(work.sum(at(1_900)), 1);
        assert_eq!(work.sum(at(2_000)), 0);
        work.add(7, at(3_600_000));
        assert_eq!(work.sum(at(3_600_100)), 7);
        assert_eq!(work.sum(at(7_200_000)), 0);
    }

    #[test]
    fn the_scarcer_resource_limits_calls() {
        // The study's machine: 16 GB and 8 processors held 85,000 calls with media bypass in 56 % of the memory.
        let study = MachineCapacity {
            memory: 16 << 20,
            processor: 8_000_000,
        };
        assert!(Price::for_calls(study).capacity_for(Price::CALL) > 85_000);
        let small = MachineCapacity {
            memory: 1 << 20,
            processor: 1_000_000,
        };
        let limit = Price::for_calls(small);
        assert_eq!(limit.capacity_for(Price::CALL), (1 << 20) / 100 * 60 / 8);
        let anchored = Price::of_call(true, [None, None]);
        assert_eq!(limit.capacity_for(anchored), 700_000 / 501);
        assert_eq!(limit.exceeded(Price::CALL, limit), Some("memory"));
        let configured = AdmissionLimits {
            memory: Some(80),
            ..AdmissionLimits::default()
        };
        assert_eq!(Price::limit(&AdmissionLimits::default()), None);
        assert_eq!(
            Price::limit(&configured).unwrap().capacity_for(Price::CALL),
            10
        );
        let with_machine = AdmissionLimits {
            machine: Some(small),
            ..configured
        };
        assert_eq!(
            Price::limit(&with_machine).unwrap().processor,
            limit.processor
        );
        assert_eq!(Price::limit(&with_machine).unwrap().memory, 80);
        let idle = Price::default();
        assert_eq!(idle.exceeded(limit, limit), None);
        let excess = Price {
            memory: 1,
            processor: 700_001,
        };
        assert_eq!(idle.exceeded(excess, limit), Some("processor"));
    }
}
