//! Counts what conferences ask of the allocator per packet and turn: nothing.

use crate::conference;
use crate::counting;

use codec::Kind;
use conference::{Participant, run};
use engine::{Forward, HashKey, Packet, Time, Verdict};
use media::{Forwarder, ForwarderLimits};

#[test]
fn steady_state_asks_for_no_memory() {
    let kinds = [
        Kind::Pcma,
        Kind::G722,
        Kind::G729,
        Kind::Opus,
        Kind::Pcmu,
        Kind::Pcma,
    ];
    let mut forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    let mut people: Vec<Participant> = kinds
        .into_iter()
        .filter(|kind| kind.is_available())
        .zip(1..)
        .map(|(kind, number)| {
            let packet_ms = if number == 6 { 30 } else { 20 };
            let mut person = Participant::new(number, kind, packet_ms, 300.0 * f64::from(number));
            // Two rooms, so that phases take turns.
            person.plan.room = u64::from(number % 2);
            person
        })
        .collect();
    people
        .iter()
        .for_each(|person| person.join(&mut forwarder, Time::ZERO));
    // What they send, made beforehand: seconds of speech and seconds of silence.
    let mut packets: Vec<(Time, u32, Vec<u8>)> = Vec::new();
    for person in &mut people {
        let (number, rate) = (person.number, person.rate);
        let voice = person.plan.voice;
        let packing = codec::packet::Packing {
            packet_ms: voice.packet_ms,
            suppress_silence: false,
        };
        let mut packetiser = codec::Packetiser::new(&voice.sends, rate, packing).unwrap();
        let tone = codec::Tone::sine(300.0 * f64::from(number), -16.0);
        let mut tone = codec::ToneGenerator::new(tone, rate);
        let mut sequence = 0;
        for step in 0..4_000u64 {
            let mut samples = vec![0; (rate / 100) as usize];
            if step / 150 % 2 == u64::from(number) % 2 {
                tone.fill(&mut samples);
            }
            packetiser
                .push(&samples, &mut |packet| {
                    sequence += 1;
                    // Some are lost, so that concealment has something to do.
                    if sequence % 20 == 7 {
                        return;
                    }
                    let header = wire::rtp::RtpHeader {
                        payload_type: voice.payload_type,
                        sequence,
                        timestamp: packet.timestamp,
                        ssrc: number,
                        ..wire::rtp::RtpHeader::default()
                    };
                    let at = Time::from_millis(step * 10 + u64::from(number));
                    packets.push((at, number, header.packet(packet.payload)));
                })
                .unwrap();
        }
    }
    packets.sort_by_key(|packet| (packet.0, packet.1));
    let mut nobody: Vec<Participant> = Vec::new();
    let mut counts = [0; 2];
    let mut sent = 0u64;
    let half_length = packets.len().div_ceil(2);
    for (half, packets) in packets.chunks_mut(half_length).enumerate() {
        let before = counting::calls();
        for (at, number, bytes) in packets {
            while let Some(deadline) = forwarder
                .next_deadline()
                .filter(|deadline| deadline.at <= *at)
            {
                forwarder.timeout(deadline.at);
                while forwarder.next_packet().is_some() {
                    sent += 1;
                }
            }
            let (socket, address) = (conference::socket(*number), conference::address(*number));
            let verdict = forwarder.forward(&mut Packet::new(socket, address, *at, bytes), *at);
            assert_eq!(verdict, Verdict::Consumed);
            while forwarder.next_report().is_some() {}
        }
        if let Some(count) = counts.get_mut(half) {
            *count = counting::calls() - before;
        }
    }
    run(&mut forwarder, &mut nobody, Time::ZERO);
    assert!(sent > 5_000, "{sent}");
    assert_eq!(forwarder.rooms().figures().missed, 0);
    assert_eq!(
        counts[1], 0,
        "calls of the allocator in the second half, {} in the first",
        counts[0]
    );
}
