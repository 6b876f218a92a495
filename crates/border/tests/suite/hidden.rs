//! What one side may never see of the other: every byte of everything that a border does is searched.

use crate::neighbourhood;

use engine::Transport;
use neighbourhood::*;
use sip::{Content, Flow, LegId, Outside, Target};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

const OUT: &str = "192.0.2.1:5060";
const IN: &str = "198.51.100.1:5060";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// Addresses of the access side; the border's own there among them.
const ACCESS: [&str; 4] = [
    "10.1.0.",
    "192.0.2.1",
    "192.168.",
    "phone.invalid-domain.example",
];
/// Addresses of the core side.
const CORE: [&str; 3] = ["10.2.0.", "198.51.100.", "core.example"];

fn assert_hidden(net: &Neighbourhood, phone: usize, words: &[&str]) {
    assert!(net.phones[phone].received.len() > 5);
    for bytes in &net.phones[phone].received {
        let text = String::from_utf8_lossy(bytes);
        for word in words {
            assert!(!text.contains(word), "{word} leaks in\n{text}");
        }
    }
}

fn send(
    net: &mut Neighbourhood,
    phone: usize,
    hop: &str,
    method: Method<'static>,
    uri: &str,
    edits: &[Edit<'_>],
) {
    let flow = Flow {
        local: net.phones[phone].local,
        transport: Transport::Udp,
        remote: hop.parse().unwrap(),
        connection: None,
    };
    let user = format!("<sip:1000@{}>", net.phones[phone].address);
    net.tell(phone, |endpoint, now| {
        let outside = Outside {
            from: Some(user.as_bytes()),
            to: (method == Method::Register).then_some(user.as_bytes()),
            content: Content::default().with(edits),
            ..Outside::new(method, Target::new(uri.as_bytes(), flow))
        };
        endpoint.send(&outside, now).unwrap();
    });
    net.run(seconds(1));
}

#[test]
fn no_address_of_the_other_side_in_any_byte() {
    let config = PLAIN.replace("kind='access'\n", "kind='access'\nregister='pass:pbx'\n");
    let mut net = Neighbourhood::new(&config, 3);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    // Registration, a message, and what the core refuses.
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
    net.phones[bob].ears.manners.answer = Some(404);
    net.call(
        alice,
        "sip:nobody@192.0.2.1",
        OUT,
        &Content::sdp(SDP_A.as_bytes()),
    );
    net.run(seconds(1));
    net.phones[bob].ears.manners.answer = None;
    net.phones[bob].ears.manners.progress = vec![(180, false), (183, false)];
    // A call with early media, both directions of requests, hold, transfer.
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
    let content = Content::sdp(SDP_A.as_bytes()).with(&identity);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &content);
    net.run(seconds(1));
    let theirs = net.last(bob, |told| *told == Told::Offered).leg.unwrap();
    net.tell(bob, |endpoint, now| {
        let edits = [Edit::Add {
            id: HeaderId::PAssertedIdentity,
            value: b"<sip:bob@core.example>",
        }];
        endpoint
            .answer(
                theirs,
                200,
                &Content::sdp(SDP_B.as_bytes()).with(&edits),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Answered));
    let hold = SDP_A.replace("m=audio", "a=sendonly\r\nm=audio");
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &Content::sdp(hold.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(1));
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(theirs, Method::Update, &Content::sdp(SDP_B.as_bytes()), now)
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
        net.tell(phone, |endpoint, now| {
            endpoint
                .request(leg, Method::Info, &Content::default(), now)
                .unwrap();
            endpoint
                .request(leg, Method::Refer, &Content::default().with(&edits), now)
                .unwrap();
        });
        net.run(seconds(1));
    }
    net.tell(bob, |endpoint, now| {
        endpoint.bye(theirs, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    assert_hidden(&net, alice, &CORE);
    assert_hidden(&net, bob, &ACCESS);
    net.assert_quiet();
}

/// What a peer may write of its own network into headers that name hosts.
#[test]
fn headers_that_name_hosts_do_not_pass() {
    let mut net = Neighbourhood::new(PLAIN, 3);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let mut silent = Manners::answering(SDP_B);
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
        &Content::sdp(SDP_A.as_bytes()).with(&edits),
    );
    net.run(seconds(1));
    let leg = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
    net.tell(bob, |endpoint, now| {
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
            .reject(leg, 488, &Content::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(1));
    let refused = net.last(alice, |told| matches!(told, Told::Failed(..)));
    for word in CORE {
        assert!(
            !refused.text().contains(word),
            "{word} in {}",
            refused.text()
        );
    }
    assert!(
        refused.header("Warning").contains("\"no such media\""),
        "{}",
        refused.text()
    );
    let offered = net.find(bob, |told| *told == Told::Offered).text();
    for word in ACCESS {
        assert!(!offered.contains(word), "{word} in {offered}");
    }
}

/// A host and an address that must not appear on the other side.
const SECRETS: [&str; 2] = ["secret-host", "10.77.0."];

/// Headers that name them, and one that passes.
fn secret_headers() -> Vec<Edit<'static>> {
    let named: [(&[u8], &[u8]); 11] = [
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
        (b"Reply-To", b"<sip:desk@secret-host>"),
        (b"In-Reply-To", b"7@10.77.0.7"),
        (b"X-Asterisk-HangupCause", b"secret-host"),
        (b"X-Node", b"10.77.0.7"),
    ];
    let edits = named.map(|(name, value)| Edit::AddNamed { name, value });
    edits.to_vec()
}

/// A description that names them wherever one can.
fn secret_sdp(sdp: &str) -> String {
    sdp.replace("s=-\r\n", "s=secret-host\r\ni=at secret-host\r\nu=http://secret-host/\r\ne=me@secret-host\r\np=10.77.0.7\r\n")
        .replace("t=0 0\r\n", "t=0 0\r\na=tool:secret-host 1.0\r\n")
        + "i=secret-host\r\n"
}

fn assert_no_secrets(net: &Neighbourhood, phones: &[usize]) {
    for phone in phones {
        for bytes in &net.phones[*phone].received {
            let text = String::from_utf8_lossy(bytes);
            for secret in SECRETS {
                assert!(!text.contains(secret), "{secret} leaks in\n{text}");
            }
        }
    }
}

/// A request inside a call, and its answer, both with secrets.
fn exchange(net: &mut Neighbourhood, from: (usize, LegId), to: usize, method: Method<'static>) {
    let (headers, sdp) = (secret_headers(), secret_sdp(SDP_A));
    let body = || match method {
        Method::Invite => Content::sdp(sdp.as_bytes()),
        _ => Content::default(),
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
    let before = net.seen(to).len();
    net.tell(from.0, |endpoint, now| {
        let content = body().with(&edits);
        endpoint.request(from.1, method, &content, now).unwrap();
    });
    net.run(seconds(1));
    let came = net.seen(to)[before..]
        .iter()
        .find_map(|seen| match seen.told {
            Told::Request(transaction) => Some((transaction, seen.header("Subject"))),
            _ => None,
        });
    let (transaction, subject) = came.unwrap_or_else(|| panic!("{method:?} did not pass"));
    assert_eq!(subject, "lunch", "{method:?}");
    net.tell(to, |endpoint, now| {
        let content = body().with(&headers);
        endpoint.respond(transaction, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let answered = |told: &Told| matches!(told, Told::Response(200, _));
    assert!(net.has(from.0, answered), "{method:?}");
}

/// Whatever a side writes of its network into headers and descriptions stays there, in whichever message, whichever way it goes.
#[test]
fn secrets_in_every_place_do_not_pass() {
    let config = PLAIN.replace("kind='core'", "kind='core'\nheaders='known'");
    let mut net = Neighbourhood::new(&config, 3);
    let mut quiet = Manners::answering(SDP_A);
    (quiet.answer, quiet.inside, quiet.outside) = (None, None, None);
    quiet.progress.clear();
    let alice = net.phone("10.1.0.1:5060", quiet.clone());
    let bob = net.phone("10.2.0.1:5060", quiet);
    let headers = secret_headers();
    let (sdp_a, sdp_b) = (secret_sdp(SDP_A), secret_sdp(SDP_B));
    let offer = Content::sdp(sdp_a.as_bytes()).with(&headers);
    let answer = Content::sdp(sdp_b.as_bytes()).with(&headers);
    // A call that is refused, and one that is cancelled.
    for cancelled in [false, true] {
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
        let theirs = net.last(bob, |told| *told == Told::Offered).leg.unwrap();
        match cancelled {
            false => net.tell(bob, |endpoint, now| {
                endpoint.reject(theirs, 486, &answer, now).unwrap();
            }),
            true => {
                net.tell(bob, |endpoint, now| {
                    endpoint.progress(theirs, 180, &answer, false, now).unwrap();
                });
                net.run(seconds(1));
                net.tell(alice, |endpoint, now| {
                    let content = Content::default().with(&headers);
                    endpoint.cancel(leg, &content, now).unwrap();
                });
            }
        }
        net.run(seconds(1));
    }
    assert!(net.has(bob, |told| *told == Told::Cancelled));
    // Calls that stand, ended by either side.
    for ends in [0, 1] {
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
        net.run(seconds(1));
        let theirs = net.last(bob, |told| *told == Told::Offered).leg.unwrap();
        net.tell(bob, |endpoint, now| {
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
        net.tell(phone, |endpoint, now| {
            let content = Content::default().with(&headers);
            endpoint.bye(leg, &content, now).unwrap();
        });
        net.run(seconds(1));
    }
    // Outside of calls.
    for (from, hop, uri, to) in [
        (alice, OUT, "sip:bob@192.0.2.1", bob),
        (bob, IN, "sip:1000@198.51.100.1", alice),
    ] {
        let before = net.seen(to).len();
        send(&mut net, from, hop, Method::Message, uri, &headers);
        let came = net.seen(to)[before..]
            .iter()
            .find_map(|seen| match seen.told {
                Told::Outside(transaction) => Some(transaction),
                _ => None,
            });
        if let Some(transaction) = came {
            net.tell(to, |endpoint, now| {
                let content = Content::default().with(&headers);
                endpoint.respond(transaction, 486, &content, now).unwrap();
            });
            net.run(seconds(1));
            assert!(net.has(from, |told| *told == Told::OutsideResponse(486)));
        }
    }
    assert_no_secrets(&net, &[alice, bob]);
    let offered = net.find(bob, |told| *told == Told::Offered);
    assert_eq!(
        offered.header("Call-Info"),
        "<sip:198.51.100.1:5060>;answer-after=0"
    );
    assert_eq!(offered.header("Referred-By"), "<sip:bob@198.51.100.1:5060>");
    assert!(offered.body().contains("\r\ns=-\r\n"), "{}", offered.text());
}

#[test]
fn trusted_sides_see_everything_and_rules_and_lists_come_after() {
    let config = format!(
        "{}[[rules]]\ndirection='out'\ninterface='out'\ndo=[{{add='X-Ours',value='mine'}},{{set='Alert-Info',value='<http://phones/ring>'}}]\n",
        PLAIN.replace(
            "kind='access'",
            "kind='access'\npass_headers=['x-node','Error-Info']"
        )
    );
    let mut net = Neighbourhood::new(&config, 3);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let mut quiet = Manners::answering(SDP_B);
    quiet.answer = None;
    let bob = net.phone("10.2.0.1:5060", quiet);
    let headers = secret_headers();
    let sdp = secret_sdp(SDP_A);
    let offer = Content::sdp(sdp.as_bytes()).with(&headers);
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    // Towards the core nothing is hidden.
    let offered = net.find(bob, |told| *told == Told::Offered);
    assert_eq!(offered.header("X-Asterisk-HangupCause"), "secret-host");
    assert!(offered.header("Reason").contains("10.77.0.7"));
    assert!(offered.body().contains("s=secret-host\r\n"));
    let leg = offered.leg.unwrap();
    net.tell(bob, |endpoint, now| {
        let content = Content::sdp(sdp.as_bytes()).with(&headers);
        endpoint.answer(leg, 200, &content, now).unwrap();
    });
    net.run(seconds(1));
    let answered = net.find(alice, |told| *told == Told::Answered);
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
