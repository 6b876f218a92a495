//! The call flow of mobile networks (3GPP TS 24.229 with RFC 3262, 3311, 3312 and 5009), as caller and as called side.
//!
//! Twenty messages: INVITE, 100; 183 with the answer, PRACK, 200; UPDATE of the caller after its reservation, 200;
//! UPDATE of the called side after its reservation, 200; 180, PRACK, 200; UPDATE of the called side that opens early
//! media, 200; 200, ACK; UPDATE of the caller that refreshes the session, 200; BYE, 200. The called side alerts only
//! when both sides have reserved their resources. The order of messages holds over any network: each step waits for the
//! message before it.

use super::super::plan::CallFlow;
use super::super::sdp::{self, NegotiatedMedia, OfferParameters};
use super::super::{HostState, HostTimer};
use super::{HostCallKey, HostCallPhase, note};
use crate::host::{AnswerPlan, OutgoingCallPlan};
use crate::record::AttemptOutcome;
use engine::Time;
use sip::{
    Endpoint, MessageContent, PRECONDITION, PRECONDITION_FAILURE, Preconditions, Refused,
    ServerTransaction,
};
use std::time::Duration;
use wire::sdp::{Direction, DirectionTag, Strength};
use wire::sip::{Edit, HeaderId, Message, Method};

/// Delay before the retry of a request that was refused because the dialog was busy.
const AGAIN: Duration = Duration::from_millis(200);

/// P-Access-Network-Info of UEs (RFC 7315 section 4.4).
const ACCESS_NETWORK: &[u8] = b"3GPP-E-UTRAN-FDD;utran-cell-id-3gpp=0010100010000001";
/// The requested service: multimedia telephony (RFC 6050, 3GPP TS 24.173).
const TELEPHONY: &[u8] = b"urn:urn-7:3gpp-service.ims.icsi.mmtel";

const REQUIRE: Edit<'static> = Edit::Add {
    id: HeaderId::Require,
    value: PRECONDITION,
};
const ACCESS: Edit<'static> = Edit::Add {
    id: HeaderId::PAccessNetworkInfo,
    value: ACCESS_NETWORK,
};

/// Stage of the set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VolteStage {
    /// Caller: waits for the answer; called side: 183 is due.
    Begun,
    /// 183 is sent or received, its PRACK has no answer.
    Progressed,
    /// Called side: waits for the resources of the caller.
    Pracked,
    /// The own resources are being reserved.
    Reserving,
    /// They are reserved; UPDATE with the confirmation is sent.
    Confirming,
    /// Called side: 180 is due by timer.
    Ready,
    /// Called side: 180 is sent, its PRACK is not received.
    Ringing,
    /// Called side: UPDATE opens early media.
    Opening,
    /// Called side: 200 is due by timer.
    Open,
    /// Caller: the session is being refreshed.
    Refreshing,
    /// Set-up is complete.
    Done,
}

/// State of a call in this flow.
#[derive(Debug)]
pub(crate) struct Volte {
    table: Preconditions,
    stage: VolteStage,
    reserve: Duration,
    /// Result of the early answer.
    agreed: Option<NegotiatedMedia>,
    ring_at: Time,
    /// `None`: it rings without an answer.
    answer_at: Option<Time>,
}

impl Volte {
    fn new(table: Preconditions, reserve: Duration) -> Box<Volte> {
        Box::new(Volte {
            table,
            stage: VolteStage::Begun,
            reserve,
            agreed: None,
            ring_at: Time::ZERO,
            answer_at: None,
        })
    }

    /// State of the caller: its own resources are mandatory, those of the peer optional (TS 24.229 section 6.1.2).
    pub(super) fn caller(plan: &OutgoingCallPlan) -> Option<Box<Volte>> {
        let table = || Preconditions::for_caller(Strength::Mandatory, Strength::None);
        (plan.flow == CallFlow::Volte).then(|| Volte::new(table(), plan.reserve))
    }

    /// State of the called side, if the caller supports preconditions.
    pub(super) fn callee(plan: &AnswerPlan, request: &Message<'_>) -> Option<Box<Volte>> {
        let says =
            |tag| request.lists(HeaderId::Supported, tag) || request.lists(HeaderId::Require, tag);
        let able = says(b"100rel") && says(PRECONDITION);
        (plan.flow == CallFlow::Volte && able)
            .then(|| Volte::new(Preconditions::none(), plan.reserve))
    }

    pub(super) fn agreed(&self) -> Option<NegotiatedMedia> {
        self.agreed
    }

    /// The session description of the INVITE.
    pub(super) fn first_offer(&self, ours: &OfferParameters) -> Vec<u8> {
        ours.offer_with(&self.table.clone().next_lines())
    }
}

/// Headers of a UE's INVITE.
pub(super) fn first_edits<'e>(volte: Option<&Volte>, identity: &'e str) -> Vec<Edit<'e>> {
    if volte.is_none() {
        return Vec::new();
    }
    let add = |id, value| Edit::Add { id, value };
    vec![
        ACCESS,
        add(HeaderId::PPreferredIdentity, identity.as_bytes()),
        add(HeaderId::PPreferredService, TELEPHONY),
        add(HeaderId::PEarlyMedia, b"supported"),
    ]
}

impl HostState {
    fn volte(&mut self, key: HostCallKey) -> Option<&mut Volte> {
        self.call(key)?.volte.as_deref_mut()
    }

    fn stage(&mut self, key: HostCallKey) -> Option<VolteStage> {
        self.volte(key).map(|volte| volte.stage)
    }

    fn set_stage(&mut self, key: HostCallKey, stage: VolteStage) {
        if let Some(volte) = self.volte(key) {
            volte.stage = stage;
        }
    }

    fn volte_at(&mut self, key: HostCallKey, stage: VolteStage, at: Time) {
        self.set_stage(key, stage);
        self.agenda.push(at, HostTimer::Volte(key));
    }

    // --- caller

    /// Processes a provisional response: the first with a description is the answer (RFC 3262 section 5).
    pub(super) fn volte_progressed(&mut self, key: HostCallKey, response: &Message<'_>) {
        let Some(call) = self.call(key) else { return };
        let codec = call.codec;
        let Some(volte) = call.volte.as_deref_mut() else {
            return;
        };
        let answers = !response.body().is_empty() && response.has(HeaderId::RSeq);
        if volte.stage != VolteStage::Begun || !answers {
            return;
        }
        volte.agreed = sdp::agreed(response.body(), codec);
        // A failure status ends the call by a final response later.
        let _ = sdp::read_preconditions(&mut volte.table, response.body());
        volte.stage = VolteStage::Progressed;
    }

    /// The call is answered: its session is refreshed once, which either side may do.
    pub(super) fn volte_established(&mut self, key: HostCallKey, now: Time) {
        if self.stage(key).is_some() {
            self.volte_at(key, VolteStage::Refreshing, now);
        }
    }

    // --- called side

    /// Reads the offer; 183 follows after 100. Returns whether this flow applies.
    pub(super) fn plan_volte(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        (ring_at, answer_at): (Time, Time),
        now: Time,
    ) -> bool {
        let Some(call) = self.call(key) else {
            return false;
        };
        let (leg, rings_only) = (call.leg, call.will_cancel);
        let offer = std::mem::take(&mut call.offer);
        let Some(volte) = call.volte.as_deref_mut() else {
            call.offer = offer;
            return false;
        };
        volte.ring_at = ring_at;
        volte.answer_at = (!rings_only).then_some(answer_at);
        let preconditions = sdp::read_preconditions(&mut volte.table, &offer);
        if !volte.table.is_used() {
            // Supported by the caller, but the plan does not use it.
            call.volte = None;
            call.offer = offer;
            return false;
        }
        // The own side is mandatory, independent of the caller's strength tag.
        volte.table.require_local();
        volte.table.request_confirmation();
        call.offer = offer;
        if let Err(unmet) = preconditions {
            let Some(call) = self.calls.get(key.index as usize) else {
                return true;
            };
            let ours = self.ours(call, Direction::SendRecv);
            let body = ours.answer_with(&call.offer, &[unmet.line]);
            let body = body.map(|(body, _)| body).unwrap_or_default();
            if let Some(leg) = leg {
                let result =
                    endpoint.reject(leg, PRECONDITION_FAILURE, &MessageContent::sdp(&body), now);
                let why = result.err().map(|refused| refused.to_string());
                self.end(
                    key,
                    AttemptOutcome::Refused,
                    PRECONDITION_FAILURE,
                    why.unwrap_or_default(),
                    now,
                );
            }
            return true;
        }
        self.volte_at(key, VolteStage::Begun, now);
        true
    }

    /// Sends 183 with the answer, reliably.
    fn volte_progress(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(lines) = self.volte(key).map(|volte| volte.table.next_lines()) else {
            return;
        };
        let Some(call) = self.calls.get(key.index as usize) else {
            return;
        };
        let Some(leg) = call.leg else { return };
        let ours = self.ours(call, Direction::SendRecv);
        let Some((body, agreed)) = ours.answer_with(&call.offer, &lines) else {
            let result = endpoint.reject(leg, 488, &MessageContent::default(), now);
            let why = result.err().map(|refused| refused.to_string());
            return self.end(
                key,
                AttemptOutcome::Refused,
                488,
                why.unwrap_or_default(),
                now,
            );
        };
        let edits = [REQUIRE, ACCESS];
        let content = MessageContent::sdp(&body).with(&edits);
        if let Err(refused) = endpoint.progress(leg, 183, &content, true, now) {
            return self.command_refused(key, refused);
        }
        if let Some(volte) = self.volte(key) {
            volte.agreed = Some(agreed);
            volte.stage = VolteStage::Progressed;
        }
    }

    /// PRACK was received and answered.
    pub(super) fn volte_pracked(&mut self, key: HostCallKey, now: Time) {
        match self.stage(key) {
            Some(VolteStage::Progressed) => {
                self.set_stage(key, VolteStage::Pracked);
                self.reserve_when_peer_has(key, now);
            }
            Some(VolteStage::Ringing) => self.volte_at(key, VolteStage::Opening, now),
            _ => {}
        }
    }

    /// The called side reserves its resources after those of the caller.
    fn reserve_when_peer_has(&mut self, key: HostCallKey, now: Time) {
        let Some(volte) = self.volte(key) else { return };
        if volte.stage == VolteStage::Pracked && !volte.table.waits_for_peer() {
            let at = now + volte.reserve;
            self.volte_at(key, VolteStage::Reserving, at);
        }
    }

    /// The next step towards 180 and 200.
    fn ring_when_met(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(volte) = self.volte(key) else { return };
        if !volte.table.are_met() {
            // Never alert before; if the preconditions are never met, the caller's limit ends the call.
            volte.stage = VolteStage::Pracked;
            return;
        }
        volte.stage = VolteStage::Ready;
        let at = volte.ring_at;
        if at > now {
            return self.agenda.push(at, HostTimer::Volte(key));
        }
        let Some(call) = self.call(key) else { return };
        call.attempt.ringing = Some(now.0);
        let Some(leg) = call.leg else { return };
        self.set_stage(key, VolteStage::Ringing);
        let edits = [ACCESS];
        let content = MessageContent::default().with(&edits);
        if let Err(refused) = endpoint.progress(leg, 180, &content, true, now) {
            self.command_refused(key, refused);
        }
    }

    /// Sends UPDATE without a description that authorizes early media (RFC 5009), with media if there is any.
    fn open_early_media(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(call) = self.call(key) else { return };
        let (leg, session) = (call.leg, call.session);
        let agreed = call.volte.as_ref().and_then(|volte| volte.agreed);
        let Some(leg) = leg else { return };
        let edits = [Edit::Add {
            id: HeaderId::PEarlyMedia,
            value: b"sendrecv",
        }];
        let content = MessageContent::default().with(&edits);
        match endpoint.request(leg, Method::Update, &content, now) {
            Ok(_) => {}
            Err(Refused::OfferPending) => {
                return self.agenda.push(now + AGAIN, HostTimer::Volte(key));
            }
            Err(refused) => {
                self.command_refused(key, refused);
                return self.early_media_is_open(endpoint, key, now);
            }
        }
        if let (Some(session), Some(agreed)) = (session, agreed) {
            let begin = self.media.phased(session, now);
            self.media.agree(session, &agreed, begin);
        }
    }

    fn early_media_is_open(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(volte) = self.volte(key) else { return };
        volte.stage = VolteStage::Open;
        match volte.answer_at {
            None => {}
            Some(at) if at > now => self.agenda.push(at, HostTimer::Volte(key)),
            Some(_) => self.volte_answer(endpoint, key, now),
        }
    }

    /// Sends 200 without a description: the 183 had it.
    fn volte_answer(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(call) = self
            .call(key)
            .filter(|call| call.phase == HostCallPhase::Offered)
        else {
            return;
        };
        let Some(leg) = call.leg else { return };
        let edits = [ACCESS];
        let content = MessageContent::default().with(&edits);
        if let Err(refused) = endpoint.answer(leg, 200, &content, now) {
            let why = format!("200: {refused}");
            return self.end(key, AttemptOutcome::CouldNotStart, 0, why, now);
        }
        let Some(call) = self.call(key) else { return };
        call.phase = HostCallPhase::Answered;
        call.offer = Vec::new();
        self.set_stage(key, VolteStage::Done);
    }

    // --- both sides

    /// Runs the due timer.
    pub(crate) fn volte_due(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let phase = self.call(key).map(|call| call.phase);
        match (self.stage(key), phase) {
            (Some(VolteStage::Refreshing), Some(HostCallPhase::Up)) => {
                self.volte_refresh(endpoint, key, now)
            }
            (Some(stage), Some(HostCallPhase::Offered | HostCallPhase::Calling)) => match stage {
                VolteStage::Begun => self.volte_progress(endpoint, key, now),
                VolteStage::Reserving => self.volte_reserved(endpoint, key, now),
                VolteStage::Confirming => self.volte_update(endpoint, key, now),
                VolteStage::Ready => self.ring_when_met(endpoint, key, now),
                VolteStage::Opening => self.open_early_media(endpoint, key, now),
                VolteStage::Open => self.early_media_is_open(endpoint, key, now),
                _ => {}
            },
            _ => {}
        }
    }

    /// The own resources are reserved.
    fn volte_reserved(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(call) = self.call(key) else { return };
        let calling = call.phase == HostCallPhase::Calling;
        let Some(volte) = call.volte.as_deref_mut() else {
            return;
        };
        volte.table.add_reserved(DirectionTag::BOTH);
        if calling {
            volte.table.request_confirmation();
        }
        // The caller always confirms: the called side does not alert before the confirmation.
        match calling || volte.table.owes_confirmation() {
            true => self.volte_update(endpoint, key, now),
            false => self.ring_when_met(endpoint, key, now),
        }
    }

    /// Sends UPDATE with the status of both sides.
    fn volte_update(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        self.set_stage(key, VolteStage::Confirming);
        // The table changes only if the request is sent.
        let Some(mut table) = self.volte(key).map(|volte| volte.table.clone()) else {
            return;
        };
        let lines = table.next_lines();
        let Some(call) = self.call(key) else { return };
        call.version += 1;
        let Some(call) = self.calls.get(key.index as usize) else {
            return;
        };
        let Some(leg) = call.leg else { return };
        let offer = self.ours(call, Direction::SendRecv).offer_with(&lines);
        let edits = [REQUIRE, ACCESS];
        let content = MessageContent::sdp(&offer).with(&edits);
        match endpoint.request(leg, Method::Update, &content, now) {
            Ok(_) => {
                if let Some(volte) = self.volte(key) {
                    volte.table = table;
                }
            }
            Err(Refused::OfferPending) => self.agenda.push(now + AGAIN, HostTimer::Volte(key)),
            Err(refused) => self.command_refused(key, refused),
        }
    }

    fn volte_refresh(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(leg) = self.call(key).and_then(|call| call.leg) else {
            return;
        };
        match endpoint.request(leg, Method::Update, &MessageContent::default(), now) {
            Ok(_) => self.set_stage(key, VolteStage::Done),
            Err(Refused::OfferPending) => self.agenda.push(now + AGAIN, HostTimer::Volte(key)),
            Err(refused) => self.command_refused(key, refused),
        }
    }

    /// An UPDATE with an offer was received. Returns whether it was answered here.
    pub(super) fn volte_offered(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) -> bool {
        if request.method() != Method::Update {
            return false;
        }
        let Some(call) = self.call(key) else {
            return false;
        };
        let Some(volte) = call.volte.as_deref_mut() else {
            return false;
        };
        let preconditions = sdp::read_preconditions(&mut volte.table, request.body());
        let lines = match &preconditions {
            Ok(()) => volte.table.next_lines(),
            Err(unmet) => vec![unmet.line.clone()],
        };
        call.version += 1;
        let Some(call) = self.calls.get(key.index as usize) else {
            return false;
        };
        let ours = self.ours(call, Direction::SendRecv);
        let Some((body, _)) = ours.answer_with(request.body(), &lines) else {
            self.respond(endpoint, transaction, 488, &MessageContent::default(), now);
            return true;
        };
        let edits = [REQUIRE, ACCESS];
        let content = MessageContent::sdp(&body);
        match preconditions {
            Ok(()) => {
                self.respond(endpoint, transaction, 200, &content.with(&edits), now);
                self.reserve_when_peer_has(key, now);
            }
            Err(_) => self.respond(endpoint, transaction, PRECONDITION_FAILURE, &content, now),
        }
        true
    }

    /// A response to PRACK or to an UPDATE of this side.
    pub(super) fn volte_answered(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        method: Method<'_>,
        response: &Message<'_>,
        now: Time,
    ) {
        let Some(volte) = self.volte(key) else { return };
        let status = response.status();
        if status < 200 {
            return;
        }
        match (method, volte.stage, status) {
            (Method::Prack, VolteStage::Progressed, 200..=299) => {
                let at = now + volte.reserve;
                self.volte_at(key, VolteStage::Reserving, at);
            }
            (Method::Update, VolteStage::Confirming, 200..=299) => {
                let preconditions = sdp::read_preconditions(&mut volte.table, response.body());
                let called = self
                    .call(key)
                    .is_some_and(|call| call.phase == HostCallPhase::Offered);
                match (called, preconditions) {
                    (true, _) => self.ring_when_met(endpoint, key, now),
                    (false, Ok(())) => self.set_stage(key, VolteStage::Done),
                    // The call cannot continue.
                    (false, Err(_)) => self.cancel(endpoint, key, false, now),
                }
            }
            // Glare, or the peer is not ready (RFC 3311 section 5.2).
            (Method::Update, VolteStage::Confirming | VolteStage::Opening, 491 | 500) => {
                let leg = self.call(key).and_then(|call| call.leg);
                let wait = leg.and_then(|leg| endpoint.glare_wait(leg));
                let at = now + wait.unwrap_or(Duration::from_secs(2));
                self.agenda.push(at, HostTimer::Volte(key));
            }
            (Method::Update, VolteStage::Opening, _) => {
                self.early_media_is_open(endpoint, key, now)
            }
            (Method::Update, VolteStage::Confirming, _) => {
                if let Some(call) = self.call(key) {
                    note(
                        &mut call.attempt.why,
                        &format!("UPDATE refused with {status}"),
                    );
                }
                if self
                    .call(key)
                    .is_some_and(|call| call.phase == HostCallPhase::Calling)
                {
                    self.cancel(endpoint, key, false, now);
                }
            }
            _ => {}
        }
    }

    /// A request in the dialog had no answer: early media without an agreement does not delay the call.
    pub(super) fn volte_unanswered(&mut self, key: HostCallKey, now: Time) {
        if self.stage(key) == Some(VolteStage::Opening) {
            self.volte_at(key, VolteStage::Open, now);
        }
    }
}
