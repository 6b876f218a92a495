//! Third-party call control: connecting two legs that did not call each other. Used for transfer (REFER carried out by
//! us, RFC 3515, RFC 5589), INVITE with Replaces (RFC 3891), session refreshes of peers without UPDATE (RFC 4028), and
//! moves to another media node.
//!
//! One leg is asked for an offer (or has just sent one), the other gets it by re-INVITE, and its answer is sent in the
//! ACK of the first (RFC 3725 flow I; the side that may ring for long is asked first, so that no 2xx has to wait).

mod consultation;
mod cross_worker;
mod reanchor;
mod reinvite_timeout;

use consultation::refuse_transfer;
pub(crate) use cross_worker::Transfers;
use cross_worker::dialog_owner;

use super::hunting::{address_of, text};
use super::in_dialog::refuse;
use super::relay::{Carried, SdpRole, has_sdp, session_of};
use super::setup::RequestRefusal;
use super::{CallKey, CallPhase, HopStep, StepTarget};
use crate::border::{Alarm, Core};
use crate::policy::{Facts, Plan, decide};
use anchor::Side;
use config::{InterfaceId, TrunkId};
use engine::timers::TimerKey;
use engine::{EventKind, Time};
use sip::{
    Endpoint, Failure, Flow, Invite, LegId, MessageContent, Prack, ServerTransaction, Target,
    TransactionId,
};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, Method, percent_decode};

/// Maximum number of retries after glare.
const TRIES: u8 = 3;

/// Purpose of connecting two legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Refresh of the session of this side.
    Refresh,
    /// Move of the media of the call to another media node.
    Reanchor {
        /// Whether the other side was asked for an offer before, without success.
        swapped: bool,
    },
    /// Transfer: the new leg replaces the referrer.
    Transfer {
        /// The replaced leg.
        referrer: LegId,
        /// The call with the referrer that ends (attended transfer).
        consultation: Option<ConsultationCall>,
    },
    /// INVITE with Replaces: the new leg, which waits for its answer, replaces this one.
    Replace {
        /// The replaced leg.
        replaced: LegId,
    },
}

/// The consultation call of an attended transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConsultationCall {
    /// A call of this worker.
    Local(CallKey),
    /// A call of another worker, by the number of the transfer.
    Remote(u64),
}

/// Progress of connecting two legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferStage {
    /// Another worker was asked for the new leg.
    Asking,
    /// The new leg is being called.
    Calling,
    /// The offerer was asked for an offer.
    Offer,
    /// The offer was sent to the answerer.
    Answer,
    /// Glare: the re-INVITE with the offer is repeated after a delay.
    Waiting,
    /// Glare: the offerer is asked again after a delay.
    AskAgain,
}

/// Two legs that are being connected.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) purpose: Purpose,
    pub(crate) stage: TransferStage,
    /// The side of the new leg (of a refresh: the refreshed side).
    side: Side,
    /// The leg that is not part of the call yet.
    new: Option<LegId>,
    /// The REFER that waits for the response of another worker.
    refer_transaction: Option<ServerTransaction>,
    /// Deadline of that response.
    response_timer: Option<TimerKey>,
    /// Our pending re-INVITE.
    waiting: Option<TransactionId>,
    /// The offer for the answerer, while it may have to be repeated.
    offer: Vec<u8>,
    hops: Vec<HopStep>,
    next: usize,
    /// Headers of the transferred call.
    from: Vec<u8>,
    referred_by: Vec<u8>,
    hop: usize,
    /// The trunk that counts the new leg until it is part of the call.
    on_trunk: Option<TrunkId>,
    tries: u8,
}

impl Join {
    fn new(purpose: Purpose, stage: TransferStage, side: Side) -> Join {
        Join {
            purpose,
            stage,
            side,
            new: None,
            refer_transaction: None,
            response_timer: None,
            waiting: None,
            offer: Vec::new(),
            hops: Vec::new(),
            next: 0,
            from: Vec::new(),
            referred_by: Vec::new(),
            hop: 0,
            on_trunk: None,
            tries: 0,
        }
    }

    /// Applies the new interface and trunk indices after a reload.
    pub(crate) fn rename(&mut self, renamed: &crate::operate::IndexRemap) {
        renamed.steps(&mut self.hops);
        self.on_trunk = self.on_trunk.and_then(|trunk| renamed.trunk(trunk));
    }

    /// The consultation call of an attended transfer.
    fn consultation(&self) -> Option<ConsultationCall> {
        match self.purpose {
            Purpose::Transfer { consultation, .. } => consultation,
            _ => None,
        }
    }

    /// Whether no leg exists in addition to the two of the call.
    pub(crate) fn has_no_new_leg(&self) -> bool {
        self.new.is_none()
    }
}

/// The target of a REFER.
struct Referral {
    uri: Vec<u8>,
    /// Call-ID and tags of Replaces.
    replaces: Option<(Vec<u8>, Vec<u8>, Vec<u8>)>,
}

fn referral(request: &Message<'_>) -> Option<Referral> {
    let refer_to = request.refer_to().ok()?;
    let uri = refer_to.parse_uri().filter(|uri| uri.is_sip())?;
    if uri
        .params
        .get(b"method")
        .is_some_and(|method| !method.eq_ignore_ascii_case(b"INVITE"))
    {
        return None;
    }
    let replaces = uri
        .header_pairs()
        .find(|(name, _)| name.eq_ignore_ascii_case(b"Replaces"))
        .map(|(_, value)| percent_decode(value).into_owned());
    let replaces = match replaces {
        None => None,
        Some(value) => {
            let parsed = wire::sip::Replaces::parse(&value)?;
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
    Some(Referral {
        uri: refer_to.uri.get(..end)?.to_vec(),
        replaces,
    })
}

/// The SDP of a message, if it has one.
fn description<'m>(message: &Message<'m>) -> &'m [u8] {
    session_of(message)
        .bytes(message.body())
        .unwrap_or_default()
}

impl Core {
    /// Carries out a REFER.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn referred(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        from: Side,
        leg: LegId,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) {
        let Some(referral) = referral(request) else {
            return refuse(endpoint, transaction, 400, now);
        };
        let ready = self.calls.get(slot).is_some_and(|call| {
            call.phase == CallPhase::Confirmed
                && call.join.is_none()
                && call.ack_due.is_none()
                && call.leg(from.other()).is_some()
        });
        if !ready {
            return refuse(endpoint, transaction, 491, now);
        }
        let purpose = |consultation| Purpose::Transfer {
            referrer: leg,
            consultation,
        };
        if let Some((call_id, to_tag, from_tag)) = &referral.replaces {
            let consultation = endpoint
                .find_leg(call_id, to_tag, from_tag)
                .or_else(|| endpoint.find_leg(call_id, from_tag, to_tag))
                .and_then(|leg| Some((leg, CallKey(endpoint.user_of(leg)?))));
            if consultation.is_none()
                && let Some(worker) = dialog_owner(endpoint, to_tag, from_tag)
            {
                let dialog = (call_id.clone(), to_tag.clone(), from_tag.clone());
                let referrer = (from, leg);
                return self.request_leg(
                    endpoint,
                    slot,
                    referrer,
                    transaction,
                    worker,
                    dialog,
                    now,
                );
            }
            let Some((consulting, key)) = consultation else {
                // Not a dialog of ours: the target itself must have it.
                return refuse(endpoint, transaction, 481, now);
            };
            let consulted = ConsultationCall::Local(key);
            let join = Join::new(purpose(Some(consulted)), TransferStage::Offer, from);
            return match self.detach_consultation(endpoint, slot, join, (consulting, key)) {
                Ok(()) => {
                    refuse(endpoint, transaction, 202, now);
                    self.ask_for_offer(endpoint, slot, now);
                }
                Err(status) => refuse_transfer(endpoint, leg, transaction, status, now),
            };
        }
        let hops = self.hops_for_transfer(slot, from, &referral.uri, request);
        if hops.is_empty() {
            return refuse(endpoint, transaction, 404, now);
        }
        let mut join = Join::new(purpose(None), TransferStage::Calling, from);
        join.hops = hops;
        join.from = request.to().map(|to| to.uri.to_vec()).unwrap_or_default();
        join.referred_by = request
            .header(HeaderId::ReferredBy)
            .map(<[u8]>::to_vec)
            .unwrap_or_default();
        refuse(endpoint, transaction, 202, now);
        let _ = endpoint.notify_refer(leg, 100, b"Trying", now);
        if let Some(call) = self.calls.get_mut(slot) {
            call.join = Some(Box::new(join));
        }
        self.call_next_transfer(endpoint, slot, 503, now);
    }

    /// The hops of a transfer, by policy as for a call of the referrer.
    fn hops_for_transfer(
        &mut self,
        slot: usize,
        from: Side,
        uri: &[u8],
        request: &Message<'_>,
    ) -> Vec<HopStep> {
        let Some(call) = self.calls.get(slot) else {
            return Vec::new();
        };
        let facts = Facts {
            interface: *call.interfaces.get(from),
            trunk: *call.trunks.get(from),
            authenticated: call.trunks.get(from).is_some(),
            located: false,
            from: request.from().map(|from| from.uri).unwrap_or_default(),
            to: uri,
            random: self.entropy.u64(),
            calls: self.total_calls(),
            draining: self.draining.is_some(),
        };
        match decide(&self.config, &facts, &self.view()) {
            Plan::Call(plan) => plan.steps,
            Plan::Refuse(_) => Vec::new(),
        }
    }

    /// Sends a re-INVITE without SDP to the offerer.
    fn ask_for_offer(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(join) = call.join.as_deref_mut() else {
            return;
        };
        let leg = match join.purpose {
            Purpose::Refresh | Purpose::Reanchor { .. } => *call.legs.get(join.side),
            _ => join.new,
        };
        let sent = leg.and_then(|leg| {
            endpoint
                .request(leg, Method::Invite, &MessageContent::default(), now)
                .ok()
        });
        join.waiting = sent;
        join.stage = TransferStage::Offer;
        match sent {
            Some(sent) => self.start_reinvite_timer(slot, sent, now),
            None => self.transfer_failed(endpoint, slot, 491, now),
        }
    }

    /// Refreshes the session of a leg whose peer does not support UPDATE.
    pub(crate) fn refresh(&mut self, endpoint: &mut Endpoint, slot: usize, leg: LegId, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(side) = call.side_of(leg) else {
            return;
        };
        if call.participant.is_some() {
            return self.refresh_participant(endpoint, slot, leg, now);
        }
        let changes = call.join.is_some() || call.ack_due.is_some();
        // A leg whose other end was taken by a transfer is refreshed after its return.
        let whole = call.leg(side.other()).is_some();
        if changes || !whole || call.phase != CallPhase::Confirmed {
            return;
        }
        call.join = Some(Box::new(Join::new(
            Purpose::Refresh,
            TransferStage::Offer,
            side,
        )));
        self.ask_for_offer(endpoint, slot, now);
    }

    /// The call and side of the leg in Replaces of an INVITE, if it may be replaced.
    ///
    /// # Errors
    /// The refusal (RFC 3891 section 3).
    pub(crate) fn replaceable(
        &self,
        endpoint: &Endpoint,
        replaced: LegId,
        early_only: bool,
    ) -> Result<(usize, Side), RequestRefusal> {
        let none = || RequestRefusal::new(481, "the dialog in Replaces does not exist");
        let slot = endpoint
            .user_of(replaced)
            .and_then(|user| self.slot_of(CallKey(user)))
            .ok_or_else(none)?;
        let call = self.calls.get(slot).ok_or_else(none)?;
        if call.phase != CallPhase::Confirmed {
            return Err(none());
        }
        if early_only {
            return Err(RequestRefusal::new(
                486,
                "the dialog in Replaces is already answered",
            ));
        }
        if call.join.is_some() || call.ack_due.is_some() {
            return Err(RequestRefusal::new(
                491,
                "the dialog in Replaces is changing",
            ));
        }
        if call.relay.is_some() {
            return Err(RequestRefusal::new(
                488,
                "Replaces is not supported for a dialog with media at a media node",
            ));
        }
        match call.side_of(replaced) {
            Some(side) if call.leg(side.other()).is_some() => Ok((slot, side)),
            _ => Err(none()),
        }
    }

    /// Replaces a leg of that side by the new leg, which waits for its answer; see [`Core::replaceable`].
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn replace(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        (slot, side, replaced): (usize, Side, LegId),
        request: &Message<'_>,
        flow: Flow,
        hop: HopStep,
        now: Time,
    ) {
        endpoint.set_user(leg, self.key_of(slot).0);
        let mut join = Join::new(Purpose::Replace { replaced }, TransferStage::Answer, side);
        join.new = Some(leg);
        join.on_trunk = hop.trunk;
        self.count_trunk_call(hop.trunk);
        join.hops.push(hop);
        if let Some(call) = self.calls.get_mut(slot) {
            call.join = Some(Box::new(join));
        }
        self.offer_of_new(endpoint, slot, Some(flow), request, now);
    }

    /// Calls the next hop of a transfer.
    fn call_next_transfer(&mut self, endpoint: &mut Endpoint, slot: usize, status: u16, now: Time) {
        let key = self.key_of(slot);
        loop {
            let Some(join) = self
                .calls
                .get_mut(slot)
                .and_then(|call| call.join.as_deref_mut())
            else {
                return;
            };
            let index = join.next;
            join.next += 1;
            join.hop = index;
            let Some(hop) = join.hops.get(index).cloned() else {
                return self.transfer_failed(endpoint, slot, status, now);
            };
            let (from, referred_by) = (join.from.clone(), join.referred_by.clone());
            let Some(flow) = self.flow_to(&hop) else {
                continue;
            };
            let flow = self.with_hop_certificate_name(endpoint, flow, &hop);
            let host = self.advertised_host(flow.local);
            let from = super::hunting::moved_uri(&from, &host);
            let from = [b"<", from.as_slice(), b">"].concat();
            let referred_by = match self.config.hiding(hop.interface) {
                Some(_) => {
                    let mut hidden = Vec::new();
                    crate::hiding::address(&referred_by, &host, &mut hidden);
                    hidden
                }
                None => referred_by,
            };
            let edit = [Edit::Add {
                id: HeaderId::ReferredBy,
                value: &referred_by,
            }];
            let routes: SmallVec<[&[u8]; 2]> = hop.routes.iter().map(|route| &**route).collect();
            let mut invite = Invite::new(Target {
                uri: &hop.uri,
                flow,
                routes: &routes,
                pinned: matches!(hop.place, StepTarget::Flow(_)),
                tcp_when_large: false,
                feedback: false,
            });
            invite.from = Some(&from);
            invite.user = key.0;
            invite.prack = Prack::Automatic;
            invite.content.edits = if referred_by.is_empty() { &[] } else { &edit };
            let Ok(leg) = endpoint.invite(&invite, now) else {
                continue;
            };
            let number = self.calls.get(slot).map_or(0, |call| call.number);
            self.count_trunk_call(hop.trunk);
            self.events.tell(now, || EventKind::CallRouted {
                call: number,
                route: "transfer".to_owned(),
                target: hop.label,
                address: address_of(&flow),
                call_id: text(endpoint.call_id_of(leg).unwrap_or_default()),
            });
            if let Some(join) = self
                .calls
                .get_mut(slot)
                .and_then(|call| call.join.as_deref_mut())
            {
                join.new = Some(leg);
                join.on_trunk = hop.trunk;
            }
            return;
        }
    }

    /// The new leg rings.
    pub(crate) fn transfer_progressed(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        response: &Message<'_>,
        now: Time,
    ) {
        let Some(join) = self.calls.get(slot).and_then(|call| call.join.as_deref()) else {
            return;
        };
        if let (true, Purpose::Transfer { referrer, .. }) = (join.new == Some(leg), join.purpose) {
            let _ = endpoint.notify_refer(referrer, response.status(), response.reason(), now);
        }
    }

    /// The new leg answered with its offer.
    pub(crate) fn transfer_answered(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        response: &Message<'_>,
        now: Time,
    ) {
        let known = self
            .calls
            .get(slot)
            .and_then(|call| call.join.as_deref())
            .is_some_and(|join| join.new == Some(leg) && join.stage == TransferStage::Calling);
        if !known || !has_sdp(response) {
            let _ = endpoint.ack(leg, &MessageContent::default(), now);
            let _ = endpoint.hang_up(leg, &MessageContent::default(), now);
            if known {
                self.transfer_failed(endpoint, slot, 488, now);
            }
            return;
        }
        self.offer_of_new(endpoint, slot, None, response, now);
    }

    /// Sends the offer in `message` of the new or refreshed leg, or the request for one, to the opposite leg.
    fn offer_of_new(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        flow: Option<Flow>,
        message: &Message<'_>,
        now: Time,
    ) {
        let Some(join) = self.calls.get(slot).and_then(|call| call.join.as_deref()) else {
            return;
        };
        let (side, new) = (join.side, join.new);
        let hop = join.hops.get(join.hop).cloned();
        let mut sdp = Vec::new();
        let rehomed = match (hop, new) {
            (Some(hop), Some(leg)) => {
                let remote = flow
                    .or_else(|| endpoint.flow_of(leg))
                    .map(|flow| flow.remote.ip());
                let media = remote.and_then(|ip| self.media_side(hop.interface, hop.trunk, ip));
                match (
                    media,
                    self.calls
                        .get_mut(slot)
                        .and_then(|call| call.media.as_deref_mut()),
                ) {
                    (Some(media), Some(anchored)) => anchored
                        .try_side(&mut self.plane, side, media)
                        .map_err(|error| error.status()),
                    (None, Some(_)) => Err(488),
                    (_, None) => Ok(()),
                }
            }
            _ => Ok(()),
        };
        let carried = rehomed.and_then(|()| match has_sdp(message) {
            true => self
                .carry_sdp(slot, side, message, SdpRole::Offer, &mut sdp)
                .map_err(|error| error.status()),
            false => Ok(Carried::Nothing),
        });
        match carried {
            Ok(carried) => {
                if carried == Carried::Untouched {
                    sdp.extend_from_slice(description(message));
                }
                if let Some(join) = self
                    .calls
                    .get_mut(slot)
                    .and_then(|call| call.join.as_deref_mut())
                {
                    join.offer = sdp;
                }
                self.offer_to_other(endpoint, slot, now);
            }
            Err(status) => self.transfer_failed(endpoint, slot, status, now),
        }
    }

    fn offer_to_other(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(join) = call.join.as_deref_mut() else {
            return;
        };
        let Some(other) = *call.legs.get(join.side.other()) else {
            return self.transfer_failed(endpoint, slot, 481, now);
        };
        let content = match join.offer.is_empty() {
            true => MessageContent::default(),
            false => MessageContent::sdp(&join.offer),
        };
        join.stage = TransferStage::Answer;
        match endpoint.request(other, Method::Invite, &content, now) {
            Ok(transaction) => {
                join.waiting = Some(transaction);
                self.start_reinvite_timer(slot, transaction, now);
            }
            Err(_) => self.schedule_transfer_retry(endpoint, slot, other, 491, now),
        }
    }

    /// Glare: schedules a retry, a few times.
    fn schedule_transfer_retry(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        status: u16,
        now: Time,
    ) {
        let key = self.key_of(slot);
        let wait = endpoint.glare_wait(leg);
        let Some(join) = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.join.as_deref_mut())
        else {
            return;
        };
        join.tries += 1;
        match wait.filter(|_| join.tries < TRIES && status == 491) {
            Some(wait) => {
                join.stage = match join.stage {
                    TransferStage::Offer => TransferStage::AskAgain,
                    _ => TransferStage::Waiting,
                };
                join.waiting = None;
                self.timers.schedule(now + wait, Alarm::TransferRetry(key));
            }
            None => self.transfer_failed(endpoint, slot, status, now),
        }
    }

    /// The delay after glare is over.
    pub(crate) fn retry_transfer(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let stage = self
            .calls
            .get(slot)
            .and_then(|call| call.join.as_deref())
            .map(|join| join.stage);
        match stage {
            Some(TransferStage::Waiting) => self.offer_to_other(endpoint, slot, now),
            Some(TransferStage::AskAgain) => self.ask_for_offer(endpoint, slot, now),
            Some(TransferStage::Asking) => self.transfer_request_timed_out(endpoint, slot, now),
            _ => {}
        }
    }

    /// A response to a re-INVITE of ours, or to one whose sender is gone.
    pub(crate) fn transfer_response(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        transaction: TransactionId,
        response: &Message<'_>,
        now: Time,
    ) {
        let status = response.status();
        if status < 200 {
            return;
        }
        if self
            .calls
            .get(slot)
            .is_some_and(|call| call.participant.is_some())
        {
            return self.participant_refreshed(
                endpoint,
                slot,
                leg,
                transaction,
                Some(response),
                now,
            );
        }
        let success = status < 300;
        let stage = self
            .calls
            .get(slot)
            .and_then(|call| call.join.as_deref())
            .filter(|join| join.waiting == Some(transaction))
            .map(|join| join.stage);
        match stage {
            Some(TransferStage::Offer) if success && has_sdp(response) => {
                self.offer_of_new(endpoint, slot, None, response, now);
            }
            Some(TransferStage::Offer) if status == 491 && self.reanchors(slot) => {
                self.schedule_transfer_retry(endpoint, slot, leg, status, now);
            }
            Some(TransferStage::Offer) => {
                if success {
                    let _ = endpoint.ack(leg, &MessageContent::default(), now);
                }
                self.transfer_failed(endpoint, slot, if success { 488 } else { status }, now);
            }
            Some(TransferStage::Answer) if success => {
                self.transfer_completed(endpoint, slot, leg, response, now)
            }
            Some(TransferStage::Answer) if status == 491 => {
                self.schedule_transfer_retry(endpoint, slot, leg, status, now);
            }
            Some(_) => self.transfer_failed(endpoint, slot, status, now),
            None if success && response.method() == Method::Invite => {
                // Its sender cancelled: the dialog gets its ACK, then a new offer and answer restores a common session.
                let _ = endpoint.ack(leg, &MessageContent::default(), now);
                self.abandon_offer(slot);
                self.refresh(endpoint, slot, leg, now);
            }
            None => {}
        }
    }

    /// The opposite leg has answered: the legs are connected.
    fn transfer_completed(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        other: LegId,
        response: &Message<'_>,
        now: Time,
    ) {
        let Some(join) = self.calls.get_mut(slot).and_then(|call| call.join.take()) else {
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
            true => self.carry_sdp(slot, join.side.other(), response, role, &mut sdp),
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
        if let Some(media) = (self.calls.get_mut(slot)).and_then(|call| call.media.as_deref_mut()) {
            media.keep_side(&mut self.plane);
        }
        match join.purpose {
            Purpose::Refresh | Purpose::Reanchor { .. } => {
                let _ = endpoint.ack(other, &MessageContent::default(), now);
                let leg = self.calls.get(slot).and_then(|call| call.leg(join.side));
                if let Some(leg) = leg {
                    let _ = endpoint.ack(leg, &content, now);
                }
            }
            Purpose::Transfer {
                referrer,
                consultation,
            } => {
                let _ = endpoint.ack(other, &MessageContent::default(), now);
                let Some(new) = join.new else { return };
                let _ = endpoint.ack(new, &content, now);
                let _ = endpoint.notify_refer(referrer, 200, b"OK", now);
                self.replace_leg(endpoint, slot, &join, new, now);
                self.end_consultation(endpoint, consultation, "transferred", now);
            }
            Purpose::Replace { .. } => {
                let Some(new) = join.new else { return };
                if endpoint.answer(new, 200, &content, now).is_ok() {
                    self.replace_leg(endpoint, slot, &join, new, now);
                    let answered = (join.side.other(), other);
                    self.await_ack(endpoint, slot, answered, !offered, response, now);
                } else {
                    // It has ended in the meantime.
                    self.trunk_call_ended(join.on_trunk);
                    let _ = endpoint.ack(other, &MessageContent::default(), now);
                    endpoint.set_user(new, 0);
                    let _ = endpoint.hang_up(new, &MessageContent::default(), now);
                }
            }
        }
        let moves = matches!(join.purpose, Purpose::Reanchor { .. });
        match (good, moves) {
            (true, true) => self.reanchored(slot, now),
            (true, false) => {}
            (false, true) if self.is_without_node(slot) => self.reanchor_later(endpoint, slot, now),
            (false, _) => {
                self.end_call(
                    endpoint,
                    slot,
                    "border",
                    "answer cannot be forwarded",
                    None,
                    now,
                );
            }
        }
    }

    /// The new leg takes its side; the replaced one is closed.
    fn replace_leg(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        join: &Join,
        new: LegId,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let old = call.legs.get_mut(join.side).replace(new);
        let mut left = None;
        if let Some(hop) = join.hops.get(join.hop) {
            left = core::mem::replace(call.trunks.get_mut(join.side), hop.trunk);
            *call.interfaces.get_mut(join.side) = hop.interface;
        }
        self.trunk_call_ended(left);
        if let Some(old) = old {
            endpoint.set_user(old, 0);
            let _ = endpoint.hang_up(old, &MessageContent::default(), now);
        }
    }

    /// Connecting the legs failed: pending requests are answered, and the call continues unchanged if possible.
    fn transfer_failed(&mut self, endpoint: &mut Endpoint, slot: usize, status: u16, now: Time) {
        self.abandon_change(slot);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(join) = call.join.take() else { return };
        let leg = call
            .leg(join.side)
            .filter(|_| join.stage != TransferStage::Offer);
        if let Purpose::Transfer { referrer, .. } = join.purpose
            && self.return_to_consultation(endpoint, &join, status, now)
        {
            let _ = endpoint.notify_refer(referrer, status, b"", now);
            return;
        }
        self.trunk_call_ended(join.on_trunk);
        match join.purpose {
            Purpose::Reanchor { .. } => self.reanchor_failed(endpoint, slot, &join, status, now),
            Purpose::Refresh => {
                if leg.is_none() {
                    // Its offer could not be forwarded; its 2xx needs an ACK nevertheless.
                    self.acknowledge_both(endpoint, slot, now);
                }
                if let Some(leg) = leg {
                    // Its offer was not answered: there is no session to return to.
                    let _ = endpoint.ack(leg, &MessageContent::default(), now);
                    self.end_call(endpoint, slot, "border", "refresh failed", None, now);
                }
            }
            Purpose::Transfer {
                referrer,
                consultation,
            } => {
                let _ = endpoint.notify_refer(referrer, status, b"", now);
                if let Some(new) = join.new {
                    endpoint.set_user(new, 0);
                    let _ = endpoint.ack(new, &MessageContent::default(), now);
                    let _ = endpoint.hang_up(new, &MessageContent::default(), now);
                }
                self.end_consultation(endpoint, consultation, "transfer failed", now);
            }
            Purpose::Replace { .. } => {
                if let Some(new) = join.new {
                    let status = if status < 400 { 500 } else { status };
                    endpoint.set_user(new, 0);
                    let _ = endpoint.reject(new, status, &MessageContent::default(), now);
                }
            }
        }
    }

    /// The new leg was not answered.
    pub(crate) fn transfer_leg_failed(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        why: Failure,
        response: Option<&Message<'_>>,
        now: Time,
    ) {
        let Some(join) = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.join.as_deref_mut())
        else {
            return;
        };
        if join.new != Some(leg) {
            return;
        }
        join.new = None;
        let trunk = join.on_trunk.take();
        let status = match why {
            Failure::Response => response.map_or(500, Message::status),
            Failure::TimedOut => 408,
            Failure::Transport => 503,
            Failure::CancelCrossed | Failure::CancelledWithoutResponse => 487,
        };
        if why == Failure::Response && status != 503 {
            join.next = join.hops.len();
        }
        self.trunk_call_ended(trunk);
        self.call_next_transfer(endpoint, slot, status, now);
    }

    /// The INVITE with Replaces was cancelled.
    pub(crate) fn transfer_cancelled(&mut self, slot: usize, leg: LegId, _now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call
            .join
            .as_deref()
            .is_some_and(|join| join.new == Some(leg))
        {
            // The response to our re-INVITE finds no transfer, and restores a common session of the old legs.
            let trunk = call.join.take().and_then(|join| join.on_trunk);
            self.trunk_call_ended(trunk);
            self.abandon_change(slot);
        }
    }

    /// A leg in addition to the two of the call has ended.
    pub(crate) fn transfer_leg_ended(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        now: Time,
    ) {
        let Some(join) = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.join.as_deref_mut())
        else {
            return self.finish_if_over(slot, now);
        };
        if join.new == Some(leg) {
            join.new = None;
            self.transfer_failed(endpoint, slot, 487, now);
        }
        self.finish_if_over(slot, now);
    }

    /// Our re-INVITE got no response.
    pub(crate) fn transfer_reinvite_timed_out(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        transaction: TransactionId,
        now: Time,
    ) {
        if let Some(call) = self
            .calls
            .get(slot)
            .filter(|call| call.participant.is_some())
        {
            if let Some(leg) = call.leg(Side::Caller) {
                self.participant_refreshed(endpoint, slot, leg, transaction, None, now);
            }
            return;
        }
        let waits = self
            .calls
            .get(slot)
            .and_then(|call| call.join.as_deref())
            .is_some_and(|join| join.waiting == Some(transaction));
        if waits {
            self.transfer_failed(endpoint, slot, 408, now);
        }
    }

    /// The call ends, and with it the transfer.
    pub(crate) fn close_transfer(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let Some(join) = self.calls.get_mut(slot).and_then(|call| call.join.take()) else {
            return;
        };
        match join.consultation() {
            Some(ConsultationCall::Remote(number)) if join.stage == TransferStage::Asking => {
                self.withdraw_request(endpoint, number, &join, now);
            }
            consulted => self.end_consultation(endpoint, consulted, "transfer failed", now),
        }
        self.trunk_call_ended(join.on_trunk);
        if let Some(new) = join.new {
            endpoint.set_user(new, 0);
            let _ = endpoint.ack(new, &MessageContent::default(), now);
            let _ = endpoint.hang_up(new, &MessageContent::default(), now);
        }
    }
}

/// A step for an existing leg.
pub(crate) fn existing_leg_step(interface: InterfaceId, trunk: Option<TrunkId>) -> HopStep {
    HopStep {
        group: 0,
        interface,
        trunk,
        target: 0,
        label: String::new(),
        uri: Vec::new(),
        routes: Vec::new(),
        place: StepTarget::Address(
            std::net::SocketAddr::from(([0, 0, 0, 0], 0)),
            engine::Transport::Udp,
        ),
        identity: false,
        redirected: false,
    }
}
