//! Streams that take the kernel's way and come back: nothing is lost, repeated or overtaken, and all is counted as if they had never left.

use crate::rig;

use engine::{DropReason, SocketId};
use media::forward::SessionStats;
use media::{Carriage, Latching, MediaCommand, SessionPlan, SidePlan};
use rig::{Path, Peer, Rig, Wire, World, alone, call, private_network, rtcp, rtp, sum, summed};
use std::net::SocketAddr;
use std::time::Duration;
use wire::rtp::RtpHeader;

/// In a network of its own, once with IPv4 and once with IPv6; not, said, where that cannot be.
fn wired(test: &'static str, ready: bool, work: fn(&'static str, &World)) {
    for six in [false, true] {
        let run = move || {
            let _alone = alone();
            if private_network(test) {
                work(test, &World::wired_as(ready, six));
            }
        };
        if let Err(panic) = std::thread::spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Sends one packet after the other from `number` on, each of which must arrive, until something holds; gives the next number.
fn stream(
    rig: &mut Rig,
    [a, b]: [&Peer; 2],
    to: SocketAddr,
    mut number: u16,
    mut holds: impl FnMut(&Rig) -> bool,
) -> u16 {
    let begun = std::time::Instant::now();
    while !holds(rig) {
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

/// A shortcut is open at this moment.
fn takes_shortcut(rig: &mut Rig, phones: [&Peer; 2], to: SocketAddr, number: u16) -> u16 {
    let before = rig.driver.counters().shortcuts;
    stream(rig, phones, to, number, |rig| {
        rig.driver.counters().shortcuts > before
    })
}

/// What is the same however it went: packets, bytes, sequence, drops.
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

/// A call in which everything happens, between phones `a` and `b`; its figures in the end.
fn eventful(rig: &mut Rig, world: &World) -> SessionStats {
    let phones = world.phones();
    let [a, a_rtcp, b, b_rtcp] = &phones;
    let ours = call(rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
    // The first packets go through the sockets, and the way is learned by them. What that took differs from run to run: the
    // statistics begin anew with the next session.
    if rig.path.is_kernel() {
        takes_shortcut(rig, [a, b], ours[0], 65_000);
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
    let stranger = world.phone(0);
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
        // The other direction has its own shortcut.
        let back = rtp(9, step as u16, 160);
        b.send(&back, ours[2]);
        assert_eq!(rig.take(a).0, back);
        match step % 100 {
            10 => {
                // The same once more.
                a.send(&packet, ours[0]);
                assert_eq!(rig.take(b).0, packet);
            }
            30 => {
                // Right in everything but the sender.
                stranger.send(&rtp(7, number.wrapping_add(1), 20), ours[0]);
                let strangers = u64::from(step / 100 + 1);
                rig.until(|rig| rig.dropped(DropReason::MediaStranger) == strangers);
            }
            50 => {
                a_rtcp.send(&rtcp(7), ours[1]);
                assert_eq!(rig.take(b_rtcp).0, rtcp(7));
            }
            55 => drop(query(rig, 2)),
            70 => {
                // Late: the two that were lost, after those behind them.
                let late = rtp(7, number.wrapping_sub(31), 20);
                a.send(&late, ours[0]);
                assert_eq!(rig.take(b).0, late);
            }
            95 => {
                // Not sent on while it is held, on both sides of which the stream goes on.
                for receives in [false, true] {
                    let update = MediaCommand::Update(Box::new(plan(receives)));
                    rig.operator.commands.push_back(update);
                    rig.run(2);
                    number = number.wrapping_add(1);
                    let held = rig.dropped(DropReason::MediaHeld);
                    a.send(&rtp(7, number, 20), ours[0]);
                    match receives {
                        true => assert_eq!(rig.take(b).0, rtp(7, number, 20)),
                        false => rig.until(|rig| rig.dropped(DropReason::MediaHeld) > held),
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
fn a_call_through_the_kernel_is_the_same_call() {
    wired(
        "a_call_through_the_kernel_is_the_same_call",
        true,
        |test, world| {
            let mut plain = None;
            for path in [Path::PerPort, Path::Kernel, Path::KernelOne] {
                let Some(mut rig) = Rig::start(path, world, test) else {
                    continue;
                };
                let stats = eventful(&mut rig, world);
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
                        // Of 900 packets each; some go up by their nature.
                        assert!(a.passed.packets > 500, "{:?}", a.passed);
                        assert!(b.passed.packets > 700, "{:?}", b.passed);
                        assert!(a.shortcuts > 9 && a.passed.bytes > a.passed.packets * 12);
                    }
                }
                // Sent as fast as it goes, with timestamps 20 ms apart: jitter near that, on every path. The other side's
                // timestamps jump, as its numbers wrap.
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

/// A source that chooses other timestamps, without a loss and without leaving the kernel's way.
#[test]
fn timestamps_that_start_anew_are_no_jitter_on_any_path() {
    wired(
        "timestamps_that_start_anew_are_no_jitter_on_any_path",
        true,
        |test, world| {
            for path in [Path::PerPort, Path::Kernel] {
                let Some(mut rig) = Rig::start(path, world, test) else {
                    continue;
                };
                let phones = world.phones();
                let [a, a_rtcp, b, b_rtcp] = &phones;
                let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
                let mut number = 100;
                if rig.path.is_kernel() {
                    number = takes_shortcut(&mut rig, [a, b], ours[0], number);
                }
                for step in 0..200u32 {
                    // Now far ahead, now back.
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
                    assert!(side.passed.packets > 100, "{:?}", side.passed);
                }
                // Sent as fast as it goes, with timestamps 20 ms apart.
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

/// Silence is noticed, and only silence.
#[test]
fn what_passes_in_the_kernel_is_a_sign_of_life() {
    wired(
        "what_passes_in_the_kernel_is_a_sign_of_life",
        true,
        |test, world| {
            let Some(mut rig) = Rig::start(Path::Kernel, world, test) else {
                return;
            };
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
            let mut number = takes_shortcut(&mut rig, [a, b], ours[0], 0);
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
            number = takes_shortcut(&mut rig, [a, b], ours[0], number);
            // Longer than that, and nothing comes up meanwhile.
            let (before, begun) = (rig.driver.counters(), std::time::Instant::now());
            let end = Duration::from_secs(6);
            number = stream(&mut rig, [a, b], ours[0], number, |_| begun.elapsed() > end);
            let after = rig.driver.counters();
            assert_eq!(rig.operator.timeouts, 0);
            let came = after.datagrams_in - before.datagrams_in;
            assert!(came < 20, "{came}");
            assert!(number > 100);
            rig.until(|rig| rig.operator.timeouts > 0);
        },
    );
}

/// A far end that does not take frames gets packets all the same.
#[test]
fn what_cannot_be_redirected_goes_through_sockets() {
    wired(
        "what_cannot_be_redirected_goes_through_sockets",
        false,
        |test, world| {
            let Some(mut rig) = Rig::start(Path::Kernel, world, test) else {
                return;
            };
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
            let begun = std::time::Instant::now();
            let end = Duration::from_millis(2_500);
            stream(&mut rig, [a, b], ours[0], 0, |_| begun.elapsed() > end);
            assert_eq!(rig.driver.counters().shortcuts, 0);
        },
    );
}

/// Frames on a wire to a stream that takes the kernel's way.
struct Attempts<'a> {
    rig: Rig,
    wire: Wire,
    phones: [&'a Peer; 2],
    ours: [SocketAddr; 4],
    number: u16,
}

impl Attempts<'_> {
    /// Whether the next packet of the stream passes in the kernel, changed so; it is then as it was sent.
    fn pass(&mut self, what: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) -> bool {
        let [a, b] = self.phones;
        let (rig, to) = (&mut self.rig, self.ours[0]);
        let rtp_at = if to.is_ipv6() { 62 } else { 42 };
        let number = takes_shortcut(rig, [a, b], to, self.number);
        self.number = number.wrapping_add(1);
        let before = rig.driver.counters().passed;
        let frame = change(self.wire.frame(a.address(), to, &rtp(7, number, 40)));
        self.wire.send(&frame);
        // Whatever becomes of it has become so when the next one, another source's, has arrived.
        a.send(&rtp(8, number, 20), to);
        let mut arrived = Vec::new();
        while arrived.last() != Some(&rtp(8, number, 20)) {
            arrived.push(rig.take(b).0);
        }
        query(rig, 1);
        let passed = rig.driver.counters().passed - before;
        if passed > 0 {
            assert_eq!(passed, 1, "{what}");
            assert_eq!(arrived.len(), 2, "{what}");
            assert_eq!(arrived[0], frame[rtp_at..], "{what}");
            assert_eq!(frame[rtp_at], 0x80, "{what}");
        }
        passed == 1
    }
}

/// What is not quite as it must be comes up, and what passes is what was sent.
#[test]
fn only_plain_packets_pass() {
    wired("only_plain_packets_pass", true, |test, world| {
        let Some(mut rig) = Rig::start(Path::Kernel, world, test) else {
            return;
        };
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        let mut wire = Attempts {
            rig,
            wire: Wire::new(world),
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
            ("another card", 5, 0xfe),
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
        assert!(!wire.pass("UDP checksum", wrong(udp + 7)));
        assert!(!wire.pass("broken payload", wrong(udp + 46)));
        assert!(!wire.pass("no UDP checksum", |mut frame| {
            frame[udp + 6..udp + 8].fill(0);
            frame
        }));
        // As from a local socket that leaves the rest to a card.
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
                // Whose options are for each station on the way, and empty.
                assert!(!wire.pass("an extension header", |mut frame| {
                    frame[19] += 8;
                    frame[20] = 0;
                    frame.splice(54..54, [17, 0, 1, 4, 0, 0, 0, 0]);
                    frame
                }));
            }
        }
        // Anything, with checksums that are right.
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
    });
}

/// Whether an interface sends what is redirected to it may change while the relay runs.
#[test]
fn interfaces_that_begin_to_send_are_told() {
    wired(
        "interfaces_that_begin_to_send_are_told",
        false,
        |test, world| {
            let relay = match world.relay() {
                Ok(relay) => relay,
                Err(error) => {
                    eprintln!("skipped: {test}: {error}");
                    return;
                }
            };
            let World::Wired(ends) = world else {
                unreachable!()
            };
            let (any, why) = relay.state();
            let [first, second] = [0, 1].map(|side| world.own(side).to_string());
            assert!(!any && why.contains(&format!("{first}: ")));
            assert!(why.contains(&format!("{second}: ")));
            assert!(relay.news().is_none());
            let told = |any: bool, held_back: &str| {
                let begun = std::time::Instant::now();
                let news = loop {
                    assert!(begun.elapsed() < Duration::from_secs(20));
                    match relay.news() {
                        Some(news) => break news,
                        None => std::thread::sleep(Duration::from_millis(20)),
                    }
                };
                assert_eq!(news.0, any, "{news:?}");
                assert_eq!(news.1.split(": ").next(), Some(held_back), "{news:?}");
            };
            // Receiving in batches, as in the rig.
            ends[0].run(|| rig::ethtool("far1", 0x2c, 1));
            told(true, &second);
            ends[1].run(|| rig::ethtool("far2", 0x2c, 1));
            told(true, "");
            ends[0].run(|| rig::ethtool("far1", 0x2c, 0));
            told(true, &first);
        },
    );
}

/// Where the interface goes down and comes back, streams do, too.
#[test]
fn streams_outlive_their_ways() {
    wired("streams_outlive_their_ways", true, |test, world| {
        let Some(mut rig) = Rig::start(Path::KernelOne, world, test) else {
            return;
        };
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        let mut number = takes_shortcut(&mut rig, [a, b], ours[0], 0);
        for words in ["link set wire2 down", "link set wire2 up"] {
            let words = words.split_whitespace();
            let done = std::process::Command::new("ip").args(words).status();
            assert!(done.unwrap().success());
        }
        // What is sent meanwhile has no way, in the kernel or out of it.
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
        // Whether the way was found to be gone for that moment or not: this one comes up, and those behind it take a shortcut again.
        a.send(&extended(7, number), ours[0]);
        assert_eq!(rig.take(b).0, extended(7, number));
        takes_shortcut(&mut rig, [a, b], ours[0], number + 1);
    });
}
