//! Header rules at work: what comes is changed before anyone looks at it, what leaves when its headers are composed.
//!
//! Inside of a dialog the messages of both sides are judged where they come in ([`Core::ruled`]) and where they pass
//! ([`Core::rules_out`]). A request that begins something is judged when its sender is known ([`Core::admit`]): proof by
//! digest is about what came, not about what rules make of it. What the endpoint writes by itself (100, CANCEL, ACK of a
//! refusal, PRACK without a body, refreshes of the session) stands between us and one peer, and no rule sees it.

use crate::border::Core;
use crate::call::offered::{Origin, Refused};
use crate::call::{Call, CallKey, Side};
use crate::config::{InterfaceId, TrunkId};
use ::rules::{Direction, Effects, Line, Refusal, Scene, Tag};
use engine::{DropReason, Note, Time, Transport};
use sip::{Content, Endpoint, Flow, Indication, LegId, ServerTransaction};
use smallvec::SmallVec;
use wire::sip::{Edit, Message, Method, emit};

/// Edits of a message that passes.
pub(crate) type EditList<'e> = SmallVec<[Edit<'e>; 24]>;

/// Values that rules keep with a call.
pub(crate) type Tags = Option<Box<Vec<(Box<str>, Box<str>)>>>;

/// Tags of one call at most.
const MAX_TAGS: usize = 32;

/// What rules said that has to be told once the message is dealt with.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// Number of the call, 0 where there is none, and its slot.
    call: u64,
    slot: Option<usize>,
    tags: Vec<Tag>,
    log: Vec<Line>,
    refused_edits: u32,
    failed_conditions: u32,
    refused: bool,
}

/// A request that rules let in, as they left it.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    /// The message, where it changed.
    bytes: Option<Vec<u8>>,
    /// Where to send it, whatever the routes say.
    pub(crate) route: Option<TrunkId>,
    /// Values to keep with the call.
    pub(crate) tags: Tags,
    /// The user that the sender proved to be.
    pub(crate) user: Option<Box<str>>,
}

impl Admitted {
    /// The message that takes the place of the one that came.
    pub(crate) fn message(&self) -> Option<Message<'_>> {
        Message::parse(self.bytes.as_deref()?).ok()
    }
}

/// What becomes of an indication.
enum Judged {
    AsItCame,
    /// The message has become this one.
    Changed(Vec<u8>),
    /// It was answered.
    Refused,
}

impl Core {
    /// The scene of a message at a place.
    fn scene<'a>(
        &self,
        direction: Direction,
        (interface, trunk): (InterfaceId, Option<TrunkId>),
        flow: Option<Flow>,
        message: &'a Message<'a>,
    ) -> Scene<'a> {
        Scene {
            direction,
            place: self.config.place(interface, trunk),
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

    /// Judges what leaves on the other side of a call, and merges what rules change into `edits`. `Some`: the request is
    /// refused.
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
            .concerns(Direction::Out, message.is_request(), &method)
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
        let scene = Scene {
            edits,
            tags: call.tags.as_deref().map_or(&[], Vec::as_slice),
            ..self.scene(Direction::Out, at, flow, message)
        };
        self.config.rules.run(&scene, effects);
        self.say(call.number, || slot_of(endpoint, call), effects);
        let effects = &*effects;
        effects.merge(edits);
        effects.refusal.as_ref().map(|refusal| refusal.status)
    }

    /// Judges a request that begins something, as it is about to leave: the scene has its Request-URI, From and To.
    pub(crate) fn rules_out_first(
        &self,
        scene: &Scene<'_>,
        call: Option<(&Call, usize)>,
        effects: &mut Effects,
    ) {
        if !self
            .config
            .rules
            .concerns(Direction::Out, scene.is_request(), &scene.method)
        {
            return;
        }
        self.config.rules.run(scene, effects);
        let number = call.map_or(0, |(call, _)| call.number);
        self.say(number, || call.map(|(_, slot)| slot), effects);
    }

    /// The scene of a request that begins something and leaves for a hop.
    pub(crate) fn first_scene<'a>(
        &self,
        at: (InterfaceId, Option<TrunkId>),
        flow: Flow,
        message: &'a Message<'a>,
    ) -> Scene<'a> {
        Scene {
            initial: true,
            ..self.scene(Direction::Out, at, Some(flow), message)
        }
    }

    /// Judges an answer outside of calls, or one that we write ourselves (`example` is `None`), and merges what rules change
    /// into `edits`.
    pub(crate) fn rules_answer<'e, const N: usize>(
        &self,
        flow: Flow,
        example: Option<&Message<'e>>,
        (method, status): (Method<'_>, u16),
        edits: &mut SmallVec<[Edit<'e>; N]>,
        effects: &'e mut Effects,
    ) {
        if !self.config.rules.concerns(Direction::Out, false, &method) {
            return;
        }
        let Some((interface, trunk)) = self.place_of_flow(flow) else {
            return;
        };
        let scene = Scene {
            direction: Direction::Out,
            place: self.config.place(interface, trunk),
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
        self.say(0, || None, effects);
        let effects = &*effects;
        effects.merge(edits);
    }

    /// Where a request that comes on a flow comes from.
    pub(crate) fn place_of_flow(&self, flow: Flow) -> Option<(InterfaceId, Option<TrunkId>)> {
        let interface = self.interface_of(flow.local)?;
        let trunk = self.trunk_at(interface, &flow);
        Some((interface, trunk))
    }

    /// Judges a request that begins something, whose sender is known.
    ///
    /// # Errors
    /// A rule refuses it.
    pub(crate) fn admit(
        &mut self,
        request: &Message<'_>,
        origin: Origin,
        flow: Flow,
        user: Option<Box<str>>,
    ) -> Result<Admitted, Refused> {
        let mut admitted = Admitted {
            user,
            ..Admitted::default()
        };
        let method = request.method();
        if !self.config.rules.concerns(Direction::In, true, &method) {
            return Ok(admitted);
        }
        let mut effects = self.judge_first(request, origin, flow, admitted.user.as_deref());
        admitted.tags = kept(&effects.tags);
        effects.tags.clear();
        self.say(0, || None, &mut effects);
        if let Some(refusal) = effects.refusal.take() {
            return Err(refused(refusal));
        }
        admitted.route = effects.route.map(TrunkId);
        if !effects.changes_nothing() {
            admitted.bytes = Some(changed(request, &effects));
        }
        Ok(admitted)
    }

    /// What rules make of a request that begins something; nothing is done yet.
    pub(crate) fn judge_first(
        &self,
        request: &Message<'_>,
        origin: Origin,
        flow: Flow,
        user: Option<&str>,
    ) -> Effects {
        let at = (origin.interface, origin.trunk);
        let scene = Scene {
            user: user.unwrap_or_default(),
            initial: true,
            ..self.scene(Direction::In, at, Some(flow), request)
        };
        let mut effects = Effects::default();
        self.config.rules.run(&scene, &mut effects);
        effects
    }

    /// Deals with an indication as rules leave it.
    pub(crate) fn ruled(&mut self, endpoint: &mut Endpoint, indication: Indication<'_>, now: Time) {
        if self.config.rules.is_empty() {
            return self.dispatch(endpoint, indication, now);
        }
        match self.judged(endpoint, &indication, now) {
            Judged::AsItCame => self.dispatch(endpoint, indication, now),
            Judged::Refused => {}
            Judged::Changed(bytes) => match Message::parse(&bytes) {
                Ok(message) => self.dispatch(endpoint, with(indication, &message), now),
                // What rules leave is always a message; without one, what came counts.
                Err(_) => self.dispatch(endpoint, indication, now),
            },
        }
        self.tell_rules(now);
    }

    fn judged(
        &mut self,
        endpoint: &mut Endpoint,
        indication: &Indication<'_>,
        now: Time,
    ) -> Judged {
        if !self.config.rules.judges(Direction::In) {
            return Judged::AsItCame;
        }
        let Some((leg, message)) = subject(indication) else {
            return Judged::AsItCame;
        };
        let method = message.method();
        let request = message.is_request();
        if !self.config.rules.concerns(Direction::In, request, &method) {
            return Judged::AsItCame;
        }
        let mut effects = Effects::default();
        match (leg, indication) {
            (Some(leg), _) => {
                let slot = self.slot_of_leg(endpoint, leg);
                let Some(call) = slot.and_then(|slot| self.calls.get(slot)) else {
                    return Judged::AsItCame;
                };
                let Some(side) = call.side_of(leg) else {
                    return Judged::AsItCame;
                };
                let at = (*call.interfaces.get(side), *call.trunks.get(side));
                let scene = Scene {
                    tags: call.tags.as_deref().map_or(&[], Vec::as_slice),
                    ..self.scene(Direction::In, at, endpoint.flow_of(leg), message)
                };
                self.config.rules.run(&scene, &mut effects);
                self.say(call.number, || slot, &mut effects);
            }
            (None, Indication::OutOfDialogResponse { flow, .. }) => {
                let Some(at) = self.place_of_flow(*flow) else {
                    return Judged::AsItCame;
                };
                let scene = self.scene(Direction::In, at, Some(*flow), message);
                self.config.rules.run(&scene, &mut effects);
                self.say(0, || None, &mut effects);
            }
            (None, Indication::InDialog { dialog, .. }) => {
                let flow = endpoint.flow_of_dialog(*dialog);
                let Some(at) = flow.and_then(|flow| self.place_of_flow(flow)) else {
                    return Judged::AsItCame;
                };
                let scene = self.scene(Direction::In, at, flow, message);
                self.config.rules.run(&scene, &mut effects);
                self.say(0, || None, &mut effects);
            }
            _ => return Judged::AsItCame,
        }
        if let (
            Some(refusal),
            Indication::Request { transaction, .. } | Indication::InDialog { transaction, .. },
        ) = (effects.refusal.take(), indication)
        {
            refuse(endpoint, *transaction, &refusal, now);
            return Judged::Refused;
        }
        match effects.changes_nothing() {
            true => Judged::AsItCame,
            false => Judged::Changed(changed(message, &effects)),
        }
    }

    /// Keeps what rules said until the message is dealt with.
    fn say(&self, call: u64, slot: impl FnOnce() -> Option<usize>, effects: &mut Effects) {
        if effects.is_silent() {
            return;
        }
        let said = Said {
            call,
            slot: slot(),
            tags: std::mem::take(&mut effects.tags),
            log: std::mem::take(&mut effects.log),
            refused_edits: effects.refused_edits,
            failed_conditions: effects.failed_conditions,
            refused: effects.refusal.is_some(),
        };
        self.said.borrow_mut().push(said);
    }

    /// Tells what rules said: counters, tags, events.
    #[inline]
    pub(crate) fn tell_rules(&mut self, now: Time) {
        let said = self.said.get_mut();
        if said.is_empty() {
            return;
        }
        for said in std::mem::take(said) {
            self.tell_rule(said, now);
        }
    }

    fn tell_rule(&mut self, said: Said, now: Time) {
        let edits = u64::from(said.refused_edits);
        self.drops.add(DropReason::RuleEditRefused, edits);
        let conditions = u64::from(said.failed_conditions);
        self.drops.add(DropReason::RuleConditionFailed, conditions);
        self.drops
            .add(DropReason::RuleRefused, u64::from(said.refused));
        for tag in said.tags {
            let call = said
                .slot
                .and_then(|slot| self.calls.get_mut(slot))
                .filter(|call| call.number == said.call);
            if let Some(call) = call {
                keep(&mut call.tags, &tag);
            }
            self.tell_tag(said.call, &tag.name, &tag.value, now);
        }
        let rules = &self.config.rules;
        for line in said.log {
            self.events.tell(now, || Note::RuleLogged {
                rule: rules.name(line.rule).to_owned(),
                call: said.call,
                text: line.text,
            });
        }
    }

    fn tell_tag(&mut self, call: u64, tag: &str, value: &str, now: Time) {
        self.events.tell(now, || Note::CallTagged {
            call,
            tag: tag.to_owned(),
            value: value.to_owned(),
        });
    }

    /// Tells of the tags with which a call began.
    pub(crate) fn tell_first_tags(&mut self, slot: usize, now: Time) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(tags) = call.tags.clone() else {
            return;
        };
        let number = call.number;
        for (tag, value) in tags.iter() {
            self.tell_tag(number, tag, value, now);
        }
    }
}

/// The slot of a call, from any of its legs.
fn slot_of(endpoint: &Endpoint, call: &Call) -> Option<usize> {
    let leg = Side::BOTH.iter().find_map(|&side| call.leg(side))?;
    CallKey(endpoint.user_of(leg)?).slot()
}

/// The tags to begin a call with.
fn kept(tags: &[Tag]) -> Tags {
    let mut kept = None;
    for tag in tags {
        keep(&mut kept, tag);
    }
    kept
}

/// Keeps a tag; a later one of the same name takes its place.
fn keep(tags: &mut Tags, tag: &Tag) {
    let tags = tags.get_or_insert_with(Box::default);
    let full = tags.len() >= MAX_TAGS;
    match tags.iter_mut().find(|(name, _)| *name == tag.name) {
        Some((_, value)) => value.clone_from(&tag.value),
        None if full => {}
        None => tags.push((tag.name.clone(), tag.value.clone())),
    }
}

fn refused(refusal: Refusal) -> Refused {
    Refused {
        reason: refusal.reason.map(Into::into),
        ..Refused::new(refusal.status, "refused by a rule")
    }
}

fn refuse(endpoint: &mut Endpoint, transaction: ServerTransaction, refusal: &Refusal, now: Time) {
    let content = Content {
        reason: refusal.reason.as_deref().map(str::as_bytes),
        ..Content::default()
    };
    let _ = endpoint.respond(transaction, refusal.status, &content, now);
}

/// The message as rules want it.
fn changed(message: &Message<'_>, effects: &Effects) -> Vec<u8> {
    let edits: EditList<'_> = effects.all_edits().collect();
    let mut out = Vec::with_capacity(message.bytes().len() + 512);
    emit(message, &edits, &mut out);
    out
}

/// The message of an indication that rules judge here, and its leg.
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
        Indication::Failed { leg, why, .. } => Indication::Failed {
            leg,
            why,
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
        Indication::Ended { leg, why, .. } => Indication::Ended {
            leg,
            why,
            message: Some(message),
        },
        other => other,
    }
}
