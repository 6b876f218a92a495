//! Fuzzing of a forwarder with a few sessions by arbitrary packets, commands and delays.

use super::{
    Carriage, EventMapping, Forwarder, ForwarderLimits, Latching, MediaCommand, MediaEvent,
    SessionPlan, SidePlan, TranscodePlan,
};
use codec::format::Format;
use codec::kind::Kind;
use engine::{Forward, HashKey, MediaPacket, PacketVerdict, SocketId, Time};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Source addresses of packets; the even ones are signalled.
const ADDRESSES: [&str; 6] = [
    "192.0.2.1:4000",
    "192.0.2.2:4002",
    "198.51.100.9:9000",
    "[2001:db8::1]:4000",
    "[2001:db8::9]:9",
    "192.0.2.1:4001",
];

fn address(index: u8) -> SocketAddr {
    let text = ADDRESSES[usize::from(index) % ADDRESSES.len()];
    text.parse()
        .unwrap_or(SocketAddr::from(([192, 0, 2, 1], 4000)))
}

/// A session plan; each bit of `flags` selects a variant.
fn plan(session: u64, flags: u8) -> SessionPlan {
    let base = session as u32 * 4;
    let mut a = SidePlan::new(SocketId(base));
    a.rtcp = Some(SocketId(base + 1));
    a.signalled_rtp = (flags & 1 != 0).then(|| address(0));
    a.signalled_rtcp = (flags & 2 != 0).then(|| address(5));
    let mut b = SidePlan::new(SocketId(base + 2));
    b.ipv6 = flags & 4 != 0;
    b.mux = flags & 8 != 0;
    b.rtcp = (!b.mux).then_some(SocketId(base + 3));
    b.signalled_rtp = Some(address(if b.ipv6 { 3 } else { 1 }));
    b.sends = flags & 16 == 0;
    (a.hides, b.hides) = (flags & 2 != 0, flags & 4 != 0);
    (a.plain_rtcp, b.plain_rtcp) = (flags & 8 != 0, flags & 16 != 0);
    b.latching = match flags >> 5 & 3 {
        0 => Latching::Signalled,
        1 => Latching::SameAddress(address(2).ip()),
        _ => Latching::Anywhere,
    };
    if flags >> 5 & 3 == 3 {
        // In a transcoded session, payload types 0 to 3 are in use.
        a.transcode = Some(transcode_plan(Kind::Pcmu, Kind::G722, EventMapping::Tones));
        b.transcode = Some(transcode_plan(
            Kind::G722,
            Kind::Opus,
            EventMapping::Relayed((2, 48_000)),
        ));
    }
    let carriage = if flags & 128 != 0 {
        Carriage::Datagrams
    } else {
        Carriage::Rtp
    };
    SessionPlan::single(session, carriage, [a, b])
}

/// A transcoding plan from one codec to another.
fn transcode_plan(from: Kind, to: Kind, events: EventMapping) -> Arc<TranscodePlan> {
    Arc::new(TranscodePlan {
        from: [(0, Format::new(from)), (3, Format::new(Kind::Pcma))]
            .into_iter()
            .collect(),
        to: (0, Format::new(to)),
        packet_ms: 20,
        events: [((1, 8000), events)].into_iter().collect(),
        noise: Some(2),
        digits: (from == Kind::Pcmu).then_some((4, 48_000)),
    })
}

/// Runs `data` as a list of steps: a packet, a command or a delay. Panics if an invariant is broken.
#[doc(hidden)]
pub fn fuzz_forward(data: &[u8]) {
    let limits = ForwarderLimits {
        conferences: 4,
        sessions: 3,
        sockets: 16,
    };
    let mut forwarder = Forwarder::new(limits, HashKey::default());
    let mut now = Time::ZERO;
    forwarder.command(MediaCommand::Add(Box::new(plan(0, 0x43))), now);
    forwarder.command(MediaCommand::Add(Box::new(plan(1, 0x4e))), now);
    let mut rest = data;
    while let [step, argument, tail @ ..] = rest {
        rest = tail;
        let session = u64::from(*argument & 3);
        match step % 8 {
            0 => forwarder.command(MediaCommand::Remove(session), now),
            1 | 2 => {
                let Some((flags, tail)) = tail.split_first() else {
                    break;
                };
                rest = tail;
                let plan = plan(session, *flags);
                let command = if step % 8 == 1 {
                    MediaCommand::Add(Box::new(plan))
                } else {
                    MediaCommand::Update(Box::new(plan))
                };
                forwarder.command(command, now);
            }
            3 => {
                now = Time(now.0 + (u64::from(*argument) << (step >> 3 & 31)));
                forwarder.timeout(now);
                if let Some(deadline) = forwarder.next_deadline() {
                    assert!(deadline.at.0 + (1 << 21) > now.0, "a deadline was missed");
                }
            }
            _ => {
                let [length, source, tail @ ..] = rest else {
                    break;
                };
                let (bytes, tail) = tail.split_at(usize::from(*length).min(tail.len()));
                rest = tail;
                let mut bytes = bytes.to_vec();
                send_packet(&mut forwarder, *argument, *source, &mut bytes, now);
            }
        }
        while let Some((socket, destination, bytes)) = forwarder.next_packet() {
            assert!(socket.0 < 16 && destination.port() != 0);
            assert!(wire::rtp::RtpView::parse(bytes).is_some());
        }
        drain(&mut forwarder);
    }
    for session in 0..4 {
        forwarder.command(MediaCommand::Remove(session), now);
    }
    assert_eq!((forwarder.sessions(), forwarder.sockets()), (0, 0));
    assert_eq!(forwarder.next_deadline(), None, "no timer is left");
}

/// Payload types of the transcoded session: the two codecs of each side, its telephone events, its comfort noise.
const CODEC: u8 = 0;
const SECOND_CODEC: u8 = 3;
const EVENTS: u8 = 1;
const NOISE: u8 = 2;
/// Packet times in milliseconds.
const PACKET_TIMES_MS: [u32; 5] = [10, 20, 30, 40, 60];
/// The most packets that one packet may cause: 240 ms of audio after one second of concealment, in packets of 10 ms,
/// and digits; or one second of the tone of an event, after as much concealment.
const MAX_PACKETS: usize = 224;
/// Longest packet that may be generated: 60 ms of G.711 take 480 octets.
const MAX_PACKET: usize = 1_500;

/// Runs `data` as the packets of one transcoded call. Two octets choose codecs and packet times; each further step is a
/// packet of one side with a valid header, or a delay. Decoders and encoders see losses, duplicates, jumps of sequence
/// number and timestamp, and changes of codec and source.
///
/// # Panics
/// If an invariant is broken, which is the finding.
#[doc(hidden)]
pub fn fuzz_transcode(data: &[u8]) {
    let [codecs, flags, rest @ ..] = data else {
        return;
    };
    let kind = |number: u8| Kind::ALL[usize::from(number) % Kind::ALL.len()];
    let (codec_a, codec_b) = (kind(codecs & 15), kind(codecs >> 4));
    let events = match flags & 3 {
        0 => EventMapping::Tones,
        1 => EventMapping::Relayed((EVENTS, 8_000)),
        _ => EventMapping::Relayed((EVENTS, 48_000)),
    };
    let side = |from: Kind, to: Kind, length: u8| TranscodePlan {
        from: [
            (CODEC, Format::new(from)),
            (SECOND_CODEC, Format::new(Kind::Pcma)),
        ]
        .into_iter()
        .collect(),
        to: (CODEC, Format::new(to)),
        packet_ms: PACKET_TIMES_MS[usize::from(length) % PACKET_TIMES_MS.len()],
        events: [((EVENTS, 8_000), events)].into_iter().collect(),
        noise: (flags & 4 != 0).then_some(NOISE),
        digits: (flags & 8 != 0).then_some((EVENTS, 48_000)),
    };
    let mut plan = plan(0, 0x43);
    let Some(flow) = plan.flows.first_mut() else {
        return;
    };
    flow.sides[0].transcode = Some(Arc::new(side(codec_a, codec_b, flags >> 4)));
    flow.sides[1].transcode = Some(Arc::new(side(codec_b, codec_a, flags >> 6)));
    let limits = ForwarderLimits {
        conferences: 1,
        sessions: 1,
        sockets: 4,
    };
    let mut forwarder = Forwarder::new(limits, HashKey::default());
    let mut now = Time::ZERO;
    forwarder.command(MediaCommand::Add(Box::new(plan)), now);
    let mut heads = [(0_u16, 0_u32); 2];
    let mut rest = rest;
    while let [step, argument, length, tail @ ..] = rest {
        let (payload, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = tail;
        let side_index = usize::from(step & 1);
        let (sequence, timestamp) = &mut heads[side_index];
        let payload_type = match step >> 1 & 7 {
            0..4 => CODEC,
            4 => SECOND_CODEC,
            5 => EVENTS,
            6 => NOISE,
            _ => argument & 127,
        };
        match step >> 4 {
            0..10 => {}
            10 => *sequence = sequence.wrapping_add(u16::from(*argument)),
            11 => *sequence = sequence.wrapping_sub(u16::from(*argument)),
            12 => *timestamp = timestamp.wrapping_add(u32::from(*argument) << 24),
            13 => *sequence ^= u16::from(*argument) << 8,
            _ => {
                now += Duration::from_millis(u64::from(*argument) << (step >> 1 & 7));
                forwarder.timeout(now);
            }
        }
        let source = u8::from(step >> 4 == 9) * argument;
        let mut packet = vec![0x80, payload_type | (argument & 128)];
        packet.extend(sequence.to_be_bytes());
        packet.extend(timestamp.to_be_bytes());
        packet.extend([0, 0, source, side_index as u8]);
        packet.extend(payload);
        // G.711 payloads can be longer than one length octet states.
        packet.resize(
            packet.len() + usize::from(argument & 1) * payload.len() * 4,
            0x55,
        );
        packet.truncate(MAX_PACKET);
        *sequence = sequence.wrapping_add(1);
        *timestamp = timestamp.wrapping_add(160);
        let mut packet = MediaPacket::new(
            SocketId(side_index as u32 * 2),
            address(side_index as u8),
            now,
            &mut packet,
        );
        let _ = forwarder.forward(&mut packet, now);
        let mut generated = 0;
        while let Some((socket, destination, bytes)) = forwarder.next_packet() {
            assert!(socket.0 < 4 && destination.port() != 0);
            let view = wire::rtp::RtpView::parse(bytes);
            let view = view.expect("a generated packet is RTP");
            assert!([CODEC, SECOND_CODEC, EVENTS, NOISE].contains(&view.payload_type()));
            assert!(bytes.len() <= MAX_PACKET, "{} octets", bytes.len());
            generated += 1;
        }
        assert!(generated <= MAX_PACKETS, "{generated} packets for one");
        now += Duration::from_millis(u64::from(step & 15));
        drain(&mut forwarder);
    }
    forwarder.command(MediaCommand::Remove(0), now);
    assert_eq!((forwarder.sessions(), forwarder.sockets()), (0, 0));
}

/// Sends a packet and checks the verdict and the counters.
fn send_packet(forwarder: &mut Forwarder, socket: u8, source: u8, bytes: &mut [u8], now: Time) {
    let before = forwarder.drops().total();
    let mut packet = MediaPacket::new(
        SocketId(u32::from(socket & 15)),
        address(source),
        now,
        bytes,
    );
    match forwarder.forward(&mut packet, now) {
        PacketVerdict::Drop(_) => assert_eq!(forwarder.drops().total(), before + 1),
        PacketVerdict::Forward {
            socket,
            destination,
        } => {
            assert_eq!(socket.0 / 4, u32::from(socket_session(packet.socket)));
            assert_ne!(destination.port(), 0);
            assert_eq!(forwarder.drops().total(), before);
        }
        PacketVerdict::Punt(reason) => assert!(matches!(reason, "stun" | "dtls")),
        PacketVerdict::Consumed => {}
    }
}

fn socket_session(socket: SocketId) -> u8 {
    (socket.0 / 4) as u8
}

fn drain(forwarder: &mut Forwarder) {
    while let Some(report) = forwarder.next_report() {
        if let MediaEvent::Stats { stats, .. } = report {
            for side in stats.flows.iter().flat_map(|flow| &flow.sides) {
                assert!(side.sources.len() <= super::MAX_SOURCES);
            }
        }
    }
}
