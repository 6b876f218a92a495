//! Heap allocations of transcoding per packet: none.

use crate::counting;

use codec::format::Format;
use codec::kind::Kind;
use engine::{Forward, HashKey, MediaPacket, PacketVerdict, SocketId, Time};
use media::{
    Carriage, Forwarder, ForwarderLimits, MediaCommand, SessionPlan, SidePlan, TranscodePlan,
};
use std::net::SocketAddr;
use std::sync::Arc;

#[test]
fn transcoding_does_not_allocate() {
    const TO: [Kind; 3] = [Kind::Pcma, Kind::G722, Kind::Opus];
    let mut forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    let address = |session: u32, side: u32| {
        SocketAddr::from(([192, 0, 2, side as u8 + 1], 4000 + session as u16))
    };
    for (session, kind) in (0..).zip(TO) {
        let mut sides = [0, 1].map(|side| SidePlan::new(SocketId(70_000 + session * 2 + side)));
        for (number, side) in (0..).zip(&mut sides) {
            side.signalled_rtp = Some(address(session, number));
        }
        sides[0].transcode = Some(Arc::new(TranscodePlan {
            from: [(0, Format::Pcmu)].into_iter().collect(),
            to: (111, Format::new(kind)),
            packet_ms: 20,
            events: Default::default(),
            noise: None,
            digits: Some((101, 8_000)),
        }));
        let plan = SessionPlan::single(session.into(), Carriage::Rtp, sides);
        forwarder.command(MediaCommand::Add(Box::new(plan)), Time::ZERO);
    }
    let mut buffer = [0; 400];
    let mut run = |rounds: core::ops::Range<u32>| {
        let mut made = 0;
        for round in rounds {
            let now = Time::from_millis(20 * u64::from(round));
            for session in 0..TO.len() as u32 {
                let mut head = [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
                head[2..4].copy_from_slice(&(round as u16).to_be_bytes());
                head[4..8].copy_from_slice(&(round * 160).to_be_bytes());
                buffer[..12].copy_from_slice(&head);
                for (at, code) in buffer[12..172].iter_mut().enumerate() {
                    *code = (at as u32 * 7 + round) as u8;
                }
                let mut packet = MediaPacket {
                    length: 172,
                    ..MediaPacket::new(
                        SocketId(70_000 + session * 2),
                        address(session, 0),
                        now,
                        &mut buffer,
                    )
                };
                let verdict = forwarder.forward(&mut packet, now);
                assert!(matches!(verdict, PacketVerdict::Consumed), "{verdict:?}");
                while forwarder.next_packet().is_some() {
                    made += 1;
                }
            }
        }
        made
    };
    run(0..100);
    let before = counting::calls();
    let made = run(100..600);
    assert_eq!(counting::calls() - before, 0);
    assert_eq!(made, 500 * TO.len());
}
