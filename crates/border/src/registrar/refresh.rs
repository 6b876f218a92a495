//! REGISTERs that change nothing: a phone behind NAT sends one each half minute so that its flow stays open, and the core
//! wants to hear of it each half hour. Those between are answered here, from what the core granted. The same answers keep
//! the phones when the core is away.

use super::binding::Binding;
use super::{Answer, Location};
use crate::config::InterfaceId;
use core::time::Duration;
use engine::Time;
use sip::Flow;
use smallvec::SmallVec;
use wire::sip::{HeaderId, Message};

/// How long a core that is away is left in peace by one phone.
const AWAY: Duration = Duration::from_secs(60);

/// Why a REGISTER may be answered without the core.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The core's own answer is young enough.
    NotDue,
    /// The core did not answer, or not as a core that works.
    CoreAway,
}

impl Location {
    /// The answer to a REGISTER that repeats what the core has granted and that is not yet due there; `None` where it has to
    /// be passed on: for a new or changed contact, a removal, a question, a phone that moved.
    pub fn refresh(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        now: Time,
    ) -> Option<Answer> {
        self.answer_again(user, request, interface, flow, now, Why::NotDue)
    }

    /// The core is away: the answer to a REGISTER of a phone that it had taken before, so that the phone stays reachable;
    /// for a minute its further REGISTERs are answered as by [`Location::refresh`]. `None` for every other phone.
    pub fn survive(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        now: Time,
    ) -> Option<Answer> {
        self.answer_again(user, request, interface, flow, now, Why::CoreAway)
    }

    /// Whether this user is registered from just there.
    pub fn holds(&self, user: &str, flow: Flow) -> bool {
        self.bindings_of(user)
            .iter()
            .any(|binding| binding.flow == flow)
    }

    fn answer_again(
        &mut self,
        user: &str,
        request: &Message<'_>,
        interface: InterfaceId,
        flow: Flow,
        now: Time,
        why: Why,
    ) -> Option<Answer> {
        if self.settings.pass_every == 0 {
            return None;
        }
        let slot = self.slot(user)?;
        let judged = self.judge(request, flow).ok()?;
        if judged.star || judged.contacts.is_empty() {
            return None;
        }
        let record = self.records.get_mut(slot)?;
        let in_time = |binding: &Binding| {
            why == Why::CoreAway || (now < binding.core.due && now < binding.core.until)
        };
        // All is judged before anything is changed. Whoever repeats itself writes its address as it did before: what is
        // only equivalent goes on to the core.
        let mut places: SmallVec<[usize; 2]> = SmallVec::new();
        for wanted in &judged.contacts {
            let place = record
                .bindings
                .iter()
                .position(|b| b.is_repeated_by(wanted, &judged, interface, flow))?;
            let due = !record.bindings.get(place).is_some_and(in_time);
            if due || wanted.expires == 0 {
                return None;
            }
            places.push(place);
        }
        let mut answer = Answer {
            status: 200,
            ..Answer::default()
        };
        let mut outdated = false;
        for (wanted, place) in judged.contacts.iter().zip(places) {
            let binding = record.bindings.get_mut(place)?;
            binding.cseq = judged.cseq;
            outdated |= std::mem::replace(&mut binding.lifetime, wanted.expires) != wanted.expires;
            binding.until = now + Duration::from_secs(u64::from(wanted.expires));
            match why {
                // Never longer than the core has it.
                Why::NotDue => binding.until = binding.until.min(binding.core.until),
                Why::CoreAway => {
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
