//! The border at the edge of a mobile network: preconditions pass from end to end, early media waits for its
//! authorisation, charging vectors and identities of registered phones are added at the trust boundary.

use crate::virtual_network;

use sip::{LegId, MessageContent, Prack};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

const IN: &str = "198.51.100.1:5060";

fn second() -> Duration {
    Duration::from_secs(1)
}

/// [`PLAIN`] with more keys of its access interface.
fn with(keys: &str) -> String {
    PLAIN.replace("kind='access'\n", &format!("kind='access'\n{keys}\n"))
}

/// Alice is a phone, Bob the core; the callee rings reliably and waits.
fn pair(config: &str) -> (VirtualNetwork, usize, usize) {
    let mut net = VirtualNetwork::new(config, 1);
    let waiting = |sdp| PhoneBehaviour {
        progress: Vec::new(),
        answer: None,
        ..PhoneBehaviour::answering(sdp)
    };
    let alice = net.phone("10.1.0.1:5060", waiting(SDP_A));
    let bob = net.phone("10.2.0.1:5060", waiting(SDP_B));
    (net, alice, bob)
}

fn offered(net: &VirtualNetwork, phone: usize) -> LegId {
    net.find(phone, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap()
}

const OFFER: &str = "a=curr:qos local none\r\na=curr:qos remote none\r\na=des:qos mandatory local sendrecv\r\na=des:qos none remote sendrecv\r\n";
const ANSWER: &str = "a=curr:qos local none\r\na=curr:qos remote none\r\na=des:qos mandatory local sendrecv\r\na=des:qos mandatory remote sendrecv\r\na=conf:qos remote sendrecv\r\n";

const REQUIRE: Edit<'static> = Edit::Add {
    id: HeaderId::Require,
    value: b"precondition",
};
const SUPPORTED: Edit<'static> = Edit::Replace {
    id: HeaderId::Supported,
    value: b"100rel, precondition",
};

/// The lines about preconditions, in order.
fn precondition_lines(body: &str) -> String {
    let lines = body.split_inclusive('\n');
    let names = ["a=curr:", "a=des:", "a=conf:"];
    lines
        .filter(|line| names.iter().any(|name| line.starts_with(name)))
        .collect()
}

#[test]
fn preconditions_are_relayed_end_to_end() {
    for config in [
        PLAIN.to_owned(),
        format!("{PLAIN}[[route]]\ntrunk='pbx'\nmedia='bypass'\n"),
    ] {
        let (mut net, alice, bob) = pair(&config);
        let offer = format!("{SDP_A}{OFFER}");
        let content = MessageContent::sdp(offer.as_bytes());
        let edits = [SUPPORTED, REQUIRE];
        let caller = net.call(alice, "sip:bob@192.0.2.1", OUT, &content.with(&edits));
        net.run(second());
        let invite = net.find(bob, |event| *event == PhoneEvent::Offered);
        assert_eq!(precondition_lines(&invite.body()), OFFER);
        assert!(invite.header("Supported").contains("precondition"));
        assert_eq!(invite.header("Require"), "precondition");
        let callee = invite.leg.unwrap();
        let answer = format!("{SDP_B}{ANSWER}");
        net.command(bob, |endpoint, now| {
            let content = MessageContent::sdp(answer.as_bytes());
            let edits = [REQUIRE];
            let content = content.with(&edits);
            endpoint.progress(callee, 183, &content, true, now).unwrap();
        });
        net.run(second());
        let progress = net.find(alice, |event| {
            matches!(event, PhoneEvent::Progressed(183, true, _))
        });
        assert_eq!(precondition_lines(&progress.body()), ANSWER);
        let required = progress.header("Require");
        assert!(
            required.contains("precondition")
                || progress.text().contains("\r\nRequire: precondition"),
            "{}",
            progress.text()
        );
        assert!(net.has(bob, |event| matches!(event, PhoneEvent::Pracked(_))));
        // UPDATE with offers, the caller's and then the callee's.
        let reserved = precondition_lines(&offer).replace("local none", "local sendrecv");
        for (from, to, leg, sdp) in [(alice, bob, caller, SDP_A), (bob, alice, callee, SDP_B)] {
            let offer = format!("{sdp}{reserved}");
            net.command(from, |endpoint, now| {
                let content = MessageContent::sdp(offer.as_bytes());
                let edits = [REQUIRE];
                let content = content.with(&edits);
                endpoint
                    .request(leg, Method::Update, &content, now)
                    .unwrap();
            });
            net.run(second());
            let update = net.find(to, |event| matches!(event, PhoneEvent::Request(_)));
            assert_eq!(update.method(), "UPDATE");
            assert_eq!(precondition_lines(&update.body()), reserved);
            assert_eq!(update.header("Require"), "precondition");
            assert!(net.has(from, |event| matches!(event, PhoneEvent::Response(200, _))));
        }
        net.command(bob, |endpoint, now| {
            endpoint
                .progress(callee, 180, &MessageContent::default(), true, now)
                .unwrap();
            endpoint
                .answer(callee, 200, &MessageContent::default(), now)
                .unwrap();
        });
        net.run(second());
        assert!(net.has(alice, |event| matches!(
            event,
            PhoneEvent::Progressed(180, true, _)
        )));
        let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
        assert!(answered.body().is_empty(), "the 183 had the answer");
        net.command(alice, |endpoint, now| {
            endpoint
                .bye(caller, &MessageContent::default(), now)
                .unwrap();
        });
        net.run(second());
        net.assert_quiet();
    }
}

/// RFC 3261 section 13.2.1: a description in a later response to the INVITE is no offer.
#[test]
fn repeated_description_leaves_no_open_offer() {
    let (mut net, alice, bob) = pair(PLAIN);
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let caller = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(second());
    let callee = offered(&net, bob);
    for status in [183, 180] {
        net.command(bob, |endpoint, now| {
            let content = MessageContent::sdp(SDP_B.as_bytes());
            endpoint
                .progress(callee, status, &content, true, now)
                .unwrap();
        });
        net.run(second());
    }
    assert!(net.has(alice, |event| matches!(
        event,
        PhoneEvent::Progressed(180, true, _)
    )));
    for (from, leg, sdp) in [(alice, caller, SDP_A), (bob, callee, SDP_B)] {
        net.command(from, |endpoint, now| {
            let content = MessageContent::sdp(sdp.as_bytes());
            endpoint
                .request(leg, Method::Update, &content, now)
                .unwrap();
        });
        net.run(second());
        assert!(
            net.has(from, |event| matches!(event, PhoneEvent::Response(200, _))),
            "{:?}",
            net.phone_events(from)
        );
    }
    net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(SDP_B.as_bytes());
        endpoint.answer(callee, 200, &content, now).unwrap();
    });
    net.run(second());
    net.command(alice, |endpoint, now| {
        endpoint
            .bye(caller, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(second());
    net.assert_quiet();
}

/// RFC 3262 section 3: the caller requires reliable responses, so that it acknowledges more of them than the callee
/// sent.
#[test]
fn pracks_acknowledge_the_response_of_their_rack() {
    let (mut net, alice, bob) = pair(PLAIN);
    let required = [Edit::Add {
        id: HeaderId::Require,
        value: b"100rel",
    }];
    // The offer is that of the callee.
    let content = MessageContent::default().with(&required);
    let caller = net.call_with(alice, "sip:bob@192.0.2.1", OUT, &content, |invite| {
        invite.prack = Prack::Handler;
    });
    net.run(second());
    let callee = offered(&net, bob);
    net.command(bob, |endpoint, now| {
        let ringing = MessageContent::default();
        endpoint
            .progress(callee, 180, &ringing, false, now)
            .unwrap();
        let content = MessageContent::sdp(SDP_B.as_bytes());
        endpoint.progress(callee, 183, &content, true, now).unwrap();
    });
    net.run(second());
    let is_prack = |entry: &&LogEntry| matches!(entry.event, PhoneEvent::Pracked(_));
    let fork = |net: &VirtualNetwork, status: u16| {
        let progress = |event: &PhoneEvent| match event {
            PhoneEvent::Progressed(found, true, fork) if *found == status => *fork,
            _ => None,
        };
        net.phone_events(alice).iter().find_map(progress).unwrap()
    };
    let ringing = fork(&net, 180);
    net.command(alice, |endpoint, now| {
        endpoint
            .prack(caller, ringing, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(second());
    assert_eq!(net.log(bob).iter().filter(is_prack).count(), 0);
    let early = fork(&net, 183);
    net.command(alice, |endpoint, now| {
        let content = MessageContent::sdp(SDP_A.as_bytes());
        endpoint.prack(caller, early, &content, now).unwrap();
    });
    net.run(second());
    let pracks: Vec<&LogEntry> = net.log(bob).iter().filter(is_prack).collect();
    assert_eq!(pracks.len(), 1, "{:?}", net.phone_events(bob));
    assert!(
        pracks[0].body().contains("m=audio "),
        "{}",
        pracks[0].text()
    );
    net.command(bob, |endpoint, now| {
        let content = MessageContent::default();
        endpoint.answer(callee, 200, &content, now).unwrap();
    });
    net.run(second());
    net.command(alice, |endpoint, now| {
        endpoint
            .bye(caller, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(second());
    net.assert_quiet();
}

#[test]
fn precondition_failure_is_relayed_with_its_description() {
    let config = format!("{PLAIN}[[route]]\ntrunk='pbx'\nmedia='bypass'\n");
    let (mut net, alice, bob) = pair(&config);
    let offer = format!("{SDP_A}{OFFER}");
    net.call(
        alice,
        "sip:bob@192.0.2.1",
        OUT,
        &MessageContent::sdp(offer.as_bytes()),
    );
    net.run(second());
    let callee = offered(&net, bob);
    let refusal = format!("{SDP_B}a=des:qos failure local sendrecv\r\n");
    net.command(bob, |endpoint, now| {
        let content = MessageContent::sdp(refusal.as_bytes());
        endpoint.reject(callee, 580, &content, now).unwrap();
    });
    net.run(second());
    let failed = net.find(alice, |event| matches!(event, PhoneEvent::Failed(_, 580)));
    assert_eq!(
        precondition_lines(&failed.body()),
        "a=des:qos failure local sendrecv\r\n"
    );
    net.assert_quiet();
}

fn port_of(body: &str) -> u16 {
    let rest = body.split("m=audio ").nth(1).unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// Whether packets pass: from the callee, and from the caller.
fn media_passes(
    net: &mut VirtualNetwork,
    caller: (&str, u16),
    called: (&str, u16),
) -> (bool, bool) {
    let packet = |sequence: u16| {
        let mut packet = vec![0x80, 0, 0, 0, 0, 0, 0, 160, 1, 2, 3, 4];
        packet[2..4].copy_from_slice(&sequence.to_be_bytes());
        packet.extend([0x55; 160]);
        packet
    };
    net.media.clear();
    for sequence in 0..5 {
        net.send_raw(
            caller.0,
            &format!("{}:{}", side_of(caller.0), caller.1),
            &packet(sequence),
        );
        net.send_raw(
            called.0,
            &format!("{}:{}", side_of(called.0), called.1),
            &packet(sequence),
        );
    }
    net.run(second());
    let came = |to: &str| net.media.iter().any(|(t, _, _)| *t == to.parse().unwrap());
    (came(caller.0), came(called.0))
}

fn side_of(address: &str) -> &'static str {
    match address.starts_with("10.1.") {
        true => "192.0.2.1",
        false => "198.51.100.1",
    }
}

fn early(value: &'static [u8]) -> [Edit<'static>; 1] {
    [Edit::Add {
        id: HeaderId::PEarlyMedia,
        value,
    }]
}

#[test]
fn early_media_waits_for_its_authorisation() {
    for (gated, before) in [(true, (false, false)), (false, (true, true))] {
        let config = with(if gated { "early_media='gate'" } else { "" });
        let (mut net, alice, bob) = pair(&config);
        let said = early(b"supported");
        let offer = MessageContent::sdp(SDP_A.as_bytes());
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer.with(&said));
        net.run(second());
        let invite = net.find(bob, |event| *event == PhoneEvent::Offered);
        assert_eq!(invite.header("P-Early-Media"), "supported");
        let (callee, towards_bob) = (invite.leg.unwrap(), port_of(&invite.body()));
        net.command(bob, |endpoint, now| {
            let content = MessageContent::sdp(SDP_B.as_bytes());
            endpoint.progress(callee, 183, &content, true, now).unwrap();
        });
        net.run(second());
        let progress = net.find(alice, |event| {
            matches!(event, PhoneEvent::Progressed(183, ..))
        });
        let towards_alice = port_of(&progress.body());
        let try_it = |net: &mut VirtualNetwork| {
            media_passes(
                net,
                ("10.1.0.1:4000", towards_alice),
                ("10.2.0.1:5000", towards_bob),
            )
        };
        assert_eq!(try_it(&mut net), before, "early media is not authorised");
        if gated {
            for (value, open) in [
                (&b"sendonly"[..], (true, false)),
                (b"inactive", (false, false)),
                (b"sendrecv", (true, true)),
            ] {
                net.command(bob, |endpoint, now| {
                    let said = early(match value {
                        b"sendonly" => b"sendonly",
                        b"inactive" => b"inactive",
                        _ => b"sendrecv",
                    });
                    let content = MessageContent::default().with(&said);
                    endpoint
                        .request(callee, Method::Update, &content, now)
                        .unwrap();
                });
                net.run(second());
                let update = net.last(alice, |event| matches!(event, PhoneEvent::Request(_)));
                assert_eq!(update.header("P-Early-Media").as_bytes(), value);
                assert_eq!(try_it(&mut net), open, "{}", value.escape_ascii());
            }
            net.command(bob, |endpoint, now| {
                let said = early(b"inactive");
                let content = MessageContent::default().with(&said);
                endpoint
                    .progress(callee, 180, &content, false, now)
                    .unwrap();
            });
            net.run(second());
            assert_eq!(try_it(&mut net), (false, false));
        }
        net.command(bob, |endpoint, now| {
            endpoint
                .answer(callee, 200, &MessageContent::default(), now)
                .unwrap();
        });
        net.run(second());
        assert_eq!(
            try_it(&mut net),
            (true, true),
            "media passes after the answer"
        );
        net.command(bob, |endpoint, now| {
            endpoint
                .bye(callee, &MessageContent::default(), now)
                .unwrap();
        });
        net.run(second());
        net.assert_quiet();
    }
}

#[test]
fn phones_authorise_no_early_media() {
    let config = with("early_media='gate'\nregister='local'") + "[[route]]\nregistered=true\n";
    let (mut net, alice, bob) = pair(&config);
    register(&mut net, alice);
    let offer = MessageContent::sdp(SDP_B.as_bytes());
    net.call(bob, "sip:1000@198.51.100.1", IN, &offer);
    net.run(second());
    let invite = net.find(alice, |event| *event == PhoneEvent::Offered);
    let (callee, towards_alice) = (invite.leg.unwrap(), port_of(&invite.body()));
    net.command(alice, |endpoint, now| {
        let said = early(b"sendrecv");
        let content = MessageContent::sdp(SDP_A.as_bytes());
        endpoint
            .progress(callee, 183, &content.with(&said), true, now)
            .unwrap();
    });
    net.run(second());
    let progress = net.find(bob, |event| {
        matches!(event, PhoneEvent::Progressed(183, ..))
    });
    assert!(
        !progress.text().contains("P-Early-Media"),
        "{}",
        progress.text()
    );
    let towards_bob = port_of(&progress.body());
    let try_it = |net: &mut VirtualNetwork| {
        media_passes(
            net,
            ("10.2.0.1:5000", towards_bob),
            ("10.1.0.1:4000", towards_alice),
        )
    };
    assert_eq!(try_it(&mut net), (false, false));
    net.command(alice, |endpoint, now| {
        endpoint
            .answer(callee, 200, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(second());
    assert_eq!(try_it(&mut net), (true, true));
}

fn register(net: &mut VirtualNetwork, phone: usize) {
    net.send_register(
        phone,
        &RegisterRequest::new("1000", "<sip:1000@10.1.0.1:5060>"),
    );
    net.run(second());
    assert!(net.has(phone, |event| *event
        == PhoneEvent::OutOfDialogResponse(200)));
}

#[test]
fn registered_phone_is_asserted() {
    for (keys, asserted) in [
        ("assert='registered'\nregister='local'", true),
        ("register='local'", false),
    ] {
        let config = with(keys) + "[[route]]\ntrunk='pbx'\n";
        let (mut net, alice, bob) = pair(&config);
        let mallory = net.phone("10.1.0.66:5060", PhoneBehaviour::answering(SDP_A));
        register(&mut net, alice);
        let edits = [Edit::Add {
            id: HeaderId::PPreferredIdentity,
            value: b"\"Alice\" <sip:1000@ims.example>",
        }];
        let offer = MessageContent::sdp(SDP_A.as_bytes());
        for (phone, is_asserted) in [(alice, asserted), (mallory, false)] {
            net.call(phone, "sip:bob@192.0.2.1", OUT, &offer.with(&edits));
            net.run(second());
            let invite = net.last(bob, |event| *event == PhoneEvent::Offered);
            assert!(!invite.text().contains("P-Preferred-Identity"));
            let expected = match is_asserted {
                true => "\"Alice\" <sip:1000@198.51.100.1:5060>",
                false => "",
            };
            let found = invite.text().lines().find_map(|line| {
                line.strip_prefix("P-Asserted-Identity: ")
                    .map(str::to_owned)
            });
            assert_eq!(found.unwrap_or_default(), expected, "{}", invite.text());
        }
        // A registered phone must not use the identity of another.
        let edits = [Edit::Add {
            id: HeaderId::PPreferredIdentity,
            value: b"<sip:2000@ims.example>",
        }];
        net.call(alice, "sip:bob@192.0.2.1", OUT, &offer.with(&edits));
        net.run(second());
        let invite = net.last(bob, |event| *event == PhoneEvent::Offered);
        assert!(!invite.text().contains("2000"), "{}", invite.text());
    }
}

fn vector(entry: &LogEntry) -> Option<String> {
    let text = entry.text();
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("P-Charging-Vector: ").map(str::to_owned))
}

#[test]
fn charging_vectors_are_added_for_phones_and_stay_in_the_core() {
    let (mut net, alice, bob) = pair(&with("charging_vector='generate'"));
    let forged = [Edit::Add {
        id: HeaderId::PChargingVector,
        value: b"icid-value=forged",
    }];
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer.with(&forged));
    net.run(second());
    let first = vector(net.find(bob, |event| *event == PhoneEvent::Offered)).unwrap();
    assert!(
        first.starts_with("icid-value=") && !first.contains("forged"),
        "{first}"
    );
    assert!(first.ends_with(";icid-generated-at=192.0.2.1"), "{first}");
    let callee = offered(&net, bob);
    net.command(bob, |endpoint, now| {
        let own = [Edit::Add {
            id: HeaderId::PChargingVector,
            value: b"icid-value=core;term-ioi=core.example",
        }];
        let content = MessageContent::sdp(SDP_B.as_bytes());
        endpoint
            .answer(callee, 200, &content.with(&own), now)
            .unwrap();
    });
    net.run(second());
    let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
    assert_eq!(vector(answered), None, "not for phones");
    let acked = net.find(bob, |event| *event == PhoneEvent::Acked);
    assert_eq!(vector(acked), None, "ACK has none");
    net.command(alice, |endpoint, now| {
        endpoint.request(leg, Method::Update, &offer, now).unwrap();
    });
    net.run(second());
    let update = net.find(bob, |event| matches!(event, PhoneEvent::Request(_)));
    assert_eq!(
        vector(update).as_ref(),
        Some(&first),
        "one vector for the whole call"
    );
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(second());
    let second_call = vector(net.last(bob, |event| *event == PhoneEvent::Offered)).unwrap();
    assert_ne!(second_call, first, "another call has another vector");
}

#[test]
fn responses_carry_the_charging_vector_of_the_request() {
    let keys = "charging_vector='generate'\nregister='local'";
    for (keys, kept) in [(keys, true), ("register='local'", false)] {
        let config = with(keys) + "[[route]]\nregistered=true\n";
        let (mut net, alice, bob) = pair(&config);
        register(&mut net, alice);
        let own = [Edit::Add {
            id: HeaderId::PChargingVector,
            value: b"icid-value=core;orig-ioi=core.example",
        }];
        let offer = MessageContent::sdp(SDP_B.as_bytes());
        net.call(bob, "sip:1000@198.51.100.1", IN, &offer.with(&own));
        net.run(second());
        let invite = net.find(alice, |event| *event == PhoneEvent::Offered);
        assert_eq!(vector(invite), None);
        let callee = invite.leg.unwrap();
        net.command(alice, |endpoint, now| {
            endpoint
                .progress(callee, 180, &MessageContent::default(), false, now)
                .unwrap();
            let content = MessageContent::sdp(SDP_A.as_bytes());
            endpoint.answer(callee, 200, &content, now).unwrap();
        });
        net.run(second());
        let expected = kept.then(|| "icid-value=core;orig-ioi=core.example".to_owned());
        let ringing = net.find(bob, |event| {
            matches!(event, PhoneEvent::Progressed(180, ..))
        });
        assert_eq!(vector(ringing), expected);
        assert_eq!(
            vector(net.find(bob, |event| *event == PhoneEvent::Answered)),
            expected
        );
    }
}
