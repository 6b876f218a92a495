//! Control of conferences, and conferences with a PIN: participation, admission and logging.

use crate::conference_phones;
use crate::virtual_network;

use border::conferences::{
    ConferenceName, ConferenceReply, ConferenceRequest, ConferenceView, MAX_CONFERENCE_REQUESTS,
    ParticipantView,
};
use codec::Kind;
use conference_phones::*;
use engine::EventKind;
use media::conference::MuteState;
use sip::{Ending, Failure, MessageContent};
use std::time::Duration;
use virtual_network::*;

const BORDER: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[conference]]\nname='meeting'\nnumber=['800','801']\nmax_participants=4\nmax_conferences=2\ntones='none'\n";

fn name(number: &str) -> ConferenceName {
    ConferenceName {
        conference: "meeting".to_owned(),
        number: number.to_owned(),
    }
}

/// Sends a request and waits for the reply.
fn ask(net: &mut VirtualNetwork, number: &str, request: ConferenceRequest) -> ConferenceReply {
    net.control(|border, now| border.request_conference(7, &name(number), &request, now));
    for _ in 0..200 {
        if let Some((number, reply)) = net.border.next_conference_reply() {
            assert_eq!(number, 7);
            return reply;
        }
        net.run(millis(1));
    }
    panic!("no answer to {request:?}");
}

fn conference(net: &mut VirtualNetwork, number: &str) -> (ConferenceView, Vec<ParticipantView>) {
    match ask(net, number, ConferenceRequest::Show) {
        ConferenceReply::Conference(conference, participants) => (conference, participants),
        other => panic!("{other:?}"),
    }
}

fn participant_of(reply: ConferenceReply) -> ParticipantView {
    match reply {
        ConferenceReply::Participant(participant) => participant,
        other => panic!("{other:?}"),
    }
}

/// Calls `number` with PCMA; the result is not checked.
fn call_number(net: &mut VirtualNetwork, number: u8, uri: &str) -> usize {
    let phone = net.phone(
        &format!("10.1.0.{number}:5060"),
        PhoneBehaviour::answering(SDP_A),
    );
    let own = format!("10.1.0.{number}:4000").parse().unwrap();
    let offer = sdp(own, Kind::Pcma, 20, "");
    net.call(phone, uri, OUT, &MessageContent::sdp(offer.as_bytes()));
    net.run(millis(200));
    phone
}

#[test]
fn participants_are_listed_muted_and_removed() {
    let mut net = VirtualNetwork::new(BORDER, 1);
    assert_eq!(
        ask(&mut net, "", ConferenceRequest::List),
        ConferenceReply::Conferences(Vec::new())
    );
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::Show),
        ConferenceReply::NoConference
    );
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::End),
        ConferenceReply::NoConference
    );
    let mut talkers = four_phones(&mut net);
    talk(&mut net, &mut talkers, 1_500);
    let ConferenceReply::Conferences(conferences) = ask(&mut net, "", ConferenceRequest::List)
    else {
        panic!("no list");
    };
    let shown = (
        conferences.len(),
        &conferences[0].name,
        conferences[0].participants,
        conferences[0].locked,
    );
    assert_eq!(shown, (1, &name("800"), 4, false));
    let (_, participants) = conference(&mut net, "800");
    assert_eq!(participants.len(), 4);
    for (participant, talker) in participants.iter().zip(&talkers) {
        assert_eq!(participant.codec, talker.kind.name());
        let packet_ms = if talker.kind == Kind::G722 { 30 } else { 20 };
        assert_eq!(participant.packet_ms, packet_ms);
        assert!(
            participant.from.contains(&format!("p{}@", talker.phone)),
            "{}",
            participant.from
        );
        assert!(!participant.call_id.is_empty());
        // Of 1.5 s the first packets and those in transit may be missing.
        let least = 1_400 / u64::from(packet_ms);
        assert!(
            participant.received >= least && participant.sent >= least - 5,
            "{participant:?}"
        );
        assert_eq!(
            (participant.lost, participant.muted, participant.in_lobby),
            (0, MuteState::Unmuted, false)
        );
        assert!(
            participant.in_mix && participant.jitter_ms.is_some_and(|jitter| jitter < 1.0),
            "{participant:?}"
        );
    }
    // Muted by control: the others do not receive its audio, and digits do not unmute it.
    let first = participants[0].call;
    let muted = participant_of(ask(&mut net, "800", ConferenceRequest::Mute(first, true)));
    assert_eq!((muted.call, muted.muted), (first, MuteState::ByControl));
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[0]);
    talkers[0].press(&mut net, '*', 90_000);
    talkers[0].press(&mut net, '6', 91_000);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[0]);
    let received = participant_of(ask(&mut net, "800", ConferenceRequest::Mute(first, false)));
    assert_eq!(received.muted, MuteState::Unmuted);
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    // An unknown session number, and one of another conference.
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::ShowParticipant(99)),
        ConferenceReply::NoParticipant
    );
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::Remove(99)),
        ConferenceReply::NoParticipant
    );
    assert_eq!(
        ask(&mut net, "801", ConferenceRequest::Remove(first)),
        ConferenceReply::NoConference
    );
    // Removed: it gets BYE, the others continue.
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::Remove(first)),
        ConferenceReply::Ended(1)
    );
    let gone = talkers.remove(0);
    talk(&mut net, &mut talkers, 1_500);
    assert!(net.has(gone.phone, |event| *event
        == PhoneEvent::Ended(Ending::Peer)));
    let bye = net
        .find(gone.phone, |event| {
            *event == PhoneEvent::Ended(Ending::Peer)
        })
        .text();
    assert!(bye.contains("Reason: SIP;cause=480"), "{bye}");
    assert_hears(&talkers, &[]);
    assert_eq!(conference(&mut net, "800").1.len(), 3);
    // All are removed.
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::End),
        ConferenceReply::Ended(3)
    );
    net.run(millis(200));
    for talker in &talkers {
        assert!(net.has(talker.phone, |event| *event
            == PhoneEvent::Ended(Ending::Peer)));
    }
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::Show),
        ConferenceReply::NoConference
    );
    net.run(Duration::from_secs(40));
    net.assert_quiet();
    let by: Vec<String> = net
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::ConferenceMuted {
                requested_by: by, ..
            } => Some(by.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(by, ["control", "control"]);
}

#[test]
fn locked_conference_refuses_calls_until_unlocked_or_ended() {
    let mut net = VirtualNetwork::new(BORDER, 2);
    let inside = ConferencePhone::dial(&mut net, 1, "sip:800@192.0.2.1", Kind::Pcma, 20, 440.0);
    let locked = |reply: ConferenceReply| match reply {
        ConferenceReply::Conference(conference, _) => conference.locked,
        other => panic!("{other:?}"),
    };
    assert!(locked(ask(&mut net, "800", ConferenceRequest::Lock(true))));
    assert!(locked(ask(&mut net, "800", ConferenceRequest::Lock(true))));
    let phone = call_number(&mut net, 2, "sip:800@192.0.2.1");
    assert!(net.has(phone, |event| *event
        == PhoneEvent::Failed(Failure::Response, 403)));
    // Another conference is not affected.
    let phone = call_number(&mut net, 3, "sip:801@192.0.2.1");
    assert!(net.has(phone, |event| *event == PhoneEvent::Answered));
    assert!(!locked(ask(
        &mut net,
        "800",
        ConferenceRequest::Lock(false)
    )));
    let phone = call_number(&mut net, 4, "sip:800@192.0.2.1");
    assert!(net.has(phone, |event| *event == PhoneEvent::Answered));
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::End),
        ConferenceReply::Ended(2)
    );
    assert_eq!(
        ask(&mut net, "801", ConferenceRequest::End),
        ConferenceReply::Ended(1)
    );
    net.run(millis(200));
    // Locked and ended: the next call begins a new conference.
    let again = ConferencePhone::dial(&mut net, 5, "sip:800@192.0.2.1", Kind::Pcma, 20, 440.0);
    assert!(locked(ask(&mut net, "800", ConferenceRequest::Lock(true))));
    hang_up(&mut net, &again);
    let phone = call_number(&mut net, 6, "sip:800@192.0.2.1");
    assert!(net.has(phone, |event| *event == PhoneEvent::Answered));
    assert!(net.has(inside.phone, |event| *event
        == PhoneEvent::Ended(Ending::Peer)));
    let reported: Vec<bool> = net
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::ConferenceLocked { locked, .. } => Some(*locked),
            _ => None,
        })
        .collect();
    // Requests without effect are not logged.
    assert_eq!(reported, [true, false, true]);
}

#[test]
fn large_conference_is_queried_in_parts_and_queries_are_limited() {
    let config = BORDER.replace("max_participants=4", "max_participants=60");
    let mut net = VirtualNetwork::new(&config, 3);
    let mut talkers: Vec<ConferencePhone> = (1..=40)
        .map(|number| {
            ConferencePhone::dial(&mut net, number, "sip:800@192.0.2.1", Kind::Pcma, 20, 440.0)
        })
        .collect();
    let asked = net.now;
    let (view, participants) = conference(&mut net, "800");
    assert_eq!((view.participants, participants.len()), (40, 40));
    // 16 at a time: it had to wait twice.
    let took = net.now.since(asked);
    assert!(took >= millis(4) && took < millis(20), "{took:?}");
    // A participant that leaves during the query is omitted from the reply.
    net.control(|border, now| {
        border.request_conference(8, &name("800"), &ConferenceRequest::Show, now)
    });
    let leaving = talkers.pop().unwrap();
    let leg = leaving.leg;
    net.command(leaving.phone, |endpoint, now| {
        endpoint.bye(leg, &MessageContent::default(), now).unwrap();
    });
    net.run(millis(50));
    let (number, reply) = net.border.next_conference_reply().unwrap();
    let ConferenceReply::Conference(_, participants) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!((number, participants.len()), (8, 39));
    // Queries above the limit are refused at once, the others answered.
    let all = MAX_CONFERENCE_REQUESTS as u64 + 10;
    net.control(|border, now| {
        for number in 0..all {
            border.request_conference(number, &name("800"), &ConferenceRequest::Show, now);
        }
    });
    net.run(millis(500));
    let mut replies: Vec<(u64, ConferenceReply)> =
        std::iter::from_fn(|| net.border.next_conference_reply()).collect();
    replies.sort_by_key(|(number, _)| *number);
    assert_eq!(replies.len() as u64, all);
    for (number, reply) in replies {
        match reply {
            ConferenceReply::Busy => assert!(number >= MAX_CONFERENCE_REQUESTS as u64, "{number}"),
            ConferenceReply::Conference(_, participants) => assert_eq!(participants.len(), 39),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::End),
        ConferenceReply::Ended(39)
    );
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

const PIN: &str = "[[interface]]\nname='out'\nkind='access'\nlisten=['udp:192.0.2.1:5060']\nmedia={address='192.0.2.1'}\n\
    [[conference]]\nname='meeting'\nnumber=['800','801','802']\nmax_participants=3\nmax_conferences=1\ntones='none'\npin='2468'\n";

/// Dials digits at intervals of half a second.
fn press(net: &mut VirtualNetwork, talkers: &mut [ConferencePhone], index: usize, digits: &str) {
    for digit in digits.chars() {
        let timestamp = net.now.as_millis() as u32 * 8;
        talkers[index].press(net, digit, timestamp);
        talk(net, talkers, 500);
    }
}

fn outcomes(net: &VirtualNetwork) -> Vec<String> {
    let notes = net.events.iter().filter_map(|event| match &event.kind {
        EventKind::ConferencePin { outcome, .. } => Some(outcome.clone()),
        _ => None,
    });
    notes.collect()
}

fn three(net: &mut VirtualNetwork) -> Vec<ConferencePhone> {
    [440.0, 1050.0, 1600.0]
        .into_iter()
        .zip(1..)
        .map(|(hz, number)| {
            ConferencePhone::dial(net, number, "sip:800@192.0.2.1", Kind::Pcma, 20, hz)
        })
        .collect()
}

#[test]
fn correct_pin_admits_the_caller() {
    let mut net = VirtualNetwork::new(PIN, 4);
    let mut talkers = three(&mut net);
    // The first two are admitted: one by the length of its input, the other by the hash key after a wrong PIN.
    press(&mut net, &mut talkers, 0, "2468");
    press(&mut net, &mut talkers, 1, "13#2468#");
    talk(&mut net, &mut talkers, 1_500);
    assert_eq!(
        outcomes(&net),
        [
            "requested",
            "requested",
            "requested",
            "accepted",
            "wrong",
            "accepted"
        ]
    );
    let (view, participants) = conference(&mut net, "800");
    assert_eq!((view.participants, view.in_lobby), (2, 1));
    let waiting: Vec<bool> = participants
        .iter()
        .map(|participant| participant.in_lobby)
        .collect();
    assert_eq!(waiting, [false, false, true]);
    // The third neither receives nor contributes to the mix.
    for (by, listener) in talkers.iter().enumerate() {
        for (of, speaker) in talkers.iter().enumerate() {
            let level = listener.level(speaker.hz);
            match (by, of) {
                (0, 1) | (1, 0) => assert!(level > -7.0, "{by} hears {of} at {level:.1} dB"),
                _ => assert!(level < -30.0, "{by} hears {of} at {level:.1} dB"),
            }
        }
    }
    press(&mut net, &mut talkers, 2, "2468");
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[]);
    // Digits mute, as without a PIN.
    press(&mut net, &mut talkers, 2, "*6");
    talk(&mut net, &mut talkers, 1_500);
    assert_hears(&talkers, &[2]);
    for talker in &talkers {
        hang_up(&mut net, talker);
    }
    net.run(Duration::from_secs(40));
    net.assert_quiet();
    let count = |name: &str| net.names().iter().filter(|other| **other == name).count();
    assert_eq!(
        (count("conference_joined"), count("conference_left")),
        (3, 3)
    );
    let counters = net.border.counters();
    assert_eq!((counters.pins_wrong, counters.pins_refused), (1, 0));
}

/// Telephone events with the clock rate of Opus (RFC 4733 section 2.1), one of which is repeated late.
#[test]
fn pin_by_events_with_the_clock_rate_of_opus() {
    let mut net = VirtualNetwork::new(PIN, 7);
    let phone = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let offer = "v=0\r\no=x 1 1 IN IP4 10.1.0.1\r\ns=-\r\nc=IN IP4 10.1.0.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 111 102\r\n\
        a=rtpmap:111 opus/48000/2\r\na=rtpmap:102 telephone-event/48000\r\n";
    let content = MessageContent::sdp(offer.as_bytes());
    net.call(phone, "sip:800@192.0.2.1", OUT, &content);
    net.run(millis(300));
    let answered = net.find(phone, |event| *event == PhoneEvent::Answered);
    let answer = answered.body();
    assert!(
        answer.contains("a=rtpmap:102 telephone-event/48000"),
        "{answer}"
    );
    let to = format!("192.0.2.1:{}", port_of(&answer));
    // Each digit with its time in seconds; the first is received once more after the second.
    let events = [
        ('2', 10.0),
        ('4', 10.5),
        ('2', 10.0),
        ('6', 11.0),
        ('8', 11.5),
    ];
    for ((digit, at), sequence) in events.into_iter().zip(1..) {
        let event = wire::rtp::TelephoneEvent {
            event: wire::rtp::TelephoneEvent::code(digit).unwrap(),
            end: true,
            volume: 10,
            duration: 4_800,
        };
        let header = wire::rtp::RtpHeader {
            payload_type: 102,
            sequence,
            timestamp: (at * 48_000.0) as u32,
            ssrc: 7,
            ..wire::rtp::RtpHeader::default()
        };
        net.send_raw("10.1.0.1:4000", &to, &header.packet(&event.to_bytes()));
        net.run(millis(300));
    }
    assert_eq!(outcomes(&net), ["requested", "accepted"]);
}

#[test]
fn wrong_or_missing_pin_ends_the_call() {
    let mut net = VirtualNetwork::new(PIN, 5);
    let mut talkers = three(&mut net);
    hang_up(&mut net, &talkers.pop().unwrap());
    // Each takes its time: 3 times 4 digits in 6 s; the other sends no digits for half a minute.
    press(&mut net, &mut talkers, 0, "111122223333");
    let ended = |net: &VirtualNetwork, talker: &ConferencePhone| {
        net.has(talker.phone, |event| {
            *event == PhoneEvent::Ended(Ending::Peer)
        })
    };
    assert!(ended(&net, &talkers[0]), "three wrong PINs");
    let bye = net.find(talkers[0].phone, |event| {
        *event == PhoneEvent::Ended(Ending::Peer)
    });
    assert!(
        bye.text().contains("Reason: SIP;cause=403"),
        "{}",
        bye.text()
    );
    assert!(!ended(&net, &talkers[1]));
    talk(&mut net, &mut talkers[1..], 20_000);
    assert!(!ended(&net, &talkers[1]));
    talk(&mut net, &mut talkers[1..], 6_000);
    assert!(ended(&net, &talkers[1]), "no PIN in half a minute");
    assert_eq!(
        outcomes(&net)[3..],
        ["wrong", "wrong", "wrong", "timeout"].map(String::from)
    );
    let counters = net.border.counters();
    assert_eq!((counters.pins_wrong, counters.pins_refused), (3, 2));
    // There was no participant, so no tone and no event.
    assert!(
        !net.names().contains(&"conference_joined") && !net.names().contains(&"conference_left")
    );
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

/// A PIN must not be found by calling often.
#[test]
fn wrong_pins_of_several_calls_lock_their_source_out() {
    const URI: &str = "sip:800@192.0.2.1";
    let mut net = VirtualNetwork::new(PIN, 9);
    let dial = |net: &mut VirtualNetwork, host: u8| {
        ConferencePhone::dial(net, host, URI, Kind::Pcma, 20, 440.0)
    };
    let mut talkers = vec![dial(&mut net, 1)];
    let again = |net: &mut VirtualNetwork, talker: &mut ConferencePhone| {
        let offer = sdp(talker.own, Kind::Pcma, 20, "");
        let content = MessageContent::sdp(offer.as_bytes());
        talker.leg = net.call(talker.phone, URI, OUT, &content);
        net.run(millis(200));
    };
    let answered = |net: &VirtualNetwork, talker: &mut ConferencePhone| {
        let answer = net.last(talker.phone, |event| *event == PhoneEvent::Answered);
        talker.to.set_port(port_of(&answer.body()));
    };
    for call in 0..3 {
        if call > 0 {
            again(&mut net, &mut talkers[0]);
            answered(&net, &mut talkers[0]);
        }
        press(&mut net, &mut talkers, 0, "111122223333");
    }
    let phone = talkers[0].phone;
    assert_eq!(net.border.counters().pins_wrong, 9);
    assert_eq!(net.border.census().participants, 0);
    again(&mut net, &mut talkers[0]);
    assert!(refused(&net, phone, 403), "{:?}", net.phone_events(phone));
    assert_eq!(limit_events(&net), ["pin"]);
    // Another source is not concerned.
    let mut others = vec![dial(&mut net, 2)];
    press(&mut net, &mut others, 0, "2468");
    assert_eq!(outcomes(&net).last().map(String::as_str), Some("accepted"));
    // After a minute the source may try again.
    net.run(Duration::from_secs(60));
    again(&mut net, &mut talkers[0]);
    answered(&net, &mut talkers[0]);
    press(&mut net, &mut talkers, 0, "2468");
    let accepted = outcomes(&net);
    let accepted = accepted.iter().filter(|outcome| *outcome == "accepted");
    assert_eq!(accepted.count(), 2);
}

fn ended(net: &VirtualNetwork, phone: usize) -> bool {
    net.has(phone, |event| *event == PhoneEvent::Ended(Ending::Peer))
}

fn refused(net: &VirtualNetwork, phone: usize, status: u16) -> bool {
    net.has(phone, |event| {
        *event == PhoneEvent::Failed(Failure::Response, status)
    })
}

fn limit_events(net: &VirtualNetwork) -> Vec<String> {
    let notes = net.events.iter().filter_map(|event| match &event.kind {
        EventKind::ConferenceFull { limit: what, .. } => Some(what.clone()),
        _ => None,
    });
    notes.collect()
}

#[test]
fn lobby_does_not_count_as_participants_and_limits_apply_on_admission() {
    let mut net = VirtualNetwork::new(&PIN.replace("max_conferences=1", "max_conferences=2"), 6);
    let dial = |net: &mut VirtualNetwork, number: u8, uri: &str| {
        [ConferencePhone::dial(
            net,
            number,
            uri,
            Kind::Pcma,
            20,
            700.0,
        )]
    };
    // More callers in lobbies than participants allowed, and in more conferences than allowed.
    let mut waiting = three(&mut net);
    let mut fourth = dial(&mut net, 4, "sip:800@192.0.2.1");
    let mut second = dial(&mut net, 5, "sip:801@192.0.2.1");
    let mut third = dial(&mut net, 7, "sip:802@192.0.2.1");
    // Two conferences begin; the correct PIN of a third is refused.
    press(&mut net, &mut waiting, 0, "2468");
    press(&mut net, &mut second, 0, "2468");
    press(&mut net, &mut third, 0, "2468");
    assert!(ended(&net, third[0].phone) && !ended(&net, second[0].phone));
    // A conference is full, and further calls are refused at once.
    press(&mut net, &mut waiting, 1, "2468");
    press(&mut net, &mut waiting, 2, "2468");
    press(&mut net, &mut fourth, 0, "2468");
    assert!(ended(&net, fourth[0].phone));
    let phone = call_number(&mut net, 8, "sip:800@192.0.2.1");
    assert!(refused(&net, phone, 486));
    // A lock applies to the lobby, too.
    let mut fifth = dial(&mut net, 9, "sip:801@192.0.2.1");
    let lock = ask(&mut net, "801", ConferenceRequest::Lock(true));
    assert!(matches!(lock, ConferenceReply::Conference(..)));
    press(&mut net, &mut fifth, 0, "2468");
    assert!(ended(&net, fifth[0].phone));
    assert_eq!(
        limit_events(&net),
        ["conferences", "participants", "participants", "locked"]
    );
    assert_eq!(
        ask(&mut net, "800", ConferenceRequest::End),
        ConferenceReply::Ended(3)
    );
    assert_eq!(
        ask(&mut net, "801", ConferenceRequest::End),
        ConferenceReply::Ended(1)
    );
    net.run(Duration::from_secs(40));
    net.assert_quiet();
    // Both have ended: others may begin.
    let mut again = dial(&mut net, 10, "sip:802@192.0.2.1");
    press(&mut net, &mut again, 0, "2468");
    assert!(!ended(&net, again[0].phone));
    assert_eq!(conference(&mut net, "802").0.participants, 1);
}

/// All have time to dial; then a caller without input is displaced, and one that dials is not.
#[test]
fn idle_lobby_caller_is_displaced() {
    let config = PIN.replace("pin='2468'", "pin='2468'\nwaiting=3");
    let mut net = VirtualNetwork::new(&config, 7);
    let mut waiting = three(&mut net);
    let phone = call_number(&mut net, 4, "sip:801@192.0.2.1");
    assert!(refused(&net, phone, 486), "the lobby is full");
    talk(&mut net, &mut waiting, 7_000);
    press(&mut net, &mut waiting, 0, "2");
    let phone = call_number(&mut net, 5, "sip:800@192.0.2.1");
    assert!(refused(&net, phone, 486), "no caller was idle for long");
    talk(&mut net, &mut waiting, 3_000);
    let phone = call_number(&mut net, 6, "sip:800@192.0.2.1");
    assert!(net.has(phone, |event| *event == PhoneEvent::Answered));
    let gone: Vec<bool> = waiting
        .iter()
        .map(|talker| ended(&net, talker.phone))
        .collect();
    assert_eq!(
        gone,
        [false, true, false],
        "the second was idle for longest"
    );
    let bye = net.find(waiting[1].phone, |event| {
        *event == PhoneEvent::Ended(Ending::Peer)
    });
    assert!(
        bye.text().contains("Reason: SIP;cause=486"),
        "{}",
        bye.text()
    );
    // The first continues its input.
    press(&mut net, &mut waiting, 0, "468");
    let (view, _) = conference(&mut net, "800");
    assert_eq!((view.participants, view.in_lobby), (1, 2));
    let reported = [
        "requested",
        "requested",
        "requested",
        "displaced",
        "requested",
        "accepted",
    ];
    assert_eq!(outcomes(&net), reported);
    assert_eq!(limit_events(&net), ["lobby", "lobby"]);
    assert_eq!(net.border.counters().pins_refused, 1);
    // Half a minute has passed for the others.
    net.run(Duration::from_secs(30));
    hang_up(&mut net, &waiting[0]);
    net.run(Duration::from_secs(40));
    net.assert_quiet();
}

/// A source without the PIN occupies the lobby repeatedly: callers from other sources get in.
#[test]
fn one_source_cannot_occupy_the_lobby() {
    let config = PIN.replace("pin='2468'", "pin='2468'\nwaiting=4");
    let mut net = VirtualNetwork::new(&config, 8);
    let strange = |net: &mut VirtualNetwork, port: u16| {
        let phone = net.phone(
            &format!("10.9.0.1:{port}"),
            PhoneBehaviour::answering(SDP_A),
        );
        let offer = sdp("10.9.0.1:4000".parse().unwrap(), Kind::Pcma, 20, "");
        let content = MessageContent::sdp(offer.as_bytes());
        net.call(phone, "sip:800@192.0.2.1", OUT, &content);
        net.run(millis(50));
        phone
    };
    let mut strangers: Vec<usize> = (0..4).map(|at| strange(&mut net, 6_000 + at)).collect();
    let mut friends = Vec::new();
    for host in 1..=3 {
        // The attackers call faster than digits can be dialled.
        let again: Vec<usize> = (0..20)
            .map(|at| strange(&mut net, 7_000 + 100 * u16::from(host) + at))
            .collect();
        for phone in again {
            assert!(refused(&net, phone, 486), "{:?}", net.phone_events(phone));
        }
        let uri = "sip:800@192.0.2.1";
        friends.push(ConferencePhone::dial(
            &mut net,
            host,
            uri,
            Kind::Pcma,
            20,
            440.0,
        ));
        let gone = strangers.remove(0);
        assert!(ended(&net, gone), "the oldest caller");
        assert!(strangers.iter().all(|phone| !ended(&net, *phone)));
    }
    // Now each source has one place in the lobby, and all are equal.
    let phone = call_number(&mut net, 4, "sip:800@192.0.2.1");
    assert!(refused(&net, phone, 486));
    for index in 0..3 {
        press(&mut net, &mut friends, index, "2468");
    }
    let (view, _) = conference(&mut net, "800");
    assert_eq!((view.participants, view.in_lobby), (3, 1));
}
