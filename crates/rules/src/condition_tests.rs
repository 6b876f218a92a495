use super::*;
use crate::context::{MessageContext, PeerKind, PeerRef, RuleDirection};
use crate::effects::Effects;
use engine::Transport;
use proptest::prelude::*;
use wire::sip::Message;

const INVITE: &str = "INVITE sip:%2B4930123;x=1@Example.COM:5080;user=phone SIP/2.0\r\n\
    Via: SIP/2.0/UDP 192.0.2.7;branch=z9hG4bK1\r\n\
    From: \"Alice \\\"A\\\"\" <sip:alice@access.example>;tag=1;origin=pbx\r\n\
    To: <tel:+49-30-123>\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\n\
    Contact: <sip:alice@192.0.2.7>\r\nSubject: lunch\r\n\
    P-Asserted-Identity: \"A\" <sip:100@core.example>, <tel:+49100>\r\n\
    X-Account: 7\r\nx-account: eight\r\nAllow: INVITE, ACK\r\nAllow: BYE\r\n\
    Content-Type: application/SDP;x=y\r\nContent-Length: 3\r\n\r\nv=0";

const OK: &str = "SIP/2.0 200 Fine\r\nVia: SIP/2.0/UDP 192.0.2.7;branch=z9hG4bK1\r\n\
    From: <sip:a@b>;tag=1\r\nTo: <sip:c@d>;tag=2\r\nCall-ID: c1\r\nCSeq: 1 INVITE\r\n\
    Content-Length: 0\r\n\r\n";

fn names() -> RuleNames {
    RuleNames {
        interfaces: vec!["outside".into()],
        trunks: vec!["carrier".into()],
    }
}

fn evaluate(condition: &Condition, message: &str) -> Result<bool, NoValue> {
    let message = Message::parse(message.as_bytes()).unwrap();
    let remote = PeerRef {
        interface: 0,
        kind: PeerKind::Trunk,
        trunk: Some(0),
    };
    let tags: [(Box<str>, Box<str>); 1] = [("vip".into(), "yes".into())];
    let context = MessageContext {
        peer: Some("192.0.2.7:5061".parse().unwrap()),
        user: "alice",
        tags: &tags,
        ..MessageContext::of(&message, RuleDirection::In, remote, Transport::Tcp)
    };
    let effects = Effects::default();
    let view = MessageView {
        context: &context,
        effects: &effects,
    };
    condition.holds(&view, &names())
}

/// Conditions in the compiled subset and their values.
const COMPILED: &[(&str, bool)] = &[
    ("true", true),
    ("method == 'INVITE'", true),
    ("method in ['BYE', 'INVITE']", true),
    ("request && !response && initial", true),
    ("status == 0", true),
    ("status in [200, 0]", true),
    ("direction == 'in' && kind == 'trunk'", true),
    (
        "interface == 'outside' && trunk == 'carrier' && transport == 'tcp'",
        true,
    ),
    ("peer.address == '192.0.2.7' && peer.port == 5061", true),
    (
        "within('192.0.2.0/24') && !within('10.0.0.0/8') && within('0.0.0.0/0')",
        true,
    ),
    ("within('2001:db8::/32')", false),
    ("trusted", true),
    ("user == 'alice'", true),
    ("uri.user == '+4930123'", true),
    (
        "uri.host == 'example.com' && uri.port == 5080 && uri.scheme == 'sip'",
        true,
    ),
    (
        "uri.params['user'] == 'phone' && has(uri.params.user) && !has(uri.params.lr)",
        true,
    ),
    ("uri.uri.startsWith('sip:%2B')", true),
    ("from.display == 'Alice \"A\"'", true),
    (
        "from.params['origin'] == 'pbx' && has(from.params.tag)",
        true,
    ),
    ("from.user < 'alicf' && from.user >= 'alice'", true),
    (
        "to.scheme == 'tel' && to.user == '+4930123' && to.host == ''",
        true,
    ),
    ("has(to.user) && !has(to.host) && !has(to.display)", true),
    (
        "pai.user == '100' && size(headers['P-Asserted-Identity']) == 2",
        true,
    ),
    ("contact.host.endsWith('2.7')", true),
    (
        "header['Subject'] == 'lunch' && header.Subject.contains('unc')",
        true,
    ),
    ("header['s'] == 'lunch'", true),
    (
        "'Subject' in header && 'X-ACCOUNT' in headers && !('X-None' in header)",
        true,
    ),
    ("has(header.Subject) && !has(header.Priority)", true),
    (
        "header['X-None'] == '' && size(headers['X-None']) == 0",
        true,
    ),
    ("header['x-account'] == '7'", true),
    ("'eight' in headers['X-Account']", true),
    (
        "'BYE' in headers['Allow'] && size(headers.Allow) == 3",
        true,
    ),
    ("body.type == 'application/sdp' && body.size == 3", true),
    ("call_id == 'c1'", true),
    (
        "tag['vip'] == 'yes' && has(tag.vip) && 'vip' in tag && !('x' in tag)",
        true,
    ),
    ("uri.user.matches('^\\\\+49')", true),
    ("matches(from.user, 'l.c')", true),
    ("size(from.user) == 5 && from.user.size() > 4", true),
    ("(status == 0 ? request : false)", true),
    ("request == true && (request != response)", true),
    ("status != 200 || from.user == 'x'", true),
    ("status > 5 || from.user <= 'a'", false),
];

/// Conditions that the interpreter evaluates.
const INTERPRETED: &[(&str, Result<bool, NoValue>)] = &[
    (
        "headers['X-Account'].exists(x, x.startsWith('ei'))",
        Ok(true),
    ),
    ("headers['X-Account'].all(x, size(x) > 1)", Ok(false)),
    (
        "size(headers['Allow'].filter(x, x != 'BYE')) == 2",
        Ok(true),
    ),
    ("int(header['X-Account']) + 1 == 8", Ok(true)),
    (
        "from.user + '@' + from.host == 'alice@access.example'",
        Ok(true),
    ),
    ("int(from.user) == 1", Err(NoValue)),
    ("int(from.user) == 1 && false", Ok(false)),
    ("false && int(from.user) == 1", Ok(false)),
    ("int(from.user) == 1 || request", Ok(true)),
    ("1 / status == 1", Err(NoValue)),
    ("headers['X-None'][0] == 'x'", Err(NoValue)),
    ("string(status) == '0'", Ok(true)),
    (
        "[1, 2].exists(x, x == size(headers['P-Asserted-Identity']))",
        Ok(true),
    ),
];

#[test]
fn facts_of_a_request() {
    for (text, expected) in COMPILED {
        let condition =
            Condition::parse(text).unwrap_or_else(|diagnosis| panic!("{text}: {diagnosis:?}"));
        assert!(condition.is_compiled(), "{text} is left to the interpreter");
        assert_eq!(evaluate(&condition, INVITE), Ok(*expected), "{text}");
        let slow = Condition::interpreted(text).unwrap();
        assert_eq!(
            evaluate(&slow, INVITE),
            Ok(*expected),
            "{text}, interpreted"
        );
    }
}

#[test]
fn other_expressions_are_interpreted() {
    for (text, expected) in INTERPRETED {
        let condition =
            Condition::parse(text).unwrap_or_else(|diagnosis| panic!("{text}: {diagnosis:?}"));
        assert!(!condition.is_compiled(), "{text}");
        assert_eq!(evaluate(&condition, INVITE), *expected, "{text}");
        let slow = Condition::interpreted(text).unwrap();
        assert_eq!(
            evaluate(&slow, INVITE),
            *expected,
            "{text}, interpreted whole"
        );
    }
}

#[test]
fn facts_of_a_response() {
    for text in [
        "response && !request && status == 200 && reason == 'Fine' && method == 'INVITE'",
        "uri.user == '' && !has(uri.user) && !initial",
        "body.type == '' && body.size == 0 && pai.user == ''",
    ] {
        let condition = Condition::parse(text).unwrap();
        assert_eq!(evaluate(&condition, OK), Ok(true), "{text}");
    }
}

#[test]
fn invalid_conditions_are_refused_when_loaded() {
    for (text, part) in [
        ("methd == 'INVITE'", "did you mean `method`"),
        ("frm.user == 'x'", "did you mean `from`"),
        ("from == 'x'", "from.user"),
        ("from.usr == 'x'", "no `usr`"),
        ("uri.display == 'x'", "no `display`"),
        ("status == '200'", "without quotes"),
        ("method == 5", "in quotes"),
        ("method", "true or false"),
        ("!method", "`!`"),
        ("method && request", "`&&`"),
        ("method.startswith('I')", "no function `startswith`"),
        ("status.startsWith('2')", "requires a text"),
        ("method in 'INVITE'", "requires a list"),
        ("method in [1, 2]", "`in`"),
        ("method.matches('(')", "not a valid regular expression"),
        ("method.matches(from.user)", "literal"),
        ("header[from.user] == ''", "literal"),
        ("header == 'x'", "header[\"NAME\"]"),
        ("header['a b'] == ''", "header name"),
        ("within('everything')", "network"),
        ("within(from.host)", "network"),
        ("within('::ffff:10.0.0.0/104')", "network"),
        ("method ==", "invalid condition"),
        ("", "invalid condition"),
        ("headers['A'].exists(from, from == 'x')", "is a fact"),
        ("from.user.exists(x, x == 'y')", "iterate over"),
        (
            "headers['A'].exists(x, headers['B'].exists(y, headers['C'].exists(z, x + y == z)))",
            "steps",
        ),
        (
            "headers['A'].exists(x, x.matches('a') && x.matches('b'))",
            "steps",
        ),
        ("Rule{a: 1} == Rule{a: 1}", "protocol buffer"),
    ] {
        let diagnosis = Condition::parse(text).expect_err(text);
        let text_of_error = format!("{} / {}", diagnosis.message, diagnosis.remedy);
        assert!(text_of_error.contains(part), "{text}: {text_of_error}");
    }
    let deep = format!("{}true{}", "(".repeat(200), ")".repeat(200));
    assert!(Condition::parse(&deep).is_err());
    let long = vec!["method == 'INVITE'"; 400].join(" || ");
    assert!(Condition::parse(&long).is_err());
}

/// Random conditions composed of valid parts.
fn boolean() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        Just("from.user".to_owned()),
        Just("uri.host".to_owned()),
        Just("header['Subject']".to_owned()),
        Just("header['X-Account']".to_owned()),
        Just("method".to_owned()),
        "'[a-z0-9]{0,3}'",
    ];
    let int = prop_oneof![
        Just("status".to_owned()),
        Just("uri.port".to_owned()),
        Just("size(headers['Allow'])".to_owned()),
        Just("size(from.display)".to_owned()),
        "[0-9]{1,3}",
    ];
    let order = prop_oneof![
        Just("=="),
        Just("!="),
        Just("<"),
        Just("<="),
        Just(">"),
        Just(">=")
    ];
    let leaf = prop_oneof![
        (text.clone(), order.clone(), text.clone()).prop_map(|(a, o, b)| format!("({a} {o} {b})")),
        (int.clone(), order, int.clone()).prop_map(|(a, o, b)| format!("({a} {o} {b})")),
        (text.clone(), text.clone()).prop_map(|(a, b)| format!("{a}.contains({b})")),
        (text.clone(), text.clone()).prop_map(|(a, b)| format!("{a}.startsWith({b})")),
        text.clone().prop_map(|a| format!("{a}.matches('[a-c]+$')")),
        text.clone()
            .prop_map(|a| format!("({a} in headers['X-Account'])")),
        text.prop_map(|a| format!("({a} in ['alice', '7', ''])")),
        int.prop_map(|a| format!("({a} in [0, 200, 3])")),
        Just("has(header.Priority)".to_owned()),
        Just("initial".to_owned()),
        Just("(1 / status == 1)".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} && {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} || {b})")),
            inner.clone().prop_map(|a| format!("!{a}")),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("({a} == {b})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// The compiled form and the interpreter of the cel crate agree on every condition.
    #[test]
    fn compiled_and_interpreted_agree(text in boolean()) {
        let Ok(compiled) = Condition::parse(&text) else {
            return Ok(());
        };
        let interpreted = Condition::interpreted(&text).unwrap();
        for message in [INVITE, OK] {
            prop_assert_eq!(evaluate(&compiled, message), evaluate(&interpreted, message), "{}", text);
        }
    }
}
