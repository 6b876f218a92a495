//! Heap allocations of playback per packet: none.

use crate::counting;

use codec::wav::{Encoding, write};
use codec::{Format, Kind, Sound};
use engine::{Forward, HashKey, SocketId, Time};
use media::{
    Carriage, Forwarder, ForwarderLimits, MediaCommand, PlaybackEncoding, PlaybackPlan,
    SessionPlan, SidePlan,
};
use std::net::SocketAddr;

#[test]
fn playback_does_not_allocate() {
    const TO: [Kind; 4] = [Kind::Pcma, Kind::Pcmu, Kind::G722, Kind::Opus];
    let mut forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    let samples: Vec<i16> = (0..44_100).map(|n| (n % 1_000 * 13) as i16).collect();
    let file = write(Encoding::Pcm16, 44_100, 1, &samples).unwrap();
    let sound = Sound::parse(file.into()).unwrap();
    for (number, kind) in (0..).zip(TO) {
        let mut sides = [0, 1].map(|side| SidePlan::new(SocketId(number * 2 + side)));
        sides[1].signalled_rtp = Some(SocketAddr::from(([192, 0, 2, 1], 4_000)));
        let session = u64::from(number);
        let plan = SessionPlan {
            inactivity: None,
            ..SessionPlan::single(session, Carriage::Rtp, sides)
        };
        forwarder.command(MediaCommand::Add(Box::new(plan)), Time::ZERO);
        let plan = PlaybackPlan {
            session,
            line: 0,
            side: 1,
            number: session,
            sound: sound.clone(),
            encoding: PlaybackEncoding {
                payload_type: 111,
                format: Format::new(kind),
                packet_ms: 20,
            },
            start: 0,
            repetitions: u32::MAX,
            max_duration: None,
            seed: 7,
        };
        forwarder.command(MediaCommand::Play(Box::new(plan)), Time::ZERO);
    }
    let mut run = |rounds: core::ops::Range<u64>| {
        let mut made = 0;
        for round in rounds {
            forwarder.timeout(Time::from_millis(20 * round));
            while forwarder.next_packet().is_some() {
                made += 1;
            }
        }
        made
    };
    assert_eq!(run(0..100), 100 * TO.len());
    let before = counting::calls();
    let made = run(100..600);
    assert_eq!(counting::calls() - before, 0);
    assert_eq!(made, 500 * TO.len());
}
