//! Failover of calls whose media node has failed: each is re-anchored at another node, or ended, as configured.
//!
//! A node fails when it does not answer checks, when its host reports the port unreachable, or when it does not have
//! calls that it had accepted. Its calls are queued, oldest first, and processed at a bounded rate, so that the
//! border and its peers are not overloaded by the failover. A call with a pending transaction is retried later; a
//! call that is being set up uses another node for its next description, and is renegotiated with both sides after it
//! is answered.

use crate::bodies::session_of;
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::transfer::TransferControl;
use crate::calls::{Call, CallStage, LinkKind};
use crate::components::Components;
use crate::ng_client::control::NodeControl;
use crate::ng_client::relay::{Failover, NodeRelay, tag};
use crate::ng_client::statistics::{figures_of, text};
use crate::ng_client::{CommandPurpose, NodeId, PendingDelete};
use crate::shared::Alarm;
use anchor::{AnchorError, Side};
use config::NodeFailure;
use core::time::Duration;
use engine::{EventKind, Time};
use sip::LegId;
use std::collections::VecDeque;
use wire::ng::Value;
use wire::sip::Message;

/// Turns per second in which the queue is processed.
const TURNS_PER_SECOND: usize = 100;
/// Time until the next attempt while no node is available.
const NO_NODE_INTERVAL: Duration = Duration::from_millis(100);
/// Time until the next attempt for a call with a pending transaction.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// A transaction pending for so long (64*T1 and some) shows that the call has lost a side as well.
const MAX_BUSY: Duration = Duration::from_secs(40);
/// Nodes to which one call is moved, one after the other, while they fail.
const MAX_NODES: u8 = 3;
/// Renegotiation attempts with both sides; those after glare are not counted.
const MAX_RETRIES: u8 = 10;
/// Calls that are scanned to find one for a query.
const MAX_SCANNED: usize = 4_096;

/// Calls whose node has failed.
#[derive(Debug, Default)]
pub(crate) struct FailoverQueue {
    queue: VecDeque<CallKey>,
    due: Option<Time>,
}

impl FailoverQueue {
    pub(super) fn next_at(&self) -> Option<Time> {
        let waits = !self.queue.is_empty();
        waits.then(|| self.due.unwrap_or(Time::ZERO))
    }
}

/// Result of an attempt.
enum FailoverStep {
    /// Done.
    Done,
    /// Nothing has to be done, or not now.
    Nothing,
    /// A transaction is pending.
    Busy,
    /// No node is available.
    NoNode,
}

/// Whether a pending transaction of the call has to end first.
fn is_busy(call: &Call, relay: &NodeRelay) -> bool {
    let negotiates = |link: &crate::calls::ForwardedLink| {
        link.offer || matches!(link.kind, LinkKind::Invite | LinkKind::Update)
    };
    call.kind.join().is_some()
        || call.requests.ack.due.is_some()
        || call.requests.held.is_some()
        || relay.is_busy()
        || call.requests.links.iter().any(negotiates)
}

impl NodeControl<'_> {
    /// Queues the calls of failed nodes.
    pub(super) fn queue_failed_calls(&mut self) {
        for (node, reason) in core::mem::take(&mut self.parts.media_nodes.failed) {
            let down = self.parts.media_nodes.is_down(node);
            // After the restart of a node the calls that it did not have are queued already.
            let at = |call: &Call| {
                let relay = call.media.node();
                relay.is_some_and(|r| r.node == Some(node) && (down || r.failover.is_none()))
            };
            let calls = self.parts.calls.iter().filter(|(_, call)| at(call));
            let mut slots: Vec<(Time, u64, CallSlot)> = calls
                .map(|(slot, call)| (call.summary.offered_at, call.number, slot))
                .collect();
            slots.sort_unstable();
            for (_, _, slot) in slots {
                self.handle_node_failure(slot, node, (reason, false));
            }
        }
    }

    /// Starts the failover of a call; `is_unknown`: the node answers, but does not have the call.
    pub(super) fn handle_node_failure(
        &mut self,
        slot: CallSlot,
        node: NodeId,
        (reason, is_unknown): (&str, bool),
    ) {
        let now = self.parts.ctx.now;
        let key = self.parts.calls.key_of(slot);
        let name = self.parts.media_nodes.name(node).to_owned();
        let ends = self.parts.media_nodes.policy.failure == NodeFailure::End;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let set_up = call.stage == CallStage::ExpectAnswer;
        let Some(relay) = call.media.node_mut() else {
            return;
        };
        if !relay.established {
            // No side has this node's ports yet: another node is tried when this command is abandoned.
            return;
        }
        match relay.failover.as_deref_mut() {
            // The failover has begun already, or the new node has failed, too.
            Some(failover) => {
                failover.node = node;
                failover.is_unknown = is_unknown;
                failover.was_agreed &= !failover.has_left;
                failover.has_left = false;
            }
            None => {
                relay.failover = Some(Box::new(Failover {
                    node,
                    name,
                    reason: reason.to_owned(),
                    since: now,
                    is_unknown,
                    was_agreed: true,
                    has_left: false,
                    tries: 0,
                    retries: 0,
                }));
            }
        }
        if set_up && !ends && (is_unknown || self.parts.media_nodes.is_down(node)) {
            self.parts.leave_failed_node(slot);
            return self.process_deferred(slot);
        }
        self.parts.media_nodes.failovers.queue.push_back(key);
    }

    /// Processes as many failovers as the rate allows.
    pub(super) fn process_failovers(&mut self) {
        let now = self.parts.ctx.now;
        if self
            .parts
            .media_nodes
            .failovers
            .next_at()
            .is_none_or(|at| at > now)
        {
            return;
        }
        let rate = self.parts.media_nodes.policy.failure_rate as usize;
        let rate = self.parts.media_nodes.worker.share(rate).max(1);
        let budget = (rate / TURNS_PER_SECOND).max(1);
        let mut pause = Duration::from_micros((1_000_000 * budget / rate) as u64);
        let mut left = budget;
        // Each call once per turn.
        let mut waiting = VecDeque::new();
        while left > 0
            && let Some(key) = self.parts.media_nodes.failovers.queue.pop_front()
        {
            match self.process_failover(key) {
                FailoverStep::Done => left -= 1,
                FailoverStep::Nothing => {}
                FailoverStep::Busy => {
                    self.parts
                        .ctx
                        .timers
                        .schedule(now + BUSY_INTERVAL, Alarm::FailoverRetry(key));
                }
                FailoverStep::NoNode => waiting.push_back(key),
            }
        }
        if !waiting.is_empty() {
            pause = pause.max(NO_NODE_INTERVAL);
        }
        waiting.append(&mut self.parts.media_nodes.failovers.queue);
        self.parts.media_nodes.failovers.queue = waiting;
        self.parts.media_nodes.failovers.due = Some(now + pause);
    }

    fn process_failover(&mut self, key: CallKey) -> FailoverStep {
        let now = self.parts.ctx.now;
        let Some(slot) = self.parts.calls.slot_of(key) else {
            return FailoverStep::Nothing;
        };
        let policy = self.parts.media_nodes.policy;
        let Some(call) = self.parts.calls.get(slot) else {
            return FailoverStep::Nothing;
        };
        let Some((relay, failover)) = call
            .media
            .node()
            .and_then(|relay| Some((relay, relay.failover.as_deref()?)))
        else {
            return FailoverStep::Nothing;
        };
        if policy.failure == NodeFailure::End && call.stage != CallStage::ExpectLegsClosed {
            if failover.is_unknown || self.parts.media_nodes.is_down(failover.node) {
                let reason = failover.reason.clone();
                TransferControl::new(&mut self.calls()).end_after_node_failure(slot, &reason);
                return FailoverStep::Done;
            }
        } else if call.stage != CallStage::ExpectBye {
            // A call that is being set up is processed after the ACK.
            return FailoverStep::Nothing;
        }
        let back = !failover.has_left
            && !failover.is_unknown
            && !self.parts.media_nodes.is_down(failover.node);
        if back && failover.was_agreed {
            // The node is back; perhaps only the path to it had failed.
            let node = failover.node;
            self.parts.query_call(slot, key, node);
            if let Some(relay) = self.parts.relay_mut(slot) {
                relay.failover = None;
            }
            return FailoverStep::Done;
        }
        if is_busy(call, relay) {
            if failover.since + MAX_BUSY > now {
                return FailoverStep::Busy;
            }
            TransferControl::new(&mut self.calls())
                .end_after_node_failure(slot, "transaction pending for too long");
            return FailoverStep::Done;
        }
        let needs_node = relay.node.is_none() || !failover.has_left;
        if needs_node && self.parts.media_nodes.choose(&[]).is_none() {
            if policy.keep.is_none_or(|keep| failover.since + keep > now) {
                return FailoverStep::NoNode;
            }
            TransferControl::new(&mut self.calls()).end_after_node_failure(slot, "no other node");
            return FailoverStep::Done;
        }
        if !failover.has_left && failover.tries >= MAX_NODES {
            TransferControl::new(&mut self.calls())
                .end_after_node_failure(slot, "too many nodes have failed");
            return FailoverStep::Done;
        }
        let side = match relay.holding {
            // The side that holds repeats the hold; the other one might offer sendrecv.
            [false, true] => Side::Callee,
            _ => Side::Caller,
        };
        if !failover.has_left {
            self.parts.leave_failed_node(slot);
        }
        TransferControl::new(&mut self.calls()).reanchor(slot, side);
        FailoverStep::Done
    }
}

impl Components {
    /// Continues a failover after the call was answered and acknowledged: both sides have to agree on the new node
    /// now.
    pub(crate) fn confirm_failover(&mut self, slot: CallSlot) {
        let now = self.ctx.now;
        let key = self.calls.key_of(slot);
        let Some(relay) = self.calls.get_mut(slot).and_then(|c| c.media.node_mut()) else {
            return;
        };
        relay.discard_set_up();
        if let Some(failover) = relay.failover.as_deref_mut() {
            failover.since = now;
            self.media_nodes.failovers.queue.push_front(key);
        }
    }

    /// Retries the failover of a call.
    pub(crate) fn requeue_failover(&mut self, key: CallKey) {
        self.media_nodes.failovers.queue.push_front(key);
    }

    /// Removes a call from its failed node. It gets a new Call-ID for the next node, because a late delete at the
    /// failed node could otherwise end it where it is then.
    fn leave_failed_node(&mut self, slot: CallSlot) {
        let call_id = self.relay_name();
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let (number, set_up) = (call.number, call.stage == CallStage::ExpectAnswer);
        let Some(relay) = call.media.node_mut() else {
            return;
        };
        let call_id = core::mem::replace(&mut relay.call_id, call_id);
        let (node, first_offerer) = (relay.node.take(), relay.first_offerer);
        relay.established = false;
        relay.moved = true;
        relay.tried.clear();
        relay.offer_result = None;
        relay.last_answer = None;
        relay.result = None;
        relay.first_offerer = Side::Caller;
        if !set_up {
            relay.open_offer = None;
        }
        if let Some(timer) = relay.query_timer.take() {
            self.ctx.timers.cancel(timer);
        }
        let mut is_unknown = false;
        if let Some(failover) = relay.failover.as_deref_mut() {
            failover.has_left = true;
            failover.tries += 1;
            is_unknown = failover.is_unknown;
        }
        if let Some(node) = node {
            if self.media_nodes.is_down(node) {
                let delete = PendingDelete {
                    number,
                    call_id,
                    first_offerer,
                };
                self.media_nodes.defer_delete(node, delete);
            } else if !is_unknown {
                // The call continues, so that these figures are not awaited.
                self.send_delete(node, number, (&call_id, first_offerer), false);
            }
            self.media_nodes.remove_call(node);
        }
    }

    /// Sends the offer for the answer of this leg to a node that does not have the call yet. Returns whether it was
    /// sent.
    ///
    /// # Errors
    /// [`AnchorError`].
    pub(super) fn offer_before_answer(
        &mut self,
        slot: CallSlot,
        leg: LegId,
    ) -> Result<bool, AnchorError> {
        let Some(call) = self.calls.get(slot) else {
            return Ok(false);
        };
        let fresh = |relay: &NodeRelay| relay.moved && !relay.established;
        if !call.media.node().is_some_and(fresh) {
            return Ok(false);
        }
        let Some(set_up) = call.kind.set_up().filter(|set_up| set_up.offered) else {
            return Ok(false);
        };
        let branch = set_up.branches.iter().find(|branch| branch.leg == leg);
        let hop = branch.and_then(|branch| set_up.hops.get(usize::from(branch.hop)));
        let Some(callee) = hop.map(|hop| (hop.interface, hop.trunk)) else {
            return Ok(false);
        };
        let invite = set_up.invite.clone();
        let Ok(invite) = Message::parse(&invite) else {
            return Ok(false);
        };
        let session = session_of(&invite);
        let Some(sdp) = session.bytes(invite.body()) else {
            return Ok(false);
        };
        self.relay_offer_first(slot, callee, sdp)?;
        Ok(true)
    }

    /// Finishes a failover: both sides have agreed on the new node.
    pub(crate) fn reanchored(&mut self, slot: CallSlot) {
        let now = self.ctx.now;
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let Some(relay) = call.media.node_mut() else {
            return;
        };
        // If the new node has failed in the meantime, the call is queued again.
        let Some(failover) = relay.failover.take_if(|failover| failover.has_left) else {
            return;
        };
        let to = relay
            .node
            .map(|node| self.media_nodes.name(node).to_owned());
        let took = Duration::from_nanos(now.0.saturating_sub(failover.since.0));
        self.ctx.events.tell(now, || EventKind::CallReanchored {
            call: number,
            from_node: failover.name,
            to_node: to.unwrap_or_default(),
            duration_ms: took.as_millis() as u64,
        });
    }

    /// Whether a call has no working node.
    pub(crate) fn is_without_node(&self, slot: CallSlot) -> bool {
        let relay = self.calls.get(slot).and_then(|call| call.media.node());
        relay.is_some_and(|relay| relay.node.is_none_or(|node| self.media_nodes.is_down(node)))
    }

    /// Queries whether a node still has a call, and its figures.
    pub(crate) fn query_call(&mut self, slot: CallSlot, key: CallKey, node: NodeId) {
        let now = self.ctx.now;
        let Some(relay) = self.relay_mut(slot) else {
            return;
        };
        let body = Value::dictionary()
            .with("command", "query")
            .with("call-id", relay.call_id.as_str());
        self.media_nodes
            .send_command(node, CommandPurpose::Query(key, node), &body, now);
    }

    /// Reports an interval of quality by the figures of a call at a node.
    pub(super) fn report_interval(&mut self, call: u64, node: &str, last: bool, reply: &Value) {
        if text(reply, "result") == Some(b"ok") {
            let figures = figures_of(reply, Side::BOTH.map(tag));
            let Components {
                ctx,
                quality_intervals,
                ..
            } = self;
            quality_intervals.report_node(ctx, (call, node), last, &figures);
        }
    }

    /// Sends due queries about calls, and kept deletions.
    pub(super) fn query_samples(&mut self) {
        let now = self.ctx.now;
        for node in self.media_nodes.nodes_to_query(now) {
            if let Some(slot) = self.next_sample(node) {
                self.query_call(slot, self.calls.key_of(slot), node);
            }
        }
        for (node, delete) in self.media_nodes.take_due_deletes() {
            self.send_delete(
                node,
                delete.number,
                (&delete.call_id, delete.first_offerer),
                false,
            );
        }
    }

    /// A call of this node, another one each time.
    fn next_sample(&mut self, node: NodeId) -> Option<CallSlot> {
        let of_node = |relay: &NodeRelay| {
            relay.node == Some(node) && relay.established && relay.failover.is_none()
        };
        let size = self.calls.capacity();
        for _ in 0..MAX_SCANNED.min(size) {
            self.media_nodes.cursor = (self.media_nodes.cursor + 1) % size;
            let slot = CallSlot(self.media_nodes.cursor);
            let relay = self.calls.get(slot).and_then(|call| call.media.node());
            if relay.is_some_and(of_node) {
                return Some(slot);
            }
        }
        None
    }

    /// Schedules another attempt. `false`: there were too many.
    pub(crate) fn retry_failover(&mut self, slot: CallSlot) -> bool {
        let now = self.ctx.now;
        let key = self.calls.key_of(slot);
        let relay = self.relay_mut(slot);
        let Some(failover) = relay.and_then(|relay| relay.failover.as_deref_mut()) else {
            return true;
        };
        failover.retries += 1;
        if failover.retries > MAX_RETRIES {
            return false;
        }
        self.ctx
            .timers
            .schedule(now + BUSY_INTERVAL, Alarm::FailoverRetry(key));
        true
    }

    /// Writes the event about a call that is ended because its node has failed.
    pub(crate) fn report_not_reanchored(&mut self, slot: CallSlot, reason: &str) {
        let now = self.ctx.now;
        let key = self.calls.key_of(slot);
        let name = self.relay_mut(slot).map(|relay| match &relay.failover {
            Some(failover) => (failover.name.clone(), relay.node),
            None => (String::new(), relay.node),
        });
        let (mut name, node) = name.unwrap_or_default();
        if let (true, Some(node)) = (name.is_empty(), node) {
            self.media_nodes.name(node).clone_into(&mut name);
        }
        self.ctx.events.tell(now, || EventKind::CallNotReanchored {
            call: key.number(),
            node: name,
            reason: reason.to_owned(),
        });
    }
}
