//! How calls end: by CANCEL, by BYE, by time, by us; and what is given back then.

use super::figures::Awaited;
use super::pass::Changes;
use super::{CallKey, Phase, Side, Sides};
use crate::anchor::CallMedia;
use crate::border::{Core, Outcome};
use engine::{Note, Time};
use sip::{Body, Content, Ending, Endpoint, LegId};
use wire::sip::{Edit, HeaderId, Message};

impl Core {
    /// The caller gave up before there was an answer; its leg is gone.
    pub(crate) fn cancelled(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        request: &Message<'_>,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.leg(Side::Caller) != Some(leg) {
            return self.join_cancelled(slot, leg, now);
        }
        *call.legs.get_mut(Side::Caller) = None;
        call.status = 487;
        self.came_to(slot, Outcome::Cancelled);
        let callee = self
            .calls
            .get(slot)
            .map(|call| *call.interfaces.get(Side::Callee));
        let hides = callee.is_some_and(|callee| self.config.hiding(callee).is_some());
        let mut hidden = Vec::new();
        let reason = request.header(HeaderId::Reason).filter(|reason| {
            crate::hiding::reason(reason, &mut hidden);
            !hides || !hidden.is_empty()
        });
        let reason = if hides {
            reason.map(|_| &*hidden)
        } else {
            reason
        };
        self.end_call(endpoint, slot, "caller", "cancelled", reason, now);
    }

    /// A leg that stood has ended.
    pub(crate) fn ended(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        why: Ending,
        message: Option<&Message<'_>>,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(side) = call.side_of(leg) else {
            return self.join_leg_ended(endpoint, slot, leg, now);
        };
        *call.legs.get_mut(side) = None;
        let mut trunk = None;
        if let Some(set_up) = call.set_up.as_deref_mut() {
            // It answered when nobody waited for that any more, else it would be none.
            let at = set_up.branches.iter().position(|branch| branch.leg == leg);
            let branch = at.map(|at| set_up.branches.remove(at));
            let hop = branch.and_then(|branch| set_up.hops.get(usize::from(branch.hop)));
            trunk = hop.and_then(|hop| hop.trunk);
        }
        if trunk.is_some() {
            self.trunk_call_ended(trunk);
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let text = match why {
            Ending::Peer => "bye",
            Ending::Us => "done",
            Ending::Unanswered => "bye not answered",
            Ending::NoAck => "no ack",
            Ending::NoPrack => "no prack",
            Ending::SessionExpired => "session expired",
            Ending::Unknown => "dialog unknown",
        };
        if call.phase == Phase::Ending {
            return self.finish_if_over(slot, now);
        }
        let by = match why {
            Ending::Peer | Ending::Unknown => side.name(),
            _ => "us",
        };
        if why == Ending::NoPrack {
            call.status = 500;
            self.came_to(slot, Outcome::Failed);
        }
        match message.filter(|_| why == Ending::Peer) {
            Some(bye) => self.pass_bye(endpoint, slot, side, bye, text, now),
            None => {
                let reason: Option<&[u8]> = match why {
                    Ending::NoAck => Some(b"SIP;cause=408;text=\"ACK missing\""),
                    Ending::SessionExpired => Some(b"SIP;cause=408;text=\"Session expired\""),
                    Ending::Unknown => Some(b"SIP;cause=481;text=\"Dialog unknown\""),
                    _ => None,
                };
                self.end_call(endpoint, slot, by, text, reason, now);
            }
        }
    }

    /// BYE with the headers of the other side's BYE (Reason, User-to-User and what else it has).
    fn pass_bye(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        from: Side,
        bye: &Message<'_>,
        why: &'static str,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let other = call.leg(from.other()).filter(|_| call.join.is_none());
        let ack_due = call.ack_due.take();
        if let Some(other) = other {
            if ack_due == Some(from.other()) {
                let _ = endpoint.ack(other, &Content::default(), now);
            }
            if let Some(call) = self.calls.get(slot) {
                let mut changes = Changes::default();
                let edits = self.pass_edits(endpoint, call, from, bye, None, &mut changes);
                let content = Self::passed(bye, &edits, Body::Template);
                if endpoint.bye(other, &content, now).is_err() {
                    let _ = endpoint.hang_up(other, &Content::default(), now);
                }
            }
        }
        self.close(endpoint, slot, from.name(), why, None, other, now);
    }

    /// Ends a call for want of something that it needs: the caller gets 503 where it has no answer yet.
    pub(crate) fn give_up(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        why: &'static str,
        reason: &[u8],
        now: Time,
    ) {
        if self
            .calls
            .get(slot)
            .is_some_and(|call| call.phase == Phase::SetUp)
        {
            self.reject_caller(endpoint, slot, 503, None, now);
        }
        self.end_call(endpoint, slot, "us", why, Some(reason), now);
    }

    /// Ends a call: every leg that is left is closed, media is given back.
    pub(crate) fn end_call(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        by: &'static str,
        why: &'static str,
        reason: Option<&[u8]>,
        now: Time,
    ) {
        self.close(endpoint, slot, by, why, reason, None, now);
    }

    #[allow(clippy::too_many_arguments)]
    fn close(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        by: &'static str,
        why: &'static str,
        reason: Option<&[u8]>,
        closed: Option<LegId>,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        call.phase = Phase::Ending;
        if call.end.is_none() {
            call.end = Some((by, why));
        }
        let edit = reason.map(|value| {
            [Edit::Add {
                id: HeaderId::Reason,
                value,
            }]
        });
        let edits: &[Edit<'_>] = edit.as_ref().map_or(&[], |edit| edit);
        let content = Content::default().with(edits);
        let ack_due = call.ack_due.take();
        let legs = Side::BOTH.map(|side| (side, call.leg(side)));
        let mut branches = Vec::new();
        if let Some(set_up) = call.set_up.as_deref_mut() {
            set_up.next = set_up.hops.len();
            set_up.locating = 0;
            set_up.opening.clear();
            for timer in [set_up.ring_timer.take(), set_up.answer_timer.take()]
                .into_iter()
                .flatten()
            {
                self.timers.cancel(timer);
            }
            for branch in &mut set_up.branches {
                if !branch.cancelled {
                    branch.cancelled = true;
                    branches.push(branch.leg);
                }
            }
        }
        let asked = std::mem::take(&mut call.links).into_iter();
        let held = call.held.take().map(|held| held.server);
        let early = call.early_request.take().map(|early| early.server);
        let seat = call
            .seat
            .as_deref_mut()
            .and_then(|seat| seat.give_up_waiting());
        for server in asked
            .map(|link| link.server)
            .chain(held)
            .chain(early)
            .chain(seat)
        {
            // Whoever asked something of a call that ends is told so.
            let _ = endpoint.respond(server, 487, &Content::default(), now);
        }
        for leg in branches {
            let _ = endpoint.cancel(leg, &content, now);
        }
        for (side, leg) in legs {
            let Some(leg) = leg.filter(|leg| Some(*leg) != closed) else {
                continue;
            };
            if ack_due == Some(side) {
                let _ = endpoint.ack(leg, &Content::default(), now);
            }
            // A word about why may be what cannot be written; the end itself can.
            let over = endpoint
                .hang_up(leg, &content, now)
                .or_else(|_| endpoint.hang_up(leg, &Content::default(), now));
            if over.is_err() {
                self.forget_leg(slot, side);
            } else if endpoint.state_of(leg).is_none() {
                // A leg that was only offered is gone at once; no `Ended` follows.
                self.forget_leg(slot, side);
            }
        }
        self.close_join(endpoint, slot, now);
        self.release_media(slot, now);
        self.finish_if_over(slot, now);
    }

    fn forget_leg(&mut self, slot: usize, side: Side) {
        if let Some(call) = self.calls.get_mut(slot) {
            *call.legs.get_mut(side) = None;
        }
    }

    /// The call has ended: ports and session go back, and its end is told; once.
    fn release_media(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call.end_told {
            return;
        }
        let media = call.media.as_deref();
        let mut awaited = match media.is_some_and(CallMedia::is_added) {
            true => Awaited::Forwarder,
            false => Awaited::Nothing,
        };
        let encodings = media.map(CallMedia::encodings).unwrap_or_default();
        let (answered, status) = (call.answered_at.is_some(), call.status);
        if call.seat.is_some() && !answered && status == 0 {
            call.status = 487;
        }
        if call.relay.is_some() {
            awaited = Awaited::Node;
        }
        self.tell_ended(slot, awaited, encodings, now);
        self.leave_room(slot);
        if !self.release_relay(slot) && awaited == Awaited::Node {
            let number = self.calls.get(slot).map_or(0, |call| call.number);
            self.ended_at_node(number, Default::default(), now);
        }
        if let Some(media) = self.calls.get_mut(slot).and_then(|call| call.media.take()) {
            if let Some(timer) = media.wake_timer {
                self.timers.cancel(timer);
            }
            media.release(&mut self.plane);
        }
    }

    /// The call has come to this; only the first that is said of it counts.
    pub(crate) fn came_to(&mut self, slot: usize, outcome: Outcome) {
        if let Some(call) = self.calls.get_mut(slot)
            && !std::mem::replace(&mut call.counted, true)
        {
            self.counters.count(outcome);
        }
    }

    /// Takes the call out of the table where every leg is gone.
    pub(crate) fn finish_if_over(&mut self, slot: usize, now: Time) {
        let over = self
            .calls
            .get(slot)
            .is_some_and(|call| call.phase == Phase::Ending && call.is_over());
        if !over {
            return;
        }
        self.release_media(slot, now);
        let status = self.calls.get(slot).map_or(0, |call| call.status);
        self.came_to(slot, Outcome::of(status));
        let Some(call) = self.calls.try_remove(slot) else {
            return;
        };
        self.give_cost_back(&call.bill);
        if let Some(trunk) = *call.trunks.get(Side::Callee)
            && call.answered_at.is_some()
        {
            self.trunk_call_ended(Some(trunk));
        }
        self.trunk_call_ended(*call.trunks.get(Side::Caller));
        self.after_call(now);
    }

    /// Takes a call that we have ended out of the table, whoever has not answered that.
    pub(crate) fn abandon_call(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        self.close_join(endpoint, slot, now);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let mut legs: Vec<LegId> = Side::BOTH
            .iter()
            .filter_map(|&side| call.leg(side))
            .collect();
        call.legs = Sides::default();
        call.phase = Phase::Ending;
        let mut trunks = Vec::new();
        if let Some(set_up) = call.set_up.take() {
            for branch in &set_up.branches {
                legs.push(branch.leg);
                trunks.extend(
                    set_up
                        .hops
                        .get(usize::from(branch.hop))
                        .map(|hop| hop.trunk),
                );
            }
        }
        for trunk in trunks {
            self.trunk_call_ended(trunk);
        }
        for leg in legs {
            endpoint.abandon(leg, now);
        }
        self.finish_if_over(slot, now);
    }

    /// Nothing came on the media ports of a call for too long.
    pub(crate) fn media_timed_out(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(slot) = self.slot_of(key) else {
            return;
        };
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        if call.phase != Phase::Confirmed && call.phase != Phase::Answered {
            return;
        }
        let number = call.number;
        self.counters.media_timeouts += 1;
        self.events
            .tell(now, || Note::MediaTimeout { call: number });
        let reason = b"SIP;cause=408;text=\"No media\"";
        self.end_call(endpoint, slot, "us", "media timeout", Some(reason), now);
    }
}
