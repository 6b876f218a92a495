//! Calls of a phone: the reports of their progress, transfer, and the answers that only a phone gives.

use super::{HostCallKey, HostCallPhase, text};
use crate::host::{HostState, PhoneOccurrence, PhoneRefusal, sdp};
use crate::record::AttemptOutcome;
use engine::Time;
use sip::{Endpoint, MessageContent, ServerTransaction};
use wire::sip::{Edit, HeaderId, Message, Method};

impl HostState {
    /// The keys of all calls.
    pub(crate) fn call_keys(&self) -> Vec<HostCallKey> {
        let key = |(index, call): (usize, &super::HostCall)| HostCallKey {
            index: index as u32,
            generation: call.generation,
        };
        self.calls.iter().map(key).collect()
    }

    fn call_with_key(&self, key: HostCallKey) -> Option<&super::HostCall> {
        let call = self.calls.get(key.index as usize);
        call.filter(|call| call.generation == key.generation)
    }

    pub(crate) fn is_up(&self, key: HostCallKey) -> bool {
        self.call_with_key(key)
            .is_some_and(|call| call.phase == HostCallPhase::Up)
    }

    pub(crate) fn is_held(&self, key: HostCallKey) -> bool {
        self.call_with_key(key)
            .is_some_and(|call| call.hold_requested)
    }

    pub(crate) fn session_of(&mut self, key: HostCallKey) -> Option<u32> {
        self.call(key)?.session
    }

    /// Refuses an offered call that was not answered yet.
    pub(crate) fn decline(&mut self, endpoint: &mut Endpoint, key: HostCallKey, now: Time) {
        let call = self.call(key);
        let Some(leg) = call
            .filter(|call| call.phase == HostCallPhase::Offered)
            .and_then(|call| call.leg)
        else {
            return;
        };
        let result = endpoint.reject(leg, 480, &MessageContent::default(), now);
        let why = result.err().map(|refused| refused.to_string());
        self.end(
            key,
            AttemptOutcome::Refused,
            480,
            why.unwrap_or_default(),
            now,
        );
    }

    /// Reports an established call.
    pub(super) fn report_established(&mut self, key: HostCallKey) {
        if self.plan.phone.is_none() {
            return;
        }
        let Some(call) = self.call(key) else { return };
        let suite = call
            .agreement
            .as_ref()
            .map(|agreement| agreement.local.suite.to_string());
        let session = call.session;
        let format = session.and_then(|session| self.media.agreed_format(session));
        self.report(PhoneOccurrence::Established {
            call: key.user(),
            format,
            suite,
        });
    }

    /// Takes the answer in an ACK, after an offer in our 2xx (RFC 3264 section 4).
    pub(super) fn answered_in_ack(&mut self, key: HostCallKey, request: &Message<'_>, now: Time) {
        if self.plan.phone.is_none() || request.body().is_empty() {
            return;
        }
        let Some(call) = self.call(key) else { return };
        let Some(session) = call.session else { return };
        let hold_requested = call.hold_requested;
        self.secure(key, session, request.body());
        if let Some(agreed) = sdp::agreed(request.body(), self.codecs_of(key)) {
            // On hold nothing is sent, as after an answer to our own offer.
            let agreed = sdp::NegotiatedMedia {
                send: agreed.send && !hold_requested,
                ..agreed
            };
            self.media.agree(session, &agreed, now);
        }
    }

    /// Sends REFER.
    pub(crate) fn refer(
        &mut self,
        endpoint: &mut Endpoint,
        key: HostCallKey,
        uri: &str,
        now: Time,
    ) -> Result<(), PhoneRefusal> {
        let leg = self.call(key).and_then(|call| call.leg);
        let leg = leg.ok_or(PhoneRefusal::NoCall)?;
        let target = format!("<{uri}>");
        let by = self.names.from.clone();
        let mut edits = vec![Edit::Add {
            id: HeaderId::ReferTo,
            value: target.as_bytes(),
        }];
        if !by.is_empty() {
            edits.push(Edit::Add {
                id: HeaderId::ReferredBy,
                value: by.as_bytes(),
            });
        }
        let content = MessageContent::default().with(&edits);
        endpoint
            .request(leg, Method::Refer, &content, now)
            .map(|_| ())
            .map_err(|refused| PhoneRefusal::Dialog(refused.to_string()))
    }

    /// Requests that only a phone treats: NOTIFY of a transfer, and REFER, which it declines. `false`: another one.
    pub(super) fn phone_request(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) -> bool {
        if self.plan.phone.is_none() {
            return false;
        }
        let status = match request.method() {
            Method::Refer => 603,
            Method::Notify => 200,
            _ => return false,
        };
        self.respond(
            endpoint,
            transaction,
            status,
            &MessageContent::default(),
            now,
        );
        if let Some(status) = reported_status(request.body()) {
            self.report(PhoneOccurrence::Transfer {
                status,
                reported: true,
            });
        }
        true
    }

    /// Reports a change by the peer.
    pub(super) fn report_peer_hold(&mut self, key: HostCallKey, sends: bool) {
        let Some(call) = self.call(key) else { return };
        if call.peer_holds == sends {
            call.peer_holds = !sends;
            self.report(PhoneOccurrence::PeerHold(!sends));
        }
    }

    /// Reports the response to a request of ours.
    pub(super) fn report_response(&mut self, key: HostCallKey, response: &Message<'_>) {
        let status = response.status();
        if status < 200 || self.plan.phone.is_none() {
            return;
        }
        match response.cseq().map(|cseq| cseq.method) {
            Ok(Method::Refer) => self.report(PhoneOccurrence::Transfer {
                status,
                reported: false,
            }),
            Ok(Method::Invite) if status != 491 => {
                let asked = self.call(key).and_then(|call| call.reinvite);
                let hold = asked.map_or_else(|| self.is_held(key), |(_, hold)| hold);
                self.report(PhoneOccurrence::HoldAnswered { hold, status });
            }
            _ => {}
        }
    }

    /// Keeps the reason phrase of a refusal for the report.
    pub(super) fn reason_of(&self, response: Option<&Message<'_>>) -> Option<String> {
        self.plan.phone.as_ref()?;
        response.map(|response| text(response.reason()))
    }
}

/// The status in a `message/sipfrag` (RFC 3420).
fn reported_status(body: &[u8]) -> Option<u16> {
    let line = body.strip_prefix(b"SIP/2.0 ")?;
    std::str::from_utf8(line.get(..3)?).ok()?.parse().ok()
}
