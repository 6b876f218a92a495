//! Actions: compiled and checked when they are loaded, applied to a message.

use crate::address::{Part, address_with, country_of, part_of, part_of_uri, uri_with};
use crate::context::{MessageContext, RuleDirection};
use crate::effects::{
    Effects, HeaderName, MessageView, Prepared, RuleLogLine, RuleRefusal, RuleTag,
};
use crate::fact::has_parts;
use crate::grammar::{MAX_ADDED, check_changeable, fits, is_line};
use crate::number::Renumber;
use crate::spec::{ActionSpec, Diagnosis, MessageFilter, RuleNames, RuleSpec, ValueSelector, Verb};
use crate::template::{Filled, Template, regular};
use crate::types::nearest;
use crate::value::{ValueTemplate, write_value};
use regex::Regex;
use std::borrow::Cow;
use wire::sip::{HeaderId, Method, NameAddr, Scheme, Uri};

/// Maximum length of a tag's value and of a log line, in characters.
const MAX_TEXT: usize = 512;
/// Maximum number of tags of one message.
const MAX_TAGS: usize = 16;

/// The object of an address action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ActionTarget {
    RequestUri,
    Header(HeaderName),
}

/// Replacement of the matches of a regular expression.
#[derive(Clone, Debug)]
pub(crate) struct Replacement {
    pub(crate) target: ActionTarget,
    /// A part of an address; none: whole values.
    part: Option<Part>,
    which: ValueSelector,
    regex: Regex,
    with: Template,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Add(HeaderName, ValueTemplate),
    Set(HeaderName, ValueTemplate),
    Remove(HeaderName, ValueSelector, Option<Regex>),
    RemovePart(ActionTarget, Part, ValueSelector),
    Replace(Replacement),
    Rewrite(ActionTarget, Part, ValueSelector, Template),
    Number(ActionTarget, ValueSelector, Renumber),
    Reject(u16, Option<Box<str>>),
    Route(u16),
    Tag(Box<str>, Template),
    Log(Template),
    /// Several `Add` and `Set` actions with constant values, and the same in prepared form.
    Fields(Box<[Action]>, Prepared),
}

/// An error at a key of an action.
type ActionKeyError = (&'static str, Diagnosis);

impl Action {
    /// Compiles an action of `rule`.
    pub(crate) fn compile(
        spec: &ActionSpec,
        rule: &RuleSpec,
        known: &RuleNames,
    ) -> Result<Action, Vec<ActionKeyError>> {
        let mut faults = unexpected_keys(spec);
        match compile(spec, rule, known) {
            Ok(action) if faults.is_empty() => return Ok(action),
            Ok(_) => {}
            Err(fault) => faults.push(fault),
        }
        Err(faults)
    }
}

/// Keys that an action of this verb does not take. None is ignored silently.
fn unexpected_keys(spec: &ActionSpec) -> Vec<ActionKeyError> {
    let allowed: &[&str] = match spec.verb {
        Verb::Add | Verb::Set | Verb::Tag => &["value"],
        Verb::Remove => &["which", "regex", "part"],
        Verb::Replace => &["part", "which", "regex", "with"],
        Verb::Rewrite => &["part", "which", "value"],
        Verb::Number => &[
            "which",
            "form",
            "country",
            "national_prefix",
            "national_digits",
            "international_prefix",
            "strip",
            "prefix",
        ],
        Verb::Reject => &["reason"],
        Verb::Route | Verb::Log => &[],
    };
    let written = [
        ("value", spec.value.is_some()),
        ("part", spec.part.is_some()),
        ("which", spec.which.is_some()),
        ("regex", spec.regex.is_some()),
        ("with", spec.with.is_some()),
        ("form", spec.form.is_some()),
        ("country", spec.country.is_some()),
        ("national_prefix", spec.national_prefix.is_some()),
        ("national_digits", spec.national_digits.is_some()),
        ("international_prefix", spec.international_prefix.is_some()),
        ("strip", spec.strip.is_some()),
        ("prefix", spec.prefix.is_some()),
        ("reason", spec.reason.is_some()),
    ];
    written
        .into_iter()
        .filter(|(key, present)| *present && !allowed.contains(key))
        .map(|(key, _)| {
            let verb = spec.verb.name();
            let remedy = match allowed {
                [] => "remove it".to_owned(),
                allowed => format!("remove it; `{verb}` accepts {}", allowed.join(", ")),
            };
            (
                key,
                Diagnosis::new(format!("`{verb}` does not accept `{key}`"), remedy),
            )
        })
        .collect()
}

/// The value of a key that the action requires.
fn required<'s>(
    spec: &ActionSpec,
    key: &'static str,
    value: &'s Option<String>,
) -> Result<&'s str, ActionKeyError> {
    value.as_deref().ok_or_else(|| {
        let verb = spec.verb.name();
        let diagnosis = Diagnosis::new(
            format!("`{verb}` requires `{key}`"),
            format!("add {key} = \"...\""),
        );
        (verb, diagnosis)
    })
}

/// Compiles an action. Everything that can be checked without a message is checked here.
fn compile(
    spec: &ActionSpec,
    rule: &RuleSpec,
    known: &RuleNames,
) -> Result<Action, ActionKeyError> {
    let verb = spec.verb.name();
    Ok(match spec.verb {
        Verb::Add | Verb::Set => {
            let name = header(spec)?;
            let text = required(spec, "value", &spec.value)?;
            let value = ValueTemplate::of(&name, value_for(name.id, text)?);
            match spec.verb {
                Verb::Add => Action::Add(name, value),
                _ => Action::Set(name, value),
            }
        }
        Verb::Remove => remove(spec, rule)?,
        Verb::Replace => {
            let part = part(spec)?;
            let target = target(spec, rule, part.as_ref())?;
            let pattern = required(spec, "regex", &spec.regex)?;
            let regex = regular(pattern).map_err(|diagnosis| ("regex", diagnosis))?;
            let with = required(spec, "with", &spec.with)?;
            let with =
                Template::parse(with, Some(&regex)).map_err(|diagnosis| ("with", diagnosis))?;
            Action::Replace(Replacement {
                which: which(spec, &target, ValueSelector::All)?,
                target,
                part,
                regex,
                with,
            })
        }
        Verb::Rewrite => {
            required(spec, "part", &spec.part)?;
            let part = part(spec)?.unwrap_or(Part::Uri);
            let target = target(spec, rule, Some(&part))?;
            let text = required(spec, "value", &spec.value)?;
            let value = Template::parse(text, None).map_err(|diagnosis| ("value", diagnosis))?;
            check_constant(&target, &part, &value)?;
            let which = which(spec, &target, ValueSelector::First)?;
            Action::Rewrite(target, part, which, value)
        }
        Verb::Number => {
            let target = target(spec, rule, Some(&Part::User))?;
            let which = which(spec, &target, ValueSelector::First)?;
            Action::Number(target, which, renumber(spec)?)
        }
        Verb::Reject => {
            requests_only(rule, verb)?;
            exclude_methods(
                rule,
                &["ACK", "BYE", "CANCEL", "PRACK"],
                verb,
                "cannot be refused",
            )?;
            let status = spec.object.parse().unwrap_or(0);
            if !(400..=699).contains(&status) {
                let what = format!("{} is not an error status", spec.object);
                return Err((verb, Diagnosis::new(what, "write a number from 400 to 699")));
            }
            if spec
                .reason
                .as_ref()
                .is_some_and(|reason| !is_line(reason.as_bytes()))
            {
                let diagnosis =
                    Diagnosis::new("`reason` contains control characters", "write one line");
                return Err(("reason", diagnosis));
            }
            Action::Reject(status, spec.reason.as_deref().map(Into::into))
        }
        Verb::Route => route(spec, rule, known)?,
        Verb::Tag => {
            if !spec.object.bytes().all(crate::grammar::is_token) || spec.object.is_empty() {
                let what = format!("\"{}\" is not a valid tag name", spec.object);
                return Err((verb, Diagnosis::new(what, "use letters, digits and - _")));
            }
            let text = required(spec, "value", &spec.value)?;
            let value = Template::parse(text, None).map_err(|diagnosis| ("value", diagnosis))?;
            Action::Tag(spec.object.as_str().into(), value)
        }
        Verb::Log => {
            let text =
                Template::parse(&spec.object, None).map_err(|diagnosis| (verb, diagnosis))?;
            Action::Log(text)
        }
    })
}

/// The header of an action that writes whole values.
fn header(spec: &ActionSpec) -> Result<HeaderName, ActionKeyError> {
    let verb = spec.verb.name();
    let Some(name) = HeaderName::new(&spec.object) else {
        let what = format!("\"{}\" is not a valid header name", spec.object);
        return Err((
            verb,
            Diagnosis::new(what, "write a name such as \"X-Account\""),
        ));
    };
    check_changeable(name.id, &spec.object).map_err(|diagnosis| (verb, diagnosis))?;
    Ok(name)
}

/// The template of a complete header value.
fn value_for(id: HeaderId, text: &str) -> Result<Template, ActionKeyError> {
    let value = Template::parse(text, None).map_err(|diagnosis| ("value", diagnosis))?;
    if let Some(constant) = value.constant()
        && !fits(id, constant)
    {
        let diagnosis = Diagnosis::new(
            format!("\"{text}\" is not a valid value of this header"),
            match has_parts(id) {
                true => "write an address such as \"<sip:100@example.com>\"",
                false => "write one line with balanced quotes and brackets",
            },
        );
        return Err(("value", diagnosis));
    }
    Ok(value)
}

/// The address part of an action, if it has one.
fn part(spec: &ActionSpec) -> Result<Option<Part>, ActionKeyError> {
    let Some(text) = &spec.part else {
        return Ok(None);
    };
    match Part::parse(text) {
        Some(part) => Ok(Some(part)),
        None => Err((
            "part",
            Diagnosis::new(
                format!("an address has no part \"{text}\""),
                format!("its parts are: {}", Part::NAMES),
            ),
        )),
    }
}

/// The address or header that an action changes.
fn target(
    spec: &ActionSpec,
    rule: &RuleSpec,
    part: Option<&Part>,
) -> Result<ActionTarget, ActionKeyError> {
    let verb = spec.verb.name();
    let fault = |what: String, remedy: &str| Err((verb, Diagnosis::new(what, remedy)));
    if spec.object.eq_ignore_ascii_case("request-uri") {
        initial_requests_only(rule, verb, "Request-URI")?;
        return match part {
            Some(part) if !part.is_of_uri() => {
                let diagnosis = Diagnosis::new(
                    "a Request-URI has neither display name nor header parameters",
                    "use user, host, port, scheme or uri-params.NAME",
                );
                Err(("part", diagnosis))
            }
            _ => Ok(ActionTarget::RequestUri),
        };
    }
    let Some(name) = HeaderName::new(&spec.object) else {
        let what = format!("\"{}\" is not a valid header name", spec.object);
        return fault(what, "write a name such as \"From\", or \"Request-URI\"");
    };
    if matches!(name.id, HeaderId::From | HeaderId::To) {
        initial_requests_only(rule, verb, &spec.object)?;
        return match part {
            None => fault(
                format!(
                    "\"{}\" contains the tag of the dialog and cannot be changed as a whole",
                    spec.object
                ),
                "add part = \"user\" or another part",
            ),
            Some(Part::Param(name)) if name.eq_ignore_ascii_case(b"tag") => Err((
                "part",
                Diagnosis::new(
                    "the tag identifies the dialog: rules cannot change it",
                    "remove the action",
                ),
            )),
            Some(_) => Ok(ActionTarget::Header(name)),
        };
    }
    check_changeable(name.id, &spec.object).map_err(|diagnosis| (verb, diagnosis))?;
    if part.is_some() && !has_parts(name.id) {
        return fault(
            format!(
                "the values of \"{}\" are not addresses and have no parts",
                spec.object
            ),
            "change the whole value: { replace = \"NAME\", regex = \"...\", with = \"...\" }",
        );
    }
    Ok(ActionTarget::Header(name))
}

/// Checks a constant new value of an address part.
fn check_constant(
    target: &ActionTarget,
    part: &Part,
    value: &Template,
) -> Result<(), ActionKeyError> {
    let Some(text) = value
        .constant()
        .and_then(|text| std::str::from_utf8(text).ok())
    else {
        return Ok(());
    };
    let sample: &[u8] = match (part, text) {
        // A telephone number is valid as the user of a tel URI, a name is not.
        (Part::Scheme, _) => b"<sip:1@h>",
        _ => b"<sip:u@h>",
    };
    let is_valid = match target {
        ActionTarget::RequestUri => {
            let sample = sample.get(1..sample.len() - 1).unwrap_or_default();
            uri_with(sample, part, Some(text)).is_some_and(|uri| is_request_uri(&uri))
        }
        ActionTarget::Header(name) => {
            address_with(sample, part, Some(text)).is_some_and(|address| fits(name.id, &address))
        }
    };
    match is_valid {
        true => Ok(()),
        false => Err((
            "value",
            Diagnosis::new(
                format!("\"{text}\" is not valid for this part of an address"),
                match part {
                    Part::Host => "write a host name or an IP address",
                    Part::Port => "write a number from 1 to 65535",
                    Part::Scheme => "write sip, sips or tel",
                    _ => "write a value that is valid there",
                },
            ),
        )),
    }
}

/// The selected values of a header. Request-URI, From and To have a single value.
fn which(
    spec: &ActionSpec,
    target: &ActionTarget,
    usual: ValueSelector,
) -> Result<ValueSelector, ActionKeyError> {
    let single = match target {
        ActionTarget::RequestUri => true,
        ActionTarget::Header(name) => matches!(name.id, HeaderId::From | HeaderId::To),
    };
    match spec.which {
        Some(_) if single => Err((
            "which",
            Diagnosis::new("this header has a single value", "remove `which`"),
        )),
        Some(ValueSelector::Number(0)) => Err((
            "which",
            Diagnosis::new(
                "values are counted from 1",
                "write \"first\", \"last\", \"all\" or a number from 1",
            ),
        )),
        which => Ok(which.unwrap_or(usual)),
    }
}

/// Compiles `remove`: of a part, of values, or of the header.
fn remove(spec: &ActionSpec, rule: &RuleSpec) -> Result<Action, ActionKeyError> {
    if let Some(part) = part(spec)? {
        let target = target(spec, rule, Some(&part))?;
        if !part.is_optional() {
            let what = format!(
                "the {} of an address cannot be removed",
                spec.part.as_deref().unwrap_or("part")
            );
            let remedy =
                "remove port, display, params.NAME or uri-params.NAME, or the whole header";
            return Err(("part", Diagnosis::new(what, remedy)));
        }
        if spec.regex.is_some() {
            let diagnosis = Diagnosis::new(
                "`part` and `regex` cannot be combined",
                "use `when` or `replace`",
            );
            return Err(("regex", diagnosis));
        }
        let which = which(spec, &target, ValueSelector::All)?;
        return Ok(Action::RemovePart(target, part, which));
    }
    let name = header(spec)?;
    let regex = match &spec.regex {
        Some(text) => Some(regular(text).map_err(|diagnosis| ("regex", diagnosis))?),
        None => None,
    };
    let which = which(
        spec,
        &ActionTarget::Header(name.clone()),
        ValueSelector::All,
    )?;
    Ok(Action::Remove(name, which, regex))
}

/// Compiles `number`. Country and prefixes need a form, and a form needs a country.
fn renumber(spec: &ActionSpec) -> Result<Renumber, ActionKeyError> {
    let number = |key: &'static str, value: &Option<String>, usual: &str, plus: bool| {
        let text = value.as_deref().unwrap_or(usual);
        let fits = |byte: u8| byte.is_ascii_digit() || (plus && b"+*#".contains(&byte));
        match text.bytes().all(fits) && text.len() <= 16 {
            true => Ok(text.to_owned()),
            false => Err((
                key,
                Diagnosis::new(
                    format!("\"{text}\" is not a sequence of digits"),
                    "write digits",
                ),
            )),
        }
    };
    let country = number("country", &spec.country, "", false)?;
    let national = number("national_prefix", &spec.national_prefix, "0", false)?;
    let international = number(
        "international_prefix",
        &spec.international_prefix,
        "00",
        false,
    )?;
    let prefix = number("prefix", &spec.prefix, "", true)?;
    match spec.form {
        Some(_) if country.is_empty() => {
            let diagnosis = Diagnosis::new(
                "`form` requires `country`",
                "add the country code: country = \"49\"",
            );
            return Err(("form", diagnosis));
        }
        None if spec.country.is_some()
            || spec.national_prefix.is_some()
            || spec.national_digits.is_some()
            || spec.international_prefix.is_some() =>
        {
            let diagnosis = Diagnosis::new(
                "`country` and its prefixes have no effect without `form`",
                "add form = \"e164\", \"digits\" or \"national\"",
            );
            return Err(("number", diagnosis));
        }
        None if spec.strip.is_none() && spec.prefix.is_none() => {
            let diagnosis = Diagnosis::new(
                "`number` requires `form`, `strip` or `prefix`",
                "add `form`, `strip` or `prefix`",
            );
            return Err(("number", diagnosis));
        }
        _ => {}
    }
    if spec
        .national_digits
        .is_some_and(|digits| !(1..=15).contains(&digits))
    {
        let diagnosis = Diagnosis::new(
            "`national_digits` is the length of a telephone number",
            "write a number from 1 to 15",
        );
        return Err(("national_digits", diagnosis));
    }
    Ok(Renumber {
        strip: spec.strip.unwrap_or(0) as usize,
        form: spec.form,
        country,
        national,
        national_digits: spec.national_digits.map(|digits| digits as usize),
        international,
        prefix,
    })
}

/// Compiles `route`. Only received requests of routable methods can be routed.
fn route(spec: &ActionSpec, rule: &RuleSpec, known: &RuleNames) -> Result<Action, ActionKeyError> {
    requests_only(rule, "route")?;
    if rule.direction == RuleDirection::Out {
        let diagnosis = Diagnosis::new(
            "a sent message is already routed",
            "write direction = \"in\"",
        );
        return Err(("route", diagnosis));
    }
    let routable = ["INVITE", "MESSAGE", "PUBLISH"];
    if let Some(other) = rule
        .methods
        .iter()
        .find(|method| !routable.contains(&method.as_str()))
    {
        let what = format!("{other} requests are not routed");
        let remedy = "write method = [\"INVITE\"]; MESSAGE and PUBLISH are routed too";
        return Err(("route", Diagnosis::new(what, remedy)));
    }
    match known.trunks.iter().position(|trunk| *trunk == spec.object) {
        Some(at) => Ok(Action::Route(at as u16)),
        None => {
            let names: Vec<&str> = known.trunks.iter().map(String::as_str).collect();
            let remedy = match nearest(&spec.object, &names) {
                Some(word) => format!("did you mean \"{word}\"?"),
                None if names.is_empty() => {
                    format!("add a [[trunk]] with name = \"{}\"", spec.object)
                }
                None => format!("there are: {}", names.join(", ")),
            };
            let what = format!("there is no trunk \"{}\"", spec.object);
            Err(("route", Diagnosis::new(what, remedy)))
        }
    }
}

/// Refuses actions that have no effect on responses.
fn requests_only(rule: &RuleSpec, verb: &'static str) -> Result<(), ActionKeyError> {
    match rule.on {
        MessageFilter::Response => Err((
            verb,
            Diagnosis::new(
                format!("`{verb}` has no effect on a response"),
                "write on = \"request\"",
            ),
        )),
        MessageFilter::Any | MessageFilter::Request => Ok(()),
    }
}

/// Request-URI, From and To belong to the dialog once it exists, so only initial requests may change them.
fn initial_requests_only(
    rule: &RuleSpec,
    verb: &'static str,
    what: &str,
) -> Result<(), ActionKeyError> {
    if rule.on == MessageFilter::Response {
        let diagnosis = Diagnosis::new(
            format!("{what} of a response is copied from its request"),
            "write on = \"request\"",
        );
        return Err((verb, diagnosis));
    }
    let in_dialog = ["ACK", "BYE", "CANCEL", "PRACK", "UPDATE", "INFO", "NOTIFY"];
    let all_in_dialog = !rule.methods.is_empty()
        && rule
            .methods
            .iter()
            .all(|method| in_dialog.contains(&method.as_str()));
    match all_in_dialog {
        true => Err((
            verb,
            Diagnosis::new(
                format!(
                    "{what} of {} is fixed by the dialog",
                    rule.methods.join(", ")
                ),
                "change it in the initial request: method =  \"INVITE\"",
            ),
        )),
        false => Ok(()),
    }
}

/// Refuses a rule that lists methods to which an action cannot apply.
fn exclude_methods(
    rule: &RuleSpec,
    methods: &[&str],
    verb: &'static str,
    why: &str,
) -> Result<(), ActionKeyError> {
    match rule
        .methods
        .iter()
        .find(|method| methods.contains(&method.as_str()))
    {
        Some(method) => Err((
            verb,
            Diagnosis::new(
                format!("{method} {why}"),
                format!("remove {method} from `method`"),
            ),
        )),
        None => Ok(()),
    }
}

/// Whether this is a valid Request-URI (RFC 3261 section 19.1.1).
fn is_request_uri(uri: &[u8]) -> bool {
    Uri::parse(uri)
        .is_some_and(|uri| uri.headers.is_empty() && !matches!(uri.scheme, Scheme::Other(_)))
}

/// The change of one value.
enum ValueChange {
    Keep,
    Replace(Vec<u8>),
    Remove,
    /// The new value would break the message.
    Invalid,
}

impl Action {
    /// Applies the action to the context's message with the present `effects`.
    pub(crate) fn apply(
        &self,
        rule: u16,
        context: &MessageContext<'_>,
        names: &RuleNames,
        effects: &mut Effects,
    ) {
        if effects.is_full() {
            effects.refused_edits += match self {
                Action::Fields(fields, _) => fields.len() as u32,
                _ => 1,
            };
            return;
        }
        match self {
            Action::Fields(fields, prepared) => {
                if !effects.add_prepared(prepared, context) {
                    for action in fields {
                        action.apply(rule, context, names, effects);
                    }
                }
            }
            Action::Add(name, value) => write_value(name, value, context, names, effects, false),
            Action::Set(name, value) => write_value(name, value, context, names, effects, true),
            Action::Remove(name, which, regex) => {
                let view = MessageView { context, effects };
                if !view.has(name) {
                    return;
                }
                match (which, regex) {
                    (ValueSelector::All, None) => effects.remove(name),
                    (which, regex) => change_values(name, *which, context, effects, |_, value| {
                        let text = String::from_utf8_lossy(value);
                        match regex.as_ref().is_none_or(|regex| regex.is_match(&text)) {
                            true => ValueChange::Remove,
                            false => ValueChange::Keep,
                        }
                    }),
                }
            }
            Action::RemovePart(target, part, which) => {
                change_part(target, part, *which, context, effects, |_, _, _| Some(None));
            }
            Action::Replace(replacement) => replacement.apply(context, names, effects),
            Action::Rewrite(target, part, which, value) => {
                let mut text = Filled::new();
                value.fill(&MessageView { context, effects }, names, None, &mut text);
                let text = String::from_utf8_lossy(&text).into_owned();
                if text.is_empty() {
                    return;
                }
                change_part(target, part, *which, context, effects, |_, _, _| {
                    Some(Some(text.clone()))
                });
            }
            Action::Number(target, which, renumber) => {
                change_part(
                    target,
                    &Part::User,
                    *which,
                    context,
                    effects,
                    |_, uri, user| match renumber.apply(user?, country_of(uri).as_deref()) {
                        Cow::Owned(new) => Some(Some(new)),
                        Cow::Borrowed(_) => None,
                    },
                );
            }
            Action::Reject(status, reason) => {
                // The other requests cannot be refused by a rule.
                let refusable = context.is_request()
                    && !matches!(
                        context.method,
                        Method::Ack | Method::Bye | Method::Cancel | Method::Prack
                    );
                if refusable && effects.refusal.is_none() {
                    effects.refusal = Some(RuleRefusal {
                        rule,
                        status: *status,
                        reason: reason.clone(),
                    });
                }
            }
            Action::Route(trunk) => {
                if context.is_request() {
                    effects.route = Some(*trunk);
                }
            }
            Action::Tag(name, value) => {
                let value = log_text(value, context, names, effects);
                if effects.tags.len() < MAX_TAGS {
                    effects.tags.push(RuleTag {
                        rule,
                        name: name.clone(),
                        value: value.into(),
                    });
                }
            }
            Action::Log(text) => {
                let text = log_text(text, context, names, effects);
                effects.log.push(RuleLogLine { rule, text });
            }
        }
    }
}

/// The text for a tag or log line: control characters replaced, length limited.
fn log_text(
    template: &Template,
    context: &MessageContext<'_>,
    names: &RuleNames,
    effects: &Effects,
) -> String {
    let mut text = Filled::new();
    template.fill(&MessageView { context, effects }, names, None, &mut text);
    let text = String::from_utf8_lossy(&text);
    let letters = text.chars().take(MAX_TEXT);
    letters
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

/// Changes values of a header. A list header becomes one field.
fn change_values(
    name: &HeaderName,
    which: ValueSelector,
    context: &MessageContext<'_>,
    effects: &mut Effects,
    decide: impl FnMut(&MessageView<'_>, &[u8]) -> ValueChange,
) {
    let (remaining, broken) =
        changed_values(name, which, &MessageView { context, effects }, decide);
    effects.refused_edits += broken;
    let Some(remaining) = remaining else { return };
    let size: usize = remaining.iter().map(Vec::len).sum();
    // A malformed value of the message would invalidate the common field of a list header.
    let is_valid = remaining.iter().all(|value| fits(name.id, value));
    match size + effects.mark() > MAX_ADDED || !is_valid {
        true => effects.refused_edits += 1,
        false => write(name, &remaining, effects),
    }
}

/// The remaining values of a header, `None` if none changes, and the number of changes that would break the message.
fn changed_values(
    name: &HeaderName,
    which: ValueSelector,
    view: &MessageView<'_>,
    mut decide: impl FnMut(&MessageView<'_>, &[u8]) -> ValueChange,
) -> (Option<Vec<Vec<u8>>>, u32) {
    let values = view.values(name);
    let last = values.len().saturating_sub(1);
    let selected = |index: usize| match which {
        ValueSelector::All => true,
        ValueSelector::First => index == 0,
        ValueSelector::Last => index == last,
        ValueSelector::Number(number) => index + 1 == usize::from(number),
    };
    let mut remaining: Vec<Cow<'_, [u8]>> = Vec::with_capacity(values.len());
    let (mut changed, mut broken) = (false, 0);
    for (index, value) in values.iter().copied().enumerate() {
        let change = match selected(index) {
            true => decide(view, value),
            false => ValueChange::Keep,
        };
        match change {
            ValueChange::Keep => remaining.push(Cow::Borrowed(value)),
            ValueChange::Replace(new) if fits(name.id, &new) => {
                changed = true;
                remaining.push(Cow::Owned(new));
            }
            ValueChange::Remove => changed = true,
            ValueChange::Replace(_) | ValueChange::Invalid => {
                broken += 1;
                remaining.push(Cow::Borrowed(value));
            }
        }
    }
    let remaining = changed.then(|| remaining.into_iter().map(unfolded).collect());
    (remaining, broken)
}

fn unfolded(value: Cow<'_, [u8]>) -> Vec<u8> {
    let mut value = value.into_owned();
    for byte in &mut value {
        if matches!(byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
    value
}

/// Writes the remaining values of a header: list headers as one field, others as one field per value.
fn write(name: &HeaderName, values: &[Vec<u8>], effects: &mut Effects) {
    let begun = |effects: &mut Effects, parts: &[Vec<u8>]| {
        let mark = effects.mark();
        effects.begin(name);
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                effects.text().extend_from_slice(b", ");
            }
            effects.text().extend_from_slice(part);
        }
        mark
    };
    match (values, name.id.is_list()) {
        ([], _) => effects.remove(name),
        (values, true) => {
            let mark = begun(effects, values);
            effects.set(name, mark);
        }
        ([one], false) => {
            let mark = begun(effects, std::slice::from_ref(one));
            effects.set(name, mark);
        }
        (values, false) => {
            effects.remove(name);
            for one in values {
                let mark = begun(effects, std::slice::from_ref(one));
                effects.add(name, mark);
            }
        }
    }
}

/// Changes a part of an address. `new` receives the URI and the present part (`None` if absent), and returns `None` for
/// no change, `Some(None)` to remove the part.
fn change_part(
    target: &ActionTarget,
    part: &Part,
    which: ValueSelector,
    context: &MessageContext<'_>,
    effects: &mut Effects,
    mut new: impl FnMut(&MessageView<'_>, &[u8], Option<&str>) -> Option<Option<String>>,
) {
    let name = match target {
        ActionTarget::Header(name) => name,
        ActionTarget::RequestUri => {
            if !context.initial {
                return;
            }
            let view = MessageView { context, effects };
            let uri = view.uri();
            let old = part_of_uri(uri, part);
            let Some(new) = new(&view, uri, old.as_deref()) else {
                return;
            };
            if new.is_none() && old.is_none() {
                return;
            }
            let changed = uri_with(uri, part, new.as_deref()).filter(|uri| is_request_uri(uri));
            return match changed {
                Some(changed) => {
                    let mark = effects.mark();
                    effects.text().extend_from_slice(&changed);
                    let span = effects.span_from(mark);
                    effects.set_uri(span);
                }
                None => effects.refused_edits += 1,
            };
        }
    };
    let mut decide = |view: &MessageView<'_>, value: &[u8]| {
        let old = part_of(value, part);
        let uri = NameAddr::parse(value).map_or(&[][..], |address| address.uri);
        match new(view, uri, old.as_deref()) {
            None => ValueChange::Keep,
            Some(None) if old.is_none() => ValueChange::Keep,
            Some(new) => match address_with(value, part, new.as_deref()) {
                Some(changed) => ValueChange::Replace(changed),
                None => ValueChange::Invalid,
            },
        }
    };
    if !matches!(name.id, HeaderId::From | HeaderId::To) {
        return change_values(name, which, context, effects, decide);
    }
    if !context.initial {
        return;
    }
    let view = MessageView { context, effects };
    let changed = view.first(name).map(|value| decide(&view, value));
    match changed {
        Some(ValueChange::Replace(changed)) if fits(name.id, &changed) => {
            let mark = effects.mark();
            effects.text().extend_from_slice(&changed);
            let span = effects.span_from(mark);
            effects.set_address(name.id, span);
        }
        Some(ValueChange::Replace(_) | ValueChange::Invalid) => effects.refused_edits += 1,
        Some(ValueChange::Keep | ValueChange::Remove) | None => {}
    }
}

impl Replacement {
    /// Replaces the matches in the part or in whole values.
    fn apply(&self, context: &MessageContext<'_>, names: &RuleNames, effects: &mut Effects) {
        let Replacement {
            target,
            part,
            which,
            regex,
            with,
        } = self;
        let part = match (target, part.as_ref()) {
            (ActionTarget::RequestUri, None) => Some(&Part::Uri),
            (_, part) => part,
        };
        if let Some(part) = part {
            return change_part(target, part, *which, context, effects, |view, _, old| {
                replaced(old?, regex, with, view, names).map(Some)
            });
        }
        let ActionTarget::Header(name) = target else {
            return;
        };
        change_values(name, *which, context, effects, |view, value| {
            match std::str::from_utf8(value) {
                Ok(text) => match replaced(text, regex, with, view, names) {
                    Some(new) => ValueChange::Replace(new.trim().as_bytes().to_vec()),
                    None => ValueChange::Keep,
                },
                // A value that is not UTF-8 cannot match.
                Err(_) => ValueChange::Keep,
            }
        });
    }
}

/// The text with every match replaced; `None` without a match.
fn replaced(
    text: &str,
    regex: &Regex,
    with: &Template,
    view: &MessageView<'_>,
    names: &RuleNames,
) -> Option<String> {
    let mut out = Filled::new();
    let mut from = 0;
    for groups in regex.captures_iter(text) {
        let Some(found) = groups.get(0) else { continue };
        out.extend_from_slice(text.get(from..found.start()).unwrap_or_default().as_bytes());
        with.fill(view, names, Some(&groups), &mut out);
        from = found.end();
        if out.len() > MAX_ADDED {
            // The writer of the value refuses it as too long.
            break;
        }
    }
    if out.is_empty() && from == 0 {
        return None;
    }
    out.extend_from_slice(text.get(from..).unwrap_or_default().as_bytes());
    Some(String::from_utf8_lossy(&out).into_owned())
}
