//! Media by AF_XDP: what is led there, what is not, and what is left when it ends.

use crate::rig;

use engine::{DropReason, HashKey};
use media::{Forwarder, ForwarderLimits};
use net::{AfXdp, Clock, Driver, DriverConfig};
use rig::{
    CLASS, Path, Peer, Rig, Wire, Wiring, World, alone, call, hold_queue, private_network, rtp,
    sum, summed,
};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

/// In a network of its own, with IPv4 and with IPv6, however we receive; not, said, where that cannot be.
fn wired(test: &'static str, work: fn(&'static str, &World, Rig)) {
    let all = [
        (false, Path::Express, Wiring::Queue),
        (true, Path::ExpressOne, Wiring::Queue),
        (false, Path::ExpressOne, Wiring::Queues),
        (true, Path::ExpressOne, Wiring::Fewer),
        (false, Path::ExpressOne, Wiring::Bridge),
    ];
    wired_by(&all, test, work);
}

fn wired_by(how: &[(bool, Path, Wiring)], test: &'static str, work: fn(&'static str, &World, Rig)) {
    for &(six, path, wiring) in how {
        let run = move || {
            let _alone = alone();
            if private_network(test) {
                let world = World::wired_by(false, six, wiring);
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

/// Takes what is still under way, which may be much and may be lost, until one with this number comes, and others after it.
fn goes_on(rig: &mut Rig, [a, b]: [&Peer; 2], to: SocketAddr, number: u16) {
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
    // From now on nothing is lost; what was sent more than once may still come.
    for n in number + 1..number + 50 {
        a.send(&rtp(7, n, 20), to);
        while rig.take(b).0 != rtp(7, n, 20) {}
    }
}

/// Whether a program is at an interface, or at any.
fn has_program(interface: Option<&str>) -> bool {
    let done = Command::new("ip")
        .args(["-d", "link", "show"])
        .args(interface)
        .output()
        .unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success());
    said.contains("prog/xdp")
}

/// Waits until no program is anywhere: the thread that looks for ways may be at it for a moment.
fn until_gone() {
    let begun = Instant::now();
    while has_program(None) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn media_comes_and_leaves_by_af_xdp() {
    wired("media_comes_and_leaves_by_af_xdp", |_, world, mut rig| {
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        let mut number = 0;
        // Until the way is known it goes by the sockets.
        rig.until(|rig| {
            a.send(&rtp(7, number, 20), ours[0]);
            assert_eq!(rig.take(b).0, rtp(7, number, 20));
            number += 1;
            rig.driver.counters().express_out > 0
        });
        let before = rig.driver.counters();
        assert!(before.express_aside > 0);
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
        assert_eq!(after.express_in - before.express_in, 2_040);
        // Ways that have changed, as neighbours are asked for again, are looked up again: little goes aside.
        let aside = after.express_aside - before.express_aside;
        assert_eq!(after.express_out - before.express_out + aside, 2_040);
        assert!(aside < 500, "{aside}");
        assert_eq!(rig.driver.kernel_drops().unwrap(), 0);
    });
}

const QUEUES: [(bool, Path, Wiring); 2] = [
    (false, Path::Express, Wiring::Queues),
    (true, Path::ExpressOne, Wiring::Queues),
];

/// Calls between phones of their own, so that their streams are spread over queues: what the callers send arrives, all of it.
fn many_calls(rig: &mut Rig, world: &World) {
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

/// Datagrams that came by each queue of the first wire.
fn by_queue(rig: &Rig) -> Vec<u64> {
    let all = rig.driver.express_queues();
    let own = all.iter().filter(|(name, ..)| *name == "wire1");
    own.enumerate()
        .map(|(place, (_, number, count))| {
            assert_eq!(place as u32, *number);
            *count
        })
        .collect()
}

#[test]
fn every_queue_has_a_socket() {
    let test = "every_queue_has_a_socket";
    wired_by(&QUEUES, test, |_, world, mut rig| {
        assert!(
            rig.how.contains("wire1: driver mode, in copies"),
            "{}",
            rig.how
        );
        assert_eq!(rig.how.matches(", queues: 4").count(), 2, "{}", rig.how);
        many_calls(&mut rig, world);
        let queues = by_queue(&rig);
        assert_eq!(queues.len(), 4);
        assert!(
            queues.iter().filter(|&&count| count > 0).count() > 1,
            "{queues:?}"
        );
        // All of it.
        assert_eq!(queues.iter().sum::<u64>(), 600);
        assert_eq!(rig.driver.counters().datagrams_in, 600);
    });
}

/// Other programs have them, or there are more than we open: what comes by those takes the kernel's way, and nothing is lost.
#[test]
fn queues_without_a_socket_lose_nothing() {
    let test = "queues_without_a_socket_lose_nothing";
    wired_by(&QUEUES, test, |test, world, rig| {
        let again = rig.path;
        drop(rig);
        until_gone();
        let _theirs = [1, 2, 3].map(|queue| hold_queue(c"wire1", queue));
        let mut rig = Rig::start(again, world, test).unwrap();
        let told = ", queues: 1 of 4, the others by sockets (queue 1: Device or resource busy (os error 16)); wire2: ";
        assert!(rig.how.contains(told), "{}", rig.how);
        assert!(rig.how.ends_with(", queues: 4"), "{}", rig.how);
        many_calls(&mut rig, world);
        let counters = rig.driver.counters();
        assert_eq!(counters.datagrams_in, 600);
        assert!(counters.express_in < 600, "{}", counters.express_in);
        assert_eq!(by_queue(&rig), [counters.express_in]);
    });
}

/// Without copies is tried where the driver itself runs the program, and what came of it is told.
#[test]
fn what_was_got_is_told() {
    const REFUSED: &str = "in copies (zero-copy: Operation not supported (os error 95)), queues: ";
    let how = [
        (false, Path::Express, Wiring::Queue),
        (false, Path::Express, Wiring::Queues),
    ];
    wired_by(&how, "what_was_got_is_told", |_, _, rig| {
        assert_eq!(rig.how.matches(REFUSED).count(), 2, "{}", rig.how);
        assert_eq!(rig.how.matches(": driver mode, in").count(), 2);
    });
    let how = [
        (false, Path::Express, Wiring::Fewer),
        (true, Path::Express, Wiring::Bridge),
    ];
    wired_by(&how, "what_was_got_is_told", |_, _, rig| {
        let why = ": generic mode, as without it the interface does not take the BPF program: ";
        assert_eq!(rig.how.matches(why).count(), 2, "{}", rig.how);
        assert_eq!(
            rig.how.matches("), in copies, queues: 1").count(),
            2,
            "{}",
            rig.how
        );
        assert!(!rig.how.contains("zero-copy"), "{}", rig.how);
    });
}

/// Its sender leaves that to a card that there is not: only the kernel knows that nothing is wrong.
#[test]
fn what_has_no_checksum_yet_comes_through_the_kernel() {
    let test = "what_has_no_checksum_yet_comes_through_the_kernel";
    wired(test, |_, world, mut rig| {
        let World::Wired(ends) = world else {
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
        assert_eq!((counters.express_in, counters.datagrams_in), (0, 50));
    });
}

/// What is not plain is the kernel's; nothing of it gets anywhere else, and the stream goes on.
#[test]
fn hostile_frames_hurt_nobody() {
    wired("hostile_frames_hurt_nobody", |_, world, mut rig| {
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        let wire = Wire::new(world);
        let six = ours[0].is_ipv6();
        let udp = if six { 54 } else { 34 };
        let frame = |n: u16| wire.frame(a.address(), ours[0], &rtp(7, n, 40));
        // As it must be; and padded, as short frames are.
        wire.send(&frame(1));
        assert_eq!(rig.take(b).0, rtp(7, 1, 40));
        wire.send(&[frame(2), vec![0xaa; 9]].concat());
        assert_eq!(rig.take(b).0, rtp(7, 2, 40));
        assert_eq!(rig.driver.counters().express_in, 2);
        // Not led here, each of them.
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
                // A fragment, the first of more; of IPv6 by its next header.
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
        assert_eq!(rig.driver.counters().express_in, 3);
        // Anything, with checksums that are right or not.
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
        goes_on(&mut rig, [a, b], ours[0], 29_999);
        assert_eq!(rig.dropped(DropReason::SendFailed), 0);
    });
}

/// More than its ring holds, before it is looked at: what finds no room is counted, and after it all is well.
#[test]
fn full_rings_are_counted_drops() {
    wired("full_rings_are_counted_drops", |_, world, mut rig| {
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        let wire = Wire::new(world);
        let frame = wire.frame(a.address(), ours[0], &rtp(7, 1, 20));
        // No turn until it is full; the wire itself may drop some, which nobody tells us.
        let begun = Instant::now();
        while rig.driver.kernel_drops().unwrap() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(20));
            for _ in 0..500 {
                wire.send(&frame);
            }
        }
        goes_on(&mut rig, [a, b], ours[0], 29_999);
        assert!(rig.driver.counters().express_in >= 2_048);
    });
}

/// The program is at the interfaces for as long as it is used; then another one can be.
#[test]
fn the_program_leaves_with_its_driver() {
    wired("the_program_leaves_with_its_driver", |test, world, rig| {
        assert!(has_program(Some("wire1")) && has_program(Some("wire2")));
        // One program at an interface.
        assert!(world.af_xdp().is_err());
        let again = rig.path;
        drop(rig);
        until_gone();
        let mut rig = Rig::start(again, world, test).unwrap();
        let phones = world.phones();
        let [a, a_rtcp, b, b_rtcp] = &phones;
        let ours = call(&mut rig, 1, world, 40_000, [a, a_rtcp, b, b_rtcp]);
        a.send(&rtp(7, 1, 20), ours[0]);
        assert_eq!(rig.take(b).0, rtp(7, 1, 20));
        assert_eq!(rig.driver.counters().express_in, 1);
    });
}

/// One driver has the sockets, on its own thread, and the kernel does not relay there.
#[test]
fn what_cannot_be_together_is_refused() {
    let test = "what_cannot_be_together_is_refused";
    let run = move || {
        let _alone = alone();
        if !private_network(test) {
            return;
        }
        let world = World::wired();
        let af_xdp = match world.af_xdp() {
            Ok(af_xdp) => af_xdp,
            Err(error) => {
                eprintln!("skipped: {test}: {error}");
                return;
            }
        };
        let (how, unserved) = af_xdp.state();
        assert!(
            how.contains("wire1: driver mode") && how.contains("wire2: "),
            "{how}"
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

/// Where nothing can be served the reason is told.
#[test]
fn addresses_that_cannot_be_served_are_named() {
    let told = |address: &str| {
        let error = AfXdp::start(&[address.parse().unwrap()], 0).unwrap_err();
        error.to_string()
    };
    let nobody = told("192.0.2.77");
    assert_eq!(nobody, "192.0.2.77: no interface has it");
    let loopback = told("127.0.0.1");
    assert!(
        loopback.contains("127.0.0.1: its interface is no Ethernet"),
        "{loopback}"
    );
    let link_local = AfXdp::start(&["fe80::1".parse().unwrap()], 0).unwrap_err();
    assert!(
        link_local.to_string().contains("link-local"),
        "{link_local}"
    );
}
