//! What one side may never see of the other: every byte of everything that a border does is searched.

use crate::neighbourhood;

use engine::Transport;
use neighbourhood::*;
use sip::{Content, Flow, Outside, Target};
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
