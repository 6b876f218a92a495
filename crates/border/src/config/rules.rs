//! `[[rules]]` and `[identity]`: header rules compiled, and what crosses the boundary of trust.

use super::check::{Sink, interface_id, trunk_id};
use super::raw::{OneOrMany, Raw};
use rules::{ActionSpec, Direction, Form, Kind, Known, On, RuleSet, RuleSpec, Verb, Which};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a rule looks at what comes or at what leaves.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawDirection {
    /// Messages that come, before they are routed.
    In,
    /// Messages that leave, when they are composed.
    Out,
}

/// What stands at the other end.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawPlaceKind {
    /// A peer at an access interface that is no trunk.
    Access,
    /// A peer at a core interface that is no trunk.
    Core,
    /// A trunk.
    Trunk,
}

/// Which messages.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawOn {
    /// Requests and responses.
    #[default]
    Any,
    /// Requests.
    Request,
    /// Responses.
    Response,
}

/// The form of a telephone number.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawForm {
    /// `+` and country code.
    E164,
    /// Country code without `+`.
    Digits,
    /// As dialled inside the country.
    National,
}

/// Which values of a header.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RawWhich {
    /// `first`, `last` or `all`.
    Word(String),
    /// Counted from 1.
    Number(#[schemars(range(min = 1, max = 250))] u16),
}

/// A header rule: where and when it holds, and what is done then. Rules are tried in the order of the file; each that holds is
/// carried out, on what the ones before have made of the message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    /// Its name for logs. Default: `rule N`.
    pub name: Option<String>,
    /// Interfaces at which it holds. Default: all.
    #[serde(default)]
    pub interface: OneOrMany<String>,
    /// Kinds of peers with which it holds: `access`, `core`, `trunk`. Default: all.
    #[serde(default)]
    pub kind: OneOrMany<RawPlaceKind>,
    /// Trunks with which it holds. Default: all peers, trunks or not.
    #[serde(default)]
    pub trunk: OneOrMany<String>,
    /// `in`: messages that come, before they are routed. `out`: messages that leave, when they are composed.
    pub direction: RawDirection,
    /// `request`, `response` or `any`.
    #[serde(default)]
    pub on: RawOn,
    /// Methods; of a response, that of its request. Default: all.
    #[serde(default)]
    pub method: OneOrMany<String>,
    /// Condition in CEL over the facts of the message. Default: always.
    pub when: Option<String>,
    /// What is done, in order.
    #[serde(default, rename = "do")]
    pub actions: Vec<RawAction>,
    /// Whether later rules are left out where this one holds.
    #[serde(default)]
    pub stop: bool,
}

/// An action: exactly one of `add`, `set`, `remove`, `replace`, `rewrite`, `number`, `reject`, `route`, `tag` and `log`, with
/// the keys that it takes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAction {
    /// Adds a header of this name, with `value`.
    pub add: Option<String>,
    /// The header of this name has one value, `value`, whatever it had.
    pub set: Option<String>,
    /// Takes this header out, or its values that `which` or `regex` name, or with `part` a part of its addresses.
    pub remove: Option<String>,
    /// In this header, or with `part` in that part of its addresses, what `regex` matches becomes `with`. `Request-URI`,
    /// `From` and `To` too.
    pub replace: Option<String>,
    /// The `part` of this header's address becomes `value`. `Request-URI`, `From` and `To` too.
    pub rewrite: Option<String>,
    /// The number in this header's address changes by `strip`, `form` and `prefix`. `Request-URI`, `From` and `To` too.
    pub number: Option<String>,
    /// Refuses the request with this status.
    #[schemars(range(min = 400, max = 699))]
    pub reject: Option<u16>,
    /// Sends the request to this trunk, whatever the routes say.
    pub route: Option<String>,
    /// Keeps `value` under this name with the call: for later rules (`tag["NAME"]`), events and the list of calls.
    pub tag: Option<String>,
    /// Writes this line to the log.
    pub log: Option<String>,
    /// Value: text with `${FACT}` filled in; `$$` is a `$`. A value that comes out empty changes nothing.
    pub value: Option<String>,
    /// Part of an address: `user`, `host`, `port`, `scheme`, `display`, `uri`, `params.NAME`, `uri-params.NAME`.
    pub part: Option<String>,
    /// Which values of the header: `first`, `last`, `all`, or a number from 1. Default: `first` for `rewrite` and `number`,
    /// `all` for `remove` and `replace`.
    pub which: Option<RawWhich>,
    /// Regular expression.
    pub regex: Option<String>,
    /// What the match becomes: text with `$1` or `${1}` (groups) and `${FACT}` filled in.
    pub with: Option<String>,
    /// Form of the number: `e164` (+ and country code), `digits` (the same without +), `national`.
    pub form: Option<RawForm>,
    /// Country code, for `form`.
    pub country: Option<String>,
    /// What is dialled before numbers of the own country, for `form`. Default: `0`.
    pub national_prefix: Option<String>,
    /// What is dialled before a country code, for `form`. Default: `00`.
    pub international_prefix: Option<String>,
    /// Leading characters taken off the number, before `form`.
    #[schemars(range(max = 64))]
    pub strip: Option<u32>,
    /// Put in front of the number, after `form`.
    pub prefix: Option<String>,
    /// Reason phrase of `reject`. Default: the usual one of the status.
    pub reason: Option<String>,
}

/// What becomes of who diverted a call where trust ends.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawHistory {
    /// It is taken out.
    #[default]
    Remove,
    /// Towards a side that is not trusted its addresses become anonymous; from one it is taken out.
    Anonymise,
    /// It passes as it is.
    Pass,
}

/// Identities where trust begins and ends (RFC 3325, RFC 3323).
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawIdentityPolicy {
    /// Whether a caller who proved by digest who it is gets a P-Asserted-Identity towards sides that are trusted.
    pub assert: bool,
    /// Whether Privacy is carried out for calls that leave the trusted sides: asserted identities taken out (`id`), From
    /// anonymous and headers that tell of the user gone (`user`, `header`).
    pub privacy: bool,
    /// Diversion (RFC 5806) where trust begins or ends.
    pub diversion: RawHistory,
    /// History-Info (RFC 7044) where trust begins or ends.
    pub history_info: RawHistory,
    /// Whether Remote-Party-ID, the forerunner of P-Asserted-Identity, passes between trusted sides.
    pub remote_party_id: bool,
}

impl Default for RawIdentityPolicy {
    fn default() -> Self {
        RawIdentityPolicy {
            assert: true,
            privacy: true,
            diversion: RawHistory::Remove,
            history_info: RawHistory::Remove,
            remote_party_id: true,
        }
    }
}

/// What becomes of who diverted a call where trust ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// It is taken out.
    Remove,
    /// Towards a side that is not trusted its addresses become anonymous; from one it is taken out.
    Anonymise,
    /// It passes.
    Pass,
}

/// Identities where trust begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityPolicy {
    /// Whether proven callers get a P-Asserted-Identity towards trusted sides (RFC 3325 section 5).
    pub assert: bool,
    /// Whether Privacy is carried out towards sides that are not trusted (RFC 3323 section 5).
    pub privacy: bool,
    /// Diversion across the boundary.
    pub diversion: History,
    /// History-Info across the boundary.
    pub history_info: History,
    /// Whether Remote-Party-ID passes between trusted sides.
    pub remote_party_id: bool,
}

pub(super) fn identity_policy(raw: &RawIdentityPolicy) -> IdentityPolicy {
    let history = |raw: RawHistory| match raw {
        RawHistory::Remove => History::Remove,
        RawHistory::Anonymise => History::Anonymise,
        RawHistory::Pass => History::Pass,
    };
    IdentityPolicy {
        assert: raw.assert,
        privacy: raw.privacy,
        diversion: history(raw.diversion),
        history_info: history(raw.history_info),
        remote_party_id: raw.remote_party_id,
    }
}

pub(super) fn rules(raw: &Raw, sink: &mut Sink<'_>) -> RuleSet {
    let specs: Vec<RuleSpec> = raw
        .rules
        .iter()
        .enumerate()
        .map(|(index, rule)| spec(raw, rule, index, sink))
        .collect();
    let names = |names: Vec<&String>| names.into_iter().cloned().collect();
    let known = Known {
        interfaces: names(
            raw.interface
                .iter()
                .map(|interface| &interface.name)
                .collect(),
        ),
        trunks: names(raw.trunk.iter().map(|trunk| &trunk.name).collect()),
    };
    match RuleSet::compile(&specs, &known) {
        Ok(rules) => rules,
        Err(faults) => {
            for fault in faults {
                let path = match fault.path.as_str() {
                    "" => format!("rules[{}]", fault.rule),
                    inner => format!("rules[{}].{inner}", fault.rule),
                };
                sink.report(&path, fault.message, fault.remedy);
            }
            RuleSet::default()
        }
    }
}

fn spec(raw: &Raw, rule: &RawRule, index: usize, sink: &mut Sink<'_>) -> RuleSpec {
    let path = format!("rules[{index}]");
    let mut places = |names: &OneOrMany<String>, key: &str, interface: bool| -> Vec<u16> {
        let base = format!("{path}.{key}");
        let names_and_paths = names.as_slice().iter().enumerate();
        names_and_paths
            .map(|(at, name)| {
                let at = names.path(&base, at);
                match interface {
                    true => interface_id(raw, name, &at, sink).0,
                    false => trunk_id(raw, name, &at, sink).0,
                }
            })
            .collect()
    };
    let interfaces = places(&rule.interface, "interface", true);
    let trunks = places(&rule.trunk, "trunk", false);
    let kinds = rule.kind.as_slice().iter().map(|kind| match kind {
        RawPlaceKind::Access => Kind::Access,
        RawPlaceKind::Core => Kind::Core,
        RawPlaceKind::Trunk => Kind::Trunk,
    });
    let actions = rule
        .actions
        .iter()
        .enumerate()
        .filter_map(|(at, action)| action_spec(action, &format!("{path}.do[{at}]"), sink))
        .collect();
    RuleSpec {
        name: rule
            .name
            .clone()
            .unwrap_or_else(|| format!("rule {}", index + 1)),
        interfaces,
        kinds: kinds.collect(),
        trunks,
        direction: match rule.direction {
            RawDirection::In => Direction::In,
            RawDirection::Out => Direction::Out,
        },
        on: match rule.on {
            RawOn::Any => On::Any,
            RawOn::Request => On::Request,
            RawOn::Response => On::Response,
        },
        methods: rule.method.as_slice().to_vec(),
        when: rule.when.clone(),
        actions,
        stop: rule.stop,
    }
}

fn action_spec(action: &RawAction, path: &str, sink: &mut Sink<'_>) -> Option<ActionSpec> {
    let status = action.reject.map(|status| status.to_string());
    let verbs = [
        (Verb::Add, &action.add),
        (Verb::Set, &action.set),
        (Verb::Remove, &action.remove),
        (Verb::Replace, &action.replace),
        (Verb::Rewrite, &action.rewrite),
        (Verb::Number, &action.number),
        (Verb::Reject, &status),
        (Verb::Route, &action.route),
        (Verb::Tag, &action.tag),
        (Verb::Log, &action.log),
    ];
    let mut said = verbs
        .iter()
        .filter_map(|(verb, object)| Some((*verb, object.as_ref()?)));
    let first = said.next();
    let (Some((verb, object)), None) = (first, said.next()) else {
        let names: Vec<&str> = Verb::ALL.iter().map(|verb| verb.name()).collect();
        let message = match first {
            None => "the action does not say what to do",
            Some(_) => "the action says more than one thing to do",
        };
        let remedy = format!("give exactly one of {}", names.join(", "));
        sink.report(path, message, remedy);
        return None;
    };
    Some(ActionSpec {
        value: action.value.clone(),
        part: action.part.clone(),
        which: action
            .which
            .as_ref()
            .and_then(|which| which_of(which, path, sink)),
        regex: action.regex.clone(),
        with: action.with.clone(),
        form: action.form.map(|form| match form {
            RawForm::E164 => Form::E164,
            RawForm::Digits => Form::Digits,
            RawForm::National => Form::National,
        }),
        country: action.country.clone(),
        national_prefix: action.national_prefix.clone(),
        international_prefix: action.international_prefix.clone(),
        strip: action.strip,
        prefix: action.prefix.clone(),
        reason: action.reason.clone(),
        ..ActionSpec::new(verb, object.clone())
    })
}

fn which_of(which: &RawWhich, path: &str, sink: &mut Sink<'_>) -> Option<Which> {
    Some(match which {
        RawWhich::Number(number) => Which::Number(*number),
        RawWhich::Word(word) => match word.as_str() {
            "first" => Which::First,
            "last" => Which::Last,
            "all" => Which::All,
            _ => {
                sink.report(
                    &format!("{path}.which"),
                    format!("\"{word}\" does not say which value"),
                    "write \"first\", \"last\", \"all\" or a number from 1",
                );
                return None;
            }
        },
    })
}
