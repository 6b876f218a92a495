//! The end of calls: the time of the event, and its fields.

use crate::virtual_network;

use border::operator::CallName;
use engine::{EventKind, Hundredths};
use sip::{LegId, MessageContent};
use std::time::Duration;
use virtual_network::*;

fn call(net: &mut VirtualNetwork, alice: usize) -> LegId {
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    leg
}

fn hang_up(net: &mut VirtualNetwork, phone: usize, leg: LegId) {
    net.command(phone, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap()
    });
}

/// The single event about the end of a call.
fn ended(net: &VirtualNetwork) -> EventKind {
    let notes = net.events.iter().map(|event| &event.kind);
    let mut ends = notes.filter(|note| note.name() == "call_ended");
    let end = ends.next().expect("call_ended").clone();
    assert!(ends.next().is_none(), "reported once");
    end
}

/// Its fields without the call number, as they are logged.
fn fields(note: &EventKind) -> Vec<String> {
    let mut fields = Vec::new();
    note.fields(&mut |name, value| fields.push(format!("{name}={value}")));
    fields.remove(0);
    fields
}

fn port_of(body: &str) -> u16 {
    let rest = body.split("m=audio ").nth(1).unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

fn rtp(sequence: u16, ssrc: u8) -> Vec<u8> {
    let mut packet = vec![0x80, 0, 0, 0, 0, 0, 0, 0, ssrc, 2, 3, 4];
    packet[2..4].copy_from_slice(&sequence.to_be_bytes());
    packet[4..8].copy_from_slice(&(u32::from(sequence) * 160).to_be_bytes());
    packet.extend([0x55; 160]);
    packet
}

/// Two seconds of audio from both sides; every tenth packet of the caller is lost before the border.
fn speak(net: &mut VirtualNetwork, alice: usize, bob: usize) {
    let towards_alice = port_of(
        &net.find(alice, |event| *event == PhoneEvent::Answered)
            .body(),
    );
    let towards_bob = port_of(&net.find(bob, |event| *event == PhoneEvent::Offered).body());
    for sequence in 0..100 {
        if sequence % 10 != 5 {
            let to = format!("192.0.2.1:{towards_alice}");
            net.send_raw("10.1.0.1:4000", &to, &rtp(sequence, 1));
        }
        let to = format!("198.51.100.1:{towards_bob}");
        net.send_raw("10.2.0.1:5000", &to, &rtp(sequence, 9));
        net.run(Duration::from_millis(20));
    }
}

#[test]
fn call_end_is_logged_with_statistics_before_the_bye_response() {
    let (mut net, alice, bob) = pair(PLAIN);
    let leg = call(&mut net, alice);
    speak(&mut net, alice, bob);
    // The border's BYE is not answered: the call's leg lingers for 32 s.
    net.silence("10.2.0.1:5060");
    hang_up(&mut net, alice, leg);
    net.run(Duration::from_millis(50));
    let end = ended(&net);
    assert_eq!(
        fields(&end),
        [
            "ended_by=caller",
            "reason=bye",
            "status=200",
            "duration_ms=2998",
            "trunk=pbx",
            "path=sockets",
            "codec=PCMU",
            "caller_loss_percent=10.00",
            "caller_jitter_ms=0.00",
            "caller_mos=3.41",
            "callee_loss_percent=0.00",
            "callee_jitter_ms=0.00",
            "callee_mos=4.41",
        ]
    );
    let media = net.events.iter().find_map(|event| match &event.kind {
        EventKind::CallMedia {
            caller_packets,
            caller_lost,
            callee_packets,
            callee_sent,
            caller_protection,
            ..
        } => Some((
            [*caller_packets, *caller_lost, *callee_packets, *callee_sent],
            caller_protection.clone(),
        )),
        _ => None,
    });
    let (totals, protection) = media.expect("totals of the media");
    assert_eq!(totals, [Some(90), Some(10), Some(100), Some(90)]);
    assert_eq!(protection.as_deref(), Some("none"));
    net.assert_quiet();
    ended(&net);
}

#[test]
fn refused_call_ends_with_its_final_response() {
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.answer = Some(486);
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(Duration::from_millis(10));
    assert_eq!(
        fields(&ended(&net)),
        [
            "ended_by=callee",
            "reason=refused",
            "status=486",
            "trunk=pbx",
            "path=sockets"
        ]
    );
    net.assert_quiet();
}

#[test]
fn bypassed_media_has_no_statistics() {
    let config = format!("{PLAIN}[[route]]\ntrunk='pbx'\nmedia='bypass'\n");
    let (mut net, alice, _) = pair(&config);
    let leg = call(&mut net, alice);
    hang_up(&mut net, alice, leg);
    net.run(seconds(1));
    assert_eq!(
        fields(&ended(&net)),
        [
            "ended_by=caller",
            "reason=bye",
            "status=200",
            "duration_ms=998",
            "trunk=pbx",
            "path=bypass",
            "codec=PCMU"
        ]
    );
}

/// The codec in the event about the end of the only call.
fn codec_of(net: &VirtualNetwork) -> Option<String> {
    match ended(net) {
        EventKind::CallEnded { codec, .. } => codec,
        other => panic!("{other:?}"),
    }
}

#[test]
fn answer_in_the_ack_names_the_codec() {
    let bypass = format!("{PLAIN}[[route]]\ntrunk='pbx'\nmedia='bypass'\n");
    for config in [PLAIN, bypass.as_str()] {
        let (mut net, alice, bob) = pair(config);
        net.phones[alice].log.behaviour.sdp = "late".into();
        net.phones[bob].log.behaviour.sdp = SDP_B.replace("RTP/AVP 0", "RTP/AVP 8 0");
        let none = MessageContent::default();
        let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &none);
        net.run(seconds(1));
        hang_up(&mut net, alice, leg);
        net.run(seconds(1));
        // The caller has chosen the second one of the offer.
        assert_eq!(codec_of(&net).as_deref(), Some("PCMU"));
    }
}

#[test]
fn both_codecs_of_a_transcoded_call_without_packets_are_named() {
    let opus = SDP_A
        .replace("RTP/AVP 0 101", "RTP/AVP 96")
        .replace("a=rtpmap:0 PCMU/8000", "a=rtpmap:96 opus/48000/2")
        .replace("a=rtpmap:101 telephone-event/8000\r\n", "");
    let config = PLAIN.replace("kind='core'", "kind='core'\ntranscode='PCMU'");
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(&opus));
    net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(opus.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    hang_up(&mut net, alice, leg);
    net.run(seconds(1));
    assert_eq!(codec_of(&net).as_deref(), Some("opus/PCMU"));
}

#[test]
fn call_without_packets_has_its_codec_and_no_statistics() {
    let (mut net, alice, _) = pair(PLAIN);
    let leg = call(&mut net, alice);
    hang_up(&mut net, alice, leg);
    net.run(seconds(1));
    let EventKind::CallEnded {
        path,
        caller_mos,
        callee_loss_percent,
        codec,
        ..
    } = ended(&net)
    else {
        panic!();
    };
    assert_eq!(path.as_deref(), Some("sockets"));
    assert_eq!((caller_mos, callee_loss_percent), (None, None));
    assert_eq!(codec.as_deref(), Some("PCMU"), "that of the answer");
}

#[test]
fn dynamic_payload_type_of_a_transcoded_side_is_logged() {
    let opus = SDP_A
        .replace("RTP/AVP 0 101", "RTP/AVP 96")
        .replace("a=rtpmap:0 PCMU/8000", "a=rtpmap:96 opus/48000/2")
        .replace("a=rtpmap:101 telephone-event/8000\r\n", "");
    let config = PLAIN.replace("kind='core'", "kind='core'\ntranscode='PCMU'");
    let mut net = VirtualNetwork::new(&config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(&opus));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    let offer = MessageContent::sdp(opus.as_bytes());
    let leg = net.call(alice, "sip:bob@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    let towards_alice = port_of(
        &net.find(alice, |event| *event == PhoneEvent::Answered)
            .body(),
    );
    let towards_bob = port_of(&net.find(bob, |event| *event == PhoneEvent::Offered).body());
    for sequence in 0..10 {
        let mut packet = rtp(sequence, 1);
        packet[1] = 96;
        net.send_raw(
            "10.1.0.1:4000",
            &format!("192.0.2.1:{towards_alice}"),
            &packet,
        );
        let to = format!("198.51.100.1:{towards_bob}");
        net.send_raw("10.2.0.1:5000", &to, &rtp(sequence, 9));
        net.run(Duration::from_millis(20));
    }
    hang_up(&mut net, alice, leg);
    net.run(seconds(1));
    let EventKind::CallEnded {
        codec, callee_mos, ..
    } = ended(&net)
    else {
        panic!();
    };
    assert_eq!(codec.as_deref(), Some("opus/PCMU"));
    assert!(callee_mos > Some(Hundredths(400)), "{callee_mos:?}");
}

/// For the caller the call was refused.
#[test]
fn call_whose_answer_cannot_be_passed_on_was_not_answered() {
    let config = PLAIN.replace("kind='core'", "kind='core'\nsrtp='require'");
    let (mut net, alice, _) = pair(&config);
    call(&mut net, alice);
    let EventKind::CallEnded {
        status,
        duration_ms,
        ..
    } = ended(&net)
    else {
        panic!();
    };
    assert_eq!((status, duration_ms), (488, None));
    assert!(!net.names().contains(&"call_answered"));
}

#[test]
fn route_and_address_of_a_call_are_logged() {
    let config = format!("{PLAIN}[[route]]\nname='all of them'\ntrunk='pbx'\n");
    let (mut net, alice, _) = pair(&config);
    call(&mut net, alice);
    let routed = net.events.iter().find_map(|event| match &event.kind {
        EventKind::CallRouted {
            route,
            target,
            address,
            ..
        } => Some([route.clone(), target.clone(), address.clone()]),
        _ => None,
    });
    assert_eq!(routed.unwrap(), ["all of them", "pbx", "udp:10.2.0.1:5060"]);
}

/// The party that ended a call, its reason and status.
fn end_of(net: &VirtualNetwork) -> (String, String, u16) {
    match ended(net) {
        EventKind::CallEnded {
            ended_by,
            reason,
            status,
            ..
        } => (ended_by, reason, status),
        other => panic!("{other:?}"),
    }
}

/// A callee that does nothing does not end the call.
#[test]
fn timeouts_are_ends_by_the_border() {
    let of = |by: &str, reason: &str, status| (by.to_owned(), reason.to_owned(), status);
    // No answer at all.
    let mut net = VirtualNetwork::new(PLAIN, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    call(&mut net, alice);
    net.run(seconds(60));
    assert_eq!(
        end_of(&net),
        of("border", "no response from the target", 408)
    );
    // It rings for too long.
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.answer = None;
    call(&mut net, alice);
    net.run(seconds(400));
    assert_eq!(end_of(&net), of("border", "no answer", 480));
    // It refuses.
    let (mut net, alice, bob) = pair(PLAIN);
    net.phones[bob].log.behaviour.answer = Some(486);
    call(&mut net, alice);
    net.run(seconds(1));
    let end = end_of(&net);
    assert_eq!((end.0.as_str(), end.2), ("callee", 486));
}

#[test]
fn refused_request_is_reported_with_its_call_and_interface() {
    let config = format!("{PLAIN}[[route]]\nto={{prefix='1'}}\ntrunk='pbx'\n");
    let (mut net, alice, _) = pair(&config);
    let offer = MessageContent::sdp(SDP_A.as_bytes());
    let long = format!("sip:6{}@192.0.2.1", "0".repeat(400));
    net.call(alice, &long, OUT, &offer);
    net.run(seconds(1));
    let refused = |net: &VirtualNetwork| {
        let notes = net.events.iter().map(|event| event.kind.clone());
        let refused = notes.filter(|note| note.name() == "invite_refused");
        refused.collect::<Vec<EventKind>>()
    };
    let notes = refused(&net);
    let [
        EventKind::InviteRefused {
            to,
            call_id,
            interface,
            reason,
            ..
        },
    ] = &notes[..]
    else {
        panic!("{notes:?}");
    };
    assert_eq!((to.as_str(), to.len()), (&long[..200], 200));
    assert_eq!((interface.as_str(), reason.as_str()), ("out", "no route"));
    assert!(!call_id.is_empty());
    // Also at the default level, at most twenty in ten seconds.
    net.border.set_debug_events(false);
    for _ in 0..30 {
        net.call(alice, "sip:600@192.0.2.1", OUT, &offer);
        net.run(Duration::from_millis(100));
    }
    assert_eq!(refused(&net).len(), 20);
    net.run(seconds(10));
    net.call(alice, "sip:600@192.0.2.1", OUT, &offer);
    net.run(seconds(1));
    let last = refused(&net).pop();
    assert!(matches!(
        last,
        Some(EventKind::InviteRefused {
            suppressed: 11,
            status: 404,
            ..
        })
    ));
    assert!(!net.names().contains(&"request_refused"));
}

/// A caller chooses its Call-ID, and may choose the number of another call.
#[test]
fn call_id_that_looks_like_a_number_does_not_stand_for_the_call_with_this_number() {
    let (mut net, alice, _) = pair(PLAIN);
    let invite = format!(
        "INVITE sip:bob@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.9:5060;branch=z9hG4bKx\r\n\
         From: <sip:mallory@10.1.0.9>;tag=1\r\nTo: <sip:bob@192.0.2.1>\r\nCall-ID: 2\r\nCSeq: 1 INVITE\r\n\
         Max-Forwards: 70\r\nContact: <sip:mallory@10.1.0.9:5060>\r\nContent-Type: application/sdp\r\n\
         Content-Length: {}\r\n\r\n{SDP_A}",
        SDP_A.len()
    );
    net.send_raw("10.1.0.9:5060", OUT, invite.as_bytes());
    net.run(seconds(1));
    call(&mut net, alice);
    let numbers = |net: &VirtualNetwork| {
        let calls = net.border.calls();
        calls.iter().map(|call| call.number).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&net), [1, 2]);
    let number = CallName::Number(2);
    let call_id = CallName::CallId("2".to_owned());
    let found = |net: &VirtualNetwork, name| net.border.call(name).map(|call| call.number);
    assert_eq!(found(&net, &number), Some(2));
    assert_eq!(found(&net, &call_id), Some(1));
    assert!(net.control(|border, now| border.hang_up(&number, now)));
    net.run(seconds(1));
    assert_eq!(numbers(&net), [1]);
    assert!(!net.control(|border, now| border.hang_up(&number, now)));
    assert!(net.control(|border, now| border.hang_up(&call_id, now)));
}
