//! What is said to requests from outside before anything is kept of them: calls and registrations beyond the rates of their
//! interface, trunk or source are refused without a transaction, phones that repeat their registration are answered.

use crate::border::outside::{OPTIONS_SUPPORTED, too_many};
use crate::border::{ALLOW, Core, Outcome, address_of_record};
use crate::call::offered::Refused;
use crate::config::{Authenticate, InterfaceId, Rates, Register, TrunkId};
use crate::overload::calls_for_help;
use core::time::Duration;
use engine::{BoundedMap, Entropy, HashKey, Note, Time};
use sip::{Flow, Greeting, Stateless};
use std::net::IpAddr;
use wire::sip::{HeaderId, Message, Method};

/// What may come at once, as the time in which the rate lets it in: calls that gathered while the border waited for company or
/// the machine for itself, and little enough that ten seconds stay within a hundredth of the rate.
const BURST: Duration = Duration::from_millis(50);
/// A source of which nothing came for one to two of these is forgotten.
const GENERATION: Duration = Duration::from_secs(10);
/// Sources followed at a time, in each generation.
const SOURCES: usize = 65_536;
/// How often a limit says that it refuses.
const TELL: Duration = Duration::from_secs(10);

/// What is metered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Call,
    Registration,
}

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Interface(u16),
    Trunk(u16),
}

/// A meter that lets one in per step, and a burst.
fn pass(at: &mut Time, rate: u32, now: Time) -> bool {
    if rate == 0 {
        return true;
    }
    let step = Duration::from_secs(1) / rate;
    let from = (*at).max(now);
    if from.since(now) > BURST.max(step) {
        return false;
    }
    *at = from + step;
    true
}

/// The meters of one interface or trunk: calls and registrations, each without and with credentials.
#[derive(Clone, Copy, Debug, Default)]
struct Meters {
    at: [[Time; 2]; 2],
    refused: u64,
    told: Option<Time>,
}

type SourceKey = (IpAddr, Place, Kind, bool);

/// All meters.
#[derive(Debug)]
pub(crate) struct Gate {
    interfaces: Vec<Meters>,
    trunks: Vec<Meters>,
    young: BoundedMap<SourceKey, Time>,
    old: BoundedMap<SourceKey, Time>,
    since: Time,
}

impl Gate {
    pub(crate) fn new(entropy: &mut Entropy) -> Gate {
        let key = HashKey::new(entropy);
        Gate {
            interfaces: Vec::new(),
            trunks: Vec::new(),
            young: BoundedMap::new(SOURCES, key),
            old: BoundedMap::new(SOURCES, key),
            since: Time(0),
        }
    }

    /// Interfaces and trunks have other indices now: their meters begin anew.
    pub(crate) fn reload(&mut self) {
        self.interfaces.clear();
        self.trunks.clear();
        self.young.clear();
        self.old.clear();
    }

    fn meters(&mut self, place: Place) -> Option<&mut Meters> {
        let (list, index) = match place {
            Place::Interface(index) => (&mut self.interfaces, usize::from(index)),
            Place::Trunk(index) => (&mut self.trunks, usize::from(index)),
        };
        if list.len() <= index {
            list.resize(index + 1, Meters::default());
        }
        list.get_mut(index)
    }

    /// Whether a request of this kind is let in.
    fn let_in(
        &mut self,
        place: Place,
        rates: &Rates,
        kind: Kind,
        proven: bool,
        source: IpAddr,
        now: Time,
    ) -> bool {
        let (all, each) = match kind {
            Kind::Call => (rates.calls, rates.source_calls),
            Kind::Registration => (rates.registrations, rates.source_registrations),
        };
        // The source first: who comes too often takes nothing from the others.
        if !self.let_source_in((source, place, kind, proven), each, now) {
            return false;
        }
        let meter = self
            .meters(place)
            .and_then(|meters| meters.at.get_mut(kind as usize))
            .and_then(|pair| pair.get_mut(usize::from(proven)));
        meter.is_none_or(|at| pass(at, all, now))
    }

    fn let_source_in(&mut self, key: SourceKey, rate: u32, now: Time) -> bool {
        if rate == 0 {
            return true;
        }
        if now.since(self.since) >= GENERATION {
            self.since = now;
            core::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        let mut at = match (self.young.get(&key), self.old.get(&key)) {
            (Some(at), _) | (None, Some(at)) => *at,
            (None, None) => Time(0),
        };
        let let_in = pass(&mut at, rate, now);
        // Where no room is left for one more source, the rates of interface and trunk must do.
        let _ = self.young.insert(key, at);
        let_in
    }

    /// Counts a refusal; how many there were since it was last told, where it is time to tell.
    fn refuse(&mut self, place: Place, now: Time) -> Option<u64> {
        let meters = self.meters(place)?;
        meters.refused += 1;
        if meters.told.is_some_and(|told| now.since(told) < TELL) {
            return None;
        }
        meters.told = Some(now);
        Some(core::mem::take(&mut meters.refused))
    }
}

impl Core {
    /// The answer that a request from outside gets at once, or whether its source is known.
    pub(crate) fn answer_at_the_gate(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Greeting {
        self.authorized = None;
        if let Some(answer) = self.answer_beyond_rates(request, flow, now) {
            return Greeting::Answer(answer);
        }
        match request.method() {
            Method::Options => return self.answer_options_at_the_gate(flow),
            Method::Invite
            | Method::Register
            | Method::Message
            | Method::Publish
            | Method::Subscribe
            | Method::Notify
            | Method::Refer => {}
            // They get a refusal whoever sends them.
            _ => return Greeting::Unknown,
        }
        // What is refused here leaves nothing behind, so that a source that does not authenticate costs no transaction.
        if request.method() == Method::Register {
            let user = address_of_record(request);
            if let Err(seconds) = self.let_register(&user, request, flow, now) {
                return self.refuse_at_the_gate(request, flow, &too_many(seconds), now);
            }
        }
        match self.authorize(request, flow, now) {
            Ok((origin, user)) => {
                let known = origin.authenticated;
                self.authorized = Some((origin, user));
                match known {
                    true => Greeting::Known,
                    false => Greeting::Unknown,
                }
            }
            Err(refused) => self.refuse_at_the_gate(request, flow, &refused, now),
        }
    }

    /// OPTIONS of trunks take the usual way; the others are answered with nothing kept.
    fn answer_options_at_the_gate(&mut self, flow: Flow) -> Greeting {
        let place = self.place_of_flow(flow);
        if place.is_none_or(|(_, trunk)| trunk.is_some()) {
            return Greeting::Known;
        }
        let status = if self.draining.is_some() { 503 } else { 200 };
        let headers = [
            (HeaderId::Allow, ALLOW),
            (HeaderId::Accept, "application/sdp"),
            (HeaderId::Supported, OPTIONS_SUPPORTED),
            (HeaderId::AcceptEncoding, "identity"),
            (HeaderId::AcceptLanguage, "en"),
        ];
        Greeting::Answer(Stateless {
            status,
            reason: None,
            headers: headers
                .into_iter()
                .map(|(id, value)| (id, value.as_bytes().to_vec()))
                .collect(),
        })
    }

    fn refuse_at_the_gate(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        refused: &Refused,
        now: Time,
    ) -> Greeting {
        if request.method() == Method::Invite && !matches!(refused.status, 401 | 407) {
            self.counters.offered += 1;
            self.counters.count(Outcome::of(refused.status));
        }
        self.tell_refusal(request, flow, refused, now);
        Greeting::Answer(Stateless {
            status: refused.status,
            reason: None,
            headers: refused.headers.clone(),
        })
    }

    fn answer_beyond_rates(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Option<Stateless> {
        let shed = self.shed(request, now);
        if shed.is_some() {
            return shed;
        }
        let kind = match request.method() {
            // Calls for help are never too many.
            Method::Invite if calls_for_help(request.request_uri()) => return None,
            Method::Invite => Kind::Call,
            Method::Register => Kind::Registration,
            _ => return None,
        };
        let interface = self.interface_of(flow.local)?;
        let trunk = self.trunk_at(interface, &flow);
        let refused = self.beyond_rates(request, kind, interface, trunk, flow, now);
        if refused.is_some() || kind == Kind::Call {
            return refused;
        }
        self.registers_again(request, interface, trunk, flow, now)
    }

    fn beyond_rates(
        &mut self,
        request: &Message<'_>,
        kind: Kind,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
        flow: Flow,
        now: Time,
    ) -> Option<Stateless> {
        let config = self.config.clone();
        let of_trunk = trunk.and_then(|id| Some((Place::Trunk(id.0), &config.trunk(id)?.rates)));
        let of_interface = config
            .interface(interface)
            .map(|settings| (Place::Interface(interface.0), &settings.rates));
        let proven =
            request.has(HeaderId::Authorization) || request.has(HeaderId::ProxyAuthorization);
        let source = flow.remote.ip();
        for (place, rates) in [of_trunk, of_interface].into_iter().flatten() {
            if rates.is_open()
                || self
                    .gate
                    .hold()
                    .let_in(place, rates, kind, proven, source, now)
            {
                continue;
            }
            self.counters.shielded += 1;
            let refused = self.gate.hold().refuse(place, now);
            if let Some(refused) = refused {
                let name = match place {
                    Place::Trunk(_) => trunk.and_then(|id| Some(&config.trunk(id)?.name)),
                    Place::Interface(_) => config.interface(interface).map(|i| &i.name),
                };
                self.events.tell(now, || Note::RateExceeded {
                    place: name.cloned().unwrap_or_default(),
                    method: String::from_utf8_lossy(request.method().as_bytes()).into_owned(),
                    refused,
                    source: source.to_string(),
                });
            }
            let mut headers = Vec::new();
            if rates.status == 503 {
                // Not all at the same time.
                let seconds = 1 + self.entropy.below(10);
                headers.push((HeaderId::RetryAfter, seconds.to_string().into_bytes()));
            }
            return Some(Stateless {
                status: rates.status,
                reason: None,
                headers,
            });
        }
        None
    }

    /// A phone repeats a registration that the core has taken: nothing has to be kept of that.
    fn registers_again(
        &mut self,
        request: &Message<'_>,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
        flow: Flow,
        now: Time,
    ) -> Option<Stateless> {
        let settings = self.config.interface(interface)?;
        let Register::Pass(core) = settings.register else {
            return None;
        };
        // Proof and header rules are given where the request takes its usual way.
        let free = settings.authenticate != Authenticate::Digest || trunk.is_some();
        if !free || !self.config.rules.is_empty() || self.core_target(core).is_none() {
            return None;
        }
        let user = address_of_record(request);
        let answer = self
            .location
            .refresh(&user, request, interface, flow, now)?;
        self.counters.refreshed += 1;
        Some(Stateless {
            status: answer.status,
            reason: None,
            headers: answer.headers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "192.0.2.7";

    fn let_in(gate: &mut Gate, rates: &Rates, source: &str, now: Time) -> bool {
        let source = source.parse().unwrap();
        gate.let_in(Place::Interface(0), rates, Kind::Call, false, source, now)
    }

    /// `offered` a second for a minute, evenly; how many are let in.
    fn minute(rates: &Rates, offered: u64, source: impl Fn(u64) -> String) -> u64 {
        let mut gate = Gate::new(&mut Entropy::from_number(1));
        let step = 1_000_000_000 / offered;
        let start = Time::from_secs(100);
        (0..offered * 60)
            .filter(|number| {
                let now = start + Duration::from_nanos(number * step);
                let_in(&mut gate, rates, &source(*number), now)
            })
            .count() as u64
    }

    #[test]
    fn the_rate_is_kept_to_a_hundredth() {
        for (rate, offered) in [(400, 700), (1, 50), (10, 1_000), (3, 4), (999, 1_000)] {
            let rates = Rates {
                calls: rate,
                ..Rates::default()
            };
            let in_all = minute(&rates, offered, |_| SOURCE.into());
            let expected = u64::from(rate) * 60;
            assert!(
                in_all >= expected && in_all <= expected + expected / 100 + 1,
                "{rate} of {offered}: {in_all}"
            );
        }
        assert_eq!(minute(&Rates::default(), 700, |_| SOURCE.into()), 42_000);
    }

    #[test]
    fn what_is_below_the_rate_comes_in() {
        let rates = Rates {
            calls: 700,
            source_calls: 700,
            ..Rates::default()
        };
        assert_eq!(minute(&rates, 699, |_| SOURCE.into()), 699 * 60);
    }

    #[test]
    fn who_comes_too_often_takes_nothing_from_the_others() {
        let rates = Rates {
            calls: 100,
            source_calls: 10,
            ..Rates::default()
        };
        let mut gate = Gate::new(&mut Entropy::from_number(1));
        let (mut loud, mut quiet) = (0, 0);
        for millisecond in 0..60_000 {
            let now = Time::from_secs(100) + Duration::from_millis(millisecond);
            loud += u32::from(let_in(&mut gate, &rates, SOURCE, now));
            if millisecond % 200 == 0 {
                quiet += u32::from(let_in(&mut gate, &rates, "192.0.2.8", now));
            }
        }
        assert_eq!(quiet, 300);
        assert!((600..=606).contains(&loud), "{loud}");
    }

    #[test]
    fn sources_are_followed_in_bounded_memory() {
        let rates = Rates {
            source_calls: 1,
            ..Rates::default()
        };
        let mut gate = Gate::new(&mut Entropy::from_number(1));
        let now = Time::from_secs(100);
        for number in 0..200_000u32 {
            let source = std::net::Ipv4Addr::from(number).to_string();
            assert!(let_in(&mut gate, &rates, &source, now));
        }
        assert_eq!(gate.young.len(), SOURCES);
        // One comes early, for the burst.
        assert!(let_in(&mut gate, &rates, "0.0.0.1", now));
        assert!(!let_in(&mut gate, &rates, "0.0.0.1", now));
        let later = now + GENERATION + GENERATION;
        assert!(let_in(&mut gate, &rates, SOURCE, later));
        assert!(let_in(&mut gate, &rates, SOURCE, later + GENERATION));
        assert_eq!(gate.young.len() + gate.old.len(), 2);
    }

    #[test]
    fn refusals_are_told_now_and_then_and_none_is_left_out() {
        let mut gate = Gate::new(&mut Entropy::from_number(1));
        let told: Vec<u64> = (0..250)
            .filter_map(|tenth| {
                let now = Time::from_secs(100) + Duration::from_millis(tenth * 100);
                gate.refuse(Place::Trunk(3), now)
            })
            .collect();
        assert_eq!(told, [1, 100, 100]);
    }
}
