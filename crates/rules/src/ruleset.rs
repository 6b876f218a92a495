//! Rules in order, found by direction, kind of message and method.

use crate::action::Action;
use crate::condition::Condition;
use crate::effects::{Effects, View};
use crate::fact::Names;
use crate::joined::joined;
use crate::scene::{Direction, Kind, Place, Scene};
use crate::spec::{Fault, Known, On, RuleSpec, Wrong};
use core::fmt;
use std::sync::Arc;
use wire::sip::Method;

/// Rules at most.
const MAX_RULES: usize = 10_000;
/// Methods that we know, and one place for all others.
const METHODS: usize = Method::KNOWN.len() + 1;

/// The place of a method in the tables.
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
    kinds: Vec<Kind>,
    trunks: Vec<u16>,
    /// Methods without a place of their own in the tables; empty: whichever.
    others: Vec<Box<[u8]>>,
    condition: Condition,
    actions: Vec<Action>,
    stop: bool,
}

impl Rule {
    fn is_for(&self, place: &Place) -> bool {
        (self.interfaces.is_empty() || self.interfaces.contains(&place.interface))
            && (self.kinds.is_empty() || self.kinds.contains(&place.kind))
            && (self.trunks.is_empty()
                || place
                    .trunk
                    .is_some_and(|trunk| self.trunks.contains(&trunk)))
    }

    fn is_for_method(&self, method: &Method<'_>) -> bool {
        match method {
            Method::Other(name) => {
                self.others.is_empty() || self.others.iter().any(|other| **other == **name)
            }
            _ => true,
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    specs: Vec<RuleSpec>,
    rules: Vec<Rule>,
    /// Indices of rules by direction, kind and method.
    tables: Vec<Vec<u16>>,
    /// Whether there are any for what comes, and for what leaves.
    judges: [bool; 2],
    names: Names,
}

/// Compiled rules; a copy shares them.
#[derive(Clone, Default)]
pub struct RuleSet(Arc<Inner>);

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0.specs).finish()
    }
}

/// Rule sets are equal where they are written alike, with the same names behind their indices.
impl PartialEq for RuleSet {
    fn eq(&self, other: &RuleSet) -> bool {
        self.0.specs == other.0.specs && self.0.names == other.0.names
    }
}

impl Eq for RuleSet {}

/// A rule that was carried out, for whoever wants to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit<'r> {
    /// Counted from 0.
    pub index: u16,
    /// Its name.
    pub name: &'r str,
}

fn table(direction: Direction, request: bool, method: usize) -> usize {
    let direction = match direction {
        Direction::In => 0,
        Direction::Out => 1,
    };
    (direction * 2 + usize::from(request)) * METHODS + method
}

impl RuleSet {
    /// Compiles rules.
    ///
    /// # Errors
    /// Every rule that cannot work, with the place and a remedy.
    pub fn compile(specs: &[RuleSpec], known: &Known) -> Result<RuleSet, Vec<Fault>> {
        let mut inner = Inner {
            specs: specs.to_vec(),
            rules: Vec::with_capacity(specs.len()),
            tables: vec![Vec::new(); 4 * METHODS],
            judges: [Direction::In, Direction::Out]
                .map(|direction| specs.iter().any(|spec| spec.direction == direction)),
            names: known.clone(),
        };
        let mut faults = Vec::new();
        if specs.len() > MAX_RULES {
            faults.push(Fault {
                rule: MAX_RULES,
                path: String::new(),
                message: format!("more than {MAX_RULES} rules"),
                remedy: "join rules by conditions".to_owned(),
            });
            return Err(faults);
        }
        for (index, spec) in specs.iter().enumerate() {
            if let Some(rule) = compile(spec, index, known, &mut faults) {
                enter(spec, index as u16, &mut inner.tables);
                inner.rules.push(rule);
            }
        }
        match faults.is_empty() {
            true => Ok(RuleSet(Arc::new(inner))),
            false => Err(faults),
        }
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.0.rules.is_empty()
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.0.rules.len()
    }

    /// Whether any rule looks at messages of this direction.
    #[inline]
    pub fn judges(&self, direction: Direction) -> bool {
        let [comes, leaves] = self.0.judges;
        match direction {
            Direction::In => comes,
            Direction::Out => leaves,
        }
    }

    /// Whether any rule looks at such messages; where not, nothing has to be prepared for them.
    #[inline]
    pub fn concerns(&self, direction: Direction, request: bool, method: &Method<'_>) -> bool {
        match self.0.tables.get(table(direction, request, slot(method))) {
            Some(rules) => !rules.is_empty(),
            None => false,
        }
    }

    /// Judges a message; what is to be done is added to `effects`.
    pub fn run(&self, scene: &Scene<'_>, effects: &mut Effects) {
        let inner = &*self.0;
        let at = table(scene.direction, scene.is_request(), slot(&scene.method));
        let Some(candidates) = inner.tables.get(at) else {
            return;
        };
        for &index in candidates {
            let Some(rule) = inner.rules.get(usize::from(index)) else {
                continue;
            };
            if !rule.is_for(&scene.place) || !rule.is_for_method(&scene.method) {
                continue;
            }
            let holds = {
                let view = View { scene, effects };
                rule.condition.holds(&view, &inner.names)
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
                action.apply(index, scene, &inner.names, effects);
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

    /// The rules that `effects` say were carried out.
    pub fn hits<'r>(&'r self, effects: &'r Effects) -> impl Iterator<Item = Hit<'r>> {
        effects.matched.iter().map(|&index| Hit {
            index,
            name: self.name(index),
        })
    }
}

/// Enters a rule into the tables of the messages that it looks at.
fn enter(spec: &RuleSpec, index: u16, tables: &mut [Vec<u16>]) {
    let kinds: &[bool] = match spec.on {
        On::Any => &[false, true],
        On::Request => &[true],
        On::Response => &[false],
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

fn compile(spec: &RuleSpec, index: usize, known: &Known, faults: &mut Vec<Fault>) -> Option<Rule> {
    let before = faults.len();
    let mut report = |path: String, wrong: Wrong| {
        faults.push(Fault {
            rule: index,
            path,
            message: wrong.message,
            remedy: wrong.remedy,
        });
    };
    for method in &spec.methods {
        if method.is_empty() || !method.bytes().all(crate::grammar::is_token) {
            report(
                "method".to_owned(),
                Wrong::new(
                    format!("\"{method}\" is no method"),
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
                Wrong::new(
                    format!("\"{method}\": methods are written in capitals"),
                    format!("write \"{}\"", method.to_ascii_uppercase()),
                ),
            );
        }
    }
    let condition = match spec.when.as_deref().map(Condition::parse) {
        None => Condition::always(),
        Some(Ok(condition)) => condition,
        Some(Err(wrong)) => {
            report("when".to_owned(), wrong);
            Condition::always()
        }
    };
    if spec.actions.is_empty() && !spec.stop {
        report(
            String::new(),
            Wrong::new("the rule does nothing", "add `do`, or stop = true"),
        );
    }
    let mut actions = Vec::with_capacity(spec.actions.len());
    for (at, action) in spec.actions.iter().enumerate() {
        match Action::compile(action, spec, known) {
            Ok(action) => actions.push(action),
            Err(wrongs) => {
                for (key, wrong) in wrongs {
                    report(format!("do[{at}].{key}"), wrong);
                }
            }
        }
    }
    (faults.len() == before).then(|| Rule {
        interfaces: spec.interfaces.clone(),
        kinds: spec.kinds.clone(),
        trunks: spec.trunks.clone(),
        others: spec
            .methods
            .iter()
            .map(|method| method.as_bytes())
            .filter(|method| Method::from_bytes(method).known().is_none())
            .map(Into::into)
            .collect(),
        condition,
        actions: joined(actions),
        stop: spec.stop,
    })
}
