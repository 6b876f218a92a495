//! Reliable provisional responses (RFC 3262), our side as server.

use crate::Endpoint;
use crate::api::{Ending, Flow, Indication, LegId, User};
use crate::timer::Timer;
use core::time::Duration;
use engine::Time;
use engine::timers::TimerKey;
use std::collections::VecDeque;
use wire::sip::{Message, Method};

/// Responses that may wait behind an unacknowledged one.
const MAX_HELD: usize = 8;

/// What is held back until PRACK has come.
#[derive(Debug)]
pub(crate) enum Held {
    /// A further reliable provisional response and its RSeq.
    Reliable(u32, Vec<u8>),
    /// The 2xx.
    Acceptance(Vec<u8>),
}

/// Reliable provisional responses of one INVITE that came.
#[derive(Debug, Default)]
pub(crate) struct Reliable {
    /// RSeq of the last one made; 0: none yet.
    pub(crate) rseq: u32,
    /// RSeq of the one that awaits PRACK; 0: none.
    pub(crate) waiting: u32,
    /// It.
    pub(crate) bytes: Vec<u8>,
    /// CSeq of the INVITE.
    pub(crate) cseq: u32,
    pub(crate) held: VecDeque<Held>,
    interval: Duration,
    next: Time,
    deadline: Time,
    pub(crate) timer: Option<TimerKey>,
}

impl Reliable {
    pub(crate) fn kept_bytes(&self) -> usize {
        let held = |held: &Held| match held {
            Held::Reliable(_, bytes) | Held::Acceptance(bytes) => bytes.len(),
        };
        self.bytes.len() + self.held.iter().map(held).sum::<usize>()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.held.len() >= MAX_HELD
    }
}

/// Responses whose PRACK is still welcome although their INVITE was refused, at most.
const MAX_LATE: usize = 1_024;

/// Reliable provisional responses that were unacknowledged when their INVITE was refused (section 3): PRACK is answered for
/// as long as it may be on its way.
#[derive(Debug, Default)]
pub(crate) struct Late {
    waiting: VecDeque<(Time, u64, u64)>,
}

impl Late {
    fn keep(&mut self, until: Time, name: u64, print: u64) {
        if self.waiting.len() >= MAX_LATE {
            self.waiting.pop_front();
        }
        self.waiting.push_back((until, name, print));
    }

    /// Whether this PRACK is waited for; no longer afterwards.
    fn take(&mut self, now: Time, name: u64, print: u64) -> bool {
        while self
            .waiting
            .front()
            .is_some_and(|(until, ..)| *until <= now)
        {
            self.waiting.pop_front();
        }
        let same = |waiting: &(Time, u64, u64)| (waiting.1, waiting.2) == (name, print);
        match self.waiting.iter().position(same) {
            Some(at) => self.waiting.remove(at).is_some(),
            None => false,
        }
    }
}

/// RSeq and CSeq of a response in one number.
fn both(rseq: u32, cseq: u32) -> u64 {
    u64::from(rseq) << 32 | u64::from(cseq)
}

impl Endpoint {
    /// A leg is given up whose reliable provisional response may still be acknowledged.
    pub(crate) fn keep_late(&mut self, leg: &crate::leg::Leg) {
        let Some(reliable) = leg.setup.as_ref().map(|setup| &setup.reliable) else {
            return;
        };
        if reliable.waiting != 0 {
            let print = both(reliable.waiting, reliable.cseq);
            let until = self.now + self.patience();
            // The cookie is secret, 64 bits wide and stands in the tag that the PRACK has to name.
            self.late.keep(until, leg.cookie, print);
        }
    }

    /// Whether a PRACK for a dialog that is gone acknowledges what was left unacknowledged when its INVITE was refused.
    pub(crate) fn is_late_prack(&mut self, tag: &[u8], request: &Message<'_>, now: Time) -> bool {
        let (Some((_, cookie)), Ok(rack)) = (crate::names::Name::decode(tag), request.rack())
        else {
            return false;
        };
        rack.cseq.method == Method::Invite
            && self
                .late
                .take(now, cookie, both(rack.rseq, rack.cseq.number))
    }

    fn reliable(&mut self, id: LegId) -> Option<&mut Reliable> {
        Some(&mut self.leg_mut(id)?.setup.as_mut()?.reliable)
    }

    /// Where the responses of a leg's first INVITE go.
    pub(crate) fn offered_flow(&self, id: LegId) -> Option<Flow> {
        let theirs = self.leg(id)?.theirs?;
        Some(self.server(theirs)?.active.as_ref()?.flow)
    }

    /// Sends a reliable provisional response and repeats it from T1 on, doubling, for 64*T1 (section 3).
    pub(crate) fn send_reliable(&mut self, id: LegId, rseq: u32, bytes: Vec<u8>, now: Time) {
        let Some(flow) = self.offered_flow(id) else {
            return;
        };
        let t1 = self.t1();
        let deadline = now + self.patience();
        let start = self.net.out.begin();
        self.net.out.arena.extend_from_slice(&bytes);
        // Lost like one on the way: it is repeated.
        let _ = self.transmit(&flow, start, now);
        let timer = self.wheel.schedule(now + t1, Timer::Unacked(id.slot));
        let old = self.reliable(id).and_then(|reliable| {
            reliable.waiting = rseq;
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

    /// The timer of an unacknowledged reliable provisional response.
    pub(crate) fn reliable_timer(&mut self, id: LegId, now: Time, user: &mut dyn User) {
        let Some(flow) = self.offered_flow(id) else {
            return;
        };
        let Some(reliable) = self.reliable(id) else {
            return;
        };
        reliable.timer = None;
        if reliable.waiting == 0 {
            return;
        }
        if now >= reliable.deadline {
            // Section 3: the INVITE is refused with a 5xx.
            self.refuse_offered(id, 500, now);
            self.end(id, Ending::NoPrack, None, now, user);
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
        // Lost like one on the way.
        let _ = self.transmit(&flow, start, now);
    }

    /// PRACK came: does it mean the response that waits (RAck: RSeq, CSeq, method; section 3)?
    pub(crate) fn rack_matches(&mut self, id: LegId, request: &Message<'_>) -> bool {
        let Ok(rack) = request.rack() else {
            return false;
        };
        let Some(cseq) = self
            .leg(id)
            .and_then(|leg| leg.theirs)
            .and_then(|theirs| self.server(theirs))
            .and_then(|server| server.active.as_ref())
            .map(|active| active.cseq)
        else {
            return false;
        };
        self.reliable(id).is_some_and(|reliable| {
            reliable.waiting != 0
                && rack.rseq == reliable.waiting
                && rack.cseq.number == cseq
                && rack.cseq.method == Method::Invite
        })
    }

    /// The waiting response is acknowledged: what was held may leave.
    pub(crate) fn pracked(&mut self, id: LegId, now: Time) {
        let Some(reliable) = self.reliable(id) else {
            return;
        };
        reliable.waiting = 0;
        reliable.bytes = Vec::new();
        let timer = reliable.timer.take();
        let next = reliable.held.pop_front();
        if let Some(timer) = timer {
            self.wheel.cancel(timer);
        }
        match next {
            Some(Held::Reliable(rseq, bytes)) => self.send_reliable(id, rseq, bytes, now),
            Some(Held::Acceptance(bytes)) => self.send_acceptance(id, bytes, now),
            None => {}
        }
    }

    /// Tells the user that a leg has ended, and forgets it.
    pub(crate) fn end(
        &mut self,
        id: LegId,
        why: Ending,
        message: Option<&Message<'_>>,
        now: Time,
        user: &mut dyn User,
    ) {
        if self.leg(id).is_none() {
            return;
        }
        let indication = Indication::Ended {
            leg: id,
            why,
            message,
        };
        user.indication(self, indication, now);
        self.close_leg(id);
    }
}
