//! Conferences of the border: mixes, limits and errors.

use crate::conference_phones;
use crate::virtual_network;

use border::admission::{CostPart, Price};
use codec::Kind;
use conference_phones::*;
use engine::Transport;
use protect::sdes::CryptoAttribute;
use protect::srtp::{ContextLimits, Inbound, Outbound};
use sip::{Ending, Failure, MessageContent};
use std::time::Duration;
use virtual_network::*;
use wire::rtp::{RtpHeader, TelephoneEvent};
use wire::sip::Method;

const BORDER: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[conference]]\nname='meeting'\nnumber=['800','801']\nmax_participants=4\nmax_conferences=2\ntones='none'\n";

#[test]
fn participants_hear_the_others_and_leave_no_state() {
    let mut net = VirtualNetwork::new(BORDER, 1);
    let mut talkers = four_phones(&mut net);
    assert_eq!(net.border.census().participants, 4);
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
    assert_eq!(net.border.census().participants, 4);
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

/// Admission control counts the codec in use, not that of the first offer.
#[test]
fn codec_change_changes_the_reservation() {
    let mut net = VirtualNetwork::new(BORDER, 15);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let own = "10.1.0.1:4000".parse().unwrap();
    let offers = [Kind::Pcma, Kind::Opus, Kind::Pcma].map(|kind| sdp(own, kind, 20, ""));
    let leg = net.call(
        phone,
        "sip:800@192.0.2.1",
        OUT,
        &MessageContent::sdp(offers[0].as_bytes()),
    );
    net.run(millis(200));
    let reserved = |net: &mut VirtualNetwork| {
        let parts = net.control(|border, now| border.taken(now));
        let of = |(part, _): &&(CostPart, Price)| *part == CostPart::Conference;
        parts.iter().find(of).unwrap().1
    };
    let mut all = vec![reserved(&mut net)];
    for offer in &offers[1..] {
        net.command(phone, |endpoint, now| {
            let content = MessageContent::sdp(offer.as_bytes());
            endpoint
                .request(leg, Method::Invite, &content, now)
                .unwrap();
        });
        net.run(millis(200));
        all.push(reserved(&mut net));
    }
    let mut both = Price::PARTICIPANT;
    both += Price::VOCODER;
    assert_eq!(all, [Price::PARTICIPANT, both, Price::PARTICIPANT]);
    net.command(phone, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap();
    });
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
    // No packet came: the codec is that of the answer.
    let codec = net.events.iter().find_map(|event| match &event.kind {
        engine::EventKind::CallEnded { codec, .. } => codec.as_deref(),
        _ => None,
    });
    assert_eq!(codec, Some("PCMU"));
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
            net.border.census().participants,
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

/// The participant does not support UPDATE, and leaves refreshing to the border.
fn refreshed_phone(net: &mut VirtualNetwork, behaviour: PhoneBehaviour) -> usize {
    net.phone_with(("10.1.0.1:5060", Transport::Udp), behaviour, |config| {
        config.allow = "INVITE, ACK, BYE, CANCEL".to_owned();
        config.supported.retain(|option| option != "timer");
    })
}

const SUITE: &str = "AES_CM_128_HMAC_SHA1_80";

/// A description with SRTP and this key, and the context for packets under it.
fn with_key(sdp: &str, key: char) -> (String, Outbound) {
    let sdp = sdp.replace("RTP/AVP", "RTP/SAVP");
    let value = format!("1 {SUITE} inline:{}", key.to_string().repeat(40));
    let attribute = CryptoAttribute::parse(value.as_bytes()).unwrap();
    let context = Outbound::new(&attribute.keys[0], ContextLimits::default()).unwrap();
    (format!("{sdp}a=crypto:{value}\r\n"), context)
}

/// Dials `*6` by telephone events with SRTP, beginning with this sequence number.
fn press_mute(net: &mut VirtualNetwork, to: &str, context: &mut Outbound, sequence: u16) {
    for (digit, sequence) in ['*', '6'].into_iter().zip(sequence..) {
        let event = TelephoneEvent {
            event: TelephoneEvent::code(digit).unwrap(),
            end: true,
            volume: 10,
            duration: 800,
        };
        let header = RtpHeader {
            payload_type: 101,
            sequence,
            timestamp: u32::from(sequence) * 8_000,
            ssrc: 7,
            ..RtpHeader::default()
        };
        let mut packet = header.packet(&event.to_bytes());
        let length = packet.len();
        packet.resize(length + 16, 0);
        let length = context.protect_rtp(&mut packet, length).unwrap();
        net.send_raw("10.1.0.1:4000", to, &packet[..length]);
        net.run(millis(500));
    }
}

#[test]
fn keys_in_answers_to_the_border_are_used() {
    let secure = format!("kind='access'\nsrtp='require'\nsrtp_suites='{SUITE}'");
    let config = BORDER.replace("kind='access'", &secure);
    let config = format!("{config}[session_timer]\nexpires_s=120\n[media]\ntimeout_s=0\n");
    let mut net = VirtualNetwork::new(&config, 9);
    let (second, mut later) = with_key(SDP_A, 'b');
    let behaviour = PhoneBehaviour {
        acks: false,
        ..PhoneBehaviour::answering(&second)
    };
    let phone = refreshed_phone(&mut net, behaviour);
    let leg = net.call(phone, "sip:801@192.0.2.1", OUT, &MessageContent::default());
    net.run(millis(300));
    let answered = net.find(phone, |event| *event == PhoneEvent::Answered);
    let offer = answered.body();
    assert!(offer.contains(" RTP/SAVP "), "{offer}");
    let to = format!("192.0.2.1:{}", port_of(&offer));
    let (first, mut now) = with_key(SDP_A, 'a');
    net.command(phone, |endpoint, now| {
        let content = MessageContent::sdp(first.as_bytes());
        endpoint.ack(leg, &content, now).unwrap();
    });
    net.media.clear();
    let muted = |net: &VirtualNetwork| {
        let names = net.names();
        names
            .iter()
            .filter(|name| **name == "conference_muted")
            .count()
    };
    press_mute(&mut net, &to, &mut now, 1);
    assert_eq!(muted(&net), 1, "{:?}", net.names());
    let ours = offer.split("a=crypto:").nth(1).unwrap().lines().next();
    let ours = CryptoAttribute::parse(ours.unwrap().as_bytes()).unwrap();
    let mut inbound = Inbound::new(&ours.keys[0], ContextLimits::default()).unwrap();
    let mix: Vec<Vec<u8>> = net.media.iter().map(|(.., bytes)| bytes.clone()).collect();
    let voice = mix.into_iter().filter(|bytes| !wire::rtcp::is_rtcp(bytes));
    let opened = voice.map(|mut bytes| inbound.unprotect_rtp(&mut bytes).unwrap());
    assert!(opened.count() > 30);
    // The session is refreshed, and the phone has another key.
    net.run(Duration::from_secs(70));
    let refresh = net.last(phone, |event| matches!(event, PhoneEvent::Request(_)));
    assert_eq!(refresh.method(), "INVITE");
    press_mute(&mut net, &to, &mut later, 100);
    assert_eq!(muted(&net), 2, "{:?}", net.names());
}

/// The phone would refuse an offer with other lines or payload types, and the session would expire.
#[test]
fn refresh_keeps_the_media_lines_and_payload_types() {
    let config = format!("{BORDER}[session_timer]\nexpires_s=120\n[media]\ntimeout_s=0\n");
    let mut net = VirtualNetwork::new(&config, 10);
    let audio = "v=0\r\no=x 1 1 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 107 96\r\n\
        a=rtpmap:107 opus/48000/2\r\na=rtpmap:96 telephone-event/48000\r\n";
    let answer = format!("{audio}m=video 0 RTP/AVP 98\r\n");
    let phone = refreshed_phone(&mut net, PhoneBehaviour::answering(&answer));
    let offer = format!("{audio}m=video 4002 RTP/AVP 98\r\na=rtpmap:98 VP8/90000\r\n");
    let offer = MessageContent::sdp(offer.as_bytes());
    net.call(phone, "sip:800@192.0.2.1", OUT, &offer);
    net.run(Duration::from_secs(200));
    let is_refresh = |event: &PhoneEvent| matches!(event, PhoneEvent::Request(_));
    let refreshes = net
        .log(phone)
        .iter()
        .filter(|entry| is_refresh(&entry.event));
    assert!(refreshes.count() >= 2, "{:?}", net.phone_events(phone));
    let body = net.last(phone, is_refresh).body();
    let lines: Vec<&str> = body.lines().filter(|line| line.starts_with("m=")).collect();
    assert_eq!(lines.len(), 2, "{body}");
    assert!(lines[0].starts_with("m=audio "), "{body}");
    assert_eq!(lines[1], "m=video 0 RTP/AVP 98");
    for kept in [
        "a=rtpmap:107 opus/48000/2\r\n",
        "a=rtpmap:96 telephone-event/48000\r\n",
    ] {
        assert!(body.contains(kept), "{body}");
    }
    assert_eq!(net.border.calls().len(), 1);
}
