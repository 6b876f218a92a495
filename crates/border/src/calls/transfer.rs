//! Third-party call control: connecting two legs that did not call each other. Used for transfer (REFER carried out by
//! us, RFC 3515, RFC 5589), INVITE with Replaces (RFC 3891), session refreshes of peers without UPDATE (RFC 4028), and
//! moves to another media node or port.
//!
//! One leg is asked for an offer (or has just sent one), the other gets it by re-INVITE, and its answer is sent in the
//! ACK of the first (RFC 3725 flow I; the side that may ring for long is asked first, so that no 2xx has to wait).

mod closing;
mod consultation;
mod cross_worker;
pub(crate) mod handover;
pub(crate) mod join;
mod reanchor;
mod refresh;
mod reinvite_timeout;
mod replaces;
mod target;

use crate::bodies::{Carried, SdpRole, has_sdp, session_of};
use crate::calls::CallStage;
use crate::calls::conference::ConferenceCalls;
use crate::calls::key::{CallKey, CallSlot, SideKey};
use crate::calls::transfer::join::{AwaitedStep, ConsultationCall, Join, Purpose};
use crate::components::{Calls, Components};
use crate::headers::{OWN_REINVITE, address_of, text};
use crate::media::MediaPeer;
use crate::policy::HopStep;
use crate::request::RequestRefusal;
use crate::responses::refuse;
use crate::shared::Alarm;
use anchor::{AnchorError, Side};
use consultation::refuse_transfer;
use cross_worker::{RemoteDialog, dialog_owner};
use engine::{EventKind, Reason};
use sip::{Endpoint, Failure, Flow, LegId, MessageContent, ServerTransaction, TransactionId};
use wire::sip::{HeaderId, Message, Method, Scheme, percent_decode};

/// Maximum number of retries after glare.
const TRIES: u8 = 3;

/// The target of a REFER.
struct Referral {
    uri: Vec<u8>,
    /// Call-ID and tags of Replaces.
    replaces: Option<(Vec<u8>, Vec<u8>, Vec<u8>)>,
    /// The value of Replaces as a header, or empty.
    replaces_value: Vec<u8>,
}

/// Reads the target of a REFER.
///
/// # Errors
/// The status of its refusal.
fn referral(request: &Message<'_>) -> Result<Referral, u16> {
    let refer_to = request.refer_to().map_err(|_| 400u16)?;
    let uri = refer_to.parse_uri().ok_or(400u16)?;
    if !uri.is_sip() && uri.scheme != Scheme::Tel {
        return Err(416);
    }
    if uri
        .params
        .get(b"method")
        .is_some_and(|method| !method.eq_ignore_ascii_case(b"INVITE"))
    {
        return Err(400);
    }
    let value = uri
        .header_pairs()
        .find(|(name, _)| name.eq_ignore_ascii_case(b"Replaces"))
        .map(|(_, value)| percent_decode(value).into_owned());
    let replaces = match &value {
        None => None,
        // Escapes may stand for line ends, which would begin another header.
        Some(value) if value.iter().any(u8::is_ascii_control) => return Err(400),
        Some(value) => {
            let parsed = wire::sip::Replaces::parse(value).ok_or(400u16)?;
            Some((
                parsed.call_id.to_vec(),
                parsed.to_tag.to_vec(),
                parsed.from_tag.to_vec(),
            ))
        }
    };
    let end = refer_to
        .uri
        .iter()
        .position(|&byte| byte == b'?')
        .unwrap_or(refer_to.uri.len());
    Ok(Referral {
        uri: refer_to.uri.get(..end).unwrap_or_default().to_vec(),
        replaces,
        replaces_value: value.unwrap_or_default(),
    })
}

/// The SDP of a message, if it has one.
fn description<'m>(message: &Message<'m>) -> &'m [u8] {
    session_of(message)
        .bytes(message.body())
        .unwrap_or_default()
}

/// The leg of an INVITE with Replaces, which waits for its answer.
pub(crate) struct ReplacingLeg {
    pub(crate) leg: LegId,
    pub(crate) flow: Flow,
    pub(crate) hop: HopStep,
}

/// Transfers, session refreshes and moves to another media node: legs that are being connected.
#[derive(Debug)]
pub(crate) struct TransferControl<'c> {
    endpoint: &'c mut Endpoint,
    parts: &'c mut Components,
}

impl<'c> TransferControl<'c> {
    pub(crate) fn new(calls: &'c mut Calls<'_>) -> TransferControl<'c> {
        TransferControl {
            endpoint: calls.endpoint,
            parts: calls.parts,
        }
    }

    /// The stages below.
    fn calls(&mut self) -> Calls<'_> {
        Calls {
            endpoint: self.endpoint,
            parts: self.parts,
        }
    }
}

impl TransferControl<'_> {
    /// Carries out a REFER.
    pub(crate) fn referred(
        &mut self,
        SideKey { slot, side: from }: SideKey,
        leg: LegId,
        transaction: ServerTransaction,
        request: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let referral = match referral(request) {
            Ok(referral) => referral,
            Err(status) => return refuse(self.endpoint, transaction, status, now),
        };
        let ready = self.parts.calls.get(slot).is_some_and(|call| {
            call.stage == CallStage::ExpectBye
                && call.kind.join().is_none()
                && call.requests.ack.due.is_none()
                && call.leg(from.other()).is_some()
        });
        if !ready {
            return refuse(self.endpoint, transaction, 491, now);
        }
        let purpose = |consultation| Purpose::Transfer {
            referrer: leg,
            consultation,
        };
        if let Some((call_id, to_tag, from_tag)) = &referral.replaces {
            let consultation = self
                .endpoint
                .find_leg(call_id, to_tag, from_tag)
                .or_else(|| self.endpoint.find_leg(call_id, from_tag, to_tag))
                .and_then(|leg| Some((leg, CallKey(self.endpoint.user_of(leg)?))));
            if consultation.is_none()
                && let Some(worker) = dialog_owner(self.endpoint, to_tag, from_tag)
            {
                let remote = RemoteDialog {
                    worker,
                    dialog: (call_id.clone(), to_tag.clone(), from_tag.clone()),
                };
                return self.request_leg(slot, (from, leg), transaction, remote);
            }
            if let Some((consulting, key)) = consultation {
                let consulted = ConsultationCall::Local(key);
                let join = Join::new(purpose(Some(consulted)), AwaitedStep::Offer, from);
                return match self.detach_consultation(slot, join, (consulting, key)) {
                    Ok(()) => {
                        refuse(self.endpoint, transaction, 202, now);
                        self.ask_for_offer(slot);
                    }
                    Err(status) => refuse_transfer(self.endpoint, leg, transaction, status, now),
                };
            }
            // Not a dialog of ours. If the transferor has it, as a PBX with a consultation of its own, it gets the
            // INVITE with Replaces.
            if !self.is_at_transferor(slot, from, &referral.uri) {
                return refuse(self.endpoint, transaction, 481, now);
            }
        }
        let plan = match self.plan_transfer(slot, from, &referral.uri, request) {
            Ok(plan) => plan,
            Err(status) => return refuse(self.endpoint, transaction, status, now),
        };
        let mut join = Join::new(purpose(None), AwaitedStep::Target, from);
        join.hops = plan.steps;
        let alarm = Alarm::TransferRing(self.parts.calls.key_of(slot));
        join.ring_timer = Some(
            self.parts
                .ctx
                .timers
                .schedule(now + plan.ring_timeout, alarm),
        );
        join.to = referral.uri;
        join.replaces = referral.replaces_value;
        join.from = request.to().map(|to| to.uri.to_vec()).unwrap_or_default();
        join.referred_by = request
            .header(HeaderId::ReferredBy)
            .map(<[u8]>::to_vec)
            .unwrap_or_default();
        refuse(self.endpoint, transaction, 202, now);
        let _ = self.endpoint.notify_refer(leg, 100, b"Trying", now);
        if let Some(call) = self.parts.calls.get_mut(slot) {
            call.kind.set_join(join);
        }
        self.call_next_transfer(slot, 503);
    }

    /// Sends a re-INVITE without SDP to the offerer.
    fn ask_for_offer(&mut self, slot: CallSlot) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let Some(join) = call.kind.join_mut() else {
            return;
        };
        let leg = match join.purpose {
            Purpose::Refresh | Purpose::Reanchor { .. } => *call.legs.get(join.side),
            _ => join.new,
        };
        let sent = leg.and_then(|leg| {
            let content = MessageContent::default().with(OWN_REINVITE);
            self.endpoint
                .request(leg, Method::Invite, &content, now)
                .ok()
        });
        join.waiting = sent;
        join.stage = AwaitedStep::Offer;
        match (sent, leg) {
            (Some(sent), _) => {
                self.parts
                    .calls
                    .start_reinvite_timer(&mut self.parts.ctx, slot, sent)
            }
            (None, leg) => {
                self.transfer_failed(slot, 491);
                if let Some(leg) = leg {
                    self.endpoint.refresh_later(leg, now);
                }
            }
        }
    }

    /// The call and side of the leg in Replaces of an INVITE, if it may be replaced.
    ///
    /// # Errors
    /// The refusal (RFC 3891 section 3).
    pub(crate) fn replaceable(
        &self,
        replaced: LegId,
        early_only: bool,
    ) -> Result<(CallSlot, Side), RequestRefusal> {
        let none = || RequestRefusal::new(Reason::ReplacesUnknown);
        let slot = self
            .endpoint
            .user_of(replaced)
            .and_then(|user| self.parts.calls.slot_of(CallKey(user)))
            .ok_or_else(none)?;
        let call = self.parts.calls.get(slot).ok_or_else(none)?;
        if call.stage != CallStage::ExpectBye {
            return Err(none());
        }
        if early_only {
            return Err(RequestRefusal::new(Reason::ReplacesAnswered));
        }
        if call.kind.join().is_some() || call.requests.ack.due.is_some() {
            return Err(RequestRefusal::new(Reason::ReplacesChanging));
        }
        if call.media.node().is_some() {
            return Err(RequestRefusal::new(Reason::ReplacesOnNode));
        }
        match call.side_of(replaced) {
            Some(side) if call.leg(side.other()).is_some() => Ok((slot, side)),
            _ => Err(none()),
        }
    }

    /// Replaces a leg of that side by the new leg; see [`TransferControl::replaceable`].
    pub(crate) fn replace(
        &mut self,
        (slot, side, replaced): (CallSlot, Side, LegId),
        new: ReplacingLeg,
        request: &Message<'_>,
    ) {
        let ReplacingLeg { leg, flow, hop } = new;
        self.endpoint.set_user(leg, self.parts.calls.key_of(slot).0);
        let mut join = Join::new(Purpose::Replace { replaced }, AwaitedStep::Answer, side);
        join.new = Some(leg);
        join.on_trunk = hop.trunk;
        self.parts.trunks.begin_call(hop.trunk);
        join.hops.push(hop);
        if let Some(call) = self.parts.calls.get_mut(slot) {
            call.kind.set_join(join);
        }
        self.offer_of_new(slot, Some(flow), request);
    }

    /// The new leg rings.
    pub(crate) fn transfer_progressed(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        response: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let Some(join) = self.parts.calls.join(slot) else {
            return;
        };
        if let (true, Purpose::Transfer { referrer, .. }) = (join.new == Some(leg), join.purpose) {
            let call = self.parts.calls.get(slot);
            let side = call.and_then(|call| Some(*call.interfaces.get(call.side_of(referrer)?)));
            let hides = side.is_some_and(|side| self.parts.ctx.config.hiding(side).is_some());
            let status = response.status();
            let phrase = match hides {
                true => sip::reason_phrase(status),
                false => response.reason(),
            };
            let _ = self.endpoint.notify_refer(referrer, status, phrase, now);
        }
    }

    /// The new leg answered with its offer.
    pub(crate) fn transfer_answered(&mut self, slot: CallSlot, leg: LegId, response: &Message<'_>) {
        let now = self.parts.ctx.now;
        let known = self
            .parts
            .calls
            .join(slot)
            .is_some_and(|join| join.new == Some(leg) && join.stage == AwaitedStep::Target);
        if !known || !has_sdp(response) {
            let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
            let _ = self.endpoint.hang_up(leg, &MessageContent::default(), now);
            if known {
                self.transfer_failed(slot, 488);
            }
            return;
        }
        if let Some(join) = self.parts.calls.join_mut(slot) {
            join.stop_ring_timer(&mut self.parts.ctx);
        }
        self.offer_of_new(slot, None, response);
    }

    /// Sends the offer in `message` of the new or refreshed leg, or the request for one, to the opposite leg.
    fn offer_of_new(&mut self, slot: CallSlot, flow: Option<Flow>, message: &Message<'_>) {
        let Some(join) = self.parts.calls.join(slot) else {
            return;
        };
        let (side, new) = (join.side, join.new);
        let hop = join.hops.get(join.hop).cloned();
        let mut sdp = Vec::new();
        let rehomed = match (hop, new) {
            (Some(hop), Some(leg)) => {
                let remote = flow
                    .or_else(|| self.endpoint.flow_of(leg))
                    .map(|flow| flow.remote.ip());
                let media = remote.ok_or(AnchorError::Unanchorable).and_then(|remote| {
                    self.parts.media.media_side(
                        &self.parts.ctx.config,
                        hop.interface,
                        hop.trunk,
                        MediaPeer::of_message(remote, message),
                    )
                });
                match self.parts.calls.media_mut(slot) {
                    Some(anchored) => media
                        .and_then(|media| {
                            anchored.try_side(&mut self.parts.media.plane, side, media)
                        })
                        .map_err(|error| error.status()),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        };
        let carried = rehomed.and_then(|()| match has_sdp(message) {
            true => self
                .calls()
                .carry_sdp(slot.side(side), message, SdpRole::Offer, &mut sdp)
                .map_err(|error| error.status()),
            false => Ok(Carried::Nothing),
        });
        match carried {
            Ok(carried) => {
                if carried == Carried::Untouched {
                    sdp.extend_from_slice(description(message));
                }
                if let Some(join) = self.parts.calls.join_mut(slot) {
                    join.offer = sdp;
                }
                self.offer_to_other(slot);
            }
            Err(status) => self.transfer_failed(slot, status),
        }
    }

    fn offer_to_other(&mut self, slot: CallSlot) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let Some(join) = call.kind.join_mut() else {
            return;
        };
        let Some(other) = *call.legs.get(join.side.other()) else {
            return self.transfer_failed(slot, 481);
        };
        let content = match join.offer.is_empty() {
            true => MessageContent::default(),
            false => MessageContent::sdp(&join.offer),
        };
        let content = content.with(OWN_REINVITE);
        join.stage = AwaitedStep::Answer;
        match self.endpoint.request(other, Method::Invite, &content, now) {
            Ok(transaction) => {
                join.waiting = Some(transaction);
                self.parts
                    .calls
                    .start_reinvite_timer(&mut self.parts.ctx, slot, transaction);
            }
            Err(_) => self.schedule_transfer_retry(slot, other, 491),
        }
    }

    /// Glare: schedules a retry, a few times.
    fn schedule_transfer_retry(&mut self, slot: CallSlot, leg: LegId, status: u16) {
        let now = self.parts.ctx.now;
        let key = self.parts.calls.key_of(slot);
        let wait = self.endpoint.glare_wait(leg);
        let Some(join) = self.parts.calls.join_mut(slot) else {
            return;
        };
        join.tries += 1;
        match wait.filter(|_| join.tries < TRIES && status == 491) {
            Some(wait) => {
                join.stage = match join.stage {
                    AwaitedStep::Offer => AwaitedStep::OfferRetry,
                    _ => AwaitedStep::AnswerRetry,
                };
                join.waiting = None;
                self.parts
                    .ctx
                    .timers
                    .schedule(now + wait, Alarm::TransferRetry(key));
            }
            None => self.transfer_failed(slot, status),
        }
    }

    /// The delay after glare is over.
    pub(crate) fn retry_transfer(&mut self, slot: CallSlot) {
        let stage = self.parts.calls.join(slot).map(|join| join.stage);
        match stage {
            Some(AwaitedStep::AnswerRetry) => self.offer_to_other(slot),
            Some(AwaitedStep::OfferRetry) => self.ask_for_offer(slot),
            Some(AwaitedStep::Leg) => self.transfer_request_timed_out(slot),
            _ => {}
        }
    }

    /// A response to a re-INVITE of ours, or to one whose sender is gone.
    pub(crate) fn transfer_response(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        transaction: TransactionId,
        response: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let status = response.status();
        if status < 200 {
            return;
        }
        if self
            .parts
            .calls
            .get(slot)
            .is_some_and(|call| call.kind.participant().is_some())
        {
            return ConferenceCalls::new(&mut self.calls()).participant_refreshed(
                slot,
                leg,
                transaction,
                Ok(response),
            );
        }
        let success = status < 300;
        let stage = self
            .parts
            .calls
            .join(slot)
            .filter(|join| join.waiting == Some(transaction))
            .map(|join| join.stage);
        match stage {
            Some(AwaitedStep::Confirmation) => self.refresh_answered(slot, leg, response),
            Some(AwaitedStep::Offer) if success && has_sdp(response) => {
                self.offer_of_new(slot, None, response);
            }
            Some(AwaitedStep::Offer)
                if status == 491 && self.parts.calls.join(slot).is_some_and(Join::reanchors) =>
            {
                self.schedule_transfer_retry(slot, leg, status);
            }
            Some(AwaitedStep::Offer) => {
                if success {
                    let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
                }
                self.transfer_failed(slot, if success { 488 } else { status });
                self.endpoint.refresh_refused(leg, response, now);
            }
            Some(AwaitedStep::Answer) if success => self.transfer_completed(slot, leg, response),
            Some(AwaitedStep::Answer) if status == 491 => {
                self.schedule_transfer_retry(slot, leg, status);
            }
            Some(_) => self.transfer_failed(slot, status),
            None if success && response.method() == Method::Invite => {
                // Its sender cancelled: the dialog gets its ACK, then a new offer and answer restores a common session.
                let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
                self.calls().abandon_offer(slot);
                self.renegotiate(slot, leg);
            }
            None => {}
        }
    }

    /// The opposite leg has answered: the legs are connected.
    fn transfer_completed(&mut self, slot: CallSlot, other: LegId, response: &Message<'_>) {
        let now = self.parts.ctx.now;
        let Some(join) = self
            .parts
            .calls
            .get_mut(slot)
            .and_then(|call| call.kind.take_join())
        else {
            return;
        };
        let offered = !join.offer.is_empty();
        let role = if offered {
            SdpRole::Answer
        } else {
            SdpRole::Offer
        };
        let mut sdp = Vec::new();
        let carried = match has_sdp(response) {
            true => self
                .calls()
                .carry_sdp(slot.side(join.side.other()), response, role, &mut sdp),
            false => Ok(Carried::Nothing),
        };
        if carried == Ok(Carried::Untouched) {
            sdp.extend_from_slice(description(response));
        }
        let content = match sdp.is_empty() {
            true => MessageContent::default(),
            false => MessageContent::sdp(&sdp),
        };
        let good = carried.is_ok();
        if let Some(media) =
            (self.parts.calls.get_mut(slot)).and_then(|call| call.media.anchored_mut())
        {
            media.keep_side(&mut self.parts.media.plane);
        }
        match join.purpose {
            Purpose::Refresh | Purpose::Reanchor { .. } => {
                let _ = self.endpoint.ack(other, &MessageContent::default(), now);
                let leg = self
                    .parts
                    .calls
                    .get(slot)
                    .and_then(|call| call.leg(join.side));
                if let Some(leg) = leg {
                    let _ = self.endpoint.ack(leg, &content, now);
                }
            }
            Purpose::Transfer {
                referrer,
                consultation,
            } => {
                let _ = self.endpoint.ack(other, &MessageContent::default(), now);
                let Some(new) = join.new else { return };
                let _ = self.endpoint.ack(new, &content, now);
                let _ = self.endpoint.notify_refer(referrer, 200, b"OK", now);
                self.replace_leg(slot, &join, new);
                self.end_consultation(consultation, Reason::Transferred);
            }
            Purpose::Replace { .. } => {
                let Some(new) = join.new else { return };
                if self.endpoint.answer(new, 200, &content, now).is_ok() {
                    self.replace_leg(slot, &join, new);
                    let answered = (join.side.other(), other);
                    self.calls().await_ack(slot, answered, !offered, response);
                } else {
                    // It has ended in the meantime.
                    self.parts.trunks.end_call(join.on_trunk);
                    let _ = self.endpoint.ack(other, &MessageContent::default(), now);
                    self.endpoint.set_user(new, 0);
                    let _ = self.endpoint.hang_up(new, &MessageContent::default(), now);
                }
            }
        }
        let moves = matches!(join.purpose, Purpose::Reanchor { .. });
        match (good, moves) {
            (true, true) => {
                let call = self.parts.calls.get_mut(slot);
                if let Some(media) = call.and_then(|call| call.media.anchored_mut()) {
                    media.forget_former_ports();
                }
                self.parts.reanchored(slot);
            }
            (true, false) => {}
            (false, true) if self.parts.is_without_node(slot) => self.reanchor_later(slot),
            (false, _) => {
                self.calls().end_by_border(slot, Reason::AnswerNotForwarded);
            }
        }
    }

    /// The new leg takes its side; the replaced one is closed.
    fn replace_leg(&mut self, slot: CallSlot, join: &Join, new: LegId) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let old = call.legs.get_mut(join.side).replace(new);
        let mut left = None;
        if let Some(hop) = join.hops.get(join.hop) {
            left = core::mem::replace(call.trunks.get_mut(join.side), hop.trunk);
            if join.side == Side::Callee {
                call.headers.foreign_callee = hop.foreign;
            }
            *call.interfaces.get_mut(join.side) = hop.interface;
        }
        if join.side == Side::Caller {
            call.headers.user = None;
        }
        self.parts.trunks.end_call(left);
        if let Some(old) = old {
            self.endpoint.set_user(old, 0);
            let _ = self.endpoint.hang_up(old, &MessageContent::default(), now);
        }
        self.report_replaced_leg(number, join, new);
    }

    fn report_replaced_leg(&mut self, number: u64, join: &Join, new: LegId) {
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let hop = join.hops.get(join.hop);
        self.parts.ctx.events.tell(now, || EventKind::LegReplaced {
            call: number,
            side: join.side.name().to_owned(),
            cause: match join.purpose {
                Purpose::Replace { .. } => "replaces".to_owned(),
                _ => "transfer".to_owned(),
            },
            call_id: text(self.endpoint.call_id_of(new).unwrap_or_default()),
            interface: hop.map_or_else(String::new, |hop| config.interface_name(hop.interface)),
            address: (self.endpoint.flow_of(new))
                .map_or_else(String::new, |flow| address_of(&flow)),
            trunk: config.name_of_trunk(hop.and_then(|hop| hop.trunk)),
        });
    }

    /// Connecting the legs failed: pending requests are answered, and the call continues unchanged if possible.
    fn transfer_failed(&mut self, slot: CallSlot, status: u16) {
        let now = self.parts.ctx.now;
        self.calls().abandon_change(slot);
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let Some(mut join) = call.kind.take_join() else {
            return;
        };
        join.stop_ring_timer(&mut self.parts.ctx);
        let leg = call
            .leg(join.side)
            .filter(|_| !matches!(join.stage, AwaitedStep::Offer | AwaitedStep::Confirmation));
        if let Purpose::Transfer { referrer, .. } = join.purpose
            && self.return_to_consultation(&join, status)
        {
            let _ = self.endpoint.notify_refer(referrer, status, b"", now);
            return self.end_without_referrer(slot, join.side);
        }
        self.parts.trunks.end_call(join.on_trunk);
        match join.purpose {
            Purpose::Reanchor { .. } => self.reanchor_failed(slot, &join, status),
            Purpose::Refresh => {
                if leg.is_none() {
                    // Its offer could not be forwarded; its 2xx needs an ACK nevertheless.
                    self.acknowledge_both(slot);
                }
                if let Some(leg) = leg
                    && !self.answer_with_previous_session(slot, leg, &join)
                {
                    // Its offer was not answered: there is no session to return to.
                    let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
                    self.calls().end_by_border(slot, Reason::RefreshFailed);
                }
            }
            Purpose::Transfer {
                referrer,
                consultation,
            } => {
                let _ = self.endpoint.notify_refer(referrer, status, b"", now);
                if let Some(new) = join.new {
                    self.endpoint.set_user(new, 0);
                    let _ = self.endpoint.ack(new, &MessageContent::default(), now);
                    let _ = self.endpoint.hang_up(new, &MessageContent::default(), now);
                }
                self.end_consultation(consultation, Reason::TransferFailed);
                self.end_without_referrer(slot, join.side);
            }
            Purpose::Replace { .. } => {
                if let Some(new) = join.new {
                    let status = if status < 400 { 500 } else { status };
                    self.endpoint.set_user(new, 0);
                    let _ = self
                        .endpoint
                        .reject(new, status, &MessageContent::default(), now);
                }
            }
        }
    }

    /// A transfer has failed whose referrer has hung up: the transferee has no party to return to.
    pub(super) fn end_without_referrer(&mut self, slot: CallSlot, side: Side) {
        let call = self.parts.calls.get(slot);
        if call.is_some_and(|call| call.leg(side).is_none()) {
            self.calls().end_by_border(slot, Reason::TransferFailed);
        }
    }

    /// A leg in addition to the two of the call has ended.
    pub(crate) fn transfer_leg_ended(&mut self, slot: CallSlot, leg: LegId) {
        let Some(join) = self.parts.calls.join_mut(slot) else {
            return self.calls().finish_if_over(slot);
        };
        if join.new == Some(leg) {
            join.new = None;
            self.transfer_failed(slot, 487);
        }
        self.calls().finish_if_over(slot);
    }

    /// Our re-INVITE to a leg got no response, or could not be sent.
    pub(crate) fn transfer_reinvite_failed(
        &mut self,
        slot: CallSlot,
        (leg, transaction): (LegId, TransactionId),
        why: Failure,
    ) {
        let call = self.parts.calls.get(slot);
        if call.is_some_and(|call| call.kind.participant().is_some()) {
            return ConferenceCalls::new(&mut self.calls()).participant_refreshed(
                slot,
                leg,
                transaction,
                Err(why),
            );
        }
        let waits = self
            .parts
            .calls
            .join(slot)
            .is_some_and(|join| join.waiting == Some(transaction));
        if waits && why == Failure::TimedOut {
            return self.transfer_failed(slot, 408);
        }
        if waits {
            self.transfer_failed(slot, 503);
            self.endpoint.refresh_later(leg, self.parts.ctx.now);
        }
    }
}
