//! Streams and RTCP of conference participants: report blocks, sequence numbers, packets before the keys are agreed.

use crate::participants::{self, Participant, address, socket};

use codec::{Format, Kind};
use core::time::Duration;
use engine::{DropReason, Entropy, Forward, HashKey, MediaPacket, PacketVerdict, Time};
use media::conference::{ParticipantEvent, VoiceFormat};
use media::{Forwarder, ForwarderLimits, Keys, MediaCommand, MediaEvent, Protection};
use protect::srtp::{ContextLimits, Inbound, MasterKey, Suite};
use std::sync::Arc;
use wire::rtcp::{Compound, CompoundBuilder, ReportBlock, SenderInfo, is_rtcp};
use wire::rtp::{RtpHeader, RtpView, TelephoneEvent};

fn forwarder() -> Forwarder {
    Forwarder::new(ForwarderLimits::default(), HashKey::default())
}

fn participant() -> Participant {
    let mut participant = Participant::new(1, Kind::Pcmu, 20, 0.0);
    participant.plan.settings.entry_tone = false;
    participant.plan.inactivity = None;
    participant
}

/// Lends a packet of the participant to the forwarder.
fn send(forwarder: &mut Forwarder, bytes: &mut [u8], now: Time) {
    let mut packet = MediaPacket::new(socket(1), address(1), now, bytes);
    let verdict = forwarder.forward(&mut packet, now);
    assert!(matches!(verdict, PacketVerdict::Consumed), "{verdict:?}");
}

/// Runs until `end`; returns the packets to the participant.
fn run(forwarder: &mut Forwarder, end: Time) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some(deadline) = forwarder
        .next_deadline()
        .filter(|deadline| deadline.at <= end)
    {
        forwarder.timeout(deadline.at);
        while let Some((.., bytes)) = forwarder.next_packet() {
            packets.push(bytes.to_vec());
        }
    }
    packets
}

/// The blocks about the participant's streams; `None` for each report without one.
fn blocks(packets: &[Vec<u8>]) -> Vec<Option<ReportBlock>> {
    let reports = packets.iter().filter(|packet| is_rtcp(packet));
    reports
        .map(|packet| Compound::new(packet).find_map(|part| part.reports().next()))
        .collect()
}

/// Sends audio of this source for ten seconds, and returns the blocks of that time.
fn speak(forwarder: &mut Forwarder, ssrc: u32, from_s: u64) -> Vec<Option<ReportBlock>> {
    let mut packets = Vec::new();
    for index in 0..500u64 {
        let now = Time::from_millis(from_s * 1_000 + index * 20);
        packets.extend(run(forwarder, now));
        let header = RtpHeader {
            ssrc,
            sequence: index as u16,
            timestamp: index as u32 * 160,
            ..RtpHeader::default()
        };
        send(forwarder, &mut header.packet(&[0xff; 160]), now);
    }
    blocks(&packets)
}

#[test]
fn report_blocks_are_about_the_source_that_is_heard() {
    let mut forwarder = forwarder();
    participant().join(&mut forwarder, Time::ZERO);
    let info = SenderInfo {
        ntp: 0x1234_5678_9abc_def0,
        ..SenderInfo::default()
    };
    let report = CompoundBuilder::new().sender_report(1, &info, &[]);
    send(
        &mut forwarder,
        &mut report.cname(1, "a").finish(),
        Time::ZERO,
    );
    let first = speak(&mut forwarder, 1, 0);
    let about_first = first.iter().flatten().last().unwrap();
    assert_eq!((about_first.ssrc, about_first.last_sr), (1, 0x5678_9abc));
    assert!(about_first.delay_since_last_sr > 0);
    // Another source, which has sent no report.
    let second = speak(&mut forwarder, 2, 10);
    let about_second = second.iter().flatten().last().unwrap();
    assert_eq!(about_second.ssrc, 2);
    assert_eq!(
        (about_second.last_sr, about_second.delay_since_last_sr),
        (0, 0)
    );
    // Silence: one more block about the last packets at most.
    let silent = blocks(&run(&mut forwarder, Time::from_secs(60)));
    assert!(silent.len() > 3);
    assert!(silent[1..].iter().all(Option::is_none), "{silent:?}");
}

/// The thread was busy while packets of half a turn and the next turn became due: all are sent once, in order.
#[test]
fn late_thread_sends_packets_of_half_a_turn_before_the_next_turn() {
    let mut forwarder = forwarder();
    let mut participants = [1, 2].map(|number| {
        let mut participant = Participant::new(number, Kind::Pcma, 10, 440.0);
        participant.plan.settings.entry_tone = false;
        participant
    });
    for participant in &participants {
        participant.join(&mut forwarder, Time::ZERO);
    }
    participants::talk(
        &mut forwarder,
        &mut participants,
        Time::ZERO,
        Time::from_millis(1_000),
        |_| false,
    );
    let turns = forwarder.bridge().figures().turns;
    let mut now = Time::from_millis(1_000);
    while forwarder.bridge().figures().turns == turns {
        now = forwarder.next_deadline().unwrap().at;
        participants::run(&mut forwarder, &mut participants, now);
    }
    let before = participants.each_ref().map(|phone| phone.arrivals.len());
    // 10 ms after the turn there is no call.
    for _ in 0..3 {
        now += Duration::from_millis(20);
        while forwarder
            .next_deadline()
            .is_some_and(|deadline| deadline.at <= now)
        {
            forwarder.timeout(now);
            participants::deliver(&mut forwarder, &mut participants, now);
        }
    }
    for (participant, before) in participants.iter().zip(before) {
        // Each turn has two packets; the second one of the last turn is not due yet.
        let numbers: Vec<u16> = participant.arrivals[before - 1..]
            .iter()
            .map(|arrival| arrival.2)
            .collect();
        let next: Vec<u16> = (numbers[0]..).take(1 + 3 * 2).collect();
        assert_eq!(numbers, next);
    }
    assert_eq!(forwarder.bridge().figures().missed, 0);
}

/// At 48 kHz an event has another segment each 1.37 s (RFC 4733 section 2.5.1.3).
#[test]
fn long_digit_is_one_digit() {
    let mut forwarder = forwarder();
    let mut voice = VoiceFormat::new(Format::new(Kind::Opus));
    (voice.events, voice.events_clock) = (Some(101), 48_000);
    let mut participant = Participant::with(1, voice, 0.0);
    participant.plan.in_lobby = true;
    participant.join(&mut forwarder, Time::ZERO);
    let segment = u32::from(u16::MAX);
    // A key held for 3 s, then the same key twice.
    let packets = [
        (1_000, 9_600, false),
        (1_000, u16::MAX, false),
        (1_000 + segment, 4_000, false),
        (1_000 + segment, u16::MAX, false),
        (1_000 + 2 * segment, 12_930, true),
        (1_000 + 2 * segment, 12_930, true),
        (160_000, 4_800, true),
        (170_000, 4_800, true),
    ];
    for (index, (timestamp, duration, end)) in packets.into_iter().enumerate() {
        let event = TelephoneEvent {
            event: 1,
            end,
            volume: 10,
            duration,
        };
        let header = RtpHeader {
            payload_type: 101,
            sequence: index as u16,
            timestamp,
            ssrc: 101,
            ..RtpHeader::default()
        };
        let now = Time::from_millis(100 * index as u64);
        send(&mut forwarder, &mut header.packet(&event.to_bytes()), now);
    }
    let digits = core::iter::from_fn(|| forwarder.next_report()).filter(|report| {
        let digit = ParticipantEvent::Digit(b'1');
        matches!(report, MediaEvent::Participant { event, .. } if *event == digit)
    });
    assert_eq!(digits.count(), 3);
}

/// After a reload a re-INVITE of a participant of before has the plan with the old settings.
#[test]
fn settings_are_those_of_the_last_to_join() {
    let mut forwarder = forwarder();
    let mut participants = [1, 2].map(|number| Participant::new(number, Kind::Pcma, 20, 0.0));
    participants[1].plan.settings.mute_digits = b"*7".iter().copied().collect();
    for participant in &participants {
        participant.join(&mut forwarder, Time::ZERO);
    }
    let refreshed = MediaCommand::UpdateParticipant(Box::new(participants[0].plan.clone()));
    forwarder.command(refreshed, Time::ZERO);
    for (digit, ms) in [('*', 200), ('7', 400)] {
        let now = Time::from_millis(ms);
        participants[0].event(&mut forwarder, digit, ms as u32 * 8, now);
    }
    let reports: Vec<MediaEvent> = core::iter::from_fn(|| forwarder.next_report()).collect();
    let muted = MediaEvent::Participant {
        session: 1,
        event: ParticipantEvent::Muted,
    };
    assert!(reports.contains(&muted), "{reports:?}");
}

/// Comfort noise (RFC 3389) is no speech: the others would hear a hiss at each description of it.
#[test]
fn comfort_noise_is_not_mixed() {
    let mut forwarder = forwarder();
    let mut voice = VoiceFormat::new(Format::new(Kind::Pcma));
    voice.noise = Some(13);
    let mut participants = [
        Participant::with(1, voice, 0.0),
        Participant::new(2, Kind::Pcma, 20, 0.0),
    ];
    for participant in &mut participants {
        participant.plan.settings.entry_tone = false;
        participant.join(&mut forwarder, Time::ZERO);
    }
    let at = Time::from_millis;
    participants::talk(&mut forwarder, &mut participants, at(0), at(1_000), |_| {
        false
    });
    let is_mixed = |forwarder: &Forwarder| forwarder.bridge().participant(1).unwrap().in_mix;
    for second in 1..6 {
        let header = RtpHeader {
            payload_type: 13,
            sequence: 1_000 + second as u16,
            timestamp: second as u32 * 8_000,
            ssrc: 101,
            ..RtpHeader::default()
        };
        let begin = second * 1_000;
        send(&mut forwarder, &mut header.packet(&[50]), at(begin));
        for ms in (begin + 10..begin + 1_000).step_by(10) {
            participants::run(&mut forwarder, &mut participants, at(ms));
            assert!(!is_mixed(&forwarder), "{ms} ms");
        }
    }
    participants[0].set_tone(440.0);
    participants::talk(
        &mut forwarder,
        &mut participants,
        at(6_000),
        at(7_000),
        |_| false,
    );
    assert!(is_mixed(&forwarder), "speech after the pause");
}

/// A receiver of SRTP that misses the first packets would assume a wrong rollover counter (RFC 3711 section 3.3.1).
#[test]
fn first_sequence_numbers_are_far_from_their_wrap() {
    for seed in 0..64 {
        let mut forwarder = forwarder();
        let mut participant = participant();
        participant.plan.seed = seed;
        participant.join(&mut forwarder, Time::ZERO);
        let packets = run(&mut forwarder, Time::from_millis(200));
        let first = packets.iter().find_map(|packet| RtpView::parse(packet));
        assert!(first.unwrap().sequence() < 0x8000, "seed {seed}");
    }
}

#[test]
fn packets_before_the_keys_are_not_counted_as_sent() {
    let mut forwarder = forwarder();
    let mut participant = participant();
    participant.plan.side.protection = Protection::Pending;
    participant.join(&mut forwarder, Time::ZERO);
    let mut packets = run(&mut forwarder, Time::from_secs(2));
    assert!(packets.is_empty());
    let key = |number| {
        let mut entropy = Entropy::from_number(number);
        MasterKey::generate(Suite::AesCm128HmacSha1_80, &mut entropy)
    };
    participant.plan.side.protection = Protection::Srtp(Arc::new(Keys {
        association: 1,
        local: key(1),
        remote: vec![key(2)],
        window: 0,
    }));
    let update = MediaCommand::UpdateParticipant(Box::new(participant.plan.clone()));
    forwarder.command(update, Time::from_secs(2));
    packets.extend(run(&mut forwarder, Time::from_secs(12)));
    let mut inbound = Inbound::new(&key(1), ContextLimits::default()).unwrap();
    let mut voice = 0;
    let mut reported = None;
    for packet in &mut packets {
        if is_rtcp(packet) {
            let length = inbound.unprotect_rtcp(packet).unwrap();
            let info = Compound::new(&packet[..length]).find_map(|part| part.sender_info());
            reported = reported.or(Some((info.unwrap().packets, voice)));
        } else {
            inbound.unprotect_rtp(packet).unwrap();
            voice += 1;
        }
    }
    let (reported, sent) = reported.unwrap();
    assert!(u32::abs_diff(reported, sent) <= 1, "{reported} of {sent}");
    let stats = forwarder.stats(1).unwrap();
    let drops = &stats.flows[0].sides[0].drops;
    let no_key = drops.iter().find(|drop| drop.0 == DropReason::SrtpNoKey);
    assert_eq!(no_key, None);
    // The time without keys is no gap of the stream.
    assert!(voice > Duration::from_secs(9).as_millis() as u32 / 20);
}
