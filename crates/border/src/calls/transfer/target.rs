//! The target of a transfer: an INVITE by policy, with credentials, identity and header rules of its trunk as for any
//! call.

use crate::calls::key::{CallKey, CallSlot};
use crate::calls::setup::hop_hosts::HopHosts;
use crate::calls::setup::hunting::login_at;
use crate::calls::transfer::TransferControl;
use crate::calls::transfer::join::{AwaitedStep, existing_leg_step};
use crate::certificate_names::with_hop_certificate_name;
use crate::headers::{EditList, OWN_SUPPORTED, address_of, text};
use crate::policy::{CallPlan, Facts, HopStep, Plan, StepTarget, decide, decide_for};
use crate::resolve::{LookupChoices, LookupWaiter, placed};
use crate::shared::Alarm;
use ::rules::{Effects, MessageContext};
use anchor::Side;
use config::TrunkId;
use engine::EventKind;
use sip::locate::ResolvedTarget;
use sip::{Failure, Flow, Invite, LegId, MessageContent, Prack, Target};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, NameAddr, Uri};

/// Reason for not calling a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetError {
    /// The next one may be possible.
    Hop,
    /// No other one is possible: a header rule refuses the INVITE with this status.
    Refused(u16),
}

impl TransferControl<'_> {
    /// Calls the next hop of a transfer; fails with `status` if none is left.
    pub(super) fn call_next_transfer(&mut self, slot: CallSlot, status: u16) {
        loop {
            let Some(join) = self.parts.calls.join_mut(slot) else {
                return;
            };
            let index = join.next;
            join.next += 1;
            join.hop = index;
            let Some(hop) = join.hops.get(index).cloned() else {
                return self.transfer_failed(slot, status);
            };
            if let StepTarget::Name(host, transport) = &hop.place {
                let now = self.parts.ctx.now;
                let waiting = LookupWaiter::Transfer(self.parts.calls.key_of(slot), index);
                let config = &self.parts.ctx.config;
                let choices = LookupChoices::from(config, hop.interface, *transport);
                let resolver = &mut self.parts.resolver;
                let Some(result) = resolver.start(host, choices, waiting, now) else {
                    // The transfer continues with the result.
                    return;
                };
                let targets = result.1.clone().unwrap_or_default();
                self.calls().located(result);
                self.insert_targets(slot, index, &targets);
                continue;
            }
            let Some(flow) = self.calls().flow_to(&hop) else {
                continue;
            };
            let flow = with_hop_certificate_name(self.endpoint, &self.parts.ctx.config, flow, &hop);
            match self.invite_target(slot, &hop, flow) {
                Ok(leg) => return self.target_called(slot, leg, (hop, flow)),
                Err(TargetError::Hop) => {}
                Err(TargetError::Refused(status)) => return self.transfer_failed(slot, status),
            }
        }
    }

    /// The name of a target was resolved; without an address the next target is called.
    pub(crate) fn transfer_target_located(
        &mut self,
        key: CallKey,
        index: usize,
        targets: &[ResolvedTarget],
    ) {
        let Some(slot) = self.parts.calls.slot_of(key) else {
            return;
        };
        // The transfer may have ended in the meantime.
        let waits = self.parts.calls.join(slot).is_some_and(|join| {
            let hop = join.hops.get(index).filter(|_| join.hop == index);
            let is_name = hop.is_some_and(|hop| matches!(hop.place, StepTarget::Name(..)));
            is_name && join.stage == AwaitedStep::Target && join.new.is_none()
        });
        if waits {
            self.insert_targets(slot, index, targets);
            self.call_next_transfer(slot, 503);
        }
    }

    /// Inserts the addresses of the name of a hop after it.
    fn insert_targets(&mut self, slot: CallSlot, index: usize, targets: &[ResolvedTarget]) {
        let Some(join) = self.parts.calls.join_mut(slot) else {
            return;
        };
        if let Some(hop) = join.hops.get(index).cloned() {
            let at = join.next.min(join.hops.len());
            join.hops.splice(at..at, placed(&hop, targets));
        }
    }

    /// Sends the INVITE to a hop. The border has no original to copy: the REFER names the target, and its dialog the
    /// caller.
    fn invite_target(
        &mut self,
        slot: CallSlot,
        hop: &HopStep,
        flow: Flow,
    ) -> Result<LegId, TargetError> {
        let now = self.parts.ctx.now;
        let key = self.parts.calls.key_of(slot);
        let config = self.parts.ctx.config.clone();
        let call = self.parts.calls.get(slot).ok_or(TargetError::Hop)?;
        let join = call.kind.join().ok_or(TargetError::Hop)?;
        let trunk = hop.trunk.and_then(|trunk| config.trunk(trunk));
        let hosts = HopHosts::new(&self.parts.listeners, hop, trunk, flow);
        let [caller, called] =
            [&join.from, &join.to].map(|uri| [b"<", uri.as_slice(), b">"].concat());
        let (mut from, mut to) = (Vec::with_capacity(96), Vec::with_capacity(96));
        match NameAddr::parse(&caller) {
            Some(caller) => hosts.from(trunk, &caller, &mut from),
            None => from.extend_from_slice(&caller),
        }
        match NameAddr::parse(&called) {
            Some(called) => hosts.to(&called, &mut to),
            None => to.extend_from_slice(&called),
        }
        let (mut referred_by, replaces) = (join.referred_by.clone(), join.replaces.clone());
        // Nothing is hidden from the system that has written it: Teams finds the call by its parameters.
        let returns = hop.trunk.is_some() && hop.trunk == *call.trunks.get(join.side);
        if config.hiding(hop.interface).is_some() && !returns {
            let host = self.parts.listeners.advertised_host(flow.local);
            referred_by.clear();
            crate::hiding::address(&join.referred_by, &host, &mut referred_by);
        }
        let mut effects = Effects::default();
        let mut edits = EditList::new();
        // An offer in a reliable response could not be answered before the transferee has answered it.
        edits.push(OWN_SUPPORTED);
        if !referred_by.is_empty() {
            edits.push(Edit::Add {
                id: HeaderId::ReferredBy,
                value: &referred_by,
            });
        }
        if !replaces.is_empty() {
            edits.push(Edit::Add {
                id: HeaderId::Replaces,
                value: &replaces,
            });
        }
        let scene = MessageContext {
            uri: Some(&hop.uri),
            from: Some(&from),
            to: Some(&to),
            edits: &edits,
            tags: call.headers.tags.as_deref().map_or(&[], Vec::as_slice),
            ..self
                .parts
                .own_invite_scene((hop.interface, hop.trunk), flow)
        };
        self.parts
            .rules_out_first(&scene, Some((call, slot)), &mut effects);
        if let Some(refusal) = &effects.refusal {
            let (rule, status) = (refusal.rule, refusal.status);
            self.calls().report_refusing_rule(slot, rule, status);
            return Err(TargetError::Refused(status));
        }
        effects.merge(&mut edits);
        let routes: SmallVec<[&[u8]; 2]> = hop.routes.iter().map(|route| &**route).collect();
        let mut invite = Invite::new(Target {
            uri: effects.uri().unwrap_or(&hop.uri),
            flow,
            routes: &routes,
            pinned: matches!(hop.place, StepTarget::Flow(_)),
            tcp_when_large: hosts.takes_tcp,
            feedback: trunk.is_some_and(|trunk| trunk.overload_control),
        });
        invite.from = Some(effects.from().unwrap_or(&from));
        invite.to = Some(effects.to().unwrap_or(&to));
        invite.user = key.0;
        invite.login = login_at(trunk, hop);
        invite.prack = Prack::Automatic;
        invite.content.edits = &edits;
        self.endpoint
            .invite(&invite, now)
            .map_err(|_| TargetError::Hop)
    }

    /// Records the leg of the target.
    fn target_called(&mut self, slot: CallSlot, leg: LegId, (hop, flow): (HopStep, Flow)) {
        let now = self.parts.ctx.now;
        let number = self.parts.calls.get(slot).map_or(0, |call| call.number);
        self.parts.trunks.begin_call(hop.trunk);
        if let Some(target) = hop.trunk_target() {
            self.parts.admission.record_request_to(target, now);
        }
        let config = self.parts.ctx.config.clone();
        self.parts.admission.record_call_to(&config, hop.trunk, now);
        if let Some(settings) = hop.trunk.and_then(|trunk| config.trunk(trunk)) {
            let alarm = Alarm::TransferAnswer(self.parts.calls.key_of(slot), leg);
            let timers = &mut self.parts.ctx.timers;
            timers.schedule(now + settings.answer_timeout, alarm);
        }
        self.parts.ctx.events.tell(now, || EventKind::CallRouted {
            call: number,
            route: "transfer".to_owned(),
            target: hop.label,
            address: address_of(&flow),
            call_id: text(self.endpoint.call_id_of(leg).unwrap_or_default()),
            interface: config.interface_name(hop.interface),
            trunk: config.name_of_trunk(hop.trunk),
        });
        if let Some(join) = self.parts.calls.join_mut(slot) {
            join.new = Some(leg);
            join.on_trunk = hop.trunk;
        }
    }

    /// The target rang for too long.
    pub(crate) fn transfer_ring_timed_out(&mut self, slot: CallSlot) {
        let join = self.parts.calls.join_mut(slot);
        if let Some(join) = join.filter(|join| join.stage == AwaitedStep::Target) {
            join.ring_timer = None;
            self.transfer_failed(slot, 480);
        }
    }

    /// The target has not responded in the answer timeout of its trunk: the next one is called.
    pub(crate) fn transfer_answer_timed_out(&mut self, slot: CallSlot, leg: LegId) {
        let now = self.parts.ctx.now;
        let heard = self.endpoint.has_response(leg);
        let join = self
            .parts
            .calls
            .join_mut(slot)
            .filter(|join| join.is_new(leg) && join.stage == AwaitedStep::Target && !heard);
        let Some(join) = join else {
            return;
        };
        join.new = None;
        let trunk = join.on_trunk.take();
        self.parts.trunks.end_call(trunk);
        self.endpoint.set_user(leg, 0);
        let _ = self.endpoint.cancel(leg, &MessageContent::default(), now);
        self.call_next_transfer(slot, 408);
    }

    /// The new leg was not answered.
    pub(crate) fn transfer_leg_failed(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        why: Failure,
        response: Option<&Message<'_>>,
    ) {
        let Some(join) = self.parts.calls.join_mut(slot) else {
            return;
        };
        if join.new != Some(leg) {
            return;
        }
        join.new = None;
        let trunk = join.on_trunk.take();
        let status = match why {
            Failure::Response => response.map_or(500, Message::status),
            Failure::TimedOut => 408,
            Failure::Transport => 503,
            Failure::CancelCrossed | Failure::CancelledWithoutResponse => 487,
        };
        // All contacts of a registered user are tried, as in a call.
        let contact_is_next = (join.hops.get(join.next)).is_some_and(|hop| hop.trunk.is_none());
        let moves_on = match contact_is_next {
            true => status < 600 && status != 603,
            false => why != Failure::Response || status == 503,
        };
        if !moves_on {
            join.next = join.hops.len();
        }
        self.parts.trunks.end_call(trunk);
        self.call_next_transfer(slot, status);
    }

    /// The plan of a transfer, by policy as for a call of the referrer. A target at the host of its own trunk is called
    /// there with the URI of Refer-To, whose parameters may name the call (RFC 3515 section 2.4.2): the user part alone
    /// would be a number for the routes.
    ///
    /// # Errors
    /// The status of the refusal.
    pub(super) fn plan_transfer(
        &mut self,
        slot: CallSlot,
        from: Side,
        uri: &[u8],
        request: &Message<'_>,
    ) -> Result<CallPlan, u16> {
        let call = self.parts.calls.get(slot).ok_or(481u16)?;
        let facts = Facts {
            interface: *call.interfaces.get(from),
            trunk: *call.trunks.get(from),
            authenticated: call.trunks.get(from).is_some(),
            exempt: false,
            from: request.from().map(|from| from.uri).unwrap_or_default(),
            to: uri,
            random: self.parts.ctx.entropy.u64(),
            calls: self.parts.total_calls(),
            draining: self.parts.worker.is_draining(),
        };
        let config = &self.parts.ctx.config;
        let own = facts.trunk.filter(|trunk| self.is_at_trunk(*trunk, uri));
        let plan = match own {
            Some(trunk) => decide_for(trunk, config, &facts, &self.parts.view()),
            None => decide(config, &facts, &self.parts.view()),
        };
        match plan {
            Plan::Call(mut plan) => {
                if own.is_some() {
                    for step in &mut plan.steps {
                        step.uri = uri.to_vec();
                    }
                }
                Ok(plan)
            }
            Plan::Refuse(refusal) => Err(refusal.status),
        }
    }

    /// Whether a transfer from this side to a URI returns to the trunk of that side; see
    /// [`TransferControl::plan_transfer`].
    pub(super) fn is_at_transferor(&self, slot: CallSlot, from: Side, uri: &[u8]) -> bool {
        let call = self.parts.calls.get(slot);
        let trunk = call.and_then(|call| *call.trunks.get(from));
        trunk.is_some_and(|trunk| self.is_at_trunk(trunk, uri))
    }

    /// Whether the host of a URI is that of a trunk, and not ours: a system on the same machine has our address.
    /// Without a user part, which routes need, it is that of the transferor: large services have more hosts than
    /// targets.
    fn is_at_trunk(&self, trunk: TrunkId, uri: &[u8]) -> bool {
        let parsed = Uri::parse(uri).filter(Uri::is_sip);
        let (Some(settings), Some(parsed)) = (self.parts.ctx.config.trunk(trunk), parsed) else {
            return false;
        };
        let host = parsed.host_port().to_string();
        let step = HopStep {
            uri: uri.to_vec(),
            ..existing_leg_step(settings.interface, Some(trunk))
        };
        let theirs = parsed.user.is_none() || step.is_at(settings);
        theirs && !self.parts.listeners.is_ours(host.as_bytes())
    }
}
