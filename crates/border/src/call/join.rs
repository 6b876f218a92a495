//! Third party call control: bringing two legs together that did not call each other. Used for transfer (REFER carried
//! out by us, RFC 3515, RFC 5589), for INVITE with Replaces (RFC 3891), and for refreshing a session with a peer that
//! takes no UPDATE (RFC 4028).
//!
//! One leg is asked for an offer (or has just given one), the other is given it by re-INVITE, and its answer goes back in
//! the first one's ACK (RFC 3725 flow I, with the side that may ring for long asked first, so that no 2xx has to wait).

mod consulted;
mod elsewhere;
mod late;
mod reanchor;

use consulted::refuse_transfer;
pub(crate) use elsewhere::Transfers;
use elsewhere::keeper_of;

use super::inside::refuse;
use super::offered::Refused;
use super::pass::{Carried, Role, has_sdp, session_of};
use super::try_next::{address_of, text};
use super::{CallKey, Phase, Place, Side, Step};
use crate::border::{Alarm, Core};
use crate::config::{InterfaceId, TrunkId};
use crate::policy::{Facts, Plan, decide};
use engine::timers::TimerKey;
use engine::{Note, Time};
use sip::{
    Content, Endpoint, Failure, Flow, Invite, LegId, Prack, ServerTransaction, Target,
    TransactionId,
};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, Method, percent_decode};

/// Glare is waited out this often.
const TRIES: u8 = 3;

/// Why legs are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The session of this side has to be refreshed.
    Refresh,
    /// The media of the call moves to another node.
    Reanchor {
        /// The other side was asked for an offer first, and gave none.
        swapped: bool,
    },
    /// The referrer's place is taken by the new leg.
    Transfer {
        /// Whose place is taken.
        referrer: LegId,
        /// The call with the referrer that is dissolved (attended transfer).
        consultation: Option<Consulted>,
    },
    /// The new leg, which waits for its answer, takes the place of this one.
    Replace {
        /// Whose place is taken.
        replaced: LegId,
    },
}

/// The other call of an attended transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consulted {
    /// One of ours.
    Here(CallKey),
    /// One of another worker, by the transfer's number.
    Elsewhere(u64),
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Another worker was asked for the new leg.
    Asking,
    /// The new leg is being called.
    Calling,
    /// The offerer was asked for an offer.
    Offer,
    /// The answerer was given the offer.
    Answer,
    /// Glare: the re-INVITE with the offer is tried again when the alarm comes.
    Waiting,
    /// Glare: the offerer is asked again when the alarm comes.
    AskAgain,
}

/// Two legs being brought together.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) purpose: Purpose,
    pub(crate) stage: Stage,
    /// The side of the call on which the new leg will be (or, for a refresh, the side that is refreshed).
    side: Side,
    /// The leg that is not one of the call's legs yet.
    new: Option<LegId>,
    /// The REFER that waits for another worker's word.
    asked_by: Option<ServerTransaction>,
    /// Until when.
    word_by: Option<TimerKey>,
    /// Our re-INVITE.
    waiting: Option<TransactionId>,
    /// The offer for the answerer, while it may have to be sent again.
    offer: Vec<u8>,
    hops: Vec<Step>,
    next: usize,
    /// Headers of the transferred call.
    from: Vec<u8>,
    referred_by: Vec<u8>,
    hop: usize,
    /// Where the new leg is counted until it is one of the call's.
    on_trunk: Option<TrunkId>,
    tries: u8,
}

impl Join {
    fn new(purpose: Purpose, stage: Stage, side: Side) -> Join {
        Join {
            purpose,
            stage,
            side,
            new: None,
            asked_by: None,
            word_by: None,
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

    /// A reload gave interfaces and trunks other indices.
    pub(crate) fn rename(&mut self, renamed: &crate::operate::Renaming) {
        renamed.steps(&mut self.hops);
        self.on_trunk = self.on_trunk.and_then(|trunk| renamed.trunk(trunk));
    }

    /// The other call of an attended transfer.
    fn consults(&self) -> Option<Consulted> {
        match self.purpose {
            Purpose::Transfer { consultation, .. } => consultation,
            _ => None,
        }
    }

    /// Whether no leg outside of the call's two is left.
    pub(crate) fn legs_are_gone(&self) -> bool {
        self.new.is_none()
    }
}

/// What Refer-To asks for.
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

/// The session description of a message that has one.
fn description<'m>(message: &Message<'m>) -> &'m [u8] {
    session_of(message)
        .bytes(message.body())
        .unwrap_or_default()
}

impl Core {
    /// A REFER that we carry out.
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
            call.phase == Phase::Confirmed
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
                && let Some(worker) = keeper_of(endpoint, to_tag, from_tag)
            {
                let dialog = (call_id.clone(), to_tag.clone(), from_tag.clone());
                let referrer = (from, leg);
                return self.ask_elsewhere(
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
                // Not a dialog of ours: the target itself has to know it.
                return refuse(endpoint, transaction, 481, now);
            };
            let consulted = Consulted::Here(key);
            let join = Join::new(purpose(Some(consulted)), Stage::Offer, from);
            return match self.take_consulted(endpoint, slot, join, (consulting, key)) {
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
        let mut join = Join::new(purpose(None), Stage::Calling, from);
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

    /// Where a transfer leads, as policy decides for a call of the referrer's.
    fn hops_for_transfer(
        &mut self,
        slot: usize,
        from: Side,
        uri: &[u8],
        request: &Message<'_>,
    ) -> Vec<Step> {
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
            calls: self.calls_of_all(),
            draining: self.draining.is_some(),
        };
        match decide(&self.config, &facts, &self.view()) {
            Plan::Call(plan) => plan.steps,
            Plan::Refuse(_) => Vec::new(),
        }
    }

    /// Sends a re-INVITE without a body to the leg that shall offer.
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
                .request(leg, Method::Invite, &Content::default(), now)
                .ok()
        });
        join.waiting = sent;
        join.stage = Stage::Offer;
        match sent {
            Some(sent) => self.expect_in_time(slot, sent, now),
            None => self.join_failed(endpoint, slot, 491, now),
        }
    }

    /// Our turn to refresh the session with a leg whose peer takes no UPDATE.
    pub(crate) fn refresh(&mut self, endpoint: &mut Endpoint, slot: usize, leg: LegId, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(side) = call.side_of(leg) else {
            return;
        };
        if call.seat.is_some() {
            return self.seat_refresh(endpoint, slot, leg, now);
        }
        let changes = call.join.is_some() || call.ack_due.is_some();
        // Whose other end a transfer has taken is refreshed when it comes back.
        let whole = call.leg(side.other()).is_some();
        if changes || !whole || call.phase != Phase::Confirmed {
            return;
        }
        call.join = Some(Box::new(Join::new(Purpose::Refresh, Stage::Offer, side)));
        self.ask_for_offer(endpoint, slot, now);
    }

    /// The call and the side whose leg an INVITE with Replaces names, where it may take that leg's place.
    ///
    /// # Errors
    /// What to answer (RFC 3891 section 3).
    pub(crate) fn replaceable(
        &self,
        endpoint: &Endpoint,
        replaced: LegId,
        early_only: bool,
    ) -> Result<(usize, Side), Refused> {
        let none = || Refused::new(481, "no such dialog to replace");
        let slot = endpoint
            .user_of(replaced)
            .and_then(|user| self.slot_of(CallKey(user)))
            .ok_or_else(none)?;
        let call = self.calls.get(slot).ok_or_else(none)?;
        if call.phase != Phase::Confirmed {
            return Err(none());
        }
        if early_only {
            return Err(Refused::new(486, "the dialog to replace is answered"));
        }
        if call.join.is_some() || call.ack_due.is_some() {
            return Err(Refused::new(491, "the dialog to replace changes already"));
        }
        if call.relay.is_some() {
            return Err(Refused::new(
                488,
                "the media of the dialog to replace is at a node",
            ));
        }
        match call.side_of(replaced) {
            Some(side) if call.leg(side.other()).is_some() => Ok((slot, side)),
            _ => Err(none()),
        }
    }

    /// The new leg, which waits for its answer, takes the place of a leg of that side; see [`Core::replaceable`].
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn replace(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        (slot, side, replaced): (usize, Side, LegId),
        request: &Message<'_>,
        flow: Flow,
        hop: Step,
        now: Time,
    ) {
        endpoint.set_user(leg, self.key_of(slot).0);
        let mut join = Join::new(Purpose::Replace { replaced }, Stage::Answer, side);
        join.new = Some(leg);
        join.on_trunk = hop.trunk;
        self.trunk_call_began(hop.trunk);
        join.hops.push(hop);
        if let Some(call) = self.calls.get_mut(slot) {
            call.join = Some(Box::new(join));
        }
        self.offer_of_new(endpoint, slot, Some(flow), request, now);
    }

    /// The next place to which a transferred call may go.
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
                return self.join_failed(endpoint, slot, status, now);
            };
            let (from, referred_by) = (join.from.clone(), join.referred_by.clone());
            let Some(flow) = self.flow_to(&hop) else {
                continue;
            };
            let flow = self.named(endpoint, flow, &hop);
            let host = self.advertised_host(flow.local);
            let from = super::try_next::moved_uri(&from, &host);
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
                pinned: matches!(hop.place, Place::Flow(_)),
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
            self.trunk_call_began(hop.trunk);
            self.events.tell(now, || Note::CallRouted {
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
    pub(crate) fn join_progressed(
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

    /// The new leg answered, with its offer.
    pub(crate) fn join_answered(
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
            .is_some_and(|join| join.new == Some(leg) && join.stage == Stage::Calling);
        if !known || !has_sdp(response) {
            let _ = endpoint.ack(leg, &Content::default(), now);
            let _ = endpoint.hang_up(leg, &Content::default(), now);
            if known {
                self.join_failed(endpoint, slot, 488, now);
            }
            return;
        }
        self.offer_of_new(endpoint, slot, None, response, now);
    }

    /// Gives the offer (or its absence) in `message` of the new or refreshed leg to the leg opposite.
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
                        .visit(&mut self.plane, side, media)
                        .map_err(|error| error.status()),
                    (None, Some(_)) => Err(488),
                    (_, None) => Ok(()),
                }
            }
            _ => Ok(()),
        };
        let carried = rehomed.and_then(|()| match has_sdp(message) {
            true => self
                .carry_sdp(slot, side, message, Role::Offer, &mut sdp)
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
            Err(status) => self.join_failed(endpoint, slot, status, now),
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
            return self.join_failed(endpoint, slot, 481, now);
        };
        let content = match join.offer.is_empty() {
            true => Content::default(),
            false => Content::sdp(&join.offer),
        };
        join.stage = Stage::Answer;
        match endpoint.request(other, Method::Invite, &content, now) {
            Ok(transaction) => {
                join.waiting = Some(transaction);
                self.expect_in_time(slot, transaction, now);
            }
            Err(_) => self.join_again(endpoint, slot, other, 491, now),
        }
    }

    /// Glare: tries again after a while, a few times.
    fn join_again(
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
                    Stage::Offer => Stage::AskAgain,
                    _ => Stage::Waiting,
                };
                join.waiting = None;
                self.timers.schedule(now + wait, Alarm::JoinAgain(key));
            }
            None => self.join_failed(endpoint, slot, status, now),
        }
    }

    /// The wait after glare is over.
    pub(crate) fn join_alarm(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let stage = self
            .calls
            .get(slot)
            .and_then(|call| call.join.as_deref())
            .map(|join| join.stage);
        match stage {
            Some(Stage::Waiting) => self.offer_to_other(endpoint, slot, now),
            Some(Stage::AskAgain) => self.ask_for_offer(endpoint, slot, now),
            Some(Stage::Asking) => self.asked_long_enough(endpoint, slot, now),
            _ => {}
        }
    }

    /// A response to a re-INVITE of ours, or to one whose asker is gone.
    pub(crate) fn join_responded(
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
        if self.calls.get(slot).is_some_and(|call| call.seat.is_some()) {
            return self.seat_refreshed(endpoint, slot, leg, transaction, Some(response), now);
        }
        let success = status < 300;
        let stage = self
            .calls
            .get(slot)
            .and_then(|call| call.join.as_deref())
            .filter(|join| join.waiting == Some(transaction))
            .map(|join| join.stage);
        match stage {
            Some(Stage::Offer) if success && has_sdp(response) => {
                self.offer_of_new(endpoint, slot, None, response, now);
            }
            Some(Stage::Offer) if status == 491 && self.reanchors(slot) => {
                self.join_again(endpoint, slot, leg, status, now);
            }
            Some(Stage::Offer) => {
                if success {
                    let _ = endpoint.ack(leg, &Content::default(), now);
                }
                self.join_failed(endpoint, slot, if success { 488 } else { status }, now);
            }
            Some(Stage::Answer) if success => self.joined(endpoint, slot, leg, response, now),
            Some(Stage::Answer) if status == 491 => {
                self.join_again(endpoint, slot, leg, status, now);
            }
            Some(_) => self.join_failed(endpoint, slot, status, now),
            None if success && response.method() == Method::Invite => {
                // Its asker cancelled: the dialog gets its ACK, then both sides are brought to agree again.
                let _ = endpoint.ack(leg, &Content::default(), now);
                self.abandon_offer(slot);
                self.refresh(endpoint, slot, leg, now);
            }
            None => {}
        }
    }

    /// The opposite leg has answered: the legs are together.
    fn joined(
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
        let role = if offered { Role::Answer } else { Role::Offer };
        let mut sdp = Vec::new();
        let carried = match has_sdp(response) {
            true => self.carry_sdp(slot, join.side.other(), response, role, &mut sdp),
            false => Ok(Carried::Nothing),
        };
        if carried == Ok(Carried::Untouched) {
            sdp.extend_from_slice(description(response));
        }
        let content = match sdp.is_empty() {
            true => Content::default(),
            false => Content::sdp(&sdp),
        };
        let good = carried.is_ok();
        if let Some(media) = (self.calls.get_mut(slot)).and_then(|call| call.media.as_deref_mut()) {
            media.stay(&mut self.plane);
        }
        match join.purpose {
            Purpose::Refresh | Purpose::Reanchor { .. } => {
                let _ = endpoint.ack(other, &Content::default(), now);
                let leg = self.calls.get(slot).and_then(|call| call.leg(join.side));
                if let Some(leg) = leg {
                    let _ = endpoint.ack(leg, &content, now);
                }
            }
            Purpose::Transfer {
                referrer,
                consultation,
            } => {
                let _ = endpoint.ack(other, &Content::default(), now);
                let Some(new) = join.new else { return };
                let _ = endpoint.ack(new, &content, now);
                let _ = endpoint.notify_refer(referrer, 200, b"OK", now);
                self.put_in_place(endpoint, slot, &join, new, now);
                self.end_consulted(endpoint, consultation, "transferred", now);
            }
            Purpose::Replace { .. } => {
                let Some(new) = join.new else { return };
                if endpoint.answer(new, 200, &content, now).is_ok() {
                    self.put_in_place(endpoint, slot, &join, new, now);
                    let answered = (join.side.other(), other);
                    self.await_ack(endpoint, slot, answered, !offered, response, now);
                } else {
                    // It has gone in the meantime.
                    self.trunk_call_ended(join.on_trunk);
                    let _ = endpoint.ack(other, &Content::default(), now);
                    endpoint.set_user(new, 0);
                    let _ = endpoint.hang_up(new, &Content::default(), now);
                }
            }
        }
        let moves = matches!(join.purpose, Purpose::Reanchor { .. });
        match (good, moves) {
            (true, true) => self.reanchored(slot, now),
            (true, false) => {}
            (false, true) if self.is_without_node(slot) => self.reanchor_later(endpoint, slot, now),
            (false, _) => {
                self.end_call(endpoint, slot, "us", "answer cannot be passed", None, now);
            }
        }
    }

    /// The new leg takes its side; the one that had it is closed.
    fn put_in_place(
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
            let _ = endpoint.hang_up(old, &Content::default(), now);
        }
    }

    /// Bringing the legs together did not work: everyone is told, and the call goes on as it was, where it can.
    fn join_failed(&mut self, endpoint: &mut Endpoint, slot: usize, status: u16, now: Time) {
        self.abandon_change(slot);
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(join) = call.join.take() else { return };
        let leg = call.leg(join.side).filter(|_| join.stage != Stage::Offer);
        if let Purpose::Transfer { referrer, .. } = join.purpose
            && self.give_back(endpoint, &join, status, now)
        {
            let _ = endpoint.notify_refer(referrer, status, b"", now);
            return;
        }
        self.trunk_call_ended(join.on_trunk);
        match join.purpose {
            Purpose::Reanchor { .. } => self.reanchor_failed(endpoint, slot, &join, status, now),
            Purpose::Refresh => {
                if leg.is_none() {
                    // Its offer could not be passed, and its 2xx wants its ACK all the same.
                    self.acknowledge_both(endpoint, slot, now);
                }
                if let Some(leg) = leg {
                    // Its offer was not answered: there is no agreement to go back to.
                    let _ = endpoint.ack(leg, &Content::default(), now);
                    self.end_call(endpoint, slot, "us", "refresh failed", None, now);
                }
            }
            Purpose::Transfer {
                referrer,
                consultation,
            } => {
                let _ = endpoint.notify_refer(referrer, status, b"", now);
                if let Some(new) = join.new {
                    endpoint.set_user(new, 0);
                    let _ = endpoint.ack(new, &Content::default(), now);
                    let _ = endpoint.hang_up(new, &Content::default(), now);
                }
                self.end_consulted(endpoint, consultation, "transfer failed", now);
            }
            Purpose::Replace { .. } => {
                if let Some(new) = join.new {
                    let status = if status < 400 { 500 } else { status };
                    endpoint.set_user(new, 0);
                    let _ = endpoint.reject(new, status, &Content::default(), now);
                }
            }
        }
    }

    /// The new leg was never answered.
    pub(crate) fn join_unanswered(
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
            Failure::CancelCrossed | Failure::CancelledUnheard => 487,
        };
        if why == Failure::Response && status != 503 {
            join.next = join.hops.len();
        }
        self.trunk_call_ended(trunk);
        self.call_next_transfer(endpoint, slot, status, now);
    }

    /// The leg that wanted to replace another gave up.
    pub(crate) fn join_cancelled(&mut self, slot: usize, leg: LegId, _now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call
            .join
            .as_deref()
            .is_some_and(|join| join.new == Some(leg))
        {
            // The answer to our re-INVITE finds no join and brings the old legs to agree again.
            let trunk = call.join.take().and_then(|join| join.on_trunk);
            self.trunk_call_ended(trunk);
            self.abandon_change(slot);
        }
    }

    /// A leg outside of the call's two has ended.
    pub(crate) fn join_leg_ended(
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
            self.join_failed(endpoint, slot, 487, now);
        }
        self.finish_if_over(slot, now);
    }

    /// Our re-INVITE got no answer.
    pub(crate) fn join_timed_out(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        transaction: TransactionId,
        now: Time,
    ) {
        if let Some(call) = self.calls.get(slot).filter(|call| call.seat.is_some()) {
            if let Some(leg) = call.leg(Side::Caller) {
                self.seat_refreshed(endpoint, slot, leg, transaction, None, now);
            }
            return;
        }
        let waits = self
            .calls
            .get(slot)
            .and_then(|call| call.join.as_deref())
            .is_some_and(|join| join.waiting == Some(transaction));
        if waits {
            self.join_failed(endpoint, slot, 408, now);
        }
    }

    /// The call ends: whatever was being joined to it ends, too.
    pub(crate) fn close_join(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let Some(join) = self.calls.get_mut(slot).and_then(|call| call.join.take()) else {
            return;
        };
        match join.consults() {
            Some(Consulted::Elsewhere(number)) if join.stage == Stage::Asking => {
                self.ask_no_more(endpoint, number, &join, now);
            }
            consulted => self.end_consulted(endpoint, consulted, "transfer failed", now),
        }
        self.trunk_call_ended(join.on_trunk);
        if let Some(new) = join.new {
            endpoint.set_user(new, 0);
            let _ = endpoint.ack(new, &Content::default(), now);
            let _ = endpoint.hang_up(new, &Content::default(), now);
        }
    }
}

/// A step that stands for a leg that is there already.
pub(crate) fn known_step(interface: InterfaceId, trunk: Option<TrunkId>) -> Step {
    Step {
        group: 0,
        interface,
        trunk,
        target: 0,
        label: String::new(),
        uri: Vec::new(),
        routes: Vec::new(),
        place: Place::Address(
            std::net::SocketAddr::from(([0, 0, 0, 0], 0)),
            engine::Transport::Udp,
        ),
        identity: false,
        redirected: false,
    }
}
