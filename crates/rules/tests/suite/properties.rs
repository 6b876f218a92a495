//! No combination of rules and message yields a malformed message.

use engine::Transport;
use proptest::prelude::*;
use rules::fuzz::{
    check, every_action, fuzz_rules, known, number, on_part, replacement, rule, with_value,
};
use rules::{
    ActionSpec, Effects, MessageContext, MessageFilter, NumberForm, PeerKind, PeerRef,
    RuleDirection, RuleSet, ValueSelector, Verb,
};
use wire::sip::{Edit, HeaderId, Message, emit};

/// Fragments of values that peers may send.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,12}",
        Just("%0d%0aVia: x".to_owned()),
        Just("\"".to_owned()),
        Just("<sip:a@b>".to_owned()),
        Just("<sip:%22%3e@h;x=%0a>;p=\"q".to_owned()),
        Just("\"a\\\"b\" <tel:+49-30>".to_owned()),
        Just(",;,".to_owned()),
        Just("a\r\n b".to_owned()),
        Just("\u{e9}\u{4e2d}".to_owned()),
        Just("\\".to_owned()),
        "[0-9+*#]{1,12}",
    ]
}

fn header_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "Subject",
        "X-Reason",
        "X-Other",
        "Diversion",
        "History-Info",
        "P-Asserted-Identity",
        "P-Preferred-Identity",
        "Remote-Party-ID",
        "Refer-To",
        "Referred-By",
        "Reply-To",
        "Alert-Info",
        "Warning",
        "Privacy",
        "Expires",
        "Allow-Events",
        "User-Agent",
    ])
}

fn address() -> impl Strategy<Value = String> {
    let user = prop_oneof![
        "[a-z0-9%+.;=]{1,10}",
        Just("%0d%0a".to_owned()),
        Just("a%22%3c".to_owned())
    ];
    (
        user,
        "[a-z]{1,6}",
        prop_oneof![
            Just(String::new()),
            Just("\"D \\\" <x>\" ".to_owned()),
            Just("Word ".to_owned())
        ],
    )
        .prop_map(|(user, host, display)| format!("{display}<sip:{user}@{host}>"))
}

/// A message that is valid in its mandatory headers, with arbitrary other headers.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let headers = prop::collection::vec((header_name(), piece()), 0..8);
    (any::<bool>(), address(), address(), headers, any::<bool>()).prop_map(
        |(request, from, to, headers, inside)| {
            let mut text = match request {
                true => "INVITE sip:%61@h.example SIP/2.0\r\n".to_owned(),
                false => "SIP/2.0 200 O K\r\n".to_owned(),
            };
            let tag = if inside { ";tag=9" } else { "" };
            text.push_str(&format!(
                "Via: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: {from};tag=1\r\nTo: {to}{tag}\r\nCall-ID: c\r\nCSeq: 1 INVITE\r\n\
                 Contact: <sip:a@b>\r\nMax-Forwards: 5\r\n"
            ));
            for (name, value) in headers {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
            text.push_str("Content-Length: 2\r\n\r\nhi");
            text.into_bytes()
        },
    )
}

fn template() -> impl Strategy<Value = String> {
    let fact = prop::sample::select(vec![
        "${from.user}",
        "${from.display}",
        "${to.uri}",
        "${uri.user}",
        "${header[\"Subject\"]}",
        "${headers[\"X-Other\"]}",
        "${from.params[\"tag\"]}",
        "${status}",
        "${pai.display}",
        "${diversion.uri}",
    ]);
    let word = prop::sample::select(vec![
        "", "x", " ", "<", ">", "\"", ";", ",", "sip:", "@h", "1", "a=b",
    ]);
    prop::collection::vec(
        prop_oneof![fact.prop_map(str::to_owned), word.prop_map(str::to_owned)],
        1..5,
    )
    .prop_map(|parts| parts.concat())
}

fn part() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "user",
        "host",
        "port",
        "scheme",
        "display",
        "uri",
        "params.x",
        "uri-params.y",
    ])
}

fn target() -> impl Strategy<Value = &'static str> {
    prop_oneof![header_name(), Just("From"), Just("To"), Just("Request-URI")]
}

fn which() -> impl Strategy<Value = Option<ValueSelector>> {
    prop::sample::select(vec![
        None,
        Some(ValueSelector::First),
        Some(ValueSelector::Last),
        Some(ValueSelector::All),
        Some(ValueSelector::Number(2)),
    ])
}

/// Any action; many are invalid and refused when they are loaded.
fn action() -> impl Strategy<Value = ActionSpec> {
    prop_oneof![
        (header_name(), template()).prop_map(|(name, value)| with_value(Verb::Add, name, &value)),
        (header_name(), template()).prop_map(|(name, value)| with_value(Verb::Set, name, &value)),
        (header_name(), which()).prop_map(|(name, which)| ActionSpec {
            which,
            ..ActionSpec::new(Verb::Remove, name)
        }),
        (target(), part(), template()).prop_map(|(name, part, value)| on_part(
            Verb::Rewrite,
            name,
            part,
            &value
        )),
        (
            target(),
            prop::option::of(part()),
            template(),
            prop::sample::select(vec!["", ".", "(.)", "^.*$", "[\"<>@]", "sip"])
        )
            .prop_map(|(name, part, with, regex)| replacement(name, part, regex, &with)),
        (
            target(),
            prop::sample::select(vec![
                NumberForm::E164,
                NumberForm::Digits,
                NumberForm::National
            ])
        )
            .prop_map(|(name, form)| number(name, form)),
        (target(), part()).prop_map(|(name, part)| ActionSpec {
            part: Some(part.into()),
            ..ActionSpec::new(Verb::Remove, name)
        }),
    ]
}

/// A field with a constant value or a user; some are so long that a few of them exceed the limit.
fn constant_field() -> impl Strategy<Value = ActionSpec> {
    let verb = prop::sample::select(vec![Verb::Add, Verb::Set]);
    let name = prop::sample::select(vec![
        "Subject",
        "X-Reason",
        "x-reason",
        "User-Agent",
        "Privacy",
    ]);
    let value = prop_oneof![
        Just("id".to_owned()),
        Just("${from.user}".to_owned()),
        Just("${to.user}".to_owned()),
        "[a-z]{1,9}",
        "[a-z]{3000,4000}"
    ];
    (verb, name, value).prop_map(|(verb, name, value)| with_value(verb, name, &value))
}

/// The message after the rules, and the number of omitted edits.
fn left_by(rules: &RuleSet, message: &[u8]) -> (Vec<u8>, u32) {
    let message = Message::parse(message).unwrap();
    let remote = PeerRef {
        interface: 0,
        kind: PeerKind::Access,
        trunk: None,
    };
    let context = MessageContext::of(&message, RuleDirection::Out, remote, Transport::Udp);
    let mut effects = Effects::default();
    rules.run(&context, &mut effects);
    let edits: Vec<_> = effects.all_edits().collect();
    let mut out = Vec::new();
    emit(&message, &edits, &mut out);
    // As the border composes a message: the same lines in another order.
    let mut merged: smallvec::SmallVec<[Edit<'_>; 24]> = smallvec::SmallVec::new();
    merged.extend(effects.uri().map(Edit::RequestUri));
    let parties = [
        (HeaderId::From, effects.from()),
        (HeaderId::To, effects.to()),
    ];
    for (id, value) in parties {
        merged.extend(value.map(|value| Edit::Replace { id, value }));
    }
    effects.merge(&mut merged);
    let mut composed = Vec::new();
    emit(&message, &merged, &mut composed);
    let sorted = |text: &[u8]| {
        let mut lines: Vec<_> = text
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&composed), sorted(&out));
    (out, effects.refused_edits)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_message_in_order_leaves_in_order(
        actions in prop::collection::vec(action(), 1..6),
        message in message(),
        out in any::<bool>(),
    ) {
        let direction = if out { RuleDirection::Out } else { RuleDirection::In };
        // Invalid actions are left out.
        let usable: Vec<ActionSpec> = actions
            .into_iter()
            .filter(|action| {
                let mut spec = rule(direction, vec![action.clone()]);
                spec.on = MessageFilter::Any;
                RuleSet::compile(&[spec], &known()).is_ok()
            })
            .collect();
        prop_assume!(!usable.is_empty());
        let rules = RuleSet::compile(&[rule(direction, usable)], &known()).unwrap();
        check(&rules, &message, direction);
    }

    /// Prepared fields have the same result as each field by itself in a separate rule, also near the size limit.
    #[test]
    fn together_as_one_by_one(
        actions in prop::collection::vec(
            prop_oneof![4 => constant_field(), 1 => action()],
            1..12,
        ),
        message in message(),
    ) {
        let of = |actions: &[ActionSpec]| rule(RuleDirection::Out, actions.to_vec());
        let usable: Vec<ActionSpec> = actions
            .into_iter()
            .filter(|action| {
                let alone = of(core::slice::from_ref(action));
                RuleSet::compile(&[alone], &known()).is_ok()
            })
            .collect();
        prop_assume!(!usable.is_empty());
        let together = RuleSet::compile(&[of(&usable)], &known()).unwrap();
        let one_by_one: Vec<_> = usable
            .iter()
            .map(|action| of(core::slice::from_ref(action)))
            .collect();
        let one_by_one = RuleSet::compile(&one_by_one, &known()).unwrap();
        prop_assert_eq!(left_by(&together, &message), left_by(&one_by_one, &message));
    }

    /// The same exactly at the size limit, beyond which every omitted field is counted.
    #[test]
    fn together_as_one_by_one_at_the_end(
        long in prop::collection::vec(3200usize..4600, 3..6),
        after in prop::collection::vec(constant_field(), 1..5),
    ) {
        let mut actions: Vec<ActionSpec> = long
            .iter()
            .map(|length| with_value(Verb::Add, "Subject", &"s".repeat(*length)))
            .collect();
        // A value that is not constant separates the fields before and behind it.
        actions.push(ActionSpec {
            part: Some("display".into()),
            ..ActionSpec::new(Verb::Remove, "From")
        });
        actions.extend(after);
        let of = |actions: &[ActionSpec]| rule(RuleDirection::Out, actions.to_vec());
        let together = RuleSet::compile(&[of(&actions)], &known()).unwrap();
        let one_by_one: Vec<_> = actions
            .iter()
            .map(|action| of(core::slice::from_ref(action)))
            .collect();
        let one_by_one = RuleSet::compile(&one_by_one, &known()).unwrap();
        let message = b"INVITE sip:a@h.example SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\n\
            To: <sip:b@c>\r\nCall-ID: c\r\nCSeq: 1 INVITE\r\nContact: <sip:a@b>\r\nContent-Length: 0\r\n\r\n";
        prop_assert_eq!(left_by(&together, message), left_by(&one_by_one, message));
    }

    #[test]
    fn every_action_at_once_on_any_message(message in message(), out in any::<bool>()) {
        let direction = if out { RuleDirection::Out } else { RuleDirection::In };
        let mut spec = rule(direction, every_action(true));
        spec.on = MessageFilter::Request;
        let mut answers = rule(direction, every_action(false));
        answers.on = MessageFilter::Response;
        let rules = RuleSet::compile(&[spec, answers], &known()).unwrap();
        check(&rules, &message, direction);
    }

    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_rules(&data);
    }
}
