//! Topology hiding: all bytes that the border sends are searched for information about the other side.

use crate::virtual_network;

use engine::Transport;
use sip::{LegId, MessageContent, OutOfDialogRequest, Target};
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

const IN: &str = "198.51.100.1:5060";

/// Addresses of the access side, with the border's own there.
const ACCESS: [&str; 4] = [
    "10.1.0.",
    "192.0.2.1",
    "192.168.",
    "phone.invalid-domain.example",
];
/// Addresses of the core side.
const CORE: [&str; 3] = ["10.2.0.", "198.51.100.", "core.example"];

fn assert_hidden(net: &VirtualNetwork, phone: usize, words: &[&str]) {
    assert!(net.phones[phone].received.len() > 5);
    for bytes in &net.phones[phone].received {
        let text = String::from_utf8_lossy(bytes);
        for word in words {
            assert!(!text.contains(word), "{word} leaks in\n{text}");
        }
    }
}

fn send(
    net: &mut VirtualNetwork,
    phone: usize,
    hop: &str,
    method: Method<'static>,
    uri: &str,
    edits: &[Edit<'_>],
) {
    let flow = net.flow(phone, hop, Transport::Udp);
    let user = format!("<sip:1000@{}>", net.phones[phone].address);
    net.command(phone, |endpoint, now| {
        let outside = OutOfDialogRequest {
            from: Some(user.as_bytes()),
            to: (method == Method::Register).then_some(user.as_bytes()),
            content: MessageContent::default().with(edits),
            ..OutOfDialogRequest::new(method, Target::new(uri.as_bytes(), flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn no_byte_contains_an_address_of_the_other_side() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n");
    let mut net = VirtualNetwork::new(&config, 3);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    // Registration, MESSAGE, and requests that the core refuses.
    let contact = [
        Edit::Replace {
            id: HeaderId::Contact,
            value: b"<sip:1000@192.168.3.3:5060>",
        },
        Edit::Add {
            id: HeaderId::Path,
            value: b"<sip:10.1.0.77;lr>",
        },
    ];
    send(
        &mut net,
        alice,
        OUT,
        Method::Register,
        "sip:192.0.2.1",
        &contact,
    );
    send(
        &mut net,
        alice,
        OUT,
        Method::Message,
        "sip:bob@192.0.2.1",
        &[],
    );
    send(
        &mut net,
        bob,
        IN,
        Method::Message,
        "sip:1000@198.51.100.1",
        &[],
    );
    net.phones[bob].log.behaviour.answer = Some(404);
    net.call(
        alice,
        "sip:nobody@192.0.2.1",
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()),
    );
    net.run(seconds(1));
    net.phones[bob].log.behaviour.answer = None;
    net.phones[bob].log.behaviour.progress = vec![(180, false), (183, false)];
    // A call with early media, requests in both directions, hold, transfer.
    let identity = [
        Edit::Add {
            id: HeaderId::PAssertedIdentity,
            value: b"<sip:1000@10.1.0.1>",
        },
        Edit::Replace {
            id: HeaderId::UserAgent,
            value: b"Phone",
        },
    ];
    let content = MessageContent::sdp(SDP_A.as_bytes()).with(&identity);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    let theirs = net
        .last(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    net.command(bob, |endpoint, now| {
        let edits = [Edit::Add {
            id: HeaderId::PAssertedIdentity,
            value: b"<sip:bob@core.example>",
        }];
        endpoint
            .answer(
                theirs,
                200,
                &MessageContent::sdp(SDP_B.as_bytes()).with(&edits),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    let hold = SDP_A.replace("m=audio", "a=sendonly\r\nm=audio");
    net.command(alice, |endpoint, now| {
        endpoint
            .request(
                leg,
                Method::Invite,
                &MessageContent::sdp(hold.as_bytes()),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    net.command(bob, |endpoint, now| {
        endpoint
            .request(
                theirs,
                Method::Update,
                &MessageContent::sdp(SDP_B.as_bytes()),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    for (phone, leg, target) in [
        (alice, leg, "<sip:carol@192.0.2.1:5060>"),
        (bob, theirs, "<sip:carol@198.51.100.1:5060>"),
    ] {
        let edits = [Edit::Add {
            id: HeaderId::ReferTo,
            value: target.as_bytes(),
        }];
        net.command(phone, |endpoint, now| {
            endpoint
                .request(leg, Method::Info, &MessageContent::default(), now)
                .unwrap();
            endpoint
                .request(
                    leg,
                    Method::Refer,
                    &MessageContent::default().with(&edits),
                    now,
                )
                .unwrap();
        });
        net.run(seconds(1));
    }
    net.command(bob, |endpoint, now| {
        endpoint
            .bye(theirs, &MessageContent::default(), now)
            .unwrap()
    });
    net.run(seconds(1));
    assert_hidden(&net, alice, &CORE);
    assert_hidden(&net, bob, &ACCESS);
    net.assert_quiet();
}

/// Information about its network that a peer may write into headers with hosts.
#[test]
fn headers_with_hosts_are_removed() {
    let mut net = VirtualNetwork::new(PLAIN, 3);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut silent = PhoneBehaviour::answering(SDP_B);
    silent.progress.clear();
    silent.answer = None;
    let bob = net.phone("10.2.0.1:5060", silent);
    let edits = [
        Edit::AddNamed {
            name: b"P-Charging-Vector",
            value: b"icid-value=1;icid-generated-at=10.1.0.1",
        },
        Edit::AddNamed {
            name: b"P-Visited-Network-ID",
            value: b"\"phone.invalid-domain.example\"",
        },
        Edit::AddNamed {
            name: b"Warning",
            value: b"399 10.1.0.1 \"odd\"",
        },
    ];
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()).with(&edits),
    );
    net.run(seconds(1));
    let leg = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    net.command(bob, |endpoint, now| {
        let edits = [
            Edit::AddNamed {
                name: b"Warning",
                value: b"304 10.2.0.1:5060 \"no such media\", 399 isi.edu \"more\"",
            },
            Edit::AddNamed {
                name: b"P-Charging-Function-Addresses",
                value: b"ccf=10.2.0.7",
            },
            Edit::AddNamed {
                name: b"Service-Route",
                value: b"<sip:10.2.0.8;lr>",
            },
        ];
        endpoint
            .reject(leg, 488, &MessageContent::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(1));
    let refused = net.last(alice, |event| matches!(event, PhoneEvent::Failed(..)));
    for word in CORE {
        assert!(
            !refused.text().contains(word),
            "{word} in {}",
            refused.text()
        );
    }
    assert!(
        refused
            .header("Warning")
            .starts_with("304 hornwork \"Media type not available\""),
        "{}",
        refused.text()
    );
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered).text();
    for word in ACCESS {
        assert!(!offered.contains(word), "{word} in {offered}");
    }
}

/// A host and an address that must not appear on the other side.
const SECRETS: [&str; 2] = ["secret-host", "10.77.0."];

/// Headers that contain them, and one that is relayed.
fn secret_headers() -> Vec<Edit<'static>> {
    let named: [(&[u8], &[u8]); 17] = [
        (b"Subject", b"lunch"),
        (
            b"Reason",
            b"SIP;cause=503;text=\"secret-host at 10.77.0.7\"",
        ),
        (b"Error-Info", b"<sip:sorry@10.77.0.7>"),
        (
            b"Alert-Info",
            b"<http://secret-host/ring.wav>;info=internal",
        ),
        (b"Call-Info", b"<http://10.77.0.7/>;answer-after=0"),
        (b"Call-Info", b"<http://secret-host/me.png>;purpose=icon"),
        (
            b"Referred-By",
            b"<sip:bob@secret-host:5070>;cid=\"1@10.77.0.7\"",
        ),
        (b"Reply-To", b"<sip:phone@secret-host>"),
        (b"In-Reply-To", b"7@10.77.0.7"),
        (b"X-Asterisk-HangupCause", b"secret-host"),
        (b"X-Node", b"10.77.0.7"),
        (b"Path", b"<sip:10.77.0.7;lr>"),
        (b"Warning", b"399 secret-host \"at secret-host\""),
        (b"Retry-After", b"5 (at secret-host);duration=60"),
        (b"Accept-Contact", b"*;audio;x=\"secret-host\""),
        (b"P-Preferred-Identity", b"<sip:bob@secret-host>"),
        (b"Remote-Party-ID", b"<sip:bob@secret-host>;party=called"),
    ];
    let edits = named.map(|(name, value)| Edit::AddNamed { name, value });
    edits.to_vec()
}

/// A description that contains them wherever possible.
fn secret_sdp(sdp: &str) -> String {
    sdp.replace("s=-\r\n", "s=secret-host\r\ni=at secret-host\r\nu=http://secret-host/\r\ne=me@secret-host\r\np=10.77.0.7\r\nk=uri:http://secret-host/\r\nx=10.77.0.7\r\n")
        .replace("t=0 0\r\n", "t=0 0\r\na=tool:secret-host 1.0\r\na=x-srv:secret-host\r\n")
        + "i=secret-host\r\na=label:10.77.0.7\r\na=ssrc:7 cname:me@10.77.0.7\r\na=altc:1 IP4 10.77.0.7 9000\r\n\
           a=ccap:1 IN IP4 10.77.0.7\r\na=acap:1 candidate:1 1 UDP 1 10.77.0.7 9000 typ host\r\n\
           m=message 9002 TCP/MSRP *\r\na=path:msrp://10.77.0.7:9002/x;tcp\r\n"
}

fn assert_no_secrets(net: &VirtualNetwork, phones: &[usize]) {
    for phone in phones {
        for bytes in &net.phones[*phone].received {
            let text = String::from_utf8_lossy(bytes);
            for secret in SECRETS {
                assert!(!text.contains(secret), "{secret} leaks in\n{text}");
            }
        }
    }
}

/// An in-dialog request and its response, both with secrets.
fn exchange(net: &mut VirtualNetwork, from: (usize, LegId), to: usize, method: Method<'static>) {
    let (headers, sdp) = (secret_headers(), secret_sdp(SDP_A));
    let body = || match method {
        Method::Invite => MessageContent::sdp(sdp.as_bytes()),
        _ => MessageContent::default(),
    };
    let mut edits = headers.clone();
    match method {
        Method::Refer => edits.push(Edit::AddNamed {
            name: b"Refer-To",
            value: b"<sip:carol@elsewhere.example>",
        }),
        Method::Notify => edits.extend([
            Edit::AddNamed {
                name: b"Event",
                value: b"refer",
            },
            Edit::AddNamed {
                name: b"Subscription-State",
                value: b"active",
            },
        ]),
        _ => {}
    }
    let before = net.log(to).len();
    net.command(from.0, |endpoint, now| {
        let content = body().with(&edits);
        endpoint.request(from.1, method, &content, now).unwrap();
    });
    net.run(seconds(1));
    let came = net.log(to)[before..]
        .iter()
        .find_map(|entry| match entry.event {
            PhoneEvent::Request(transaction) => Some((transaction, entry.header("Subject"))),
            _ => None,
        });
    let (transaction, subject) = came.unwrap_or_else(|| panic!("{method:?} did not pass"));
    assert_eq!(subject, "lunch", "{method:?}");
    net.command(to, |endpoint, now| {
        let content = MessageContent {
            reason: Some(b"Done by secret-host"),
            ..body().with(&headers)
        };
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let answered = |event: &PhoneEvent| matches!(event, PhoneEvent::Response(200, _));
    assert!(net.has(from.0, answered), "{method:?}");
}

/// Information about a side's network in headers and descriptions is not relayed, in any message and direction.
#[test]
fn secrets_in_any_header_or_description_are_removed() {
    let config = PLAIN.replace("kind='core'", "kind='core'\nheaders='known'");
    let mut net = VirtualNetwork::new(&config, 3);
    let mut quiet = PhoneBehaviour::answering(SDP_A);
    (quiet.answer, quiet.inside, quiet.outside) = (None, None, None);
    quiet.progress.clear();
    let alice = net.phone("10.1.0.1:5060", quiet.clone());
    let bob = net.phone("10.2.0.1:5060", quiet);
    let headers = secret_headers();
    let (sdp_a, sdp_b) = (secret_sdp(SDP_A), secret_sdp(SDP_B));
    let offer = MessageContent::sdp(sdp_a.as_bytes()).with(&headers);
    let answer = MessageContent::sdp(sdp_b.as_bytes()).with(&headers);
    // A refused call, and a cancelled one.
    for cancelled in [false, true] {
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
        let theirs = net
            .last(bob, |event| *event == PhoneEvent::Offered)
            .leg
            .unwrap();
        match cancelled {
            false => net.command(bob, |endpoint, now| {
                let refusal = MessageContent {
                    reason: Some(b"Busy at secret-host"),
                    ..answer
                };
                endpoint.reject(theirs, 486, &refusal, now).unwrap();
            }),
            true => {
                net.command(bob, |endpoint, now| {
                    endpoint.progress(theirs, 180, &answer, false, now).unwrap();
                });
                net.run(seconds(1));
                net.command(alice, |endpoint, now| {
                    let content = MessageContent::default().with(&headers);
                    endpoint.cancel(leg, &content, now).unwrap();
                });
            }
        }
        net.run(seconds(1));
    }
    assert!(net.has(bob, |event| *event == PhoneEvent::Cancelled));
    // Established calls, ended by either side.
    for ends in [0, 1] {
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
        let theirs = net
            .last(bob, |event| *event == PhoneEvent::Offered)
            .leg
            .unwrap();
        net.command(bob, |endpoint, now| {
            endpoint.progress(theirs, 183, &answer, false, now).unwrap();
            endpoint.answer(theirs, 200, &answer, now).unwrap();
        });
        net.run(seconds(1));
        let sides = [(alice, leg), (bob, theirs)];
        for (from, to) in [(sides[0], bob), (sides[1], alice)] {
            for method in [Method::Info, Method::Refer, Method::Notify, Method::Invite] {
                exchange(&mut net, from, to, method);
            }
        }
        let (phone, leg) = sides[ends];
        net.command(phone, |endpoint, now| {
            let content = MessageContent::default().with(&headers);
            endpoint.bye(leg, &content, now).unwrap();
        });
        net.run(seconds(1));
    }
    // Outside of calls.
    for (from, hop, uri, to) in [
        (alice, OUT, "sip:bob@192.0.2.1", bob),
        (bob, IN, "sip:1000@198.51.100.1", alice),
    ] {
        let before = net.log(to).len();
        send(&mut net, from, hop, Method::Message, uri, &headers);
        let came = net.log(to)[before..]
            .iter()
            .find_map(|entry| match entry.event {
                PhoneEvent::OutOfDialog(transaction) => Some(transaction),
                _ => None,
            });
        if let Some(transaction) = came {
            net.command(to, |endpoint, now| {
                let content = MessageContent {
                    reason: Some(b"Busy at secret-host"),
                    ..MessageContent::default().with(&headers)
                };
                endpoint.respond(transaction, 486, &content, now).unwrap();
            });
            net.run(seconds(1));
            assert!(net.has(from, |event| *event == PhoneEvent::OutOfDialogResponse(486)));
        }
    }
    assert_no_secrets(&net, &[alice, bob]);
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered);
    assert_eq!(
        offered.header("Call-Info"),
        "<sip:198.51.100.1:5060>;answer-after=0"
    );
    assert_eq!(offered.header("Referred-By"), "<sip:bob@198.51.100.1:5060>");
    assert!(offered.body().contains("\r\ns=-\r\n"), "{}", offered.text());
}

#[test]
fn trusted_sides_get_all_headers_before_rules_and_lists() {
    let config = format!(
        "{}[[rules]]\ndirection='out'\ninterface='out'\ndo=[{{add='X-Ours',value='mine'}},{{set='Alert-Info',value='<http://phones/ring>'}}]\n",
        PLAIN.replace(
            "kind='access'",
            "kind='access'\npass_headers=['x-node','Error-Info']"
        )
    );
    let mut net = VirtualNetwork::new(&config, 3);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let mut quiet = PhoneBehaviour::answering(SDP_B);
    quiet.answer = None;
    let bob = net.phone("10.2.0.1:5060", quiet);
    let headers = secret_headers();
    let sdp = secret_sdp(SDP_A);
    let offer = MessageContent::sdp(sdp.as_bytes()).with(&headers);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    // Towards the core nothing is hidden.
    let offered = net.find(bob, |event| *event == PhoneEvent::Offered);
    assert_eq!(offered.header("X-Asterisk-HangupCause"), "secret-host");
    assert!(offered.header("Reason").contains("10.77.0.7"));
    assert!(offered.body().contains("s=secret-host\r\n"));
    let leg = offered.leg.unwrap();
    net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(sdp.as_bytes()).with(&headers);
        endpoint.answer(leg, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
    assert_eq!(answered.header("X-Asterisk-HangupCause"), "");
    assert_eq!(answered.header("X-Node"), "10.77.0.7", "listed");
    assert_eq!(
        answered.header("Error-Info"),
        "<sip:sorry@10.77.0.7>",
        "listed"
    );
    assert_eq!(answered.header("X-Ours"), "mine");
    assert_eq!(answered.header("Alert-Info"), "<http://phones/ring>");
    assert!(
        !answered.body().contains("secret-host"),
        "{}",
        answered.text()
    );
}

/// `pass_headers` holds for CANCEL as for BYE.
#[test]
fn listed_reason_is_relayed_when_a_call_is_cancelled() {
    const GIVEN: &str = "SIP;cause=200;text=\"at secret-host\"";
    for (listed, expected) in [("", "SIP;cause=200"), ("pass_headers=['Reason']\n", GIVEN)] {
        let known = format!("kind='core'\nheaders='known'\n{listed}");
        let config = PLAIN.replace("kind='core'\n", &known);
        let mut net = VirtualNetwork::new(&config, 3);
        let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
        let mut ringing = PhoneBehaviour::answering(SDP_B);
        ringing.answer = None;
        let bob = net.phone("10.2.0.1:5060", ringing);
        let offer = MessageContent::sdp(SDP_A.as_bytes());
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
        let edits = [Edit::Add {
            id: HeaderId::Reason,
            value: GIVEN.as_bytes(),
        }];
        net.command(alice, |endpoint, now| {
            let content = MessageContent::default().with(&edits);
            endpoint.cancel(leg, &content, now).unwrap();
        });
        net.run(seconds(1));
        let cancelled = net.find(bob, |event| *event == PhoneEvent::Cancelled);
        assert_eq!(cancelled.header("Reason"), expected);
    }
}
