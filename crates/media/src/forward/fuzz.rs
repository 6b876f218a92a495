//! Any bytes at any time into a forwarder with a few sessions.

use super::{
    Carriage, Events, Forwarder, ForwarderLimits, Latching, MediaCommand, MediaEvent, RecodePlan,
    SessionPlan, SidePlan,
};
use codec::format::Format;
use codec::kind::Kind;
use engine::{Forward, HashKey, Packet, SocketId, Time, Verdict};
use std::net::SocketAddr;
use std::sync::Arc;

/// Addresses that packets come from: even ones are signalled.
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

fn plan(session: u64, flavour: u8) -> SessionPlan {
    let base = session as u32 * 4;
    let mut a = SidePlan::new(SocketId(base));
    a.rtcp = Some(SocketId(base + 1));
    a.signalled_rtp = (flavour & 1 != 0).then(|| address(0));
    a.signalled_rtcp = (flavour & 2 != 0).then(|| address(5));
    let mut b = SidePlan::new(SocketId(base + 2));
    b.ipv6 = flavour & 4 != 0;
    b.mux = flavour & 8 != 0;
    b.rtcp = (!b.mux).then_some(SocketId(base + 3));
    b.signalled_rtp = Some(address(if b.ipv6 { 3 } else { 1 }));
    b.sends = flavour & 16 == 0;
    b.latching = match flavour >> 5 & 3 {
        0 => Latching::Signalled,
        1 => Latching::SameAddress(address(2).ip()),
        _ => Latching::Anywhere,
    };
    if flavour >> 5 & 3 == 3 {
        // Where it is transcoded, payload types 0 to 2 are something.
        a.recode = Some(recode(Kind::Pcmu, Kind::G722, Events::Tones));
        b.recode = Some(recode(Kind::G722, Kind::Opus, Events::Passed((2, 48_000))));
    }
    let carriage = if flavour & 128 != 0 {
        Carriage::Datagrams
    } else {
        Carriage::Rtp
    };
    SessionPlan::single(session, carriage, [a, b])
}

fn recode(from: Kind, to: Kind, events: Events) -> Arc<RecodePlan> {
    Arc::new(RecodePlan {
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

/// Runs `data` as a list of steps: a packet, a command or a span of time. Panics where an invariant is broken.
#[doc(hidden)]
pub fn fuzz_forward(data: &[u8]) {
    let limits = ForwarderLimits {
        rooms: 4,
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
                let Some((flavour, tail)) = tail.split_first() else {
                    break;
                };
                rest = tail;
                let plan = plan(session, *flavour);
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
                one_packet(&mut forwarder, *argument, *source, &mut bytes, now);
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

fn one_packet(forwarder: &mut Forwarder, socket: u8, source: u8, bytes: &mut [u8], now: Time) {
    let before = forwarder.drops().total();
    let mut packet = Packet::new(
        SocketId(u32::from(socket & 15)),
        address(source),
        now,
        bytes,
    );
    match forwarder.forward(&mut packet, now) {
        Verdict::Drop(_) => assert_eq!(forwarder.drops().total(), before + 1),
        Verdict::Forward {
            socket,
            destination,
        } => {
            assert_eq!(socket.0 / 4, u32::from(socket_session(packet.socket)));
            assert_ne!(destination.port(), 0);
            assert_eq!(forwarder.drops().total(), before);
        }
        Verdict::Punt(why) => assert!(matches!(why, "stun" | "dtls")),
        Verdict::Consumed => {}
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
