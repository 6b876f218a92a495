//! How a call's descriptions go through its media node.
//!
//! A message with a description waits until the node has said what becomes of it, and whatever comes in the same call meanwhile waits
//! behind it, so that order stays. The INVITE itself waits as it does for media sockets: its hops are called when the node has spoken.
//! The end of a call never waits.

use super::client::{AskId, Heard};
use super::figures::{counted, heard, text};
use super::origin::Origin;
use super::relay::{Asking, First, Known, MAX_WAITING, Relay, Waiting, WaitingKind, tag};
use super::terms::{self, Party};
use super::{Exchange, NodeId, Owed, What};
use crate::anchor::AnchorError;
use crate::border::sockets::SocketWork;
use crate::border::{Alarm, Core};
use crate::call::inside::refuse;
use crate::call::pass::{Carried, Role, has_sdp, is_multipart, session_of};
use crate::call::{Call, CallKey, LinkKind, MAX_LINKS, Phase, Side};
use crate::config::{InterfaceId, MediaSecurity, TrunkId};
use core::time::Duration;
use engine::{DropReason, Note, SocketId, SocketKind, Time};
use sip::{Endpoint, Indication, LegId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use wire::ng::Value;
use wire::sip::{Message, Method, Session};

/// How long between two looks at whether a node still knows a call.
const LOOK: Duration = Duration::from_secs(30);
/// Octets of a node's words in an event.
const WORDS: usize = 160;

/// Why a command came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    NoAnswer,
    Unreachable,
}

impl Silence {
    fn text(self) -> &'static str {
        match self {
            Silence::NoAnswer => "no answer",
            Silence::Unreachable => "unreachable",
        }
    }
}

fn words(reply: &Value) -> String {
    let why = text(reply, "error-reason")
        .or_else(|| text(reply, "message"))
        .or_else(|| text(reply, "result"))
        .unwrap_or(b"a reply without a result");
    let why = why.get(..why.len().min(WORDS)).unwrap_or_default();
    let shown = String::from_utf8_lossy(why).into_owned();
    shown.chars().filter(|c| !c.is_control()).collect()
}

/// Whether a reply says that the node has never heard of the call.
fn is_unknown(reply: &Value) -> bool {
    text(reply, "error-reason").is_some_and(|why| {
        let why = why.to_ascii_lowercase();
        why.starts_with(b"unknown call")
    })
}

impl Core {
    /// What a new call has at nodes.
    pub(crate) fn new_relay(&mut self) -> Relay {
        self.nodes.relays += 1;
        Relay::new(self.relay_name())
    }

    /// A name for a call at a node; no other call has it.
    pub(super) fn relay_name(&mut self) -> String {
        let (high, low) = (self.entropy.u64(), self.entropy.u64());
        format!("{high:016x}{low:016x}")
    }

    pub(super) fn relay_mut(&mut self, slot: usize) -> Option<&mut Relay> {
        self.calls.get_mut(slot)?.relay.as_deref_mut()
    }

    fn party<'c>(
        &'c self,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
        usual: &'c MediaSecurity,
    ) -> Party<'c> {
        let security = self.config.security(interface, trunk);
        Party {
            interface: self
                .config
                .interface(interface)
                .and_then(|interface| interface.node_interface.as_deref()),
            security: security.map_or(usual, |security| security),
            profile: None,
        }
    }

    /// What goes with an offer of `from`, where the callee is behind `callee`.
    fn terms(&self, call: &Call, from: Side, callee: (InterfaceId, Option<TrunkId>)) -> Value {
        let usual = MediaSecurity::default();
        let caller = (
            *call.interfaces.get(Side::Caller),
            *call.trunks.get(Side::Caller),
        );
        let profiles = call.relay.as_deref().map(|relay| relay.profiles);
        let of = |side: Side| {
            let (interface, trunk) = match side {
                Side::Caller => caller,
                Side::Callee => callee,
            };
            let profile = profiles.and_then(|profiles| profiles.get(side.index()).copied());
            Party {
                profile: profile.flatten(),
                ..self.party(interface, trunk, &usual)
            }
        };
        terms::offer(of(from), of(from.other()), self.config.media.dscp)
    }

    /// The offer of an INVITE, as the hop gets to see it, where the node has said so; else the hop waits ([`Relay::holds`]).
    ///
    /// # Errors
    /// [`AnchorError`].
    pub(crate) fn relay_offer(
        &mut self,
        slot: usize,
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
        let hides = self.config.hiding(callee.0).is_some();
        let Some(relay) = self.relay_mut(slot) else {
            return Ok(Carried::Untouched);
        };
        relay.holds = false;
        if let Some(why) = relay.failed.take() {
            return Err(why);
        }
        if let Some(first) = relay.first.as_ref().filter(|first| first.terms == terms) {
            let mut sdp = first.sdp.clone();
            let origin = Origin::of(&sdp).map(Box::new);
            if hides {
                crate::hiding::description(&mut sdp, 0);
            }
            session.replace(invite.body(), |out| out.extend_from_slice(&sdp), out);
            relay.open = Some(Side::Caller);
            relay.set_origin(Side::Callee, origin);
            return Ok(Carried::Rewritten);
        }
        if !relay.is_busy() {
            self.relay_ask(slot, Side::Caller, Role::Offer, sdp, Some(terms))?;
        }
        if let Some(relay) = self.relay_mut(slot) {
            relay.holds = true;
        }
        Ok(Carried::Nothing)
    }

    /// Asks the call's node about a description of `from`; a node is chosen where there is none yet.
    fn relay_ask(
        &mut self,
        slot: usize,
        from: Side,
        role: Role,
        sdp: &[u8],
        first: Option<Value>,
    ) -> Result<(), AnchorError> {
        self.judge_side(slot, from, sdp)?;
        let now = self.now;
        let key = self.key_of(slot);
        let node = self.relay_node(slot)?;
        let call = self.calls.get(slot).ok_or(AnchorError::NoNode)?;
        let relay = call.relay.as_deref().ok_or(AnchorError::NoNode)?;
        let offers = role == Role::Offer;
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
        // Whoever offered stands first, in its answer, too.
        let (one, other) = match offers {
            true => (from, from.other()),
            false => (from.other(), from),
        };
        body.set("command", command);
        body.set("call-id", relay.call_id.as_str());
        body.set("from-tag", tag(one));
        let known = relay.established && first.is_none() && call.answered_at.is_some();
        if !offers || known {
            body.set("to-tag", tag(other));
        }
        let supported: Vec<Value> = vec!["load limit".into()];
        body.set("supports", supported);
        body.set("sdp", sdp);
        let began = match relay.established {
            true => relay.began,
            false => one,
        };
        let what = What::Exchange(Exchange {
            key,
            node,
            command,
            call_id: relay.call_id.clone(),
            began,
        });
        // As many as may be are under way where it takes no more.
        let id = self.nodes.ask(node, what, &body, now);
        let id = id.ok_or(AnchorError::NoNode)?;
        self.open_command_socket(node);
        if let Some(relay) = self.relay_mut(slot) {
            relay.asking = Some(Asking { id, first });
            relay.began = began;
        }
        Ok(())
    }

    /// Asks a node that does not know the call about the INVITE's own offer.
    ///
    /// # Errors
    /// [`AnchorError`].
    pub(super) fn relay_offer_first(
        &mut self,
        slot: usize,
        callee: (InterfaceId, Option<TrunkId>),
        sdp: &[u8],
    ) -> Result<(), AnchorError> {
        let call = self.calls.get(slot).ok_or(AnchorError::NoNode)?;
        let terms = self.terms(call, Side::Caller, callee);
        self.relay_ask(slot, Side::Caller, Role::Offer, sdp, Some(terms))
    }

    /// Holds a description against the policy of its side.
    fn judge_side(&mut self, slot: usize, from: Side, sdp: &[u8]) -> Result<(), AnchorError> {
        let Some(call) = self.calls.get(slot) else {
            return Ok(());
        };
        let number = call.number;
        let usual = MediaSecurity::default();
        let (interface, trunk) = (*call.interfaces.get(from), *call.trunks.get(from));
        let judged = terms::judge(sdp, self.party(interface, trunk, &usual).security);
        let holds = terms::holds(sdp);
        if let Some(relay) = self.relay_mut(slot)
            && let Some(holding) = relay.holding.get_mut(from.index())
        {
            *holding = holds;
        }
        match judged {
            Ok(profile) => {
                if let Some(relay) = self.relay_mut(slot)
                    && let Some(known) = relay.profiles.get_mut(from.index())
                {
                    *known = profile.or(*known);
                }
                Ok(())
            }
            Err((error, why)) => {
                let now = self.now;
                if let Some((line, why)) = why {
                    self.events.tell(now, || Note::MediaNotKeyed {
                        call: number,
                        side: from.name().to_owned(),
                        line: line as u64,
                        why: why.to_owned(),
                    });
                }
                Err(error)
            }
        }
    }

    /// The node of a call; one is chosen where it has none.
    fn relay_node(&mut self, slot: usize) -> Result<NodeId, AnchorError> {
        let key = self.key_of(slot);
        let now = self.now;
        let Some(call) = self.calls.get_mut(slot) else {
            return Err(AnchorError::NoNode);
        };
        let number = call.number;
        let Some(relay) = call.relay.as_deref_mut() else {
            return Err(AnchorError::NoNode);
        };
        if let Some(node) = relay.node {
            return match self.nodes.is_down(node) {
                true => Err(AnchorError::NoNode),
                false => Ok(node),
            };
        }
        let node = self.nodes.choose(&relay.tried).ok_or(AnchorError::NoNode)?;
        self.nodes.begin(node);
        relay.node = Some(node);
        relay.look = Some(self.timers.schedule(now + LOOK, Alarm::NodeLook(key)));
        let call_id = relay.call_id.clone();
        let name = self.nodes.name(node).to_owned();
        self.events.tell(now, || Note::MediaNodeChosen {
            call: number,
            node: name,
            call_id,
        });
        Ok(node)
    }

    /// The socket for commands to a node.
    fn open_command_socket(&mut self, node: NodeId) {
        if let Some(control) = self.nodes.control(node) {
            self.open_socket_towards(control);
        }
    }

    fn open_socket_towards(&mut self, control: SocketAddr) {
        let index = usize::from(control.is_ipv6());
        if self.nodes.sockets.get(index).is_none_or(Option::is_some) {
            return;
        }
        let socket = self.next_socket();
        let any: IpAddr = match control.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.plane.work.push_back(SocketWork::Open {
            socket,
            kind: SocketKind::UdpSignalling,
            local: SocketAddr::new(any, 0),
        });
        if let Some(slot) = self.nodes.sockets.get_mut(index) {
            *slot = Some(socket);
        }
    }

    /// Whether a socket is one for commands to nodes.
    pub(crate) fn is_for_nodes(&self, socket: SocketId) -> bool {
        self.nodes.sockets.contains(&Some(socket))
    }

    /// The description that the node has made of a message's, in whose turn we are.
    pub(crate) fn relay_carry(
        &mut self,
        slot: usize,
        from: Side,
        message: &Message<'_>,
        role: Role,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let session = session_of(message);
        if session == Session::Encoded {
            return Err(AnchorError::Encoded);
        }
        let Some(came) = session.bytes(message.body()) else {
            return Ok(Carried::Untouched);
        };
        let hides = self.calls.get(slot).is_some_and(|call| {
            let interface = *call.interfaces.get(from.other());
            self.config.hiding(interface).is_some()
        });
        let Some(relay) = self.relay_mut(slot) else {
            return Ok(Carried::Untouched);
        };
        // A description that nobody asked about does not pass.
        let sdp = relay.result.take().unwrap_or(Err(AnchorError::NoNode))?;
        let mut sdp = relay.for_side(from.other(), sdp);
        if hides {
            crate::hiding::description(&mut sdp, 0);
        }
        out.extend_from_slice(&sdp);
        match role {
            Role::Offer => {
                relay.open = Some(from);
                relay.last_answer = None;
            }
            Role::Answer => relay.open = None,
            Role::EarlyAnswer => {}
        }
        if role != Role::Offer {
            relay.last_answer = Some(Known {
                from,
                came: came.into(),
                goes: sdp.into(),
            });
        }
        Ok(Carried::Rewritten)
    }

    /// Keeps an indication back where its call's node has to be asked first, or others wait already; whether it does.
    pub(crate) fn waits_for_node(
        &mut self,
        endpoint: &mut Endpoint,
        indication: &Indication<'_>,
        now: Time,
    ) -> bool {
        if self.nodes.relays == 0 || self.resuming {
            return false;
        }
        let Some(leg) = Waiting::leg_of(indication) else {
            return false;
        };
        let Some(slot) = self.slot_of_leg(endpoint, leg) else {
            return false;
        };
        let Some(relay) = self.calls.get(slot).and_then(|call| call.relay.as_deref()) else {
            return false;
        };
        if !relay.is_busy() && self.exchange_of(slot, indication).is_none() {
            return false;
        }
        let full = relay.queue.len() >= MAX_WAITING;
        let Some(waiting) = Waiting::of(indication) else {
            return false;
        };
        if full {
            match waiting.kind {
                WaitingKind::Request(server) | WaitingKind::Pracked(server) => {
                    refuse(endpoint, server, 503, now);
                    return true;
                }
                WaitingKind::Progressed(..) => return true,
                // As many of these as the call has transactions.
                WaitingKind::Answered | WaitingKind::Acked | WaitingKind::Response(_) => {}
            }
        }
        if let Some(relay) = self.relay_mut(slot) {
            relay.queue.push_back(waiting);
        }
        self.relay_go_on(endpoint, slot, now);
        true
    }

    /// What the node is to be asked about this message, if anything: whose description it is, and which.
    fn exchange_of(&self, slot: usize, indication: &Indication<'_>) -> Option<(Side, Role)> {
        let call = self.calls.get(slot)?;
        let relay = call.relay.as_deref()?;
        match *indication {
            Indication::Progressed {
                leg,
                response,
                reliable,
                ..
            } if has_sdp(response) => {
                let set_up = call.set_up.as_deref()?;
                let mut branches = set_up.branches.iter();
                branches.find(|branch| branch.leg == leg && !branch.cancelled)?;
                call.leg(Side::Caller)?;
                match set_up.offered {
                    true => Some((Side::Callee, Role::EarlyAnswer)),
                    false => (reliable && set_up.reliable).then_some((Side::Callee, Role::Offer)),
                }
            }
            Indication::Answered { leg, response } if has_sdp(response) => {
                let set_up = call.set_up.as_deref()?;
                let mut branches = set_up.branches.iter();
                branches.find(|branch| branch.leg == leg && !branch.cancelled)?;
                call.leg(Side::Caller)?;
                if set_up.answered_by.is_some() && !is_multipart(response) {
                    return None;
                }
                let role = match set_up.offered {
                    true => Role::Answer,
                    false => Role::Offer,
                };
                Some((Side::Callee, role))
            }
            Indication::Acked { leg, request } if has_sdp(request) => {
                let from = call.side_of(leg)?;
                let answers = relay.open == Some(from.other());
                (answers && call.ack_due == Some(from.other())).then_some((from, Role::Answer))
            }
            Indication::Pracked { request, .. } if has_sdp(request) => {
                let set_up = call.set_up.as_deref()?;
                set_up.to_prack.front()?;
                let role = match relay.open == Some(Side::Callee) {
                    true => Role::Answer,
                    false => Role::Offer,
                };
                Some((Side::Caller, role))
            }
            Indication::Request { leg, request, .. } if has_sdp(request) => {
                let from = call.side_of(leg)?;
                let invites = request.method() == Method::Invite;
                if !invites && request.method() != Method::Update {
                    return None;
                }
                let glare = |link: &crate::call::Link| link.offer && link.from != from;
                // What is refused anyway is not negotiated.
                let refused = call.phase == Phase::Ending
                    || call.held.is_some()
                    || call.links.len() >= MAX_LINKS
                    || call.join.is_some()
                    || (invites && call.ack_due.is_some())
                    || call.links.iter().any(glare);
                (!refused).then_some((from, Role::Offer))
            }
            Indication::Response {
                leg,
                transaction,
                response,
            } if has_sdp(response) && (200..300).contains(&response.status()) => {
                let mut links = call.links.iter();
                let Some(link) = links.find(|link| link.client == transaction) else {
                    let role = call.join.as_deref()?.awaits(transaction)?;
                    return Some((call.side_of(leg)?, role));
                };
                let to = link.from.other();
                match (link.offer, link.kind) {
                    (true, _) => Some((to, Role::Answer)),
                    (false, LinkKind::Invite) => Some((to, Role::Offer)),
                    (false, _) => None,
                }
            }
            _ => None,
        }
    }

    /// Goes on with what waits, as far as that can be without the node's next word.
    pub(super) fn relay_go_on(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let key = self.key_of(slot);
        loop {
            // Whatever was carried out may have ended the call.
            if self.slot_of(key) != Some(slot) {
                return;
            }
            let Some(relay) = self.relay_mut(slot) else {
                return;
            };
            if relay.asking.is_some() {
                return;
            }
            let Some(waiting) = relay.queue.pop_front() else {
                break;
            };
            let known = relay.result.is_some();
            if let (Ok(message), false) = (Message::parse(&waiting.bytes), known) {
                let exchange = self.exchange_of(slot, &waiting.indication(&message));
                let asked = exchange.is_some_and(|exchange| {
                    self.begin_exchange(slot, waiting.leg, exchange, &message)
                });
                if asked {
                    if let Some(relay) = self.relay_mut(slot) {
                        relay.queue.push_front(waiting);
                    }
                    return;
                }
            }
            self.resume(endpoint, &waiting, now);
            if self.slot_of(key) == Some(slot)
                && let Some(relay) = self.relay_mut(slot)
            {
                relay.result = None;
            }
        }
        self.call_opened_hops(endpoint, slot, now);
    }

    /// Asks about a message's description; `false` where that is known already, or cannot be asked.
    fn begin_exchange(
        &mut self,
        slot: usize,
        leg: LegId,
        (from, role): (Side, Role),
        message: &Message<'_>,
    ) -> bool {
        let session = session_of(message);
        let Some(sdp) = session.bytes(message.body()) else {
            return false;
        };
        if role != Role::Offer {
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
        if role != Role::Offer
            && let Some(relay) = self.relay_mut(slot)
            && let Some(known) = &relay.last_answer
            && known.from == from
            && *known.came == *sdp
        {
            // Said once more, in the answer after an early one: the node has it.
            relay.result = Some(Ok(known.goes.to_vec()));
            return false;
        }
        match self.relay_ask(slot, from, role, sdp, None) {
            Ok(()) => true,
            Err(error) => {
                if let Some(relay) = self.relay_mut(slot) {
                    relay.result = Some(Err(error));
                }
                false
            }
        }
    }

    /// Carries out what has waited.
    fn resume(&mut self, endpoint: &mut Endpoint, waiting: &Waiting, now: Time) {
        if let Ok(message) = Message::parse(&waiting.bytes) {
            self.resuming = true;
            self.dispatch(endpoint, waiting.indication(&message), now);
            self.resuming = false;
        }
    }

    /// Carries out what has waited in calls that are ending: transactions and legs want their due all the same.
    pub(crate) fn flush_waiting(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some(waiting) = self.flushing.pop_front() {
            self.resume(endpoint, &waiting, now);
        }
    }

    /// A re-INVITE that waits was cancelled, and has its answer.
    pub(crate) fn relay_cancelled(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        server: sip::ServerTransaction,
        now: Time,
    ) {
        let Some(relay) = self.relay_mut(slot) else {
            return;
        };
        let of_it = |waiting: &Waiting| matches!(waiting.kind, WaitingKind::Request(other) if other == server);
        let first = relay.queue.front().is_some_and(of_it);
        relay.queue.retain(|waiting| !of_it(waiting));
        if first {
            relay.result = None;
            if let Some(asking) = relay.asking.take_if(|asking| asking.first.is_none()) {
                self.nodes.client.forget(asking.id);
            }
            self.relay_go_on(endpoint, slot, now);
        }
    }

    /// Releases the call's ports at its node. Returns whether the node was asked for its figures.
    pub(crate) fn release_relay(&mut self, slot: usize) -> bool {
        let now = self.now;
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let number = call.number;
        let Some(relay) = call.relay.take() else {
            return false;
        };
        let mut relay = *relay;
        self.nodes.relays = self.nodes.relays.saturating_sub(1);
        self.flushing.append(&mut relay.queue);
        if let Some(timer) = relay.look.take() {
            self.timers.cancel(timer);
        }
        if let Some(asking) = relay.asking.take() {
            self.nodes.client.forget(asking.id);
        }
        if let Some(node) = relay.node {
            let (call_id, began) = (relay.call_id, relay.began);
            let asked = match self.nodes.is_down(node) {
                true => {
                    let owed = Owed {
                        number,
                        call_id,
                        began,
                    };
                    self.nodes.owe(node, owed);
                    false
                }
                false => self.delete_at(node, number, (&call_id, began), true, now),
            };
            self.nodes.end(node);
            return asked;
        }
        false
    }

    /// Ends what a call has at a node; `last`: the call has ended, and waits for its figures. Whether the node is asked.
    pub(super) fn delete_at(
        &mut self,
        node: NodeId,
        number: u64,
        (call_id, began): (&str, Side),
        last: bool,
        now: Time,
    ) -> bool {
        // rtpengine gives figures where a tag is named, and takes the call away with it.
        let body = Value::dictionary()
            .with("command", "delete")
            .with("call-id", call_id)
            .with("from-tag", tag(began))
            .with("delete-delay", 0i64);
        let name = self.nodes.name(node).to_owned();
        let what = What::Delete(number, name, last);
        self.nodes.ask(node, what, &body, now).is_some()
    }

    /// A datagram at a socket for commands.
    pub(crate) fn node_said(
        &mut self,
        endpoint: &mut Endpoint,
        source: SocketAddr,
        bytes: &[u8],
        now: Time,
    ) {
        match self.nodes.client.hear(source, bytes) {
            Heard::Unasked => self.drops.count(DropReason::NgUnasked),
            Heard::Late(what) => {
                // It does not make a node that is down one that works: that answers in time.
                self.drops.count(DropReason::NgLate);
                if let What::Exchange(exchange) = what {
                    self.take_back(&exchange, now);
                }
            }
            Heard::Reply(id, what, reply) => match what {
                What::Check(node) => {
                    self.nodes.has_answered(source);
                    self.nodes.checked(node, Some(&reply));
                }
                What::Exchange(exchange) => {
                    let sdp = match text(&reply, "result") {
                        Some(b"ok") => text(&reply, "sdp"),
                        _ => None,
                    };
                    let outcome = match sdp {
                        Some(sdp) => Ok(sdp.to_vec()),
                        None => Err((words(&reply), is_unknown(&reply))),
                    };
                    self.exchanged(endpoint, (id, &exchange), outcome, now);
                }
                What::Look(key, node) => {
                    let unknown = is_unknown(&reply);
                    let ours = self.is_at(key, node);
                    if ours {
                        self.nodes.looked(node, !unknown, now);
                    }
                    if ours && unknown {
                        self.lost_at(endpoint, key, node, &words(&reply), now);
                    }
                }
                What::Delete(number, node, last) => {
                    self.tell_figures(number, node, &reply, now);
                    if last {
                        let heard = heard(&reply, Side::BOTH.map(tag));
                        self.ended_at_node(number, heard, now);
                    }
                }
            },
        }
        self.nodes_failed(endpoint, now);
        self.tell_of_nodes(now);
    }

    /// Whether a call is at this node, as far as we know, and stays there.
    fn is_at(&self, key: CallKey, node: NodeId) -> bool {
        let call = self.slot_of(key).and_then(|slot| self.calls.get(slot));
        call.and_then(|call| call.relay.as_deref())
            .is_some_and(|relay| relay.node == Some(node) && relay.failing.is_none())
    }

    fn tell_figures(&mut self, call: u64, node: String, reply: &Value, now: Time) {
        if text(reply, "result") != Some(b"ok") {
            return;
        }
        let counted = counted(reply, Side::BOTH.map(tag));
        let [caller, callee] = counted.packets;
        self.events.tell(now, || Note::MediaNodeFigures {
            call,
            node,
            caller,
            callee,
            octets: counted.octets,
            errors: counted.errors,
        });
    }

    /// What became of a description: as it goes on, or why not and whether the node does not know the call.
    fn exchanged(
        &mut self,
        endpoint: &mut Endpoint,
        (id, exchange): (AskId, &Exchange),
        outcome: Result<Vec<u8>, (String, bool)>,
        now: Time,
    ) {
        let (key, node) = (exchange.key, exchange.node);
        let Some(slot) = self.slot_of(key) else {
            return;
        };
        let Some(relay) = self.relay_mut(slot) else {
            return;
        };
        let Some(asking) = relay.asking.take_if(|asking| asking.id == id) else {
            return;
        };
        match outcome {
            Ok(sdp) => {
                relay.established = true;
                match asking.first {
                    Some(terms) => relay.first = Some(First { terms, sdp }),
                    None => relay.result = Some(Ok(sdp)),
                }
            }
            Err((why, unknown)) => {
                let established = relay.established;
                let name = self.nodes.name(node).to_owned();
                let (told, number) = (why.clone(), key.number());
                let command = exchange.command.to_owned();
                self.events.tell(now, || Note::MediaNodeFailed {
                    call: number,
                    node: name,
                    command,
                    why: told,
                });
                if established && unknown && self.is_at(key, node) {
                    self.lost_at(endpoint, key, node, &why, now);
                }
                let Some(relay) = self.relay_mut(slot) else {
                    return;
                };
                if established != relay.established {
                    // One that is being set up has turned to another node.
                    return;
                }
                if established {
                    let failed = Err(AnchorError::NoNode);
                    match (asking.first, self.relay_mut(slot)) {
                        (Some(_), Some(relay)) => relay.failed = Some(AnchorError::NoNode),
                        (None, Some(relay)) => relay.result = Some(failed),
                        (_, None) => {}
                    }
                } else if relay.node == Some(node) {
                    // No side has this node's ports yet: another node may take the call.
                    self.leave_node(slot, node, now);
                }
            }
        }
        self.relay_go_on(endpoint, slot, now);
    }

    /// A node took a description when nobody waited for that any more: what it began there ends, unless the call is there.
    fn take_back(&mut self, exchange: &Exchange, now: Time) {
        let relay = self
            .slot_of(exchange.key)
            .and_then(|slot| self.calls.get(slot)?.relay.as_deref());
        if relay.is_none_or(|relay| relay.node != Some(exchange.node)) {
            let number = exchange.key.number();
            let named = (exchange.call_id.as_str(), exchange.began);
            self.delete_at(exchange.node, number, named, false, now);
        }
    }

    /// A call turns away from a node that did not take it.
    fn leave_node(&mut self, slot: usize, node: NodeId, now: Time) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let Some(relay) = call.relay.as_deref_mut() else {
            return;
        };
        relay.node = None;
        relay.tried.push(node);
        let (call_id, began) = (relay.call_id.clone(), relay.began);
        if let Some(timer) = relay.look.take() {
            self.timers.cancel(timer);
        }
        // It may have begun the call all the same.
        self.delete_at(node, number, (&call_id, began), false, now);
        self.nodes.end(node);
    }

    /// A call's node answers, and has lost it.
    fn lost_at(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        node: NodeId,
        why: &str,
        now: Time,
    ) {
        if let Some(slot) = self.slot_of(key) {
            self.node_failed(endpoint, slot, node, (why, true), now);
        }
    }

    /// It is time to ask whether a node still knows a call.
    pub(crate) fn node_look(&mut self, key: CallKey, now: Time) {
        let Some(slot) = self.slot_of(key) else {
            return;
        };
        let timer = self.timers.schedule(now + LOOK, Alarm::NodeLook(key));
        let Some(relay) = self.relay_mut(slot) else {
            self.timers.cancel(timer);
            return;
        };
        relay.look = Some(timer);
        let stands = relay.established && relay.failing.is_none();
        let node = relay.node.filter(|_| stands);
        if let Some(node) = node.filter(|node| !self.nodes.is_down(*node)) {
            self.look_at(slot, key, node, now);
        }
    }

    /// What is due by time at nodes.
    pub(crate) fn nodes_due(&mut self, endpoint: &mut Endpoint, now: Time) {
        if self.nodes.is_empty() && self.nodes.client.next_deadline().is_none() {
            return;
        }
        for (id, control, what) in self.nodes.client.timeout(now) {
            // Checks alone say that a node is down: another command may be lost for reasons of its own.
            let checks = matches!(what, What::Check(_));
            self.given_up(endpoint, (id, what), Silence::NoAnswer, now);
            if checks {
                self.node_silent(endpoint, control, Silence::NoAnswer, now);
            }
        }
        self.nodes.check(now);
        self.sample_nodes(now);
        self.open_command_sockets();
        self.serve_failures(endpoint, now);
        self.tell_of_nodes(now);
    }

    fn open_command_sockets(&mut self) {
        for control in self.nodes.controls() {
            self.open_socket_towards(control);
        }
    }

    /// The network says that nobody takes commands there.
    pub(crate) fn node_unreachable(
        &mut self,
        endpoint: &mut Endpoint,
        control: SocketAddr,
        now: Time,
    ) {
        self.node_silent(endpoint, control, Silence::Unreachable, now);
        self.tell_of_nodes(now);
    }

    /// A node does not answer: whoever waits for it waits no longer.
    fn node_silent(
        &mut self,
        endpoint: &mut Endpoint,
        control: SocketAddr,
        why: Silence,
        now: Time,
    ) {
        self.nodes.is_silent(control, why.text(), now);
        // Before messages that wait are told so: those of calls that are being set up turn to another node.
        self.nodes_failed(endpoint, now);
        for over in self.nodes.client.give_up(control) {
            self.given_up(endpoint, over, why, now);
        }
    }

    fn given_up(
        &mut self,
        endpoint: &mut Endpoint,
        (id, what): (AskId, What),
        why: Silence,
        now: Time,
    ) {
        match what {
            What::Check(node) => self.nodes.checked(node, None),
            What::Exchange(exchange) => {
                let outcome = Err((why.text().to_owned(), false));
                self.exchanged(endpoint, (id, &exchange), outcome, now);
            }
            // The next look sees; and a node that is gone has no calls.
            What::Delete(number, _, true) => {
                self.ended_at_node(number, Default::default(), now);
            }
            What::Look(..) | What::Delete(..) => {}
        }
    }

    /// Tells what happened to nodes.
    pub(crate) fn tell_of_nodes(&mut self, now: Time) {
        for note in self.nodes.take_notes() {
            self.events.tell(now, || note);
        }
    }
}
