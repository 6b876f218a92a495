//! Engines that send media themselves: due packets leave before and between received datagrams, in bounded batches, and
//! many ports share a socket. Counts are checked, no times.

use crate::rig::{enter_private_network, serialised};
use engine::{Deadline, Engine, Input, Output, SocketId, SocketKind, Time};
use net::{Clock, Driver, DriverConfig, MediaSockets};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const SIGNALLING: SocketId = SocketId(1);
/// Packets that the engine sends in a batch.
const BATCH: usize = 32;

/// Sends a packet from each of its ports when they are due.
#[derive(Default)]
struct MediaSender {
    open: VecDeque<(SocketId, SocketKind)>,
    local: HashMap<SocketId, SocketAddr>,
    due_from: VecDeque<(Time, SocketId)>,
    to: Option<SocketAddr>,
    out: VecDeque<SocketId>,
    /// Received datagrams by socket.
    received: Vec<SocketId>,
    /// A packet becomes due with the first received datagram.
    on_first: Option<SocketId>,
    /// For each batch: its packets, and the datagrams received before it had been sent.
    batches: Vec<(usize, usize)>,
    unsent: usize,
    last: Time,
    /// Time that each datagram takes.
    effort: Duration,
    arrived: Vec<Time>,
    timers: VecDeque<Time>,
}

impl Engine for MediaSender {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        assert!(now >= self.last, "time ran backwards");
        self.last = now;
        match input {
            Input::Opened { socket, local } => {
                self.local.insert(socket, local);
            }
            Input::OpenFailed { error, .. } => panic!("{error}"),
            Input::Timeout => {
                while self.timers.pop_front_if(|at| *at <= now).is_some() {
                    // It may end a stream.
                    let early = self.media_deadline().is_none_or(|at| at > now);
                    assert!(early, "a timer ran before a packet that was due");
                }
            }
            Input::Datagram(datagram) => {
                self.received.push(datagram.socket);
                self.arrived.push(datagram.arrived);
                let begun = Instant::now();
                while begun.elapsed() < self.effort {
                    std::hint::spin_loop();
                }
                if let Some(socket) = self.on_first.take() {
                    self.due_from.push_back((now, socket));
                }
            }
            _ => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some((socket, kind)) = self.open.pop_front() {
            return Some(Output::OpenSocket {
                socket,
                kind,
                local: SocketAddr::from(([127, 0, 0, 1], 0)),
            });
        }
        Some(Output::Datagram {
            socket: self.out.pop_front()?,
            destination: self.to?,
            bytes: b"media",
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let at = self.timers.front()?;
        Some(Deadline::new(*at, "test"))
    }

    fn media_deadline(&self) -> Option<Time> {
        self.due_from.front().map(|(at, _)| *at)
    }

    fn send_media(&mut self, now: Time) {
        assert!(now >= self.last, "time ran backwards");
        self.last = now;
        while self.unsent < BATCH
            && let Some((_, socket)) = self.due_from.pop_front_if(|(at, _)| *at <= now)
        {
            self.out.push_back(socket);
            self.unsent += 1;
        }
    }

    fn flushed(&mut self, _now: Time) {
        if self.unsent > 0 {
            let sent = std::mem::take(&mut self.unsent);
            self.batches.push((sent, self.received.len()));
        }
    }
}

/// A driver whose engine has opened the signalling socket and `ports` media ports, which send to `to`.
fn started(config: DriverConfig, ports: u32, to: &UdpSocket) -> (Driver, MediaSender) {
    let mut driver = Driver::plain(config, Clock::new()).unwrap();
    let mut engine = MediaSender {
        to: Some(to.local_addr().unwrap()),
        ..MediaSender::default()
    };
    engine
        .open
        .push_back((SIGNALLING, SocketKind::UdpSignalling));
    let media = (0..ports).map(|number| (SocketId(16 + number), SocketKind::UdpMedia));
    engine.open.extend(media);
    let begun = Instant::now();
    while engine.local.len() < ports as usize + 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "sockets");
        let wait = Duration::from_millis(5);
        driver.turn_engine(&mut engine, wait).unwrap();
    }
    (driver, engine)
}

fn receiver() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let limit = Some(Duration::from_secs(20));
    socket.set_read_timeout(limit).unwrap();
    socket
}

#[test]
fn due_packet_leaves_between_received_datagrams() {
    let peer = receiver();
    let (mut driver, mut engine) = started(DriverConfig::default(), 1, &peer);
    let signalling = engine.local[&SIGNALLING];
    for _ in 0..200 {
        peer.send_to(b"signalling", signalling).unwrap();
    }
    engine.on_first = Some(SocketId(16));
    let begun = Instant::now();
    while engine.received.len() < 200 {
        assert!(begun.elapsed() < Duration::from_secs(20), "datagrams");
        let wait = Duration::from_millis(5);
        driver.turn_engine(&mut engine, wait).unwrap();
    }
    // Datagrams that one batch of reception holds do not make it wait.
    let &[(sent, before)] = &engine.batches[..] else {
        panic!("{:?}", engine.batches);
    };
    assert_eq!(sent, 1);
    assert!(before <= 8, "sent after {before} datagrams");
    assert_eq!(peer.recv(&mut [0; 16]).unwrap(), 5);
}

#[test]
fn due_packets_leave_before_timers() {
    let peer = receiver();
    let (mut driver, mut engine) = started(DriverConfig::default(), 1, &peer);
    let begin = driver.clock().now();
    let after = |us: u64| begin + Duration::from_micros(us);
    engine.due_from = (0..4_000).map(|n| (after(n * 5), SocketId(16))).collect();
    engine.timers = (0..1_000).map(|n| after(n * 20)).collect();
    while !engine.due_from.is_empty() || !engine.timers.is_empty() {
        let waited = driver.clock().now().since(begin);
        assert!(waited < Duration::from_secs(20), "packets");
        let wait = Duration::from_millis(5);
        driver.turn_engine(&mut engine, wait).unwrap();
    }
    let sent: usize = engine.batches.iter().map(|(sent, _)| sent).sum();
    assert_eq!(sent, 4_000);
}

#[test]
fn arrival_does_not_depend_on_the_place_in_the_batch() {
    let peer = receiver();
    let config = DriverConfig {
        receive_timestamps: true,
        ..DriverConfig::default()
    };
    let (mut driver, mut engine) = started(config, 1, &peer);
    engine.effort = Duration::from_millis(1);
    let media = engine.local[&SocketId(16)];
    for _ in 0..64 {
        peer.send_to(b"media", media).unwrap();
    }
    let begun = Instant::now();
    while engine.received.len() < 64 {
        assert!(begun.elapsed() < Duration::from_secs(20), "datagrams");
        let wait = Duration::from_millis(5);
        driver.turn_engine(&mut engine, wait).unwrap();
    }
    // They were sent in this order. By the time of the turn the last one would have come 63 ms before the first.
    let (first, last) = (engine.arrived[0], engine.arrived[63]);
    assert!(
        last + Duration::from_millis(20) > first,
        "{first} and {last}"
    );
}

#[test]
fn sender_that_is_behind_still_receives() {
    let peer = receiver();
    let (mut driver, mut engine) = started(DriverConfig::default(), 1, &peer);
    let signalling = engine.local[&SIGNALLING];
    peer.send_to(b"signalling", signalling).unwrap();
    // All of them are due at once.
    engine.due_from = (0..5_000).map(|_| (Time::ZERO, SocketId(16))).collect();
    let begun = Instant::now();
    while !engine.due_from.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "packets");
        let wait = Duration::from_millis(5);
        driver.turn_engine(&mut engine, wait).unwrap();
    }
    let sent: usize = engine.batches.iter().map(|(sent, _)| sent).sum();
    assert_eq!(sent, 5_000);
    assert!(engine.batches.iter().all(|(sent, _)| *sent <= BATCH));
    // The datagram was received while most of them still waited.
    let before = engine.batches.iter().filter(|(_, received)| *received == 0);
    let before: usize = before.map(|(sent, _)| sent).sum();
    assert!(before <= 1_024, "{before} packets before the datagram");
}

/// Sends one packet from each port, and one to each; returns the number of calls that sent and received them.
fn exchange(driver: &mut Driver, engine: &mut MediaSender, peer: &UdpSocket) -> (u64, u64) {
    let media: HashMap<SocketAddr, SocketId> = engine
        .local
        .iter()
        .filter(|(socket, _)| **socket != SIGNALLING)
        .map(|(socket, local)| (*local, *socket))
        .collect();
    let before = driver.counters();
    let all = media.values();
    engine.due_from = all.map(|socket| (Time::ZERO, *socket)).collect();
    let wait = Duration::from_millis(5);
    driver.turn_engine(engine, wait).unwrap();
    let sent = driver.counters();
    let mut sources = HashSet::new();
    for _ in 0..media.len() {
        let (length, source) = peer.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(length, 5);
        sources.insert(source);
    }
    assert_eq!(sources, media.keys().copied().collect());
    for local in media.keys() {
        peer.send_to(b"back", *local).unwrap();
    }
    let begun = Instant::now();
    while engine.received.len() < media.len() {
        assert!(begun.elapsed() < Duration::from_secs(20), "datagrams");
        driver.turn_engine(engine, wait).unwrap();
    }
    let received: HashSet<SocketId> = engine.received.iter().copied().collect();
    assert_eq!(received, media.values().copied().collect());
    let after = driver.counters();
    (
        sent.send_calls - before.send_calls,
        after.receive_calls - sent.receive_calls,
    )
}

#[test]
fn many_ports_of_a_plain_engine_share_a_socket() {
    let run = || {
        let test = "many_ports_of_a_plain_engine_share_a_socket";
        let _alone = serialised();
        if !enter_private_network(test) {
            return;
        }
        let config = |media_sockets| DriverConfig {
            media_sockets,
            receive_timestamps: true,
            ..DriverConfig::default()
        };
        let ports = 200;
        let peer = receiver();
        let (mut driver, mut engine) = started(config(MediaSockets::PerPort), ports, &peer);
        let (send_calls, receive_calls) = exchange(&mut driver, &mut engine, &peer);
        assert!(send_calls >= 200 && receive_calls >= 200);
        drop(driver);
        if let Err(error) = Driver::plain(config(MediaSockets::One), Clock::new()) {
            eprintln!("skipped: {test}: {error}");
            return;
        }
        let (mut driver, mut engine) = started(config(MediaSockets::One), ports, &peer);
        let (send_calls, receive_calls) = exchange(&mut driver, &mut engine, &peer);
        assert!(send_calls <= 10, "{send_calls} calls sent 200 packets");
        // How many are queued at a turn depends on the machine.
        assert!(receive_calls <= 200, "{receive_calls} calls received them");
    };
    std::thread::spawn(run).join().unwrap();
}
