//! Changes inside a call, both ways: hold, refresh, other descriptions.

use super::super::{Inner, Timer, sdp};
use super::{CallKey, Phase, note};
use engine::Time;
use sip::{Content, Endpoint, Refused, ServerTransaction};
use std::time::Duration;
use wire::sdp::Direction;
use wire::sip::{Message, Method};

impl Inner {
    pub(crate) fn put_on_hold(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        hold: bool,
        now: Time,
    ) {
        let Some(call) = self.call(key).filter(|call| call.phase == Phase::Up) else {
            return;
        };
        call.wants_hold = hold;
        self.reinvite(endpoint, key, now);
    }

    /// Offers what is wanted now; where the dialog is busy, again a little later.
    pub(crate) fn reinvite(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) {
        let Some(call) = self
            .calls
            .get_mut(key.index as usize)
            .filter(|call| call.generation == key.generation && call.phase == Phase::Up)
        else {
            return;
        };
        let Some(leg) = call.leg else { return };
        call.version += 1;
        let direction = if call.wants_hold {
            Direction::SendOnly
        } else {
            Direction::SendRecv
        };
        let call = &self.calls[key.index as usize];
        let offer = self.ours(call, direction).offer();
        match endpoint.request(leg, Method::Invite, &Content::sdp(&offer), now) {
            Ok(_) => {}
            Err(Refused::InvitePending | Refused::OfferPending | Refused::State) => {
                self.agenda
                    .push(now + Duration::from_millis(200), Timer::Reinvite(key));
            }
            Err(refused) => self.command_refused(key, refused),
        }
    }

    pub(super) fn in_dialog_answered(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        response: &Message<'_>,
        now: Time,
    ) {
        let method = response.cseq().map(|cseq| cseq.method);
        if method != Ok(Method::Invite) {
            if let Ok(method @ (Method::Update | Method::Prack)) = method {
                self.volte_answered(endpoint, key, method, response, now);
            }
            return;
        }
        let Some(call) = self.call(key) else { return };
        let (leg, session, wants_hold) = (call.leg, call.session, call.wants_hold);
        let codec = call.codec;
        let Some(leg) = leg else { return };
        match response.status() {
            200..300 => {
                call.held = wants_hold;
                if let Err(refused) = endpoint.ack(leg, &Content::default(), now) {
                    self.command_refused(key, refused);
                }
                if let (Some(session), Some(agreed)) =
                    (session, sdp::agreed(response.body(), codec))
                {
                    // On hold we stay silent although sendonly would let us speak: music is not what is tested.
                    let agreed = sdp::Agreed {
                        send: agreed.send && !wants_hold,
                        ..agreed
                    };
                    if self.call(key).is_some_and(|call| call.phase == Phase::Up) {
                        self.media.agree(session, &agreed, now);
                    }
                }
            }
            491 => {
                let wait = endpoint.glare_wait(leg).unwrap_or(Duration::from_secs(2));
                self.agenda.push(now + wait, Timer::Reinvite(key));
            }
            status @ 300.. => note(
                &mut call.attempt.why,
                &format!("re-INVITE refused with {status}"),
            ),
            _ => {}
        }
    }

    pub(super) fn in_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) {
        let changes = matches!(request.method(), Method::Invite | Method::Update);
        if !changes || (request.body().is_empty() && request.method() == Method::Update) {
            self.respond(endpoint, transaction, 200, &Content::default(), now);
            return;
        }
        if self.volte_offered(endpoint, key, transaction, request, now) {
            return;
        }
        let Some(call) = self.call(key) else { return };
        call.version += 1;
        let session = call.session;
        let call = &self.calls[key.index as usize];
        let ours = self.ours(call, Direction::SendRecv);
        if request.body().is_empty() {
            let offer = ours.offer();
            self.respond(endpoint, transaction, 200, &Content::sdp(&offer), now);
            return;
        }
        match ours.answer(request.body()) {
            Some((body, agreed)) => {
                self.respond(endpoint, transaction, 200, &Content::sdp(&body), now);
                if let Some(session) = session {
                    self.media.agree(session, &agreed, now);
                }
            }
            None => self.respond(endpoint, transaction, 488, &Content::default(), now),
        }
    }
}
