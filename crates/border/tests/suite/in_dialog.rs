//! In-dialog behaviour: provisional responses, offers and answers, relayed requests, transfers.

use crate::virtual_network;

use engine::{EventKind, Transport};
use sip::{Body, Ending, Failure, LegId, MessageContent, Prack};
use std::time::Duration;
use virtual_network::*;
use wire::sip::{Edit, HeaderId, Method};

/// An established call: network, both phones, both legs.
fn established(config: &str) -> (VirtualNetwork, [usize; 2], [LegId; 2]) {
    let (mut net, alice, bob) = pair(config);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let other = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    assert!(net.has(bob, |event| *event == PhoneEvent::Acked));
    (net, [alice, bob], [leg, other])
}

/// A REFER to Carol, within the dialog of `leg`.
fn refer_to_carol(net: &mut VirtualNetwork, phone: usize, leg: LegId) {
    let edits = [Edit::Add {
        id: HeaderId::ReferTo,
        value: b"<sip:carol@198.51.100.1>",
    }];
    net.command(phone, |endpoint, now| {
        let content = MessageContent::default().with(&edits);
        endpoint.request(leg, Method::Refer, &content, now).unwrap();
    });
}

/// An INFO within the dialog of `leg` reaches the phone `to`.
fn assert_connected(net: &mut VirtualNetwork, (from, leg): (usize, LegId), to: usize) {
    net.command(from, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.log(to).iter().any(|entry| entry.method() == "INFO"));
}

fn hang_up(net: &mut VirtualNetwork, phone: usize, leg: LegId) {
    net.command(phone, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
    net.run(seconds(1));
    net.assert_quiet();
}

fn is_in_dialog(event: &PhoneEvent) -> bool {
    matches!(event, PhoneEvent::Request(_))
}

#[test]
fn reliable_provisionals_are_acknowledged_from_end_to_end() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.progress = vec![(183, true)];
    net.phones[bob].log.behaviour.answer = None;
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let early = net.find(alice, |event| {
        matches!(event, PhoneEvent::Progressed(183, true, _))
    });
    assert!(
        early.body().contains("c=IN IP4 192.0.2.1"),
        "{}",
        early.text()
    );
    assert!(net.has(bob, |event| matches!(event, PhoneEvent::Pracked(_))));
    let called = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    net.command(bob, |endpoint, now| {
        endpoint
            .answer(called, 200, &MessageContent::default(), now)
            .unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    hang_up(&mut net, alice, leg);
}

#[test]
fn caller_without_100rel_gets_unreliable_provisionals() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.progress = vec![(183, true)];
    let plain = [Edit::Remove(HeaderId::Supported)];
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&plain));
    net.run(seconds(2));
    assert!(net.has(alice, |event| matches!(
        event,
        PhoneEvent::Progressed(183, false, _)
    )));
    assert!(net.has(bob, |event| matches!(event, PhoneEvent::Pracked(_))));
    assert!(net.has(alice, |event| *event == PhoneEvent::Answered));
    hang_up(&mut net, alice, leg);
}

#[test]
fn early_media_without_reliability() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.progress = vec![(180, false), (183, false), (183, false)];
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let answer = net
        .find(alice, |event| *event == PhoneEvent::Answered)
        .body();
    for entry in net
        .log(alice)
        .iter()
        .filter(|entry| matches!(entry.event, PhoneEvent::Progressed(183, ..)))
    {
        assert_eq!(entry.body(), answer, "one early dialog, one description");
    }
    assert_eq!(net.border.census().ports, 2);
    hang_up(&mut net, alice, leg);
}

#[test]
fn hold_and_resume_are_relayed_with_rewritten_descriptions() {
    let (mut net, [alice, bob], [leg, _]) = established(PLAIN);
    let first = net.find(bob, |event| *event == PhoneEvent::Offered).body();
    let hold = SDP_A.replace("1 1 IN", "1 2 IN") + "a=sendonly\r\n";
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
    let entry = net.find(bob, is_in_dialog);
    assert_eq!(entry.method(), "INVITE");
    assert!(entry.body().contains("a=sendonly") && !entry.body().contains("10.1.0.1"));
    assert!(entry.body().contains("o=- 1 2 IN IP4 198.51.100.1"));
    let port = |body: &str| {
        body.split("m=audio ")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(port(&first), port(&entry.body()), "the port is kept");
    assert!(net.has(alice, |event| matches!(event, PhoneEvent::Response(200, _))));
    assert_eq!(
        net.phone_events(bob)
            .iter()
            .filter(|event| **event == PhoneEvent::Acked)
            .count(),
        2
    );
    assert_eq!(net.border.census().ports, 2);
    hang_up(&mut net, alice, leg);
}

/// A session description in a provisional response to a re-INVITE would reveal addresses; the 2xx has the answer.
#[test]
fn provisional_response_to_a_reinvite_has_no_description() {
    let bypass = PLAIN.to_owned() + "[[route]]\ntrunk='pbx'\nmedia='bypass'\n";
    for (config, has_description) in [(PLAIN, false), (bypass.as_str(), true)] {
        let (mut net, [alice, bob], [leg, _]) = established(config);
        net.phones[bob].log.behaviour.inside = None;
        net.command(alice, |endpoint, now| {
            endpoint
                .request(leg, Method::Invite, &offer(), now)
                .unwrap();
        });
        net.run(seconds(1));
        let PhoneEvent::Request(transaction) = net.find(bob, is_in_dialog).event else {
            panic!()
        };
        for status in [183, 200] {
            net.command(bob, |endpoint, now| {
                let answer = MessageContent::sdp(SDP_B.as_bytes());
                endpoint.respond(transaction, status, &answer, now).unwrap();
            });
            net.run(seconds(1));
            let response = net
                .find(
                    alice,
                    |event| matches!(event, PhoneEvent::Response(found, _) if *found == status),
                )
                .clone();
            let text = response.text();
            assert_eq!(text.contains("10.2.0.1"), has_description, "{text}");
            assert_eq!(
                response.body().is_empty(),
                status == 183 && !has_description
            );
        }
        hang_up(&mut net, alice, leg);
    }
}

/// Neither side of a re-INVITE is offered reliable provisional responses.
#[test]
fn reinvite_is_forwarded_without_100rel() {
    let (mut net, [alice, bob], [leg, _]) = established(PLAIN);
    let required = [Edit::Add {
        id: HeaderId::Require,
        value: b"100rel",
    }];
    net.command(alice, |endpoint, now| {
        let content = offer().with(&required);
        endpoint
            .request(leg, Method::Invite, &content, now)
            .unwrap();
    });
    net.run(seconds(1));
    let reinvite = net.find(bob, is_in_dialog);
    assert_eq!(
        reinvite.header("Supported"),
        "timer, replaces, precondition"
    );
    assert_eq!(reinvite.header("Require"), "");
    assert!(net.has(alice, |event| matches!(event, PhoneEvent::Response(200, _))));
    hang_up(&mut net, alice, leg);
}

#[test]
fn refused_offer_changes_nothing() {
    let (mut net, [alice, bob], [leg, _]) = established(PLAIN);
    net.phones[bob].log.behaviour.inside = Some(488);
    let video = format!("{SDP_A}m=video 4002 RTP/AVP 31\r\n");
    net.command(alice, |endpoint, now| {
        endpoint
            .request(
                leg,
                Method::Invite,
                &MessageContent::sdp(video.as_bytes()),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(alice, |event| matches!(event, PhoneEvent::Response(488, _))));
    assert_eq!(net.border.census().ports, 2);
    assert_eq!(net.border.calls().len(), 1);
    hang_up(&mut net, alice, leg);
}

#[test]
fn media_lines_are_added_and_removed() {
    let (mut net, [alice, bob], [leg, _]) = established(PLAIN);
    let change = |net: &mut VirtualNetwork, offer: String, answer: String| {
        net.phones[bob].log.behaviour.sdp = answer;
        net.command(alice, |endpoint, now| {
            endpoint
                .request(
                    leg,
                    Method::Invite,
                    &MessageContent::sdp(offer.as_bytes()),
                    now,
                )
                .unwrap();
        });
        net.run(seconds(1));
        net.border.census().ports
    };
    let with = |text: &str, line: &str| format!("{text}{line}\r\n");
    let ports = change(
        &mut net,
        with(SDP_A, "m=video 4002 RTP/AVP 31"),
        with(SDP_B, "m=video 5002 RTP/AVP 31"),
    );
    assert_eq!(ports, 4);
    let ports = change(
        &mut net,
        with(SDP_A, "m=video 0 RTP/AVP 31"),
        with(SDP_B, "m=video 0 RTP/AVP 31"),
    );
    assert_eq!(ports, 2);
    hang_up(&mut net, alice, leg);
}

#[test]
fn update_is_relayed_with_its_answer() {
    let (mut net, [alice, bob], [_, other]) = established(PLAIN);
    let moved = SDP_B.replace("5000", "5010");
    net.command(bob, |endpoint, now| {
        endpoint
            .request(
                other,
                Method::Update,
                &MessageContent::sdp(moved.as_bytes()),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    let entry = net.find(alice, is_in_dialog);
    assert_eq!(entry.method(), "UPDATE");
    assert!(entry.body().contains("c=IN IP4 192.0.2.1"));
    let answer = net.find(bob, |event| matches!(event, PhoneEvent::Response(200, _)));
    assert!(
        answer.body().contains("c=IN IP4 198.51.100.1"),
        "{}",
        answer.text()
    );
    hang_up(&mut net, bob, other);
}

#[test]
fn glare_gets_491_and_the_call_continues() {
    let (mut net, [alice, bob], [leg, other]) = established(PLAIN);
    net.command(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &offer(), now)
            .unwrap();
    });
    net.command(bob, |endpoint, now| {
        endpoint
            .request(
                other,
                Method::Invite,
                &MessageContent::sdp(SDP_B.as_bytes()),
                now,
            )
            .unwrap();
    });
    net.run(seconds(3));
    let refused = |phone| net.has(phone, |event| matches!(event, PhoneEvent::Response(491, _)));
    assert!(refused(alice) || refused(bob));
    assert_eq!(net.border.calls().len(), 1);
    assert_eq!(net.border.census().ports, 2);
    hang_up(&mut net, alice, leg);
}

#[test]
fn late_offers_are_answered_in_the_ack() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[alice].log.behaviour.sdp = "late".into();
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &MessageContent::default());
    net.run(seconds(1));
    let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
    assert!(
        answered.body().contains("c=IN IP4 192.0.2.1"),
        "{}",
        answered.text()
    );
    let ack = net.find(bob, |event| *event == PhoneEvent::Acked);
    assert!(
        ack.body().contains("c=IN IP4 198.51.100.1"),
        "{}",
        ack.text()
    );
    assert_eq!(net.border.census().ports, 2);
    hang_up(&mut net, alice, leg);
}

#[test]
fn offer_in_prack_is_answered_in_its_200() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.progress = vec![(183, true)];
    net.phones[bob].log.behaviour.answer = None;
    let leg = net.call_with(alice, "sip:bob@192.0.2.1", OUT, &offer(), |invite| {
        invite.prack = Prack::Handler;
    });
    net.run(seconds(1));
    let fork = net
        .phone_events(alice)
        .into_iter()
        .find_map(|event| match event {
            PhoneEvent::Progressed(183, true, fork) => fork,
            _ => None,
        })
        .unwrap();
    let second = SDP_A.replace("4000", "4444");
    net.command(alice, |endpoint, now| {
        endpoint
            .prack(leg, fork, &MessageContent::sdp(second.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(1));
    let prack = net.find(bob, |event| matches!(event, PhoneEvent::Pracked(_)));
    assert!(
        prack.body().contains("c=IN IP4 198.51.100.1"),
        "{}",
        prack.text()
    );
    let answer = net.find(alice, |event| matches!(event, PhoneEvent::Response(200, _)));
    assert!(
        answer.body().contains("c=IN IP4 192.0.2.1"),
        "{}",
        answer.text()
    );
    let called = net
        .find(bob, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    net.command(bob, |endpoint, now| {
        endpoint
            .answer(called, 200, &MessageContent::default(), now)
            .unwrap()
    });
    net.run(seconds(1));
    hang_up(&mut net, alice, leg);
}

#[test]
fn update_before_the_answer() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.progress = vec![(183, true)];
    net.phones[bob].log.behaviour.answer = None;
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let second = SDP_A.replace("4000", "4444");
    net.command(alice, |endpoint, now| {
        endpoint
            .request(
                leg,
                Method::Update,
                &MessageContent::sdp(second.as_bytes()),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    assert_eq!(net.find(bob, is_in_dialog).method(), "UPDATE");
    let answer = net.last(alice, |event| matches!(event, PhoneEvent::Response(200, _)));
    assert!(
        answer.body().contains("c=IN IP4 192.0.2.1"),
        "{}",
        answer.text()
    );
    assert_eq!(net.border.census().ports, 2);
    net.command(alice, |endpoint, now| {
        endpoint
            .cancel(leg, &MessageContent::default(), now)
            .unwrap()
    });
    net.run(seconds(1));
    net.assert_quiet();
}

#[test]
fn other_requests_are_relayed_with_their_bodies() {
    let (mut net, [alice, bob], [leg, other]) = established(PLAIN);
    let methods = [
        Method::Info,
        Method::Message,
        Method::Options,
        Method::Notify,
    ];
    for method in methods {
        let edits = [Edit::Add {
            id: HeaderId::Event,
            value: b"x",
        }];
        let content = MessageContent {
            body: Body::New {
                content_type: b"application/dtmf-relay",
                bytes: b"Signal=5\r\n",
            },
            edits: &edits,
            ..MessageContent::default()
        };
        net.command(alice, |endpoint, now| {
            endpoint.request(leg, method, &content, now).unwrap();
        });
        net.run(seconds(1));
        let entry = net.last(bob, is_in_dialog);
        assert_eq!(entry.method().as_bytes(), method.as_bytes());
        assert_eq!(entry.body(), "Signal=5\r\n");
        assert_eq!(entry.header("Content-Type"), "application/dtmf-relay");
        assert!(matches!(
            net.last(alice, |_| true).event,
            PhoneEvent::Response(200, _)
        ));
    }
    net.phones[alice].log.behaviour.inside = Some(415);
    net.command(bob, |endpoint, now| {
        endpoint
            .request(other, Method::Info, &MessageContent::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(matches!(
        net.last(bob, |_| true).event,
        PhoneEvent::Response(415, _)
    ));
    hang_up(&mut net, alice, leg);
}

#[test]
fn sessions_without_refresh_end_on_both_sides() {
    let config = format!("{PLAIN}[session_timer]\nexpires_s=120\n[media]\ntimeout_s=0\n");
    let (mut net, [alice, bob], _) = established(&config);
    net.run(seconds(50));
    assert_eq!(net.border.calls().len(), 1);
    // Alice disappears: refreshes to her get no response.
    net.aliases.insert(
        "10.1.0.1:5060".parse().unwrap(),
        "10.9.9.9:9".parse().unwrap(),
    );
    net.run(seconds(200));
    assert!(
        net.has(bob, |event| *event == PhoneEvent::Ended(Ending::Peer)),
        "{:?}",
        net.phone_events(bob)
    );
    let _ = alice;
    net.assert_quiet();
}

#[test]
fn refreshed_sessions_continue() {
    let config = format!("{PLAIN}[session_timer]\nexpires_s=120\n[media]\ntimeout_s=0\n");
    let (mut net, [alice, bob], [leg, _]) = established(&config);
    net.run(seconds(1000));
    assert_eq!(
        net.border.calls().len(),
        1,
        "{:?} {:?}",
        net.phone_events(alice),
        net.phone_events(bob)
    );
    hang_up(&mut net, alice, leg);
}

/// A phone without UPDATE and session timers: the border refreshes its sessions by re-INVITE.
fn without_update(config: &mut sip::EndpointConfig) {
    config.allow = "INVITE, ACK, BYE, CANCEL".to_owned();
    config.supported.retain(|tag| tag != "timer");
}

/// RFC 3261 section 14.1: a refresh by re-INVITE that is refused for a time is repeated.
#[test]
fn refused_refresh_is_repeated() {
    for status in [491, 500] {
        let config = format!("{PLAIN}[session_timer]\nexpires_s=120\n[media]\ntimeout_s=0\n");
        let mut net = VirtualNetwork::new(&config, 1);
        let [alice, bob] = [("10.1.0.1:5060", SDP_A), ("10.2.0.1:5060", SDP_B)].map(|(at, sdp)| {
            let behaviour = PhoneBehaviour::answering(sdp);
            net.phone_with((at, Transport::Udp), behaviour, without_update)
        });
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
        net.run(seconds(1));
        // The first refreshes are due after a minute.
        net.phones[alice].log.behaviour.inside = Some(status);
        net.phones[bob].log.behaviour.inside = Some(status);
        net.run(seconds(66));
        assert!(net.has(alice, is_in_dialog) || net.has(bob, is_in_dialog));
        net.phones[alice].log.behaviour.inside = Some(200);
        net.phones[bob].log.behaviour.inside = Some(200);
        net.run(seconds(1000));
        assert_eq!(
            net.border.calls().len(),
            1,
            "{status}: {:?} {:?}",
            net.phone_events(alice),
            net.phone_events(bob)
        );
        hang_up(&mut net, alice, leg);
    }
}

/// A call whose sessions the border refreshes by re-INVITE at Alice, and by UPDATE at Bob. Neither answers by itself.
fn refreshed_by_reinvite() -> (VirtualNetwork, [usize; 2], LegId) {
    let config = format!("{PLAIN}[session_timer]\nexpires_s=120\n[media]\ntimeout_s=0\n");
    let mut net = VirtualNetwork::new(&config, 1);
    let silent = |sdp| PhoneBehaviour {
        inside: None,
        ..PhoneBehaviour::answering(sdp)
    };
    let alice = ("10.1.0.1:5060", Transport::Udp);
    let alice = net.phone_with(alice, silent(SDP_A), without_update);
    let bob = net.phone("10.2.0.1:5060", silent(SDP_B));
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    (net, [alice, bob], leg)
}

/// Answers in-dialog requests of the phones for a time in seconds.
fn serve(
    net: &mut VirtualNetwork,
    phones: [usize; 2],
    time: u64,
    answer: impl Fn(usize, &LogEntry) -> (u16, &'static str),
) {
    let mut seen = phones.map(|phone| net.log(phone).len());
    for _ in 0..10 * time {
        net.run(Duration::from_millis(100));
        for (phone, seen) in phones.into_iter().zip(&mut seen) {
            let new = net.log(phone)[*seen..].to_vec();
            *seen += new.len();
            for entry in new {
                let PhoneEvent::Request(transaction) = entry.event else {
                    continue;
                };
                let (status, sdp) = answer(phone, &entry);
                net.command(phone, |endpoint, now| {
                    let content = match sdp {
                        "" => MessageContent::default(),
                        sdp => MessageContent::sdp(sdp.as_bytes()),
                    };
                    endpoint
                        .respond(transaction, status, &content, now)
                        .unwrap();
                });
            }
        }
    }
}

fn requests(net: &VirtualNetwork, phone: usize, method: &str) -> Vec<LogEntry> {
    let wanted = |entry: &&LogEntry| is_in_dialog(&entry.event) && entry.method() == method;
    net.log(phone).iter().filter(wanted).cloned().collect()
}

/// RFC 4028 section 7.4: the other side has no part in it, and may refuse re-INVITEs.
#[test]
fn refresh_by_reinvite_repeats_the_description_of_one_side() {
    let (mut net, [alice, bob], leg) = refreshed_by_reinvite();
    let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
    let description = answered.body();
    serve(
        &mut net,
        [alice, bob],
        1_000,
        |phone, request| match request.method().as_str() {
            "INVITE" if phone == bob || request.body().is_empty() => (488, ""),
            "INVITE" => (200, SDP_A),
            _ => (200, ""),
        },
    );
    assert_eq!(net.border.calls().len(), 1, "{:?}", net.phone_events(alice));
    let refreshes = requests(&net, alice, "INVITE");
    assert!(refreshes.len() > 10);
    assert!(
        refreshes
            .iter()
            .all(|refresh| refresh.body() == description)
    );
    assert!(requests(&net, bob, "INVITE").is_empty());
    hang_up(&mut net, alice, leg);
}

#[test]
fn refresh_without_description_is_sent_to_peers_that_refuse_one() {
    let (mut net, [alice, bob], leg) = refreshed_by_reinvite();
    serve(
        &mut net,
        [alice, bob],
        300,
        |phone, request| match request.method().as_str() {
            "INVITE" if phone == bob => (200, SDP_B),
            "INVITE" if !request.body().is_empty() => (488, ""),
            "INVITE" => (200, SDP_A),
            _ => (200, ""),
        },
    );
    assert_eq!(net.border.calls().len(), 1, "{:?}", net.phone_events(alice));
    assert!(!requests(&net, bob, "INVITE").is_empty());
    hang_up(&mut net, alice, leg);
}

/// The other side gets a changed description. If it refuses, the session stays as it was (RFC 3261 section 14.1).
#[test]
fn changed_answer_to_a_refresh_reaches_the_other_side() {
    const MOVED: &str = "v=0\r\no=alice 1 2 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4444 RTP/AVP 0 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\na=sendonly\r\n";
    for refuses in [false, true] {
        let (mut net, [alice, bob], leg) = refreshed_by_reinvite();
        let answered = net.find(alice, |event| *event == PhoneEvent::Answered);
        let description = answered.body();
        serve(
            &mut net,
            [alice, bob],
            100,
            |phone, request| match request.method().as_str() {
                "INVITE" if phone == bob && refuses => (488, ""),
                "INVITE" if phone == bob => (200, SDP_B),
                "INVITE" => (200, MOVED),
                _ => (200, ""),
            },
        );
        let offers = requests(&net, bob, "INVITE");
        assert!(offers[0].body().contains("a=sendonly"), "{refuses}");
        assert_eq!(net.border.calls().len(), 1, "{refuses}");
        if refuses {
            let ack = net.last(alice, |event| *event == PhoneEvent::Acked);
            assert_eq!(ack.body(), description);
        }
        hang_up(&mut net, alice, leg);
    }
}

#[test]
fn refer_is_relayed() {
    let (mut net, [alice, bob], [_, other]) = established(PLAIN);
    net.phones[alice].log.behaviour.inside = Some(202);
    let edits = [
        Edit::Add {
            id: HeaderId::ReferTo,
            value: b"<sip:carol@198.51.100.1:5060>",
        },
        Edit::Add {
            id: HeaderId::ReferredBy,
            value: b"<sip:bob@example.org>",
        },
    ];
    net.command(bob, |endpoint, now| {
        endpoint
            .request(
                other,
                Method::Refer,
                &MessageContent::default().with(&edits),
                now,
            )
            .unwrap();
    });
    net.run(seconds(1));
    let refer = net.find(alice, is_in_dialog);
    assert_eq!(refer.method(), "REFER");
    assert_eq!(
        refer.header("Refer-To"),
        "<sip:carol@192.0.2.1:5060>",
        "Refer-To points to the border"
    );
    assert_eq!(
        refer.header("Referred-By"),
        "<sip:bob@192.0.2.1:5060>",
        "phones do not get its host"
    );
    assert!(net.has(bob, |event| matches!(event, PhoneEvent::Response(202, _))));
    let leg = refer.leg.unwrap();
    net.command(alice, |endpoint, now| {
        endpoint.notify_refer(leg, 200, b"OK", now).unwrap();
    });
    net.run(seconds(1));
    let notify = net.find(bob, is_in_dialog);
    assert_eq!(notify.method(), "NOTIFY");
    assert!(notify.body().starts_with("SIP/2.0 200 OK"));
}

/// A trunk whose transfers the border carries out, with a second target for the new call.
fn transferring_trunk() -> String {
    format!(
        "{PLAIN}refer='act'\n[[trunk]]\nname='other'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
        [[route]]\nto={{user='carol'}}\ntrunk='other'\n[[route]]\ntrunk='pbx'\n"
    )
}

#[test]
fn blind_transfer_carried_out_by_the_border() {
    let (mut net, [alice, bob], [leg, other]) = established(&transferring_trunk());
    let carol = net.phone(
        "10.2.0.2:5060",
        PhoneBehaviour::answering(&SDP_B.replace("10.2.0.1", "10.2.0.2")),
    );
    refer_to_carol(&mut net, bob, other);
    net.run(seconds(2));
    assert!(net.has(bob, |event| matches!(event, PhoneEvent::Response(202, _))));
    assert!(net.has(carol, |event| *event == PhoneEvent::Offered));
    assert!(
        net.has(carol, |event| *event == PhoneEvent::Acked),
        "{:?}",
        net.phone_events(carol)
    );
    let frags: Vec<String> = net
        .log(bob)
        .iter()
        .filter(|entry| is_in_dialog(&entry.event))
        .map(|entry| entry.body().lines().next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(
        frags,
        [
            "SIP/2.0 100 Trying",
            "SIP/2.0 180 Ringing",
            "SIP/2.0 200 OK"
        ]
    );
    assert!(net.has(bob, |event| *event == PhoneEvent::Ended(Ending::Peer)));
    let offered = net.last(alice, is_in_dialog);
    assert_eq!(offered.method(), "INVITE");
    assert_eq!(net.border.calls().len(), 1);
    assert_eq!(net.border.calls()[0].trunks[1].as_deref(), Some("other"));
    // Alice and Carol are connected: in-dialog requests pass between them.
    assert_connected(&mut net, (alice, leg), carol);
    hang_up(&mut net, alice, leg);
}

#[test]
fn failed_transfer_leaves_the_call_unchanged() {
    let (mut net, [alice, bob], [leg, other]) = established(&transferring_trunk());
    let mut busy = PhoneBehaviour::answering("");
    busy.answer = Some(486);
    net.phone("10.2.0.2:5060", busy);
    refer_to_carol(&mut net, bob, other);
    net.run(seconds(2));
    let last = net.last(bob, is_in_dialog);
    assert!(last.body().starts_with("SIP/2.0 486"), "{}", last.text());
    assert!(!net.has(bob, |event| matches!(event, PhoneEvent::Ended(_))));
    assert_connected(&mut net, (alice, leg), bob);
    hang_up(&mut net, alice, leg);
}

/// Bob has called Alice, consults Carol, and connects them.
#[test]
fn attended_transfer_carried_out_by_the_border() {
    let config = transferring_trunk();
    let (mut net, [alice, bob], [leg, other]) = established(&config);
    let carol = net.phone(
        "10.2.0.2:5060",
        PhoneBehaviour::answering(&SDP_B.replace("10.2.0.1", "10.2.0.2")),
    );
    let consult = net.call(
        bob,
        "sip:carol@198.51.100.1",
        "198.51.100.1:5060",
        &MessageContent::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    assert!(net.has(carol, |event| *event == PhoneEvent::Acked));
    let (call_id, own, theirs) = net.command(bob, |endpoint, _| {
        let id = String::from_utf8(endpoint.call_id_of(consult).unwrap().to_vec()).unwrap();
        let (own, theirs) = endpoint.tags_of(consult).unwrap();
        (
            id,
            String::from_utf8(own).unwrap(),
            String::from_utf8(theirs.to_vec()).unwrap(),
        )
    });
    let refer_to = format!(
        "<sip:carol@198.51.100.1?Replaces={call_id}%3Bto-tag%3D{theirs}%3Bfrom-tag%3D{own}>"
    );
    let edits = [Edit::Add {
        id: HeaderId::ReferTo,
        value: refer_to.as_bytes(),
    }];
    net.command(bob, |endpoint, now| {
        endpoint
            .request(
                other,
                Method::Refer,
                &MessageContent::default().with(&edits),
                now,
            )
            .unwrap();
    });
    net.run(seconds(3));
    assert_eq!(net.border.calls().len(), 1, "{:?}", net.border.calls());
    assert_eq!(
        net.phones[bob].endpoint.census().legs,
        0,
        "{:?}",
        net.phone_events(bob)
    );
    assert_connected(&mut net, (alice, leg), carol);
    hang_up(&mut net, alice, leg);
}

#[test]
fn invite_with_replaces_replaces_a_leg() {
    let config = format!("{PLAIN}sources='10.2.0.0/24'\n");
    let (mut net, [alice, bob], [leg, other]) = established(&config);
    let dora = net.phone(
        "10.2.0.5:5060",
        PhoneBehaviour::answering(&SDP_B.replace("10.2.0.1", "10.2.0.5")),
    );
    let (call_id, own, theirs) = net.command(bob, |endpoint, _| {
        let id = String::from_utf8(endpoint.call_id_of(other).unwrap().to_vec()).unwrap();
        let (own, theirs) = endpoint.tags_of(other).unwrap();
        (
            id,
            String::from_utf8(own).unwrap(),
            String::from_utf8(theirs.to_vec()).unwrap(),
        )
    });
    let replaces = format!("{call_id};to-tag={theirs};from-tag={own}");
    let edits = [Edit::Add {
        id: HeaderId::Replaces,
        value: replaces.as_bytes(),
    }];
    let sdp = SDP_B.replace("10.2.0.1", "10.2.0.5");
    net.call(
        dora,
        "sip:alice@198.51.100.1",
        "198.51.100.1:5060",
        &MessageContent::sdp(sdp.as_bytes()).with(&edits),
    );
    net.run(seconds(2));
    assert!(
        net.has(dora, |event| *event == PhoneEvent::Answered),
        "{:?}",
        net.phone_events(dora)
    );
    assert!(net.has(bob, |event| *event == PhoneEvent::Ended(Ending::Peer)));
    assert!(
        net.has(alice, is_in_dialog),
        "Alice gets the new description"
    );
    assert_connected(&mut net, (alice, leg), dora);
    let replaced = net.events.iter().find_map(|event| match &event.kind {
        EventKind::LegReplaced {
            side,
            cause,
            address,
            interface,
            ..
        } => Some([side, cause, address, interface].map(String::clone)),
        _ => None,
    });
    assert_eq!(
        replaced.unwrap(),
        ["callee", "replaces", "udp:10.2.0.5:5060", "in"]
    );
    hang_up(&mut net, alice, leg);
}

#[test]
fn cancelled_reinvite_leaves_both_sides_consistent() {
    let (mut net, [alice, bob], [leg, _]) = established(PLAIN);
    net.phones[bob].log.behaviour.inside = None;
    let hold = format!("{SDP_A}a=sendonly\r\n");
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
    net.run(Duration::from_millis(50));
    let waiting = net
        .phone_events(bob)
        .into_iter()
        .find_map(|event| match event {
            PhoneEvent::Request(transaction) => Some(transaction),
            _ => None,
        })
        .unwrap();
    net.command(alice, |endpoint, now| {
        let _ = endpoint.cancel(leg, &MessageContent::default(), now);
    });
    net.run(Duration::from_millis(50));
    net.phones[bob].log.behaviour.inside = Some(200);
    net.command(bob, |endpoint, now| {
        endpoint
            .respond(waiting, 200, &MessageContent::sdp(SDP_B.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(5));
    assert_eq!(net.border.calls().len(), 1);
    hang_up(&mut net, alice, leg);
}

/// Bob's phone does not go on asking its user, and the next re-INVITE passes. Without a ringing phone the CANCEL waits
/// for its first provisional response, 100.
#[test]
fn cancel_of_a_reinvite_reaches_the_other_side() {
    for rings in [true, false] {
        let (mut net, [alice, bob], [leg, _]) = established(PLAIN);
        net.phones[bob].log.behaviour.inside = None;
        let video = format!("{SDP_A}m=video 4002 RTP/AVP 31\r\n");
        let offer_video = |net: &mut VirtualNetwork| {
            net.command(alice, |endpoint, now| {
                let content = MessageContent::sdp(video.as_bytes());
                endpoint
                    .request(leg, Method::Invite, &content, now)
                    .unwrap();
            });
        };
        offer_video(&mut net);
        net.run(Duration::from_millis(50));
        let PhoneEvent::Request(waiting) = net.find(bob, is_in_dialog).event else {
            panic!()
        };
        if rings {
            net.command(bob, |endpoint, now| {
                let content = MessageContent::default();
                endpoint.respond(waiting, 180, &content, now).unwrap();
            });
            net.run(Duration::from_millis(50));
        }
        net.command(alice, |endpoint, now| {
            let content = MessageContent::default();
            endpoint.cancel(leg, &content, now).unwrap();
        });
        net.run(Duration::from_millis(if rings { 50 } else { 250 }));
        assert!(
            net.has(bob, |event| *event == PhoneEvent::RequestCancelled),
            "{rings}: {:?}",
            net.phone_events(bob)
        );
        assert!(net.has(alice, |event| matches!(event, PhoneEvent::Response(487, _))));
        assert_eq!(net.border.census().ports, 2, "{rings}: no port for video");
        net.phones[bob].log.behaviour.inside = Some(200);
        net.phones[bob].log.behaviour.sdp = format!("{SDP_B}m=video 5002 RTP/AVP 31\r\n");
        offer_video(&mut net);
        net.run(seconds(1));
        let status = net.last(alice, |event| matches!(event, PhoneEvent::Response(..)));
        assert!(
            matches!(status.event, PhoneEvent::Response(200, _)),
            "{rings}"
        );
        assert_eq!(net.border.census().ports, 4, "{rings}");
        hang_up(&mut net, alice, leg);
    }
}

/// The value of Replaces for the dialog of a phone's leg, as the border sees it.
fn replaces_value(net: &mut VirtualNetwork, phone: usize, leg: LegId) -> String {
    net.command(phone, |endpoint, _| {
        let id = String::from_utf8(endpoint.call_id_of(leg).unwrap().to_vec()).unwrap();
        let (own, theirs) = endpoint.tags_of(leg).unwrap();
        let [own, theirs] =
            [own.to_vec(), theirs.to_vec()].map(|tag| String::from_utf8(tag).unwrap());
        format!("{id};to-tag={theirs};from-tag={own}")
    })
}

/// RFC 3891 section 3: `early-only` does not apply to an answered dialog. The refused INVITE ends with its own result,
/// and is not counted as a call of its trunk.
#[test]
fn early_only_replaces_does_not_affect_an_established_call() {
    let config = format!("{PLAIN}sources='10.2.0.0/16'\nmax_calls=2\n");
    let (mut net, [alice, bob], [leg, other]) = established(&config);
    let dora = net.phone("10.2.0.5:5060", PhoneBehaviour::answering(SDP_B));
    let replaces = replaces_value(&mut net, bob, other) + ";early-only";
    for _ in 0..3 {
        let edits = [Edit::Add {
            id: HeaderId::Replaces,
            value: replaces.as_bytes(),
        }];
        net.call(
            dora,
            "sip:alice@198.51.100.1",
            "198.51.100.1:5060",
            &MessageContent::sdp(SDP_B.as_bytes()).with(&edits),
        );
        net.run(seconds(1));
    }
    let refused = |event: &&PhoneEvent| **event == PhoneEvent::Failed(Failure::Response, 486);
    assert_eq!(net.phone_events(dora).iter().filter(refused).count(), 3);
    assert!(
        !net.has(alice, is_in_dialog),
        "{:?}",
        net.phone_events(alice)
    );
    assert_eq!(net.border.census().trunk_calls, 1);
    let counters = net.border.counters();
    assert_eq!((counters.offered, counters.declined), (4, 3));
    hang_up(&mut net, alice, leg);
}

/// During a transfer, a reload removes the first trunk of the file, so that the others get other indices.
#[test]
fn reload_during_a_transfer_keeps_call_counts_of_trunks() {
    let before = transferring_trunk().replacen(
        "[[trunk]]",
        "[[trunk]]\nname='gone'\ninterface='in'\ntarget='udp:10.2.0.40:5060'\n[[trunk]]",
        1,
    );
    let (mut net, [alice, bob], [leg, other]) = established(&before);
    let mut ringing = PhoneBehaviour::answering(&SDP_B.replace("10.2.0.1", "10.2.0.2"));
    ringing.answer = None;
    let carol = net.phone("10.2.0.2:5060", ringing);
    refer_to_carol(&mut net, bob, other);
    net.run(seconds(1));
    assert_eq!(net.border.census().trunk_calls, 2, "Bob's and Carol's");
    let config = config::parse(&transferring_trunk(), "fewer.toml").unwrap();
    net.control(|border, now| border.reload(config, now));
    let theirs = net
        .find(carol, |event| *event == PhoneEvent::Offered)
        .leg
        .unwrap();
    let sdp = SDP_B.replace("10.2.0.1", "10.2.0.2");
    net.command(carol, |endpoint, now| {
        endpoint
            .answer(theirs, 200, &MessageContent::sdp(sdp.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(2));
    assert_eq!(net.border.calls()[0].trunks[1].as_deref(), Some("other"));
    assert_eq!(net.border.census().trunk_calls, 1);
    hang_up(&mut net, alice, leg);
}

/// The INVITE with Replaces is cancelled, or the other side does not agree: its trunk has no call then.
#[test]
fn failed_replacement_releases_its_trunk() {
    let config = format!("{PLAIN}sources='10.2.0.0/16'\n");
    for refused in [false, true] {
        let (mut net, [alice, bob], [leg, other]) = established(&config);
        let dora = net.phone("10.2.0.5:5060", PhoneBehaviour::answering(SDP_B));
        net.phones[alice].log.behaviour.inside = refused.then_some(488);
        let replaces = replaces_value(&mut net, bob, other);
        let edits = [Edit::Add {
            id: HeaderId::Replaces,
            value: replaces.as_bytes(),
        }];
        let new = net.call(
            dora,
            "sip:alice@198.51.100.1",
            "198.51.100.1:5060",
            &MessageContent::sdp(SDP_B.as_bytes()).with(&edits),
        );
        net.run(seconds(1));
        assert!(net.has(alice, is_in_dialog));
        let counted = if refused { 1 } else { 2 };
        assert_eq!(net.border.census().trunk_calls, counted, "{refused}");
        if !refused {
            net.command(dora, |endpoint, now| {
                endpoint
                    .cancel(new, &MessageContent::default(), now)
                    .unwrap()
            });
            net.run(seconds(1));
            assert_eq!(net.border.census().trunk_calls, 1);
            let PhoneEvent::Request(waiting) = net.find(alice, is_in_dialog).event else {
                panic!()
            };
            net.command(alice, |endpoint, now| {
                endpoint
                    .respond(waiting, 200, &MessageContent::sdp(SDP_A.as_bytes()), now)
                    .unwrap();
            });
            net.phones[alice].log.behaviour.inside = Some(200);
            net.run(seconds(1));
        }
        assert!(net.has(dora, |event| matches!(event, PhoneEvent::Failed(..))));
        assert!(!net.has(bob, |event| matches!(event, PhoneEvent::Ended(_))));
        hang_up(&mut net, alice, leg);
    }
}
