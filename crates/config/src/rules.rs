//! `[[rules]]` and `[identity]`: compiled header rules, and identities at the boundary of the trust domain.

use super::one_or_many::OneOrMany;
use super::sink::Sink;
use rules::{
    ActionSpec, MessageFilter, NumberForm, PeerKind, RuleDirection, RuleNames, RuleSet, RuleSpec,
    ValueSelector, Verb,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Direction of the messages of a rule.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawDirection {
    /// Received messages, before routing.
    In,
    /// Sent messages, when they are composed.
    Out,
}

/// Kind of peer.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawPlaceKind {
    /// A peer at an access interface that is not a trunk.
    Access,
    /// A peer at a core interface that is not a trunk.
    Core,
    /// A trunk.
    Trunk,
}

/// Kind of message.
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
    /// As dialled within the country.
    National,
}

/// Selection of values of a header.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum RawWhich {
    /// `first`, `last` or `all`.
    Word(String),
    /// Counted from 1.
    Number(#[schemars(range(min = 1, max = 250))] u16),
}

/// A header rule: conditions and actions. Rules are tried in order; each rule whose conditions hold is applied to the
/// result of the previous ones.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    /// Name in logs. Default: `rule N`.
    pub name: Option<String>,
    /// Condition: interfaces. Default: all.
    #[serde(default)]
    pub interface: OneOrMany<String>,
    /// Condition: kinds of peers (`access`, `core`, `trunk`). Default: all.
    #[serde(default)]
    pub kind: OneOrMany<RawPlaceKind>,
    /// Condition: trunks. Default: all peers.
    #[serde(default)]
    pub trunk: OneOrMany<String>,
    /// `in`: received messages, before routing. `out`: sent messages, when they are composed.
    pub direction: RawDirection,
    /// `request`, `response` or `any`.
    #[serde(default)]
    pub on: RawOn,
    /// Condition: methods; of a response, the method of its request. Default: all.
    #[serde(default)]
    pub method: OneOrMany<String>,
    /// Condition: CEL expression over the facts of the message. Default: true.
    pub when: Option<String>,
    /// Actions, applied in order.
    #[serde(default, rename = "do")]
    pub actions: Vec<RawAction>,
    /// Whether later rules are skipped if the conditions of this one hold.
    #[serde(default)]
    pub stop: bool,
}

/// An action: exactly one of `add`, `set`, `remove`, `replace`, `rewrite`, `number`, `reject`, `route`, `tag` and
/// `log`, with its parameters.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAction {
    /// Adds a header of this name, with `value`.
    pub add: Option<String>,
    /// Sets the header of this name to the single value `value`.
    pub set: Option<String>,
    /// Removes this header, or the values selected by `which` or `regex`, or with `part` a part of its addresses.
    pub remove: Option<String>,
    /// Replaces the matches of `regex` by `with` in this header, or with `part` in that part of its addresses. Also for
    /// `Request-URI`, `From` and `To`.
    pub replace: Option<String>,
    /// Sets the `part` of the address in this header to `value`. Also for `Request-URI`, `From` and `To`.
    pub rewrite: Option<String>,
    /// Changes the number in the address of this header by `strip`, `form` and `prefix`. Also for `Request-URI`, `From`
    /// and `To`.
    pub number: Option<String>,
    /// Refuses the request with this status.
    #[schemars(range(min = 400, max = 699))]
    pub reject: Option<u16>,
    /// Sends the request to this trunk instead of applying routes.
    pub route: Option<String>,
    /// Stores `value` under this name with the call, for later rules (`tag["NAME"]`), events and the list of calls.
    pub tag: Option<String>,
    /// Writes this line to the log.
    pub log: Option<String>,
    /// Value: text in which `${FACT}` is expanded; `$$` is a `$`. An empty result changes nothing.
    pub value: Option<String>,
    /// Part of an address: `user`, `host`, `port`, `scheme`, `display`, `uri`, `params.NAME`, `uri-params.NAME`.
    pub part: Option<String>,
    /// Which values of the header: `first`, `last`, `all`, or a number from 1. Default: `first` for `rewrite` and
    /// `number`, `all` for `remove` and `replace`.
    pub which: Option<RawWhich>,
    /// Regular expression.
    pub regex: Option<String>,
    /// Replacement: text in which `$1` or `${1}` (groups) and `${FACT}` are expanded.
    pub with: Option<String>,
    /// Form of the number: `e164` (+ and country code), `digits` (the same without +), `national`.
    pub form: Option<RawForm>,
    /// Country code, for `form`.
    pub country: Option<String>,
    /// Trunk prefix of national numbers, for `form`. Default: `0`. Empty: there is none, as in Denmark, Italy, Poland
    /// or Spain; `national_digits` then tells which numbers are national.
    pub national_prefix: Option<String>,
    /// Number of digits of national numbers that are written without a prefix, for `form`. Default: such numbers are
    /// not changed.
    #[schemars(range(min = 1, max = 15))]
    pub national_digits: Option<u32>,
    /// International prefix before a country code, for `form`. Default: `00`.
    pub international_prefix: Option<String>,
    /// Number of leading characters removed from the number, before `form`.
    #[schemars(range(max = 64))]
    pub strip: Option<u32>,
    /// Prefix added to the number, after `form`.
    pub prefix: Option<String>,
    /// Reason phrase of `reject`. Default: that of the status.
    pub reason: Option<String>,
}

/// Treatment of diversion information at the boundary of the trust domain.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawHistory {
    /// It is removed.
    #[default]
    Remove,
    /// Towards an untrusted side its addresses become anonymous; from an untrusted side it is removed.
    Anonymise,
    /// It is passed unchanged.
    Pass,
}

/// Identities at the boundary of the trust domain (RFC 3325, RFC 3323).
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawIdentityPolicy {
    /// Whether the identity of callers that authenticated by digest is asserted to trusted sides (P-Asserted-Identity).
    pub assert: bool,
    /// Whether Privacy is applied to calls towards untrusted sides: asserted identities are removed (`id`), From
    /// becomes anonymous, and headers with information about the user are removed (`user`, `header`).
    pub privacy: bool,
    /// Diversion (RFC 5806) at the boundary of the trust domain.
    pub diversion: RawHistory,
    /// History-Info (RFC 7044) at the boundary of the trust domain.
    pub history_info: RawHistory,
    /// Whether Remote-Party-ID, the predecessor of P-Asserted-Identity, of trusted sides is relayed. With `privacy`,
    /// values that request privacy (`privacy=full`) are not relayed to sides that are not trusted.
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

/// Treatment of diversion information at the boundary of the trust domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// It is removed.
    Remove,
    /// Towards an untrusted side its addresses become anonymous; from an untrusted side it is removed.
    Anonymise,
    /// It is passed unchanged.
    Pass,
}

/// Identities at the boundary of the trust domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityPolicy {
    /// Whether the identity of authenticated callers is asserted to trusted sides (RFC 3325 section 5).
    pub assert: bool,
    /// Whether Privacy is applied towards untrusted sides (RFC 3323 section 5).
    pub privacy: bool,
    /// Treatment of Diversion.
    pub diversion: History,
    /// Treatment of History-Info.
    pub history_info: History,
    /// Whether Remote-Party-ID of trusted sides is relayed.
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

pub(super) fn rules(raw: &[RawRule], sink: &mut Sink<'_>) -> RuleSet {
    let specs: Vec<RuleSpec> = raw
        .iter()
        .enumerate()
        .map(|(index, rule)| spec(rule, index, sink))
        .collect();
    let known = RuleNames {
        interfaces: sink.names.interfaces.clone(),
        trunks: sink.names.trunks.clone(),
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

fn spec(rule: &RawRule, index: usize, sink: &mut Sink<'_>) -> RuleSpec {
    let path = format!("rules[{index}]");
    let mut places = |names: &OneOrMany<String>, key: &str, interface: bool| -> Vec<u16> {
        let base = format!("{path}.{key}");
        let names_and_paths = names.as_slice().iter().enumerate();
        names_and_paths
            .map(|(at, name)| {
                let at = names.path(&base, at);
                match interface {
                    true => sink.interface_id(name, &at).0,
                    false => sink.trunk_id(name, &at).0,
                }
            })
            .collect()
    };
    let interfaces = places(&rule.interface, "interface", true);
    let trunks = places(&rule.trunk, "trunk", false);
    let kinds = rule.kind.as_slice().iter().map(|kind| match kind {
        RawPlaceKind::Access => PeerKind::Access,
        RawPlaceKind::Core => PeerKind::Core,
        RawPlaceKind::Trunk => PeerKind::Trunk,
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
            RawDirection::In => RuleDirection::In,
            RawDirection::Out => RuleDirection::Out,
        },
        on: match rule.on {
            RawOn::Any => MessageFilter::Any,
            RawOn::Request => MessageFilter::Request,
            RawOn::Response => MessageFilter::Response,
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
            None => "the action has no verb",
            Some(_) => "the action has several verbs",
        };
        let remedy = format!("use exactly one of {}", names.join(", "));
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
            RawForm::E164 => NumberForm::E164,
            RawForm::Digits => NumberForm::Digits,
            RawForm::National => NumberForm::National,
        }),
        country: action.country.clone(),
        national_prefix: action.national_prefix.clone(),
        national_digits: action.national_digits,
        international_prefix: action.international_prefix.clone(),
        strip: action.strip,
        prefix: action.prefix.clone(),
        reason: action.reason.clone(),
        ..ActionSpec::new(verb, object.clone())
    })
}

fn which_of(which: &RawWhich, path: &str, sink: &mut Sink<'_>) -> Option<ValueSelector> {
    Some(match which {
        RawWhich::Number(number) => ValueSelector::Number(*number),
        RawWhich::Word(word) => match word.as_str() {
            "first" => ValueSelector::First,
            "last" => ValueSelector::Last,
            "all" => ValueSelector::All,
            _ => {
                sink.report(
                    &format!("{path}.which"),
                    format!("\"{word}\" does not select values"),
                    "write \"first\", \"last\", \"all\" or a number from 1",
                );
                return None;
            }
        },
    })
}
