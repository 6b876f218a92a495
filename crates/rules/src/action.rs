//! Actions: compiled and checked when they are loaded, carried out on one message.

use crate::address::{Part, address_with, part_of, part_of_uri, uri_with};
use crate::effects::{Effects, Line, Name, Prepared, Refusal, Tag, View};
use crate::fact::{Names, has_parts};
use crate::grammar::{MAX_ADDED, changeable, fits, is_line};
use crate::number::Renumber;
use crate::scene::{Direction, Scene};
use crate::spec::{ActionSpec, Known, On, RuleSpec, Verb, Which, Wrong};
use crate::template::{Filled, Template, regular};
use crate::types::nearest;
use crate::value::{Value, whole};
use regex::Regex;
use std::borrow::Cow;
use wire::sip::{HeaderId, Method, Scheme, Uri};

/// Letters of a tag's value and of a line for the log, at most.
const MAX_TEXT: usize = 512;
/// Tags of one message at most.
const MAX_TAGS: usize = 16;

/// What an address action is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    RequestUri,
    Header(Name),
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Add(Name, Value),
    Set(Name, Value),
    Remove(Name, Which, Option<Regex>),
    RemovePart(Target, Part, Which),
    Replace {
        target: Target,
        part: Option<Part>,
        which: Which,
        regex: Regex,
        with: Template,
    },
    Rewrite(Target, Part, Which, Template),
    Number(Target, Which, Renumber),
    Reject(u16, Option<Box<str>>),
    Route(u16),
    Tag(Box<str>, Template),
    Log(Template),
    /// Several of the first two whose values are constants, and the same put together.
    Fields(Box<[Action]>, Prepared),
}

/// A mistake at a key of an action.
type Faulty = (&'static str, Wrong);

impl Action {
    /// Compiles an action of `rule`.
    pub(crate) fn compile(
        spec: &ActionSpec,
        rule: &RuleSpec,
        known: &Known,
    ) -> Result<Action, Vec<Faulty>> {
        let mut faults = superfluous(spec);
        match compile(spec, rule, known) {
            Ok(action) if faults.is_empty() => return Ok(action),
            Ok(_) => {}
            Err(fault) => faults.push(fault),
        }
        Err(faults)
    }
}

/// Keys that an action of this verb does not take: none is ever ignored.
fn superfluous(spec: &ActionSpec) -> Vec<Faulty> {
    let taken: &[&str] = match spec.verb {
        Verb::Add | Verb::Set | Verb::Tag => &["value"],
        Verb::Remove => &["which", "regex", "part"],
        Verb::Replace => &["part", "which", "regex", "with"],
        Verb::Rewrite => &["part", "which", "value"],
        Verb::Number => &[
            "which",
            "form",
            "country",
            "national_prefix",
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
        ("international_prefix", spec.international_prefix.is_some()),
        ("strip", spec.strip.is_some()),
        ("prefix", spec.prefix.is_some()),
        ("reason", spec.reason.is_some()),
    ];
    written
        .into_iter()
        .filter(|(key, there)| *there && !taken.contains(key))
        .map(|(key, _)| {
            let verb = spec.verb.name();
            let remedy = match taken {
                [] => "take it out".to_owned(),
                taken => format!("take it out; `{verb}` takes {}", taken.join(", ")),
            };
            (
                key,
                Wrong::new(format!("`{verb}` takes no `{key}`"), remedy),
            )
        })
        .collect()
}

fn needed<'s>(
    spec: &ActionSpec,
    key: &'static str,
    value: &'s Option<String>,
) -> Result<&'s str, Faulty> {
    value.as_deref().ok_or_else(|| {
        let verb = spec.verb.name();
        let wrong = Wrong::new(
            format!("`{verb}` lacks `{key}`"),
            format!("add {key} = \"...\""),
        );
        (verb, wrong)
    })
}

fn compile(spec: &ActionSpec, rule: &RuleSpec, known: &Known) -> Result<Action, Faulty> {
    let verb = spec.verb.name();
    Ok(match spec.verb {
        Verb::Add | Verb::Set => {
            let name = header(spec)?;
            let text = needed(spec, "value", &spec.value)?;
            let value = Value::of(&name, value_for(name.id, text)?);
            match spec.verb {
                Verb::Add => Action::Add(name, value),
                _ => Action::Set(name, value),
            }
        }
        Verb::Remove => remove(spec, rule)?,
        Verb::Replace => {
            let part = part(spec)?;
            let target = target(spec, rule, part.as_ref())?;
            let pattern = needed(spec, "regex", &spec.regex)?;
            let regex = regular(pattern).map_err(|wrong| ("regex", wrong))?;
            let with = needed(spec, "with", &spec.with)?;
            let with = Template::parse(with, Some(&regex)).map_err(|wrong| ("with", wrong))?;
            Action::Replace {
                which: which(spec, &target, Which::All)?,
                target,
                part,
                regex,
                with,
            }
        }
        Verb::Rewrite => {
            needed(spec, "part", &spec.part)?;
            let part = part(spec)?.unwrap_or(Part::Uri);
            let target = target(spec, rule, Some(&part))?;
            let text = needed(spec, "value", &spec.value)?;
            let value = Template::parse(text, None).map_err(|wrong| ("value", wrong))?;
            check_constant(&target, &part, &value)?;
            let which = which(spec, &target, Which::First)?;
            Action::Rewrite(target, part, which, value)
        }
        Verb::Number => {
            let target = target(spec, rule, Some(&Part::User))?;
            let which = which(spec, &target, Which::First)?;
            Action::Number(target, which, renumber(spec)?)
        }
        Verb::Reject => {
            requests_only(rule, verb)?;
            never(
                rule,
                &["ACK", "BYE", "CANCEL", "PRACK"],
                verb,
                "cannot be refused",
            )?;
            let status = spec.object.parse().unwrap_or(0);
            if !(400..=699).contains(&status) {
                let what = format!("{} is no status of a refusal", spec.object);
                return Err((verb, Wrong::new(what, "write a number from 400 to 699")));
            }
            if spec
                .reason
                .as_ref()
                .is_some_and(|reason| !is_line(reason.as_bytes()))
            {
                let wrong = Wrong::new("`reason` has control characters in it", "write one line");
                return Err(("reason", wrong));
            }
            Action::Reject(status, spec.reason.as_deref().map(Into::into))
        }
        Verb::Route => route(spec, rule, known)?,
        Verb::Tag => {
            if !spec.object.bytes().all(crate::grammar::is_token) || spec.object.is_empty() {
                let what = format!("\"{}\" cannot be the name of a tag", spec.object);
                return Err((verb, Wrong::new(what, "use letters, digits and - _")));
            }
            let text = needed(spec, "value", &spec.value)?;
            let value = Template::parse(text, None).map_err(|wrong| ("value", wrong))?;
            Action::Tag(spec.object.as_str().into(), value)
        }
        Verb::Log => {
            let text = Template::parse(&spec.object, None).map_err(|wrong| (verb, wrong))?;
            Action::Log(text)
        }
    })
}

fn header(spec: &ActionSpec) -> Result<Name, Faulty> {
    let verb = spec.verb.name();
    let Some(name) = Name::new(&spec.object) else {
        let what = format!("\"{}\" cannot be the name of a header", spec.object);
        return Err((verb, Wrong::new(what, "write a name such as \"X-Account\"")));
    };
    changeable(name.id, &spec.object).map_err(|wrong| (verb, wrong))?;
    Ok(name)
}

/// The template of a header's whole value.
fn value_for(id: HeaderId, text: &str) -> Result<Template, Faulty> {
    let value = Template::parse(text, None).map_err(|wrong| ("value", wrong))?;
    if let Some(constant) = value.constant()
        && !fits(id, constant)
    {
        let wrong = Wrong::new(
            format!("\"{text}\" cannot be the value of this header"),
            match has_parts(id) {
                true => "write an address such as \"<sip:100@example.com>\"",
                false => "write one line, with quotes and brackets closed",
            },
        );
        return Err(("value", wrong));
    }
    Ok(value)
}

fn part(spec: &ActionSpec) -> Result<Option<Part>, Faulty> {
    let Some(text) = &spec.part else {
        return Ok(None);
    };
    match Part::parse(text) {
        Some(part) => Ok(Some(part)),
        None => Err((
            "part",
            Wrong::new(
                format!("an address has no part \"{text}\""),
                format!("its parts are: {}", Part::NAMES),
            ),
        )),
    }
}

/// The address or header that an action changes.
fn target(spec: &ActionSpec, rule: &RuleSpec, part: Option<&Part>) -> Result<Target, Faulty> {
    let verb = spec.verb.name();
    let fault = |what: String, remedy: &str| Err((verb, Wrong::new(what, remedy)));
    if spec.object.eq_ignore_ascii_case("request-uri") {
        beginnings_only(rule, verb, "Request-URI")?;
        return match part {
            Some(part) if !part.is_of_uri() => {
                let wrong = Wrong::new(
                    "a Request-URI has neither display name nor header parameters",
                    "take user, host, port, scheme or uri-params.NAME",
                );
                Err(("part", wrong))
            }
            _ => Ok(Target::RequestUri),
        };
    }
    let Some(name) = Name::new(&spec.object) else {
        let what = format!("\"{}\" cannot be the name of a header", spec.object);
        return fault(what, "write a name such as \"From\", or \"Request-URI\"");
    };
    if matches!(name.id, HeaderId::From | HeaderId::To) {
        beginnings_only(rule, verb, &spec.object)?;
        return match part {
            None => fault(
                format!(
                    "\"{}\" carries the tag of a dialog and cannot be changed as a whole",
                    spec.object
                ),
                "add part = \"user\" or another part",
            ),
            Some(Part::Param(name)) if name.eq_ignore_ascii_case(b"tag") => Err((
                "part",
                Wrong::new(
                    "the tag names the dialog: no rule may change it",
                    "take the action out",
                ),
            )),
            Some(_) => Ok(Target::Header(name)),
        };
    }
    changeable(name.id, &spec.object).map_err(|wrong| (verb, wrong))?;
    if part.is_some() && !has_parts(name.id) {
        return fault(
            format!(
                "the values of \"{}\" are no addresses and have no parts",
                spec.object
            ),
            "change the whole value: { replace = \"NAME\", regex = \"...\", with = \"...\" }",
        );
    }
    Ok(Target::Header(name))
}

/// A part whose new value is written out can be judged at once.
fn check_constant(target: &Target, part: &Part, value: &Template) -> Result<(), Faulty> {
    let Some(text) = value
        .constant()
        .and_then(|text| std::str::from_utf8(text).ok())
    else {
        return Ok(());
    };
    let sample: &[u8] = match (part, text) {
        // A telephone number turns into a tel URI, a name does not.
        (Part::Scheme, _) => b"<sip:1@h>",
        _ => b"<sip:u@h>",
    };
    let sound = match target {
        Target::RequestUri => {
            let sample = sample.get(1..sample.len() - 1).unwrap_or_default();
            uri_with(sample, part, Some(text)).is_some_and(|uri| is_request_uri(&uri))
        }
        Target::Header(name) => {
            address_with(sample, part, Some(text)).is_some_and(|address| fits(name.id, &address))
        }
    };
    match sound {
        true => Ok(()),
        false => Err((
            "value",
            Wrong::new(
                format!("\"{text}\" cannot be that part of an address"),
                match part {
                    Part::Host => "write a host name or an IP address",
                    Part::Port => "write a number from 1 to 65535",
                    Part::Scheme => "write sip, sips or tel",
                    _ => "write something that an address can have there",
                },
            ),
        )),
    }
}

fn which(spec: &ActionSpec, target: &Target, usual: Which) -> Result<Which, Faulty> {
    let single = match target {
        Target::RequestUri => true,
        Target::Header(name) => matches!(name.id, HeaderId::From | HeaderId::To),
    };
    match spec.which {
        Some(_) if single => Err((
            "which",
            Wrong::new("there is only one of them", "take `which` out"),
        )),
        Some(Which::Number(0)) => Err((
            "which",
            Wrong::new(
                "values are counted from 1",
                "write \"first\", \"last\", \"all\" or a number from 1",
            ),
        )),
        which => Ok(which.unwrap_or(usual)),
    }
}

fn remove(spec: &ActionSpec, rule: &RuleSpec) -> Result<Action, Faulty> {
    if let Some(part) = part(spec)? {
        let target = target(spec, rule, Some(&part))?;
        if !part.is_optional() {
            let what = format!(
                "an address cannot be without its {}",
                spec.part.as_deref().unwrap_or("part")
            );
            let remedy =
                "remove port, display, params.NAME or uri-params.NAME, or the whole header";
            return Err(("part", Wrong::new(what, remedy)));
        }
        if spec.regex.is_some() {
            let wrong = Wrong::new(
                "`part` and `regex` exclude each other",
                "use `when` or `replace`",
            );
            return Err(("regex", wrong));
        }
        let which = which(spec, &target, Which::All)?;
        return Ok(Action::RemovePart(target, part, which));
    }
    let name = header(spec)?;
    let regex = match &spec.regex {
        Some(text) => Some(regular(text).map_err(|wrong| ("regex", wrong))?),
        None => None,
    };
    let which = which(spec, &Target::Header(name.clone()), Which::All)?;
    Ok(Action::Remove(name, which, regex))
}

fn renumber(spec: &ActionSpec) -> Result<Renumber, Faulty> {
    let number = |key: &'static str, value: &Option<String>, usual: &str, plus: bool| {
        let text = value.as_deref().unwrap_or(usual);
        let fits = |byte: u8| byte.is_ascii_digit() || (plus && b"+*#".contains(&byte));
        match text.bytes().all(fits) && text.len() <= 16 {
            true => Ok(text.to_owned()),
            false => Err((
                key,
                Wrong::new(
                    format!("\"{text}\" is no sequence of digits"),
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
            let wrong = Wrong::new(
                "`form` without `country`",
                "add the country code: country = \"49\"",
            );
            return Err(("form", wrong));
        }
        None if spec.country.is_some()
            || spec.national_prefix.is_some()
            || spec.international_prefix.is_some() =>
        {
            let wrong = Wrong::new(
                "a country and its prefixes do nothing without `form`",
                "add form = \"e164\", \"digits\" or \"national\"",
            );
            return Err(("number", wrong));
        }
        None if spec.strip.is_none() && spec.prefix.is_none() => {
            let wrong = Wrong::new(
                "`number` says nothing to do",
                "add `form`, `strip` or `prefix`",
            );
            return Err(("number", wrong));
        }
        _ => {}
    }
    Ok(Renumber {
        strip: spec.strip.unwrap_or(0) as usize,
        form: spec.form,
        country,
        national,
        international,
        prefix,
    })
}

fn route(spec: &ActionSpec, rule: &RuleSpec, known: &Known) -> Result<Action, Faulty> {
    requests_only(rule, "route")?;
    if rule.direction == Direction::Out {
        let wrong = Wrong::new("what leaves has been routed", "write direction = \"in\"");
        return Err(("route", wrong));
    }
    let routable = ["INVITE", "MESSAGE", "PUBLISH"];
    if let Some(other) = rule
        .methods
        .iter()
        .find(|method| !routable.contains(&method.as_str()))
    {
        let what = format!("{other} is not routed");
        let remedy = "write method = [\"INVITE\"]; MESSAGE and PUBLISH are routed too";
        return Err(("route", Wrong::new(what, remedy)));
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
            Err(("route", Wrong::new(what, remedy)))
        }
    }
}

fn requests_only(rule: &RuleSpec, verb: &'static str) -> Result<(), Faulty> {
    match rule.on {
        On::Response => Err((
            verb,
            Wrong::new(
                format!("`{verb}` does nothing to a response"),
                "write on = \"request\"",
            ),
        )),
        On::Any | On::Request => Ok(()),
    }
}

/// Request-URI, From and To are the dialog's once there is one.
fn beginnings_only(rule: &RuleSpec, verb: &'static str, what: &str) -> Result<(), Faulty> {
    if rule.on == On::Response {
        let wrong = Wrong::new(
            format!("{what} of a response is that of its request"),
            "write on = \"request\"",
        );
        return Err((verb, wrong));
    }
    let inside = ["ACK", "BYE", "CANCEL", "PRACK", "UPDATE", "INFO", "NOTIFY"];
    let all_inside = !rule.methods.is_empty()
        && rule
            .methods
            .iter()
            .all(|method| inside.contains(&method.as_str()));
    match all_inside {
        true => Err((
            verb,
            Wrong::new(
                format!(
                    "{what} of {} is that of the dialog",
                    rule.methods.join(", ")
                ),
                "change it in the request that begins the dialog: method = \"INVITE\"",
            ),
        )),
        false => Ok(()),
    }
}

fn never(rule: &RuleSpec, methods: &[&str], verb: &'static str, why: &str) -> Result<(), Faulty> {
    match rule
        .methods
        .iter()
        .find(|method| methods.contains(&method.as_str()))
    {
        Some(method) => Err((
            verb,
            Wrong::new(
                format!("{method} {why}"),
                format!("take {method} out of `method`"),
            ),
        )),
        None => Ok(()),
    }
}

/// Whether this may be a Request-URI (RFC 3261 section 19.1.1).
fn is_request_uri(uri: &[u8]) -> bool {
    Uri::parse(uri)
        .is_some_and(|uri| uri.headers.is_empty() && !matches!(uri.scheme, Scheme::Other(_)))
}

/// What becomes of one value.
enum Fate {
    Stays,
    Becomes(Vec<u8>),
    Goes,
    /// What it would become breaks the message.
    Breaks,
}

impl Action {
    /// Carries the action out on what `effects` have left of the scene's message. Whether the next action still counts.
    pub(crate) fn apply(&self, rule: u16, scene: &Scene<'_>, names: &Names, effects: &mut Effects) {
        if effects.is_full() {
            effects.refused_edits += match self {
                Action::Fields(singly, _) => singly.len() as u32,
                _ => 1,
            };
            return;
        }
        match self {
            Action::Fields(singly, together) => {
                if !effects.add_prepared(together, scene) {
                    for action in singly {
                        action.apply(rule, scene, names, effects);
                    }
                }
            }
            Action::Add(name, value) => whole(name, value, scene, names, effects, false),
            Action::Set(name, value) => whole(name, value, scene, names, effects, true),
            Action::Remove(name, which, regex) => {
                let view = View { scene, effects };
                if !view.has(name) {
                    return;
                }
                match (which, regex) {
                    (Which::All, None) => effects.remove(name),
                    (which, regex) => change(name, *which, scene, effects, |_, value| {
                        let text = String::from_utf8_lossy(value);
                        match regex.as_ref().is_none_or(|regex| regex.is_match(&text)) {
                            true => Fate::Goes,
                            false => Fate::Stays,
                        }
                    }),
                }
            }
            Action::RemovePart(target, part, which) => {
                on_part(target, part, *which, scene, effects, |_, _| Some(None));
            }
            Action::Replace {
                target,
                part,
                which,
                regex,
                with,
            } => replace(
                target,
                part.as_ref(),
                *which,
                regex,
                with,
                scene,
                names,
                effects,
            ),
            Action::Rewrite(target, part, which, value) => {
                let mut text = Filled::new();
                value.fill(&View { scene, effects }, names, None, &mut text);
                let text = String::from_utf8_lossy(&text).into_owned();
                if text.is_empty() {
                    return;
                }
                on_part(target, part, *which, scene, effects, |_, _| {
                    Some(Some(text.clone()))
                });
            }
            Action::Number(target, which, renumber) => {
                on_part(
                    target,
                    &Part::User,
                    *which,
                    scene,
                    effects,
                    |_, user| match renumber.apply(user?) {
                        Cow::Owned(new) => Some(Some(new)),
                        Cow::Borrowed(_) => None,
                    },
                );
            }
            Action::Reject(status, reason) => {
                // The others are not for a rule to answer.
                let refusable = scene.is_request()
                    && !matches!(
                        scene.method,
                        Method::Ack | Method::Bye | Method::Cancel | Method::Prack
                    );
                if refusable && effects.refusal.is_none() {
                    effects.refusal = Some(Refusal {
                        rule,
                        status: *status,
                        reason: reason.clone(),
                    });
                }
            }
            Action::Route(trunk) => {
                if scene.is_request() {
                    effects.route = Some(*trunk);
                }
            }
            Action::Tag(name, value) => {
                let value = short(value, scene, names, effects);
                if effects.tags.len() < MAX_TAGS {
                    effects.tags.push(Tag {
                        rule,
                        name: name.clone(),
                        value: value.into(),
                    });
                }
            }
            Action::Log(text) => {
                let text = short(text, scene, names, effects);
                effects.log.push(Line { rule, text });
            }
        }
    }
}

/// A text for people: control letters shown, length bounded.
fn short(template: &Template, scene: &Scene<'_>, names: &Names, effects: &Effects) -> String {
    let mut text = Filled::new();
    template.fill(&View { scene, effects }, names, None, &mut text);
    let text = String::from_utf8_lossy(&text);
    let letters = text.chars().take(MAX_TEXT);
    letters
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

/// Changes values of a header. List headers leave as one field.
fn change(
    name: &Name,
    which: Which,
    scene: &Scene<'_>,
    effects: &mut Effects,
    fate: impl FnMut(&View<'_>, &[u8]) -> Fate,
) {
    let (left, broken) = fates(name, which, &View { scene, effects }, fate);
    effects.refused_edits += broken;
    let Some(left) = left else { return };
    let size: usize = left.iter().map(Vec::len).sum();
    // A neighbour that came malformed would spoil the field that they share from now on.
    let sound = left.iter().all(|value| fits(name.id, value));
    match size + effects.mark() > MAX_ADDED || !sound {
        true => effects.refused_edits += 1,
        false => write(name, &left, effects),
    }
}

/// The values that are left of a header, `None` where none changes; and how many changes would break the message.
fn fates(
    name: &Name,
    which: Which,
    view: &View<'_>,
    mut fate: impl FnMut(&View<'_>, &[u8]) -> Fate,
) -> (Option<Vec<Vec<u8>>>, u32) {
    let values = view.values(name);
    let last = values.len().saturating_sub(1);
    let taken = |index: usize| match which {
        Which::All => true,
        Which::First => index == 0,
        Which::Last => index == last,
        Which::Number(number) => index + 1 == usize::from(number),
    };
    let mut left: Vec<Cow<'_, [u8]>> = Vec::with_capacity(values.len());
    let (mut changed, mut broken) = (false, 0);
    for (index, value) in values.iter().copied().enumerate() {
        let fate = match taken(index) {
            true => fate(view, value),
            false => Fate::Stays,
        };
        match fate {
            Fate::Stays => left.push(Cow::Borrowed(value)),
            Fate::Becomes(new) if fits(name.id, &new) => {
                changed = true;
                left.push(Cow::Owned(new));
            }
            Fate::Goes => changed = true,
            Fate::Becomes(_) | Fate::Breaks => {
                broken += 1;
                left.push(Cow::Borrowed(value));
            }
        }
    }
    let left = changed.then(|| left.into_iter().map(unfolded).collect());
    (left, broken)
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

fn write(name: &Name, values: &[Vec<u8>], effects: &mut Effects) {
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

/// Changes a part of an address. `new` is asked with the part as it is (`None`: not there), and gives `None` for no change,
/// `Some(None)` to take it out.
fn on_part(
    target: &Target,
    part: &Part,
    which: Which,
    scene: &Scene<'_>,
    effects: &mut Effects,
    mut new: impl FnMut(&View<'_>, Option<&str>) -> Option<Option<String>>,
) {
    let name = match target {
        Target::Header(name) => name,
        Target::RequestUri => {
            if !scene.initial {
                return;
            }
            let view = View { scene, effects };
            let uri = view.uri();
            let old = part_of_uri(uri, part);
            let Some(new) = new(&view, old.as_deref()) else {
                return;
            };
            if new.is_none() && old.is_none() {
                return;
            }
            let made = uri_with(uri, part, new.as_deref()).filter(|uri| is_request_uri(uri));
            return match made {
                Some(made) => {
                    let mark = effects.mark();
                    effects.text().extend_from_slice(&made);
                    let span = effects.span_from(mark);
                    effects.set_uri(span);
                }
                None => effects.refused_edits += 1,
            };
        }
    };
    let mut fate = |view: &View<'_>, value: &[u8]| {
        let old = part_of(value, part);
        match new(view, old.as_deref()) {
            None => Fate::Stays,
            Some(None) if old.is_none() => Fate::Stays,
            Some(new) => match address_with(value, part, new.as_deref()) {
                Some(made) => Fate::Becomes(made),
                None => Fate::Breaks,
            },
        }
    };
    if !matches!(name.id, HeaderId::From | HeaderId::To) {
        return change(name, which, scene, effects, fate);
    }
    if !scene.initial {
        return;
    }
    let view = View { scene, effects };
    let made = view.first(name).map(|value| fate(&view, value));
    match made {
        Some(Fate::Becomes(made)) if fits(name.id, &made) => {
            let mark = effects.mark();
            effects.text().extend_from_slice(&made);
            let span = effects.span_from(mark);
            effects.set_address(name.id, span);
        }
        Some(Fate::Becomes(_) | Fate::Breaks) => effects.refused_edits += 1,
        Some(Fate::Stays | Fate::Goes) | None => {}
    }
}

#[allow(clippy::too_many_arguments)]
fn replace(
    target: &Target,
    part: Option<&Part>,
    which: Which,
    regex: &Regex,
    with: &Template,
    scene: &Scene<'_>,
    names: &Names,
    effects: &mut Effects,
) {
    let part = match (target, part) {
        (Target::RequestUri, None) => Some(&Part::Uri),
        (_, part) => part,
    };
    if let Some(part) = part {
        return on_part(target, part, which, scene, effects, |view, old| {
            replaced(old?, regex, with, view, names).map(Some)
        });
    }
    let Target::Header(name) = target else {
        return;
    };
    change(name, which, scene, effects, |view, value| {
        match std::str::from_utf8(value) {
            Ok(text) => match replaced(text, regex, with, view, names) {
                Some(new) => Fate::Becomes(new.trim().as_bytes().to_vec()),
                None => Fate::Stays,
            },
            // What is no text cannot be matched as one.
            Err(_) => Fate::Stays,
        }
    });
}

/// The text with every match replaced; `None` where there is none.
fn replaced(
    text: &str,
    regex: &Regex,
    with: &Template,
    view: &View<'_>,
    names: &Names,
) -> Option<String> {
    let mut out = Filled::new();
    let mut from = 0;
    for groups in regex.captures_iter(text) {
        let Some(found) = groups.get(0) else { continue };
        out.extend_from_slice(text.get(from..found.start()).unwrap_or_default().as_bytes());
        with.fill(view, names, Some(&groups), &mut out);
        from = found.end();
        if out.len() > MAX_ADDED {
            // Judged as too long by whoever writes it.
            break;
        }
    }
    if out.is_empty() && from == 0 {
        return None;
    }
    out.extend_from_slice(text.get(from..).unwrap_or_default().as_bytes());
    Some(String::from_utf8_lossy(&out).into_owned())
}
