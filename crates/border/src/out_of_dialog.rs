//! Out-of-dialog requests: answered here, forwarded as a pair of transactions, or refused.
//!
//! OPTIONS is answered here; REGISTER is processed by the registrar or forwarded to the core; MESSAGE, PUBLISH, NOTIFY
//! outside of a subscription, and, if the interface permits it, SUBSCRIBE and REFER are forwarded with failover. The
//! last two create dialogs, see `subscriptions`. Requests of unknown dialogs are answered with 481.

mod carrier_registrations;
mod forwarded_register;
mod pings;
mod register;
mod relay;
pub(crate) mod state;
mod subscriptions;

use crate::carrier::CarrierResult;
use crate::components::Calls;
use crate::headers::{
    EditList, hide_network, promised_end_to_end, required_end_to_end, warnings, without_credentials,
};
use crate::index_remap::IndexRemap;
use crate::out_of_dialog::state::{CarrierAttempt, DeferredRequest, PendingKind, addresses_of};
use crate::request::{RequestOrigin, RequestRefusal};
use crate::resolve::placed;
use crate::responses::refuse;
use crate::rules::apply::RuledAnswer;
use crate::trunks::PingResult;
use ::rules::Effects;
use config::TrunkId;
use engine::Transport;
use sip::{Endpoint, Flow, MessageContent, ServerTransaction};
use smallvec::SmallVec;
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

/// Option tags supported by the border itself.
pub(crate) const OPTIONS_SUPPORTED: &str = "100rel, timer, replaces, path, outbound";

/// Changes to header fields of an out-of-dialog request that is forwarded; empty values stay as they are.
#[derive(Debug, Default)]
struct ForwardedFields {
    warnings: Vec<u8>,
    supported: Vec<u8>,
    require: Vec<u8>,
    refer_to: Vec<u8>,
    /// Credentials are for the target.
    keeps_credentials: bool,
}

impl ForwardedFields {
    /// Appends the changes: nothing about our network or our peer's, no credentials for others.
    fn edits<'e>(&'e self, request: &Message<'e>, edits: &mut EditList<'e>) {
        hide_network(request, &self.warnings, edits);
        if !self.keeps_credentials {
            without_credentials(request, edits);
        }
        if !self.supported.is_empty() {
            edits.push(Edit::Add {
                id: HeaderId::Supported,
                value: &self.supported,
            });
        }
        if !self.require.is_empty() {
            edits.push(Edit::Add {
                id: HeaderId::Require,
                value: &self.require,
            });
        }
        if !self.refer_to.is_empty() {
            edits.push(Edit::Replace {
                id: HeaderId::ReferTo,
                value: &self.refer_to,
            });
        }
    }
}

impl Calls<'_> {
    /// The header fields of a request that is forwarded to `target`, whose credentials are for it or not.
    fn forwarded_fields(
        &self,
        request: &Message<'_>,
        target: Flow,
        keeps_credentials: bool,
    ) -> ForwardedFields {
        let mut fields = ForwardedFields {
            keeps_credentials,
            ..ForwardedFields::default()
        };
        warnings(request, self.hides_from(target), &mut fields.warnings);
        promised_end_to_end(request, &mut fields.supported);
        required_end_to_end(request, &mut fields.require);
        self.refer_to_at(request, target, &mut fields.refer_to);
        fields
    }

    /// Processes an out-of-dialog request.
    pub(crate) fn out_of_dialog(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
    ) {
        let now = self.parts.ctx.now;
        match request.method() {
            Method::Options => self.answer_options(transaction, request, flow),
            Method::Message
            | Method::Publish
            | Method::Subscribe
            | Method::Notify
            | Method::Refer => {
                if let Err(refused) = self.forward_out_of_dialog(transaction, request, flow) {
                    self.refuse_out_of_dialog(transaction, request, flow, &refused);
                }
            }
            Method::Register => self.register(transaction, request, flow),
            Method::Info
            | Method::Update
            | Method::Bye
            | Method::Prack
            | Method::Ack
            | Method::Cancel
            | Method::Invite => refuse(self.endpoint, transaction, 481, now),
            Method::Other(_) => refuse(self.endpoint, transaction, 405, now),
        }
    }

    /// Answers OPTIONS, unless a header rule refuses it.
    fn answer_options(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
    ) {
        let now = self.parts.ctx.now;
        if let Some((interface, trunk)) = self.parts.origin_of_flow(flow) {
            let origin = RequestOrigin {
                interface,
                trunk,
                authenticated: trunk.is_some(),
            };
            if let Err(refused) = self.parts.admit(request, origin, flow, None) {
                return self.refuse_out_of_dialog(transaction, request, flow, &refused);
            }
        }
        let mut effects = Effects::default();
        let mut edits = EditList::from_iter([
            Edit::Add {
                id: HeaderId::Accept,
                value: b"application/sdp",
            },
            Edit::Add {
                id: HeaderId::AcceptEncoding,
                value: b"identity",
            },
            Edit::Add {
                id: HeaderId::AcceptLanguage,
                value: b"en",
            },
            Edit::Replace {
                id: HeaderId::Supported,
                value: OPTIONS_SUPPORTED.as_bytes(),
            },
        ]);
        let status = if self.parts.worker.is_draining() {
            503
        } else {
            200
        };
        let answer = RuledAnswer::own(flow, Method::Options, status);
        self.parts.rules_answer(answer, &mut edits, &mut effects);
        let _ = self.endpoint.respond(
            transaction,
            status,
            &MessageContent::default().with(&edits),
            now,
        );
    }

    fn refuse_out_of_dialog(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
    ) {
        let now = self.parts.ctx.now;
        self.send_refusal(request, flow, refused, |endpoint, content| {
            let _ = endpoint.respond(transaction, refused.status, content, now);
        });
    }

    /// Logs the refusal of a request that creates a dialog or a transaction, and hands its response to `send`, with the
    /// changes of header rules.
    pub(crate) fn send_refusal(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
        send: impl FnOnce(&mut Endpoint, &MessageContent<'_>),
    ) {
        let interface = self.parts.listeners.interface_of(flow.local);
        refused.report(&mut self.parts.ctx, request, flow, interface);
        let mut effects = Effects::default();
        let mut edits: SmallVec<[Edit<'_>; 4]> = refused
            .headers
            .iter()
            .map(|(id, value)| Edit::Add { id: *id, value })
            .collect();
        let answer = RuledAnswer::own(flow, request.method(), refused.status);
        self.parts.rules_answer(answer, &mut edits, &mut effects);
        let content = MessageContent {
            edits: &edits,
            reason: refused.reason.as_deref().map(str::as_bytes),
            ..MessageContent::default()
        };
        send(self.endpoint, &content);
    }

    /// A response to an out-of-dialog request sent by us.
    pub(crate) fn out_of_dialog_response(&mut self, user: u64, response: &Message<'_>, flow: Flow) {
        let status = response.status();
        if status < 200 {
            // The target is alive: its final response is awaited.
            return self.stop_relay_timer(user);
        }
        match self.parts.out_of_dialog.take_pending(user) {
            Some(PendingKind::Ping(ping, addresses)) => {
                self.ping_answered(ping, addresses, PingResult::Response(status));
            }
            Some(PendingKind::Relay(mut relay)) => {
                self.stop_timer_of(&mut relay);
                if status == 503 && relay.next < relay.hops.len() {
                    return self.relay_next(relay, 503);
                }
                self.relay_answered(&relay, response);
            }
            Some(PendingKind::InDialog(passed)) => {
                self.in_dialog_answered(&passed, response);
            }
            Some(PendingKind::Register(relay)) => self.register_answered(relay, response),
            Some(PendingKind::Carrier(attempt)) => self.carrier_answered(attempt, response, flow),
            None => {}
        }
    }

    /// An out-of-dialog request sent by us got no response.
    pub(crate) fn out_of_dialog_timed_out(&mut self, user: u64) {
        match self.parts.out_of_dialog.take_pending(user) {
            Some(PendingKind::Ping(ping, addresses)) => {
                self.ping_answered(ping, addresses, PingResult::TimedOut);
            }
            Some(PendingKind::Relay(mut relay)) => {
                self.stop_timer_of(&mut relay);
                self.relay_next(relay, 408);
            }
            Some(PendingKind::InDialog(passed)) => self.in_dialog_timed_out(&passed),
            Some(PendingKind::Register(relay)) => self.register_next(relay, 504),
            Some(PendingKind::Carrier(attempt)) => {
                self.repeat_registration(attempt, CarrierResult::TimedOut);
            }
            None => {}
        }
    }

    /// Name resolution of an out-of-dialog request has ended; without targets if it failed.
    pub(crate) fn out_of_dialog_located(
        &mut self,
        located: DeferredRequest,
        targets: Vec<sip::locate::ResolvedTarget>,
    ) {
        match located {
            DeferredRequest::Ping(ping) => {
                self.send_ping(ping, addresses_of(&targets), PingResult::TimedOut);
            }
            DeferredRequest::Relay(mut relay) => {
                if let Some(hop) = relay.hops.get(relay.next.saturating_sub(1)).cloned() {
                    let at = relay.next.min(relay.hops.len());
                    relay.hops.splice(at..at, placed(&hop, &targets));
                }
                self.relay_next(relay, 503);
            }
            DeferredRequest::Carrier(registration) => {
                let mut addresses = addresses_of(&targets);
                let preferred =
                    |(address, _): &(SocketAddr, Transport)| Some(*address) == registration.address;
                if let Some(place) = addresses.iter().position(preferred) {
                    addresses.rotate_left(place);
                }
                self.send_registration(Box::new(CarrierAttempt {
                    registration: *registration,
                    addresses,
                }));
            }
            DeferredRequest::Register(relay) => self.core_located(relay, &targets),
        }
    }

    /// Applies the new interface and trunk indices after a reload.
    pub(crate) fn remap_out_of_dialog_requests(&mut self, renamed: &IndexRemap) {
        for (_, pending) in self.parts.out_of_dialog.pending.iter_mut() {
            match &mut pending.what {
                PendingKind::Relay(relay) => renamed.steps(&mut relay.hops),
                PendingKind::Register(relay) => relay.rename(renamed),
                PendingKind::Carrier(attempt) => {
                    let trunk = &mut attempt.registration.trunk;
                    *trunk = renamed.trunk(*trunk).unwrap_or(TrunkId(u16::MAX));
                }
                PendingKind::Ping(..) | PendingKind::InDialog(_) => {}
            }
        }
        self.parts.out_of_dialog.remap_subscriptions(renamed);
        self.parts.keep_alives.rename(&mut self.parts.ctx, renamed);
        self.parts.resolver.rename(renamed);
    }

    /// Removes expired registrations.
    pub(crate) fn expire_registrations(&mut self) {
        let now = self.parts.ctx.now;
        for note in self.parts.registrar.location.expire(now) {
            self.parts.ctx.events.tell(now, || note);
        }
    }

    /// A flow has failed: contacts registered on it are no longer reachable.
    pub(crate) fn flow_failed(&mut self, flow: Flow) {
        let now = self.parts.ctx.now;
        self.parts
            .keep_alives
            .flow_failed(&mut self.parts.ctx, &mut self.parts.carriers, flow);
        let Some(connection) = flow.connection else {
            return;
        };
        for note in self.parts.registrar.location.flow_failed(connection) {
            self.parts.ctx.events.tell(now, || note);
        }
    }
}
