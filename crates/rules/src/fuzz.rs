//! Common parts of fuzzing and property tests: arbitrary messages and conditions against rules with every action, and
//! checks of the result.

use crate::{
    ActionSpec, Effects, MessageContext, MessageFilter, NumberForm, PeerKind, PeerRef,
    RuleDirection, RuleNames, RuleSet, RuleSpec, ValueSelector, Verb,
};
use engine::Transport;
use std::sync::OnceLock;
use wire::sip::{HeaderId, Message, emit};

/// The names that these rules may use.
pub fn known() -> RuleNames {
    RuleNames {
        interfaces: vec!["outside".into(), "inside".into()],
        trunks: vec!["carrier".into(), "pbx".into()],
    }
}

/// A rule without condition for all messages of a direction.
pub fn rule(direction: RuleDirection, actions: Vec<ActionSpec>) -> RuleSpec {
    RuleSpec {
        name: "rule".into(),
        interfaces: Vec::new(),
        kinds: Vec::new(),
        trunks: Vec::new(),
        direction,
        on: MessageFilter::Any,
        methods: Vec::new(),
        when: None,
        actions,
        stop: false,
    }
}

/// An action with a value.
pub fn with_value(verb: Verb, object: &str, value: &str) -> ActionSpec {
    ActionSpec {
        value: Some(value.into()),
        ..ActionSpec::new(verb, object)
    }
}

/// An action on a part of an address.
pub fn on_part(verb: Verb, object: &str, part: &str, value: &str) -> ActionSpec {
    ActionSpec {
        part: Some(part.into()),
        ..with_value(verb, object, value)
    }
}

/// A replacement by regular expression.
pub fn replacement(object: &str, part: Option<&str>, regex: &str, with: &str) -> ActionSpec {
    ActionSpec {
        part: part.map(Into::into),
        regex: Some(regex.into()),
        with: Some(with.into()),
        ..ActionSpec::new(Verb::Replace, object)
    }
}

/// A change of a number's form.
pub fn number(object: &str, form: NumberForm) -> ActionSpec {
    ActionSpec {
        form: Some(form),
        country: Some("49".into()),
        ..ActionSpec::new(Verb::Number, object)
    }
}

/// Every action, with values from the message.
pub fn every_action(request: bool) -> Vec<ActionSpec> {
    let mut actions = vec![
        with_value(Verb::Add, "X-From", "${from.user} at ${from.host}"),
        with_value(Verb::Add, "X-Display", "${from.display}"),
        with_value(
            Verb::Set,
            "Subject",
            "${header[\"Subject\"]}${to.uri_params[\"x\"]}",
        ),
        with_value(
            Verb::Set,
            "P-Asserted-Identity",
            "\"${from.display}\" <sip:${from.user}@${from.host}>",
        ),
        with_value(
            Verb::Add,
            "Diversion",
            "<${to.uri}>;reason=${header[\"X-Reason\"]}",
        ),
        with_value(Verb::Add, "Alert-Info", "<${header[\"X-Url\"]}>"),
        with_value(Verb::Set, "Expires", "${header[\"Expires\"]}0"),
        with_value(Verb::Set, "Privacy", "${header[\"Privacy\"]};id"),
        with_value(Verb::Set, "User-Agent", "${reason}${body.type}${call_id}"),
        ActionSpec {
            which: Some(ValueSelector::Last),
            ..ActionSpec::new(Verb::Remove, "History-Info")
        },
        ActionSpec {
            regex: Some("[\"<]".into()),
            ..ActionSpec::new(Verb::Remove, "X-Reason")
        },
        ActionSpec {
            which: Some(ValueSelector::Number(2)),
            ..ActionSpec::new(Verb::Remove, "Warning")
        },
        replacement("P-Asserted-Identity", None, "(.)$", "$1$1"),
        replacement("Diversion", Some("user"), "^(.*)$", "${1}${from.user}"),
        replacement("Diversion", Some("host"), "(.)", "$1$1"),
        replacement("X-Other", None, "", "${from.user}"),
        replacement("Remote-Party-ID", Some("params.screen"), ".", "\"$0"),
        on_part(
            Verb::Rewrite,
            "P-Preferred-Identity",
            "display",
            "${from.user}",
        ),
        on_part(Verb::Rewrite, "Refer-To", "uri-params.x", "${from.user}"),
        on_part(Verb::Rewrite, "Referred-By", "params.y", "${from.display}"),
        on_part(Verb::Rewrite, "Reply-To", "port", "${from.user}"),
        number("P-Asserted-Identity", NumberForm::E164),
        number("Diversion", NumberForm::National),
        with_value(Verb::Tag, "seen", "${from.user}"),
        ActionSpec::new(Verb::Log, "${method} ${from.uri} ${headers[\"Via\"]}"),
    ];
    if request {
        actions.extend([
            replacement("Request-URI", None, "a", "${from.user}"),
            on_part(
                Verb::Rewrite,
                "Request-URI",
                "user",
                "${to.user}${from.display}",
            ),
            on_part(Verb::Rewrite, "Request-URI", "host", "${from.host}"),
            on_part(Verb::Rewrite, "From", "display", "${header[\"Subject\"]}"),
            on_part(Verb::Rewrite, "From", "host", "${uri.host}"),
            on_part(Verb::Rewrite, "From", "params.x", "${to.display}"),
            on_part(Verb::Rewrite, "To", "scheme", "tel"),
            number("To", NumberForm::Digits),
            number("Request-URI", NumberForm::E164),
        ]);
    }
    actions
}

fn rules_of_every_action() -> &'static [RuleSet] {
    static RULES: OnceLock<Vec<RuleSet>> = OnceLock::new();
    RULES.get_or_init(|| {
        let make = |direction| {
            let mut requests = rule(direction, every_action(true));
            requests.on = MessageFilter::Request;
            let mut responses = rule(direction, every_action(false));
            responses.on = MessageFilter::Response;
            RuleSet::compile(&[requests, responses], &known()).unwrap_or_default()
        };
        vec![make(RuleDirection::In), make(RuleDirection::Out)]
    })
}

/// Headers that no rule may change; their values are compared.
const KEPT: [HeaderId; 8] = [
    HeaderId::Via,
    HeaderId::CallId,
    HeaderId::CSeq,
    HeaderId::ContentLength,
    HeaderId::MaxForwards,
    HeaderId::Route,
    HeaderId::RecordRoute,
    HeaderId::Contact,
];

/// Runs rules on a message. A valid message must remain valid, with the protected headers unchanged.
///
/// # Panics
/// If this does not hold.
pub fn check(rules: &RuleSet, bytes: &[u8], direction: RuleDirection) {
    let Ok(message) = Message::parse(bytes) else {
        return;
    };
    let remote = PeerRef {
        interface: 0,
        kind: PeerKind::Access,
        trunk: None,
    };
    let context = MessageContext {
        peer: Some(([192, 0, 2, 1], 5060).into()),
        ..MessageContext::of(&message, direction, remote, Transport::Udp)
    };
    let mut effects = Effects::default();
    rules.run(&context, &mut effects);
    let edits: Vec<_> = effects.all_edits().collect();
    let mut out = Vec::new();
    emit(&message, &edits, &mut out);
    if message.validate().is_err() {
        return;
    }
    let after = Message::parse(&out).unwrap_or_else(|why| panic!("{why}: {}", shown(&out)));
    if let Err(why) = after.validate() {
        panic!(
            "{}\nof\n{}\nbecame\n{}",
            why.reason,
            shown(bytes),
            shown(&out)
        );
    }
    for id in KEPT {
        let before: Vec<&[u8]> = message.all(id).collect();
        let now: Vec<&[u8]> = after.all(id).collect();
        assert_eq!(before, now, "{} of {}", id.name(), shown(&out));
    }
    let tag = |message: &Message<'_>| {
        let tag = |address: Option<wire::sip::NameAddr<'_>>| {
            address.and_then(|address| Some(address.tag()?.to_vec()))
        };
        (tag(message.from().ok()), tag(message.to().ok()))
    };
    assert_eq!(tag(&message), tag(&after), "tags of {}", shown(&out));
    assert_eq!(message.body(), after.body());
    assert_eq!(message.status(), after.status());
    assert_eq!(message.method(), after.method());
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Arbitrary bytes: a condition before the first NUL, a message behind it. Nothing may panic or hang, and a valid
/// message must remain valid.
pub fn fuzz_rules(data: &[u8]) {
    let at = memchr::memchr(0, data);
    let (condition, message) = match at {
        Some(at) => data.split_at(at),
        None => (&b""[..], data),
    };
    let message = message.strip_prefix(b"\0").unwrap_or(message);
    for (rules, direction) in rules_of_every_action()
        .iter()
        .zip([RuleDirection::In, RuleDirection::Out])
    {
        check(rules, message, direction);
    }
    let Ok(condition) = std::str::from_utf8(condition) else {
        return;
    };
    if condition.is_empty() || condition.len() > 256 {
        return;
    }
    let mut spec = rule(
        RuleDirection::In,
        vec![with_value(Verb::Add, "X-Held", "${status}${uri.user}")],
    );
    spec.when = Some(condition.into());
    if let Ok(rules) = RuleSet::compile(&[spec], &known()) {
        check(&rules, message, RuleDirection::In);
    }
}
