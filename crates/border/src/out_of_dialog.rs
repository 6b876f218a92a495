//! Out-of-dialog requests: answered here, forwarded as a pair of transactions, or refused.
//!
//! OPTIONS is answered here; REGISTER is processed by the registrar or forwarded to the core; MESSAGE, PUBLISH, NOTIFY
//! outside of a subscription, and, if the interface permits it, SUBSCRIBE and REFER are forwarded with failover. The
//! last two create dialogs, see `subscriptions`. Requests of unknown dialogs are answered with 481.

mod answers;
mod carrier_registrations;
mod forwarded_register;
mod pings;
mod register;
mod relay;
pub(crate) mod state;
mod subscriptions;

use crate::carrier::CarrierResult;
use crate::components::{Calls, Components};
use crate::headers::EditList;
use crate::index_remap::IndexRemap;
use crate::out_of_dialog::state::{CarrierAttempt, DeferredRequest, PendingKind, addresses_of};
use crate::request::RequestOrigin;
use crate::resolve::placed;
use crate::responses::refuse;
use crate::rules::apply::RuledAnswer;
use crate::trunks::PingResult;
use ::rules::Effects;
use config::TrunkId;
use engine::Transport;
use sip::{Endpoint, Failure, Flow, MessageContent, ServerTransaction};
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

/// Option tags supported by the border itself.
pub(crate) const OPTIONS_SUPPORTED: &str = "100rel, timer, replaces, path, outbound";

/// Stages of out-of-dialog requests: the endpoint and the components, lent while an input is processed.
pub(crate) struct OutOfDialogControl<'c> {
    endpoint: &'c mut Endpoint,
    parts: &'c mut Components,
}

impl<'c> OutOfDialogControl<'c> {
    pub(crate) fn new(calls: &'c mut Calls<'_>) -> OutOfDialogControl<'c> {
        OutOfDialogControl {
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

impl OutOfDialogControl<'_> {
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

    /// An out-of-dialog request sent by us got no response, or could not be sent.
    pub(crate) fn out_of_dialog_failed(&mut self, user: u64, why: Failure) {
        match self.parts.out_of_dialog.take_pending(user) {
            Some(PendingKind::Ping(ping, addresses)) => {
                self.ping_answered(ping, addresses, PingResult::TimedOut);
            }
            Some(PendingKind::Relay(mut relay)) => {
                self.stop_timer_of(&mut relay);
                // After a timeout the transaction of the sender ends, too, without a 408 (RFC 4320 section 4.2).
                let status = match why {
                    Failure::TimedOut => 408,
                    _ => 503,
                };
                self.relay_next(relay, status);
            }
            Some(PendingKind::InDialog(passed)) => self.in_dialog_failed(&passed, why),
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
