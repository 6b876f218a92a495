//! The call flow of mobile networks (3GPP TS 24.229 with RFC 3262, 3311, 3312 and 5009), as caller and as called side.
//!
//! Twenty messages: INVITE, 100; 183 with the answer, PRACK, 200; UPDATE of the caller, whose resources are there, 200; UPDATE
//! of the called side, whose resources are there, 200; 180, PRACK, 200; UPDATE of the called side that opens early media, 200;
//! 200, ACK; UPDATE of the caller that refreshes the session, 200; BYE, 200. Nobody is alerted before both sides' resources
//! are there, and a message that waits for another one waits for it whatever the network does meanwhile.

use super::super::plan::CallFlow;
use super::super::sdp::{self, Agreed, Ours};
use super::super::{Inner, Timer};
use super::{CallKey, Phase, note};
use crate::host::{AnswerPlan, CallPlan};
use crate::record::Outcome;
use engine::Time;
use sip::{
    Content, Endpoint, PRECONDITION, PRECONDITION_FAILURE, Preconditions, Refused,
    ServerTransaction,
};
use std::time::Duration;
use wire::sdp::{Direction, Reach, Strength};
use wire::sip::{Edit, HeaderId, Message, Method};

/// When a request that found the dialog busy is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// What UEs say of their access network (RFC 7315 section 4.4).
const ACCESS_NETWORK: &[u8] = b"3GPP-E-UTRAN-FDD;utran-cell-id-3gpp=0010100010000001";
/// The service that is asked for: multimedia telephony (RFC 6050, 3GPP TS 24.173).
const TELEPHONY: &[u8] = b"urn:urn-7:3gpp-service.ims.icsi.mmtel";

const REQUIRE: Edit<'static> = Edit::Add {
    id: HeaderId::Require,
    value: PRECONDITION,
};
const ACCESS: Edit<'static> = Edit::Add {
    id: HeaderId::PAccessNetworkInfo,
    value: ACCESS_NETWORK,
};

/// How far the set-up has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Caller: the answer is awaited; called side: 183 is due.
    Begun,
    /// 183 is out or in, its PRACK has no answer.
    Progressed,
    /// Called side: the caller's resources are awaited.
    Pracked,
    /// Our own resources are being reserved.
    Reserving,
    /// They are there, and our UPDATE says so.
    Confirming,
    /// Called side: nothing but time stands between it and 180.
    Ready,
    /// Called side: 180 is out, its PRACK is not in.
    Ringing,
    /// Called side: our UPDATE opens early media.
    Opening,
    /// Called side: nothing but time stands between it and 200.
    Open,
    /// Caller: the session is being refreshed.
    Refreshing,
    /// Nothing is left to do.
    Done,
}

/// What a call has besides in this flow.
#[derive(Debug)]
pub(crate) struct Volte {
    table: Preconditions,
    stage: Stage,
    reserve: Duration,
    /// What the early answer agreed on.
    agreed: Option<Agreed>,
    ring_at: Time,
    /// `None`: it only rings.
    answer_at: Option<Time>,
}

impl Volte {
    fn new(table: Preconditions, reserve: Duration) -> Box<Volte> {
        Box::new(Volte {
            table,
            stage: Stage::Begun,
            reserve,
            agreed: None,
            ring_at: Time::ZERO,
            answer_at: None,
        })
    }

    /// As its caller has it: our own resources are demanded, the other side's are its own affair (TS 24.229 section 6.1.2).
    pub(super) fn caller(plan: &CallPlan) -> Option<Box<Volte>> {
        let table = || Preconditions::wanted(Strength::Mandatory, Strength::None);
        (plan.flow == CallFlow::Volte).then(|| Volte::new(table(), plan.reserve))
    }

    /// As the called side has it, where the caller can do it.
    pub(super) fn callee(plan: &AnswerPlan, request: &Message<'_>) -> Option<Box<Volte>> {
        let says =
            |tag| request.lists(HeaderId::Supported, tag) || request.lists(HeaderId::Require, tag);
        let able = says(b"100rel") && says(PRECONDITION);
        (plan.flow == CallFlow::Volte && able)
            .then(|| Volte::new(Preconditions::none(), plan.reserve))
    }

    pub(super) fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// The description in the INVITE.
    pub(super) fn first_offer(&self, ours: &Ours) -> Vec<u8> {
        ours.offer_with(&self.table.clone().speak())
    }
}

/// The headers of a UE's INVITE.
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

impl Inner {
    fn volte(&mut self, key: CallKey) -> Option<&mut Volte> {
        self.call(key)?.volte.as_deref_mut()
    }

    fn stage(&mut self, key: CallKey) -> Option<Stage> {
        self.volte(key).map(|volte| volte.stage)
    }

    fn set_stage(&mut self, key: CallKey, stage: Stage) {
        if let Some(volte) = self.volte(key) {
            volte.stage = stage;
        }
    }

    fn volte_at(&mut self, key: CallKey, stage: Stage, at: Time) {
        self.set_stage(key, stage);
        self.agenda.push(at, Timer::Volte(key));
    }

    // --- the caller

    /// A provisional response: the first with a description is the answer (RFC 3262 section 5).
    pub(super) fn volte_progressed(&mut self, key: CallKey, response: &Message<'_>) {
        let Some(call) = self.call(key) else { return };
        let codec = call.codec;
        let Some(volte) = call.volte.as_deref_mut() else {
            return;
        };
        let answers = !response.body().is_empty() && response.has(HeaderId::RSeq);
        if volte.stage != Stage::Begun || !answers {
            return;
        }
        volte.agreed = sdp::agreed(response.body(), codec);
        // A failure that it tells of ends the call by a final response.
        let _ = sdp::hear_preconditions(&mut volte.table, response.body());
        volte.stage = Stage::Progressed;
    }

    /// The call is answered: its session is refreshed once, as both sides may.
    pub(super) fn volte_established(&mut self, key: CallKey, now: Time) {
        if self.stage(key).is_some() {
            self.volte_at(key, Stage::Refreshing, now);
        }
    }

    // --- the called side

    /// Takes the offer; 183 follows when 100 has left. Whether this flow takes over.
    pub(super) fn plan_volte(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
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
        let heard = sdp::hear_preconditions(&mut volte.table, &offer);
        if !volte.table.is_used() {
            // It could, and does not want to.
            call.volte = None;
            call.offer = offer;
            return false;
        }
        // The own side is demanded, whatever the caller thinks of it.
        volte.table.demand();
        volte.table.ask_for_confirmation();
        call.offer = offer;
        if let Err(unmet) = heard {
            let Some(call) = self.calls.get(key.index as usize) else {
                return true;
            };
            let ours = self.ours(call, Direction::SendRecv);
            let body = ours.answer_with(&call.offer, &[unmet.line]);
            let body = body.map(|(body, _)| body).unwrap_or_default();
            if let Some(leg) = leg {
                let result = endpoint.reject(leg, PRECONDITION_FAILURE, &Content::sdp(&body), now);
                let why = result.err().map(|refused| refused.to_string());
                self.end(
                    key,
                    Outcome::Refused,
                    PRECONDITION_FAILURE,
                    why.unwrap_or_default(),
                    now,
                );
            }
            return true;
        }
        self.volte_at(key, Stage::Begun, now);
        true
    }

    /// 183 with the answer, reliably.
    fn volte_progress(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(lines) = self.volte(key).map(|volte| volte.table.speak()) else {
            return;
        };
        let Some(call) = self.calls.get(key.index as usize) else {
            return;
        };
        let Some(leg) = call.leg else { return };
        let ours = self.ours(call, Direction::SendRecv);
        let Some((body, agreed)) = ours.answer_with(&call.offer, &lines) else {
            let result = endpoint.reject(leg, 488, &Content::default(), now);
            let why = result.err().map(|refused| refused.to_string());
            return self.end(key, Outcome::Refused, 488, why.unwrap_or_default(), now);
        };
        let edits = [REQUIRE, ACCESS];
        let content = Content::sdp(&body).with(&edits);
        if let Err(refused) = endpoint.progress(leg, 183, &content, true, now) {
            return self.command_refused(key, refused);
        }
        if let Some(volte) = self.volte(key) {
            volte.agreed = Some(agreed);
            volte.stage = Stage::Progressed;
        }
    }

    /// PRACK came, and was answered.
    pub(super) fn volte_pracked(&mut self, key: CallKey, now: Time) {
        match self.stage(key) {
            Some(Stage::Progressed) => {
                self.set_stage(key, Stage::Pracked);
                self.reserve_when_peer_has(key, now);
            }
            Some(Stage::Ringing) => self.volte_at(key, Stage::Opening, now),
            _ => {}
        }
    }

    /// The called side reserves its resources when those of the caller are there.
    fn reserve_when_peer_has(&mut self, key: CallKey, now: Time) {
        let Some(volte) = self.volte(key) else { return };
        if volte.stage == Stage::Pracked && !volte.table.waits_for_peer() {
            let at = now + volte.reserve;
            self.volte_at(key, Stage::Reserving, at);
        }
    }

    /// The next step of the way to 180 and 200.
    fn ring_when_met(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(volte) = self.volte(key) else { return };
        if !volte.table.are_met() {
            // Never alert before: the caller's own limit ends what never comes about.
            volte.stage = Stage::Pracked;
            return;
        }
        volte.stage = Stage::Ready;
        let at = volte.ring_at;
        if at > now {
            return self.agenda.push(at, Timer::Volte(key));
        }
        let Some(call) = self.call(key) else { return };
        call.attempt.ringing = Some(now.0);
        let Some(leg) = call.leg else { return };
        self.set_stage(key, Stage::Ringing);
        let edits = [ACCESS];
        let content = Content::default().with(&edits);
        if let Err(refused) = endpoint.progress(leg, 180, &content, true, now) {
            self.command_refused(key, refused);
        }
    }

    /// UPDATE without a description that lets early media through (RFC 5009), with media where there is any.
    fn open_early_media(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(call) = self.call(key) else { return };
        let (leg, session) = (call.leg, call.session);
        let agreed = call.volte.as_ref().and_then(|volte| volte.agreed);
        let Some(leg) = leg else { return };
        let edits = [Edit::Add {
            id: HeaderId::PEarlyMedia,
            value: b"sendrecv",
        }];
        let content = Content::default().with(&edits);
        match endpoint.request(leg, Method::Update, &content, now) {
            Ok(_) => {}
            Err(Refused::OfferPending) => {
                return self.agenda.push(now + AGAIN, Timer::Volte(key));
            }
            Err(refused) => {
                self.command_refused(key, refused);
                return self.early_media_is_open(endpoint, key, now);
            }
        }
        if let (Some(session), Some(agreed)) = (session, agreed) {
            self.media.agree(session, &agreed, now);
        }
    }

    fn early_media_is_open(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(volte) = self.volte(key) else { return };
        volte.stage = Stage::Open;
        match volte.answer_at {
            None => {}
            Some(at) if at > now => self.agenda.push(at, Timer::Volte(key)),
            Some(_) => self.volte_answer(endpoint, key, now),
        }
    }

    /// 200 without a description: the 183 had it.
    fn volte_answer(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(call) = self.call(key).filter(|call| call.phase == Phase::Offered) else {
            return;
        };
        let Some(leg) = call.leg else { return };
        let edits = [ACCESS];
        let content = Content::default().with(&edits);
        if let Err(refused) = endpoint.answer(leg, 200, &content, now) {
            let why = format!("200: {refused}");
            return self.end(key, Outcome::CouldNotStart, 0, why, now);
        }
        let Some(call) = self.call(key) else { return };
        call.phase = Phase::Answered;
        call.offer = Vec::new();
        self.set_stage(key, Stage::Done);
    }

    // --- both

    /// What is due by time.
    pub(crate) fn volte_due(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let phase = self.call(key).map(|call| call.phase);
        match (self.stage(key), phase) {
            (Some(Stage::Refreshing), Some(Phase::Up)) => self.volte_refresh(endpoint, key, now),
            (Some(stage), Some(Phase::Offered | Phase::Calling)) => match stage {
                Stage::Begun => self.volte_progress(endpoint, key, now),
                Stage::Reserving => self.volte_reserved(endpoint, key, now),
                Stage::Confirming => self.volte_update(endpoint, key, now),
                Stage::Ready => self.ring_when_met(endpoint, key, now),
                Stage::Opening => self.open_early_media(endpoint, key, now),
                Stage::Open => self.early_media_is_open(endpoint, key, now),
                _ => {}
            },
            _ => {}
        }
    }

    /// Our resources are there.
    fn volte_reserved(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(call) = self.call(key) else { return };
        let calling = call.phase == Phase::Calling;
        let Some(volte) = call.volte.as_deref_mut() else {
            return;
        };
        volte.table.reserved(Reach::BOTH);
        if calling {
            volte.table.ask_for_confirmation();
        }
        // The caller always tells: the called side does not alert before it knows.
        match calling || volte.table.owes_confirmation() {
            true => self.volte_update(endpoint, key, now),
            false => self.ring_when_met(endpoint, key, now),
        }
    }

    /// UPDATE with the status of both sides.
    fn volte_update(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        self.set_stage(key, Stage::Confirming);
        // Only what leaves has been said.
        let Some(mut table) = self.volte(key).map(|volte| volte.table.clone()) else {
            return;
        };
        let lines = table.speak();
        let Some(call) = self.call(key) else { return };
        call.version += 1;
        let Some(call) = self.calls.get(key.index as usize) else {
            return;
        };
        let Some(leg) = call.leg else { return };
        let offer = self.ours(call, Direction::SendRecv).offer_with(&lines);
        let edits = [REQUIRE, ACCESS];
        let content = Content::sdp(&offer).with(&edits);
        match endpoint.request(leg, Method::Update, &content, now) {
            Ok(_) => {
                if let Some(volte) = self.volte(key) {
                    volte.table = table;
                }
            }
            Err(Refused::OfferPending) => self.agenda.push(now + AGAIN, Timer::Volte(key)),
            Err(refused) => self.command_refused(key, refused),
        }
    }

    fn volte_refresh(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(leg) = self.call(key).and_then(|call| call.leg) else {
            return;
        };
        match endpoint.request(leg, Method::Update, &Content::default(), now) {
            Ok(_) => self.set_stage(key, Stage::Done),
            Err(Refused::OfferPending) => self.agenda.push(now + AGAIN, Timer::Volte(key)),
            Err(refused) => self.command_refused(key, refused),
        }
    }

    /// An UPDATE with an offer came. Whether it was answered here.
    pub(super) fn volte_offered(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
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
        let heard = sdp::hear_preconditions(&mut volte.table, request.body());
        let lines = match &heard {
            Ok(()) => volte.table.speak(),
            Err(unmet) => vec![unmet.line.clone()],
        };
        call.version += 1;
        let Some(call) = self.calls.get(key.index as usize) else {
            return false;
        };
        let ours = self.ours(call, Direction::SendRecv);
        let Some((body, _)) = ours.answer_with(request.body(), &lines) else {
            self.respond(endpoint, transaction, 488, &Content::default(), now);
            return true;
        };
        let edits = [REQUIRE, ACCESS];
        let content = Content::sdp(&body);
        match heard {
            Ok(()) => {
                self.respond(endpoint, transaction, 200, &content.with(&edits), now);
                self.reserve_when_peer_has(key, now);
            }
            Err(_) => self.respond(endpoint, transaction, PRECONDITION_FAILURE, &content, now),
        }
        true
    }

    /// A response to an UPDATE or PRACK of ours.
    pub(super) fn volte_answered(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
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
            (Method::Prack, Stage::Progressed, 200..=299) => {
                let at = now + volte.reserve;
                self.volte_at(key, Stage::Reserving, at);
            }
            (Method::Update, Stage::Confirming, 200..=299) => {
                let heard = sdp::hear_preconditions(&mut volte.table, response.body());
                let called = self
                    .call(key)
                    .is_some_and(|call| call.phase == Phase::Offered);
                match (called, heard) {
                    (true, _) => self.ring_when_met(endpoint, key, now),
                    (false, Ok(())) => self.set_stage(key, Stage::Done),
                    // There is no point in going on.
                    (false, Err(_)) => self.cancel(endpoint, key, false, now),
                }
            }
            // Both spoke at once, or the other side has no time (RFC 3311 section 5.2).
            (Method::Update, Stage::Confirming | Stage::Opening, 491 | 500) => {
                let leg = self.call(key).and_then(|call| call.leg);
                let wait = leg.and_then(|leg| endpoint.glare_wait(leg));
                let at = now + wait.unwrap_or(Duration::from_secs(2));
                self.agenda.push(at, Timer::Volte(key));
            }
            (Method::Update, Stage::Opening, _) => self.early_media_is_open(endpoint, key, now),
            (Method::Update, Stage::Confirming, _) => {
                if let Some(call) = self.call(key) {
                    note(
                        &mut call.attempt.why,
                        &format!("UPDATE refused with {status}"),
                    );
                }
                if self
                    .call(key)
                    .is_some_and(|call| call.phase == Phase::Calling)
                {
                    self.cancel(endpoint, key, false, now);
                }
            }
            _ => {}
        }
    }

    /// A request of ours in the dialog had no answer: early media that nobody agrees to holds no call up.
    pub(super) fn volte_unanswered(&mut self, key: CallKey, now: Time) {
        if self.stage(key) == Some(Stage::Opening) {
            self.volte_at(key, Stage::Open, now);
        }
    }
}
