//! Responses to outgoing INVITEs of a call.

use crate::bodies::{Carried, CarriedBody, SdpRole, has_sdp, is_multipart};
use crate::calls::ended::EndedBy;
use crate::calls::key::CallSlot;
use crate::calls::relay::HeaderChanges;
use crate::calls::{CallStage, SetUp, UnconfirmedAnswer};
use crate::components::Calls;
use crate::headers::text;
use crate::policy::{Facts, HopStep, Plan, StepTarget, decide};
use crate::responses::reason_of;
use anchor::{AnchorError, Side};
use config::{HostName, MediaMode, Redirect, Trunk, TrunkId};
use engine::{EventKind, Reason, Transport};
use sip::{Failure, Fork, LegId, MessageContent};
use std::cell::Cell;
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, NameAddr, Uri};

/// Maximum number of redirect contacts followed, and of hops per call.
const MAX_HOPS: usize = 16;

/// A provisional response of a branch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProvisionalResponse<'c, 'm> {
    pub(crate) leg: LegId,
    /// The early dialog, above 100.
    pub(crate) fork: Option<Fork>,
    pub(crate) response: &'c Message<'m>,
    /// Whether it waits for a PRACK.
    pub(crate) reliable: bool,
}

/// Failure of a branch.
#[derive(Clone, Copy, Debug)]
struct HopFailure<'c, 'm> {
    /// Index of the hop.
    hop: u16,
    /// Whether a provisional response above 100 was received.
    heard: bool,
    reason: Failure,
    status: u16,
    /// Reason in the event.
    text: Reason,
    response: Option<&'c Message<'m>>,
}

impl Calls<'_> {
    /// A provisional response of an outgoing leg.
    pub(crate) fn progressed(&mut self, slot: CallSlot, progress: ProvisionalResponse<'_, '_>) {
        let ProvisionalResponse {
            leg,
            fork,
            response,
            reliable,
        } = progress;
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let caller = call.leg(Side::Caller);
        let number = call.number;
        let Some(set_up) = call.kind.set_up_mut() else {
            return;
        };
        let Some(branch) = set_up.branches.iter_mut().find(|branch| branch.leg == leg) else {
            return;
        };
        if branch.cancelled {
            return;
        }
        if caller.is_none() {
            return;
        }
        let (is_first, at) = (!branch.heard, branch.hop);
        branch.heard = true;
        set_up.early.progressed = true;
        if is_first {
            self.hop_responded(slot, at);
        }
        let hop = self.parts.calls.use_branch(slot, leg);
        self.early_media(slot, Side::Callee, response);
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        let offered = set_up.offered;
        let couple = reliable && set_up.early.reliable;
        if let Some(timer) = set_up.timers.answer.take() {
            self.parts.ctx.timers.cancel(timer);
        }
        let status = response.status();
        let sdp = has_sdp(response);
        let (role, carry) = match (sdp, offered) {
            (false, _) => (SdpRole::Offer, false),
            (true, true) => (SdpRole::EarlyAnswer, true),
            // An offer of the callee is valid only in a coupled reliable response, in which it can be answered.
            (true, false) => (SdpRole::Offer, couple),
        };
        // The caller has one early dialog with one reliable answer: that of the first fork. The media stays at it.
        let another = set_up.early.answered_by_another((leg, fork));
        if carry
            && !another
            && let Some(hop) = hop
        {
            self.select_media_side(slot, hop);
        }
        let mut buffers = std::mem::take(&mut self.parts.calls.buffers);
        buffers.sdp.clear();
        let carried = match carry && !another {
            true => self.carry_body(slot.side(Side::Callee), response, role, &mut buffers.sdp),
            false if sdp => Ok(Carried::Nothing),
            false => Ok(Carried::Untouched),
        };
        if let (Err(error), Some(fork), true) = (carried, fork, reliable) {
            self.parts.calls.buffers = buffers;
            return self.refuse_progress_sdp(slot, (leg, fork), error);
        }
        // The SDP of an unreliable response is repeated in the answer, and checked there.
        let carried = carried.unwrap_or(Carried::Nothing);
        let body = CarriedBody {
            carried,
            sdp: &buffers.sdp,
        };
        let sent = self.pass_progress(slot, response, body, couple);
        let is_unconfirmed = reliable && offered && !(couple && sent.is_some());
        let forwarded = body.sdp_of(response);
        if let Some(fork) = fork.filter(|_| is_unconfirmed && !forwarded.is_empty())
            && let Some(set_up) = self.parts.calls.set_up_mut(slot)
        {
            let dialog = (leg, fork);
            set_up.early.keep_unconfirmed(dialog, response, forwarded);
        }
        let answer = match couple && carried == Carried::Rewritten {
            true => buffers.sdp.as_slice().into(),
            false => Box::default(),
        };
        self.parts.calls.buffers = buffers;
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        match (sent.filter(|_| couple), couple, fork) {
            (Some(rseq), _, Some(fork)) => {
                set_up.early.to_prack.push_back((rseq, leg, fork));
                if sdp && carried != Carried::Nothing && set_up.early.answered_by.is_none() {
                    set_up.early.answered_by = Some((leg, Some(fork)));
                    set_up.early.answer = answer;
                }
            }
            // It was not forwarded reliably, so that the caller sends no PRACK: ours has no body.
            (None, true, Some(fork)) => {
                let _ = self
                    .endpoint
                    .prack(leg, fork, &MessageContent::default(), now);
            }
            _ => {}
        }
        self.parts
            .ctx
            .events
            .tell(now, || EventKind::CallProgressed {
                call: number,
                status,
            });
        if let Some(heard) = fork {
            if let Some(set_up) = self.parts.calls.set_up_mut(slot) {
                set_up.early.last_heard = Some((leg, heard));
            }
            self.locate_dialog(leg, fork);
        }
        // Requests of the caller go to this early dialog.
        let set_up = self.parts.calls.set_up_mut(slot);
        if let Some((leg, _)) = set_up.and_then(|set_up| set_up.dialog_of_caller()) {
            self.parts.calls.use_branch(slot, leg);
        }
    }

    /// The SDP of a reliable provisional response is not acceptable. For the callee the session is agreed, so that no
    /// other SDP will follow: this target is given up.
    fn refuse_progress_sdp(
        &mut self,
        slot: CallSlot,
        (leg, fork): (LegId, Fork),
        error: AnchorError,
    ) {
        let now = self.parts.ctx.now;
        let _ = self
            .endpoint
            .prack(leg, fork, &MessageContent::default(), now);
        let set_up = self.parts.calls.set_up_mut(slot);
        let mut branches = set_up
            .into_iter()
            .flat_map(|set_up| set_up.branches.iter_mut());
        let Some(branch) = branches.find(|branch| branch.leg == leg) else {
            return;
        };
        branch.cancelled = true;
        let status = error.status();
        if let Some(set_up) = self.parts.calls.set_up_mut(slot) {
            set_up.best.offer(status, None, error.reason());
        }
        let reason = reason_of(error);
        let edits = [Edit::Add {
            id: HeaderId::Reason,
            value: &reason,
        }];
        let _ = self
            .endpoint
            .cancel(leg, &MessageContent::default().with(&edits), now);
        self.call_next_hops(slot);
    }

    /// Forwards a provisional response. Returns the RSeq for the caller if it was sent reliably.
    fn pass_progress(
        &mut self,
        slot: CallSlot,
        response: &Message<'_>,
        body: CarriedBody<'_>,
        reliable: bool,
    ) -> Option<u32> {
        let now = self.parts.ctx.now;
        let call = self.parts.calls.get(slot)?;
        let caller = call.leg(Side::Caller)?;
        let status = response.status();
        let mut changes = HeaderChanges::default();
        let edits = self.pass_edits(call, Side::Callee, response, &mut changes);
        let phrase = edits.phrase(status);
        let content = Self::passed_response(response, &edits, phrase, body.of(response));
        let sent = self
            .endpoint
            .progress(caller, status, &content, reliable, now);
        if sent.is_err() && reliable {
            // A previous response still waits for its PRACK: this one is forwarded unreliably.
            let _ = self.endpoint.progress(caller, status, &content, false, now);
        }
        sent.ok().flatten()
    }

    /// An outgoing leg was answered.
    pub(crate) fn answered(
        &mut self,
        slot: CallSlot,
        (leg, fork): (LegId, Option<Fork>),
        response: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let caller = call.leg(Side::Caller);
        let number = call.number;
        let mut branches = call
            .kind
            .set_up()
            .into_iter()
            .flat_map(|set_up| &set_up.branches);
        let Some(&branch) = branches.find(|branch| branch.leg == leg) else {
            return;
        };
        self.hop_responded(slot, branch.hop);
        self.invite_answered(slot, branch.hop, response);
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let Some(set_up) = call.kind.set_up_mut() else {
            return;
        };
        let Some(caller) = caller.filter(|_| !branch.cancelled) else {
            // The call has ended or been answered by another leg.
            let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
            let _ = self.endpoint.hang_up(leg, &MessageContent::default(), now);
            return;
        };
        let offered = set_up.offered;
        // An offer of the callee was answered in PRACK, in one of its dialogs.
        let another = offered && set_up.early.answered_by_another((leg, fork));
        let settled = set_up.early.answered_by.is_some() && !another;
        let before = std::mem::take(&mut set_up.early.answer);
        let unconfirmed = set_up.early.take_unconfirmed((leg, fork));
        set_up.timers.cancel(&mut self.parts.ctx.timers);
        let hop = self.parts.calls.use_branch(slot, leg);
        if let Some(hop) = hop {
            self.select_media_side(slot, hop);
        }
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if let Some(set_up) = call.kind.set_up_mut() {
            set_up.branches.retain(|branch| branch.leg != leg);
        }
        *call.legs.get_mut(Side::Callee) = Some(leg);
        call.stage = CallStage::ExpectAck;
        call.summary.answered_at = Some(now);
        self.parts.quality_intervals.start(&mut self.parts.ctx);
        call.summary.status = 200;
        let setup_ms = now.since(call.summary.offered_at).as_millis() as u64;
        self.set_early_media(slot, None);
        let mut buffers = std::mem::take(&mut self.parts.calls.buffers);
        buffers.sdp.clear();
        let role = match offered {
            true => SdpRole::Answer,
            false => SdpRole::Offer,
        };
        let carried = match has_sdp(response) {
            // The SDP was forwarded before; other body parts of the response are forwarded now.
            true if settled && !is_multipart(response) => Ok(Carried::Nothing),
            true => self.carry_body(slot.side(Side::Callee), response, role, &mut buffers.sdp),
            false => match &unconfirmed {
                Some(answer) => self.confirm_answer(slot, answer, &mut buffers.sdp),
                None => Ok(Carried::Untouched),
            },
        };
        if let Some(media) = self.parts.calls.media_mut(slot) {
            media.keep_branch(&mut self.parts.media.plane);
        }
        // For the caller the answer in its early dialog is final: another one needs a new offer.
        let renegotiates = another
            && (carried != Ok(Carried::Rewritten) || !agrees_in_formats(&before, &buffers.sdp));
        let carried = match another {
            true => carried.map(|_| Carried::Nothing),
            false => carried,
        };
        let error = carried.err();
        let result = match carried {
            Ok(carried) => {
                let body = CarriedBody {
                    carried,
                    sdp: &buffers.sdp,
                };
                self.pass_answer(slot, caller, response, body)
            }
            Err(error) => Err(error.status()),
        };
        self.parts.calls.buffers = buffers;
        self.locate_dialog(leg, None);
        self.cancel_branches(slot, Some(200));
        match result {
            Ok(()) => {
                let offers = !offered && !settled && has_sdp(response);
                self.await_ack(slot, (Side::Callee, leg), offers, response);
                if let Some(call) = self.parts.calls.get_mut(slot) {
                    call.requests.ack.renegotiates = renegotiates;
                }
                self.parts.ctx.counters.answered += 1;
                self.parts.ctx.events.tell(now, || EventKind::CallAnswered {
                    call: number,
                    setup_ms: Some(setup_ms),
                    call_id: self.endpoint.call_id_of(leg).map(text),
                });
            }
            Err(status) => {
                // The answer of the callee cannot be forwarded to the caller.
                let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
                let why = error.map_or(Reason::AnswerNotForwarded, AnchorError::reason);
                let reason = error.map(reason_of);
                self.reject_caller_for(slot, status.into(), error.map(AnchorError::reason));
                self.end_call(slot, EndedBy::Border, why, reason.as_deref());
            }
        }
    }

    /// Appends the answer for the caller if the 2xx of the callee has none, because a reliable response had it.
    fn confirm_answer(
        &mut self,
        slot: CallSlot,
        answer: &UnconfirmedAnswer,
        sdp: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        // By the border or a node.
        let is_anchored = self
            .parts
            .calls
            .get(slot)
            .is_some_and(|call| call.media.is_some());
        match Message::parse(&answer.response) {
            // The media may be at another early dialog since then.
            Ok(response) if is_anchored => {
                self.carry_sdp(slot.side(Side::Callee), &response, SdpRole::Answer, sdp)
            }
            _ => {
                sdp.extend_from_slice(&answer.forwarded);
                Ok(Carried::Rewritten)
            }
        }
    }

    fn pass_answer(
        &mut self,
        slot: CallSlot,
        caller: LegId,
        response: &Message<'_>,
        body: CarriedBody<'_>,
    ) -> Result<(), u16> {
        let now = self.parts.ctx.now;
        let call = self.parts.calls.get(slot).ok_or(500u16)?;
        let mut changes = HeaderChanges::default();
        let edits = self.pass_edits(call, Side::Callee, response, &mut changes);
        let status = response.status();
        let phrase = edits.phrase(status);
        let content = Self::passed_response(response, &edits, phrase, body.of(response));
        self.endpoint
            .answer(caller, status, &content, now)
            .map_err(|_| 500)
    }

    /// An outgoing leg has failed.
    pub(crate) fn failed(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        why: Failure,
        response: Option<&Message<'_>>,
    ) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let Some((set_up, at)) = call.kind.set_up_mut().and_then(|set_up| {
            let at = set_up
                .branches
                .iter()
                .position(|branch| branch.leg == leg)?;
            Some((set_up, at))
        }) else {
            return;
        };
        let branch = set_up.branches.remove(at);
        let trunk = set_up
            .hops
            .get(usize::from(branch.hop))
            .and_then(|hop| hop.trunk);
        self.parts.trunks.end_call(trunk);
        if let Some(response) = response {
            self.hop_responded(slot, branch.hop);
            self.invite_answered(slot, branch.hop, response);
        }
        let (status, text) = match why {
            Failure::Response => (response.map_or(500, Message::status), Reason::Refused),
            Failure::TimedOut => (408, Reason::NoResponse),
            Failure::Transport => (503, Reason::Unreachable),
            Failure::CancelCrossed | Failure::CancelledWithoutResponse => (487, Reason::Cancelled),
        };
        let is_unanswered = !branch.heard
            && match why {
                Failure::TimedOut => !branch.cancelled,
                Failure::Transport => true,
                _ => false,
            };
        if is_unanswered {
            self.hop_unanswered(slot, branch.hop);
        }
        if !branch.cancelled
            && self
                .parts
                .calls
                .get(slot)
                .is_some_and(|call| call.stage == CallStage::ExpectAnswer)
        {
            let failure = HopFailure {
                hop: branch.hop,
                heard: branch.heard,
                reason: why,
                status,
                text,
                response,
            };
            self.take_failure(slot, failure);
        }
        if let Some(call) = self.parts.calls.get_mut(slot)
            && call.stage == CallStage::ExpectBye
        {
            // It was given up because another one answered.
            call.free_set_up();
        }
        self.call_next_hops(slot);
    }

    /// Continues after a failed hop: with another hop, a redirect, or the end of the call.
    fn take_failure(&mut self, slot: CallSlot, failure: HopFailure<'_, '_>) {
        let HopFailure {
            hop,
            heard,
            reason: why,
            status,
            text,
            response,
        } = failure;
        if let Some(response) = response.filter(|_| (300..400).contains(&status)) {
            let (contacts, anchor) = self.redirect_steps(slot, hop, response);
            if let Some(set_up) = self.parts.calls.set_up_mut(slot)
                && set_up.follow(contacts)
            {
                // The media is created with the next offer; earlier hops got the SDP of the caller unchanged.
                set_up.anchor |= anchor;
                return;
            }
        }
        let config = self.parts.ctx.config.clone();
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        // A challenge to our own credentials is not forwarded to the caller.
        let own_login = set_up
            .hops
            .get(usize::from(hop))
            .and_then(|hop| hop.trunk)
            .and_then(|trunk| config.trunk(trunk))
            .is_some_and(|trunk| trunk.credentials.is_some());
        let (status, message) = match status {
            401 | 407 if own_login => (403, None),
            _ => (status, response.map(Message::bytes)),
        };
        set_up.best.offer(status, message, text);
        let elsewhere = matches!(status, 408 | 503) || why != Failure::Response;
        if !elsewhere {
            set_up.skip_addresses_of(hop);
        }
        // Contacts of lower preference, of a registered user or in a 3xx (RFC 3261 section 8.1.3.4), are tried after
        // any failure.
        let listed = set_up
            .hops
            .get(set_up.next)
            .is_some_and(|next| next.trunk.is_none() || next.redirected || next.begins_contact);
        let goes_on = status < 600 && status != 603 && !set_up.answered_reliably();
        let moves_on = match listed {
            true => goes_on,
            false => elsewhere && !heard && !set_up.early.progressed,
        };
        if !moves_on {
            // The other targets of the route for one contact would refuse it, too: the next contact follows.
            let rest = set_up.hops.get(set_up.next..).unwrap_or_default();
            let mut contacts = rest.iter().map(|hop| hop.begins_contact);
            let skipped = contacts.position(|begins| begins).filter(|_| goes_on);
            set_up.next += skipped.unwrap_or(rest.len());
        }
        if status >= 600 {
            self.cancel_branches(slot, None);
        }
    }

    /// Cancels all branches.
    pub(crate) fn cancel_branches(&mut self, slot: CallSlot, reason: Option<u16>) {
        let now = self.parts.ctx.now;
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        set_up.next = set_up.hops.len();
        set_up.opening.clear();
        let mut legs = Vec::new();
        for branch in &mut set_up.branches {
            if !branch.cancelled {
                branch.cancelled = true;
                legs.push(branch.leg);
            }
        }
        let elsewhere = [Edit::Add {
            id: HeaderId::Reason,
            value: b"SIP;cause=200;text=\"Call completed elsewhere\"",
        }];
        let edits = if reason == Some(200) {
            &elsewhere[..]
        } else {
            &[]
        };
        for leg in legs {
            let _ = self
                .endpoint
                .cancel(leg, &MessageContent::default().with(edits), now);
        }
    }

    /// A hop has responded to its INVITE: the target of the trunk is there.
    fn hop_responded(&mut self, slot: CallSlot, hop: u16) {
        let set_up = self.parts.calls.set_up_mut(slot);
        if let Some((trunk, target)) = set_up.and_then(|set_up| set_up.trunk_target(hop)) {
            self.parts.trunks.call_responded(trunk, target);
        }
    }

    /// A hop has not responded to its INVITE. A target with a name fails with its last address.
    fn hop_unanswered(&mut self, slot: CallSlot, hop: u16) {
        let now = self.parts.ctx.now;
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        let Some((trunk, target)) = set_up.trunk_target(hop) else {
            return;
        };
        let mut later = set_up.hops.iter().skip(usize::from(hop));
        let failed = later.next();
        if failed.is_some_and(|failed| later.any(|other| failed.is_of_same_name(other))) {
            return;
        }
        if let Some(note) = self.parts.trunks.call_unanswered(trunk, target) {
            self.parts.ctx.events.tell(now, || note);
        }
    }

    /// A target has given its final response to an INVITE with or without credentials.
    fn invite_answered(&mut self, slot: CallSlot, hop: u16, response: &Message<'_>) {
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        let flow = call
            .leg(Side::Caller)
            .and_then(|leg| self.endpoint.flow_of(leg));
        let set_up = call.kind.set_up();
        let hop = set_up.and_then(|set_up| set_up.hops.get(usize::from(hop)));
        let hop = hop.filter(|hop| !hop.redirected);
        let (Some(flow), Some(trunk)) = (flow, hop.and_then(|hop| hop.trunk)) else {
            return;
        };
        if self.parts.verifying_trunk(flow) != Some(trunk) {
            return;
        }
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        let invite = std::mem::take(&mut set_up.invite);
        let request = (&*invite, set_up.was_challenged);
        self.parts.trunk_answered(request, flow, response);
        if let Some(set_up) = self.parts.calls.set_up_mut(slot) {
            set_up.invite = invite;
        }
    }
}

impl Calls<'_> {
    /// The steps for each contact of a 3xx in the order of their preference, if the trunk is configured so; also after
    /// it has rung, as a system that forwards unanswered calls does. Contacts at our address are routed like a call of
    /// the trunk: a registrar redirects to the Contacts that it has, and those of our phones are ours. Also returned:
    /// whether the media of such a call has to be anchored.
    fn redirect_steps(
        &mut self,
        slot: CallSlot,
        hop: u16,
        response: &Message<'_>,
    ) -> (Vec<Vec<HopStep>>, bool) {
        let random = self.parts.ctx.entropy.u64();
        let config = &self.parts.ctx.config;
        let call = self.parts.calls.get(slot);
        let none = (Vec::new(), false);
        let Some((call, set_up)) = call.and_then(|call| Some((call, call.kind.set_up()?))) else {
            return none;
        };
        let Some(from) = set_up.hops.get(usize::from(hop)) else {
            return none;
        };
        let trunk = from.trunk.and_then(|trunk| config.trunk(trunk));
        let follows = trunk.is_some_and(|trunk| trunk.redirect == Redirect::Follow);
        if !follows || set_up.answered_reliably() {
            return none;
        }
        let passes_media = !call.media.is_some() && !set_up.anchor;
        let anchor = Cell::new(false);
        let invite = Message::parse(&set_up.invite).ok();
        let caller = invite.as_ref().and_then(|invite| invite.from().ok());
        let routed = |uri: &[u8]| {
            let facts = Facts {
                interface: from.interface,
                trunk: from.trunk,
                authenticated: true,
                exempt: false,
                from: caller.map(|caller| caller.uri).unwrap_or_default(),
                to: uri,
                random,
                // This call is one of them, and continues during a drain.
                calls: self.parts.total_calls().saturating_sub(1),
                draining: false,
            };
            match decide(config, &facts, &self.parts.view()) {
                Plan::Call(plan) if passes_media && plan.media != MediaMode::Bypass => {
                    // A call has its media node from the beginning. Without one there would be no audio.
                    if config.media.at_nodes {
                        return Vec::new();
                    }
                    anchor.set(true);
                    plan.steps
                }
                Plan::Call(plan) => plan.steps,
                Plan::Refuse(_) => Vec::new(),
            }
        };
        let steps_to = |uri: &[u8]| {
            let host = Uri::parse(uri).map(|uri| uri.host_port().to_string());
            match host.is_some_and(|host| self.parts.listeners.is_ours(host.as_bytes())) {
                // Another host has no rights at our routes.
                true if from.foreign => Vec::new(),
                true => routed(uri),
                false => redirected(from, trunk, uri).into_iter().collect(),
            }
        };
        let mut contacts: Vec<(u16, &[u8])> = response
            .contacts()
            .flatten()
            .filter(|contact| contact.parse_uri().is_some_and(|uri| uri.is_sip()))
            .map(|contact: NameAddr<'_>| {
                let q = contact.q_thousandths().unwrap_or(1_000);
                (q, without_headers(contact.uri))
            })
            .collect();
        contacts.sort_by_key(|(q, _)| core::cmp::Reverse(*q));
        contacts.truncate(MAX_HOPS);
        let steps = contacts.into_iter().map(|(_, uri)| steps_to(uri)).collect();
        (steps, anchor.get())
    }
}

impl SetUp {
    /// The target of a trunk that a hop leads to; that of a redirect is none.
    fn trunk_target(&self, hop: u16) -> Option<(TrunkId, u16)> {
        let hop = self.hops.get(usize::from(hop))?;
        Some((hop.trunk.filter(|_| !hop.redirected)?, hop.target))
    }

    /// A redirect contact with a name has refused the call: its other addresses would refuse it, too.
    fn skip_addresses_of(&mut self, hop: u16) {
        let Some(refusing) = self.hops.get(usize::from(hop)).filter(|hop| hop.redirected) else {
            return;
        };
        let rest = self.hops.get(self.next..).unwrap_or_default();
        let same = rest.iter().take_while(|hop| refusing.is_of_same_name(hop));
        self.next += same.count();
    }

    /// Calls the contacts of a 3xx next, each by its steps. Returns whether there is any that was not called before.
    fn follow(&mut self, contacts: Vec<Vec<HopStep>>) -> bool {
        let first = self.next.min(self.hops.len());
        let mut at = first;
        for steps in contacts {
            // The URI of a step to our routes is not its target: trunks may share a domain, and phones an address.
            let is_same = |hop: &HopStep, step: &HopStep| {
                let has_target = hop.trunk == step.trunk && hop.place == step.place;
                hop.uri == step.uri && (step.redirected || has_target)
            };
            let is_new = |step: &HopStep| !self.hops.iter().any(|hop| is_same(hop, step));
            let room = MAX_HOPS.saturating_sub(self.hops.len());
            let steps: Vec<HopStep> = steps.into_iter().filter(is_new).take(room).collect();
            let groups = self.hops.len() as u16;
            for (number, mut step) in steps.into_iter().enumerate() {
                step.begins_contact = number == 0;
                step.group += groups;
                self.hops.insert(at, step);
                at += 1;
            }
        }
        at > first
    }
}

/// The step for a contact of a redirect, at the host that it names.
fn redirected(from: &HopStep, trunk: Option<&Trunk>, uri: &[u8]) -> Option<HopStep> {
    let mut step = HopStep {
        group: 0,
        uri: uri.to_vec(),
        routes: Vec::new(),
        place: place_of(uri)?,
        redirected: true,
        begins_contact: false,
        ..from.clone()
    };
    step.foreign = trunk.is_none_or(|trunk| !step.is_at(trunk));
    Some(step)
}

/// Whether two answers to one offer agree in formats, keys and directions, so that one may stand for the other.
/// Addresses are those of the border.
fn agrees_in_formats(one: &[u8], other: &[u8]) -> bool {
    fn lines(sdp: &[u8]) -> impl Iterator<Item = &[u8]> {
        const RELEVANT: [&[u8]; 10] = [
            b"m=",
            b"a=rtpmap:",
            b"a=fmtp:",
            b"a=crypto:",
            b"a=fingerprint:",
            b"a=ice-ufrag:",
            b"a=rtcp-mux",
            b"a=sendonly",
            b"a=recvonly",
            b"a=inactive",
        ];
        let lines = sdp.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_end);
        lines.filter(|line| RELEVANT.iter().any(|start| line.starts_with(start)))
    }
    lines(one).eq(lines(other))
}

/// A SIP URI without its headers, which a Request-URI must not have (RFC 3261 section 19.1.1).
fn without_headers(uri: &[u8]) -> &[u8] {
    let headers = Uri::parse(uri).map_or(&b""[..], |uri| uri.headers);
    let bare = uri.strip_suffix(headers).unwrap_or(uri);
    bare.strip_suffix(b"?").unwrap_or(bare)
}

/// The target of a redirect.
fn place_of(uri: &[u8]) -> Option<StepTarget> {
    let uri = Uri::parse(uri)?;
    let host = HostName::parse(&uri.host_port().to_string())?;
    let secure = uri.scheme == wire::sip::Scheme::Sips;
    let transport = match uri.transport() {
        Some(name) if name.eq_ignore_ascii_case(b"tls") => Some(Transport::Tls),
        // A sips URI requires TLS (RFC 3261 section 26.2.2).
        Some(name) if secure && name.eq_ignore_ascii_case(b"tcp") => Some(Transport::Tls),
        None if secure => Some(Transport::Tls),
        Some(_) if secure => return None,
        Some(name) if name.eq_ignore_ascii_case(b"udp") => Some(Transport::Udp),
        Some(name) if name.eq_ignore_ascii_case(b"tcp") => Some(Transport::Tcp),
        Some(_) => return None,
        None => None,
    };
    Some(match host.ip() {
        Some(ip) => StepTarget::Address(
            SocketAddr::new(
                ip,
                host.port.unwrap_or(match transport {
                    Some(Transport::Tls) => 5061,
                    _ => 5060,
                }),
            ),
            transport.unwrap_or(Transport::Udp),
        ),
        None => StepTarget::Name(host, transport),
    })
}

impl Calls<'_> {
    /// The ring timeout has expired.
    pub(crate) fn ring_timed_out(&mut self, slot: CallSlot) {
        let Some(call) = self
            .parts
            .calls
            .get_mut(slot)
            .filter(|call| call.stage == CallStage::ExpectAnswer)
        else {
            return;
        };
        if let Some(set_up) = call.kind.set_up_mut() {
            set_up.timers.ring = None;
        }
        self.reject_caller(slot, 480, None);
        self.end_by_border(slot, Reason::NoAnswer);
    }

    /// The answer timeout of a target has expired: the next one is tried.
    pub(crate) fn answer_timed_out(&mut self, slot: CallSlot, leg: LegId) {
        let now = self.parts.ctx.now;
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        let Some(branch) = set_up.branches.iter_mut().find(|branch| branch.leg == leg) else {
            return;
        };
        if branch.heard || branch.cancelled || self.endpoint.has_response(leg) {
            return;
        }
        branch.cancelled = true;
        let hop = branch.hop;
        self.hop_unanswered(slot, hop);
        if let Some(set_up) = self.parts.calls.set_up_mut(slot) {
            set_up.best.offer(408, None, Reason::NoResponse);
        }
        let _ = self.endpoint.cancel(leg, &MessageContent::default(), now);
        self.call_next_hops(slot);
    }
}
