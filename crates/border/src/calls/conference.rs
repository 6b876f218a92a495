//! Calls to conferences: the border answers the call, and a participant in the forwarder is its other side.

mod describe;
mod lobby;
mod owner;
mod pin;
mod pin_entry;
pub(crate) mod pin_lockout;
mod requests;
pub(crate) mod state;

use crate::admission::Reservation;
use crate::bodies::{has_sdp, session_of};
use crate::calls::conference::lobby::NewCaller;
use crate::calls::conference::pin_entry::PinEntry;
use crate::calls::conference::state::{CalledConference, ParticipantState, PendingAnswer};
use crate::calls::ended::EndedBy;
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::table::OngoingCalls;
use crate::calls::{
    Call, CallHeaders, CallKind, CallStage, CallSummary, InDialogRequests, MediaAnchor, NewCall,
    Sides,
};
use crate::components::{Calls, Components};
use crate::headers::{OWN_REINVITE, address_of, text};
use crate::media::MediaPeer;
use crate::policy::{Facts, called_number};
use crate::request::{RequestOrigin, RequestRefusal};
use crate::responses::{refuse, refuse_with};
use crate::shared::Ctx;
use anchor::participant::ParticipantSettings;
use anchor::{AnchorError, CallMedia, Side};
use codec::Kind;
use describe::ConferenceDescription;
use engine::{EventKind, Reason};
use media::conference::ParticipantEvent;
use sip::{Endpoint, Failure, Flow, LegId, MessageContent, ServerTransaction, TransactionId};
use wire::sdp::Sdp;
use wire::sip::{Message, Method};

impl OngoingCalls {
    fn report_muted(&mut self, ctx: &mut Ctx, key: CallKey, muted: bool, by: &str) {
        let now = ctx.now;
        let call = self.slot_of(key).and_then(|slot| self.get(slot));
        let Some((call, participant)) =
            call.and_then(|call| Some((call, call.kind.participant()?)))
        else {
            return;
        };
        let number = call.number;
        ctx.events.tell(now, || EventKind::ConferenceMuted {
            call: number,
            conference: participant.name.0.clone(),
            muted,
            requested_by: by.to_owned(),
        });
    }
}

impl Components {
    /// The conference that a request URI calls.
    pub(crate) fn called_conference(
        &self,
        uri: &[u8],
        origin: RequestOrigin,
    ) -> Option<CalledConference> {
        if self.ctx.config.conferences.is_empty() {
            return None;
        }
        // Limits are checked later.
        let facts = Facts {
            draining: false,
            calls: 0,
            ..self.policy_facts(uri, origin)
        };
        let number = called_number(&self.ctx.config, &facts).ok().flatten()?;
        let mut specs = self.ctx.config.conferences.iter();
        let spec = specs.find(|spec| spec.matches_call(&number, origin.interface, origin.trunk))?;
        Some(CalledConference {
            spec: spec.clone(),
            number,
        })
    }

    fn policy_facts<'f>(&self, uri: &'f [u8], origin: RequestOrigin) -> Facts<'f> {
        Facts {
            interface: origin.interface,
            trunk: origin.trunk,
            authenticated: origin.authenticated,
            exempt: false,
            from: b"",
            to: uri,
            random: 0,
            calls: self.total_calls(),
            draining: self.worker.is_draining(),
        }
    }
}

/// Calls to conferences.
#[derive(Debug)]
pub(crate) struct ConferenceCalls<'c> {
    endpoint: &'c mut Endpoint,
    parts: &'c mut Components,
}

impl<'c> ConferenceCalls<'c> {
    pub(crate) fn new(calls: &'c mut Calls<'_>) -> ConferenceCalls<'c> {
        ConferenceCalls {
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

impl ConferenceCalls<'_> {
    /// Processes a call to a conference.
    pub(crate) fn join_conference(&mut self, new: NewCall<'_, '_>, called: CalledConference) {
        let NewCall {
            leg,
            request,
            flow,
            origin,
            tags,
            user,
        } = new;
        let now = self.parts.ctx.now;
        let admitted = self.admit_participant(request, flow, origin, &called);
        let reservation = match admitted {
            Ok(reservation) => reservation,
            Err(refused) => return self.calls().refuse_call(leg, request, flow, &refused),
        };
        let number = self.parts.calls.next_number(self.endpoint);
        let seed = self.parts.ctx.entropy.u64();
        let session = self.parts.ctx.entropy.u64() >> 2;
        let side = self.parts.media.media_side(
            &self.parts.ctx.config,
            origin.interface,
            origin.trunk,
            MediaPeer::of_message(flow.remote.ip(), request),
        );
        let side = match side {
            Ok(side) => side,
            Err(error) => {
                self.parts.admission.reservations.release(&reservation);
                let refused = RequestRefusal::new(match error {
                    AnchorError::Family => Reason::NoMediaFamily,
                    _ => Reason::NoMediaInterface,
                });
                return self.calls().refuse_call(leg, request, flow, &refused);
            }
        };
        let CalledConference {
            spec,
            number: called,
        } = called;
        let name = (spec.name.clone(), called);
        let from = text(request.from().map(|from| from.uri).unwrap_or_default());
        let source = lobby::LobbySource::of(user.clone(), origin.trunk, request, flow.remote.ip());
        let in_lobby = spec.pin.is_some();
        let admission = match in_lobby {
            true => self.make_lobby_space(&spec, &source),
            false => self.parts.conferences.reserve_participant(&spec, &name),
        };
        if let Err(refusal) = admission {
            self.parts.admission.reservations.release(&reservation);
            let refused = refusal.refuse(&mut self.parts.ctx, &name);
            return self.calls().refuse_call(leg, request, flow, &refused);
        }
        let slot = self.parts.calls.next_slot();
        let key = CallKey::new(slot, number);
        let caller = NewCaller {
            call: key,
            number,
            at: now,
        };
        if in_lobby {
            self.parts
                .conferences
                .lobby
                .enter(caller, &spec.name, source);
        }
        let conference = self.parts.conferences.add(&name, caller, in_lobby);
        let settings = ParticipantSettings {
            conference,
            settings: spec.settings.clone(),
            voice: None,
            seed,
            in_lobby,
        };
        self.parts.calls.insert(Call {
            number,
            stage: CallStage::ExpectAnswer,
            legs: Sides::new(Some(leg), None),
            interfaces: Sides::new(origin.interface, origin.interface),
            trunks: Sides::new(origin.trunk, None),
            last_trunk: None,
            uri_hash: 0,
            media: MediaAnchor::Border(Box::new(
                CallMedia::for_participant(key.0, side, settings).with_number(number),
            )),
            requests: InDialogRequests::default(),
            reservation,
            summary: CallSummary::offered(now),
            headers: CallHeaders {
                tags,
                charging: None,
                foreign_callee: false,
                user,
            },
            kind: CallKind::Conference(Box::new(ParticipantState {
                spec,
                name,
                description: ConferenceDescription::new(session),
                pending: None,
                offer_sent: false,
                refreshing: None,
                from: from.clone().into(),
                joined_at: None,
                pin_entry: in_lobby.then(PinEntry::default),
            })),
        });
        self.parts.publish_call_count();
        self.endpoint.set_user(leg, key.0);
        self.calls().locate_dialog(leg, None);
        self.parts.trunks.begin_call(origin.trunk);
        let config = self.parts.ctx.config.clone();
        self.parts.ctx.events.tell(now, || EventKind::CallOffered {
            call: number,
            interface: config
                .interface(origin.interface)
                .map_or_else(String::new, |interface| interface.name.clone()),
            call_id: text(request.call_id().unwrap_or_default()),
            from,
            to: text(request.request_uri()),
            source: address_of(&flow),
            trunk: config.name_of_trunk(origin.trunk),
        });
        self.parts.log_initial_tags(slot);
        self.negotiate_participant(slot, None, sdp_of(request));
    }

    /// Processes an offer, or makes one; the answer is sent as soon as the sockets are open.
    fn negotiate_participant(
        &mut self,
        slot: CallSlot,
        server: Option<ServerTransaction>,
        offer: Option<Result<&[u8], AnchorError>>,
    ) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let address = call.address_of_connection(self.endpoint, Side::Caller);
        let (Some(media), Some(participant)) =
            (call.media.anchored_mut(), call.kind.participant_mut())
        else {
            return;
        };
        if let Some(address) = address {
            media.follow_address(Side::Caller, address);
        }
        let plane = &mut self.parts.media.plane;
        let mut unused = Vec::new();
        let (result, offer) = match offer {
            None => (media.reserve(plane), None),
            Some(Err(error)) => (Err(error), None),
            Some(Ok(offer)) => (
                media.offer(plane, Side::Caller, offer, &mut unused),
                Some(offer),
            ),
        };
        match result {
            Err(error) => self.refuse_participant(slot, server, error),
            Ok(()) if media.defer_until_open(plane) => {
                participant.pending = Some(PendingAnswer {
                    server,
                    offer: offer.map(Box::from),
                });
            }
            Ok(()) => self.answer_participant(slot, server, offer),
        }
    }

    /// Answers a participant whose media sockets have been opened.
    pub(crate) fn participant_sockets_opened(&mut self, slot: CallSlot) {
        let call = self.parts.calls.get_mut(slot);
        let pending = call
            .and_then(|call| call.kind.participant_mut())
            .and_then(|participant| participant.pending.take());
        if let Some(PendingAnswer { server, offer }) = pending {
            self.answer_participant(slot, server, offer.as_deref());
        }
    }

    /// Sends the answer to `offer`, or an offer of ours.
    fn answer_participant(
        &mut self,
        slot: CallSlot,
        server: Option<ServerTransaction>,
        offer: Option<&[u8]>,
    ) {
        let now = self.parts.ctx.now;
        let mut sdp = Vec::new();
        let described = match offer {
            Some(offer) => self.describe_answer(slot, offer, &mut sdp),
            None => self.describe_offer(slot, &mut sdp),
        };
        if let Err(error) = described {
            return self.refuse_participant(slot, server, error);
        }
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let Some(leg) = call.leg(Side::Caller) else {
            return;
        };
        if let Some(participant) = call.kind.participant_mut() {
            participant.offer_sent = offer.is_none();
        }
        let content = MessageContent::sdp(&sdp);
        if let Some(server) = server {
            // A terminated transaction has been answered by the endpoint.
            let _ = self.endpoint.respond(server, 200, &content, now);
            return;
        }
        if self.endpoint.answer(leg, 200, &content, now).is_err() {
            return self.calls().end_by_border(slot, Reason::AnswerNotSent);
        }
        let number = call.number;
        call.stage = CallStage::ExpectAck;
        call.summary.answered_at = Some(now);
        self.parts.quality_intervals.start(&mut self.parts.ctx);
        call.summary.status = 200;
        let setup_ms = now.since(call.summary.offered_at).as_millis() as u64;
        self.parts.ctx.counters.answered += 1;
        self.parts.ctx.events.tell(now, || EventKind::CallAnswered {
            call: number,
            setup_ms: Some(setup_ms),
            call_id: None,
        });
        self.finish_joining(slot);
    }

    /// Refuses a call or an in-dialog request for an unusable description.
    fn refuse_participant(
        &mut self,
        slot: CallSlot,
        server: Option<ServerTransaction>,
        error: AnchorError,
    ) {
        let now = self.parts.ctx.now;
        if let AnchorError::Exhausted(pool) = error {
            self.parts.media.ports_exhausted(&mut self.parts.ctx, pool);
        }
        let status = error.status();
        match server {
            Some(server) => refuse_with(self.endpoint, server, status, Some(error.reason()), now),
            None => {
                self.calls()
                    .reject_caller_for(slot, status.into(), Some(error.reason()));
                self.calls()
                    .end_call(slot, EndedBy::Border, error.reason(), None);
            }
        }
    }

    /// Processes the ACK to a participant's 2xx.
    pub(crate) fn participant_acked(&mut self, slot: CallSlot, ack: &Message<'_>) {
        let call = self.parts.calls.get_mut(slot);
        let Some(participant) = call.and_then(|call| call.kind.participant_mut()) else {
            return;
        };
        if !std::mem::take(&mut participant.offer_sent) {
            return;
        }
        let result = match sdp_of(ack) {
            Some(Ok(answer)) => self.apply_answer(slot, answer),
            Some(Err(error)) => Err(error),
            None => Err(AnchorError::NoCodec),
        };
        match result {
            Ok(()) => self.finish_joining(slot),
            Err(error) => {
                let reason = b"SIP;cause=488;text=\"No usable answer\"";
                self.calls()
                    .end_call(slot, EndedBy::Border, error.reason(), Some(reason));
            }
        }
    }

    /// Processes an in-dialog request of a participant.
    pub(crate) fn participant_request(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        transaction: ServerTransaction,
        request: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let method = request.method();
        let busy = self
            .parts
            .calls
            .get(slot)
            .and_then(|call| call.kind.participant())
            .is_none_or(|participant| {
                participant.pending.is_some()
                    || participant.offer_sent
                    || participant.refreshing.is_some()
            });
        match method {
            Method::Invite | Method::Update => {
                // Its Contact may name another host.
                self.calls().locate_dialog(leg, None);
                if method == Method::Update && !has_sdp(request) {
                    let _ =
                        self.endpoint
                            .respond(transaction, 200, &MessageContent::default(), now);
                } else if busy {
                    refuse(self.endpoint, transaction, 491, now);
                } else {
                    let offer = sdp_of(request);
                    self.negotiate_participant(slot, Some(transaction), offer);
                }
            }
            Method::Options => refuse(self.endpoint, transaction, 200, now),
            // Digits are supported as telephone events only.
            Method::Info if request.body().is_empty() => {
                refuse(self.endpoint, transaction, 200, now)
            }
            Method::Info => refuse(self.endpoint, transaction, 415, now),
            Method::Subscribe => refuse(self.endpoint, transaction, 489, now),
            _ => refuse(self.endpoint, transaction, 405, now),
        }
    }

    /// Refreshes the session of a participant whose phone does not support UPDATE.
    pub(crate) fn refresh_participant(&mut self, slot: CallSlot, leg: LegId) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        let busy = call.kind.participant().is_none_or(|participant| {
            participant.pending.is_some()
                || participant.offer_sent
                || participant.refreshing.is_some()
        });
        if busy || call.stage != CallStage::ExpectBye {
            return self.endpoint.refresh_later(leg, now);
        }
        let mut sdp = Vec::new();
        if self.describe_offer(slot, &mut sdp).is_err() {
            return;
        }
        let content = MessageContent::sdp(&sdp).with(OWN_REINVITE);
        let sent = self.endpoint.request(leg, Method::Invite, &content, now);
        match (
            sent,
            self.parts
                .calls
                .get_mut(slot)
                .and_then(|call| call.kind.participant_mut()),
        ) {
            (Ok(transaction), Some(participant)) => participant.refreshing = Some(transaction),
            _ => {
                self.calls().abandon_offer(slot);
                self.endpoint.refresh_later(leg, now);
            }
        }
    }

    /// Processes the final response to our refresh; `None` on timeout.
    pub(crate) fn participant_refreshed(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        transaction: TransactionId,
        response: Result<&Message<'_>, Failure>,
    ) {
        let now = self.parts.ctx.now;
        let call = self.parts.calls.get_mut(slot);
        let Some(participant) = call.and_then(|call| call.kind.participant_mut()) else {
            return;
        };
        let is_ours = participant.refreshing == Some(transaction);
        if is_ours {
            participant.refreshing = None;
        }
        let accepted = response.ok().filter(|response| response.status() < 300);
        if let Some(response) = accepted.filter(|response| response.method() == Method::Invite) {
            let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
            let result = match sdp_of(response) {
                Some(Ok(answer)) if is_ours => self.apply_answer(slot, answer),
                _ => Err(AnchorError::NoCodec),
            };
            if let Err(error) = result {
                self.calls()
                    .end_call(slot, EndedBy::Border, error.reason(), None);
            }
        } else if is_ours {
            self.calls().abandon_offer(slot);
            let is_gone = match response {
                Ok(response) => matches!(response.status(), 408 | 481),
                Err(why) => why == Failure::TimedOut,
            };
            // 491 and similar leave the session unchanged; the session timer decides.
            match response {
                _ if is_gone => self.calls().end_by_border(slot, Reason::RefreshFailed),
                Ok(response) => self.endpoint.refresh_refused(leg, response, now),
                Err(_) => self.endpoint.refresh_later(leg, now),
            }
        }
    }

    /// Processes an event of a participant's media.
    pub(crate) fn participant_event(&mut self, key: CallKey, event: ParticipantEvent) {
        match event {
            ParticipantEvent::Muted => {
                self.parts
                    .calls
                    .report_muted(&mut self.parts.ctx, key, true, "participant")
            }
            ParticipantEvent::Unmuted => {
                self.parts
                    .calls
                    .report_muted(&mut self.parts.ctx, key, false, "participant")
            }
            ParticipantEvent::Digit(digit) => {
                if let Some(slot) = self.parts.calls.slot_of(key) {
                    self.handle_pin_digit(slot, digit);
                }
            }
        }
    }

    /// Checks the limits of a new call and reserves capacity.
    fn admit_participant(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        origin: RequestOrigin,
        called: &CalledConference,
    ) -> Result<Reservation, RequestRefusal> {
        let uri = request.request_uri();
        let facts = self.parts.policy_facts(uri, origin);
        called_number(&self.parts.ctx.config, &facts).map_err(RequestRefusal::from)?;
        let spec = &called.spec;
        let name = (spec.name.clone(), called.number.clone());
        if let Some(refusal) = self.parts.conferences.join_refusal(spec, &name) {
            return Err(refusal.refuse(&mut self.parts.ctx, &name));
        }
        // By the codec that will be chosen; by the first configured one for an offer of ours.
        let kind = match sdp_of(request) {
            Some(Ok(offer)) => describe::preferred_codec(spec, offer),
            _ => None,
        };
        let kind = kind.or(spec.codecs.first().copied()).unwrap_or(Kind::Pcma);
        self.parts
            .reserve(uri, Reservation::of_participant(kind, flow.transport))
    }

    /// Finishes joining once audio is agreed; with a PIN, prompts for it.
    fn finish_joining(&mut self, slot: CallSlot) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if call
            .media
            .anchored()
            .and_then(|media| media.voice())
            .is_none()
        {
            return;
        }
        let Some(participant) = call
            .kind
            .participant_mut()
            .filter(|participant| participant.joined_at.is_none())
        else {
            return;
        };
        participant.joined_at = Some(now);
        match participant.pin_entry {
            Some(_) => self.parts.calls.request_pin(&mut self.parts.ctx, slot),
            None => self.report_joined(slot),
        }
    }

    /// Writes the event about a new participant.
    fn report_joined(&mut self, slot: CallSlot) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        let number = call.number;
        let voice = call.media.anchored().and_then(|media| media.voice());
        let (Some((_, voice)), Some(participant)) = (voice, call.kind.participant()) else {
            return;
        };
        let participants = self.parts.conferences.participants_of(&participant.name);
        let name = &participant.name;
        self.parts
            .ctx
            .events
            .tell(now, || EventKind::ConferenceJoined {
                call: number,
                conference: name.0.clone(),
                number: name.1.clone(),
                participants: participants.into(),
                codec: format!("{} {} ms", voice.format.kind().name(), voice.packet_ms),
            });
    }

    /// Appends our answer to `offer` to `out`; the media has accepted the offer.
    fn describe_answer(
        &mut self,
        slot: CallSlot,
        offer: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), AnchorError> {
        let call = self
            .parts
            .calls
            .get_mut(slot)
            .ok_or(AnchorError::Unanchorable)?;
        let (Some(media), Some(participant)) =
            (call.media.anchored_mut(), call.kind.participant_mut())
        else {
            return Err(AnchorError::Unanchorable);
        };
        let accepts_srtp = media.has_media_security();
        let sdp = Sdp::parse(offer).map_err(|_| AnchorError::Unanchorable)?;
        let choice = describe::choose_from_offer(&participant.spec, &sdp, accepts_srtp);
        let choice = choice.filter(|choice| media.has_line(choice.line));
        let choice = choice.ok_or(AnchorError::NoCodec);
        let plane = &mut self.parts.media.plane;
        let choice = choice.inspect_err(|_| media.abandon(plane))?;
        let answer = participant.description.answer(&sdp, &choice);
        let before = media.agree_voice(Some((choice.line, choice.voice)));
        media
            .answer(plane, Side::Callee, &answer, false, out)
            .inspect_err(|_| {
                media.agree_voice(before);
                media.abandon(plane);
            })?;
        let kind = choice.voice.format.kind();
        self.parts.reserve_participant_codec(slot, kind);
        Ok(())
    }

    /// Appends our offer to `out`.
    fn describe_offer(&mut self, slot: CallSlot, out: &mut Vec<u8>) -> Result<(), AnchorError> {
        let call = self
            .parts
            .calls
            .get_mut(slot)
            .ok_or(AnchorError::Unanchorable)?;
        let (Some(media), Some(participant)) =
            (call.media.anchored_mut(), call.kind.participant_mut())
        else {
            return Err(AnchorError::Unanchorable);
        };
        let line = media.voice().map_or(0, |voice| voice.0);
        let offer = participant.description.offer(&participant.spec, line);
        media.offer(&mut self.parts.media.plane, Side::Callee, &offer, out)
    }

    /// Applies the caller's answer to our offer.
    fn apply_answer(&mut self, slot: CallSlot, answer: &[u8]) -> Result<(), AnchorError> {
        let call = self
            .parts
            .calls
            .get_mut(slot)
            .ok_or(AnchorError::Unanchorable)?;
        let address = call.address_of_connection(self.endpoint, Side::Caller);
        let (Some(media), Some(participant)) =
            (call.media.anchored_mut(), call.kind.participant_mut())
        else {
            return Err(AnchorError::Unanchorable);
        };
        if let Some(address) = address {
            media.follow_address(Side::Caller, address);
        }
        let plane = &mut self.parts.media.plane;
        let accepts_srtp = media.has_media_security();
        let sdp = Sdp::parse(answer).ok();
        // The answer has chosen: its first codec counts.
        let choice = sdp
            .as_ref()
            .and_then(|sdp| describe::choose_from_answer(&participant.spec, sdp, accepts_srtp))
            .filter(|choice| media.has_line(choice.line));
        let (Some(sdp), Some(choice)) = (&sdp, choice) else {
            media.abandon(plane);
            return Err(AnchorError::NoCodec);
        };
        participant.description.agree(sdp, &choice);
        let before = media.agree_voice(Some((choice.line, choice.voice)));
        let mut unused = Vec::new();
        media
            .answer(plane, Side::Caller, answer, false, &mut unused)
            .inspect_err(|_| {
                media.agree_voice(before);
            })?;
        let kind = choice.voice.format.kind();
        self.parts.reserve_participant_codec(slot, kind);
        Ok(())
    }
}

/// The session description of a message; an error if it has one that cannot be read in place.
fn sdp_of<'m>(message: &'m Message<'m>) -> Option<Result<&'m [u8], AnchorError>> {
    match session_of(message) {
        wire::sip::Session::None => None,
        wire::sip::Session::Encoded => Some(Err(AnchorError::Encoded)),
        session => session.bytes(message.body()).map(Ok),
    }
}
