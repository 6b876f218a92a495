//! Conferences: who hears whom, in which time, and what becomes of errors.

use crate::conference;

use codec::{Format, Kind};
use conference::{Participant, address, run, socket, talk};
use engine::{Forward, HashKey, Time};
use media::room::{Muted, SeatEvent, SeatOrder, TURN_MS, Voice};
use media::{Forwarder, ForwarderLimits, MediaCommand, MediaEvent, PlanError};

const TONES: [f64; 8] = [300.0, 450.0, 620.0, 850.0, 1130.0, 1480.0, 1900.0, 2400.0];

fn forwarder() -> Forwarder {
    Forwarder::new(ForwarderLimits::default(), HashKey::default())
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Codecs that this build has.
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

fn company(forwarder: &mut Forwarder) -> Vec<Participant> {
    let mut people: Vec<Participant> = codecs()
        .into_iter()
        .zip(1..)
        .zip(TONES)
        // Three only listen: more tones at once than five are nothing that G.729 could carry.
        .map(|(((kind, ms), number), hz)| {
            Participant::new(number, kind, ms, if number > 5 { 0.0 } else { hz })
        })
        .collect();
    for person in &mut people {
        person.plan.terms.speakers = 8;
        person.plan.terms.entry_tone = false;
        person.plan.terms.leave_tone = false;
        person.join(forwarder, at(0));
    }
    people
}

/// What counts as not heard, and as heard at least, in dB. G.729 is made for one voice: many tones at once leave traces elsewhere.
fn bounds(listener: &Participant) -> (f64, f64) {
    match listener.plan.voice.sends.kind() {
        Kind::G729 => (-18.0, -11.0),
        _ => (-30.0, -7.0),
    }
}

fn assert_hears(people: &[Participant], absent: &[u32]) {
    for listener in people {
        let (silent, heard) = bounds(listener);
        for (speaker, hz) in people.iter().zip(TONES) {
            let level = listener.level(hz);
            let (of, by) = (speaker.number, listener.number);
            if of == by || of > 5 || absent.contains(&of) {
                assert!(level < silent, "{by} hears {of} at {level:.1} dB");
            } else {
                assert!(
                    level > heard && level < 4.0,
                    "{by} hears {of} at {level:.1} dB"
                );
            }
        }
    }
}

/// Jitter of what a participant was sent (RFC 3550 section 6.4.1), in milliseconds, at its largest.
fn jitter(person: &Participant) -> f64 {
    let clock = f64::from(person.plan.voice.sends.kind().rtp_clock());
    let (mut jitter, mut most) = (0.0f64, 0.0f64);
    for pair in person.came.windows(2) {
        let arrivals = (pair[1].0.as_secs_f64() - pair[0].0.as_secs_f64()) * 1000.0;
        let stamps = f64::from(pair[1].1.wrapping_sub(pair[0].1)) * 1000.0 / clock;
        jitter += ((arrivals - stamps).abs() - jitter) / 16.0;
        most = most.max(jitter);
    }
    most
}

#[test]
fn everyone_hears_all_others_and_not_himself() {
    let mut forwarder = forwarder();
    let mut people = company(&mut forwarder);
    talk(&mut forwarder, &mut people, at(0), at(3_000), |_| false);
    assert_hears(&people, &[]);
    for person in &people {
        // Nothing varies in virtual time, at whatever packet time, and no packet is missing.
        assert!(
            jitter(person) < 1e-6,
            "{}: {}",
            person.number,
            jitter(person)
        );
        let steps = person
            .came
            .windows(2)
            .map(|pair| pair[1].2.wrapping_sub(pair[0].2));
        assert!(steps.eq(core::iter::repeat_n(1, person.came.len() - 1)));
        // Only the first packet begins anything.
        let marked = person.came.iter().filter(|packet| packet.3).count();
        assert_eq!((marked, person.came[0].3), (1, true));
        let packets = 2_900 / person.plan.voice.packet_ms as usize;
        assert!(
            person.came.len() + 1 >= packets,
            "{} of {packets}",
            person.came.len()
        );
    }
    assert_eq!(forwarder.rooms().figures().hurried, 0);
    assert_eq!(forwarder.rooms().figures().missed, 0);
}

#[test]
fn who_leaves_is_heard_no_more_and_his_room_ends_with_the_last() {
    let mut forwarder = forwarder();
    let mut people = company(&mut forwarder);
    talk(&mut forwarder, &mut people, at(0), at(1_500), |_| false);
    forwarder.command(MediaCommand::Remove(2), at(1_500));
    let mut left = people.remove(1);
    left.came.clear();
    // His goodbye is the last that he is sent.
    let (from, to, bytes) = forwarder.next_packet().unwrap();
    assert_eq!((from, to), (socket(2), address(2)));
    assert!(wire::rtcp::Compound::new(bytes).any(|part| part.goodbye_sources().count() == 1));
    talk(&mut forwarder, &mut people, at(1_500), at(3_000), |_| false);
    for listener in &people {
        let level = listener.level(TONES[1]);
        assert!(level < bounds(listener).0, "{}: {level}", listener.number);
    }
    assert_eq!(
        (forwarder.rooms().seats(), forwarder.rooms().rooms()),
        (people.len(), 1)
    );
    let dropped = left.speak(&mut forwarder, at(3_000), |_| false);
    assert!(
        dropped
            .iter()
            .all(|reason| reason.name() == "media_no_flow")
    );
    let stats = forwarder.stats(1).unwrap();
    let side = &stats.flows[0].sides[0];
    assert_eq!(side.received.packets, u64::from(people[0].sent));
    assert_eq!(side.sources[0].summary.expected, u64::from(people[0].sent));
    assert_eq!(side.sent.packets, people[0].came.len() as u64);
    for person in &people {
        forwarder.command(MediaCommand::Remove(u64::from(person.number)), at(3_000));
    }
    assert_eq!((forwarder.sessions(), forwarder.sockets()), (0, 0));
    assert_eq!(
        (forwarder.rooms().seats(), forwarder.rooms().rooms()),
        (0, 0)
    );
    while forwarder.next_packet().is_some() {}
    assert_eq!(forwarder.next_deadline(), None);
    let last = core::iter::from_fn(|| forwarder.next_report())
        .filter(|report| matches!(report, MediaEvent::Stats { last: true, .. }))
        .count();
    assert_eq!(last, people.len() + 1);
}

#[test]
fn mute_and_hold() {
    let mut forwarder = forwarder();
    let mut people = company(&mut forwarder);
    talk(&mut forwarder, &mut people, at(0), at(1_000), |_| false);
    let press = |forwarder: &mut Forwarder, person: &mut Participant, now: u64| {
        for (digit, stamp) in [('*', 0), ('6', 1_600)] {
            for _ in 0..3 {
                person.event(forwarder, digit, now as u32 * 8 + stamp, at(now));
            }
        }
    };
    press(&mut forwarder, &mut people[0], 1_000);
    talk(&mut forwarder, &mut people, at(1_000), at(2_500), |_| false);
    assert_hears(&people, &[1]);
    let muted = forwarder.rooms().seat(1).unwrap().muted;
    assert_eq!(muted, Muted::ByDigits);
    press(&mut forwarder, &mut people[0], 2_500);
    talk(&mut forwarder, &mut people, at(2_500), at(4_000), |_| false);
    assert_hears(&people, &[]);
    let events: Vec<SeatEvent> = core::iter::from_fn(|| forwarder.next_report())
        .filter_map(|report| match report {
            MediaEvent::Seat { session: 1, event } => Some(event),
            _ => None,
        })
        .collect();
    assert_eq!(events, [SeatEvent::Muted, SeatEvent::Unmuted]);
    // Held: he sends nothing, and is sent nothing.
    people[0].plan.side.sends = false;
    people[0].plan.side.receives = false;
    let held = MediaCommand::Change(Box::new(people[0].plan.clone()));
    forwarder.command(held, at(4_000));
    let before = people[0].came.len();
    talk(&mut forwarder, &mut people, at(4_000), at(5_500), |_| false);
    assert_eq!(people[0].came.len(), before);
    for listener in &people[1..] {
        assert!(listener.level(TONES[0]) < bounds(listener).0);
    }
    people[0].plan.side.sends = true;
    people[0].plan.side.receives = true;
    let resumed = MediaCommand::Change(Box::new(people[0].plan.clone()));
    forwarder.command(resumed, at(5_500));
    talk(&mut forwarder, &mut people, at(5_500), at(7_000), |_| false);
    assert_hears(&people, &[]);
}

#[test]
fn loss_is_concealed() {
    let mut forwarder = forwarder();
    let mut people = company(&mut forwarder);
    talk(&mut forwarder, &mut people, at(0), at(4_000), |packet| {
        packet % 12 == 5
    });
    assert_hears(&people, &[]);
    // Of those who are silent, and have G.729, nothing is decoded, and nothing has to be made up.
    for person in people.iter().filter(|person| person.number <= 5) {
        let heard = forwarder
            .rooms()
            .seat(u64::from(person.number))
            .unwrap()
            .heard;
        let lost = u64::from(person.sent / 12) * u64::from(person.plan.voice.packet_ms);
        let concealed = heard.concealed * 1000 / u64::from(person.rate);
        assert!(
            concealed >= lost * 8 / 10 && concealed <= lost + 200,
            "{concealed} ms for {lost} ms"
        );
    }
}

#[test]
fn listeners_share_what_is_encoded() {
    let mut forwarder = forwarder();
    let mut people: Vec<Participant> = (1..=6)
        .map(|number| {
            Participant::new(
                number,
                Kind::Pcma,
                20,
                if number == 1 { 440.0 } else { 0.0 },
            )
        })
        .collect();
    for person in &mut people {
        person.plan.terms.entry_tone = false;
        person.join(&mut forwarder, at(0));
    }
    talk(&mut forwarder, &mut people, at(0), at(2_000), |_| false);
    let before = forwarder.rooms().figures();
    talk(&mut forwarder, &mut people, at(2_000), at(3_000), |_| false);
    let after = forwarder.rooms().figures();
    // The speaker's mix and everyone else's: two for six listeners.
    assert_eq!(after.turns - before.turns, 50);
    assert_eq!(after.encoded - before.encoded, 100);
    assert!(people[0].level(440.0) < -30.0);
    let last = people[1].heard.len() - 8_000;
    for listener in &people[1..] {
        assert!(listener.level(440.0) > -3.0);
        assert_eq!(
            listener.heard[listener.heard.len() - 8_000..],
            people[1].heard[last..]
        );
    }
    // Nobody's stream is another's.
    let first = people[1].came[0];
    assert!(
        people[2..]
            .iter()
            .all(|other| (other.came[0].1, other.came[0].2) != (first.1, first.2))
    );
}

#[test]
fn the_loudest_are_heard() {
    let mut forwarder = forwarder();
    let mut people: Vec<Participant> = (1..=5)
        .zip(TONES)
        .map(|(number, hz)| Participant::new(number, Kind::Pcma, 20, hz))
        .collect();
    for person in &mut people {
        person.plan.terms.speakers = 4;
        person.join(&mut forwarder, at(0));
    }
    people[2].hum(0.0);
    talk(&mut forwarder, &mut people, at(0), at(2_000), |_| false);
    assert!(people[2].level(TONES[4]) > -3.0);
    // A fifth who speaks no louder has to wait until somebody ends.
    people[2].hum(TONES[2]);
    talk(&mut forwarder, &mut people, at(2_000), at(3_000), |_| false);
    assert!(people[0].level(TONES[2]) < -30.0);
    assert!(!forwarder.rooms().seat(3).unwrap().speaks);
    people[4].hum(0.0);
    talk(&mut forwarder, &mut people, at(3_000), at(5_000), |_| false);
    assert!(people[0].level(TONES[2]) > -3.0);
    assert!(people[0].level(TONES[4]) < -30.0);
}

#[test]
fn tones_tell_who_comes_and_goes() {
    let mut forwarder = forwarder();
    let mut people = vec![Participant::new(1, Kind::Pcma, 20, 0.0)];
    people[0].join(&mut forwarder, at(0));
    talk(&mut forwarder, &mut people, at(0), at(1_000), |_| false);
    let peak = |samples: &[i16]| {
        samples
            .iter()
            .map(|sample| sample.unsigned_abs())
            .max()
            .unwrap_or(0)
    };
    assert!(peak(&people[0].heard) < 20);
    people.push(Participant::new(2, Kind::Pcma, 20, 0.0));
    people[1].join(&mut forwarder, at(1_000));
    people[0].heard.clear();
    talk(&mut forwarder, &mut people, at(1_000), at(2_000), |_| false);
    assert!(peak(&people[0].heard) > 1_000 && peak(&people[1].heard) > 1_000);
    forwarder.command(MediaCommand::Remove(2), at(2_000));
    people.pop();
    while forwarder.next_packet().is_some() {}
    people[0].heard.clear();
    talk(&mut forwarder, &mut people, at(2_000), at(3_000), |_| false);
    assert!(peak(&people[0].heard) > 1_000);
}

#[test]
fn errors_leave_what_was() {
    let limits = ForwarderLimits {
        sessions: 4,
        rooms: 1,
        sockets: 80_000,
    };
    let mut forwarder = Forwarder::new(limits, HashKey::default());
    let refusal = |forwarder: &mut Forwarder| match forwarder.next_report() {
        Some(MediaEvent::Refused { why, .. }) => Some(why),
        None => None,
        other => panic!("{other:?}"),
    };
    let mut one = Participant::new(1, Kind::Pcma, 20, 440.0);
    one.plan.terms.seats = 2;
    one.join(&mut forwarder, at(0));
    assert_eq!(refusal(&mut forwarder), None);
    one.join(&mut forwarder, at(0));
    assert_eq!(
        refusal(&mut forwarder),
        Some(PlanError::SocketInUse(socket(1)))
    );
    // A packet time that its codec has not.
    let mut two = Participant::new(2, Kind::Opus, 20, 440.0);
    two.plan.terms.seats = 2;
    two.plan.voice.packet_ms = 30;
    two.join(&mut forwarder, at(0));
    assert!(matches!(refusal(&mut forwarder), Some(PlanError::Codec(_))));
    let mut elsewhere = two.plan.clone();
    elsewhere.room = 2;
    elsewhere.voice.packet_ms = 20;
    forwarder.command(MediaCommand::Join(Box::new(elsewhere.clone())), at(0));
    assert_eq!(refusal(&mut forwarder), Some(PlanError::Full));
    assert_eq!((forwarder.sessions(), forwarder.sockets()), (1, 1));
    two.plan.voice.packet_ms = 20;
    two.join(&mut forwarder, at(0));
    assert_eq!(refusal(&mut forwarder), None);
    let mut three = Participant::new(3, Kind::Pcmu, 20, 440.0);
    three.plan.terms.seats = 2;
    three.join(&mut forwarder, at(0));
    assert_eq!(refusal(&mut forwarder), Some(PlanError::RoomFull));
    // A change that cannot be: all goes on as before.
    let mut people = vec![one, two];
    let mut bad = people[1].plan.clone();
    bad.voice.packet_ms = 50;
    bad.side.sends = false;
    forwarder.command(MediaCommand::Change(Box::new(bad.clone())), at(0));
    assert!(matches!(refusal(&mut forwarder), Some(PlanError::Codec(_))));
    bad = people[1].plan.clone();
    bad.room = 2;
    forwarder.command(MediaCommand::Change(Box::new(bad)), at(0));
    assert_eq!(refusal(&mut forwarder), Some(PlanError::OtherRoom));
    people[1].hum(1_000.0);
    talk(&mut forwarder, &mut people, at(0), at(1_500), |_| false);
    assert!(people[0].level(1_000.0) > -3.0);
    assert!(people[1].level(440.0) > -3.0);
    forwarder.command(MediaCommand::Remove(9), at(1_500));
    let refused = MediaEvent::Refused {
        session: 9,
        why: PlanError::NoSuchSession,
    };
    assert!(core::iter::from_fn(|| forwarder.next_report()).any(|report| report == refused));
}

#[test]
fn a_change_of_codec_in_the_midst() {
    let mut forwarder = forwarder();
    let mut people = vec![
        Participant::new(1, Kind::Pcma, 20, 440.0),
        Participant::new(2, Kind::Pcma, 20, 1_000.0),
    ];
    people
        .iter()
        .for_each(|person| person.join(&mut forwarder, at(0)));
    talk(&mut forwarder, &mut people, at(0), at(1_000), |_| false);
    let before = people[1].came.last().copied().unwrap();
    let mut changed = Participant::new(2, Kind::G722, 20, 1_000.0);
    changed.plan.terms = people[1].plan.terms.clone();
    forwarder.command(
        MediaCommand::Change(Box::new(changed.plan.clone())),
        at(1_000),
    );
    people[1] = changed;
    talk(&mut forwarder, &mut people, at(1_000), at(2_500), |_| false);
    assert!(people[0].level(1_000.0) > -3.0 && people[0].level(440.0) < -30.0);
    assert!(people[1].level(440.0) > -3.0 && people[1].level(1_000.0) < -30.0);
    // The stream goes on: sequence numbers are those that come next.
    assert_eq!(people[1].came[0].2, before.2.wrapping_add(1));
}

#[test]
fn silence_is_described_and_not_sent() {
    let mut forwarder = forwarder();
    let mut voice = Voice::new(Format::new(Kind::Pcma));
    voice.noise = Some(13);
    voice.suppress_silence = true;
    let mut people = vec![
        Participant::with(1, voice, 0.0),
        Participant::new(2, Kind::Pcma, 20, 440.0),
    ];
    for person in &mut people {
        person.plan.terms.entry_tone = false;
        person.join(&mut forwarder, at(0));
    }
    talk(&mut forwarder, &mut people, at(0), at(2_000), |_| false);
    assert!(people[0].level(440.0) > -3.0);
    people[1].hum(0.0);
    talk(&mut forwarder, &mut people, at(2_000), at(4_000), |_| false);
    let before = people[0].came.len();
    talk(&mut forwarder, &mut people, at(4_000), at(6_000), |_| false);
    assert!(people[0].noise >= 1);
    // A description now and then, and no more.
    assert!(
        people[0].came.len() - before <= 4,
        "{}",
        people[0].came.len() - before
    );
    people[1].hum(440.0);
    talk(&mut forwarder, &mut people, at(6_000), at(7_000), |_| false);
    assert!(people[0].level(440.0) > -3.0);
    assert!(people[0].came[before..].iter().any(|packet| packet.3));
    assert!(jitter(&people[0]) < 1e-6);
}

#[test]
fn a_silent_peer_is_told_of_and_reports_go_both_ways() {
    let mut forwarder = forwarder();
    let mut people = company(&mut forwarder);
    talk(&mut forwarder, &mut people, at(0), at(21_000), |_| false);
    for person in &people {
        assert!((2..=8).contains(&person.reports), "{}", person.reports);
    }
    run(&mut forwarder, &mut people, at(81_500));
    let silent: Vec<u64> = core::iter::from_fn(|| forwarder.next_report())
        .filter_map(|report| match report {
            MediaEvent::Timeout { session, .. } => Some(session),
            _ => None,
        })
        .collect();
    assert_eq!(silent.len(), people.len());
}

#[test]
fn a_thread_that_was_away_leaves_turns_out() {
    let mut forwarder = forwarder();
    let mut people = vec![
        Participant::new(1, Kind::Pcma, 20, 440.0),
        Participant::new(2, Kind::Pcma, 20, 1_000.0),
    ];
    people
        .iter()
        .for_each(|person| person.join(&mut forwarder, at(0)));
    talk(&mut forwarder, &mut people, at(0), at(1_000), |_| false);
    let before = people[0].came.len();
    forwarder.timeout(at(1_305));
    conference::deliver(&mut forwarder, &mut people, at(1_305));
    run(&mut forwarder, &mut people, at(1_340));
    assert!(people[0].came.len() - before <= 3);
    assert!(forwarder.rooms().figures().missed >= 13);
    talk(&mut forwarder, &mut people, at(1_340), at(2_500), |_| false);
    assert!(people[0].level(1_000.0) > -3.0 && people[1].level(440.0) > -3.0);
    // Timestamps have gone on with the time.
    let (first, last) = (people[0].came[0], people[0].came[people[0].came.len() - 1]);
    let elapsed = last.0.since(first.0).as_millis() as u32;
    assert!(last.1.wrapping_sub(first.1).abs_diff(elapsed * 8) <= 8 * TURN_MS);
}

/// Silenced by control, nobody is heard again by digits.
#[test]
fn control_silences_and_digits_do_not_undo_it() {
    let mut forwarder = forwarder();
    let mut people = company(&mut forwarder);
    talk(&mut forwarder, &mut people, at(0), at(1_000), |_| false);
    let digits = |forwarder: &mut Forwarder, person: &mut Participant, now: u64| {
        for (digit, stamp) in [('*', 0), ('6', 1_600)] {
            person.event(forwarder, digit, now as u32 * 8 + stamp, at(now));
        }
    };
    let muted = |forwarder: &Forwarder| forwarder.rooms().seat(1).unwrap().muted;
    forwarder.command(MediaCommand::Seat(1, SeatOrder::Mute), at(1_000));
    assert_eq!(muted(&forwarder), Muted::ByOrder);
    talk(&mut forwarder, &mut people, at(1_000), at(2_500), |_| false);
    assert_hears(&people, &[1]);
    digits(&mut forwarder, &mut people[0], 2_500);
    assert_eq!(muted(&forwarder), Muted::ByOrder);
    talk(&mut forwarder, &mut people, at(2_500), at(4_000), |_| false);
    assert_hears(&people, &[1]);
    forwarder.command(MediaCommand::Seat(1, SeatOrder::Unmute), at(4_000));
    talk(&mut forwarder, &mut people, at(4_000), at(5_500), |_| false);
    assert_hears(&people, &[]);
    // Who silenced himself is heard again by control.
    digits(&mut forwarder, &mut people[0], 5_500);
    assert_eq!(muted(&forwarder), Muted::ByDigits);
    forwarder.command(MediaCommand::Seat(1, SeatOrder::Unmute), at(5_600));
    assert_eq!(muted(&forwarder), Muted::No);
    // Nobody is there under that number.
    forwarder.command(MediaCommand::Seat(99, SeatOrder::Mute), at(5_600));
    let refused = core::iter::from_fn(|| forwarder.next_report())
        .filter(|report| matches!(report, MediaEvent::Refused { session: 99, .. }));
    assert_eq!(refused.count(), 1);
    // What is counted of him says so, too.
    forwarder.command(MediaCommand::Query(1), at(5_600));
    let told = core::iter::from_fn(|| forwarder.next_report()).find_map(|report| match report {
        MediaEvent::Stats { stats, .. } => stats.seat,
        _ => None,
    });
    assert_eq!(told.unwrap().muted, Muted::No);
}

/// Who waits hears nobody and is heard by nobody, but his digits are told; the tone asks him.
#[test]
fn who_waits_is_apart_until_he_is_admitted() {
    let mut forwarder = forwarder();
    let mut people = company(&mut forwarder);
    // What he hears and says is told apart from all others.
    let mut waiting = Participant::new(20, Kind::Pcma, 20, 3_100.0);
    waiting.plan.waits = true;
    waiting.plan.terms = people[0].plan.terms.clone();
    waiting.join(&mut forwarder, at(0));
    people.push(waiting);
    let last = people.len() - 1;
    let apart = |people: &[Participant]| {
        let waiting = &people[last];
        for (speaker, hz) in people[..last].iter().zip(TONES) {
            let level = waiting.level(hz);
            assert!(level < -40.0, "hears {} at {level:.1}", speaker.number);
            assert!(
                speaker.level(3_100.0) < -15.0,
                "{} hears him",
                speaker.number
            );
        }
    };
    talk(&mut forwarder, &mut people, at(0), at(300), |_| false);
    assert!(people[last].level(440.0) > -30.0, "no tone asks");
    talk(&mut forwarder, &mut people, at(300), at(2_500), |_| false);
    apart(&people);
    while forwarder.next_report().is_some() {}
    for (digit, stamp) in [('1', 0), ('#', 1_600)] {
        people[last].event(&mut forwarder, digit, 20_000 + stamp, at(2_500));
    }
    let digits: Vec<SeatEvent> = core::iter::from_fn(|| forwarder.next_report())
        .filter_map(|report| match report {
            MediaEvent::Seat { session: 20, event } => Some(event),
            _ => None,
        })
        .collect();
    assert_eq!(digits, [SeatEvent::Digit(b'1'), SeatEvent::Digit(b'#')]);
    // A plan for him changes nothing of it.
    let mut same = people[last].plan.clone();
    same.waits = false;
    forwarder.command(MediaCommand::Change(Box::new(same)), at(2_500));
    talk(&mut forwarder, &mut people, at(2_500), at(4_000), |_| false);
    apart(&people);
    forwarder.command(MediaCommand::Seat(20, SeatOrder::AskAgain), at(4_000));
    talk(&mut forwarder, &mut people, at(4_000), at(4_300), |_| false);
    assert!(people[last].level(300.0) > -30.0, "no tone asks again");
    talk(&mut forwarder, &mut people, at(4_300), at(6_000), |_| false);
    apart(&people);
    forwarder.command(MediaCommand::Seat(20, SeatOrder::Admit), at(6_000));
    talk(&mut forwarder, &mut people, at(6_000), at(8_000), |_| false);
    for (speaker, hz) in people[..5].iter().zip(TONES) {
        let level = people[last].level(hz);
        assert!(level > -7.0, "he hears {} at {level:.1} dB", speaker.number);
        if speaker.plan.voice.sends.kind() != Kind::G729 {
            let level = speaker.level(3_100.0);
            assert!(
                level > -7.0,
                "{} hears him at {level:.1} dB",
                speaker.number
            );
        }
    }
}

/// The sound of digits, 80 ms each with as long a pause, from a participant who has agreed upon events or not; what the seat tells.
fn sounded(kind: Kind, events: bool, waits: bool, digits: &str) -> Vec<SeatEvent> {
    let mut forwarder = forwarder();
    let mut person = Participant::new(1, kind, 20, 440.0);
    person.plan.voice.events = events.then_some(101);
    person.plan.waits = waits;
    person.join(&mut forwarder, at(0));
    let mut people = [person];
    let mut now = 0;
    let mut on = |forwarder: &mut Forwarder, people: &mut [Participant; 1], span: u64| {
        talk(forwarder, people, at(now), at(now + span), |_| false);
        now += span;
    };
    on(&mut forwarder, &mut people, 500);
    for digit in digits.chars() {
        people[0].sound(Some(digit));
        on(&mut forwarder, &mut people, 80);
        people[0].sound(None);
        on(&mut forwarder, &mut people, 80);
    }
    on(&mut forwarder, &mut people, 500);
    core::iter::from_fn(|| forwarder.next_report())
        .filter_map(|report| match report {
            MediaEvent::Seat { event, .. } => Some(event),
            _ => None,
        })
        .collect()
}

#[test]
fn digits_in_sound_are_heard_where_no_events_were_agreed_upon() {
    let digits = "1234567890*#ABCD";
    let all: Vec<SeatEvent> = digits.bytes().map(SeatEvent::Digit).collect();
    for kind in [Kind::Pcma, Kind::Pcmu, Kind::G722, Kind::Opus] {
        assert_eq!(sounded(kind, false, true, digits), all, "{kind:?}");
        let muted = [SeatEvent::Muted, SeatEvent::Unmuted];
        assert_eq!(sounded(kind, false, false, "*6*6"), muted, "{kind:?}");
    }
    // Whoever has events is not listened to, nor is G.729.
    assert_eq!(sounded(Kind::Pcma, true, true, digits), []);
    assert_eq!(sounded(Kind::Pcma, true, false, "*6"), []);
    if Kind::G729.is_available() {
        assert_eq!(sounded(Kind::G729, false, true, digits), []);
    }
}
