//! Interfaces with `authenticate = "trunk"`: credentials of requests outside of dialogs, and of requests within
//! subscriptions.

use crate::virtual_network;

use engine::EventKind;
use sip::MessageContent;
use std::net::SocketAddr;
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

const PHONE: &str = "198.51.100.7:5060";
const CREDENTIALS: &str = "Proxy-Authorization: Digest username=\"u1000\", realm=\"pbx\", nonce=\"n\", uri=\"sip:x\", response=\"r\"\r\n";

fn configuration(more: &str) -> String {
    PLAIN.replace(
        "kind='access'\n",
        &format!("kind='access'\nregister='pass:pbx'\nrefer='pass'\n{more}"),
    )
}

/// A request of user 1000 from the address of the phone.
fn request(method: &str, called: &str, (call_id, cseq): (&str, u32), extra: &str) -> String {
    format!(
        "{method} sip:{called}@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP {PHONE};branch=z9hG4bK{method}{call_id}{cseq}\r\n\
         Max-Forwards: 70\r\nFrom: <sip:1000@192.0.2.1>;tag=1\r\nTo: <sip:{called}@192.0.2.1>\r\nCall-ID: {call_id}\r\n\
         CSeq: {cseq} {method}\r\nContact: <sip:1000@{PHONE}>\r\n{extra}Content-Length: 0\r\n\r\n"
    )
}

/// Header lines that the method needs.
fn needed(method: &str) -> &'static str {
    match method {
        "REFER" => "Refer-To: <sip:3000@192.0.2.1>\r\n",
        "NOTIFY" => "Event: message-summary\r\nSubscription-State: active\r\n",
        _ => "Event: message-summary\r\n",
    }
}

/// Sends a request from the phone's address. Returns the last message that was sent there.
fn exchange(net: &mut VirtualNetwork, text: &str) -> String {
    net.wire.clear();
    net.send_raw(PHONE, OUT, text.as_bytes());
    net.run(Duration::from_millis(100));
    to_phone(net, "SIP/2.0")
}

/// The last message to the phone's address that begins so.
fn to_phone(net: &VirtualNetwork, start: &str) -> String {
    let phone: SocketAddr = PHONE.parse().unwrap();
    let mut sent = net.wire.iter().rev();
    let found = sent.find(|(to, bytes)| *to == phone && bytes.starts_with(start.as_bytes()));
    let (_, bytes) = found.unwrap_or_else(|| panic!("no {start} to the phone"));
    String::from_utf8_lossy(bytes).into_owned()
}

/// The value of a header line of a message.
fn value<'a>(message: &'a str, name: &str) -> &'a str {
    let mut lines = message.lines();
    lines
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        .unwrap_or_else(|| panic!("no {name} in {message}"))
}

/// The requests that a phone received, outside of dialogs or in one.
fn received(net: &VirtualNetwork, phone: usize) -> Vec<&LogEntry> {
    let of_requests = |entry: &&LogEntry| {
        matches!(
            entry.event,
            PhoneEvent::OutOfDialog(_) | PhoneEvent::InDialog(..)
        )
    };
    net.log(phone).iter().filter(of_requests).collect()
}

/// User and reason of each failed authentication.
fn failures(net: &VirtualNetwork) -> Vec<(&str, &str)> {
    let failed = net.events.iter().filter_map(|event| match &event.kind {
        EventKind::AuthenticationFailed { user, reason, .. } => {
            Some((user.as_str(), reason.as_str()))
        }
        _ => None,
    });
    failed.collect()
}

/// The challenge of the trunk reaches the phone. The request with credentials reaches the trunk with Call-ID and From
/// tag of the first one, and the next CSeq (RFC 3261 section 22.2), also if the border does not know that the trunk
/// authenticates.
#[test]
fn credentials_outside_of_dialogs_reach_the_trunk_of_registrations() {
    for (more, counted) in [("authenticate='trunk'\n", 1), ("", 0)] {
        for method in ["MESSAGE", "PUBLISH", "SUBSCRIBE", "NOTIFY", "REFER"] {
            let mut net = VirtualNetwork::new(&configuration(more), 5);
            let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
            for (cseq, status, credentials) in
                [(1, 401, ""), (2, 407, CREDENTIALS), (3, 200, CREDENTIALS)]
            {
                net.phones[pbx].log.behaviour.outside = Some(status);
                let extra = format!("{}{credentials}", needed(method));
                let text = request(method, "2000", ("one", cseq), &extra);
                let answer = exchange(&mut net, &text);
                assert!(
                    answer.starts_with(&format!("SIP/2.0 {status} ")),
                    "{answer}"
                );
            }
            let required = net.events.iter().filter_map(|event| match &event.kind {
                EventKind::AuthenticationRequired { method, trunk, .. } => {
                    Some((method.as_str(), trunk.as_deref()))
                }
                _ => None,
            });
            assert_eq!(required.collect::<Vec<_>>(), [(method, Some("pbx"))]);
            let failed = failures(&net);
            assert_eq!(failed.len(), counted, "{method}");
            assert!(
                failed
                    .iter()
                    .all(|found| *found == ("u1000", "refused by trunk pbx"))
            );
            let seen = received(&net, pbx);
            let [first, refused, accepted] = &seen[..] else {
                panic!("{method}: {seen:?}");
            };
            assert_eq!(first.header("Proxy-Authorization"), "");
            let tag =
                |entry: &LogEntry| entry.header("From").split("tag=").nth(1).map(str::to_owned);
            assert!(tag(first).is_some() && tag(first).as_deref() != Some("1"));
            assert_ne!(first.header("Call-ID"), "one");
            for (repeated, cseq) in [(refused, 2), (accepted, 3)] {
                assert_eq!(repeated.header("Call-ID"), first.header("Call-ID"));
                assert_eq!(tag(repeated), tag(first));
                assert_eq!(repeated.header("CSeq"), format!("{cseq} {method}"));
                let credentials = repeated.header("Proxy-Authorization");
                assert!(
                    credentials.starts_with("Digest username=\"u1000\""),
                    "{credentials}"
                );
            }
        }
    }
}

/// Subscribes with credentials. Returns To of the response.
fn subscribe(net: &mut VirtualNetwork, pbx: usize) -> String {
    for (cseq, status, credentials) in [(1, 407, ""), (2, 200, CREDENTIALS)] {
        net.phones[pbx].log.behaviour.outside = Some(status);
        let extra = format!("Expires: 600\r\n{}{credentials}", needed("SUBSCRIBE"));
        let text = request("SUBSCRIBE", "2000", ("one", cseq), &extra);
        let answer = exchange(net, &text);
        assert!(
            answer.starts_with(&format!("SIP/2.0 {status} ")),
            "{answer}"
        );
        if status == 200 {
            return value(&answer, "To").to_owned();
        }
    }
    unreachable!()
}

/// Refreshes the subscription with these credentials. Returns the response.
fn refresh(net: &mut VirtualNetwork, to: &str, cseq: u32, credentials: &str) -> String {
    let extra = format!("Expires: 600\r\n{}{credentials}", needed("SUBSCRIBE"));
    let text = request("SUBSCRIBE", "2000", ("one", cseq), &extra);
    let text = text.replace("To: <sip:2000@192.0.2.1>", &format!("To: {to}"));
    exchange(net, &text)
}

/// The subscription of a request with credentials, whose tag towards the trunk is that of the challenged one: its
/// notifications reach the phone, its refreshes with credentials the trunk, and both end it.
#[test]
fn authenticated_subscription_is_notified_and_refreshed() {
    let mut net = VirtualNetwork::new(&configuration("authenticate='trunk'\n"), 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let to = subscribe(&mut net, pbx);
    assert_eq!(net.border.census().subscriptions, 1);
    let dialog = *net.phones[pbx]
        .log
        .dialogs
        .last()
        .expect("a dialog at the PBX");
    let answer = refresh(&mut net, &to, 3, CREDENTIALS);
    assert!(answer.starts_with("SIP/2.0 200 "), "{answer}");
    let last = net.last(pbx, |event| matches!(event, PhoneEvent::InDialog(..)));
    assert_eq!(last.method(), "SUBSCRIBE");
    assert!(last.header("Proxy-Authorization").contains("u1000"));
    for (state, left) in [("active;expires=500", 1), ("terminated", 0)] {
        let edits = [
            Edit::Add {
                id: HeaderId::Event,
                value: b"message-summary",
            },
            Edit::Add {
                id: HeaderId::SubscriptionState,
                value: state.as_bytes(),
            },
        ];
        let content = MessageContent::body(
            b"application/simple-message-summary",
            b"Messages-Waiting: yes\r\n",
        )
        .with(&edits);
        net.wire.clear();
        net.command(pbx, |endpoint, now| {
            endpoint
                .dialog_request(dialog, Method::Notify, &content, 2, None, now)
                .unwrap();
        });
        net.run(Duration::from_millis(100));
        let notify = to_phone(&net, "NOTIFY");
        assert_eq!(value(&notify, "Subscription-State"), state);
        assert!(notify.ends_with("Messages-Waiting: yes\r\n"), "{notify}");
        assert!(!notify.contains("10.2.0.1"), "{notify}");
        let lines = ["Via", "From", "To", "Call-ID", "CSeq"]
            .map(|name| format!("{name}: {}\r\n", value(&notify, name)))
            .concat();
        let answer = format!("SIP/2.0 200 OK\r\n{lines}Content-Length: 0\r\n\r\n");
        net.send_raw(PHONE, OUT, answer.as_bytes());
        net.run(Duration::from_millis(100));
        assert!(net.has(pbx, |event| *event == PhoneEvent::OutOfDialogResponse(200)));
        assert_eq!(net.border.census().subscriptions, left, "{state}");
    }
    assert!(failures(&net).is_empty());
    net.run(seconds(60));
    net.assert_quiet();
}

/// Neither requests outside of dialogs nor those within a subscription are a way to try passwords without limit.
#[test]
fn wrong_passwords_outside_of_calls_are_limited() {
    for within in [false, true] {
        let mut net = VirtualNetwork::new(&configuration("authenticate='trunk'\n"), 5);
        let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
        let to = within.then(|| subscribe(&mut net, pbx));
        net.phones[pbx].log.behaviour.outside = Some(407);
        net.phones[pbx].log.behaviour.inside = Some(407);
        net.phones[pbx].log.entries.clear();
        let wrong = CREDENTIALS.replace("u1000", "u1001");
        let mut delayed = 0;
        for number in 0..60 {
            let answer = match &to {
                Some(to) => refresh(&mut net, to, 3 + number, &wrong),
                None => {
                    let call_id = format!("m{number}");
                    let text = request("MESSAGE", "2000", (&call_id, 1), &wrong);
                    exchange(&mut net, &text)
                }
            };
            delayed += usize::from(answer.contains("\r\nRetry-After: "));
        }
        assert_eq!(received(&net, pbx).len(), 10, "within: {within}");
        assert_eq!(delayed, 50, "within: {within}");
        assert_eq!(net.border.counters().authentication_failed, 60);
    }
}

/// Registers user 1000 at the trunk, which grants its contact.
fn register(net: &mut VirtualNetwork, pbx: usize) {
    net.phones[pbx].log.behaviour.outside = None;
    let extra = format!("Expires: 600\r\n{CREDENTIALS}");
    let text = request("REGISTER", "1000", ("register", 1), &extra);
    net.send_raw(PHONE, OUT, text.as_bytes());
    net.run(Duration::from_millis(100));
    let asked = net
        .last(pbx, |event| matches!(event, PhoneEvent::OutOfDialog(_)))
        .clone();
    let PhoneEvent::OutOfDialog(transaction) = asked.event else {
        panic!("{asked:?}");
    };
    let contact = asked.header("Contact");
    let edits = [Edit::Replace {
        id: HeaderId::Contact,
        value: contact.as_bytes(),
    }];
    net.wire.clear();
    net.command(pbx, |endpoint, now| {
        let content = MessageContent::default().with(&edits);
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    net.run(Duration::from_millis(100));
    let answer = to_phone(net, "SIP/2.0");
    assert!(answer.starts_with("SIP/2.0 200 "), "{answer}");
    net.phones[pbx].log.behaviour.outside = Some(200);
}

/// Credentials for the trunk of the registrations reach no other trunk.
#[test]
fn credentials_reach_the_trunk_of_registrations_alone() {
    let config = configuration("authenticate='trunk'\n");
    let config = format!(
        "{config}[[trunk]]\nname='other'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[route]]\nto={{prefix='9'}}\ntrunk='other'\n[[route]]\ntrunk='pbx'\n"
    );
    let mut net = VirtualNetwork::new(&config, 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let other = net.phone("10.2.0.2:5060", PhoneBehaviour::answering(SDP_B));
    // An unregistered source reaches the trunk of the registrations alone.
    let text = request("MESSAGE", "9000", ("stranger", 1), CREDENTIALS);
    exchange(&mut net, &text);
    assert!(received(&net, other).is_empty());
    register(&mut net, pbx);
    for (called, at, relayed) in [("9000", other, false), ("2000", pbx, true)] {
        net.phones[at].log.entries.clear();
        let text = request("MESSAGE", called, (called, 1), CREDENTIALS);
        let answer = exchange(&mut net, &text);
        assert!(answer.starts_with("SIP/2.0 200 "), "{answer}");
        let seen = received(&net, at);
        let [entry] = &seen[..] else {
            panic!("{called}: {seen:?}");
        };
        assert_eq!(!entry.header("Proxy-Authorization").is_empty(), relayed);
    }
}

/// A trunk with credentials of its own: the border answers its challenges, and its refusal of them is no challenge to
/// the phone, whose credentials stay here.
#[test]
fn refusal_of_our_credentials_is_no_challenge_to_the_phone() {
    let config = configuration("authenticate='trunk'\n") + "username='border'\npassword='p'\n";
    let mut net = VirtualNetwork::new(&config, 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[pbx].log.behaviour.outside = Some(407);
    let text = request("MESSAGE", "2000", ("one", 1), CREDENTIALS);
    let answer = exchange(&mut net, &text);
    assert!(answer.starts_with("SIP/2.0 403 "), "{answer}");
    let seen = received(&net, pbx);
    assert!(!seen.is_empty());
    assert!(seen.iter().all(|entry| !entry.text().contains("u1000")));
    assert!(failures(&net).is_empty());
}

/// Within a subscription, too.
#[test]
fn refusal_of_our_credentials_within_a_subscription_is_no_challenge() {
    let config = configuration("authenticate='trunk'\n") + "username='border'\npassword='p'\n";
    let mut net = VirtualNetwork::new(&config, 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[pbx].log.behaviour.outside = Some(200);
    let extra = format!("Expires: 600\r\n{}", needed("SUBSCRIBE"));
    let text = request("SUBSCRIBE", "2000", ("one", 1), &extra);
    let answer = exchange(&mut net, &text);
    assert!(answer.starts_with("SIP/2.0 200 "), "{answer}");
    let to = value(&answer, "To").to_owned();
    net.phones[pbx].log.behaviour.inside = Some(407);
    let answer = refresh(&mut net, &to, 2, CREDENTIALS);
    assert!(answer.starts_with("SIP/2.0 403 "), "{answer}");
    assert!(failures(&net).is_empty());
}

/// A trunk that accepts such requests from any sender has not accepted their credentials. Otherwise invented ones would
/// make the source one of the account, and their nonce one that may have expired: passwords could be tried without
/// limit.
#[test]
fn acceptance_without_a_challenge_proves_no_password() {
    let wrong = CREDENTIALS.replace("u1000", "u1001");
    for within in [false, true] {
        let mut net = VirtualNetwork::new(&configuration("authenticate='trunk'\n"), 5);
        let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
        let to = within.then(|| subscribe(&mut net, pbx));
        for (status, requests, reached) in [(200, 5, 5), (407, 60, 10)] {
            net.phones[pbx].log.behaviour.outside = Some(status);
            net.phones[pbx].log.behaviour.inside = Some(status);
            net.phones[pbx].log.entries.clear();
            for number in 0..requests {
                let cseq = u32::from(status) + number;
                match &to {
                    Some(to) => refresh(&mut net, to, cseq, &wrong),
                    None => {
                        let call_id = format!("m{cseq}");
                        let text = request("MESSAGE", "2000", (&call_id, 1), &wrong);
                        exchange(&mut net, &text)
                    }
                };
            }
            let seen = received(&net, pbx).len();
            assert_eq!(seen, reached, "{status}, within: {within}");
        }
        assert_eq!(net.border.counters().authentication_failed, 60);
    }
}

/// A nonce that was accepted after a challenge has expired: the next challenge is no failure.
#[test]
fn expired_nonces_within_a_subscription_are_no_failures() {
    let mut net = VirtualNetwork::new(&configuration("authenticate='trunk'\n"), 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let to = subscribe(&mut net, pbx);
    let mut credentials = CREDENTIALS.to_owned();
    for number in 0..20 {
        for status in [407, 200] {
            net.phones[pbx].log.behaviour.inside = Some(status);
            let cseq = 3 + 2 * number + u32::from(status == 200);
            let answer = refresh(&mut net, &to, cseq, &credentials);
            let expected = format!("SIP/2.0 {status} ");
            assert!(answer.starts_with(&expected), "{answer}");
            credentials = CREDENTIALS.replace("\"n\"", &format!("\"n{number}\""));
        }
    }
    assert!(failures(&net).is_empty(), "{:?}", failures(&net));
}

/// The same for calls, unless the other trunk has challenged the INVITE itself.
#[test]
fn credentials_of_calls_reach_the_trunk_of_registrations_alone() {
    let config = configuration("authenticate='trunk'\n");
    let config = format!(
        "{config}[[trunk]]\nname='other'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
         [[route]]\nto={{prefix='9'}}\ntrunk='other'\n[[route]]\ntrunk='pbx'\n"
    );
    let mut net = VirtualNetwork::new(&config, 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let other = net.phone("10.2.0.2:5060", PhoneBehaviour::answering(SDP_B));
    register(&mut net, pbx);
    for at in [pbx, other] {
        net.phones[at].log.entries.clear();
        net.phones[at].log.behaviour.progress.clear();
        net.phones[at].log.behaviour.answer = Some(407);
    }
    let steps = [
        ("2000", 1, CREDENTIALS),
        ("9000", 1, CREDENTIALS),
        ("9001", 1, ""),
        ("9001", 2, CREDENTIALS),
    ];
    for (called, cseq, credentials) in steps {
        let text = request("INVITE", called, (called, cseq), credentials);
        exchange(&mut net, &text);
        net.run(seconds(1));
    }
    let has_credentials = |at: usize| -> Vec<bool> {
        let entries = net.log(at).iter();
        let offered = entries.filter(|entry| entry.event == PhoneEvent::Offered);
        offered
            .map(|entry| !entry.header("Proxy-Authorization").is_empty())
            .collect()
    };
    assert_eq!(has_credentials(pbx), [true]);
    assert_eq!(has_credentials(other), [false, false, true]);
}

/// An SRV record of equal priority and weight with all others.
fn srv(port: u16, target: &str) -> Vec<u8> {
    let mut data = Vec::new();
    for number in [1, 10, port] {
        data.extend(number.to_be_bytes());
    }
    data.extend(dns_name(target));
    data
}

/// Each node of the trunk knows its own nonces only: the request with credentials reaches the one that has challenged
/// it.
#[test]
fn repeated_requests_reach_the_target_that_has_challenged_them() {
    let list = "target=['udp:10.2.0.1:5060','udp:10.2.0.2:5060']";
    let name = "target='udp:pbx.example'\n[dns]\nservers=['10.8.0.53:53']";
    for target in [list, name] {
        let config =
            configuration("authenticate='trunk'\n").replace("target='udp:10.2.0.1:5060'", target);
        let mut net = VirtualNetwork::new(&config, 5);
        net.zone = vec![
            ("_sip._udp.pbx.example", 33, srv(5060, "a.pbx.example")),
            ("_sip._udp.pbx.example", 33, srv(5060, "b.pbx.example")),
            ("a.pbx.example", 1, vec![10, 2, 0, 1]),
            ("b.pbx.example", 1, vec![10, 2, 0, 2]),
        ];
        let mut challenging = PhoneBehaviour::answering("");
        challenging.progress.clear();
        let nodes = ["10.2.0.1:5060", "10.2.0.2:5060"]
            .map(|address| net.phone(address, challenging.clone()));
        for method in ["INVITE", "MESSAGE"] {
            let mut asked = [0, 0];
            for number in 0..20 {
                for node in nodes {
                    net.phones[node].log.entries.clear();
                }
                let call_id = format!("{method}{number}");
                for (cseq, credentials, status) in [(1, "", 407), (2, CREDENTIALS, 486)] {
                    for node in nodes {
                        let behaviour = &mut net.phones[node].log.behaviour;
                        (behaviour.answer, behaviour.outside) = (Some(status), Some(status));
                    }
                    let text = request(method, "2000", (&call_id, cseq), credentials);
                    exchange(&mut net, &text);
                    net.run(seconds(1));
                }
                let received = nodes.map(|node| {
                    let events = net.phone_events(node);
                    let is_request = |event: &&PhoneEvent| {
                        matches!(event, PhoneEvent::Offered | PhoneEvent::OutOfDialog(_))
                    };
                    events.iter().filter(is_request).count()
                });
                assert!(
                    matches!(received, [2, 0] | [0, 2]),
                    "{target}: {received:?}"
                );
                asked[usize::from(received[1] == 2)] += 1;
            }
            assert!(asked[0] > 2 && asked[1] > 2, "{target}: {asked:?}");
        }
    }
}

/// A trunk that takes calls of any sender, of emergency numbers for example, has not accepted their credentials.
#[test]
fn calls_without_a_challenge_prove_no_password() {
    let mut net = VirtualNetwork::new(&configuration("authenticate='trunk'\n"), 5);
    let pbx = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    net.phones[pbx].log.behaviour.progress.clear();
    for (status, calls, reached) in [(200, 2, 2), (407, 60, 10)] {
        net.phones[pbx].log.behaviour.answer = Some(status);
        net.phones[pbx].log.entries.clear();
        for number in 0..calls {
            let call_id = format!("c{status}x{number}");
            let text = request("INVITE", "2000", (&call_id, 1), CREDENTIALS);
            net.send_raw(PHONE, OUT, text.as_bytes());
            net.run(Duration::from_millis(100));
        }
        let offered = net.log(pbx).iter();
        let offered = offered.filter(|entry| entry.event == PhoneEvent::Offered);
        assert_eq!(offered.count(), reached, "{status}");
    }
}
