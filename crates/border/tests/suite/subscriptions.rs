//! Subscriptions and other requests outside of calls, through the border: RFC 6665, RFC 3515, RFC 3842, RFC 3856.

use crate::neighbourhood;

use engine::Transport;
use neighbourhood::*;
use sip::{Content, DialogId, Flow, Outside, Target};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

const OUT: &str = "192.0.2.1:5060";
const IN: &str = "198.51.100.1:5060";
const BOB: (&str, &str) = ("sip:bob@192.0.2.1", OUT);

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn pair(config: &str) -> (Neighbourhood, usize, usize) {
    with_phones(Neighbourhood::new(config, 5))
}

fn with_phones(mut net: Neighbourhood) -> (Neighbourhood, usize, usize) {
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
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

fn flow(net: &Neighbourhood, phone: usize, hop: &str) -> Flow {
    Flow {
        local: net.phones[phone].local,
        transport: Transport::Udp,
        remote: hop.parse().unwrap(),
        connection: None,
    }
}

/// A phone sends SUBSCRIBE or REFER to `uri` by way of `hop`.
fn ask(
    net: &mut Neighbourhood,
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
    let outside = Outside {
        from: Some(from.as_bytes()),
        content: Content::default().with(edits),
        ..Outside::new(method, target)
    };
    let dialog = net.tell(phone, |endpoint, now| {
        endpoint.subscribe(&outside, 1, now).unwrap().0
    });
    net.run(seconds(1));
    dialog
}

fn inside(
    net: &mut Neighbourhood,
    phone: usize,
    dialog: DialogId,
    method: Method<'static>,
    content: Content<'_>,
) {
    net.tell(phone, |endpoint, now| {
        endpoint
            .dialog_request(dialog, method, &content, 2, None, now)
            .unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn presence_passes_both_ways_and_tells_nothing_of_the_networks() {
    let (mut net, alice, bob) = pair(PLAIN);
    let dialog = ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    let seen = net.find(bob, |told| matches!(told, Told::Outside(_)));
    assert_eq!(seen.method(), "SUBSCRIBE");
    assert_eq!(seen.header("Event"), "presence;id=7");
    assert_eq!(seen.header("Accept"), "application/pidf+xml");
    assert_eq!(seen.header("Contact"), "<sip:198.51.100.1:5060>");
    assert!(!seen.text().contains("10.1.0.1"), "{}", seen.text());
    let accepted = net.find(alice, |told| *told == Told::OutsideResponse(200));
    assert_eq!(accepted.header("Contact"), "<sip:192.0.2.1:5060>");
    assert_eq!(accepted.header("Expires"), "300");
    assert!(!accepted.text().contains("10.2.0.1"), "{}", accepted.text());
    assert_eq!(net.border.census().subscriptions, 1);
    assert_eq!(net.border.counters().subscriptions, 1);

    let theirs = net.phones[bob].ears.dialogs[0];
    let edits = [EVENT, state("active;expires=290")];
    let body = Content::body(b"application/pidf+xml", b"<presence/>").with(&edits);
    inside(&mut net, bob, theirs, Method::Notify, body);
    let notify = net.find(alice, |told| matches!(told, Told::InDialog(..)));
    assert_eq!(notify.method(), "NOTIFY");
    assert_eq!(notify.body(), "<presence/>");
    assert_eq!(notify.header("Subscription-State"), "active;expires=290");
    assert!(!notify.text().contains("10.2.0.1"), "{}", notify.text());
    assert!(net.has(bob, |told| *told == Told::OutsideResponse(200)));

    // A refresh, then the end: Expires 0, and the last NOTIFY.
    let edits = [EVENT, add(HeaderId::Expires, "900")];
    let refresh = Content::default().with(&edits);
    inside(&mut net, alice, dialog, Method::Subscribe, refresh);
    let seen = net.last(bob, |told| matches!(told, Told::InDialog(..)));
    assert_eq!(seen.method(), "SUBSCRIBE");
    assert_eq!(seen.header("Expires"), "900");
    net.run(seconds(600));
    assert_eq!(net.border.census().subscriptions, 1, "it was refreshed");
    let edits = [EVENT, add(HeaderId::Expires, "0")];
    let end = Content::default().with(&edits);
    inside(&mut net, alice, dialog, Method::Subscribe, end);
    let edits = [EVENT, state("terminated;reason=timeout")];
    let last = Content::default().with(&edits);
    inside(&mut net, bob, theirs, Method::Notify, last);
    let notify = net.last(alice, |told| matches!(told, Told::InDialog(..)));
    assert_eq!(
        notify.header("Subscription-State"),
        "terminated;reason=timeout"
    );
    assert_eq!(net.border.census().subscriptions, 0);
    // Whatever comes now belongs to nothing.
    inside(&mut net, bob, theirs, Method::Notify, last);
    assert!(net.has(bob, |told| *told == Told::OutsideResponse(481)));
    net.assert_quiet();
}

#[test]
fn a_notify_may_come_before_the_answer_and_a_refusal_leaves_nothing() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.outside = None;
    ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    let asked = net
        .find(bob, |told| matches!(told, Told::Outside(_)))
        .clone();
    let Told::Outside(transaction) = asked.told else {
        panic!()
    };
    let message = wire::sip::Message::parse(&asked.bytes).unwrap();
    let back = flow(&net, bob, IN);
    let edits = [EVENT, state("pending")];
    let dialog = net.tell(bob, |endpoint, _| {
        endpoint
            .found_dialog(transaction, &message, back, true, 0)
            .unwrap()
    });
    let pending = Content::default().with(&edits);
    inside(&mut net, bob, dialog, Method::Notify, pending);
    let notify = net.find(alice, |told| matches!(told, Told::InDialog(..)));
    assert_eq!(notify.header("Subscription-State"), "pending");
    net.tell(bob, |endpoint, now| {
        endpoint
            .respond(transaction, 403, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::OutsideResponse(403)));
    assert_eq!(net.border.census().subscriptions, 0);
    assert_eq!(net.border.counters().subscriptions, 0);
    net.assert_quiet();
}

#[test]
fn a_subscription_that_nobody_refreshes_ends_with_its_time() {
    let (mut net, alice, _) = pair(PLAIN);
    ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    net.run(seconds(310));
    assert_eq!(
        net.border.census().subscriptions,
        1,
        "what is late may come"
    );
    net.run(seconds(40));
    assert_eq!(net.border.census().subscriptions, 0);
    net.assert_quiet();
}

#[test]
fn whoever_does_not_know_a_subscription_any_more_ends_it_for_both() {
    for silent in [false, true] {
        let (mut net, alice, bob) = pair(PLAIN);
        let dialog = ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
        match silent {
            true => net.phones[alice].ears.manners.inside = None,
            false => net.tell(alice, |endpoint, _| endpoint.close_dialog(dialog)),
        }
        let theirs = net.phones[bob].ears.dialogs[0];
        let edits = [EVENT, state("active")];
        let content = Content::default().with(&edits);
        inside(&mut net, bob, theirs, Method::Notify, content);
        net.run(seconds(40));
        match silent {
            true => assert!(net.has(bob, |told| *told == Told::OutsideTimedOut)),
            false => assert!(net.has(bob, |told| *told == Told::OutsideResponse(481))),
        }
        assert_eq!(net.border.census().subscriptions, 0);
        net.assert_quiet();
    }
}

#[test]
fn the_next_target_is_asked_where_one_is_silent() {
    let config = PLAIN.replace(
        "target='udp:10.2.0.1:5060'",
        "target=['udp:10.2.0.99:5060','udp:10.2.0.1:5060']",
    );
    let (mut net, alice, bob) = pair(&config);
    ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    net.run(seconds(40));
    assert!(net.has(bob, |told| matches!(told, Told::Outside(_))));
    let census = net.border.census();
    assert_eq!((census.subscriptions, census.sip.dialogs), (1, 2));
}

#[test]
fn refer_outside_of_calls_passes_where_it_is_allowed() {
    refer_is_refused(pair(PLAIN));
    refer_passes(pair(&allowing()));
}

/// Whichever worker they come to, and also where REFER in a call is acted upon.
#[test]
fn refer_outside_of_calls_passes_through_several_workers() {
    for workers in [2, 3] {
        for seed in 1..6 {
            let acting = format!("refer='act'\n[sip]\nworkers={workers}\n");
            let crew = |config: String| {
                let net = Neighbourhood::crew(&(config + &acting), seed);
                with_phones(net)
            };
            refer_is_refused(crew(PLAIN.to_owned()));
            refer_passes(crew(allowing()));
        }
    }
}

/// REFER from outside passes.
fn allowing() -> String {
    PLAIN.replacen("kind='access'", "kind='access'\nrefer='pass'", 1)
}

const REFER: [Edit<'static>; 1] = [Edit::Add {
    id: HeaderId::ReferTo,
    value: b"<sip:carol@192.0.2.1:5060>",
}];

fn refer_is_refused((mut net, alice, bob): (Neighbourhood, usize, usize)) {
    ask(&mut net, alice, Method::Refer, BOB, &REFER);
    assert!(net.has(alice, |told| *told == Told::OutsideResponse(403)));
    assert!(!net.has(bob, |told| matches!(told, Told::Outside(_))));
}

fn refer_passes((mut net, alice, bob): (Neighbourhood, usize, usize)) {
    net.phones[bob].ears.manners.outside = Some(202);
    ask(&mut net, alice, Method::Refer, BOB, &REFER);
    assert!(net.has(alice, |told| *told == Told::OutsideResponse(202)));
    let seen = net.find(bob, |told| matches!(told, Told::Outside(_)));
    let onward = "<sip:carol@198.51.100.1:5060>";
    assert_eq!(
        seen.header("Refer-To"),
        onward,
        "whoever follows it comes to us"
    );
    let theirs = net.phones[bob].ears.dialogs[0];
    for (line, word) in [
        ("SIP/2.0 100 Trying", "active"),
        ("SIP/2.0 200 OK", "terminated"),
    ] {
        let edits = [add(HeaderId::Event, "refer"), state(word)];
        let content = Content::body(b"message/sipfrag", line.as_bytes()).with(&edits);
        inside(&mut net, bob, theirs, Method::Notify, content);
        let notify = net.last(alice, |told| matches!(told, Told::InDialog(..)));
        assert_eq!(notify.body(), line);
    }
    assert_eq!(net.border.census().subscriptions, 0);
    net.assert_quiet();
}

#[test]
fn messages_waiting_are_told_to_a_phone_without_its_asking() {
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
    net.tell(alice, |endpoint, now| {
        let request = Outside {
            to: Some(b"<sip:1001@192.0.2.1>"),
            from: Some(b"<sip:1001@192.0.2.1>"),
            content: Content::default().with(&contact),
            ..Outside::new(Method::Register, Target::new(b"sip:192.0.2.1", way))
        };
        endpoint.send(&request, now).unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::OutsideResponse(200)));
    let way = flow(&net, bob, IN);
    let edits = [add(HeaderId::Event, "message-summary"), state("active")];
    net.tell(bob, |endpoint, now| {
        let waiting = Content::body(
            b"application/simple-message-summary",
            b"Messages-Waiting: yes\r\n",
        );
        let request = Outside {
            content: waiting.with(&edits),
            ..Outside::new(Method::Notify, Target::new(b"sip:1001@198.51.100.1", way))
        };
        endpoint.send(&request, now).unwrap();
    });
    net.run(seconds(1));
    let seen = net.find(alice, |told| matches!(told, Told::Outside(_)));
    assert_eq!(seen.method(), "NOTIFY");
    assert_eq!(seen.body(), "Messages-Waiting: yes\r\n");
    assert!(net.has(bob, |told| *told == Told::OutsideResponse(200)));
    net.assert_quiet();
}

#[test]
fn what_an_interface_does_not_pass_is_refused() {
    let refused = PLAIN.replacen("kind='access'", "kind='access'\nsubscribe='refuse'", 1);
    let (mut net, alice, bob) = pair(&refused);
    ask(&mut net, alice, Method::Subscribe, BOB, &SUBSCRIBE);
    assert!(net.has(alice, |told| *told == Told::OutsideResponse(489)));
    assert_eq!(net.told(bob), []);
    net.assert_quiet();
}
