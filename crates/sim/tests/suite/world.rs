//! Worlds of small engines: the same seed gives the same log, streams keep their order, faults have their effects.

use engine::{
    CloseReason, ConnectionId, Control, Deadline, DropReason, Engine, Event, EventKind, Forward,
    Input, MediaPacket, Output, PacketVerdict, SocketId, SocketKind, Time,
};
use sim::{
    CodelSettings, Delay, Detail, Fault, Framing, HostId, LinkConfig, Loss, Storm, TapPoint,
    TapTransport, World,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// An output that owns its bytes.
#[derive(Clone)]
enum Out {
    Open(SocketId, SocketKind, SocketAddr),
    Shut(SocketId),
    Datagram(SocketAddr, Vec<u8>),
    Connect(ConnectionId, SocketAddr, bool),
    Stream(ConnectionId, Vec<u8>),
    Close(ConnectionId),
    Event(Event),
}

/// Output queue of the engines in these tests.
#[derive(Default)]
struct Outbox {
    queue: VecDeque<Out>,
    current: Option<Out>,
}

impl Outbox {
    fn push(&mut self, out: Out) {
        self.queue.push_back(out);
    }
    fn next(&mut self) -> Option<Output<'_>> {
        self.current = self.queue.pop_front();
        Some(match self.current.as_ref()? {
            &Out::Open(socket, kind, local) => Output::OpenSocket {
                socket,
                kind,
                local,
            },
            &Out::Shut(socket) => Output::CloseSocket { socket },
            Out::Datagram(destination, bytes) => Output::Datagram {
                socket: SocketId(1),
                destination: *destination,
                bytes,
            },
            &Out::Connect(connection, remote, websocket) => Output::Connect {
                connection,
                local: None,
                remote,
                tls: None,
                websocket,
            },
            Out::Stream(connection, bytes) => Output::Stream {
                connection: *connection,
                bytes,
            },
            &Out::Close(connection) => Output::Close { connection },
            Out::Event(event) => Output::Event(event.clone()),
        })
    }
}

/// Sends numbered pings, each repeated every 100 ms until its pong arrives.
struct Pinger {
    out: Outbox,
    peer: SocketAddr,
    number: u32,
    until: u32,
    again: Option<Time>,
    last: Time,
}

impl Pinger {
    fn new(local: &str, peer: &str, until: u32) -> Pinger {
        let mut out = Outbox::default();
        out.push(Out::Open(SocketId(1), SocketKind::UdpSignalling, at(local)));
        Pinger {
            out,
            peer: at(peer),
            number: 0,
            until,
            again: None,
            last: Time::ZERO,
        }
    }
    fn ping(&mut self, now: Time) {
        let bytes = self.number.to_be_bytes().to_vec();
        self.out.push(Out::Datagram(self.peer, bytes));
        self.again = Some(now + Duration::from_millis(100));
    }
}

impl Engine for Pinger {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        assert!(now >= self.last);
        self.last = now;
        match input {
            Input::Opened { .. } => self.ping(now),
            Input::Timeout if self.again.is_some_and(|again| again <= now) => self.ping(now),
            Input::Datagram(datagram) if datagram.bytes == self.number.to_be_bytes() => {
                self.number += 1;
                if self.number < self.until {
                    self.ping(now);
                } else {
                    self.again = None;
                    let note = EventKind::AttemptEnded {
                        attempt: 0,
                        kind: "ping".into(),
                        outcome: "done".into(),
                    };
                    self.out.push(Out::Event(Event::new(now, note)));
                }
            }
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.out.next()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        self.again.map(|again| Deadline::new(again, "ping"))
    }
}

/// Echoes datagrams and stream data.
struct Echo {
    out: Outbox,
    failed: Option<String>,
    closed: Vec<CloseReason>,
}

impl Echo {
    fn new(local: &str) -> Echo {
        let mut out = Outbox::default();
        out.push(Out::Open(SocketId(1), SocketKind::UdpSignalling, at(local)));
        out.push(Out::Open(SocketId(2), SocketKind::TcpListener, at(local)));
        Echo {
            out,
            failed: None,
            closed: Vec::new(),
        }
    }
}

impl Engine for Echo {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Datagram(d) => self.out.push(Out::Datagram(d.source, d.bytes.to_vec())),
            Input::Stream { connection, bytes } => {
                self.out.push(Out::Stream(connection, bytes.to_vec()));
            }
            Input::OpenFailed { error, .. } => self.failed = Some(error.to_owned()),
            Input::Closed { reason: why, .. } => self.closed.push(why),
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.out.next()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

/// Connects, sends `total` bytes of a known pattern in pieces, reads the echo and closes.
struct Talker {
    out: Outbox,
    total: usize,
    given: usize,
    back: usize,
    next: Option<Time>,
    closed: Option<CloseReason>,
}

const TALK: ConnectionId = ConnectionId(7);

fn pattern(i: usize) -> u8 {
    (i * 7 + i / 251) as u8
}

impl Talker {
    fn new(remote: &str, total: usize) -> Talker {
        let mut out = Outbox::default();
        out.push(Out::Connect(TALK, at(remote), false));
        let mut talker = Talker {
            out,
            total,
            given: 0,
            back: 0,
            next: Some(Time::ZERO),
            closed: None,
        };
        // Bytes may be written before the connection is established.
        talker.give(10);
        talker
    }
    fn give(&mut self, length: usize) {
        let end = self.total.min(self.given + length);
        let bytes = (self.given..end).map(pattern).collect();
        self.given = end;
        self.out.push(Out::Stream(TALK, bytes));
    }
}

impl Engine for Talker {
    fn handle(&mut self, input: Input<'_>, now: Time) {
        match input {
            Input::Timeout if self.closed.is_none() && self.given < self.total => {
                self.give(3_000);
                self.next = (self.given < self.total).then_some(now + Duration::from_millis(5));
            }
            Input::Stream { connection, bytes } => {
                assert_eq!(connection, TALK);
                for &byte in bytes {
                    assert_eq!(byte, pattern(self.back), "byte {}", self.back);
                    self.back += 1;
                }
                if self.back == self.total {
                    self.out.push(Out::Close(TALK));
                }
            }
            Input::Closed { reason: why, .. } => {
                assert!(self.closed.replace(why).is_none(), "closed twice");
                self.next = None;
            }
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.out.next()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        self.next.map(|next| Deadline::new(next, "talk"))
    }
}

fn bad() -> LinkConfig {
    LinkConfig {
        delay: Delay::Uniform(Duration::from_millis(5), Duration::from_millis(50)),
        loss: Loss::Random(0.2),
        duplicate: 0.1,
        reorder: 0.1,
        ordered: false,
        ..LinkConfig::default()
    }
}

fn two(seed: u64, link: LinkConfig) -> (World, HostId, HostId) {
    let mut world = World::new(seed);
    world.keep_log();
    world.set_detail(Detail::Payloads);
    world.set_default_link(link);
    let echo = world.add_engine("echo", &[ip("10.0.0.2")], Echo::new("10.0.0.2:5060"));
    let pinger = Pinger::new("10.0.0.1:5060", "10.0.0.2:5060", 50);
    let ping = world.add_engine("ping", &[ip("10.0.0.1")], pinger);
    (world, ping, echo)
}

#[test]
fn same_seed_same_log() {
    let run = |seed| {
        let (mut world, ping, _) = two(seed, bad());
        world.add_engine(
            "talk",
            &[ip("10.0.0.3")],
            Talker::new("10.0.0.2:5060", 50_000),
        );
        assert!(world.run_quiet(Time::from_secs(300)));
        let done = world.with_engine(ping, |p: &mut Pinger, _| p.number);
        assert_eq!(done, Some(50));
        (world.log().to_vec(), world.digest())
    };
    let first = run(1);
    assert!(first.0.len() > 10_000);
    assert_eq!(first, run(1));
    let other = run(2);
    assert_ne!(first.0, other.0);
    assert_ne!(first.1, other.1);
    let text = String::from_utf8(first.0).unwrap();
    assert!(text.contains("attempt_ended"));
    // Time never goes backwards in the log.
    let times: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with(' '))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    let seconds = |t: &&str| t.parse::<f64>().unwrap();
    assert!(times.windows(2).all(|w| seconds(&w[0]) <= seconds(&w[1])));
}

#[test]
fn streams_keep_order_over_bad_links() {
    for seed in 0..50 {
        let mut world = World::new(seed);
        world.set_default_link(bad());
        let echo = world.add_engine("echo", &[ip("fd00::2")], Echo::new("[fd00::2]:5060"));
        let talker = Talker::new("[fd00::2]:5060", 60_000);
        let talk = world.add_engine("talk", &[ip("fd00::1")], talker);
        assert!(world.run_quiet(Time::from_secs(600)), "seed {seed}");
        world.with_engine(talk, |talker: &mut Talker, _| {
            assert_eq!(talker.back, 60_000, "seed {seed}");
            assert_eq!(talker.closed, Some(CloseReason::Engine));
        });
        world.with_engine(echo, |echo: &mut Echo, _| {
            assert_eq!(echo.closed, [CloseReason::Peer]);
        });
        assert_eq!(world.open(talk), (0, 0));
        assert_eq!(world.open(echo), (2, 0));
        assert!(world.counts().retransmissions > 0);
    }
}

#[test]
fn refused_reset_and_partition() {
    let mut world = World::new(3);
    let echo = world.add_engine("echo", &[ip("10.0.0.2")], Echo::new("10.0.0.2:5060"));
    let wrong = world.add_engine(
        "wrong",
        &[ip("10.0.0.3")],
        Talker::new("10.0.0.2:5061", 100),
    );
    // WebSockets do not exist here: one is refused, never a plain stream instead.
    let mut browser = Talker::new("10.0.0.2:5060", 100);
    for out in &mut browser.out.queue {
        if let Out::Connect(.., websocket) = out {
            *websocket = true;
        }
    }
    let web = world.add_engine("web", &[ip("10.0.0.7")], browser);
    let nobody = world.add_engine("nobody", &[ip("10.0.0.4")], Talker::new("10.0.0.9:1", 100));
    let reset = world.add_engine(
        "reset",
        &[ip("10.0.0.5")],
        Talker::new("10.0.0.2:5060", 1 << 20),
    );
    let cut = world.add_engine(
        "cut",
        &[ip("10.0.0.6")],
        Talker::new("10.0.0.2:5060", 1 << 20),
    );
    world.plan(Time::from_millis(100), Fault::Reset(reset));
    world.plan(Time::from_millis(100), Fault::Partition(cut, echo));
    assert!(world.run_quiet(Time::from_secs(300)));
    for (host, why) in [
        (wrong, CloseReason::ConnectFailed),
        (web, CloseReason::ConnectFailed),
        (nobody, CloseReason::ConnectFailed),
        (reset, CloseReason::Error),
    ] {
        let closed = world.with_engine(host, |talker: &mut Talker, _| talker.closed);
        assert_eq!(closed, Some(Some(why)), "{}", world.name(host));
    }
    // Into a partition at most one window can be written.
    let closed = world.with_engine(cut, |talker: &mut Talker, _| talker.closed);
    assert_eq!(closed, Some(Some(CloseReason::Backpressure)));
    world.with_engine(echo, |echo: &mut Echo, _| {
        assert_eq!(echo.closed, [CloseReason::Error, CloseReason::Error]);
    });
    assert_eq!(world.open(echo), (2, 0));
}

#[test]
fn crash_and_restart() {
    let (mut world, ping, echo) = two(4, LinkConfig::default());
    let mut talker = Talker::new("10.0.0.2:5060", 5_000_000);
    talker.total = 100_000;
    let talk = world.add_engine("talk", &[ip("10.0.0.3")], talker);
    world.plan(Time::from_millis(5), Fault::Crash(echo));
    world.run_until(Time::from_secs(1));
    let stuck = world
        .with_engine(ping, |p: &mut Pinger, _| p.number)
        .unwrap();
    assert!(stuck < 50);
    assert_eq!(world.with_engine(echo, |_: &mut Echo, _| ()), None);
    world.restart(echo, Echo::new("10.0.0.2:5060"));
    assert!(world.run_quiet(Time::from_secs(100)));
    let number = world.with_engine(ping, |p: &mut Pinger, _| p.number);
    assert_eq!(number, Some(50));
    let closed = world.with_engine(talk, |t: &mut Talker, _| t.closed);
    assert!(
        matches!(closed, Some(Some(CloseReason::Error))),
        "{closed:?}"
    );
    assert_eq!(world.open(talk), (0, 0));
}

#[test]
fn used_and_foreign_addresses_are_refused() {
    let mut world = World::new(5);
    let host = world.add_engine("echo", &[ip("10.0.0.2")], Echo::new("0.0.0.0:5060"));
    world.run_until(Time::from_millis(1));
    for (address, error) in [
        ("10.0.0.2:5060", "Address already in use"),
        ("10.0.0.3:5070", "Cannot assign requested address"),
    ] {
        world.with_engine(host, |echo: &mut Echo, _| {
            let kind = SocketKind::UdpMedia;
            echo.out.push(Out::Open(SocketId(9), kind, at(address)));
        });
        world.run_until(world.now() + Duration::from_millis(1));
        let failed = world.with_engine(host, |echo: &mut Echo, _| echo.failed.take());
        assert_eq!(failed.flatten().as_deref(), Some(error));
    }
    world.with_engine(host, |echo: &mut Echo, _| {
        echo.out.push(Out::Shut(SocketId(1)));
        let kind = SocketKind::UdpMedia;
        echo.out
            .push(Out::Open(SocketId(9), kind, at("10.0.0.2:5060")));
    });
    world.run_until(world.now() + Duration::from_millis(1));
    assert_eq!(
        world.with_engine(host, |echo: &mut Echo, _| echo.failed.take()),
        Some(None)
    );
}

#[test]
fn storm_leaves_no_state() {
    for seed in 0..30 {
        let (mut world, ping, echo) = two(seed, LinkConfig::default());
        let talker = Talker::new("10.0.0.2:5060", 200_000);
        let talk = world.add_engine("talk", &[ip("10.0.0.3")], talker);
        let storm = Storm {
            link: LinkConfig {
                loss: Loss::Bursts {
                    to_bad: 0.1,
                    to_good: 0.2,
                    good: 0.05,
                    bad: 0.9,
                },
                ..bad()
            },
            partitions: 3,
            partition: Duration::from_secs(2),
            resets: 1,
        };
        world.storm(&storm, Time::from_secs(5));
        assert!(world.run_quiet(Time::from_secs(200)), "seed {seed}");
        let number = world.with_engine(ping, |p: &mut Pinger, _| p.number);
        assert_eq!(number, Some(50), "seed {seed}");
        let closed = world.with_engine(talk, |t: &mut Talker, _| t.closed);
        assert!(closed.flatten().is_some(), "seed {seed}");
        assert_eq!((world.open(talk).1, world.open(echo).1), (0, 0));
        assert!(world.counts().drops.get(DropReason::LinkLost) > 0);
    }
}

/// Relays between two media sockets; control sets the table by a command and counts reports.
struct RelayControl {
    out: Outbox,
    commands: VecDeque<(SocketId, SocketId, SocketAddr)>,
    reports: Vec<u64>,
    punted: Vec<Vec<u8>>,
}

impl Engine for RelayControl {
    fn handle(&mut self, input: Input<'_>, _now: Time) {
        match input {
            Input::Opened {
                socket: SocketId(11),
                ..
            } => {
                self.commands
                    .push_back((SocketId(10), SocketId(11), at("10.0.0.2:5060")));
                self.commands
                    .push_back((SocketId(11), SocketId(10), at("10.0.0.1:5060")));
            }
            Input::Datagram(datagram) => self.punted.push(datagram.bytes.to_vec()),
            _ => {}
        }
    }
    fn next_output(&mut self) -> Option<Output<'_>> {
        self.out.next()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

impl Control for RelayControl {
    type Command = (SocketId, SocketId, SocketAddr);
    type Report = u64;
    fn next_command(&mut self) -> Option<Self::Command> {
        self.commands.pop_front()
    }
    fn report(&mut self, report: u64, _now: Time) {
        self.reports.push(report);
    }
}

#[derive(Default)]
struct Relay {
    table: Vec<(SocketId, SocketId, SocketAddr)>,
    packets: u64,
    reports: VecDeque<u64>,
}

impl Forward for Relay {
    type Command = (SocketId, SocketId, SocketAddr);
    type Report = u64;
    fn command(&mut self, command: Self::Command, _now: Time) {
        self.table.push(command);
    }
    fn forward(&mut self, packet: &mut MediaPacket<'_>, _now: Time) -> PacketVerdict {
        if packet.length < 4 {
            return PacketVerdict::Punt("short");
        }
        let Some(route) = self.table.iter().find(|route| route.0 == packet.socket) else {
            return PacketVerdict::Drop(DropReason::MediaNoFlow);
        };
        self.packets += 1;
        if self.packets.is_multiple_of(10) {
            self.reports.push_back(self.packets);
        }
        PacketVerdict::Forward {
            socket: route.1,
            destination: route.2,
        }
    }
    fn timeout(&mut self, _now: Time) {}
    fn next_report(&mut self) -> Option<u64> {
        self.reports.pop_front()
    }
    fn next_deadline(&self) -> Option<Deadline> {
        None
    }
}

#[test]
fn forwarder_relays_reports_and_punts_and_the_tap_sees_it() {
    let mut world = World::new(6);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let list = seen.clone();
    world.set_tap(move |record| {
        if matches!(record.point, TapPoint::Delivered(_)) {
            assert_eq!(record.transport, TapTransport::Udp);
            let entry = (record.at, record.source, record.bytes.to_vec());
            list.borrow_mut().push(entry);
        }
    });
    let mut out = Outbox::default();
    for (id, local) in [(10, "10.0.0.5:4000"), (11, "10.0.0.5:4002")] {
        let kind = SocketKind::UdpMedia;
        out.push(Out::Open(SocketId(id), kind, at(local)));
    }
    let control = RelayControl {
        out,
        commands: VecDeque::new(),
        reports: Vec::new(),
        punted: Vec::new(),
    };
    let relay = world.add_control("relay", &[ip("10.0.0.5")], control, Relay::default());
    world.add_engine("echo", &[ip("10.0.0.2")], Echo::new("10.0.0.2:5060"));
    let pinger = Pinger::new("10.0.0.1:5060", "10.0.0.5:4000", 25);
    let ping = world.add_engine("ping", &[ip("10.0.0.1")], pinger);
    assert!(world.run_quiet(Time::from_secs(10)));
    let number = world.with_engine(ping, |p: &mut Pinger, _| p.number);
    assert_eq!(number, Some(25));
    world.with_engine(ping, |p: &mut Pinger, _| {
        p.out
            .push(Out::Datagram(at("10.0.0.5:4002"), b"hi".to_vec()));
    });
    assert!(world.run_quiet(Time::from_secs(20)));
    world.with_control(relay, |control: &mut RelayControl, relay: &mut Relay, _| {
        assert_eq!(relay.packets, 50);
        assert_eq!(control.reports, [10, 20, 30, 40, 50]);
        assert_eq!(control.punted, [b"hi".to_vec()]);
    });
    assert_eq!(world.counts().punted, 1);
    assert_eq!(seen.borrow().len(), 101);
    assert_eq!(seen.borrow()[0].1, at("10.0.0.1:5060"));
}

/// Requests a wake-up at once, forever.
struct Stuck;

impl Engine for Stuck {
    fn handle(&mut self, _input: Input<'_>, _now: Time) {}
    fn next_output(&mut self) -> Option<Output<'_>> {
        None
    }
    fn next_deadline(&self) -> Option<Deadline> {
        Some(Deadline::new(Time::ZERO, "for ever"))
    }
}

#[test]
#[should_panic(expected = "stuck requests wake-ups without progress")]
fn engine_without_progress_is_detected() {
    let mut world = World::new(7);
    world.add_engine("stuck", &[ip("10.0.0.1")], Stuck);
    world.run_until(Time::from_secs(1));
}

#[test]
fn links_with_codel_corruption_and_framing_serve_datagrams_and_connections() {
    let run = |seed| {
        let config = LinkConfig {
            delay: Delay::Constant(Duration::from_millis(10)),
            rate: Some(256_000),
            framing: Framing::Hdlc,
            queue: usize::MAX,
            queue_packets: Some(200),
            codel: Some(CodelSettings::default()),
            corrupt: 0.02,
            mtu: Some(1_500),
            ..LinkConfig::default()
        };
        let (mut world, ping, _) = two(seed, config);
        let talk = world.add_engine(
            "talk",
            &[ip("10.0.0.3")],
            Talker::new("10.0.0.2:5060", 200_000),
        );
        assert!(world.run_quiet(Time::from_secs(300)));
        let done = world.with_engine(ping, |p: &mut Pinger, _| p.number);
        assert_eq!(done, Some(50));
        let closed = world.with_engine(talk, |t: &mut Talker, _| t.closed);
        assert!(closed.flatten().is_some());
        let drops = &world.counts().drops;
        assert!(
            drops.get(DropReason::LinkCodel) > 0,
            "nothing was dropped by CoDel"
        );
        assert!(drops.get(DropReason::LinkCorrupted) > 0);
        world.digest()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
