//! Calls, made and taken.

mod changes;
mod security;
mod volte;

use super::media::{SessionPlan, StreamResult, Voice};
use super::names::hex;
use super::plan::Say;
use super::sdp::{self, Ours};
use super::{Inner, Timer, is_websocket};
use crate::experiment::{HangUp, fill};
use crate::pace::Due;
use crate::record::{Attempt, Kind, Outcome};
use codec::Format;
use engine::{Entropy, SocketId, Time, Transport};
use protect::sdes::CryptoAttribute;
use sip::{
    Content, Ending, Endpoint, Failure, Indication, Invite, LegId, Login, Refused,
    ServerTransaction, Target,
};
use std::net::SocketAddr;
use std::time::Duration;
use wire::sdp::Direction;
use wire::sip::{Message, Method, NameAddr};

/// Talk time from which on a call without a packet is called one without media.
const MEDIA_EXPECTED: Duration = Duration::from_millis(500);
/// Port written into descriptions of calls that send and receive no media.
const NO_MEDIA_PORT: u16 = 6000;

/// Names a call; an old name is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallKey {
    index: u32,
    generation: u32,
}

impl CallKey {
    fn user(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn of_user(user: u64) -> CallKey {
        CallKey {
            index: user as u32,
            generation: (user >> 32) as u32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No socket is free yet.
    Waiting,
    Calling,
    Offered,
    /// Our 2xx is out, the ACK is not in.
    Answered,
    Up,
    Ending,
}

#[derive(Debug)]
pub(crate) struct Call {
    generation: u32,
    /// Index of the workload; `None` for a call that we take.
    work: Option<usize>,
    attempt: Attempt,
    leg: Option<LegId>,
    phase: Phase,
    session: Option<u32>,
    local: Option<SocketAddr>,
    say: Say,
    hear: Say,
    codec: Format,
    /// What SRTP was offered with.
    keys: Vec<CryptoAttribute>,
    timed: bool,
    /// The other side's offer, until it is answered.
    offer: Vec<u8>,
    version: u64,
    held: bool,
    wants_hold: bool,
    will_cancel: bool,
    will_hold: bool,
    listen: bool,
    ring_limit_hit: bool,
    hold: Duration,
    we_hang_up: bool,
    /// What preconditions add.
    volte: Option<Box<volte::Volte>>,
    /// Their BYE is what was planned.
    they_hang_up: bool,
}

fn drawn(percent: f64, entropy: &mut Entropy) -> bool {
    entropy.unit() * 100.0 < percent
}

fn voice_of(say: Say, theirs: Voice, mine: Voice) -> Option<Voice> {
    match say {
        Say::Speech => Some(theirs),
        Say::Echo => Some(mine),
        Say::Tone | Say::Turns | Say::None => None,
    }
}

impl Inner {
    fn call(&mut self, key: CallKey) -> Option<&mut Call> {
        self.calls
            .get_mut(key.index as usize)
            .filter(|call| call.generation == key.generation)
    }

    fn call_of(&self, endpoint: &Endpoint, leg: LegId) -> Option<CallKey> {
        let key = CallKey::of_user(endpoint.user_of(leg)?);
        self.calls
            .get(key.index as usize)
            .filter(|call| call.generation == key.generation)
            .map(|_| key)
    }

    fn insert(&mut self, mut call: Call) -> CallKey {
        self.generation = self.generation.wrapping_add(1).max(1);
        call.generation = self.generation;
        CallKey {
            index: self.calls.insert(call) as u32,
            generation: self.generation,
        }
    }

    // --- made

    pub(crate) fn start_call(&mut self, endpoint: &mut Endpoint, work: usize, due: Due, now: Time) {
        let Some(plan) = self.works.get(work).map(|work| work.plan.clone()) else {
            return;
        };
        let mut attempt = Attempt::new(&plan.name, Kind::Call, due.number, due.at);
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
        // Drawn whether it may start or not, so that one attempt's fate does not change another's.
        let will_cancel = drawn(plan.cancel_percent, &mut self.entropy);
        let will_hold = drawn(plan.hold_percent, &mut self.entropy);
        let listen = drawn(plan.listen_percent, &mut self.entropy);
        let hold = plan.hold.draw(&mut self.entropy);
        if !due.may_start {
            attempt.outcome = Outcome::LimitReached;
            attempt.ended = Some(now.0);
            self.record(attempt, now);
            return;
        }
        let key = self.insert(Call {
            generation: 0,
            work: Some(work),
            attempt,
            leg: None,
            phase: Phase::Waiting,
            session: None,
            local: None,
            say: plan.say,
            hear: plan.hear,
            codec: plan.codec,
            keys: Vec::new(),
            timed: plan.timed,
            offer: Vec::new(),
            version: 1,
            held: false,
            wants_hold: false,
            will_cancel,
            will_hold,
            listen,
            ring_limit_hit: false,
            hold,
            volte: volte::Volte::caller(&plan),
            we_hang_up: plan.hang_up == HangUp::Caller,
            they_hang_up: plan.hang_up == HangUp::Callee,
        });
        if self.find_socket(key) {
            self.place(endpoint, key, now);
        }
    }

    /// Gives the call a media session where it needs one; false where it has to wait for a socket.
    fn find_socket(&mut self, key: CallKey) -> bool {
        let Some(call) = self.call(key) else {
            return false;
        };
        if call.say == Say::None && call.hear == Say::None {
            return true;
        }
        let caller = call.work.is_some();
        let (work, number, timed) = (call.work, call.attempt.number, call.timed);
        let (say, hear, listen) = (call.say, call.hear, call.listen);
        let seats = work
            .and_then(|work| self.works.get(work))
            .map_or(0, |work| work.plan.seats);
        let seat = number.checked_rem(seats).unwrap_or_default();
        let (mine, theirs) = match caller {
            true => (Voice::Caller, Voice::Callee),
            false => (Voice::Callee, Voice::Caller),
        };
        let plan = SessionPlan {
            number,
            side: if caller { "caller" } else { "callee" },
            say,
            voice: mine,
            listen: voice_of(hear, theirs, mine).filter(|_| listen),
            hears: hear != Say::None,
            seat,
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
                self.media.grow(&mut self.out);
                self.waiting.push_back(key);
                false
            }
        }
    }

    pub(crate) fn media_opened(
        &mut self,
        endpoint: &mut Endpoint,
        socket: SocketId,
        local: SocketAddr,
        now: Time,
    ) {
        self.media.opened(socket, local);
        while let Some(key) = self.waiting.pop_front() {
            let Some(phase) = self.call(key).map(|call| call.phase) else {
                continue;
            };
            if self.find_socket(key) {
                match phase {
                    Phase::Waiting => self.place(endpoint, key, now),
                    _ => self.plan_answer(endpoint, key, now),
                }
            }
            return;
        }
    }

    pub(crate) fn media_failed(&mut self, socket: SocketId, error: &str, now: Time) {
        self.media.failed(socket);
        let Some(key) = self.waiting.pop_front() else {
            // One of those that were asked for beforehand.
            self.fatal
                .get_or_insert_with(|| format!("media socket: {error}"));
            return;
        };
        // A called side without a socket lets the call ring; the caller's limit ends it.
        if self
            .call(key)
            .is_some_and(|call| call.phase == Phase::Waiting)
        {
            self.end(
                key,
                Outcome::CouldNotStart,
                0,
                format!("media socket: {error}"),
                now,
            );
        }
    }

    fn ours(&self, call: &Call, direction: Direction) -> Ours {
        let host = self.address.unwrap_or(self.plan.address);
        Ours {
            address: call
                .local
                .unwrap_or_else(|| SocketAddr::new(host.ip(), NO_MEDIA_PORT)),
            id: u64::from(call.generation),
            version: call.version,
            direction,
            codec: call.codec,
            secure: false,
        }
    }

    fn place(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        match self.try_place(endpoint, key, now) {
            Ok(()) => {}
            Err(why) => self.end(key, Outcome::CouldNotStart, 0, why, now),
        }
    }

    fn try_place(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        now: Time,
    ) -> Result<(), String> {
        let call = self.calls.get(key.index as usize).ok_or("gone")?;
        let work = call.work.ok_or("no plan")?;
        let plan = self.works.get(work).ok_or("no plan")?.plan.clone();
        let number = call.attempt.number;
        let flow = self
            .flow(plan.transport, number, plan.connections)
            .ok_or("no target")?;
        let mut call_id = String::with_capacity(28);
        hex(u64::from(key.index), 1, &mut call_id);
        call_id.push('-');
        hex(u64::from(key.generation), 1, &mut call_id);
        call_id.push('-');
        hex(u64::from(self.entropy.u32()), 8, &mut call_id);
        let turn = if plan.cycle > 0 {
            number % plan.cycle
        } else {
            number
        };
        let login = plan.login.as_ref().map(|login| login.of(turn));
        let mut ours = self.ours(call, Direction::SendRecv);
        let ring_limit = plan.ring_limit;
        let (dialled, caller) = (&call.attempt.to, &call.attempt.from);
        let names = &mut self.names;
        names.write(&plan.domain, flow.remote, dialled, caller);
        let (written, mut keys) = (&mut Vec::new(), Vec::new());
        let offer = match (&call.volte, call.session) {
            (Some(volte), _) => {
                *written = volte.first_offer(&ours);
                &written[..]
            }
            (None, Some(_)) if plan.srtp => {
                ours.secure = true;
                keys = security::keys(&mut self.entropy)?;
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
            content: Content::sdp(offer).with(&edits),
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
        if is_websocket(flow.transport) {
            // A client of WebSockets has no other way: all of the dialog takes it.
            let pinned = endpoint.pin(leg, flow);
            pinned.map_err(|refused| refused.to_string())?;
        }
        let call = self.call(key).ok_or("gone")?;
        call.leg = Some(leg);
        call.keys = keys;
        call.phase = Phase::Calling;
        call.attempt.call_id = call_id;
        call.attempt.sent = Some(now.0);
        self.forget_answered(work);
        if let Some(work) = self.works.get_mut(work) {
            work.ringing.push_back((now + ring_limit, key));
        }
        Ok(())
    }

    /// Forgets when the oldest calls of a workload were to be given up, where they are answered or over.
    fn forget_answered(&mut self, work: usize) {
        let oldest = |inner: &Inner| Some(inner.works.get(work)?.ringing.front()?.1);
        while let Some(key) = oldest(self) {
            if self
                .call(key)
                .is_some_and(|call| call.phase == Phase::Calling)
            {
                return;
            }
            if let Some(work) = self.works.get_mut(work) {
                work.ringing.pop_front();
            }
        }
    }

    /// Gives up calls that have rung for as long as the plan lets them.
    pub(crate) fn end_ringing(&mut self, endpoint: &mut Endpoint, now: Time) {
        for work in 0..self.works.len() {
            while let Some((at, key)) = self.works[work].ringing.front().copied()
                && at <= now
            {
                self.works[work].ringing.pop_front();
                self.cancel(endpoint, key, true, now);
            }
        }
    }

    /// 100 is not told by the endpoint; our Call-IDs name the call.
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
                Some(CallKey {
                    index: u32::from_str_radix(parts.next()?, 16).ok()?,
                    generation: u32::from_str_radix(parts.next()?, 16).ok()?,
                })
            });
        let heard = self.heard.0;
        if let Some(call) = key.and_then(|key| self.call(key)) {
            call.attempt.first_answer.get_or_insert(heard);
        }
    }

    // --- told by the endpoint

    pub(crate) fn call_indication(
        &mut self,
        endpoint: &mut Endpoint,
        indication: Indication<'_>,
        now: Time,
    ) {
        let leg = match &indication {
            Indication::Offered { leg, request, flow } => {
                // Over TLS a Contact with a bare address leads to nobody whose certificate could be right: our requests take the
                // connection that the caller opened.
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
            // Not a call of ours any more (given up when the trial ended).
            let _ = endpoint.hang_up(leg, &Content::default(), now);
            return;
        };
        match indication {
            Indication::Progressed { response, .. } => {
                self.volte_progressed(key, response);
                self.progressed(key, response, now);
            }
            Indication::Answered { response, .. } => {
                self.answered_by_peer(endpoint, key, response, now)
            }
            Indication::Failed { why, response, .. } => self.failed(key, why, response, now),
            Indication::Acked { .. } => self.acked(key, now),
            Indication::Cancelled { .. } => {
                self.end(key, Outcome::Cancelled, 487, String::new(), now)
            }
            Indication::Pracked { transaction, .. } => {
                self.respond(endpoint, transaction, 200, &Content::default(), now);
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
            Indication::TimedOut { .. } => {
                self.volte_unanswered(key, now);
                if let Some(call) = self.call(key) {
                    note(
                        &mut call.attempt.why,
                        "a request in the dialog had no answer",
                    );
                }
            }
            Indication::Ended { why, .. } => self.ended(key, why, now),
            Indication::RefreshDue { .. } => self.reinvite(endpoint, key, now),
            _ => {}
        }
    }

    fn progressed(&mut self, key: CallKey, response: &Message<'_>, now: Time) {
        let heard = self.heard.0;
        let Some(call) = self.call(key) else { return };
        call.attempt.first_answer.get_or_insert(heard);
        // With preconditions 183 comes before anybody is alerted.
        let rings = (180..190).contains(&response.status())
            && (call.volte.is_none() || response.status() != 183);
        if rings && call.attempt.ringing.is_none() {
            call.attempt.ringing = Some(heard);
            if call.will_cancel {
                let wait = Duration::from_micros(self.entropy.below(400_000));
                self.agenda.push(now + wait, Timer::Cancel(key));
            }
        }
    }

    fn answered_by_peer(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        response: &Message<'_>,
        now: Time,
    ) {
        let heard = self.heard.0;
        let Some(call) = self.call(key) else { return };
        let Some(leg) = call.leg else { return };
        // Only what is sent depends on it.
        let agreed = call.session.and_then(|_| {
            sdp::agreed(response.body(), call.codec).or_else(|| call.volte.as_ref()?.agreed())
        });
        call.attempt.first_answer.get_or_insert(heard);
        call.attempt.established = Some(heard);
        call.attempt.status = response.status();
        call.phase = Phase::Up;
        let (hold, session) = (call.hold, call.session);
        let (we_hang_up, will_hold) = (call.we_hang_up, call.will_hold);
        if let Err(refused) = endpoint.ack(leg, &Content::default(), now) {
            self.command_refused(key, refused);
        }
        self.volte_established(key, now);
        self.progress.established += 1;
        self.progress.up += 1;
        match (session, agreed) {
            (Some(session), Some(agreed)) => {
                self.secure(key, session, response.body());
                self.media.agree(session, &agreed, now);
            }
            (Some(_), None) => {
                if let Some(call) = self.call(key) {
                    note(&mut call.attempt.why, "no usable media in the answer");
                }
            }
            (None, _) => {}
        }
        if we_hang_up {
            self.agenda.push(now + hold, Timer::HangUp(key));
        }
        if will_hold {
            self.agenda.push(now + hold / 3, Timer::Hold(key));
            self.agenda.push(now + hold * 2 / 3, Timer::Resume(key));
        }
    }

    fn failed(&mut self, key: CallKey, why: Failure, response: Option<&Message<'_>>, now: Time) {
        let status = response.map_or(0, Message::status);
        let heard = self.heard.0;
        let Some(call) = self.call(key) else { return };
        let ending = call.phase == Phase::Ending;
        let (outcome, text) = match why {
            Failure::Response if ending && status == 487 && call.ring_limit_hit => {
                (Outcome::TimedOut, "rang too long")
            }
            Failure::Response if ending && status == 487 => (Outcome::Cancelled, ""),
            Failure::Response => (Outcome::Refused, ""),
            Failure::TimedOut => (Outcome::TimedOut, "no final answer"),
            Failure::CancelCrossed if call.ring_limit_hit => {
                (Outcome::TimedOut, "rang too long, answered at last")
            }
            Failure::CancelCrossed => (Outcome::Cancelled, "answered in the same moment"),
            Failure::CancelledUnheard if call.ring_limit_hit => {
                (Outcome::TimedOut, "nothing was heard")
            }
            Failure::CancelledUnheard => (Outcome::Cancelled, "nothing was heard"),
            Failure::Transport => (Outcome::Refused, "connection failed"),
        };
        if response.is_some() {
            call.attempt.first_answer.get_or_insert(heard);
        }
        self.end(key, outcome, status, text.to_owned(), now);
    }

    fn ended(&mut self, key: CallKey, why: Ending, now: Time) {
        let Some(call) = self.call(key) else { return };
        let planned = call.they_hang_up || call.phase == Phase::Ending;
        let (outcome, text) = match why {
            Ending::Us => (Outcome::Completed, ""),
            Ending::Peer if planned => (Outcome::Completed, ""),
            Ending::Peer => (Outcome::CutOff, "BYE before its time"),
            Ending::Unanswered => (Outcome::ByeUnanswered, ""),
            Ending::NoAck => (Outcome::NoAck, ""),
            Ending::NoPrack => (Outcome::NoAck, "no PRACK"),
            Ending::SessionExpired => (Outcome::CutOff, "session expired"),
            // Our BYE had ended it there; a re-INVITE that came behind it is answered so.
            Ending::Unknown if call.phase == Phase::Ending => (Outcome::Completed, ""),
            Ending::Unknown => (Outcome::CutOff, "the peer does not know the dialog"),
        };
        self.end(key, outcome, 0, text.to_owned(), now);
    }

    // --- done by time

    pub(crate) fn hang_up(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(call) = self.call(key).filter(|call| call.phase == Phase::Up) else {
            return;
        };
        let (leg, session) = (call.leg, call.session);
        call.phase = Phase::Ending;
        call.attempt.hung_up = Some(now.0);
        if let Some(session) = session {
            self.media.mute(session);
        }
        let result = leg.map_or(Err(Refused::Gone), |leg| {
            endpoint.bye(leg, &Content::default(), now)
        });
        if let Err(refused) = result {
            self.end(key, Outcome::CutOff, 0, format!("BYE: {refused}"), now);
        }
    }

    pub(crate) fn cancel(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        ring_limit: bool,
        now: Time,
    ) {
        let Some(call) = self.call(key).filter(|call| call.phase == Phase::Calling) else {
            return;
        };
        call.phase = Phase::Ending;
        call.ring_limit_hit = ring_limit;
        let leg = call.leg;
        let result = leg.map_or(Err(Refused::Gone), |leg| {
            endpoint.cancel(leg, &Content::default(), now)
        });
        if let Err(refused) = result {
            self.end(key, Outcome::TimedOut, 0, format!("CANCEL: {refused}"), now);
        }
    }

    // --- taken

    fn offered(&mut self, endpoint: &mut Endpoint, leg: LegId, request: &Message<'_>, now: Time) {
        let Some(plan) = self.plan.answers.clone() else {
            if let Err(refused) = endpoint.reject(leg, 480, &Content::default(), now) {
                self.fatal.get_or_insert_with(|| format!("480: {refused}"));
            }
            return;
        };
        let mut attempt = Attempt::new(&plan.name, Kind::Answer, self.answered, now);
        self.answered += 1;
        attempt.sent = Some(now.0);
        attempt.call_id = request.call_id().map(text).unwrap_or_default();
        attempt.from = request
            .from()
            .ok()
            .map(|from| user_of(&from))
            .unwrap_or_default();
        attempt.to = user_of_uri(request.request_uri());
        let echo = plan
            .echo_number
            .as_ref()
            .is_some_and(|number| *number == attempt.to);
        let say = if echo { Say::Echo } else { plan.say };
        let busy = drawn(plan.busy_percent, &mut self.entropy);
        let rings_only = drawn(plan.no_answer_percent, &mut self.entropy);
        let listen = drawn(plan.listen_percent, &mut self.entropy);
        let hold = plan.hang_up.map(|hold| hold.draw(&mut self.entropy));
        let key = self.insert(Call {
            generation: 0,
            work: None,
            attempt,
            leg: Some(leg),
            phase: Phase::Offered,
            session: None,
            local: None,
            say,
            hear: plan.hear,
            codec: plan.codec,
            keys: Vec::new(),
            timed: plan.timed,
            offer: request.body().to_vec(),
            version: 1,
            held: false,
            wants_hold: false,
            will_cancel: rings_only,
            will_hold: false,
            listen,
            ring_limit_hit: false,
            hold: hold.unwrap_or_default(),
            volte: volte::Volte::callee(&plan, request),
            we_hang_up: hold.is_some(),
            they_hang_up: hold.is_none(),
        });
        endpoint.set_user(leg, key.user());
        if busy {
            let result = endpoint.reject(leg, 486, &Content::default(), now);
            let why = result
                .err()
                .map(|refused| refused.to_string())
                .unwrap_or_default();
            self.end(key, Outcome::Refused, 486, why, now);
        } else if self.find_socket(key) {
            self.plan_answer(endpoint, key, now);
        }
    }

    /// Rings and answers now or by timer.
    fn plan_answer(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(plan) = self.plan.answers.clone() else {
            return;
        };
        let offered = self.call(key).map_or(now, |call| Time(call.attempt.due));
        let answer = match plan.random {
            true => Duration::from_secs_f64(self.entropy.exponential(plan.answer.as_secs_f64())),
            false => plan.answer,
        };
        let ring_at = offered + plan.ring.min(answer);
        if self.plan_volte(endpoint, key, (ring_at, offered + answer), now) {
            return;
        }
        if ring_at <= now {
            self.ring(endpoint, key, now);
        } else {
            self.agenda.push(ring_at, Timer::Ring(key));
        }
        if self.call(key).is_some_and(|call| call.will_cancel) {
            return;
        }
        if offered + answer <= now {
            self.answer(endpoint, key, now);
        } else {
            self.agenda.push(offered + answer, Timer::Answer(key));
        }
    }

    pub(crate) fn ring(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(call) = self.call(key).filter(|call| call.phase == Phase::Offered) else {
            return;
        };
        call.attempt.ringing = Some(now.0);
        let Some(leg) = call.leg else { return };
        if let Err(refused) = endpoint.progress(leg, 180, &Content::default(), false, now) {
            self.command_refused(key, refused);
        }
    }

    pub(crate) fn answer(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(call) = self
            .calls
            .get(key.index as usize)
            .filter(|call| call.generation == key.generation && call.phase == Phase::Offered)
        else {
            return;
        };
        let Some(leg) = call.leg else { return };
        let ours = self.ours(call, Direction::SendRecv);
        // An INVITE without an offer gets ours in the 2xx (RFC 3264 section 4; RFC 3261 section 13.2.1).
        let written;
        let described = match (call.offer.is_empty(), call.session) {
            (true, _) => {
                written = ours.offer();
                Some((&written[..], None))
            }
            (false, None) => {
                let answer = self.descriptions.answer(&ours, &call.offer);
                answer.map(|(body, agreed)| (body, Some(agreed)))
            }
            (false, Some(_)) => match ours.answer(&call.offer) {
                Some((body, agreed)) => {
                    written = body;
                    Some((&written[..], Some(agreed)))
                }
                None => None,
            },
        };
        let Some((body, agreed)) = described else {
            let result = endpoint.reject(leg, 488, &Content::default(), now);
            let why = result.err().map(|refused| refused.to_string());
            self.end(key, Outcome::Refused, 488, why.unwrap_or_default(), now);
            return;
        };
        if let Err(refused) = endpoint.answer(leg, 200, &Content::sdp(body), now) {
            let why = format!("200: {refused}");
            self.end(key, Outcome::CouldNotStart, 0, why, now);
            return;
        }
        let Some(call) = self.call(key) else { return };
        call.phase = Phase::Answered;
        call.offer = Vec::new();
        if let (Some(session), Some(agreed)) = (call.session, agreed) {
            self.media.agree(session, &agreed, now);
        }
    }

    fn acked(&mut self, key: CallKey, now: Time) {
        let Some(call) = self.call(key).filter(|call| call.phase == Phase::Answered) else {
            return;
        };
        call.phase = Phase::Up;
        call.attempt.established = Some(now.0);
        let (hold, we_hang_up) = (call.hold, call.we_hang_up);
        self.progress.established += 1;
        self.progress.up += 1;
        if we_hang_up {
            self.agenda.push(now + hold, Timer::HangUp(key));
        }
    }

    /// Requests outside of dialogs: a host has nothing to offer but its being there.
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
        self.respond(endpoint, transaction, status, &Content::default(), now);
    }

    pub(crate) fn respond(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        status: u16,
        content: &Content<'_>,
        now: Time,
    ) {
        // A transaction that is over needs no answer; anything else is a mistake of ours that the trial has to show.
        match endpoint.respond(transaction, status, content, now) {
            Ok(()) | Err(Refused::Gone) => {}
            Err(refused) => {
                self.fatal
                    .get_or_insert_with(|| format!("response {status}: {refused}"));
            }
        }
    }

    fn command_refused(&mut self, key: CallKey, refused: Refused) {
        if let Some(call) = self.call(key) {
            note(&mut call.attempt.why, &refused.to_string());
        }
    }

    // --- over

    /// The call is over with this outcome.
    fn end(&mut self, key: CallKey, outcome: Outcome, status: u16, why: String, now: Time) {
        let Some(call) = self.call(key) else { return };
        let session = call.session.take();
        let up = call.attempt.established.is_some();
        let caller = call.work;
        let received = session.map(|session| self.media.received(session));
        let result = session.and_then(|session| self.media.close(session));
        let call = self.calls.remove(key.index as usize);
        let mut attempt = call.attempt;
        attempt.ended = Some(now.0);
        if status != 0 {
            attempt.status = status;
        }
        note(&mut attempt.why, &why);
        // From our BYE on no media is due.
        let talk_end = attempt.hung_up.map_or(now, Time);
        let talked = attempt
            .established
            .map_or(Duration::ZERO, |at| talk_end.since(Time(at)));
        let deaf = call.hear != Say::None && received == Some(0) && talked >= MEDIA_EXPECTED;
        attempt.outcome = match outcome {
            Outcome::Completed if deaf && !call.held => Outcome::NoMedia,
            outcome => outcome,
        };
        if let Some(result) = result {
            self.keep_stream(result, &attempt);
        }
        if up {
            self.progress.up = self.progress.up.saturating_sub(1);
        }
        let schedule = caller.and_then(|work| self.works.get_mut(work)?.schedule.as_mut());
        if let Some(schedule) = schedule {
            schedule.closed();
        }
        self.record(attempt, now);
    }

    pub(crate) fn keep_stream(&mut self, mut result: StreamResult, attempt: &Attempt) {
        result.record.workload = attempt.workload.clone();
        result.record.number = attempt.number;
        self.progress.live.stream(&result.record);
        self.heard_streams.push(result);
    }

    /// The trial is over: what is open has no other outcome.
    pub(crate) fn abandon(&mut self, now: Time) {
        let keys: Vec<CallKey> = self
            .calls
            .iter()
            .map(|(index, call)| CallKey {
                index: index as u32,
                generation: call.generation,
            })
            .collect();
        for key in keys {
            self.end(key, Outcome::Unfinished, 0, String::new(), now);
        }
        self.abandon_registrations(now);
    }
}

/// Adds to the words about an attempt.
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
