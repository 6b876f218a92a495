//! Application of header rules: to received messages before they are processed, and to sent messages when they are
//! composed.
//!
//! In-dialog messages are processed on arrival ([`Core::ruled`]) and when they are forwarded ([`Core::rules_out`]). A
//! request that creates a dialog is processed after authentication of its sender ([`Core::admit`]), because digest
//! credentials protect the received message, not the result of rules. Messages that the endpoint composes itself (100,
//! CANCEL, ACK of a refusal, PRACK without a body, session refreshes) concern one peer, and are not subject to rules.

use crate::border::Core;
use crate::call::setup::{RequestOrigin, RequestRefusal};
use crate::call::{Call, CallKey};
use ::rules::{Effects, MessageContext, RuleDirection, RuleLogLine, RuleRefusal, RuleTag};
use anchor::Side;
use config::{InterfaceId, TrunkId};
use engine::{DropReason, EventKind, Time, Transport};
use sip::{Endpoint, Flow, Indication, LegId, MessageContent, ServerTransaction};
use smallvec::SmallVec;
use wire::sip::{Edit, Message, Method, emit};

/// Edits of a forwarded message.
pub(crate) type EditList<'e> = SmallVec<[Edit<'e>; 24]>;

/// Values that rules store with a call.
pub(crate) type Tags = Option<Box<Vec<(Box<str>, Box<str>)>>>;

/// Maximum number of tags of a call.
const MAX_TAGS: usize = 32;

/// Output of rules that is logged after the message was processed.
#[derive(Debug, Default)]
pub(crate) struct RuleOutput {
    /// Number of the call (0: none), and its slot.
    call: u64,
    slot: Option<usize>,
    tags: Vec<RuleTag>,
    log: Vec<RuleLogLine>,
    refused_edits: u32,
    failed_conditions: u32,
    refused: bool,
}

/// A request admitted by rules, with their changes.
#[derive(Debug, Default)]
pub(crate) struct AdmittedRequest {
    /// The message, if it was changed.
    bytes: Option<Vec<u8>>,
    /// The trunk selected by a rule instead of routes.
    pub(crate) route: Option<TrunkId>,
    /// Values to store with the call.
    pub(crate) tags: Tags,
    /// The authenticated user.
    pub(crate) user: Option<Box<str>>,
}

impl AdmittedRequest {
    /// The changed message.
    pub(crate) fn message(&self) -> Option<Message<'_>> {
        Message::parse(self.bytes.as_deref()?).ok()
    }
}

/// Result of rules for an indication.
enum RuleOutcome {
    AsItCame,
    /// The message was changed to this.
    Changed(Vec<u8>),
    /// It was answered.
    Refused,
}

impl Core {
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
            remote: self.config.peer_ref(interface, trunk),
            peer: flow.map(|flow| flow.remote),
            transport: flow.map_or(Transport::Udp, |flow| flow.transport),
            trusted: self.config.trusts(interface, trunk),
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

    /// Applies rules to a message that is sent on the other side of a call, and merges their changes into `edits`.
    /// `Some`: the request is refused.
    pub(crate) fn rules_out<'e>(
        &self,
        endpoint: &Endpoint,
        call: &Call,
        from: Side,
        message: &Message<'e>,
        edits: &mut EditList<'e>,
        effects: &'e mut Effects,
    ) -> Option<u16> {
        let method = message.method();
        if !self
            .config
            .rules
            .applies_to(RuleDirection::Out, message.is_request(), &method)
        {
            return None;
        }
        let to = from.other();
        let leg = call.leg(to).or_else(|| {
            let branches = &call.set_up.as_ref()?.branches;
            branches.first().map(|branch| branch.leg)
        });
        let flow = leg.and_then(|leg| endpoint.flow_of(leg));
        let at = (*call.interfaces.get(to), *call.trunks.get(to));
        let scene = MessageContext {
            edits,
            tags: call.tags.as_deref().map_or(&[], Vec::as_slice),
            ..self.scene(RuleDirection::Out, at, flow, message)
        };
        self.config.rules.run(&scene, effects);
        self.store_rule_output(call.number, || slot_of(endpoint, call), effects);
        let effects = &*effects;
        effects.merge(edits);
        effects.refusal.as_ref().map(|refusal| refusal.status)
    }

    /// Applies rules to a request that creates a dialog, when it is sent; the context has its Request-URI, From and To.
    pub(crate) fn rules_out_first(
        &self,
        scene: &MessageContext<'_>,
        call: Option<(&Call, usize)>,
        effects: &mut Effects,
    ) {
        if !self
            .config
            .rules
            .applies_to(RuleDirection::Out, scene.is_request(), &scene.method)
        {
            return;
        }
        self.config.rules.run(scene, effects);
        let number = call.map_or(0, |(call, _)| call.number);
        self.store_rule_output(number, || call.map(|(_, slot)| slot), effects);
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

    /// Applies rules to an out-of-dialog response, or to a response of our own (`example` is `None`), and merges their
    /// changes into `edits`.
    pub(crate) fn rules_answer<'e, const N: usize>(
        &self,
        flow: Flow,
        example: Option<&Message<'e>>,
        (method, status): (Method<'_>, u16),
        edits: &mut SmallVec<[Edit<'e>; N]>,
        effects: &'e mut Effects,
    ) {
        if !self
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
            remote: self.config.peer_ref(interface, trunk),
            peer: Some(flow.remote),
            transport: flow.transport,
            trusted: self.config.trusts(interface, trunk),
            user: "",
            message: example,
            method,
            status,
            initial: false,
            uri: None,
            from: None,
            to: None,
            edits,
            tags: &[],
        };
        self.config.rules.run(&scene, effects);
        self.store_rule_output(0, || None, effects);
        let effects = &*effects;
        effects.merge(edits);
    }

    /// The interface and trunk of a flow.
    pub(crate) fn origin_of_flow(&self, flow: Flow) -> Option<(InterfaceId, Option<TrunkId>)> {
        let interface = self.interface_of(flow.local)?;
        let trunk = self.trunk_at(interface, &flow);
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
            .config
            .rules
            .applies_to(RuleDirection::In, true, &method)
        {
            return Ok(admitted);
        }
        let mut effects = self.apply_first_rules(request, origin, flow, admitted.user.as_deref());
        admitted.tags = kept(&effects.tags);
        effects.tags.clear();
        self.store_rule_output(0, || None, &mut effects);
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
        self.config.rules.run(&scene, &mut effects);
        effects
    }

    /// Processes an indication after rules were applied.
    pub(crate) fn apply_rules(
        &mut self,
        endpoint: &mut Endpoint,
        indication: Indication<'_>,
        now: Time,
    ) {
        if self.config.rules.is_empty() {
            return self.dispatch(endpoint, indication, now);
        }
        match self.apply_rules_to_indication(endpoint, &indication, now) {
            RuleOutcome::AsItCame => self.dispatch(endpoint, indication, now),
            RuleOutcome::Refused => {}
            RuleOutcome::Changed(bytes) => match Message::parse(&bytes) {
                Ok(message) => self.dispatch(endpoint, with(indication, &message), now),
                // Rules always produce a valid message; otherwise the received one is used.
                Err(_) => self.dispatch(endpoint, indication, now),
            },
        }
        self.apply_rule_output(now);
    }

    fn apply_rules_to_indication(
        &mut self,
        endpoint: &mut Endpoint,
        indication: &Indication<'_>,
        now: Time,
    ) -> RuleOutcome {
        if !self.config.rules.has_rules_for(RuleDirection::In) {
            return RuleOutcome::AsItCame;
        }
        let Some((leg, message)) = subject(indication) else {
            return RuleOutcome::AsItCame;
        };
        let method = message.method();
        let request = message.is_request();
        if !self
            .config
            .rules
            .applies_to(RuleDirection::In, request, &method)
        {
            return RuleOutcome::AsItCame;
        }
        let mut effects = Effects::default();
        match (leg, indication) {
            (Some(leg), _) => {
                let slot = self.slot_of_leg(endpoint, leg);
                let Some(call) = slot.and_then(|slot| self.calls.get(slot)) else {
                    return RuleOutcome::AsItCame;
                };
                let Some(side) = call.side_of(leg) else {
                    return RuleOutcome::AsItCame;
                };
                let at = (*call.interfaces.get(side), *call.trunks.get(side));
                let scene = MessageContext {
                    tags: call.tags.as_deref().map_or(&[], Vec::as_slice),
                    ..self.scene(RuleDirection::In, at, endpoint.flow_of(leg), message)
                };
                self.config.rules.run(&scene, &mut effects);
                self.store_rule_output(call.number, || slot, &mut effects);
            }
            (None, Indication::OutOfDialogResponse { flow, .. }) => {
                let Some(at) = self.origin_of_flow(*flow) else {
                    return RuleOutcome::AsItCame;
                };
                let scene = self.scene(RuleDirection::In, at, Some(*flow), message);
                self.config.rules.run(&scene, &mut effects);
                self.store_rule_output(0, || None, &mut effects);
            }
            (None, Indication::InDialog { dialog, .. }) => {
                let flow = endpoint.flow_of_dialog(*dialog);
                let Some(at) = flow.and_then(|flow| self.origin_of_flow(flow)) else {
                    return RuleOutcome::AsItCame;
                };
                let scene = self.scene(RuleDirection::In, at, flow, message);
                self.config.rules.run(&scene, &mut effects);
                self.store_rule_output(0, || None, &mut effects);
            }
            _ => return RuleOutcome::AsItCame,
        }
        if let (
            Some(refusal),
            Indication::Request { transaction, .. } | Indication::InDialog { transaction, .. },
        ) = (effects.refusal.take(), indication)
        {
            refuse(endpoint, *transaction, &refusal, now);
            return RuleOutcome::Refused;
        }
        match effects.changes_nothing() {
            true => RuleOutcome::AsItCame,
            false => RuleOutcome::Changed(changed(message, &effects)),
        }
    }

    /// Stores the output of rules until the message is processed.
    fn store_rule_output(
        &self,
        call: u64,
        slot: impl FnOnce() -> Option<usize>,
        effects: &mut Effects,
    ) {
        if effects.has_no_reports() {
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
        };
        self.rule_output.borrow_mut().push(output);
    }

    /// Applies the stored output of rules: counters, tags, events.
    #[inline]
    pub(crate) fn apply_rule_output(&mut self, now: Time) {
        let output = self.rule_output.get_mut();
        if output.is_empty() {
            return;
        }
        for output in std::mem::take(output) {
            self.log_rule(output, now);
        }
    }

    fn log_rule(&mut self, output: RuleOutput, now: Time) {
        let edits = u64::from(output.refused_edits);
        self.drops.add(DropReason::RuleEditRefused, edits);
        let conditions = u64::from(output.failed_conditions);
        self.drops.add(DropReason::RuleConditionFailed, conditions);
        self.drops
            .add(DropReason::RuleRefused, u64::from(output.refused));
        for tag in output.tags {
            let call = output
                .slot
                .and_then(|slot| self.calls.get_mut(slot))
                .filter(|call| call.number == output.call);
            if let Some(call) = call {
                keep(&mut call.tags, &tag);
            }
            self.log_tag(output.call, &tag.name, &tag.value, now);
        }
        let rules = &self.config.rules;
        for line in output.log {
            self.events.tell(now, || EventKind::RuleLogged {
                rule: rules.name(line.rule).to_owned(),
                call: output.call,
                text: line.text,
            });
        }
    }

    fn log_tag(&mut self, call: u64, tag: &str, value: &str, now: Time) {
        self.events.tell(now, || EventKind::CallTagged {
            call,
            tag: tag.to_owned(),
            value: value.to_owned(),
        });
    }

    /// Logs the initial tags of a call.
    pub(crate) fn log_initial_tags(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(tags) = call.tags.clone() else {
            return;
        };
        let number = call.number;
        for (tag, value) in tags.iter() {
            self.log_tag(number, tag, value, now);
        }
    }
}

/// The slot of a call, from any of its legs.
fn slot_of(endpoint: &Endpoint, call: &Call) -> Option<usize> {
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
        ..RequestRefusal::new(refusal.status, "refused by a header rule")
    }
}

fn refuse(
    endpoint: &mut Endpoint,
    transaction: ServerTransaction,
    refusal: &RuleRefusal,
    now: Time,
) {
    let content = MessageContent {
        reason: refusal.reason.as_deref().map(str::as_bytes),
        ..MessageContent::default()
    };
    let _ = endpoint.respond(transaction, refusal.status, &content, now);
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
        | Indication::Answered { leg, response }
        | Indication::Response { leg, response, .. }
        | Indication::Failed {
            leg,
            response: Some(response),
            ..
        } => (Some(leg), response),
        Indication::Acked { leg, request }
        | Indication::Cancelled { leg, request }
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
fn with<'m>(indication: Indication<'m>, message: &'m Message<'m>) -> Indication<'m> {
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
        Indication::Answered { leg, .. } => Indication::Answered {
            leg,
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
        Indication::Cancelled { leg, .. } => Indication::Cancelled {
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
