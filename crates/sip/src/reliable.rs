//! Reliable provisional responses (RFC 3262), as server.

use crate::Endpoint;
use crate::api::{Ending, Flow, Handler, Indication, LegId};
use crate::timer::Timer;
use core::time::Duration;
use engine::Time;
use engine::timers::TimerKey;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use wire::sip::{Message, Method};

/// Responses that wait for the PRACK of an earlier one, at most.
const MAX_QUEUED: usize = 8;

/// A response that waits for PRACK of an earlier one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum QueuedResponse {
    /// A reliable provisional response and its RSeq.
    Reliable(u32, Vec<u8>),
    /// The 2xx.
    Success(Vec<u8>),
}

/// Reliable provisional responses of one received INVITE.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reliable {
    /// RSeq of the last one composed; 0: none.
    pub(crate) rseq: u32,
    /// RSeq of the one without PRACK; 0: none.
    pub(crate) unacknowledged: u32,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// CSeq of the INVITE.
    pub(crate) cseq: u32,
    pub(crate) queue: VecDeque<QueuedResponse>,
    interval: Duration,
    next: Time,
    deadline: Time,
    pub(crate) timer: Option<TimerKey>,
}

impl Reliable {
    pub(crate) fn kept_bytes(&self) -> usize {
        let length = |held: &QueuedResponse| match held {
            QueuedResponse::Reliable(_, bytes) | QueuedResponse::Success(bytes) => bytes.len(),
        };
        self.bytes.len() + self.queue.iter().map(length).sum::<usize>()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= MAX_QUEUED
    }
}

/// Entries of [`LatePracks`], at most.
const MAX_LATE: usize = 1_024;

/// Reliable provisional responses without PRACK whose INVITE was refused (section 3): a PRACK that is still on its way
/// is answered.
#[derive(Debug, Default)]
pub(crate) struct LatePracks {
    waiting: VecDeque<(Time, u64, u64)>,
}

impl LatePracks {
    fn keep(&mut self, until: Time, name: u64, fingerprint: u64) {
        if self.waiting.len() >= MAX_LATE {
            self.waiting.pop_front();
        }
        self.waiting.push_back((until, name, fingerprint));
    }

    /// Whether this PRACK matches an entry, which is then removed.
    fn take(&mut self, now: Time, name: u64, fingerprint: u64) -> bool {
        while self
            .waiting
            .front()
            .is_some_and(|(until, ..)| *until <= now)
        {
            self.waiting.pop_front();
        }
        let same = |waiting: &(Time, u64, u64)| (waiting.1, waiting.2) == (name, fingerprint);
        match self.waiting.iter().position(same) {
            Some(at) => self.waiting.remove(at).is_some(),
            None => false,
        }
    }
}

/// RSeq and CSeq in one number.
fn rseq_and_cseq(rseq: u32, cseq: u32) -> u64 {
    u64::from(rseq) << 32 | u64::from(cseq)
}

impl Endpoint {
    /// Stores the unacknowledged reliable provisional response of a leg that is removed.
    pub(crate) fn remember_unacknowledged(&mut self, leg: &crate::leg::Leg) {
        let Some(reliable) = leg.setup.as_ref().map(|setup| &setup.reliable) else {
            return;
        };
        if reliable.unacknowledged != 0 {
            let fingerprint = rseq_and_cseq(reliable.unacknowledged, reliable.cseq);
            let until = self.now + self.transaction_timeout();
            // The cookie is secret, has 64 bits and is in the tag that the PRACK carries.
            self.late_pracks.keep(until, leg.cookie, fingerprint);
        }
    }

    /// Whether a PRACK for a removed dialog acknowledges a response whose INVITE was refused.
    pub(crate) fn accept_late_prack(&mut self, tag: &[u8], request: &Message<'_>) -> bool {
        let now = self.now;
        let (Some((_, cookie)), Ok(rack)) = (crate::tokens::IdToken::decode(tag), request.rack())
        else {
            return false;
        };
        rack.cseq.method == Method::Invite
            && self
                .late_pracks
                .take(now, cookie, rseq_and_cseq(rack.rseq, rack.cseq.number))
    }

    fn reliable(&mut self, id: LegId) -> Option<&mut Reliable> {
        Some(&mut self.leg_mut(id)?.setup.as_mut()?.reliable)
    }

    /// Destination of responses to a leg's first INVITE.
    pub(crate) fn offered_flow(&self, id: LegId) -> Option<Flow> {
        let peer_invite = self.leg(id)?.pending.peer_invite?;
        Some(self.server(peer_invite)?.active.as_ref()?.flow)
    }

    /// Sends a reliable provisional response and retransmits it after T1, doubling, for 64*T1 (section 3).
    pub(crate) fn send_reliable(&mut self, id: LegId, rseq: u32, bytes: Vec<u8>) {
        let now = self.now;
        let Some(flow) = self.offered_flow(id) else {
            return;
        };
        let t1 = self.t1();
        let deadline = now + self.transaction_timeout();
        let start = self.net.out.begin();
        self.net.out.arena.extend_from_slice(&bytes);
        // A failure to send is like a loss in the network: it is retransmitted.
        let _ = self.transmit(&flow, start);
        let timer = self.wheel.schedule(now + t1, Timer::Unacked(id.slot));
        let old = self.reliable(id).and_then(|reliable| {
            reliable.unacknowledged = rseq;
            reliable.bytes = bytes;
            reliable.interval = t1;
            reliable.next = now + t1;
            reliable.deadline = deadline;
            reliable.timer.replace(timer)
        });
        if let Some(old) = old {
            self.wheel.cancel(old);
        }
    }

    /// Timer of a reliable provisional response without PRACK.
    pub(crate) fn reliable_timer(&mut self, id: LegId, handler: &mut dyn Handler) {
        let now = self.now;
        let Some(flow) = self.offered_flow(id) else {
            return;
        };
        let Some(reliable) = self.reliable(id) else {
            return;
        };
        reliable.timer = None;
        if reliable.unacknowledged == 0 {
            return;
        }
        if now >= reliable.deadline {
            // Section 3: the INVITE is refused with a 5xx.
            self.refuse_offered(id, 500);
            self.end_leg(id, Ending::NoPrack, None, handler);
            return;
        }
        reliable.interval *= 2;
        reliable.next += reliable.interval;
        let at = reliable.next.min(reliable.deadline);
        let start = self.net.out.begin();
        if let Some(reliable) = self
            .legs
            .get_mut(id.slot as usize)
            .and_then(|leg| leg.setup.as_mut())
            .map(|setup| &mut setup.reliable)
        {
            self.net.out.arena.extend_from_slice(&reliable.bytes);
            reliable.timer = Some(self.wheel.schedule(at, Timer::Unacked(id.slot)));
        }
        // A failure to send is like a loss in the network.
        let _ = self.transmit(&flow, start);
    }

    /// Whether a PRACK matches the unacknowledged response (RAck: RSeq, CSeq, method; section 3).
    pub(crate) fn rack_matches(&mut self, id: LegId, request: &Message<'_>) -> bool {
        let Ok(rack) = request.rack() else {
            return false;
        };
        let Some(cseq) = self
            .leg(id)
            .and_then(|leg| leg.pending.peer_invite)
            .and_then(|peer_invite| self.server(peer_invite))
            .and_then(|server| server.active.as_ref())
            .map(|active| active.cseq)
        else {
            return false;
        };
        self.reliable(id).is_some_and(|reliable| {
            reliable.unacknowledged != 0
                && rack.rseq == reliable.unacknowledged
                && rack.cseq.number == cseq
                && rack.cseq.method == Method::Invite
        })
    }

    /// PRACK for the unacknowledged response was received: sends the next queued response.
    pub(crate) fn on_pracked(&mut self, id: LegId) {
        let Some(reliable) = self.reliable(id) else {
            return;
        };
        reliable.unacknowledged = 0;
        reliable.bytes = Vec::new();
        let timer = reliable.timer.take();
        let next = reliable.queue.pop_front();
        if let Some(timer) = timer {
            self.wheel.cancel(timer);
        }
        match next {
            Some(QueuedResponse::Reliable(rseq, bytes)) => self.send_reliable(id, rseq, bytes),
            Some(QueuedResponse::Success(bytes)) => self.send_2xx(id, bytes),
            None => {}
        }
    }

    /// Indicates the end of a leg and removes it.
    pub(crate) fn end_leg(
        &mut self,
        id: LegId,
        reason: Ending,
        message: Option<&Message<'_>>,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        if self.leg(id).is_none() {
            return;
        }
        let indication = Indication::Ended {
            leg: id,
            reason,
            message,
        };
        handler.on_indication(self, indication, now);
        self.close_leg(id);
    }
}
