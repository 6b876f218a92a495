//! Capacity: memory and CPU time that calls reserve, and its limit.

use crate::admission::{CostPart, MediaPath, MediaPaths, Price, Reservation};
use crate::emergency::is_emergency;
use crate::policy::{CallPlan, StepTarget};
use crate::request::{RequestOrigin, RequestRefusal};
use crate::shared::Ctx;
use anchor::Side;
use codec::kind::Kind;
use config::{AdmissionLimits, Config, Keying, MachineCapacity, MediaMode, SrtpPolicy};
use core::time::Duration;
use engine::{EventKind, Reason, Time};
use protect::srtp::Suite;
use sip::Flow;
use std::net::IpAddr;
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

/// Whether packets to this address go through a tunnel of the IPsec gateway.
fn is_behind_tunnel(config: &Config, address: IpAddr) -> bool {
    let tunnels = config.gateway.iter().flat_map(|gateway| &gateway.tunnels);
    let mut networks = tunnels.flat_map(|tunnel| &tunnel.remote_networks);
    networks.any(|network| network.contains(address.to_canonical()))
}

/// Capacity that is reserved for calls.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    reserved: [Price; CostPart::ALL.len()],
    /// Sides of calls behind tunnels of the IPsec gateway.
    gateway_sides: u64,
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

    pub(crate) fn add(&mut self, part: CostPart, price: Price) {
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

/// Other load of this worker, which takes capacity or is reported with a refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CurrentLoad {
    /// Registrations of all workers.
    pub(crate) registrations: usize,
    pub(crate) calls: usize,
}

impl Reservation {
    /// The reservation for a call of this plan, which was received on `flow`.
    pub(crate) fn for_plan(
        config: &Config,
        paths: &MediaPaths,
        plan: &CallPlan,
        flow: Flow,
        origin: RequestOrigin,
    ) -> Reservation {
        let first = plan.steps.first();
        let callee = first.map(|step| match &step.place {
            StepTarget::Address(_, transport) => Some(*transport),
            StepTarget::Flow(flow) => Some(flow.transport),
            StepTarget::Name(_, transport) => *transport,
        });
        let anchored = plan.media == MediaMode::Anchor;
        let callee_interface = first.map_or(origin.interface, |step| step.interface);
        let interfaces = [origin.interface, callee_interface];
        let place = first.map(|step| &step.place);
        let callee_address = match place {
            Some(StepTarget::Address(address, _)) => Some(address.ip()),
            Some(StepTarget::Flow(flow)) => Some(flow.remote.ip()),
            Some(StepTarget::Name(..)) | None => None,
        };
        let path = anchored.then(|| paths.between(config, interfaces));
        let mut reservation = Reservation::of_call(path, [Some(flow.transport), callee.flatten()]);
        // Media of a side comes from where its signalling comes from, or from near it.
        let addresses = [Some(flow.remote.ip()), callee_address];
        let through_gateway = |address: &IpAddr| is_behind_tunnel(config, *address);
        let sides = addresses
            .iter()
            .flatten()
            .filter(|address| through_gateway(address));
        let sides = sides.count() as u8;
        match paths.direct_tunnels {
            true => reservation.add(CostPart::Media, Price::of_tunnel_sides(sides, anchored)),
            false => reservation.gateway_sides = sides,
        }
        if anchored {
            // With `srtp = "require"` the side has keys or the call ends. Their kind is not known yet: reserve the
            // most expensive one.
            let sides = [
                (Side::Caller, Some((origin.interface, origin.trunk))),
                (Side::Callee, first.map(|step| (step.interface, step.trunk))),
            ];
            for (side, place) in sides {
                let security = place.and_then(|(at, trunk)| config.security(at, trunk));
                if let Some(security) = security
                    && security.srtp == SrtpPolicy::Require
                {
                    reservation.protect(0, side, Price::of_security(security));
                }
            }
            if let Some(path) = path {
                reservation.set_media_path(path, paths.sockets());
            }
        }
        reservation
    }
}

impl Reservations {
    /// Current reservations by part, of this worker.
    pub(crate) fn by_part(
        &mut self,
        ctx: &Ctx,
        load: CurrentLoad,
    ) -> [(CostPart, Price); CostPart::ALL.len()] {
        // Workers have equal shares of the limit, and of the registrations, which are shared.
        let workers = u64::from(ctx.config.sip.workers.max(1));
        let registrations = Price::REGISTRATION.times(load.registrations as u64 / workers);
        let handshakes = Price {
            memory: 0,
            processor: self.handshakes.sum(ctx.now),
        };
        CostPart::ALL.map(|part| {
            let price = match part {
                CostPart::Registrations => registrations,
                CostPart::Handshakes => handshakes,
                part => self.reserved[part as usize],
            };
            (part, price)
        })
    }

    /// Reserves capacity for a call to `uri`, or refuses it.
    pub(crate) fn admit(
        &mut self,
        ctx: &mut Ctx,
        load: CurrentLoad,
        uri: &[u8],
        reservation: Reservation,
    ) -> Result<Reservation, RequestRefusal> {
        let workers = u64::from(ctx.config.sip.workers.max(1));
        let limit = Price::limit(&ctx.config.admission).map(|limit| Price {
            memory: limit.memory / workers,
            processor: limit.processor / workers,
        });
        let Some(limit) = limit else {
            return Ok(self.record(reservation));
        };
        let by_parts = self.by_part(ctx, load);
        let mut reserved = Price::default();
        for (_, price) in by_parts {
            reserved += price;
        }
        let gateway_max = Price::GATEWAY / Price::GATEWAY_SIDE / workers;
        let own_sides = u64::from(reservation.gateway_sides);
        let through_gateway = own_sides > 0 && self.gateway_sides + own_sides > gateway_max;
        let exceeded = reserved
            .exceeded(reservation.total(), limit)
            .or(through_gateway.then_some("gateway"));
        let Some(resource) = exceeded.filter(|_| !is_emergency(&ctx.config, uri)) else {
            return Ok(self.record(reservation));
        };
        ctx.counters.not_admitted += 1;
        self.refused += 1;
        if self
            .reported_at
            .is_none_or(|reported| ctx.now.since(reported) >= REPORT_INTERVAL)
        {
            self.reported_at = Some(ctx.now);
            let refused = core::mem::take(&mut self.refused);
            ctx.events.tell(ctx.now, || EventKind::AdmissionRefused {
                resource: resource.to_owned(),
                calls: load.calls as u64,
                calls_max: limit
                    .capacity_for(reservation.total())
                    .min(gateway_max.checked_div(own_sides).unwrap_or(u64::MAX)),
                path: reservation.path().map(|path| path.name().to_owned()),
                refused,
                memory: format_parts(&by_parts, limit.memory, |price| price.memory),
                processor: format_parts(&by_parts, limit.processor, |price| price.processor),
            });
        }
        let status = ctx.config.admission.status;
        let mut refused = RequestRefusal::with_status(status, Reason::CapacityExhausted);
        if status == 503 {
            let seconds = 1 + ctx.entropy.below(10);
            let value = seconds.to_string().into_bytes();
            refused.headers.push((HeaderId::RetryAfter, value));
        }
        Err(refused)
    }

    fn record(&mut self, reservation: Reservation) -> Reservation {
        for (part, price) in reservation.parts() {
            self.add(part, price);
        }
        self.gateway_sides += u64::from(reservation.gateway_sides);
        reservation
    }

    /// Reserves for transcoding in an established call, once. The call is never refused; the next one may be. Returns
    /// whether it was reserved now.
    pub(crate) fn add_transcoding(&mut self, held: &mut Reservation, kinds: [Kind; 2]) -> bool {
        if core::mem::replace(&mut held.is_transcoded, true) {
            return false;
        }
        let price = Price::of_transcoding(kinds);
        held.add(CostPart::Transcoding, price);
        self.add(CostPart::Transcoding, price);
        true
    }

    /// Updates the reservation of a conference participant to the codec that was agreed. The call is never refused; the
    /// next one may be.
    pub(crate) fn set_participant_codec(&mut self, held: &mut Reservation, kind: Kind) {
        let (before, after) = held.set_participant_codec(kind);
        let sum = &mut self.reserved[CostPart::Conference as usize];
        *sum -= before;
        *sum += after;
    }

    /// Reserves for SRTP keys of one side of a media line; new keys replace earlier ones. The reservation lasts until
    /// the end of the call, also where the line is removed earlier.
    pub(crate) fn add_srtp(
        &mut self,
        held: &mut Reservation,
        (line, side): (usize, Side),
        (keying, suite): (Keying, Suite),
    ) {
        let price = Price::of_srtp(keying, suite);
        let before = held.protect(line, side, price);
        let sum = &mut self.reserved[CostPart::Srtp as usize];
        *sum -= before;
        *sum += price;
    }

    /// Updates the reservation for a call's media to a path, or to `sockets` where it cannot use that path.
    pub(crate) fn set_media_path(
        &mut self,
        held: &mut Reservation,
        path: MediaPath,
        sockets: MediaPath,
    ) {
        let (before, after) = held.set_media_path(path, sockets);
        let sum = &mut self.reserved[CostPart::Media as usize];
        *sum -= before;
        *sum += after;
    }

    /// Releases the reservation of a call that has ended.
    pub(crate) fn release(&mut self, reservation: &Reservation) {
        for (part, price) in reservation.parts() {
            self.reserved[part as usize] -= price;
        }
        let sides = u64::from(reservation.gateway_sides);
        self.gateway_sides = self.gateway_sides.saturating_sub(sides);
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
        let anchored = Price::of_call(Some(MediaPath::SharedPortSocket), [None, None]);
        assert_eq!(limit.capacity_for(anchored), 700_000 / 1_811);
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
