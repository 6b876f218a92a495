//! What happens inside calls: provisional responses, offers and answers, requests that pass.

use crate::neighbourhood;

use neighbourhood::*;
use sip::{Body, Content, Ending, Failure, LegId, Prack};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

const OUT: &str = "192.0.2.1:5060";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn offer() -> Content<'static> {
    Content::sdp(SDP_A.as_bytes())
}

fn pair(config: &str) -> (Neighbourhood, usize, usize) {
    let mut net = Neighbourhood::new(config, 1);
    let alice = net.phone("10.1.0.1:5060", Manners::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", Manners::answering(SDP_B));
    (net, alice, bob)
}

/// A call that stands: the net, both phones, both legs.
fn standing(config: &str) -> (Neighbourhood, [usize; 2], [LegId; 2]) {
    let (mut net, alice, bob) = pair(config);
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let other = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
    assert!(net.has(bob, |told| *told == Told::Acked));
    (net, [alice, bob], [leg, other])
}

fn hang_up(net: &mut Neighbourhood, phone: usize, leg: LegId) {
    net.tell(phone, |endpoint, now| {
        endpoint.bye(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    net.assert_quiet();
}

fn inside(told: &Told) -> bool {
    matches!(told, Told::Request(_))
}

#[test]
fn reliable_provisionals_are_acknowledged_from_end_to_end() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.progress = vec![(183, true)];
    net.phones[bob].ears.manners.answer = None;
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let early = net.find(alice, |told| matches!(told, Told::Progressed(183, true, _)));
    assert!(
        early.body().contains("c=IN IP4 192.0.2.1"),
        "{}",
        early.text()
    );
    assert!(net.has(bob, |told| matches!(told, Told::Pracked(_))));
    let called = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
    net.tell(bob, |endpoint, now| {
        endpoint
            .answer(called, 200, &Content::default(), now)
            .unwrap()
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| *told == Told::Answered));
    hang_up(&mut net, alice, leg);
}

#[test]
fn a_caller_without_100rel_gets_them_unreliably_and_the_border_acknowledges() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.progress = vec![(183, true)];
    let plain = [Edit::Remove(HeaderId::Supported)];
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer().with(&plain));
    net.run(seconds(2));
    assert!(net.has(alice, |told| matches!(
        told,
        Told::Progressed(183, false, _)
    )));
    assert!(net.has(bob, |told| matches!(told, Told::Pracked(_))));
    assert!(net.has(alice, |told| *told == Told::Answered));
    hang_up(&mut net, alice, leg);
}

#[test]
fn early_media_without_reliability() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.progress = vec![(180, false), (183, false), (183, false)];
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let answer = net.find(alice, |told| *told == Told::Answered).body();
    for seen in net
        .seen(alice)
        .iter()
        .filter(|seen| matches!(seen.told, Told::Progressed(183, ..)))
    {
        assert_eq!(seen.body(), answer, "one early dialog, one description");
    }
    assert_eq!(net.border.census().ports, 2);
    hang_up(&mut net, alice, leg);
}

#[test]
fn hold_and_resume_pass_with_the_description_rewritten() {
    let (mut net, [alice, bob], [leg, _]) = standing(PLAIN);
    let first = net.find(bob, |told| *told == Told::Offered).body();
    let hold = SDP_A.replace("1 1 IN", "1 2 IN") + "a=sendonly\r\n";
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &Content::sdp(hold.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(1));
    let seen = net.find(bob, inside);
    assert_eq!(seen.method(), "INVITE");
    assert!(seen.body().contains("a=sendonly") && !seen.body().contains("10.1.0.1"));
    assert!(seen.body().contains("o=- 1 2 IN IP4 198.51.100.1"));
    let port = |body: &str| {
        body.split("m=audio ")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(port(&first), port(&seen.body()), "the port stays");
    assert!(net.has(alice, |told| matches!(told, Told::Response(200, _))));
    assert_eq!(
        net.told(bob)
            .iter()
            .filter(|told| **told == Told::Acked)
            .count(),
        2
    );
    assert_eq!(net.border.census().ports, 2);
    hang_up(&mut net, alice, leg);
}

#[test]
fn a_refused_offer_changes_nothing() {
    let (mut net, [alice, bob], [leg, _]) = standing(PLAIN);
    net.phones[bob].ears.manners.inside = Some(488);
    let video = format!("{SDP_A}m=video 4002 RTP/AVP 31\r\n");
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &Content::sdp(video.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.has(alice, |told| matches!(told, Told::Response(488, _))));
    assert_eq!(net.border.census().ports, 2);
    assert_eq!(net.border.calls().len(), 1);
    hang_up(&mut net, alice, leg);
}

#[test]
fn lines_are_added_and_taken_away() {
    let (mut net, [alice, bob], [leg, _]) = standing(PLAIN);
    let change = |net: &mut Neighbourhood, offer: String, answer: String| {
        net.phones[bob].ears.manners.sdp = answer;
        net.tell(alice, |endpoint, now| {
            endpoint
                .request(leg, Method::Invite, &Content::sdp(offer.as_bytes()), now)
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
fn update_passes_and_its_answer_comes_back() {
    let (mut net, [alice, bob], [_, other]) = standing(PLAIN);
    let moved = SDP_B.replace("5000", "5010");
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(other, Method::Update, &Content::sdp(moved.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(1));
    let seen = net.find(alice, inside);
    assert_eq!(seen.method(), "UPDATE");
    assert!(seen.body().contains("c=IN IP4 192.0.2.1"));
    let answer = net.find(bob, |told| matches!(told, Told::Response(200, _)));
    assert!(
        answer.body().contains("c=IN IP4 198.51.100.1"),
        "{}",
        answer.text()
    );
    hang_up(&mut net, bob, other);
}

#[test]
fn glare_is_answered_491_and_the_call_goes_on() {
    let (mut net, [alice, bob], [leg, other]) = standing(PLAIN);
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &offer(), now)
            .unwrap();
    });
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(other, Method::Invite, &Content::sdp(SDP_B.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(3));
    let refused = |phone| net.has(phone, |told| matches!(told, Told::Response(491, _)));
    assert!(refused(alice) || refused(bob));
    assert_eq!(net.border.calls().len(), 1);
    assert_eq!(net.border.census().ports, 2);
    hang_up(&mut net, alice, leg);
}

#[test]
fn late_offers_are_answered_in_the_ack() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[alice].ears.manners.sdp = "late".into();
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &Content::default());
    net.run(seconds(1));
    let answered = net.find(alice, |told| *told == Told::Answered);
    assert!(
        answered.body().contains("c=IN IP4 192.0.2.1"),
        "{}",
        answered.text()
    );
    let ack = net.find(bob, |told| *told == Told::Acked);
    assert!(
        ack.body().contains("c=IN IP4 198.51.100.1"),
        "{}",
        ack.text()
    );
    assert_eq!(net.border.census().ports, 2);
    hang_up(&mut net, alice, leg);
}

#[test]
fn an_offer_in_prack_is_answered_in_its_200() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.progress = vec![(183, true)];
    net.phones[bob].ears.manners.answer = None;
    let leg = net.call_with(alice, "sip:bob@192.0.2.1", OUT, &offer(), |invite| {
        invite.prack = Prack::User;
    });
    net.run(seconds(1));
    let fork = net
        .told(alice)
        .into_iter()
        .find_map(|told| match told {
            Told::Progressed(183, true, fork) => fork,
            _ => None,
        })
        .unwrap();
    let second = SDP_A.replace("4000", "4444");
    net.tell(alice, |endpoint, now| {
        endpoint
            .prack(leg, fork, &Content::sdp(second.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(1));
    let prack = net.find(bob, |told| matches!(told, Told::Pracked(_)));
    assert!(
        prack.body().contains("c=IN IP4 198.51.100.1"),
        "{}",
        prack.text()
    );
    let answer = net.find(alice, |told| matches!(told, Told::Response(200, _)));
    assert!(
        answer.body().contains("c=IN IP4 192.0.2.1"),
        "{}",
        answer.text()
    );
    let called = net.find(bob, |told| *told == Told::Offered).leg.unwrap();
    net.tell(bob, |endpoint, now| {
        endpoint
            .answer(called, 200, &Content::default(), now)
            .unwrap()
    });
    net.run(seconds(1));
    hang_up(&mut net, alice, leg);
}

#[test]
fn update_before_the_answer() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].ears.manners.progress = vec![(183, true)];
    net.phones[bob].ears.manners.answer = None;
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer());
    net.run(seconds(1));
    let second = SDP_A.replace("4000", "4444");
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Update, &Content::sdp(second.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert_eq!(net.find(bob, inside).method(), "UPDATE");
    let answer = net.last(alice, |told| matches!(told, Told::Response(200, _)));
    assert!(
        answer.body().contains("c=IN IP4 192.0.2.1"),
        "{}",
        answer.text()
    );
    assert_eq!(net.border.census().ports, 2);
    net.tell(alice, |endpoint, now| {
        endpoint.cancel(leg, &Content::default(), now).unwrap()
    });
    net.run(seconds(1));
    net.assert_quiet();
}

#[test]
fn other_requests_pass_with_their_bodies() {
    let (mut net, [alice, bob], [leg, other]) = standing(PLAIN);
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
        let content = Content {
            body: Body::New {
                content_type: b"application/dtmf-relay",
                bytes: b"Signal=5\r\n",
            },
            edits: &edits,
            ..Content::default()
        };
        net.tell(alice, |endpoint, now| {
            endpoint.request(leg, method, &content, now).unwrap();
        });
        net.run(seconds(1));
        let seen = net.last(bob, inside);
        assert_eq!(seen.method().as_bytes(), method.as_bytes());
        assert_eq!(seen.body(), "Signal=5\r\n");
        assert_eq!(seen.header("Content-Type"), "application/dtmf-relay");
        assert!(matches!(
            net.last(alice, |_| true).told,
            Told::Response(200, _)
        ));
    }
    net.phones[alice].ears.manners.inside = Some(415);
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(other, Method::Info, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(matches!(
        net.last(bob, |_| true).told,
        Told::Response(415, _)
    ));
    hang_up(&mut net, alice, leg);
}

#[test]
fn sessions_that_nobody_refreshes_end_on_both_sides() {
    let config = format!("{PLAIN}[session_timer]\nexpires=120\n[media]\ntimeout=0\n");
    let (mut net, [alice, bob], _) = standing(&config);
    net.run(seconds(50));
    assert_eq!(net.border.calls().len(), 1);
    // Alice vanishes: refreshes towards her find nobody.
    net.aliases.insert(
        "10.1.0.1:5060".parse().unwrap(),
        "10.9.9.9:9".parse().unwrap(),
    );
    net.run(seconds(200));
    assert!(
        net.has(bob, |told| *told == Told::Ended(Ending::Peer)),
        "{:?}",
        net.told(bob)
    );
    let _ = alice;
    net.assert_quiet();
}

#[test]
fn sessions_that_are_refreshed_stand() {
    let config = format!("{PLAIN}[session_timer]\nexpires=120\n[media]\ntimeout=0\n");
    let (mut net, [alice, bob], [leg, _]) = standing(&config);
    net.run(seconds(1000));
    assert_eq!(
        net.border.calls().len(),
        1,
        "{:?} {:?}",
        net.told(alice),
        net.told(bob)
    );
    hang_up(&mut net, alice, leg);
}

#[test]
fn refer_passes() {
    let (mut net, [alice, bob], [_, other]) = standing(PLAIN);
    net.phones[alice].ears.manners.inside = Some(202);
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
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(other, Method::Refer, &Content::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(1));
    let refer = net.find(alice, inside);
    assert_eq!(refer.method(), "REFER");
    assert_eq!(
        refer.header("Refer-To"),
        "<sip:carol@192.0.2.1:5060>",
        "leads back to us"
    );
    assert_eq!(
        refer.header("Referred-By"),
        "<sip:bob@192.0.2.1:5060>",
        "its host is not told to phones"
    );
    assert!(net.has(bob, |told| matches!(told, Told::Response(202, _))));
    let leg = refer.leg.unwrap();
    net.tell(alice, |endpoint, now| {
        endpoint.notify_refer(leg, 200, b"OK", now).unwrap();
    });
    net.run(seconds(1));
    let notify = net.find(bob, inside);
    assert_eq!(notify.method(), "NOTIFY");
    assert!(notify.body().starts_with("SIP/2.0 200 OK"));
}

/// A trunk whose transfers we carry out, with a second target for the new call.
fn acting() -> String {
    format!(
        "{PLAIN}refer='act'\n[[trunk]]\nname='other'\ninterface='in'\ntarget='udp:10.2.0.2:5060'\n\
        [[route]]\nto={{user='carol'}}\ntrunk='other'\n[[route]]\ntrunk='pbx'\n"
    )
}

#[test]
fn blind_transfer_carried_out_by_the_border() {
    let (mut net, [alice, bob], [leg, other]) = standing(&acting());
    let carol = net.phone(
        "10.2.0.2:5060",
        Manners::answering(&SDP_B.replace("10.2.0.1", "10.2.0.2")),
    );
    let edits = [Edit::Add {
        id: HeaderId::ReferTo,
        value: b"<sip:carol@198.51.100.1>",
    }];
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(other, Method::Refer, &Content::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(2));
    assert!(net.has(bob, |told| matches!(told, Told::Response(202, _))));
    assert!(net.has(carol, |told| *told == Told::Offered));
    assert!(
        net.has(carol, |told| *told == Told::Acked),
        "{:?}",
        net.told(carol)
    );
    let frags: Vec<String> = net
        .seen(bob)
        .iter()
        .filter(|seen| inside(&seen.told))
        .map(|seen| seen.body().lines().next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(
        frags,
        [
            "SIP/2.0 100 Trying",
            "SIP/2.0 180 Ringing",
            "SIP/2.0 200 OK"
        ]
    );
    assert!(net.has(bob, |told| *told == Told::Ended(Ending::Peer)));
    let offered = net.last(alice, inside);
    assert_eq!(offered.method(), "INVITE");
    assert_eq!(net.border.calls().len(), 1);
    assert_eq!(net.border.calls()[0].trunks[1].as_deref(), Some("other"));
    // Alice and Carol talk: what one says inside the dialog, the other hears.
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.seen(carol).iter().any(|seen| seen.method() == "INFO"));
    hang_up(&mut net, alice, leg);
}

#[test]
fn a_transfer_that_fails_leaves_the_call_as_it_was() {
    let (mut net, [alice, bob], [leg, other]) = standing(&acting());
    let mut busy = Manners::answering("");
    busy.answer = Some(486);
    net.phone("10.2.0.2:5060", busy);
    let edits = [Edit::Add {
        id: HeaderId::ReferTo,
        value: b"<sip:carol@198.51.100.1>",
    }];
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(other, Method::Refer, &Content::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(2));
    let last = net.last(bob, inside);
    assert!(last.body().starts_with("SIP/2.0 486"), "{}", last.text());
    assert!(!net.has(bob, |told| matches!(told, Told::Ended(_))));
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.seen(bob).iter().any(|seen| seen.method() == "INFO"));
    hang_up(&mut net, alice, leg);
}

/// Bob talks to Alice, consults Carol, and brings them together.
#[test]
fn attended_transfer_carried_out_by_the_border() {
    let config = acting();
    let (mut net, [alice, bob], [leg, other]) = standing(&config);
    let carol = net.phone(
        "10.2.0.2:5060",
        Manners::answering(&SDP_B.replace("10.2.0.1", "10.2.0.2")),
    );
    let consult = net.call(
        bob,
        "sip:carol@198.51.100.1",
        "198.51.100.1:5060",
        &Content::sdp(SDP_B.as_bytes()),
    );
    net.run(seconds(1));
    assert!(net.has(carol, |told| *told == Told::Acked));
    let (call_id, own, theirs) = net.tell(bob, |endpoint, _| {
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
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(other, Method::Refer, &Content::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(3));
    assert_eq!(net.border.calls().len(), 1, "{:?}", net.border.calls());
    assert_eq!(
        net.phones[bob].endpoint.census().legs,
        0,
        "{:?}",
        net.told(bob)
    );
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.seen(carol).iter().any(|seen| seen.method() == "INFO"));
    hang_up(&mut net, alice, leg);
}

#[test]
fn an_invite_with_replaces_takes_the_place_of_a_leg() {
    let config = format!("{PLAIN}sources='10.2.0.0/24'\n");
    let (mut net, [alice, bob], [leg, other]) = standing(&config);
    let dora = net.phone(
        "10.2.0.5:5060",
        Manners::answering(&SDP_B.replace("10.2.0.1", "10.2.0.5")),
    );
    let (call_id, own, theirs) = net.tell(bob, |endpoint, _| {
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
        &Content::sdp(sdp.as_bytes()).with(&edits),
    );
    net.run(seconds(2));
    assert!(
        net.has(dora, |told| *told == Told::Answered),
        "{:?}",
        net.told(dora)
    );
    assert!(net.has(bob, |told| *told == Told::Ended(Ending::Peer)));
    assert!(
        net.has(alice, inside),
        "Alice is told of the new description"
    );
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Info, &Content::default(), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert!(net.seen(dora).iter().any(|seen| seen.method() == "INFO"));
    hang_up(&mut net, alice, leg);
}

#[test]
fn a_cancelled_reinvite_leaves_both_sides_agreed() {
    let (mut net, [alice, bob], [leg, _]) = standing(PLAIN);
    net.phones[bob].ears.manners.inside = None;
    let hold = format!("{SDP_A}a=sendonly\r\n");
    net.tell(alice, |endpoint, now| {
        endpoint
            .request(leg, Method::Invite, &Content::sdp(hold.as_bytes()), now)
            .unwrap();
    });
    net.run(Duration::from_millis(50));
    let waiting = net
        .told(bob)
        .into_iter()
        .find_map(|told| match told {
            Told::Request(transaction) => Some(transaction),
            _ => None,
        })
        .unwrap();
    net.tell(alice, |endpoint, now| {
        let _ = endpoint.cancel(leg, &Content::default(), now);
    });
    net.run(Duration::from_millis(50));
    net.phones[bob].ears.manners.inside = Some(200);
    net.tell(bob, |endpoint, now| {
        endpoint
            .respond(waiting, 200, &Content::sdp(SDP_B.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(5));
    assert_eq!(net.border.calls().len(), 1);
    hang_up(&mut net, alice, leg);
}

/// The value of Replaces that names the dialog of a phone's leg, as the border sees it.
fn named(net: &mut Neighbourhood, phone: usize, leg: LegId) -> String {
    net.tell(phone, |endpoint, _| {
        let id = String::from_utf8(endpoint.call_id_of(leg).unwrap().to_vec()).unwrap();
        let (own, theirs) = endpoint.tags_of(leg).unwrap();
        let [own, theirs] =
            [own.to_vec(), theirs.to_vec()].map(|tag| String::from_utf8(tag).unwrap());
        format!("{id};to-tag={theirs};from-tag={own}")
    })
}

/// RFC 3891 section 3: `early-only` does not apply to what is answered. The refused INVITE has an outcome of its own, and
/// leaves no call counted on the trunk that it came from.
#[test]
fn replaces_for_early_dialogs_alone_does_not_touch_a_standing_call() {
    let config = format!("{PLAIN}sources='10.2.0.0/16'\nmax_calls=2\n");
    let (mut net, [alice, bob], [leg, other]) = standing(&config);
    let dora = net.phone("10.2.0.5:5060", Manners::answering(SDP_B));
    let replaces = named(&mut net, bob, other) + ";early-only";
    for _ in 0..3 {
        let edits = [Edit::Add {
            id: HeaderId::Replaces,
            value: replaces.as_bytes(),
        }];
        net.call(
            dora,
            "sip:alice@198.51.100.1",
            "198.51.100.1:5060",
            &Content::sdp(SDP_B.as_bytes()).with(&edits),
        );
        net.run(seconds(1));
    }
    let refused = |told: &&Told| **told == Told::Failed(Failure::Response, 486);
    assert_eq!(net.told(dora).iter().filter(refused).count(), 3);
    assert!(!net.has(alice, inside), "{:?}", net.told(alice));
    assert_eq!(net.border.census().trunk_calls, 1);
    let counters = net.border.counters();
    assert_eq!((counters.offered, counters.declined), (4, 3));
    hang_up(&mut net, alice, leg);
}

/// While the border transfers a call, a reload takes the first trunk of the file away: the others move up.
#[test]
fn a_reload_during_a_transfer_leaves_every_trunk_its_calls() {
    let before = acting().replacen(
        "[[trunk]]",
        "[[trunk]]\nname='gone'\ninterface='in'\ntarget='udp:10.2.0.40:5060'\n[[trunk]]",
        1,
    );
    let (mut net, [alice, bob], [leg, other]) = standing(&before);
    let mut ringing = Manners::answering(&SDP_B.replace("10.2.0.1", "10.2.0.2"));
    ringing.answer = None;
    let carol = net.phone("10.2.0.2:5060", ringing);
    let edits = [Edit::Add {
        id: HeaderId::ReferTo,
        value: b"<sip:carol@198.51.100.1>",
    }];
    net.tell(bob, |endpoint, now| {
        endpoint
            .request(other, Method::Refer, &Content::default().with(&edits), now)
            .unwrap();
    });
    net.run(seconds(1));
    assert_eq!(net.border.census().trunk_calls, 2, "Bob's and Carol's");
    let config = border::config::parse(&acting(), "fewer.toml").unwrap();
    net.operate(|border, now| border.reload(config, now));
    let theirs = net.find(carol, |told| *told == Told::Offered).leg.unwrap();
    let sdp = SDP_B.replace("10.2.0.1", "10.2.0.2");
    net.tell(carol, |endpoint, now| {
        endpoint
            .answer(theirs, 200, &Content::sdp(sdp.as_bytes()), now)
            .unwrap();
    });
    net.run(seconds(2));
    assert_eq!(net.border.calls()[0].trunks[1].as_deref(), Some("other"));
    assert_eq!(net.border.census().trunk_calls, 1);
    hang_up(&mut net, alice, leg);
}

/// Who wanted to take a leg's place gives up, or finds nobody opposite who would agree: the trunk that it came from is free.
#[test]
fn a_replacement_that_comes_to_nothing_leaves_its_trunk() {
    let config = format!("{PLAIN}sources='10.2.0.0/16'\n");
    for refused in [false, true] {
        let (mut net, [alice, bob], [leg, other]) = standing(&config);
        let dora = net.phone("10.2.0.5:5060", Manners::answering(SDP_B));
        net.phones[alice].ears.manners.inside = refused.then_some(488);
        let replaces = named(&mut net, bob, other);
        let edits = [Edit::Add {
            id: HeaderId::Replaces,
            value: replaces.as_bytes(),
        }];
        let new = net.call(
            dora,
            "sip:alice@198.51.100.1",
            "198.51.100.1:5060",
            &Content::sdp(SDP_B.as_bytes()).with(&edits),
        );
        net.run(seconds(1));
        assert!(net.has(alice, inside));
        let counted = if refused { 1 } else { 2 };
        assert_eq!(net.border.census().trunk_calls, counted, "{refused}");
        if !refused {
            net.tell(dora, |endpoint, now| {
                endpoint.cancel(new, &Content::default(), now).unwrap()
            });
            net.run(seconds(1));
            assert_eq!(net.border.census().trunk_calls, 1);
            let Told::Request(waiting) = net.find(alice, inside).told else {
                panic!()
            };
            net.tell(alice, |endpoint, now| {
                endpoint
                    .respond(waiting, 200, &Content::sdp(SDP_A.as_bytes()), now)
                    .unwrap();
            });
            net.phones[alice].ears.manners.inside = Some(200);
            net.run(seconds(1));
        }
        assert!(net.has(dora, |told| matches!(told, Told::Failed(..))));
        assert!(!net.has(bob, |told| matches!(told, Told::Ended(_))));
        hang_up(&mut net, alice, leg);
    }
}
