//! Media through a tunnel path: packets for open ports go to the forwarder, all others to the device; packets whose
//! route leads into the tunnel are written complete.

use engine::{
    Control, Deadline, DropReason, Engine, Forward, Input, MediaPacket, Output, PacketVerdict,
    SocketId, SocketKind, Time,
};
use net::{Clock, Driver, DriverConfig, EspSocket, TunnelPath};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The far end of the tunnel.
const REMOTE: &str = "10.2.0.1:4000";

/// The state of the path, which tests look at.
#[derive(Default)]
struct Seen {
    /// Packets of the tunnel that the driver did not take.
    to_device: Vec<Vec<u8>>,
    /// Packets that are queued, and those that were sent.
    queued: Vec<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    device_calls: usize,
    ticks: usize,
    ended: bool,
}

/// A path without ciphers: the outer socket has inner packets.
struct PlainPath {
    seen: Arc<Mutex<Seen>>,
    device: UnixDatagram,
    outer: UnixDatagram,
    commands: UnixDatagram,
    next_tick: Time,
}

impl TunnelPath for PlainPath {
    fn descriptors(&self) -> io::Result<[OwnedFd; 3]> {
        let copy = |socket: &UnixDatagram| socket.as_fd().try_clone_to_owned();
        Ok([
            copy(&self.device)?,
            copy(&self.outer)?,
            copy(&self.commands)?,
        ])
    }
    fn send_from_device(&mut self, _failed: bool, _now: Time) -> usize {
        let mut seen = self.seen.lock().unwrap();
        seen.device_calls += 1;
        // Each packet stands for a full batch.
        match self.device.recv(&mut [0; 100]) {
            Ok(_) => EspSocket::BATCH,
            Err(_) => 0,
        }
    }
    fn receive(&mut self, most: usize, _now: Time, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let mut buffer = [0; 2_000];
        for number in 0..most {
            let Ok(length) = self.outer.recv(&mut buffer) else {
                return number;
            };
            if !take(&buffer[..length]) {
                let packet = buffer[..length].to_vec();
                self.seen.lock().unwrap().to_device.push(packet);
            }
        }
        most
    }
    fn execute(&mut self, _now: Time) {
        self.seen.lock().unwrap().ended = true;
    }
    fn tick(&mut self, now: Time) {
        self.next_tick = now + Duration::from_millis(100);
        self.seen.lock().unwrap().ticks += 1;
    }
    fn next_tick(&self) -> Time {
        self.next_tick
    }
    fn send(
        &mut self,
        (_, to): (IpAddr, IpAddr),
        _now: Time,
        write: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let mut room = [0; 1_400];
        if to != REMOTE.parse::<SocketAddr>().unwrap().ip() {
            return false;
        }
        let Some(length) = write(&mut room) else {
            return false;
        };
        let packet = room[..length].to_vec();
        self.seen.lock().unwrap().queued.push(packet);
        true
    }
    fn flush(&mut self, _now: Time) {
        let mut seen = self.seen.lock().unwrap();
        let queued = std::mem::take(&mut seen.queued);
        seen.sent.extend(queued);
    }
    fn has_ended(&self) -> bool {
        self.seen.lock().unwrap().ended
    }
}

/// Opens and closes ports.
#[derive(Default)]
struct Ports {
    requests: VecDeque<(u32, Option<SocketAddr>)>,
    opened: Vec<(u32, SocketAddr)>,
}

impl Engine for Ports {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        if let Input::Opened { socket, local } = input {
            self.opened.push((socket.0, local));
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        let (number, local) = self.requests.pop_front()?;
        let socket = SocketId(number);
        Some(match local {
            Some(local) => Output::OpenSocket {
                socket,
                kind: SocketKind::UdpMedia,
                local,
            },
            None => Output::CloseSocket { socket },
        })
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl Control for Ports {
    type Command = Infallible;
    type Report = Infallible;
    fn next_command(&mut self) -> Option<Infallible> {
        None
    }
    fn report(&mut self, report: Infallible, _now: Time) {
        match report {}
    }
}

/// Sends each packet back to its source, or, if it begins with a port number above zero, to that port of this host.
#[derive(Default)]
struct Echo;

impl Forward for Echo {
    type Command = Infallible;
    type Report = Infallible;
    fn command(&mut self, command: Infallible, _now: Time) {
        match command {}
    }
    fn forward(&mut self, packet: &mut MediaPacket<'_>, _now: Time) -> PacketVerdict {
        let bytes = packet.bytes();
        let port = u16::from_be_bytes([bytes[0], bytes[1]]);
        PacketVerdict::Forward {
            socket: packet.socket,
            destination: match port {
                0 => packet.source,
                port => SocketAddr::from(([127, 0, 0, 1], port)),
            },
        }
    }
    fn timeout(&mut self, _now: Time) {}
    fn next_report(&mut self) -> Option<Infallible> {
        None
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

struct Rig {
    driver: Driver<Echo>,
    ports: Ports,
    seen: Arc<Mutex<Seen>>,
    /// The other ends of the path's descriptors.
    device: UnixDatagram,
    outer: UnixDatagram,
    commands: UnixDatagram,
}

fn pair() -> (UnixDatagram, UnixDatagram) {
    let (one, other) = UnixDatagram::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    (one, other)
}

impl Rig {
    fn new() -> Rig {
        let config = DriverConfig {
            media_dscp: 46,
            ..DriverConfig::default()
        };
        let mut driver = Driver::new(config, Clock::new(), Echo).unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let ((device, device_end), (outer, outer_end)) = (pair(), pair());
        let (commands, commands_end) = pair();
        let path = PlainPath {
            seen: seen.clone(),
            device,
            outer,
            commands,
            next_tick: Time::ZERO,
        };
        driver.attach_tunnel(Box::new(path)).unwrap();
        Rig {
            driver,
            ports: Ports::default(),
            seen,
            device: device_end,
            outer: outer_end,
            commands: commands_end,
        }
    }

    fn turn(&mut self) {
        let wait = Duration::from_millis(2);
        self.driver.turn(&mut self.ports, wait).unwrap();
    }

    fn open(&mut self, number: u32, local: &str) -> SocketAddr {
        let request = (number, Some(local.parse().unwrap()));
        self.ports.requests.push_back(request);
        for _ in 0..3 {
            self.turn();
        }
        let opened = self.ports.opened.iter().find(|(one, _)| *one == number);
        opened.expect("opened").1
    }

    /// Inner packets that arrive through the tunnel.
    fn arrive(&mut self, packets: &[Vec<u8>]) {
        for packet in packets {
            self.outer.send(packet).unwrap();
        }
        for _ in 0..3 {
            self.turn();
        }
    }

    fn take_sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.seen.lock().unwrap().sent)
    }
}

/// An IPv4 packet with a UDP datagram, its checksums by RFC 791 and RFC 768.
fn packet(source: &str, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let source: SocketAddr = source.parse().unwrap();
    let octets = |address: SocketAddr| match address.ip() {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => panic!("IPv4 only"),
    };
    let checksum = |parts: &[&[u8]]| {
        let mut bytes = parts.concat();
        bytes.resize(bytes.len().next_multiple_of(2), 0);
        let words = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    };
    let length = (8 + payload.len()) as u16;
    let mut udp = [
        source.port().to_be_bytes(),
        destination.port().to_be_bytes(),
        length.to_be_bytes(),
        [0, 0],
    ]
    .concat();
    udp.extend_from_slice(payload);
    let addresses = [octets(source), octets(destination)].concat();
    let pseudo = [&addresses[..], &[0, 17], &length.to_be_bytes()].concat();
    let sum = checksum(&[&pseudo, &udp]);
    udp[6..8].copy_from_slice(&sum);
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0];
    ip[2..4].copy_from_slice(&(20 + length).to_be_bytes());
    ip.extend_from_slice(&addresses);
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum);
    [ip, udp].concat()
}

#[test]
fn media_of_open_ports_passes_between_tunnel_and_forwarder() {
    let mut rig = Rig::new();
    let local = rig.open(1, "127.0.0.1:0");
    let packets: Vec<Vec<u8>> = (0..200)
        .map(|n| packet(REMOTE, local, &[0, 0, n, 7]))
        .collect();
    rig.arrive(&packets);
    let sent = rig.take_sent();
    assert_eq!(sent.len(), 200);
    for (number, (sent, received)) in sent.iter().zip(&packets).enumerate() {
        // As the media socket would send it: DSCP 46, complete with checksums.
        let mut expected = packet(&local.to_string(), REMOTE.parse().unwrap(), &received[28..]);
        expected[1] = 46 << 2;
        assert_eq!(sent[..2], expected[..2], "{number}");
        assert_eq!(sent[12..], expected[12..], "{number}");
        assert_eq!(sent[30], number as u8);
    }
    let counters = rig.driver.counters();
    assert_eq!((counters.tunnel_in, counters.tunnel_out), (200, 200));
    assert_eq!((counters.datagrams_in, counters.datagrams_out), (200, 200));
    assert_eq!((counters.bytes_in, counters.bytes_out), (800, 800));
    assert!(rig.seen.lock().unwrap().to_device.is_empty());
    // The port's socket still receives: packets that the path leaves to the kernel arrive there.
    let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
    outside
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    outside.send_to(&[0, 0, 9], local).unwrap();
    // From the tunnel to another host outside, which its socket sends.
    let port = outside.local_addr().unwrap().port().to_be_bytes();
    rig.arrive(&[packet(REMOTE, local, &port)]);
    let mut got = [[0; 10]; 2].map(|mut buffer| {
        let (length, from) = outside.recv_from(&mut buffer).unwrap();
        assert_eq!(from, local);
        buffer[..length].to_vec()
    });
    got.sort_by_key(Vec::len);
    assert_eq!(got, [port.to_vec(), vec![0, 0, 9]]);
    assert!(rig.take_sent().is_empty());
}

#[test]
fn other_packets_go_to_the_device_and_wrong_ones_are_counted() {
    let mut rig = Rig::new();
    let local = rig.open(1, "127.0.0.1:0");
    let media = packet(REMOTE, local, &[0, 0, 1]);
    let other = |at: usize, value: u8| {
        let mut changed = media.clone();
        changed[at] = value;
        changed
    };
    let left = [
        // Another port, a fragment, a wrong header checksum, TCP, a source with rules of its own.
        packet(
            REMOTE,
            SocketAddr::new(local.ip(), local.port() ^ 1),
            b"other",
        ),
        other(6, 0x20),
        other(8, 63),
        other(9, 6),
        packet(
            &SocketAddr::new(local.ip(), 4_000).to_string(),
            local,
            &[0, 0],
        ),
    ];
    let wrong = other(30, 99);
    rig.arrive(&[&left[..], &[wrong]].concat());
    assert_eq!(rig.seen.lock().unwrap().to_device, left);
    let counters = rig.driver.counters();
    assert_eq!(counters.drops.get(DropReason::MediaMalformed), 1);
    assert_eq!(counters.tunnel_in, 0);
    assert!(rig.take_sent().is_empty());
}

#[test]
fn ports_that_open_and_close_are_followed() {
    let mut rig = Rig::new();
    let first = rig.open(1, "127.0.0.1:0");
    rig.arrive(&[packet(REMOTE, first, &[0, 0, 1])]);
    assert_eq!(rig.take_sent().len(), 1);
    // The packet of a port waits before the turn in which the port opens.
    let free = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    rig.ports.requests.push_back((1, None));
    rig.ports.requests.push_back((2, Some(free)));
    rig.arrive(&[
        packet(REMOTE, free, &[0, 0, 2]),
        packet(REMOTE, first, &[0, 0, 3]),
    ]);
    let sent = rig.take_sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0][28..], [0, 0, 2]);
    let left = rig.seen.lock().unwrap().to_device.clone();
    assert_eq!(left, [packet(REMOTE, first, &[0, 0, 3])]);
}

#[test]
fn a_flood_at_the_device_does_not_hold_media() {
    let mut rig = Rig::new();
    let local = rig.open(1, "127.0.0.1:0");
    rig.device.set_nonblocking(true).unwrap();
    for round in 0..20 {
        while rig.device.send(b"flood").is_ok() {}
        rig.outer
            .send(&packet(REMOTE, local, &[0, 0, round]))
            .unwrap();
        let before = rig.seen.lock().unwrap().device_calls;
        rig.turn();
        // As many packets of the device in a turn as of a socket, 256, and all waiting media.
        assert_eq!(rig.seen.lock().unwrap().device_calls, before + 4);
        assert_eq!(rig.take_sent().len(), 1);
    }
}

#[test]
fn a_path_that_has_ended_is_released() {
    let mut rig = Rig::new();
    let local = rig.open(1, "127.0.0.1:0");
    let start = Instant::now();
    while rig.seen.lock().unwrap().ticks < 3 {
        assert!(start.elapsed() < Duration::from_secs(20));
        rig.turn();
    }
    // The command stays readable: a driver that still watched it would not sleep.
    rig.commands.send(b"end").unwrap();
    rig.turn();
    let waits = rig.driver.counters().waits;
    rig.driver
        .turn(&mut rig.ports, Duration::from_millis(50))
        .unwrap();
    assert_eq!(rig.driver.counters().waits, waits + 1);
    let ticks = rig.seen.lock().unwrap().ticks;
    // Media goes on in sockets.
    let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
    outside
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    outside.send_to(&[0, 0, 5], local).unwrap();
    rig.turn();
    assert_eq!(outside.recv(&mut [0; 10]).unwrap(), 3);
    assert_eq!(rig.seen.lock().unwrap().ticks, ticks);
}

#[test]
fn a_path_needs_a_forwarder_on_the_thread_and_is_alone() {
    let path = || -> Box<dyn TunnelPath> {
        let ((device, _), (outer, _), (commands, _)) = (pair(), pair(), pair());
        Box::new(PlainPath {
            seen: Arc::default(),
            device,
            outer,
            commands,
            next_tick: Time::ZERO,
        })
    };
    let config = DriverConfig {
        media_thread: true,
        ..DriverConfig::default()
    };
    let mut other = Driver::new(config, Clock::new(), Echo).unwrap();
    assert!(other.attach_tunnel(path()).is_err());
    let mut driver = Driver::new(DriverConfig::default(), Clock::new(), Echo).unwrap();
    driver.attach_tunnel(path()).unwrap();
    assert!(driver.attach_tunnel(path()).is_err());
}
