//! Dispatch of the endpoint's indications and of timers to the stages of calls and to out-of-dialog requests.

use crate::calls::EarlyRequest;
use crate::calls::conference::ConferenceCalls;
use crate::calls::key::CallSlot;
use crate::calls::setup::answering::ProvisionalResponse;
use crate::calls::transfer::TransferControl;
use crate::components::{Calls, Components};
use crate::ng_client::control::NodeControl;
use crate::out_of_dialog::OutOfDialogControl;
use crate::policy::TrunkTarget;
use crate::resolve::{DnsClient, LookupResult, LookupWaiter};
use crate::responses::refuse;
use crate::rules::RuleOutcome;
use crate::rules::apply::with_message;
use crate::shared::Alarm;
use anchor::Side;
use engine::{ConnectionId, Reason, Time};
use sip::locate::LocateError;
use sip::{
    Endpoint, Flow, Handler, Indication, LegId, ListenerId, MessageContent, NewRequestAction,
};
use wire::sip::Message;

/// The part that a leg has in its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LegStage {
    /// A branch of the set-up.
    Branch,
    /// A side of the call.
    Side,
    /// A leg that is being connected, or was replaced.
    Transfer,
}

impl Handler for Components {
    fn on_indication(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        debug_assert_eq!(self.ctx.now, now);
        if matches_known(&indication) {
            self.admission.overload.record_call_message(now);
        }
        let mut calls = Calls {
            endpoint,
            parts: self,
        };
        calls.apply_rules(indication);
    }

    fn on_new_request(
        &mut self,
        request: &Message<'_>,
        flow: &Flow,
        now: Time,
    ) -> NewRequestAction {
        debug_assert_eq!(self.ctx.now, now);
        self.screen_request(request, *flow)
    }

    fn select_worker(&self, bytes: &[u8], flow: &Flow) -> Option<u8> {
        self.conference_owner(bytes, flow)
    }

    fn needs_connection(&self, connection: ConnectionId) -> bool {
        self.registrar.location.has_connection(connection)
    }

    fn on_parked_dialog(&mut self, endpoint: &mut Endpoint, now: Time) {
        debug_assert_eq!(self.ctx.now, now);
        let mut calls = Calls {
            endpoint,
            parts: self,
        };
        TransferControl::new(&mut calls).take_over_detached_legs();
    }
}

/// Whether a received message caused the indication, and it matched a transaction or dialog.
fn matches_known(indication: &Indication<'_>) -> bool {
    match indication {
        Indication::Progressed { .. }
        | Indication::Answered { .. }
        | Indication::Acked { .. }
        | Indication::Cancelled { .. }
        | Indication::Pracked { .. }
        | Indication::Request { .. }
        | Indication::RequestCancelled { .. }
        | Indication::Response { .. }
        | Indication::InDialog { .. }
        | Indication::OutOfDialogResponse { .. } => true,
        Indication::Failed { response, .. } => response.is_some(),
        Indication::Ended { message, .. } => message.is_some(),
        _ => false,
    }
}

impl Calls<'_> {
    /// Processes an indication after header rules were applied.
    pub(crate) fn dispatch(&mut self, indication: Indication<'_>) {
        let now = self.parts.ctx.now;
        if self.parts.admission.uses_trunk_feedback {
            let target = self.target_of_response(&indication);
            let Components { ctx, admission, .. } = &mut *self.parts;
            admission.apply_feedback(ctx, &indication, target);
        }
        if NodeControl::new(self).defer_for_node(&indication) {
            return;
        }
        match indication {
            Indication::Offered { leg, request, flow } => {
                self.offered(leg, request, flow);
            }
            Indication::Progressed {
                leg,
                fork,
                response,
                reliable,
            } => match self.stage_of_leg(leg) {
                Some((slot, LegStage::Branch)) => {
                    let progress = ProvisionalResponse {
                        leg,
                        fork,
                        response,
                        reliable,
                    };
                    self.progressed(slot, progress);
                }
                Some((slot, _)) => {
                    TransferControl::new(self).transfer_progressed(slot, leg, response)
                }
                None => {}
            },
            Indication::Answered {
                leg,
                fork,
                response,
            } => match self.stage_of_leg(leg) {
                Some((slot, LegStage::Branch)) => self.answered(slot, (leg, fork), response),
                Some((slot, _)) => {
                    TransferControl::new(self).transfer_answered(slot, leg, response)
                }
                None => self.end_stray_dialog(leg),
            },
            Indication::Failed {
                leg,
                reason: why,
                response,
            } => match self.stage_of_leg(leg) {
                Some((slot, LegStage::Branch)) => self.failed(slot, leg, why, response),
                Some((slot, _)) => {
                    TransferControl::new(self).transfer_leg_failed(slot, leg, why, response)
                }
                None => {}
            },
            Indication::Acked { leg, request } => {
                if let Some(slot) = self.parts.calls.slot_of_leg(self.endpoint, leg) {
                    let early = self.acked(slot, leg, request);
                    self.dispatch_early(early);
                }
            }
            Indication::Cancelled { leg, request } => {
                if let Some(slot) = self.parts.calls.slot_of_leg(self.endpoint, leg) {
                    self.cancelled(slot, leg, request);
                }
            }
            Indication::Pracked {
                leg,
                transaction,
                request,
            } => match self.parts.calls.slot_of_leg(self.endpoint, leg) {
                Some(slot) => self.pracked(slot, transaction, request),
                None => refuse(self.endpoint, transaction, 200, now),
            },
            Indication::Request {
                leg,
                transaction,
                request,
            } => match self.parts.calls.slot_of_leg(self.endpoint, leg) {
                Some(slot) => self.requested(slot, leg, transaction, request),
                None => refuse(self.endpoint, transaction, 481, now),
            },
            Indication::RequestCancelled { leg, transaction } => {
                if let Some(slot) = self.parts.calls.slot_of_leg(self.endpoint, leg) {
                    self.request_cancelled(slot, transaction);
                    NodeControl::new(self).relay_cancelled(slot, transaction);
                }
            }
            Indication::Response {
                leg,
                transaction,
                response,
            } => {
                if let Some(slot) = self.parts.calls.slot_of_leg(self.endpoint, leg) {
                    self.responded(slot, leg, transaction, response);
                }
            }
            Indication::TimedOut {
                leg,
                transaction,
                reason,
            } => {
                if let Some(slot) = self.parts.calls.slot_of_leg(self.endpoint, leg) {
                    self.request_failed(slot, (leg, transaction), reason);
                }
            }
            Indication::OutOfDialog {
                transaction,
                request,
                flow,
            } => OutOfDialogControl::new(self).out_of_dialog(transaction, request, flow),
            Indication::InDialog {
                dialog,
                user,
                transaction,
                request,
            } => OutOfDialogControl::new(self).in_dialog((dialog, user), transaction, request),
            Indication::OutOfDialogResponse {
                user,
                response,
                flow,
                ..
            } => OutOfDialogControl::new(self).out_of_dialog_response(user, response, flow),
            Indication::OutOfDialogTimedOut { user, reason, .. } => {
                OutOfDialogControl::new(self).out_of_dialog_failed(user, reason);
            }
            Indication::Ended {
                leg,
                reason: why,
                message,
            } => match self.stage_of_leg(leg) {
                Some((slot, LegStage::Branch | LegStage::Side)) => {
                    self.ended(slot, leg, why, message);
                }
                Some((slot, LegStage::Transfer)) => {
                    TransferControl::new(self).transfer_leg_ended(slot, leg)
                }
                None => {}
            },
            Indication::RefreshDue { leg } => {
                if let Some(slot) = self.parts.calls.slot_of_leg(self.endpoint, leg) {
                    TransferControl::new(self).refresh(slot, leg);
                }
            }
            Indication::SessionExpired { leg } => self.session_expired(leg),
            Indication::FlowFailed { flow } => {
                if let Some(connection) = flow.connection {
                    self.parts.listeners.connection_ended(connection);
                }
                OutOfDialogControl::new(self).flow_failed(flow);
            }
        }
    }

    /// Ends the dialog of a 2xx that belongs to no call any more.
    pub(crate) fn end_stray_dialog(&mut self, leg: LegId) {
        let now = self.parts.ctx.now;
        let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
        let _ = self.endpoint.hang_up(leg, &MessageContent::default(), now);
    }

    /// The session timer of a leg expired.
    pub(crate) fn session_expired(&mut self, leg: LegId) {
        if let Some(slot) = self.parts.calls.slot_of_leg(self.endpoint, leg) {
            self.end_by_border(slot, Reason::SessionExpired);
        }
    }

    /// Processes timers that are due.
    pub(crate) fn process_timers(&mut self) {
        let now = self.parts.ctx.now;
        while let Some(alarm) = self.parts.ctx.timers.pop_due(now) {
            match alarm {
                Alarm::RingTimeout(key) => {
                    if let Some(slot) = self.parts.calls.slot_of(key) {
                        self.ring_timed_out(slot);
                    }
                }
                Alarm::AnswerTimeout(key, leg) => {
                    if let Some(slot) = self.parts.calls.slot_of(key) {
                        self.answer_timed_out(slot, leg);
                    }
                }
                Alarm::TransferRetry(key) => {
                    if let Some(slot) = self.parts.calls.slot_of(key) {
                        TransferControl::new(self).retry_transfer(slot);
                    }
                }
                Alarm::TransferRing(key) => {
                    if let Some(slot) = self.parts.calls.slot_of(key) {
                        TransferControl::new(self).transfer_ring_timed_out(slot);
                    }
                }
                Alarm::TransferAnswer(key, leg) => {
                    if let Some(slot) = self.parts.calls.slot_of(key) {
                        TransferControl::new(self).transfer_answer_timed_out(slot, leg);
                    }
                }
                Alarm::ReinviteTimeout(key, sent) => {
                    if let Some(slot) = self.parts.calls.slot_of(key) {
                        TransferControl::new(self).reinvite_timed_out(slot, sent);
                    }
                }
                Alarm::DrainTimeout => self.expire_drain(),
                Alarm::RelayTimeout(user) => OutOfDialogControl::new(self).relay_timed_out(user),
                Alarm::RegisterTimeout(user) => {
                    OutOfDialogControl::new(self).register_timed_out(user)
                }
                Alarm::Subscription(key) => OutOfDialogControl::new(self).end_subscription(key),
                Alarm::KeepAlive(serial) => {
                    let Calls { endpoint, parts } = self;
                    let failed = parts.keep_alives.send(&mut parts.ctx, endpoint, serial);
                    if let Some(flow) = failed {
                        parts
                            .keep_alives
                            .flow_failed(&mut parts.ctx, &mut parts.carriers, flow);
                    }
                }
                Alarm::CloseListener(local, used) => {
                    let in_use = self.is_listener_used(local);
                    let Components {
                        ctx,
                        listeners,
                        media,
                        ..
                    } = &mut *self.parts;
                    listeners.close(ctx, &mut media.plane, local, (in_use, used));
                }
                Alarm::OpenListener(local) => {
                    let Components {
                        listeners, media, ..
                    } = &mut *self.parts;
                    listeners.retry(&mut media.plane, local);
                }
                Alarm::Keying(key) => self.handle_keying_timeout(key),
                Alarm::NodeQuery(key) => self.parts.query_node_about_call(key),
                Alarm::FailoverRetry(key) => self.parts.requeue_failover(key),
                Alarm::AnnouncePorts(key, tries) => {
                    TransferControl::new(self).announce_ports(key, tries);
                }
                Alarm::PinTimeout(key) => ConferenceCalls::new(self).pin_timeout(key),
                Alarm::ConferenceQueryStep(number) => {
                    ConferenceCalls::new(self).query_next_participants(number)
                }
                Alarm::TransferPoll(number, call) => {
                    TransferControl::new(self).poll_transfer(number, call);
                }
                Alarm::QualityTick => self.parts.quality_tick(),
                Alarm::OverloadCheck => self
                    .parts
                    .admission
                    .overload
                    .check_overload_end(&mut self.parts.ctx),
                Alarm::SheddingUpdate => {
                    let Calls { endpoint, parts } = self;
                    parts.admission.overload.update(&mut parts.ctx, endpoint);
                }
            }
        }
        self.parts.media.plane.close_idle(now);
        NodeControl::new(self).handle_node_timeouts();
        self.parts.resolver.dns_timeout(&self.parts.ctx);
        let mut requests = OutOfDialogControl::new(self);
        requests.ping_trunks();
        requests.register_at_carriers();
        requests.expire_registrations();
    }

    /// Whether a call uses a listener.
    fn is_listener_used(&self, local: ListenerId) -> bool {
        self.parts.calls.iter().any(|(_, call)| {
            let early = call
                .kind
                .set_up()
                .into_iter()
                .flat_map(|set_up| &set_up.branches);
            let legs = Side::BOTH.iter().filter_map(|&side| call.leg(side));
            legs.chain(early.map(|branch| branch.leg)).any(|leg| {
                self.endpoint
                    .flow_of(leg)
                    .is_some_and(|flow| flow.local == local)
            })
        })
    }

    /// The target of a trunk whose response may have overload feedback.
    fn target_of_response(&self, indication: &Indication<'_>) -> Option<TrunkTarget> {
        match indication {
            Indication::Progressed { leg, .. }
            | Indication::Answered { leg, .. }
            | Indication::Failed { leg, .. } => {
                let slot = self.parts.calls.slot_of_leg(self.endpoint, *leg)?;
                self.parts.calls.get(slot)?.trunk_target_of(*leg)
            }
            Indication::OutOfDialogResponse { user, .. } => {
                self.parts.out_of_dialog.target_of(*user)
            }
            _ => None,
        }
    }

    /// Applies header rules to an indication, and processes the result.
    fn apply_rules(&mut self, indication: Indication<'_>) {
        if self.parts.ctx.config.rules.is_empty() {
            return self.dispatch(indication);
        }
        match self
            .parts
            .apply_rules_to_indication(self.endpoint, &indication)
        {
            RuleOutcome::AsItCame => self.dispatch(indication),
            RuleOutcome::Refused => {}
            RuleOutcome::Changed(bytes) => match Message::parse(&bytes) {
                Ok(message) => self.dispatch(with_message(indication, &message)),
                // Rules always produce a valid message; otherwise the received one is used.
                Err(_) => self.dispatch(indication),
            },
        }
        self.parts.apply_rule_output();
    }

    /// Sends queries, and delivers the results of finished lookups.
    pub(crate) fn deliver_lookups(&mut self) {
        while let Some(result) = self.parts.resolver.next_result() {
            self.deliver_lookup(result);
        }
        self.parts.send_queries();
    }

    /// Applies changed DNS servers.
    pub(crate) fn reload_dns(&mut self) {
        let config = self.parts.ctx.config.clone();
        let entropy = self.parts.ctx.entropy.fork();
        for waiting in self
            .parts
            .resolver
            .replaced(DnsClient::new(&config, entropy))
        {
            self.deliver_lookup((waiting, Err(LocateError::NoAnswer)));
        }
        self.deliver_lookups();
    }

    fn deliver_lookup(&mut self, result: LookupResult) {
        let call = match &result.0 {
            LookupWaiter::Hop(key, _) => Some(*key),
            LookupWaiter::Transfer(..)
            | LookupWaiter::Dialog(..)
            | LookupWaiter::OutOfDialog(_) => None,
        };
        let target = match &result {
            (LookupWaiter::Transfer(key, index), targets) => {
                Some((*key, *index, targets.clone().unwrap_or_default()))
            }
            _ => None,
        };
        self.located(result);
        if let Some((key, index, targets)) = target {
            TransferControl::new(self).transfer_target_located(key, index, &targets);
        }
        if let Some(slot) = call.and_then(|key| self.parts.calls.slot_of(key)) {
            self.call_next_hops(slot);
        }
    }

    /// Processes a request that waited for an ACK.
    fn dispatch_early(&mut self, early: Option<Box<EarlyRequest>>) {
        let Some(early) = early else {
            return;
        };
        match Message::parse(&early.request) {
            Ok(request) => self.dispatch(Indication::Request {
                leg: early.leg,
                transaction: early.server,
                request: &request,
            }),
            Err(_) => refuse(self.endpoint, early.server, 500, self.parts.ctx.now),
        }
    }

    /// The call of a leg, and the part that the leg has in it.
    fn stage_of_leg(&self, leg: LegId) -> Option<(CallSlot, LegStage)> {
        let slot = self.parts.calls.slot_of_leg(self.endpoint, leg)?;
        let call = self.parts.calls.get(slot)?;
        let stage = match (call.has_branch(leg), call.side_of(leg)) {
            (true, _) => LegStage::Branch,
            (false, Some(_)) => LegStage::Side,
            (false, None) => LegStage::Transfer,
        };
        Some((slot, stage))
    }
}
