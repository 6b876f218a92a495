//! Subscriptions and other out-of-dialog requests through the border: RFC 6665, RFC 3515, RFC 3842, RFC 3856.

use crate::virtual_network;

use engine::{Time, Transport};
use sip::{DialogId, Flow, MessageContent, OutOfDialogRequest, Target};
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

const IN: &str = "198.51.100.1:5060";
const BOB: (&str, &str) = ("sip:bob@192.0.2.1", OUT);

fn pair(config: &str) -> (VirtualNetwork, usize, usize) {
    with_phones(VirtualNetwork::new(config, 5))
}

fn with_phones(mut net: VirtualNetwork) -> (VirtualNetwork, usize, usize) {
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    (net, alice, bob)
}

fn add(id: HeaderId, value: &str) -> Edit<'_> {
    Edit::Add {
        id,
        value: value.as_bytes(),
    }
}

fn state(value: &str) -> Edit<'_> {
    add(HeaderId::SubscriptionState, value)
}

const EVENT: Edit<'static> = Edit::Add {
    id: HeaderId::Event,
    value: b"presence;id=7",
};

const SUBSCRIBE: [Edit<'static>; 3] = [
    EVENT,
    Edit::Add {
        id: HeaderId::Expires,
        value: b"300",
    },
    Edit::Add {
        id: HeaderId::Accept,
        value: b"application/pidf+xml",
    },
];

fn flow(net: &VirtualNetwork, phone: usize, hop: &str) -> Flow {
    net.flow(phone, hop, Transport::Udp)
}

/// Sends SUBSCRIBE or REFER from a phone to `uri` through `hop`.
fn ask(
    net: &mut VirtualNetwork,
    phone: usize,
    method: Method<'static>,
    (uri, hop): (&str, &str),
    edits: &[Edit<'_>],
) -> DialogId {
    let from = format!("<sip:p{phone}@{}>", net.phones[phone].address);
    let target = Target {
        pinned: true,
        ..Target::new(uri.as_bytes(), flow(net, phone, hop))
    };
    let outside = OutOfDialogRequest {
        from: Some(from.as_bytes()),
        content: MessageContent::default().with(edits),
        ..OutOfDialogRequest::new(method, target)
    };
    let dialog = net.command(phone, |endpoint, now| {
        endpoint.subscribe(&outside, 1, now).unwrap().0
    });
    net.run(seconds(1));
    dialog
}

fn inside(
    net: &mut VirtualNetwork,
    phone: usize,
    dialog: DialogId,
    method: Method<'static>,
    content: MessageContent<'_>,
) {
    net.command(phone, |endpoint, now| {
        endpoint
            .dialog_request(dialog, method, &content, 2, None, now)
            .unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn presence_is_relayed_with_topology_hiding() {
    let (mut net, alice, bob) = pair(PLAIN);
    let dialog = ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    let entry = net.find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    assert_eq!(entry.method(), "SUBSCRIBE");
    assert_eq!(entry.header("Event"), "presence;id=7");
    assert_eq!(entry.header("Accept"), "application/pidf+xml");
    assert_eq!(entry.header("Contact"), "<sip:198.51.100.1:5060>");
    assert!(!entry.text().contains("10.1.0.1"), "{}", entry.text());
    let accepted = net.find(alice, |event| {
        *event == PhoneEvent::OutOfDialogResponse(200)
    });
    assert_eq!(accepted.header("Contact"), "<sip:192.0.2.1:5060>");
    assert_eq!(accepted.header("Expires"), "300");
    assert!(!accepted.text().contains("10.2.0.1"), "{}", accepted.text());
    assert_eq!(net.border.census().subscriptions, 1);
    assert_eq!(net.border.counters().subscriptions, 1);

    let theirs = net.phones[bob].log.dialogs[0];
    let edits = [EVENT, state("active;expires=290")];
    let body = MessageContent::body(b"application/pidf+xml", b"<presence/>").with(&edits);
    inside(&mut net, bob, theirs, Method::Notify, body);
    let notify = net.find(alice, |event| matches!(event, PhoneEvent::InDialog(..)));
    assert_eq!(notify.method(), "NOTIFY");
    assert_eq!(notify.body(), "<presence/>");
    assert_eq!(notify.header("Subscription-State"), "active;expires=290");
    assert!(!notify.text().contains("10.2.0.1"), "{}", notify.text());
    assert!(net.has(bob, |event| *event == PhoneEvent::OutOfDialogResponse(200)));

    // A refresh, then the end: Expires 0, and the last NOTIFY.
    let edits = [EVENT, add(HeaderId::Expires, "900")];
    let refresh = MessageContent::default().with(&edits);
    inside(&mut net, alice, dialog, Method::Subscribe, refresh);
    let entry = net.last(bob, |event| matches!(event, PhoneEvent::InDialog(..)));
    assert_eq!(entry.method(), "SUBSCRIBE");
    assert_eq!(entry.header("Expires"), "900");
    net.run(seconds(600));
    assert_eq!(
        net.border.census().subscriptions,
        1,
        "the subscription was refreshed"
    );
    let edits = [EVENT, add(HeaderId::Expires, "0")];
    let end = MessageContent::default().with(&edits);
    inside(&mut net, alice, dialog, Method::Subscribe, end);
    let edits = [EVENT, state("terminated;reason=timeout")];
    let last = MessageContent::default().with(&edits);
    inside(&mut net, bob, theirs, Method::Notify, last);
    let notify = net.last(alice, |event| matches!(event, PhoneEvent::InDialog(..)));
    assert_eq!(
        notify.header("Subscription-State"),
        "terminated;reason=timeout"
    );
    assert_eq!(net.border.census().subscriptions, 0);
    // Later requests match no subscription.
    inside(&mut net, bob, theirs, Method::Notify, last);
    assert!(net.has(bob, |event| *event == PhoneEvent::OutOfDialogResponse(481)));
    net.assert_quiet();
}

#[test]
fn notify_may_precede_the_response_and_a_refusal_leaves_no_state() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.outside = None;
    ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    let asked = net
        .find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)))
        .clone();
    let PhoneEvent::OutOfDialog(transaction) = asked.event else {
        panic!()
    };
    let message = wire::sip::Message::parse(&asked.bytes).unwrap();
    let back = flow(&net, bob, IN);
    let edits = [EVENT, state("pending")];
    let dialog = net.command(bob, |endpoint, _| {
        endpoint
            .open_dialog(transaction, &message, back, true, 0)
            .unwrap()
    });
    let pending = MessageContent::default().with(&edits);
    inside(&mut net, bob, dialog, Method::Notify, pending);
    let notify = net.find(alice, |event| matches!(event, PhoneEvent::InDialog(..)));
    assert_eq!(notify.header("Subscription-State"), "pending");
    net.command(bob, |endpoint, now| {
        endpoint
            .respond(transaction, 403, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::OutOfDialogResponse(403)));
    assert_eq!(net.border.census().subscriptions, 0);
    assert_eq!(net.border.counters().subscriptions, 0);
    net.assert_quiet();
}

#[test]
fn subscription_without_refresh_expires() {
    let (mut net, alice, _) = pair(PLAIN);
    ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    net.run(seconds(310));
    assert_eq!(
        net.border.census().subscriptions,
        1,
        "late NOTIFY is accepted"
    );
    net.run(seconds(40));
    assert_eq!(net.border.census().subscriptions, 0);
    net.assert_quiet();
}

#[test]
fn unknown_subscription_ends_on_both_sides() {
    for silent in [false, true] {
        let (mut net, alice, bob) = pair(PLAIN);
        let dialog = ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
        match silent {
            true => net.phones[alice].log.behaviour.inside = None,
            false => net.command(alice, |endpoint, _| endpoint.close_dialog(dialog)),
        }
        let theirs = net.phones[bob].log.dialogs[0];
        let edits = [EVENT, state("active")];
        let content = MessageContent::default().with(&edits);
        inside(&mut net, bob, theirs, Method::Notify, content);
        net.run(seconds(40));
        match silent {
            true => assert!(net.has(bob, |event| *event == PhoneEvent::OutOfDialogTimedOut)),
            false => assert!(net.has(bob, |event| *event == PhoneEvent::OutOfDialogResponse(481))),
        }
        assert_eq!(net.border.census().subscriptions, 0);
        net.assert_quiet();
    }
}

#[test]
fn subscribe_fails_over_to_the_next_target() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target=['udp:10.2.0.99:5060','udp:10.2.0.1:5060']",
    );
    let (mut net, alice, bob) = pair(&config);
    ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    net.run(seconds(40));
    assert!(net.has(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_))));
    // The subscriber still waits.
    let accepted = net.find(alice, |event| {
        *event == PhoneEvent::OutOfDialogResponse(200)
    });
    assert!(accepted.at < Time::from_secs(20), "{:?}", accepted.at);
    let census = net.border.census();
    assert_eq!((census.subscriptions, census.sip.dialogs), (1, 2));
}

/// A phone behind NAT is reached at the port from which it has refreshed its subscription.
#[test]
fn subscription_follows_the_port_of_a_nat() {
    let (mut net, alice, bob) = pair(PLAIN);
    let contact = Edit::Replace {
        id: HeaderId::Contact,
        value: b"<sip:alice@192.168.7.7:5060>",
    };
    let edits: Vec<Edit<'_>> = SUBSCRIBE.into_iter().chain([contact]).collect();
    let dialog = ask(&mut net, alice, Method::Subscribe, BOB, &edits);
    let (phone, outside) = (
        "10.1.0.1:5060".parse().unwrap(),
        "10.1.0.1:6000".parse().unwrap(),
    );
    net.source_aliases.insert(phone, outside);
    net.aliases.insert(outside, phone);
    let edits = [EVENT, add(HeaderId::Expires, "900"), contact];
    let refresh = MessageContent::default().with(&edits);
    inside(&mut net, alice, dialog, Method::Subscribe, refresh);
    net.wire.clear();
    let theirs = net.phones[bob].log.dialogs[0];
    let edits = [EVENT, state("active;expires=290")];
    let notify = MessageContent::default().with(&edits);
    inside(&mut net, bob, theirs, Method::Notify, notify);
    let mut notified = net
        .wire
        .iter()
        .filter(|(_, bytes)| bytes.starts_with(b"NOTIFY "));
    assert_eq!(notified.next().map(|(to, _)| *to), Some(outside));
    assert!(net.has(alice, |event| matches!(event, PhoneEvent::InDialog(..))));
}

/// RFC 4662: the extension is negotiated between the ends.
#[test]
fn required_extensions_of_a_subscription_are_relayed() {
    let (mut net, alice, bob) = pair(PLAIN);
    let require = add(HeaderId::Require, "eventlist");
    let edits: Vec<Edit<'_>> = SUBSCRIBE.into_iter().chain([require]).collect();
    ask(&mut net, alice, Method::Subscribe, BOB, &edits);
    // The phone does not support it.
    let refused = net.find(alice, |event| {
        *event == PhoneEvent::OutOfDialogResponse(420)
    });
    assert_eq!(refused.header("Unsupported"), "eventlist");
    let asked = net.phones[bob]
        .received
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes));
    let asked: Vec<_> = asked
        .filter(|text| text.starts_with("SUBSCRIBE "))
        .collect();
    assert!(asked[0].contains("\r\nRequire: eventlist\r\n"), "{asked:?}");
    assert_eq!(net.border.census().subscriptions, 0);
    net.assert_quiet();
}

#[test]
fn out_of_dialog_refer_is_relayed_if_allowed() {
    refer_is_refused(pair(PLAIN));
    refer_is_relayed(pair(&allowing()));
}

/// With every worker, and also if REFER in a call is carried out by the border.
#[test]
fn out_of_dialog_refer_is_relayed_by_several_workers() {
    for workers in [2, 3] {
        for seed in 1..6 {
            let acting = format!("refer='act'\n[sip]\nworkers={workers}\n");
            let pool = |config: String| {
                let net = VirtualNetwork::with_workers(&(config + &acting), seed);
                with_phones(net)
            };
            refer_is_refused(pool(PLAIN.to_owned()));
            refer_is_relayed(pool(allowing()));
        }
    }
}

/// A configuration that relays out-of-dialog REFER.
fn allowing() -> String {
    PLAIN.replacen("kind='access'", "kind='access'\nrefer='pass'", 1)
}

const REFER: [Edit<'static>; 1] = [Edit::Add {
    id: HeaderId::ReferTo,
    value: b"<sip:carol@192.0.2.1:5060>",
}];

fn refer_is_refused((mut net, alice, bob): (VirtualNetwork, usize, usize)) {
    ask(&mut net, alice, Method::Refer, BOB, &REFER);
    assert!(net.has(alice, |event| *event
        == PhoneEvent::OutOfDialogResponse(403)));
    assert!(!net.has(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_))));
}

fn refer_is_relayed((mut net, alice, bob): (VirtualNetwork, usize, usize)) {
    net.phones[bob].log.behaviour.outside = Some(202);
    ask(&mut net, alice, Method::Refer, BOB, &REFER);
    assert!(net.has(alice, |event| *event
        == PhoneEvent::OutOfDialogResponse(202)));
    let entry = net.find(bob, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    let onward = "<sip:carol@198.51.100.1:5060>";
    assert_eq!(
        entry.header("Refer-To"),
        onward,
        "Refer-To points to the border"
    );
    let theirs = net.phones[bob].log.dialogs[0];
    for (line, word) in [
        ("SIP/2.0 100 Trying", "active"),
        ("SIP/2.0 200 OK", "terminated"),
    ] {
        let edits = [add(HeaderId::Event, "refer"), state(word)];
        let content = MessageContent::body(b"message/sipfrag", line.as_bytes()).with(&edits);
        inside(&mut net, bob, theirs, Method::Notify, content);
        let notify = net.last(alice, |event| matches!(event, PhoneEvent::InDialog(..)));
        assert_eq!(notify.body(), line);
    }
    assert_eq!(net.border.census().subscriptions, 0);
    net.assert_quiet();
}

#[test]
fn unsolicited_message_waiting_notify_is_relayed() {
    let config = format!(
        "{}[[user]]\nname='1001'\npassword='x'\n[[route]]\nregistered=true\nfrom_trunk='pbx'\n[[route]]\ntrunk='pbx'\n",
        PLAIN.replacen("kind='access'", "kind='access'\nregister='local'", 1)
    );
    let (mut net, alice, bob) = pair(&config);
    let contact = [
        add(HeaderId::Contact, "<sip:1001@10.1.0.1:5060>"),
        add(HeaderId::Expires, "600"),
    ];
    let way = flow(&net, alice, OUT);
    net.command(alice, |endpoint, now| {
        let request = OutOfDialogRequest {
            to: Some(b"<sip:1001@192.0.2.1>"),
            from: Some(b"<sip:1001@192.0.2.1>"),
            content: MessageContent::default().with(&contact),
            ..OutOfDialogRequest::new(Method::Register, Target::new(b"sip:192.0.2.1", way))
        };
        endpoint.send(&request, now).unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event
        == PhoneEvent::OutOfDialogResponse(200)));
    let way = flow(&net, bob, IN);
    let edits = [add(HeaderId::Event, "message-summary"), state("active")];
    net.command(bob, |endpoint, now| {
        let waiting = MessageContent::body(
            b"application/simple-message-summary",
            b"Messages-Waiting: yes\r\n",
        );
        let request = OutOfDialogRequest {
            content: waiting.with(&edits),
            ..OutOfDialogRequest::new(Method::Notify, Target::new(b"sip:1001@198.51.100.1", way))
        };
        endpoint.send(&request, now).unwrap();
    });
    net.run(seconds(1));
    let entry = net.find(alice, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    assert_eq!(entry.method(), "NOTIFY");
    assert_eq!(entry.body(), "Messages-Waiting: yes\r\n");
    assert!(net.has(bob, |event| *event == PhoneEvent::OutOfDialogResponse(200)));
    net.assert_quiet();
}

/// A silent contact of a user is given up while the sender still waits.
#[test]
fn message_goes_to_the_next_contact_of_a_user() {
    let config = format!(
        "{}[[user]]\nname='1001'\npassword='x'\n[[route]]\nregistered=true\nfrom_trunk='pbx'\n[[route]]\ntrunk='pbx'\n",
        PLAIN.replacen("kind='access'", "kind='access'\nregister='local'", 1)
    );
    let (mut net, alice, bob) = pair(&config);
    let fixed = net.phone("10.1.0.2:5060", PhoneBehaviour::answering(SDP_A));
    for (phone, contact) in [
        (alice, "<sip:1001@10.1.0.1:5060>;q=0.5"),
        (fixed, "<sip:1001@10.1.0.2:5060>;q=0.9"),
    ] {
        let edits = [
            add(HeaderId::Contact, contact),
            add(HeaderId::Expires, "600"),
        ];
        let way = flow(&net, phone, OUT);
        net.command(phone, |endpoint, now| {
            let request = OutOfDialogRequest {
                to: Some(b"<sip:1001@192.0.2.1>"),
                from: Some(b"<sip:1001@192.0.2.1>"),
                content: MessageContent::default().with(&edits),
                ..OutOfDialogRequest::new(Method::Register, Target::new(b"sip:192.0.2.1", way))
            };
            endpoint.send(&request, now).unwrap();
        });
        net.run(seconds(1));
    }
    net.silence("10.1.0.2:5060");
    let way = flow(&net, bob, IN);
    net.command(bob, |endpoint, now| {
        let target = Target::new(b"sip:1001@198.51.100.1", way);
        let request = OutOfDialogRequest {
            content: MessageContent::body(b"text/plain", b"hello"),
            ..OutOfDialogRequest::new(Method::Message, target)
        };
        endpoint.send(&request, now).unwrap();
    });
    net.run(seconds(6));
    assert!(!net.has(fixed, |event| matches!(event, PhoneEvent::OutOfDialog(_))));
    let entry = net.find(alice, |event| matches!(event, PhoneEvent::OutOfDialog(_)));
    assert_eq!(
        (entry.method().as_str(), entry.body().as_str()),
        ("MESSAGE", "hello")
    );
    assert!(net.has(bob, |event| *event == PhoneEvent::OutOfDialogResponse(200)));
    net.assert_quiet();
}

#[test]
fn requests_not_allowed_by_an_interface_are_refused() {
    let refused = PLAIN.replacen("kind='access'", "kind='access'\nsubscribe='refuse'", 1);
    let (mut net, alice, bob) = pair(&refused);
    ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    assert!(net.has(alice, |event| *event
        == PhoneEvent::OutOfDialogResponse(489)));
    assert_eq!(net.phone_events(bob), []);
    net.assert_quiet();
}
