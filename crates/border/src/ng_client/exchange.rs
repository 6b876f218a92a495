//! Passing the descriptions of a call through its media node.
//!
//! A message with a description is deferred until the node has replied, and later messages of the same call are
//! deferred behind it, so that the order is kept. An INVITE is deferred as for media sockets: its targets are called
//! after the reply. The end of a call is never deferred.

use crate::bodies::{Carried, SdpRole, has_sdp, is_multipart, session_of};
use crate::calls::key::{CallKey, CallSlot, SideKey};
use crate::calls::{Call, CallStage, LinkKind, MAX_LINKS};
use crate::components::Components;
use crate::ng_client::relay::{ForwardedAnswer, NodeRelay, PendingExchange, tag};
use crate::ng_client::statistics::{text, traffic_of};
use crate::ng_client::{CommandPurpose, CommandSocketState, Exchange, NodeId, PendingDelete};
use crate::shared::Alarm;
use anchor::sockets::SocketWork;
use anchor::{AnchorError, Side};
use config::{InterfaceId, MediaSecurity, TrunkId};
use core::time::Duration;
use engine::{EventKind, SocketId, SocketKind};
use ng::origin::SdpOrigin;
use ng::terms;
use ng::terms::PartyTerms;
use sip::{Indication, LegId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use wire::ng::Value;
use wire::sip::{Message, Method, Session};

/// Interval between two queries whether a node still has a call.
const CALL_QUERY_INTERVAL: Duration = Duration::from_secs(30);

impl Components {
    /// Node state for a new call.
    pub(crate) fn new_relay(&mut self) -> NodeRelay {
        self.media_nodes.relayed_calls += 1;
        NodeRelay::new(self.relay_name())
    }

    /// A unique Call-ID for a call at nodes.
    pub(super) fn relay_name(&mut self) -> String {
        let (high, low) = (self.ctx.entropy.u64(), self.ctx.entropy.u64());
        format!("{high:016x}{low:016x}")
    }

    pub(super) fn relay_mut(&mut self, slot: CallSlot) -> Option<&mut NodeRelay> {
        self.calls.get_mut(slot)?.media.node_mut()
    }

    fn party<'c>(
        &'c self,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
        usual: &'c MediaSecurity,
    ) -> PartyTerms<'c> {
        let security = self.ctx.config.security(interface, trunk);
        PartyTerms {
            interface: self
                .ctx
                .config
                .interface(interface)
                .and_then(|interface| interface.node_interface.as_deref()),
            security: security.map_or(usual, |security| security),
            profile: None,
        }
    }

    /// Options for an offer of `from`, with the callee behind `callee`.
    fn terms(&self, call: &Call, from: Side, callee: (InterfaceId, Option<TrunkId>)) -> Value {
        let usual = MediaSecurity::default();
        let caller = (
            *call.interfaces.get(Side::Caller),
            *call.trunks.get(Side::Caller),
        );
        let profiles = call.media.node().map(|relay| relay.profiles);
        let of = |side: Side| {
            let (interface, trunk) = match side {
                Side::Caller => caller,
                Side::Callee => callee,
            };
            let profile = profiles.and_then(|profiles| profiles.get(side.index()).copied());
            PartyTerms {
                profile: profile.flatten(),
                ..self.party(interface, trunk, &usual)
            }
        };
        terms::offer_options(of(from), of(from.other()), self.ctx.config.media.dscp)
    }

    /// Writes the offer of an INVITE for the target, if the node has replied; otherwise the target is deferred
    /// ([`NodeRelay::defers_hop`]).
    ///
    /// # Errors
    /// [`AnchorError`].
    pub(crate) fn relay_offer(
        &mut self,
        slot: CallSlot,
        callee: (InterfaceId, Option<TrunkId>),
        invite: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let session = session_of(invite);
        let sdp = match &session {
            Session::None => return Ok(Carried::Untouched),
            Session::Encoded => return Err(AnchorError::Encoded),
            Session::Whole | Session::Part(_) => session.bytes(invite.body()).unwrap_or_default(),
        };
        let Some(call) = self.calls.get(slot) else {
            return Ok(Carried::Untouched);
        };
        let terms = self.terms(call, Side::Caller, callee);
        let hides = self.ctx.config.hiding(callee.0).is_some();
        let Some(relay) = self.relay_mut(slot) else {
            return Ok(Carried::Untouched);
        };
        relay.defers_hop = false;
        if let Some(reason) = relay.failure.take() {
            return Err(reason);
        }
        if let Some(first) = relay
            .offer_result
            .as_ref()
            .filter(|first| first.terms == terms)
        {
            let mut sdp = first.sdp.clone();
            let origin = SdpOrigin::of(&sdp).map(Box::new);
            if hides {
                anchor::hiding::description(&mut sdp, 0);
            }
            session.replace(invite.body(), |out| out.extend_from_slice(&sdp), out);
            relay.open_offer = Some(Side::Caller);
            relay.set_origin(Side::Callee, origin);
            return Ok(Carried::Rewritten);
        }
        if !relay.is_busy() {
            self.send_exchange(slot.side(Side::Caller), SdpRole::Offer, sdp, Some(terms))?;
        }
        if let Some(relay) = self.relay_mut(slot) {
            relay.defers_hop = true;
        }
        Ok(Carried::Nothing)
    }

    /// Sends a description of `from` to the call's node, which is selected if there is none yet.
    fn send_exchange(
        &mut self,
        SideKey { slot, side: from }: SideKey,
        role: SdpRole,
        sdp: &[u8],
        first: Option<Value>,
    ) -> Result<(), AnchorError> {
        self.check_side_policy(slot, from, sdp)?;
        let now = self.ctx.now;
        let key = self.calls.key_of(slot);
        let node = self.node_for_call(slot)?;
        let call = self.calls.get(slot).ok_or(AnchorError::NoNode)?;
        let relay = call.media.node().ok_or(AnchorError::NoNode)?;
        let offers = role == SdpRole::Offer;
        let callee = (
            *call.interfaces.get(Side::Callee),
            *call.trunks.get(Side::Callee),
        );
        let mut body = match (&first, offers) {
            (Some(terms), _) => terms.clone(),
            (None, true) => self.terms(call, from, callee),
            (None, false) => {
                let replaced: Vec<Value> = vec!["origin".into()];
                Value::dictionary().with("replace", replaced)
            }
        };
        let command = if offers { "offer" } else { "answer" };
        // The offerer's tag is the from-tag, also in the answer.
        let (one, other) = match offers {
            true => (from, from.other()),
            false => (from.other(), from),
        };
        body.set("command", command);
        body.set("call-id", relay.call_id.as_str());
        body.set("from-tag", tag(one));
        // Without the other tag, an offer of the answerer in an early dialog would begin another branch.
        let answerer = relay.established && from != relay.first_offerer;
        let answered = relay.established && call.summary.answered_at.is_some();
        let existing = first.is_none() && (answered || answerer);
        if !offers || existing {
            body.set("to-tag", tag(other));
        }
        let supported: Vec<Value> = vec!["load limit".into()];
        body.set("supports", supported);
        body.set("sdp", sdp);
        let first_offerer = match relay.established {
            true => relay.first_offerer,
            false => one,
        };
        let purpose = CommandPurpose::Exchange(Exchange {
            key,
            node,
            command,
            call_id: relay.call_id.clone(),
            first_offerer,
        });
        // `None` at the limit of pending commands.
        let id = self.media_nodes.send_command(node, purpose, &body, now);
        let id = id.ok_or(AnchorError::NoNode)?;
        self.open_command_socket(node);
        if let Some(relay) = self.relay_mut(slot) {
            relay.pending = Some(PendingExchange { id, first });
            relay.first_offerer = first_offerer;
        }
        Ok(())
    }

    /// Sends the INVITE's offer to a node that does not have the call yet.
    ///
    /// # Errors
    /// [`AnchorError`].
    pub(super) fn relay_offer_first(
        &mut self,
        slot: CallSlot,
        callee: (InterfaceId, Option<TrunkId>),
        sdp: &[u8],
    ) -> Result<(), AnchorError> {
        let call = self.calls.get(slot).ok_or(AnchorError::NoNode)?;
        let terms = self.terms(call, Side::Caller, callee);
        self.send_exchange(slot.side(Side::Caller), SdpRole::Offer, sdp, Some(terms))
    }

    /// Checks a description against the policy of its side.
    fn check_side_policy(
        &mut self,
        slot: CallSlot,
        from: Side,
        sdp: &[u8],
    ) -> Result<(), AnchorError> {
        let Some(call) = self.calls.get(slot) else {
            return Ok(());
        };
        let number = call.number;
        let usual = MediaSecurity::default();
        let (interface, trunk) = (*call.interfaces.get(from), *call.trunks.get(from));
        let judged = terms::check_policy(sdp, self.party(interface, trunk, &usual).security);
        let holds = terms::puts_on_hold(sdp);
        if let Some(relay) = self.relay_mut(slot)
            && let Some(holding) = relay.holding.get_mut(from.index())
        {
            *holding = holds;
        }
        match judged {
            Ok(profile) => {
                if let Some(relay) = self.relay_mut(slot)
                    && let Some(existing) = relay.profiles.get_mut(from.index())
                {
                    *existing = profile.or(*existing);
                }
                Ok(())
            }
            Err((error, reason)) => {
                let now = self.ctx.now;
                if let Some((line, reason)) = reason {
                    self.ctx
                        .events
                        .tell(now, || EventKind::MediaSecurityFailed {
                            call: number,
                            side: from.name().to_owned(),
                            line: line as u64,
                            reason: reason.to_owned(),
                        });
                }
                Err(error)
            }
        }
    }

    /// The node of a call, selected if it has none.
    fn node_for_call(&mut self, slot: CallSlot) -> Result<NodeId, AnchorError> {
        let key = self.calls.key_of(slot);
        let now = self.ctx.now;
        let Some(call) = self.calls.get_mut(slot) else {
            return Err(AnchorError::NoNode);
        };
        let number = call.number;
        let Some(relay) = call.media.node_mut() else {
            return Err(AnchorError::NoNode);
        };
        if let Some(node) = relay.node {
            return match self.media_nodes.is_down(node) {
                true => Err(AnchorError::NoNode),
                false => Ok(node),
            };
        }
        let node = self
            .media_nodes
            .choose(&relay.tried)
            .ok_or(AnchorError::NoNode)?;
        self.media_nodes.add_call(node);
        relay.node = Some(node);
        relay.query_timer = Some(
            self.ctx
                .timers
                .schedule(now + CALL_QUERY_INTERVAL, Alarm::NodeQuery(key)),
        );
        let call_id = relay.call_id.clone();
        let name = self.media_nodes.name(node).to_owned();
        self.ctx.events.tell(now, || EventKind::MediaNodeChosen {
            call: number,
            node: name,
            call_id,
        });
        Ok(node)
    }

    /// Opens the socket for commands to a node.
    fn open_command_socket(&mut self, node: NodeId) {
        if let Some(control) = self.media_nodes.control(node) {
            self.open_socket_towards(control);
        }
    }

    fn open_socket_towards(&mut self, control: SocketAddr) {
        let now = self.ctx.now;
        let index = usize::from(control.is_ipv6());
        let Some(command_socket) = self.media_nodes.sockets.get_mut(index) else {
            return;
        };
        if !command_socket.is_due(now) {
            return;
        }
        command_socket.state = CommandSocketState::Opening;
        let listeners = &mut self.listeners;
        let socket = *command_socket
            .id
            .get_or_insert_with(|| listeners.next_socket());
        let any: IpAddr = match control.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.media.plane.work.push_back(SocketWork::Open {
            socket,
            kind: SocketKind::UdpSignalling,
            local: SocketAddr::new(any, 0),
        });
    }

    /// The socket for commands to nodes of an address family could not be opened. The attempts are not logged after the
    /// first one.
    pub(crate) fn command_socket_failed(&mut self, socket: SocketId, error: &str) {
        let now = self.ctx.now;
        if let Some(control) = self.media_nodes.socket_failed(socket, now) {
            self.ctx.events.tell(now, || EventKind::SocketFailed {
                purpose: "ng client".to_owned(),
                address: control.to_string(),
                error: error.to_owned(),
            });
        }
    }

    /// Whether a socket is a control socket for nodes.
    pub(crate) fn is_for_nodes(&self, socket: SocketId) -> bool {
        self.media_nodes.owns_socket(socket)
    }

    /// Writes the description from the node's reply to the current message.
    pub(crate) fn apply_node_description(
        &mut self,
        SideKey { slot, side: from }: SideKey,
        message: &Message<'_>,
        role: SdpRole,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let session = session_of(message);
        if session == Session::Encoded {
            return Err(AnchorError::Encoded);
        }
        let Some(received) = session.bytes(message.body()) else {
            return Ok(Carried::Untouched);
        };
        let hides = self.calls.get(slot).is_some_and(|call| {
            let interface = *call.interfaces.get(from.other());
            self.ctx.config.hiding(interface).is_some()
        });
        let Some(relay) = self.relay_mut(slot) else {
            return Ok(Carried::Untouched);
        };
        // A description without a reply of the node is not forwarded.
        let sdp = relay.result.take().unwrap_or(Err(AnchorError::NoNode))?;
        let mut sdp = relay.for_side(from.other(), sdp);
        if hides {
            anchor::hiding::description(&mut sdp, 0);
        }
        out.extend_from_slice(&sdp);
        match role {
            SdpRole::Offer => {
                relay.open_offer = Some(from);
                relay.last_answer = None;
            }
            SdpRole::Answer => relay.open_offer = None,
            SdpRole::EarlyAnswer => {}
        }
        if role != SdpRole::Offer {
            relay.last_answer = Some(ForwardedAnswer {
                from,
                received: received.into(),
                forwarded: sdp.into(),
            });
        }
        Ok(Carried::Rewritten)
    }

    /// The side and role of a message's description, if it has to be sent to the node.
    pub(super) fn exchange_of(
        &self,
        slot: CallSlot,
        indication: &Indication<'_>,
    ) -> Option<(Side, SdpRole)> {
        let call = self.calls.get(slot)?;
        let relay = call.media.node()?;
        match *indication {
            Indication::Progressed {
                leg,
                fork,
                response,
                reliable,
            } if has_sdp(response) => {
                let set_up = call.kind.set_up()?;
                let mut branches = set_up.branches.iter();
                branches.find(|branch| branch.leg == leg && !branch.cancelled)?;
                call.leg(Side::Caller)?;
                if set_up.early.answered_by_another((leg, fork)) {
                    return None;
                }
                match set_up.offered {
                    true => Some((Side::Callee, SdpRole::EarlyAnswer)),
                    false => (reliable && set_up.early.reliable)
                        .then_some((Side::Callee, SdpRole::Offer)),
                }
            }
            Indication::Answered {
                leg,
                fork,
                response,
            } if has_sdp(response) => {
                let set_up = call.kind.set_up()?;
                let mut branches = set_up.branches.iter();
                branches.find(|branch| branch.leg == leg && !branch.cancelled)?;
                call.leg(Side::Caller)?;
                let another = set_up.offered && set_up.early.answered_by_another((leg, fork));
                if set_up.early.answered_by.is_some() && !another && !is_multipart(response) {
                    return None;
                }
                let role = match set_up.offered {
                    true => SdpRole::Answer,
                    false => SdpRole::Offer,
                };
                Some((Side::Callee, role))
            }
            // The answer was in a reliable response; since then the node may have that of another fork.
            Indication::Answered { leg, fork, .. } => {
                let set_up = call.kind.set_up()?;
                let mut branches = set_up.branches.iter();
                branches.find(|branch| branch.leg == leg && !branch.cancelled)?;
                call.leg(Side::Caller)?;
                set_up.early.unconfirmed_of((leg, fork))?;
                Some((Side::Callee, SdpRole::Answer))
            }
            Indication::Acked { leg, request } if has_sdp(request) => {
                let from = call.side_of(leg)?;
                let answers = relay.open_offer == Some(from.other());
                (answers && call.requests.ack.due == Some(from.other()))
                    .then_some((from, SdpRole::Answer))
            }
            Indication::Pracked { request, .. } if has_sdp(request) => {
                let set_up = call.kind.set_up()?;
                set_up.early.acknowledged_by(request)?;
                let role = match relay.open_offer == Some(Side::Callee) {
                    true => SdpRole::Answer,
                    false => SdpRole::Offer,
                };
                Some((Side::Caller, role))
            }
            Indication::Request { leg, request, .. } if has_sdp(request) => {
                let from = call.side_of(leg)?;
                let invites = request.method() == Method::Invite;
                if !invites && request.method() != Method::Update {
                    return None;
                }
                let glare = |link: &crate::calls::ForwardedLink| link.offer && link.from != from;
                // The description of a message that is refused anyway is not sent.
                let refused = call.stage == CallStage::ExpectLegsClosed
                    || call.requests.held.is_some()
                    || call.requests.links.len() >= MAX_LINKS
                    || call.kind.join().is_some()
                    || (invites && call.requests.ack.due.is_some())
                    || call.requests.links.iter().any(glare);
                (!refused).then_some((from, SdpRole::Offer))
            }
            Indication::Response {
                leg,
                transaction,
                response,
            } if has_sdp(response) && (200..300).contains(&response.status()) => {
                let mut links = call.requests.links.iter();
                let Some(link) = links.find(|link| link.client == transaction) else {
                    let role = call.kind.join()?.awaited_sdp_role(transaction)?;
                    return Some((call.side_of(leg)?, role));
                };
                let to = link.from.other();
                match (link.offer, link.kind) {
                    (true, _) => Some((to, SdpRole::Answer)),
                    (false, LinkKind::Invite) => Some((to, SdpRole::Offer)),
                    (false, _) => None,
                }
            }
            _ => None,
        }
    }

    /// Sends the description of a message; `false` if it is known already or cannot be sent.
    pub(super) fn begin_exchange(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        (from, role): (Side, SdpRole),
        message: &Message<'_>,
    ) -> bool {
        let session = session_of(message);
        let Some(sdp) = session.bytes(message.body()) else {
            return false;
        };
        // The policy of the interface of this contact applies; several may be called at the same time.
        self.calls.use_branch(slot, leg);
        if role != SdpRole::Offer {
            match self.offer_before_answer(slot, leg) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => {
                    if let Some(relay) = self.relay_mut(slot) {
                        relay.result = Some(Err(error));
                    }
                    return false;
                }
            }
        }
        if role != SdpRole::Offer
            && let Some(relay) = self.relay_mut(slot)
            && let Some(existing) = &relay.last_answer
            && existing.from == from
            && *existing.received == *sdp
        {
            // A repeated answer, after an early one: the node has it.
            relay.result = Some(Ok(existing.forwarded.to_vec()));
            return false;
        }
        match self.send_exchange(slot.side(from), role, sdp, None) {
            Ok(()) => true,
            Err(error) => {
                if let Some(relay) = self.relay_mut(slot) {
                    relay.result = Some(Err(error));
                }
                false
            }
        }
    }

    /// Releases the call's ports at its node. Returns whether the node was asked for its figures.
    pub(crate) fn release_relay(&mut self, slot: CallSlot) -> bool {
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let number = call.number;
        let Some(relay) = call.media.take_node() else {
            return false;
        };
        let mut relay = *relay;
        self.media_nodes.relayed_calls = self.media_nodes.relayed_calls.saturating_sub(1);
        self.calls.deferred_messages.append(&mut relay.queue);
        if let Some(timer) = relay.query_timer.take() {
            self.ctx.timers.cancel(timer);
        }
        if let Some(asking) = relay.pending.take() {
            self.media_nodes.client.cancel(asking.id);
        }
        if let Some(node) = relay.node {
            let (call_id, first_offerer) = (relay.call_id, relay.first_offerer);
            let asked = match self.media_nodes.is_down(node) {
                true => {
                    let delete = PendingDelete {
                        number,
                        call_id,
                        first_offerer,
                    };
                    self.media_nodes.defer_delete(node, delete);
                    false
                }
                false => self.send_delete(node, number, (&call_id, first_offerer), true),
            };
            self.media_nodes.remove_call(node);
            return asked;
        }
        false
    }

    /// Deletes a call at a node; `last`: the call has ended, and waits for its figures. Returns whether the command
    /// was sent.
    pub(super) fn send_delete(
        &mut self,
        node: NodeId,
        number: u64,
        (call_id, first_offerer): (&str, Side),
        last: bool,
    ) -> bool {
        let now = self.ctx.now;
        // rtpengine returns figures if a tag is given, and deletes the call with it.
        let body = Value::dictionary()
            .with("command", "delete")
            .with("call-id", call_id)
            .with("from-tag", tag(first_offerer))
            .with("delete-delay", 0i64);
        let name = self.media_nodes.name(node).to_owned();
        let purpose = CommandPurpose::Delete(number, name, last);
        self.media_nodes
            .send_command(node, purpose, &body, now)
            .is_some()
    }

    /// Whether a call is at this node and is not being moved.
    pub(super) fn is_call_at(&self, key: CallKey, node: NodeId) -> bool {
        let call = self
            .calls
            .slot_of(key)
            .and_then(|slot| self.calls.get(slot));
        call.and_then(|call| call.media.node())
            .is_some_and(|relay| relay.node == Some(node) && relay.failover.is_none())
    }

    pub(super) fn report_statistics(&mut self, call: u64, node: String, reply: &Value) {
        let now = self.ctx.now;
        if text(reply, "result") != Some(b"ok") {
            return;
        }
        let traffic = traffic_of(reply, Side::BOTH.map(tag));
        let [caller, callee] = traffic.packets;
        self.ctx
            .events
            .tell(now, || EventKind::MediaNodeStatistics {
                call,
                node,
                caller_packets: caller,
                callee_packets: callee,
                octets: traffic.octets,
                errors: traffic.errors,
            });
    }

    /// Deletes a call at a node whose reply was late, unless the call is at that node.
    pub(super) fn release_late_exchange(&mut self, exchange: &Exchange) {
        let relay = self
            .calls
            .slot_of(exchange.key)
            .and_then(|slot| self.calls.get(slot)?.media.node());
        if relay.is_none_or(|relay| relay.node != Some(exchange.node)) {
            let number = exchange.key.number();
            let named = (exchange.call_id.as_str(), exchange.first_offerer);
            self.send_delete(exchange.node, number, named, false);
        }
    }

    /// Moves a call that is being set up away from a node that refused it.
    pub(super) fn leave_node(&mut self, slot: CallSlot, node: NodeId) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let Some(relay) = call.media.node_mut() else {
            return;
        };
        relay.node = None;
        relay.tried.push(node);
        let (call_id, first_offerer) = (relay.call_id.clone(), relay.first_offerer);
        if let Some(timer) = relay.query_timer.take() {
            self.ctx.timers.cancel(timer);
        }
        // The node may have created the call.
        self.send_delete(node, number, (&call_id, first_offerer), false);
        self.media_nodes.remove_call(node);
    }

    /// Queries whether a node still has a call.
    pub(crate) fn query_node_about_call(&mut self, key: CallKey) {
        let now = self.ctx.now;
        let Some(slot) = self.calls.slot_of(key) else {
            return;
        };
        let timer = self
            .ctx
            .timers
            .schedule(now + CALL_QUERY_INTERVAL, Alarm::NodeQuery(key));
        let Some(relay) = self.relay_mut(slot) else {
            self.ctx.timers.cancel(timer);
            return;
        };
        relay.query_timer = Some(timer);
        let stands = relay.established && relay.failover.is_none();
        let node = relay.node.filter(|_| stands);
        if let Some(node) = node.filter(|node| !self.media_nodes.is_down(*node)) {
            self.query_call(slot, key, node);
        }
    }

    pub(super) fn open_command_sockets(&mut self) {
        for control in self.media_nodes.controls() {
            self.open_socket_towards(control);
        }
    }

    /// Writes the events about nodes.
    pub(crate) fn report_node_events(&mut self) {
        let now = self.ctx.now;
        for note in self.media_nodes.take_events() {
            self.ctx.events.tell(now, || note);
        }
    }
}
