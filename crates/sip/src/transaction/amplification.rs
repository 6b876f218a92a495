//! Amplification limit: an untrusted source gets at most twice the bytes of its requests over UDP, so that a forged
//! source address gives no amplification (RFC 3261 section 26.3.2.4).

use crate::Endpoint;
use crate::api::MessageContent;
use crate::compose::{Lines, reason};
use engine::DropReason;
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message};

/// Headers of a refusal that its client needs to continue.
const NEEDED: [HeaderId; 6] = [
    HeaderId::WwwAuthenticate,
    HeaderId::ProxyAuthenticate,
    HeaderId::RetryAfter,
    HeaderId::Unsupported,
    HeaderId::MinExpires,
    HeaderId::Contact,
];

/// Largest usual difference between the sizes of a refusal and its request, in bytes. A 100 must leave room for it.
const REFUSAL: usize = 150;

/// Headers of a stateless response, its reason phrase, and its Server header.
type StatelessContent<'a> = (&'a [(HeaderId, &'a [u8])], &'a [u8], &'a [u8]);

/// Contents of a stateless response, from the full one to the shortest. Parts are omitted in this order: Server, reason
/// phrase, headers from the last to the second.
pub(crate) fn shrinking<'a>(
    edits: &'a [(HeaderId, &'a [u8])],
    status: u16,
    phrase: &'a [u8],
    agent: &'a [u8],
) -> impl Iterator<Item = StatelessContent<'a>> {
    let none: &[u8] = b"";
    let usual: &[u8] = reason(status);
    let least = edits.len().min(1);
    let fewer = (least..edits.len()).rev();
    let shorter = fewer.filter_map(move |count| Some((edits.get(..count)?, usual, none)));
    let full = [(edits, phrase, agent), (edits, usual, none)];
    full.into_iter().chain(shorter)
}

impl Endpoint {
    /// Counts a response from which challenges were omitted.
    pub(crate) fn count_omitted(&mut self, omitted: &[(HeaderId, &[u8])]) {
        let is_challenge =
            |id: HeaderId| matches!(id, HeaderId::WwwAuthenticate | HeaderId::ProxyAuthenticate);
        if omitted.iter().any(|(id, _)| is_challenge(*id)) {
            self.drops.count(DropReason::SipChallengeOmitted);
        }
    }

    fn bound_mut(&mut self, slot: u32) -> Option<&mut usize> {
        let server = self.servers.get_mut(slot as usize)?;
        server.active.as_mut()?.bound.as_mut()
    }

    /// Limits the responses to the request of `slot` from now on.
    pub(crate) fn bound_responses(&mut self, slot: u32, request: &Message<'_>) {
        let active = self.servers.get_mut(slot as usize);
        if let Some(active) = active.and_then(|server| server.active.as_mut()) {
            active.bound = Some(request.bytes().len().saturating_mul(2));
        }
    }

    /// Lifts the limit: the handler serves the request.
    pub(crate) fn lift_bound(&mut self, slot: u32) {
        let active = self.servers.get_mut(slot as usize);
        if let Some(active) = active.and_then(|server| server.active.as_mut()) {
            active.bound = None;
        }
    }

    /// Raises the limit after a retransmission of the request.
    pub(crate) fn widen_bound(&mut self, slot: u32, request: &Message<'_>) {
        let more = request.bytes().len().saturating_mul(2);
        if let Some(bound) = self.bound_mut(slot) {
            *bound = bound.saturating_add(more);
        }
    }

    /// Lowers the limit to the response composed since `start`.
    pub(crate) fn narrow_bound(&mut self, slot: u32, start: usize) {
        let length = self.net.out.composed(start).len();
        if let Some(bound) = self.bound_mut(slot) {
            *bound = length.min(*bound);
        }
    }

    /// Whether `bytes` may be sent. They are then subtracted from the limit.
    pub(crate) fn consume_bound(&mut self, slot: u32, bytes: usize) -> bool {
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
    pub(crate) fn fits_bound(&mut self, slot: u32, bytes: usize) -> bool {
        self.bound_mut(slot).is_none_or(|bound| *bound >= bytes)
    }

    /// Whether a 100 of `bytes` leaves room for a refusal of this request.
    pub(crate) fn trying_fits_bound(&mut self, slot: u32, bytes: usize) -> bool {
        let Some(&mut bound) = self.bound_mut(slot) else {
            return true;
        };
        bound >= bytes + bound / 2 + REFUSAL
    }

    /// Whether the response composed since `start` exceeds the limit.
    pub(crate) fn exceeds_bound(&mut self, slot: u32, start: usize) -> bool {
        let length = self.net.out.composed(start).len();
        self.bound_mut(slot).is_some_and(|bound| length > *bound)
    }

    /// Composes a final response again without body and informational headers. A forwarded response keeps the headers
    /// that its client needs to continue.
    pub(crate) fn shorten(
        &mut self,
        slot: u32,
        start: usize,
        status: u16,
        content: &MessageContent<'_>,
    ) {
        let mut edits: SmallVec<[Edit<'_>; 4]> = SmallVec::from_slice(content.edits);
        if let Some(template) = content.template {
            for id in NEEDED {
                let values = template.all(id);
                edits.extend(values.map(|value| Edit::Add { id, value }));
            }
        }
        let content = &MessageContent::default().with(&edits);
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
