//! Heap allocations of the relay per packet: none.

use crate::counting;

use engine::{Entropy, Forward, HashKey, MediaPacket, PacketVerdict, SocketId, Time};
use media::{
    Carriage, Forwarder, ForwarderLimits, Keys, MediaCommand, Protection, SessionPlan, SidePlan,
};
use protect::srtp::{ContextLimits, MasterKey, Outbound, Suite};
use std::net::SocketAddr;
use std::sync::Arc;
use wire::rtcp::CompoundBuilder;
use wire::rtp::RtpHeader;

#[test]
fn steady_state_does_not_allocate() {
    const SESSIONS: u32 = 50;
    let mut forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    let address = |session: u32, side: u32| {
        SocketAddr::from(([192, 0, 2, side as u8 + 1], 4000 + session as u16))
    };
    let mut entropy = Entropy::from_number(1);
    let mut peers: Vec<(u32, Outbound)> = Vec::new();
    for session in 0..SESSIONS {
        let mut sides = [0, 1].map(|side| SidePlan::new(SocketId(70_000 + session * 2 + side)));
        // Every third session has SRTP on its first side, every third on both.
        for (number, side) in sides.iter_mut().enumerate() {
            if let Some(place) = (session % 3).checked_sub(number as u32 + 1) {
                let suite = [Suite::AesCm128HmacSha1_80, Suite::AeadAes256Gcm][place as usize % 2];
                let remote = MasterKey::generate(suite, &mut entropy);
                let mut peer = Outbound::new(&remote, ContextLimits::default()).unwrap();
                assert_eq!(peer.key_use().unwrap().srtp, 0);
                assert!(peer.set_rollover(0, 0));
                peers.push((session * 2 + number as u32, peer));
                side.protection = Protection::Srtp(Arc::new(Keys {
                    association: 0,
                    local: MasterKey::generate(suite, &mut entropy),
                    remote: vec![remote],
                    window: 0,
                }));
            }
            side.signalled_rtp = Some(address(session, number as u32));
            side.mux = true;
        }
        let plan = SessionPlan::single(session.into(), Carriage::Rtp, sides);
        forwarder.command(MediaCommand::Add(Box::new(plan)), Time::ZERO);
    }
    let mut packet = RtpHeader {
        payload_type: 8,
        ..RtpHeader::default()
    }
    .packet(&[0xd5; 160]);
    let report = CompoundBuilder::new()
        .receiver_report(1, &[])
        .cname(1, "a@b")
        .finish();
    let mut buffer = [0; 400];
    let mut run = |rounds: core::ops::Range<u32>| {
        let mut forwarded = 0;
        for round in rounds {
            let now = Time::from_millis(20 * u64::from(round));
            forwarder.timeout(now);
            for place in 0..2 * SESSIONS {
                packet[2..4].copy_from_slice(&(round as u16).to_be_bytes());
                packet[4..8].copy_from_slice(&(round * 160).to_be_bytes());
                let bytes = if round % 100 == 0 {
                    &report[..]
                } else {
                    &packet[..]
                };
                let mut length = bytes.len();
                buffer[..length].copy_from_slice(bytes);
                if let Ok(at) = peers.binary_search_by_key(&place, |peer| peer.0) {
                    let peer = &mut peers[at].1;
                    length = match round % 100 {
                        0 => peer.protect_rtcp(&mut buffer, length).unwrap(),
                        _ => peer.protect_rtp(&mut buffer, length).unwrap(),
                    };
                }
                let (socket, source) = (SocketId(70_000 + place), address(place / 2, place % 2));
                let verdict = forwarder.forward(
                    &mut MediaPacket {
                        length,
                        ..MediaPacket::new(socket, source, now, &mut buffer)
                    },
                    now,
                );
                forwarded += u32::from(matches!(verdict, PacketVerdict::Forward { .. }));
                let stranger = SocketAddr::from(([203, 0, 113, 1], 1));
                let verdict = forwarder.forward(
                    &mut MediaPacket::new(socket, stranger, now, &mut [0x80; 20]),
                    now,
                );
                assert!(matches!(verdict, PacketVerdict::Drop(_)));
            }
            while let Some(event) = forwarder.next_report() {
                assert!(matches!(event, media::MediaEvent::Latched { .. }));
            }
        }
        forwarded
    };
    // Beyond the first check of inactivity (60 s), for which the timer wheel allocates its list of due timers.
    run(1..3_200);
    let before = counting::calls();
    let forwarded = run(3_200..10_000);
    let calls = counting::calls() - before;
    assert_eq!(forwarded, (10_000 - 3_200) * 2 * SESSIONS);
    assert_eq!(calls, 0, "calls of the allocator for {forwarded} packets");
}
