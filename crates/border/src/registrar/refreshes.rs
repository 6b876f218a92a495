//! REGISTERs without changes. A phone behind NAT sends one every half minute to keep its flow open, and the core needs
//! one every half hour; those in between are answered here from the state granted by the core. The same responses keep
//! phones registered while the core is unreachable.

use super::binding::Binding;
use super::{Location, RegisterResponse};
use core::time::Duration;
use engine::Time;
use sip::Flow;
use smallvec::SmallVec;
use std::net::IpAddr;
use wire::sip::{HeaderId, Message};

/// Time for which REGISTERs of a phone are answered here after the core was unreachable.
const AWAY: Duration = Duration::from_secs(60);

/// Reason for answering a REGISTER without the core.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocalAnswerReason {
    /// The state granted by the core is recent enough.
    NotDue,
    /// The core did not respond, or failed.
    CoreAway,
}

impl Location {
    /// The response to a REGISTER that repeats bindings granted by the core and is not due there; `None` if it must be
    /// forwarded: a new or changed contact, a removal, a query, a phone that moved.
    pub fn refresh(
        &mut self,
        user: &str,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Option<RegisterResponse> {
        self.answer_again(user, request, flow, now, LocalAnswerReason::NotDue)
    }

    /// The core is unreachable: the response to a REGISTER of a phone that the core has accepted before, so that the
    /// phone stays reachable. For a minute, its further REGISTERs are answered by [`Location::refresh`]. `None` for
    /// other phones.
    pub fn survive(
        &mut self,
        user: &str,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Option<RegisterResponse> {
        self.answer_again(user, request, flow, now, LocalAnswerReason::CoreAway)
    }

    /// Whether this user is registered on this flow.
    pub fn holds(&self, user: &str, flow: Flow) -> bool {
        self.bindings_of(user)
            .iter()
            .any(|binding| binding.flow == flow)
    }

    /// Whether this user is registered from this host.
    pub fn knows_host(&self, user: &str, host: IpAddr) -> bool {
        self.bindings_of(user)
            .iter()
            .any(|binding| binding.flow.remote.ip() == host)
    }

    fn answer_again(
        &mut self,
        user: &str,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
        why: LocalAnswerReason,
    ) -> Option<RegisterResponse> {
        if self.settings.refresh_interval_s == 0 {
            return None;
        }
        let slot = self.slot(user)?;
        let judged = self.validate_forwarded(request, flow).ok()?;
        if judged.star || judged.contacts.is_empty() {
            return None;
        }
        let record = self.records.get_mut(slot)?;
        let in_time = |binding: &Binding| {
            why == LocalAnswerReason::CoreAway
                || (now < binding.core.due && now < binding.core.until)
        };
        // Everything is validated before anything changes. A repetition has identical text: an equivalent address is
        // forwarded to the core.
        let mut places: SmallVec<[usize; 2]> = SmallVec::new();
        for wanted in &judged.contacts {
            let place = record
                .bindings
                .iter()
                .position(|b| b.is_repeated_by(wanted, &judged, flow))?;
            let due = !record.bindings.get(place).is_some_and(in_time);
            if due || wanted.expires == 0 {
                return None;
            }
            places.push(place);
        }
        let mut answer = RegisterResponse {
            status: 200,
            ..RegisterResponse::default()
        };
        let mut outdated = false;
        for (wanted, place) in judged.contacts.iter().zip(places) {
            let binding = record.bindings.get_mut(place)?;
            binding.cseq = judged.cseq;
            outdated |= std::mem::replace(&mut binding.lifetime, wanted.expires) != wanted.expires;
            binding.until = now + Duration::from_secs(u64::from(wanted.expires));
            match why {
                // Never longer than at the core.
                LocalAnswerReason::NotDue => binding.until = binding.until.min(binding.core.until),
                LocalAnswerReason::CoreAway => {
                    binding.core.due = now + AWAY;
                    binding.core.until = binding.core.until.max(now + AWAY).max(binding.until);
                }
            }
            outdated |= binding.has_moved();
            let contact = binding.listed_as_given(now);
            answer.headers.push((HeaderId::Contact, contact));
        }
        let given = record.bindings.iter().find_map(|b| b.core.given.as_ref());
        if let Some(given) = given {
            answer.headers.extend(given.headers.iter().cloned());
        }
        for path in request.all(HeaderId::Path) {
            answer.headers.push((HeaderId::Path, path.to_vec()));
        }
        self.schedule_at(slot);
        if outdated {
            self.mark(slot);
        }
        Some(answer)
    }
}
