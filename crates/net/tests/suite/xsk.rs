//! Media over AF_XDP: redirected packets, packets left to the kernel, and the state after the end.

use crate::rig;

use engine::{DropReason, HashKey};
use media::{Forwarder, ForwarderLimits};
use net::{AfXdp, Clock, Driver, DriverConfig};
use rig::{
    CLASS, Path, Peer, RawWire, Rig, TestWorld, Wiring, call, enter_private_network, hold_queue,
    rtp, serialised, sum, summed,
};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs a test in separate namespaces, with IPv4 and IPv6, in all receive modes; skipped, with a message, if that is
/// not possible.
fn in_namespaces(test: &'static str, work: fn(&'static str, &TestWorld, Rig)) {
    let all = [
        (false, Path::AfXdp, Wiring::Queue),
        (true, Path::AfXdpSharedPort, Wiring::Queue),
        (false, Path::AfXdpSharedPort, Wiring::Queues),
        (true, Path::AfXdpSharedPort, Wiring::Fewer),
        (false, Path::AfXdpSharedPort, Wiring::Bridge),
    ];
    in_namespaces_with(&all, test, work);
}

fn in_namespaces_with(
    modes: &[(bool, Path, Wiring)],
    test: &'static str,
    work: fn(&'static str, &TestWorld, Rig),
) {
    for &(six, path, wiring) in modes {
        let run = move || {
            let _alone = serialised();
            if enter_private_network(test) {
                let world = TestWorld::wired_by(false, six, wiring);
                if let Some(rig) = Rig::start(path, &world, test) {
                    work(test, &world, rig);
                }
            }
        };
        if let Err(panic) = std::thread::spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Skips packets in flight, which may be many and may be lost, until one with this number and its successors arrive.
fn expect_recovery(rig: &mut Rig, [a, b]: [&Peer; 2], to: SocketAddr, number: u16) {
    let begun = Instant::now();
    let last = rtp(7, number, 20);
    loop {
        assert!(begun.elapsed() < Duration::from_secs(20));
        a.send(&last, to);
        rig.run(5);
        let mut came = false;
        while let Some((bytes, _, _)) = b.receive() {
            came |= bytes == last;
        }
        if came {
            break;
        }
    }
    // From here on nothing is lost; packets that were sent repeatedly may still arrive.
    for n in number + 1..number + 50 {
        a.send(&rtp(7, n, 20), to);
        while rig.take(b).0 != rtp(7, n, 20) {}
    }
}

/// Whether a program is attached to an interface, or to any.
fn has_program(interface: Option<&str>) -> bool {
    let done = Command::new("ip")
        .args(["-d", "link", "show"])
        .args(interface)
        .output()
        .unwrap();
    let message = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success());
    message.contains("prog/xdp")
}

/// Waits until no program is attached: the path thread may hold it for a moment.
fn wait_until_detached() {
    let begun = Instant::now();
    while has_program(None) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn media_is_received_and_sent_over_af_xdp() {
    in_namespaces(
        "media_is_received_and_sent_over_af_xdp",
        |_, world, mut rig| {
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
            let mut number = 0;
            // Until the path is known, packets use the sockets.
            rig.until(|rig| {
                a.send(&rtp(7, number, 20), ours[0]);
                assert_eq!(rig.take(b).0, rtp(7, number, 20));
                number += 1;
                rig.driver.counters().af_xdp_out > 0
            });
            let before = rig.driver.counters();
            assert!(before.af_xdp_bypassed > 0);
            for round in 0..40 {
                let burst = number..number + 50;
                number += 50;
                for n in burst.clone() {
                    a.send(&rtp(7, n, usize::from(n) % 1_300), ours[0]);
                }
                for n in burst {
                    let packet = rtp(7, n, usize::from(n) % 1_300);
                    assert_eq!(rig.take(b), (packet, ours[2], CLASS), "round {round}");
                }
                let back = rtp(9, round, 160);
                b.send(&back, ours[2]);
                assert_eq!(rig.take(a), (back, ours[0], CLASS));
            }
            let after = rig.driver.counters();
            assert_eq!(after.datagrams_in - before.datagrams_in, 2_040);
            assert_eq!(after.af_xdp_in - before.af_xdp_in, 2_040);
            // Paths are looked up again when neighbours are revalidated: few packets bypass AF_XDP.
            let aside = after.af_xdp_bypassed - before.af_xdp_bypassed;
            assert_eq!(after.af_xdp_out - before.af_xdp_out + aside, 2_040);
            assert!(aside < 500, "{aside}");
            assert_eq!(rig.driver.kernel_drops().unwrap(), 0);
        },
    );
}

const QUEUES: [(bool, Path, Wiring); 2] = [
    (false, Path::AfXdp, Wiring::Queues),
    (true, Path::AfXdpSharedPort, Wiring::Queues),
];

/// Calls between separate phones, so that their streams are distributed over queues: all packets of the callers
/// arrive.
fn many_calls(rig: &mut Rig, world: &TestWorld) {
    let calls: Vec<_> = (0..12)
        .map(|n| {
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let (session, port) = (1 + n, 40_000 + 4 * n as u16);
            let ours = call(rig, session, world, port, [a, a_rtcp, b, b_rtcp]);
            (phones, ours)
        })
        .collect();
    for sequence in 0..50 {
        for ([a, ..], ours) in &calls {
            a.send(&rtp(7, sequence, 20), ours[0]);
        }
        for ([_, _, b, _], ours) in &calls {
            assert_eq!(rig.take(b), (rtp(7, sequence, 20), ours[2], CLASS));
        }
    }
    for n in 1..=12 {
        rig.operator
            .commands
            .push_back(media::MediaCommand::Remove(n));
        for port in 0..4 {
            rig.shut(n as u32 * 10 + port);
        }
    }
    rig.run(10);
}

/// Frames received through each queue of the first wire.
fn by_queue(rig: &Rig) -> Vec<u64> {
    let all = rig.driver.af_xdp_queues();
    let own = all.iter().filter(|(name, ..)| *name == "wire1");
    own.enumerate()
        .map(|(place, (_, number, count))| {
            assert_eq!(place as u32, *number);
            *count
        })
        .collect()
}

#[test]
fn every_receive_queue_has_a_socket() {
    let test = "every_receive_queue_has_a_socket";
    in_namespaces_with(&QUEUES, test, |_, world, mut rig| {
        assert!(
            rig.modes.contains("wire1: driver mode, copy mode"),
            "{}",
            rig.modes
        );
        assert_eq!(rig.modes.matches(", queues: 4").count(), 2, "{}", rig.modes);
        many_calls(&mut rig, world);
        let queues = by_queue(&rig);
        assert_eq!(queues.len(), 4);
        assert!(
            queues.iter().filter(|&&count| count > 0).count() > 1,
            "{queues:?}"
        );
        // All packets.
        assert_eq!(queues.iter().sum::<u64>(), 600);
        assert_eq!(rig.driver.counters().datagrams_in, 600);
    });
}

/// Queues that are used by other programs or exceed our limit: their packets use the kernel's network stack, and
/// nothing is lost.
#[test]
fn queues_without_a_socket_lose_no_packets() {
    let test = "queues_without_a_socket_lose_no_packets";
    in_namespaces_with(&QUEUES, test, |test, world, rig| {
        let again = rig.path;
        drop(rig);
        wait_until_detached();
        let _theirs = [1, 2, 3].map(|queue| hold_queue(c"wire1", queue));
        let mut rig = Rig::start(again, world, test).unwrap();
        let message = ", queues: 1 of 4, the others use sockets (queue 1: Device or resource busy (os error 16)); wire2: ";
        assert!(rig.modes.contains(message), "{}", rig.modes);
        assert!(rig.modes.ends_with(", queues: 4"), "{}", rig.modes);
        many_calls(&mut rig, world);
        let counters = rig.driver.counters();
        assert_eq!(counters.datagrams_in, 600);
        assert!(counters.af_xdp_in < 600, "{}", counters.af_xdp_in);
        assert_eq!(by_queue(&rig), [counters.af_xdp_in]);
    });
}

/// Zero-copy is tried if the driver runs the program, and the result is reported.
#[test]
fn af_xdp_mode_is_reported() {
    const REFUSED: &str = "copy mode (zero-copy: Operation not supported (os error 95)), queues: ";
    let modes = [
        (false, Path::AfXdp, Wiring::Queue),
        (false, Path::AfXdp, Wiring::Queues),
    ];
    in_namespaces_with(&modes, "af_xdp_mode_is_reported", |_, _, rig| {
        assert_eq!(rig.modes.matches(REFUSED).count(), 2, "{}", rig.modes);
        assert_eq!(rig.modes.matches(": driver mode, copy mode").count(), 2);
    });
    let modes = [
        (false, Path::AfXdp, Wiring::Fewer),
        (true, Path::AfXdp, Wiring::Bridge),
    ];
    in_namespaces_with(&modes, "af_xdp_mode_is_reported", |_, _, rig| {
        let why = ": generic mode, because the interface rejects the BPF program: ";
        assert_eq!(rig.modes.matches(why).count(), 2, "{}", rig.modes);
        assert_eq!(
            rig.modes.matches("), copy mode, queues: 1").count(),
            2,
            "{}",
            rig.modes
        );
        assert!(!rig.modes.contains("zero-copy"), "{}", rig.modes);
    });
}

/// A sender with checksum offload and no network card: only the kernel knows that the packet is valid.
#[test]
fn packets_without_checksum_use_the_kernel_stack() {
    let test = "packets_without_checksum_use_the_kernel_stack";
    in_namespaces(test, |_, world, mut rig| {
        let TestWorld::Wired(ends) = world else {
            unreachable!()
        };
        ends[0].run(|| rig::ethtool("far1", 0x17, 1));
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        for n in 0..50 {
            a.send(&rtp(7, n, 20), ours[0]);
            assert_eq!(rig.take(b).0, rtp(7, n, 20));
        }
        let counters = rig.driver.counters();
        assert_eq!((counters.af_xdp_in, counters.datagrams_in), (0, 50));
    });
}

/// Ineligible packets are left to the kernel and delivered nowhere else, and the stream continues.
#[test]
fn hostile_frames_are_harmless() {
    in_namespaces("hostile_frames_are_harmless", |_, world, mut rig| {
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        let wire = RawWire::new(world);
        let six = ours[0].is_ipv6();
        let udp = if six { 54 } else { 34 };
        let frame = |n: u16| wire.frame(a.address(), ours[0], &rtp(7, n, 40));
        // Valid; and padded, as short frames are.
        wire.send(&frame(1));
        assert_eq!(rig.take(b).0, rtp(7, 1, 40));
        wire.send(&[frame(2), vec![0xaa; 9]].concat());
        assert_eq!(rig.take(b).0, rtp(7, 2, 40));
        assert_eq!(rig.driver.counters().af_xdp_in, 2);
        // Not redirected, each of them.
        let half = |mut frame: Vec<u8>| {
            let ends = if six { 22 } else { 26 };
            let half = sum(&frame[ends..udp], 17 + (frame.len() - udp) as u32);
            frame[udp + 6..udp + 8].copy_from_slice(&half.to_be_bytes());
            frame
        };
        let broken: [Vec<u8>; 7] = [
            half(frame(3)),
            frame(3)[..udp + 10].to_vec(),
            frame(3)[..udp].to_vec(),
            frame(3)[..14].to_vec(),
            {
                let mut frame = frame(3);
                frame[udp + 30] ^= 1;
                frame
            },
            {
                let mut frame = frame(3);
                frame[udp + 5] = 255;
                summed(frame, six)
            },
            {
                // A first fragment; in IPv6 by its next header.
                let mut frame = frame(3);
                frame[20] = if six { 44 } else { 0x20 };
                summed(frame, six)
            },
        ];
        for frame in &broken {
            wire.send(frame);
        }
        wire.send(&frame(4));
        assert_eq!(rig.take(b).0, rtp(7, 4, 40));
        assert_eq!(rig.driver.counters().af_xdp_in, 3);
        // Random bytes with valid or invalid checksums.
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut draw = move |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % below as u64) as usize
        };
        for round in 0..2_000u16 {
            let mut bytes = frame(round);
            for _ in 0..1 + draw(3) {
                let at = draw(bytes.len());
                bytes[at] = draw(256) as u8;
            }
            if draw(2) == 0 {
                bytes = summed(bytes, six);
            }
            if draw(4) == 0 {
                bytes.truncate(14 + draw(bytes.len() - 13));
            }
            wire.send(&bytes);
            if round % 50 == 0 {
                rig.drain();
            }
        }
        expect_recovery(&mut rig, [a, b], ours[0], 29_999);
        assert_eq!(rig.dropped(DropReason::SendFailed), 0);
    });
}

/// More frames than the ring holds, without a turn: the excess is counted, and later packets arrive.
#[test]
fn drops_at_full_rings_are_counted() {
    in_namespaces("drops_at_full_rings_are_counted", |_, world, mut rig| {
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        let wire = RawWire::new(world);
        let frame = wire.frame(a.address(), ours[0], &rtp(7, 1, 20));
        // No turn until it is full; the wire itself may drop some, which is not reported.
        let begun = Instant::now();
        while rig.driver.kernel_drops().unwrap() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(20));
            for _ in 0..500 {
                wire.send(&frame);
            }
        }
        expect_recovery(&mut rig, [a, b], ours[0], 29_999);
        assert!(rig.driver.counters().af_xdp_in >= 2_048);
    });
}

/// The program is attached while it is used; then another one can be attached.
#[test]
fn program_is_detached_with_its_driver() {
    in_namespaces("program_is_detached_with_its_driver", |test, world, rig| {
        assert!(has_program(Some("wire1")) && has_program(Some("wire2")));
        // One program per interface.
        assert!(world.af_xdp().is_err());
        let again = rig.path;
        drop(rig);
        wait_until_detached();
        let mut rig = Rig::start(again, world, test).unwrap();
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        a.send(&rtp(7, 1, 20), ours[0]);
        assert_eq!(rig.take(b).0, rtp(7, 1, 20));
        assert_eq!(rig.driver.counters().af_xdp_in, 1);
    });
}

/// Only one driver can use the sockets, on its own thread, and without the kernel relay.
#[test]
fn incompatible_settings_are_refused() {
    let test = "incompatible_settings_are_refused";
    let run = move || {
        let _alone = serialised();
        if !enter_private_network(test) {
            return;
        }
        let world = TestWorld::wired();
        let af_xdp = match world.af_xdp() {
            Ok(af_xdp) => af_xdp,
            Err(error) => {
                eprintln!("skipped: {test}: {error}");
                return;
            }
        };
        let (modes, unserved) = af_xdp.state();
        assert!(
            modes.contains("wire1: driver mode") && modes.contains("wire2: "),
            "{modes}"
        );
        assert_eq!(unserved, "");
        let with = |af_xdp: &AfXdp| DriverConfig {
            af_xdp: Some(af_xdp.clone()),
            ..DriverConfig::default()
        };
        let start = |config: DriverConfig| {
            let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
            Driver::new(config, Clock::new(), forwarder).map_err(|error| error.to_string())
        };
        let refused = |config| start(config).map(|_| ()).unwrap_err();
        let thread = DriverConfig {
            media_thread: true,
            ..with(&af_xdp)
        };
        assert!(refused(thread).contains("own thread"));
        let _first = start(with(&af_xdp)).unwrap();
        assert!(refused(with(&af_xdp)).contains("another driver"));
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Unserved addresses are reported with the reason.
#[test]
fn unserved_addresses_are_reported_with_reasons() {
    let message = |address: &str| {
        let error = AfXdp::start(&[address.parse().unwrap()], 0).unwrap_err();
        error.to_string()
    };
    let no_interface = message("192.0.2.77");
    assert_eq!(no_interface, "192.0.2.77: no interface has this address");
    let loopback = message("127.0.0.1");
    assert!(
        loopback.contains("127.0.0.1: its interface is down or not Ethernet"),
        "{loopback}"
    );
    let link_local = AfXdp::start(&["fe80::1".parse().unwrap()], 0).unwrap_err();
    assert!(
        link_local.to_string().contains("link-local"),
        "{link_local}"
    );
}
