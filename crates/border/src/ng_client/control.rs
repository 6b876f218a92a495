//! Calls whose media is relayed by media nodes: messages that wait for a reply, the replies, and timeouts.

use crate::bodies::has_sdp;
use crate::calls::key::{CallKey, CallSlot};
use crate::components::{Calls, Components};
use crate::ng_client::relay::{DeferredKind, DeferredMessage, MAX_DEFERRED, OfferResult, tag};
use crate::ng_client::statistics::{quality_of, text};
use crate::ng_client::{CommandPurpose, Exchange, NodeId};
use crate::responses::refuse;
use anchor::{AnchorError, Side};
use engine::{DropReason, EventKind};
use ng::client::{CommandId, ReplyMatch};
use sip::{Endpoint, Indication};
use std::net::SocketAddr;
use wire::ng::Value;
use wire::sip::Message;

/// Octets of a node's error text in an event.
const MAX_REASON: usize = 160;

/// Reason for the lack of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoReply {
    NoAnswer,
    Unreachable,
}

impl NoReply {
    fn text(self) -> &'static str {
        match self {
            NoReply::NoAnswer => "no answer",
            NoReply::Unreachable => "unreachable",
        }
    }
}

fn reason_of(reply: &Value) -> String {
    let reason = text(reply, "error-reason")
        .or_else(|| text(reply, "message"))
        .or_else(|| text(reply, "result"))
        .unwrap_or(b"a reply without a result");
    let reason = reason
        .get(..reason.len().min(MAX_REASON))
        .unwrap_or_default();
    let shown = String::from_utf8_lossy(reason).into_owned();
    shown.chars().filter(|c| !c.is_control()).collect()
}

/// Whether a reply says that the node does not have the call.
fn is_unknown(reply: &Value) -> bool {
    text(reply, "error-reason").is_some_and(|reason| {
        let reason = reason.to_ascii_lowercase();
        reason.starts_with(b"unknown call")
    })
}

/// Calls whose media is relayed by media nodes.
#[derive(Debug)]
pub(crate) struct NodeControl<'c> {
    pub(super) endpoint: &'c mut Endpoint,
    pub(super) parts: &'c mut Components,
}

impl<'c> NodeControl<'c> {
    pub(crate) fn new(calls: &'c mut Calls<'_>) -> NodeControl<'c> {
        NodeControl {
            endpoint: calls.endpoint,
            parts: calls.parts,
        }
    }

    /// The stages below.
    pub(super) fn calls(&mut self) -> Calls<'_> {
        Calls {
            endpoint: self.endpoint,
            parts: self.parts,
        }
    }
}

impl NodeControl<'_> {
    /// Defers an indication whose description has to be sent to the node, or that follows a deferred one. Returns
    /// whether it was deferred.
    pub(crate) fn defer_for_node(&mut self, indication: &Indication<'_>) -> bool {
        let now = self.parts.ctx.now;
        if self.parts.media_nodes.relayed_calls == 0 || self.parts.calls.replaying {
            return false;
        }
        let Some(leg) = DeferredMessage::leg_of(indication) else {
            return false;
        };
        let Some(slot) = self.parts.calls.slot_of_leg(self.endpoint, leg) else {
            return false;
        };
        let Some(relay) = self
            .parts
            .calls
            .get(slot)
            .and_then(|call| call.media.node())
        else {
            return false;
        };
        if !relay.is_busy() && self.parts.exchange_of(slot, indication).is_none() {
            return false;
        }
        let full = relay.queue.len() >= MAX_DEFERRED;
        let Some(waiting) = DeferredMessage::of(indication) else {
            return false;
        };
        if full {
            match waiting.kind {
                DeferredKind::Request(server) | DeferredKind::Pracked(server) => {
                    refuse(self.endpoint, server, 503, now);
                    return true;
                }
                DeferredKind::Progressed(..) => return true,
                // Bounded by the transactions of the call.
                DeferredKind::Answered(_) | DeferredKind::Acked | DeferredKind::Response(_) => {}
            }
        }
        if let Some(relay) = self.parts.relay_mut(slot) {
            relay.queue.push_back(waiting);
        }
        self.process_deferred(slot);
        true
    }

    /// Processes deferred messages up to the next one that needs a reply of the node.
    pub(super) fn process_deferred(&mut self, slot: CallSlot) {
        let key = self.parts.calls.key_of(slot);
        loop {
            // The call may have ended.
            if self.parts.calls.slot_of(key) != Some(slot) {
                return;
            }
            let Some(relay) = self.parts.relay_mut(slot) else {
                return;
            };
            if relay.pending.is_some() {
                return;
            }
            let Some(waiting) = relay.queue.pop_front() else {
                break;
            };
            let existing = relay.result.is_some();
            if let (Ok(message), false) = (Message::parse(&waiting.bytes), existing) {
                let exchange = self.parts.exchange_of(slot, &waiting.indication(&message));
                let confirmed = self.confirmed_by(slot, &waiting, &message);
                let confirmed = confirmed
                    .as_deref()
                    .and_then(|bytes| Message::parse(bytes).ok());
                let described = confirmed.as_ref().unwrap_or(&message);
                let asked = exchange.is_some_and(|exchange| {
                    self.parts
                        .begin_exchange(slot, waiting.leg, exchange, described)
                });
                if asked {
                    if let Some(relay) = self.parts.relay_mut(slot) {
                        relay.queue.push_front(waiting);
                    }
                    return;
                }
            }
            self.replay(&waiting);
            if self.parts.calls.slot_of(key) == Some(slot)
                && let Some(relay) = self.parts.relay_mut(slot)
            {
                relay.result = None;
            }
        }
        self.calls().call_opened_hops(slot);
    }

    /// The reliable response whose answer a deferred 2xx without SDP confirms.
    fn confirmed_by(
        &self,
        slot: CallSlot,
        waiting: &DeferredMessage,
        message: &Message<'_>,
    ) -> Option<Box<[u8]>> {
        let DeferredKind::Answered(fork) = waiting.kind else {
            return None;
        };
        if has_sdp(message) {
            return None;
        }
        let set_up = self.parts.calls.get(slot)?.kind.set_up()?;
        let answer = set_up.early.unconfirmed_of((waiting.leg, fork))?;
        Some(answer.response.clone())
    }

    /// Replays a deferred message.
    fn replay(&mut self, waiting: &DeferredMessage) {
        if let Ok(message) = Message::parse(&waiting.bytes) {
            self.parts.calls.replaying = true;
            self.calls().dispatch(waiting.indication(&message));
            self.parts.calls.replaying = false;
        }
    }

    /// Replays the deferred messages of ending calls, which still need responses and acknowledgements.
    pub(crate) fn replay_deferred(&mut self) {
        while let Some(waiting) = self.parts.calls.deferred_messages.pop_front() {
            self.replay(&waiting);
        }
    }

    /// Removes a cancelled re-INVITE, which has been answered, from the queue.
    pub(crate) fn relay_cancelled(&mut self, slot: CallSlot, server: sip::ServerTransaction) {
        let Some(relay) = self.parts.relay_mut(slot) else {
            return;
        };
        let of_it = |waiting: &DeferredMessage| matches!(waiting.kind, DeferredKind::Request(other) if other == server);
        let first = relay.queue.front().is_some_and(of_it);
        relay.queue.retain(|waiting| !of_it(waiting));
        if first {
            relay.result = None;
            if let Some(asking) = relay.pending.take_if(|asking| asking.first.is_none()) {
                self.parts.media_nodes.client.cancel(asking.id);
            }
            self.process_deferred(slot);
        }
    }

    /// Processes a datagram from a node.
    pub(crate) fn handle_node_datagram(&mut self, source: SocketAddr, bytes: &[u8]) {
        let now = self.parts.ctx.now;
        match self.parts.media_nodes.client.match_reply(source, bytes) {
            ReplyMatch::Unexpected => self.parts.ctx.drops.count(DropReason::NgUnexpectedReply),
            ReplyMatch::Late(purpose) => {
                // A late reply does not show that a node is up: checks have to be answered in time.
                self.parts.ctx.drops.count(DropReason::NgLate);
                if let CommandPurpose::Exchange(exchange) = purpose {
                    self.parts.release_late_exchange(&exchange);
                }
            }
            ReplyMatch::Reply(id, purpose, reply) => match purpose {
                CommandPurpose::Check(node) => {
                    self.parts.media_nodes.record_check_answer(source);
                    self.parts.media_nodes.finish_check(node, Some(&reply));
                }
                CommandPurpose::Exchange(exchange) => {
                    let sdp = match text(&reply, "result") {
                        Some(b"ok") => text(&reply, "sdp"),
                        _ => None,
                    };
                    let outcome = match sdp {
                        Some(sdp) => Ok(sdp.to_vec()),
                        None => Err((reason_of(&reply), is_unknown(&reply))),
                    };
                    self.finish_exchange((id, &exchange), outcome);
                }
                CommandPurpose::Query(key, node) => {
                    let unknown = is_unknown(&reply);
                    let ours = self.parts.is_call_at(key, node);
                    if ours {
                        self.parts.media_nodes.record_query(node, !unknown, now);
                    }
                    if ours && unknown {
                        self.handle_lost_call(key, node, &reason_of(&reply));
                    } else if ours {
                        let (call, name) =
                            (key.number(), self.parts.media_nodes.name(node).to_owned());
                        self.parts.report_interval(call, &name, false, &reply);
                    }
                }
                CommandPurpose::Delete(number, node, last) => {
                    self.parts.report_statistics(number, node.clone(), &reply);
                    if last {
                        self.parts.report_interval(number, &node, true, &reply);
                        let heard = quality_of(&reply, Side::BOTH.map(tag));
                        self.parts.record_node_statistics(number, heard);
                    }
                }
            },
        }
        self.queue_failed_calls();
        self.parts.report_node_events();
    }

    /// Processes the reply to a description: the new description, or the reason of a refusal and whether the node
    /// does not have the call.
    fn finish_exchange(
        &mut self,
        (id, exchange): (CommandId, &Exchange),
        outcome: Result<Vec<u8>, (String, bool)>,
    ) {
        let now = self.parts.ctx.now;
        let (key, node) = (exchange.key, exchange.node);
        let Some(slot) = self.parts.calls.slot_of(key) else {
            return;
        };
        let Some(relay) = self.parts.relay_mut(slot) else {
            return;
        };
        let Some(asking) = relay.pending.take_if(|asking| asking.id == id) else {
            return;
        };
        match outcome {
            Ok(sdp) => {
                relay.established = true;
                match asking.first {
                    Some(terms) => relay.offer_result = Some(OfferResult { terms, sdp }),
                    None => relay.result = Some(Ok(sdp)),
                }
            }
            Err((reason, unknown)) => {
                let established = relay.established;
                let name = self.parts.media_nodes.name(node).to_owned();
                let (logged, number) = (reason.clone(), key.number());
                let command = exchange.command.to_owned();
                self.parts
                    .ctx
                    .events
                    .tell(now, || EventKind::MediaNodeFailed {
                        call: number,
                        node: name,
                        command,
                        reason: logged,
                    });
                if established && unknown && self.parts.is_call_at(key, node) {
                    self.handle_lost_call(key, node, &reason);
                }
                let Some(relay) = self.parts.relay_mut(slot) else {
                    return;
                };
                if established != relay.established {
                    // A call that is being set up has changed to another node.
                    return;
                }
                if established {
                    let failed = Err(AnchorError::NoNode);
                    match (asking.first, self.parts.relay_mut(slot)) {
                        (Some(_), Some(relay)) => relay.failure = Some(AnchorError::NoNode),
                        (None, Some(relay)) => relay.result = Some(failed),
                        (_, None) => {}
                    }
                } else if relay.node == Some(node) {
                    // No side has this node's ports yet: try another node.
                    self.parts.leave_node(slot, node);
                }
            }
        }
        self.process_deferred(slot);
    }

    /// Handles a call that its node does not have any more.
    fn handle_lost_call(&mut self, key: CallKey, node: NodeId, reason: &str) {
        if let Some(slot) = self.parts.calls.slot_of(key) {
            self.handle_node_failure(slot, node, (reason, true));
        }
    }

    /// Handles timeouts of commands, checks and failovers.
    pub(crate) fn handle_node_timeouts(&mut self) {
        let now = self.parts.ctx.now;
        if self.parts.media_nodes.is_empty()
            && self.parts.media_nodes.client.next_deadline().is_none()
        {
            return;
        }
        for (id, control, purpose) in self.parts.media_nodes.client.handle_timeout(now) {
            // Only checks mark a node as down: other commands may be lost for other reasons.
            let checks = matches!(purpose, CommandPurpose::Check(_));
            self.finish_without_reply((id, purpose), NoReply::NoAnswer);
            if checks {
                self.handle_silent_node(control, NoReply::NoAnswer);
            }
        }
        self.parts.media_nodes.send_checks(now);
        self.parts.query_samples();
        self.parts.open_command_sockets();
        self.process_failovers();
        self.parts.report_node_events();
    }

    /// Handles an ICMP error from a node's control address.
    pub(crate) fn node_unreachable(&mut self, control: SocketAddr) {
        self.handle_silent_node(control, NoReply::Unreachable);
        self.parts.report_node_events();
    }

    /// Marks a node as down and abandons its commands.
    fn handle_silent_node(&mut self, control: SocketAddr, reason: NoReply) {
        let now = self.parts.ctx.now;
        self.parts
            .media_nodes
            .mark_down(control, reason.text(), now);
        // Before the abandoned commands: calls that are being set up change to another node.
        self.queue_failed_calls();
        for expired in self.parts.media_nodes.client.abandon_node(control) {
            self.finish_without_reply(expired, reason);
        }
    }

    fn finish_without_reply(
        &mut self,
        (id, purpose): (CommandId, CommandPurpose),
        reason: NoReply,
    ) {
        match purpose {
            CommandPurpose::Check(node) => self.parts.media_nodes.finish_check(node, None),
            CommandPurpose::Exchange(exchange) => {
                let outcome = Err((reason.text().to_owned(), false));
                self.finish_exchange((id, &exchange), outcome);
            }
            // The next query detects it; and a node that is down has no calls.
            CommandPurpose::Delete(number, _, true) => {
                self.parts
                    .record_node_statistics(number, Default::default());
            }
            CommandPurpose::Query(..) | CommandPurpose::Delete(..) => {}
        }
    }
}
