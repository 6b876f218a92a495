//! The same packets on every media path, with the same results: one socket per port, the same on a separate thread,
//! the shared-port socket, and each of them with the kernel relay or AF_XDP; the latter with one receive queue and
//! with several, in driver mode and in generic mode.

use crate::rig;

use engine::{DropReason, EventKind, HashKey, Output, SocketId, SocketKind};
use media::{Carriage, Forwarder, ForwarderLimits, MediaCommand, SessionPlan, SidePlan};
use net::{Clock, Driver, DriverConfig, MediaSockets};
use rig::{
    CLASS, Path, Peer, Rig, TestControl, TestWorld, V4, V6, Wiring, call, enter_private_network,
    rtcp, rtp, serialised,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

fn check_relay(rig: &mut Rig, world: &TestWorld) {
    let phones = world.phones();
    let [a, a_rtcp, b, b_rtcp] = &phones;
    let all = [a, a_rtcp, b, b_rtcp];
    let ours = call(rig, 1, world, 40_000, all);
    // Both directions, small and larger than the path's MTU; each arrives unchanged, from our port, with its traffic
    // class.
    for (sequence, length) in [(1, 20), (2, 160), (3, 1_900), (4, 21)] {
        let packet = rtp(7, sequence, length);
        a.send(&packet, ours[0]);
        assert_eq!(
            rig.take(b),
            (packet.clone(), ours[2], CLASS),
            "{:?} {length}",
            rig.path
        );
        b.send(&packet, ours[2]);
        assert_eq!(
            rig.take(a),
            (packet, ours[0], CLASS),
            "{:?} {length}",
            rig.path
        );
    }
    a_rtcp.send(&rtcp(7), ours[1]);
    assert_eq!(rig.take(b_rtcp), (rtcp(7), ours[3], CLASS));
    // Packets from other sources and malformed packets are not forwarded.
    let unexpected_source = world.phone(0);
    unexpected_source.send(&rtp(8, 1, 20), ours[0]);
    a.send(b"no media", ours[0]);
    a.send(&[0x80; 2_100], ours[0]);
    a.send(&[], ours[0]);
    rig.until(|rig| {
        rig.dropped(DropReason::MediaUnexpectedSource) == 1
            && rig.dropped(DropReason::MediaMalformed) == 2
            && rig.dropped(DropReason::MediaTooLarge) == 1
    });
    // Many at once, in order.
    for sequence in 10..210 {
        a.send(&rtp(7, sequence, 20), ours[0]);
    }
    for sequence in 10..210 {
        assert_eq!(rig.take(b).0, rtp(7, sequence, 20));
    }
    // One by one: the kernel relays eligible packets, and otherwise nothing changes.
    for sequence in 210..260 {
        a.send(&rtp(7, sequence, 20), ours[0]);
        assert_eq!(rig.take(b), (rtp(7, sequence, 20), ours[2], CLASS));
        rig.run(1);
    }
    let mut sequence = 260;
    if rig.path.is_kernel() {
        rig.until(|rig| {
            a.send(&rtp(7, sequence, 20), ours[0]);
            assert_eq!(rig.take(b).0, rtp(7, sequence, 20));
            sequence += 1;
            rig.run(1);
            rig.driver.counters().relayed_in_kernel > 10
                || sequence % 20 == 0 && {
                    // Another source is handled by the forwarder, which closes the offloaded flow and counts it.
                    a_rtcp.send(&rtcp(7), ours[1]);
                    assert_eq!(rig.take(b_rtcp).0, rtcp(7));
                    rig.operator.commands.push_back(MediaCommand::Query(1));
                    false
                }
        });
    }
    if rig.path.is_af_xdp() {
        let before = rig.driver.counters();
        rig.until(|rig| {
            a.send(&rtp(7, sequence, 20), ours[0]);
            assert_eq!(rig.take(b), (rtp(7, sequence, 20), ours[2], CLASS));
            sequence += 1;
            rig.run(1);
            let now = rig.driver.counters();
            now.af_xdp_in > before.af_xdp_in + 10 && now.af_xdp_out > before.af_xdp_out + 10
        });
    }
    // A phone whose port is closed (ICMP) affects no other.
    let closed_address = b.address();
    let [a, _, b, _] = phones;
    drop(b);
    for sequence in 20_000..20_003 {
        a.send(&rtp(7, sequence, 20), ours[0]);
        rig.run(3);
    }
    let b = world.phone_at(1, closed_address);
    a.send(&rtp(7, 20_003, 20), ours[0]);
    assert_eq!(rig.take(&b).0, rtp(7, 20_003, 20));
    rig.operator.commands.push_back(MediaCommand::Remove(1));
    rig.run(5);
    a.send(&rtp(7, 20_004, 20), ours[0]);
    rig.until(|rig| rig.dropped(DropReason::MediaNoFlow) == 1);
    for n in 10..14 {
        rig.shut(n);
    }
    rig.run(10);
    assert!(b.receive().is_none());
}

/// A port is closed to peers, and free for other programs, before it is opened and after it is closed; in between no
/// other program can bind it.
fn check_closed_port(rig: &mut Rig, world: &TestWorld) {
    let ip = world.own(0);
    let local = SocketAddr::new(ip, 40_100);
    let ask = |_: &mut Rig| {
        let caller = world.phone(0).0;
        caller.connect(local).unwrap();
        caller.send(b"?").unwrap();
        caller
    };
    let refused = |caller: &UdpSocket| {
        let answer = caller.recv(&mut [0; 8]).unwrap_err().kind();
        answer == std::io::ErrorKind::ConnectionRefused
    };
    let caller = ask(rig);
    rig.until(|_| refused(&caller));
    assert_eq!(rig.open(50, local), Ok(local));
    let caller = ask(rig);
    rig.until(|rig| rig.dropped(DropReason::MediaNoFlow) == 1);
    assert!(!refused(&caller), "{:?}", rig.path);
    let every: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    for address in [local, SocketAddr::new(every, local.port())] {
        let error = UdpSocket::bind(address).expect_err("it is a media port");
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::AddrInUse,
            "{:?}",
            rig.path
        );
    }
    rig.shut(50);
    rig.run(10);
    // Free for other programs: the previous owner, on any thread, has closed it.
    rig.until(|_| UdpSocket::bind(local).is_ok());
    let caller = ask(rig);
    rig.until(|_| refused(&caller));
    // A port of another program cannot be opened.
    let other = UdpSocket::bind(local).unwrap();
    assert!(rig.open(51, local).is_err(), "{:?}", rig.path);
    other.set_nonblocking(true).unwrap();
    let caller = world.phone(0);
    caller.send(b"theirs", local);
    rig.until(|_| other.recv(&mut [0; 8]).is_ok_and(|length| length == 6));
    drop(other);
    assert_eq!(rig.open(52, local), Ok(local));
    // A port cannot be opened twice.
    assert!(rig.open(53, local).is_err(), "{:?}", rig.path);
    rig.shut(52);
    rig.run(10);
}

/// Packets sent to one call are not received by the next call on its port.
fn check_port_reuse(rig: &mut Rig, world: &TestWorld) {
    let ip = world.own(0);
    let phones = world.phones();
    let [a, a_rtcp, b, b_rtcp] = &phones;
    let ours = call(rig, 5, world, 40_200, [a, a_rtcp, b, b_rtcp]);
    // No turn between this packet, the end of the call, and the next call with the same port and the same phone.
    for n in 0..4 {
        rig.shut(50 + n);
    }
    rig.operator.commands.push_back(MediaCommand::Remove(5));
    for (id, local) in (60..).zip(ours) {
        rig.operator.out.push_back(Output::OpenSocket {
            socket: SocketId(id),
            kind: SocketKind::UdpMedia,
            local,
        });
    }
    let side = |n: u32, phone: &Peer| {
        let mut side = SidePlan::new(SocketId(60 + n));
        side.ipv6 = ip.is_ipv6();
        side.signalled_rtp = Some(phone.address());
        side
    };
    let plan = SessionPlan::single(6, Carriage::Rtp, [side(0, a), side(2, b_rtcp)]);
    rig.operator
        .commands
        .push_back(MediaCommand::Add(Box::new(plan)));
    a.send(&rtp(7, 1, 20), ours[0]);
    rig.run(20);
    assert!(
        b.receive().is_none() && b_rtcp.receive().is_none(),
        "{:?}",
        rig.path
    );
    a.send(&rtp(7, 2, 20), ours[0]);
    assert_eq!(rig.take(b_rtcp).0, rtp(7, 2, 20));
    rig.operator.commands.push_back(MediaCommand::Remove(6));
    for n in 60..64 {
        rig.shut(n);
    }
    rig.run(10);
}

/// Runs a fixture on each path, IPv4 and IPv6; drops by reason must be the same on all of them.
fn over_all_paths(test: &'static str, fixture: fn(&mut Rig, &TestWorld)) {
    let all = &[
        Path::PerPort,
        Path::Thread,
        Path::SharedPort,
        Path::KernelRelay,
        Path::KernelRelaySharedPort,
        Path::AfXdp,
        Path::AfXdpSharedPort,
    ];
    over(all, true, test, fixture);
}

/// An AF_XDP mode, and the world that produces it.
type Made = (&'static str, fn() -> TestWorld);

/// `alike`: whether drops must be the same.
fn over(
    paths: &'static [Path],
    alike: bool,
    test: &'static str,
    fixture: fn(&mut Rig, &TestWorld),
) {
    let run = move || {
        let _alone = serialised();
        if !enter_private_network(test) {
            return;
        }
        let worlds: [Made; 10] = [
            ("", || TestWorld::Loopback(V4)),
            ("", || TestWorld::Loopback(V6)),
            ("driver mode", TestWorld::wired),
            ("driver mode", || TestWorld::wired_with(true, true)),
            ("driver mode", || {
                TestWorld::wired_by(true, false, Wiring::Queues)
            }),
            ("driver mode", || {
                TestWorld::wired_by(true, true, Wiring::Queues)
            }),
            ("generic mode", || {
                TestWorld::wired_by(true, false, Wiring::Fewer)
            }),
            ("generic mode", || {
                TestWorld::wired_by(true, true, Wiring::Fewer)
            }),
            ("generic mode", || {
                TestWorld::wired_by(true, false, Wiring::Bridge)
            }),
            ("generic mode", || {
                TestWorld::wired_by(true, true, Wiring::Bridge)
            }),
        ];
        let mut seen: Option<(Path, Vec<(DropReason, u64)>)> = None;
        for (number, (mode, world)) in worlds.iter().enumerate() {
            let world = &world();
            for &path in paths {
                let wired = matches!(world, TestWorld::Wired(_));
                // The receive mode matters only to AF_XDP.
                let fast = path.is_kernel() || path.is_af_xdp();
                if fast && !wired || number > 3 && !path.is_af_xdp() {
                    continue;
                }
                let Some(mut rig) = Rig::start(path, world, test) else {
                    continue;
                };
                if path.is_af_xdp() {
                    assert!(rig.modes.contains(mode), "{}", rig.modes);
                }
                fixture(&mut rig, world);
                let drops: Vec<(DropReason, u64)> = DropReason::ALL
                    .iter()
                    .map(|&reason| (reason, rig.dropped(reason)))
                    .filter(|(_, count)| *count > 0)
                    .collect();
                match &seen {
                    Some((first, expected)) if alike => {
                        assert_eq!(&drops, expected, "{path:?} and {first:?}, world {number}")
                    }
                    _ => seen = Some((path, drops)),
                }
            }
        }
    };
    // A separate thread, which leaves its namespace when it ends.
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_media_path_relays_identically() {
    over_all_paths("every_media_path_relays_identically", check_relay);
}

#[test]
fn closed_ports_are_unreachable_on_every_path() {
    over_all_paths(
        "closed_ports_are_unreachable_on_every_path",
        check_closed_port,
    );
}

#[test]
fn reused_port_receives_no_old_packets() {
    // With another thread reading, packets that it has read before it learns of the end may be delivered or not.
    // Packets in flight are lost with the socket of the port, or counted as drops.
    over(
        &[
            Path::PerPort,
            Path::SharedPort,
            Path::KernelRelay,
            Path::KernelRelaySharedPort,
            Path::AfXdp,
            Path::AfXdpSharedPort,
        ],
        false,
        "reused_port_receives_no_old_packets",
        check_port_reuse,
    );
}

#[test]
fn flood_on_one_port_does_not_affect_others() {
    let run = || {
        let test = "flood_on_one_port_does_not_affect_others";
        let _alone = serialised();
        if !enter_private_network(test) {
            return;
        }
        for ip in [V4, V6] {
            let world = TestWorld::Loopback(ip);
            let Some(mut rig) = Rig::start(Path::SharedPort, &world, test) else {
                return;
            };
            let phones = world.phones();
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ours = call(&mut rig, 1, &world, 40_000, [a, a_rtcp, b, b_rtcp]);
            let flooded = SocketAddr::new(ip, 40_010);
            assert_eq!(rig.open(90, flooded), Ok(flooded));
            let attacker = world.phone(0);
            // No turn for so many datagrams that one buffer for all would overflow, unless this takes so long that
            // the rate limit allows them.
            let mut begun = Instant::now();
            for sequence in 0..50_000u32 {
                if begun.elapsed() > Duration::from_millis(300) {
                    rig.drain();
                    begun = Instant::now();
                }
                attacker.send(&rtp(9, sequence as u16, 160), flooded);
                if sequence % 1_000 == 0 {
                    a.send(&rtp(7, (sequence / 1_000) as u16, 20), ours[0]);
                }
            }
            for sequence in 0..50 {
                assert_eq!(rig.take(b).0, rtp(7, sequence, 20));
            }
            rig.drain();
            let received = rig.dropped(DropReason::MediaNoFlow);
            assert_eq!(rig.dropped(DropReason::MediaFlood), 0);
            rig.shut(90);
            rig.run(20);
            let flood = rig.dropped(DropReason::MediaFlood);
            assert!(flood > 0 && received > 0);
            assert_eq!(received + flood, 50_000, "all of the flood is counted");
        }
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn address_without_a_shared_port_socket_is_reported() {
    let config = DriverConfig {
        media_sockets: MediaSockets::Auto,
        media_addresses: 1,
        ..DriverConfig::default()
    };
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    let mut driver = Driver::new(config, Clock::new(), forwarder).unwrap();
    if !driver.has_shared_ports() {
        eprintln!("skipped: no shared-port socket: {:?}", driver.next_event());
        return;
    }
    driver.next_event();
    let mut operator = TestControl::default();
    for (id, host) in [(1, "127.0.0.1:0"), (2, "127.0.0.2:0"), (3, "127.0.0.2:0")] {
        operator.out.push_back(Output::OpenSocket {
            socket: SocketId(id),
            kind: SocketKind::UdpMedia,
            local: host.parse().unwrap(),
        });
    }
    while operator.opened.len() < 3 {
        driver
            .turn(&mut operator, Duration::from_millis(1))
            .unwrap();
    }
    assert!(operator.opened.iter().all(|(_, opened)| opened.is_ok()));
    let events: Vec<EventKind> = std::iter::from_fn(|| Some(driver.next_event()?.kind)).collect();
    let [EventKind::MediaPath { path, reason }] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(path, "socket_per_port");
    assert!(reason.starts_with("127.0.0.2: "), "{reason}");
}

#[test]
fn shared_port_socket_can_be_required() {
    let config = DriverConfig {
        media_sockets: MediaSockets::One,
        media_thread: true,
        ..DriverConfig::default()
    };
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    let error = Driver::new(config, Clock::new(), forwarder).err();
    assert!(error.is_some_and(|error| error.to_string().contains("own thread")));
}
