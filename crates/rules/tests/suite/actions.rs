//! The effect of each action on a message.

use engine::Transport;
use rules::fuzz::{known, number, on_part, replacement, rule, with_value};
use rules::{
    ActionSpec, Effects, MessageContext, MessageFilter, NumberForm, PeerKind, PeerRef,
    RuleDirection, RuleSet, RuleSpec, ValueSelector, Verb,
};
use wire::sip::{Edit, HeaderId, Message, emit};

const HEAD: &str = "INVITE sip:030123@h.example SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.7;branch=z9hG4bK1\r\n\
    From: \"Alice\" <sip:alice@access.example>;tag=1\r\nTo: <sip:030123@h.example>\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\n";

fn trunk_peer() -> PeerRef {
    PeerRef {
        interface: 1,
        kind: PeerKind::Trunk,
        trunk: Some(0),
    }
}

/// The message after the rules, and their other effects.
fn run(rules: &[RuleSpec], message: &str) -> (String, Effects) {
    let rules = RuleSet::compile(rules, &known()).unwrap_or_else(|faults| panic!("{}", faults[0]));
    let message = Message::parse(message.as_bytes()).unwrap();
    let context = MessageContext::of(&message, RuleDirection::In, trunk_peer(), Transport::Udp);
    let mut effects = Effects::default();
    rules.run(&context, &mut effects);
    let edits: Vec<Edit<'_>> = effects.all_edits().collect();
    let mut out = Vec::new();
    emit(&message, &edits, &mut out);
    drop(edits);
    (String::from_utf8(out).unwrap(), effects)
}

/// The headers behind CSeq after these actions.
fn done(actions: &[ActionSpec], headers: &str) -> String {
    let (out, effects) = run(
        &[rule(RuleDirection::In, actions.to_vec())],
        &format!("{HEAD}{headers}\r\n"),
    );
    assert_eq!(effects.refused_edits, 0, "{out}");
    let rest = out.split_once("CSeq: 1 INVITE\r\n").unwrap().1;
    rest.trim_end().replace("\r\n", "|")
}

fn of(verb: Verb, object: &str, which: ValueSelector) -> ActionSpec {
    ActionSpec {
        which: Some(which),
        ..ActionSpec::new(verb, object)
    }
}

#[test]
fn headers_are_added_set_and_removed() {
    let three = "X-A: 1\r\nSubject: s\r\nx-a: 2\r\nX-A: 3\r\n";
    for (action, headers, expected) in [
        (
            with_value(Verb::Add, "X-B", "v"),
            three,
            "X-A: 1|Subject: s|x-a: 2|X-A: 3|X-B: v",
        ),
        (
            with_value(Verb::Add, "X-A", "4"),
            three,
            "X-A: 1|Subject: s|x-a: 2|X-A: 3|X-A: 4",
        ),
        (
            with_value(Verb::Set, "x-A", "v"),
            three,
            "Subject: s|x-A: v",
        ),
        (
            with_value(Verb::Set, "s", "v"),
            three,
            "X-A: 1|Subject: v|x-a: 2|X-A: 3",
        ),
        (ActionSpec::new(Verb::Remove, "X-A"), three, "Subject: s"),
        (
            of(Verb::Remove, "X-A", ValueSelector::First),
            three,
            "Subject: s|X-A: 2|X-A: 3",
        ),
        (
            of(Verb::Remove, "X-A", ValueSelector::Last),
            three,
            "Subject: s|X-A: 1|X-A: 2",
        ),
        (
            of(Verb::Remove, "X-A", ValueSelector::Number(2)),
            three,
            "Subject: s|X-A: 1|X-A: 3",
        ),
        (
            of(Verb::Remove, "X-A", ValueSelector::Number(9)),
            three,
            "X-A: 1|Subject: s|x-a: 2|X-A: 3",
        ),
        (
            ActionSpec {
                regex: Some("[12]".into()),
                ..ActionSpec::new(Verb::Remove, "X-A")
            },
            three,
            "Subject: s|X-A: 3",
        ),
        (
            ActionSpec::new(Verb::Remove, "X-None"),
            three,
            "X-A: 1|Subject: s|x-a: 2|X-A: 3",
        ),
        // A list of values, in any number of fields.
        (
            of(Verb::Remove, "Allow-Events", ValueSelector::Number(2)),
            "Allow-Events: a, b\r\nu: c\r\n",
            "Allow-Events: a, c",
        ),
        (
            with_value(Verb::Set, "Subject", "${from.user} ${status} $$5"),
            "",
            "Subject: alice 0 $5",
        ),
        (
            with_value(Verb::Add, "X-B", "${header[\"X-None\"]}"),
            "",
            "",
        ),
    ] {
        assert_eq!(
            done(std::slice::from_ref(&action), headers),
            expected,
            "{action:?}"
        );
    }
}

#[test]
fn values_and_parts_are_replaced_with_captures() {
    for (action, headers, expected) in [
        (
            replacement("Subject", None, "(?i)^re: (.*)$", "$1!"),
            "Subject: Re: lunch\r\n",
            "Subject: lunch!",
        ),
        (
            replacement("Subject", None, "n(?P<last>.)", "<${last}>"),
            "Subject: anbnc\r\n",
            "Subject: a<b><c>",
        ),
        (
            replacement("Subject", None, "nothing", "x"),
            "Subject: a\r\n",
            "Subject: a",
        ),
        (
            replacement("X-A", None, "^(\\d+)$", "${1}-${from.user}"),
            "X-A: 7\r\nX-A: b\r\n",
            "X-A: 7-alice|X-A: b",
        ),
        (
            replacement("P-Asserted-Identity", Some("user"), "^0(\\d+)$", "+49$1"),
            "P-Asserted-Identity: \"A\" <sip:0301@h;user=phone>, <tel:0302>\r\n",
            "P-Asserted-Identity: \"A\" <sip:+49301@h;user=phone>, <tel:+49302>",
        ),
        (
            ActionSpec {
                which: Some(ValueSelector::Last),
                ..replacement("Diversion", Some("params.reason"), ".*-", "")
            },
            "Diversion: <sip:a@b>;reason=no-answer\r\nDiversion: <sip:c@d>;reason=user-busy\r\n",
            "Diversion: <sip:a@b>;reason=no-answer, <sip:c@d>;reason=busy",
        ),
        (
            on_part(Verb::Rewrite, "Refer-To", "host", "${to.host}"),
            "Refer-To: <sip:x@old:5070>\r\n",
            "Refer-To: <sip:x@h.example:5070>",
        ),
        (
            on_part(Verb::Rewrite, "Diversion", "display", "${from.display}"),
            "Diversion: <sip:a@b>\r\n",
            "Diversion: \"Alice\" <sip:a@b>",
        ),
        (
            on_part(Verb::Rewrite, "Reply-To", "uri-params.transport", "tcp"),
            "Reply-To: <sip:a@b>\r\n",
            "Reply-To: <sip:a@b;transport=tcp>",
        ),
        (
            ActionSpec {
                part: Some("port".into()),
                ..ActionSpec::new(Verb::Remove, "Diversion")
            },
            "Diversion: <sip:a@b:5070>, <sip:c@d>\r\n",
            "Diversion: <sip:a@b>, <sip:c@d>",
        ),
        (
            number("P-Asserted-Identity", NumberForm::E164),
            "P-Asserted-Identity: <sip:0301@h>, <sip:0302@h>\r\n",
            "P-Asserted-Identity: <sip:+49301@h>, <sip:0302@h>",
        ),
    ] {
        assert_eq!(
            done(std::slice::from_ref(&action), headers),
            expected,
            "{action:?}"
        );
    }
}

#[test]
fn request_uri_from_and_to_are_rewritten_with_their_tags_kept() {
    let actions = vec![
        number("Request-URI", NumberForm::E164),
        replacement("Request-URI", None, "example$", "invalid"),
        on_part(Verb::Rewrite, "From", "user", "${uri.user}"),
        on_part(Verb::Rewrite, "From", "display", ""),
        on_part(Verb::Rewrite, "To", "scheme", "tel"),
        on_part(Verb::Rewrite, "From", "params.isup-oli", "2"),
    ];
    let (out, effects) = run(
        &[rule(RuleDirection::In, actions.clone())],
        &format!("{HEAD}\r\n"),
    );
    assert_eq!(effects.refused_edits, 0);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "INVITE sip:+4930123@h.invalid SIP/2.0");
    assert_eq!(
        lines[2],
        "From: \"Alice\" <sip:+4930123@access.example>;tag=1;isup-oli=2"
    );
    assert_eq!(lines[3], "To: <tel:030123>");
    // Within a dialog they are fixed.
    let inside = format!(
        "{}\r\n",
        HEAD.replace(
            "To: <sip:030123@h.example>",
            "To: <sip:030123@h.example>;tag=2"
        )
    );
    let (out, effects) = run(&[rule(RuleDirection::In, actions)], &inside);
    assert_eq!(out, inside);
    assert!(effects.changes_nothing());
}

#[test]
fn edits_that_break_the_message_are_omitted_and_counted() {
    let evil = HEAD.replace("<sip:alice@", "<sip:a%0D%0AVia:%20x%22%3E@");
    for action in [
        with_value(Verb::Add, "X-A", "${from.user}"),
        with_value(Verb::Set, "P-Asserted-Identity", "<sip:${from.user}@h>"),
        with_value(Verb::Set, "Expires", "${from.user}"),
        with_value(Verb::Set, "Privacy", "${from.display} x"),
        on_part(Verb::Rewrite, "To", "host", "${from.user}"),
        on_part(Verb::Rewrite, "To", "port", "${from.display}"),
        on_part(Verb::Rewrite, "Request-URI", "scheme", "${from.display}"),
        on_part(Verb::Rewrite, "To", "display", "${from.user}"),
        replacement("Subject", None, "^", "${from.user}"),
        replacement("Request-URI", None, "^sip", "http"),
        replacement("Request-URI", None, "$", "?X=y"),
    ] {
        let message = format!("{evil}Subject: s\r\n\r\n");
        let (out, effects) = run(&[rule(RuleDirection::In, vec![action.clone()])], &message);
        assert_eq!(out, message, "{action:?}");
        assert_eq!(effects.refused_edits, 1, "{action:?}");
    }
    // A user with arbitrary characters is escaped, which is valid.
    let (out, effects) = run(
        &[rule(
            RuleDirection::In,
            vec![on_part(Verb::Rewrite, "To", "user", "${from.user}")],
        )],
        &format!("{evil}\r\n"),
    );
    assert_eq!(effects.refused_edits, 0);
    assert!(out.contains("To: <sip:a%0D%0AVia@h.example>"), "{out}");
    // Unlimited growth is prevented.
    let grow = vec![replacement("Subject", None, ".", "$0$0$0$0$0$0$0$0"); 12];
    let (out, effects) = run(
        &[rule(RuleDirection::In, grow)],
        &format!("{HEAD}Subject: 12345678\r\n\r\n"),
    );
    assert!(
        effects.refused_edits > 0 && out.len() < 60_000,
        "{}",
        out.len()
    );
}

#[test]
fn rules_apply_by_peer_and_message_type_in_order_until_one_stops() {
    let log = |name: &str, change: &dyn Fn(&mut RuleSpec)| {
        let mut spec = rule(RuleDirection::In, vec![ActionSpec::new(Verb::Log, name)]);
        change(&mut spec);
        spec
    };
    let rules = [
        log("out", &|rule| rule.direction = RuleDirection::Out),
        log("response", &|rule| rule.on = MessageFilter::Response),
        log("bye", &|rule| rule.methods = vec!["BYE".into()]),
        log("invite", &|rule| {
            rule.methods = vec!["INVITE".into(), "BYE".into()]
        }),
        log("elsewhere", &|rule| rule.interfaces = vec![0]),
        log("here", &|rule| rule.interfaces = vec![0, 1]),
        log("access", &|rule| rule.kinds = vec![PeerKind::Access]),
        log("trunk kind", &|rule| {
            rule.kinds = vec![PeerKind::Access, PeerKind::Trunk]
        }),
        log("other trunk", &|rule| rule.trunks = vec![1]),
        log("this trunk", &|rule| rule.trunks = vec![0]),
        log("no", &|rule| rule.when = Some("method == 'BYE'".into())),
        log("failing", &|rule| {
            rule.when = Some("int(from.user) == 1".into())
        }),
        log("yes", &|rule| {
            rule.when = Some("initial".into());
            rule.stop = true;
        }),
        log("behind", &|_| {}),
    ];
    let (_, effects) = run(&rules, &format!("{HEAD}\r\n"));
    let said: Vec<&str> = effects.log.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(said, ["invite", "here", "trunk kind", "this trunk", "yes"]);
    assert_eq!(effects.failed_conditions, 1);
    assert_eq!(effects.matched.as_slice(), [3, 5, 7, 9, 12]);
    let set = RuleSet::compile(&rules, &known()).unwrap();
    assert!(set.applies_to(RuleDirection::Out, true, &wire::sip::Method::Options));
    let only = RuleSet::compile(&rules[2..3], &known()).unwrap();
    assert!(only.applies_to(RuleDirection::In, false, &wire::sip::Method::Bye));
    assert!(!only.applies_to(RuleDirection::In, true, &wire::sip::Method::Invite));
    assert!(!only.applies_to(RuleDirection::Out, true, &wire::sip::Method::Bye));
}

#[test]
fn later_rules_see_earlier_effects() {
    let mut second = rule(
        RuleDirection::In,
        vec![with_value(
            Verb::Set,
            "X-C",
            "${header[\"X-A\"]}${tag[\"t\"]}${from.user}",
        )],
    );
    second.when = Some("header['X-A'] == 'new' && size(headers['X-A']) == 1 && tag['t'] == 'kept' && from.user == 'bob'".into());
    let first = rule(
        RuleDirection::In,
        vec![
            with_value(Verb::Set, "X-A", "new"),
            with_value(Verb::Tag, "t", "kept"),
            on_part(Verb::Rewrite, "From", "user", "bob"),
        ],
    );
    let (out, effects) = run(&[first, second], &format!("{HEAD}X-A: 1\r\nX-A: 2\r\n\r\n"));
    assert!(out.contains("X-C: newkeptbob\r\n"), "{out}");
    assert_eq!(effects.tags.len(), 1);
}

#[test]
fn earlier_edits_are_part_of_the_sent_message() {
    let message = format!("{HEAD}Subject: old\r\nX-A: 1\r\nUser-Agent: phone\r\n\r\n");
    let message = Message::parse(message.as_bytes()).unwrap();
    let edits = [
        Edit::Replace {
            id: wire::sip::HeaderId::Subject,
            value: b"composed",
        },
        Edit::RemoveNamed(b"x-a"),
        Edit::AddNamed {
            name: b"X-B",
            value: b"2",
        },
        Edit::Add {
            id: wire::sip::HeaderId::Warning,
            value: b"399 h \"w\"",
        },
    ];
    let context = MessageContext {
        edits: &edits,
        uri: Some(b"sip:target@far"),
        from: Some(b"<sip:us@far>"),
        ..MessageContext::of(&message, RuleDirection::Out, trunk_peer(), Transport::Udp)
    };
    let mut rule = rule(
        RuleDirection::Out,
        vec![
            with_value(Verb::Set, "Warning", "399 h \"x\""),
            with_value(
                Verb::Add,
                "X-Seen",
                "${header[\"Subject\"]} ${header[\"X-B\"]} ${uri.user} ${from.user}",
            ),
            ActionSpec::new(Verb::Remove, "Subject"),
            on_part(Verb::Rewrite, "Request-URI", "host", "near"),
        ],
    );
    rule.when = Some(
        "!('X-A' in header) && !has(header.`User-Agent`) && uri.host == 'far'"
            .replace("has(header.`User-Agent`)", "('User-Agent' in header)"),
    );
    let set = RuleSet::compile(&[rule], &known()).unwrap_or_else(|faults| panic!("{}", faults[0]));
    let mut effects = Effects::default();
    set.run(&context, &mut effects);
    assert_eq!(effects.uri(), Some(&b"sip:target@near"[..]));
    let mut merged: smallvec::SmallVec<[Edit<'_>; 8]> = edits.iter().copied().collect();
    effects.merge(&mut merged);
    let shown: Vec<String> = merged
        .iter()
        .map(|edit| match *edit {
            Edit::Replace { id, value } => format!("={} {}", id.name(), value.escape_ascii()),
            Edit::Add { id, value } => format!("+{} {}", id.name(), value.escape_ascii()),
            Edit::AddNamed { name, value } => {
                format!("+{} {}", name.escape_ascii(), value.escape_ascii())
            }
            Edit::Lines(lines) => {
                let fields = lines.fields().map(|(_, name, value)| {
                    format!("{}: {}", name.escape_ascii(), value.escape_ascii())
                });
                let (mut gone, mut set) = (Vec::new(), lines.heads().replaced);
                while set != 0 {
                    let id = HeaderId::first_in(set);
                    set &= !id.bit();
                    gone.push(id.name());
                }
                let fields = fields.collect::<Vec<_>>().join(", ");
                format!("-{} +{fields}", gone.join(" "))
            }
            Edit::RemoveNamed(name) => format!("-{}", name.escape_ascii()),
            Edit::Remove(id) => format!("-{}", id.name()),
            _ => String::from("?"),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "-x-a",
            "+X-B 2",
            "-Subject",
            "-Subject Warning +Warning: 399 h \\\"x\\\", X-Seen: composed 2 target us",
        ]
    );
}

#[test]
fn prepared_fields_can_be_replaced_singly() {
    let message = format!("{HEAD}Subject: old\r\nX-A: 1\r\n\r\n");
    let message = Message::parse(message.as_bytes()).unwrap();
    let context = MessageContext::of(&message, RuleDirection::Out, trunk_peer(), Transport::Udp);
    let effects_of = |actions: Vec<ActionSpec>, edits: &[Edit<'_>]| {
        let set = RuleSet::compile(&[rule(RuleDirection::Out, actions)], &known()).unwrap();
        let mut effects = Effects::default();
        set.run(&MessageContext { edits, ..context }, &mut effects);
        effects
    };
    let first = effects_of(
        vec![
            with_value(Verb::Set, "Subject", "first"),
            with_value(Verb::Set, "X-A", "first"),
            with_value(Verb::Add, "X-B", "first"),
            with_value(Verb::Add, "Warning", "399 h \"first\""),
        ],
        &[],
    );
    let mut merged: smallvec::SmallVec<[Edit<'_>; 8]> = smallvec::SmallVec::new();
    first.merge(&mut merged);
    // The facts are those of the message to send.
    let second = effects_of(
        vec![
            with_value(
                Verb::Add,
                "X-Was",
                "${header[\"Subject\"]} ${header[\"X-A\"]} ${header[\"X-B\"]}",
            ),
            with_value(Verb::Set, "Subject", "second"),
            with_value(Verb::Set, "x-b", "second"),
        ],
        &merged,
    );
    let mut merged: smallvec::SmallVec<[Edit<'_>; 8]> = smallvec::SmallVec::new();
    first.merge(&mut merged);
    second.merge(&mut merged);
    let mut out = Vec::new();
    emit(&message, &merged, &mut out);
    let out = String::from_utf8_lossy(&out);
    let lines: Vec<&str> = out.lines().collect();
    let count = |line: &str| lines.iter().filter(|one| **one == line).count();
    assert_eq!(count("Subject: second"), 1, "{out}");
    assert_eq!(count("X-A: first"), 1, "{out}");
    assert_eq!(count("x-b: second"), 1, "{out}");
    assert_eq!(count("Warning: 399 h \"first\""), 1, "{out}");
    assert_eq!(count("X-Was: first first first"), 1, "{out}");
    let of = |name: &str| {
        let names = lines.iter().filter_map(|line| line.split_once(':'));
        names
            .filter(|(its, _)| its.eq_ignore_ascii_case(name))
            .count()
    };
    for name in ["Subject", "X-A", "X-B", "Warning", "X-Was"] {
        assert_eq!(of(name), 1, "{name}: {out}");
    }
}
