//! The driver under load, over loopback: batching and GSO of signalling, nothing lost or reordered, media not
//! delayed; and handling of ICMP. Checked figures are the driver's counters and medians, so that a slow machine
//! passes as well.

use engine::{Deadline, DropReason, Engine, Input, Output, SocketId, SocketKind, Time};
use net::{Clock, Driver, DriverConfig};
use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SIGNALLING: SocketId = SocketId(1);
const MEDIA: SocketId = SocketId(2);

/// An engine that sends queued datagrams, echoes its input, and is busy for some time with each datagram.
#[derive(Default)]
struct BusyEchoEngine {
    open: VecDeque<(SocketId, SocketKind, SocketAddr)>,
    shut: Vec<SocketId>,
    out: VecDeque<(SocketId, SocketAddr, Vec<u8>)>,
    current: Option<(SocketId, SocketAddr, Vec<u8>)>,
    places: HashMap<SocketId, SocketAddr>,
    effort: Duration,
    /// CPU time for each sent datagram.
    slow: Duration,
    echo: bool,
    /// Queueing delays, by socket.
    waited: HashMap<SocketId, Vec<Duration>>,
    undelivered: Vec<(SocketId, SocketAddr, Vec<u8>)>,
}

impl Engine for BusyEchoEngine {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        match input {
            Input::Opened { socket, local } => {
                self.places.insert(socket, local);
            }
            Input::OpenFailed { error, .. } => panic!("{error}"),
            Input::Datagram(datagram) => {
                let waited = self.waited.entry(datagram.socket).or_default();
                waited.push(now.since(datagram.arrived));
                let begun = Instant::now();
                while datagram.socket == SIGNALLING && begun.elapsed() < self.effort {
                    std::hint::spin_loop();
                }
                if self.echo {
                    let bytes = datagram.bytes.to_vec();
                    self.out
                        .push_back((datagram.socket, datagram.source, bytes));
                }
            }
            Input::Unreachable {
                socket,
                destination,
                bytes,
            } => self.undelivered.push((socket, destination, bytes.to_vec())),
            _ => {}
        }
    }

    fn next_output(&mut self) -> Option<Output<'_>> {
        if let Some((socket, kind, local)) = self.open.pop_front() {
            return Some(Output::OpenSocket {
                socket,
                kind,
                local,
            });
        }
        if let Some(socket) = self.shut.pop() {
            return Some(Output::CloseSocket { socket });
        }
        self.current = self.out.pop_front();
        let (socket, destination, bytes) = self.current.as_ref()?;
        let begun = Instant::now();
        while begun.elapsed() < self.slow {
            std::hint::spin_loop();
        }
        Some(Output::Datagram {
            socket: *socket,
            destination: *destination,
            bytes,
        })
    }

    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A datagram of this length that contains its order number and its count.
fn datagram(order: u32, count: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![0x55; length];
    bytes[..4].copy_from_slice(&order.to_be_bytes());
    bytes[4..8].copy_from_slice(&count.to_be_bytes());
    bytes
}

/// The order number of a datagram.
fn order_of(bytes: &[u8]) -> u32 {
    number(bytes, 0)
}

struct Rig {
    driver: Driver,
    engine: BusyEchoEngine,
}

impl Rig {
    fn new(config: DriverConfig, host: &str) -> Rig {
        let mut rig = Rig {
            driver: Driver::plain(config, Clock::new()).unwrap(),
            engine: BusyEchoEngine::default(),
        };
        let local: SocketAddr = format!("{host}:0").parse().unwrap();
        for (socket, kind) in [
            (SIGNALLING, SocketKind::UdpSignalling),
            (MEDIA, SocketKind::UdpMedia),
        ] {
            rig.engine.open.push_back((socket, kind, local));
        }
        rig.until(|engine| engine.places.len() == 2);
        rig
    }

    fn until(&mut self, done: impl Fn(&BusyEchoEngine) -> bool) {
        let begun = Instant::now();
        while !done(&self.engine) {
            assert!(begun.elapsed() < Duration::from_secs(60), "not reached");
            let wait = Duration::from_millis(5);
            self.driver.turn_engine(&mut self.engine, wait).unwrap();
        }
    }
}

fn receiver(host: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(format!("{host}:0")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Gives a receiver a buffer for all datagrams of a test; `false` if that is not permitted.
fn has_large_buffer(socket: &UdpSocket) -> bool {
    rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, 16 << 20).is_ok()
}

/// Receives `count` datagrams and asserts that they are in order for each order number.
fn receive_in_order(socket: &UdpSocket, count: usize) {
    receive_and_count(socket, count, &AtomicU32::new(0));
}

/// The same, and counts the received datagrams.
fn receive_and_count(socket: &UdpSocket, count: usize, received: &AtomicU32) {
    let mut last: HashMap<u32, u32> = HashMap::new();
    let mut bytes = [0; 4_096];
    for i in 0..count {
        let length = socket.recv(&mut bytes).unwrap_or_else(|error| {
            panic!("{i} of {count} came: {error}");
        });
        let (order, count) = (number(&bytes[..length], 0), number(&bytes[..length], 4));
        if let Some(before) = last.insert(order, count) {
            assert!(before < count, "{count} after {before} of {order}");
        }
        received.fetch_add(1, Ordering::Release);
    }
}

fn median(of: &[Duration]) -> Duration {
    let mut sorted = of.to_vec();
    sorted.sort();
    sorted[sorted.len() / 2]
}

/// Sends rounds of datagrams of a few lengths to two peers, each with its own order numbers, and receives them.
fn send_gso_rounds(host: &str, lengths: [usize; 3]) -> net::DriverCounters {
    let config = DriverConfig {
        gso_order: Some(order_of),
        ..DriverConfig::default()
    };
    let mut rig = Rig::new(config, host);
    let peers = [receiver(host), receiver(host)];
    let (rounds, each) = (20, 60);
    for round in 0..rounds {
        for count in 0..each {
            for (peer, (_, address)) in peers.iter().enumerate() {
                let order = 1 + count % 7 + 10 * peer as u32;
                let length = lengths[count as usize % 3];
                let bytes = datagram(order, round * each + count, length);
                rig.engine.out.push_back((SIGNALLING, *address, bytes));
            }
        }
        rig.until(|engine| engine.out.is_empty());
        for (socket, _) in &peers {
            receive_in_order(socket, each as usize);
        }
    }
    let counters = rig.driver.counters();
    assert_eq!(counters.datagrams_out, u64::from(2 * rounds * each));
    assert_eq!(counters.drops.get(DropReason::SendFailed), 0);
    counters
}

#[test]
fn gso_bursts_lose_nothing_and_keep_the_order_within_a_call() {
    for host in ["127.0.0.1", "[::1]"] {
        let counters = send_gso_rounds(host, [400, 500, 700]);
        // Seven order numbers in three lengths to one peer: most datagrams can join a burst.
        assert!(
            counters.gso_datagrams > counters.datagrams_out / 2,
            "{} of {}",
            counters.gso_datagrams,
            counters.datagrams_out
        );
    }
}

/// Queues `count` datagrams of 500 bytes for one peer at once.
fn backlog(rig: &mut Rig, to: SocketAddr, count: u32) {
    for number in 0..count {
        let bytes = datagram(1, number, 500);
        rig.engine.out.push_back((SIGNALLING, to, bytes));
    }
}

fn paced_rig() -> Rig {
    let config = DriverConfig {
        gso_order: Some(order_of),
        pacing_burst: 16 << 10,
        ..DriverConfig::default()
    };
    Rig::new(config, "127.0.0.1")
}

#[test]
fn pacing_bounds_a_backlog_and_keeps_its_order() {
    let mut rig = paced_rig();
    let (socket, peer) = receiver("127.0.0.1");
    if !has_large_buffer(&socket) {
        println!("skipped: no right to a large receive buffer");
        return;
    }
    // Media sockets that are closed meanwhile release nothing.
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut media: Vec<SocketId> = (10..20).map(SocketId).collect();
    for &socket in &media {
        rig.engine
            .open
            .push_back((socket, SocketKind::UdpMedia, local));
    }
    rig.until(|engine| engine.places.len() == 12);
    let mut count = 2_000;
    // The driver's time of the first datagrams may be that of its last turn.
    let begun = Instant::now();
    rig.driver
        .turn_engine(&mut rig.engine, Duration::ZERO)
        .unwrap();
    backlog(&mut rig, peer, count);
    loop {
        let wait = Duration::from_millis(5);
        rig.driver.turn_engine(&mut rig.engine, wait).unwrap();
        let out = rig.driver.counters().datagrams_out;
        let most = 16_384.0 + begun.elapsed().as_secs_f64() * 12e6;
        assert!(out as f64 * 500.0 <= most, "{out} datagrams at once");
        if out == u64::from(count) {
            break;
        }
        // Later datagrams do not overtake held ones, even if some of these are released while others are queued.
        rig.engine.slow = Duration::from_micros(500);
        let bytes = datagram(1, count, 500);
        rig.engine.out.push_back((SIGNALLING, peer, bytes));
        rig.engine.shut.extend(media.pop());
        count += 1;
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    receive_in_order(&socket, count as usize);
    assert!(rig.driver.counters().paced > 0);
}

#[test]
fn held_backlog_is_sent_before_its_socket_is_closed() {
    let mut rig = paced_rig();
    let (socket, peer) = receiver("127.0.0.1");
    if !has_large_buffer(&socket) {
        println!("skipped: no right to a large receive buffer");
        return;
    }
    backlog(&mut rig, peer, 2_000);
    rig.driver
        .turn_engine(&mut rig.engine, Duration::ZERO)
        .unwrap();
    assert!(rig.driver.counters().datagrams_out < 2_000);
    rig.engine.shut.push(SIGNALLING);
    rig.driver
        .turn_engine(&mut rig.engine, Duration::ZERO)
        .unwrap();
    receive_in_order(&socket, 2_000);
}

#[test]
fn held_backlog_is_sent_when_the_driver_is_dropped() {
    let mut rig = paced_rig();
    let (socket, peer) = receiver("127.0.0.1");
    if !has_large_buffer(&socket) {
        println!("skipped: no right to a large receive buffer");
        return;
    }
    backlog(&mut rig, peer, 2_000);
    rig.driver
        .turn_engine(&mut rig.engine, Duration::ZERO)
        .unwrap();
    drop(rig);
    receive_in_order(&socket, 2_000);
}

/// Marks the child process inside the namespace.
const INSIDE: &str = "HORNWORK_NARROW_LOOPBACK";

#[test]
fn without_gso_datagrams_are_sent_singly_without_loss() {
    if std::env::var_os(INSIDE).is_some() {
        // Segments of 1,400 bytes exceed the MTU of 1,000, so the kernel refuses GSO; single datagrams of that length
        // are fragmented.
        let counters = send_gso_rounds("127.0.0.1", [1_400, 1_400, 1_400]);
        assert_eq!(counters.gso_datagrams, 0, "refused");
        return;
    }
    let name = "load::without_gso_datagrams_are_sent_singly_without_loss";
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "ip link set lo mtu 1000 up && exec {} --exact {name}",
        program.display()
    );
    let narrow = Command::new("unshare")
        .args(["-n", "sh", "-c", "ip link set lo mtu 1000 up"])
        .output();
    if !narrow.is_ok_and(|output| output.status.success()) {
        println!("skipped: no right to a network namespace");
        return;
    }
    let inside = Command::new("unshare")
        .args(["-n", "sh", "-c", &script])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    assert!(
        inside.status.success(),
        "{}",
        String::from_utf8_lossy(&inside.stdout)
    );
}

/// Upper bound of messages without an echo: a busy machine slows the load down.
const WINDOW: u32 = 64;

/// Signalling at a steady rate with concurrent media, for `count` messages.
fn under_load(batching_delay: Duration, effort: Duration, pace: Duration, count: u32) -> Rig {
    let config = DriverConfig {
        signalling_batching_delay: batching_delay,
        receive_timestamps: true,
        ..DriverConfig::default()
    };
    let mut rig = Rig::new(config, "127.0.0.1");
    rig.engine.effort = effort;
    rig.engine.echo = true;
    let (signalling, media) = (rig.engine.places[&SIGNALLING], rig.engine.places[&MEDIA]);
    let (caller, _) = receiver("127.0.0.1");
    assert!(has_large_buffer(&caller));
    let (speaker, _) = receiver("127.0.0.1");
    let stop = Arc::new(AtomicBool::new(false));
    let talks = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let mut sent = 0u32;
            while !stop.load(Ordering::Acquire) {
                speaker.send_to(&datagram(2, sent, 172), media).unwrap();
                sent += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        })
    };
    let received = Arc::new(AtomicU32::new(0));
    let calls = {
        let (caller, received) = (caller.try_clone().unwrap(), received.clone());
        std::thread::spawn(move || {
            let begun = Instant::now();
            for number in 0..count {
                while number >= received.load(Ordering::Acquire) + WINDOW {
                    std::thread::sleep(Duration::from_micros(100));
                }
                caller
                    .send_to(&datagram(1, number, 300), signalling)
                    .unwrap();
                let due = begun + pace * number;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        })
    };
    let echoes = std::thread::spawn(move || receive_and_count(&caller, count as usize, &received));
    rig.until(|engine| {
        let waited = engine.waited.get(&SIGNALLING).map_or(0, Vec::len);
        waited == count as usize && engine.out.is_empty()
    });
    calls.join().unwrap();
    stop.store(true, Ordering::Release);
    talks.join().unwrap();
    echoes.join().unwrap();
    rig
}

#[test]
fn under_load_signalling_is_batched_and_media_is_not_delayed() {
    if !has_large_buffer(&receiver("127.0.0.1").0) {
        println!("skipped: no right to a large receive buffer");
        return;
    }
    let batching_delay = Duration::from_millis(40);
    let (effort, pace) = (Duration::from_micros(120), Duration::from_micros(250));
    let rig = under_load(batching_delay, effort, pace, 4_000);
    let counters = rig.driver.counters();
    assert_eq!(counters.drops.get(DropReason::SendFailed), 0);
    assert_eq!(rig.driver.kernel_drops().unwrap(), 0);
    let signalling = &rig.engine.waited[&SIGNALLING];
    let media = &rig.engine.waited[&MEDIA];
    // Media has its own receive calls, at most one for each packet.
    let calls = counters.receive_calls.saturating_sub(media.len() as u64);
    assert!(
        calls < signalling.len() as u64 / 4,
        "{calls} receive calls for {} messages",
        signalling.len()
    );
    let signalling_delay = median(signalling);
    assert!(
        signalling_delay <= batching_delay,
        "half of the messages waited {signalling_delay:?} or more"
    );
    let media_delay = median(media);
    assert!(
        media_delay < batching_delay / 4 && media_delay < signalling_delay,
        "media waited {media_delay:?}, signalling {signalling_delay:?}"
    );
}

#[test]
fn undeliverable_datagrams_are_reported_and_others_arrive() {
    for (host, order) in [
        ("127.0.0.1", None),
        ("127.0.0.1", Some(order_of as fn(&[u8]) -> u32)),
        ("[::1]", None),
    ] {
        let config = DriverConfig {
            report_unreachable: true,
            gso_order: order,
            ..DriverConfig::default()
        };
        let mut rig = Rig::new(config, host);
        let (alive, living) = receiver(host);
        // The port is closed now.
        let dead = receiver(host).1;
        for count in 0..200 {
            for (address, order) in [(dead, 1), (living, 2)] {
                let bytes = datagram(order, count, 300);
                rig.engine.out.push_back((SIGNALLING, address, bytes));
            }
            if count % 20 == 19 {
                rig.until(|engine| engine.out.is_empty());
                receive_in_order(&alive, 20);
            }
        }
        rig.until(|engine| engine.undelivered.len() >= 3);
        for (socket, destination, bytes) in &rig.engine.undelivered {
            assert_eq!((*socket, *destination), (SIGNALLING, dead));
            assert_eq!(number(bytes, 0), 1, "the datagram's own beginning");
            assert!(bytes.len() >= 100);
        }
        let counters = rig.driver.counters();
        assert_eq!(counters.drops.get(DropReason::SendFailed), 0);
        assert_eq!(counters.undelivered, rig.engine.undelivered.len() as u64);
        // The socket still works.
        rig.engine
            .out
            .push_back((SIGNALLING, living, datagram(2, 1_000, 300)));
        rig.until(|engine| engine.out.is_empty());
        receive_in_order(&alive, 1);
    }
}

#[test]
fn datagrams_without_a_route_are_reported_at_once() {
    let run = || {
        if !crate::rig::enter_private_network("datagrams_without_a_route_are_reported_at_once") {
            return;
        }
        let unreachable: SocketAddr = "192.0.2.1:5060".parse().unwrap();
        // No route; and, in a batch with a datagram that arrives, no route from this address.
        for (host, order) in [
            ("0.0.0.0", None),
            ("127.0.0.1", None),
            ("127.0.0.1", Some(order_of as fn(&[u8]) -> u32)),
        ] {
            let config = DriverConfig {
                report_unreachable: true,
                gso_order: order,
                ..DriverConfig::default()
            };
            let mut rig = Rig::new(config, host);
            let (alive, living) = receiver("127.0.0.1");
            let before = rig.driver.counters();
            for count in 0..3 {
                for (address, order) in [(unreachable, 1), (living, 2)] {
                    let bytes = datagram(order, count, 700);
                    rig.engine.out.push_back((SIGNALLING, address, bytes));
                }
            }
            rig.until(|engine| engine.undelivered.len() >= 3);
            receive_in_order(&alive, 3);
            let undelivered = &rig.engine.undelivered;
            assert_eq!(undelivered.len(), 3, "{host}");
            for (count, (socket, destination, bytes)) in (0..).zip(undelivered) {
                assert_eq!((*socket, *destination), (SIGNALLING, unreachable));
                assert_eq!(bytes.len(), 576, "the beginning of the datagram");
                assert_eq!((number(bytes, 0), number(bytes, 4)), (1, count));
            }
            let counters = rig.driver.counters();
            assert_eq!(counters.drops.get(DropReason::SendFailed), 3);
            assert_eq!(counters.undelivered, 3);
            // At most two attempts for each datagram without a route, and one call for each that arrives.
            let calls = counters.send_calls - before.send_calls;
            assert!(calls <= 9, "{host}: {calls} calls");
        }
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn gso_refusals_of_a_short_path_do_not_end_gso() {
    let run = || {
        // The loopback has an MTU of 1,400.
        if !crate::rig::enter_private_network("gso_refusals_of_a_short_path_do_not_end_gso") {
            return;
        }
        let config = DriverConfig {
            gso_order: Some(order_of),
            ..DriverConfig::default()
        };
        let mut rig = Rig::new(config, "127.0.0.1");
        let (socket, peer) = receiver("127.0.0.1");
        let mut send = |count: std::ops::Range<u32>, length| {
            for number in count.clone() {
                rig.engine
                    .out
                    .push_back((SIGNALLING, peer, datagram(1, number, length)));
            }
            rig.until(|engine| engine.out.is_empty());
            receive_in_order(&socket, count.len());
            rig.driver.counters()
        };
        for round in 0..20 {
            let counters = send(round * 10..round * 10 + 10, 1_390);
            assert_eq!(counters.gso_datagrams, 0);
        }
        let counters = send(200..210, 500);
        assert_eq!(counters.gso_datagrams, 10);
        // Only the first burst was tried.
        let before = counters.send_calls;
        let counters = send(210..220, 1_390);
        assert_eq!(counters.send_calls - before, 1, "one batch, without bursts");
        assert_eq!(counters.drops.get(DropReason::SendFailed), 0);
    };
    std::thread::spawn(run).join().unwrap();
}
