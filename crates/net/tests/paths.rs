//! The same packets through every way in which media ports are served, with the same results: a socket for each port, the same
//! on a thread of its own, one socket for all ports.

use engine::{
    Control, Deadline, DropReason, Engine, HashKey, Input, Note, Output, SocketId, SocketKind, Time,
};
use media::{
    Carriage, Forwarder, ForwarderLimits, Latching, MediaCommand, MediaEvent, SessionPlan, SidePlan,
};
use net::{Clock, Driver, DriverConfig, MediaSockets};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::{Duration, Instant};
use wire::rtcp::CompoundBuilder;
use wire::rtp::RtpHeader;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const DSCP: u8 = 46;
/// Expedited forwarding, as it stands in the header.
const CLASS: i32 = 46 << 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    PerPort,
    Thread,
    One,
}

/// A network namespace of this thread's own, with a loopback whose packets are small; false, said, where that is not allowed.
fn private_network(test: &str) -> bool {
    // SAFETY: changes only which network this thread and what it starts belong to.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        let error = std::io::Error::last_os_error();
        eprintln!("skipped: {test} needs a network namespace: {error}");
        return false;
    }
    let done = Command::new("ip")
        .args("link set lo up mtu 1400".split(' '))
        .status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("skipped: {test} needs the program ip (Debian: iproute2)");
        return false;
    }
    true
}

/// Opens ports, says what the forwarder shall do, and notes what it is told.
#[derive(Default)]
struct Operator {
    out: VecDeque<Output<'static>>,
    commands: VecDeque<MediaCommand>,
    opened: Vec<(SocketId, Result<SocketAddr, String>)>,
    latched: usize,
    refused: usize,
}

impl Engine for Operator {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Opened { socket, local } => self.opened.push((socket, Ok(local))),
            Input::OpenFailed { socket, error } => {
                self.opened.push((socket, Err(error.to_owned())))
            }
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.out.pop_front()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl Control for Operator {
    type Command = MediaCommand;
    type Report = MediaEvent;
    fn next_command(&mut self) -> Option<MediaCommand> {
        self.commands.pop_front()
    }
    fn report(&mut self, report: MediaEvent, _now: Time) {
        match report {
            MediaEvent::Latched { .. } => self.latched += 1,
            MediaEvent::Refused { .. } => self.refused += 1,
            _ => {}
        }
    }
}

struct Rig {
    path: Path,
    driver: Driver<Forwarder>,
    operator: Operator,
}

impl Rig {
    /// `None`, said, where the machine or our rights do not allow the path.
    fn start(path: Path, test: &str) -> Option<Rig> {
        let config = DriverConfig {
            media_thread: path == Path::Thread,
            media_sockets: match path {
                Path::One => MediaSockets::Auto,
                _ => MediaSockets::PerPort,
            },
            media_addresses: 2,
            media_dscp: DSCP,
            gather: Duration::from_millis(1),
            ..DriverConfig::default()
        };
        let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
        let mut driver = Driver::new(config, Clock::new(), forwarder).unwrap();
        if path == Path::One {
            let event = driver.next_event().expect("the path is told");
            let Note::MediaPath { path, why } = event.note else {
                panic!("{event:?}");
            };
            if path != "one_socket" {
                assert_eq!(path, "socket_per_port");
                assert!(!why.is_empty());
                eprintln!("skipped: {test} through one socket: {why}");
                return None;
            }
        } else {
            assert!(driver.next_event().is_none());
        }
        Some(Rig {
            path,
            driver,
            operator: Operator::default(),
        })
    }

    /// Turns for so long.
    fn run(&mut self, milliseconds: u64) {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < end {
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.driver
            .turn(&mut self.operator, Duration::from_millis(1))
            .unwrap();
    }

    /// Turns until something holds.
    fn until(&mut self, mut holds: impl FnMut(&mut Rig) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", self.path);
            self.turn();
        }
    }

    fn open(&mut self, id: u32, local: SocketAddr) -> Result<SocketAddr, String> {
        self.operator.out.push_back(Output::Open {
            socket: SocketId(id),
            kind: SocketKind::UdpMedia,
            local,
        });
        self.until(|rig| rig.operator.opened.iter().any(|(known, _)| known.0 == id));
        let at = self
            .operator
            .opened
            .iter()
            .position(|(known, _)| known.0 == id)
            .unwrap();
        self.operator.opened.remove(at).1
    }

    fn shut(&mut self, id: u32) {
        self.operator.out.push_back(Output::Shut {
            socket: SocketId(id),
        });
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.driver.counters().drops.get(reason)
    }

    /// What comes at a peer, turning meanwhile: bytes, sender, traffic class.
    fn take(&mut self, peer: &Peer) -> (Vec<u8>, SocketAddr, i32) {
        let begun = Instant::now();
        loop {
            if let Some(got) = peer.receive() {
                return got;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "nothing came: {:?}",
                self.path
            );
            self.turn();
        }
    }
}

/// A phone's port.
struct Peer(UdpSocket);

impl Peer {
    fn new(ip: IpAddr) -> Peer {
        Peer::at(SocketAddr::new(ip, 0))
    }

    fn at(address: SocketAddr) -> Peer {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        let (level, name) = match address.is_ipv6() {
            false => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            true => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
        };
        let on: libc::c_int = 1;
        // SAFETY: the option's value is an int that lives through the call.
        let done =
            unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), 4) };
        assert_eq!(done, 0);
        Peer(socket)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) {
        self.0.send_to(bytes, to).unwrap();
    }

    fn receive(&self) -> Option<(Vec<u8>, SocketAddr, i32)> {
        let mut bytes = [0u8; 4_096];
        let mut control = [0u64; 8];
        let mut iovec = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: all zero is a valid header; its pointers are set to buffers that live through the calls.
        let (length, class) = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &raw mut iovec;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = 64;
            let peeked = self.0.peek_from(&mut [0; 1]).ok();
            let from = peeked?.1;
            let length = libc::recvmsg(self.0.as_raw_fd(), &raw mut header, 0);
            assert!(length >= 0);
            let message = libc::CMSG_FIRSTHDR(&raw const header);
            assert!(!message.is_null());
            // One byte for IPv4, an int for IPv6: little-endian or not, the class is small.
            let class = match (*message).cmsg_level {
                libc::IPPROTO_IP => i32::from(*libc::CMSG_DATA(message)),
                _ => libc::CMSG_DATA(message).cast::<i32>().read_unaligned(),
            };
            ((length as usize, from), class)
        };
        Some((bytes[..length.0].to_vec(), length.1, class))
    }
}

fn rtp(ssrc: u32, sequence: u16, length: usize) -> Vec<u8> {
    RtpHeader {
        payload_type: 8,
        sequence,
        timestamp: u32::from(sequence) * 160,
        ssrc,
        ..RtpHeader::default()
    }
    .packet(&vec![0xd5; length])
}

fn rtcp(ssrc: u32) -> Vec<u8> {
    CompoundBuilder::new()
        .receiver_report(ssrc, &[])
        .cname(ssrc, "a@b")
        .finish()
}

/// A call: our four ports from `port` on, and two phones with an RTP and an RTCP port each.
fn call(rig: &mut Rig, session: u64, ip: IpAddr, port: u16, phones: [&Peer; 4]) -> [SocketAddr; 4] {
    let id = session as u32 * 10;
    let ours = [0, 1, 2, 3].map(|n| SocketAddr::new(ip, port + n));
    for (n, local) in (0..).zip(ours) {
        assert_eq!(rig.open(id + n, local), Ok(local), "{:?}", rig.path);
    }
    let side = |n: usize| {
        let mut side = SidePlan::new(SocketId(id + n as u32));
        side.rtcp = Some(SocketId(id + n as u32 + 1));
        side.ipv6 = ip.is_ipv6();
        side.signalled_rtp = Some(phones[n].address());
        side.signalled_rtcp = Some(phones[n + 1].address());
        side.latching = Latching::Signalled;
        side
    };
    let plan = SessionPlan::single(session, Carriage::Rtp, [side(0), side(2)]);
    rig.operator.commands.push_back(MediaCommand::Add(plan));
    rig.run(5);
    assert_eq!(rig.operator.refused, 0);
    ours
}

fn relayed(rig: &mut Rig, ip: IpAddr) {
    let phones = [0; 4].map(|_| Peer::new(ip));
    let [a, a_rtcp, b, b_rtcp] = &phones;
    let all = [a, a_rtcp, b, b_rtcp];
    let ours = call(rig, 1, ip, 40_000, all);
    // Both directions, small and larger than a packet of the way; each arrives as it was sent, from our port, marked.
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
    // Nobody else is heard, and nonsense goes nowhere.
    let stranger = Peer::new(ip);
    stranger.send(&rtp(8, 1, 20), ours[0]);
    a.send(b"no media", ours[0]);
    a.send(&[0x80; 2_100], ours[0]);
    a.send(&[], ours[0]);
    rig.until(|rig| {
        rig.dropped(DropReason::MediaStranger) == 1
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
    // A phone that is gone (ICMP says so) takes nobody with it.
    let gone = b.address();
    let [a, _, b, _] = phones;
    drop(b);
    for sequence in 300..303 {
        a.send(&rtp(7, sequence, 20), ours[0]);
        rig.run(3);
    }
    let b = Peer::at(gone);
    a.send(&rtp(7, 303, 20), ours[0]);
    assert_eq!(rig.take(&b).0, rtp(7, 303, 20));
    rig.operator.commands.push_back(MediaCommand::Remove(1));
    rig.run(5);
    a.send(&rtp(7, 304, 20), ours[0]);
    rig.until(|rig| rig.dropped(DropReason::MediaNoFlow) == 1);
    for n in 10..14 {
        rig.shut(n);
    }
    rig.run(10);
    assert!(b.receive().is_none());
}

/// A port answers as closed before it is opened and after it was shut.
fn closed(rig: &mut Rig, ip: IpAddr) {
    let local = SocketAddr::new(ip, 40_100);
    let refused = |rig: &mut Rig| {
        let caller = UdpSocket::bind(SocketAddr::new(ip, 0)).unwrap();
        caller.connect(local).unwrap();
        caller.set_nonblocking(true).unwrap();
        caller.send(b"?").unwrap();
        rig.run(10);
        let answer = caller.recv(&mut [0; 8]).unwrap_err().kind();
        answer == std::io::ErrorKind::ConnectionRefused
    };
    assert!(refused(rig), "{:?}", rig.path);
    assert_eq!(rig.open(50, local), Ok(local));
    assert!(!refused(rig), "{:?}", rig.path);
    rig.shut(50);
    rig.run(10);
    assert!(refused(rig), "{:?}", rig.path);
    // Somebody else's port is not ours to take.
    let other = UdpSocket::bind(local).unwrap();
    assert!(rig.open(51, local).is_err(), "{:?}", rig.path);
    other.set_nonblocking(true).unwrap();
    let caller = Peer::new(ip);
    caller.send(b"theirs", local);
    rig.run(3);
    assert_eq!(other.recv(&mut [0; 8]).unwrap(), 6);
    drop(other);
    assert_eq!(rig.open(52, local), Ok(local));
    // Twice is once too often.
    assert!(rig.open(53, local).is_err(), "{:?}", rig.path);
    rig.shut(52);
    rig.run(10);
}

/// What was sent to one call is not heard in the next one that has its port.
fn passed_on(rig: &mut Rig, ip: IpAddr) {
    let phones = [0; 4].map(|_| Peer::new(ip));
    let [a, a_rtcp, b, b_rtcp] = &phones;
    let ours = call(rig, 5, ip, 40_200, [a, a_rtcp, b, b_rtcp]);
    // No turn lies between this packet, the end of the call and the next one with the same port and the same phone.
    for n in 0..4 {
        rig.shut(50 + n);
    }
    rig.operator.commands.push_back(MediaCommand::Remove(5));
    for (id, local) in (60..).zip(ours) {
        rig.operator.out.push_back(Output::Open {
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
    rig.operator.commands.push_back(MediaCommand::Add(plan));
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

/// A fixture over each path, IPv4 and IPv6; drops by reason must be the same on all of them.
fn over_all_paths(test: &'static str, fixture: fn(&mut Rig, IpAddr)) {
    over(
        &[Path::PerPort, Path::Thread, Path::One],
        true,
        test,
        fixture,
    );
}

/// `alike`: whether what was dropped must be the same.
fn over(paths: &'static [Path], alike: bool, test: &'static str, fixture: fn(&mut Rig, IpAddr)) {
    let run = move || {
        if !private_network(test) {
            return;
        }
        for ip in [V4, V6] {
            let mut seen: Option<(Path, Vec<u64>)> = None;
            for &path in paths {
                let Some(mut rig) = Rig::start(path, test) else {
                    continue;
                };
                fixture(&mut rig, ip);
                let drops: Vec<u64> = DropReason::ALL
                    .iter()
                    .map(|&reason| rig.dropped(reason))
                    .collect();
                match &seen {
                    Some((first, known)) if alike => {
                        assert_eq!(&drops, known, "{path:?} and {first:?}, {ip}")
                    }
                    _ => seen = Some((path, drops)),
                }
            }
        }
    };
    // A thread of its own, which leaves its namespace with it.
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_path_relays_alike() {
    over_all_paths("every_path_relays_alike", relayed);
}

#[test]
fn closed_ports_are_closed_on_every_path() {
    over_all_paths("closed_ports_are_closed_on_every_path", closed);
}

#[test]
fn a_port_passed_on_brings_nothing_along() {
    // Where another thread reads, what it has read before it hears of the end may go either way. What was under way is lost with
    // the socket of the port, or counted as a drop.
    over(
        &[Path::PerPort, Path::One],
        false,
        "a_port_passed_on_brings_nothing_along",
        passed_on,
    );
}

#[test]
fn a_flood_on_one_port_leaves_the_others_alone() {
    let run = || {
        let test = "a_flood_on_one_port_leaves_the_others_alone";
        if !private_network(test) {
            return;
        }
        for ip in [V4, V6] {
            let Some(mut rig) = Rig::start(Path::One, test) else {
                return;
            };
            let phones = [0; 4].map(|_| Peer::new(ip));
            let [a, a_rtcp, b, b_rtcp] = &phones;
            let ours = call(&mut rig, 1, ip, 40_000, [a, a_rtcp, b, b_rtcp]);
            let flooded = SocketAddr::new(ip, 40_010);
            assert_eq!(rig.open(90, flooded), Ok(flooded));
            let attacker = Peer::new(ip);
            // No turn for so many that one buffer for all would be full.
            for sequence in 0..50_000u32 {
                attacker.send(&rtp(9, sequence as u16, 160), flooded);
                if sequence % 1_000 == 0 {
                    a.send(&rtp(7, (sequence / 1_000) as u16, 20), ours[0]);
                }
            }
            for sequence in 0..50 {
                assert_eq!(rig.take(b).0, rtp(7, sequence, 20));
            }
            rig.run(20);
            let heard = rig.dropped(DropReason::MediaNoFlow);
            assert_eq!(rig.dropped(DropReason::MediaFlood), 0);
            rig.shut(90);
            rig.run(20);
            let flood = rig.dropped(DropReason::MediaFlood);
            assert!(flood > 0 && heard > 0);
            assert_eq!(heard + flood, 50_000, "all of the flood is counted");
        }
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn one_socket_can_be_demanded() {
    let config = DriverConfig {
        media_sockets: MediaSockets::One,
        media_thread: true,
        ..DriverConfig::default()
    };
    let forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    let error = Driver::new(config, Clock::new(), forwarder).err();
    assert!(error.is_some_and(|error| error.to_string().contains("own thread")));
}
