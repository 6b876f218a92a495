//! Header rules applied to messages of calls and to out-of-dialog requests.

use crate::calls::Call;
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::relay::Forwarded;
use crate::components::Components;
use crate::headers::EditList;
use crate::request::{RefusedBy, RequestOrigin, RequestRefusal, address_of_record, user_of_record};
use crate::responses::StatusLine;
use crate::rules::{AdmittedRequest, MAX_TAGS, RuleInput, RuleOutcome, RuleOutput, Tags};
use ::rules::{Effects, MessageContext, RuleDirection, RuleRefusal, RuleTag};
use anchor::Side;
use config::{InterfaceId, TrunkId};
use engine::{DropReason, EventKind, Reason, Transport};
use sip::{Endpoint, Flow, Indication, LegId};
use smallvec::SmallVec;
use wire::sip::{Edit, Message, Method, NameAddr, emit};

impl<'a> RuleInput<'a> {
    fn of(scene: &MessageContext<'a>) -> RuleInput<'a> {
        RuleInput {
            direction: scene.direction,
            message: scene.message,
            method: scene.method,
            status: scene.status,
        }
    }
}

impl Components {
    /// The context of a message for rules.
    fn scene<'a>(
        &self,
        direction: RuleDirection,
        (interface, trunk): (InterfaceId, Option<TrunkId>),
        flow: Option<Flow>,
        message: &'a Message<'a>,
    ) -> MessageContext<'a> {
        MessageContext {
            direction,
            remote: self.ctx.config.peer_ref(interface, trunk),
            peer: flow.map(|flow| flow.remote),
            transport: flow.map_or(Transport::Udp, |flow| flow.transport),
            trusted: self.ctx.config.trusts(interface, trunk),
            user: "",
            message: Some(message),
            method: message.method(),
            status: message.status(),
            initial: false,
            uri: None,
            from: None,
            to: None,
            edits: &[],
            tags: &[],
        }
    }

    /// Applies rules to a request that creates a dialog, when it is sent; the context has its Request-URI, From and To.
    pub(crate) fn rules_out_first(
        &self,
        scene: &MessageContext<'_>,
        call: Option<(&Call, CallSlot)>,
        effects: &mut Effects,
    ) {
        if !self
            .ctx
            .config
            .rules
            .applies_to(RuleDirection::Out, scene.is_request(), &scene.method)
        {
            return;
        }
        self.ctx.config.rules.run(scene, effects);
        let number = call.map_or(0, |(call, _)| call.number);
        let input = RuleInput::of(scene);
        self.store_rule_output(input, number, || call.map(|(_, slot)| slot), effects);
    }

    /// The context of a request that creates a dialog and is sent to a hop.
    pub(crate) fn first_scene<'a>(
        &self,
        at: (InterfaceId, Option<TrunkId>),
        flow: Flow,
        message: &'a Message<'a>,
    ) -> MessageContext<'a> {
        MessageContext {
            initial: true,
            ..self.scene(RuleDirection::Out, at, Some(flow), message)
        }
    }

    /// The context of an INVITE of our own, without an original, that is sent to a hop.
    pub(crate) fn own_invite_scene(
        &self,
        (interface, trunk): (InterfaceId, Option<TrunkId>),
        flow: Flow,
    ) -> MessageContext<'_> {
        MessageContext {
            direction: RuleDirection::Out,
            remote: self.ctx.config.peer_ref(interface, trunk),
            peer: Some(flow.remote),
            transport: flow.transport,
            trusted: self.ctx.config.trusts(interface, trunk),
            user: "",
            message: None,
            method: Method::Invite,
            status: 0,
            initial: true,
            uri: None,
            from: None,
            to: None,
            edits: &[],
            tags: &[],
        }
    }

    /// Applies rules to a response outside of dialogs or of our own, and merges their changes into `edits`.
    pub(crate) fn rules_answer<'e, const N: usize>(
        &self,
        answer: RuledAnswer<'_, 'e>,
        edits: &mut SmallVec<[Edit<'e>; N]>,
        effects: &'e mut Effects,
    ) {
        let RuledAnswer {
            flow,
            example,
            method,
            status,
            call,
        } = answer;
        if !self
            .ctx
            .config
            .rules
            .applies_to(RuleDirection::Out, false, &method)
        {
            return;
        }
        let Some((interface, trunk)) = self.origin_of_flow(flow) else {
            return;
        };
        let scene = MessageContext {
            direction: RuleDirection::Out,
            remote: self.ctx.config.peer_ref(interface, trunk),
            peer: Some(flow.remote),
            transport: flow.transport,
            trusted: self.ctx.config.trusts(interface, trunk),
            user: "",
            message: example,
            method,
            status,
            initial: false,
            uri: None,
            from: None,
            to: None,
            edits,
            tags: call.map_or(&[], |(call, _)| tags_of(call)),
        };
        self.ctx.config.rules.run(&scene, effects);
        let number = call.map_or(0, |(call, _)| call.number);
        let slot = || call.map(|(_, slot)| slot);
        self.store_rule_output(RuleInput::of(&scene), number, slot, effects);
        let effects = &*effects;
        effects.merge(edits);
    }

    /// The interface and trunk of a flow.
    pub(crate) fn origin_of_flow(&self, flow: Flow) -> Option<(InterfaceId, Option<TrunkId>)> {
        let interface = self.listeners.interface_of(flow.local)?;
        let trunk = self.listeners.trunk_at(&self.ctx, interface, &flow);
        Some((interface, trunk))
    }

    /// Applies rules to a request that creates a dialog, after authentication.
    ///
    /// # Errors
    /// A rule refuses it.
    pub(crate) fn admit(
        &mut self,
        request: &Message<'_>,
        origin: RequestOrigin,
        flow: Flow,
        user: Option<Box<str>>,
    ) -> Result<AdmittedRequest, RequestRefusal> {
        let mut admitted = AdmittedRequest {
            user,
            ..AdmittedRequest::default()
        };
        let method = request.method();
        if !self
            .ctx
            .config
            .rules
            .applies_to(RuleDirection::In, true, &method)
        {
            return Ok(admitted);
        }
        let mut effects = self.apply_first_rules(request, origin, flow, admitted.user.as_deref());
        admitted.tags = kept(&effects.tags);
        effects.tags.clear();
        let input = RuleInput {
            direction: RuleDirection::In,
            message: Some(request),
            method,
            status: 0,
        };
        self.store_rule_output(input, 0, || None, &mut effects);
        if let Some(refusal) = effects.refusal.take() {
            return Err(refused(refusal));
        }
        admitted.route = effects.route.map(TrunkId);
        if !effects.changes_nothing() {
            admitted.bytes = Some(changed(request, &effects));
        }
        Ok(admitted)
    }

    /// The result of rules for a request that creates a dialog, without effects.
    pub(crate) fn apply_first_rules(
        &self,
        request: &Message<'_>,
        origin: RequestOrigin,
        flow: Flow,
        user: Option<&str>,
    ) -> Effects {
        let at = (origin.interface, origin.trunk);
        let scene = MessageContext {
            user: user.unwrap_or_default(),
            initial: true,
            ..self.scene(RuleDirection::In, at, Some(flow), request)
        };
        let mut effects = Effects::default();
        self.ctx.config.rules.run(&scene, &mut effects);
        effects
    }

    /// The address of record under which a REGISTER is stored: that of To after header rules.
    pub(crate) fn stored_address_of_record(&self, request: &Message<'_>, flow: Flow) -> String {
        let written = || address_of_record(request);
        let rules = &self.ctx.config.rules;
        if !rules.applies_to(RuleDirection::In, true, &Method::Register) {
            return written();
        }
        let Some((interface, trunk)) = self.origin_of_flow(flow) else {
            return written();
        };
        let origin = RequestOrigin {
            interface,
            trunk,
            authenticated: trunk.is_some(),
        };
        let effects = self.apply_first_rules(request, origin, flow, None);
        let to = effects.to().and_then(NameAddr::parse);
        to.map_or_else(written, |to| user_of_record(&to))
    }

    /// Stores the output of rules until the message is processed.
    fn store_rule_output(
        &self,
        input: RuleInput<'_>,
        call: u64,
        slot: impl FnOnce() -> Option<CallSlot>,
        effects: &mut Effects,
    ) {
        let edits = match self.ctx.events.edits && !effects.changes_nothing() {
            true => self.edit_events(input, call, effects),
            false => Vec::new(),
        };
        if effects.has_no_reports() && edits.is_empty() {
            return;
        }
        let output = RuleOutput {
            call,
            slot: slot(),
            tags: std::mem::take(&mut effects.tags),
            log: std::mem::take(&mut effects.log),
            refused_edits: effects.refused_edits,
            failed_conditions: effects.failed_conditions,
            refused: effects.refusal.is_some(),
            edits,
        };
        self.rule_output.borrow_mut().push(output);
    }

    /// An event for each rule that may have changed the message.
    fn edit_events(&self, input: RuleInput<'_>, call: u64, effects: &Effects) -> Vec<EventKind> {
        let rules = &self.ctx.config.rules;
        let direction = match input.direction {
            RuleDirection::In => "in",
            RuleDirection::Out => "out",
        };
        let call_id = input.message.and_then(|message| message.call_id().ok());
        let message = match input.status {
            0 => input.method.to_string(),
            status => format!("{status} {}", input.method),
        };
        let matched = rules.matched_rules(effects);
        let changing = matched.filter(|rule| !rules.edited_headers(rule.index).is_empty());
        changing
            .map(|rule| EventKind::RuleEdited {
                rule: rule.name.to_owned(),
                call,
                call_id: String::from_utf8_lossy(call_id.unwrap_or_default()).into_owned(),
                direction: direction.to_owned(),
                message: message.clone(),
                headers: rules.edited_headers(rule.index).to_owned(),
            })
            .collect()
    }

    /// Applies the stored output of rules: counters, tags, events.
    #[inline]
    pub(crate) fn apply_rule_output(&mut self) {
        let output = self.rule_output.get_mut();
        if output.is_empty() {
            return;
        }
        for output in std::mem::take(output) {
            self.log_rule(output);
        }
    }

    fn log_rule(&mut self, output: RuleOutput) {
        let now = self.ctx.now;
        let edits = u64::from(output.refused_edits);
        self.ctx.drops.add(DropReason::RuleEditRefused, edits);
        let conditions = u64::from(output.failed_conditions);
        self.ctx
            .drops
            .add(DropReason::RuleConditionFailed, conditions);
        self.ctx
            .drops
            .add(DropReason::RuleRefused, u64::from(output.refused));
        for tag in output.tags {
            let call = output
                .slot
                .and_then(|slot| self.calls.get_mut(slot))
                .filter(|call| call.number == output.call);
            if let Some(call) = call {
                keep(&mut call.headers.tags, &tag);
            }
            self.log_tag(output.call, &tag.name, &tag.value);
        }
        for edit in output.edits {
            self.ctx.events.tell(now, || edit);
        }
        let rules = &self.ctx.config.rules;
        for line in output.log {
            self.ctx.events.tell(now, || EventKind::RuleLogged {
                rule: rules.name(line.rule).to_owned(),
                call: output.call,
                text: line.text,
            });
        }
    }

    fn log_tag(&mut self, call: u64, tag: &str, value: &str) {
        let now = self.ctx.now;
        self.ctx.events.tell(now, || EventKind::CallTagged {
            call,
            tag: tag.to_owned(),
            value: value.to_owned(),
        });
    }

    /// Logs the initial tags of a call.
    pub(crate) fn log_initial_tags(&mut self, slot: CallSlot) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(tags) = call.headers.tags.clone() else {
            return;
        };
        let number = call.number;
        for (tag, value) in tags.iter() {
            self.log_tag(number, tag, value);
        }
    }

    /// Applies rules to a message that is sent on the other side of a call, and merges their changes into `edits`.
    /// `Some`: the request is refused with this status and reason phrase.
    pub(crate) fn rules_out<'e>(
        &self,
        endpoint: &Endpoint,
        forwarded: Forwarded<'_, 'e>,
        edits: &mut EditList<'e>,
        effects: &'e mut Effects,
    ) -> Option<StatusLine> {
        let Forwarded {
            call,
            from,
            message,
            ..
        } = forwarded;
        let method = message.method();
        if !self
            .ctx
            .config
            .rules
            .applies_to(RuleDirection::Out, message.is_request(), &method)
        {
            return None;
        }
        let to = from.other();
        let leg = call.leg(to).or_else(|| {
            let set_up = call.kind.set_up()?;
            let early = set_up.dialog_of_caller().map(|(leg, _)| leg);
            early.or_else(|| set_up.branches.first().map(|branch| branch.leg))
        });
        let flow = leg.and_then(|leg| endpoint.flow_of(leg));
        let at = call.location_of(to, leg);
        let scene = MessageContext {
            edits,
            tags: tags_of(call),
            user: call.user_of(from),
            ..self.scene(RuleDirection::Out, at, flow, message)
        };
        self.ctx.config.rules.run(&scene, effects);
        let slot = || slot_of(endpoint, call);
        self.store_rule_output(RuleInput::of(&scene), call.number, slot, effects);
        let effects = &*effects;
        effects.merge(edits);
        effects.refusal.as_ref().map(StatusLine::from)
    }

    /// Applies rules to a received message.
    pub(crate) fn apply_rules_to_indication(
        &self,
        endpoint: &mut Endpoint,
        indication: &Indication<'_>,
    ) -> RuleOutcome {
        let now = self.ctx.now;
        if !self.ctx.config.rules.has_rules_for(RuleDirection::In) {
            return RuleOutcome::AsItCame;
        }
        let Some((leg, message)) = subject(indication) else {
            return RuleOutcome::AsItCame;
        };
        let method = message.method();
        let request = message.is_request();
        if !self
            .ctx
            .config
            .rules
            .applies_to(RuleDirection::In, request, &method)
        {
            return RuleOutcome::AsItCame;
        }
        let mut effects = Effects::default();
        match (leg, indication) {
            (Some(leg), _) => {
                let slot = self.calls.slot_of_leg(endpoint, leg);
                let Some(call) = slot.and_then(|slot| self.calls.get(slot)) else {
                    return RuleOutcome::AsItCame;
                };
                let Some(side) = call.side_of(leg) else {
                    return RuleOutcome::AsItCame;
                };
                let at = call.location_of(side, Some(leg));
                let scene = MessageContext {
                    tags: tags_of(call),
                    user: call.user_of(side),
                    ..self.scene(RuleDirection::In, at, endpoint.flow_of(leg), message)
                };
                self.ctx.config.rules.run(&scene, &mut effects);
                let input = RuleInput::of(&scene);
                self.store_rule_output(input, call.number, || slot, &mut effects);
            }
            (None, Indication::OutOfDialogResponse { flow, .. }) => {
                let Some(at) = self.origin_of_flow(*flow) else {
                    return RuleOutcome::AsItCame;
                };
                let scene = self.scene(RuleDirection::In, at, Some(*flow), message);
                self.ctx.config.rules.run(&scene, &mut effects);
                let input = RuleInput::of(&scene);
                self.store_rule_output(input, 0, || None, &mut effects);
            }
            (None, Indication::InDialog { dialog, .. }) => {
                let flow = endpoint.flow_of_dialog(*dialog);
                let Some(at) = flow.and_then(|flow| self.origin_of_flow(flow)) else {
                    return RuleOutcome::AsItCame;
                };
                let scene = self.scene(RuleDirection::In, at, flow, message);
                self.ctx.config.rules.run(&scene, &mut effects);
                let input = RuleInput::of(&scene);
                self.store_rule_output(input, 0, || None, &mut effects);
            }
            _ => return RuleOutcome::AsItCame,
        }
        if let (
            Some(refusal),
            Indication::Request { transaction, .. } | Indication::InDialog { transaction, .. },
        ) = (effects.refusal.take(), indication)
        {
            StatusLine::from(&refusal).refuse(endpoint, *transaction, None, now);
            return RuleOutcome::Refused;
        }
        match effects.changes_nothing() {
            true => RuleOutcome::AsItCame,
            false => RuleOutcome::Changed(changed(message, &effects)),
        }
    }
}

/// A response of the border to the peer of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuledAnswer<'a, 'e> {
    pub(crate) flow: Flow,
    /// The received response that is forwarded.
    pub(crate) example: Option<&'a Message<'e>>,
    pub(crate) method: Method<'a>,
    pub(crate) status: u16,
    /// The call that it belongs to.
    pub(crate) call: Option<(&'a Call, CallSlot)>,
}

impl<'a> RuledAnswer<'a, '_> {
    /// A response of our own, without a call.
    pub(crate) fn own(flow: Flow, method: Method<'a>, status: u16) -> Self {
        RuledAnswer {
            flow,
            example: None,
            method,
            status,
            call: None,
        }
    }
}

/// Values that rules stored with a call.
fn tags_of(call: &Call) -> &[(Box<str>, Box<str>)] {
    call.headers.tags.as_deref().map_or(&[], Vec::as_slice)
}

/// The slot of a call, from any of its legs.
fn slot_of(endpoint: &Endpoint, call: &Call) -> Option<CallSlot> {
    let leg = Side::BOTH.iter().find_map(|&side| call.leg(side))?;
    CallKey(endpoint.user_of(leg)?).slot()
}

/// The initial tags of a call.
fn kept(tags: &[RuleTag]) -> Tags {
    let mut kept = None;
    for tag in tags {
        keep(&mut kept, tag);
    }
    kept
}

/// Stores a tag, replacing one of the same name.
fn keep(tags: &mut Tags, tag: &RuleTag) {
    let tags = tags.get_or_insert_with(Box::default);
    let full = tags.len() >= MAX_TAGS;
    match tags.iter_mut().find(|(name, _)| *name == tag.name) {
        Some((_, value)) => value.clone_from(&tag.value),
        None if full => {}
        None => tags.push((tag.name.clone(), tag.value.clone())),
    }
}

fn refused(refusal: RuleRefusal) -> RequestRefusal {
    RequestRefusal {
        reason: refusal.reason.map(Into::into),
        decision: Some(Box::new(RefusedBy {
            rule: Some(refusal.rule),
            ..RefusedBy::default()
        })),
        ..RequestRefusal::with_status(refusal.status, Reason::RefusedByRule)
    }
}

/// The message after rules.
fn changed(message: &Message<'_>, effects: &Effects) -> Vec<u8> {
    let edits: EditList<'_> = effects.all_edits().collect();
    let mut out = Vec::with_capacity(message.bytes().len() + 512);
    emit(message, &edits, &mut out);
    out
}

/// The message of an indication that is subject to rules here, and its leg.
fn subject<'i>(indication: &Indication<'i>) -> Option<(Option<LegId>, &'i Message<'i>)> {
    Some(match *indication {
        Indication::Progressed { leg, response, .. }
        | Indication::Answered { leg, response, .. }
        | Indication::Response { leg, response, .. }
        | Indication::Failed {
            leg,
            response: Some(response),
            ..
        } => (Some(leg), response),
        Indication::Acked { leg, request }
        | Indication::Pracked { leg, request, .. }
        | Indication::Request { leg, request, .. }
        | Indication::Ended {
            leg,
            message: Some(request),
            ..
        } => (Some(leg), request),
        Indication::OutOfDialogResponse { response, .. } => (None, response),
        Indication::InDialog { request, .. } => (None, request),
        _ => return None,
    })
}

/// The same indication with another message.
pub(crate) fn with_message<'m>(
    indication: Indication<'m>,
    message: &'m Message<'m>,
) -> Indication<'m> {
    match indication {
        Indication::Progressed {
            leg,
            fork,
            reliable,
            ..
        } => Indication::Progressed {
            leg,
            fork,
            response: message,
            reliable,
        },
        Indication::Answered { leg, fork, .. } => Indication::Answered {
            leg,
            fork,
            response: message,
        },
        Indication::Failed {
            leg, reason: why, ..
        } => Indication::Failed {
            leg,
            reason: why,
            response: Some(message),
        },
        Indication::Acked { leg, .. } => Indication::Acked {
            leg,
            request: message,
        },
        Indication::Pracked {
            leg, transaction, ..
        } => Indication::Pracked {
            leg,
            transaction,
            request: message,
        },
        Indication::Request {
            leg, transaction, ..
        } => Indication::Request {
            leg,
            transaction,
            request: message,
        },
        Indication::Response {
            leg, transaction, ..
        } => Indication::Response {
            leg,
            transaction,
            response: message,
        },
        Indication::OutOfDialogResponse {
            transaction,
            user,
            flow,
            ..
        } => Indication::OutOfDialogResponse {
            transaction,
            user,
            response: message,
            flow,
        },
        Indication::InDialog {
            dialog,
            user,
            transaction,
            ..
        } => Indication::InDialog {
            dialog,
            user,
            transaction,
            request: message,
        },
        Indication::Ended {
            leg, reason: why, ..
        } => Indication::Ended {
            leg,
            reason: why,
            message: Some(message),
        },
        other => other,
    }
}
