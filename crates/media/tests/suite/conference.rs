//! Conferences: mixes, timing, and errors.

use crate::participants;

use codec::{Format, Kind};
use engine::{Forward, HashKey, Time};
use media::conference::{MuteState, ParticipantCommand, ParticipantEvent, TURN_MS, VoiceFormat};
use media::{Forwarder, ForwarderLimits, MediaCommand, MediaEvent, PlanError};
use participants::{Participant, address, run, socket, talk};

const TONES: [f64; 8] = [300.0, 450.0, 620.0, 850.0, 1130.0, 1480.0, 1900.0, 2400.0];

fn forwarder() -> Forwarder {
    Forwarder::new(ForwarderLimits::default(), HashKey::default())
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Codecs of this build.
fn codecs() -> Vec<(Kind, u32)> {
    [
        (Kind::Pcma, 20),
        (Kind::Pcmu, 30),
        (Kind::G722, 20),
        (Kind::Opus, 20),
        (Kind::G729, 20),
        (Kind::G729, 60),
        (Kind::Pcma, 10),
        (Kind::Pcmu, 50),
    ]
    .into_iter()
    .filter(|(kind, _)| kind.is_available())
    .collect()
}

fn three_participants(forwarder: &mut Forwarder) -> Vec<Participant> {
    let mut participants: Vec<Participant> = codecs()
        .into_iter()
        .zip(1..)
        .zip(TONES)
        // Three only listen: G.729 cannot carry more than five tones at once.
        .map(|(((kind, ms), number), hz)| {
            Participant::new(number, kind, ms, if number > 5 { 0.0 } else { hz })
        })
        .collect();
    for participant in &mut participants {
        participant.plan.settings.max_speakers = 8;
        participant.plan.settings.entry_tone = false;
        participant.plan.settings.leave_tone = false;
        participant.join(forwarder, at(0));
    }
    participants
}

/// Levels in dB below which a tone is absent and above which it is present. G.729 models one voice: many tones at once
/// leave traces at other frequencies.
fn bounds(listener: &Participant) -> (f64, f64) {
    match listener.plan.voice.format.kind() {
        Kind::G729 => (-18.0, -11.0),
        _ => (-30.0, -7.0),
    }
}

fn assert_hears(participants: &[Participant], absent: &[u32]) {
    for listener in participants {
        let (silent, received) = bounds(listener);
        for (speaker, hz) in participants.iter().zip(TONES) {
            let level = listener.level(hz);
            let (of, by) = (speaker.number, listener.number);
            if of == by || of > 5 || absent.contains(&of) {
                assert!(level < silent, "{by} hears {of} at {level:.1} dB");
            } else {
                assert!(
                    level > received && level < 4.0,
                    "{by} hears {of} at {level:.1} dB"
                );
            }
        }
    }
}

/// Largest jitter of the packets sent to a participant (RFC 3550 section 6.4.1), in milliseconds.
fn jitter(participant: &Participant) -> f64 {
    let clock = f64::from(participant.plan.voice.format.kind().rtp_clock());
    let (mut jitter, mut most) = (0.0f64, 0.0f64);
    for pair in participant.arrivals.windows(2) {
        let arrivals = (pair[1].0.as_secs_f64() - pair[0].0.as_secs_f64()) * 1000.0;
        let stamps = f64::from(pair[1].1.wrapping_sub(pair[0].1)) * 1000.0 / clock;
        jitter += ((arrivals - stamps).abs() - jitter) / 16.0;
        most = most.max(jitter);
    }
    most
}

#[test]
fn each_participant_receives_the_others_without_itself() {
    let mut forwarder = forwarder();
    let mut participants = three_participants(&mut forwarder);
    talk(&mut forwarder, &mut participants, at(0), at(3_000), |_| {
        false
    });
    assert_hears(&participants, &[]);
    for participant in &participants {
        // In virtual time there is no jitter at any packet time, and no packet is missing.
        assert!(
            jitter(participant) < 1e-6,
            "{}: {}",
            participant.number,
            jitter(participant)
        );
        let steps = participant
            .arrivals
            .windows(2)
            .map(|pair| pair[1].2.wrapping_sub(pair[0].2));
        assert!(steps.eq(core::iter::repeat_n(1, participant.arrivals.len() - 1)));
        // Only the first packet has the marker bit.
        let marked = participant
            .arrivals
            .iter()
            .filter(|packet| packet.3)
            .count();
        assert_eq!((marked, participant.arrivals[0].3), (1, true));
        let packets = 2_900 / participant.plan.voice.packet_ms as usize;
        assert!(
            participant.arrivals.len() + 1 >= packets,
            "{} of {packets}",
            participant.arrivals.len()
        );
    }
    assert_eq!(forwarder.bridge().figures().unprepared, 0);
    assert_eq!(forwarder.bridge().figures().missed, 0);
}

#[test]
fn conference_ends_with_its_last_participant() {
    let mut forwarder = forwarder();
    let mut participants = three_participants(&mut forwarder);
    talk(&mut forwarder, &mut participants, at(0), at(1_500), |_| {
        false
    });
    forwarder.command(MediaCommand::Remove(2), at(1_500));
    let mut departed = participants.remove(1);
    departed.arrivals.clear();
    // The RTCP BYE is the last packet sent to the participant.
    let (from, to, bytes) = forwarder.next_packet().unwrap();
    assert_eq!((from, to), (socket(2), address(2)));
    assert!(wire::rtcp::Compound::new(bytes).any(|part| part.goodbye_sources().count() == 1));
    talk(
        &mut forwarder,
        &mut participants,
        at(1_500),
        at(3_000),
        |_| false,
    );
    for listener in &participants {
        let level = listener.level(TONES[1]);
        assert!(level < bounds(listener).0, "{}: {level}", listener.number);
    }
    assert_eq!(
        (
            forwarder.bridge().participants(),
            forwarder.bridge().conferences()
        ),
        (participants.len(), 1)
    );
    let dropped = departed.speak(&mut forwarder, at(3_000), |_| false);
    assert!(
        dropped
            .iter()
            .all(|reason| reason.name() == "media_no_flow")
    );
    let stats = forwarder.stats(1).unwrap();
    let side = &stats.flows[0].sides[0];
    assert_eq!(side.received.packets, u64::from(participants[0].sent));
    assert_eq!(
        side.sources[0].summary.expected,
        u64::from(participants[0].sent)
    );
    assert_eq!(side.sent.packets, participants[0].arrivals.len() as u64);
    for participant in &participants {
        forwarder.command(
            MediaCommand::Remove(u64::from(participant.number)),
            at(3_000),
        );
    }
    assert_eq!((forwarder.sessions(), forwarder.sockets()), (0, 0));
    assert_eq!(
        (
            forwarder.bridge().participants(),
            forwarder.bridge().conferences()
        ),
        (0, 0)
    );
    while forwarder.next_packet().is_some() {}
    assert_eq!(forwarder.next_deadline(), None);
    let last = core::iter::from_fn(|| forwarder.next_report())
        .filter(|report| matches!(report, MediaEvent::Stats { last: true, .. }))
        .count();
    assert_eq!(last, participants.len() + 1);
}

#[test]
fn mute_and_hold_stop_the_audio() {
    let mut forwarder = forwarder();
    let mut participants = three_participants(&mut forwarder);
    talk(&mut forwarder, &mut participants, at(0), at(1_000), |_| {
        false
    });
    let press = |forwarder: &mut Forwarder, participant: &mut Participant, now: u64| {
        for (digit, stamp) in [('*', 0), ('6', 1_600)] {
            for _ in 0..3 {
                participant.event(forwarder, digit, now as u32 * 8 + stamp, at(now));
            }
        }
    };
    press(&mut forwarder, &mut participants[0], 1_000);
    talk(
        &mut forwarder,
        &mut participants,
        at(1_000),
        at(2_500),
        |_| false,
    );
    assert_hears(&participants, &[1]);
    let muted = forwarder.bridge().participant(1).unwrap().muted;
    assert_eq!(muted, MuteState::ByParticipant);
    press(&mut forwarder, &mut participants[0], 2_500);
    talk(
        &mut forwarder,
        &mut participants,
        at(2_500),
        at(4_000),
        |_| false,
    );
    assert_hears(&participants, &[]);
    let events: Vec<ParticipantEvent> = core::iter::from_fn(|| forwarder.next_report())
        .filter_map(|report| match report {
            MediaEvent::Participant { session: 1, event } => Some(event),
            _ => None,
        })
        .collect();
    assert_eq!(events, [ParticipantEvent::Muted, ParticipantEvent::Unmuted]);
    // On hold, no media is sent or received.
    participants[0].plan.side.sends = false;
    participants[0].plan.side.receives = false;
    let held = MediaCommand::UpdateParticipant(Box::new(participants[0].plan.clone()));
    forwarder.command(held, at(4_000));
    let before = participants[0].arrivals.len();
    talk(
        &mut forwarder,
        &mut participants,
        at(4_000),
        at(5_500),
        |_| false,
    );
    assert_eq!(participants[0].arrivals.len(), before);
    for listener in &participants[1..] {
        assert!(listener.level(TONES[0]) < bounds(listener).0);
    }
    participants[0].plan.side.sends = true;
    participants[0].plan.side.receives = true;
    let resumed = MediaCommand::UpdateParticipant(Box::new(participants[0].plan.clone()));
    forwarder.command(resumed, at(5_500));
    talk(
        &mut forwarder,
        &mut participants,
        at(5_500),
        at(7_000),
        |_| false,
    );
    assert_hears(&participants, &[]);
}

#[test]
fn loss_is_concealed() {
    let mut forwarder = forwarder();
    let mut participants = three_participants(&mut forwarder);
    talk(
        &mut forwarder,
        &mut participants,
        at(0),
        at(4_000),
        |packet| packet % 12 == 5,
    );
    assert_hears(&participants, &[]);
    // Silent G.729 participants are neither decoded nor concealed.
    for participant in participants
        .iter()
        .filter(|participant| participant.number <= 5)
    {
        let decoder = forwarder
            .bridge()
            .participant(u64::from(participant.number))
            .unwrap()
            .decoder;
        let lost = u64::from(participant.sent / 12) * u64::from(participant.plan.voice.packet_ms);
        let concealed = decoder.concealed * 1000 / u64::from(participant.rate);
        assert!(
            concealed >= lost * 8 / 10 && concealed <= lost + 200,
            "{concealed} ms for {lost} ms"
        );
    }
}

#[test]
fn listeners_share_one_encoder() {
    let mut forwarder = forwarder();
    let mut participants: Vec<Participant> = (1..=6)
        .map(|number| {
            Participant::new(
                number,
                Kind::Pcma,
                20,
                if number == 1 { 440.0 } else { 0.0 },
            )
        })
        .collect();
    for participant in &mut participants {
        participant.plan.settings.entry_tone = false;
        participant.join(&mut forwarder, at(0));
    }
    talk(&mut forwarder, &mut participants, at(0), at(2_000), |_| {
        false
    });
    let before = forwarder.bridge().figures();
    talk(
        &mut forwarder,
        &mut participants,
        at(2_000),
        at(3_000),
        |_| false,
    );
    let after = forwarder.bridge().figures();
    // The speaker's own mix and the common one: two encodings for six listeners.
    assert_eq!(after.turns - before.turns, 50);
    assert_eq!(after.encoded - before.encoded, 100);
    assert!(participants[0].level(440.0) < -30.0);
    let last = participants[1].received.len() - 8_000;
    for listener in &participants[1..] {
        assert!(listener.level(440.0) > -3.0);
        assert_eq!(
            listener.received[listener.received.len() - 8_000..],
            participants[1].received[last..]
        );
    }
    // Each participant has a stream of its own.
    let first = participants[1].arrivals[0];
    assert!(
        participants[2..]
            .iter()
            .all(|other| (other.arrivals[0].1, other.arrivals[0].2) != (first.1, first.2))
    );
}

#[test]
fn the_loudest_speakers_are_mixed() {
    let mut forwarder = forwarder();
    let mut participants: Vec<Participant> = (1..=5)
        .zip(TONES)
        .map(|(number, hz)| Participant::new(number, Kind::Pcma, 20, hz))
        .collect();
    for participant in &mut participants {
        participant.plan.settings.max_speakers = 4;
        participant.join(&mut forwarder, at(0));
    }
    participants[2].set_tone(0.0);
    talk(&mut forwarder, &mut participants, at(0), at(2_000), |_| {
        false
    });
    assert!(participants[2].level(TONES[4]) > -3.0);
    // A fifth speaker of equal level is not mixed until another stops.
    participants[2].set_tone(TONES[2]);
    talk(
        &mut forwarder,
        &mut participants,
        at(2_000),
        at(3_000),
        |_| false,
    );
    assert!(participants[0].level(TONES[2]) < -30.0);
    assert!(!forwarder.bridge().participant(3).unwrap().in_mix);
    participants[4].set_tone(0.0);
    talk(
        &mut forwarder,
        &mut participants,
        at(3_000),
        at(5_000),
        |_| false,
    );
    assert!(participants[0].level(TONES[2]) > -3.0);
    assert!(participants[0].level(TONES[4]) < -30.0);
}

#[test]
fn tones_announce_joining_and_leaving() {
    let mut forwarder = forwarder();
    let mut participants = vec![Participant::new(1, Kind::Pcma, 20, 0.0)];
    participants[0].join(&mut forwarder, at(0));
    talk(&mut forwarder, &mut participants, at(0), at(1_000), |_| {
        false
    });
    let peak = |samples: &[i16]| {
        samples
            .iter()
            .map(|sample| sample.unsigned_abs())
            .max()
            .unwrap_or(0)
    };
    assert!(peak(&participants[0].received) < 20);
    participants.push(Participant::new(2, Kind::Pcma, 20, 0.0));
    participants[1].join(&mut forwarder, at(1_000));
    participants[0].received.clear();
    talk(
        &mut forwarder,
        &mut participants,
        at(1_000),
        at(2_000),
        |_| false,
    );
    assert!(peak(&participants[0].received) > 1_000 && peak(&participants[1].received) > 1_000);
    forwarder.command(MediaCommand::Remove(2), at(2_000));
    participants.pop();
    while forwarder.next_packet().is_some() {}
    participants[0].received.clear();
    talk(
        &mut forwarder,
        &mut participants,
        at(2_000),
        at(3_000),
        |_| false,
    );
    assert!(peak(&participants[0].received) > 1_000);
}

#[test]
fn refused_plans_change_nothing() {
    let limits = ForwarderLimits {
        sessions: 4,
        conferences: 1,
        sockets: 80_000,
    };
    let mut forwarder = Forwarder::new(limits, HashKey::default());
    let refusal = |forwarder: &mut Forwarder| match forwarder.next_report() {
        Some(MediaEvent::Refused { error, .. }) => Some(error),
        None => None,
        other => panic!("{other:?}"),
    };
    let mut one = Participant::new(1, Kind::Pcma, 20, 440.0);
    one.plan.settings.max_participants = 2;
    one.join(&mut forwarder, at(0));
    assert_eq!(refusal(&mut forwarder), None);
    one.join(&mut forwarder, at(0));
    assert_eq!(
        refusal(&mut forwarder),
        Some(PlanError::SocketInUse(socket(1)))
    );
    // A packet time that the codec does not have.
    let mut two = Participant::new(2, Kind::Opus, 20, 440.0);
    two.plan.settings.max_participants = 2;
    two.plan.voice.packet_ms = 30;
    two.join(&mut forwarder, at(0));
    assert!(matches!(refusal(&mut forwarder), Some(PlanError::Codec(_))));
    let mut elsewhere = two.plan.clone();
    elsewhere.conference = 2;
    elsewhere.voice.packet_ms = 20;
    forwarder.command(
        MediaCommand::AddParticipant(Box::new(elsewhere.clone())),
        at(0),
    );
    assert_eq!(refusal(&mut forwarder), Some(PlanError::Full));
    assert_eq!((forwarder.sessions(), forwarder.sockets()), (1, 1));
    two.plan.voice.packet_ms = 20;
    two.join(&mut forwarder, at(0));
    assert_eq!(refusal(&mut forwarder), None);
    let mut three = Participant::new(3, Kind::Pcmu, 20, 440.0);
    three.plan.settings.max_participants = 2;
    three.join(&mut forwarder, at(0));
    assert_eq!(refusal(&mut forwarder), Some(PlanError::ConferenceFull));
    // A change that is refused: the previous plan remains in force.
    let mut participants = vec![one, two];
    let mut bad = participants[1].plan.clone();
    bad.voice.packet_ms = 50;
    bad.side.sends = false;
    forwarder.command(
        MediaCommand::UpdateParticipant(Box::new(bad.clone())),
        at(0),
    );
    assert!(matches!(refusal(&mut forwarder), Some(PlanError::Codec(_))));
    bad = participants[1].plan.clone();
    bad.conference = 2;
    forwarder.command(MediaCommand::UpdateParticipant(Box::new(bad)), at(0));
    assert_eq!(refusal(&mut forwarder), Some(PlanError::OtherConference));
    participants[1].set_tone(1_000.0);
    talk(&mut forwarder, &mut participants, at(0), at(1_500), |_| {
        false
    });
    assert!(participants[0].level(1_000.0) > -3.0);
    assert!(participants[1].level(440.0) > -3.0);
    forwarder.command(MediaCommand::Remove(9), at(1_500));
    let refused = MediaEvent::Refused {
        session: 9,
        error: PlanError::NoSuchSession,
    };
    assert!(core::iter::from_fn(|| forwarder.next_report()).any(|report| report == refused));
}

#[test]
fn codec_change_continues_the_stream() {
    let mut forwarder = forwarder();
    let mut participants = vec![
        Participant::new(1, Kind::Pcma, 20, 440.0),
        Participant::new(2, Kind::Pcma, 20, 1_000.0),
    ];
    participants
        .iter()
        .for_each(|participant| participant.join(&mut forwarder, at(0)));
    talk(&mut forwarder, &mut participants, at(0), at(1_000), |_| {
        false
    });
    let before = participants[1].arrivals.last().copied().unwrap();
    let mut changed = Participant::new(2, Kind::G722, 20, 1_000.0);
    changed.plan.settings = participants[1].plan.settings.clone();
    forwarder.command(
        MediaCommand::UpdateParticipant(Box::new(changed.plan.clone())),
        at(1_000),
    );
    participants[1] = changed;
    talk(
        &mut forwarder,
        &mut participants,
        at(1_000),
        at(2_500),
        |_| false,
    );
    assert!(participants[0].level(1_000.0) > -3.0 && participants[0].level(440.0) < -30.0);
    assert!(participants[1].level(440.0) > -3.0 && participants[1].level(1_000.0) < -30.0);
    // The stream continues with the next sequence numbers.
    assert_eq!(participants[1].arrivals[0].2, before.2.wrapping_add(1));
}

#[test]
fn silence_is_sent_as_comfort_noise() {
    let mut forwarder = forwarder();
    let mut voice = VoiceFormat::new(Format::new(Kind::Pcma));
    voice.noise = Some(13);
    voice.suppress_silence = true;
    let mut participants = vec![
        Participant::with(1, voice, 0.0),
        Participant::new(2, Kind::Pcma, 20, 440.0),
    ];
    for participant in &mut participants {
        participant.plan.settings.entry_tone = false;
        participant.join(&mut forwarder, at(0));
    }
    talk(&mut forwarder, &mut participants, at(0), at(2_000), |_| {
        false
    });
    assert!(participants[0].level(440.0) > -3.0);
    participants[1].set_tone(0.0);
    talk(
        &mut forwarder,
        &mut participants,
        at(2_000),
        at(4_000),
        |_| false,
    );
    let before = participants[0].arrivals.len();
    talk(
        &mut forwarder,
        &mut participants,
        at(4_000),
        at(6_000),
        |_| false,
    );
    assert!(participants[0].noise >= 1);
    // Comfort noise packets are rare.
    assert!(
        participants[0].arrivals.len() - before <= 4,
        "{}",
        participants[0].arrivals.len() - before
    );
    participants[1].set_tone(440.0);
    talk(
        &mut forwarder,
        &mut participants,
        at(6_000),
        at(7_000),
        |_| false,
    );
    assert!(participants[0].level(440.0) > -3.0);
    assert!(
        participants[0].arrivals[before..]
            .iter()
            .any(|packet| packet.3)
    );
    assert!(jitter(&participants[0]) < 1e-6);
}

#[test]
fn silence_times_out_and_rtcp_is_exchanged() {
    let mut forwarder = forwarder();
    let mut participants = three_participants(&mut forwarder);
    talk(&mut forwarder, &mut participants, at(0), at(21_000), |_| {
        false
    });
    for participant in &participants {
        assert!(
            (2..=8).contains(&participant.reports),
            "{}",
            participant.reports
        );
    }
    run(&mut forwarder, &mut participants, at(81_500));
    let silent: Vec<u64> = core::iter::from_fn(|| forwarder.next_report())
        .filter_map(|report| match report {
            MediaEvent::Timeout { session, .. } => Some(session),
            _ => None,
        })
        .collect();
    assert_eq!(silent.len(), participants.len());
}

/// A phone that holds the conference (`sendonly`) sends nothing without music.
#[test]
fn participant_on_hold_has_the_timeout_of_hold() {
    let mut forwarder = forwarder();
    let mut participant = Participant::new(1, Kind::Pcma, 20, 0.0);
    participant.plan.inactivity = Some(core::time::Duration::from_secs(60));
    participant.plan.hold_inactivity = Some(core::time::Duration::from_secs(300));
    participant.plan.side.receives = false;
    participant.join(&mut forwarder, at(0));
    let mut participants = [participant];
    run(&mut forwarder, &mut participants, at(299_000));
    let silent = |forwarder: &mut Forwarder| {
        core::iter::from_fn(|| forwarder.next_report())
            .any(|report| matches!(report, MediaEvent::Timeout { .. }))
    };
    assert!(!silent(&mut forwarder));
    run(&mut forwarder, &mut participants, at(302_000));
    assert!(silent(&mut forwarder));
}

#[test]
fn late_thread_skips_turns() {
    let mut forwarder = forwarder();
    let mut participants = vec![
        Participant::new(1, Kind::Pcma, 20, 440.0),
        Participant::new(2, Kind::Pcma, 20, 1_000.0),
    ];
    participants
        .iter()
        .for_each(|participant| participant.join(&mut forwarder, at(0)));
    talk(&mut forwarder, &mut participants, at(0), at(1_000), |_| {
        false
    });
    let before = participants[0].arrivals.len();
    forwarder.timeout(at(1_305));
    participants::deliver(&mut forwarder, &mut participants, at(1_305));
    run(&mut forwarder, &mut participants, at(1_340));
    assert!(participants[0].arrivals.len() - before <= 3);
    assert!(forwarder.bridge().figures().missed >= 13);
    talk(
        &mut forwarder,
        &mut participants,
        at(1_340),
        at(2_500),
        |_| false,
    );
    assert!(participants[0].level(1_000.0) > -3.0 && participants[1].level(440.0) > -3.0);
    // Timestamps include the skipped turns.
    let (first, last) = (
        participants[0].arrivals[0],
        participants[0].arrivals[participants[0].arrivals.len() - 1],
    );
    let elapsed = last.0.since(first.0).as_millis() as u32;
    assert!(last.1.wrapping_sub(first.1).abs_diff(elapsed * 8) <= 8 * TURN_MS);
}

/// A participant that control muted cannot unmute itself by digits.
#[test]
fn digits_do_not_undo_muting_by_control() {
    let mut forwarder = forwarder();
    let mut participants = three_participants(&mut forwarder);
    talk(&mut forwarder, &mut participants, at(0), at(1_000), |_| {
        false
    });
    let digits = |forwarder: &mut Forwarder, participant: &mut Participant, now: u64| {
        for (digit, stamp) in [('*', 0), ('6', 1_600)] {
            participant.event(forwarder, digit, now as u32 * 8 + stamp, at(now));
        }
    };
    let muted = |forwarder: &Forwarder| forwarder.bridge().participant(1).unwrap().muted;
    forwarder.command(
        MediaCommand::ControlParticipant(1, ParticipantCommand::Mute),
        at(1_000),
    );
    assert_eq!(muted(&forwarder), MuteState::ByControl);
    talk(
        &mut forwarder,
        &mut participants,
        at(1_000),
        at(2_500),
        |_| false,
    );
    assert_hears(&participants, &[1]);
    digits(&mut forwarder, &mut participants[0], 2_500);
    assert_eq!(muted(&forwarder), MuteState::ByControl);
    talk(
        &mut forwarder,
        &mut participants,
        at(2_500),
        at(4_000),
        |_| false,
    );
    assert_hears(&participants, &[1]);
    forwarder.command(
        MediaCommand::ControlParticipant(1, ParticipantCommand::Unmute),
        at(4_000),
    );
    talk(
        &mut forwarder,
        &mut participants,
        at(4_000),
        at(5_500),
        |_| false,
    );
    assert_hears(&participants, &[]);
    // Control unmutes a participant that muted itself.
    digits(&mut forwarder, &mut participants[0], 5_500);
    assert_eq!(muted(&forwarder), MuteState::ByParticipant);
    forwarder.command(
        MediaCommand::ControlParticipant(1, ParticipantCommand::Unmute),
        at(5_600),
    );
    assert_eq!(muted(&forwarder), MuteState::Unmuted);
    // No participant has this session number.
    forwarder.command(
        MediaCommand::ControlParticipant(99, ParticipantCommand::Mute),
        at(5_600),
    );
    let refused = core::iter::from_fn(|| forwarder.next_report())
        .filter(|report| matches!(report, MediaEvent::Refused { session: 99, .. }));
    assert_eq!(refused.count(), 1);
    // The statistics report the state, too.
    forwarder.command(MediaCommand::Query(1), at(5_600));
    let reported =
        core::iter::from_fn(|| forwarder.next_report()).find_map(|report| match report {
            MediaEvent::Stats { stats, .. } => stats.participant,
            _ => None,
        });
    assert_eq!(reported.unwrap().muted, MuteState::Unmuted);
}

/// A participant in the lobby neither receives nor contributes to the mix, but its digits are reported, and a tone
/// prompts for the PIN.
#[test]
fn lobby_is_isolated_until_admission() {
    let mut forwarder = forwarder();
    let mut participants = three_participants(&mut forwarder);
    // Each participant has its own frequency.
    let mut waiting = Participant::new(20, Kind::Pcma, 20, 3_100.0);
    waiting.plan.in_lobby = true;
    waiting.plan.settings = participants[0].plan.settings.clone();
    waiting.join(&mut forwarder, at(0));
    participants.push(waiting);
    let last = participants.len() - 1;
    let apart = |participants: &[Participant]| {
        let waiting = &participants[last];
        for (speaker, hz) in participants[..last].iter().zip(TONES) {
            let level = waiting.level(hz);
            assert!(level < -40.0, "receives {} at {level:.1}", speaker.number);
            assert!(
                speaker.level(3_100.0) < -15.0,
                "{} receives the muted one",
                speaker.number
            );
        }
    };
    talk(&mut forwarder, &mut participants, at(0), at(300), |_| false);
    assert!(participants[last].level(440.0) > -30.0, "no PIN prompt");
    talk(
        &mut forwarder,
        &mut participants,
        at(300),
        at(2_500),
        |_| false,
    );
    apart(&participants);
    while forwarder.next_report().is_some() {}
    for (digit, stamp) in [('1', 0), ('#', 1_600)] {
        participants[last].event(&mut forwarder, digit, 20_000 + stamp, at(2_500));
    }
    let digits: Vec<ParticipantEvent> = core::iter::from_fn(|| forwarder.next_report())
        .filter_map(|report| match report {
            MediaEvent::Participant { session: 20, event } => Some(event),
            _ => None,
        })
        .collect();
    assert_eq!(
        digits,
        [ParticipantEvent::Digit(b'1'), ParticipantEvent::Digit(b'#')]
    );
    // A changed plan does not end the lobby.
    let mut same = participants[last].plan.clone();
    same.in_lobby = false;
    forwarder.command(MediaCommand::UpdateParticipant(Box::new(same)), at(2_500));
    talk(
        &mut forwarder,
        &mut participants,
        at(2_500),
        at(4_000),
        |_| false,
    );
    apart(&participants);
    forwarder.command(
        MediaCommand::ControlParticipant(20, ParticipantCommand::RejectPin),
        at(4_000),
    );
    talk(
        &mut forwarder,
        &mut participants,
        at(4_000),
        at(4_300),
        |_| false,
    );
    assert!(
        participants[last].level(300.0) > -30.0,
        "no tone for a wrong PIN"
    );
    talk(
        &mut forwarder,
        &mut participants,
        at(4_300),
        at(6_000),
        |_| false,
    );
    apart(&participants);
    forwarder.command(
        MediaCommand::ControlParticipant(20, ParticipantCommand::Admit),
        at(6_000),
    );
    talk(
        &mut forwarder,
        &mut participants,
        at(6_000),
        at(8_000),
        |_| false,
    );
    for (speaker, hz) in participants[..5].iter().zip(TONES) {
        let level = participants[last].level(hz);
        assert!(level > -7.0, "receives {} at {level:.1} dB", speaker.number);
        if speaker.plan.voice.format.kind() != Kind::G729 {
            let level = speaker.level(3_100.0);
            assert!(
                level > -7.0,
                "{} receives the muted one at {level:.1} dB",
                speaker.number
            );
        }
    }
}

/// Reports on digits as tones of 80 ms with equal pauses, from a participant with or without telephone events.
fn digit_events(kind: Kind, events: bool, in_lobby: bool, digits: &str) -> Vec<ParticipantEvent> {
    let mut forwarder = forwarder();
    let mut participant = Participant::new(1, kind, 20, 440.0);
    participant.plan.voice.events = events.then_some(101);
    participant.plan.in_lobby = in_lobby;
    participant.join(&mut forwarder, at(0));
    let mut participants = [participant];
    let mut now = 0;
    let mut on = |forwarder: &mut Forwarder, participants: &mut [Participant; 1], span: u64| {
        talk(forwarder, participants, at(now), at(now + span), |_| false);
        now += span;
    };
    on(&mut forwarder, &mut participants, 500);
    for digit in digits.chars() {
        participants[0].sound(Some(digit));
        on(&mut forwarder, &mut participants, 80);
        participants[0].sound(None);
        on(&mut forwarder, &mut participants, 80);
    }
    on(&mut forwarder, &mut participants, 500);
    core::iter::from_fn(|| forwarder.next_report())
        .filter_map(|report| match report {
            MediaEvent::Participant { event, .. } => Some(event),
            _ => None,
        })
        .collect()
}

#[test]
fn digits_are_detected_in_audio_without_telephone_events() {
    let digits = "1234567890*#ABCD";
    let all: Vec<ParticipantEvent> = digits.bytes().map(ParticipantEvent::Digit).collect();
    for kind in [Kind::Pcma, Kind::Pcmu, Kind::G722, Kind::Opus] {
        assert_eq!(digit_events(kind, false, true, digits), all, "{kind:?}");
        let muted = [ParticipantEvent::Muted, ParticipantEvent::Unmuted];
        assert_eq!(digit_events(kind, false, false, "*6*6"), muted, "{kind:?}");
    }
    // Digits are not detected with telephone events, nor with G.729.
    assert_eq!(digit_events(Kind::Pcma, true, true, digits), []);
    assert_eq!(digit_events(Kind::Pcma, true, false, "*6"), []);
    if Kind::G729.is_available() {
        assert_eq!(digit_events(Kind::G729, false, true, digits), []);
    }
}

#[test]
fn digits_are_reported_after_timestamps_restart_below() {
    let mut forwarder = forwarder();
    let mut participant = Participant::new(1, Kind::Pcma, 20, 440.0);
    participant.plan.in_lobby = true;
    participant.join(&mut forwarder, at(0));
    // The fourth packet is a late one of the event before it.
    for (ms, digit, timestamp) in [
        (100, '1', 1_000_000_000),
        (300, '2', 5_000),
        (500, '3', 6_600),
        (520, '2', 5_000),
        (700, '4', 9_000),
    ] {
        for _ in 0..3 {
            participant.event(&mut forwarder, digit, timestamp, at(ms));
        }
    }
    let digits: Vec<ParticipantEvent> = core::iter::from_fn(|| forwarder.next_report())
        .filter_map(|report| match report {
            MediaEvent::Participant { event, .. } => Some(event),
            _ => None,
        })
        .collect();
    let expected: Vec<ParticipantEvent> = b"1234".map(ParticipantEvent::Digit).into();
    assert_eq!(digits, expected);
}
