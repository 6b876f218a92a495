//! Conferences of the border: mixes, limits and errors.

use crate::conference_phones;
use crate::virtual_network;

use codec::Kind;
use conference_phones::*;
use engine::Transport;
use sip::{Ending, Failure, MessageContent};
use std::time::Duration;
use virtual_network::*;
use wire::sip::Method;

const BORDER: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[conference]]\nname='meeting'\nnumber=['800','801']\nmax_participants=4\nmax_conferences=2\ntones='none'\n";

#[test]
fn participants_hear_the_others_and_leave_no_state() {
    let mut net = VirtualNetwork::new(BORDER, 1);
    let mut talkers = four_phones(&mut net);
    assert_eq!(net.border.census().seats, 4);
    talk(&mut net, &mut talkers, 2_500);
    assert_hears(&talkers, &[]);
    for talker in &talkers {
        // In virtual time the border's packets have no jitter.
        let clock = u64::from(talker.kind.rtp_clock()) / 1000;
        for pair in talker.came.windows(2) {
            let stamps = u64::from(pair[1].1.wrapping_sub(pair[0].1));
            assert_eq!((pair[1].0 - pair[0].0) * clock, stamps);
        }
    }
    // Further callers are refused because the conference is full; the others continue.
    let late = net.phone("10.1.0.9:5060", PhoneBehaviour::answering(SDP_A));
    net.call(
        late,
        "sip:800@192.0.2.1",
        OUT,
        &MessageContent::sdp(SDP_A.as_bytes()),
    );
    talk(&mut net, &mut talkers, 500);
    assert!(net.has(late, |event| *event
        == PhoneEvent::Failed(Failure::Response, 486)));
    assert!(net.names().contains(&"conference_full"));
    assert_eq!(net.border.census().seats, 4);
    // One leaves.
    let left = talkers.remove(0);
    hang_up(&mut net, &left);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    for talker in &talkers {
        let silent = if talker.kind == Kind::G729 {
            -15.0
        } else {
            -30.0
        };
        assert!(talker.level(left.hz) < silent);
    }
    for talker in &talkers {
        hang_up(&mut net, talker);
    }
    net.run(Duration::from_secs(40));
    net.assert_quiet();
    let count = |name: &str| net.names().iter().filter(|other| **other == name).count();
    assert_eq!(
        (count("conference_joined"), count("conference_left")),
        (4, 4)
    );
    assert_eq!((count("call_answered"), count("call_ended")), (4, 4));
    // Each participant sends, and receives a mix generated here.
    let ends = net.events.iter().filter_map(|event| match &event.kind {
        engine::EventKind::CallEnded {
            path,
            caller_mos,
            callee_mos,
            ..
        } => Some((path.as_deref(), caller_mos.is_some(), *callee_mos)),
        _ => None,
    });
    for end in ends {
        assert_eq!(end, (Some("conference"), true, None));
    }
    assert_eq!(net.border.counters().completed, 4);
    assert_eq!(net.forwarder.bridge().conferences(), 0);
}

#[test]
fn digits_mute_and_unmute() {
    let mut net = VirtualNetwork::new(BORDER, 2);
    let mut talkers = four_phones(&mut net);
    talk(&mut net, &mut talkers, 1_000);
    talkers[0].press(&mut net, '*', 90_000);
    talkers[0].press(&mut net, '6', 91_000);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[0]);
    talkers[0].press(&mut net, '*', 120_000);
    talkers[0].press(&mut net, '6', 121_000);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    let muted = net
        .names()
        .iter()
        .filter(|name| **name == "conference_muted")
        .count();
    assert_eq!(muted, 2);
}

#[test]
fn loss_and_jitter_are_concealed() {
    let mut net = VirtualNetwork::new(BORDER, 3);
    let mut talkers = four_phones(&mut net);
    net.link_conditions.jitter = millis(35);
    net.link_conditions.loss = 0.01;
    talk(&mut net, &mut talkers, 5_000);
    assert_hears(&talkers, &[]);
    let sessions: u64 = net.forwarder.bridge().figures().turns;
    assert!(sessions >= 250, "{sessions}");
}

#[test]
fn hold_resume_and_codec_change() {
    let mut net = VirtualNetwork::new(BORDER, 4);
    let mut talkers = four_phones(&mut net);
    talk(&mut net, &mut talkers, 1_000);
    let change = |net: &mut VirtualNetwork,
                  talker: &ConferencePhone,
                  offer: String,
                  method: Method<'static>| {
        let leg = talker.leg;
        net.command(talker.phone, |endpoint, now| {
            endpoint
                .request(leg, method, &MessageContent::sdp(offer.as_bytes()), now)
                .unwrap();
        });
        net.run(millis(200));
        let entry = net.last(talker.phone, |event| {
            matches!(event, PhoneEvent::Response(200, _))
        });
        entry.body()
    };
    let held = sdp(talkers[0].own, Kind::Pcma, 20, "a=sendonly\r\n");
    let body = change(&mut net, &talkers[0], held, Method::Invite);
    assert!(body.contains("a=recvonly"), "{body}");
    assert_eq!(port_of(&body), talkers[0].to.port());
    talk(&mut net, &mut talkers, 1_500);
    assert_eq!(talkers[0].came, []);
    assert!(talkers[2].level(talkers[0].hz) > -7.0);
    let resumed = sdp(talkers[0].own, Kind::Pcma, 20, "a=sendrecv\r\n");
    let body = change(&mut net, &talkers[0], resumed, Method::Update);
    assert!(body.contains("a=sendrecv"), "{body}");
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    // A codec that the conference does not accept: refused without change.
    let leg = talkers[0].leg;
    let strange = sdp(talkers[0].own, Kind::Pcma, 20, "")
        .replace("8 101", "97 101")
        .replace("rtpmap:8 PCMA", "rtpmap:97 GSM");
    net.command(talkers[0].phone, |endpoint, now| {
        endpoint
            .request(
                leg,
                Method::Invite,
                &MessageContent::sdp(strange.as_bytes()),
                now,
            )
            .unwrap();
    });
    talk(&mut net, &mut talkers, 1_000);
    assert!(net.has(talkers[0].phone, |event| matches!(
        event,
        PhoneEvent::Response(488, _)
    )));
    assert_hears(&talkers, &[]);
    for talker in &talkers {
        hang_up(&mut net, talker);
    }
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

#[test]
fn border_offer_is_answered_in_the_ack() {
    let mut net = VirtualNetwork::new(BORDER, 5);
    let phone = net.phone(
        "10.1.0.1:5060",
        PhoneBehaviour {
            acks: false,
            ..PhoneBehaviour::answering(SDP_A)
        },
    );
    let leg = net.call(phone, "sip:801@192.0.2.1", OUT, &MessageContent::default());
    net.run(millis(300));
    let body = net
        .find(phone, |event| *event == PhoneEvent::Answered)
        .body();
    for name in [
        "opus/48000/2",
        "G722/8000",
        "PCMA/8000",
        "PCMU/8000",
        "telephone-event/8000",
    ] {
        assert!(body.contains(name), "{body}");
    }
    net.command(phone, |endpoint, now| {
        endpoint
            .ack(leg, &MessageContent::sdp(SDP_A.as_bytes()), now)
            .unwrap();
    });
    net.run(millis(300));
    assert!(net.names().contains(&"conference_joined"));
    assert_eq!(net.forwarder.bridge().participants(), 1);
    net.command(phone, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap();
    });
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

#[test]
fn unacceptable_calls_are_refused_with_their_reason() {
    let config = BORDER.replace(
        "media={address='192.0.2.1'}",
        "media={address='192.0.2.1',ports='30000-30003'}",
    );
    let mut net = VirtualNetwork::new(&config, 6);
    let call = |net: &mut VirtualNetwork, number: u8, uri: &str, offer: &str| {
        let phone = net.phone(
            &format!("10.1.0.{number}:5060"),
            PhoneBehaviour::answering(SDP_A),
        );
        let leg = net.call(phone, uri, OUT, &MessageContent::sdp(offer.as_bytes()));
        net.run(millis(300));
        (phone, leg)
    };
    let failed = |net: &VirtualNetwork, phone: usize, status: u16| {
        assert!(
            net.has(phone, |event| *event
                == PhoneEvent::Failed(Failure::Response, status)),
            "{:?}",
            net.phone_events(phone)
        );
    };
    // No common codec; only SRTP, without a policy for it; no session description.
    let (phone, _) = call(
        &mut net,
        1,
        "sip:800@192.0.2.1",
        &SDP_A
            .replace("0 101", "97")
            .replace("rtpmap:0 PCMU", "rtpmap:97 GSM"),
    );
    failed(&net, phone, 488);
    let (phone, _) = call(
        &mut net,
        2,
        "sip:800@192.0.2.1",
        &SDP_A.replace("RTP/AVP", "RTP/SAVP"),
    );
    failed(&net, phone, 488);
    let (phone, _) = call(&mut net, 3, "sip:800@192.0.2.1", "hello");
    failed(&net, phone, 488);
    // A number without a conference or route.
    let (phone, _) = call(&mut net, 4, "sip:8000@192.0.2.1", SDP_A);
    failed(&net, phone, 404);
    // Two port pairs, and no more.
    let first = call(&mut net, 5, "sip:800@192.0.2.1", SDP_A);
    let second = call(&mut net, 6, "sip:801@192.0.2.1", SDP_A);
    let (phone, _) = call(&mut net, 7, "sip:800@192.0.2.1", SDP_A);
    failed(&net, phone, 503);
    assert!(net.names().contains(&"media_ports_exhausted"));
    assert_eq!(
        (
            net.border.census().seats,
            net.forwarder.bridge().conferences()
        ),
        (2, 2)
    );
    for (phone, leg) in [first, second] {
        net.command(phone, |endpoint, now| {
            endpoint.bye(leg, &MessageContent::default(), now).unwrap();
        });
    }
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

/// A refresh by re-INVITE that the participant refuses for a time is repeated (RFC 3261 section 14.1).
#[test]
fn refused_refresh_of_a_participant_is_repeated() {
    let config = format!("{BORDER}[session_timer]\nexpires_s=120\n[media]\ntimeout_s=0\n");
    let mut net = VirtualNetwork::new(&config, 8);
    let behaviour = PhoneBehaviour::answering(SDP_A);
    let phone = net.phone_with(("10.1.0.1:5060", Transport::Udp), behaviour, |config| {
        // The border refreshes its session, by re-INVITE.
        config.allow = "INVITE, ACK, BYE, CANCEL".to_owned();
        config.supported.retain(|option| option != "timer");
    });
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    net.call(phone, "sip:800@192.0.2.1", OUT, &offer);
    net.run(Duration::from_secs(1));
    assert!(net.has(phone, |event| *event == PhoneEvent::Answered));
    net.phones[phone].log.behaviour.inside = Some(491);
    net.run(Duration::from_secs(66));
    assert!(net.has(phone, |event| matches!(event, PhoneEvent::Request(_))));
    net.phones[phone].log.behaviour.inside = Some(200);
    net.run(Duration::from_secs(1000));
    assert_eq!(net.border.calls().len(), 1, "{:?}", net.phone_events(phone));
}

#[test]
fn conference_limit_is_enforced() {
    let config = BORDER.replace("number=['800','801']", "regex='8\\d\\d'");
    let mut net = VirtualNetwork::new(&config, 7);
    let statuses: Vec<bool> = [800, 801, 802]
        .into_iter()
        .zip(1..)
        .map(|(number, host)| {
            let phone = net.phone(
                &format!("10.1.0.{host}:5060"),
                PhoneBehaviour::answering(SDP_A),
            );
            net.call(
                phone,
                &format!("sip:{number}@192.0.2.1"),
                OUT,
                &MessageContent::sdp(SDP_A.as_bytes()),
            );
            net.run(millis(300));
            net.has(phone, |event| {
                *event == PhoneEvent::Failed(Failure::Response, 503)
            })
        })
        .collect();
    assert_eq!(statuses, [false, false, true]);
}

#[test]
fn silent_phone_is_removed() {
    let mut net = VirtualNetwork::new(&format!("{BORDER}[media]\ntimeout_s=10\n"), 8);
    let mut talkers = four_phones(&mut net);
    talk(&mut net, &mut talkers, 1_000);
    net.run(Duration::from_secs(60));
    assert!(net.names().contains(&"media_timeout"));
    for talker in &talkers {
        assert!(net.has(talker.phone, |event| *event
            == PhoneEvent::Ended(Ending::Peer)));
    }
    net.assert_quiet();
    assert_eq!(net.forwarder.bridge().conferences(), 0);
}
