//! Ends of calls: by CANCEL, BYE, timeout or the border; and release of their resources.

use crate::bodies::body_of;
use crate::calls::ended::{EndedBy, StatisticsSource};
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::relay::{Forwarded, HeaderChanges, body_without_sdp};
use crate::calls::transfer::TransferControl;
use crate::calls::{Call, CallStage, Sides};
use crate::components::Calls;
use crate::counters::{BorderCounters, CallOutcome};
use crate::headers::append_value;
use crate::request::RequestRefusal;
use crate::responses::{StatusLine, warning_of};
use crate::rules::apply::RuledAnswer;
use crate::shared::Alarm;
use ::rules::Effects;
use anchor::{CallMedia, Side};
use core::time::Duration;
use engine::{EventKind, Reason};
use sip::{Body, Ending, Endpoint, Flow, LegId, MessageContent};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message};

/// Time for peers to answer the BYE at the end of a drain; a BYE is sent three times in it.
pub(crate) const BYE_TIMEOUT: Duration = Duration::from_secs(2);

/// Values of Reason in a CANCEL that are forwarded, at most.
const MAX_REASONS: usize = 8;

impl Calls<'_> {
    /// The caller has cancelled an unanswered call; its leg is gone.
    pub(crate) fn cancelled(&mut self, slot: CallSlot, leg: LegId, request: &Message<'_>) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if call.leg(Side::Caller) != Some(leg) {
            return TransferControl::new(self).transfer_cancelled(slot, leg);
        }
        *call.legs.get_mut(Side::Caller) = None;
        call.summary.status = 487;
        call.count_outcome(&mut self.parts.ctx.counters, CallOutcome::Cancelled);
        let callee = self
            .parts
            .calls
            .get(slot)
            .map(|call| *call.interfaces.get(Side::Callee));
        let hiding = callee.and_then(|callee| self.parts.ctx.config.hiding(callee));
        let hides = hiding.is_some_and(|passes| {
            !crate::hiding::is_listed(passes, HeaderId::Reason.name().as_bytes())
        });
        // One for each protocol (RFC 3326 section 2), in one field or in several.
        let mut reason = Vec::new();
        for value in request.values(HeaderId::Reason).take(MAX_REASONS) {
            match hides {
                true => crate::hiding::reason(value, &mut reason),
                false => append_value(value, &mut reason),
            }
        }
        let reason = (!reason.is_empty()).then_some(&*reason);
        let by = EndedBy::Side(Side::Caller);
        self.end_call(slot, by, Reason::Cancelled, reason);
    }

    /// An established leg has ended.
    pub(crate) fn ended(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        why: Ending,
        message: Option<&Message<'_>>,
    ) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if call.has_branch(leg) {
            return self.branch_ended(slot, leg);
        }
        let Some(side) = call.side_of(leg) else {
            return;
        };
        *call.legs.get_mut(side) = None;
        let cause = match why {
            Ending::Peer => Reason::Bye,
            Ending::Local => Reason::Done,
            Ending::Unanswered => Reason::ByeNotAnswered,
            Ending::NoAck => Reason::NoAck,
            Ending::NoPrack => Reason::NoPrack,
            Ending::SessionExpired => Reason::SessionExpired,
            Ending::UnknownDialog => Reason::DialogUnknown,
        };
        if call.stage == CallStage::ExpectLegsClosed {
            return self.finish_if_over(slot);
        }
        // The REFER was accepted: its subscription outlives the INVITE usage of its dialog (RFC 5057 section 4), and
        // the other side gets its new party.
        if why == Ending::Peer && call.is_referred_by(leg) && call.leg(side.other()).is_some() {
            return;
        }
        let by = match why {
            Ending::Peer | Ending::UnknownDialog => EndedBy::Side(side),
            _ => EndedBy::Border,
        };
        if why == Ending::NoPrack {
            call.summary.status = 500;
            call.count_outcome(&mut self.parts.ctx.counters, CallOutcome::Failed);
        }
        match message.filter(|_| why == Ending::Peer) {
            Some(bye) => self.pass_bye(slot, side, bye),
            None => self.end_call(slot, by, cause, cause.header()),
        }
    }

    /// A branch has ended that was answered after the call had given it up. Its dialog is not that of the callee, which
    /// continues (RFC 3261 section 13.2.2.4).
    fn branch_ended(&mut self, slot: CallSlot, leg: LegId) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let Some(set_up) = call.kind.set_up_mut() else {
            return;
        };
        let Some(at) = set_up.branches.iter().position(|branch| branch.leg == leg) else {
            return;
        };
        let branch = set_up.branches.remove(at);
        let hop = set_up.hops.get(usize::from(branch.hop));
        let trunk = hop.and_then(|hop| hop.trunk);
        if call.stage == CallStage::ExpectBye {
            call.free_set_up();
        }
        self.parts.trunks.end_call(trunk);
        match self.parts.calls.get(slot).map(|call| call.stage) {
            // Other hops may be left.
            Some(CallStage::ExpectAnswer) => self.call_next_hops(slot),
            _ => self.finish_if_over(slot),
        }
    }

    /// Forwards BYE with the headers of the received one (Reason, User-to-User and others).
    fn pass_bye(&mut self, slot: CallSlot, from: Side, bye: &Message<'_>) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let other = call
            .leg(from.other())
            .filter(|_| call.kind.join().is_none());
        let ack_due = call.requests.ack.due.take();
        if let Some(other) = other {
            if ack_due == Some(from.other()) {
                let _ = self.endpoint.ack(other, &MessageContent::default(), now);
            }
            if let Some(call) = self.parts.calls.get(slot) {
                let mut changes = HeaderChanges::default();
                let edits = self.pass_edits(call, from, bye, &mut changes);
                let content = Self::passed(bye, &edits, Body::Template);
                if self.endpoint.bye(other, &content, now).is_err() {
                    let _ = self
                        .endpoint
                        .hang_up(other, &MessageContent::default(), now);
                }
            }
        }
        self.close(slot, (EndedBy::Side(from), Reason::Bye), None, other);
    }

    /// Ends a call for lack of a resource: an unanswered caller gets 503.
    pub(crate) fn give_up(&mut self, slot: CallSlot, why: Reason) {
        if self
            .parts
            .calls
            .get(slot)
            .is_some_and(|call| call.stage == CallStage::ExpectAnswer)
        {
            self.reject_caller(slot, 503, None);
        }
        self.end_by_border(slot, why);
    }

    /// Ends a call: closes its remaining legs and releases its media.
    pub(crate) fn end_call(
        &mut self,
        slot: CallSlot,
        by: EndedBy,
        why: Reason,
        reason: Option<&[u8]>,
    ) {
        self.close(slot, (by, why), reason, None);
    }

    /// Ends a call by a decision of the border, with the Reason header of `why`.
    pub(crate) fn end_by_border(&mut self, slot: CallSlot, why: Reason) {
        self.end_call(slot, EndedBy::Border, why, why.header());
    }

    fn close(
        &mut self,
        slot: CallSlot,
        end: (EndedBy, Reason),
        reason: Option<&[u8]>,
        closed: Option<LegId>,
    ) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        call.stage = CallStage::ExpectLegsClosed;
        if call.summary.end.is_none() {
            call.summary.end = Some(end);
        }
        let edit = reason.map(|value| {
            [Edit::Add {
                id: HeaderId::Reason,
                value,
            }]
        });
        let edits: &[Edit<'_>] = edit.as_ref().map_or(&[], |edit| edit);
        let content = MessageContent::default().with(edits);
        let ack_due = call.requests.ack.due.take();
        let legs = Side::BOTH.map(|side| (side, call.leg(side)));
        let mut branches = Vec::new();
        if let Some(set_up) = call.kind.set_up_mut() {
            set_up.next = set_up.hops.len();
            set_up.locating = 0;
            set_up.opening.clear();
            set_up.timers.cancel(&mut self.parts.ctx.timers);
            for branch in &mut set_up.branches {
                if !branch.cancelled {
                    branch.cancelled = true;
                    branches.push(branch.leg);
                }
            }
        }
        let asked = std::mem::take(&mut call.requests.links).into_iter();
        let held = call.requests.held.take().map(|held| held.server);
        let early = call.requests.ack.request.take().map(|early| early.server);
        let participant = call
            .kind
            .participant_mut()
            .and_then(|participant| participant.take_pending_transaction());
        for server in asked
            .map(|link| link.server)
            .chain(held)
            .chain(early)
            .chain(participant)
        {
            // Pending requests of an ending call are answered.
            let _ = self
                .endpoint
                .respond(server, 487, &MessageContent::default(), now);
        }
        for leg in branches {
            let _ = self.endpoint.cancel(leg, &content, now);
        }
        for (side, leg) in legs {
            let Some(leg) = leg.filter(|leg| Some(*leg) != closed) else {
                continue;
            };
            if ack_due == Some(side) {
                let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
            }
            // The reason may be too large for the message; the end itself must be sent.
            let over = self
                .endpoint
                .hang_up(leg, &content, now)
                .or_else(|_| self.endpoint.hang_up(leg, &MessageContent::default(), now));
            // An unanswered incoming leg is gone at once; no `Ended` follows.
            let is_gone = over.is_err() || self.endpoint.state_of(leg).is_none();
            if let Some(call) = self.parts.calls.get_mut(slot).filter(|_| is_gone) {
                *call.legs.get_mut(side) = None;
            }
        }
        TransferControl::new(self).close_transfer(slot);
        self.release_media(slot);
        self.finish_if_over(slot);
    }

    /// Removes a call that we have ended, without waiting for responses.
    pub(crate) fn abandon_call(&mut self, slot: CallSlot) {
        let now = self.parts.ctx.now;
        TransferControl::new(self).close_transfer(slot);
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let mut legs: Vec<LegId> = Side::BOTH
            .iter()
            .filter_map(|&side| call.leg(side))
            .collect();
        call.legs = Sides::default();
        call.stage = CallStage::ExpectLegsClosed;
        let mut trunks = Vec::new();
        if let Some(set_up) = call.kind.take_set_up() {
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
            self.parts.trunks.end_call(trunk);
        }
        for leg in legs {
            self.endpoint.abandon(leg, now);
        }
        self.finish_if_over(slot);
    }

    /// No media was received in a call for too long.
    pub(crate) fn media_timed_out(&mut self, key: CallKey) {
        let now = self.parts.ctx.now;
        let Some(slot) = self.parts.calls.slot_of(key) else {
            return;
        };
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        if call.stage != CallStage::ExpectBye && call.stage != CallStage::ExpectAck {
            return;
        }
        let number = call.number;
        self.parts.ctx.counters.media_timeouts += 1;
        self.parts
            .ctx
            .events
            .tell(now, || EventKind::MediaTimeout { call: number });
        self.end_by_border(slot, Reason::MediaTimeout);
    }

    /// Releases ports and session of an ended call, and logs its end; once.
    fn release_media(&mut self, slot: CallSlot) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if call.summary.logged {
            return;
        }
        let media = call.media.anchored();
        let mut awaited = match media.is_some_and(CallMedia::is_added) {
            true => StatisticsSource::Forwarder,
            false => StatisticsSource::Nothing,
        };
        let encodings = media.map(CallMedia::encodings).unwrap_or_default();
        let (answered, status) = (call.summary.answered_at.is_some(), call.summary.status);
        if call.kind.participant().is_some() && !answered && status == 0 {
            call.summary.status = 487;
        }
        if call.media.node().is_some() {
            awaited = StatisticsSource::Node;
        }
        self.parts.log_call_end(slot, awaited, encodings);
        if let Some(call) = self.parts.calls.get_mut(slot) {
            self.parts.conferences.leave(&mut self.parts.ctx, call);
        }
        if !self.parts.release_relay(slot) && awaited == StatisticsSource::Node {
            let number = self.parts.calls.get(slot).map_or(0, |call| call.number);
            self.parts
                .record_node_statistics(number, Default::default());
        }
        if let Some(media) = self
            .parts
            .calls
            .get_mut(slot)
            .and_then(|call| call.media.take_anchored())
        {
            if let Some(timer) = media.keying_timer {
                self.parts.ctx.timers.cancel(timer);
            }
            media.release(&mut self.parts.media.plane);
        }
    }

    /// Removes the call if all legs are gone.
    pub(crate) fn finish_if_over(&mut self, slot: CallSlot) {
        let over = self
            .parts
            .calls
            .get(slot)
            .is_some_and(|call| call.stage == CallStage::ExpectLegsClosed && call.is_over());
        if !over {
            return;
        }
        self.release_media(slot);
        let Some(mut call) = self.parts.calls.remove(slot) else {
            return;
        };
        let outcome = CallOutcome::of(call.summary.status);
        call.count_outcome(&mut self.parts.ctx.counters, outcome);
        self.parts.admission.reservations.release(&call.reservation);
        if let Some(trunk) = *call.trunks.get(Side::Callee)
            && call.summary.answered_at.is_some()
        {
            self.parts.trunks.end_call(Some(trunk));
        }
        self.parts.trunks.end_call(*call.trunks.get(Side::Caller));
        self.finish_drain();
    }

    /// Terminates the remaining calls at the time limit, and abandons unanswered BYEs at its second expiry.
    pub(crate) fn expire_drain(&mut self) {
        let now = self.parts.ctx.now;
        let Some(draining) = self.parts.worker.draining.as_mut() else {
            return;
        };
        draining.timer = None;
        let left = self.parts.calls.slots();
        if draining.finished && left.is_empty() {
            return;
        }
        if std::mem::replace(&mut draining.time_expired, true) {
            for slot in left {
                self.abandon_call(slot);
            }
            self.parts.calls.log_all_pending_ends(&mut self.parts.ctx);
            return self.finish_drain();
        }
        // Calls that are ending already are not counted as terminated.
        let ending = |slot: &CallSlot| {
            self.parts.calls.get(*slot).map(|call| call.stage) == Some(CallStage::ExpectLegsClosed)
        };
        draining.terminated = left.iter().filter(|slot| !ending(slot)).count() as u64;
        draining.timer = Some(
            self.parts
                .ctx
                .timers
                .schedule(now + BYE_TIMEOUT, Alarm::DrainTimeout),
        );
        for slot in left {
            self.give_up(slot, Reason::Drained);
        }
        self.finish_drain();
    }

    fn finish_drain(&mut self) {
        self.parts
            .worker
            .finish_drain_if_idle(&mut self.parts.ctx, &self.parts.calls);
    }

    /// Refuses the INVITE of the caller, with the headers of `message` if present.
    pub(crate) fn reject_caller(&mut self, slot: CallSlot, status: u16, message: Option<&[u8]>) {
        self.reject_caller_with(slot, status.into(), message, None);
    }

    /// Refuses the INVITE of the caller by our own decision; `why` is added in Warning if its SDP was the reason.
    pub(crate) fn reject_caller_for(
        &mut self,
        slot: CallSlot,
        line: StatusLine,
        why: Option<Reason>,
    ) {
        self.reject_caller_with(slot, line, None, why);
    }

    fn reject_caller_with(
        &mut self,
        slot: CallSlot,
        StatusLine { status, reason }: StatusLine,
        message: Option<&[u8]>,
        why: Option<Reason>,
    ) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        call.summary.status = status;
        let Some(caller) = call.legs.get_mut(Side::Caller).take() else {
            return;
        };
        call.count_outcome(&mut self.parts.ctx.counters, CallOutcome::of(status));
        let parsed = message.and_then(|bytes| Message::parse(bytes).ok());
        if let (401 | 407, Some(response)) = (status, &parsed) {
            self.parts
                .calls
                .store_challenge(&self.parts.ctx, slot, response);
        }
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        let mut changes = HeaderChanges::default();
        let sent = match &parsed {
            Some(response) => {
                // Its leg no longer belongs to the call.
                let host = self.endpoint.flow_of(caller).map(|flow| {
                    let host = self.parts.listeners.advertised_host(flow.local);
                    (host, flow.transport)
                });
                let forwarded = Forwarded {
                    call,
                    from: Side::Callee,
                    message: response,
                    host: (host.as_ref()).map(|(host, transport)| (host.as_slice(), *transport)),
                };
                let edits = self.edits_of(forwarded, &mut changes);
                let carried = body_without_sdp(call, response);
                let body = body_of(carried, b"", response);
                let content = Self::passed_response(response, &edits, edits.phrase(status), body);
                self.endpoint.reject(caller, status, &content, now)
            }
            None => {
                let warning = why.and_then(|why| warning_of(status, why));
                let mut effects = ::rules::Effects::default();
                let mut edits: SmallVec<[Edit<'_>; 4]> = SmallVec::new();
                if let Some(value) = &warning {
                    let id = HeaderId::Warning;
                    edits.push(Edit::Add { id, value });
                }
                if status == 503 {
                    edits.push(Edit::Add {
                        id: HeaderId::RetryAfter,
                        value: b"10",
                    });
                }
                if let Some(flow) = self.endpoint.flow_of(caller) {
                    let answer = RuledAnswer {
                        call: Some((call, slot)),
                        ..RuledAnswer::own(flow, wire::sip::Method::Invite, status)
                    };
                    self.parts.rules_answer(answer, &mut edits, &mut effects);
                }
                let content = MessageContent {
                    reason: reason.as_deref().map(str::as_bytes),
                    ..MessageContent::default().with(&edits)
                };
                self.endpoint.reject(caller, status, &content, now)
            }
        };
        if sent.is_err() {
            let _ = self
                .endpoint
                .hang_up(caller, &MessageContent::default(), now);
        }
    }

    pub(crate) fn refuse_call(
        &mut self,
        leg: LegId,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
    ) {
        let now = self.parts.ctx.now;
        if refused.status != 401 && refused.status != 407 {
            self.parts
                .ctx
                .counters
                .count(CallOutcome::of(refused.status));
            self.parts.record_refused_call(request, flow, refused);
        } else {
            // The INVITE with credentials follows.
            self.parts.ctx.counters.offered -= 1;
        }
        self.send_refusal(request, flow, refused, |endpoint, content| {
            let _ = endpoint.reject(leg, refused.status, content, now);
        });
    }

    /// Logs the refusal of a request that creates a dialog or a transaction, and hands its response to `send`, with the
    /// changes of header rules.
    pub(crate) fn send_refusal(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
        send: impl FnOnce(&mut Endpoint, &MessageContent<'_>),
    ) {
        let interface = self.parts.listeners.interface_of(flow.local);
        refused.report(&mut self.parts.ctx, request, flow, interface);
        let mut effects = Effects::default();
        let mut edits: SmallVec<[Edit<'_>; 4]> = refused
            .headers
            .iter()
            .map(|(id, value)| Edit::Add { id: *id, value })
            .collect();
        let answer = RuledAnswer::own(flow, request.method(), refused.status);
        self.parts.rules_answer(answer, &mut edits, &mut effects);
        let content = MessageContent {
            edits: &edits,
            reason: refused.reason.as_deref().map(str::as_bytes),
            ..MessageContent::default()
        };
        send(self.endpoint, &content);
    }
}

impl Call {
    /// Counts the outcome of the call; only the first one counts.
    fn count_outcome(&mut self, counters: &mut BorderCounters, outcome: CallOutcome) {
        if !std::mem::replace(&mut self.summary.counted, true) {
            counters.count(outcome);
        }
    }
}
