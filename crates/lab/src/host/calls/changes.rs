//! Changes in a call, in both directions: hold, refresh, other descriptions.

use super::super::phone::PhoneOccurrence;
use super::super::{HostState, HostTimer, sdp};
use super::{HostCallKey, HostCallPhase, note, security};
use engine::Time;
use sip::{Endpoint, MessageContent, Refused, ServerTransaction, TransactionId};
use std::time::Duration;
use wire::sdp::Direction;
use wire::sip::{Message, Method};

impl HostState {
    pub(crate) fn put_on_hold(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        hold: bool,
        now: Time,
    ) {
        let Some(call) = self
            .call(key)
            .filter(|call| call.phase == HostCallPhase::Up)
        else {
            return;
        };
        call.hold_requested = hold;
        self.reinvite(endpoint, key, now);
    }

    /// Sends the wanted offer; retries a little later if the dialog is busy.
    pub(crate) fn reinvite(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let Some(call) = self
            .calls
            .get_mut(key.index as usize)
            .filter(|call| call.generation == key.generation && call.phase == HostCallPhase::Up)
        else {
            return;
        };
        let Some(leg) = call.leg else { return };
        call.version += 1;
        let hold = call.hold_requested;
        let direction = if hold {
            Direction::SendOnly
        } else {
            Direction::SendRecv
        };
        let keys = match self.keys_of_offer(key) {
            Ok(keys) => keys,
            Err(why) => {
                if let Some(call) = self.call(key) {
                    call.hold_requested = call.held;
                    note(&mut call.attempt.why, &format!("re-INVITE: {why}"));
                }
                return;
            }
        };
        let call = &self.calls[key.index as usize];
        let mut ours = self.ours(call, direction);
        ours.secure = !keys.is_empty();
        let offer = ours.offer_with(&security::lines(&keys));
        match endpoint.request(leg, Method::Invite, &MessageContent::sdp(&offer), now) {
            Ok(transaction) => {
                if let Some(call) = self.call(key) {
                    call.reinvite = Some((transaction, hold));
                }
            }
            Err(Refused::InvitePending | Refused::OfferPending | Refused::State) => {
                self.agenda
                    .push(now + Duration::from_millis(200), HostTimer::Reinvite(key));
            }
            Err(refused) => {
                if let Some(call) = self.call(key) {
                    call.hold_requested = call.held;
                }
                self.command_refused(key, refused);
            }
        }
    }

    /// Our re-INVITE was refused, or not answered: the session stays as it was (RFC 3261 section 14.1). A later request
    /// of the user is kept: its re-INVITE follows.
    fn reinvite_failed(&mut self, key: HostCallKey) {
        let Some(call) = self.call(key) else { return };
        if let Some((_, hold)) = call.reinvite.take()
            && hold == call.hold_requested
        {
            call.hold_requested = call.held;
        }
    }

    /// A request of ours was not answered, which counts as 408.
    pub(super) fn reinvite_unanswered(&mut self, key: HostCallKey, transaction: TransactionId) {
        let asked = self.call(key).and_then(|call| call.reinvite);
        if let Some((_, hold)) = asked.filter(|(known, _)| *known == transaction) {
            self.reinvite_failed(key);
            self.report(PhoneOccurrence::HoldAnswered { hold, status: 408 });
        }
    }

    pub(super) fn in_dialog_answered(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        response: &Message<'_>,
        now: Time,
    ) {
        self.report_response(key, response);
        let method = response.cseq().map(|cseq| cseq.method);
        if method != Ok(Method::Invite) {
            if let Ok(method @ (Method::Update | Method::Prack)) = method {
                self.volte_answered(endpoint, key, method, response, now);
            }
            return;
        }
        let Some(call) = self.call(key) else { return };
        let (leg, session, hold_requested) = (call.leg, call.session, call.hold_requested);
        let Some(leg) = leg else { return };
        let codecs = self.codecs_of(key);
        match response.status() {
            200..300 => {
                if let Some(call) = self.call(key) {
                    // The user may have requested the other state since.
                    let asked = call.reinvite.take();
                    call.held = asked.map_or(hold_requested, |(_, hold)| hold);
                }
                if let Err(refused) = endpoint.ack(leg, &MessageContent::default(), now) {
                    self.command_refused(key, refused);
                }
                if let Some(session) = session {
                    self.secure(key, session, response.body());
                }
                if let (Some(session), Some(agreed)) =
                    (session, sdp::agreed(response.body(), codecs))
                {
                    // On hold the host sends nothing although sendonly would permit it: music on hold is not tested.
                    let agreed = sdp::NegotiatedMedia {
                        send: agreed.send && !hold_requested,
                        ..agreed
                    };
                    if self
                        .call(key)
                        .is_some_and(|call| call.phase == HostCallPhase::Up)
                    {
                        self.media.agree(session, &agreed, now);
                    }
                }
            }
            491 => {
                if let Some(call) = self.call(key) {
                    call.reinvite = None;
                }
                let wait = endpoint.glare_wait(leg).unwrap_or(Duration::from_secs(2));
                self.agenda.push(now + wait, HostTimer::Reinvite(key));
            }
            status @ 300.. => {
                self.reinvite_failed(key);
                if let Some(call) = self.call(key) {
                    let refusal = format!("re-INVITE refused with {status}");
                    note(&mut call.attempt.why, &refusal);
                }
            }
            _ => {}
        }
    }

    pub(super) fn in_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) {
        if self.phone_request(endpoint, transaction, request, now) {
            return;
        }
        // INFO, OPTIONS and an UPDATE that only refreshes the session change nothing.
        let changes = matches!(request.method(), Method::Invite | Method::Update);
        if !changes || (request.body().is_empty() && request.method() == Method::Update) {
            self.respond(endpoint, transaction, 200, &MessageContent::default(), now);
            return;
        }
        if self.volte_offered(endpoint, key, transaction, request, now) {
            return;
        }
        let Some(call) = self.call(key) else { return };
        call.version += 1;
        let (session, hold_requested) = (call.session, call.hold_requested);
        let lines = match request.body().is_empty() {
            true => self.keys_of_offer(key).map(|keys| security::lines(&keys)),
            false => self.answer_keys(key, request.body()),
        };
        let Ok(lines) = lines else {
            // The call goes on as before (RFC 3261 section 14.2).
            self.respond(endpoint, transaction, 488, &MessageContent::default(), now);
            return;
        };
        let call = &self.calls[key.index as usize];
        let direction = match hold_requested && self.plan.phone.is_some() {
            true => Direction::SendOnly,
            false => Direction::SendRecv,
        };
        let mut ours = self.ours(call, direction);
        ours.secure = !lines.is_empty();
        // A re-INVITE without an offer gets one in the 200 (RFC 3261 section 14.2).
        if request.body().is_empty() {
            let offer = ours.offer_with(&lines);
            self.respond(
                endpoint,
                transaction,
                200,
                &MessageContent::sdp(&offer),
                now,
            );
            return;
        }
        match ours.answer_with(request.body(), &lines) {
            Some((body, agreed)) => {
                self.respond(endpoint, transaction, 200, &MessageContent::sdp(&body), now);
                self.report_peer_hold(key, agreed.send);
                if let Some(session) = session {
                    let send = agreed.send && direction == Direction::SendRecv;
                    self.media
                        .agree(session, &sdp::NegotiatedMedia { send, ..agreed }, now);
                }
            }
            None => self.respond(endpoint, transaction, 488, &MessageContent::default(), now),
        }
    }
}
