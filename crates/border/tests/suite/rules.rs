//! Header rules and identities in calls through a border.

use crate::virtual_network;

use engine::{DropReason, EventKind, Time, Transport};
use sip::{MessageContent, OutOfDialogRequest, Target};
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Message, Method};

const IN: &str = "198.51.100.1:5060";

/// Headers that rules add to messages from the core are relayed to phones if they are listed.
fn plain() -> String {
    PLAIN.replace("kind='access'", "kind='access'\npass_headers='X-Ring'")
}

fn net(rules: &str) -> (VirtualNetwork, usize, usize) {
    let mut net = VirtualNetwork::new(&format!("{}{rules}", plain()), 7);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    (net, alice, bob)
}

/// The messages that a phone received: requests by method, responses by `status method`.
fn received_messages<'n>(net: &'n VirtualNetwork, phone: usize, what: &str) -> Vec<Message<'n>> {
    net.phones[phone]
        .received
        .iter()
        .filter_map(|bytes| Message::parse(bytes).ok())
        .filter(|message| {
            let method = String::from_utf8_lossy(message.method().as_bytes()).into_owned();
            let name = match message.status() {
                0 => method,
                status => format!("{status} {method}"),
            };
            name == what
        })
        .collect()
}

fn first<'n>(net: &'n VirtualNetwork, phone: usize, what: &str) -> Message<'n> {
    received_messages(net, phone, what)
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("{phone} got no {what}"))
}

fn header(message: &Message<'_>, name: &str) -> Option<String> {
    message
        .header_named(name.as_bytes())
        .map(|value| String::from_utf8_lossy(value).into_owned())
}

fn has(net: &VirtualNetwork, which: impl Fn(&EventKind) -> bool) -> bool {
    net.events.iter().any(|event| which(&event.kind))
}

/// A complete call: set-up, an in-dialog request, end by the caller.
fn call(net: &mut VirtualNetwork, alice: usize, content: &MessageContent<'_>) {
    let leg = net.call(alice, "sip:030123@192.0.2.1", OUT, content);
    net.run(seconds(1));
    net.command(alice, |endpoint, now| {
        let _ = endpoint.request(leg, Method::Info, &MessageContent::default(), now);
    });
    net.run(seconds(1));
    net.command(alice, |endpoint, now| {
        let _ = endpoint.bye(leg, &MessageContent::default(), now);
    });
    net.run(seconds(40));
    let census = net.border.census();
    assert!(census.is_quiet(), "{census:?}");
}

/// The rules of the study: on both sides two headers changed and two added in every relayed message.
const STUDY: &str = "
[[rules]]
name = 'towards the core'
interface = 'in'
direction = 'out'
do = [
  { set = 'User-Agent', value = 'Border' },
  { set = 'Subject', value = 'S: ${header[\"Subject\"]}' },
  { add = 'X-Border', value = 'one' },
  { add = 'X-Side', value = '${interface}/${direction}/${trunk}' },
]
[[rules]]
name = 'towards the phones'
interface = 'out'
direction = 'out'
do = [
  { set = 'Server', value = 'Border' },
  { set = 'User-Agent', value = 'Border' },
  { add = 'X-Border', value = 'one' },
  { add = 'X-Side', value = '${interface}/${direction}/${kind}' },
]
";

#[test]
fn every_relayed_message_is_changed_on_both_sides() {
    let (mut net, alice, bob) = net(STUDY);
    let edits = [Edit::Add {
        id: HeaderId::Subject,
        value: b"lunch",
    }];
    call(
        &mut net,
        alice,
        &MessageContent::sdp(SDP_A.as_bytes()).with(&edits),
    );
    for what in ["INVITE", "ACK", "INFO", "BYE"] {
        let message = first(&net, bob, what);
        assert_eq!(
            header(&message, "User-Agent").as_deref(),
            Some("Border"),
            "{what}"
        );
        assert_eq!(
            header(&message, "X-Border").as_deref(),
            Some("one"),
            "{what}"
        );
        assert_eq!(
            header(&message, "X-Side").as_deref(),
            Some("in/out/pbx"),
            "{what}"
        );
        assert_eq!(message.all(HeaderId::UserAgent).count(), 1, "{what}");
        assert!(message.validate().is_ok(), "{what}");
    }
    assert_eq!(
        header(&first(&net, bob, "INVITE"), "Subject").as_deref(),
        Some("S: lunch")
    );
    for what in ["180 INVITE", "200 INVITE", "200 INFO"] {
        let message = first(&net, alice, what);
        assert_eq!(
            header(&message, "Server").as_deref(),
            Some("Border"),
            "{what}"
        );
        assert_eq!(
            header(&message, "X-Side").as_deref(),
            Some("out/out/access"),
            "{what}"
        );
        assert!(message.validate().is_ok(), "{what}");
    }
    // Rules do not apply to messages between the border and one peer.
    assert_eq!(header(&first(&net, alice, "100 INVITE"), "X-Border"), None);
    assert_eq!(net.border.drops().get(DropReason::RuleEditRefused), 0);
}

#[test]
fn received_messages_are_changed_before_routing_and_later_rules() {
    let rules = "
[[route]]
to = { prefix = '+49' }
trunk = 'pbx'
[[route]]
reject = 404
[[rules]]
name = 'international'
interface = 'out'
direction = 'in'
on = 'request'
when = 'initial && uri.user.matches(\"^0[1-9]\")'
do = [
  { number = 'Request-URI', form = 'e164', country = '49' },
  { number = 'To', form = 'e164', country = '49' },
  { rewrite = 'From', part = 'display', value = 'Room ${from.user}' },
  { set = 'X-Dialled', value = '${uri.user}' },
  { tag = 'dialled', value = '${uri.user}' },
  { log = 'from ${peer.address}: ${uri.uri}' },
]
[[rules]]
direction = 'in'
method = 'INFO'
do = [{ add = 'X-Info', value = 'entry ${tag[\"dialled\"]}' }]
[[rules]]
trunk = 'pbx'
direction = 'in'
on = 'response'
when = 'status == 180'
do = [{ set = 'X-Ring', value = '${reason}' }]
[[rules]]
direction = 'out'
trunk = 'pbx'
method = 'BYE'
do = [{ add = 'X-Dialled', value = '${tag[\"dialled\"]}' }]
";
    let (mut net, alice, bob) = net(rules);
    call(&mut net, alice, &MessageContent::sdp(SDP_A.as_bytes()));
    let invite = first(&net, bob, "INVITE");
    assert!(
        invite.request_uri().starts_with(b"sip:+4930123@"),
        "{:?}",
        String::from_utf8_lossy(invite.request_uri())
    );
    assert!(
        header(&invite, "To").is_some_and(|to| to.starts_with("<sip:+4930123@10.2.0.1")),
        "{:?}",
        header(&invite, "To")
    );
    assert!(
        header(&invite, "From")
            .is_some_and(|from| from.starts_with("\"Room p0\" <sip:p0@198.51.100.1")),
        "{:?}",
        header(&invite, "From")
    );
    assert_eq!(header(&invite, "X-Dialled").as_deref(), Some("+4930123"));
    assert_eq!(
        header(&first(&net, bob, "INFO"), "X-Info").as_deref(),
        Some("entry +4930123")
    );
    assert_eq!(
        header(&first(&net, alice, "180 INVITE"), "X-Ring").as_deref(),
        Some("Ringing")
    );
    assert_eq!(
        header(&first(&net, bob, "BYE"), "X-Dialled").as_deref(),
        Some("+4930123")
    );
    // The caller's own dialog has the headers that the caller sent.
    let answer = first(&net, alice, "200 INVITE");
    assert!(header(&answer, "To").is_some_and(|to| to.starts_with("<sip:030123@192.0.2.1>")));
    assert!(has(
        &net,
        |note| matches!(note, EventKind::CallTagged { call: 1, tag, value } if tag == "dialled" && value == "+4930123")
    ));
    assert!(has(
        &net,
        |note| matches!(note, EventKind::RuleLogged { rule, text, .. } if rule == "international" && text == "from 10.1.0.1: sip:+4930123@192.0.2.1")
    ));
}

#[test]
fn rules_refuse_and_route_requests() {
    let rules = "
[[trunk]]
name = 'other'
interface = 'in'
target = 'udp:10.2.0.2:5060'
[[route]]
trunk = 'pbx'
[[rules]]
direction = 'in'
method = 'INVITE'
when = 'uri.user.startsWith(\"0900\")'
do = [{ reject = 603, reason = 'Not From Here' }]
[[rules]]
direction = 'in'
method = ['INVITE', 'MESSAGE']
when = 'uri.user == \"elsewhere\"'
do = [{ route = 'other' }]
[[rules]]
direction = 'out'
trunk = 'other'
method = 'INFO'
do = [{ reject = 488, reason = 'Not To Other' }]
[[rules]]
direction = 'out'
interface = 'out'
on = 'response'
when = 'status >= 400'
do = [{ add = 'X-Sorry', value = '${status}' }]
";
    let (mut net, alice, bob) = net(rules);
    let carol = net.phone("10.2.0.2:5060", PhoneBehaviour::answering(SDP_B));
    net.call(
        alice,
        "sip:0900123@192.0.2.1",
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()),
    );
    net.run(seconds(1));
    let refusal = first(&net, alice, "603 INVITE");
    assert_eq!(refusal.reason(), b"Not From Here");
    assert_eq!(header(&refusal, "X-Sorry").as_deref(), Some("603"));
    assert_eq!(net.border.drops().get(DropReason::RuleRefused), 1);
    assert!(has(
        &net,
        |note| matches!(note, EventKind::InviteRefused { status: 603, reason: why, .. } if why == "refused by a header rule")
    ));
    assert!(
        received_messages(&net, bob, "INVITE").is_empty()
            && received_messages(&net, carol, "INVITE").is_empty()
    );
    let leg = net.call(
        alice,
        "sip:elsewhere@192.0.2.1",
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()),
    );
    net.run(seconds(1));
    assert!(received_messages(&net, bob, "INVITE").is_empty());
    assert_eq!(received_messages(&net, carol, "INVITE").len(), 1);
    net.command(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(received_messages(&net, carol, "INFO").is_empty());
    assert_eq!(first(&net, alice, "488 INFO").reason(), b"Not To Other");
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now)
    })
    .unwrap();
    net.run(seconds(40));
    assert!(net.border.census().is_quiet());
    // The refused call left no state.
    assert!(net.border.calls().is_empty());
}

#[test]
fn refusal_of_an_outgoing_call_reaches_the_caller() {
    let rules = "[[rules]]\ndirection='out'\ntrunk='pbx'\nmethod='INVITE'\nwhen='uri.user == \"030123\"'\ndo=[{ reject = 480, reason = 'Line moved' }]\nname='no calls'\n";
    let (mut net, alice, bob) = net(rules);
    net.call(
        alice,
        "sip:030123@192.0.2.1",
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()),
    );
    net.run(seconds(40));
    assert_eq!(first(&net, alice, "480 INVITE").reason(), b"Line moved");
    assert!(received_messages(&net, bob, "INVITE").is_empty());
    assert!(net.border.census().is_quiet());
    assert!(has(&net, |note| matches!(
        note,
        EventKind::RuleRefused { rule, call: 1, status: 480 } if rule == "no calls"
    )));
}

#[test]
fn header_injection_is_omitted_and_counted() {
    let rules = "[[rules]]\ndirection='out'\nmethod='INVITE'\non='request'\n\
        do=[{ add = 'X-Caller', value = '${from.user}' }, { set = 'Diversion', value = '<sip:${from.user}@h>' }, \
        { add = 'X-After', value = 'fine' }]\n[identity]\ndiversion = 'pass'\n";
    let (mut net, alice, bob) = net(rules);
    net.call_with(
        alice,
        "sip:030123@192.0.2.1",
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()),
        |invite| invite.from = Some(b"<sip:eve%0d%0aX-Evil:%20yes%00@10.1.0.1>"),
    );
    net.run(seconds(1));
    let invite = first(&net, bob, "INVITE");
    assert_eq!(header(&invite, "X-Evil"), None);
    assert_eq!(header(&invite, "X-Caller"), None);
    assert_eq!(header(&invite, "Diversion"), None);
    assert_eq!(header(&invite, "X-After").as_deref(), Some("fine"));
    assert_eq!(net.border.drops().get(DropReason::RuleEditRefused), 2);
}

#[test]
fn rules_are_reloaded_during_calls() {
    let (mut net, alice, bob) = net("");
    let leg = net.call(
        alice,
        "sip:030123@192.0.2.1",
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()),
    );
    net.run(seconds(1));
    assert_eq!(header(&first(&net, bob, "INVITE"), "X-Border"), None);
    let config = config::parse(&format!("{}{STUDY}", plain()), "test").unwrap();
    net.control(|border, now: Time| border.reload(config, now));
    assert!(has(
        &net,
        |note| matches!(note, EventKind::ConfigurationReloaded { changes } if changes == "rules")
    ));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now)
    })
    .unwrap();
    net.run(seconds(1));
    assert_eq!(
        header(&first(&net, bob, "BYE"), "X-Border").as_deref(),
        Some("one")
    );
}

#[test]
fn rules_apply_to_out_of_dialog_requests() {
    let rules = "
[[rules]]
direction = 'in'
method = 'MESSAGE'
do = [{ set = 'Subject', value = 'in' }]
[[rules]]
direction = 'out'
method = 'MESSAGE'
on = 'request'
do = [{ add = 'X-Out', value = '${header[\"Subject\"]} to ${uri.user}' }, { rewrite = 'To', part = 'user', value = 'reception' }]
[[rules]]
direction = 'out'
method = 'MESSAGE'
on = 'response'
do = [{ add = 'X-Answer', value = '${status}' }]
";
    let (mut net, alice, bob) = net(rules);
    let flow = net.flow(alice, OUT, Transport::Udp);
    net.command(alice, |endpoint, now| {
        let outside = OutOfDialogRequest {
            from: Some(b"<sip:alice@10.1.0.1>"),
            ..OutOfDialogRequest::new(Method::Message, Target::new(b"sip:bob@192.0.2.1", flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(1));
    let message = first(&net, bob, "MESSAGE");
    assert_eq!(header(&message, "X-Out").as_deref(), Some("in to bob"));
    assert!(header(&message, "To").is_some_and(|to| to.starts_with("<sip:reception@")));
    assert_eq!(
        header(&first(&net, alice, "200 MESSAGE"), "X-Answer").as_deref(),
        Some("200")
    );
}

/// Sets up a call with these headers. Returns those that arrive.
fn identity(rules: &str, from_phone: bool, headers: &[(HeaderId, &'static [u8])]) -> String {
    let (mut net, alice, bob) = net(rules);
    let edits: Vec<Edit<'_>> = headers
        .iter()
        .map(|&(id, value)| Edit::Add { id, value })
        .collect();
    let content = MessageContent::sdp(SDP_A.as_bytes()).with(&edits);
    let invited = match from_phone {
        true => {
            net.call(alice, "sip:030123@192.0.2.1", OUT, &content);
            bob
        }
        false => {
            net.call(bob, "sip:99@198.51.100.1", IN, &content);
            alice
        }
    };
    net.run(seconds(1));
    let invite = first(&net, invited, "INVITE");
    let shown = [
        "From",
        "P-Asserted-Identity",
        "P-Preferred-Identity",
        "Privacy",
        "Diversion",
        "History-Info",
        "Remote-Party-ID",
        "Organization",
    ];
    let lines = shown.iter().filter_map(|name| {
        let value = header(&invite, name)?;
        let value = value.split(";tag=").next().unwrap_or_default().to_owned();
        Some(format!("{name}: {value}"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

const IDENTITY: &[(HeaderId, &[u8])] = &[
    (HeaderId::PAssertedIdentity, b"\"Chef\" <sip:100@10.9.9.9>"),
    (HeaderId::PPreferredIdentity, b"<sip:101@10.9.9.9>"),
    (HeaderId::Diversion, b"<sip:77@10.9.9.9>;reason=no-answer"),
    (HeaderId::HistoryInfo, b"<sip:78@10.9.9.9>;index=1"),
    (HeaderId::RemotePartyId, b"<sip:100@10.9.9.9>;privacy=off"),
    (HeaderId::Organization, b"Acme"),
];

#[test]
fn identities_of_untrusted_peers_are_removed() {
    let arrived = identity("", true, IDENTITY);
    assert_eq!(
        arrived,
        "From: \"Phone 0\" <sip:p0@198.51.100.1:5060>\nOrganization: Acme"
    );
    // A trusting side gets them, with the border's host.
    let trusting = "[[trunk]]\nname='x'\ninterface='out'\ntarget='udp:10.1.0.1:5060'\n[[route]]\ntrunk='pbx'\n";
    let arrived = identity(trusting, true, IDENTITY);
    assert!(
        arrived.contains("P-Asserted-Identity: \"Chef\" <sip:100@198.51.100.1"),
        "{arrived}"
    );
    assert!(
        arrived.contains("Diversion: <sip:77@") && arrived.contains("History-Info: <sip:78@"),
        "{arrived}"
    );
    let distrusting = trusting.replace("target=", "trusted=false\ntarget=");
    assert!(!identity(&distrusting, true, IDENTITY).contains("Asserted"));
}

/// A call of the PBX to an untrusted phone.
const TO_PHONE: &str = "[[trunk]]\nname='phone'\ninterface='out'\ntrusted=false\ntarget='udp:10.1.0.1:5060'\n[[route]]\ntrunk='phone'\n";

#[test]
fn privacy_is_applied_outside_the_trust_domain() {
    let with = |privacy: &'static [u8]| {
        let mut headers = IDENTITY.to_vec();
        headers.push((HeaderId::Privacy, privacy));
        headers
    };
    let arrived = identity(TO_PHONE, false, IDENTITY);
    assert_eq!(
        arrived,
        "From: \"Phone 1\" <sip:p1@192.0.2.1:5060>\nP-Asserted-Identity: \"Chef\" <sip:100@192.0.2.1:5060>\n\
         Remote-Party-ID: <sip:100@192.0.2.1:5060>;privacy=off\nOrganization: Acme"
    );
    let arrived = identity(TO_PHONE, false, &with(b"id"));
    assert!(
        !arrived.contains("Asserted") && !arrived.contains("Remote") && arrived.contains("Phone 1"),
        "{arrived}"
    );
    let arrived = identity(TO_PHONE, false, &with(b"user;id"));
    assert!(
        arrived.starts_with("From: \"Anonymous\" <sip:anonymous@anonymous.invalid>"),
        "{arrived}"
    );
    assert!(
        !arrived.contains("Acme") && !arrived.contains("Chef") && !arrived.contains("Privacy"),
        "{arrived}"
    );
    let arrived = identity(TO_PHONE, false, &with(b"none"));
    assert!(
        arrived.contains("Chef") && arrived.contains("Privacy: none"),
        "{arrived}"
    );
    let inside = TO_PHONE.replace("trusted=false", "trusted=true");
    let arrived = identity(&inside, false, &with(b"user;id"));
    assert!(
        arrived.contains("Privacy: user;id")
            && arrived.contains("Phone 1")
            && arrived.contains("Acme"),
        "{arrived}"
    );
    let anonymise =
        format!("{TO_PHONE}[identity]\ndiversion='anonymise'\nhistory_info='anonymise'\n");
    let arrived = identity(&anonymise, false, IDENTITY);
    assert!(
        arrived.contains("Diversion: <sip:anonymous@anonymous.invalid>;reason=no-answer"),
        "{arrived}"
    );
    assert!(
        arrived.contains("History-Info: <sip:anonymous@anonymous.invalid>;index=1"),
        "{arrived}"
    );
}

#[test]
fn critical_session_privacy_is_refused_if_impossible() {
    let bypass = TO_PHONE.replace("trunk='phone'\n", "trunk='phone'\nmedia='bypass'\n");
    let (mut net, alice, bob) = net(&bypass);
    let edits = [Edit::Add {
        id: HeaderId::Privacy,
        value: b"session;critical",
    }];
    net.call(
        bob,
        "sip:99@198.51.100.1",
        IN,
        &MessageContent::sdp(SDP_B.as_bytes()).with(&edits),
    );
    net.run(seconds(1));
    first(&net, bob, "500 INVITE");
    assert!(received_messages(&net, alice, "INVITE").is_empty());
}

/// RFC 3323 section 4.2: a caller may require a privacy service in the path. The border is one unless that is disabled.
#[test]
fn privacy_service_may_be_required() {
    let (mut net, alice, bob) = net("");
    let disabled = format!("{}[identity]\nprivacy=false\n", plain());
    let disabled = config::parse(&disabled, "t").unwrap();
    let edits = |id| {
        let value: &[u8] = b"privacy";
        [
            Edit::Add { id, value },
            Edit::Add {
                id: HeaderId::Privacy,
                value: b"id",
            },
        ]
    };
    let call = |net: &mut VirtualNetwork, id| {
        let edits = edits(id);
        let content = MessageContent::sdp(SDP_A.as_bytes()).with(&edits);
        net.call(alice, "sip:030123@192.0.2.1", OUT, &content);
        net.run(seconds(1));
        let refusals = received_messages(net, alice, "420 INVITE");
        let unsupported = |refusal: &Message<'_>| header(refusal, "Unsupported");
        (
            received_messages(net, bob, "INVITE").len(),
            refusals.iter().filter_map(unsupported).collect::<Vec<_>>(),
        )
    };
    assert_eq!(call(&mut net, HeaderId::ProxyRequire), (1, Vec::new()));
    assert_eq!(header(&first(&net, bob, "INVITE"), "Proxy-Require"), None);
    // It is no extension of an end.
    assert_eq!(
        call(&mut net, HeaderId::Require),
        (1, vec!["privacy".to_owned()])
    );
    net.control(|border, now| border.reload(disabled, now));
    let (invites, refusals) = call(&mut net, HeaderId::ProxyRequire);
    assert_eq!((invites, refusals.len()), (1, 2));
}

#[test]
fn authenticated_caller_is_asserted() {
    let config = format!("{PLAIN}[[user]]\nname='1000'\npassword='hush'\n[[route]]\ntrunk='pbx'\n")
        .replace("kind='access'\n", "kind='access'\nauthenticate='digest'\n");
    let mut net = VirtualNetwork::new(&config, 7);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let edits = [
        Edit::Add {
            id: HeaderId::PAssertedIdentity,
            value: b"<sip:boss@10.1.0.1>",
        },
        Edit::Add {
            id: HeaderId::PPreferredIdentity,
            value: b"\"Alice\" <sip:1000@10.1.0.1>",
        },
    ];
    let content = MessageContent::sdp(SDP_A.as_bytes()).with(&edits);
    net.call_with(alice, "sip:030123@192.0.2.1", OUT, &content, |invite| {
        invite.from = Some(b"<sip:1000@192.0.2.1>");
        invite.login = Some(sip::Login {
            user: b"1000",
            password: b"hush",
        });
    });
    net.run(seconds(1));
    let invite = first(&net, bob, "INVITE");
    assert_eq!(
        header(&invite, "P-Asserted-Identity").as_deref(),
        Some("\"Alice\" <sip:1000@198.51.100.1:5060>")
    );
    assert_eq!(header(&invite, "P-Preferred-Identity"), None);
}

/// Sends a request outside of dialogs from a phone.
fn send(net: &mut VirtualNetwork, phone: usize, method: Method<'static>, edits: &[Edit<'_>]) {
    let flow = net.flow(phone, OUT, Transport::Udp);
    net.command(phone, |endpoint, now| {
        let request = OutOfDialogRequest {
            from: Some(b"<sip:alice@192.0.2.1>"),
            to: Some(b"<sip:alice@192.0.2.1>"),
            content: MessageContent::default().with(edits),
            ..OutOfDialogRequest::new(method, Target::new(b"sip:bob@192.0.2.1", flow))
        };
        endpoint.send(&request, now).unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn options_are_subject_to_rules() {
    let rules = "
[[rules]]
direction = 'in'
method = 'OPTIONS'
kind = 'access'
when = '\"Subject\" in header'
do = [{ reject = 403, reason = 'No Scans' }]
[[rules]]
direction = 'out'
method = 'OPTIONS'
on = 'response'
do = [{ set = 'Server', value = 'None Of Yours' }]
";
    let (mut net, alice, _) = net(rules);
    send(&mut net, alice, Method::Options, &[]);
    let answer = first(&net, alice, "200 OPTIONS");
    assert_eq!(header(&answer, "Server").as_deref(), Some("None Of Yours"));
    assert!(header(&answer, "Accept").is_some());
    let edits = [Edit::Add {
        id: HeaderId::Subject,
        value: b"scan",
    }];
    send(&mut net, alice, Method::Options, &edits);
    let refusal = first(&net, alice, "403 OPTIONS");
    assert_eq!(refusal.reason(), b"No Scans");
    assert_eq!(header(&refusal, "Server").as_deref(), Some("None Of Yours"));
    assert_eq!(net.border.drops().get(DropReason::RuleRefused), 1);
}

/// Answers the last REGISTER at the core with this lifetime.
fn grant(net: &mut VirtualNetwork, core: usize, seconds_granted: u32) {
    let received = net
        .last(core, |event| matches!(event, PhoneEvent::OutOfDialog(_)))
        .clone();
    let PhoneEvent::OutOfDialog(transaction) = received.event else {
        panic!()
    };
    let contact = received.header("Contact");
    let contact = contact.split(";expires").next().unwrap();
    let granted = format!("{contact};expires={seconds_granted}");
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: granted.as_bytes(),
    }];
    net.command(core, |endpoint, now| {
        let content = MessageContent::default().with(&edits);
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn refusals_of_sent_requests_have_their_status_and_reason() {
    let rules = "
[[rules]]
direction = 'out'
trunk = 'pbx'
method = ['REGISTER', 'MESSAGE']
when = '\"Subject\" in header'
do = [{ reject = 403, reason = 'Line Moved' }]
";
    let config = PLAIN
        .replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n")
        .replace(
            "target='udp:10.2.0.1:5060'",
            "target=['udp:10.2.0.1:5060','udp:10.2.0.2:5060']",
        );
    let mut net = VirtualNetwork::new(&format!("{config}{rules}"), 7);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let carol = net.phone("10.2.0.2:5060", PhoneBehaviour::answering(SDP_B));
    for core in [bob, carol] {
        net.phones[core].log.behaviour.outside = None;
    }
    let contact = Edit::Replace {
        id: HeaderId::Contact,
        value: b"<sip:alice@10.1.0.1:5060>",
    };
    let expires = Edit::Add {
        id: HeaderId::Expires,
        value: b"600",
    };
    let subject = Edit::Add {
        id: HeaderId::Subject,
        value: b"x",
    };
    send(&mut net, alice, Method::Register, &[contact, expires]);
    let core = match received_messages(&net, bob, "REGISTER").is_empty() {
        true => carol,
        false => bob,
    };
    grant(&mut net, core, 600);
    first(&net, alice, "200 REGISTER");
    // The registration is still valid here, but it is not confirmed against the rule.
    net.run(seconds(400));
    let registered = received_messages(&net, alice, "200 REGISTER").len();
    send(
        &mut net,
        alice,
        Method::Register,
        &[contact, expires, subject],
    );
    assert_eq!(first(&net, alice, "403 REGISTER").reason(), b"Line Moved");
    assert_eq!(
        received_messages(&net, alice, "200 REGISTER").len(),
        registered
    );
    assert_eq!(net.border.drops().get(DropReason::RuleRefused), 1);
    send(&mut net, alice, Method::Message, &[subject]);
    assert_eq!(first(&net, alice, "403 MESSAGE").reason(), b"Line Moved");
}

#[test]
fn authenticated_user_is_known_in_the_whole_call() {
    let rules = "
[[rules]]
direction = 'out'
trunk = 'pbx'
on = 'request'
do = [{ add = 'X-Account', value = '${user}' }]
[[rules]]
direction = 'in'
interface = 'out'
method = 'BYE'
when = 'user == \"1000\"'
do = [{ add = 'X-Ended-By', value = '${user}' }]
[[rules]]
direction = 'out'
on = 'response'
do = [{ add = 'X-User', value = 'of the callee: ${user}' }]
";
    let config =
        format!("{PLAIN}[[user]]\nname='1000'\npassword='hush'\n[[route]]\ntrunk='pbx'\n{rules}")
            .replace("kind='access'\n", "kind='access'\nauthenticate='digest'\n");
    let mut net = VirtualNetwork::new(&config, 7);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let content = MessageContent::sdp(SDP_A.as_bytes());
    let leg = net.call_with(alice, "sip:030123@192.0.2.1", OUT, &content, |invite| {
        invite.from = Some(b"<sip:1000@192.0.2.1>");
        invite.login = Some(sip::Login {
            user: b"1000",
            password: b"hush",
        });
    });
    net.run(seconds(1));
    net.command(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    net.command(alice, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap();
    });
    net.run(seconds(1));
    for what in ["INVITE", "INFO", "BYE"] {
        let account = header(&first(&net, bob, what), "X-Account");
        assert_eq!(account.as_deref(), Some("1000"), "{what}");
    }
    let bye = first(&net, bob, "BYE");
    assert_eq!(header(&bye, "X-Ended-By").as_deref(), Some("1000"));
    let answer = first(&net, alice, "200 INVITE");
    assert_eq!(header(&answer, "X-User").as_deref(), Some("of the callee:"));
}

#[test]
fn responses_of_the_border_in_a_call_see_its_tags() {
    let rules = "
[[rules]]
direction = 'in'
method = 'INVITE'
do = [{ tag = 'tenant', value = 'a' }]
[[rules]]
direction = 'out'
trunk = 'pbx'
method = 'INVITE'
do = [{ reject = 480 }]
[[rules]]
direction = 'out'
interface = 'out'
on = 'response'
when = 'has(tag.tenant)'
do = [{ add = 'X-Tenant', value = '${tag[\"tenant\"]}' }, { log = 'refused' }]
";
    let (mut net, alice, _) = net(rules);
    let content = MessageContent::sdp(SDP_A.as_bytes());
    net.call(alice, "sip:030123@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    let refusal = first(&net, alice, "480 INVITE");
    assert_eq!(header(&refusal, "X-Tenant").as_deref(), Some("a"));
    assert!(has(
        &net,
        |note| matches!(note, EventKind::RuleLogged { call: 1, text, .. } if text == "refused")
    ));
}

#[test]
fn cancel_is_not_subject_to_rules() {
    let rules = "[[rules]]\ndirection='in'\non='request'\ndo=[{ log = '${method}' }]\n";
    let (mut net, alice, bob) = net(rules);
    net.phones[bob].log.behaviour.answer = None;
    let content = MessageContent::sdp(SDP_A.as_bytes());
    let leg = net.call(alice, "sip:030123@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    net.command(alice, |endpoint, now| {
        endpoint
            .hang_up(leg, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(!received_messages(&net, bob, "CANCEL").is_empty());
    let logged: Vec<&str> = net
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::RuleLogged { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(logged, ["INVITE"]);
}
