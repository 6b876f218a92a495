//! Outgoing and incoming calls of a host.

mod changes;
mod incoming;
mod phone;
mod security;
mod sockets;
mod volte;

use super::media::{MediaSessionPlan, StreamResult, VoiceSide};
use super::names::hex;
use super::phone::PhoneOccurrence;
use super::plan::MediaKind;
use super::sdp::{self, CodecOrder, OfferParameters, OwnRtcp};
use super::{HostState, HostTimer, identity, is_websocket};
use crate::experiment::{HangUp, fill};
use crate::pace::Due;
use crate::record::{Attempt, AttemptKind, AttemptOutcome};
use codec::Format;
use engine::{Entropy, Time, Transport};
use protect::sdes::{CryptoAttribute, SdesAgreement};
use sip::{
    Ending, Endpoint, Failure, Fork, Indication, Invite, LegId, Login, MessageContent, Refused,
    ResponseMismatch, ServerTransaction, Target, TransactionId,
};
use std::net::SocketAddr;
use std::time::Duration;
use wire::sdp::Direction;
use wire::sip::{Message, Method, NameAddr};

/// Talk time above which a call without a received packet counts as one without media.
const MEDIA_EXPECTED: Duration = Duration::from_millis(500);
/// Reason of a call that the peer of a phone has ended.
pub(crate) const PEER_ENDED: &str = "ended by the peer";
/// Port in session descriptions of calls that send and receive no media.
const NO_MEDIA_PORT: u16 = 6000;

/// Key of a call; the generation detects a stale key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostCallKey {
    index: u32,
    generation: u32,
}

impl HostCallKey {
    fn user(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn of_user(user: u64) -> HostCallKey {
        HostCallKey {
            index: user as u32,
            generation: (user >> 32) as u32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostCallPhase {
    /// Waits for a media socket.
    Waiting,
    Calling,
    Offered,
    /// 2xx sent, ACK not received.
    Answered,
    Up,
    Ending,
}

#[derive(Debug)]
pub(crate) struct HostCall {
    generation: u32,
    /// Index of the workload; `None` for an incoming call.
    workload: Option<usize>,
    attempt: Attempt,
    leg: Option<LegId>,
    phase: HostCallPhase,
    session: Option<u32>,
    local: Option<SocketAddr>,
    sends: MediaKind,
    expects: MediaKind,
    codec: Format,
    /// SRTP keys of our offer, until it is answered.
    keys: Vec<CryptoAttribute>,
    /// Agreed SRTP keys.
    agreement: Option<Box<SdesAgreement>>,
    /// The peer does not want to receive.
    peer_holds: bool,
    timed: bool,
    /// The peer's offer, until it is answered.
    offer: Vec<u8>,
    version: u64,
    held: bool,
    hold_requested: bool,
    /// Our re-INVITE without a final response, and whether it asks for hold.
    reinvite: Option<(TransactionId, bool)>,
    /// Session descriptions of reliable provisional responses: the answers of early dialogs (RFC 3262 section 5).
    early_answers: Vec<(Fork, Vec<u8>)>,
    will_cancel: bool,
    will_hold: bool,
    listen: bool,
    ring_limit_hit: bool,
    hold: Duration,
    hangs_up: bool,
    /// State of preconditions.
    volte: Option<Box<volte::Volte>>,
    /// BYE of the peer is the planned end.
    peer_hangs_up: bool,
    /// A field of a response was not that of its request.
    mismatch: Option<ResponseMismatch>,
}

impl HostCall {
    fn established_at(&self) -> Option<u64> {
        self.attempt.established
    }

    /// The time in which media of the peer was due in a call that ends with `outcome`; `None` if none was, or if its
    /// end is unknown.
    fn media_span(&self, outcome: AttemptOutcome, now: Time) -> Option<(Time, Time)> {
        let from = self.attempt.established.map(Time)?;
        // The caller may have ended the call: its BYE has not arrived.
        let is_open = self.workload.is_none() && outcome == AttemptOutcome::Unfinished;
        // No media is expected after our BYE.
        let to = self.attempt.hung_up.map_or(now, Time);
        (!is_open && !self.held && self.expects != MediaKind::None).then_some((from, to))
    }
}

fn drawn(percent: f64, entropy: &mut Entropy) -> bool {
    entropy.unit() * 100.0 < percent
}

fn expected_voice(
    sends: MediaKind,
    peer_voice: VoiceSide,
    own_voice: VoiceSide,
) -> Option<VoiceSide> {
    match sends {
        MediaKind::Speech => Some(peer_voice),
        MediaKind::Echo => Some(own_voice),
        MediaKind::Tone | MediaKind::Turns | MediaKind::None => None,
    }
}

impl HostState {
    fn call(&mut self, key: HostCallKey) -> Option<&mut HostCall> {
        self.calls
            .get_mut(key.index as usize)
            .filter(|call| call.generation == key.generation)
    }

    fn call_of(&self, endpoint: &Endpoint, leg: LegId) -> Option<HostCallKey> {
        let key = HostCallKey::of_user(endpoint.user_of(leg)?);
        self.calls
            .get(key.index as usize)
            .filter(|call| call.generation == key.generation)
            .map(|_| key)
    }

    fn insert(&mut self, mut call: HostCall) -> HostCallKey {
        self.generation = self.generation.wrapping_add(1).max(1);
        call.generation = self.generation;
        HostCallKey {
            index: self.calls.insert(call) as u32,
            generation: self.generation,
        }
    }

    // --- outgoing calls

    pub(crate) fn start_call(
        &mut self,
        endpoint: &mut Endpoint,
        workload: usize,
        due: Due,
        now: Time,
    ) {
        let Some(plan) = self
            .call_workloads
            .get(workload)
            .map(|workload| workload.plan.clone())
        else {
            return;
        };
        let mut attempt = Attempt::new(&plan.name, AttemptKind::Call, due.number, due.at);
        let turn = if plan.cycle > 0 {
            due.number % plan.cycle
        } else {
            due.number
        };
        let user = plan
            .login
            .as_ref()
            .map(|login| login.of(turn).0)
            .unwrap_or_default();
        attempt.from = fill(&plan.from, turn, &user);
        attempt.to = fill(&plan.dial, turn, &user);
        // Drawn also for attempts that may not start, so that the outcome of one does not change the others.
        let will_cancel = drawn(plan.cancel_percent, &mut self.entropy);
        let will_hold = drawn(plan.hold_percent, &mut self.entropy);
        let listen = drawn(plan.listen_percent, &mut self.entropy);
        let hold = plan.hold.draw(&mut self.entropy);
        if !due.may_start {
            attempt.outcome = AttemptOutcome::LimitReached;
            attempt.ended = Some(now.0);
            self.record(attempt, now);
            return;
        }
        let key = self.insert(HostCall {
            generation: 0,
            workload: Some(workload),
            attempt,
            leg: None,
            phase: HostCallPhase::Waiting,
            session: None,
            local: None,
            sends: plan.sends,
            expects: plan.expects,
            codec: plan.codec,
            keys: Vec::new(),
            agreement: None,
            peer_holds: false,
            timed: plan.timed,
            offer: Vec::new(),
            version: 1,
            held: false,
            hold_requested: false,
            reinvite: None,
            early_answers: Vec::new(),
            will_cancel,
            will_hold,
            listen,
            ring_limit_hit: false,
            hold,
            volte: volte::Volte::caller(&plan),
            hangs_up: plan.hang_up == HangUp::Caller,
            peer_hangs_up: plan.hang_up == HangUp::Callee,
            mismatch: None,
        });
        if self.find_socket(key) {
            self.place(endpoint, key, now);
        }
    }

    /// Opens a media session if the call needs one; false if the call has to wait for a socket.
    fn find_socket(&mut self, key: HostCallKey) -> bool {
        let Some(call) = self.call(key) else {
            return false;
        };
        if call.sends == MediaKind::None && call.expects == MediaKind::None {
            return true;
        }
        let caller = call.workload.is_some();
        let (workload, number, timed) = (call.workload, call.attempt.number, call.timed);
        let (sends, expects, listen) = (call.sends, call.expects, call.listen);
        let participants = workload
            .and_then(|workload| self.call_workloads.get(workload))
            .map_or(0, |workload| workload.plan.participants);
        let turn_index = number.checked_rem(participants).unwrap_or_default();
        let (own_voice, peer_voice) = match caller {
            true => (VoiceSide::Caller, VoiceSide::Callee),
            false => (VoiceSide::Callee, VoiceSide::Caller),
        };
        let plan = MediaSessionPlan {
            number,
            side: if caller { "caller" } else { "callee" },
            sends,
            voice: own_voice,
            listen: expected_voice(expects, peer_voice, own_voice).filter(|_| listen),
            expects_media: expects != MediaKind::None,
            turn_index,
            timed,
        };
        match self.media.open(plan) {
            Some((session, local)) => {
                if let Some(call) = self.call(key) {
                    call.session = Some(session);
                    call.local = Some(local);
                }
                true
            }
            None => {
                // The call continues in `media_opened`, or ends in `media_failed`.
                self.media.grow(&mut self.out);
                self.waiting_calls.push_back(key);
                false
            }
        }
    }

    /// The codecs of a call: those of a phone, or that of its plan.
    fn codecs_of(&self, key: HostCallKey) -> CodecOrder {
        let call = self.calls.get(key.index as usize);
        call.map_or(Format::Pcma.into(), |call| self.codecs(call.codec))
    }

    fn codecs(&self, planned: Format) -> CodecOrder {
        match &self.plan.phone {
            Some(phone) => CodecOrder::new(phone.codecs.iter().copied()),
            None => planned.into(),
        }
    }

    fn ours(&self, call: &HostCall, direction: Direction) -> OfferParameters {
        let host = self.address.unwrap_or(self.plan.address);
        OfferParameters {
            address: call
                .local
                .unwrap_or_else(|| SocketAddr::new(host.ip(), NO_MEDIA_PORT)),
            id: u64::from(call.generation),
            version: call.version,
            direction,
            codecs: self.codecs(call.codec),
            secure: false,
            rtcp: call
                .session
                .map_or(OwnRtcp::Absent, |session| self.media.rtcp(session)),
        }
    }

    fn place(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        match self.try_place(endpoint, key, now) {
            Ok(()) => {}
            Err(why) => self.end(key, AttemptOutcome::CouldNotStart, 0, why, now),
        }
    }

    fn try_place(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        now: Time,
    ) -> Result<(), String> {
        let call = self.calls.get(key.index as usize).ok_or("gone")?;
        let workload = call.workload.ok_or("no plan")?;
        let plan = self
            .call_workloads
            .get(workload)
            .ok_or("no plan")?
            .plan
            .clone();
        let number = call.attempt.number;
        let flow = self
            .flow(plan.transport, number, plan.connections)
            .ok_or("no target")?;
        // The Call-ID contains the key of the call, for `note_trying`; the random part makes it unique.
        let mut call_id = String::with_capacity(28);
        hex(u64::from(key.index), 1, &mut call_id);
        call_id.push('-');
        hex(u64::from(key.generation), 1, &mut call_id);
        call_id.push('-');
        let planned = u64::from(self.entropy.u32());
        let unique = identity(planned, &mut self.identities) & 0xffff_ffff;
        hex(unique, 8, &mut call_id);
        let turn = if plan.cycle > 0 {
            number % plan.cycle
        } else {
            number
        };
        let login = plan.login.as_ref().map(|login| login.of(turn));
        let srtp = plan.srtp && call.volte.is_none() && call.session.is_some();
        let keys = match srtp {
            true => self.offered_keys()?,
            false => Vec::new(),
        };
        let call = self.calls.get(key.index as usize).ok_or("gone")?;
        let mut ours = self.ours(call, Direction::SendRecv);
        let ring_limit = plan.ring_limit;
        let (dialled, caller) = (&call.attempt.to, &call.attempt.from);
        let names = &mut self.names;
        names.write(&plan.domain, flow.remote, dialled, caller);
        let written = &mut Vec::new();
        let offer = match (&call.volte, call.session) {
            (Some(volte), _) => {
                *written = volte.first_offer(&ours);
                &written[..]
            }
            (None, Some(_)) if srtp => {
                ours.secure = true;
                *written = ours.offer_with(&security::lines(&keys));
                &written[..]
            }
            (None, Some(_)) => {
                *written = ours.offer();
                &written[..]
            }
            (None, None) => self.descriptions.offer(&ours),
        };
        let edits = volte::first_edits(call.volte.as_deref(), &names.from);
        let invite = Invite {
            from: Some(names.from.as_bytes()),
            call_id: Some(call_id.as_bytes()),
            content: MessageContent::sdp(offer).with(&edits),
            user: key.user(),
            login: login.as_ref().map(|(user, password)| Login {
                user: user.as_bytes(),
                password: password.as_bytes(),
            }),
            ..Invite::new(Target::new(names.uri.as_bytes(), flow))
        };
        let leg = endpoint
            .invite(&invite, now)
            .map_err(|refused| refused.to_string())?;
        if is_websocket(flow.transport) || self.plan.phone.is_some() {
            // A WebSocket client has no listener, and a phone is often behind NAT: all requests of the dialog use the
            // flow of the first.
            let pinned = endpoint.pin(leg, flow);
            pinned.map_err(|refused| refused.to_string())?;
        }
        let call = self.call(key).ok_or("gone")?;
        call.leg = Some(leg);
        call.keys = keys;
        call.phase = HostCallPhase::Calling;
        call.attempt.call_id = call_id;
        call.attempt.sent = Some(now.0);
        self.pop_answered(workload);
        if let Some(workload) = self.call_workloads.get_mut(workload) {
            workload.ringing.push_back((now + ring_limit, key));
        }
        Ok(())
    }

    /// Removes answered and ended calls from the front of the workload's ringing deadlines.
    fn pop_answered(&mut self, workload: usize) {
        let oldest =
            |inner: &HostState| Some(inner.call_workloads.get(workload)?.ringing.front()?.1);
        while let Some(key) = oldest(self) {
            if self
                .call(key)
                .is_some_and(|call| call.phase == HostCallPhase::Calling)
            {
                return;
            }
            if let Some(workload) = self.call_workloads.get_mut(workload) {
                workload.ringing.pop_front();
            }
        }
    }

    /// Ends calls that have rung for the longest planned time.
    pub(crate) fn end_ringing(&mut self, endpoint: &mut Endpoint, now: Time) {
        for workload in 0..self.call_workloads.len() {
            while let Some((at, key)) = self.call_workloads[workload].ringing.front().copied()
                && at <= now
            {
                self.call_workloads[workload].ringing.pop_front();
                self.cancel(endpoint, key, true, now);
            }
        }
    }

    /// Records a 100. The endpoint does not report it; the Call-ID contains the key of the call.
    pub(crate) fn note_trying(&mut self, bytes: &[u8]) {
        if !bytes.starts_with(b"SIP/2.0 100") {
            return;
        }
        let Ok(message) = Message::parse_datagram(bytes) else {
            return;
        };
        let key = message
            .call_id()
            .ok()
            .and_then(|id| std::str::from_utf8(id).ok())
            .and_then(|id| {
                let mut parts = id.split('-');
                Some(HostCallKey {
                    index: u32::from_str_radix(parts.next()?, 16).ok()?,
                    generation: u32::from_str_radix(parts.next()?, 16).ok()?,
                })
            });
        let received_at = self.received_at.0;
        if let Some(call) = key.and_then(|key| self.call(key)) {
            call.attempt.first_answer.get_or_insert(received_at);
        }
    }

    // --- indications of the endpoint

    pub(crate) fn call_indication(
        &mut self,
        endpoint: &mut Endpoint,
        indication: Indication<'_>,
        now: Time,
    ) {
        let leg = match &indication {
            Indication::Offered { leg, request, flow } => {
                // Over TLS a bare address in Contact has no name that a certificate could match: requests in the dialog
                // use the connection that the caller opened.
                if flow.transport == Transport::Tls
                    && let Err(refused) = endpoint.pin(*leg, *flow)
                {
                    self.fatal.get_or_insert_with(|| format!("TLS: {refused}"));
                }
                return self.offered(endpoint, *leg, request, now);
            }
            Indication::Progressed { leg, .. }
            | Indication::Answered { leg, .. }
            | Indication::Failed { leg, .. }
            | Indication::Acked { leg, .. }
            | Indication::Cancelled { leg, .. }
            | Indication::Pracked { leg, .. }
            | Indication::Request { leg, .. }
            | Indication::RequestCancelled { leg, .. }
            | Indication::Response { leg, .. }
            | Indication::TimedOut { leg, .. }
            | Indication::Ended { leg, .. }
            | Indication::RefreshDue { leg }
            | Indication::SessionExpired { leg } => *leg,
            _ => return,
        };
        let Some(key) = self.call_of(endpoint, leg) else {
            // The call is no longer in the table (ended with the trial).
            let _ = endpoint.hang_up(leg, &MessageContent::default(), now);
            return;
        };
        match indication {
            Indication::Progressed {
                fork,
                response,
                reliable,
                ..
            } => {
                self.volte_progressed(key, response);
                if let (true, Some(fork)) = (reliable, fork) {
                    self.keep_early_answer(key, fork, response.body());
                }
                self.progressed(key, response, now);
            }
            Indication::Answered { fork, response, .. } => {
                self.answered_by_peer(endpoint, key, (fork, response), now)
            }
            Indication::Failed {
                reason: why,
                response,
                ..
            } => self.failed(key, why, response, now),
            Indication::Acked { request, .. } => {
                self.answered_in_ack(key, request, now);
                self.acked(key, now);
            }
            Indication::Cancelled { .. } => {
                self.end(key, AttemptOutcome::Cancelled, 487, String::new(), now)
            }
            Indication::Pracked { transaction, .. } => {
                self.respond(endpoint, transaction, 200, &MessageContent::default(), now);
                self.volte_pracked(key, now);
            }
            Indication::Request {
                transaction,
                request,
                ..
            } => {
                self.in_dialog(endpoint, key, transaction, request, now);
            }
            Indication::Response { response, .. } => {
                self.in_dialog_answered(endpoint, key, response, now)
            }
            Indication::TimedOut { transaction, .. } => {
                self.volte_unanswered(key, now);
                self.reinvite_unanswered(key, transaction);
                if let Some(call) = self.call(key) {
                    note(
                        &mut call.attempt.why,
                        "an in-dialog request was not answered",
                    );
                }
            }
            Indication::Ended { reason: why, .. } => self.ended(key, why, now),
            Indication::RefreshDue { .. } => self.reinvite(endpoint, key, now),
            _ => {}
        }
    }

    fn progressed(&mut self, key: HostCallKey, response: &Message<'_>, now: Time) {
        let received_at = self.received_at.0;
        self.report(PhoneOccurrence::Progress {
            status: response.status(),
        });
        let Some(call) = self.call(key) else { return };
        call.attempt.first_answer.get_or_insert(received_at);
        // With preconditions 183 precedes alerting.
        let rings = (180..190).contains(&response.status())
            && (call.volte.is_none() || response.status() != 183);
        if rings && call.attempt.ringing.is_none() {
            call.attempt.ringing = Some(received_at);
            if call.will_cancel {
                let wait = Duration::from_micros(self.entropy.below(400_000));
                self.agenda.push(now + wait, HostTimer::Cancel(key));
            }
        }
    }

    /// Keeps the answer of a reliable provisional response: its dialog may be confirmed by a 2xx without a description
    /// (RFC 3262 section 5, RFC 6337 section 3.1). Retransmissions are not indicated.
    fn keep_early_answer(&mut self, key: HostCallKey, fork: Fork, body: &[u8]) {
        let Some(call) = self.call(key) else { return };
        let is_known = call.early_answers.iter().any(|(known, _)| *known == fork);
        // With preconditions its own state has the answer. The endpoint bounds the number of forks.
        if call.volte.is_none() && call.session.is_some() && !body.is_empty() && !is_known {
            call.early_answers.push((fork, body.to_vec()));
        }
    }

    /// The 2xx, and the early dialog that it confirms.
    fn answered_by_peer(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        (fork, response): (Option<Fork>, &Message<'_>),
        now: Time,
    ) {
        let received_at = self.received_at.0;
        let codecs = self.codecs_of(key);
        let Some(call) = self.call(key) else { return };
        let Some(leg) = call.leg else { return };
        let early = std::mem::take(&mut call.early_answers);
        let early = early.into_iter().find(|(known, _)| Some(*known) == fork);
        let answer = match (response.body(), &early) {
            ([], Some((_, early))) => &early[..],
            (body, _) => body,
        };
        // Only sending depends on it.
        let agreed = call
            .session
            .and_then(|_| sdp::agreed(answer, codecs).or_else(|| call.volte.as_ref()?.agreed()));
        call.attempt.first_answer.get_or_insert(received_at);
        call.attempt.established = Some(received_at);
        call.attempt.status = response.status();
        call.phase = HostCallPhase::Up;
        let (hold, session) = (call.hold, call.session);
        let (hangs_up, will_hold) = (call.hangs_up, call.will_hold);
        if let Err(refused) = endpoint.ack(leg, &MessageContent::default(), now) {
            self.command_refused(key, refused);
        }
        self.volte_established(key, now);
        self.progress.established += 1;
        self.progress.up += 1;
        match (session, agreed) {
            (Some(session), Some(agreed)) => {
                self.secure(key, session, answer);
                let begin = self.media.phased(session, now);
                self.media.agree(session, &agreed, begin);
            }
            (Some(_), None) => {
                if let Some(call) = self.call(key) {
                    note(&mut call.attempt.why, "no usable media in the answer");
                }
            }
            (None, _) => {}
        }
        self.report_established(key);
        if hangs_up {
            self.agenda.push(now + hold, HostTimer::HangUp(key));
        }
        if will_hold {
            self.agenda.push(now + hold / 3, HostTimer::Hold(key));
            self.agenda.push(now + hold * 2 / 3, HostTimer::Resume(key));
        }
    }

    fn failed(
        &mut self,
        key: HostCallKey,
        why: Failure,
        response: Option<&Message<'_>>,
        now: Time,
    ) {
        let status = response.map_or(0, Message::status);
        let received_at = self.received_at.0;
        let phrase = self.reason_of(response);
        let Some(call) = self.call(key) else { return };
        let ending = call.phase == HostCallPhase::Ending;
        let (outcome, text) = match why {
            Failure::Response if ending && status == 487 && call.ring_limit_hit => {
                (AttemptOutcome::TimedOut, "ringing timed out")
            }
            Failure::Response if ending && status == 487 => (AttemptOutcome::Cancelled, ""),
            Failure::Response => (AttemptOutcome::Refused, ""),
            Failure::TimedOut => (AttemptOutcome::TimedOut, "no final response"),
            Failure::CancelCrossed if call.ring_limit_hit => (
                AttemptOutcome::TimedOut,
                "ringing timed out, answered during cancellation",
            ),
            Failure::CancelCrossed => (AttemptOutcome::Cancelled, "answered during cancellation"),
            Failure::CancelledWithoutResponse if call.ring_limit_hit => {
                (AttemptOutcome::TimedOut, "no response")
            }
            Failure::CancelledWithoutResponse => (AttemptOutcome::Cancelled, "no response"),
            Failure::Transport => (AttemptOutcome::Refused, "connection failed"),
        };
        if response.is_some() {
            call.attempt.first_answer.get_or_insert(received_at);
        }
        let text = match phrase {
            Some(phrase) if text.is_empty() => phrase,
            _ => text.to_owned(),
        };
        self.end(key, outcome, status, text, now);
    }

    fn ended(&mut self, key: HostCallKey, why: Ending, now: Time) {
        let is_phone = self.plan.phone.is_some();
        let Some(call) = self.call(key) else { return };
        let planned = call.peer_hangs_up || call.phase == HostCallPhase::Ending;
        if let Ending::Peer = why
            && is_phone
        {
            return self.end(
                key,
                AttemptOutcome::Completed,
                0,
                PEER_ENDED.to_owned(),
                now,
            );
        }
        let (outcome, text) = match why {
            Ending::Local => (AttemptOutcome::Completed, ""),
            Ending::Peer if planned => (AttemptOutcome::Completed, ""),
            Ending::Peer => (AttemptOutcome::CutOff, "BYE before the planned end"),
            Ending::Unanswered => (AttemptOutcome::ByeUnanswered, ""),
            Ending::NoAck => (AttemptOutcome::NoAck, ""),
            Ending::NoPrack => (AttemptOutcome::NoAck, "no PRACK"),
            Ending::SessionExpired => (AttemptOutcome::CutOff, "session expired"),
            // Our BYE has ended the dialog at the peer; a re-INVITE that follows it gets 481.
            Ending::UnknownDialog if call.phase == HostCallPhase::Ending => {
                (AttemptOutcome::Completed, "")
            }
            Ending::UnknownDialog => (AttemptOutcome::CutOff, "dialog unknown to the peer"),
        };
        self.end(key, outcome, 0, text.to_owned(), now);
    }

    // --- timers

    pub(crate) fn hang_up(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(call) = self
            .call(key)
            .filter(|call| call.phase == HostCallPhase::Up)
        else {
            return;
        };
        let (leg, session) = (call.leg, call.session);
        call.phase = HostCallPhase::Ending;
        call.attempt.hung_up = Some(now.0);
        if let Some(session) = session {
            self.media.mute(session);
        }
        let result = leg.map_or(Err(Refused::Gone), |leg| {
            endpoint.bye(leg, &MessageContent::default(), now)
        });
        if let Err(refused) = result {
            self.end(
                key,
                AttemptOutcome::CutOff,
                0,
                format!("BYE: {refused}"),
                now,
            );
        }
    }

    pub(crate) fn cancel(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        ring_limit: bool,
        now: Time,
    ) {
        let Some(call) = self
            .call(key)
            .filter(|call| call.phase == HostCallPhase::Calling)
        else {
            return;
        };
        call.phase = HostCallPhase::Ending;
        call.ring_limit_hit = ring_limit;
        let leg = call.leg;
        let result = leg.map_or(Err(Refused::Gone), |leg| {
            endpoint.cancel(leg, &MessageContent::default(), now)
        });
        if let Err(refused) = result {
            self.end(
                key,
                AttemptOutcome::TimedOut,
                0,
                format!("CANCEL: {refused}"),
                now,
            );
        }
    }

    /// Out-of-dialog requests: a host only confirms that it is reachable.
    pub(crate) fn answer_outside(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) {
        if self.plan.registrar && request.method() == Method::Register {
            return self.take_registration(endpoint, transaction, request, now);
        }
        let status = match request.method() {
            Method::Options | Method::Message | Method::Notify => 200,
            _ => 405,
        };
        self.respond(
            endpoint,
            transaction,
            status,
            &MessageContent::default(),
            now,
        );
    }

    pub(crate) fn respond(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        status: u16,
        content: &MessageContent<'_>,
        now: Time,
    ) {
        // An ended transaction needs no answer; any other refusal is an error of the lab, and the trial has to show it.
        match endpoint.respond(transaction, status, content, now) {
            Ok(()) | Err(Refused::Gone) => {}
            Err(refused) => {
                self.fatal
                    .get_or_insert_with(|| format!("response {status}: {refused}"));
            }
        }
    }

    fn command_refused(&mut self, key: HostCallKey, refused: Refused) {
        if let Some(call) = self.call(key) {
            note(&mut call.attempt.why, &refused.to_string());
        }
    }

    // --- end of calls

    /// Ends the call with this outcome.
    fn end(
        &mut self,
        key: HostCallKey,
        outcome: AttemptOutcome,
        status: u16,
        why: String,
        now: Time,
    ) {
        let Some(call) = self.call(key) else { return };
        let session = call.session.take();
        let span = call.media_span(outcome, now);
        let up = call.attempt.established.is_some();
        let caller = call.workload;
        let received = session.map(|session| self.media.received(session));
        let silent = session.is_some_and(|session| self.media.is_silent(session));
        let result =
            session.and_then(|session| self.media.close(session, span, now, &mut self.out));
        let Some(call) = self.calls.try_remove(key.index as usize) else {
            return;
        };
        let mut attempt = call.attempt;
        attempt.ended = Some(now.0);
        if status != 0 {
            attempt.status = status;
        }
        note(&mut attempt.why, &why);
        // No media is expected after our BYE.
        let talk_end = attempt.hung_up.map_or(now, Time);
        let talked = attempt
            .established
            .map_or(Duration::ZERO, |at| talk_end.since(Time(at)));
        let deaf = call.expects != MediaKind::None
            && received == Some(0)
            && !silent
            && talked >= MEDIA_EXPECTED;
        attempt.outcome = match (outcome, call.mismatch) {
            (_, Some(field)) => {
                // The answer to another request is none to this one.
                attempt.established = None;
                note(&mut attempt.why, &mismatch_text(field));
                AttemptOutcome::Mismatched
            }
            (AttemptOutcome::Completed, None) if deaf && !call.held => AttemptOutcome::NoMedia,
            (outcome, None) => outcome,
        };
        if let Some(result) = result {
            self.keep_stream(result, &attempt);
        }
        self.report(PhoneOccurrence::Ended {
            call: key.user(),
            outcome: attempt.outcome,
            status: attempt.status,
            reason: attempt.why.clone(),
        });
        if up {
            self.progress.up = self.progress.up.saturating_sub(1);
            if self.plan.phone.is_some() {
                // It answers one call. The next one would be offered before its user knows of this end.
                self.plan.answers = None;
            }
        }
        let schedule =
            caller.and_then(|workload| self.call_workloads.get_mut(workload)?.schedule.as_mut());
        if let Some(schedule) = schedule {
            schedule.closed();
        }
        self.record(attempt, now);
    }

    /// Keeps the first field of a call's responses that was not that of its request.
    pub(super) fn note_call_mismatch(&mut self, user: u64, field: ResponseMismatch) {
        if let Some(call) = self.call(HostCallKey::of_user(user)) {
            call.mismatch.get_or_insert(field);
        }
    }

    pub(crate) fn keep_stream(&mut self, mut result: StreamResult, attempt: &Attempt) {
        result.record.workload = attempt.workload.clone();
        result.record.number = attempt.number;
        self.progress.live.stream(&result.record);
        self.received_streams.push(result);
    }

    /// Ends open calls as unfinished when the trial is over.
    pub(crate) fn abandon(&mut self, now: Time) {
        let keys: Vec<HostCallKey> = self
            .calls
            .iter()
            .map(|(index, call)| HostCallKey {
                index: index as u32,
                generation: call.generation,
            })
            .collect();
        for key in keys {
            self.end(key, AttemptOutcome::Unfinished, 0, String::new(), now);
        }
        self.abandon_registrations(now);
    }
}

/// Reason of an attempt with such a response.
pub(super) fn mismatch_text(field: ResponseMismatch) -> String {
    format!("{} of a response is not that of its request", field.name())
}

/// Appends to the reason of an attempt.
fn note(why: &mut String, more: &str) {
    if more.is_empty() {
        return;
    }
    if !why.is_empty() {
        why.push_str("; ");
    }
    why.push_str(more);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn user_of(address: &NameAddr<'_>) -> String {
    user_of_uri(address.uri)
}

fn user_of_uri(uri: &[u8]) -> String {
    wire::sip::Uri::parse(uri)
        .and_then(|uri| uri.user)
        .map(text)
        .unwrap_or_default()
}
