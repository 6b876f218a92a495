//! The forwarder during and after hold, and with the sources that music on hold and transfers add.

use crate::forward::{A, B, addr, forwarder, plan, rtp, send, to};

use core::time::Duration;
use engine::{
    DropReason, Forward, OffloadChange, OffloadStatistics, PacketVerdict, SocketId, Time,
};
use media::{Forwarder, Latching, MediaCommand, MediaEvent};

/// The mapping of a phone at its NAT ends during hold; after the next offer its packets come from another port.
#[test]
fn port_after_hold_is_latched() {
    let mut forwarder = forwarder();
    let mut plan = plan();
    let mut now = Time::ZERO;
    plan.flows[0].sides[0].signalled_rtp = Some(addr("10.0.0.1:4000"));
    plan.flows[0].sides[0].latching = Latching::SameAddress(addr("203.0.113.7:1").ip());
    forwarder.command(MediaCommand::Add(Box::new(plan.clone())), now);
    for sequence in 1..=4 {
        send(
            &mut forwarder,
            A,
            "203.0.113.7:30000",
            &rtp(1, sequence),
            now,
        );
    }
    let to_phone =
        |forwarder: &mut Forwarder, now| send(forwarder, B, "192.0.2.2:5000", &rtp(2, 1), now);
    assert_eq!(to_phone(&mut forwarder, now), to(A, "203.0.113.7:30000"));
    // Hold and resume.
    plan.flows[0].sides[0].receives = false;
    forwarder.command(MediaCommand::Update(Box::new(plan.clone())), now);
    now += Duration::from_secs(120);
    plan.flows[0].sides[0].receives = true;
    plan.flows[0].sides[0].latch_epoch += 1;
    forwarder.command(MediaCommand::Update(Box::new(plan.clone())), now);
    assert_eq!(to_phone(&mut forwarder, now), to(A, "203.0.113.7:30000"));
    // Another host is not permitted.
    for sequence in 5..=8 {
        assert_eq!(
            send(
                &mut forwarder,
                A,
                "203.0.113.8:30000",
                &rtp(1, sequence),
                now
            ),
            PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
        );
    }
    let verdicts: Vec<_> = (5..=8)
        .map(|sequence| {
            send(
                &mut forwarder,
                A,
                "203.0.113.7:41777",
                &rtp(1, sequence),
                now,
            )
        })
        .collect();
    let latching = PacketVerdict::Drop(DropReason::MediaLatching);
    let relayed = to(B, "192.0.2.2:5000");
    assert_eq!(verdicts, [latching, latching, relayed, relayed]);
    assert_eq!(to_phone(&mut forwarder, now), to(A, "203.0.113.7:41777"));
    // Once only, and the old port is not valid any more.
    for (port, sequence) in [(30_000, 9), (41_778, 10), (41_778, 11), (41_778, 12)] {
        let source = format!("203.0.113.7:{port}");
        assert_eq!(
            send(&mut forwarder, A, &source, &rtp(1, sequence), now),
            PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
        );
    }
    // Packets of the latched port after the change keep others out.
    plan.flows[0].sides[0].latch_epoch += 1;
    forwarder.command(MediaCommand::Update(Box::new(plan)), now);
    for sequence in 13..16 {
        send(
            &mut forwarder,
            A,
            "203.0.113.7:41777",
            &rtp(1, sequence),
            now,
        );
    }
    for sequence in 20..24 {
        assert_eq!(
            send(
                &mut forwarder,
                A,
                "203.0.113.7:41778",
                &rtp(1, sequence),
                now
            ),
            PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
        );
    }
}

/// Packets that the kernel relays do not reach the latch: it would stay open for an attacker until the entry is closed.
#[test]
fn kernel_relay_waits_until_no_other_address_may_be_latched() {
    const PHONE: &str = "203.0.113.7:30000";
    let mut forwarder = forwarder();
    forwarder.allow_offload(true);
    let mut plan = plan();
    let mut now = Time::from_secs(1);
    plan.flows[0].sides[0].signalled_rtp = Some(addr("10.0.0.1:4000"));
    plan.flows[0].sides[0].latching = Latching::Anywhere;
    forwarder.command(MediaCommand::Add(Box::new(plan.clone())), now);
    let mut speak = |forwarder: &mut Forwarder, sequence| {
        now += Duration::from_millis(20);
        send(forwarder, A, PHONE, &rtp(1, sequence), now)
    };
    let relayed = to(B, "192.0.2.2:5000");
    let opens_after = |forwarder: &mut Forwarder, sequence| {
        let Some(OffloadChange::Open(entry)) = forwarder.next_offload_change() else {
            panic!("no entry");
        };
        assert_eq!((entry.source, entry.sequence), (addr(PHONE), sequence));
        assert_eq!(forwarder.next_offload_change(), None);
    };
    for sequence in 1..=3 {
        speak(&mut forwarder, sequence);
        assert_eq!(forwarder.next_offload_change(), None);
    }
    assert_eq!(speak(&mut forwarder, 4), relayed);
    opens_after(&mut forwarder, 4);
    // The end of hold.
    plan.flows[0].sides[0].latch_epoch += 1;
    let resumed = Time::from_millis(1_100);
    forwarder.command(MediaCommand::Update(Box::new(plan)), resumed);
    assert_eq!(
        forwarder.next_offload_change(),
        Some(OffloadChange::Close(A))
    );
    forwarder.offload_closed(A, &OffloadStatistics::default(), resumed);
    for sequence in 5..=6 {
        assert_eq!(speak(&mut forwarder, sequence), relayed);
        assert_eq!(forwarder.next_offload_change(), None, "after {sequence}");
    }
    assert_eq!(speak(&mut forwarder, 7), relayed);
    opens_after(&mut forwarder, 7);
    // The driver closes the entry before the forwarder receives the packet of another source.
    let later = Time::from_secs(100);
    forwarder.offload_closed(A, &OffloadStatistics::default(), later);
    for sequence in 1..=3 {
        assert_eq!(
            send(
                &mut forwarder,
                A,
                "198.51.100.9:5555",
                &rtp(666, sequence),
                later
            ),
            PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
        );
    }
    let to_phone = send(&mut forwarder, B, "192.0.2.2:5000", &rtp(2, 1), later);
    assert_eq!(to_phone, to(A, PHONE));
}

/// A phone that holds a call sends `sendonly`, the other one answers `recvonly`; by a zero address it receives nothing.
#[test]
fn hold_in_one_direction_has_the_timeout_of_hold() {
    for (sends, receives) in [([true, false], [false, true]), ([true; 2], [false, true])] {
        let mut forwarder = forwarder();
        let mut plan = plan();
        plan.inactivity = Some(Duration::from_secs(30));
        plan.hold_inactivity = Some(Duration::from_secs(300));
        for (index, side) in plan.flows[0].sides.iter_mut().enumerate() {
            (side.sends, side.receives) = (sends[index], receives[index]);
        }
        let mut second = plan.flows[0].clone();
        let now = Time::from_secs(10);
        forwarder.command(MediaCommand::Add(Box::new(plan.clone())), now);
        forwarder.timeout(now + Duration::from_secs(299));
        assert_eq!(forwarder.next_report(), None);
        forwarder.timeout(now + Duration::from_millis(300_002));
        assert!(matches!(
            forwarder.next_report(),
            Some(MediaEvent::Timeout { .. })
        ));
        // With another line that is not on hold, the call is not.
        second.line = 1;
        for (side, socket) in second.sides.iter_mut().zip([70_010, 70_011]) {
            (side.rtp, side.rtcp) = (SocketId(socket), None);
            (side.sends, side.receives) = (true, true);
        }
        plan.flows.push(second);
        assert!(!plan.is_held());
    }
}

/// Transfers and music on hold change the source; a call may have had more than are tracked.
#[test]
fn losses_of_replaced_sources_are_kept() {
    let mut forwarder = forwarder();
    let mut now = Time::ZERO;
    let mut plan = plan();
    plan.inactivity = None;
    forwarder.command(MediaCommand::Add(Box::new(plan)), now);
    for ssrc in 1..=6 {
        now += Duration::from_secs(11);
        // Each loses as many packets as its number, and one is there twice.
        for sequence in (0..5).chain(5 + ssrc as u16..10 + ssrc as u16).chain([3]) {
            send(
                &mut forwarder,
                A,
                "192.0.2.1:4000",
                &rtp(ssrc, sequence),
                now,
            );
        }
    }
    let stats = forwarder.stats(1).unwrap();
    let side = &stats.flows[0].sides[0];
    assert_eq!((side.sources.len(), side.sources_replaced), (4, 2));
    let totals = side.totals();
    assert_eq!(
        (totals.expected, totals.lost, totals.duplicates),
        (60 + 21, 21, 6)
    );
    assert_eq!(side.replaced.lost, 1 + 2);
}

/// Video that is added and removed again and again: no packet is missing from the figures.
#[test]
fn figures_of_many_removed_lines_are_kept() {
    let mut forwarder = forwarder();
    let (a, b) = (SocketId(70_010), SocketId(70_011));
    let audio = plan();
    let mut both = plan();
    let mut video = both.flows[0].clone();
    video.line = 1;
    for (side, socket) in video.sides.iter_mut().zip([a, b]) {
        (side.rtp, side.rtcp) = (socket, None);
    }
    both.flows.push(video);
    let now = Time::from_secs(1);
    forwarder.command(MediaCommand::Add(Box::new(audio.clone())), now);
    for round in 1..=40u16 {
        forwarder.command(MediaCommand::Update(Box::new(both.clone())), now);
        let relayed = to(b, "192.0.2.2:5000");
        for sequence in [1, 3] {
            let packet = rtp(round.into(), sequence);
            assert_eq!(
                send(&mut forwarder, a, "192.0.2.1:4000", &packet, now),
                relayed
            );
        }
        let stranger = send(&mut forwarder, a, "192.0.2.9:4000", &rtp(1, 2), now);
        assert_eq!(
            stranger,
            PacketVerdict::Drop(DropReason::MediaUnexpectedSource)
        );
        forwarder.command(MediaCommand::Update(Box::new(audio.clone())), now);
        assert_eq!(forwarder.packets(), 2 * u64::from(round));
    }
    let stats = forwarder.stats(1).unwrap();
    let video = || stats.flows.iter().filter(|flow| flow.line == 1);
    let callers = || video().map(|flow| &flow.sides[0]);
    let received: u64 = callers().map(|side| side.received.packets).sum();
    let sent: u64 = video().map(|flow| flow.sides[1].sent.packets).sum();
    let lost: u64 = callers().map(|side| side.totals().lost).sum();
    let drops: u64 = callers().flat_map(|side| &side.drops).map(|(_, n)| n).sum();
    assert_eq!((received, sent, lost, drops), (80, 80, 40, 40));
}
