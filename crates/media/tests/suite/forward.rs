//! The forwarder: latching, relay, timeouts.

use core::time::Duration;
use engine::{DropReason, Forward, HashKey, MediaPacket, PacketVerdict, SocketId, Time};
use media::forward::{LATCH_PACKETS, PlanError, SessionStats};
use media::{
    Carriage, Component, Forwarder, ForwarderLimits, Latching, MediaCommand, MediaEvent,
    SessionPlan, SidePlan,
};
use proptest::prelude::*;
use std::net::SocketAddr;
use wire::rtcp::{CompoundBuilder, ReportBlock, SenderInfo};
use wire::rtp::RtpHeader;

pub(crate) const A: SocketId = SocketId(70_000);
const A_RTCP: SocketId = SocketId(70_001);
pub(crate) const B: SocketId = SocketId(70_002);
const B_RTCP: SocketId = SocketId(70_003);

pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(crate) fn rtp(ssrc: u32, sequence: u16) -> Vec<u8> {
    RtpHeader {
        payload_type: 8,
        sequence,
        timestamp: u32::from(sequence) * 160,
        ssrc,
        ..RtpHeader::default()
    }
    .packet(&[0xd5; 160])
}

fn rtcp(ssrc: u32) -> Vec<u8> {
    CompoundBuilder::new()
        .receiver_report(ssrc, &[])
        .cname(ssrc, "a@b")
        .finish()
}

pub(crate) fn forwarder() -> Forwarder {
    Forwarder::new(ForwarderLimits::default(), HashKey::default())
}

/// Both sides with signalled addresses and separate RTCP ports.
pub(crate) fn plan() -> SessionPlan {
    let mut a = SidePlan::new(A);
    a.rtcp = Some(A_RTCP);
    a.signalled_rtp = Some(addr("192.0.2.1:4000"));
    a.signalled_rtcp = Some(addr("192.0.2.1:4001"));
    let mut b = SidePlan::new(B);
    b.rtcp = Some(B_RTCP);
    b.signalled_rtp = Some(addr("192.0.2.2:5000"));
    b.signalled_rtcp = Some(addr("192.0.2.2:5001"));
    SessionPlan::single(1, Carriage::Rtp, [a, b])
}

pub(crate) fn send(
    forwarder: &mut Forwarder,
    socket: SocketId,
    source: &str,
    bytes: &[u8],
    now: Time,
) -> PacketVerdict {
    let mut bytes = bytes.to_vec();
    let before = bytes.clone();
    let verdict = forwarder.forward(
        &mut MediaPacket::new(socket, addr(source), now, &mut bytes),
        now,
    );
    assert_eq!(bytes, before, "packets are relayed unchanged");
    verdict
}

pub(crate) fn to(socket: SocketId, destination: &str) -> PacketVerdict {
    PacketVerdict::Forward {
        socket,
        destination: addr(destination),
    }
}

fn reports(forwarder: &mut Forwarder) -> Vec<MediaEvent> {
    std::iter::from_fn(|| forwarder.next_report()).collect()
}

fn last_stats(forwarder: &mut Forwarder, session: u64, now: Time) -> SessionStats {
    forwarder.command(MediaCommand::Remove(session), now);
    for report in reports(forwarder) {
        if let MediaEvent::Stats {
            last: true, stats, ..
        } = report
        {
            return *stats;
        }
    }
    panic!("no statistics at the end");
}

#[test]
fn signalled_addresses_are_relayed_at_once() {
    let mut forwarder = forwarder();
    let now = Time::from_secs(1);
    forwarder.command(MediaCommand::Add(Box::new(plan())), now);
    for n in 0..50 {
        let now = now + Duration::from_millis(20 * u64::from(n));
        assert_eq!(
            send(&mut forwarder, A, "192.0.2.1:4000", &rtp(7, n), now),
            to(B, "192.0.2.2:5000")
        );
        assert_eq!(
            send(&mut forwarder, B, "192.0.2.2:5000", &rtp(9, n), now),
            to(A, "192.0.2.1:4000")
        );
    }
    assert_eq!(
        send(&mut forwarder, A_RTCP, "192.0.2.1:4001", &rtcp(7), now),
        to(B_RTCP, "192.0.2.2:5001")
    );
    let latched = reports(&mut forwarder);
    assert_eq!(latched.len(), 3, "{latched:?}");
    let stats = last_stats(&mut forwarder, 1, now);
    let [a, b] = &stats.flows[0].sides;
    assert_eq!(
        (a.received.packets, b.sent.packets, a.sent.bytes),
        (50, 50, 50 * 172)
    );
    assert_eq!((a.received_rtcp.packets, b.sent_rtcp.packets), (1, 1));
    assert_eq!(a.sources.len(), 1);
    assert_eq!(
        (
            a.sources[0].ssrc,
            a.sources[0].summary.unique,
            a.sources[0].summary.lost_unique
        ),
        (7, 50, 0)
    );
    assert!(a.sources[0].summary.jitter_ms.unwrap().max < 1e-6);
    assert_eq!((forwarder.sockets(), forwarder.sessions()), (0, 0));
    assert_eq!(
        send(&mut forwarder, A, "192.0.2.1:4000", &rtp(7, 60), now),
        PacketVerdict::Drop(DropReason::MediaNoFlow)
    );
}

#[test]
fn address_behind_nat_is_latched() {
    let mut forwarder = forwarder();
    let mut plan = plan();
    plan.flows[0].sides[0].signalled_rtp = Some(addr("10.0.0.5:4000"));
    plan.flows[0].sides[0].signalled_rtcp = None;
    plan.flows[0].sides[0].latching = Latching::SameAddress(addr("198.51.100.7:0").ip());
    let now = Time::from_secs(1);
    forwarder.command(MediaCommand::Add(Box::new(plan.clone())), now);
    // RTCP before RTP does not lead to latching.
    assert_eq!(
        send(&mut forwarder, A_RTCP, "198.51.100.7:40001", &rtcp(7), now),
        PacketVerdict::Drop(DropReason::MediaLatching)
    );
    for n in 1..LATCH_PACKETS {
        let verdict = send(
            &mut forwarder,
            A,
            "198.51.100.7:40000",
            &rtp(7, n.into()),
            now,
        );
        assert_eq!(
            verdict,
            PacketVerdict::Drop(DropReason::MediaLatching),
            "{n}"
        );
    }
    assert_eq!(
        send(&mut forwarder, B, "192.0.2.2:5000", &rtp(9, 1), now),
        to(A, "10.0.0.5:4000"),
        "the signalled address is used until one is latched"
    );
    assert_eq!(
        send(
            &mut forwarder,
            A,
            "198.51.100.7:40000",
            &rtp(7, LATCH_PACKETS.into()),
            now
        ),
        to(B, "192.0.2.2:5000")
    );
    assert_eq!(
        send(&mut forwarder, B, "192.0.2.2:5000", &rtp(9, 2), now),
        to(A, "198.51.100.7:40000")
    );
    // RTCP is accepted from the host to which RTP is latched.
    assert_eq!(
        send(&mut forwarder, A_RTCP, "203.0.113.1:40001", &rtcp(7), now),
        PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
    );
    assert_eq!(
        send(&mut forwarder, A_RTCP, "198.51.100.7:40001", &rtcp(7), now),
        to(B_RTCP, "192.0.2.2:5001")
    );
    assert_eq!(
        send(&mut forwarder, B_RTCP, "192.0.2.2:5001", &rtcp(9), now),
        to(A_RTCP, "198.51.100.7:40001")
    );
    // Packets from another host or port are dropped, however late and many.
    let late = now + Duration::from_secs(3600);
    for n in 0..100 {
        for stranger in ["203.0.113.1:40000", "198.51.100.7:40002"] {
            assert_eq!(
                send(&mut forwarder, A, stranger, &rtp(7, n), late),
                PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
            );
        }
    }
    assert_eq!(
        forwarder.drops().get(DropReason::MediaUnexpectedSource),
        201
    );
    // The same plan again (a session refresh) does not reset the latch.
    forwarder.command(MediaCommand::Update(Box::new(plan.clone())), late);
    assert_eq!(
        send(&mut forwarder, A, "198.51.100.7:40002", &rtp(7, 200), late),
        PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
    );
    // A new offer with another address resets the latch.
    plan.flows[0].sides[0].signalled_rtp = Some(addr("10.0.0.6:4000"));
    forwarder.command(MediaCommand::Update(Box::new(plan)), late);
    for n in 0..LATCH_PACKETS {
        send(
            &mut forwarder,
            A,
            "198.51.100.7:41000",
            &rtp(8, n.into()),
            late,
        );
    }
    assert_eq!(
        send(&mut forwarder, A, "198.51.100.7:41000", &rtp(8, 9), late),
        to(B, "192.0.2.2:5000")
    );
    let stats = last_stats(&mut forwarder, 1, late);
    let a = &stats.flows[0].sides[0];
    assert_eq!(a.address, Some(addr("198.51.100.7:41000")));
    assert_eq!(a.sources.len(), 2);
    let drops: u64 = a.drops.iter().map(|drop| drop.1).sum();
    assert_eq!(drops, 1 + 2 + 201 + 1 + 2);
}

#[test]
fn packets_out_of_sequence_do_not_latch() {
    let mut forwarder = forwarder();
    let mut plan = plan();
    plan.flows[0].sides[0].signalled_rtp = None;
    let now = Time::ZERO;
    forwarder.command(MediaCommand::Add(Box::new(plan)), now);
    for n in 0..40u16 {
        // Each from a new source, or a repeated number, or a jump.
        let packets = [
            rtp(n.into(), n),
            rtp(1000, 5),
            rtp(1000, n.wrapping_mul(1000)),
        ];
        for packet in packets {
            assert_eq!(
                send(&mut forwarder, A, "203.0.113.1:1000", &packet, now),
                PacketVerdict::Drop(DropReason::MediaLatching)
            );
        }
        // RTCP and STUN on the RTP port do not lead to latching either.
        assert_eq!(
            send(&mut forwarder, A, "203.0.113.1:1000", &rtcp(1), now),
            PacketVerdict::Drop(DropReason::MediaUnexpectedRtcp)
        );
    }
    assert_eq!(
        send(&mut forwarder, B, "192.0.2.2:5000", &rtp(9, 1), now),
        PacketVerdict::Drop(DropReason::MediaNoDestination)
    );
}

#[test]
fn unexpected_packets_are_dropped_and_counted() {
    let mut forwarder = forwarder();
    let now = Time::ZERO;
    forwarder.command(MediaCommand::Add(Box::new(plan())), now);
    let good = "192.0.2.1:4000";
    let cases: [(SocketId, &str, Vec<u8>, DropReason); 9] = [
        (A, good, vec![], DropReason::MediaMalformed),
        (
            A,
            good,
            rtp(1, 1)[..11].to_vec(),
            DropReason::MediaMalformed,
        ),
        (A, good, vec![0x40; 172], DropReason::MediaMalformed),
        (A, good, vec![0x8f; 40], DropReason::MediaMalformed),
        (
            A,
            good,
            vec![0x80; media::forward::MAX_PACKET + 1],
            DropReason::MediaTooLarge,
        ),
        (A, good, rtcp(1), DropReason::MediaUnexpectedRtcp),
        (
            A_RTCP,
            "192.0.2.1:4001",
            rtp(1, 1),
            DropReason::MediaUnexpectedRtcp,
        ),
        (
            A_RTCP,
            "192.0.2.1:4001",
            vec![0x80, 0, 0],
            DropReason::MediaMalformed,
        ),
        (
            A,
            "[2001:db8::1]:4000",
            rtp(1, 1),
            DropReason::MediaAddressFamily,
        ),
    ];
    for (socket, source, bytes, reason) in cases {
        let before = forwarder.drops().get(reason);
        assert_eq!(
            send(&mut forwarder, socket, source, &bytes, now),
            PacketVerdict::Drop(reason)
        );
        assert_eq!(forwarder.drops().get(reason), before + 1);
    }
    let mut binding = vec![0u8; 20];
    binding[1] = 1;
    binding[4..8].copy_from_slice(&wire::stun::MAGIC_COOKIE.to_be_bytes());
    assert_eq!(
        send(&mut forwarder, A, good, &binding, now),
        PacketVerdict::Punt("stun")
    );
    // Payload type 72 with the marker bit looks like RTCP, but is RTP if RTCP has a separate port.
    let mut looks_alike = rtp(1, 1);
    looks_alike[1] = 200;
    assert_eq!(
        send(&mut forwarder, A, good, &looks_alike, now),
        to(B, "192.0.2.2:5000")
    );
}

#[test]
fn rtcp_between_mux_and_separate_ports() {
    let mut forwarder = forwarder();
    let mut plan = plan();
    let b = &mut plan.flows[0].sides[1];
    b.mux = true;
    b.rtcp = None;
    let now = Time::ZERO;
    forwarder.command(MediaCommand::Add(Box::new(plan)), now);
    assert_eq!(
        send(&mut forwarder, A_RTCP, "192.0.2.1:4001", &rtcp(1), now),
        to(B, "192.0.2.2:5000")
    );
    assert_eq!(
        send(&mut forwarder, B, "192.0.2.2:5000", &rtcp(2), now),
        to(A_RTCP, "192.0.2.1:4001")
    );
    assert_eq!(
        send(&mut forwarder, B, "192.0.2.2:5000", &rtp(2, 1), now),
        to(A, "192.0.2.1:4000")
    );
    let stats = forwarder.stats(1).unwrap();
    let [a, b] = &stats.flows[0].sides;
    assert_eq!(
        (
            a.sent_rtcp.packets,
            b.received_rtcp.packets,
            b.received.packets
        ),
        (1, 1, 1)
    );
}

#[test]
fn ipv6_to_ipv4_and_back() {
    let mut forwarder = forwarder();
    let mut plan = plan();
    let b = &mut plan.flows[0].sides[1];
    b.ipv6 = true;
    b.signalled_rtp = Some(addr("[2001:db8::2]:5000"));
    let now = Time::ZERO;
    forwarder.command(MediaCommand::Add(Box::new(plan.clone())), now);
    assert_eq!(
        send(&mut forwarder, A, "192.0.2.1:4000", &rtp(1, 1), now),
        to(B, "[2001:db8::2]:5000")
    );
    assert_eq!(
        send(&mut forwarder, B, "[2001:db8::2]:5000", &rtp(2, 1), now),
        to(A, "192.0.2.1:4000")
    );
    assert_eq!(
        send(&mut forwarder, B, "192.0.2.2:5000", &rtp(2, 1), now),
        PacketVerdict::Drop(DropReason::MediaAddressFamily)
    );
    // A signalled address of the wrong family is no destination; nor is the unspecified address, port 0 or multicast.
    for bad in [
        "192.0.2.2:5000",
        "[::]:5000",
        "[2001:db8::2]:0",
        "[ff02::1]:5000",
    ] {
        plan.flows[0].sides[1].signalled_rtp = Some(addr(bad));
        forwarder.command(MediaCommand::Update(Box::new(plan.clone())), now);
        assert_eq!(
            send(&mut forwarder, A, "192.0.2.1:4000", &rtp(1, 2), now),
            PacketVerdict::Drop(DropReason::MediaNoDestination),
            "{bad}"
        );
    }
}

#[test]
fn hold_stops_media_but_not_rtcp() {
    let mut forwarder = forwarder();
    let mut plan = plan();
    let now = Time::ZERO;
    plan.flows[0].sides[0].receives = false;
    forwarder.command(MediaCommand::Add(Box::new(plan)), now);
    assert_eq!(
        send(&mut forwarder, B, "192.0.2.2:5000", &rtp(2, 1), now),
        PacketVerdict::Drop(DropReason::MediaDirectionClosed)
    );
    assert_eq!(
        send(&mut forwarder, A, "192.0.2.1:4000", &rtp(1, 1), now),
        to(B, "192.0.2.2:5000")
    );
    assert_eq!(
        send(&mut forwarder, B_RTCP, "192.0.2.2:5001", &rtcp(2), now),
        to(A_RTCP, "192.0.2.1:4001")
    );
}

#[test]
fn silence_is_reported_as_timeout() {
    let mut forwarder = forwarder();
    let mut plan = plan();
    plan.inactivity = Some(Duration::from_secs(30));
    plan.hold_inactivity = Some(Duration::from_secs(300));
    let mut now = Time::from_secs(10);
    forwarder.command(MediaCommand::Add(Box::new(plan.clone())), now);
    for n in 0..4 {
        now += Duration::from_secs(25);
        forwarder.timeout(now);
        send(&mut forwarder, A, "192.0.2.1:4000", &rtp(1, n), now);
    }
    let spoke = now;
    // Packets from other addresses do not count as activity.
    now += Duration::from_secs(20);
    send(&mut forwarder, A, "203.0.113.9:1", &rtp(1, 5), now);
    assert!(
        reports(&mut forwarder)
            .iter()
            .all(|report| matches!(report, MediaEvent::Latched { .. }))
    );
    let mut wakes = 0;
    let reported = loop {
        let due = forwarder.next_deadline().unwrap().at;
        assert!(due > now || wakes == 0);
        now = due;
        forwarder.timeout(now);
        wakes += 1;
        assert!(wakes < 20, "too many wake-ups");
        if let Some(report) = forwarder.next_report() {
            break report;
        }
    };
    assert_eq!(
        reported,
        MediaEvent::Timeout {
            session: 1,
            since: spoke
        }
    );
    let silent = now.since(spoke);
    assert!(
        silent >= Duration::from_secs(30) && silent < Duration::from_millis(30_003),
        "{silent:?}"
    );
    // On hold the longer timeout applies, from the change on.
    for side in &mut plan.flows[0].sides {
        side.sends = false;
    }
    forwarder.command(MediaCommand::Update(Box::new(plan.clone())), now);
    forwarder.timeout(now + Duration::from_secs(299));
    assert_eq!(forwarder.next_report(), None);
    forwarder.timeout(now + Duration::from_millis(300_002));
    assert!(matches!(
        forwarder.next_report(),
        Some(MediaEvent::Timeout { .. })
    ));
    plan.hold_inactivity = None;
    forwarder.command(
        MediaCommand::Update(Box::new(plan)),
        now + Duration::from_secs(301),
    );
    assert_eq!(forwarder.next_deadline(), None);
}

#[test]
fn invalid_plans_are_refused_and_change_nothing() {
    let limits = ForwarderLimits {
        conferences: 1,
        sessions: 2,
        sockets: 80_000,
    };
    let mut forwarder = Forwarder::new(limits, HashKey::default());
    let now = Time::ZERO;
    let mut refused = |command: MediaCommand, expected: PlanError| {
        let sockets = forwarder.sockets();
        forwarder.command(command, now);
        match &reports(&mut forwarder)[..] {
            [MediaEvent::Refused { error, .. }] => assert_eq!(*error, expected),
            other => panic!("{other:?}"),
        }
        if forwarder.sockets() == 0 {
            forwarder.command(MediaCommand::Add(Box::new(plan())), now);
        } else {
            assert_eq!(forwarder.sockets(), sockets);
        }
    };
    refused(MediaCommand::Remove(9), PlanError::NoSuchSession);
    refused(MediaCommand::Query(9), PlanError::NoSuchSession);
    refused(
        MediaCommand::Add(Box::new(plan())),
        PlanError::SessionExists,
    );
    let mut other = plan();
    other.session = 2;
    refused(
        MediaCommand::Add(Box::new(other.clone())),
        PlanError::SocketInUse(A),
    );
    refused(
        MediaCommand::Update(Box::new(other.clone())),
        PlanError::NoSuchSession,
    );
    other.flows[0].sides[0].rtp = SocketId(80_000);
    refused(
        MediaCommand::Add(Box::new(other.clone())),
        PlanError::SocketOutOfRange(SocketId(80_000)),
    );
    let mut twice = plan();
    twice.flows[0].sides[1].rtp = A;
    refused(
        MediaCommand::Update(Box::new(twice)),
        PlanError::SocketInUse(A),
    );
    let mut lines = plan();
    let mut second = lines.flows[0].clone();
    for (side, socket) in second.sides.iter_mut().zip([100, 200]) {
        side.rtp = SocketId(socket);
        side.rtcp = None;
    }
    lines.flows.push(second);
    refused(
        MediaCommand::Update(Box::new(lines.clone())),
        PlanError::LineTwice(0),
    );
    lines.flows[1].line = 1;
    lines.session = 1;
    let mut small = SessionPlan::single(
        3,
        Carriage::Rtp,
        [SidePlan::new(SocketId(1)), SidePlan::new(SocketId(2))],
    );
    forwarder.command(MediaCommand::Add(Box::new(small.clone())), now);
    small.session = 4;
    for (side, socket) in small.flows[0].sides.iter_mut().zip([3, 4]) {
        side.rtp = SocketId(socket);
    }
    forwarder.command(MediaCommand::Add(Box::new(small)), now);
    assert!(matches!(
        reports(&mut forwarder)[..],
        [MediaEvent::Refused {
            error: PlanError::Full,
            ..
        }]
    ));
    // Two lines, then one is removed: its statistics remain until the end.
    forwarder.command(MediaCommand::Update(Box::new(lines.clone())), now);
    assert_eq!(forwarder.sockets(), 2 + 6);
    send(
        &mut forwarder,
        SocketId(100),
        "192.0.2.1:4000",
        &rtp(1, 1),
        now,
    );
    lines.flows.pop();
    forwarder.command(MediaCommand::Update(Box::new(lines)), now);
    assert_eq!(forwarder.sockets(), 2 + 4);
    let stats = last_stats(&mut forwarder, 1, now);
    assert_eq!(
        stats.flows.iter().map(|flow| flow.line).collect::<Vec<_>>(),
        [1, 0]
    );
    assert_eq!(stats.flows[0].sides[0].received.packets, 1);
}

#[test]
fn datagram_lines_are_latched_and_relayed() {
    let mut forwarder = forwarder();
    let mut plan = plan();
    plan.flows[0].carriage = Carriage::Datagrams;
    plan.flows[0].sides[0].signalled_rtp = None;
    let now = Time::ZERO;
    forwarder.command(MediaCommand::Add(Box::new(plan)), now);
    let udptl = [0u8, 1, 2, 3];
    for n in 1..LATCH_PACKETS {
        assert_eq!(
            send(&mut forwarder, A, "203.0.113.4:7", &udptl, now),
            PacketVerdict::Drop(DropReason::MediaLatching),
            "{n}"
        );
    }
    assert_eq!(
        send(&mut forwarder, A, "203.0.113.4:7", &udptl, now),
        to(B, "192.0.2.2:5000")
    );
    assert_eq!(
        send(&mut forwarder, A, "203.0.113.5:7", &udptl, now),
        PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
    );
    assert_eq!(
        send(&mut forwarder, B, "192.0.2.2:5000", &[], now),
        PacketVerdict::Drop(DropReason::MediaMalformed)
    );
}

#[test]
fn many_sources_are_relayed_and_some_tracked() {
    let mut forwarder = forwarder();
    let mut now = Time::ZERO;
    forwarder.command(MediaCommand::Add(Box::new(plan())), now);
    for ssrc in 0..1000 {
        now += Duration::from_millis(1);
        assert_eq!(
            send(&mut forwarder, A, "192.0.2.1:4000", &rtp(ssrc, 1), now),
            to(B, "192.0.2.2:5000")
        );
    }
    now += Duration::from_secs(20);
    send(&mut forwarder, A, "192.0.2.1:4000", &rtp(77_777, 1), now);
    let stats = forwarder.stats(1).unwrap();
    let a = &stats.flows[0].sides[0];
    assert_eq!(
        (a.sources.len(), a.untracked, a.sources_replaced),
        (4, 996, 1)
    );
    assert!(a.sources.iter().any(|source| source.ssrc == 77_777));
}

#[test]
fn relayed_rtcp_gives_the_round_trip_time_of_a_side() {
    let mut forwarder = forwarder();
    forwarder.command(MediaCommand::Add(Box::new(plan())), Time::ZERO);
    let info = SenderInfo {
        ntp: 0x1234_5678_9abc_def0,
        ..SenderInfo::default()
    };
    let report = CompoundBuilder::new().sender_report(7, &info, &[]).finish();
    let answer = |last_sr| {
        let block = ReportBlock {
            ssrc: 7,
            fraction_lost: 12,
            last_sr,
            delay_since_last_sr: 65_536 / 2,
            ..ReportBlock::default()
        };
        CompoundBuilder::new().receiver_report(9, &[block]).finish()
    };
    send(
        &mut forwarder,
        A_RTCP,
        "192.0.2.1:4001",
        &report,
        Time::from_millis(1000),
    );
    send(
        &mut forwarder,
        B_RTCP,
        "203.0.113.9:1",
        &answer(0x5678_9abc),
        Time::from_millis(1501),
    );
    assert_eq!(
        forwarder.stats(1).unwrap().flows[0].sides[1].report,
        None,
        "report about another source"
    );
    send(
        &mut forwarder,
        B_RTCP,
        "192.0.2.2:5001",
        &answer(0x5678_9abd),
        Time::from_millis(1530),
    );
    assert_eq!(
        forwarder.stats(1).unwrap().flows[0].sides[1].round_trip,
        None,
        "report about no sent report"
    );
    send(
        &mut forwarder,
        B_RTCP,
        "192.0.2.2:5001",
        &answer(0x5678_9abc),
        Time::from_millis(1540),
    );
    let stats = forwarder.stats(1).unwrap();
    let b = &stats.flows[0].sides[1];
    assert_eq!(
        (b.round_trip, b.report.unwrap().fraction_lost),
        (Some(Duration::from_millis(40)), 12)
    );
    assert_eq!(stats.flows[0].sides[0].round_trip, None);
}

/// The RTCP that the forwarder sends for this one.
fn relayed(forwarder: &mut Forwarder, socket: SocketId, source: &str, bytes: &[u8]) -> Vec<u8> {
    let now = Time::from_secs(1);
    let mut buffer = bytes.to_vec();
    let mut packet = MediaPacket::new(socket, addr(source), now, &mut buffer);
    let verdict = forwarder.forward(&mut packet, now);
    assert!(
        matches!(verdict, PacketVerdict::Forward { .. }),
        "{verdict:?}"
    );
    packet.bytes().to_vec()
}

/// The CNAMEs of a compound packet, by source.
fn cnames(compound: &[u8]) -> Vec<(u32, String)> {
    let packets = wire::rtcp::Compound::new(compound);
    let items = packets.flat_map(|packet| packet.descriptions());
    items
        .map(|(source, kind, text)| {
            assert_eq!(kind, 1, "other names are removed");
            (source, String::from_utf8(text.to_vec()).unwrap())
        })
        .collect()
}

/// Towards a side with topology hiding a CNAME has one pseudonym on all lines and for the whole call, another in other
/// calls; the other side gets it as it is.
#[test]
fn rtcp_names_no_host_towards_a_side_with_topology_hiding() {
    let compound = |ssrc: u32| {
        CompoundBuilder::new()
            .receiver_report(ssrc, &[])
            .cname(ssrc, "alice@pbx.example.com")
            .goodbye(&[ssrc], "pbx.example.com goes down")
            .finish()
    };
    let mut forwarder = forwarder();
    let mut names = Vec::new();
    for session in [1, 2] {
        let mut plan = plan();
        plan.session = session;
        let mut second = plan.flows[0].clone();
        second.line = 1;
        for side in &mut second.sides {
            side.rtp.0 += 10;
            side.rtcp = side.rtcp.map(|socket| SocketId(socket.0 + 10));
        }
        plan.flows.push(second);
        for flow in &mut plan.flows {
            flow.sides[1].hides = true;
        }
        let add = MediaCommand::Add(Box::new(plan.clone()));
        forwarder.command(add, Time::ZERO);
        for number in 0..4u32 {
            let from = SocketId(A_RTCP.0 + 10 * (number % 2));
            let sent = compound(number);
            let hidden = relayed(&mut forwarder, from, "192.0.2.1:4001", &sent);
            assert!(hidden.len() < sent.len() && wire::rtcp::is_compound(&hidden));
            assert!(!hidden.windows(3).any(|word| word == b"pbx"));
            let goodbye = wire::rtcp::Compound::new(&hidden).last().unwrap();
            assert_eq!(goodbye.goodbye_sources().collect::<Vec<_>>(), [number]);
            let [(source, name)] = &cnames(&hidden)[..] else {
                panic!("{hidden:?}");
            };
            assert_eq!((*source, name.len()), (number, 16));
            names.push(name.clone());
            // A change of the plan keeps it.
            let update = MediaCommand::Update(Box::new(plan.clone()));
            forwarder.command(update, Time::ZERO);
        }
        let back = relayed(&mut forwarder, B_RTCP, "192.0.2.2:5001", &compound(9));
        assert_eq!(back, compound(9));
        forwarder.command(MediaCommand::Remove(session), Time::ZERO);
    }
    let (first, second) = names.split_at(4);
    assert!(first.iter().all(|name| *name == first[0]), "{names:?}");
    assert!(second.iter().all(|name| *name == second[0]), "{names:?}");
    assert_ne!(first[0], second[0]);
}

/// A datagram that is no compound may have names, too. It is dropped, unless it may be SRTCP whose keys are unknown
/// here.
#[test]
fn malformed_rtcp_reaches_no_side_with_topology_hiding() {
    let compound = CompoundBuilder::new()
        .receiver_report(7, &[])
        .cname(7, "alice@pbx.example.com")
        .finish();
    // The text of the item is longer than the datagram.
    let malformed = [&compound[..], &[0x81, 202, 0, 9, 0, 0, 0, 7]].concat();
    for (plain, hides, passes) in [
        (true, true, false),
        (false, true, true),
        (true, false, true),
    ] {
        let mut forwarder = forwarder();
        let mut plan = plan();
        plan.flows[0].sides[0].plain_rtcp = plain;
        plan.flows[0].sides[1].hides = hides;
        forwarder.command(MediaCommand::Add(Box::new(plan)), Time::ZERO);
        let now = Time::from_secs(1);
        let mut buffer = malformed.clone();
        let mut packet = MediaPacket::new(A_RTCP, addr("192.0.2.1:4001"), now, &mut buffer);
        let verdict = forwarder.forward(&mut packet, now);
        let forwarded = matches!(verdict, PacketVerdict::Forward { .. });
        assert_eq!(forwarded, passes, "{plain} {hides}: {verdict:?}");
        let good = relayed(&mut forwarder, A_RTCP, "192.0.2.1:4001", &compound);
        assert_eq!(good == compound, !hides);
    }
}

/// A plausible step for `media::fuzz_forward`: a command, a delay, or a well-formed packet.
fn fuzz_step() -> impl Strategy<Value = Vec<u8>> {
    let packet = |bytes: Vec<u8>, socket: u8, source: u8| {
        let mut step = vec![4, socket, bytes.len() as u8, source];
        step.extend(bytes);
        step
    };
    prop_oneof![
        1 => (any::<u8>(), any::<u8>()).prop_map(|(session, flavour)| vec![1 + session / 128, session, flavour]),
        1 => any::<u8>().prop_map(|session| vec![0, session]),
        2 => any::<[u8; 2]>().prop_map(|[shift, span]| vec![3 | (shift & 0xf8), span]),
        8 => (0..16u8, 0..6u8, 0..3u32, 0..40u16).prop_map(move |(socket, source, ssrc, n)| packet(rtp(ssrc, n)[..20].to_vec(), socket, source)),
        3 => (0..16u8, 0..6u8, any::<u32>()).prop_map(move |(socket, source, ssrc)| packet(rtcp(ssrc), socket, source)),
        2 => (0..16u8, 0..6u8, prop::collection::vec(any::<u8>(), 0..60)).prop_map(move |(socket, source, bytes)| packet(bytes, socket, source)),
    ]
}

/// A step of the model: a packet, or a command of control.
#[derive(Clone, Debug)]
enum Step {
    Send {
        side: usize,
        sender: usize,
        ssrc: u32,
        sequence: u16,
    },
    Reoffer {
        side: usize,
        signalled: usize,
    },
    Refresh,
    Wait(u64),
}

/// Per side: 0 is the party's address as signalled first, 1 its other one (signalled by a re-INVITE), 2 and 3 belong to
/// third parties.
const SENDERS: [[&str; 4]; 2] = [
    [
        "192.0.2.1:4000",
        "192.0.2.1:4400",
        "203.0.113.1:4000",
        "192.0.2.1:666",
    ],
    [
        "192.0.2.2:5000",
        "192.0.2.2:5500",
        "203.0.113.2:5000",
        "192.0.2.2:666",
    ],
];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        // Few numbers, so that packets in sequence are frequent.
        12 => (0..2usize, 0..4usize, 0..1u32, 0..30u16)
            .prop_map(|(side, sender, ssrc, sequence)| Step::Send { side, sender, ssrc, sequence }),
        1 => (0..2usize, 0..2usize).prop_map(|(side, signalled)| Step::Reoffer { side, signalled }),
        1 => Just(Step::Refresh),
        1 => (1..100_000u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// With `Latching::Signalled` the model is simple: only the address signalled last may send and receives packets.
    #[test]
    fn third_parties_neither_send_nor_receive(steps in prop::collection::vec(step(), 1..200)) {
        let mut forwarder = forwarder();
        let mut plan = plan();
        for side in &mut plan.flows[0].sides {
            side.latching = Latching::Signalled;
        }
        let mut now = Time::ZERO;
        let mut signalled = [0usize; 2];
        forwarder.command(MediaCommand::Add(Box::new(plan.clone())), now);
        for step in steps {
            match step {
                Step::Send { side, sender, ssrc, sequence } => {
                    let socket = [A, B][side];
                    let verdict = send(&mut forwarder, socket, SENDERS[side][sender], &rtp(ssrc, sequence), now);
                    let expected = if sender == signalled[side] {
                        to([B, A][side], SENDERS[1 - side][signalled[1 - side]])
                    } else {
                        PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
                    };
                    prop_assert_eq!(verdict, expected);
                }
                Step::Reoffer { side, signalled: new } => {
                    signalled[side] = new;
                    plan.flows[0].sides[side].signalled_rtp = Some(addr(SENDERS[side][new]));
                    forwarder.command(MediaCommand::Update(Box::new(plan.clone())), now);
                }
                Step::Refresh => forwarder.command(MediaCommand::Update(Box::new(plan.clone())), now),
                Step::Wait(ms) => now += Duration::from_millis(ms),
            }
        }
    }

    /// With latching the model follows the reports: once locked, an address changes only to the signalled one or by a
    /// new offer, and only packets from the locked address are accepted.
    #[test]
    fn latched_address_is_kept(steps in prop::collection::vec(step(), 1..300)) {
        let mut forwarder = forwarder();
        let mut plan = plan();
        let mut now = Time::ZERO;
        let mut signalled = [0usize; 2];
        let mut locked: [Option<SocketAddr>; 2] = [None; 2];
        forwarder.command(MediaCommand::Add(Box::new(plan.clone())), now);
        for step in steps {
            match step {
                Step::Send { side, sender, ssrc, sequence } => {
                    let source = addr(SENDERS[side][sender]);
                    let verdict = send(&mut forwarder, [A, B][side], SENDERS[side][sender], &rtp(ssrc, sequence), now);
                    for report in reports(&mut forwarder) {
                        if let MediaEvent::Latched { side: at, component: Component::Rtp, address, .. } = report {
                            prop_assert_eq!(usize::from(at), side);
                            prop_assert_eq!(address, source, "latched to the sender of the packet");
                            let own = addr(SENDERS[side][signalled[side]]);
                            prop_assert!(locked[side].is_none() || address == own, "a third party changed the latch");
                            locked[side] = Some(address);
                        }
                    }
                    let accepted = locked[side] == Some(source);
                    let other = locked[1 - side].unwrap_or(addr(SENDERS[1 - side][signalled[1 - side]]));
                    match verdict {
                        PacketVerdict::Forward { socket, destination } => {
                            prop_assert!(accepted, "{} was accepted", source);
                            prop_assert_eq!((socket, destination), ([B, A][side], other));
                        }
                        PacketVerdict::Drop(reason) => {
                            prop_assert!(!accepted);
                            let expected = if locked[side].is_some() { DropReason::MediaUnexpectedSource } else { DropReason::MediaLatching };
                            prop_assert_eq!(reason, expected);
                        }
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
                Step::Reoffer { side, signalled: new } => {
                    if signalled[side] != new {
                        locked[side] = None;
                    }
                    signalled[side] = new;
                    plan.flows[0].sides[side].signalled_rtp = Some(addr(SENDERS[side][new]));
                    forwarder.command(MediaCommand::Update(Box::new(plan.clone())), now);
                }
                Step::Refresh => forwarder.command(MediaCommand::Update(Box::new(plan.clone())), now),
                Step::Wait(ms) => now += Duration::from_millis(ms),
            }
        }
    }

    #[test]
    fn plausible_input_keeps_invariants(steps in prop::collection::vec(fuzz_step(), 0..300)) {
        media::fuzz_forward(&steps.concat());
    }

    #[test]
    fn arbitrary_input_keeps_invariants(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        media::fuzz_forward(&data);
    }
}
