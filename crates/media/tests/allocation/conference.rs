//! Heap allocations of conferences per packet and turn: none.

use crate::counting;
use crate::participants;

use codec::Kind;
use engine::{Forward, HashKey, MediaPacket, PacketVerdict, Time};
use media::{Forwarder, ForwarderLimits};
use participants::{Participant, run};

#[test]
fn steady_state_does_not_allocate() {
    let kinds = [
        Kind::Pcma,
        Kind::G722,
        Kind::G729,
        Kind::Opus,
        Kind::Pcmu,
        Kind::Pcma,
    ];
    let mut forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    let mut participants: Vec<Participant> = kinds
        .into_iter()
        .filter(|kind| kind.is_available())
        .zip(1..)
        .map(|(kind, number)| {
            let packet_ms = if number == 6 { 30 } else { 20 };
            let mut participant =
                Participant::new(number, kind, packet_ms, 300.0 * f64::from(number));
            // Two conferences, so that phases alternate.
            participant.plan.conference = u64::from(number % 2);
            participant
        })
        .collect();
    participants
        .iter()
        .for_each(|participant| participant.join(&mut forwarder, Time::ZERO));
    // Prepared packets of seconds of speech and seconds of silence.
    let mut packets: Vec<(Time, u32, Vec<u8>)> = Vec::new();
    for participant in &mut participants {
        let (number, rate) = (participant.number, participant.rate);
        let voice = participant.plan.voice;
        let packing = codec::packet::PacketiserSettings {
            packet_ms: voice.packet_ms,
            suppress_silence: false,
        };
        let mut packetiser = codec::Packetiser::new(&voice.format, rate, packing).unwrap();
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
                    // Some are lost, to cause concealment.
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
    let mut none: Vec<Participant> = Vec::new();
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
            let (socket, address) = (
                participants::socket(*number),
                participants::address(*number),
            );
            let verdict =
                forwarder.forward(&mut MediaPacket::new(socket, address, *at, bytes), *at);
            assert_eq!(verdict, PacketVerdict::Consumed);
            while forwarder.next_report().is_some() {}
        }
        if let Some(count) = counts.get_mut(half) {
            *count = counting::calls() - before;
        }
    }
    run(&mut forwarder, &mut none, Time::ZERO);
    assert!(sent > 5_000, "{sent}");
    assert_eq!(forwarder.bridge().figures().missed, 0);
    assert_eq!(
        counts[1], 0,
        "calls of the allocator in the second half, {} in the first",
        counts[0]
    );
}
