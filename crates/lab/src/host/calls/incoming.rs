//! Incoming calls of a host: offered, ringing, answered, acknowledged.

use super::super::phone::PhoneOccurrence;
use super::super::plan::MediaKind;
use super::super::{HostState, HostTimer};
use super::{
    HostCall, HostCallKey, HostCallPhase, drawn, security, text, user_of, user_of_uri, volte,
};
use crate::record::{Attempt, AttemptKind, AttemptOutcome};
use engine::Time;
use sip::{Endpoint, LegId, MessageContent};
use std::time::Duration;
use wire::sdp::Direction;
use wire::sip::Message;

impl HostState {
    pub(super) fn offered(
        &mut self,
        endpoint: &mut Endpoint,
        leg: LegId,
        request: &Message<'_>,
        now: Time,
    ) {
        let Some(plan) = self.plan.answers.clone() else {
            if let Err(refused) = endpoint.reject(leg, 480, &MessageContent::default(), now) {
                self.fatal.get_or_insert_with(|| format!("480: {refused}"));
            }
            return;
        };
        let mut attempt = Attempt::new(&plan.name, AttemptKind::Answer, self.answered, now);
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
        let sends = if echo { MediaKind::Echo } else { plan.sends };
        let busy = drawn(plan.busy_percent, &mut self.entropy) || self.is_phone_busy();
        let rings_only = drawn(plan.no_answer_percent, &mut self.entropy);
        let listen = drawn(plan.listen_percent, &mut self.entropy);
        let hold = plan.hang_up.map(|hold| hold.draw(&mut self.entropy));
        let key = self.insert(HostCall {
            generation: 0,
            workload: None,
            attempt,
            leg: Some(leg),
            phase: HostCallPhase::Offered,
            session: None,
            local: None,
            sends,
            expects: plan.expects,
            codec: plan.codec,
            keys: Vec::new(),
            agreement: None,
            peer_holds: false,
            timed: plan.timed,
            offer: request.body().to_vec(),
            version: 1,
            held: false,
            hold_requested: false,
            reinvite: None,
            early_answers: Vec::new(),
            // The caller ends it: this side rings without an answer.
            will_cancel: rings_only,
            will_hold: false,
            listen,
            ring_limit_hit: false,
            hold: hold.unwrap_or_default(),
            volte: volte::Volte::callee(&plan, request),
            hangs_up: hold.is_some(),
            peer_hangs_up: hold.is_none(),
            mismatch: None,
        });
        endpoint.set_user(leg, key.user());
        if !busy && let Some(call) = self.call(key) {
            let from = call.attempt.from.clone();
            let call = key.user();
            self.report(PhoneOccurrence::Incoming { call, from });
        }
        if busy {
            let result = endpoint.reject(leg, 486, &MessageContent::default(), now);
            let why = result
                .err()
                .map(|refused| refused.to_string())
                .unwrap_or_default();
            self.end(key, AttemptOutcome::Refused, 486, why, now);
        } else if self.find_socket(key) {
            self.plan_answer(endpoint, key, now);
        }
    }

    /// Rings and answers at once or by timer.
    pub(super) fn plan_answer(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(plan) = self.plan.answers.clone() else {
            return;
        };
        // Delays count from the INVITE, so that the time for opening a socket does not add to them.
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
            self.agenda.push(ring_at, HostTimer::Ring(key));
        }
        if self.call(key).is_some_and(|call| call.will_cancel) {
            return;
        }
        if offered + answer <= now {
            self.answer(endpoint, key, now);
        } else {
            self.agenda.push(offered + answer, HostTimer::Answer(key));
        }
    }

    pub(crate) fn ring(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(call) = self
            .call(key)
            .filter(|call| call.phase == HostCallPhase::Offered)
        else {
            return;
        };
        call.attempt.ringing = Some(now.0);
        let Some(leg) = call.leg else { return };
        if let Err(refused) = endpoint.progress(leg, 180, &MessageContent::default(), false, now) {
            self.command_refused(key, refused);
        }
    }

    pub(crate) fn answer(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(call) = self.calls.get(key.index as usize).filter(|call| {
            call.generation == key.generation && call.phase == HostCallPhase::Offered
        }) else {
            return;
        };
        let Some(leg) = call.leg else { return };
        let offer = call.offer.clone();
        let lines = match offer.is_empty() {
            true => self.keys_of_offer(key).map(|keys| security::lines(&keys)),
            false => self.answer_keys(key, &offer),
        };
        let (lines, refusal) = match lines {
            Ok(lines) => (lines, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let Some(call) = self.calls.get(key.index as usize) else {
            return;
        };
        let mut ours = self.ours(call, Direction::SendRecv);
        ours.secure = !lines.is_empty();
        // The 2xx to an INVITE without an offer carries the offer (RFC 3264 section 4; RFC 3261 section 13.2.1).
        let written;
        let described = match (offer.is_empty(), call.session) {
            _ if refusal.is_some() => None,
            (true, _) => {
                written = ours.offer_with(&lines);
                Some((&written[..], None))
            }
            (false, None) => {
                let answer = self.descriptions.answer(&ours, &offer);
                answer.map(|(body, agreed)| (body, Some(agreed)))
            }
            (false, Some(_)) => match ours.answer_with(&offer, &lines) {
                Some((body, agreed)) => {
                    written = body;
                    Some((&written[..], Some(agreed)))
                }
                None => None,
            },
        };
        let Some((body, agreed)) = described else {
            let result = endpoint.reject(leg, 488, &MessageContent::default(), now);
            let why = result.err().map(|refused| refused.to_string());
            let why = why.or(refusal).unwrap_or_default();
            self.end(key, AttemptOutcome::Refused, 488, why, now);
            return;
        };
        if let Err(refused) = endpoint.answer(leg, 200, &MessageContent::sdp(body), now) {
            let why = format!("200: {refused}");
            self.end(key, AttemptOutcome::CouldNotStart, 0, why, now);
            return;
        }
        let Some(call) = self.call(key) else { return };
        call.phase = HostCallPhase::Answered;
        call.offer = Vec::new();
        if let (Some(session), Some(agreed)) = (call.session, agreed) {
            let begin = self.media.phased(session, now);
            self.media.agree(session, &agreed, begin);
        }
    }

    pub(super) fn acked(&mut self, key: HostCallKey, now: Time) {
        let Some(call) = self
            .call(key)
            .filter(|call| call.phase == HostCallPhase::Answered)
        else {
            return;
        };
        call.phase = HostCallPhase::Up;
        call.attempt.established = Some(now.0);
        let (hold, hangs_up) = (call.hold, call.hangs_up);
        self.progress.established += 1;
        self.progress.up += 1;
        self.report_established(key);
        if hangs_up {
            self.agenda.push(now + hold, HostTimer::HangUp(key));
        }
    }
}
