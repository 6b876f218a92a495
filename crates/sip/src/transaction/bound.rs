//! What a source that is not known gets over UDP: at most twice the bytes of its requests. Whoever writes the address of another
//! into a datagram finds no amplifier then (RFC 3261 section 26.3.2.4).

use crate::Endpoint;
use crate::api::Content;
use crate::compose::{Lines, reason};
use engine::DropReason;
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message};

/// Headers of a refusal without which its client cannot go on.
const NEEDED: [HeaderId; 6] = [
    HeaderId::WwwAuthenticate,
    HeaderId::ProxyAuthenticate,
    HeaderId::RetryAfter,
    HeaderId::Unsupported,
    HeaderId::MinExpires,
    HeaderId::Contact,
];

/// Bytes that a refusal is longer than its request at most, as a rule: what a 100 leaves room for.
const REFUSAL: usize = 150;

impl Endpoint {
    fn bound_mut(&mut self, slot: u32) -> Option<&mut usize> {
        let server = self.servers.get_mut(slot as usize)?;
        server.active.as_mut()?.bound.as_mut()
    }

    /// The answers to the request of `slot` are bounded from now on.
    pub(crate) fn bound_answers(&mut self, slot: u32, request: &Message<'_>) {
        let active = self.servers.get_mut(slot as usize);
        if let Some(active) = active.and_then(|server| server.active.as_mut()) {
            active.bound = Some(request.bytes().len().saturating_mul(2));
        }
    }

    /// The user serves the request: its answers are no longer bounded.
    pub(crate) fn lift_bound(&mut self, slot: u32) {
        let active = self.servers.get_mut(slot as usize);
        if let Some(active) = active.and_then(|server| server.active.as_mut()) {
            active.bound = None;
        }
    }

    /// The request came again.
    pub(crate) fn widen_bound(&mut self, slot: u32, request: &Message<'_>) {
        let more = request.bytes().len().saturating_mul(2);
        if let Some(bound) = self.bound_mut(slot) {
            *bound = bound.saturating_add(more);
        }
    }

    /// Nothing more may be sent than what is composed since `start`.
    pub(crate) fn narrow_bound(&mut self, slot: u32, start: usize) {
        let length = self.net.out.composed(start).len();
        if let Some(bound) = self.bound_mut(slot) {
            *bound = length.min(*bound);
        }
    }

    /// Whether `bytes` may be sent; they are counted then.
    pub(crate) fn takes_of_bound(&mut self, slot: u32, bytes: usize) -> bool {
        let Some(bound) = self.bound_mut(slot) else {
            return true;
        };
        match bound.checked_sub(bytes) {
            Some(left) => {
                *bound = left;
                true
            }
            None => false,
        }
    }

    /// Whether `bytes` may be sent once more.
    pub(crate) fn takes_of_bound_again(&mut self, slot: u32, bytes: usize) -> bool {
        self.bound_mut(slot).is_none_or(|bound| *bound >= bytes)
    }

    /// Whether a 100 of `bytes` leaves room for a refusal of this request.
    pub(crate) fn has_room_for_trying(&mut self, slot: u32, bytes: usize) -> bool {
        let Some(&mut bound) = self.bound_mut(slot) else {
            return true;
        };
        bound >= bytes + bound / 2 + REFUSAL
    }

    /// Whether what is composed since `start` is more than the bound allows.
    pub(crate) fn exceeds_bound(&mut self, slot: u32, start: usize) -> bool {
        let length = self.net.out.composed(start).len();
        self.bound_mut(slot).is_some_and(|bound| length > *bound)
    }

    /// Composes a final response again, without the headers and the body that only inform. What is passed on keeps what its
    /// client needs to go on.
    pub(crate) fn shorten(&mut self, slot: u32, start: usize, status: u16, content: &Content<'_>) {
        let mut edits: SmallVec<[Edit<'_>; 4]> = SmallVec::from_slice(content.edits);
        if let Some(template) = content.template {
            for id in NEEDED {
                let values = template.all(id);
                edits.extend(values.map(|value| Edit::Add { id, value }));
            }
        }
        let content = &Content::default().with(&edits);
        let tag = self.response_tag(slot);
        if self
            .begin_response(slot, status, reason(status), false, tag)
            .is_none()
        {
            return;
        }
        let out = &mut self.net.out.arena;
        let mut lines = Lines { out };
        lines.content(content, &[]);
        self.write_body(content);
        if self.exceeds_bound(slot, start) {
            self.drops.count(DropReason::SipAnswerTooLarge);
        }
    }
}
