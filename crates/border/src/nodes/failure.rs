//! Calls whose media node has failed: each is re-anchored at another node, or ended, as the configuration says.
//!
//! A node fails when it leaves checks unanswered, when its host says that the port is unreachable, or when it does not know calls
//! that it has taken. Its calls wait in a queue, the oldest first, and leave it at a bounded rate, so that the border and its peers
//! are not overloaded by their own repair. A call that changes just now is looked at again a little later; one that is being set up
//! turns to another node when its next description comes, and agrees with both sides anew when it is answered.

use super::relay::Relay;
use super::{NodeId, Owed, What};
use crate::anchor::AnchorError;
use crate::border::{Alarm, Core};
use crate::call::pass::session_of;
use crate::call::{Call, CallKey, LinkKind, Phase, Side};
use crate::config::NodeFailure;
use core::time::Duration;
use engine::{Note, Time};
use sip::{Endpoint, LegId};
use std::collections::VecDeque;
use wire::ng::Value;
use wire::sip::Message;

/// The queue is served so often in a second.
const SLICES: usize = 100;
/// How long until calls are looked at again for which there is no node.
const NO_NODE: Duration = Duration::from_millis(100);
/// How long until a call is looked at again that changes just now.
const BUSY: Duration = Duration::from_millis(100);
/// A call that changes for so long (64*T1 and some) has lost a side as well.
const BUSY_MAX: Duration = Duration::from_secs(40);
/// Nodes to which one call is moved, one after the other, while they fail.
const TRIES: u8 = 3;
/// Number of new attempts with both sides; those after glare are not counted.
const RETRIES: u8 = 10;
/// Calls that are looked through for one to ask a node about.
const SCANNED: usize = 4_096;

/// A call's node has failed.
#[derive(Debug)]
pub(crate) struct Failing {
    /// Which, and its name, which may leave the configuration meanwhile.
    node: NodeId,
    name: String,
    why: String,
    since: Time,
    /// The node answers, and does not know the call.
    forgotten: bool,
    /// Both sides had agreed on that node.
    settled: bool,
    /// The call has nothing at that node any more.
    left: bool,
    /// Nodes that it has left.
    tries: u8,
    /// How often its sides did not agree, for reasons that may pass.
    retries: u8,
}

/// Calls whose node has failed.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    queue: VecDeque<CallKey>,
    due: Option<Time>,
}

impl Failures {
    pub(super) fn next_at(&self) -> Option<Time> {
        let waits = !self.queue.is_empty();
        waits.then(|| self.due.unwrap_or(Time::ZERO))
    }
}

/// What became of a look at a call.
enum Step {
    /// It was dealt with.
    Done,
    /// There is nothing to do, or not in this way.
    Nothing,
    /// It changes just now.
    Busy,
    /// There is no node for it.
    NoNode,
}

/// Whether something is under way in a call that must end first.
fn is_busy(call: &Call, relay: &Relay) -> bool {
    let negotiates = |link: &crate::call::Link| {
        link.offer || matches!(link.kind, LinkKind::Invite | LinkKind::Update)
    };
    call.join.is_some()
        || call.ack_due.is_some()
        || call.held.is_some()
        || relay.is_busy()
        || call.links.iter().any(negotiates)
}

impl Core {
    /// Queues the calls of nodes that have failed.
    pub(super) fn nodes_failed(&mut self, endpoint: &mut Endpoint, now: Time) {
        for (node, why) in core::mem::take(&mut self.nodes.failed) {
            let down = self.nodes.is_down(node);
            // Of a node that was started anew those are known that it did not know.
            let at = |call: &Call| {
                let relay = call.relay.as_deref();
                relay.is_some_and(|r| r.node == Some(node) && (down || r.failing.is_none()))
            };
            let calls = self.calls.iter().filter(|(_, call)| at(call));
            let mut slots: Vec<(Time, u64, usize)> = calls
                .map(|(slot, call)| (call.offered_at, call.number, slot))
                .collect();
            slots.sort_unstable();
            for (_, _, slot) in slots {
                self.node_failed(endpoint, slot, node, (why, false), now);
            }
        }
    }

    /// The node of a call has failed; `forgotten`: it says itself that it does not know the call.
    pub(super) fn node_failed(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        node: NodeId,
        (why, forgotten): (&str, bool),
        now: Time,
    ) {
        let key = self.key_of(slot);
        let name = self.nodes.name(node).to_owned();
        let ends = self.nodes.care.failure == NodeFailure::End;
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let set_up = call.phase == Phase::SetUp;
        let Some(relay) = call.relay.as_deref_mut() else {
            return;
        };
        if !relay.established {
            // No side has this node's ports yet: another node is asked as soon as this one is given up.
            return;
        }
        match relay.failing.as_deref_mut() {
            // Known already; or the node to which the call was moved has failed, too.
            Some(failing) => {
                failing.node = node;
                failing.forgotten = forgotten;
                failing.settled &= !failing.left;
                failing.left = false;
            }
            None => {
                relay.failing = Some(Box::new(Failing {
                    node,
                    name,
                    why: why.to_owned(),
                    since: now,
                    forgotten,
                    settled: true,
                    left: false,
                    tries: 0,
                    retries: 0,
                }));
            }
        }
        if set_up && !ends && (forgotten || self.nodes.is_down(node)) {
            self.leave_failed(slot, now);
            return self.relay_go_on(endpoint, slot, now);
        }
        self.nodes.failures.queue.push_back(key);
    }

    /// A call is answered and acknowledged: if its node failed before, both sides are to agree on the new one now.
    pub(crate) fn node_call_confirmed(&mut self, slot: usize, now: Time) {
        let key = self.key_of(slot);
        let Some(relay) = self
            .calls
            .get_mut(slot)
            .and_then(|c| c.relay.as_deref_mut())
        else {
            return;
        };
        relay.forget_set_up();
        if let Some(failing) = relay.failing.as_deref_mut() {
            failing.since = now;
            self.nodes.failures.queue.push_front(key);
        }
    }

    /// A call that changed is looked at once more.
    pub(crate) fn node_failed_again(&mut self, key: CallKey) {
        self.nodes.failures.queue.push_front(key);
    }

    /// Looks after as many calls of failed nodes as the rate allows.
    pub(super) fn serve_failures(&mut self, endpoint: &mut Endpoint, now: Time) {
        if self.nodes.failures.next_at().is_none_or(|at| at > now) {
            return;
        }
        let rate = self.nodes.care.failure_rate as usize;
        let rate = self.nodes.worker.share(rate).max(1);
        let budget = (rate / SLICES).max(1);
        let mut pause = Duration::from_micros((1_000_000 * budget / rate) as u64);
        let mut left = budget;
        // Each once in a turn: those that come back wait for the next one.
        let mut waiting = VecDeque::new();
        while left > 0
            && let Some(key) = self.nodes.failures.queue.pop_front()
        {
            match self.look_after(endpoint, key, now) {
                Step::Done => left -= 1,
                Step::Nothing => {}
                Step::Busy => {
                    self.timers.schedule(now + BUSY, Alarm::NodeFailed(key));
                }
                Step::NoNode => waiting.push_back(key),
            }
        }
        if !waiting.is_empty() {
            pause = pause.max(NO_NODE);
        }
        waiting.append(&mut self.nodes.failures.queue);
        self.nodes.failures.queue = waiting;
        self.nodes.failures.due = Some(now + pause);
    }

    fn look_after(&mut self, endpoint: &mut Endpoint, key: CallKey, now: Time) -> Step {
        let Some(slot) = self.slot_of(key) else {
            return Step::Nothing;
        };
        let care = self.nodes.care;
        let Some(call) = self.calls.get(slot) else {
            return Step::Nothing;
        };
        let Some((relay, failing)) = call
            .relay
            .as_deref()
            .and_then(|relay| Some((relay, relay.failing.as_deref()?)))
        else {
            return Step::Nothing;
        };
        if care.failure == NodeFailure::End && call.phase != Phase::Ending {
            if failing.forgotten || self.nodes.is_down(failing.node) {
                let why = failing.why.clone();
                self.end_failed(endpoint, slot, &why, now);
                return Step::Done;
            }
        } else if call.phase != Phase::Confirmed {
            // One that is being set up is looked after when it is acknowledged.
            return Step::Nothing;
        }
        let back = !failing.left && !failing.forgotten && !self.nodes.is_down(failing.node);
        if back && failing.settled {
            // It is back. It may never have been away but from us.
            let node = failing.node;
            self.look_at(slot, key, node, now);
            if let Some(relay) = self.relay_mut(slot) {
                relay.failing = None;
            }
            return Step::Done;
        }
        if is_busy(call, relay) {
            if failing.since + BUSY_MAX > now {
                return Step::Busy;
            }
            self.end_failed(endpoint, slot, "the call changes for too long", now);
            return Step::Done;
        }
        let homeless = relay.node.is_none() || !failing.left;
        if homeless && self.nodes.choose(&[]).is_none() {
            if care.keep.is_none_or(|keep| failing.since + keep > now) {
                return Step::NoNode;
            }
            self.end_failed(endpoint, slot, "no other node", now);
            return Step::Done;
        }
        if !failing.left && failing.tries >= TRIES {
            self.end_failed(endpoint, slot, "other nodes have failed as well", now);
            return Step::Done;
        }
        let side = match relay.holding {
            // Who has put the other one on hold says so again; the other one might offer to talk.
            [false, true] => Side::Callee,
            _ => Side::Caller,
        };
        if !failing.left {
            self.leave_failed(slot, now);
        }
        self.reanchor(endpoint, slot, side, now);
        Step::Done
    }

    /// A call leaves its failed node: for the next one it is a new call with a new name, lest an end that the failed node gets
    /// late takes the call away where it is then.
    fn leave_failed(&mut self, slot: usize, now: Time) {
        let call_id = self.relay_name();
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let (number, set_up) = (call.number, call.phase == Phase::SetUp);
        let Some(relay) = call.relay.as_deref_mut() else {
            return;
        };
        let call_id = core::mem::replace(&mut relay.call_id, call_id);
        let (node, began) = (relay.node.take(), relay.began);
        relay.established = false;
        relay.moved = true;
        relay.tried.clear();
        relay.first = None;
        relay.last_answer = None;
        relay.result = None;
        relay.began = Side::Caller;
        if !set_up {
            relay.open = None;
        }
        if let Some(timer) = relay.look.take() {
            self.timers.cancel(timer);
        }
        let mut forgotten = false;
        if let Some(failing) = relay.failing.as_deref_mut() {
            failing.left = true;
            failing.tries += 1;
            forgotten = failing.forgotten;
        }
        if let Some(node) = node {
            if self.nodes.is_down(node) {
                let owed = Owed {
                    number,
                    call_id,
                    began,
                };
                self.nodes.owe(node, owed);
            } else if !forgotten {
                // The call goes on, so that nothing waits for these figures.
                self.delete_at(node, number, (&call_id, began), false, now);
            }
            self.nodes.end(node);
        }
    }

    /// What a message of this leg answers is told to a node that does not know the call yet; whether it was asked.
    ///
    /// # Errors
    /// [`AnchorError`].
    pub(super) fn offer_before_answer(
        &mut self,
        slot: usize,
        leg: LegId,
    ) -> Result<bool, AnchorError> {
        let Some(call) = self.calls.get(slot) else {
            return Ok(false);
        };
        let fresh = |relay: &Relay| relay.moved && !relay.established;
        if !call.relay.as_deref().is_some_and(fresh) {
            return Ok(false);
        }
        let Some(set_up) = call.set_up.as_deref().filter(|set_up| set_up.offered) else {
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

    /// Both sides have agreed on a call's new node.
    pub(crate) fn reanchored(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let Some(relay) = call.relay.as_deref_mut() else {
            return;
        };
        // A node that has failed meanwhile has the call in the queue again.
        let Some(failing) = relay.failing.take_if(|failing| failing.left) else {
            return;
        };
        let to = relay.node.map(|node| self.nodes.name(node).to_owned());
        let took = Duration::from_nanos(now.0.saturating_sub(failing.since.0));
        self.events.tell(now, || Note::CallReanchored {
            call: number,
            from: failing.name,
            to: to.unwrap_or_default(),
            took_ms: took.as_millis() as u64,
        });
    }

    /// Whether a call has no node that works.
    pub(crate) fn is_without_node(&self, slot: usize) -> bool {
        let relay = self.calls.get(slot).and_then(|call| call.relay.as_deref());
        relay.is_some_and(|relay| relay.node.is_none_or(|node| self.nodes.is_down(node)))
    }

    /// A call is to be moved again in a moment.
    pub(crate) fn reanchor_later(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let key = self.key_of(slot);
        let relay = self.relay_mut(slot);
        let Some(failing) = relay.and_then(|relay| relay.failing.as_deref_mut()) else {
            return;
        };
        failing.retries += 1;
        if failing.retries > RETRIES {
            return self.end_failed(endpoint, slot, "re-INVITE refused", now);
        }
        self.timers.schedule(now + BUSY, Alarm::NodeFailed(key));
    }

    /// A call ends because its node has failed.
    pub(crate) fn end_failed(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        why: &str,
        now: Time,
    ) {
        let key = self.key_of(slot);
        let name = self.relay_mut(slot).map(|relay| match &relay.failing {
            Some(failing) => (failing.name.clone(), relay.node),
            None => (String::new(), relay.node),
        });
        let (mut name, node) = name.unwrap_or_default();
        if let (true, Some(node)) = (name.is_empty(), node) {
            self.nodes.name(node).clone_into(&mut name);
        }
        self.events.tell(now, || Note::MediaNodeLost {
            call: key.number(),
            node: name,
            why: why.to_owned(),
        });
        let reason = b"SIP;cause=408;text=\"Media lost\"";
        self.give_up(endpoint, slot, "media node lost", reason, now);
    }

    /// Asks a node whether it still knows a call.
    pub(super) fn look_at(&mut self, slot: usize, key: CallKey, node: NodeId, now: Time) {
        let Some(relay) = self.relay_mut(slot) else {
            return;
        };
        let body = Value::dictionary()
            .with("command", "query")
            .with("call-id", relay.call_id.as_str());
        self.nodes.ask(node, What::Look(key, node), &body, now);
    }

    /// Looks at whether nodes still know one of their calls, and ends those there that have left.
    pub(super) fn sample_nodes(&mut self, now: Time) {
        for node in self.nodes.samples(now) {
            if let Some(slot) = self.sample_of(node) {
                self.look_at(slot, self.key_of(slot), node, now);
            }
        }
        for (node, owed) in self.nodes.take_owed() {
            self.delete_at(node, owed.number, (&owed.call_id, owed.began), false, now);
        }
    }

    /// A call of this node, another one each time.
    fn sample_of(&mut self, node: NodeId) -> Option<usize> {
        let of_node = |relay: &Relay| {
            relay.node == Some(node) && relay.established && relay.failing.is_none()
        };
        let size = self.calls.capacity();
        for _ in 0..SCANNED.min(size) {
            self.nodes.cursor = (self.nodes.cursor + 1) % size;
            let slot = self.nodes.cursor;
            let relay = self.calls.get(slot).and_then(|call| call.relay.as_deref());
            if relay.is_some_and(of_node) {
                return Some(slot);
            }
        }
        None
    }
}
