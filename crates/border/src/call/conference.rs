//! Calls to conferences: the border answers the call, and a participant in the forwarder is its other side.

mod describe;
mod lobby;
mod owner;
mod pin;
pub(crate) mod requests;

use super::in_dialog::{refuse, refuse_with};
use super::relay::{has_sdp, session_of};
use super::setup::{RequestOrigin, RequestRefusal};
use super::{Call, CallKey, CallPhase, Sides};
use crate::admission::Reservation;
use crate::border::Core;
use crate::policy::{Facts, called_number};
use crate::rules::Tags;
use anchor::Side;
use anchor::participant::ParticipantSettings;
use anchor::{AnchorError, CallMedia};
use codec::Kind;
use config::ConferenceSpec;
use describe::ConferenceDescription;
use engine::{EventKind, MaybeShared, Time};
use lobby::Lobby;
use media::conference::ParticipantEvent;
use sip::{Endpoint, Flow, LegId, MessageContent, ServerTransaction, TransactionId};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::sdp::Sdp;
use wire::sip::{HeaderId, Message, Method};

/// Identity of a conference: table of the configuration, and called number.
type ConferenceKey = (String, String);

#[derive(Debug)]
struct Conference {
    /// Number in the forwarder.
    number: u64,
    /// Participants in the mix.
    participants: u16,
    /// Callers in the lobby.
    in_lobby: u16,
    /// New callers are refused.
    locked: bool,
    since: Time,
    /// Calls of participants and callers in the lobby, by number.
    calls: BTreeMap<u64, CallKey>,
}

/// A refusal to join a conference.
struct JoinRefusal {
    /// Name of the limit in the event.
    limit: &'static str,
    status: u16,
    text: &'static str,
    /// Reason header for an established call.
    reason: &'static [u8],
}

/// Active conferences per table, of all workers. A conference that has only callers in the lobby does not count.
#[derive(Debug, Default)]
pub(crate) struct ActiveConferences(BTreeMap<String, u32>);

impl ActiveConferences {
    fn is_full(&self, spec: &ConferenceSpec) -> bool {
        self.0.get(&spec.name).copied().unwrap_or_default() >= spec.max_conferences
    }

    /// Counts a new conference, unless the limit is reached; returns whether it was counted.
    fn begin(&mut self, spec: &ConferenceSpec) -> bool {
        let full = self.is_full(spec);
        if !full {
            *self.0.entry(spec.name.clone()).or_default() += 1;
        }
        !full
    }

    fn end(&mut self, spec: &str) {
        if let Some(count) = self.0.get_mut(spec) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(spec);
            }
        }
    }
}

/// Conferences of this worker, within the limits of their tables.
#[derive(Debug)]
pub(crate) struct Conferences {
    table: BTreeMap<ConferenceKey, Conference>,
    last_number: u64,
    active: MaybeShared<ActiveConferences>,
    lobby: Lobby,
}

impl Conferences {
    pub(crate) fn new(active: MaybeShared<ActiveConferences>) -> Conferences {
        Conferences {
            table: BTreeMap::new(),
            last_number: 0,
            active,
            lobby: Lobby::default(),
        }
    }

    /// Participants of all conferences, with the lobbies.
    pub(crate) fn participants(&self) -> usize {
        let calls = self.table.values().map(|conference| conference.calls.len());
        calls.sum()
    }

    fn participants_of(&self, name: &ConferenceKey) -> u16 {
        self.table
            .get(name)
            .map_or(0, |conference| conference.participants)
    }

    /// The reason to refuse a participant in a conference of `spec`, if any.
    fn join_refusal(&self, spec: &ConferenceSpec, name: &ConferenceKey) -> Option<JoinRefusal> {
        let conference = self.table.get(name);
        let participants = conference.map_or(0, |conference| conference.participants);
        if conference.is_some_and(|conference| conference.locked) {
            return Some(JoinRefusal {
                limit: "locked",
                status: 403,
                text: "the conference is locked",
                reason: b"SIP;cause=403;text=\"Conference locked\"",
            });
        }
        match participants {
            0 if self.active.read(|active| active.is_full(spec)) => Some(JoinRefusal::CONFERENCES),
            participants if participants >= spec.settings.max_participants => {
                Some(JoinRefusal::PARTICIPANTS)
            }
            _ => None,
        }
    }

    /// Counts a new participant's conference if it is the first. The limit is checked again: another worker may have
    /// begun a conference since the first check.
    fn reserve_participant(
        &mut self,
        spec: &ConferenceSpec,
        name: &ConferenceKey,
    ) -> Result<(), JoinRefusal> {
        if let Some(refusal) = self.join_refusal(spec, name) {
            return Err(refusal);
        }
        match self.participants_of(name) == 0 && !self.active.lock().begin(spec) {
            true => Err(JoinRefusal::CONFERENCES),
            false => Ok(()),
        }
    }

    /// Adds a participant, or a caller in the lobby. Returns the number of the conference.
    fn add(
        &mut self,
        name: &ConferenceKey,
        call: CallKey,
        number: u64,
        in_lobby: bool,
        now: Time,
    ) -> u64 {
        let last_number = &mut self.last_number;
        let conference = self.table.entry(name.clone()).or_insert_with(|| {
            *last_number += 1;
            Conference {
                number: *last_number,
                participants: 0,
                in_lobby: 0,
                locked: false,
                since: now,
                calls: BTreeMap::new(),
            }
        });
        match in_lobby {
            true => conference.in_lobby += 1,
            false => conference.participants += 1,
        }
        conference.calls.insert(number, call);
        conference.number
    }

    /// Moves a caller from the lobby to the participants.
    fn admit(
        &mut self,
        spec: &ConferenceSpec,
        name: &ConferenceKey,
        number: u64,
    ) -> Result<(), JoinRefusal> {
        self.reserve_participant(spec, name)?;
        self.lobby.leave(number);
        if let Some(conference) = self.table.get_mut(name) {
            conference.in_lobby = conference.in_lobby.saturating_sub(1);
            conference.participants += 1;
        }
        Ok(())
    }

    /// Removes a participant or a caller in the lobby. Returns the number of participants left.
    fn remove(&mut self, name: &ConferenceKey, number: u64, was_in_lobby: bool) -> u16 {
        let Some(conference) = self.table.get_mut(name) else {
            return 0;
        };
        let count = match was_in_lobby {
            true => &mut conference.in_lobby,
            false => &mut conference.participants,
        };
        *count = count.saturating_sub(1);
        conference.calls.remove(&number);
        let left = conference.participants;
        match was_in_lobby {
            true => self.lobby.leave(number),
            false if left == 0 => self.active.lock().end(&name.0),
            false => {}
        }
        if conference.calls.is_empty() {
            self.table.remove(name);
        }
        left
    }
}

impl JoinRefusal {
    const CONFERENCES: JoinRefusal = JoinRefusal {
        limit: "conferences",
        status: 503,
        text: "limit of conferences reached",
        reason: b"SIP;cause=503;text=\"Too many conferences\"",
    };
    const LOBBY: JoinRefusal = JoinRefusal {
        limit: "lobby",
        status: 486,
        text: "limit of callers in the lobby reached",
        reason: b"SIP;cause=486;text=\"Lobby full\"",
    };
    const PARTICIPANTS: JoinRefusal = JoinRefusal {
        limit: "participants",
        status: 486,
        text: "the conference is full",
        reason: b"SIP;cause=486;text=\"Conference full\"",
    };
}

/// An answer that waits for media sockets to be opened.
#[derive(Debug)]
struct PendingAnswer {
    /// The in-dialog request; `None` for the first INVITE.
    server: Option<ServerTransaction>,
    /// The offer; `None` where we make it.
    offer: Option<Box<[u8]>>,
}

/// State of a call to a conference.
#[derive(Debug)]
pub(crate) struct ParticipantState {
    spec: Arc<ConferenceSpec>,
    name: ConferenceKey,
    description: ConferenceDescription,
    pending: Option<PendingAnswer>,
    /// Our offer in a 2xx waits for the answer in the ACK.
    offer_sent: bool,
    /// Our session refresh.
    refreshing: Option<TransactionId>,
    /// From URI of the call.
    from: Box<str>,
    /// Time of the first agreement about audio.
    joined_at: Option<Time>,
    /// PIN entry while in the lobby.
    pin_entry: Option<pin::PinEntry>,
}

impl ParticipantState {
    /// Takes the pending in-dialog request of an ending call, to be refused.
    pub(crate) fn take_pending_transaction(&mut self) -> Option<ServerTransaction> {
        self.pending.take()?.server
    }
}

/// A conference that is called.
pub(crate) struct CalledConference {
    spec: Arc<ConferenceSpec>,
    pub(crate) number: String,
}

impl Core {
    /// The conference that a request URI calls.
    pub(crate) fn called_conference(
        &self,
        uri: &[u8],
        origin: RequestOrigin,
    ) -> Option<CalledConference> {
        if self.config.conferences.is_empty() {
            return None;
        }
        // Limits are checked later.
        let facts = Facts {
            draining: false,
            calls: 0,
            ..self.policy_facts(uri, origin)
        };
        let number = called_number(&self.config, &facts).ok().flatten()?;
        let mut specs = self.config.conferences.iter();
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
            located: origin.located,
            from: b"",
            to: uri,
            random: 0,
            calls: self.total_calls(),
            draining: self.draining.is_some(),
        }
    }

    /// Processes a call to a conference.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn join_conference(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        request: &Message<'_>,
        flow: Flow,
        origin: RequestOrigin,
        (tags, user, called): (Tags, Option<Box<str>>, CalledConference),
        now: Time,
    ) {
        let admitted = self.admit_participant(request, flow, origin, &called, now);
        let reservation = match admitted {
            Ok(reservation) => reservation,
            Err(refused) => return self.refuse_call(endpoint, leg, request, flow, &refused, now),
        };
        let number = self.next_number(endpoint);
        let seed = self.entropy.u64();
        let session = self.entropy.u64() >> 2;
        let Some(side) = self.media_side(origin.interface, origin.trunk, flow.remote.ip()) else {
            self.release_reservation(&reservation);
            let refused = RequestRefusal::new(488, "the interface has no media");
            return self.refuse_call(endpoint, leg, request, flow, &refused, now);
        };
        let CalledConference {
            spec,
            number: called,
        } = called;
        let name = (spec.name.clone(), called);
        let from = super::hunting::text(request.from().map(|from| from.uri).unwrap_or_default());
        let source = lobby::LobbySource::of(user, origin.trunk, request, flow.remote.ip());
        let in_lobby = spec.pin.is_some();
        let admission = match in_lobby {
            true => self.make_lobby_space(endpoint, &spec, &source, now),
            false => self.conferences.reserve_participant(&spec, &name),
        };
        if let Err(refusal) = admission {
            self.release_reservation(&reservation);
            let refused = self.refusal_for(&name, &refusal, now);
            return self.refuse_call(endpoint, leg, request, flow, &refused, now);
        }
        let entry = self.calls.vacant_entry();
        let slot = entry.key();
        let key = CallKey::new(slot, number);
        if in_lobby {
            self.conferences
                .lobby
                .enter(number, key, &spec.name, source, now);
        }
        let conference = self.conferences.add(&name, key, number, in_lobby, now);
        let settings = ParticipantSettings {
            conference,
            settings: spec.settings.clone(),
            voice: None,
            seed,
            in_lobby,
        };
        entry.insert(Call {
            number,
            phase: CallPhase::SetUp,
            legs: Sides::new(Some(leg), None),
            interfaces: Sides::new(origin.interface, origin.interface),
            trunks: Sides::new(origin.trunk, None),
            set_up: None,
            relay: None,
            media: Some(Box::new(
                CallMedia::for_participant(key.0, side, settings).with_number(number),
            )),
            links: Vec::new(),
            held: None,
            join: None,
            ack_due: None,
            ack_sent: false,
            early_request: None,
            mark: 0,
            reservation,
            offered_at: now,
            answered_at: None,
            end: None,
            tags,
            status: 0,
            counted: false,
            end_logged: false,
            charging: None,
            transcoded: false,
            participant: Some(Box::new(ParticipantState {
                spec,
                name,
                description: ConferenceDescription::new(session),
                pending: None,
                offer_sent: false,
                refreshing: None,
                from: from.clone().into(),
                joined_at: None,
                pin_entry: in_lobby.then(pin::PinEntry::default),
            })),
        });
        self.publish_call_count();
        endpoint.set_user(leg, key.0);
        self.locate_dialog(endpoint, leg, None, now);
        self.count_trunk_call(origin.trunk);
        let config = self.config.clone();
        self.events.tell(now, || EventKind::CallOffered {
            call: number,
            interface: config
                .interface(origin.interface)
                .map_or_else(String::new, |interface| interface.name.clone()),
            call_id: super::hunting::text(request.call_id().unwrap_or_default()),
            from,
            to: super::hunting::text(request.request_uri()),
        });
        self.log_initial_tags(slot, now);
        self.negotiate_participant(endpoint, slot, None, sdp_of(request), now);
    }

    /// Checks the limits of a new call and reserves capacity.
    fn admit_participant(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        origin: RequestOrigin,
        called: &CalledConference,
        now: Time,
    ) -> Result<Reservation, RequestRefusal> {
        let uri = request.request_uri();
        let facts = self.policy_facts(uri, origin);
        called_number(&self.config, &facts).map_err(RequestRefusal::from)?;
        let spec = &called.spec;
        let name = (spec.name.clone(), called.number.clone());
        if let Some(refusal) = self.conferences.join_refusal(spec, &name) {
            return Err(self.refusal_for(&name, &refusal, now));
        }
        // By the codec that will be chosen; by the first configured one for an offer of ours.
        let kind = match sdp_of(request) {
            Some(Ok(offer)) => describe::preferred_codec(spec, offer),
            _ => None,
        };
        let kind = kind.or(spec.codecs.first().copied()).unwrap_or(Kind::Pcma);
        self.reserve(uri, Reservation::of_participant(kind, flow.transport), now)
    }

    /// The refusal of a call at a limit, with its event.
    fn refusal_for(
        &mut self,
        name: &ConferenceKey,
        refusal: &JoinRefusal,
        now: Time,
    ) -> RequestRefusal {
        self.report_join_refusal(name, refusal, now);
        let mut refused = RequestRefusal::new(refusal.status, refusal.text);
        if refusal.status == 503 {
            refused.headers.push((HeaderId::RetryAfter, b"10".to_vec()));
        }
        refused
    }

    fn report_join_refusal(&mut self, name: &ConferenceKey, refusal: &JoinRefusal, now: Time) {
        self.events.tell(now, || EventKind::ConferenceFull {
            conference: name.0.clone(),
            number: name.1.clone(),
            limit: refusal.limit.to_owned(),
            status: refusal.status,
        });
    }

    /// Processes an offer, or makes one; the answer is sent as soon as the sockets are open.
    fn negotiate_participant(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        server: Option<ServerTransaction>,
        offer: Option<Result<&[u8], AnchorError>>,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let (Some(media), Some(participant)) =
            (call.media.as_deref_mut(), call.participant.as_deref_mut())
        else {
            return;
        };
        let plane = &mut self.plane;
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
            Err(error) => self.refuse_participant(endpoint, slot, server, error, now),
            Ok(()) if media.defer_until_open(plane) => {
                participant.pending = Some(PendingAnswer {
                    server,
                    offer: offer.map(Box::from),
                });
            }
            Ok(()) => self.answer_participant(endpoint, slot, server, offer, now),
        }
    }

    /// Answers a participant whose media sockets have been opened.
    pub(crate) fn participant_sockets_opened(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        now: Time,
    ) {
        let call = self.calls.get_mut(slot);
        let pending = call
            .and_then(|call| call.participant.as_deref_mut())
            .and_then(|participant| participant.pending.take());
        if let Some(PendingAnswer { server, offer }) = pending {
            self.answer_participant(endpoint, slot, server, offer.as_deref(), now);
        }
    }

    /// Sends the answer to `offer`, or an offer of ours.
    fn answer_participant(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        server: Option<ServerTransaction>,
        offer: Option<&[u8]>,
        now: Time,
    ) {
        let mut sdp = Vec::new();
        let described = match offer {
            Some(offer) => self.describe_answer(slot, offer, &mut sdp),
            None => self.describe_offer(slot, &mut sdp),
        };
        if let Err(error) = described {
            return self.refuse_participant(endpoint, slot, server, error, now);
        }
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(leg) = call.leg(Side::Caller) else {
            return;
        };
        if let Some(participant) = call.participant.as_deref_mut() {
            participant.offer_sent = offer.is_none();
        }
        let content = MessageContent::sdp(&sdp);
        if let Some(server) = server {
            // A terminated transaction has been answered by the endpoint.
            let _ = endpoint.respond(server, 200, &content, now);
            return;
        }
        if endpoint.answer(leg, 200, &content, now).is_err() {
            return self.end_call(endpoint, slot, "border", "answer cannot be sent", None, now);
        }
        let number = call.number;
        call.phase = CallPhase::Answered;
        call.answered_at = Some(now);
        call.status = 200;
        self.counters.answered += 1;
        self.events
            .tell(now, || EventKind::CallAnswered { call: number });
        self.finish_joining(slot, now);
    }

    /// Finishes joining once audio is agreed; with a PIN, prompts for it.
    fn finish_joining(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        if call
            .media
            .as_ref()
            .and_then(|media| media.voice())
            .is_none()
        {
            return;
        }
        let Some(participant) = call
            .participant
            .as_deref_mut()
            .filter(|participant| participant.joined_at.is_none())
        else {
            return;
        };
        participant.joined_at = Some(now);
        match participant.pin_entry {
            Some(_) => self.request_pin(slot, now),
            None => self.report_joined(slot, now),
        }
    }

    /// Writes the event about a new participant.
    fn report_joined(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let number = call.number;
        let voice = call.media.as_ref().and_then(|media| media.voice());
        let (Some((_, voice)), Some(participant)) = (voice, call.participant.as_deref()) else {
            return;
        };
        let participants = self.conferences.participants_of(&participant.name);
        let name = &participant.name;
        self.events.tell(now, || EventKind::ConferenceJoined {
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
        slot: usize,
        offer: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), AnchorError> {
        let call = self.calls.get_mut(slot).ok_or(AnchorError::Unanchorable)?;
        let (Some(media), Some(participant)) =
            (call.media.as_deref_mut(), call.participant.as_deref_mut())
        else {
            return Err(AnchorError::Unanchorable);
        };
        let accepts_srtp = media.has_media_security();
        let sdp = Sdp::parse(offer).map_err(|_| AnchorError::Unanchorable)?;
        let choice = describe::choose_from_offer(&participant.spec, &sdp, accepts_srtp);
        let choice = choice.filter(|choice| media.has_line(choice.line));
        let choice = choice.ok_or(AnchorError::NoCodec);
        let plane = &mut self.plane;
        let choice = choice.inspect_err(|_| media.abandon(plane))?;
        let answer = participant.description.answer(&sdp, &choice);
        let before = media.agree_voice(Some((choice.line, choice.voice)));
        media
            .answer(plane, Side::Callee, &answer, false, out)
            .inspect_err(|_| {
                media.agree_voice(before);
                media.abandon(plane);
            })
    }

    /// Appends our offer to `out`.
    fn describe_offer(&mut self, slot: usize, out: &mut Vec<u8>) -> Result<(), AnchorError> {
        let call = self.calls.get_mut(slot).ok_or(AnchorError::Unanchorable)?;
        let (Some(media), Some(participant)) =
            (call.media.as_deref_mut(), call.participant.as_deref_mut())
        else {
            return Err(AnchorError::Unanchorable);
        };
        let line = media.voice().map_or(0, |voice| voice.0);
        let offer = participant.description.offer(&participant.spec, line);
        media.offer(&mut self.plane, Side::Callee, &offer, out)
    }

    /// Applies the caller's answer to our offer.
    fn apply_answer(&mut self, slot: usize, answer: &[u8]) -> Result<(), AnchorError> {
        let call = self.calls.get_mut(slot).ok_or(AnchorError::Unanchorable)?;
        let (Some(media), Some(participant)) =
            (call.media.as_deref_mut(), call.participant.as_deref_mut())
        else {
            return Err(AnchorError::Unanchorable);
        };
        let plane = &mut self.plane;
        let accepts_srtp = media.has_media_security();
        let sdp = Sdp::parse(answer).ok();
        // The answer has chosen: its first codec counts.
        let choice =
            sdp.and_then(|sdp| describe::choose_from_answer(&participant.spec, &sdp, accepts_srtp));
        let Some(choice) = choice.filter(|choice| media.has_line(choice.line)) else {
            media.abandon(plane);
            return Err(AnchorError::NoCodec);
        };
        let before = media.agree_voice(Some((choice.line, choice.voice)));
        let mut unused = Vec::new();
        media
            .answer(plane, Side::Caller, answer, false, &mut unused)
            .inspect_err(|_| {
                media.agree_voice(before);
            })
    }

    /// Refuses a call or an in-dialog request for an unusable description.
    fn refuse_participant(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        server: Option<ServerTransaction>,
        error: AnchorError,
        now: Time,
    ) {
        if let AnchorError::Exhausted(pool) = error {
            self.ports_exhausted(pool, now);
        }
        let status = error.status();
        match server {
            Some(server) => refuse_with(endpoint, server, status, Some(error.text()), now),
            None => {
                self.reject_caller_for(endpoint, slot, status, Some(error.text()), now);
                self.end_call(endpoint, slot, "border", error.text(), None, now);
            }
        }
    }

    /// Processes the ACK to a participant's 2xx.
    pub(crate) fn participant_acked(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        ack: &Message<'_>,
        now: Time,
    ) {
        let call = self.calls.get_mut(slot);
        let Some(participant) = call.and_then(|call| call.participant.as_deref_mut()) else {
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
            Ok(()) => self.finish_joining(slot, now),
            Err(error) => {
                let reason = b"SIP;cause=488;text=\"No usable answer\"";
                self.end_call(endpoint, slot, "border", error.text(), Some(reason), now);
            }
        }
    }

    /// Processes an in-dialog request of a participant.
    pub(crate) fn participant_request(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) {
        let method = request.method();
        let busy = self
            .calls
            .get(slot)
            .and_then(|call| call.participant.as_deref())
            .is_none_or(|participant| {
                participant.pending.is_some()
                    || participant.offer_sent
                    || participant.refreshing.is_some()
            });
        match method {
            Method::Invite | Method::Update => {
                // Its Contact may name another host.
                self.locate_dialog(endpoint, leg, None, now);
                if method == Method::Update && !has_sdp(request) {
                    let _ = endpoint.respond(transaction, 200, &MessageContent::default(), now);
                } else if busy {
                    refuse(endpoint, transaction, 491, now);
                } else {
                    let offer = sdp_of(request);
                    self.negotiate_participant(endpoint, slot, Some(transaction), offer, now);
                }
            }
            Method::Options => refuse(endpoint, transaction, 200, now),
            // Digits are supported as telephone events only.
            Method::Info if request.body().is_empty() => refuse(endpoint, transaction, 200, now),
            Method::Info => refuse(endpoint, transaction, 415, now),
            Method::Subscribe => refuse(endpoint, transaction, 489, now),
            _ => refuse(endpoint, transaction, 405, now),
        }
    }

    /// Refreshes the session of a participant whose phone does not support UPDATE.
    pub(crate) fn refresh_participant(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        now: Time,
    ) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let busy = call.participant.as_deref().is_none_or(|participant| {
            participant.pending.is_some()
                || participant.offer_sent
                || participant.refreshing.is_some()
        });
        if busy || call.phase != CallPhase::Confirmed {
            return;
        }
        let mut sdp = Vec::new();
        if self.describe_offer(slot, &mut sdp).is_err() {
            return;
        }
        let sent = endpoint.request(leg, Method::Invite, &MessageContent::sdp(&sdp), now);
        match (
            sent,
            self.calls
                .get_mut(slot)
                .and_then(|call| call.participant.as_deref_mut()),
        ) {
            (Ok(transaction), Some(participant)) => participant.refreshing = Some(transaction),
            // Glare: the other request refreshes the session as well.
            _ => self.abandon_offer(slot),
        }
    }

    /// Processes the final response to our refresh; `None` on timeout.
    pub(crate) fn participant_refreshed(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        transaction: TransactionId,
        response: Option<&Message<'_>>,
        now: Time,
    ) {
        let call = self.calls.get_mut(slot);
        let Some(participant) = call.and_then(|call| call.participant.as_deref_mut()) else {
            return;
        };
        let is_ours = participant.refreshing == Some(transaction);
        if is_ours {
            participant.refreshing = None;
        }
        let accepted = response.filter(|response| response.status() < 300);
        if let Some(response) = accepted.filter(|response| response.method() == Method::Invite) {
            let _ = endpoint.ack(leg, &MessageContent::default(), now);
            let result = match sdp_of(response) {
                Some(Ok(answer)) if is_ours => self.apply_answer(slot, answer),
                _ => Err(AnchorError::NoCodec),
            };
            if let Err(error) = result {
                self.end_call(endpoint, slot, "border", error.text(), None, now);
            }
        } else if is_ours {
            self.abandon_offer(slot);
            let status = response.map_or(408, Message::status);
            // 491 and similar leave the session unchanged; the session timer decides.
            if matches!(status, 408 | 481) {
                self.end_call(endpoint, slot, "border", "refresh failed", None, now);
            }
        }
    }

    /// Processes an event of a participant's media.
    pub(crate) fn participant_event(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        event: ParticipantEvent,
        now: Time,
    ) {
        match event {
            ParticipantEvent::Muted => self.report_muted(key, true, "participant", now),
            ParticipantEvent::Unmuted => self.report_muted(key, false, "participant", now),
            ParticipantEvent::Digit(digit) => {
                if let Some(slot) = self.slot_of(key) {
                    self.handle_pin_digit(endpoint, slot, digit, now);
                }
            }
        }
    }

    fn report_muted(&mut self, key: CallKey, muted: bool, by: &str, now: Time) {
        let call = self.slot_of(key).and_then(|slot| self.calls.get(slot));
        let Some((call, participant)) =
            call.and_then(|call| Some((call, call.participant.as_deref()?)))
        else {
            return;
        };
        let number = call.number;
        self.events.tell(now, || EventKind::ConferenceMuted {
            call: number,
            conference: participant.name.0.clone(),
            muted,
            requested_by: by.to_owned(),
        });
    }

    /// Removes the participant, once.
    pub(crate) fn leave_conference(&mut self, slot: usize) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(mut participant) = call.participant.take() else {
            return;
        };
        let number = call.number;
        let was_in_lobby = participant.pin_entry.is_some();
        if let Some(timer) = participant
            .pin_entry
            .as_mut()
            .and_then(pin::PinEntry::take_timer)
        {
            self.timers.cancel(timer);
        }
        let participants = self
            .conferences
            .remove(&participant.name, number, was_in_lobby);
        if participant.joined_at.is_some() && !was_in_lobby {
            let now = self.now;
            self.events.tell(now, || EventKind::ConferenceLeft {
                call: number,
                conference: participant.name.0.clone(),
                number: participant.name.1.clone(),
                participants: participants.into(),
            });
        }
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
