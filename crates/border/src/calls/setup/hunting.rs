//! Hunting: calls the hops of a plan, one group after the other, until one answers.

use crate::bodies::{Carried, CarriedBody, SdpRole, has_sdp, offer_again};
use crate::calls::ended::EndedBy;
use crate::calls::key::CallSlot;
use crate::calls::relay::{Forwarded, HeaderChanges};
use crate::calls::setup::hop_hosts::HopHosts;
use crate::calls::table::OngoingCalls;
use crate::calls::{Branch, CallStage, MediaAnchor, SetUp};
use crate::certificate_names::with_hop_certificate_name;
use crate::components::{Calls, Components};
use crate::headers::{EditList, OWN_SUPPORTED, address_of, text};
use crate::identity::{ANONYMOUS, RequestedPrivacy};
use crate::media::MediaPeer;
use crate::policy::{HopStep, SkipReason, SkippedTrunk, StepTarget};
use crate::responses::StatusLine;
use crate::shared::Alarm;
use anchor::{AnchorError, CallMedia, EarlyMedia, Side};
use config::{Trunk, TrunkId};
use engine::{EventKind, Reason};
use sip::{ChallengedInvite, Flow, Invite, LegId, Login, Prack, Target};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message};

/// The header that limits parallel forking (RFC 5393 section 5).
pub(crate) const MAX_BREADTH: &[u8] = b"Max-Breadth";
/// Its default (section 5.3.3).
const BREADTH: u16 = 60;

/// The reason for not calling a hop.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HopError {
    /// The next hop may be possible.
    Hop(Reason),
    /// No other hop is possible.
    Call(u16, Reason),
    /// The rule of this index refuses the call, with a status and a reason phrase.
    Rule(u16, StatusLine),
}

impl HopError {
    /// No other hop is possible, with the status of the reason.
    fn call(reason: Reason) -> HopError {
        HopError::Call(reason.status(), reason)
    }
}

impl SetUp {
    /// How many hops of the next group are called at once; the breadth is divided among them.
    fn divide_breadth(&mut self, group: u16) -> u16 {
        let rest = self.hops.get(self.next..).unwrap_or_default();
        let members = rest.iter().take_while(|hop| hop.group == group).count();
        let breadth = self.breadth.limit.unwrap_or(BREADTH).max(1);
        let count = u16::try_from(members).unwrap_or(u16::MAX).clamp(1, breadth);
        self.breadth.share = (self.breadth.limit.is_some() || count > 1).then_some(breadth / count);
        count
    }

    /// Records that a hop could not be called.
    fn hop_not_called(&mut self, why: HopError) {
        if !matches!(why, HopError::Hop(_)) {
            self.next = self.hops.len();
        }
        match why {
            HopError::Hop(reason) => self.best.offer(reason.status(), None, reason),
            HopError::Call(status, reason) => self.best.offer(status, None, reason),
            HopError::Rule(_, line) => self.best.offer_refusal(line),
        }
    }
}

fn is_removal_of_credentials(edit: &Edit<'_>) -> bool {
    matches!(
        edit,
        Edit::Remove(HeaderId::Authorization | HeaderId::ProxyAuthorization)
    )
}

/// The credentials of the border at a hop of a trunk; none for other hosts.
pub(crate) fn login_at<'t>(trunk: Option<&'t Trunk>, hop: &HopStep) -> Option<Login<'t>> {
    let login = trunk.filter(|_| !hop.foreign)?.credentials.as_ref()?;
    Some(Login {
        user: login.username.as_bytes(),
        password: login.password.as_bytes(),
    })
}

/// A hop that is being called.
#[derive(Clone, Copy, Debug)]
struct HopTarget {
    slot: CallSlot,
    /// Index into [`SetUp::hops`].
    index: usize,
    flow: Flow,
}

impl Calls<'_> {
    /// Calls the next group of hops; ends the call if none is left and nothing is in progress.
    pub(crate) fn call_next_hops(&mut self, slot: CallSlot) {
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        let invite = std::mem::take(&mut set_up.invite);
        if let Ok(message) = Message::parse(&invite) {
            self.call_next_hops_with(slot, &message);
        }
        if let Some(set_up) = self.parts.calls.set_up_mut(slot) {
            set_up.invite = invite;
        }
        self.settle_set_up(slot);
    }

    /// The same with the parsed INVITE; the caller continues with [`Calls::settle_set_up`].
    pub(crate) fn call_next_hops_with(&mut self, slot: CallSlot, invite: &Message<'_>) {
        loop {
            if self
                .parts
                .calls
                .get(slot)
                .is_none_or(|call| call.stage != CallStage::ExpectAnswer)
            {
                return;
            }
            let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
                return;
            };
            if set_up.is_busy() {
                return;
            }
            let Some(group) = set_up.hops.get(set_up.next).map(|hop| hop.group) else {
                return;
            };
            // The remainder of a group that exceeds the breadth is called after these have failed.
            let mut broad = set_up.divide_breadth(group);
            while broad > 0 {
                broad -= 1;
                let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
                    return;
                };
                let index = set_up.next;
                if set_up.hops.get(index).is_none_or(|hop| hop.group != group) {
                    break;
                }
                set_up.next += 1;
                self.begin_hop(slot, index, invite);
            }
        }
    }

    /// Calls a hop, after resolution of its name if necessary.
    fn begin_hop(&mut self, slot: CallSlot, index: usize, invite: &Message<'_>) {
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        let Some(hop) = call.kind.set_up().and_then(|set_up| set_up.hops.get(index)) else {
            return;
        };
        if matches!(hop.place, StepTarget::Name(..)) {
            return self.parts.locate_hop(slot, index, invite);
        }
        let Some(flow) = self.flow_to(hop) else {
            if let Some(set_up) = self.parts.calls.set_up_mut(slot) {
                set_up.hop_not_called(HopError::Hop(Reason::NoListener));
            }
            return;
        };
        let trunk = hop.trunk;
        let flow = with_hop_certificate_name(self.endpoint, &self.parts.ctx.config, flow, hop);
        let target = HopTarget { slot, index, flow };
        // Counted before the INVITE is sent: another worker may send one to the same trunk at this moment.
        let Components { ctx, admission, .. } = &mut *self.parts;
        let counted = match admission.admit_call_to(ctx, trunk, invite) {
            Ok(counted) => counted,
            Err(exceeded) => return self.skip_hop_by_rate(slot, exceeded, invite),
        };
        let called = self.call_hop(target, invite);
        if let Some(counted) = counted
            && !matches!(called, Ok(true))
        {
            self.parts.admission.withdraw_call(counted);
        }
        if let Err(why) = called {
            if let HopError::Rule(rule, line) = &why {
                self.report_refusing_rule(slot, *rule, line.status);
            }
            if let Some(set_up) = self.parts.calls.set_up_mut(slot) {
                set_up.hop_not_called(why);
            }
        }
    }

    /// Does not call a hop, because its trunk has got as many calls in a second as it takes.
    fn skip_hop_by_rate(
        &mut self,
        slot: CallSlot,
        (trunk, max_calls_per_s): (TrunkId, u32),
        invite: &Message<'_>,
    ) {
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        set_up.hop_not_called(HopError::Hop(Reason::TrunkRate));
        let route = set_up.route.to_string();
        let reason = SkipReason::Rate { max_calls_per_s };
        let call_id = invite.call_id().unwrap_or_default();
        self.parts
            .report_skipped_trunks(call_id, &route, &[SkippedTrunk { trunk, reason }]);
    }

    pub(crate) fn report_refusing_rule(&mut self, slot: CallSlot, rule: u16, status: u16) {
        let Some(call) = self.parts.calls.get(slot).map(|call| call.number) else {
            return;
        };
        let ctx = &mut self.parts.ctx;
        let rule = ctx.config.rules.name(rule).to_owned();
        ctx.events
            .tell(ctx.now, || EventKind::RuleRefused { rule, call, status });
    }

    /// Sends the offer and the INVITE to a hop. Returns whether they were sent: the hop may wait for media sockets.
    fn call_hop(&mut self, target: HopTarget, invite: &Message<'_>) -> Result<bool, HopError> {
        let HopTarget { slot, index, flow } = target;
        let mut buffers = std::mem::take(&mut self.parts.calls.buffers);
        buffers.sdp.clear();
        let placed = self.offer_to_hop(target, invite, &mut buffers.sdp);
        let result = match placed {
            Ok(_) if self.waits_for_sockets(slot, index) => Ok(None),
            Ok(carried) => {
                let body = CarriedBody {
                    carried,
                    sdp: &buffers.sdp,
                };
                self.send_invite(target, invite, body).map(Some)
            }
            Err(error) => Err(self.anchor_refusal(error)),
        };
        self.parts.calls.buffers = buffers;
        let Some((leg, mark)) = result? else {
            return Ok(false);
        };
        if let (Some(mark), Some(call)) = (mark, self.parts.calls.get_mut(slot)) {
            // An INVITE that returns with the Request-URI set by header rules has looped.
            call.uri_hash = mark;
        }
        self.branch_began(slot, index, (leg, &flow));
        Ok(true)
    }

    /// Calls the hops that waited for media sockets.
    pub(crate) fn call_opened_hops(&mut self, slot: CallSlot) {
        let Some(set_up) = self.parts.calls.set_up_mut(slot) else {
            return;
        };
        let opening = std::mem::take(&mut set_up.opening);
        if opening.is_empty() {
            return;
        }
        let invite = std::mem::take(&mut set_up.invite);
        if let Ok(message) = Message::parse(&invite) {
            for index in opening {
                self.begin_hop(slot, usize::from(index), &message);
            }
        }
        if let Some(set_up) = self.parts.calls.set_up_mut(slot) {
            set_up.invite = invite;
        }
        self.call_next_hops(slot);
    }

    /// Sends the INVITE to a hop. Returns the leg, and the hash of the Request-URI if header rules changed it.
    fn send_invite(
        &mut self,
        HopTarget { slot, index, flow }: HopTarget,
        invite: &Message<'_>,
        body: CarriedBody<'_>,
    ) -> Result<(LegId, Option<u64>), HopError> {
        let now = self.parts.ctx.now;
        let key = self.parts.calls.key_of(slot);
        let config = self.parts.ctx.config.clone();
        let mut call_id = Vec::with_capacity(48);
        let challenged = self
            .parts
            .calls
            .challenged_leg(&self.parts.ctx, slot, invite);
        if challenged.is_some()
            && let Some(set_up) = self.parts.calls.set_up_mut(slot)
        {
            set_up.was_challenged = true;
        }
        match &challenged {
            Some(before) => call_id.extend_from_slice(&before.call_id),
            None => self.parts.calls.call_id(
                &mut self.parts.ctx.entropy,
                self.endpoint,
                key,
                &mut call_id,
            ),
        }
        self.parts.calls.set_destination(slot, index);
        let call = self
            .parts
            .calls
            .get(slot)
            .ok_or(HopError::call(Reason::CallOver))?;
        let set_up = call
            .kind
            .set_up()
            .ok_or(HopError::call(Reason::AlreadyAnswered))?;
        let hop = set_up
            .hops
            .get(index)
            .ok_or(HopError::Hop(Reason::NoSuchHop))?;
        let trunk = hop.trunk.and_then(|trunk| config.trunk(trunk));
        let placed = HopHosts::new(&self.parts.listeners, hop, trunk, flow);
        let (mut from, mut to) = (Vec::with_capacity(96), Vec::with_capacity(96));
        let caller = invite
            .from()
            .map_err(|_| HopError::call(Reason::UnreadableFrom))?;
        placed.from(trunk, &caller, &mut from);
        let boundary = call.boundary(&self.parts.ctx.config, Side::Caller, set_up.user.as_deref());
        let requested = RequestedPrivacy::of(invite);
        if boundary.must_refuse(requested) {
            return Err(HopError::call(Reason::PrivacyNeedsMedia));
        }
        if boundary.hides_caller(requested) {
            from.clear();
            from.extend_from_slice(ANONYMOUS);
        }
        let called = invite
            .to()
            .map_err(|_| HopError::call(Reason::UnreadableTo))?;
        placed.to(&called, &mut to);
        let share = set_up.breadth.share.map(|share| share.to_string());
        let mut changes = HeaderChanges::default();
        let HeaderChanges { texts, effects } = &mut changes;
        let mut edits = EditList::new();
        let forwarded = Forwarded {
            call,
            from: Side::Caller,
            message: invite,
            host: Some((&placed.from_host, flow.transport)),
        };
        self.own_edits(forwarded, &boundary, texts, &mut edits);
        if challenged.is_some() && !call.consumes_credentials(&config, Side::Caller) {
            // A peer on this way has challenged the same INVITE.
            edits.retain(|edit| !is_removal_of_credentials(edit));
        }
        if !set_up.early.reliable && !set_up.offered {
            // The answer to an offer in a reliable response belongs in PRACK, which this caller does not support.
            edits.push(OWN_SUPPORTED);
        }
        if set_up.breadth.limit.is_some() {
            edits.push(Edit::RemoveNamed(MAX_BREADTH));
        }
        if let Some(share) = &share {
            edits.push(Edit::AddNamed {
                name: MAX_BREADTH,
                value: share.as_bytes(),
            });
        }
        let scene = ::rules::MessageContext {
            uri: Some(&hop.uri),
            from: Some(&from),
            to: Some(&to),
            edits: &edits,
            tags: call.headers.tags.as_deref().map_or(&[], Vec::as_slice),
            user: call.user_of(Side::Caller),
            ..self
                .parts
                .first_scene((hop.interface, hop.trunk), flow, invite)
        };
        self.parts
            .rules_out_first(&scene, Some((call, slot)), effects);
        let effects = &*effects;
        if let Some(refusal) = &effects.refusal {
            return Err(HopError::Rule(refusal.rule, refusal.into()));
        }
        let uri = effects.uri().unwrap_or(&hop.uri);
        let (from, to) = (effects.from().unwrap_or(&from), effects.to().unwrap_or(&to));
        let mark = effects.uri().map(|uri| self.parts.calls.mark_of(uri));
        effects.merge(&mut edits);
        let routes: SmallVec<[&[u8]; 2]> = hop.routes.iter().map(|route| &**route).collect();
        let request = Invite {
            target: Target {
                uri,
                flow,
                routes: &routes,
                pinned: matches!(hop.place, StepTarget::Flow(_)),
                tcp_when_large: placed.takes_tcp,
                feedback: trunk.is_some_and(|trunk| trunk.overload_control),
            },
            from: Some(from),
            to: Some(to),
            call_id: Some(&call_id),
            repeats: challenged.as_ref().map(|before| ChallengedInvite {
                tag: &before.tag,
                cseq: before.cseq,
            }),
            content: Self::passed(invite, &edits, body.of(invite)),
            user: key.0,
            login: login_at(trunk, hop),
            prack: if set_up.early.reliable {
                Prack::Handler
            } else {
                Prack::Automatic
            },
        };
        self.endpoint
            .invite(&request, now)
            .map(|leg| (leg, mark))
            .map_err(|refused| match refused {
                sip::Refused::Full => HopError::call(Reason::TableFull),
                sip::Refused::TooLarge => HopError::call(Reason::TooLarge),
                _ => HopError::Hop(Reason::Unreachable),
            })
    }

    /// Records an outgoing leg.
    fn branch_began(&mut self, slot: CallSlot, index: usize, (leg, flow): (LegId, &Flow)) {
        let now = self.parts.ctx.now;
        let key = self.parts.calls.key_of(slot);
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let number = call.number;
        let Some(set_up) = call.kind.set_up_mut() else {
            return;
        };
        set_up.branches.push(Branch {
            leg,
            hop: index as u16,
            heard: false,
            cancelled: false,
        });
        let Some(hop) = set_up.hops.get(index) else {
            return;
        };
        let (trunk, target) = (hop.trunk, hop.trunk_target());
        call.last_trunk = trunk;
        let config = self.parts.ctx.config.clone();
        self.parts.ctx.events.tell(now, || EventKind::CallRouted {
            call: number,
            route: match hop.redirected {
                true => "redirect".to_owned(),
                false => set_up.route.to_string(),
            },
            target: hop.label.clone(),
            address: address_of(flow),
            call_id: text(self.endpoint.call_id_of(leg).unwrap_or_default()),
            interface: config.interface_name(hop.interface),
            trunk: config.name_of_trunk(trunk),
        });
        if let Some(timeout) = trunk
            .and_then(|trunk| self.parts.ctx.config.trunk(trunk))
            .map(|trunk| trunk.answer_timeout)
        {
            let alarm = Alarm::AnswerTimeout(key, leg);
            set_up.timers.answer = Some(self.parts.ctx.timers.schedule(now + timeout, alarm));
        }
        if let Some(target) = target {
            self.parts.admission.record_request_to(target, now);
        }
        self.parts.trunks.begin_call(trunk);
    }

    /// Whether a hop has to wait until the media sockets of its offer are open.
    fn waits_for_sockets(&mut self, slot: CallSlot, index: usize) -> bool {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return false;
        };
        let plane = &mut self.parts.media.plane;
        let held = match &mut call.media {
            MediaAnchor::Node(relay) => relay.defers_hop,
            MediaAnchor::Border(media) => media.defer_until_open(plane),
            MediaAnchor::None => false,
        };
        if held && let Some(set_up) = call.kind.set_up_mut() {
            set_up.opening.push(index as u16);
        }
        held
    }

    fn anchor_refusal(&mut self, error: AnchorError) -> HopError {
        if let AnchorError::Exhausted(pool) = error {
            self.parts.media.ports_exhausted(&mut self.parts.ctx, pool);
        }
        HopError::Call(error.status(), error.reason())
    }

    /// Allocates ports for the offer, or offers the same ports again at later hops.
    fn offer_to_hop(
        &mut self,
        HopTarget { slot, index, flow }: HopTarget,
        invite: &Message<'_>,
        sdp: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let Some(call) = self.parts.calls.get(slot) else {
            return Ok(Carried::Untouched);
        };
        if call.media.node().is_some() {
            let hop = call.kind.set_up().and_then(|set_up| set_up.hops.get(index));
            let Some(hop) = hop else {
                return Ok(Carried::Untouched);
            };
            let callee = (hop.interface, hop.trunk);
            return self.parts.relay_offer(slot, callee, invite, sdp);
        }
        let Some(set_up) = call.kind.set_up().filter(|set_up| set_up.anchor) else {
            return Ok(Carried::Untouched);
        };
        let Some(hop) = set_up.hops.get(index) else {
            return Ok(Carried::Untouched);
        };
        let group = set_up.hops.iter().filter(|other| other.group == hop.group);
        let parallel = group.count() > 1;
        let callee = self.parts.media.media_side(
            &self.parts.ctx.config,
            hop.interface,
            hop.trunk,
            MediaPeer::new(flow.remote.ip()),
        )?;
        let repeated = call.media.anchored().is_some();
        if !repeated {
            let caller = self.parts.media.media_side(
                &self.parts.ctx.config,
                *call.interfaces.get(Side::Caller),
                *call.trunks.get(Side::Caller),
                MediaPeer::of_message(set_up.source.ip(), invite),
            )?;
            let key = self.parts.calls.key_of(slot);
            let gated = [*call.interfaces.get(Side::Caller), hop.interface]
                .into_iter()
                .filter_map(|interface| self.parts.ctx.config.interface(interface))
                .any(|interface| interface.gate_early_media);
            let mut media = CallMedia::new(key.0, [caller, callee]).with_number(call.number);
            if gated {
                media = media.with_early_media(EarlyMedia::default());
            }
            if let Some(call) = self.parts.calls.get_mut(slot) {
                if !has_sdp(invite) {
                    media.reserve(&mut self.parts.media.plane)?;
                }
                call.media = MediaAnchor::Border(Box::new(media));
            }
            return self.carry_body(slot.side(Side::Caller), invite, SdpRole::Offer, sdp);
        }
        let Some(media) = self.parts.calls.media_mut(slot) else {
            return Ok(Carried::Untouched);
        };
        let plane = &mut self.parts.media.plane;
        match parallel {
            true => media.add_branch(plane, callee)?,
            false => media.change_side(plane, Side::Callee, callee)?,
        }
        if !has_sdp(invite) {
            return Ok(Carried::Untouched);
        }
        offer_again(media, &mut self.parts.media.plane, invite, sdp);
        Ok(Carried::Rewritten)
    }

    /// Puts the media parameters of a hop into force, whose description is applied next.
    pub(crate) fn select_media_side(&mut self, slot: CallSlot, index: usize) {
        let call = self.parts.calls.get(slot);
        let set_up = call.and_then(|call| call.kind.set_up());
        // A single hop has them already.
        let Some(set_up) = set_up.filter(|set_up| set_up.anchor && set_up.hops.len() > 1) else {
            return;
        };
        let Some(hop) = set_up.hops.get(index) else {
            return;
        };
        let remote = match &hop.place {
            StepTarget::Address(remote, _) => remote.ip(),
            StepTarget::Flow(flow) => flow.remote.ip(),
            StepTarget::Name(..) => return,
        };
        let media = &mut self.parts.media;
        let config = &self.parts.ctx.config;
        let side = media.media_side(config, hop.interface, hop.trunk, MediaPeer::new(remote));
        if let (Ok(side), Some(anchored)) = (side, self.parts.calls.media_mut(slot)) {
            anchored.select_branch(&mut media.plane, &side);
        }
    }

    /// If no branch is left, sends the best final response to the caller and ends the call.
    pub(crate) fn settle_set_up(&mut self, slot: CallSlot) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if call.stage != CallStage::ExpectAnswer {
            return self.finish_if_over(slot);
        }
        let Some(set_up) = call.kind.set_up_mut() else {
            return;
        };
        if set_up.is_busy() || set_up.next < set_up.hops.len() {
            return;
        }
        let best = std::mem::take(&mut set_up.best);
        let status = match best.status {
            0 => 480,
            // RFC 3261 section 16.7 step 6: an overload of the target is not ours. Our own 503 has no message.
            503 if best.message.is_some() => 500,
            status => status,
        };
        let challenged = matches!(status, 401 | 407) && best.message.is_some();
        let why = match best.why.unwrap_or(Reason::NoTarget) {
            Reason::Refused if challenged && !set_up.has_credentials() => {
                self.count_challenge(slot, status);
                Reason::Challenged
            }
            why => why,
        };
        match best.message.filter(|_| status == best.status) {
            Some(message) => self.reject_caller(slot, status, Some(&message)),
            None => {
                let reason = best.phrase;
                self.reject_caller_for(slot, StatusLine { status, reason }, Some(why));
            }
        }
        // Without a final response of a target the border has given up: timeouts, unreachable targets.
        let by = match why {
            Reason::Refused | Reason::Challenged => EndedBy::Side(Side::Callee),
            _ => EndedBy::Border,
        };
        self.end_call(slot, by, why, None);
    }

    /// A target has challenged an INVITE without credentials: the call is not counted, because the caller repeats its
    /// INVITE.
    fn count_challenge(&mut self, slot: CallSlot, status: u16) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        call.summary.counted = true;
        let trunk = call.last_trunk;
        let source = call.kind.set_up().map(|set_up| set_up.source);
        let ctx = &mut self.parts.ctx;
        ctx.counters.offered -= 1;
        let config = &ctx.config;
        ctx.events
            .tell_debug(ctx.now, || EventKind::AuthenticationRequired {
                method: "INVITE".to_owned(),
                status,
                source: source.map_or_else(String::new, |source| source.to_string()),
                trunk: config.name_of_trunk(trunk),
            });
    }
}

impl OngoingCalls {
    /// Records the hop of a leg that is being called as the destination of the call: several may be called at the same
    /// time, on different interfaces. Returns its index.
    pub(crate) fn use_branch(&mut self, slot: CallSlot, leg: LegId) -> Option<usize> {
        let call = self.get_mut(slot)?;
        let set_up = call.kind.set_up()?;
        let mut branches = set_up.branches.iter();
        let index = usize::from(branches.find(|branch| branch.leg == leg)?.hop);
        let hop = set_up.hops.get(index)?;
        let (interface, trunk) = (hop.interface, hop.trunk);
        call.headers.foreign_callee = hop.foreign;
        *call.interfaces.get_mut(Side::Callee) = interface;
        *call.trunks.get_mut(Side::Callee) = trunk;
        Some(index)
    }

    /// Records this hop as the destination of the call.
    fn set_destination(&mut self, slot: CallSlot, index: usize) {
        let Some(hop) = self
            .get(slot)
            .and_then(|call| call.kind.set_up()?.hops.get(index))
        else {
            return;
        };
        let (mark, interface, trunk) = (self.mark_of(&hop.uri), hop.interface, hop.trunk);
        let foreign = hop.foreign;
        if let Some(call) = self.get_mut(slot) {
            call.headers.foreign_callee = foreign;
            call.uri_hash = mark;
            *call.interfaces.get_mut(Side::Callee) = interface;
            *call.trunks.get_mut(Side::Callee) = trunk;
        }
    }
}
