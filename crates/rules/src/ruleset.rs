//! Rules in order, indexed by direction, request or response, and method.

use crate::action::{Action, ActionTarget, Replacement};
use crate::condition::Condition;
use crate::context::{MessageContext, PeerKind, PeerRef, RuleDirection};
use crate::effects::{Effects, HeaderName, MessageView};
use crate::prepared::prepare_fields;
use crate::spec::{Diagnosis, MessageFilter, RuleError, RuleNames, RuleSpec, Verb};
use core::fmt;
use std::sync::Arc;
use wire::sip::Method;

/// Maximum number of rules.
const MAX_RULES: usize = 10_000;
/// Known methods, and one index for all others.
const METHODS: usize = Method::KNOWN.len() + 1;

/// Index of a method in the tables.
fn slot(method: &Method<'_>) -> usize {
    match method {
        Method::Invite => 0,
        Method::Ack => 1,
        Method::Bye => 2,
        Method::Cancel => 3,
        Method::Register => 4,
        Method::Options => 5,
        Method::Info => 6,
        Method::Update => 7,
        Method::Prack => 8,
        Method::Refer => 9,
        Method::Subscribe => 10,
        Method::Notify => 11,
        Method::Message => 12,
        Method::Publish => 13,
        Method::Other(_) => METHODS - 1,
    }
}

#[derive(Debug)]
struct Rule {
    interfaces: Vec<u16>,
    kinds: Vec<PeerKind>,
    trunks: Vec<u16>,
    /// Methods that share the last index of the tables; empty for any.
    other_methods: Vec<Box<[u8]>>,
    condition: Condition,
    actions: Vec<Action>,
    /// Headers that the actions change, separated by commas.
    edited: Box<str>,
    stop: bool,
}

impl Rule {
    fn matches_peer(&self, remote: &PeerRef) -> bool {
        (self.interfaces.is_empty() || self.interfaces.contains(&remote.interface))
            && (self.kinds.is_empty() || self.kinds.contains(&remote.kind))
            && (self.trunks.is_empty()
                || remote
                    .trunk
                    .is_some_and(|trunk| self.trunks.contains(&trunk)))
    }

    fn matches_method(&self, method: &Method<'_>) -> bool {
        match method {
            Method::Other(name) => {
                self.other_methods.is_empty()
                    || self.other_methods.iter().any(|other| **other == **name)
            }
            _ => true,
        }
    }
}

#[derive(Debug, Default)]
struct CompiledRules {
    specs: Vec<RuleSpec>,
    rules: Vec<Rule>,
    /// Indices of rules by direction, request or response, and method.
    tables: Vec<Vec<u16>>,
    /// Whether there are rules for received and for sent messages.
    has_rules: [bool; 2],
    names: RuleNames,
}

/// Compiled rules; clones share them.
#[derive(Clone, Default)]
pub struct RuleSet(Arc<CompiledRules>);

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0.specs).finish()
    }
}

/// Rule sets are equal if their text and the names behind their indices are equal.
impl PartialEq for RuleSet {
    fn eq(&self, other: &RuleSet) -> bool {
        self.0.specs == other.0.specs && self.0.names == other.0.names
    }
}

impl Eq for RuleSet {}

/// A rule that was applied, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedRule<'r> {
    /// Index, counted from 0.
    pub index: u16,
    /// Its name.
    pub name: &'r str,
}

fn table(direction: RuleDirection, request: bool, method: usize) -> usize {
    let direction = match direction {
        RuleDirection::In => 0,
        RuleDirection::Out => 1,
    };
    (direction * 2 + usize::from(request)) * METHODS + method
}

impl RuleSet {
    /// Compiles rules.
    ///
    /// # Errors
    /// All errors of the rules, with location and remedy.
    pub fn compile(specs: &[RuleSpec], known: &RuleNames) -> Result<RuleSet, Vec<RuleError>> {
        let mut compiled = CompiledRules {
            specs: specs.to_vec(),
            rules: Vec::with_capacity(specs.len()),
            tables: vec![Vec::new(); 4 * METHODS],
            has_rules: [RuleDirection::In, RuleDirection::Out]
                .map(|direction| specs.iter().any(|spec| spec.direction == direction)),
            names: known.clone(),
        };
        let mut faults = Vec::new();
        if specs.len() > MAX_RULES {
            faults.push(RuleError {
                rule: MAX_RULES,
                path: String::new(),
                message: format!("more than {MAX_RULES} rules"),
                remedy: "combine rules by conditions".to_owned(),
            });
            return Err(faults);
        }
        for (index, spec) in specs.iter().enumerate() {
            if let Some(rule) = compile(spec, index, known, &mut faults) {
                add_to_tables(spec, index as u16, &mut compiled.tables);
                compiled.rules.push(rule);
            }
        }
        match faults.is_empty() {
            true => Ok(RuleSet(Arc::new(compiled))),
            false => Err(faults),
        }
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.0.rules.is_empty()
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.0.rules.len()
    }

    /// The rules as configured.
    pub fn specs(&self) -> &[RuleSpec] {
        &self.0.specs
    }

    /// Whether any rule applies to messages of this direction.
    #[inline]
    pub fn has_rules_for(&self, direction: RuleDirection) -> bool {
        let [incoming, outgoing] = self.0.has_rules;
        match direction {
            RuleDirection::In => incoming,
            RuleDirection::Out => outgoing,
        }
    }

    /// Whether any rule may apply to such messages; if not, callers need not prepare a context.
    #[inline]
    pub fn applies_to(&self, direction: RuleDirection, request: bool, method: &Method<'_>) -> bool {
        match self.0.tables.get(table(direction, request, slot(method))) {
            Some(rules) => !rules.is_empty(),
            None => false,
        }
    }

    /// Rules that may send requests of peers of this interface and kind, which are not trunks, to a trunk: name of the
    /// rule and of the trunk. Conditions in CEL are not evaluated.
    pub fn routes_of(&self, interface: u16, kind: PeerKind) -> Vec<(&str, &str)> {
        let compiled = &*self.0;
        let peer = PeerRef {
            interface,
            kind,
            trunk: None,
        };
        let mut found = Vec::new();
        for (spec, rule) in compiled.specs.iter().zip(&compiled.rules) {
            let applies = spec.direction == RuleDirection::In
                && spec.on != MessageFilter::Response
                && rule.matches_peer(&peer);
            if !applies {
                continue;
            }
            for action in &spec.actions {
                if action.verb == Verb::Route {
                    found.push((spec.name.as_str(), action.object.as_str()));
                }
            }
            if spec.stop && spec.when.is_none() && spec.methods.is_empty() {
                break;
            }
        }
        found
    }

    /// Evaluates the rules for a message and adds the results to `effects`.
    pub fn run(&self, context: &MessageContext<'_>, effects: &mut Effects) {
        let compiled = &*self.0;
        let at = table(
            context.direction,
            context.is_request(),
            slot(&context.method),
        );
        let Some(candidates) = compiled.tables.get(at) else {
            return;
        };
        for &index in candidates {
            let Some(rule) = compiled.rules.get(usize::from(index)) else {
                continue;
            };
            if !rule.matches_peer(&context.remote) || !rule.matches_method(&context.method) {
                continue;
            }
            let holds = {
                let view = MessageView { context, effects };
                rule.condition.holds(&view, &compiled.names)
            };
            match holds {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => {
                    effects.failed_conditions += 1;
                    continue;
                }
            }
            effects.matched.push(index);
            for action in &rule.actions {
                action.apply(index, context, &compiled.names, effects);
            }
            if rule.stop || effects.refusal.is_some() {
                return;
            }
        }
    }

    /// The name of a rule.
    pub fn name(&self, rule: u16) -> &str {
        self.0
            .specs
            .get(usize::from(rule))
            .map_or("", |spec| spec.name.as_str())
    }

    /// Headers that the actions of a rule change, and `Request-URI`, separated by commas; empty if it changes none.
    pub fn edited_headers(&self, rule: u16) -> &str {
        let rule = self.0.rules.get(usize::from(rule));
        rule.map_or("", |rule| &rule.edited)
    }

    /// The rules that were applied according to `effects`.
    pub fn matched_rules<'r>(
        &'r self,
        effects: &'r Effects,
    ) -> impl Iterator<Item = MatchedRule<'r>> {
        effects.matched.iter().map(|&index| MatchedRule {
            index,
            name: self.name(index),
        })
    }
}

/// The header that an action changes, or `Request-URI`; `None` if it changes no message.
fn edited_header(action: &Action) -> Option<String> {
    let header = |name: &HeaderName| String::from_utf8_lossy(&name.text).into_owned();
    match action {
        Action::Add(name, _) | Action::Set(name, _) | Action::Remove(name, ..) => {
            Some(header(name))
        }
        Action::RemovePart(target, ..)
        | Action::Replace(Replacement { target, .. })
        | Action::Rewrite(target, ..)
        | Action::Number(target, ..) => Some(match target {
            ActionTarget::RequestUri => "Request-URI".to_owned(),
            ActionTarget::Header(name) => header(name),
        }),
        Action::Fields(actions, _) => {
            let headers = actions.iter().filter_map(edited_header);
            Some(headers.collect::<Vec<String>>().join(","))
        }
        Action::Reject(..) | Action::Route(_) | Action::Tag(..) | Action::Log(_) => None,
    }
}

/// Adds a rule to the tables of the messages that it applies to.
fn add_to_tables(spec: &RuleSpec, index: u16, tables: &mut [Vec<u16>]) {
    let kinds: &[bool] = match spec.on {
        MessageFilter::Any => &[false, true],
        MessageFilter::Request => &[true],
        MessageFilter::Response => &[false],
    };
    let mut methods: Vec<usize> = match spec.methods.is_empty() {
        true => (0..METHODS).collect(),
        false => spec
            .methods
            .iter()
            .map(|method| slot(&Method::from_bytes(method.as_bytes())))
            .collect(),
    };
    methods.sort_unstable();
    methods.dedup();
    for &request in kinds {
        for &method in &methods {
            if let Some(rules) = tables.get_mut(table(spec.direction, request, method)) {
                rules.push(index);
            }
        }
    }
}

/// Compiles a rule. Adds all its errors to `faults` and returns `None` if there are any.
fn compile(
    spec: &RuleSpec,
    index: usize,
    known: &RuleNames,
    faults: &mut Vec<RuleError>,
) -> Option<Rule> {
    let before = faults.len();
    let mut report = |path: String, diagnosis: Diagnosis| {
        faults.push(RuleError {
            rule: index,
            path,
            message: diagnosis.message,
            remedy: diagnosis.remedy,
        });
    };
    for method in &spec.methods {
        if method.is_empty() || !method.bytes().all(crate::grammar::is_token) {
            report(
                "method".to_owned(),
                Diagnosis::new(
                    format!("\"{method}\" is not a method"),
                    "write for example \"INVITE\"",
                ),
            );
        } else if Method::from_bytes(method.as_bytes()).known().is_none()
            && Method::from_bytes(method.to_ascii_uppercase().as_bytes())
                .known()
                .is_some()
        {
            report(
                "method".to_owned(),
                Diagnosis::new(
                    format!("\"{method}\": method names are case-sensitive"),
                    format!("write \"{}\"", method.to_ascii_uppercase()),
                ),
            );
        } else if method == "CANCEL" {
            report(
                "method".to_owned(),
                Diagnosis::new(
                    "CANCEL is hop-by-hop: no rule applies to it",
                    "remove it from `method`",
                ),
            );
        }
    }
    let condition = match spec.when.as_deref().map(Condition::parse) {
        None => Condition::always(),
        Some(Ok(condition)) => condition,
        Some(Err(diagnosis)) => {
            report("when".to_owned(), diagnosis);
            Condition::always()
        }
    };
    if spec.actions.is_empty() && !spec.stop {
        report(
            String::new(),
            Diagnosis::new("the rule has no effect", "add `do`, or stop = true"),
        );
    }
    let mut actions = Vec::with_capacity(spec.actions.len());
    for (at, action) in spec.actions.iter().enumerate() {
        match Action::compile(action, spec, known) {
            Ok(action) => actions.push(action),
            Err(wrongs) => {
                for (key, diagnosis) in wrongs {
                    report(format!("do[{at}].{key}"), diagnosis);
                }
            }
        }
    }
    let mut edited: Vec<String> = actions.iter().filter_map(edited_header).collect();
    edited.dedup();
    (faults.len() == before).then(|| Rule {
        edited: edited.join(",").into(),
        interfaces: spec.interfaces.clone(),
        kinds: spec.kinds.clone(),
        trunks: spec.trunks.clone(),
        other_methods: spec
            .methods
            .iter()
            .map(|method| method.as_bytes())
            .filter(|method| Method::from_bytes(method).known().is_none())
            .map(Into::into)
            .collect(),
        condition,
        actions: prepare_fields(actions),
        stop: spec.stop,
    })
}
