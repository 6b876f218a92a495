//! Streams that are offloaded to the kernel relay and return: nothing is lost, duplicated or reordered, and the
//! statistics are the same as without offload.

use crate::rig;

use engine::{DropReason, SocketId};
use media::forward::SessionStats;
use media::{Carriage, Latching, MediaCommand, SessionPlan, SidePlan};
use rig::{
    Path, Peer, RawWire, Rig, TestWorld, call, enter_private_network, rtcp, rtp, serialised, sum,
    summed,
};
use std::net::SocketAddr;
use std::time::Duration;
use wire::rtp::RtpHeader;

/// Runs a test in separate namespaces, with IPv4 and with IPv6; skipped, with a message, if that is not possible.
fn in_namespaces(test: &'static str, ready: bool, work: fn(&'static str, &TestWorld)) {
    for six in [false, true] {
        let run = move || {
            let _alone = serialised();
            if enter_private_network(test) {
                work(test, &TestWorld::wired_with(ready, six));
            }
        };
        if let Err(panic) = std::thread::spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Sends consecutive packets from `number` on, each of which must arrive, until a condition holds; returns the next
/// number.
fn stream(
    rig: &mut Rig,
    [a, b]: [&Peer; 2],
    to: SocketAddr,
    mut number: u16,
    mut condition: impl FnMut(&Rig) -> bool,
) -> u16 {
    let begun = std::time::Instant::now();
    while !condition(rig) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        a.send(&rtp(7, number, 20), to);
        assert_eq!(rig.take(b).0, rtp(7, number, 20));
        rig.run(1);
        number = number.wrapping_add(1);
    }
    number
}

fn query(rig: &mut Rig, session: u64) -> SessionStats {
    rig.operator.stats.clear();
    rig.operator
        .commands
        .push_back(MediaCommand::Query(session));
    rig.until(|rig| !rig.operator.stats.is_empty());
    rig.operator.stats.pop().unwrap().1
}

/// Sends packets until the stream is offloaded.
fn until_offloaded(rig: &mut Rig, phones: [&Peer; 2], to: SocketAddr, number: u16) -> u16 {
    let before = rig.driver.counters().relay_flows;
    stream(rig, phones, to, number, |rig| {
        rig.driver.counters().relay_flows > before
    })
}

/// The path-independent statistics: packets, bytes, sequence, drops.
fn figures(stats: &SessionStats) -> String {
    let mut text = String::new();
    for side in &stats.flows[0].sides {
        text += &format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?}\n",
            side.address,
            side.received,
            side.received_rtcp,
            side.sent,
            side.sent_rtcp,
            side.drops,
            side.dscp
        );
        for source in &side.sources {
            let summary = &source.summary;
            text += &format!(
                "  {} {:?} {} {} {} {} {} {} {} {} {} {} {}\n",
                source.ssrc,
                source.payload_types,
                summary.received,
                summary.unique,
                summary.duplicates,
                summary.out_of_order,
                summary.strays,
                summary.restarts,
                summary.highest,
                summary.expected,
                summary.lost_unique,
                summary.cumulative_lost,
                summary.burst_ratio,
            );
        }
    }
    text
}

fn digit(ssrc: u32, sequence: u16) -> Vec<u8> {
    RtpHeader {
        payload_type: 101,
        sequence,
        timestamp: u32::from(sequence) * 160,
        ssrc,
        ..RtpHeader::default()
    }
    .packet(&[5, 10, 0, 160])
}

fn extended(ssrc: u32, sequence: u16) -> Vec<u8> {
    let mut bytes = rtp(ssrc, sequence, 20);
    bytes[0] |= 0x10;
    bytes.splice(12..12, [0xbe, 0xde, 0, 1, 0x10, 0xff, 0, 0]);
    bytes
}

/// A call with all kinds of events, between phones `a` and `b`; returns its statistics.
fn call_with_all_events(rig: &mut Rig, world: &TestWorld) -> SessionStats {
    let phones = world.phones();
    let [a, a_rtcp, b, b_rtcp] = &phones;
    let ours = call(rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
    // The first packets use the sockets and start the path lookup. Its duration differs from run to run, so the
    // statistics start with the next session.
    if rig.path.is_kernel() {
        until_offloaded(rig, [a, b], ours[0], 65_000);
    }
    rig.operator.commands.push_back(MediaCommand::Remove(1));
    rig.until(|rig| rig.operator.stats.iter().any(|(last, _)| *last));
    let plan = |receives: bool| {
        let side = |n: u32| {
            let mut side = SidePlan::new(SocketId(10 + n));
            side.rtcp = Some(SocketId(11 + n));
            side.ipv6 = a.address().is_ipv6();
            side.signalled_rtp = Some([a, b][n as usize / 2].address());
            side.signalled_rtcp = Some([a_rtcp, b_rtcp][n as usize / 2].address());
            side.latching = Latching::Signalled;
            side.special.push(101);
            side.clock_rates.push((101, 8_000));
            side.receives = receives;
            side
        };
        SessionPlan::single(2, Carriage::Rtp, [side(0), side(2)])
    };
    rig.operator
        .commands
        .push_back(MediaCommand::Add(Box::new(plan(true))));
    let mut number = 65_000u16;
    rig.run(5);
    let unexpected_source = world.phone(0);
    for step in 0u32..900 {
        let packet = match step % 100 {
            20..24 => digit(7, number),
            40 => {
                // Two are lost.
                number = number.wrapping_add(2);
                rtp(7, number, 20)
            }
            60 => extended(7, number),
            // Another source for a while.
            80..90 => rtp(8, number, 20),
            _ => rtp(7, number, 20 + (step as usize / 300) * 61),
        };
        a.send(&packet, ours[0]);
        let (bytes, from, class) = rig.take(b);
        assert_eq!(bytes, packet, "step {step} {:?}", rig.path);
        assert_eq!((from, class), (ours[2], rig::CLASS), "step {step}");
        // The other direction is offloaded separately.
        let back = rtp(9, step as u16, 160);
        b.send(&back, ours[2]);
        assert_eq!(rig.take(a).0, back);
        match step % 100 {
            10 => {
                // A duplicate.
                a.send(&packet, ours[0]);
                assert_eq!(rig.take(b).0, packet);
            }
            30 => {
                // Valid except for its sender.
                unexpected_source.send(&rtp(7, number.wrapping_add(1), 20), ours[0]);
                let expected_drops = u64::from(step / 100 + 1);
                rig.until(|rig| rig.dropped(DropReason::MediaUnexpectedSource) == expected_drops);
            }
            50 => {
                a_rtcp.send(&rtcp(7), ours[1]);
                assert_eq!(rig.take(b_rtcp).0, rtcp(7));
            }
            55 => drop(query(rig, 2)),
            70 => {
                // Late: the two lost ones, after later packets.
                let late = rtp(7, number.wrapping_sub(31), 20);
                a.send(&late, ours[0]);
                assert_eq!(rig.take(b).0, late);
            }
            95 => {
                // Not forwarded during hold, before and after which the stream continues.
                for receives in [false, true] {
                    let update = MediaCommand::Update(Box::new(plan(receives)));
                    rig.operator.commands.push_back(update);
                    rig.run(2);
                    number = number.wrapping_add(1);
                    let dropped_before = rig.dropped(DropReason::MediaDirectionClosed);
                    a.send(&rtp(7, number, 20), ours[0]);
                    match receives {
                        true => assert_eq!(rig.take(b).0, rtp(7, number, 20)),
                        false => rig.until(|rig| {
                            rig.dropped(DropReason::MediaDirectionClosed) > dropped_before
                        }),
                    }
                }
            }
            _ => {}
        }
        number = number.wrapping_add(1);
        rig.turn();
    }
    assert!(b.receive().is_none() && a.receive().is_none());
    rig.operator.stats.clear();
    rig.operator.commands.push_back(MediaCommand::Remove(2));
    rig.until(|rig| !rig.operator.stats.is_empty());
    let (last, stats) = rig.operator.stats.pop().unwrap();
    assert!(last);
    for n in 10..14 {
        rig.shut(n);
    }
    rig.run(5);
    stats
}

#[test]
fn kernel_relay_yields_the_same_statistics() {
    in_namespaces(
        "kernel_relay_yields_the_same_statistics",
        true,
        |test, world| {
            let mut plain = None;
            for path in [
                Path::PerPort,
                Path::KernelRelay,
                Path::KernelRelaySharedPort,
            ] {
                let Some(mut rig) = Rig::start(path, world, test) else {
                    continue;
                };
                let stats = call_with_all_events(&mut rig, world);
                let [a, b] = &stats.flows[0].sides;
                // Phones have other ports each time.
                let text: String = figures(&stats)
                    .lines()
                    .map(|line| line.split_once(')').map_or(line, |(_, rest)| rest))
                    .collect::<Vec<_>>()
                    .join("\n");
                match &plain {
                    None => plain = Some(text),
                    Some(plain) => {
                        assert_eq!(&text, plain, "{path:?}");
                        // Of 900 packets each; some are ineligible.
                        assert!(a.offloaded.packets > 500, "{:?}", a.offloaded);
                        assert!(b.offloaded.packets > 700, "{:?}", b.offloaded);
                        assert!(a.offloads > 9 && a.offloaded.bytes > a.offloaded.packets * 12);
                    }
                }
                // Sent at full speed with timestamps 20 ms apart: jitter is near 20 ms on every path. The other
                // side's timestamps jump when its numbers wrap.
                let jitter = b.sources[0].summary.jitter_ms.unwrap();
                assert!(
                    jitter.mean > 1.0 && jitter.mean < 60.0,
                    "{path:?} {jitter:?}"
                );
                assert!(jitter.max >= jitter.mean && jitter.p99 <= jitter.max);
            }
        },
    );
}

/// A source that changes its timestamps without a loss and without leaving the kernel relay.
#[test]
fn timestamp_jumps_cause_no_jitter_on_any_path() {
    in_namespaces(
        "timestamp_jumps_cause_no_jitter_on_any_path",
        true,
        |test, world| {
            for path in [Path::PerPort, Path::KernelRelay] {
                let Some(mut rig) = Rig::start(path, world, test) else {
                    continue;
                };
                let phones = world.phones();
                let [a, a_rtcp, b, b_rtcp] = &phones;
                let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
                let mut number = 100;
                if rig.path.is_kernel() {
                    number = until_offloaded(&mut rig, [a, b], ours[0], number);
                }
                for step in 0..200u32 {
                    // Jumps forward and back.
                    let shift = if step / 50 % 2 == 0 { 80_000_000 } else { 0 };
                    let packet = RtpHeader {
                        payload_type: 8,
                        sequence: number,
                        timestamp: u32::from(number) * 160 + shift,
                        ssrc: 7,
                        ..RtpHeader::default()
                    }
                    .packet(&[0x55; 20]);
                    a.send(&packet, ours[0]);
                    assert_eq!(rig.take(b).0, packet, "step {step} {:?}", rig.path);
                    rig.turn();
                    number += 1;
                }
                rig.operator.stats.clear();
                rig.operator.commands.push_back(MediaCommand::Remove(1));
                rig.until(|rig| !rig.operator.stats.is_empty());
                let (_, stats) = rig.operator.stats.pop().unwrap();
                let side = &stats.flows[0].sides[0];
                if rig.path.is_kernel() {
                    assert!(side.offloaded.packets > 100, "{:?}", side.offloaded);
                }
                // Sent at full speed with timestamps 20 ms apart.
                let jitter = side.sources[0].summary.jitter_ms.unwrap();
                assert!(jitter.max < 100.0, "{path:?} {jitter:?}");
                for n in 10..14 {
                    rig.shut(n);
                }
                rig.run(5);
            }
        },
    );
}

/// Silence is detected, and packets in the kernel relay are no silence.
#[test]
fn packets_in_the_kernel_relay_prevent_the_silence_timeout() {
    in_namespaces(
        "packets_in_the_kernel_relay_prevent_the_silence_timeout",
        true,
        |test, world| {
            let Some(mut rig) = Rig::start(Path::KernelRelay, world, test) else {
                return;
            };
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
            let mut number = until_offloaded(&mut rig, [a, b], ours[0], 0);
            let side = |n: u32, phone: &Peer| {
                let mut side = SidePlan::new(SocketId(10 + n));
                side.rtcp = Some(SocketId(11 + n));
                side.ipv6 = phone.address().is_ipv6();
                side.signalled_rtp = Some(phone.address());
                side.latching = Latching::Signalled;
                side
            };
            let mut plan = SessionPlan::single(1, Carriage::Rtp, [side(0, a), side(2, b)]);
            plan.inactivity = Some(Duration::from_millis(2_500));
            rig.operator
                .commands
                .push_back(MediaCommand::Update(Box::new(plan)));
            number = until_offloaded(&mut rig, [a, b], ours[0], number);
            // For longer than the timeout, and no packet reaches the socket meanwhile.
            let (before, begun) = (rig.driver.counters(), std::time::Instant::now());
            let end = Duration::from_secs(6);
            number = stream(&mut rig, [a, b], ours[0], number, |_| begun.elapsed() > end);
            let after = rig.driver.counters();
            assert_eq!(rig.operator.timeouts, 0);
            let received_by_sockets = after.datagrams_in - before.datagrams_in;
            assert!(received_by_sockets < 20, "{received_by_sockets}");
            assert!(number > 100);
            rig.until(|rig| rig.operator.timeouts > 0);
        },
    );
}

/// A far end that does not accept XDP frames receives packets through sockets.
#[test]
fn streams_without_xdp_redirect_use_sockets() {
    in_namespaces(
        "streams_without_xdp_redirect_use_sockets",
        false,
        |test, world| {
            let Some(mut rig) = Rig::start(Path::KernelRelay, world, test) else {
                return;
            };
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
            let begun = std::time::Instant::now();
            let end = Duration::from_millis(2_500);
            stream(&mut rig, [a, b], ours[0], 0, |_| begun.elapsed() > end);
            assert_eq!(rig.driver.counters().relay_flows, 0);
        },
    );
}

/// Raw frames on a wire to an offloaded stream.
struct RawFrames<'a> {
    rig: Rig,
    wire: RawWire,
    phones: [&'a Peer; 2],
    ours: [SocketAddr; 4],
    number: u16,
}

impl RawFrames<'_> {
    /// Whether the next packet of the stream, modified by `change`, is relayed in the kernel; it must then arrive
    /// unchanged.
    fn pass(&mut self, what: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) -> bool {
        let [a, b] = self.phones;
        let (rig, to) = (&mut self.rig, self.ours[0]);
        let rtp_at = if to.is_ipv6() { 62 } else { 42 };
        let number = until_offloaded(rig, [a, b], to, self.number);
        self.number = number.wrapping_add(1);
        let before = rig.driver.counters().relayed_in_kernel;
        let frame = change(self.wire.frame(a.address(), to, &rtp(7, number, 40)));
        self.wire.send(&frame);
        // It was processed when the next packet, of another source, has arrived.
        a.send(&rtp(8, number, 20), to);
        let mut arrived = Vec::new();
        while arrived.last() != Some(&rtp(8, number, 20)) {
            arrived.push(rig.take(b).0);
        }
        query(rig, 1);
        let passed = rig.driver.counters().relayed_in_kernel - before;
        if passed > 0 {
            assert_eq!(passed, 1, "{what}");
            assert_eq!(arrived.len(), 2, "{what}");
            assert_eq!(arrived[0], frame[rtp_at..], "{what}");
            assert_eq!(frame[rtp_at], 0x80, "{what}");
        }
        passed == 1
    }
}

/// Ineligible packets reach the socket, and relayed packets are unchanged.
#[test]
fn only_eligible_packets_are_relayed_in_the_kernel() {
    in_namespaces(
        "only_eligible_packets_are_relayed_in_the_kernel",
        true,
        |test, world| {
            let Some(mut rig) = Rig::start(Path::KernelRelay, world, test) else {
                return;
            };
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
            let mut wire = RawFrames {
                rig,
                wire: RawWire::new(world),
                phones: [a, b],
                ours,
                number: 100,
            };
            let six = ours[0].is_ipv6();
            assert!(wire.pass("as it must be", |frame| frame));
            let set = |at: usize, value: u8| {
                move |mut frame: Vec<u8>| {
                    frame[at] = value;
                    summed(frame, six)
                }
            };
            let udp = if six { 54 } else { 34 };
            assert!(wire.pass("marked", set(udp + 9, 0x88)));
            let of_both = [
                ("another type of frame", 12, 0x81),
                ("RTP of another version", udp + 8, 0x40),
                ("padding", udp + 8, 0xa0),
                ("an extension", udp + 8, 0x90),
                ("a contributing source", udp + 8, 0x81),
                ("another payload type", udp + 9, 9),
                ("another source", udp + 19, 9),
                ("another number", udp + 11, 0xff),
                ("another port of ours", udp + 3, 0x42),
                ("too short for itself", udp + 5, 20),
                ("another address", udp - 1, 9),
            ];
            let of_one = match six {
                false => [
                    ("the last hop", 22, 1),
                    ("more fragments", 20, 0x20),
                    ("a later fragment", 21, 3),
                    ("TCP", 23, 6),
                    ("no IPv4", 14, 0x65),
                    ("longer than it is", 17, 0xff),
                ],
                true => [
                    ("the last hop", 21, 1),
                    ("no hop at all", 21, 0),
                    ("TCP", 20, 6),
                    ("a fragment", 20, 44),
                    ("no IPv6", 14, 0x40),
                    ("longer than it is", 19, 0xff),
                ],
            };
            for (what, at, value) in of_both.into_iter().chain(of_one) {
                assert!(!wire.pass(what, set(at, value)), "{what}");
            }
            let wrong = |at: usize| {
                move |mut frame: Vec<u8>| {
                    frame[at] ^= 1;
                    frame
                }
            };
            // A flipped bit: a fixed value could be that of the address, which the kernel draws.
            assert!(!wire.pass("another card", wrong(5)));
            assert!(!wire.pass("UDP checksum", wrong(udp + 7)));
            assert!(!wire.pass("broken payload", wrong(udp + 46)));
            assert!(!wire.pass("no UDP checksum", |mut frame| {
                frame[udp + 6..udp + 8].fill(0);
                frame
            }));
            // As from a local socket with checksum offload.
            assert!(!wire.pass("half a UDP checksum", |mut frame| {
                let length = (frame.len() - udp) as u32;
                let ends = if six { 22 } else { 26 };
                let half = sum(&frame[ends..udp], 17 + length);
                frame[udp + 6..udp + 8].copy_from_slice(&half.to_be_bytes());
                frame
            }));
            assert!(!wire.pass("a VLAN", |mut frame| {
                frame.splice(12..12, [0x81, 0, 0, 5]);
                frame
            }));
            assert!(!wire.pass("cut off", |mut frame| {
                frame.truncate(udp + 26);
                frame
            }));
            match six {
                false => {
                    assert!(wire.pass("another class and number", set(15, 0x20)));
                    assert!(!wire.pass("IP checksum", wrong(25)));
                    assert!(!wire.pass("IP options", |mut frame| {
                        frame[14] = 0x46;
                        frame[17] += 4;
                        frame.splice(34..34, [1, 1, 1, 0]);
                        frame
                    }));
                }
                true => {
                    assert!(wire.pass("another class", set(15, 0x80)));
                    assert!(wire.pass("a flow label", set(16, 0x20)));
                    // A hop-by-hop options header, empty.
                    assert!(!wire.pass("an extension header", |mut frame| {
                        frame[19] += 8;
                        frame[20] = 0;
                        frame.splice(54..54, [17, 0, 1, 4, 0, 0, 0, 0]);
                        frame
                    }));
                }
            }
            // Random bytes with valid checksums.
            let mut seed = 0x9e37_79b9_7f4a_7c15u64;
            let mut draw = move |below: usize| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                (seed % below as u64) as usize
            };
            let mut through = 0;
            for round in 0..150 {
                let changes: Vec<(usize, u8)> = (0..1 + draw(2))
                    .map(|_| (draw(udp + 22), draw(256) as u8))
                    .collect();
                let change = |mut frame: Vec<u8>| {
                    for &(at, value) in &changes {
                        frame[at] = value;
                    }
                    summed(frame, six)
                };
                through += u32::from(wire.pass(&format!("{round}: {changes:?}"), change));
            }
            assert!(through > 0);
        },
    );
}

/// Whether an interface transmits redirected frames may change while the relay runs.
#[test]
fn changed_redirect_support_is_reported() {
    in_namespaces(
        "changed_redirect_support_is_reported",
        false,
        |test, world| {
            let relay = match world.relay() {
                Ok(relay) => relay,
                Err(error) => {
                    eprintln!("skipped: {test}: {error}");
                    return;
                }
            };
            let TestWorld::Wired(ends) = world else {
                unreachable!()
            };
            let (any, why) = relay.state();
            let [first, second] = [0, 1].map(|side| world.own(side).to_string());
            assert!(!any && why.contains(&format!("{first}: ")));
            assert!(why.contains(&format!("{second}: ")));
            assert!(relay.take_changed_state().is_none());
            let expect_change = |any: bool, unserved: &str| {
                let begun = std::time::Instant::now();
                let change = loop {
                    assert!(begun.elapsed() < Duration::from_secs(20));
                    match relay.take_changed_state() {
                        Some(change) => break change,
                        None => std::thread::sleep(Duration::from_millis(20)),
                    }
                };
                assert_eq!(change.0, any, "{change:?}");
                assert_eq!(change.1.split(": ").next(), Some(unserved), "{change:?}");
            };
            // GRO, as in the rig.
            ends[0].run(|| rig::ethtool("far1", 0x2c, 1));
            expect_change(true, &second);
            ends[1].run(|| rig::ethtool("far2", 0x2c, 1));
            expect_change(true, "");
            ends[0].run(|| rig::ethtool("far1", 0x2c, 0));
            expect_change(true, &first);
        },
    );
}

/// Streams continue after an interface was down.
#[test]
fn streams_survive_an_interface_outage() {
    in_namespaces(
        "streams_survive_an_interface_outage",
        true,
        |test, world| {
            let Some(mut rig) = Rig::start(Path::KernelRelaySharedPort, world, test) else {
                return;
            };
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
            let mut number = until_offloaded(&mut rig, [a, b], ours[0], 0);
            for words in ["link set wire2 down", "link set wire2 up"] {
                let words = words.split_whitespace();
                let done = std::process::Command::new("ip").args(words).status();
                assert!(done.unwrap().success());
            }
            // Packets sent meanwhile have no path, in the kernel or through sockets.
            let begun = std::time::Instant::now();
            loop {
                assert!(begun.elapsed() < Duration::from_secs(20));
                a.send(&rtp(7, number, 20), ours[0]);
                rig.run(20);
                number += 1;
                if b.receive().is_some() {
                    break;
                }
            }
            while b.receive().is_some() {
                rig.run(5);
            }
            // Whether the path was invalidated in that time or not: this packet reaches the socket, and later ones are
            // offloaded again.
            a.send(&extended(7, number), ours[0]);
            assert_eq!(rig.take(b).0, extended(7, number));
            until_offloaded(&mut rig, [a, b], ours[0], number + 1);
        },
    );
}
